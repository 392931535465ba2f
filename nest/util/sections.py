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
    """A chart, and what says the same without it."""

    #: Of the picture, unique on a page.
    name: str
    #: What it shows, and what a reader sees in it, in words.
    title: str
    summary: str
    #: The chart in Vega-Lite; ``None`` where the picture is ready.
    spec: dict[str, Any] | None = None
    #: The picture as SVG, if it is ready.
    picture: str = ""
    #: The same figures; ``None`` where a table of the section has them.
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
    """A section of a document."""

    #: Its name in links, and its heading.
    key: str
    title: str
    #: Paragraphs.
    text: tuple[str, ...] = ()
    #: What it shows, in this order.
    facts: tuple[Fact, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    #: Paragraphs that a reader must not overlook.
    warnings: tuple[str, ...] = ()
    #: A command to copy; empty for none.
    code: str = ""
    #: Whether a reader opens its tables first, one by one.
    folded: bool = False
    #: Whether a reader opens its charts and tables first, all together.
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
