"""Slurm's ``topology.conf``: a tree, blocks or rings, one per line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import networkx as nx

from nest.topology.files.slurm import Entry, blocks, rings, tree
from nest.topology.files.source import Source, shown


def read(source: Source) -> nx.Graph:
    """Read a ``topology.conf``: a tree, blocks or rings.

    Options state devices and ports of a node with their speed, and for trees and blocks
    the uplinks of each tier; ``part`` where nothing joins several roots or rings.
    """
    entries: dict[str, list[Entry]] = {}
    sizes: list[Any] = []
    for location, keys in _lines(source):
        kind = next((key for key in _LINES if key in keys), None)
        if kind is None or not keys.keys() <= _LINES[kind]:
            wrong = next(
                (key for key in keys if key not in _LINES.get(kind or "", ())), ""
            )
            raise source.error(
                f"{location}: expected SwitchName with Nodes or Switches, BlockName or "
                f"RingName with Nodes, or BlockSizes, got {shown(wrong)}; correct the "
                f"line"
            )
        if kind == "blocksizes":
            if sizes:
                raise source.refuse(
                    location, "BlockSizes once", "it twice", "remove one"
                )
            sizes = keys[kind].split(",")
            continue
        entry = Entry(location, keys[kind], keys.get("nodes"), keys.get("switches"))
        entries.setdefault(kind, []).append(entry)
    if len(entries) != 1 or (sizes and "blockname" not in entries):
        kinds = [_WORDS[kind] for kind in entries] or ["none of them"]
        raise source.refuse(
            "",
            "switches, blocks (with BlockSizes) or rings",
            " and ".join(kinds) + (" and BlockSizes" if sizes else ""),
            "keep one kind",
        )
    kind, members = next(iter(entries.items()))
    if kind == "switchname":
        return tree(source, members)
    if kind == "blockname":
        return blocks(source, members, sizes)
    return rings(source, members)


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
    line_number = 1
    # What is joined keeps its length, so that positions still tell lines.
    at = 0
    for line in text.splitlines(keepends=True):
        location = f"line {line_number}"
        line_number += source.text.count("\n", at, at + len(line))
        at += len(line)
        content = line.split("#")[0].strip()
        if not content:
            continue
        keys: dict[str, str] = {}
        for token in content.split():
            key, equals, value = token.partition("=")
            if not equals or not value:
                raise source.refuse(
                    location, "Key=Value", shown(token), "correct the line"
                )
            if key.lower() in keys:
                raise source.refuse(
                    location, "every key once", f"{key} twice", "remove one"
                )
            keys[key.lower()] = value
        yield location, keys
