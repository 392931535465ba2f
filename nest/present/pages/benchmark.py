"""Write what came of a run: Markdown, CSV, JSON, and one page of HTML.

Nothing of a report depends on the order in which cells ran, or on when it was written.
``answers.csv``, and ``answers`` of ``report.json``, have nothing measured in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nest.benchmarks.session import Ended
from nest.present.benchmark_layout import answer_sections, headline, measured_sections
from nest.present.comparison import answers_csv
from nest.util.sections import Page, Section
from nest.util.tables import fields_csv, to_markdown

#: Answers, and then what was measured.
ANSWER_FIELDS = (
    *("problem", "solver", "seed", "outcome", "status", "limit"),
    *("step_time_ns", "step_time_quanta", "over_best", "lower_bound_ns"),
    *("lower_bound_quanta", "over_memory_bytes", "own_objective_ns"),
    "detail",
)
TIME_FIELDS = (
    *("problem", "solver", "seed", "wall_s", "cpu_s", "peak_rss_bytes"),
    *("host", "detail"),
)
_MEASURED = "Measured: another run gives other figures."


def reports(document: dict[str, Any]) -> dict[str, str]:
    """Return the files of a report by name, from a ``nest-bench/1`` document."""
    answers, times = document["answers"]["rows"], document["times"]["rows"]
    return {
        "report.json": to_json(document),
        "report.md": markdown(document),
        "report.html": to_html(document),
        "answers.csv": fields_csv(ANSWER_FIELDS, answers),
        "times.csv": fields_csv(TIME_FIELDS, times),
    }


def to_json(document: Mapping[str, Any]) -> str:
    """Return the document as a file has it."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def joint_csv(document: dict[str, Any]) -> str:
    """Return answers and times of every cell in one row."""
    rows = [
        {**time, **answer, "detail": time["detail"] or answer["detail"]}
        for answer, time in zip(
            document["answers"]["rows"], document["times"]["rows"], strict=True
        )
    ]
    return answers_csv(rows)


def markdown(document: dict[str, Any]) -> str:
    """Return a page of Markdown; tables only."""
    blocks = [f"# {document['run']['title']}", headline(document)]
    for title, sections in (
        ("Answers", answer_sections(document)),
        ("Measured", measured_sections(document)),
    ):
        blocks.append(f"## {title}")
        for section in sections:
            if section.tables:
                blocks += [f"### {section.title}", *section.text]
                blocks += map(to_markdown, section.tables)
    # Names are text: nothing of them is HTML.
    return "\n\n".join(blocks).replace("<", "\\<") + "\n"


def to_html(document: dict[str, Any], plans: Sequence[Section] = ()) -> str:
    """Return one page that needs no other file, in light and dark.

    ``plans`` are sections about the problems, which come first.
    """
    from nest.present.pages.html import page_html

    measured = (
        replace(section, text=(_MEASURED, *section.text))
        for section in measured_sections(document)
    )
    sections = (*plans, *answer_sections(document), *measured)
    title = document["run"]["title"]
    return page_html(Page(title, headline(document), sections))


def write_reports(ended: Ended) -> None:
    """Write the reports of a run into its directory."""
    for name, text in reports(ended.document).items():
        ended.folder.write(name, text.encode())
