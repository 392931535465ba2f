"""Interleaving, overlap, the distributed optimizer, buffers and reserve.

Expected values are derived by hand. Messages cost 10 ns + 1 ns/byte on the
network of :mod:`tests.builders` unless a test says otherwise; layers without
an edge between them cost nothing to cut.
"""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from formulations.brute import PlanSpace
from nest.cli.main import main
from nest.cost.magnitude import longest
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import strategies
from nest.errors import InvalidPlanError, InvalidProblemError
from nest.ir import (
    Activations,
    Layer,
    LayerKind,
    Optimizer,
    Plan,
    Stage,
    Strategy,
    decode_problem,
    encode,
    problem_hash,
    write,
)
from nest.ir.plan import OVERLAP
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Limit,
    SolveOptions,
    SolverOutput,
    Status,
)
from nest.solvers.judge import judge
from nest.solvers.registry import get_solver
from nest.solvers.result import Outcome
from nest.solvers.run import run_solver
from tests import optima
from tests.builders import (
    PAIRS,
    SINGLE,
    call,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
    with_cluster,
    with_device,
    with_job,
)
from tests.properties.profiles import examples
from tests.rows import rows
from tests.semantics.proofs import SOLVERS, check
from tests.strategies import problems

ALL_OVERLAP = dict.fromkeys(OVERLAP, 0.5)


def chain(names="abcd", edge=None, **fields):
    """Layers of 10 + 20 ns in a chain; interleaving allowed."""
    fields = {
        "devices": 2,
        "global_batch": 4,
        "replicas": (1,),
        "virtual_stages": (1, 2),
        **fields,
    }
    costs = fields.pop("costs", {})
    return make_problem(
        {name: costs.get(name, make_cost(10, 20)) for name in names},
        edge=edge,
        **fields,
    )


def chunks(names="abcd", virtual=2, strategy=SINGLE, **fields):
    """One layer per chunk."""
    plan = make_plan(*((name, strategy) for name in names), **fields)
    return replace(plan, virtual_stages=virtual)


# Interleaved schedule: time


def test_two_virtual_stages_halve_the_bubble():
    """Loads 60 and 60, M = 4: 4 · 60 + 60 = 300 becomes 240 + 60 / 2."""
    problem = chain()
    plain = make_plan(("a b", SINGLE), ("c d", SINGLE))
    assert score(problem, plain).step_quanta == 300
    result = score(problem, chunks())
    assert result.step_quanta == 270
    assert [block.load for block in result.blocks] == [60, 60]
    assert [block.stages for block in result.blocks] == [(1, 3), (2, 4)]


def test_the_blocks_of_an_interleaved_plan_divide_the_micro_batches():
    """Eight layers of 3000 + 6000 ns on four devices, M = 6.

    Plain stages of two layers take 9 · 18000 = 162000. With two chunks per
    block the bubble would be halved to 135000, but six micro-batches are no
    groups of four; twelve are: 12 · 18000 + 3 · 9000.
    """
    names = "abcdefgh"
    costs = dict.fromkeys(names, make_cost(3000, 6000))
    plain = make_plan(*((pair, SINGLE) for pair in ("a b", "c d", "e f", "g h")))
    problem = chain(names, devices=4, global_batch=6, costs=costs)
    assert score(problem, plain).step_quanta == 162000
    with pytest.raises(
        InvalidPlanError,
        match=r"^virtual_stages: expected a number of blocks that divides the "
        r"micro-batches \(6\) of an interleaved plan, got 4; choose another",
    ):
        score(problem, chunks(names))
    twelve = chain(names, devices=4, global_batch=12, costs=costs)
    assert score(twelve, chunks(names)).step_quanta == 12 * 18000 + 27000


def test_unequal_chunks_take_their_critical_path():
    """As worked through in ``tests/unit/cost/test_schedules.py``, in tens."""
    short, long = make_cost(10, 10), make_cost(30, 10)
    costs = {"a": long, "b": short, "c": short, "d": long}
    assert score(chain(costs=costs, global_batch=2), chunks()).step_quanta == 180


def test_gpipe_waits_for_the_slowest_forward_and_backward_pass():
    """Stages of 30 + 10 and 10 + 50, M = 4: 100 + 3 (30 + 50).

    1F1B takes 100 + 3 · 60.
    """
    costs = {"a": make_cost(30, 10), "b": make_cost(10, 50)}
    plan = make_plan(("a", SINGLE), ("b", SINGLE))
    for schedule, step in (("gpipe", 340), ("1f1b", 280)):
        problem = make_problem(costs, devices=2, global_batch=4, schedule=schedule)
        assert score(problem, plan).step_quanta == step


def test_sync_of_a_block_adds_up_its_chunks():
    """At 1 byte/ns 15 W: a 100 and c 50 on block 0: 2250; b 120: 1800."""
    problem = chain(
        hbm=1e9,
        costs={
            "a": make_cost(10, 20, weight_bytes=100),
            "b": make_cost(10, 20, weight_bytes=120),
            "c": make_cost(10, 20, weight_bytes=50),
        },
    )
    result = score(problem, chunks())
    assert [block.sync for block in result.blocks] == [2250, 1800]
    assert result.step_quanta == 270 + 2250


def test_every_chunk_receives_and_wraps_around_the_replica():
    """Blocks on devices 0, 1, 2 of PAIRS; 5 bytes per cut.

    0-1 meet in a pair: 10 + 5. 1-2 and 2-0 across pairs: 100 + 50.
    """
    problem = chain("abcdef", edge=5, devices=4, topology=PAIRS, global_batch=3)
    result = score(problem, chunks("abcdef"))
    assert [s.receive_forward for s in result.stages] == [
        *(0, 15, 150),
        *(150, 15, 150),
    ]
    assert [s.receive_backward for s in result.stages] == [
        *(15, 150, 150),
        *(15, 150, 0),
    ]
    # loads 60 and the receives: 165 + 15; 165 + 165; 300 + 150
    assert [b.load for b in result.blocks] == [240, 390, 510]


def test_two_blocks_are_neighbours_both_ways():
    """Blocks of two devices: 0-1 and 2-3, on threes.

    Both span two switches: 100 + 50 both ways, activations as well as gradients.
    """
    wide = make_cost(10, 20, tp=2)
    problem = chain(
        edge=5,
        devices=6,
        topology=make_levels((3, 10.0, 1e9), (2, 100.0, 1e8)),
        costs=dict.fromkeys("abcd", wide),
    )
    result = score(problem, chunks(strategy=Strategy(tp=2)))
    assert [s.receive_forward for s in result.stages] == [0, 150, 150, 150]
    assert [s.receive_backward for s in result.stages] == [150, 150, 150, 0]


def test_wrapping_around_pays_the_level_that_holds_both_blocks():
    """Blocks of two devices 0-1, 2-3, 4-5 on switches of four.

    Between 4-5 and 0-1 the message goes across: 100 + 50.
    """
    wide = make_cost(10, 20, tp=2)
    problem = chain(
        "abcdef",
        edge=5,
        devices=8,
        global_batch=3,
        topology=make_levels((4, 10.0, 1e9), (2, 100.0, 1e8)),
        costs=dict.fromkeys("abcdef", wide),
    )
    result = score(problem, chunks("abcdef", strategy=Strategy(tp=2)))
    assert [s.receive_forward for s in result.stages] == [
        *(0, 15, 150),
        *(150, 15, 150),
    ]
    assert [s.receive_backward for s in result.stages] == [
        *(15, 150, 150),
        *(15, 150, 0),
    ]


def test_wrapping_around_pays_the_worst_replica():
    """Pitch 3 on threes of PAIRS: devices 0-1 in a pair, 3-4 across."""
    problem = chain(
        edge=5,
        devices=6,
        topology=make_levels((2, 10.0, 1e9), (3, 100.0, 1e8)),
        replicas=(2,),
    )
    result = score(problem, chunks(replicas=2))
    assert result.stages[2].receive_forward == 150
    assert result.stages[1].receive_backward == 150


def test_replicas_wrap_around_within_themselves():
    """Replicas 0-3 and 4-7 below one switch each: 10 + 5 everywhere."""
    problem = chain(
        edge=5,
        devices=8,
        topology=make_levels((4, 10.0, 1e9), (2, 100.0, 1e8)),
        replicas=(2,),
    )
    result = score(problem, chunks(replicas=2))
    assert [s.receive_forward for s in result.stages] == [0, 15, 15, 15]


# Interleaved schedule: memory


@pytest.mark.parametrize(
    ("blocks", "virtual", "micro_batches", "inflight", "at_once"),
    [
        # block 0: a a c c a C a C c A c A C C A A
        # block 1: b b d D d D b B b B d D d D B B
        (2, 2, 4, [4, 3, 2, 1], [5, 3]),
        # block 0: a a c c C C A A; block 1: b b d D d D B B
        (2, 2, 2, [2, 2, 2, 1], [4, 3]),
        # block 0: all forward first; block 1: b b d d f F f F D D B B
        (2, 3, 2, [2, 2, 2, 2, 2, 1], [6, 5]),
        # block 1: b b b e e e E E E B B B; block 2: c c c f F f F f F C C C
        (3, 2, 3, [3, 3, 3, 3, 3, 1], [6, 6, 4]),
    ],
)
def test_chunk_passes_in_flight(blocks, virtual, micro_batches, inflight, at_once):
    names = "abcdef"[: blocks * virtual]
    problem = chain(
        names,
        devices=blocks,
        global_batch=micro_batches,
        virtual_stages=(virtual,),
        costs={name: make_cost(10, 20, kept_bytes=7) for name in names},
    )
    result = score(problem, chunks(names, virtual))
    assert [stage.inflight for stage in result.stages] == inflight
    assert [stage.kept_bytes for stage in result.stages] == [
        7 * count for count in inflight
    ]
    assert [block.inflight for block in result.blocks] == at_once
    assert [block.kept_bytes for block in result.blocks] == [
        7 * count for count in at_once
    ]


@pytest.mark.parametrize("blocks", [2, 3, 4])
@pytest.mark.parametrize("virtual", [2, 3])
def test_first_block_keeps_what_korthikanti_et_al_state(blocks, virtual):
    """``L (1 + (p-1)/(p v))`` layers: here L = p v, each keeps one byte."""
    names = [f"l{i}" for i in range(blocks * virtual)]
    problem = make_problem(
        {name: make_cost(10, 20, kept_bytes=1) for name in names},
        devices=blocks,
        global_batch=2 * blocks,
        replicas=(1,),
        virtual_stages=(virtual,),
    )
    kept = score(problem, chunks(names, virtual)).blocks[0].kept_bytes
    assert kept == blocks * virtual + blocks - 1


def memory_chain(**fields):
    """Block 0 is a and c.

    Weights, gradients, state: 8 · 15 bytes. Kept: 4 · 100 + 10 once a a c c a C a are
    done, more than 3 · 100 + 2 · 10 when the first backward pass begins. Working: the
    larger of 5 and 30. Together 120 + 410 + 30 = 560. Block 1: 3 · 3 kept by b.
    """
    return chain(
        costs={
            "a": make_cost(10, 20, weight_bytes=10, kept_bytes=100, working_bytes=5),
            "b": make_cost(10, 20, kept_bytes=3),
            "c": make_cost(10, 20, weight_bytes=5, kept_bytes=10, working_bytes=30),
        },
        **fields,
    )


def test_memory_of_a_block_adds_up_its_chunks():
    first, second = score(memory_chain(), chunks()).blocks
    assert first.memory == {
        "weight_bytes": 15,
        "gradient_bytes": 15,
        "state_bytes": 90,
        "buffer_bytes": 0,
        "kept_bytes": 410,
        "working_bytes": 30,
        "reserve_bytes": 0,
    }
    assert first.memory_bytes == 560
    assert second.memory_bytes == 9


def test_capacity_is_checked_per_block():
    assert score(memory_chain(memory_bytes=560), chunks()).feasible
    assert score(memory_chain(memory_bytes=559), chunks()).violations == (
        "block 1: expected at most 559 bytes per device (559 bytes), got 560 "
        "(560 bytes, 0.2 % too much)",
    )


def test_the_document_of_an_interleaved_plan_has_blocks():
    document = score(memory_chain(hbm=1e9), chunks()).to_json()
    assert len(document["stages"]) == 4
    first = document["blocks"][0]
    assert first == {
        "stages": [1, 3],
        "load_ns": 60,
        # 15 bytes per byte of weights, 1 ns each
        "sync_ns": 225,
        "inflight": 5,
        "memory_bytes": 560,
        "memory": score(memory_chain(), chunks()).blocks[0].memory,
    }
    assert "blocks" not in score(chain(), make_plan(("a b c d", SINGLE))).to_json()


# Overlap within a pass


#: All-reduce of 10 bytes on two devices: 2 · 10 ns + 10 ns.
ALL_REDUCE = 30


def tensor_parallel(overlap, recompute="none", forward=100):
    cost = make_cost(
        forward,
        10,
        tp=2,
        activations=(
            Activations(kept_bytes=0),
            Activations(recompute="full", kept_bytes=0),
        ),
        collectives=(
            call("all-reduce", "tp", "forward", 10),
            call("all-reduce", "tp", "backward", 10, 2),
        ),
    )
    problem = make_problem(
        {"a": cost}, devices=2, overlap=overlap, recompute=("none", "full")
    )
    plan = make_plan(("a", Strategy(tp=2, recompute=recompute)))
    plan = replace(plan, overlap=tuple(overlap))
    (stage,) = score(problem, plan).stages
    return stage.forward, stage.backward


def test_collectives_hide_behind_the_computation_of_their_pass():
    """Forward 100 + 30 - 15; backward 10 + 60 - min(10, 30)."""
    assert tensor_parallel({}) == (100 + ALL_REDUCE, 10 + 2 * ALL_REDUCE)
    assert tensor_parallel({"tp": 0.5}) == (115, 60)


def test_a_recomputed_forward_pass_overlaps_too():
    assert tensor_parallel({"tp": 0.5}, "full") == (115, 60 + 115)


def test_other_axes_do_not_hide():
    assert tensor_parallel({"cp": 1.0, "ep": 1.0}) == (130, 70)


def test_overlap_that_a_plan_does_not_use_changes_nothing():
    problem = make_problem(
        {
            "a": make_cost(
                100, 10, tp=2, collectives=(call("all-reduce", "tp", "forward", 10),)
            )
        },
        devices=2,
        overlap={"tp": 1.0},
    )
    (stage,) = score(problem, make_plan(("a", Strategy(tp=2)))).stages
    assert stage.forward == 130


def test_the_axes_share_the_computation_they_hide_behind():
    """tp 30 · 1.0 and ep 20 · 0.5 (all-to-all of 20 bytes): 40 > 25.

    All-to-all of 20 bytes on two: 10 + 10. Pass: 25 + 30 + 20 - 25.
    Twice the computation hides all 40 of it: 50 + 50 - 40.
    """
    for computation, forward in ((25, 50), (50, 60)):
        cost = make_cost(
            computation,
            0,
            tp=2,
            ep=2,
            collectives=(
                call("all-reduce", "tp", "forward", 10),
                call("all-to-all", "ep", "forward", 20),
            ),
        )
        problem = make_problem(
            {"a": cost}, micro_batches=(2,), overlap={"tp": 1.0, "ep": 0.5},
            global_batch=2,
        )  # fmt: skip
        plan = make_plan(("a", Strategy(dp=2, tp=2, ep=2)), micro_batch=2)
        plan = replace(plan, overlap=("tp", "ep"))
        assert score(problem, plan).stages[0].forward == forward


def zero_plan(zero, used=(), **fields):
    """One layer of 100 + 200 ns and 8 bytes on two data ranks.

    All-gather of 8 bytes and reduce-scatter of 8 bytes: 10 + 4 each.
    """
    cost = make_cost(
        fields.pop("forward", 100),
        200,
        weight_bytes=8,
        activations=(
            Activations(kept_bytes=0),
            Activations(recompute="full", kept_bytes=0),
        ),
    )
    recompute = fields.pop("recompute", "none")
    problem = make_problem(
        {"a": cost},
        devices=2,
        global_batch=2,
        micro_batches=(2,),
        zero=(0, 1, 2, 3),
        recompute=("none", "full"),
        **fields,
    )
    strategy = Strategy(dp=2, zero=zero, recompute=recompute)
    plan = make_plan(("a", strategy), micro_batch=2)
    (stage,) = score(problem, replace(plan, overlap=used)).stages
    return stage.forward, stage.backward


@pytest.mark.parametrize(
    ("zero", "fraction", "forward", "backward"),
    [
        (1, 0.25, 100, 200),
        # backward: 200 + 14 - 3.5, half up
        (2, 0.25, 100, 211),
        # forward: 100 + 14 - 3.5; backward 200 + 28 - 7
        (3, 0.25, 111, 221),
        (3, 1.0, 100, 200),
    ],
)
def test_zero_traffic_overlaps_and_is_rounded_once(zero, fraction, forward, backward):
    overlap = {"weights": fraction}
    assert zero_plan(zero, ("weights",), overlap=overlap) == (forward, backward)


def test_zero_traffic_hides_behind_no_more_than_the_computation():
    """Forward of 5 ns: 5 + 14 - 5."""
    assert zero_plan(3, ("weights",), overlap={"weights": 1.0}, forward=5) == (14, 200)


def test_a_recomputed_forward_pass_gathers_no_weights():
    """Backward: 200 + 28 - 14, and 100 again."""
    found = zero_plan(3, ("weights",), overlap={"weights": 0.5}, recompute="full")
    assert found == (107, 214 + 100)


# Overlap of the gradient sync


def gradient_sync(fraction, backward=1000, hbm=None, **fields):
    """All-reduce of 60 bytes on two data ranks: 20 + 60."""
    problem = make_problem(
        {"a": make_cost(0, backward, weight_bytes=60)},
        devices=2,
        hbm=hbm,
        global_batch=2,
        micro_batches=(2,),
        overlap={"gradients": fraction},
        **fields,
    )
    plan = make_plan(("a", Strategy(dp=2)), micro_batch=2)
    result = score(problem, replace(plan, overlap=("gradients",)))
    assert result.step_quanta == backward + result.blocks[0].sync
    assert result.stages[0].sync == result.blocks[0].sync
    return result.blocks[0].sync


def test_gradient_sync_hides_behind_one_backward_pass():
    assert gradient_sync(0.0) == 80
    assert gradient_sync(0.5) == 40
    assert gradient_sync(0.5, backward=30) == 50
    # 80 - round(0.01875 · 80 = 1.5)
    assert gradient_sync(0.01875) == 78


def test_the_optimizer_update_does_not_hide():
    """At 1 byte/ns the update of 60 bytes takes 15 · 60."""
    assert gradient_sync(1.0, hbm=1e9) == 900


def test_both_ways_to_hide_the_sync_multiply():
    """80 · (1 - 0.5), of which half hides."""
    assert gradient_sync(0.5, gradient_sync_overlap=0.5) == 20


def test_gradient_sync_of_a_block_hides_behind_all_its_chunks():
    """a and c: two syncs of 80; backward 30 + 30 hides 60 of f · 160 = 80."""
    problem = chain(
        costs=dict.fromkeys("abcd", make_cost(5, 30, weight_bytes=60)),
        devices=4,
        global_batch=8,
        micro_batches=(2,),
        overlap={"gradients": 0.5},
    )
    plan = chunks(strategy=Strategy(dp=2), micro_batch=2)
    result = score(problem, replace(plan, overlap=("gradients",)))
    assert [block.sync for block in result.blocks] == [100, 100]
    assert [stage.sync for stage in result.stages] == [80] * 4


# Distributed optimizer


def distributed(replicas, strategy, zero=(0, 1), **weights):
    """Two samples per replica and micro-batch; 1 byte/ns of HBM."""
    problem = make_problem(
        {
            "a": make_cost(
                10, 20, tp=strategy.tp, cp=strategy.cp, ep=strategy.ep, **weights
            )
        },
        devices=replicas * strategy.devices,
        hbm=1e9,
        global_batch=4,
        micro_batches=(strategy.dp,),
        zero=zero,
        distributed_optimizer=True,
    )
    plan = make_plan(("a", strategy), replicas=replicas, micro_batch=strategy.dp)
    return problem, replace(plan, distributed_optimizer=True)


@pytest.mark.parametrize("zero", [0, 1])
def test_distributed_optimizer_shards_over_replicas_and_data_ranks(zero):
    """W = G = 80, S = 480 on R dp = 4 ranks.

    State 480 / 4. Reduce-scatter and all-gather of 80 bytes on four: two
    rounds, 20 + 3/4 · 80 = 80 each. Update of the shard: (20 + 2 · 20 +
    2 · 120) bytes.
    """
    problem, plan = distributed(2, Strategy(dp=2, zero=zero), weight_bytes=80)
    (stage,) = score(problem, plan).stages
    assert (stage.weight_bytes, stage.gradient_bytes) == (80, 80)
    assert stage.state_bytes == 120
    assert stage.sync == 80 + 80 + 300


def test_distributed_optimizer_shards_experts_over_their_copies():
    """ep = 2 of dp = 2: one copy per replica, two ranks: state 480 / 2.

    Reduce-scatter and all-gather of 80 bytes on two: 10 + 40 each. Update:
    40 + 2 · 40 + 2 · 240.
    """
    problem, plan = distributed(2, Strategy(dp=2, ep=2), expert_weight_bytes=80)
    (stage,) = score(problem, plan).stages
    assert stage.state_bytes == 240
    assert stage.sync == 50 + 50 + 600


@pytest.mark.parametrize(
    "strategy",
    [Strategy(dp=2), Strategy(dp=2, cp=2), Strategy(dp=4, tp=2, ep=2), Strategy(tp=2)],
)
def test_distributed_optimizer_of_one_replica_is_zero_1(strategy):
    weights = {"weight_bytes": 81, "expert_weight_bytes": 35}
    problem, plan = distributed(1, strategy, **weights)
    zero_1 = replace(
        plan,
        distributed_optimizer=False,
        stages=(
            Stage(
                layers=("a",),
                devices=strategy.devices,
                strategy=replace(strategy, zero=1),
            ),
        ),
    )
    assert score(problem, plan) == score(problem, zero_1)


# Buffers and reserve


@pytest.mark.parametrize("zero", [0, 3])
def test_buffers_are_kept_per_weight_and_never_sharded(zero):
    """4 bytes per weight of 2 bytes: twice the 8 + 6 bytes of weights."""
    problem = make_problem(
        {"a": make_cost(weight_bytes=8, expert_weight_bytes=6)},
        devices=2,
        global_batch=2,
        micro_batches=(2,),
        zero=(zero,),
        optimizer=Optimizer(buffer_bytes=4),
    )
    plan = make_plan(("a", Strategy(dp=2, zero=zero)), micro_batch=2)
    (stage,) = score(problem, plan).stages
    assert stage.buffer_bytes == stage.memory["buffer_bytes"] == 28
    parts = score(problem, plan).to_json()["stages"][0]["memory"]
    assert parts["buffer_bytes"] == 28
    assert stage.memory_bytes == sum(parts.values())


def bucketed(zero, devices=2):
    """One layer with 8 bytes of weights on some data ranks."""
    return make_problem(
        {"a": make_cost(weight_bytes=8)},
        devices=devices,
        global_batch=devices,
        micro_batches=(devices,),
        data_parallel=(devices,),
        replicas=(1,),
        zero=(zero,),
        optimizer=Optimizer(zero_2_bytes=7, zero_3_bytes=11),
    )


@pytest.mark.parametrize(
    ("zero", "size"),
    [
        # 8 of weights, 8 of gradients, 48 of state, the latter two halved
        (0, 8 + 8 + 48),
        (1, 8 + 8 + 24),
        # what is halved is gathered while the layer runs; and the buckets
        (2, 8 + 4 + 24 + 8 + 7),
        (3, 4 + 4 + 24 + 8 + 8 + 11),
    ],
)
def test_buckets_are_held_while_layers_run(zero, size):
    """In the working set of a layer, so once per device, in every solver."""
    problem = bucketed(zero)
    plan = make_plan(("a", Strategy(dp=2, zero=zero)), micro_batch=2)
    assert score(problem, plan).stages[0].memory_bytes == size
    step = score(problem, plan).step_quanta
    check(with_device(problem, memory_bytes=size), step)
    check(with_device(problem, memory_bytes=size - 1), None)
    two = replace(problem.graph.layers[0], id="b")
    graph = replace(problem.graph, layers=(*problem.graph.layers, two))
    plan = make_plan(("a b", Strategy(dp=2, zero=zero)), micro_batch=2)
    both = score(replace(problem, graph=graph), plan).stages[0]
    alone = score(problem, make_plan(("a", plan.stages[0].strategy), micro_batch=2))
    assert both.memory["working_bytes"] == alone.stages[0].memory["working_bytes"]


@pytest.mark.parametrize("zero", [2, 3])
def test_one_rank_has_no_buckets(zero):
    plan = make_plan(("a", Strategy(zero=zero)))
    assert score(bucketed(zero, 1), plan).stages[0].memory_bytes == 8 + 8 + 48


def test_half_a_byte_per_weight_rounds_up():
    """Three bytes are 1.5 weights, 0.75 bytes of buffers."""
    problem = make_problem(
        {"a": make_cost(weight_bytes=3)}, optimizer=Optimizer(buffer_bytes=0.5)
    )
    (stage,) = score(problem, make_plan(("a", SINGLE))).stages
    assert stage.buffer_bytes == 1


def with_reserve(problem, memory_bytes, reserve_bytes):
    return with_device(problem, memory_bytes=memory_bytes, reserve_bytes=reserve_bytes)


def test_reserve_counts_once_per_stage_and_is_named():
    """Two layers of 80 bytes and a working set of 7 each: 167 + 33."""
    problem = make_problem(
        {name: make_cost(weight_bytes=10, working_bytes=7) for name in "ab"}
    )
    plan = make_plan(("a b", SINGLE))
    fits = score(with_reserve(problem, 200, 33), plan)
    assert fits.feasible
    assert fits.stages[0].memory_bytes == 200
    assert fits.stages[0].memory["reserve_bytes"] == 33
    assert fits.stages[0].memory["working_bytes"] == 7
    assert score(with_reserve(problem, 200, 34), plan).violations == (
        "stage 1: expected at most 200 bytes per device (200 bytes), got 201 "
        "(201 bytes, 0.5 % too much, 34 bytes of it reserved)",
    )


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("reserve_bytes", "buffer_bytes", "step"),
    [
        # both layers on one device take 2 · 30; on two 30 + 30
        (0, 0, 60),
        (40, 0, 60),
        # 160 + 41 bytes do not fit 200; a message of 10 + 1 ns each way
        (41, 0, 82),
        # 4 bytes per weight: 160 + 40
        (0, 4, 60),
        (0, 5, 82),
        (1, 4, 82),
        (121, 0, None),
    ],
)
def test_every_solver_respects_buffers_and_reserve(
    solver, reserve_bytes, buffer_bytes, step
):
    problem = make_problem(
        {name: make_cost(10, 20, weight_bytes=10) for name in "ab"},
        edge=1,
        devices=2,
        replicas=(1,),
        optimizer=Optimizer(buffer_bytes=buffer_bytes),
    )
    problem = with_reserve(problem, 200, reserve_bytes)
    output = get_solver(solver)().solve(problem, SolveOptions())
    assert output.claimed_quanta == step
    wanted = Status.INFEASIBLE if step is None else Status.OPTIMAL
    assert output.status is wanted


@examples(15)
@given(problems(), st.integers(1, 10**6), st.sampled_from((0.5, 4.0)))
def test_reserve_and_buffers_mean_the_same_to_exact_solvers(
    problem, reserve_bytes, buffer_bytes
):
    memory_bytes = problem.cluster.device.memory_bytes
    reserved = with_reserve(problem, memory_bytes + reserve_bytes, reserve_bytes)
    optimizer = replace(problem.job.optimizer, buffer_bytes=buffer_bytes)
    buffered = with_job(problem, optimizer=optimizer)

    def optimum(problem, solver):
        output = get_solver(solver)().solve(problem, SolveOptions())
        return output.status, output.claimed_quanta

    assert optimum(reserved, "dp") == optimum(problem, "dp")
    assert optimum(reserved, "brute") == optimum(problem, "brute")
    assert optimum(buffered, "dp") == optimum(buffered, "brute")


# What a plan may use


PLAIN = make_plan(("a b", SINGLE), ("c d", SINGLE))


PLANS = {
    "plain": PLAIN,
    "chunks": chunks(),
    "zero": make_plan(("a b c d", Strategy(dp=2, zero=2)), micro_batch=2),
}


def tuples(fields):
    return {x: tuple(y) if isinstance(y, list) else y for x, y in fields.items()}


@pytest.mark.parametrize(
    ("job", "plan", "uses", "reason"), rows("plans", "not_allowed")
)
def test_a_plan_may_use_only_what_the_job_allows(job, plan, uses, reason):
    with pytest.raises(InvalidPlanError, match=f"^{reason}"):
        score(chain(**tuples(job)), replace(PLANS[plan], **tuples(uses)))


def make_stages(*devices):
    return tuple(
        Stage(layers=(i,), devices=n, strategy=Strategy(tp=n))
        for i, n in enumerate(devices)
    )


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda: replace(PLAIN, virtual_stages=0),
            "virtual_stages: expected >= 1, got 0",
        ),
        (
            lambda: replace(PLAIN, stages=make_stages(1, 1, 1), virtual_stages=2),
            r"stages: expected a multiple of virtual_stages = 2, at least 4 "
            r"\(two blocks\), got 3",
        ),
        (
            lambda: replace(PLAIN, virtual_stages=2),
            r"stages: expected a multiple of virtual_stages = 2, at least 4 "
            r"\(two blocks\), got 2",
        ),
        (
            lambda: replace(PLAIN, stages=make_stages(1, 2, 1, 1), virtual_stages=2),
            "stages: expected 2 devices in stage 4, as in stage 2 on the "
            "same block, got 1",
        ),
        (
            lambda: replace(PLAIN, overlap=("tp", "tp")),
            "overlap: expected distinct values, got 'tp' twice; remove one",
        ),
    ],
)
def test_a_wrong_plan_is_refused_by_name(build, reason):
    with pytest.raises(ValueError, match=f"^{reason}$"):
        build()


def test_an_interleaved_step_stays_below_the_upper_bound():
    """A tensor from the first layer to the last passes every chunk.

    Each of the 16 chunks of a block but the outermost receives it twice.
    """
    names = [f"l{i}" for i in range(32)]
    problem = make_problem(
        {name: make_cost(10, 20) for name in names},
        edges=((names[0], names[-1], 10**6),),
        devices=2,
        global_batch=100,
        replicas=(1,),
        virtual_stages=(16,),
    )
    result = score(problem, chunks(names, 16))
    assert result.step_time_ns > 100 * 31 * 10**6
    assert result.step_time_ns <= longest(problem).step_ns


@pytest.mark.parametrize(
    "slow", [{"launch_ns": 1e9}, {"peer_bandwidth_bytes_per_s": 1.0}]
)
def test_launches_and_slow_peers_count_in_the_upper_bound(slow):
    """A message and an all-reduce of a second each, or of 100 s."""
    cost = make_cost(
        10, 20, tp=2, collectives=(call("all-reduce", "tp", "forward", 100),)
    )
    problem = chain("ab", edge=100, devices=4, costs={"a": cost, "b": cost})
    (level,) = problem.cluster.topology.levels
    topology = replace(problem.cluster.topology, levels=(replace(level, **slow),))
    problem = with_cluster(problem, topology=topology)
    plan = make_plan(("a", Strategy(tp=2)), ("b", Strategy(tp=2)))
    assert 4 * 10**9 <= score(problem, plan).step_time_ns <= longest(problem).step_ns


# Files


def test_defaults_are_not_written():
    problem = make_problem({"a": make_cost(1, 2)})
    text = encode(problem).decode() + encode(PLAIN).decode()
    for name in (
        *("virtual_stages", 'overlap"', "distributed_optimizer"),
        *("buffer_bytes", "reserve_bytes"),
    ):  # fmt: skip
        assert name not in text


def test_what_a_job_allows_is_written_read_and_hashed():
    def replaced(**fields):
        return with_job(base, **fields)

    base = make_problem({"a": make_cost(1, 2)})
    variants = [
        base,
        replaced(virtual_stages=(1, 2)),
        replaced(virtual_stages=(2,)),
        replaced(overlap={"tp": 0.5}),
        replaced(overlap={"tp": 0.25}),
        replaced(overlap={"weights": 0.5}),
        replaced(distributed_optimizer=True),
        replaced(optimizer=Optimizer(buffer_bytes=4)),
        replaced(optimizer=Optimizer(zero_2_bytes=4)),
        replaced(optimizer=Optimizer(zero_3_bytes=4)),
        with_reserve(base, 10**9, 1),
    ]
    assert len({problem_hash(problem) for problem in variants}) == 11
    for problem in variants:
        again = decode_problem(encode(problem))
        assert again == problem
        assert problem_hash(again) == problem_hash(problem)


def test_an_unknown_overlap_is_refused():
    document = json.loads(encode(make_problem({"a": make_cost(1, 2)})))
    document["job"]["overlap"] = {"pp": 0.5}
    with pytest.raises(
        InvalidProblemError,
        match=r"^problem: .*\$\.job\.overlap: expected .* got 'pp'; correct",
    ):
        decode_problem(json.dumps(document).encode())


# The command line


@pytest.fixture
def files(tmp_path):
    """Write an interleaved plan and its problem; return their paths."""
    problem = with_reserve(
        chain(overlap={"tp": 0.5}, distributed_optimizer=True), 2**30, 2**28
    )
    paths = [str(tmp_path / "problem.json"), str(tmp_path / "plan.json")]
    write(paths[0], problem)
    write(paths[1], chunks())
    return paths


def shown(capsys, *arguments):
    """Run a command; return what it prints."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_score_shows_the_blocks(files, capsys):
    document = json.loads(shown(capsys, "score", *files, "--json", "-"))
    # two chunks of 30 ns each; five and three passes; the reserve alone
    assert [
        (x["stages"], x["load_ns"], x["inflight"], x["memory_bytes"])
        for x in document["blocks"]
    ] == [([1, 3], 60, 5, 2**28), ([2, 4], 60, 3, 2**28)]


def test_check_says_what_else_is_allowed(files, capsys):
    out = shown(capsys, "check", *files)
    rows = dict(line.split("  ", 1) for line in out.splitlines())
    assert rows["also allowed"].strip() == (
        "virtual stages 2, overlap of tp (0.5), distributed optimizer"
    )
    assert rows["cluster"].endswith("levels 2, 0.25 GiB of each reserved")


def test_the_list_of_solvers_says_what_they_search(capsys):
    entries = json.loads(shown(capsys, "solvers", "--json", "-"))["solvers"]
    searches = {entry["solver"]: entry["searches"] for entry in entries}
    for name in SOLVERS:
        assert searches[name] == [
            "distributed_optimizer",
            "granularity",
            *(["order"] if name == "dp" else []),
            "overlap",
            "sequence_parallel",
            "virtual_stages",
        ]


# Solvers


def everything(**fields):
    """A problem on which a plan may use whatever there is.

    Two devices; each layer has a cost on one and, with an all-reduce, on two of them.
    """
    costs = tuple(
        cost
        for samples in (1, 2)
        for cost in (
            make_cost(
                10 * samples,
                20 * samples,
                samples=samples,
                weight_bytes=6,
                kept_bytes=4,
            ),
            make_cost(
                6 * samples,
                12 * samples,
                tp=2,
                samples=samples,
                weight_bytes=3,
                kept_bytes=2,
                collectives=(call("all-reduce", "tp", "forward", 4),),
            ),
        )
    )
    return make_problem(
        dict.fromkeys("abcd", costs),
        edge=1,
        **{
            "devices": 2,
            "global_batch": 8,
            "micro_batches": (1, 2),
            "topology": make_levels((2, 1.0, 1e9)),
            "hbm": 1e9,
            "zero": (0, 1),
            "virtual_stages": (1, 2),
            "overlap": {"tp": 0.5, "gradients": 0.75},
            "distributed_optimizer": True,
            **fields,
        },
    )


def every_plan(problem):
    """Yield every plan of a chain in all ways that ``score`` accepts."""
    names = [layer.id for layer in problem.graph.layers]
    widths = range(1, problem.cluster.num_devices + 1)
    for replicas, micro_batch, num_stages, virtual in itertools.product(
        widths, problem.job.micro_batches, range(1, len(names) + 1), (1, 2)
    ):
        choices = strategies(problem, micro_batch)
        inner = itertools.combinations(range(1, len(names)), num_stages - 1)
        for cuts, used, overlap, sharded in itertools.product(
            inner,
            list(itertools.product(choices, repeat=num_stages)),
            ((), ("tp",), ("gradients",), ("tp", "gradients")),
            (False, True),
        ):
            ends = (0, *cuts, len(names))
            try:
                plan = Plan(
                    replicas=replicas,
                    micro_batch=micro_batch,
                    stages=tuple(
                        Stage(
                            layers=tuple(names[start:end]),
                            devices=strategy.devices,
                            strategy=strategy,
                        )
                        for start, end, strategy in zip(
                            ends, ends[1:], used, strict=False
                        )
                    ),
                    virtual_stages=virtual,
                    overlap=overlap,
                    distributed_optimizer=sharded,
                )
                yield plan, score(problem, plan)
            except ValueError:
                continue


def without_extensions(problem):
    return with_job(
        problem, virtual_stages=(1,), overlap={}, distributed_optimizer=False
    )


def not_interleaved(problem):
    return with_job(problem, virtual_stages=(1,))


@pytest.mark.parametrize("memory_bytes", [10**9, 150, 100, 10])
def test_brute_force_searches_whatever_is_allowed(memory_bytes):
    problem = everything(memory_bytes=memory_bytes)
    times = {
        encode(plan): result.step_quanta
        for plan, result in every_plan(problem)
        if result.feasible
    }
    result = run_solver(problem, "brute")
    assert result.outcome is Outcome.SOLVED
    if times:
        assert result.status is Status.OPTIMAL
        assert result.step_quanta == min(times.values())
    else:
        assert result.status is Status.INFEASIBLE


def test_brute_force_counts_what_it_lists():
    problem = everything()
    space = PlanSpace(problem, CostModel(problem), Deadline(None))
    plans = list(space.plans())
    assert space.count(10**9) == len(plans) == len(set(map(encode, plans)))
    # ZeRO 0 and 1 are one plan under the distributed optimizer
    wanted = {
        encode(replace(plan, solver="brute"))
        for plan, _ in every_plan(problem)
        if not plan.distributed_optimizer
        or all(stage.strategy.zero == 0 for stage in plan.stages)
    }
    assert set(map(encode, plans)) == wanted
    assert {plan.virtual_stages for plan in plans} == {1, 2}


@pytest.mark.parametrize(
    ("extension", "plain", "best"),
    [
        # loads 60 and 60: 4 · 60 + 60, or 240 + 60 / 2
        ({"virtual_stages": (1, 2)}, 300, 270),
        ({}, 300, 300),
    ],
)
def test_brute_force_interleaves_where_that_is_best(extension, plain, best):
    fields = {
        "names": "abcd",
        "virtual_stages": (1,),
        "topology": make_levels((2, 0.0, 1e18)),
        "edge": 0,
    }
    problem = chain(**{**fields, **extension})
    base = run_solver(without_extensions(problem), "brute")
    result = run_solver(problem, "brute")
    assert (base.step_quanta, result.step_quanta) == (plain, best)
    assert result.status is Status.OPTIMAL
    assert result.plan.virtual_stages == (1 if plain == best else 2)


def two_stages(fraction, **fields):
    """Two layers on a device each, in two replicas; one micro-batch.

    An all-reduce of a's 60 bytes takes 20 + 60; 20 bytes between the layers,
    10 + 20 each way. Backward a 10, b 0.
    """
    return make_problem(
        {"a": make_cost(0, 10, weight_bytes=60), "b": make_cost(0, 0)},
        edge=20,
        global_batch=2,
        replicas=(2,),
        pipeline_parallel=(2,),
        overlap={"gradients": fraction},
        **fields,
    )


def zero_3(fraction, latency_ns=10.0, forward_ns=100.0):
    """One layer of 8 bytes on two data ranks: all-gathers of 14 ns."""
    return make_problem(
        {"a": make_cost(forward_ns, 200, weight_bytes=8)},
        devices=2,
        topology=make_levels((2, latency_ns, 1e9)),
        global_batch=2,
        micro_batches=(2,),
        zero=(3,),
        overlap={"weights": fraction},
    )


def synced(overlap, weight_bytes=60, latency_ns=10.0, hbm=None, backward_ns=1000):
    """One layer on two data ranks; backward 1000."""
    return make_problem(
        {"a": make_cost(0, backward_ns, weight_bytes=weight_bytes)},
        devices=2,
        memory_bytes=2**50,
        topology=make_levels((2, latency_ns, 1e9)),
        hbm=hbm,
        global_batch=2,
        micro_batches=(2,),
        overlap=overlap,
    )


def either(one, other, hbm=None):
    """One layer on two data ranks that has a cost with ep = 1, and ep = 2."""
    return make_problem(
        {"a": (one, replace(other, ep=2))},
        devices=2,
        hbm=hbm,
        global_batch=2,
        micro_batches=(2,),
        replicas=(1,),
        overlap={"gradients": 1.0},
    )


#: Problems, what their best plan takes, and what it has to use for that.
HIDING = {
    # an update of 15 · 20 / 15, and 20 + 20 that hide; experts update 50
    "more-sync-that-hides": (
        either(
            make_cost(0, 1000, weight_bytes=20),
            make_cost(0, 1000, expert_weight_bytes=50),
            hbm=15e9,
        ),
        1000 + 20,
        ("gradients",),
    ),
    # 20 + 20 of sync hide behind a backward pass alone
    "as-long-in-the-other-pass": (
        either(
            make_cost(1000, 0, weight_bytes=20), make_cost(0, 1000, weight_bytes=20)
        ),
        1000,
        ("gradients",),
    ),
    # 30 + 80 - 30, or 60 + 70 - 60
    "a-longer-pass-hides-more": (
        either(make_cost(0, 30, weight_bytes=60), make_cost(0, 60, weight_bytes=50)),
        70,
        ("gradients",),
    ),
    # 20 + 30 hide, but the update takes 15 · 30 / 4.5; of 20 + 10 bytes both
    # are less, and 100 of a backward pass are enough
    "less-to-sync": (
        either(
            make_cost(0, 1000, weight_bytes=30),
            make_cost(900, 100, weight_bytes=10),
            hbm=4.5e9,
        ),
        1000 + 33,
        ("gradients",),
    ),
    # Σ τ = 10 + 30 + 30; behind 10 + 30 hides as much of a's 80
    "behind-a-receive": (two_stages(1.0), 70 + 40, ("gradients",)),
    # half of 80 hides
    "half-behind-a-receive": (two_stages(0.5), 70 + 40, ("gradients",)),
    "a-quarter": (two_stages(0.25), 70 + 60, ("gradients",)),
    # forward 100, backward 200; the plain plan takes 114 and 228
    "zero-traffic": (zero_3(1.0), 300, ("weights",)),
    # apart: 100 + 14 and 200 + 28; 100.4 + 14.4 and 200 + 28.8 rounded
    # together are 115 and 229
    "weights-rounded-apart": (zero_3(0.0, 10.4, 100.4), 342, ()),
    # 80.6 + 0.6 rounded together are 81, apart 81 + 1
    "sync-rounded-together": (
        synced({"gradients": 0.0}, latency_ns=10.3, hbm=1.5e12),
        1000 + 81,
        (),
    ),
    # ⌊0.7 · 45 + 1/2⌋ is 32 exactly, 31 in double precision
    "rounded-as-written": (
        synced({"gradients": 0.7}, weight_bytes=25),
        1000 + 45 - 32,
        ("gradients",),
    ),
    # ⌊0.3 · 45 + 1/2⌋ is 14, and the double 0.3 is a little less than 3/10
    "rounded-up-from-below": (
        synced({"gradients": 0.3}, weight_bytes=25),
        1000 + 45 - 14,
        ("gradients",),
    ),
    # ⌊0.29999 · 45 + 1/2⌋ is 13, and less than a thousandth below 14
    "a-little-below-a-half": (
        synced({"gradients": 0.29999}, weight_bytes=25),
        1000 + 45 - 13,
        ("gradients",),
    ),
    # 0.5176137 · 865601719 is 448047308 and a little less than a half; a line
    # with coefficients that solvers of integer programs hold is above that
    "rounded-down-from-above": (
        synced(
            {"gradients": 0.5176137}, weight_bytes=865601719 - 20, backward_ns=10**9
        ),
        10**9 + 865601719 - 448047308,
        ("gradients",),
    ),
}


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("case", HIDING)
def test_exact_solvers_hide_what_can_hide(case, solver, granularity):
    problem, step, used = HIDING[case]
    problem = with_job(problem, granularity=granularity)
    result = get_solver(solver)().solve(problem, SolveOptions())
    assert result.status is Status.OPTIMAL
    assert result.claimed_quanta == step
    assert result.plan.overlap == used


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@pytest.mark.parametrize("setting", optima.SETTINGS)
@pytest.mark.parametrize("case", HIDING)
def test_dp_needs_no_plan_to_prove_what_hides(case, setting, granularity):
    problem, step, used = HIDING[case]
    problem = with_job(problem, granularity=granularity)
    output = optima.search(problem, setting)
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == step
    assert output.plan.overlap == used


def beside(problem, ep):
    """Add a layer of 1000 ns forward, 2000 with the other of both ep."""
    costs = (make_cost(1000 * (1 + (ep != e)), 0, ep=e) for e in (1, 2))
    graph = replace(
        problem.graph,
        kinds=(*problem.graph.kinds, LayerKind(name="b", costs=tuple(costs))),
        layers=(*problem.graph.layers, Layer(id="b", kind="b")),
    )
    return replace(problem, graph=graph, job=replace(problem.job, granularity="layer"))


#: Plans whose layers differ in ep: a stands in one way, b in the other.
HIDING_APART = {
    "more-sync-that-hides": (HIDING["more-sync-that-hides"][0], 2, 1020),
    "as-long-in-the-other-pass": (HIDING["as-long-in-the-other-pass"][0], 1, 1000),
    "less-to-sync": (HIDING["less-to-sync"][0], 1, 1033),
    "a-longer-pass-hides-more": (HIDING["a-longer-pass-hides-more"][0], 1, 70),
    # Behind a backward pass of 30 hides as much of 20 + 60
    "a-short-pass": (
        either(make_cost(0, 30, weight_bytes=60), make_cost(0, 1000, weight_bytes=60)),
        2,
        30 + 80 - 30,
    ),
}


@pytest.mark.parametrize("solver", [*SOLVERS, *optima.SETTINGS])
@pytest.mark.parametrize("case", HIDING_APART)
def test_sync_of_layers_that_differ_hides(case, solver):
    """``b`` runs for 1000 and has nothing to sync."""
    problem, ep, step = HIDING_APART[case]
    problem = beside(problem, ep)
    output = (
        optima.search(problem, solver)
        if solver in optima.SETTINGS
        else get_solver(solver)().solve(problem, SolveOptions())
    )
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == step + 1000
    (stage,) = output.plan.stages
    assert [x.ep for x in stage.layer_strategies] == [3 - ep, ep]


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("memory_bytes", "distributed", "step"),
    [
        # 80 + 80 + 480 bytes fit without; an all-reduce of 80: 20 + 80
        (640, (False, True), 130),
        # 80 + 80 + 240: a reduce-scatter and an all-gather, 10 + 40 each
        (639, (True,), 130),
        (400, (True,), 130),
        (399, (), None),
    ],
)
def test_a_distributed_optimizer_makes_a_plan_fit(
    memory_bytes, distributed, step, solver, granularity
):
    problem = make_problem(
        {"a": make_cost(10, 20, weight_bytes=80)},
        devices=2,
        memory_bytes=memory_bytes,
        global_batch=2,
        replicas=(2,),
        distributed_optimizer=True,
        granularity=granularity,
    )
    result = get_solver(solver)().solve(problem, SolveOptions())
    assert result.claimed_quanta == step
    if step is None:
        assert result.status is Status.INFEASIBLE
    else:
        assert result.status is Status.OPTIMAL
        assert result.plan.distributed_optimizer in distributed


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_distributed_optimizer_is_left_out_under_zero_2(solver, granularity):
    """200 of the backward pass and a reduce-scatter of 14."""
    problem = make_problem(
        {"a": make_cost(100, 200, weight_bytes=8)},
        devices=2,
        global_batch=2,
        micro_batches=(2,),
        zero=(2,),
        distributed_optimizer=True,
        granularity=granularity,
    )
    output = get_solver(solver)().solve(problem, SolveOptions())
    assert output.status is Status.OPTIMAL
    # and an all-gather of the weights at the end
    assert output.claimed_quanta == 100 + 200 + 14 + 14
    assert not output.plan.distributed_optimizer


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@pytest.mark.parametrize("solver", ["dp", "cpsat", "milp"])
def test_of_equal_plans_the_one_with_most_overlap_is_taken(solver, granularity):
    """On one device nothing is sent, and nothing sharded."""
    problem = make_problem(
        {"a": make_cost(10, 20, weight_bytes=5)},
        devices=1,
        hbm=1e9,
        overlap=ALL_OVERLAP,
        distributed_optimizer=True,
        granularity=granularity,
    )
    plan = get_solver(solver)().solve(problem, SolveOptions()).plan
    assert plan.overlap == OVERLAP
    assert plan.distributed_optimizer


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("granularity", ["stage", "layer"])
def test_overlap_counts_before_the_batch_of_equal_plans(
    monkeypatch, granularity, workers
):
    """Weights take 14.4 in a pass. Twice 100 + 14 and 200 + 28 take 684.

    Hidden, 100.4 + 14.4 and 200 + 28.8 take 4 more. With four samples at once
    241 + 14.4 and 400.6 + 28.8 take 255 + 429, hidden or not.
    """
    problem = zero_3(0.0, 10.4)
    kind = LayerKind(
        name="a",
        costs=(
            make_cost(100.4, 200, weight_bytes=8),
            make_cost(241, 400.6, weight_bytes=8, samples=2),
        ),
    )
    problem = replace(
        problem,
        graph=replace(problem.graph, kinds=(kind,)),
        job=replace(
            problem.job,
            global_batch=4,
            micro_batches=(2, 4),
            replicas=(1,),
            granularity=granularity,
        ),
    )
    monkeypatch.setattr("nest.search.solver.MAX_QUICK_PLACEMENTS", -1)
    options = SolveOptions(num_workers=workers)
    output = get_solver("dp")().solve(problem, options)
    assert output.claimed_quanta == 684
    assert (output.plan.overlap, output.plan.micro_batch) == (("weights",), 4)
    plain = without_extensions(problem)
    output = get_solver("dp")().solve(plain, options)
    assert (output.claimed_quanta, output.plan.micro_batch) == (684, 2)


@pytest.mark.parametrize("granularity", ["stage", "layer"])
def test_the_plan_does_not_depend_on_the_number_of_workers(monkeypatch, granularity):
    monkeypatch.setattr("nest.search.solver.MAX_QUICK_PLACEMENTS", -1)
    problem = not_interleaved(everything(granularity=granularity))
    solver = get_solver("dp")()
    plans = [
        solver.solve(problem, SolveOptions(num_workers=number)).plan
        for number in (1, 2)
    ]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("solver", ["dp", "cpsat", "milp"])
def test_interleaved_plans_are_proven_by_all_exact_solvers(solver):
    problem = everything()
    best = run_solver(problem, "brute")
    result = run_solver(problem, solver)
    assert result.outcome is Outcome.SOLVED
    assert result.status is Status.OPTIMAL
    assert result.step_quanta == best.step_quanta
    assert (
        result.step_quanta <= run_solver(not_interleaved(problem), solver).step_quanta
    )


@pytest.mark.parametrize("solver", ["dp", "cpsat", "milp"])
def test_no_interleaved_plan_fits_in_a_byte(solver):
    assert run_solver(everything(memory_bytes=1), solver).status is Status.INFEASIBLE


#: Searches no plan timed pass by pass.
PLAIN_ONLY = Capabilities(
    exact=True, method="", searches=frozenset({"overlap", "distributed_optimizer"})
)


def test_a_limit_keeps_its_detail():
    problem = everything()
    claim = SolverOutput(
        status=Status.NO_SOLUTION,
        limit=Limit.TIME,
        lower_bound_quanta=5,
        detail="no time",
    )
    verdict = judge(problem, claim, capabilities=PLAIN_ONLY)
    assert verdict.status is Status.NO_SOLUTION
    assert verdict.lower_bound_quanta is None
    assert verdict.detail == "did not search virtual_stages; no time"
    searched = judge(problem, claim, capabilities=get_solver("brute").capabilities)
    assert (searched.lower_bound_quanta, searched.detail) == (5, "no time")


def test_several_extensions_are_called_them():
    capabilities = Capabilities(exact=True, method="")
    claim = SolverOutput(status=Status.INFEASIBLE)
    verdict = judge(everything(), claim, capabilities=capabilities)
    assert verdict.status is Status.NO_SOLUTION
    assert verdict.detail == (
        "did not search virtual_stages, overlap, distributed_optimizer; "
        "proven infeasible without them"
    )


def test_an_optimum_without_an_extension_is_a_plan():
    problem = everything()
    best = get_solver("dp")().solve(not_interleaved(problem), SolveOptions())
    claim = SolverOutput(
        status=Status.OPTIMAL,
        plan=best.plan,
        claimed_quanta=best.claimed_quanta,
        lower_bound_quanta=best.claimed_quanta,
    )
    verdict = judge(problem, claim, capabilities=PLAIN_ONLY)
    assert verdict.status is Status.FEASIBLE
    assert verdict.lower_bound_quanta is None
    assert verdict.detail == (
        "did not search virtual_stages; proven optimal without it"
    )


def test_a_solver_that_can_find_no_legal_plan_is_skipped():
    problem = everything(virtual_stages=(2,))
    result = run_solver(problem, "alpa")
    assert result.outcome is Outcome.SKIPPED
    assert result.detail == (
        "$.job.virtual_stages: expected 1 among the allowed values, as this "
        "solver does not search interleaved plans, got [2]; add 1 or use "
        "solver dp or brute"
    )
    best = run_solver(problem, "brute")
    assert best.plan.virtual_stages == 2
    assert run_solver(problem, "dp").step_quanta == best.step_quanta


def test_a_warm_start_beyond_the_search_is_refused():
    problem = everything()
    options = SolveOptions(warm_start=chunks())
    with pytest.raises(
        InvalidPlanError,
        match=r"^warm start: expected a plan without virtual_stages, which "
        "solver 'mcmc' does not search, got one with it; start from another "
        "plan or use solver dp or brute$",
    ):
        run_solver(problem, "mcmc", options)
    for solver in SOLVERS:
        assert run_solver(problem, solver, options).status is Status.OPTIMAL


@pytest.mark.parametrize("solver", SOLVERS)
def test_exact_solvers_start_from_plans_that_overlap(solver):
    """From the best plan, and from one that hides less than it could."""
    problem = not_interleaved(everything())
    best = run_solver(problem, "dp")
    assert best.plan.overlap == ("tp", "gradients")
    for overlap in (("tp", "gradients"), ("gradients",), ()):
        start = replace(best.plan, overlap=overlap, solver="")
        result = run_solver(problem, solver, SolveOptions(warm_start=start))
        assert result.status is Status.OPTIMAL
        assert result.step_quanta == best.step_quanta


@examples(10)
@given(problems(preset="standard"))
def test_more_choices_never_hurt(problem):
    wide = with_job(
        problem,
        schedule="1f1b",
        overlap={"weights": 0.25, "gradients": 1.0},
        virtual_stages=(1, 2),
        distributed_optimizer=True,
    )

    def optimum(problem):
        options = SolveOptions(extra={"max_plans": "1000000"})
        found = get_solver("brute")().solve(problem, options)
        return math.inf if found.plan is None else found.claimed_quanta

    assert optimum(wide) <= optimum(without_extensions(wide))
