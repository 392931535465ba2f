"""One model of a table: for terminals, pages, Markdown, CSV and JSON.

A table holds raw values; its columns say how a value becomes a text, and
which writers show it. Markdown, CSV and JSON are written here, terminals by
:mod:`nest.present.fitted`, pages by :mod:`nest.present.pages.html`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from nest.util.text import printable


class Writer(Enum):
    """A program part that writes tables and may leave out columns."""

    TERMINAL = "terminal"
    PAGE = "page"
    CSV = "csv"


#: A column that every writer shows.
EVERYWHERE = frozenset(Writer)


class Column(NamedTuple):
    """A column of a table."""

    #: Its name in CSV and JSON, with the unit.
    key: str
    #: Its heading for people, with the unit. Default: the key.
    name: str = ""
    #: How a value becomes a text: a format specification for numbers, for which
    #: ``None`` becomes a dash, or a function that takes every value.
    form: str | Callable[[Any], str] = ""
    #: Returns the value of a record. Default: its item or attribute ``key``.
    value: Callable[[Any], Any] | None = None
    #: Whether the texts are numbers, which are aligned to the right. A format
    #: specification implies it.
    right: bool = False
    #: The writers that show the column.
    writers: frozenset[Writer] = EVERYWHERE
    #: On a narrow terminal the column of the highest rank is hidden first, columns of
    #: rank 0 never.
    rank: int = 0
    #: Cells to which a terminal may wrap the texts; ``None`` for no wrapping.
    min_width: int | None = None
    #: Returns the style of a text on a terminal, such as ``"green"``.
    style: Callable[[str], str] | None = None

    @property
    def heading(self) -> str:
        """The heading for people."""
        return self.name or self.key

    @property
    def holds_numbers(self) -> bool:
        """Whether the texts are aligned to the right."""
        return self.right or (isinstance(self.form, str) and self.form != "")

    def value_of(self, record: Any) -> Any:
        """Return the raw value of a record."""
        if self.value is not None:
            return self.value(record)
        if isinstance(record, Mapping):
            return record[self.key]
        return getattr(record, self.key)

    def text(self, value: Any) -> str:
        """Return what people read in a cell."""
        if not isinstance(self.form, str):
            return self.form(value)
        if value is None:
            return "–"
        return value if isinstance(value, str) else format(value, self.form)


@dataclass(frozen=True)
class Table:
    """A table of raw values.

    ``rows`` has the values of every row, in the order of the columns; a row is about
    its first value. ``title`` is its caption, ``text`` what a reader must know to read
    it, ``key`` its name in JSON.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    text: str = ""
    key: str = ""

    @classmethod
    def of(
        cls, columns: Iterable[Column], records: Iterable[Any], title: str = ""
    ) -> Table:
        """Return a table with a row per record."""
        columns = tuple(columns)
        rows = (tuple(c.value_of(record) for c in columns) for record in records)
        return cls(columns, tuple(rows), title)

    @property
    def headings(self) -> list[str]:
        """The headings for people."""
        return [column.heading for column in self.columns]

    def texts(self) -> list[list[str]]:
        """Return what people read, row by row."""
        return [
            [column.text(x) for column, x in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as JSON has them: values by the columns' keys."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]

    def shown_by(self, writer: Writer) -> Table:
        """Return the table with the columns that a writer shows."""
        chosen = [
            index
            for index, column in enumerate(self.columns)
            if writer in column.writers
        ]
        return replace(
            self,
            columns=[self.columns[index] for index in chosen],
            rows=[[row[index] for index in chosen] for row in self.rows],
        )


def to_csv(table: Table) -> str:
    """Return the values of a table as CSV; an empty cell is an unknown value.

    Control characters in names are escaped, because files go to terminals.
    """
    shown = table.shown_by(Writer.CSV)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(column.key for column in shown.columns)
    for row in shown.rows:
        writer.writerow(map(_csv_cell, row))
    return buffer.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    return "" if value is None else value


def fields_csv(keys: Iterable[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Return some fields of records as CSV, a column per key."""
    return to_csv(Table.of(map(Column, keys), records))


def to_markdown(table: Table) -> str:
    """Return a table as a page of Markdown shows it."""
    shown = table.shown_by(Writer.PAGE)
    marks = ["---:" if column.holds_numbers else "---" for column in shown.columns]

    def line(texts: Iterable[str]) -> str:
        cells = (text.replace("|", "\\|") for text in texts)
        return f"| {' | '.join(cells)} |"

    return "\n".join(
        [line(shown.headings), f"|{'|'.join(marks)}|", *map(line, shown.texts())]
    )
