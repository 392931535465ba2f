"""Readers of values: what a setting accepts, from text or from Python.

A reader takes the text of a command line (``"4,8"``) or a Python value
(``(4, 8)``) and returns the value that requests hold. What it returns it
accepts again. It refuses everything else with a :class:`RefusedValueError`
that says what was expected; who calls it adds the name of the setting.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from fractions import Fraction
from typing import Any, Generic, TypeAlias, TypeVar

from nest.errors import InvalidOptionError, NestError
from nest.util.quantities import Kind, read_in

T = TypeVar("T")

#: What Python callers may pass for a list of integers or of words, for
#: ``KEY=VALUE`` pairs, and for a file.
Integers: TypeAlias = Sequence[int] | str
Words: TypeAlias = Sequence[str] | str
Pairs: TypeAlias = Mapping[str, Any] | Sequence[str] | str
PathText: TypeAlias = str | os.PathLike[str]

#: Largest value of an integer whose reader names no limit.
_MAX_INTEGER = 2**31 - 1

#: Smallest value of an exact number; its inverse is the largest one.
_MIN_AMOUNT = 1e-30
_MAX_CHARACTERS = 100

#: Longest wrong value that a message repeats.
_MAX_SHOWN = 80


def both_given(name: str, other: str) -> InvalidOptionError:
    """Return the error for two options that exclude each other."""
    return InvalidOptionError(
        f"{name}: expected either it or {other}, got both; remove one"
    )


def also_needed(name: str, other: str, remedy: str = "add it") -> InvalidOptionError:
    """Return the error for an option that another one has to come with."""
    return InvalidOptionError(f"{name}: expected {other} too, got none; {remedy}")


class RefusedValueError(ValueError):
    """A value that a reader does not accept: ``expected …, got …; …``."""


class Reader(Generic[T]):
    """Turns a value into what a request holds, or refuses it.

    ``parse`` turns text, or a Python value, into the result, and raises a
    ``ValueError`` or ``TypeError`` for what it cannot read; ``accepts`` says whether
    the result is allowed. Messages say what is ``expected``, and the ``remedy``; shells
    complete ``words``.
    """

    def __init__(
        self,
        parse: Callable[[Any], T],
        accepts: Callable[[T], bool],
        expected: str,
        remedy: str,
        words: Iterable[str] = (),
    ) -> None:
        self._parse, self._accepts = parse, accepts
        self._expected, self._remedy = expected, remedy
        self.words = tuple(words)

    def __call__(self, value: Any) -> T:
        """Return the value that is meant."""
        try:
            result = self._parse(value)
            if self._accepts(result):
                return result
        except RefusedValueError:
            raise
        except (ValueError, TypeError, ZeroDivisionError, OverflowError):
            pass
        raise RefusedValueError(
            f"expected {self._expected}, got {shown(value)}; {self._remedy}"
        )


def shown(value: Any) -> str:
    """Return a wrong value for a message; long ones by their type."""
    text = repr(value)
    is_short = isinstance(value, str) or len(text) <= _MAX_SHOWN
    return text if is_short else f"a {type(value).__name__}"


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return int(value) if isinstance(value, str) else operator.index(value)


def _parts(value: Any) -> tuple[Any, ...]:
    """Return the elements of a list; text separates them by commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    is_list = isinstance(value, Iterable) and not isinstance(value, Mapping)
    return tuple(value) if is_list else (value,)


def positive(what: str, remedy: str) -> Reader[float]:
    """Return a reader of finite numbers above 0."""
    return Reader(
        _number,
        lambda value: 0 < value < math.inf,
        f"a finite number of {what} > 0",
        remedy,
    )


def number_between(
    lowest: float, highest: float, what: str, remedy: str
) -> Reader[float]:
    """Return a reader of numbers from a range, both ends included."""
    return Reader(
        _number,
        lambda value: lowest <= value <= highest,
        f"from {lowest:g} to {highest:g} {what}",
        remedy,
    )


def quantity(
    kind: Kind,
    unit: str,
    lowest: float = 0,
    highest: float = math.inf,
    reads: Callable[[float], Any] = float,
) -> Reader[Any]:
    """Return a reader of quantities in a range, whose unit may be left out."""

    def parse(value: Any) -> Any:
        return reads(read_in(str(value), kind, unit))

    limits = f" from {lowest:g} to {highest:g}" * (highest < math.inf)
    return Reader(
        parse,
        lambda value: lowest <= value <= highest,
        f"{kind.what}{limits} in {unit}, or with another unit",
        f"for example {kind.example}",
    )


seconds = positive("seconds", "leave it out for the default")

dollars = positive("dollars", "for example 2.5")

fraction = Reader(
    _number, lambda value: 0 <= value < 1, "a fraction from 0 to below 1", "0.02 is 2 %"
)

_positive = Reader(
    _number, lambda value: value > 0, "a number > 0", "for example 1.5 or 2e12"
)

#: A number that is not 0, however small.
_NOT_ZERO = re.compile(r"\s*\+?[0._]*[1-9]")


#: A number with a dollar sign before it or a letter for its size after it.
_AMOUNT = re.compile(r"\s*\$?\s*(\S+?)\s*([kmbt]?)\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 3, "m": 6, "b": 9, "t": 12}


def amount(value: Any) -> Fraction:
    """Read a number above 0 exactly as it is written.

    A Python float stands for its shortest decimal text: 0.1 is 1/10. Texts
    may be ``500B``, ``1.5T`` or ``$2.5``.

    Raises ``RefusedValueError`` if it is none, or one that would take long: 1e999999999
    has as many digits.
    """
    if isinstance(value, Fraction):
        text, size = str(value), float(value)
    else:
        text = value if isinstance(value, str) else str(value)
        match = _AMOUNT.fullmatch(text)
        if isinstance(value, str) and match is not None:
            power = _POWERS[match[2].lower()]
            if power and not re.search("e", match[1], re.IGNORECASE):
                text = value = f"{match[1]}e{power}"
            elif not power:
                text = value = match[1]
        try:
            tiny = float(text) == 0 and bool(_NOT_ZERO.match(text))
        except ValueError:
            tiny = False
        size = 0.0 if tiny else _positive(value)
    in_range = _MIN_AMOUNT <= size <= 1 / _MIN_AMOUNT
    if len(text) > _MAX_CHARACTERS or not in_range:
        raise RefusedValueError(
            f"expected a number from {_MIN_AMOUNT:g} to {1 / _MIN_AMOUNT:g} of at most "
            f"{_MAX_CHARACTERS} characters, got {shown(value)}; correct the value"
        )
    return Fraction(text)


def token_count(value: Any) -> Fraction:
    """Read a number of tokens, see :func:`amount`."""
    try:
        return amount(value)
    except RefusedValueError as error:
        raise RefusedValueError(f"{error}, 500M, 500B or 1.5T") from None


def percent(value: Any) -> Fraction:
    """Read a relative difference: ``1%``, or 0.01.

    Raises ``RefusedValueError`` if it is none, or not above 0 and below 1.
    """
    number, sign, rest = str(value).strip().partition("%")
    try:
        size = amount(number) / (100 if sign else 1)
    except RefusedValueError:
        size = Fraction(0)
    if rest or not 0 < size < 1:
        raise RefusedValueError(
            f"expected a percentage above 0% and below 100%, got "
            f"{shown(value)}; for example 1%"
        )
    return size


def integer(lowest: int = 1, highest: int = _MAX_INTEGER) -> Reader[int]:
    """Return a reader of integers from a range."""
    return Reader(
        _integer,
        lambda value: lowest <= value <= highest,
        f"an integer from {lowest} to {highest}",
        "correct the value",
    )


def _date(value: Any) -> str:
    is_date = isinstance(value, date)
    return date.fromisoformat(value.isoformat() if is_date else value).isoformat()


#: Reader of a day, as text or from ``datetime``, into ISO 8601.
read_date = Reader(_date, bool, "a date", "for example 2026-11-23")


def integers(lowest: int = 1, highest: int = _MAX_INTEGER) -> Reader[tuple[int, ...]]:
    """Return a reader of distinct integers, separated by commas."""
    limits = f"from {lowest} to {highest}"
    if highest == _MAX_INTEGER:
        limits = f">= {lowest}"
    return Reader(
        lambda value: tuple(map(_integer, _parts(value))),
        lambda values: (
            bool(values)
            and all(lowest <= value <= highest for value in values)
            and len(set(values)) == len(values)
        ),
        f"distinct integers {limits} separated by commas",
        "for example 1,2",
    )


def several_of(
    allowed: Sequence[str], parts: Callable[[Any], tuple[str, ...]] = _parts
) -> Reader[tuple[str, ...]]:
    """Return a reader of distinct words out of a few, by commas."""
    return Reader(
        parts,
        lambda values: (
            bool(values)
            and len(set(values)) == len(values)
            and set(values) <= set(allowed)
        ),
        f"some of {','.join(allowed)}, each once, separated by commas",
        f"for example {allowed[0]}",
        allowed,
    )


_SWITCHES = several_of(("on", "off"))


def _switches(value: Any) -> tuple[bool, ...]:
    names = {True: "on", False: "off"}
    parts = _parts(value)
    return tuple(
        name == "on"
        for name in _SWITCHES(
            value if isinstance(value, str) else [names.get(x, x) for x in parts]
        )
    )


#: ``on``, ``off``, or both separated by a comma; in Python ``True``,
#: ``False``, or both.
switches = Reader(_switches, bool, "on, off or both", "", _SWITCHES.words)

#: Names separated by commas.
names = Reader(
    _parts,
    lambda values: all(isinstance(x, str) and x for x in values),
    "names separated by commas",
    "for example A,B",
)


def one_of(*allowed: str) -> Reader[str]:
    """Return a reader of one of a few names."""

    def parse(value: Any) -> str:
        if value not in allowed:
            raise RefusedValueError(
                f"expected one of {', '.join(allowed)}; got {shown(value)}; "
                f"choose one of them"
            )
        return str(value)

    return Reader(parse, bool, "", "", allowed)


def text(value: Any) -> str:
    """Read text, or the path of a file."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise RefusedValueError(
        f"expected text or a path, got {shown(value)}; correct the value"
    )


#: Text that is not blank.
name_text = Reader(
    text, lambda value: bool(value.strip()), "a name", "for example 'NeMo 24.07'"
)


def pairs(value: Any) -> tuple[str, ...]:
    """Read ``KEY=VALUE`` texts; in Python also a mapping, or one text."""
    if isinstance(value, Mapping):
        return tuple(f"{key}={x}" for key, x in value.items())
    return _texts(value)


def restrictions(value: Any) -> tuple[str, ...]:
    """Read settings of plans: texts such as ``tp=8,pp=4``, or a mapping."""
    if isinstance(value, Mapping):
        return (settings_text(value),)
    return _texts(value)


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable):
        parts = tuple(value)
        if all(isinstance(part, str) for part in parts):
            return parts
    raise RefusedValueError(
        f"expected NAME=VALUE texts or a mapping, got {shown(value)}; correct the value"
    )


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as text: any of several values will do."""
    parts = []
    for name, value in settings.items():
        is_list = isinstance(value, Iterable) and not isinstance(value, str)
        alternatives = value if is_list else (value,)
        parts.append(f"{name}={'|'.join(map(str, alternatives))}")
    return ",".join(parts)


def flag(value: Any) -> bool:
    """Read whether something is on."""
    if isinstance(value, bool):
        return value
    raise RefusedValueError(
        f"expected True or False, got {shown(value)}; correct the value"
    )


def anything(value: Any) -> Any:
    """Take a value as it is: whoever uses it checks it."""
    return value


def solver_keyword(text: str) -> str:
    """Return the keyword of a solver that a keyword or a file names.

    The planner of a description file is registered under its keyword.
    """
    from nest.solvers.command import is_description

    if not is_description(text):
        return text
    from nest.solvers.registry import register_planner

    return register_planner(text)


def read_solver(value: Any) -> str:
    """Read the keyword of a solver, see :func:`solver_keyword`."""
    if not isinstance(value, str | os.PathLike):
        raise RefusedValueError(
            f"expected a keyword such as 'dp', or a file, got "
            f"{shown(value)}; see nest.solver_names()"
        )
    try:
        return solver_keyword(os.fspath(value))
    except NestError as error:
        raise RefusedValueError(str(error)) from None
