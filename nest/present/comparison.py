"""The table of a comparison: on terminals, on pages and in CSV files.

A new column is one line of a list that :func:`columns` joins. It shows a field
of :meth:`nest.solvers.result.SolveResult.to_json`, or what its ``value`` makes
of several fields.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from nest.analysis.compare import beside_best
from nest.ir.problem import Problem
from nest.present.screen import degrees, fits_text, lines, title
from nest.present.table import (
    needed_bytes,
    note_text,
    percent,
    scale_of,
    status_of,
    terminal_table,
)
from nest.solvers.base import SolveOptions
from nest.solvers.result import SolveResult
from nest.uncertainty.headroom import FITS_MEANING
from nest.units import format_bytes, format_sizes
from nest.util.tables import FOR_PEOPLE, Column, Table, Writer, to_csv
from nest.util.time_scale import TimeScale

#: The fields of one answer, as in a document.
Fields = Mapping[str, Any]

_TERMINAL = frozenset({Writer.TERMINAL})
_PAGE = frozenset({Writer.PAGE})
_CSV = frozenset({Writer.CSV})

_STYLES = {
    "optimal": "green",
    "feasible": "",
    "infeasible": "yellow",
    "over memory": "yellow",
    "no solution": "yellow",
    "skipped": "dim",
    "not installed": "dim",
    "interrupted": "yellow",
}


def columns(writer: Writer, scale: TimeScale) -> list[Column]:
    """Return the columns of a comparison that a writer shows.

    Times on terminals and pages have the unit of ``scale``.
    """
    every_column = [
        *_status_columns(),
        *_time_columns(scale),
        *_effort_columns(),
        *_note_columns(),
    ]
    return [column for column in every_column if writer in column.writers]


def _status_columns() -> list[Column]:
    return [
        Column("problem", writers=_CSV),
        Column("solver"),
        *_csv_columns("seed", "outcome", "status", "limit"),
        Column(
            "shown_status",
            "status",
            value=lambda fields: status_of(
                fields["outcome"], fields["status"]
            ),
            style=lambda text: _STYLES.get(text, "bold red"),
            min_width=8,
            writers=FOR_PEOPLE,
        ),
    ]


def _time_columns(scale: TimeScale) -> list[Column]:
    def shown_step_time(fields: Fields) -> str:
        """Return the step time, in parentheses if the plan does not fit."""
        if fields["status"] == "over-memory" and fields.get("score"):
            return f"({scale(fields['score']['step_time_ns'])})"
        return scale(fields["step_time_ns"])

    def time(
        key: str,
        name: str,
        value: Callable[[Fields], str] | None = None,
        rank: int = 0,
        writers: frozenset[Writer] = FOR_PEOPLE,
    ) -> Column:
        form = scale if value is None else str
        return Column(key, name, form, value, True, writers, rank)

    return [
        Column("step_time_ns", writers=_CSV),
        time("shown_step_time", "step time", shown_step_time),
        time("simulated_step_time_ns", "simulated", None, 7, _TERMINAL),
        *_csv_columns("step_time_quanta", "over_best"),
        Column(
            "shown_over_best",
            "vs best %",
            value=_over_best,
            right=True,
            rank=1,
            min_width=8,
            writers=FOR_PEOPLE,
        ),
        time("lower_bound_ns", "lower bound", None, 0, _PAGE | _CSV),
        Column(
            "gap", "gap %", percent, right=True, rank=3, writers=FOR_PEOPLE
        ),
        *_csv_columns("lower_bound_quanta", "over_memory_bytes"),
        time("own_objective_ns", "own objective", None, 6, _TERMINAL | _CSV),
    ]


def _effort_columns() -> list[Column]:
    return [
        Column("wall_s", "wall s", _seconds, right=True, rank=5),
        *_csv_columns("cpu_s", "peak_rss_bytes", "host"),
    ]


def _note_columns() -> list[Column]:
    return [
        Column("note", value=note_text, writers=_PAGE),
        Column("detail", writers=_CSV),
    ]


def page_keys() -> list[str]:
    """Return the fields that a page shows as they are."""
    return [
        column.key
        for column in columns(Writer.PAGE, TimeScale.fitting(None))
        if column.value is None and column.key != "solver"
    ]


def _csv_columns(*keys: str) -> list[Column]:
    return [Column(key, writers=_CSV) for key in keys]


def _seconds(wall_s: float | None) -> str:
    return "" if wall_s is None else f"{wall_s:.2f}"


def _over_best(fields: Fields) -> str:
    """Return by how much a step is longer than the shortest, in per cent."""
    longer = fields["longer_than_best"]
    if not longer:
        return "" if longer is None else "best"
    text = f"+{percent(longer)}"
    return f"{text} (equal)" if fields.get("equal_to_best") else text


def answer_fields(
    problem: Problem, results: Iterable[SolveResult]
) -> list[dict[str, Any]]:
    """Return the fields of every answer, compared with the fastest plan."""
    results = list(results)
    steps = [r.step_quanta for r in results if r.step_quanta is not None]
    best = min(steps, default=None)
    answers = []
    for result, near in zip(
        results, beside_best(problem, results), strict=True
    ):
        step, longer = result.step_quanta, None
        if step is not None and best is not None:
            more = step - best
            longer = more / best if best else math.inf if more else 0.0
        answers.append(
            {
                **result.to_json(),
                **near.to_json(),
                "plan_intervals": near.intervals,
                "problem": problem.name,
                "seed": result.options.seed,
                "longer_than_best": longer,
                "over_best": step / best
                if step is not None and best
                else None,
                "host": os.uname().nodename,
                "detail": " ".join(result.detail.split()),
            }
        )
    return answers


# Terminals


def compare_screen(
    problem: Problem, results: Sequence[SolveResult], notes: Sequence[str] = ()
) -> list[RenderableType]:
    """Return the first screen of a comparison: a row per solver, and notes.

    ``notes`` are lines for people below the table.
    """
    answers = answer_fields(problem, results)
    below: list[str] = []
    if any(answer["intervals"] for answer in answers):
        below += FITS_MEANING
    if any(x["equal_to_best"] and x["longer_than_best"] for x in answers):
        below.append(
            "* within the prediction error: a measurement may reverse the "
            "order"
        )
    for answer in answers:
        texts = [note_text(answer)]
        if answer["gap"] is None and answer["lower_bound_ns"]:
            bound = scale_of(problem, results).bound(answer["lower_bound_ns"])
            texts.append(f"lower bound {bound}")
        text = "; ".join(filter(None, texts))
        if text:
            below.append(f"{answer['solver']}: {text}")
    best = min(
        (x for x in results if x.step_quanta is not None),
        key=lambda x: x.step_quanta or 0,
        default=None,
    )
    if best is not None and best.plan is not None and best.score is not None:
        plan = degrees(problem, best.plan, best.score.num_micro_batches)
        below.append(f"plan of {best.solver}: {plan}")
    below += notes
    return [
        lines([title(problem)]),
        terminal_table(Table.of(_screen_columns(problem, results), answers)),
        *([lines(below)] if below else []),
    ]


def _screen_columns(
    problem: Problem, results: Sequence[SolveResult]
) -> list[Column]:
    """Return the columns of the first screen."""
    scale = scale_of(problem, results)
    cluster = problem.cluster
    whole = format_bytes(cluster.memory_bytes() + cluster.headroom_bytes())
    size, unit = whole.split()

    def fits(fields: Fields) -> str:
        if not fields["score"]:
            return "–"
        text = fits_text(problem, fields["score"], fields["plan_intervals"])
        return re.split("[,:]", text)[0]

    def memory(fields: Fields) -> str:
        if not fields["score"]:
            return "–"
        return format_bytes(needed_bytes(fields["score"])).removesuffix(
            f" {unit}"
        )

    def step(fields: Fields) -> str:
        if not fields["score"]:
            return "–"
        step_ns, intervals = (
            fields["score"]["step_time_ns"],
            fields["plan_intervals"],
        )
        text = scale(step_ns)
        if intervals is not None:
            interval = scale.interval(intervals.step_90_ns).replace(" – ", "–")
            text = f"{scale.short(step_ns)} ({interval})"
        text = text.replace(f" {scale.unit}", "")
        return f"[{text}]" if fields["step_time_ns"] is None else text

    def slower(fields: Fields) -> str:
        longer = fields["longer_than_best"]
        if longer is None:
            return "–"
        text = f"{100 * longer:.1f}" if longer else "fastest"
        return text + " *" * bool(longer and fields["equal_to_best"])

    return [
        Column("solver"),
        Column("fits", value=fits),
        Column(
            "memory", f"memory, {unit} of {size}", value=memory, right=True
        ),
        Column(
            "step", f"step time, {scale.unit} (90 %)", value=step, right=True
        ),
        Column("slower", "slower, %", value=slower, right=True),
        Column("proof", value=_proof, style=_style, min_width=14),
        Column("wall_s", "search, s", _seconds, right=True),
    ]


#: Headings of the first screen, without units; entries of the glossary.
HEADINGS = (
    *("solver", "fits", "memory", "step time", "slower"),
    *("proof", "search"),
)


def _proof(fields: Fields) -> str:
    """Return what is proven, or why there is no answer."""
    status, gap = fields["status"], fields["gap"]
    if fields["outcome"] == "solved":
        if status == "optimal":
            error = f"{gap or 0:.0e}".replace("e-0", "e-")
            return f"optimal ±{error}" if gap else "optimal"
        if status == "feasible":
            return "none" if gap is None else f"within {percent(gap)} %"
    return status_of(fields["outcome"], status)


def _style(text: str) -> str:
    return "bold red" if text.isupper() else ""


def compare_table(
    problem: Problem, results: Sequence[SolveResult]
) -> RenderableType:
    """Return all figures of a comparison, for ``--verbose``."""
    answers = answer_fields(problem, results)
    scale = scale_of(problem, results)
    shown = columns(Writer.TERMINAL, scale)
    if any(answer["intervals"] for answer in answers):
        shown += _interval_columns(scale)
    return terminal_table(Table.of(shown, answers))


def _interval_columns(scale: TimeScale) -> list[Column]:
    """Return the columns of what the intervals add."""

    def memory(name: str, key: str, rank: int) -> Column:
        return Column(
            key,
            name,
            _sizes,
            value=lambda answer: (answer["intervals"] or {}).get(key),
            right=True,
            rank=rank,
        )

    return [
        Column(
            "tokens_per_s",
            "tokens/s",
            _speed,
            value=lambda answer: (answer["score"] or {}).get(
                "throughput_tokens_per_s"
            ),
            right=True,
            rank=1,
        ),
        Column(
            "step_time_50_ns",
            "step 50 %",
            lambda ends: scale.interval(ends) if ends else "",
            value=lambda answer: (answer["intervals"] or {}).get(
                "step_time_50_ns"
            ),
            right=True,
            rank=2,
        ),
        memory("memory 90 %", "memory_90_bytes", 3),
        memory("memory 50 %", "memory_50_bytes", 4),
    ]


def _sizes(interval_bytes: Sequence[float] | None) -> str:
    if interval_bytes is None:
        return ""
    low, high = interval_bytes
    return format_sizes(low, high, 1)


def _speed(tokens_per_s: float | None) -> str:
    if tokens_per_s is None:
        return ""
    return f"{tokens_per_s:{',.0f' if tokens_per_s >= 1000 else '.4g'}}"


def compare_footer(
    problem: Problem,
    problem_hash: str,
    cells: Mapping[str, SolveOptions],
    notes: Sequence[str] = (),
) -> RenderableType:
    """Return what a reader must know to repeat the table.

    ``cells`` are the options of the solvers, by keyword.
    """
    options = next(iter(cells.values()))
    limit_s = options.time_limit_s
    workers = {name: str(each.num_workers) for name, each in cells.items()}
    if len(set(workers.values())) == 1:
        workers = {"": str(options.num_workers)}
    counts = ", ".join(f"{n} {w}".strip() for n, w in workers.items())
    lines = [
        f"problem {problem.name} · preset {problem.preset} · "
        f"hash {problem_hash[:12]}",
        f"time limit {'none' if limit_s is None else f'{limit_s:g} s'} · "
        f"workers {counts} · seed {options.seed}"
        f"{f' · gap {100 * options.gap:g} %' if options.gap else ''}"
        f"{' · plans repaired' if options.repair else ''}",
        *notes,
    ]
    return Padding(Text("\n".join(lines), style="dim"), (1, 0, 0, 0))


# CSV


def result_csv(problem: Problem, results: Iterable[SolveResult]) -> str:
    """Return a row per solver, as CSV."""
    return answers_csv(answer_fields(problem, results))


def answers_csv(answers: Iterable[Fields]) -> str:
    """Return the answers of solvers as CSV; unknown fields stay empty."""
    shown = columns(Writer.CSV, TimeScale.fitting(None))
    unknown: dict[str, Any] = dict.fromkeys(column.key for column in shown)
    return to_csv(Table.of(shown, ({**unknown, **each} for each in answers)))
