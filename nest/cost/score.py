"""``score(problem, plan)``: the judge of every plan.

Plain, slow, obviously right: it adds up the terms of
:class:`~nest.cost.model.CostModel` stage by stage, as docs/cost-model.md has
it, and never calls a solver or reads a table that one uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.schedules import schedule_of
from nest.cost.space import (
    Case,
    Runtime,
    make_case,
    runtime_of,
    why_not_case,
    why_not_runtime,
    why_not_stages,
)
from nest.errors import InvalidPlanError
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.units import ceil_div, format_bytes, quanta_to_ns


@dataclass(frozen=True, kw_only=True)
class MemoryScore:
    """Memory per device, in bytes by part.

    Attributes
    ----------
    weight_bytes, gradient_bytes, state_bytes, buffer_bytes
        Weights, gradients, optimiser state and further buffers.
    kept_bytes
        Activations of all that is in flight.
    working_bytes
        The largest working set of a layer.
    reserve_bytes
        What no plan can use.
    """

    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    buffer_bytes: int
    kept_bytes: int
    working_bytes: int
    reserve_bytes: int

    @property
    def memory(self) -> dict[str, int]:
        """Parts of the memory per device, by name."""
        return {
            part.name: getattr(self, part.name) for part in fields(MemoryScore)
        }

    @property
    def memory_bytes(self) -> int:
        """Memory per device."""
        return sum(self.memory.values())


@dataclass(frozen=True, kw_only=True)
class StageScore(MemoryScore):
    """The terms of one stage; times in quanta.

    A stage of an interleaved plan is a chunk: its memory is what it alone
    would need, and ``sync`` what it adds to its block's before any hides.

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
    """

    forward: int
    backward: int
    receive_forward: int
    receive_backward: int
    redistribution: int
    sync: int
    inflight: int

    @property
    def load(self) -> int:
        """``τ_s = F_s + G_s``."""
        return self.forward + self.backward


@dataclass(frozen=True, kw_only=True)
class BlockScore(MemoryScore):
    """What one block of devices does and holds: its stage, or its chunks.

    Its memory is the sum over the chunks, except for working sets, of which
    the largest counts, and the reserve, which counts once.

    Attributes
    ----------
    stages
        Numbers of its chunks, from 1.
    load
        ``τ_b``: the sum of their loads.
    sync
        ``Y_b``: gradient sync and optimiser update.
    inflight
        Chunk passes whose activations are kept at the same time.
    """

    stages: tuple[int, ...]
    load: int
    sync: int
    inflight: int


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
        The terms, in pipeline order; of every chunk in an interleaved plan.
    blocks
        The same for every block of devices: one per stage, or fewer in an
        interleaved plan.
    violations
        Why the plan is infeasible; empty if it is feasible.
    throughput_samples_per_s
        ``A / T``, or ``B / T`` where ``T`` is the time per micro-batch;
        ``None`` if the step takes no time.
    mfu
        Model FLOPs utilisation, a fraction; ``None`` if the problem does not
        say what it needs.
    quantum_ps
        Size of the quantum.
    """

    step_quanta: int
    num_micro_batches: int
    stages: tuple[StageScore, ...]
    blocks: tuple[BlockScore, ...]
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

        document: dict[str, Any] = {
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
                    "memory": stage.memory,
                }
                for stage in self.stages
            ],
        }
        if len(self.blocks) < len(self.stages):
            document["blocks"] = [
                {
                    "stages": list(block.stages),
                    "load_ns": ns(block.load),
                    "sync_ns": ns(block.sync),
                    "inflight": block.inflight,
                    "memory_bytes": block.memory_bytes,
                    "memory": block.memory,
                }
                for block in self.blocks
            ]
        return document


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
    case = make_case(problem, plan.replicas, plan.micro_batch)
    _check_counts(problem, plan, model, case)
    _check_costs(problem, plan, stages, model)

    num_micro_batches = case.num_micro_batches
    schedule = schedule_of(problem.job.schedule, plan.virtual_stages)
    where = _blocks(plan, case.devices, model)
    runtime = runtime_of(plan)
    scored = [
        _score_stage(
            plan, runtime, number, stages, where, num_micro_batches, model
        )
        for number in range(len(stages))
    ]
    stage_scores = tuple(stage for stage, _ in scored)
    blocks = tuple(
        _score_block(plan, number, scored, num_micro_batches, model)
        for number in range(plan.num_blocks)
    )
    if plan.virtual_stages == 1 and "gradients" in plan.overlap:
        stage_scores = tuple(
            replace(stage, sync=block.sync)
            for stage, block in zip(stage_scores, blocks, strict=True)
        )

    samples = problem.job.global_batch
    loads = [block.load for block in blocks]
    syncs = [block.sync for block in blocks]
    if model.preset.step_time == "sum-max":
        step = schedule.pipeline_time(
            [stage.forward for stage in stage_scores],
            [stage.backward for stage in stage_scores],
            num_micro_batches,
        ) + max(syncs)
    elif model.preset.step_time == "slots-max":
        step = (num_micro_batches + len(stages) - 1) * max(loads)
        step += syncs[0]
    else:
        samples = plan.micro_batch
        step = max(
            load + sync for load, sync in zip(loads, syncs, strict=True)
        )

    violations = _violations(problem, plan, blocks)
    seconds = step * problem.quantum_ps / 1e12
    return Score(
        step_quanta=step,
        num_micro_batches=num_micro_batches,
        stages=stage_scores,
        blocks=blocks,
        violations=violations,
        throughput_samples_per_s=(samples / seconds if step else None),
        mfu=_mfu(problem, seconds, samples),
        quantum_ps=problem.quantum_ps,
    )


def _violations(
    problem: Problem, plan: Plan, blocks: tuple[BlockScore, ...]
) -> tuple[str, ...]:
    device = problem.cluster.device
    capacity, what = device.memory_bytes, "stage"
    if plan.virtual_stages > 1:
        what = "block"
    reserved = ""
    if device.reserve_bytes:
        reserved = f", {format_bytes(device.reserve_bytes)} of it reserved"
    return tuple(
        f"{what} {number}: expected at most {capacity} bytes per device "
        f"({format_bytes(capacity)}), got {block.memory_bytes} "
        f"({format_bytes(block.memory_bytes)}, "
        f"{_excess(block.memory_bytes, capacity)} too much{reserved})"
        for number, block in enumerate(blocks, 1)
        if block.memory_bytes > capacity
    )


def _excess(size_bytes: int, capacity: int) -> str:
    if capacity == 0:
        return format_bytes(size_bytes)
    return f"{100 * (size_bytes - capacity) / capacity:.1f} %"


def _mfu(problem: Problem, seconds: float, samples: int) -> float | None:
    flops = problem.job.model_flops_per_sample
    peak = problem.cluster.device.peak_flops.get(problem.job.dtype)
    if flops is None or peak is None or not seconds:
        return None
    return flops * samples / (seconds * peak * problem.cluster.num_devices)


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


def _check_counts(
    problem: Problem, plan: Plan, model: CostModel, case: Case
) -> None:
    reason = why_not_case(problem, plan.replicas, plan.micro_batch)
    if reason is not None:
        raise InvalidPlanError(f"{reason}; choose another value")
    reason = why_not_runtime(problem, plan, case.num_micro_batches)
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
    reason = why_not_stages(problem, plan, case.num_micro_batches)
    if reason is not None:
        raise InvalidPlanError(f"{reason}; change the strategies")
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
    order = list(range(plan.num_blocks))
    if model.preset.last_stage_first:
        order.reverse()
    blocks: dict[int, Block] = {}
    offset = 0
    for number in order:
        devices = plan.stages[number].devices
        blocks[number] = Block(plan.replicas, pitch, offset, devices)
        offset += devices
    return [blocks[i % plan.num_blocks] for i in range(len(plan.stages))]


def _score_stage(
    plan: Plan,
    runtime: Runtime,
    number: int,
    stages: list[list[tuple[int, Strategy]]],
    blocks: list[Block],
    num_micro_batches: int,
    model: CostModel,
) -> tuple[StageScore, int]:
    """Return the terms of a stage, and what of its sync may be hidden."""
    preset, block, members = model.preset, blocks[number], stages[number]
    stages_left = len(stages) - number
    terms = []
    for position, strategy in members:
        term = model.layer_terms(
            position,
            strategy,
            plan.micro_batch,
            # without a place, where only the edges between stages cost
            None if preset.both_ends_pay else block,
            runtime,
        )
        assert term is not None
        terms.append(term)

    receive_forward = receive_backward = 0
    if preset.both_ends_pay:
        receive_forward, receive_backward = _exchange(plan, members, model)
    elif number > 0:
        receive_forward = _receive(
            plan, number, stages, block, blocks[number - 1], model, True
        )
    if stages_left > 1 and not preset.both_ends_pay:
        receive_backward = _receive(
            plan, number, stages, block, blocks[number + 1], model, False
        )
    change_forward, change_backward = _redistribution(
        plan, members, block, model
    )

    forward = sum(t.forward for t in terms) + change_forward
    recomputed = sum(t.recomputed for t in terms)
    backward = sum(t.backward for t in terms) - recomputed + change_backward
    _, first = members[0]
    if preset.ranks_take_turns:
        work = model.turn(forward + backward + recomputed, first.dp)
        forward = model.turn(forward, first.dp)
        backward, recomputed = work - forward, 0
    forward += receive_forward
    if stages_left == 1 and not preset.last_stage_recomputes:
        recomputed = 0
    if preset.recompute_hides_receive:
        backward += max(recomputed, receive_backward)
    else:
        backward += recomputed + receive_backward

    inflight, kept_bytes = _kept(
        plan, number, stages, num_micro_batches, terms, model
    )
    reserve_bytes = model.problem.cluster.device.reserve_bytes
    stage = StageScore(
        forward=forward,
        backward=backward,
        receive_forward=receive_forward,
        receive_backward=receive_backward,
        redistribution=change_forward + change_backward,
        sync=sum(t.sync for t in terms)
        + _sync_constant(plan, members, block, num_micro_batches, model),
        inflight=inflight,
        weight_bytes=sum(t.weight_bytes for t in terms),
        gradient_bytes=sum(t.gradient_bytes for t in terms),
        state_bytes=sum(t.state_bytes for t in terms),
        buffer_bytes=sum(t.buffer_bytes for t in terms),
        kept_bytes=kept_bytes,
        working_bytes=max(t.working_bytes for t in terms) - reserve_bytes,
        reserve_bytes=reserve_bytes,
    )
    return stage, sum(t.hideable_sync for t in terms)


def _score_block(
    plan: Plan,
    number: int,
    scored: list[tuple[StageScore, int]],
    num_micro_batches: int,
    model: CostModel,
) -> BlockScore:
    """Add up the chunks of a block.

    The fraction of the gradient sync that can hide does so behind the
    backward passes of one micro-batch.
    """
    chunks = range(number, len(scored), plan.num_blocks)
    stages = [scored[i][0] for i in chunks]
    fraction = model.problem.job.overlap.get("gradients", 0.0)
    hidden = min(
        math.floor(fraction * sum(scored[i][1] for i in chunks) + 0.5),
        sum(stage.backward for stage in stages),
    )

    def total(field: str) -> int:
        return sum(getattr(stage, field) for stage in stages)

    inflight, kept_bytes = total("inflight"), total("kept_bytes")
    if plan.virtual_stages > 1:
        schedule = schedule_of(model.problem.job.schedule, plan.virtual_stages)
        _, inflight, kept_bytes = schedule.kept(
            [stage.kept_bytes // stage.inflight for stage in stages],
            number,
            plan.num_blocks,
            num_micro_batches,
        )
    return BlockScore(
        stages=tuple(i + 1 for i in chunks),
        load=total("load"),
        sync=total("sync") - hidden,
        inflight=inflight,
        weight_bytes=total("weight_bytes"),
        gradient_bytes=total("gradient_bytes"),
        state_bytes=total("state_bytes"),
        buffer_bytes=total("buffer_bytes"),
        kept_bytes=kept_bytes,
        working_bytes=max(stage.working_bytes for stage in stages),
        reserve_bytes=stages[0].reserve_bytes,
    )


def _kept(
    plan: Plan,
    number: int,
    stages: list[list[tuple[int, Strategy]]],
    num_micro_batches: int,
    terms: list[LayerTerms],
    model: CostModel,
) -> tuple[int, int]:
    """Return (micro-batches in flight, bytes kept for them)."""
    block = number % plan.num_blocks
    schedule = schedule_of(model.problem.job.schedule, plan.virtual_stages)
    chunks = schedule.kept(
        [1] * plan.virtual_stages, block, plan.num_blocks, num_micro_batches
    ).chunks
    inflight = chunks[number // plan.num_blocks]
    members = stages[number]
    if model.preset.ranks_take_turns:
        ranks = [stage.layer_strategies[0].dp for stage in plan.stages]
        inflight = ceil_div(sum(ranks[number:]), ranks[number])
    elif (
        not model.preset.inflight_capped
        and model.problem.job.schedule == "1f1b"
    ):
        inflight = len(plan.stages) - number
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
    if model.preset.name == "standard":
        once += _passing_bytes(plan, number, stages, model)
    return inflight, inflight * once


def _passing_bytes(
    plan: Plan,
    number: int,
    stages: list[list[tuple[int, Strategy]]],
    model: CostModel,
) -> int:
    """Return what the tensors that pass a stage take, per micro-batch."""
    entering = _crossing(stages, number, model)
    leaving = _crossing(stages, number + 1, model)
    _, strategy = stages[number][0]
    shards = strategy.shards(model.problem.job.sequence_parallel)
    return sum(
        ceil_div(size_bytes * plan.micro_batch, shards)
        for producer, size_bytes in leaving.items()
        if producer in entering
    )


def _crossing(
    stages: list[list[tuple[int, Strategy]]],
    first_after: int,
    model: CostModel,
) -> dict[int, int]:
    """Return the bytes per sample of the tensors that cross a cut.

    By producer; the cut is in front of stage ``first_after``. A tensor is as
    large as its largest consumer beyond the cut needs it, and one of 0 bytes
    does not cross.
    """
    before = {
        position for stage in stages[:first_after] for position, _ in stage
    }
    crossing = {}
    for tensor in model.tensors:
        if tensor.producer in before:
            size_bytes = max(
                (s for node, s in tensor.consumers if node not in before),
                default=0,
            )
            if size_bytes:
                crossing[tensor.producer] = size_bytes
    return crossing


def _exchange(
    plan: Plan, members: list[tuple[int, Strategy]], model: CostModel
) -> tuple[int, int]:
    """Return what a stage pays for edges that enter and leave it.

    Every cut edge counts, one for each consumer, activation and gradient;
    rounded once for the sum.
    """
    inside = {position for position, _ in members}
    _, strategy = members[0]
    entering = leaving = 0
    for source, target, at_source, at_target in model.edge_ends(
        strategy.tp, plan.micro_batch
    ):
        if target in inside and source not in inside:
            entering += at_target
        if source in inside and target not in inside:
            leaving += at_source
    received, both = (
        model.quanta(model.exchange_ns(size_bytes, strategy.dp), "an edge")
        for size_bytes in (entering, entering + leaving)
    )
    return received, both - received


def _sync_constant(
    plan: Plan,
    members: list[tuple[int, Strategy]],
    block: Block,
    num_micro_batches: int,
    model: CostModel,
) -> int:
    """Return the sync that is rounded once for the stage."""
    if not model.preset.server_sync:
        return model.sync_constant(block)
    _, strategy = members[0]
    weight_bytes = sum(
        model.weight_bytes(position, strategy, plan.micro_batch)
        for position, strategy in members
    )
    sync_ns = model.server_sync_ns(
        float(weight_bytes), strategy.dp, num_micro_batches
    )
    return model.quanta(sync_ns, "gradient sync")


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
    if sender.offset + sender.devices == block.offset:
        levels = model.boundary_levels(
            block, forward=True, neighbour=sender.offset
        )
    elif block.offset + block.devices == sender.offset:
        levels = model.boundary_levels(
            block, forward=False, neighbour=sender.offset
        )
    else:
        first, last = sorted((block, sender), key=lambda b: b.offset)
        levels = model.wrap_levels(first, last)
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
    crossing = _crossing(stages, number if forward else number + 1, model)
    if not crossing:
        return 0
    return max(
        model.message(level)
        + sum(
            model.tensor(level, size, plan.micro_batch, shards)
            for size in crossing.values()
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
        if size_bytes == 0:
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
