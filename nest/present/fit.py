"""Answers of ``nest fit`` for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from nest.analysis.fit import Fit, Trial
from nest.analysis.offers import hourly_usd, step_usd
from nest.ir.problem import Problem
from nest.present.screen import Rows, plan_rows, screen, stage_parts
from nest.present.table import count, note, terminal_table
from nest.present.verbosity import VERBOSE
from nest.solvers.base import Status
from nest.units import format_bytes
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale


def fit_block(
    problem: Problem,
    fit: Fit,
    restrictions: str,
    why: Sequence[str] = (),
    defaults: str = "",
) -> list[RenderableType]:
    """Return the answer, the plan, and the candidates.

    ``why`` is why there is no plan at all, in lines, and what would do;
    ``defaults`` what nobody chose.
    """
    rows = [
        *_answer_rows(problem, fit),
        ("target", fit.target.text or "no limits"),
        ("assumed", restrictions and f"only plans under {restrictions}"),
        ("assumed", defaults),
        *(("fits", text) for text in why),
    ]
    shown, stages = fit.best or fit.fastest, []
    if shown is not None and shown.result.plan is not None:
        plan, verdict = shown.result.plan, shown.rescored()
        rows += plan_rows(shown.problem, plan, verdict)
        if VERBOSE.get():
            stages = stage_parts(shown.problem, plan, verdict)
    rows = [(label, text) for label, text in rows if text]
    return [*screen(problem, rows), *stages, _trials(problem, fit)]


def _answer_rows(problem: Problem, fit: Fit) -> Rows:
    """Return what the answer is, whether it is proven, and its price."""
    best, has_offers = fit.best, fit.question in ("fastest", "cheapest")
    question = fit.question if has_offers else f"least {_what(fit)}"
    among = " among these counts" if has_offers else fit.among
    proof = f"proven{among}" if fit.proven else "not proven: some are open"
    if best is None:
        rows = [("answer", f"{question}: none keeps the target ({proof})")]
        if not has_offers:
            rows.append(("answer", f"best possible: {_fastest(problem, fit)}"))
        return rows
    if not has_offers and fit.proven:
        proof += ": nothing smaller keeps the target"
    rows = [("answer", f"{question}: {_size(fit, best)} ({proof})")]
    if has_offers:
        hourly = f"{float(hourly_usd(best.problem.cluster)):g} $ per hour"
        rows.append(("run", f"{hourly}, {_step_usd(best)} $ per step"))
    return rows


def _what(fit: Fit) -> str:
    """Return what candidates differ in."""
    return "memory per device" if fit.question == "memory" else "devices"


def _size(fit: Fit, trial: Trial) -> str:
    if fit.question == "devices":
        return str(trial.num_devices)
    if fit.question != "memory":
        counts = trial.problem.cluster.counts
        return " + ".join(f"{count} {name}" for name, count in counts.items())
    if trial is fit.trials[0]:
        return "unlimited"
    text = format_bytes(trial.memory_bytes)
    exact = f"{trial.memory_bytes} bytes"
    return exact if exact == text else f"{exact} ({text})"


def _fastest(problem: Problem, fit: Fit) -> str:
    """Return the least step time of any candidate."""
    if fit.fastest is None:
        return "no plan at all was found"
    text = _time(problem, fit.fastest.result.step_time_ns)
    if fit.fastest.result.status is not Status.OPTIMAL:
        text += " (not proven)"
    if fit.question == "memory":
        return f"{text} whatever the memory"
    return f"{text} with {_size(fit, fit.fastest)} devices"


def _time(problem: Problem, time_ns: float | None) -> str:
    return TimeScale.fitting(time_ns, problem.time_unit)(time_ns)


def _step_usd(trial: Trial) -> str:
    quanta = trial.result.step_quanta
    if quanta is None:
        return ""
    return f"{float(step_usd(trial.problem, quanta)):.6g}"


def _trials(problem: Problem, fit: Fit) -> RenderableType:
    """Return a line on the candidates, or with ``--verbose`` all of them."""
    if not VERBOSE.get():
        tried = count(len(fit.trials), "candidate")
        text = Text(f"tried: {tried}; --verbose shows each", style="dim")
        return Padding(text, (1, 0, 0, 0))

    def bound(trial: Trial) -> str:
        time_ns = trial.result.lower_bound_ns
        return TimeScale.fitting(time_ns, problem.time_unit).bound(time_ns)

    columns = [
        Column(_what(fit), value=lambda x: _size(fit, x), min_width=16),
        Column("answer", "target kept"),
        Column(
            "step", "step time", value=lambda x: _time(problem, x.result.step_time_ns)
        ),
        Column("lower bound", value=bound),
        Column("wall s", value=lambda x: f"{x.result.wall_s:.2f}"),
        Column("note", value=lambda x: note(x.result), min_width=16),
    ]
    if fit.question in ("fastest", "cheapest"):
        columns[3:4] = [Column("$ per step", value=_step_usd)]
    table = terminal_table(Table.of(columns, fit.trials))
    return Padding(table, (1, 0, 0, 0))
