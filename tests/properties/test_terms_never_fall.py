"""No term falls where a part of it gets slower, larger or less sharded.

Bounds of all exact solvers rest on it, to the last quantum ("No term falls" in
docs/cost-model.md). Times are drawn so that rounding decides: half quanta, odd
quanta, fractions of exactly 0 and 1, and values of all magnitudes.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.rules import hidden_sync, most_hidden
from nest.cost.score import score
from nest.cost.space import Runtime
from nest.errors import InvalidProblemError
from nest.ir import (
    Activations,
    DeviceTimes,
    GraphTopology,
    Hierarchy,
    Level,
    Optimizer,
    Strategy,
)
from nest.ir.cluster import DeviceRange
from nest.ir.job import SCHEDULES, SPLIT_BACKWARD
from nest.ir.plan import OVERLAP
from nest.topology import Block
from nest.topology.protocol import Link
from tests.builders import call, make_cost, make_problem
from tests.independent.generate import draw_pair
from tests.independent.rules import IllegalPlan
from tests.independent.scorer import score as independent_score
from tests.properties.profiles import examples
from tests.strategies import Draw, problems

FRACTIONS = st.one_of(
    st.sampled_from((0.0, 1.0, 1.0, 1.0, 0.5, 0.7)), st.floats(0, 1)
)
QUANTA_PS = st.sampled_from((1000, 1000, 10_000, 3000, 75_019, 7))
BYTES = st.one_of(
    st.sampled_from((0, 1, 3)),
    st.integers(0, 9).flatmap(lambda x: st.integers(0, 10**x)),
)
SPEEDS = st.sampled_from((1e8, 3e8, 7e8, 1e9, 2.7e10, 1.7e12))
FACTORS = st.sampled_from((1 + 2**-52, 1.0001, 1.5, 2.0, 3.0, 1e6))


@st.composite
def times_ns(draw: Draw, quantum_ps: int, most: int = 9) -> float:
    """Draw a time of some quanta and, often, half of one."""
    quanta = draw(st.integers(0, 10 ** draw(st.integers(0, most))))
    return (quanta + draw(st.sampled_from((0.5, 0.5, 0, 0.3)))) * (
        quantum_ps / 1000
    )


def levels(draw: Draw) -> Hierarchy:
    """Draw a tree of 32 devices."""
    several = draw(st.booleans())
    return Hierarchy(
        levels=tuple(
            Level(
                fan_out=fan_out,
                latency_ns=draw(st.sampled_from((0.0, 1.5, 333.3, 20.0))),
                launch_ns=draw(st.sampled_from((0.0, 0.1, 7000.0))),
                bandwidth_bytes_per_s=draw(SPEEDS),
                peer_bandwidth_bytes_per_s=draw(st.none() | SPEEDS),
            )
            for fan_out in ((4, 8) if several else (32,))
        ),
        algorithms=draw(st.sampled_from(("best", "nccl"))),
    )


@st.composite
def layers(draw: Draw):
    """Draw a problem of one layer, its strategy and how it runs."""
    quantum_ps = draw(QUANTA_PS)
    time_ns = times_ns(quantum_ps)
    dp, tp, cp = (draw(st.sampled_from((1, 2))) for _ in range(3))
    ep = draw(st.sampled_from([x for x in (1, 2, 4) if dp * cp % x == 0]))
    schedule = draw(st.sampled_from((*SCHEDULES, "dualpipe-v")))
    recompute = ("none", "selective", "full")
    recompute = recompute[: 2 if schedule in SPLIT_BACKWARD else 3]
    zero = draw(st.sampled_from((0, 1, 2, 3)))
    backward_ns = draw(time_ns)
    backward_of_old_ns = draw(time_ns)
    cost = make_cost(
        draw(time_ns),
        backward_ns,
        tp=tp,
        cp=cp,
        ep=ep,
        samples=4 // dp,
        weight_backward_ns=draw(st.none() | st.just(backward_ns)),
        forward_host_ns=draw(st.just(0.0) | time_ns),
        backward_host_ns=draw(st.just(0.0) | time_ns),
        weight_bytes=draw(BYTES),
        expert_weight_bytes=draw(BYTES),
        working_bytes=draw(BYTES),
        activations=tuple(
            Activations(
                recompute=x,
                kept_bytes=draw(BYTES),
                extra_ns=draw(time_ns) if x == "selective" else 0,
            )
            for x in recompute
        ),
        by_device=(
            DeviceTimes(
                device="old",
                forward_ns=draw(time_ns),
                backward_ns=backward_of_old_ns,
                extra_ns=draw(time_ns),
                weight_backward_ns=draw(
                    st.none() | st.just(backward_of_old_ns)
                ),
            ),
        ),
        collectives=tuple(
            call(
                draw(st.sampled_from(("all-reduce", "all-to-all"))),
                draw(st.sampled_from(("tp", "cp", "dp", "ep"))),
                draw(st.sampled_from(("forward", "backward"))),
                draw(BYTES),
                draw(st.integers(1, 3)),
            )
            for _ in range(draw(st.integers(0, 4)))
        ),
    )
    names = draw(st.sets(st.sampled_from(OVERLAP)))
    problem = make_problem(
        {"a": cost},
        devices=32,
        topology=levels(draw),
        hbm=draw(st.none() | SPEEDS),
        quantum_ps=quantum_ps,
        schedule=schedule,
        global_batch=4,
        micro_batches=(4,),
        zero=(zero,),
        recompute=recompute,
        overlap={name: draw(FRACTIONS) for name in sorted(names)},
        gradient_sync_overlap=draw(FRACTIONS),
        weight_backward_fraction=draw(FRACTIONS),
        distributed_optimizer=True,
        optimizer=Optimizer(buffer_bytes=draw(st.sampled_from((0, 0.7, 4)))),
    )
    strategy = Strategy(
        dp=dp,
        tp=tp,
        cp=cp,
        ep=ep,
        zero=zero,
        recompute=draw(st.sampled_from(recompute)),
    )
    runtime = Runtime(
        overlap=frozenset(draw(st.sets(st.sampled_from(sorted(names)))))
        if names
        else frozenset(),
        distributed_optimizer=zero < 2 and draw(st.booleans()),
    )
    return problem, strategy, runtime


#: The block in front of all, in two replicas.
PLACE = Block(2, 16, 0, 0)


def block_of(strategy: Strategy, offset: int = 0) -> Block:
    return PLACE._replace(offset=offset, devices=strategy.devices)


def terms(problem, strategy, runtime, block, replicas=2):
    """Return all terms of the layer that must not fall, by name."""
    found = CostModel(problem).layer_terms(
        0, strategy, 4, block, runtime, replicas
    )
    assert found is not None
    assert 0 <= found.weight_backward <= found.backward
    assert 0 <= found.pairable_forward <= found.forward
    assert 0 <= found.pairable_backward <= found.backward
    fraction = problem.job.overlap.get("gradients", 0.0)
    return {
        **found._asdict(),
        "forward alone": found.forward - found.pairable_forward,
        "backward alone": found.backward - found.pairable_backward,
        "inputs": found.backward - found.weight_backward,
        "sync that shows": found.sync
        - most_hidden(found.hideable_sync, fraction),
    }


#: Not terms by themselves where the computation or its host changes: what
#: they leave is another term.
PARTS = ("pairable_forward", "pairable_backward", "inputs")


def check(before, after, but=()):
    """Assert that no term fell."""
    fell = {
        name: (value, after[name])
        for name, value in before.items()
        if after[name] < value and name not in but
    }
    assert not fell


def with_cost(problem, **fields):
    """Return the problem with another cost of its layer."""
    (kind,) = problem.graph.kinds
    cost = replace(kind.costs[0], **fields)
    graph = replace(problem.graph, kinds=(replace(kind, costs=(cost,)),))
    return replace(problem, graph=graph)


def with_slower_level(problem, number, field, factor):
    """Return the problem where a part of the network takes longer."""
    found = list(problem.cluster.topology.levels)
    number %= len(found)
    value = getattr(found[number], field)
    if value is not None:
        longer = field in ("latency_ns", "launch_ns")
        value = (value + 0.1) * factor if longer else value / factor
        found[number] = replace(found[number], **{field: value})
    topology = replace(problem.cluster.topology, levels=tuple(found))
    cluster = replace(problem.cluster, topology=topology)
    return replace(problem, cluster=cluster)


@examples(150)
@given(layers())
def test_no_pass_is_shorter_with_communication(drawn):
    """Without a block there is none, and the devices are the fastest."""
    problem, strategy, runtime = drawn
    replicas = 2 if runtime.distributed_optimizer else 1
    check(
        terms(problem, strategy, runtime, None, replicas),
        terms(problem, strategy, runtime, block_of(strategy)),
    )


@examples(120)
@given(
    layers(),
    st.integers(0, 1),
    st.sampled_from(
        (
            "bandwidth_bytes_per_s",
            "peer_bandwidth_bytes_per_s",
            "latency_ns",
            "launch_ns",
        )
    ),
    FACTORS,
)
def test_no_term_falls_over_a_slower_link(drawn, number, field, factor):
    problem, strategy, runtime = drawn
    block = block_of(strategy)
    check(
        terms(problem, strategy, runtime, block),
        terms(
            with_slower_level(problem, number, field, factor),
            *(strategy, runtime, block),
        ),
    )


@examples(120)
@given(layers(), st.data())
def test_no_term_falls_with_more_to_send(drawn, data):
    """More bytes, calls or weights; a call more than there was."""
    problem, strategy, runtime = drawn
    ((cost,),) = (kind.costs for kind in problem.graph.kinds)
    calls = list(cost.collectives)
    if calls and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(calls) - 1))
        calls[place] = replace(
            calls[place],
            size_bytes=calls[place].size_bytes + data.draw(BYTES),
            count=calls[place].count + data.draw(st.integers(0, 1)),
        )
    elif calls:
        more = list(calls)
        del calls[data.draw(st.integers(0, len(calls) - 1))]
        problem = with_cost(problem, collectives=tuple(calls))
        calls = more
    longer = with_cost(
        problem,
        collectives=tuple(calls),
        weight_bytes=cost.weight_bytes + data.draw(BYTES),
        expert_weight_bytes=cost.expert_weight_bytes + data.draw(BYTES),
    )
    block = block_of(strategy)
    check(
        terms(problem, strategy, runtime, block),
        terms(longer, strategy, runtime, block),
    )


@examples(120)
@given(layers(), st.data())
def test_no_term_falls_where_less_hides(drawn, data):
    """A plan overlaps less, or a job lets less of it hide."""
    problem, strategy, runtime = drawn
    block, job = block_of(strategy), problem.job
    before = terms(problem, strategy, runtime, block)
    fractions = {
        name: value * data.draw(FRACTIONS)
        for name, value in job.overlap.items()
    }
    less = replace(
        job,
        overlap=fractions,
        gradient_sync_overlap=job.gradient_sync_overlap * data.draw(FRACTIONS),
    )
    check(
        before,
        terms(replace(problem, job=less), strategy, runtime, block),
    )
    # With these times are rounded together, or apart.
    rounded = {"weights", "gradients"}
    if job.schedule == "dualpipe-v":
        rounded.add("ep")
    kept = data.draw(
        st.sets(st.sampled_from(sorted(runtime.overlap)))
        if runtime.overlap
        else st.just(set())
    )
    kept |= runtime.overlap & rounded
    other = runtime._replace(overlap=frozenset(kept))
    check(before, terms(problem, strategy, other, block))


@examples(80)
@given(layers(), st.integers(1, 31), st.integers(1, 32))
def test_no_term_falls_on_slower_devices(drawn, first, count):
    """Some devices of a block, or all, are of a second type."""
    problem, strategy, runtime = drawn
    block = block_of(strategy)
    every = terms(problem, strategy, runtime, block)
    old = replace(
        problem.cluster.device,
        name="old",
        reserve_bytes=problem.cluster.device.reserve_bytes + 1,
    )

    def on(first, count):
        others = (DeviceRange(first=first, count=count, device=old),)
        cluster = replace(problem.cluster, others=others)
        return terms(
            replace(problem, cluster=cluster), strategy, runtime, block
        )

    part = on(first, min(count, 32 - first))
    if first < strategy.devices or first <= 16 < first + count:
        check(every, part, PARTS)
    both = on(1, 31)
    if strategy.devices > 1:
        check(every, both, PARTS)
        check(on(0, 32), both, PARTS)


@examples(80)
@given(layers(), st.data())
def test_no_term_falls_where_more_is_computed(drawn, data):
    """Slower passes and hosts; what is repeated takes longer."""
    problem, strategy, runtime = drawn
    ((cost,),) = (kind.costs for kind in problem.graph.kinds)
    time_ns = st.just(0.0) | times_ns(problem.quantum_ps)
    more_ns = data.draw(time_ns)
    slower = {
        name: getattr(cost, name) + data.draw(time_ns)
        for name in ("forward_ns", "forward_host_ns", "backward_host_ns")
    }
    weights_ns = cost.weight_backward_ns
    longer = with_cost(
        problem,
        **slower,
        backward_ns=cost.backward_ns + more_ns,
        weight_backward_ns=weights_ns and cost.backward_ns + more_ns,
        activations=tuple(
            replace(x, extra_ns=x.extra_ns + data.draw(time_ns))
            if x.recompute == "selective"
            else x
            for x in cost.activations
        ),
    )
    block = block_of(strategy)
    check(
        terms(problem, strategy, runtime, block),
        terms(longer, strategy, runtime, block),
        PARTS,
    )


@examples(60)
@given(layers(), st.integers(1, 4))
def test_no_term_falls_where_less_is_sharded(drawn, replicas):
    """State over fewer replicas; ZeRO that gathers per micro-batch."""
    problem, strategy, runtime = drawn
    optimizer = runtime._replace(distributed_optimizer=strategy.zero < 2)
    check(
        terms(problem, strategy, optimizer, None, replicas + 1),
        terms(problem, strategy, optimizer, None, replicas),
    )
    whole = terms(problem, strategy, runtime, block_of(strategy))
    job = replace(problem.job, zero=(0, 1, 2, 3))
    for zero in range(strategy.zero):
        less = terms(
            replace(problem, job=job),
            replace(strategy, zero=zero),
            runtime,
            block_of(strategy),
        )
        held = ("weight_bytes", "gradient_bytes", "state_bytes")
        assert all(less[name] >= whole[name] for name in held)
        assert less["forward"] <= whole["forward"]
        assert less["backward"] <= whole["backward"]


@examples(80)
@given(
    *(BYTES, BYTES, SPEEDS, FACTORS, QUANTA_PS),
    *(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
)
def test_no_message_falls(
    size, more, speed, factor, quantum_ps, samples, shards, receivers
):
    problem = make_problem({"a": make_cost()}, quantum_ps=quantum_ps)
    transfers = CostModel(problem).transfers

    def receive(size=size, shards=shards, **link):
        fields = {"alpha_ns": 1.5, "beta": speed, "receivers": receivers}
        route = frozenset({Link(**{**fields, **link})})
        return transfers.receive(route, [size, 7], samples, shards)

    time = receive()
    assert receive(size=size + more) >= time
    assert receive(shards=shards + 1) <= time
    assert receive(beta=speed / factor) >= time
    assert receive(alpha_ns=1.5 * factor) >= time
    assert receive(receivers=receivers + 1) >= time


@examples(120)
@given(
    FRACTIONS,
    st.integers(0, 61).flatmap(lambda x: st.integers(0, 2**x)),
    st.integers(0, 2**62),
)
def test_sync_that_shows_never_falls(fraction, sync, backward):
    """Nor does it where a pass gets longer by as much as more hides."""
    hidden = hidden_sync(sync, backward, fraction)
    assert 0 <= hidden <= min(sync, backward)
    assert 0 <= hidden_sync(sync + 1, backward, fraction) - hidden <= 1
    assert 0 <= hidden_sync(sync, backward + 1, fraction) - hidden <= 1
    assert hidden_sync(sync, backward, 1.0) == min(sync, backward)
    assert hidden_sync(sync, backward, 0.0) == 0


@examples(40)
@given(
    st.one_of(problems(overlapping=True), problems(graphs=True)),
    st.sampled_from((2, 4)),
)
def test_no_term_falls_on_a_place_that_is_no_faster(problem, size):
    """Places that bounds leave out have no smaller terms than the others."""
    model = CostModel(problem)
    size = min(size, problem.cluster.num_devices)
    places = [
        Block(1, 0, offset, size)
        for offset in range(problem.cluster.num_devices - size + 1)
    ]
    micro_batch = max(problem.job.micro_batches)
    overlap = frozenset(problem.job.overlap) - {"gradients"}
    for tp in (1, 2):
        if size % tp or micro_batch % (size // tp):
            continue
        strategy = Strategy(dp=size // tp, tp=tp, zero=problem.job.zero[-1])
        fastest = model.groups.fastest(strategy, places)
        for layer in range(len(problem.graph.layers)):
            found = [
                [
                    model.layers.passes(
                        layer, strategy, micro_batch, block, overlap
                    )
                    for block in blocks
                ]
                for blocks in (fastest, places)
            ]
            if None in found[0]:
                continue
            least, all_least = (
                [min(column) for column in zip(*rows, strict=True)]
                for rows in found
            )
            assert least == all_least


def slower(problem, random: Random):
    """Return the problem where something takes longer or is larger."""
    cluster, graph = problem.cluster, problem.graph
    topology = cluster.topology
    kind = random.randrange(4)
    if kind == 0 and isinstance(topology, GraphTopology):
        # Slower links may have other routes, but not if all are.
        topology = topology.scaled(random.choice((2.0, 4.0, 1024.0)))
    elif kind == 0:
        return with_slower_level(
            problem,
            random.randrange(4),
            random.choice(
                ("bandwidth_bytes_per_s", "latency_ns", "launch_ns")
            ),
            random.choice((1 + 2**-52, 1.7, 2.0, 100.0)),
        )
    elif kind == 1:
        edges = tuple(
            replace(x, bytes_per_sample=x.bytes_per_sample + 1)
            if x.bytes_per_sample and random.random() < 0.5
            else x
            for x in graph.edges
        )
        graph = replace(graph, edges=edges)
    else:

        def larger(cost):
            if kind == 2:
                return replace(
                    cost,
                    collectives=tuple(
                        replace(
                            x, size_bytes=x.size_bytes + random.randrange(3)
                        )
                        for x in cost.collectives
                    ),
                )
            return replace(
                cost,
                weight_bytes=cost.weight_bytes + random.randrange(2),
                expert_weight_bytes=cost.expert_weight_bytes
                + random.randrange(2),
            )

        graph = replace(
            graph,
            kinds=tuple(
                replace(x, costs=tuple(map(larger, x.costs)))
                for x in graph.kinds
            ),
        )
    return replace(
        problem, graph=graph, cluster=replace(cluster, topology=topology)
    )


@pytest.mark.parametrize("scorer", ["nest", "independent"])
@examples(100)
@given(seed=st.integers(0, 2**63))
def test_no_step_is_shorter_where_something_is_slower(scorer, seed):
    """Of any plan under any schedule; nor is what runs in it."""
    random = Random(seed)
    problem, plan = draw_pair(random, "standard")
    ends = {0.3: 1.0, 0.5: 0.0}
    job = replace(
        problem.job,
        overlap={
            name: ends.get(value, 1.0)
            for name, value in problem.job.overlap.items()
        },
    )
    problem = replace(problem, job=job)
    try:
        independent_score(problem, plan)
        other = slower(problem, random)
        if scorer == "independent":
            before, after = (
                independent_score(x, plan) for x in (problem, other)
            )
            steps = before.step, after.step
        else:
            before, after = (score(x, plan) for x in (problem, other))
            steps = before.step_quanta, after.step_quanta
    except (IllegalPlan, InvalidProblemError):
        assume(False)
        raise
    for one, more in zip(before.stages, after.stages, strict=True):
        assert one.forward <= more.forward
        assert one.backward <= more.backward
        assert one.receive_forward <= more.receive_forward
        assert one.receive_backward <= more.receive_backward
        assert one.redistribution <= more.redistribution
        assert 0 <= one.weight_backward <= one.backward
    timed = plan.virtual_stages > 1 or job.schedule in SPLIT_BACKWARD
    if not (timed and "gradients" in plan.overlap):
        # A longer pass hides more, and need not be what a step waits for.
        assert steps[0] <= steps[1]
