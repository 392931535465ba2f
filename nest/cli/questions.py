"""``nest fit`` and ``nest explain``: questions about problems and plans."""

from __future__ import annotations

from fractions import Fraction
from typing import IO, TYPE_CHECKING, Any

import click

from nest.cli.inputs import (
    Restricted,
    check_distinct_files,
    check_output,
    check_problem_choice,
    find_problem,
    integers,
    model_file,
    model_options,
    one_of,
    people,
    restriction_options,
    seconds,
    with_granularity,
    write_json,
    write_record,
)
from nest.errors import InvalidOptionError
from nest.ir.job import GRANULARITIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from nest.fit import Fit, Target, Trial
    from nest.ir.problem import Problem
    from nest.solvers.base import SolveOptions

#: Seconds per run of a solver for the problem of a model.
MODEL_TIME_LIMIT_S = 60.0


def amount(text: str) -> Fraction:
    """Read a number above 0 exactly as it is written."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if value <= 0 or "/" in text:
        raise click.BadParameter(
            f"expected a number > 0, got {text!r}; for example 1.5 or 2e12"
        )
    return value


def _time_limit(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--time-limit",
        type=seconds,
        metavar="S",
        help="Wall-clock seconds per run of the solver.  [default: none, 60 "
        "with --model]",
    )(command)


_GRANULARITY = click.option(
    "--granularity",
    type=one_of(*GRANULARITIES),
    metavar="|".join(GRANULARITIES),
    help="Whether every stage or every layer has a strategy of its own.  "
    "[default: as the problem says]",
)

_JSON = click.option(
    "--json",
    "json_path",
    metavar="FILE",
    help="Also write a JSON document; '-' is standard output.",
)


@click.command("fit")
@click.argument("problem_text", metavar="[PROBLEM]", required=False)
@click.option(
    "--within",
    type=amount,
    metavar="S",
    help="Target: a step takes at most so many seconds.",
)
@click.option(
    "--tokens-per-s",
    type=amount,
    metavar="N",
    help="Target: at least so many tokens per second.",
)
@click.option(
    "--days",
    type=amount,
    metavar="D",
    help="Target: the --tokens are trained in so many days.",
)
@click.option(
    "--tokens", type=amount, metavar="N", help="Tokens of the run of --days."
)
@click.option(
    "--devices-list",
    type=integers(),
    metavar="N,…",
    help="Device counts to try.  [default: powers of two in a node, then "
    "whole nodes]",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Ask for the smallest memory per device on all devices instead.",
)
@click.option(
    "--solver",
    default="dp",
    metavar="NAME",
    help="See 'nest solvers'.  [default: dp]",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the plan to a file; '-' is standard output.",
)
@_time_limit
@_GRANULARITY
@_JSON
@restriction_options
@model_options
def fit_command(
    problem_text: str | None,
    within: Fraction | None,
    tokens_per_s: Fraction | None,
    days: Fraction | None,
    tokens: Fraction | None,
    devices_list: tuple[int, ...] | None,
    memory: bool,
    solver: str,
    output: str | None,
    time_limit: float | None,
    granularity: str | None,
    json_path: str | None,
    pin: tuple[str, ...],
    forbid: tuple[str, ...],
    **job: Any,
) -> int:
    """Find the fewest devices, or the smallest memory, for a target.

    The target is a step time (--within), a throughput (--tokens-per-s) or a
    whole run (--days with --tokens). The devices are the first ones of the
    cluster of PROBLEM, or of --cluster with --model.

    Exits with 1 if no candidate is known to keep the target; says then what
    the best possible step time is.
    """
    from nest.fit import fewest_devices, smallest_memory, to_document

    check_problem_choice("nest fit", problem_text, job)
    _check_target(within, tokens_per_s, days, tokens)
    if memory and devices_list is not None:
        raise InvalidOptionError(
            "--devices-list: expected either it or --memory, got both; "
            "remove one"
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
    check_output(json_path, "--json")
    check_output(output, "-o")
    restricted = Restricted.of(
        with_granularity(find_problem(problem_text, job), granularity),
        pin,
        forbid,
    )
    problem = restricted.problem
    target = _target(problem, within, tokens_per_s, days, tokens)
    options = _options(time_limit, job)
    progress = _progress(problem)
    try:
        if memory:
            fit = smallest_memory(problem, target, solver, options, progress)
        else:
            fit = fewest_devices(
                problem, target, devices_list, solver, options, progress
            )
    finally:
        progress.clear()
    _show_fit(people(json_path, output), restricted, fit)
    if json_path is not None:
        document = to_document(problem, fit, solver)
        write_json(json_path, document | restricted.document())
    if output is not None:
        if fit.best is not None and fit.best.result.plan is not None:
            write_record(output, fit.best.result.plan)
        else:
            click.echo(f"nest: {output} not written: no plan", err=True)
    return 0 if fit.best is not None else 1


def _check_target(
    within: Fraction | None,
    tokens_per_s: Fraction | None,
    days: Fraction | None,
    tokens: Fraction | None,
) -> None:
    given = {
        "--within": within,
        "--tokens-per-s": tokens_per_s,
        "--days": days,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        got = " and ".join(names) or "none"
        raise InvalidOptionError(
            f"nest fit: expected one target, --within, --tokens-per-s or "
            f"--days with --tokens, got {got}; "
            f"{'keep one' if names else 'add one'}"
        )
    if (days is None) != (tokens is None):
        lacking = "--tokens" if tokens is None else "--days"
        raise InvalidOptionError(
            f"{lacking}: expected --days and --tokens together, got one of "
            f"them; add {lacking}"
        )


def _target(
    problem: Problem,
    within: Fraction | None,
    tokens_per_s: Fraction | None,
    days: Fraction | None,
    tokens: Fraction | None,
) -> Target:
    from nest import fit

    if within is not None:
        return fit.within(problem, within)
    if tokens_per_s is not None:
        return fit.tokens_per_s(problem, tokens_per_s)
    assert days is not None
    assert tokens is not None
    return fit.days(problem, days, tokens)


def _options(time_limit: float | None, job: dict[str, Any]) -> SolveOptions:
    from nest.solvers.base import SolveOptions

    if time_limit is None and job["model"] is not None:
        time_limit = MODEL_TIME_LIMIT_S
    return SolveOptions(time_limit_s=time_limit)


def _progress(problem: Problem) -> Any:
    from nest.cli.progress import ProgressLine

    return ProgressLine(problem.time_unit)


def _show_fit(file: IO[str], restricted: Restricted, fit: Fit) -> None:
    """Print the answer, the candidates, and the plan."""
    from rich.padding import Padding

    from nest.report.table import (
        TimeScale,
        key_lines,
        note,
        score_block,
        show,
        simple_table,
        status_text,
    )
    from nest.units import format_bytes

    problem = restricted.problem
    what = "devices" if fit.question == "devices" else "memory per device"

    def size(trial: Trial) -> str:
        if fit.question == "devices":
            return str(trial.num_devices)
        if trial is fit.trials[0]:
            return "unlimited"
        size_bytes = trial.memory_bytes
        return f"{size_bytes} bytes ({format_bytes(size_bytes)})"

    def best_time(trial: Trial) -> str:
        time_ns = trial.result.step_time_ns
        text = TimeScale.fitting(time_ns, problem.time_unit)(time_ns)
        proven = status_text(trial.result) == "optimal"
        return text if proven else f"{text} (not proven)"

    rows = [
        ("problem", f"{problem.name} (preset {problem.preset})"),
        ("target", fit.target.text),
    ]
    if restricted.text:
        rows.append(("under", restricted.text))
    if fit.best is not None:
        proof = "proven: nothing smaller keeps the target"
        if not fit.proven:
            proof = "not proven: some smaller ones are open"
        rows.append((f"least {what}", f"{size(fit.best)} ({proof})"))
    else:
        proof = "proven" if fit.proven else "not proven: some are open"
        rows.append((f"least {what}", f"none keeps the target ({proof})"))
        if fit.fastest is not None:
            where = f"with {size(fit.fastest)} {what}"
            if fit.question == "memory":
                where = "whatever the memory"
            rows.append(("best possible", f"{best_time(fit.fastest)} {where}"))
        else:
            rows.append(("best possible", "no plan at all was found"))
    table = simple_table(
        (what, "target kept", "step time", "lower bound", "wall s", "note"),
        [
            (
                size(trial),
                trial.answer,
                _time(problem, trial.result.step_time_ns),
                _time(problem, trial.result.lower_bound_ns),
                f"{trial.result.wall_s:.2f}",
                note(trial.result),
            )
            for trial in fit.trials
        ],
    )
    parts: list[Any] = [key_lines(rows), Padding(table, (1, 0, 1, 0))]
    shown = fit.best or fit.fastest
    if shown is not None:
        assert shown.result.plan is not None
        assert shown.result.score is not None
        parts += score_block(
            shown.problem, shown.result.plan, shown.result.score.to_json()
        )
    show(file, *parts)


def _time(problem: Problem, time_ns: float | None) -> str:
    from nest.report.table import TimeScale

    return TimeScale.fitting(time_ns, problem.time_unit)(time_ns)
