"""The device ranges of a plan's stages, with equal stages as one range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem

#: So many equal stages in a row are shown as one.
_FOLDED = 3


@dataclass(frozen=True)
class StageRange:
    """Stages that follow each other and do the same, or a single one.

    They are numbered from 1. ``terms`` is what the score says of each; ``devices`` are
    first device and end in the first replica.
    """

    first: int
    last: int
    stages: tuple[Stage, ...]
    terms: tuple[Mapping[str, Any], ...]
    devices: tuple[int, int]

    @property
    def each(self) -> str:
        """The suffix of a number that holds for each of several stages."""
        return " each" if len(self.stages) > 1 else ""


def runs(
    problem: Problem, plan: Plan, terms: Sequence[Mapping[str, Any]], fold: bool = True
) -> list[StageRange]:
    """Return the stages of a plan, three or more equal ones in a row as one.

    Stages are equal if they have layers of the same kinds, as many devices and the same
    strategies, and they sit side by side. Their times may differ with what they
    receive, their memory with what is in flight. ``terms`` is what the score says of
    each stage.
    """
    ranges = _device_ranges(plan)
    kinds = {layer.id: layer.kind for layer in problem.graph.layers}

    def work_of(index: int) -> tuple[Any, ...]:
        stage = plan.stages[index]
        layers = sorted(
            (kinds[name], strategy)
            for name, strategy in zip(stage.layers, stage.layer_strategies, strict=True)
        )
        return stage.devices, layers

    groups: list[list[int]] = []
    for index in range(len(plan.stages)):
        before = groups[-1][-1] if groups else None
        if (
            before is not None
            and work_of(before) == work_of(index)
            and ranges[before][1] == ranges[index][0]
        ):
            groups[-1].append(index)
        else:
            groups.append([index])
    shown = [
        numbers
        for group in groups
        for numbers in (
            [group] if fold and len(group) >= _FOLDED else [[index] for index in group]
        )
    ]
    return [
        StageRange(
            numbers[0] + 1,
            numbers[-1] + 1,
            tuple(plan.stages[index] for index in numbers),
            tuple(terms[index] for index in numbers),
            (ranges[numbers[0]][0], ranges[numbers[-1]][1]),
        )
        for numbers in shown
    ]


def _device_ranges(plan: Plan) -> list[tuple[int, int]]:
    """Return first device and end of every stage in the first replica.

    Stages, or blocks of interleaved ones, sit side by side from device 0.
    """
    blocks = plan.stages[: plan.num_blocks]
    ends = list(accumulate(stage.devices for stage in blocks))
    return [
        (ends[block] - plan.stages[block].devices, ends[block])
        for block in map(plan.block_of, range(len(plan.stages)))
    ]


def numbers_text(run: StageRange) -> str:
    """Return the numbers of the stages: ``3`` or ``3–6``."""
    return f"{run.first}–{run.last}" if run.each else f"{run.first}"


def devices_text(run: StageRange) -> str:
    """Return how many devices each stage has, and which: ``8 (16–23)``."""
    first, end = run.devices
    which = f"{first}" if end == first + 1 else f"{first}–{end - 1}"
    return f"{run.stages[0].devices}{run.each} ({which})"


def layers_text(run: StageRange) -> str:
    """Return the layers of a stage, or of all stages of a run."""
    first, last = run.stages[0].layers[0], run.stages[-1].layers[-1]
    count = len(run.stages[0].layers)
    if len(run.stages) > 1:
        return f"{count} each ({first} – {last})"
    if count == 1:
        return f"{first}"
    return f"{first} – {last} ({count})"


def strategies_text(strategies: Sequence[Strategy]) -> str:
    """Return the strategies of a stage, two of them at most."""
    distinct = list(dict.fromkeys(strategies))
    if len(distinct) <= 2:
        return " | ".join(str(strategy) for strategy in distinct)
    return f"{distinct[0]} | {len(distinct) - 1} others"


def rank_text(plan: Plan) -> str:
    """Return the samples of a micro-batch that one rank sees.

    A stage splits its micro-batch over ``dp`` ranks.
    """
    sizes = sorted(
        {
            plan.micro_batch // strategy.dp
            for stage in plan.stages
            for strategy in stage.layer_strategies
        }
    )
    return f"{' or '.join(map(str, sizes))} per data-parallel rank"
