"""What more search buys."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from nest.benchmarks.instances import find_set
from nest.ir.problem import Problem
from nest.solvers.base import Progress, SolveOptions, Status
from nest.solvers.run import run_solver
from nest.studies.solving import geometric_mean, step_quanta, usable
from nest.studies.study import (
    Column,
    Findings,
    Plot,
    Series,
    Setting,
    Study,
    Table,
    Value,
)

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
QUICK_INSTANCES = (*("qwen3-30b-a3b-h800x16", "llama3-8b-dgx-h100x32-leaf8"),)

#: Distances to the optimum that ``dp`` passes on its way.
WITHIN = (0.05, 0.01, 0.0)


class Trace(NamedTuple):
    """What ``dp`` had when.

    Attributes
    ----------
    plans
        Seconds, and the shared score of the plan, rescored, of every plan
        that was better than those before.
    best_quanta
        The optimum; ``None`` if it was not proven.
    wall_s
        Until the end.
    """

    plans: Sequence[tuple[float, int]]
    best_quanta: int | None
    wall_s: float

    def within(self, distance: float) -> float | None:
        """Return when a plan was so close to the optimum."""
        if self.best_quanta is None:
            return None
        most = self.best_quanta * (1 + distance)
        return next((time for time, step in self.plans if step <= most), None)

    def at(self, time_s: float) -> int | None:
        """Return the best step time after so long."""
        return min(
            (step for time, step in self.plans if time <= time_s), default=None
        )


def traced(problem: Problem) -> Trace:
    """Let ``dp`` prove the optimum with one worker; note what it reports."""
    reported: list[tuple[float, Progress]] = []

    def note(time_s: float, progress: Progress) -> None:
        if progress.plan is not None:
            reported.append((time_s, progress))

    options = SolveOptions(time_limit_s=PROOF_LIMIT_S)
    found = run_solver(problem, "dp", options, on_report=note)
    plans: list[tuple[float, int]] = []
    for time_s, progress in reported:
        step = step_quanta(problem, progress.plan)
        if step is not None and (not plans or step < plans[-1][1]):
            plans.append((time_s, step))
    step = step_quanta(problem, found.plan)
    if step is not None and (not plans or step < plans[-1][1]):
        plans.append((found.wall_s, step))
    proven = found.status is Status.OPTIMAL
    return Trace(plans, step if proven else None, found.wall_s)


def run(setting: Setting) -> Findings:
    """Time all solvers, and follow ``dp``."""
    names = QUICK_INSTANCES if setting.quick else INSTANCES
    solvers = QUICK_SOLVERS if setting.quick else SOLVERS
    options = SolveOptions(time_limit_s=TIME_LIMIT_S)
    traces: dict[str, Trace] = {}
    rows: list[tuple[Value, ...]] = []
    for instance in setting.each(find_set(list(names))):
        problem = instance.problem
        setting.say(f"{instance.name}: dp")
        trace = traces[instance.name] = traced(problem)
        for solver in solvers:
            setting.say(f"{instance.name}: {solver}")
            found = run_solver(problem, solver, options)
            left = usable(problem, found)
            rows.append(
                (
                    instance.name,
                    solver,
                    found.wall_s,
                    ratio(left.step_quanta, trace.best_quanta),
                    ratio(trace.at(found.wall_s), trace.best_quanta),
                    left.note,
                )
            )
    return report(traces, rows)


def ratio(step: int | None, best: int | None) -> float | None:
    """Return a step over the optimum, if both are known."""
    return None if step is None or not best else step / best


def report(
    traces: dict[str, Trace], rows: Sequence[Sequence[Value]]
) -> Findings:
    """Return what times and ratios say."""
    solvers = list(dict.fromkeys(str(row[1]) for row in rows))
    summary: list[list[Value]] = []
    for solver in solvers:
        own = [row for row in rows if row[1] == solver]
        times = [float(row[2]) for row in own if isinstance(row[2], float)]
        ratios = [float(row[3]) for row in own if isinstance(row[3], float)]
        same = sum(
            row[4] is not None and (row[3] is None or _at_most(row[4], row[3]))
            for row in own
        )
        summary.append(
            [
                solver,
                len(own),
                median(times),
                len(ratios),
                geometric_mean(ratios),
                same,
            ]
        )
    way = [
        [
            name,
            trace.plans[0][0] if trace.plans else None,
            *(trace.within(distance) for distance in WITHIN),
            trace.wall_s if trace.best_quanta is not None else None,
        ]
        for name, trace in traces.items()
    ]
    proven = sum(trace.best_quanta is not None for trace in traces.values())
    beaten = [f"{row[0]} ({row[5]} of {row[1]})" for row in summary]
    answers = [
        f"`dp` proves the optimum on {proven} of {len(traces)} instances, in "
        f"{median(trace.wall_s for trace in traces.values()):.1f} s in the "
        f"median.",
        "Stopped when a planner ends, `dp` has a plan at least as good as "
        f"that planner's, repaired: {', '.join(beaten)}.",
    ]
    early = [row for row in rows if row[3] is not None and row[4] is None]
    others = sum(
        isinstance(row[3], float)
        and isinstance(row[4], float)
        and row[4] > row[3]
        for row in rows
    )
    answers.append(
        f"Of the searches that end with a better plan than it has by then, "
        f"{len(early)} end before it has any, {others} after that."
    )
    close = [t.within(0.01) for t in traces.values()]
    known = [time for time in close if time is not None]
    if known:
        answers.append(
            f"It is within 1 % of the optimum after {median(known):.1f} s in "
            f"the median, {max(known):.1f} s at most."
        )
    points = [
        Series(
            solver,
            [
                (row[2], row[3])
                for row in rows
                if row[1] == solver
                and isinstance(row[2], float)
                and isinstance(row[3], float)
            ],
        )
        for solver in solvers
    ]
    proofs = [
        (trace.wall_s, 1.0)
        for trace in traces.values()
        if trace.best_quanta is not None
    ]
    return Findings(
        answers=answers,
        tables=(
            Table(
                "solvers",
                "Solvers",
                f"At most {TIME_LIMIT_S:g} s each, one worker, start of the "
                f"process included. Ratios are of plans that fit, repaired if "
                f"need be.",
                (
                    Column("solver", "solver"),
                    Column("instances", "instances", "d"),
                    Column("wall_s", "seconds: median", ".2f"),
                    Column("usable", "usable plans", "d"),
                    Column("ratio", "over the optimum: mean", ".3f"),
                    Column("dp_as_good", "dp as good by then", "d"),
                ),
                summary,
            ),
            Table(
                "dp",
                "The way of `dp`",
                "Seconds until the first plan, until plans so close to the "
                "optimum, and until the proof; one worker.",
                (
                    Column("instance", "instance"),
                    Column("first_s", "first plan", ".2f"),
                    *(
                        Column(
                            f"within_{100 * x:g}_percent_s",
                            f"within {100 * x:g} %" if x else "optimum",
                            ".2f",
                        )
                        for x in WITHIN
                    ),
                    Column("proof_s", "proof", ".2f"),
                ),
                way,
            ),
            Table(
                "cells",
                "Every search",
                "The last ratio is what `dp` had after the same time.",
                (
                    Column("instance", "instance"),
                    Column("solver", "solver"),
                    Column("wall_s", "seconds", ".2f"),
                    Column("ratio", "over the optimum", ".3f"),
                    Column("dp_ratio", "dp by then", ".3f"),
                    Column("note", "note"),
                ),
                rows,
            ),
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


def _at_most(value: Value, limit: Value) -> bool:
    return (
        isinstance(value, float)
        and isinstance(limit, float)
        and value <= limit
    )


STUDY = Study(
    name="effort",
    question="What does more search buy, and how fast?",
    method=(
        "Every planner and integer program searches the same instances in a "
        "process of its own with one worker. `dp` proves the optimum with one "
        "worker too; what it reports on its way is scored again and tells "
        "what it had after the time that a planner took."
    ),
    quick="Two instances and four planners.",
    limits=(
        "Seconds are of one machine, which may have done other things; the "
        "order of magnitude is what counts.",
        "Start of the process (imports, cost tables) is in every time, and is "
        "most of it for the fastest.",
        "Planners are re-implementations on shared cost tables. The authors' "
        "programs also profile or compile, which takes minutes to hours and "
        "is not in these times.",
        "In full, seven instances of 16 to 64 devices.",
    ),
    run=run,
)
