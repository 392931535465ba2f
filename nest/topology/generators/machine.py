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
from nest.topology.generators.text import build, check_spines, generate, read_name


def on_machine(text: str, site: Machine, order: str | None) -> Any:
    """Return the network that a name stands for on a machine.

    Nodes below leaf switches are levels, as in the machine's own network, with
    its links where no bandwidth is stated. Other networks are graphs, and so
    is a network whose devices have another order than the given one.
    """
    graph = generate(text)
    generator, stated = read_name(text)
    values: dict[str, Any] = {x.name: x.default for x in generator.parameters}
    values |= stated
    tree = generator.tree and generator.tree(values)
    links: dict[str, Level] = {}
    for name, bandwidth in values.items():
        link = name.removesuffix("_bytes_per_s")
        if link == name:
            continue
        data_sheet = site.node if link in ("nvlink", "pcie") else site.network
        if tree:
            data_sheet = replace(data_sheet, fan_out=tree[0])
        if not tree or name in stated:
            data_sheet = replace(
                data_sheet,
                bandwidth_bytes_per_s=bandwidth,
                peer_bandwidth_bytes_per_s=None,
                group_fractions=(),
            )
        level = calibrated(data_sheet)
        values[name] = level.bandwidth_bytes_per_s
        values[name] *= level.fraction(level.fan_out)
        latency = f"{link}_latency_ns"
        # Nothing was measured on the links between switches of a dragonfly.
        if level != data_sheet and link not in ("local", "global"):
            links_per_step = 2 if tree or link == "port" else 1
            fitted_ns = level.latency_ns / links_per_step
            values[latency] = stated.get(latency, fitted_ns)
        links[link] = replace(level, latency_ns=2 * values[latency])
    if tree:
        # The latency that was fitted for a port includes the switches.
        values["up_latency_ns"] = stated.get("up_latency_ns", 0.0)
    if not tree or order not in (None, "given"):
        graph = build(generator, values)
        graph.graph["launch_ns"] = max(x.launch_ns for x in links.values())
        return graph
    node, per_leaf = tree
    leaf = replace(links["port"], fan_out=per_leaf)
    if values.get("ports") == "shared":
        rate = leaf.bandwidth_bytes_per_s / node
        leaf = replace(leaf, bandwidth_bytes_per_s=rate)
    rate = leaf.bandwidth_bytes_per_s
    spine = replace(
        leaf,
        fan_out=len(graph.graph["order"]) // (node * per_leaf),
        bandwidth_bytes_per_s=rate / values.get("oversubscription", 1.0),
        latency_ns=leaf.latency_ns + 2 * values["up_latency_ns"],
    )
    if spine.fan_out == 1:
        check_spines(generator, stated)
    inside = replace(links.get("nvlink", leaf), fan_out=node)
    levels = [inside, leaf, spine][: 3 if spine.fan_out > 1 else 2]
    return Hierarchy(levels=tuple(levels), algorithms="nccl")
