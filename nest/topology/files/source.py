"""A file as text, its numbers and names, and the errors about it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nest.errors import InvalidOptionError, InvalidProblemError
from nest.ir import documents, yaml_documents
from nest.ir.documents import refusing
from nest.ir.io import read_text
from nest.topology.files.supplement import MEANING, FileSupplement

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def shown(value: object) -> str:
    """Return a value for a message, on one line and cut short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def listed(names: Iterable[object]) -> str:
    """Return the first five of many names, and how many more there are."""
    texts = [str(name) for name in names]
    if len(texts) <= 5:
        return ", ".join(texts)
    return f"{', '.join(texts[:5])} and {len(texts) - 5} more"


@dataclass(frozen=True)
class Source:
    """The text of a file, and the options that complete it.

    Methods that read a value raise :class:`~nest.errors.InvalidProblemError` in one
    line: file and location, what was expected, what came, and what to do. The file is
    called ``where`` in messages; the user states the ``supplement`` in addition to it.
    """

    where: str
    text: str
    supplement: FileSupplement = field(default_factory=FileSupplement)

    def refuse(
        self,
        location: str,
        expected: str,
        got: object,
        remedy: str = "correct the value",
    ) -> InvalidProblemError:
        """Return the error about one location (empty: the whole file)."""
        at = f"{location}: " if location else ""
        return self.error(f"{at}expected {expected}, got {got}; {remedy}")

    def error(self, text: object) -> InvalidProblemError:
        """Return an error about the file, in one line fit for terminals."""
        line = f"{self.where}: {text}"
        return InvalidProblemError(
            "".join(one if one.isprintable() else "?" for one in line)
        )

    def check_once(
        self,
        location: str,
        what: str,
        name: str,
        seen: Container[str],
        remedy: str = "remove one",
    ) -> None:
        """Refuse a name that the file has stated before."""
        if name in seen:
            raise self.refuse(location, f"every {what} once", f"{name} twice", remedy)

    def option(self, *names: str) -> Any:
        """Return the values of options, one alone or a tuple.

        Raises ``InvalidOptionError`` if one has no value; the text names all that are
        missing.
        """
        values = tuple(getattr(self.supplement, name) for name in names)
        missing = [
            name for name, value in zip(names, values, strict=True) if value is None
        ]
        if missing:
            texts = [f"{name} ({MEANING[name]})" for name in missing]
            raise InvalidOptionError(
                f"{self.where}: expected {', '.join(texts)} beside the file, got none, "
                f"and the file does not say; give {' and '.join(missing)}"
            )
        return values[0] if len(values) == 1 else values

    def option_among(self, name: str, choices: Collection[str]) -> str | None:
        """Return an option that names a part of the file, if it has a value.

        Raises ``InvalidOptionError`` if it names none of the choices.
        """
        value: str | None = getattr(self.supplement, name)
        if value is not None and value not in choices:
            raise InvalidOptionError(
                f"{self.where}: {name}: expected one of {listed(choices)}, "
                f"got {value!r}; give {MEANING[name]}"
            )
        return value

    def option_per_tier(self, name: str, count: int) -> tuple[float, ...]:
        """Return the values of an option that has one for each tier.

        Raises ``InvalidOptionError`` if there are fewer or more; none are needed for no
        tiers.
        """
        if count == 0 and getattr(self.supplement, name) is None:
            return ()
        values: tuple[float, ...] = self.option(name)
        if len(values) != count:
            raise InvalidOptionError(
                f"{self.where}: {name}: expected {count} numbers, one per tier that "
                f"has one above, got {len(values)}; give {MEANING[name]}"
            )
        return tuple(values)

    def number(
        self, location: str, value: object, *, positive: bool, unit: str
    ) -> float:
        """Return a finite number, above 0 or at least 0.

        Text counts if all of it is a number: YAML reads ``1e3`` as text.
        """
        expected = f"a number {'> 0' if positive else '>= 0'} ({unit})"
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.refuse(location, expected, shown(value))
        try:
            finite = float(value)
        except OverflowError:
            finite = math.inf
        if not math.isfinite(finite) or finite < 0 or (positive and not finite):
            raise self.refuse(location, expected, shown(value))
        return finite

    def integer(self, location: str, value: object, *, minimum: int) -> int:
        """Return an integer; text counts if it has only digits."""
        if (
            isinstance(value, str)
            and len(value) <= 18
            and re.fullmatch(r"[0-9]+", value)
        ):
            value = int(value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not minimum <= value < 2**53
        ):
            raise self.refuse(location, f"an integer >= {minimum}", shown(value))
        return value

    def name(self, location: str, value: object) -> str:
        """Return a name: text that can be printed, or an integer as text."""
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise self.refuse(location, "a name", shown(value))
        return value

    def mapping(
        self,
        location: str,
        value: object,
        keys: tuple[str, ...] | None = None,
        needed: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Return a mapping that has no keys but the known ones."""
        if not isinstance(value, dict):
            raise self.refuse(location, "a mapping", shown(value), "correct its form")
        for key in value:
            if not isinstance(key, str) or (keys is not None and key not in keys):
                expected = "text" if keys is None else " or ".join(keys)
                raise self.refuse(
                    location, f"keys {expected}", shown(key), "remove or correct it"
                )
        for key in needed:
            if value.get(key) is None:
                raise self.refuse(location, f"key {key!r}", "none", "add it")
        return value

    def mappings(
        self,
        location: str,
        value: object,
        keys: tuple[str, ...] | None = None,
        needed: tuple[str, ...] = (),
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the mappings in a list, each with its location in the file."""
        for idx, item in enumerate(self.sequence(location, value)):
            at = f"{location}[{idx}]"
            yield at, self.mapping(at, item, keys, needed)

    def sequence(self, location: str, value: object) -> list[Any]:
        """Return a list."""
        if not isinstance(value, list):
            raise self.refuse(location, "a list", shown(value), "correct its form")
        return value


def read_source(path: str | Path, supplement: FileSupplement | None = None) -> Source:
    """Read a file as text.

    Raises ``InvalidProblemError`` if it is missing, empty, too large, or no text.
    """
    text = read_text(path, InvalidProblemError, "topology file")
    where = str(path)
    if not text.strip():
        raise Source(where, "").refuse(
            "", "a topology", "an empty file", "write it again"
        )
    return Source(where, text, supplement or FileSupplement())


def parse_json(source: Source) -> Any:
    """Parse strict JSON: no NaN, no key twice in an object."""
    with refusing(source.where, InvalidProblemError):
        return documents.parse_json(source.text)


def parse_yaml(source: Source) -> Any:
    """Parse one YAML document, safely: no tags, no key twice in a mapping.

    Nor aliases, which are not needed here.
    """
    with refusing(source.where, InvalidProblemError):
        return yaml_documents.parse_yaml(source.text, aliases=False)


def parse_xml(source: Source) -> ElementTree.Element:
    """Parse XML without document types and entities; return the root element."""
    declared = re.search(r"(?i)<!(DOCTYPE|ENTITY)", source.text)
    if declared is not None:
        raise source.error(
            f"expected XML without document types and entities, got {declared[0]}; "
            f"remove the declaration"
        )
    try:
        return ElementTree.fromstring(source.text)
    except (ElementTree.ParseError, ValueError) as error:
        got = f"malformed text ({shown(str(error))})"
        remedy = "check that the file is complete"
        raise source.refuse("", "XML", got, remedy) from error
