"""Errors of predictions: by source, by device, in ranking, in memory.

The relative error of a prediction is ``e = (predicted - measured) /
measured``. An *absolute error* is ``|e|``, a *bias* the mean of ``e``; all
are fractions. docs/validation.md defines every figure.
"""

from __future__ import annotations

import math
import os
import re
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from nest.errors import NestError
from nest.ir.base import Struct
from nest.util.tables import Column, Table, to_csv
from nest.validation.predict import Prediction, Skip
from nest.validation.rows import (
    Row,
    measured_memory_bytes,
    measured_step_time_s,
    ran_out_of_memory,
    why_no_memory,
)
from nest.validation.settings import assumed_settings
from nest.validation.software import software_of
from nest.validation.usable import Reason, impossible, why_unusable
from nest.validation.words import not_understood, words_lines

SCHEMA = "nest-validation/1"

#: Configurations that a group needs: for a rank correlation, and to ask for
#: the best of them.
MIN_RANKED = 4
MIN_CHOICES = 3

#: How much slower than the fastest a choice may be to count as right.
BEST_TOLERANCE = 0.05

#: Correlation that counts as high.
HIGH_SPEARMAN = 0.9

_NOT_STATED = "not stated"

#: Reasons of rows that are compared, but not by their step time: whether
#: they fit, or how much memory they take.
MEMORY_ONLY = ("the run went out of memory", "no measured step time")

#: Reason of rows that no run can have produced.
IMPOSSIBLE = "impossible figure"


def source_of(row: Row) -> str:
    """Return the name under which the row's source is reported."""
    return row.source or _NOT_STATED


class Assessment(NamedTuple):
    """A row, what was measured and what was predicted."""

    #: The row.
    row: Row
    #: Why its step time is not compared; None if it is.
    reason: Reason | None = None
    #: Step time in seconds.
    measured_s: float | None = None
    predicted_s: float | None = None
    #: Memory of a device, in the sense of the row's ``mem_class``.
    measured_bytes: int | None = None
    predicted_bytes: int | None = None
    #: Whether the plan is predicted to fit the devices, and with head-room of the
    #: model's error left free.
    fits: bool | None = None
    fits_with_headroom: bool | None = None
    #: Ends of the 90 % interval of the step time in seconds; None if not asked for.
    interval_90_s: tuple[float, float] | None = None

    @property
    def within_90(self) -> bool | None:
        """Whether the measured step time lies inside the interval, if there is one."""
        if self.interval_90_s is None or self.measured_s is None:
            return None
        low_s, high_s = self.interval_90_s
        return low_s <= self.measured_s <= high_s

    @property
    def time_error(self) -> float | None:
        """Relative error of the step time, if it is compared."""
        if self.reason is not None:
            return None
        return _relative(self.predicted_s, self.measured_s)

    @property
    def memory_error(self) -> float | None:
        """Relative error of the memory, if it is compared."""
        return _relative(self.predicted_bytes, self.measured_bytes)


class Selection(Struct, frozen=True, kw_only=True):
    """Which rows to look at; an empty field takes all."""

    #: Values of ``time_tier``; of ``mem_tier`` where memory is compared.
    tiers: tuple[str, ...] = ()
    #: Values of ``precision_class``.
    precisions: tuple[str, ...] = ()
    #: Part of the name of the source, or the device, upper or lower case.
    source: str = ""
    hardware: str = ""
    min_devices: int = 0
    #: Date, such as ``2026-11-23``, on or after which a row was collected. A row
    #: without a date is left out.
    after: str = ""

    def __str__(self) -> str:
        texts = (
            self.tiers and f"tier {'/'.join(self.tiers)}",
            "/".join(self.precisions),
            self.source and f"source {self.source}",
            self.hardware and f"hardware {self.hardware}",
            self.min_devices and f">= {self.min_devices} devices",
            self.after and f"collected on or after {self.after}",
        )
        return ", ".join(text for text in texts if text) or "all rows"

    def takes(self, row: Row, tier: str | None) -> bool:
        """Return whether a row with this tier is looked at."""
        return (
            (not self.tiers or tier in self.tiers)
            and (not self.precisions or row.precision_class in self.precisions)
            and self.source.lower() in (row.source or "").lower()
            and self.hardware.lower() in (row.hardware or "").lower()
            and (row.num_devices or 0) >= self.min_devices
            and (row.collected or "") >= self.after
        )


EVERYTHING = Selection()

#: Selections whose figures are shown in addition to those of all rows.
SHOWN = (
    Selection(tiers=("A",), precisions=("bf16", "fp16")),
    Selection(
        tiers=("A",), precisions=("bf16", "fp16"), source="vTrain", min_devices=64
    ),
)


def assess(row: Row, predict: Callable[[Row], Prediction | Skip]) -> Assessment:
    """Predict a row and compare the prediction with the measurement.

    A row that cannot be predicted has a reason: this does not raise, unless
    ``NEST_DEBUG`` is set in the environment. Of the reason of a
    :class:`~nest.validation.predict.Skip` what comes before the first colon
    is counted, all of it is the detail.
    """
    measured_s = measured_step_time_s(row)
    measured_bytes = measured_memory_bytes(row)
    outcome = Assessment(row, measured_s=measured_s, measured_bytes=measured_bytes)
    reason = why_unusable(row)
    if reason is None and (why := impossible(row)) is not None:
        reason = Reason(IMPOSSIBLE, why)
    if reason is not None:
        return outcome._replace(reason=reason)
    try:
        answer = predict(row)
    except NestError as error:
        unknown = isinstance(error, LookupError)
        what = "unknown device or link" if unknown else "cannot be expressed"
        reason = Reason(what, str(error))
    except Exception as error:
        if os.environ.get("NEST_DEBUG", "") not in ("", "0"):
            raise
        reason = Reason("the prediction failed", f"{type(error).__name__}: {error}")
    else:
        if not isinstance(answer, Skip):
            return _compare(outcome, answer)
        reason = Reason(answer.reason.split(": ")[0], answer.reason)
    return outcome._replace(reason=reason)


def _compare(outcome: Assessment, prediction: Prediction) -> Assessment:
    predicted_s, reason = prediction.step_time_s, None
    if ran_out_of_memory(outcome.row):
        reason = Reason(MEMORY_ONLY[0])
    elif outcome.measured_s is None:
        reason = Reason(MEMORY_ONLY[1])
    elif predicted_s is None:
        reason = Reason("no predicted step time")
    elif not 0 < predicted_s < math.inf:
        reason = Reason("the prediction failed", f"step_time_s {predicted_s}")
    return outcome._replace(
        reason=reason,
        predicted_s=predicted_s,
        predicted_bytes=prediction.memory_bytes,
        fits=prediction.fits,
        fits_with_headroom=prediction.fits_with_headroom,
    )


def _relative(predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or measured is None:
        return None
    return (predicted - measured) / measured


# Statistics


def error_figures(errors: Sequence[float]) -> dict[str, Any]:
    """Return number, median and mean absolute error, and bias.

    Of relative errors with their signs; figures are None if there is none.
    """
    absolute = [abs(error) for error in errors]
    return {
        "used": len(errors),
        "median_abs_error": figure(statistics.median, absolute),
        "mean_abs_error": figure(statistics.fmean, absolute),
        "bias": figure(statistics.fmean, errors),
    }


def average_ranks(values: Sequence[float]) -> list[float]:
    """Return the ranks from 1; equal values share the mean of theirs."""
    order = sorted(values)
    return [
        (bisect_left(order, value) + bisect_right(order, value) + 1) / 2
        for value in values
    ]


def spearman(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties averaged.

    It is Pearson's correlation of the ranks (C. Spearman, "The proof and measurement of
    association between two things", 1904). None if all measured values are equal: there
    is nothing to rank. 0 if only the predicted ones are: they rank nothing.
    """
    if len(set(measured)) <= 1:
        return None
    if len(set(predicted)) <= 1:
        return 0.0
    return statistics.correlation(average_ranks(predicted), average_ranks(measured))


class RankingGroup(NamedTuple):
    """Configurations of one model on one cluster at one batch size.

    The title names model, device count and batch; step times are in seconds, one per
    configuration.
    """

    source: str
    title: str
    predicted_s: list[float]
    measured_s: list[float]

    @property
    def correlation(self) -> float | None:
        """Spearman's correlation, of :data:`MIN_RANKED` or more."""
        if len(self.measured_s) < MIN_RANKED:
            return None
        return spearman(self.predicted_s, self.measured_s)

    @property
    def chosen_s(self) -> tuple[float, float]:
        """Predicted and measured step time of the predicted best.

        Of configurations predicted to be equally fast the slowest counts.
        """
        best_s = min(self.predicted_s)
        pairs = zip(self.predicted_s, self.measured_s, strict=True)
        return best_s, max(
            measured_s for predicted_s, measured_s in pairs if predicted_s == best_s
        )

    @property
    def regret(self) -> float:
        """How much slower the predicted best is than the measured best.

        A fraction of the measured best.
        """
        return self.chosen_s[1] / min(self.measured_s) - 1

    @property
    def best_error(self) -> float:
        """Relative error of the step time of the predicted best.

        Of many predictions the smallest is likely one that errs downwards:
        the winner's curse.
        """
        predicted_s, measured_s = self.chosen_s
        return (predicted_s - measured_s) / measured_s


def ranking_groups(outcomes: Iterable[Assessment]) -> list[RankingGroup]:
    """Return the groups of :data:`MIN_CHOICES` or more configurations.

    Rows of a group have the same source, software, precision, model shape, device,
    number of devices, sequence length and global batch. A configuration measured more
    than once counts once, with the mean of both times.
    """
    same, choice = attrgetter(*SAME_PROBLEM), attrgetter(*_CHOICES)
    problems: dict[Any, dict[Any, list[Assessment]]] = {}
    for outcome in outcomes:
        if outcome.time_error is not None:
            group = problems.setdefault(same(outcome.row), {})
            group.setdefault(choice(outcome.row), []).append(outcome)
    return [
        _group(list(choices.values()))
        for choices in problems.values()
        if len(choices) >= MIN_CHOICES
    ]


#: What the rows of a group have in common, and in what they may differ.
SAME_PROBLEM = (
    *("source", "framework", "precision_class", "hardware", "num_devices"),
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden"),
    *("gated_mlp", "experts", "topk", "moe_ffn_hidden", "shared_experts"),
    *("vocab", "seq_len", "global_batch"),
)
_CHOICES = (
    *("tp", "pp", "vpp", "dp", "cp", "ep", "sp", "zero_stage", "shard_mode"),
    *("micro_batch", "recompute", "attention_impl", "overlap"),
)


def _group(choices: list[list[Assessment]]) -> RankingGroup:
    row = choices[0][0].row
    predicted_s, measured_s = (
        [statistics.fmean(getattr(o, name) or 0 for o in same) for same in choices]
        for name in ("predicted_s", "measured_s")
    )
    return RankingGroup(
        source=source_of(row),
        title=f"{row.model or 'model'}, {row.num_devices} devices, "
        f"batch {row.global_batch}",
        predicted_s=predicted_s,
        measured_s=measured_s,
    )


def ranking_figures(groups: Sequence[RankingGroup]) -> dict[str, Any]:
    """Return how well predictions rank configurations, over groups."""
    correlations = [x for group in groups if (x := group.correlation) is not None]
    regrets = [group.regret for group in groups]
    best_errors = [group.best_error for group in groups]
    right = sum(regret <= BEST_TOLERANCE for regret in regrets)
    high = sum(value >= HIGH_SPEARMAN for value in correlations)
    return {
        "groups": len(groups),
        "spearman_groups": len(correlations),
        "median_spearman": figure(statistics.median, correlations),
        "share_spearman_at_least_0_9": _share(high, len(correlations)),
        "share_best_within_5_percent": _share(right, len(groups)),
        "median_loss_of_predicted_best": figure(statistics.median, regrets),
        "mean_regret": figure(statistics.fmean, regrets),
        "median_regret": figure(statistics.median, regrets),
        "median_bias_of_predicted_best": figure(statistics.median, best_errors),
    }


def memory_figures(outcomes: Sequence[Assessment]) -> dict[str, Any]:
    """Return the errors of memory, and how many runs are predicted to fit."""
    errors = [(o, e) for o in outcomes if (e := o.memory_error) is not None]
    judged = [o for o in outcomes if o.fits is not None]
    oom = [o for o in judged if ran_out_of_memory(o.row)]
    ran = [o for o in judged if not ran_out_of_memory(o.row)]
    fit = sum(bool(o.fits) for o in ran)
    roomy = sum(bool(o.fits_with_headroom) for o in ran)
    refused = sum(not o.fits for o in oom)
    tight = sum(not o.fits_with_headroom for o in oom)
    return {
        **error_figures([error for _, error in errors]),
        "by_mem_class": _by(errors, lambda row: row.mem_class),
        "by_source": _by(errors, source_of),
        "fits": {
            "ran": len(ran),
            "predicted_to_fit": fit,
            "share": _share(fit, len(ran)),
            "predicted_to_fit_with_headroom": roomy,
            "share_with_headroom": _share(roomy, len(ran)),
        },
        "oom": {
            "rows": len(oom),
            "predicted_not_to_fit": refused,
            "share": _share(refused, len(oom)),
            "predicted_not_to_fit_with_headroom": tight,
            "share_with_headroom": _share(tight, len(oom)),
        },
    }


# Classes of rows


def device_family(row: Row) -> str:
    """Return the device without memory size and form, such as ``A100``."""
    name = (row.hardware or _NOT_STATED).split(" (")[0]
    if name.startswith(("TPU ", "not ")):
        return " ".join(name.split()[:2])
    return re.split(r"[\s-]", name)[0]


def parallelism(row: Row) -> str:
    """Return the class of the row's mesh: the first that applies.

    Expert parallel, context parallel, interleaved pipeline, ZeRO stage 3,
    tensor and pipeline parallel, one of them, data parallel, one device.
    """
    tp, pp = row.tp or 1, row.pp or 1
    if (row.ep or 1) > 1:
        return "ep"
    if (row.cp or 1) > 1:
        return "cp"
    if pp > 1 and (row.vpp or 1) > 1:
        return "interleaved"
    if row.zero_stage == 3 and (row.dp or 1) > 1:
        return "zero3"
    if tp > 1 and pp > 1:
        return "tp+pp"
    if tp > 1:
        return "tp"
    if pp > 1:
        return "pp"
    return "dp only" if (row.dp or 1) > 1 else "one device"


#: Breakdowns of the error of the step time: JSON key to class of a row.
BREAKDOWNS: dict[str, Callable[[Row], str | None]] = {
    "by_source": source_of,
    "by_hardware": lambda row: row.hardware,
    "by_family": device_family,
    "by_parallelism": parallelism,
    "by_tier": lambda row: row.time_tier,
    "by_precision": lambda row: row.precision_class,
}


# Documents


def validation_document(
    outcomes: Sequence[Assessment],
    selection: Selection = EVERYTHING,
    shown: Sequence[Selection] = SHOWN,
) -> dict[str, Any]:
    """Return the JSON document of a validation; see docs/validation.md.

    ``rows = used + sum(used_for_memory.values()) + sum(skipped.values())``;
    every error is a fraction of the measured figure. The figures of the
    selections that are ``shown`` too are under ``selected``.
    """
    return {
        "schema": SCHEMA,
        "selection": str(selection),
        **_figures(outcomes, selection),
        "selected": {str(other): _figures(outcomes, other) for other in shown},
    }


def _figures(outcomes: Sequence[Assessment], selection: Selection) -> dict[str, Any]:
    timed = [o for o in outcomes if selection.takes(o.row, o.row.time_tier)]
    sized = [o for o in outcomes if selection.takes(o.row, o.row.mem_tier)]
    errors = [(o, e) for o in timed if (e := o.time_error) is not None]
    reasons = Counter(o.reason.reason for o in timed if o.reason is not None)
    no_memory = Counter(filter(None, (why_no_memory(o.row) for o in sized)))
    groups = ranking_groups(timed)
    sources = sorted({group.source for group in groups})
    total = error_figures([error for _, error in errors])
    used = total.pop("used")
    return {
        "rows": len(timed),
        "used": used,
        "used_for_memory": {
            name: reasons.pop(name) for name in MEMORY_ONLY if name in reasons
        },
        "skipped": dict(reasons.most_common()),
        "impossible": [
            f"line {o.row.line}: {o.reason.detail}"
            for o in timed
            if o.reason is not None and o.reason.reason == IMPOSSIBLE
        ],
        "not_understood": words_lines(o.row for o in timed),
        "unreadable": [
            f"line {o.row.line}: {text}" for o in timed for text in o.row.unreadable
        ],
        **total,
        **{key: _by(errors, class_of) for key, class_of in BREAKDOWNS.items()},
        "ranking": {
            **ranking_figures(groups),
            "by_source": {
                source: ranking_figures([x for x in groups if x.source == source])
                for source in sources
            },
        },
        "memory": {**memory_figures(sized), "left_out": dict(no_memory.most_common())},
    }


def _by(
    errors: Sequence[tuple[Assessment, float]], class_of: Callable[[Row], str | None]
) -> dict[str, dict[str, Any]]:
    by_class: dict[str, list[float]] = {}
    for outcome, error in errors:
        name = class_of(outcome.row) or _NOT_STATED
        by_class.setdefault(name, []).append(error)
    return {name: error_figures(by_class[name]) for name in sorted(by_class)}


def figure(
    statistic: Callable[[Sequence[float]], float], values: Sequence[float]
) -> float | None:
    """Return six decimals: a prediction is not worth more."""
    return round(statistic(values), 6) if values else None


def _share(count: int, whole: int) -> float | None:
    return round(count / whole, 6) if whole else None


def _cells(*names: str) -> dict[str, Callable[[Assessment], Any]]:
    """Return columns that are those of the row."""
    return {name: attrgetter(f"row.{name}") for name in names}


#: Columns of the CSV file with a line per row.
_DETAILS: dict[str, Callable[[Assessment], Any]] = {
    **_cells("row_id", "line", "source", "hardware", "model", "num_devices"),
    "parallelism": lambda a: parallelism(a.row),
    "software": lambda a: software_of(a.row).name,
    **_cells("time_tier", "precision_class"),
    "measured_step_time_s": lambda a: _six(a.measured_s),
    "predicted_step_time_s": lambda a: _six(a.predicted_s),
    "step_time_error": lambda a: _six(a.time_error),
    "low_90_s": lambda a: _six((a.interval_90_s or (None, None))[0]),
    "high_90_s": lambda a: _six((a.interval_90_s or (None, None))[1]),
    "within_90": lambda a: _bit(a.within_90),
    **_cells("mem_class", "mem_tier"),
    "measured_memory_bytes": lambda a: a.measured_bytes,
    "predicted_memory_bytes": lambda a: a.predicted_bytes,
    "memory_error": lambda a: _six(a.memory_error),
    "fits": lambda a: _bit(a.fits),
    "reason": lambda a: a.reason.reason if a.reason else "",
    "assumed": lambda a: "; ".join((*a.row.assumed, *assumed_settings(a.row))),
    "not_understood": lambda a: "; ".join(
        f"{column}: {text}" for column, text in not_understood(a.row).items()
    ),
    "detail": lambda a: " ".join((a.reason or Reason("")).detail.split()),
}


def details_csv(outcomes: Iterable[Assessment]) -> str:
    """Return a CSV file with a line per row; errors are fractions."""
    columns = [Column(key, value=value) for key, value in _DETAILS.items()]
    return to_csv(Table.of(columns, outcomes))


def _bit(value: bool | None) -> str:
    return "" if value is None else str(int(value))


def _six(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
