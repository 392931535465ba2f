"""How far the analytic operator model of co-design is off what is published.

Measured operators of an A100 (``bench/codesign_operators.csv``) against the model on
chips *like* it: a GPU is not made of systolic arrays, so two readings of its 432 tensor
cores of 256 multiply-accumulates a cycle are shown, 16 × 16 as LLMCompass has them, and
8 × 32. The model knows no time to launch a kernel, which is most of what small
operators take; errors are shown as they are, for operators of at least 100 us, and with
the fixed time per operator that LLMCompass adds.

TPU v1's applications against its roofline, ``2 · intensity · bandwidth``, and
the side of it that the model puts them on. Weights alone come from memory, as
that roofline has it; of inputs and results too beside it.

Writes ``bench/results/codesign_operators.json`` and prints all tables.

    python bench/codesign_operators.py
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isqrt
from statistics import fmean, median
from typing import Any, NamedTuple

from msgspec.structs import replace

from bench.result_files import ROOT, fill, page_path, table, write_rows
from nest.accelerators.architecture import Architecture
from nest.accelerators.operators import Gemm, OperatorWork, Vector, timed
from nest.accelerators.systolic import CONVENTIONS, Convention
from nest.accelerators.traffic import WORD_BYTES
from nest.units import GB

MIB = 2**20

#: 108 cores with four tensor cores of 256 multiply-accumulates each; 64
#: lanes, 192 KiB and a clock of 1.41 GHz (NVIDIA's A100 whitepaper).
A100 = Architecture(
    tensor_cores=432,
    rows=16,
    columns=16,
    vector_cores=432,
    lanes=16,
    sram_bytes=40 * MIB,
    hbm_bytes=80 * GB,
    hbm_bytes_per_s=2039 * GB,
    frequency_hz=1_410_000_000,
    link_bytes_per_s=300 * GB,
    network_bytes_per_s=25 * GB,
    devices_per_node=8,
    core_buffer_bytes=48 * 1024,
)
LIKE = {"16 × 16": A100, "8 × 32": replace(A100, rows=8, columns=32)}

#: What operators without products are shown for.
FIRST = ("16 × 16", "in-use")

#: What LLMCompass adds to an operator, in us (ae/figure5/*/test_*.py).
LAUNCH_US = {"gemm": 21, "softmax": 12, "norm": 45, "gelu": 45}

#: The error that LLMCompass states of itself, on average.
OWN_ERROR = 10.9

#: Operators that launching a kernel no longer hides.
LARGE_US = 100

#: One array; a word of 8 bits takes two bytes here, so rates and sizes that
#: are in bytes are twice those of the chip: 34 GB/s, 28 MiB.
TPU_V1 = Architecture(
    tensor_cores=1,
    rows=256,
    columns=256,
    vector_cores=1,
    lanes=256,
    sram_bytes=2 * 28 * MIB,
    hbm_bytes=2 * 8 * GB,
    hbm_bytes_per_s=2 * 34 * GB,
    frequency_hz=700_000_000,
    link_bytes_per_s=GB,
    network_bytes_per_s=GB,
    core_buffer_bytes=2 * 28 * MIB,
)


class Measured(NamedTuple):
    """A measured operator: of a norm ``rows`` of ``columns`` values."""

    work: OperatorWork
    operation: str
    shape: tuple[int, ...]
    time_us: float


class Row(NamedTuple):
    """What the model says of a measured operator."""

    operation: str
    arrays: str
    convention: Convention
    shape: tuple[int, ...]
    measured_us: float
    model_us: float
    error_percent: float
    launched_error_percent: float


class Application(NamedTuple):
    """One of TPU v1's applications (Jouppi et al., ISCA 2017; recalled).

    ``intensity`` multiply-accumulates per byte of weights, of which there are
    so many millions in so many layers; ``tops`` are measured.
    """

    name: str
    intensity: int
    millions: int
    layers: int
    tops: float


APPLICATIONS = (
    Application("MLP0", 200, 20, 5, 12.3),
    Application("MLP1", 168, 5, 4, 9.7),
    Application("LSTM0", 64, 52, 24, 3.7),
    Application("LSTM1", 96, 34, 37, 2.8),
    Application("CNN0", 2888, 8, 16, 86.0),
    Application("CNN1", 1750, 100, 85, 14.1),
)


def main() -> None:
    rows = [*operator_rows(), *application_rows()]
    write_rows("codesign_operators", rows)
    fill(page_path("codesign"), "operators", markdown(rows))


def measured() -> list[Measured]:
    """Return the measured operators; values have two bytes."""
    path = ROOT / "bench" / "codesign_operators.csv"
    operators = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            rows, columns = int(row["rows"]), int(row["columns"])
            operation = row["operation"]
            if operation == "gemm":
                shape: tuple[int, ...] = rows, int(row["inner"]), columns
                work = OperatorWork(name=operation, gemms=(Gemm(*shape),))
            else:
                shape = rows, columns
                values = rows * columns
                work = OperatorWork(
                    name=operation,
                    vectors=(Vector(values, operation),),
                    vector_bytes=2 * WORD_BYTES * values,
                )
            operators.append(Measured(work, operation, shape, float(row["time_us"])))
    return operators


def operator_rows() -> list[dict[str, object]]:
    """Print and return the errors of the model, operator by operator."""
    rows = [
        _predicted(one, arrays, convention)
        for convention in CONVENTIONS
        for arrays in LIKE
        for one in measured()
        if one.work.gemms or (arrays, convention) == FIRST
    ]
    print_operators(rows)
    return [{"kind": "operator", **row._asdict()} for row in rows]


def _predicted(one: Measured, arrays: str, convention: Convention) -> Row:
    predicted_us = timed(one.work, LIKE[arrays], convention).whole_ps / 1e6
    launched_us = predicted_us + LAUNCH_US[one.operation]
    return Row(
        one.operation,
        arrays,
        convention,
        one.shape,
        one.time_us,
        predicted_us,
        100 * (predicted_us / one.time_us - 1),
        100 * (launched_us / one.time_us - 1),
    )


def print_operators(rows: Sequence[Row]) -> None:
    print("Measured operators of an A100 (LLMCompass), errors in percent")
    print(
        f"{'operation':10} {'arrays':8} {'convention':11} {'rows':>4} "
        f"{'mean |e|':>8} {'median e':>8} "
        f"{f'>= {LARGE_US} us':>9} {'mean |e|':>8} {'median e':>8} "
        f"{'launched':>8}"
    )
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row[:3], []).append(row)
    for key, group in sorted(groups.items()):
        errors = [row.error_percent for row in group]
        large = [x.error_percent for x in group if x.measured_us >= LARGE_US]
        launched = fmean(abs(x.launched_error_percent) for x in group)
        print(
            f"{key[0]:10} {key[1]:8} {key[2]:11} {len(group):4} "
            f"{fmean(map(abs, errors)):8.1f} {median(errors):8.1f} "
            f"{len(large):9} "
            f"{fmean(map(abs, large)):8.1f} {median(large):8.1f} "
            f"{launched:8.1f}"
        )
    print(
        "launched: mean |e| with the fixed time per operator of LLMCompass,\n"
        f"whose own mean |e| is {OWN_ERROR} over all operators\n"
    )


def application_rows() -> list[dict[str, object]]:
    """Print and return on which side of the roofline applications are."""
    ridge = TPU_V1.peak_flops / TPU_V1.hbm_bytes_per_s
    print(
        "TPU v1's applications as a square layer each; TOP/s, and what binds\n"
        f"(the ridge is at {ridge:.0f} multiply-accumulates per byte)"
    )
    print(
        f"{'':6} {'MAC/byte':>8} {'measured':>8} {'roofline':>8} "
        f"{'binds':>7} {'in-use':>7} {'binds':>7} {'overlapped':>10} "
        f"{'binds':>7} {'all moved':>9}"
    )
    rows: list[dict[str, object]] = []
    for app in APPLICATIONS:
        roof = min(TPU_V1.peak_flops, app.intensity * TPU_V1.hbm_bytes_per_s)
        row: dict[str, object] = {
            "kind": "application",
            **app._asdict(),
            "roofline_tops": roof / 1e12,
            "roofline_binds": "memory" if app.intensity < ridge else "array",
        }
        for convention in ("in-use", "overlapped"):
            row |= on_tpu_v1(app, convention, weights_only=True)
        row |= on_tpu_v1(app, "in-use", weights_only=False)
        rows.append(row)
        print(
            f"{app.name:6} {app.intensity:8} {app.tops:8.1f} "
            f"{roof / 1e12:8.1f} {row['roofline_binds']:>7} "
            f"{row['in-use_tops']:7.1f} {row['in-use_binds']:>7} "
            f"{row['overlapped_tops']:10.1f} {row['overlapped_binds']:>7} "
            f"{row['moved_tops']:9.1f}"
        )
    print()
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what docs/results/codesign.md has on A100 and on TPU v1."""
    lines, groups = [], defaultdict(list)
    for row in rows:
        first = (row.get("arrays"), row.get("convention")) == FIRST
        if row["kind"] == "operator" and first:
            groups[row["operation"]].append(row)
    for operation, group in groups.items():
        large = [x for x in group if x["measured_us"] >= LARGE_US]
        errors = [
            fmean(abs(x[name]) for x in those)
            for those, name in (
                (group, "error_percent"),
                (large, "error_percent"),
                (group, "launched_error_percent"),
            )
        ]
        texts = (f"{error:.1f} %" for error in errors)
        lines.append((operation, len(group), *texts))
    applications = ", ".join(
        f"{row['name']} {row['in-use_tops'] / row['tops']:.2f}"
        for row in rows
        if row["kind"] == "application"
    )
    arrays, convention = FIRST
    operators = table(
        f"A100 as arrays of {arrays}, `{convention}` | operators | mean error "
        f"| from {LARGE_US} µs | with a launch time",
        lines,
        "l" * 5,
    )
    tpu = f"Predicted over measured rate on TPU v1: {applications}."
    return f"{operators}\n\n{tpu}"


def on_tpu_v1(
    app: Application, convention: Convention, *, weights_only: bool
) -> dict[str, object]:
    """Return the rate of a layer of an application, and what binds it."""
    side = isqrt(app.millions * 10**6 // app.layers)
    gemm = Gemm(app.intensity, side, side)
    weights = WORD_BYTES * side * side
    work = OperatorWork(
        name=app.name, gemms=(gemm,), traffic_bytes=weights if weights_only else None
    )
    predicted = timed(work, TPU_V1, convention)
    rate = 2 * app.intensity * side * side / predicted.whole_ps
    memory = predicted.whole_ps == predicted.whole_traffic_ps
    name = convention if weights_only else "moved"
    return {f"{name}_tops": rate, f"{name}_binds": "memory" if memory else "array"}


if __name__ == "__main__":
    main()
