"""The table of a comparison: on terminals, on pages and in CSV files.

A new column is one entry of :func:`all_columns`, which also says which writers
show it. It shows a field of :func:`answer_fields`, or what its ``value`` makes
of several fields.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from nest.util.tables import Column, Table, Writer, to_csv
from nest.util.time_scale import TimeScale, digits

#: What the mark of the column "slower" means.
EQUAL_MEANING = "* within the prediction error: a measurement may reverse the order"

#: The fields of one answer, as in a document.
Fields = Mapping[str, Any]


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
    shown = columns(Writer.TERMINAL, problem, scale)
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


def columns(
    writer: Writer, problem: Problem | None = None, scale: TimeScale | None = None
) -> list[Column]:
    """Return the columns that a writer shows.

    Writers of texts for people need a problem and the scale of its times.
    """
    scale = scale or TimeScale.fitting(None)
    return [x for x in all_columns(problem, scale) if writer in x.writers]


def all_columns(problem: Problem | None, scale: TimeScale) -> list[Column]:
    """Return the columns of all writers, see :func:`columns`."""
    unit = of_size = ""
    if problem is not None:
        cluster = problem.cluster
        whole = format_bytes(cluster.memory_bytes() + cluster.headroom_bytes())
        size, unit = whole.split()
        of_size = f" of {size}" if len(cluster.types) == 1 else ""
    verbose = frozenset({Writer.TERMINAL} if VERBOSE.get() else ())

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

    def ends(
        key: str, name: str, form: Callable[[Any], str], min_width: int | None = None
    ) -> Column:
        return Column(
            key,
            name,
            lambda pair: form(pair) if pair else "",
            value=lambda fields: (fields["intervals"] or {}).get(key),
            writers=verbose,
            min_width=min_width,
        )

    def sizes(pair: Any) -> str:
        return format_sizes(pair[0], pair[1], 1)

    return [
        *_exact("problem"),
        Column("solver"),
        *_exact("seed", "outcome", "status", "limit"),
        _text("fits", "", fits),
        _text("memory", f"memory, {unit}{of_size}", memory, right=True),
        _text("step", f"step time, {scale.unit} (90 %)", step, right=True),
        _text("slower", "slower, %", slower, right=True),
        _text("proof", "", _proof, style=_style, min_width=13),
        *_exact("step_time_ns", "step_time_quanta", "over_best", "lower_bound_ns"),
        *_exact("lower_bound_quanta", "over_memory_bytes", "own_objective_ns"),
        Column("wall_s", "search, s", number_form(".2f"), right=True),
        *_exact("cpu_s", "peak_rss_bytes", "host", "detail"),
        ends("step_time_50_ns", "step 50 %", scale.interval),
        Column("simulated_step_time_ns", "simulated", scale, writers=verbose),
        Column("own_objective_ns", "own objective", scale, writers=verbose),
        Column("tokens_per_s", "tokens/s", value=_speed, writers=verbose),
        ends("memory_90_bytes", "memory 90 %", sizes, 8),
        ends("memory_50_bytes", "memory 50 %", sizes, 8),
    ]


def _exact(*keys: str) -> list[Column]:
    """Return columns of CSV files alone."""
    return [Column(key, writers=frozenset({Writer.CSV})) for key in keys]


def _text(
    key: str, name: str, value: Callable[[Fields], str], **settings: Any
) -> Column:
    """Return a column of texts for people, on terminals and pages."""
    writers = frozenset({Writer.TERMINAL, Writer.PAGE})
    return Column(key, name, value=value, writers=writers, **settings)


def _speed(fields: Fields) -> str:
    tokens_per_s = (fields["score"] or {}).get("throughput_tokens_per_s")
    return digits(tokens_per_s, 6) if tokens_per_s else ""


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


#: Headings of the first screen, without units; entries of the glossary.
HEADINGS = [x.heading.partition(",")[0] for x in columns(Writer.PAGE)]


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
    shown = columns(Writer.CSV)
    unknown: dict[str, Any] = dict.fromkeys(x.key for x in shown)
    return to_csv(Table.of(shown, ({**unknown, **each} for each in answers)))
