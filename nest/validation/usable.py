"""Which measured runs can be used, and which figures cannot be true."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from nest.errors import UnknownNameError
from nest.hardware.devices import DeviceSpec, device_spec
from nest.units import GIB
from nest.validation.flops import counted_time, layer_weights
from nest.validation.rows import (
    Row,
    measured_memory_bytes,
    measured_step_time_s,
    ran_out_of_memory,
    stated_step_times_s,
)

#: Columns that every row needs, by what they say.
_NEEDED = {
    "hardware": ("hardware",),
    "model shape": ("layers", "hidden", "heads", "vocab"),
    "mesh": ("num_devices", "tp", "pp", "dp"),
    "batch": ("seq_len", "global_batch", "micro_batch"),
}


class Reason(NamedTuple):
    """Why a row cannot be used: one of a few texts, for counting.

    The detail has the values of this row that it comes from; it may be empty.
    """

    reason: str
    detail: str = ""


def why_unusable(row: Row) -> Reason | None:
    """Return why a row says nothing about any prediction, or None.

    A run that went out of memory is of use: it should not be predicted to fit. Whether
    the model, the device or the plan can be expressed is for the prediction to say.
    """
    if row.unreadable:
        column = row.unreadable[0].split(":")[0]
        return Reason(f"unreadable cell: {column}", "; ".join(row.unreadable))
    if row.kind != "measured":
        return Reason("not a measurement of a whole step", row.kind)
    if row.status.lower() != "ok" and not ran_out_of_memory(row):
        return Reason("the run failed or contradicts itself", row.status)
    if (
        row.status.lower() == "ok"
        and measured_step_time_s(row) is None
        and measured_memory_bytes(row) is None
    ):
        kind = row.tflops_kind or "not stated"
        detail = f"tflops_kind {kind}: not known how FLOPs are counted"
        counted = row.tflops_per_gpu or row.mfu
        return Reason("no measured figure", detail if counted else "")
    for part, names in _NEEDED.items():
        missing = [name for name in names if getattr(row, name) is None]
        if missing:
            return Reason(f"{part} not stated", ", ".join(missing))
    return _contradiction(row)


def _contradiction(row: Row) -> Reason | None:
    """Return in what the numbers of a complete row contradict each other."""
    degrees = (row.tp or 1, row.cp or 1, row.pp or 1, row.dp or 1)
    product = math.prod(degrees)
    if product != row.num_devices:
        factors = "·".join(map(str, degrees))
        return Reason(
            "tp·cp·pp·dp is not the number of devices",
            f"{factors} = {product}, num_devices {row.num_devices}",
        )
    micro_batch, dp = row.micro_batch or 1, row.dp or 1
    if (row.global_batch or 1) % (micro_batch * dp):
        return Reason(
            "the micro-batches do not divide the global batch",
            f"micro_batch {micro_batch} · dp {dp}, global_batch {row.global_batch}",
        )
    detail = _odd_shape(row)
    return Reason("the model's shape contradicts itself", detail) if detail else None


def _odd_shape(row: Row) -> str | None:
    """Return which counts of a model do not go together."""
    heads, kv_heads = row.heads or 1, row.kv_heads or 1
    if heads % kv_heads:
        return f"heads {heads}, kv_heads {kv_heads}: a whole number of heads for each"
    experts = row.experts or 0
    if not experts:
        return None
    if (row.topk or 0) > experts:
        return f"topk {row.topk}, experts {experts}: no more experts than there are"
    if experts % (row.ep or 1):
        return f"experts {experts}, ep {row.ep}: as many experts on every rank"
    return None


#: What figures may miss what is possible by: sources print three digits of
#: times, and whole GB, while drivers show 1 % more than programs can take.
_TIME_ROUNDING = 1.005
_MEMORY_ROUNDING = 1.02

#: What figures of one step may differ by; published ones do by 0.14 %. Of
#: FLOP/s it is a factor, as columns do not say all shapes that are counted.
_SAME_STEP = 1.02
_SAME_FLOPS = 1.5


def impossible(row: Row) -> str | None:
    """Return why no run can have a row's figures, or None.

    A step cannot be faster than the matrix products of the model at the device's peak
    FLOP/s, nor hold more memory than the device has; no device does more FLOP/s than
    its peak, and all figures are of one step. What a row does not state is not judged.
    """
    times = stated_step_times_s(row)
    spec = _device(row.hardware or "")
    if spec is not None:
        why = _too_fast(row, spec, times) or _too_large(row, spec)
        if why is not None:
            return why
    if row.mfu is not None and row.mfu > 1:
        return (
            f"mfu: expected a fraction up to 1, got {row.mfu:g}; divide per cent by 100"
        )
    return _of_two_steps(times) or _of_other_flops(row, times)


def _too_fast(row: Row, spec: DeviceSpec, times: dict[str, float]) -> str | None:
    peak = spec.peak_flops.get(row.precision_class or "")
    if not peak:
        return None
    flops = _least_flops(row)
    if flops is not None and row.num_devices:
        least_s = flops / (peak * row.num_devices)
        for name, time_s in times.items():
            if time_s * _TIME_ROUNDING < least_s:
                by = "" if name == "iter_time_s" else f", by {name}"
                return (
                    f"step time: expected at least {least_s:.3g} s, that of "
                    f"the model's products at the peak of {row.num_devices} "
                    f"x {spec.name}, got {time_s:.3g} s{by}; correct the row"
                )
    rate = (row.tflops_per_gpu or 0) * 1e12
    if rate > _TIME_ROUNDING * peak:
        return (
            f"tflops_per_gpu: expected at most {peak / 1e12:g}, the peak of "
            f"{spec.name} in {row.precision_class}, got "
            f"{row.tflops_per_gpu:g}; correct the row"
        )
    return None


def _too_large(row: Row, spec: DeviceSpec) -> str | None:
    memory = measured_memory_bytes(row)
    if memory is None or memory <= _MEMORY_ROUNDING * spec.memory_bytes:
        return None
    return (
        f"memory: expected at most {spec.memory_bytes / GIB:.1f} GiB, what a "
        f"{spec.name} has, got {memory / GIB:.1f} GiB; correct the row or its unit"
    )


def _of_two_steps(times: dict[str, float]) -> str | None:
    """Say which figures of a row cannot be those of one step."""
    (first, first_s), *others = times.items() or [("", 0.0)]
    for name, time_s in others:
        if max(first_s, time_s) > _SAME_STEP * min(first_s, time_s):
            return (
                f"{name}: expected a figure of the same step as {first}, {first_s:.4g} "
                f"s, got one of {time_s:.4g} s; correct or remove one"
            )
    return None


def _of_other_flops(row: Row, times: dict[str, float]) -> str | None:
    """Say that FLOP/s, counted as stated, are of another step."""
    counted = counted_time(row)
    if counted is None or not times:
        return None
    (first, first_s), *_ = times.items()
    ratio = counted.time_s / first_s
    if 1 / _SAME_FLOPS <= ratio <= _SAME_FLOPS:
        return None
    name = "tflops_per_gpu" if row.tflops_per_gpu else "mfu"
    return (
        f"{name}: expected a figure of the same step as {first}, "
        f"{first_s:.4g} s, got one of {counted.time_s:.4g} s as "
        f"{counted.flop_count.name} counts; correct or remove one"
    )


@cache
def _device(name: str) -> DeviceSpec | None:
    try:
        return device_spec(name)
    except UnknownNameError:
        return None


def _least_flops(row: Row) -> float | None:
    """Return the FLOPs that the products of a step take at least.

    Forward and twice as much backward of the matrices that columns state,
    of experts those that a token visits; without attention itself, whose
    window may be short. Where only adapters are trained there are no
    gradients of the weights, which leaves two thirds.
    """
    weights, samples, tokens = (layer_weights(row), row.global_batch, row.seq_len)
    if not (weights and row.layers and row.hidden and samples and tokens):
        return None
    # Latent attention has fewer weights than the columns say: of a model
    # with experts only these count.
    attention = 0 if row.experts else weights.attention
    visited = row.layers * (attention + weights.mlp)
    visited += row.hidden * (row.vocab or 0)
    passes = 2 if "lora" in f"{row.model} {row.notes}".lower() else 3
    return passes * 2.0 * visited * samples * tokens
