"""Schedules of a layer's operators on the cores of an accelerator.

One pass of a layer is a DAG of operators. An accelerator has tensor cores and
vector cores, and one channel to its memory. An operator runs on one core of
its type (a fused one on one of each), or alone on the whole chip, or is free.
:func:`schedule` finds the shortest schedule, and :func:`bounds` what is known
without an engine. The mathematics is in ``formulations/README.md``.
"""

from __future__ import annotations

from nest.operator_schedule.bounds import bounds
from nest.operator_schedule.records import (
    Cores,
    Engine,
    Operator,
    PartOf,
    Placed,
    Schedule,
)
from nest.operator_schedule.search import SOLVERS
from nest.operator_schedule.solve import makespan_ticks, quick_ticks, schedule

__all__ = [
    "SOLVERS",
    "Cores",
    "Engine",
    "Operator",
    "PartOf",
    "Placed",
    "Schedule",
    "bounds",
    "makespan_ticks",
    "quick_ticks",
    "schedule",
]
