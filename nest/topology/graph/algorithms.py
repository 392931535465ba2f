"""Algorithms of collectives on a graph, as lists of phases.

The table is in docs/cost-model.md, under "Graphs". A *half* is a
reduce-scatter or an all-gather, which cost the same; an all-reduce is both,
unless an algorithm has another one.

Sources: Thakur, Rabenseifner and Gropp, *Optimization of Collective
Communication Operations in MPICH*, IJHPCA 19(1), 2005; Patarasuk and Yuan,
*Bandwidth optimal all-reduce algorithms for clusters of workstations*, JPDC
69(2), 2009; Sanders, Speck and Träff, *Two-tree algorithms for full bandwidth
broadcast, reduction and scan*, Parallel Computing 35(12), 2009; Cho et al.,
*BlueConnect*, MLSys 2019; Jouppi et al., *TPU v4*, ISCA 2023.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np

from nest.ir.graph import CollectiveKind
from nest.ir.graph_topology import GraphTopology
from nest.topology.alphabeta import Line, undominated
from nest.topology.graph.phases import (
    AllPairs,
    Flows,
    Medium,
    Phase,
    ScheduleTime,
    line_of,
    times_of,
    together,
)
from nest.topology.graph.routes import Floats, Ints, Routes

Ranks = Sequence[int]

#: What a kind of collective consists of; reduce-scatters and all-gathers are halves.
Component = Literal["half", "all-reduce", "all-to-all"]
Components = Collection[Component]
ALL_COMPONENTS: tuple[Component, ...] = get_args(Component)
COMPONENT_OF: Mapping[CollectiveKind, Component] = {
    "all-reduce": "all-reduce",
    "all-gather": "half",
    "reduce-scatter": "half",
    "all-to-all": "all-to-all",
}


@dataclass(frozen=True)
class Places:
    """What is known of where ranks are.

    ``units`` has the number of the unit of every rank, an array per partition, finest
    first; ``coordinates`` has a row for every rank, if there are any.
    """

    units: Sequence[Ints] = ()
    coordinates: Ints | tuple[()] = ()

    @cached_property
    def slots(self) -> list[Ints]:
        """Return which of its unit every rank is, for each partition."""
        of_partitions = []
        for unit_of in self.units:
            num_ranks = Counter[int]()
            slots = np.zeros_like(unit_of)
            for rank, unit in enumerate(unit_of.tolist()):
                slots[rank] = num_ranks[unit]
                num_ranks[unit] += 1
            of_partitions.append(slots)
        return of_partitions

    @classmethod
    def of(cls, topology: GraphTopology) -> Places:
        """Return what a graph says."""
        ranks = topology.ranks
        units = []
        for unit_of in topology.units:
            numbers: dict[str, int] = {}
            of_ranks = [
                numbers.setdefault(unit_of[name], len(numbers)) for name in ranks
            ]
            units.append(np.array(of_ranks, np.int64))
        at = topology.coordinates
        return cls(tuple(units), np.array([at[name] for name in ranks if at], np.int64))


class Batch(NamedTuple):
    """Groups of one size: a row of ranks and a fraction of the buffer each."""

    ranks: Ints
    fractions: Floats

    @property
    def size(self) -> int:
        """Ranks of each group."""
        return int(self.ranks.shape[1])


def _merged(batches: Iterable[Batch]) -> list[Batch]:
    """Return groups of one size as one batch."""
    of_size: dict[int, list[Batch]] = {}
    for batch in batches:
        of_size.setdefault(batch.size, []).append(batch)
    return [
        Batch(*map(np.concatenate, zip(*same_size, strict=True)))
        for same_size in of_size.values()
    ]


def _batches(groups: Iterable[Ranks]) -> list[Batch]:
    """Return groups that work on the whole buffer."""
    of_size: dict[int, list[Ranks]] = {}
    for ranks in groups:
        of_size.setdefault(len(ranks), []).append(ranks)
    return [
        Batch(np.array(same_size, np.int64), np.ones(len(same_size)))
        for same_size in of_size.values()
    ]


#: A half of a batch; ``None`` where it cannot run.
Half = Callable[[Routes, Batch], list[Phase] | None]


# Rings


def _rings(routes: Routes, rings: Ints, fractions: Floats) -> Phase:
    """Return halves on rings that run together, a row each."""
    n = rings.shape[1]
    after = np.roll(rings, -1, axis=1)
    latencies = routes.latencies_fs(rings, after)
    latency_fs = int((latencies.sum(axis=1) - latencies.min(axis=1)).max())
    return Phase(latency_fs, Flows.of(rings, after, (n - 1) / n * fractions[:, None]))


def _both_ways(routes: Routes, rings: Ints, fractions: Floats) -> Phase:
    """Return halves on rings and their opposites, half of the buffer each."""
    return _rings(
        routes,
        np.concatenate([rings, rings[:, ::-1]]),
        np.concatenate([fractions, fractions]) / 2,
    )


def _rotated_rings(routes: Routes, batch: Batch, units: Units) -> Phase:
    """Return as many rings as the smallest unit has ranks.

    Each goes through all ranks of a unit before it leaves, from another one
    in each ring.
    """
    inside: dict[int, list[int]] = {}
    for position, unit in enumerate(units[0]):
        inside.setdefault(unit, []).append(position)
    count = min(map(len, inside.values()))
    rings = [
        [
            position
            for members in inside.values()
            for position in members[j:] + members[:j]
        ]
        for j in range(count)
    ]
    return _rings(
        routes,
        batch.ranks[:, rings].reshape(-1, batch.size),
        np.repeat(batch.fractions / count, count),
    )


# Halving and doubling


def _exchange(
    routes: Medium, batch: Batch, distances: Sequence[int], remaining: float = 0.5
) -> list[Phase]:
    """Exchange such a part of what is left with a partner, at each distance."""
    phases, fractions = [], batch.fractions[:, None]
    for distance in distances:
        fractions = fractions * remaining
        partners = batch.ranks[:, np.arange(batch.size) ^ distance]
        phases.append(_sends(routes, Flows.of(batch.ranks, partners, fractions)))
    return phases


def _sends(routes: Medium, flows: Flows) -> Phase:
    latencies = routes.latencies_fs(flows.sources, flows.targets)
    return Phase(int(latencies.max()), flows)


def _distances(n: int, far: bool) -> list[int]:
    distances = [1 << j for j in range(n.bit_length() - 1)]
    return distances[::-1] if far else distances


#: Exchanges by halving and doubling, and whether the farthest come first.
_HALVING = {"halving-doubling": False, "halving-doubling-far": True}


def _halving(far: bool) -> Half:
    def half(routes: Routes, batch: Batch) -> list[Phase] | None:
        n = batch.size
        if n & (n - 1):
            return None
        return _exchange(routes, batch, _distances(n, far))

    return half


def _exchanged(
    routes: Medium, batches: Sequence[Batch], far: bool, remaining: float = 0.5
) -> list[Phase]:
    """Return an all-reduce by exchanges of partners on any number of ranks.

    By halving and doubling, or of the whole buffer each time. Ranks beyond the largest
    power of two hand over to others, and get the result from them.
    """
    inner, folds = [], []
    for ranks, fractions in batches:
        n = ranks.shape[1]
        power = 1 << (n.bit_length() - 1)
        inner.append(Batch(ranks[:, :power], fractions))
        extra, other = ranks[:, power:], ranks[:, : n - power]
        folds.append(Flows.of(extra, other, fractions[:, None]))
    phases = together(
        _exchange(routes, batch, _distances(batch.size, far), remaining)
        for batch in inner
    )
    if remaining < 1:
        phases = phases * 2
    there = Flows.joined(folds)
    if not len(there.sources):
        return phases
    return [_sends(routes, there), *phases, _sends(routes, there.reversed())]


def _bruck(routes: Routes, batch: Batch, counts: Ints) -> list[Phase]:
    """Return what ranks send to those 1, 2, 4 … behind them, in shards."""
    phases, shards = [], batch.fractions[:, None] / batch.size
    for j, count in enumerate(counts):
        targets = np.roll(batch.ranks, -(1 << j), axis=1)
        flows = Flows.of(batch.ranks, targets, count * shards)
        phases.append(_sends(routes, flows))
    return phases


def _bruck_half(routes: Routes, batch: Batch) -> list[Phase] | None:
    """Pass on all that one has, as far as it lacks there."""
    n = batch.size
    if n & (n - 1) == 0:
        return None
    distances = 1 << np.arange(n.bit_length())
    return _bruck(routes, batch, np.minimum(distances, n - distances))


def _bruck_all_to_all(routes: Routes, batch: Batch) -> list[Phase]:
    """Pass on what has to go as far."""
    distances = 1 << np.arange((batch.size - 1).bit_length())
    ranks = np.arange(batch.size)[:, None]
    return _bruck(routes, batch, np.count_nonzero(ranks & distances, axis=0))


# All pairs, and trees


def _direct(routes: Routes, batch: Batch) -> list[Phase]:
    pairs = AllPairs(batch.ranks, batch.fractions / batch.size)
    latency_fs = routes.ways.farthest_fs(batch.ranks)
    return [Phase(latency_fs, pairs=(pairs,))]


#: Number of ranks in a group that sends through the own node, at most.
MAX_RELAYED = 512


def _mates(small: Slots, large: Slots) -> list[int]:
    """Return the places in a unit that those of a smaller one are paired with.

    Ranks in the same slot of their units first, then the others in order.
    """
    index_of = {slot: index for index, slot in enumerate(large)}
    others = (index for slot, index in index_of.items() if slot not in small)
    return [index_of[slot] if slot in index_of else next(others) for slot in small]


def _pairings(units: Units) -> Iterator[tuple[Ints, Ints, list[int]]]:
    """Yield all ranks of units by how they lie in them, for any two such ways.

    A row per unit; and the places that those of the smaller units, of the second if
    equal, are paired with in the others.
    """
    members: dict[int, list[int]] = {}
    for rank, unit in enumerate(units[0]):
        members.setdefault(unit, []).append(rank)
    same_slots: dict[Slots, list[list[int]]] = {}
    for ranks in members.values():
        slots = tuple(units[-1][rank] for rank in ranks)
        same_slots.setdefault(slots, []).append(ranks)
    for one, other in itertools.product(same_slots, repeat=2):
        small, large = (one, other) if len(one) < len(other) else (other, one)
        yield (
            np.array(same_slots[one]),
            np.array(same_slots[other]),
            _mates(small, large),
        )


def _steps(routes: Routes, batch: Batch, counts: Sequence[Floats]) -> Phase:
    """Return pipelined steps with what each rank sends to each other one.

    A group begins a step after its own ranks only, so steps add up group by group.
    """
    latencies_fs, flows = np.zeros(len(batch.ranks), np.int64), []
    for count in counts:
        np.fill_diagonal(count, 0)
        sources, targets = np.nonzero(count)
        ends = (batch.ranks[:, sources], batch.ranks[:, targets])
        latencies = routes.latencies_fs(*ends)
        sums = np.zeros((batch.size, len(batch.ranks)), latencies.dtype)
        np.add.at(sums, sources, latencies.T)
        latencies_fs += sums.max(axis=0)
        sent = count[sources, targets] * batch.fractions[:, None]
        flows.append(Flows.of(*ends, sent))
    return Phase(int(latencies_fs.max()), Flows.joined(flows))


def _pxn(routes: Routes, batch: Batch, units: Units) -> Phase:
    """Return an all-to-all that crosses between ranks that are paired.

    In the larger unit a rank passes on what others there send or receive, as NCCL's
    PXN does. Both steps are pipelined.
    """
    n, unit = batch.size, np.array(units[0])
    relay = np.zeros((n, n), np.int64)
    for here, there, mates in _pairings(units):
        ends = here[:, :, None, None], there[None, None, :, :]
        if here.shape[1] >= there.shape[1]:
            relay[ends] = here[:, mates][:, None, None, :]
        else:
            relay[ends] = there[:, mates].T[None, :, :, None]
    same = unit[:, None] == unit
    relay[same] = np.broadcast_to(np.arange(n), (n, n))[same]
    sources, targets = np.indices((n, n))
    hops = np.concatenate([sources * n + relay, relay * n + targets])
    counts = np.bincount(hops.ravel(), minlength=n * n).reshape(n, n) / n
    return _steps(routes, batch, [counts * same, counts * ~same])


def _through_mates(units: Units) -> list[Floats]:
    """Return the steps of an all-gather through ranks that are paired.

    What a rank sends to each other one: inside, to those of its unit that have a mate
    in a smaller one; across, to the mates; and inside, to all others.
    """
    unit = np.array(units[0])
    n = len(unit)
    before, across = np.zeros((n, n)), np.zeros((n, n))
    for here, there, mates in _pairings(units):
        inside, beyond = here.shape[1], there.shape[1]
        if inside <= beyond:
            across[here[:, None], there[:, mates]] = 1
            continue
        across[here[:, None, mates], there] = inside / beyond
        rest = [index for index in range(inside) if index not in mates]
        before[here[:, rest, None], here[:, None, mates]] += len(there) / beyond
    same = unit[:, None] == unit
    across[same] = 0
    after = same * (1 + across.sum(axis=0))[:, None]
    return [before / n, across / n, after / n]


def _through_own_units(
    routes: Routes, groups: Sequence[tuple[Batch, Units]], components: Components
) -> dict[Component, tuple[Line, ...]]:
    """Return all of :func:`_through_own_unit`, for units of every partition."""
    offers: dict[Component, tuple[Line, ...]] = {}
    num_partitions = len(groups[0][1]) // 2
    for index in range(num_partitions):
        chosen = [(batch, units[index::num_partitions]) for batch, units in groups]
        for component, lines in _through_own_unit(routes, chosen, components).items():
            offers[component] = (*offers.get(component, ()), *lines)
    return offers


def _through_own_unit(
    routes: Routes, groups: Sequence[tuple[Batch, Units]], components: Components
) -> dict[Component, tuple[Line, ...]]:
    """Return all-to-alls through paired ranks; and halves, if no group is even.

    A group is even that has several units, with equal numbers of ranks in each. A
    reduce-scatter goes the way of an all-gather back, and an all-reduce is both.
    """
    offers: dict[Component, tuple[Line, ...]] = {}
    if "all-to-all" in components:
        relayed = together([_pxn(routes, *some)] for some in groups)
        offers["all-to-all"] = (line_of(routes, relayed),)
    counts = [Counter(units[0]).values() for _, units in groups]
    sizes = [len(set(members)) for members in counts if len(members) > 1]
    if min(sizes, default=1) == 1:
        return offers
    gathers, scatters = [], []
    for batch, units in groups:
        steps = _through_mates(units)
        gathers.append([_steps(routes, batch, steps)])
        backwards = [step.T for step in reversed(steps)]
        scatters.append([_steps(routes, batch, backwards)])
    there, back = times_of(routes, [together(gathers), together(scatters)])
    slower = Line(
        max(there.line.latency_fs, back.line.latency_fs),
        max(there.line.ns_per_byte, back.line.ns_per_byte),
    )
    offers["half"], offers["all-reduce"] = (slower,), (there.pipelined(back),)
    return offers


def _parents(n: int) -> list[int]:
    """Return the parent of every rank but 0 in a binary tree."""
    parents = []
    for i in range(1, n):
        lowest = i & -i
        above = i - lowest | lowest << 1
        parents.append(above if above < n else i - lowest)
    return parents


def _two_trees(routes: Medium, batch: Batch) -> list[Phase]:
    """Reduce up and broadcast down two trees, half of the buffer on each."""
    ranks, n = batch.ranks, batch.size
    second = np.roll(ranks, -1, axis=1) if n % 2 else ranks[:, ::-1]
    parents = np.array([0, *_parents(n)])
    flows: list[Flows] = []
    latency_fs = 0
    for tree in (ranks, second):
        above = tree[:, parents]
        ways = []
        for ends in ((tree, above), (above, tree)):
            # The ways to the root, twice as many steps at a time.
            way, reached = routes.latencies_fs(*ends), parents
            while reached.any():
                way, reached = way + way[:, reached], reached[reached]
            ways.append(way.max(axis=1))
            flows.append(
                Flows.of(ends[0][:, 1:], ends[1][:, 1:], batch.fractions[:, None] / 2)
            )
        latency_fs = max(latency_fs, int(sum(ways).max()))
    return [Phase(latency_fs, Flows.joined(flows))]


def whole_reductions(medium: Medium, size: int) -> dict[str, Line]:
    """Return all-reduces of one group that are not two halves, by name.

    Of ranks ``0 … size-1``; slopes are not rounded.
    """
    batch = Batch(np.arange(size)[None, :], np.ones(1))
    lines = {"two-trees": line_of(medium, _two_trees(medium, batch))}
    if size & (size - 1):
        for name, far in _HALVING.items():
            lines[name] = line_of(medium, _exchanged(medium, [batch], far))
    return lines


#: Algorithms that need to know nothing but the ranks, and their halves.
_FLAT: Mapping[str, Half] = {
    "ring": lambda routes, batch: [_rings(routes, *batch)],
    "two-way-ring": lambda routes, batch: [_both_ways(routes, *batch)],
    "halving-doubling": _halving(far=False),
    "halving-doubling-far": _halving(far=True),
    "direct": _direct,
    "bruck": _bruck_half,
}


def _flat_half(
    routes: Routes, name: str, batches: Sequence[Batch]
) -> list[Phase] | None:
    phases = [_FLAT[name](routes, batch) for batch in batches]
    able = [half for half in phases if half is not None]
    return together(able) if len(able) == len(phases) else None


def _flat(
    routes: Routes, batches: Sequence[Batch], components: Components
) -> dict[str, dict[Component, ScheduleTime]]:
    """Return what the algorithms take that only need to know the ranks.

    Unless an all-reduce is wanted, without those that are not two halves.
    """
    halves = {name: _flat_half(routes, name, batches) for name in _FLAT}
    able = {name: half for name, half in halves.items() if half is not None}
    whole = {}
    if "all-reduce" in components:
        whole["doubling"] = _exchanged(routes, batches, far=False, remaining=1.0)
        whole["two-trees"] = together(_two_trees(routes, batch) for batch in batches)
        for name in _HALVING.keys() - able:
            whole[name] = _exchanged(routes, batches, _HALVING[name])
    runs = times_of(routes, [*able.values(), *whole.values()])
    table: dict[str, dict[Component, ScheduleTime]] = {}
    for name, run in zip([*able, *whole], runs, strict=True):
        table[name] = {"all-reduce": run}
        if name in able:
            table[name] = {"half": run, "all-reduce": run.times(2)}
    direct = table["direct"]["half"]
    table["direct"]["all-to-all"] = direct
    if len(batches) == 1:
        n = batches[0].size
        line = direct.line._replace(ns_per_byte=direct.line.ns_per_byte * n)
        table["one-phase"] = {"all-reduce": ScheduleTime(line, direct.loads * n)}
    return table


# Levels


#: The units of the ranks of a group: in every partition, the place of the
#: first rank that is in the same one; and then of the first in the same slot of one.
Units = tuple[tuple[int, ...], ...]
#: The slots of the ranks of a unit.
Slots = tuple[int, ...]


#: Loads by this factor apart differ by rounding.
_ALIKE = 1 + 1e-14


def _by_units(
    batches: Iterable[Batch], units: Sequence[Ints]
) -> list[tuple[Batch, Units]]:
    """Return groups together whose ranks are in units in the same way."""
    alike_batches = []
    for ranks, fractions in batches:
        shape, n = ranks.shape, ranks.shape[1]
        firsts = []
        for unit_of in units:
            keys = np.arange(len(ranks))[:, None] * (unit_of.max() + 1)
            _, first, positions = np.unique(
                (keys + unit_of[ranks]).ravel(), return_index=True, return_inverse=True
            )
            firsts.append((first[positions] % n).reshape(shape))
        sorts: dict[bytes, list[int]] = {}
        table = np.stack(firsts, axis=1)
        for row, same in enumerate(table):
            sorts.setdefault(same.tobytes(), []).append(row)
        for rows in sorts.values():
            kind = tuple(tuple(first) for first in table[rows[0]].tolist())
            alike_batches.append((Batch(ranks[rows], fractions[rows]), kind))
    return alike_batches


def _nested(n: int, units: Units) -> list[tuple[float, Ints]]:
    """Return what works together on each level with several, from below.

    Parts of the buffer, and places of ranks in the group, a row for each of
    those that work together. All on one level if units hold unequal numbers of ranks.
    """
    levels = []
    fraction = 1.0
    blocks = [[position] for position in range(n)]
    for partition in (*units, None):
        joined: dict[int, list[list[int]]] = {}
        for block in blocks:
            unit = partition[block[0]] if partition else 0
            joined.setdefault(unit, []).append(block)
        count, *others = {len(members) for members in joined.values()}
        if others:
            return [(1.0, np.arange(n)[None, :])]
        if count > 1:
            peers = [
                positions
                for members in joined.values()
                for positions in zip(*members, strict=True)
            ]
            levels.append((fraction, np.array(peers)))
        fraction /= count
        blocks = [sorted(itertools.chain(*members)) for members in joined.values()]
    return levels


def _levels(groups: Sequence[tuple[Batch, Units]]) -> list[list[Batch]]:
    """Return what works together on each level, from below."""
    of_groups = []
    for batch, units in groups:
        batches = []
        for fraction, peers in _nested(batch.size, units[: len(units) // 2]):
            ranks = batch.ranks[:, peers].reshape(-1, peers.shape[1])
            fractions = np.repeat(batch.fractions * fraction, len(peers))
            batches.append(Batch(ranks, fractions))
        of_groups.append(batches)
    return [
        _merged(batch for batch in running if batch is not None)
        for running in itertools.zip_longest(*of_groups)
    ]


def _pipelined(
    tables: Sequence[Mapping[str, Mapping[Component, ScheduleTime]]],
    components: Components,
) -> dict[Component, tuple[Line, ...]]:
    """Return a half going through the levels; an all-reduce at the top.

    All phases of all levels are pipelined. A line per choice of algorithms that is
    best for some size.
    """
    *below, top = tables
    halves = [_choices(table, "half") for table in below]
    offers: dict[Component, tuple[Line, ...]] = {}
    if "half" in components:
        offers["half"] = _joint([*halves, _choices(top, "half")])
    if "all-reduce" in components:
        twice = [[run.times(2) for run in runs] for runs in halves]
        offers["all-reduce"] = _joint([*twice, _choices(top, "all-reduce")])
    return offers


def _joint(levels: Sequence[Sequence[ScheduleTime]]) -> tuple[Line, ...]:
    """Return the best lines of a choice on each level."""
    choices = itertools.product(*levels)
    return undominated(first.pipelined(*others) for first, *others in choices)


def _choices(
    table: Mapping[str, Mapping[Component, ScheduleTime]], component: Component
) -> list[ScheduleTime]:
    """Return what algorithms of a level take, without those that others outdo."""
    runs: list[ScheduleTime] = []
    able = (of[component] for of in table.values() if component in of)
    for run in sorted(able, key=lambda run: run.line):
        if not any((other.loads <= run.loads * _ALIKE).all() for other in runs):
            runs.append(run)
    return runs


# Tori


def _boxes(batches: Sequence[Batch], coordinates: Ints | tuple[()]) -> list[Ints]:
    """Return groups as boxes, an array for each shape; none if some group is no box."""
    of_shape: dict[tuple[int, ...], list[Ints]] = {}
    for ranks, _ in batches if len(coordinates) else ():
        columns = np.moveaxis(np.asarray(coordinates)[ranks], -1, 0)
        order = np.lexsort(columns[::-1], axis=1)
        ordered = np.take_along_axis(columns, order[None], axis=2)
        sides = 1 + np.count_nonzero(np.diff(np.sort(columns, axis=2)), axis=2).T
        distinct = (np.diff(ordered) != 0).any(axis=0).all()
        if not distinct or (sides.prod(axis=1) != ranks.shape[1]).any():
            return []
        rows = np.take_along_axis(ranks, order, axis=1)
        for shape, row in zip(map(tuple, sides.tolist()), rows, strict=True):
            of_shape.setdefault(shape, []).append(row.reshape(shape))
    return [np.stack(same_shape) for same_shape in of_shape.values()]


def _torus(routes: Routes, boxes: Sequence[Ints], axes: list[int]) -> Line:
    """Return a half on boxes: two-way rings along each axis in turn.

    As many colors as axes, each starting with another one.
    """
    phases = []
    for step in range(len(axes)):
        running = [
            _color(routes, box, axes[color:] + axes[:color], step)
            for box in boxes
            for color in range(len(axes))
        ]
        phases += together([phase] for phase in running if phase)
    (run,) = times_of(routes, [phases])
    return run.pipelined()


def _color(routes: Routes, boxes: Ints, axes: Sequence[int], step: int) -> Phase | None:
    """Return a step of a color, which takes the axes of boxes in turn."""
    fraction = 1 / len(axes)
    for before in axes[:step]:
        fraction /= boxes.shape[1 + before]
    axis = 1 + axes[step]
    side = boxes.shape[axis]
    if side == 1:
        return None
    rings = np.moveaxis(boxes, axis, -1).reshape(-1, side)
    return _both_ways(routes, rings, np.full(len(rings), fraction))


# All of them


#: Names of all algorithms, in the order in which ties are decided.
NAMES = (
    "ring",
    "two-way-ring",
    "rotated-rings",
    "halving-doubling",
    "halving-doubling-far",
    "direct",
    "one-phase",
    "bruck",
    "doubling",
    "pxn",
    "two-trees",
    "pipelined",
    "torus",
)


def algorithms(
    routes: Routes,
    groups: Sequence[Ranks],
    positions: Places,
    components: Components = ALL_COMPONENTS,
    *,
    beside_others: bool = False,
) -> dict[Component, dict[str, tuple[Line, ...]]]:
    """Return what all algorithms on offer take, for each of the ``components``.

    ``groups`` have more than one rank each, and run a collective at the same time.
    There are lines by kind and by name, in the order of :data:`NAMES`; one that takes
    the least of several has as many.

    Groups that run beside others take as long or longer on every line: they share links
    and wait for the slowest. Only the line of boxes may be lower, since other boxes may
    have more axes; with ``beside_others`` there is one for every choice of these.
    """
    others = (False, True) if beside_others else (False,)
    batches = _batches(groups)
    flat = _flat(routes, batches, components)
    offers: dict[str, Mapping[Component, tuple[Line, ...]]] = {
        name: {component: (run.line,) for component, run in of.items()}
        for name, of in flat.items()
    }
    if "all-to-all" in components:
        passed_on = together(_bruck_all_to_all(routes, batch) for batch in batches)
        offers["bruck"] = {
            **offers.get("bruck", {}),
            "all-to-all": (line_of(routes, passed_on),),
        }
    tables = [flat]
    if positions.units:
        by_units = _by_units(batches, [*positions.units, *positions.slots])
        rotated = together([_rotated_rings(routes, *some)] for some in by_units)
        offers["rotated-rings"] = _twice(line_of(routes, rotated))
        if all(batch.size <= MAX_RELAYED for batch in batches):
            offers["pxn"] = _through_own_units(routes, by_units, components)
        *below, level = _levels(by_units)
        if below:
            tables = [_flat(routes, lower, ()) for lower in below]
            tables.append(_flat(routes, level, components))
    offers["pipelined"] = _pipelined(tables, components)
    boxes = _boxes(batches, positions.coordinates)
    if boxes:
        sides = np.max([same_shape.shape[1:] for same_shape in boxes], axis=0)
        choices = itertools.product(*((True,) if x > 1 else others for x in sides))
        offers["torus"] = _twice(
            *(_torus(routes, boxes, np.flatnonzero(x).tolist()) for x in choices)
        )
    return {
        component: {
            name: tuple(line.rounded() for line in offers[name][component])
            for name in NAMES
            if component in offers.get(name, ())
        }
        for component in components
    }


def _twice(*halves: Line) -> dict[Component, tuple[Line, ...]]:
    return {"half": halves, "all-reduce": tuple(half.times(2) for half in halves)}
