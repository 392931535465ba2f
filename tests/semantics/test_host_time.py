"""Passes that wait for the host: one small case per rule.

Rules: docs/cost-model.md, *Passes of a layer*. Links take 10 ns + 1 ns per byte.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import InvalidProblemError
from nest.ir import Activations, problem_hash
from nest.ir.graph import DeviceTimes
from nest.ir.io import decode_problem, encode
from nest.ir.plan import Plan, Stage, Strategy
from nest.solvers.base import SolveOptions
from nest.solvers.registry import get_solver
from nest.topology.protocol import Block
from tests.builders import (
    SINGLE,
    call,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
    with_others,
)
from tests.independent.compare import differences

TP2, DP2 = Strategy(tp=2), Strategy(dp=2)


def stage_of(cost, strategy=SINGLE, *, hides=(), **fields):
    """Return the only stage of a plan, which both scorers agree on."""
    problem = make_problem({"a": cost}, **fields)
    plan = make_plan(("a", strategy), micro_batch=max(problem.job.micro_batches))
    plan = replace(plan, overlap=hides)
    assert differences(problem, plan) == ("feasible", [])
    (stage,) = score(problem, plan).stages
    return stage


@pytest.mark.parametrize(
    ("forward_host_ns", "backward_host_ns", "passes"),
    [
        (0, 0, (10, 20)),
        (9, 19, (10, 20)),
        (11, 19, (11, 20)),
        (9, 21, (10, 21)),
        # Rounded once, half up.
        (10.4, 20.5, (10, 21)),
    ],
)
def test_a_pass_takes_what_the_host_needs(forward_host_ns, backward_host_ns, passes):
    stage = stage_of(
        make_cost(
            *(10, 20),
            forward_host_ns=forward_host_ns,
            backward_host_ns=backward_host_ns,
        )
    )
    assert (stage.forward, stage.backward) == passes


def reduced(**fields):
    """Return 10 + 20 ns with an all-reduce of 100 bytes in each pass.

    On two ranks 2 · 10 + 100 ns: 130 forward and 140 backward.
    """
    return make_cost(
        *(10, 20),
        tp=2,
        collectives=(
            call("all-reduce", "tp", "forward", 100),
            call("all-reduce", "tp", "backward", 100),
        ),
        **fields,
    )


@pytest.mark.parametrize(
    ("host_ns", "passes"), [(129, (130, 140)), (135, (135, 140)), (150, (150, 150))]
)
def test_collectives_run_while_the_host_issues(host_ns, passes):
    """The host's time is not added to them: the larger of both counts."""
    stage = stage_of(reduced(forward_host_ns=host_ns, backward_host_ns=host_ns), TP2)
    assert (stage.forward, stage.backward) == passes


@pytest.mark.parametrize(
    ("host_ns", "passes"), [(119, (120, 120)), (125, (125, 125)), (0, (120, 120))]
)
def test_what_is_hidden_is_issued(host_ns, passes):
    """10 of 130 ns hide forward and 20 of 140 backward: 120 are left."""
    cost = reduced(forward_host_ns=host_ns, backward_host_ns=host_ns)
    stage = stage_of(cost, TP2, hides=("tp",), overlap={"tp": 1.0})
    assert (stage.forward, stage.backward) == passes


@pytest.mark.parametrize(
    ("extra_ns", "extra_host_ns", "backward"),
    [(7, 6, 27), (7, 8, 28), (0, 5, 25), (7, 7.5, 28)],
)
def test_selective_recomputation_is_issued(extra_ns, extra_host_ns, backward):
    """On top of 20 ns, for which the host needs 15: 5 ns are not left over."""
    cost = make_cost(
        *(10, 20),
        backward_host_ns=15,
        activations=(
            Activations(
                recompute="selective",
                kept_bytes=0,
                extra_ns=extra_ns,
                extra_host_ns=extra_host_ns,
            ),
        ),
    )
    stage = stage_of(cost, Strategy(recompute="selective"), recompute=("selective",))
    assert (stage.forward, stage.backward) == (10, backward)


@pytest.mark.parametrize(
    ("forward_host_ns", "backward_host_ns", "backward"),
    [(9, 0, 20 + 10), (13, 0, 20 + 13), (13, 24, 24 + 13)],
)
def test_full_recomputation_issues_the_forward_pass_again(
    forward_host_ns, backward_host_ns, backward
):
    cost = make_cost(
        *(10, 20),
        forward_host_ns=forward_host_ns,
        backward_host_ns=backward_host_ns,
        activations=(Activations(recompute="full", kept_bytes=0),),
    )
    stage = stage_of(cost, Strategy(recompute="full"), recompute=("full",))
    assert stage.backward == backward


def test_only_selective_recomputation_states_what_it_issues():
    with pytest.raises(
        ValueError,
        match=r"extra_host_ns: expected 0 for recompute 'full', got 3\.0; "
        "only 'selective' takes it",
    ):
        Activations(recompute="full", kept_bytes=0, extra_host_ns=3.0)


@pytest.mark.parametrize(
    ("hides", "passes"),
    [
        # 100 ns each, then a gather of 10 + 50 ns, backward a scatter too.
        ((), (160, 220)),
        # 10 of 70 hide forward, 20 of 140 backward: the larger of 60 and 100,
        # of 120 and 100.
        (("weights",), (100, 120)),
    ],
)
def test_zero_traffic_waits_unless_it_overlaps(hides, passes):
    """ZeRO 3 on two ranks, gathers and scatters of 100 bytes."""
    cost = make_cost(
        *(10, 20), weight_bytes=100, forward_host_ns=100, backward_host_ns=100
    )
    stage = stage_of(
        cost,
        replace(DP2, zero=3),
        hides=hides,
        global_batch=2,
        micro_batches=(2,),
        zero=(3,),
        overlap={"weights": 1.0},
    )
    assert (stage.forward, stage.backward) == passes


# Gradients of weights, and pairs


def in_v(cost, strategy, **fields):
    """Return a problem of four such layers on two blocks, and its plan."""
    names = "abcd"
    problem = make_problem(dict.fromkeys(names, cost), edge=0, **fields)
    plan = Plan(
        replicas=1,
        micro_batch=max(problem.job.micro_batches),
        stages=tuple(
            Stage(layers=(x,), devices=strategy.devices, strategy=strategy)
            for x in names
        ),
        virtual_stages=2,
        placement="v",
    )
    return problem, plan


@pytest.mark.parametrize(
    ("backward_host_ns", "backward"), [(0, 20), (15, 20), (26, 26)]
)
def test_gradients_of_weights_do_not_wait(backward_host_ns, backward):
    """12 of 20 ns stay 12 of 26: those of inputs take 14 instead of 8."""
    stage = stage_of(
        make_cost(*(10, 20), weight_backward_ns=12, backward_host_ns=backward_host_ns),
        schedule="zb-h1",
    )
    assert (stage.backward, stage.weight_backward) == (backward, 12)


def experts(forward_host_ns, backward_host_ns):
    """Return 100 + 200 ns with all-to-all of 10 + 15 and of 10 + 30 ns."""
    return make_cost(
        *(100, 200),
        ep=2,
        forward_host_ns=forward_host_ns,
        backward_host_ns=backward_host_ns,
        collectives=(
            call("all-to-all", "ep", "forward", 30),
            call("all-to-all", "ep", "backward", 60),
        ),
    )


@pytest.mark.parametrize(
    ("hosts_ns", "passes", "hide"),
    [
        ((100, 200), (125, 240), (25, 40)),
        # Of 125 and 240 ns at least 110 and 230 are left.
        ((110, 230), (125, 240), (15, 10)),
        # A pass that waits for the host has nothing to hide.
        ((130, 240), (130, 240), (0, 0)),
    ],
)
def test_a_pair_hides_no_more_than_what_need_not_be_issued(hosts_ns, passes, hide):
    problem, plan = in_v(
        experts(*hosts_ns),
        Strategy(dp=2, ep=2),
        schedule="dualpipe-v",
        global_batch=8,
        micro_batches=(2,),
    )
    assert differences(problem, plan) == ("feasible", [])
    for stage in score(problem, plan).stages:
        assert (stage.forward, stage.backward) == passes
        assert (stage.pairable_forward, stage.pairable_backward) == hide


# Types of devices


def on_two_types():
    """Return the second of two devices as a type that states its own times.

    A third type, of which there is none here, states none of the host's.
    """
    cost = make_cost(
        *(10, 20),
        tp=2,
        forward_host_ns=30,
        backward_host_ns=15,
        activations=(
            Activations(
                recompute="selective", kept_bytes=0, extra_ns=4, extra_host_ns=3
            ),
        ),
        by_device=(
            DeviceTimes(
                device="old",
                forward_ns=40,
                backward_ns=18,
                extra_ns=2,
                forward_host_ns=5,
                backward_host_ns=25,
                extra_host_ns=9,
            ),
            DeviceTimes(device="new", forward_ns=1, backward_ns=2),
        ),
    )
    one = replace(cost, tp=1)
    problem = make_problem({"a": (one, cost)}, devices=2, recompute=("selective",))
    return with_others(problem, 1)


def test_each_time_is_the_largest_over_the_types_of_a_block():
    """Forward 40, of 10 and 40 and hosts' 30 and 5; backward 25, of 20, 18, 15

    and 25; again 9, of 4, 2, 3 and 9.
    """
    problem = on_two_types()
    plan = make_plan(("a", Strategy(tp=2, recompute="selective")))
    assert differences(problem, plan) == ("feasible", [])
    (stage,) = score(problem, plan).stages
    assert (stage.forward, stage.backward) == (40, 25 + 9)


def test_every_type_issues_in_its_own_time():
    """30 and 20 + 4 on the first device; 40 and 25 + 9 on the second.

    Without a place the least of each: 10 ns or 5 of the host, 18 or 15, and 2
    or 3, so that no place takes less.
    """
    model = CostModel(on_two_types())
    strategy = Strategy(recompute="selective")
    found = [
        model.layer_terms(0, strategy, 1, block)
        for block in (Block(1, 2, 0, 1), Block(1, 2, 1, 1), None)
    ]
    assert [(x.forward, x.backward) for x in found] == [(30, 24), (40, 34), (10, 21)]


def test_types_may_differ_in_their_hosts_alone():
    """10 + 20 ns on both, at least 50 + 60 where the slow hosts are."""
    cost = make_cost(
        *(10, 20),
        by_device=(
            DeviceTimes(
                device="old",
                forward_ns=10,
                backward_ns=20,
                forward_host_ns=50,
                backward_host_ns=60,
            ),
        ),
    )
    model = CostModel(with_others(make_problem({"a": cost}, devices=2), 1))
    found = [
        model.layer_terms(0, SINGLE, 1, Block(1, 2, offset, 1)) for offset in (0, 1)
    ]
    assert [(x.forward, x.backward) for x in found] == [(10, 20), (50, 60)]


def test_a_type_that_states_no_host_has_none():
    (kind,) = on_two_types().graph.kinds
    assert kind.costs[0].on("new").passes_ns == 3
    assert kind.costs[0].on("old").passes_ns == 40 + 25
    assert kind.costs[0].on("any other").passes_ns == 30 + 20


# Elsewhere


@pytest.mark.parametrize("preset", ["nest-artifact", "piper"])
def test_published_models_wait_for_the_host_as_well(preset):
    cost = make_cost(10, 20, forward_host_ns=12, backward_host_ns=25)
    stage = stage_of(
        cost, preset=preset, replicas=(1,), topology=make_levels((4, 0.0, 1e9))
    )
    assert (stage.forward, stage.backward) == (12, 25)


def test_short_passes_are_better_made_longer():
    """A pass of b samples takes 10·b + 20·b ns, the host 40 + 40 ns.

    Eight micro-batches of one sample take 8 · 80, two of four 2 · 120.
    """
    costs = tuple(
        make_cost(*(10 * b, 20 * b), samples=b, forward_host_ns=40, backward_host_ns=40)
        for b in (1, 2, 4)
    )
    problem = make_problem(
        {"a": costs}, devices=1, global_batch=8, micro_batches=(1, 2, 4)
    )
    for name in ("brute", "dp", "cpsat", "milp"):
        found = get_solver(name)().solve(problem, SolveOptions())
        assert found.claimed_quanta == found.lower_bound_quanta == 240
        assert found.plan.micro_batch == 4


def test_what_the_host_takes_is_written_read_and_hashed():
    plain = make_problem({"a": make_cost(10, 20)})
    assert b"host" not in encode(plain)
    (kind,) = plain.graph.kinds
    copied = DeviceTimes(device="old", **kind.costs[0].on("new")._asdict())
    assert b"host" not in encode(copied)
    slow = make_problem({"a": make_cost(10, 20, backward_host_ns=30)})
    assert decode_problem(encode(slow)) == slow
    assert problem_hash(slow) != problem_hash(plain)


@pytest.mark.parametrize(
    "fields",
    [
        {"forward_host_ns": 1e15},
        {"backward_host_ns": 1e15},
        {
            "activations": (
                Activations(recompute="selective", kept_bytes=0, extra_host_ns=1e15),
            )
        },
    ],
)
def test_a_step_that_may_overflow_for_the_host_is_refused(fields):
    problem = make_problem(
        {"a": make_cost(1, 1, **fields)},
        global_batch=10**6,
        recompute=("none", "selective"),
    )
    with pytest.raises(
        InvalidProblemError,
        match=r"\$\.quantum_ps: expected a quantum that keeps every step time "
        r"below 2\*\*61 quanta, got 1000 ps",
    ):
        CostModel(problem)
