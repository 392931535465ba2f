"""Which plan a request is about: a record, a file, settings, or a result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from nest.constraints.pins import are_settings
from nest.constraints.targets import ANY, names
from nest.errors import InvalidOptionError, InvalidPlanError, NestError
from nest.ir.io import problem_hash, read_plan
from nest.ir.job import ANY_ORDER, PAIRED, SCHEDULES
from nest.ir.plan import PassLists, Plan
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

    Raises ``InvalidPlanError`` if it is none of these.
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


@dataclass(frozen=True)
class Talk:
    """How a request tells about the plans that it finds.

    ``warn`` gets a line if a plan was made for something else; ``find`` gets problem,
    settings and the name of the argument, and finds the plan of the settings.
    """

    warn: Callable[[str], None] = lambda text: None
    find: Callable[[Problem, str, str], Plan] | None = None


SILENT = Talk()


def plan_of_text(source: str, problem: Problem, name: str, talk: Talk = SILENT) -> Plan:
    """Return the plan in a file, or the one that settings stand for."""
    if not are_settings(source):
        return read_plan(source)
    if talk.find is not None:
        return talk.find(problem, source, name)
    from nest.analysis.plan_by_settings import plan_by_settings

    return plan_by_settings(problem, source, name).plan


def warn_if_foreign(
    problem: Problem, plan: Plan, talk: Talk = SILENT, why: str = ""
) -> None:
    """Note that a plan was made for something else.

    ``why`` says for what, and what to do about it, if that is known.

    Raises ``InvalidPlanError`` if it is no plan of this problem either.
    """
    from nest.cost.score import score

    if plan.problem_hash is None:
        return
    this_hash = problem_hash(problem)
    if plan.problem_hash == this_hash:
        return
    text = why or (
        f"the plan was made for problem {plan.problem_hash[:12]}, this is "
        f"{this_hash[:12]}"
    )
    try:
        score(problem, plan)
    except InvalidPlanError as error:
        raise InvalidPlanError(f"{error}: {text}") from None
    talk.warn(text)


def _schedules_with(order: str | PassLists | None) -> Iterator[Any]:
    """Yield what ``--schedule`` may have been for a plan of an order."""
    if order is None:
        yield from SCHEDULES
    elif isinstance(order, str):
        choices = [x for x in SCHEDULES if x not in PAIRED]
        for size in range(2, len(choices) + 1):
            for several in combinations(choices, size):
                if order in several:
                    yield several


def _option(request: PlanRequest, name: str) -> str:
    """Return an option as on the command line; empty for the default."""
    value = getattr(request, name)
    if value is None or (name == "target" and value == ANY):
        return ""
    text = value if isinstance(value, str) else ",".join(map(str, value))
    return f"--{name.replace('_', '-')} {text}"


@dataclass(frozen=True)
class PlanRequest(ProblemRequest):
    """A problem and a plan for it."""

    plan: PlanLike | None = setting(
        "[PLAN]",
        "A file, settings such as tp=8,pp=4,zero=1, or in Python a plan or a "
        "result.  Settings stand for the fastest plan that has them or, if "
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
            other = self.made_with(problem, made)
            why = "" if other is None else self.difference(other)
            warn_if_foreign(problem, made, talk, why)
        return made

    def made_with(self, problem: Problem, plan: Plan) -> Self | None:
        """Return the request with the target, schedule and stages of a plan.

        ``None`` if it was made for this problem, or for something else.
        """
        made_for = plan.problem_hash
        if made_for in (None, problem_hash(problem)):
            return None
        few = dict.fromkeys((self.target or ANY, ANY))
        every = dict.fromkeys((*few, *names()))
        schedules = {self.schedule: every, None: every}
        schedules |= dict.fromkeys(_schedules_with(plan.order), few)
        schedules[ANY_ORDER] = every
        count = plan.virtual_stages
        virtual = [self.virtual_stages, (count,), (1, count)]
        choices = product(virtual if count > 1 else virtual[:1], schedules.items())
        for stages, (schedule, targets) in choices:
            for name in targets:
                other = replace(
                    self, target=name, schedule=schedule, virtual_stages=stages
                )
                with suppress(NestError):
                    if problem_hash(other.find_problem()) == made_for:
                        return other
        return None

    def difference(self, other: Self) -> str:
        """Return what a plan was made with, and what to do about it.

        Empty if this request has the target, schedule and virtual stages of the other.
        """
        pairs = [
            (_option(self, name), _option(other, name))
            for name in ("target", "schedule", "virtual_stages")
        ]
        added = [theirs for mine, theirs in pairs if theirs not in ("", mine)]
        removed = [mine for mine, theirs in pairs if mine and not theirs]
        origins, advice = [], []
        if added:
            origins.append(f"with {' '.join(added)}")
            advice.append(f"run '{self.COMMAND} … {' '.join(added)}'")
        if removed:
            origins.append(f"without {' '.join(removed)}")
            advice.append("leave that out")
        if not origins:
            return ""
        made, then = (" and ".join(texts) for texts in (origins, advice))
        return f"the plan was made {made}; {then}"

    def find_problem_and_plan(self, talk: Talk = SILENT) -> tuple[Problem, Plan]:
        """Return the problem and the plan of the request."""
        self.check_problem_choice()
        self.check_plan_choice()
        problem = self.find_problem()
        plan = self.find_plan(problem, talk)
        assert plan is not None
        return problem, plan
