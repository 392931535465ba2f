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

from nest.analysis.page_facts import Document
from nest.present.pages.draw import clean, pictures
from nest.present.pages.sections import page_of
from nest.present.table import count
from nest.util.sections import Chart, Fact, Page, Section
from nest.util.tables import Column, Table, Writer
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
    return page_html(page_of(document))


def page_html(page: Page) -> str:
    """Return a page as HTML."""
    title, sections = _text(page.title), page.sections
    charts = [chart for section in sections for chart in section.charts]
    drawn = pictures(charts) if charts else {}
    missing = ""
    if drawn is None:
        missing = f'<p class="warning">{_text(_NO_CHARTS)}</p>'
    elif any(chart.name not in drawn for chart in charts):
        missing = f'<p class="warning">{_text(_SOME_CHARTS)}</p>'
    links = (
        f'<li><a href="#{_text(x.key)}">{_text(x.title)}</a></li>' for x in sections
    )
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            # Nothing is fetched, wherever the page is opened.
            '<meta http-equiv="Content-Security-Policy" content="'
            "default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{title}</title>",
            f"<style>\n{_style()}</style></head><body>",
            '<a class="skip" href="#main">Skip to the answer</a>',
            f'<header><h1>{title}</h1><p class="lead">{_text(page.lead)}'
            f"</p>{missing}</header>",
            f'<nav aria-label="Parts"><ul>{"".join(links)}</ul></nav>',
            '<main id="main">',
            *(_section(section, drawn or {}) for section in sections),
            "</main>",
            "</body></html>",
            "",
        ]
    )


@cache
def _style() -> str:
    path = resources.files("nest.present.pages").joinpath("style.css")
    return path.read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(clean(text))


def _section(section: Section, drawn: Mapping[str, str]) -> str:
    key, title = _text(section.key), _text(section.title)
    inner = [
        *(_chart(chart, drawn.get(chart.name)) for chart in section.charts),
        *(_folded(table, section.folded) for table in section.tables),
    ]
    if section.closed:
        summary = f"Charts and tables of {title}"
        inner = [f"<details><summary>{summary}</summary>", *inner, "</details>"]
    code = f"<pre><code>{_text(section.code)}</code></pre>"
    return "\n".join(
        [
            f'<section id="{key}" aria-labelledby="{key}-title">',
            f'<h2 id="{key}-title">{title}</h2>',
            *(f'<p class="warning">{_text(x)}</p>' for x in section.warnings),
            *(f'<p class="text">{_text(x)}</p>' for x in section.text),
            *([_facts(section.facts)] if section.facts else []),
            *([code] if section.code else []),
            *inner,
            "</section>",
        ]
    )


def _facts(facts: Iterable[Fact]) -> str:
    shown = []
    for fact in facts:
        value, css = _text(fact.value), fact.kind or "card"
        if fact.kind == "chips":
            value = " ".join(f"<span>{degree}</span>" for degree in value.split(" · "))
        elif fact.kind == "code":
            value = f"<pre><code>{value}</code></pre>"
        remark = ""
        if fact.remark:
            remark = f'<dd class="remark">{_text(fact.remark)}</dd>'
        shown.append(
            f'<div class="{css}"><dt>{_text(fact.label)}</dt>'
            f'<dd class="value">{value}</dd>{remark}</div>'
        )
    return f'<dl class="facts">{"".join(shown)}</dl>'


def _chart(chart: Chart, drawn: str | None) -> str:
    if drawn is None:
        return "" if chart.table is None else _table(chart.table)
    table = "" if chart.table is None else _folded(chart.table, True)
    name, summary = _text(chart.name), ""
    if chart.summary:
        summary = f"<span>{_text(chart.summary)}</span>"
    return (
        f'<figure aria-labelledby="{name}-caption">'
        f'<figcaption id="{name}-caption"><b>{_text(chart.title)}</b>'
        f"{summary}</figcaption>"
        f'<div class="wide {name}" role="region" tabindex="0" '
        f'aria-label="Chart: {_text(chart.title)}">{drawn}</div>{table}'
        f"</figure>"
    )


def _folded(table: Table, folded: bool) -> str:
    if not folded and len(table.rows) <= _MOST_ROWS:
        return _table(table)
    return (
        f"<details><summary>Table: {_text(table.title)} "
        f"({count(len(table.rows), 'row')})</summary>{_table(table)}</details>"
    )


def _table(table: Table) -> str:
    table = table.shown_by(Writer.PAGE)

    def cell(column: Column, text: str, tag: str, more: str = "") -> str:
        css = ""
        if not column.holds_numbers:
            long = " long" * (len(text) > _LONG)
            css = f' class="word{long}"'
        return f"<{tag}{more}{css}>{_text(text)}</{tag}>"

    def row(texts: Sequence[str]) -> str:
        first, *others = zip(table.columns, texts, strict=True)
        head = cell(*first, "th", ' scope="row"')
        return f"<tr>{head}{''.join(cell(*each, 'td') for each in others)}</tr>"

    head = "".join(
        cell(column, column.heading, "th", ' scope="col"') for column in table.columns
    )
    body = "\n".join(row(texts) for texts in table.texts())
    title = _text(table.title)
    return (
        f'<div class="wide" role="region" tabindex="0" '
        f'aria-label="Table: {title}"><table>'
        f"<caption>{title}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )
