"""Whether a plan fits, for people: one screen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from rich.console import RenderableType
from rich.padding import Padding

from nest.analysis.fits import Change, Fits, StageMemory, settings_of_plan
from nest.present.screen import degrees
from nest.present.table import key_lines, signed_percent, terminal_table
from nest.uncertainty.headroom import FITS_MEANING
from nest.units import GIB
from nest.util.plots import MEMORY_LABELS
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale

#: Groups of equal stages that the table of memory shows at most.
_MAX_GROUPS = 4

#: Changes, and lines of a framework's files, that the screen shows at most.
_MAX_CHANGES, _MAX_LINES = 8, 6

_INTERVALS = {"50 % interval": "memory_50_bytes", "90 % interval": "memory_90_bytes"}


def fits_block(answer: Fits, name: str) -> list[RenderableType]:
    """Return the screen; ``name`` is what the question is about."""
    is_known = answer.intervals is not None
    assumed = [
        ("" if index else "assumed", text) for index, text in enumerate(answer.notes)
    ]
    return [
        key_lines(_summary(answer, name)),
        _memory_table(answer),
        *_change_lines(answer, name),
        *[Padding(key_lines(assumed), (1, 0, 0, 0))] * bool(assumed),
        *[Padding("\n".join(FITS_MEANING), (1, 0, 0, 0))] * is_known,
    ]


def _summary(answer: Fits, name: str) -> list[tuple[str, str]]:
    """Return what the answer is about, and the answer."""
    full, job = answer.stages[0], answer.problem.job
    length = job.sequence_length
    tokens = f" of {length:,} tokens" if length else ""
    free = full.device_bytes - full.memory_bytes
    spare = f"{_gib(abs(free))} GiB {'free' if free >= 0 else 'too much'}"
    scale = _scale(answer)
    step = scale(answer.score.step_time_ns)
    if answer.intervals is not None:
        step += f" (90 % interval {scale.interval(answer.intervals.step_90_ns)})"
    largest = sorted(full.bytes_by_kind.items(), key=lambda kind: -kind[1])[:3]
    kinds = ", ".join(
        f"{MEMORY_LABELS[kind]} {_gib(size)} GiB"
        + f" of {_in_flight(answer)}" * (kind == "kept_bytes")
        for kind, size in largest
    )
    devices = f"{answer.problem.cluster.num_devices} devices"
    batch = f"batch of {job.global_batch:,} samples{tokens}"
    used = f"{_gib(full.memory_bytes)} of {_gib(full.device_bytes)} GiB"
    rank = f"on the fullest rank (stage {full.stage}), {spare}"
    return [
        ("problem", f"{name}: {devices}, {batch}"),
        ("fits", f"{answer.fits}: {used} {rank}"),
        *_smallest_row(answer, name),
        ("why", f"that rank holds {kinds}"),
        ("step time", step),
        ("plan", _plan_text(answer)),
    ]


def _smallest_row(answer: Fits, name: str) -> list[tuple[str, str]]:
    """Return the smallest change that makes the plan fit, and what it is."""
    change = answer.smallest
    if change is None:
        return []
    written = _written(change)
    text = (
        f"{change.text}{f', in {name}: {written}' if written else ''}; then "
        f"{_gib(change.memory_bytes)} GiB, fits: {change.fits}, device time "
        f"{signed_percent(change.cost)}"
    )
    return [("smallest change", text)]


def _in_flight(answer: Fits) -> str:
    """Return what the fullest rank keeps activations of."""
    count = answer.score.blocks[answer.stages[0].stage - 1].inflight
    is_interleaved = answer.plan.virtual_stages > 1
    what = "chunk pass" if is_interleaved else "in-flight microbatch"
    return f"{count} {what}{'es' * (count != 1)}"


def _plan_text(answer: Fits) -> str:
    """Return the degrees of the plan, and the switches that are on."""
    problem, plan = answer.problem, answer.plan
    settings = settings_of_plan(problem, plan)
    switches = [name for name, value in settings.items() if value == "on"]
    shown = degrees(problem, plan, answer.score.num_micro_batches)
    return " · ".join([shown, *switches])


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.1f}"


def _memory_table(answer: Fits) -> RenderableType:
    """Return the memory by kind, a column per group of equal stages."""

    def content(stage: StageMemory) -> tuple[int, ...]:
        return (*stage.bytes_by_kind.values(), stage.device_bytes)

    groups = [
        sorted(group, key=lambda stage: stage.stage)
        for _, group in groupby(answer.stages, content)
    ]
    shown = groups[:_MAX_GROUPS]
    others = [stage for group in groups[_MAX_GROUPS:] for stage in group]
    columns = [Column("GiB per rank")]
    columns += [Column(_heading(group), right=True) for group in shown]
    first = [group[0] for group in shown]
    if others:
        columns.append(Column(f"{len(others)} others, at most", right=True))
        first.append(others[0])
    kinds = [x for x in MEMORY_LABELS if any(s.bytes_by_kind[x] for s in first)]
    rows = [
        ("ranks", *map(_ranks_text, shown), *[""] * bool(others)),
        ("fits", *(stage.fits for stage in first)),
    ]
    for kind in kinds:
        sizes = (_gib(stage.bytes_by_kind[kind]) for stage in first)
        rows.append((MEMORY_LABELS[kind], *sizes))
    rows.append(("predicted", *(_gib(stage.memory_bytes) for stage in first)))
    for label, name in _INTERVALS.items() if answer.intervals else ():
        ends = (getattr(stage, name) for stage in first)
        rows.append((label, *("–".join(map(_gib, x)) for x in ends)))
    rows.append(("device", *(_gib(stage.device_bytes) for stage in first)))
    return terminal_table(Table(tuple(columns), rows))


def _heading(stages: Sequence[StageMemory]) -> str:
    numbers = [stage.stage for stage in stages]
    if len(numbers) == 1:
        return f"stage {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"stages {numbers[0]}–{numbers[-1]}"
    return f"stages {numbers[0]}, {numbers[1]}" + ", …" * (len(numbers) > 2)


def _ranks_text(stages: Sequence[StageMemory]) -> str:
    """Return the ranks of stages: those of the first replica, and a sign."""
    ranges = [stage.ranks[0] for stage in stages]
    first, end = ranges[0][0], ranges[-1][1]
    is_joined = end - first == sum(b - a for a, b in ranges)
    if not is_joined:
        first, end = ranges[0]
    text = f"{first}" if end == first + 1 else f"{first}–{end - 1}"
    is_all = is_joined and len(stages[0].ranks) == 1
    return text if is_all else f"{text}, …"


def _change_lines(answer: Fits, name: str) -> list[RenderableType]:
    """Return what would make the plan fit, or make it cheaper."""
    is_fine = answer.fits in ("yes", "likely")
    changes = answer.changes[:_MAX_CHANGES]
    if not changes:
        if is_fine:
            return []
        text = "no change of one or two settings makes it fit"
        return [Padding(text, (1, 0, 0, 0)), *answer.remedies]
    title = "what would make it fit, the cheapest change first"
    if is_fine:
        title = "cheaper changes of one setting that still fit"
    elif all(len(change.names) > 1 for change in changes):
        title += " (no single one does)"
    if "devices" in changes[-1].names:
        title += "; more devices last"
    scale, written = _scale(answer), _written(changes[0])
    columns = (
        Column("text", "change", min_width=24),
        Column("step_time_ns", "step time", scale, right=True),
        Column("cost", "device time", signed_percent, right=True),
        Column("memory_bytes", "memory, GiB", _gib, right=True),
        Column("fits"),
    )
    return [
        Padding(title, (1, 0, 0, 0)),
        terminal_table(Table.of(columns, changes)),
        *[key_lines([(f"in {name}", written)])] * bool(is_fine and written),
        "device time: step time × devices, against that of the plan",
    ]


def _scale(answer: Fits) -> TimeScale:
    """Return the scale of all times of the screen, with four digits."""
    step_ns = answer.score.step_time_ns
    scale = TimeScale.fitting(step_ns, answer.problem.time_unit)
    return replace(scale, decimals=max(0, scale.decimals - 2))


def _written(change: Change) -> str:
    """Return what a change is in the words of the framework, if known."""
    if not 0 < len(change.added) + len(change.removed) <= _MAX_LINES:
        return ""
    texts, removed = [], {_name_of(line): line for line in change.removed}
    for line in change.added:
        before = removed.pop(_name_of(line), "")
        added = f"{line} instead of {before}" if before else f"add {line}"
        texts.append(added)
    return "; ".join([*texts, *(f"remove {x}" for x in removed.values())])


def _name_of(line: str) -> str:
    """Return the argument, key or variable that a line sets."""
    return re.split(r"[ =:]", line, maxsplit=1)[0]
