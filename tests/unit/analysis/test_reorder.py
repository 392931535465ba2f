"""Orders of devices for a plan: who talks to whom, and what that gains."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.analysis.reorder import plan_groups, reorder
from nest.cost.score import score
from nest.errors import InvalidPlanError, InvalidProblemError
from nest.ir import Optimizer, Strategy
from nest.topology.order import Group
from tests.builders import call, make_cost, make_plan, make_problem
from tests.graphs import make_graph

#: Nodes of two devices: 10 ns and 1/2 ns per byte inside, 20 ns and 1 ns per
#: byte between them on a port for both. The ranks 0, 1 are in different ones.
ACROSS = make_graph(
    "0123",
    [
        *((x, node, 5, 2e9) for x, node in zip("0123", "aabb", strict=True)),
        *((node, "core", 5, 1e9) for node in "ab"),
    ],
    order=tuple("0213"),
)


def problem_of(topology=ACROSS, **job):
    cost = make_cost(
        100,
        200,
        tp=2,
        weight_bytes=1000,
        collectives=(
            call("all-reduce", "tp", "forward", 400, count=3),
            call("all-reduce", "tp", "backward", 100),
        ),
    )
    return make_problem(
        {"a": cost, "b": cost},
        edges=(("a", "b", 40),),
        topology=topology,
        optimizer=Optimizer(weight_bytes=2, gradient_bytes=4, state_bytes=12),
        **job,
    )


STAGES = (("a", Strategy(tp=2)), ("b", Strategy(tp=2)))


def test_groups_of_a_plan():
    """Two stages of two micro-batches: 6 calls of 400, 2 of 100 each."""
    problem = problem_of(global_batch=2)
    assert list(plan_groups(problem, make_plan(*STAGES))) == [
        Group((0, 1), (6 * 400 + 2 * 100) / 8, 8),
        Group((2, 3), (6 * 400 + 2 * 100) / 8, 8),
        # the cut, forward and backward, of both micro-batches
        Group((0, 1, 2, 3), 40, 4),
    ]


def test_groups_across_replicas_count_once_a_step():
    problem = problem_of(global_batch=2)
    plan = make_plan(("a b", Strategy(tp=2)), replicas=2)
    # 3 calls of 400 and one of 100 per layer; 2000 bytes of gradients each
    assert list(plan_groups(problem, plan)) == [
        Group((0, 1), 2600 / 8, 8),
        Group((2, 3), 2600 / 8, 8),
        Group((0, 2), 2000, 2),
        Group((1, 3), 2000, 2),
    ]


def test_an_order_with_the_groups_of_a_plan_in_nodes():
    """Tensor groups within nodes: 100 + 3·(10 + 200), not 100 + 3·(20 + 400).

    Messages between the stages cost more for it, but are small.
    """
    problem, plan = problem_of(), make_plan(*STAGES)
    found = reorder(problem, plan)
    before, after = score(problem, plan), score(found.problem, plan)
    assert [s.forward for s in (before.stages[0], after.stages[0])] == [
        100 + 3 * 420,
        100 + 3 * 210,
    ]
    assert found.before_quanta == before.step_quanta
    assert found.after_quanta == after.step_quanta < before.step_quanta
    order = found.problem.cluster.topology.order
    assert {frozenset(order[:2]), frozenset(order[2:])} == {
        frozenset("01"),
        frozenset("23"),
    }
    assert found.graph.graph["order"] == list(order)


def test_an_order_that_is_as_good_stays():
    topology = replace(ACROSS, order=tuple("1032"))
    problem, plan = problem_of(topology), make_plan(*STAGES)
    found = reorder(problem, plan)
    assert found.problem is problem
    assert found.after_quanta == found.before_quanta


def test_a_plan_that_is_silent_keeps_its_order():
    problem = make_problem({"a": make_cost(1, 2)}, topology=ACROSS)
    plan = make_plan(("a", Strategy()))
    assert list(plan_groups(problem, plan)) == []
    assert reorder(problem, plan).problem is problem


def test_trees_have_one_order():
    with pytest.raises(
        InvalidProblemError,
        match=r"\$.cluster.topology: expected kind 'graph', got 'hierarchy', "
        r"whose devices are in order as they are; put the model on a",
    ):
        reorder(problem_of(topology=None), make_plan(*STAGES))


def test_a_foreign_plan_is_refused():
    with pytest.raises(InvalidPlanError):
        reorder(problem_of(), make_plan(("z", Strategy())))
