"""``nest compare`` and ``nest solve``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING

import click

from nest.cli.declare import option
from nest.cli.inputs import Restricted, parse_extra
from nest.cli.options import MODEL, RESTRICTIONS, Options, takes
from nest.errors import InvalidOptionError, UnknownSolverError

if TYPE_CHECKING:
    from nest.ir.problem import Problem
    from nest.solvers.base import SolveOptions
    from nest.solvers.result import SolveResult

DEFAULT_SOLVERS = "dp,milp,cpsat"

#: Stands for every solver that can run here.
ALL = "all"

_SHARED = (
    *("problem_text", *MODEL, *RESTRICTIONS),
    *("time_limit", "gap", "workers", "seed", "warm_start", "repair"),
    *("extra", "granularity", "json_path"),
)
_LIMIT = "Wall-clock seconds per solver, everything included."


@click.command("compare")
@option(
    "--solvers A,B,…",
    f"Solvers to compare, or {ALL!r}.",
    None,
    "solvers_text",
    default=DEFAULT_SOLVERS,
)
@takes(*_SHARED, time_limit=_LIMIT)
def compare_command(options: Options, solvers_text: str) -> int:
    """Run solvers on one problem and show them side by side.

    Every plan is checked and scored by the shared cost model. The problem is
    PROBLEM, or --model on --cluster; without both a built-in one is used.
    With --model or all solvers, every solver gets 60 s unless --time-limit
    says otherwise.
    """
    solvers = _split(solvers_text)
    options = options.limited(slow=solvers_text == ALL)
    if options.problem_text is None and not options.given_job:
        from nest.models import builtin

        options = replace(options, problem_text=builtin.DEFAULT)
    session = _Session.start(options, solvers)
    try:
        session.run()
    finally:
        # Finished cells are shown even if the run is interrupted.
        if session.results:
            session.show_table(options.people)
        session.write_to_stdout()
    return session.exit_code


@click.command("solve")
@option("--solver NAME", "See 'nest solvers'.  [required]")
@takes("output", *_SHARED, time_limit=_LIMIT)
def solve_command(options: Options, solver: str | None) -> int:
    """Run one solver on one problem and show its plan.

    The problem is PROBLEM, or --model on --cluster.
    """
    options.check_problem_choice()
    if solver is None:
        raise InvalidOptionError(
            "nest solve: expected --solver, got none; see 'nest solve --help'"
        )
    session = _Session.start(options, [solver])
    try:
        session.run()
    finally:
        for result in session.results:
            session.show_answer(options.people, result)
            adopt = session.restricted.adopt
            options.write_plan(result.plan and adopt(result.plan))
        session.write_to_stdout()
    return max(session.exit_code, session.has_no_room)


@dataclass
class _Session:
    """One comparison from the command line."""

    given: Options
    restricted: Restricted
    cells: dict[str, SolveOptions]
    results: Sequence[SolveResult] = field(default_factory=list)

    @classmethod
    def start(cls, given: Options, solvers: list[str]) -> _Session:
        """Check everything that can be checked before a solver runs."""
        from nest.solvers.registry import get_solver, solver_names

        given.check_problem_choice()
        for name in solvers:
            if name not in solver_names():
                raise UnknownSolverError(name, solver_names())
        for name in solvers:
            get_solver(name)
        extra = parse_extra(given.extra, solvers)
        given.check_files()
        restricted = given.restricted()
        cells = {
            name: replace(given.solve_options(name), extra=extra.get(name, {}))
            for name in solvers
        }
        return cls(given, restricted, cells)

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

        def on_cell(results: Sequence[SolveResult]) -> None:
            progress.clear()
            self.results = results
            if self.given.json_path != "-":
                self._write()

        with ProgressLine(self.problem.time_unit) as progress:
            compare(
                self.problem,
                self.cells,
                on_cell=on_cell,
                on_progress=progress,
            )

    def write_to_stdout(self) -> None:
        """Write the document, if it goes to standard output."""
        if self.given.json_path == "-" and self.results:
            self._write()

    def show_table(self, file: IO[str]) -> None:
        """Print the comparison."""
        from nest.report.table import compare_footer, compare_table, show

        notes = self.restricted.notes
        cold = self._ignoring_warm_start()
        if cold:
            notes.append(f"warm start not used by {', '.join(cold)}")
        show(
            file,
            compare_table(self.problem, self.results),
            compare_footer(
                self.problem,
                self.results[0].problem_hash,
                self.cells,
                notes,
            ),
        )

    def show_answer(self, file: IO[str], result: SolveResult) -> None:
        """Print one result."""
        from nest.report.table import show, solve_block

        parts = solve_block(self.problem, result)
        parts[1:1] = self.restricted.notes
        show(file, *parts)

    def _ignoring_warm_start(self) -> list[str]:
        from nest.solvers.registry import solver_class

        if self.given.warm_start is None:
            return []
        return [
            result.solver
            for result in self.results
            if not solver_class(result.solver).capabilities.warm_start
        ]

    def _write(self) -> None:
        from nest.compare import to_document

        document = to_document(self.problem, self.cells, self.results)
        self.given.write_json(document | self.restricted.document())


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
