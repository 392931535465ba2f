"""``nest compare`` and ``nest solve``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from nest.cli.declare import Argument, option
from nest.cli.engines import EngineOptions, model_lines
from nest.cli.options import TALK, Files, takes
from nest.cli.pages import Paging, Traces, answered_rows, commands_text, paged
from nest.cli.progress import ProgressLine
from nest.cli.saying import say
from nest.errors import InvalidOptionError, NestError
from nest.present.verbosity import VERBOSE
from nest.requests import solving
from nest.requests.values import integer
from nest.util.files import check_output
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.analysis.feasible import Remedies
    from nest.analysis.others import OtherOrder
    from nest.analysis.robust import Robust
    from nest.analysis.safe import Faster
    from nest.analysis.target_loss import TargetLoss
    from nest.frameworks.launch import Settings
    from nest.requests.restricted import Restricted
    from nest.solvers.result import SolveResult

_LAUNCH = option(
    "--launch",
    "Show the plan as who launches it needs it: figures, and the arguments "
    "of the framework of --target, as 'nest export' writes them.",
)
_LAUNCH_DIR = option(
    "--launch-dir DIR",
    "Also write the files of 'nest export' to a new or empty directory.",
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
    "folder",
)
_LOG = option(
    "--engine-log FILE",
    "Add what the solver's engine prints to a file; '-' is standard error.",
    None,
    "log_path",
)
_JOBS = option(
    "--jobs N",
    "Runs of solvers that work at the same time, each in a process of its own.",
    integer(1, num_cpus()),
    default=1,
)

_LIMIT = "Wall-clock seconds per solver, everything included."


@click.command("compare")
@paged
@_JOBS
@option(
    "--resume DIR",
    "Keep finished results in a directory, with a report, and take from "
    "there what is finished.",
    None,
    "folder",
)
@click.argument(
    "texts",
    cls=Argument,
    metavar="[PROBLEM]…",
    nargs=-1,
    text="Names or files of problems; otherwise a model.",
)
@takes(
    solving.CompareRequest,
    "json_path",
    "csv_path",
    without=("problem",),
    time_limit=_LIMIT,
    csv_path="Also write a row per solver and problem; '-' is standard output.",
)
def compare_command(
    request: solving.CompareRequest,
    files: Files,
    texts: tuple[str, ...],
    page: Paging,
    jobs: int,
    folder: str | None,
) -> int:
    """Run solvers on problems and show them side by side.

    Every plan is checked and scored by the shared cost model. The problem is
    PROBLEM, or --model on --cluster; without both a built-in one is used.
    Several are a benchmark, see 'nest bench'. With --model or all solvers,
    every solver gets 60 s unless --time-limit says otherwise.
    """
    solvers = solving.split_solvers(str(request.solvers))
    request = request.limited(slow=request.solvers == solving.ALL)
    if not texts and not request.given_job:
        from nest.models import builtin

        texts = (builtin.DEFAULT,)
    options = {"--resume": folder is not None, "--jobs": jobs > 1}
    benchmark = next((name for name, is_given in options.items() if is_given), None)
    if texts and (len(texts) > 1 or benchmark):
        got = benchmark or f"{len(texts)} of them"
        wrong = "--target-loss" if request.target_loss else page.run_option
        if wrong:
            shows = "" if request.target_loss else ", whose page shows it"
            raise InvalidOptionError(
                f"{wrong}: expected one PROBLEM without {', '.join(options)}"
                f"{shows}, got {got}; leave it out"
            )
        from nest.cli.benching import compare_several

        return compare_several(
            request,
            files,
            texts,
            solvers,
            jobs=jobs,
            folder=folder,
            html_path=page.path,
        )
    if benchmark is not None:
        raise InvalidOptionError(
            f"{benchmark}: expected PROBLEM, got --model; write the problem "
            f"with 'nest problems --model' and name its file"
        )
    if texts:
        request = replace(request, problem=texts[0])
    session = _prepared(request, files, solvers, page=page)
    _run(session, _show_table)
    return int(any(result.outcome.failed for result in session.results))


@click.command("solve")
@_LAUNCH
@_LAUNCH_DIR
@_MODEL_FILE
@_MODELS
@_LOG
@paged
@takes(solving.SolveRequest, "output", "json_path", time_limit=_LIMIT)
def solve_command(
    request: solving.SolveRequest,
    files: Files,
    launch: bool,
    launch_dir: str | None,
    page: Paging,
    **engine_files: str | None,
) -> int:
    """Run one solver on one problem and show its plan.

    The problem is PROBLEM, or --model on --cluster.

    Exits with 1 if the solver failed, the plan does not fit, or -o or --launch asks for
    a plan and there is none; the file of -o is removed then.
    """
    request = request.limited()
    request.check_problem_choice()
    launches = bool(launch or launch_dir)
    session = _prepared(
        request,
        files,
        [request.solver],
        page=page,
        launches=launches,
        launch_dir=launch_dir if launches else None,
        engine=EngineOptions(**engine_files),
    )
    _run(session, _show_answer)
    (result,) = session.results
    # Nobody can run a plan that does not fit the memory, or that no
    # framework can express.
    unfit = result.over_memory_bytes is not None or session.no_launch is not None
    missing = result.plan is None and (files.output is not None or session.launches)
    return int(result.outcome.failed or unfit or missing)


@dataclass
class _Session:
    """A request that is checked, and the answers as they come in.

    Of these ``faster`` may not fit, ``loss`` and ``robust`` answer ``--target-loss``
    and ``--robust``, and ``remedies`` are what would make an infeasible problem
    feasible. ``no_launch`` says why there are no files of ``--launch``.
    """

    request: solving.TargetLossRequest
    files: Files
    restricted: Restricted
    cells: solving.Cells
    page: Paging
    launches: bool = False
    launch_dir: str | None = None
    settings: Settings | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    results: Sequence[SolveResult] = ()
    faster: Faster | None = None
    loss: TargetLoss | None = None
    remedies: Remedies | None = None
    robust: Robust | None = None
    rows: list[tuple[str, str]] = field(default_factory=list)
    launch_files: Mapping[str, str] | None = None
    no_launch: str | None = None
    models: Sequence[dict[str, Any]] | None = None
    other_orders: Sequence[OtherOrder] | None = None

    @property
    def is_single(self) -> bool:
        """Whether it is one solver's answer, not a comparison."""
        return isinstance(self.request, solving.SolveRequest)

    @property
    def shows_others(self) -> bool:
        """Whether plans near the answer for a model are shown."""
        is_model = self.is_single and self.request.model is not None
        return is_model and not self.launches

    @property
    def is_robust(self) -> bool:
        """Whether the plan with the best guaranteed step time is asked for."""
        return isinstance(self.request, solving.SolveRequest) and self.request.robust

    @property
    def remarks(self) -> list[str]:
        """What is known in addition to the results, for people."""
        lines = [] if self.loss is None else [str(self.loss)]
        return lines + ([] if self.remedies is None else self.remedies.lines)

    def document(self) -> dict[str, Any]:
        from nest.analysis.compare import to_document

        restricted, results = self.restricted, self.results
        # The default headroom selects plans of the problem of the model.
        problem = (restricted.free or restricted).problem
        if restricted.free is not None:
            results = [solving.adopted_by(problem, result) for result in results]
        target_name = restricted.target_name or None
        document = to_document(problem, self.cells, results, target_name)
        more = {
            "faster": self.faster,
            "target_loss": self.loss,
            "robust": self.robust,
            "infeasible": self.remedies,
        }
        document |= {key: x.to_json() for key, x in more.items() if x}
        if self.launch_files is not None:
            document["launch"] = {"files": dict(self.launch_files)}
        if self.models is not None:
            document["models"] = [*self.models]
        if self.other_orders is not None:
            document["other_orders"] = [asdict(x) for x in self.other_orders]
        return document | restricted.document()

    def write(self) -> None:
        """Write to the file of ``--json`` what is known by now."""
        if self.files.json_path not in (None, "-"):
            self.files.write_json(self.document())


def _prepared(
    request: solving.TargetLossRequest,
    files: Files,
    solvers: list[str],
    *,
    launches: bool = False,
    launch_dir: str | None = None,
    engine: EngineOptions | None = None,
    **more: Any,
) -> _Session:
    """Check everything that can be checked before a solver runs."""
    engine = engine or EngineOptions()
    request.check_problem_choice()
    solving.check_solvers(solvers, request.time_limit)
    extra = solving.parse_extra(request.option, solvers)
    files.check(request, writes={"--html": more["page"].path, **engine.writes_to})
    if engine != EngineOptions():
        engine.check(solvers[0], extra.get(solvers[0], {}))
    check_output(launch_dir, "--launch-dir", folder=True)
    restricted = request.restricted()
    request.check_questions(restricted)
    cells = request.limits(solvers, restricted.problem, TALK)
    settings = None
    if launches:
        from nest.requests.launching import launch_settings

        option_name = "--launch-dir" if launch_dir else "--launch"
        settings = launch_settings(request, restricted, option_name)
    return _Session(
        request,
        files,
        restricted,
        cells,
        launches=launches,
        launch_dir=launch_dir,
        engine=engine,
        settings=settings,
        **more,
    )


def _run(session: _Session, show: Callable[[_Session], None]) -> None:
    """Run all solvers; what is finished goes to the JSON file at once.

    What is finished is shown even if the run is interrupted.
    """
    problem = session.restricted.problem
    traces = None if session.page.path is None else Traces()
    free = session.restricted.free
    request = session.request
    is_single = request.target_loss or session.is_robust or free is not None
    try:
        with (
            ProgressLine(
                problem.time_unit,
                limit_s=session.request.time_limit,
                cells=None if is_single else len(session.cells),
            ) as progress,
            session.engine.logging(session.cells) as cells,
        ):
            _answer(session, cells, progress, traces)
    finally:
        if session.results:
            show(session)
            _write_all(session, show, traces)


def _answer(
    session: _Session,
    cells: solving.Cells,
    progress: ProgressLine,
    traces: Traces | None,
) -> None:
    """Run the solvers, and after them what else is asked."""
    from nest.analysis.compare import compare
    from nest.solvers.base import Status

    def on_cell(results: Sequence[SolveResult]) -> None:
        progress.clear()
        session.results = tuple(replace(x, options=cells[x.solver]) for x in results)
        session.write()

    def run(restricted: Restricted, cells: solving.Cells) -> Sequence[SolveResult]:
        session.restricted = restricted
        compare(
            restricted.problem,
            cells,
            on_cell=on_cell,
            on_progress=None if session.engine.log_path == "-" else progress,
            on_report=None if traces is None else traces.take,
        )
        return session.results

    restricted, request = session.restricted, session.request
    if session.is_robust:  # which keeps more memory free than the default
        run(restricted.free or restricted, cells)
    elif session.is_single:
        ((name, options),) = cells.items()
        session.restricted, result, session.faster = solving.solve_restricted(
            restricted, name, options, run
        )
        session.results = (result,)
    else:
        answered, _ = solving.compare_restricted(restricted, cells, run)
        if answered.free is not None:
            _search_faster(session, cells, progress)
    session.write()
    steps = {
        _remedy: any(x.status is Status.INFEASIBLE for x in session.results),
        _lose: request.target_loss,
        _make_robust: session.is_robust,
        _launch: session.launches,
        _write_models: session.engine.writes,
        _look_at_orders: session.shows_others and request.schedule is None,
    }
    for step in (step for step, is_asked in steps.items() if is_asked):
        step(session, cells, progress)
        progress.clear()
        session.write()


def _search_faster(
    session: _Session, cells: solving.Cells, progress: ProgressLine
) -> None:
    """Search what the best solver gains without the default headroom."""
    from nest.analysis.compare import fastest
    from nest.analysis.safe import FREE_SHARE, faster_of
    from nest.solvers.run import run_solver

    free, best = session.restricted.free, fastest(session.results)
    assert free is not None
    assert best is not None
    options = replace(cells[best.solver], warm_start=None)
    if options.time_limit_s is not None:
        limit_s = FREE_SHARE * options.time_limit_s
        options = replace(options, time_limit_s=limit_s)
    other = run_solver(free.problem, best.solver, options, progress)
    progress.clear()
    session.faster = faster_of(best, other, free.problem)


def _remedy(session: _Session, _: solving.Cells, progress: ProgressLine) -> None:
    """Look for what would make the problem feasible."""
    from nest.analysis.feasible import remedies_within

    progress.uncounted()
    session.remedies = remedies_within(
        session.restricted.problem, session.request.time_limit, progress
    )


def _lose(session: _Session, cells: solving.Cells, progress: ProgressLine) -> None:
    """Solve without the target, too."""
    restricted, results = session.restricted, session.results
    session.loss = solving.find_loss(restricted, results, cells, progress)


def _make_robust(
    session: _Session, cells: solving.Cells, progress: ProgressLine
) -> None:
    """Look for the plan with the best guaranteed step time."""
    (fastest,) = session.results
    problem = session.restricted.problem
    session.robust = solving.find_robust(problem, fastest, cells, progress)
    session.results = (session.robust.answer,)


def _launch(session: _Session, *_: Any) -> None:
    """Export the plan, and write its files if a folder is given."""
    from nest.frameworks.export import export, write_folder

    (result,), target = session.results, session.restricted.target
    if result.plan is None or result.over_memory_bytes is not None:
        return
    assert target is not None
    try:
        files = export(
            session.restricted.problem, result.plan, target.name, session.settings
        )
    except NestError as error:
        session.no_launch = str(error)
        return
    if session.launch_dir is not None:
        write_folder(session.launch_dir, files)
    session.launch_files = files


def _write_models(session: _Session, *_: Any) -> None:
    (result,) = session.results
    session.models = session.engine.write(
        session.restricted.problem, result.solver, result.plan
    )


def _look_at_orders(session: _Session, *_: Any) -> None:
    """Look at what other schedules gain, as none was asked for."""
    from nest.analysis.others import other_orders
    from nest.constraints.targets import ANY, target

    (result,), restricted = session.results, session.restricted
    if result.plan is not None and result.step_quanta is not None:
        framework = restricted.target or target(ANY)
        session.other_orders = other_orders(
            restricted.problem, result.plan, result.wall_s, framework
        )


def _write_all(
    session: _Session, show: Callable[[_Session], None], traces: Traces | None
) -> None:
    """Write what is asked for in addition to the screen."""
    if session.files.json_path == "-":
        session.files.write_json(session.document())
    if session.files.csv_path is not None:
        from nest.present.comparison import result_csv

        problem = session.restricted.problem
        session.files.write_csv(lambda: result_csv(problem, session.results))
    if session.page.path is not None:
        session.page.write_answers(
            "solve" if show is _show_answer else "compare",
            session.request,
            session.restricted,
            session.cells,
            session.results,
            session.rows or _rows(session),
            traces=traces,
        )


def _show_table(session: _Session) -> None:
    from nest.analysis.compare import fastest
    from nest.present.comparison import compare_screen, repeat_texts
    from nest.present.screen import continued, launch_text, run_text, unbroken
    from nest.solvers.registry import solver_class

    problem = session.restricted.problem
    notes = session.request.notes(session.restricted)
    results = session.results
    cold = [
        result.solver
        for result in results
        if session.request.warm_start is not None
        and result.outcome.ran
        and not solver_class(result.solver).capabilities.warm_start
    ]
    ended = {result.solver for result in results}
    waiting = [name for name in session.cells if name not in ended]
    more = [
        ("warm start not used by ", ", ".join(cold)),
        ("faster: ", str(session.faster or "")),
        *(("", remark) for remark in session.remarks),
        ("stopped before they began: ", ", ".join(waiting)),
    ]
    best, commands = fastest(results), ""
    if best is not None and best.plan is not None and best.score is not None:
        free = session.restricted.free or session.restricted
        plan = structs.replace(best.plan, problem_hash=None)
        launch = launch_text(free.problem, plan, session.restricted.target)
        wish = session.page.wish(problem, session.restricted.target_name)
        run = run_text(problem, best.plan, best.score, wish)
        more += [("launch: ", launch), ("run: ", run)]
        commands = commands_text(session.request, session.restricted, plan)
    notes += [f"{label}{text}" for label, text in more if text]
    if VERBOSE.get():
        notes += repeat_texts(problem, results[0].problem_hash, session.cells)
    screen = compare_screen(problem, results, notes)
    texts = unbroken([continued(commands)])
    session.files.show(*screen, *texts)


def _rows(session: _Session) -> list[tuple[str, str]]:
    """Return the labeled rows of the best answer, on screens and pages."""
    from nest.analysis.compare import fastest

    restricted, problem = session.restricted, session.restricted.problem
    result = fastest(session.results) or session.results[0]
    wish = session.page.wish(problem, restricted.target_name)
    rows = answered_rows(session.request, restricted, result, wish)
    remedies = session.remedies.lines if session.remedies else []
    guaranteed: list[str] = []
    if session.robust is not None:
        from nest.present.robust import robust_texts

        guaranteed = robust_texts(problem, session.robust)
    rows += [
        ("faster", str(session.faster or "")),
        ("limit", str(session.loss or "")),
        *(("fits", text) for text in remedies),
        *(("guaranteed", text) for text in guaranteed),
    ]
    if session.launches:
        rows = [row for row in rows if row[0] != "launch"]
    elif session.shows_others:
        plan, step_quanta = result.plan, result.step_quanta
        if plan is not None and step_quanta is not None:
            from nest.analysis.others import others_of
            from nest.present.screen import orders_text, others_text

            rows.append(("else", orders_text(session.other_orders or ())))
            others = others_of(problem, plan, result.wall_s)
            text = others_text(problem, step_quanta, others)
            rows.append(("else", text))
    return [(label, text) for label, text in rows if text]


def _show_answer(session: _Session) -> None:
    """Print the result of one solver, and write its plan."""
    from nest.present.screen import continued, launch_texts, screen, stage_parts

    restricted, problem = session.restricted, session.restricted.problem
    session.rows = _rows(session)
    for result in session.results:
        files, plan = session.launch_files, result.plan
        texts = [] if files is None else launch_texts(files)
        if not session.launches and result.step_quanta is not None:
            output = session.files.output
            commands = commands_text(session.request, restricted, plan, output)
            texts.append(continued(commands))
        parts = screen(problem, session.rows, texts)
        if session.models is not None:
            parts += ["", *model_lines(session.models)]
        if VERBOSE.get() and plan and result.score:
            parts += stage_parts(problem, plan, result.score)
        if session.no_launch is not None:
            parts.append(f"\nno launch: {session.no_launch}")
        session.files.show(*parts)
        session.files.write_plan(plan and restricted.adopt(plan))
        if session.launch_dir is not None and session.launch_files is None:
            say(f"nest: {session.launch_dir} not written: no plan to launch", err=True)
