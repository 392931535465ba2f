"""What is known after a solver ran: one frozen, consistent record."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from nest.errors import InvalidPlanError
from nest.ir.io import plan_to_json
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.ir.views import Row, Tabular, ns_text
from nest.solvers.base import Limit, SolveOptions, Status
from nest.solvers.consistency import PROOFS, inconsistency
from nest.solvers.registry import solver_version
from nest.units import quanta_to_ns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nest.cost.score import Score


class Outcome(enum.StrEnum):
    """What became of the cell; time-outs and infeasibility are results."""

    SOLVED = "solved"
    SKIPPED = "skipped"
    NOT_INSTALLED = "not-installed"
    INVALID_PLAN = "invalid-plan"
    MISMATCH = "mismatch"
    ERROR = "error"
    INTERRUPTED = "interrupted"

    @property
    def failed(self) -> bool:
        """Whether the solver broke its promises."""
        return self in (Outcome.INVALID_PLAN, Outcome.MISMATCH, Outcome.ERROR)

    @property
    def ran(self) -> bool:
        """Whether the solver got to search."""
        return self not in (Outcome.SKIPPED, Outcome.NOT_INSTALLED)


@dataclass(frozen=True)
class Verdict:
    """What remains of a solver's claim about one problem.

    Nothing here is the solver's word alone: the plan was checked and scored
    by the shared cost model, and a claim that contradicts it is not repeated
    here but under ``extra["claim"]``. Times of plans are in quanta.

    Attributes
    ----------
    outcome
        What became of the cell.
    status
        What is proven; ``None`` if the solver did not run.
    limit
        Why the search stopped early.
    plan, score
        The plan and its shared score; both or neither.
    lower_bound_quanta
        Proven lower bound on every plan's step time.
    own_objective_ns
        What the solver's own objective says about the plan it handed in, in
        ns; :func:`nest.solvers.repair.repair` leaves it as it is.
    over_memory_bytes
        By how much the fullest device exceeds its memory; only with status
        OVER_MEMORY, whose plan has a score but no step time that counts.
    detail
        One line for people: the reason of what is above.
    extra
        Anything else that fits into JSON.
    """

    outcome: Outcome
    status: Status | None
    limit: Limit | None = None
    plan: Plan | None = None
    score: Score | None = None
    lower_bound_quanta: int | None = None
    own_objective_ns: float | None = None
    over_memory_bytes: int | None = None
    detail: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, repr=False)
class SolveResult(Verdict, Tabular):
    """The checked answer of one solver to one problem: its verdict, and how.

    Attributes
    ----------
    solver
        Its keyword.
    exact
        Whether it promises proofs, see :class:`Capabilities`.
    problem_hash, quantum_ps
        The problem, and its time unit.
    claimed_quanta
        Step time that the solver claimed for the plan.
    precision
        Relative precision of the solver's proofs.
    wall_s
        From the call of the runner to its return, all included.
    cpu_s, peak_rss_bytes
        Of the solver's process and the processes it waited for; the peak of
        this process if it searched here.
    options
        What it was asked.
    problem
        The problem, where the result was asked for in Python.

    Raises
    ------
    ValueError
        If the fields contradict each other.
    """

    solver: str
    exact: bool
    problem_hash: str
    quantum_ps: int
    claimed_quanta: int | None = None
    precision: float = 0.0
    wall_s: float = 0.0
    cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    options: SolveOptions = field(default_factory=SolveOptions)
    problem: Problem | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        """Return what it is in a line."""
        step = self.step_time_ns
        said = self.status or self.outcome
        parts = [f"<SolveResult {self.solver}: {said}"]
        if step is not None and self.plan is not None:
            parts += [f"{ns_text(step)} a step", self.plan.text]
        elif self.detail:
            parts.append(self.detail)
        return ", ".join([*parts, f"{self.wall_s:.2f} s>"])

    @property
    def version(self) -> str | None:
        """Version of the solver and its engines, if it ran."""
        if not self.outcome.ran or self.cpu_s is None:
            return None  # importing it may do any harm
        return solver_version(self.solver)

    def to_rows(self) -> list[Row]:
        """Return a row per stage of the plan with its score.

        Without a plan it is one row, which says why.
        """
        if self.plan is None or self.score is None:
            said = str(self.status or self.outcome)
            return [{"status": said, "reason": self._why_no_plan}]
        return [
            stage | terms
            for stage, terms in zip(
                self.plan.to_rows(), self.score.to_rows(), strict=True
            )
        ]

    @property
    def _why_no_plan(self) -> str:
        reason = self.detail
        if self.status is Status.INFEASIBLE:
            known = (
                "proven: no plan fits; nest.analysis.feasible.remedies(problem) says "
                "by how much, and what would do"
            )
            reason = "; ".join(filter(None, (known, reason)))
        return reason or "no plan was found"

    def plot_timeline(self, axes: Axes | None = None) -> Axes:
        """Draw when every block does what, see :mod:`nest.util.plots`.

        Raises
        ------
        NestError
            If there is no plan, or Matplotlib is not installed.
        """
        from nest.simulation.events import Simulation
        from nest.util.plots import timeline

        problem, plan, found = self._drawn()
        return timeline(Simulation(problem, plan, found).to_rows(), axes)

    def plot_memory(self, axes: Axes | None = None) -> Axes:
        """Draw what the devices of every stage hold.

        Raises
        ------
        NestError
            If there is no plan, or Matplotlib is not installed.
        """
        from nest.util.plots import memory

        problem, _, found = self._drawn()
        limit_bytes = problem.cluster.memory_bytes()
        return memory(found.to_rows(), limit_bytes, axes)

    def _drawn(self) -> tuple[Problem, Plan, Score]:
        if self.problem is None or self.plan is None or self.score is None:
            lacking = "plan" if self.plan is None else "problem"
            raise InvalidPlanError(
                f"plot: expected a result of nest.solve with a plan, got one "
                f"without a {lacking}; solve for one first"
            )
        return self.problem, self.plan, self.score

    def to_row(self) -> Row:
        """Return what it is among the answers to one problem."""
        score, gap = self.score, self.gap
        return {
            "solver": self.solver,
            "outcome": str(self.outcome),
            **self.summary(),
            "gap": None if gap is None else float(gap),
            "feasible": score and score.feasible,
            "step_time_s": self.step_time_s,
            "tokens_per_s": score and score.throughput_tokens_per_s,
            "memory_bytes": score and max(block.memory_bytes for block in score.blocks),
            "plan": self.plan and self.plan.text,
        }

    def __post_init__(self) -> None:
        problem = self._contradiction()
        if problem is not None:
            raise ValueError(f"result of solver {self.solver!r}: {problem}")

    def _contradiction(self) -> str | None:
        """Return which rule of consistency, or of results, the fields break."""
        status, step = self.status, self.step_quanta
        if self.outcome.ran != (status is not None):
            return (
                f"expected a status if and only if the solver ran, got "
                f"outcome {self.outcome} with status {status}"
            )
        if (status is Status.OVER_MEMORY) != bool(self.over_memory_bytes):
            return (
                f"expected over_memory_bytes if and only if the plan does "
                f"not fit, got {self.over_memory_bytes} with {status}"
            )
        if (self.plan is None) != (self.score is None):
            return "expected a score if and only if there is a plan"
        if self.outcome is not Outcome.SOLVED and not self.detail:
            return f"expected a detail with outcome {self.outcome}"
        if self.outcome is not Outcome.SOLVED and status in PROOFS:
            return f"expected no proof with outcome {self.outcome}"
        if status is Status.OPTIMAL and self.lower_bound_quanta is None:
            return "expected a lower bound with an optimum, got none"
        proven = None if step is None else step - math.floor(step * self.precision)
        return inconsistency(
            self,
            exact=self.exact,
            step_quanta=step,
            proven_quanta=proven,
            best_quanta=step,
        )

    @property
    def step_quanta(self) -> int | None:
        """Step time of a plan that fits, by the shared cost model."""
        if self.score is None or self.status is Status.OVER_MEMORY:
            return None
        return self.score.step_quanta

    @property
    def step_time_quanta(self) -> int | None:
        """The same by the name that it has in documents."""
        return self.step_quanta

    @property
    def step_time_ns(self) -> int | float | None:
        """The same in ns."""
        return self._in_ns(self.step_quanta)

    @property
    def step_time_s(self) -> float | None:
        """The step time of the plan, in seconds."""
        time_ns = self.step_time_ns
        return None if time_ns is None else time_ns / 1e9

    @property
    def simulated_step_time_ns(self) -> int | float | None:
        """What running its passes takes, in ns."""
        if self.score is None or self.status is Status.OVER_MEMORY:
            return None
        return self.score.simulated_step_time_ns

    @property
    def lower_bound_ns(self) -> int | float | None:
        """The proven lower bound in ns."""
        return self._in_ns(self.lower_bound_quanta)

    @property
    def gap(self) -> Fraction | None:
        """Return ``(cost - bound) / cost``, exactly; ``None`` if unknown."""
        cost, bound = self.step_quanta, self.lower_bound_quanta
        if cost is None or bound is None:
            return None
        return Fraction(cost - bound, cost) if cost else Fraction(0)

    def _in_ns(self, quanta: int | None) -> int | float | None:
        return None if quanta is None else quanta_to_ns(quanta, self.quantum_ps)

    def summary(self) -> dict[str, Any]:
        """Return what documents say of one answer among many."""
        return {
            "status": None if self.status is None else str(self.status),
            "step_time_ns": self.step_time_ns,
            "lower_bound_ns": self.lower_bound_ns,
            "wall_s": round(self.wall_s, 6),
            "detail": self.detail,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the cell of a ``nest-compare/1`` document."""
        gap = self.gap
        options = self.options
        return {
            "solver": self.solver,
            "version": self.version,
            "exact": self.exact,
            "outcome": str(self.outcome),
            **self.summary(),
            "limit": None if self.limit is None else str(self.limit),
            "step_time_quanta": self.step_quanta,
            "simulated_step_time_ns": self.simulated_step_time_ns,
            "claimed_quanta": self.claimed_quanta,
            "own_objective_ns": self.own_objective_ns,
            "over_memory_bytes": self.over_memory_bytes,
            "lower_bound_quanta": self.lower_bound_quanta,
            "gap": None if gap is None else float(gap),
            "cpu_s": None if self.cpu_s is None else round(self.cpu_s, 6),
            "peak_rss_bytes": self.peak_rss_bytes,
            "options": {
                **vars(options),
                "warm_start": options.warm_start is not None,
                "extra": dict(options.extra),
            },
            "plan": plan_to_json(self.plan),
            "score": None if self.score is None else self.score.to_json(),
            "extra": dict(self.extra),
        }
