"""From the times of layers on an accelerator to a problem.

The graph is that of :func:`nest.models.graphs.build_problem`, with its memory,
weights and collectives; times are those of the accelerator, with nothing of
what GPUs were measured to reach: no calibration, no hosts, links at the rates
that are given. Collectives run as on all machines of nest, in rings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from nest.accelerators.architecture import Architecture
from nest.cost.magnitude import choose_quantum_ps
from nest.errors import InvalidOptionError
from nest.hardware import Machine
from nest.hardware.calibration import Calibration
from nest.ir.cluster import Cluster, Device, Level
from nest.ir.graph import Activations, ComputeTimes, LayerCost, LayerKind
from nest.ir.job import splits_backward
from nest.ir.problem import Problem
from nest.models.architectures import Architecture as Model
from nest.models.choices import Choices, Request, choose
from nest.models.graphs import grain, graph_of, in_range, problem_of
from nest.models.operators.base import Execution
from nest.models.operators.timing import timed_cost

#: Kind of layers, and key of a cost of it.
Key = tuple[str, tuple[int, ...]]

#: What a problem says of its times.
SOURCE = "costs: analytic accelerator model (nest codesign), not calibrated"

#: Rate, bytes/s and FLOP/s, and memory in bytes of the device that a base
#: problem has until an architecture is put in.
UNSTATED = 1

#: Data types that the products of an accelerator are counted in: of 2 bytes.
DTYPES = ("bf16", "fp16")


#: Times of a layer in ps: both passes, and what ``selective`` adds.
PassTimes = tuple[int, int, int]


class Base(NamedTuple):
    """The problem that all architectures with nodes of one size share.

    The problem has all times 0, on a device that is not one. ``choices`` were chosen
    for it, as :func:`nest.accelerators.layers.layer_works` takes them.
    """

    problem: Problem
    choices: Choices


def base_problem(
    model: Model,
    num_devices: int,
    devices_per_node: int,
    request: Request | None = None,
    *,
    execution: Execution,
    link_latency_ns: float = 0.0,
    network_latency_ns: float = 0.0,
) -> Base:
    """Return the problem of a model on a cluster, without times.

    The user chooses ``request``; the rest is as for any machine with nodes of that
    size, see docs/models.md.

    Raises ``InvalidOptionError`` if a choice is out of range, does not divide the
    model, or asks for times that accelerators have none of (those of gradients of
    weights apart, or of casts to fp8), and ``InvalidProblemError`` if the model is so
    large that a figure is out of range.
    """

    def level(name: str, fan_out: int, latency_ns: float) -> Level:
        return Level(
            name=name,
            fan_out=fan_out,
            bandwidth_bytes_per_s=UNSTATED,
            latency_ns=latency_ns,
        )

    site = Machine(
        name="accelerator",
        device=Device(
            name="accelerator",
            memory_bytes=UNSTATED,
            peak_flops=dict.fromkeys(DTYPES, UNSTATED),
        ),
        node=level("links", devices_per_node, link_latency_ns),
        network=level("network", 1, network_latency_ns),
        calibration_family="accelerator",
        own_calibration=Calibration(
            matmul_fraction=1.0,
            matmul_half_size=0.0,
            misaligned_fraction=1.0,
            attention_fraction=1.0,
            memory_fraction=1.0,
        ),
    )
    choices = choose(model, site, num_devices, request)
    if splits_backward(choices.schedule):
        raise InvalidOptionError(
            f"schedule: expected one that computes the backward pass of a "
            f"layer at once, got {choices.schedule!r}; choose '1f1b'"
        )
    with in_range(model.name):
        graph = graph_of(
            model,
            choices,
            execution,
            lambda counted: timed_cost(
                counted.parts, counted.split, ComputeTimes(0.0, 0.0, 0.0)
            ),
        )
        problem = problem_of(
            model,
            graph,
            site.cluster(num_devices),
            choices,
            name=f"{model.name}-acceleratorx{num_devices}",
            source=f"model: {model.source}; {SOURCE}, {grain(choices)}",
        )
    return Base(problem, choices)


def with_times(
    problem: Problem,
    times: Mapping[Key, PassTimes],
    architecture: Architecture,
    quantum_ps: int | None = None,
) -> Problem:
    """Return a base problem with the times and rates of an architecture.

    ``problem`` is that of :func:`base_problem`, for nodes of the architecture's size,
    ``times`` what every kind of layers takes under every split, in ps. The architecture
    gives memory, its rate, peak FLOP/s and the rates of links. A ``quantum_ps`` of
    ``None`` is the finest one that keeps sums in range; rounding keeps an order of
    times only with one quantum.

    Raises ``InvalidProblemError`` if a time is out of range.
    """

    def timed(kind: LayerKind) -> LayerKind:
        costs = (_timed(cost, times[kind.name, cost.key]) for cost in kind.costs)
        return replace(kind, costs=tuple(costs))

    with in_range(problem.name, "choose a faster architecture"):
        graph = replace(problem.graph, kinds=tuple(map(timed, problem.graph.kinds)))
        cluster = _cluster(problem.cluster, architecture)
        made = replace(problem, graph=graph, cluster=cluster)
        quantum_ps = quantum_ps or choose_quantum_ps(made, fine_ps=1)
        return replace(made, quantum_ps=quantum_ps)


def _timed(cost: LayerCost, times: PassTimes) -> LayerCost:
    """Return a cost with times in ps."""
    forward_ps, backward_ps, extra_ps = times

    def extended(choice: Activations) -> Activations:
        if choice.recompute != "selective":
            return choice
        return replace(choice, extra_ns=extra_ps / 1000)

    return replace(
        cost,
        forward_ns=forward_ps / 1000,
        backward_ns=backward_ps / 1000,
        activations=tuple(map(extended, cost.activations)),
    )


def _cluster(cluster: Cluster, architecture: Architecture) -> Cluster:
    """Return a cluster of an architecture, with the latencies it has."""
    topology = cluster.topology
    assert topology.kind == "hierarchy"
    assert topology.levels[0].fan_out == architecture.devices_per_node
    rates = architecture.link_bytes_per_s, architecture.network_bytes_per_s
    levels = tuple(
        replace(level, bandwidth_bytes_per_s=float(rate))
        for level, rate in zip(topology.levels, rates, strict=True)
    )
    device = replace(
        cluster.device,
        memory_bytes=architecture.hbm_bytes,
        hbm_bytes_per_s=float(architecture.hbm_bytes_per_s),
        peak_flops=dict.fromkeys(DTYPES, float(architecture.peak_flops)),
    )
    return replace(cluster, device=device, topology=replace(topology, levels=levels))
