"""One screen for who launches a plan: its figures, and what starts it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.present.table import (
    count,
    key_lines,
    memory_text,
    note,
    percent,
    status_text,
    step_rows,
    throughput,
)
from nest.solvers.base import Status
from nest.solvers.result import SolveResult
from nest.uncertainty.headroom import tightness
from nest.uncertainty.intervals import intervals_of
from nest.units import format_bytes
from nest.util.time_scale import TimeScale

#: Columns of a terminal that nothing here exceeds, but what cannot be broken.
WIDTH = 79
_LABEL = 14


def launch_screen(
    problem: Problem,
    result: SolveResult,
    texts: Sequence[str],
    under: str = "",
    more: Iterable[tuple[str, str]] = (),
) -> list[RenderableType]:
    """Return the screen of a plan.

    Parameters
    ----------
    problem, result
        The problem, and an answer with a plan that fits.
    texts
        What starts it, as :func:`launch_texts` gives it.
    under
        What restricts plans, such as ``--target megatron``.
    more
        Further rows, label and text.
    """
    plan, score = result.plan, result.score
    assert plan is not None
    assert score is not None
    document = score.to_json()
    scale = TimeScale.fitting(score.step_time_ns, problem.time_unit)
    simulated = score.simulated_step_time_ns
    intervals = intervals_of(problem, plan, score)
    rows = [
        ("problem", f"{problem.name} (preset {problem.preset})"),
        (
            "solver",
            f"{result.solver}, {result.wall_s:.2f} s; "
            + _proven(result, under),
        ),
        (
            "step time",
            scale(score.step_time_ns)
            + (f", simulated {scale(simulated)}" if simulated else ""),
        ),
    ]
    if intervals is not None:
        rows += step_rows(intervals, scale)
    speed = throughput(problem, document)
    if speed:
        rows.append(("throughput", speed))
    if score.mfu is not None:
        rows.append(("MFU", _mfu(problem, score.mfu)))
    rows += [
        ("plan", _plan_text(problem, plan)),
        ("batch", _batch_text(problem, plan, score.num_micro_batches)),
        (
            "memory",
            _memory_text([b.memory_bytes for b in score.blocks])
            + f", {format_bytes(score.memory_left_bytes)} left on the fullest",
        ),
    ]
    needed = max(block.memory_bytes for block in score.blocks)
    if intervals is not None:
        rows.append(("", memory_text(intervals)))
    warning = tightness(problem, score.memory_left_bytes, needed)
    if warning:
        rows.append(("", warning))
    rows += more
    wrapped = [
        (label if index == 0 else "", line)
        for label, text in rows
        for index, line in enumerate(textwrap.wrap(text, WIDTH - _LABEL))
    ]
    return [
        key_lines(wrapped),
        *(Text(f"\n{text}", no_wrap=True) for text in texts),
    ]


def launch_texts(files: Mapping[str, str]) -> list[str]:
    """Return what starts a plan, for one screen.

    Of the files of :func:`nest.frameworks.export.export` those that hold
    arguments, several of them to a line, and then how to start it as
    comments.
    """
    scripts = [
        _packed(text)
        for name, text in files.items()
        if name not in ("README", "hostfile", "rank_map.json")
    ]
    _, *how = files["README"].splitlines()
    comments = [
        line
        for text in how
        for line in textwrap.wrap(
            text, WIDTH, initial_indent="# ", subsequent_indent="# "
        )
    ]
    return [*scripts[:-1], "\n".join((scripts[-1], *comments))]


def _packed(text: str) -> str:
    """Return a text with the members of a bash array side by side."""
    lines: list[str] = []
    inside = False
    for line in text.rstrip("\n").splitlines():
        inside = inside and line != ")"
        if (
            inside
            and lines[-1].startswith("  -")
            and len(lines[-1]) + len(line.strip()) < WIDTH
        ):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        inside = inside or line == "ARGS=("
    return "\n".join(lines)


def _proven(result: SolveResult, under: str) -> str:
    """Return what is proven of the plan."""
    among = f" under {under}" if under else ""
    if result.status is Status.OPTIMAL:
        return f"optimal: no plan{among} is faster"
    because = f" ({note(result)})" if result.limit is not None else ""
    if result.gap is not None:
        return (
            f"within {percent(result.gap)} % of the best plan{among}{because}"
        )
    return f"nothing proven, {status_text(result)}{among}{because}"


def _mfu(problem: Problem, mfu: float) -> str:
    dtype, cluster = problem.job.dtype, problem.cluster
    peak = cluster.peak_flops(dtype)
    assert peak is not None
    each = peak / cluster.num_devices / 1e12
    return f"{100 * mfu:.1f} % of {each:g} TFLOP/s per device ({dtype})"


def _plan_text(problem: Problem, plan: Plan) -> str:
    strategies = dict.fromkeys(
        str(strategy)
        for stage in plan.stages
        for strategy in stage.layer_strategies
    )
    name, *others = strategies
    used, available = (
        plan.replicas * plan.devices_used,
        problem.cluster.num_devices,
    )
    chunks = (
        f" in {count(plan.virtual_stages, 'chunk')}"
        if plan.virtual_stages > 1
        else ""
    )
    return (
        f"{count(plan.replicas, 'replica')} × "
        f"{count(plan.num_blocks, 'stage')}{chunks} of {name}"
        + (f" and {count(len(others), 'other')}" if others else "")
        + (f", {used} of {available} devices" if used < available else "")
    )


def _batch_text(problem: Problem, plan: Plan, num_micro_batches: int) -> str:
    job = problem.job
    length = job.sequence_length
    tokens = f" of {count(length, 'token')}" if length is not None else ""
    return (
        f"{count(job.global_batch, 'sample')}{tokens}, "
        f"{count(num_micro_batches, 'micro-batch')} of "
        f"{plan.micro_batch} per replica"
    )


def _memory_text(sizes_bytes: Sequence[int]) -> str:
    low, high = min(sizes_bytes), max(sizes_bytes)
    if low == high:
        return f"{format_bytes(high)} per device"
    return f"{format_bytes(low)} to {format_bytes(high)} per device"
