"""Tables and texts that fit the width there is.

A table that is too wide is made to fit in this order, which its columns say
as data (:class:`Column`):

1. columns without a single text go;
2. headers wrap at their words, and so do the texts of columns that may;
3. columns go, the highest rank first, and are named below the table;
4. where even the columns of rank 0 are too wide, rows become records: a line
   per field.

Nothing is ever narrower than its column's minimum width.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from nest.present.verbosity import VERBOSE
from nest.util.tables import Column, Table

if TYPE_CHECKING:
    from rich.table import Table as RichTable

#: Cells between two columns, and where it is too narrow for that.
_GAP, _LEAST_GAP = 3, 2

#: Labeled texts are not wrapped to fewer cells than that.
_LEAST_TEXT = 12

#: Where a word that is too long may be cut: after one of these.
_JOINTS = re.compile(r"[^·/|,=+_-]*[·/|,=+_-]|[^·/|,=+_-]+")


@dataclass(frozen=True)
class FittedTable:
    """A table on a terminal, which hides the columns that do not fit."""

    table: Table

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that a terminal can show."""
        return self.table.columns

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        width, rows = options.max_width, self.table.texts()
        natural = [
            max((cell_len(row[index]) for row in rows), default=0)
            for index in range(len(self.columns))
        ]
        widths = fit(self.columns, natural, width, VERBOSE.get())
        if widths is None:
            yield from self._records(rows, natural)
            return
        gap = _GAP if _total(widths.values(), _GAP) <= width else _LEAST_GAP
        yield self._grid(rows, widths, gap)
        hidden = [
            column.heading
            for index, column in enumerate(self.columns)
            if index not in widths and natural[index]
        ]
        if hidden:
            text = f"not shown for want of width: {', '.join(hidden)}"
            yield Text(f"{text}; --verbose shows all", style="dim")

    def _grid(
        self, rows: Sequence[Sequence[str]], widths: dict[int, int], gap: int
    ) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable

        grid = RichTable(
            box=box.SIMPLE_HEAD,
            header_style="bold",
            pad_edge=False,
            show_edge=False,
            collapse_padding=gap == _LEAST_GAP,
        )
        for index, width in widths.items():
            column = self.columns[index]
            grid.add_column(
                Text("\n".join(wrap(column.heading, width))),
                justify="right" if column.holds_numbers else "left",
                vertical="top",
                width=width,
                no_wrap=True,
            )

        def cell(column: Column, text: str, width: int) -> Text:
            # No text is markup.
            style = "" if column.style is None else column.style(text)
            return Text("\n".join(wrap(text, width)), style=style)

        for row in rows:
            shown = ((self.columns[i], row[i], width) for i, width in widths.items())
            grid.add_row(*(cell(*each) for each in shown))
        return grid

    def _records(
        self, rows: Sequence[Sequence[str]], natural: Sequence[int]
    ) -> Iterator[KeyLines | Text]:
        for index, row in enumerate(rows):
            if index:
                yield Text()
            cells = zip(self.columns, row, natural, strict=True)
            yield KeyLines([(x.heading, text) for x, text, width in cells if width])


def fit(
    columns: Sequence[Column], natural: Sequence[int], width: int, verbose: bool = False
) -> dict[int, int] | None:
    """Return the columns to show, with a width each.

    ``natural`` is the widest text of each column without its header. This and ``width``
    are in cells. With ``verbose`` no column may be left out. The answer is widths by
    the number of the column, ascending; ``None`` if even those that are never left out
    do not fit.
    """
    wide = {
        index: max(natural[index], cell_len(column.heading))
        for index, column in enumerate(columns)
    }
    if _total(wide.values(), _GAP) <= width:
        return wide
    widths = {
        position: min(wide[position], _least(column, natural[position]))
        for position, column in enumerate(columns)
        if natural[position]
    }
    while _total(widths.values(), _LEAST_GAP) > width:
        rank, position = max((columns[n].rank, n) for n in widths)
        if verbose or not rank:
            return None
        del widths[position]
    spare = width - _total(widths.values(), _LEAST_GAP)
    for position in sorted(widths, key=lambda n: columns[n].rank):
        more = min(spare, wide[position] - widths[position])
        widths[position] += more
        spare -= more
    return widths


def _least(column: Column, natural: int) -> int:
    """Return the fewest cells of a column: no word of its header is cut."""
    longest_word = max(map(cell_len, column.heading.split()), default=0)
    texts = natural
    if column.min_width is not None:
        texts = min(natural, column.min_width)
    return max(longest_word, texts)


def _total(widths: Iterable[int], gap: int) -> int:
    widths = list(widths)
    return sum(widths) + gap * max(0, len(widths) - 1)


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines of so many cells at most.

    Lines end between words, else after a joint such as ``·``, and where a
    part is still too long, in parts of the same length.
    """
    paragraphs = text.splitlines() or [""]
    return [line for each in paragraphs for line in _wrapped(each, width)]


def _wrapped(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for token in text.split():
        joined = f"{lines[-1]} {token}" if lines[-1] else token
        if cell_len(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for piece in _parts(token, width):
            if cell_len(lines[-1] + piece) <= width:
                lines[-1] += piece
            else:
                lines.append(piece)
    return lines


def _parts(token: str, width: int) -> Iterator[str]:
    if cell_len(token) <= width:
        yield token
        return
    for piece in _JOINTS.findall(token):
        if cell_len(piece) <= width:
            yield piece
            continue
        count = -(-cell_len(piece) // width)
        size = -(-len(piece) // count)
        # Wide characters take two cells.
        size = size if cell_len(piece) == len(piece) else max(1, width // 2)
        yield from (piece[i : i + size] for i in range(0, len(piece), size))


@dataclass(frozen=True)
class KeyLines:
    """Labeled lines, the texts one below the other.

    No line exceeds ``max_columns`` on a wide terminal or in a pipe.
    """

    rows: Sequence[tuple[str, str]]
    max_columns: int = 10**6

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        indent = max(cell_len(label) for label, _ in self.rows)
        indent += 2 * bool(indent)
        columns = min(options.max_width, self.max_columns)
        width = max(_LEAST_TEXT, columns - indent)
        yield Text(
            "\n".join(
                (label if not index else "").ljust(indent) + line
                for label, text in self.rows
                for index, line in enumerate(wrap(text, width))
            ),
            no_wrap=True,
            overflow="ignore",
        )
