"""Head-room: memory of every device that plans leave free.

What a cost model cannot know takes memory too: fragments, buffers of
libraries, other processes. Head-room is taken off the devices before anything
is searched, so every solver keeps it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal, NamedTuple, get_args

from msgspec.structs import replace

from nest.cost.score import Score
from nest.errors import InvalidOptionError
from nest.ir.cluster import Device, Ranges
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.uncertainty import intervals
from nest.units import format_bytes
from nest.util.quantities import SIZES, split

#: Relative memory error that one run in four exceeds. It is the upper end of
#: the 50 % prediction interval, as a fraction of the predicted memory.
MEMORY_ERROR = math.expm1(intervals.stored_deviations().memory.high_50)

#: What plans for a model leave free by default. A plan that leaves it fits
#: with the upper end of the 50 % interval of its memory.
DEFAULT_HEADROOM = f"{math.ceil(1e4 - 1e4 / (1 + MEMORY_ERROR)) / 100}%"

#: Chances that people read, as times in a number of times.
_CHANCES = sorted(
    {*(Fraction(i, 10) for i in range(1, 10)), Fraction(1, 4), Fraction(3, 4)}
    | {Fraction(1, 20), Fraction(19, 20), Fraction(1, 100), Fraction(99, 100)}
)

#: Mean relative error of predicted memory. ``nest validate`` decides with this
#: headroom whether runs fit.
MEAN_ERROR = math.expm1(intervals.stored_deviations().memory_error)

#: How sure it is that a plan fits: at most 5 % of runs need more memory than
#: the device has, at most 25 %, more, or the predicted memory is too large.
FitsWord = Literal["yes", "likely", "doubtful", "no"]
FITS: tuple[FitsWord, ...] = get_args(FitsWord)

#: What these words mean, for people.
FITS_MEANING = (
    "fits: yes = at most 5 % of runs need more memory than the device has,",
    "      likely = at most 25 %, doubtful = more than 25 %, no = predicted",
    "      to be too large",
)


class FullestDevice(NamedTuple):
    """The device of a plan that is the likeliest to lack memory.

    ``fits`` says whether it has enough memory, and how sure that is. ``memory_bytes``
    are predicted; the device has ``device_bytes``, of which headroom leaves
    ``usable_bytes``.
    """

    fits: FitsWord
    memory_bytes: int
    device_bytes: int
    usable_bytes: int


def fullest_device(problem: Problem, plan: Plan, verdict: Score) -> FullestDevice:
    """Return the fullest device of a plan, with its own numbers."""
    cluster = problem.cluster
    devices = [
        FullestDevice(
            fits_word(problem, block.memory_bytes, ranges),
            block.memory_bytes,
            cluster.memory_bytes(ranges) + cluster.headroom_bytes(ranges),
            cluster.memory_bytes(ranges),
        )
        for block, ranges in zip(
            verdict.blocks, intervals.device_ranges(problem, plan), strict=True
        )
    ]

    def lack(device: FullestDevice) -> tuple[int, float]:
        used = device.memory_bytes / max(1, device.device_bytes)
        return FITS.index(device.fits), used

    return max(devices, key=lack)


def fits_word(
    problem: Problem, memory_bytes: int, ranges: Ranges | None = None
) -> FitsWord:
    """Return whether devices have enough memory, and how sure that is.

    Headroom is memory of the devices. Where nothing is known of errors, the prediction
    counts as exact. ``memory_bytes`` is predicted for each of the devices, by default
    for all.
    """
    cluster = problem.cluster
    device_bytes = cluster.memory_bytes(ranges)
    device_bytes += cluster.headroom_bytes(ranges)
    if memory_bytes > device_bytes:
        return "no"
    if intervals.why_none(problem):
        return "yes"
    within_50, within_90 = intervals.memory_interval(problem, memory_bytes)
    if within_90.high <= device_bytes:
        return "yes"
    return "likely" if within_50.high <= device_bytes else "doubtful"


def with_headroom(problem: Problem, text: str) -> Problem:
    """Return the problem with less memory on every device.

    ``text`` is a size such as ``8GB`` or ``8GiB``, a part of the memory of each type of
    devices such as ``10%``, or ``0``; bytes are rounded up.

    Raises ``InvalidOptionError`` if the text is neither, or a type of devices has no
    more memory than that.
    """
    quantity = split("0%" if text == "0" else text, (*SIZES, "%"))
    if quantity is None:
        raise InvalidOptionError(
            "--headroom: expected a size such as 8GB or 8GiB, or a part such "
            f"as 10%, got {text!r}; correct the value"
        )
    amount, unit = quantity

    def smaller(device: Device) -> Device:
        memory = device.memory_bytes
        share = amount * (Fraction(memory, 100) if unit == "%" else SIZES[unit])
        size_bytes = -int(-share // 1)
        usable_bytes = memory - device.reserve_bytes
        if size_bytes >= usable_bytes:
            raise InvalidOptionError(
                f"--headroom {text}: expected less than the "
                f"{format_bytes(usable_bytes)} that plans may use of a device "
                f"({device.name}), got {format_bytes(size_bytes)}; leave less free"
            )
        return replace(
            device,
            memory_bytes=memory - size_bytes,
            headroom_bytes=device.headroom_bytes + size_bytes,
        )

    return replace(problem, cluster=problem.cluster.with_devices(smaller))


def chance_text(probability: float) -> str:
    """Return a probability as people say it, such as ``3 times in 4``."""
    chance = min(_CHANCES, key=lambda x: abs(x - probability))
    times = "time" if chance.numerator == 1 else "times"
    return f"{chance.numerator} {times} in {chance.denominator}"


def within_memory(
    problem: Problem, deviations: intervals.Deviations | None = None
) -> Problem | None:
    """Return the problem whose plans keep their memory with 95 %.

    The upper end of the 90 % interval of what they need fits every device,
    head-room included. ``None`` if some device has no room for anything then.
    """
    deviations = deviations or intervals.stored_deviations()
    memory = deviations.memory_of(problem.software)
    fraction = math.exp(-max(0.0, memory.high_90))

    def size_bytes(device: Device) -> int:
        whole_bytes = device.memory_bytes + device.headroom_bytes
        return min(device.memory_bytes, math.floor(whole_bytes * fraction))

    cluster = problem.cluster
    if any(size_bytes(device) < device.reserve_bytes for device in cluster.types):
        return None
    smaller = cluster.with_devices(lambda x: replace(x, memory_bytes=size_bytes(x)))
    return replace(problem, cluster=smaller)
