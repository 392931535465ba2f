"""Answers about a space as a document, and as a table for spreadsheets.

Whatever shows answers (tables, pages, plots) is made of the document, whose
times are in ps, and whose other figures have their units in their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from nest.accelerators.answers import setting_of
from nest.accelerators.architecture import Architecture, describe, size_text
from nest.accelerators.energy import step_energy
from nest.accelerators.points import FIGURES, Point, unlisted
from nest.accelerators.problem import SOURCE
from nest.accelerators.records import (
    Answers,
    Baseline,
    Best,
    Contribution,
    DesignResult,
    ModelResult,
    Neighbor,
    questions_of,
)
from nest.accelerators.spec import KEYS, Spec
from nest.accelerators.tasks import workload_of
from nest.ir.views import Tabular
from nest.util.tables import fields_csv
from nest.util.versions import provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A JSON document.
Document = dict[str, Any]

SCHEMA = "nest-codesign-answers/1"

#: Why answers are not all that was asked.
OUT_OF_TIME = "Time ran out: what is here is what was known by then."

#: What contributes to a throughput, in the order of records.
CHOICES = ("architecture", "schedule", "placement")

#: Parameters that :func:`nest.accelerators.architecture.describe` leaves out.
_UNSAID = (
    *("hbm_bytes_per_s", "frequency_hz", "link_bytes_per_s"),
    *("network_bytes_per_s", "devices_per_node", "core_buffer_bytes"),
)

#: Short names of parameters, for people: their keys in a file, as words.
NAMES = {
    value.parameter: key.replace("_", " ").replace("sram", "SRAM").replace("hbm", "HBM")
    for key, value in KEYS.items()
}


def value_text(parameter: str, value: int) -> str:
    """Return the value of a parameter, for people."""
    if parameter.endswith("_bytes_per_s"):
        return f"{value / 1e9:,.6g} GB/s"
    if parameter.endswith("_bytes"):
        return size_text(value)
    if parameter == "frequency_hz":
        return f"{value / 1e9:.6g} GHz"
    return f"{value:,}"


def point_text(architecture: Architecture, spec: Spec) -> str:
    """Return what an architecture is; of rates those with several values."""
    axes = spec.space.axes
    more = [
        f"{NAMES[name]} {value_text(name, getattr(architecture, name))}"
        for name in _UNSAID
        if len(axes.get(name, ())) > 1
    ]
    return ", ".join([describe(architecture), *more])


def spec_document(spec: Spec) -> Document:
    """Return what was read: the space, what cut it, and what is asked."""
    space = spec.space
    by_area = sorted(space.points, key=lambda p: (p.area_e6_um2, p.index))
    base = base_point(spec)
    return {
        "models": list(spec.models),
        "devices": spec.devices,
        "job": msgspec.to_builtins(spec.job),
        "objective": {
            "kind": spec.objective.kind,
            "weights": dict(spec.objective.weights),
        },
        "convention": spec.convention,
        "attention": spec.attention,
        "technology": spec.process.name,
        "prices": msgspec.to_builtins(spec.prices),
        "link_latency_ns": spec.link_latency_ns,
        "network_latency_ns": spec.network_latency_ns,
        "raw": space.raw,
        "cut": dict(space.cut),
        "kept": len(space.points),
        "limits": [
            {
                "name": f"{figure.name}-{end}",
                "text": f"{figure.of} {words} {bound / figure.in_unit:,.6g} "
                f"{figure.unit}",
            }
            for figure in FIGURES
            if figure.name in space.limits
            for end, words in (("most", "at most"), ("least", "at least"))
            if (bound := getattr(space.limits[figure.name], end)) is not None
        ],
        "axes": {name: list(values) for name, values in sorted(space.axes.items())},
        "smallest": _point(by_area[0], spec),
        "largest": _point(by_area[-1], spec),
        "base_name": spec.objective.base_name,
        "base": _point(base, spec),
    }


def base_point(spec: Spec) -> Point:
    """Return the base with its figures; its index is -1 off the list."""
    base = spec.objective.base
    for point in spec.space.points:
        if point.architecture == base:
            return point
    return unlisted(base, spec.process, spec.prices)


def _point(point: Point, spec: Spec) -> Document:
    architecture = point.architecture
    return {
        "index": None if point.index < 0 else point.index,
        "text": point_text(architecture, spec),
        "architecture": msgspec.structs.asdict(architecture),
        "area_mm2": point.area_e6_um2 / 1e12,
        "tdp_w": point.tdp_mw / 1e3,
        "power_density_w_per_mm2": point.power_density_uw_per_mm2 / 1e6,
        # A die that fits no wafer has none.
        "price_usd": point.price_micro_usd / 1e6 or None,
        "peak_tflops": architecture.peak_flops / 1e12,
    }


def answers_document(answers: Answers, unfinished: str = "") -> Document:
    """Return a ``nest-codesign-answers/1`` document.

    ``unfinished`` says why that is not all that was asked; it is empty if it is, or
    time ran out.
    """
    spec = answers.spec
    if answers.out_of_time and not unfinished:
        unfinished = OUT_OF_TIME
    remaining = questions_of(spec.models)[len(answers.best) :]
    if unfinished and remaining:
        names = "; ".join(map(", ".join, remaining))
        unfinished += f" Nothing was looked for yet for: {names}."
    return {
        "schema": SCHEMA,
        **provenance(),
        "costs": SOURCE,
        "unfinished": unfinished,
        "spec": spec_document(spec),
        "base": _found(answers.base, spec),
        "best": [_best(each, spec) for each in answers.best],
        "frontier": [_found(each, spec) for each in answers.frontier],
        "sensitivity": [_neighbor(each, answers, spec) for each in answers.sensitivity],
        "contributions": [_contribution(each) for each in answers.contributions],
        "baselines": [_baseline(each, spec) for each in answers.baselines],
        "solved": answers.solved,
        "stored": answers.stored,
    }


def _best(best: Best, spec: Spec) -> Document:
    return {
        "models": list(best.models),
        "found": None if best.found is None else _found(best.found, spec, power=True),
        "proven": best.proven,
        "most_relative": best.most_relative,
        "counts": best.counts._asdict(),
    }


def _found(result: DesignResult, spec: Spec, power: bool = False) -> Document:
    return {
        "point": _point(result.point, spec),
        "relative": result.relative,
        "on": [_on(each, result.point, spec, power) for each in result.on],
    }


def _on(on: ModelResult, point: Point, spec: Spec, power: bool) -> Document:
    """Return a model on a point; ``power`` schedules its layers again."""
    nothing = dict.fromkeys(
        ("tokens_per_s", "samples_per_s", "mfu", "energy_j", "power_w")
    )
    document = {"model": on.model, "step_ps": on.step_ps, **nothing}
    document |= {"plan_text": None, "plan": None}
    if on.step_ps is None:
        return document
    architecture = point.architecture
    setting = setting_of(spec, on.model, architecture.devices_per_node)
    workload = workload_of(setting)
    job = workload.base.job
    seconds = Fraction(on.step_ps, 10**12)
    samples = job.global_batch / seconds
    document["samples_per_s"] = float(samples)
    if job.sequence_length is not None:
        document["tokens_per_s"] = float(samples * job.sequence_length)
    if job.model_flops_per_sample is not None:
        peak = architecture.peak_flops * spec.devices
        flops = job.model_flops_per_sample * job.global_batch
        document["mfu"] = float(flops / (peak * seconds))
    if on.plan is not None:
        if power:
            energy = step_energy(
                workload, architecture, spec.process, on.plan, on.step_ps
            )
            document["energy_j"] = energy.total_fj / 1e15
            document["power_w"] = energy.average_mw / 1e3
        document["plan_text"] = on.plan.text
        document["plan"] = msgspec.to_builtins(on.plan)
    return document


def _neighbor(each: Neighbor, answers: Answers, spec: Spec) -> Document:
    """Return a neighbor, with what it changes of the best of all."""
    best = answers.best[-1].found
    change = None
    if best is not None and best.relative:
        # Equal steps are equal, whatever the logarithms are rounded to.
        same = [x.step_ps for x in each.found.on] == [x.step_ps for x in best.on]
        change = 0.0 if same else each.found.relative / best.relative - 1
    return {
        "parameter": each.parameter,
        "value": each.value,
        "text": f"{NAMES[each.parameter]} {value_text(each.parameter, each.value)}",
        "listed": each.listed,
        "change": change,
        "found": _found(each.found, spec),
    }


def _contribution(each: Contribution) -> Document:
    return {
        "model": each.model,
        "step_ps": [
            {**dict(zip(CHOICES, key, strict=True)), "step_ps": step_ps}
            for key, step_ps in sorted(each.step_ps.items())
        ],
        "factors": each.factors and dict(zip(CHOICES, each.factors, strict=True)),
    }


def _baseline(each: Baseline, spec: Spec) -> Document:
    return {
        "name": each.name,
        "num_evaluated": len(each.evaluated),
        "evaluated": list(each.evaluated),
        "best": None if each.best is None else _found(each.best, spec),
        "regret": each.regret,
        "most_regret": each.most_regret,
    }


class Codesign(Tabular):
    """Answers about a space, as ``nest.codesign`` returns them."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers

    def __repr__(self) -> str:
        """Return what is best in a line."""
        best, spec = self.answers.best[-1], self.answers.spec
        names = ", ".join(best.models)
        if best.found is None:
            none = "no point fits" if best.proven else "no point known in time"
            return f"<Codesign {names}: {none}>"
        point = best.found.point
        names += "" if best.proven else " (not proven)"
        return (
            f"<Codesign {names}: point {point.index} of "
            f"{len(spec.space.points)}, {best.found.relative:.4g} times "
            f"{spec.objective.base_name}, {describe(point.architecture)}>"
        )

    @cached_property
    def document(self) -> Document:
        """The ``nest-codesign-answers/1`` document."""
        return answers_document(self.answers)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw throughput against area.

        Raises ``NestError`` if Matplotlib is not installed.
        """
        from nest.util.plots import accelerators

        return accelerators(self.document, axes)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row per model and point of the answers."""
        return rows_of(self.document)


_FIGURES = ("step_ps", "tokens_per_s", "mfu", "power_w")
_OF_POINT = (
    *("area_mm2", "tdp_w", "power_density_w_per_mm2"),
    *("price_usd", "peak_tflops"),
)


def rows_of(document: Document) -> list[dict[str, Any]]:
    """Return every model on every point of the answers, a row each."""
    return [
        {
            "kind": kind,
            "about": about,
            "point": result["point"]["index"],
            "model": on["model"],
            **{name: on[name] for name in _FIGURES},
            "relative": result["relative"],
            **{name: result["point"][name] for name in _OF_POINT},
            **dict.fromkeys(NAMES, 0),
            **result["point"]["architecture"],
            "plan": on["plan_text"],
        }
        for kind, about, result in _every(document)
        for on in result["on"]
    ]


def to_csv(document: Document) -> str:
    """Return the same rows as CSV."""
    rows = rows_of(document)
    return fields_csv(rows[0], rows)


def _every(document: Document) -> Iterator[tuple[str, str, Document]]:
    """Yield each point of the answers: of what kind it is, and about what."""
    yield "base", document["spec"]["base_name"], document["base"]
    for best in document["best"]:
        if best["found"] is not None:
            yield "best", " ".join(best["models"]), best["found"]
    for result in document["frontier"]:
        yield "frontier", "", result
    for each in document["sensitivity"]:
        yield "sensitivity", each["text"], each["found"]
    for each in document["baselines"]:
        if each["best"] is not None:
            yield "baseline", each["name"], each["best"]
