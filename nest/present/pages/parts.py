"""What a page says, in which order: parts with tables, charts and figures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nest.present.pages import charts
from nest.present.pages.document import MOST_DRAWN, Document
from nest.present.table import count
from nest.units import GIB, format_bytes
from nest.util.time_scale import TimeScale

Spec = dict[str, Any]

#: What tells the length of a training run, by what was asked.
_RUN = {
    **dict.fromkeys(("solve", "compare", "report"), "--tokens"),
    "pareto": "--steps with a price",
}


@dataclass(frozen=True)
class Table:
    """A table: texts under headers.

    Attributes
    ----------
    caption
        What it shows.
    headers, rows
        Its texts; the first of a row is what the row is about.
    words
        Numbers of the columns, from 0, that hold words; others hold numbers.
    """

    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Chart:
    """A chart, and what says the same without it.

    Attributes
    ----------
    name
        Of the picture, unique on a page.
    title, summary
        What it shows, and what is to be seen in it, in words.
    spec
        The chart in Vega-Lite; ``None`` where the picture is ready.
    picture
        As SVG, if it is ready.
    table
        The same figures; ``None`` where a table of the part has them.
    """

    name: str
    title: str
    summary: str
    spec: Spec | None = None
    picture: str = ""
    table: Table | None = None


@dataclass(frozen=True)
class Fact:
    """A figure that is shown large: what it is, its value, and a remark."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Part:
    """A part of a page.

    Attributes
    ----------
    key, title
        Its name in links, and its heading.
    text
        Paragraphs.
    facts, charts, tables
        What it shows, in this order.
    warnings
        Paragraphs that must not be overlooked.
    code
        A command to copy; empty for none.
    folded
        Whether its tables are shown only when asked.
    closed
        Whether its charts and tables are, all together.
    """

    key: str
    title: str
    text: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()
    code: str = ""
    folded: bool = False
    closed: bool = False


def title_of(document: Document) -> str:
    """Return the title of a page."""
    what = {
        "solve": "Plan for",
        "compare": "Solvers compared on",
        "pareto": "Frontier of",
        "report": "Report on",
    }
    return f"{what[document['kind']]} {document['problem']['name']}"


def lead_of(document: Document) -> str:
    """Return what the problem is, in one sentence."""
    problem = document["problem"]
    devices = " + ".join(
        f"{device['count']} × {device['name']} "
        f"({format_bytes(device['memory_bytes'])})"
        for device in problem["devices"]
    )
    length = problem["sequence_length"]
    samples = f"{problem['global_batch']:,} samples"
    tokens = "" if length is None else f" of {length:,} tokens"
    return (
        f"{problem['num_layers']} layers on {devices}; {samples}{tokens} per "
        f"step, {problem['dtype']}, schedule {problem['schedule']}."
    )


def parts_of(
    document: Document, keys: Collection[str] | None = None
) -> list[Part]:
    """Return the parts of a page, empty ones left out; all, or some."""
    found = (
        make(document)
        for key, make in _PARTS.items()
        if keys is None or key in keys
    )
    return [part for part in found if part is not None]


# The answer


def _scale(document: Document, *more_ns: float | None) -> TimeScale:
    answer = document["answer"]
    times = [t for t in more_ns if t]
    if answer is not None:
        times.insert(0, answer["step_time_ns"])
    unit = document["problem"]["time_unit"]
    return TimeScale.fitting(times[0] if times else None, unit)


def _answer(document: Document) -> Part:
    answer, problem = document["answer"], document["problem"]
    warnings = [document["unfinished"]] if document["unfinished"] else []
    notes = tuple(document["notes"])
    if answer is None:
        return Part(
            "answer",
            "The answer",
            text=notes,
            warnings=(*warnings, _why_none(document)),
        )
    warnings += [f"The plan does not fit: {x}." for x in answer["violations"]]
    scale, unit = _scale(document), problem["time_unit"]
    step = "Micro-batch" if answer["steady_state"] else "Step"
    facts = [
        Fact(f"{step} time", scale(answer["step_time_ns"]), _span(document))
    ]
    tokens = answer["tokens_per_s"]
    if tokens is not None:
        facts += [
            Fact(f"Tokens/{unit}", f"{tokens:,.0f}"),
            Fact(
                f"Tokens/{unit}/device",
                f"{answer['tokens_per_s_per_device']:,.1f}",
            ),
        ]
    elif answer["samples_per_s"] is not None:
        samples = answer["samples_per_s"]
        facts.append(Fact(f"Samples/{unit}", f"{samples:,.6g}"))
    if answer["tflops_per_device"] is not None:
        facts.append(
            Fact(
                "TFLOP/s/device",
                f"{answer['tflops_per_device']:,.1f}",
                "of the model; recomputation does not count",
            )
        )
    if answer["mfu"] is not None:
        facts.append(Fact("MFU", f"{100 * answer['mfu']:.1f} %"))
    left = answer["memory_left_bytes"]
    facts.append(
        Fact(
            "Memory head-room" if left >= 0 else "Memory short by",
            format_bytes(abs(left)),
            f"the fullest device needs {format_bytes(answer['memory_bytes'])}",
        )
    )
    facts += _run_facts(answer["run"])
    return Part(
        "answer",
        "The answer",
        text=(_plan_sentence(document), *notes, *_could_say(document)),
        facts=tuple(facts),
        warnings=tuple(warnings),
    )


def _why_none(document: Document) -> str:
    frontier = document["frontier"]
    if any(row["status"] == "infeasible" for row in document["solvers"]):
        return "There is no plan that fits: this is proven."
    if frontier is not None and frontier["proven"]:
        return "There is no plan that fits: this is proven."
    return "No plan was found."


def _span(document: Document) -> str:
    """Return how sure the step time is."""
    answer = document["answer"]
    span = answer["step_time_90_ns"]
    scale = _scale(document)
    said = []
    if answer["lower_bound_ns"] is None:
        said.append("not proven: no lower bound is known")
    elif answer["lower_bound_ns"] == answer["step_time_ns"]:
        said.append("proven: no plan is faster")
    elif answer["lower_bound_ns"] is not None:
        said.append(
            f"no plan is below {scale.short(answer['lower_bound_ns'])}"
        )
    if span is not None:
        low, high = (scale.short(end) for end in span)
        said.append(f"with 90 % between {low} and {high}")
    return "; ".join(said)


def _run_facts(run: Document) -> list[Fact]:
    facts = []
    if run["usd_per_step"] is not None:
        facts.append(
            Fact(
                "Cost per step",
                f"${run['usd_per_step']:,.4g}",
                f"${run['usd_per_hour']:,.6g} per hour for all devices",
            )
        )
    if run["days"] is not None:
        facts.append(
            Fact(
                f"Days for {_big(run['tokens'])} tokens",
                f"{run['days']:,.1f}",
                f"{run['steps']:,} steps of {run['tokens_per_step']:,} tokens",
            )
        )
    if run["usd_per_run"] is not None:
        facts.append(Fact("Cost of the run", f"${run['usd_per_run']:,.0f}"))
    return facts


def _could_say(document: Document) -> list[str]:
    """Return which options would add what a step and a run cost."""
    run, kind = document["answer"]["run"], document["kind"]
    if run["tokens_per_step"] is None or kind not in _RUN:
        return []
    found = []
    if run["usd_per_step"] is None:
        found.append("--price-usd-per-device-hour what a step costs")
    if run["days"] is None:
        found.append(f"{_RUN[kind]} the days of a training run")
    return [f"Options add more: {', '.join(found)}."] if found else []


def _big(number: float) -> str:
    """Return a number of tokens as people say it."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:g} {letter}"
    return f"{number:g}"


def _plan_sentence(document: Document) -> str:
    answer, plan = document["answer"], document["plan"]
    strategies = list(
        dict.fromkeys(s for b in plan["blocks"] for s in b["strategies"])
    )
    status = f" ({answer['status']})" if answer["status"] else ""
    chunks = ""
    if plan["virtual_stages"] > 1:
        chunks = f" in {count(plan['virtual_stages'], 'chunk')} per block"
    idle = plan["devices_idle"]
    return (
        f"Plan of {answer['name']}{status}: "
        f"{count(plan['replicas'], 'replica')} × "
        f"{count(plan['num_stages'], 'stage')}{chunks}, strategies "
        f"{charts.some(strategies)}; "
        f"{count(plan['micro_batch'], 'sample')} per micro-batch, "
        f"{count(plan['num_micro_batches'], 'micro-batch')} per replica; "
        f"{count(plan['devices_used'], 'device')} work"
        + (f" and {idle} idle." if idle else ".")
    )


# Solvers


def _solvers(document: Document) -> Part | None:
    rows = document["solvers"]
    if not rows:
        return None
    scale = _scale(
        document,
        *(row["step_time_ns"] or row["lower_bound_ns"] for row in rows),
    )
    given = all(row["outcome"] == "scored" for row in rows)
    table = _solver_table(rows, scale, given)
    failed = [row["name"] for row in rows if row["failed"]]
    warnings = (
        (f"{', '.join(failed)} failed; the rest stands.",) if failed else ()
    )
    shown = []
    if sum(row["step_time_ns"] is not None for row in rows) > 1:
        shown.append(
            Chart(
                "steps",
                "Step time by " + ("plan" if given else "solver"),
                "A bar per plan that fits; the dashed line is the greatest "
                "proven lower bound. " + _fastest(rows, scale),
                charts.steps(rows, scale),
            )
        )
    traced = [row for row in rows if len(row["trace"]) > 1]
    if traced:
        shown.append(
            Chart(
                "bounds",
                "Plans and bounds over time",
                "The best step time (solid) and the proven lower bound "
                "(dashed) that a solver had after so many seconds.",
                charts.bounds(traced, scale),
                table=_trace_table(traced, scale),
            )
        )
    if given:
        return Part("solvers", "The plans", tables=(table,))
    return Part(
        "solvers",
        "Solvers",
        text=(
            "Plans are checked and scored by the shared cost model. A gap is "
            "what the solver's own bound leaves open; 0 is a proof.",
        ),
        charts=tuple(shown),
        tables=(table,),
        warnings=warnings,
    )


def _solver_table(
    rows: Sequence[Document], scale: TimeScale, given: bool
) -> Table:
    headers = ["solver", "status", "step time", "over best", "lower bound"]
    headers += ["gap", "wall", "note"]
    found = [
        (
            row["name"],
            _status(row),
            scale(row["step_time_ns"]),
            _over(row["over_best"]),
            scale(row["lower_bound_ns"]),
            "" if row["gap"] is None else _percent(row["gap"]),
            "" if row["wall_s"] is None else f"{row['wall_s']:.2f} s",
            _note(row),
        )
        for row in rows
    ]
    if given:
        keep = (0, 1, 2, 3, 7)
        return Table(
            "Plans in the order in which they were given",
            ("plan", *(headers[i] for i in keep[1:])),
            tuple(tuple(row[i] for i in keep) for row in found),
            frozenset({0, 1, 4}),
        )
    return Table(
        "What every solver answered",
        tuple(headers),
        tuple(found),
        frozenset({0, 1, 7}),
    )


def _fastest(rows: Sequence[Document], scale: TimeScale) -> str:
    found = [row for row in rows if row["step_time_ns"] is not None]
    best = min(found, key=lambda row: row["step_time_ns"])
    return f"The fastest is {best['name']} with {scale(best['step_time_ns'])}."


def _status(row: Document) -> str:
    if row["outcome"] not in ("solved", "scored"):
        return str(row["outcome"]).replace("-", " ")
    return str(row["status"]).replace("-", " ")


def _note(row: Document) -> str:
    stopped = row["limit"] in (None, "interrupt")
    said = [] if stopped else [f"{row['limit']} limit"]
    if row["over_memory_bytes"]:
        said.append(f"{format_bytes(row['over_memory_bytes'])} too much")
    if row["detail"]:
        said.append(row["detail"])
    return "; ".join(said)


def _over(share: float | None) -> str:
    if share is None:
        return ""
    return "best" if share == 0 else f"+{_percent(share)}"


def _percent(share: float) -> str:
    """Return a share in per cent; only an exact 0 is shown as 0."""
    value = 100 * share
    if share and value < 0.005:
        return "<0.01 %"
    return f"{value:.2f} %" if share else "0 %"


def _trace_table(rows: Sequence[Document], scale: TimeScale) -> Table:
    return Table(
        "What solvers had, and when",
        ("solver", "after", "step time", "lower bound"),
        tuple(
            (
                row["name"],
                f"{point['wall_s']:.2f} s",
                scale(point["step_time_ns"]),
                scale(point["lower_bound_ns"]),
            )
            for row in rows
            for point in row["trace"]
        ),
    )


# The plan


def _stages(document: Document) -> Part | None:
    plan = document["plan"]
    if plan is None:
        return None
    scale = TimeScale.fitting(
        max(s["forward_ns"] + s["backward_ns"] for s in plan["stages"]),
        document["problem"]["time_unit"],
    )
    rows = []
    for stage in plan["stages"]:
        block = plan["blocks"][stage["block"] - 1]
        rows.append(
            (
                str(stage["number"]),
                stage["layers"],
                str(stage["num_layers"]),
                device_text(block),
                charts.some(stage["strategies"]),
                scale(stage["forward_ns"]),
                scale(stage["backward_ns"]),
                scale(stage["sync_ns"]),
                str(stage["inflight"]),
                format_bytes(stage["memory_bytes"]),
            )
        )
    table = Table(
        "Stages: where they run, and what they take per micro-batch",
        (
            *("stage", "layers", "number", "devices", "strategies"),
            *("forward", "backward", "sync", "in flight", "memory"),
        ),
        tuple(rows),
        frozenset({0, 1, 3, 4}),
    )
    text = ["Devices are numbered from 0, in the order of the cluster."]
    nodes = [name for block in plan["blocks"] for name in block["nodes"]]
    if any(name[:1].isdecimal() for name in nodes):
        text[0] += " So are nodes."
    if plan["devices_idle"]:
        text.append(f"{count(plan['devices_idle'], 'device')} idle.")
    shown, left_out = charts.device_map(document)
    if left_out:
        text.append(
            f"The map shows the first {left_out[0]} of {left_out[1]} replicas."
        )
    chart = Chart(
        "map",
        "Devices and the stages on them",
        "A row per stage, a column per device; colours are strategies"
        + _borders(charts.bordered(document)),
        shown,
    )
    return Part(
        "stages", "Where stages run", tuple(text), (), (chart,), (table,)
    )


def _borders(units: Sequence[int]) -> str:
    """Return what the lines of a map are, for the end of a sentence."""
    if not units:
        return "."
    sizes = " and ".join(str(unit) for unit in units)
    return f", lines are borders between units of {sizes} devices."


def device_text(block: Document) -> str:
    """Return the devices of a block: of the first replicas, with nodes."""
    found = []
    for (first, end), nodes in zip(
        block["ranges"], block["nodes"], strict=False
    ):
        text = f"{first}" if end == first + 1 else f"{first}–{end - 1}"
        if nodes:
            several = "s" * any(mark in nodes for mark in "–,…")
            text += f" (node{several} {nodes})"
        found.append(text)
    left = len(block["ranges"]) - len(found)
    if left:
        found.append(f"{left} more replicas")
    return ", ".join(found)


def _memory(document: Document) -> Part | None:
    plan = document["plan"]
    if plan is None:
        return None
    names = charts.MEMORY_PARTS
    rows = []
    for block in plan["blocks"]:
        left = block["capacity_bytes"] - block["memory_bytes"]
        rows.append(
            (
                charts.block_label(block),
                *(f"{block['memory'][x] / GIB:.2f}" for x in names),
                f"{block['memory_bytes'] / GIB:.2f}",
                f"{block['capacity_bytes'] / GIB:.2f}",
                f"{left / GIB:.2f}",
            )
        )
    table = Table(
        "Memory of a device, in GiB",
        ("stage", *names.values(), "sum", "limit", "left"),
        tuple(rows),
    )
    fullest = max(
        plan["blocks"], key=lambda b: b["memory_bytes"] - b["capacity_bytes"]
    )
    chart = Chart(
        "memory",
        "Memory of a device by stage",
        f"The mark is the limit. The fullest is "
        f"{charts.block_label(fullest)}: "
        f"{format_bytes(fullest['memory_bytes'])} of "
        f"{format_bytes(fullest['capacity_bytes'])}.",
        charts.memory(document),
        table=table,
    )
    return Part("memory", "Memory", charts=(chart,))


def _terms(document: Document) -> Part | None:
    terms = document["terms"]
    if terms is None:
        return None
    scale = _scale(document)
    step = document["answer"]["step_time_ns"]
    rows = sorted(terms["step"], key=lambda row: -row["time_ns"])
    table = Table(
        "Terms of the step time; they add up to it",
        ("term", "what it is", "time", "share"),
        tuple(
            (
                row["name"],
                row["meaning"],
                scale(row["time_ns"]),
                _percent(row["time_ns"] / step) if step else "",
            )
            for row in rows
        ),
        frozenset({0, 1}),
    )
    first = rows[0]
    chart = Chart(
        "terms",
        "Where the step time goes",
        f"The largest term is {first['meaning']}, {scale(first['time_ns'])}"
        + (f" or {_percent(first['time_ns'] / step)}." if step else "."),
        charts.terms(rows, scale, step),
        table=table,
    )
    slow = terms["slowest_block"]
    block = document["plan"]["blocks"][slow - 1]
    return Part(
        "terms",
        "Where the time goes",
        (
            f"Of the slowest block of devices, {charts.block_label(block)}, "
            f"whose passes count {count(terms['num_loads'], 'time')}; waiting "
            f"for the others is the bubble.",
        ),
        charts=(chart,),
    )


# The timeline


def _timeline(document: Document) -> Part | None:
    timeline = document["timeline"]
    if timeline is None:
        return None
    if timeline["missing"]:
        return Part(
            "timeline", "The step, pass by pass", (timeline["missing"],)
        )
    scale = TimeScale.fitting(
        timeline["step_time_ns"], document["problem"]["time_unit"]
    )
    table = Table(
        "What blocks of devices do in a step",
        ("stage", "busy", "idle", "idle share", "ends after"),
        tuple(
            (
                charts.block_label(row),
                scale(row["busy_ns"]),
                scale(row["idle_ns"]),
                _percent(row["bubble_share"]),
                scale(row["end_ns"]),
            )
            for row in timeline["blocks"]
        ),
    )
    windows = timeline["windows"]
    text = [
        f"One replica; simulated, the step takes "
        f"{scale(timeline['step_time_ns'])}."
    ]
    if len(windows) > 1:
        (_, first_end), (last_start, _) = windows
        text.append(
            f"Of {timeline['num_events']:,} passes and transfers, those until "
            f"{scale.short(first_end)} and from {scale.short(last_start)} on "
            f"are shown; in between the pattern repeats."
        )
    names = ("The step",) if len(windows) == 1 else ("The start", "The end")
    shown = tuple(
        Chart(
            f"timeline-{number}",
            f"{name} of the pipeline" if len(windows) > 1 else name,
            "A row per block of devices: forward and backward passes, what "
            "they receive, and the gradient sync; gaps are waiting.",
            charts.timeline(document, number, scale),
            table=table if number == 0 else None,
        )
        for number, name in enumerate(names)
    )
    return Part("timeline", "The step, pass by pass", tuple(text), (), shown)


# The frontier


def _frontier(document: Document) -> Part | None:
    frontier = document["frontier"]
    if frontier is None:
        return None
    points = frontier["points"]
    scale = _scale(document, *(p["step_time_ns"] for p in points))
    priced = frontier["price_usd_per_device_hour"] is not None
    rows = [
        (
            f"{point['number']}"
            + " (knee)" * (point["number"] == frontier["knee"]),
            scale(point["step_time_ns"]),
            format_bytes(point["memory_bytes"]),
            str(point["devices"]),
            *([f"{point['usd_per_step']:,.4g}"] if priced else []),
            *(
                [f"{point['usd_per_run']:,.0f}"]
                if priced and frontier["steps"]
                else []
            ),
            "yes" if point["proven"] else "no",
            f"{count(point['replicas'], 'replica')} × "
            f"{count(point['num_stages'], 'stage')}, micro-batch "
            f"{point['micro_batch']}, {charts.some(point['strategies'])}",
        )
        for point in points
    ]
    headers = ["point", "step time", "memory", "devices"]
    headers += ["$ per step"] * priced
    headers += ["$ per run"] * (priced and bool(frontier["steps"]))
    headers += ["proven", "plan"]
    last = len(headers) - 1
    table = Table(
        f"Plans that no other beats in {', '.join(frontier['objectives'])}",
        tuple(headers),
        tuple(rows),
        frozenset({0, last - 1, last}),
    )
    text = [_proof(frontier, scale)]
    if points:
        text.append(_knee(frontier))
    shown: tuple[Chart, ...] = ()
    if any(curve["points"] for curve in frontier["curves"]):
        shown = (
            Chart(
                "frontier",
                "Step time against memory",
                "The fastest step with so much memory per device, a line per "
                "number of devices; dots are the plans of the table.",
                charts.frontier(frontier, scale),
            ),
        )
    return Part(
        *("frontier", "The frontier", tuple(text), (), shown),
        (table,) * bool(rows),
    )


def _proof(frontier: Document, scale: TimeScale) -> str:
    """Return whether a frontier is proven, and else where it is not."""
    if frontier["proven"]:
        if not frontier["points"]:
            return "Proven: no plan fits."
        return "Proven: every plan is matched or beaten by one of these."
    open_ = []
    for curve in frontier["curves"]:
        for gap in curve["gaps"]:
            low, high = (
                format_bytes(max(0, gap[x]))
                for x in ("above_bytes", "up_to_bytes")
            )
            least = "nothing is known of the step time"
            if gap["lower_bound_ns"]:
                bound = scale.bound(gap["lower_bound_ns"])
                least = f"a step takes at least {bound}"
            devices = count(curve["devices"], "device")
            open_.append(f"{devices} from {low} to {high}, where {least}")
    return f"Not all of it is proven: {'; '.join(open_)}."


def _knee(frontier: Document) -> str:
    """Return which point is the knee, and what that is."""
    number = frontier["knee"]
    if number is None:
        return (
            "No point is the knee: none is better than the plane of the "
            "extremes."
        )
    return (
        f"Point {number} is the knee: it is farthest from the plane of the "
        f"extremes, and from there a part of one objective's range buys no "
        f"equal part of another's."
    )


# The network


def _network(document: Document) -> Part:
    network = document["network"]
    if network["levels"]:
        table = Table(
            "Levels of the network, from the device up",
            (
                *("level", "joins", "devices below", "units"),
                *("GB/s per device", "latency"),
            ),
            tuple(
                (
                    level["name"] or f"level {number}",
                    str(level["fan_out"]),
                    str(level["devices"]),
                    str(level["num_units"]),
                    f"{level['bandwidth_bytes_per_s'] / 1e9:,.4g}",
                    f"{level['latency_ns'] / 1e3:,.4g} µs",
                )
                for number, level in enumerate(network["levels"])
            ),
        )
        chart = Chart(
            "network",
            "Levels of the network",
            "A row per level: devices at the bottom, each bar above is a unit "
            "that joins those below it.",
            charts.levels(network),
            table=table,
        )
        return Part("network", "The network", charts=(chart,))
    links = network.get("links", ())
    text = (
        f"A graph of {count(network['num_devices'], 'device')}, "
        f"{network['num_switches']} switches and "
        f"{count(network['num_links'], 'link')}."
        if links
        else "One device, no network."
    )
    if links and not network["picture"]:
        text += f" Graphs are drawn up to {MOST_DRAWN} devices."
    tables = (
        Table(
            "Links by what they carry, one way",
            ("links", "GB/s", "latency"),
            tuple(
                (
                    str(link["count"]),
                    f"{link['bandwidth_bytes_per_s'] / 1e9:,.4g}",
                    f"{link['latency_ns'] / 1e3:,.4g} µs",
                )
                for link in links
            ),
        ),
    )
    shown: tuple[Chart, ...] = ()
    if network["picture"]:
        shown = (
            Chart(
                "graph",
                "The network",
                "Devices at the bottom, switches above them by how far they "
                "are from a device.",
                picture=network["picture"],
            ),
        )
    return Part(
        "network", "The network", (text,), (), shown, tables * bool(links)
    )


# What was searched, and how to repeat it


def _searched(document: Document) -> Part:
    found = document["searched"]
    defaults = any(row["default"] for row in found["settings"])
    targeted = any(row["target"] for row in found["settings"])
    rows: tuple[tuple[str, ...], ...] = tuple(
        (row["meaning"], row["values"], _chooser(row), row["option"])
        for row in found["settings"]
    )
    named = any(_chooser(row) != "the problem" for row in found["settings"])
    if not named:
        rows = tuple(row[:2] for row in rows)
    headers = (
        "setting",
        "values that plans could take",
        "who chose",
        "option",
    )
    limits = found["limits"]
    text = [
        "Plans outside these values were not searched: what another batch, "
        "sequence length, schedule or order of the devices would give is not "
        "said here."
    ]
    if defaults:
        text.append(
            "A default bound the answer as much as a choice; its option "
            "changes it."
        )
    if targeted:
        text.append(
            "What the target chose is all that the framework can express; "
            "the answer without it is that of another target."
        )
    if limits:
        said = "; ".join(f"{name} {value}" for name, value in limits.items())
        text.append(f"Solvers ran under: {said}.")
    return Part(
        "searched",
        "What was searched, and what was not",
        tuple(text),
        tables=(
            Table(
                "Settings",
                headers if named else headers[:2],
                rows,
                frozenset(range(4)),
            ),
        ),
    )


def _chooser(row: Document) -> str:
    """Return who chose the values of a setting."""
    if row["target"]:
        return "the target"
    if row["default"]:
        return "default"
    return "as asked" if row["asked"] else "the problem"


def _repeat(document: Document) -> Part:
    problem, repeat = document["problem"], document["repeat"]
    rows: list[tuple[str, str]] = [
        ("problem", problem["name"]),
        ("hash of the problem", problem["hash"]),
        ("cost rules", problem["preset"]),
        ("quantum", f"{problem['quantum_ps']} ps"),
        *([("source", problem["source"])] if problem["source"] else []),
        *(
            (f"version of {name}", version or "not installed")
            for name, version in repeat["versions"].items()
        ),
        *((name, str(value)) for name, value in repeat["machine"].items()),
    ]
    return Part(
        "repeat",
        "How to repeat it",
        (
            "The same problem, versions and options give the same plan unless "
            "a time limit ends the search.",
        ),
        tables=(
            Table(
                "Where this was made",
                ("what", "value"),
                tuple(rows),
                frozenset({0, 1}),
            ),
        ),
        code=repeat["command"],
        folded=True,
    )


def tables_of(parts: Iterable[Part]) -> list[Table]:
    """Return all tables of parts, those of charts too."""
    found = []
    for part in parts:
        found += [c.table for c in part.charts if c.table is not None]
        found += part.tables
    return found


_PARTS: dict[str, Callable[[Document], Part | None]] = {
    "answer": _answer,
    "solvers": _solvers,
    "stages": _stages,
    "memory": _memory,
    "terms": _terms,
    "timeline": _timeline,
    "frontier": _frontier,
    "network": _network,
    "searched": _searched,
    "repeat": _repeat,
}
