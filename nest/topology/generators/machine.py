"""Generated networks with the links of a machine.

Collectives reach as much of a data-sheet bandwidth, stated or not, as in the
machine's own network, with its latency and launch cost.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from nest.hardware.links import calibrated
from nest.hardware.machines import Machine
from nest.ir.cluster import Hierarchy, Level
from nest.topology.generators.text import build, read_name


def on_machine(text: str, site: Machine, order: str | None) -> Any:
    """Return the network that a name stands for on a machine.

    Nodes below leaf switches are levels, as in the machine's own network, with
    its bandwidths by default. Other networks are graphs, and so is a network
    whose devices have another order than the given one.
    """
    generator, stated = read_name(text)
    values: dict[str, Any] = {x.name: x.default for x in generator.parameters}
    values |= stated
    tree = generator.tree and generator.tree(values)
    links: dict[str, Level] = {}
    for name, default in values.items():
        link = name.removesuffix("_bytes_per_s")
        if link == name:
            continue
        own = site.node if link in ("nvlink", "pcie") else site.network
        default = own.bandwidth_bytes_per_s if tree else default
        data_sheet = replace(
            own,
            fan_out=tree[0] if tree else site.node.fan_out,
            bandwidth_bytes_per_s=stated.get(name, default),
            peer_bandwidth_bytes_per_s=None,
            group_fractions=(),
        )
        links[link] = level = calibrated(data_sheet)
        values[name] = level.bandwidth_bytes_per_s
        values[name] *= level.fraction(level.fan_out)
        latency = f"{link}_latency_ns"
        # Nothing was measured on the links between switches of a dragonfly.
        if level != data_sheet and link not in ("local", "global"):
            links_per_step = 2 if tree or link == "port" else 1
            fitted_ns = level.latency_ns / links_per_step
            values[latency] = stated.get(latency, fitted_ns)
    if tree:
        # The latency that was fitted for a port includes the switches.
        values["up_latency_ns"] = stated.get("up_latency_ns", 0.0)
    graph = build(generator.name, values)
    graph.graph["launch_ns"] = max(x.launch_ns for x in links.values())
    if not tree or order not in (None, "given"):
        return graph
    node, per_leaf = tree
    shared_by = node if values.get("ports") == "shared" else 1
    less = (1, shared_by, shared_by * values.get("oversubscription", 1.0))
    leaves = len(graph.graph["order"]) // (node * per_leaf)
    levels = []
    for index, fan_out in enumerate((node, per_leaf, leaves)):
        link = "nvlink" if node > 1 and not index else "port"
        bandwidth = links[link].bandwidth_bytes_per_s / less[index]
        latency_ns = 2 * values[f"{link}_latency_ns"]
        latency_ns += 2 * values["up_latency_ns"] * (index == 2)
        level = replace(
            links[link],
            fan_out=fan_out,
            bandwidth_bytes_per_s=bandwidth,
            latency_ns=latency_ns,
        )
        if index < 2 or fan_out > 1:
            levels.append(level)
    return Hierarchy(levels=tuple(levels), algorithms="nccl")
