"""The table of a comparison: on terminals, on pages and in CSV files.

A new column is one line of :func:`columns`. It shows a field of
:meth:`nest.solvers.result.SolveResult.to_json`, or what its ``value`` makes of
several fields.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from nest.analysis.compare import beside_best, fastest
from nest.ir.problem import Problem
from nest.present.screen import degrees, lines, title
from nest.present.table import (
    note_text,
    number_form,
    percent,
    scale_of,
    status_of,
    terminal_table,
)
from nest.present.verbosity import VERBOSE
from nest.solvers.base import SolveOptions
from nest.solvers.result import SolveResult
from nest.uncertainty.headroom import FITS_MEANING, fullest_device
from nest.units import format_bytes, format_sizes
from nest.util.tables import Column, Table, to_csv
from nest.util.time_scale import TimeScale, digits

#: What the mark of the column "slower" means.
EQUAL_MEANING = "* within the prediction error: a measurement may reverse the order"

#: The fields of one answer, as in a document.
Fields = Mapping[str, Any]

#: Fields of an answer in a CSV file.
CSV_KEYS = (
    *("problem", "solver", "seed", "outcome", "status", "limit"),
    *("step_time_ns", "step_time_quanta", "over_best", "lower_bound_ns"),
    *("lower_bound_quanta", "over_memory_bytes", "own_objective_ns"),
    *("wall_s", "cpu_s", "peak_rss_bytes", "host", "detail"),
)


def answer_fields(
    problem: Problem, results: Iterable[SolveResult]
) -> list[dict[str, Any]]:
    """Return the fields of every answer, compared with the fastest plan."""
    results = list(results)
    steps = [r.step_quanta for r in results if r.step_quanta is not None]
    best = min(steps, default=None)
    answers = []
    for result, near in zip(results, beside_best(problem, results), strict=True):
        step, longer = result.step_quanta, None
        if step is not None and best is not None:
            more = step - best
            longer = more / best if best else math.inf if more else 0.0
        answers.append(
            {
                **result.to_json(),
                **near.to_json(),
                "plan_intervals": near.intervals,
                "fullest": result.plan
                and result.score
                and fullest_device(problem, result.plan, result.score),
                "problem": problem.name,
                "seed": result.options.seed,
                "longer_than_best": longer,
                "over_best": step / best if step is not None and best else None,
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
        below.append(EQUAL_MEANING)
    scale = scale_of(problem, results)
    for answer in answers:
        text = answer_note(answer, scale)
        if text:
            below.append(f"{answer['solver']}: {text}")
    best = fastest(results)
    if best is not None and best.plan is not None and best.score is not None:
        plan = degrees(problem, best.plan, best.score.num_micro_batches)
        below.append(f"plan of {best.solver}: {plan}")
    below += notes
    shown = screen_columns(problem, scale)
    if VERBOSE.get():
        shown += _exact_columns(scale)
    return [
        lines([title(problem)]),
        terminal_table(Table.of(shown, answers)),
        *([lines(below)] if below else []),
    ]


def answer_note(fields: Fields, scale: TimeScale) -> str:
    """Return why an answer is as it is, and a bound without a plan."""
    texts = [note_text(fields)]
    if fields["gap"] is None and fields["lower_bound_ns"]:
        texts.append(f"lower bound {scale.bound(fields['lower_bound_ns'])}")
    return "; ".join(filter(None, texts))


def screen_columns(problem: Problem, scale: TimeScale) -> list[Column]:
    """Return the columns of the first screen, and of a page."""
    cluster = problem.cluster
    whole = format_bytes(cluster.memory_bytes() + cluster.headroom_bytes())
    size, unit = whole.split()
    of_size = f" of {size}" if len(cluster.types) == 1 else ""

    def fits(fields: Fields) -> str:
        return fields["fullest"].fits if fields["fullest"] else "–"

    def memory(fields: Fields) -> str:
        full = fields["fullest"]
        if not full:
            return "–"
        text = format_bytes(full.memory_bytes).removesuffix(f" {unit}")
        if of_size:
            return text
        device = format_bytes(full.device_bytes).removesuffix(f" {unit}")
        return f"{text} of {device}"

    def step(fields: Fields) -> str:
        if not fields["score"]:
            return "–"
        step_ns, intervals = (fields["score"]["step_time_ns"], fields["plan_intervals"])
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
        Column("memory", f"memory, {unit}{of_size}", value=memory, right=True),
        Column("step", f"step time, {scale.unit} (90 %)", value=step, right=True),
        Column("slower", "slower, %", value=slower, right=True),
        Column("proof", value=_proof, style=_style, min_width=13),
        Column("wall_s", "search, s", number_form(".2f"), right=True),
    ]


#: Headings of the first screen, without units; entries of the glossary.
HEADINGS = (*("solver", "fits", "memory", "step time", "slower"), *("proof", "search"))


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


def _exact_columns(scale: TimeScale) -> list[Column]:
    """Return more columns of the screen, for ``--verbose``."""

    def memory(share: int) -> Column:
        key = f"memory_{share}_bytes"
        return Column(
            key,
            f"memory {share} %",
            lambda ends: format_sizes(ends[0], ends[1], 1) if ends else "",
            value=lambda answer: (answer["intervals"] or {}).get(key),
            min_width=8,
        )

    return [
        Column(
            "step_time_50_ns",
            "step 50 %",
            lambda ends: scale.interval(ends) if ends else "",
            value=lambda answer: (answer["intervals"] or {}).get("step_time_50_ns"),
        ),
        Column("simulated_step_time_ns", "simulated", scale),
        Column("own_objective_ns", "own objective", scale),
        Column(
            "tokens_per_s",
            "tokens/s",
            lambda speed: digits(speed, 6) if speed else "",
            value=lambda answer: (answer["score"] or {}).get("throughput_tokens_per_s"),
        ),
        memory(90),
        memory(50),
    ]


def repeat_texts(
    problem: Problem, problem_hash: str, cells: Mapping[str, SolveOptions]
) -> list[str]:
    """Return what a reader must know to repeat the table, in lines.

    ``cells`` are the options of the solvers, by keyword.
    """
    options = next(iter(cells.values()))
    limit_s = options.time_limit_s
    workers = {name: str(each.num_workers) for name, each in cells.items()}
    if len(set(workers.values())) == 1:
        workers = {"": str(options.num_workers)}
    counts = ", ".join(f"{n} {w}".strip() for n, w in workers.items())
    return [
        f"preset {problem.preset} · hash {problem_hash[:12]}",
        f"time limit {'none' if limit_s is None else f'{limit_s:g} s'} · "
        f"workers {counts} · seed {options.seed}"
        f"{f' · gap {100 * options.gap:g} %' if options.gap else ''}"
        f"{' · plans repaired' if options.repair else ''}",
    ]


# CSV


def result_csv(problem: Problem, results: Iterable[SolveResult]) -> str:
    """Return a row per solver, as CSV."""
    return answers_csv(answer_fields(problem, results))


def answers_csv(answers: Iterable[Fields]) -> str:
    """Return the answers of solvers as CSV; unknown fields stay empty."""
    shown = [Column(key) for key in CSV_KEYS]
    unknown: dict[str, Any] = dict.fromkeys(CSV_KEYS)
    return to_csv(Table.of(shown, ({**unknown, **each} for each in answers)))
