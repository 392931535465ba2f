"""The charts of a page in Vega-Lite: data, and how to show them.

Source of the language: Satyanarayan et al., *Vega-Lite: A Grammar of
Interactive Graphics*, InfoVis 2016. Every mark has a text of its own
(``tip``), which a page shows where somebody points at it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from nest.analysis.page_facts import MOST_RANGES, Document
from nest.units import GIB, format_bytes
from nest.util.time_scale import TimeScale

Spec = dict[str, Any]

#: Told apart on white and on black, and by most of those who see few colors
#: (Okabe and Ito 2008, and five between).
COLORS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#8c6bb1", "#a6761d", "#7f7f7f", "#1b9e9e", "#b2468c"),
)

#: Of marks, for those who see few colors.
SHAPES = (
    *("circle", "square", "triangle-up", "cross", "diamond"),
    *("triangle-down", "triangle-right", "triangle-left"),
)

#: Stands for the color of the text around, which a chart cannot name.
TEXT = "#010203"

#: The same of the color behind it, between bars.
BACK = "#030201"

#: The limit of memory, and lines that mean "no further".
_LIMIT = "#e03030"

#: Pixels that a chart is wide, everything included.
WIDTH = 960

#: The same where the window is that of a telephone, and letters of a name.
NARROW, _LETTERS = 358, 16

#: Pixels of a letter where fonts are wide: charts are laid out in one font
#: and shown in another.
_LETTER = 7.3

#: Borders of units that a map shows at most.
_MOST_BORDERS = 160

#: Units of a level that a picture of the network shows one by one.
_MOST_BARS = 256

#: Parts of the memory of a device, for people, in the order of the bars.
MEMORY_PARTS = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "state_bytes": "optimizer state",
    "buffer_bytes": "buffers",
    "kept_bytes": "activations",
    "working_bytes": "working set",
    "reserve_bytes": "reserve",
}

#: Events of a timeline, for people, with their colors.
EVENTS = {
    "forward": ("forward", COLORS[0]),
    "backward": ("backward", COLORS[1]),
    "input-gradient": ("backward, inputs", COLORS[1]),
    "weight-gradient": ("backward, weights", COLORS[4]),
    "receive-forward": ("receive", COLORS[8]),
    "receive-backward": ("receive", COLORS[8]),
    "sync": ("sync and update", COLORS[2]),
}


def block_label(block: Document) -> str:
    """Return what a block of devices is called: its stages."""
    numbers = block["stages"]
    if len(numbers) == 1:
        return f"stage {numbers[0]}"
    return f"stages {', '.join(map(str, numbers))}"


def some(texts: Sequence[str], max_texts: int = 3) -> str:
    """Return texts on one line; of many, the first ones and a count."""
    if len(texts) <= max_texts:
        return " | ".join(texts)
    first = " | ".join(texts[: max_texts - 1])
    return f"{first} | {len(texts) - max_texts + 1} others"


def chart(values: Sequence[Document], **more: Any) -> Spec:
    """Return a chart as wide as a page; ``more`` are its other fields."""
    return {
        "width": WIDTH,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"values": list(values)},
        **more,
    }


def narrow(spec: Any) -> Any:
    """Return a chart, or a part of it, for a window as wide as a telephone.

    Names take several lines, and legends one column or two.
    """
    if isinstance(spec, list):
        return [narrow(each) for each in spec]
    if not isinstance(spec, dict):
        return spec
    made = {
        key: value if key in ("data", "scale") else narrow(value)
        for key, value in spec.items()
    }
    if made.get("width") == WIDTH:
        made["width"] = NARROW
        texts = [line for names in _sorted_names(spec) for line in names.values()]
        num_lines = max((len(lines) for lines in texts), default=1)
        step = made.get("height")
        if isinstance(step, dict) and num_lines > 1:
            made["height"] = {"step": max(step["step"], 15 * num_lines + 4)}
    if "labelLimit" in made and "columns" in made:
        wide = made.get("columnPadding", 0) > 30
        made |= {"columns": 1 if wide else 2, "labelLimit": NARROW - 40}
    elif isinstance(made.get("sort"), list) and "axis" in made:
        (lines,) = _sorted_names({"": spec})
        longest = max((len(x) for y in lines.values() for x in y), default=0)
        made["axis"] |= {
            "labelExpr": f"({json.dumps(lines)})[datum.label]",
            "minExtent": _LETTER * longest,
        }
    return made


def _sorted_names(spec: Any) -> list[dict[str, list[str]]]:
    """Return the names on axes below a part of a chart, in lines."""
    if isinstance(spec, list):
        return [names for each in spec for names in _sorted_names(each)]
    if not isinstance(spec, dict):
        return []
    order = spec.get("sort")
    if isinstance(order, list) and "axis" in spec:
        return [{x: textwrap.wrap(x, _LETTERS) or [""] for x in order}]
    return _sorted_names([v for k, v in spec.items() if k != "data"])


def _rows(count: int) -> dict[str, int]:
    """Return how high a row of bars is: less where there are many."""
    return {"step": 26 if count <= 24 else 16 if count <= 64 else 9}


def number_axis(
    field: str,
    title: str,
    zero: bool = True,
    scale: str = "linear",
    maximum: float | None = None,
    **more: Any,
) -> Spec:
    """Return an axis of numbers, which may begin at 0.

    ``scale`` is ``linear``, ``log`` or ``symlog``; ``maximum`` is where the axis ends,
    if that is fixed.
    """
    how: Spec = {"type": scale, "nice": scale == "linear", "zero": zero}
    if scale == "log":
        how = {"type": "log", "nice": False}
    if scale == "symlog":
        how = {"type": "symlog", "constant": 0.1, "nice": False}
    if maximum is not None:
        how |= {"domain": [0, maximum]}
    return {
        **quantity(field),
        "title": title,
        "scale": how,
        "axis": {"labelOverlap": True},
        **more,
    }


def mark(kind: str, **look: Any) -> Spec:
    """Return a mark, such as a bar, and how it looks."""
    return {"type": kind, **look}


def layer(
    shown: Spec,
    *,
    values: Sequence[Document] | None = None,
    tip: bool = True,
    **encoding: Spec,
) -> Spec:
    """Return a layer of a chart: a mark, and what its channels show.

    Its records are ``values``, by default those of the chart. With ``tip`` each mark
    has the text of its record.
    """
    if tip:
        encoding["description"] = TIP
    made: Spec = {"mark": shown, "encoding": encoding}
    if values is not None:
        made["data"] = {"values": list(values)}
    return made


def quantity(field: str) -> Spec:
    """Return a channel of numbers on an axis that another layer has."""
    return {"field": field, "type": "quantitative"}


def text_of(field: str) -> Spec:
    """Return a channel of texts."""
    return {"field": field, "type": "nominal"}


def kinds(
    field: str, order: Sequence[str], look: Sequence[Any] = (), **more: Any
) -> Spec:
    """Return a channel with a look for each of some names.

    ``look`` are the looks in the order of the names; by default Vega-Lite chooses them.
    """
    scale: Spec = {"domain": list(order)}
    if look:
        scale["range"] = list(look)
    return {**text_of(field), "scale": scale, **more}


def _upright(axis: Spec) -> Spec:
    """Return an axis of numbers that stands, with room for wide ones."""
    return {**axis, "axis": {**axis["axis"], "minExtent": 56}}


def names(field: str, order: Sequence[str]) -> Spec:
    """Return an axis of names, with room for long ones."""
    return {
        **text_of(field),
        "sort": list(order),
        "title": None,
        "axis": {
            "labelLimit": 300,
            "minExtent": min(300, _LETTER * max(map(len, order), default=0)),
            "grid": False,
            "ticks": False,
        },
    }


def color_of(index: int) -> str:
    """Return a color: those of :data:`COLORS`, then lighter, then darker."""
    turn, base = divmod(index, len(COLORS))
    text = COLORS[base]
    light, fraction = ((0, 0.0), (255, 0.5), (0, 0.4))[turn % 3]
    channels = (int(text[at : at + 2], 16) for at in (1, 3, 5))
    mixed = (round(channel + fraction * (light - channel)) for channel in channels)
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def shapes(field: str, order: Sequence[str]) -> Spec:
    """Return a shape per name, which its color need not be told from."""
    look = [SHAPES[i % len(SHAPES)] for i in range(len(order))]
    return kinds(field, order, look, title=None)


def colors(field: str, order: Sequence[str], columns: int = 4) -> Spec:
    """Return a color per name, with a legend below."""
    longest = max(map(len, order), default=0)
    legend = {
        "orient": "bottom",
        "columns": columns,
        "columnPadding": 8 + min(150, 1.5 * longest),
        "labelLimit": 420,
    }
    look = [color_of(i) for i in range(len(order))]
    return kinds(field, order, look, title=None, legend=legend)


def _marked(spec: Spec) -> Spec:
    """Return a channel of two whose legends are one, which shows the marks."""
    legend = {"orient": "bottom", "columns": 4, "symbolType": None}
    return {**spec, "legend": {**spec.get("legend", {}), **legend}}


#: The channel that shows the text of a record at its mark.
TIP = text_of("tip")


def lines(
    values: Sequence[Document],
    channels: Mapping[str, Any],
    dot: Spec,
    *,
    height: int = 280,
    interpolate: str = "step-after",
    points: Sequence[Document] | None = None,
    **of_lines: Any,
) -> Spec:
    """Return lines with dots on them, or on other points.

    ``channels`` are the axes and colors of both, ``of_lines`` those of lines alone.
    """
    shared: dict[str, Any] = {**channels, "y": _upright(channels["y"])}
    line = mark("line", interpolate=interpolate)
    return chart(
        values,
        height=height,
        layer=[
            layer(line, tip=False, **shared, **of_lines),
            layer(dot, values=points, **shared),
        ],
    )


def steps(rows: Sequence[Document], scale: TimeScale) -> Spec:
    """Return step times, a bar per solver or plan, and the best bound."""
    shown = [row for row in rows if row["step_time_ns"] is not None]
    values = [
        {
            "solver": row["name"],
            "time": row["step_time_ns"] / scale.unit_ns,
            "text": scale.short(row["step_time_ns"]),
            "tip": f"{row['name']}: {scale(row['step_time_ns'])}",
        }
        for row in shown
    ]
    order = [row["name"] for row in shown]
    x = number_axis("time", f"step time ({scale.unit})")
    y = names("solver", order)
    inside = mark("text", align="left", dx=6, color="#fff")
    layers = [
        layer(mark("bar", color=COLORS[0]), x=x, y=y),
        layer(inside, tip=False, x={"datum": 0}, y=y, text=text_of("text")),
    ]
    bounds_ns = [r["lower_bound_ns"] for r in rows if r["lower_bound_ns"]]
    if bounds_ns:
        bound_ns = max(bounds_ns)
        bound = {
            "bound": bound_ns / scale.unit_ns,
            "tip": f"no plan is below {scale(bound_ns)}",
        }
        rule = mark("rule", color=_LIMIT, strokeDash=[6, 4], strokeWidth=2)
        layers.append(layer(rule, values=[bound], x=quantity("bound")))
    return chart(values, height=_rows(len(order)), layer=layers)


def bounds(rows: Sequence[Document], scale: TimeScale) -> Spec:
    """Return what solvers had over time: plans solid, bounds dashed."""
    values = [
        {
            "solver": row["name"],
            "what": what,
            "seconds": point["wall_s"],
            "time": point[key] / scale.unit_ns,
            "tip": f"{row['name']}, {what} after {point['wall_s']:.2f} s: "
            f"{scale(point[key])}",
        }
        for row in rows
        for point in row["trace"]
        for what, key in (
            ("best plan", "step_time_ns"),
            ("lower bound", "lower_bound_ns"),
        )
        if point[key] is not None
    ]
    channels = {
        "x": number_axis("seconds", "seconds"),
        "y": number_axis("time", f"step time ({scale.unit})", zero=False),
        "color": colors("solver", [row["name"] for row in rows]),
    }
    dashes = kinds(
        "what",
        ["best plan", "lower bound"],
        [[1, 0], [6, 4]],
        title=None,
        legend={"orient": "bottom", "symbolType": "stroke"},
    )
    dot = mark("point", filled=True, size=30)
    return lines(values, channels, dot, height=260, strokeDash=dashes)


def bordered(document: Document) -> list[int]:
    """Return the units whose borders a map shows: where they are few."""
    network = document["network"]
    num_devices = network["num_devices"]
    return [x for x in network["units"] if -(-num_devices // x) <= _MOST_BORDERS]


def device_map(document: Document) -> tuple[Spec, tuple[int, int] | None]:
    """Return devices × stages, and (shown, all) if replicas are left out."""
    plan, network = document["plan"], document["network"]
    blocks, units = plan["blocks"], network["units"]
    replicas = plan["replicas"]
    max_replicas = max(1, MOST_RANGES // len(blocks))
    shown = min(replicas, max_replicas)
    end = network["num_devices"]
    if shown < replicas:
        end = max(block["ranges"][shown - 1][1] for block in blocks)
    values = []
    for block in blocks:
        label, strategies = block_label(block), some(block["strategies"])
        for index, (first, last) in enumerate(block["ranges"][:shown], 1):
            where = f", replica {index}" if replicas > 1 else ""
            values.append(
                {
                    "stage": label,
                    "first": first,
                    "end": last,
                    "strategies": strategies,
                    "tip": f"{label}{where}: devices {first}–{last - 1}, {strategies}",
                }
            )
    order = [block_label(block) for block in blocks]
    strategies_shown = list(dict.fromkeys(value["strategies"] for value in values))
    bar = mark("bar", stroke="#808080", strokeWidth=0.5)
    layers = [
        layer(
            bar,
            x=_devices(end, units),
            x2={"field": "end"},
            y=names("stage", order),
            color=colors("strategies", strategies_shown, columns=2),
        )
    ]
    for unit in bordered(document):
        index = units.index(unit)
        borders = [
            {"at": at, "unit": unit}
            for at in range(0, end + 1, unit)
            # A border of a larger unit is drawn once, thick.
            if index == len(units) - 1 or at % units[index + 1]
        ]
        look = {"color": TEXT, "opacity": 0.75, "strokeWidth": 1 + 1.5 * index}
        rule = mark("rule", **look, aria=False)
        if borders:
            layers.append(layer(rule, values=borders, tip=False, x=quantity("at")))
    spec = chart(values, height=_rows(len(order)), layer=layers)
    return spec, (shown, replicas) if shown < replicas else None


def _devices(end: int, units: Sequence[int]) -> Spec:
    """Return an axis of devices whose marks are borders of nodes."""
    step = units[0] if units and end % units[0] == 0 else 1
    while end // step > 16:
        step *= 2
    return {
        **quantity("first"),
        "title": "device",
        "scale": {"domain": [0, end], "nice": False},
        "axis": {
            "grid": False,
            "values": [*range(0, end, step), end],
            "labelOverlap": True,
            "format": "d",
        },
    }


def memory(document: Document) -> Spec:
    """Return what a device of every block holds, and its limit."""
    blocks = document["plan"]["blocks"]
    order = [block_label(block) for block in blocks]
    values = [
        {
            "stage": label,
            "part": title,
            "order": index,
            "size": size_bytes / GIB,
            "tip": f"{label}, {title}: {format_bytes(size_bytes)}",
        }
        for label, block in zip(order, blocks, strict=True)
        for index, (name, title) in enumerate(MEMORY_PARTS.items())
        if (size_bytes := block["memory"][name])
    ]
    limits = [
        {
            "stage": label,
            "limit": block["capacity_bytes"] / GIB,
            "tip": f"limit of {label}: {format_bytes(block['capacity_bytes'])}",
        }
        for label, block in zip(order, blocks, strict=True)
    ]
    used = {value["part"] for value in values}
    components = [title for title in MEMORY_PARTS.values() if title in used]
    y, height = names("stage", order), _rows(len(order))
    tick = mark("tick", color=_LIMIT, opacity=1, thickness=3, bandSize=height["step"])
    x = number_axis("size", "GiB per device", stack="zero")
    color = colors("part", components)
    layers = [
        layer(mark("bar"), x=x, y=y, color=color, order=quantity("order")),
        layer(tick, values=limits, x=quantity("limit"), y=y),
    ]
    return chart(values, height=height, layer=layers)


def terms(rows: Sequence[Document], scale: TimeScale, step_ns: float) -> Spec:
    """Return the terms of a step time, the longest first."""
    shown = [row for row in rows if row["time_ns"]]
    values = [
        {
            "term": row["meaning"],
            "time": row["time_ns"] / scale.unit_ns,
            "text": f"{scale.short(row['time_ns'])}, "
            f"{_share(row['time_ns'] / step_ns)}",
            "tip": f"{row['meaning']}: {scale(row['time_ns'])}",
        }
        for row in shown
    ]
    longest = max(value["time"] for value in values) if values else 1.0
    x = number_axis("time", f"time ({scale.unit})")
    lowest = min([0.0, *(value["time"] for value in values)])
    x["scale"] = {"domain": [lowest, longest], "nice": False}
    y = names("term", [row["meaning"] for row in shown])
    long = [value for value in values if value["time"] > 0.4 * longest]
    short = [value for value in values if value["time"] <= 0.4 * longest]
    inside = mark("text", align="right", dx=-5, color="#fff")
    beyond = mark("text", align="left", dx=5)
    text = text_of("text")
    layers = [
        layer(mark("bar", color=COLORS[0]), x=x, y=y),
        layer(inside, values=long, tip=False, x=x, y=y, text=text),
        layer(beyond, values=short, tip=False, x=x, y=y, text=text),
    ]
    return chart(values, height=_rows(len(shown)), layer=layers)


def _share(fraction: float) -> str:
    return f"{100 * fraction:.1f} %" if abs(fraction) >= 0.0005 else "<0.1 %"


def timeline(document: Document, window: int, scale: TimeScale) -> Spec:
    """Return what blocks do within a window of the step."""
    facts = document["timeline"]
    low, high = facts["windows"][window]
    labels = [block_label(block) for block in facts["blocks"]]
    values = []
    for event in facts["events"]:
        if not (low <= event["start_ns"] and event["end_ns"] <= high):
            continue
        what = kind = EVENTS[event["kind"]][0]
        if event["micro_batch"] is not None:
            what += f", micro-batch {event['micro_batch'] + 1}, stage {event['stage']}"
        begin, end = (event[key] / scale.unit_ns for key in ("start_ns", "end_ns"))
        values.append(
            {
                "block": labels[event["block"] - 1],
                "kind": kind,
                "start": begin,
                "end": end,
                "tip": f"{what}: {begin:.6g} – {end:.6g} {scale.unit}",
            }
        )
    used = {value["kind"] for value in values}
    look = {name: shown for name, shown in EVENTS.values() if name in used}
    color = colors("kind", list(look))
    color["scale"]["range"] = list(look.values())
    return chart(
        values,
        height=_rows(len(labels)),
        **layer(
            mark("bar", stroke=BACK, strokeWidth=0.25),
            x={
                **quantity("start"),
                "title": f"time in the step ({scale.unit})",
                "scale": {
                    "domain": [low / scale.unit_ns, high / scale.unit_ns],
                    "nice": False,
                    "zero": False,
                },
            },
            x2={"field": "end"},
            y=names("block", labels),
            color=color,
        ),
    )


def frontier(facts: Document, scale: TimeScale) -> Spec:
    """Return step time against memory, a line per number of devices."""

    def value(point: Document, devices: int) -> Document:
        return {
            "devices": f"{devices} devices",
            "memory": point["memory_bytes"] / GIB,
            "time": point["step_time_ns"] / scale.unit_ns,
        }

    curves = []
    capacities_bytes = facts["capacities_bytes"]
    for curve, memory_bytes in zip(facts["curves"], capacities_bytes, strict=True):
        # The last point goes on to all the memory that there is.
        ends = [{**last, "memory_bytes": memory_bytes} for last in curve["points"][-1:]]
        shown = [*curve["points"], *ends]
        curves += [value(point, curve["num_devices"]) for point in shown]
    points = [
        {
            **value(point, point["num_devices"]),
            "tip": f"point {point['number']}: "
            f"{scale(point['step_time_ns'])}, "
            f"{format_bytes(point['memory_bytes'])}",
        }
        for point in facts["points"]
    ]
    order = list(dict.fromkeys(point["devices"] for point in curves))
    channels = {
        "x": number_axis("memory", "memory of the fullest device (GiB)", False),
        "y": number_axis("time", f"step time ({scale.unit})", False),
        "color": colors("devices", order),
    }
    dot = mark("point", filled=True, size=60)
    return lines(curves, channels, dot, height=320, points=points)


def scatter(runs: Sequence[Document]) -> Spec:
    """Return predicted against measured step times, and where they agree."""
    values = [
        {
            "family": run["family"],
            "measured": run["measured_s"],
            "predicted": run["predicted_s"],
            "tip": f"{run['model']} on {run['num_devices']} "
            f"{run['device']}: measured {run['measured_s']:.4g} s, "
            f"predicted {run['predicted_s']:.4g} s",
        }
        for run in runs
        if run["measured_s"] > 0 and run["predicted_s"] > 0
    ]
    times = [v[key] for v in values for key in ("measured", "predicted")]
    ends = [min(times, default=0.1), max(times, default=1.0)]
    x = number_axis("measured", "measured step time (s)", scale="log")
    y = _upright(number_axis("predicted", "predicted step time (s)", scale="log"))
    for axis in (x, y):
        axis["scale"]["domain"] = ends
    families = sorted({value["family"] for value in values})
    diagonal: dict[str, Any] = {"x": {**x, "field": "at"}, "y": {**y, "field": "at"}}
    line, points = mark("line", color=TEXT, strokeWidth=1), [{"at": x} for x in ends]
    dot = mark("point", filled=True, opacity=0.8, size=50)
    color = _marked(colors("family", families))
    shape = _marked(shapes("family", families))
    layers = [
        layer(line, values=points, tip=False, **diagonal),
        layer(dot, x=x, y=y, color=color, shape=shape),
    ]
    return chart(values, height=520, layer=layers)


def levels(network: Document) -> Spec:
    """Return the units of every level above the devices they join."""
    num_devices = network["num_devices"]
    units = [("devices", 1, 0.0)]
    for index, level in enumerate(network["levels"]):
        name = level["name"] or f"level {index}"
        units.append((name, level["devices"], level["bandwidth_bytes_per_s"]))
    values = []
    for name, size, speed in units:
        count = -(-num_devices // size)
        many = f"{count} units of {size}" if count > _MOST_BARS else ""
        if many:
            size = num_devices  # one bar stands for all of them
        for first in range(0, num_devices, size):
            end = min(num_devices, first + size)
            rate = f"{speed / 1e9:,.4g} GB/s per device" if speed else ""
            devices = many or f"devices {first}–{end - 1}"
            values.append(
                {
                    "level": name,
                    "first": first,
                    "end": end,
                    "tip": ", ".join(filter(None, (name, devices, rate))),
                }
            )
    order = [name for name, _, _ in reversed(units)]
    color = colors("level", order)
    color["legend"] = None
    return chart(
        values,
        height=_rows(len(order)),
        **layer(
            mark("bar", stroke=BACK, strokeWidth=1),
            x=_devices(num_devices, network["units"]),
            x2={"field": "end"},
            y=names("level", order),
            color=color,
        ),
    )
