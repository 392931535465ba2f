"""Run a solver on the problems and ask every check."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from nest.conform.checks import CHECKS, Promise
from nest.conform.problems import Reference, large, references
from nest.conform.records import Check, Report, State
from nest.conform.trials import Candidate, Trial
from nest.errors import NestError
from nest.solvers.base import Progress, SolveOptions
from nest.solvers.cell import Cell, OnProgress, about
from nest.solvers.registry import get_solver, solver_target, solver_version
from nest.solvers.run import check_request, run_solver
from nest.util.interrupts import Interrupted

#: Seconds per run if nobody says otherwise, and on the large problem.
TIME_LIMIT_S = 10.0
LARGE_LIMIT_S = 3.0


def conform(
    solver: str,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    extra: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
    problems: Sequence[Reference] | None = None,
) -> Report:
    """Check the contract of a solver, see docs/your-planner.md.

    Every run goes through the runner of ``nest compare``: a process of its
    own, one clock, and a judge who believes nothing.

    Parameters
    ----------
    solver
        Its keyword; see :func:`~nest.solvers.registry.register_solver` and
        :func:`~nest.solvers.registry.register_planner`.
    time_limit_s
        Of every run.
    extra
        Options of the solver for all runs.
    on_progress
        Called while it runs.
    problems
        Problems with known answers; by default all of
        :func:`~nest.conform.problems.references`.

    Returns
    -------
    Report
        What became of every check.

    Raises
    ------
    UnknownSolverError
        If there is no such solver.
    InvalidOptionError
        If it has no such option.
    Interrupted
        If the user stops it: what was broken by then is failed, what was not
        checked to the end is open.
    """
    solver_target(solver)
    try:
        capabilities = get_solver(solver, time_limit_s).capabilities
        version = solver_version(solver)
    except NestError as error:
        why = str(error).removeprefix(f"solver {solver!r}: ")
        checks = [Check(CHECKS[0].name, State.FAILED, why)]
        checks += [
            Check(check.name, State.NOT_APPLICABLE, "it cannot be loaded")
            for check in CHECKS[1:]
        ]
        return Report(solver, None, time_limit_s, tuple(checks))
    options = SolveOptions(time_limit_s=time_limit_s, extra=dict(extra or {}))
    problems = problems or references()
    check_request(problems[0].problem, solver, options)
    with tempfile.TemporaryDirectory(prefix="nest-conform-") as folder:
        runner = _Runner(solver, options, folder, on_progress)
        candidate = Candidate(
            name=solver,
            capabilities=capabilities,
            options=options,
            trials=runner.run_all(problems),
            large=runner.run_large(),
            every=runner.trials,
            run=runner.run,
            left_behind=lambda: runner.files,
        )
        checks = [_keeps(promise, candidate, runner) for promise in CHECKS]
    report = Report(
        solver,
        version,
        time_limit_s,
        tuple(checks),
        tuple(trial.to_json() for trial in runner.trials),
    )
    if runner.stopped is not None:
        raise Interrupted(report) from runner.stopped
    return report


def _keeps(promise: Promise, candidate: Candidate, runner: _Runner) -> Check:
    """Return whether a promise is kept, as far as runs can tell."""
    try:
        result = Check(promise.name, *promise.check(candidate))
    except KeyboardInterrupt as stop:
        runner.stopped = runner.stopped or stop
        return Check(promise.name, State.OPEN, "interrupted before its runs")
    # What is broken is so whatever comes; the first check needs no runs.
    early = candidate.large is None and promise is not CHECKS[0]
    if early and result.state is not State.FAILED:
        reason = f"interrupted after {len(runner.trials)} runs"
        return Check(promise.name, State.OPEN, reason)
    return result


@dataclass
class _Runner:
    """Runs the solver and remembers every run."""

    solver: str
    options: SolveOptions
    folder: str
    on_progress: OnProgress | None
    trials: list[Trial] = field(default_factory=list)
    #: Files that finished runs did not remove.
    files: list[str] = field(default_factory=list)
    #: What the user stopped it with: nothing runs from then on.
    stopped: KeyboardInterrupt | None = None

    def run_all(self, problems: Sequence[Reference]) -> tuple[Trial, ...]:
        """Run it on problems until the user stops it."""
        with suppress(KeyboardInterrupt):
            for reference in problems:
                self.run(reference)
        return tuple(self.trials)

    def run_large(self) -> Trial | None:
        """Run it shortly on the large problem; None if the user stops it."""
        limit_s = min(LARGE_LIMIT_S, self.options.time_limit_s or LARGE_LIMIT_S)
        limited = replace(self.options, time_limit_s=limit_s)
        with suppress(KeyboardInterrupt):
            return self.run(large(), limited)
        return None

    def run(self, reference: Reference, options: SolveOptions | None = None) -> Trial:
        """Run it once and keep everything that it said."""
        if self.stopped is not None:
            raise self.stopped
        try:
            return self._run(reference, options or self.options)
        except KeyboardInterrupt as stop:
            self.stopped = stop
            raise

    def _run(self, reference: Reference, options: SolveOptions) -> Trial:
        reports: list[Progress] = []
        ended: list[Cell] = []
        result, error = None, ""
        try:
            result = run_solver(
                reference.problem,
                self.solver,
                options,
                about(reference.name, self.on_progress),
                lambda _, report: reports.append(report),
                folder=self.folder,
                on_end=ended.append,
            )
        except NestError as refused:
            error = str(refused)
        log, late, num_detached = "", False, 0
        for cell in ended:
            late = cell.out_of_time
            log = cell.usage.log if cell.usage else ""
            num_detached = cell.num_detached
        trial = Trial(
            *(reference, options, result, error, tuple(reports)),
            *(log, late, num_detached),
        )
        self.trials.append(trial)
        self.files = sorted(os.listdir(self.folder))
        return trial
