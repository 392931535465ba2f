"""Galvatron's search on plain tables: per-layer DP, pipeline, divisions.

Reference: Miao et al., *Galvatron: Efficient Transformer Training over Multiple GPUs
Using Automatic Parallelism*, PVLDB 16(3), 2022, and its code, Hetu-Galvatron at
cea12ff. What fills the tables is up to the caller: ``bench/galvatron_profiles.py``
reads the planner's own profiles, :mod:`baselines.galvatron` the shared cost model.

A *task* is one choice of everything the outer loops go through: chunks (micro-batches),
pipeline degree and the strategies on offer. Its stages are solved one by one, each for
the least time of its own layers within the memory; only the tasks are compared by the
time of the whole pipeline. So a task's answer need not be the best plan of that task.

Section numbers refer to reference/galvatron.md.

==========  ========================================================
``L, S``    layers; strategies on offer
``P``       pipeline stages
``v``       memory used, in whole units (1 MiB in Galvatron)
==========  ========================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from baselines.common import check_num_stages, ranges

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Marks = NDArray[np.unsignedinteger[Any]]

#: Budgets above this many MiB lose a share to the allocator's cache.
CACHE_ABOVE_MIB = 21 * 1024
CACHE_SHARE = 0.2

#: Biases in s that order equally good strategies of neighboring layers, by
#: whether these are (sharded as in ZeRO-3, recomputed) before and after.
BIASES_S = {
    ((False, False), (True, False)): 1e-9,
    ((False, False), (False, True)): 2e-9,
    ((True, False), (False, True)): 1e-9,
    ((False, False), (True, True)): 3e-9,
    ((True, False), (True, True)): 3e-9,
    ((False, True), (True, True)): 3e-9,
}

#: Margin by which a lower bound must exceed a time to rule a task out: far
#: above what adding floats in another order changes.
ROUNDING = 1e-9


class Other(NamedTuple):
    """One strategy for what is no layer: embedding and head.

    ``no_sync_s`` is the time per micro-batch on every stage (the gradient sync counts
    nowhere, as coded), ``memory_units`` the memory of every stage that no layer uses.
    """

    no_sync_s: tuple[float, ...]
    memory_units: tuple[int, ...]


@dataclass(frozen=True)
class Tables:
    """Everything one task knows."""

    #: Micro-batches per step, and the layers of every stage, ``[start, stop)``.
    num_chunks: int
    stages: tuple[tuple[int, int], ...]
    #: ``(L, S)``: time of a layer per micro-batch, with and without the gradient sync;
    #: infinite where a layer cannot use a strategy, but no layer can use none.
    layer_sync_s: Floats
    layer_no_sync_s: Floats
    #: ``(P, L, S)``: memory of a layer if it is on that stage.
    memory_units: Integers
    #: ``(L, S, S)``: time from the strategy of the layer before to the one of this
    #: layer. Not paid by the first layer of a stage.
    transition_s: Floats
    #: Strategies for embedding and head; for :func:`solve_coarse` one per strategy of
    #: the layers.
    others: tuple[Other, ...]


class Choice(NamedTuple):
    """What a task chose.

    ``strategies`` and ``other`` are positions: of the strategy of every layer, and of
    that of embedding and head. ``used_units`` is the memory of every stage.
    """

    time_s: float
    strategies: tuple[int, ...]
    other: int
    used_units: tuple[int, ...]


class LayerChoice(NamedTuple):
    """What the DP chose for the layers of one stage."""

    time_s: float
    strategies: tuple[int, ...]
    used_units: int


def usable_mib(budget_mib: int) -> int:
    """Return the part of a memory budget that layers may fill.

    Above 20 GiB a fifth is set aside for the allocator's cache (§4).
    """
    if budget_mib < CACHE_ABOVE_MIB:
        return budget_mib
    return budget_mib - int(budget_mib * CACHE_SHARE)


def overlapped_s(sync_s: float, backward_s: float, slowdown: float) -> float:
    """Return the time of a backward pass that hides the gradient sync.

    While both run, each is slower by the factor ``slowdown``; what is left
    of the longer one runs at full speed::

        max(sync, backward) + (slowdown - 1) min(sync, backward)

    Both branches of §5 with its two equal coefficients.
    """
    longer, shorter = max(sync_s, backward_s), min(sync_s, backward_s)
    return longer + (slowdown - 1) * shorter


def hidden_s(communication_s: float, computation_s: float, slowdown: float) -> float:
    """Return the time of computation that hides communication.

    As coded for embedding and head: communication runs at full speed,
    computation is slowed down meanwhile, ``max(x, x + (k c - x)/k)``.
    """
    slowed = computation_s * slowdown
    if slowed <= communication_s:
        return communication_s
    return communication_s + (slowed - communication_s) / slowdown


def pipeline_s(
    compute_s: Sequence[float], sync_s: Sequence[float], num_chunks: int
) -> float:
    """Return the time of a step (§5).

    ``compute_s`` has the time ``c`` of every stage per micro-batch without gradient
    sync, embedding and head included; ``sync_s`` the time ``g`` of its layers with
    gradient sync; ``num_chunks`` are the micro-batches ``m``.

    With ``w = min(P-1, m-1)`` the slower of ``Σ c + (m-1) c_P`` and
    ``max(w c_1/3, R/3) + max(2 w c_1/3, 2R/3) + c_1 max(0, m+1-P)``,
    ``R = Σ_{i>1} c_i``; plus the longest gradient sync that reaches beyond
    the passes so far, ``max(0, g_i - Σ_{j<=i} c_j)``. A slow stage in the
    middle counts once only.
    """
    first, rest = compute_s[0], math.fsum(compute_s[1:])
    num_stages = len(compute_s)
    waits = min(num_stages - 1, num_chunks - 1)
    by_last = first + rest + compute_s[-1] * (num_chunks - 1)
    by_first = (
        max(waits * first / 3, rest / 3)
        + max(waits * first * 2 / 3, rest * 2 / 3)
        + first * max(0, num_chunks + 1 - num_stages)
    )
    late = 0.0
    passed = 0.0
    for compute, sync in zip(compute_s, sync_s, strict=True):
        passed += compute
        late = max(late, sync - passed)
    return max(by_last, by_first) + late


def bias_s(before: tuple[bool, bool], after: tuple[bool, bool]) -> float:
    """Return the bias in s between strategies of equal degrees, as coded.

    It moves layers that are not sharded, then those that are not recomputed,
    behind the others. Both say whether a strategy is (sharded, recomputed).
    """
    return BIASES_S.get((before, after), 0.0)


def divide_even(num_layers: int, num_stages: int) -> list[int]:
    """Return layers per stage, what is left over on the last one.

    Raises ``ValueError`` if there are fewer layers than stages.
    """
    check_num_stages(num_layers, num_stages)
    length = num_layers // num_stages
    last = num_layers - length * (num_stages - 1)
    return [length] * (num_stages - 1) + [last]


def divide_by_memory(
    layer_memory: Sequence[float], other_memory: Sequence[float]
) -> list[int]:
    """Return layers per stage such that stages need about as much memory.

    Stages are filled one after the other until what is missing to the average is less
    than half the next layer. Then a stage that needs more than 1.3 times the average
    hands layers to the next one, and at last every stage gets a layer (§3).

    ``layer_memory`` is that of every layer, ``other_memory`` that of every stage that
    no layer uses, in the same unit. Raises ``ValueError`` if there are fewer layers
    than stages.

    The published code goes on taking layers from a stage whose embedding
    alone is above the limit; here a stage keeps one layer.
    """
    num_layers, num_stages = len(layer_memory), len(other_memory)
    check_num_stages(num_layers, num_stages)
    average = (sum(layer_memory) + sum(other_memory)) / num_stages
    counts = [0] * num_stages
    layer = 0
    for stage in range(num_stages):
        filled = other_memory[stage]
        while layer < num_layers and (
            stage == num_stages - 1 or average - filled >= 0.5 * layer_memory[layer]
        ):
            filled += layer_memory[layer]
            counts[stage] += 1
            layer += 1
    for stage in range(num_stages - 1):
        start = sum(counts[:stage])
        filled = other_memory[stage] + sum(layer_memory[start : start + counts[stage]])
        while filled > 1.3 * average and counts[stage] > 1:
            counts[stage] -= 1
            counts[stage + 1] += 1
            filled -= layer_memory[start + counts[stage]]
    for stage in range(num_stages - 1):
        while counts[stage] < 1:
            counts[stage] += 1
            counts[stage + 1] -= 1
    for stage in range(num_stages - 1, 0, -1):
        while counts[stage] < 1:
            counts[stage] += 1
            counts[stage - 1] -= 1
    return counts


def stages_of(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of layers of stages with so many layers each."""
    return tuple(ranges(np.cumsum(counts).tolist()))


def solve_layers(
    time_s: Floats,
    memory_units: Integers,
    transition_s: Floats,
    budgets_units: Sequence[int],
    stop: Callable[[], bool] = lambda: False,
) -> list[LayerChoice | None]:
    """Choose a strategy per layer for the least time within a memory budget.

    ``f_i(v, s) = min_s' f_{i-1}(v - m_i(s), s') + t_i(s', s) + c_i(s)``,
    with ``f = 0`` before the first layer, infinite where ``v < m_i(s)``
    (§4). Of equally good strategies the first one is taken.

    ``time_s`` and ``memory_units`` ``(L, S)`` are ``c`` and ``m`` of the layers of the
    stage, ``transition_s`` ``(L, S, S)`` is ``t``, of which the first layer's is not
    looked at. One table answers all memory budgets. ``stop`` is asked before every
    layer; where it holds there is no answer.

    ``f_i(v, ·)`` is the same for every ``v`` above what ``i`` layers can use,
    and the answers never look below the least budget minus what the layers
    to come can use: only the values of ``v`` between are computed.
    """
    largest = max(budgets_units, default=-1)
    if largest < 0:
        return [None] * len(budgets_units)
    usable = np.isfinite(time_s)
    max_units = np.where(usable, memory_units, 0).max(axis=1)
    min_units = np.where(usable, memory_units, largest + 1).min(axis=1)
    if min_units.sum() > largest:
        return [None] * len(budgets_units)
    smallest = min(budget for budget in budgets_units if budget >= 0)
    # what layers 0..i use at most, and i+1.. at most and at least
    so_far = np.cumsum(max_units)
    to_come_most = so_far[-1] - so_far
    to_come_least = min_units.sum() - np.cumsum(min_units)
    highs = np.minimum(largest - to_come_least, so_far)
    lows = np.clip(smallest - to_come_most, 0, np.maximum(highs, 0))

    num_layers, num_strategies = time_s.shape
    marks: list[Marks] = []
    values = np.zeros((num_strategies, 1))
    low = high = 0
    for layer in range(num_layers):
        if stop():
            return [None] * len(budgets_units)
        if layer == 0:
            arrived, mark = values, np.zeros(values.shape, np.uint8)
        else:
            arrived, mark = _arrive(values, transition_s[layer])
        marks.append(mark)
        new_low, new_high = int(lows[layer]), int(highs[layer])
        window = np.arange(new_low, new_high + 1)
        values = np.full((num_strategies, len(window)), np.inf)
        for strategy in range(num_strategies):
            if not usable[layer, strategy]:
                continue
            before = window - memory_units[layer, strategy]
            start = int(np.searchsorted(before, 0))
            index = np.clip(before[start:], low, high) - low
            values[strategy, start:] = (
                arrived[strategy, index] + time_s[layer, strategy]
            )
        low, high = new_low, new_high
    return [
        _trace(budget, values, marks, memory_units, lows, highs)
        for budget in budgets_units
    ]


def _arrive(values: Floats, transition_s: Floats) -> tuple[Floats, Marks]:
    """Return the best way to a strategy, and which it comes from.

    ``values`` ``(S, W)`` are times so far, for ``W`` amounts of memory,
    ``transition_s`` ``(S, S)`` those from the strategy before to the next.
    """
    num_strategies = len(values)
    best = values[0] + transition_s[0, :, None]
    mark = np.zeros(best.shape, np.min_scalar_type(num_strategies))
    # one row at a time stays in the cache; masked copies would be slower
    sums = np.empty(values.shape[1])
    for strategy in range(num_strategies):
        row, row_mark = best[strategy], mark[strategy]
        for before in range(1, num_strategies):
            np.add(values[before], transition_s[before, strategy], out=sums)
            better = (sums < row).astype(mark.dtype)
            np.minimum(row, sums, out=row)
            # positions ascend, so the latest improvement is the largest
            better *= mark.dtype.type(before)
            np.maximum(row_mark, better, out=row_mark)
    return best, mark


def _trace(
    budget: int,
    values: Floats,
    marks: Sequence[Marks],
    memory_units: Integers,
    lows: Integers,
    highs: Integers,
) -> LayerChoice | None:
    """Follow the choices back from the last layer."""
    if budget < 0:
        return None
    last = len(marks) - 1
    column = values[:, min(budget, int(highs[last])) - int(lows[last])]
    strategy = int(column.argmin())
    time_s = float(column[strategy])
    if time_s == np.inf:
        return None
    chosen = [strategy]
    remaining = budget - int(memory_units[last, strategy])
    for layer in range(last, 0, -1):
        low, high = int(lows[layer - 1]), int(highs[layer - 1])
        index = min(max(remaining, low), high) - low
        strategy = int(marks[layer][strategy, index])
        chosen.append(strategy)
        remaining -= int(memory_units[layer - 1, strategy])
    return LayerChoice(time_s, tuple(reversed(chosen)), budget - remaining)


def solve_task(
    tables: Tables, budget_units: int, stop: Callable[[], bool] = lambda: False
) -> Choice | None:
    """Solve every stage by itself and keep the best embedding strategy.

    Returns ``None`` if some stage fits under no embedding strategy, or
    ``stop`` says so.
    """
    by_stage = []
    for stage, (start, end) in enumerate(tables.stages):
        budgets = [budget_units - other.memory_units[stage] for other in tables.others]
        by_stage.append(
            solve_layers(
                tables.layer_sync_s[start:end],
                tables.memory_units[stage, start:end],
                tables.transition_s[start:end],
                budgets,
                stop,
            )
        )
    best: Choice | None = None
    for position, other in enumerate(tables.others):
        stages = [answers[position] for answers in by_stage]
        if any(answer is None for answer in stages):
            continue
        made = [answer for answer in stages if answer is not None]
        strategies = tuple(s for answer in made for s in answer.strategies)
        choice = Choice(
            price(tables, strategies, other),
            strategies,
            position,
            tuple(
                answer.used_units + memory_units
                for answer, memory_units in zip(made, other.memory_units, strict=True)
            ),
        )
        if best is None or choice.time_s < best.time_s:
            best = choice
    return best


def solve_coarse(tables: Tables, budget_units: int) -> Choice | None:
    """Choose one strategy for all layers, embedding and head.

    Galvatron's ``fine_grained_mode=0``; ``None`` if none fits. Every strategy
    must have a finite time for every layer.
    """
    num_layers, num_strategies = tables.layer_sync_s.shape
    best: Choice | None = None
    for strategy, other in zip(range(num_strategies), tables.others, strict=True):
        used = tuple(
            int(tables.memory_units[stage, start:stop, strategy].sum())
            + other.memory_units[stage]
            for stage, (start, stop) in enumerate(tables.stages)
        )
        if max(used) > budget_units:
            continue
        strategies = (strategy,) * num_layers
        time_s = price(tables, strategies, other)
        if best is None or time_s < best.time_s:
            best = Choice(time_s, strategies, strategy, used)
    return best


def price(tables: Tables, strategies: Sequence[int], other: Other) -> float:
    """Return the pipeline time in s of given strategies.

    Transitions are not part of it (§4).
    """
    layers = np.arange(len(strategies))
    compute = tables.layer_no_sync_s[layers, strategies]
    sync = tables.layer_sync_s[layers, strategies]
    return pipeline_s(
        [
            float(compute[start:stop].sum()) + no_sync_s
            for (start, stop), no_sync_s in zip(
                tables.stages, other.no_sync_s, strict=True
            )
        ],
        [float(sync[start:stop].sum()) for start, stop in tables.stages],
        tables.num_chunks,
    )


def bound_s(tables: Tables) -> float:
    """Return a time that no choice of a task is below, memory not asked.

    The pipeline time never falls if a stage takes longer, and its sync part
    is never negative: every stage at its fastest is a bound.
    """
    fastest = tables.layer_no_sync_s.min(axis=1)
    return pipeline_s(
        [
            float(fastest[start:stop].sum())
            + min(other.no_sync_s[stage] for other in tables.others)
            for stage, (start, stop) in enumerate(tables.stages)
        ],
        [0.0] * len(tables.stages),
        tables.num_chunks,
    )


def solve_tasks(
    tasks: Sequence[Tables],
    budget_units: int,
    *,
    coarse: bool = False,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[int, Choice], None] = lambda task, choice: None,
) -> tuple[int, Choice] | None:
    """Return the first of the tasks whose answer is the fastest, and it.

    Tasks are solved in the order of their :func:`bound_s`, and those that
    cannot win are not solved: the answer is that of solving them all.

    ``tasks`` are in Galvatron's order, ``budget_units`` what each stage may use. Where
    ``stop`` holds, the best answer so far is returned; ``report`` is called with every
    answer that is better than those before.
    """
    bounds = [bound_s(tables) for tables in tasks]
    best: tuple[int, Choice] | None = None
    for task in sorted(range(len(tasks)), key=lambda task: bounds[task]):
        if stop():
            break
        if best is not None and bounds[task] * (1 - ROUNDING) > best[1].time_s:
            break
        if coarse:
            choice = solve_coarse(tasks[task], budget_units)
        else:
            choice = solve_task(tasks[task], budget_units, stop)
        if choice is None:
            continue
        if best is None or (choice.time_s, task) < (best[1].time_s, best[0]):
            best = task, choice
            report(task, choice)
    return best
