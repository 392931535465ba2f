"""Questions about one plan: score, explain, simulate, certify."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nest.constraints.pins import parse
from nest.cost.space import make_split
from nest.errors import InvalidPlanError
from nest.ir.io import read_text
from nest.ir.job import ANY_ORDER
from nest.requests.fitting import QUESTION_LIMIT
from nest.requests.plans import SILENT, PlanRequest, Talk
from nest.requests.problems import ScheduleFile, schedule_or_file
from nest.requests.restricted import RestrictedRequest
from nest.requests.settings import record, redeclared, setting
from nest.requests.solving import (
    DEFAULT_SOLVER,
    OneSolverRequest,
    TimeLimitRequest,
    solver_limits,
)
from nest.requests.values import Pairs, both_given, quantity, restrictions
from nest.util.quantities import TIME

if TYPE_CHECKING:
    from nest.analysis.explain import Explanation
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.solvers.cell import OnProgress


@dataclass(frozen=True, kw_only=True)
class ScoreRequest(PlanRequest, command="nest score"):
    """What a plan costs."""


@dataclass(frozen=True, kw_only=True)
class SimulateRequest(PlanRequest, command="nest simulate"):
    """A plan's step, pass by pass."""

    schedule: str | tuple[str, ...] | None = setting(
        "--schedule FILE|NAME,…",
        "A CSV file of PyTorch with the order of passes that the plan's "
        "stages run instead of the plan's own; or as of --model.",
        schedule_or_file,
    )

    @property
    def schedule_path(self) -> str | None:
        """The file of ``schedule``, if it is one."""
        path = self.schedule
        return path if isinstance(path, ScheduleFile) else None

    def find_problem_and_plan(self, talk: Talk = SILENT) -> tuple[Problem, Plan]:
        """Return the problem and the plan, with the passes of the file."""
        from nest.frameworks.schedule_csv import with_passes

        path = self.schedule_path
        if path is None:
            return super().find_problem_and_plan(talk)
        self.check_plan_choice()
        others = dataclasses.replace(self, schedule=None)
        plan = others.find_plan(others.find_problem(), talk, warn=False)
        assert plan is not None
        problem = dataclasses.replace(
            self, schedule=ANY_ORDER, virtual_stages=(plan.virtual_stages,)
        ).find_problem()
        split = make_split(problem, plan.replicas, plan.micro_batch)
        text = read_text(path, InvalidPlanError)
        plan = with_passes(plan, text, path, split.num_micro_batches)
        return problem, plan


@dataclass(frozen=True, kw_only=True)
class TraceRequest(PlanRequest, command="nest trace"):
    """A plan's step as a trace."""


@dataclass(frozen=True, kw_only=True)
class CheckRequest(PlanRequest, command="nest check"):
    """Whether a problem, and perhaps a plan for it, is valid."""

    why: bool = setting(
        "--why",
        "Say why strategies are not available for a captured module, and what its "
        "costs assume.",
    )


@dataclass(frozen=True, kw_only=True)
class OrderRequest(PlanRequest, command="nest topology order"):
    """An order of the devices in which a plan is faster."""


@dataclass(frozen=True, kw_only=True)
class CertifyRequest(PlanRequest, command="nest certify"):
    """A proof that ``nest-check`` can check."""


@dataclass(frozen=True, kw_only=True)
class ExplainRequest(
    PlanRequest,
    RestrictedRequest,
    OneSolverRequest,
    TimeLimitRequest,
    command="nest explain",
):
    """Where the time of a plan goes, and what else there is."""

    target: str | None = redeclared(RestrictedRequest, "target")
    prefer: Pairs = setting(
        "--prefer SETTING=VALUE,…",
        "Compare with the best plan under these settings, such as tp=8,pp=4.",
        restrictions,
        multiple=True,
    )
    search: bool = setting(
        "--no-search", "Solve nothing: only the terms and the neighbors.", default=True
    )
    time_limit: float | None = redeclared(
        TimeLimitRequest, "time_limit", QUESTION_LIMIT
    )
    measured: float | str | None = setting(
        "--measured T",
        "A measured step time, in seconds or with a unit: which term would have to be "
        "off to explain it, and which experiment would tell.",
        quantity(TIME, "s", lowest=1e-12, highest=1e9),
        unit="s",
    )
    on_progress: OnProgress | None = record("Called now and then.")

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        searching = {
            "--prefer": bool(self.prefer),
            "--solver": self.solver != DEFAULT_SOLVER,
            "--time-limit": self.time_limit is not None,
        }
        for name, is_given in searching.items():
            if is_given and not self.search:
                raise both_given(name, "--no-search")


def explain_plan(
    request: ExplainRequest,
    problem: Problem,
    plan: Plan,
    on_progress: OnProgress | None = None,
) -> Explanation:
    """Answer a request that is checked, for its restricted problem."""
    from nest.analysis.explain import explain
    from nest.analysis.measured_step import explain_measured

    explanation = explain(
        problem,
        plan,
        prefer=parse(tuple(request.prefer), "--prefer"),
        search=request.search,
        solver=request.solver,
        options=solver_limits(request, request.solver),
        on_progress=on_progress or request.on_progress,
    )
    if request.measured is None:
        return explanation
    build = partial(request.model_problem, request.target, request.named)
    measured = explain_measured(
        problem,
        plan,
        1e9 * float(request.measured),
        neighbors=explanation.neighbours,
        intervals=explanation.intervals,
        build=None if request.model is None else build,
    )
    return dataclasses.replace(explanation, measured=measured)
