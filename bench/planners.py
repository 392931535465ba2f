"""The problems of the planners' tables, and the tables.

``bench/instances/planners.json`` says how each problem is built, and its hash,
so that no costs change unnoticed. ``bench/every_cell.py`` runs them: the
tables of docs/results/planners.md are its cells.

    python bench/planners.py    store the hashes of the problems as they are
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))

from result_files import ROOT, table

from nest.benchmarks.instances import Instance
from nest.cli.main import cli
from nest.cost.score import score
from nest.ir.io import problem_hash, read_problem
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.models import builtin
from nest.solvers.base import Status
from nest.solvers.registry import get_solver
from nest.solvers.repair import repair
from nest.solvers.result import Outcome, Verdict

INSTANCES = ROOT / "bench" / "instances" / "planners.json"
REFERENCE = "dp"

#: ``mcmc`` with ``mcmc.pipelines=yes``.
PIPELINED = "mcmc, pipelines"

#: The columns of the tables.
SOLVERS = (
    *(REFERENCE, "alpa", "galvatron", "phaze", "piper", "megatron"),
    *("mcmc", PIPELINED, "uniap", "ft", "aceso", "random"),
)

Row = Mapping[str, Any]


def read_entries() -> list[dict[str, Any]]:
    """Return how the problems are built."""
    entries: list[dict[str, Any]] = json.loads(INSTANCES.read_text())
    return entries


def build(entry: Mapping[str, Any]) -> Problem:
    """Return a problem as it is built today."""
    if entry["arguments"]:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            path = Path(folder) / "problem.json"
            arguments = ["problems", *entry["arguments"], "-o", str(path)]
            cli.main(arguments, standalone_mode=False)
            problem = read_problem(path)
    else:
        problem = builtin.load(entry["problem"])
    job = msgspec.structs.replace(problem.job, granularity=entry["granularity"])
    return msgspec.structs.replace(problem, job=job)


def instances() -> list[Instance]:
    """Return the problems; exit if one is not that of the stored hash."""
    built = []
    for entry in read_entries():
        one = Instance(entry["name"], build(entry), INSTANCES.name)
        if one.hash != entry["problem_hash"]:
            sys.exit(
                f"{one.name}: expected the problem with hash "
                f"{entry['problem_hash']}, got {one.hash}; its costs changed: "
                f"run bench/planners.py, then all of its cells again"
            )
        built.append(one)
    return built


def details(problem: Problem, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tables say of an answer besides its row.

    A plan that does not fit is repaired, as ``--repair`` does it.

    Parameters
    ----------
    problem, answer
        The problem, and the cell of a ``nest-compare/1`` document.
    """
    figures = {
        "own_objective_ns": answer["own_objective_ns"],
        "shared_step_time_ns": None,
        "repaired_step_time_ns": None,
        "repair": [],
        "peak_rss_bytes": answer["peak_rss_bytes"],
        "plan": answer["plan"],
    }
    if answer["plan"] is None:
        return figures
    figures["shared_step_time_ns"] = answer["score"]["step_time_ns"]
    if answer["over_memory_bytes"]:
        plan = msgspec.convert(answer["plan"], Plan)
        verdict = repair(
            problem,
            Verdict(
                Outcome.SOLVED,
                Status.OVER_MEMORY,
                plan=plan,
                score=score(problem, plan),
                over_memory_bytes=answer["over_memory_bytes"],
            ),
            get_solver(answer["solver"]).capabilities.remedies,
        )
        if verdict.status is Status.FEASIBLE and verdict.score is not None:
            figures["repaired_step_time_ns"] = verdict.score.step_time_ns
            figures["repair"] = verdict.extra["repair"]
    return figures


def fitting_ns(row: Row, *, repaired: bool) -> float | None:
    """Return the step time of a plan that fits, perhaps a repaired one."""
    if row["kind"] == "plan":
        return row["shared_step_time_ns"]  # type: ignore[no-any-return]
    return row["repaired_step_time_ns"] if repaired else None


def markdown(names: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the table of the solvers.

    Parameters
    ----------
    names
        Of the problems, in order.
    rows
        Of ``bench/results/every_cell.json``, those of these problems.
    """
    by_key = {(row["instance"], row["solver"]): row for row in rows}
    summary = [_summary(by_key, names, solver) for solver in SOLVERS]
    heads = (
        "solver | step time / `dp`, plans that fit | repaired plans too | "
        "own estimate / shared step time | search time, s: median, longest"
    )
    return table(heads, summary)


def _summary(
    by_key: Mapping[tuple[str, str], Row], names: Sequence[str], solver: str
) -> list[str]:
    """Return the line of a solver."""
    rows = [by_key[name, solver] for name in names if (name, solver) in by_key]
    ratios = [
        row["own_objective_ns"] / row["shared_step_time_ns"]
        for row in rows
        if row["own_objective_ns"] and row["shared_step_time_ns"]
    ]
    seconds = [row["wall_s"] for row in rows]
    return [
        solver,
        *(mean(by_key, names, solver, repaired=x) for x in (False, True)),
        f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "–",
        f"{median(seconds):.1f}, {max(seconds):.1f}" if seconds else "–",
    ]


def mean(
    by_key: Mapping[tuple[str, str], Row],
    names: Sequence[str],
    solver: str,
    *,
    repaired: bool,
) -> str:
    """Return the geometric mean over the optima, and of how many it is."""
    ratios = [
        time_ns / by_key[name, REFERENCE]["shared_step_time_ns"]
        for name in names
        if (row := by_key.get((name, solver)))
        and (time_ns := fitting_ns(row, repaired=repaired)) is not None
    ]
    if not ratios:
        return "–"
    value = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return f"{value:.3f} ({len(ratios)})"


def main() -> None:
    """Store the hashes of the problems as they are built today."""
    entries = read_entries()
    for entry in entries:
        digest = problem_hash(build(entry))
        if digest != entry["problem_hash"]:
            print(f"{entry['name']}: {entry['problem_hash']} is now {digest}")
            entry["problem_hash"] = digest
    INSTANCES.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
