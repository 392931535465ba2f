"""Preset ``nest-artifact``: NEST's objective as coded, by hand.

Three levels of pairs. Messages between devices use the running minimum of the
bandwidths: 10 + 1 ns per byte, then twice (up and down) 100 + 10 and twice 1000 + 10.
The gradient sync uses the raw bandwidths, where the top level takes 2.5 ns per byte.
"""

import itertools

import pytest
from msgspec.structs import replace

from nest.cost.model import Block, CostModel
from nest.cost.rules import get_rules
from nest.cost.score import score
from nest.errors import InvalidPlanError, InvalidProblemError
from nest.ir import Activations, Optimizer, Strategy
from tests.builders import SINGLE, call, make_cost, make_levels, make_plan, make_problem
from tests.graphs import make_graph

TREE = make_levels((2, 10.0, 1e9), (2, 100.0, 1e8), (2, 1000.0, 4e8))
SGD = Optimizer(name="sgd", weight_bytes=2, gradient_bytes=2, state_bytes=0)
FULL = Strategy(recompute="full")


def nest_problem(costs, **fields):
    fields.setdefault("devices", 8)
    fields.setdefault("topology", TREE)
    fields.setdefault("optimizer", SGD)
    fields.setdefault("uneven_batches", True)
    return make_problem(costs, preset="nest-artifact", **fields)


def recomputed(forward_ns=0, backward_ns=0, **fields):
    kept_bytes = fields.pop("kept_bytes", 0)
    return make_cost(
        forward_ns,
        backward_ns,
        activations=(Activations(recompute="full", kept_bytes=kept_bytes),),
        **fields,
    )


# Receive


def test_the_last_stage_sits_on_device_0_and_a_switch_is_passed_twice():
    """Five stages of one device: 4 3 2 1 0; every edge has 500 bytes.

    Boundary 1 joins devices 4 and 3: 2(1000 + 5000) at the running minimum
    of the bandwidths; 2 joins 3 and 2: 10 + 500; 3 joins 2 and 1: 2(100 +
    5000); 4 joins 1 and 0: 510.
    """
    names = "abcde"
    problem = nest_problem(
        {name: make_cost() for name in names},
        edges=tuple((a, b, 500) for a, b in itertools.pairwise(names)),
    )
    stages = score(problem, make_plan(*((n, SINGLE) for n in names))).stages
    costs = [12000, 510, 10200, 510]
    assert [stage.receive_forward for stage in stages] == [0, *costs]
    assert [stage.receive_backward for stage in stages] == [*costs, 0]


def test_the_first_devices_of_the_stages_meet():
    """tp = 2: stages on 2..3 and 0..1; devices 2 and 0 meet at level 1."""
    cost = make_cost(tp=2)
    problem = nest_problem({"a": cost, "b": cost}, edges=(("a", "b", 500),))
    strategy = Strategy(tp=2)
    stages = score(problem, make_plan(("a", strategy), ("b", strategy))).stages
    assert stages[0].receive_backward == 10200
    assert stages[1].receive_forward == 10200


def test_the_slowest_edge_counts_wherever_it_ends():
    """a -> b 100, a -> c 300, b -> c 50; devices 2, 1, 0.

    Stage b receives a's 100: boundary (2, 1) is level 1, 2(100 + 1000).
    Stage c receives the larger of 300 and 50 at level 0, 310, though a is
    two stages away. Backward: a's larger, 2(100 + 3000); b's 60.
    """
    problem = nest_problem(
        {name: make_cost() for name in "abc"},
        edges=(("a", "b", 100), ("a", "c", 300), ("b", "c", 50)),
    )
    stages = score(
        problem, make_plan(("a", SINGLE), ("b", SINGLE), ("c", SINGLE))
    ).stages
    assert [stage.receive_forward for stage in stages] == [0, 2200, 310]
    assert [stage.receive_backward for stage in stages] == [6200, 60, 0]


def test_receive_is_not_sharded_and_a_cut_without_edges_is_free():
    """cp = 2, sequence parallel: still 2(100 + 5000)."""
    cost = make_cost(cp=2)
    costs = {"a": cost, "b": cost}
    plan = make_plan(("a", Strategy(cp=2)), ("b", Strategy(cp=2)))
    for edges, expected in (((("a", "b", 500),), 10200), ((), 0)):
        problem = nest_problem(costs, edges=edges, sequence_parallel=True)
        assert score(problem, plan).stages[1].receive_forward == expected


def test_only_replica_0_is_placed():
    """Stages on 2, 1, 0: boundaries (2, 1) at level 1, (1, 0) at level 0.

    Replica 2 on 5, 4, 3 would pay level 2 for (4, 3); it is not looked at.
    """
    problem = nest_problem(
        {name: make_cost() for name in "abc"},
        edges=(("a", "b", 500), ("b", "c", 500)),
        global_batch=2,
    )
    plan = make_plan(("a", SINGLE), ("b", SINGLE), ("c", SINGLE), replicas=2)
    stages = score(problem, plan).stages
    assert [stage.receive_forward for stage in stages] == [0, 10200, 510]


def test_edge_sizes_may_depend_on_tp():
    cost = (make_cost(tp=1), make_cost(tp=2))
    problem = nest_problem({"a": cost, "b": cost}, edges=(("a", "b", 500),))
    edge = replace(problem.graph.edges[0], bytes_per_sample_by_tp={2: 300})
    problem = replace(problem, graph=replace(problem.graph, edges=(edge,)))
    for strategy, expected in ((SINGLE, 510), (Strategy(tp=2), 6200)):
        plan = make_plan(("a", strategy), ("b", strategy))
        assert score(problem, plan).stages[1].receive_forward == expected


# Recomputation


@pytest.mark.parametrize(
    ("backward_ns", "first"),
    [
        # F = 100, then the larger of 300 recomputing and 510 receiving, 300
        (300, 100 + 510 + 300),
        # recomputing hides the receive: 700 + 700
        (700, 100 + 700 + 700),
    ],
)
def test_recompute_costs_the_backward_time_and_hides_the_receive(backward_ns, first):
    """The last stage receives 510 and does not recompute."""
    cost = recomputed(100, backward_ns)
    problem = nest_problem(
        {"a": cost, "b": cost}, edges=(("a", "b", 500),), recompute=("full",)
    )
    stages = score(problem, make_plan(("a", FULL), ("b", FULL))).stages
    assert [stage.load for stage in stages] == [first, 100 + 510 + backward_ns]


def test_without_recompute_the_receive_is_added():
    cost = make_cost(100, 700)
    problem = nest_problem({"a": cost, "b": cost}, edges=(("a", "b", 500),))
    stages = score(problem, make_plan(("a", SINGLE), ("b", SINGLE))).stages
    assert [stage.load for stage in stages] == [1310, 1310]


# Memory


def test_memory_is_twice_the_weights_plus_states_plus_activations():
    """2P + 6P for Adam (12 bytes of state per 2-byte weight) + kept."""
    problem = nest_problem(
        {"a": make_cost(weight_bytes=100, kept_bytes=7)},
        optimizer=Optimizer(weight_bytes=2, gradient_bytes=2, state_bytes=12),
    )
    (stage,) = score(problem, make_plan(("a", SINGLE))).stages
    assert stage.memory_bytes == 2 * 100 + 6 * 100 + 7


def test_in_flight_is_the_distance_to_the_end_whatever_the_batch():
    """One micro-batch, three stages: 3 * 10, 2 * 20, 1 * 30 all the same."""
    problem = nest_problem(
        {
            "a": make_cost(kept_bytes=10),
            "b": make_cost(kept_bytes=20),
            "c": make_cost(kept_bytes=30),
        }
    )
    stages = score(
        problem, make_plan(("a", SINGLE), ("b", SINGLE), ("c", SINGLE))
    ).stages
    assert [stage.memory_bytes for stage in stages] == [30, 40, 30]


def test_recomputing_stages_stash_the_tensors_that_enter():
    """One micro-batch keeps 1000; each further one the entering edges.

    In flight: 4, 3, 2, 1. Nothing enters a; 100 enter b; 300 + 50 enter c;
    d has one micro-batch only.
    """
    cost = recomputed(kept_bytes=1000)
    problem = nest_problem(
        dict.fromkeys("abcd", cost),
        edges=(("a", "b", 100), ("a", "c", 300), ("b", "c", 50),
               ("c", "d", 9)),
        recompute=("full",),
    )  # fmt: skip
    stages = score(
        problem, make_plan(("a", FULL), ("b", FULL), ("c", FULL), ("d", FULL))
    ).stages
    assert [stage.kept_bytes for stage in stages] == [
        1000,
        1000 + 2 * 100,
        1000 + 1 * (300 + 50),
        1000,
    ]


# Gradient sync


@pytest.mark.parametrize(
    ("replicas", "width", "sync"),
    [
        # one replica: nothing
        (1, 1, 0),
        # ids 0, 1: level 0, one round: 10 + X
        (2, 1, 10 + 100),
        # ids 0, 2: the same round, then 2(100 + 10X) + 0
        (2, 2, 10 + 100 + 2 * (100 + 1000)),
        # ids 0, 4: total after level 1 is 210 + 21X; level 2 adds
        # 2(1000 + 2.5X) and that total again: 2420 + 47X
        (2, 4, 2420 + 4700),
        # ids 0, 1, 2: floor(lg 3) = 1 round: 210 + 21X
        (3, 1, 210 + 2100),
        # ids 0..7, three rounds: 30 + 1.75X; + 200 + 20X = 230 + 21.75X;
        # + 2000 + 5X + 230 + 21.75X
        (8, 1, 2460 + 4850),
    ],
)
def test_switch_tree_sync(replicas, width, sync):
    """X = 100 bytes of weights; a replica is ``width`` devices wide."""
    strategy = Strategy(tp=width)
    problem = nest_problem(
        {"a": make_cost(tp=width, weight_bytes=100)}, global_batch=replicas
    )
    result = score(problem, make_plan(("a", strategy), replicas=replicas))
    assert result.stages[0].sync == sync
    assert result.step_quanta == sync


def test_replicas_are_as_far_apart_as_the_devices_they_use():
    """Two replicas of two stages: ids 0 and 2, not 0 and 4."""
    problem = nest_problem(
        {"a": make_cost(weight_bytes=100), "b": make_cost()}, global_batch=2
    )
    plan = make_plan(("a", SINGLE), ("b", SINGLE), replicas=2)
    assert score(problem, plan).stages[0].sync == 2310


def test_the_optimiser_update_takes_no_time():
    problem = nest_problem({"a": make_cost(weight_bytes=100)}, hbm=1.0)
    assert score(problem, make_plan(("a", SINGLE))).step_quanta == 0


# Step time


def test_step_time_counts_slots_of_the_slowest_stage():
    """Loads 30, 60, 20; M = ceil(7 / 2) = 4: (4 + 3 - 1) * 60.

    Sync of the first stage only, although the second's is larger: ids 0, 3
    meet at level 1: 210 + 21 * 10.
    """
    problem = nest_problem(
        {
            "a": make_cost(10, 20, weight_bytes=10),
            "b": make_cost(20, 40, weight_bytes=1000),
            "c": make_cost(10, 10),
        },
        global_batch=7,
    )
    plan = make_plan(("a", SINGLE), ("b", SINGLE), ("c", SINGLE), replicas=2)
    result = score(problem, plan)
    assert result.num_micro_batches == 4
    assert result.step_quanta == 6 * 60 + 420


# The plan space


def test_all_stages_share_one_strategy():
    cost = (make_cost(tp=1), make_cost(tp=2))
    problem = nest_problem({"a": cost, "b": cost})
    with pytest.raises(
        InvalidPlanError,
        match="stages: expected one strategy for all stages under preset "
        "'nest-artifact', got 2; use one",
    ):
        score(problem, make_plan(("a", SINGLE), ("b", Strategy(tp=2))))


def test_collectives_follow_the_block_here_too():
    """tp = 3 on units of two: the order of questions must not matter.

    Stages of tp = 3 on 3..5 and 0..2 in units (2, 2, 2): block 0..2 meets at
    level 1, block 3..5 at level 2. All-reduce of 300 bytes, ring: 4 messages
    + 4/3 * 300 bytes at 10 ns: 400 + 4000 and 4000 + 4000.
    """
    cost = make_cost(tp=3, collectives=(call("all-reduce", "tp", "forward", 300),))
    problem = nest_problem({"a": cost})
    strategy = Strategy(tp=3)
    near, far = Block(1, 6, 0, 3), Block(1, 6, 3, 3)
    expected = {near: 4400, far: 8000}
    for order in ((near, far), (far, near)):
        model = CostModel(problem)
        for block in order:
            terms = model.layer_terms(0, strategy, 1, block)
            assert terms is not None
            assert terms.forward == expected[block]


@pytest.mark.parametrize("preset", ["nest-artifact", "piper"])
def test_published_models_know_trees_only(preset):
    problem = make_problem({"a": make_cost()}, replicas=(1,), preset=preset)
    star = make_graph("abcd", [(name, "s", 0.0, 1e9) for name in "abcd"])
    cluster = replace(problem.cluster, topology=star)
    with pytest.raises(
        InvalidProblemError,
        match=r"^\$\.cluster\.topology\.kind: expected 'hierarchy' under "
        rf"preset '{preset}', got 'graph'; change it or use preset",
    ):
        get_rules(preset).check(replace(problem, cluster=cluster))
