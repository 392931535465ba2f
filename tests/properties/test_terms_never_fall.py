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
from tests.builders import call, make_cost, make_problem, with_cluster, with_job
from tests.independent.generate import draw_pair
from tests.independent.rules import IllegalPlan
from tests.independent.scorer import score as independent_score
from tests.properties.profiles import examples
from tests.strategies import problems

QUANTA_PS = (1000, 1000, 10_000, 3000, 75_019, 7)
SPEEDS = (1e8, 3e8, 7e8, 1e9, 2.7e10, 1.7e12)
FACTORS = (1 + 2**-52, 1.0001, 1.5, 2.0, 3.0, 1e6)

#: Draws are independent of each other: what fails is rare.
SEEDS = st.integers(0, 2**63).map(Random)


def some_fraction(random: Random) -> float:
    return random.choice((0.0, 1.0, 1.0, 1.0, 0.5, 0.7, random.random()))


def some_bytes(random: Random) -> int:
    return random.randrange(10 ** random.randrange(10))


def some_ns(random: Random, quantum_ps: int) -> float:
    """Draw a time of some quanta and, often, half of one.

    Just below a power of two a sum with it has fewer bits behind the point.
    """
    quanta = random.randrange(10 ** random.randrange(10))
    if random.random() < 0.7:
        power = 2 ** random.randrange(6, 20) * 1000 // quantum_ps
        quanta = max(0, power - random.randrange(1, 4))
    return (quanta + random.choice((0.5, 0.5, 0.5, 0, 0.3))) * (quantum_ps / 1000)


def seldom_ns(random: Random, quantum_ps: int) -> float:
    return some_ns(random, quantum_ps) if random.random() < 0.2 else 0.0


def levels(random: Random) -> Hierarchy:
    """Draw a tree of 32 devices."""
    return Hierarchy(
        levels=tuple(
            Level(
                fan_out=fan_out,
                latency_ns=random.choice((0.0, 1.5, 0.9, 33.3)),
                launch_ns=random.choice((0.0, 0.1, 70.0)),
                bandwidth_bytes_per_s=random.choice(SPEEDS),
                peer_bandwidth_bytes_per_s=random.choice((None, *SPEEDS)),
            )
            for fan_out in random.choice(((4, 8), (32,)))
        ),
        algorithms=random.choice(("best", "nccl")),
    )


def layers(random: Random):
    """Draw a problem of one layer, its strategy and how it runs.

    Mostly all that may hide does, and is a part of what is computed.
    """
    quantum_ps = random.choice(QUANTA_PS)
    dp, tp, cp = (random.choice((1, 2)) for _ in range(3))
    ep = random.choice([x for x in (1, 2, 4) if dp * cp % x == 0])
    schedule = random.choice((*SCHEDULES, "1f1b", "dualpipe-v"))
    recompute = ("none", "selective", "full")
    recompute = recompute[: 2 if schedule in SPLIT_BACKWARD else 3]
    zero = random.choice((0, 1, 2, 3))
    most = random.random() < 0.6
    degrees = {"tp": tp, "cp": cp, "ep": ep}
    if not most:
        degrees["dp"] = dp
    axes = [name for name, degree in degrees.items() if degree > 1]
    topology = levels(random)
    speed = topology.levels[0].bandwidth_bytes_per_s / 1e9
    forward_ns, backward_ns, *old_ns = (some_ns(random, quantum_ps) for _ in range(4))

    def calls():
        for _ in range(random.randrange(5) if axes else 0):
            phase = random.choice(("forward", "backward"))
            computed = forward_ns if phase == "forward" else backward_ns
            size = int(random.uniform(0, 0.3) * computed * speed)
            if random.random() < 0.2:
                size = some_bytes(random)
            kind = random.choice(("all-reduce", "all-to-all"))
            count = random.randrange(1, 4)
            yield call(kind, random.choice(axes), phase, size, count)

    cost = make_cost(
        forward_ns,
        backward_ns,
        tp=tp,
        cp=cp,
        ep=ep,
        samples=4 // dp,
        weight_backward_ns=random.choice((None, backward_ns)),
        forward_host_ns=seldom_ns(random, quantum_ps),
        backward_host_ns=seldom_ns(random, quantum_ps),
        weight_bytes=some_bytes(random) if random.random() < 0.5 else 0,
        expert_weight_bytes=random.choice((0, some_bytes(random))),
        working_bytes=some_bytes(random),
        activations=tuple(
            Activations(
                recompute=x,
                kept_bytes=some_bytes(random),
                extra_ns=(some_ns(random, quantum_ps) if x == "selective" else 0),
            )
            for x in recompute
        ),
        by_device=(
            DeviceTimes(
                device="old",
                forward_ns=old_ns[0],
                backward_ns=old_ns[1],
                extra_ns=some_ns(random, quantum_ps),
                weight_backward_ns=random.choice((None, old_ns[1])),
            ),
        ),
        collectives=tuple(calls()),
    )
    names = [x for x in OVERLAP if most or random.random() < 0.5]
    problem = make_problem(
        {"a": cost},
        devices=32,
        topology=topology,
        hbm=random.choice((None, *SPEEDS)),
        quantum_ps=quantum_ps,
        schedule=schedule,
        global_batch=4,
        micro_batches=(4,),
        zero=(zero,),
        recompute=recompute,
        overlap={x: 1.0 if most else some_fraction(random) for x in names},
        gradient_sync_overlap=some_fraction(random),
        weight_backward_fraction=some_fraction(random),
        distributed_optimizer=True,
        optimizer=Optimizer(buffer_bytes=random.choice((0, 0.7, 4))),
    )
    strategy = Strategy(
        dp=dp, tp=tp, cp=cp, ep=ep, zero=zero, recompute=random.choice(recompute)
    )
    runtime = Runtime(
        overlap=frozenset(x for x in names if most or random.random() < 0.6),
        distributed_optimizer=zero < 2 and random.random() < 0.5,
    )
    return problem, strategy, runtime


#: The block in front of all, in two replicas.
PLACE = Block(2, 16, 0, 0)


def block_of(strategy: Strategy, offset: int = 0) -> Block:
    return PLACE._replace(offset=offset, devices=strategy.devices)


def terms(problem, strategy, runtime, block, replicas=2):
    """Return all terms of the layer that must not fall, by name."""
    found = CostModel(problem).layer_terms(0, strategy, 4, block, runtime, replicas)
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
        "sync that shows": found.sync - most_hidden(found.hideable_sync, fraction),
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
    return with_cluster(problem, topology=topology)


@examples(400)
@given(SEEDS)
def test_no_pass_is_shorter_with_communication(random):
    """Without a block there is none, and the devices are the fastest."""
    problem, strategy, runtime = layers(random)
    replicas = 2 if runtime.distributed_optimizer else 1
    check(
        terms(problem, strategy, runtime, None, replicas),
        terms(problem, strategy, runtime, block_of(strategy)),
    )


@examples(400)
@given(SEEDS)
def test_no_term_falls_over_a_slower_link(random):
    problem, strategy, runtime = layers(random)
    block = block_of(strategy)
    field = random.choice(
        (
            "bandwidth_bytes_per_s",
            "peer_bandwidth_bytes_per_s",
            "latency_ns",
            "launch_ns",
        )
    )
    longer = with_slower_level(
        problem, random.randrange(2), field, random.choice(FACTORS)
    )
    check(
        terms(problem, strategy, runtime, block),
        terms(longer, strategy, runtime, block),
    )


@examples(400)
@given(SEEDS)
def test_no_term_falls_with_more_to_send(random):
    """More bytes, calls or weights; a call more than there was."""
    problem, strategy, runtime = layers(random)
    ((cost,),) = (kind.costs for kind in problem.graph.kinds)
    calls = list(cost.collectives)
    if calls and random.random() < 0.5:
        place = random.randrange(len(calls))
        calls[place] = replace(
            calls[place],
            size_bytes=calls[place].size_bytes + some_bytes(random),
            count=calls[place].count + random.choice((0, 1)),
        )
    elif calls:
        more = list(calls)
        del calls[random.randrange(len(calls))]
        problem = with_cost(problem, collectives=tuple(calls))
        calls = more
    longer = with_cost(
        problem,
        collectives=tuple(calls),
        weight_bytes=cost.weight_bytes + some_bytes(random),
        expert_weight_bytes=cost.expert_weight_bytes + some_bytes(random),
    )
    block = block_of(strategy)
    check(
        terms(problem, strategy, runtime, block),
        terms(longer, strategy, runtime, block),
    )


@examples(400)
@given(SEEDS)
def test_no_term_falls_where_less_hides(random):
    """A plan overlaps less, or a job lets less of it hide."""
    problem, strategy, runtime = layers(random)
    block, job = block_of(strategy), problem.job
    before = terms(problem, strategy, runtime, block)
    less = replace(
        job,
        overlap={x: y * some_fraction(random) for x, y in job.overlap.items()},
        gradient_sync_overlap=(job.gradient_sync_overlap * some_fraction(random)),
    )
    check(before, terms(replace(problem, job=less), strategy, runtime, block))
    # With these times are rounded together, or apart.
    apart = {"weights", "gradients"}
    if job.schedule == "dualpipe-v":
        apart.add("ep")
    kept = frozenset(x for x in runtime.overlap if x in apart or random.random() < 0.5)
    check(before, terms(problem, strategy, runtime._replace(overlap=kept), block))


@examples(150)
@given(SEEDS)
def test_no_term_falls_on_slower_devices(random):
    """Some devices of a block are of a second type, then all."""
    problem, strategy, runtime = layers(random)
    block = block_of(strategy)
    old = replace(problem.cluster.device, name="old", reserve_bytes=1)

    def on(first, count):
        others = (DeviceRange(first=first, count=count, device=old),)
        return terms(with_cluster(problem, others=others), strategy, runtime, block)

    # Of both types: in a replica, or one replica of each.
    both = on(1, 31) if strategy.devices > 1 else on(16, 16)
    check(terms(problem, strategy, runtime, block), both, PARTS)
    check(on(0, 32), both, PARTS)


@examples(200)
@given(SEEDS)
def test_no_term_falls_where_more_is_computed(random):
    """Slower passes and hosts; what is repeated takes longer."""
    problem, strategy, runtime = layers(random)
    ((cost,),) = (kind.costs for kind in problem.graph.kinds)

    def more_ns():
        return random.choice((0.0, some_ns(random, problem.quantum_ps)))

    backward_ns = cost.backward_ns + more_ns()
    longer = with_cost(
        problem,
        **{
            name: getattr(cost, name) + more_ns()
            for name in ("forward_ns", "forward_host_ns", "backward_host_ns")
        },
        backward_ns=backward_ns,
        weight_backward_ns=cost.weight_backward_ns and backward_ns,
        activations=tuple(
            replace(x, extra_ns=x.extra_ns + more_ns())
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


@examples(100)
@given(SEEDS)
def test_no_term_falls_where_less_is_sharded(random):
    """State over fewer replicas; ZeRO that gathers per micro-batch."""
    problem, strategy, runtime = layers(random)
    optimizer = runtime._replace(distributed_optimizer=strategy.zero < 2)
    replicas = random.randrange(1, 5)
    check(
        terms(problem, strategy, optimizer, None, replicas + 1),
        terms(problem, strategy, optimizer, None, replicas),
    )
    whole = terms(problem, strategy, runtime, block_of(strategy))
    for zero in range(strategy.zero):
        less = terms(
            with_job(problem, zero=(0, 1, 2, 3)),
            replace(strategy, zero=zero),
            runtime,
            block_of(strategy),
        )
        held = ("weight_bytes", "gradient_bytes", "state_bytes")
        assert all(less[name] >= whole[name] for name in held)
        assert less["forward"] <= whole["forward"]
        assert less["backward"] <= whole["backward"]


@examples(200)
@given(SEEDS)
def test_no_message_falls(random):
    problem = make_problem({"a": make_cost()}, quantum_ps=random.choice(QUANTA_PS[:-1]))
    transfers = CostModel(problem).transfers
    size, speed = some_bytes(random), random.choice(SPEEDS)
    samples, shards, receivers = (random.randrange(1, 9) for _ in range(3))

    def receive(size=size, shards=shards, **link):
        fields = {"alpha_ns": 1.5, "beta": speed, "receivers": receivers}
        route = frozenset({Link(**{**fields, **link})})
        return transfers.receive(route, [size, 7], samples, shards)

    time, factor = receive(), random.choice(FACTORS[:-1])
    assert receive(size=size + random.choice((1, some_bytes(random)))) >= time
    assert receive(shards=shards + 1) <= time
    assert receive(beta=speed / factor) >= time
    assert receive(alpha_ns=1.5 * factor) >= time
    assert receive(receivers=receivers + 1) >= time


@examples(400)
@given(SEEDS)
def test_sync_that_shows_never_falls(random):
    """Nor does it where a pass gets longer by as much as more hides."""
    fraction = random.choice(
        (some_fraction(random), 1 - 2.0 ** -random.randrange(1, 60))
    )
    sync = random.randrange(2 ** random.randrange(62))
    backward = random.choice((2**62, 2**62, 1000))
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
                    model.layers.passes(layer, strategy, micro_batch, block, overlap)
                    for block in blocks
                ]
                for blocks in (fastest, places)
            ]
            if None in found[0]:
                continue
            least, all_least = (
                [min(column) for column in zip(*rows, strict=True)] for rows in found
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
            random.choice(("bandwidth_bytes_per_s", "latency_ns", "launch_ns")),
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
                        replace(x, size_bytes=x.size_bytes + random.randrange(3))
                        for x in cost.collectives
                    ),
                )
            return replace(
                cost,
                weight_bytes=cost.weight_bytes + random.randrange(2),
                expert_weight_bytes=cost.expert_weight_bytes + random.randrange(2),
            )

        graph = replace(
            graph,
            kinds=tuple(
                replace(x, costs=tuple(map(larger, x.costs))) for x in graph.kinds
            ),
        )
    return replace(problem, graph=graph, cluster=replace(cluster, topology=topology))


@pytest.mark.parametrize("scorer", ["nest", "independent"])
@examples(150)
@given(random=SEEDS)
def test_no_step_is_shorter_where_something_is_slower(scorer, random):
    """Of any plan under any schedule; nor is what runs in it."""
    problem, plan = draw_pair(random, "standard")
    ends = {0.3: 1.0, 0.5: 0.0}
    job = replace(
        problem.job,
        overlap={
            name: ends.get(value, 1.0) for name, value in problem.job.overlap.items()
        },
    )
    problem = replace(problem, job=job)
    try:
        independent_score(problem, plan)
        other = slower(problem, random)
        if scorer == "independent":
            before, after = (independent_score(x, plan) for x in (problem, other))
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
