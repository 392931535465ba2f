"""The same problem where computing, sending or issuing takes longer."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from nest.ir.cluster import Device
from nest.ir.graph import Activations, DeviceTimes, LayerCost
from nest.ir.problem import Problem

#: Of which multiple of what its host takes a pass is taken to wait for it: an
#: operator that is shorter than its launch waits even where the pass, as a
#: whole, takes longer than its launches.
WAITING = 2.0


class Factors(NamedTuple):
    """By what times are multiplied."""

    #: Passes of layers that nobody measured, and optimizer updates.
    device: float = 1.0
    #: Messages and collectives: bytes as well as latencies.
    network: float = 1.0
    #: What hosts take to issue passes.
    host: float = 1.0
    #: The part of the time of passes that is taken to wait for hosts, where nobody
    #: measured it.
    waiting: float = 1.0
    #: Passes of layers that somebody measured.
    measured: float = 1.0


def scaled(problem: Problem, factors: Factors) -> Problem:
    """Return the problem with longer (or shorter) times.

    Which plans there are, and what they hold, stays. Times are multiplied
    where they are stated; they are rounded to quanta as ever.
    """
    cluster = problem.cluster
    if factors.network != 1:
        topology = cluster.topology.scaled(factors.network)
        cluster = replace(cluster, topology=topology)
    if factors.device != 1:
        cluster = cluster.with_devices(partial(_slower, factor=factors.device))
    kinds = tuple(
        replace(kind, costs=tuple(_cost(cost, factors) for cost in kind.costs))
        for kind in problem.graph.kinds
    )
    return replace(problem, cluster=cluster, graph=replace(problem.graph, kinds=kinds))


def _slower(device: Device, factor: float) -> Device:
    """Return a device whose optimizer update takes longer."""
    speed = device.hbm_bytes_per_s
    return replace(device, hbm_bytes_per_s=speed and speed / factor)


def _cost(cost: LayerCost, factors: Factors) -> LayerCost:
    if cost.measured:
        factors = factors._replace(device=factors.measured, waiting=1.0)
    if factors.device == factors.host == factors.waiting == 1:
        return cost

    def longer(time_ns: float, host_ns: float) -> float:
        """Return a pass that waits for its host in part."""
        waiting = min(1.0, WAITING * host_ns / time_ns) if time_ns else 0.0
        return factors.device * time_ns * (1 + (factors.waiting - 1) * waiting)

    def passes(record: LayerCost | DeviceTimes) -> dict[str, float | None]:
        backward_ns = longer(record.backward_ns, record.backward_host_ns)
        weights_ns = record.weight_backward_ns
        if weights_ns:
            # Its share of the pass stays as it was.
            share = weights_ns / record.backward_ns
            weights_ns = min(share * backward_ns, backward_ns)
        return {
            "forward_ns": longer(record.forward_ns, record.forward_host_ns),
            "backward_ns": backward_ns,
            "weight_backward_ns": weights_ns,
            "forward_host_ns": factors.host * record.forward_host_ns,
            "backward_host_ns": factors.host * record.backward_host_ns,
        }

    def extra(record: Activations | DeviceTimes) -> dict[str, float]:
        return {
            "extra_ns": longer(record.extra_ns, record.extra_host_ns),
            "extra_host_ns": factors.host * record.extra_host_ns,
        }

    return replace(
        cost,
        **passes(cost),
        by_device=tuple(replace(x, **passes(x), **extra(x)) for x in cost.by_device),
        activations=tuple(replace(x, **extra(x)) for x in cost.activations),
    )
