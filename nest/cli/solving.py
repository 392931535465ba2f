"""``nest compare`` and ``nest solve``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import click

from nest.cli.inputs import (
    Restricted,
    check_distinct_files,
    check_output,
    check_problem_choice,
    find_problem,
    load_plan,
    model_file,
    model_options,
    parse_extra,
    people,
    restriction_options,
    solve_options,
    with_granularity,
    write_json,
    write_record,
)
from nest.errors import InvalidOptionError, UnknownSolverError

if TYPE_CHECKING:
    from nest.ir.problem import Problem
    from nest.solvers.base import SolveOptions
    from nest.solvers.result import SolveResult

DEFAULT_SOLVERS = "dp,milp,cpsat"

#: Stands for every solver that can run here.
ALL = "all"

#: Seconds per solver for the problem of a model, and for all solvers: the
#: slower ones would run for days.
MODEL_TIME_LIMIT_S = 60.0


@click.command("compare")
@click.argument("problem_text", metavar="[PROBLEM]", required=False)
@click.option(
    "--solvers",
    "solvers_text",
    default=DEFAULT_SOLVERS,
    metavar="A,B,…",
    help=f"Solvers to compare, or {ALL!r}.  [default: {DEFAULT_SOLVERS}]",
)
@model_options
@restriction_options
@solve_options
def compare_command(
    problem_text: str | None,
    solvers_text: str,
    time_limit: float | None,
    workers: int,
    seed: int,
    warm_start: str | None,
    repair: bool,
    extra: tuple[str, ...],
    granularity: str | None,
    json_path: str | None,
    pin: tuple[str, ...],
    forbid: tuple[str, ...],
    **job: Any,
) -> int:
    """Run solvers on one problem and show them side by side.

    Every plan is checked and scored by the shared cost model. The problem is
    PROBLEM, or --model on --cluster; without both a built-in one is used.
    With --model or all solvers, every solver gets 60 s unless --time-limit
    says otherwise.
    """
    solvers = _split(solvers_text)
    if time_limit is None and (
        job["model"] is not None or solvers_text == ALL
    ):
        time_limit = MODEL_TIME_LIMIT_S
    if problem_text is None and set(job.values()) == {None}:
        from nest.models import builtin

        problem_text = builtin.DEFAULT
    check_problem_choice("nest compare", problem_text, job)
    session = _Session.start(
        problem_text,
        job,
        solvers,
        time_limit,
        workers,
        seed,
        warm_start,
        repair,
        extra,
        granularity,
        json_path,
        pin,
        forbid,
    )
    file = people(json_path)
    try:
        session.run()
    finally:
        # Finished cells are shown even if the run is interrupted.
        if session.results:
            session.show_table(file)
        session.write_to_stdout()
    return session.exit_code


@click.command("solve")
@click.argument("problem_text", metavar="[PROBLEM]", required=False)
@click.option(
    "--solver", metavar="NAME", help="See 'nest solvers'.  [required]"
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the plan to a file; '-' is standard output.",
)
@model_options
@restriction_options
@solve_options
def solve_command(
    problem_text: str | None,
    solver: str | None,
    output: str | None,
    time_limit: float | None,
    workers: int,
    seed: int,
    warm_start: str | None,
    repair: bool,
    extra: tuple[str, ...],
    granularity: str | None,
    json_path: str | None,
    pin: tuple[str, ...],
    forbid: tuple[str, ...],
    **job: Any,
) -> int:
    """Run one solver on one problem and show its plan.

    The problem is PROBLEM, or --model on --cluster.
    """
    check_problem_choice("nest solve", problem_text, job)
    if solver is None:
        raise InvalidOptionError(
            "nest solve: expected --solver, got none; see 'nest solve --help'"
        )
    check_distinct_files(
        **{
            "PROBLEM": problem_text,
            "--model": model_file(job),
            "--profile": job["profile"],
            "--json": json_path,
            "-o": output,
        }
    )
    check_output(output, "-o")
    session = _Session.start(
        problem_text,
        job,
        [solver],
        time_limit,
        workers,
        seed,
        warm_start,
        repair,
        extra,
        granularity,
        json_path,
        pin,
        forbid,
    )
    file = people(json_path, output)
    try:
        session.run()
    finally:
        for result in session.results:
            session.show_answer(file, result)
            if output is not None and result.plan is not None:
                write_record(output, session.restricted.adopt(result.plan))
            elif output is not None:
                click.echo(f"nest: {output} not written: no plan", err=True)
        session.write_to_stdout()
    return max(session.exit_code, session.has_no_room)


@dataclass
class _Session:
    """One comparison from the command line."""

    restricted: Restricted
    solvers: list[str]
    options: SolveOptions
    extra: dict[str, dict[str, str]]
    json_path: str | None
    results: Sequence[SolveResult] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        problem_text: str | None,
        job: Mapping[str, Any],
        solvers: list[str],
        time_limit: float | None,
        workers: int,
        seed: int,
        warm_start: str | None,
        repair: bool,
        extra: tuple[str, ...],
        granularity: str | None,
        json_path: str | None,
        pin: tuple[str, ...],
        forbid: tuple[str, ...],
    ) -> _Session:
        """Check everything that can be checked before a solver runs."""
        from nest.solvers.base import SolveOptions
        from nest.solvers.registry import get_solver, solver_names

        for name in solvers:
            if name not in solver_names():
                raise UnknownSolverError(name, solver_names())
        for name in solvers:
            get_solver(name)
        options_by_solver = parse_extra(extra, solvers)
        check_distinct_files(
            **{
                "PROBLEM": problem_text,
                "--model": model_file(job),
                "--profile": job["profile"],
                "--warm-start": warm_start,
                "--json": json_path,
            }
        )
        check_output(json_path, "--json")
        restricted = Restricted.of(
            with_granularity(find_problem(problem_text, job), granularity),
            pin,
            forbid,
        )
        options = SolveOptions(
            time_limit_s=time_limit,
            num_workers=workers,
            seed=seed,
            warm_start=load_plan(warm_start) if warm_start else None,
            repair=repair,
        )
        return cls(restricted, solvers, options, options_by_solver, json_path)

    @property
    def problem(self) -> Problem:
        """The problem that the solvers get."""
        return self.restricted.problem

    @property
    def exit_code(self) -> int:
        """1 if a solver broke its promises, else 0."""
        return int(any(result.outcome.failed for result in self.results))

    @property
    def has_no_room(self) -> int:
        """1 if a plan does not fit the memory, so nobody can run it."""
        from nest.solvers.base import Status

        return int(
            any(result.status is Status.OVER_MEMORY for result in self.results)
        )

    def run(self) -> None:
        """Run all solvers; finished cells go to the JSON file at once."""
        from nest.cli.progress import ProgressLine
        from nest.compare import compare

        progress = ProgressLine(self.problem.time_unit)

        def on_cell(results: Sequence[SolveResult]) -> None:
            progress.clear()
            self.results = results
            if self.json_path is not None and self.json_path != "-":
                self._write(self.json_path)

        try:
            compare(
                self.problem,
                self.solvers,
                self.options,
                solver_options=self.extra,
                on_cell=on_cell,
                on_progress=progress,
            )
        finally:
            progress.clear()

    def write_to_stdout(self) -> None:
        """Write the document, if it goes to standard output."""
        if self.json_path == "-" and self.results:
            self._write("-")

    def show_table(self, file: IO[str]) -> None:
        """Print the comparison."""
        from nest.report.table import compare_footer, compare_table, show

        notes = []
        if self.restricted.text:
            notes.append(f"only plans under {self.restricted.text}")
        cold = self._ignoring_warm_start()
        if cold:
            notes.append(f"warm start not used by {', '.join(cold)}")
        show(
            file,
            compare_table(self.problem, self.results),
            compare_footer(
                self.problem,
                self.results[0].problem_hash,
                self.options,
                notes,
            ),
        )

    def show_answer(self, file: IO[str], result: SolveResult) -> None:
        """Print one result."""
        from nest.report.table import show, solve_block

        parts = solve_block(self.problem, result)
        if self.restricted.text:
            parts.insert(1, f"only plans under {self.restricted.text}")
        show(file, *parts)

    def _ignoring_warm_start(self) -> list[str]:
        from nest.solvers.registry import solver_class

        if self.options.warm_start is None:
            return []
        return [
            result.solver
            for result in self.results
            if not solver_class(result.solver).capabilities.warm_start
        ]

    def _write(self, path: str) -> None:
        from nest.compare import to_document

        document = to_document(
            self.problem, self.options, self.solvers, self.results
        )
        write_json(path, document | self.restricted.document())


def _split(text: str) -> list[str]:
    """Return the keywords of ``--solvers``."""
    if text == ALL:
        from nest.solvers.registry import availability, solver_names

        return [name for name in solver_names() if not availability(name)]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidOptionError(
            f"--solvers: expected keywords separated by commas, got "
            f"{text!r}; see 'nest solvers'"
        )
    for name in names:
        if names.count(name) > 1:
            raise InvalidOptionError(
                f"--solvers: expected every solver once, got {name!r} "
                f"again; remove one"
            )
    return names
