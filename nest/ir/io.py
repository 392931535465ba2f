"""Read and write problems and plans: JSON both ways, YAML in.

Every message names the file, the place in it, what was expected and what
came. Reading never alters a value; unknown keys are refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nest.errors import InvalidPlanError, InvalidProblemError, NestError
from nest.ir.cluster import ALGORITHMS, TOPOLOGIES
from nest.ir.documents import MalformedError, parse_json, read_file, refusing, text_of
from nest.ir.graph import AXES, COLLECTIVES, PHASES
from nest.ir.graph_topology import NODE_KINDS
from nest.ir.job import (
    ANY_ORDER,
    MICRO_BATCH_COUNTS,
    OVERLAP_NEEDS,
    SCHEDULES,
    SEVERAL,
    SHARDING,
    SHARED,
)
from nest.ir.plan import OVERLAP, RECOMPUTE, Plan
from nest.ir.problem import Problem
from nest.util.files import write_atomically

T = TypeVar("T")

#: Fields that take one of a few names; with the one around them where that says which.
_NAMES = {
    "topology.kind": TOPOLOGIES,
    "nodes.kind": NODE_KINDS,
    "collective": COLLECTIVES,
    "schedule": (*SCHEDULES, ANY_ORDER),
    "schedule[]": SCHEDULES,
    "recompute": RECOMPUTE,
    "axis": AXES,
    "phase": PHASES,
    "kind": COLLECTIVES,
    "overlap": OVERLAP,
    "uniform": SHARED,
    "zero_with": SEVERAL,
    "sharded_with": SHARDING,
    "overlap_needs": OVERLAP,
    "overlap_needs[]": OVERLAP_NEEDS,
    "micro_batch_count": MICRO_BATCH_COUNTS,
    "algorithms": ALGORITHMS,
    # Of operators, see nest.operator_schedule.records.
    "engine": ("tensor", "vector", "both", "none"),
}


def read_problem(path: str | Path) -> Problem:
    """Read a problem file (.json, .yaml or .yml)."""
    return decode_problem(read_bytes(path, InvalidProblemError), str(path))


def read_plan(path: str | Path) -> Plan:
    """Read a plan file (.json, .yaml or .yml)."""
    data = read_bytes(path, InvalidPlanError)
    return decode(data, str(path), Plan, "plan", InvalidPlanError)


def decode_problem(data: bytes, where: str = "problem") -> Problem:
    """Decode a problem; ``where`` names the source in messages."""
    return decode(data, where, Problem, "problem", InvalidProblemError)


def encode(record: msgspec.Struct) -> bytes:
    """Return the record as indented JSON with a final newline."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def plan_to_json(plan: Plan | None) -> Any:
    """Return the object that :func:`encode` would write."""
    if plan is None:
        return None
    return msgspec.json.decode(msgspec.json.encode(plan))


def write(path: str | Path, record: msgspec.Struct) -> None:
    """Write the record to a file, whole or not at all."""
    write_atomically(Path(path), encode(record))


def problem_hash(problem: Problem) -> str:
    """Return the SHA-256 of the canonical JSON (sorted keys, no blanks)."""
    # Reading back turns every number into the type of its field, so that a
    # problem built in Python and its file have one hash.
    same = msgspec.json.decode(msgspec.json.encode(problem), type=Problem)
    canonical = json.dumps(
        msgspec.to_builtins(same, str_keys=True), sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def read_bytes(
    path: str | Path, error_type: type[NestError], what: str = "file"
) -> bytes:
    """Return what a file holds; raise ``error_type`` if it has nothing.

    So too if it has more than :data:`~nest.ir.documents.MAX_FILE_BYTES`.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise error_type(
                f"{path}: expected a {what}, got a directory; name a file in it"
            )
        with refusing(str(path), error_type):
            return read_file(path)
    except OSError as error:
        raise error_type(
            f"{path}: expected a readable {what}, got "
            f"{error.strerror or error}; check the path"
        ) from error


def read_text(path: str | Path, error_type: type[NestError], what: str = "file") -> str:
    """Return the text in a file; see :func:`read_bytes`."""
    data = read_bytes(path, error_type, what)
    with refusing(str(path), error_type):
        return text_of(data)


def decode(
    data: bytes,
    where: str,
    record_type: type[T],
    what: str,
    error_type: type[NestError],
) -> T:
    """Decode JSON, or YAML if ``where`` ends so.

    Parameters
    ----------
    data, where
        The text, and the name of its source in messages.
    record_type, what
        What it should be, for msgspec and for people.
    error_type
        Raised if it is not.
    """
    is_yaml = where.endswith((".yaml", ".yml"))
    expected = f"a {what} in {'YAML' if is_yaml else 'JSON'}"
    try:
        with refusing(where, error_type):
            text = text_of(data, expected)
            if is_yaml:
                # Most files are JSON: YAML is loaded when one needs it.
                from nest.ir.yaml_documents import parse_yaml

                document = parse_yaml(text, expected)
                record = msgspec.convert(document, record_type)
            else:
                record, document = _decode_json(text, expected, record_type)
    except msgspec.ValidationError as error:
        raise error_type(_describe(where, error, record_type)) from error
    config: Any = getattr(record_type, "__struct_config__", None)
    field = None if config is None else config.tag_field
    if field is not None and field not in document:
        raise error_type(
            f"{where}: $: expected key {field!r}, got none; add {field!r} "
            f"with the value {config.tag!r}"
        )
    return record


def _decode_json(text: str, expected: str, record_type: type[T]) -> tuple[T, Any]:
    """Return the record, and the same as plain values."""
    try:
        record = msgspec.json.decode(text, type=record_type)
        return record, parse_json(text, expected)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError) as error:
        parse_json(text, expected)  # says in which line
        raise MalformedError(
            expected, f"malformed text ({error})", "check that the file is complete"
        ) from None


def convert(
    document: object, where: str, record_type: type[T], error_type: type[NestError]
) -> T:
    """Return a record of plain values, as :func:`decode` reads it."""
    try:
        return msgspec.convert(document, record_type, str_keys=True)
    except msgspec.ValidationError as error:
        raise error_type(_describe(where, error, record_type)) from error


def _describe(where: str, error: msgspec.ValidationError, record_type: Any) -> str:
    """Turn a validation error into 'where: place: expected, got'."""
    text, _, place = str(error).rpartition(" - at ")
    if not text:
        text, place = str(error), "`$`"
    text = " ".join(text.split())
    place = place.removeprefix("`key` in ")
    if text.startswith("Object contains unknown field"):
        field = text.split("`")[1]
        text = f"expected a known key, got {field!r}; remove or correct it"
    elif text.startswith("Object missing required field"):
        field = text.split("`")[1]
        text = f"expected key {field!r}, got none; add it"
    elif text.startswith("Expected"):
        text = f"e{text[1:]}"
    elif text.startswith("Invalid"):
        text = _expected_name(text, place.strip("`"), record_type)
    elif "out of range" in text:
        text = f"expected a number within 64 bits, got more ({text})"
    if "; " not in text:
        text += "; correct the value"
    return f"{where}: {place.strip('`')}: {text}"


def _expected_name(text: str, place: str, record_type: Any) -> str:
    """Say which names a field takes that got another one."""
    around, field = ["", *re.findall(r"(\w+)(?:\[[^]]*\])*", place)][-2:]
    if field == record_type.__struct_config__.tag_field:
        names: tuple[str, ...] = (str(record_type.__struct_config__.tag),)
    else:
        listed = f"{field}[]" if place.endswith("]") else field
        names = (
            _NAMES.get(f"{around}.{field}")
            or _NAMES.get(listed)
            or _NAMES.get(field, ())
        )
    got = text.rpartition(" ")[2]
    if not names:
        return f"expected a known name, got {got}"
    return f"expected {' or '.join(map(repr, names))}, got {got}"
