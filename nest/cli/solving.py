"""``nest compare`` and ``nest solve``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from nest.cli.declare import option
from nest.cli.inputs import Restricted, parse_extra
from nest.cli.options import MODEL, RESTRICTIONS, Options, takes
from nest.cli.progress import ProgressLine
from nest.errors import InvalidOptionError, UnknownSolverError

if TYPE_CHECKING:
    from nest.solvers.base import SolveOptions
    from nest.solvers.result import SolveResult
    from nest.targets import TargetLoss

DEFAULT_SOLVERS = "dp,milp,cpsat"

#: Stands for every solver that can run here.
ALL = "all"

_SHARED = (
    *("problem_text", *MODEL, *RESTRICTIONS),
    *("time_limit", "gap", "workers", "seed", "warm_start", "repair"),
    *("extra", "granularity", "json_path"),
)
_LOSS = option(
    "--target-loss",
    "Also solve without --target, and say how much longer its best plan "
    "takes.",
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
@_LOSS
@takes(*_SHARED, time_limit=_LIMIT)
def compare_command(
    options: Options, solvers_text: str, target_loss: bool
) -> int:
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
    results = _run(options, solvers, _show_table, target_loss)
    return int(any(result.outcome.failed for result in results))


@click.command("solve")
@option("--solver NAME", "See 'nest solvers'.  [required]")
@_LOSS
@takes("output", *_SHARED, time_limit=_LIMIT)
def solve_command(
    options: Options, solver: str | None, target_loss: bool
) -> int:
    """Run one solver on one problem and show its plan.

    The problem is PROBLEM, or --model on --cluster.
    """
    options.check_problem_choice()
    if solver is None:
        raise InvalidOptionError(
            "nest solve: expected --solver, got none; see 'nest solve --help'"
        )
    (result,) = _run(options, [solver], _show_answer, target_loss)
    # Nobody can run a plan that does not fit the memory.
    unfit = result.over_memory_bytes is not None
    return int(result.outcome.failed or unfit)


@dataclass(frozen=True)
class _Session:
    """What is asked for: the problem, and the solvers with their options."""

    given: Options
    restricted: Restricted
    cells: dict[str, SolveOptions]
    loss: TargetLoss | None = None


def _checked(given: Options, solvers: list[str]) -> _Session:
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
    return _Session(given, restricted, cells)


def _run(
    given: Options,
    solvers: list[str],
    show: Callable[[_Session, Sequence[SolveResult]], None],
    target_loss: bool,
) -> Sequence[SolveResult]:
    """Run all solvers; finished cells go to the JSON file at once.

    What is finished is shown even if the run is interrupted. With
    ``target_loss`` the first solver runs without the target, too.
    """
    from nest.compare import compare, to_document
    from nest.solvers.run import run_solver
    from nest.targets import loss_of

    session = _checked(given, solvers)
    restricted, cells = session.restricted, session.cells
    if target_loss and restricted.untargeted is None:
        raise InvalidOptionError(
            "--target-loss: expected --target too, got none; add a target "
            "with rules, such as --target megatron"
        )
    results: list[SolveResult] = []

    def write() -> None:
        document = to_document(restricted.problem, cells, results)
        if session.loss is not None:
            document["target_loss"] = session.loss.to_json()
        given.write_json(document | restricted.document())

    def on_cell(found: Sequence[SolveResult]) -> None:
        progress.clear()
        results[:] = found
        if given.json_path != "-":
            write()

    try:
        with ProgressLine(restricted.problem.time_unit) as progress:
            compare(
                restricted.problem,
                cells,
                on_cell=on_cell,
                on_progress=progress,
            )
            if target_loss and restricted.untargeted is not None:
                (name, options), *_ = cells.items()
                free = run_solver(
                    restricted.untargeted,
                    name,
                    replace(options, warm_start=None),
                    progress,
                )
                progress.clear()
                session = replace(session, loss=loss_of(results, free))
                if given.json_path != "-":
                    write()
    finally:
        if results:
            show(session, results)
            if given.json_path == "-":
                write()
    return results


def _show_table(session: _Session, results: Sequence[SolveResult]) -> None:
    """Print the comparison."""
    from nest.report.table import compare_footer, compare_table, show
    from nest.solvers.registry import solver_class

    problem, notes = session.restricted.problem, session.restricted.notes
    cold = [
        result.solver
        for result in results
        if session.given.warm_start is not None
        and not solver_class(result.solver).capabilities.warm_start
    ]
    if cold:
        notes.append(f"warm start not used by {', '.join(cold)}")
    if session.loss is not None:
        notes.append(str(session.loss))
    own_hash = results[0].problem_hash
    show(
        session.given.people,
        compare_table(problem, results),
        compare_footer(problem, own_hash, session.cells, notes),
    )


def _show_answer(session: _Session, results: Sequence[SolveResult]) -> None:
    """Print the result of one solver, and write its plan."""
    from nest.report.table import show, solve_block

    restricted = session.restricted
    for result in results:
        parts = solve_block(restricted.problem, result)
        loss = [] if session.loss is None else [str(session.loss)]
        parts[1:1] = [*restricted.notes, *loss]
        show(session.given.people, *parts)
        plan = result.plan
        session.given.write_plan(plan and restricted.adopt(plan))


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
