"""Write the tables of prediction errors on two pages of docs/results.

Predicts the bundled runs and those of the shared files, keeps the
figures in ``bench/results/validation.json``, and writes them, beside those of
sources that were held out (``bench/results/calibration.json``), between the
marks of ``accuracy.md``; ``bench/results/ranking.md`` lists groups of many devices.
Also plans the built-in problems, and writes the MFU of their best plans and of
published runs into ``published-plans.md``.

    python bench/validation.py [FILE …]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import nest
from bench.result_files import (
    fill,
    page_path,
    result_path,
    short_source,
    table,
    write_result,
)
from nest.hardware import device_spec, machine
from nest.models.architectures import blocks
from nest.models.builtin import RECIPES
from nest.models.zoo import architecture
from nest.validation.flops import counted_flops
from nest.validation.predict import predict
from nest.validation.reading import published_rows, read_rows
from nest.validation.report import (
    SAME_PROBLEM,
    Assessment,
    assess,
    device_family,
    error_figures,
    ranking_groups,
    source_of,
    validation_document,
)

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT.parent / "shared" / "data" / "measured"
FILES = (MEASURED / "measurements.csv", MEASURED / "measurements-2026.csv")
PACKAGED = "the bundled runs"
TIER_A = "tier A, bf16/fp16"


def percent(value: float | None, signed: bool = False) -> str:
    """Return a fraction in per cent with one digit."""
    if value is None:
        return ""
    return f"{100 * value:{'+' if signed else ''}.1f}"


def errors(figures: dict[str, Any]) -> list[str]:
    """Return rows, median absolute error and bias as cells."""
    return [
        str(figures.get("used", figures.get("rows"))),
        percent(figures["median_abs_error"]),
        percent(figures["bias"], signed=True),
    ]


def intervals(figures: dict[str, Any]) -> str:
    """Return a sentence about what another draw of sources would give."""
    interval = figures["interval"]

    def span(name: str) -> str:
        low, high = interval[f"{name}_abs_error"]
        return f"{percent(low)} to {percent(high)} %"

    return (
        f"Bootstrap draws of whole sources give 95 % intervals: the held-out "
        f"median of all rows is {span('median')}, the mean {span('mean')}."
    )


def sources_text(figures: Mapping[str, dict[str, Any]]) -> str:
    """Return a sentence on the sources with the least and largest error."""
    medians = {
        short_source(name): row["median_abs_error"]
        for name, row in figures.items()
        if row["rows"] >= SHOWN
    }
    ends = [pick(medians, key=medians.__getitem__) for pick in (min, max)]
    low, high = (f"{percent(medians[end])} % ({end})" for end in ends)
    return (
        f"The held-out median of a source with {SHOWN} rows or more is {low} to {high}."
    )


HEADS = "rows | median error, % | bias, %"

#: Words of the source whose rows ``host_share`` of their software was set to.
IN_SAMPLE = "CI golden"

#: Published runs are similar to a plan with so many times the FLOPs per token
#: at most, more or less.
SIMILAR = 2.0

_HALF = ("bf16", "fp16")


@dataclass(frozen=True)
class Ran:
    """What a published run reached, and what is predicted.

    Attributes
    ----------
    source, model
        Of the run.
    family, num_devices, has_experts
        What it ran on, and whether it has experts.
    flops_per_token
        Of forward and backward passes, as MFU counts them.
    mfu, predicted_mfu
        Fractions of peak FLOP/s.
    """

    source: str
    model: str
    family: str
    num_devices: int
    has_experts: bool
    flops_per_token: float
    mfu: float
    predicted_mfu: float


def reached(outcomes: Iterable[Assessment]) -> list[Ran]:
    """Return the runs in 16 bits whose step time is compared.

    Of tiers A and B, whose configuration is known. FLOPs are counted as of
    plans: attention in full.
    """
    runs = []
    for outcome in outcomes:
        row, predicted_s = outcome.row, outcome.predicted_s
        flops = counted_flops(row, causal=False)
        if (
            outcome.time_error is None
            or row.time_tier not in ("A", "B")
            or row.precision_class not in _HALF
            or not flops
        ):
            continue
        spec = device_spec(row.hardware or "")
        peak = spec.peak_flops[row.precision_class] * (row.num_devices or 1)
        assert predicted_s
        assert outcome.measured_s
        tokens = (row.global_batch or 1) * (row.seq_len or 1)
        runs.append(
            Ran(
                source=source_of(row),
                model=row.model or "",
                family=spec.family,
                num_devices=row.num_devices or 1,
                has_experts=bool(row.experts),
                flops_per_token=flops / tokens,
                mfu=flops / peak / outcome.measured_s,
                predicted_mfu=flops / peak / predicted_s,
            )
        )
    return runs


def best_plans() -> list[dict[str, Any]]:
    """Return what the best plans of the built-in problems reach."""
    plans = []
    for recipe in RECIPES:
        problem = nest.load_problem(recipe.name)
        result = nest.solve(problem, "dp")
        if result.plan is None:
            continue
        job, mfu = problem.job, nest.score(problem, result.plan).mfu
        shapes = blocks(architecture(recipe.model), once=True)
        experts = any(block.mlp.experts for block in shapes)
        if mfu is None or not job.model_flops_per_sample:
            continue
        plans.append(
            {
                "problem": recipe.name,
                "status": str(result.status),
                "family": machine(recipe.machine).calibration_family,
                "has_experts": experts,
                "flops_per_token": job.model_flops_per_sample
                / (job.sequence_length or 1),
                "mfu": round(mfu, 4),
            }
        )
    return plans


def beside(plan: dict[str, Any], runs: Sequence[Ran]) -> dict[str, Any]:
    """Return a plan with the similar published run that reached most.

    Similar is a run on devices of the family, in 16 bits, with experts or
    without as the plan has, and FLOPs per token within :data:`SIMILAR`.
    """
    similar = [
        ran
        for ran in runs
        if ran.family == plan["family"]
        and ran.has_experts == plan["has_experts"]
        and 1 / SIMILAR <= ran.flops_per_token / plan["flops_per_token"] <= SIMILAR
    ]
    if not similar:
        return plan | {"similar": 0}
    best = max(similar, key=lambda ran: ran.mfu)
    return plan | {
        "similar": len(similar),
        "best": asdict(best),
        "bias": round(
            statistics.median(r.predicted_mfu / r.mfu - 1 for r in similar), 4
        ),
    }


def golden(outcomes: Sequence[Assessment]) -> dict[str, dict[str, Any]]:
    """Return the errors of functional tests, by device family."""
    errors: dict[str, list[float]] = {}
    for outcome in outcomes:
        error = outcome.time_error
        if error is not None and IN_SAMPLE in source_of(outcome.row):
            name = device_family(outcome.row)
            errors.setdefault(name, []).append(error)
    return {name: error_figures(errors[name]) for name in sorted(errors)}


def rooms(document: Mapping[str, Any]) -> str:
    """Return a sentence on runs that are predicted to fit, and not to fit."""
    fits, oom = (document["memory"][key] for key in ("fits", "oom"))
    headroom = percent(fits["share_with_headroom"])
    refused, refused_with_headroom = (
        oom[f"predicted_not_to_fit{end}"] for end in ("", "_with_headroom")
    )
    return (
        f"{fits['ran']} runs fit in memory. nest predicts that "
        f"{percent(fits['share'])} % of them fit, and {headroom} % if it "
        f"keeps its mean memory error free. {oom['rows']} runs ran out of "
        f"memory. nest predicts that {refused} of them do not fit, and "
        f"{refused_with_headroom} with that memory free."
    )


def ranked(name: str, figures: dict[str, Any]) -> list[str]:
    """Return the cells of a line about ranking."""
    spearman = figures["median_spearman"]
    return [
        name,
        str(figures["groups"]),
        percent(figures["share_best_within_5_percent"]),
        percent(figures["mean_regret"]),
        percent(figures["median_bias_of_predicted_best"], True),
        "" if spearman is None else f"{spearman:.3f}",
    ]


RANKED = (
    "groups | best within 5 %, % | mean regret, % | "
    "bias of the predicted best, % | median Spearman"
)

#: Rows that a class or a source needs to be on the page, and a device.
SHOWN = 20
FEW = 3

#: Classes that check the fit and are not on the page.
CHECKS = {
    "configuration of another source",
    "configuration of no other",
    *(path.stem for path in FILES),
}


def accuracy(
    documents: Mapping[str, dict[str, Any]],
    fitted: dict[str, Any],
    held_out: dict[str, Any],
) -> str:
    """Return the tables of ``accuracy.md``; held-out errors come first."""
    together = documents[TOGETHER]
    chosen = together["selected"][TIER_A]
    own = documents[PACKAGED]["selected"][TIER_A]
    rankings = {"tier A in 16 bit": chosen["ranking"], "all rows": together["ranking"]}
    parts = [
        "## How far off are step times?",
        "Rows of tiers A and B. Each source is predicted by a fit to all "
        "other sources, except in the last column, which has one fit to all "
        "rows. Bias is the median of the signed errors.",
        table(
            f"rows of | {HEADS} | fitted: median error, %",
            [
                [
                    name,
                    *errors(held_out["classes"][name]),
                    percent(figures["median_abs_error"]),
                ]
                for name, figures in fitted["classes"].items()
                if name not in CHECKS
            ],
        ),
        intervals(held_out["classes"]["all"]),
        sources_text(held_out["sources"]),
        f"Other classes and sources are in `bench/results/calibration.json`. "
        f"`nest validate` alone predicts {PACKAGED}, which were fitted: in "
        f"tier A and 16 bit {own['used']} rows with a median error of "
        f"{percent(own['median_abs_error'])} %.",
        "## How do errors depend on device and parallelism?",
        "All usable rows, also of tier C, with the stored parameters, which "
        "were fitted to tiers A and B. Bias is the mean of the signed errors.",
        table(
            f"rows of | {HEADS}",
            [
                *(
                    [name, *errors(figures)]
                    for key in ("by_family", "by_parallelism")
                    for name, figures in together[key].items()
                    if figures["used"] >= (FEW, SHOWN)[key != "by_family"]
                ),
                *(
                    ["tier C", *errors(figures)]
                    for name, figures in together["by_tier"].items()
                    if name == "C"
                ),
            ],
        ),
        f"Devices with fewer than {FEW} rows are left out.",
        "## Does nest predict which configuration is the fastest?",
        "Groups of at least three configurations of one model, cluster and "
        "batch. *Regret* is the extra time of the configuration predicted "
        "to be fastest over the fastest measured one.",
        table(
            f"groups of | {RANKED}",
            [ranked(name, figures) for name, figures in rankings.items()],
        ),
        "## How accurate is predicted memory?",
        table(
            f"memory counted by | {HEADS}",
            [
                [name, *errors(figures)]
                for name, figures in together["memory"]["by_mem_class"].items()
            ],
        ),
        rooms(together),
    ]
    return "\n\n".join(parts)


def mfu_table(plans: Sequence[dict[str, Any]]) -> str:
    """Return the table of best plans beside published runs."""
    lines = []
    for plan in plans:
        cells = [plan["problem"], percent(plan["mfu"])]
        best = plan.get("best")
        if best is None:
            lines.append([*cells, "", "", "none"])
            continue
        lines.append(
            [
                *cells,
                percent(best["mfu"]),
                percent(best["predicted_mfu"]),
                f"{best['model']} on {best['num_devices']}",
            ]
        )
    return table(
        "problem | predicted MFU of the best plan, % | "
        "best published MFU, % | predicted for that run, % | that run",
        lines,
    )


#: Devices from which groups are listed one by one.
LARGE = 128


def large_groups(outcomes: Iterable[Assessment]) -> str:
    """Return a page with the groups of :data:`LARGE` devices or more, one a line."""
    same = attrgetter(*SAME_PROBLEM)
    problems: dict[Any, list[Assessment]] = {}
    for outcome in outcomes:
        if outcome.time_error is not None and (outcome.row.num_devices or 0) >= LARGE:
            problems.setdefault(same(outcome.row), []).append(outcome)
    lines = []
    for members in problems.values():
        for group in ranking_groups(members):
            predicted = min(members, key=lambda x: x.predicted_s or 0.0).row
            measured = min(members, key=lambda x: x.measured_s or 0.0).row
            correlation = group.correlation
            lines.append(
                (
                    short_source(group.source),
                    group.title,
                    len(group.measured_s),
                    "–" if correlation is None else f"{correlation:.2f}",
                    percent(group.regret),
                    f"{predicted.dp} / {measured.dp}",
                )
            )
    more = sum(int(a) > int(b) for a, b in (x[-1].split(" / ") for x in lines))
    fewer = sum(int(a) < int(b) for a, b in (x[-1].split(" / ") for x in lines))
    return (
        f"# {len(lines)} groups of {LARGE} devices or more\n\n"
        f"`python bench/validation.py` writes this list: all public groups of at least "
        f"three configurations of one model, cluster and batch that the shared rows "
        f"have. *Extra* is the measured time of the configuration predicted to be "
        f"fastest over the fastest measured one, in %. The predicted best has more "
        f"data parallelism than the measured best in {more} groups, less in "
        f"{fewer}.\n\n"
        + table(
            "source | group | configurations | Spearman | extra, % | dp: predicted / "
            "measured best",
            sorted(lines),
            "llrrrr",
        )
        + "\n"
    )


TOGETHER = "all shared files"


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or FILES
    outcomes: dict[str, list[Assessment]] = {TOGETHER: []}
    for path in paths:
        judged = [assess(row, predict) for row in read_rows(path)]
        outcomes[path.stem] = judged
        outcomes[TOGETHER] += judged
    outcomes[PACKAGED] = [
        assess(row, predict) for row in published_rows() if not row.collected
    ]
    documents = {name: validation_document(judged) for name, judged in outcomes.items()}
    tests = golden(outcomes[TOGETHER])
    runs = reached(outcomes[TOGETHER])
    plans = [beside(plan, runs) for plan in best_plans()]
    write_result(
        "validation",
        {"files": documents, "functional_tests": tests, "best_plans": plans},
    )
    page = large_groups(outcomes[TOGETHER])
    result_path("ranking").with_suffix(".md").write_text(page, encoding="utf-8")
    calibration = json.loads(result_path("calibration").read_text())
    fitted, held_out = calibration["fitted"], calibration["held_out"]
    text = accuracy(documents, fitted, held_out)
    fill(page_path("accuracy"), "validation", text)
    fill(page_path("published-plans"), "best plans", mfu_table(plans))


if __name__ == "__main__":
    main()
