"""Pages: how long writing and opening them takes, how large they are.

Writes the page of ``make report`` and others and opens each from its file in
a headless Chromium: ``bench/results/pages.json``, and a table that is
printed. Needs what ``make test-browser`` installs:

    PYTHONPATH=.browser:. python bench/pages.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from result_files import ROOT, table, write_rows

from tests.browser.driver import browser, show, why_not

COMMANDS = {
    "llama3-70b on 64 H100": (
        *("compare", "--model", "llama3-70b", "--cluster", "h100x64"),
        *("--solvers", "dp,alpa,galvatron,megatron", "--html"),
    ),
    "gpt3-175b-256": ("report", "gpt3-175b-256", "-o"),
    "frontier of llama2-7b-8": ("pareto", "llama2-7b-8", "--html"),
    "llama3-405b on 4,096 H100": (
        *("report", "--model", "llama3-405b", "--cluster", "h100x4096"),
        *("--solver", "megatron", "-o"),
    ),
    "published runs": ("validate", "--html"),
}
REPEATS = 5

#: Opening a page, by its own clock: until all of it is loaded and laid out.
_OPENED = (
    "const x = performance.getEntriesByType('navigation')[0];"
    "document.body.getBoundingClientRect();"
    "return x.loadEventEnd - x.startTime"
)


def write(command: tuple[str, ...], path: Path) -> float:
    """Write a page and return the seconds it took, the solvers included."""
    start_s = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "nest", *command, str(path)],
        cwd=ROOT,
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.monotonic() - start_s


def opened_ms(driver: Any, path: Path) -> float:
    """Return how long opening a page takes, the median of some times."""
    times = []
    for _ in range(REPEATS):
        show(driver, path, 1280)
        times.append(driver.execute_script(_OPENED))
    return statistics.median(times)


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table."""
    return table(
        "page | written | size | opened",
        (
            (
                row["page"],
                f"{row['written_s']:.1f} s",
                f"{row['bytes'] / 1000:.0f} kB",
                f"{row['opened_ms']:.0f} ms",
            )
            for row in rows
        ),
    )


def main() -> None:
    reason = why_not()
    if reason:
        sys.exit(f"pages: {reason}")
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, browser() as driver:
        for number, (name, command) in enumerate(COMMANDS.items()):
            path = Path(folder, f"{number}.html")
            wall_s = write(command, path)
            rows.append(
                {
                    "page": name,
                    "command": " ".join(("nest", *command, "FILE")),
                    "written_s": round(wall_s, 2),
                    "bytes": path.stat().st_size,
                    "opened_ms": round(opened_ms(driver, path), 1),
                }
            )
            print(rows[-1])
    write_rows("pages", rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()
