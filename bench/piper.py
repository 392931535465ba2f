"""Solve Piper's recorded settings with ``dp`` and time whole processes.

Imports every setting of ``expected.csv`` with ``nest import piper``, runs
``nest solve --solver dp`` as a user would, start-up included, one process at
a time, and compares the step time with the recorded exact optimum. Writes
``bench/results/piper.json`` and prints a table.

    python bench/piper.py [FILE ...]
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

from result_files import write_rows
from speed import COMMAND, HEADS, cells, solve

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "piper"
SETTING = ("max_devices", "micro_batches", "memory_bytes", "bandwidth_bytes_per_s")


def main(files: list[str]) -> None:
    with (DATA / "expected.csv").open() as text:
        settings = [
            row for row in csv.DictReader(text) if not files or row["file"] in files
        ]
    rows = []
    print(f"{'file':16} {'K':>4} {'N':>5} {'GiB':>4} {HEADS}  Piper above")
    with tempfile.TemporaryDirectory() as name:
        problem = Path(name, "problem.json")
        for setting in settings:
            options = [
                word
                for field in SETTING
                for word in (
                    f"--{field.removeprefix('max_').replace('_', '-')}",
                    setting[field],
                )
            ]
            subprocess.run(
                [
                    *(*COMMAND, "import", "piper", DATA / setting["file"]),
                    *(*options, "-o", problem),
                ],
                cwd=ROOT,
                check=True,
            )
            figures = solve(str(problem), Path(name, "answer.json"), 1)
            step = float(str(figures["step_time_ns"])) / 1e9
            exact = float(setting["exact_tps"])
            row = {
                "file": setting["file"],
                **{field: int(setting[field]) for field in SETTING},
                **figures,
                "relative_error": abs(step / exact - 1),
                "piper_above": float(setting["piper_tps"]) / exact - 1,
            }
            rows.append(row)
            print(
                f"{row['file']:16} {row['max_devices']:4} "
                f"{row['micro_batches']:5} {row['memory_bytes'] / 2**30:4.0f} "
                f"{cells(row)}  {row['piper_above']:.2%}",
                flush=True,
            )
    write_rows("piper", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
