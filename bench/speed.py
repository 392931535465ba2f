"""Wall time, CPU time and peak memory of whole ``nest solve`` processes.

Runs ``nest solve`` as a user would, start-up included, one process at a time,
on every instance of NEST's artifact (imported first) and on built-in
problems, and compares the step time with the recorded optimum. Writes
``bench/results/speed.json`` and prints a table.

    python bench/speed.py [--builtin NAME ...] [--repeat 1]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from result_files import write_rows

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "nest-artifact"
COMMAND = [sys.executable, "-m", "nest"]
SAMPLE_S = 0.01


def measure(arguments: list[str]) -> dict[str, float | int]:
    """Run a command; wall and CPU seconds, peak RSS over the process tree.

    The peak is the largest sum of the resident sizes of all processes of the
    tree seen at one moment (sampled), so that a runner and its worker count
    together.
    """
    before = os.times()
    start = time.perf_counter()
    process = subprocess.Popen(
        arguments,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, tree_rss_bytes(process.pid))
        time.sleep(SAMPLE_S)
    wall_s = time.perf_counter() - start
    after = os.times()
    assert process.stderr is not None
    message = process.stderr.read().decode()
    if process.returncode:
        sys.exit(f"{' '.join(arguments)}: {message}")
    return {
        "wall_s": round(wall_s, 3),
        "cpu_s": round(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system,
            3,
        ),
        "peak_rss_mb": round(peak / 1e6),
    }


def tree_rss_bytes(root: int) -> int:
    """Return the resident bytes of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2]
            except OSError:
                continue
            children.setdefault(int(fields.split()[1]), []).append(
                int(entry.name)
            )
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


def expected() -> dict[str, tuple[Path, str]]:
    """Return instance -> (file, optimum in its own unit or '')."""
    found = {}
    for table, folder in (
        ("expected.csv", "instances"),
        ("small_expected.csv", "small"),
    ):
        with (DATA / table).open() as file:
            for row in csv.DictReader(file):
                name = row["instance"]
                path = DATA / folder / f"{name}.json"
                found[name] = (path, row["exact_T"])
    return found


def artifact_rows(folder: Path, repeat: int) -> list[dict[str, object]]:
    """Import and solve every shared instance."""
    rows = []
    for name, (path, optimum) in expected().items():
        problem, answer = folder / "problem.json", folder / "answer.json"
        subprocess.run(
            [*COMMAND, "import", "nest-artifact", path, "-o", problem],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rows.append({"problem": name} | solve(str(problem), answer, repeat))
        step_ns = rows[-1]["step_time_ns"]
        if step_ns is None or not optimum:
            matches = step_ns is None and not optimum
            rows[-1]["relative_error"] = 0.0 if matches else None
        else:
            rows[-1]["relative_error"] = abs(
                step_ns / 1e9 / float(optimum) - 1
            )
    return rows


def solve(problem: str, answer: Path, repeat: int) -> dict[str, object]:
    """Solve a problem with ``dp``; the fastest of ``repeat`` runs."""
    arguments = [*COMMAND, "solve", problem, "--solver", "dp"]
    arguments += ["--json", str(answer)]
    runs = [measure(arguments) for _ in range(repeat)]
    cell = json.loads(answer.read_text())["cells"][0]
    return {
        "status": cell["status"],
        "step_time_ns": cell["step_time_ns"],
        **min(runs, key=lambda run: run["wall_s"]),
    }


#: Heads of :func:`cells`.
HEADS = (
    f"{'status':10} {'wall s':>7} {'cpu s':>7} {'MB':>5} {'rel. error':>10}"
)


def cells(row: dict[str, object]) -> str:
    """Return what every row measures as text, one column a figure."""
    error = row.get("relative_error")
    text = f"{error:.1e}" if isinstance(error, float) else ""
    return (
        f"{row['status']:10} {row['wall_s']:7.2f} {row['cpu_s']:7.2f} "
        f"{row['peak_rss_mb']:5} {text:>10}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--builtin",
        nargs="*",
        default=["llama2-7b-8", "gpt3-175b-64", "gpt3-175b-256"],
    )
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if DATA.is_dir():
            rows += artifact_rows(folder, options.repeat)
        else:
            print(f"skipped NEST's instances: no {DATA.name} data")
        for problem in options.builtin:
            rows.append(
                {"problem": problem}
                | solve(problem, folder / "answer.json", options.repeat)
            )
    print(f"{'problem':40} {HEADS}")
    for row in rows:
        print(f"{row['problem']:40} {cells(row)}")
    write_rows("speed", rows)


if __name__ == "__main__":
    main()
