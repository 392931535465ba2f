"""Pipeline schedules: in which order a block runs its passes.

One module each; everything that is asked of a schedule is answered there.
A new one is a module here, a line in :data:`SCHEDULES` and its name in
:data:`nest.ir.job.Schedule`.
"""

from __future__ import annotations

from functools import cache

from nest.cost.schedules.any_order import AnyOrder
from nest.cost.schedules.base import (
    ChunkTimes,
    InFlight,
    Pass,
    PassTimes,
    Schedule,
    StageSchedule,
    Times,
)
from nest.cost.schedules.dualpipe_v import DualPipeV
from nest.cost.schedules.gpipe import GPipe
from nest.cost.schedules.interleaved import Interleaved
from nest.cost.schedules.listed import ListedSchedule
from nest.cost.schedules.one_f_one_b import OneFOneB
from nest.cost.schedules.ordered import TimedSchedule
from nest.cost.schedules.zb_h1 import ZBH1
from nest.cost.schedules.zb_v import ZBV
from nest.errors import UnsupportedProblemError
from nest.ir.job import ANY_ORDER

__all__ = [
    "LISTED",
    "SCHEDULES",
    "AnyOrder",
    "ChunkTimes",
    "InFlight",
    "Pass",
    "PassTimes",
    "Schedule",
    "StageSchedule",
    "Times",
    "paced",
    "schedule_of",
    "timed_schedule",
]

#: The schedules that a job may ask for, by name: those whose step time is a
#: sum of paces, which searches take as they are.
SCHEDULES: dict[str, StageSchedule] = {
    schedule.name: schedule for schedule in (OneFOneB(), GPipe())
}

#: Those that are timed pass by pass.
LISTED: dict[str, Schedule] = {
    schedule.name: schedule for schedule in (ZBH1(), ZBV(), DualPipeV())
}


def paced(name: str | tuple[str, ...]) -> StageSchedule:
    """Return a job's schedule for searches that need its paces.

    Raises ``UnsupportedProblemError`` if it has none.
    """
    if name == ANY_ORDER or not isinstance(name, str):
        text = name if isinstance(name, str) else ",".join(name)
        raise UnsupportedProblemError(
            f"$.job.schedule: expected one of {', '.join(SCHEDULES)}, as this search "
            f"does not order passes, got {text!r}; use --schedule 1f1b, or 'nest "
            f"solve' with solver dp"
        )
    if name not in SCHEDULES:
        raise UnsupportedProblemError(
            f"$.job.schedule: expected one of {', '.join(SCHEDULES)}, as "
            f"others are timed pass by pass, which this search cannot do, "
            f"got {name!r}; use solver brute, or solve with another schedule "
            f"and score the plan with this one"
        )
    return SCHEDULES[name]


def schedule_of(name: str | tuple[str, ...], virtual_stages: int = 1) -> Schedule:
    """Return a job's schedule for plans with so many chunks per block.

    Of several schedules, or of ``any``, the answers hold for all of them. With more
    than one chunk per block ``1f1b`` is interleaved.
    """
    if name == ANY_ORDER or not isinstance(name, str):
        return _any_order(virtual_stages)
    if name in LISTED:
        return LISTED[name]
    if virtual_stages > 1:
        return _interleaved(virtual_stages)
    return SCHEDULES[name]


@cache
def timed_schedule(name: str, virtual_stages: int) -> Schedule:
    """Return a schedule whose step is timed pass by pass.

    Parameters as of :func:`schedule_of`.
    """
    schedule = schedule_of(name, virtual_stages)
    if isinstance(schedule, ListedSchedule):
        return schedule
    return TimedSchedule(schedule)


#: One object for each number of chunks, so that its lists are made once.
_interleaved = cache(Interleaved)
_any_order = cache(AnyOrder)
