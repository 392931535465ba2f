"""Run a solver on the problems and ask every check."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nest.conform.checks import CHECKS
from nest.conform.problems import Reference, large, references
from nest.conform.records import Check, Report, State
from nest.conform.trials import Candidate, Trial
from nest.errors import NestError
from nest.solvers.base import Progress, SolveOptions
from nest.solvers.cell import Cell, OnProgress, about
from nest.solvers.registry import get_solver, solver_target, solver_version
from nest.solvers.run import check_request, run_solver

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
        trials = tuple(runner.run(reference) for reference in problems)
        limited = replace(
            options, time_limit_s=min(LARGE_LIMIT_S, time_limit_s)
        )
        candidate = Candidate(
            name=solver,
            capabilities=capabilities,
            options=options,
            trials=trials,
            large=runner.run(large(), limited),
            every=runner.trials,
            run=runner.run,
            left_behind=lambda: sorted(os.listdir(folder)),
        )
        checks = [Check(check.name, *check.ask(candidate)) for check in CHECKS]
    return Report(
        solver,
        version,
        time_limit_s,
        tuple(checks),
        tuple(trial.to_json() for trial in runner.trials),
    )


@dataclass
class _Runner:
    """Runs the solver and remembers every run."""

    solver: str
    options: SolveOptions
    folder: str
    on_progress: OnProgress | None
    trials: list[Trial] = field(default_factory=list)

    def run(
        self, reference: Reference, options: SolveOptions | None = None
    ) -> Trial:
        """Run it once and keep everything that it said."""
        options = options or self.options
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
        return trial
