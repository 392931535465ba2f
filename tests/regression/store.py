"""Stored instances: a problem file and, beside it, its known optimum.

``python -m tests.regression.store FILE NAME WHY`` adds one: brute force and
the dynamic program must agree on the optimum before it is written.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from nest.cost.score import score
from nest.ir import Problem, problem_hash, read_problem, write
from nest.solvers.base import SolveOptions, SolverOutput
from nest.solvers.registry import get_solver
from nest.util.versions import nest_version

FOLDER = Path(__file__).parent.parent / "data" / "regression"


@dataclass(frozen=True)
class Known:
    """What is proven about a stored problem."""

    name: str
    problem: Problem
    problem_hash: str
    status: str
    step_quanta: int | None


def solve(name: str, problem: Problem) -> SolverOutput:
    """Run a solver in this process, without a limit."""
    return get_solver(name)().solve(problem, SolveOptions())


def stored() -> list[str]:
    """Return the names of all stored instances."""
    return sorted(
        path.name.removesuffix(".optimum.json")
        for path in FOLDER.glob("*.optimum.json")
    )


def load(name: str) -> Known:
    """Read a stored instance."""
    problem = read_problem(FOLDER / f"{name}.json")
    known = json.loads((FOLDER / f"{name}.optimum.json").read_text())
    return Known(
        name, problem, known["problem_hash"], known["status"], known["step_quanta"]
    )


def store(name: str, problem: Problem, why: str) -> None:
    """Prove the optimum by enumeration and write both files."""
    output, other = solve("brute", problem), solve("dp", problem)
    assert output.status in ("optimal", "infeasible")
    agreed = (output.status, output.claimed_quanta) == (
        other.status,
        other.claimed_quanta,
    )
    proved_by = ["brute", "dp"] if agreed else ["brute"]
    if output.plan is not None:
        assert score(problem, output.plan).step_quanta == (output.claimed_quanta)
    FOLDER.mkdir(parents=True, exist_ok=True)
    write(FOLDER / f"{name}.json", problem)
    document = {
        "problem_hash": problem_hash(problem),
        "status": str(output.status),
        "step_quanta": output.claimed_quanta,
        "num_plans": output.extra["num_plans"],
        "proved_by": proved_by,
        "nest": nest_version(),
        "why": why,
    }
    path = FOLDER / f"{name}.optimum.json"
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Store the problem of a file."""
    if len(sys.argv) != 4:
        sys.exit("usage: python -m tests.regression.store FILE NAME WHY")
    store(sys.argv[2], read_problem(sys.argv[1]), sys.argv[3])


if __name__ == "__main__":
    main()
