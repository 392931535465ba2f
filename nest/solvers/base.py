"""The protocol a solver fulfills, its options and what it hands back.

A solver is pure: it prints nothing, writes no files but those that an option names,
leaves the problem as it is, and is deterministic for a given seed and worker count.
What it claims is re-checked and re-scored by :mod:`nest.solvers.run`.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import FunctionType, NoneType
from typing import Any, ClassVar, Protocol

from nest.cost.orders import planner_job
from nest.cost.schedules import LISTED, SCHEDULES
from nest.errors import InvalidOptionError
from nest.ir.job import FIXED_CHUNKS
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.units import MAX_TOTAL, finite
from nest.util.versions import num_cpus


class Status(enum.StrEnum):
    """What is proven about the answer.

    OVER_MEMORY is a plan that does not fit by the shared cost model, from a
    planner whose own memory model says otherwise, or that has none.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    OVER_MEMORY = "over-memory"
    NO_SOLUTION = "no-solution"


class Limit(enum.StrEnum):
    """Why the search stopped before it was done."""

    TIME = "time"
    MEMORY = "memory"
    SIZE = "size"
    INTERRUPT = "interrupt"


#: What a target of the registry begins with that is a description, see
#: :mod:`nest.solvers.command`, and not ``"module:Class"``.
COMMAND = "command:"

#: Fields of a job that widen the plan space; none is allowed by default.
EXTENSIONS = (
    *("virtual_stages", "overlap", "distributed_optimizer"),
    *("granularity", "sequence_parallel", "order"),
)


@dataclass(frozen=True)
class Capabilities:
    """What a solver promises.

    Attributes
    ----------
    exact
        It optimizes the shared objective over the whole plan space; only
        then may it claim OPTIMAL, INFEASIBLE or a lower bound.
    anytime
        It reports plans while it searches.
    parallel
        It makes use of many workers, and its answers do not depend on how
        many: by default it gets every CPU.
    warm_start
        It makes use of :attr:`SolveOptions.warm_start`.
    precision
        Relative precision of its proofs; 0 where arithmetic is exact.
    method
        One line for ``nest solvers``.
    requires
        Packages that must be importable.
    extra
        Name of the optional dependency set that installs them.
    searches
        Which fields of the job beyond the plain plan space it searches, of
        :data:`EXTENSIONS`. Where a job allows more, its proofs are about
        the plans without.
    any_schedule
        It takes schedules that are timed pass by pass, not only those whose
        step time is a sum of paces.
    objective
        What it minimizes, in words, where that is not the shared step time.
    overruns
        Its plans may exceed the memory by the shared cost model; such a plan
        is reported as :attr:`Status.OVER_MEMORY`, not as a broken promise.
    remedies
        What :attr:`SolveOptions.repair` tries on such a plan, in the order
        of its users; of ``recompute``, ``zero``, ``micro_batch``.
    model_files
        Ends of the names of files to which it writes its models, such as
        ``.lp``; then it is a :class:`ModelWriter`.
    options
        Names and meanings of the keys of :attr:`SolveOptions.extra`; a name
        that ends in ``.PARAM`` stands for all that begin so.
    is_quick
        Whether the search of a problem ends before a process for it would
        have begun: then it may run in the process that asks. Of solvers of
        other packages nobody asks that.
    deterministic
        Unless a limit stops it, its answer depends on the problem, the seed
        and the number of workers alone.

    Raises
    ------
    TypeError
        If a field is not of its type, or a name not a known one.
    """

    exact: bool
    method: str
    precision: float = 0.0
    anytime: bool = False
    parallel: bool = False
    warm_start: bool = False
    requires: tuple[str, ...] = ()
    extra: str | None = None
    searches: frozenset[str] = frozenset()
    any_schedule: bool = False
    objective: str = ""
    overruns: bool = False
    remedies: tuple[str, ...] = ("recompute", "zero", "micro_batch")
    model_files: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    is_quick: Callable[[Problem], bool] = lambda problem: False
    deterministic: bool = True

    def __post_init__(self) -> None:
        # Written by others too: what is wrong here must cost one solver.
        hints: dict[str, type | tuple[type, ...]] = {
            "requires": tuple,
            "options": Mapping,
            "remedies": tuple,
            "model_files": tuple,
            "searches": frozenset,
            "precision": (int, float),
            "extra": (str, NoneType),
            "is_quick": FunctionType,
        }
        for name, value in vars(self).items():
            types = (str,) if name in ("method", "objective") else (bool,)
            if not isinstance(value, hints.get(name, types)):
                raise TypeError(
                    f"capabilities: {name}: expected a value of its type, "
                    f"got {value!r}; see nest.solvers.base.Capabilities"
                )
        for name in (
            *("requires", "remedies", "searches"),
            *("model_files", "options"),
        ):
            for word in getattr(self, name):
                if not isinstance(word, str):
                    raise TypeError(
                        f"capabilities: {name}: expected words, got {word!r}"
                    )
        unknown = sorted(self.searches - {*EXTENSIONS})
        if unknown:
            raise TypeError(
                f"capabilities: searches: expected some of "
                f"{', '.join(EXTENSIONS)}, got {unknown[0]!r}"
            )

    def takes(self, key: str) -> bool:
        """Whether an option is one of :attr:`options`."""
        prefix, dot, rest = key.partition(".")
        several = dot and rest and f"{prefix}.PARAM" in self.options
        return bool(several) or key in self.options

    def unsearched(self, problem: Problem) -> tuple[str, ...]:
        """Return what the job allows and this solver does not search."""
        job = problem.job
        allowed = {
            "virtual_stages": job.chunk_counts != (1,),
            "overlap": bool(job.overlap),
            "distributed_optimizer": job.distributed_optimizer,
            "granularity": job.granularity != "stage",
            "sequence_parallel": {*job.sequence_choices(2)} == {False, True},
            "order": job.plans_order_passes,
        }
        return tuple(
            name for name in EXTENSIONS if allowed[name] and name not in self.searches
        )

    def unable(self, problem: Problem) -> str | None:
        """Return why no plan of this solver can be legal, or ``None``."""
        job = problem.job
        if not self.exact and "order" not in self.searches:
            job = planner_job(job)
        name = job.schedule
        if job.plans_order_passes and "order" not in self.searches:
            return (
                f"$.job.schedule: expected one schedule, as this solver does "
                f"not order passes, got {job.schedule_text!r}; use solver dp"
            )
        if name in LISTED and not self.any_schedule:
            return (
                f"$.job.schedule: expected one of {', '.join(SCHEDULES)}, as "
                f"this solver does not time schedules pass by pass, got "
                f"{name!r}; use solver dp, or solve with another schedule "
                f"and score the plan with this one"
            )
        allowed = job.chunk_counts
        remedy = "" if name in FIXED_CHUNKS else "add 1 or "
        if 1 in allowed or "virtual_stages" in self.searches:
            return None
        return (
            f"$.job.virtual_stages: expected 1 among the allowed values, as "
            f"this solver does not search interleaved plans, got "
            f"{list(allowed)}; {remedy}use solver dp or brute"
        )

    def beyond(self, plan: Plan) -> str | None:
        """Return what a plan uses that this solver does not search."""
        used = {
            "virtual_stages": plan.virtual_stages > 1,
            "overlap": bool(plan.overlap),
            "distributed_optimizer": plan.distributed_optimizer,
            "granularity": any(
                len(set(stage.layer_strategies)) > 1 for stage in plan.stages
            ),
            "sequence_parallel": any(
                strategy.sequence_parallel
                for stage in plan.stages
                for strategy in stage.layer_strategies
            ),
            "order": plan.order is not None,
        }
        for name in EXTENSIONS:
            if used[name] and name not in self.searches:
                return name
        return None

    def proves(self, step_quanta: int) -> int:
        """Return the lower bound that an optimum of this solver implies."""
        return step_quanta - math.floor(step_quanta * self.precision)


@dataclass(frozen=True)
class Progress:
    """A report from a running solver: a plan, a bound, or a message.

    Bounds and objectives are in quanta.
    """

    plan: Plan | None = None
    claimed_quanta: int | None = None
    lower_bound_quanta: int | None = None
    message: str = ""


@dataclass(frozen=True)
class SolveOptions:
    """Options with the same meaning for every solver.

    Attributes
    ----------
    time_limit_s
        Wall-clock limit for the whole solve; ``None`` is no limit.
    gap
        An exact solver may stop once ``(cost - bound) / cost`` is proven to
        be at most so much, see :meth:`reached`; 0 asks for the optimum.
    num_workers
        Threads or processes a solver may use.
    seed
        Seed of every random choice.
    warm_start
        A plan to start from; a plan that does not fit is an error.
    repair
        Whether a plan that exceeds the memory is made to fit afterwards,
        see :mod:`nest.solvers.repair`; solvers need not look at it.
    extra
        Options of one solver; unknown keys are refused.
    """

    time_limit_s: float | None = None
    gap: float = 0.0
    num_workers: int = 1
    seed: int = 0
    warm_start: Plan | None = None
    repair: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)

    def reached(self, step_quanta: int | None, lower_bound_quanta: int | None) -> bool:
        """Whether a plan and a bound are as close as :attr:`gap` asks for.

        Never so if no gap is asked for, or either is missing. Exact.
        """
        if not self.gap or step_quanta is None or lower_bound_quanta is None:
            return False
        return lower_bound_quanta >= self.enough(step_quanta)

    def enough(self, step_quanta: int) -> int:
        """Return the least bound within :attr:`gap` of a plan. Exact."""
        return math.ceil((1 - Fraction(self.gap)) * step_quanta)


def check_limits(name: str, num_workers: int, time_limit_s: float | None) -> None:
    """Raise ``InvalidOptionError`` for limits that nobody can keep.

    ``name`` is what the number of workers is called.
    """
    if time_limit_s is not None and not 0 < time_limit_s < math.inf:
        raise InvalidOptionError(
            f"time_limit_s: expected a finite number > 0, got "
            f"{time_limit_s}; leave it out for no limit"
        )
    if not 1 <= num_workers <= num_cpus():
        raise InvalidOptionError(
            f"{name}: expected 1 to {num_cpus()} (the CPUs at hand), got "
            f"{num_workers}; correct the value"
        )


@dataclass(frozen=True)
class SolverOutput:
    """A claim: what a solver says it found and proved (times in quanta).

    Most fields are as in :class:`~nest.solvers.result.Verdict`; ``extra`` is anything
    else that fits into JSON. ``own_objective_ns`` is the plan's value by the solver's
    own objective, in ns (1e-9 of the problem's time unit), where it has one.
    ``split_bounds`` are triples ``(R, B, bound)``: what no plan of a batch split takes
    less than, where the search discarded the split by such a bound.
    """

    status: Status
    plan: Plan | None = None
    claimed_quanta: int | None = None
    lower_bound_quanta: int | None = None
    limit: Limit | None = None
    detail: str = ""
    own_objective_ns: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    split_bounds: tuple[tuple[int, int, int], ...] = ()


Report = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Drop the report; the default of :meth:`Solver.solve`."""


class Solver(Protocol):
    """What the registry expects of a solver class (no arguments to build)."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def unsupported(self, problem: Problem) -> str | None:
        """Return why this problem cannot be searched, or ``None``."""

    def solve(
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        """Search for the best plan."""


class ModelWriter(Solver, Protocol):
    """A solver whose models other programs can read."""

    def write_models(
        self,
        problem: Problem,
        plan: Plan | None,
        folder: Path,
        suffix: str,
        every: bool,
    ) -> list[dict[str, Any]]:
        """Write models to an empty folder, and say what each is.

        All models that a proof of the best plan needs if ``every``, else one that has
        the plan at hand, or the most promising one. Names end with the suffix.
        """


class OutOfTimeError(Exception):
    """The deadline of a search passed; never leaves the solver."""


class EnoughError(Exception):
    """A plan and a bound are within the requested gap; never leaves the search."""


def exact_output(
    plan: Plan | None,
    step_quanta: int,
    bound_quanta: int,
    limit: Limit | None = None,
    detail: str = "",
) -> SolverOutput:
    """Return what an exact search knows: its best plan, if any, and bounds.

    Without a plan ``step_quanta`` is what better plans had to be below. No plan is
    faster than ``bound_quanta``. ``limit`` and ``detail`` say what ended the search,
    and where.
    """
    proven = bound_quanta >= step_quanta
    if plan is None:
        proven = proven and limit is None
        status = Status.INFEASIBLE if proven else Status.NO_SOLUTION
    else:
        status = Status.OPTIMAL if proven else Status.FEASIBLE
    return SolverOutput(
        status=status,
        plan=plan,
        claimed_quanta=None if plan is None else step_quanta,
        lower_bound_quanta=finite(bound_quanta),
        limit=None if proven else limit,
        detail="" if proven else detail,
    )


def wrong_proof(
    split: tuple[int, int], bound: int, step_quanta: int, which: str = ""
) -> str:
    """Return that a plan of a batch split is faster than a proven bound."""
    below = f" of less than {bound} quanta" if bound <= MAX_TOTAL else ""
    return (
        f"wrong proof: expected no plan with r={split[0]},b={split[1]}"
        f"{below}, got one of {step_quanta} quanta{which}"
    )


class Deadline:
    """The one clock of a solve: when it started and when it must end.

    The ``clock`` returns seconds: by default of the wall, or
    :func:`time.process_time` for CPU seconds of this process.
    """

    def __init__(
        self, limit_s: float | None, clock: Callable[[], float] | None = None
    ) -> None:
        self._clock = clock or time.monotonic
        self.start = self._clock()
        self.limit_s = limit_s
        self._parts: list[Deadline] = []
        #: Called when it expires before its time.
        self.at_expiry: Callable[[], None] = lambda: None

    def shortened(self, limit_s: float | None) -> Deadline:
        """Return the clock of a part, which expires with this one."""
        share = Deadline(limit_s, self._clock)
        self._parts.append(share)
        return share

    def share(self, fraction: float) -> Deadline:
        """Return the clock of a fraction of the time left; this one without a limit."""
        remaining_s = self.remaining_s
        if remaining_s is None:
            return self
        return self.shortened(min(fraction, 1.0) * remaining_s)

    def expire(self) -> None:
        """Use up the limit, whatever it was."""
        self.limit_s = 0.0
        self.at_expiry()
        for part in self._parts:
            part.expire()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the clock was made."""
        return self._clock() - self.start

    @property
    def remaining_s(self) -> float | None:
        """Seconds left, at least 0; ``None`` if there is no limit."""
        if self.limit_s is None:
            return None
        return max(0.0, self.limit_s - self.elapsed_s)

    @property
    def passed(self) -> bool:
        """Whether the limit is used up."""
        return self.limit_s is not None and self.elapsed_s >= self.limit_s

    def check(self) -> None:
        """Raise :class:`OutOfTimeError` if the limit is used up."""
        if self.passed:
            raise OutOfTimeError
