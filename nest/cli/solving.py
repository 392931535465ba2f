"""``nest compare`` and ``nest solve``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from nest.cli.benching import (
    ALL,
    JOBS,
    SOLVERS,
    compare_several,
    split_solvers,
)
from nest.cli.declare import option
from nest.cli.engines import EngineOptions, model_lines
from nest.cli.inputs import (
    Restricted,
    check_output,
    parse_extra,
    read_solver,
    write_text,
)
from nest.cli.options import (
    DEFAULT_SOLVER,
    MODEL,
    RESTRICTIONS,
    Options,
    takes,
)
from nest.cli.pages import Paging, Traces, paged
from nest.cli.progress import ProgressLine
from nest.cli.saying import say
from nest.errors import (
    InvalidOptionError,
    NestError,
    UnknownSolverError,
)
from nest.models.named import load_model

if TYPE_CHECKING:
    from nest.analysis.feasible import Remedies
    from nest.analysis.robust import Robust
    from nest.analysis.target_loss import TargetLoss
    from nest.frameworks.settings import Settings
    from nest.solvers.base import SolveOptions
    from nest.solvers.result import SolveResult

_SHARED = (
    *(*MODEL, *RESTRICTIONS),
    *("time_limit", "gap", "workers", "seed", "warm_start", "repair"),
    *("extra", "granularity", "json_path"),
)
_LOSS = option(
    "--target-loss",
    "Also solve without --target, and say how much longer its best plan "
    "takes.",
)
_LAUNCH = option(
    "--launch",
    "Show the plan as who launches it needs it: figures, and the arguments "
    "of the framework of --target, as 'nest export' writes them.",
)
_LAUNCH_DIR = option(
    "--launch-dir DIR",
    "Also write the files of 'nest export' to a new or empty directory.",
)
_ROBUST = option(
    "--robust",
    "Show the plan with the best guaranteed step time, the upper end of the "
    "90 % interval, instead of the fastest one: a few searches.",
)
_MODEL_FILE = option(
    "--write-model FILE",
    "Also write the integer model that has the plan: .lp or .mps of solver "
    "milp, .pbtxt of cpsat.",
    None,
    "model_path",
)
_MODELS = option(
    "--write-models DIR",
    "Also write all models that a proof of the plan needs, with index.json, "
    "to a new or empty directory.",
    None,
    "models_folder",
)
_LOG = option(
    "--engine-log FILE",
    "Add what the solver's engine prints to a file; '-' is standard error.",
    None,
    "log_path",
)
_LIMIT = "Wall-clock seconds per solver, everything included."


@click.command("compare")
@SOLVERS
@_LOSS
@option(
    "--csv FILE",
    "Also write a row per cell; '-' is standard output.",
    None,
    "csv_path",
)
@paged
@JOBS
@option(
    "--resume DIR",
    "Keep finished cells in a directory, with a report, and take from there "
    "what is finished.",
    None,
    "kept",
)
@takes("problem_texts", *_SHARED, time_limit=_LIMIT)
def compare_command(
    options: Options,
    solvers_text: str,
    target_loss: bool,
    csv_path: str | None,
    page: Paging,
    jobs: int,
    kept: str | None,
) -> int:
    """Run solvers on problems and show them side by side.

    Every plan is checked and scored by the shared cost model. The problem is
    PROBLEM, or --model on --cluster; without both a built-in one is used.
    Several are a benchmark, see 'nest bench'. With --model or all solvers,
    every solver gets 60 s unless --time-limit says otherwise.
    """
    solvers = split_solvers(solvers_text)
    options = options.limited(slow=solvers_text == ALL)
    texts = options.problem_texts
    if not texts and not options.given_job:
        from nest.models import builtin

        texts = (builtin.DEFAULT,)
    asked = {"--resume": kept is not None, "--jobs": jobs > 1}
    benchmark = next((name for name, given in asked.items() if given), None)
    if texts and (len(texts) > 1 or benchmark):
        if target_loss:
            raise InvalidOptionError(
                f"--target-loss: expected one PROBLEM without "
                f"{', '.join(asked)}, got "
                f"{benchmark or f'{len(texts)} of them'}; leave it out"
            )
        if page.known:
            raise InvalidOptionError(
                f"{page.known}: expected one PROBLEM without "
                f"{', '.join(asked)}, whose page shows it, got "
                f"{benchmark or f'{len(texts)} of them'}; leave it out"
            )
        return compare_several(
            options,
            texts,
            solvers,
            jobs=jobs,
            kept=kept,
            csv_path=csv_path,
            html_path=page.path,
        )
    if benchmark is not None:
        raise InvalidOptionError(
            f"{benchmark}: expected PROBLEM, got --model; write the problem "
            f"with 'nest problems --model' and name its file"
        )
    options = replace(options, problem_text=texts[0] if texts else None)
    options.check_files(writes={"--csv": csv_path, "--html": page.path})
    session = _run(
        *(options, solvers, _show_table, target_loss),
        page=page,
        csv_path=csv_path,
    )
    return int(any(result.outcome.failed for result in session.results))


@click.command("solve")
@option(
    "--solver NAME|FILE",
    "See 'nest solvers'; or a file that describes a command "
    "(docs/your-planner.md).",
    read_solver,
    default=DEFAULT_SOLVER,
)
@_LOSS
@_LAUNCH
@_LAUNCH_DIR
@_ROBUST
@_MODEL_FILE
@_MODELS
@_LOG
@paged
@takes("problem_text", "output", *_SHARED, time_limit=_LIMIT)
def solve_command(  # noqa: PLR0913
    options: Options,
    solver: str,
    target_loss: bool,
    launch: bool,
    launch_dir: str | None,
    robust: bool,
    model_path: str | None,
    models_folder: str | None,
    log_path: str | None,
    page: Paging,
) -> int:
    """Run one solver on one problem and show its plan.

    The problem is PROBLEM, or --model on --cluster.

    Exits with 1 if the solver failed, the plan does not fit, or -o or
    --launch asks for a plan and there is none; the file of -o is removed
    then.
    """
    options.check_problem_choice()
    if robust and target_loss:
        raise InvalidOptionError(
            "--robust: expected either it or --target-loss, which compares "
            "the fastest plans, got both; remove one"
        )
    launched = Launching(launch_dir) if launch or launch_dir else None
    engine = EngineOptions(model_path, models_folder, log_path)
    show = _show_answer
    run = _run(
        *(options, [solver], show, target_loss, launched, robust, engine),
        page=page,
    )
    (result,) = run.results
    # Nobody can run a plan that does not fit the memory, or cannot be said.
    unfit = result.over_memory_bytes is not None or run.unsaid is not None
    missing = result.plan is None and (
        options.output is not None or launched is not None
    )
    return int(result.outcome.failed or unfit or missing)


@dataclass(frozen=True)
class Launching:
    """What ``--launch`` asks for: the folder for its files, if any."""

    folder: str | None


@dataclass(frozen=True)
class _Session:
    """What is asked for: the problem, and the solvers with their options."""

    given: Options
    restricted: Restricted
    cells: dict[str, SolveOptions]
    launching: Launching | None = None
    settings: Settings | None = None
    loss: TargetLoss | None = None
    files: Mapping[str, str] | None = None
    unsaid: str | None = None
    robust: Robust | None = None
    remedies: Remedies | None = None
    models: Sequence[dict[str, Any]] | None = None
    results: Sequence[SolveResult] = ()

    @property
    def found(self) -> list[str]:
        """What was found beside the results, for people."""
        lines = [] if self.loss is None else [str(self.loss)]
        return lines + ([] if self.remedies is None else self.remedies.lines)

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        from nest.analysis.compare import to_document

        restricted = self.restricted
        document = to_document(restricted.problem, self.cells, self.results)
        if self.loss is not None:
            document["target_loss"] = self.loss.to_json()
        if self.robust is not None:
            document["robust"] = self.robust.to_json()
        if self.remedies is not None:
            document["infeasible"] = self.remedies.to_json()
        if self.files is not None:
            document["launch"] = {"files": dict(self.files)}
        if self.models is not None:
            document["models"] = [*self.models]
        return document | restricted.document()


def _checked(
    given: Options,
    solvers: list[str],
    launching: Launching | None,
    engine: EngineOptions,
    page: Paging,
) -> _Session:
    """Check everything that can be checked before a solver runs."""
    from nest.solvers.registry import get_solver, is_plugin, solver_names

    given.check_problem_choice()
    for name in solvers:
        if name not in solver_names():
            raise UnknownSolverError(name, solver_names())
    for name in solvers:
        # A broken entry point costs its cell, if there are others.
        if not is_plugin(name) or len(solvers) == 1:
            get_solver(name, given.time_limit)
    extra = parse_extra(given.extra, solvers)
    given.check_files(writes={"--html": page.path, **engine.writes_to})
    if engine != EngineOptions():
        engine.check(solvers[0], extra.get(solvers[0], {}))
    if launching is not None:
        check_output(launching.folder, "--launch-dir", folder=True)
    restricted = given.restricted()
    start = given.find_warm_start(restricted.problem)
    cells = {
        name: replace(
            given.solve_options(name, start), extra=extra.get(name, {})
        )
        for name in solvers
    }
    settings = _settings(given, restricted) if launching else None
    return _Session(given, restricted, cells, launching, settings)


def _settings(given: Options, restricted: Restricted) -> Settings:
    """Return what an export needs, or refuse what it cannot do without."""
    from nest.frameworks.hosts import node_size
    from nest.frameworks.layers import placement_of
    from nest.frameworks.models import model_of
    from nest.frameworks.settings import Settings

    problem = restricted.problem
    if restricted.target is None:
        raise InvalidOptionError(
            "--launch: expected --target too, got none; add the framework "
            "that runs it, such as --target megatron"
        )
    placement = placement_of(problem.graph)
    if given.model is not None:
        settings = Settings(load_model(given.model))
    else:
        try:
            settings = Settings(model_of(problem, placement))
        except InvalidOptionError:
            raise InvalidOptionError(
                f"--launch: expected a problem that names its model, got "
                f"{problem.name}; write the plan with -o, and pass 'nest "
                f"export' its --model"
            ) from None
    try:
        node_size(problem.cluster)
    except InvalidOptionError:
        raise InvalidOptionError(
            f"--launch: expected a network with nodes, got that of "
            f"{problem.name}; write the plan with -o, and pass 'nest "
            f"export' its --gpus-per-node"
        ) from None
    return settings


def _run(  # noqa: PLR0913, PLR0915
    given: Options,
    solvers: list[str],
    show: Callable[[_Session], None],
    target_loss: bool,
    launching: Launching | None = None,
    robust: bool = False,
    engine: EngineOptions | None = None,
    page: Paging | None = None,
    csv_path: str | None = None,
) -> _Session:
    """Run all solvers; finished cells go to the JSON file at once.

    What is finished is shown even if the run is interrupted. With
    ``target_loss`` the first solver runs without the target, too; with
    ``robust`` for longer times, and its answer is then the plan with the best
    guaranteed step time; with ``launching`` its plan is written for the
    target; with ``engine`` models and logs are written, too; with ``page`` and
    ``csv_path`` what is finished is a page and a table as well.
    """
    from nest.analysis.compare import compare
    from nest.analysis.robust import robust_of
    from nest.analysis.target_loss import loss_of
    from nest.solvers.base import Status
    from nest.solvers.run import run_solver
    from nest.uncertainty.intervals import why_none

    engine, page = engine or EngineOptions(), page or Paging()
    session = _checked(given, solvers, launching, engine, page)
    restricted = session.restricted
    if target_loss and restricted.untargeted is None:
        raise InvalidOptionError(
            "--target-loss: expected --target too, got none; add a target "
            "with rules, such as --target megatron"
        )

    why = why_none(restricted.problem) if robust else ""
    if why:
        raise InvalidOptionError(
            f"--robust: expected a problem made from a model, whose errors "
            f"are known, got {why}; leave --robust out"
        )

    def write() -> None:
        if given.json_path != "-":
            given.write_json(session.document())

    def on_cell(found: Sequence[SolveResult]) -> None:
        nonlocal session
        progress.clear()
        session = replace(session, results=tuple(found))
        write()

    traces = None if page.path is None else Traces()
    try:
        with (
            ProgressLine(
                restricted.problem.time_unit,
                limit_s=given.time_limit,
                cells=None if target_loss or robust else len(session.cells),
            ) as progress,
            engine.logging(session.cells) as cells,
        ):
            compare(
                restricted.problem,
                cells,
                on_cell=on_cell,
                on_progress=None if engine.log_path == "-" else progress,
                on_report=None if traces is None else traces.take,
            )
            if any(
                result.status is Status.INFEASIBLE
                for result in session.results
            ):
                session = _remedied(session, progress)
                write()
            if target_loss and restricted.untargeted is not None:
                (name, options), *_ = cells.items()
                free = run_solver(
                    restricted.untargeted,
                    name,
                    replace(options, warm_start=None),
                    progress,
                )
                progress.clear()
                loss = loss_of(session.results, free)
                session = replace(session, loss=loss)
                write()
            if robust:
                ((name, options),) = cells.items()
                (fastest,) = session.results
                cold = replace(options, warm_start=None)
                found = robust_of(
                    restricted.problem,
                    fastest,
                    lambda other: run_solver(other, name, cold, progress),
                )
                progress.clear()
                session = replace(
                    session, robust=found, results=(found.answer,)
                )
                write()
            if launching is not None:
                session = _launched(session)
                write()
            if engine.writes:
                (result,) = session.results
                models = engine.write(
                    restricted.problem, result.solver, result.plan
                )
                session = replace(session, models=models)
                write()
    finally:
        if session.results:
            show(session)
            if given.json_path == "-":
                given.write_json(session.document())
            if csv_path is not None:
                write_text(csv_path, _csv(session))
            if page.path is not None:
                page.write_answers(
                    "solve" if show is _show_answer else "compare",
                    given,
                    restricted,
                    session.cells,
                    session.results,
                    notes=session.found,
                    traces=traces,
                )
    return session


def _remedied(session: _Session, progress: ProgressLine) -> _Session:
    """Return the session with what would make its problem feasible."""
    from nest.analysis.feasible import remedies_within

    progress.uncounted()
    found = remedies_within(
        session.restricted.problem, session.given.time_limit, progress
    )
    progress.clear()
    return replace(session, remedies=found)


def _launched(session: _Session) -> _Session:
    """Return the session with what starts its plan, written if asked for."""
    from nest.frameworks.export import export, write_folder

    (result,), target = session.results, session.restricted.target
    if result.plan is None or result.over_memory_bytes is not None:
        return session
    assert target is not None
    assert session.launching is not None
    try:
        files = export(
            session.restricted.problem,
            result.plan,
            target.name,
            session.settings,
        )
    except NestError as error:
        return replace(session, unsaid=str(error))
    if session.launching.folder is not None:
        write_folder(session.launching.folder, files)
    return replace(session, files=files)


def _show_table(session: _Session) -> None:
    """Print the comparison."""
    from nest.present.table import compare_footer, compare_table, show
    from nest.solvers.registry import solver_class

    problem = session.restricted.problem
    notes = session.given.notes(session.restricted)
    results = session.results
    cold = [
        result.solver
        for result in results
        if session.given.warm_start is not None
        and result.outcome.ran
        and not solver_class(result.solver).capabilities.warm_start
    ]
    if cold:
        notes.append(f"warm start not used by {', '.join(cold)}")
    notes += session.found
    ended = {result.solver for result in results}
    waiting = [name for name in session.cells if name not in ended]
    if waiting:
        notes.append(f"stopped before they began: {', '.join(waiting)}")
    own_hash = results[0].problem_hash
    show(
        session.given.people,
        compare_table(problem, results),
        compare_footer(problem, own_hash, session.cells, notes),
    )


def _show_answer(session: _Session) -> None:
    """Print the result of one solver, and write its plan."""
    from nest.present.launch import launch_screen, launch_texts
    from nest.present.robust import robust_rows
    from nest.present.table import key_lines, show, solve_block

    restricted, problem = session.restricted, session.restricted.problem
    unsaid = session.given.unsaid(restricted)
    for result in session.results:
        safe = robust_rows(problem, session.robust) if session.robust else []
        if session.files is not None:
            _, framework, *costs = restricted.notes
            rows = [("target", framework), *(("costs", x) for x in costs)]
            if session.loss is not None:
                rows.append(("price", str(session.loss)))
            rows += safe
            rows += [("defaults", unsaid)] * bool(unsaid)
            texts = launch_texts(session.files)
            parts = launch_screen(
                problem, result, texts, restricted.text, rows
            )
        else:
            parts = solve_block(problem, result)
            notes = [*session.given.notes(restricted), *session.found]
            if session.models is not None:
                notes += model_lines(session.models)
            parts[1:1] = [*notes, *([key_lines(safe)] if safe else [])]
        if session.unsaid is not None:
            parts.append(f"\nno launch: {session.unsaid}")
        show(session.given.people, *parts)
        plan = result.plan
        session.given.write_plan(plan and restricted.adopt(plan))
        folder = session.launching and session.launching.folder
        if folder is not None and session.files is None:
            say(f"nest: {folder} not written: no plan to launch", err=True)


def _csv(session: _Session) -> str:
    """Return a row per solver."""
    from nest.present.pages.benchmark import result_csv

    name = session.restricted.problem.name
    return result_csv(name, session.results)
