"""How records show themselves in Python: short texts, tables, data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nest.errors import NestError
from nest.util.time_scale import TimeScale

if TYPE_CHECKING:
    import pandas as pd

#: Rows that a table in a notebook has at most.
MOST_ROWS = 40

#: A row of a table, by column; units are in the names of columns.
Row = dict[str, Any]


class Tabular:
    """A record with a table: a plan its stages, a comparison its solvers."""

    __slots__ = ()

    def to_rows(self) -> list[Row]:
        """Return the rows of the table, each by column."""
        raise NotImplementedError(type(self).__name__)

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a data frame, a row each.

        Raises ``NestError`` if pandas is not installed.
        """
        return frame(self.to_rows())

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return html_table(repr(self), self.to_rows())


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a data frame of rows.

    Raises ``NestError`` if pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise NestError(
            "to_pandas: expected pandas to be installed, got no such "
            "package; install it with: pip install pandas, or use to_rows()"
        ) from None
    return pd.DataFrame(list(rows))


def html_table(caption: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table in HTML, without styles; long ones are cut and say so."""
    from html import escape

    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in names) + "</tr>"
        for row in rows[:MOST_ROWS]
    )
    more = len(rows) - MOST_ROWS
    if more > 0:
        body += f'<tr><td colspan="{len(names)}">{more} more rows</td></tr>'
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<table><caption>{escape(caption)}</caption>{table if rows else ''}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    from html import escape

    return escape(str(value))


def ns_text(time_ns: float | None) -> str:
    """Return a time with its unit for a short text, in six digits."""
    if time_ns is None:
        return "none"
    return TimeScale.fitting(time_ns)(time_ns)
