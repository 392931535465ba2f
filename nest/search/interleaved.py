"""Interleaved plans: searched after those that are not.

Where a job allows ``v > 1`` chunks per block, this search first tries uniform
plans, then proves what it can, see :mod:`nest.search.interleaved_exact`.
Uniform plans are those of every ``(R, B)``,
every strategy that all layers have a cost for, every ``v`` and number of
blocks ``S`` that divides ``M``, one strategy for all blocks. Where to cut the
layers into ``S v`` chunks is up to :mod:`nest.search.chunks`.

With the sum ``Σ`` of the layers' loads and the heaviest of them ``t``, a block
takes ``max τ >= m = max(⌈Σ/S⌉, t)``, hence ``T >= M m + ⌈ΣY/S⌉``. Choices
whose bound is no better than a plan in hand are left out; the others are taken
in the order of what even chunks would take, ``(Σ - m)/v`` more. Communication
is left out at first; then a layer costs what it does on its cheapest block,
and every receive what the cheapest one does. ``score`` prices every plan that
is handed on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nest.cost.model import Block
from nest.cost.score import score
from nest.cost.space import batch_splits
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.search.chunks import Chunks, Cutter, Shape, Uniform, prefix_shapes
from nest.search.interleaved_exact import Enumeration, TooManyError, cases
from nest.search.options import INFINITE, BatchTerms, Ints, StageShapes
from nest.search.task import SearchTask
from nest.solvers.base import (
    Limit,
    Progress,
    Report,
    SolverOutput,
    exact_output,
)

#: What the detail of a result says where interleaved plans are not settled.
OPEN = "interleaved plans are bounded by the loads of their blocks"


def virtual_stages(problem: Problem) -> list[int]:
    """Return the allowed numbers of chunks per block above 1, sorted."""
    return sorted(v for v in problem.job.virtual_stages if v > 1)


def without_bounds(report: Report) -> Report:
    """Return a report that passes on no lower bound.

    What the exact search proves is about plans that are not interleaved.
    """

    def forward(progress: Progress) -> None:
        report(replace(progress, lower_bound_quanta=None))

    return forward


def interleave(task: SearchTask, plain: SolverOutput) -> SolverOutput:
    """Return the better of a result and the best interleaved plan found.

    Parameters
    ----------
    task
        The problem; terms that the exact search used are known already.
    plain
        What the exact search says about plans that are not interleaved.

    Returns
    -------
    SolverOutput
        ``plain`` itself if the job allows no interleaving. Otherwise the
        best plan of all, and a bound on all.
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

    if not task.model.problem.job.even_layers:
        _try_uniform(task, best, offer)
    bound, limit = _bound(task, best, offer)
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
    task: SearchTask, best: int, offer: Callable[[int, Plan], None]
) -> None:
    """Try plans with one strategy for all blocks."""
    model, deadline = task.model, task.deadline
    queue: list[Item] = []
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
            found = Cutter(Chunks(uniform, shape), best, deadline).plan()
            if found is None:
                continue
            verdict = score(model.problem, found, model)
            if verdict.feasible and verdict.step_quanta < best:
                best = verdict.step_quanta
                offer(best, found)


def _bound(
    task: SearchTask, best: int, offer: Callable[[int, Plan], None]
) -> tuple[int, Limit | None]:
    """Prove what can be proven of interleaved plans.

    Returns
    -------
    tuple
        A lower bound on all of them, at most the best step time known, and
        whether time ended the search.
    """
    found = []
    for case in cases(task.model, task.sets, task.deadline):
        if case is None:
            return 0, Limit.TIME
        found.append(case)
    bound, steps = int(INFINITE), 0
    for case in sorted(found, key=lambda case: case.bound):
        if case.bound >= best:
            break
        plans = Enumeration(case, task.sets, best, task.deadline, offer, steps)
        try:
            plans.run()
        except TooManyError:
            bound = min(bound, case.bound)
        best, steps = plans.best, plans.steps
    limit = Limit.TIME if task.deadline.passed else None
    return min(bound, best), limit


# What there is to try


class Item(NamedTuple):
    """What to try next; all shapes of a uniform choice if none is given.

    The first field is what even chunks would take.
    """

    estimate: int
    number: tuple[object, ...]
    bound: int
    uniform: Uniform
    shape: Shape | None


def uniform_choices(shapes: StageShapes) -> Iterator[Item]:
    """Yield every case and strategy, estimated without communication."""
    problem = shapes.model.problem
    virtual = virtual_stages(problem)
    terms = {
        micro_batch: BatchTerms(shapes, micro_batch)
        for micro_batch in problem.job.micro_batches
    }
    for case in batch_splits(problem):
        of_batch = terms[case.micro_batch]
        for row in range(len(of_batch.strategies)):
            uniform = Uniform(of_batch, row, case)
            if uniform.table([None]).missing.any():
                continue
            blocks = uniform.blocks(virtual[0])
            if len(blocks):
                loads, syncs = _times(uniform, [None])
                bounds, even = _estimates(
                    uniform, loads, syncs, 0, blocks, virtual[-1]
                )
                yield Item(
                    int(even.min()),
                    uniform.number,
                    int(bounds.min()),
                    uniform,
                    None,
                )


def _times(
    uniform: Uniform, blocks: Sequence[Block | None]
) -> tuple[Ints, Ints]:
    """Return the least load and sync of every layer over some blocks."""
    terms, kinds = uniform.table(blocks), uniform.kinds
    load = terms.paces.sum(axis=2)
    return load.min(axis=0)[kinds], terms.sync.min(axis=0)[kinds]


def _estimates(
    uniform: Uniform,
    loads: Ints,
    syncs: Ints,
    receive: int,
    blocks: Ints,
    virtual: int,
) -> tuple[Ints, Ints]:
    """Return a bound on the step time, and what even chunks would take."""
    total = loads.sum() + 2 * receive * (blocks * virtual - 1)
    worst = np.maximum(-(-total // blocks), loads.max())
    bounds = uniform.case.num_micro_batches * worst
    bounds += -(-syncs.sum() // blocks)
    return bounds, bounds + (total - worst) // virtual


def shapes(uniform: Uniform) -> Iterator[Item]:
    """Yield every ``S`` and ``v`` of a uniform choice, with communication."""
    model = uniform.terms.model
    choices = virtual_stages(model.problem)
    most = int(uniform.blocks(choices[0]).max())
    places = [uniform.block(number) for number in range(most)]
    alike = {model.network.alike(block): block for block in places}
    loads, syncs = _times(uniform, list(alike.values()))
    pairs = [(block, block - 1) for block in range(1, most)]
    routes = {uniform.route(*pair) for pair in pairs}
    routes |= {uniform.route(*pair[::-1]) for pair in pairs}
    receive = min(int(uniform.receive(x)[1:-1].min()) for x in routes)
    for virtual in choices:
        sizes = uniform.blocks(virtual)
        found = _estimates(uniform, loads, syncs, receive, sizes, virtual)
        for size, bound, even in zip(sizes, *found, strict=True):
            yield Item(
                int(even),
                (*uniform.number, int(size), virtual),
                int(bound),
                uniform,
                Shape(int(size), virtual),
            )
