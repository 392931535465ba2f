"""The runner: one solver, one problem, one process, one clock.

Whatever a solver does (lie, raise, hang, die), :func:`run_solver` returns a
consistent result in bounded time and leaves no process behind.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from nest.errors import (
    InvalidOptionError,
    InvalidPlanError,
    InvalidProblemError,
    NestError,
    SolverNotInstalledError,
)
from nest.ir.io import problem_hash
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import (
    Limit,
    SolveOptions,
    Solver,
    SolverOutput,
    Status,
)
from nest.solvers.judge import Verdict, judge
from nest.solvers.messages import Answer, Failure, Message, Report, Request
from nest.solvers.process import Usage, Worker
from nest.solvers.registry import (
    get_solver,
    solver_class,
    solver_target,
    solver_version,
)
from nest.solvers.repair import repair
from nest.solvers.result import Outcome, SolveResult
from nest.versions import num_cpus

#: How often a running cell shows a sign of life.
TICK_S = 0.5

#: How long a solver that gave its answer may take to leave.
_LEAVE_S = 1.0


@dataclass(frozen=True)
class Running:
    """A sign of life of a running cell.

    Attributes
    ----------
    solver, elapsed_s
        Who is running, and for how long.
    best_quanta, lower_bound_quanta
        What it claims so far; not checked yet.
    has_plan
        Whether it reported a plan.
    message
        Its last words.
    quantum_ps
        Size of the quantum.
    """

    solver: str
    elapsed_s: float
    best_quanta: int | None
    lower_bound_quanta: int | None
    has_plan: bool
    message: str
    quantum_ps: int


OnProgress = Callable[[Running], None]


class CellInterrupted(KeyboardInterrupt):
    """Ctrl-C while a solver ran; ``result`` is what it had so far."""

    def __init__(self, result: SolveResult) -> None:
        super().__init__(f"solver {result.solver!r} was interrupted")
        self.result = result


def grace_s(time_limit_s: float) -> float:
    """Return how long after its limit a solver is killed."""
    return max(2.0, 0.1 * time_limit_s)


def check_request(
    problem: Problem, name: str, options: SolveOptions
) -> type[Solver]:
    """Refuse what no run could make sense of; return the solver's class.

    Raises
    ------
    UnknownSolverError
        If there is no such solver.
    SolverNotInstalledError
        If it cannot run here.
    InvalidOptionError
        If an option is unknown or out of range.
    InvalidPlanError
        If the warm start is no feasible plan of this problem, or uses what
        the solver does not search.
    InvalidProblemError, UnknownNameError
        If the cost model cannot price the problem.
    """
    solver = get_solver(name)
    _check_options(name, solver, options)
    from nest.cost.model import CostModel

    CostModel(problem)
    if options.warm_start is not None:
        _check_warm_start(problem, options.warm_start)
        beyond = solver.capabilities.beyond(options.warm_start)
        if beyond is not None:
            raise InvalidPlanError(
                f"warm start: expected a plan without {beyond}, which solver "
                f"{name!r} does not search, got one with it; start from "
                f"another plan or use solver brute"
            )
    return solver


def run_solver(
    problem: Problem,
    name: str,
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
) -> SolveResult:
    """Let one solver work on a problem and check what it says.

    Parameters
    ----------
    problem
        The problem.
    name
        Keyword of the solver.
    options
        Limits and seeds. The time limit holds from this call to its return;
        a solver that ignores it is killed :func:`grace_s` later.
    on_progress
        Called at every report of the solver and every :data:`TICK_S`.

    Returns
    -------
    SolveResult
        What is known. A solver that fails is a result too.

    Raises
    ------
    NestError
        If the request makes no sense, see :func:`check_request`, or the
        solver finds that the problem or an option is invalid.
    CellInterrupted
        On Ctrl-C.
    """
    start = time.monotonic()
    options = options or SolveOptions()
    solver_target(name)
    try:
        solver = check_request(problem, name, options)
    except SolverNotInstalledError as error:
        return _not_installed(problem, name, options, str(error), start)
    reason = solver.capabilities.unable(problem)
    if reason is not None:
        return _not_run(
            problem,
            name,
            options,
            Outcome.SKIPPED,
            solver.capabilities.exact,
            reason,
            start,
        )
    return _Cell(problem, name, solver, options, on_progress, start).run()


class _Cell:
    """One run; gathers what the solver said until it ended."""

    def __init__(
        self,
        problem: Problem,
        name: str,
        solver: type[Solver],
        options: SolveOptions,
        on_progress: OnProgress | None,
        start: float,
    ) -> None:
        self.problem = problem
        self.name = name
        self.capabilities = solver.capabilities
        self.options = options
        self.on_progress = on_progress
        self.start = start
        self.hash = problem_hash(problem)
        self.best = Report()
        self.bound: int | None = None
        self.message = ""
        self.last: Answer | Failure | None = None
        self.out_of_time = False

    def run(self) -> SolveResult:
        worker = None
        try:
            try:
                worker = Worker(self._request(), self.options.num_workers)
            except OSError as error:
                text = f"cannot start a process: {error}"
                verdict = self._settle(Outcome.ERROR, None, text)
                return self._result(None, verdict)
            self._listen(worker)
            usage = worker.stop()
            return self._result(usage, self._conclude(usage))
        except KeyboardInterrupt:
            # Stop first: judging takes time and may be interrupted again.
            stopped = worker.stop() if worker else None
            verdict = self._settle(
                Outcome.INTERRUPTED, Limit.INTERRUPT, "interrupted by the user"
            )
            raise CellInterrupted(self._result(stopped, verdict)) from None
        finally:
            if worker is not None:
                worker.stop()

    def _request(self) -> bytes:
        limit_s = self.options.time_limit_s
        return (
            msgspec.json.encode(
                Request(
                    target=solver_target(self.name),
                    problem=self.problem,
                    deadline=None if limit_s is None else self.start + limit_s,
                    num_workers=self.options.num_workers,
                    seed=self.options.seed,
                    warm_start=self.options.warm_start,
                    extra=dict(self.options.extra),
                )
            )
            + b"\n"
        )

    def _listen(self, worker: Worker) -> None:
        """Take messages until the answer, the end, or the hard limit."""
        end = math.inf
        if self.options.time_limit_s is not None:
            limit_s = self.options.time_limit_s
            end = self.start + limit_s + grace_s(limit_s)
        while self.last is None and not worker.ended:
            remaining_s = end - time.monotonic()
            if remaining_s <= 0:
                self.out_of_time = True
                return
            for line in worker.poll(min(TICK_S, remaining_s)):
                self._take(line)
            if self.last is None and self.on_progress is not None:
                self.on_progress(self._running())
        if self.last is not None:
            worker.wait(_LEAVE_S)

    def _take(self, line: bytes) -> None:
        if self.last is not None:
            return
        message: Message
        try:
            message = msgspec.json.decode(line, type=Message)
        except msgspec.MsgspecError as error:
            message = Failure(
                kind="error", text=f"its answer is malformed: {error}"
            )
        if not isinstance(message, Report):
            self.last = message
            return
        if message.plan is not None and self._improves(message):
            self.best = message
        bound = message.lower_bound_quanta
        if bound is not None and (self.bound is None or bound > self.bound):
            self.bound = bound
        self.message = message.message or self.message

    def _improves(self, report: Report) -> bool:
        old, new = self.best.claimed_quanta, report.claimed_quanta
        return old is None or new is None or new <= old

    def _running(self) -> Running:
        return Running(
            solver=self.name,
            elapsed_s=time.monotonic() - self.start,
            best_quanta=self.best.claimed_quanta,
            lower_bound_quanta=self.bound,
            has_plan=self.best.plan is not None,
            message=self.message,
            quantum_ps=self.problem.quantum_ps,
        )

    def _conclude(self, usage: Usage) -> Verdict:
        """Return what follows from the last message, or from its absence."""
        last = self.last
        if isinstance(last, Answer):
            return self._judge(
                SolverOutput(
                    status=last.status,
                    plan=last.plan,
                    claimed_quanta=last.claimed_quanta,
                    lower_bound_quanta=last.lower_bound_quanta,
                    limit=last.limit,
                    detail=last.detail,
                    own_objective_ns=last.own_objective_ns,
                    extra=last.extra,
                )
            )
        if isinstance(last, Failure):
            return self._fail(last, usage)
        if self.out_of_time:
            elapsed_s = time.monotonic() - self.start
            return self._settle(
                Outcome.SOLVED,
                Limit.TIME,
                f"did not stop at its limit; killed after {elapsed_s:.1f} s",
            )
        return self._settle(
            Outcome.ERROR,
            None,
            _describe_exit(usage),
            {"log": usage.log} if usage.log else {},
        )

    def _fail(self, failure: Failure, usage: Usage) -> Verdict:
        match failure.kind:
            case "bad-input":
                raise {
                    "problem": InvalidProblemError,
                    "option": InvalidOptionError,
                }.get(failure.bad_input or "", NestError)(
                    f"solver {self.name!r}: {failure.text}"
                )
            case "unsupported" | "not-installed":
                ran = failure.kind == "unsupported"
                return Verdict(
                    outcome=Outcome.SKIPPED if ran else Outcome.NOT_INSTALLED,
                    status=None,
                    detail=failure.text or "it gives no reason",
                )
            case "memory":
                return self._settle(
                    Outcome.SOLVED, Limit.MEMORY, "ran out of memory"
                )
        extra = {"traceback": failure.traceback, "log": usage.log}
        return self._settle(
            Outcome.ERROR,
            None,
            failure.text,
            {key: text for key, text in extra.items() if text},
        )

    def _settle(
        self,
        outcome: Outcome,
        limit: Limit | None,
        detail: str,
        extra: dict[str, Any] | None = None,
    ) -> Verdict:
        """Return what can be said without an answer: what was reported."""
        plan = self.best.plan
        verdict = self._judge(
            SolverOutput(
                status=Status.FEASIBLE if plan else Status.NO_SOLUTION,
                plan=plan,
                claimed_quanta=self.best.claimed_quanta,
                lower_bound_quanta=self.bound,
                limit=limit,
                detail=detail,
                extra=extra or {},
            )
        )
        if verdict.outcome is Outcome.SOLVED:
            return replace(verdict, outcome=outcome)
        # A wrong report is worth more attention than how the run ended,
        # unless it ended in an error of its own.
        return replace(
            verdict,
            outcome=outcome if outcome is Outcome.ERROR else verdict.outcome,
            detail=f"{detail}; {verdict.detail}",
        )

    def _judge(self, claim: SolverOutput) -> Verdict:
        others = (self.best.plan, self.options.warm_start)
        verdict = judge(
            self.problem,
            claim,
            capabilities=self.capabilities,
            others=[plan for plan in others if plan is not None],
        )
        if self.options.repair and verdict.status is Status.OVER_MEMORY:
            return repair(self.problem, verdict, self.capabilities.remedies)
        return verdict

    def _result(self, usage: Usage | None, verdict: Verdict) -> SolveResult:
        plan = verdict.plan
        if plan is not None:
            plan = msgspec.structs.replace(
                plan, problem_hash=self.hash, solver=self.name
            )
        peak = self.last.peak_rss_bytes if self.last else None
        if peak is None and usage is not None:
            peak = usage.peak_rss_bytes
        claimed = self.best.claimed_quanta
        if isinstance(self.last, Answer):
            claimed = self.last.claimed_quanta
        return SolveResult(
            solver=self.name,
            exact=self.capabilities.exact,
            precision=self.capabilities.precision,
            outcome=verdict.outcome,
            status=verdict.status,
            problem_hash=self.hash,
            quantum_ps=self.problem.quantum_ps,
            limit=verdict.limit,
            plan=plan,
            score=verdict.score,
            claimed_quanta=claimed,
            lower_bound_quanta=verdict.lower_bound_quanta,
            cpu_s=usage.cpu_s if usage else None,
            peak_rss_bytes=peak,
            version=solver_version(self.name),
            options=self.options,
            own_objective_ns=verdict.own_objective_ns,
            over_memory_bytes=verdict.over_memory_bytes,
            detail=verdict.detail,
            extra=verdict.extra,
            wall_s=time.monotonic() - self.start,
        )


def _check_options(
    name: str, solver: type[Solver], options: SolveOptions
) -> None:
    limit_s = options.time_limit_s
    if limit_s is not None and not 0 < limit_s < math.inf:
        raise InvalidOptionError(
            f"time_limit_s: expected a finite number > 0, got {limit_s}; "
            f"leave it out for no limit"
        )
    if not 1 <= options.num_workers <= num_cpus():
        raise InvalidOptionError(
            f"num_workers: expected 1 to {num_cpus()} (the CPUs at hand), "
            f"got {options.num_workers}; correct the value"
        )
    if not 0 <= options.seed < 2**31:
        raise InvalidOptionError(
            f"seed: expected 0 to 2**31 - 1, got {options.seed}; "
            f"correct the value"
        )
    known = solver.capabilities.options
    for key in options.extra:
        if key not in known:
            names = ", ".join(sorted(known)) or "none"
            raise InvalidOptionError(
                f"option {name}.{key}: expected one of the options of solver "
                f"{name!r} ({names}), got {key!r}; correct or remove it"
            )


def _check_warm_start(problem: Problem, plan: Plan) -> None:
    from nest.cost.score import score

    try:
        violations = score(problem, plan).violations
    except InvalidPlanError as error:
        raise InvalidPlanError(f"warm start: {error}") from error
    if violations:
        raise InvalidPlanError(
            f"warm start: expected a feasible plan, got one that is not "
            f"({violations[0]}); start from another plan"
        )


def _not_installed(
    problem: Problem,
    name: str,
    options: SolveOptions,
    reason: str,
    start: float,
) -> SolveResult:
    try:
        exact = solver_class(name).capabilities.exact
    except SolverNotInstalledError:
        exact = False
    reason = reason.removeprefix(f"solver {name!r}: ")
    outcome = Outcome.NOT_INSTALLED
    return _not_run(problem, name, options, outcome, exact, reason, start)


def _not_run(
    problem: Problem,
    name: str,
    options: SolveOptions,
    outcome: Outcome,
    exact: bool,
    reason: str,
    start: float,
) -> SolveResult:
    return SolveResult(
        solver=name,
        exact=exact,
        outcome=outcome,
        status=None,
        problem_hash=problem_hash(problem),
        quantum_ps=problem.quantum_ps,
        options=options,
        detail=reason,
        wall_s=time.monotonic() - start,
    )


def _describe_exit(usage: Usage) -> str:
    if usage.exit_code >= 0:
        text = f"the process ended with code {usage.exit_code}, no answer"
    else:
        number = -usage.exit_code
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        text = f"the process was killed by {name}"
        if number == signal.SIGKILL:
            text += " (out of memory?)"
    lines = [line.strip() for line in usage.log.splitlines()]
    fatal = [line for line in lines if line.startswith("Fatal")]
    said = (fatal or lines[-1:] or [""])[0]
    return f"{text}: {said}" if said else text
