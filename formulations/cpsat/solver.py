"""Exact search with CP-SAT: integers throughout, optimal to the quantum."""

from __future__ import annotations

import math
from functools import partial

from formulations.common import Task
from formulations.cpsat.constraints import add_constraints
from formulations.cpsat.decode import add_hints, decode
from formulations.cpsat.objective import set_objective
from formulations.cpsat.variables import create
from formulations.search import Answer, Engine, Formulation
from nest.errors import SolverError
from nest.solvers.base import Capabilities, SolveOptions


class CpSatSolver(Formulation):
    """One CP-SAT model per replicas, micro-batch and number of stages."""

    name = "cpsat"
    capabilities = Capabilities(
        exact=True,
        anytime=True,
        warm_start=True,
        method="layer-level integer model, OR-tools CP-SAT",
        requires=("ortools",),
        searches=frozenset({"granularity"}),
    )

    def engine(self, options: SolveOptions) -> Engine:
        """Return what solves sub-problems."""
        return partial(_solve, options)


def _solve(options: SolveOptions, task: Task) -> Answer:
    """Find the best plan of a task with a step time within its cutoff."""
    from ortools.sat.python import cp_model

    model = create(task)
    add_constraints(model)
    set_objective(model)
    if task.start is not None:
        add_hints(model, task.start)

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = options.num_workers
    parameters.random_seed = options.seed
    parameters.relative_gap_limit = 0.0
    parameters.absolute_gap_limit = 0.0
    parameters.linearization_level = 2
    remaining_s = task.instance.deadline.remaining_s
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
            f"cpsat: {task.sub_problem}: expected a proof or a time-out, got "
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
