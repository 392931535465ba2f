"""How CP-SAT is asked for an optimum, whatever the model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from formulations.engine_log import OPTION, printing_to, write_title
from formulations.parameters import PREFIX, check_name, parameters_of, refuse_value
from nest.errors import SolverError
from nest.solvers.base import SolveOptions

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver


def new_solver(limit_s: float | None, num_workers: int = 1, seed: int = 0) -> CpSolver:
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


def solve_interruptibly(solver: CpSolver, model: Any) -> Any:
    """Solve in this process, and let Ctrl-C end it as it ends all else.

    By default CP-SAT takes SIGINT for itself, and leaves it to the operating
    system afterwards: the process would end without a word from then on.
    """
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(solver.solve, model)
        try:
            return status.result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise


def floor_bound(bound: float) -> int:
    """Return a bound as an integer that is not larger."""
    if abs(bound) > 2**53:
        bound = math.nextafter(bound, -math.inf)
    return math.floor(bound)


def solve_logged(
    solver: CpSolver, model: Any, extra: Mapping[str, str], title: str
) -> Any:
    """Solve with the parameters of the options, and write the log."""
    for name, value in parameters_of(extra).items():
        solver.parameters.merge_text_format(f"{name}: {value}")
    log = extra.get(OPTION)
    write_title(log, title)
    solver.parameters.log_search_progress = log is not None
    with printing_to(log):
        return solver.solve(model)


def prove(
    model: Any,
    options: SolveOptions,
    remaining_s: float | None,
    what: object,
    form: str = "",
) -> tuple[CpSolver, bool, bool]:
    """Solve a model until there is a proof, or time is up.

    Returns the solver, whether it finished, and whether it has a solution.

    Raises ``SolverError`` if it gives up without a limit, or refuses the model.
    """
    from ortools.sat.python import cp_model

    solver = new_solver(remaining_s, options.num_workers, options.seed)
    solver.parameters.linearization_level = 2
    status = solve_logged(solver, model, options.extra, f"cpsat {form}{what}")
    finished = {
        cp_model.OPTIMAL: True,
        cp_model.INFEASIBLE: True,
        cp_model.FEASIBLE: False,
        cp_model.UNKNOWN: False,
    }.get(status)
    if finished is None or (not finished and remaining_s is None):
        raise SolverError(
            f"cpsat: {what}: expected a proof or a time-out, got "
            f"status {solver.status_name(status)}: "
            f"{solver.solution_info() or model.validate()}"
        )
    return solver, finished, status in (cp_model.OPTIMAL, cp_model.FEASIBLE)


#: Parameters on which proofs rest, or that leave the search unfinished.
_RESERVED = re.compile(
    r"presolve|workers|seed|gap_limit|^max_|^log_|^mip_|^debug_|proof|"
    r"^stop_|^enumerate_|^fill_|^fix_|_only$|only_solve_ip|tolerance|"
    r"subsolver|fp_rounding|exact|^name$|auto_detect|optional_variables"
)


def check_parameters(solver: str, parameters: Mapping[str, str]) -> None:
    """Refuse parameters that CP-SAT does not have or take, and its own.

    Raises ``InvalidOptionError`` if one is refused.
    """
    if not parameters:
        return
    from ortools.sat.python import cp_model

    engine = cp_model.CpSolver().parameters
    names = [
        name
        for name in dir(engine)
        if name.islower()
        and not name.startswith(("_", "clear_"))
        and not callable(getattr(engine, name))
    ]
    for name, value in parameters.items():
        where = f"option {solver}.{PREFIX}{name}"
        check_name(where, "CP-SAT", name, names, _RESERVED)
        if not engine.merge_text_format(f"{name}: {value}"):
            refuse_value(where, "CP-SAT", name, value)
