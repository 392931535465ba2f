"""Every term of the cost model under preset ``standard``, by hand.

Unless a test says otherwise the link below takes 10 ns + 1 ns per byte and,
on ``PAIRS``, the link between pairs 100 ns + 10 ns per byte. With two ranks
an all-reduce of X bytes is 2 messages + X, an all-gather, a reduce-scatter
and an all-to-all are 1 message + X/2 each.
"""

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from nest.cost.axes import Groups, groups_of
from nest.cost.groups import DATA_GROUPS, GroupTable
from nest.cost.model import Block, CostModel
from nest.cost.score import score
from nest.cost.space import PLAIN
from nest.cost.terms import sync_calls, weight_sizes
from nest.errors import InvalidProblemError, UnknownNameError
from nest.ir import (
    Activations,
    Edge,
    Graph,
    Layer,
    LayerKind,
    Optimizer,
    Plan,
    Stage,
    Strategy,
)
from nest.ir.plan import RECOMPUTE
from tests.builders import (
    PAIRS,
    SINGLE,
    call,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
)
from tests.graphs import make_graph

#: 2 bytes per weight, 4 per gradient, 12 of state: figures that differ.
UNEQUAL = Optimizer(weight_bytes=2, gradient_bytes=4, state_bytes=12)


def stages_of(problem, plan):
    return score(problem, plan).stages


def only_stage(problem, plan):
    (stage,) = stages_of(problem, plan)
    return stage


# Computation and collectives


def test_stage_adds_up_its_layers():
    """F = 100 + 30, G = 200 + 50."""
    problem = make_problem({"a": make_cost(100, 200), "b": make_cost(30, 50)})
    stage = only_stage(problem, make_plan(("a b", SINGLE)))
    assert (stage.forward, stage.backward, stage.load) == (130, 250, 380)


def test_a_layer_is_rounded_once_per_pass():
    """Two layers of 0.6 ns are 1 + 1 quanta, not 1.2 -> 1.

    A collective is rounded together with its layer: 0.3 + (10 + 0.5) = 10.8 is 11.
    """
    problem = make_problem({"a": make_cost(0.6), "b": make_cost(0.6)})
    assert only_stage(problem, make_plan(("a b", SINGLE))).forward == 2
    gather = (call("all-gather", "tp", "forward", 1),)
    for forward_ns, expected in ((0.3, 11), (0.9, 11), (1.1, 12)):
        # 10.8 -> 11; 11.4 -> 11, where 1 + 11 would be 12; 11.6 -> 12
        cost = make_cost(forward_ns, tp=2, collectives=gather)
        stage = only_stage(make_problem({"a": cost}), make_plan(("a", Strategy(tp=2))))
        assert stage.forward == expected


def test_collectives_go_to_their_pass_and_count():
    """Forward 2 all-reduces of 200: 2(20 + 200); backward 10 + 100."""
    cost = make_cost(
        1000,
        2000,
        tp=2,
        collectives=(
            call("all-reduce", "tp", "forward", 200, count=2),
            call("all-gather", "tp", "backward", 200),
        ),
    )
    problem = make_problem({"a": cost}, topology=PAIRS)
    stage = only_stage(problem, make_plan(("a", Strategy(tp=2))))
    assert (stage.forward, stage.backward) == (1440, 2110)


@pytest.mark.parametrize(
    ("axis", "key", "strategy", "expected"),
    [
        # tp ranks are neighbors: 20 + 200
        ("tp", {"tp": 2}, Strategy(tp=2), 220),
        # cp ranks are tp apart, across pairs: 200 + 2000
        ("cp", {"tp": 2, "cp": 2}, Strategy(tp=2, cp=2), 2200),
        # without tp they are neighbors
        ("cp", {"cp": 2}, Strategy(cp=2), 220),
        # dp ranks are tp * cp apart
        ("dp", {"tp": 2}, Strategy(dp=2, tp=2), 2200),
        ("dp", {"cp": 2}, Strategy(dp=2, cp=2), 2200),
        ("dp", {}, Strategy(dp=2), 220),
        # experts sit on consecutive data ranks, tp apart
        ("ep", {"ep": 2}, Strategy(dp=2, ep=2), 220),
        ("ep", {"ep": 2}, Strategy(dp=4, ep=2), 220),
        ("ep", {"tp": 2, "ep": 2}, Strategy(dp=2, tp=2, ep=2), 2200),
        # ep runs over cp before dp
        ("ep", {"cp": 2, "ep": 2}, Strategy(dp=2, cp=2, ep=2), 220),
        # an axis of one rank costs nothing
        ("cp", {"tp": 2}, Strategy(tp=2), 0),
    ],
)
def test_groups_of_every_axis(axis, key, strategy, expected):
    cost = make_cost(
        **key,
        samples=4 // strategy.dp,
        collectives=(call("all-reduce", axis, "forward", 200),),
    )
    problem = make_problem(
        {"a": cost}, topology=PAIRS, micro_batches=(4,), global_batch=4
    )
    plan = make_plan(("a", strategy), micro_batch=4)
    assert only_stage(problem, plan).forward == expected


def test_ranks_run_tp_then_cp_then_dp():
    """dp = tp = cp = 2 on devices 0..7: strides 1, 2 and 4.

    Data ranks are 2 apart, (0, 2, 4, 6): per pair one, per four two, two
    fours. Expert copies with ep = 2 are 4 apart.
    """
    tree = make_levels((2, 10.0, 1e9), (2, 100.0, 1e8), (2, 1000.0, 4e8))
    model = CostModel(make_problem({"a": make_cost()}, devices=8, topology=tree))
    strategy = Strategy(dp=2, tp=2, cp=2, ep=2)
    block = Block(1, 8, 0, 8)
    keys = model.groups.keys(strategy, block)
    groups = {name: keys[name] for name in groups_of(strategy)}

    def alike(*devices):
        return {model.network.shape(devices)}

    assert groups == {
        "tp": alike(0, 1),
        "cp": alike(0, 2),
        "dp": alike(0, 4),
        "ep": alike(0, 2),
        "data": alike(0, 2, 4, 6),
        "expert-data": alike(0, 4),
        # on a tree what others do at the end of the step costs nothing
        "step-data": alike(0, 2, 4, 6),
        "step-expert-data": alike(0, 4),
        # of one replica the same; nothing to sync between replicas
        "sync": alike(0, 2, 4, 6),
        "expert-sync": alike(0, 4),
        "replicas": set(),
    }


def test_the_fastest_blocks_are_slower_than_others_on_no_axis():
    """dp = tp = 2 on units of 3: at 1, both tensor pairs are in one unit.

    At 0 and 2 one of them is; of two data pairs one crosses units or both.
    """
    tree = make_levels((3, 0.0, 1e9), (3, 0.0, 1e8))
    cost = make_cost(collectives=(call("all-reduce", "tp", "forward", 1),))
    model = CostModel(make_problem({"a": cost}, devices=9, topology=tree))
    strategy = Strategy(dp=2, tp=2)
    blocks = [Block(1, 9, offset, 4) for offset in range(3)]
    assert model.groups.fastest(strategy, blocks) == [blocks[1]]
    assert model.groups.fastest(strategy, blocks, passes=True) == [blocks[1]]
    # What crosses units may be faster or slower: that is not looked at.
    across, inside = Block(1, 9, 2, 2), Block(1, 9, 0, 2)
    pair = Strategy(tp=2)
    both = [across, inside]
    assert model.groups.fastest(pair, both, passes=True) == both
    assert model.groups.fastest(pair, [inside, inside], passes=True) == [inside]


def test_passes_are_fastest_where_zero_traffic_is():
    """No layer talks along an axis: at 2 the data pair crosses units."""
    tree = make_levels((3, 0.0, 1e9), (3, 0.0, 1e8))
    model = CostModel(make_problem({"a": make_cost()}, devices=9, topology=tree))
    across, inside = Block(1, 9, 2, 2), Block(1, 9, 0, 2)
    pair, blocks = Strategy(dp=2), [across, inside]
    assert model.groups.fastest(pair, blocks, passes=True) == blocks
    assert model.groups.fastest(Strategy(tp=2), blocks, passes=True) == [across]


def test_the_sync_of_a_layer_alone_is_that_of_its_terms():
    """Of two ranks ZeRO 0 all-reduces, 1 scatters and gathers, 2 gathers alone."""
    cost = make_cost(weight_bytes=100)
    problem = make_problem(
        {"a": cost},
        devices=4,
        overlap={"gradients": 0.5},
        distributed_optimizer=True,
        data_parallel=(2,),
        zero=(0, 1, 2, 3),
    )
    model, block = CostModel(problem), Block(2, 2, 0, 2)
    seen = set()
    hidden = PLAIN._replace(overlap=frozenset({"gradients"}))
    for runtime in (PLAIN, hidden, PLAIN._replace(distributed_optimizer=True)):
        for zero in range(4):
            key = (0, Strategy(dp=2, zero=zero), 2, block, runtime)
            terms = model.layers.terms(*key)
            assert terms is not None
            assert model.layers.layer_sync(*key) == terms.sync
            seen.add(terms.sync)
    assert len(seen) > 2
    assert model.layers.layer_sync(0, Strategy(dp=3), 3, block, PLAIN) == 0


class OneDiffers(NamedTuple):
    """A network on which groups of one purpose differ from block to block."""

    purpose: Groups

    def alike(self, block):
        return block

    def groups(self, groups, kinds):
        return groups[1:], groups.block if groups[1:] == self.purpose else None


@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize("zero", range(4))
def test_what_a_strategy_runs_tells_blocks_apart(zero, distributed):
    """All groups of its ZeRO traffic and sync do, and their kinds are known."""
    problem = make_problem({"a": make_cost()}, distributed_optimizer=distributed)
    strategy = Strategy(dp=2, zero=zero)
    sizes = weight_sizes(make_cost(), strategy, problem.job.optimizer)
    calls = [
        (made.kind, name)
        for runtime in (PLAIN, PLAIN._replace(distributed_optimizer=distributed))
        for made in sync_calls(sizes, strategy, runtime)
        for name, _ in made.parts
    ]
    calls += [("reduce-scatter", name) for name in DATA_GROUPS if zero >= 2]
    here, there = Block(1, 4, 0, 2), Block(1, 4, 2, 2)
    for kind, name in calls:
        table = GroupTable(OneDiffers(groups_of(strategy)[name]), problem)
        assert kind in table.kinds[name]
        assert table.number(strategy, here) != table.number(strategy, there)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("zero", range(4))
def test_passes_apart_are_those_of_the_terms(zero, recompute):
    """ZeRO traffic of 1000 bytes and recomputation of 40 ns included."""
    cost = replace(
        tp2_cost(),
        weight_bytes=1000,
        activations=tuple(
            Activations(
                recompute=name, kept_bytes=10, extra_ns=40.0 * (name == "selective")
            )
            for name in RECOMPUTE
        ),
    )
    problem = make_problem(
        {"a": cost}, topology=PAIRS, global_batch=2, zero=(zero,), recompute=RECOMPUTE
    )
    model = CostModel(problem)
    strategy = Strategy(tp=2, dp=2, zero=zero, recompute=recompute)
    for block in (None, Block(1, 4, 0, 4)):
        terms = model.layer_terms(0, strategy, 2, block)
        found = model.layers.passes(0, strategy, 2, block, frozenset())
        assert found == terms[:6]
    other = replace(strategy, tp=1)
    assert model.layers.passes(0, other, 2, None, frozenset()) is None


def tp2_cost():
    return make_cost(tp=2, collectives=(call("all-reduce", "tp", "forward", 200),))


def test_a_straddling_block_pays_the_upper_level():
    """Stage 2 sits on devices 1 and 2, in two pairs: 200 + 2000."""
    problem = make_problem({"a": make_cost(), "b": tp2_cost()}, topology=PAIRS)
    plan = make_plan(("a", SINGLE), ("b", Strategy(tp=2)))
    assert stages_of(problem, plan)[1].forward == 2200


def test_the_worst_replica_counts():
    """Six devices, pitch 3: replica 2's block is 3..4, across pairs."""
    problem = make_problem(
        {"a": tp2_cost()},
        devices=6,
        topology=make_levels((2, 10.0, 1e9), (3, 100.0, 1e8)),
        global_batch=2,
    )
    one = make_plan(("a", Strategy(tp=2)))
    two = make_plan(("a", Strategy(tp=2)), replicas=2)
    assert only_stage(problem, one).forward == 220
    assert only_stage(problem, two).forward == 2200


def test_the_worst_group_counts():
    """dp = tp = 2 on units of three devices.

    On 1..4 the groups (1, 2) and (3, 4) are inside a unit: 220. On 0..3
    group (0, 1) is, group (2, 3) is not: 200 + 2000.
    """
    cost = tp2_cost()
    problem = make_problem(
        {"a": make_cost(samples=2), "b": cost},
        devices=6,
        topology=make_levels((3, 10.0, 1e9), (2, 100.0, 1e8)),
        micro_batches=(2,),
        global_batch=2,
    )
    plan = make_plan(("a", SINGLE), ("b", Strategy(dp=2, tp=2)), micro_batch=2)
    assert stages_of(problem, plan)[1].forward == 220
    problem = make_problem(
        {"b": cost},
        devices=6,
        topology=make_levels((3, 10.0, 1e9), (2, 100.0, 1e8)),
        micro_batches=(2,),
        global_batch=2,
    )
    plan = make_plan(("b", Strategy(dp=2, tp=2)), micro_batch=2)
    assert only_stage(problem, plan).forward == 2200


def test_a_group_that_fills_units_unevenly_is_flat():
    """tp = 3 on 0, 1, 2: ring 4*100 + 4/3 * 3000 = 4400 for 300 bytes."""
    cost = make_cost(tp=3, collectives=(call("all-reduce", "tp", "forward", 300),))
    problem = make_problem({"a": cost}, topology=PAIRS)
    plan = make_plan(("a", Strategy(tp=3)))
    assert only_stage(problem, plan).forward == 4400


# Receive

AB = (("a", "b", 500),)


def received(costs, edges, *stages, plan=(), **fields):
    """Return the forward and backward receives of the stages of a plan."""
    problem = make_problem(costs, edges=edges, **fields)
    return [
        (stage.receive_forward, stage.receive_backward)
        for stage in stages_of(problem, make_plan(*stages, **dict(plan)))
    ]


def test_receive_is_paid_by_both_sides():
    """500 bytes over the lower link: 10 + 500, forward and backward."""
    problem = make_problem(
        {"a": make_cost(1, 2), "b": make_cost(4, 8)}, edges=AB, topology=PAIRS
    )
    first, second = stages_of(problem, make_plan(("a", SINGLE), ("b", SINGLE)))
    assert (first.receive_forward, first.receive_backward) == (0, 510)
    assert (second.receive_forward, second.receive_backward) == (510, 0)
    assert (first.forward, first.backward) == (1, 512)
    assert (second.forward, second.backward) == (514, 8)


def test_receive_level_holds_both_whole_blocks():
    """Stage 1 on 0 and stage 2 on 1..2 span both pairs, 10 ns per byte.

    Forward one device sends to two: 100 + 2 * 5000. Backward one of two
    sends to one, though devices 0 and 1 alone would meet below: 100 + 5000.
    """
    stages = ("a", SINGLE), ("b", Strategy(tp=2))
    costs = {"a": make_cost(), "b": make_cost(tp=2)}
    found = received(costs, AB, *stages, topology=PAIRS)
    assert found == [(0, 5100), (10100, 0)]


#: Fields of a problem and a plan of two samples.
TWO_SAMPLES = {
    "topology": PAIRS,
    "micro_batches": (2,),
    "global_batch": 2,
    "plan": {"micro_batch": 2},
}

#: Ten devices: pairs, fives of pairs.
FIVES = make_levels((2, 10.0, 1e9), (5, 100.0, 1e8))


@pytest.mark.parametrize(
    ("sizes", "forward", "backward"),
    [
        # one pair: 10 + 500 ns
        ((1, 1), 510, 510),
        # across pairs, 10 ns per byte; one device for each: 500 bytes
        ((2, 2), 5100, 5100),
        # 2 to 4: each sends twice; 4 to 2: two are enough
        ((2, 4), 10100, 5100),
        ((4, 2), 5100, 10100),
        # 2 to 3: 1500 / 2 bytes; 3 to 2: 500
        ((2, 3), 7600, 5100),
        # 3 to 4: round(2000 / 3 * 10) = 6667
        ((3, 4), 6767, 5100),
        # 6 to 4 and back: 4 to 6 is 3000 / 4 bytes
        ((6, 4), 5100, 7600),
    ],
)
def test_a_smaller_sender_sends_to_several(sizes, forward, backward):
    """Blocks side by side under ``tp``, nothing sharded: 500 bytes each."""
    found = received(
        {x: make_cost(tp=size) for x, size in zip("ab", sizes, strict=True)},
        AB,
        *((x, Strategy(tp=tp)) for x, tp in zip("ab", sizes, strict=True)),
        devices=10,
        topology=FIVES,
    )
    assert found == [(0, backward), (forward, 0)]


@pytest.mark.parametrize(
    ("sequence_parallel", "forward"), [(False, 20100), (True, 5100)]
)
def test_a_smaller_sender_sends_what_each_rank_takes(sequence_parallel, forward):
    """One device sends to ``tp = 4``: 4 * 500 bytes, or as many fourths."""
    found = received(
        {"a": make_cost(), "b": make_cost(tp=4)},
        *(AB, ("a", SINGLE), ("b", Strategy(tp=4))),
        devices=10,
        topology=FIVES,
        sequence_parallel=sequence_parallel,
    )
    assert found == [(0, 5100), (forward, 0)]


def test_a_smaller_sender_takes_longest_in_the_worst_replica():
    """With pitch 3 on fives of devices 3 | 4 5 meet above, 0 | 1 2 below.

    One device sends to two: 10 + 2 * 500 and 100 + 2 * 5000.
    """
    for replicas, backward, forward in ((1, 510, 1010), (3, 5100, 10100)):
        found = received(
            {"a": make_cost(), "b": make_cost(tp=2)},
            *(AB, ("a", SINGLE), ("b", Strategy(tp=2))),
            plan={"replicas": replicas},
            devices=10,
            topology=make_levels((5, 10.0, 1e9), (2, 100.0, 1e8)),
            global_batch=3,
        )
        assert found == [(0, backward), (forward, 0)]


def test_on_a_graph_all_devices_of_the_sender_send():
    """A star of ports of 1 ns per byte, 10 ns per message.

    One device sends two messages through its port; backward two devices
    send half a message each to one.
    """
    ports = ["0", "1", "2"]
    found = received(
        {"a": make_cost(), "b": make_cost(tp=2)},
        *(AB, ("a", SINGLE), ("b", Strategy(tp=2))),
        devices=3,
        topology=make_graph(ports, [(port, "switch", 5, 1e9) for port in ports]),
    )
    assert found == [(0, 510), (1010, 0)]


@pytest.mark.parametrize(
    ("strategy", "sequence_parallel", "forward", "backward"),
    [
        # two samples of 500 bytes, 10 ns per byte: 100 + 10000 / shards
        (Strategy(tp=2), False, 10100, 10100),
        (Strategy(tp=2), True, 5100, 5100),
        (Strategy(dp=2), False, 5100, 5100),
        (Strategy(cp=2), False, 5100, 5100),
        (Strategy(dp=2), True, 5100, 5100),
    ],
)
def test_receive_is_sharded_by_the_receiver(
    strategy, sequence_parallel, forward, backward
):
    """Both stages use two devices, a pair each; the cut is above."""
    keys = {"tp": strategy.tp, "cp": strategy.cp, "samples": 2 // strategy.dp}
    found = received(
        {"a": make_cost(**keys), "b": make_cost(**keys)},
        *(AB, ("a", strategy), ("b", strategy)),
        **TWO_SAMPLES,
        sequence_parallel=sequence_parallel,
    )
    assert found == [(0, backward), (forward, 0)]


def test_the_receivers_shards_count_not_the_senders():
    """Stage 1 one device, stage 2 dp = 2 on 1..2, two samples of 500.

    Across pairs forward into dp = 2, of which the one device sends each its
    half: 100 + 2 * 10000/2. Back into one device: 100 + 10000.
    """
    found = received(
        {"a": make_cost(samples=2), "b": make_cost(samples=1)},
        *(AB, ("a", SINGLE), ("b", Strategy(dp=2))),
        **TWO_SAMPLES,
    )
    assert found == [(0, 10100), (10100, 0)]


def test_the_worst_replicas_cut_counts():
    """Pitch 3: replica 1 cuts between 0 and 1, replica 2 between 3 and 4."""
    found = received(
        {"a": make_cost(), "b": make_cost()},
        *(AB, ("a", SINGLE), ("b", SINGLE)),
        plan={"replicas": 2},
        devices=6,
        topology=make_levels((2, 10.0, 1e9), (3, 100.0, 1e8)),
        global_batch=2,
    )
    assert found == [(0, 5100), (5100, 0)]


def test_tensors_are_forwarded_and_sent_once_per_producer():
    """a -> b 100, a -> c 300, b -> c 50, one layer per stage.

    Cut 1 carries a's tensor once, at its largest size: 10 + 300. Cut 2
    carries it again, for c, and b's: 10 + 300 + 50. Gradients the same.
    """
    edges = (("a", "b", 100), ("a", "c", 300), ("b", "c", 50))
    found = received(
        {name: make_cost() for name in "abc"},
        *(edges, ("a", SINGLE), ("b", SINGLE), ("c", SINGLE)),
    )
    assert found == [(0, 310), (310, 360), (360, 0)]


def test_only_consumers_behind_the_cut_count():
    """a -> b 900 is consumed inside the stage; a -> c 300 crosses."""
    edges = (("a", "b", 900), ("a", "c", 300))
    costs = {name: make_cost() for name in "abc"}
    found = received(costs, edges, ("a b", SINGLE), ("c", SINGLE))
    assert found == [(0, 310), (310, 0)]


def test_a_cut_that_no_byte_crosses_is_free():
    """No edge, or one of 0 bytes, is no message; one of 1 byte is: 10 + 1.

    The message of 5 bytes from a is no larger for a tensor of 0 bytes.
    """
    costs = {name: make_cost() for name in "abc"}
    for edges, expected in (
        ((), 0),
        ((("a", "c", 0),), 0),
        ((("a", "c", 1),), 11),
        ((("a", "c", 5), ("b", "c", 0)), 15),
    ):
        found = received(costs, edges, ("a b", SINGLE), ("c", SINGLE))
        assert found == [(0, expected), (expected, 0)]


# Tensors that pass a stage


def passing(edges, strategy=SINGLE, plan=(), **fields):
    """Return the kept bytes of a, b, c, d in stages of their own."""
    fields = {"devices": 4, "replicas": (1,), **fields}
    names = "abcd"
    costs = {
        name: make_cost(
            10, 20, tp=strategy.tp, samples=fields.get("samples", 1),
            kept_bytes=100,
        )
        for name in names
    }  # fmt: skip
    fields.pop("samples", None)
    problem = make_problem(costs, edges=edges, **fields)
    plan = make_plan(*((name, strategy) for name in names), **dict(plan))
    return [stage.kept_bytes for stage in score(problem, plan).stages]


def test_a_tensor_takes_memory_in_every_stage_that_it_passes():
    """From a to d, 7 bytes: b and c keep it for 3 and 2 micro-batches."""
    skip = (("a", "d", 7),)
    assert passing(skip, global_batch=4) == [400, 300 + 21, 200 + 14, 100]
    # no more micro-batches than there are
    assert passing(skip, global_batch=2) == [200, 200 + 14, 200 + 14, 100]
    assert passing(skip, global_batch=4, schedule="gpipe") == [
        *(400, 400 + 28),
        *(400 + 28, 400),
    ]


def test_a_tensor_that_a_stage_uses_too_passes_it():
    """b reads a and hands it on: as large as c and d need it, 9 then 5."""
    edges = (("a", "b", 20), ("a", "c", 9), ("a", "d", 5))
    assert passing(edges) == [100, 100 + 9, 100 + 5, 100]


def test_each_tensor_that_passes_is_sharded_as_the_receive():
    """B = 4 samples of 3 and 1 bytes on dp 2: 6 and 2 bytes.

    With sequence parallelism on tp 2 too: 3 and 1 bytes.
    """
    edges = (("a", "d", 3), ("b", "d", 1))
    both = {"global_batch": 4, "micro_batches": (4,), "plan": {"micro_batch": 4}}
    wide = Strategy(dp=2, tp=2)
    fields = {**both, "devices": 16, "samples": 2}
    assert passing(edges, wide, **fields) == [100, 106, 108, 100]
    assert passing(edges, wide, sequence_parallel=True, **fields) == [
        *(100, 103),
        *(104, 100),
    ]


def test_every_tensor_that_passes_is_rounded_up():
    """Two tensors of one byte on dp 2 take a byte each.

    So does one byte on tp 2 with sequence parallelism, and 3 bytes take 2.
    """
    edges = (("a", "d", 1), ("b", "d", 1))
    kept = passing(
        edges, Strategy(dp=2), devices=8, global_batch=3 * 2, samples=1,
        micro_batches=(2,), plan={"micro_batch": 2},
    )  # fmt: skip
    assert kept == [300, 300 + 3, 200 + 4, 100]
    kept = passing(
        (("a", "d", 3), ("b", "d", 1)),
        Strategy(tp=2),
        devices=8,
        sequence_parallel=True,
    )
    assert kept == [100, 100 + 2, 100 + 2 + 1, 100]


# ZeRO, synchronization, optimizer


def zero_stage(zero, *, strategy=None, replicas=1, topology=PAIRS, **fields):
    """Score one layer of 1000 weight bytes: G = 2000, states = 6000."""
    strategy = strategy or Strategy(dp=2, zero=zero)
    job = {
        name: fields.pop(name)
        for name in ("gradient_sync_overlap", "hbm")
        if name in fields
    }
    cost = make_cost(100, 200, ep=strategy.ep, **fields)
    problem = make_problem(
        {"a": cost},
        topology=topology,
        micro_batches=(strategy.dp,),
        global_batch=strategy.dp * replicas,
        zero=(zero,),
        optimizer=UNEQUAL,
        **job,
    )
    plan = make_plan(("a", strategy), replicas=replicas, micro_batch=strategy.dp)
    return only_stage(problem, plan)


def memory_of(stage):
    return (
        stage.weight_bytes,
        stage.gradient_bytes,
        stage.state_bytes,
        stage.working_bytes,
    )


@pytest.mark.parametrize(
    ("zero", "forward", "backward", "sync", "memory"),
    [
        # all-reduce of gradients, 2 messages + 2000
        (0, 100, 200, 2020, (1000, 2000, 6000, 7)),
        # reduce-scatter of gradients 10 + 1000, all-gather of weights 10 + 500
        (1, 100, 200, 1520, (1000, 2000, 3000, 7)),
        # the reduce-scatter moves to the backward pass; a whole layer's
        # gradients while it runs
        (2, 100, 1210, 510, (1000, 1000, 3000, 2007)),
        # the weights are gathered in both passes: 510
        (3, 610, 1720, 0, (500, 1000, 3000, 3007)),
    ],
)
def test_zero_stages(zero, forward, backward, sync, memory):
    stage = zero_stage(zero, weight_bytes=1000, working_bytes=7)
    assert (stage.forward, stage.backward, stage.sync) == (forward, backward, sync)
    assert memory_of(stage) == memory


@pytest.mark.parametrize(
    ("zero", "sync"),
    [
        # over 2 x 2 devices in one go: below 2(10 + 1000), above 1000 left:
        # 2*100 + 10000
        (0, 12220),
        # 1010 + 510 inside, then the shard of 1000 over two replicas: 10200
        (1, 11720),
        (2, 10710),
        (3, 10200),
    ],
)
def test_hybrid_sharding_over_replicas(zero, sync):
    assert zero_stage(zero, weight_bytes=1000, replicas=2).sync == sync


#: Nodes of two devices on a port of 1 ns per byte; ranks 0, 1 and 2, 3 sit in
#: different nodes, over links of 20 ns together.
ACROSS = make_graph(
    "0123",
    [
        *((x, node, 5, 2e9) for x, node in zip("0123", "aabb", strict=True)),
        *((node, "core", 5, 1e9) for node in "ab"),
    ],
    order=tuple("0213"),
)


@pytest.mark.parametrize(
    ("zero", "forward", "backward", "sync"),
    [
        # all-reduce of 2000 for ranks 0, 1 and as well 2, 3, which exchange all at
        # once: 20 + 2*2000
        (0, 100, 200, 4020),
        # reduce-scatter 20 + 2*1000, all-gather 20 + 2*500
        (1, 100, 200, 3040),
        # the reduce-scatter in the backward pass is one of the stage alone
        (2, 100, 200 + 1020, 1020),
        (3, 100 + 520, 200 + 1020 + 520, 0),
    ],
)
def test_on_graphs_stages_end_the_step_together(zero, forward, backward, sync):
    stage = zero_stage(zero, weight_bytes=1000, topology=ACROSS)
    found = (stage.forward, stage.backward, stage.sync)
    assert found == (forward, backward, sync)


def test_on_graphs_replicas_of_all_stages_synchronise_together():
    """Ranks 0, 2 in one node, 1, 3 in the other: 10 + 2000/2 inside.

    Of experts the same; in the order of the file all is across: 20 + 2*2000. Two ranks
    exchange all at once.
    """
    fields = {"strategy": SINGLE, "weight_bytes": 1000, "replicas": 2}
    inside = zero_stage(0, topology=ACROSS, **fields)
    across = zero_stage(0, topology=replace(ACROSS, order=()), **fields)
    assert (inside.sync, across.sync) == (1010, 4020)
    shard = zero_stage(
        1,
        topology=replace(ACROSS, order=()),
        **{**fields, "strategy": Strategy(zero=1)},
    )
    assert shard.sync == 4020


def test_replicas_alone_synchronise():
    """dp = 1, two replicas at pitch 2: 2*100 + 20000 for 2000 bytes."""
    stage = zero_stage(0, strategy=SINGLE, weight_bytes=1000, replicas=2)
    assert stage.sync == 20200


@pytest.mark.parametrize(
    ("fields", "sync"),
    [
        # dense: all four ranks, 2020 below and 10200 above
        ({"weight_bytes": 1000}, 12220),
        # experts: copies are 2 apart, on (0, 2) and (1, 3): 200 + 20000
        ({"expert_weight_bytes": 1000}, 20200),
        # both, one after the other
        ({"weight_bytes": 1000, "expert_weight_bytes": 1000}, 32420),
    ],
)
def test_experts_synchronise_over_their_copies(fields, sync):
    strategy = Strategy(dp=4, ep=2)
    assert zero_stage(0, strategy=strategy, **fields).sync == sync


def test_experts_synchronise_over_replicas_too():
    """dp = 2, ep = 2, R = 2: one copy per replica, 200 + 20000."""
    strategy = Strategy(dp=2, ep=2)
    stage = zero_stage(0, strategy=strategy, expert_weight_bytes=1000, replicas=2)
    assert stage.sync == 20200


def test_an_expert_with_one_copy_needs_no_sync():
    strategy = Strategy(dp=2, ep=2)
    stage = zero_stage(0, strategy=strategy, expert_weight_bytes=1000)
    assert stage.sync == 0


@pytest.mark.parametrize(
    ("zero", "memory"),
    [
        (0, (2000, 4000, 12000, 0)),
        # dense states over 4 ranks, expert states over 4 / 2
        (1, (2000, 4000, 1500 + 3000, 0)),
        # whole gradients of the layer while it runs: 2000 + 2000
        (2, (2000, 500 + 1000, 4500, 4000)),
        (3, (250 + 500, 1500, 4500, 6000)),
    ],
)
def test_experts_are_sharded_over_their_copies(zero, memory):
    stage = zero_stage(
        zero,
        strategy=Strategy(dp=4, ep=2, zero=zero),
        weight_bytes=1000,
        expert_weight_bytes=1000,
    )
    assert memory_of(stage) == memory


def test_an_unshared_expert_is_not_gathered():
    """ep = dp: the one copy is whole already, nothing more while it runs."""
    stage = zero_stage(
        3, strategy=Strategy(dp=2, ep=2, zero=3), expert_weight_bytes=1000
    )
    assert memory_of(stage) == (1000, 2000, 6000, 0)
    assert (stage.forward, stage.backward) == (100, 200)


def test_context_ranks_share_weights_like_data_ranks():
    """cp = 2, zero 1: the figures of dp = 2."""
    cost = make_cost(cp=2, weight_bytes=1000)
    problem = make_problem({"a": cost}, zero=(1,), optimizer=UNEQUAL)
    stage = only_stage(problem, make_plan(("a", Strategy(cp=2, zero=1))))
    assert stage.sync == 1520
    assert stage.state_bytes == 3000


def test_shards_round_up():
    """1001 bytes over two ranks: 501; 2002 -> 1001; 6006 -> 3003."""
    stage = zero_stage(3, weight_bytes=1001)
    assert memory_of(stage) == (501, 1001, 3003, 3003)


def test_gradient_and_state_sizes_round_up():
    """3 bytes at 2 per weight: gradients 6; with 1 per weight 1.5 -> 2."""
    problem = make_problem(
        {"a": make_cost(weight_bytes=3)},
        optimizer=Optimizer(weight_bytes=2, gradient_bytes=1, state_bytes=3),
    )
    stage = only_stage(problem, make_plan(("a", SINGLE)))
    assert memory_of(stage) == (3, 2, 5, 0)


@pytest.mark.parametrize(
    ("zero", "update"),
    [
        # read G, read and write W and states: 2000 + 2*1000 + 2*6000
        (0, 16000),
        # half of all that
        (1, 8000),
        (2, 8000),
        (3, 8000),
    ],
)
def test_optimizer_update_moves_bytes_through_memory(zero, update):
    """HBM at 1e9 bytes/s: 1 ns per byte; on top of the sync."""
    without = zero_stage(zero, weight_bytes=1000).sync
    with_hbm = zero_stage(zero, weight_bytes=1000, hbm=1e9).sync
    assert with_hbm - without == update


def test_overlap_hides_the_sync_and_not_the_update():
    """0.75 * 2020 + 16000."""
    stage = zero_stage(0, weight_bytes=1000, hbm=1e9, gradient_sync_overlap=0.25)
    assert stage.sync == 1515 + 16000
    hidden = zero_stage(0, weight_bytes=1000, gradient_sync_overlap=1.0)
    assert hidden.sync == 0


def test_what_is_left_of_a_sync_is_rounded():
    """0.75 * (20 + 2) = 16.5 is 17; twice as slow a network takes 33."""
    left = {"weight_bytes": 1, "gradient_sync_overlap": 0.25}
    assert zero_stage(0, **left).sync == 17
    slow = make_levels((2, 20.0, 5e8), (2, 200.0, 5e7))
    assert zero_stage(0, **left, topology=slow).sync == 33


def test_sync_of_a_stage_adds_up_and_of_a_plan_is_the_largest():
    """R = 2 on two devices: 2*10 + 2W per layer, gradients 4 per 2 bytes.

    Stage 1: 20 + 200, 20 + 400; stage 2 alone: 20 + 1000.
    """
    problem = make_problem(
        {
            "a": make_cost(weight_bytes=100),
            "b": make_cost(weight_bytes=200),
            "c": make_cost(weight_bytes=500),
        },
        optimizer=UNEQUAL,
        global_batch=2,
    )
    result = score(problem, make_plan(("a b", SINGLE), ("c", SINGLE), replicas=2))
    assert [stage.sync for stage in result.stages] == [640, 1020]
    assert result.step_quanta == 1020


# Recompute


def recompute_stage(recompute, zero=0):
    """tp = 2: forward 100 + all-reduce 20 + 200, backward 300 + 10 + 50."""
    cost = make_cost(
        100,
        300,
        tp=2,
        activations=(
            Activations(kept_bytes=1000),
            Activations(recompute="selective", kept_bytes=400, extra_ns=40.0),
            Activations(recompute="full", kept_bytes=50),
        ),
        collectives=(
            call("all-reduce", "tp", "forward", 200),
            call("all-gather", "tp", "backward", 100),
        ),
    )
    problem = make_problem({"a": cost}, recompute=("none", "selective", "full"))
    return only_stage(problem, make_plan(("a", Strategy(tp=2, recompute=recompute))))


@pytest.mark.parametrize(
    ("recompute", "backward", "kept"),
    [
        ("none", 360, 1000),
        ("selective", 400, 400),
        # once more the forward pass with its collective: 360 + 320
        ("full", 680, 50),
    ],
)
def test_recompute(recompute, backward, kept):
    stage = recompute_stage(recompute)
    assert (stage.forward, stage.backward) == (320, backward)
    assert stage.kept_bytes == kept


def test_full_recompute_repeats_no_weight_gather():
    """Zero 3 with dp = 2: gathers 510 in each pass, not in the repetition.

    Backward: 200 + repeated 100 + gather 510 + reduce-scatter 1010.
    """
    cost = make_cost(
        100,
        200,
        weight_bytes=1000,
        activations=(Activations(recompute="full", kept_bytes=0),),
    )
    problem = make_problem(
        {"a": cost},
        micro_batches=(2,),
        global_batch=2,
        zero=(3,),
        recompute=("full",),
        optimizer=UNEQUAL,
    )
    strategy = Strategy(dp=2, zero=3, recompute="full")
    stage = only_stage(problem, make_plan(("a", strategy), micro_batch=2))
    assert (stage.forward, stage.backward) == (610, 1820)


# Activations in flight


@pytest.mark.parametrize(
    ("schedule", "batch", "inflight"),
    [
        ("1f1b", 8, [3, 2, 1]),
        ("1f1b", 2, [2, 2, 1]),
        ("1f1b", 1, [1, 1, 1]),
        ("gpipe", 8, [8, 8, 8]),
        ("gpipe", 2, [2, 2, 2]),
    ],
)
def test_in_flight_micro_batches(schedule, batch, inflight):
    """Three stages keep 10, 20 and 30 bytes per micro-batch in flight."""
    problem = make_problem(
        {
            "a": make_cost(kept_bytes=10),
            "b": make_cost(kept_bytes=20),
            "c": make_cost(kept_bytes=30),
        },
        schedule=schedule,
        global_batch=batch,
    )
    stages = stages_of(problem, make_plan(("a", SINGLE), ("b", SINGLE), ("c", SINGLE)))
    assert [stage.inflight for stage in stages] == inflight
    assert [stage.kept_bytes for stage in stages] == [
        count * size for count, size in zip(inflight, (10, 20, 30), strict=True)
    ]


def test_memory_adds_up_layers_but_only_the_largest_working_set():
    """W 10 + 20, G the same, states 6 * 30, kept 5 + 7, working max 100."""
    problem = make_problem(
        {
            "a": make_cost(weight_bytes=10, kept_bytes=5, working_bytes=100),
            "b": make_cost(weight_bytes=20, kept_bytes=7, working_bytes=60),
        }
    )
    stage = only_stage(problem, make_plan(("a b", SINGLE)))
    assert memory_of(stage) == (30, 30, 180, 100)
    assert stage.memory_bytes == 30 + 30 + 180 + 12 + 100


def test_a_recompute_choice_adds_to_its_layers_working_set():
    """a: 100 + 30 while it recomputes; b: 120, none of its own."""
    problem = make_problem(
        {
            "a": make_cost(
                working_bytes=100,
                activations=(
                    Activations(recompute="full", kept_bytes=5, working_bytes=30),
                ),
            ),
            "b": make_cost(
                working_bytes=120,
                activations=(Activations(recompute="full", kept_bytes=5),),
            ),
        },
        recompute=("full",),
    )
    full = Strategy(recompute="full")
    stage = only_stage(problem, make_plan(("a b", full)))
    assert stage.working_bytes == 130


# Strategies per layer


def mixed_problem(**job):
    """a with tp = 2, b with dp = 2; two samples of 100 bytes between."""
    return make_problem(
        {
            "a": make_cost(tp=2, samples=2),
            "b": make_cost(samples=1),
            "c": make_cost(samples=1),
        },
        edges=(("a", "b", 100), ("b", "c", 70)),
        topology=PAIRS,
        micro_batches=(2,),
        global_batch=2,
        **job,
    )


def mixed_plan(*, first=("a", "b", "c")):
    strategy_of = {"a": Strategy(tp=2), "b": Strategy(dp=2), "c": Strategy(dp=2)}
    return Plan(
        replicas=1,
        micro_batch=2,
        stages=(
            Stage(
                layers=first,
                devices=2,
                strategies=tuple(strategy_of[name] for name in first),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("sequence_parallel", "forward", "backward"),
    [
        # forward in b's layout (2 shards): 10 + 100; backward in a's: tp
        # does not shard, 10 + 200
        (False, 110, 210),
        # tp shards too
        (True, 110, 110),
    ],
)
def test_a_strategy_change_redistributes(sequence_parallel, forward, backward):
    problem = mixed_problem(sequence_parallel=sequence_parallel)
    stage = only_stage(problem, mixed_plan())
    assert (stage.forward, stage.backward) == (forward, backward)
    assert stage.redistribution == forward + backward


def test_the_order_of_layers_in_a_stage_does_not_matter():
    problem = mixed_problem()
    assert score(problem, mixed_plan(first=("c", "a", "b"))) == score(
        problem, mixed_plan()
    )


def test_redistribution_uses_the_blocks_level():
    """On devices 1..2, across pairs: 100 + 1000 and 100 + 2000."""
    problem = make_problem(
        {
            "z": make_cost(samples=2),
            "a": make_cost(tp=2, samples=2),
            "b": make_cost(samples=1),
        },
        edges=(("a", "b", 100),),
        topology=PAIRS,
        micro_batches=(2,),
        global_batch=2,
    )
    plan = Plan(
        replicas=1,
        micro_batch=2,
        stages=(
            Stage(layers=("z",), devices=1, strategy=SINGLE),
            Stage(
                layers=("a", "b"),
                devices=2,
                strategies=(Strategy(tp=2), Strategy(dp=2)),
            ),
        ),
    )
    stage = stages_of(problem, plan)[1]
    assert (stage.forward, stage.backward) == (1100, 2100)


def test_layers_that_differ_only_in_zero_or_recompute_are_not_moved():
    cost = make_cost(
        samples=1,
        activations=(
            Activations(kept_bytes=0),
            Activations(recompute="full", kept_bytes=0),
        ),
    )
    problem = make_problem(
        {"a": cost, "b": cost},
        edges=(("a", "b", 100),),
        micro_batches=(2,),
        global_batch=2,
        zero=(0, 1),
        recompute=("none", "full"),
    )
    plan = Plan(
        replicas=1,
        micro_batch=2,
        stages=(
            Stage(
                layers=("a", "b"),
                devices=2,
                strategies=(Strategy(dp=2, recompute="full"), Strategy(dp=2, zero=1)),
            ),
        ),
    )
    assert only_stage(problem, plan).redistribution == 0


# The model itself


def test_terms_depend_on_the_layer_kind_and_the_block_only():
    """Asking for blocks in another order gives the same terms."""
    problem = make_problem({"a": make_cost(), "b": tp2_cost()}, topology=PAIRS)
    inside, across = Block(1, 4, 0, 2), Block(1, 4, 1, 2)
    expected = {inside: 220, across: 2200}
    for order in ((inside, across), (across, inside)):
        model = CostModel(problem)
        for block in order:
            terms = model.layer_terms(1, Strategy(tp=2), 1, block)
            assert terms is not None
            assert terms.forward == expected[block]


def test_an_unavailable_layer_has_no_terms():
    model = CostModel(make_problem({"a": make_cost()}))
    assert model.layer_terms(0, Strategy(tp=2), 1, Block(1, 4, 0, 2)) is None


def test_an_unknown_preset_is_named():
    problem = make_problem({"a": make_cost()}, preset="standrad")
    with pytest.raises(
        UnknownNameError,
        match=r"preset: expected one of nest-artifact, .*standard; got "
        r"'standrad'; did you mean 'standard'\?",
    ):
        CostModel(problem)


def test_edge_sizes_by_tp_need_a_uniform_preset():
    base = make_problem({"a": make_cost(), "b": make_cost()})
    graph = Graph(
        kinds=(LayerKind(name="a", costs=(make_cost(),)),),
        layers=(Layer(id="a", kind="a"), Layer(id="b", kind="a")),
        edges=(
            Edge(
                source="a",
                target="b",
                bytes_per_sample=1,
                bytes_per_sample_by_tp={2: 3},
            ),
        ),
    )
    with pytest.raises(
        InvalidProblemError,
        match=r"\$\.graph\.edges: expected no bytes_per_sample_by_tp under "
        r"preset 'standard', got it on the edge from 'a' to 'b'; give one",
    ):
        CostModel(replace(base, graph=graph))


def test_a_time_beyond_the_range_is_refused():
    """2e7 bytes at 1 byte/s are 2e16 ns, more than 2**53 = 9e15."""
    problem = make_problem(
        {"a": make_cost(), "b": make_cost()},
        edges=(("a", "b", 2 * 10**7),),
        topology=make_levels((4, 0.0, 1.0)),
    )
    with pytest.raises(
        InvalidProblemError,
        match=r"\$\.quantum_ps: expected a quantum that keeps every time "
        r"below 2\*\*53 quanta, got 1000 ps, .*an edge.*raise quantum_ps",
    ):
        score(problem, make_plan(("a", SINGLE), ("b", SINGLE)))


@pytest.mark.parametrize(
    "problem",
    [
        make_problem({"a": make_cost(forward_ns=1e19)}),
        make_problem(
            {"a": make_cost(), "b": make_cost()},
            edges=(("a", "b", 10**9),),
            topology=make_levels((4, 0.0, 1.0)),
        ),
        make_problem(
            {name: make_cost() for name in "abc"},
            edges=(("a", "b", 10**9), ("b", "c", 10**9)),
            topology=make_levels((4, 0.0, 1e-21)),
        ),
    ],
    ids=["compute", "transfer", "least bandwidth"],
)
def test_a_step_that_may_overflow_is_refused(problem):
    """Either way a step may take 1e18 ns and more, 2**61 is 2.3e18."""
    with pytest.raises(
        InvalidProblemError,
        match=r"\$\.quantum_ps: expected a quantum that keeps every step "
        r"time below 2\*\*61 quanta, got 1000 ps with steps of up to .*; "
        r"correct the costs or raise quantum_ps",
    ):
        CostModel(problem)


def test_a_coarser_quantum_counts_in_its_own_units():
    """quantum 10 ns: forward 104 ns is 10 quanta, backward 205 is 21."""
    problem = make_problem({"a": make_cost(104, 205)}, quantum_ps=10_000)
    result = score(problem, make_plan(("a", SINGLE)))
    assert result.step_quanta == 31
    assert result.step_time_ns == 310


def test_a_change_of_strategy_moves_only_bytes():
    """An edge of 0 bytes between two layouts costs nothing, one of 2 does."""
    strategies = (Strategy(tp=2), Strategy(dp=2))
    for size, free in ((0, True), (2, False)):
        problem = make_problem(
            {"a": make_cost(tp=2, samples=2), "b": make_cost()},
            edges=(("a", "b", size),),
            micro_batches=(2,),
            global_batch=2,
        )
        stage = Stage(layers=("a", "b"), devices=2, strategies=strategies)
        plan = Plan(replicas=1, micro_batch=2, stages=(stage,))
        assert (only_stage(problem, plan).redistribution == 0) is free
