"""Operators of a layer, the cores they run on, and when they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from nest.ir.base import Struct

#: What an operator runs on: a tensor core, a vector core, one of each at the
#: same time, or nothing (a view).
Engine = Literal["tensor", "vector", "both", "none"]


class Cores(NamedTuple):
    """The cores of an accelerator."""

    tensor: int
    vector: int


class Operator(Struct, frozen=True, kw_only=True):
    """An operator of one pass of a layer."""

    #: Unique among the operators of a pass.
    name: str
    engine: Engine
    #: Ticks on one core of its type, of both types if it is fused; ``None`` if it
    #: cannot.
    single_ticks: int | None = None
    #: Ticks on the whole chip, alone; ``None`` if it cannot.
    whole_ticks: int | None = None
    #: Ticks for which it has the memory channel to itself if it runs so, no more than
    #: it takes.
    single_channel_ticks: int = 0
    whole_channel_ticks: int = 0
    #: Names of the operators whose results it reads.
    after: tuple[str, ...] = ()


class Placed(NamedTuple):
    """The time and the cores of an operator.

    It runs in ``[start, end)``. Its cores have numbers, ``None`` where it needs none,
    or has the whole chip.
    """

    start_tick: int
    end_tick: int
    whole: bool = False
    tensor_core: int | None = None
    vector_core: int | None = None


class PartOf(NamedTuple):
    """A part of a pass: all before it is done, nothing after it has begun."""

    operators: tuple[str, ...]
    #: ``[start, end)``; operators may end earlier, and the memory channel later.
    start_tick: int
    end_tick: int
    lower_bound_ticks: int
    #: Ticks of the memory channel that its operators need.
    channel_ticks: int
    #: What proves it: ``"single"`` (it has one operator), ``"bound"`` (a schedule as
    #: short as a bound), an engine's keyword, or ``"none"``.
    proof: str


class Schedule(NamedTuple):
    """A schedule of one pass.

    ``operators`` are in the order they were given, ``parts`` run one after the other.
    """

    makespan_ticks: int
    lower_bound_ticks: int
    operators: Mapping[str, Placed]
    parts: tuple[PartOf, ...]

    @property
    def optimal(self) -> bool:
        """Whether it is proven to be the shortest."""
        return self.makespan_ticks == self.lower_bound_ticks
