"""Plans timed pass by pass: interleaved ones, and split backward passes.

Where a job allows ``v > 1`` chunks per block, or its schedule has no closed
form, this search first tries uniform plans, then proves what it can, see
:mod:`nest.search.passes.interleaved_exact`. Uniform plans are those of every
runtime (those with less overlap than another one apart), every ``(R, B)``,
every strategy that all layers have a cost for, every ``v`` and number of
blocks ``S`` that the schedule can run, one strategy for all blocks. Where to
cut the layers into ``S v`` chunks is up to :mod:`nest.search.passes.chunks`.

With the sum ``Σ`` of the layers' loads and the heaviest of them ``t``, a block takes
``max τ >= m = max(⌈Σ/S⌉, t)``, hence ``T >= M m + ⌈ΣY/S⌉``; where passes run in pairs,
a layer's load is what is left of it if ``M - S`` of them hide all that they may.
Choices whose bound is no better than a plan in hand are left out; the others are taken
in the order of what even chunks would take, ``(Σ - m)/v`` more, a third of that where
gradients of weights wait. Communication is left out at first; then a layer costs what
it does on its cheapest block, and every receive what the cheapest one does. ``score``
prices every plan that is handed on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from nest.cost.schedules import schedule_of
from nest.cost.score import score
from nest.cost.space import (
    PLAIN,
    BatchSplit,
    Runtime,
    always_overlap,
    runtimes,
    virtual_stages,
)
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.search.passes.batch_bounds import RisingBound, least_bound
from nest.search.passes.chunks import (
    Chunks,
    Cutter,
    Shape,
    Uniform,
    bubble_part,
    prefix_shapes,
)
from nest.search.passes.interleaved_exact import (
    BoundedCase,
    Enumeration,
    TooManyError,
    cases,
)
from nest.search.stages.options import (
    INFINITE,
    BatchTerms,
    Ints,
    PassComponent,
    StageShapes,
    Table,
    batch_terms,
)
from nest.search.task import SearchTask
from nest.solvers.base import Limit, Progress, SolverOutput, exact_output

#: Whether bounds of cases are raised before their plans are tried.
RAISE = True

#: What the detail of a result says where such plans are not settled.
OPEN = "plans timed pass by pass are bounded, not all tried"

#: Uniform plans are tried for such a part of the time that is left.
TRIED_SHARE = 0.25


def interleave(
    task: SearchTask, plain: SolverOutput, with_bounds: bool = True
) -> SolverOutput:
    """Return the better of a result and the best plan timed pass by pass.

    Parameters
    ----------
    task
        The problem; terms that the exact search used are known already.
    plain
        What the exact search says about the other plans.

    Returns
    -------
    SolverOutput
        ``plain`` itself if there are no such plans. Otherwise the best plan
        of all, and a bound on all.
    """
    if not virtual_stages(task.model.problem):
        return plain
    plan, best = plain.plan, int(INFINITE)
    if plain.claimed_quanta is not None:
        best = plain.claimed_quanta
    elif task.upper is not None:
        best = task.upper

    def offer(step_quanta: int, better: Plan) -> None:
        nonlocal plan, best
        plan, best = better, step_quanta
        task.report(Progress(plan=plan, claimed_quanta=best))

    _try_uniform(task, best, offer, TRIED_SHARE if with_bounds else 1.0)
    bound, limit = 0, None
    if with_bounds:
        bound, limit = bound_all(task, best, offer)
    plain_bound = plain.lower_bound_quanta
    if plain_bound is not None or plain.limit is not None:
        bound = min(bound, plain_bound or 0)
    return exact_output(
        plan,
        best,
        bound,
        plain.limit or limit,
        "; ".join(filter(None, (plain.detail, OPEN))),
    )


def _try_uniform(
    task: SearchTask, best: int, offer: Callable[[int, Plan], None], share: float
) -> None:
    """Try plans with one strategy for all blocks, for a share of the time."""
    model, deadline = task.model, task.deadline.share(share)
    queue: list[Candidate] = []
    for item in uniform_choices(prefix_shapes(model)):
        if deadline.passed:
            return
        heapq.heappush(queue, item)
    while queue and not deadline.passed:
        _, _, bound, uniform, shape = heapq.heappop(queue)
        if bound >= best:
            continue
        if shape is None:
            for item in shapes(uniform):
                heapq.heappush(queue, item)
        else:
            plan = Cutter(Chunks(uniform, shape), best, deadline).plan()
            if plan is None:
                continue
            verdict = score(model.problem, plan, model)
            if verdict.feasible and verdict.step_quanta < best:
                best = verdict.step_quanta
                offer(best, plan)


def bound_all(
    task: SearchTask, best: int, offer: Callable[[int, Plan], None]
) -> tuple[int, Limit | None]:
    """Prove what can be proven of plans that are timed pass by pass.

    The case with the least bound comes first. It is bounded again, then its
    plans are tried; where they are too many it stays open.

    Returns
    -------
    tuple
        A lower bound on all of them, at most the best step time known, and
        whether time ended the search.
    """
    if task.model.problem.job.plans_order_passes:
        return _bound_orders(task, best)
    queue: list[tuple[int, int, int, BoundedCase]] = []
    rising: dict[object, RisingBound] = {}
    for case in cases(task.model, task.sets, task.deadline):
        if case is None:
            return 0, Limit.TIME
        for blocks, bound in zip(case.family.stage_counts, case.bounds, strict=True):
            queue.append((bound, len(queue), blocks, case))
    heapq.heapify(queue)
    opened, steps = int(INFINITE), 0
    model = task.model

    def price(plan: Plan) -> int:
        verdict = score(model.problem, plan, model)
        if not verdict.feasible:
            return int(INFINITE)
        if verdict.step_quanta < plans.best:
            offer(verdict.step_quanta, plan)
        return verdict.step_quanta

    magnitudes: dict[int, float] = {}
    while queue and not task.deadline.passed:
        bound, number, blocks, case = queue[0]
        if bound >= min(best, opened):
            break
        heapq.heappop(queue)
        plans = Enumeration(
            case=case,
            blocks=blocks,
            sets=task.sets,
            best=best,
            deadline=task.deadline,
            price=price,
            magnitudes=magnitudes,
            steps=steps,
        )
        if RAISE and not plans.few:
            if case.batch not in rising:
                rising[case.batch] = case.rising_bound()
            shared, enough = rising[case.batch], min(best, opened)
            shared.climb(best, enough, lambda: task.deadline.passed)
            raised = max(bound, min(enough, shared.bound))
            if raised > bound and not plans.too_many:
                heapq.heappush(queue, (raised, number, blocks, case))
                continue
            bound = raised
        try:
            plans.run()
        except TooManyError:
            opened = min(opened, bound)
        best, steps = plans.best, plans.steps
    bound = min([opened, *(item[0] for item in queue[:1])])
    limit = Limit.TIME if task.deadline.passed and bound < best else None
    return min(bound, best), limit


def _bound_orders(task: SearchTask, best: int) -> tuple[int, Limit | None]:
    """Bound all plans in any order of their passes."""
    batches: dict[object, BoundedCase] = {}
    max_blocks: dict[object, int] = {}
    for case in cases(task.model, task.sets, task.deadline):
        if case is None:
            return 0, Limit.TIME
        batch, blocks = case.batch, max(case.family.stage_counts)
        weakest = batches.setdefault(batch, case)
        if case.bound < weakest.bound:
            batches[batch] = case
        max_blocks[batch] = max(max_blocks.get(batch, 0), blocks)
    rising = [
        case.rising_bound(max_blocks[case.batch])
        for case in sorted(batches.values(), key=lambda case: case.bound)
        if case.bound < best
    ]
    bound = least_bound(rising, best, lambda: task.deadline.passed)
    limit = Limit.TIME if task.deadline.passed and bound < best else None
    return bound, limit


# What there is to try


class Candidate(NamedTuple):
    """What to try next; all shapes of a uniform choice if none is given.

    The first field is what even chunks would take.
    """

    estimate: int
    number: tuple[object, ...]
    bound: int
    uniform: Uniform
    shape: Shape | None


def tried_runtimes(problem: Problem) -> list[Runtime]:
    """Return the runtimes of uniform plans, ``v`` apart.

    With as much overlap as the job allows, ``weights`` and ``gradients``
    with and without, as is what needs something by ``overlap_needs``. What
    hides behind paired passes may hide there instead.
    """
    paired = schedule_of(problem.job.schedule).paired_axes
    always = always_overlap(problem)
    distinct = {
        runtime._replace(virtual_stages=PLAIN.virtual_stages): None
        for runtime in runtimes(problem)
        if runtime.overlap & always in (always, always - paired)
    }
    return sorted(
        distinct,
        key=lambda x: (-len(x.overlap), not x.distributed_optimizer, x.named_overlap),
    )


def uniform_choices(shapes: StageShapes) -> Iterator[Candidate]:
    """Yield every case and strategy, estimated without communication."""
    for runtime in tried_runtimes(shapes.model.problem):
        for case, terms in batch_terms(shapes, runtime):
            yield from _choices(terms, case)


def _choices(terms: BatchTerms, case: BatchSplit) -> Iterator[Candidate]:
    """Yield the strategies of a case, estimated without communication."""
    virtual = virtual_stages(terms.model.problem)
    for row in range(len(terms.strategies)):
        uniform = Uniform(terms, row, case)
        if uniform.anywhere.missing.any():
            continue
        blocks = uniform.blocks(virtual[0])
        if len(blocks):
            loads, syncs = _times(uniform, uniform.anywhere)
            bounds, even = _estimates(uniform, loads, syncs, 0, blocks, virtual[-1])
            yield Candidate(
                int(even.min()), uniform.number, int(bounds.min()), uniform, None
            )


def _times(uniform: Uniform, terms: Table) -> tuple[Ints, Ints]:
    """Return the least load and sync of every layer over the rows of a table.

    The load is over the step, ``M - S`` passes as short as in pairs.
    """
    kinds = uniform.kinds
    count = uniform.case.num_micro_batches
    paired = uniform.schedule(1).most_paired(1, count)
    passes = terms.periods
    load = count * (
        passes[..., PassComponent.FORWARD] + passes[..., PassComponent.BACKWARD]
    )
    hidden = (
        passes[..., PassComponent.FORWARD_HIDING]
        + (passes[..., PassComponent.BACKWARD_HIDING])
    )
    # Without communication nothing hides, and all that hides is missing.
    load = load - paired * hidden
    return load.min(axis=0)[kinds], terms.sync.min(axis=0)[kinds]


def _estimates(
    uniform: Uniform, loads: Ints, syncs: Ints, receive: int, blocks: Ints, virtual: int
) -> tuple[Ints, Ints]:
    """Return a bound on the step time, and what even chunks would take."""
    count = uniform.case.num_micro_batches
    schedule = uniform.schedule(virtual)
    cuts = blocks * virtual - 1
    if schedule.placement == "v":
        cuts = cuts - 1
    total = loads.sum() + 2 * count * receive * cuts
    worst = np.maximum(-(-total // blocks), loads.max())
    bounds = worst - (-syncs.sum() // blocks)
    bubble = (total - worst) // (count * virtual * bubble_part(schedule))
    return bounds, bounds + bubble


def shapes(uniform: Uniform) -> Iterator[Candidate]:
    """Yield every ``S`` and ``v`` of a uniform choice, with communication."""
    model = uniform.terms.model
    choices = virtual_stages(model.problem)
    max_blocks = int(uniform.blocks(choices[0]).max())
    blocks = [uniform.block(index) for index in range(max_blocks)]
    distinct = {model.network.alike(block): block for block in blocks}
    loads, syncs = _times(uniform, uniform.table([*distinct.values()]))
    pairs = [(block, block - 1) for block in range(1, max_blocks)]
    routes = {uniform.route(*pair) for pair in pairs}
    routes |= {uniform.route(*pair[::-1]) for pair in pairs}
    inner = [uniform.receive(x)[1:-1] for x in routes]
    receive = min((int(x.min()) for x in inner if len(x)), default=0)
    for virtual in choices:
        sizes = uniform.blocks(virtual)
        estimates = _estimates(uniform, loads, syncs, receive, sizes, virtual)
        for size, bound, even in zip(sizes, *estimates, strict=True):
            yield Candidate(
                int(even),
                (*uniform.number, int(size), virtual),
                int(bound),
                uniform,
                Shape(int(size), virtual),
            )
