"""Answers about a space of accelerators for people.

Everything is made of a ``nest-codesign-answers/1`` document, see
:mod:`nest.accelerators.document`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from nest.accelerators.document import CHOICES, Document
from nest.present.fitted import Column
from nest.present.table import key_lines, simple_table
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


def watts(amount: float | None) -> str:
    """Return a power; empty where it is unknown."""
    return "" if amount is None else f"{amount:,.1f} W"


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
    return f"{100 * share:+.2f} %" if share else "0 %"


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


def settled_rows(document: Document) -> list[tuple[str, ...]]:
    """Return how many points what settled, a column per question."""
    cut = f"{sum(document['spec']['cut'].values()):,}"
    counts = [best["counts"] for best in document["best"]]
    rows: list[tuple[str, ...]] = [
        ("limits", "outside the limits, or on no wafer", *[cut] * len(counts))
    ]
    for name, text in SETTLED.items():
        if name != "open" or any(each[name] for each in counts):
            cells = (f"{each[name]:,}" for each in counts)
            rows.append((name, text, *cells))
    return rows


def doubts(document: Document) -> list[str]:
    """Return what is not proven of the best points."""
    lines = []
    for best in document["best"]:
        if best["proven"]:
            continue
        found, most = best["found"], best["most_relative"]
        text = f"{title_of(best['models'])}: not proven"
        if found is None:
            text = f"{title_of(best['models'])}: no point is known"
        if most:
            text += f", no point has more than {times(most)}"
            if found is not None and found["relative"]:
                gap = most / found["relative"] - 1
                text += f", {100 * gap:.2f} % above the best one known"
                if most == found["relative"]:
                    text += ": others may have as much, and be smaller"
        left = best["counts"]["open"]
        lines.append(f"{text}; {number_of('point', left)} open")
    return lines


def relative_of(document: Document, on: Document) -> float | None:
    """Return the throughput of a model relative to that on the base."""
    for base in document["base"]["on"]:
        known = base["step_ps"] is not None and on["step_ps"] is not None
        if base["model"] == on["model"] and known:
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
    parts = [area(point), tdp, price(point)]
    return f"{point['text']}; {', '.join(filter(None, parts))}"


# Answers


def answers_block(document: Document) -> list[RenderableType]:
    """Return all that is known of a space."""
    parts = [best_table(document)]
    for name, make in (
        ("best", counts_table),
        ("frontier", frontier_table),
        ("sensitivity", sensitivity_table),
        ("contributions", contributions_table),
        ("baselines", baselines_table),
    ):
        if document[name]:
            parts.append(Padding(make(document), (1, 0, 0, 0)))
    text = Text("\n".join(footer_lines(document)), style="dim")
    return [*parts, Padding(text, (1, 0, 0, 0))]


_POINT = (
    Column("area", rank=4, right=True),
    Column("TDP", rank=5, right=True),
    Column("TDP per area", rank=3, right=True),
    Column("price", rank=6, right=True),
)


def _figures(point: Document) -> tuple[str, ...]:
    return area(point), watts(point["tdp_w"]), density(point), price(point)


def best_table(document: Document) -> RenderableType:
    """Return the best point of every model and of all, and the base."""
    rows: list[tuple[str, ...]] = []
    for best in document["best"]:
        title = title_of(best["models"])
        if best["found"] is None:
            text = "fits no point" if best["proven"] else "none known"
            rows.append((title, "–", text))
        else:
            rows += _best_rows(document, title, best["found"])
    base = document["spec"]["base_name"]
    rows += _best_rows(document, f"base: {base}", document["base"])
    return simple_table(
        (
            Column("best for"),
            Column("point", rank=3, right=True),
            Column("architecture", rank=1, least=24),
            Column("step time", right=True),
            Column("tokens/s", rank=2, right=True),
            Column("relative", right=True),
            *_POINT,
            Column("power", rank=8, right=True),
            Column("MFU", rank=7, right=True),
        ),
        [(*row, *[""] * (12 - len(row))) for row in rows],
    )


def _best_rows(
    document: Document, title: str, found: Document
) -> list[tuple[str, ...]]:
    """Return rows of a point: one, or one for all models and one for each."""
    point, placed = found["point"], found["on"]
    first = (title, place(point), point["text"])
    if len(placed) == 1:
        return [(*first, *_on_cells(document, placed[0], _figures(point)))]
    whole = ("", "", times(found["relative"]), *_figures(point), "", "")
    return [
        (*first, *whole),
        *(
            (f"  {on['model']}", "", "", *_on_cells(document, on, ("",) * 4))
            for on in placed
        ),
    ]


def _on_cells(
    document: Document, on: Document, figures: tuple[str, ...]
) -> tuple[str, ...]:
    return (
        step(on["step_ps"]),
        speed(on["tokens_per_s"]),
        times(relative_of(document, on)),
        *figures,
        watts(on["power_w"]),
        "" if on["mfu"] is None else f"{100 * on['mfu']:.1f} %",
    )


def counts_table(document: Document) -> RenderableType:
    """Return how many points what settled, by question."""
    return simple_table(
        (
            Column("cut by"),
            Column("what that is", rank=1),
            *(
                Column(title_of(best["models"]), right=True)
                for best in document["best"]
            ),
        ),
        settled_rows(document),
    )


def frontier_table(document: Document) -> RenderableType:
    """Return the points that none is better than in every figure."""
    return simple_table(
        (
            Column("frontier", right=True),
            Column("architecture", rank=1, least=24),
            Column("relative", right=True),
            Column("area", right=True),
            Column("TDP", rank=2, right=True),
            Column("TDP per area", rank=4, right=True),
            Column("price", rank=3, right=True),
        ),
        [
            (
                place(found["point"]),
                found["point"]["text"],
                times(found["relative"]),
                *_figures(found["point"]),
            )
            for found in document["frontier"]
        ],
    )


def sensitivity_table(document: Document) -> RenderableType:
    """Return what the next listed value of every parameter changes."""
    return simple_table(
        (
            Column("change of the best point", least=20),
            Column("throughput", right=True),
            Column("area", rank=2, right=True),
            Column("TDP", rank=3, right=True),
            Column("TDP per area", rank=5, right=True),
            Column("price", rank=4, right=True),
            Column("within limits", rank=1),
        ),
        [
            (
                each["text"],
                change(each["change"]),
                *_figures(each["found"]["point"]),
                "yes" if each["listed"] else "no",
            )
            for each in document["sensitivity"]
        ],
    )


def contributions_table(document: Document) -> RenderableType:
    """Return what each choice contributes to the throughput of each model."""
    return simple_table(
        (
            Column("contributions"),
            *(Column(name, right=True) for name in CHOICES),
            Column("all three", right=True),
        ),
        [
            (each["model"], *contribution_texts(each["factors"]))
            for each in document["contributions"]
        ],
    )


def contribution_texts(factors: Mapping[str, float] | None) -> list[str]:
    """Return the factors of the three choices, and their product."""
    if factors is None:
        return ["–"] * (len(CHOICES) + 1)
    product = 1.0
    for factor in factors.values():
        product *= factor
    return [*(times(factors[name]) for name in CHOICES), times(product)]


def regret(baseline: Document) -> str:
    """Return how much more throughput there is, or may be."""
    least, most = baseline["regret"], baseline["most_regret"]
    if least is None:
        return "–"
    if most is None:
        return f">= {100 * least:.2f} %"
    if most == least:
        return f"{100 * least:.2f} %"
    return f"{100 * least:.2f} to {100 * most:.2f} %"


def baselines_table(document: Document) -> RenderableType:
    """Return what other searches find, and what they miss."""
    rows = []
    for each in document["baselines"]:
        found = each["best"]
        rows.append(
            (
                each["name"],
                f"{each['num_evaluated']:,}",
                "nothing that fits"
                if found is None
                else found["point"]["text"],
                "" if found is None else times(found["relative"]),
                regret(each),
            )
        )
    return simple_table(
        (
            Column("other searches"),
            Column("points", right=True),
            Column("best found", rank=1, least=24),
            Column("relative", right=True),
            Column("regret", right=True),
        ),
        rows,
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
