"""Read the package's own JSON files."""

from __future__ import annotations

from importlib.resources import files
from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_data(name: str, kind: type[T]) -> T:
    """Return ``nest/hardware/data/<name>`` as ``kind``, checked."""
    path = files("nest.hardware") / "data" / name
    return msgspec.json.decode(path.read_bytes(), type=kind)
