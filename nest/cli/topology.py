"""``nest topology``: networks, and what collectives take on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nest.cli.declare import option
from nest.cli.inputs import Group, read_input, write_record
from nest.cli.options import TALK, Files, takes
from nest.errors import InvalidOptionError, InvalidProblemError
from nest.ir.io import decode, read_plan
from nest.requests.explaining import OrderRequest
from nest.requests.networks import find_network
from nest.requests.problems import NetworkRequest
from nest.requests.settings import Request
from nest.requests.values import also_needed, integer
from nest.topology.protocol import Block, ParallelGroups
from nest.util.files import write_atomically


@click.group("topology", cls=Group)
def topology_group() -> None:
    """Look at networks and price collectives on them."""


_NETWORK = click.argument("text", metavar="NETWORK")

_HOSTFILE = option("--hostfile FILE", "Write the host of every rank, one per line.")
_RANKFILE = option("--rankfile FILE", "Write host and device of every rank.")

#: What the options of a network say where it is not that of a model.
_HELPS: dict[str, Any] = {
    "beside": "What the file does not say, such as devices_per_node=8; "
    "repeatable, lists as 4e11/2e11.",
    "order": "Order of the devices: as given, one that keeps together what "
    "is close, or that of a rank file.  [default: given]",
}


def _write_hosts_and_ranks(files: dict[str, str | None], graph: Any) -> None:
    """Write the lists of ``--hostfile`` and ``--rankfile``."""
    from nest.topology.files import write_hostfile, write_rankfile

    if files["hostfile"]:
        write_hostfile(files["hostfile"], graph)
    if files["rankfile"]:
        write_rankfile(files["rankfile"], graph)


def _network(request: NetworkRequest, text: str) -> Any:
    return find_network(text, tuple(request.beside), request.order)


@topology_group.command("show")
@_NETWORK
@option("--plan PLAN", "Plan whose stages the picture shows.")
@option("--plot FILE", "Draw the network, as SVG.")
@_HOSTFILE
@_RANKFILE
@takes(
    NetworkRequest,
    "output",
    "json_path",
    output="Write the network as node-link JSON.",
    **_HELPS,
)
def show_command(
    request: NetworkRequest,
    written: Files,
    text: str,
    plan: str | None,
    **files: str | None,
) -> int:
    """Say what a network is like: levels, ports, bisection, order.

    NETWORK is a file (docs/topologies.md lists the formats) or a name such as
    torus:4x4x4 or leaf-spine:leaves=4,hosts=8 (docs/topologies-generators.md),
    or a cluster: its file (docs/files.md) or a name such as h100x64.
    """
    from nest.present.network import facts_block, facts_document
    from nest.topology.files import write_node_link
    from nest.topology.levels import network_facts
    from nest.topology.order import node_ranks
    from nest.topology.plot import network_svg

    if plan is not None and files["plot"] is None:
        raise also_needed("--plan", "--plot")
    written.check(
        request,
        {"NETWORK": text, "--plan": plan},
        {f"--{name}": path for name, path in files.items()},
    )
    graph = _network(request, text)
    ranks = graph.graph["order"]
    drawn = read_plan(plan) if plan is not None else None
    facts = network_facts(graph, ranks)
    written.show(*facts_block(facts, node_ranks(graph, ranks)))
    if files["plot"]:
        picture = network_svg(graph, ranks, drawn)
        write_atomically(Path(files["plot"]), picture.encode())
    _write_hosts_and_ranks(files, graph)
    if written.output is not None:
        write_node_link(written.output, graph)
    written.write_json(facts_document(facts, ranks))
    return 0


@topology_group.command("bench")
@_NETWORK
@option("--ranks N", "Ranks of a group.  [default: all devices]", integer())
@option("--stride N", "Devices between ranks.", integer(), default=1)
@takes(NetworkRequest, "json_path", **_HELPS)
def bench_command(
    request: NetworkRequest, files: Files, text: str, ranks: int | None, stride: int
) -> int:
    """Show what collectives take on a network, by size.

    Groups of so many ranks, so far apart, fill the devices in their order and
    all run at the same time; the best algorithm is named.
    """
    from nest.present.network import bench_block
    from nest.topology.graph import GraphNetwork
    from nest.topology.graph.bench import bench_rows
    from nest.topology.graph.convert import topology_of

    topology = topology_of(_network(request, text), text)
    devices = topology.max_devices
    size = ranks or devices // stride
    if size < 2 or devices % (size * stride):
        raise InvalidOptionError(
            f"--ranks: expected groups of at least 2 ranks that fill the {devices} "
            f"devices, got {size} with --stride {stride}; choose others"
        )
    block = Block(1, devices, 0, devices)
    groups = list(ParallelGroups(block, size, stride).groups())
    rows = bench_rows(GraphNetwork(topology), groups)
    if files.json_path != "-":
        what = f"{text}, {devices} devices"
        files.show(*bench_block(what, groups, rows))
    files.write_json({"network": text, "ranks": size, "stride": stride, "rows": rows})
    return 0


@topology_group.command("price")
@click.argument("path", metavar="CASE")
@takes(Request, "json_path")
def price_command(_: Request, files: Files, path: str) -> int:
    """Price a collective on a graph, with every algorithm on offer.

    CASE is a JSON or YAML file with a graph (node-link, as networkx writes
    it), groups of devices that work at the same time, a collective and its
    bytes; '-' is standard input. docs/files.md describes it.
    """
    from nest.present.network import price_block
    from nest.topology.graph.case import CollectiveCase, price

    files.check(reads={"CASE": path})
    where, data = read_input(path)
    case = decode(data, where, CollectiveCase, "case", InvalidProblemError)
    document = price(case, where)
    if files.json_path != "-":
        files.show(*price_block(case, document))
    files.write_json(document)
    return 0


@topology_group.command("order")
@_HOSTFILE
@_RANKFILE
@takes(OrderRequest, "output", "json_path", output="Write the problem in this order.")
def order_command(request: OrderRequest, written: Files, **files: str | None) -> int:
    """Look for an order of the devices in which a plan is faster.

    The network of PROBLEM is a graph. What PLAN sends, how often and between
    whom, says which devices to keep together; what it finds is scored. The
    rank file is one for --order, to plan anew in that order.
    """
    from nest.analysis.reorder import reorder
    from nest.present.network import order_block, order_document

    written.check(request, writes={f"--{name}": path for name, path in files.items()})
    result = reorder(*request.find_problem_and_plan(TALK))
    graph = result.graph
    written.show(*order_block(result, graph))
    _write_hosts_and_ranks(files, graph)
    if written.output is not None:
        write_record(written.output, result.problem)
    written.write_json(order_document(result, graph))
    return 0
