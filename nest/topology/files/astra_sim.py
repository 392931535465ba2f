"""Networks of ASTRA-sim's analytical backends (YAML).

One word, one number of devices, one bandwidth and one latency per dimension; dimension
0 varies fastest, and the graph is the product of the dimensions. Rules after
``common/network-parser/NetworkParser.cpp`` and ``common/NetworkFunction.cpp`` of
astra-sim/astra-network-analytical (commit 599a047): GB/s are 2**30 bytes/s, a message
through a Switch takes two links, a Ring is two-way, FullyConnected has a link per pair.
"""

from __future__ import annotations

from math import prod

import networkx as nx

from nest.topology.files.assemble import DEVICE, finish, telling
from nest.topology.files.lattice import Axis, coordinates, join, num_links
from nest.topology.files.source import Source, parse_yaml, shown
from nest.topology.generators.build import MAX_DEVICES, MAX_LINKS
from nest.units import GIB
from nest.util.text import count_text

WORDS = ("Ring", "Switch", "FullyConnected")
_KEYS = ("topology", "npus_count", "bandwidth", "latency")


def read(source: Source) -> nx.Graph:
    """Read a network of ASTRA-sim; no option completes it."""
    fields = source.mapping("", parse_yaml(source), _KEYS, _KEYS)
    lists = {key: source.sequence(key, fields[key]) for key in _KEYS}
    num_dims = len(lists["topology"])
    for key, values in lists.items():
        if len(values) != num_dims or not values:
            raise source.error(
                f"{key}: expected one value per dimension ({max(num_dims, 1)}), got "
                f"{len(values)}; make the lists equally long"
            )
    axes = [_axis(source, lists, dim) for dim in range(num_dims)]
    count = prod(axis.size for axis in axes)
    if count > MAX_DEVICES:
        raise source.refuse(
            "npus_count", f"at most {MAX_DEVICES} devices", count_text(count)
        )
    links = sum(count // axis.size * num_links(axis) for axis in axes)
    if links > MAX_LINKS:
        raise source.refuse("npus_count", f"at most {MAX_LINKS} links", links)
    names = [f"npu{device}" for device in range(count)]
    coordinates_of = coordinates(axes)
    # Across dimensions a message has to pass through devices.
    forward = num_dims > 1 or axes[0].kind == "Ring"
    graph = nx.Graph()
    graph.add_nodes_from(names, kind=DEVICE, forward=forward)
    join(graph, names, axes)
    if all(axis.kind == "Ring" for axis in axes):
        return finish(
            source,
            graph,
            names,
            coord=dict(zip(names, coordinates_of, strict=True)),
            wrap=[True] * num_dims,
        )
    units = [
        {
            name: "/".join(map(str, location[dim:]))
            for name, location in zip(names, coordinates_of, strict=True)
        }
        for dim in range(1, num_dims)
    ]
    return finish(source, graph, names, units=telling(units))


def _axis(source: Source, lists: dict[str, list[object]], dim: int) -> Axis:
    kind = lists["topology"][dim]
    if kind not in WORDS:
        raise source.refuse(f"topology[{dim}]", " or ".join(WORDS), shown(kind))
    gib_per_s = source.number(
        f"bandwidth[{dim}]",
        lists["bandwidth"][dim],
        positive=True,
        unit="GB/s of 2**30 bytes",
    )
    return Axis(
        str(kind),
        source.integer(f"npus_count[{dim}]", lists["npus_count"][dim], minimum=2),
        gib_per_s * GIB,
        source.number(
            f"latency[{dim}]", lists["latency"][dim], positive=False, unit="ns"
        ),
    )
