"""What is proven of interleaved plans.

Problems of tests/unit/search/passes/test_interleaved.py: layers of 10 + 20 ns on two
devices, messages free, four micro-batches.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.ir import Strategy
from nest.search.passes import interleaved, interleaved_exact
from nest.search.solver import DpSolver
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.builders import make_cost, make_levels, make_problem

FREE = make_levels((4, 0.0, 1e18))


def chain(costs, **fields):
    names = [f"l{i}" for i in range(len(costs))]
    return make_problem(
        dict(zip(names, costs, strict=True)),
        edge=0,
        **{
            "devices": 2,
            "global_batch": 4,
            "replicas": (1,),
            "virtual_stages": (1, 2),
            "topology": FREE,
            **fields,
        },
    )


def solve(problem, **options):
    return DpSolver().solve(problem, SolveOptions(**options))


@pytest.mark.parametrize("virtual", [(1, 2), (2,), (1, 2, 4)])
def test_few_plans_are_proven(virtual):
    """Two blocks of 4 · 30 and a bubble of 120 / v."""
    output = solve(chain([make_cost(10, 20)] * 8, virtual_stages=virtual))
    step = 480 + 120 // virtual[-1]
    assert (output.status, output.claimed_quanta) == (Status.OPTIMAL, step)
    assert output.lower_bound_quanta == step
    assert output.plan.virtual_stages == virtual[-1]


def test_chunks_may_have_strategies_of_their_own():
    """Blocks (a, c) and (b, d); b can only run with full recomputation.

    60 ns per micro-batch on either block, so at least 4 · 60; every plan
    waits for 40 more, as enumeration says.
    """
    cost = make_cost(15, 0)
    again = replace(cost.activations[0], recompute="full")
    fast = replace(cost, activations=(again,))
    even = make_cost(10, 20)
    problem = chain([even, fast, even, even], recompute=("none", "full"))
    output = solve(problem)
    brute = get_solver("brute")().solve(problem, SolveOptions())
    assert output.status is brute.status is Status.OPTIMAL
    assert output.claimed_quanta == brute.claimed_quanta == 280
    assert [stage.strategy for stage in output.plan.stages] == [
        Strategy(),
        Strategy(recompute="full"),
        Strategy(),
        Strategy(),
    ]


def test_chunks_of_a_block_have_as_many_devices():
    """On three devices one block may have two of them, for both its chunks."""
    costs = (make_cost(10, 20), make_cost(6, 12, tp=2))
    problem = chain([costs] * 4, devices=3)
    output = solve(problem)
    brute = get_solver("brute")().solve(problem, SolveOptions())
    assert output.status is brute.status is Status.OPTIMAL
    assert output.claimed_quanta == brute.claimed_quanta


def test_a_bound_counts_devices_and_memory(monkeypatch):
    """Nothing is enumerated. 8 layers of 30 ns, 4 micro-batches, 2 blocks.

    First without the bound of a batch, then with it. Half of all work is on each block
    at least: 4 · 120 = 480. Where the layers keep 10 bytes without and none with full
    recomputation, which takes 10 ns more, 2 · 30 bytes hold 6 layers without:
    6 · 30 + 2 · 40 = 260, and 4 · 130 = 520.
    """
    monkeypatch.setattr(interleaved_exact, "MAX_MAGNITUDE", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr(interleaved, "RAISE", False)
        plain = solve(chain([make_cost(10, 20)] * 8))
    assert plain.status is Status.FEASIBLE
    assert plain.lower_bound_quanta == 480
    cost = make_cost(10, 20, kept_bytes=10)
    both = replace(
        cost,
        activations=(
            *cost.activations,
            replace(cost.activations[0], recompute="full", kept_bytes=0),
        ),
    )
    tight = solve(chain([both] * 8, memory_bytes=30, recompute=("none", "full")))
    assert 520 <= tight.lower_bound_quanta <= tight.claimed_quanta


def test_a_case_of_too_many_plans_has_the_bound_of_its_batch(monkeypatch):
    """Half of all work on each of 2 blocks takes 480, and some of it has to wait."""
    monkeypatch.setattr(interleaved_exact, "MAX_MAGNITUDE", -1.0)
    monkeypatch.setattr(interleaved_exact, "FEW", -2.0)
    output = solve(chain([make_cost(10, 20)] * 8))
    assert output.status is Status.FEASIBLE
    assert 480 < output.lower_bound_quanta <= 540


def test_layers_that_fit_nowhere_are_no_plan():
    problem = chain([make_cost(10, 20, kept_bytes=2)] * 8, memory_bytes=1)
    assert solve(problem).status is Status.INFEASIBLE


def test_a_target_is_missed_only_where_that_is_proven(monkeypatch):
    problem = chain([make_cost(10, 20)] * 8)
    within = {"at_most_quanta": "539"}
    missed = solve(problem, extra=within)
    assert missed.plan is None
    assert missed.lower_bound_quanta == 540
    assert missed.detail == "no plan within 5.39e-07 s"
    monkeypatch.setattr(interleaved_exact, "MAX_MAGNITUDE", -1.0)
    monkeypatch.setattr(interleaved, "RAISE", False)
    unknown = solve(problem, extra=within)
    assert unknown.plan is None
    assert unknown.lower_bound_quanta == 480
    assert "no plan within" not in unknown.detail
