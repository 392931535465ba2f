"""Frontiers in all objectives equal those of every plan on every size."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from formulations.brute import PlanSpace
from nest.analysis.fit import with_devices
from nest.analysis.pareto import Frontier, FrontierPoint, frontier
from nest.analysis.prove import prove
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Problem
from nest.solvers.base import Deadline
from tests.builders import with_device
from tests.inside import run_inside
from tests.properties import test_piper
from tests.properties.profiles import examples
from tests.strategies import Draw, problems

Vector = tuple[int, ...]

#: Time, memory and devices to the value of an objective.
VALUES = {
    "time": lambda t, m, n: t,
    "memory": lambda t, m, n: m,
    "devices": lambda t, m, n: n,
    "cost": lambda t, m, n: t * n,
}


def all_plans(problem: Problem, sizes: list[int]) -> set[Vector]:
    """Return (time, memory, devices) of every plan that fits."""
    found = set()
    for size in sizes:
        small = with_devices(problem, size)
        model = CostModel(small)
        for plan in PlanSpace(small, model, Deadline(None)).plans():
            priced = score(small, plan, model)
            if priced.feasible:
                memory = max(b.memory_bytes for b in priced.blocks)
                found.add((priced.step_quanta, memory, size))
    return found


def non_dominated(vectors: set[Vector]) -> set[Vector]:
    kept: list[Vector] = []
    for vector in sorted(vectors):
        if not any(
            all(a <= b for a, b in zip(other, vector, strict=True)) for other in kept
        ):
            kept.append(vector)
    return set(kept)


def in_objectives(vectors: set[Vector], names: list[str]) -> set[Vector]:
    return non_dominated({tuple(VALUES[name](*v) for name in names) for v in vectors})


def vector(point: FrontierPoint) -> Vector:
    return point.step_quanta, point.memory_bytes, point.devices


def check(problem: Problem, names: list[str]) -> Frontier:
    sizes = list(range(1, problem.cluster.num_devices + 1))
    found = frontier(problem, names, devices=sizes)
    expected = in_objectives(all_plans(problem, sizes), names)
    assert found.proven
    assert in_objectives({vector(p) for p in found.points}, names) == expected
    # One plan per point, and each of them on the frontier.
    assert len(found.points) == len(expected)
    for point in found.points:
        assert score(found.curve(point.devices).problem, point.plan) == point.score
    return found


@st.composite
def priced_problems(draw: Draw) -> Problem:
    problem = draw(
        st.one_of(
            problems(),
            problems(preset="standard", restricted=True),
            problems(granularity="layer"),
        )
    )
    return with_device(problem, price_usd_per_hour=2.5)


@examples(60, full=1000)
@given(priced_problems())
def test_time_memory_and_devices_are_those_of_all_plans(problem):
    check(problem, ["time", "memory", "devices"])


@examples(60, full=1000)
@given(
    priced_problems(), st.lists(st.sampled_from(tuple(VALUES)), min_size=1, unique=True)
)
def test_every_choice_of_objectives_is_a_filter(problem, names):
    """Of the frontier of time, memory and devices; enumeration knows."""
    check(problem, names)


@examples(30, full=300)
@given(test_piper.problems())
def test_frontiers_where_ranks_take_turns(problem):
    check(problem, ["time", "memory", "devices"])


@examples(20, full=200)
@given(
    st.one_of(
        problems(preset="standard"),
        problems(preset="standard", restricted=True),
        problems(granularity="layer"),
    ),
    st.sampled_from(("brute", "cpsat")),
)
def test_other_exact_solvers_prove_every_point(problem, solver):
    found = frontier(problem)
    with mock.patch("nest.analysis.prove.run_solver", run_inside):
        for point in found.points[:4]:
            assert prove(found, point, solver).verdict == "proven"
