"""The search of a space finds what looking at every point finds.

Step times are made up, but monotone: what solves and bounds them is a stub
that says as much, or as little, as it may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest.accelerators.objective import NO_PLAN, Objective
from nest.accelerators.search import (
    Group,
    Listed,
    OnProgress,
    PlacementBound,
    Question,
    QuestionStatus,
    State,
    best_points,
    frontier,
)
from nest.errors import SolverError
from nest.solvers.base import Deadline, OutOfTimeError
from nest.util.interrupts import Interrupted
from tests.properties.profiles import examples

VALUES = (1, 2, 4, 8)


@dataclass
class Stub:
    """Knows step times, and tells them as an oracle may."""

    step_quanta: np.ndarray
    parameters: np.ndarray
    random: Random
    asked: list[Question] = field(default_factory=list)
    patience: int | None = None
    stop: Callable[[Deadline], None] = Deadline.expire

    def bound(self, point: int, model: int) -> int:
        step = int(self.step_quanta[model, point])
        if step >= NO_PLAN:
            return self.random.choice([0, NO_PLAN])
        return self.random.choice([0, step // 2, step])

    def solve(
        self, questions: Sequence[Question], deadline: Deadline
    ) -> Iterator[PlacementBound]:
        shuffled = list(questions)
        self.random.shuffle(shuffled)
        for question in shuffled:
            point, model, target = question
            assert question not in self.asked, "asked twice"
            self.asked.append(question)
            if self.patience is not None and len(self.asked) > self.patience:
                self.stop(deadline)
                yield PlacementBound(point, model, 0, False)
            step = int(self.step_quanta[model, point])
            if target < step < NO_PLAN and self.random.random() < 0.5:
                yield PlacementBound(point, model, target + 1, False)
            else:
                yield PlacementBound(point, model, step, True)

    def together(
        self, groups: Sequence[Group], deadline: Deadline
    ) -> Iterator[tuple[Group, int]]:
        for group in reversed(groups):
            steps = self.step_quanta[group.model, list(group.points)]
            if steps.min() > group.target_quanta and self.random.random() < 0.8:
                yield group, group.target_quanta + 1
            else:
                yield group, 0

    def halves(self, group: Group) -> tuple[tuple[int, ...], tuple[int, ...]]:
        middle = len(group.points) // 2
        return group.points[:middle], group.points[middle:]


@dataclass
class Case:
    """A space with its step times."""

    points: Listed
    objective: Objective
    oracle: Stub

    @property
    def costs(self) -> list[int]:
        return self.objective.costs(self.oracle.step_quanta).tolist()

    def state(self) -> State:
        return State(self.points, len(self.oracle.step_quanta))


def draw(seed: int) -> Case:
    random = Random(seed)
    size, models = random.randint(1, 60), random.randint(1, 3)
    parameters = np.array(
        [[random.choice(VALUES) for _ in range(4)] for _ in range(size)]
    )
    prices = np.array(
        [
            [int(10 * p.sum()) + random.choice([0, 0, 1]) for p in parameters],
            [int(3 * p[0]) + random.choice([0, 5]) for p in parameters],
        ],
        dtype=object,
    )
    weights = [[random.choice([0, 1, 5]) for _ in range(4)] for _ in range(models)]
    needed = [random.choice([0, 0, 2, 4]) for _ in range(models)]
    category = [random.choice([0, 0, 1]) for _ in range(size)]
    # Which category is the faster one differs from model to model.
    added = [random.choice([(0, 0), (0, 40), (40, 0)]) for _ in range(models)]
    steps = np.array(
        [
            [
                NO_PLAN
                if p[3] < needed[m]
                else 20 + added[m][which] + int((16 * np.array(weights[m]) // p).sum())
                for p, which in zip(parameters, category, strict=True)
            ]
            for m in range(models)
        ],
        dtype=np.int64,
    )
    objective = Objective(
        random.choice(["geometric-mean", "worst-case"]),
        tuple(random.choice([1, 2]) for _ in range(models)),
        tuple(random.randint(20, 99) for _ in range(models)),
    )
    return Case(
        Listed(parameters, np.array(category), prices),
        objective,
        Stub(steps, parameters, random),
    )


def best(
    state: State,
    case: Case,
    models: range,
    on_wave: OnProgress | None = None,
    among: Any = None,
) -> QuestionStatus:
    return best_points(
        *(state, case.oracle, case.objective, models), *(Deadline(60.0), on_wave, among)
    )


def best_of(case: Case, among: Sequence[int]) -> int | None:
    costs, area = case.costs, case.points.prices[0]
    fits = [(costs[q], area[q], q) for q in among if costs[q] < case.objective.worst]
    return min(fits)[2] if fits else None


@given(seed=st.integers(0, 2**32))
@examples(150)
def test_best_point(seed: int) -> None:
    case = draw(seed)
    state = case.state()
    found = best(state, case, range(len(case.oracle.step_quanta)))
    expected = best_of(case, range(case.points.size))
    assert found.best == expected
    assert found.proven
    least = case.objective.worst if expected is None else case.costs[expected]
    assert found.cost == found.bound == least
    assert (state.lower <= case.oracle.step_quanta).all()
    assert found.counts.total() == case.points.size


@given(seed=st.integers(0, 2**32), patience=st.integers(0, 9))
@examples(100)
def test_a_bound_at_any_time(seed: int, patience: int) -> None:
    """A search that is stopped says what is known, and goes on from there."""
    case = draw(seed)
    case.oracle.patience = patience
    state = case.state()
    models = range(len(case.oracle.step_quanta))
    waves: list[QuestionStatus] = []
    found = best(state, case, models, waves.append)
    least = min(case.costs)
    for known in (*waves, found):
        assert known.bound <= least <= known.cost
        assert known.counts.total() == case.points.size
        if known.best is not None:
            assert known.cost == case.costs[known.best]
        if known.proven:
            assert known.bound == least == known.cost
    for before, after in pairwise((*waves, found)):
        assert before.bound <= after.bound
        assert before.cost >= after.cost
    case.oracle.patience = None
    case.oracle.asked.clear()
    after = best(state, case, models)
    assert after.best == best_of(case, range(case.points.size))
    assert after.proven


def test_ctrl_c_hands_over_what_is_known() -> None:
    """The largest of three takes 50, of the others 30 and 35 are bounds."""

    def interrupt(_: Deadline) -> None:
        raise KeyboardInterrupt

    case = three(70, 60, 50)
    case.oracle.random = Halves()
    case.oracle.patience = 1
    case.oracle.stop = interrupt
    case.points = case.points._replace(category=np.array([0, 1, 2]))
    with pytest.raises(Interrupted) as caught:
        best(case.state(), case, range(1))
    known = caught.value.found
    assert (known.best, known.cost, known.bound) == (2, 50, 30)
    assert known.counts == {"exact": 1, "open": 2, **dict.fromkeys(UNSEEN, 0)}


def test_a_frontier_is_whole_or_none() -> None:
    case = three(70, 60, 50)
    case.oracle.patience = 1
    with pytest.raises(OutOfTimeError):
        frontier(*_asked(case))


@given(seed=st.integers(0, 2**32))
@examples(60)
def test_best_point_of_some(seed: int) -> None:
    """After the best of all, that of some and of each model."""
    case = draw(seed)
    state = case.state()
    models = range(len(case.oracle.step_quanta))
    best(state, case, models)
    among = np.array([Random(seed + q).random() < 0.4 for q in range(case.points.size)])
    found = best(state, case, models, among=among)
    assert found.best == best_of(case, np.flatnonzero(among).tolist())


@given(seed=st.integers(0, 2**32))
@examples(100)
def test_frontier(seed: int) -> None:
    case = draw(seed)
    costs, prices = case.costs, case.points.prices
    fits = [q for q in range(case.points.size) if costs[q] < case.objective.worst]

    def beats(one: int, other: int) -> bool:
        left = (costs[one], *prices[:, one])
        right = (costs[other], *prices[:, other])
        no_worse = all(a <= b for a, b in zip(left, right, strict=True))
        return no_worse and (left != right or one < other)

    models = range(len(case.oracle.step_quanta))
    found = frontier(
        *(case.state(), case.oracle, case.objective, models), Deadline(None)
    )
    assert sorted(found) == [
        q for q in fits if not any(beats(p, q) for p in fits if p != q)
    ]


#: What settles no point of a search that is stopped at once.
UNSEEN = ("placement", "together", "bound", "dominance")


class Halves(Random):
    """Lets a stub bound steps by half of them."""

    def choice(self, seq: Any) -> Any:
        return seq[1]

    def random(self) -> float:
        return 0.9


class Silent(Random):
    """Lets a stub say as little as it may."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def random(self) -> float:
        return 0.9


def three(*steps: int) -> Case:
    """Three points in a row, each larger than the one before."""
    parameters = np.array([[1], [2], [4]])
    return Case(
        Listed(
            parameters,
            np.zeros(3, dtype=np.int64),
            np.array([[10, 20, 30]], dtype=object),
        ),
        Objective("geometric-mean", (1,), (100,)),
        Stub(np.array([steps]), parameters, Random(0)),
    )


def test_the_smaller_of_equals() -> None:
    """All take 50: the largest is looked at first, the smallest wins."""
    assert best_points(*_asked(three(50, 50, 50))).best == 0


def test_no_point_fits() -> None:
    case = three(NO_PLAN, NO_PLAN, NO_PLAN)
    found = best_points(*_asked(case))
    assert (found.best, found.proven) == (None, True)
    assert frontier(*_asked(case)) == []


def test_larger_points_bound_smaller_ones() -> None:
    """The largest takes 50 and the middle one more: the last is not asked."""
    case = three(70, 60, 50)
    case.oracle.random = Silent()
    assert best_points(*_asked(case)).best == 2
    assert 0 not in {question.point for question in case.oracle.asked}


def test_larger_and_slower_is_a_bug() -> None:
    with pytest.raises(SolverError, match=r"point \d: .* please report"):
        frontier(*_asked(three(40, 50, 60)))


def _asked(case: Case) -> tuple[State, Stub, Objective, range, Deadline]:
    return (*(case.state(), case.oracle, case.objective, range(1)), Deadline(None))


def test_targets() -> None:
    """``3 T <= 30`` up to 10, and ``max(T / 20, 5 / 10) <= 1/2`` too."""
    product = Objective("geometric-mean", (1, 1), (1, 1))
    assert product.target([0, 3], 0, 30) == 10
    assert product.target([0, 3], 0, -1) == -1
    worst = Objective("worst-case", (1, 1), (20, 10))
    assert worst.cost([10, 5]) == 100
    assert worst.target([0, 5], 0, 100) == 10


def test_relative() -> None:
    """Twice and half as fast: 1 in the mean, more if weighted."""
    assert Objective("geometric-mean", (1, 1), (10, 10)).relative(
        [5, 20]
    ) == pytest.approx(1)
    assert Objective("geometric-mean", (2, 1), (10, 10)).relative(
        [5, 20]
    ) == pytest.approx(2 ** (1 / 3))
    assert Objective("worst-case", (1, 1), (10, 10)).relative([5, 20]) == 0.5
    assert Objective("worst-case", (1,), (10,)).relative([NO_PLAN]) == 0
