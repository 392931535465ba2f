"""Hosts: which of their devices work, and in which order ranks take them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from math import gcd
from typing import NamedTuple

from nest.errors import InvalidOptionError, InvalidPlanError
from nest.hardware.machines import host_size
from nest.ir.cluster import Cluster
from nest.ir.documents import parse_json, refusing

HOSTS, RANK_MAP = "hostfile", "rank_map.json"


class Hosts(NamedTuple):
    """The plan's device of every rank, and how many devices a node has."""

    devices: tuple[int, ...]
    per_node: int

    @property
    def in_order(self) -> bool:
        """Whether ranks are devices: then there is nothing to map."""
        return self.devices == tuple(range(len(self.devices)))

    def files(self) -> dict[str, str]:
        """Return the host file, and the map where one is needed.

        A line per node with a working device, nodes in their order:
        ``node3 slots=8``.
        """
        slots = Counter(device // self.per_node for device in self.devices)
        lines = [f"node{node} slots={slots[node]}\n" for node in sorted(slots)]
        files = {HOSTS: "".join(lines)}
        if not self.in_order:
            files[RANK_MAP] = json.dumps(list(self.devices)) + "\n"
        return files

    def how(self) -> str:
        """Return in one line where ranks run."""
        if self.in_order:
            return (
                f"Rank i is device i mod {self.per_node} of the host in line "
                f"i div {self.per_node} (from 0) of {HOSTS}; put your names "
                f"of hosts there, in the order of the plan's devices."
            )
        return (
            f"Rank i runs on device d = {RANK_MAP}[i]: device d mod {self.per_node} of "
            f"node d div {self.per_node} in {HOSTS}; give every process its RANK and "
            f"LOCAL_RANK so, and put your names of hosts there."
        )


def node_size(cluster: Cluster, num_devices: int | None = None) -> int:
    """Return the devices of a node.

    Raises ``InvalidOptionError`` if neither the network nor the caller states it.
    """
    if num_devices is not None:
        return num_devices
    network = cluster.topology
    if network.kind == "hierarchy":
        joined = network.levels[0].fan_out
        # Links may join the devices of several hosts, as in a rack or a pod.
        return gcd(joined, host_size(cluster.device.name) or joined)
    # The finest units of a graph are nodes, or have the names of switches.
    names = network.nodes_of(range(cluster.num_devices))
    sizes = [len(list(run)) for _, run in groupby(names)]
    are_runs = len({*names}) == len(sizes) and {*sizes[:-1]} <= {max(sizes, default=0)}
    if names and are_runs and not {*names} & {node.id for node in network.nodes}:
        return sizes[0]
    raise InvalidOptionError(
        "--gpus-per-node: expected the devices of a node, got none, and the "
        "network does not say; add the option"
    )


def read_hosts(files: Mapping[str, str]) -> tuple[int, ...]:
    """Return the device of every rank from a host file and a map.

    Raises ``InvalidPlanError`` if a line or an entry is malformed, or they disagree.
    """
    world = 0
    for row, line in enumerate(files[HOSTS].splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"(\S+)\s+slots=([1-9]\d{0,6})", text)
        if match is None:
            raise InvalidPlanError(
                f"{HOSTS}:{row}: expected 'name slots=N', got {line!r}; correct it"
            )
        world += int(match[2])
    if RANK_MAP not in files:
        return tuple(range(world))
    devices = read_map(files[RANK_MAP], RANK_MAP)
    if len(devices) != world:
        raise InvalidPlanError(
            f"{RANK_MAP}: expected one device for each of the {world} slots "
            f"in {HOSTS}, got {len(devices)}; correct it"
        )
    return devices


def read_map(text: str, where: str) -> tuple[int, ...]:
    """Read the device of every rank.

    Raises ``InvalidPlanError`` if it is no list of devices, or one is there twice.
    """
    with refusing(where, InvalidPlanError):
        devices = parse_json(text, "a list of devices")
    if not isinstance(devices, list) or any(
        type(device) is not int or device < 0 for device in devices
    ):
        raise InvalidPlanError(
            f"{where}: expected a list of devices, got something else; correct it"
        )
    if len(set(devices)) != len(devices):
        raise InvalidPlanError(
            f"{where}: expected every device once, got one twice; correct it"
        )
    return tuple(devices)
