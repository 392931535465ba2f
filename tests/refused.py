"""Inputs that are refused, with their errors, from ``tests/data/refused``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data" / "refused"


@cache
def _tables(name: str) -> dict[str, list[list[Any]]]:
    text = (DATA / f"{name}.yaml").read_text(encoding="utf-8")
    tables: dict[str, list[list[Any]]] = yaml.safe_load(text)
    return tables


def refused(name: str, table: str) -> list[list[Any]]:
    """Return the rows of a table: inputs, then a part of the error."""
    return _tables(name)[table]
