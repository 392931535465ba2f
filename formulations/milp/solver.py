"""Exact search with mixed-integer programming, through PuLP."""

from __future__ import annotations

import math
from typing import ClassVar

from formulations.common import Instance, Slot, SubProblem
from formulations.milp.constraints import add_constraints, forbid
from formulations.milp.decode import decode
from formulations.milp.engines import DEFAULT, Verdict, engine_name, run
from formulations.milp.objective import set_objective
from formulations.milp.variables import create
from formulations.search import Answer, Start, search, why_unsupported
from nest.cost.score import score
from nest.errors import InvalidOptionError
from nest.ir.problem import Problem
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Report,
    SolveOptions,
    SolverOutput,
    ignore_progress,
)

#: Relative difference that is put down to floats: of the engine's objective
#: from the shared score, and of a proven optimum from the true one.
TOLERANCE = 1e-6


class MilpSolver:
    """One MILP per replicas, micro-batch and number of stages."""

    name: ClassVar[str] = "milp"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=True,
        precision=TOLERANCE,
        anytime=True,
        warm_start=True,
        method="layer-level MILP, CBC or another engine through PuLP",
        requires=("pulp",),
        searches=frozenset({"granularity"}),
        options={
            "engine": (
                "an engine that PuLP finds here, such as cbc (default) or "
                "highs"
            ),
        },
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return why this problem cannot be searched, or ``None``."""
        return why_unsupported(problem)

    def solve(
        self,
        problem: Problem,
        options: SolveOptions,
        report: Report = ignore_progress,
    ) -> SolverOutput:
        """Search for the best plan.

        Raises
        ------
        InvalidOptionError
            If an option is unknown or the engine is not available.
        InvalidPlanError
            If the warm start does not fit.
        SolverError
            If the engine fails, or its plan is not what it says.
        """
        deadline = Deadline(options.time_limit_s)
        for key in options.extra:
            if key not in self.capabilities.options:
                raise InvalidOptionError(
                    f"milp: expected option engine, got {key!r}; remove it"
                )
        engine = _Milp(
            engine_name(options.extra.get("engine", DEFAULT)), options
        )
        return search(self.name, problem, engine, options, report, deadline)


class _Milp:
    """Answers sub-problems with a MILP engine."""

    tolerance = TOLERANCE

    def __init__(self, engine: str, options: SolveOptions) -> None:
        self.engine = engine
        self.options = options

    def solve(
        self,
        instance: Instance,
        sub_problem: SubProblem,
        slots: dict[int, Slot],
        cutoff: int | None,
        start: Start | None,
    ) -> Answer:
        """Find the best plan with a step time of at most ``cutoff``.

        ``start`` is of no use: it never beats the cutoff, and engines drop
        what is not feasible. Plans that use more memory than there is, by
        less than floats can tell, are cut off one by one.
        """
        deadline = instance.deadline
        started_s = deadline.elapsed_s
        model = create(instance, sub_problem, slots, cutoff)
        add_constraints(model)
        set_objective(model)
        building_s = deadline.elapsed_s - started_s
        num_forbidden = 0
        while True:
            outcome = run(
                model.engine,
                self.engine,
                deadline=deadline,
                building_s=building_s,
                num_workers=self.options.num_workers,
                seed=self.options.seed,
            )
            finished = outcome.verdict is not Verdict.STOPPED
            bound = None
            if outcome.bound is not None:
                bound = math.floor(
                    outcome.bound * model.scale_quanta * (1 - TOLERANCE)
                )
            if outcome.objective is None:
                return Answer(finished=finished, bound=bound)
            decoded = decode(MilpSolver.name, model)
            verdict = score(instance.problem, decoded.plan, instance.model)
            if verdict.feasible:
                return Answer(
                    finished=finished,
                    plan=decoded.plan,
                    claimed_quanta=outcome.objective * model.scale_quanta,
                    bound=bound,
                )
            for position, stage in enumerate(verdict.stages):
                s = sub_problem.num_stages - position
                content = decoded.contents[s]
                profile = slots[s].profiles[content.profile]
                if stage.memory_bytes > profile.capacity_bytes:
                    forbid(model, num_forbidden, s, content)
                    num_forbidden += 1
