"""Time of operators, and the cost of the layers that they make up."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import msgspec

from nest.errors import InvalidProblemError
from nest.hardware import Machine
from nest.hardware.calibration import Calibration
from nest.ir.graph import Activations, LayerCost
from nest.ir.plan import RECOMPUTE
from nest.models.operators.base import (
    ALIGNMENT,
    BF16,
    FUSED,
    Dtype,
    Execution,
    Node,
    Operator,
    Split,
)
from nest.models.operators.collectives import merged


def operator_ns(
    operator: Operator, machine: Machine, dtype: Dtype = "bf16"
) -> tuple[float, float]:
    """Return the forward and the backward roofline time in ns.

    Raises
    ------
    InvalidProblemError
        If the machine's device has no peak rate for the data type.
    """
    device, calibration = machine.device, machine.calibration
    low = dtype == "fp8" and operator.low_precision
    name = "fp8" if low else ("bf16" if dtype == "fp8" else dtype)
    peak = device.peak_flops.get(name)
    if peak is None or device.hbm_bytes_per_s is None:
        raise InvalidProblemError(
            f"dtype: expected one of {', '.join(sorted(device.peak_flops))}, "
            f"which {device.name} multiplies, got {name!r}; choose another"
        )
    flops_per_ns = peak * _fraction(operator, calibration) / 1e9
    bytes_per_ns = device.hbm_bytes_per_s * calibration.memory_fraction / 1e9
    cast = 3 * operator.forward_bytes / 2 if low else 0
    return (
        max(
            operator.forward_flops / flops_per_ns,
            operator.forward_bytes / bytes_per_ns,
        )
        + cast / bytes_per_ns,
        max(
            operator.backward_flops / flops_per_ns,
            operator.backward_bytes / bytes_per_ns,
        )
        + cast / bytes_per_ns,
    )


def _fraction(operator: Operator, calibration: Calibration) -> float:
    if operator.unit == "attention":
        return calibration.attention_fraction
    fraction = calibration.matmul_fraction
    for size in operator.shape:
        if size:
            fraction *= size / (size + calibration.matmul_half_size)
    if any(size % ALIGNMENT for size in operator.shape):
        fraction = min(fraction, calibration.misaligned_fraction)
    return fraction


def layer_cost(
    node: Node,
    split: Split,
    machine: Machine,
    execution: Execution = FUSED,
    repeat: int = 1,
) -> LayerCost:
    """Return the cost of ``repeat`` consecutive equal nodes.

    Times, weights, kept activations and collectives are ``repeat`` times
    those of one node; working memory is that of one.

    Parameters
    ----------
    node, split
        The counted node and the split it was counted for.
    machine
        Supplies rates and calibration.
    execution
        How the node was counted.
    repeat
        How many nodes are taken as one.
    """
    forward = []
    backward = []
    repeated = []
    for operator in node.operators:
        times = operator_ns(operator, machine, execution.dtype)
        forward.append((times[0], operator.kernels))
        backward.append((times[1], operator.backward_kernels))
        if operator.name in node.repeated:
            repeated.append(forward[-1])
    calibration = machine.calibration
    forward_ns = _pass_ns(forward, calibration)
    backward_ns = _pass_ns(backward, calibration)
    repeated_ns = _pass_ns(repeated, calibration)
    return LayerCost(
        tp=split.tp,
        cp=split.cp,
        ep=split.ep,
        samples=split.samples,
        forward_ns=repeat * forward_ns,
        backward_ns=repeat * backward_ns,
        weight_bytes=repeat * BF16 * node.weights,
        expert_weight_bytes=repeat * BF16 * node.expert_weights,
        working_bytes=node.working_bytes,
        activations=tuple(
            Activations(
                recompute=choice,
                kept_bytes=repeat * node.kept_bytes[choice],
                extra_ns=repeat * repeated_ns * (choice == "selective"),
                working_bytes=node.kept_bytes["none"]
                - node.kept_bytes[choice],
            )
            for choice in RECOMPUTE
        ),
        collectives=tuple(
            msgspec.structs.replace(call, count=repeat * call.count)
            for call in node.collectives
        ),
    )


def _pass_ns(
    operators: list[tuple[float, int]], calibration: Calibration
) -> float:
    """Return the time of operators, each its ns on the device and kernels.

    A host that runs ahead without limit hides its launches behind what the
    device still has to do: the larger of both sums. One that never runs
    ahead waits for each operator: the sum of the larger ones.
    """
    launch_ns = calibration.launch_ns
    ahead = max(
        fsum(time_ns for time_ns, _ in operators),
        launch_ns * sum(kernels for _, kernels in operators),
    )
    waiting = fsum(
        max(time_ns, launch_ns * kernels) for time_ns, kernels in operators
    )
    return ahead + calibration.waiting_fraction * (waiting - ahead)


def sum_costs(costs: Sequence[LayerCost]) -> LayerCost:
    """Return the cost of layers that one graph node stands for.

    Times, weights, kept activations and collectives add up; the layers run
    one after the other, so that working memory is that of the largest.

    Parameters
    ----------
    costs
        At least one; all of one key and with the same recompute choices.
    """
    if len(costs) == 1:
        return costs[0]
    first = costs[0]
    activations = []
    for choice in first.activations:
        same = [
            found
            for cost in costs
            for found in cost.activations
            if found.recompute == choice.recompute
        ]
        activations.append(
            Activations(
                recompute=choice.recompute,
                kept_bytes=sum(found.kept_bytes for found in same),
                extra_ns=fsum(found.extra_ns for found in same),
                working_bytes=max(found.working_bytes for found in same),
            )
        )
    return LayerCost(
        tp=first.tp,
        cp=first.cp,
        ep=first.ep,
        samples=first.samples,
        forward_ns=fsum(cost.forward_ns for cost in costs),
        backward_ns=fsum(cost.backward_ns for cost in costs),
        weight_bytes=sum(cost.weight_bytes for cost in costs),
        expert_weight_bytes=sum(cost.expert_weight_bytes for cost in costs),
        working_bytes=max(cost.working_bytes for cost in costs),
        activations=tuple(activations),
        collectives=merged(
            call for cost in costs for call in cost.collectives
        ),
    )
