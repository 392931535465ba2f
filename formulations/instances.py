"""The constants of a problem for the formulations, one set per runtime."""

from __future__ import annotations

from formulations.common import Instance
from formulations.nest_artifact import ArtifactInstance
from nest.cost.model import CostModel
from nest.cost.space import Runtime, leading_runtimes
from nest.ir.problem import Problem
from nest.solvers.base import Deadline

#: The class of instances for each set of rules that is formulated.
INSTANCES = {"standard": Instance, "nest-artifact": ArtifactInstance}


def instances_of(
    problem: Problem, model: CostModel, deadline: Deadline
) -> dict[Runtime, Instance]:
    """Return the instance of a problem under each runtime."""
    return {
        runtime: INSTANCES[model.rules.name](problem, model.under(runtime), deadline)
        for runtime in leading_runtimes(problem)
    }
