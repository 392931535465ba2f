"""Write what came of a run: Markdown, CSV, JSON, and one page of HTML.

Nothing of a report depends on the order in which cells ran, or on when it was
written. ``answers.csv``, and ``answers`` of ``report.json``, have nothing
measured in them.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nest.benchmarks.session import Ended
from nest.present.benchmark_layout import Grid, Section, headline, sections
from nest.present.pages.parts import Part, Table
from nest.solvers.result import SolveResult
from nest.util.text import printable

#: Answers, and then what was measured.
ANSWER_FIELDS = (
    *("problem", "solver", "seed", "outcome", "status", "limit"),
    *("step_time_ns", "step_time_quanta", "over_best", "lower_bound_ns"),
    *("lower_bound_quanta", "over_memory_bytes", "own_objective_ns"),
    "detail",
)
_MEASURED = ("wall_s", "cpu_s", "peak_rss_bytes", "host")
TIME_FIELDS = ("problem", "solver", "seed", *_MEASURED, "detail")
JOINT_FIELDS = (*ANSWER_FIELDS[:-1], *_MEASURED, "detail")


def reports(document: dict[str, Any]) -> dict[str, str]:
    """Return the files of a report by name.

    Parameters
    ----------
    document
        A ``nest-bench/1`` document.
    """
    answers, times = document["answers"]["rows"], document["times"]["rows"]
    return {
        "report.json": to_json(document),
        "report.md": to_markdown(document),
        "report.html": to_html(document),
        "answers.csv": to_csv(ANSWER_FIELDS, answers),
        "times.csv": to_csv(TIME_FIELDS, times),
    }


def to_json(document: Mapping[str, Any]) -> str:
    """Return the document as a file has it."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def to_csv(fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows under a line of names; nothing stands for unknown."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(fields)
    for row in rows:
        writer.writerow([_cell(row[x]) for x in fields])
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    """Return a value as a table has it: names go to terminals, too."""
    if isinstance(value, str):
        return printable(value)
    return "" if value is None else value


def joint_csv(document: dict[str, Any]) -> str:
    """Return answers and times of every cell in one row."""
    rows = [
        {
            **time,
            **answer,
            "detail": time["detail"] or answer["detail"],
        }
        for answer, time in zip(
            document["answers"]["rows"], document["times"]["rows"], strict=True
        )
    ]
    return to_csv(JOINT_FIELDS, rows)


def result_csv(problem: str, results: Iterable[SolveResult]) -> str:
    """Return the same of one problem, which was compared by itself."""
    results = list(results)
    steps = [r.step_quanta for r in results if r.step_quanta is not None]
    best = min(steps, default=None)
    rows = [
        {
            **result.to_json(),
            "problem": problem,
            "seed": result.options.seed,
            "over_best": result.step_quanta / best
            if best and result.step_quanta is not None
            else None,
            "host": os.uname().nodename,
            "detail": " ".join(result.detail.split()),
        }
        for result in results
    ]
    return to_csv(JOINT_FIELDS, rows)


# Markdown


def to_markdown(document: dict[str, Any]) -> str:
    """Return a page of Markdown; tables only."""
    tables = [part for part in sections(document) if part.grid is not None]
    parts = [f"# {document['run']['title']}", headline(document)]
    parts += _ordered(
        tables,
        lambda title: [f"## {title}"],
        lambda part: [
            f"### {part.title}",
            part.text,
            *([markdown_table(part.grid)] if part.grid else []),
        ],
    )
    # Names are text: nothing of them is HTML.
    return "\n\n".join(parts).replace("<", "\\<") + "\n"


def markdown_table(grid: Grid) -> str:
    """Return a table in Markdown."""
    marks = [
        "---" if grid.is_word(column) else "---:"
        for column in range(len(grid.headers))
    ]

    def line(texts: Iterable[str]) -> str:
        cells = (text.replace("|", "\\|") for text in texts)
        return f"| {' | '.join(cells)} |"

    return "\n".join(
        [line(grid.headers), f"|{'|'.join(marks)}|", *map(line, grid.rows)]
    )


def _ordered(
    parts: Sequence[Section],
    heading: Callable[[str], list[str]],
    show: Callable[[Section], list[str]],
) -> list[str]:
    """Return answers, and then what was measured."""
    shown = []
    for title, measured in (("Answers", False), ("Measured", True)):
        shown += heading(title)
        for part in parts:
            if part.measured == measured:
                shown += show(part)
    return shown


# HTML


def to_html(document: dict[str, Any], plans: Sequence[Part] = ()) -> str:
    """Return one page that needs no other file, in light and dark.

    ``plans`` are parts about the problems, which come first.
    """
    from nest.present.pages.html import page

    parts = sections(document)
    ordered = sorted(parts, key=lambda part: part.measured)
    return page(
        document["run"]["title"],
        headline(document),
        [*plans, *(_part(part, document) for part in ordered)],
    )


def _part(section: Section, document: dict[str, Any]) -> Part:
    """Return a part of a page: what is measured says so."""
    from nest.present.pages.benchmark_charts import chart

    charts = (chart(name, document) for name in section.plots)
    measured = "Measured: another run may say other things."
    tables = [] if section.grid is None else [_table(section)]
    return Part(
        "-".join(section.title.lower().split()),
        section.title,
        (*([measured] if section.measured else []), section.text),
        charts=tuple(found for found in charts if found is not None),
        tables=tuple(tables),
        folded=section.folded,
    )


def _table(section: Section) -> Table:
    grid = section.grid
    assert grid is not None
    columns = range(len(grid.headers))
    words = frozenset(i for i in columns if grid.is_word(i))
    return Table(section.title, grid.headers, grid.rows, words)


def write_reports(ended: Ended) -> None:
    """Write the reports of a run into its directory."""
    for name, text in reports(ended.document).items():
        ended.folder.write(name, text.encode())
