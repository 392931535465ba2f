"""Foreign JSON files for the importers, and ways to spoil one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nest.errors import InvalidProblemError

Document = dict[str, Any]
Change = Callable[[Document], object]


def write_document(folder: Path, document: Document) -> Path:
    """Write ``chain.json``."""
    path = folder / "chain.json"
    path.write_text(json.dumps(document))
    return path


def _inside(document: Document, path: tuple[Any, ...]) -> Any:
    place: Any = document
    for key in path:
        place = place[key]
    return place


def change(*path: Any, to: Any) -> Change:
    """Return what sets a value deep inside a document."""

    def apply(document: Document) -> None:
        _inside(document, path[:-1])[path[-1]] = to

    return apply


def drop(*path: Any) -> Change:
    """Return what removes a value from deep inside a document."""

    def apply(document: Document) -> None:
        del _inside(document, path[:-1])[path[-1]]

    return apply


def check_refused(
    read: Callable[[Path], object],
    folder: Path,
    document: Document,
    spoil: Change,
    text: str,
) -> None:
    """The spoilt document gives one line with the file and ``text`` in it."""
    bad = json.loads(json.dumps(document))  # shares no parts with it
    spoil(bad)
    with pytest.raises(
        InvalidProblemError, match=rf"^\S*chain\.json: .*{text}"
    ) as caught:
        read(write_document(folder, bad))
    assert "\n" not in str(caught.value)
