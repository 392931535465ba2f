"""List every number that predictions rest on and that runs or hands have set.

    python bench/number_list.py

Numbers of data sheets are not listed. The list is written to
``bench/results/numbers.md``; docs/validation.md counts them, and a test keeps the two
alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import fields

from bench.result_files import ROOT, result_path, table
from nest.calibration.parameters import PARAMETERS, SOFTWARE
from nest.hardware.calibration import Calibration, stored_calibration
from nest.hardware.links import stored_link_calibration
from nest.models.operators import mlp
from nest.validation import software
from nest.validation.predict import FP4_CASTS

#: Values that say that nothing is lost, hidden or added.
NEUTRAL = (0.0, 1.0)
#: Fields of families that follow from data sheets.
DATA_SHEETS = ("exponential_size", "watts_per_tflops")
LINK_FIELDS = ("efficiency", "latency_ns", "launch_ns", "group_loss")

NO_SOURCE = "set by hand; no source is recorded"

#: How numbers without a published source were set, by the history of the repository.
_OF_A100 = (
    "A100's in the first fit, to 971 step times (2026-11-21), kept when TPUs became a "
    "family of their own; no run of a TPU tells it"
)
_GUESSED = (
    "a guess, in the first fit (2026-11-21) already; how it was chosen is not recorded"
)
HOW_SET = {
    "every.collective_kernels": "came with the host's time (2026-11-22), with three "
    "digits, so probably from a fit; its rows are not recorded",
    "TPU.matmul_half_size": _OF_A100,
    "TPU.attention_fraction": _OF_A100,
    "V100.matmul_half_size": f"{_GUESSED}; next to no loss, so that the rate, which 17 "
    "runs fit, has all of it",
    "V100.attention_fraction": f"{_GUESSED}; few kernels of fused attention run there",
}


class Number(NamedTuple):
    """One number: what kind it is, its name, its value, and its source."""

    kind: str
    name: str
    value: float
    source: str


def fitted() -> Iterator[Number]:
    """Yield the parameters that are fitted to step times."""
    stored = stored_calibration()
    for parameter in PARAMETERS:
        if parameter.field == "slowdown":
            continue
        if parameter.family == SOFTWARE:
            value = stored.software.overlap[parameter.field]  # type: ignore[index]
        else:
            # What is one for every family is that of all but compiled programs.
            family = stored.of(parameter.family) or stored.families["A100"]
            value = getattr(family, parameter.field)
        source = f"step times; prior {parameter.value:g}: {parameter.note}"
        yield Number("fitted", parameter.name, value, source)


def set_by_hand() -> Iterator[Number]:
    """Yield what families and routers have that is not fitted, each value once."""
    names = {parameter.name for parameter in PARAMETERS}
    seen = set()
    for family, calibration in sorted(stored_calibration().families.items()):
        for field in fields(Calibration):
            if field.type is not float or field.name in DATA_SHEETS:
                continue
            value = getattr(calibration, field.name)
            known = {f"{family}.{field.name}", f"every.{field.name}"} & names
            if known or value in NEUTRAL or (field.name, value) in seen:
                continue
            seen.add((field.name, value))
            name = f"{family}.{field.name}"
            if value == field.default:
                name = f"every.{field.name}"
            yield Number("set by hand", name, value, HOW_SET.get(name, NO_SOURCE))
    for name, value in stored_calibration().software.overlap.items():
        if f"software.{name}" not in names:
            yield Number("set by hand", f"software.{name}", value, "as that of tp")
    source = "bytes of casts, counted: nest/validation/predict.py"
    yield Number("set by hand", "casts to fp4 over those to fp8", FP4_CASTS, source)
    source = "counted in Megatron-Core's code: nest/models/operators/mlp.py"
    yield Number("set by hand", "router kernels", mlp.ROUTER_KERNELS, source)
    backward = mlp.ROUTER_BACKWARD_KERNELS
    yield Number("set by hand", "router kernels, backward", backward, source)


def of_links() -> Iterator[Number]:
    """Yield what link families reach; what one takes from another counts once."""
    for family, values in sorted(stored_link_calibration().families.items()):
        taken = re.findall(r"(\w+) of NVLink", values.provenance)
        for name in LINK_FIELDS:
            value = getattr(values, name)
            if value and name not in taken:
                source = values.provenance.partition(";")[0]
                yield Number("links", f"{family}.{name}", value, source)


def of_software() -> Iterator[Number]:
    """Yield factors of software, each value once."""
    names = ("attention_share", "host_share")
    seen = set()
    for entry in software.SOFTWARE:
        for name in names:
            value = getattr(entry, name)
            if value in NEUTRAL or (name, value) in seen:
                continue
            seen.add((name, value))
            source = entry.sources.get(name, f"software.json: {entry.name}")
            yield Number("software", name, value, source)
    source = "TransformerEngine's attention.ipynb: nest/validation/software.py"
    value = software.SECOND_FLASH_ON_HOPPER
    yield Number("software", "second FlashAttention on Hopper", value, source)


def of_reserves() -> Iterator[Number]:
    """Yield what devices keep, in bytes, where it is not as another vendor's."""
    path = ROOT / "nest" / "hardware" / "data" / "devices.json"
    for vendor, reserve in json.loads(path.read_text())["reserves"].items():
        if "; as " not in reserve["source"]:
            value, source = reserve["reserve_bytes"], reserve["source"]
            yield Number("reserves", vendor, value, source)


def all_numbers() -> list[Number]:
    """Return all of them, in the order of the table of docs/validation.md."""
    cached = stored_calibration().software.cached_fraction
    source = "median over the runs that nvidia-smi measured"
    return [
        *fitted(),
        *set_by_hand(),
        Number("memory", "cached_fraction", cached, source),
        *of_links(),
        *of_software(),
        *of_reserves(),
    ]


def counts(numbers: list[Number]) -> dict[str, int]:
    """Return how many there are of each kind."""
    result: dict[str, int] = {}
    for number in numbers:
        result[number.kind] = result.get(number.kind, 0) + 1
    return result


def page(numbers: list[Number]) -> str:
    """Return the list as a page."""

    def cells(number: Number) -> tuple[Any, ...]:
        source = number.source.replace("|", "/")
        return number.kind, number.name, f"{number.value:.4g}", source

    return (
        f"# {len(numbers)} numbers\n\n`python bench/number_list.py` writes this list. "
        f"Intervals have others, which move no prediction.\n\n"
        + table("kind | number | value | source", map(cells, numbers), "llrl")
        + "\n"
    )


def main() -> None:
    """Write the list."""
    path = result_path("numbers").with_suffix(".md")
    path.write_text(page(all_numbers()), encoding="utf-8")
    print(counts(all_numbers()))


if __name__ == "__main__":
    main()
