"""An order of devices as the files that launchers take.

Line ``r`` is that of rank ``r``. A device's host is its unit of the finest
partition (``units``), and its number there is counted as the graph lists the
devices; a device without a unit is a host of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import networkx as nx

from nest.topology.files.assemble import DEVICE, check_order
from nest.topology.files.source import Source, read_source, shown
from nest.util.files import write_atomically

_HOST = re.compile(r"\w[\w.:/-]*")


def slots(graph: nx.Graph) -> dict[str, tuple[str, int]]:
    """Return host and number of each device, in the graph's own order."""
    units = graph.graph.get("units") or [{}]
    home: dict[str, tuple[str, int]] = {}
    count: dict[str, int] = {}
    for device, kind in graph.nodes(data="kind"):
        if kind == DEVICE:
            host = units[0].get(device, device)
            home[device] = host, count.get(host, 0)
            count[host] = count.get(host, 0) + 1
    return home


def write_hostfile(
    path: str | Path, graph: nx.Graph, order: Sequence[str] | None = None
) -> None:
    """Write the host of each rank, one per line.

    ``order`` has the devices by rank; by default it is that of the graph. Raises
    ``InvalidProblemError`` if it is not all devices, each once, and ``NestError`` if
    the file cannot be written.
    """
    _write(path, [host for host, _ in _slots_by_rank(path, graph, order)])


def write_rankfile(
    path: str | Path, graph: nx.Graph, order: Sequence[str] | None = None
) -> None:
    """Write host and device of each rank: ``rank host:number``.

    Arguments and errors are those of :func:`write_hostfile`;
    :func:`read_rankfile` reads it again.
    """
    by_rank = enumerate(_slots_by_rank(path, graph, order))
    _write(path, [f"{rank} {host}:{index}" for rank, (host, index) in by_rank])


def read_rankfile(path: str | Path, graph: nx.Graph) -> list[str]:
    """Return the order of devices that a rank file says.

    Raises ``InvalidProblemError`` if a line is malformed, ranks are not counted from 0,
    or the order is not all devices of the graph, each once.
    """
    source = read_source(path)
    devices = {slot: device for device, slot in slots(graph).items()}
    order: list[str] = []
    for line_number, line in enumerate(source.text.splitlines(), start=1):
        if not line.strip():
            continue
        location = f"line {line_number}"
        match = re.fullmatch(r"\s*([0-9]+) (.+):([0-9]{1,9})\s*", line)
        if match is None or int(match[1][:18]) != len(order):
            raise source.refuse(
                location, f"'{len(order)} host:device'", shown(line), "correct the line"
            )
        slot = match[2], int(match[3])
        if slot not in devices:
            raise source.error(
                f"{location}: expected a device of the network, got "
                f"{slot[0]}:{slot[1]}; correct host or device"
            )
        order.append(devices[slot])
    check_order(source, list(devices.values()), order)
    return order


def _slots_by_rank(
    path: str | Path, graph: nx.Graph, order: Sequence[str] | None
) -> list[tuple[str, int]]:
    """Return host and number of each rank, for a file of a launcher.

    Launchers split lines at blanks, and shells hand hosts to ``ssh``: a host
    that is more than a word, or begins as an option does, is refused.
    """
    homes, file = slots(graph), Source(str(path), "")
    for host in dict.fromkeys(host for host, _ in homes.values()):
        if not _HOST.fullmatch(host):
            raise file.error(
                f"host: expected letters, digits and '._:/-' after a letter or digit, "
                f"got {shown(host)}; rename the node in the network"
            )
    if order is None:
        order = graph.graph["order"]
    check_order(file, list(homes), order)
    return [homes[device] for device in order]


def _write(path: str | Path, lines: Sequence[str]) -> None:
    write_atomically(Path(path), "".join(f"{one}\n" for one in lines).encode())
