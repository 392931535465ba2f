"""``random``: the best of many random plans, the floor for every planner.

Search space: all plans of the problem that are not interleaved; one strategy
per stage. A plan is drawn by choosing ``(R, B)``, then a number of stages
(each power of two as likely as the next), the cuts, and a strategy for each
stage, uniformly among what is legal. What needs more devices than a replica
has, or does not fit, is drawn again.

Objective: the shared step time, of plans that fit. It ignores nothing and
knows nothing. No publication; the same floor appears in comparisons of
placement planners as "random".
"""

from __future__ import annotations

import random
from typing import ClassVar

from baselines.common import StageChoice, answer, chain, make_plan
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import Case, cases, stage_counts, strategies
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

NUM_PLANS = 1000


class RandomSolver:
    """Draw plans, keep the best one that fits."""

    name: ClassVar[str] = "random"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=False,
        anytime=True,
        method="best of many random plans",
        options={"plans": f"how many plans to draw (default {NUM_PLANS})"},
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
        num_plans = _read_plans(options)
        model = CostModel(problem)
        choices = [
            (case, usable, counts)
            for case in cases(problem)
            if (usable := _usable(problem, model, case))
            and (counts := stage_counts(problem, case))
        ]
        if not choices:
            return answer(None, detail="no strategy has a cost for all layers")
        draw = random.Random(options.seed)
        best: Plan | None = None
        best_quanta = 0
        for number in range(num_plans):
            if deadline.passed:
                return answer(
                    best,
                    limit=Limit.TIME,
                    detail=f"{number} of {num_plans} plans drawn",
                )
            plan = _draw(problem, draw, *draw.choice(choices))
            if plan is None:
                continue
            try:
                found = score(problem, plan, model)
            except InvalidPlanError:
                continue
            if found.feasible and (
                best is None or found.step_quanta < best_quanta
            ):
                best, best_quanta = plan, found.step_quanta
                report(Progress(plan=plan, claimed_quanta=best_quanta))
        return answer(best, detail=f"{num_plans} plans drawn")


def _usable(problem: Problem, model: CostModel, case: Case) -> list[Strategy]:
    """Return the strategies that every layer has a cost for."""
    return [
        strategy
        for strategy in strategies(problem, case.micro_batch)
        if strategy.devices <= case.devices
        and all(
            model.available(position, strategy, case.micro_batch) is None
            for position in range(len(problem.graph.layers))
        )
    ]


def _draw(
    problem: Problem,
    draw: random.Random,
    case: Case,
    usable: list[Strategy],
    counts: list[int],
) -> Plan | None:
    """Return a random plan of a case, ``None`` if the draw has no devices."""
    order = chain(problem)
    num_stages = draw.choice(counts)
    cuts = sorted(draw.sample(range(1, len(order)), num_stages - 1))
    chosen: list[StageChoice] = []
    free = case.devices
    for number, (start, stop) in enumerate(
        zip([0, *cuts], [*cuts, len(order)], strict=True), 1
    ):
        behind = num_stages - number
        fitting = [s for s in usable if s.devices <= free - behind]
        if not fitting:
            return None
        strategy = draw.choice(fitting)
        free -= strategy.devices
        chosen.append((start, stop, strategy))
    return make_plan(problem, case, chosen)


def _read_plans(options: SolveOptions) -> int:
    text = options.extra.get("plans", str(NUM_PLANS))
    if not text.isdecimal() or int(text) < 1:
        raise InvalidOptionError(
            f"random.plans: expected a whole number >= 1, got {text!r}; "
            f"correct the value"
        )
    return int(text)
