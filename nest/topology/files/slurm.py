"""Slurm's ``topology.conf`` and ``topology.yaml``.

Both list nodes: trees of switches, blocks, rings, and (YAML) 3-D tori and flat
clusters. Rules after the manual pages ``topology.conf.5`` and
``topology.yaml.5`` (commit 284c3b9). A link speed in them has no unit and is
never used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import networkx as nx

from nest.errors import InvalidOptionError
from nest.topology.files import hosts
from nest.topology.files.beside import MEANING, Beside
from nest.topology.files.hostlist import expand
from nest.topology.files.hosts import Host
from nest.topology.files.source import Source, listed, parse_yaml, shown

MAX_NAME = 64
MAX_RING = 16


class Entry(NamedTuple):
    """A switch, block or ring; ``place`` is where it is in the file."""

    place: str
    name: str
    nodes: str | None
    switches: str | None = None


def read_conf(source: Source, beside: Beside) -> nx.Graph:
    """Read a ``topology.conf``: a tree, blocks or rings.

    Asked for beside it: devices and ports of a node with their speed, and for
    trees and blocks the uplinks of each tier; ``part`` where nothing joins
    several roots or rings.

    Raises
    ------
    InvalidProblemError
        If a line cannot be read, kinds are mixed, or the switches, blocks or
        nodes are inconsistent.
    InvalidOptionError
        If something that is asked for is missing or does not fit.
    """
    entries: dict[str, list[Entry]] = {}
    sizes: list[Any] = []
    for place, keys in _lines(source):
        kind = next((key for key in _LINES if key in keys), None)
        if kind is None or not keys.keys() <= _LINES[kind]:
            wrong = next(
                (key for key in keys if key not in _LINES.get(kind or "", ())),
                "",
            )
            raise source.refuse(
                place,
                "SwitchName with Nodes or Switches, BlockName or RingName "
                "with Nodes, or BlockSizes",
                shown(wrong),
                "correct the line",
            )
        if kind == "blocksizes":
            if sizes:
                raise source.refuse(
                    place, "BlockSizes once", "it twice", "remove one"
                )
            sizes = keys[kind].split(",")
            continue
        entry = Entry(
            place, keys[kind], keys.get("nodes"), keys.get("switches")
        )
        entries.setdefault(kind, []).append(entry)
    if len(entries) != 1 or (sizes and "blockname" not in entries):
        kinds = [_WORDS[kind] for kind in entries] or ["none of them"]
        raise source.refuse(
            "",
            "switches, blocks (with BlockSizes) or rings",
            " and ".join(kinds) + (" and BlockSizes" if sizes else ""),
            "keep one kind",
        )
    kind, found = next(iter(entries.items()))
    if kind == "switchname":
        return _tree(source, found, beside)
    if kind == "blockname":
        return _blocks(source, found, sizes, beside)
    return _rings(source, found, beside)


#: The keys of a line, by the one that says what it is.
_LINES = {
    "switchname": {"switchname", "switches", "nodes", "linkspeed"},
    "blockname": {"blockname", "nodes"},
    "ringname": {"ringname", "nodes"},
    "blocksizes": {"blocksizes"},
}
_WORDS = {"switchname": "switches", "blockname": "blocks", "ringname": "rings"}


def _lines(source: Source) -> Iterable[tuple[str, dict[str, str]]]:
    """Yield the keys and values of each line, keys in lower case."""
    text = re.sub(r"\\\r?\n", lambda match: " " * len(match[0]), source.text)
    number = 1
    # What is joined keeps its length, so that positions still tell lines.
    at = 0
    for line in text.splitlines(keepends=True):
        place = f"line {number}"
        number += source.text.count("\n", at, at + len(line))
        at += len(line)
        content = line.split("#")[0].strip()
        if not content:
            continue
        keys: dict[str, str] = {}
        for word in content.split():
            key, equals, value = word.partition("=")
            if not equals or not value:
                raise source.refuse(
                    place, "Key=Value", shown(word), "correct the line"
                )
            if key.lower() in keys:
                raise source.refuse(
                    place, "every key once", f"{key} twice", "remove one"
                )
            keys[key.lower()] = value
        yield place, keys


def read_yaml(source: Source, beside: Beside) -> nx.Graph:
    """Read a ``topology.yaml``; ``topology`` says which of several to take.

    Without it, the only one is taken, or the one with ``cluster_default``.
    Asked for beside it is the same as for ``topology.conf``; of a flat
    topology, the number of nodes too.

    Raises
    ------
    InvalidProblemError
        If an entry is malformed or inconsistent.
    InvalidOptionError
        If something that is asked for is missing or does not fit.
    """
    entries = source.sequence("", parse_yaml(source))
    if not entries:
        raise source.refuse("", "topologies", "none", "add one")
    known: dict[str, dict[str, Any]] = {}
    for idx, item in enumerate(entries):
        place = f"[{idx}]"
        entry = source.mapping(
            place, item, ("topology", "cluster_default", *_KINDS)
        )
        if next(iter(entry), None) != "topology":
            raise source.refuse(
                place, "topology as the first key", shown([*entry][:1])
            )
        name = source.word(f"{place}.topology", entry["topology"])
        if name in known:
            raise source.refuse(
                place, "every topology once", f"{name} twice", "remove one"
            )
        known[name] = entry
    name = _named(source, known, beside)
    entry = known[name]
    kinds = [kind for kind in _KINDS if kind in entry]
    if len(kinds) != 1:
        raise source.refuse(
            name,
            f"exactly one of {', '.join(_KINDS)}",
            " and ".join(kinds) or "none",
            "keep one",
        )
    return _KINDS[kinds[0]](source, name, entry[kinds[0]], beside)


def _named(
    source: Source, known: Mapping[str, dict[str, Any]], beside: Beside
) -> str:
    if beside.topology is not None:
        if beside.topology not in known:
            raise InvalidOptionError(
                f"{source.where}: topology: expected one of {listed(known)}, "
                f"got {beside.topology!r}; give {MEANING['topology']}"
            )
        return beside.topology
    default = [name for name in known if known[name].get("cluster_default")]
    if len(known) > 1 and not default:
        raise source.refuse(
            "",
            "one topology, or one with cluster_default",
            f"{len(known)}: {listed(known)}",
            "give one of them as topology",
        )
    return (default or list(known))[0]


def _yaml_tree(
    source: Source, name: str, value: Any, beside: Beside
) -> nx.Graph:
    entries = _entries(
        source,
        f"{name}.tree",
        value,
        ("switches", "switch"),
        {"children": "switches", "nodes": "nodes"},
    )
    return _tree(source, entries, beside, name)


def _yaml_block(
    source: Source, name: str, value: Any, beside: Beside
) -> nx.Graph:
    place = f"{name}.block"
    entries = _entries(
        source,
        place,
        value,
        ("blocks", "block"),
        {"nodes": "nodes"},
        ("block_sizes",),
    )
    sizes = source.sequence(
        f"{place}.block_sizes", value.get("block_sizes", [])
    )
    return _blocks(source, entries, sizes, beside, name)


def _yaml_ring(
    source: Source, name: str, value: Any, beside: Beside
) -> nx.Graph:
    entries = _entries(
        source, f"{name}.ring", value, ("rings", "ring"), {"nodes": "nodes"}
    )
    return _rings(source, entries, beside)


def _yaml_torus(
    source: Source, name: str, value: Any, beside: Beside
) -> nx.Graph:
    place = f"{name}.torus3d"
    value = source.mapping(place, value, ("toruses",), ("toruses",))
    tori: dict[str, dict[str, Any]] = {}
    for idx, item in enumerate(
        source.sequence(f"{place}.toruses", value["toruses"])
    ):
        at = f"{place}.toruses[{idx}]"
        torus = source.mapping(
            at,
            item,
            ("name", "dims", "nodes", "placements"),
            ("name", "dims", "nodes"),
        )
        torus_name = source.word(f"{at}.name", torus["name"])
        if torus_name in tori:
            raise source.refuse(
                at, "every name once", f"{torus_name} twice", "rename one"
            )
        tori[torus_name] = torus
    if not tori:
        raise source.refuse(place, "tori", "none", "add one")
    chosen = hosts.choose(
        source, "separate tori", tori, beside, "keep one of them"
    )
    torus = tori[chosen]
    dims = source.mapping(
        f"{chosen}.dims", torus["dims"], ("x", "y", "z"), ("x", "y", "z")
    )
    sizes = [
        source.integer(f"{chosen}.dims.{axis}", dims[axis], least=1)
        for axis in "xyz"
    ]
    nodes = _nodes(source, f"{chosen}.nodes", torus["nodes"])
    if prod(sizes) != len(nodes):
        raise source.refuse(
            f"{chosen}.nodes",
            f"{' x '.join(map(str, sizes))} = {prod(sizes)} nodes",
            len(nodes),
            "correct dims or nodes",
        )
    return hosts.torus(source, nodes, "Torus", sizes, beside, name=chosen)


def _yaml_flat(
    source: Source, name: str, value: Any, beside: Beside
) -> nx.Graph:
    if value is not True:
        raise source.refuse(f"{name}.flat", "true", shown(value))
    count = int(beside.ask(source.where, "num_nodes"))
    places = [Host(f"node{number}", "switch") for number in range(count)]
    return hosts.tree(source, places, {}, beside, name=name)


_Reader = Callable[[Source, str, Any, Beside], nx.Graph]

#: The kinds of topologies in YAML.
_KINDS: dict[str, _Reader] = {
    "tree": _yaml_tree,
    "block": _yaml_block,
    "ring": _yaml_ring,
    "torus3d": _yaml_torus,
    "flat": _yaml_flat,
}


def _entries(
    source: Source,
    place: str,
    value: Any,
    names: tuple[str, str],
    keys: Mapping[str, str],
    others: tuple[str, ...] = (),
) -> list[Entry]:
    """Read a list of switches, blocks or rings.

    ``names`` are the key of the list and that of a name in it, ``keys`` those
    of hostlists with what they are in an :class:`Entry`.
    """
    several, one = names
    value = source.mapping(place, value, (several, *others), (several,))
    entries = []
    for idx, item in enumerate(
        source.sequence(f"{place}.{several}", value[several])
    ):
        at = f"{place}.{several}[{idx}]"
        item = source.mapping(at, item, (one, *keys), (one,))
        lists: dict[str, str | None] = {"nodes": None, "switches": None}
        for key, kind in keys.items():
            if item.get(key) is not None:
                lists[kind] = source.word(f"{at}.{key}", item[key])
        name = source.word(f"{at}.{one}", item[one])
        entries.append(Entry(at, name, lists["nodes"], lists["switches"]))
    if not entries:
        raise source.refuse(place, several, "none", "add some")
    return entries


def _nodes(source: Source, place: str, value: Any) -> list[str]:
    return expand(source.word(place, value), f"{source.where}: {place}")


def _tree(
    source: Source,
    entries: Sequence[Entry],
    beside: Beside,
    name: str | None = None,
) -> nx.Graph:
    _check_names(source, entries)
    known = {entry.name for entry in entries}
    parents: dict[str, str] = {}
    found: list[Host] = []
    for entry in entries:
        if (entry.nodes is None) == (entry.switches is None):
            raise source.refuse(
                entry.place,
                "nodes or switches below a switch",
                "both" if entry.nodes is not None else "neither",
                "give one of them",
            )
        where = f"{source.where}: {entry.place}"
        if entry.nodes is not None:
            found += [
                Host(node, entry.name) for node in expand(entry.nodes, where)
            ]
            continue
        for child in expand(entry.switches or "", where):
            if child not in known:
                raise source.refuse(
                    entry.place,
                    "switches that the file lists",
                    child,
                    "add it or correct the name",
                )
            if child in parents:
                raise source.refuse(
                    entry.place,
                    f"one switch above {child}",
                    f"{parents[child]} and {entry.name}",
                    "remove one",
                )
            parents[child] = entry.name
    if not found:
        raise source.refuse("", "nodes below the switches", "none", "add some")
    return hosts.tree(source, found, parents, beside, name=name)


def _blocks(
    source: Source,
    entries: Sequence[Entry],
    sizes: Sequence[Any],
    beside: Beside,
    name: str | None = None,
) -> nx.Graph:
    """Return blocks as switches below switches of so many blocks each.

    Nodes of a block beyond the base size (spares) are nodes like the others.
    """
    _check_names(source, entries)
    found: list[Host] = []
    counts = []
    for entry in entries:
        nodes = _nodes(source, entry.place, entry.nodes)
        counts.append(len(nodes))
        found += [Host(node, entry.name) for node in nodes]
    spans = _spans(source, entries, counts, sizes)
    parents: dict[str, str] = {}
    below = [entry.name for entry in entries]
    for tier, span in enumerate([*spans, len(below)]):
        # Groups of a tier hold whole groups of the one below.
        step = span // (spans[tier - 1] if tier else 1)
        last = tier == len(spans)
        if last:
            step = len(below)
        groups = [
            below[start : start + step] for start in range(0, len(below), step)
        ]
        if len(groups) == len(below):
            continue
        names = [f"blocks{tier + 1}/{number}" for number in range(len(groups))]
        for group, above in zip(groups, names, strict=True):
            parents.update(dict.fromkeys(group, above))
        below = names
    return hosts.tree(source, found, parents, beside, name=name)


def _spans(
    source: Source,
    entries: Sequence[Entry],
    counts: Sequence[int],
    sizes: Sequence[Any],
) -> list[int]:
    """Return how many blocks each planning size above the base spans."""
    values = [
        source.integer(f"BlockSizes[{idx}]", size, least=1)
        for idx, size in enumerate(sizes)
    ]
    if not values:
        return []
    base = values[0]
    for entry, count in zip(entries, counts, strict=True):
        if count < base:
            raise source.refuse(
                entry.place,
                f"at least the {base} nodes of the base BlockSizes in "
                f"{entry.name}",
                count,
                "add nodes or lower BlockSizes",
            )
    for low, high in pairwise(values):
        ratio = high // low
        if high % low or ratio < 2 or ratio & (ratio - 1):
            raise source.refuse(
                "BlockSizes",
                f"a size larger than {low} by a power of two",
                high,
            )
    most = base * len(entries)
    if values[-1] > most:
        raise source.refuse(
            "BlockSizes",
            f"at most the {most} nodes of {len(entries)} blocks of {base}",
            values[-1],
            "remove the sizes that are larger than the cluster",
        )
    return [value // base for value in values[1:]]


def _rings(
    source: Source, entries: Sequence[Entry], beside: Beside
) -> nx.Graph:
    _check_names(source, entries)
    rings: dict[str, list[str]] = {}
    for entry in entries:
        nodes = _nodes(source, entry.place, entry.nodes)
        if len(nodes) > MAX_RING:
            raise source.refuse(
                entry.place,
                f"at most {MAX_RING} nodes in a ring",
                len(nodes),
                "split the ring",
            )
        rings[entry.name] = nodes
    name = hosts.choose(
        source, "separate rings", rings, beside, "keep one of them"
    )
    nodes = rings[name]
    return hosts.torus(source, nodes, "Ring", [len(nodes)], beside, name=name)


def _check_names(source: Source, entries: Sequence[Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            raise source.refuse(
                entry.place,
                "every name once",
                f"{entry.name} twice",
                "rename or remove one",
            )
        if len(entry.name) > MAX_NAME:
            raise source.refuse(
                entry.place,
                f"a name of at most {MAX_NAME} characters",
                len(entry.name),
                "shorten it",
            )
        seen.add(entry.name)
