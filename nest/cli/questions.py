"""``nest fit`` and ``nest explain``: questions about problems and plans."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import IO, TYPE_CHECKING, Any

import click

from nest.cli.declare import amount, integers, option
from nest.cli.inputs import Restricted, load_plan, load_problem
from nest.cli.options import MODEL, RESTRICTIONS, Options, takes
from nest.errors import InvalidOptionError

if TYPE_CHECKING:
    from nest.explain import Explanation
    from nest.fit import Fit, Target, Trial
    from nest.ir.problem import Problem
    from nest.solvers.result import SolveResult


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
@takes(
    *("problem_text", "solver", "output", "time_limit", "granularity"),
    *("json_path", *RESTRICTIONS, *MODEL),
)
def fit_command(
    options: Options,
    devices_list: tuple[int, ...] | None,
    memory: bool,
    **target: Fraction | None,
) -> int:
    """Find the fewest devices, or the smallest memory, for a target.

    The target is a step time (--within), a throughput (--tokens-per-s) or a
    whole run (--days with --tokens). The devices are the first ones of the
    cluster of PROBLEM, or of --cluster with --model.

    Exits with 1 if no candidate is known to keep the target; says then what
    the best possible step time is.
    """
    from nest.cli.progress import ProgressLine
    from nest.fit import fewest_devices, smallest_memory, to_document

    options = options.limited()
    options.check_problem_choice()
    _check_target(target)
    if memory and devices_list is not None:
        raise InvalidOptionError(
            "--devices-list: expected either it or --memory, got both; "
            "remove one"
        )
    options.check_files()
    restricted = options.restricted()
    problem = restricted.problem
    goal = _target(problem, target)
    solver, limits = options.solver, options.solve_options(options.solver)
    with ProgressLine(problem.time_unit) as progress:
        if memory:
            fit = smallest_memory(problem, goal, solver, limits, progress)
        else:
            fit = fewest_devices(
                problem, goal, devices_list, solver, limits, progress
            )
    _show_fit(options.people, restricted, fit)
    document = to_document(problem, fit, solver)
    options.write_json(document | restricted.document())
    options.write_plan(fit.best.result.plan if fit.best else None)
    return 0 if fit.best is not None else 1


def _check_target(target: _Target) -> None:
    given = {f"--{name.replace('_', '-')}": v for name, v in target.items()}
    tokens = given.pop("--tokens")
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        got = " and ".join(names) or "none"
        raise InvalidOptionError(
            f"nest fit: expected one target, --within, --tokens-per-s or "
            f"--days with --tokens, got {got}; "
            f"{'keep one' if names else 'add one'}"
        )
    if (given["--days"] is None) != (tokens is None):
        lacking = "--tokens" if tokens is None else "--days"
        raise InvalidOptionError(
            f"{lacking}: expected --days and --tokens together, got one of "
            f"them; add {lacking}"
        )


def _target(problem: Problem, target: _Target) -> Target:
    from nest import fit

    match target:
        case {"within": Fraction() as step_s}:
            return fit.within(problem, step_s)
        case {"tokens_per_s": Fraction() as rate}:
            return fit.tokens_per_s(problem, rate)
        case {"days": Fraction() as num_days, "tokens": Fraction() as tokens}:
            return fit.days(problem, num_days, tokens)
    raise AssertionError(target)


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


@click.command("explain")
@click.argument("problem_text", metavar="PROBLEM")
@click.argument("plan_path", metavar="PLAN")
@option(
    "--prefer SETTING=VALUE,…",
    "Compare with the best plan under these settings, such as tp=8,pp=4.",
    multiple=True,
)
@option("--no-search", "Solve nothing: only the terms and the neighbours.")
@takes(
    *("solver", "time_limit", "granularity", "json_path", *RESTRICTIONS),
)
def explain_command(
    options: Options,
    problem_text: str,
    plan_path: str,
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
    from nest.cli.inspecting import warn_if_foreign
    from nest.cli.progress import ProgressLine
    from nest.explain import explain, to_document
    from nest.restrictions import parse

    options = replace(options, problem_text=problem_text)
    options.check_files({"PLAN": plan_path})
    if no_search and prefer:
        raise InvalidOptionError(
            "--prefer: expected either it or --no-search, got both; remove one"
        )
    whole, plan = load_problem(problem_text), load_plan(plan_path)
    warn_if_foreign(whole, plan)
    restricted = options.restricted(whole)
    problem, solver = restricted.problem, options.solver
    with ProgressLine(problem.time_unit) as progress:
        found = explain(
            problem,
            plan,
            prefer=parse(prefer, "--prefer"),
            search=not no_search,
            solver=solver,
            options=options.solve_options(solver),
            on_progress=progress,
        )
    _show_explanation(options.people, restricted, found)
    document = to_document(found, solver)
    options.write_json(document | restricted.document())
    return 0 if found.score.feasible and not found.failed else 1


def _show_explanation(
    file: IO[str], restricted: Restricted, found: Explanation
) -> None:
    """Print an explanation, one part after the other."""
    from rich.padding import Padding

    from nest.report.table import score_block, show

    document = found.score.to_json()
    parts: list[Any] = score_block(found.problem, found.plan, document)
    if restricted.text:
        parts.insert(1, f"only plans under {restricted.text}")
    for title, body in (
        ("Where the step time goes", _term_lines(found)),
        ("What bounds it", _bound_lines(found)),
        ("What a neighbouring plan takes", _neighbour_lines(found)),
        ("What the preferred setting costs", _preferred_lines(found)),
    ):
        if body:
            parts.append(Padding(f"{title}", (1, 0, 0, 0)))
            parts += body
    show(file, *parts)


def _term_lines(found: Explanation) -> list[Any]:
    from nest.cost.breakdown import STEP_TERMS
    from nest.report.table import key_lines, simple_table
    from nest.units import format_bytes

    terms, blocks = found.terms, found.score.blocks
    step = found.score.step_quanta
    rows = [
        (STEP_TERMS[name], _quanta(found, value), _share(value, step))
        for name, value in sorted(
            terms.step.items(), key=lambda item: -item[1]
        )
        if value
    ]
    what = "block" if len(blocks) < len(found.score.stages) else "stage"
    slow, full = terms.slowest, found.fullest
    memory = ", ".join(
        f"{name.removesuffix('_bytes')} {format_bytes(size)}"
        for name, size in blocks[full].memory.items()
        if size
    )
    slack = found.slack_bytes
    left = f"{format_bytes(abs(slack))} {'free' if slack >= 0 else 'too much'}"
    capacity = found.problem.cluster.memory_bytes()
    return [
        simple_table(("term", "time", "share"), rows),
        key_lines(
            [
                (
                    f"slowest {what}",
                    f"{slow + 1} of {len(blocks)}, "
                    f"{_quanta(found, blocks[slow].load)} per micro-batch, "
                    f"counted {terms.num_loads} times",
                ),
                (
                    "fullest device",
                    f"in {what} {full + 1}, "
                    f"{format_bytes(blocks[full].memory_bytes)} of "
                    f"{format_bytes(capacity)}, {left}: {memory}",
                ),
            ]
        ),
    ]


def _bound_lines(found: Explanation) -> list[Any]:
    from nest.report.table import key_lines, simple_table, status_text

    optimum = found.optimum
    if optimum is None:
        return []
    best = optimum.step_quanta
    rows = [("best plan", _best_text(found, optimum))]
    binding = found.binding
    if binding is not None:
        rows.append(("binding", binding.name))
    elif best is not None:
        rows.append(("binding", "none of these alone gains anything"))
    table = []
    for relaxed in found.relaxed:
        quanta = relaxed.step_quanta
        if quanta is None:
            table.append((relaxed.name, "", "", status_text(relaxed.result)))
            continue
        gain = "a plan fits"
        if best is not None:
            gain = "nothing"
            if quanta < best:
                gain = _share(best - quanta, best)
        table.append(
            (
                relaxed.name,
                _quanta(found, quanta),
                gain,
                "proven" if relaxed.proven else "best known",
            )
        )
    return [
        key_lines(rows),
        simple_table(("if", "best step", "gain", "proof"), table),
    ]


def _best_text(found: Explanation, optimum: SolveResult) -> str:
    """Return what is known about the best plan, and how far this one is."""
    from nest.report.table import note, status_text
    from nest.solvers.base import Status

    best, step = optimum.step_quanta, found.score.step_quanta
    if best is None:
        parts = [status_text(optimum), note(optimum)]
        if optimum.lower_bound_quanta is not None:
            least = _quanta(found, optimum.lower_bound_quanta)
            parts.append(f"a step takes at least {least}")
        return ", ".join(filter(None, parts))
    proof = "proven"
    if optimum.status is not Status.OPTIMAL:
        proof = "best known"
        if optimum.lower_bound_quanta is not None:
            proof += f", at least {_quanta(found, optimum.lower_bound_quanta)}"
    if not found.score.feasible:
        distance = "the plan itself does not fit"
    elif best == step:
        distance = "the plan is as good"
    elif best > step:
        distance = "the plan is better"
    else:
        distance = f"the plan takes {_share(step - best, best)} more"
    return f"{_quanta(found, best)} ({proof}); {distance}"


def _neighbour_lines(found: Explanation) -> list[Any]:
    from nest.report.table import simple_table
    from nest.units import format_bytes

    capacity = found.problem.cluster.memory_bytes()
    step = found.score.step_quanta
    own = found.score.blocks[found.fullest].memory_bytes
    rows = []
    for near in found.neighbours:
        if near.score is None:
            # What is wrong with it; the remedy is for plans made by hand.
            reason = near.reason.split("; ")[0]
            rows.append((near.name, "", "", "", f"illegal: {reason}"))
            continue
        note = near.detail
        if near.verdict == "too large":
            excess = format_bytes(near.memory_bytes - capacity)
            note = "; ".join(filter(None, (f"does not fit by {excess}", note)))
        difference = near.score.step_quanta - found.score.step_quanta
        memory = near.memory_bytes - own
        rows.append(
            (
                near.name,
                _signed(difference, _quanta(found, abs(difference))),
                _signed(difference, _share(abs(difference), step)),
                _signed(memory, format_bytes(abs(memory))),
                note,
            )
        )
    # What fits first, then what does not, what is illegal last.
    order = {"fits": 0, "too large": 1, "illegal": 2}
    ranked = sorted(
        zip(found.neighbours, rows, strict=True),
        key=lambda pair: (
            order[pair[0].verdict],
            pair[0].score.step_quanta if pair[0].score else 0,
        ),
    )
    return [
        simple_table(
            ("move", "step time", "share", "memory", "note"),
            [row for _, row in ranked],
        )
    ]


def _preferred_lines(found: Explanation) -> list[Any]:
    from nest.cost.breakdown import STEP_TERMS
    from nest.report.table import (
        key_lines,
        note,
        plan_text,
        simple_table,
        status_text,
    )

    preferred = found.preferred
    if preferred is None:
        return []
    result = preferred.result
    if result.step_quanta is None or preferred.terms is None:
        text = f"{status_text(result)} {note(result)}".strip()
        return [key_lines([(preferred.text, text)])]
    step = found.score.step_quanta
    difference = result.step_quanta - step
    proof = "proven" if result.status == "optimal" else "best known"
    more = "more" if difference > 0 else "less"
    distance = "as long as the plan"
    if difference:
        distance = f"{_share(abs(difference), step)} {more} than the plan"
    plan = result.plan
    assert plan is not None
    rows = [
        (
            preferred.text,
            f"at best {_quanta(found, result.step_quanta)} ({proof}), "
            f"{distance}",
        ),
        ("its plan", plan_text(plan)),
    ]
    table = [
        (
            STEP_TERMS[name],
            _quanta(found, found.terms.step[name]),
            _quanta(found, value),
            _signed(change, _quanta(found, abs(change))),
        )
        for name, value in preferred.terms.step.items()
        if (change := value - found.terms.step[name])
    ]
    parts = [key_lines(rows)]
    if table:
        headers = ("term", "plan", "preferred", "difference")
        parts.append(simple_table(headers, table))
    return parts


def _quanta(found: Explanation, quanta: int | Fraction) -> str:
    from nest.report.table import TimeScale

    problem = found.problem
    scale = TimeScale.fitting(found.score.step_time_ns, problem.time_unit)
    return scale(float(quanta * problem.quantum_ps / 1000))


def _share(part: int | Fraction, whole: int | Fraction) -> str:
    from nest.report.table import percent

    return f"{percent(Fraction(part) / whole)} %" if whole else "0 %"


def _signed(value: int, text: str) -> str:
    return f"{'+' if value > 0 else '-' if value < 0 else '±'}{text}"
