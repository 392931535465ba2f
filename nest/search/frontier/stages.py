"""Frontiers of a stage's time and memory, merged layer by layer.

As in :mod:`nest.search.layers.growth` labels grow layer by layer, and a label
goes if another one of its state is at least as good. Here what it holds is a
value like its times, and what a stage may take depends on it: so one growth
finds the ways to run a stage at every capacity.

A stage that takes ``c`` and holds ``m`` is of use only if ``c < b(m)``, with
a falling staircase ``b``, its *allowance*. For a price ``λ >= 0`` of memory
the layers to come add at least ``r = Σ min (c + λ m)`` to ``c + λ m``, so a
label that leads to a stage of use has

``c + λ m + r < max (b(m') + λ m')``

over all ``m'`` from what it and the least of the layers to come hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nest.search.layers.growth import (
    NOTHING,
    Demand,
    Growth,
    LayerLabels,
    StageLayers,
    StageWays,
    tails,
)
from nest.search.layers.options import (
    SLACK,
    Floats,
    LayerOptions,
    hull_slopes,
    priced,
    sync_columns,
)
from nest.search.stages.dominance import drop_neighbours, non_dominated_sorted
from nest.search.stages.options import Bools, Ints
from nest.solvers.base import Deadline

#: Prices of memory that labels are held against, at most.
PRICES = 12


class TooManyWaysError(Exception):
    """A stage has more labels than asked for; never leaves the search."""


class Allowance(NamedTuple):
    """What a stage may take, by what it holds: a falling staircase."""

    #: Less than ``values[i]`` quanta with ``starts[i]`` bytes and more, up to the next
    #: start; no stage holds as much as the last start.
    starts: Ints
    values: Ints

    def step(self, memory: Ints) -> Ints:
        """Return the step that some bytes are on."""
        step: Ints = np.searchsorted(self.starts, memory, "right") - 1
        return step

    def max_labels(self, price: float) -> Floats:
        """Return the most ``b(m) + λ m`` of every step and those behind."""
        ends = self.starts[1:].astype(np.float64) - 1
        values = np.append(self.values[:-1] + price * ends, -np.inf)
        max_allowed: Floats = np.maximum.accumulate(values[::-1])[::-1]
        return max_allowed


class Cost(NamedTuple):
    """A cost of a stage, and how much of it is allowed."""

    #: How often it counts what the stage adds once, what the others wait for it, and
    #: ``Y``.
    once: int
    wait: int
    sync: int
    #: What it must be less than.
    allowance: Allowance


class _Price(NamedTuple):
    """A price of memory, the least priced rest, and what is allowed."""

    price: float
    rest: Floats
    max_labels: Floats


def grow_frontier(
    stage: StageLayers,
    demand: Demand,
    floor: int,
    costs: Sequence[Cost],
    deadline: Deadline,
    *,
    alone: bool = False,
    max_labels: int | None = None,
) -> StageWays:
    """Return the non-dominated ways to run a stage that are of use.

    Parameters
    ----------
    stage, demand, floor, costs, alone, max_labels
        See :class:`StageFrontier`.
    deadline
        When to give up.

    Raises
    ------
    OutOfTimeError
        If the deadline passed.
    TooManyWaysError
        If there are more than ``max_labels`` labels after some layer.
    """
    stage = stage.fitting(demand.min_inflight)
    if not stage.possible:
        return NOTHING
    growth = StageFrontier(
        stage, demand, floor, costs, alone=alone, max_labels=max_labels
    )
    return growth.run(None, deadline)


class StageFrontier(Growth):
    """The growth of one stage's frontier.

    Parameters
    ----------
    stage, demand
        Its layers, and what of it can matter; costs take the place of budgets.
    floor
        Memory up to which all stages are alike.
    costs
        What it may take.
    alone
        Whether it is the whole pipeline: then only its step time matters.
    max_labels
        Give up with more labels; ``None`` never does.
    """

    def __init__(
        self,
        stage: StageLayers,
        demand: Demand,
        floor: int,
        costs: Sequence[Cost],
        *,
        alone: bool = False,
        max_labels: int | None = None,
    ) -> None:
        super().__init__(stage, demand)
        self.floor, self.alone, self.max_labels = floor, alone, max_labels
        used = sorted(set(stage.kinds))
        memory = [o.memory(demand.min_inflight) for o in stage.options]
        self._bounds: list[tuple[Cost, list[_Price]]] = []
        for cost in costs:
            values = [self._value(cost, o) for o in stage.options]
            slopes = hull_slopes(
                [values[kind] for kind in used], [memory[kind] for kind in used]
            )
            slopes = np.append(0.0, _spread(slopes, PRICES))
            rest = priced(values, memory, slopes)[:, np.array(stage.kinds)]
            prices = [
                _Price(price, tails(row), cost.allowance.max_labels(price))
                for price, row in zip(slopes.tolist(), rest, strict=True)
            ]
            self._bounds.append((cost, prices))

    def _value(self, cost: Cost, of: LayerOptions | LayerLabels) -> Ints:
        """Return a cost of layers, or of labels."""
        total: Ints = (
            cost.once * self.stage.schedule.added(of.amounts)
            + cost.wait * self.stage.wait(of.amounts)
            + cost.sync * of.sync
        )
        return total

    def _useful(self, labels: LayerLabels, after: int) -> Bools:
        """Which labels may lead to a stage that is of use."""
        held = labels.memory(self.demand.min_inflight)
        held = held + labels.working_bytes
        min_memory = held + self.rest_memory[after]
        useful: Bools = min_memory <= self.stage.capacity
        for cost, prices in self._bounds:
            value = self._value(cost, labels)
            step = cost.allowance.step(min_memory)
            for price, rest, max_allowed in prices:
                bound = value + price * held + rest[after]
                useful &= bound * (1 - SLACK) < max_allowed[step]
        return useful

    def _undominated(self, labels: LayerLabels, after: int) -> Ints:
        """Return the labels that no other one of their state beats."""
        columns = self._criteria(labels, after)
        order = drop_neighbours(labels.state, columns)
        survivors = order[
            non_dominated_sorted(
                labels.state[order], [column[order] for column in columns]
            )
        ]
        if self.max_labels is not None and len(survivors) > self.max_labels:
            raise TooManyWaysError
        rows: Ints = np.sort(survivors)
        return rows

    def _criteria(self, labels: LayerLabels, after: int) -> list[Ints]:
        """Return the columns in which a label must be no worse to beat.

        As of any growth, but labels are alike in memory only up to the floor.
        """
        demand = self.demand
        min_inflight, max_inflight = demand.min_inflight, demand.max_inflight
        plenty = self.floor - self.heaviest - self.max_memory[after]
        always = labels.memory(max_inflight) <= plenty
        columns = self._times(labels, after)
        same = len(np.unique(labels.working_bytes)) == 1
        for inflight in sorted({min_inflight, max_inflight}):
            memory = labels.memory(inflight)
            columns.append(np.where(always, -1, memory))
            if not same:
                memory = memory + labels.working_bytes
                columns.append(np.where(always, -1, memory))
        return columns

    def _times(self, labels: LayerLabels, after: int) -> list[Ints]:
        """Return the columns of times."""
        floor = self.demand.sync_floor - self.max_sync[after]
        hides = self.stage.hidden is not None
        if not self.alone:
            sync = np.maximum(labels.sync, floor)
            return [*labels.amounts, *(sync_columns(labels) if hides else [sync])]
        total = self.stage.schedule.added(labels.amounts)
        total = total + self.stage.wait(labels.amounts)
        if not hides:
            return [total + labels.sync]
        return [total + column for column in sync_columns(labels)]

    def _final_criteria(self, ways: StageWays) -> list[Ints]:
        """Return the columns in which a way must be no worse to beat.

        Ways are alike in memory only if they are up to the floor with any
        in-flight count: what is the larger of the floor and a line may be
        less at both ends, and more between.
        """
        demand = self.demand
        sync = np.maximum(ways.sync, demand.sync_floor)
        columns = [*ways.amounts, sync]
        if self.alone:
            total = self.stage.schedule.added(ways.amounts)
            columns = [total + self.stage.wait(ways.amounts) + ways.sync]

        def memory(inflight: int) -> Ints:
            return ways.fixed_bytes + inflight * ways.kept_bytes

        always = memory(demand.max_inflight) <= self.floor
        for inflight in sorted({demand.min_inflight, demand.max_inflight}):
            columns.append(np.where(always, -1, memory(inflight)))
        return columns


def _spread(slopes: Floats, count: int) -> Floats:
    """Return at most so many slopes, from the least to the largest."""
    if len(slopes) <= count:
        return slopes
    chosen = np.linspace(0, len(slopes) - 1, count).round().astype(np.int64)
    spread: Floats = slopes[chosen]
    return spread
