"""Phases: flows that run together, and the time that they take.

``latency + max over arcs of load / bandwidth``. What is sent is in proportion to the
size ``X`` of a buffer, so that lists of phases take ``a + X·c``: a *line*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple, Protocol

import numpy as np

from nest.topology.alphabeta import NS_PER_S, Line
from nest.topology.graph.routes import Floats, Ints, Routes


class Medium(Protocol):
    """What phases run on: all links of a graph, or a share of a tree."""

    def latencies_fs(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of messages, elementwise."""

    def busiest(
        self,
        sources: Ints,
        targets: Ints,
        amounts: Floats,
        pairs: Sequence[tuple[Ints, Floats]] = (),
    ) -> float:
        """Return the largest load over bandwidth, in seconds per amount.

        What flows carry, and all ranks of rows to all others of theirs.
        """


class Flows(NamedTuple):
    """What ranks send to others, in fractions of the buffer; flat arrays."""

    sources: Ints
    targets: Ints
    fractions: Floats

    @classmethod
    def of(cls, sources: Ints, targets: Ints, fractions: float | Floats) -> Flows:
        """Return flows between ranks in arrays of any one shape."""
        spread = np.empty(sources.shape)
        spread[...] = fractions
        return cls(sources.ravel(), targets.ravel(), spread.ravel())

    @classmethod
    def joined(cls, flows: Sequence[Flows]) -> Flows:
        """Return all flows."""
        return cls(*map(np.concatenate, zip(*flows, strict=True)))


NO_FLOWS = Flows(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64))


class AllPairs(NamedTuple):
    """Groups, all ranks of which send a fraction to all others of theirs.

    ``ranks`` has a row for each group, and ``fractions`` what goes from one of its
    ranks to another.
    """

    ranks: Ints
    fractions: Floats


class Phase(NamedTuple):
    """Flows that run together, after a latency."""

    latency_fs: int
    flows: Flows = NO_FLOWS
    pairs: tuple[AllPairs, ...] = ()


def together(groups: Iterable[Sequence[Phase]]) -> list[Phase]:
    """Return the phases of groups that run at the same time."""
    merged = []
    for phases in zip_longest(*groups):
        running = [phase for phase in phases if phase is not None]
        if len(running) == 1:
            merged += running
            continue
        merged.append(
            Phase(
                max(phase.latency_fs for phase in running),
                Flows.joined([phase.flows for phase in running]),
                tuple(chain(*(phase.pairs for phase in running))),
            )
        )
    return merged


def line_of(medium: Medium, phases: Iterable[Phase]) -> Line:
    """Return what phases take, one after the other."""
    latency_fs, slope = 0, 0.0
    for phase in phases:
        latency_fs += phase.latency_fs
        slope += busiest(medium, phase.flows, phase.pairs)
    return Line(latency_fs, slope)


def lines_of(routes: Routes, runs: Sequence[Sequence[Phase]]) -> list[Line]:
    """Return what each of several lists of phases takes, as one by one."""
    phases = [(phase.flows, phase.pairs) for run in runs for phase in run]
    slopes = (s * NS_PER_S for s in routes.busiest_each(phases))
    lines = []
    for run in runs:
        # Not by sum, which rounds floats otherwise from Python 3.12 on.
        slope = 0.0
        for _ in run:
            slope += next(slopes)
        lines.append(Line(sum(phase.latency_fs for phase in run), slope))
    return lines


def busiest(medium: Medium, flows: Flows, pairs: Sequence[AllPairs] = ()) -> float:
    """Return ns per byte on the link with the most load by bandwidth."""
    if not len(flows.sources) and not pairs:
        return 0.0
    return medium.busiest(*flows, pairs) * NS_PER_S
