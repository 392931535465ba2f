"""A picture of a network, with the stages of a plan on its devices: SVG.

Devices stand in their order at the bottom, switches above them by how many
links they are from a device. Links inside a row are arcs beside it. The same
input gives the same text, so that pictures can be compared.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import networkx as nx

from nest.errors import InvalidPlanError
from nest.ir.plan import Plan
from nest.topology.routes import check_order, devices_of

#: Pixels.
_MARGIN, _ROW, _DEVICE, _SWITCH_WIDTH = 24.0, 90.0, 18.0, 12.0
_LEGEND_ROW, _LEGEND_WIDTH = 20.0, 240.0
_LEAST_WIDTH = 3 * _LEGEND_WIDTH
#: More devices than this have no numbers, and stand closer.
_NUMBERED = 128

_IDLE = "#dddddd"

Points = dict[Any, tuple[float, float]]


@dataclass(frozen=True)
class StageColors:
    """Which devices a plan's stages are on.

    ``labels`` has what the legend says of each block of devices, ``block_of`` the block
    of every position of the order; ``None`` if it is idle.
    """

    labels: tuple[str, ...]
    block_of: tuple[int | None, ...]


def plan_stages(plan: Plan, num_devices: int) -> StageColors:
    """Return which devices the stages of a plan are on.

    All replicas of a stage have one color. Chunks on the same block of an
    interleaved plan share it.

    Raises ``InvalidPlanError`` if the plan needs more devices than there are.
    """
    pitch = num_devices // plan.replicas
    if plan.devices_used > pitch:
        raise InvalidPlanError(
            f"plan: expected at most {num_devices} devices, got {plan.replicas} "
            f"replicas of {plan.devices_used}; plot it on its own network"
        )
    blocks: list[int | None] = []
    labels = []
    for block in range(plan.num_blocks):
        chunks = plan.chunks_of(block)
        stage = plan.stages[block]
        layers = sum(len(plan.stages[chunk].layers) for chunk in chunks)
        strategies = dict.fromkeys(
            str(strategy)
            for chunk in chunks
            for strategy in plan.stages[chunk].layer_strategies
        )
        labels.append(
            f"stage{'s' if len(chunks) > 1 else ''} "
            f"{', '.join(str(chunk + 1) for chunk in chunks)}: {layers} "
            f"layer{'s' if layers > 1 else ''}, {' '.join(strategies)}"
        )
        blocks += [block] * stage.devices
    blocks += [None] * (pitch - len(blocks))
    everywhere = blocks * plan.replicas
    everywhere += [None] * (num_devices - len(everywhere))
    return StageColors(tuple(labels), tuple(everywhere))


def network_svg(
    graph: nx.Graph, order: Sequence[Any] | None = None, plan: Plan | None = None
) -> str:
    """Return a picture of a network as SVG.

    Devices stand in ``order`` from left to right, by default in the one that comes with
    the graph. The stages of ``plan`` color them, with a legend.

    Raises ``InvalidProblemError`` if the order is not all devices, each once, and
    ``InvalidPlanError`` if the plan needs more devices than there are.
    """
    devices = devices_of(graph)
    if order is not None:
        devices = check_order(devices, order)
    stages = plan_stages(plan, len(devices)) if plan is not None else None
    rows = _rows(graph, devices)
    pitch = _DEVICE + (4.0 if len(devices) <= _NUMBERED else 0.0)
    widest = max(
        len(devices) * pitch,
        _SWITCH_WIDTH * max((len(row) for row in rows[1:]), default=0),
        _LEAST_WIDTH,
    )
    legend, legend_height = _legend(stages, widest)
    title = str(graph.graph.get("name", "network"))
    inner_links = [
        any(other in row for node in row for other in graph[node])
        for row in map(set, rows)
    ]
    top = _MARGIN + _LEGEND_ROW + legend_height
    top += _ROW if inner_links[-1] and len(rows) > 1 else 0.0
    bottom = top + _ROW * (len(rows) - 1) + _DEVICE
    points = _places(graph, rows, widest, bottom)
    height = bottom + _MARGIN + (_ROW if inner_links[0] else 0.0)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {widest + 2 * _MARGIN:.1f} {height:.1f}" '
        f'font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<text x="{_MARGIN:.1f}" y="{_MARGIN:.1f}" font-size="14">'
        f"{escape(title)}</text>",
        *legend,
        '<g class="links" fill="none" stroke="#888888">',
        *_links(graph, points, devices),
        "</g>",
        '<g class="switches" fill="#ffffff" stroke="#333333">',
        *_switches(rows[1:], points),
        "</g>",
        '<g class="devices" stroke="#333333">',
        *_devices(devices, points, stages),
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _rows(graph: nx.Graph, devices: Sequence[Any]) -> list[list[Any]]:
    """Return devices, then switches by their distance from a device."""
    layers = nx.multi_source_dijkstra_path_length(
        nx.Graph(graph), set(devices), weight=None
    )
    rows: list[list[Any]] = [list(devices)]
    # What no device reaches goes to the top.
    top = 1 + max(layers.values(), default=0)
    by_layer: dict[int, list[Any]] = {}
    for node in graph:
        if layers.get(node, top) > 0:
            by_layer.setdefault(layers.get(node, top), []).append(node)
    return rows + [by_layer[layer] for layer in sorted(by_layer)]


def _places(
    graph: nx.Graph, rows: list[list[Any]], width: float, bottom: float
) -> Points:
    """Return where nodes are: a switch above the middle of what it joins.

    Switches of a row are then spread so that they do not overlap.
    """
    pitch = width / len(rows[0])
    points: Points = {
        device: (_MARGIN + (i + 0.5) * pitch, bottom - _DEVICE / 2)
        for i, device in enumerate(rows[0])
    }
    for level, row in enumerate(rows[1:], start=1):
        middle = {}
        for node in row:
            below = [points[other][0] for other in graph[node] if other in points]
            middle[node] = sum(below) / len(below) if below else _MARGIN + width / 2
        ranked = sorted(row, key=lambda node: middle[node])
        positions = _spread([middle[node] for node in ranked], width)
        for node, x in zip(ranked, positions, strict=True):
            points[node] = (x, bottom - _DEVICE / 2 - level * _ROW)
    return points


def _spread(middles: Sequence[float], width: float) -> list[float]:
    """Return places near some, in increasing order, that do not overlap.

    Halfway between pushing all to the right and all to the left.
    """
    gap = min(3 * _SWITCH_WIDTH, width / len(middles))
    first, last = _MARGIN + gap / 2, _MARGIN + width - gap / 2
    from_left: list[float] = []
    for x in middles:
        from_left.append(max(x, from_left[-1] + gap if from_left else first))
    from_right: list[float] = []
    for x in reversed(middles):
        from_right.append(min(x, from_right[-1] - gap if from_right else last))
    positions = [
        (a + b) / 2 for a, b in zip(from_left, reversed(from_right), strict=True)
    ]
    for i, x in enumerate(positions):
        positions[i] = max(x, positions[i - 1] + gap if i else first)
    for i in reversed(range(len(positions))):
        limit = positions[i + 1] - gap if i + 1 < len(positions) else last
        positions[i] = min(positions[i], limit)
    return positions


def _links(graph: nx.Graph, points: Points, devices: Sequence[Any]) -> Iterator[str]:
    """Yield links: lines, and arcs beside a row that they stay in."""
    among = set(devices)
    fastest = max((bw for _, _, bw in graph.edges(data="bandwidth")), default=1.0)
    spans = [points[device][0] for device in devices]
    whole = max(spans) - min(spans) + _DEVICE
    for one, other, link in graph.edges(data=True):
        (x1, y1), (x2, y2) = points[one], points[other]
        path = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
        if y1 == y2:
            # The point that pulls a curve is twice as far out as its middle.
            pull = _DEVICE + 1.6 * _ROW * abs(x1 - x2) / whole
            pull = y1 + (pull if one in among else -pull)
            path = (
                f"M{x1:.1f} {y1:.1f}Q{(x1 + x2) / 2:.1f} {pull:.1f} {x2:.1f} {y2:.1f}"
            )
        width = 0.5 + 2.5 * link["bandwidth"] / fastest
        what = (
            f"{one} - {other}: {link['bandwidth'] / 1e9:g} GB/s, "
            f"{link['latency_ns']:g} ns"
        )
        yield (
            f'<path d="{path}" stroke-width="{width:.2f}">'
            f"<title>{escape(what)}</title></path>"
        )


def _switches(rows: Sequence[Sequence[Any]], points: Points) -> Iterator[str]:
    for row in rows:
        for node in row:
            x, y = points[node]
            yield (
                f'<circle class="switch" cx="{x:.1f}" cy="{y:.1f}" '
                f'r="{_SWITCH_WIDTH / 2:.1f}">'
                f"<title>{escape(str(node))}</title></circle>"
            )


def _devices(
    devices: Sequence[Any], points: Points, stages: StageColors | None
) -> Iterator[str]:
    """Yield devices: squares with their numbers, in their stage's color."""
    for rank, device in enumerate(devices):
        block = stages.block_of[rank] if stages is not None else None
        where = f"rank {rank}: {device}"
        if stages is not None:
            where += f", {'idle' if block is None else stages.labels[block]}"
        x, y = points[device]
        yield (
            f'<rect class="device" id={quoteattr(f"rank{rank}")} '
            f'x="{x - _DEVICE / 2:.1f}" y="{y - _DEVICE / 2:.1f}" '
            f'width="{_DEVICE:.1f}" height="{_DEVICE:.1f}" '
            f'fill="{_color(stages, block)}">'
            f"<title>{escape(where)}</title></rect>"
        )
        if len(devices) <= _NUMBERED:
            yield (
                f'<text x="{x:.1f}" y="{y + 3:.1f}" font-size="8" '
                f'stroke="none" text-anchor="middle">{rank}</text>'
            )


def _color(stages: StageColors | None, block: int | None) -> str:
    """Return the color of a block: hues as far apart as there is room."""
    if stages is None or block is None:
        return _IDLE
    hue = block / len(stages.labels)
    # Every other one is lighter, so that neighbors differ.
    light = 0.6 if block % 2 else 0.75
    red, green, blue = colorsys.hls_to_rgb(hue, light, 0.65)
    return "#" + "".join(f"{round(255 * c):02x}" for c in (red, green, blue))


def _legend(stages: StageColors | None, width: float) -> tuple[list[str], float]:
    """Return a swatch and a text for every block and idle devices; height."""
    if stages is None:
        return [], 0.0
    entries: Mapping[int | None, str] = dict(enumerate(stages.labels))
    if None in stages.block_of:
        entries = {**entries, None: "idle"}
    columns = max(1, int(width / _LEGEND_WIDTH))
    lines = []
    for index, (block, label) in enumerate(entries.items()):
        x = _MARGIN + index % columns * _LEGEND_WIDTH
        y = _MARGIN + _LEGEND_ROW * (1 + index // columns)
        lines.append(
            f'<g class="legend"><rect x="{x:.1f}" y="{y - 10:.1f}" '
            f'width="12" height="12" fill="{_color(stages, block)}" '
            f'stroke="#333333"/><text x="{x + 18:.1f}" y="{y:.1f}">'
            f"{escape(label)}</text></g>"
        )
    return lines, _LEGEND_ROW * -(-len(entries) // columns)
