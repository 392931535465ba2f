"""The best points of a listed space of architectures, proven.

Every point has a lower bound on the step time of each model. Bounds come from

- the operators of its layers and the number of its devices (``bound``),
- the placement with lower bounds of its schedules, and with optimal ones
  (``solve``),
- points that are at least as large in every parameter: as more of anything
  slows nothing, no step of a point is shorter than that of such a point.

So only points that no open point dominates are looked at, the most promising
first. A point is cut where its bounds show that it cannot be asked for: the
optimum, or a place on the frontier. What is left is solved exactly, and the
search ends when every point is cut or solved. At any moment the least bound of
all points is one on the cost of the best, so that a search that is stopped
still says how far from the optimum its answer is at most.

The order in which points are looked at, and so the answer and all counts, do
not depend on how many processes solve them, nor on what was solved before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nest.accelerators.objective import Objective, Whole
from nest.errors import SolverError
from nest.solvers.base import Deadline, OutOfTimeError
from nest.util.interrupts import Interrupted

Ints = NDArray[np.int64]
Flags = Any

#: Points that are solved before bounds are looked at again; fewer while there
#: is nothing to compare them with, which makes each dear.
WAVE = 8
FIRST_WAVE = 2

#: The search solves the points of smaller groups one by one.
LEAST_PARTED = 16

#: What settled a point: a larger point, a bound from its operators, the
#: placement together with points that are alike, its own placement, which
#: takes longer than the best, or whose step time is known; or nothing yet.
Reason = Literal["dominance", "bound", "together", "placement", "exact", "open"]


class Question(NamedTuple):
    """A point and a model to solve, and the longest step of interest."""

    point: int
    model: int
    target_quanta: int


class PlacementBound(NamedTuple):
    """The answer to a question.

    ``lower_quanta`` is a lower bound on the step time, above the target unless it is
    exact; :data:`~nest.accelerators.objective.NO_PLAN` where no plan fits.
    """

    point: int
    model: int
    lower_quanta: int
    exact: bool


class Group(NamedTuple):
    """Points of one category, with a limit on their step time."""

    points: tuple[int, ...]
    model: int
    target_quanta: int


class Oracle(Protocol):
    """A source of bounds and step times of points."""

    def bound(self, point: int, model: int) -> int:
        """Return a quick lower bound on a step time, in quanta."""

    def solve(
        self, questions: Sequence[Question], deadline: Deadline
    ) -> Iterable[PlacementBound]:
        """Answer questions, in any order.

        What is known when time runs out is an answer too, below the target.
        """

    def together(
        self, groups: Sequence[Group], deadline: Deadline
    ) -> Iterable[tuple[Group, int]]:
        """Bound the step times of all points of each group, in any order.

        The bound is above the target, or it is 0 and nothing is known.
        """

    def halves(self, group: Group) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Part two or more points so that those of each part are alike."""


class Listed(NamedTuple):
    """The points of a space as arrays.

    More of any of ``parameters`` ``(points, parameters)`` slows nothing, among points
    of the same ``category``. Less is better of ``prices`` ``(prices, points)``, which
    are whole numbers: the area comes first.
    """

    parameters: Ints
    category: Ints
    prices: Whole

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.parameters)

    def below(self, point: int) -> Flags:
        """Return which points another one dominates, itself included."""
        smaller: Flags = (self.parameters <= self.parameters[point]).all(axis=1)
        return smaller & (self.category == self.category[point])

    def above(self, point: int, chosen: Ints) -> Flags:
        """Return which of some points dominate another one."""
        more = self.parameters[chosen] >= self.parameters[point]
        same = self.category[chosen] == self.category[point]
        return more.all(axis=1) & same

    def maximal(self, chosen: Ints) -> Ints:
        """Return those of some points that no other of them dominates."""
        order = np.lexsort(self.parameters[chosen].T)[::-1]
        remaining = chosen[order]
        maximal = []
        while len(remaining):
            # The last in lexical order of what is left dominates or is free.
            first = remaining[0]
            maximal.append(first)
            remaining = remaining[~self.below(first)[remaining]]
        return np.array(sorted(maximal), dtype=np.int64)


class State:
    """The knowledge of every point: bounds, exact step times, reasons."""

    def __init__(self, points: Listed, num_models: int) -> None:
        self.points = points
        shape = num_models, points.size
        self.lower: Ints = np.zeros(shape, dtype=np.int64)
        self.exact: Flags = np.zeros(shape, dtype=bool)
        self.bounded: Flags = np.zeros(shape, dtype=bool)
        self.solved: Flags = np.zeros(shape, dtype=bool)
        self.alone: Flags = np.zeros(shape, dtype=bool)
        self.grouped: Flags = np.zeros(shape, dtype=bool)

    def raise_lower(self, point: int, model: int, quanta: int) -> None:
        """Take a lower bound: it holds for all that the point dominates."""
        if quanta <= self.lower[model, point]:
            return
        row, below = self.lower[model], self.points.below(point)
        solved = below & self.exact[model]
        if (row[solved] < quanta).any():
            raise SolverError(
                f"point {point}: no step is shorter than {quanta} quanta, but "
                f"a smaller point has one of {row[solved].min()}; please "
                f"report this space"
            )
        row[below] = np.maximum(row[below], quanta)

    def raise_all(self, category: int, model: int, quanta: int) -> None:
        """Take a lower bound that holds for all points of a category."""
        members = self.points.category == category
        row = self.lower[model]
        row[members] = np.maximum(row[members], quanta)

    def take(self, answer: PlacementBound) -> None:
        """Take what solving came to."""
        point, model = answer.point, answer.model
        self.raise_lower(point, model, answer.lower_quanta)
        self.solved[model, point] = True
        if answer.exact:
            if answer.lower_quanta < self.lower[model, point]:
                raise SolverError(
                    f"point {point}: a step of {answer.lower_quanta} quanta is below "
                    f"its bound {self.lower[model, point]}; please report this space"
                )
            self.exact[model, point] = True

    def reasons(
        self, models: Sequence[int], among: Flags, still_open: Flags
    ) -> Counter[Reason]:
        """Count what settled some points, as far as some models go."""
        chosen = list(models)
        uncounted = among.copy()
        counts: Counter[Reason] = Counter()
        flags: dict[Reason, Flags] = {
            "open": still_open,
            "exact": self.exact[chosen].all(axis=0),
            "placement": self.solved[chosen].any(axis=0),
            "together": self.grouped[chosen].any(axis=0),
            "bound": self.bounded[chosen].any(axis=0),
            "dominance": among,
        }
        for reason, flag in flags.items():
            counts[reason] = int((uncounted & flag).sum())
            uncounted &= ~flag
        return counts


#: Of bounds on costs ``(points,)``, which points cannot be asked for, and up
#: to which cost each can.
Cut = Callable[[Whole, Flags], tuple[Flags, Whole]]


class QuestionStatus(NamedTuple):
    """The state of a question.

    ``best`` is the best point of which everything is known, of several the smallest,
    then the first; ``None`` if there is none. No point has a smaller cost than
    ``bound``.
    """

    counts: Counter[Reason]
    best: int | None
    cost: int
    bound: int

    @property
    def proven(self) -> bool:
        """Whether no point is better, or none fits."""
        return not self.counts["open"]


#: Called with what is known after every wave of answers.
OnProgress = Callable[[QuestionStatus], None]


@dataclass(frozen=True)
class _Settling:
    """A question: which points of some can be asked for.

    Of lower bounds on the costs and of which of them are exact, ``cut`` says which
    points cannot be asked for, and for every point the largest cost with which it can.
    """

    state: State
    oracle: Oracle
    objective: Objective
    models: list[int]
    among: Flags
    deadline: Deadline
    cut: Cut

    def run(self, after_wave: Callable[[Whole, Flags], None]) -> None:
        """Solve points until every one is solved or cut.

        ``after_wave`` is called after every wave of answers, with bounds on
        costs and which points are open. After an ``OutOfTimeError`` the state has
        what is known by then.
        """
        state = self.state
        size = FIRST_WAVE
        waved = False
        while True:
            costs, still_open, max_costs = self.standing()
            if waved:
                after_wave(costs, still_open)
                waved = False
            open_points = np.flatnonzero(still_open)
            if not len(open_points):
                return
            maximal = state.points.maximal(open_points)
            if self._bound(maximal):
                continue
            # What is known before is not worth comparing with.
            if size > FIRST_WAVE and self._rule_out(maximal, max_costs):
                continue
            promising = sorted(
                maximal, key=lambda x: (costs[x], *_rank(state.points, x))
            )
            questions = [
                self._question(int(point), int(max_costs[point]))
                for point in promising[:size]
            ]
            size = WAVE
            for answer in self.oracle.solve(questions, self.deadline):
                state.take(answer)
                self.deadline.check()
            waved = True

    def standing(self) -> tuple[Whole, Flags, Whole]:
        """Return bounds on costs, which points are open, and up to where."""
        settled = self.state.exact[self.models].all(axis=0)
        costs = self.objective.costs(self.state.lower[self.models])
        ruled_out, max_costs = self.cut(costs, settled & self.among)
        return costs, self.among & ~settled & ~ruled_out, max_costs

    def _bound(self, points: Ints) -> bool:
        """Bound points as far as that is quick; return if anything is new."""
        state, new = self.state, False
        for point in points.tolist():
            for model in self.models:
                if state.exact[model, point]:
                    continue
                before = state.lower[model, point]
                if not state.bounded[model, point]:
                    self.deadline.check()
                    state.bounded[model, point] = True
                    bound = self.oracle.bound(point, model)
                    state.raise_lower(point, model, bound)
                new |= bool(state.lower[model, point] > before)
        return new

    def _rule_out(self, points: Ints, max_costs: Whole) -> bool:
        """Rule out points together, as far as they are alike.

        Of a group the shortest times of each layer and the largest memory and rates
        make a point that is at least as fast as any of them. Where its best plan is too
        slow, so is theirs; else the group is parted. Returns if anything was ruled out.
        """
        state, new = self.state, False
        category = state.points.category
        for model in self.models:
            unseen = points[~state.alone[model, points] & ~state.exact[model, points]]
            state.alone[model, unseen] = True
            groups = [
                unseen[category[unseen] == each] for each in np.unique(category[unseen])
            ]
            pending = deque(
                tuple(group.tolist()) for group in groups if len(group) >= LEAST_PARTED
            )
            while pending:
                wave = [
                    self._group(pending.popleft(), model, max_costs)
                    for _ in range(min(WAVE, len(pending)))
                ]
                bounds = {}
                for group, bound in self.oracle.together(wave, self.deadline):
                    bounds[group] = bound
                    self.deadline.check()
                for group in wave:
                    if bounds[group] > group.target_quanta:
                        new = True
                        for point in group.points:
                            state.raise_lower(point, model, bounds[group])
                            state.grouped[model, point] = True
                    elif len(group.points) >= LEAST_PARTED:
                        pending.extend(self.oracle.halves(group))
        return new

    def _group(self, points: tuple[int, ...], model: int, max_costs: Whole) -> Group:
        targets = (
            self._target(point, model, int(max_costs[point])) for point in points
        )
        return Group(points, model, max(targets))

    def _question(self, point: int, max_cost: int) -> Question:
        """Return what to solve next of a point."""
        model = next(m for m in self.models if not self.state.exact[m, point])
        return Question(point, model, self._target(point, model, max_cost))

    def _target(self, point: int, model: int, max_cost: int) -> int:
        """Return the longest step of a model that keeps a point's cost."""
        times = self.state.lower[self.models, point].tolist()
        return self.objective.target(times, self.models.index(model), max_cost)


def _rank(points: Listed, point: int) -> tuple[int, int]:
    """Return what ties are broken by: the area, then the place."""
    return int(points.prices[0, point]), int(point)


def best_points(
    state: State,
    oracle: Oracle,
    objective: Objective,
    models: Sequence[int],
    deadline: Deadline,
    on_wave: OnProgress | None = None,
    among: Flags | None = None,
) -> QuestionStatus:
    """Find the best point; of several the smallest, then the first.

    ``among`` says which points are meant, by default all.

    Raises ``Interrupted`` on Ctrl-C, with what is known by then.
    """
    points = state.points
    if among is None:
        among = np.ones(points.size, dtype=bool)
    ranks = [_rank(points, point) for point in range(points.size)]

    def incumbent(costs: Whole, settled: Flags) -> tuple[int, int, int] | None:
        candidates = [
            (costs[point], *ranks[point])
            for point in np.flatnonzero(settled)
            if costs[point] < objective.worst
        ]
        return min(candidates, default=None)

    def cut(costs: Whole, settled: Flags) -> tuple[Flags, Whole]:
        best = incumbent(costs, settled)
        max_costs = np.full(points.size, objective.worst - 1, dtype=object)
        if best is None:
            return np.array(costs >= objective.worst, dtype=bool), max_costs
        later = np.array([rank > best[1:] for rank in ranks], dtype=bool)
        max_costs[:] = best[0] - later.astype(object)
        return np.array(costs > max_costs, dtype=bool), max_costs

    def known(costs: Whole, still_open: Flags) -> QuestionStatus:
        settled = state.exact[list(models)].all(axis=0) & among
        best = incumbent(costs, settled)
        return QuestionStatus(
            state.reasons(models, among, still_open),
            None if best is None else best[2],
            objective.worst if best is None else best[0],
            min(costs[among], default=objective.worst),
        )

    settling = _Settling(state, oracle, objective, list(models), among, deadline, cut)

    def by_now() -> QuestionStatus:
        costs, still_open, _ = settling.standing()
        return known(costs, still_open)

    def after_wave(costs: Whole, still_open: Flags) -> None:
        if on_wave is not None:
            on_wave(known(costs, still_open))

    try:
        settling.run(after_wave)
    except OutOfTimeError:
        pass
    except KeyboardInterrupt as cause:
        raise Interrupted(by_now()) from cause
    return by_now()


def frontier(
    state: State,
    oracle: Oracle,
    objective: Objective,
    models: Sequence[int],
    deadline: Deadline,
    on_counts: Callable[[Counter[Reason]], None] | None = None,
) -> list[int]:
    """Return the points that no other is better than in cost and prices.

    Of points that are equal in all, the first is returned; by rising cost.

    Raises ``OutOfTimeError`` if not all of them are known in time.
    """
    points = state.points
    prices = points.prices
    max_costs = np.full(points.size, objective.worst - 1, dtype=object)
    seen = np.zeros(points.size, dtype=bool)

    def cut(costs: Whole, settled: Flags) -> tuple[Flags, Whole]:
        # What is settled stays so: each point limits others once.
        for point in np.flatnonzero(settled & ~seen):
            seen[point] = True
            if costs[point] >= objective.worst:
                continue
            cheaper = (prices[:, [point]] <= prices).all(axis=0)
            less = (prices[:, [point]] < prices).any(axis=0)
            # Equal in all: the first of them stands.
            first = less | (np.arange(points.size) > point)
            limit = (~first).astype(object) + (costs[point] - 1)
            others = cheaper.astype(bool)
            others[point] = False
            max_costs[others] = np.minimum(max_costs[others], limit[others])
        out = np.array((costs >= objective.worst) | (costs > max_costs), dtype=bool)
        return out, max_costs

    everywhere = np.ones(points.size, dtype=bool)

    def after_wave(_: Whole, still_open: Flags) -> None:
        if on_counts is not None:
            on_counts(state.reasons(models, everywhere, still_open))

    _Settling(state, oracle, objective, list(models), everywhere, deadline, cut).run(
        after_wave
    )
    settled = state.exact[list(models)].all(axis=0)
    costs = objective.costs(state.lower[list(models)])
    ruled_out, _ = cut(costs, settled)
    indices = np.flatnonzero(settled & ~ruled_out).tolist()
    return sorted(indices, key=lambda x: (costs[x], *_rank(points, x)))
