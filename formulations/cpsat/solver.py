"""Exact search with CP-SAT: integers throughout, optimal to the quantum."""

from __future__ import annotations

import math
from typing import ClassVar

from formulations.common import Instance, Slot, SubProblem
from formulations.cpsat.constraints import add_constraints
from formulations.cpsat.decode import add_hints, decode
from formulations.cpsat.objective import set_objective
from formulations.cpsat.variables import create
from formulations.search import Answer, Start, search, why_unsupported
from nest.errors import InvalidOptionError, SolverError
from nest.ir.problem import Problem
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Report,
    SolveOptions,
    SolverOutput,
    ignore_progress,
)


class CpSatSolver:
    """One CP-SAT model per replicas, micro-batch and number of stages."""

    name: ClassVar[str] = "cpsat"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=True,
        anytime=True,
        warm_start=True,
        method="layer-level integer model, OR-tools CP-SAT",
        requires=("ortools",),
        searches=frozenset({"granularity"}),
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return why this problem cannot be searched, or ``None``."""
        return why_unsupported(problem)

    def solve(
        self,
        problem: Problem,
        options: SolveOptions,
        report: Report = ignore_progress,
    ) -> SolverOutput:
        """Search for the best plan.

        Raises
        ------
        InvalidOptionError
            If an option is given; there are none.
        InvalidPlanError
            If the warm start does not fit.
        InvalidProblemError
            If times are too long for 64-bit sums.
        SolverError
            If the engine fails.
        """
        deadline = Deadline(options.time_limit_s)
        for key in options.extra:
            raise InvalidOptionError(
                f"cpsat: expected no options, got {key!r}; remove it"
            )
        engine = _CpSat(options)
        return search(self.name, problem, engine, options, report, deadline)


class _CpSat:
    """Answers sub-problems with CP-SAT."""

    tolerance = 0.0

    def __init__(self, options: SolveOptions) -> None:
        self.options = options

    def solve(
        self,
        instance: Instance,
        sub_problem: SubProblem,
        slots: dict[int, Slot],
        cutoff: int | None,
        start: Start | None,
    ) -> Answer:
        """Find the best plan with a step time of at most ``cutoff``."""
        from ortools.sat.python import cp_model

        model = create(instance, sub_problem, slots, cutoff)
        add_constraints(model)
        set_objective(model)
        if start is not None:
            add_hints(model, start)

        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = self.options.num_workers
        parameters.random_seed = self.options.seed
        parameters.relative_gap_limit = 0.0
        parameters.absolute_gap_limit = 0.0
        parameters.linearization_level = 2
        remaining_s = instance.deadline.remaining_s
        if remaining_s is not None:
            parameters.max_time_in_seconds = remaining_s
        status = solver.solve(model.engine)

        finished = {
            cp_model.OPTIMAL: True,
            cp_model.INFEASIBLE: True,
            cp_model.FEASIBLE: False,
            cp_model.UNKNOWN: False,
        }.get(status)
        if finished is None or (not finished and remaining_s is None):
            raise SolverError(
                f"cpsat: {sub_problem}: expected a proof or a time-out, got "
                f"status {solver.status_name(status)}: "
                f"{solver.solution_info() or model.engine.validate()}"
            )
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Answer(
                finished=finished, bound=_floor(solver.best_objective_bound)
            )
        return Answer(
            finished=finished,
            plan=decode(CpSatSolver.name, model, solver),
            claimed_quanta=solver.value(model.step),
            bound=_floor(solver.best_objective_bound),
        )


def _floor(bound: float) -> int:
    """Return a bound as an integer that is not larger."""
    if abs(bound) > 2**53:
        bound = math.nextafter(bound, -math.inf)
    return math.floor(bound)
