"""Read the JSON files that the package brings along."""

from __future__ import annotations

from importlib.resources import files
from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_stored(package: str, name: str, kind: type[T]) -> T:
    """Return ``data/<name>`` of a package as ``kind``, checked."""
    path = files(package) / "data" / name
    return msgspec.json.decode(path.read_bytes(), type=kind)
