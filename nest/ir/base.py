"""What all parts of the IR share: the frozen base class and local checks."""

from __future__ import annotations

import math

import msgspec

from nest.units import MAX_TERM

#: A layer name. Integers are kept as they come, so that a plan written for
#: an imported graph can use that graph's own numbers.
LayerId = int | str


class Struct(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Immutable record; unknown keys are refused when it is read."""


def check_integer(field: str, value: int, minimum: int) -> None:
    """Raise ``ValueError`` unless ``minimum <= value <= MAX_TERM``."""
    if value < minimum:
        raise ValueError(f"{field}: expected >= {minimum}, got {value}")
    if value > MAX_TERM:
        raise ValueError(
            f"{field}: expected <= 2**53, got {value}; check its unit"
        )


def check_real(field: str, value: float, *, positive: bool = False) -> None:
    """Raise ``ValueError`` unless the value is finite and in range."""
    sign = "> 0" if positive else ">= 0"
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(
            f"{field}: expected a finite number {sign}, got {value}"
        )
    if value > 1e21:
        raise ValueError(
            f"{field}: expected <= 1e21, got {value:g}; check its unit"
        )


def check_distinct(field: str, values: tuple[object, ...]) -> None:
    """Raise ``ValueError`` if a value occurs twice or there is none."""
    if not values:
        raise ValueError(f"{field}: expected at least one value, got none")
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise ValueError(
                f"{field}: expected distinct values, got {value!r} twice; "
                f"remove one"
            )
        seen.add(value)
