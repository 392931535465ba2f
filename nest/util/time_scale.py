"""Show times of one table in one unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TimeScale:
    """Shows times of one table in one unit, with six digits."""

    unit: str
    unit_ns: float
    decimals: int

    @classmethod
    def fitting(cls, reference_ns: float | None, time_unit: str = "s") -> TimeScale:
        """Return the scale for times about as long as the reference.

        ``time_unit`` other than ``"s"`` is the problem's own, for which no
        smaller units are known.
        """
        units = [("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)]
        if time_unit != "s":
            units = [(time_unit, 1e9)]
        reference_ns = reference_ns or 1e9
        name, size = next(
            (unit for unit in units if reference_ns >= unit[1]), units[-1]
        )
        digits = math.floor(math.log10(reference_ns / size))
        return cls(name, size, min(9, max(0, 5 - digits)))

    def __call__(self, time_ns: float | None) -> str:
        """Return the time with its unit."""
        if time_ns is None:
            return ""
        return f"{time_ns / self.unit_ns:.{self.decimals}f} {self.unit}"

    def bound(self, time_ns: float | None) -> str:
        """Return a lower bound with its unit, or that there is none yet.

        It may be far below what the scale is for. One of 0 says nothing.
        """
        if time_ns == 0:
            return "no bound yet"
        text = self(time_ns)
        if time_ns is None or float(text.split()[0]):
            return text
        return self.short(time_ns)

    def range(self, times_ns: Sequence[float]) -> str:
        """Return a time, or from the least to the greatest, with its unit."""
        low, high = self(min(times_ns)), self(max(times_ns))
        return high if low == high else f"{low.split()[0]} – {high}"

    def short(self, time_ns: float, num_digits: int = 4) -> str:
        """Return the time with its unit, to four digits."""
        return f"{_digits(time_ns / self.unit_ns, num_digits)} {self.unit}"

    def interval(self, interval: tuple[float, float]) -> str:
        """Return an interval with its unit, to three digits."""
        low, high = (_digits(end / self.unit_ns, 3) for end in interval)
        return f"{low} – {high} {self.unit}"


def _digits(value: float, digits: int) -> str:
    return f"{float(f'{value:.{digits}g}'):.10g}"


def digits(value: float, num_digits: int) -> str:
    """Return a number to some digits, its thousands apart."""
    return f"{float(f'{value:.{num_digits}g}'):,.10g}"
