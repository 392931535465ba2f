"""Measurements of training runs, read from a CSV file into typed rows.

One row is one published run: what ran (model shape, mesh, batch, software),
on what, and what was measured. An attribute of :class:`Row` has the name of
its column; a cell that is empty is None. A cell that cannot be read does not
stop anything: the row says so in :attr:`Row.unreadable`, and
:func:`why_unusable` refuses it. What other cells imply is filled in by
:mod:`nest.validation.complete`.
"""

from __future__ import annotations

import csv
import io
import math
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

from nest.errors import NestError, UnknownNameError
from nest.hardware.devices import DeviceSpec, device_spec
from nest.ir.base import AnyText, Struct
from nest.ir.documents import refusing, text_of
from nest.ir.io import read_bytes
from nest.text import closest
from nest.units import GIB, MAX_TERM


class InvalidMeasurementsError(NestError, ValueError):
    """A file of measurements cannot be read."""


class Row(Struct, frozen=True, kw_only=True):
    """One published run.

    Attributes
    ----------
    line
        Line of the file on which the row begins, from 1.
    unreadable
        Cells that are not what their column holds, as ``column: expected …,
        got …``.
    assumed
        Columns that are empty in the file and were filled in, as ``column:
        why``.
    status
        ``"ok"`` where the file does not say it.
    kind
        ``"measured"`` where the file does not say it.
    micro_batch
        Samples per model replica and pipeline step.
    grad_accum
        Micro-batches of a step.
    dp
        Replicas of the model; ``ep`` is nested in it.
    etp
        Ranks that an expert's matrices are cut over.
    schedule
        Of the pipeline, such as ``1F1B`` or ``ZB-V``.
    cuda_graphs
        Whether the kernels of a step are replayed from CUDA graphs.
    peak_mem_gb
        Peak memory of a device in ``mem_unit``, in the sense of
        ``mem_class``; see :func:`measured_memory_bytes`.
    tflops_per_gpu, mfu
        What a software printed: 10^12 FLOP/s of a device, and the fraction
        of its peak, as ``tflops_kind`` says that FLOPs are counted; see
        :mod:`nest.validation.flops`.

    Notes
    -----
    The other attributes are the columns of the same name. Counts and degrees
    are integers, ``sp``, ``gated_mlp`` and ``tied_embeddings`` booleans,
    ``_s`` is seconds.
    """

    line: int = 0
    unreadable: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    row_id: str | None = None
    source: str | None = None
    kind: str = "measured"
    hardware: str | None = None
    interconnect: str | None = None
    num_devices: int | None = None
    devices_per_node: int | None = None

    model: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn_hidden: int | None = None
    gated_mlp: bool | None = None
    experts: int | None = None
    topk: int | None = None
    moe_ffn_hidden: int | None = None
    shared_experts: int | None = None
    vocab: int | None = None
    tied_embeddings: bool | None = None

    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    sp: bool | None = None
    zero_stage: int | None = None
    shard_mode: str | None = None
    recompute: str | None = None
    attention_impl: str | None = None
    precision: str | None = None
    framework: str | None = None
    overlap: str | None = None
    schedule: str | None = None
    cuda_graphs: bool | None = None

    iter_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    tflops_kind: str | None = None
    peak_mem_gb: float | None = None
    status: str = "ok"
    notes: AnyText | None = None
    mem_class: str | None = None
    mem_unit: str | None = None
    precision_class: str | None = None
    time_tier: str | None = None
    mem_tier: str | None = None


class Reason(NamedTuple):
    """Why a row cannot be used.

    Attributes
    ----------
    reason
        One of a few texts, for counting.
    detail
        The values of this row that it comes from; may be empty.
    """

    reason: str
    detail: str = ""


#: At least one of these columns is needed.
MEASURED_COLUMNS = (
    "iter_time_s",
    "tokens_per_s_per_gpu",
    "samples_per_s",
    "tflops_per_gpu",
    "mfu",
    "peak_mem_gb",
)

#: Characters of a cell, at most; those that come along have 125.
_MAX_CELL = 1000
_MODEL = ("layers", "hidden", "heads", "vocab")
_BATCH = ("seq_len", "global_batch", "micro_batch")
_MESH = ("num_devices", "tp", "pp", "dp")

#: Without one of these columns no row can be used.
REQUIRED_COLUMNS = ("hardware", "seq_len", "global_batch", "tp", "pp")

#: Of each of these one column is needed: the others follow from it.
ALTERNATIVE_COLUMNS = (
    ("layers", "model"),
    ("num_devices", "dp"),
    ("micro_batch", "grad_accum"),
    ("precision_class", "precision"),
    MEASURED_COLUMNS,
)

#: Columns that published tables have and that no prediction asks for.
UNUSED_COLUMNS = frozenset(
    {
        "licence",
        "locator",
        "device_mem_gb",
        "params_b",
        "hfu",
        "mem_kind",
        "steady_mem_gib",
        "verified",
        "measured_fields",
        "derived_fields",
        "assumed_fields",
    }
)

#: Columns that may hold 0; other counts start at 1.
_FROM_ZERO = frozenset(
    {"experts", "topk", "moe_ffn_hidden", "shared_experts", "zero_stage"}
)

#: How spreadsheets and data-frame libraries write a missing number.
_MISSING = frozenset({"", "nan", "none", "null", "na", "n/a", "<na>"})

_BOOLEANS = {
    "0": False,
    "0.0": False,
    "false": False,
    "1": True,
    "1.0": True,
    "true": True,
}

#: Units of ``peak_mem_gb`` in bytes, in lower case. The tools that print it,
#: nvidia-smi and PyTorch, count in MiB and GiB, and what is printed as GB is
#: their figure: see docs/validation.md.
MEMORY_UNITS_BYTES = {
    "gib": GIB,
    "gb": GIB,
    "gb as printed": GIB,
    "mib": GIB // 1024,
    "mb": GIB // 1024,
}

#: What a figure of memory counts.
MEMORY_CLASSES = (
    *("nvidia-smi", "torch_allocated", "torch_allocated_last_rank"),
    *("torch_reserved", "formula", "unspecified"),
)

#: Columns whose text is one of a few.
_CHOICES = {"mem_class": MEMORY_CLASSES}

#: Columns that have a largest value.
_MOST = {"zero_stage": 3}


#: Column to the type of its cells (str, int, float or bool), in the order of
#: the attributes.
COLUMNS: dict[str, type] = {
    name: (get_args(hint) or (hint,))[0]
    for name, hint in get_type_hints(Row).items()
    if name not in ("line", "unreadable", "assumed")
}


def read_rows(path: str | Path) -> list[Row]:
    """Read a file of measurements.

    Parameters
    ----------
    path
        CSV file in UTF-8 with a line of column names: attributes of
        :class:`Row` and :data:`UNUSED_COLUMNS`.

    Returns
    -------
    list[Row]
        Every row of the file, in its order, unusable ones included.

    Raises
    ------
    InvalidMeasurementsError
        If the file cannot be read, is not a CSV file, has no row, lacks a
        column that every row needs, or has one that is not known.
    """
    data = read_bytes(path, InvalidMeasurementsError, "CSV file")
    return parse_rows(data, str(path))


def published_rows() -> list[Row]:
    """Return the runs that come along, see :func:`read_rows`.

    ``bench/measured_facts.py`` writes them; docs/validation.md says where
    each comes from.
    """
    path = files("nest.validation") / "data" / "measured.csv"
    return parse_rows(path.read_bytes(), "measured.csv")


def parse_rows(data: bytes, where: str = "measurements") -> list[Row]:
    """Read the bytes of a file of measurements; see :func:`read_rows`."""
    with refusing(where, InvalidMeasurementsError):
        text = text_of(data)
    # What completes rows is written against this module.
    from nest.validation.complete import complete

    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    try:
        header = next(filter(None, reader), None)
        if header is None:
            raise InvalidMeasurementsError(
                f"{where}: expected a line of column names, got an empty "
                f"file; check the path"
            )
        names = [name.strip() for name in header]
        _check_header(names, where)
        line = reader.line_num + 1
        for cells in reader:
            if max(map(len, cells), default=0) > _MAX_CELL:
                raise InvalidMeasurementsError(
                    f"{where}:{line}: expected cells of at most {_MAX_CELL} "
                    f"characters, got a longer one; shorten it"
                )
            if cells:
                rows.append(complete(_row(names, cells, line)))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InvalidMeasurementsError(
            f"{where}:{reader.line_num}: expected a CSV file, got malformed "
            f"text ({error}); correct the line"
        ) from error
    if not rows:
        raise InvalidMeasurementsError(
            f"{where}: expected at least one row, got only the column "
            f"names; add measurements"
        )
    return rows


def measured_step_time_s(row: Row) -> float | None:
    """Return the measured step time in seconds, if there is one.

    The first of :func:`stated_step_times_s`.
    """
    return next(iter(stated_step_times_s(row).values()), None)


def stated_step_times_s(row: Row) -> dict[str, float]:
    """Return the step time in seconds by each figure that states one.

    - ``iter_time_s``
    - ``global_batch · seq_len / (tokens_per_s_per_gpu · num_devices)``
    - ``global_batch / samples_per_s``
    """
    found = {}
    if row.iter_time_s is not None:
        found["iter_time_s"] = row.iter_time_s
    batch = row.global_batch
    if batch is None:
        return found
    if row.tokens_per_s_per_gpu and row.seq_len and row.num_devices:
        tokens_per_s = row.tokens_per_s_per_gpu * row.num_devices
        found["tokens_per_s_per_gpu"] = batch * row.seq_len / tokens_per_s
    if row.samples_per_s:
        found["samples_per_s"] = batch / row.samples_per_s
    return found


def measured_memory_bytes(row: Row) -> int | None:
    """Return the measured peak memory in bytes, if there is one.

    In GiB where the unit is not stated; see :func:`why_no_memory`.
    """
    if row.peak_mem_gb is None or why_no_memory(row) is not None:
        return None
    return round(row.peak_mem_gb * _memory_unit_bytes(row))


def why_no_memory(row: Row) -> str | None:
    """Return why a figure of memory is not compared, or None.

    Its unit is not one of :data:`MEMORY_UNITS_BYTES`, or a formula gave it.
    """
    if row.peak_mem_gb is None:
        return None
    if not _memory_unit_bytes(row):
        return f"mem_unit {(row.mem_unit or '')[:40]!r}: expected GiB or MiB"
    if row.mem_class == "formula":
        return "mem_class 'formula': not measured"
    return None


def _memory_unit_bytes(row: Row) -> int:
    """Return the bytes of the row's unit; 0 for an unknown one."""
    return MEMORY_UNITS_BYTES.get((row.mem_unit or "GiB").lower(), 0)


def ran_out_of_memory(row: Row) -> bool:
    """Return whether the run failed for lack of memory."""
    return row.status.lower() in ("oom", "out of memory")


def why_unusable(row: Row) -> Reason | None:
    """Return why a row says nothing about any prediction, or None.

    A run that went out of memory is of use: it should not be predicted to
    fit. Whether the model, the device or the plan can be expressed is for
    the prediction to say.
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
        counted = row.tflops_per_gpu or row.mfu
        return Reason(
            "no measured figure",
            f"tflops_kind {row.tflops_kind or 'not stated'}: not known how "
            f"FLOPs are counted"
            if counted
            else "",
        )
    for reason, names in (
        ("hardware not stated", ("hardware",)),
        ("model shape not stated", _MODEL),
        ("mesh not stated", _MESH),
        ("batch not stated", _BATCH),
    ):
        missing = [name for name in names if getattr(row, name) is None]
        if missing:
            return Reason(reason, ", ".join(missing))
    return _contradiction(row)


def _contradiction(row: Row) -> Reason | None:
    """Return in what the numbers of a complete row contradict each other."""
    degrees = (row.tp or 1, row.cp or 1, row.pp or 1, row.dp or 1)
    if math.prod(degrees) != row.num_devices:
        return Reason(
            "tp·cp·pp·dp is not the number of devices",
            f"{'·'.join(map(str, degrees))} = {math.prod(degrees)}, "
            f"num_devices {row.num_devices}",
        )
    micro_batch, dp = row.micro_batch or 1, row.dp or 1
    if (row.global_batch or 1) % (micro_batch * dp):
        return Reason(
            "the micro-batches do not divide the global batch",
            f"micro_batch {micro_batch} · dp {dp}, "
            f"global_batch {row.global_batch}",
        )
    detail = _odd_shape(row)
    if detail is not None:
        return Reason("the model's shape contradicts itself", detail)
    return None


def _odd_shape(row: Row) -> str | None:
    """Return which counts of a model do not go together."""
    heads, kv_heads = row.heads or 1, row.kv_heads or 1
    if heads % kv_heads:
        return (
            f"heads {heads}, kv_heads {kv_heads}: a whole number of heads "
            f"for each"
        )
    experts = row.experts or 0
    if not experts:
        return None
    if (row.topk or 0) > experts:
        return (
            f"topk {row.topk}, experts {experts}: no more experts than there "
            f"are"
        )
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

    A step cannot be faster than the matrix products of the model at the
    device's peak FLOP/s, nor hold more memory than the device has; no device
    does more FLOP/s than its peak, and all figures are of one step. What a
    row does not state is not judged.
    """
    times = stated_step_times_s(row)
    spec = _device(row.hardware or "")
    if spec is not None:
        why = _too_fast(row, spec, times) or _too_large(row, spec)
        if why is not None:
            return why
    if row.mfu is not None and row.mfu > 1:
        return (
            f"mfu: expected a fraction up to 1, got {row.mfu:g}; divide per "
            f"cent by 100"
        )
    return _of_two_steps(times) or _of_other_flops(row, times)


def _too_fast(
    row: Row, spec: DeviceSpec, times: dict[str, float]
) -> str | None:
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
        f"{spec.name} has, got {memory / GIB:.1f} GiB; correct the row or "
        f"its unit"
    )


def _of_two_steps(times: dict[str, float]) -> str | None:
    """Say which figures of a row cannot be those of one step."""
    (first, first_s), *others = times.items() or [("", 0.0)]
    for name, time_s in others:
        if max(first_s, time_s) > _SAME_STEP * min(first_s, time_s):
            return (
                f"{name}: expected a figure of the same step as {first}, "
                f"{first_s:.4g} s, got one of {time_s:.4g} s; correct or "
                f"remove one"
            )
    return None


def _of_other_flops(row: Row, times: dict[str, float]) -> str | None:
    """Say that FLOP/s, counted as stated, are of another step."""
    # How FLOPs are counted is written against this module.
    from nest.validation.flops import counted_time

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
    layers, hidden, heads = row.layers, row.hidden, row.heads
    samples, tokens = row.global_batch, row.seq_len
    if not (layers and hidden and heads and samples and tokens):
        return None
    head = row.head_dim or hidden // heads
    queries = heads * head
    keys = (row.kv_heads or heads) * head
    width, visited = row.ffn_hidden or 0, 1
    if row.experts:
        width = row.moe_ffn_hidden or 0
        visited = (row.topk or 1) + (row.shared_experts or 0)
    # Latent attention has fewer weights than the columns say: of a model
    # with experts only these count.
    attention = 0 if row.experts else 2 * hidden * (queries + keys)
    matrices = 3 if row.gated_mlp else 2
    weights = layers * (attention + visited * matrices * hidden * width)
    weights += hidden * (row.vocab or 0)
    passes = 2 if "lora" in f"{row.model} {row.notes}".lower() else 3
    return passes * 2.0 * weights * samples * tokens


def _check_header(names: list[str], where: str) -> None:
    found = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing:
        raise InvalidMeasurementsError(
            f"{where}: expected the columns {', '.join(missing)}, got only "
            f"{found[:200]!r}; add them or name another file"
        )
    for choices in ALTERNATIVE_COLUMNS:
        if not any(name in names for name in choices):
            raise InvalidMeasurementsError(
                f"{where}: expected one of the columns {', '.join(choices)}, "
                f"got none; add one"
            )
    for name in names:
        if name not in COLUMNS and name not in UNUSED_COLUMNS:
            other = closest(name, COLUMNS)
            hint = f"did you mean {other!r}? " if other else ""
            raise InvalidMeasurementsError(
                f"{where}: expected the columns of docs/validation.md, got "
                f"{name[:40]!r}; {hint}rename or remove it"
            )
    for name in names:
        if name in COLUMNS and names.count(name) > 1:
            raise InvalidMeasurementsError(
                f"{where}: expected distinct columns, got {name!r} twice; "
                f"remove one"
            )


def _row(names: list[str], cells: list[str], line: int) -> Row:
    values: dict[str, object] = {}
    unreadable = []
    if len(cells) != len(names):
        unreadable.append(
            f"number of cells: expected {len(names)}, got {len(cells)}"
        )
    for name, cell in zip(names, cells, strict=False):
        if name not in COLUMNS:
            continue
        try:
            value = _value(name, cell.strip())
        except ValueError as error:
            unreadable.append(f"{name}: {error}, got {cell.strip()[:40]!r}")
            continue
        if value is not None:
            values[name] = value
    return Row(line=line, unreadable=tuple(unreadable), **values)  # type: ignore[arg-type]


def _value(name: str, cell: str) -> str | bool | int | float | None:
    """Return what a cell says; ``ValueError`` says what was expected."""
    kind = COLUMNS[name]
    if kind is str:
        _check_choice(name, cell)
        return cell or None
    if cell.lower() in _MISSING:
        return None
    if kind is bool:
        if cell.lower() not in _BOOLEANS:
            raise ValueError("expected 0 or 1")
        return _BOOLEANS[cell.lower()]
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if kind is float:
        if not 0 < number < math.inf:
            raise ValueError("expected a finite number > 0")
        # Other units of it, and quotients, stay finite.
        if not 1e-21 <= number <= 1e21:
            raise ValueError("expected a number from 1e-21 to 1e21")
        return number
    lowest, most = 0 if name in _FROM_ZERO else 1, _MOST.get(name, MAX_TERM)
    if not (lowest <= number <= most and number.is_integer()):
        up_to = f" and <= {most}" if name in _MOST else ""
        raise ValueError(f"expected an integer >= {lowest}{up_to}")
    return int(number)


def _check_choice(name: str, cell: str) -> None:
    known = _CHOICES.get(name, ())
    if not cell or not known or cell in known:
        return
    close = get_close_matches(cell.lower(), known, n=1, cutoff=0)
    raise ValueError(
        f"expected {', '.join(known)} (the nearest is {close[0]})"
    )
