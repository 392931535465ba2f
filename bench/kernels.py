"""Compare predicted times of single kernels with measured ones.

    pip download --no-deps aiconfigurator-core==0.12.0
    python bench/kernels.py WHEEL [--shapes 800]

WHEEL is that file (PyPI, Apache-2.0, 82 MB), which is read with pyarrow (``pip
install pyarrow``; neither is a dependency of nest). It has timings of kernels as
inference servers run them, in milliseconds. Of each shape that a training step may
have, the shortest counts; up to ``--shapes`` of a device and class are drawn, the
same each time. The rates of devices are then fitted to these kernels alone. Figures
and fit are written to ``bench/results/kernels.json``, the table to
docs/results/kernels.md.
"""

from __future__ import annotations

import argparse
import io
import itertools
import math
import random
import statistics
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from bench.result_files import fill, page_path, table, write_result
from nest.errors import UnknownNameError
from nest.hardware import Machine, device_spec
from nest.hardware.calibration import Calibration, calibrated_family
from nest.hardware.machines import machines
from nest.ir.graph import CollectiveKind
from nest.models.blocks import Attention, Block, Mlp
from nest.models.operators.attention import attention
from nest.models.operators.base import ALIGNMENT, FUSED, Dtype, Operator, Split, linear
from nest.models.operators.mlp import expert_mlp
from nest.models.operators.timing import operator_ns
from nest.topology import HierarchyNetwork

#: Folders of the wheel, and the devices that they are about.
SYSTEMS = {
    "a100_sxm": "A100-80GB-SXM",
    "h100_sxm": "H100-80GB-SXM",
    "h200_sxm": "H200-141GB-SXM",
    "b200_sxm": "B200-180GB",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "l40s": "L40S",
}
#: A device that the fit has not seen: its own rates are not known.
CHECK = "L40S"
DATA = "aiconfigurator_core/systems/data"

#: Tokens, and dimensions of a product, from which a training step is concerned.
LARGE = 1024
#: Bytes of a collective from which it is.
LARGE_BYTES = 2**20
SEED = 36

#: Shapes of experts without a gate, which the wheel lists under kernels of that name:
#: hidden size, width, experts of a token, experts.
NOT_GATED = {
    (1024, 2688, 22, 512),
    (2048, 5120, 22, 512),
    (2688, 1856, 6, 128),
    (4096, 2688, 22, 512),
    (8192, 5120, 22, 512),
}
COLLECTIVES: dict[str, CollectiveKind] = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
}
#: Classes of kernels, in the order of the table.
CLASSES = (
    "bf16 product",
    "fp8 product",
    "fp8 product, blocks",
    "attention",
    "experts",
    *COLLECTIVES.values(),
)

Shape = tuple[int, ...]
Kernels = dict[Shape, float]


class Source(NamedTuple):
    """Where kernels are in the wheel.

    ``name`` of the file and ``operation``, a folder; ``equal`` are the values that
    columns must have, where a file has them; ``columns`` make the shape.
    """

    operation: str
    name: str
    equal: Mapping[str, str | int]
    columns: tuple[str, ...]


_PRODUCT = ("m", "k", "n")
_ATTENTION = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
_EXPERTS = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts")
SOURCES = {
    "bf16 product": Source("gemm", "gemm_perf", {"gemm_dtype": "bfloat16"}, _PRODUCT),
    "fp8 product": Source("gemm", "gemm_perf", {"gemm_dtype": "fp8"}, _PRODUCT),
    "fp8 product, blocks": Source(
        "gemm", "gemm_perf", {"gemm_dtype": "fp8_block"}, _PRODUCT
    ),
    "attention": Source(
        "attention",
        "context_attention_perf",
        {
            "attn_dtype": "bfloat16",
            "kv_cache_dtype": "bfloat16",
            "window_size": 0,
            "step": 0,
        },
        _ATTENTION,
    ),
    "experts": Source(
        "moe",
        "moe_perf",
        {
            "moe_dtype": "bfloat16",
            "distribution": "balanced",
            "moe_tp_size": 1,
            "moe_ep_size": 1,
        },
        _EXPERTS,
    ),
} | {
    kind: Source(
        "comm/nccl",
        "nccl_perf",
        {"nccl_dtype": "half", "op_name": name},
        ("num_gpus", "message_size"),
    )
    for name, kind in COLLECTIVES.items()
}


def concerns_training(kind: str, shape: Shape) -> bool:
    """Return whether a training step may have a kernel of that shape."""
    if kind in COLLECTIVES.values():
        return 2 * shape[1] >= LARGE_BYTES
    if kind == "attention":
        return shape[1] >= LARGE and shape[4] in (64, 128)
    if kind == "experts":
        return shape[0] >= LARGE and shape[1:] not in NOT_GATED
    return min(shape) >= LARGE and all(size % ALIGNMENT == 0 for size in shape)


def read_kernels(wheel: Path, system: str, kind: str) -> Kernels:
    """Return the shortest time in ns of each shape, of one device and class.

    A shape has the columns of :data:`SOURCES`. Raises ``SystemExit`` without pyarrow.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        raise SystemExit(
            "bench/kernels.py: expected pyarrow, which reads the wheel, got none; "
            "run 'pip install pyarrow' in an environment of its own"
        ) from None
    source = SOURCES[kind]
    folder = f"{DATA}/{system}/{source.operation}/"
    kernels: Kernels = {}
    with zipfile.ZipFile(wheel) as archive:
        for path in sorted(archive.namelist()):
            if not (
                path.startswith(folder) and path.endswith(f"/{source.name}.parquet")
            ):
                continue
            content = io.BytesIO(archive.read(path))
            present = set(parquet.read_schema(content).names)
            if "op_name" in source.equal and "op_name" not in present:
                continue
            filters = [(x, "=", y) for x, y in source.equal.items() if x in present]
            columns = [*source.columns, "latency"]
            rows = parquet.read_table(content, columns=columns, filters=filters)
            for *shape, latency_ms in zip(
                *(rows[name].to_pylist() for name in columns), strict=True
            ):
                key = tuple(shape)
                if latency_ms and concerns_training(kind, key):
                    time_ns = 1e6 * latency_ms
                    kernels[key] = min(time_ns, kernels.get(key, math.inf))
    return kernels


def drawn(kernels: Kernels, number: int, name: str) -> Kernels:
    """Return so many of the kernels, the same each time for a name."""
    shapes = sorted(kernels)
    if len(shapes) > number:
        shapes = random.Random(f"{SEED} {name}").sample(shapes, number)
    return {shape: kernels[shape] for shape in shapes}


# Predictions


def _attention_core(shape: Shape) -> Operator:
    samples, length, heads, kv_heads, head_size = shape
    block = Block(
        name="attention",
        hidden=heads * head_size,
        attention=Attention(heads=heads, kv_heads=kv_heads, head_size=head_size),
        mlp=Mlp(hidden=1),
    )
    split = Split(samples=samples, sequence_length=length)
    operators = attention(block, block.attention, split, FUSED).operators
    return next(x for x in operators if x.name == "attention core")


def _expert_operators(shape: Shape) -> list[Operator]:
    """Return what the wheel times: all but the router."""
    tokens, hidden, width, visits, experts = shape
    mlp = Mlp(hidden=width, gated=True, experts=experts, experts_per_token=visits)
    block = Block(
        name="experts",
        hidden=hidden,
        attention=Attention(heads=1, kv_heads=1, head_size=hidden),
        mlp=mlp,
    )
    split = Split(samples=1, sequence_length=tokens)
    operators = expert_mlp(block, mlp, split, FUSED).operators
    return [operator for operator in operators if operator.name != "router"]


@cache
def operators_of(kind: str, shape: Shape) -> tuple[Operator, ...]:
    """Return the operators that a kernel stands for."""
    if kind == "attention":
        return (_attention_core(shape),)
    if kind == "experts":
        return tuple(_expert_operators(shape))
    m, k, n = shape
    return (linear("product", m, k, n)._replace(casts=False),)


def collective_ns(kind: CollectiveKind, shape: Shape, site: Machine) -> float:
    """Return what the planner takes a collective in a node to take."""
    ranks, values = shape
    network = _network(site)
    group = network.shape(list(range(ranks)))
    return network.collective_ns(kind, [group], 2 * values)


@cache
def _network_of(name: str) -> HierarchyNetwork:
    site = next(x for x in machines() if x.name == name)
    topology = site.cluster(8).topology
    assert topology.kind == "hierarchy"
    return HierarchyNetwork(topology)


def _network(site: Machine) -> HierarchyNetwork:
    return _network_of(site.name)


def kernel_ns(kind: str, shape: Shape, site: Machine) -> float:
    """Return the predicted time of a kernel, without hosts.

    A product in fp8 has the cast of its first factor with it.
    """
    if kind in COLLECTIVES.values():
        return collective_ns(kind, shape, site)  # type: ignore[arg-type]
    dtype: Dtype = "fp8" if kind.startswith("fp8") else "bf16"
    cast_ns = 0.0
    if dtype == "fp8":
        assert site.device.hbm_bytes_per_s
        rate = site.device.hbm_bytes_per_s * site.calibration.memory_fraction
        cast_ns = site.calibration.cast_bytes * shape[0] * shape[1] / rate * 1e9
    times_ns = [operator_ns(x, site, dtype)[0] for x in operators_of(kind, shape)]
    return math.fsum(times_ns) + cast_ns


def site_of(device: str) -> Machine | None:
    """Return the first machine of a device; ``None`` if nest has none."""
    try:
        name = device_spec(device).name
    except UnknownNameError:
        return None
    return next((x for x in machines() if x.device.name == name), None)


class Sample(NamedTuple):
    """Measured kernels of one class on one machine."""

    device: str
    kind: str
    site: Machine
    kernels: Kernels

    def logarithms(self, calibration: Calibration | None = None) -> list[float]:
        """Return ln of predicted over measured times, with other rates if given."""
        site = self.site
        if calibration is not None:
            site = site.with_calibration(calibration)
        return [
            math.log(kernel_ns(self.kind, shape, site) / time_ns)
            for shape, time_ns in self.kernels.items()
        ]


def figures(logarithms: Sequence[float]) -> dict[str, float | int]:
    """Return number, median ratio, and median error after one factor."""
    middle = statistics.median(logarithms)
    rest = statistics.median(abs(math.expm1(x - middle)) for x in logarithms)
    return {
        "kernels": len(logarithms),
        "ratio": round(math.exp(middle), 3),
        "error_after_factor": round(rest, 4),
    }


# The fit to kernels alone

Values = dict[str, float]


def minimize(
    loss: Callable[[Values], float], start: Values, bounds: Mapping[str, float]
) -> Values:
    """Return values near a start with the least loss, by a pattern search.

    It moves one or two values at a time, because a rate and a half size that are both
    higher fit nearly as well.
    """
    best, least, step = dict(start), loss(start), 1.5
    moves = [{x: a} for x in start for a in (1, -1)]
    moves += [
        {x: a, y: b}
        for x, y in itertools.combinations(start, 2)
        for a in (1, -1)
        for b in (0.5, -0.5, 2, -2)
    ]
    while step > 1.002:
        improved = False
        for move in moves:
            trial = dict(best)
            for name, power in move.items():
                value = best[name] * step**power
                trial[name] = min(value, bounds.get(name, math.inf))
            found = loss(trial)
            if found < least - 1e-6:
                best, least, improved = trial, found, True
        if not improved:
            step = math.sqrt(step)
    return best


def _loss(
    samples: Sequence[Sample], values: Values, fitted: Mapping[str, Values]
) -> float:
    """Return the mean over samples of mean absolute logarithms.

    Kernels are too short for power to limit clocks. ``fitted`` are earlier fits, by
    family.
    """
    means = []
    for sample in samples:
        family = family_of(sample.site)
        fields = {"power_exponent": 0.0} | fitted.get(family, {})
        own = {
            name.rpartition(".")[2]: value
            for name, value in values.items()
            if name.rpartition(".")[0] in ("", family)
        }
        rates = replace(sample.site.calibration, **(fields | own))
        means.append(statistics.fmean(map(abs, sample.logarithms(rates))))
    return statistics.fmean(means)


def family_of(site: Machine) -> str:
    """Return the family whose rates a machine takes."""
    return calibrated_family(site.calibration_family)


def _nearest(
    samples: Sequence[Sample], start: Values, fitted: Mapping[str, Values]
) -> Values:
    """Return values near a start with the least loss; fractions are at most 1."""
    bounds = dict.fromkeys((x for x in start if x.endswith("fraction")), 1.0)
    bounds.pop("low_precision_fraction", None)
    return minimize(lambda values: _loss(samples, values, fitted), start, bounds)


def fit_kernels(samples: Iterable[Sample]) -> dict[str, float]:
    """Return rates by ``family.field``, those of all families by ``every.field``.

    Devices of a family count alike. Products come first, then attention, then what
    moves tokens to experts.
    """
    by_kind: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.device != CHECK:
            by_kind[sample.kind].append(sample)
    products, low = by_kind["bf16 product"], by_kind["fp8 product"]
    fitted: dict[str, Values] = {}
    for family in sorted({family_of(sample.site) for sample in products}):
        start = {"matmul_fraction": 0.75, "matmul_half_size": 200.0}
        some = [x for x in products if family_of(x.site) == family]
        fitted[family] = _nearest(some, start, {})
        if some := [x for x in low if family_of(x.site) == family]:
            start = {"low_precision_fraction": 1.0}
            fitted[family] |= _nearest(some, start, fitted)
    start = {f"{family}.attention_fraction": 0.6 for family in fitted}
    start |= {"attention_half_blocks": 200.0}
    common = _nearest(by_kind["attention"], start, fitted)
    common |= _nearest(by_kind["experts"], {"routing_passes": 1.5}, fitted)
    result = {
        f"{family}.{name}": value
        for family, values in fitted.items()
        for name, value in values.items()
    }
    for name, value in common.items():
        result[name if "." in name else f"every.{name}"] = value
    return {name: float(f"{value:.4g}") for name, value in sorted(result.items())}


def cells(samples: Sequence[Sample], fitted: Mapping[str, float]) -> dict[str, Any]:
    """Return the figures by device and class, with stored and with fitted rates."""
    result: dict[str, dict[str, Any]] = defaultdict(dict)
    for sample in samples:
        entry = {"stored": figures(sample.logarithms())}
        family = family_of(sample.site)
        fields = {
            name.partition(".")[2]: value
            for name, value in fitted.items()
            if name.partition(".")[0] in ("every", family)
        }
        rates = replace(sample.site.calibration, power_exponent=0.0, **fields)
        if sample.kind not in COLLECTIVES.values():
            entry["fitted"] = figures(sample.logarithms(rates))
        result[sample.device][sample.kind] = entry
    return result


def of_families(samples: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    """Return the figures with stored rates by family and class.

    A device that no fit has seen is a family of its own.
    """
    pooled: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        known = sample.device != CHECK
        family = family_of(sample.site) if known else sample.device
        pooled[family][sample.kind] += sample.logarithms()
    return {
        family: {kind: figures(logarithms) for kind, logarithms in kinds.items()}
        for family, kinds in pooled.items()
    }


def tables(families: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of the page: ratio and error of families by class."""

    def cell(family: str, kind: str) -> str:
        if kind not in families[family]:
            return "–"
        entry = families[family][kind]
        return f"{entry['ratio']:.2f}, {100 * entry['error_after_factor']:.0f} %"

    rows = ([kind, *(cell(name, kind) for name in families)] for kind in CLASSES)
    return table(" | ".join(["kernels", *families]), rows)


def main() -> None:
    """Read the wheel, compare and fit, and write results and table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--shapes", type=int, default=800)
    arguments = parser.parse_args()
    samples = []
    for system, device in SYSTEMS.items():
        site = site_of(device)
        if site is None:
            print(f"left out {device}, which nest does not know")
            continue
        for kind in CLASSES:
            kernels = read_kernels(arguments.wheel, system, kind)
            kernels = drawn(kernels, arguments.shapes, f"{system} {kind}")
            if kernels:
                samples.append(Sample(device, kind, site, kernels))
    fitted = fit_kernels(samples)
    document: dict[str, Any] = {
        "command": f"python bench/kernels.py WHEEL --shapes {arguments.shapes}",
        "wheel": arguments.wheel.name,
        "fit": fitted,
        "families": of_families(samples),
        "devices": cells(samples, fitted),
    }
    write_result("kernels", document)
    text = tables(document["families"])
    fill(page_path("kernels"), "kernels", text)
    print(text)


if __name__ == "__main__":
    main()
