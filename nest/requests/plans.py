"""Which plan a request is about: a record, a file, settings, or a result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from nest.constraints.pins import are_settings
from nest.constraints.targets import ANY, names
from nest.errors import InvalidOptionError, InvalidPlanError, NestError
from nest.ir.io import problem_hash, read_plan
from nest.ir.plan import Plan
from nest.requests.problems import ProblemRequest
from nest.requests.restricted import restricted_by
from nest.requests.settings import setting
from nest.requests.values import PathText, settings_text, shown

if TYPE_CHECKING:
    from nest.ir.problem import Problem
    from nest.solvers.result import SolveResult

    #: A plan, a file, settings, or a result that has a plan.
    PlanLike: TypeAlias = Plan | SolveResult | Mapping[str, Any] | PathText


class PlanSource(str):
    """The text of a plan, with the option that it comes from."""

    option = "PLAN"


def read_plan_like(value: Any) -> Any:
    """Return a plan, or the text of a file or of settings.

    Raises
    ------
    InvalidPlanError
        If it is none of these.
    """
    if isinstance(value, Mapping):
        return settings_text(value)
    if isinstance(value, str | os.PathLike):
        return value if isinstance(value, PlanSource) else os.fspath(value)
    plan = value if isinstance(value, Plan) else getattr(value, "plan", None)
    if isinstance(plan, Plan):
        return plan
    raise InvalidPlanError(
        f"plan: expected a plan, a file, settings such as 'tp=8,pp=4' or a "
        f"result with a plan, got {shown(value)}; pass one"
    )


def _ignore(*_: object) -> None:
    """Drop what is told."""


@dataclass(frozen=True)
class Talk:
    """How a request tells about the plans that it finds.

    Attributes
    ----------
    warn
        Gets a line if a plan was made for something else.
    find
        Finds the plan of settings: gets problem, settings, and the name of
        the argument.
    """

    warn: Callable[[str], None] = _ignore
    find: Callable[[Problem, str, str], Plan] | None = None


SILENT = Talk()


def plan_of_text(
    source: str, problem: Problem, name: str, talk: Talk = SILENT
) -> Plan:
    """Return the plan in a file, or the one that settings stand for."""
    if not are_settings(source):
        return read_plan(source)
    if talk.find is not None:
        return talk.find(problem, source, name)
    from nest.analysis.plan_by_settings import plan_by_settings

    return plan_by_settings(problem, source, name).plan


def warn_if_foreign(
    problem: Problem, plan: Plan, talk: Talk = SILENT, remedy: str = ""
) -> None:
    """Note that a plan was made for something else.

    ``remedy`` follows, what to do about it.

    Raises
    ------
    InvalidPlanError
        If it is no plan of this problem either.
    """
    from nest.cost.score import score

    if plan.problem_hash is None:
        return
    this_hash = problem_hash(problem)
    if plan.problem_hash == this_hash:
        return
    text = (
        f"the plan was made for problem {plan.problem_hash[:12]}, this is "
        f"{this_hash[:12]}{remedy}"
    )
    try:
        score(problem, plan)
    except InvalidPlanError as error:
        raise InvalidPlanError(f"{error}: {text}") from None
    talk.warn(text)


@dataclass(frozen=True)
class PlanRequest(ProblemRequest):
    """A problem and a plan for it."""

    plan: PlanLike | None = setting(
        "[PLAN]",
        "A plan, a file, settings as of --pin, such as tp=8,pp=4,zero=1, or "
        "a result. Settings stand for the fastest plan that has them or, if "
        "none fits, for the one that needs least memory.",
        read_plan_like,
    )

    def check_plan_choice(self) -> None:
        """Refuse a request without a plan."""
        if self.plan is None:
            raise InvalidOptionError(
                f"{self.COMMAND}: expected PLAN, got none; see "
                f"'{self.COMMAND} --help', or pass --plan"
            )

    def find_plan(
        self, problem: Problem, talk: Talk = SILENT, warn: bool = True
    ) -> Plan | None:
        """Return the plan of the request for a problem, if it has one.

        Tells which plan settings stand for and, unless told not to, that a
        file's plan was made for something else.
        """
        plan = self.plan
        if plan is None or isinstance(plan, Plan):
            return plan
        assert isinstance(plan, str)
        option = getattr(plan, "option", PlanSource.option)
        if are_settings(plan):
            narrow = restricted_by(self, problem).problem
            return plan_of_text(plan, narrow, option, talk)
        made = plan_of_text(plan, problem, option, talk)
        if warn:
            warn_if_foreign(problem, made, talk, self._remedy(problem, made))
        return made

    def made_for(self, problem: Problem, plan: Plan) -> str | None:
        """Return the target of the same model that a plan was made for.

        ``None`` if it was made for this problem, or for something else.
        """
        made_for = plan.problem_hash
        if self.model is None or made_for in (None, problem_hash(problem)):
            return None
        for name in dict.fromkeys((ANY, *names())):
            try:
                other = replace(self, target=name).find_problem()
            except NestError:
                continue
            if problem_hash(other) == made_for:
                return name
        return None

    def _remedy(self, problem: Problem, plan: Plan) -> str:
        """Return what makes this problem that of a plan; empty if nothing."""
        name = self.made_for(problem, plan)
        if name is None:
            return ""
        if name == ANY:
            return f", with --target {self.target}; leave it out"
        return f", without --target {name}; add it"

    def find_problem_and_plan(
        self, talk: Talk = SILENT
    ) -> tuple[Problem, Plan]:
        """Return the problem and the plan of the request."""
        self.check_problem_choice()
        self.check_plan_choice()
        problem = self.find_problem()
        plan = self.find_plan(problem, talk)
        assert plan is not None
        return problem, plan
