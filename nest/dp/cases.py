"""The outer loop over ``(R, B)``: bound every case, search what is left.

Cases are ordered by a cheap lower bound. A case is discarded only when a
proven lower bound of it is no better than a plan in hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nest.cost.model import CostModel
from nest.cost.space import Case, cases
from nest.dp.closed_sets import ClosedSets
from nest.dp.pipeline import Chosen, OutOfTimeError, PipelineSearch
from nest.dp.stages import INFINITE, StageTables
from nest.ir.plan import Plan, Stage
from nest.solvers.base import (
    Deadline,
    Limit,
    Progress,
    Report,
    SolverOutput,
    Status,
)
from nest.units import ceil_div


@dataclass
class _Open:
    """A case that is not settled yet, and its lower bound."""

    case: Case
    tables: StageTables
    bound: int


def search(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    report: Report,
    upper: int | None,
    plan: Plan | None,
) -> SolverOutput:
    """Search every ``(R, B)`` of a problem.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline, report
        The clock, and where progress goes.
    upper, plan
        Step time in quanta and plan of a warm start, or ``None``.
    """
    best = int(INFINITE) if upper is None else upper
    waiting: list[_Open] = []
    settled_bound = int(INFINITE)
    out_of_time = False
    all_cases = cases(model.problem)

    for case in all_cases:
        if deadline.passed:
            out_of_time = True
            break
        tables = StageTables(model, sets, case)
        bound = work_bound(tables)
        if bound < INFINITE:
            waiting.append(_Open(case, tables, bound))
    if out_of_time:
        # Cases that were not even bounded leave only the trivial bound.
        return _output(best, plan, 0, Limit.TIME, "while bounding cases")
    waiting.sort(key=lambda item: item.bound)

    # A first sweep keeps few labels per state: plans early, bounds later.
    for position, max_labels in ((0, 1), (1, None)):
        remaining: list[_Open] = []
        for done, item in enumerate(waiting):
            if item.bound >= best:
                continue
            if deadline.passed:
                out_of_time = True
                remaining += waiting[done:]
                break
            floor = min(
                [best, item.bound]
                + [x.bound for x in remaining]
                + [x.bound for x in waiting[done:]]
            )
            report(
                Progress(
                    lower_bound_quanta=floor,
                    message=(
                        f"sweep {position + 1}, case {done + 1} of "
                        f"{len(waiting)}: R={item.case.replicas}, "
                        f"B={item.case.micro_batch}"
                    ),
                )
            )
            try:
                found = _search_case(item, best, max_labels, deadline)
            except OutOfTimeError:
                out_of_time = True
                remaining += waiting[done:]
                break
            if found is not None:
                best = found.step_quanta
                plan = make_plan(model, item.tables, found)
                report(Progress(plan=plan, claimed_quanta=best))
            if max_labels is not None and item.bound < best:
                remaining.append(item)
        waiting = sorted(remaining, key=lambda item: item.bound)
        if out_of_time:
            break
    if out_of_time:
        bound = min([best, settled_bound] + [x.bound for x in waiting])
        return _output(
            best, plan, bound, Limit.TIME, f"{len(waiting)} cases not settled"
        )
    return _output(best, plan, best, None, "")


def _search_case(
    item: _Open, best: int, max_labels: int | None, deadline: Deadline
) -> Chosen | None:
    tables = item.tables
    extra = item.case.num_micro_batches - 1
    if extra and best < INFINITE:
        # T >= (M-1) τ + τ, so a longer stage is part of no better plan.
        tables.forget_beyond(ceil_div(best, extra + 1))
    pipeline = PipelineSearch(tables, deadline)
    item.bound = max(item.bound, pipeline.bound(best))
    if item.bound >= best:
        return None
    return pipeline.solve(best, max_labels)


def work_bound(tables: StageTables) -> int:
    """Return a lower bound on ``T`` from the layers alone.

    With ``w`` the least ``n τ`` and ``t`` the least ``τ`` of a layer:
    ``Σ_s n_s τ_s <= P max τ``, so ``max τ >= Σ w / P``; also ``max τ >= max
    t`` and ``Σ τ >= max(Σ t, max τ)``. A layer takes ``m`` device-bytes at
    least, so ``Σ m > P · capacity`` proves the case infeasible.
    """
    case = tables.case
    counts = tables.kind_counts[-1]
    present = counts > 0
    device_time = tables.minimum_terms(
        lambda t, n: n * (t.forward + t.backward)
    )
    time = tables.minimum_terms(lambda t, n: t.forward + t.backward)
    space = tables.minimum_terms(
        lambda t, n: n * (t.static_bytes + t.kept_bytes)
    )
    if (time[present] >= INFINITE).any():
        return int(INFINITE)
    capacity = tables.model.problem.cluster.device.memory_bytes

    def total(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        return sum(
            int(count) * int(value)
            for count, value in zip(counts, values, strict=True)
            if count
        )

    if total(space) > case.devices * capacity:
        return int(INFINITE)
    worst = max(ceil_div(total(device_time), case.devices), max(time[present]))
    return int(max(total(time), worst) + (case.num_micro_batches - 1) * worst)


def make_plan(model: CostModel, tables: StageTables, chosen: Chosen) -> Plan:
    """Turn closed sets and strategies into a plan."""
    problem = model.problem
    order = problem.graph.topological_order()
    member = tables.sets.member
    stages = []
    for source, target, strategy, devices in chosen.stages:
        inside = member[target] & ~member[source]
        stages.append(
            Stage(
                layers=tuple(
                    problem.graph.layers[i].id for i in order if inside[i]
                ),
                devices=devices,
                strategy=tables.strategies[strategy],
            )
        )
    return Plan(
        replicas=tables.case.replicas,
        micro_batch=tables.case.micro_batch,
        stages=tuple(stages),
    )


def _output(
    best: int, plan: Plan | None, bound: int, limit: Limit | None, detail: str
) -> SolverOutput:
    if limit is None:
        status = Status.INFEASIBLE if plan is None else Status.OPTIMAL
    else:
        status = Status.NO_SOLUTION if plan is None else Status.FEASIBLE
    return SolverOutput(
        status=status,
        plan=plan,
        claimed_quanta=None if plan is None else best,
        lower_bound_quanta=None if bound >= INFINITE else bound,
        limit=limit,
        detail=detail,
    )
