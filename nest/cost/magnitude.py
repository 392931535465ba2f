"""How long a step can be at most: keeps every sum within 64 bits.

A crude upper bound, from the cost tables and the slowest link alone; it only
has to be safe. Engines that work on 64-bit integers rely on it.
"""

from __future__ import annotations

import math

from nest.cost.presets import get_preset
from nest.errors import InvalidProblemError
from nest.ir.graph import LayerCost
from nest.ir.problem import Problem
from nest.topology.alphabeta import NS_PER_S
from nest.units import MAX_TOTAL


def check_magnitude(problem: Problem) -> None:
    """Refuse a problem some plan of which may overflow 64-bit integers.

    Raises
    ------
    InvalidProblemError
        If a step could take more than 2**61 quanta.
    """
    try:
        longest = longest_step_ns(problem) * 1000 / problem.quantum_ps
    except OverflowError:
        longest = math.inf
    if longest > MAX_TOTAL:
        raise InvalidProblemError(
            f"$.quantum_ps: expected a quantum that keeps every step time "
            f"below 2**61 quanta, got {problem.quantum_ps} ps with steps of "
            f"up to {longest:.3g} quanta; correct the costs or raise "
            f"quantum_ps"
        )


def longest_step_ns(problem: Problem) -> float:
    """Return an upper bound on the step time of every plan, in ns.

    That is the longest stage where the step time is the largest load.

    ``T <= (M + V) (Σ τ + receives) + Σ Y`` with every term at its largest:
    ``V`` layers, all of them in every stage's place, each message across
    the slowest link and as many times as there are devices. The chunks of
    an interleaved plan receive apart, ``v`` times per block.
    """
    job, graph = problem.job, problem.graph
    levels = problem.cluster.topology.levels
    alpha_ns = max(level.latency_ns + level.launch_ns for level in levels)
    beta = min(
        min(
            level.bandwidth_bytes_per_s,
            level.peer_bandwidth_bytes_per_s or math.inf,
        )
        for level in levels
    )
    num_devices = problem.cluster.num_devices

    def message_ns(size_bytes: float) -> float:
        # The slowest algorithm takes 2n messages and 4X/β per level.
        return len(levels) * (
            4 * num_devices * alpha_ns + 4 * size_bytes / beta * NS_PER_S
        )

    unit = job.optimizer.weight_bytes
    grown = 1 + (job.optimizer.gradient_bytes + job.optimizer.state_bytes) / (
        unit
    )
    hbm = problem.cluster.device.hbm_bytes_per_s

    def layer_ns(cost: LayerCost) -> tuple[float, float]:
        weights = (cost.weight_bytes + cost.expert_weight_bytes) * grown
        passes = cost.forward_ns + cost.backward_ns
        passes += math.fsum(
            call.count * message_ns(call.size_bytes)
            for call in cost.collectives
        )
        extra = max(a.extra_ns for a in cost.activations)
        sync = 3 * 2 ** len(levels) * message_ns(weights)
        if hbm is not None:
            sync += 2 * weights / hbm * NS_PER_S
        return 2 * passes + extra + 3 * message_ns(weights), sync

    worst = {
        kind.name: [
            max(values)
            for values in zip(*map(layer_ns, kind.costs), strict=True)
        ]
        for kind in graph.kinds
    }
    load = math.fsum(worst[layer.kind][0] for layer in graph.layers)
    sync = math.fsum(worst[layer.kind][1] for layer in graph.layers)
    batch = max(job.micro_batches)
    load += (
        4
        * max(job.virtual_stages)
        * math.fsum(
            message_ns(
                batch
                * max(
                    edge.bytes_per_sample,
                    *edge.bytes_per_sample_by_tp.values(),
                    0,
                )
                + batch
                * max(
                    *edge.source_extra_bytes_by_tp.values(),
                    *edge.target_extra_bytes_by_tp.values(),
                    *(0, 0),
                )
            )
            for edge in graph.edges
        )
    )
    slots = job.global_batch / min(job.micro_batches) + len(graph.layers)
    if get_preset(problem.preset).step_time == "max":
        slots = 0
    return float((slots + 1) * load + sync)
