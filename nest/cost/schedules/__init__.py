"""Pipeline schedules: in which order a block runs its passes.

One module each; everything that is asked of a schedule is answered there.
A new one is a module here, a line in :data:`SCHEDULES` and its name in
:data:`nest.ir.job.Schedule`.
"""

from __future__ import annotations

from functools import cache

from nest.cost.schedules.base import (
    InFlight,
    Pass,
    PassTimes,
    Schedule,
    StageSchedule,
    Times,
)
from nest.cost.schedules.gpipe import GPipe
from nest.cost.schedules.interleaved import Interleaved
from nest.cost.schedules.one_f_one_b import OneFOneB

__all__ = [
    "SCHEDULES",
    "InFlight",
    "Pass",
    "PassTimes",
    "Schedule",
    "StageSchedule",
    "Times",
    "schedule_of",
]

#: The schedules that a job may ask for, by name.
SCHEDULES: dict[str, StageSchedule] = {
    schedule.name: schedule for schedule in (OneFOneB(), GPipe())
}


def schedule_of(name: str, virtual_stages: int = 1) -> Schedule:
    """Return a job's schedule for plans with so many chunks per block.

    Parameters
    ----------
    name
        The job's schedule.
    virtual_stages
        Chunks per block; above 1 the interleaved form of ``1f1b``.
    """
    if virtual_stages > 1:
        return _interleaved(virtual_stages)
    return SCHEDULES[name]


#: One object for each number of chunks, so that its lists are made once.
_interleaved = cache(Interleaved)
