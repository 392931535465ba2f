"""Sequence parallelism as a choice: optima derived by hand.

Messages cost 10 ns + 1 ns/byte; every plan has one micro-batch, so that its
step takes the sum of the loads of its stages.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from nest.cost.score import score
from nest.errors import InvalidPlanError
from nest.ir import LayerCost, Problem, Strategy
from nest.solvers.base import Capabilities
from nest.solvers.registry import get_solver
from tests.builders import SINGLE, call, make_cost, make_plan, make_problem, with_job
from tests.independent.scorer import score as independent_score
from tests.semantics.proofs import SOLVERS, check

WHOLE = Strategy(tp=2)
SPLIT = Strategy(tp=2, sequence_parallel=True)
EVERY = ("dp", "tp", "cp", "ep", "zero", "recompute")


def layer(whole: int, split: int, **fields: Any) -> tuple[LayerCost, ...]:
    """Costs on two tensor ranks, without and with sequence parallelism."""
    return tuple(
        make_cost(time / 3, 2 * time / 3, tp=2, sequence_parallel=sp, **fields)
        for time, sp in ((whole, False), (split, True))
    )


def choosing(costs: dict[str, Any], size_bytes: int = 0, **fields: Any) -> Problem:
    names = list(costs)
    edges = tuple((a, b, size_bytes) for a, b in itertools.pairwise(names))
    fields = {
        "devices": 2 * len(names),
        "replicas": (1,),
        "sequence_parallel": (False, True),
        **fields,
    }
    return make_problem(costs, edges=edges, **fields)


def two_stages(**fields: Any) -> Problem:
    """Layers a and b on two devices each, 100 bytes between them.

    Receives take 10 + 100 ns, split 10 + 50. So a takes 30 + 110 = 140 ns,
    split 36 + 60 = 96; b takes 30 + 110 = 140, split 100 + 60 = 160.
    """
    costs = {"a": layer(30, 36), "b": layer(30, 100)}
    return choosing(costs, 100, pipeline_parallel=(2,), **fields)


def test_every_stage_chooses():
    check(two_stages(), 96 + 140)
    # Where the job decides, and where plans do but must not choose.
    check(two_stages(sequence_parallel=(False,)), 140 + 140)
    check(two_stages(sequence_parallel=(True,)), 96 + 160)


def test_the_receiver_splits():
    """Whoever sends: a receives gradients, b activations."""
    problem = two_stages()
    for a, b, time in ((SPLIT, WHOLE, 236), (WHOLE, SPLIT, 140 + 160)):
        plan = make_plan(("a", a), ("b", b))
        found = score(problem, plan)
        assert found.step_quanta == independent_score(problem, plan).step
        assert found.step_quanta == time
        forward, backward = found.stages[1], found.stages[0]
        assert forward.receive_forward == (60 if b is SPLIT else 110)
        assert backward.receive_backward == (60 if a is SPLIT else 110)


def test_stages_share_it_if_uniform_names_it():
    shared = ("sequence_parallel",)
    check(two_stages(uniform=shared), 96 + 160)
    check(two_stages(uniform=(*EVERY, *shared)), 96 + 160)
    check(two_stages(uniform=EVERY), 96 + 140)


def test_memory_decides():
    """One layer keeps 100 bytes, split 50 and takes 6 ns more."""
    costs = (
        make_cost(10, 20, tp=2, kept_bytes=100),
        make_cost(12, 24, tp=2, kept_bytes=50, sequence_parallel=True),
    )
    check(choosing({"a": costs}, memory_bytes=100), 30)
    check(choosing({"a": costs}, memory_bytes=99), 36)
    check(choosing({"a": costs}, memory_bytes=49), None)


def test_collectives_are_those_of_the_entry():
    """An all-reduce of 40 bytes, or a reduce-scatter of them.

    10 ns + 1 ns/byte: 2(10 + 20) ns, and 10 + 20.
    """
    costs = (
        make_cost(tp=2, collectives=(call("all-reduce", "tp", "forward", 40),)),
        make_cost(
            tp=2,
            sequence_parallel=True,
            collectives=(call("reduce-scatter", "tp", "forward", 40),),
        ),
    )
    problem = choosing({"a": costs})
    for strategy, time in ((WHOLE, 60), (SPLIT, 30)):
        assert score(problem, make_plan(("a", strategy))).step_quanta == time
    check(problem, 30)


def two_layers(**fields: Any) -> Problem:
    """Layer a is fast whole, layer b split; 8 bytes pass, on two devices.

    The change costs 10 + 8/2 ns to b, which splits them, and 10 + 8 back to
    a. With the same for both they take 330 ns.
    """
    costs = {"a": layer(30, 300), "b": layer(300, 30)}
    fields = {"devices": 2, "granularity": "layer", **fields}
    return choosing(costs, 8, **fields)


def test_layers_choose():
    check(two_layers(), 30 + 30 + 14 + 18)
    check(two_layers(sequence_parallel=(True,)), 330)
    check(two_layers(uniform=("sequence_parallel",)), 330)
    check(two_layers(granularity="stage"), 330)


def test_a_change_is_worth_its_message():
    """Split, a takes 31 ns more, less than the change's 32; 33 ns more."""
    costs = {"a": layer(30, 61), "b": layer(300, 30)}
    fields = {"devices": 2, "granularity": "layer"}
    check(choosing(costs, 8, **fields), 61 + 30)
    costs = {"a": layer(30, 63), "b": layer(300, 30)}
    check(choosing(costs, 8, **fields), 30 + 30 + 32)


def test_what_passes_a_stage_is_split():
    """100 bytes from a to c pass b: 100 bytes on its devices, split 50."""
    costs = {name: layer(30, 60) for name in "abc"}
    problem = make_problem(
        costs,
        edges=(("a", "b", 0), ("b", "c", 0), ("a", "c", 100)),
        devices=6,
        replicas=(1,),
        pipeline_parallel=(3,),
        memory_bytes=99,
        sequence_parallel=(False, True),
    )
    # b splits: 60 + 60 ahead and 60 back; the ends receive 110 each, or
    # take 30 more and receive 60.
    check(problem, (60 + 60 + 60) + 2 * min(30 + 110, 60 + 60))
    check(with_job(problem, sequence_parallel=(False,)), None)


def test_chunks_on_one_block_receive_only_if_they_change():
    """``zb-v``: chunks 2 and 3 sit on the last block, 8 bytes between them.

    If they differ, a change: 10 + 8 ns, or 10 + 4, at either end.
    """
    costs = {name: layer(30, 30) for name in "abcd"}
    problem = choosing(*(costs, 8), devices=4, global_batch=3, schedule="zb-v")

    def plan(*chosen: Strategy) -> Any:
        found = make_plan(*zip("abcd", chosen, strict=True))
        return replace(found, virtual_stages=2, placement="v")

    for third, forward, back in ((WHOLE, 0, 0), (SPLIT, 14, 18)):
        chosen = plan(WHOLE, WHOLE, third, WHOLE)
        found = score(problem, chosen)
        assert found.step_quanta == independent_score(problem, chosen).step
        assert found.stages[2].receive_forward == forward
        assert found.stages[1].receive_backward == back


def test_a_job_that_decides_has_no_choice():
    """The same layers, where the job says so of all plans."""
    costs = {"a": make_cost(10, 20, tp=2), "b": make_cost(10, 20, tp=2)}
    fields = {"pipeline_parallel": (2,)}
    check(choosing(costs, 100, sequence_parallel=False, **fields), 2 * 140)
    check(choosing(costs, 100, sequence_parallel=True, **fields), 2 * 90)


@pytest.mark.parametrize(
    ("values", "strategy", "message"),
    [
        (
            (False,),
            SPLIT,
            r"sequence_parallel: expected false, which is all that the job "
            r"allows with tp > 1, got true",
        ),
        (
            (True,),
            WHOLE,
            r"sequence_parallel: expected true, which is all that the job "
            r"allows with tp > 1, got false",
        ),
    ],
)
def test_a_plan_must_not_choose_otherwise(values, strategy, message):
    problem = two_stages(sequence_parallel=values)
    with pytest.raises(InvalidPlanError, match=message):
        score(problem, make_plan(("a", strategy), ("b", strategy)))


@pytest.mark.parametrize("decided", [False, True])
def test_a_plan_must_not_say_what_the_job_decides(decided):
    problem = choosing({"a": make_cost(tp=2)}, sequence_parallel=decided)
    score(problem, make_plan(("a", WHOLE)))
    with pytest.raises(
        InvalidPlanError,
        match="sequence_parallel: expected false, as the job decides it for "
        "all plans, got true",
    ):
        score(problem, make_plan(("a", SPLIT)))


def test_a_missing_cost_is_not_available():
    problem = choosing({"a": make_cost(tp=2)})
    with pytest.raises(
        InvalidPlanError,
        match=r"expected a cost for tp=2, cp=1, ep=1, "
        r"sequence_parallel=true, samples=1, got none in kind 'a'",
    ):
        score(problem, make_plan(("a", SPLIT)))
    check(problem, 0)


def test_one_tensor_rank_has_nothing_to_split_over():
    """It runs under any list, on an entry without."""
    problem = choosing({"a": make_cost(1, 2)}, sequence_parallel=(True,))
    assert score(problem, make_plan(("a", SINGLE))).step_quanta == 3
    check(problem, 3)


def test_solvers_that_do_not_choose_say_so():
    """What they prove is about plans with one value; they take no others."""
    plain = Capabilities(exact=True, method="")
    named = "sequence_parallel"
    assert plain.unsearched(two_stages()) == (named,)
    for decided in (True, False):
        problem = choosing({"a": make_cost(tp=2)}, sequence_parallel=decided)
        assert plain.unsearched(problem) == ()
    assert plain.unsearched(two_stages(sequence_parallel=(True,))) == ()
    assert plain.beyond(make_plan(("a", WHOLE), ("b", SPLIT))) == named
    assert plain.beyond(make_plan(("a b", WHOLE))) is None
    for name in SOLVERS:
        assert get_solver(name).capabilities.unsearched(two_stages()) == ()
