"""Stored frontiers: a problem file and, beside it, its frontier.

``python -m tests.regression.frontiers FILE NAME WHY`` adds one; the points are
those of plain enumeration, whatever the search says.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from nest.cost.model import CostModel
from nest.ir import Problem, problem_hash, read_problem, write
from nest.util.versions import nest_version
from tests.frontiers import Pairs, enumerated, space

FOLDER = Path(__file__).parent.parent / "data" / "frontiers"
MAX_PLANS = 200_000


@dataclass(frozen=True)
class Known:
    """The frontier of a stored problem: (bytes, quanta) by memory."""

    name: str
    problem: Problem
    problem_hash: str
    points: Pairs


def stored() -> list[str]:
    """Return the names of all stored frontiers."""
    return sorted(
        path.name.removesuffix(".frontier.json")
        for path in FOLDER.glob("*.frontier.json")
    )


def load(name: str) -> Known:
    """Read a stored frontier."""
    known = json.loads((FOLDER / f"{name}.frontier.json").read_text())
    return Known(
        name,
        read_problem(FOLDER / f"{name}.json"),
        known["problem_hash"],
        [(memory, step) for memory, step in known["points"]],
    )


def store(name: str, problem: Problem, why: str) -> None:
    """Enumerate the frontier and write both files."""
    points = enumerated(problem)
    FOLDER.mkdir(parents=True, exist_ok=True)
    write(FOLDER / f"{name}.json", problem)
    document = {
        "problem_hash": problem_hash(problem),
        "points": points,
        "num_plans": space(problem, CostModel(problem)).count(MAX_PLANS),
        "proved_by": ["enumeration"],
        "nest": nest_version(),
        "why": why,
    }
    path = FOLDER / f"{name}.frontier.json"
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Store the problem of a file."""
    if len(sys.argv) != 4:
        sys.exit("usage: python -m tests.regression.frontiers FILE NAME WHY")
    store(sys.argv[2], read_problem(sys.argv[1]), sys.argv[3])


if __name__ == "__main__":
    main()
