"""Phases: flows that run together, and the time that they take.

``latency + max over arcs of load / bandwidth``. What is sent is in proportion
to the size ``X`` of a buffer, so that lists of phases take ``a + X·c``: a
*line*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple, Protocol

import numpy as np

from nest.topology.alphabeta import NS_PER_S, Line
from nest.topology.graph.routes import Floats, Ints


class Wires(Protocol):
    """What phases run on: all arcs of a graph, or a share of a tree."""

    def latencies_fs(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of messages, elementwise."""

    def busiest(self, sources: Ints, targets: Ints, amounts: Floats) -> float:
        """Return the largest load over bandwidth, in seconds per amount."""


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


def line_of(wires: Wires, phases: Iterable[Phase]) -> Line:
    """Return what phases take, one after the other."""
    latency_fs, slope = 0, 0.0
    for phase in phases:
        latency_fs += phase.latency_fs
        slope += busiest(wires, phase.flows)
    return Line(latency_fs, slope)


def busiest(wires: Wires, flows: Flows) -> float:
    """Return ns per byte on the arc with the most load by bandwidth."""
    if not len(flows.sources):
        return 0.0
    return wires.busiest(*flows) * NS_PER_S
