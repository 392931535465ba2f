"""How many numbers predictions rest on that runs or hands have set."""

from __future__ import annotations

import ast
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec.structs import FieldInfo, fields

from bench import number_list
from bench.calibrate_links import NVLINK_STEP_NS
from bench.result_files import result_path
from nest.calibration.parameters import EVERY, PARAMETERS, SOFTWARE
from nest.hardware.calibration import Calibration
from nest.hardware.calibration import Software as Fractions
from nest.hardware.links import LinkCalibration
from nest.models.operators import mlp
from nest.validation.predict import FP4_CASTS
from nest.validation.software import FIRST_FLASH, SECOND_FLASH_ON_HOPPER, Software

ROOT = Path(__file__).parents[3]

#: More than these would fit anything.
MOST = 60

#: Values that say that nothing is lost, hidden or added.
NEUTRAL = (0.0, 1.0)

#: Parameters that are what they are before a fit and after it: a factor of
#: sources that predictions never have.
ONLY_PRIORS = {"every.slowdown"}

#: Constants that are factors of software.
FACTORS = {"FIRST_FLASH", "FP4_CASTS", "SECOND_FLASH_ON_HOPPER"}

#: Fields of families that follow from data sheets.
DATA_SHEETS = {"exponential_size", "watts_per_tflops"}

#: Fields of a link that are fitted or set; the others say how well.
LINK_FIELDS = ("efficiency", "latency_ns", "launch_ns", "group_loss")

#: Constants of modules that price plans, which no run has set.
CONSTANTS = {
    "ATTENTION_BACKWARD": "five products backward for two forward",
    "BEST_TOLERANCE": "of a statistic",
    "_ABOVE": "of rounding in sums of floats",
    "_ALIKE": "of the names of software",
    "_SIZE_TOLERANCE": "of the names of devices",
    "FS_PER_NS": "a unit",
    "HIGH_SPEARMAN": "of a statistic",
    "NS_PER_S": "a unit",
    "NVLINK": "data sheets",
    "NVLINK_BYTES_PER_S": "a data sheet",
    "WAITING": "of intervals, which move no prediction",
    "_MEMORY_ROUNDING": "of figures that are impossible",
    "_SAME_FLOPS": "of figures that are impossible",
    "_SAME_STEP": "of figures that are impossible",
    "_SIZE_BYTES": "a message to compare orders of devices by",
    "_SWITCH_NS": "a data sheet",
    "_TIME_ROUNDING": "of figures that are impossible",
}


def stored(name: str) -> Any:
    path = files("nest.hardware") / "data" / f"{name}.json"
    return json.loads(path.read_bytes())


def fitted() -> set[str]:
    return {parameter.name for parameter in PARAMETERS} - ONLY_PRIORS


def set_by_hand() -> set[tuple[str, float]]:
    """Values of families, overlap and routers that are not fitted, each once.

    What a family does not state is the default; where a program is compiled
    no host is waited for.
    """
    names = fitted()
    calibration = stored("device_calibration")
    found = {
        ("router forward", mlp.ROUTER_KERNELS),
        ("router backward", mlp.ROUTER_BACKWARD_KERNELS),
        ("casts to fp4", FP4_CASTS),
    }
    for family, values in calibration["families"].items():
        for field in fields(Calibration):
            if field.type is not float or field.name in DATA_SHEETS:
                continue
            if {f"{family}.{field.name}", f"{EVERY}.{field.name}"} & names:
                continue
            value = values.get(field.name, field.default)
            if value not in NEUTRAL:
                found.add((field.name, value))
    for name, value in calibration["software"]["overlap"].items():
        if f"{SOFTWARE}.{name}" not in names:
            found.add((f"overlap.{name}", value))
    return found


def of_links() -> list[tuple[str, str]]:
    """Numbers of links, those that are taken from another family once."""
    found = []
    for family, values in stored("link_calibration")["families"].items():
        taken = set(re.findall(r"(\w+) of NVLink", values["provenance"]))
        found += [
            (family, field)
            for field in LINK_FIELDS
            if field not in taken and values[field]
        ]
    return found


def is_number(field: FieldInfo) -> bool:
    """Return whether a fact is a number between others, not a count."""
    return isinstance(field.default, float)


def of_software() -> set[tuple[str, float]]:
    """Factors of software; facts such as bytes or switches are none."""
    path = files("nest.validation") / "data" / "software.json"
    entries = json.loads(path.read_bytes())
    names = {field.name for field in fields(Software) if is_number(field)}
    stated = {
        (name, entry[name])
        for entry in entries
        for name in names & entry.keys()
        if entry[name] not in NEUTRAL
    }
    # The first FlashAttention is stated there.
    return stated | {("on Hopper", SECOND_FLASH_ON_HOPPER)}


def of_reserves() -> set[tuple[str, int]]:
    """What devices of a vendor keep, where it is not as another's."""
    reserves = stored("devices")["reserves"]
    return {
        (vendor, reserve["reserve_bytes"])
        for vendor, reserve in reserves.items()
        if "; as " not in reserve["source"]
    }


def counted() -> dict[str, int]:
    """Return the numbers by the first word of their line in the docs."""
    fractions = [field.name for field in fields(Fractions) if field.type is float]
    return {
        "fitted": len(fitted()),
        "set by hand": len(set_by_hand()),
        "memory": len(fractions),
        "links": len(of_links()),
        "software": len(of_software()),
        "reserves": len(of_reserves()),
    }


def documented() -> dict[str, int]:
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    table = text.split("| parameters | number |\n")[1].split("\n\n")[0]
    rows = [line.strip("| ").split("|") for line in table.splitlines()[1:]]
    return {name.split(":")[0].strip(): int(count) for name, count in rows}


def test_the_docs_count_every_number():
    counts = counted()
    assert documented() == {**counts, "all": sum(counts.values())}


def test_the_list_has_each_of_them():
    numbers = number_list.all_numbers()
    assert number_list.counts(numbers) == counted()
    stored_list = result_path("numbers").with_suffix(".md").read_text("utf-8")
    assert stored_list == number_list.page(numbers)


def test_there_are_few():
    assert sum(counted().values()) <= MOST


def test_intervals_have_twenty_nine():
    path = files("nest.calibration") / "data" / "intervals.json"

    def numbers(entry: object) -> int:
        if isinstance(entry, dict):
            return sum(map(numbers, entry.values()))
        return isinstance(entry, float)

    assert numbers(json.loads(path.read_bytes())) == 29
    text = (ROOT / "docs" / "validation.md").read_text(encoding="utf-8")
    assert "Intervals have 29 more" in text


def test_every_field_of_a_calibration_is_counted():
    """A new one is a float of which the counts above know."""
    assert {field.name for field in fields(Calibration) if field.type is not float} == {
        "provenance"
    }
    assert {field.name for field in fields(Fractions) if field.type is not float} == {
        "overlap",
        "provenance",
    }
    known = {*LINK_FIELDS, "num_points", "provenance"}
    assert {
        field.name
        for field in fields(LinkCalibration)
        if not field.name.endswith(("_error", "_error_before"))
    } == known


def test_what_is_counted_once():
    """Of links one latency is set by hand for three families."""
    latencies = [
        values["latency_ns"]
        for values in stored("link_calibration")["families"].values()
    ]
    assert latencies.count(NVLINK_STEP_NS) == 3
    assert [field for _, field in of_links()].count("latency_ns") == 4
    assert ("attention_share", FIRST_FLASH) in of_software()


def test_modules_have_no_numbers_of_their_own():
    """Constants that are no whole numbers are in the data or listed here."""
    found = set()
    for room in ("cost", "hardware", "models", "topology", "validation"):
        for path in (ROOT / "nest" / room).rglob("*.py"):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.Assign):
                    target, value = node.targets[0], node.value
                elif isinstance(node, ast.AnnAssign):
                    target, value = node.target, node.value
                else:
                    continue
                if isinstance(target, ast.Name) and has_float(value):
                    found.add(target.id)
    assert found == CONSTANTS.keys() | FACTORS


def has_float(value: ast.expr | None) -> bool:
    """Return whether an expression is computed from floats alone."""
    if value is None or any(
        isinstance(node, ast.Name | ast.Call | ast.Dict) for node in ast.walk(value)
    ):
        return False
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, float)
        for node in ast.walk(value)
    )
