"""What else a user may do: half the devices, and one setting changed.

Every figure is the score of a plan that is near the answer, so it is an upper
bound on what the best such plan takes. Nothing is searched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from nest.analysis.neighbors import (
    HALF,
    Neighbor,
    settings_moves,
    with_factors,
    with_strategies,
)
from nest.cost.model import CostModel
from nest.cost.score import Score, score
from nest.errors import InvalidPlanError
from nest.ir.job import PAIRED
from nest.ir.plan import Plan, Recompute
from nest.ir.problem import Problem
from nest.solvers.base import Deadline

#: Orders of passes that are tried, of steps with so many passes at most; they
#: are shown where they take so much less.
ORDERS, MOST_ORDERED, WORTH_SAYING = 12, 4096, 0.01

#: Seconds that these scores may take, or this share of the search, if longer.
LIMIT_S, SEARCH_SHARE = 1.0, 0.2


@dataclass(frozen=True)
class Others:
    """Plans near an answer: on half the devices, and with a setting changed.

    The fastest ones that fit; complete if there was time for all of them.
    ``order`` is the plan itself, with its passes in a better order: its step
    time, as a fraction of that with the passes of its schedule.
    """

    half: Score | None
    order: float | None
    changes: tuple[Neighbor, ...]
    complete: bool


def others_of(problem: Problem, plan: Plan, search_s: float) -> Others:
    """Return what else a user may do; the search for the plan took so long."""
    clock = Deadline(max(LIMIT_S, SEARCH_SHARE * search_s))
    plan = replace(plan, problem_hash=None, solver=None)
    cluster = problem.cluster
    smaller = replace(
        problem, cluster=cluster.first_devices(cluster.num_devices // 2)
    )
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
    for change in settings_moves(problem, plan, model):
        changes += [change] * (change.verdict == "fits")
        if clock.passed:
            break
    changes.sort(key=lambda x: x.score.step_quanta if x.score else 0)
    return Others(
        min(scores, key=lambda x: x.step_quanta, default=None),
        _better_order(problem, plan),
        tuple(changes),
        not clock.passed,
    )


def _better_order(problem: Problem, plan: Plan) -> float | None:
    """Return what a better order of a plan's passes leaves of its step.

    Both are timed pass by pass. ``None`` if no better one is in sight, or if
    passes run in pairs, are too many or ordered by the plan already.
    """
    from nest.search.list_orders import OrderSearch
    from nest.search.order_bounds import order_bound
    from nest.search.orders import in_any_order, order_scope, with_order

    before = score(problem, plan)
    job, simulated = problem.job, before.simulated_quanta
    if (
        job.plans_order_passes
        or not PAIRED.isdisjoint(job.schedules)
        or plan.num_blocks == 1
        or before.num_passes > MOST_ORDERED
        or simulated is None
    ):
        return None
    free = in_any_order(problem, plan)
    model = CostModel(free)
    scope, _ = order_scope(free, plan, model)
    search = OrderSearch(scope, order_bound(scope))
    search.run(lambda: False, ORDERS)
    if search.best is None:
        return None
    verdict = score(free, with_order(plan, search.best), model)
    fraction = verdict.step_quanta / simulated
    return (
        fraction if verdict.feasible and fraction < 1 - WORTH_SAYING else None
    )


def _halved(plan: Plan, recompute: Collection[Recompute]) -> Iterator[Plan]:
    """Yield plans on half the devices, with every choice of recomputation.

    Half the replicas or data-parallel ranks do the work; a rank has as many
    samples at a time as before, or twice as many.
    """
    for names in (("replicas",), ("dp",), ("dp", "micro_batch")):
        try:
            base = with_factors(plan, dict.fromkeys(names, HALF))
        except ValueError:  # an odd number of them
            continue
        yield base
        for choice in recompute:
            yield with_strategies(base, partial(replace, recompute=choice))
