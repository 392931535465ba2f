"""Compare planners for large training runs.

>>> import nest
>>> problem = nest.load_problem("llama2-7b-8")  # doctest: +SKIP
>>> nest.solve(problem, "dp").step_time_ns  # doctest: +SKIP

The names below are loaded when they are used: ``import nest`` is cheap and
imports no solver engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nest.compare import compare as compare_solvers
    from nest.cost.score import score
    from nest.errors import NestError
    from nest.ir.io import read_plan, read_problem, write
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.models.builtin import load as load_problem
    from nest.solvers.base import SolveOptions
    from nest.solvers.registry import (
        register_planner,
        register_solver,
        solver_names,
    )
    from nest.solvers.result import SolveResult
    from nest.solvers.run import run_solver as solve

    __version__: str

__all__ = [
    "NestError",
    "Plan",
    "Problem",
    "SolveOptions",
    "SolveResult",
    "__version__",
    "compare_solvers",
    "load_problem",
    "read_plan",
    "read_problem",
    "register_planner",
    "register_solver",
    "score",
    "solve",
    "solver_names",
    "write",
]

# ``compare`` itself is the module nest.compare; a function of that name
# would turn into the module as soon as anything imports it.
_PLACES = {
    "NestError": "nest.errors:NestError",
    "Plan": "nest.ir.plan:Plan",
    "Problem": "nest.ir.problem:Problem",
    "SolveOptions": "nest.solvers.base:SolveOptions",
    "SolveResult": "nest.solvers.result:SolveResult",
    "compare_solvers": "nest.compare:compare",
    "load_problem": "nest.models.builtin:load",
    "read_plan": "nest.ir.io:read_plan",
    "read_problem": "nest.ir.io:read_problem",
    "register_planner": "nest.solvers.registry:register_planner",
    "register_solver": "nest.solvers.registry:register_solver",
    "score": "nest.cost.score:score",
    "solve": "nest.solvers.run:run_solver",
    "solver_names": "nest.solvers.registry:solver_names",
    "write": "nest.ir.io:write",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from nest.versions import nest_version

        return nest_version()
    if name not in _PLACES:
        raise AttributeError(f"module 'nest' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
