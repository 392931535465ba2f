"""``dp``: the exact structured dynamic program as a solver."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, ClassVar

from nest.cost import space
from nest.cost.rules import get_rules
from nest.errors import InvalidOptionError
from nest.ir.problem import Problem
from nest.solvers.base import (
    EXTENSIONS,
    Capabilities,
    Deadline,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    Status,
    ignore_progress,
)
from nest.units import MAX_TOTAL
from nest.util.text import whole_number

if TYPE_CHECKING:
    from nest.search.task import SearchTask


#: A search of at most so many stages, each at every device, ends before other
#: processes would have begun: it takes 0.25 s at most.
MAX_QUICK_PLACEMENTS = 10_000_000


def is_quick(problem: Problem) -> bool:
    """Whether a search needs no other process: few stages of a chain.

    Nobody knows how long the search of other graphs takes, or that of plans
    timed pass by pass. With a strategy per layer every layer counts.
    """
    edges = {edge[:2] for edge in problem.graph.index_edges()}
    num_layers = len(problem.graph.layers)
    rules = get_rules(problem.preset)
    if (
        not edges.issuperset(pairwise(range(num_layers)))
        or space.virtual_stages(problem)
        or (rules.search is not None and not rules.is_search_quick)
    ):
        return False
    num_pairs = num_layers * (num_layers + 1) // 2
    num_runtimes = len(space.runtimes(problem))
    num_places = num_pairs * num_runtimes * problem.cluster.num_devices
    if problem.job.granularity == "layer":
        num_places *= num_layers
    num_strategies = accumulate(
        len(space.strategies(problem, split.micro_batch))
        for split in space.batch_splits(problem)
    )
    return all(num_places * x <= MAX_QUICK_PLACEMENTS for x in num_strategies)


class DpSolver:
    """Exact over all replicas, micro-batches, stages, strategies, offsets.

    And over overlap and the distributed optimizer, as far as the job allows
    them. Plans that are timed pass by pass (interleaved ones, and those of
    schedules that split backward passes) are tried and bounded after that;
    see :mod:`nest.search.passes.interleaved`.
    """

    name: ClassVar[str] = "dp"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=True,
        anytime=True,
        warm_start=True,
        any_schedule=True,
        is_quick=is_quick,
        parallel=True,
        method="dynamic program over (closed set, offset, stages left)",
        searches=frozenset(EXTENSIONS),
        requires=("numpy",),
        options={
            "max_closed_sets": "refuse graphs with more closed sets (default 1000)",
            "at_most_quanta": "stop at any plan with a step time of at most "
            "so many quanta, or prove that there is none",
            "within_quanta": "look for the best plan with a step time of at "
            "most so many quanta alone",
        },
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return ``None``: every problem that fits in memory is searched."""
        return None

    def solve(
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        """Return the best plan, or the best known when time runs out.

        Raises
        ------
        UnsupportedProblemError
            If the graph has too many closed sets.
        InvalidPlanError
            If the warm start does not fit the problem, or memory, or uses
            several strategies in a stage.
        """
        deadline = Deadline(options.time_limit_s)
        from nest.cost.model import CostModel
        from nest.cost.space import undivided
        from nest.search.stages.closed_sets import MAX_CLOSED_SETS, closed_sets
        from nest.search.task import SearchTask
        from nest.solvers.warm_start import check_warm_start

        limit = _read_number(options, "max_closed_sets", 1)
        target = _read_number(options, "at_most_quanta", 0)
        within = _read_number(options, "within_quanta", 0)
        model = CostModel(problem)
        plan, upper = options.warm_start, None
        if plan is not None:
            upper = check_warm_start(problem, plan, model)
        sets = closed_sets(
            problem.graph,
            MAX_CLOSED_SETS if limit is None else limit,
            undivided(problem),
        )
        if is_quick(problem):
            options = replace(options, num_workers=1)
        task = SearchTask(model, sets, deadline, report, upper, plan, options)
        if target is None and within is None:
            return _solve(task)
        # No plan takes more than MAX_TOTAL.
        max_quanta = min(x for x in (target, within, MAX_TOTAL) if x is not None)
        return _solve_within(task, max_quanta, stop_at=target)


def _solve(task: SearchTask) -> SolverOutput:
    """Search all plans of a problem."""
    if task.model.problem.job.plans_order_passes:
        from nest.search.passes.orders import search_orders

        return search_orders(task)
    from nest.search.exact import search_schedule

    return search_schedule(task)


class _EnoughError(Exception):
    """A plan within the target was reported."""


def _solve_within(task: SearchTask, target: int, stop_at: int | None) -> SolverOutput:
    """Search the plans with a step time of at most ``target`` quanta.

    Nothing slower is looked at. That there is no such plan is an answer
    without a plan, with a lower bound above the target. Any plan of at most
    ``stop_at`` quanta ends the search.
    """
    best = Progress(plan=task.plan, claimed_quanta=task.upper)
    within = _target_text(task.model.problem, target)

    def stop(progress: Progress) -> None:
        nonlocal best
        task.report(progress)
        if progress.plan is not None:
            best = progress
        best_quanta = best.claimed_quanta
        if best_quanta is not None and stop_at is not None and best_quanta <= stop_at:
            raise _EnoughError

    try:
        stop(best)
        output = _solve(_within(replace(task, report=stop), target))
    except _EnoughError:
        return SolverOutput(
            status=Status.FEASIBLE,
            plan=best.plan,
            claimed_quanta=best.claimed_quanta,
            detail=f"stopped at a plan{within}",
        )
    bound = output.lower_bound_quanta
    if (
        target >= MAX_TOTAL  # no plan takes longer: then there is none
        or output.plan is not None
        or output.limit is not None
        or (bound is not None and bound <= target)
    ):
        return output
    return SolverOutput(
        status=Status.NO_SOLUTION if task.plan is None else Status.FEASIBLE,
        plan=task.plan,
        claimed_quanta=task.upper,
        lower_bound_quanta=target + 1,
        detail="; ".join(filter(None, (f"no plan{within}", output.detail))),
    )


def _target_text(problem: Problem, quanta: int) -> str:
    """Return a target for people; nothing of one that every plan keeps."""
    if quanta >= MAX_TOTAL:
        return ""
    time = quanta * problem.quantum_ps / 1e12
    return f" within {time:.9g} {problem.time_unit}"


def _within(task: SearchTask, target: int) -> SearchTask:
    """Return a task without the plans of more than ``target`` quanta."""
    is_below = task.upper is not None and task.upper <= target
    if is_below or target >= MAX_TOTAL:
        return task
    return replace(task, upper=target + 1, plan=None)


def _read_number(options: SolveOptions, name: str, lowest: int) -> int | None:
    """Return a whole number among the options, ``None`` if not given."""
    option_names = DpSolver.capabilities.options
    for key in options.extra:
        if key not in option_names:
            raise InvalidOptionError(
                f"dp.{key}: expected option {' or '.join(option_names)}, got "
                f"{key!r}; correct the name"
            )
    text = options.extra.get(name)
    if text is None:
        return None
    value = whole_number(text)
    if value is None or value < lowest:
        raise InvalidOptionError(
            f"dp.{name}: expected a whole number >= {lowest}, got {text!r}"
        )
    return value
