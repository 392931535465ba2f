"""Phases: flows that run together, and the time that they take.

``latency + max over arcs of load / bandwidth``. What is sent is in proportion
to the size ``X`` of a buffer, so that lists of phases take ``a + X·c``: a
*line*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from nest.topology.alphabeta import NS_PER_S
from nest.topology.graph.routes import FS_PER_NS, Floats, Ints, Routes

#: Significant decimal digits of a slope. Sums of floats differ in the last
#: bits with their order; those of a slope are the same.
DIGITS = 12


class Flows(NamedTuple):
    """What ranks send to other ones, in parts of the buffer; flat arrays."""

    sources: Ints
    targets: Ints
    parts: Floats

    @classmethod
    def of(cls, sources: Ints, targets: Ints, parts: object) -> Flows:
        """Return flows between ranks in arrays of any one shape."""
        spread = np.broadcast_to(np.asarray(parts, np.float64), sources.shape)
        return cls(sources.ravel(), targets.ravel(), spread.ravel())

    @classmethod
    def joined(cls, flows: Sequence[Flows]) -> Flows:
        """Return all flows."""
        return cls(*map(np.concatenate, zip(*flows, strict=True)))


class Phase(NamedTuple):
    """Flows that run together, after a latency."""

    latency_fs: int
    flows: Flows


class Line(NamedTuple):
    """A time of ``latency_fs / 1e6 + X * ns_per_byte``, in ns."""

    latency_fs: int
    ns_per_byte: float

    def plus(self, other: Line) -> Line:
        """Return one after the other."""
        return Line(
            self.latency_fs + other.latency_fs,
            self.ns_per_byte + other.ns_per_byte,
        )

    def times(self, factor: int) -> Line:
        """Return it so many times."""
        return Line(self.latency_fs * factor, self.ns_per_byte * factor)

    def rounded(self) -> Line:
        """Return it with the slope that counts."""
        return self._replace(ns_per_byte=rounded(self.ns_per_byte))

    def time_ns(self, size_bytes: float) -> float:
        """Return the time for so many bytes."""
        return self.latency_fs / FS_PER_NS + size_bytes * self.ns_per_byte


NOTHING = Line(0, 0.0)


def rounded(value: float) -> float:
    """Return a number with :data:`DIGITS` significant decimal digits."""
    return float(f"{value:.{DIGITS}g}")


def together(groups: Iterable[Sequence[Phase]]) -> list[Phase]:
    """Return the phases of groups that run at the same time."""
    found = []
    for phases in zip_longest(*groups):
        running = [phase for phase in phases if phase is not None]
        found.append(
            Phase(
                max(phase.latency_fs for phase in running),
                Flows.joined([phase.flows for phase in running]),
            )
        )
    return found


def line_of(routes: Routes, phases: Iterable[Phase]) -> Line:
    """Return what phases take, one after the other."""
    latency_fs, slope = 0, 0.0
    for phase in phases:
        latency_fs += phase.latency_fs
        slope += busiest(routes, phase.flows)
    return Line(latency_fs, slope)


def busiest(routes: Routes, flows: Flows) -> float:
    """Return ns per byte on the arc with the most load by bandwidth."""
    if not len(flows.sources):
        return 0.0
    loads = routes.loads(*flows)
    return float((loads / routes.bandwidths).max()) * NS_PER_S


def undominated(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines that are the lowest for some size, steepest first."""
    found: list[Line] = []
    for line in sorted(lines):
        if not found or line.ns_per_byte < found[-1].ns_per_byte:
            found.append(line)
    return tuple(found)
