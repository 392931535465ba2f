"""A planner that does everything wrong, one thing per problem.

It has a plan to be wrong about: the model on one device, or where that does
not fit a pipeline, found by trying. What it does is option ``act``, by
default that of :data:`ACTS` for the problem.
"""

from __future__ import annotations

import os
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from nest.cost.score import Score, score
from nest.errors import InvalidPlanError
from nest.ir import Plan, Problem, Stage, Strategy
from nest.ir.plan import RECOMPUTE
from nest.solvers.base import (
    Capabilities,
    Limit,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    Status,
    ignore_progress,
)

TARGET = "tests.wrong:Wrong"

#: What it does with the problems of nest.conform.
ACTS = {
    "conform-dag": "claim",
    "conform-mixed": "infeasible",
    "conform-per-layer": "plan",
    "conform-artifact": "crash",
    "gpt2-large-a10gx2": "bound",
    "llama2-7b-a100-40gbx2": "mess",
    "large": "hang",
}


def some_plan(problem: Problem, first: int = 1) -> tuple[Plan, Score]:
    """Return a plan of at least so many stages that fits."""
    graph = problem.graph
    layers = [graph.layers[i].id for i in graph.topological_order()]
    for count in range(first, len(layers) + 1):
        for recompute in RECOMPUTE:
            strategy = Strategy(recompute=recompute)
            cuts = [i * len(layers) // count for i in range(count + 1)]
            plan = Plan(
                replicas=1,
                micro_batch=problem.job.micro_batches[0],
                stages=tuple(
                    Stage.of(layers[i:j], [strategy] * (j - i))
                    for i, j in pairwise(cuts)
                ),
            )
            try:
                found = score(problem, plan)
            except InvalidPlanError:
                continue
            if found.feasible:
                return plan, found
    raise AssertionError(f"no plan for {problem.name}")


class Wrong:
    """Does what option ``act`` or the problem says."""

    name: ClassVar[str] = "wrong"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=True,
        warm_start=True,
        method="wrong in every way",
        options={"act": "what to do", "size": "a number, not checked"},
    )

    def unsupported(self, problem: Problem) -> str | None:
        return None

    def solve(
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        act = options.extra.get("act", ACTS.get(problem.name, "claim"))
        int(options.extra.get("size", "1"))
        if act == "crash":
            raise ZeroDivisionError("division by\nzero")
        if act == "hang":
            time.sleep(60)
        if act == "infeasible":
            return SolverOutput(Status.INFEASIBLE, detail="no room")
        if act == "mess":
            print("searching …")
            Path("left.txt").write_text("here")
            subprocess.Popen(["sleep", "61.5"], start_new_session=True)
            return SolverOutput(Status.NO_SOLUTION, limit=Limit.SIZE, detail="gave up")
        plan, found = some_plan(problem)
        if act == "plan":
            twice = Plan(
                replicas=plan.replicas,
                micro_batch=plan.micro_batch,
                stages=(plan.stages[0],) * 2,
            )
            return SolverOutput(Status.FEASIBLE, plan=twice)
        if act == "bound":
            bound = found.step_quanta
            report(Progress(plan, found.step_quanta - 1, bound))
            return SolverOutput(Status.FEASIBLE, plan, found.step_quanta, bound)
        if act == "honest":
            return SolverOutput(Status.FEASIBLE, plan, found.step_quanta)
        return SolverOutput(Status.OPTIMAL, plan, found.step_quanta - 1)


class Moody(Wrong):
    """Gives another plan every time, none as good as the one it began with.

    The file ``MOODY`` counts its runs.
    """

    name: ClassVar[str] = "moody"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=False, warm_start=True, method="of two minds"
    )

    def solve(
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        with open(os.environ["MOODY"], "a+") as file:
            file.seek(0)
            runs = len(file.read())
            file.write(".")
        plan, _ = some_plan(problem, 1 + min(runs, 1))
        return SolverOutput(Status.FEASIBLE, plan)


class Misnamed(Moody):
    """Its class has the name of another one."""


class NoPlans(Wrong):
    """Says of every problem that it cannot search it, and not why."""

    name: ClassVar[str] = "no-plans"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, method="none")

    def unsupported(self, problem: Problem) -> str | None:
        return ""
