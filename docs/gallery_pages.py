"""The pages of the gallery: the commands that write them, without Sphinx."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple


class Report(NamedTuple):
    """A page: its file, what it shows, and the command without the file.

    ``says`` has to be on it, as what it shows is true then.
    """

    file: str
    shows: str
    command: str
    says: str


#: What ``make report`` writes.
MAKE_REPORT = Report(
    "llama3-70b.html",
    "Llama-3-70B on 64 H100: the plan, and how far others are from it.",
    "compare --model llama3-70b --cluster h100x64 --solvers "
    "dp,alpa,galvatron,megatron --html",
    "galvatron",
)

REPORTS = (
    MAKE_REPORT,
    Report(
        "comparison.html",
        "Four planners on one problem, and their distance from the optimum.",
        "compare llama2-7b-8 --solvers dp,alpa,galvatron,megatron --html",
        "galvatron",
    ),
    Report(
        "mixed.html",
        "Two types of devices, and the time and cost of 2 T tokens.",
        "solve --model llama2-7b --cluster h100x8+a100x8 --tokens 2e12 "
        "--price 2 --html",
        "USD",
    ),
    Report(
        "infeasible.html",
        "No plan fits: the missing memory, and what would suffice.",
        "solve --model llama3-8b --cluster a100-40gbx2 --html",
        "memory is short by",
    ),
    Report(
        "frontier.html",
        "Every trade-off of time and memory without tensor parallelism.",
        "pareto llama2-7b-8 --pin tp=1 --html",
        "The frontier",
    ),
    Report(
        "benchmark.html",
        "Statistics of a small benchmark: two problems, three solvers.",
        "bench llama2-7b-8 llama2-7b-16 --solvers dp,megatron,random -o run --html",
        "random",
    ),
)


def write_page(report: Report, folder: Path) -> Path:
    """Write a page into a folder and return its path.

    The page says how to repeat it: no path of this machine is in that.

    Raises
    ------
    RuntimeError
        If the command fails, or writes no page.
    """
    page = folder / report.file
    page.unlink(missing_ok=True)
    words = [*shlex.split(report.command), report.file]
    with tempfile.TemporaryDirectory() as here:
        done = subprocess.run(
            [sys.executable, "-m", "nest", *words],
            cwd=here,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
        )
        written = Path(here, report.file)
        if written.is_file():
            shutil.move(written, page)
    if done.returncode or not page.is_file():
        raise RuntimeError(
            f"gallery: expected 'nest {report.command}' to write a page "
            f"and exit with 0, got {done.returncode}: "
            f"{done.stderr.strip()}"
        )
    if report.says not in page.read_text():
        raise RuntimeError(
            f"gallery: expected the page of 'nest {report.command}' to say "
            f"{report.says!r}, got none of it; correct the command, or what "
            f"it is said to show ({report.shows})"
        )
    return page
