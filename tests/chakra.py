"""A replayer of Chakra traces that knows nothing of the project.

It reads the files byte by byte, as the encoding of protocol buffers has them
(https://protobuf.dev/programming-guides/encoding): a record is a number, its
fields, and what they hold.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7


class Node(NamedTuple):
    """A node: what is compared and replayed of it."""

    number: int
    name: str
    kind: int
    waits_for: tuple[int, ...]
    start_us: int
    duration_us: int
    attributes: dict[str, Any]


def number_at(data: bytes, at: int) -> tuple[int, int]:
    """Return a base-128 number, and where it ends."""
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the content of every field."""
    at = 0
    while at < len(data):
        key, at = number_at(data, at)
        if key & 7 == 0:
            content, at = number_at(data, at)
        else:
            assert key & 7 == 2
            size, at = number_at(data, at)
            content, at = data[at : at + size], at + size
        yield key >> 3, content


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file, each behind its length."""
    at = 0
    while at < len(data):
        size, at = number_at(data, at)
        yield data[at : at + size]
        at += size


def attribute(data: bytes) -> tuple[str, Any]:
    """Return an attribute: whole numbers, truth values and texts."""
    (_, name), (number, value) = fields(data)
    texts = {29: lambda x: x.decode(), 27: bool}
    return name.decode(), texts.get(number, int)(value)


def numbers(content: Any) -> Iterator[int]:
    """Yield numbers that stand behind each other."""
    at = 0
    while at < len(content):
        found, at = number_at(content, at)
        yield found


def node_of(data: bytes) -> Node:
    """Return a node."""
    single: dict[int, Any] = {}
    waits_for: list[int] = []
    attributes = {}
    for number, content in fields(data):
        if number in (4, 5):
            waits_for += numbers(content)
        elif number == 10:
            name, value = attribute(content)
            attributes[name] = value
        else:
            single[number] = content
    return Node(
        single[1],
        single[2].decode(),
        single[3],
        tuple(waits_for),
        single.get(6, 0),
        single.get(7, 0),
        attributes,
    )


def nodes_of(data: bytes) -> list[Node]:
    """Return the nodes of a file, behind its metadata."""
    return [node_of(record) for record in list(records(data))[1:]]


class Replayed(NamedTuple):
    """When the last node ends, and every node by rank and id."""

    end: int
    ends: dict[tuple[int, int], int]


def replay(files: Mapping[str, bytes], in_us: bool = False) -> Replayed:  # noqa: C901
    """Run traces, every rank one node at a time, as soon as it can.

    Of the nodes of a rank that can run, the one with the lowest id does:
    their order is otherwise what they wait for. Times are exact in ps, or
    whole µs as every reader of the format sees them.
    """
    ranks = [nodes_of(files[f"trace.{i}.et"]) for i in range(len(files))]
    waiting: dict[tuple[int, int], set[Any]] = {}
    behind: dict[Any, list[tuple[int, int]]] = {}
    known = {}
    for rank, nodes in enumerate(ranks):
        for node in nodes:
            here = rank, node.number
            needs: set[Any] = {(rank, number) for number in node.waits_for}
            if node.kind == RECEIVE:
                needs.add(message(node))
            known[here], waiting[here] = node, needs
            for need in needs:
                behind.setdefault(need, []).append(here)
    # Events: (time, rank); what can run on a rank, the lowest id first.
    able: list[list[int]] = [[] for _ in ranks]
    ready_at: dict[tuple[int, int], int] = {}
    free = [0] * len(ranks)
    ends: dict[tuple[int, int], int] = {}
    events: list[tuple[int, int, int, Any]] = []

    def arrive(what: Any, time: int) -> None:
        for here in behind.get(what, ()):
            waiting[here].discard(what)
            ready_at[here] = max(ready_at.get(here, 0), time)
            if not waiting[here]:
                heapq.heappush(able[here[0]], here[1])

    def run(rank: int) -> None:
        while able[rank]:
            here = rank, heapq.heappop(able[rank])
            node = known[here]
            start = max(free[rank], ready_at.get(here, 0))
            length = node.attributes["duration_ps"]
            if in_us:
                length = node.duration_us
                assert node.start_us == start
            free[rank] = ends[here] = start + length
            heapq.heappush(events, (free[rank], rank, here[1], here))

    for here, needs in waiting.items():
        if not needs:
            heapq.heappush(able[here[0]], here[1])
    for rank in range(len(ranks)):
        run(rank)
    while events:
        time, rank, _, here = heapq.heappop(events)
        arrive(here, time)
        touched = {rank}
        if known[here].kind == SEND:
            arrive(message(known[here]), time)
            touched.add(known[here].attributes["comm_dst"])
        for other in sorted(touched):
            run(other)
    assert len(ends) == len(known), "nodes wait for each other"
    return Replayed(max(ends.values()), ends)


def message(node: Node) -> tuple[str, int, int, int]:
    """Return what sender and receiver of a message have in common."""
    found = node.attributes
    return ("message", *(found[f"comm_{x}"] for x in ("src", "dst", "tag")))
