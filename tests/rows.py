"""Tables of tests, from ``tests/data/rows``: inputs and what comes of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

DATA = Path(__file__).parent / "data" / "rows"


@cache
def _tables(name: str) -> dict[str, list[list[Any]]]:
    text = (DATA / f"{name}.yaml").read_text(encoding="utf-8")
    tables: dict[str, list[list[Any]]] = yaml.safe_load(text)
    return tables


def rows(name: str, table: str) -> list[list[Any]]:
    """Return a table of a file: inputs, then a value or a part of an error."""
    return _tables(name)[table]


def named_rows(name: str, table: str) -> list[Any]:
    """Return a table of a file whose first column names the rows."""
    return [pytest.param(*values, id=row) for row, *values in rows(name, table)]
