"""Time of operators, and the cost of the layers that they make up."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from msgspec.structs import replace

from nest.errors import InvalidProblemError
from nest.hardware import Machine
from nest.hardware.calibration import Calibration
from nest.ir.graph import Activations, ComputeTimes, LayerCost, Phase
from nest.ir.plan import USUAL_RECOMPUTE
from nest.models.operators.attention import ATTENTION_BACKWARD
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

#: Values of a head that the calibrated rate of attention holds for.
HEAD_SIZE = 128


def operator_ns(
    operator: Operator, machine: Machine, dtype: Dtype = "bf16"
) -> tuple[float, float]:
    """Return the forward and the backward roofline time in ns.

    Raises ``InvalidProblemError`` if the machine's device has no peak rate for the data
    type.
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
    fraction = _fraction(operator, calibration) * machine.power_share
    cast_bytes = 0.0
    if low:
        fraction *= calibration.low_precision_fraction
        if operator.casts:
            cast_bytes = calibration.cast_bytes * operator.forward_bytes / BF16
    flops_per_ns = peak * fraction / 1e9
    bytes_per_ns = device.hbm_bytes_per_s * calibration.memory_fraction / 1e9
    cast_ns = cast_bytes / bytes_per_ns
    if operator.unit == "routing":
        bytes_per_ns /= calibration.routing_passes

    def roofline_ns(flops: float, size_bytes: float, products: float) -> float:
        reached = flops_per_ns * _exponential_share(operator, machine, products)
        return max(flops / reached, size_bytes / bytes_per_ns) + cast_ns

    return (
        roofline_ns(operator.forward_flops, operator.forward_bytes, 1),
        roofline_ns(
            operator.backward_flops, operator.backward_bytes, ATTENTION_BACKWARD
        ),
    )


def _exponential_share(operator: Operator, machine: Machine, products: float) -> float:
    """Return what exponentials leave of the calibrated rate of attention.

    A kernel that computes one exponential a score beside ``products`` times the
    products of a forward pass is busy with these for ``d / (d + z / products)`` of its
    time, with heads of ``d`` values and ``z`` the device's ``exponential_size``. The
    calibrated rate holds for another device, with heads of :data:`HEAD_SIZE`.
    """
    size = machine.exponential_size
    calibrated_size = machine.calibration.exponential_size
    if not (operator.head_size and size and calibrated_size):
        return 1.0

    def busy(head_size: float, exponential_size: float) -> float:
        return head_size / (head_size + exponential_size / products)

    return busy(operator.head_size, size) / busy(HEAD_SIZE, calibrated_size)


def _fraction(operator: Operator, calibration: Calibration) -> float:
    if operator.unit == "attention":
        half = calibration.attention_half_blocks
        if not (half and operator.blocks):
            return calibration.attention_fraction
        occupied = operator.blocks / (operator.blocks + half)
        return calibration.attention_fraction * occupied
    fraction = calibration.matmul_fraction
    for size in operator.shape:
        if size:
            fraction *= size / (size + calibration.matmul_half_size)
    if any(size % ALIGNMENT for size in operator.shape):
        fraction = min(fraction, calibration.misaligned_fraction)
    return fraction


def _kernels(operator: Operator, calibration: Calibration) -> float:
    """Return as how many kernels one that is launched counts.

    1 but for products of experts, which are counted for each of them.
    """
    further = operator.groups - 1
    return (1 + calibration.expert_kernels * further) / operator.groups


def layer_cost(
    layers: Sequence[tuple[Node, int]],
    split: Split,
    machine: Machine,
    execution: Execution = FUSED,
) -> LayerCost:
    """Return the cost of layers that one graph node stands for.

    Times, weights, kept activations and collectives add up; the layers run
    one after the other, so that working memory is that of the largest. Each layer comes
    with how often it is repeated, counted for the split and the execution.
    """
    passes = [_passes_ns(node, machine, execution) for node, _ in layers]
    counts = [count for _, count in layers]

    def total_ns(number: int) -> float:
        return fsum(
            count * times_ns[number]
            for count, times_ns in zip(counts, passes, strict=True)
        )

    weights_ns = total_ns(3) if execution.split_backward else None
    times = ComputeTimes(total_ns(0), total_ns(1), total_ns(2), weights_ns)
    cost = timed_cost(layers, split, times)
    if execution.dtype == "fp8" and execution.weight_copy_bytes:
        cost = _with_copies(cost, layers, execution.weight_copy_bytes)
    if execution.offloads:
        cost = _with_offload(cost, layers, machine)
    if not machine.calibration.host_ns:
        return cost
    return _with_hosts(cost, layers, machine.calibration)


def timed_cost(
    layers: Sequence[tuple[Node, int]], split: Split, times: ComputeTimes
) -> LayerCost:
    """Return the cost of layers, as of :func:`layer_cost`, that take a known time.

    ``times`` are what they take together, without hosts.
    """
    return LayerCost(
        tp=split.tp,
        cp=split.cp,
        ep=split.ep,
        etp=split.etp,
        samples=split.samples,
        forward_ns=times.forward_ns,
        backward_ns=times.backward_ns,
        weight_backward_ns=times.weight_backward_ns,
        weight_bytes=BF16 * sum(n * node.weights for node, n in layers),
        expert_weight_bytes=BF16 * sum(n * node.expert_weights for node, n in layers),
        working_bytes=max(node.working_bytes for node, _ in layers),
        activations=tuple(
            Activations(
                recompute=choice,
                kept_bytes=sum(n * node.kept_bytes[choice] for node, n in layers),
                extra_ns=times.extra_ns if choice == "selective" else 0.0,
                working_bytes=max(
                    node.kept_bytes["none"] - node.kept_bytes[choice]
                    for node, _ in layers
                ),
                reruns=choice != "full"
                or any(node.is_checkpointed for node, _ in layers),
            )
            for choice in USUAL_RECOMPUTE
        ),
        collectives=merged(
            replace(call, count=count * call.count)
            for node, count in layers
            for call in node.collectives
        ),
    )


def _with_copies(
    cost: LayerCost, layers: Sequence[tuple[Node, int]], copy_bytes: int
) -> LayerCost:
    """Return a cost with copies of weights in fp8, of so many bytes each, that stay."""
    size_bytes = copy_bytes * sum(
        count * operator.groups * operator.shape[1] * operator.shape[2]
        for node, count in layers
        for operator in node.operators
        if operator.has_weights and operator.low_precision
    )
    activations = (replace(x, static_bytes=size_bytes) for x in cost.activations)
    return replace(cost, activations=tuple(activations))


def _with_offload(
    cost: LayerCost, layers: Sequence[tuple[Node, int]], machine: Machine
) -> LayerCost:
    """Return a cost that may leave activations to the memory of the host.

    What is kept at full recomputation stays. Two buffers hold what the other layers
    than the one that runs send or get. Raises ``InvalidProblemError`` if the machine's
    link to the host is not known.
    """
    if machine.host_bytes_per_s is None:
        raise InvalidProblemError(
            f"recompute: expected a device whose link to the host is known, for "
            f"'offload', got {machine.device.name}; leave it out"
        )

    def moved(node: Node) -> int:
        return node.kept_bytes["none"] - node.kept_bytes["offload"]

    size_bytes = sum(count * moved(node) for node, count in layers)
    offload = Activations(
        recompute="offload",
        kept_bytes=sum(n * node.kept_bytes["offload"] for node, n in layers),
        static_bytes=cost.activations[0].static_bytes,
        working_bytes=2 * max(moved(node) for node, _ in layers),
        transfer_ns=size_bytes / machine.host_bytes_per_s * 1e9,
    )
    return replace(cost, activations=(*cost.activations, offload))


def _with_hosts(
    cost: LayerCost, layers: Sequence[tuple[Node, int]], calibration: Calibration
) -> LayerCost:
    """Return a cost that states what the host takes to issue its passes.

    ``host_ns`` for each kernel, and ``collective_kernels`` times as long for
    each call of a collective. What ``selective`` repeats calls none.
    """

    def host_ns(kernels: float, phase: Phase | None = None) -> float:
        calls = sum(call.count for call in cost.collectives if call.phase == phase)
        return calibration.host_ns * (kernels + calibration.collective_kernels * calls)

    kernels = backward_kernels = repeated = 0.0
    for node, count in layers:
        for operator in node.operators:
            each = count * _kernels(operator, calibration)
            kernels += each * operator.kernels
            backward_kernels += each * operator.backward_kernels
            repeated += node.share_repeated(operator.name) * each * operator.kernels
    return replace(
        cost,
        forward_host_ns=host_ns(kernels, "forward"),
        backward_host_ns=host_ns(backward_kernels, "backward"),
        activations=tuple(
            replace(x, extra_host_ns=host_ns(repeated))
            if x.recompute == "selective"
            else x
            for x in cost.activations
        ),
    )


def _passes_ns(
    node: Node, machine: Machine, execution: Execution
) -> tuple[float, float, float, float]:
    """Return the time of both passes, and of parts of the backward one.

    The parts are what ``selective`` repeats, and gradients of weights: half
    of the products with weights, whatever their launches take, and what adds
    them to those of earlier micro-batches.
    """
    calibration = machine.calibration
    forward = []
    backward = []
    repeated = []
    weights = []
    for operator in node.operators:
        times = operator_ns(operator, machine, execution.dtype)
        each = _kernels(operator, calibration)
        forward.append((times[0], each * operator.kernels))
        backward.append((times[1], each * operator.backward_kernels))
        share = node.share_repeated(operator.name)
        repeated.append((share * times[0], share * each * operator.kernels))
        if operator.has_weights:
            weights.append(times[1] / 2)
    if execution.accumulation_bytes:
        added_ns = _accumulation_ns(node, machine, execution)
        backward.append((added_ns, 0))
        weights.append(added_ns)
    return (
        _pass_ns(forward, calibration.host_ns),
        _pass_ns(backward, calibration.host_ns),
        _pass_ns(repeated, calibration.host_ns),
        fsum(weights),
    )


def _accumulation_ns(node: Node, machine: Machine, execution: Execution) -> float:
    """Return what adding gradients to those of earlier micro-batches takes.

    It is memory traffic, at the rate that operators bound by memory reach.
    """
    weights = node.weights + node.expert_weights
    added = Operator(
        *("gradients", "memory", 0, 0, 0), execution.accumulation_bytes * weights
    )
    return operator_ns(added, machine, execution.dtype)[1]


def _pass_ns(operators: list[tuple[float, float]], host_ns: float) -> float:
    """Return the time of operators, each its ns on the device and kernels.

    The device waits for kernels that the host issues more slowly than it runs them.
    """
    return fsum(max(time_ns, host_ns * kernels) for time_ns, kernels in operators)
