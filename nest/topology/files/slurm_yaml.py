"""Slurm's ``topology.yaml``: named topologies, one of which is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import networkx as nx

from nest.errors import InvalidOptionError
from nest.topology.files import hosts
from nest.topology.files.beside import MEANING, Beside
from nest.topology.files.hosts import Host
from nest.topology.files.slurm import Entry, blocks, nodes_of, rings, tree
from nest.topology.files.source import Source, listed, parse_yaml, shown


def read(source: Source, beside: Beside) -> nx.Graph:
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


def _tree(source: Source, name: str, value: Any, beside: Beside) -> nx.Graph:
    entries = _entries(
        source,
        f"{name}.tree",
        value,
        ("switches", "switch"),
        {"children": "switches", "nodes": "nodes"},
    )
    return tree(source, entries, beside, name)


def _block(source: Source, name: str, value: Any, beside: Beside) -> nx.Graph:
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
    return blocks(source, entries, sizes, beside, name)


def _ring(source: Source, name: str, value: Any, beside: Beside) -> nx.Graph:
    entries = _entries(
        source, f"{name}.ring", value, ("rings", "ring"), {"nodes": "nodes"}
    )
    return rings(source, entries, beside)


def _torus(source: Source, name: str, value: Any, beside: Beside) -> nx.Graph:
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
    nodes = nodes_of(source, f"{chosen}.nodes", torus["nodes"])
    if prod(sizes) != len(nodes):
        raise source.refuse(
            f"{chosen}.nodes",
            f"{' x '.join(map(str, sizes))} = {prod(sizes)} nodes",
            len(nodes),
            "correct dims or nodes",
        )
    return hosts.torus(source, nodes, "Torus", sizes, beside, name=chosen)


def _flat(source: Source, name: str, value: Any, beside: Beside) -> nx.Graph:
    if value is not True:
        raise source.refuse(f"{name}.flat", "true", shown(value))
    count = int(beside.ask(source.where, "num_nodes"))
    places = [Host(f"node{number}", "switch") for number in range(count)]
    return hosts.tree(source, places, {}, beside, name=name)


_Reader = Callable[[Source, str, Any, Beside], nx.Graph]

#: The kinds of topologies in YAML.
_KINDS: dict[str, _Reader] = {
    "tree": _tree,
    "block": _block,
    "ring": _ring,
    "torus3d": _torus,
    "flat": _flat,
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
