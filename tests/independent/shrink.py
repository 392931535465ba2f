"""Make a problem on which something fails small, to be worked out by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from nest.ir import Problem

_SIMPLE = (0, 1, 2, 10, 100, 1000, 10**9)


def shrink(problem: Problem, fails: Callable[[Problem], bool]) -> Problem:
    """Return a smaller problem that fails as well.

    Leaves out what it can and puts simple numbers for others, one at a time,
    until nothing helps. ``fails`` is asked about problems that can be read.
    """
    document = msgspec.json.decode(msgspec.json.encode(problem))
    again = True
    while again:
        again = False
        for smaller in smaller_documents(document):
            try:
                candidate = msgspec.json.decode(
                    msgspec.json.encode(smaller), type=Problem
                )
            except msgspec.ValidationError:
                continue
            if fails(candidate):
                document = smaller
                again = True
                break
    return msgspec.json.decode(msgspec.json.encode(document), type=Problem)


def smaller_documents(document: Any) -> Iterator[Any]:
    """Yield copies with one element left out or one number simplified."""
    for path in paths(document):
        for change in changes(document, path):
            smaller = copy.deepcopy(document)
            at = smaller
            for key in path[:-1]:
                at = at[key]
            if change is None:
                del at[path[-1]]
            else:
                at[path[-1]] = change
            yield smaller


def changes(document: Any, path: tuple[Any, ...]) -> list[Any]:
    """Return what to put at a path, ``None`` to leave it out."""
    at = document
    for key in path:
        at = at[key]
    found: list[Any] = [None]
    if isinstance(at, (int, float)) and not isinstance(at, bool):
        simpler = [*_SIMPLE, *(round(at, -places) for places in range(-1, 9))]
        found += [x for x in simpler if weight(x) < weight(at)]
    return found


def weight(number: float) -> tuple[int, float]:
    """Order numbers by their digits but zeros at the end, then by size."""
    return (len(f"{number:.17g}".rstrip("0")), number)


def paths(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all parts of a document, large parts first."""
    if isinstance(document, dict):
        keys: list[Any] = list(document)
    elif isinstance(document, list):
        keys = list(range(len(document)))
    else:
        return []
    own = [(*path, key) for key in keys]
    return own + [
        deeper for key in keys for deeper in paths(document[key], (*path, key))
    ]
