"""Terms of a step time, worked out by hand."""

from __future__ import annotations

import pytest

from nest.cost.breakdown import LOAD_TERMS, STEP_TERMS, breakdown
from nest.cost.score import score
from nest.ir import Activations, Strategy
from tests.builders import PAIRS, call, make_cost, make_plan, make_problem

BOTH = (Activations(kept_bytes=0), Activations(recompute="full", kept_bytes=0))


def nonzero(terms):
    return {name: value for name, value in terms.items() if value}


def test_every_term_of_a_pipeline():
    """tp = 2, one message takes 10 ns and 1 ns per byte.

    A pass computes 100 or 200 and, forward, all-reduces 100 bytes: 2 · 10 +
    100 = 120. Stage 1: 220 + 200 + 60 for the gradient of 50 bytes. Stage 2
    repeats its forward pass: 60 + 220 + 220 + 200 = 700. Three micro-batches:
    T = 480 + 3 · 700 + Y. Weights of 40 bytes: the update moves 40 of
    gradients, twice 40 and twice 240 at 1 byte/ns: Y = 600.
    """
    cost = make_cost(
        100,
        200,
        tp=2,
        weight_bytes=40,
        activations=BOTH,
        collectives=(call("all-reduce", "tp", "forward", 100),),
    )
    problem = make_problem(
        {"a": cost, "b": cost},
        edges=(("a", "b", 50),),
        hbm=1e9,
        global_batch=3,
        recompute=("none", "full"),
    )
    again = Strategy(tp=2, recompute="full")
    plan = make_plan(("a", Strategy(tp=2)), ("b", again))
    found = score(problem, plan)
    assert found.step_quanta == 480 + 3 * 700 + 600
    terms = breakdown(problem, plan, found)
    assert (terms.slowest, terms.num_loads) == (1, 3)
    assert nonzero(terms.blocks[0]) == {"compute": 300, "tp": 120, "receive": 60}
    assert nonzero(terms.blocks[1]) == {
        "compute": 300,
        "recompute": 100,
        "tp": 240,
        "receive": 60,
    }
    assert nonzero(terms.step) == {
        "compute": 900,
        "recompute": 300,
        "tp": 720,
        "receive": 180,
        "bubble": 480,
        "optimizer": 600,
    }


def test_zero_traffic_and_the_sync_over_replicas():
    """dp = 2 under ZeRO 3 in two replicas, 40 bytes of weights.

    A gather or scatter of 40 bytes in a pair takes 10 + 20 = 30: forward one,
    backward two, 90. At the end the shards of 20 bytes are all-reduced across
    the pairs of pairs, 2 · 100 + 20 · 10 = 400, and updated: 20 + 2 · 20 +
    2 · 120 = 300 bytes at 1 byte/ns.
    """
    problem = make_problem(
        {"a": make_cost(100, 200, weight_bytes=40)},
        topology=PAIRS,
        hbm=1e9,
        global_batch=4,
        micro_batches=(2,),
        zero=(3,),
    )
    plan = make_plan(("a", Strategy(dp=2, zero=3)), replicas=2, micro_batch=2)
    found = score(problem, plan)
    terms = breakdown(problem, plan, found)
    assert nonzero(terms.step) == {
        "compute": 300,
        "zero": 90,
        "gradient_sync": 400,
        "optimizer": 300,
    }
    assert found.step_quanta == 1090


def test_only_exposed_communication_counts():
    """All of 120 overlaps, 100 of it hide behind the forward pass."""
    cost = make_cost(
        100, 200, tp=2, collectives=(call("all-reduce", "tp", "forward", 100),)
    )
    problem = make_problem({"a": cost}, overlap={"tp": 1.0})
    plan = make_plan(("a", Strategy(tp=2)))
    hidden = type(plan)(replicas=1, micro_batch=1, stages=plan.stages, overlap=("tp",))
    for candidate, exposed in ((plan, 120), (hidden, 20)):
        found = score(problem, candidate)
        terms = breakdown(problem, candidate, found)
        assert nonzero(terms.step) == {"compute": 300, "tp": exposed}


@pytest.mark.parametrize("axis", ["cp", "ep", "dp"])
def test_collectives_belong_to_their_axis(axis):
    """An all-gather of 100 bytes in a pair takes 10 + 50."""
    degrees = {"cp": {"cp": 2}, "ep": {"dp": 2, "ep": 2}, "dp": {"dp": 2}}
    own = {key: n for key, n in degrees[axis].items() if key != "dp"}
    cost = make_cost(
        100, 200, collectives=(call("all-gather", axis, "backward", 100),), **own
    )
    problem = make_problem(
        {"a": cost}, global_batch=2, micro_batches=(2 if axis != "cp" else 1,)
    )
    plan = make_plan(
        ("a", Strategy(**degrees[axis])), micro_batch=2 if axis != "cp" else 1
    )
    found = score(problem, plan)
    terms = breakdown(problem, plan, found)
    assert nonzero(terms.blocks[0]) == {"compute": 300, axis: 60}


def test_terms_have_names_for_people():
    assert set(LOAD_TERMS) < set(STEP_TERMS)
    assert all(STEP_TERMS.values())
