"""Exact frontiers against planners that get one memory budget at a time.

For every problem the frontier of step time and memory is traced once, up to the largest
budget. For every budget a Galvatron-style planner and one by the hand rules of
Megatron-LM plan for devices with so much memory, and the best uniform plan is found by
scoring all of them: every stage alike, the layers split evenly, all devices in use. The
curve must lie on or below every one of these plans that fits: at the budget, and at
what the plan holds. Writes ``bench/results/budgets.json``, prints a table; exits with 1
if a plan lies below a curve.

    python bench/budgets.py [--problem NAME ...] [--granularity stage|layer]
                            [--time-limit S]
"""

from __future__ import annotations

import argparse
import sys
from typing import cast

from msgspec.structs import replace
from result_files import write_rows

from baselines.common import even_split, make_plan
from nest.analysis.fit import with_memory
from nest.analysis.pareto import Curve, frontier
from nest.benchmarks.instances import Recipe, build
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import batch_splits, strategies
from nest.errors import InvalidPlanError
from nest.ir.job import Granularity
from nest.ir.problem import Problem
from nest.solvers.base import SolveOptions, Status
from nest.solvers.run import run_solver
from nest.units import MAX_TOTAL

#: Bytes per device.
BUDGETS = (16 * 10**9, 24 * 10**9, 36 * 10**9, 80 * 10**9)
PLANNERS = ("galvatron", "megatron")
UNIFORM = "uniform"

#: Model, cluster, granularities.
PROBLEMS: dict[str, tuple[str, str, tuple[Granularity, ...]]] = {
    "llama2-7b-8": ("llama2-7b", "h100x8", ("stage", "layer")),
    "llama2-13b-32": ("llama2-13b", "h100x32", ("stage",)),
    "llama2-70b-64": ("llama2-70b", "h100x64", ("stage",)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--problem", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--time-limit", type=float, default=120)
    options = parser.parse_args()
    rows = []
    below = False
    print(
        f"{'problem':14} {'per':5} {'GB':>3} {'curve s':>9} "
        + " ".join(f"{name:>9}  above" for name in (*PLANNERS, UNIFORM))
    )
    for name in options.problem:
        for granularity in PROBLEMS[name][2]:
            problem = load(name, granularity)
            found = frontier(
                with_memory(problem, max(BUDGETS)), time_limit_s=options.time_limit
            )
            (curve,) = found.curves
            plans = uniform_plans(problem)
            print(
                f"{name:14} {granularity:5} {len(curve.points)} points in "
                f"{curve.wall_s:.1f} s, "
                f"{'proven' if curve.proven else 'not all proven'}",
                flush=True,
            )
            for budget in BUDGETS:
                row = compare(problem, curve, plans, budget, options.time_limit)
                below |= row["beaten"] is True
                rows.append({"problem": name, **row})
                print(describe(rows[-1]), flush=True)
    write_rows("budgets", rows)
    sys.exit(below)


def load(name: str, granularity: Granularity) -> Problem:
    model, cluster, _ = PROBLEMS[name]
    problem = build(Recipe(model=model, cluster=cluster))
    job = replace(problem.job, granularity=granularity)
    return replace(problem, job=job)


def uniform_plans(problem: Problem) -> list[tuple[int, int]]:
    """Return step time and memory of every uniform plan."""
    model = CostModel(problem)
    num_devices = problem.cluster.num_devices
    num_layers = len(problem.graph.layers)
    plans = []
    for case in batch_splits(problem):
        for strategy in strategies(problem, case.micro_batch):
            used = case.replicas * strategy.devices
            num_stages = num_devices // used
            if num_devices % used or num_stages > num_layers:
                continue
            ranges = even_split(num_layers, num_stages)
            plan = make_plan(problem, case, [(*r, strategy) for r in ranges])
            try:
                verdict = score(problem, plan, model)
            except InvalidPlanError:  # a layer has no such cost
                continue
            memory = max(block.memory_bytes for block in verdict.blocks)
            plans.append((verdict.step_quanta, memory))
    return plans


def compare(
    problem: Problem,
    curve: Curve,
    plans: list[tuple[int, int]],
    budget: int,
    time_limit_s: float,
) -> dict[str, object]:
    """Run the planners on devices with so much memory."""
    options = SolveOptions(time_limit_s=time_limit_s)
    point = curve.at_most(budget)
    best = None if point is None else point.step_quanta
    proven = is_proven(curve, budget, MAX_TOTAL if best is None else best - 1)
    if not proven:
        optimum = run_solver(with_memory(problem, budget), "dp", options)
        proven = optimum.status in (Status.OPTIMAL, Status.INFEASIBLE)
        if optimum.step_quanta is not None:
            best = min(optimum.step_quanta, best or optimum.step_quanta)
    row: dict[str, object] = {
        "granularity": problem.job.granularity,
        "budget_bytes": budget,
        "curve_s": None if best is None else seconds(best),
        "curve_s_proven": proven,
        "curve_proven": curve.proven,
        "curve_points": len(curve.points),
        "curve_wall_s": round(curve.wall_s, 3),
        "gaps": len(curve.gaps),
        # by a plan of a planner: never, where the curve is proven
        "beaten": False,
        "beaten_where_open": False,
    }
    fitting = [plan for plan in plans if plan[1] <= budget]
    answers: dict[str, tuple[str, tuple[int, int] | None]] = {
        UNIFORM: ("feasible", min(fitting)) if fitting else ("none fits", None)
    }
    for planner in PLANNERS:
        result = run_solver(with_memory(problem, budget), planner, options)
        status = str(result.status or result.outcome)
        answers[planner] = (status, None)
        if result.step_quanta is not None and result.score is not None:
            memory = max(block.memory_bytes for block in result.score.blocks)
            answers[planner] = (status, (result.step_quanta, memory))
    for planner, (status, answer) in answers.items():
        row[f"{planner}_status"] = status
        row[f"{planner}_s"] = row[f"{planner}_above"] = None
        if answer is None:
            continue
        step, memory = answer
        row[f"{planner}_s"] = seconds(step)
        row[f"{planner}_memory_bytes"] = memory
        if best is not None:
            row[f"{planner}_above"] = step / best - 1
        if best is None or best > step:
            row["beaten" if proven else "beaten_where_open"] = True
        at_plan = curve.at_most(memory)
        if at_plan is None or at_plan.step_quanta > step:
            open_ = not is_proven(curve, memory, step)
            row["beaten_where_open" if open_ else "beaten"] = True
    return row


def is_proven(curve: Curve, memory_bytes: int, step_quanta: int) -> bool:
    """Whether the curve rules out such a plan if it does not have it."""
    return not any(
        gap.above_bytes < memory_bytes and gap.lower_bound_quanta <= step_quanta
        for gap in curve.gaps
    )


def seconds(quanta: int) -> float:
    return quanta / 1e9


def describe(row: dict[str, object]) -> str:
    cells = [
        f"{row['problem']:14} {row['granularity']:5} "
        f"{cast('int', row['budget_bytes']) / 1e9:3.0f} "
        f"{number(row['curve_s'], '9.3f')}"
    ]
    for planner in (*PLANNERS, UNIFORM):
        step = number(row[f"{planner}_s"], "9.3f")
        if row[f"{planner}_s"] is None:
            step = f"{row[f'{planner}_status']:>9}"
        cells.append(f"{step} {number(row[f'{planner}_above'], '6.1%')}")
    if row["beaten"]:
        cells.append("BELOW THE CURVE")
    if row["beaten_where_open"]:
        cells.append("below what is known of the curve")
    if not row["curve_s_proven"]:
        cells.append("curve not proven here")
    return " ".join(cells)


def number(value: object, form: str) -> str:
    if value is None:
        return " " * int(form.partition(".")[0])
    return format(value, form)


if __name__ == "__main__":
    main()
