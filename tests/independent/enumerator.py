"""A second list of all plans, written from docs/cost-model.md alone.

It lists what the page says under *What the solvers list*, without leaving out
equals: all ZeRO stages where nothing is sharded, too. Every plan is priced
whole by the independent scorer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from nest.ir import Plan, Problem, Stage, Strategy
from tests.independent.rules import (
    activations_of,
    allowed_chunks,
    batches,
    block_of,
    broken_rules,
    cost_of,
    leaves_order,
    num_blocks,
    schedule_names,
    sequence_choices,
)
from tests.independent.scorer import score


def optimum(problem: Problem) -> tuple[int | None, int]:
    """Return the least step time of a feasible plan, and how many plans."""
    count = 0
    best: int | None = None
    for plan in plans(problem):
        count += 1
        record = score(problem, plan)
        if record.feasible and (best is None or record.step < best):
            best = record.step
    return best, count


def plans(problem: Problem, *, listed: bool = False) -> Iterator[Plan]:
    """List every legal plan that a solver has to consider.

    With every schedule that has a name, where the job leaves it to plans; or
    ``listed``, where it allows any order, once with an order that runs one
    micro-batch at a time.
    """
    job = problem.job
    names = sorted(job.overlap)
    overlaps = [
        chosen
        for size in range(len(names) + 1)
        for chosen in itertools.combinations(names, size)
    ]
    sharded = (False, True) if job.distributed_optimizer else (False,)
    for replicas, micro_batch in itertools.product(
        range(1, problem.cluster.num_devices + 1), job.micro_batches
    ):
        if not allowed(replicas, job.replicas):
            continue
        if not job.uneven_batches and job.global_batch % (replicas * micro_batch):
            continue
        pitch = problem.cluster.num_devices // replicas
        usable = strategies(problem, micro_batch)
        names_and_shapes: list[tuple[str | None, bool]] = [
            (name, name in ("zb-v", "dualpipe-v")) for name in schedule_names(problem)
        ]
        if listed:
            names_and_shapes = [(None, False), (None, True)]
        for pieces, (name, in_v) in itertools.product(
            cuts(problem, frozenset()), names_and_shapes
        ):
            for virtual in allowed_chunks(problem, name):
                if in_v and virtual != 2:
                    continue
                blocks, odd = divmod(len(pieces), virtual)
                if odd or blocks > pitch:
                    continue
                if not allowed(blocks, job.pipeline_parallel):
                    continue
                for stages, overlap, distributed in itertools.product(
                    with_strategies(
                        *(problem, micro_batch, pieces, usable, pitch), *(virtual, in_v)
                    ),
                    overlaps,
                    sharded,
                ):
                    plan = Plan(
                        replicas=replicas,
                        micro_batch=micro_batch,
                        stages=stages,
                        virtual_stages=virtual,
                        placement="v" if in_v else "loop",
                        order=name if leaves_order(problem) else None,
                        overlap=overlap,
                        distributed_optimizer=distributed,
                    )
                    if listed:
                        plan = replace(plan, order=in_turn(problem, plan))
                    if not broken_rules(problem, plan):
                        yield plan


def allowed(size: int, sizes: Sequence[int] | None) -> bool:
    """Return whether the job allows a size.

    The rules say so too, of one plan at a time: most of the time goes to plans
    that break them.
    """
    return sizes is None or size in sizes


def in_turn(problem: Problem, plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Return the order that runs one micro-batch at a time."""
    chunks = range(len(plan.stages))
    return tuple(
        tuple(
            f"{chunk}{kind}{number}"
            for number in range(batches(problem, plan))
            for kind, own in (("F", chunks), ("B", reversed(chunks)))
            for chunk in own
            if block_of(plan, chunk) == block
        )
        for block in range(num_blocks(plan))
    )


def strategies(problem: Problem, micro_batch: int) -> list[Strategy]:
    """List the strategies for a micro-batch that some kind has a cost for."""
    job, num_devices = problem.job, problem.cluster.num_devices
    sizes = range(1, num_devices + 1)
    found = []
    for dp, tp, cp in itertools.product(
        [size for size in sizes if allowed(size, job.data_parallel)],
        [size for size in sizes if allowed(size, job.tensor_parallel)],
        [size for size in sizes if allowed(size, job.context_parallel)],
    ):
        if dp * tp * cp > num_devices:
            continue
        for ep, etp in itertools.product(range(1, dp * tp * cp + 1), (0, 1)):
            if not allowed(ep, job.expert_parallel) or (etp and tp == 1):
                continue
            if dp * cp * (tp if etp else 1) % ep:
                continue
            for sequence_parallel, zero, recompute in itertools.product(
                sequence_choices(problem, tp), job.zero, job.recompute
            ):
                found.append(
                    Strategy(
                        dp=dp,
                        tp=tp,
                        cp=cp,
                        ep=ep,
                        etp=etp,
                        sequence_parallel=sequence_parallel,
                        zero=zero,
                        recompute=recompute,
                    )
                )
    names = [str(layer.id) for layer in problem.graph.layers]
    return [
        strategy
        for strategy in found
        if any(has_cost(problem, name, strategy, micro_batch) for name in names)
    ]


def has_cost(problem: Problem, name: str, strategy: Strategy, micro_batch: int) -> bool:
    samples = micro_batch
    if problem.preset != "piper":
        if micro_batch % strategy.dp:
            return False
        samples //= strategy.dp
    cost = cost_of(problem, name, strategy, samples)
    return cost is not None and activations_of(cost, strategy.recompute) is not None


def cuts(problem: Problem, done: frozenset[str]) -> Iterator[list[tuple[str, ...]]]:
    """List every way to cut the layers that are left into stages."""
    left = [
        str(layer.id) for layer in problem.graph.layers if str(layer.id) not in done
    ]
    if not left:
        yield []
    for size in range(1, len(left) + 1):
        for piece in itertools.combinations(left, size):
            closed = done | set(piece)
            if all(
                str(edge.source) in closed
                for edge in problem.graph.edges
                if str(edge.target) in closed
            ):
                for others in cuts(problem, closed):
                    yield [piece, *others]


def with_strategies(
    problem: Problem,
    micro_batch: int,
    pieces: list[tuple[str, ...]],
    usable: list[Strategy],
    pitch: int,
    virtual: int,
    in_v: bool,
) -> Iterator[tuple[Stage, ...]]:
    """List every choice of strategies for the stages of a cut.

    The blocks fit ``pitch`` devices; all chunks of a block are of one size.
    """
    blocks = len(pieces) // virtual
    if virtual > 1 and blocks < 2:
        return
    options = [list(of_stage(problem, micro_batch, piece, usable)) for piece in pieces]
    chosen: list[Stage] = []

    def choose() -> Iterator[tuple[Stage, ...]]:
        number = len(chosen)
        if number == len(pieces):
            yield tuple(chosen)
            return
        for stage in options[number]:
            if number >= blocks:
                block = number % blocks
                if in_v:
                    block = len(pieces) - 1 - number
                fits = stage.devices == chosen[block].devices
            else:
                used = sum(x.devices for x in chosen)
                fits = used + stage.devices <= pitch
            if fits:
                chosen.append(stage)
                yield from choose()
                chosen.pop()

    yield from choose()


def of_stage(
    problem: Problem, micro_batch: int, piece: tuple[str, ...], usable: list[Strategy]
) -> Iterator[Stage]:
    """List every choice of strategies for the layers of a stage."""
    piper = problem.preset == "piper"
    choices: Iterator[tuple[Strategy, ...]]
    if problem.job.granularity == "layer" or piper:
        choices = itertools.product(usable, repeat=len(piece))
    else:
        choices = iter([(strategy,) * len(piece) for strategy in usable])
    for chosen in choices:
        sizes = {x.dp * x.tp * x.cp for x in chosen}
        if len(sizes) > 1:
            continue
        if piper and len({(x.dp, x.tp) for x in chosen}) > 1:
            continue
        if all(
            has_cost(problem, name, strategy, micro_batch)
            for name, strategy in zip(piece, chosen, strict=True)
        ):
            yield Stage(layers=piece, devices=sizes.pop(), strategies=chosen)
