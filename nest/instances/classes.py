"""Classes of instances: what they are called, and what they say.

They are stored in ``data/classes.json``. ``bench/instance_classes.py``
computes which of them a problem is in; those about memory need a proof and
are in :mod:`nest.instances.records`.
"""

from __future__ import annotations

from nest.ir.base import Struct
from nest.util.stored import read_records


class Class(Struct, frozen=True, kw_only=True):
    """A class: what it is called, what it is about, and what it says."""

    name: str
    dimension: str
    meaning: str


#: All classes, in the order of lists.
CLASSES = read_records("nest.instances", "classes", Class)

#: Classes that follow from what is known, not from the problem alone.
MEMORY = tuple(item.name for item in CLASSES if item.dimension == "memory")
