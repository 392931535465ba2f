"""Wall time, CPU time and peak memory of whole ``nest pareto`` processes.

Runs ``nest pareto`` as a user would, start-up included, one command at a
time. Writes ``bench/results/frontier.json``: a row per command
with the number of points, the ends of the curve and what is not proven.

    python bench/frontier.py [--only TEXT]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from result_files import read_rows, write_rows
from speed import COMMAND, measure

#: A strategy per layer.
LAYERS = ["--granularity", "layer"]

#: One cluster each; several clusters; a strategy per layer, in one stage or
#: in any number, and with a limit.
RUNS = [
    *(
        [name]
        for name in (
            *("llama2-7b-8", "llama2-7b-16", "llama2-70b-64"),
            *("gpt3-175b-64", "gpt3-175b-256", "mixtral-8x7b-32"),
        )
    ),
    *(
        ["--model", model, "--cluster", f"h100x{devices}"]
        for model in ("llama2-70b", "gpt3-175b")
        for devices in (64, 128, 256, 512)
    ),
    ["llama2-70b-64", "--objectives", "time,memory,devices"],
    *(
        ["--model", model, "--cluster", cluster, *LAYERS, *pins]
        for pins in (["--pin", "pp=1"], [])
        for model, cluster in (("bert-large", "v100x16"), ("llama2-7b", "h100x8"))
    ),
    ["llama2-7b-8", "--granularity", "layer", "--time-limit", "60"],
]


def run(arguments: list[str]) -> dict[str, object]:
    """Measure one process and read what it found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frontier.json"
        command = [*COMMAND, "pareto", *arguments]
        used = measure([*command, "--json", str(path)])
        document = json.loads(path.read_text())
    points = document["points"]
    return {
        "command": " ".join(arguments),
        "problem_hash": document["problem_hash"],
        "points": len(points),
        "proven": document["proven"],
        "gaps": sum(len(curve["gaps"]) for curve in document["curves"]),
        "fastest_ns": min(p["step_time_ns"] for p in points),
        "least_memory_bytes": min(p["memory_bytes"] for p in points),
        **used,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT")
    options = parser.parse_args()
    rows = {row["command"]: row for row in read_rows("frontier")}
    for arguments in RUNS:
        if options.only not in " ".join(arguments):
            continue
        row = run(arguments)
        rows[str(row["command"])] = row
        print(
            f"{row['command']:<54} {row['points']:>5} points "
            f"{'proven' if row['proven'] else 'open':<6} "
            f"{row['wall_s']:>7} s wall {row['cpu_s']:>7} s CPU "
            f"{row['peak_rss_mb']:>6} MB",
            flush=True,
        )
        write_rows("frontier", list(rows.values()))


if __name__ == "__main__":
    main()
