"""The compact names of generated networks, such as ``fat-tree:k=8``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import networkx as nx

from nest.errors import InvalidOptionError, UnknownNameError
from nest.topology.generators.build import MAX_DEVICES, Cable, Spines, refuse
from nest.topology.generators.table import GENERATORS, Generator, Parameter, Value
from nest.util.quantities import RATE, read_in

_YES = {"yes": True, "true": True, "no": False, "false": False}


def generate(text: str) -> nx.Graph:
    """Return the network that a compact name stands for.

    The name is ``<generator>:<parameter>=<value>,...``; the first parameter may be
    given without its name: ``torus:4x4x4``. :data:`GENERATORS` has all of them with
    units and defaults. For the graph see docs/topologies.md, *What does the graph
    contain?*

    Raises ``UnknownNameError`` if there is no such generator, or it has no such
    parameter, and ``InvalidOptionError`` if the text has another form, or a value is
    missing, out of range or does not go with the others.
    """
    generator, values = read_name(text)
    graph = build(generator, values)
    if "spine0" not in graph:
        check_spines(generator, values)
    graph.graph["name"] = text.strip()
    return graph


def check_spines(generator: Generator, stated: Mapping[str, Value]) -> None:
    """Refuse figures of spines, for a network in which spines join nothing.

    Raises ``InvalidOptionError`` if one is stated that is not the default.
    """
    size = generator.parameters[0].name
    total: Any = stated.get(size)
    names = {parameter.name for parameter in generator.parameters}
    remedy, switches, got = f"raise {size}", "leaves", f"one for all {size}"
    for unit in names & {"nodes_per_leaf", "segment"}:
        divisors = range(1, math.isqrt(total) + 1)
        count = max(x for x in divisors if total % x == 0)
        switches = "segments" if unit == "segment" else "leaves"
        if total > 1:
            remedy = f"write {unit}={count}"
    if stated.get("spines") == 0:
        remedy, got = "remove spines=0", "none"
    for parameter in generator.parameters:
        value = stated.get(parameter.name, parameter.default)
        if parameter.argument == "up" and value not in (parameter.default, 0):
            raise InvalidOptionError(
                f"{generator.name}: {parameter.name}={value:g}: expected several "
                f"{switches} joined by spines, got {got}, so it has no effect; "
                f"{remedy}"
            )


def enlarged(text: str, num_devices: int) -> str:
    """Return how a name gets so many devices; empty if that is not simple."""
    generator, stated = read_name(text)
    first, *others = generator.parameters
    *_, parameter = (first, *(x for x in others if x.required))
    value: Any = stated.get(parameter.name, parameter.default)
    if parameter.kind is not int:
        return ""
    present = len(build(generator, stated).graph["order"])
    count = -(-value * num_devices // present)
    try:
        graph = build(generator, {**stated, parameter.name: count})
    except InvalidOptionError:
        return ""
    if not num_devices <= len(graph.graph["order"]) < 2 * num_devices:
        return ""
    return f"write {parameter.name}={count} ({parameter.meaning})"


def read_name(text: str) -> tuple[Generator, dict[str, Value]]:
    """Return the generator and the values in a name, see :func:`generate`."""
    name, _, rest = text.strip().partition(":")
    name = name.strip().lower()
    if name not in GENERATORS:
        raise UnknownNameError("topology generator", name, GENERATORS)
    generator = GENERATORS[name]
    return generator, {
        parameter.name: _read(name, parameter, text_value)
        for parameter, text_value in _texts(generator, rest)
    }


def build(generator: Generator, stated: Mapping[str, Value]) -> nx.Graph:
    """Return the network of a generator with some of its parameters.

    Raises ``InvalidOptionError`` if a value is missing, out of range or does not go
    with the others.
    """
    name = generator.name
    values: dict[str, Value] = {}
    for parameter in generator.parameters:
        value = stated.get(parameter.name, parameter.default)
        if value is None and parameter.required:
            raise InvalidOptionError(
                f"{name}: {parameter.name}: expected {parameter.meaning}, got none; "
                f"write {generator.example}"
            )
        _check(name, parameter, value)
        values[parameter.name] = value
    graph = generator.make(**_arguments(generator, values))
    graph.graph["name"] = name
    return graph


def _arguments(generator: Generator, values: Mapping[str, Value]) -> dict[str, object]:
    """Return the arguments of a generator's function: several values as one.

    The fields of an argument end the names of its parameters.
    """
    names_by_argument: dict[str, list[str]] = {}
    for parameter in generator.parameters:
        argument = parameter.argument or parameter.name
        names_by_argument.setdefault(argument, []).append(parameter.name)
    arguments: dict[str, object] = {}
    for argument, names in names_by_argument.items():
        if names == [argument]:
            arguments[argument] = values[argument]
            continue
        kind: Any = Spines if argument == "up" else Cable
        fields = {
            field: values[name]
            for field in kind._fields
            for name in names
            if name.endswith(field)
        }
        arguments[argument] = kind(**fields)
    return arguments


def _texts(generator: Generator, rest: str) -> list[tuple[Parameter, str]]:
    """Return the parameters in a text with the texts of their values."""
    by_name = {x.name: x for x in generator.parameters}
    texts: dict[str, str] = {}
    for position, item in enumerate(rest.split(",") if rest.strip() else ()):
        name, equals, value = (piece.strip() for piece in item.partition("="))
        if not equals:
            if position or not name:
                raise InvalidOptionError(
                    f"{generator.name}: expected <parameter>=<value>, got "
                    f"{item!r}; write {generator.example}"
                )
            name, value = generator.parameters[0].name, name
        if name not in by_name:
            where = f"{generator.name}: parameter"
            raise UnknownNameError(where, name, by_name)
        if name in texts:
            raise InvalidOptionError(
                f"{generator.name}: {name}: expected once, got it twice; leave one out"
            )
        texts[name] = value
    return [(by_name[name], value) for name, value in texts.items()]


def _read(where: str, parameter: Parameter, text: str) -> Value:
    """Return the value of a parameter from its text."""
    readers: dict[type, tuple[str, Callable[[str], Value]]] = {
        int: ("a whole number", int),
        float: ("a number", partial(_real, parameter.unit)),
        bool: ("yes or no", lambda value: _YES[value.lower()]),
        tuple: (
            "a shape such as 4x4",
            lambda value: tuple(map(int, re.split("[x×]", value.lower()))),
        ),
        str: (" or ".join(parameter.choices), str),
    }
    expected, reader = readers[parameter.kind]
    try:
        return reader(text)
    except (ValueError, KeyError):
        raise InvalidOptionError(
            f"{where}: {parameter.name}: expected {expected}, got {text!r}; it is "
            f"{parameter.meaning}"
        ) from None


def _real(unit: str, text: str) -> float:
    """Return a number; bandwidths may have a unit, such as 400Gb/s."""
    return read_in(text, RATE, "B/s") if unit == "bytes/s" else float(text)


def _check(where: str, parameter: Parameter, value: Value) -> None:
    """Refuse a value that is out of range."""
    if value is None or isinstance(value, bool):
        return
    where = f"{where}: {parameter.name}"
    if isinstance(value, str):
        if value not in parameter.choices:
            raise UnknownNameError(where, value, parameter.choices)
        return
    minimum = parameter.minimum
    for value_part in value if isinstance(value, tuple) else (value,):
        if isinstance(value_part, int) and value_part > MAX_DEVICES:
            refuse(where, f"at most {MAX_DEVICES}", value_part, "ask for less")
        valid = value_part > minimum if parameter.above else value_part >= minimum
        if not valid or not math.isfinite(value_part):
            refuse(
                where,
                f"{'more than' if parameter.above else 'at least'} {minimum:g}"
                + (f" {parameter.unit}" if parameter.unit else ""),
                f"{value_part:g}",
                f"it is {parameter.meaning}",
            )
