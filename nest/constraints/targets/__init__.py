"""Targets: the frameworks that a plan is to run in, and what they can say.

What a framework can express is data, a file per target in ``data/``. It becomes fields
of the job, so every solver searches exactly these plans; see docs/targets.md.
"""

from __future__ import annotations

from nest.constraints.targets.expressible import Obstacle, inexpressible
from nest.constraints.targets.memory import GRADIENTS, OPTIMIZERS, optimizer_of
from nest.constraints.targets.plan_space import for_target
from nest.constraints.targets.records import (
    ANY,
    Framework,
    Rule,
    Rules,
    Shape,
    degree_rule,
    has_schedule,
    names,
    stated_schedules,
    target,
)

__all__ = [
    "ANY",
    "GRADIENTS",
    "OPTIMIZERS",
    "Framework",
    "Obstacle",
    "Rule",
    "Rules",
    "Shape",
    "degree_rule",
    "for_target",
    "has_schedule",
    "inexpressible",
    "names",
    "optimizer_of",
    "stated_schedules",
    "target",
]
