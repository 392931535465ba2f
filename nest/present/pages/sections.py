"""The sections of a page, in their order: text, figures, charts, tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from nest.analysis.page_facts import Document
from nest.present.comparison import EQUAL_MEANING
from nest.present.pages import charts
from nest.present.screen import LABELS
from nest.present.table import count, percent
from nest.uncertainty.headroom import FITS, FITS_MEANING
from nest.units import GIB, format_bytes
from nest.util.sections import Chart, Fact, Page, Section
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale

#: Rows of the first screen that are shown large, up to a mark in their text.
_MARKS = {
    **{"fits": ": ", "faster": ", ", "step time": "; ", "speed": ", "},
    "run": " and ",
}

#: Columns of the first screen that hold words.
_WORDS = ("solver", "plan", "fits", "proof", "note")


def page_of(document: Document) -> Page:
    """Return the page of a ``nest-page/1`` document."""
    return Page(_title(document), document["title"], tuple(sections_of(document)))


def _title(document: Document) -> str:
    what = {
        "solve": "Plan for",
        "compare": "Solvers compared on",
        "pareto": "Frontier of",
        "report": "Report on",
    }
    return f"{what[document['kind']]} {document['problem']['name']}"


def sections_of(
    document: Document, keys: Collection[str] | None = None
) -> list[Section]:
    """Return the sections of a page that have content; all, or some."""
    order = [*_SECTIONS]
    if document["frontier"] is not None:
        order.sort(key=lambda key: key != "frontier")
    sections = (
        _SECTIONS[key](document) for key in order if keys is None or key in keys
    )
    return [section for section in sections if section is not None]


# The answer


def _scale(document: Document, *more_ns: float | None) -> TimeScale:
    answer = document["answer"]
    times = [t for t in more_ns if t]
    if answer is not None:
        times.insert(0, answer["step_time_ns"])
    unit = document["problem"]["time_unit"]
    return TimeScale.fitting(times[0] if times else None, unit)


def _answer(document: Document) -> Section:
    answer, rows = document["answer"], document["rows"]
    warnings = [document["unfinished"]] if document["unfinished"] else []
    if answer is None:
        warnings.append(_why_none(document))
    else:
        violations = answer["violations"]
        warnings += [f"The plan does not fit: {x}." for x in violations]
    facts: list[Fact] = []
    for label, text in rows:
        if facts and facts[-1].label == label and label in _MARKS:
            remark = f"{facts[-1].remark}; {text}".removeprefix("; ")
            facts[-1] = replace(facts[-1], remark=remark)
        else:
            facts.append(_fact(label, text))
    if document["launch"]:
        named = "commands" if "launch" in dict(rows) else "launch"
        position = sum(LABELS.index(x.label) <= LABELS.index("launch") for x in facts)
        facts.insert(position, Fact(named, document["launch"], "", "code"))
    shown = tuple(facts), (), (), tuple(warnings)
    return Section("answer", "The answer", (), *shown)


def _fact(label: str, text: str) -> Fact:
    """Return a row of the first screen as a page shows it."""
    value, _, remark = text.partition(_MARKS.get(label, "\n"))
    answer = value.partition(",")[0]
    if label == "fits" and answer in FITS:
        return Fact(label, value, remark, f"fit {answer}")
    if label in _MARKS and label != "fits":
        return Fact(label, value, remark)
    text = text.replace("see --verbose", "see below")
    return Fact(label, text, "", "chips" if label == "plan" else "row")


def _why_none(document: Document) -> str:
    frontier = document["frontier"]
    proven = any(row["status"] == "infeasible" for row in document["solvers"])
    if proven or (frontier is not None and frontier["proven"]):
        return "There is no plan that fits: this is proven."
    return "No plan was found."


# Solvers


def _solvers(document: Document) -> Section | None:
    rows = document["solvers"]
    if not rows:
        return None
    scale = _scale(
        document, *(row["step_time_ns"] or row["lower_bound_ns"] for row in rows)
    )
    are_plans = all(row["outcome"] == "scored" for row in rows)
    table, below = _solver_table(rows, are_plans)
    failed = [row["name"] for row in rows if row["failed"]]
    shown = []
    timed = [row for row in rows if row["step_time_ns"] is not None]
    if len(timed) > 1:
        best = min(timed, key=lambda row: row["step_time_ns"])
        step = scale.short(best["step_time_ns"])
        title = f"{best['name']} is the fastest: {step} per step"
        is_bounded = any(row["lower_bound_ns"] for row in rows)
        summary = "The dashed line is the greatest proven lower bound." * is_bounded
        shown.append(Chart("steps", title, summary, charts.steps(rows, scale)))
    traced = [row for row in rows if len(row["trace"]) > 1]
    if traced:
        title = _last_gain(traced)
        summary = "Solid: the best step time so far. Dashed: the proven lower bound."
        spec, table_of_times = charts.bounds(traced, scale), _trace_table(traced, scale)
        shown.append(Chart("bounds", title, summary, spec, table=table_of_times))
    return Section(
        "solvers",
        "The plans" if are_plans else "Solvers",
        text=tuple(below),
        charts=tuple(shown),
        tables=(table,),
        warnings=(f"{', '.join(failed)} failed; the rest stands.",) if failed else (),
    )


def _last_gain(rows: Sequence[Document]) -> str:
    """Return when the best solver had its plan, and when it ended."""
    ends = [
        (point["step_time_ns"], point["wall_s"], row["name"], row["trace"][-1])
        for row in rows
        for point in row["trace"]
        if point["step_time_ns"] is not None
    ]
    if not ends:
        return "No plan until the end of the search"
    _, after_s, name, last = min(ends, key=lambda end: end[:3])
    return f"{name} had its plan after {after_s:.1f} of {last['wall_s']:.1f} s"


def _solver_table(rows: Sequence[Document], are_plans: bool) -> tuple[Table, list[str]]:
    """Return the columns of the first screen, and what they mean."""
    cells = [{**row["cells"], "note": row["note"]} for row in rows]
    headings = [*dict.fromkeys(x for row in cells for x in row)]
    if not any(row["note"] for row in rows):
        headings.remove("note")
    columns = [Column(x, right=x not in _WORDS) for x in headings]
    shown = [[row.get(x) or "–" for x in headings] for row in cells]
    has_intervals = any(row["intervals"] for row in rows)
    below = [" ".join(FITS_MEANING)] * has_intervals
    below += [EQUAL_MEANING] * any(x.endswith(" *") for y in shown for x in y)
    title = "What every solver answered"
    if are_plans:
        title = "Plans in the order in which they were given"
    return Table(columns, shown, title), below


def _share_text(share: float) -> str:
    """Return a share in per cent; only an exact 0 is shown as 0."""
    return f"{percent(share)} %"


def _trace_table(rows: Sequence[Document], scale: TimeScale) -> Table:
    columns = (
        Column("name", "solver"),
        Column("wall_s", "after", lambda wall_s: f"{wall_s:.2f} s", right=True),
        Column("step_time_ns", "step time", scale, right=True),
        Column("lower_bound_ns", "lower bound", scale, right=True),
    )
    points = [{**row, **point} for row in rows for point in row["trace"]]
    return Table.of(columns, points, "What solvers had, and when")


# The plan


def _stages(document: Document) -> Section | None:
    plan = document["plan"]
    if plan is None:
        return None
    scale = TimeScale.fitting(
        max(s["forward_ns"] + s["backward_ns"] for s in plan["stages"]),
        document["problem"]["time_unit"],
    )
    blocks = plan["blocks"]
    columns = (
        Column("number", "stage"),
        Column("layers"),
        Column("num_layers", "number", right=True),
        Column("devices", value=lambda stage: device_text(blocks[stage["block"] - 1])),
        Column("strategies", form=charts.some),
        Column("forward_ns", "forward", scale, right=True),
        Column("backward_ns", "backward", scale, right=True),
        Column("sync_ns", "sync", scale, right=True),
        Column("inflight", "in flight", right=True),
        Column("memory_bytes", "memory", format_bytes, right=True),
    )
    table = Table.of(
        columns,
        plan["stages"],
        "Stages: where they run, and what they take per micro-batch",
    )
    shown, left_out = charts.device_map(document)
    summary = "Devices and nodes are numbered from 0. Colors are strategies"
    summary += _borders(charts.bordered(document))
    if left_out:
        summary += f" Shown: the first {left_out[0]} of {left_out[1]} replicas."
    title = (
        f"{count(len(blocks), 'pipeline stage')} on "
        f"{count(plan['devices_used'], 'device')}"
    )
    if plan["devices_idle"]:
        title += f", {plan['devices_idle']} idle"
    chart = Chart("map", title, summary, shown)
    shown_parts = (chart,), (table,)
    return Section("stages", "Where stages run", (), (), *shown_parts)


def _borders(units: Sequence[int]) -> str:
    """Return what the lines of a map are, for the end of a sentence."""
    if not units:
        return "."
    sizes = " and ".join(str(unit) for unit in units)
    return f", lines are borders between units of {sizes} devices."


def device_text(block: Document) -> str:
    """Return the devices of a block: of the first replicas, with nodes."""
    texts = []
    for (first, end), nodes in zip(block["ranges"], block["nodes"], strict=False):
        text = f"{first}" if end == first + 1 else f"{first}–{end - 1}"
        if nodes:
            several = "s" * any(mark in nodes for mark in "–,…")
            text += f" (node{several} {nodes})"
        texts.append(text)
    num_hidden = len(block["ranges"]) - len(texts)
    if num_hidden:
        texts.append(f"{num_hidden} more replicas")
    return ", ".join(texts)


def _memory(document: Document) -> Section | None:
    plan = document["plan"]
    if plan is None:
        return None
    columns = (
        Column("stage", value=charts.block_label),
        *(
            Column(key, name, _gib, right=True)
            for key, name in charts.MEMORY_PARTS.items()
        ),
        Column("memory_bytes", "sum", _gib, right=True),
        Column("capacity_bytes", "limit", _gib, right=True),
        Column("left", form=_gib, value=_free_bytes, right=True),
    )
    records = [{**block, **block["memory"]} for block in plan["blocks"]]
    table = Table.of(columns, records, "Memory of a device, in GiB")
    fullest = min(plan["blocks"], key=_free_bytes)
    chart = Chart(
        "memory",
        f"{charts.block_label(fullest).capitalize()} is the fullest: "
        f"{format_bytes(fullest['memory_bytes'])} of "
        f"{format_bytes(fullest['capacity_bytes'])}",
        "The red mark is the limit of a device.",
        charts.memory(document),
        table=table,
    )
    return Section("memory", "Memory", charts=(chart,))


def _free_bytes(block: Document) -> int:
    free: int = block["capacity_bytes"] - block["memory_bytes"]
    return free


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f}"


def _terms(document: Document) -> Section | None:
    terms = document["terms"]
    if terms is None:
        return None
    scale = _scale(document)
    step = document["answer"]["step_time_ns"]
    rows = sorted(terms["step"], key=lambda row: -row["time_ns"])

    def share_of_step(row: Document) -> str:
        return _share_text(row["time_ns"] / step) if step else ""

    columns = (
        Column("name", "term"),
        Column("meaning", "what it is"),
        Column("time_ns", "time", scale, right=True),
        Column("share", value=share_of_step, right=True),
    )
    table = Table.of(columns, rows, "Terms of the step time; they add up to it")
    first, label = rows[0], charts.block_label(_slowest(document))
    taken = scale(first["time_ns"])
    if step:
        taken = f"{100 * first['time_ns'] / step:.0f} % of the step"
    chart = Chart(
        "terms",
        f"{first['meaning'].capitalize()} takes {taken}",
        f"Times of the slowest block of devices, {label}, whose passes count "
        f"{count(terms['num_loads'], 'time')}.",
        charts.terms(rows, scale, step),
        table=table,
    )
    return Section("terms", "Where the time goes", charts=(chart,))


def _slowest(document: Document) -> Document:
    """Return the block of devices that all others wait for."""
    block: Document = document["plan"]["blocks"][document["terms"]["slowest_block"] - 1]
    return block


# The timeline


def _timeline(document: Document) -> Section | None:
    timeline = document["timeline"]
    if timeline is None:
        return None
    scale = TimeScale.fitting(
        timeline["step_time_ns"], document["problem"]["time_unit"]
    )
    columns = (
        Column("stage", value=charts.block_label),
        Column("busy_ns", "busy", scale, right=True),
        Column("idle_ns", "idle", scale, right=True),
        Column("bubble_share", "idle share", _share_text, right=True),
        Column("end_ns", "ends after", scale, right=True),
    )
    table = Table.of(columns, timeline["blocks"], "What blocks of devices do in a step")
    windows = timeline["windows"]
    slowest = _slowest(document)
    load = TimeScale.fitting(slowest["load_ns"], document["problem"]["time_unit"]).short
    titles = [
        f"{charts.block_label(slowest).capitalize()} is the slowest: "
        f"{load(slowest['load_ns'])} per microbatch"
    ]
    if len(windows) > 1:
        titles = [f"The start of the step: {titles[0].lower()}"]
        idlest = max(timeline["blocks"], key=lambda x: x["bubble_share"])
        share = _share_text(idlest["bubble_share"])
        label = charts.block_label(idlest)
        titles.append(f"The end of the step: {label} idles most, {share} of the time")
    shown = tuple(
        Chart(
            f"timeline-{index}",
            title,
            "One replica, simulated. Gaps are waiting.",
            charts.timeline(document, index, scale),
            table=table if index == 0 else None,
        )
        for index, title in enumerate(titles)
    )
    return Section("timeline", "The step, pass by pass", charts=shown)


# The frontier


def _frontier(document: Document) -> Section | None:
    frontier = document["frontier"]
    if frontier is None:
        return None
    points, lines = frontier["points"], tuple(frontier["lines"])
    if not points:
        return Section("frontier", "The frontier", lines)
    scale = _scale(document, *(point["step_time_ns"] for point in points))
    columns = [Column(x, right=x != "plan") for x in frontier["headings"]]
    title = f"Plans that no other beats in {', '.join(frontier['objectives'])}"
    chart = Chart(
        "frontier",
        _frontier_title(points, scale),
        "A line per number of devices; dots are the plans of the table.",
        charts.frontier(frontier, scale),
    )
    table = Table(columns, frontier["cells"], title)
    return Section(*("frontier", "The frontier", lines, (), (chart,), (table,)))


def _frontier_title(points: Sequence[Document], scale: TimeScale) -> str:
    """Return what more memory buys, from the smallest plan to the fastest."""
    small = min(points, key=lambda x: (x["memory_bytes"], x["step_time_ns"]))
    fast = min(points, key=lambda x: (x["step_time_ns"], x["memory_bytes"]))
    (size, step), (least_size, longest_step) = (
        (format_bytes(x["memory_bytes"]), scale.short(x["step_time_ns"]))
        for x in (fast, small)
    )
    text = f"The fastest step needs {size} and takes {step}"
    return text if small is fast else f"{text}; {least_size} suffice for {longest_step}"


# The network


def _network(document: Document) -> Section | None:
    network = document["network"]
    if network["levels"]:
        columns = (
            Column("name", "level"),
            Column("fan_out", "joins", right=True),
            Column("devices", "devices below", right=True),
            Column("num_units", "units", right=True),
            *_link_columns("GB/s per device"),
        )
        levels = [
            {**level, "name": level["name"] or f"level {index}"}
            for index, level in enumerate(network["levels"])
        ]
        table = Table.of(columns, levels, "Levels of the network, from the device up")
        rates = ", ".join(
            f"{level['bandwidth_bytes_per_s'] / 1e9:,.4g} GB/s within "
            f"{count(level['devices'], 'device')}"
            for level in levels
        )
        summary, spec = "Each bar joins the bars below it.", charts.levels(network)
        chart = Chart("network", f"A device has {rates}", summary, spec, table=table)
        return Section("network", "The network", charts=(chart,))
    links = network.get("links", ())
    if not links:
        return None
    table = Table.of(
        (Column("count", "links"), *_link_columns("GB/s")),
        links,
        f"Links of {count(network['num_devices'], 'device')} and "
        f"{network['num_switches']} switches, one way",
    )
    chart = Chart(
        "graph",
        f"{count(network['num_devices'], 'device')}, {network['num_switches']} "
        f"switches and {count(network['num_links'], 'link')}",
        "Switches are above the devices, by their distance.",
        picture=network["picture"],
    )
    shown = (chart,) if network["picture"] else ()
    return Section("network", "The network", charts=shown, tables=(table,))


def _link_columns(bandwidth_name: str) -> tuple[Column, ...]:
    return (
        Column(
            "bandwidth_bytes_per_s",
            bandwidth_name,
            lambda bytes_per_s: f"{bytes_per_s / 1e9:,.4g}",
            right=True,
        ),
        Column(
            "latency_ns",
            "latency",
            lambda latency_ns: f"{latency_ns / 1e3:,.4g} µs",
            right=True,
        ),
    )


# What was searched, and how to repeat it


def _searched(document: Document) -> Section:
    facts = document["searched"]
    columns = [
        Column("meaning", "setting"),
        Column("values", "values that plans could take"),
    ]
    if any(_chooser(row) != "the problem" for row in facts["settings"]):
        columns += [Column("who chose", value=_chooser), Column("option")]
    limits = [f"{name} {value}" for name, value in facts["limits"].items()]
    text = [
        "Plans outside these values were not searched. The option of a row "
        "changes its values."
    ]
    text += [f"Limits of solvers: {'; '.join(limits)}."] * bool(limits)
    return Section(
        "searched",
        "What was searched, and what was not",
        tuple(text),
        tables=(Table.of(columns, facts["settings"], "Settings"),),
    )


def _chooser(row: Document) -> str:
    """Return who chose the values of a setting."""
    if row["target"]:
        return "the target"
    if row["default"]:
        return "default"
    return "as asked" if row["asked"] else "the problem"


def _repeat(document: Document) -> Section:
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
    return Section(
        "repeat",
        "How to repeat it",
        (
            "The same problem, versions and options give the same plan unless "
            "a time limit ends the search.",
        ),
        tables=(Table((Column("what"), Column("value")), rows, "Where this was made"),),
        code=repeat["command"],
        folded=True,
    )


_SECTIONS: dict[str, Callable[[Document], Section | None]] = {
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
