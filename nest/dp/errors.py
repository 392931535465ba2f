"""What the searches of the dynamic program raise among themselves."""

from __future__ import annotations


class OutOfTimeError(Exception):
    """The deadline passed inside a search; never leaves the solver."""
