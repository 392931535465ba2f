"""Instances: stored problems with the best known plans and proven bounds.

An instance never changes: it is the problem with the hash of the index. What
is known about it may get better, by :mod:`nest.instances.update` alone.
``bench/instances.py`` made them, see docs/instances.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nest.errors import UnknownNameError
from nest.instances import store
from nest.instances.classes import CLASSES
from nest.instances.records import Instance, Known

if TYPE_CHECKING:
    from nest.ir.problem import Problem

__all__ = [
    "CLASSES",
    "Instance",
    "Known",
    "best_known",
    "instance",
    "names",
    "problem",
]


def names(
    classes: Sequence[str] = (), status: str | None = None
) -> tuple[str, ...]:
    """Return the names of the instances that are in all of some classes.

    Parameters
    ----------
    classes
        Names of :data:`CLASSES`; none asks for all instances.
    status
        ``open`` or ``closed``; ``None`` asks for both.

    Raises
    ------
    UnknownNameError
        If there is no such class or status.
    """
    known = [item.name for item in CLASSES]
    for name in classes:
        if name not in known:
            raise UnknownNameError("class", name, known)
    if status not in (None, "open", "closed"):
        raise UnknownNameError("status", str(status), ("open", "closed"))
    return store.names(classes, status)


def instance(name: str) -> Instance:
    """Return what the index says of an instance.

    Raises
    ------
    UnknownInstanceError
        If there is none of that name.
    """
    return store.find(name)


def problem(name: str) -> Problem:
    """Return the problem of an instance.

    Raises
    ------
    UnknownInstanceError
        If there is none of that name.
    InvalidProblemError
        If its file is missing or is not the problem of the index.
    """
    return store.load(name)


def best_known(name: str) -> Known:
    """Return what is known of an instance.

    Raises
    ------
    UnknownInstanceError
        If there is none of that name.
    """
    found = store.find(name)
    nothing = Known(problem_hash=found.problem_hash)
    return store.known().get(name, nothing)
