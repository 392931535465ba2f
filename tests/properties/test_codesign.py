"""Answers about random spaces are what enumerating them gives.

Optimum with its ties, frontier, neighbors, and every bound below the exact
step. ``python -m tests.random_spaces`` does it for 20 spaces of 200 points.
"""

from __future__ import annotations

import pytest

from tests.properties.profiles import PROFILE
from tests.random_spaces import check, compare, random_spec

#: Points of a space, at most.
SIZE = 200 if PROFILE == "full" else 16

SEEDS = range(20 if PROFILE == "full" else 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_are_those_of_an_enumeration(seed: int) -> None:
    spec, _, every = compare(seed, SIZE)
    assert len(every.steps) == 3
    assert len(every.steps[0]) == len(spec.space.points)


def test_spaces_are_not_alike() -> None:
    """Limits cut, models are compared in both ways, some are large."""
    specs = [random_spec(seed, 60)[0] for seed in range(12)]
    assert any(sum(spec.space.cut.values()) for spec in specs)
    assert {spec.objective.kind for spec in specs} == {
        *("geometric-mean", "worst-case")
    }
    assert max(len(spec.space.points) for spec in specs) > 30


def test_wrong_answers_are_noticed() -> None:
    """Another best point, a point too many on the frontier."""
    spec, found, every = compare(1, SIZE)
    *others, last = found.best
    assert last.found is not None
    other = next(p for p in spec.space.points if p != last.found.point)
    wrong = last._replace(found=last.found._replace(point=other))
    with pytest.raises(AssertionError):
        check(spec, found._replace(best=(*others, wrong)), every)
    with pytest.raises(AssertionError):
        check(spec, found._replace(frontier=found.frontier[1:]), every)
