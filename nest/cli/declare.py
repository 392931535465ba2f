"""How options are declared, and how their values are read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import click

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

T = TypeVar("T")
Reader = TypeVar("Reader", bound=Callable[..., Any])

#: Largest value of an integer whose reader names no limit.
_MOST = 2**31 - 1

#: Least value of an exact number, whose inverse is the largest one, and the
#: most characters of one.
_LEAST = 1e-30
_MOST_CHARACTERS = 100


def option(
    usage: str,
    text: str,
    read: Callable[[Any], Any] | None = None,
    *names: str,
    default: Any = None,
    **settings: Any,
) -> Decorator:
    """Return what adds an option to a command.

    Parameters
    ----------
    usage
        As the help shows it, such as ``-o --output FILE``; a flag has no
        word for its value.
    text
        What it means; the default is added.
    read
        Turns the text of the command line into the value.
    names
        What the command calls it, where that is not the option itself.
    default
        Value if it is not given.
    settings
        More for :func:`click.option`.
    """
    flags = [word for word in usage.split() if word.startswith("-")]
    metavar = usage.removeprefix(" ".join(flags)).strip()
    if default is not None:
        settings["default"] = default
        text += f"  [default: {default}]" if metavar else ""
    if metavar:
        settings |= {"type": read, "metavar": metavar}
    else:
        settings["is_flag"] = True
    return click.option(*flags, *names, help=text, **settings)


def output_option(what: str) -> Decorator:
    """Add ``-o``, the file that what was made goes to; it must be given."""
    text = f"Where to write the {what}; '-' is standard output."
    return option("-o --output FILE", text, required=True)


def json_option(what: str) -> Decorator:
    """Add ``--json``, which writes a document instead; alone it is ``-``."""
    return option(
        "--json [FILE]",
        f"Write {what} as JSON instead; '-', or no FILE, is standard output.",
        None,
        "json_path",
        is_flag=False,
        flag_value="-",
    )


def reader(
    parse: Callable[[Any], T],
    accepts: Callable[[T], bool],
    expected: str,
    remedy: str,
) -> Callable[[Any], T]:
    """Return a reader of values that refuses all others with a message."""

    def read(text: Any) -> T:
        try:
            value = parse(text)
            if accepts(value):
                return value
        except (ValueError, ZeroDivisionError):
            pass
        raise click.BadParameter(
            f"expected {expected}, got {text!r}; {remedy}"
        )

    return read


def positive(what: str, remedy: str) -> Callable[[Any], float]:
    """Return a reader of finite numbers above 0."""
    return reader(
        float,
        lambda value: 0 < value < math.inf,
        f"a finite number of {what} > 0",
        remedy,
    )


seconds = positive("seconds", "leave it out for the default")

fraction = reader(
    float,
    lambda value: 0 <= value < 1,
    "a fraction from 0 to below 1",
    "0.02 is 2 %",
)


_positive = reader(
    float,
    lambda value: value > 0,
    "a number > 0",
    "for example 1.5 or 2e12",
)


#: A number that is not 0, however small.
_NOT_ZERO = re.compile(r"\s*\+?[0._]*[1-9]")


def amount(text: str) -> Fraction:
    """Read a number above 0 exactly as it is written.

    Raises
    ------
    click.BadParameter
        If it is none, or one that would take long: 1e999999999 has as many
        digits.
    """
    try:
        tiny = float(text) == 0 and bool(_NOT_ZERO.match(text))
    except ValueError:
        tiny = False
    value = 0.0 if tiny else _positive(text)
    if len(text) > _MOST_CHARACTERS or not _LEAST <= value <= 1 / _LEAST:
        raise click.BadParameter(
            f"expected a number from {_LEAST:g} to {1 / _LEAST:g} of at most "
            f"{_MOST_CHARACTERS} characters, got {text!r}; correct the value"
        )
    return Fraction(text)


def integer(lowest: int = 1, highest: int = _MOST) -> Callable[[Any], int]:
    """Return a reader of integers from a range."""
    return reader(
        int,
        lambda value: lowest <= value <= highest,
        f"an integer from {lowest} to {highest}",
        "correct the value",
    )


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def integers(
    lowest: int = 1, highest: int = _MOST
) -> Callable[[Any], tuple[int, ...]]:
    """Return a reader of distinct integers, separated by commas."""
    limits = f"from {lowest} to {highest}"
    if highest == _MOST:
        limits = f">= {lowest}"
    return reader(
        lambda text: tuple(map(int, text.split(","))),
        lambda values: (
            all(lowest <= value <= highest for value in values)
            and len(set(values)) == len(values)
        ),
        f"distinct integers {limits} separated by commas",
        "for example 1,2",
    )


def words(
    known: Sequence[str], parts: Callable[[str], tuple[str, ...]] = _parts
) -> Callable[[Any], tuple[str, ...]]:
    """Return a reader of distinct words out of a few, by commas."""
    read = reader(
        parts,
        lambda found: (
            len(set(found)) == len(found) and set(found) <= set(known)
        ),
        f"some of {','.join(known)}, each once, separated by commas",
        f"for example {known[0]}",
    )
    return completing(read, known)


def completing(read: Reader, words: Sequence[str]) -> Reader:
    """Tell shells which words a reader knows, and return it."""
    read.words = words  # type: ignore[attr-defined]
    return read


def switches(text: str) -> tuple[bool, ...]:
    """Read ``on``, ``off``, or both separated by a comma."""
    return tuple(name == "on" for name in _switches(text))


_switches = words(("on", "off"))

#: Names separated by commas.
names = reader(_parts, all, "names separated by commas", "for example A,B")


def one_of(*known: str) -> Callable[[str], str]:
    """Return a reader of one of a few names."""

    def read(text: str) -> str:
        if text not in known:
            raise click.BadParameter(
                f"expected one of {', '.join(known)}; got {text!r}; choose "
                f"one of them"
            )
        return text

    return completing(read, known)
