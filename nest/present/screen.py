"""The first screen of an answer: does it fit, how fast, how sure, what next.

Rows in the order of a reader's decisions. ``--verbose`` adds rows with exact
figures, and the stages.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from nest.analysis.page_facts import Answer, Wish, run_facts
from nest.constraints.targets import ANY, Framework, Obstacle, inexpressible, names
from nest.constraints.targets import target as framework_of
from nest.cost.orders import with_named_order
from nest.cost.schedules import schedule_of
from nest.cost.score import Score
from nest.ir.job import ANY_ORDER
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.present.fitted import KeyLines
from nest.present.stages import rank_text
from nest.present.table import (
    count,
    note,
    percent,
    scale_of,
    signed_percent,
    stage_table,
    status_text,
)
from nest.present.verbosity import VERBOSE
from nest.solvers.base import Status
from nest.solvers.result import Outcome, SolveResult
from nest.uncertainty.headroom import chance_text, fullest_device
from nest.uncertainty.intervals import (
    NOT_CALIBRATED,
    Intervals,
    intervals_of,
    memory_interval,
    why_none,
)
from nest.units import format_bytes, format_sizes
from nest.util.time_scale import TimeScale, digits

if TYPE_CHECKING:
    from nest.analysis.others import OtherOrder, Others

#: Labels of the rows, in their order; each is an entry of the glossary.
LABELS = (
    *("answer", "fits", "faster", "step time", "speed", "run", "plan"),
    *("proof", "target", "limit", "guaranteed", "launch", "else", "assumed"),
)

#: Columns of a terminal that nothing here exceeds, but what cannot be broken.
WIDTH = 79

#: Changes of a setting that are shown.
_MOST_CHANGES = 3

Rows = list[tuple[str, str]]


def screen(
    problem: Problem, rows: Rows, texts: Sequence[str] = ()
) -> list[RenderableType]:
    """Return a title, labeled rows, and texts that are not to be broken."""
    shown, before = [], ""
    for label, text in sorted(rows, key=place_of):
        shown.append((label if label != before else "", text))
        before = label
    return [lines([title(problem)]), KeyLines(shown, WIDTH), *unbroken(texts)]


def continued(commands: str) -> str:
    """Return commands in lines that a terminal of 80 columns shows whole.

    A quoted word keeps its spaces, and then its command keeps its line.
    """
    lines = []
    for command in commands.splitlines():
        pieces = [command]
        if shlex.split(command) == command.split():
            pieces = wrap(
                command,
                WIDTH - 2,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines.append(" \\\n".join(pieces))
    return "\n".join(lines)


def unbroken(texts: Iterable[str]) -> list[Text]:
    """Return texts to copy, whose lines are not to be broken."""
    return [Text(f"\n{text}", no_wrap=True) for text in texts if text]


def place_of(row: tuple[str, str]) -> int:
    """Return where a row stands on a screen."""
    return LABELS.index(row[0])


def lines(texts: Iterable[str]) -> RenderableType:
    """Return texts in lines that a terminal of 80 columns shows whole."""
    return KeyLines([("", text) for text in texts], WIDTH)


def title(problem: Problem) -> str:
    """Return what is trained on what."""
    cluster, job = problem.cluster, problem.job
    devices = " + ".join(
        f"{cluster.devices_of(index)} × {device.name}"
        for index, device in enumerate(cluster.types)
    )
    size = min(cluster.topology.unit_sizes, default=1)
    if 1 < size < cluster.num_devices:
        nodes = len({*cluster.topology.nodes_of(range(cluster.num_devices))})
        devices += f" ({count(nodes, 'node')})"
    batch = count(job.global_batch, "sample")
    if job.sequence_length is not None:
        batch += f" of {job.sequence_length:,} tokens"
    return f"{problem.name}: {devices}, {batch} per step"


def answer_rows(
    problem: Problem, result: SolveResult, under: str = "", wish: Wish | None = None
) -> Rows:
    """Return what is known of the answer of a solver, and of a training run.

    ``under`` is what restricts plans, such as ``--target megatron``.
    """
    rows: Rows = []
    if result.plan is not None and result.score is not None:
        rows = figure_rows(problem, result.plan, result.score, wish)
    proof = f"{proven(problem, result, under)}; {result.solver}"
    rows.append(("proof", f"{proof}, {result.wall_s:.2f} s"))
    if VERBOSE.get():
        rows.append(("proof", _search_text(problem, result)))
    return [(label, text) for label, text in rows if text]


def given_rows(
    problem: Problem, answer: Answer, wish: Wish | None = None, under: str = ""
) -> Rows:
    """Return what is known of a plan that no solver of this call returned."""
    among = f" under {under}" if under else ""
    bound_ns, step_ns = answer.lower_bound_ns, answer.score.step_time_ns
    proof = "nothing proven: no lower bound is known"
    if bound_ns is not None:
        scale = TimeScale.fitting(step_ns, problem.time_unit)
        proof = f"no plan is below {scale.short(bound_ns)}"
        if bound_ns == step_ns:
            proof = f"optimal among {plans_text(problem)}"
        proof += among
    rows = figure_rows(problem, answer.plan, answer.score, wish)
    return [*rows, ("proof", f"{proof}; {answer.name}")]


def figure_rows(
    problem: Problem, plan: Plan, verdict: Score, wish: Wish | None
) -> Rows:
    """Return the rows of a plan, and of a training run with it."""
    run = run_text(problem, plan, verdict, wish or Wish())
    rows = plan_rows(problem, plan, verdict, wish.target if wish else "")
    return [*rows, *[("run", run)] * bool(run)]


def plan_rows(problem: Problem, plan: Plan, verdict: Score, target: str = "") -> Rows:
    """Return what is known of a plan: whether it fits, and how fast it is.

    FLOPs are counted as ``target`` does in its log.
    """
    intervals = intervals_of(problem, plan, verdict)
    scale = TimeScale.fitting(verdict.step_time_ns, problem.time_unit)
    passes = _passes_text(verdict, scale)
    step = f"{scale(verdict.step_time_ns)}{passes}"
    if intervals is not None:
        step = (
            f"{scale.short(verdict.step_time_ns, 3)}{passes}; 9 of 10 measured steps "
            f"take {scale.interval(intervals.step_90_ns)} "
            f"(from {', '.join(intervals.rests_on)})"
        )
    elif NOT_CALIBRATED in problem.source:
        step += f"; from {problem.source.partition('costs: ')[2]}"
    rows = [
        ("fits", fits_text(problem, plan, verdict, intervals)),
        ("step time", step),
        ("speed", _speed(problem, verdict, target)),
        ("plan", degrees(problem, plan, verdict.num_micro_batches)),
    ]
    if VERBOSE.get():
        rows += [("fits", text) for text in verdict.violations]
        rows += _exact_rows(problem, verdict, intervals, scale)
    return [(label, text) for label, text in rows if text]


def _passes_text(verdict: Score, scale: TimeScale) -> str:
    """Return what the passes take one by one, where a screen shows another time."""
    simulated_ns = verdict.simulated_step_time_ns
    if simulated_ns is None:
        return ""
    text = scale.short(simulated_ns, 3)
    is_same = text == scale.short(verdict.step_time_ns, 3)
    return "" if is_same else f" (its passes one by one {text})"


def _exact_rows(
    problem: Problem, verdict: Score, intervals: Intervals | None, scale: TimeScale
) -> Rows:
    """Return more digits and intervals of a plan, for ``--verbose``."""
    rows, steps = [], []
    if intervals is not None:
        steps = [
            f"{scale(verdict.step_time_ns)} by the cost model",
            f"50 %: {scale.interval(intervals.step_50_ns)}",
        ]
        nine_of_ten = format_sizes(*intervals.memory_90_bytes, 1)
        half = format_sizes(*intervals.memory_50_bytes, 1)
        rows.append(("fits", f"memory 90 %: {nine_of_ten}; 50 %: {half}"))
    if verdict.simulated_step_time_ns is not None:
        steps.append(f"simulated {scale(verdict.simulated_step_time_ns)}")
    samples = verdict.throughput_samples_per_s
    if samples is not None:
        rows.append(("speed", f"{samples:.6g} samples/{problem.time_unit}"))
    return [*rows, ("step time", "; ".join(steps))]


def _search_text(problem: Problem, result: SolveResult) -> str:
    """Return what a solver claims, and what its search took."""
    scale = scale_of(problem, [result])
    texts = [f"{result.solver} {result.version}" if result.version else ""]
    if result.own_objective_ns is not None:
        texts.append(f"own estimate {scale(result.own_objective_ns)}")
    if result.lower_bound_ns is not None:
        texts.append(f"lower bound {scale.bound(result.lower_bound_ns)}")
    if result.cpu_s is not None and result.peak_rss_bytes is not None:
        peak = format_bytes(result.peak_rss_bytes)
        texts.append(f"{result.cpu_s:.2f} s of CPU, {peak}")
    texts += [f"preset {problem.preset}", f"hash {result.problem_hash[:12]}"]
    return "; ".join(filter(None, texts))


def stage_parts(problem: Problem, plan: Plan, verdict: Score) -> list[RenderableType]:
    """Return the stages of a plan, and which devices they are of."""
    table = stage_table(problem, plan, verdict.to_json())
    items: list[RenderableType] = [Padding(table, (1, 0, 0, 0))]
    if plan.replicas > 1:
        apart = count(problem.cluster.num_devices // plan.replicas, "device")
        text = (
            f"devices above are those of the first replica; each begins "
            f"{apart} after the one before"
        )
        items.append(lines([text]))
    return items


def fits_text(
    problem: Problem, plan: Plan, verdict: Score, intervals: Intervals | None
) -> str:
    """Return whether a plan fits, how sure that is, and by how much."""
    full = fullest_device(problem, plan, verdict)
    used, limit = map(format_bytes, (full.memory_bytes, full.device_bytes))
    if used.split()[1] == limit.split()[1]:
        used = used.split()[0]
    text = f"{used} of {limit} on the fullest device"
    too_much = full.memory_bytes - full.device_bytes
    if too_much > 0:
        return f"no: {text}, {format_bytes(too_much)} too much"
    if full.memory_bytes > full.usable_bytes:
        over = format_bytes(full.memory_bytes - full.usable_bytes)
        text += f", {over} more than --headroom leaves"
    if intervals is None:
        return f"yes, as predicted: {text}"
    within_50, _ = memory_interval(problem, full.memory_bytes)
    return (
        f"{full.fits}, {chance_text(intervals.fit_probability)}: {text}; the "
        f"upper end of the 50 % interval is {format_bytes(within_50.high, 1)}"
    )


def _speed(problem: Problem, verdict: Score, target: str) -> str:
    unit = problem.time_unit
    tokens = verdict.throughput_tokens_per_s
    each = verdict.throughput_tokens_per_s_per_device
    samples = verdict.throughput_samples_per_s
    if tokens is not None and each is not None:
        text = f"{digits(tokens, 4)} tokens/{unit}, {digits(each, 4)} per device"
    elif samples is not None:
        text = f"{digits(samples, 4)} samples/{unit}"
    else:
        return ""
    if verdict.mfu is None:
        return text
    from nest.validation.flop_rates import flop_rates_text

    return "; ".join(filter(None, (text, flop_rates_text(problem, verdict, target))))


def run_text(problem: Problem, plan: Plan, verdict: Score, wish: Wish) -> str:
    """Return how long a training run takes and what it costs."""
    run = run_facts(problem, verdict, wish)

    def around(amount: float, unit: str) -> str:
        text = f"{digits(amount, 3)} {unit}"
        intervals = intervals_of(problem, plan, verdict)
        if intervals is None:
            return text
        step_ns = verdict.step_time_ns
        ends = (amount * end / step_ns for end in intervals.step_90_ns)
        return f"{text} ({' – '.join(digits(end, 3) for end in ends)})"

    texts = []
    if run["days"] is not None:
        days = around(run["days"], "days")
        texts.append(f"{tokens_text(run['tokens'])} take {days}")
    elif wish.tokens is not None:
        texts.append("days unknown: no tokens per sample, or no seconds")
    usd, what = run["usd_per_run"], ""
    if usd is None:
        usd, what = run["usd_per_step"], " per step"
    if usd is not None:
        texts.append(around(usd, f"USD{what}"))
    return " and ".join(texts)


def tokens_text(tokens: float) -> str:
    """Return a number of tokens, in billions or trillions from one on."""
    for size, unit in ((1e12, "trillion "), (1e9, "billion "), (1.0, "")):
        if tokens >= size:
            return f"{digits(tokens / size, 4)} {unit}tokens"
    return f"{digits(tokens, 4)} tokens"


def degrees(problem: Problem, plan: Plan, num_micro_batches: int) -> str:
    """Return a plan as frameworks count it: its degrees and its batch."""
    degree_texts = [
        plan.degrees_text,
        f"micro-batch size {rank_text(plan)}, {count(num_micro_batches, 'microbatch')}",
    ]
    if plan.order is not None:
        named = isinstance(plan.order, str)
        degree_texts.append(f"passes in {plan.order if named else 'their own'} order")
    num_used = plan.replicas * plan.devices_used
    num_devices = problem.cluster.num_devices
    if num_used < num_devices:
        degree_texts.append(f"{num_used} of {num_devices} devices")
    if len({s for x in plan.stages for s in x.layer_strategies}) > 1:
        degree_texts.append("stages differ, see --verbose")
    return " · ".join(degree_texts)


def proven(problem: Problem, result: SolveResult, under: str = "") -> str:
    """Return what is proven of an answer, and of which plans."""
    among = f" under {under}" if under else ""
    if result.status is Status.OPTIMAL:
        return f"optimal among {plans_text(problem)}{among}"
    reason = note(result)
    because = f" ({reason})" if reason else ""
    if result.status is Status.INFEASIBLE:
        return f"infeasible: no plan{among} fits{because}"
    if result.outcome is not Outcome.SOLVED:
        return status_text(result) + because
    if result.gap is not None:
        plans = f"{plans_text(problem)}{among}"
        return f"within {percent(result.gap)} % of the best of {plans}{because}"
    return f"nothing proven, {status_text(result)}{among}{because}"


def plans_text(problem: Problem) -> str:
    """Return which plans a proof covers: their schedule and overlap."""
    job = problem.job
    overlap = ", ".join(job.overlap)
    overlapped = f"that overlap {overlap}" if overlap else "without overlap"
    if job.schedule == ANY_ORDER:
        return f"plans with any order of passes {overlapped}"
    schedules = [
        schedule_of(name, chunks)
        for name in job.schedules
        for chunks in (job.virtual_stages if name == "1f1b" else (1,))
    ]
    titles = " and ".join(dict.fromkeys(x.title for x in schedules))
    return f"{titles} plans {overlapped}"


def launch_text(problem: Problem, plan: Plan, target: Framework | None = None) -> str:
    """Return which frameworks run a plan, or why none does.

    Empty for problems that are not made from a model. ``target`` is the
    framework that the plan is for.
    """
    if target is not None:
        return f"--launch shows the arguments for {target.title}"
    if why_none(problem):
        return ""
    frameworks = _frameworks(problem, plan)
    if not frameworks:
        return f"nest writes no files for {problem.software}"
    able = [x.title for x, obstacles in frameworks if not obstacles]
    if able:
        return f"{', '.join(able)} can run it"
    near, obstacles = frameworks[0]
    if all(map(_is_of_bytes, obstacles)):
        rules = " and ".join(obstacle.rule for obstacle in obstacles)
        return f"{near.title} can run it, with {rules}"
    first = obstacles[0]
    return (
        f"no framework runs it as it is; {near.title}: {first.field}: expected "
        f"{first.rule}, got {first.value}. The nearest plan that {near.title} runs: "
        f"--target {near.name} --launch"
    )


def launch_texts(files: Mapping[str, str]) -> list[str]:
    """Return what starts a plan, for one screen.

    Of the files of :func:`nest.frameworks.export.export` those that hold
    arguments, several of them to a line, and then how to start it as comments.
    """
    scripts = [
        _packed(text)
        for name, text in files.items()
        if name not in ("README", "hostfile", "rank_map.json")
    ]
    _, *how = files["README"].splitlines()
    comments = [
        line
        for text in how
        for line in wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")
    ]
    return [*scripts[:-1], "\n".join((scripts[-1], *comments))]


def _packed(text: str) -> str:
    """Return a text with the members of a bash array side by side."""
    lines: list[str] = []
    inside = False
    for line in text.rstrip("\n").splitlines():
        inside = inside and line != ")"
        fits = inside and len(lines[-1]) + len(line.strip()) < WIDTH
        if fits and lines[-1].startswith("  -"):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        inside = inside or line == "ARGS=("
    return "\n".join(lines)


#: The schedule on a command line: another framework may not have it.
_SCHEDULE_OPTION = re.compile(r"\s--schedule[ =]\S+")


def launch_commands(
    problem: Problem, plan: Plan, named: str, restricted: str, path: str = ""
) -> str:
    """Return the commands that write what starts a plan.

    ``named`` names the problem on a command line, ``restricted`` its plans
    too, and ``path`` the plan; a plan without a file is solved again.
    """
    if why_none(problem):
        return ""
    frameworks = _frameworks(problem, plan)
    if not frameworks:
        return ""
    (near, obstacles), *_ = frameworks
    if obstacles:
        if any(obstacle.field == "schedule" for obstacle in obstacles):
            restricted = _SCHEDULE_OPTION.sub("", restricted)
        return f"nest solve {restricted} --target {near.name} --launch"
    solve = f"nest solve {restricted} --solver {plan.solver} -o plan.json\n"
    return (
        f"{'' if path else solve}"
        f"nest export {named} {path or 'plan.json'} --to {near.name} -o launch"
    )


def _frameworks(problem: Problem, plan: Plan) -> list[tuple[Framework, list[Obstacle]]]:
    """Return frameworks with what keeps them from a plan, the ablest first.

    Where the costs are those of a software, only the ones whose plans it runs.
    """
    from nest.models.stated import shape_of
    from nest.validation.software import entry_named, runs

    problem, plan = with_named_order(problem, plan)
    facts = entry_named(problem.software)
    frameworks = [
        framework_of(name)
        for name in names()
        if name != ANY and (facts is None or not facts.is_known or runs(facts, name))
    ]
    shape = shape_of(problem)
    pairs = [(x, inexpressible(x, problem, plan, shape)) for x in frameworks]

    def rank(pair: tuple[Framework, list[Obstacle]]) -> tuple[int, int]:
        return sum(not _is_of_bytes(x) for x in pair[1]), len(pair[1])

    return sorted(pairs, key=rank)


def _is_of_bytes(obstacle: Obstacle) -> bool:
    """Whether all that a framework does otherwise is to keep other bytes per weight."""
    return obstacle.field.startswith("optimizer.")


def orders_text(orders: Sequence[OtherOrder]) -> str:
    """Return what plans gain whose passes run in another order."""
    gains = [f"{signed_percent(x.fraction - 1)} ({x.option})" for x in orders]
    return f"other orders of passes: about {', '.join(gains)}" if gains else ""


def others_text(problem: Problem, step_quanta: int, others: Others) -> str:
    """Return what half the devices and changed settings cost."""
    texts = []
    if others.half is not None:
        ns = others.half.step_time_ns
        scale = TimeScale.fitting(ns, problem.time_unit)
        texts.append(f"half the devices: at most {scale.short(ns, 3)} per step")
    for change in others.changes[:_MOST_CHANGES]:
        assert change.score is not None
        longer = change.score.step_quanta / step_quanta - 1
        texts.append(f"{change.name}: {signed_percent(longer)}")
    omitted = "searches, see 'nest fit' and 'nest explain'"
    if not others.complete:
        omitted += ", and changes beyond the time for them"
    return f"{'; '.join(texts)}. Left out: {omitted}" if texts else ""
