"""How wide a terminal is."""

from __future__ import annotations

import os
from typing import IO

from nest.util.text import whole_number

#: The widest output that COLUMNS can ask for.
_MAX_COLUMNS = 100_000

#: Columns of a pipe, a file, and a terminal that does not say how many it has.
USUAL_COLUMNS = 80

#: Messages are not wrapped to fewer columns than that.
_LEAST_COLUMNS = 20


def columns_of(file: IO[str]) -> int:
    """Return how wide output is: as COLUMNS says, or as the terminal is."""
    columns = whole_number(os.environ.get("COLUMNS", ""))
    if columns and columns <= _MAX_COLUMNS:
        return columns
    try:
        return os.get_terminal_size(file.fileno()).columns or USUAL_COLUMNS
    except (OSError, ValueError):
        return USUAL_COLUMNS


def in_columns(text: str, file: IO[str]) -> str:
    """Return a message in lines that a file shows whole.

    Lines that are too long end between words, and go on with two blanks.
    """
    width = columns_of(file)
    if max(map(len, text.splitlines()), default=0) <= width:
        return text
    from textwrap import fill

    return "\n".join(
        fill(
            line,
            max(width, _LEAST_COLUMNS),
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )
