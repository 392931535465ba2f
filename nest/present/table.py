"""Tables for people: on a terminal, in a pipe, and without Unicode."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from nest.analysis.page_facts import nodes_text
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.present.fitted import FittedTable, KeyLines
from nest.present.stages import (
    StageRange,
    devices_text,
    layers_text,
    numbers_text,
    runs,
    strategies_text,
)
from nest.present.verbosity import VERBOSE
from nest.solvers.base import Limit
from nest.solvers.result import Outcome, SolveResult
from nest.units import format_bytes, format_sizes
from nest.util.tables import Column, Table, Writer
from nest.util.terminal import columns_of
from nest.util.text import printable
from nest.util.time_scale import TimeScale

_USUAL_HEIGHT = 25

_ASCII = str.maketrans(
    {"µ": "u", "·": ",", "×": "x", "–": "-", "…": ".", "─": "-", "━": "-", "τ": "tau"}
)

_FAILURES = [outcome for outcome in Outcome if outcome.failed]


def show(file: IO[str], *items: RenderableType) -> None:
    """Print to a terminal, or plainly to anything else.

    What is wider than :func:`nest.util.terminal.columns_of` says is made to fit
    (:mod:`nest.present.fitted`), but for texts that may not be broken (``no_wrap``).
    With ``NO_COLOR`` in the environment nothing is colored, bold or dim.
    """
    is_terminal = file.isatty()
    buffer = io.StringIO()
    plain = bool(os.environ.get("NO_COLOR"))
    console = Console(
        file=buffer,
        force_terminal=is_terminal,
        color_system=None if plain else "auto",
        width=columns_of(file),
        # Without it rich reads COLUMNS and LINES, whatever is in them.
        height=_USUAL_HEIGHT,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for each in items:
        # No text is markup.
        item = Text(each) if isinstance(each, str) else each
        verbatim = isinstance(item, Text) and bool(item.no_wrap)
        console.print(_Printable(item), soft_wrap=verbatim, crop=False)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    text = "".join(f"{line}\n" for line in lines)
    encoding = getattr(file, "encoding", None) or "utf-8"
    if not encoding.lower().replace("-", "").startswith("utf"):
        text = text.translate(_ASCII)
        text = text.encode(encoding, "replace").decode(encoding)
    file.write(text)
    file.flush()


class _Printable:
    """An item without the control characters of names in it."""

    def __init__(self, item: RenderableType) -> None:
        self._part = item

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        for text, style, control in console.render(self._part, options):
            yield Segment(printable(text), style, control)


def stage_table(
    problem: Problem, plan: Plan, document: dict[str, Any]
) -> RenderableType:
    """Return the stages of a plan: where they sit, their times and memory.

    ``document`` is the JSON of the plan's score. Equal stages in a row are
    one line (:func:`nest.present.stages.runs`), unless all is to be shown.
    """
    stages = document["stages"]
    scale = TimeScale.fitting(
        max(s["forward_ns"] + s["backward_ns"] for s in stages), problem.time_unit
    )
    shown = runs(problem, plan, stages, fold=not VERBOSE.get())

    def time(key: str, rank: int) -> Column:
        name = key.removesuffix("_ns")
        return Column(
            key,
            name,
            scale.range,
            value=lambda run: [terms[key] for terms in run.terms],
            right=True,
            rank=rank,
        )

    def memory(run: StageRange) -> str:
        sizes = [terms["memory_bytes"] for terms in run.terms]
        return format_sizes(min(sizes), max(sizes))

    def nodes(run: StageRange) -> str:
        return nodes_text(problem, run.devices)

    def strategy(run: StageRange) -> str:
        return strategies_text(run.stages[0].layer_strategies)

    columns = (
        Column("stage", value=numbers_text, right=True),
        Column("layers", value=layers_text, rank=3, min_width=14),
        Column("devices", value=devices_text, right=True, rank=1),
        Column("nodes", value=nodes, right=True, rank=2, min_width=10),
        Column("strategy", value=strategy, min_width=18),
        time("forward_ns", 5),
        time("backward_ns", 4),
        time("sync_ns", 6),
        Column("memory", value=memory, right=True, min_width=10),
    )
    return terminal_table(Table.of(columns, shown))


def terminal_table(table: Table) -> FittedTable:
    """Return a table for a terminal."""
    return FittedTable(table.shown_by(Writer.TERMINAL))


def key_lines(rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Return labeled lines, the texts one below the other."""
    return KeyLines(rows)


def status_text(result: SolveResult) -> str:
    """Return the status of an answer for people."""
    return status_of(result.outcome, result.status)


def status_of(outcome: str, status: str | None) -> str:
    """Return an outcome and a status as one text.

    Outcomes that are failures of the solver are in capitals. A solver that
    did not solve the problem has no status to show.
    """
    if outcome in ("solved", "scored"):
        return str(status).replace("-", " ")
    text = outcome.replace("-", " ")
    return text.upper() if outcome in _FAILURES else text


def note(result: SolveResult) -> str:
    """Return the limit and the detail of an answer, on one line."""
    return note_text(vars(result))


def note_text(fields: Mapping[str, Any]) -> str:
    """Return the limit and the detail of an answer in a document."""
    limit, detail = fields["limit"], " ".join(fields["detail"].split())
    texts = []
    if limit is not None and fields["outcome"] != Outcome.INTERRUPTED:
        is_interrupted = limit == Limit.INTERRUPT
        texts.append("interrupted" if is_interrupted else f"{limit} limit")
    if detail:
        texts.append(detail)
    elif fields["over_memory_bytes"]:
        size = format_bytes(fields["over_memory_bytes"])
        texts.append(f"{size} more than a plan may use")
    return ": ".join(texts)


def percent(share: Fraction | float | None) -> str:
    """Return a fraction in per cent; only an exact zero is shown as 0."""
    if share is None:
        return ""
    if share == 0:
        return "0"
    value = float(100 * share)
    return f"{value:.2f}" if value >= 0.005 else "<0.01"


def signed_percent(fraction: float) -> str:
    """Return how much longer or shorter, without a negative zero."""
    text = f"{100 * fraction:+.1f}"
    return f"{text.lstrip('+-') if float(text) == 0 else text} %"


def scale_of(problem: Problem, results: Sequence[SolveResult]) -> TimeScale:
    """Return the scale of the step times of some answers."""
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


def number_form(
    spec: str, factor: float = 1, unit: str = ""
) -> Callable[[float | None], str]:
    """Return what writes a number times a factor; nothing for ``None``.

    ``spec`` is a format specification, and ``unit`` follows the number.
    """
    return lambda value: "" if value is None else f"{factor * value:{spec}}{unit}"


def count(amount: int, noun: str) -> str:
    """Return a number with its noun."""
    if amount == 1:
        return f"1 {noun}"
    return f"{amount} {noun}{'es' if noun.endswith('ch') else 's'}"
