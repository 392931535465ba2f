"""How much 20 runs of a source say about the rest of it, each held out.

For each source with enough step times: parameters are fitted to all other
sources, then to 20 of its runs drawn at random with that fit as the prior
(``nest calibrate``), and predict its other runs. Writes
``bench/results/own_runs.json`` and the table of docs/results/own-runs.md.

    python bench/own_runs.py ../shared/data/measured/*.csv
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import numpy as np

from bench.result_files import commit, fill, page_path, short_source, write_result
from bench.result_files import table as markdown_table
from nest.calibration.evidence import Array, Evidence, evidence_of
from nest.calibration.fit import Fit, Linear, prior, refit, solve
from nest.calibration.parameters import PARAMETERS
from nest.calibration.runs import prior_of
from nest.calibration.stored import stored_fit
from nest.errors import NestError
from nest.validation.predict import Skip, predict
from nest.validation.reading import read_rows
from nest.validation.report import source_of
from nest.validation.rows import Row, measured_step_time_s, ran_out_of_memory
from nest.validation.usable import impossible, why_unusable

#: Runs that a user has, and draws of them.
OWN = 20
DRAWS = 5

#: Least rows of a source; most that count in the fit to the others, and at
#: all: rows of one source say much the same.
LEAST = 30
MOST_FITTED = 60
MOST = 220

TIERS = ("A", "B", None)
PRECISIONS = ("bf16", "fp16", "fp8")


def usable(row: Row) -> bool:
    """Return whether a row has a step time that can be predicted."""
    if (
        row.time_tier not in TIERS
        or row.precision_class not in PRECISIONS
        or why_unusable(row)
        or impossible(row)
        or ran_out_of_memory(row)
        or measured_step_time_s(row) is None
    ):
        return False
    try:
        return not isinstance(predict(row), Skip)
    except NestError:
        return False


def drawn(numbers: list[int], limit: int, seed: int) -> list[int]:
    """Return so many of the numbers at random, in their order."""
    chosen = random.Random(seed).sample(numbers, min(limit, len(numbers)))
    return sorted(chosen)


def per_cent(errors: Array) -> float:
    """Return the median of the absolute relative errors."""
    return round(100 * float(np.median(np.abs(np.exp(errors) - 1))), 2)


def near(linear: Linear, chosen: list[int]) -> Linear:
    """Return some rows of a linearisation."""
    return Linear(linear.x, linear.errors[chosen], linear.slopes[chosen])


def held_out(source: str, evidence: Evidence, linear: Linear) -> list[dict[str, Any]]:
    """Return the errors of a source without and with some of its runs.

    Of all its runs, and where it has several devices, as no file of a user
    has, of those on each.
    """
    members: dict[str, list[int]] = {}
    for number, group in enumerate(evidence.groups):
        members.setdefault(group, []).append(number)
    of_source = members.pop(source)
    others = [
        number
        for chosen in members.values()
        for number in drawn(chosen, MOST_FITTED, 0)
    ]
    common = solve(prior(PARAMETERS), near(linear, others), evidence.of(others))
    by_device: dict[str, list[int]] = {}
    for number in of_source:
        name = evidence.rows[number].hardware or ""
        by_device.setdefault(name, []).append(number)
    parts = {", ".join(sorted(by_device)): of_source}
    if len(by_device) > 1:
        parts |= {
            name: numbers
            for name, numbers in sorted(by_device.items())
            if len(numbers) >= LEAST
        }
    results = []
    for name, numbers in parts.items():
        draws = [
            predicted(numbers, draw + 1, evidence, linear, common)
            for draw in range(DRAWS)
        ]
        results.append(
            {
                "source": source,
                "devices": name,
                "rows": len(numbers),
                "draws": draws,
                **{
                    key: round(float(np.median([d[key] for d in draws])), 2)
                    for key in ("before", "after")
                },
            }
        )
    return results


def predicted(
    numbers: list[int], seed: int, evidence: Evidence, linear: Linear, common: Fit
) -> dict[str, float]:
    """Return the errors of some rows without and with others of them."""
    chosen = drawn(numbers, OWN, seed)
    rest = [number for number in numbers if number not in chosen]
    mine = evidence.of(chosen)
    families = {evidence.families[number] for number in numbers}
    before = prior_of(families, common)
    names = [parameter.name for parameter in common.parameters]
    columns = [names.index(parameter.name) for parameter in before.parameters]
    start = Linear(
        before.x,
        mine.errors(before.x, before.parameters),
        linear.slopes[np.ix_(chosen, columns)],
    )
    after = refit(before, start, mine)
    return {
        name: per_cent(evidence.errors(fit.x, before.parameters, rest))
        for name, fit in (("before", before), ("after", after))
    }


def main() -> None:
    """Print a line per source, and write all draws."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("files", nargs="+", type=Path)
    files = arguments.parse_args().files
    by_source: dict[str, list[Row]] = {}
    for row in (row for path in files for row in read_rows(path)):
        if usable(row):
            by_source.setdefault(source_of(row), []).append(row)
    rows = [
        source_rows[number]
        for source_rows in by_source.values()
        for number in drawn(list(range(len(source_rows))), MOST, 0)
    ]
    evidence = evidence_of(rows, [source_of(row) for row in rows])
    common = stored_fit()
    errors = evidence.errors(common.x, common.parameters)
    slopes = evidence.slopes(common.x, errors, common.parameters)
    linear = Linear(common.x, errors, slopes)
    results = []
    for source, source_rows in sorted(by_source.items()):
        if len(source_rows) < LEAST:
            continue
        for result in held_out(source, evidence, linear):
            results.append(result)
            print(
                f"{result['rows']:5d} rows  {result['before']:5.1f} % -> "
                f"{result['after']:5.1f} %  {source}, {result['devices']}",
                flush=True,
            )
    document = {"commit": commit(), "own": OWN, "draws": DRAWS, "sources": results}
    write_result("own_runs", document)
    fill(page_path("own-runs"), "own runs", table(results))


def table(results: list[dict[str, Any]]) -> str:
    """Return the table of docs/results/own-runs.md: a line for each source."""
    lines: dict[str, dict[str, Any]] = {}
    for result in results:
        # The runs of all its devices come first.
        lines.setdefault(result["source"], result)
    return markdown_table(
        f"source | runs | median error without own runs, % | with {OWN} own runs, %",
        (
            (
                short_source(result["source"]),
                result["rows"],
                *(f"{result[key]:.1f}" for key in ("before", "after")),
            )
            for result in lines.values()
        ),
        "lrrr",
    )


if __name__ == "__main__":
    main()
