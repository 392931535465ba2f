"""``nest topology``: networks, and what collectives take on them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from nest.cli.declare import integer, option
from nest.cli.inputs import Group, check_output
from nest.cli.networks import find_network
from nest.cli.options import Options, takes
from nest.errors import InvalidOptionError, InvalidProblemError


@click.group("topology", cls=Group)
def topology_group() -> None:
    """Look at networks and price collectives on them."""


_NETWORK = (
    option(
        "--beside KEY=VALUE,…",
        "What the file does not say, such as devices_per_node=8; repeatable, "
        "lists as 4e11/2e11.",
        multiple=True,
    ),
    option(
        "--order given|auto|FILE",
        "Order of the devices: as given, one that keeps together what is "
        "close, or that of a rank file.  [default: given]",
    ),
)


def _named(command: Any) -> Any:
    for add in (*_NETWORK[::-1], click.argument("text", metavar="NETWORK")):
        command = add(command)
    return command


@topology_group.command("show")
@_named
@option("--plan PLAN", "Plan whose stages the picture shows.")
@option("--plot FILE", "Draw the network, as SVG.")
@option("--hostfile FILE", "Write the host of every rank, one per line.")
@option("--rankfile FILE", "Write host and device of every rank.")
@takes("output", "json_path", output="Write the network as node-link JSON.")
def show_command(
    options: Options,
    text: str,
    beside: tuple[str, ...],
    order: str | None,
    plan: str | None,
    **files: str | None,
) -> int:
    """Say what a network is like: levels, ports, bisection, order.

    NETWORK is a file (docs/topologies.md lists the formats) or a name such as
    torus:4x4x4 or leaf-spine:leaves=4,hosts=8 (docs/topologies-generators.md).
    """
    from nest.ir.io import read_plan, write_atomically
    from nest.report.network import facts_block, facts_document
    from nest.report.table import show
    from nest.topology.files import (
        write_hostfile,
        write_node_link,
        write_rankfile,
    )
    from nest.topology.levels import network_facts
    from nest.topology.order import node_ranks
    from nest.topology.plot import network_svg

    if plan is not None and files["plot"] is None:
        raise InvalidOptionError(
            "--plan: expected --plot too, got none; add it"
        )
    options.check_files({"NETWORK": text, "--plan": plan})
    for name, path in files.items():
        check_output(path, f"--{name}")
    graph = find_network(text, beside, order)
    ranks = graph.graph["order"]
    drawn = read_plan(plan) if plan is not None else None
    facts = network_facts(graph, ranks)
    show(options.people, *facts_block(facts, node_ranks(graph, ranks)))
    if files["plot"]:
        picture = network_svg(graph, ranks, drawn)
        write_atomically(Path(files["plot"]), picture.encode())
    if files["hostfile"]:
        write_hostfile(files["hostfile"], graph)
    if files["rankfile"]:
        write_rankfile(files["rankfile"], graph)
    if options.output is not None:
        write_node_link(options.output, graph)
    options.write_json(facts_document(facts, ranks))
    return 0


@topology_group.command("bench")
@_named
@option("--ranks N", "Ranks of a group.  [default: all devices]", integer())
@option("--stride N", "Devices between ranks.", integer(), default=1)
@takes("json_path")
def bench_command(
    options: Options,
    text: str,
    beside: tuple[str, ...],
    order: str | None,
    ranks: int | None,
    stride: int,
) -> int:
    """Show what collectives take on a network, by size.

    Groups of so many ranks, so far apart, fill the devices in their order and
    all run at the same time; the best algorithm is named.
    """
    from nest.report.network import bench_rows, bench_table
    from nest.report.table import key_lines, show
    from nest.topology.graph import GraphNetwork
    from nest.topology.graph.convert import topology_of
    from nest.topology.protocol import Block, ParallelGroups

    topology = topology_of(find_network(text, beside, order), text)
    devices = topology.max_devices
    size = ranks or devices // stride
    if size < 2 or devices % (size * stride):
        raise InvalidOptionError(
            f"--ranks: expected groups of at least 2 ranks that fill the "
            f"{devices} devices, got {size} with --stride {stride}; choose "
            f"others"
        )
    block = Block(1, devices, 0, devices)
    groups = list(ParallelGroups(block, size, stride).groups())
    rows = bench_rows(GraphNetwork(topology), groups)
    if options.json_path != "-":
        show(
            options.people,
            key_lines(
                [
                    ("network", f"{text}, {devices} devices"),
                    ("groups", f"{len(groups)} × {size} ranks"),
                ]
            ),
            "",
            bench_table(rows),
        )
    options.write_json(
        {"network": text, "ranks": size, "stride": stride, "rows": rows}
    )
    return 0


@topology_group.command("price")
@click.argument("path", metavar="CASE")
@takes("json_path")
def price_command(options: Options, path: str) -> int:
    """Price a collective on a graph, with every algorithm on offer.

    CASE is a JSON or YAML file with a graph (node-link, as networkx writes
    it), groups of devices that work at the same time, a collective and its
    bytes; '-' is standard input. docs/files.md describes it.
    """
    from nest.ir.io import decode, read_bytes
    from nest.topology.graph.case import Case, price

    options.check_files({"CASE": path})
    if path == "-":
        where, data = "standard input", sys.stdin.buffer.read()
    else:
        where, data = path, read_bytes(path, InvalidProblemError)
    case = decode(data, where, Case, "case", InvalidProblemError)
    document = price(case, where)
    _show(options, case, document)
    options.write_json(document)
    return 0


def _show(options: Options, case: Any, document: dict[str, Any]) -> None:
    from nest.report.table import TimeScale, key_lines, show, simple_table

    if options.json_path == "-":
        return
    scale = TimeScale.fitting(document["best_ns"])
    sizes = sorted({len(group) for group in case.groups})
    groups = f"{len(case.groups)} × {' or '.join(map(str, sizes))} ranks"
    rows = [
        (
            name,
            scale(time_ns),
            f"{time_ns / document['bound_ns']:.3f}"
            if document["bound_ns"]
            else "",
            "best" if name == document["best"] else "",
        )
        for name, time_ns in document["algorithms"].items()
    ]
    show(
        options.people,
        key_lines(
            [
                ("collective", f"{case.collective} of {case.bytes:g} bytes"),
                ("groups", groups),
                ("lower bound", scale(document["bound_ns"])),
            ]
        ),
        "",
        simple_table(
            ("algorithm", "time", "vs bound", ""), rows, right=(1, 2)
        ),
    )
