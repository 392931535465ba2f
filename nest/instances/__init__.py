"""Instances: stored problems with the best known plans and proven bounds.

An instance never changes: it is the problem with the hash of the index. What
is known about it may get better, by ``bench/instance_updates.py`` alone.
``bench/instances.py`` made them, see docs/instances.md.
"""

from __future__ import annotations

from nest.instances.records import CLASSES
from nest.instances.store import STATES, class_words, names
from nest.instances.store import find as instance
from nest.instances.store import known_about as best_known
from nest.instances.store import load as problem

__all__ = [
    "CLASSES",
    "STATES",
    "best_known",
    "class_words",
    "instance",
    "names",
    "problem",
]
