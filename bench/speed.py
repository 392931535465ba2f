"""Wall time, CPU time and peak memory of whole ``nest`` processes.

Runs ``nest`` as a user would, start-up included, one process at a time: on
every instance of NEST's artifact (imported first), whose step time is held
against the recorded optimum, and on the commands of :data:`COMMANDS`. Writes
``bench/results/speed.json`` and prints a table.

    python bench/speed.py [--only TEXT ...] [--repeat 1] [--against DIR]

With ``--against`` every command runs in another checkout too (by its own
environment), in turn with this one. Answers must be the same, or it exits
with 1; commands with ``--gap`` run here only.
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

_H100 = "--cluster h100x"
#: What is measured besides NEST's instances.
COMMANDS = (
    "solve llama2-7b-8",
    "solve llama2-7b-16",
    "solve mixtral-8x7b-32",
    "solve llama2-70b-64",
    "solve gpt3-175b-64",
    "solve gpt3-175b-256",
    f"solve --model gpt3-175b {_H100}1024",
    f"solve --model llama3-405b {_H100}16384",
    f"solve --model megatron-1t {_H100}98304",
    # A plan within 2 % of the best, proven.
    f"solve --model gpt3-175b {_H100}128 --gap 0.02",
    f"solve --model gpt3-175b {_H100}1024 --gap 0.02",
    f"pareto --model gpt3-175b {_H100}256",
    # Tables of large networks (docs/topologies.md).
    "topology show tpu-v5p:16x16x16",
    "topology bench tpu-v5p:16x16x16",
    "topology bench tpu-v5p:16x16x16 --ranks 64 --stride 16",
    "topology show fat-tree:k=42",
    "topology bench fat-tree:k=42",
    "topology show leaf-spine:leaves=512,hosts=32",
    "topology bench leaf-spine:leaves=512,hosts=32",
    "topology bench leaf-spine:leaves=512,hosts=32 --ranks 64 --stride 16",
)


def measure(arguments: list[str], folder: Path = ROOT) -> dict[str, float | int]:
    """Run a command; wall and CPU seconds, peak RSS over the process tree.

    The peak is the largest sum of the resident sizes of all processes of the tree seen
    at one moment (sampled), so that a runner and its worker count together.
    """
    before = os.times()
    start = time.perf_counter()
    process = subprocess.Popen(
        arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
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
            children.setdefault(int(fields.split()[1]), []).append(int(entry.name))
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
    optima = {}
    for table, folder in (
        ("expected.csv", "instances"),
        ("small_expected.csv", "small"),
    ):
        with (DATA / table).open() as file:
            for row in csv.DictReader(file):
                name = row["instance"]
                path = DATA / folder / f"{name}.json"
                optima[name] = (path, row["exact_T"])
    return optima


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
            rows[-1]["relative_error"] = abs(step_ns / 1e9 / float(optimum) - 1)
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
HEADS = f"{'status':10} {'wall s':>7} {'cpu s':>7} {'MB':>5} {'rel. error':>10}"


def cells(row: dict[str, object]) -> str:
    """Return what every row measures as text, one column a figure."""
    error = row.get("relative_error")
    text = f"{error:.1e}" if isinstance(error, float) else ""
    before = ""
    if "wall_s_before" in row:
        same = "same" if row["same_answer"] else "OTHER"
        before = (
            f"  before {row['wall_s_before']:7.2f} s "
            f"{row['peak_rss_mb_before']} MB, {same} answer"
        )
    return (
        f"{row['status']:10} {row['wall_s']:7.2f} {row['cpu_s']:7.2f} "
        f"{row['peak_rss_mb']:5} {text:>10}{before}"
    )


def run(command: str, python: str, folder: Path, answer: Path) -> dict[str, object]:
    """Run a command of a checkout once; its figures and its answer."""
    words = command.split()
    if words[0] == "solve":
        words += ["--solver", "dp"]
    answer.unlink(missing_ok=True)
    figures = measure([python, "-m", "nest", *words, "--json", str(answer)], folder)
    document = json.loads(answer.read_text())
    if words[0] == "pareto":
        points = [
            [point["memory_bytes"], point["step_time_ns"]]
            for point in document["points"]
        ]
        outcome = {"status": f"{len(points)} points", "answer": points}
    elif words[0] == "topology":
        outcome = {"status": "table", "answer": document}
    else:
        cell = document["cells"][0]
        outcome = {"status": cell["status"], "answer": cell["step_time_ns"]}
    return {"problem": command, **outcome, **figures}


def command_rows(
    commands: list[str], repeat: int, against: Path | None, folder: Path
) -> list[dict[str, object]]:
    """Run commands, here and perhaps elsewhere; the fastest runs of each."""
    rows = []
    for command in commands:
        here, there = [], []
        for _ in range(repeat):
            here.append(run(command, sys.executable, ROOT, folder / "here.json"))
            if against is not None and "--gap" not in command:
                python = str(against / ".venv" / "bin" / "python")
                there.append(run(command, python, against, folder / "there.json"))
        row = min(here, key=lambda run: run["wall_s"])
        if there:
            before = min(there, key=lambda run: run["wall_s"])
            row["wall_s_before"] = before["wall_s"]
            row["peak_rss_mb_before"] = before["peak_rss_mb"]
            row["same_answer"] = row["answer"] == before["answer"]
        if isinstance(row["answer"], list | dict):
            del row["answer"]
        rows.append(row)
        print(f"{row['problem']:50} {cells(row)}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(f"{'command':50} {HEADS}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only != [""]:
            pass
        elif DATA.is_dir():
            rows += artifact_rows(folder, options.repeat)
            for row in rows:
                print(f"{row['problem']:50} {cells(row)}")
        else:
            print(f"skipped NEST's instances: no {DATA.name} data")
        commands = [
            command
            for command in COMMANDS
            if any(text in command for text in options.only)
        ]
        rows += command_rows(commands, options.repeat, options.against, folder)
    if options.only == [""]:
        write_rows("speed", rows)
    if not all(row.get("same_answer", True) for row in rows):
        sys.exit("an answer differs from the other checkout's")


if __name__ == "__main__":
    main()
