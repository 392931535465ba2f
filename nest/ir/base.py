"""What all parts of the IR share: the frozen base class and local checks.

The type of a field says what its values may be, such as :data:`Count`: a
check in it takes the field's name and a value and raises ``ValueError``,
naming the field, if that is out of range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from nest.errors import InvalidTextError
from nest.units import MAX_TERM

T = TypeVar("T")
Check = Callable[[str, Any], None]

#: What stands for an infinite bandwidth, in bytes/s: the most that a problem
#: may have. 10 GB take 0.01 ns.
FAST_BYTES_PER_S = 1e21

#: What no name may hold: also tabs, ends of lines and marks without width.
_NOT_IN_NAMES = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u2069\ufeff\ud800-\udfff]"
)

#: A layer name. Integers are kept as they come, so that a plan written for
#: an imported graph can use that graph's own numbers.
LayerId = int | str


class Struct(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Immutable record; unknown keys are refused when it is read."""

    def __post_init__(self) -> None:
        for field, check in _checks(type(self)):
            value = getattr(self, field)
            if value is not None:
                check(field, value)


class FileStruct(Struct, frozen=True, tag_field="schema"):
    """Record of a whole file, whose first key names the file's schema."""


@cache
def _checks(kind: type[Struct]) -> tuple[tuple[str, Check], ...]:
    """Return the fields of a record with the checks in their types."""
    hints = get_type_hints(kind, include_extras=True)
    return (
        *((field, check_text) for field in hints if _has_text(hints[field])),
        *(
            (field, check)
            for field, hint in hints.items()
            for annotation in (hint, *get_args(hint))
            if get_origin(annotation) is Annotated
            for check in annotation.__metadata__
        ),
    )


def _has_text(hint: Any) -> bool:
    """Whether a field holds text that must be one line."""
    if get_origin(hint) is Literal or any_text in get_args(hint):
        return False
    return hint is str or any(map(_has_text, get_args(hint)))


def any_text(field: str, value: object) -> None:
    """Accept every text: it is a program or a message, not a name."""


def check_text(field: str, value: object) -> None:
    """Refuse a text, or one in a container, that is not one plain line.

    Names stand in tables, in comments of shell scripts and on terminals.

    Raises ``InvalidTextError`` if it has control characters, ends of lines, or marks
    that turn the direction of text.
    """
    if isinstance(value, str):
        if _NOT_IN_NAMES.search(value):
            raise InvalidTextError(
                f"{field}: expected one line without control characters, got "
                f"{value!r}; remove them"
            )
    elif isinstance(value, Mapping):
        check_text(field, (*value, *value.values()))
    elif isinstance(value, (tuple, list, set, frozenset)):
        for item in value:
            if type(item) is not int:  # layers of plans mostly are
                check_text(field, item)


def check_integer(field: str, value: int, minimum: int) -> None:
    """Raise ``ValueError`` unless ``minimum <= value <= MAX_TERM``."""
    if value < minimum:
        raise ValueError(f"{field}: expected >= {minimum}, got {value}")
    if value > MAX_TERM:
        raise ValueError(f"{field}: expected <= 2**53, got {value}; check its unit")


def check_real(field: str, value: float, *, positive: bool = False) -> None:
    """Raise ``ValueError`` unless the value is finite and in range."""
    sign = "> 0" if positive else ">= 0"
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{field}: expected a finite number {sign}, got {value}")
    if value > 1e21:
        raise ValueError(f"{field}: expected <= 1e21, got {value:g}; check its unit")
    # The inverse of what divides stays finite, with any number of bytes.
    if positive and value < 1e-21:
        raise ValueError(f"{field}: expected >= 1e-21, got {value:g}; check its unit")


def check_distinct(field: str, values: tuple[object, ...]) -> None:
    """Raise ``ValueError`` if a value occurs twice or there is none."""
    if not values:
        raise ValueError(f"{field}: expected at least one value, got none")
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise ValueError(
                f"{field}: expected distinct values, got {value!r} twice; remove one"
            )
        seen.add(value)


def check_fraction(field: str, value: float) -> None:
    """Raise ``ValueError`` unless ``0 <= value <= 1``."""
    if not 0 <= value <= 1:
        raise ValueError(f"{field}: expected a fraction from 0 to 1, got {value}")


def each(check: Check) -> Check:
    """Return the check of all values in a container, or of all keys."""

    def check_each(field: str, values: Iterable[Any]) -> None:
        for value in values:
            check(field, value)

    return check_each


def entries(check: Check) -> Check:
    """Return the check of all values in a dictionary."""

    def check_entries(field: str, values: dict[Any, Any]) -> None:
        for key, value in values.items():
            check(f"{field}.{key}", value)

    return check_entries


check_count = partial(check_integer, minimum=1)
check_size = partial(check_integer, minimum=0)
check_positive = partial(check_real, positive=True)

Count = Annotated[int, check_count]
Size = Annotated[int, check_size]
Real = Annotated[float, check_real]
PositiveReal = Annotated[float, check_positive]
Fraction = Annotated[float, check_fraction]
AnyText = Annotated[str, any_text]
Distinct = Annotated[tuple[T, ...], check_distinct]
PositiveReals = Annotated[dict[str, float], entries(check_positive)]
Counts = Annotated[tuple[int, ...], check_distinct, each(check_count)]
