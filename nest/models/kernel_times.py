"""Which kernels the computation of layers consists of: products, attention, others.

A problem has one time per pass of a layer. Where it can be built anew, or names a model
of the zoo and a machine, its costs are made with one rate of the calibration halved:
what a pass then takes longer is the time of these kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from nest.errors import NestError
from nest.hardware import Machine, machines
from nest.ir.graph import Graph, LayerCost
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.models.architectures import Architecture
from nest.models.choices import Choices, Degrees
from nest.models.graphs import build_graph
from nest.models.operators.base import DTYPES
from nest.models.stated import stated_models

#: Kinds of kernels, and the rate of the calibration that each takes.
KERNELS = {
    "products": "matmul_fraction",
    "attention": "attention_fraction",
    "memory": "memory_fraction",
}

#: A kind of layers and the key of a cost.
_CostKey = tuple[str, tuple[int, ...]]

#: From a machine to one with other rates.
MachineChange = Callable[[Machine], Machine]


class _Times(NamedTuple):
    """Passes of a layer, in ns; what recomputation adds is by choice."""

    forward_ns: float
    backward_ns: float
    weight_backward_ns: float
    extra_ns: Mapping[str, float]

    @classmethod
    def of(cls, cost: LayerCost) -> _Times:
        return cls(
            cost.forward_ns,
            cost.backward_ns,
            cost.weight_backward_ns or 0.0,
            {x.recompute: x.extra_ns for x in cost.activations},
        )

    def longer_than(self, other: _Times) -> _Times:
        """Return the differences."""
        return _Times(
            self.forward_ns - other.forward_ns,
            self.backward_ns - other.backward_ns,
            self.weight_backward_ns - other.weight_backward_ns,
            {name: x - other.extra_ns[name] for name, x in self.extra_ns.items()},
        )


@dataclass(frozen=True)
class KernelTimes:
    """Times of kernels in the costs of a problem, by kind of kernels."""

    growths: Mapping[str, Mapping[_CostKey, _Times]]

    def scaled(self, problem: Problem, kernels: str, factor: float) -> Problem:
        """Return a problem with these costs whose kernels take ``factor`` as long."""
        growths = self.growths[kernels]

        def cost_of(kind: str, cost: LayerCost) -> LayerCost:
            growth = growths.get((kind, cost.key))
            return cost if growth is None else _with_growth(cost, growth, factor - 1)

        kinds = tuple(
            replace(kind, costs=tuple(cost_of(kind.name, x) for x in kind.costs))
            for kind in problem.graph.kinds
        )
        return replace(problem, graph=replace(problem.graph, kinds=kinds))


def _with_growth(cost: LayerCost, growth: _Times, times: float) -> LayerCost:
    """Return a cost with its growth added so many times."""
    backward_ns = max(0.0, cost.backward_ns + times * growth.backward_ns)
    weights_ns = cost.weight_backward_ns
    if weights_ns is not None:
        longer_ns = weights_ns + times * growth.weight_backward_ns
        weights_ns = min(max(0.0, longer_ns), backward_ns)
    return replace(
        cost,
        forward_ns=max(0.0, cost.forward_ns + times * growth.forward_ns),
        backward_ns=backward_ns,
        weight_backward_ns=weights_ns,
        activations=tuple(
            replace(x, extra_ns=max(0.0, x.extra_ns + times * growth.extra_ns[name]))
            if (name := x.recompute) == "selective"
            else x
            for x in cost.activations
        ),
    )


def kernel_times(
    problem: Problem,
    plans: Iterable[Plan],
    build: Callable[[MachineChange], Problem] | None = None,
) -> KernelTimes | None:
    """Return the times of kernels in the costs that plans need.

    ``build`` makes the problem anew on changed machines. Without it model and
    machine are those that the problem names: ``None`` where these are not known, or
    their costs are not those of the problem, as with a calibration of the
    user's. ``None`` also where devices of several types take other times.
    """
    plain = _costs(problem.graph)
    if any(cost.by_device for cost in plain.values()):
        return None
    if build is not None:
        return _growths(plain, lambda change: _costs(build(change).graph))
    job = problem.job
    model = next(stated_models(problem), None)
    if model is None or job.sequence_length is None or job.dtype not in DTYPES:
        return None
    choices = _choices(problem, plans)
    for site in machines():
        if f"machine: {site.source};" not in problem.source:
            continue
        if site.device.name != problem.cluster.device.name:
            continue
        price = partial(_machine_costs, model, site, choices)
        try:
            anew = price(lambda same: same)
        except (NestError, ValueError):  # layers that the graph has otherwise
            continue
        common = {key: cost for key, cost in anew.items() if key in plain}
        if common and all(map(_is_same, common.values(), map(plain.get, common))):
            return _growths(common, price)
    return None


def _machine_costs(
    model: Architecture, site: Machine, choices: Choices, change: MachineChange
) -> dict[_CostKey, LayerCost]:
    return _costs(build_graph(model, change(site), choices))


def _with_half(rate: str, site: Machine) -> Machine:
    """Return a machine with half of a rate of its calibration."""
    rates = site.calibration
    return site.with_calibration(replace(rates, **{rate: getattr(rates, rate) / 2}))


def _growths(
    plain: Mapping[_CostKey, LayerCost],
    price: Callable[[MachineChange], dict[_CostKey, LayerCost]],
) -> KernelTimes:
    """Return what costs grow by where a rate is half of what it is, for each rate."""
    growths = {}
    for name, rate in KERNELS.items():
        slow = price(partial(_with_half, rate))
        growths[name] = {
            key: _Times.of(slow[key]).longer_than(_Times.of(cost))
            for key, cost in plain.items()
            if key in slow
        }
    return KernelTimes(growths)


def _choices(problem: Problem, plans: Iterable[Plan]) -> Choices:
    """Return the choices of a problem, with the degrees of plans alone."""
    job = problem.job
    (dtype,) = (name for name in DTYPES if name == job.dtype)
    grain = re.search(r"one graph node per (\d+) layers", problem.source)
    degrees = {
        Degrees(x.tp, x.cp, x.ep, plan.micro_batch // x.dp, x.etp)
        for plan in plans
        for stage in plan.stages
        for x in stage.layer_strategies
    }
    return Choices(
        global_batch=job.global_batch,
        sequence_length=job.sequence_length or 1,
        micro_batches=job.micro_batches,
        degrees=tuple(sorted(degrees)),
        layers_per_node=int(grain.group(1)) if grain else 1,
        sequence_parallel=job.sequence_parallel,
        dtype=dtype,
        schedule=job.schedule,
    )


def _costs(graph: Graph) -> dict[_CostKey, LayerCost]:
    return {(kind.name, cost.key): cost for kind in graph.kinds for cost in kind.costs}


def _is_same(cost: LayerCost, other: LayerCost | None) -> bool:
    return other is not None and all(
        math.isclose(getattr(cost, name), getattr(other, name))
        for name in ("forward_ns", "backward_ns")
    )
