"""Which fact would explain that all runs are off by one factor.

Each fact that a row may state is switched in turn: what the software does
(:mod:`nest.validation.software`), recomputation, precision, the device, and what a
measured column counts. A switch explains the factor if predictions with it are near
the runs.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from nest.errors import NestError
from nest.hardware.devices import DeviceSpec, device_specs, known_device
from nest.ir.plan import OVERLAP, RECOMPUTE
from nest.validation import settings
from nest.validation.predict import PredictOptions, Skip, predict
from nest.validation.rows import Row, measured_step_time_s, stated_step_times_s
from nest.validation.software import software_of

#: A switch that leaves a factor up to this, either way, explains the runs.
EXPLAINED = 1.25

#: Runs that are predicted with every switch, those nearest the median error.
MOST_RUNS = 3

#: Frameworks that runs may have had instead of the one that is named.
FRAMEWORKS = (
    *("Megatron-Core", "NeMo", "torchtitan", "DeepSpeed", "PyTorch FSDP", "MaxText"),
    "Megatron-LM 2022",
)

#: Bytes of optimizer state per weight where its moments are in bf16, with no master
#: weights.
BF16_STATE_BYTES = 4


#: Words by which rows say that a compiler made the kernels of PyTorch.
COMPILER = "torch.compile"


class Cause(NamedTuple):
    """A switch that explains why runs are off, or explains it best."""

    #: What rows would state, such as ``attention_impl=flash``.
    change: str
    #: Measured over predicted step time with it, in the median.
    factor: float

    @property
    def explains(self) -> bool:
        """Whether predictions with it are near the runs."""
        return abs(math.log(self.factor)) <= math.log(EXPLAINED)

    @property
    def text(self) -> str:
        """The switch and what it leaves."""
        return f"{self.change} (leaves a factor of {self.factor:.2f})"


def causes(rows: Sequence[Row], options: PredictOptions) -> list[Cause]:
    """Return what would explain the factor that runs are off by.

    Switches that explain it, facts of the software first, then recomputation,
    columns, precision and device; if there is none, the one that leaves least.
    """
    candidates = []
    for change, switched in _switches(_nearest(rows, options)).items():
        errors = [error for row in switched for error in _errors(row, options)]
        if len(errors) == len(switched):
            candidates.append(Cause(change, math.exp(-statistics.median(errors))))
    explaining = [cause for cause in candidates if cause.explains]
    return explaining or sorted(candidates, key=lambda x: abs(math.log(x.factor)))[:1]


def _errors(row: Row, options: PredictOptions) -> Iterator[float]:
    """Yield the logarithm of predicted over measured step time, if there is one."""
    measured_s = measured_step_time_s(row)
    try:
        answer = predict(row, options)
    except NestError:
        return
    if not isinstance(answer, Skip) and answer.step_time_s and measured_s:
        yield math.log(answer.step_time_s / measured_s)


def _nearest(rows: Sequence[Row], options: PredictOptions) -> list[Row]:
    """Return the rows whose errors are nearest the median."""
    pairs = [(error, row) for row in rows for error in _errors(row, options)]
    middle = statistics.median(error for error, _ in pairs)
    pairs.sort(key=lambda pair: abs(pair[0] - middle))
    return [row for _, row in pairs[:MOST_RUNS]]


def _switches(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return all rows with each switch; rows that have it already stay."""
    by_row = [dict(_switches_of(row)) for row in rows]
    names = dict.fromkeys(name for switches in by_row for name in switches)
    return {
        name: [
            switches.get(name, row) for row, switches in zip(rows, by_row, strict=True)
        ]
        for name in names
    }


def _switches_of(row: Row) -> Iterator[tuple[str, Row]]:
    """Yield what a row might have stated, and the row with it."""
    yield from _kernels(row)
    yield from _compilation(row)
    yield from _overlaps(row)
    named = software_of(row)
    for name in FRAMEWORKS:
        other = replace(row, framework=name, source=None)
        if software_of(other) != named:
            yield f"framework={name}", other
    for choice in RECOMPUTE:
        if row.recompute != choice:
            yield f"recompute={choice}", replace(row, recompute=choice)
    yield from _columns(row)
    device = settings.machine_of(row).device
    for precision in ("bf16", "fp8"):
        if row.precision_class != precision and precision in device.peak_flops:
            other = replace(row, precision_class=precision)
            yield f"precision_class={precision}", other
    stated = known_device(device.name)
    for spec in device_specs():
        if stated is not None and spec != stated and _is_like(spec, stated):
            yield f"hardware={spec.name}", replace(row, hardware=spec.name)


def _is_like(spec: DeviceSpec, other: DeviceSpec) -> bool:
    """Whether a device may be meant by another: of its family, or with its memory."""
    same_bytes = math.isclose(spec.memory_bytes, other.memory_bytes, rel_tol=0.01)
    return spec.family == other.family or same_bytes


def _kernels(row: Row) -> Iterator[tuple[str, Row]]:
    """Yield other kernels: attention, fusion, loss, optimizer, CUDA graphs."""
    software = software_of(row)
    kernel = "unfused" if settings.is_flash(row, software) else "flash"
    yield f"attention_impl={kernel}", replace(row, attention_impl=kernel)
    for column, is_on in (
        ("fused_kernels", settings.is_fused(row, software)),
        ("fused_loss", software.fused_loss),
        ("cuda_graphs", settings.has_cuda_graphs(row, software)),
    ):
        other = replace(row, **{column: not is_on})
        yield f"{column}={'off' if is_on else 'on'}", other
    if software.state_bytes != BF16_STATE_BYTES:
        other = replace(row, optimizer_bytes=BF16_STATE_BYTES)
        yield f"optimizer_bytes={BF16_STATE_BYTES}", other


def _compilation(row: Row) -> Iterator[tuple[str, Row]]:
    """Yield the row with a compiler where its software may have one, or without."""
    software = software_of(row)
    if software.kind == "eager":
        notes = "; ".join(filter(None, (row.notes, COMPILER)))
        other = replace(row, notes=notes)
        if software_of(other).kind == "compiled":
            yield f"notes={COMPILER}", other
    elif software.kind == "compiled" and software.notes:
        stated = {name: getattr(row, name) for name in ("framework", "model", "notes")}
        eager = {
            name: re.sub(software.notes, "", text, flags=re.IGNORECASE)
            for name, text in stated.items()
            if text
        }
        yield f"no {COMPILER}", replace(row, **eager)


def _overlaps(row: Row) -> Iterator[tuple[str, Row]]:
    """Yield other overlap: each communication that there is, none, and all."""
    overlapped = settings.overlap_of(row, software_of(row))
    degrees = {"tp": row.tp, "cp": row.cp, "ep": row.ep}
    names = [name for name in OVERLAP if (degrees.get(name, row.dp) or 1) > 1]
    for name in names:
        is_on = name in overlapped
        other = replace(row, **{f"{name}_overlap": not is_on})
        yield f"{name}_overlap={'off' if is_on else 'on'}", other
    if overlapped:
        off = dict.fromkeys(f"{name}_overlap" for name in OVERLAP)
        yield "overlap=none", replace(row, overlap="none", **off)
    if row.experts:
        once = software_of(row).dispatch_once
        dispatcher = "all-to-all" if once else "DeepEP"
        yield f"dispatcher={dispatcher}", replace(row, dispatcher=dispatcher)


def _columns(row: Row) -> Iterator[tuple[str, Row]]:
    """Yield other readings of the columns that the step time is from."""
    measured_s = measured_step_time_s(row)
    if measured_s is None:
        return
    name = next(iter(stated_step_times_s(row)))
    dp, batch, devices = row.dp or 1, row.global_batch or 1, row.num_devices or 1
    factors: dict[str, dict[str, float]] = {
        "iter_time_s": {"one micro-batch": batch // (dp * (row.micro_batch or 1))},
        "tokens_per_s_per_gpu": {
            "one node": min(settings.machine_of(row).node.fan_out, devices),
            "all devices": devices,
        },
        "samples_per_s": {"one device": 1 / devices},
    }
    for what, factor in factors[name].items():
        if factor != 1:
            other = replace(row, iter_time_s=factor * measured_s)
            yield f"{name} of {what}", other
    if dp > 1:
        whole = replace(row, global_batch=batch * dp, iter_time_s=measured_s)
        yield "global_batch of one data-parallel rank", whole
