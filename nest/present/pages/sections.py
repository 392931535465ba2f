"""The sections of a page, in their order: text, figures, charts, tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from nest.analysis.page_facts import MOST_DRAWN, Document
from nest.present import comparison
from nest.present.pages import charts
from nest.present.table import count, percent
from nest.units import GIB, format_bytes
from nest.util.sections import Chart, Fact, Page, Section
from nest.util.tables import Column, Table, Writer
from nest.util.time_scale import TimeScale

#: Columns of a comparison that say something about solvers alone.
_OF_SOLVERS = ("lower_bound_ns", "gap", "wall_s")

_TRACE_KEYS = ("wall_s", "step_time_ns", "lower_bound_ns")

#: What tells the length of a training run, by what was asked.
_RUN = {
    **dict.fromkeys(("solve", "compare", "report"), "--tokens"),
    "pareto": "--steps with a price",
}


def page_of(document: Document) -> Page:
    """Return the page of a ``nest-page/1`` document."""
    return Page(
        _title(document), _lead(document), tuple(sections_of(document))
    )


def _title(document: Document) -> str:
    what = {
        "solve": "Plan for",
        "compare": "Solvers compared on",
        "pareto": "Frontier of",
        "report": "Report on",
    }
    return f"{what[document['kind']]} {document['problem']['name']}"


def _lead(document: Document) -> str:
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


def sections_of(
    document: Document, keys: Collection[str] | None = None
) -> list[Section]:
    """Return the sections of a page that have content; all, or some."""
    sections = (
        make(document)
        for key, make in _SECTIONS.items()
        if keys is None or key in keys
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
    answer, problem = document["answer"], document["problem"]
    warnings = [document["unfinished"]] if document["unfinished"] else []
    notes = tuple(document["notes"])
    if answer is None:
        return Section(
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
    free_bytes = answer["memory_left_bytes"]
    facts.append(
        Fact(
            "Memory head-room" if free_bytes >= 0 else "Memory short by",
            format_bytes(abs(free_bytes)),
            f"the fullest device needs {format_bytes(answer['memory_bytes'])}",
        )
    )
    facts += _run_facts(answer["run"])
    return Section(
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
    texts = []
    if answer["lower_bound_ns"] is None:
        texts.append("not proven: no lower bound is known")
    elif answer["lower_bound_ns"] == answer["step_time_ns"]:
        texts.append("proven: no plan is faster")
    elif answer["lower_bound_ns"] is not None:
        texts.append(
            f"no plan is below {scale.short(answer['lower_bound_ns'])}"
        )
    if span is not None:
        low, high = (scale.short(end) for end in span)
        texts.append(f"with 90 % between {low} and {high}")
    return "; ".join(texts)


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
    options = []
    if run["usd_per_step"] is None:
        options.append("--price what a step costs")
    if run["days"] is None:
        options.append(f"{_RUN[kind]} the days of a training run")
    return [f"Options add more: {', '.join(options)}."] if options else []


def _big(tokens: float) -> str:
    """Return a number of tokens as people say it."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if tokens >= size:
            return f"{tokens / size:g} {letter}"
    return f"{tokens:g}"


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


def _solvers(document: Document) -> Section | None:
    rows = document["solvers"]
    if not rows:
        return None
    scale = _scale(
        document,
        *(row["step_time_ns"] or row["lower_bound_ns"] for row in rows),
    )
    are_plans = all(row["outcome"] == "scored" for row in rows)
    table = _solver_table(rows, scale, are_plans)
    failed = [row["name"] for row in rows if row["failed"]]
    warnings = (
        (f"{', '.join(failed)} failed; the rest stands.",) if failed else ()
    )
    shown = []
    if sum(row["step_time_ns"] is not None for row in rows) > 1:
        shown.append(
            Chart(
                "steps",
                "Step time by " + ("plan" if are_plans else "solver"),
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
    if are_plans:
        return Section("solvers", "The plans", tables=(table,))
    return Section(
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
    rows: Sequence[Document], scale: TimeScale, are_plans: bool
) -> Table:
    columns = comparison.columns(Writer.PAGE, scale)
    title = "What every solver answered"
    if are_plans:
        title = "Plans in the order in which they were given"
        solver, *others = columns
        columns = [
            solver._replace(name="plan"),
            *(column for column in others if column.key not in _OF_SOLVERS),
        ]
    answers = [
        {
            **dict.fromkeys(comparison.page_keys()),
            **row,
            "solver": row["name"],
            "longer_than_best": row["over_best"],
        }
        for row in rows
    ]
    return Table.of(columns, answers, title)


def _fastest(rows: Sequence[Document], scale: TimeScale) -> str:
    fitting = [row for row in rows if row["step_time_ns"] is not None]
    best = min(fitting, key=lambda row: row["step_time_ns"])
    return f"The fastest is {best['name']} with {scale(best['step_time_ns'])}."


def _share_text(share: float) -> str:
    """Return a share in per cent; only an exact 0 is shown as 0."""
    return f"{percent(share)} %"


def _trace_table(rows: Sequence[Document], scale: TimeScale) -> Table:
    columns = (
        Column("solver"),
        Column("after", form=lambda wall_s: f"{wall_s:.2f} s", right=True),
        Column("step time", form=scale, right=True),
        Column("lower bound", form=scale, right=True),
    )
    points = [
        (row["name"], *(point[key] for key in _TRACE_KEYS))
        for row in rows
        for point in row["trace"]
    ]
    return Table(columns, points, "What solvers had, and when")


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
        Column(
            "devices",
            value=lambda stage: device_text(blocks[stage["block"] - 1]),
        ),
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
    return Section(
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
    texts = []
    for (first, end), nodes in zip(
        block["ranges"], block["nodes"], strict=False
    ):
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
            Column(key, name, _gib, _memory_of(key), right=True)
            for key, name in charts.MEMORY_PARTS.items()
        ),
        Column("memory_bytes", "sum", _gib, right=True),
        Column("capacity_bytes", "limit", _gib, right=True),
        Column("left", form=_gib, value=_free_bytes, right=True),
    )
    table = Table.of(columns, plan["blocks"], "Memory of a device, in GiB")
    fullest = min(plan["blocks"], key=_free_bytes)
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
    return Section("memory", "Memory", charts=(chart,))


def _memory_of(key: str) -> Callable[[Document], int]:
    return lambda block: block["memory"][key]


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
    table = Table.of(
        columns, rows, "Terms of the step time; they add up to it"
    )
    first = rows[0]
    chart = Chart(
        "terms",
        "Where the step time goes",
        f"The largest term is {first['meaning']}, {scale(first['time_ns'])}"
        + (f" or {_share_text(first['time_ns'] / step)}." if step else "."),
        charts.terms(rows, scale, step),
        table=table,
    )
    slow = terms["slowest_block"]
    block = document["plan"]["blocks"][slow - 1]
    return Section(
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


def _timeline(document: Document) -> Section | None:
    timeline = document["timeline"]
    if timeline is None:
        return None
    if timeline["missing"]:
        return Section(
            "timeline", "The step, pass by pass", (timeline["missing"],)
        )
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
    table = Table.of(
        columns, timeline["blocks"], "What blocks of devices do in a step"
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
            f"timeline-{index}",
            f"{name} of the pipeline" if len(windows) > 1 else name,
            "A row per block of devices: forward and backward passes, what "
            "they receive, and the gradient sync; gaps are waiting.",
            charts.timeline(document, index, scale),
            table=table if index == 0 else None,
        )
        for index, name in enumerate(names)
    )
    return Section(
        "timeline", "The step, pass by pass", tuple(text), (), shown
    )


# The frontier


def _frontier(document: Document) -> Section | None:
    frontier = document["frontier"]
    if frontier is None:
        return None
    points = frontier["points"]
    scale = _scale(document, *(p["step_time_ns"] for p in points))
    columns = [
        Column("point", value=lambda point: _point_text(point, frontier)),
        Column("step_time_ns", "step time", scale, right=True),
        Column("memory_bytes", "memory", format_bytes, right=True),
        Column("devices", right=True),
    ]
    if frontier["price_usd_per_device_hour"] is not None:
        columns.append(Column("usd_per_step", "$ per step", ",.4g"))
        if frontier["steps"]:
            columns.append(Column("usd_per_run", "$ per run", ",.0f"))
    columns += [
        Column("proven", form=lambda proven: "yes" if proven else "no"),
        Column("plan", value=_point_plan),
    ]
    table = Table.of(
        columns,
        points,
        f"Plans that no other beats in {', '.join(frontier['objectives'])}",
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
    return Section(
        "frontier",
        "The frontier",
        tuple(text),
        charts=shown,
        tables=(table,) if points else (),
    )


def _point_text(point: Document, frontier: Document) -> str:
    knee = " (knee)" if point["number"] == frontier["knee"] else ""
    return f"{point['number']}{knee}"


def _point_plan(point: Document) -> str:
    return (
        f"{count(point['replicas'], 'replica')} × "
        f"{count(point['num_stages'], 'stage')}, micro-batch "
        f"{point['micro_batch']}, {charts.some(point['strategies'])}"
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
            bound_text = "nothing is known of the step time"
            if gap["lower_bound_ns"]:
                bound = scale.bound(gap["lower_bound_ns"])
                bound_text = f"a step takes at least {bound}"
            devices = count(curve["devices"], "device")
            open_.append(f"{devices} from {low} to {high}, where {bound_text}")
    return f"Not all of it is proven: {'; '.join(open_)}."


def _knee(frontier: Document) -> str:
    """Return which point is the knee, and what that is."""
    knee = frontier["knee"]
    if knee is None:
        return (
            "No point is the knee: none is better than the plane of the "
            "extremes."
        )
    return (
        f"Point {knee} is the knee: it is farthest from the plane of the "
        f"extremes, and from there a part of one objective's range buys no "
        f"equal part of another's."
    )


# The network


def _network(document: Document) -> Section:
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
        table = Table.of(
            columns, levels, "Levels of the network, from the device up"
        )
        chart = Chart(
            "network",
            "Levels of the network",
            "A row per level: devices at the bottom, each bar above is a unit "
            "that joins those below it.",
            charts.levels(network),
            table=table,
        )
        return Section("network", "The network", charts=(chart,))
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
    table = Table.of(
        (Column("count", "links"), *_link_columns("GB/s")),
        links,
        "Links by what they carry, one way",
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
    return Section(
        "network",
        "The network",
        (text,),
        charts=shown,
        tables=(table,) if links else (),
    )


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
    defaults = any(row["default"] for row in facts["settings"])
    targeted = any(row["target"] for row in facts["settings"])
    columns = [
        Column("meaning", "setting"),
        Column("values", "values that plans could take"),
    ]
    if any(_chooser(row) != "the problem" for row in facts["settings"]):
        columns += [Column("who chose", value=_chooser), Column("option")]
    limits = facts["limits"]
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
        limit_text = "; ".join(
            f"{name} {value}" for name, value in limits.items()
        )
        text.append(f"Solvers ran under: {limit_text}.")
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
        tables=(
            Table(
                (Column("what"), Column("value")), rows, "Where this was made"
            ),
        ),
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
