"""``score(problem, plan)``: the judge of every plan.

Plain, slow, obviously right: it adds up what the problem's
:class:`~nest.cost.rules.CostRules` say of every stage, as docs/cost-model.md
has it, and never calls a solver or reads a table that one uses.
"""

from __future__ import annotations

from dataclasses import replace

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.orders import plan_schedule
from nest.cost.rules import Members, Pipeline, hidden_sync
from nest.cost.schedules import InFlight, Schedule
from nest.cost.space import (
    BatchSplit,
    make_split,
    runtime_of,
    why_not_runtime,
    why_not_split,
    why_not_stages,
)
from nest.cost.verdict import BlockScore, MemoryScore, Score, StageScore
from nest.errors import InvalidPlanError
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.units import format_bytes

__all__ = ["BlockScore", "MemoryScore", "Score", "StageScore", "score"]


def score(problem: Problem, plan: Plan, model: CostModel | None = None) -> Score:
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
        If the plan does not belong to the problem: unknown, missing or repeated layers,
        a stage order against an edge, counting rules, or a strategy for which a layer
        has no cost. Too little memory is a violation in the result, not an error.
    """
    model = model or CostModel(problem)
    pipeline = lay_out(problem, plan, model)
    chunks = range(len(plan.stages))
    in_flight = [model.rules.kept(pipeline, block) for block in range(plan.num_blocks)]
    stages = tuple(_stage(pipeline, chunk, in_flight) for chunk in chunks)
    blocks = tuple(
        _block(pipeline, block, stages, in_flight[block])
        for block in range(plan.num_blocks)
    )
    if plan.virtual_stages == 1:
        stages = tuple(
            stage if stage.sync == block.sync else replace(stage, sync=block.sync)
            for stage, block in zip(stages, blocks, strict=True)
        )
    step = model.rules.step(pipeline, stages, blocks)
    seconds = step * problem.quantum_ps / 1e12
    samples = model.rules.samples_per_step(problem, plan)
    length = problem.job.sequence_length
    tokens_per_s = samples * length / seconds if step and length else None
    return Score(
        step_quanta=step,
        num_micro_batches=pipeline.split.num_micro_batches,
        stages=stages,
        blocks=blocks,
        violations=_violations(pipeline, blocks),
        throughput_samples_per_s=samples / seconds if step else None,
        throughput_tokens_per_s=tokens_per_s,
        throughput_tokens_per_s_per_device=None
        if tokens_per_s is None
        else tokens_per_s / problem.cluster.num_devices,
        mfu=_mfu(problem, seconds, samples),
        memory_left_bytes=min(
            model.capacity_bytes(pipeline.blocks[index]) - block.memory_bytes
            for index, block in enumerate(blocks)
        ),
        quantum_ps=problem.quantum_ps,
        schedule=None if model.rules.steady_state else pipeline.schedule,
    )


def lay_out(problem: Problem, plan: Plan, model: CostModel) -> Pipeline:
    """Return a plan laid out on its devices.

    Raises ``InvalidPlanError`` if the plan does not belong to the problem, see
    :func:`score`.
    """
    members = locate(problem, plan, model)
    split = make_split(problem, plan.replicas, plan.micro_batch)
    _check_counts(problem, plan, model, split)
    _check_costs(plan, members, model)
    schedule = plan_schedule(problem.job, plan, split.num_micro_batches)
    return assemble(model, plan, members, schedule)


def assemble(
    model: CostModel, plan: Plan, members: list[Members], schedule: Schedule
) -> Pipeline:
    """Return a legal plan laid out on its devices, under some schedule."""
    split = make_split(model.problem, plan.replicas, plan.micro_batch)
    blocks = model.rules.blocks(plan, split.devices)
    return Pipeline(
        model=model,
        plan=plan,
        split=split,
        runtime=runtime_of(plan),
        schedule=schedule,
        members=members,
        blocks=blocks,
        terms=[
            _layer_terms(model, plan, inside, block)
            for inside, block in zip(members, blocks, strict=True)
        ],
    )


# What stages and blocks add up to


def _layer_terms(
    model: CostModel, plan: Plan, members: Members, block: Block
) -> list[LayerTerms]:
    """Return the terms of the layers of a chunk; equal layers have equal."""
    where, runtime = model.rules.layer_block(block), runtime_of(plan)
    known_terms: dict[tuple[str, Strategy], LayerTerms] = {}
    layer_terms = []
    for layer, strategy in members:
        same = (model.layers.kinds[layer], strategy)
        if same not in known_terms:
            terms = model.layer_terms(layer, strategy, plan.micro_batch, where, runtime)
            assert terms is not None
            known_terms[same] = terms
        layer_terms.append(known_terms[same])
    return layer_terms


def _stage(pipeline: Pipeline, chunk: int, in_flight: list[InFlight]) -> StageScore:
    """Return the terms of a stage, its sync before any hides."""
    model, terms = pipeline.model, pipeline.terms[chunk]
    block = pipeline.plan.block_of(chunk)
    turn = pipeline.chunks(block).index(chunk)
    ranges = pipeline.blocks[chunk].ranges()
    reserve_bytes = model.problem.cluster.reserve_bytes(ranges)
    return StageScore(
        **model.rules.loads(pipeline, chunk)._asdict(),
        sync=model.rules.sync(pipeline, chunk),
        inflight=in_flight[block].chunks[turn],
        weight_bytes=sum(t.weight_bytes for t in terms),
        gradient_bytes=sum(t.gradient_bytes for t in terms),
        state_bytes=sum(t.state_bytes for t in terms),
        buffer_bytes=sum(t.buffer_bytes for t in terms),
        kept_bytes=in_flight[block].chunk_bytes[turn],
        working_bytes=max(t.working_bytes for t in terms) - reserve_bytes,
        reserve_bytes=reserve_bytes,
    )


def _block(
    pipeline: Pipeline, block: int, stages: tuple[StageScore, ...], in_flight: InFlight
) -> BlockScore:
    """Add up the chunks of a block.

    The fraction of the gradient sync that can hide does so behind the
    backward passes of one micro-batch.
    """
    chunks = pipeline.chunks(block)
    members = [stages[chunk] for chunk in chunks]
    hidden = hidden_sync(
        sum(t.hideable_sync for c in chunks for t in pipeline.terms[c]),
        sum(stage.backward for stage in members),
        pipeline.model.problem.job.overlap.get("gradients", 0.0),
    )
    return BlockScore(
        stages=tuple(chunk + 1 for chunk in chunks),
        load=sum(stage.load for stage in members),
        sync=sum(stage.sync for stage in members) - hidden,
        inflight=in_flight.passes,
        weight_bytes=sum(stage.weight_bytes for stage in members),
        gradient_bytes=sum(stage.gradient_bytes for stage in members),
        state_bytes=sum(stage.state_bytes for stage in members),
        buffer_bytes=sum(stage.buffer_bytes for stage in members),
        kept_bytes=in_flight.kept_bytes,
        working_bytes=max(stage.working_bytes for stage in members),
        reserve_bytes=members[0].reserve_bytes,
    )


def _violations(pipeline: Pipeline, blocks: tuple[BlockScore, ...]) -> tuple[str, ...]:
    what = "stage" if pipeline.plan.virtual_stages == 1 else "block"
    violations = []
    for index, block in enumerate(blocks):
        capacity = pipeline.model.capacity_bytes(pipeline.blocks[index])
        if block.memory_bytes > capacity:
            reserved = ""
            if block.reserve_bytes:
                size = format_bytes(block.reserve_bytes)
                reserved = f", {size} of it reserved"
            violations.append(
                f"{what} {index + 1}: expected at most {capacity} bytes per "
                f"device ({format_bytes(capacity)}), got "
                f"{block.memory_bytes} ({format_bytes(block.memory_bytes)}, "
                f"{_excess(block.memory_bytes, capacity)} too much{reserved})"
            )
    return tuple(violations)


def _excess(size_bytes: int, capacity: int) -> str:
    if capacity == 0:
        return format_bytes(size_bytes)
    return f"{100 * (size_bytes - capacity) / capacity:.1f} %"


def _mfu(problem: Problem, seconds: float, samples: int) -> float | None:
    flops = problem.job.model_flops_per_sample
    peak = problem.cluster.peak_flops(problem.job.dtype)
    if flops is None or peak is None or not seconds:
        return None
    return flops * samples / (seconds * peak)


# Does the plan belong to the problem?


def locate(problem: Problem, plan: Plan, model: CostModel) -> list[Members]:
    """Return per stage its (layer position, strategy), sources first."""
    graph, index = problem.graph, model.index
    stage_of: dict[int, int] = {}
    strategy_of: dict[int, Strategy] = {}
    for number, stage in enumerate(plan.stages, 1):
        for layer, strategy in zip(stage.layers, stage.layer_strategies, strict=True):
            position = index.get(str(layer))
            if position is None:
                raise InvalidPlanError(
                    f"stage {number}: expected layers of the problem, got "
                    f"{layer!r}; check that plan and problem belong together"
                )
            if position in stage_of:
                raise InvalidPlanError(
                    f"stage {number}: expected every layer once, got {layer!r} again "
                    f"(stage {stage_of[position]} has it); remove one"
                )
            stage_of[position] = number
            strategy_of[position] = strategy
    missing = [
        repr(layer.id) for i, layer in enumerate(graph.layers) if i not in stage_of
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
    members: list[Members] = [[] for _ in plan.stages]
    for position in model.order:
        members[stage_of[position] - 1].append((position, strategy_of[position]))
    return members


def _check_counts(
    problem: Problem, plan: Plan, model: CostModel, split: BatchSplit
) -> None:
    reason = why_not_split(problem, plan.replicas, plan.micro_batch)
    if reason is not None:
        raise InvalidPlanError(f"{reason}; choose another value")
    reason = why_not_runtime(problem, plan, split.num_micro_batches)
    if reason is not None:
        raise InvalidPlanError(f"{reason}; choose another value")
    used, share = plan.devices_used, split.devices
    if used > share:
        raise InvalidPlanError(
            f"stages: expected at most {share} devices per replica "
            f"({problem.cluster.num_devices} for {plan.replicas} replicas), "
            f"got {used}; use fewer devices or replicas"
        )
    reason = why_not_stages(problem, plan, split.num_micro_batches)
    if reason is not None:
        raise InvalidPlanError(f"{reason}; change the strategies")
    if model.rules.one_strategy:
        different = {s for stage in plan.stages for s in stage.layer_strategies}
        if len(different) > 1:
            raise InvalidPlanError(
                f"stages: expected one strategy for all stages under preset "
                f"{model.rules.name!r}, got {len(different)}; use one"
            )


def _check_costs(plan: Plan, stages: list[Members], model: CostModel) -> None:
    types: set[tuple[str, Strategy]] = set()
    for index, members in enumerate(stages, 1):
        for position, strategy in members:
            same = (model.layers.kinds[position], strategy)
            if same in types:
                continue
            reason = model.available(position, strategy, plan.micro_batch)
            if reason is not None:
                raise InvalidPlanError(f"stage {index}: {reason}")
            types.add(same)
