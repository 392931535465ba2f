"""The runner: one solver, one problem, one process, one clock.

A quick search of dp runs in the process that asks, if nobody compares it.
Whatever a solver does (lie, raise, hang, die), :func:`run_solver` returns a
consistent result in bounded time and leaves no process behind.
"""

from __future__ import annotations

import functools
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from nest import errors
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir.io import problem_hash
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers import registry
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Limit,
    SolveOptions,
    Solver,
    SolverOutput,
    Status,
    check_limits,
)
from nest.solvers.cell import WAITING, Cell, OnProgress, OnReport, run_cells
from nest.solvers.judge import judge
from nest.solvers.messages import Failure, OutputMessage
from nest.solvers.process import Usage
from nest.solvers.repair import repair
from nest.solvers.result import Outcome, SolveResult, Verdict


class CellInterrupted(KeyboardInterrupt):
    """Ctrl-C while a solver ran; ``result`` is what it had so far."""

    def __init__(self, result: SolveResult) -> None:
        super().__init__(f"solver {result.solver!r} was interrupted")
        self.result = result


def check_request(problem: Problem, name: str, options: SolveOptions) -> type[Solver]:
    """Refuse what no run could make sense of; return the solver's class.

    Raises ``UnknownSolverError`` if there is no such solver;
    ``SolverNotInstalledError`` if it cannot run here; ``InvalidOptionError`` if an
    option is unknown or out of range; ``InvalidPlanError`` if the warm start is no
    feasible plan of this problem, or uses what the solver does not search;
    ``InvalidProblemError`` or ``UnknownNameError`` if the cost model cannot price the
    problem.
    """
    registry.solver_target(name)
    check_limits("num_workers", options.num_workers, options.time_limit_s)
    limit_s = options.time_limit_s
    solver = registry.get_solver(name, math.inf if limit_s is None else limit_s)
    _check_options(name, solver, options)
    CostModel(problem)
    if options.warm_start is not None:
        _check_warm_start(problem, options.warm_start)
        beyond = solver.capabilities.beyond(options.warm_start)
        if beyond is not None:
            raise errors.InvalidPlanError(
                f"warm start: expected a plan without {beyond}, which solver "
                f"{name!r} does not search, got one with it; start from "
                f"another plan or use solver dp or brute"
            )
    return solver


def run_solver(
    problem: Problem,
    name: str,
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
    on_report: OnReport | None = None,
    *,
    folder: str | None = None,
    on_end: Callable[[Cell], None] | None = None,
    alone: bool = False,
) -> SolveResult:
    """Let one solver, by its keyword, work on a problem and check what it says.

    A solver that fails is a result too.

    Parameters
    ----------
    options
        Limits and seeds. The time limit holds from this call to its return; a solver
        that ignores it is killed :data:`~nest.solvers.cell.GRACE_S` later.
    on_progress, on_report
        Called at every report of the solver and now and then; and with every
        report and its time, the trace of a run.
    folder
        Where its process starts; by default where this one is.
    on_end
        Called once the process has ended, with all it said and used.
    alone
        Whether nobody compares what the run takes: then a quick search needs
        no process of its own.

    Raises
    ------
    NestError
        If the request makes no sense, see :func:`check_request`, or the
        solver finds that the problem or an option is invalid.
    CellInterrupted
        On Ctrl-C.
    """
    clock = Deadline(options.time_limit_s if options else None)
    target = registry.solver_target(name)
    options = options or SolveOptions(num_workers=registry.default_workers(name))
    cell = Cell(
        *(name, target, problem, options, clock, on_progress, on_report), folder=folder
    )
    try:
        capabilities = check_request(problem, name, options).capabilities
    except errors.SolverNotInstalledError as error:
        detail = str(error).removeprefix(f"solver {name!r}: ")
        verdict = Verdict(Outcome.NOT_INSTALLED, None, detail=detail)
        return _Run(cell, _known_capabilities(name)).result(verdict)
    except KeyboardInterrupt:
        raise _interrupted(_Run(cell, _known_capabilities(name))) from None
    run = _Run(cell, capabilities)
    reason = capabilities.unable(problem)
    if reason is not None:
        return run.result(Verdict(Outcome.SKIPPED, None, detail=reason))
    try:
        is_built_in = registry.is_built_in(name)
        if alone and is_built_in and capabilities.is_quick(problem):
            cell.answer_here()
        else:
            cell.waiting = WAITING.get() if is_built_in else None
            run_cells(iter([cell]), 1, on_end or (lambda ended: None))
        return run.result(run.conclude())
    except OSError as error:
        text = f"cannot start a process: {error}"
        return run.result(run.settle(Outcome.ERROR, None, text))
    except KeyboardInterrupt:
        raise _interrupted(run) from None


def not_run(problem: Problem, name: str, options: SolveOptions) -> SolveResult:
    """Return the result of a run for which no time is left."""
    return SolveResult(
        outcome=Outcome.SOLVED,
        status=Status.NO_SOLUTION,
        limit=Limit.TIME,
        detail="the time limit passed before this search began",
        solver=name,
        exact=_known_capabilities(name).exact,
        problem_hash=problem_hash(problem),
        quantum_ps=problem.quantum_ps,
        options=options,
    )


def _interrupted(run: _Run) -> CellInterrupted:
    """Return what is known of a run that the user stopped."""
    verdict = run.settle(
        Outcome.INTERRUPTED, Limit.INTERRUPT, "interrupted by the user"
    )
    return CellInterrupted(run.result(verdict))


def _known_capabilities(name: str) -> Capabilities:
    """Return what a solver that cannot run here promises, if it is known."""
    try:
        return registry.solver_class(name).capabilities
    except errors.SolverNotInstalledError:
        return Capabilities(exact=False, method="")


@dataclass(frozen=True)
class _Run:
    """What follows from what a cell said."""

    cell: Cell
    capabilities: Capabilities

    def conclude(self) -> Verdict:
        """Return what follows from the last message, or from its absence."""
        cell = self.cell
        assert cell.usage is not None
        if isinstance(cell.last, OutputMessage):
            return self._judge(cell.last.output)
        if isinstance(cell.last, Failure):
            return self._fail(cell.last, cell.usage)
        if cell.within_gap:
            return self.settle(Outcome.SOLVED, None, "")
        if cell.out_of_time:
            text = (
                f"did not stop at its limit; killed after {cell.clock.elapsed_s:.1f} s"
                if cell.started
                else "the limit passed before the search began"
            )
            return self.settle(Outcome.SOLVED, Limit.TIME, text)
        text = _describe_exit(cell.usage)
        return self.settle(
            Outcome.ERROR,
            None,
            text,
            killed=text if cell.usage.exit_code < 0 else "",
            log=cell.usage.log,
        )

    def _fail(self, failure: Failure, usage: Usage) -> Verdict:
        match failure.error:
            case "KilledError" | "SolverError" | "InvalidPlanError" | "":
                killed = failure.error == "KilledError"
                return self.settle(
                    Outcome.ERROR,
                    None,
                    failure.text,
                    killed=failure.text if killed else "",
                    traceback=failure.traceback,
                    log=usage.log,
                )
            case "MemoryError":
                return self.settle(Outcome.SOLVED, Limit.MEMORY, "ran out of memory")
            case "InvalidProblemError" | "InvalidOptionError" as name:
                error = getattr(errors, name)
                raise error(f"solver {self.cell.name!r}: {failure.text}")
            case "UnknownNameError" | "UnknownSolverError":
                raise errors.NestError(f"solver {self.cell.name!r}: {failure.text}")
        ran = failure.error != "SolverNotInstalledError"
        return Verdict(
            outcome=Outcome.SKIPPED if ran else Outcome.NOT_INSTALLED,
            status=None,
            detail=failure.text or "it gives no reason",
        )

    def settle(
        self, outcome: Outcome, limit: Limit | None, detail: str, **extra: str
    ) -> Verdict:
        """Return what can be said without an answer: what was reported."""
        best, bound = self.cell.best, self.cell.bound
        status = Status.FEASIBLE if best.plan else Status.NO_SOLUTION
        if self.cell.within_gap and bound == best.claimed_quanta:
            status = Status.OPTIMAL
        verdict = self._judge(
            SolverOutput(
                status=status,
                plan=best.plan,
                claimed_quanta=best.claimed_quanta,
                lower_bound_quanta=bound,
                limit=limit,
                detail=detail,
                extra={key: text for key, text in extra.items() if text},
            )
        )
        if verdict.outcome is Outcome.SOLVED:
            return replace(verdict, outcome=outcome)
        # A wrong report is worth more attention than how the run ended,
        # unless it ended in an error of its own.
        return replace(
            verdict,
            outcome=outcome if outcome is Outcome.ERROR else verdict.outcome,
            detail="; ".join(filter(None, (detail, verdict.detail))),
        )

    def _judge(self, claim: SolverOutput) -> Verdict:
        cell = self.cell
        others = (cell.best.plan, cell.options.warm_start)
        plans = [plan for plan in others if plan is not None]
        from nest.solvers.challenge import SHARE, reported

        share_s = SHARE * cell.clock.elapsed_s
        remaining_s = cell.clock.remaining_s
        if remaining_s is not None:
            share_s = min(share_s, remaining_s)
        asked = functools.partial(
            judge,
            *(cell.problem, claim),
            capabilities=self.capabilities,
            challenge=Deadline(share_s),
        )
        verdict = asked(others=plans)
        if "contradiction" in verdict.extra:
            text = reported(cell.problem, verdict.detail)
            return replace(verdict, detail=text)
        if (
            cell.options.repair
            and verdict.status is Status.OVER_MEMORY
            and verdict.outcome is Outcome.SOLVED
        ):
            remedies = self.capabilities.remedies
            repaired = repair(cell.problem, verdict, remedies)
            assert repaired.plan is not None
            # A plan that fits may refute what was said of the others.
            again = asked(others=[*plans, repaired.plan])
            return repaired if again.outcome is Outcome.SOLVED else again
        if (
            verdict.status is Status.FEASIBLE
            and verdict.score is not None
            and verdict.limit is None
            and cell.options.reached(
                verdict.score.step_quanta, verdict.lower_bound_quanta
            )
        ):
            text = f"stopped within a gap of {100 * cell.options.gap:g} %"
            detail = "; ".join(filter(None, (text, verdict.detail)))
            return replace(verdict, detail=detail)
        return verdict

    def result(self, verdict: Verdict) -> SolveResult:
        cell, usage = self.cell, self.cell.usage
        peak = cell.last.peak_rss_bytes if cell.last else None
        if peak is None and usage is not None:
            peak = usage.peak_rss_bytes
        claimed = cell.best.claimed_quanta
        if isinstance(cell.last, OutputMessage):
            claimed = cell.last.output.claimed_quanta
        own_hash = problem_hash(cell.problem)
        if verdict.plan is not None:
            plan = msgspec.structs.replace(
                verdict.plan, problem_hash=own_hash, solver=cell.name
            )
            verdict = replace(verdict, plan=plan)
        return SolveResult(
            solver=cell.name,
            exact=self.capabilities.exact,
            precision=self.capabilities.precision,
            problem_hash=own_hash,
            quantum_ps=cell.problem.quantum_ps,
            claimed_quanta=claimed,
            cpu_s=usage.cpu_s if usage else None,
            peak_rss_bytes=peak,
            options=cell.options,
            wall_s=cell.clock.elapsed_s,
            **vars(verdict),
        )


def _check_options(name: str, solver: type[Solver], options: SolveOptions) -> None:
    if not 0 <= options.gap < 1:
        raise errors.InvalidOptionError(
            f"gap: expected a fraction from 0 to below 1, got {options.gap}; "
            f"0.02 is 2 %"
        )
    if not 0 <= options.seed < 2**31:
        raise errors.InvalidOptionError(
            f"seed: expected 0 to 2**31 - 1, got {options.seed}; correct the value"
        )
    known = solver.capabilities.options
    for key in options.extra:
        if not solver.capabilities.takes(key):
            names = ", ".join(sorted(known)) or "none"
            raise errors.InvalidOptionError(
                f"option {name}.{key}: expected one of the options of solver "
                f"{name!r} ({names}), got {key!r}; correct or remove it"
            )


def _check_warm_start(problem: Problem, plan: Plan) -> None:
    try:
        violations = score(problem, plan).violations
    except errors.InvalidPlanError as error:
        raise errors.InvalidPlanError(f"warm start: {error}") from error
    if violations:
        raise errors.InvalidPlanError(
            f"warm start: expected a feasible plan, got one that is not "
            f"({violations[0]}); start from another plan"
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
