"""Where the library is: its index, its problems, and what is known of them.

A problem is gzip of its canonical JSON; the index has its hash, which every
reader checks.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from msgspec.structs import replace

from nest.errors import (
    InvalidProblemError,
    NestError,
    UnknownInstanceError,
    UnknownNameError,
)
from nest.instances.records import CLASSES, BestKnown, BestKnownFile, Index, Instance
from nest.ir.io import decode, decode_problem, problem_hash, read_bytes
from nest.ir.problem import Problem
from nest.units import MAX_TERM
from nest.util.stored import read_stored

PACKAGE = "nest.instances"

#: What instances are by what is known of them.
STATES = ("open", "closed")

#: Order of classes in lists.
_ORDER = {item.name: number for number, item in enumerate(CLASSES)}


@cache
def library() -> Index:
    """Return the index, with what made the problems."""
    return read_stored(PACKAGE, "index", Index)


@cache
def index() -> Mapping[str, Instance]:
    """Return all instances by name, in the order of the index."""
    return {instance.name: instance for instance in library().instances}


def best_known_path() -> Path:
    """Return the file of what is known, in the package."""
    return Path(str(files(PACKAGE) / "data" / "best_known.json"))


def read_best_known(path: Path | None = None) -> dict[str, BestKnown]:
    """Return what is known by name, of the package or of another file.

    Raises ``NestError`` if the file cannot be read or is none of them.
    """
    path = best_known_path() if path is None else path
    data = read_bytes(path, NestError)
    return decode(
        data, str(path), BestKnownFile, "file of best known plans", NestError
    ).instances


@cache
def known() -> Mapping[str, BestKnown]:
    """Return what the package knows, by name."""
    return read_best_known()


def known_about(name: str, records: Mapping[str, BestKnown] | None = None) -> BestKnown:
    """Return what is known of an instance, by default to the package.

    Raises ``UnknownInstanceError`` if there is none of that name.
    """
    nothing = BestKnown(problem_hash=find(name).problem_hash)
    return (known() if records is None else records).get(name, nothing)


def problem_path(name: str) -> Path:
    """Return the file of an instance's problem."""
    return Path(str(files(PACKAGE) / "data" / "problems" / f"{name}.json.gz"))


def find(name: str) -> Instance:
    """Return the instance of that name.

    Raises ``UnknownInstanceError`` if there is none.
    """
    entry = index().get(name)
    if entry is None:
        raise UnknownInstanceError(name, index())
    return entry


def load(name: str) -> Problem:
    """Return the problem of an instance.

    Raises ``UnknownInstanceError`` if there is none of that name, and
    ``InvalidProblemError`` if its file is missing or is not the problem of the index.
    """
    instance = find(name)
    path = problem_path(name)
    data = read_bytes(path, InvalidProblemError)
    try:
        problem = decode_problem(gzip.decompress(data), str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidProblemError(
            f"{path}: expected a problem in gzip, got a damaged file "
            f"({error}); install the package anew"
        ) from error
    actual_hash = problem_hash(problem)
    if actual_hash != instance.problem_hash:
        raise InvalidProblemError(
            f"{path}: expected the problem with hash {instance.problem_hash[:12]}, got "
            f"{actual_hash[:12]}; an instance never changes: install the package anew"
        )
    return problem


def unlimited(problem: Problem) -> Problem:
    """Return a problem on devices that hold anything, else the same."""
    cluster = problem.cluster.with_memory(MAX_TERM)
    return replace(problem, cluster=cluster)


def classes(name: str) -> tuple[str, ...]:
    """Return the classes of an instance, that of its memory included."""
    class_names = [*find(name).classes]
    record = known().get(name)
    memory = record and record.memory_class
    if memory:
        class_names.append(memory)
    return tuple(sorted(class_names, key=_ORDER.__getitem__))


def class_words(text: str) -> tuple[str, ...]:
    """Return classes and states that are joined by ``,`` or ``+``."""
    return tuple(name.strip() for name in text.replace("+", ",").split(","))


def names(
    class_names: Sequence[str] = (), status: str | None = None
) -> tuple[str, ...]:
    """Return the names of the instances that are in all of some classes.

    ``open`` and ``closed`` count as classes, one of which ``status`` may ask for too.

    Raises ``UnknownNameError`` if there is no such class or status.
    """
    for name in class_names:
        if name not in _ORDER and name not in STATES:
            raise UnknownNameError("class", name, [*_ORDER, *STATES])
    if status not in (None, *STATES):
        raise UnknownNameError("status", str(status), STATES)
    return tuple(
        name
        for name in index()
        if {*class_names} <= {*classes(name), state(name)}
        and status in (None, state(name))
    )


def state(name: str) -> str:
    """Return the status of an instance; ``open`` if nothing is known."""
    record = known().get(name)
    return "open" if record is None else record.status
