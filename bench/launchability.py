"""The price of launchability: the best plan of each framework beside any.

Solves the stored problems of ``bench/instances/planners.json`` with ``nest
solve --target-loss``, one process at a time: the proven optimum among the
plans that a framework can express, and among all plans with as much memory
per weight. Writes ``bench/results/launchability.json`` and fills the table of
docs/results/launchability.md.

    python bench/launchability.py [--time-limit 60] [--only NAME ...]

``--target NAME`` solves for one framework only, and keeps the rows of others.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from planners import INSTANCES
from result_files import ROOT, fill, page_path, read_rows, table, write_rows
from speed import COMMAND

from nest.constraints.targets import ANY, names

TARGETS = tuple(name for name in names() if name != ANY)


def problems(only: list[str]) -> list[dict[str, Any]]:
    """Return the instances whose stages choose for themselves."""
    return [
        instance
        for instance in json.loads(INSTANCES.read_text())
        if not only or instance["name"] in only
    ]


def solved(
    instance: dict[str, Any], target: str, time_limit_s: float
) -> dict[str, Any]:
    """Solve an instance for a target and without it."""
    with tempfile.TemporaryDirectory() as folder:
        problem, answer = Path(folder) / "p.json", Path(folder) / "a.json"
        chosen = instance["arguments"] or [instance["problem"]]
        subprocess.run(
            [*COMMAND, "problems", *chosen, "-o", str(problem)],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        process = subprocess.run(
            [
                *(*COMMAND, "solve", str(problem), "--solver", "dp"),
                *("--target", target, "--target-loss"),
                *("--time-limit", str(time_limit_s), "--json", str(answer)),
            ],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        if process.returncode == 2:
            *_, text = process.stderr.split("nest: error: ")
            return {"refused": " ".join(text.split())}
        document = json.loads(answer.read_text())
    (cell,) = document["cells"]
    return {
        "status": cell["status"],
        "step_time_ns": cell["step_time_ns"],
        "wall_s": cell["wall_s"],
        "plan": cell["plan"],
        **document["target_loss"],
    }


def cell(row: dict[str, Any]) -> str:
    """Return what the table says of a row."""
    if "refused" in row:
        return "–"
    if row["fraction"] is None:
        return "no plan" if row["status"] == "infeasible" else "not found"
    proof = "" if row["proven"] else " (not proven)"
    return f"{100 * row['fraction']:.1f} %{proof}"


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table: how much slower each framework's best plan is."""
    by_key = {(row["instance"], row["target"]): row for row in rows}
    instances = dict.fromkeys(row["instance"] for row in rows)
    lines = [
        [name, *(cell(by_key[name, target]) for target in TARGETS)]
        for name in instances
    ]
    means = []
    for target in TARGETS:
        logs = [
            math.log1p(row["fraction"])
            for row in rows
            if row["target"] == target and row.get("fraction") is not None
        ]
        mean = math.expm1(sum(logs) / len(logs)) if logs else math.nan
        means.append(f"{100 * mean:.1f} % ({len(logs)})")
    lines.append(["geometric mean (problems)", *means])
    return table(" | ".join(("", *TARGETS)), lines)


def main() -> None:
    """Solve all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--target", choices=TARGETS)
    arguments = parser.parse_args()
    before = {
        (row["instance"], row["target"]): row for row in read_rows("launchability")
    }
    rows = []
    for instance in problems(arguments.only):
        for target in TARGETS:
            name = instance["name"]
            if arguments.target in (None, target):
                row = {
                    "instance": name,
                    "target": target,
                    **solved(instance, target, arguments.time_limit),
                }
            else:
                row = before[name, target]
            rows.append(row)
            print(row["instance"], target, cell(row), flush=True)
    if not arguments.only:
        write_rows("launchability", rows)
        fill(page_path("launchability"), "launchability", markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
