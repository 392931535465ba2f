"""Test rates of measured kernels against rates fitted to step times.

    python bench/refit.py [old|new]

The protocol is on docs/results/kernels.md. The old fit is that of
``bench/calibrate.py``. The new one freezes the rates of
``bench/results/kernels.json``, and fits the other parameters, sustained clocks and
one factor of attention to the step times. Each software, and each generation of
devices, is predicted by both fits to all other rows. Figures are written to
``bench/results/refit.json``, the table to docs/results/kernels.md. The stored
calibration stays as it is.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.calibrate import FILES, figures, thinned, usable
from bench.result_files import fill, page_path, result_path, table, write_result
from nest.calibration.evidence import Array, Evidence, evidence_of
from nest.calibration.fit import Fit, Linear, fit, prior, refit
from nest.calibration.parameters import PARAMETERS, Parameter
from nest.calibration.stored import stored_fit
from nest.validation.reading import read_rows
from nest.validation.report import source_of
from nest.validation.rows import Row
from nest.validation.software import software_of

#: Generations of devices whose kernels were measured.
GENERATIONS = ("A100", "H100", "Blackwell")

#: What a kernel reaches in a long step of what it reaches alone, and deviations of
#: its logarithm: common to all generations, and of each. Set by hand.
CLOCK, COMMON, EACH = 0.85, 0.08, 0.06

#: What both passes of attention reach of the forward pass. FlashAttention 3 reaches
#: 550 to 650 TFLOP/s forward and 500 to 550 backward (Shah et al. 2024, arXiv
#: 2407.08608, figures 5 and 6).
PASSES = Parameter(
    name="every.attention_passes", value=0.85, deviation=0.15, spread=0.08
)

#: Software with fewer rows has no line of its own on the page.
MIN_ROWS = 20


@dataclass(frozen=True)
class FrozenRates(Evidence):
    """Rows whose errors depend on clocks, and on what no kernel tells.

    ``kernels`` are the frozen rates, by the names of parameters.
    """

    kernels: Mapping[str, float] = field(default_factory=dict)

    def errors(
        self,
        x: Array,
        parameters: tuple[Parameter, ...],
        chosen: Sequence[int] | None = None,
    ) -> Array:
        """Return errors as :class:`Evidence` does."""
        names = [parameter.name for parameter in parameters]
        values = dict(zip(names, np.exp(x).tolist(), strict=True))
        stated = full_values(self.kernels, values)
        whole = np.log([stated[parameter.name] for parameter in PARAMETERS])
        return super().errors(whole, PARAMETERS, chosen)

    def of(self, chosen: Sequence[int]) -> FrozenRates:
        """Return some of the rows."""
        return frozen_rates(super().of(chosen), self.kernels)


def frozen_rates(evidence: Evidence, kernels: Mapping[str, float]) -> FrozenRates:
    """Return rows with frozen rates."""
    return FrozenRates(
        *(evidence.rows, evidence.families, evidence.groups, evidence.noise), kernels
    )


def full_values(
    kernels: Mapping[str, float], values: Mapping[str, float]
) -> dict[str, float]:
    """Return all parameters of a prediction, from frozen and fitted ones."""
    stated = dict(values)
    for name, value in kernels.items():
        family, _, rate = name.partition(".")
        if rate in ("matmul_fraction", "attention_fraction"):
            value *= values[f"{family}.clock"]
        if rate == "attention_fraction":
            value *= values[PASSES.name]
        stated[name] = value
    return stated


def new_prior(kernels: Mapping[str, float]) -> Fit:
    """Return what is known of the parameters that kernels leave open."""
    clocks = tuple(
        Parameter(
            name=f"{generation}.clock",
            value=CLOCK,
            deviation=float(np.hypot(COMMON, EACH)),
            spread=0.04,
            most=1.0,
        )
        for generation in GENERATIONS
    )
    rest = tuple(x for x in PARAMETERS if x.name not in kernels)
    known = prior((*clocks, PASSES, *rest))
    count = len(clocks)
    known.covariance[:count, :count] += COMMON**2 * (1 - np.eye(count))
    return known


def software_name(row: Row) -> str:
    """Return the name of a row's software, without what tells its entries apart."""
    return re.split(r",| of | to | from | in ", software_of(row).name)[0]


@dataclass(frozen=True)
class Model:
    """A fit to all rows, and what it starts from.

    ``shown`` are the rows that it was fitted to, ``every`` all of them.
    """

    known: Fit
    best: Fit
    linear: Linear
    shown: Evidence
    every: Evidence

    def without(self, others: list[int], members: list[int]) -> Array:
        """Return the errors of some rows, fitted to some others of ``shown``."""
        rest = self.shown.of(others)
        linear = Linear(
            self.linear.x, self.linear.errors[others], self.linear.slopes[others]
        )
        solution = refit(self.known, linear, rest)
        return self.every.errors(solution.x, self.known.parameters, members)


def held_out(model: Model, label: Callable[[int, Evidence], str]) -> Array:
    """Return the errors of all rows, each without those of its label."""
    errors = np.full(len(model.every.rows), np.nan)
    members: dict[str, list[int]] = defaultdict(list)
    for i in range(len(model.every.rows)):
        members[label(i, model.every)].append(i)
    shown = [label(i, model.shown) for i in range(len(model.shown.rows))]
    for name, numbers in members.items():
        others = [i for i, other in enumerate(shown) if other != name]
        errors[numbers] = model.without(others, numbers)
    return errors


def of_software(i: int, evidence: Evidence) -> str:
    """Return the software of a row, by its number."""
    return software_name(evidence.rows[i])


def of_generation(i: int, evidence: Evidence) -> str:
    """Return the device family of a row, by its number."""
    return evidence.families[i]


def classes(errors: Array, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the figures of all rows, and of the rows of each name."""
    result = {"all": figures(errors)}
    for name in sorted(set(names)):
        result[name] = figures(errors[[i for i, x in enumerate(names) if x == name]])
    return result


def fitted_model(known: Fit, start: Array, shown: Evidence, every: Evidence) -> Model:
    """Return a fit to all rows."""
    best, linear = fit(known, shown, start)
    return Model(known, best, linear, shown, every)


def figures_of(model: Model) -> dict[str, Any]:
    """Return the values of a fit, and its figures fitted and held out."""
    rows = range(len(model.every.rows))
    software = [of_software(i, model.every) for i in rows]
    generations = [of_generation(i, model.every) for i in rows]
    fitted = model.every.errors(model.best.x, model.known.parameters)
    some = [i for i, x in enumerate(generations) if x in GENERATIONS]
    by_generation = held_out(model, of_generation)[some]
    return {
        "values": {k: float(f"{v:.4g}") for k, v in model.best.values.items()},
        "fitted": classes(fitted, software),
        "software": classes(held_out(model, of_software), software),
        "generations": classes(by_generation, [generations[i] for i in some]),
    }


def tables(document: dict[str, Any]) -> str:
    """Return the table of the page, and what the stop rule says."""
    old, new = document["old"], document["new"]

    def cells(kind: str, name: str) -> list[str]:
        pairs = [
            f"{100 * old[kind][name][x]:.1f} / {100 * new[kind][name][x]:.1f}"
            for x in ("median_abs_error", "mean_abs_error")
        ]
        return [str(old[kind][name]["rows"]), *pairs]

    lines = [["none: fitted to all", *cells("fitted", "all")]]
    lines.append(["each software", *cells("software", "all")])
    lines += [
        [name, *cells("software", name)]
        for name, row in sorted(
            old["software"].items(), key=lambda item: -item[1]["rows"]
        )
        if name != "all" and row["rows"] >= MIN_ROWS
    ]
    lines.append(["each generation", *cells("generations", "all")])
    lines += [[name, *cells("generations", name)] for name in GENERATIONS]
    heads = "held out | rows | median error, %: old / new | mean, %"
    return table(heads, lines)


def main() -> None:
    """Fit one or both, hold out, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fits", nargs="*", choices=("old", "new"))
    fits = parser.parse_args().fits or ("old", "new")
    kernels = json.loads(result_path("kernels").read_text())["fit"]
    rows = usable([row for path in FILES for row in read_rows(path)])
    every = evidence_of(rows, [source_of(row) for row in rows])
    shown = thinned(every)
    path = result_path("refit")
    document = json.loads(path.read_text()) if path.exists() else {}
    document |= {"command": "python bench/refit.py", "rows": len(rows)}
    if "old" in fits:
        values = prior(PARAMETERS).values | stored_fit().values
        start = np.log([values[parameter.name] for parameter in PARAMETERS])
        model = fitted_model(prior(PARAMETERS), start, shown, every)
        document["old"] = figures_of(model)
    if "new" in fits:
        known = new_prior(kernels)
        frozen = frozen_rates(shown, kernels), frozen_rates(every, kernels)
        document["new"] = figures_of(fitted_model(known, known.x, *frozen))
    if {"old", "new"} <= document.keys():
        document["new_is_better"] = all(
            document["new"]["software"]["all"][x]
            < document["old"]["software"]["all"][x]
            for x in ("median_abs_error", "mean_abs_error")
        )
        text = tables(document)
        print(text)
        if "<!-- refit: begin -->" in page_path("kernels").read_text():
            fill(page_path("kernels"), "refit", text)
    write_result("refit", document)


if __name__ == "__main__":
    main()
