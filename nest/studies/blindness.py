"""What a planner loses that does not see network, memory or gradient sync."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from nest.analysis.fit import most_memory_bytes, with_memory
from nest.errors import SolverError
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Capabilities, SolverOutput, Status
from nest.solvers.judge import judge
from nest.solvers.repair import repair
from nest.studies.solving import geometric_mean, prove, step_quanta
from nest.studies.study import Findings, Plot, Series, StudySetting, Value
from nest.studies.texts import read_texts
from nest.units import GB

TEXTS = read_texts("blindness")

#: Of the library: dense, MoE, encoder-decoder; tight and loose memory; slow,
#: fast and oversubscribed trees of at least two levels.
INSTANCES = (
    *("bert-large-a10gx16", "llama2-7b-dgx-a100x16"),
    *("llama2-7b-jean-zay-a100x16", "mixtral-8x7b-dgx-h100x16"),
    *("t5-11b-v100x16", "qwen3-30b-a3b-h800x16", "llama3-70b-dgx-h100x16"),
    *("gpt3-13b-jean-zay-v100x32", "gpt3-6.7b-v100x32"),
    *("llama2-13b-dgx-a100x32-leaf4", "llama3-8b-dgx-h100x32-leaf8"),
    *("mixtral-8x7b-jean-zay-a100x32", "gpt-neox-20b-a100-40gbx48"),
    *("gpt3-175b-dgx-a100x64", "llama2-70b-jean-zay-a100x64"),
    *("llama3-70b-dgx-h100x64-leaf4", "mixtral-8x22b-dgx-h100x64"),
)
QUICK_INSTANCES = (
    *("llama2-7b-jean-zay-a100x16", "qwen3-30b-a3b-h800x16"),
    *("gpt3-13b-jean-zay-v100x32", "llama3-8b-dgx-h100x32-leaf8"),
)

#: Seconds for one proof.
TIME_LIMIT_S = 60.0

#: Fraction of the gradient sync that remains. It decides between plans that
#: are equal without it.
SYNC_LEFT = 1e-6

#: What users of a planner do, the mildest first.
REMEDIES = ("recompute", "zero", "micro_batch")


def flat_fast(problem: Problem) -> Problem:
    """Return a problem on one switch, as fast as inside a node."""
    return _flat(problem, 0)


def flat_slow(problem: Problem) -> Problem:
    """Return a problem on one switch, as slow as the top level."""
    return _flat(problem, -1)


def _flat(problem: Problem, which: int) -> Problem:
    topology = problem.cluster.topology
    assert topology.kind == "hierarchy"
    joining = [level for level in topology.levels if level.fan_out > 1]
    level = replace(joining[which], fan_out=problem.cluster.num_devices)
    cluster = replace(problem.cluster, topology=replace(topology, levels=(level,)))
    return replace(problem, cluster=cluster)


def without_memory(problem: Problem) -> Problem:
    """Return a problem on devices that hold any plan."""
    enough = max(most_memory_bytes(problem), problem.cluster.memory_bytes())
    return with_memory(problem, enough)


def with_more_memory(problem: Problem) -> Problem:
    """Return a problem whose devices seem to hold a quarter more."""
    memory_bytes = problem.cluster.memory_bytes()
    return with_memory(problem, memory_bytes + memory_bytes // 4)


def without_sync(problem: Problem) -> Problem:
    """Return a problem whose gradient sync hides, all but a trace of it."""
    job = replace(problem.job, gradient_sync_overlap=1 - SYNC_LEFT)
    return replace(problem, job=job)


def blind_in_all(problem: Problem) -> Problem:
    """Return a problem without levels, memory limits and gradient sync."""
    return without_sync(without_memory(flat_fast(problem)))


VIEWS: Mapping[str, Callable[[Problem], Problem]] = {
    "topology, all fast": flat_fast,
    "topology, all slow": flat_slow,
    "memory": without_memory,
    "a fifth of the need": with_more_memory,
    "gradient sync": without_sync,
    "all three": blind_in_all,
}


class Cost(NamedTuple):
    """What a plan of a blind planner costs.

    ``over_bytes`` says by how much it exceeds the memory, 0 if it fits. ``loss`` says
    how far it lies above the optimum, repaired if need be, ``None`` if it could not be;
    ``belief`` how far above its planner takes it to be.
    """

    over_bytes: int
    repairs: str
    loss: float | None
    belief: float


def cost_of(problem: Problem, view: Problem, plan: Plan, best_quanta: int) -> Cost:
    """Score the optimum of another view of the problem.

    Raises ``SolverError`` if it is faster than the optimum, which then is none.
    """
    verdict = judge(
        problem,
        SolverOutput(status=Status.FEASIBLE, plan=plan),
        capabilities=Capabilities(exact=False, method="", overruns=True),
    )
    view_quanta = step_quanta(view, plan)
    assert view_quanta is not None
    belief = view_quanta / best_quanta - 1
    over, repairs = verdict.over_memory_bytes or 0, ""
    if over:
        verdict = repair(problem, verdict, REMEDIES)
        repairs = ", ".join(verdict.extra.get("repair", ()))
    if verdict.status is not Status.FEASIBLE:
        return Cost(over, "none helps", None, belief)
    step = step_quanta(problem, verdict.plan)
    if step is None or step < best_quanta:
        raise SolverError(
            f"{problem.name}: expected a plan no faster than the optimum of "
            f"{best_quanta} quanta, got {step}; report it"
        )
    return Cost(over, repairs, step / best_quanta - 1, belief)


def run(setting: StudySetting) -> Findings:
    """Score the optima of blind views."""
    rows: list[tuple[Value, ...]] = []
    by_view: dict[str, list[Cost | None]] = {view: [] for view in VIEWS}
    for instance in setting.instances(INSTANCES, QUICK_INSTANCES):
        problem = instance.problem
        setting.say(instance.name)
        best = prove(problem, TIME_LIMIT_S)
        best_quanta = step_quanta(problem, best)
        for view, blinded in VIEWS.items():
            setting.say(f"{instance.name}, blind to {view}")
            seen = blinded(problem)
            plan = prove(seen, TIME_LIMIT_S)
            if best_quanta is None or plan is None:
                by_view[view].append(None)
                rows.append((instance.name, view, *[None] * 3, "not proven"))
                continue
            cost = cost_of(problem, seen, plan, best_quanta)
            by_view[view].append(cost)
            figures = cost.belief, cost.loss, cost.over_bytes / GB
            rows.append((instance.name, view, *figures, cost.repairs))
    return report(rows, by_view)


def report(
    rows: Sequence[Sequence[Value]], by_view: Mapping[str, Sequence[Cost | None]]
) -> Findings:
    """Return what the costs of all plans say."""
    summary: list[tuple[Value, ...]] = []
    answers, series = [], []
    for view, all_costs in by_view.items():
        costs = [cost for cost in all_costs if cost is not None]
        losses = sorted(1 + cost.loss for cost in costs if cost.loss is not None)
        fitting = sum(not cost.over_bytes for cost in costs)
        mean = geometric_mean(losses)
        believed = geometric_mean(1 + cost.belief for cost in costs)
        counts = len(costs), fitting, len(losses) - fitting, len(costs) - len(losses)
        ratios = believed, mean, max(losses, default=None)
        excesses = (None if ratio is None else ratio - 1 for ratio in ratios)
        summary.append((view, *counts, *excesses))
        shares = [(ratio, count / len(costs)) for count, ratio in enumerate(losses, 1)]
        series.append(Series(view, shares))
        if mean is None:
            answers.append(
                f"Blind to {view}: none of {len(costs)} plans fits, nor "
                f"does any after repair."
            )
            continue
        text = (
            f"Blind to {view}: {mean - 1:.1%} slower than the optimum in the "
            f"geometric mean, {losses[-1] - 1:.0%} at most"
        )
        if fitting < len(costs):
            text += (
                f"; {len(costs) - fitting} of {len(costs)} plans do not fit, "
                f"{len(losses) - fitting} of them do after repair"
            )
        answers.append(f"{text}.")
    return Findings(
        answers=answers,
        tables=(TEXTS.table("views", summary), TEXTS.table("plans", rows)),
        plot=Plot(
            "What blindness costs",
            "times the optimal step time",
            "share of instances",
            series,
            log="x",
        ),
    )


STUDY = TEXTS.study("blindness", run)
