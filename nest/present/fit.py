"""Answers of ``nest fit`` for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from nest.analysis.fit import Fit, Trial
from nest.analysis.offers import hourly_usd, step_usd
from nest.ir.problem import Problem
from nest.present.table import (
    count,
    key_lines,
    note,
    score_block,
    terminal_table,
)
from nest.present.verbosity import VERBOSE
from nest.solvers.base import Status
from nest.units import format_bytes
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale


def fit_block(
    problem: Problem, fit: Fit, restrictions: str, why: Sequence[str] = ()
) -> list[RenderableType]:
    """Return the answer, the plan, and the candidates.

    ``why`` is why there is no plan at all, in lines, and what would do.
    """
    if fit.question in ("fastest", "cheapest"):
        return _offer_block(problem, fit, restrictions)
    what = "devices" if fit.question == "devices" else "memory per device"

    def size(trial: Trial) -> str:
        if fit.question == "devices":
            return str(trial.num_devices)
        if trial is fit.trials[0]:
            return "unlimited"
        text = format_bytes(trial.memory_bytes)
        exact = f"{trial.memory_bytes} bytes"
        return exact if exact == text else f"{exact} ({text})"

    def time(time_ns: float | None) -> str:
        return TimeScale.fitting(time_ns, problem.time_unit)(time_ns)

    def bound(time_ns: float | None) -> str:
        scale = TimeScale.fitting(time_ns, problem.time_unit)
        return scale.bound(time_ns)

    rows = [
        ("problem", f"{problem.name} (preset {problem.preset})"),
        ("target", fit.target.text),
    ]
    if restrictions:
        rows.append(("under", restrictions))
    if fit.best is not None:
        proof = f"proven{fit.among}: nothing smaller keeps the target"
        if not fit.proven:
            proof = "not proven: some smaller ones are open"
        rows.append((f"least {what}", f"{size(fit.best)} ({proof})"))
    else:
        proof = "not proven: some are open"
        if fit.proven:
            proof = f"proven{fit.among}"
        rows.append((f"least {what}", f"none keeps the target ({proof})"))
        text = "no plan at all was found"
        if fit.fastest is not None:
            text = time(fit.fastest.result.step_time_ns)
            if fit.fastest.result.status is not Status.OPTIMAL:
                text += " (not proven)"
            if fit.question == "memory":
                text += " whatever the memory"
            else:
                text += f" with {size(fit.fastest)} {what}"
        rows.append(("best possible", text))
    columns = (
        Column(what, value=size, min_width=16),
        Column("answer", "target kept"),
        Column("step time", value=lambda x: time(x.result.step_time_ns)),
        Column(
            "lower bound",
            value=lambda trial: bound(trial.result.lower_bound_ns),
            rank=1,
        ),
        Column("wall s", value=lambda x: f"{x.result.wall_s:.2f}", rank=3),
        Column(
            "note",
            value=lambda trial: note(trial.result),
            rank=2,
            min_width=16,
        ),
    )
    items: list[RenderableType] = [key_lines(rows), *why]
    shown = fit.best or fit.fastest
    if shown is not None:
        assert shown.result.plan is not None
        document = shown.rescored().to_json()
        block = score_block(shown.problem, shown.result.plan, document)
        items += [Padding(block[0], (1, 0, 0, 0)), *block[1:]]
    return [*items, _trials(columns, fit.trials)]


def _trials(
    columns: Sequence[Column], trials: Sequence[Trial]
) -> RenderableType:
    """Return a line on the candidates, or with ``--verbose`` all of them."""
    if VERBOSE.get():
        table = terminal_table(Table.of(columns, trials))
        return Padding(table, (1, 0, 0, 0))
    text = f"tried: {count(len(trials), 'candidate')}; --verbose shows each"
    return Padding(Text(text, style="dim"), (1, 0, 0, 0))


def _offer_block(
    problem: Problem, fit: Fit, restrictions: str
) -> list[RenderableType]:
    """Return which devices to take, the plan, and the candidates."""

    def devices(trial: Trial) -> str:
        counts = trial.problem.cluster.counts
        return " + ".join(f"{count} {name}" for name, count in counts.items())

    def per_hour(trial: Trial) -> str:
        return f"{float(hourly_usd(trial.problem.cluster)):g}"

    def per_step(trial: Trial) -> str:
        quanta = trial.result.step_quanta
        if quanta is None:
            return ""
        return f"{float(step_usd(trial.problem, quanta)):.6g}"

    def time(time_ns: float | None) -> str:
        return TimeScale.fitting(time_ns, problem.time_unit)(time_ns)

    rows = [
        ("problem", f"{problem.name} (preset {problem.preset})"),
        ("limits", fit.target.text or "none"),
    ]
    if restrictions:
        rows.append(("under", restrictions))
    proof = "proven among these counts"
    if not fit.proven:
        proof = "not proven: some are open"
    if fit.best is None:
        rows.append((fit.question, f"none keeps the limits ({proof})"))
    else:
        rows += [
            (fit.question, f"{devices(fit.best)} ({proof})"),
            ("step time", time(fit.best.result.step_time_ns)),
            (
                "price",
                f"{per_hour(fit.best)} $ per hour, "
                f"{per_step(fit.best)} $ per step",
            ),
        ]
    columns = (
        Column("devices", value=devices, min_width=16),
        Column("$ per hour", value=per_hour),
        Column("answer", "better", rank=2),
        Column("step time", value=lambda x: time(x.result.step_time_ns)),
        Column("$ per step", value=per_step, rank=1),
        Column(
            "note",
            value=lambda trial: note(trial.result),
            rank=3,
            min_width=16,
        ),
    )
    items: list[RenderableType] = [key_lines(rows)]
    if fit.best is not None:
        assert fit.best.result.plan is not None
        assert fit.best.result.score is not None
        block = score_block(
            fit.best.problem,
            fit.best.result.plan,
            fit.best.result.score.to_json(),
        )
        items += [Padding(block[0], (1, 0, 0, 0)), *block[1:]]
    return [*items, _trials(columns, fit.trials)]
