"""``fit``: the fewest devices, the least memory, or the best offer."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from nest.errors import InvalidOptionError
from nest.requests import values as read
from nest.requests.prices import PRICE_HELP, PRICE_USAGE, values_by_type
from nest.requests.restricted import RestrictedRequest
from nest.requests.settings import record, redeclared, setting
from nest.requests.solving import OneSolverRequest, TimeLimitRequest, solver_limits
from nest.requests.values import Integers, Pairs, also_needed, both_given

if TYPE_CHECKING:
    from nest.analysis.fit import Fit, StepTimeLimit
    from nest.ir.problem import Problem
    from nest.solvers.cell import OnProgress

#: Help of the time limit where one question takes several runs of a solver.
QUESTION_LIMIT = (
    "Wall-clock seconds for all runs of the solver together.  [default: none, "
    "60 with --model]"
)


@dataclass(frozen=True, kw_only=True)
class FitRequest(
    RestrictedRequest, OneSolverRequest, TimeLimitRequest, command="nest fit"
):
    """How few devices, how little memory, or which offer keeps a target."""

    SAFE: ClassVar[bool] = True

    within: float | str | None = setting(
        "--within S",
        "Target: a step takes at most so many seconds.",
        read.amount,
        unit="s",
    )
    tokens_per_s: float | str | None = setting(
        "--tokens-per-s N",
        "Target: at least so many tokens per second.",
        read.amount,
        unit="tokens/s",
    )
    days: float | str | None = setting(
        "--days D",
        "Target: the --tokens are trained in so many days.",
        read.amount,
        unit="days",
    )
    tokens: float | str | None = setting(
        "--tokens N", "Tokens of the run of --days.", read.token_count, unit="tokens"
    )
    devices_list: Integers | None = setting(
        "--devices-list N,…",
        "Device counts to try.  [default: powers of two in a node, then whole nodes]",
        read.integers(),
        unit="devices",
    )
    memory: bool = setting(
        "--memory", "Ask for the smallest memory per device on all devices instead."
    )
    budget: float | str | None = setting(
        "--budget USD",
        "Ask for the fastest plan whose run over --tokens costs at most that.",
        read.amount,
        unit="USD",
    )
    hourly_budget: float | str | None = setting(
        "--hourly-budget USD",
        "Ask for the fastest plan on devices that cost at most that per hour.",
        read.amount,
        unit="USD/h",
    )
    cheapest: bool = setting(
        "--cheapest", "Ask for the cheapest plan that keeps the target."
    )
    price: Pairs = setting(
        PRICE_USAGE,
        f"{PRICE_HELP}  Repeatable.",
        read.pairs,
        unit="USD/h",
        multiple=True,
    )
    quota: Pairs = setting(
        "--quota TYPE=N,…",
        "At most so many devices of a type, such as h100=64,a100=128; "
        "repeatable.  [default: all]",
        read.pairs,
        unit="devices",
        multiple=True,
    )
    time_limit: float | None = redeclared(
        TimeLimitRequest, "time_limit", QUESTION_LIMIT
    )
    on_progress: OnProgress | None = record("Called now and then.")

    @property
    def offer_options(self) -> list[str]:
        """The options that ask for an offer at prices."""
        values = {
            "--budget": self.budget,
            "--hourly-budget": self.hourly_budget,
            "--cheapest": self.cheapest or None,
        }
        return [name for name, value in values.items() if value is not None]

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        self.check_problem_choice()
        offer_options = self.offer_options
        for name, value in (("--price", self.price), ("--quota", self.quota)):
            if value and not offer_options:
                others = "--budget, --hourly-budget or --cheapest"
                raise also_needed(name, others, "add one")
        self._check_target(
            self.budget is not None, bool(offer_options) and not self.cheapest
        )
        for name in offer_options:
            if self.memory or self.devices_list is not None:
                other = "--memory" if self.memory else "--devices-list"
                raise both_given(name, other)
        if self.memory and self.devices_list is not None:
            raise both_given("--devices-list", "--memory")
        if self.memory and self.headroom is not None:
            other = "--memory, which asks for the memory of a device"
            raise both_given("--headroom", other)

    def _check_target(self, with_budget: bool, optional: bool) -> None:
        """Refuse targets that make no sense.

        A target may be missing only where it is optional.
        """
        values = {
            "--within": self.within,
            "--tokens-per-s": self.tokens_per_s,
            "--days": self.days,
        }
        tokens = self.tokens
        names = [name for name, value in values.items() if value is not None]
        if with_budget and tokens is None:
            raise InvalidOptionError(
                "--tokens: expected the tokens of the run of --budget, got "
                "none; add --tokens, or ask for an --hourly-budget"
            )
        if optional and not names and (with_budget or tokens is None):
            return
        if len(names) != 1:
            got = " and ".join(names) or "none"
            raise InvalidOptionError(
                f"nest fit: expected one target, --within, --tokens-per-s or --days "
                f"with --tokens, got {got}; {'keep one' if names else 'add one'}"
            )
        if with_budget:
            return
        if (self.days is None) != (tokens is None):
            missing = "--tokens" if tokens is None else "--days"
            raise InvalidOptionError(
                f"{missing}: expected --days and --tokens together, got one "
                f"of them; add {missing}"
            )

    def find_target(self, problem: Problem) -> StepTimeLimit | None:
        """Return the target, if there is one."""
        import nest.analysis.fit as fit

        match (self.within, self.tokens_per_s, self.days, self.tokens):
            case (Fraction() as step_s, _, _, _):
                return fit.within(problem, step_s)
            case (_, Fraction() as rate, _, _):
                return fit.tokens_per_s(problem, rate)
            case (_, _, Fraction() as num_days, Fraction() as tokens):
                return fit.days(problem, num_days, tokens)
        return None


def fit_problem(
    request: FitRequest, problem: Problem, on_progress: OnProgress | None = None
) -> Fit:
    """Answer a request that is checked, for its restricted problem."""
    from nest.analysis import offers
    from nest.analysis.fit import fewest_devices, smallest_memory

    goal = request.find_target(problem)
    name, limits = request.solver, solver_limits(request, request.solver)
    on_progress = on_progress or request.on_progress
    if request.offer_options:
        priced, quotas = priced_problem(request, problem)
        budgets: Any = request.hourly_budget, request.budget, request.tokens
        return offers.best_offer(
            priced,
            "cheapest" if request.cheapest else "fastest",
            offers.Limits(goal, *budgets),
            quotas,
            name,
            limits,
            on_progress,
        )
    assert goal is not None
    if request.memory:
        return smallest_memory(problem, goal, name, limits, on_progress)
    sizes: Any = request.devices_list
    return fewest_devices(problem, goal, sizes, name, limits, on_progress)


def priced_problem(
    request: FitRequest, problem: Problem
) -> tuple[Problem, dict[str, int]]:
    """Return the problem at the prices of the request, and its quotas."""
    from nest.analysis import offers

    types = problem.cluster.types
    prices = values_by_type("--price", request.price, types, read.amount)
    quotas = values_by_type("--quota", request.quota, types, read.integer(0))
    return (
        offers.with_prices(problem, {name: float(x) for name, x in prices.items()}),
        quotas,
    )
