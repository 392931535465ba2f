"""Read the JSON files that the package brings along."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Any, Protocol, TypeVar

import msgspec

from nest.errors import UnknownNameError

T = TypeVar("T")


class Named(Protocol):
    """A record with a name."""

    @property
    def name(self) -> str:
        """What it goes by."""


N = TypeVar("N", bound=Named)


def read_stored(package: str, name: str, kind: type[T]) -> T:
    """Return ``data/<name>.json`` of a package as ``kind``, checked."""
    path = files(package) / "data" / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=kind)


def read_records(package: str, name: str, kind: type[T]) -> tuple[T, ...]:
    """Return the records ``<name>`` of ``data/<name>.json``, checked."""
    tables = read_stored(package, name, dict[str, Any])
    return tuple(msgspec.convert(record, kind) for record in tables[name])


def find(what: str, name: str, records: Iterable[N]) -> N:
    """Return the record of that name.

    Raises ``UnknownNameError`` if there is none; the text says ``what`` was asked for
    and lists all names.
    """
    by_name = {record.name: record for record in records}
    if name not in by_name:
        raise UnknownNameError(what, name, by_name)
    return by_name[name]
