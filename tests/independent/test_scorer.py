"""The independent scorer says of random plans what ``nest.score`` says."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from nest.ir import Strategy
from tests.independent.compare import differences
from tests.independent.generate import draw_pair
from tests.independent.standard import groups
from tests.properties.profiles import PROFILE

#: Pairs in all; CI draws the same ones on every run.
COUNTS = {"dev": 300, "ci": 3000, "full": 12_000}
PER_TEST = 300


@pytest.mark.parametrize("first", range(0, COUNTS[PROFILE], PER_TEST))
def test_scores_agree(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        problem, plan = draw_pair(Random(seed))
        _, found = differences(problem, plan)
        assert not found, f"pair {seed}: {'; '.join(found)}"


@pytest.mark.parametrize(
    ("dp", "cp", "tp", "ep"),
    [
        (dp, cp, tp, ep)
        for dp, cp, tp in itertools.product((1, 2, 3), repeat=3)
        for ep in (1, 2, 3, 6)
        if dp * cp % ep == 0
    ],
)
def test_groups_are_those_of_the_coordinates(
    dp: int, cp: int, tp: int, ep: int
) -> None:
    # The page gives the groups by size and stride, and the ranks by
    # coordinates: both are the same.
    strategy = Strategy(dp=dp, cp=cp, tp=tp, ep=ep)
    place = {
        (i, j, t): (i * cp + j) * tp + t
        for i in range(dp)
        for j in range(cp)
        for t in range(tp)
    }
    alike = {
        "tp": lambda i, j, t: (i, j),
        "cp": lambda i, j, t: (i, t),
        "dp": lambda i, j, t: (j, t),
        "ep": lambda i, j, t: ((i * cp + j) // ep, t),
        "data": lambda i, j, t: t,
        "expert-data": lambda i, j, t: ((i * cp + j) % ep, t),
    }
    for axis, key in alike.items():
        expected: dict[object, list[int]] = {}
        for at, rank in place.items():
            expected.setdefault(key(*at), []).append(rank)
        assert sorted(expected.values()) == sorted(groups(strategy, axis, [0]))
    assert sorted(groups(strategy, "sync", [0, 100])) == sorted(
        [*group, *[100 + rank for rank in group]]
        for group in groups(strategy, "data", [0])
    )
    assert groups(strategy, "replicas", [0, 100]) == [
        [rank, 100 + rank] for rank in range(dp * cp * tp)
    ]
