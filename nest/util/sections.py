"""One model of a document: sections of paragraphs, figures, charts, tables.

Every record is plain data. :mod:`nest.present.pages.html` writes a page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nest.util.tables import Table


@dataclass(frozen=True)
class Chart:
    """A chart, and what says the same without it.

    Attributes
    ----------
    name
        Of the picture, unique on a page.
    title, summary
        What it shows, and what a reader sees in it, in words.
    spec
        The chart in Vega-Lite; ``None`` where the picture is ready.
    picture
        The picture as SVG, if it is ready.
    table
        The same figures; ``None`` where a table of the section has them.
    """

    name: str
    title: str
    summary: str
    spec: dict[str, Any] | None = None
    picture: str = ""
    table: Table | None = None


@dataclass(frozen=True)
class Fact:
    """A figure that is shown large: its label, its value and a remark.

    ``kind`` is another look: ``fit`` with a word, ``chips`` (a value in parts
    between ``·``), a ``row`` of text, or ``code`` to copy.
    """

    label: str
    value: str
    remark: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a document.

    Attributes
    ----------
    key, title
        Its name in links, and its heading.
    text
        Paragraphs.
    facts, charts, tables
        What it shows, in this order.
    warnings
        Paragraphs that a reader must not overlook.
    code
        A command to copy; empty for none.
    folded
        Whether a reader opens its tables first, one by one.
    closed
        Whether a reader opens its charts and tables first, all together.
    """

    key: str
    title: str
    text: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()
    code: str = ""
    folded: bool = False
    closed: bool = False


@dataclass(frozen=True)
class Page:
    """A page: its title, a sentence below it, and its sections."""

    title: str
    lead: str
    sections: tuple[Section, ...]


def tables_of(sections: Iterable[Section]) -> list[Table]:
    """Return all tables of sections, those of charts included."""
    tables: list[Table] = []
    for section in sections:
        tables += [c.table for c in section.charts if c.table is not None]
        tables += section.tables
    return tables
