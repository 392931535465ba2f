"""How long a step can be at most: keeps every sum within 64 bits.

Crude upper bounds, from the cost tables and the slowest link alone; they only
have to be safe. Engines that work on 64-bit integers rely on them, and
importers choose a quantum by them, so that what they import can be solved.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from nest.cost.presets import get_preset
from nest.errors import InvalidProblemError
from nest.ir.cluster import Level
from nest.ir.graph import Edge, LayerCost
from nest.ir.problem import Problem
from nest.topology.alphabeta import NS_PER_S
from nest.units import MAX_TERM, MAX_TOTAL


class Longest(NamedTuple):
    """Upper bounds over all plans of a problem, in ns.

    Attributes
    ----------
    step_ns
        Of the step time.
    term_ns
        Of every time that is rounded to quanta by itself.
    """

    step_ns: float
    term_ns: float


def check_magnitude(problem: Problem) -> None:
    """Refuse a problem some plan of which may overflow 64-bit integers.

    Terms are checked one by one when they are rounded.

    Raises
    ------
    InvalidProblemError
        If a step could take more than 2**61 quanta.
    """
    try:
        quanta = longest(problem).step_ns * 1000 / problem.quantum_ps
    except OverflowError:
        quanta = math.inf
    if quanta > MAX_TOTAL:
        raise InvalidProblemError(
            f"$.quantum_ps: expected a quantum that keeps every step time "
            f"below 2**61 quanta, got {problem.quantum_ps} ps with steps of "
            f"up to {quanta:.3g} quanta; correct the costs or raise "
            f"quantum_ps"
        )


def choose_quantum_ps(problem: Problem, fine_ps: float = math.inf) -> int:
    """Choose a power of ten in ps that a problem can be solved with.

    That is the smallest one with which the longest step stays below 2**53
    quanta, where floats are exact too. If a finer one is asked for, it is
    taken as far as steps stay below half of what :func:`check_magnitude`
    allows, and terms below 2**53 quanta.

    Parameters
    ----------
    problem
        The problem; its own quantum does not count.
    fine_ps
        No smaller quantum than this is asked for.

    Raises
    ------
    ValueError
        If no quantum that a problem can have is coarse enough.
    """
    step_ns, term_ns = longest(problem)

    def below(quantum_ps: int, most_step: int) -> bool:
        return max(step_ns / most_step, term_ns / MAX_TERM) * 1000 < quantum_ps

    quantum_ps = 1
    while not below(quantum_ps, MAX_TERM):
        quantum_ps *= 10
    if quantum_ps > MAX_TERM:
        raise ValueError(
            f"expected step times below {MAX_TERM * MAX_TERM / 1e12:.1g} s, "
            f"got up to {step_ns / NS_PER_S:.3g} s; correct the times, "
            f"bandwidths or sizes"
        )
    while quantum_ps > max(1.0, fine_ps) and below(
        quantum_ps // 10, MAX_TOTAL // 2
    ):
        quantum_ps //= 10
    return quantum_ps


def longest(problem: Problem) -> Longest:
    """Bound the step time of every plan, and every term of it, from above.

    ``T <= (M + V) (Σ τ + receives) + Σ Y`` with every term at its largest:
    ``V`` layers, all of them in every stage's place, each message across
    the slowest link. What passes a stage is received twice, there and back,
    and by every chunk of an interleaved plan apart. Where the step time is
    the largest load, ``M + V`` counts as nothing more.
    """
    job, graph = problem.job, problem.graph
    link = _Link.of(problem)
    tables = {
        kind.name: [
            max(values)
            for values in zip(
                *(_layer_ns(problem, link, cost) for cost in kind.costs),
                strict=True,
            )
        ]
        for kind in graph.kinds
    }
    layers = [tables[layer.kind] for layer in graph.layers]
    load = math.fsum(load for load, _ in layers)
    sync = math.fsum(sync for _, sync in layers)
    batch = max(job.micro_batches)
    edges = [
        link.message_ns(batch * _edge_bytes(edge)) for edge in graph.edges
    ]
    received = 4 * math.fsum(edges)
    slots = job.global_batch / min(job.micro_batches) + len(layers) + 1
    if get_preset(problem.preset).step_time == "max":
        slots = 1
    return Longest(
        slots * (load + max(job.virtual_stages) * received) + sync,
        max(load, received, sync),
    )


class _Link(NamedTuple):
    """The slowest of all links, and how often collectives cross it."""

    alpha_ns: float
    beta: float
    crossings: int
    messages: int

    @staticmethod
    def of(problem: Problem) -> _Link:
        levels = problem.cluster.topology.levels
        # The slowest algorithm takes 2n messages and 2X/β per level.
        return _Link(
            max(level.latency_ns + level.launch_ns for level in levels),
            min(_bandwidth(level) for level in levels),
            len(levels),
            4 * problem.cluster.num_devices,
        )

    def message_ns(self, size_bytes: float) -> float:
        return self.alpha_ns + size_bytes / self.beta * NS_PER_S

    def collective_ns(self, size_bytes: float) -> float:
        return self.crossings * (
            self.messages * self.alpha_ns
            + 4 * size_bytes / self.beta * NS_PER_S
        )


def _bandwidth(level: Level) -> float:
    peer = level.peer_bandwidth_bytes_per_s
    return min(level.bandwidth_bytes_per_s, math.inf if peer is None else peer)


def _layer_ns(
    problem: Problem, link: _Link, cost: LayerCost
) -> tuple[float, float]:
    """Bound what a layer adds to the load and to the sync of its stage."""
    job = problem.job
    passes = cost.forward_ns + cost.backward_ns
    passes += math.fsum(
        call.count * link.collective_ns(call.size_bytes)
        for call in cost.collectives
    )
    load = 2 * passes + max(a.extra_ns for a in cost.activations)
    optimizer = job.optimizer
    weights = cost.weight_bytes + cost.expert_weight_bytes
    grown = weights * (
        1
        + (optimizer.gradient_bytes + optimizer.state_bytes)
        / optimizer.weight_bytes
    )
    if max(job.zero) >= 2:
        # Two gathers and a scatter per micro-batch.
        load += 3 * link.collective_ns(grown)
    preset = get_preset(problem.preset)
    if preset.server_sync:
        return load, 4 * weights / link.beta * NS_PER_S
    if preset.switch_tree_sync:
        return load, _switch_tree_ns(problem, weights)
    sync = 3 * 2**link.crossings * link.collective_ns(grown)
    hbm = problem.cluster.device.hbm_bytes_per_s
    if hbm is not None:
        sync += 2 * grown / hbm * NS_PER_S
    return load, sync


def _switch_tree_ns(problem: Problem, size_bytes: float) -> float:
    """Bound the sync of NEST's switch tree by its slowest link.

    Level 0 takes at most ``⌊lg R⌋ α + 2X/β``, and every further one at most
    twice what those below it take together.
    """
    levels = problem.cluster.topology.levels
    link = _Link.of(problem)
    rounds = problem.cluster.num_devices.bit_length()
    return 3.0 ** (len(levels) - 1) * (
        (rounds + 2) * link.alpha_ns + 2 * size_bytes / link.beta * NS_PER_S
    )


def _edge_bytes(edge: Edge) -> int:
    """Return the most bytes per sample that an end of an edge pays for."""
    return max(
        edge.bytes_per_sample, *edge.bytes_per_sample_by_tp.values(), 0
    ) + max(
        0,
        *edge.source_extra_bytes_by_tp.values(),
        *edge.target_extra_bytes_by_tp.values(),
        0,
    )
