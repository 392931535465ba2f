"""The plan that a search with a time limit begins from: even stages.

Integer models of large problems may have no plan when the time is up. Plans with
one strategy and stages of about equal loads are quick to build. The search for the
best of them starts from any that fits, and goes on to the fastest of those that are
most like it, as long as that is faster.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

from nest.cost.model import CostModel
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Capabilities, Deadline, SolveOptions
from nest.solvers.challenge import challengers

#: Share of the time limit for the plan. The first one that fits may take all of it.
SHARE = 0.15

#: Number of plans that are compared with the one that they are like.
NUM_NEAR = 100


def started(
    problem: Problem, options: SolveOptions, capabilities: Capabilities
) -> SolveOptions:
    """Return options with a plan to start from, and the time that remains.

    Without a time limit the search ends with a proof, and needs no plan.
    """
    if options.time_limit_s is None or options.warm_start is not None:
        return options
    deadline = Deadline(options.time_limit_s)
    plan = even_start(problem, deadline, capabilities)
    return replace(options, warm_start=plan, time_limit_s=deadline.remaining_s)


def even_start(
    problem: Problem, deadline: Deadline, capabilities: Capabilities
) -> Plan | None:
    """Return a fast plan of even stages, ``None`` if none fits in time."""
    model = CostModel(problem)
    best = next(challengers(model, None, deadline, capabilities), None)
    share = Deadline(SHARE * (deadline.limit_s or math.inf))
    while best is not None:
        near = challengers(model, best.plan, share, capabilities)
        fastest = min(islice(near, NUM_NEAR), key=lambda x: x.step_quanta, default=best)
        if fastest.step_quanta >= best.step_quanta:
            break
        best = fastest
    return best and best.plan
