"""The compact names of generated networks, such as ``fat-tree:k=8``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NoReturn

import networkx as nx

from nest.errors import InvalidOptionError, UnknownNameError
from nest.topology.generators.build import MAX_DEVICES, refuse
from nest.topology.generators.table import (
    GENERATORS,
    Generator,
    Parameter,
    Value,
)

_YES = {"yes": True, "true": True, "no": False, "false": False}


def generate(text: str) -> nx.Graph:
    """Return the network that a compact name stands for.

    Parameters
    ----------
    text
        ``<generator>:<parameter>=<value>,...``; the first parameter may be
        given without its name: ``torus:4x4x4``. :data:`GENERATORS` has all
        of them with units and defaults.

    Returns
    -------
    networkx.Graph
        Nodes have ``kind``; links ``bandwidth`` in bytes/s one way and
        ``latency_ns``; the graph ``name``, ``order`` and, where it has any,
        ``units``, ``coord`` and ``wrap``.

    Raises
    ------
    UnknownNameError
        If there is no such generator, or it has no such parameter.
    InvalidOptionError
        If the text has another form, or a value is missing, out of range or
        does not go with the others.
    """
    name, _, rest = text.strip().partition(":")
    name = name.strip().lower()
    if name not in GENERATORS:
        raise UnknownNameError("topology generator", name, GENERATORS)
    generator = GENERATORS[name]
    given = {
        known.name: _read(name, known, word)
        for known, word in _words(generator, rest)
    }
    graph = build(name, given)
    graph.graph["name"] = text.strip()
    return graph


def build(name: str, given: Mapping[str, Value]) -> nx.Graph:
    """Return the network of a generator with some of its parameters.

    Raises
    ------
    UnknownNameError
        If there is no such generator, or it has no such parameter.
    InvalidOptionError
        If a value is missing, out of range or does not go with the others.
    """
    if name not in GENERATORS:
        raise UnknownNameError("topology generator", name, GENERATORS)
    generator = GENERATORS[name]
    known = {parameter.name: parameter for parameter in generator.parameters}
    for word in given:
        if word not in known:
            raise UnknownNameError(f"{name}: parameter", word, known)
    values: dict[str, Value] = {}
    for parameter in generator.parameters:
        value = given.get(parameter.name, parameter.default)
        if value is None and parameter.required:
            refuse(
                f"{name}: {parameter.name}",
                parameter.meaning,
                "none",
                f"write {generator.example}",
            )
        _check(name, parameter, value)
        values[parameter.name] = value
    graph = generator.make(**values)
    graph.graph["name"] = name
    return graph


def _words(generator: Generator, rest: str) -> list[tuple[Parameter, str]]:
    """Return the parameters in a text and what they are said to be."""
    known = {parameter.name: parameter for parameter in generator.parameters}
    found: dict[str, str] = {}
    for position, part in enumerate(rest.split(",") if rest.strip() else ()):
        word, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            if position or not word:
                refuse(
                    generator.name,
                    "<parameter>=<value>",
                    repr(part),
                    f"write {generator.example}",
                )
            word, value = generator.parameters[0].name, word
        if word not in known:
            raise UnknownNameError(f"{generator.name}: parameter", word, known)
        if word in found:
            raise InvalidOptionError(
                f"{generator.name}: {word}: expected once, got it twice; "
                f"leave one out"
            )
        found[word] = value
    return [(known[word], value) for word, value in found.items()]


def _read(where: str, parameter: Parameter, word: str) -> Value:
    """Return what a word of a text says about a parameter."""

    def wrong(expected: str) -> NoReturn:
        refuse(
            f"{where}: {parameter.name}",
            expected,
            repr(word),
            f"it is {parameter.meaning}",
        )

    readers: dict[type, tuple[str, Callable[[str], Value]]] = {
        int: ("a whole number", int),
        float: ("a number", float),
        bool: ("yes or no", lambda said: _YES[said.lower()]),
        tuple: (
            "a shape such as 4x4",
            lambda said: tuple(map(int, re.split("[x×]", said.lower()))),
        ),
        str: (" or ".join(parameter.choices), str),
    }
    expected, reader = readers[parameter.kind]
    try:
        return reader(word)
    except (ValueError, KeyError):
        wrong(expected)


def _check(where: str, parameter: Parameter, value: Value) -> None:
    """Refuse a value that is out of range."""
    if value is None or isinstance(value, bool):
        return
    place = f"{where}: {parameter.name}"
    if isinstance(value, str):
        if value not in parameter.choices:
            raise UnknownNameError(place, value, parameter.choices)
        return
    least = parameter.minimum
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, int) and part > MAX_DEVICES:
            refuse(place, f"at most {MAX_DEVICES}", part, "ask for less")
        good = part > least if parameter.above else part >= least
        if not good or not math.isfinite(part):
            refuse(
                place,
                f"{'more than' if parameter.above else 'at least'} {least:g}"
                + (f" {parameter.unit}" if parameter.unit else ""),
                f"{part:g}",
                f"it is {parameter.meaning}",
            )
