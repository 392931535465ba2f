"""How much a command prints while it runs."""

from __future__ import annotations

from contextvars import ContextVar

#: Whether standard error is for errors only.
QUIET: ContextVar[bool] = ContextVar("quiet", default=False)

#: Whether everything is shown: every column, and every row by itself.
VERBOSE: ContextVar[bool] = ContextVar("verbose", default=False)
