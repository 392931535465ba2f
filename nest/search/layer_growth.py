"""All ways to run a stage with a strategy per layer that can matter.

Labels grow layer by layer in topological order. The state of a label is the
layout ``(dp, tp, cp)`` of every layer whose output is still needed inside the
stage, its value what the layers so far take and hold. It is dropped if
another of the same state is at least as good, or if what it has and the least
that the rest adds, by the Lagrangian bounds of
:mod:`nest.search.layer_options`, are too slow for a plan better than the one
in hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nest.search.layer_options import (
    SLACK,
    Floats,
    LayerOptions,
    best_slopes,
    priced,
    unbeaten,
)
from nest.search.options import Bools, Ints
from nest.solvers.base import Deadline, OutOfTimeError

T = TypeVar("T", np.int64, np.float64)

#: Splits forward and backward quanta into paces, see ``StageSchedule``.
Paces = Callable[[Ints, Ints], Sequence[Ints]]


class StageLayers(NamedTuple):
    """The layers of a stage at a place: what its labels depend on.

    Attributes
    ----------
    kinds
        Kind of every layer, in topological order.
    options
        Of every kind.
    changes
        (consumer, producer, forward, backward) of the edges inside, by the
        position of the layers in that order; what a change of layout takes
        in either pass, ``(producer's layout, consumer's)``.
    receive, receive_back
        Receives across both cuts, by layout.
    passing_bytes
        What passes the stage, per micro-batch, by layout.
    capacity
        Memory per device.
    extra_slots
        ``M - 1``.
    paces
        Of the schedule.
    """

    kinds: tuple[int, ...]
    options: list[LayerOptions]
    changes: list[tuple[int, int, Ints, Ints]]
    receive: Ints
    receive_back: Ints
    passing_bytes: Ints
    capacity: int
    extra_slots: int
    paces: Paces

    @property
    def counts(self) -> Ints:
        """Layers of every kind."""
        return np.bincount(self.kinds, minlength=len(self.options))


@dataclass
class Demand:
    """What of a stage's labels can matter.

    A stage of load ``τ`` and sync ``Y`` is part of a better plan only if
    ``Σ + τ + (M-1) max(w, τ) + max(y, Y)`` is less than the step time in
    hand, with ``Σ``, ``w`` and ``y`` the least of the stages in front and
    behind; ``w`` is the sum of their largest paces.

    Attributes
    ----------
    least_inflight, most_inflight
        Micro-batches in flight that it must and can have.
    sync_floor, worst, joint
        ``y``, ``w``, and the least ``(M-1) τ + Y`` of some other stage:
        smaller values are as good as these.
    budget
        Less than this must be left for ``τ + (M-1) max τ + max Y``.
    """

    least_inflight: int
    most_inflight: int
    sync_floor: int
    worst: int
    joint: int
    budget: int

    def widen(self, other: Demand) -> None:
        """Ask for what another demand asks for, too."""
        self.least_inflight = min(self.least_inflight, other.least_inflight)
        self.most_inflight = max(self.most_inflight, other.most_inflight)
        self.sync_floor = min(self.sync_floor, other.sync_floor)
        self.worst = min(self.worst, other.worst)
        self.joint = min(self.joint, other.joint)
        self.budget = max(self.budget, other.budget)


class Step(NamedTuple):
    """How the labels of one more layer came about."""

    parent: Ints
    strategy: Ints


@dataclass(frozen=True)
class StageWays:
    """Non-dominated ways to run a stage; parallel arrays.

    Attributes
    ----------
    load, forward, sync
        Quanta; ``forward`` is the part of the load that is the first pace.
    max_inflight
        The largest in-flight count that fits.
    label
        Position among the labels of the last step.
    steps
        One per layer.
    """

    load: Ints
    forward: Ints
    sync: Ints
    max_inflight: Ints
    label: Ints
    steps: tuple[Step, ...]

    def __len__(self) -> int:
        return len(self.load)

    def strategies(self, row: int) -> list[int]:
        """Return the strategy of every layer, in topological order."""
        label = int(self.label[row])
        found = []
        for step in reversed(self.steps):
            found.append(int(step.strategy[label]))
            label = int(step.parent[label])
        return found[::-1]


_NONE = np.zeros(0, dtype=np.int64)
_NOTHING = StageWays(_NONE, _NONE, _NONE, _NONE, _NONE, ())


class _Labels(NamedTuple):
    """Labels after some layers; ``paces`` has a row per pace."""

    state: Ints
    paces: Ints
    sync: Ints
    static_bytes: Ints
    kept_bytes: Ints
    working_bytes: Ints
    parent: Ints
    strategy: Ints

    @property
    def load(self) -> Ints:
        """``τ`` so far."""
        total: Ints = self.paces.sum(axis=0)
        return total

    def memory(self, inflight: int) -> Ints:
        """Return the bytes so far, the working set apart."""
        return self.static_bytes + inflight * self.kept_bytes

    def take(self, chosen: Bools | Ints) -> _Labels:
        """Return the chosen labels."""
        return _Labels(*(column[..., chosen] for column in self))


def grow(
    stage: StageLayers, demand: Demand, beam: int | None, deadline: Deadline
) -> StageWays:
    """Return the non-dominated ways to run a stage.

    Parameters
    ----------
    stage, demand
        Its layers and costs, and what of it can matter.
    beam
        Keep only so many labels per layer, the most promising ones;
        ``None`` keeps all.
    deadline
        When to give up.

    Raises
    ------
    OutOfTimeError
        If the deadline passed.
    """
    options = [
        o.fitting(demand.least_inflight, stage.capacity) for o in stage.options
    ]
    if any(not len(options[kind].load) for kind in set(stage.kinds)):
        return _NOTHING
    return _Growth(stage._replace(options=options), demand).run(beam, deadline)


class _Growth:
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
        stage, inflight = self.stage, self.demand.least_inflight
        kinds = np.array(stage.kinds)

        def whole(field: Callable[[LayerOptions], Ints], most: bool) -> Ints:
            values = [
                int(field(o).max() if most else field(o).min())
                if len(o.load)
                else 0
                for o in stage.options
            ]
            return _tails(np.array(values, dtype=np.int64)[kinds])

        self.rest_load = whole(lambda o: o.load, False)
        self.rest_sync = whole(lambda o: o.sync, False)
        self.rest_memory = whole(lambda o: o.memory(inflight), False)
        self.most_sync = whole(lambda o: o.sync, True)
        most = self.demand.most_inflight
        self.most_memory = whole(lambda o: o.memory(most), True)
        #: Prices of memory, and the least priced cost of the rest: of the
        #: load, and of ``(M-1) τ + Y``.
        self.prices = [
            self._priced([o.load for o in stage.options]),
            self._priced(_joint(stage)),
        ]

    def _priced(self, costs: list[Ints]) -> list[tuple[float, Floats]]:
        stage, inflight = self.stage, self.demand.least_inflight
        memory = [o.memory(inflight) for o in stage.options]
        slopes = best_slopes(costs, memory, stage.counts, self.free)
        rows = priced(costs, memory, slopes)[:, np.array(stage.kinds)]
        return [
            (float(slope), _tails(row))
            for slope, row in zip(slopes, rows, strict=True)
        ]

    def run(self, beam: int | None, deadline: Deadline) -> StageWays:
        """Add one layer after the other."""
        num_paces = len(self.stage.paces(_NONE, _NONE))
        zero = np.zeros(1, dtype=np.int64)
        labels = _Labels(
            zero, np.zeros((num_paces, 1), dtype=np.int64), *[zero] * 6
        )
        steps = []
        for position in range(len(self.stage.kinds)):
            if deadline.passed:
                raise OutOfTimeError
            labels, layout = self._extended(labels, position)
            useful = np.flatnonzero(self._useful(labels, position + 1))
            if not len(useful):
                return _NOTHING
            labels = labels.take(useful)
            labels = labels._replace(
                state=self._next_states(labels.state, layout[useful], position)
            )
            kept = unbeaten(labels.state, self._criteria(labels, position + 1))
            if beam is not None and len(kept) > beam:
                slope, _ = self.prices[0][-1]
                inflight = self.demand.least_inflight
                merit = labels.load + slope * labels.memory(inflight)
                order = np.argsort(merit[kept], kind="stable")
                kept = np.sort(kept[order[:beam]])
            labels = labels.take(kept)
            steps.append(Step(labels.parent, labels.strategy))
        return self._ways(labels, tuple(steps))

    def _extended(
        self, labels: _Labels, position: int
    ) -> tuple[_Labels, Ints]:
        """Add a layer to every label, in every layout."""
        stage = self.stage
        found = stage.options[stage.kinds[position]]
        width, count = len(found.load), len(labels.sync)
        parent = np.repeat(np.arange(count), width)
        choice = np.tile(np.arange(width), count)
        layout, state = found.layout[choice], labels.state[parent]
        forward = found.forward[choice]
        backward = found.load[choice] - forward
        for consumer, producer, there, back in stage.changes:
            if consumer == position:
                from_layout = self.states[
                    state, self.open_layers.index(producer)
                ]
                forward = forward + there[from_layout, layout]
                backward = backward + back[from_layout, layout]
        kept = labels.kept_bytes[parent] + found.kept_bytes[choice]
        if position == 0:
            forward = forward + stage.receive[layout]
            kept = kept + stage.passing_bytes[layout]
        if position == len(stage.kinds) - 1:
            backward = backward + stage.receive_back[layout]
        paces = np.stack(stage.paces(forward, backward))
        new = _Labels(
            state,
            labels.paces[:, parent] + paces,
            labels.sync[parent] + found.sync[choice],
            labels.static_bytes[parent] + found.static_bytes[choice],
            kept,
            np.maximum(
                np.maximum(
                    labels.working_bytes[parent], found.working_bytes[choice]
                ),
                self.lightest,
            ),
            parent,
            found.strategy[choice],
        )
        return new, layout

    def _useful(self, labels: _Labels, after: int) -> Bools:
        """Which labels may lead to a stage that matters."""
        demand, extra = self.demand, self.stage.extra_slots
        tail = 0
        if after < len(self.stage.kinds):
            tail = int(self.stage.receive_back.min())
        load, memory = labels.load + tail, labels.memory(demand.least_inflight)
        fits = (
            memory + self.rest_memory[after] + labels.working_bytes
            <= self.stage.capacity
        )
        # Bounds of the whole stage; those with prices hold up to rounding.
        loads, joints = self.prices
        bound = self._bounded(
            load, load + self.rest_load[after], memory, loads, after
        )
        sync = np.maximum(
            labels.sync + self.rest_sync[after], demand.sync_floor
        )
        joint = np.maximum(
            extra * np.maximum(bound, demand.worst) + sync, demand.joint
        )
        joint = self._bounded(
            extra * load + labels.sync, joint, memory, joints, after
        )
        useful: Bools = fits & ((bound + joint) * (1 - SLACK) < demand.budget)
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
        distinct, inverse = np.unique(
            state * num_layouts + layout, return_inverse=True
        )
        old, new = np.divmod(distinct, num_layouts)
        rows = np.concatenate((self.states[old], new[:, None]), axis=1)
        layers = [*self.open_layers, position]
        still = [
            i
            for i, layer in enumerate(layers)
            if self.last_use[layer] > position
        ]
        self.open_layers = [layers[i] for i in still]
        if not still:
            self.states = rows[:1, :0]
            return np.zeros(len(state), dtype=np.int64)
        self.states, again = np.unique(
            rows[:, still], axis=0, return_inverse=True
        )
        found: Ints = again.reshape(-1)[inverse]
        return found

    def _criteria(self, labels: _Labels, after: int) -> list[Ints]:
        """Return the columns in which a label must be no worse to beat.

        Memory must be no more with either in-flight count, hence with all
        between, both with and without the working set: then it is no more
        whatever is added. Labels that hold so little that they fit in any
        case are alike in it.
        """
        demand = self.demand
        least, most = demand.least_inflight, demand.most_inflight
        plenty = self.stage.capacity - self.heaviest - self.most_memory[after]
        always = labels.memory(most) <= plenty
        floor = demand.sync_floor - self.most_sync[after]
        columns = [*labels.paces, np.maximum(labels.sync, floor)]
        for inflight in sorted({least, most}):
            memory = labels.memory(inflight)
            columns.append(np.where(always, -1, memory))
            columns.append(np.where(always, -1, memory + labels.working_bytes))
        return columns

    def _ways(self, labels: _Labels, steps: tuple[Step, ...]) -> StageWays:
        most, kept = self.demand.most_inflight, labels.kept_bytes
        room = self.stage.capacity - labels.static_bytes - labels.working_bytes
        fit = np.where(kept > 0, room // np.maximum(kept, 1), most)
        fit = np.minimum(fit, most)
        chosen = unbeaten(
            np.zeros(len(fit), dtype=np.int64),
            [
                *labels.paces,
                np.maximum(labels.sync, self.demand.sync_floor),
                -fit,
            ],
        )
        return StageWays(
            labels.load[chosen],
            labels.paces[0, chosen],
            labels.sync[chosen],
            fit[chosen],
            chosen,
            steps,
        )


def _joint(stage: StageLayers) -> list[Ints]:
    """Return ``(M-1) τ + Y`` of the options of every kind."""
    return [stage.extra_slots * o.load + o.sync for o in stage.options]


def _tails(values: NDArray[T]) -> NDArray[T]:
    """Return the sum from every position on, and 0 at the end."""
    total = np.zeros(len(values) + 1, dtype=values.dtype)
    total[:-1] = np.cumsum(values[::-1])[::-1]
    return total
