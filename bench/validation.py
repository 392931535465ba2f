"""Fill in the tables of errors in README.md and docs/validation.md.

Runs ``nest validate`` on the shared measurements, keeps its figures in
``bench/results/validation.json``, and writes them, beside those of sources
that were held out (``bench/results/calibration.json``), between the marks.

    python bench/validation.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from result_files import fill, result_path, write_result

ROOT = Path(__file__).resolve().parent.parent
MEASUREMENTS = (
    ROOT.parent / "shared" / "data" / "measured" / "measurements.csv"
)
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
    lines.append(["… every source held out", *errors(held_out["all"])])
    for name in ("nvidia-smi", "torch_allocated_last_rank"):
        lines.append([f"memory, {name}", *errors(memory[name])])
    ranking, fits = chosen["ranking"], document["memory"]["fits"]
    oom = document["memory"]["oom"]
    return "\n".join(
        [
            table(["", *HEADS], lines),
            "",
            f"Of {ranking['groups']} groups of configurations of one model, "
            f"cluster and batch, the one predicted",
            "to be fastest is within 5 % of the fastest in "
            f"{percent(ranking['share_best_within_5_percent'])} %; the median "
            "rank correlation is",
            f"{ranking['median_spearman']:.2f}. Of {fits['ran']} runs that "
            f"ran, {percent(fits['share'])} % are predicted to fit; of "
            f"{oom['rows']} that",
            f"ran out of memory, {oom['predicted_not_to_fit']} are predicted "
            "not to.",
        ]
    )


def full(document: dict[str, Any], held_out: dict[str, Any]) -> str:
    """Return the long tables."""
    chosen = document["selected"][TIER_A]
    parts = [
        f"On {document['rows']} shared rows: {document['used']} used. Tier A "
        "in bf16 and fp16, by source, and the same rows predicted by a fit to "
        "all other sources (of tier B only the source that the fit uses too):",
        table(
            ["source", *HEADS, "held out: median, %", "mean, %", "bias, %"],
            [
                [
                    name,
                    *errors(figures),
                    *errors(held_out[name])[1:],
                ]
                for name, figures in chosen["by_source"].items()
                if name in held_out
            ],
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
            ["source", "groups", "within 5 %, %", "ranked", "median Spearman"],
            [
                [
                    name,
                    str(figures["groups"]),
                    percent(figures["share_best_within_5_percent"]),
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
            MEASUREMENTS,
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
    held_out = calibration["held_out"]
    fill(ROOT / "README.md", "validation", readme(document, held_out))
    fill(ROOT / "docs" / "validation.md", "results", full(document, held_out))


if __name__ == "__main__":
    main()
