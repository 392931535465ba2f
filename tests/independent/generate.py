"""Random problems and plans over the whole space of docs/cost-model.md.

All draws come from one ``random.Random``, or Hypothesis' own, which shrinks.
Sizes, rates and times are of one order: 1e9 bytes/s move one byte per ns.
Nothing here asks the product which plans exist.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

from msgspec.structs import replace

from nest.ir import (
    RECOMPUTE,
    Activations,
    Cluster,
    CollectiveCall,
    Device,
    DeviceRange,
    DeviceTimes,
    Edge,
    Graph,
    GraphTopology,
    GroupFraction,
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
    Strategy,
)
from nest.ir.graph import AXES, COLLECTIVES, Axis, CollectiveKind
from nest.ir.job import OVERLAP_NEEDS
from nest.ir.plan import OVERLAP
from tests.graphs import random_graph
from tests.independent.enumerator import plans
from tests.independent.rules import (
    IllegalPlan,
    activations_of,
    allowed_chunks,
    block_of,
    cost_of,
    leaves_order,
    num_blocks,
    schedule_names,
    sequence_choices,
    strategies_of,
)
from tests.independent.scorer import score

_SIZES = (0, 1, 3, 40, 97, 250, 1000)
_WEIGHTS = (0, 0, 1, 7, 64, 333, 1000)
_FRACTIONS = (0.0, 0.25, 0.3, 0.5, 0.9, 1.0)


def chance(random: Random, one_in: int) -> bool:
    return random.randrange(one_in) == 0


def some(random: Random, values: Sequence[Any]) -> tuple[Any, ...]:
    """Draw a subset with at least one value, in order."""
    chosen = [x for x in values if chance(random, 2)]
    return tuple(chosen) or (random.choice(values),)


def time_ns(random: Random, most: int) -> float:
    """Draw a time, often one that ends in a half or in many digits."""
    return random.randint(0, most) + random.choice((0.0, 0.0, 0.5, 0.3, 1 / 3))


# Graphs


def draw_graph(
    random: Random, num_layers: int, kinds: tuple[LayerKind, ...], preset: str
) -> Graph:
    """Draw a DAG: a chain, a chain with skips, or any."""
    pairs = list(itertools.combinations(range(num_layers), 2))
    chain = list(itertools.pairwise(range(num_layers)))
    shape = random.choice(("chain", "skips", "skips", "any"))
    if shape == "chain" or not pairs:
        chosen = set(chain)
    elif shape == "skips":
        chosen = set(chain) | set(random.sample(pairs, min(3, len(pairs))))
    else:
        chosen = {pair for pair in pairs if chance(random, 3)}
    names = [f"l{i}" for i in range(num_layers)]
    random.shuffle(names)

    def by_tp(*presets: str) -> dict[int, int]:
        if preset not in presets or chance(random, 2):
            return {}
        return {tp: random.choice(_SIZES) for tp in some(random, (1, 2, 4))}

    edges = tuple(
        Edge(
            source=names[source],
            target=names[target],
            bytes_per_sample=random.choice(_SIZES),
            bytes_per_sample_by_tp=by_tp("nest-artifact"),
            source_extra_bytes_by_tp=by_tp("piper"),
            target_extra_bytes_by_tp=by_tp("piper"),
        )
        for source, target in sorted(chosen)
    )
    # the order of the file need not be topological
    order = list(names)
    if chance(random, 2):
        random.shuffle(order)
    return Graph(
        kinds=kinds,
        layers=tuple(Layer(id=name, kind=random.choice(kinds).name) for name in order),
        edges=edges,
    )


def draw_calls(random: Random, tp: int, cp: int, ep: int) -> tuple[CollectiveCall, ...]:
    sizes = {"tp": tp, "cp": cp, "ep": ep, "dp": 2}
    axes = [axis for axis in AXES if sizes[axis] > 1]
    return tuple(
        CollectiveCall(
            kind=cast("CollectiveKind", random.choice(COLLECTIVES)),
            axis=cast("Axis", random.choice(axes)),
            phase=random.choice(("forward", "backward")),
            size_bytes=random.choice(_SIZES),
            count=random.choice((1, 1, 2, 3)),
        )
        for _ in range(random.choice((0, 1, 2, 3)))
    )


def draw_activations(random: Random, job: Job, piper: bool) -> tuple[Activations, ...]:
    return tuple(
        Activations(
            recompute=choice,
            kept_bytes=random.choice(_SIZES),
            extra_ns=(time_ns(random, 60) if choice == "selective" else 0.0),
            transfer_ns=(time_ns(random, 300) if choice == "offload" else 0.0),
            working_bytes=0 if piper else random.choice((0, 0, 30, 81)),
            static_bytes=(static_bytes := random.choice((0, 0, 500))),
            # Of no draw of its own, which leaves other draws as they are.
            reruns=choice != "full" or piper or static_bytes == 0,
        )
        for choice in (RECOMPUTE[:2] if chance(random, 5) else job.recompute)
    )


def draw_kind(
    random: Random,
    name: str,
    keys: list[tuple[int, int, int, int]],
    job: Job,
    preset: str,
) -> LayerKind:
    piper = preset == "piper"
    costs: list[LayerCost] = []
    for tp, cp, ep, samples in keys:
        if len(costs) > 1 and chance(random, 8):
            continue
        backward_ns = time_ns(random, 600)
        part = random.choice((None, None, 0.0, 0.3, 1.0))
        costs.append(
            LayerCost(
                tp=tp,
                cp=cp,
                ep=ep,
                samples=samples,
                forward_ns=time_ns(random, 300),
                backward_ns=backward_ns,
                weight_backward_ns=None if part is None else part * backward_ns,
                weight_bytes=random.choice(_WEIGHTS),
                expert_weight_bytes=(0 if piper else random.choice(_WEIGHTS)),
                working_bytes=0 if piper else random.choice((0, 30, 81)),
                activations=draw_activations(random, job, piper),
                collectives=() if piper else draw_calls(random, tp, cp, ep),
            )
        )
    return LayerKind(name=name, costs=tuple(costs))


# Clusters


HALF_OF_TWO = (
    GroupFraction(members=2, fraction=0.5),
    GroupFraction(members=3, fraction=0.7),
)


def draw_network(
    random: Random, num_devices: int, preset: str
) -> Hierarchy | GraphTopology:
    if preset == "standard" and chance(random, 4):
        return random_graph(random.choice, num_devices)
    if preset == "piper":
        return Hierarchy(
            levels=(
                Level(
                    fan_out=num_devices,
                    bandwidth_bytes_per_s=random.choice((1e9, 3e8, 7.7e8)),
                ),
            )
        )
    fan_outs = [
        random.choice((1, 2, 2, 3, 4)) for _ in range(random.choice((0, 1, 1, 2)))
    ]
    fan_outs.append(-(-num_devices // math.prod(fan_outs)))
    fan_outs[-1] += random.choice((0, 1))
    return Hierarchy(
        levels=tuple(
            Level(
                fan_out=fan_out,
                bandwidth_bytes_per_s=random.choice((4e9, 1e9, 1e9, 3e8, 7.7e8, 1e8)),
                latency_ns=random.choice((0.0, 1.5, 20.0, 0.1, 100.0)),
                launch_ns=random.choice((0.0, 0.0, 3.3, 50.0)),
                peer_bandwidth_bytes_per_s=random.choice((None, None, 1e8, 3.3e8, 2e9)),
                group_fractions=random.choice(((), (), HALF_OF_TWO)),
            )
            for fan_out in fan_outs
        ),
        algorithms=random.choice(("best", "nccl")),
    )


# Jobs


def draw_job(random: Random, preset: str) -> Job:
    recompute = some(random, RECOMPUTE if preset == "standard" else RECOMPUTE[:3])
    micro_batches = random.choice(((1,), (2,), (4,), (6,), (1, 2), (2, 4)))
    batch = max(micro_batches) * random.choice((1, 2, 3, 4, 6, 8))
    optimizer = Optimizer(
        weight_bytes=random.choice((1, 2, 3, 4)),
        gradient_bytes=random.choice((0, 2, 4, 5)),
        state_bytes=random.choice((0, 3, 12)),
        buffer_bytes=random.choice((0, 0, 0.5, 4)),
        zero_2_bytes=random.choice((0, 0, 7)),
        zero_3_bytes=random.choice((0, 0, 11)),
    )
    if preset == "piper":
        return Job(
            global_batch=min(micro_batches) * random.choice((1, 2, 4, 6, 12)),
            micro_batches=micro_batches[:1],
            optimizer=optimizer,
            recompute=recompute,
            replicas=(1,),
            model_flops_per_sample=random.choice((None, 1e6)),
            sequence_length=random.choice((None, 5)),
        )
    uneven = chance(random, 4)
    if uneven:
        batch += random.choice((0, 1, 2))
    fields: dict[str, Any] = {
        "global_batch": batch,
        "micro_batches": micro_batches,
        "optimizer": optimizer,
        "schedule": random.choice(("1f1b", "1f1b", "gpipe")),
        "weight_backward_fraction": random.choice((0.5, 0.5, 0.37, 0.0)),
        "zero": some(random, (0, 1, 2, 3)),
        "recompute": recompute,
        "uneven_batches": uneven,
        "gradient_sync_overlap": random.choice((0.0, 0.0, 0.3, 1.0)),
        "model_flops_per_sample": random.choice((None, 1e6)),
        "sequence_length": random.choice((None, 5)),
    }
    for degrees in (
        "replicas",
        "data_parallel",
        "pipeline_parallel",
        "tensor_parallel",
        "context_parallel",
        "expert_parallel",
    ):
        if chance(random, 8):
            fields[degrees] = some(random, (1, 2, 3, 4))
    if preset == "standard":
        if not {"full", "offload"} & {*recompute} and chance(random, 2):
            fields["schedule"] = random.choice(
                ("zb-h1", "zb-v", "dualpipe-v", "dualpipe-v")
            )
        fields["sequence_parallel"] = chance(random, 2)
        fields["granularity"] = random.choice(("stage", "layer"))
        if chance(random, 2):
            fields["overlap"] = {
                name: random.choice(_FRACTIONS) for name in some(random, OVERLAP)
            }
            # Of a stream of its own, which leaves other draws as they are.
            own = Random(repr(fields["overlap"]))
            if chance(own, 2):
                fields["overlap_needs"] = {
                    name: some(own, OVERLAP_NEEDS) for name in fields["overlap"]
                }
        fields["distributed_optimizer"] = chance(random, 3)
        if fields["schedule"] == "1f1b" and chance(random, 2):
            fields["virtual_stages"] = some(random, (1, 2, 3))
    return Job(**fields)


def with_schedules(random: Random, job: Job) -> Job:
    """Return the job with several schedules, or any.

    Mostly without what makes most plans illegal for other reasons.
    """
    if not chance(random, 4):
        job = replace(job, replicas=None, pipeline_parallel=None, overlap_needs={})
    if chance(random, 2):
        virtual = some(random, (1, 1, 2, 2, 3))
        return replace(job, schedule="any", virtual_stages=tuple(sorted(set(virtual))))
    while True:
        names = some(random, ("1f1b", "gpipe", "zb-h1", "zb-v"))
        virtual = some(random, (1, 2)) if "1f1b" in names else (1,)
        try:
            return replace(
                job,
                schedule=tuple(random.sample(names, len(names))),
                virtual_stages=virtual,
            )
        except ValueError:
            continue  # what only split schedules do not recompute


def draw_keys(
    random: Random, job: Job, preset: str, num_devices: int
) -> list[tuple[int, int, int, int]]:
    """Draw the keys (tp, cp, ep, samples) that have costs."""
    if preset == "piper":
        return [(tp, 1, 1, job.micro_batches[0]) for tp in (1, 2, 4)]
    widths = [(1, 1, 1)]
    if chance(random, 2):
        widths += [(2, 1, 1), (1, 2, 1)]  # of as many devices
    others = [
        (tp, cp, ep)
        for tp in (1, 2, 3, 4)
        for cp in (1, 2, 3)
        for ep in (1, 2, 3, 4)
        if tp * cp <= num_devices
    ]
    widths += random.sample(others, min(len(others), random.choice((2, 4))))
    return [
        (tp, cp, ep, samples)
        for tp, cp, ep in sorted(set(widths))
        for samples in range(1, max(job.micro_batches) + 1)
        if any(batch % samples == 0 for batch in job.micro_batches)
    ]


# Problems


def draw_problem(
    random: Random,
    preset: str,
    *,
    most_devices: int = 24,
    most_layers: int = 8,
    sequences: bool = False,
    orders: bool = False,
    folds: bool = False,
) -> Problem:
    """Draw a problem; its plans choose ``sequences`` to be split or not.

    And the ``orders`` of their passes, and whether tensor ranks hold whole experts.
    """
    job = draw_job(random, preset)
    if orders:
        job = with_schedules(random, job)
    num_devices = random.choice(
        [n for n in (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24) if n <= most_devices]
    )
    num_layers = random.randint(1, most_layers)
    in_v = not {"zb-v", "dualpipe-v"}.isdisjoint((job.schedule, *job.schedule))
    if max(job.virtual_stages) > 1 or in_v:
        num_layers = max(num_layers, min(6, most_layers))
    keys = draw_keys(random, job, preset, num_devices)
    kinds = tuple(
        draw_kind(random, f"k{i}", keys, job, preset)
        for i in range(random.choice((1, 2, 3)))
    )
    problem = Problem(
        graph=draw_graph(random, num_layers, kinds, preset),
        cluster=Cluster(
            num_devices=num_devices,
            device=Device(
                memory_bytes=2**40,
                hbm_bytes_per_s=random.choice((None, 2e9, 7e9)),
                peak_flops=random.choice(({}, {"bf16": 1e12})),
                reserve_bytes=random.choice((0, 0, 1234)),
            ),
            topology=draw_network(random, num_devices, preset),
        ),
        job=job,
        preset=preset,
        quantum_ps=random.choice((1000, 1000, 1, 250, 7, 3000)),
    )
    if preset == "standard" and num_devices > 1 and chance(random, 4):
        problem = mixed(random, problem)
    if sequences:
        problem = opened(random, problem)
    if folds:
        problem = folded(random, problem)
    if chance(random, 3):
        problem = hosted(random, problem)
    if chance(random, 4):
        factor = 750_019 if num_layers > 2 else 3_000_017
        # The longest step that a graph may have is bounded less tightly.
        graph = isinstance(problem.cluster.topology, GraphTopology)
        return enlarged(problem, factor // 10 if graph else factor)
    return problem


def mixed(random: Random, problem: Problem) -> Problem:
    """Return the problem on devices of several types."""
    cluster = problem.cluster
    types = [
        replace(
            cluster.device,
            name=name,
            hbm_bytes_per_s=random.choice((None, 2e9, 3e9)),
            peak_flops=random.choice(({}, {"bf16": 2e12}, {"bf16": 3e12})),
            reserve_bytes=random.choice((0, 1234, 99)),
            memory_bytes=2**40 + random.choice((0, 1)),
        )
        for name in ("x", "y")
    ]
    others = []
    first = random.randrange(cluster.num_devices)
    while first < cluster.num_devices and len(others) < 3:
        count = random.randint(1, cluster.num_devices - first)
        device = random.choice(types)
        others.append(DeviceRange(first=first, count=count, device=device))
        first += count + random.choice((0, 0, 1))

    def timed(cost: LayerCost) -> LayerCost:
        by_device = tuple(
            DeviceTimes(
                device=name,
                forward_ns=time_ns(random, 300),
                backward_ns=(backward_ns := time_ns(random, 300)),
                extra_ns=time_ns(random, 60),
                weight_backward_ns=random.choice((None, backward_ns / 3)),
            )
            for name in ("device", "x", "y")
            if chance(random, 2)
        )
        return replace(cost, by_device=by_device)

    cluster = replace(cluster, others=tuple(others))
    return replace(problem, graph=with_costs(problem.graph, timed), cluster=cluster)


def hosted(random: Random, problem: Problem) -> Problem:
    """Return the problem with times of the host, below others and above."""

    def host_ns(other_ns: float) -> float:
        return random.choice((0.0, 0.5 * other_ns, other_ns, time_ns(random, 900)))

    def issued(cost: LayerCost) -> LayerCost:
        return replace(
            cost,
            forward_host_ns=host_ns(cost.forward_ns),
            backward_host_ns=host_ns(cost.backward_ns),
            by_device=tuple(
                replace(
                    times,
                    forward_host_ns=host_ns(times.forward_ns),
                    backward_host_ns=host_ns(times.backward_ns),
                    extra_host_ns=host_ns(times.extra_ns),
                )
                for times in cost.by_device
            ),
            activations=tuple(
                replace(x, extra_host_ns=host_ns(x.extra_ns))
                if x.recompute == "selective"
                else x
                for x in cost.activations
            ),
        )

    return replace(problem, graph=with_costs(problem.graph, issued))


def opened(random: Random, problem: Problem) -> Problem:
    """Return the problem with sequence parallelism left to its plans.

    Most entries with ``tp > 1`` have one with it beside them.
    """
    kinds = []
    for kind in problem.graph.kinds:
        costs = list(kind.costs)
        for cost in kind.costs:
            if cost.tp == 1 or chance(random, 8):
                continue
            if chance(random, 8):
                costs.remove(cost)
            (other,) = draw_kind(
                random,
                kind.name,
                [(cost.tp, cost.cp, cost.ep, cost.samples)],
                problem.job,
                problem.preset,
            ).costs
            # often as fast, so that where activations go decides
            if chance(random, 2):
                other = replace(
                    cost,
                    activations=tuple(
                        replace(x, kept_bytes=x.kept_bytes // cost.tp)
                        for x in cost.activations
                    ),
                )
            costs.append(replace(other, sequence_parallel=True))
        kinds.append(replace(kind, costs=tuple(costs)))
    values = random.choice(((False, True),) * 4 + ((True,), (False,)))
    job = replace(problem.job, sequence_parallel=values)
    if chance(random, 4):
        shared = some(random, ("sequence_parallel", "tp", "dp", "zero"))
        job = replace(job, uniform=shared)
    graph = replace(problem.graph, kinds=tuple(kinds))
    return replace(problem, graph=graph, job=job)


def folded(random: Random, problem: Problem) -> Problem:
    """Return the problem with whole experts on tensor ranks as a choice of plans.

    Most entries with ``tp > 1`` have one with it beside them.
    """
    kinds = []
    for kind in problem.graph.kinds:
        costs = {cost.key: cost for cost in kind.costs}
        for cost in kind.costs:
            if cost.tp == 1 or chance(random, 8):
                continue
            if chance(random, 4):
                del costs[cost.key]
            ep = random.choice((1, 2, 3, cost.ep, cost.tp, cost.tp * cost.ep))
            (other,) = draw_kind(
                random,
                kind.name,
                [(cost.tp, cost.cp, ep, cost.samples)],
                problem.job,
                problem.preset,
            ).costs
            split = cost.sequence_parallel
            other = replace(other, etp=1, sequence_parallel=split)
            costs[other.key] = other
        kinds.append(replace(kind, costs=tuple(costs.values())))
    job = problem.job
    if chance(random, 6):
        allowed = random.choice(((1,), (1, 2), (2, 3), (2,)))
        job = replace(job, expert_tensor_parallel=allowed)
    if chance(random, 6):
        job = replace(job, uniform=some(random, ("ep", "tp", "dp")))
    graph = replace(problem.graph, kinds=tuple(kinds))
    return replace(problem, graph=graph, job=job)


def enlarged(problem: Problem, factor: int) -> Problem:
    """Return a problem with times and sizes so large that the last bit of a
    double is seen in quanta of 1 ps."""

    def larger(cost: LayerCost) -> LayerCost:
        return replace(
            cost,
            forward_ns=cost.forward_ns * factor,
            backward_ns=cost.backward_ns * factor,
            weight_backward_ns=cost.weight_backward_ns
            and cost.weight_backward_ns * factor,
            forward_host_ns=cost.forward_host_ns * factor,
            backward_host_ns=cost.backward_host_ns * factor,
            weight_bytes=cost.weight_bytes * factor,
            expert_weight_bytes=cost.expert_weight_bytes * factor,
            collectives=tuple(
                replace(call, size_bytes=call.size_bytes * factor)
                for call in cost.collectives
            ),
        )

    edges = tuple(
        replace(edge, bytes_per_sample=edge.bytes_per_sample * factor)
        for edge in problem.graph.edges
    )
    graph = replace(with_costs(problem.graph, larger), edges=edges)
    return replace(problem, graph=graph, quantum_ps=1)


def costs_of(problem: Problem) -> list[LayerCost]:
    """Return the entries of all tables."""
    return [cost for kind in problem.graph.kinds for cost in kind.costs]


def with_costs(graph: Graph, change: Callable[[LayerCost], LayerCost]) -> Graph:
    """Return a graph with other costs, one by one."""
    kinds = tuple(
        replace(kind, costs=tuple(map(change, kind.costs))) for kind in graph.kinds
    )
    return replace(graph, kinds=kinds)


def with_memory(
    problem: Problem, memory_bytes: int, random: Random | None = None
) -> Problem:
    """Return the problem on devices of so much memory.

    Some types have half of it or twice as much if random numbers are given.
    """

    halves: dict[str, int] = {}

    def of(device: Device) -> Device:
        if random is not None and device.name not in halves:
            halves[device.name] = random.choice((1, 2, 2, 4))
        size_bytes = halves.get(device.name, 2) * memory_bytes // 2
        most = max(device.reserve_bytes, size_bytes)
        return replace(device, memory_bytes=most)

    cluster = replace(
        problem.cluster,
        device=of(problem.cluster.device),
        others=tuple(
            replace(part, device=of(part.device)) for part in problem.cluster.others
        ),
    )
    return replace(problem, cluster=cluster)


# Plans


def draw_order(random: Random, graph: Graph) -> list[str]:
    """Draw a topological order."""
    left = [str(x.id) for x in graph.layers]
    edges = [(str(e.source), str(e.target)) for e in graph.edges]
    order = []
    while left:
        name = random.choice(
            [
                name
                for name in left
                if not any(t == name and s in left for s, t in edges)
            ]
        )
        left.remove(name)
        order.append(name)
    return order


def draw_strategies(
    random: Random, problem: Problem, micro_batch: int, dps: list[int]
) -> list[Strategy]:
    """List strategies with a cost for some kind, as far as allowed."""
    job = problem.job
    found = []
    keys = sorted(
        {
            (
                *(cost.tp, cost.cp, cost.ep, cost.samples),
                *(cost.sequence_parallel, cost.etp),
            )
            for kind in problem.graph.kinds
            for cost in kind.costs
        }
    )
    for tp, cp, ep, samples, sequence_parallel, etp in keys:
        for dp in dps:
            if problem.preset != "piper" and dp * samples != micro_batch:
                continue
            ranks = dp * cp * (tp if etp else 1)
            if ranks % ep or dp * tp * cp > problem.cluster.num_devices:
                continue
            if any(
                allowed is not None and degree not in allowed
                for degree, allowed in (
                    (dp, job.data_parallel),
                    (tp, job.tensor_parallel),
                    (cp, job.context_parallel),
                    (ep, job.expert_parallel),
                    (etp if etp else tp, job.expert_tensor_parallel),
                    (sequence_parallel, sequence_choices(problem, tp)),
                )
            ):
                continue
            found += [
                Strategy(
                    dp=dp,
                    tp=tp,
                    cp=cp,
                    ep=ep,
                    etp=etp,
                    sequence_parallel=sequence_parallel,
                    zero=zero,
                    recompute=recompute,
                )
                for zero in job.zero
                for recompute in job.recompute
            ]
    return found


def draw_schedule(random: Random, problem: Problem) -> tuple[str | None, int, bool]:
    """Draw a schedule, the chunks per block, and whether these lie in a V.

    No name is an order of its own.
    """
    job = problem.job
    virtual = random.choice(job.virtual_stages)
    name: str | None = str(job.schedule)
    if leaves_order(problem):
        name = random.choice(schedule_names(problem))
        if job.schedule == "any" and not chance(random, 4):
            name = None
        virtual = random.choice(allowed_chunks(problem, name) or (1,))
    in_v = name in ("zb-v", "dualpipe-v")
    if name is None and virtual == 2:
        in_v = chance(random, 2)
    elif in_v:
        virtual = 2
    return name, virtual, in_v


def draw_stage(
    random: Random,
    problem: Problem,
    piece: list[str],
    allowed: list[Strategy],
    first: Strategy,
    micro_batch: int,
) -> Stage:
    """Draw a stage of some layers whose first one has a strategy."""
    devices = first.dp * first.tp * first.cp
    chosen = [first] * len(piece)
    if problem.preset != "nest-artifact" and chance(random, 2):
        chosen = [
            random.choice(
                [
                    x
                    for x in allowed
                    if x.dp * x.tp * x.cp == devices
                    and _have_costs(problem, [name], x, micro_batch)
                    and (
                        problem.preset != "piper"
                        or (x.dp, x.tp) == (first.dp, first.tp)
                    )
                ]
            )
            for name in piece
        ]
    names = list(piece)
    if chance(random, 2):
        pairs = list(zip(names, chosen, strict=True))
        random.shuffle(pairs)
        names = [name for name, _ in pairs]
        chosen = [strategy for _, strategy in pairs]
    if len(set(chosen)) == 1:
        return Stage(layers=tuple(names), devices=devices, strategy=first)
    return Stage(layers=tuple(names), devices=devices, strategies=tuple(chosen))


def draw_plan(random: Random, problem: Problem) -> Plan | None:
    """Draw a plan, mostly a legal one; ``None`` if the draws do not fit."""
    job = problem.job
    num_devices = problem.cluster.num_devices
    micro_batch = random.choice(job.micro_batches)
    replicas = 1
    if problem.preset != "piper":
        counts = [
            r
            for r in range(1, num_devices + 1)
            if job.uneven_batches or job.global_batch % (r * micro_batch) == 0
        ] or [1]
        # the smaller of two, to leave devices for several stages
        replicas = min(random.choice(counts), random.choice(counts))
    count = -(-job.global_batch // (replicas * micro_batch))
    pitch = num_devices // replicas
    order = draw_order(random, problem.graph)
    name, virtual, in_v = draw_schedule(random, problem)
    if virtual > 1:
        sizes = [
            s
            for s in range(2, len(order) // virtual + 1)
            if (in_v or name is None or count % s == 0) and s <= pitch
        ]
        if not sizes:
            return None
        num_blocks = random.choice(sizes)
    else:
        num_blocks = random.randint(1, min(len(order), pitch))
    num_parts = num_blocks * virtual
    cuts = sorted(random.sample(range(1, len(order)), num_parts - 1))
    pieces = [
        order[start:end] for start, end in itertools.pairwise([0, *cuts, len(order)])
    ]
    dps = list(range(1, micro_batch + 1))
    if problem.preset == "piper":
        dps = [dp for dp in range(1, num_devices + 1) if count % dp == 0]
    allowed = draw_strategies(random, problem, micro_batch, dps)
    if job.distributed_optimizer and chance(random, 2):
        distributed = True
        allowed = [x for x in allowed if x.zero < 2]
    else:
        distributed = False
    alike = problem.preset == "nest-artifact" or chance(random, 4)
    stages: list[Stage] = []
    left = pitch
    shared: Strategy | None = None
    for number, piece in enumerate(pieces):
        block = number % num_blocks
        if in_v:
            block = min(number, 2 * num_blocks - 1 - number)
        if number < num_blocks:
            room = left - (num_blocks - number - 1)
            fitting = [x for x in allowed if x.dp * x.tp * x.cp <= room]
            # wide ones are rare; ask for one every other time
            widest = max((x.dp * x.tp * x.cp for x in fitting), default=0)
            if chance(random, 2):
                fitting = [x for x in fitting if x.dp * x.tp * x.cp * 2 > widest]
        else:
            size = stages[block].devices
            fitting = [x for x in allowed if x.dp * x.tp * x.cp == size]
        if alike and shared is not None:
            fitting = [x for x in fitting if x == shared]
        fitting = [x for x in fitting if _have_costs(problem, piece, x, micro_batch)]
        if not fitting:
            return None
        first = random.choice(fitting)
        shared = shared or first
        stages.append(draw_stage(random, problem, piece, allowed, first, micro_batch))
        if number < num_blocks:
            left -= stages[-1].devices
    plan = Plan(
        replicas=replicas,
        micro_batch=micro_batch,
        stages=tuple(stages),
        virtual_stages=virtual,
        placement="v" if in_v else "loop",
        overlap=some(random, tuple(job.overlap)) if job.overlap else (),
        distributed_optimizer=distributed,
        order=name if leaves_order(problem) else None,
    )
    if name is None:
        plan = replace(plan, order=draw_passes(random, plan, count))
    return plan


def draw_passes(random: Random, plan: Plan, count: int) -> tuple[tuple[str, ...], ...]:
    """Draw an order that can run: again and again any pass that is next.

    Some micro-batches overtake others; chunks that recompute all run whole
    backward passes, mostly.
    """
    num_chunks, blocks = len(plan.stages), num_blocks(plan)
    whole = [
        chance(random, 3)
        or any(
            x.recompute in ("full", "offload") for x in strategies_of(stage).values()
        )
        for stage in plan.stages
    ]
    lists: list[list[str]] = [[] for _ in range(blocks)]
    ready = [(0, "F", number) for number in range(count)]
    in_turn = chance(random, 2)
    while ready:
        one = random.choice(ready)
        if in_turn:
            one = min(x for x in ready if x[:2] == one[:2])
        ready.remove(one)
        chunk, kind, number = one
        block = block_of(plan, chunk)
        lists[block].append(f"{chunk}{kind}{number}")
        back = "B" if whole[chunk] else random.choice("IIIB")
        if kind == "F" and chunk + 1 < num_chunks:
            ready.append((chunk + 1, "F", number))
        elif kind == "F":
            ready.append((chunk, back, number))
        elif kind in "BI" and chunk > 0:
            back = "B" if whole[chunk - 1] else random.choice("IIIB")
            ready.append((chunk - 1, back, number))
        if kind == "I":
            ready.append((chunk, "W", number))
    return tuple(map(tuple, lists))


def spoil_passes(random: Random, plan: Plan) -> Plan:
    """Change one thing of an order, which may or may not break a rule."""
    order = plan.order
    if not isinstance(order, tuple):
        other = random.choice(
            (None, "1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe-v", "any", "")
        )
        return replace(plan, order=other)
    lists = [list(texts) for texts in order]
    own = random.choice(lists)
    other = random.choice(lists)
    at = random.randrange(len(own))
    what = random.randrange(9)
    if what == 0:
        own.pop(at)
    elif what == 1:
        other.insert(random.randrange(len(other) + 1), own[at])
    elif what == 2:
        other.insert(random.randrange(len(other) + 1), own.pop(at))
    elif what in (3, 4):
        to = random.randrange(len(own))
        own[at], own[to] = own[to], own[at]
    elif what == 5:
        text = own[at]
        new = (
            *("B" + text[1:], "-1F0", "0F", "F0", "0X0", "", f"{text} "),
            *("99F0", "0F99", "0F1234567890", "0\u0663F0", f"0{text}"),
            *(text.replace(x, y) for x in "FBIW" for y in "FBIW"),
        )
        own[at] = random.choice(new)
    elif what == 6:
        lists.append(list(own))
    elif what == 7 and len(lists) > 1:
        lists.remove(own)
    else:
        return replace(plan, order=random.choice((None, "1f1b", "zb-v")))
    return replace(plan, order=tuple(map(tuple, lists)))


def _have_costs(
    problem: Problem, names: list[str], strategy: Strategy, micro_batch: int
) -> bool:
    """Return whether all layers have a cost for a strategy."""
    samples = micro_batch
    if problem.preset != "piper":
        samples //= strategy.dp
    costs = [cost_of(problem, name, strategy, samples) for name in names]
    return all(
        cost is not None and activations_of(cost, strategy.recompute) is not None
        for cost in costs
    )


# Plans that may be illegal


def spoil(random: Random, problem: Problem, plan: Plan) -> Plan:  # noqa: C901
    """Change one thing, which may or may not break a rule."""
    stages = list(plan.stages)
    number = random.randrange(len(stages))
    stage = stages[number]
    what = random.choice(
        (
            "replicas",
            "micro_batch",
            "virtual_stages",
            "placement",
            "overlap",
            "distributed_optimizer",
            "swap",
            "drop",
            "repeat",
            "stranger",
            "merge",
            "degrees",
            "zero",
            "recompute",
            "ep",
            *(
                ["sequence_parallel"] * 3
                if isinstance(problem.job.sequence_parallel, tuple)
                else []
            ),
            *(["etp"] * 3 if any(x.etp for x in costs_of(problem)) else []),
        )
    )
    try:
        if what in ("replicas", "micro_batch", "virtual_stages"):
            number = random.choice((1, 2, 3, 4, 5, 8, 30))
            return replace(plan, **{what: number})
        if what == "placement":
            other = "loop" if plan.placement == "v" else "v"
            return replace(plan, placement=other)
        if what == "overlap":
            return replace(plan, overlap=some(random, OVERLAP))
        if what == "distributed_optimizer":
            return replace(plan, distributed_optimizer=not plan.distributed_optimizer)
        if what == "swap":
            other = random.randrange(len(stages))
            stages[number], stages[other] = stages[other], stage
        elif what == "drop":
            stages.pop(number)
        elif what == "repeat":
            stages.insert(number, stage)
        elif what == "stranger":
            layers = (*stage.layers[:-1], random.choice(("?", "l0", "l1")))
            stages[number] = replace(stage, layers=layers)
        elif what == "merge" and number:
            before = stages.pop(number - 1)
            stages[number - 1] = replace(stage, layers=(*before.layers, *stage.layers))
        elif stage.strategy is not None:
            old = stage.strategy
            if what == "degrees":
                dp, tp, cp = random.sample((old.dp, old.tp, old.cp), 3)
                new = replace(old, dp=dp, tp=tp, cp=cp)
            elif what == "zero":
                new = replace(old, zero=random.randrange(4))
            elif what == "recompute":
                new = replace(old, recompute=random.choice(RECOMPUTE))
            elif what == "etp":
                new = replace(old, etp=1 - old.etp)
            elif what == "sequence_parallel":
                other_value = not old.sequence_parallel
                new = replace(old, sequence_parallel=other_value)
            else:
                new = replace(old, ep=random.choice((1, 2, 3, 4)))
            stages[number] = replace(stage, strategy=new)
        if not stages:
            return plan
        return replace(plan, stages=tuple(stages))
    except ValueError:
        return plan  # the records themselves refuse it


# Tiny problems, pairs


def draw_tiny(
    random: Random,
    preset: str,
    most_plans: int,
    *,
    sequences: bool = False,
    orders: bool = False,
    folds: bool = False,
) -> Problem:
    """Draw a problem with some plans, but not too many to list.

    Its memory is plenty, or what one of its plans needs, or a byte less.
    """
    while True:
        problem = draw_problem(
            *(random, preset),
            most_devices=4,
            most_layers=4,
            sequences=sequences,
            orders=orders,
            folds=folds,
        )
        job = problem.job
        few = replace(
            job,
            zero=job.zero[-2:],
            recompute=job.recompute[:2],
            overlap=dict(list(job.overlap.items())[:1]),
            virtual_stages=job.virtual_stages[-2:],
        )
        problem = replace(problem, job=few)
        listed = list(itertools.islice(plans(problem), most_plans + 1))
        if 1 < len(listed) <= most_plans:
            break
    return with_some_memory(random, problem, listed)


def with_some_memory(
    random: Random, problem: Problem, listed: Sequence[Plan]
) -> Problem:
    """Return the problem with plenty of memory, or what some plan needs.

    Or a byte less.
    """
    if chance(random, 3):
        return problem
    record = score(problem, random.choice(listed))
    need = max(block.memory_bytes for block in record.blocks)
    return with_memory(problem, need - random.choice((0, 1)), random)


def draw_spread(random: Random, most_plans: int = 300) -> Problem:
    """Draw a problem whose plans may take 10^6 times as long as its best.

    Some types of devices state their own times, all others take long. The job
    may allow overlap and the distributed optimizer; times are in whole quanta.
    """
    while True:
        problem = draw_problem(random, "standard", most_devices=5, most_layers=4)
        job = problem.job
        if job.schedule not in ("1f1b", "gpipe"):
            continue
        names = some(random, OVERLAP)[: random.choice((0, 1, 2))]
        job = replace(
            job,
            zero=job.zero[-2:],
            recompute=job.recompute[:2],
            virtual_stages=(1,),
            overlap={name: random.choice(_FRACTIONS) for name in names},
            distributed_optimizer=chance(random, 3),
        )
        problem = replace(problem, job=job)
        if not problem.cluster.others:
            problem = mixed(random, problem)
        if problem.quantum_ps != 1:
            problem = enlarged(problem, random.choice((1000, 75_019)))
        listed = list(itertools.islice(plans(problem), most_plans + 1))
        if 1 < len(listed) <= most_plans:
            return with_some_memory(random, problem, listed)


def draw_pair(
    random: Random,
    preset: str | None = None,
    *,
    sequences: bool = False,
    orders: bool = False,
    folds: bool = False,
) -> tuple[Problem, Plan]:
    """Draw a problem and a plan; about one in eight plans is illegal.

    The plan fits the memory exactly, lacks one byte, or has plenty.
    """
    if preset is None:
        preset = random.choice(
            ("standard",) * 6 + ("nest-artifact", "nest-artifact", "piper")
        )
    plan = None
    while plan is None:
        problem = draw_problem(
            *(random, preset), sequences=sequences, orders=orders, folds=folds
        )
        for _ in range(4):
            plan = draw_plan(random, problem)
            if plan is not None:
                break
    if chance(random, 6):
        plan = spoil(random, problem, plan)
    if orders and chance(random, 4):
        plan = spoil_passes(random, plan)
    capacity = random.choice(("plenty", "plenty", "exact", "short"))
    if capacity != "plenty":
        try:
            blocks = score(problem, plan).blocks
        except IllegalPlan:
            return problem, plan
        need = max(block.memory_bytes for block in blocks)
        problem = with_memory(problem, need - (capacity == "short"))
    return problem, plan


def draw_collective(random: Random) -> tuple[Problem, Plan]:
    """Draw one layer with one collective, so large that its last bit counts.

    A quantum of 1 ps is then near the last bit of a double, which depends on
    the order in which products and sums are evaluated.
    """
    tp, cp = random.choice(((2, 1), (3, 2), (4, 2), (8, 1), (2, 3), (12, 1)))
    network = draw_network(random, random.choice((12, 16)), "standard")
    cost = LayerCost(
        tp=tp,
        cp=cp,
        forward_ns=time_ns(random, 10**9),
        backward_ns=0.0,
        activations=(Activations(kept_bytes=0),),
        collectives=(
            CollectiveCall(
                kind=cast("CollectiveKind", random.choice(COLLECTIVES)),
                axis="cp" if cp > 1 and chance(random, 2) else "tp",
                phase="forward",
                size_bytes=random.randint(1, random.choice((10**3, 10**11))),
            ),
        ),
    )
    problem = Problem(
        graph=Graph(
            kinds=(LayerKind(name="k", costs=(cost,)),),
            layers=(Layer(id="l", kind="k"),),
        ),
        cluster=Cluster(
            num_devices=12, device=Device(memory_bytes=0), topology=network
        ),
        job=Job(global_batch=1),
        quantum_ps=1,
    )
    stage = Stage(layers=("l",), devices=tp * cp, strategy=Strategy(tp=tp, cp=cp))
    return problem, Plan(replicas=1, micro_batch=1, stages=(stage,))
