"""The preset ``nest-artifact``, written from docs/cost-model.md alone."""

from __future__ import annotations

import math

from nest.ir import Plan, Problem, Strategy
from tests.independent import network
from tests.independent.record import BlockRecord, Record, StageRecord
from tests.independent.rules import activations_of, batches, strategies_of
from tests.independent.standard import (
    LayerOfStage,
    record,
    rounded,
    run_order,
    whole_memory,
)


def tensor_bytes(
    problem: Problem, plan: Plan, strategy: Strategy
) -> dict[tuple[str, str], int]:
    """Return the size of every edge for a micro-batch of a rank."""
    samples = plan.micro_batch // strategy.dp
    return {
        (str(edge.source), str(edge.target)): edge.bytes_per_sample_by_tp.get(
            strategy.tp, edge.bytes_per_sample
        )
        * samples
        for edge in problem.graph.edges
    }


def slowest_edge(problem: Problem, sizes: list[int], devices: tuple[int, int]) -> int:
    """Return the slowest message between two devices, 0 if there is none."""
    topology = problem.cluster.topology
    level = network.lowest_level(topology, devices)
    at = topology.levels[level]
    bandwidth = network.through(topology, level, 2)
    times = 1 if level == 0 else 2
    return max(
        (
            rounded(
                problem,
                times * ((at.launch_ns + at.latency_ns) + size / bandwidth * 1e9),
            )
            for size in sizes
        ),
        default=0,
    )


def sync_of_artifact(problem: Problem, plan: Plan) -> tuple[float, float]:
    """Return ``e``, ns per byte, and ``o``, ns."""
    levels = problem.cluster.topology.levels
    replicas = plan.replicas
    pitch = sum(stage.devices for stage in plan.stages)
    per_byte = [1e9 / level.bandwidth_bytes_per_s for level in levels]
    halvings = network.floor_log2(replicas)
    e = math.fsum(per_byte[0] / 2**i for i in range(halvings))
    o = halvings * levels[0].latency_ns
    e_before = o_before = 0.0
    top = network.lowest_level(problem.cluster.topology, [0, (replicas - 1) * pitch])
    for level in range(1, top + 1):
        e = e + (2 * per_byte[level] + e_before)
        o = o + (2 * levels[level].latency_ns + o_before)
        e_before = e_before + e
        o_before = o_before + o
    return e, o


def score(problem: Problem, plan: Plan) -> Record:
    count = batches(problem, plan)
    num_stages = len(plan.stages)
    strategy = next(iter(strategies_of(plan.stages[0]).values()))
    where = {
        str(layer): number
        for number, stage in enumerate(plan.stages)
        for layer in stage.layers
    }
    sizes = tensor_bytes(problem, plan, strategy)
    firsts = [
        sum(stage.devices for stage in plan.stages[number + 1 :])
        for number in range(num_stages)
    ]
    e, o = sync_of_artifact(problem, plan)
    stages = []
    blocks = []
    for number, stage in enumerate(plan.stages):
        layers = [
            LayerOfStage(problem, plan, name, strategy, [firsts[number]])
            for name in run_order(problem, map(str, stage.layers))
        ]
        entering = [
            size
            for (source, target), size in sizes.items()
            if where[target] == number != where[source]
        ]
        leaving = [
            size
            for (source, target), size in sizes.items()
            if where[source] == number != where[target]
        ]
        from_front = from_behind = 0
        if number > 0:
            from_front = slowest_edge(
                problem, entering, (firsts[number - 1], firsts[number])
            )
        if number < num_stages - 1:
            from_behind = slowest_edge(
                problem, leaving, (firsts[number], firsts[number + 1])
            )
        recomputed = 0
        if number < num_stages - 1:
            for layer in layers:
                entry = activations_of(layer.cost, "full")
                reruns = entry is None or entry.reruns
                if strategy.recompute == "full" and reruns:
                    recomputed += layer.one_pass("backward", None)[0]
                else:
                    recomputed += layer.recomputation()
        sync = rounded(problem, o) + sum(
            rounded(problem, e * sum(layer.weights)) for layer in layers
        )
        inflight = num_stages - number
        if problem.job.schedule == "gpipe":
            inflight = count
        kept = sum(layer.kept_bytes for layer in layers)
        if strategy.recompute == "full":
            kept_bytes = kept + (inflight - 1) * sum(entering)
        else:
            kept_bytes = inflight * kept
        forward = sum(layer.forward() for layer in layers) + from_front
        backward = sum(layer.backward() for layer in layers) + max(
            recomputed, from_behind
        )
        memory = whole_memory(problem, layers, kept_bytes)
        stages.append(
            StageRecord(
                forward=forward,
                backward=backward,
                receive_forward=from_front,
                receive_backward=from_behind,
                redistribution=0,
                sync=sync,
                inflight=inflight,
                memory=memory,
            )
        )
        blocks.append(
            BlockRecord(
                stages=(number + 1,),
                load=forward + backward,
                sync=sync,
                inflight=inflight,
                memory=memory,
            )
        )
    step = (count + num_stages - 1) * max(x.load for x in blocks)
    step += stages[0].sync
    return record(problem, plan, step, stages, blocks)
