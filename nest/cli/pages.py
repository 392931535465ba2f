"""``--html``: what commands hand to a page, and where it goes."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs
from msgspec.structs import replace

from nest.cli.declare import Command, option
from nest.cli.inputs import check_page, write_text
from nest.errors import NestError
from nest.requests.prices import PRICE_HELP, PRICE_USAGE, mean_price, read_prices
from nest.requests.problems import JOB_FIELDS, MODEL_FIELDS
from nest.requests.restricted import Restricted, RestrictedRequest
from nest.requests.settings import option_name
from nest.requests.values import token_count

if TYPE_CHECKING:
    from nest.analysis.page_facts import Context, Document, Wish
    from nest.benchmarks.execute import Recorder
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.present.screen import Rows
    from nest.solvers.base import Progress, SolveOptions
    from nest.solvers.result import SolveResult

HTML = option(
    "--html FILE", "Also write a page with charts, for a browser.", None, "html_path"
)


TOKENS = option(
    "--tokens N",
    "Tokens of the training run, such as 15e12, to show the days that it takes.",
    token_count,
)
PRICE = option(PRICE_USAGE, PRICE_HELP, read_prices, "prices")

#: Options that narrow down the plans of a problem.
_RESTRICTING = ("--pin", "--forbid", "--granularity", "--headroom")

#: What options and jobs call settings that pins call otherwise.
_SETTING = {"b": "micro_batches", "v": "virtual_stages", "r": "replicas"}


@dataclass(frozen=True)
class Paging:
    """The page that ``--html`` asks for, if it does.

    It has the tokens of the training run, and prices of a device and hour, if known.
    """

    path: str | None = None
    tokens: Fraction | None = None
    prices: str | None = None

    @property
    def run_option(self) -> str:
        """The first option that says something of the run, if any."""
        if self.tokens is not None:
            return "--tokens"
        return "--price" * (self.prices is not None)

    def wish(self, problem: Problem, target_name: str) -> Wish:
        """Return what is known of the training run, and of what is to run it."""
        from nest.analysis.page_facts import Wish

        tokens = None if self.tokens is None else float(self.tokens)
        return Wish(tokens, mean_price(problem, self.prices), target_name)

    def write(self, document: Document) -> None:
        """Write a page."""
        from nest.present.pages.html import to_html

        assert self.path is not None
        write_text(self.path, to_html(document))

    def write_answers(
        self,
        kind: str,
        request: RestrictedRequest,
        restricted: Restricted,
        cells: Mapping[str, SolveOptions],
        results: Sequence[SolveResult],
        rows: Rows,
        *,
        traces: Traces | None = None,
    ) -> Document:
        """Write what solvers answered, and which of them are missing.

        Returns the document of the page.
        """
        from nest.present.pages.answers import answer_document, best_answer, solver_rows

        problem = restricted.problem
        finished = {result.solver for result in results}
        missing = [name for name in cells if name not in finished]
        interrupted = [r.solver for r in results if str(r.outcome) == "interrupted"]
        unfinished = ""
        if missing or interrupted:
            names = ", ".join([*interrupted, *missing])
            unfinished = f"The run was stopped: {names} did not finish."
        solvers = solver_rows(
            results, problem, traces.of(problem, results) if traces else {}, missing
        )
        answer, launch = best_answer(results), ""
        if answer is not None and answer.score.feasible:
            rows, launch = launched(request, restricted, answer.plan, rows)
        document = answer_document(
            kind,
            problem,
            answer,
            rows=rows,
            launch=launch,
            solvers=solvers,
            context=context_of(request, restricted, cells),
            wish=self.wish(problem, restricted.target_name),
            unfinished=unfinished,
        )
        self.write(document)
        return document


def paged(command: Command) -> Command:
    """Add ``--html`` and what it takes; the command gets ``page``."""

    @functools.wraps(command)
    def run(
        html_path: str | None,
        tokens: Fraction | None,
        prices: str | None,
        **values: Any,
    ) -> Any:
        check_page(html_path)
        return command(page=Paging(html_path, tokens, prices), **values)

    for add in (PRICE, TOKENS, HTML):
        add(run)
    return run


@dataclass
class Traces:
    """Gathers what solvers report, for curves over time."""

    recorders: dict[str, Recorder] = field(default_factory=dict)

    def take(self, solver: str, wall_s: float, report: Progress) -> None:
        """Take a report of a solver."""
        from nest.benchmarks.execute import Recorder

        self.recorders.setdefault(solver, Recorder()).take(wall_s, report)

    def of(
        self, problem: Problem, results: Sequence[SolveResult]
    ) -> dict[str, list[tuple[float, int | None, int | None]]]:
        """Return what every solver had and when, plans scored."""
        return {
            result.solver: [
                (point.wall_s, point.step_quanta, point.bound_quanta)
                for point in self.recorders[result.solver].trace(problem, result)
            ]
            for result in results
            if result.solver in self.recorders
        }


def answered_rows(
    request: RestrictedRequest, restricted: Restricted, result: SolveResult, wish: Wish
) -> Rows:
    """Return the rows of an answer, and of what restricts its plans."""
    from nest.present.screen import answer_rows

    rows = answer_rows(restricted.problem, result, restricted.text, wish)
    plan = None if result.step_quanta is None else result.plan
    return [*rows, *restricted_rows(request, restricted, plan)]


def restricted_rows(
    request: RestrictedRequest, restricted: Restricted, plan: Plan | None
) -> Rows:
    """Return the target, what is assumed, and what runs a plan that fits."""
    from nest.present.screen import launch_text

    rows, notes = [], restricted.notes[bool(restricted.text) :]
    if restricted.target is not None:
        rows.append(("target", notes.pop(0)))
    rows += [("assumed", text) for text in notes]
    assumed = request.default_notes(restricted)
    rows += [("assumed", assumed)] * bool(assumed)
    if plan is not None:
        free = (restricted.free or restricted).problem
        plan = structs.replace(plan, problem_hash=None)
        text = launch_text(free, plan, restricted.target)
        rows += [("launch", text)] * bool(text)
    return rows


def launched(
    request: RestrictedRequest,
    restricted: Restricted,
    plan: Plan,
    rows: Rows,
    path: str = "",
) -> tuple[Rows, str]:
    """Return rows, and the arguments of a target or commands, to copy."""
    from nest.frameworks.export import export
    from nest.present.screen import launch_texts
    from nest.requests.launching import launch_settings

    target = restricted.target
    plan = structs.replace(plan, problem_hash=None)
    if target is None:
        return rows, commands_text(request, restricted, plan, path)
    try:
        settings = launch_settings(request, restricted, "--launch")
        files = export(restricted.problem, plan, target.name, settings)
    except NestError as error:
        return [*rows, ("launch", str(error))], ""
    rows = [row for row in rows if row[0] != "launch"]
    return rows, "\n\n".join(launch_texts(files))


def commands_text(
    request: RestrictedRequest,
    restricted: Restricted,
    plan: Plan | None,
    path: str | None = None,
) -> str:
    """Return the commands that write what starts a plan without a target.

    ``path`` is the file of the plan, if it has one.
    """
    from nest.present.screen import launch_commands

    if plan is None or restricted.target is not None:
        return ""
    return launch_commands(
        (restricted.free or restricted).problem,
        structs.replace(plan, problem_hash=None),
        problem_arguments(request),
        problem_arguments(request, *_RESTRICTING),
        "" if path in (None, "-") else str(path),
    )


def problem_arguments(request: RestrictedRequest, *more: str) -> str:
    """Return the words of the command line that name its problem.

    ``more`` are other options whose words count.
    """
    named = {*map(option_name, MODEL_FIELDS), *more}
    arguments = [*(click.get_current_context().find_root().obj or ())]
    selected = [] if request.problem is None else [str(request.problem)]
    for argument, following in pairwise([*arguments, ""]):
        name, equals, _ = argument.partition("=")
        if name in named:
            is_whole = bool(equals) or name == "--distributed-optimizer"
            selected += [argument, following][: 2 - is_whole]
    return shlex.join(selected)


def context_of(
    request: RestrictedRequest,
    restricted: Restricted,
    cells: Mapping[str, SolveOptions],
) -> Context:
    """Return how an answer came about: command, restrictions, limits."""
    from nest.analysis.page_facts import Context

    limits: dict[str, str] = {}
    for name, options in cells.items():
        if options.time_limit_s is not None:
            limits["time limit"] = f"{options.time_limit_s:g} s each"
        if options.gap:
            limits["gap"] = f"{100 * options.gap:g} %"
        limits[f"workers of {name}"] = str(options.num_workers)
        limits["seed"] = str(options.seed)
    return Context(
        command_line(),
        unchosen(request, restricted),
        chosen(request, restricted),
        _more(request, restricted),
        limits,
        "" if restricted.target is None else f"--target {restricted.target.name}",
        _untargeted(request, restricted),
    )


def _untargeted(request: RestrictedRequest, restricted: Restricted) -> Problem | None:
    """Return the problem as it would be without ``--target``."""
    from nest.constraints.targets import ANY, optimizer_of, target

    problem = restricted.untargeted
    if problem is None:
        return None
    # For the price of a target both train with the same optimizer.
    optimizer = restricted.whole.job.optimizer
    if request.model is not None and request.gradients is None:
        optimizer = optimizer_of(target(ANY), optimizer=request.optimizer)
    return replace(problem, job=replace(problem.job, optimizer=optimizer))


def unchosen(request: RestrictedRequest, restricted: Restricted) -> dict[str, str]:
    """Return the options that nobody gave, by the settings they choose.

    Those that make the problem of a model are known only there: whether
    those of a file were chosen is not.
    """
    chosen_names = chosen(request, restricted)
    option_names = {"target": "--target", "headroom": "--headroom"}
    if request.model is not None:
        option_names |= {name: option_name(name) for name in (*JOB_FIELDS, "order")}
        option_names |= {"replicas": "--pin r=", "pp": "--pin pp=", "dp": "--pin dp="}
        option_names["granularity"] = "--granularity"
    return {
        name: text for name, text in option_names.items() if name not in chosen_names
    }


def chosen(request: RestrictedRequest, restricted: Restricted) -> set[str]:
    """Return the settings that options say."""
    narrowed = {*restricted.pins, *restricted.forbids}
    setting_names = {_SETTING.get(name, name) for name in narrowed}
    setting_names |= {*request.given_job}
    for name in ("granularity", "target", "headroom"):
        if getattr(request, name) is not None:
            setting_names.add(name)
    return setting_names


def _more(
    request: RestrictedRequest, restricted: Restricted
) -> list[tuple[str, str, str]]:
    """Return settings that no problem has: name, meaning and value."""
    settings = [
        ("target", "framework", restricted.target_name or "any"),
        ("headroom", "memory to leave free", restricted.headroom or "none"),
    ]
    if request.model is None:
        return settings

    from nest.models.choices import layers_per_node
    from nest.models.named import load_model

    joined = layers_per_node(load_model(str(request.model)), request.layers_per_node)
    settings += [
        ("layers_per_node", "layers that are not cut apart", str(joined)),
        ("profile", "measured layers", str(request.profile or "none")),
        ("calibration", "what kernels reach", str(request.calibration or "as stored")),
    ]
    if restricted.problem.cluster.topology.kind == "graph":
        order = request.order or "given"
        settings.append(("order", "order of the devices", order))
    return settings


def command_line() -> str:
    """Return the command line that is running, as a shell reads it."""
    words = click.get_current_context().find_root().obj or ()
    return shlex.join(["nest", *words])
