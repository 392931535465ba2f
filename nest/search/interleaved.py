"""Interleaved plans: tried after the exact search, not proven.

The exact programs have one stage per block of devices. Where a job allows
``v > 1`` chunks per block, this search tries uniform plans: every ``(R, B)``,
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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nest.cost.model import Block, CostModel
from nest.cost.score import score
from nest.cost.space import batch_splits
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.search.chunks import Chunks, Cutter, Shape, Uniform, prefix_shapes
from nest.search.options import INFINITE, BatchTerms, Ints, StageShapes
from nest.solvers.base import (
    Deadline,
    Limit,
    Progress,
    Report,
    SolverOutput,
    Status,
)

#: What the detail of a result says about the interleaved plans.
TRIED = "tried interleaved plans with one strategy for all blocks only"
UNTRIED = "tried no interleaved plans, whose chunks would have to be even"


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


def interleave(
    model: CostModel, plain: SolverOutput, deadline: Deadline, report: Report
) -> SolverOutput:
    """Return the better of a result and the best interleaved plan found.

    Parameters
    ----------
    model
        Cost terms; those that the exact search used are known already.
    plain
        What the exact search says.
    deadline, report
        The clock, and where progress goes.

    Returns
    -------
    SolverOutput
        ``plain`` itself if the job allows no interleaving. If no interleaved
        plan is better, the same with a longer detail. Otherwise the
        interleaved plan, feasible and without a bound.
    """
    if not virtual_stages(model.problem):
        return plain
    if model.problem.job.even_layers:
        details = (plain.detail, UNTRIED)
        return replace(plain, detail="; ".join(filter(None, details)))
    plan, best = plain.plan, int(INFINITE)
    if plain.claimed_quanta is not None:
        best = plain.claimed_quanta
    queue: list[Item] = []
    for item in uniform_choices(prefix_shapes(model)):
        if deadline.passed:
            return _output(plain, plan, best, complete=False)
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
                best, plan = verdict.step_quanta, found
                report(Progress(plan=plan, claimed_quanta=best))
    return _output(plain, plan, best, complete=not queue)


def _output(
    plain: SolverOutput, plan: Plan | None, best: int, complete: bool
) -> SolverOutput:
    """Return a claim that is true of plain and interleaved plans."""
    details = [plain.detail, TRIED]
    if not complete:
        details[1] += ", and until the time limit"
    if plan is None or plan.virtual_stages == 1:
        return replace(plain, detail="; ".join(filter(None, details)))
    if plan is not plain.plan and plain.plan is not None:
        proven = ", proven optimal" if plain.status is Status.OPTIMAL else ""
        details.append(
            f"without interleaving {plain.claimed_quanta} quanta{proven}"
        )
    return replace(
        plain,
        status=Status.FEASIBLE,
        plan=plan,
        claimed_quanta=best,
        lower_bound_quanta=None,
        limit=plain.limit if complete else Limit.TIME,
        detail="; ".join(filter(None, details)),
    )


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
