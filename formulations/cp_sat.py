"""How CP-SAT is asked for an optimum, whatever the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver


def new_solver(
    limit_s: float | None, num_workers: int = 1, seed: int = 0
) -> CpSolver:
    """Return a solver that stops at an optimum, or when time is up.

    Two of its shortcuts are off. With either CP-SAT 9.15 calls plans of some
    10^10 quanta optimal that are not, and problems infeasible that are not;
    it takes no longer without.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = num_workers
    parameters.random_seed = seed
    parameters.relative_gap_limit = 0.0
    parameters.absolute_gap_limit = 0.0
    parameters.cp_model_presolve = False
    parameters.auto_detect_greater_than_at_least_one_of = False
    if limit_s is not None:
        parameters.max_time_in_seconds = limit_s
    return solver
