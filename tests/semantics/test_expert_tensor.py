"""Whole experts on tensor ranks (``etp`` 1): optima derived by hand.

Messages cost 10 ns + 1 ns/byte in a pair of devices, 100 ns + 10 ns/byte between
pairs; every plan has one stage and one micro-batch.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nest.analysis.neighbors import neighbors
from nest.constraints.pins import restrict
from nest.cost.score import score
from nest.ir import LayerCost, Problem, Strategy
from nest.ir.job import Optimizer
from nest.solvers.registry import get_solver, solver_names
from tests.builders import PAIRS, call, make_cost, make_plan, make_problem, with_job
from tests.independent.scorer import score as independent_score
from tests.semantics.proofs import SOLVERS, check


def moe(**fields: Any) -> LayerCost:
    """40 bytes go to the ranks with experts, of which a device has 40 bytes."""
    size_bytes = fields.pop("size_bytes", 40)
    return make_cost(
        10,
        20,
        tp=2,
        expert_weight_bytes=40,
        collectives=(call("all-to-all", "ep", "forward", size_bytes),),
        **fields,
    )


def four(*costs: LayerCost, **fields: Any) -> Problem:
    """Return one layer on all of two pairs, two samples in a step."""
    return make_problem(
        {"a": costs},
        topology=PAIRS,
        **{
            "global_batch": 2,
            "micro_batches": (2,),
            "replicas": (1,),
            "data_parallel": (2,),
            "optimizer": Optimizer(gradient_bytes=2, state_bytes=0),
            **fields,
        },
    )


def step(problem: Problem, **degrees: int) -> int:
    """Return the step of a plan on two data and two tensor ranks, by both scorers."""
    plan = make_plan(("a", Strategy(dp=2, tp=2, **degrees)), micro_batch=2)
    found = score(problem, plan).step_quanta
    assert found == independent_score(problem, plan).step
    return found


def test_experts_are_exchanged_with_the_ranks_that_have_them():
    """Cut: with the same tensor rank of the other pair; whole: in a pair, or all.

    Passes take 30 ns. An all-to-all of 40 bytes sends 20 to the other pair, 100 +
    200 ns, and the experts of a rank are its own. Whole experts on ep = 2 ranks are
    in a pair: 10 + 20 ns; then the gradients of 40 bytes are summed over two pairs:
    2(100 + 20 * 10) ns. Over ep = 4 ranks half of the bytes go through the pair and
    half to the other pair, 10 + 20 + 100 + 200 ns, and no gradients are summed.
    """
    cut, whole, spread = moe(ep=2), moe(ep=2, etp=1), moe(ep=4, etp=1)
    problem = four(cut, whole, spread)
    assert step(problem, ep=2) == 30 + 300
    assert step(problem, ep=2, etp=1) == 30 + 30 + 600
    assert step(problem, ep=4, etp=1) == 30 + 330


@pytest.mark.parametrize(
    ("costs", "optimum"),
    [
        ((moe(ep=2, etp=1),), 660),
        ((moe(ep=4, etp=1),), 360),
        ((moe(ep=2), moe(ep=2, etp=1), moe(ep=4, etp=1)), 330),
    ],
)
def test_all_solvers_find_them(costs, optimum):
    """The plans of the test before, alone and together."""
    check(four(*costs), optimum)


def test_optimizer_state_is_sharded_over_the_ranks_that_share_experts():
    """60 bytes of state: with ep = 1 over two data ranks, or over all four ranks."""
    cost = replace(moe(size_bytes=0), collectives=(), expert_weight_bytes=10)
    problem = four(
        cost,
        replace(cost, etp=1),
        zero=(1,),
        optimizer=Optimizer(weight_bytes=2, gradient_bytes=0, state_bytes=12),
    )
    for strategy, state in ((Strategy(dp=2, tp=2, zero=1), 30), (None, 15)):
        strategy = strategy or Strategy(dp=2, tp=2, etp=1, zero=1)
        found = score(problem, make_plan(("a", strategy), micro_batch=2))
        (stage,) = found.stages
        assert stage.memory_bytes == 10 + state


def test_zero_differs_where_only_experts_are_shared():
    """On one data rank of two tensor ranks, whole experts have two copies.

    20 bytes of state on each, or 10 under ZeRO 1; experts cut have no copy.
    """
    cost = make_cost(10, 20, tp=2, expert_weight_bytes=10)
    fields: dict[str, Any] = {
        "devices": 2,
        "zero": (0, 1),
        "optimizer": Optimizer(weight_bytes=2, gradient_bytes=0, state_bytes=4),
    }
    whole = make_problem({"a": replace(cost, etp=1)}, **fields, memory_bytes=30)
    # The 10 bytes of gathered weights take 10 + 5 ns.
    check(whole, 30)
    check(make_problem({"a": replace(cost, etp=1)}, **fields, memory_bytes=29), 45)
    check(make_problem({"a": replace(cost, etp=1)}, **fields, memory_bytes=19), None)
    check(make_problem({"a": cost}, **fields, memory_bytes=29), None)


@pytest.mark.parametrize(
    ("allowed", "optimum"), [(None, 60), ((1,), 60), ((2,), 330), ((1, 2), 60)]
)
def test_jobs_and_pins_allow_numbers_of_tensor_ranks(allowed, optimum):
    """Two for cut experts, one for whole ones."""
    problem = four(moe(ep=2), replace(moe(ep=2, etp=1), expert_weight_bytes=0))
    check(with_job(problem, expert_tensor_parallel=allowed), optimum)
    if allowed is not None:
        assert restrict(problem, {"etp": allowed}) == with_job(
            problem, expert_tensor_parallel=allowed
        )


def test_stages_share_it_with_ep():
    """Layer a is quick with cut experts, b with whole ones; ep = 1 in both."""
    costs = {
        name: tuple(make_cost(time, time, tp=2, etp=etp) for time, etp in times)
        for name, times in (("a", ((5, 0), (50, 1))), ("b", ((40, 0), (5, 1))))
    }
    problem = make_problem(costs, edge=0, pipeline_parallel=(2,), replicas=(1,))
    check(problem, 10 + 10)
    check(with_job(problem, uniform=("tp",)), 10 + 10)
    check(with_job(problem, uniform=("ep",)), 10 + 80)


def test_layers_choose():
    """The same in one stage: no tensor is divided otherwise, so none moves."""
    costs = {
        name: tuple(make_cost(time, time, tp=2, etp=etp) for time, etp in times)
        for name, times in (("a", ((5, 0), (50, 1))), ("b", ((40, 0), (5, 1))))
    }
    problem = make_problem(costs, edge=100, devices=2, replicas=(1,))
    check(problem, 10 + 80)
    check(with_job(problem, granularity="layer"), 20)


def test_a_neighbor_with_one_tensor_rank_has_whole_experts_anyway():
    """Half of two tensor ranks, with a cost of 8 ns."""
    problem = make_problem(
        {"a": (make_cost(9, 9, tp=2, etp=1), make_cost(4, 4))}, devices=2
    )
    plan = make_plan(("a", Strategy(tp=2, etp=1)))
    (half,) = (x for x in neighbors(problem, plan) if x.name == "tp halved")
    assert half.score is not None
    assert half.score.step_quanta == 8


def test_planners_that_do_not_know_whole_experts_refuse_them():
    """All but the exact solvers, and zb, which orders the passes of a plan of dp."""
    problem = four(moe(ep=2), moe(ep=2, etp=1))
    for name in solver_names():
        reason = get_solver(name)().unsupported(problem)
        if name in SOLVERS:
            assert reason is None
        elif name != "zb":
            assert reason is not None
            assert "expected costs without etp" in reason
