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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from nest.ir.graph import CollectiveKind
from nest.topology.graph.phases import (
    NOTHING,
    Flow,
    Line,
    Phase,
    line_of,
    together,
    undominated,
)
from nest.topology.graph.routes import Routes

Ranks = Sequence[int]

#: What a kind of collective consists of; reduce-scatters and all-gathers
#: are halves.
Part = Literal["half", "all-reduce", "all-to-all"]
PART_OF: Mapping[CollectiveKind, Part] = {
    "all-reduce": "all-reduce",
    "all-gather": "half",
    "reduce-scatter": "half",
    "all-to-all": "all-to-all",
}


class Group(NamedTuple):
    """Ranks that work together, on a part of the buffer."""

    ranks: Ranks
    part: float = 1.0


class Places(NamedTuple):
    """What is known of where ranks are.

    Attributes
    ----------
    units
        The unit of every rank, a sequence per partition, finest first.
    coordinates
        Of every rank; none if there are not any.
    """

    units: Sequence[Sequence[str]] = ()
    coordinates: Sequence[tuple[int, ...]] = ()


#: A half of one group; ``None`` where it cannot run.
Half = Callable[[Routes, Group], list[Phase] | None]


# Rings


def _rings(routes: Routes, rings: Iterable[Ranks], part: float) -> Phase:
    """Return halves on rings that run together, ``part`` on each."""
    latency_fs, flows = 0, []
    for ring in rings:
        n = len(ring)
        hops = list(zip(ring, [*ring[1:], ring[0]], strict=True))
        latencies = [routes.latency_fs(*hop) for hop in hops]
        latency_fs = max(latency_fs, sum(latencies) - min(latencies))
        flows += [Flow(*hop, (n - 1) / n * part) for hop in hops]
    return Phase(latency_fs, flows)


def _ring(routes: Routes, group: Group) -> list[Phase]:
    return [_rings(routes, [group.ranks], group.part)]


def _two_way_ring(routes: Routes, group: Group) -> list[Phase]:
    rings = (group.ranks, group.ranks[::-1])
    return [_rings(routes, rings, group.part / 2)]


def _rotated_rings(
    routes: Routes, ranks: Ranks, units: Sequence[str]
) -> list[Phase]:
    """Return as many rings as the smallest unit has ranks.

    Each goes through all ranks of a unit before it leaves, from another one
    in each ring.
    """
    inside: dict[str, list[int]] = {}
    for rank in ranks:
        inside.setdefault(units[rank], []).append(rank)
    count = min(map(len, inside.values()))
    rings = [
        [rank for own in inside.values() for rank in own[j:] + own[:j]]
        for j in range(count)
    ]
    return [_rings(routes, rings, 1 / count)]


# Halving and doubling


def _exchange(
    routes: Routes, group: Group, distances: Sequence[int]
) -> list[Phase]:
    """Exchange half of what is left with a partner, at each distance."""
    phases, part = [], group.part
    for distance in distances:
        part /= 2
        phases.append(
            _sends(
                routes,
                [
                    Flow(rank, group.ranks[i ^ distance], part)
                    for i, rank in enumerate(group.ranks)
                ],
            )
        )
    return phases


def _sends(routes: Routes, flows: list[Flow]) -> Phase:
    latencies = (routes.latency_fs(flow.source, flow.target) for flow in flows)
    return Phase(max(latencies, default=0), flows)


def _distances(n: int, far: bool) -> list[int]:
    found = [1 << j for j in range(n.bit_length() - 1)]
    return found[::-1] if far else found


def _halving(far: bool) -> Half:
    def half(routes: Routes, group: Group) -> list[Phase] | None:
        n = len(group.ranks)
        if n & (n - 1):
            return None
        return _exchange(routes, group, _distances(n, far))

    return half


def _folded(routes: Routes, groups: Sequence[Group], far: bool) -> Line:
    """Return an all-reduce by halving and doubling on any number of ranks.

    Ranks beyond the largest power of two hand over to others, and get the
    result from them.
    """
    inner, folds = [], []
    for ranks, part in groups:
        power = 1 << (len(ranks).bit_length() - 1)
        inner.append(Group(ranks[:power], part))
        folds.append(
            [
                Flow(ranks[power + i], ranks[i], part)
                for i in range(len(ranks) - power)
            ]
        )
    halves = together(
        _exchange(routes, group, _distances(len(group.ranks), far))
        for group in inner
    )
    there = [flow for fold in folds for flow in fold]
    back = [Flow(target, source, part) for source, target, part in there]
    around = [_sends(routes, flows) for flows in (there, back) if flows]
    return line_of(routes, halves).times(2).plus(line_of(routes, around))


# All pairs, and trees


def _direct(routes: Routes, group: Group) -> list[Phase]:
    n = len(group.ranks)
    latency_fs = max(
        sum(routes.latency_fs(rank, other) for other in group.ranks)
        for rank in group.ranks
    )
    flows = [
        Flow(*pair, group.part / n)
        for pair in itertools.permutations(group.ranks, 2)
    ]
    return [Phase(latency_fs, flows)]


def _parents(n: int) -> list[int]:
    """Return the parent of every rank but 0 in a binary tree."""
    found = []
    for i in range(1, n):
        lowest = i & -i
        above = i - lowest | lowest << 1
        found.append(above if above < n else i - lowest)
    return found


def _two_trees(routes: Routes, group: Group) -> list[Phase]:
    """Reduce up and broadcast down two trees, half of the buffer on each."""
    ranks, n = list(group.ranks), len(group.ranks)
    second = ranks[1:] + ranks[:1] if n % 2 else ranks[::-1]
    flows: list[Flow] = []
    latency_fs = 0
    for tree in (ranks, second):
        up, down = [0] * n, [0] * n
        parents = dict(enumerate(_parents(n), 1))
        for i in parents:
            node = i
            while node:
                parent = parents[node]
                up[i] += routes.latency_fs(tree[node], tree[parent])
                down[i] += routes.latency_fs(tree[parent], tree[node])
                node = parent
        latency_fs = max(latency_fs, max(up) + max(down))
        for child, parent in parents.items():
            ends = tree[child], tree[parent]
            flows.append(Flow(*ends, group.part / 2))
            flows.append(Flow(*ends[::-1], group.part / 2))
    return [Phase(latency_fs, flows)]


#: Algorithms that need to know nothing but the ranks, and their halves.
_FLAT: Mapping[str, Half] = {
    "ring": _ring,
    "two-way-ring": _two_way_ring,
    "halving-doubling": _halving(far=False),
    "halving-doubling-far": _halving(far=True),
    "direct": _direct,
}


def _flat_half(
    routes: Routes, name: str, groups: Sequence[Group]
) -> Line | None:
    phases = [_FLAT[name](routes, group) for group in groups]
    able = [found for found in phases if found is not None]
    if len(able) < len(phases):
        return None
    return line_of(routes, together(able))


def _flat(
    routes: Routes, groups: Sequence[Group]
) -> dict[str, dict[Part, Line]]:
    """Return what the algorithms take that only need to know the ranks."""
    found: dict[str, dict[Part, Line]] = {}
    for name in _FLAT:
        half = _flat_half(routes, name, groups)
        if half is not None:
            found[name] = {"half": half, "all-reduce": half.times(2)}
        elif name.startswith("halving-doubling"):
            far = name.endswith("far")
            found[name] = {"all-reduce": _folded(routes, groups, far)}
    found["direct"]["all-to-all"] = found["direct"]["half"]
    trees = together(_two_trees(routes, group) for group in groups)
    found["two-trees"] = {"all-reduce": line_of(routes, trees)}
    return found


# Levels


def _nested(
    ranks: Ranks, units: Sequence[Sequence[str]]
) -> list[list[Group]] | None:
    """Return what works together on each level with several, from below.

    ``None`` if units hold unequal numbers of ranks.
    """
    levels = []
    part = 1.0
    place = {rank: i for i, rank in enumerate(ranks)}
    blocks = [[rank] for rank in ranks]
    for partition in (*units, None):
        joined: dict[str, list[list[int]]] = {}
        for block in blocks:
            unit = partition[block[0]] if partition else ""
            joined.setdefault(unit, []).append(block)
        count, *others = {len(found) for found in joined.values()}
        if others:
            return None
        if count > 1:
            levels.append(
                [
                    Group(peers, part)
                    for found in joined.values()
                    for peers in zip(*found, strict=True)
                ]
            )
        part /= count
        blocks = [
            sorted(itertools.chain(*found), key=place.__getitem__)
            for found in joined.values()
        ]
    return levels


def _hierarchical(
    routes: Routes, groups: Sequence[Ranks], units: Sequence[Sequence[str]]
) -> dict[Part, tuple[Line, ...]] | None:
    """Return a half going through the levels; an all-reduce at the top.

    A line per choice of algorithms that is best for some size.
    """
    nested = [_nested(ranks, units) for ranks in groups]
    able = [found for found in nested if found is not None]
    if len(able) < len(nested):
        return None
    levels = [
        list(itertools.chain(*running))
        for running in itertools.zip_longest(*able, fillvalue=())
    ]
    if len(levels) < 2:
        return None
    tables = [_flat(routes, level) for level in levels]
    halves = [_lines(table, "half") for table in tables]
    below = [tuple(line.times(2) for line in lines) for lines in halves[:-1]]
    return {
        "half": _sums(halves),
        "all-reduce": _sums([*below, _lines(tables[-1], "all-reduce")]),
    }


def _lines(
    table: Mapping[str, Mapping[Part, Line]], part: Part
) -> tuple[Line, ...]:
    return undominated(of[part] for of in table.values() if part in of)


def _sums(levels: Sequence[tuple[Line, ...]]) -> tuple[Line, ...]:
    """Return one line after the other, of every level one."""
    found: tuple[Line, ...] = (NOTHING,)
    for lines in levels:
        found = undominated(
            before.plus(line) for before in found for line in lines
        )
    return found


# Tori


def _torus(
    routes: Routes,
    groups: Sequence[Ranks],
    coordinates: Sequence[tuple[int, ...]],
) -> Line | None:
    """Return a half on boxes: two-way rings along each axis in turn.

    As many colours as axes, each starting with another one.
    """
    if not coordinates:
        return None
    boxes = []
    for ranks in groups:
        at = {coordinates[rank]: rank for rank in ranks}
        sides = [sorted(set(axis)) for axis in zip(*at, strict=True)]
        if len(at) < len(ranks) or set(at) != set(itertools.product(*sides)):
            return None
        boxes.append((at, sides))
    axes = [
        axis
        for axis in range(len(coordinates[0]))
        if any(len(sides[axis]) > 1 for _, sides in boxes)
    ]
    return line_of(
        routes,
        [
            together(
                [
                    _colour(
                        routes, at, sides, axes[colour:] + axes[:colour], step
                    )
                ]
                for at, sides in boxes
                for colour in range(len(axes))
            )[0]
            for step in range(len(axes))
        ],
    )


def _colour(
    routes: Routes,
    at: Mapping[tuple[int, ...], int],
    sides: Sequence[Sequence[int]],
    axes: Sequence[int],
    step: int,
) -> Phase:
    """Return a step of a colour in a box, which takes the axes in turn."""
    axis = axes[step]
    part = 1 / len(axes)
    for before in axes[:step]:
        part /= len(sides[before])
    if len(sides[axis]) == 1:
        return Phase(0, [])
    lines = itertools.product(
        *(
            side if number != axis else side[:1]
            for number, side in enumerate(sides)
        )
    )
    rings = [
        [at[(*place[:axis], i, *place[axis + 1 :])] for i in sides[axis]]
        for place in lines
    ]
    rings += [ring[::-1] for ring in rings]
    return _rings(routes, rings, part / 2)


# All of them


#: Names of all algorithms, in the order in which ties are decided.
NAMES = (
    "ring",
    "two-way-ring",
    "rotated-rings",
    "halving-doubling",
    "halving-doubling-far",
    "direct",
    "two-trees",
    "hierarchical",
    "torus",
)


def algorithms(
    routes: Routes, groups: Sequence[Ranks], places: Places
) -> dict[Part, dict[str, tuple[Line, ...]]]:
    """Return what all algorithms on offer take.

    Parameters
    ----------
    routes
        The network.
    groups
        Ranks of more than one member that run a collective at the same time.
    places
        Units and coordinates, as far as there are any.

    Returns
    -------
    Lines by kind and by name, in the order of :data:`NAMES`; one that takes
    the least of several has as many.
    """
    found: dict[str, Mapping[Part, tuple[Line, ...]]] = {
        name: {part: (line,) for part, line in of.items()}
        for name, of in _flat(routes, [Group(g) for g in groups]).items()
    }
    if places.units:
        finest = places.units[0]
        rotated = together(
            _rotated_rings(routes, ranks, finest) for ranks in groups
        )
        found["rotated-rings"] = _twice(line_of(routes, rotated))
        levels = _hierarchical(routes, groups, places.units)
        if levels is not None:
            found["hierarchical"] = levels
    torus = _torus(routes, groups, places.coordinates)
    if torus is not None:
        found["torus"] = _twice(torus)
    return {
        part: {
            name: tuple(line.rounded() for line in found[name][part])
            for name in NAMES
            if part in found.get(name, ())
        }
        for part in get_args(Part)
    }


def _twice(half: Line) -> dict[Part, tuple[Line, ...]]:
    return {"half": (half,), "all-reduce": (half.times(2),)}
