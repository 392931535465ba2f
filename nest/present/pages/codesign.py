"""A page about a space of accelerators: ``nest codesign --html``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nest.accelerators.document import CHOICES, Document
from nest.present import codesign as answers
from nest.present.pages import charts
from nest.present.pages.html import page_html
from nest.present.table import count
from nest.util.sections import Chart, Fact, Page, Section
from nest.util.tables import Column, Table

#: A chart in Vega-Lite.
Spec = dict[str, Any]

#: What a frontier is drawn against: key of a point, and what it says.
_AGAINST = {
    "area_mm2": ("area", "area of the die (mm²)"),
    "tdp_w": ("power", "TDP (W)"),
    "price_usd": ("price", "price of a device (USD)"),
}

#: What the page says of its figures, at its beginning.
_RESTS_ON = (
    f"All times, energies and areas are those of an {answers.LABEL}. They compare "
    f"points of one space; they do not predict the step time of a chip."
)


def to_html(document: Document, command: str) -> str:
    """Return the page of answers; ``command`` repeats it."""
    spec = document["spec"]
    lead = (
        f"{spec['kept']:,} of {spec['raw']:,} accelerators for "
        f"{', '.join(spec['models'])} on {count(spec['devices'], 'device')}. "
        f"Costs: {answers.LABEL}."
    )
    sections = [
        _answer(document),
        _frontier(document),
        _sensitivity(document),
        _contributions(document),
        _baselines(document),
        _searched(document),
        _repeat(document, command),
    ]
    shown = (section for section in sections if section is not None)
    return page_html(Page("Which accelerator", lead, tuple(shown)))


# The answer


def _answer(document: Document) -> Section:
    best = document["best"][-1] if document["best"] else None
    missing = [
        f"No point of the space fits {answers.title_of(each['models'])}."
        for each in document["best"]
        if each["found"] is None and each["proven"]
    ]
    missing += [f"{line}." for line in answers.doubts(document)]
    unfinished = [document["unfinished"]] * bool(document["unfinished"])
    facts, text = [], [_RESTS_ON]
    if best is not None and best["found"] is not None:
        result = best["found"]
        text.insert(0, _sentence(document, best))
        facts = _facts(document, result)
    return Section(
        "answer",
        "The answer",
        text=tuple(text),
        facts=tuple(facts),
        tables=(answers.best_table(document, one_each=True),),
        warnings=(*unfinished, *missing),
    )


def _sentence(document: Document, best: Document) -> str:
    spec, point = document["spec"], best["found"]["point"]
    within = f"the {answers.number_of('point', spec['kept'])} within the limits"
    which = (
        f"for {answers.title_of(best['models'])} is {point['text']} (point "
        f"{answers.place(point)} of those within the limits, counted from 0)"
    )
    figure = "throughput"
    if len(spec["models"]) > 1:
        figure = answers.MEANS[spec["objective"]["kind"]]
    if best["proven"]:
        return (
            f"The best accelerator {which}, proven: none of {within} has a "
            f"larger {figure}."
        )
    max_relative, bound = best["most_relative"], ""
    if max_relative:
        bound = f": none of {within} has more than {answers.times(max_relative)}"
    return f"The best accelerator known {which}{bound}."


def _facts(document: Document, result: Document) -> list[Fact]:
    point, base = result["point"], document["spec"]["base_name"]
    facts = [
        Fact("Throughput", answers.times(result["relative"]), f"of that on {base}"),
        Fact("Area", answers.area(point)),
        Fact("TDP", answers.watts(point["tdp_w"]), "everything at full rate"),
        Fact("TDP per area", answers.density(point), "published chips: 0.2 to 0.9"),
    ]
    if point["price_usd"] is not None:
        facts.append(Fact("Price", answers.price(point), "of a device; yours to set"))
    facts.append(Fact("Peak", f"{point['peak_tflops']:,.1f} TFLOP/s"))
    for on in result["on"]:
        label, power = f"Step of {on['model']}", on["power_w"]
        remark = f"{answers.speed(on['tokens_per_s'])} tokens/s"
        if power is not None:
            remark += f", {answers.watts(power)} on average per device"
        facts.append(Fact(label, answers.step(on["step_ps"]), remark))
    return facts


# Throughput against area, power and price


def _frontier(document: Document) -> Section | None:
    points = _marked(document)
    if not points:
        return None
    shown = [
        Chart(
            name,
            _most_text(document, points, key, name),
            f"A dot per point; the line is the largest throughput up to each {name}.",
            _against(points, key, title),
        )
        for key, (name, title) in _AGAINST.items()
        if all(x["point"][key] is not None for _, x in points)
    ]
    text = ["Throughput is relative to that on the base."]
    if not document["frontier"]:
        text.append("Add --frontier for all points that none beats.")
    return Section(
        "frontier",
        "Throughput against area, power and price",
        text=tuple(text),
        charts=tuple(shown),
        tables=(answers.points_table("point", points),),
    )


def _marked(document: Document) -> list[tuple[str, Document]]:
    """Return what is drawn: what each point is, and the point.

    Relative throughputs are those of all models together.
    """
    marked = [("frontier", each) for each in document["frontier"]]
    best = document["best"][-1] if document["best"] else None
    if best is not None and best["found"] is not None:
        marked.append(("best", best["found"]))
    marked.append(("base", document["base"]))
    marked += [
        ("other searches", each["best"])
        for each in document["baselines"]
        if each["best"] is not None
    ]
    return [(what, x) for what, x in marked if x["relative"]]


def _most_text(
    document: Document, points: Sequence[tuple[str, Document]], key: str, name: str
) -> str:
    """Return the most throughput that the base's amount buys."""
    limit = document["base"]["point"][key]
    within = [x["relative"] for _, x in points if x["point"][key] <= limit]
    factor = answers.times(max(within, default=0))
    return f"With the {name} of the base: at most {factor} its throughput"


def _against(points: Sequence[tuple[str, Document]], key: str, title: str) -> Spec:
    """Return throughput against an amount, with the most within it."""
    values = [
        {
            "what": what,
            "x": result["point"][key],
            "y": result["relative"],
            "tip": f"{what}: {answers.times(result['relative'])}, "
            f"{result['point']['text']}; {answers.area(result['point'])}, "
            f"{answers.watts(result['point']['tdp_w'])}, "
            f"{answers.price(result['point'])}",
        }
        for what, result in points
    ]
    line: list[Document] = []
    for value in sorted(values, key=lambda v: (v["x"], -v["y"])):
        if not line or value["y"] > line[-1]["y"]:
            line.append({"x": value["x"], "y": value["y"]})
    line.append({**line[-1], "x": max(v["x"] for v in values)})
    x = charts.number_axis("x", title, zero=False)
    y = charts.number_axis("y", "throughput, relative to the base", zero=False)
    order = list(dict.fromkeys(value["what"] for value in values))
    look = {"interpolate": "step-after", "color": charts.TEXT, "strokeWidth": 1}
    steps = charts.layer(charts.mark("line", **look), values=line, tip=False, x=x, y=y)
    dots = charts.layer(
        charts.mark("point", filled=True),
        x=x,
        y=y,
        color=charts.colors("what", order),
        shape=charts.kinds("what", order, legend=None),
        # A point may be several of them.
        size=charts.kinds("what", order, [160, 80, 60, 40], legend=None),
    )
    return charts.chart(values, height=320, layer=[steps, dots])


# What changes the answer


def _sensitivity(document: Document) -> Section | None:
    rows = document["sensitivity"]
    if not rows:
        return None
    solved = [row for row in rows if row["change"] is not None]
    values = [
        {
            "name": f"{row['text']}{'' if row['listed'] else ' *'}",
            "value": 100 * row["change"],
            "tip": f"{row['text']}: {answers.change(row['change'])}",
            "kind": "more" if row["change"] >= 0 else "less",
        }
        for row in solved
    ]
    drawn = Chart(
        "sensitivity",
        _most_change(solved),
        "A bar per change of one parameter of the best point to the next "
        "listed value, solved exactly.",
        _bars(values, "change of the throughput (%)"),
    )
    return Section(
        "sensitivity",
        "What would change the answer",
        text=("Values with * are outside the list or the limits.",),
        charts=(drawn,) if solved else (),
        tables=(answers.sensitivity_table(document),),
    )


def _most_change(rows: Sequence[Document]) -> str:
    if not rows:
        return ""
    largest = max(rows, key=lambda row: abs(row["change"]))
    change = answers.change(largest["change"])
    return f"{largest['text']} changes the throughput most: {change}"


def _bars(values: Sequence[Document], title: str) -> Spec:
    """Return a bar per name; those below 0 have another color."""
    order = [value["name"] for value in values]
    look = charts.COLORS[:2]
    return charts.chart(
        values,
        height={"step": 26},
        **charts.layer(
            charts.mark("bar"),
            x=charts.number_axis("value", title),
            y=charts.names("name", order),
            color=charts.kinds("kind", ["more", "less"], look, legend=None),
        ),
    )


def _contributions(document: Document) -> Section | None:
    rows = document["contributions"]
    if not rows:
        return None
    solved = [row for row in rows if row["factors"] is not None]
    values = [
        {
            "model": row["model"],
            "choice": choice,
            "factor": row["factors"][choice],
            "tip": f"{row['model']}, {choice}: {answers.times(row['factors'][choice])}",
        }
        for row in solved
        for choice in CHOICES
    ]
    largest = max(values, key=lambda x: x["factor"], default=None)
    drawn = Chart(
        "contributions",
        f"The largest contribution: {largest['tip']}" if largest else "",
        "A bar per model and choice: what it multiplies the throughput by, "
        "on average over the orders in which the three can be made.",
        _factors(values, [row["model"] for row in solved]),
    )
    return Section(
        "contributions",
        "What contributed",
        text=(
            "Without any of the three: the base architecture, operators one "
            "after the other, and Megatron's plan. Shares are Shapley values "
            "of the logarithm of the throughput.",
        ),
        charts=(drawn,) if solved else (),
        tables=(answers.contributions_table(document, "model"),),
    )


def _factors(values: Sequence[Document], models: Sequence[str]) -> Spec:
    return charts.chart(
        values,
        height={"step": 22},
        **charts.layer(
            charts.mark("bar"),
            x=charts.number_axis("factor", "times the throughput"),
            y=charts.names("model", models),
            yOffset={**charts.text_of("choice"), "sort": list(CHOICES)},
            color=charts.colors("choice", CHOICES),
        ),
    )


def _baselines(document: Document) -> Section | None:
    if not document["baselines"]:
        return None
    text = (
        "Regret is how much more throughput the best point has, in these "
        "latencies: Phaze's own are others."
    )
    table = answers.baselines_table(document)
    return Section("baselines", "Other searches", (text,), tables=(table,))


# What was searched


def _searched(document: Document) -> Section:
    spec = document["spec"]
    axes = Table(
        (Column("parameter"), Column("values")),
        [(name, ", ".join(map(str, values))) for name, values in spec["axes"].items()],
        "Values that were listed",
    )
    text = (
        *(f"{line}." for line in answers.cut_lines(spec)),
        "Not searched: anything that is not in the list; splits of the model that the "
        "job does not allow. Not modeled: the network on the chip, the bandwidth of "
        "its buffers, fused operators, launches, and clocks that depend on power.",
    )
    return Section(
        "searched",
        "What was searched, and what not",
        text,
        tables=(answers.counts_table(document), axes),
    )


def _repeat(document: Document, command: str) -> Section:
    spec = document["spec"]
    version = document["versions"].get("nest", "")
    text = (
        *answers.footer_lines(document),
        f"Arrays are counted '{spec['convention']}', attention is "
        f"{spec['attention']}, constants are of {spec['technology']}.",
        f"nest {version}".strip(),
    )
    return Section("repeat", "How to repeat it", text=text, code=command)
