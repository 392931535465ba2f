"""Random problems for Hypothesis, small enough for plain enumeration.

Every drawn problem has at most :data:`MAX_PLANS` plans. Sizes, rates and
times are of one order, so that computation, network and memory all decide:
1e9 bytes/s moves one byte per nanosecond, layers take some hundred ns and
hold some hundred bytes. Then most problems are magnified: layers take up to
1e14 quanta, and kinds of layers may differ by six orders. Memory is drawn
around what the plans of the problem need, so that it is the binding constraint
of a good part of the problems and some have no plan at all.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from nest.analysis.fit import with_memory
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import batch_splits, runtimes, strategies
from nest.ir import (
    Activations,
    Cluster,
    CollectiveCall,
    Device,
    Edge,
    Graph,
    GraphTopology,
    Hierarchy,
    Job,
    Layer,
    LayerCost,
    LayerKind,
    Level,
    Optimizer,
    Plan,
    Problem,
    Stage,
)
from nest.ir.job import SHARED, Granularity
from nest.ir.plan import OVERLAP
from tests.builders import with_cluster, with_device, with_job
from tests.graphs import random_graph

#: Plans of the largest problem; more if every layer has its own strategy, or
#: if stages can run in several ways.
MAX_PLANS = 1500
MAX_LAYER_PLANS = 4000

#: Memory of devices that hold any plan, in bytes.
PLENTY = 2**50

#: Layers take so many times some hundred ns, in powers of ten.
MAGNITUDES = (0, 2, 4, 5, 6, 7, 8, 9, 10)

#: Of so many powers of ten some layers, or the network, take less.
APART = (0, 0, 0, 3, 5, 7, 9)

Draw = Callable[[st.SearchStrategy[Any]], Any]


def pick(draw: Draw, values: Sequence[Any]) -> Any:
    """Draw one of some values."""
    return draw(st.sampled_from(values))


#: (tp, cp, ep) of one device, and others worth a try.
_WIDTHS = ((2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 2), (3, 1, 1), (1, 2, 2))


# Graphs


def _draw_edges(draw: Draw, num_layers: int) -> set[tuple[int, int]]:
    """Draw a chain, a chain with skips, branches, or any DAG."""
    chain = set(itertools.pairwise(range(num_layers)))
    pairs = list(itertools.combinations(range(num_layers), 2))
    shape = pick(draw, ("chain", "chain", "skips", "branches", "any"))
    if shape == "chain":
        return chain
    if shape == "skips":
        return chain | draw(st.sets(st.sampled_from(pairs), max_size=2))
    if shape == "branches":
        # every layer reads one earlier layer, or starts a part of its own
        sources = [
            draw(st.integers(-1 if i > 1 else 0, i - 1)) for i in range(1, num_layers)
        ]
        return {
            (source, target) for target, source in enumerate(sources, 1) if source >= 0
        }
    return set(draw(st.sets(st.sampled_from(pairs), max_size=num_layers + 1)))


def _draw_graph(
    draw: Draw, num_layers: int, kinds: tuple[LayerKind, ...], by_tp: bool
) -> Graph:
    names = draw(st.permutations([f"l{i}" for i in range(num_layers)]))
    sizes = st.sampled_from((0, 1, 7, 50, 120, 400))
    edges = []
    for source, target in sorted(_draw_edges(draw, num_layers)):
        table = {}
        if by_tp and draw(st.booleans()):
            table = {2: draw(sizes)}
        edges.append(
            Edge(
                source=names[source],
                target=names[target],
                bytes_per_sample=draw(sizes),
                bytes_per_sample_by_tp=table,
            )
        )
    layers = [Layer(id=name, kind=pick(draw, kinds).name) for name in names]
    # file order need not be topological
    if draw(st.booleans()):
        layers.reverse()
    return Graph(kinds=kinds, layers=tuple(layers), edges=tuple(edges))


# Costs


def _draw_collectives(
    draw: Draw, tp: int, cp: int, ep: int, dp: int
) -> tuple[CollectiveCall, ...]:
    axes = [
        axis
        for axis, size in (("tp", tp), ("cp", cp), ("ep", ep), ("dp", dp))
        if size > 1
    ]
    if not axes:
        return ()
    return tuple(
        CollectiveCall(
            kind=pick(
                draw, ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
            ),
            axis=pick(draw, axes),
            phase=pick(draw, ("forward", "backward")),
            size_bytes=pick(draw, (0, 3, 40, 200)),
            count=draw(st.integers(1, 2)),
        )
        for _ in range(draw(st.integers(0, 2)))
    )


def _draw_activations(
    draw: Draw, recompute: tuple[str, ...], scale: int
) -> tuple[Activations, ...]:
    kept = draw(st.integers(0, 200)) * scale
    table = {
        "none": Activations(kept_bytes=kept),
        "selective": Activations(
            recompute="selective",
            kept_bytes=kept // 2,
            extra_ns=float(draw(st.integers(0, 40))),
            working_bytes=kept // 4,
        ),
        "full": Activations(
            recompute="full", kept_bytes=kept // 6, working_bytes=pick(draw, (0, kept))
        ),
    }
    chosen = [table[name] for name in recompute]
    # one choice may be missing for this kind
    if len(chosen) > 1 and draw(st.integers(0, 4)) == 0:
        chosen.pop()
    return tuple(chosen)


def with_offload(draw: Draw, problem: Problem) -> Problem:
    """Let plans leave activations to the host, by links that are slow or fast."""

    def offered(cost: LayerCost) -> LayerCost:
        kept_bytes = max(x.kept_bytes for x in cost.activations)
        passes_ns = cost.forward_ns + cost.backward_ns
        offload = Activations(
            recompute="offload",
            kept_bytes=kept_bytes // 6,
            working_bytes=pick(draw, (0, kept_bytes)),
            transfer_ns=passes_ns * pick(draw, (0.1, 0.5, 1.7)),
        )
        return replace(cost, activations=(*cost.activations, offload))

    kinds = tuple(
        replace(kind, costs=tuple(map(offered, kind.costs)))
        for kind in problem.graph.kinds
    )
    job = replace(problem.job, recompute=(*problem.job.recompute, "offload"))
    return replace(problem, graph=replace(problem.graph, kinds=kinds), job=job)


def _draw_kinds(
    draw: Draw,
    num_kinds: int,
    keys: list[tuple[int, int, int, int]],
    job: Job,
    expert: bool,
) -> tuple[LayerKind, ...]:
    # Layers choose: what suits one kind need not suit another.
    slower = (1, 1, 6) if job.granularity == "layer" else (1,)
    kinds = []
    for number in range(num_kinds):
        forward = draw(st.integers(0, 300))
        backward = draw(st.integers(0, 600))
        weights = pick(draw, (0, 20, 90, 333))
        experts = pick(draw, (0, 120)) if expert else 0
        noise = pick(draw, (0.0, 0.3, 0.5))
        costs = []
        for tp, cp, ep, samples in keys:
            if costs and draw(st.integers(0, 7)) == 0:
                continue  # not available for this kind
            share = tp * cp
            dp = max(job.micro_batches) // samples
            slow = pick(draw, slower) if slower != (1,) else 1
            costs.append(
                LayerCost(
                    tp=tp,
                    cp=cp,
                    ep=ep,
                    samples=samples,
                    forward_ns=slow * forward * samples / share + noise,
                    backward_ns=slow * backward * samples / share + noise,
                    weight_bytes=weights // tp,
                    expert_weight_bytes=experts // (tp * ep),
                    working_bytes=pick(draw, (0, 0, 30, 80)),
                    activations=_draw_activations(draw, job.recompute, samples),
                    collectives=_draw_collectives(draw, tp, cp, ep, dp),
                )
            )
        kinds.append(LayerKind(name=f"k{number}", costs=tuple(costs)))
    return tuple(kinds)


# Clusters


def _draw_topology(draw: Draw, num_devices: int) -> Hierarchy:
    """Draw 1-3 levels with room for the devices, not always filled."""
    num_levels = draw(st.integers(1, 3))
    fan_outs = [
        draw(st.integers(1 if num_levels > 1 else 2, 3)) for _ in range(num_levels - 1)
    ]
    fan_outs.append(-(-num_devices // math.prod(fan_outs)) + draw(st.integers(0, 1)))
    return Hierarchy(
        levels=tuple(
            Level(
                fan_out=fan_out,
                latency_ns=pick(draw, (0.0, 1.5, 20.0, 100.0)),
                bandwidth_bytes_per_s=pick(draw, (4e9, 1e9, 3e8, 1e8)),
            )
            for fan_out in fan_outs
        )
    )


def _draw_graph_topology(draw: Draw, num_devices: int) -> GraphTopology:
    """Draw a graph with room for the devices, see :mod:`tests.graphs`."""
    return random_graph(lambda values: pick(draw, values), num_devices)


# Jobs


def _draw_job(draw: Draw, uniform: bool) -> Job:
    batch = pick(draw, ((1,), (2,), (2,), (4,), (1, 2), (2, 4)))
    uneven = draw(st.integers(0, 3)) == 0 or uniform
    global_batch = max(batch) * pick(draw, (1, 2, 4, 6))
    if uneven:
        global_batch += draw(st.integers(0, 2))
    optimizer = pick(
        draw,
        (
            Optimizer(),
            Optimizer(name="sgd", state_bytes=0),
            Optimizer(
                weight_bytes=2,
                gradient_bytes=4,
                state_bytes=3,
                zero_2_bytes=30,
                zero_3_bytes=7,
            ),
        ),
    )
    if uniform:
        return Job(
            global_batch=global_batch,
            micro_batches=batch,
            optimizer=optimizer,
            schedule=pick(draw, ("1f1b", "1f1b", "gpipe")),
            zero=pick(draw, ((0,), (0,), (0, 1), (2, 3))),
            recompute=pick(
                draw, (("full",), ("none",), ("none", "full"), ("none", "selective"))
            ),
            uneven_batches=uneven,
        )
    return Job(
        global_batch=global_batch,
        micro_batches=batch,
        optimizer=optimizer,
        schedule=pick(draw, ("1f1b", "1f1b", "gpipe")),
        replicas=pick(draw, (None, None, None, (1,), (1, 2))),
        data_parallel=pick(draw, (None, None, None, (1,), (1, 2))),
        zero=pick(draw, ((0,), (0,), (1,), (3,), (0, 1), (2,), (0, 3), (0, 1, 2, 3))),
        recompute=pick(
            draw,
            (
                ("none",),
                ("none",),
                ("full",),
                ("none", "full"),
                ("none", "selective"),
                ("none", "selective", "full"),
            ),
        ),
        sequence_parallel=draw(st.booleans()),
        uneven_batches=uneven,
        gradient_sync_overlap=pick(draw, (0.0, 0.0, 0.25, 1.0)),
    )


def _restrict(draw: Draw, job: Job) -> Job:
    """Allow some numbers of stages and some degrees; ``None`` is all."""
    degrees = st.sampled_from((None, None, (1,), (2,), (1, 2), (1, 3)))
    return replace(
        job,
        pipeline_parallel=pick(draw, ((1,), (2,), (3,), (1, 3), (2, 3), (2, 4), None)),
        tensor_parallel=draw(degrees),
        context_parallel=draw(degrees),
        expert_parallel=draw(degrees),
    )


def _allow_runtimes(draw: Draw, job: Job) -> Job:
    """Allow some overlap and perhaps the distributed optimizer.

    Often all or nothing hides: then sums differ by nothing but rounding.
    """
    fractions = st.one_of(
        st.sampled_from((0.0, 0.3, 0.5, 0.7, 1.0, 1.0, 1.0)), st.floats(0, 1)
    )
    names = draw(
        st.lists(
            st.sampled_from((*OVERLAP, "gradients", "gradients")),
            min_size=1,
            max_size=3,
        )
    )
    return replace(
        job,
        overlap={name: draw(fractions) for name in dict.fromkeys(names)},
        gradient_sync_overlap=pick(draw, (0.0, 0.25, 1.0)),
        weight_backward_fraction=pick(draw, (0.0, 0.5, 1.0, 1.0)),
        distributed_optimizer=draw(st.booleans()),
    )


# Problems


def _draw_problem(
    draw: Draw, job: Job, preset: str, *, graphs: bool, choosing: bool
) -> Problem:
    """Draw the graph and the cluster of a job."""
    uniform = preset != "standard"
    num_devices = pick(draw, (4, 6, 3, 2, 5, 8, 4, 7, 1))
    num_layers = pick(draw, (3, 4, 5, 2, 6, 4))
    keys = _draw_keys(draw, job, uniform)
    if choosing and all(tp == 1 for tp, *_ in keys):
        keys += [(2, 1, 1, count) for count in sorted({count for *_, count in keys})]
    kinds = _draw_kinds(
        draw,
        draw(st.integers(1, min(3, num_layers))),
        keys,
        job,
        expert=draw(st.booleans()) and not uniform,
    )
    return Problem(
        graph=_draw_graph(draw, num_layers, kinds, by_tp=uniform),
        cluster=Cluster(
            num_devices=num_devices,
            device=Device(
                memory_bytes=PLENTY,
                hbm_bytes_per_s=(None if uniform else pick(draw, (None, 2e9))),
            ),
            topology=(_draw_graph_topology if graphs else _draw_topology)(
                draw, num_devices
            ),
        ),
        job=job,
        preset=preset,
    )


@st.composite
def problems(  # noqa: PLR0913
    draw: Draw,
    *,
    preset: str | None = None,
    granularity: Granularity = "stage",
    restricted: bool = False,
    graphs: bool = False,
    overlapping: bool = False,
    choosing: bool = False,
    folding: bool = False,
    hosts: bool = False,
    magnified: bool = True,
) -> Problem:
    """Draw a problem.

    Parameters
    ----------
    preset
        Its preset; by default mostly ``standard``.
    granularity
        Of its job; ``layer`` draws smaller problems under ``standard``, as
        every stage has more plans.
    restricted
        Whether its job allows only some numbers of stages and only some
        tensor, context and expert parallel degrees.
    graphs
        Whether its network is a graph instead of a tree; such problems are
        under ``standard``.
    overlapping
        Whether its job allows overlap, and perhaps the distributed optimizer;
        such problems are under ``standard``.
    choosing
        Whether its plans choose where sequences are split; such problems are
        under ``standard``.
    folding
        Whether its plans choose where tensor ranks hold whole experts; such
        problems are under ``standard``.
    hosts
        Whether issuing its passes surely takes the host some time; of other
        problems one in four.
    magnified
        Whether layers may take up to 1e14 quanta.
    """
    special = granularity == "layer" or graphs or overlapping or choosing or folding
    if preset is None and special:
        preset = "standard"
    if preset is None:
        preset = pick(draw, ("standard",) * 5 + ("nest-artifact",))
    uniform = preset != "standard"
    job = _draw_job(draw, uniform)
    if granularity == "layer":
        # some layers that recompute and some that do not
        choices = (("none", "full"), ("none", "selective"), job.recompute)
        job = replace(job, granularity=granularity, recompute=pick(draw, choices))
    if restricted:
        job = _restrict(draw, job)
    if overlapping:
        job = _allow_runtimes(draw, job)
    problem = _draw_problem(draw, job, preset, graphs=graphs, choosing=choosing)
    if overlapping:
        # Of whole and half ns some are half of these.
        quantum_ps = pick(draw, (1000, 1000, 10_000, 3000, 7))
        problem = replace(problem, quantum_ps=quantum_ps)
    if choosing:
        problem = _with_choice(draw, problem)
    if folding:
        problem = _with_whole_experts(draw, problem)
    if hosts or draw(st.integers(0, 3)) == 3:
        problem = _with_hosts(draw, problem)
    problem = _shrink_space(problem)
    if magnified:
        small, problem = problem, _magnified(draw, problem)
        if problem is not small:
            # Long times in a quantum of 7 ps are refused.
            problem = replace(problem, quantum_ps=max(1000, problem.quantum_ps))
    problem = _with_memory(draw, problem)
    if choosing:
        return _share(draw, problem)
    if folding:
        shared = pick(draw, ((), (), (), ("ep",), ("tp", "ep")))
        return with_job(problem, uniform=shared)
    return problem


def _share(draw: Draw, problem: Problem) -> Problem:
    """Let the layers of plans perhaps share some of their strategies."""
    every = tuple(name for name in SHARED if name != "devices")
    shared = pick(
        draw,
        (
            *((), (), (), ("sequence_parallel",)),
            ("tp", "sequence_parallel"),
            tuple(name for name in every if name != "sequence_parallel"),
            every,
        ),
    )
    return with_job(problem, uniform=shared)


def _with_choice(draw: Draw, problem: Problem) -> Problem:
    """Leave it to plans where sequences are split.

    Costs with ``tp > 1`` are drawn anew, or made of those without: with less
    to keep, and a little faster or slower.
    """
    job = problem.job

    def split(cost: LayerCost) -> LayerCost:
        more = pick(draw, (-20, 0, 0, 5, 60))
        return replace(
            cost,
            sequence_parallel=True,
            forward_ns=max(0.0, cost.forward_ns + more),
            activations=tuple(
                replace(x, kept_bytes=x.kept_bytes // cost.tp) for x in cost.activations
            ),
            collectives=pick(
                draw,
                (
                    cost.collectives,
                    _draw_collectives(draw, cost.tp, cost.cp, cost.ep, 1),
                ),
            ),
        )

    kinds = tuple(
        replace(
            kind,
            costs=(
                *kind.costs,
                *(
                    split(cost)
                    for cost in kind.costs
                    if cost.tp > 1 and draw(st.integers(0, 5))
                ),
            ),
        )
        for kind in problem.graph.kinds
    )
    values = pick(draw, ((False, True), (False, True), (True, False), (True,)))
    job = replace(job, sequence_parallel=values)
    return replace(problem, graph=replace(problem.graph, kinds=kinds), job=job)


def _with_whole_experts(draw: Draw, problem: Problem) -> Problem:
    """Leave it to plans where tensor ranks hold whole experts.

    Costs with ``tp > 1`` get others beside them: of another ``ep``, with more or
    fewer experts, a little faster or slower.
    """

    def whole(cost: LayerCost) -> LayerCost:
        ep = pick(draw, (cost.tp * cost.ep, cost.tp * cost.ep, cost.ep, 1))
        more = pick(draw, (-20, 0, 0, 5, 60))
        experts = cost.expert_weight_bytes or pick(draw, (0, 40))
        fresh = _draw_collectives(draw, cost.tp, cost.cp, ep, 1)
        return replace(
            cost,
            ep=ep,
            etp=1,
            forward_ns=max(0.0, cost.forward_ns + more),
            expert_weight_bytes=experts * cost.tp * cost.ep // ep,
            collectives=fresh,
        )

    kinds = []
    for kind in problem.graph.kinds:
        costs = {cost.key: cost for cost in kind.costs}
        for cost in kind.costs:
            if cost.tp > 1 and draw(st.integers(0, 5)):
                other = whole(cost)
                costs[other.key] = other
        kinds.append(replace(kind, costs=tuple(costs.values())))
    allowed = pick(draw, (None, None, None, (1,), (1, 2), (2, 4)))
    job = replace(problem.job, expert_tensor_parallel=allowed)
    return replace(problem, graph=replace(problem.graph, kinds=tuple(kinds)), job=job)


def _with_hosts(draw: Draw, problem: Problem) -> Problem:
    """State what the host takes to issue passes, long ones and short ones."""
    times_ns = st.sampled_from((0.0, 40.0, 40.0, 130.5, 400.0))

    def issued(cost: LayerCost) -> LayerCost:
        return replace(
            cost,
            forward_host_ns=draw(times_ns),
            backward_host_ns=draw(times_ns),
            activations=tuple(
                replace(x, extra_host_ns=draw(times_ns))
                if x.recompute == "selective"
                else x
                for x in cost.activations
            ),
        )

    kinds = tuple(
        replace(kind, costs=tuple(map(issued, kind.costs)))
        for kind in problem.graph.kinds
    )
    return replace(problem, graph=replace(problem.graph, kinds=kinds))


def _magnified(draw: Draw, problem: Problem) -> Problem:
    """Make times longer, and sizes larger or rates lower in proportion.

    Kinds of layers and the network may differ in magnitude. Times of layers
    end in any digits, in none, or in half a quantum.
    """
    power = pick(draw, MAGNITUDES)
    if not power:
        return problem
    graph, cluster = problem.graph, problem.cluster

    def factor(apart: int) -> int:
        least = 10 ** max(0, power - apart)
        return draw(st.integers(least, 2 * least))

    slower, slower_network = factor(0), factor(pick(draw, APART))
    slower_kinds = {kind.name: factor(pick(draw, APART)) for kind in graph.kinds}
    larger = slower if draw(st.booleans()) else 1
    rest = pick(draw, (None, 0.0, 0.5))
    graph = replace(
        graph,
        kinds=tuple(
            replace(
                kind,
                costs=tuple(
                    _magnified_cost(cost, slower_kinds[kind.name], larger, rest)
                    for cost in kind.costs
                ),
            )
            for kind in graph.kinds
        ),
        edges=tuple(
            replace(
                edge,
                bytes_per_sample=edge.bytes_per_sample * larger,
                bytes_per_sample_by_tp={
                    tp: size_bytes * larger
                    for tp, size_bytes in edge.bytes_per_sample_by_tp.items()
                },
            )
            for edge in graph.edges
        ),
    )

    def slowed(part: Any) -> Any:
        rate = part.bandwidth_bytes_per_s * larger / slower_network
        latency_ns = min(1e9, part.latency_ns * slower_network)
        return replace(part, latency_ns=latency_ns, bandwidth_bytes_per_s=rate)

    field = "links" if isinstance(cluster.topology, GraphTopology) else "levels"
    parts = tuple(map(slowed, getattr(cluster.topology, field)))
    device = cluster.device
    if device.hbm_bytes_per_s is not None:
        rate = device.hbm_bytes_per_s * larger / slower_network
        device = replace(device, hbm_bytes_per_s=rate)
    topology = replace(cluster.topology, **{field: parts})
    cluster = replace(cluster, device=device, topology=topology)
    return replace(problem, graph=graph, cluster=cluster)


def _magnified_cost(
    cost: LayerCost, slower: int, larger: int, rest: float | None
) -> LayerCost:
    """Return a cost with longer times, which end in a rest, and sizes."""

    def layer_ns(time_ns: float) -> float:
        found = time_ns * slower
        return found if rest is None or not found else int(found) + rest

    return replace(
        cost,
        forward_ns=layer_ns(cost.forward_ns),
        backward_ns=layer_ns(cost.backward_ns),
        forward_host_ns=cost.forward_host_ns * slower,
        backward_host_ns=cost.backward_host_ns * slower,
        weight_bytes=cost.weight_bytes * larger,
        expert_weight_bytes=cost.expert_weight_bytes * larger,
        working_bytes=cost.working_bytes * larger,
        activations=tuple(
            replace(
                x,
                kept_bytes=x.kept_bytes * larger,
                working_bytes=x.working_bytes * larger,
                extra_ns=x.extra_ns * slower,
                extra_host_ns=x.extra_host_ns * slower,
            )
            for x in cost.activations
        ),
        collectives=tuple(
            replace(call, size_bytes=call.size_bytes * larger)
            for call in cost.collectives
        ),
    )


def _draw_keys(draw: Draw, job: Job, uniform: bool) -> list[tuple[int, int, int, int]]:
    """Draw the keys (tp, cp, ep, samples) that have costs."""
    widths = [(1, 1, 1)]
    if uniform:
        widths += draw(st.lists(st.sampled_from(((2, 1, 1), (3, 1, 1))), max_size=1))
        return [(*width, job.micro_batches[0]) for width in widths]
    if job.granularity == "layer" and draw(st.booleans()):
        # layouts of as many devices, for stages that mix them
        widths = [(2, 1, 1), (1, 2, 1), *widths[: draw(st.integers(0, 1))]]
    else:
        widths += draw(st.lists(st.sampled_from(_WIDTHS), max_size=3, unique=True))
    # sometimes no layer fits on one device
    if len(widths) > 2 and draw(st.integers(0, 5)) == 0:
        del widths[0]
    samples = {
        micro_batch // dp
        for micro_batch in job.micro_batches
        for dp in (1, 2, 4)
        if micro_batch % dp == 0
    }
    kept = sorted(samples)
    if len(kept) > 1 and draw(st.integers(0, 3)) == 0:
        kept.pop(draw(st.integers(0, len(kept) - 1)))
    return [(*width, count) for width in widths for count in kept]


# How many plans


def count_plans(problem: Problem) -> int:
    """Count stage cuts, strategies and cases; an upper bound.

    It ignores missing costs; predecessor-closed sets are counted exactly.
    """
    layers = range(len(problem.graph.layers))
    needed = [0] * len(layers)
    for source, target, _ in problem.graph.index_edges():
        needed[target] |= 1 << source
    closed = [
        mask
        for mask in range(1 << len(layers))
        if all(not mask >> i & 1 or not needed[i] & ~mask for i in layers)
    ]
    if problem.job.granularity == "layer":
        return _count_layer_plans(problem, closed)
    # chains of closed sets with 1, 2, … stages
    ways = {0: 1}
    chains = []
    for _ in layers:
        following: dict[int, int] = {}
        for mask, count in ways.items():
            for larger in closed:
                if mask & ~larger == 0 and larger != mask:
                    following[larger] = following.get(larger, 0) + count
        ways = following
        chains.append(ways.get(closed[-1], 0))
    uniform = problem.preset != "standard"
    total = 0
    for case in batch_splits(problem):
        widths = [s.devices for s in strategies(problem, case.micro_batch)]
        fits = {case.devices: 1}
        for number, cuts in enumerate(chains, 1):
            if uniform:
                total += cuts * sum(w * number <= case.devices for w in widths)
                continue
            left: dict[int, int] = {}
            for devices, count in fits.items():
                for width in widths:
                    if width <= devices:
                        rest = devices - width
                        left[rest] = left.get(rest, 0) + count
            fits = left
            total += cuts * sum(fits.values())
    return total


def _count_layer_plans(problem: Problem, closed: list[int]) -> int:
    """Count the same where every layer has a strategy of its own."""
    stages = [
        (mask, larger, (larger & ~mask).bit_count())
        for mask in closed
        for larger in closed
        if mask & ~larger == 0 and larger != mask
    ]
    total = 0
    for case in batch_splits(problem):
        widths = Counter(s.devices for s in strategies(problem, case.micro_batch))
        ways = Counter({(0, case.devices): 1})
        # masks come before larger ones
        for mask, larger, num_layers in stages:
            for left in range(case.devices + 1):
                count = ways[mask, left]
                for width, number in widths.items() if count else ():
                    if width <= left:
                        ways[larger, left - width] += count * number**num_layers
        total += sum(count for (mask, _), count in ways.items() if mask == closed[-1])
    return total


def _shrink_space(problem: Problem) -> Problem:
    """Take away choices, then devices, until few enough plans are left."""
    layers = problem.job.granularity == "layer"
    ways = len(runtimes(problem))
    most = MAX_LAYER_PLANS if layers or ways > 1 else MAX_PLANS
    while ways * count_plans(problem) > most:
        job = problem.job
        if layers and problem.cluster.num_devices > 2:
            problem = _with_devices(problem, problem.cluster.num_devices - 1)
        elif layers and len(problem.graph.layers) > 4:
            problem = _without_a_sink(problem)
        elif len(job.zero) > 2:
            job = replace(job, zero=job.zero[::2])
        elif len(job.recompute) > 2:
            job = replace(job, recompute=job.recompute[::2])
        elif problem.cluster.num_devices > 4:
            problem = _with_devices(problem, problem.cluster.num_devices - 1)
        elif len(job.micro_batches) > 1:
            job = replace(job, micro_batches=job.micro_batches[1:])
        elif len(job.zero) > 1:
            job = replace(job, zero=job.zero[1:])
        elif len(job.recompute) > 1:
            # kinds may lack the last choice, never the first
            job = replace(job, recompute=job.recompute[:1])
        elif len(problem.graph.layers) > 4:
            problem = _without_a_sink(problem)
        elif problem.cluster.num_devices > 1:
            problem = _with_devices(problem, problem.cluster.num_devices - 1)
        else:
            problem = _without_a_sink(problem)
        problem = replace(problem, job=job)
    return problem


def _with_devices(problem: Problem, num_devices: int) -> Problem:
    return with_cluster(problem, num_devices=num_devices)


def _without_a_sink(problem: Problem) -> Problem:
    graph = problem.graph
    gone = graph.layers[graph.topological_order()[-1]].id
    return replace(
        problem,
        graph=replace(
            graph,
            layers=tuple(x for x in graph.layers if x.id != gone),
            edges=tuple(
                edge for edge in graph.edges if gone not in (edge.source, edge.target)
            ),
        ),
    )


# Plans and memory


def random_plan(draw: Draw, problem: Problem) -> Plan | None:
    """Draw a plan that obeys all counting rules, memory not asked.

    Cuts a random topological order into stages; gives each stage a random
    strategy. ``None`` if the drawn pieces do not go together.
    """
    model = CostModel(problem)
    choices = batch_splits(problem)
    if not choices:
        return None
    case = pick(draw, choices)
    allowed = [
        s for s in strategies(problem, case.micro_batch) if s.devices <= case.devices
    ]
    if not allowed:
        return None
    order = _draw_order(draw, problem)
    num_layers = len(order)
    shared = pick(draw, allowed) if model.rules.one_strategy else None
    stages: list[Stage] = []
    start, devices_left = 0, case.devices
    while start < num_layers:
        end = draw(st.integers(start + 1, num_layers))
        fitting = [
            s
            for s in ((shared,) if shared else allowed)
            if s.devices <= devices_left
            and all(
                model.available(layer, s, case.micro_batch) is None
                for layer in order[start:end]
            )
        ]
        if not fitting:
            return None
        strategy = pick(draw, fitting)
        chosen = [strategy] * (end - start)
        if problem.job.granularity == "layer":
            chosen = [
                pick(
                    draw,
                    [
                        s
                        for s in allowed
                        if s.devices == strategy.devices
                        and model.available(layer, s, case.micro_batch) is None
                    ],
                )
                for layer in order[start:end]
            ]
        alike = len(set(chosen)) == 1
        stages.append(
            Stage(
                layers=tuple(problem.graph.layers[i].id for i in order[start:end]),
                devices=strategy.devices,
                strategy=chosen[0] if alike else None,
                strategies=None if alike else tuple(chosen),
            )
        )
        devices_left -= strategy.devices
        start = end
    counts = problem.job.pipeline_parallel
    if counts is not None and len(stages) not in counts:
        return None
    return Plan(
        replicas=case.replicas, micro_batch=case.micro_batch, stages=tuple(stages)
    )


def _draw_order(draw: Draw, problem: Problem) -> list[int]:
    """Draw a topological order."""
    edges = problem.graph.index_edges()
    left = set(range(len(problem.graph.layers)))
    order: list[int] = []
    while left:
        ready = sorted(
            node
            for node in left
            if not any(t == node and s in left for s, t, _ in edges)
        )
        node = pick(draw, ready)
        order.append(node)
        left.remove(node)
    return order


def _with_memory(draw: Draw, problem: Problem) -> Problem:
    """Give the devices room for some of the plans.

    A few plans are drawn; the capacity is plenty, the need of the smallest,
    that need less one byte, a third of it, or between smallest and largest.
    """
    needs = sorted(
        max(stage.memory_bytes for stage in score(problem, plan).stages)
        for plan in (random_plan(draw, problem) for _ in range(4))
        if plan is not None
    )
    if not needs:
        return problem
    low, high = needs[0], needs[-1]
    if problem.job.granularity == "layer" and draw(st.booleans()):
        high = _most_needed(problem)
        low = min(low, high)
        return _with_capacity(
            problem, pick(draw, (high - 1, (low + 3 * high) // 4, low - 1))
        )
    capacity = pick(
        draw,
        (
            PLENTY,
            PLENTY,
            low,
            low,
            (low + high) // 2,
            max(0, low - 1),
            max(0, low - 1),
            low // 3,
        ),
    )
    return _with_capacity(problem, capacity)


def _with_capacity(problem: Problem, capacity: int) -> Problem:
    return with_device(problem, memory_bytes=max(0, capacity))


def _most_needed(problem: Problem) -> int:
    """Return what the best plan would need if memory were plenty.

    With one strategy per stage, and any number of stages.
    """
    from nest.solvers.base import SolveOptions
    from nest.solvers.registry import get_solver

    coarse = with_job(problem, granularity="stage", pipeline_parallel=None)
    plan = get_solver("dp")().solve(coarse, SolveOptions()).plan
    if plan is None:
        return problem.cluster.device.memory_bytes
    return max(stage.memory_bytes for stage in score(coarse, plan).stages)


def with_predictions(draw: Draw, problem: Problem) -> Problem:
    """Call layers in front of the last one modules for multi-token prediction.

    Two or three of them where there are so many; they cost what other layers do.
    """
    graph = problem.graph
    order = graph.topological_order()
    count = min(draw(st.integers(2, 3)), len(order) - 1)
    first, second = (pick(draw, graph.kinds).costs for _ in range(2))
    kinds = (
        *graph.kinds,
        LayerKind(name="mtp", costs=first),
        LayerKind(name="mtp-next", costs=second),
    )
    layers = list(graph.layers)
    for number, position in enumerate(order[-1 - count : -1]):
        kind = "mtp-next" if number else "mtp"
        layers[position] = replace(layers[position], kind=kind)
    return replace(problem, graph=replace(graph, kinds=kinds, layers=tuple(layers)))


def with_long_frontier(draw: Draw, problem: Problem) -> Problem:
    """Mostly give a problem plenty of memory, and longer pipelines."""
    if draw(st.integers(0, 3)):
        problem = with_memory(problem, 2**16)
    times = pick(draw, (1, 1, 2, 5))
    return with_job(problem, global_batch=times * problem.job.global_batch)


@st.composite
def problems_with_plans(draw: Draw) -> tuple[Problem, Plan | None]:
    """Draw a problem and one of its plans, which may not fit memory."""
    problem = draw(problems())
    return problem, random_plan(draw, problem)
