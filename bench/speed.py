"""Wall time, CPU time and peak memory of whole ``nest`` processes.

Runs ``nest`` as a user would, start-up included, one process at a time: on
every instance of NEST's artifact, imported and solved, whose step time is held
against the recorded optimum, and on the commands of :data:`COMMANDS`. Writes
``bench/results/speed.json`` and the tables of docs/results/speed.md.

    python bench/speed.py [--only TEXT ...] [--repeat 1] [--against DIR]
    python bench/speed.py --tables             fill the page, run nothing

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
from typing import Any

from result_files import fill, page_path, read_rows, table, write_rows

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "nest-artifact"
COMMAND = [sys.executable, "-m", "nest"]
SAMPLE_S = 0.01

#: What is measured besides NEST's instances: what the page calls it, and the command.
COMMANDS = {
    "Llama-2 7B on 8 H100 (library)": "solve llama2-7b-8",
    "Llama-2 70B on 64 (library)": "solve llama2-70b-64",
    "GPT-3 on 256 (library)": "solve gpt3-175b-256",
    "GPT-3 on 64 A100": "solve --model gpt3-175b --cluster a100x64",
    "Llama-3 70B on 64 B200": "solve --model llama3-70b --cluster b200x64",
    "GPT-3 on 1,024": "solve --model gpt3-175b --cluster h100x1024",
    "the same within 2 %": "solve --model gpt3-175b --cluster h100x1024 --gap 0.02",
    "the same, more choices": (
        "solve --model gpt3-175b --cluster h100x1024 --overlap gradients=0.9 "
        "--distributed-optimizer --sequence-parallel on,off"
    ),
    "GPT-3 on 512 H100 + 512 A100": (
        "solve --model gpt3-175b --cluster h100x512+a100x512"
    ),
    "DeepSeek-V3 on 2,048": "solve --model deepseek-v3 --cluster h100x2048",
    "Llama-3 70B on 4,096": "solve --model llama3-70b --cluster h100x4096",
    "the same within 2 % ": "solve --model llama3-70b --cluster h100x4096 --gap 0.02",
    "Llama-3 70B on 16,384": "solve --model llama3-70b --cluster h100x16384",
    "Llama-3 405B on 16,384": "solve --model llama3-405b --cluster h100x16384",
    "the same, any layer a cut": (
        "solve --model llama3-405b --cluster h100x16384 --layers-per-node 1"
    ),
    "Megatron-1T on 98,304": "solve --model megatron-1t --cluster h100x98304",
    "Llama-3 70B on 1,024, fat tree": (
        "solve --model llama3-70b --cluster h100x1024 --topology fat-tree:k=16"
    ),
    "Llama-3 70B on 4,096 TPU v5p, torus": (
        "solve --model llama3-70b --cluster tpu-v5px4096 --topology torus:16x16x16"
    ),
    "frontier of GPT-3 on 256": "pareto --model gpt3-175b --cluster h100x256",
    "`fit --cheapest` of questions.md": (
        "fit --model llama3-70b --cluster h100x64+a100x64 --quota h100=32 "
        "--price h100=2.5,a100=1.2 --days 60 --tokens 100e9 --cheapest"
    ),
    # Tables of large networks (docs/topologies.md).
    "network of a torus 16×16×16": "topology show tpu-v5p:16x16x16",
    "its collectives": "topology bench tpu-v5p:16x16x16",
    "network of a fat tree (k = 42)": "topology show fat-tree:k=42",
    "its collectives ": "topology bench fat-tree:k=42",
}
#: What others measured of other tools' searches: the tool and its question, what
#: its search took, its best plan by this cost model over the optimum, and the
#: question of :data:`COMMANDS`.
OTHERS = (
    (
        "SimuMax, Llama-3 70B on 64 B200",
        "17.5 s of CPU, 39 configurations",
        1.21,
        "Llama-3 70B on 64 B200",
    ),
    (
        "Calculon, GPT-3 on 64 A100",
        "107,008 configurations of 7 ms",
        1.05,
        "GPT-3 on 64 A100",
    ),
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


def expected() -> dict[str, tuple[Path, dict[str, str]]]:
    """Return instance -> (file, what is recorded of it)."""
    recorded = {}
    for file_name, folder in (
        ("expected.csv", "instances"),
        ("small_expected.csv", "small"),
    ):
        with (DATA / file_name).open() as file:
            for row in csv.DictReader(file):
                name = row["instance"]
                recorded[name] = (DATA / folder / f"{name}.json", row)
    return recorded


def artifact_rows(folder: Path, repeat: int) -> list[dict[str, object]]:
    """Import and solve every shared instance: both processes together."""
    rows = []
    for name, (path, recorded) in expected().items():
        problem, answer = folder / "problem.json", folder / "answer.json"
        imports = [
            *COMMAND,
            *("import", "nest-artifact", str(path), "-o", str(problem)),
        ]
        imported = min(
            (measure(imports) for _ in range(repeat)), key=lambda run: run["wall_s"]
        )
        row = {"problem": name} | solve(str(problem), answer, repeat)
        row["import_and_solve_cpu_s"] = round(imported["cpu_s"] + row["cpu_s"], 3)
        for figure in ("nest_cpu_s", "nest_peak_rss_mb"):
            if recorded.get(figure):
                row[f"recorded_{figure}"] = float(recorded[figure])
        optimum = recorded["exact_T"]
        if optimum and recorded.get("nest_T"):
            row["recorded_ratio"] = float(recorded["nest_T"]) / float(optimum)
        step_ns = row["step_time_ns"]
        if step_ns is None or not optimum:
            matches = step_ns is None and not optimum
            row["relative_error"] = 0.0 if matches else None
        else:
            row["relative_error"] = abs(step_ns / 1e9 / float(optimum) - 1)
        rows.append(row)
    return rows


def solve(problem: str, answer: Path, repeat: int) -> dict[str, Any]:
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
    elif words[0] == "fit":
        outcome = {
            "status": f"{len(document['candidates'])} candidates",
            "answer": document["answer"]["step_time_ns"],
        }
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


def questions_table(rows: list[dict[str, Any]]) -> str:
    """Return what the commands took."""
    by_command = {row["problem"]: row for row in rows}
    in_others = [question for *_, question in OTHERS]
    lines = [
        (
            name.strip(),
            f"{row['wall_s']:.1f}",
            f"{row['cpu_s']:.1f}",
            row["peak_rss_mb"],
        )
        for name, command in COMMANDS.items()
        if " --model " in command and name not in in_others
        if (row := by_command.get(command))
    ]
    return table("question | time, s | CPU, s | peak MB", lines)


def others_table(rows: list[dict[str, Any]]) -> str:
    """Return what the searches of other tools took, beside nest."""
    by_command = {row["problem"]: row for row in rows}
    recorded = [row for row in rows if "recorded_nest_cpu_s" in row]
    slower = sum(
        row["import_and_solve_cpu_s"] > row["recorded_nest_cpu_s"] for row in recorded
    )
    lines = [
        (
            f"NEST's C++, {len(recorded)} inputs, {slower} faster",
            f"{_span(recorded, 'recorded_nest_cpu_s')} s of CPU, "
            f"{_span(recorded, 'recorded_nest_peak_rss_mb')} MB",
            f"{max(row.get('recorded_ratio', 1.0) for row in recorded):.2f}",
            f"{_span(recorded, 'import_and_solve_cpu_s')}",
        )
    ]
    for tool, took, ratio, question in OTHERS:
        row = by_command[COMMANDS[question]]
        lines.append((tool, took, f"{ratio:.2f}", f"{row['cpu_s']:.1f}"))
    heads = "search | took | its best plan / optimum | nest, CPU s"
    return table(heads, lines, "llrr")


def fill_page() -> None:
    """Fill the tables of the page from the stored rows."""
    rows = read_rows("speed")
    fill(page_path("speed"), "questions", questions_table(rows))
    fill(page_path("speed"), "others", others_table(rows))


def _span(rows: list[dict[str, Any]], figure: str) -> str:
    """Return the least and the largest value of a figure."""
    values = sorted(row[figure] for row in rows)
    least, most = (
        f"{x:,.2f}" if x < 100 else f"{x:,.0f}" for x in values[:: len(values) - 1]
    )
    return f"{least} to {most}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    if options.tables:
        fill_page()
        return
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
            for command in COMMANDS.values()
            if any(text in command for text in options.only)
        ]
        rows += command_rows(commands, options.repeat, options.against, folder)
    if options.only == [""]:
        write_rows("speed", rows)
        fill_page()
    if not all(row.get("same_answer", True) for row in rows):
        sys.exit("an answer differs from the other checkout's")


if __name__ == "__main__":
    main()
