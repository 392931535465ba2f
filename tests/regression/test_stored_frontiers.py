"""The search on every stored frontier; tolerance 0 quanta and bytes."""

from __future__ import annotations

import pytest

from nest.ir import problem_hash
from tests.clock import Ticking
from tests.frontiers import (
    MERGING,
    SETTINGS,
    check_limited,
    enumerated,
    merged,
    pairs,
    search,
    searched,
)
from tests.regression.frontiers import load, stored

#: More than the search of any stored problem asks for the time.
MOST_TICKS = 100_000

#: Stored problems with a strategy per layer.
LAYERED = [name for name in stored() if load(name).problem.job.granularity == "layer"]


def test_frontiers_are_there():
    assert len(stored()) >= 10


@pytest.mark.parametrize("name", stored())
def test_a_stored_problem_is_the_one_that_was_enumerated(name):
    known = load(name)
    assert problem_hash(known.problem) == known.problem_hash
    assert enumerated(known.problem) == known.points


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", stored())
def test_the_known_frontier_is_proven_again(name, setting):
    known = load(name)
    assert searched(known.problem, setting) == known.points


@pytest.mark.parametrize("setting", MERGING)
@pytest.mark.parametrize("name", LAYERED)
def test_merging_alone_proves_a_frontier_per_layer(name, setting):
    known = load(name)
    points, gaps = merged(known.problem, setting)
    assert gaps == []
    assert pairs(points) == known.points


@pytest.mark.parametrize("name", LAYERED)
def test_what_a_limit_leaves_of_merging_is_said(name):
    known = load(name)
    ticks, gaps = 0, [known]
    while gaps:
        points, gaps = merged(known.problem, "as-it-is", Ticking(ticks))
        check_limited(points, gaps, known.points)
        ticks += 1 + ticks // 4


@pytest.mark.parametrize("name", stored())
def test_two_processes_prove_it_too(name):
    known = load(name)
    assert searched(known.problem, "labels-alone", workers=2) == known.points


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", stored())
def test_what_a_limit_leaves_open_is_said(name, workers):
    """Wherever the time is up, in this process or in a forked one."""
    known = load(name)
    for setting in ("labels-alone", "levels-cut-again"):
        ticks = 0
        while ticks < MOST_TICKS:
            points, gaps = search(known.problem, setting, Ticking(ticks), workers)
            check_limited(points, gaps, known.points)
            if not gaps:
                assert pairs(points) == known.points
                break
            # Forking takes far longer than what a tick stands for.
            ticks += 1 + ticks // (8 if workers == 1 else 4)
        else:
            pytest.fail(f"gaps are left after {MOST_TICKS} ticks")


def test_a_case_that_no_process_began_stays_open():
    """Two processes give up in the first two cases; the third has the point.

    At some tick, whichever that is: all of them are tried.
    """
    known = load("three-micro-batches")
    for ticks in range(MOST_TICKS):
        points, gaps = search(known.problem, "labels-alone", Ticking(ticks), workers=2)
        check_limited(points, gaps, known.points)
        if not gaps:
            break
    assert pairs(points) == known.points
