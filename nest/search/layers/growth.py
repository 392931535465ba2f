"""All ways to run a stage with a strategy per layer that can matter.

Labels grow layer by layer in topological order. The state of a label is the
layout of every layer whose output is still needed inside the
stage, its value what the layers so far take and hold. It is dropped if
another of the same state is at least as good, or if what it has and the least
that the rest adds, by the Lagrangian bounds of
:mod:`nest.search.layers.options`, are too slow for a plan better than the one
in hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nest.cost.schedules import StageSchedule, Times
from nest.search.layers.options import (
    SLACK,
    Floats,
    LayerOptions,
    best_slopes,
    least,
    priced,
    sync_columns,
    unbeaten,
)
from nest.search.stages.options import Bools, Ints
from nest.solvers.base import Deadline

T = TypeVar("T", np.int64, np.float64)


class StageLayers(NamedTuple):
    """The layers of a stage at a place: what its labels depend on."""

    #: Kind of every layer, in topological order.
    kinds: tuple[int, ...]
    #: Of every kind.
    options: list[LayerOptions]
    #: (consumer, producer, forward, backward) of the edges inside, by the position of
    #: the layers in that order; what a change of layout takes in either pass,
    #: ``(producer's layout, consumer's)``.
    changes: list[tuple[int, int, Ints, Ints]]
    #: Receives across both cuts, by layout.
    receive: Ints
    receive_back: Ints
    #: What passes the stage, per micro-batch, by layout.
    passing_bytes: Ints
    #: Memory per device.
    capacity: int
    #: The schedule, and ``M``.
    schedule: StageSchedule
    num_micro_batches: int
    #: What hides at most of so much sync; ``None`` where none may.
    hidden: Callable[[Ints], Ints] | None = None

    def wait(self, amounts: Any) -> Any:
        """Return what the others wait for the stage, given its amounts."""
        return self.schedule.waited(amounts, self.num_micro_batches)

    @property
    def counts(self) -> Ints:
        """Layers of every kind."""
        return np.bincount(self.kinds, minlength=len(self.options))

    def fitting(self, inflight: int) -> StageLayers:
        """Return the stage with the options that fit alone."""
        return self._replace(
            options=[o.fitting(inflight, self.capacity) for o in self.options]
        )

    @property
    def possible(self) -> bool:
        """Whether every layer has an option."""
        return all(len(self.options[kind].strategy) for kind in self.kinds)


@dataclass
class Demand:
    """What of a stage's labels can matter.

    A stage that adds ``o`` once, for which the others wait ``w``, and of sync
    ``Y``, is part of a better plan only if ``Σ + o + max(W, w) + max(y, Y)``
    is less than the step time in hand, with ``Σ``, ``W`` and ``y`` the least
    of the stages in front and behind.
    """

    #: Micro-batches in flight that it must and can have.
    min_inflight: int
    max_inflight: int
    #: ``y``, ``W``, and the least ``w + Y`` of some other stage: smaller values are as
    #: good as these.
    sync_floor: int
    wait: int
    joint: int
    #: Less than this must be left for ``o + max(W, w) + max(y, Y)``.
    budget: int

    def widen(self, other: Demand) -> None:
        """Ask for what another demand asks for, too."""
        self.min_inflight = min(self.min_inflight, other.min_inflight)
        self.max_inflight = max(self.max_inflight, other.max_inflight)
        self.sync_floor = min(self.sync_floor, other.sync_floor)
        self.wait = min(self.wait, other.wait)
        self.joint = min(self.joint, other.joint)
        self.budget = max(self.budget, other.budget)


class Step(NamedTuple):
    """How the labels of one more layer came about."""

    parent: Ints
    strategy: Ints


@dataclass(frozen=True)
class StageWays:
    """Non-dominated ways to run a stage; parallel arrays."""

    #: Quanta, by the ``sums`` of the schedule, and of ``Y``.
    amounts: Ints
    sync: Ints
    #: The largest in-flight count that fits.
    max_inflight: Ints
    #: With ``i`` micro-batches in flight it holds ``fixed_bytes + i kept_bytes``.
    fixed_bytes: Ints
    kept_bytes: Ints
    #: Position among the labels of the last step.
    label: Ints
    #: One per layer.
    steps: tuple[Step, ...]

    def __len__(self) -> int:
        return len(self.label)

    def take(self, chosen: Bools | Ints) -> StageWays:
        """Return the chosen ways."""
        return StageWays(
            amounts=self.amounts[:, chosen],
            sync=self.sync[chosen],
            max_inflight=self.max_inflight[chosen],
            fixed_bytes=self.fixed_bytes[chosen],
            kept_bytes=self.kept_bytes[chosen],
            label=self.label[chosen],
            steps=self.steps,
        )

    def strategies(self, row: int) -> list[int]:
        """Return the strategy of every layer, in topological order."""
        label = int(self.label[row])
        strategies = []
        for step in reversed(self.steps):
            strategies.append(int(step.strategy[label]))
            label = int(step.parent[label])
        return strategies[::-1]


_NONE = np.zeros(0, dtype=np.int64)
NOTHING = StageWays(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE, ())


class LayerLabels(NamedTuple):
    """Labels after some layers; ``amounts`` as of :class:`StageWays`."""

    state: Ints
    amounts: Ints
    sync: Ints
    hidden: Ints
    hideable: Ints
    backward: Ints
    static_bytes: Ints
    kept_bytes: Ints
    working_bytes: Ints
    parent: Ints
    strategy: Ints

    def memory(self, inflight: int) -> Ints:
        """Return the bytes so far, the working set apart."""
        return self.static_bytes + inflight * self.kept_bytes

    def take(self, chosen: Bools | Ints) -> LayerLabels:
        """Return the chosen labels."""
        return LayerLabels(*(column[..., chosen] for column in self))


def grow(
    stage: StageLayers, demand: Demand, beam: int | None, deadline: Deadline
) -> StageWays:
    """Return the non-dominated ways to run a stage.

    Parameters
    ----------
    stage, demand
        Its layers and costs, and what of it can matter.
    beam
        Keep only so many labels per layer, the most promising ones; ``None`` keeps all.
    deadline
        When to give up.

    Raises
    ------
    OutOfTimeError
        If the deadline passed.
    """
    stage = stage.fitting(demand.min_inflight)
    if not stage.possible:
        return NOTHING
    return Growth(stage, demand).run(beam, deadline)


class Growth:
    """The growth of one stage's labels."""

    def __init__(self, stage: StageLayers, demand: Demand) -> None:
        self.stage, self.demand = stage, demand
        present = [stage.options[kind] for kind in set(stage.kinds)]
        #: The largest working set is no less, and no more, than these.
        self.lightest = max(int(o.working_bytes.min()) for o in present)
        self.heaviest = max(int(o.working_bytes.max()) for o in present)
        self.free = stage.capacity - self.lightest
        self._sum_rest()
        last_use = [-1] * len(stage.kinds)
        for consumer, producer, _, _ in stage.changes:
            last_use[producer] = max(last_use[producer], consumer)
        self.last_use = last_use
        #: Layouts of the open layers, a row per state.
        self.states = np.zeros((1, 0), dtype=np.int64)
        self.open_layers: list[int] = []

    def _sum_rest(self) -> None:
        """Sum up what the layers from every position on add at least."""
        stage, inflight = self.stage, self.demand.min_inflight
        kinds = np.array(stage.kinds)

        def whole(field: Callable[[LayerOptions], Ints], max_inflight: bool) -> Ints:
            values = [
                int(field(o).max() if max_inflight else field(o).min())
                if len(o.strategy)
                else 0
                for o in stage.options
            ]
            return tails(np.array(values, dtype=np.int64)[kinds])

        #: Of the amounts that are bounded, and prices of memory with the
        #: least priced amount of the rest.
        self.rest: dict[int, Ints] = {}
        self.prices: dict[int, list[tuple[float, Floats]]] = {}
        for row in stage.schedule.bounded:
            costs = [o.amounts[row] for o in stage.options]
            rest = np.array(list(map(least, costs)), dtype=np.int64)
            self.rest[row] = tails(rest[kinds])
            self.prices[row] = self._priced(costs)
        self.rest_sync = whole(lambda o: o.sync, False)
        self.rest_memory = whole(lambda o: o.memory(inflight), False)
        self.max_sync = whole(lambda o: o.sync, True)
        max_inflight = self.demand.max_inflight
        self.max_memory = whole(lambda o: o.memory(max_inflight), True)
        #: The same of ``w + Y``.
        self.joint_prices = self._priced(
            [stage.wait(o.amounts) + o.sync for o in stage.options]
        )

    def _priced(self, costs: list[Ints]) -> list[tuple[float, Floats]]:
        stage, inflight = self.stage, self.demand.min_inflight
        memory = [o.memory(inflight) for o in stage.options]
        slopes = best_slopes(costs, memory, stage.counts, self.free)
        rows = priced(costs, memory, slopes)[:, np.array(stage.kinds)]
        return [
            (float(slope), tails(row)) for slope, row in zip(slopes, rows, strict=True)
        ]

    def run(self, beam: int | None, deadline: Deadline) -> StageWays:
        """Add one layer after the other."""
        schedule = self.stage.schedule
        zero = np.zeros(1, dtype=np.int64)
        no_amounts = np.zeros((len(schedule.sums), 1), dtype=np.int64)
        labels = LayerLabels(zero, no_amounts, *[zero] * 9)
        steps = []
        for position in range(len(self.stage.kinds)):
            deadline.check()
            labels, layout = self._extended(labels, position)
            useful = np.flatnonzero(self._useful(labels, position + 1))
            if not len(useful):
                return NOTHING
            labels = labels.take(useful)
            labels = labels._replace(
                state=self._next_states(labels.state, layout[useful], position)
            )
            survivors = self._undominated(labels, position + 1)
            if beam is not None and len(survivors) > beam:
                once = schedule.sums.index(schedule.once)
                slope, _ = self.prices[once][-1]
                inflight = self.demand.min_inflight
                merit = labels.amounts[once] + slope * labels.memory(inflight)
                order = np.argsort(merit[survivors], kind="stable")
                survivors = np.sort(survivors[order[:beam]])
            labels = labels.take(survivors)
            steps.append(Step(labels.parent, labels.strategy))
        return self._ways(labels, tuple(steps))

    def _extended(self, labels: LayerLabels, position: int) -> tuple[LayerLabels, Ints]:
        """Add a layer to every label, in every layout."""
        stage = self.stage
        options = stage.options[stage.kinds[position]]
        width, count = len(options.strategy), len(labels.sync)
        parent = np.repeat(np.arange(count), width)
        choice = np.tile(np.arange(width), count)
        before, layer = labels.take(parent), options.take(choice)
        layout, state = layer.layout, before.state
        forward = backward = np.zeros_like(choice)
        for consumer, producer, there, back in stage.changes:
            if consumer == position:
                from_layout = self.states[state, self.open_layers.index(producer)]
                forward = forward + there[from_layout, layout]
                backward = backward + back[from_layout, layout]
        kept_bytes = before.kept_bytes + layer.kept_bytes
        if position == 0:
            forward = forward + stage.receive[layout]
            kept_bytes = kept_bytes + stage.passing_bytes[layout]
        if position == len(stage.kinds) - 1:
            backward = backward + stage.receive_back[layout]
        moved = Times(forward, backward, np.zeros_like(choice))
        amounts = layer.amounts + stage.schedule.amounts(moved)
        working = np.maximum(before.working_bytes, layer.working_bytes)
        new = LayerLabels(
            state=state,
            amounts=before.amounts + amounts,
            sync=before.sync + layer.sync,
            hidden=before.hidden + layer.hidden,
            hideable=before.hideable + layer.hideable,
            backward=before.backward + layer.backward + backward,
            static_bytes=before.static_bytes + layer.static_bytes,
            kept_bytes=kept_bytes,
            working_bytes=np.maximum(working, self.lightest),
            parent=parent,
            strategy=layer.strategy,
        )
        return new, layout

    def _useful(self, labels: LayerLabels, after: int) -> Bools:
        """Which labels may lead to a stage that matters."""
        demand, stage = self.demand, self.stage
        amounts, memory = labels.amounts, labels.memory(demand.min_inflight)
        if after < len(stage.kinds):
            tail = Times(0, int(stage.receive_back.min()))
            amounts = amounts + np.array([stage.schedule.amounts(tail)]).T
        fits = memory + self.rest_memory[after] + labels.working_bytes <= stage.capacity
        # Bounds of the whole stage; those with prices hold up to rounding.
        bounds = {
            row: self._bounded(
                amounts[row],
                amounts[row] + self.rest[row][after],
                memory,
                prices,
                after,
            )
            for row, prices in self.prices.items()
        }
        sync = np.maximum(labels.sync + self.rest_sync[after], demand.sync_floor)
        joint = np.maximum(
            np.maximum(stage.wait(bounds), demand.wait) + sync, demand.joint
        )
        joint = self._bounded(
            stage.wait(amounts) + labels.sync, joint, memory, self.joint_prices, after
        )
        total = stage.schedule.added(bounds) + joint
        useful: Bools = fits & (total * (1 - SLACK) < demand.budget)
        return useful

    def _bounded(
        self,
        cost: Ints,
        bound: Ints | Floats,
        memory: Ints,
        prices: list[tuple[float, Floats]],
        after: int,
    ) -> Floats:
        """Return the best of a bound and those with prices of memory."""
        best = bound.astype(np.float64)
        for slope, rest in prices:
            value = cost + slope * memory + rest[after]
            room = slope * self.free
            value = value - room - SLACK * (value + room)
            np.maximum(best, value, out=best)
        return best

    def _next_states(self, state: Ints, layout: Ints, position: int) -> Ints:
        """Add a layer to the states, and forget those that nothing needs."""
        num_layouts = len(self.stage.receive)
        distinct, inverse = np.unique(state * num_layouts + layout, return_inverse=True)
        old, new = np.divmod(distinct, num_layouts)
        rows = np.concatenate((self.states[old], new[:, None]), axis=1)
        layers = [*self.open_layers, position]
        still = [i for i, layer in enumerate(layers) if self.last_use[layer] > position]
        self.open_layers = [layers[i] for i in still]
        if not still:
            self.states = rows[:1, :0]
            return np.zeros(len(state), dtype=np.int64)
        self.states, again = np.unique(rows[:, still], axis=0, return_inverse=True)
        states: Ints = again.reshape(-1)[inverse]
        return states

    def _undominated(self, labels: LayerLabels, after: int) -> Ints:
        """Return the labels that no other one of their state beats."""
        return unbeaten(labels.state, self._criteria(labels, after))

    def _criteria(self, labels: LayerLabels, after: int) -> list[Ints]:
        """Return the columns in which a label must be no worse to beat.

        Memory must be no more with either in-flight count, hence with all between, both
        with and without the working set: then it is no more whatever is added. Labels
        that hold so little that they fit in any case are alike in it.
        """
        demand = self.demand
        min_inflight, max_inflight = demand.min_inflight, demand.max_inflight
        plenty = self.stage.capacity - self.heaviest - self.max_memory[after]
        always = labels.memory(max_inflight) <= plenty
        floor = demand.sync_floor - self.max_sync[after]
        columns = [*labels.amounts]
        columns += (
            [np.maximum(labels.sync, floor)]
            if self.stage.hidden is None
            else sync_columns(labels)
        )
        for inflight in sorted({min_inflight, max_inflight}):
            memory = labels.memory(inflight)
            columns.append(np.where(always, -1, memory))
            columns.append(np.where(always, -1, memory + labels.working_bytes))
        return columns

    def _ways(self, labels: LayerLabels, steps: tuple[Step, ...]) -> StageWays:
        max_inflight, kept_bytes = self.demand.max_inflight, labels.kept_bytes
        fixed = labels.static_bytes + labels.working_bytes
        room = self.stage.capacity - fixed
        fit = np.where(kept_bytes > 0, room // np.maximum(kept_bytes, 1), max_inflight)
        fit = np.minimum(fit, max_inflight)
        sync = labels.sync
        if self.stage.hidden is not None:
            most_hidden = self.stage.hidden(labels.hideable)
            sync = sync + labels.hidden
            sync = sync - np.minimum(most_hidden, labels.backward)
        ways = StageWays(
            amounts=labels.amounts,
            sync=sync,
            max_inflight=fit,
            fixed_bytes=fixed,
            kept_bytes=kept_bytes,
            label=np.arange(len(fit)),
            steps=steps,
        )
        return ways.take(
            unbeaten(np.zeros(len(fit), dtype=np.int64), self._final_criteria(ways))
        )

    def _final_criteria(self, ways: StageWays) -> list[Ints]:
        """Return the columns in which a way must be no worse to beat."""
        sync = np.maximum(ways.sync, self.demand.sync_floor)
        return [*ways.amounts, sync, -ways.max_inflight]


def tails(values: NDArray[T]) -> NDArray[T]:
    """Return the sum from every position on, and 0 at the end."""
    total = np.zeros(len(values) + 1, dtype=values.dtype)
    total[:-1] = np.cumsum(values[::-1])[::-1]
    return total
