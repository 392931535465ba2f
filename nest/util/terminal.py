"""How wide a terminal is."""

from __future__ import annotations

import os
from typing import IO

from nest.util.text import whole_number

#: In a pipe a table is as wide as it needs to be, so that a row is a line,
#: unless COLUMNS says how wide it may be.
PIPE_COLUMNS = 100_000

#: Columns of a terminal that does not say how many it has.
_USUAL_COLUMNS = 80


def said_columns() -> int | None:
    """Return what COLUMNS says; ``None`` if that is no width."""
    columns = whole_number(os.environ.get("COLUMNS", ""))
    return columns if columns and columns <= PIPE_COLUMNS else None


def columns_of(file: IO[str]) -> int:
    """Return how many columns a terminal has: as COLUMNS says, or it does."""
    columns = said_columns()
    if columns is not None:
        return columns
    try:
        return os.get_terminal_size(file.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):
        return _USUAL_COLUMNS
