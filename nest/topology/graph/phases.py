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

    def reversed(self) -> Flows:
        """Return the flows the other way."""
        return Flows(self.targets, self.sources, self.fractions)

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


class ScheduleTime(NamedTuple):
    """What phases take, one after the other."""

    line: Line
    #: What they put on every link, in ns per byte of the buffer.
    loads: Floats

    def times(self, factor: int) -> ScheduleTime:
        """Return it so many times."""
        return ScheduleTime(self.line.times(factor), self.loads * factor)

    def pipelined(self, *others: ScheduleTime) -> Line:
        """Return what all phases take at once, those of other runs too.

        Parts of the buffer follow each other so closely that only the first one waits.
        """
        runs = (self, *others)
        loads = np.sum([run.loads for run in runs], axis=0)
        latency_fs = sum(run.line.latency_fs for run in runs)
        return Line(latency_fs, float(loads.max(initial=0)))


def times_of(
    routes: Routes, schedules: Sequence[Sequence[Phase]]
) -> list[ScheduleTime]:
    """Return what each of several lists of phases takes."""
    phases = [(phase.flows, phase.pairs) for run in schedules for phase in run]
    loads_each = routes.loads_each(phases)
    runs = []
    for schedule in schedules:
        slope, loads = 0.0, np.zeros(len(routes.ways.bandwidths))
        for _ in schedule:
            load = next(loads_each) * NS_PER_S
            slope += float(load.max(initial=0))
            loads += load
        latency_fs = sum(phase.latency_fs for phase in schedule)
        runs.append(ScheduleTime(Line(latency_fs, slope), loads))
    return runs


def busiest(medium: Medium, flows: Flows, pairs: Sequence[AllPairs] = ()) -> float:
    """Return ns per byte on the link with the most load by bandwidth."""
    if not len(flows.sources) and not pairs:
        return 0.0
    return medium.busiest(*flows, pairs) * NS_PER_S
