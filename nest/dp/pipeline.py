"""The program for presets whose stages choose their own strategy.

For one ``(R, B)`` the step time is ``Σ τ + (M-1) max τ + max Y``. A *label* at
state ``(a, k)`` is a way to place the layers beyond closed set ``a`` on the
devices from offset ``k`` on; it carries ``(Σ τ, max τ, max Y, stages)``. A
label is dropped if another of the same state is at least as good in all four
(fewer stages behind a stage mean fewer micro-batches in flight in front of
it), or if it cannot lead below the best step time known: the placed part plus
a lower bound on the rest. Where a job restricts the number of stages, only
labels that the same numbers of stages in front complete are compared.

The bounds come from two relaxations that forget how ``Σ``, ``max`` and
``max Y`` depend on each other and take each minimum by itself: ``suffix``
over the layers beyond ``a`` on devices from ``k`` on, ``prefix`` over the
layers of ``a`` on exactly ``k`` devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nest.cost.space import max_stages, stage_counts
from nest.dp.errors import OutOfTimeError
from nest.dp.stages import INFINITE, Candidates, Ints, StageTables
from nest.solvers.base import Deadline


@dataclass(frozen=True)
class Relaxation:
    """Lower bounds per state ``(k, a)``: minima of Σ τ, max τ and max Y.

    ``joint`` is the least ``max ((M-1) τ + Y)``, which ties the maxima
    together: ``(M-1) max τ + max Y`` is no less. ``stages`` is the least
    number of stages. All are
    :data:`~nest.dp.stages.INFINITE` where the state cannot be reached.
    """

    total: Ints
    worst: Ints
    sync: Ints
    joint: Ints
    stages: Ints

    @property
    def fields(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """All of them."""
        return self.total, self.worst, self.sync, self.joint, self.stages

    @staticmethod
    def empty(num_offsets: int, num_sets: int) -> Relaxation:
        """Return a relaxation with every state out of reach."""
        return Relaxation(
            *(
                np.full((num_offsets, num_sets), INFINITE, dtype=np.int64)
                for _ in range(5)
            )
        )


@dataclass(frozen=True)
class Chosen:
    """A complete pipeline: per stage ``(a, b, strategy, devices)``."""

    step_quanta: int
    stages: list[tuple[int, int, int, int]]


@dataclass(frozen=True)
class _Labels:
    """Labels of all closed sets at one offset, ordered by closed set."""

    state: Ints
    total: Ints
    worst: Ints
    sync: Ints
    stages: Ints
    target: Ints
    strategy: Ints
    size: Ints
    next_label: Ints
    first: Ints  # labels of set a are first[a] .. first[a + 1]


@dataclass(frozen=True)
class _StageRule:
    """Which numbers of stages are allowed; arrays indexed by a number.

    Attributes
    ----------
    fewest, most
        The extremes of what is allowed.
    complete
        Whether so many stages are a pipeline.
    open
        Whether one or more stages in front can make them one.
    group
        Numbers with equal groups are completed by the same numbers of stages
        in front, so their labels can replace each other.
    """

    fewest: int
    most: int
    complete: NDArray[np.bool_]
    open: NDArray[np.bool_]
    group: Ints

    @staticmethod
    def of(tables: StageTables) -> _StageRule | None:
        """Return the rule of a case that has one, else ``None``."""
        problem, case = tables.model.problem, tables.case
        counts = stage_counts(problem, case)
        possible = max_stages(problem, case)
        if len(counts) == possible:
            return None
        complete = np.zeros(possible + 1, dtype=np.bool_)
        complete[counts] = True
        numbers: dict[bytes, int] = {}
        group = [
            # Beyond the largest number nothing can stand in front.
            numbers.setdefault(
                np.r_[
                    complete[number + 1 :], np.ones(number, dtype=np.bool_)
                ].tobytes(),
                len(numbers),
            )
            for number in range(possible + 1)
        ]
        return _StageRule(
            min(counts, default=0),
            max(counts, default=0),
            complete,
            np.r_[np.logical_or.accumulate(complete[:0:-1])[::-1], False],
            np.array(group),
        )


class PipelineSearch:
    """Search one ``(R, B)``.

    Parameters
    ----------
    tables
        Its stage candidates.
    deadline
        When to give up.
    """

    def __init__(self, tables: StageTables, deadline: Deadline) -> None:
        self.tables = tables
        self.deadline = deadline
        self.num_devices = tables.case.devices
        self.num_sets = tables.sets.count
        self.extra_slots = tables.case.num_micro_batches - 1
        self._rule = _StageRule.of(tables)
        #: Layers in every closed set; as many stages can hold them.
        self._num_layers: Ints = tables.kind_counts.sum(axis=1)
        #: Candidates per (offset, size) that may still be of use.
        self.alive: dict[tuple[int, int], Candidates] = {}

    def bound(
        self,
        upper: int,
        given: Mapping[tuple[int, int], Candidates] | None = None,
    ) -> int:
        """Return a lower bound on every step time below ``upper``.

        Runs the relaxations and keeps the candidates that may still be part
        of a plan better than ``upper``. :data:`INFINITE` means there is none.

        Parameters
        ----------
        upper
            Only step times below this count.
        given
            Candidates per (offset, size), instead of all of the tables.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        self.alive = {} if given is None else dict(given)
        if given is None:
            self._gather()
        bound = 0
        for _ in range(3):
            before = self._num_alive()
            self.suffix = self._relax_suffix()
            bound = self._root_bound(upper)
            if bound >= upper:
                return bound
            self.prefix = self._relax_prefix()
            self._filter(upper)
            if self._num_alive() > 0.7 * before:
                break
        return bound

    def _gather(self) -> None:
        for offset in range(self.num_devices):
            for size in self.tables.sizes:
                if offset + size <= self.num_devices:
                    self._check_time()
                    self.alive[offset, size] = self.tables.at(offset, size)

    def _num_alive(self) -> int:
        return sum(len(found) for found in self.alive.values())

    def _root_bound(self, upper: int) -> int:
        suffix = self.suffix
        if suffix.total[0, 0] >= INFINITE:
            return int(INFINITE)
        rule = self._rule
        if rule is not None and suffix.stages[0, 0] > rule.most:
            return int(INFINITE)
        apart = self.extra_slots * suffix.worst[0, 0] + suffix.sync[0, 0]
        return int(suffix.total[0, 0] + max(apart, suffix.joint[0, 0]))

    def _check_time(self) -> None:
        if self.deadline.passed:
            raise OutOfTimeError

    def _relax_suffix(self) -> Relaxation:
        """Bound the layers beyond ``a`` on devices from ``k`` on."""
        last = self.num_sets - 1
        result = Relaxation.empty(self.num_devices + 1, self.num_sets)
        for field in result.fields:
            field[:, last] = 0
        for offset in range(self.num_devices - 1, -1, -1):
            self._check_time()
            for size in self.tables.sizes:
                found = self.alive.get((offset, size))
                if found is None or not len(found):
                    continue
                after = offset + size
                stages = result.stages[after, found.target] + 1
                usable = self._fits(found, stages)
                if not usable.any():
                    continue
                _lower(
                    result,
                    offset,
                    found.source[usable],
                    (result.total[after, found.target] + found.load)[usable],
                    np.maximum(result.worst[after, found.target], found.load)[
                        usable
                    ],
                    np.maximum(result.sync[after, found.target], found.sync)[
                        usable
                    ],
                    np.maximum(result.joint[after, found.target], found.joint)[
                        usable
                    ],
                    stages[usable],
                )
        return result

    def _relax_prefix(self) -> Relaxation:
        """Bound the layers of ``a`` on exactly the first ``k`` devices."""
        result = Relaxation.empty(self.num_devices + 1, self.num_sets)
        for field in result.fields:
            field[0, 0] = 0
        suffix = self.suffix
        for offset in range(self.num_devices):
            self._check_time()
            for size in self.tables.sizes:
                found = self.alive.get((offset, size))
                if found is None or not len(found):
                    continue
                after = offset + size
                usable = self._fits(
                    found, suffix.stages[after, found.target] + 1
                ) & (result.stages[offset, found.source] < INFINITE)
                if not usable.any():
                    continue
                source = found.source[usable]
                load = found.load[usable]
                _lower(
                    result,
                    after,
                    found.target[usable],
                    result.total[offset, source] + load,
                    np.maximum(result.worst[offset, source], load),
                    np.maximum(
                        result.sync[offset, source], found.sync[usable]
                    ),
                    np.maximum(
                        result.joint[offset, source], found.joint[usable]
                    ),
                    result.stages[offset, source] + 1,
                )
        return result

    def _fits(self, found: Candidates, stages: Ints) -> NDArray[np.bool_]:
        """Whether each candidate fits with so many stages left, at least."""
        return (found.max_inflight >= self._need(stages)) & (stages < INFINITE)

    def _need(self, stages: Ints) -> Ints:
        micro_batches = self.tables.case.num_micro_batches
        if self.tables.need(1) == micro_batches:
            return np.full(len(stages), micro_batches, dtype=np.int64)
        return np.minimum(stages, micro_batches)

    def _filter(self, upper: int) -> None:
        """Drop candidates that cannot be part of a plan below ``upper``."""
        prefix, suffix = self.prefix, self.suffix
        for (offset, size), found in self.alive.items():
            if not len(found):
                continue
            after = offset + size
            reachable = (prefix.stages[offset, found.source] < INFINITE) & (
                suffix.stages[after, found.target] < INFINITE
            )
            found = found.take(reachable)
            source, target = found.source, found.target
            worst = np.maximum(
                np.maximum(prefix.worst[offset, source], found.load),
                suffix.worst[after, target],
            )
            sync = np.maximum(
                np.maximum(prefix.sync[offset, source], found.sync),
                suffix.sync[after, target],
            )
            joint = np.maximum(
                np.maximum(prefix.joint[offset, source], found.joint),
                suffix.joint[after, target],
            )
            bound = (
                prefix.total[offset, source]
                + found.load
                + suffix.total[after, target]
                + np.maximum(self.extra_slots * worst + sync, joint)
            )
            useful = (bound < upper) & self._fits(
                found, suffix.stages[after, target] + 1
            )
            self.alive[offset, size] = found.take(useful)

    def shortest(self) -> Chosen | None:
        """Return a pipeline of the fewest stages that fits, if any.

        Its step time is not computed.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        self.alive = {}
        self._gather()
        self.suffix = self._relax_suffix()
        left = self.suffix.stages
        if left[0, 0] >= INFINITE:
            return None
        chosen = []
        state = offset = 0
        while state != self.num_sets - 1:
            chosen.append(self._first_step(offset, state))
            _, state, _, size = chosen[-1]
            offset += size
        return Chosen(0, chosen)

    def _first_step(
        self, offset: int, state: int
    ) -> tuple[int, int, int, int]:
        """Return a stage that leads on with the fewest stages."""
        left = self.suffix.stages
        for size in self.tables.sizes:
            found = self.alive.get((offset, size))
            if found is None:
                continue
            stages = left[offset + size, found.target] + 1
            good = (found.source == state) & self._fits(found, stages)
            good &= stages == left[offset, state]
            if good.any():
                row = int(np.argmax(good))
                target = int(found.target[row])
                return state, target, int(found.strategy[row]), size
        raise AssertionError("a state without a stage that leads on")

    def most_stages(self) -> Ints:
        """Return the most stages behind every state ``(k, a)``.

        Only candidates that may still be of use count; -1 where there is no
        way to the end.
        """
        most = np.full((self.num_devices + 1, self.num_sets), -1)
        most[:, -1] = 0
        for offset in range(self.num_devices - 1, -1, -1):
            for size in self.tables.sizes:
                found = self.alive.get((offset, size))
                if found is None:
                    continue
                behind = most[offset + size, found.target]
                behind = np.where(behind < 0, -1, behind + 1)
                np.maximum.at(most[offset], found.source, behind)
        return most

    def solve(
        self,
        upper: int,
        max_labels: int | None = None,
    ) -> Chosen | None:
        """Return the best pipeline below ``upper``, or ``None``.

        :meth:`bound` must have been called with the same ``upper`` or a
        larger one.

        Parameters
        ----------
        upper
            Only step times below this count.
        max_labels
            Keep only so many labels per state; the answer is then a plan,
            but not proven best. ``None`` is exact.

        Raises
        ------
        OutOfTimeError
            If the deadline passed.
        """
        levels: dict[int, _Labels] = {}
        for offset in range(self.num_devices - 1, -1, -1):
            self._check_time()
            parts = [
                part
                for size in self.tables.sizes
                if (found := self.alive.get((offset, size))) is not None
                and len(found)
                for part in self._extend(
                    found, offset, size, levels.get(offset + size), upper
                )
            ]
            if parts:
                levels[offset] = self._sorted(_join(parts), offset, max_labels)
        root = levels.get(0)
        if root is None or not len(root.total):
            return None
        times = root.total + self.extra_slots * root.worst + root.sync
        best = int(np.argmin(times))
        if int(times[best]) >= upper:
            return None
        return Chosen(int(times[best]), _trace(levels, best))

    def _extend(
        self,
        found: Candidates,
        offset: int,
        size: int,
        behind: _Labels | None,
        upper: int,
    ) -> list[list[Ints]]:
        """Put every candidate in front of every label it can precede."""
        parts = []
        last = found.target == self.num_sets - 1
        if last.any():
            final = found.take(last)
            one = np.ones(len(final), dtype=np.int64)
            parts.append(
                self._promising(
                    final,
                    offset,
                    size,
                    final.load,
                    final.load,
                    final.sync,
                    one,
                    -one,
                    upper,
                )
            )
        if behind is not None and not last.all():
            front = found.take(~last)
            first = behind.first[front.target]
            count = behind.first[front.target + 1] - first
            repeat = np.repeat(np.arange(len(front)), count)
            if len(repeat):
                starts = np.cumsum(count) - count
                label = np.arange(len(repeat)) - np.repeat(
                    starts - first, count
                )
                front = front.take(repeat)
                parts.append(
                    self._promising(
                        front,
                        offset,
                        size,
                        behind.total[label] + front.load,
                        np.maximum(behind.worst[label], front.load),
                        np.maximum(behind.sync[label], front.sync),
                        behind.stages[label] + 1,
                        label,
                        upper,
                    )
                )
        return parts

    def _promising(
        self,
        front: Candidates,
        offset: int,
        size: int,
        total: Ints,
        worst: Ints,
        sync: Ints,
        stages: Ints,
        label: Ints,
        upper: int,
    ) -> list[Ints]:
        """Keep the new labels that fit and may lead below ``upper``.

        What the layers in front need at least is folded into ``max τ`` and
        ``max Y``: that changes no complete plan, and makes labels that
        differ only below it equal.
        """
        prefix = self.prefix
        source = front.source
        worst = np.maximum(worst, prefix.worst[offset, source])
        sync = np.maximum(sync, prefix.sync[offset, source])
        bound = (
            prefix.total[offset, source]
            + total
            + np.maximum(
                self.extra_slots * worst + sync,
                prefix.joint[offset, source],
            )
        )
        keep = (bound < upper) & self._fits(front, stages)
        if self._rule is not None:
            keep &= self._allowed(self._rule, source, stages, offset)
        where = np.flatnonzero(keep)
        return [
            source[where],
            total[where],
            worst[where],
            sync[where],
            stages[where],
            front.target[where],
            front.strategy[where],
            np.full(len(where), size, dtype=np.int64),
            label[where],
        ]

    def _allowed(
        self, rule: _StageRule, source: Ints, stages: Ints, offset: int
    ) -> NDArray[np.bool_]:
        """Whether some stages in front make an allowed number."""
        least = stages + self.prefix.stages[offset, source]
        most = stages + np.minimum(
            self._num_layers[source], offset // self.tables.sizes[0]
        )
        allowed: NDArray[np.bool_] = np.where(
            source == 0, rule.complete[stages], rule.open[stages]
        )
        allowed &= (least <= rule.most) & (most >= rule.fewest)
        return allowed

    def _sorted(
        self, columns: list[Ints], offset: int, max_labels: int | None
    ) -> _Labels:
        """Drop dominated labels and order the rest by closed set."""
        state, total, worst, sync, stages = columns[:5]
        if self._rule is not None:
            groups = int(self._rule.group.max()) + 1
            state = state * groups + self._rule.group[stages]
        need = self._need(stages)
        estimate = total + self.extra_slots * worst + sync
        order = np.lexsort((need, sync, worst, total, estimate, state))
        keep = _non_dominated(
            state[order],
            total[order],
            worst[order],
            sync[order],
            need[order],
            max_labels,
        )
        kept = [column[order][keep] for column in columns]
        kept.append(np.searchsorted(kept[0], np.arange(self.num_sets + 1)))
        return _Labels(*kept)


def _lower(
    result: Relaxation,
    offset: int,
    where: Ints,
    total: Ints,
    worst: Ints,
    sync: Ints,
    joint: Ints,
    stages: Ints,
) -> None:
    np.minimum.at(result.total[offset], where, total)
    np.minimum.at(result.worst[offset], where, worst)
    np.minimum.at(result.sync[offset], where, sync)
    np.minimum.at(result.joint[offset], where, joint)
    np.minimum.at(result.stages[offset], where, stages)


def _join(parts: list[list[Ints]]) -> list[Ints]:
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _non_dominated(
    state: Ints,
    total: Ints,
    worst: Ints,
    sync: Ints,
    need: Ints,
    max_labels: int | None,
) -> NDArray[np.bool_]:
    """Return which labels of each state no other one beats.

    The labels are ordered by state and then by step time, so a label is
    only ever beaten by an earlier one of its state.
    """
    keep = np.zeros(len(state), dtype=np.bool_)
    starts = np.flatnonzero(np.r_[True, state[1:] != state[:-1]])
    ends = np.r_[starts[1:], len(state)]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rest = np.arange(start, end)
        kept = 0
        while len(rest):
            head = rest[0]
            keep[head] = True
            kept += 1
            if max_labels is not None and kept >= max_labels:
                break
            rest = rest[1:]
            beaten = (
                (total[rest] >= total[head])
                & (worst[rest] >= worst[head])
                & (sync[rest] >= sync[head])
                & (need[rest] >= need[head])
            )
            rest = rest[~beaten]
    return keep


def _trace(
    levels: dict[int, _Labels], label: int
) -> list[tuple[int, int, int, int]]:
    stages = []
    offset = 0
    while label >= 0:
        at = levels[offset]
        size = int(at.size[label])
        stages.append(
            (
                int(at.state[label]),
                int(at.target[label]),
                int(at.strategy[label]),
                size,
            )
        )
        label = int(at.next_label[label])
        offset += size
    return stages
