"""What else a user may do: half the devices, and one setting changed.

Every figure is the score of a plan that is near the answer, so it is an upper
bound on what the best such plan takes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil

from msgspec.structs import replace

from nest.analysis import neighbors
from nest.constraints.targets import Framework, stated_schedules
from nest.cost.model import CostModel
from nest.cost.score import Score, score
from nest.errors import InvalidPlanError, InvalidProblemError, UnsupportedProblemError
from nest.ir.job import ANY_ORDER, named_schedules
from nest.ir.plan import Plan, Recompute
from nest.ir.problem import Problem
from nest.models.choices import CHUNKS_OF_ANY_ORDER
from nest.solvers.base import Deadline

#: Other orders of passes are shown where they take so much less.
WORTH_SAYING = 0.01

#: Seconds that these scores may take, or this share of the search, if longer.
LIMIT_S, SEARCH_SHARE = 1.0, 0.2

#: A look at other orders has that share, too, but so many seconds of CPU at least and
#: at most: with fewer it sees little, and after more it has seen most.
MIN_LOOK_S, MAX_LOOK_S = 1.0, 5.0


@dataclass(frozen=True)
class Others:
    """Plans near an answer: on half the devices, and with a setting changed.

    The fastest ones that fit; complete if there was time for all of them.
    """

    half: Score | None
    changes: tuple[neighbors.Neighbor, ...]
    complete: bool


@dataclass(frozen=True)
class OtherOrder:
    """What plans near an answer take with their passes in another order.

    ``option`` asks for it. The step time is a ``fraction`` of the answer's,
    both timed pass by pass.
    """

    option: str
    fraction: float


def others_of(problem: Problem, plan: Plan, search_s: float) -> Others:
    """Return what else a user may do; the search for the plan took so long."""
    clock = Deadline(max(LIMIT_S, SEARCH_SHARE * search_s))
    plan = replace(plan, problem_hash=None, solver=None)
    cluster = problem.cluster
    smaller = replace(problem, cluster=cluster.first_devices(cluster.num_devices // 2))
    scores = []
    if cluster.num_devices % 2 == 0:
        model = CostModel(smaller)
        for other in _halved(plan, problem.job.recompute):
            if clock.passed:
                break
            try:
                verdict = score(smaller, other, model)
            except InvalidPlanError:
                continue
            scores += [verdict] * verdict.feasible
    model, changes = CostModel(problem), []
    for change in neighbors.settings_moves(problem, plan, model):
        changes += [change] * (change.verdict == "fits")
        if clock.passed:
            break
    changes.sort(key=lambda x: x.score.step_quanta if x.score else 0)
    return Others(
        min(scores, key=lambda x: x.step_quanta, default=None),
        tuple(changes),
        not clock.passed,
    )


def other_orders(
    problem: Problem, plan: Plan, search_s: float, target: Framework
) -> tuple[OtherOrder, ...]:
    """Return the best order that a target runs, and the best with a name.

    Of plans near an answer whose search took so long. None if passes have one order
    only.
    """
    look_s = min(max(SEARCH_SHARE * search_s, MIN_LOOK_S), MAX_LOOK_S)
    clock = Deadline(look_s, time.process_time)
    job, rules = problem.job, target.rules
    before = score(problem, plan).simulated_quanta
    if before is None or (rules is not None and not rules.interleaving.value):
        return ()
    from nest.search.passes.orders import look_at_orders

    runnable = stated_schedules(target, ANY_ORDER)
    names: list[str] = [*named_schedules(runnable)]
    if runnable == ANY_ORDER:
        names.append(ANY_ORDER)
    chunks = {1, plan.virtual_stages, *CHUNKS_OF_ANY_ORDER}
    free = replace(job, schedule=ANY_ORDER, virtual_stages=tuple(sorted(chunks)))
    # Rounded up: a plan that is worth showing is below it.
    limit_quanta = ceil((1 - WORTH_SAYING) * before)
    try:
        steps = look_at_orders(
            replace(problem, job=free), plan, clock, names, limit_quanta
        )
    except (InvalidProblemError, UnsupportedProblemError):
        # Step times in more quanta than exact sums hold, or too many closed sets.
        return ()
    best: dict[bool, OtherOrder] = {}
    for (name, virtual), quanta in sorted(steps.items(), key=lambda x: x[1]):
        option = f"--schedule {name}"
        if name == "1f1b":
            option = f"--virtual-stages {virtual}"
        is_allowed = name == job.schedule and virtual in job.virtual_stages
        if quanta < limit_quanta and not is_allowed:
            order = OtherOrder(option, quanta / before)
            best.setdefault(name == ANY_ORDER, order)
    return tuple(best.values())


def _halved(plan: Plan, recompute: Collection[Recompute]) -> Iterator[Plan]:
    """Yield plans on half the devices, with every choice of recomputation.

    Half the replicas or data-parallel ranks do the work; a rank has as many
    samples at a time as before, or twice as many.
    """
    for names in (("replicas",), ("dp",), ("dp", "micro_batch")):
        try:
            base = neighbors.with_factors(plan, dict.fromkeys(names, neighbors.HALF))
        except ValueError:  # an odd number of them
            continue
        yield base
        for choice in recompute:
            yield neighbors.with_strategies(base, partial(replace, recompute=choice))
