"""α–β times: lines ``a + X·c`` in the size ``X`` of a buffer.

``a`` is a sum of latencies in whole femtoseconds, exact; ``c`` is rounded to
:data:`DIGITS` significant digits once it is summed up, so that it does not
depend on the order of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

NS_PER_S = 1e9
FS_PER_NS = 1e6
#: Significant decimal digits of a slope.
DIGITS = 12


class Line(NamedTuple):
    """A time of ``latency_fs / 1e6 + X * ns_per_byte``, in ns."""

    latency_fs: int
    ns_per_byte: float

    def plus(self, other: Line) -> Line:
        """Return one after the other."""
        return Line(
            self.latency_fs + other.latency_fs, self.ns_per_byte + other.ns_per_byte
        )

    def times(self, factor: int) -> Line:
        """Return it so many times."""
        return Line(self.latency_fs * factor, self.ns_per_byte * factor)

    def rounded(self) -> Line:
        """Return it with the slope that counts."""
        return self._replace(ns_per_byte=rounded(self.ns_per_byte))

    def time_ns(self, size_bytes: float) -> float:
        """Return the time for so many bytes."""
        return self.latency_fs / FS_PER_NS + size_bytes * self.ns_per_byte


NOTHING = Line(0, 0.0)


def femtoseconds(latency_ns: float) -> int:
    """Return a latency in whole femtoseconds."""
    return math.floor(latency_ns * FS_PER_NS + 0.5)


def rounded(value: float) -> float:
    """Return a number with :data:`DIGITS` significant decimal digits."""
    return float(f"{value:.{DIGITS}g}")


def undominated(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines that are the lowest for some size, steepest first."""
    lowest: list[Line] = []
    for line in sorted(lines):
        if not lowest or line.ns_per_byte < lowest[-1].ns_per_byte:
            lowest.append(line)
    return tuple(lowest)


def sums(steps: Iterable[Iterable[Line]]) -> tuple[Line, ...]:
    """Return one line of every step, one after the other: the best ones."""
    totals: tuple[Line, ...] = (NOTHING,)
    for lines in steps:
        choices = tuple(lines)
        totals = undominated(before.plus(line) for before in totals for line in choices)
    return totals
