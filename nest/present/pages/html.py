"""A page as HTML: one file that needs no other, and no scripts.

Made for people who look, who print, who use a keyboard alone and who listen:
landmarks, one heading per part, captions and headers of tables, and the
figures of every chart in a table below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources

from nest.present.pages.document import Document
from nest.present.pages.draw import clean, pictures
from nest.present.pages.parts import (
    Chart,
    Fact,
    Part,
    Table,
    lead_of,
    parts_of,
    title_of,
)
from nest.present.table import count
from nest.util.versions import DISTRIBUTION

#: Tables with more rows are shown only when asked.
_MOST_ROWS = 32

#: Texts with more letters may take several lines of a table.
_LONG = 36

_SOME_CHARTS = "Charts that could not be drawn are tables."
_NO_CHARTS = (
    f"This page has tables instead of charts: what draws them is not "
    f"installed. Get it with: pip install '{DISTRIBUTION}[report]'"
)


def to_html(document: Document) -> str:
    """Return the page of a ``nest-page/1`` document."""
    return page(title_of(document), lead_of(document), parts_of(document))


def page(title: str, lead: str, parts: Sequence[Part]) -> str:
    """Return a page.

    Parameters
    ----------
    title, lead
        Its heading, and the sentence below it.
    parts
        What it shows.
    """
    charts = [chart for part in parts for chart in part.charts]
    drawn = pictures(charts) if charts else {}
    missing = ""
    if drawn is None:
        missing = f'<p class="warning">{_text(_NO_CHARTS)}</p>'
    elif any(chart.name not in drawn for chart in charts):
        missing = f'<p class="warning">{_text(_SOME_CHARTS)}</p>'
    links = (
        f'<li><a href="#{_text(part.key)}">{_text(part.title)}</a></li>'
        for part in parts
    )
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, '
            'initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            # Nothing is fetched, wherever the page is opened.
            '<meta http-equiv="Content-Security-Policy" content="'
            "default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{_text(title)}</title>",
            f"<style>\n{_style()}</style></head><body>",
            '<a class="skip" href="#main">Skip to the answer</a>',
            f'<header><h1>{_text(title)}</h1><p class="lead">{_text(lead)}'
            f"</p>{missing}</header>",
            f'<nav aria-label="Parts"><ul>{"".join(links)}</ul></nav>',
            '<main id="main">',
            *(_part(part, drawn or {}) for part in parts),
            "</main>",
            "</body></html>",
            "",
        ]
    )


@cache
def _style() -> str:
    place = resources.files("nest.present.pages").joinpath("style.css")
    return place.read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(clean(text))


def _part(part: Part, drawn: Mapping[str, str]) -> str:
    key = _text(part.key)
    inner = [
        *(_chart(chart, drawn.get(chart.name)) for chart in part.charts),
        *(_folded(table, part.folded) for table in part.tables),
    ]
    shown = [
        f'<section id="{key}" aria-labelledby="{key}-title">',
        f'<h2 id="{key}-title">{_text(part.title)}</h2>',
        *(f'<p class="warning">{_text(x)}</p>' for x in part.warnings),
        *(f'<p class="text">{_text(x)}</p>' for x in part.text),
        *([_facts(part.facts)] if part.facts else []),
        *([f"<pre><code>{_text(part.code)}</code></pre>"] * bool(part.code)),
        *(_closed(part, inner) if part.closed else inner),
        "</section>",
    ]
    return "\n".join(shown)


def _closed(part: Part, shown: list[str]) -> list[str]:
    """Return charts and tables that are shown only when asked."""
    summary = f"Charts and tables of {_text(part.title)}"
    return [
        f"<details><summary>{summary}</summary>",
        *shown,
        "</details>",
    ]


def _facts(facts: Iterable[Fact]) -> str:
    shown = []
    for fact in facts:
        remark = ""
        if fact.remark:
            remark = f'<dd class="remark">{_text(fact.remark)}</dd>'
        shown.append(
            f"<div><dt>{_text(fact.label)}</dt>"
            f'<dd class="value">{_text(fact.value)}</dd>{remark}</div>'
        )
    return f'<dl class="facts">{"".join(shown)}</dl>'


def _chart(chart: Chart, drawn: str | None) -> str:
    if drawn is None:
        return "" if chart.table is None else _table(chart.table)
    table = "" if chart.table is None else _folded(chart.table, True)
    name = _text(chart.name)
    return (
        f'<figure aria-labelledby="{name}-caption">'
        f'<figcaption id="{name}-caption"><b>{_text(chart.title)}</b>'
        f"<span>{_text(chart.summary)}</span></figcaption>"
        f'<div class="wide {name}" role="region" tabindex="0" '
        f'aria-label="Chart: {_text(chart.title)}">{drawn}</div>{table}'
        f"</figure>"
    )


def _folded(table: Table, folded: bool) -> str:
    if not folded and len(table.rows) <= _MOST_ROWS:
        return _table(table)
    return (
        f"<details><summary>Table: {_text(table.caption)} "
        f"({count(len(table.rows), 'row')})</summary>{_table(table)}</details>"
    )


def _table(table: Table) -> str:
    def cell(column: int, text: str, tag: str, more: str = "") -> str:
        word = ""
        if column in table.words:
            long = " long" * (len(text) > _LONG)
            word = f' class="word{long}"'
        return f"<{tag}{more}{word}>{_text(text)}</{tag}>"

    def row(texts: Sequence[str]) -> str:
        first, *others = texts
        head = cell(0, first, "th", ' scope="row"')
        return (
            f"<tr>{head}"
            + "".join(cell(i, x, "td") for i, x in enumerate(others, 1))
            + "</tr>"
        )

    head = "".join(
        cell(i, text, "th", ' scope="col"')
        for i, text in enumerate(table.headers)
    )
    body = "\n".join(row(texts) for texts in table.rows)
    return (
        f'<div class="wide" role="region" tabindex="0" '
        f'aria-label="Table: {_text(table.caption)}"><table>'
        f"<caption>{_text(table.caption)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )
