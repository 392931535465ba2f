"""The outer loop over ``(R, B)``: bound every case, search what is left.

Cases are ordered by a cheap lower bound. A case is discarded only when a
proven lower bound of it is no better than a plan in hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nest.cost.model import CostModel
from nest.cost.space import Case, cases
from nest.dp.closed_sets import ClosedSets
from nest.dp.errors import OutOfTimeError
from nest.dp.pipeline import Chosen, PipelineSearch
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


@dataclass(eq=False)
class _Open:
    """A case that is not settled yet, and its lower bound."""

    case: Case
    tables: StageTables
    bound: int
    least_total: int


def search(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    report: Report,
    upper: int | None,
    plan: Plan | None,
    make_tables: Callable[
        [CostModel, ClosedSets, Case], StageTables
    ] = StageTables,
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
    make_tables
        Which candidates there are: one strategy for all layers of a stage,
        or :class:`~nest.dp.layerwise.LayerTables`.
    """
    best = int(INFINITE) if upper is None else upper
    unsettled: list[_Open] = []

    def proven() -> int:
        return min([best] + [item.bound for item in unsettled])

    try:
        unsettled = _bounded_cases(model, sets, deadline, make_tables)
    except OutOfTimeError:
        return _output(best, plan, 0, Limit.TIME, "while bounding cases")
    try:
        # A first sweep keeps one label per state: plans early, proof later.
        for sweep, max_labels in enumerate((1, None), 1):
            # Small cases first in it: their plans rule out much of the rest.
            todo = sorted(
                unsettled,
                key=lambda item: (
                    len(item.tables.strategies) if max_labels else 0,
                    item.bound,
                ),
            )
            for number, item in enumerate(todo, 1):
                if item.bound < best:
                    report(
                        Progress(
                            lower_bound_quanta=proven(),
                            message=(
                                f"sweep {sweep}, case {number} of "
                                f"{len(todo)}: R={item.case.replicas}, "
                                f"B={item.case.micro_batch}"
                            ),
                        )
                    )
                    found = _search_case(item, best, max_labels, deadline)
                    if found is not None:
                        best = found.step_quanta
                        plan = make_plan(model, item.tables, found)
                        report(Progress(plan=plan, claimed_quanta=best))
                if max_labels is None or item.bound >= best:
                    unsettled.remove(item)
                    item.tables.forget_beyond(0)
    except OutOfTimeError:
        detail = f"{len(unsettled)} choices of (R, B) not settled"
        return _output(best, plan, proven(), Limit.TIME, detail)
    return _output(best, plan, best, None, "")


def _bounded_cases(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    make_tables: Callable[[CostModel, ClosedSets, Case], StageTables],
) -> list[_Open]:
    """Return the cases that are not infeasible at first sight."""
    found = []
    for case in cases(model.problem):
        if deadline.passed:
            raise OutOfTimeError
        tables = make_tables(model, sets, case)
        bound, least_total = work_bound(tables)
        if bound < INFINITE:
            found.append(_Open(case, tables, bound, least_total))
    return found


def _search_case(
    item: _Open, best: int, max_labels: int | None, deadline: Deadline
) -> Chosen | None:
    tables = item.tables
    extra = item.case.num_micro_batches - 1
    if extra and best < INFINITE:
        # T >= (M-1) τ + max(τ, least Σ τ): a longer stage is part of no
        # better plan.
        tables.forget_beyond(
            min(
                ceil_div(best, extra + 1),
                ceil_div(best - item.least_total, extra),
            )
        )
    pipeline = PipelineSearch(tables, deadline)
    item.bound = max(item.bound, pipeline.bound(best))
    if item.bound >= best:
        return None
    exact = tables.refine(pipeline, best, max_labels)
    if exact is not None:
        bound = pipeline.bound(best, exact)
        if max_labels is None:
            item.bound = max(item.bound, bound)
        if bound >= best:
            return None
    return pipeline.solve(best, max_labels)


def work_bound(tables: StageTables) -> tuple[int, int]:
    """Return lower bounds on ``T`` and on ``Σ τ`` from the layers alone.

    With ``w`` the least ``n τ`` and ``t`` the least ``τ`` of a layer:
    ``Σ_s n_s τ_s <= P max τ``, so ``max τ >= Σ w / P``; also ``max τ >= max
    t`` and ``Σ τ >= max(Σ t, max τ)``. A layer takes ``m`` device-bytes at
    least, so ``Σ m > P · capacity`` proves the case infeasible.
    """
    case = tables.case
    counts = [int(count) for count in tables.kind_counts[-1]]
    times, device_times, spaces = tables.least(
        (
            lambda t, n: t.forward + t.backward,
            lambda t, n: n * (t.forward + t.backward),
            lambda t, n: n * (t.static_bytes + t.kept_bytes),
        )
    )
    if max(times) >= INFINITE:
        return int(INFINITE), int(INFINITE)
    capacity = tables.model.problem.cluster.device.memory_bytes

    def total(values: list[int]) -> int:
        return sum(
            count * value for count, value in zip(counts, values, strict=True)
        )

    if total(spaces) > case.devices * capacity:
        return int(INFINITE), int(INFINITE)
    worst = max(ceil_div(total(device_times), case.devices), *times)
    least_total = max(total(times), worst)
    return (
        least_total + (case.num_micro_batches - 1) * worst,
        least_total,
    )


def make_plan(model: CostModel, tables: StageTables, chosen: Chosen) -> Plan:
    """Turn closed sets and strategies into a plan."""
    problem = model.problem
    order = problem.graph.topological_order()
    member = tables.sets.member
    stages = []
    for source, target, candidate, devices in chosen.stages:
        inside = member[target] & ~member[source]
        strategies = tables.layer_strategies(candidate)
        alike = len(set(strategies)) == 1
        stages.append(
            Stage(
                layers=tuple(
                    problem.graph.layers[i].id for i in order if inside[i]
                ),
                devices=devices,
                strategy=strategies[0] if alike else None,
                strategies=None if alike else strategies,
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
