"""``score(problem, plan)``: the judge of every plan.

Plain, slow, obviously right: it adds up the terms of
:class:`~nest.cost.model.CostModel` stage by stage, as docs/cost-model.md has
it, and never calls a solver or reads a table that one uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import make_case, why_not_case
from nest.errors import InvalidPlanError
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.units import format_bytes, quanta_to_ns


@dataclass(frozen=True, kw_only=True)
class StageScore:
    """The terms of one stage; times in quanta, sizes in bytes per device.

    Attributes
    ----------
    forward, backward
        ``F_s`` and ``G_s`` per micro-batch, receives included.
    receive_forward, receive_backward
        Those receives.
    redistribution
        Time in both passes spent on strategy changes inside the stage.
    sync
        ``Y_s``: gradient sync and optimiser update.
    inflight
        Micro-batches whose activations are kept at the same time.
    weight_bytes, gradient_bytes, state_bytes, kept_bytes, working_bytes
        The parts of the memory; ``kept_bytes`` is for all in flight.
    """

    forward: int
    backward: int
    receive_forward: int
    receive_backward: int
    redistribution: int
    sync: int
    inflight: int
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    kept_bytes: int
    working_bytes: int

    @property
    def load(self) -> int:
        """``τ_s = F_s + G_s``."""
        return self.forward + self.backward

    @property
    def memory_bytes(self) -> int:
        """Memory per device."""
        return (
            self.weight_bytes
            + self.gradient_bytes
            + self.state_bytes
            + self.kept_bytes
            + self.working_bytes
        )


@dataclass(frozen=True, kw_only=True)
class Score:
    """The verdict on one plan.

    Attributes
    ----------
    step_quanta
        Step time ``T`` in quanta.
    num_micro_batches
        ``M`` per replica.
    stages
        The terms, in pipeline order.
    violations
        Why the plan is infeasible; empty if it is feasible.
    throughput_samples_per_s
        ``A / T``; ``None`` if the step takes no time.
    mfu
        Model FLOPs utilisation, a fraction; ``None`` if the problem does not
        say what it needs.
    quantum_ps
        Size of the quantum.
    """

    step_quanta: int
    num_micro_batches: int
    stages: tuple[StageScore, ...]
    violations: tuple[str, ...]
    throughput_samples_per_s: float | None
    mfu: float | None
    quantum_ps: int

    @property
    def feasible(self) -> bool:
        """Whether every device fits its memory."""
        return not self.violations

    @property
    def step_time_ns(self) -> int | float:
        """Step time in ns; whole unless the quantum is finer."""
        return quanta_to_ns(self.step_quanta, self.quantum_ps)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``nest score --json``."""

        def ns(quanta: int) -> int | float:
            return quanta_to_ns(quanta, self.quantum_ps)

        return {
            "schema": "nest-score/1",
            "step_time_ns": self.step_time_ns,
            "step_time_quanta": self.step_quanta,
            "quantum_ps": self.quantum_ps,
            "throughput_samples_per_s": self.throughput_samples_per_s,
            "mfu": self.mfu,
            "feasible": self.feasible,
            "violations": list(self.violations),
            "num_micro_batches": self.num_micro_batches,
            "stages": [
                {
                    "forward_ns": ns(stage.forward),
                    "backward_ns": ns(stage.backward),
                    "receive_forward_ns": ns(stage.receive_forward),
                    "receive_backward_ns": ns(stage.receive_backward),
                    "redistribution_ns": ns(stage.redistribution),
                    "sync_ns": ns(stage.sync),
                    "inflight": stage.inflight,
                    "memory_bytes": stage.memory_bytes,
                    "memory": {
                        "weight_bytes": stage.weight_bytes,
                        "gradient_bytes": stage.gradient_bytes,
                        "state_bytes": stage.state_bytes,
                        "kept_bytes": stage.kept_bytes,
                        "working_bytes": stage.working_bytes,
                    },
                }
                for stage in self.stages
            ],
        }


def score(
    problem: Problem, plan: Plan, model: CostModel | None = None
) -> Score:
    """Price a plan.

    Parameters
    ----------
    problem, plan
        The problem, and a plan for it.
    model
        The problem's cost model, if the caller has one already.

    Returns
    -------
    Score
        Every term of the step time and the memory of every stage.

    Raises
    ------
    InvalidPlanError
        If the plan does not belong to the problem: unknown, missing or
        repeated layers, a stage order against an edge, counting rules, or a
        strategy for which a layer has no cost. Too little memory is a
        violation in the result, not an error.
    """
    model = model or CostModel(problem)
    stages = _locate(problem, plan)
    _check_counts(problem, plan, model)
    _check_costs(problem, plan, stages, model)

    case = make_case(problem, plan.replicas, plan.micro_batch)
    num_micro_batches = case.num_micro_batches
    blocks = _blocks(plan, case.devices, model)
    stage_scores = tuple(
        _score_stage(plan, number, stages, blocks, num_micro_batches, model)
        for number in range(len(stages))
    )

    loads = [stage.load for stage in stage_scores]
    syncs = [stage.sync for stage in stage_scores]
    if model.preset.step_time == "sum-max":
        step = sum(loads) + (num_micro_batches - 1) * max(loads)
    else:
        step = (num_micro_batches + len(stages) - 1) * max(loads)
    step += max(syncs) if model.preset.sync_stages == "max" else syncs[0]

    capacity = problem.cluster.device.memory_bytes
    violations = tuple(
        f"stage {number}: expected at most {capacity} bytes per device "
        f"({format_bytes(capacity)}), got {stage.memory_bytes} "
        f"({format_bytes(stage.memory_bytes)}, "
        f"{_excess(stage.memory_bytes, capacity)} too much)"
        for number, stage in enumerate(stage_scores, 1)
        if stage.memory_bytes > capacity
    )
    seconds = step * problem.quantum_ps / 1e12
    return Score(
        step_quanta=step,
        num_micro_batches=num_micro_batches,
        stages=stage_scores,
        violations=violations,
        throughput_samples_per_s=(
            problem.job.global_batch / seconds if step else None
        ),
        mfu=_mfu(problem, seconds),
        quantum_ps=problem.quantum_ps,
    )


def _excess(size_bytes: int, capacity: int) -> str:
    if capacity == 0:
        return format_bytes(size_bytes)
    return f"{100 * (size_bytes - capacity) / capacity:.1f} %"


def _mfu(problem: Problem, seconds: float) -> float | None:
    flops = problem.job.model_flops_per_sample
    peak = problem.cluster.device.peak_flops.get(problem.job.dtype)
    if flops is None or peak is None or not seconds:
        return None
    return (
        flops
        * problem.job.global_batch
        / (seconds * peak * problem.cluster.num_devices)
    )


# Does the plan belong to the problem?


def _locate(problem: Problem, plan: Plan) -> list[list[tuple[int, Strategy]]]:
    """Return per stage its (layer position, strategy), sources first."""
    graph = problem.graph
    index = graph.index
    stage_of: dict[int, int] = {}
    strategy_of: dict[int, Strategy] = {}
    for number, stage in enumerate(plan.stages, 1):
        for layer, strategy in zip(
            stage.layers, stage.layer_strategies, strict=True
        ):
            position = index.get(str(layer))
            if position is None:
                raise InvalidPlanError(
                    f"stage {number}: expected layers of the problem, got "
                    f"{layer!r}; check that plan and problem belong together"
                )
            if position in stage_of:
                raise InvalidPlanError(
                    f"stage {number}: expected every layer once, got "
                    f"{layer!r} again (stage {stage_of[position]} has it); "
                    f"remove one"
                )
            stage_of[position] = number
            strategy_of[position] = strategy
    missing = [
        repr(layer.id)
        for i, layer in enumerate(graph.layers)
        if i not in stage_of
    ]
    if missing:
        raise InvalidPlanError(
            f"stages: expected every layer in a stage, got none for "
            f"{', '.join(missing[:8])}; add what is missing"
        )
    for edge in graph.edges:
        source, target = index[str(edge.source)], index[str(edge.target)]
        if stage_of[source] > stage_of[target]:
            raise InvalidPlanError(
                f"stage {stage_of[target]}: expected layer {edge.target!r} no "
                f"earlier than {edge.source!r}, which it reads, got stage "
                f"{stage_of[source]} for {edge.source!r}; reorder the stages"
            )
    members: list[list[tuple[int, Strategy]]] = [[] for _ in plan.stages]
    for position in graph.topological_order():
        members[stage_of[position] - 1].append(
            (position, strategy_of[position])
        )
    return members


def _check_counts(problem: Problem, plan: Plan, model: CostModel) -> None:
    reason = why_not_case(problem, plan.replicas, plan.micro_batch)
    if reason is not None:
        raise InvalidPlanError(f"{reason}; choose another value")
    used = plan.devices_used
    share = problem.cluster.num_devices // plan.replicas
    if used > share:
        raise InvalidPlanError(
            f"stages: expected at most {share} devices per replica "
            f"({problem.cluster.num_devices} for {plan.replicas} replicas), "
            f"got {used}; use fewer devices or replicas"
        )
    if model.preset.uniform:
        used_strategies = {
            strategy
            for stage in plan.stages
            for strategy in stage.layer_strategies
        }
        if len(used_strategies) > 1:
            raise InvalidPlanError(
                f"stages: expected one strategy for all stages under preset "
                f"{model.preset.name!r}, got {len(used_strategies)}; use one"
            )


def _check_costs(
    problem: Problem,
    plan: Plan,
    stages: list[list[tuple[int, Strategy]]],
    model: CostModel,
) -> None:
    for number, members in enumerate(stages, 1):
        for position, strategy in members:
            reason = model.available(position, strategy, plan.micro_batch)
            if reason is not None:
                raise InvalidPlanError(f"stage {number}: {reason}")


# The terms of a stage


def _blocks(plan: Plan, share: int, model: CostModel) -> list[Block]:
    pitch = plan.devices_used if model.preset.pitch_is_used else share
    order = list(range(len(plan.stages)))
    if model.preset.last_stage_first:
        order.reverse()
    blocks: dict[int, Block] = {}
    offset = 0
    for number in order:
        devices = plan.stages[number].devices
        blocks[number] = Block(plan.replicas, pitch, offset, devices)
        offset += devices
    return [blocks[number] for number in range(len(plan.stages))]


def _score_stage(
    plan: Plan,
    number: int,
    stages: list[list[tuple[int, Strategy]]],
    blocks: list[Block],
    num_micro_batches: int,
    model: CostModel,
) -> StageScore:
    preset, block, members = model.preset, blocks[number], stages[number]
    stages_left = len(stages) - number
    terms = []
    for position, strategy in members:
        term = model.layer_terms(position, strategy, plan.micro_batch, block)
        assert term is not None
        terms.append(term)

    receive_forward = receive_backward = 0
    if number > 0:
        receive_forward = _receive(
            plan, number, stages, block, blocks[number - 1], model, True
        )
    if stages_left > 1:
        receive_backward = _receive(
            plan, number, stages, block, blocks[number + 1], model, False
        )
    change_forward, change_backward = _redistribution(
        plan, members, block, model
    )

    forward = sum(t.forward for t in terms) + receive_forward + change_forward
    recomputed = sum(t.recomputed for t in terms)
    backward = sum(t.backward for t in terms) - recomputed + change_backward
    if stages_left == 1 and not preset.last_stage_recomputes:
        recomputed = 0
    if preset.recompute_hides_receive:
        backward += max(recomputed, receive_backward)
    else:
        backward += recomputed + receive_backward

    inflight, kept_bytes = _kept(
        plan, members, stages_left, num_micro_batches, terms, model
    )
    return StageScore(
        forward=forward,
        backward=backward,
        receive_forward=receive_forward,
        receive_backward=receive_backward,
        redistribution=change_forward + change_backward,
        sync=sum(t.sync for t in terms) + model.sync_constant(block),
        inflight=inflight,
        weight_bytes=sum(t.weight_bytes for t in terms),
        gradient_bytes=sum(t.gradient_bytes for t in terms),
        state_bytes=sum(t.state_bytes for t in terms),
        kept_bytes=kept_bytes,
        working_bytes=max(t.working_bytes for t in terms),
    )


def _kept(
    plan: Plan,
    members: list[tuple[int, Strategy]],
    stages_left: int,
    num_micro_batches: int,
    terms: list[LayerTerms],
    model: CostModel,
) -> tuple[int, int]:
    """Return (micro-batches in flight, bytes kept for them)."""
    inflight = stages_left
    if model.problem.job.schedule == "gpipe":
        inflight = num_micro_batches
    elif model.preset.inflight_capped:
        inflight = min(num_micro_batches, stages_left)
    once = sum(t.kept_bytes for t in terms)
    _, strategy = members[0]
    if model.preset.stash_boundary_only and strategy.recompute == "full":
        inside = {position for position, _ in members}
        samples = plan.micro_batch // strategy.dp
        entering = sum(
            size_bytes * samples
            for source, target, size_bytes in model.edge_bytes(strategy.tp)
            if target in inside and source not in inside
        )
        return inflight, once + (inflight - 1) * entering
    return inflight, inflight * once


def _receive(
    plan: Plan,
    number: int,
    stages: list[list[tuple[int, Strategy]]],
    block: Block,
    sender: Block,
    model: CostModel,
    forward: bool,
) -> int:
    """Return the receive of activations (or gradients) of a stage."""
    levels = model.boundary_levels(
        block, forward=forward, neighbour=sender.offset
    )
    members = stages[number]
    if model.preset.receive_per_edge:
        inside = {position for position, _ in members}
        _, strategy = members[0]
        samples = plan.micro_batch // strategy.dp
        return max(
            (
                model.edge(level, size_bytes, samples)
                for source, target, size_bytes in model.edge_bytes(strategy.tp)
                for level in levels
                if (target if forward else source) in inside
                and (source if forward else target) not in inside
            ),
            default=0,
        )
    # With one strategy per layer, the layer next to the boundary receives.
    _, strategy = members[0] if forward else members[-1]
    shards = strategy.shards(model.problem.job.sequence_parallel)
    first_after = number if forward else number + 1
    before = {
        position for stage in stages[:first_after] for position, _ in stage
    }
    crossing = []
    for tensor in model.tensors:
        sizes = [size for node, size in tensor.consumers if node not in before]
        if tensor.producer in before and sizes:
            crossing.append(max(sizes))
    if not crossing:
        return 0
    return max(
        model.message(level)
        + sum(
            model.tensor(level, size, plan.micro_batch, shards)
            for size in crossing
        )
        for level in levels
    )


def _redistribution(
    plan: Plan,
    members: list[tuple[int, Strategy]],
    block: Block,
    model: CostModel,
) -> tuple[int, int]:
    """Return the cost of strategy changes inside a stage, (fwd, bwd).

    Every edge between layers whose ``(dp, tp, cp)`` differ moves its tensor
    across the stage's block: each rank receives its shard, ``α + X/(shards
    β)``, forward in the consumer's layout, backward in the producer's.
    """
    strategy_of = dict(members)
    first = {(s.dp, s.tp, s.cp) for s in strategy_of.values()}
    if len(first) == 1:
        return 0, 0
    sequence_parallel = model.problem.job.sequence_parallel
    levels = {
        model.network.level(start, start + block.devices - 1)
        for replica in range(block.replicas)
        for start in [replica * block.pitch + block.offset]
    }
    forward = backward = 0
    for source, target, size_bytes in model.edges:
        if source not in strategy_of or target not in strategy_of:
            continue
        before, after = strategy_of[source], strategy_of[target]
        if (before.dp, before.tp, before.cp) == (after.dp, after.tp, after.cp):
            continue

        def move(strategy: Strategy, size_bytes: int = size_bytes) -> int:
            shards = strategy.shards(sequence_parallel)
            return max(
                model.message(level)
                + model.tensor(level, size_bytes, plan.micro_batch, shards)
                for level in levels
            )

        forward += move(after)
        backward += move(before)
    return forward, backward
