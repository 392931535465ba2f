"""Tables for people: on a terminal, in a pipe, and without Unicode."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import IO, Any

from rich.console import (
    Console,
    ConsoleOptions,
    Group,
    RenderableType,
    RenderResult,
)
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from nest.analysis.compare import Beside, beside_best
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.present.fitted import Column, FittedTable, KeyLines
from nest.present.stages import (
    devices_text,
    layers_text,
    nodes_text,
    rank_text,
    runs,
    strategies_text,
)
from nest.present.verbosity import VERBOSE
from nest.solvers.base import Limit, SolveOptions, Status
from nest.solvers.result import Outcome, SolveResult
from nest.uncertainty.headroom import tightness
from nest.uncertainty.intervals import (
    NOT_CALIBRATED,
    Interval,
    Intervals,
    intervals_of,
)
from nest.units import format_bytes, format_sizes
from nest.util.terminal import PIPE_COLUMNS, columns_of, said_columns
from nest.util.text import printable
from nest.util.time_scale import TimeScale

_RULE_WIDTH = 100
_USUAL_HEIGHT = 25
#: Cells that the last column of a table may be wrapped to.
_LEAST_NOTE = 20

_ASCII = str.maketrans(
    {
        "µ": "u",
        "·": ",",
        "×": "x",
        "–": "-",
        "…": ".",
        "─": "-",
        "━": "-",
        "τ": "tau",
    }
)

_LIMITS = {
    Limit.TIME: "time limit",
    Limit.MEMORY: "memory limit",
    Limit.SIZE: "size limit",
    Limit.INTERRUPT: "interrupted",
}

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


def show(file: IO[str], *parts: RenderableType) -> None:
    """Print to a terminal, or plainly to anything else.

    What is too wide for a terminal, or for COLUMNS, is made to fit
    (:mod:`nest.present.fitted`), but for texts that may not be broken
    (``no_wrap``). With ``NO_COLOR`` in the environment nothing is coloured,
    bold or dim.
    """
    is_terminal = file.isatty()
    buffer = io.StringIO()
    plain = bool(os.environ.get("NO_COLOR"))
    console = Console(
        file=buffer,
        force_terminal=is_terminal,
        color_system=None if plain else "auto",
        width=(
            columns_of(file) if is_terminal else said_columns() or PIPE_COLUMNS
        ),
        # Without it rich reads COLUMNS and LINES, whatever is in them.
        height=_USUAL_HEIGHT,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        # No text is markup.
        item = Text(part) if isinstance(part, str) else part
        verbatim = isinstance(item, Text) and bool(item.no_wrap)
        console.print(_Printable(item), soft_wrap=verbatim, crop=False)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    if not is_terminal:
        # A long note must not draw a long rule; headers are above it.
        lines = [
            line if line.strip(" ─") else line[: max(_RULE_WIDTH, len(before))]
            for before, line in pairwise(["", *lines])
        ]
    text = "".join(f"{line}\n" for line in lines)
    encoding = getattr(file, "encoding", None) or "utf-8"
    if not encoding.lower().replace("-", "").startswith("utf"):
        text = text.translate(_ASCII)
        text = text.encode(encoding, "replace").decode(encoding)
    file.write(text)
    file.flush()


class _Printable:
    """What is shown, without control characters of the names in it."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        for text, style, control in console.render(self._part, options):
            yield Segment(printable(text), style, control)


def compare_table(
    problem: Problem, results: Sequence[SolveResult]
) -> RenderableType:
    """Return the table of a comparison, one row per solver.

    Where errors are known, a second one has the other intervals.
    """
    costs = [r.step_quanta for r in results if r.step_quanta is not None]
    best = min(costs, default=None)
    scale = _scale(problem, results)
    simulated = any(r.simulated_step_time_ns is not None for r in results)
    beside = beside_best(problem, results)
    known = any(b.intervals for b in beside)
    own = any(r.own_objective_ns is not None for r in results)
    columns = [
        Column("solver"),
        Column("status", least=8),
        Column("step time", right=True),
        *([Column("simulated", rank=7, right=True)] if simulated else []),
        *([Column("90 %", rank=4, right=True)] if known else []),
        Column("vs best %", rank=1, least=8, right=True),
        Column("gap %", rank=3, right=True),
        *([Column("own objective", rank=6, right=True)] if own else []),
        Column("wall s", rank=5, right=True),
        Column("note", rank=2, least=16),
    ]
    rows: list[tuple[str | Text, ...]] = [
        (
            result.solver,
            Text(status, style=_STYLES.get(status, "bold red")),
            _step_time(result, scale),
            *([scale(result.simulated_step_time_ns)] if simulated else []),
            *([_interval(result, near, scale)] if known else []),
            _versus(result.step_quanta, best, near.equal),
            percent(result.gap),
            *([scale(result.own_objective_ns)] if own else []),
            f"{result.wall_s:.2f}",
            "; ".join(filter(None, (note(result), _bound(result, scale)))),
        )
        for result, near in zip(results, beside, strict=True)
        for status in (status_text(result),)
    ]
    table = simple_table(columns, rows)
    if not known:
        return table
    return Group(table, "", _interval_table(results, beside, scale))


def _interval_table(
    results: Sequence[SolveResult], beside: Sequence[Beside], scale: TimeScale
) -> RenderableType:
    """Return the figures that the table of a comparison leaves out."""
    speeds = [_tokens_per_s(result) for result in results]
    has_tokens = any(speeds)
    return simple_table(
        (
            Column("solver"),
            *([Column("tokens/s", rank=1, right=True)] if has_tokens else []),
            Column("step 50 %", rank=2, right=True),
            Column("memory", right=True),
            Column("90 %", rank=3, right=True),
            Column("50 %", rank=4, right=True),
        ),
        [
            (
                result.solver,
                *([speed] if has_tokens else []),
                scale.interval(near.intervals.step_50_ns),
                format_bytes(max(b.memory_bytes for b in result.score.blocks)),
                _memory(near.intervals.memory_90_bytes),
                _memory(near.intervals.memory_50_bytes),
            )
            for result, near, speed in zip(
                results, beside, speeds, strict=True
            )
            if near.intervals is not None and result.score is not None
        ],
    )


def _tokens_per_s(result: SolveResult) -> str:
    """Return the throughput of a plan, empty where it is unknown."""
    if result.score is None:
        return ""
    tokens = result.score.to_json()["throughput_tokens_per_s"]
    if tokens is None:
        return ""
    return f"{tokens:,.0f}" if tokens >= 1000 else f"{tokens:.4g}"


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
    workers = {name: str(own.num_workers) for name, own in cells.items()}
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


def solve_block(problem: Problem, result: SolveResult) -> list[RenderableType]:
    """Return the answer of one solver: a few lines, and its stages."""
    scale = _scale(problem, [result])
    limit = note(result)
    rows = [
        ("problem", f"{problem.name} (preset {problem.preset})"),
        ("solver", _join(result.solver, result.version)),
        ("status", status_text(result) + (f" ({limit})" if limit else "")),
    ]
    parts: list[RenderableType] = []
    if result.score is not None and result.plan is not None:
        document = result.score.to_json()
        known = intervals_of(problem, result.plan, result.score)
        rows += _score_rows(problem, result.plan, document, scale, known)
        parts = [stage_table(problem, result.plan, document)]
    if result.own_objective_ns is not None:
        rows.append(("own objective", scale(result.own_objective_ns)))
    if result.lower_bound_ns is not None:
        rows.append(("lower bound", scale.bound(result.lower_bound_ns)))
    if result.gap is not None:
        rows.append(("gap", f"{percent(result.gap)} %"))
    rows.append(("wall", f"{result.wall_s:.2f} s"))
    if result.cpu_s is not None and result.peak_rss_bytes is not None:
        peak = format_bytes(result.peak_rss_bytes)
        rows.append(("used", f"{result.cpu_s:.2f} s of CPU, {peak}"))
    return [key_lines(rows), *(Padding(part, (1, 0, 0, 0)) for part in parts)]


def score_block(
    problem: Problem,
    plan: Plan,
    document: dict[str, Any],
    known: Intervals | None = None,
) -> list[RenderableType]:
    """Return the score of a plan: its step time, violations and stages.

    ``known`` are its intervals.
    """
    scale = TimeScale.fitting(document["step_time_ns"], problem.time_unit)
    rows = [
        ("problem", f"{problem.name} (preset {problem.preset})"),
        ("feasible", "yes" if document["feasible"] else "no"),
        *(("violation", text) for text in document["violations"]),
        *_score_rows(problem, plan, document, scale, known),
    ]
    stages = stage_table(problem, plan, document)
    return [key_lines(rows), Padding(stages, (1, 0, 0, 0))]


def stage_table(
    problem: Problem, plan: Plan, document: dict[str, Any]
) -> RenderableType:
    """Return the stages of a plan: where they sit, their times and memory.

    ``document`` is the JSON of the plan's score. Equal stages in a row are
    one line (:func:`nest.present.stages.runs`), unless all is to be shown.
    """
    stages = document["stages"]
    scale = TimeScale.fitting(
        max(s["forward_ns"] + s["backward_ns"] for s in stages),
        problem.time_unit,
    )
    return simple_table(
        (
            Column("stage", right=True),
            Column("layers", rank=3, least=14),
            Column("devices", rank=1, right=True),
            Column("nodes", rank=2, least=10, right=True),
            Column("strategy", least=18),
            Column("forward", rank=5, right=True),
            Column("backward", rank=4, right=True),
            Column("sync", rank=6, right=True),
            Column("memory", least=10, right=True),
        ),
        [
            (
                f"{run.first}–{run.last}" if run.each else f"{run.first}",
                layers_text(run),
                devices_text(run),
                nodes_text(problem, run.devices),
                strategies_text(run.stages[0].layer_strategies),
                *(
                    scale.range([terms[key] for terms in run.terms])
                    for key in ("forward_ns", "backward_ns", "sync_ns")
                ),
                format_sizes(
                    min(terms["memory_bytes"] for terms in run.terms),
                    max(terms["memory_bytes"] for terms in run.terms),
                ),
            )
            for run in runs(problem, plan, stages, fold=not VERBOSE.get())
        ],
    )


def simple_table(
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[str | Text]],
    right: Iterable[int] = (),
) -> FittedTable:
    """Return a table of texts.

    Columns of which only the headers are given are left out from the right,
    the first one never, and the last one may wrap. ``right`` are those whose
    texts end in one line, besides those that say so.
    """
    right = set(right)
    last = len(columns) - 1
    known = [
        item
        if isinstance(item, Column)
        else Column(item, rank=n, least=_LEAST_NOTE if n == last else None)
        for n, item in enumerate(columns)
    ]
    return FittedTable(
        [
            item._replace(right=item.right or n in right)
            for n, item in enumerate(known)
        ],
        # No text is markup.
        [[Text(c) if isinstance(c, str) else c for c in row] for row in rows],
    )


def key_lines(rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Return labelled lines, the texts one below the other."""
    return KeyLines(rows)


def plan_text(plan: Plan) -> str:
    """Return a plan in short: replicas, micro-batch, stages, strategies."""
    return plan.text


def status_text(result: SolveResult) -> str:
    """Return the word for the status column; failures are in capitals."""
    if result.outcome.failed:
        return str(result.outcome).replace("-", " ").upper()
    if result.outcome is not Outcome.SOLVED:
        return str(result.outcome).replace("-", " ")
    return str(result.status).replace("-", " ")


def note(result: SolveResult) -> str:
    """Return the limit and the detail, on one line."""
    parts = []
    if result.limit is not None and result.outcome is not Outcome.INTERRUPTED:
        parts.append(_LIMITS[result.limit])
    if result.detail:
        parts.append(" ".join(result.detail.split()))
    return ": ".join(parts)


def percent(fraction: Fraction | None) -> str:
    """Return a fraction in per cent; only an exact zero is shown as 0."""
    if fraction is None:
        return ""
    if fraction == 0:
        return "0"
    value = float(100 * fraction)
    return f"{value:.2f}" if value >= 0.005 else "<0.01"


def _step_time(result: SolveResult, scale: TimeScale) -> str:
    """Return the step time, in parentheses if the plan does not fit."""
    if result.status is Status.OVER_MEMORY and result.score is not None:
        return f"({scale(result.score.step_time_ns)})"
    return scale(result.step_time_ns)


def _bound(result: SolveResult, scale: TimeScale) -> str:
    """Return what is proven of all plans where no gap says it."""
    if result.gap is not None or not result.lower_bound_ns:
        return ""
    return f"lower bound {scale.bound(result.lower_bound_ns)}"


def _interval(result: SolveResult, near: Beside, scale: TimeScale) -> str:
    """Return the interval of a plan that fits."""
    if near.intervals is None or result.step_quanta is None:
        return ""
    return scale.interval(near.intervals.step_90_ns)


def _versus(cost: int | None, best: int | None, equal: bool | None) -> str:
    if cost is None or best is None:
        return ""
    if cost == best:
        return "best"
    more = f"+{percent(Fraction(cost - best, best))}" if best else "+inf"
    return f"{more} (equal)" if equal else more


def _scale(problem: Problem, results: Sequence[SolveResult]) -> TimeScale:
    times = [
        time_ns
        for result in results
        for time_ns in (result.step_time_ns, result.lower_bound_ns)
        if time_ns
    ]
    # Plans that do not fit set the unit only where there is nothing else.
    times = times or [
        result.score.step_time_ns
        for result in results
        if result.score is not None and result.score.step_time_ns
    ]
    return TimeScale.fitting(min(times, default=None), problem.time_unit)


def _score_rows(
    problem: Problem,
    plan: Plan,
    document: dict[str, Any],
    scale: TimeScale,
    known: Intervals | None,
) -> list[tuple[str, str]]:
    rows = [("step time", scale(document["step_time_ns"]))]
    if known is not None:
        rows += step_rows(known, scale)
    elif NOT_CALIBRATED in problem.source:
        rows.append(("rests on", _costs(problem)))
    if document["simulated_step_time_ns"] is not None:
        rows.append(("simulated", scale(document["simulated_step_time_ns"])))
    speed = throughput(problem, document)
    if speed:
        rows.append(("throughput", speed))
    if document.get("mfu") is not None:
        rows.append(("MFU", f"{100 * document['mfu']:.1f} %"))
    used = plan.replicas * plan.devices_used
    rows.append(
        (
            "plan",
            f"{count(plan.replicas, 'replica')} × "
            f"{count(len(plan.stages), 'stage')}, "
            f"micro-batch {plan.micro_batch} ({rank_text(plan)}), "
            f"{count(document['num_micro_batches'], 'micro-batch')} "
            f"per replica, {used} of {problem.cluster.num_devices} devices",
        )
    )
    if plan.replicas > 1:
        apart = problem.cluster.num_devices // plan.replicas
        rows.append(
            (
                "",
                f"devices below are those of the first replica; each begins "
                f"{count(apart, 'device')} after the one before",
            )
        )
    left = document["memory_left_bytes"]
    rows.append(
        ("memory left", f"{format_bytes(left)} on the fullest device")
        if left >= 0
        else ("memory left", f"none, {format_bytes(-left)} too much")
    )
    blocks = document.get("blocks", document["stages"])
    needed = max(block["memory_bytes"] for block in blocks)
    if known is not None:
        rows.append(
            ("", f"needs {format_bytes(needed)}, {memory_text(known)}")
        )
    warning = tightness(problem, left, needed)
    return [*rows, ("", warning)] if warning else rows


def _costs(problem: Problem) -> str:
    """Return what a problem says of costs that nothing measured is behind."""
    _, _, costs = problem.source.partition("costs: ")
    return costs or problem.source


def step_rows(known: Intervals, scale: TimeScale) -> list[tuple[str, str]]:
    """Return labelled lines: within what the step time is, and why."""
    return [
        (
            "",
            f"90 %: {scale.interval(known.step_90_ns)}; "
            f"50 %: {scale.interval(known.step_50_ns)}",
        ),
        ("rests on", "; ".join(known.rests_on)),
    ]


def memory_text(known: Intervals) -> str:
    """Return within what the memory of the fullest device is."""
    return "; ".join(
        f"{part} %: {_memory(interval)}"
        for part, interval in (
            (90, known.memory_90_bytes),
            (50, known.memory_50_bytes),
        )
    )


def _memory(interval: Interval) -> str:
    return format_sizes(interval.low, interval.high, 1)


def throughput(problem: Problem, document: dict[str, Any]) -> str:
    """Return samples and tokens per time; empty where they are unknown."""
    samples = document["throughput_samples_per_s"]
    if samples is None:
        return ""
    unit = problem.time_unit
    text = f"{samples:.6g} samples/{unit}"
    tokens = document["throughput_tokens_per_s"]
    if tokens is None:
        return text
    each = document["throughput_tokens_per_s_per_device"]
    return f"{text}, {tokens:.6g} tokens/{unit}, {each:.6g} per device"


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


def _join(name: str, version: str | None) -> str:
    return f"{name} ({version})" if version else name
