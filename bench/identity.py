"""Are problems and optima the same on this Python as on every other?

Builds every built-in problem and compares its hash with the stored one,
solves the demo, and has ``dp``, ``brute`` and ``cpsat`` agree on stored tiny
problems. Needs only what nest needs to run. Prints one line per check; exits
with 1 if one differs. Expected values are in ``bench/identity.json``.

    python bench/identity.py [--write]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nest.ir.io import problem_hash, read_problem  # noqa: E402
from nest.ir.problem import Problem  # noqa: E402
from nest.models import builtin  # noqa: E402
from nest.solvers.base import SolveOptions  # noqa: E402
from nest.solvers.registry import get_solver  # noqa: E402

EXPECTED = Path(__file__).with_suffix(".json")
STORED = ROOT / "tests" / "data" / "regression"
SOLVERS = ("dp", "brute", "cpsat")


def optimum(problem: Problem, solver: str) -> int | None:
    """Return the proven optimum in quanta, ``None`` if there is no plan."""
    output = get_solver(solver)().solve(problem, SolveOptions())
    return output.claimed_quanta


def found(agreement: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield what every check finds, with its name."""
    for name in builtin.names():
        yield f"hash of {name}", problem_hash(builtin.load(name))
    demo = builtin.DEFAULT
    yield f"optimum of {demo} by dp", optimum(builtin.load(demo), "dp")
    for name in agreement:
        problem = read_problem(STORED / f"{name}.json")
        yield f"hash of {name}", problem_hash(problem)
        for solver in SOLVERS:
            yield f"optimum of {name} by {solver}", optimum(problem, solver)


def main() -> int:
    """Check everything, or write what is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="store what is found instead"
    )
    options = parser.parse_args()
    stored = json.loads(EXPECTED.read_text())
    checks = found(stored["agreement"])
    if options.write:
        stored["values"] = dict(checks)
        EXPECTED.write_text(json.dumps(stored, indent=1) + "\n")
        return 0
    expected = dict(stored["values"])
    differ = 0
    for name, value in checks:
        old = expected.pop(name, "no stored value")
        verdict = "ok" if value == old else f"DIFFERS, expected {old}"
        differ += value != old
        print(f"{name}: {value} {verdict}", flush=True)
    for name in expected:
        print(f"{name}: not checked DIFFERS")
    differ += len(expected)
    print(f"Python {platform.python_version()}: {differ} differences")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
