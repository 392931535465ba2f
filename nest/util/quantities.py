"""Quantities that people write: a number and its unit, as ``1.05 GHz``.

A number without a unit is refused: whether 128 is bytes or MiB is nothing to
guess. Numbers are decimals and are kept exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from nest.units import MAX_TERM

#: Bytes of the units of a size.
SIZES = {
    **{f"{letter}B": 1000**i for i, letter in enumerate("kMGT", 1)},
    **{f"{letter}iB": 1024**i for i, letter in enumerate("KMGT", 1)},
}

#: Digits before and after the point, at most.
_NUMBER = r"(\d{1,15}(?:\.\d{1,30})?)"
_QUANTITY = re.compile(rf"{_NUMBER}\s*([^\s\d.].*)")


class Kind(NamedTuple):
    """What a quantity is of.

    ``what``, ``example`` and ``counted`` are for people: with an article, a text, what
    is counted. ``units`` says how much of the smallest thing counted each unit is.
    """

    what: str
    example: str
    counted: str
    units: Mapping[str, int | Fraction]


def _powers(unit: str, letters: str) -> dict[str, int]:
    """Return a unit with prefixes that are a thousand apart."""
    return {f"{letter.strip()}{unit}": 1000**i for i, letter in enumerate(letters)}


#: In bytes.
SIZE = Kind("a size", "128 MiB", "bytes", {"B": 1, **SIZES})

#: In bytes/s.
RATE = Kind(
    "a bandwidth",
    "1200 GB/s",
    "bytes/s",
    {
        **{f"{unit}/s": count for unit, count in SIZE.units.items()},
        **{
            unit: Fraction(count, 8)
            for spelling in ("bit/s", "b/s", "bps")
            for unit, count in _powers(spelling, " kMGT").items()
        },
    },
)

#: In Hz.
FREQUENCY = Kind("a frequency", "1.05 GHz", "Hz", _powers("Hz", " kMG"))

#: In ns.
TIME = Kind(
    "a time", "3 us", "ns", {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
)

#: In 1e-6 µm².
AREA = Kind(
    "an area",
    "278.8 mm2",
    "1e-6 um2",
    {
        **dict.fromkeys(("um2", "µm2", "um²", "µm²"), 10**6),
        **dict.fromkeys(("mm2", "mm²"), 10**12),
        **dict.fromkeys(("cm2", "cm²"), 10**14),
    },
)

#: In µm.
LENGTH = Kind("a length", "300 mm", "um", {"um": 1, "µm": 1, "mm": 10**3})

#: In mW.
POWER = Kind("a power", "300 W", "mW", {"mW": 1, "W": 10**3, "kW": 10**6})

#: In µW/mm².
POWER_DENSITY = Kind(
    "a power per area",
    "1.1 W/mm2",
    "uW/mm2",
    {
        **dict.fromkeys(("uW/mm2", "µW/mm²"), 1),
        **dict.fromkeys(("mW/mm2", "mW/mm²"), 10**3),
        **dict.fromkeys(("W/cm2", "W/cm²"), 10**4),
        **dict.fromkeys(("W/mm2", "W/mm²"), 10**6),
    },
)

#: In millionths of a dollar.
MONEY = Kind(
    "a price",
    "9000 USD",
    "millionths of a dollar",
    {"USD": 10**6, "kUSD": 10**9, "MUSD": 10**12},
)

#: In millionths of a dollar per 10⁹ bytes.
MONEY_PER_SIZE = Kind(
    "a price of memory", "7 USD/GB", "millionths of a dollar per GB", {"USD/GB": 10**6}
)

#: In 1/m².
DENSITY = Kind(
    "a density of defects", "0.1 /cm2", "/m2", {"/m2": 1, "/cm2": 10**4, "/mm2": 10**6}
)


def split(text: str, units: Iterable[str]) -> tuple[Fraction, str] | None:
    """Return a number and its unit; ``None`` for all other texts."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        return None
    return Fraction(match[1]), match[2]


def read_quantity(value: object, kind: Kind) -> Fraction:
    """Return how much a text says, in what its kind counts.

    Raises ``ValueError``, with what was expected and what came, if the unit is missing
    or another kind's, or there is no number.
    """
    amount = split(value, kind.units) if isinstance(value, str) else None
    if amount is None:
        raise ValueError(
            f"expected {kind.what} with its unit such as {kind.example!r}, got "
            f"{_shown(value)}; write a number and one of {', '.join(kind.units)}"
        )
    return amount[0] * kind.units[amount[1]]


def read_in(text: str, kind: Kind, unit: str) -> float:
    """Return how much a text says in a unit, which may be left out.

    Raises ``ValueError`` if it is neither a number nor a quantity.
    """
    amount = split(text, kind.units)
    if amount is None:
        return float(text)
    return float(amount[0] * kind.units[amount[1]] / kind.units[unit])


def without_units(document: Any) -> Any:
    """Return a document with numbers where sizes and bandwidths have units.

    The key says what a value is: ``…_bytes`` and ``…_bytes_per_s``. Texts
    that are no quantity stay, for whoever reads the document to refuse.
    """
    if isinstance(document, list):
        return [without_units(item) for item in document]
    if not isinstance(document, dict):
        return document

    def converted(key: Any, value: Any) -> Any:
        kind = RATE if str(key).endswith("_bytes_per_s") else SIZE
        is_quantity = str(key).endswith(("_bytes", "_bytes_per_s"))
        if not is_quantity or not isinstance(value, str):
            return without_units(value)
        amount = split(value, kind.units)
        if amount is None:
            return value
        result = amount[0] * kind.units[amount[1]]
        return float(result) if kind is RATE else int(result)

    return {key: converted(key, value) for key, value in document.items()}


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool | int | float):
        return f"{value} without one"
    return repr(value)


def read_whole(value: object, kind: Kind, minimum: int = 1) -> int:
    """Return how much a text says, where that is a whole number.

    Raises ``ValueError`` if it is none, is less than ``least``, or more than 2**53.
    """
    amount = read_quantity(value, kind)
    if amount.denominator != 1:
        raise ValueError(
            f"expected a whole number of {kind.counted}, got {value!r}; round it"
        )
    if not minimum <= amount <= MAX_TERM:
        raise ValueError(
            f"expected {minimum} to 2**53 {kind.counted}, got {value!r}; "
            f"correct the number or its unit"
        )
    return int(amount)
