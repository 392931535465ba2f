"""Properties of networks, and times of collectives on them, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, get_args

from rich.console import RenderableType

from nest.analysis.reorder import Reordered
from nest.ir.graph import CollectiveKind
from nest.present.table import key_lines, terminal_table
from nest.topology.graph.case import CollectiveCase
from nest.topology.levels import NetworkFacts, Range
from nest.topology.order import NodeRanks, node_ranks
from nest.units import quanta_to_ns
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale

GB = 1e9

Row = dict[str, Any]


def facts_block(
    facts: NetworkFacts, nodes: Sequence[NodeRanks]
) -> Iterator[RenderableType]:
    """Yield what a network is like, and its order of devices."""
    ports = _gb(facts.port_bytes_per_s)
    yield key_lines(
        [
            ("network", facts.name or "without a name"),
            (
                "size",
                f"{facts.num_devices} devices, {facts.num_switches} "
                f"switches, {facts.num_links} links",
            ),
            ("ports", f"{ports} GB/s per device, one way"),
            ("bisection", f"{_gb_of(facts.bisection_bytes_per_s)} GB/s"),
            (
                "diameter",
                f"{facts.diameter_hops} hops, {facts.diameter_latency_ns / 1e3:g} us",
            ),
            *_bounds_rows(facts),
            ("order", _order_text(nodes)),
        ]
    )
    if facts.partitions:
        yield ""
        columns = (
            Column("num_units", "units", right=True),
            Column("devices", form=_plain, right=True),
            Column("out_bytes_per_s", "out GB/s", _gb, right=True),
            Column("oversubscription", form=_plain, right=True, rank=1),
            Column(
                "bisection_bytes_per_s", "bisection GB/s", _gb_of, right=True, rank=2
            ),
        )
        yield terminal_table(Table.of(columns, facts.partitions))


def _bounds_rows(facts: NetworkFacts) -> list[tuple[str, str]]:
    """Return what a GB takes at least if all devices share it, if known."""
    bounds = facts.bounds_ns_per_byte
    if not bounds:
        return []
    scale = TimeScale.fitting(max(bounds.values()) * GB)
    kinds = ", ".join(f"{kind} {scale(bound * GB)}" for kind, bound in bounds.items())
    return [("bounds", f"{kinds} for 1 GB on all devices")]


def facts_document(facts: NetworkFacts, order: Sequence[str]) -> dict[str, Any]:
    """Return the same for ``--json``."""
    return {**asdict(facts), "order": list(order)}


def bench_block(
    what: str, groups: Sequence[Sequence[int]], rows: Sequence[Row]
) -> Iterator[RenderableType]:
    """Yield times of collectives by size, and what network they are of."""
    yield key_lines([("network", what), ("groups", _groups_text(groups))])
    yield ""
    kinds = get_args(CollectiveKind)
    cells = []
    for row in rows:
        scale = TimeScale.fitting(max(row[kind]["ns"] for kind in kinds))
        cases = [row[kind] for kind in kinds]
        times = (f"{scale(case['ns'])} {case['algorithm']}" for case in cases)
        cells.append((_size(row["bytes"]), *times))
    last = rows[-1]
    if all("bound_ns" in last[kind] for kind in kinds):
        bounds = [f"{scale(last[kind]['bound_ns'])} bound" for kind in kinds]
        cells.append(("", *bounds))
    columns = (
        Column("bytes", right=True),
        *(Column(kind, rank=rank, min_width=12) for rank, kind in enumerate(kinds, 1)),
    )
    yield terminal_table(Table(columns, cells))


def price_block(
    case: CollectiveCase, document: dict[str, Any]
) -> Iterator[RenderableType]:
    """Yield the price of a case, with every algorithm on offer."""
    bound_ns, best = document["bound_ns"], document["best"]
    scale = TimeScale.fitting(document["best_ns"])
    yield key_lines(
        [
            ("collective", f"{case.collective} of {case.bytes:g} bytes"),
            ("groups", _groups_text(case.groups)),
            ("lower bound", scale(bound_ns)),
        ]
    )
    yield ""
    columns = (
        Column("algorithm", min_width=16),
        Column("time", form=scale, right=True),
        Column("vs bound", right=True, rank=2),
        Column("", rank=1),
    )
    rows = [
        (
            name,
            time_ns,
            f"{time_ns / bound_ns:.3f}" if bound_ns else "",
            "best" if name == best else "",
        )
        for name, time_ns in document["algorithms"].items()
    ]
    yield terminal_table(Table(columns, rows))


def order_block(reordered: Reordered, graph: Any) -> Iterator[RenderableType]:
    """Yield what another order does to a plan, and its nodes with ranks."""
    quantum_ps = reordered.problem.quantum_ps
    before_ns, after_ns = (
        quanta_to_ns(quanta, quantum_ps)
        for quanta in (reordered.before_quanta, reordered.after_quanta)
    )
    scale = TimeScale.fitting(before_ns)
    gain = 1 - reordered.after_quanta / reordered.before_quanta
    order = graph.graph["order"]
    rows = [("step time", f"{scale(before_ns)}, in this order")]
    if gain > 0:
        rows = [
            ("step time", f"{scale(before_ns)} in the order of the problem"),
            ("", f"{scale(after_ns)} in this one, {100 * gain:.2g} % less"),
        ]
    yield key_lines([*rows, ("order", _order_text(node_ranks(graph, order)))])


def order_document(reordered: Reordered, graph: Any) -> dict[str, Any]:
    """Return the same for ``--json``."""
    order = graph.graph["order"]
    quantum_ps = reordered.problem.quantum_ps
    return {
        "before_ns": quanta_to_ns(reordered.before_quanta, quantum_ps),
        "after_ns": quanta_to_ns(reordered.after_quanta, quantum_ps),
        "order": order,
        "nodes": [
            {"node": node.node, "ranks": list(node.ranks)}
            for node in node_ranks(graph, order)
        ],
    }


def _groups_text(groups: Sequence[Sequence[int]]) -> str:
    sizes = sorted({len(group) for group in groups})
    return f"{len(groups)} × {' or '.join(map(str, sizes))} ranks"


def _size(size_bytes: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:g} {unit}"
    return f"{size_bytes / 2**10:g} KiB"


def _order_text(nodes: Sequence[NodeRanks], max_shown: int = 4) -> str:
    shown = [f"{node.node}: {_ranges(node.ranks)}" for node in list(nodes)[:max_shown]]
    rest = len(nodes) - max_shown
    return ", ".join(shown) + (f", … ({rest} more)" if rest > 0 else "")


def _ranges(ranks: Sequence[int]) -> str:
    first, last = ranks[0], ranks[-1]
    if len(ranks) > 1 and list(ranks) == list(range(first, last + 1)):
        return f"{first}–{last}"
    return " ".join(map(str, ranks))


def _plain(values: Range, scale: float = 1.0) -> str:
    low, high = values.least / scale, values.most / scale
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def _gb(values: Range) -> str:
    return _plain(values, 1e9)


def _gb_of(value: float) -> str:
    return f"{value / 1e9:g}"
