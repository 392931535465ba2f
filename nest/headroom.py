"""Head-room: memory of every device that plans leave free.

What a cost model cannot know takes memory too: fragments, buffers of
libraries, other processes. Head-room is taken off the devices before anything
is searched, so every solver keeps it.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from msgspec.structs import replace

from nest.errors import InvalidOptionError
from nest.intervals import stored_deviations, why_none
from nest.ir.cluster import Device
from nest.ir.problem import Problem
from nest.units import format_bytes

#: Bytes of the units of a size.
UNITS = {
    **{f"{letter}B": 1000**i for i, letter in enumerate("kMGT", 1)},
    **{f"{letter}iB": 1024**i for i, letter in enumerate("KMGT", 1)},
}

#: Of what the model predicts one run in four needs so much more: the upper end
#: of the 50 % interval of memory.
MEMORY_ERROR = math.expm1(stored_deviations().memory.high_50)

#: Predictions of memory are off by so much in the mean. With this head-room
#: ``nest validate`` asks whether runs fit.
MEAN_ERROR = math.expm1(stored_deviations().memory_error)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[A-Za-z]+)")


def with_headroom(
    problem: Problem, text: str, option: str = "--headroom"
) -> Problem:
    """Return the problem with less memory on every device.

    Parameters
    ----------
    problem
        The problem.
    text
        A size such as ``8GB`` or ``8GiB``, or a part of the memory of each
        type of devices such as ``10%``; bytes are rounded up.
    option
        What it comes from, for messages.

    Raises
    ------
    InvalidOptionError
        If the text is neither, or a type of devices has no more memory than
        that.
    """
    cluster = problem.cluster
    found = _SIZE.fullmatch(text.strip())
    if not found or found[2] not in (*UNITS, "%"):
        raise InvalidOptionError(
            f"{option}: expected a size such as 8GB or 8GiB, or a part such "
            f"as 10%, got {text!r}; correct the value"
        )
    amount, unit = Fraction(found[1]), found[2]

    def smaller(device: Device) -> Device:
        memory = device.memory_bytes
        part = amount * (Fraction(memory, 100) if unit == "%" else UNITS[unit])
        size_bytes = -int(-part // 1)
        usable_bytes = memory - device.reserve_bytes
        if size_bytes >= usable_bytes:
            raise InvalidOptionError(
                f"{option} {text}: expected less than the "
                f"{format_bytes(usable_bytes)} that plans may use of a device "
                f"({device.name}), got {format_bytes(size_bytes)}; leave less "
                f"free"
            )
        return replace(device, memory_bytes=memory - size_bytes)

    others = tuple(
        replace(part, device=smaller(part.device)) for part in cluster.others
    )
    changed = replace(cluster, device=smaller(cluster.device), others=others)
    return replace(problem, cluster=changed)


def tightness(problem: Problem, left_bytes: int, needed_bytes: int) -> str:
    """Return a warning if a plan leaves less than one run in four needs.

    Parameters
    ----------
    problem
        The problem; nothing is known of those that are not made from a
        model.
    left_bytes, needed_bytes
        Memory that is left, and that is needed, on the fullest device.
    """
    more_bytes = round(MEMORY_ERROR * needed_bytes)
    if why_none(problem) or not 0 <= left_bytes < more_bytes:
        return ""
    return (
        f"one run in four needs {100 * MEMORY_ERROR:.1f} % more "
        f"({format_bytes(more_bytes)}); see --headroom"
    )
