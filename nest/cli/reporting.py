"""``nest report``: a page about a problem and plans for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from nest.cli import pages
from nest.cli.declare import Argument, option
from nest.cli.inputs import check_page
from nest.cli.options import TALK, Files, takes
from nest.cli.progress import ProgressLine
from nest.constraints.pins import are_settings
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.ir.io import read_plan
from nest.requests.plans import plan_of_text, warn_if_foreign
from nest.requests.restricted import Restricted
from nest.requests.solving import ReportRequest, solver_limits

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nest.analysis.page_facts import Answer, Document

#: Where a page goes if nobody says.
_DEFAULT = "report.html"


@click.command("report")
@click.argument(
    "texts",
    cls=Argument,
    metavar="[PROBLEM] [PLAN]…",
    nargs=-1,
    text="Name or file of a problem, and plans as of --plan.",
)
@option("--html FILE", "The same as -o.", None, "html_path")
@pages.TOKENS
@pages.PRICE
@option(
    "--plan FILE|SETTINGS", "A plan more: a file, or settings such as tp=8,pp=4,zero=1."
)
@takes(
    ReportRequest,
    "output",
    "json_path",
    without=("problem", "plans"),
    output=f"Where to write the page.  [default: {_DEFAULT}]",
)
def report_command(
    request: ReportRequest,
    files: Files,
    texts: tuple[str, ...],
    plan: str | None,
    html_path: str | None,
    tokens: Fraction | None,
    prices: str | None,
) -> int:
    """Write a page about a problem and plans for it, for a browser.

    The fastest of the plans is shown in full: its figures, where its stages
    run, their memory, where the time goes, the pipeline pass by pass, the
    network. PLAN is a file, or settings as of --plan. Without PLAN, --solver
    finds one. With --model and --cluster there is no PROBLEM.

    Exits with 1 if a plan does not fit, or the solver failed.
    """
    check_page(files.output, "-o")
    check_page(html_path)
    if None not in (html_path, files.output) and html_path != files.output:
        raise InvalidOptionError(
            f"--html: expected the page that -o names, {files.output}, got "
            f"{html_path}; pass one of the two"
        )
    named = "-o" if files.output or html_path is None else "--html"
    path = files.output or html_path or _DEFAULT
    page = pages.Paging(path, tokens, prices)
    plans = texts
    if not request.given_job:
        request = replace(request, problem=texts[0] if texts else None)
        plans = texts[1:]
    if plan is not None:
        plans = (*plans, plan)
    request = replace(request.limited(), plans=tuple(plans))
    files = replace(files, output=None)
    request.check_problem_choice()
    files.check(
        request,
        {f"PLAN {index}": text for index, text in enumerate(plans, 1)},
        {named: page.path},
    )
    restricted = request.restricted()
    if plans:
        return _of_plans(request, files, restricted, page)
    return _solved(request, files, restricted, page)


def _of_plans(
    request: ReportRequest, files: Files, restricted: Restricted, page: pages.Paging
) -> int:
    from nest.present.pages.answers import answer_document, plan_rows
    from nest.present.screen import given_rows, screen

    problem = restricted.problem
    answers = [_answer(restricted, path) for path in request.plans]
    fitting = [a for a in answers if a.score.feasible]
    best = min(fitting or answers, key=lambda a: a.score.step_quanta)
    wish = page.wish(problem, restricted.target_name)
    fitting_plan = best.plan if best.score.feasible else None
    rows = given_rows(problem, best, wish, restricted.text)
    rows += pages.restricted_rows(request, restricted, fitting_plan)
    launch = ""
    if fitting_plan is not None:
        rows, launch = pages.launched(
            request, restricted, fitting_plan, rows, best.name
        )
    document = answer_document(
        "report",
        problem,
        best,
        rows=rows,
        launch=launch,
        solvers=plan_rows(answers, problem) if len(answers) > 1 else (),
        context=pages.context_of(request, restricted, {}),
        wish=wish,
    )
    page.write(document)
    _end(files, page, document, screen(problem, rows))
    return int(len(fitting) < len(answers))


def _end(
    files: Files,
    page: pages.Paging,
    document: Document,
    parts: Sequence[RenderableType],
) -> None:
    """Show the answer, say where the page is, and write its content."""
    files.show(*parts, f"report: {page.path}")
    files.write_json(document)


def _answer(restricted: Restricted, path: str) -> Answer:
    from nest.analysis.page_facts import Answer
    from nest.cost.score import score

    if are_settings(path):
        plan = plan_of_text(path, restricted.problem, "PLAN", TALK)
        return Answer(plan, score(restricted.problem, plan), path)
    plan = read_plan(path)
    warn_if_foreign(restricted.whole, plan, TALK)
    try:
        return Answer(plan, score(restricted.problem, plan), path)
    except InvalidPlanError as error:
        raise InvalidPlanError(f"{path}: {error}") from None


def _solved(
    request: ReportRequest, files: Files, restricted: Restricted, page: pages.Paging
) -> int:
    from nest.analysis.feasible import remedies_within
    from nest.present.screen import screen
    from nest.solvers.base import Status
    from nest.solvers.run import CellInterrupted, run_solver

    name, traces = request.solver, pages.Traces()
    limits = solver_limits(request, name)
    stopped: KeyboardInterrupt | None = None
    remedies: list[str] = []
    limit_s = request.time_limit
    unit = restricted.problem.time_unit
    with ProgressLine(unit, limit_s=limit_s) as progress:
        try:
            result = run_solver(
                restricted.problem,
                name,
                limits,
                progress,
                lambda wall_s, report: traces.take(name, wall_s, report),
            )
        except CellInterrupted as interrupt:
            result, stopped = interrupt.result, interrupt
        if result.status is Status.INFEASIBLE:
            try:
                remedies = remedies_within(restricted.problem, limit_s, progress).lines
            except KeyboardInterrupt as interrupt:
                stopped = interrupt
    wish = page.wish(restricted.problem, restricted.target_name)
    rows = pages.answered_rows(request, restricted, result, wish)
    rows += [("fits", text) for text in remedies]
    document = page.write_answers(
        *("report", request, restricted, {name: limits}, [result], rows), traces=traces
    )
    _end(files, page, document, screen(restricted.problem, rows))
    if stopped is not None:
        raise stopped
    return int(result.outcome.failed or result.over_memory_bytes is not None)
