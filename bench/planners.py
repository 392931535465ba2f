"""Every planner on every stored instance: the table of results.

Each cell is ``nest compare`` with one solver in a process of its own, one at
a time, start-up included: shared step time relative to the proven optimum of
``dp``, the planner's own objective, feasibility, wall and CPU seconds, peak
memory. The instances are in ``bench/instances/planners.json``: how each
problem is built, and its hash, which must not change unnoticed. Writes
``bench/results/planners.json`` after every cell and fills the tables of
docs/planners.md.

    python bench/planners.py [--time-limit 120] [--only NAME ...]
                             [--solvers A,B,…] [--tables]
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from result_files import ROOT, fill, result_path, write_rows
from speed import COMMAND, measure

from nest.ir.io import problem_hash, read_problem, write
from nest.models import builtin

INSTANCES = ROOT / "bench" / "instances" / "planners.json"
REFERENCE = "dp"
SOLVERS = (
    *(REFERENCE, "alpa", "galvatron", "phaze", "piper", "megatron"),
    *("mcmc", "uniap", "random"),
)


def make(instance: dict[str, Any], folder: Path) -> Path:
    """Write the problem of an instance to a file, as it is built today."""
    path = folder / f"{instance['name']}.json"
    if instance["arguments"]:
        arguments = ["problems", *instance["arguments"], "-o", str(path)]
        subprocess.run(
            [*COMMAND, *arguments],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    else:
        write(path, builtin.load(instance["problem"]))
    return path


def build(instance: dict[str, Any], folder: Path) -> Path:
    """Write the problem of an instance to a file.

    Exits if it is not the problem that the results are about.
    """
    path = make(instance, folder)
    found = problem_hash(read_problem(path))
    if found != instance["problem_hash"]:
        sys.exit(
            f"{instance['name']}: expected the problem with hash "
            f"{instance['problem_hash']}, got {found}; its costs changed: "
            f"correct {INSTANCES.name} and run all of its cells again"
        )
    return path


def run(
    instance: dict[str, Any], problem: Path, solver: str, time_limit_s: float
) -> dict[str, object]:
    """Measure one cell; a plan that does not fit is also repaired."""
    arguments = [*COMMAND, "compare", str(problem), "--solvers", solver]
    arguments += ["--granularity", instance["granularity"]]
    arguments += ["--time-limit", str(time_limit_s)]
    cell, used = answer(arguments)
    repaired = {}
    if cell["over_memory_bytes"]:
        again, _ = answer([*arguments, "--repair"])
        repaired = {
            "repaired_step_time_ns": again["step_time_ns"],
            "repair": again["detail"],
        }
    shared_ns = (
        None if cell["score"] is None else cell["score"]["step_time_ns"]
    )
    return {
        "instance": instance["name"],
        "solver": solver,
        **{
            key: cell[key]
            for key in (
                *("outcome", "status", "limit", "detail", "step_time_ns"),
                *("lower_bound_ns", "own_objective_ns", "over_memory_bytes"),
            )
        },
        "shared_step_time_ns": shared_ns,
        **repaired,
        "plan": cell["plan"],
        **used,
    }


def answer(
    arguments: list[str],
) -> tuple[dict[str, Any], dict[str, float | int]]:
    """Run a comparison of one solver; return its cell and what it used."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "answer.json"
        used = measure([*arguments, "--json", str(path)])
        return json.loads(path.read_text())["cells"][0], used


def read_rows() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows measured before, by instance and solver."""
    path = result_path("planners")
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())["rows"]
    return {(row["instance"], row["solver"]): row for row in rows}


def ratio(row: dict[str, Any], optimum_ns: float | None) -> str:
    """Return what a cell of the table says."""
    if row["outcome"] == "skipped":
        return "–"
    if row["shared_step_time_ns"] is None or not optimum_ns:
        return row["limit"] or "none"
    text = f"{row['shared_step_time_ns'] / optimum_ns:.3f}"
    if row["over_memory_bytes"]:
        over = f"({text}) +{row['over_memory_bytes'] / 1e9:.1f} GB"
        fitting_ns = row["repaired_step_time_ns"]
        if fitting_ns is None:
            return f"{over}, no repair"
        return f"{over}, repaired {fitting_ns / optimum_ns:.3f}"
    return text


def markdown(
    instances: list[dict[str, Any]],
    rows: dict[tuple[str, str], dict[str, Any]],
) -> str:
    """Return the tables: shared scores, own objectives, search times."""

    def table(head: str, cell: Any) -> list[str]:
        lines = [
            f"| {head} | {' | '.join(SOLVERS)} |",
            f"|---|{'---:|' * len(SOLVERS)}",
        ]
        for instance in instances:
            name = instance["name"]
            best = rows.get((name, REFERENCE))
            cells = [
                cell(row, best) if (row := rows.get((name, solver))) else ""
                for solver in SOLVERS
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return lines

    def shared(row: dict[str, Any], best: dict[str, Any]) -> str:
        if row is best:
            seconds = (
                row["step_time_ns"] and f"{row['step_time_ns'] / 1e9:.4g}"
            )
            return f"{seconds} s ({row['status']})"
        return ratio(row, best["step_time_ns"])

    def own(row: dict[str, Any], best: dict[str, Any]) -> str:
        value, scored = row["own_objective_ns"], row["shared_step_time_ns"]
        if value is None or not scored:
            return "–"
        return f"{value / 1e9:.4g} s ({value / scored:.2f})"

    def search(row: dict[str, Any], best: dict[str, Any]) -> str:
        return f"{row['wall_s']:.1f} s, {row['peak_rss_mb']} MB"

    parts = [
        *table("shared step time", shared),
        *(
            f"| {head} | "
            + " | ".join(
                mean(rows, instances, solver, fields) for solver in SOLVERS
            )
            + " |"
            for head, fields in (
                ("geometric mean, plans that fit", ("step_time_ns",)),
                (
                    "geometric mean, repaired ones too",
                    ("step_time_ns", "repaired_step_time_ns"),
                ),
            )
        ),
        "",
        *table("own objective", own),
        "",
        *table("search", search),
    ]
    return "\n".join(parts)


def mean(
    rows: dict[tuple[str, str], dict[str, Any]],
    instances: list[dict[str, Any]],
    solver: str,
    fields: tuple[str, ...],
) -> str:
    """Return the geometric mean over the instances with one of the times."""
    ratios = [
        time_ns / best["step_time_ns"]
        for instance in instances
        if (row := rows.get((instance["name"], solver)))
        and (best := rows.get((instance["name"], REFERENCE)))
        and (time_ns := next(filter(None, map(row.get, fields)), None))
        and best["step_time_ns"]
    ]
    if not ratios:
        return "–"
    value = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"{value:.3f} ({len(ratios)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=120)
    parser.add_argument("--only", nargs="*", metavar="NAME")
    parser.add_argument("--solvers", default=",".join(SOLVERS))
    parser.add_argument(
        "--tables", action="store_true", help="fill the docs, run nothing"
    )
    options = parser.parse_args()
    instances = json.loads(INSTANCES.read_text())
    rows = read_rows()
    if not options.tables:
        with tempfile.TemporaryDirectory() as name:
            for instance in instances:
                if options.only and instance["name"] not in options.only:
                    continue
                problem = build(instance, Path(name))
                for solver in options.solvers.split(","):
                    row = run(instance, problem, solver, options.time_limit)
                    rows[instance["name"], solver] = row
                    write_rows("planners", list(rows.values()))
                    print(
                        f"{instance['name']:24} {solver:10} "
                        f"{row['outcome']:10} {row['status'] or '-':12} "
                        f"{row['wall_s']:7.1f} s  {row['detail']}",
                        flush=True,
                    )
    fill(ROOT / "docs" / "planners.md", "planners", markdown(instances, rows))
    check(rows)


def check(rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Exit if a planner beats the optimum, or broke a promise."""
    bad = []
    for (name, solver), row in rows.items():
        best = rows.get((name, REFERENCE))
        if row["outcome"] not in ("solved", "skipped"):
            bad.append(f"{name}: {solver}: {row['outcome']}: {row['detail']}")
        if (
            best
            and best["status"] == "optimal"
            and row["step_time_ns"]
            and row["step_time_ns"] < best["step_time_ns"]
        ):
            bad.append(f"{name}: {solver} beats the proven optimum")
    if bad:
        sys.exit("\n".join(bad))


if __name__ == "__main__":
    main()
