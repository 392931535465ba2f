"""What algorithms of collectives take on a group's share of a tree.

A device has a level's bandwidth while all devices talk, so what ranks of a
group have in a member of the level (a device, or a unit of the level below)
is theirs alone: as often the bandwidth as they are. On that a group is priced
as on a graph of its own, see docs/cost-model.md, under "Network".

Sources: Thakur, Rabenseifner and Gropp, *Optimization of Collective Communication
Operations in MPICH*, IJHPCA 19(1), 2005; Chan, Heimlich, Purkayastha and van de Geijn,
*Collective communication: theory, practice, and experience*, CCPE 19(13), 2007.
All-reduces that are not two halves come from :mod:`nest.topology.graph.algorithms`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nest.ir.graph import CollectiveKind, check_collective
from nest.topology.alphabeta import NS_PER_S, Line

if TYPE_CHECKING:  # loads NumPy
    from nest.topology.graph.routes import Floats, Ints


class Spread(NamedTuple):
    """How a group is spread over the members of a level.

    ``members`` of these hold ranks of it, between ``fewest`` and ``most`` each.
    ``meeting`` is the fewest of them, but 2, that are in one unit of the level; 1 if no
    two are.
    """

    members: int
    fewest: int
    most: int
    meeting: int


class Step(NamedTuple):
    """A level as a group sees it.

    ``spread`` says where the group is, ``latency_fs`` is that of a message that climbs
    so far, and a rank has ``port`` bytes/s in and out of its member. ``pair`` is what
    it has of the links between two members where pairs are joined by links of their
    own; ``None`` behind a switch.
    """

    spread: Spread
    latency_fs: int
    port: float
    pair: float | None = None


class Share(NamedTuple):
    """What a group of ``size`` ranks has of a tree, level by level."""

    size: int
    steps: tuple[Step, ...]

    @property
    def even(self) -> bool:
        """Whether all members of a level hold as many ranks."""
        return all(step.spread.fewest == step.spread.most for step in self.steps)

    @property
    def nested(self) -> bool:
        """Whether members meet on more than one level."""
        return sum(step.spread.meeting > 1 for step in self.steps) > 1

    @property
    def pairs(self) -> bool:
        """Whether any links between pairs of members serve it."""
        return any(step.pair is not None for step in self.steps)

    @property
    def slowest(self) -> float:
        """What a rank has of the scarcest that one message may take."""
        return min(itertools.chain.from_iterable(map(_lanes, self.steps)))

    def hops(self) -> Iterator[tuple[Step, int]]:
        """Yield how many hops of a ring have their end at each level.

        It visits all members of a unit before it leaves it, so it leaves
        each member once.
        """
        for step, above in itertools.zip_longest(self.steps, self.steps[1:]):
            beyond = above.spread.members if above else 0
            yield step, step.spread.members - beyond

    def peers(self) -> Iterator[tuple[Step, int]]:
        """Yield how many of a rank's peers are at each level, at most."""
        for step, above in itertools.zip_longest(self.steps, self.steps[1:]):
            inside = above.spread.fewest if above else self.size
            yield step, inside - step.spread.fewest

    def rings(self) -> dict[str, Line]:
        """Return halves on rings, by name.

        Where all that leaves a member takes one way, all rings are alike.
        Between members joined in pairs, the opposite ring takes other links,
        but where two members are the whole ring. Of rotated rings of an even
        group each leaves another one out inside the units of level 0.
        """
        whole = [1.0] * len(self.steps)
        lines = {"ring": self._ring(whole)}
        if not self.pairs:
            return lines
        two_ways = [0.5] * len(self.steps)
        if self.steps[-1].spread.members == 2:
            two_ways[-1] = 1.0
        lines["two-way-ring"] = self._ring(two_ways)
        if self.even and len(self.steps) > 1:
            g = self.steps[0].spread.meeting
            lines["rotated-rings"] = self._ring([(g - 1) / g, *whole[1:]])
        return lines

    def _ring(self, pair_parts: Sequence[float]) -> Line:
        """Return a half on rings that put such parts on links of pairs."""
        hops = [(step.latency_fs, count) for step, count in self.hops()]
        slope = 0.0
        for step, fraction in zip(self.steps, pair_parts, strict=True):
            load = NS_PER_S / step.spread.fewest
            slope = max(slope, load / step.port)
            if step.pair is not None:
                slope = max(slope, fraction * load / step.pair)
        return Line(
            sum(latency_fs * count for latency_fs, count in hops)
            - min(latency_fs for latency_fs, count in hops if count),
            (self.size - 1) / self.size * slope,
        )

    def direct(self) -> Line:
        """Return what it takes that every rank sends ``X/n`` to each other."""
        n = self.size
        slope = 0.0
        for step in self.steps:
            beyond = (n - step.spread.fewest) / n
            slope = max(slope, beyond * NS_PER_S / step.port)
            if step.pair is not None:
                slope = max(slope, step.spread.most / n * NS_PER_S / step.pair)
        return Line(sum(count * step.latency_fs for step, count in self.peers()), slope)

    def flat(self, messages: int, volume: float) -> Line:
        """Return messages of all ranks at once, all as far as they can go."""
        return Line(
            messages * self.steps[-1].latency_fs, volume * NS_PER_S / self.slowest
        )

    def halving(self, *, far: bool) -> Line:
        """Return a half by recursive halving: ranks are a power of two.

        Level by level; the nearest, or the farthest, first exchange the most.
        """
        n = self.size
        line = Line(0, 0.0)
        ports: list[float] = []
        for step in self.steps:
            ports.append(step.port)
            g, inside = step.spread.meeting, step.spread.fewest
            before = n // (inside * g) if far else inside
            volume = (g - 1) / g / before
            line = line.plus(
                Line(
                    (g.bit_length() - 1) * step.latency_fs,
                    volume * NS_PER_S / min(*ports, *_lanes(step)),
                )
            )
        return line

    def latencies_fs(self, sources: Ints, targets: Ints) -> Ints:
        """Return the latencies of messages between ranks of an even group."""
        import numpy as np

        latencies_fs = [0, *(step.latency_fs for step in self.steps)]
        longest = max(latencies_fs) * 4 * self.size.bit_length()
        table = np.array(latencies_fs, np.int64 if longest < 2**63 else object)
        level = sum(
            (sources // r != targets // r).astype(np.int64)
            for r in (step.spread.fewest for step in self.steps)
        )
        latencies: Ints = table[level]
        return latencies

    def busiest(
        self,
        sources: Ints,
        targets: Ints,
        amounts: Floats,
        pairs: Sequence[tuple[Ints, Floats]] = (),
    ) -> float:
        """Return the largest load over bandwidth of an even group, in s.

        Messages between all of them are priced without phases.
        """
        import numpy as np

        assert not pairs

        longest = 0.0
        apart = np.ones(sources.shape, np.bool_)
        for step, above in itertools.zip_longest(self.steps, self.steps[1:]):
            r = step.spread.fewest
            ends = (sources // r, targets // r)
            apart = ends[0] != ends[1]
            for end in ends:
                load = np.bincount(end[apart], amounts[apart], 1).max()
                longest = max(longest, float(load) / (r * step.port))
            if step.pair is not None:
                unit = above.spread.fewest if above else self.size
                meet = apart & (sources // unit == targets // unit)
                pairs = ends[0] * step.spread.members + ends[1]
                _, pair_index = np.unique(pairs[meet], return_inverse=True)
                load = np.bincount(pair_index, amounts[meet], 1).max()
                longest = max(longest, float(load) / (r * step.pair))
        return longest


def _lanes(step: Step) -> list[float]:
    """Return what one message of a rank may take at a level, in bytes/s."""
    return [step.port] if step.pair is None else [step.port, step.pair]


def offered(share: Share, kind: CollectiveKind) -> dict[str, Line]:
    """Return what the algorithms take that run on all ranks at once, by name.

    Slopes are not rounded.
    """
    check_collective(kind)
    n = share.size
    floor = n.bit_length() - 1
    power_of_two = n == 1 << floor
    lines = {"direct": share.direct()}
    if kind == "all-to-all":
        if power_of_two:
            lines["bruck"] = share.flat(floor, floor / 2)
        return lines
    lines |= share.rings()
    if power_of_two:
        lines |= _halvings(share)
    if kind == "all-gather" and not power_of_two:
        lines["bruck"] = share.flat(floor + 1, (n - 1) / n)
    if kind != "all-reduce":
        return lines
    lines = {name: half.times(2) for name, half in lines.items()}
    if share.even:
        lines |= _whole(share)
    elif not power_of_two:
        p = 1 << floor
        volume = 2 * (p - 1) / p + 2
        lines["halving-doubling"] = share.flat(2 * floor + 2, volume)
    return lines


def _halvings(share: Share) -> dict[str, Line]:
    """Return halves of a power of two of ranks by exchanges with partners.

    To begin with the farthest is faster only where the nearest exchange over
    links between pairs: a way up is no faster than what it begins with.
    """
    if not share.even:
        n = share.size
        half = share.flat(n.bit_length() - 1, (n - 1) / n)
        return {"halving-doubling": half}
    lines = {"halving-doubling": share.halving(far=False)}
    if share.pairs and len(share.steps) > 1:
        lines["halving-doubling-far"] = share.halving(far=True)
    return lines


def _whole(share: Share) -> dict[str, Line]:
    """Return all-reduces that are not two halves.

    On one switch, two trees take as many messages as halving and doubling,
    and at least as many bytes.
    """
    n = share.size
    if len(share.steps) == 1 and not share.pairs and n & (n - 1) == 0:
        return {}
    from nest.topology.graph.algorithms import whole_reductions

    return whole_reductions(share, n)
