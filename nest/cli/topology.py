"""``nest topology``: networks, and what collectives take on them."""

from __future__ import annotations

import sys
from typing import Any

import click

from nest.cli.inputs import Group
from nest.cli.options import Options, takes
from nest.errors import InvalidProblemError


@click.group("topology", cls=Group)
def topology_group() -> None:
    """Look at networks and price collectives on them."""


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
