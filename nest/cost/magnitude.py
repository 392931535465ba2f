"""How long a step can be at most: keeps every sum within 64 bits.

Crude upper bounds, from the cost tables and the slowest link alone; they only
have to be safe. Engines that work on 64-bit integers rely on them, and
importers choose a quantum by them, so that what they import can be solved.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from msgspec.structs import replace

from nest.cost.rules import get_rules
from nest.errors import InvalidProblemError
from nest.ir.graph import Edge, LayerCost
from nest.ir.problem import DEFAULT_QUANTUM_PS, Problem
from nest.topology import Network, network_of
from nest.topology.alphabeta import NS_PER_S
from nest.units import MAX_TERM, MAX_TOTAL

#: The largest power of ten that a problem's quantum can be, in ps.
COARSEST_PS = 10 ** int(math.log10(MAX_TERM))


class Longest(NamedTuple):
    """Upper bounds over all plans of a problem, in ns.

    ``step_ns`` bounds the step time, ``term_ns`` every time that is rounded to quanta
    by itself.
    """

    step_ns: float
    term_ns: float


def check_magnitude(problem: Problem, network: Network) -> None:
    """Refuse a problem some plan of which may overflow 64-bit integers.

    Terms are checked one by one when they are rounded. The network is that
    of the problem.

    Raises ``InvalidProblemError`` if a step could take more than 2**61 quanta.
    """
    try:
        quanta = longest(problem, network).step_ns * 1000 / problem.quantum_ps
    except OverflowError:
        quanta = math.inf
    if quanta > MAX_TOTAL:
        raise InvalidProblemError(
            f"$.quantum_ps: expected a quantum that keeps every step time below 2**61 "
            f"quanta, got {problem.quantum_ps} ps with steps of up to {quanta:.3g} "
            f"quanta; correct the costs or raise quantum_ps"
        )


def choose_quantum_ps(problem: Problem, fine_ps: float = math.inf) -> int:
    """Choose a power of ten in ps that a problem can be solved with.

    That is the smallest one with which the longest step stays below 2**53 quanta, where
    floats are exact too. If a finer one is asked for, it is taken as far as steps stay
    below half of what :func:`check_magnitude` allows, and terms below 2**53 quanta. No
    smaller one than ``fine_ps`` is asked for; the problem's own quantum does not count.

    Raises ``ValueError`` if no quantum that a problem can have is coarse enough.
    """
    step_ns, term_ns = longest(problem)

    def below(quantum_ps: int, most_step: int) -> bool:
        return max(step_ns / most_step, term_ns / MAX_TERM) * 1000 < quantum_ps

    quantum_ps = 1
    while not below(quantum_ps, MAX_TERM):
        quantum_ps *= 10
    if quantum_ps > COARSEST_PS:
        most_s = MAX_TERM * COARSEST_PS / 1e12
        raise ValueError(
            f"expected step times below {most_s:.1g} s, got up to "
            f"{step_ns / NS_PER_S:.3g} s; correct the times, bandwidths or sizes"
        )
    while quantum_ps > max(1.0, fine_ps) and below(quantum_ps // 10, MAX_TOTAL // 2):
        quantum_ps //= 10
    return quantum_ps


def with_quantum(problem: Problem) -> Problem:
    """Return a problem of a model with a quantum that it can be solved with.

    The default one, unless :func:`check_magnitude` refuses it.

    Raises ``InvalidProblemError`` if no quantum that a problem can have is coarse
    enough.
    """
    return coarsened(replace(problem, quantum_ps=DEFAULT_QUANTUM_PS))


def coarsened(problem: Problem) -> Problem:
    """Return a problem with a coarser quantum if its own one is refused.

    Raises as :func:`with_quantum` does.
    """
    if in_range(problem):
        return problem
    try:
        coarse_ps = choose_quantum_ps(problem, problem.quantum_ps)
    except ValueError as error:
        raise InvalidProblemError(f"{problem.name}: {error}") from None
    return replace(problem, quantum_ps=coarse_ps)


def in_range(problem: Problem) -> bool:
    """Whether :func:`check_magnitude` takes a problem."""
    try:
        check_magnitude(problem, network_of(problem.cluster.topology))
    except InvalidProblemError:
        return False
    return True


def longest(problem: Problem, network: Network | None = None) -> Longest:
    """Bound the step time of every plan, and every term of it, from above.

    ``T <= (M + V) (Σ τ + receives) + Σ Y`` with every term at its largest: ``V``
    layers, all of them in every stage's place, each message across the slowest link.
    What passes a stage is received twice, there and back, and by every chunk of an
    interleaved plan apart. Where the step time is the largest load, ``M + V`` counts as
    nothing more. The network is made anew unless it is given.
    """
    job, graph = problem.job, problem.graph
    network = network or network_of(problem.cluster.topology)
    rules = get_rules(problem.preset)
    tables = {}
    for kind in graph.kinds:
        layer_ns = [_layer_ns(problem, network, cost) for cost in kind.costs]
        tables[kind.name] = [max(values) for values in zip(*layer_ns, strict=True)]
    layers = [tables[layer.kind] for layer in graph.layers]
    load = math.fsum(load for load, _ in layers)
    sync = math.fsum(sync for _, sync in layers)
    batch = max(job.micro_batches)
    # One device may send what all ranks of ``tp`` receive.
    batch *= max(cost.tp for kind in graph.kinds for cost in kind.costs)
    received = 4 * math.fsum(
        slowest_message_ns(network, batch * _edge_bytes(edge)) for edge in graph.edges
    )
    slots = 1.0
    if not rules.steady_state:
        slots += job.global_batch / min(job.micro_batches) + len(layers)
    return Longest(
        slots * (load + max(job.chunk_counts) * received) + sync,
        max(load, received, sync),
    )


def slowest_message_ns(network: Network, size_bytes: float) -> float:
    """Return a time that no message between two devices exceeds."""
    alpha_ns = max(link.alpha_ns for link in network.links)
    beta = min(link.beta for link in network.links)
    return alpha_ns + size_bytes / beta * NS_PER_S


def _layer_ns(
    problem: Problem, network: Network, cost: LayerCost
) -> tuple[float, float]:
    """Bound what a layer adds to the load and to the sync of its stage."""
    job, num_devices = problem.job, problem.cluster.num_devices
    times = [cost.on(device.name) for device in problem.cluster.types]
    passes = max(x.passes_ns for x in times)
    passes += math.fsum(
        call.count * network.longest_ns(call.size_bytes, num_devices)
        for call in cost.collectives
    )
    load = 2 * passes + max(max(x.extra_ns, x.extra_host_ns) for x in times)
    load += 2 * max((x.transfer_ns for x in cost.activations), default=0.0)
    optimizer = job.optimizer
    weights = cost.weight_bytes + cost.expert_weight_bytes
    grown = weights * (
        1 + (optimizer.gradient_bytes + optimizer.state_bytes) / optimizer.weight_bytes
    )
    if max(job.zero) >= 2:
        # Two gathers and a scatter per micro-batch.
        load += 3 * network.longest_ns(grown, num_devices)
    sync = get_rules(problem.preset).longest_sync_ns(
        network, num_devices, weights, grown
    )
    hbm = problem.cluster.hbm_bytes_per_s()
    if hbm is not None:
        sync += 2 * grown / hbm * NS_PER_S
    return load, sync


def _edge_bytes(edge: Edge) -> int:
    """Return the most bytes per sample that an end of an edge pays for."""
    return max(edge.bytes_per_sample, *edge.bytes_per_sample_by_tp.values(), 0) + max(
        0,
        *edge.source_extra_bytes_by_tp.values(),
        *edge.target_extra_bytes_by_tp.values(),
        0,
    )
