"""Interleaved plans: tried after the exact search, not proven.

The exact programs have one stage per block of devices. Where a job allows
``v > 1`` chunks per block, this search tries uniform plans: every ``(R, B)``,
every strategy that all layers have a cost for, every ``v`` and number of
blocks ``S``, one strategy for all blocks. Where to cut the layers into
``S v`` chunks is up to :mod:`nest.dp.chunks`.

Choices are taken in the order of a lower bound on their step time, and none
whose bound is no better than a plan in hand. With ``M`` micro-batches, the
sum ``Σ`` of the layers' loads and the heaviest of them ``t``, a block takes
``max τ >= m = max(⌈Σ/S⌉, t)``, hence ``T >= M m + (Σ - m)/v + ⌈ΣY/S⌉``. The
bounds leave communication out at first; then a layer costs what it does on
its cheapest block, and every receive what the cheapest one does. ``score``
prices every plan that is handed on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nest.cost.model import Block, CostModel
from nest.cost.score import score
from nest.cost.space import cases, strategies
from nest.dp.chunks import LayerOrder, Shape, Uniform, best_plan
from nest.dp.closed_sets import Ints
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
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
    best, plan = plain.claimed_quanta, plain.plan
    queue: list[Item] = []
    for item in uniform_choices(LayerOrder.of(model)):
        if deadline.passed:
            return _output(plain, plan, best, complete=False)
        heapq.heappush(queue, item)
    while queue and not deadline.passed:
        bound, _, uniform, shape = heapq.heappop(queue)
        if best is not None and bound >= best:
            queue.clear()
        elif shape is None:
            for item in shapes(uniform):
                if best is None or item.bound < best:
                    heapq.heappush(queue, item)
        else:
            found = best_plan(uniform, shape, best, deadline)
            if found is None:
                continue
            verdict = score(model.problem, found, model)
            if verdict.feasible and (
                best is None or verdict.step_quanta < best
            ):
                best, plan = verdict.step_quanta, found
                report(Progress(plan=plan, claimed_quanta=best))
    return _output(plain, plan, best, complete=not queue)


def _output(
    plain: SolverOutput, plan: Plan | None, best: int | None, complete: bool
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
    """What to try next; all shapes of a uniform choice if none is given."""

    bound: int
    number: tuple[object, ...]
    uniform: Uniform
    shape: Shape | None


def uniform_choices(layers: LayerOrder) -> Iterator[Item]:
    """Yield every case and strategy with a bound free of communication."""
    problem = layers.model.problem
    virtual = virtual_stages(problem)
    choices: dict[int, list[Strategy]] = {}
    for case in cases(problem):
        size = case.micro_batch
        if size not in choices:
            choices[size] = [
                strategy
                for strategy in strategies(problem, size)
                if all(
                    layers.model.available(layer, strategy, size) is None
                    for layer in layers.representatives
                )
            ]
        for strategy in choices[size]:
            uniform = Uniform(layers, case, strategy)
            most = uniform.most_blocks(virtual[0])
            if uniform.fewest_blocks > most:
                continue
            loads, syncs = _times(uniform, [None])
            bound = _bound(uniform, loads, syncs, 0, most, virtual[-1])
            yield Item(int(bound), uniform.number, uniform, None)


def _times(uniform: Uniform, blocks: list[Block | None]) -> tuple[Ints, Ints]:
    """Return the least load and sync of every layer over some blocks."""
    found = [uniform.terms(block) for block in blocks]
    load = [[t.forward + t.backward for t in terms] for terms in found]
    sync = [[t.sync for t in terms] for terms in found]
    kinds = uniform.layers.kinds
    return np.min(load, axis=0)[kinds], np.min(sync, axis=0)[kinds]


def _bound(
    uniform: Uniform,
    loads: Ints,
    syncs: Ints,
    receive: int,
    blocks: Ints | int,
    virtual: int,
) -> Ints:
    """Bound the step time from below for some numbers of blocks."""
    total = loads.sum() + 2 * receive * (blocks * virtual - 1)
    worst = np.maximum(-(-total // blocks), loads.max())
    rest = (total - worst) // virtual
    bound: Ints = (
        uniform.case.num_micro_batches * worst
        + rest
        + -(-syncs.sum() // blocks)
    )
    return bound


def shapes(uniform: Uniform) -> Iterator[Item]:
    """Yield every ``S`` and ``v`` of a uniform choice, communication counted.

    The blocks hold all weights and one micro-batch at least; fewer of them
    than that takes are left out.
    """
    model = uniform.layers.model
    choices = virtual_stages(model.problem)
    most = uniform.most_blocks(choices[0])
    blocks = [uniform.block(number) for number in range(most)]
    places = {model.aligned(block): block for block in blocks}
    loads, syncs = _times(uniform, list(places.values()))
    levels = {
        model.boundary_levels(block, forward=True) for block in blocks[1:]
    } | {model.boundary_levels(block, forward=False) for block in blocks[:-1]}
    receive = min(int(uniform.receive(level)[1:-1].min()) for level in levels)
    for virtual in choices:
        most = uniform.most_blocks(virtual)
        sizes = np.arange(uniform.fewest_blocks, most + 1)
        allowed = model.problem.job.pipeline_parallel
        if allowed is not None:
            sizes = sizes[np.isin(sizes, allowed)]
        bounds = _bound(uniform, loads, syncs, receive, sizes, virtual)
        for size, bound in zip(sizes.tolist(), bounds.tolist(), strict=True):
            yield Item(
                bound,
                (*uniform.number, size, virtual),
                uniform,
                Shape(size, virtual),
            )
