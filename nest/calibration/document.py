"""The results of a calibration as a JSON document."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nest.calibration.design import Candidates, Proposal, spread_of
from nest.calibration.evidence import Array
from nest.calibration.fit import NOISE, Fit
from nest.calibration.runs import FEW, TWO_OF_THREE, Learned
from nest.calibration.template import cells_of
from nest.calibration.unknown import six_digits
from nest.validation.report import error_figures
from nest.validation.rows import measured_step_time_s
from nest.validation.words import words_lines

SCHEMA = "nest-own-runs/1"

#: Slope of a step time below which it does not depend on a parameter.
_NO_SLOPE = 1e-6


def to_document(
    learned: Learned, candidates: Candidates, proposals: list[Proposal]
) -> dict[str, Any]:
    """Return what ``nest calibrate --json`` writes; docs/calibration.md.

    Errors and deviations are fractions.
    """
    runs, before, after = learned.runs, learned.before, learned.after
    untold = set(learned.untold)
    has_slope = np.abs(learned.slopes).max(axis=0) > _NO_SLOPE
    return {
        "schema": SCHEMA,
        "runs": len(runs.rows),
        "file": Path(runs.where).name,
        "device": runs.site.device.name,
        "family": runs.family,
        "unused": [unused._asdict() for unused in runs.unused],
        "notes": _notes(learned),
        "noise": six_digits(learned.noise),
        "step_time": {
            "before": _figures(learned.errors_before),
            "after": _figures(learned.errors_after),
            "left_out": _figures(learned.errors_left_out),
        },
        "rows": [
            {
                "line": row.line,
                "measured_s": measured_step_time_s(row),
                "error_before": _relative(learned.errors_before[i]),
                "error_after": _relative(learned.errors_after[i]),
                "error_left_out": _relative(learned.errors_left_out[i]),
            }
            for i, row in enumerate(runs.rows)
        ],
        "parameters": [
            {
                "name": parameter.name,
                "before": six_digits(before.values[parameter.name]),
                "deviation_before": six_digits(before.deviations[k]),
                "after": six_digits(after.values[parameter.name]),
                "deviation_after": six_digits(after.deviations[k]),
                "untold": k in untold,
                "in_runs": bool(has_slope[k]),
            }
            for k, parameter in enumerate(after.parameters)
        ],
        "proposed": {
            "candidates": len(candidates.rows),
            "deviation_before": _spread(candidates, before, TWO_OF_THREE * NOISE),
            "deviation_after": _spread(candidates, after, learned.noise),
            "runs": [
                {
                    "cells": cells_of(proposal.row),
                    "predicted_step_time_s": proposal.row.iter_time_s,
                    "deviation": six_digits(proposal.deviation),
                }
                for proposal in proposals
            ],
        },
        "calibration": msgspec.to_builtins(learned.file),
    }


def _spread(candidates: Candidates, fit: Fit, noise: float) -> float | None:
    """Return how far off step times of the candidates are under a fit."""
    if not candidates.rows:
        return None
    return six_digits(math.hypot(spread_of(candidates.slopes, fit.covariance), noise))


def _notes(learned: Learned) -> list[str]:
    """Return what there is to know about the runs: a line each."""
    runs, notes = learned.runs, []
    count = len(runs.rows)
    if count < FEW:
        notes.append(
            f"{count} runs are few: how much runs scatter here is hardly "
            f"known; add some, 5 to 20 are good"
        )
    if learned.factor != 1:
        long = learned.factor > 1
        times = learned.factor if long else 1 / learned.factor
        notes.append(
            f"all runs alike are {times:.2g} times as {'slow' if long else 'fast'} as "
            f"predicted, more than published sources differ: taken as the cluster's "
            f"own; check its clocks, what was timed, and what the runs do not state"
        )
    if learned.scale >= TOLD_SCALE:
        notes.append(
            f"these runs scatter {learned.scale:.1f} times as much as "
            f"published ones do: predictions are that much less certain"
        )
    for index in learned.odd:
        error = float(learned.errors_left_out[index])
        how = "slow" if error < 0 else "fast"
        notes.append(
            f"line {runs.rows[index].line}: {np.exp(abs(error)):.1f} times "
            f"as {how} as the others say; it counts little: check or remove it"
        )
    missing = {
        name: sum(getattr(row, name) is None for row in runs.rows) for name in SETTINGS
    }
    if any(missing.values()):
        notes.append(
            "not stated: "
            + ", ".join(f"{k} in {n} runs" for k, n in missing.items() if n)
            + "; taken is what software and machine have by default "
            "(docs/validation.md): state what you know"
        )
    sized = [row for row in runs.rows if row.peak_mem_gb is not None]
    if sized:
        notes.append(
            f"memory of {len(sized)} runs (peak_mem_gb, line "
            f"{sized[0].line}): held against the device's, not fitted"
        )
    return notes + words_lines(runs.rows)


#: What runs may leave open, and predictions then take from their software.
SETTINGS = ("framework", "zero_stage", "recompute", "interconnect")

#: Scatter, in that of published runs, from which on it is told.
TOLD_SCALE = 1.2


def _figures(errors: Array) -> dict[str, Any]:
    return error_figures([float(e) for e in np.exp(errors) - 1])


def _relative(error: float) -> float:
    return six_digits(float(np.exp(error)) - 1)
