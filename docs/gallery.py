"""The gallery: pages that the project writes when the site is built.

Each is the answer to a command of ``REPORTS``; the directive ``reports`` of
gallery.md lists them. Where there is a browser, pictures of them are taken:
small ones for the list, and those of the page of ``make report`` again, in
place of the ones in the repository.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from pictures import REPORT, shown, take, thumbnails
from sphinx.util.docutils import SphinxDirective

#: Where pages are, from the root of the site.
FOLDER = "reports"


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
        "Four planners, one problem: who is how far from the optimum.",
        "compare llama2-7b-8 --solvers dp,alpa,galvatron,megatron --html",
        "galvatron",
    ),
    Report(
        "mixed.html",
        "Two types of devices, and what a run of 2 T tokens takes.",
        "solve --model llama2-7b --cluster h100x8+a100x8 --tokens 2e12 "
        "--price 2 --html",
        "USD",
    ),
    Report(
        "infeasible.html",
        "No plan fits: by how much, and what would do.",
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
        "bench llama2-7b-8 llama2-7b-16 --solvers dp,megatron,random -o run "
        "--html",
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


def write(folder: Path) -> None:
    """Write all pages into a folder, and small pictures of them."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = [write_page(report, folder) for report in REPORTS]
    take(
        [
            (page, picture)
            for page in pages
            for picture in thumbnails(page.name).values()
        ],
        folder,
    )


class Reports(SphinxDirective):
    """A list of the pages: a link, the command, and a picture."""

    def run(self) -> list[nodes.Node]:
        """Return a definition list."""
        folder = Path(self.env.app.outdir, FOLDER)
        items = nodes.definition_list()
        for report in REPORTS:
            term = nodes.term()
            uri = f"{FOLDER}/{report.file}"
            term += nodes.reference("", report.shows, refuri=uri)
            command = f"nest {report.command} {report.file}"
            text = nodes.paragraph()
            text += nodes.literal("", command)
            image = nodes.raw("", shown(folder, report.file), format="html")
            items += nodes.definition_list_item(
                "", term, nodes.definition("", text, image)
            )
        return [items]


def _begin(app: Any) -> None:
    if app.builder.name == "html":
        write(Path(app.outdir, FOLDER))


def _end(app: Any, error: Exception | None) -> None:
    """Put pictures of the page as it is now in place of committed ones."""
    if app.builder.name == "html" and error is None:
        page = Path(app.outdir, FOLDER, MAKE_REPORT.file)
        take([(page, each) for each in REPORT], Path(app.outdir, "_images"))


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx of the directive and the pages."""
    app.add_directive("reports", Reports)
    app.connect("builder-inited", _begin)
    app.connect("build-finished", _end)
    return {"parallel_read_safe": True}
