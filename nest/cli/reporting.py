"""``nest report``: a page about a problem and plans for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from nest.cli.declare import option
from nest.cli.inputs import Restricted, fill_in, warn_if_foreign
from nest.cli.options import MODEL, RESTRICTIONS, Options, takes
from nest.cli.pages import (
    PRICE,
    TOKENS,
    Paging,
    Traces,
    check_page,
    context_of,
)
from nest.cli.progress import ProgressLine
from nest.errors import InvalidOptionError, InvalidPlanError

if TYPE_CHECKING:
    from nest.present.pages.document import Answer, Document

#: Where a page goes if nobody says.
_DEFAULT = "report.html"


@click.command("report")
@click.argument("texts", metavar="[PROBLEM] [PLAN]…", nargs=-1)
@option("--html FILE", "The same as -o.", None, "html_path")
@TOKENS
@PRICE
@takes(
    *("plan", "output", "solver", "time_limit", "gap", "workers", "seed"),
    *("granularity", "json_path", *RESTRICTIONS, *MODEL),
    output=f"Where to write the page.  [default: {_DEFAULT}]",
)
def report_command(
    options: Options,
    texts: tuple[str, ...],
    html_path: str | None,
    tokens: Fraction | None,
    price_usd: float | None,
) -> int:
    """Write a page about a problem and plans for it, for a browser.

    The fastest of the plans is shown in full: its figures, where its stages
    run, their memory, where the time goes, the pipeline pass by pass, the
    network. PLAN is a file, or settings as of --plan. Without PLAN, --solver
    finds one. With --model and --cluster there is no PROBLEM.

    Exits with 1 if a plan does not fit, or the solver failed.
    """
    check_page(options.output, "-o")
    check_page(html_path)
    if None not in (html_path, options.output) and html_path != options.output:
        raise InvalidOptionError(
            f"--html: expected the page that -o names, {options.output}, got "
            f"{html_path}; pass one of the two"
        )
    named = "-o" if options.output or html_path is None else "--html"
    path = options.output or html_path or _DEFAULT
    page = Paging(path, tokens, price_usd)
    plans = texts
    if not options.given_job:
        options = replace(options, problem_text=texts[0] if texts else None)
        plans = texts[1:]
    if options.plan is not None:
        plans = (*plans, options.plan)
    options = replace(
        options.limited(), output=None, plan=None, plans=tuple(plans)
    )
    options.check_problem_choice()
    options.check_files(
        {f"PLAN {number}": text for number, text in enumerate(plans, 1)},
        {named: page.path},
    )
    restricted = options.restricted()
    if plans:
        return _given(options, restricted, plans, page)
    return _solved(options, restricted, page)


def _given(
    options: Options,
    restricted: Restricted,
    plans: Sequence[str],
    page: Paging,
) -> int:
    """Write a page of plans from files."""
    from nest.present.pages.document import page_document, plan_rows

    problem = restricted.problem
    answers = [_answer(restricted, path) for path in plans]
    fitting = [a for a in answers if a.score.feasible]
    best = min(fitting or answers, key=lambda a: a.score.step_quanta)
    document = page_document(
        "report",
        problem,
        best,
        solvers=plan_rows(answers, problem) if len(answers) > 1 else (),
        context=context_of(options, restricted, {}),
        wish=page.wish,
    )
    page.write(document)
    _end(options, page, document)
    return int(len(fitting) < len(answers))


def _end(options: Options, page: Paging, document: Document) -> None:
    """Say where the page is, and write what it is made of."""
    from nest.present.table import show

    show(options.people, f"report: {page.path}")
    options.write_json(document)


def _answer(restricted: Restricted, path: str) -> Answer:
    from nest.analysis.plan_by_settings import are_settings
    from nest.cost.score import score
    from nest.ir.io import read_plan
    from nest.present.pages.document import Answer

    if are_settings(path):
        plan = fill_in(path, restricted.problem, "PLAN")
        return Answer(plan, score(restricted.problem, plan), path)
    plan = read_plan(path)
    warn_if_foreign(restricted.whole, plan)
    try:
        return Answer(plan, score(restricted.problem, plan), path)
    except InvalidPlanError as error:
        raise InvalidPlanError(f"{path}: {error}") from None


def _solved(options: Options, restricted: Restricted, page: Paging) -> int:
    """Write a page of what a solver finds."""
    from nest.analysis.feasible import remedies_within
    from nest.solvers.base import Status
    from nest.solvers.run import CellInterrupted, run_solver

    name, traces = options.solver, Traces()
    limits = options.solve_options(name)
    stopped: KeyboardInterrupt | None = None
    found: list[str] = []
    limit_s = options.time_limit
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
                found = remedies_within(
                    restricted.problem, limit_s, progress
                ).lines
            except KeyboardInterrupt as interrupt:
                stopped = interrupt
    document = page.write_answers(
        *("report", options, restricted, {name: limits}, [result]),
        notes=found,
        traces=traces,
    )
    _end(options, page, document)
    if stopped is not None:
        raise stopped
    return int(result.outcome.failed or result.over_memory_bytes is not None)
