"""``nest fit`` and ``nest explain``: questions about problems and plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nest.cli.declare import amount, integer, integers, option
from nest.cli.inputs import flag
from nest.cli.options import (
    MODEL,
    PLANNED,
    RESTRICTIONS,
    Options,
    offered,
    takes,
)
from nest.cli.progress import ProgressLine
from nest.errors import InvalidOptionError
from nest.util.interrupts import Interrupted

if TYPE_CHECKING:
    from nest.analysis.fit import Fit, Target
    from nest.ir.cluster import Device
    from nest.ir.problem import Problem


T = TypeVar("T")

#: Help of --time-limit where one question takes several runs of a solver.
QUESTION_LIMIT = (
    "Wall-clock seconds for all runs of the solver together.  [default: none, "
    "60 with --model]"
)

#: Values of --within, --tokens-per-s, --days and --tokens.
_Target = dict[str, Fraction | None]


@click.command("fit")
@option("--within S", "Target: a step takes at most so many seconds.", amount)
@option(
    "--tokens-per-s N", "Target: at least so many tokens per second.", amount
)
@option(
    "--days D", "Target: the --tokens are trained in so many days.", amount
)
@option("--tokens N", "Tokens of the run of --days.", amount)
@option(
    "--devices-list N,…",
    "Device counts to try.  [default: powers of two in a node, then whole "
    "nodes]",
    integers(),
)
@option(
    "--memory",
    "Ask for the smallest memory per device on all devices instead.",
)
@option(
    "--budget USD",
    "Ask for the fastest plan whose run over --tokens costs at most that.",
    amount,
)
@option(
    "--hourly-budget USD",
    "Ask for the fastest plan on devices that cost at most that per hour.",
    amount,
)
@option("--cheapest", "Ask for the cheapest plan that keeps the target.")
@option(
    "--price TYPE=USD,…",
    "Price of a device of a type per hour, such as h100=2.5; repeatable.  "
    "[default: as the problem says]",
    multiple=True,
)
@option(
    "--quota TYPE=N,…",
    "At most so many devices of a type, such as h100=64,a100=128; "
    "repeatable.  [default: all]",
    multiple=True,
)
@takes(
    *("problem_text", "solver", "output", "time_limit", "granularity"),
    *("json_path", *RESTRICTIONS, *MODEL),
    time_limit=QUESTION_LIMIT,
)
def fit_command(
    options: Options,
    devices_list: tuple[int, ...] | None,
    memory: bool,
    budget: Fraction | None,
    hourly_budget: Fraction | None,
    cheapest: bool,
    price: tuple[str, ...],
    quota: tuple[str, ...],
    **target: Fraction | None,
) -> int:
    """Find the fewest devices, or the smallest memory, for a target.

    Or, at the prices of devices, the fastest plan within a budget or the
    cheapest one that keeps a target, among the counts of each type that are
    powers of two inside a node, doubling nodes, or all there may be (--quota),
    for example: nest fit --model llama2-7b --cluster h100x16+a100x16 --price
    h100=2.5,a100=1.2 --hourly-budget 40

    The target is a step time (--within), a throughput (--tokens-per-s) or a
    whole run (--days with --tokens). The devices are the first ones of the
    cluster of PROBLEM, or of --cluster with --model.

    Exits with 1 if no candidate is known to keep the target; says then what
    the best possible step time is.
    """
    from nest.analysis import offers
    from nest.analysis.feasible import remedies_within
    from nest.analysis.fit import fewest_devices, smallest_memory, to_document
    from nest.present.fit import fit_block
    from nest.present.table import show
    from nest.solvers.base import Deadline

    options = options.limited()
    options.check_problem_choice()
    given = {
        "--budget": budget,
        "--hourly-budget": hourly_budget,
        "--cheapest": cheapest or None,
    }
    asked = [name for name, value in given.items() if value is not None]
    _check_prices(asked, price, quota)
    check_target(target, budget is not None, bool(asked) and not cheapest)
    for name in asked:
        if memory or devices_list is not None:
            other = "--memory" if memory else "--devices-list"
            raise InvalidOptionError(
                f"{name}: expected either it or {other}, got both; remove one"
            )
    if memory and devices_list is not None:
        raise InvalidOptionError(
            "--devices-list: expected either it or --memory, got both; "
            "remove one"
        )
    if memory and options.headroom is not None:
        raise InvalidOptionError(
            "--headroom: expected either it or --memory, which asks for the "
            "memory of a device, got both; remove one"
        )
    options.check_files()
    restricted = options.restricted()
    problem = restricted.problem
    goal = find_target(problem, target)
    solver, limits = options.solver, options.solve_options(options.solver)
    clock = Deadline(options.time_limit)
    if asked:
        types = problem.cluster.types
        prices = _by_type("--price", price, types, amount)
        quotas = _by_type("--quota", quota, types, integer(0))
        problem = offers.with_prices(
            problem, {name: float(x) for name, x in prices.items()}
        )
        wish = offers.Limits(goal, hourly_budget, budget, target["tokens"])
    limit_s = options.time_limit
    stop: Interrupted | None = None

    def answer(progress: ProgressLine) -> Fit:
        if asked:
            return offers.best_offer(
                problem,
                "cheapest" if cheapest else "fastest",
                wish,
                quotas,
                solver,
                limits,
                progress,
            )
        assert goal is not None
        if memory:
            return smallest_memory(problem, goal, solver, limits, progress)
        return fewest_devices(
            problem, goal, devices_list, solver, limits, progress
        )

    with ProgressLine(problem.time_unit, limit_s=limit_s) as progress:
        try:
            fit = answer(progress)
        except Interrupted as interrupt:
            fit, stop = interrupt.found, interrupt
        remedied = None
        if not asked and stop is None and fit.without_plan:
            remedied = remedies_within(
                fit.trials[-1].problem, clock.remaining_s, progress
            )
    parts = fit_block(
        *(problem, fit, restricted.text),
        () if remedied is None else remedied.lines,
    )
    unsaid = options.unsaid(restricted)
    if unsaid:
        parts.append(f"defaults: {unsaid}")
    show(options.people, *parts)
    document = to_document(problem, fit, solver)
    if remedied is not None:
        document["infeasible"] = remedied.to_json()
    if asked:
        document = offers.to_document(document, fit)
    options.write_json(document | restricted.document())
    options.write_plan(fit.best.result.plan if fit.best else None)
    if stop is not None:
        raise stop
    return 0 if fit.best is not None else 1


def _check_prices(
    asked: Sequence[str], price: Sequence[str], quota: Sequence[str]
) -> None:
    for name, given in (("--price", price), ("--quota", quota)):
        if given and not asked:
            raise InvalidOptionError(
                f"{name}: expected --budget, --hourly-budget or --cheapest "
                f"too, got none; add one"
            )


def _by_type(
    option: str,
    texts: Sequence[str],
    types: Sequence[Device],
    read: Callable[[Any], T],
) -> dict[str, T]:
    """Return values by the type of devices that they are for.

    A type is meant by its name or how it begins, in any case.
    """
    names = [device.name for device in types]
    found: dict[str, T] = {}
    for part in (part for text in texts for part in text.split(",")):
        key, equals, value = part.partition("=")
        meant = [n for n in names if n.lower().startswith(key.lower())]
        exact = [n for n in names if n.lower() == key.lower()]
        meant = exact or meant
        if not equals or not key or len(meant) != 1:
            raise InvalidOptionError(
                f"{option} {part}: expected TYPE=VALUE with a type of the "
                f"cluster, {' or '.join(names)}, got {key!r}; correct it"
            )
        if meant[0] in found:
            raise InvalidOptionError(
                f"{option} {part}: expected {meant[0]} once, got it twice; "
                f"keep one"
            )
        try:
            found[meant[0]] = read(value)
        except click.BadParameter as error:
            raise InvalidOptionError(
                f"{option} {part}: {error.message}"
            ) from None
    return found


def check_target(target: _Target, with_budget: bool, optional: bool) -> None:
    """Check that targets make sense, with a budget of a run or without.

    One may be missing only where it is optional.
    """
    given = {flag(name): value for name, value in target.items()}
    tokens = given.pop("--tokens")
    names = [name for name, value in given.items() if value is not None]
    if with_budget and tokens is None:
        raise InvalidOptionError(
            "--tokens: expected the tokens of the run of --budget, got none; "
            "add --tokens, or ask for an --hourly-budget"
        )
    if optional and not names and (with_budget or tokens is None):
        return
    if len(names) != 1:
        got = " and ".join(names) or "none"
        raise InvalidOptionError(
            f"nest fit: expected one target, --within, --tokens-per-s or "
            f"--days with --tokens, got {got}; "
            f"{'keep one' if names else 'add one'}"
        )
    if with_budget:
        return
    if (given["--days"] is None) != (tokens is None):
        lacking = "--tokens" if tokens is None else "--days"
        raise InvalidOptionError(
            f"{lacking}: expected --days and --tokens together, got one of "
            f"them; add {lacking}"
        )


def find_target(problem: Problem, target: _Target) -> Target | None:
    """Return the target that options ask for, if any."""
    import nest.analysis.fit as fit

    match target:
        case {"within": Fraction() as step_s}:
            return fit.within(problem, step_s)
        case {"tokens_per_s": Fraction() as rate}:
            return fit.tokens_per_s(problem, rate)
        case {"days": Fraction() as num_days, "tokens": Fraction() as tokens}:
            return fit.days(problem, num_days, tokens)
    return None


@click.command("explain")
@option(
    "--prefer SETTING=VALUE,…",
    "Compare with the best plan under these settings, such as tp=8,pp=4.",
    multiple=True,
)
@option("--no-search", "Solve nothing: only the terms and the neighbours.")
@takes(
    *PLANNED,
    *("solver", "time_limit", "granularity", "json_path", *RESTRICTIONS),
    time_limit=QUESTION_LIMIT,
)
def explain_command(
    options: Options,
    prefer: tuple[str, ...],
    no_search: bool,
) -> int:
    """Explain a plan: its terms, what bounds it, and its neighbours.

    Where the step time goes, what memory is left, which constraint binds (the
    best plan without a memory limit, with a faster network, with other
    batches), what every neighbouring plan takes, and how far the plan is from
    the best one. With --pin and --forbid, among such plans only.

    Exits with 1 if the plan does not fit memory, or a solver failed.
    """
    from nest.analysis.explain import explain, to_document
    from nest.constraints.pins import parse
    from nest.present.explanation import explanation_block
    from nest.present.table import show

    options = options.limited()
    options.check_files()
    if no_search and prefer:
        raise InvalidOptionError(
            "--prefer: expected either it or --no-search, got both; remove one"
        )
    whole, plan = options.find_problem_and_plan()
    restricted = options.restricted(whole)
    problem, solver = restricted.problem, options.solver
    limit_s = options.time_limit
    with ProgressLine(problem.time_unit, limit_s=limit_s) as progress:
        stop: Interrupted | None = None
        try:
            found = explain(
                problem,
                plan,
                prefer=parse(prefer, "--prefer"),
                search=not no_search,
                solver=solver,
                options=options.solve_options(solver),
                on_progress=progress,
            )
        except Interrupted as interrupt:
            found, stop = interrupt.found, interrupt
    has = ", ".join(" ".join(pair) for pair in offered(whole).values())
    notes = [*restricted.notes, f"the problem has {has}"]
    show(options.people, *explanation_block(found, notes))
    document = to_document(found, solver)
    options.write_json(document | restricted.document())
    if stop is not None:
        raise stop
    return 0 if found.score.feasible and not found.failed else 1
