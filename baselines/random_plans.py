"""``random``: the best of many random plans, the floor for every planner.

Search space: all plans of the problem that are not interleaved, with one
strategy per stage. A plan is drawn by choosing ``(R, B)``, then a number of
stages, the cuts, and a strategy for each stage in pipeline order, uniformly
among those that every layer of the stage has a cost for. The number of
stages is log-uniform: a range ``2^i .. 2^(i+1) - 1`` is drawn first, then a
number inside it. A stage takes at most twice its even share of the devices
that are left, so that the first ones do not use them up. Under a preset whose
stages have to be alike, one strategy is drawn for all.

What breaks a counting rule or exceeds the memory is drawn again, until
``plans`` plans fit or :data:`DRAWS_PER_PLAN` times as many were drawn.

Objective: the shared step time, of plans that fit. It ignores nothing and
knows nothing. No publication; the same floor appears in comparisons of
placement planners as "random".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

from baselines.common import StageChoice, answer, chain, make_plan
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import (
    Case,
    cases,
    is_uniform,
    stage_counts,
    strategies,
)
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Limit,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    ignore_progress,
)

#: How many plans that fit are wanted, and how many draws each may take.
NUM_PLANS = 100
DRAWS_PER_PLAN = 200

#: Returns the strategies that all layers ``[start, stop)`` of the chain have
#: a cost for, by ascending number of devices.
Usable = Callable[[int, int], list[Strategy]]


class RandomSolver:
    """Draw plans, keep the best one that fits."""

    name: ClassVar[str] = "random"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=False,
        anytime=True,
        method="best of many random plans that fit",
        options={
            "plans": (
                f"how many plans that fit to draw (default {NUM_PLANS}); "
                f"gives up after {DRAWS_PER_PLAN} times as many draws"
            )
        },
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return ``None``: plans can be drawn from every problem."""
        return None

    def solve(
        self,
        problem: Problem,
        options: SolveOptions,
        report: Report = ignore_progress,
    ) -> SolverOutput:
        """Return the best of the plans drawn.

        Raises
        ------
        InvalidOptionError
            If the number of plans is no whole number above 0.
        """
        deadline = Deadline(options.time_limit_s)
        num_plans = read_count(options, self.name, "plans", NUM_PLANS)
        model = CostModel(problem)
        draw = random.Random(options.seed)
        choices = drawable(problem, model)
        if not choices:
            return answer(None, detail="no plan obeys the rules of the job")
        best: Plan | None = None
        best_quanta = num_fit = num_drawn = 0
        while num_fit < num_plans and num_drawn < num_plans * DRAWS_PER_PLAN:
            if deadline.passed:
                return answer(
                    best,
                    limit=Limit.TIME,
                    detail=f"{num_fit} plans that fit in {num_drawn} draws",
                )
            num_drawn += 1
            plan = draw_plan(problem, draw, *draw.choice(choices))
            if plan is None:
                continue
            try:
                found = score(problem, plan, model)
            except InvalidPlanError:
                continue
            if not found.feasible:
                continue
            num_fit += 1
            if best is None or found.step_quanta < best_quanta:
                best, best_quanta = plan, found.step_quanta
                report(Progress(plan=plan, claimed_quanta=best_quanta))
        return answer(
            best, detail=f"{num_fit} plans that fit in {num_drawn} draws"
        )


def drawable(
    problem: Problem, model: CostModel
) -> list[tuple[Case, Usable, list[int]]]:
    """Return the cases to draw from.

    Each with the strategies of every range of layers, and the numbers of
    stages that a plan can have. Cases in which some layer has no strategy are
    left out.
    """
    found = []
    for case in cases(problem):
        usable = usable_strategies(problem, model, case)
        counts = stage_counts(problem, case)
        if counts and all(
            usable(i, i + 1) for i in range(len(problem.graph.layers))
        ):
            found.append((case, usable, counts))
    return found


def usable_strategies(
    problem: Problem, model: CostModel, case: Case
) -> Usable:
    """Return a function from a range of the chain to its strategies."""
    order = chain(problem)
    layers = problem.graph.layers
    first_of = {layer.kind: i for i, layer in enumerate(layers)}
    allowed = [
        strategy
        for strategy in strategies(problem, case.micro_batch)
        if strategy.devices <= case.devices
    ]
    by_kind = {
        kind: {
            strategy
            for strategy in allowed
            if model.available(position, strategy, case.micro_batch) is None
        }
        for kind, position in first_of.items()
    }
    known: dict[frozenset[str], list[Strategy]] = {}

    def usable(start: int, stop: int) -> list[Strategy]:
        kinds = frozenset(layers[i].kind for i in order[start:stop])
        if kinds not in known:
            shared = set.intersection(*(by_kind[kind] for kind in kinds))
            known[kinds] = [s for s in allowed if s in shared]
        return known[kinds]

    return usable


def draw_plan(
    problem: Problem,
    draw: random.Random,
    case: Case,
    usable: Usable,
    counts: list[int],
) -> Plan | None:
    """Return a random plan of a case, ``None`` if the draw fails.

    It obeys all rules but those of the job and the preset about all stages
    together; whether it fits is not asked.
    """
    num_layers = len(problem.graph.layers)
    num_stages = _draw_count(draw, counts)
    cuts = sorted(draw.sample(range(1, num_layers), num_stages - 1))
    ranges = list(zip([0, *cuts], [*cuts, num_layers], strict=True))
    shared: list[Strategy] | None = None
    if is_uniform(problem):
        fitting = _at_most(usable(0, num_layers), case.devices // num_stages)
        if not fitting:
            return None
        shared = [draw.choice(fitting)]
    chosen: list[StageChoice] = []
    free = case.devices
    for number, (start, stop) in enumerate(ranges):
        left = num_stages - number
        most = min(2 * free // left, free - (left - 1))
        fitting = shared or _at_most(usable(start, stop), most)
        if not fitting:
            return None
        strategy = draw.choice(fitting)
        free -= strategy.devices
        chosen.append((start, stop, strategy))
    return make_plan(problem, case, chosen)


def _draw_count(draw: random.Random, counts: list[int]) -> int:
    """Return a number of stages, every power of two as likely as another."""
    buckets = sorted({count.bit_length() for count in counts})
    bucket = draw.choice(buckets)
    return draw.choice([c for c in counts if c.bit_length() == bucket])


def _at_most(usable: list[Strategy], devices: int) -> list[Strategy]:
    return [strategy for strategy in usable if strategy.devices <= devices]


def read_count(
    options: SolveOptions, solver: str, key: str, default: int
) -> int:
    """Return an option that is a whole number above 0.

    Raises
    ------
    InvalidOptionError
        If it is something else.
    """
    text = options.extra.get(key, str(default))
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise InvalidOptionError(
            f"option {solver}.{key}: expected a whole number >= 1, got "
            f"{text!r}; correct the value"
        )
    return int(text)
