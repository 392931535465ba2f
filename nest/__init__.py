"""Compare planners for large training runs.

Each function answers one question; ``help(nest.solve)`` shows its arguments,
which are the options of the command of that name:

========================  =====================================================
``solve``                 which plan is the fastest, and is that proven?
``compare``               which plans do several solvers find?
``fits``                  does a launch fit, and which change makes it fit?
``score``, ``check``      what does a plan cost, which rules does it break?
``explain``               why this plan, and what would each change cost?
``simulate``, ``trace``   which passes run when?
``pareto``                which trade-offs of time, memory and cost are best?
``fit``                   how few devices, or how little memory, are enough?
``export``                which files start the plan?
``certify``               what proves that no plan is faster?
``sweep``, ``bench``      what changes with the cluster, and with the solver?
``codesign``              which accelerator would train the models fastest?
``validate``              how far are predictions from measured runs?
``calibrate``             what do a few runs of your own change?
``problem``, ``load``     how is a model on a cluster, or a file, a problem?
========================  =====================================================

>>> import nest
>>> nest.solve("llama2-7b-8").status
<Status.OPTIMAL: 'optimal'>

The names, and modules, are loaded when they are used: ``import nest`` is
cheap and imports no solver engine.
"""

from __future__ import annotations

import os
import sys

# ``python -m nest`` searches the working directory first, for every module.
if (
    sys.argv[:1] == ["-m"]
    and not sys.flags.safe_path
    and sys.orig_argv[-len(sys.argv)].removeprefix("-m").split(".")[0] == "nest"
    and sys.path[0] != os.path.dirname(os.path.dirname(__file__))
):
    del sys.path[0]

from importlib import import_module

#: That of typing, whose import takes longer than all else here: until it is
#: through, the command does not hear Ctrl-C.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from nest.analysis.compare import compare as compare_solvers
    from nest.api import (
        bench,
        calibrate,
        certify,
        check,
        codesign,
        compare,
        explain,
        export,
        fit,
        fits,
        load,
        pareto,
        problem,
        score,
        simulate,
        solve,
        sweep,
        trace,
        validate,
    )
    from nest.errors import NestError
    from nest.ir.io import read_plan, read_problem, write
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.models.builtin import load as load_problem
    from nest.solvers.base import SolveOptions
    from nest.solvers.registry import register_planner, register_solver, solver_names
    from nest.solvers.result import SolveResult

    __version__: str

__all__ = [
    "NestError",
    "Plan",
    "Problem",
    "SolveOptions",
    "SolveResult",
    "__version__",
    "bench",
    "calibrate",
    "certify",
    "check",
    "codesign",
    "compare",
    "compare_solvers",
    "explain",
    "export",
    "fit",
    "fits",
    "load",
    "load_problem",
    "pareto",
    "problem",
    "read_plan",
    "read_problem",
    "register_planner",
    "register_solver",
    "score",
    "simulate",
    "solve",
    "solver_names",
    "sweep",
    "trace",
    "validate",
    "write",
]

#: Where names are that are not in ``nest.api``.
_ELSEWHERE = {
    "NestError": "nest.errors:NestError",
    "Plan": "nest.ir.plan:Plan",
    "Problem": "nest.ir.problem:Problem",
    "SolveOptions": "nest.solvers.base:SolveOptions",
    "SolveResult": "nest.solvers.result:SolveResult",
    "compare_solvers": "nest.analysis.compare:compare",
    "load_problem": "nest.models.builtin:load",
    "read_plan": "nest.ir.io:read_plan",
    "read_problem": "nest.ir.io:read_problem",
    "register_planner": "nest.solvers.registry:register_planner",
    "register_solver": "nest.solvers.registry:register_solver",
    "solver_names": "nest.solvers.registry:solver_names",
    "write": "nest.ir.io:write",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from nest.util.versions import nest_version

        return nest_version()
    if name not in __all__:
        from importlib.util import find_spec

        if not name.startswith("_") and find_spec(f"nest.{name}"):
            return import_module(f"nest.{name}")
        raise AttributeError(f"module 'nest' has no attribute {name!r}")
    target = _ELSEWHERE.get(name, f"nest.api:{name}")
    module, _, attribute = target.partition(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
