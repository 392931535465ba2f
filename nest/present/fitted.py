"""Tables and texts that fit the width there is.

A table that is too wide is made to fit in this order, which its columns say
as data (:class:`Column`):

1. columns without a single text go;
2. headers wrap at their words, and so do the texts of columns that may;
3. columns go, the highest rank first, and are named below the table;
4. where even the columns of rank 0 are too wide, rows become records: a line
   per field.

Nothing is ever narrower than its column's least width.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from nest.present.verbosity import VERBOSE

#: Cells between two columns, and where it is too narrow for that.
_GAP, _LEAST_GAP = 3, 2

#: Labelled texts are not wrapped to fewer cells than that.
_LEAST_TEXT = 12

#: Where a word that is too long may be cut: after one of these.
_JOINTS = re.compile(r"[^·/|,=+_-]*[·/|,=+_-]|[^·/|,=+_-]+")


class Column(NamedTuple):
    """A column of a table.

    Attributes
    ----------
    header
        Its heading.
    rank
        When it is left out: the highest rank goes first, rank 0 never.
    least
        Cells that its texts may be wrapped to; ``None`` if they may not.
    right
        Whether its texts end in one line.
    """

    header: str
    rank: int = 0
    least: int | None = None
    right: bool = False


@dataclass(frozen=True)
class FittedTable:
    """A table that leaves out what does not fit, see the module.

    Attributes
    ----------
    columns
        What there is to show.
    rows
        A text per column each.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Text]] = field(repr=False)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        width = options.max_width
        natural = [
            max((cell_len(cell.plain) for cell in cells), default=0)
            for cells in self._cells()
        ]
        widths = fit(self.columns, natural, width, VERBOSE.get())
        if widths is None:
            yield from self._records(natural)
            return
        gap = _GAP if _total(widths.values(), _GAP) <= width else _LEAST_GAP
        yield self._table(widths, gap)
        left = [
            column.header
            for number, column in enumerate(self.columns)
            if number not in widths and natural[number]
        ]
        if left:
            text = f"not shown for want of width: {', '.join(left)}"
            yield Text(f"{text}; --verbose shows all", style="dim")

    def _cells(self) -> list[list[Text]]:
        numbers = range(len(self.columns))
        return [[row[number] for row in self.rows] for number in numbers]

    def _table(self, widths: dict[int, int], gap: int) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            header_style="bold",
            pad_edge=False,
            show_edge=False,
            collapse_padding=gap == _LEAST_GAP,
        )
        for number, width in widths.items():
            column = self.columns[number]
            table.add_column(
                Text("\n".join(wrap(column.header, width))),
                justify="right" if column.right else "left",
                vertical="top",
                width=width,
                no_wrap=True,
            )
        for row in self.rows:
            table.add_row(
                *(
                    Text(
                        "\n".join(wrap(row[number].plain, width)),
                        style=row[number].style,
                    )
                    for number, width in widths.items()
                )
            )
        return table

    def _records(self, natural: Sequence[int]) -> Iterator[KeyLines | Text]:
        for number, row in enumerate(self.rows):
            if number:
                yield Text()
            yield KeyLines(
                [
                    (column.header, cell.plain)
                    for column, cell, any_text in zip(
                        self.columns, row, natural, strict=True
                    )
                    if any_text
                ]
            )


def fit(
    columns: Sequence[Column],
    natural: Sequence[int],
    width: int,
    verbose: bool = False,
) -> dict[int, int] | None:
    """Return the columns to show, with a width each.

    Parameters
    ----------
    columns
        All of them.
    natural
        The widest text of each, without its header, in cells.
    width
        Cells there are.
    verbose
        Whether none may be left out.

    Returns
    -------
    Widths by the number of the column, ascending; ``None`` if even those that
    are never left out do not fit.
    """
    wide = {
        number: max(natural[number], cell_len(column.header))
        for number, column in enumerate(columns)
    }
    if _total(wide.values(), _GAP) <= width:
        return wide
    least = {
        number: min(wide[number], _least(column, natural[number]))
        for number, column in enumerate(columns)
        if natural[number]
    }
    while _total(least.values(), _LEAST_GAP) > width:
        rank, number = max((columns[n].rank, n) for n in least)
        if verbose or not rank:
            return None
        del least[number]
    spare = width - _total(least.values(), _LEAST_GAP)
    for number in sorted(least, key=lambda n: columns[n].rank):
        more = min(spare, wide[number] - least[number])
        least[number] += more
        spare -= more
    return least


def _least(column: Column, natural: int) -> int:
    """Return the fewest cells of a column: no word of its header is cut."""
    words = max(map(cell_len, column.header.split()), default=0)
    texts = natural if column.least is None else min(natural, column.least)
    return max(words, texts)


def _total(widths: Iterable[int], gap: int) -> int:
    widths = list(widths)
    return sum(widths) + gap * max(0, len(widths) - 1)


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines of so many cells at most.

    Lines end between words, else after a joint such as ``·``, and where a
    part is still too long, in parts of the same length.
    """
    lines: list[str] = []
    for paragraph in text.splitlines():
        lines += _wrapped(paragraph, width)
    return lines or [""]


def _wrapped(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for part in _parts(word, width):
            if cell_len(lines[-1] + part) <= width:
                lines[-1] += part
            else:
                lines.append(part)
    return lines


def _parts(word: str, width: int) -> Iterator[str]:
    if cell_len(word) <= width:
        yield word
        return
    for part in _JOINTS.findall(word):
        if cell_len(part) <= width:
            yield part
            continue
        count = -(-cell_len(part) // width)
        size = -(-len(part) // count)
        # Wide characters take two cells.
        size = size if cell_len(part) == len(part) else max(1, width // 2)
        yield from (part[i : i + size] for i in range(0, len(part), size))


@dataclass(frozen=True)
class KeyLines:
    """Labelled lines, the texts one below the other.

    Attributes
    ----------
    rows
        Label and text.
    """

    rows: Sequence[tuple[str, str]]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        indent = max(cell_len(label) for label, _ in self.rows) + 2
        width = max(_LEAST_TEXT, options.max_width - indent)
        yield Text(
            "\n".join(
                (label if not number else "").ljust(indent) + line
                for label, text in self.rows
                for number, line in enumerate(wrap(text, width))
            ),
            no_wrap=True,
            overflow="ignore",
        )
