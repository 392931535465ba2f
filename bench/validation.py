"""Fill in the tables of errors in README.md and docs/validation.md.

Runs ``nest validate`` on the runs that come along, or on FILE, keeps its
figures in ``bench/results/validation.json``, and writes them, beside those of
sources that were held out (``bench/results/calibration.json``), between the
marks.

    python bench/validation.py [FILE]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from result_files import fill, result_path, write_result

ROOT = Path(__file__).resolve().parent.parent
TIER_A = "tier A, bf16/fp16"
LARGE = "tier A, bf16/fp16, source vTrain, >= 64 devices"


def percent(value: float | None, signed: bool = False) -> str:
    """Return a fraction in per cent with one digit."""
    if value is None:
        return ""
    return f"{100 * value:{'+' if signed else ''}.1f}"


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table whose first column is text."""
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(
        f"| {' | '.join(line)} |" for line in [heads, rule, *lines]
    )


def errors(figures: dict[str, Any]) -> list[str]:
    """Return rows, median and mean absolute error, bias as cells."""
    return [
        str(figures.get("used", figures.get("rows"))),
        percent(figures["median_abs_error"]),
        percent(figures["mean_abs_error"]),
        percent(figures["bias"], signed=True),
    ]


def intervals(figures: dict[str, Any]) -> list[str]:
    """Return a sentence about what another draw of sources would give."""
    found = figures["interval"]

    def span(name: str) -> str:
        low, high = found[f"{name}_abs_error"]
        return f"{percent(low)} to {percent(high)} %"

    return [
        f"Held out, the median is {span('median')} and the mean "
        f"{span('mean')}",
        "with 95 % over draws of sources (bootstrap by source).",
    ]


HEADS = ["rows", "median, %", "mean, %", "bias, %"]


def readme(document: dict[str, Any], held_out: dict[str, Any]) -> str:
    """Return the short table."""
    chosen = document["selected"][TIER_A]
    memory = document["memory"]["by_mem_class"]
    lines = [["step time, tier A in 16 bit", *errors(chosen)]]
    lines += [
        [f"… on {name}", *errors(figures)]
        for name, figures in chosen["by_family"].items()
    ]
    lines.append(
        ["… vTrain on 64 GPUs or more", *errors(document["selected"][LARGE])]
    )
    lines += [
        [f"every source held out: {name}", *errors(figures)]
        for name, figures in held_out["classes"].items()
    ]
    for name in ("nvidia-smi", "torch_allocated_last_rank"):
        lines.append([f"memory, {name}", *errors(memory[name])])
    ranking, fits = chosen["ranking"], document["memory"]["fits"]
    oom = document["memory"]["oom"]
    return "\n".join(
        [
            table(["", *HEADS], lines),
            "",
            *intervals(held_out["classes"]["all"]),
            "",
            f"Of {ranking['groups']} groups of configurations of one model, "
            "cluster and batch, the one predicted",
            "to be fastest is within 5 % of the fastest in "
            f"{percent(ranking['share_best_within_5_percent'])} %; taking it "
            f"costs {percent(ranking['mean_regret'])} % in the",
            f"mean, {percent(ranking['median_regret'])} % in the median, and "
            "its own step time is off by "
            f"{percent(ranking['median_bias_of_predicted_best'], True)} % in "
            "the median; the median",
            f"rank correlation is {ranking['median_spearman']:.2f}. Of "
            f"{fits['ran']} runs that ran, {percent(fits['share'])} % are "
            "predicted to fit; of",
            f"{oom['rows']} that ran out of memory, "
            f"{oom['predicted_not_to_fit']} are predicted not to, "
            f"{oom['predicted_not_to_fit_with_headroom']} with head-room of "
            "the model's error.",
        ]
    )


def full(
    document: dict[str, Any],
    fitted: dict[str, Any],
    held_out: dict[str, Any],
) -> str:
    """Return the long tables."""
    chosen = document["selected"][TIER_A]
    parts = [
        f"On {document['rows']} rows: {document['used']} used. Tier A in bf16 "
        "and fp16, by source:",
        table(
            ["source", *HEADS],
            [
                [name, *errors(figures)]
                for name, figures in chosen["by_source"].items()
            ],
        ),
        "All rows with a step time of both files, of tiers A and B, fitted "
        "and held out: each source predicted by a fit to all others, where "
        "everything is fitted anew.",
        *(
            table(
                [head, *HEADS, "held out: median, %", "mean, %", "bias, %"],
                [
                    [name, *errors(figures), *errors(held_out[kind][name])[1:]]
                    for name, figures in fitted[kind].items()
                ],
            )
            for kind, head in (("classes", "rows"), ("sources", "source"))
        ),
        "All rows that can be used, by device (tiers B and C have "
        "configurations that are partly assumed; the runs of tier C are "
        "mostly functional tests of tiny models):",
        table(
            ["device", *HEADS],
            [
                [name, *errors(figures)]
                for name, figures in document["by_family"].items()
            ],
        ),
        "By tier, precision and parallelism:",
        table(
            ["rows of", *HEADS],
            [
                [name, *errors(figures)]
                for key in ("by_tier", "by_precision", "by_parallelism")
                for name, figures in document[key].items()
            ],
        ),
        "Memory:",
        table(
            ["counted by", *HEADS],
            [
                [name, *errors(figures)]
                for name, figures in document["memory"]["by_mem_class"].items()
            ],
        ),
        "Ranking, tier A in 16 bit:",
        table(
            [
                *("source", "groups", "within 5 %, %", "mean regret, %"),
                *("median", "bias of the predicted best, %", "ranked"),
                "median Spearman",
            ],
            [
                [
                    name,
                    str(figures["groups"]),
                    percent(figures["share_best_within_5_percent"]),
                    percent(figures["mean_regret"]),
                    percent(figures["median_regret"]),
                    percent(figures["median_bias_of_predicted_best"], True),
                    str(figures["spearman_groups"]),
                    ""
                    if figures["median_spearman"] is None
                    else f"{figures['median_spearman']:.2f}",
                ]
                for name, figures in [
                    *chosen["ranking"]["by_source"].items(),
                    ("all", chosen["ranking"]),
                ]
            ],
        ),
        "Used for memory only:",
        table(
            ["reason", "rows"],
            [
                [name, str(n)]
                for name, n in document["used_for_memory"].items()
            ],
        ),
        "Skipped:",
        table(
            ["reason", "rows"],
            [[name, str(n)] for name, n in document["skipped"].items()],
        ),
    ]
    return "\n\n".join(parts)


def main() -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "nest",
            "validate",
            *sys.argv[1:],
            "--json",
            "-",
        ],
        capture_output=True,
        check=True,
        text=True,
    )
    document = json.loads(found.stdout)
    write_result("validation", document)
    calibration = json.loads(result_path("calibration").read_text())
    fitted, held_out = calibration["fitted"], calibration["held_out"]
    fill(ROOT / "README.md", "validation", readme(document, held_out))
    text = full(document, fitted, held_out)
    fill(ROOT / "docs" / "validation.md", "results", text)


if __name__ == "__main__":
    main()
