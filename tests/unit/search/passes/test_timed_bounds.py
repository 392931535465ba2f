"""Bounds on plans that are timed pass by pass."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from formulations.cpsat.solver import CpSatSolver
from formulations.milp.solver import MilpSolver
from formulations.timed import LayerChoiceProgram
from nest.cost.schedules import schedule_of
from nest.search.passes.chunks import moments
from nest.search.solver import DpSolver
from nest.solvers.base import Deadline, SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.builders import make_cost, make_levels, make_problem

FREE = make_levels((4, 0.0, 1e18))


@pytest.mark.parametrize("blocks", [2, 3, 4])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_most_paired_is_what_the_lists_have(blocks, more):
    schedule, count = schedule_of("dualpipe-v"), 2 * blocks + more
    found = Counter()
    for block in range(blocks):
        for run, after in itertools.pairwise(schedule.passes(block, blocks, count)):
            if run.paired:
                found[run.chunk, "forward"] += 1
                found[after.chunk, "backward"] += 1
    assert max(found.values()) == schedule.most_paired(blocks, count)


def test_moments_of_a_block_by_hand():
    """ZB-H1, two blocks, M = 4: F F I F I W F I W I W W, two in flight."""
    assert moments(schedule_of("zb-h1"), 2, 4, 0).ravel().tolist() == [0, 1, 2]
    assert moments(schedule_of("zb-v"), 2, 6, 0).sum(axis=1).max() == 4


# What dp proves


def equal(count, **fields):
    names = [f"l{i}" for i in range(count)]
    return make_problem(
        dict.fromkeys(names, make_cost(10, 20)),
        edge=0,
        **{
            "devices": 2,
            "global_batch": 4,
            "replicas": (1,),
            "topology": FREE,
            **fields,
        },
    )


@pytest.mark.parametrize(
    ("schedule", "step"),
    [
        # two blocks of 2 · 30 and a bubble of 2 · 10
        ("zb-h1", 4 * 60 + 20),
        # and of a chunk, 10
        ("zb-v", 4 * 60 + 10),
        # and of two chunks
        ("dualpipe-v", 4 * 60 + 20),
    ],
)
def test_equal_layers(schedule, step):
    """Chunks of 10 + 10 + 10 ns."""
    output = DpSolver().solve(
        equal(4, schedule=schedule, pipeline_parallel=(2,)), SolveOptions()
    )
    assert (output.status, output.claimed_quanta) == (Status.OPTIMAL, step)
    assert output.plan.num_blocks == 2


# The work of all devices


def test_the_price_of_memory_by_hand():
    """Three layers of 10 for 4 bytes, or of 14 for none, with 8 bytes.

    Two take 10: 34. At a price of 1 a byte, 3 · min(14, 14) - 8 = 34.
    """
    work = LayerChoiceProgram((3,), ((10, 14),), ((4, 0),), 8)
    assert work.priced(0, 1) == 30
    assert work.priced(1, 1) == 34
    assert work.priced(1, 2) == 32
    for solver in (CpSatSolver(), MilpSolver()):
        assert solver.least_work(work, Deadline(None), SolveOptions()) == 34


def test_whole_layers_take_more_than_parts_of_them():
    """With 6 bytes one and a half of three layers take 10; whole, one."""
    work = LayerChoiceProgram((3,), ((10, 14),), ((4, 0),), 6)
    options = SolveOptions()
    assert CpSatSolver().least_work(work, Deadline(None), options) == 38
    assert MilpSolver().least_work(work, Deadline(None), options) == 36


@pytest.mark.parametrize("solver", ["cpsat", "milp"])
def test_no_work_fits_without_room(solver):
    work = LayerChoiceProgram((3,), ((10, 14),), ((4, 1),), 2)
    assert get_solver(solver)().least_work(work, Deadline(None), SolveOptions()) is None


@pytest.mark.parametrize("solver", ["cpsat", "milp"])
def test_many_plans_are_bounded_by_their_work(solver, monkeypatch):
    """Eight layers of 30 on two devices: 4 · 120 at least."""
    monkeypatch.setattr("formulations.timed.MAX_PLANS", 1)
    problem = equal(8, virtual_stages=(2,))
    output = get_solver(solver)().solve(problem, SolveOptions())
    assert output.status is Status.FEASIBLE
    assert output.lower_bound_quanta == 480
    assert output.claimed_quanta == 540
    assert "bounded by the work of all devices" in output.detail


def test_a_micro_batch_goes_there_and_back(monkeypatch):
    """One of them, through four layers: 4 · 20, gradients of weights wait."""
    monkeypatch.setattr("formulations.timed.MAX_PLANS", 1)
    problem = equal(4, devices=4, global_batch=1, schedule="zb-h1")
    output = get_solver("cpsat")().solve(problem, SolveOptions())
    assert output.lower_bound_quanta == 4 * 20
    assert np.isclose(output.claimed_quanta, 90)
