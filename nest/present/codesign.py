"""Answers about a space of accelerators for people.

Everything is made of a ``nest-codesign-answers/1`` document, see
:mod:`nest.accelerators.document`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from nest.accelerators.document import CHOICES, Document
from nest.present.table import key_lines, number_form, terminal_table
from nest.util.tables import EVERYWHERE, Column, Table, Writer
from nest.util.time_scale import TimeScale

#: What settled points, in the order of the counts.
SETTLED = {
    "dominance": "a larger point is too slow",
    "bound": "a bound from its operators",
    "together": "ruled out with alike points",
    "placement": "the placement is proven slower",
    "exact": "step times solved exactly",
    "open": "nothing: the search was stopped",
}

#: What every figure rests on.
LABEL = "analytic accelerator model, not calibrated"

#: The other value of ``attention`` in SPEC.yaml, on which the choice depends.
OTHER_ATTENTION = {"unfused": "fused", "fused": "unfused"}

#: What a TDP per area is to be held against.
PUBLISHED_DENSITY = (
    "TDP per area: published chips have 0.2 to 0.9 W/mm²; "
    "limits.power_density in SPEC.yaml bounds it"
)

#: How throughputs of several models become one, for people.
MEANS = {
    "geometric-mean": "geometric mean of relative throughputs",
    "worst-case": "least relative throughput",
}


#: A power; empty where it is unknown.
watts = number_form(",.1f", unit=" W")


def number_of(noun: str, amount: int) -> str:
    """Return a number of points, devices or the like."""
    return f"{amount:,} {noun}{'s' * (amount != 1)}"


def speed(tokens_per_s: float | None) -> str:
    """Return a throughput; empty where it is unknown."""
    if tokens_per_s is None:
        return ""
    if tokens_per_s >= 1000:
        return f"{tokens_per_s:,.0f}"
    return f"{tokens_per_s:.4g}"


def area(point: Document) -> str:
    """Return the area of a point."""
    return f"{point['area_mm2']:,.1f} mm²"


def density(point: Document) -> str:
    """Return the TDP per area of a point."""
    return f"{point['power_density_w_per_mm2']:,.2f} W/mm²"


def price(point: Document) -> str:
    """Return the price of a point; empty where it has none."""
    amount = point["price_usd"]
    return "" if amount is None else f"${amount:,.0f}"


def times(factor: float | None) -> str:
    """Return a factor; a dash where there is none."""
    return "–" if not factor else f"{factor:,.4g}×"


def change(share: float | None) -> str:
    """Return a change in per cent, with its sign; only an exact 0 is 0."""
    if share is None:
        return "–"
    if share and abs(share) < 5e-5:
        return f"{'-' if share < 0 else '+'}<0.01 %"
    return f"{100 * share:+z.2f} %" if share else "0 %"


def step(step_ps: int | None) -> str:
    """Return a step time in the unit that suits it."""
    if step_ps is None:
        return "no plan fits"
    return TimeScale.fitting(step_ps / 1000)(step_ps / 1000)


def title_of(models: Sequence[str]) -> str:
    """Return what a best point is for."""
    return models[0] if len(models) == 1 else f"all {len(models)} together"


def place(point: Document) -> str:
    """Return the number of a point among those kept, or that it is none."""
    return "–" if point["index"] is None else str(point["index"])


def doubts(document: Document) -> list[str]:
    """Return what is not proven of the best points."""
    lines = []
    for best in document["best"]:
        if best["proven"]:
            continue
        result, bound = best["found"], best["most_relative"]
        text = f"{title_of(best['models'])}: not proven"
        if result is None:
            text = f"{title_of(best['models'])}: no point is known"
        if bound:
            text += f", no point has more than {times(bound)}"
            if result is not None and result["relative"]:
                gap = bound / result["relative"] - 1
                text += f", {100 * gap:.2f} % above the best one known"
                if bound == result["relative"]:
                    text += ": others may have as much, and be smaller"
        num_open = best["counts"]["open"]
        lines.append(f"{text}; {number_of('point', num_open)} open")
    return lines


def relative_of(document: Document, on: Document) -> float | None:
    """Return the throughput of a model relative to that on the base."""
    for base in document["base"]["on"]:
        are_known = base["step_ps"] is not None and on["step_ps"] is not None
        if base["model"] == on["model"] and are_known:
            return float(base["step_ps"] / on["step_ps"])
    return None


# What was read


def read_block(spec: Document) -> list[RenderableType]:
    """Return what a specification says, before anything is searched."""
    objective = spec["objective"]
    weights = [f"{name} {x}" for name, x in objective["weights"].items()]
    goal = MEANS[objective["kind"]]
    if weights:
        goal += f", weights {', '.join(weights)}"
    job = [
        f"{name.replace('_', ' ')} {_list(value)}"
        for name, value in spec["job"].items()
        if value not in (None, {}, [], False)
    ]
    rows = [
        ("space", f"{number_of('point', spec['raw'])} listed"),
        *(("", line) for line in cut_lines(spec)),
        ("", f"{number_of('point', spec['kept'])} kept"),
        ("smallest", _summary(spec["smallest"])),
        ("largest", _summary(spec["largest"])),
        ("base", f"{spec['base_name']}: {_summary(spec['base'])}"),
        ("models", ", ".join(spec["models"]) or "none yet: add --model"),
        ("devices", f"{spec['devices']:,}"),
        ("job", ", ".join(job)),
        ("objective", goal),
        (
            "costs",
            f"{LABEL}; arrays '{spec['convention']}', attention "
            f"{spec['attention']}, technology {spec['technology']}",
        ),
    ]
    return [key_lines(rows)]


def _list(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def cut_lines(spec: Document) -> list[str]:
    """Return how many points each limit cuts."""
    texts = {each["name"]: each["text"] for each in spec["limits"]}
    texts["wafer"] = "a die that fits the wafer"
    # Phaze's own limit is none of the file's.
    return [
        f"{number_of('point', count)} cut by {name}"
        + (f" ({texts[name]})" if name in texts else "")
        for name, count in spec["cut"].items()
    ]


def _summary(point: Document) -> str:
    tdp = f"TDP {watts(point['tdp_w'])} ({density(point)})"
    texts = [area(point), tdp, price(point)]
    return f"{point['text']}; {', '.join(filter(None, texts))}"


# Answers


def answers_block(document: Document) -> list[RenderableType]:
    """Return all that is known of a space."""
    blocks: list[RenderableType] = [terminal_table(best_table(document))]
    frontier = [("frontier", result) for result in document["frontier"]]
    tables = (
        ("best", counts_table(document)),
        ("frontier", points_table("frontier", frontier)),
        ("sensitivity", sensitivity_table(document)),
        ("contributions", contributions_table(document, "contributions")),
        ("baselines", baselines_table(document)),
    )
    for name, table in tables:
        if document[name]:
            blocks.append(Padding(terminal_table(table), (1, 0, 0, 0)))
    text = Text("\n".join(footer_lines(document)), style="dim")
    return [*blocks, Padding(text, (1, 0, 0, 0))]


# Tables, for terminals and pages

_TERMINAL = EVERYWHERE - {Writer.PAGE}
_PAGE = EVERYWHERE - {Writer.TERMINAL}

#: The figures of a point, for a record with the point under ``point``.
_POINT_TEXTS: dict[str, Callable[[Document], str]] = {
    "area": area,
    "TDP": lambda point: watts(point["tdp_w"]),
    "TDP per area": density,
    "price": price,
}


def _point_columns(*ranks: int) -> Iterator[Column]:
    """Yield a column per figure of a point, with their ranks."""
    for (name, text), rank in zip(_POINT_TEXTS.items(), ranks, strict=True):
        yield Column(name, value=_text_of("point", text), right=True, rank=rank)


def _text_of(key: str, text: Callable[[Document], str]) -> Callable[[Document], str]:
    """Return what makes a text of a part of a record; empty without it."""
    return lambda record: text(record[key]) if record[key] else ""


def best_table(document: Document, one_each: bool = False) -> Table:
    """Return the best point of every model and of all, and the base.

    With ``one_each`` a point for several models has a row for each of them, and none
    for all together.
    """

    def on(name: str, text: Callable[[Document], str], rank: int) -> Column:
        return Column(name, value=_text_of("on", text), right=True, rank=rank)

    columns = (
        Column("title", "best for"),
        Column("index", "point", right=True, rank=3, writers=_TERMINAL),
        Column("text", "architecture", rank=1, min_width=24),
        Column("model", value=_text_of("on", lambda on: on["model"]), writers=_PAGE),
        on("step time", lambda on: step(on["step_ps"]), 0),
        on("tokens/s", lambda on: speed(on["tokens_per_s"]), 2),
        Column("relative", right=True),
        *_point_columns(4, 5, 3, 6),
        on("power", lambda on: watts(on["power_w"]), 8)._replace(writers=_TERMINAL),
        on("MFU", lambda on: number_form(".1f", 100, " %")(on["mfu"]), 7),
        Column(
            "plan",
            value=_text_of("on", lambda on: on["plan_text"] or ""),
            writers=_PAGE,
        ),
    )
    records: list[Document] = []
    for best in document["best"]:
        title = title_of(best["models"])
        if best["found"] is not None:
            records += _best_records(document, title, best["found"], one_each)
        elif not one_each:
            text = "fits no point" if best["proven"] else "none known"
            records.append({**_NO_POINT, "title": title, "text": text})
    title = f"base: {document['spec']['base_name']}"
    records += _best_records(document, title, document["base"], one_each)
    return Table.of(
        columns, records, "Best points and the base, with every model on them"
    )


_NO_POINT = {"index": "–", "point": None, "on": None, "relative": ""}


def _best_records(
    document: Document, title: str, result: Document, one_each: bool
) -> Iterator[Document]:
    """Yield the records of a point: for all models together, and for each."""
    point = result["point"]
    shared = {
        "title": title,
        "index": place(point),
        "text": point["text"],
        "point": point,
    }
    together = len(result["on"]) > 1 and not one_each
    if together:
        yield {**shared, "on": None, "relative": times(result["relative"])}
    for on in result["on"]:
        if together:
            title = f"  {on['model']}"
            shared = {"title": title, "index": "", "text": "", "point": None}
        relative = times(relative_of(document, on))
        yield {**shared, "on": on, "relative": relative}


def counts_table(document: Document) -> Table:
    """Return how many points what settled, a column per question."""
    cut = sum(document["spec"]["cut"].values())
    counts = [best["counts"] for best in document["best"]]
    rows: list[tuple[str | int, ...]] = [
        ("limits", "outside the limits, or on no wafer", *[cut] * len(counts))
    ]
    for name, text in SETTLED.items():
        if name != "open" or any(each[name] for each in counts):
            rows.append((name, text, *(each[name] for each in counts)))
    titles = [title_of(best["models"]) for best in document["best"]]
    columns = [Column("cut by"), Column("what that is", rank=1)]
    columns += [Column(title, form=",") for title in titles]
    return Table(columns, rows, "Points by what cut or settled them, per question")


def points_table(index_name: str, marked: Iterable[tuple[str, Document]]) -> Table:
    """Return points with their throughput, and what each of them is.

    ``index_name`` is the heading of the numbers of the points.
    """
    columns = (
        Column("what", writers=_PAGE),
        Column(
            "index", index_name, value=lambda record: place(record["point"]), right=True
        ),
        Column(
            "architecture",
            value=lambda record: record["point"]["text"],
            rank=1,
            min_width=24,
        ),
        Column("relative", form=times, right=True),
        *_point_columns(0, 2, 4, 3),
    )
    records = [{"what": what, **result} for what, result in marked]
    return Table.of(columns, records, "Points of the frontier and those named")


def sensitivity_table(document: Document) -> Table:
    """Return what the next listed value of every parameter changes."""
    columns = (
        Column("text", "change of the best point", min_width=20),
        Column("change", "throughput", change, right=True),
        *_point_columns(2, 3, 5, 4),
        Column(
            "listed", "within limits", lambda listed: "yes" if listed else "no", rank=1
        ),
    )
    records = [
        {**each, "point": each["found"]["point"]} for each in document["sensitivity"]
    ]
    return Table.of(columns, records, "The best point with one parameter changed")


def contributions_table(document: Document, model_name: str) -> Table:
    """Return what each choice contributes to the throughput of each model.

    ``model_name`` is the heading of the models.
    """
    columns = (
        Column("model", model_name),
        *(Column(name, right=True) for name in (*CHOICES, "all three")),
    )
    rows = [
        (each["model"], *contribution_texts(each["factors"]))
        for each in document["contributions"]
    ]
    title = "Factors of the throughput, which multiply to the whole"
    return Table(columns, rows, title)


def contribution_texts(factors: Mapping[str, float] | None) -> list[str]:
    """Return the factors of the three choices, and their product."""
    if factors is None:
        return ["–"] * (len(CHOICES) + 1)
    return [
        *(times(factors[name]) for name in CHOICES),
        times(math.prod(factors.values())),
    ]


def regret(baseline: Document) -> str:
    """Return how much more throughput there is, or may be."""
    low, high = baseline["regret"], baseline["most_regret"]
    if low is None:
        return "–"
    if high is None:
        return f">= {100 * low:.2f} %"
    if high == low:
        return f"{100 * low:.2f} %"
    return f"{100 * low:.2f} to {100 * high:.2f} %"


def baselines_table(document: Document) -> Table:
    """Return what other searches find, and what they miss."""

    def best_point(search: Document) -> str:
        best = search["best"]
        return best["point"]["text"] if best else "nothing that fits"

    def relative(search: Document) -> Any:
        return search["best"] and search["best"]["relative"]

    columns = (
        Column("name", "other searches"),
        Column("num_evaluated", "points", ","),
        Column("best point", value=best_point, rank=1, min_width=24),
        Column("relative", form=times, value=relative, right=True),
        Column("regret", value=regret, right=True),
    )
    return Table.of(
        columns, document["baselines"], "What other searches find in the same space"
    )


def searches(document: Document) -> str:
    """Return how many questions about placements were answered."""
    text = f"{number_of('placement', document['solved'])} searched"
    if document["stored"]:
        text += f", {document['stored']:,} found in the directory"
    return text


def footer_lines(document: Document) -> list[str]:
    """Return what a reader must know of the figures."""
    spec = document["spec"]
    lines = [document["unfinished"]] if document["unfinished"] else []
    lines += [
        *doubts(document),
        f"costs: {LABEL} (docs/codesign.md)",
        f"attention {spec['attention']}: another point may be best with "
        f"attention {OTHER_ATTENTION[spec['attention']]}",
        PUBLISHED_DENSITY,
        f"relative: throughput in multiples of that on {spec['base_name']}; "
        f"objective {MEANS[spec['objective']['kind']]}",
        f"{spec['kept']:,} of {spec['raw']:,} points on "
        f"{number_of('device', spec['devices'])} · {searches(document)}",
    ]
    return lines
