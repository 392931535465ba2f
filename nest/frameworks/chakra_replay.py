"""Traces as files say them: read, checked, and run node by node.

Nothing here knows plans. What no replay could end is refused, and says which
node of which file it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nest.frameworks.chakra_format import Node, Trace, Value, decode, refuse

#: Files are called so, behind them the number of the block.
PREFIX = "trace"


def read(files: Mapping[str, bytes]) -> list[Trace]:
    """Read traces, and refuse what no replay could end.

    Raises ``InvalidPlanError`` if a file is missing or broken, a node occurs twice or
    waits for one that does not come before it, has no duration, or a message has no
    sender or no receiver; the text names file and node.
    """
    names = [f"{PREFIX}.{number}.et" for number in range(len(files))]
    for name in names:
        if name not in files:
            raise refuse(
                "files", f"{PREFIX}.0.et to {PREFIX}.{len(files) - 1}.et", f"no {name}"
            )
    traces = [decode(files[name], name) for name in names]
    for block, (name, trace) in enumerate(zip(names, traces, strict=True)):
        for field, value in (("block", block), ("num_blocks", len(names))):
            got = trace.attributes.get(field)
            if got != value:
                raise refuse(f"{name}: metadata: {field}", str(value), str(got))
        _check_nodes(name, trace.nodes)
    _check_messages(names, traces)
    return traces


def _check_nodes(name: str, nodes: Sequence[Node]) -> None:
    seen: set[int] = set()
    for index, node in enumerate(nodes, 1):
        where = f"{name}: node {index}"
        if not node.number or node.number in seen:
            raise refuse(where, "an id of its own", str(node.number))
        for needed_id in (*node.ctrl_deps, *node.data_deps):
            if needed_id not in seen:
                raise refuse(where, "to wait for nodes before it", f"node {needed_id}")
        needed = ["is_cpu_op", "phase", "duration_ps"]
        if node.kind in ("send", "receive"):
            needed += ["comm_src", "comm_dst", "comm_tag", "comm_size"]
        elif node.kind == "collective":
            needed += ["comm_type", "comm_size", "pg_name"]
        for field in needed:
            if field not in node.attributes:
                raise refuse(where, f"attribute {field}", "none")
        seen.add(node.number)


def _check_messages(names: Sequence[str], traces: Sequence[Trace]) -> None:
    """Refuse messages that are not sent once and received once."""
    sides: dict[str, dict[tuple[Value, ...], str]] = {"send": {}, "receive": {}}
    for block, (name, trace) in enumerate(zip(names, traces, strict=True)):
        for index, node in enumerate(trace.nodes, 1):
            if node.kind not in sides:
                continue
            key = _message(node)
            end = "comm_src" if node.kind == "send" else "comm_dst"
            where = f"{name}: node {index}"
            if node.attributes[end] != block:
                raise refuse(f"{where}: {end}", str(block), str(node.attributes[end]))
            before = sides[node.kind].setdefault(key, where)
            if before != where:
                expected = f"a message of its own tag to {node.kind}"
                raise refuse(where, expected, f"that of {before}")
    for kind, other in (("send", "receive"), ("receive", "send")):
        for key, where in sides[kind].items():
            if key not in sides[other]:
                expected = f"a node that {other}s the same tag and bytes"
                raise refuse(where, expected, "none")


def _message(node: Node) -> tuple[Value, ...]:
    attributes = node.attributes
    return tuple(attributes[f"comm_{name}"] for name in ("src", "dst", "tag", "size"))


def replay(traces: Sequence[Trace]) -> list[list[int]]:
    """Run the nodes of every trace in order, one at a time.

    A node starts when its trace has ended the one before, the nodes that it
    waits for have ended, and, if it receives, the node that sends has. Returned is
    when every node of every trace ends, in ps.

    Raises ``InvalidPlanError`` if nodes wait for each other.
    """
    ends: list[list[int]] = [[] for _ in traces]
    end_of_node: list[dict[int, int]] = [{} for _ in traces]
    sent: dict[tuple[Value, ...], int] = {}
    moved = True
    while moved:
        moved = False
        for block, trace in enumerate(traces):
            block_ends, ends_by_id = ends[block], end_of_node[block]
            while len(block_ends) < len(trace.nodes):
                node = trace.nodes[len(block_ends)]
                start = block_ends[-1] if block_ends else 0
                if node.kind == "receive":
                    arrived = sent.get(_message(node))
                    if arrived is None:
                        break
                    start = max(start, arrived)
                for needed_id in (*node.ctrl_deps, *node.data_deps):
                    start = max(start, ends_by_id[needed_id])
                end = start + duration_ps(node)
                if node.kind == "send":
                    sent[_message(node)] = end
                ends_by_id[node.number] = end
                block_ends.append(end)
                moved = True
    for block, (block_ends, trace) in enumerate(zip(ends, traces, strict=True)):
        if len(block_ends) < len(trace.nodes):
            where = f"{PREFIX}.{block}.et: node {len(block_ends) + 1}"
            got = "nodes that wait for each other"
            raise refuse(where, "a message that can arrive", got)
    return ends


def duration_ps(node: Node) -> int:
    """Return how long a node takes."""
    return int(node.attributes["duration_ps"])
