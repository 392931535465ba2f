"""What more search buys."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import SolveOptions, Status
from nest.solvers.run import run_solver
from nest.studies.solving import geometric_mean, ratio, step_quanta, usable
from nest.studies.study import Findings, Plot, Series, StudySetting
from nest.studies.texts import read_texts

TEXTS = read_texts("effort")

#: Seconds for the search of a planner or an integer program, and for a proof.
TIME_LIMIT_S, PROOF_LIMIT_S = 20.0, 60.0

SOLVERS = (
    *("megatron", "galvatron", "alpa", "phaze", "piper", "uniap", "mcmc"),
    *("random", "milp", "cpsat"),
)
QUICK_SOLVERS = ("megatron", "galvatron", "alpa", "phaze")
INSTANCES = (
    *("bert-large-a10gx16", "qwen3-30b-a3b-h800x16"),
    *("mixtral-8x7b-jean-zay-a100x32", "llama3-8b-dgx-h100x32-leaf8"),
    *("gpt-neox-20b-a100-40gbx48", "gpt3-175b-dgx-a100x64"),
    "mixtral-8x22b-dgx-h100x64",
)
QUICK_INSTANCES = ("qwen3-30b-a3b-h800x16", "llama3-8b-dgx-h100x32-leaf8")

#: Distances to the optimum that ``dp`` passes on its way.
WITHIN = (0.05, 0.01, 0.0)


class Trace(NamedTuple):
    """The plans of ``dp`` over time.

    ``plans`` has seconds and shared score, rescored, of every plan that was better than
    those before. ``best_quanta`` is ``None`` if the optimum was not proven.
    """

    plans: Sequence[tuple[float, int]]
    best_quanta: int | None
    wall_s: float

    def within(self, distance: float) -> float | None:
        """Return when a plan was so close to the optimum."""
        if self.best_quanta is None:
            return None
        limit = self.best_quanta * (1 + distance)
        return next((time for time, step in self.plans if step <= limit), None)

    def at(self, time_s: float) -> int | None:
        """Return the best step time after so long."""
        return min((step for time, step in self.plans if time <= time_s), default=None)


def traced(problem: Problem) -> Trace:
    """Let ``dp`` prove the optimum with one worker; note what it reports."""
    reported: list[tuple[float, Plan | None]] = []
    options = SolveOptions(time_limit_s=PROOF_LIMIT_S)
    result = run_solver(
        problem,
        "dp",
        options,
        on_report=lambda time_s, x: reported.append((time_s, x.plan)),
    )
    plans: list[tuple[float, int]] = []
    step = None
    for time_s, plan in (*reported, (result.wall_s, result.plan)):
        step = step_quanta(problem, plan)
        if step is not None and (not plans or step < plans[-1][1]):
            plans.append((time_s, step))
    proven = result.status is Status.OPTIMAL
    return Trace(plans, step if proven else None, result.wall_s)


class _Search(NamedTuple):
    """A row of table ``cells``; ratios are to the optimum."""

    instance: str
    solver: str
    wall_s: float
    ratio: float | None
    dp_ratio: float | None
    note: str

    @property
    def dp_as_good(self) -> bool:
        """Whether ``dp`` had a plan at least as good by then."""
        if self.dp_ratio is None:
            return False
        return self.ratio is None or self.dp_ratio <= self.ratio


def run(setting: StudySetting) -> Findings:
    """Time all solvers, and follow ``dp``."""
    solvers = QUICK_SOLVERS if setting.quick else SOLVERS
    options = SolveOptions(time_limit_s=TIME_LIMIT_S)
    traces: dict[str, Trace] = {}
    rows: list[tuple[Any, ...]] = []
    for instance in setting.instances(INSTANCES, QUICK_INSTANCES):
        problem = instance.problem
        setting.say(f"{instance.name}: dp")
        trace = traces[instance.name] = traced(problem)
        for solver in solvers:
            setting.say(f"{instance.name}: {solver}")
            result = run_solver(problem, solver, options)
            plan = usable(problem, result)
            steps = plan.step_quanta, trace.at(result.wall_s)
            ratios = (ratio(step, trace.best_quanta) for step in steps)
            rows.append((instance.name, solver, result.wall_s, *ratios, plan.note))
    return report(traces, rows)


def report(traces: dict[str, Trace], rows: Sequence[tuple[Any, ...]]) -> Findings:
    """Return what times and ratios say."""
    by_solver: dict[str, list[_Search]] = {}
    for search in map(_Search._make, rows):
        by_solver.setdefault(search.solver, []).append(search)
    solvers, points = [], []
    for solver, searches in by_solver.items():
        usable_plans = [(x.wall_s, x.ratio) for x in searches if x.ratio is not None]
        median_s = median(search.wall_s for search in searches)
        mean = geometric_mean(ratio for _, ratio in usable_plans)
        matched = sum(search.dp_as_good for search in searches)
        counts = len(searches), median_s, len(usable_plans)
        solvers.append((solver, *counts, mean, matched))
        points.append(Series(solver, usable_plans))
    dp_rows = [
        [
            name,
            trace.plans[0][0] if trace.plans else None,
            *(trace.within(distance) for distance in WITHIN),
            trace.wall_s if trace.best_quanta is not None else None,
        ]
        for name, trace in traces.items()
    ]
    proofs = [
        (trace.wall_s, 1.0)
        for trace in traces.values()
        if trace.best_quanta is not None
    ]
    return Findings(
        answers=_answers(traces, by_solver),
        tables=(
            TEXTS.table("solvers", solvers, limit_s=TIME_LIMIT_S),
            TEXTS.table("dp", dp_rows),
            TEXTS.table("cells", rows),
        ),
        plot=Plot(
            "Search time and quality",
            "seconds",
            "times the optimal step time",
            [*points, Series("dp, proof", proofs)],
            kind="points",
            log="x",
        ),
    )


def _answers(
    traces: dict[str, Trace], by_solver: dict[str, list[_Search]]
) -> list[str]:
    proven = sum(trace.best_quanta is not None for trace in traces.values())
    matched = ", ".join(
        f"{solver} ({sum(x.dp_as_good for x in of_solver)} of {len(of_solver)})"
        for solver, of_solver in by_solver.items()
    )
    searches = [search for of_solver in by_solver.values() for search in of_solver]
    planned = [search for search in searches if search.ratio is not None]
    early = sum(search.dp_ratio is None for search in planned)
    better = sum(not search.dp_as_good for search in planned) - early
    answers = [
        f"`dp` proves the optimum on {proven} of {len(traces)} instances, in "
        f"{median(trace.wall_s for trace in traces.values()):.1f} s in the median.",
        f"Stopped when a planner ends, `dp` has a plan at least as good as "
        f"that planner's, repaired: {matched}.",
        f"Of the searches that end with a better plan than it has by then, "
        f"{early} end before it has any, {better} after that.",
    ]
    times = [trace.within(0.01) for trace in traces.values()]
    close_s = [time for time in times if time is not None]
    if close_s:
        answers.append(
            f"It is within 1 % of the optimum after {median(close_s):.1f} s "
            f"in the median, {max(close_s):.1f} s at most."
        )
    return answers


STUDY = TEXTS.study("effort", run)
