"""What a warm start must be for solvers that search all plans."""

from __future__ import annotations

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import InvalidPlanError
from nest.ir.plan import Plan
from nest.ir.problem import Problem


def check_warm_start(problem: Problem, plan: Plan, model: CostModel) -> int:
    """Return the step time of a plan to start from, in quanta.

    Raises ``InvalidPlanError`` if it does not belong to the problem, is outside the
    space that is searched, or exceeds the memory.
    """
    for number, stage in enumerate(plan.stages, 1):
        if problem.job.granularity == "layer" or model.rules.recompute_per_layer:
            break  # score knows what the layers of a stage must share
        if len(set(stage.layer_strategies)) > 1:
            raise InvalidPlanError(
                f"stage {number}: expected one strategy for all layers of a "
                f"stage to start from, got {len(set(stage.layer_strategies))}"
                f"; give every stage one strategy"
            )
    verdict = score(problem, plan, model)
    if not verdict.feasible:
        raise InvalidPlanError(f"{verdict.violations[0]}; start from a plan that fits")
    return verdict.step_quanta
