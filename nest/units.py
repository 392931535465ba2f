"""Units: integer time quanta and bytes, and the one rounding rule.

Inside the project every time is an integer number of *quanta* and every size
an integer number of *bytes*. A quantum is ``problem.quantum_ps`` picoseconds
(1 ns by default). Real-valued times are in ns until :func:`quantise` turns
them into quanta, exactly once, when a cost term is built.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GB = 10**9
GIB = 2**30

#: Largest time or size accepted for one cost term. Sums and products of terms
#: are Python integers or are range-checked before they enter an engine.
MAX_TERM = 2**53

#: Largest step time an engine working on 64-bit integers is given.
MAX_TOTAL = 2**61


def finite(quanta: int | None) -> int | None:
    """Return a lower bound on the step time, in quanta, if it is one.

    ``None`` above :data:`MAX_TOTAL`, which no plan takes: that is how a
    search says that no plan is left.
    """
    return None if quanta is None or quanta > MAX_TOTAL else quanta


def quantise(time_ns: float, quantum_ps: int) -> int:
    """Round a finite time >= 0 to quanta: the only rounding rule of the project.

    Rounds half up, that is ``floor(x + 1/2)``, so that a longer time never becomes a
    shorter one. Raises ``OverflowError`` if the result exceeds :data:`MAX_TERM`.
    """
    quanta = time_ns * 1000.0 / quantum_ps
    if not quanta <= MAX_TERM:
        raise OverflowError(
            f"a time of {time_ns:g} ns is more than 2**53 quanta of {quantum_ps} ps"
        )
    return math.floor(quanta + 0.5)


def quantise_all(times_ns: NDArray[np.float64], quantum_ps: int) -> NDArray[np.int64]:
    """Round an array of times, each as :func:`quantise` would.

    Raises ``OverflowError`` if a result exceeds :data:`MAX_TERM`.
    """
    import numpy as np

    quanta = times_ns * 1000.0 / quantum_ps
    if not (quanta <= MAX_TERM).all():
        raise OverflowError(
            f"a time of {times_ns.max():g} ns is more than 2**53 quanta of "
            f"{quantum_ps} ps"
        )
    return np.floor(quanta + 0.5).astype(np.int64)


def quanta_to_ns(quanta: int, quantum_ps: int) -> int | float:
    """Return a time in ns: an integer if it is whole, else a float."""
    whole, rest = divmod(quanta * quantum_ps, 1000)
    return whole if rest == 0 else quanta * quantum_ps / 1000


def decimal(value: float) -> Fraction:
    """Return exactly the number that a float is written as."""
    return Fraction(str(value))


def divisors(total: int) -> list[int]:
    """Return the divisors of a whole number, in ascending order."""
    small = [n for n in range(1, math.isqrt(total) + 1) if total % n == 0]
    return small + [total // n for n in reversed(small) if n * n < total]


def ceil_div(numerator: int, denominator: int) -> int:
    """Return ``numerator / denominator`` rounded up; shards round up."""
    return -(-numerator // denominator)


def format_bytes(size_bytes: float, decimals: int = 2) -> str:
    """Return a size for people: in GiB, or what does not make it zero."""
    size = abs(size_bytes)
    for unit, factor, least in (
        ("GiB", GIB, GIB / 2 / 10**decimals),
        ("MiB", 2**20, 2**20),
        ("KiB", 2**10, 2**10),
    ):
        if size >= least:
            return f"{size_bytes / factor:.{decimals}f} {unit}"
    number = round(size_bytes)
    return f"{number} byte{'s' * (abs(number) != 1)}"


def format_sizes(low_bytes: float, high_bytes: float, decimals: int = 2) -> str:
    """Return a size, or from the least to the greatest, for people."""
    low, high = (format_bytes(x, decimals) for x in (low_bytes, high_bytes))
    if low == high:
        return high
    number, unit = low.split()
    return f"{number if unit == high.split()[1] else low} – {high}"
