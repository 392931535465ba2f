"""Schedules of collectives, message by message.

Who sends something has it; at the end every rank has what it should, and each part of a
sum once. What a rank sends to another one is what the algorithm is priced for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np
import pytest

from nest.topology.graph import algorithms
from nest.topology.graph.algorithms import Batch, Units
from nest.topology.graph.phases import Phase
from nest.topology.graph.routes import Routes
from tests.graphs import make_graph

#: Of each message its ends, and what it carries: owners and parts of their shards.
Step = dict[tuple[int, int], set[tuple[int, int]]]

SIZES = (2, 3, 4, 5, 6, 7, 8, 12)
#: Units of ranks in order, and their slots.
UNEVEN = (
    ("aab", "010"),
    ("aabbb", "01012"),
    ("aaaabb", "012301"),
    ("aabbbb", "230123"),
    ("aaabbc", "345010"),
    ("aaaaabbb", "34567012"),
)


def star(n: int) -> Routes:
    names = [str(i) for i in range(n)]
    return Routes(make_graph(names, [(name, "s", 1, 1e9) for name in names]))


def everyone(n: int) -> Batch:
    return Batch(np.arange(n)[None, :], np.ones(1))


def firsts(values: str) -> tuple[int, ...]:
    return tuple(values.index(value) for value in values)


def sent(steps: Iterable[Mapping[tuple[int, int], Fraction]]) -> dict:
    """Return what ranks send to each other in all steps."""
    amounts: Counter = Counter()
    for step in steps:
        amounts.update(step)
    return {ends: float(amount) for ends, amount in amounts.items() if amount}


def priced(phases: Iterable[Phase]) -> dict:
    amounts: Counter = Counter()
    for phase in phases:
        for source, target, fraction in zip(*phase.flows, strict=True):
            amounts[int(source), int(target)] += float(fraction)
    return dict(amounts)


def gather(n: int, parts: int, steps: list[Step]) -> list[dict]:
    """Run an all-gather of shards of several parts; return what is sent."""
    held = [{(rank, part) for part in range(parts)} for rank in range(n)]
    for step in steps:
        assert all(pieces <= held[source] for (source, _), pieces in step.items())
        for (_, target), pieces in step.items():
            held[target] |= pieces
    assert all(len(pieces) == n * parts for pieces in held)
    return [
        {ends: Fraction(len(pieces), parts * n) for ends, pieces in step.items()}
        for step in steps
    ]


def scatter(n: int, parts: int, steps: list[Step]) -> None:
    """Run the all-gather back, as a reduce-scatter: every part is summed up once.

    A rank passes on what others sent it, and its own part to those that it got a piece
    from first.
    """
    first: dict[tuple[int, tuple[int, int]], tuple[int, int]] = {}
    for index, step in enumerate(steps):
        for (source, target), pieces in step.items():
            for piece in pieces:
                if piece[0] != target:
                    first.setdefault((target, piece), (index, source))
    sums = {
        (rank, (owner, part)): Counter([rank])
        for rank in range(n)
        for owner in range(n)
        for part in range(parts)
    }
    for index, step in reversed([*enumerate(steps)]):
        for (source, target), pieces in step.items():
            for piece in pieces:
                if first.get((target, piece)) == (index, source):
                    sums[source, piece] += sums[target, piece]
    for owner in range(n):
        for part in range(parts):
            assert sums[owner, (owner, part)] == Counter(range(n))


@pytest.mark.parametrize("n", [n for n in SIZES if n & (n - 1)])
def test_ranks_pass_on_all_that_those_behind_lack(n):
    steps: list[Step] = []
    distance = 1
    while distance < n:
        count = min(distance, n - distance)
        steps.append(
            {
                (rank, (rank + distance) % n): {
                    ((rank - k) % n, 0) for k in range(count)
                }
                for rank in range(n)
            }
        )
        distance *= 2
    amounts = sent(gather(n, 1, steps))
    scatter(n, 1, steps)
    phases = algorithms._bruck_half(star(n), everyone(n)) or []
    assert priced(phases) == pytest.approx(amounts)


@pytest.mark.parametrize("n", SIZES)
def test_messages_to_everyone_go_by_powers_of_two(n):
    """A message over a distance of 5 goes 1, and then 4 further."""
    at = {(source, target): source for source in range(n) for target in range(n)}
    steps = []
    distance = 1
    while distance < n:
        amounts: Counter = Counter()
        for source, target in at:
            if (target - source) % n & distance:
                here = at[source, target]
                at[source, target] = there = (here + distance) % n
                amounts[here, there] += Fraction(1, n)
        steps.append(amounts)
        distance *= 2
    assert all(place == target for (_, target), place in at.items())
    phases = algorithms._bruck_all_to_all(star(n), everyone(n))
    assert priced(phases) == pytest.approx(sent(steps))


@pytest.mark.parametrize("n", SIZES)
def test_sums_double(n):
    """Ranks beyond a power of two hand over first, and get the sum last."""
    power = 1 << (n.bit_length() - 1)
    sums = [Counter([rank]) for rank in range(n)]
    steps = [{(power + i, i): Fraction(1) for i in range(n - power)}]
    for i in range(n - power):
        sums[i] += sums[power + i]
    distance = 1
    while distance < power:
        steps.append({(i, i ^ distance): Fraction(1) for i in range(power)})
        sums[:power] = [sums[i] + sums[i ^ distance] for i in range(power)]
        distance *= 2
    steps.append({(i, power + i): Fraction(1) for i in range(n - power)})
    sums[power:] = sums[: n - power]
    assert sums == [Counter(range(n))] * n
    phases = algorithms._exchanged(star(n), [everyone(n)], far=False, remaining=1.0)
    assert priced(phases) == pytest.approx(sent(steps))


def mates_of(small: list[int], large: list[int], slots: str) -> dict[int, int]:
    same = {slots[rank]: rank for rank in large}
    others = [rank for rank in large if slots[rank] not in [slots[x] for x in small]]
    return {
        rank: same[slots[rank]] if slots[rank] in same else others.pop(0)
        for rank in small
    }


def through_mates(units: str, slots: str, parts: int) -> list[Step]:
    """Return the steps of an all-gather of shards of so many parts."""
    members = {unit: [i for i, x in enumerate(units) if x == unit] for unit in units}
    steps: list[Step] = [{}, {}, {}]
    held = {rank: {(rank, part) for part in range(parts)} for rank in range(len(units))}
    for unit, own in members.items():
        for other, there in members.items():
            if other == unit:
                continue
            if len(own) <= len(there):
                for rank, mate in mates_of(own, there, slots).items():
                    steps[1][rank, mate] = {(rank, part) for part in range(parts)}
                    held[mate] |= steps[1][rank, mate]
                continue
            back = mates_of(there, own, slots)
            for place, (mate, relay) in enumerate(back.items()):
                share = range(
                    place * parts // len(there), (place + 1) * parts // len(there)
                )
                across = {(relay, part) for part in range(parts)}
                for rank in own:
                    if rank not in back.values():
                        pieces = {(rank, part) for part in share}
                        steps[0].setdefault((rank, relay), set()).update(pieces)
                        across |= pieces
                steps[1][relay, mate] = across
                held[mate] |= across
    for own in members.values():
        steps[2] |= {(s, t): held[s] for s in own for t in own if s != t}
    return steps


@pytest.mark.parametrize(("units", "slots"), UNEVEN)
def test_shards_pass_through_mates(units, slots):
    """Parts for a unit of one rank and of two are sent apart, each for its unit."""
    n, parts = len(units), 12
    steps = through_mates(units, slots, parts)
    amounts = gather(n, parts, steps)
    scatter(n, parts, steps)
    places: Units = (firsts(units), firsts(slots))
    for step, counts in zip(amounts, algorithms._through_mates(places), strict=True):
        np.fill_diagonal(counts, 0)
        for ends, amount in step.items():
            # Parts that serve two units are sent once here.
            assert float(amount) <= counts[ends] * (1 + 1e-12)
        assert len(step) == np.count_nonzero(counts)


@pytest.mark.parametrize(
    ("units", "slots"), [*UNEVEN, ("aabb", "0101"), ("abc", "012")]
)
def test_messages_pass_through_mates(units, slots):
    n = len(units)
    amounts: Counter = Counter()
    members = {unit: [i for i, x in enumerate(units) if x == unit] for unit in units}
    for source in range(n):
        for target in range(n):
            own, there = members[units[source]], members[units[target]]
            if own is there:
                relay = target
            elif len(own) >= len(there):
                relay = mates_of(there, own, slots)[target]
            else:
                relay = mates_of(own, there, slots)[source]
            assert units[relay] in (units[source], units[target])
            for ends in ((source, relay), (relay, target)):
                amounts[ends] += Fraction(ends[0] != ends[1], n)
    places: Units = (firsts(units), firsts(slots))
    phase = algorithms._pxn(star(n), everyone(n), places)
    assert priced([phase]) == pytest.approx(sent([amounts]))


@pytest.mark.parametrize(
    "partitions", [("aabb",), ("aabbcc",), ("aabbccdd", "xxxxyyyy"), ("aab",), ()]
)
def test_levels_reduce_going_up(partitions):
    """On every level the ranks of a group sum up a share each of what they still have.

    Going back down, they hand each other the sums. Unequal units have one level.
    """
    n = len(partitions[0]) if partitions else 3
    units: Units = tuple(map(firsts, partitions))
    sums = {(rank, part): Counter([rank]) for rank in range(n) for part in range(n)}
    parts = [list(range(n)) for _ in range(n)]
    for fraction, groups in algorithms._nested(n, units):
        size = groups.shape[1]
        for ranks in groups.tolist():
            assert Fraction(fraction).limit_denominator(n) == Fraction(
                len(parts[ranks[0]]), n
            )
            share = len(parts[ranks[0]]) // size
            for place, rank in enumerate(ranks):
                kept = parts[rank][place * share : (place + 1) * share]
                for part in kept:
                    for other in ranks:
                        assert part in parts[other]
                        if other != rank:
                            sums[rank, part] += sums.pop((other, part))
            for place, rank in enumerate(ranks):
                parts[rank] = parts[rank][place * share : (place + 1) * share]
    assert sorted(part for (part,) in parts) == list(range(n))
    assert list(sums.values()) == [Counter(range(n))] * n
