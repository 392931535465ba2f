"""Write the tables of prediction errors on two pages of docs/results.

Predicts the bundled runs and those of the shared files, keeps the
figures in ``bench/results/validation.json``, and writes them, beside those of
sources that were held out (``bench/results/calibration.json``), between the
marks of ``accuracy.md``. Also plans the built-in problems, and writes the MFU
of their best plans and of published runs into ``published-plans.md``.

    python bench/validation.py [FILE …]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
    Assessment,
    assess,
    device_family,
    error_figures,
    source_of,
    validation_document,
)

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT.parent / "shared" / "data" / "measured"
FILES = (
    MEASURED / "measurements.csv",
    MEASURED / "measurements-2026.csv",
)
PACKAGED = "the bundled runs"
TIER_A = "tier A, bf16/fp16"


def percent(value: float | None, signed: bool = False) -> str:
    """Return a fraction in per cent with one digit."""
    if value is None:
        return ""
    return f"{100 * value:{'+' if signed else ''}.1f}"


def errors(figures: dict[str, Any]) -> list[str]:
    """Return rows, median and mean absolute error, bias as cells."""
    return [
        str(figures.get("used", figures.get("rows"))),
        percent(figures["median_abs_error"]),
        percent(figures["mean_abs_error"]),
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


HEADS = "rows | median error, % | mean error, % | bias, %"

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
        and 1 / SIMILAR
        <= ran.flops_per_token / plan["flops_per_token"]
        <= SIMILAR
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


def rooms(documents: Mapping[str, dict[str, Any]]) -> str:
    """Return a table of rows used and who is predicted to fit, by file."""
    lines = []
    for name, document in documents.items():
        fits, oom = (document["memory"][key] for key in ("fits", "oom"))
        lines.append(
            [
                name,
                str(document["rows"]),
                str(document["used"]),
                str(sum(document["used_for_memory"].values())),
                str(sum(document["skipped"].values())),
                str(fits["ran"]),
                f"{fits['predicted_to_fit']} ({percent(fits['share'])} %)",
                f"{fits['predicted_to_fit_with_headroom']} "
                f"({percent(fits['share_with_headroom'])} %)",
                str(oom["rows"]),
                str(oom["predicted_not_to_fit"]),
                str(oom["predicted_not_to_fit_with_headroom"]),
            ]
        )
    return table(
        "file | rows | used | for memory only | skipped | ran | "
        "predicted to fit | with headroom | out of memory | "
        "predicted not to fit | with headroom",
        lines,
    )


def ranked(name: str, figures: dict[str, Any]) -> list[str]:
    """Return the cells of a line about ranking."""
    spearman = figures["median_spearman"]
    return [
        name,
        str(figures["groups"]),
        percent(figures["share_best_within_5_percent"]),
        percent(figures["mean_regret"]),
        percent(figures["median_regret"]),
        percent(figures["median_bias_of_predicted_best"], True),
        str(figures["spearman_groups"]),
        "" if spearman is None else f"{spearman:.3f}",
    ]


RANKED = (
    "groups | best within 5 %, % | mean regret, % | median regret, % | "
    "bias of the predicted best, % | ranked | median Spearman"
)

#: Rows that a source or a device needs for a line of its own.
SHOWN = 20

#: Groups that a source needs for a line of its own in the ranking.
SHOWN_GROUPS = 5


def accuracy(
    documents: Mapping[str, dict[str, Any]],
    tests: Mapping[str, dict[str, Any]],
    fitted: dict[str, Any],
    held_out: dict[str, Any],
) -> str:
    """Return the tables of ``accuracy.md``; held-out errors come first."""
    together = documents[TOGETHER]
    chosen = together["selected"][TIER_A]
    own = documents[PACKAGED]["selected"][TIER_A]
    rankings = {
        **{
            f"tier A in 16 bit: {short_source(name)}": figures
            for name, figures in chosen["ranking"]["by_source"].items()
            if figures["groups"] >= SHOWN_GROUPS
        },
        "tier A in 16 bit": chosen["ranking"],
        "all rows": together["ranking"],
    }
    parts = [
        "## How far off are step times?",
        "Rows of tiers A and B of both shared files. *Held out*: each source "
        "is predicted by a fit to all other sources. *Fitted*: one fit to "
        "all rows. Bias is the median of the signed errors.",
        table(
            "rows of | rows | held out: median error, % | mean error, % | "
            "bias, % | fitted: median error, % | mean error, % | bias, %",
            [
                [
                    short_source(name),
                    *errors(held_out[kind][name]),
                    *errors(figures)[1:],
                ]
                for kind, least in (("classes", 0), ("sources", SHOWN))
                for name, figures in fitted[kind].items()
                if figures["rows"] >= least
            ],
        ),
        intervals(held_out["classes"]["all"]),
        f"Sources with fewer than {SHOWN} rows are in "
        f"`bench/results/calibration.json`. `nest validate` alone predicts "
        f"{PACKAGED}. In tier A and 16 bit these are {own['used']} rows with "
        f"a median error of {percent(own['median_abs_error'])} % and a mean "
        f"of {percent(own['mean_abs_error'])} %; they were fitted.",
        "## On which devices and configurations?",
        "All usable rows with the stored parameters, which were fitted to "
        "tiers A and B. Bias is the mean of the signed errors.",
        table(
            f"rows of | {HEADS}",
            [
                *(
                    [
                        name if key == "by_family" else f"{key[3:]} {name}",
                        *errors(figures),
                    ]
                    for key in (
                        *("by_family", "by_tier"),
                        *("by_precision", "by_parallelism"),
                    )
                    for name, figures in together[key].items()
                    if figures["used"] >= SHOWN or key == "by_family"
                ),
                *(
                    [f"functional tests on {name} \\*", *errors(figures)]
                    for name, figures in tests.items()
                ),
            ],
        ),
        "\\* Megatron-Core's tests of tiny models, in tier C. `host_share` of "
        "that software was set to these rows, so they do not test it.",
        "## Is the fastest configuration found?",
        "Groups of at least three configurations of one model, cluster and "
        "batch. *Regret* is the extra time of the configuration predicted "
        "to be fastest over the fastest measured one.",
        table(
            f"groups of | {RANKED}",
            [ranked(name, figures) for name, figures in rankings.items()],
        ),
        "## Is memory predicted?",
        table(
            f"memory counted by | {HEADS}",
            [
                [name, *errors(figures)]
                for name, figures in together["memory"]["by_mem_class"].items()
            ],
        ),
        "Runs that ran and that ran out of memory; *headroom* is the mean "
        "memory error of the model:",
        rooms(documents),
    ]
    return "\n\n".join(parts)


def mfu_table(plans: Sequence[dict[str, Any]]) -> str:
    """Return the table of best plans beside published runs."""
    lines = []
    for plan in plans:
        cells = [plan["problem"], plan["family"], percent(plan["mfu"])]
        best = plan.get("best")
        if best is None:
            lines.append([*cells, "0", "", "", "", ""])
            continue
        lines.append(
            [
                *cells,
                str(plan["similar"]),
                percent(best["mfu"]),
                percent(best["predicted_mfu"]),
                percent(plan["bias"], signed=True),
                f"{best['model']} on {best['num_devices']}, "
                f"{short_source(best['source'])}",
            ]
        )
    return table(
        "problem | device | predicted MFU of the best plan, % | "
        "similar runs | best published MFU, % | predicted for that run, % | "
        "bias, % | that run",
        lines,
    )


TOGETHER = "all shared files"


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]] or FILES
    outcomes: dict[str, list[Assessment]] = {TOGETHER: []}
    for path in paths:
        judged = [assess(row, predict) for row in read_rows(path)]
        outcomes[path.stem] = judged
        outcomes[TOGETHER] += judged
    outcomes[PACKAGED] = [assess(row, predict) for row in published_rows()]
    documents = {
        name: validation_document(judged) for name, judged in outcomes.items()
    }
    tests = golden(outcomes[TOGETHER])
    runs = reached(outcomes[TOGETHER])
    plans = [beside(plan, runs) for plan in best_plans()]
    write_result(
        "validation",
        {"files": documents, "functional_tests": tests, "best_plans": plans},
    )
    calibration = json.loads(result_path("calibration").read_text())
    fitted, held_out = calibration["fitted"], calibration["held_out"]
    text = accuracy(documents, tests, fitted, held_out)
    fill(page_path("accuracy"), "validation", text)
    fill(page_path("published-plans"), "best plans", mfu_table(plans))


if __name__ == "__main__":
    main()
