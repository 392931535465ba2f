"""Results of the bench scripts: ``bench/results/NAME.json``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nest.util.versions import machine, versions

ROOT = Path(__file__).resolve().parent.parent


def result_path(name: str) -> Path:
    """Return where the results of a name are."""
    return ROOT / "bench" / "results" / f"{name}.json"


def page_path(name: str) -> Path:
    """Return the page of the documentation with the tables of a name."""
    return ROOT / "docs" / "results" / f"{name}.md"


def read_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows measured before, none if there are no results."""
    path = result_path(name)
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def write_result(name: str, document: object) -> None:
    """Write results over those of the same name."""
    path = result_path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def write_rows(name: str, rows: list[dict[str, object]]) -> None:
    """Write measured rows with the code and the machine that made them."""
    write_result(
        name,
        {
            "commit": commit(),
            "versions": versions(),
            "machine": machine(),
            "rows": rows,
        },
    )


def table(heads: str, rows: Iterable[Iterable[object]], align: str = "") -> str:
    """Return a Markdown table.

    Parameters
    ----------
    heads
        Titles of the columns, with ``|`` between them.
    rows
        Their cells.
    align
        ``l`` or ``r`` per column; by default all but the first are numbers.
    """
    titles = [title.strip() for title in heads.split("|")]
    align = align or "l" + "r" * (len(titles) - 1)
    rules = {"l": "---", "r": "---:"}
    lines = [f"|{'|'.join(f' {x} ' if x else ' ' for x in titles)}|"]
    lines.append(f"|{'|'.join(rules[side] for side in align)}|")
    lines += [f"| {' | '.join(map(str, cells))} |" for cells in rows]
    return "\n".join(lines)


def short_source(source: str) -> str:
    """Return the name of a source without what stands in brackets."""
    return source.partition(" (")[0]


def fill(path: Path, mark: str, text: str) -> None:
    """Replace what stands between the marks of a page."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = path.read_text().split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def commit() -> str:
    """Return the checked-out commit, short; empty outside a checkout."""
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
