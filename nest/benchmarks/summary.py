"""What came of a run: the ``nest-bench/1`` document.

It has two parts. ``answers`` is what solvers found and proved: it is the same
for every run of the same cells, however they were run, as long as no cell hit
a limit. ``times`` is what was measured.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any

from msgspec.structs import asdict

from nest.benchmarks import statistics
from nest.benchmarks.cells import BenchmarkSpec
from nest.benchmarks.rows import ProblemSummary, Row, known
from nest.benchmarks.statistics import Steps
from nest.solvers.base import Status
from nest.solvers.result import Outcome

SCHEMA = "nest-bench/1"

#: Seconds added to times before their geometric mean is taken.
SHIFT_S = 1.0

#: What a run without an answer counts as, in time limits.
PENALTIES = (1, 10)

#: A plan is close to the best if it takes at most so much longer.
CLOSE = 0.01

#: What is known of problems, by their hashes.
Facts = Mapping[str, ProblemSummary]

#: Points of the mean gap over time.
_GAP_POINTS = 100


def to_document(run: BenchmarkSpec, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the document of a run, finished or not."""
    facts = known(rows)
    whole = _whole(run, rows)
    by_solver = {s: [row for row in rows if row.solver == s] for s in run.solvers}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "run": _run(run),
        "answers": {
            "cells": run.size,
            "finished": len(rows),
            "problems": _problems(run, rows, facts),
            "solvers": [_answers(s, by_solver[s], facts) for s in run.solvers],
            "pairs": _pairs(run, rows),
            "step_time_profile": _profile(whole, facts),
            "rows": [_answer(row, facts[row.entry.hash]) for row in rows],
        },
        "times": {
            "shift_s": SHIFT_S,
            "penalties": list(PENALTIES),
            "close": CLOSE,
            "hosts": sorted({row.host for row in rows} - {""}),
            "sharing_cpus": sum(row.shares_cpus for row in rows),
            "solvers": [_times(run, s, by_solver[s], facts) for s in run.solvers],
            "proof_time_profile": _proof_profile(whole),
            "cactus": _cactus(by_solver, facts),
            "gap_over_time": _gaps(run, by_solver, facts),
            "rows": [_time(row) for row in rows],
        },
    }
    grid = _grid(rows)
    if grid:
        document["answers"]["sweep"] = grid
    return document


def _run(run: BenchmarkSpec) -> dict[str, Any]:
    """Return what a run shall do, without the descriptions of planners."""
    fields = asdict(run)
    del fields["planners"]
    problems = [
        {
            "name": entry.name,
            "hash": entry.hash,
            "source": entry.source,
            "best_quanta_before": entry.best_quanta,
            "axes": entry.axes,
        }
        for entry in run.problems
    ]
    lists = {name: list(fields[name]) for name in ("solvers", "seeds", "notes")}
    return {**fields, "problems": problems, **lists}


# Answers


def _problems(
    run: BenchmarkSpec, rows: Sequence[Row], facts: Facts
) -> list[dict[str, Any]]:
    some = {row.entry.hash: row for row in rows}
    finished = [(some[x.hash], facts[x.hash]) for x in run.problems if x.hash in some]
    return [
        {
            "problem": row.problem,
            "time_unit": row.time_unit,
            "best_step_time_ns": row.in_ns(fact.best_quanta),
            "best_by": list(fact.by),
            "lower_bound_ns": row.in_ns(fact.bound_quanta),
            "infeasible": fact.infeasible,
            "closed": fact.closed,
            "proven_by": list(fact.proven_by),
        }
        for row, fact in finished
    ]


def _answers(solver: str, rows: Sequence[Row], facts: Facts) -> dict[str, Any]:
    ratios = [
        row.step_quanta / best
        for row in rows
        if row.step_quanta is not None and (best := facts[row.entry.hash].best_quanta)
    ]
    solvable = [row for row in rows if not facts[row.entry.hash].infeasible]
    return {
        "solver": solver,
        "exact": any(row.exact for row in rows),
        "cells": len(rows),
        "outcomes": dict(sorted(Counter(row.word for row in rows).items())),
        "failed": sum(row.outcome.failed for row in rows),
        "proven": sum(row.proven for row in rows),
        "best": sum(
            row.step_quanta is not None
            and row.step_quanta == facts[row.entry.hash].best_quanta
            for row in rows
        ),
        "close": sum(ratio <= 1 + CLOSE for ratio in ratios),
        "with_plan": len(ratios),
        "solvable": len(solvable),
        "over_best": None
        if not ratios
        else {
            "geometric_mean": statistics.shifted_geometric_mean(ratios, 0.0),
            "median": median(ratios),
            "max": max(ratios),
        },
    }


def _pairs(run: BenchmarkSpec, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return how often a solver beats another, one problem one voice.

    A solver's voice is the median of its seeds; no plan loses to any.
    """
    steps: dict[str, dict[str, list[float]]] = {s: {} for s in run.solvers}
    for row in rows:
        step = math.inf if row.step_quanta is None else row.step_quanta
        steps[row.solver].setdefault(row.entry.hash, []).append(step)
    return [
        _pair(one, other, steps[one], steps[other], len(run.seeds))
        for one, other in combinations(run.solvers, 2)
    ]


def _pair(
    one: str,
    other: str,
    mine: Mapping[str, list[float]],
    theirs: Mapping[str, list[float]],
    seeds: int,
) -> dict[str, Any]:
    wins = ties = losses = neither = 0
    logs = []
    for key, steps in mine.items():
        against = theirs.get(key, [])
        if not len(steps) == len(against) == seeds:
            continue
        a, b = statistics.upper_median(steps), statistics.upper_median(against)
        if a == b == math.inf:
            neither += 1
        else:
            wins, ties, losses = (wins + (a < b), ties + (a == b), losses + (a > b))
        both = [
            math.log(x / y)
            for x, y in zip(steps, against, strict=True)
            if max(x, y) < math.inf and min(x, y) > 0
        ]
        if both:
            logs.append(both)
    low, high = statistics.wilson(wins, wins + losses)
    ratio = statistics.bootstrap_mean(logs) if logs else None
    return {
        "solver": one,
        "against": other,
        "wins": wins,
        "ties": ties,
        "losses": losses,
        "neither": neither,
        "win_share": wins / (wins + losses) if wins + losses else None,
        "win_share_95": [low, high],
        "sign_test_p": statistics.sign_test(wins, losses),
        "problems_with_both": len(logs),
        "step_time_ratio": ratio and math.exp(ratio.value),
        "step_time_ratio_95": ratio and [math.exp(ratio.low), math.exp(ratio.high)],
    }


def _answer(row: Row, fact: ProblemSummary) -> dict[str, Any]:
    over = None
    if row.step_quanta is not None and fact.best_quanta:
        over = row.step_quanta / fact.best_quanta
    return {
        "problem": row.problem,
        "solver": row.solver,
        "seed": row.cell.seed,
        "outcome": str(row.outcome),
        "status": None if row.status is None else str(row.status),
        "limit": None if row.limit is None else str(row.limit),
        "step_time_ns": row.step_time_ns,
        "step_time_quanta": row.step_quanta,
        "over_best": over,
        "lower_bound_ns": row.lower_bound_ns,
        "lower_bound_quanta": row.bound_quanta,
        "over_memory_bytes": row.over_memory_bytes,
        "own_objective_ns": row.own_objective_ns,
        # What a limit cut short may differ the next time: it is told with the times.
        "detail": f"ended by the {row.limit} limit, see times"
        if row.limit is not None
        else row.detail,
    }


def _grid(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return step times of a sweep by bandwidth, and what it buys."""
    groups: dict[tuple[Any, ...], dict[float, Row]] = defaultdict(dict)
    for row in rows:
        axes = dict(row.entry.axes)
        if "bandwidth" in axes:
            factor = float(axes.pop("bandwidth"))
            key = (*axes.items(), ("solver", row.solver), ("seed", row.cell.seed))
            groups[key][factor] = row
    grid = []
    for key, by_factor in groups.items():
        base = 1.0 if 1.0 in by_factor else min(by_factor)
        first = by_factor[base].step_quanta
        bandwidths = [
            {
                "factor": factor,
                "status": row.word,
                "step_time_ns": row.step_time_ns,
                "speed_up": first / row.step_quanta
                if first and row.step_quanta
                else None,
            }
            for factor, row in sorted(by_factor.items())
        ]
        grid.append({**dict(key), "base": base, "bandwidths": bandwidths})
    return grid


# Times


def _times(
    run: BenchmarkSpec, solver: str, rows: Sequence[Row], facts: Facts
) -> dict[str, Any]:
    answered = [row for row in rows if _answered(row, facts[row.entry.hash])]
    integrals = [
        statistics.primal_integral(
            [(point.wall_s, point.step_quanta) for point in row.trace],
            best,
            run.time_limit_s or 0.0,
        )
        for row, best in _measured(run, rows, facts)
    ]
    return {
        "solver": solver,
        "cells": len(rows),
        "answered": len(answered),
        "wall_s": {
            "sum": sum(row.wall_s for row in rows),
            "max": max((row.wall_s for row in rows), default=0.0),
        },
        "cpu_s": sum(row.cpu_s or 0.0 for row in rows),
        "peak_rss_bytes": max((x.peak_rss_bytes or 0 for x in rows), default=0),
        "shifted_geometric_mean_s": {
            str(penalty): _mean_s(run, rows, answered, penalty) for penalty in PENALTIES
        },
        "primal_integral": math.fsum(integrals) / len(integrals) if integrals else None,
        "primal_integral_cells": len(integrals),
    }


def _answered(row: Row, fact: ProblemSummary) -> bool:
    """Whether it ended by itself, with a plan, or rightly with none."""
    if row.outcome is not Outcome.SOLVED or row.limit is not None:
        return False
    if row.status is Status.NO_SOLUTION:
        return fact.infeasible
    return row.status is not Status.OVER_MEMORY


def _mean_s(
    run: BenchmarkSpec, rows: Sequence[Row], answered: Sequence[Row], penalty: int
) -> float | None:
    """Return the mean time; none where a penalty is due without a limit."""
    unanswered = len(rows) - len(answered)
    if not rows or (unanswered and run.time_limit_s is None):
        return None
    worst = penalty * (run.time_limit_s or 0.0)
    walls = [row.wall_s for row in answered]
    return statistics.shifted_geometric_mean([*walls, *[worst] * unanswered], SHIFT_S)


def _measured(
    run: BenchmarkSpec, rows: Iterable[Row], facts: Facts
) -> list[tuple[Row, int]]:
    """Return cells for which the gap over time means something."""
    if run.time_limit_s is None:
        return []
    return [
        (row, best)
        for row in rows
        if (best := facts[row.entry.hash].best_quanta) is not None
    ]


def _gaps(
    run: BenchmarkSpec, by_solver: Mapping[str, Sequence[Row]], facts: Facts
) -> dict[str, list[list[float]]]:
    """Return the mean primal gap over time per solver."""
    if run.time_limit_s is None:
        return {}
    first = 0.01
    ratio = max(run.time_limit_s / first, 1.0)
    moments = [first * ratio ** (i / (_GAP_POINTS - 1)) for i in range(_GAP_POINTS)]

    def mean_gap(cells: Sequence[tuple[Row, int]], moment: float) -> float:
        gaps = (statistics.primal_gap(_at(row, moment), best) for row, best in cells)
        return math.fsum(gaps) / len(cells)

    return {
        solver: [[moment, mean_gap(cells, moment)] for moment in moments]
        for solver, rows in by_solver.items()
        if (cells := _measured(run, rows, facts))
    }


def _at(row: Row, moment: float) -> int | None:
    step = None
    for point in row.trace:
        if point.wall_s > moment:
            break
        step = point.step_quanta
    return step


def _cactus(
    by_solver: Mapping[str, Sequence[Row]], facts: Facts
) -> dict[str, dict[str, Steps]]:
    """Return how many cells were proven, and close to the best, by when."""
    proofs, close = {}, {}
    for solver, rows in by_solver.items():
        if any(row.exact for row in rows):
            proofs[solver] = statistics.cactus(
                row.wall_s if row.proven else math.inf for row in rows
            )
        close[solver] = statistics.cactus(
            _close_after(row, facts[row.entry.hash].best_quanta) for row in rows
        )
    return {"proven": proofs, "close": close}


def _close_after(row: Row, best: int | None) -> float:
    if best is None:
        return math.inf

    def is_close(step: int | None) -> bool:
        return step is not None and step <= (1 + CLOSE) * best

    close_s = (point.wall_s for point in row.trace if is_close(point.step_quanta))
    return next(close_s, math.inf) if is_close(row.step_quanta) else math.inf


def _time(row: Row) -> dict[str, Any]:
    return {
        "problem": row.problem,
        "solver": row.solver,
        "seed": row.cell.seed,
        "wall_s": row.wall_s,
        "cpu_s": row.cpu_s,
        "peak_rss_bytes": row.peak_rss_bytes,
        "host": row.host,
        "detail": row.detail if row.limit is not None else "",
        "trace": [
            {
                "wall_s": point.wall_s,
                "step_time_quanta": point.step_quanta,
                "lower_bound_quanta": point.bound_quanta,
            }
            for point in row.trace
        ],
    }


# Profiles


def _whole(run: BenchmarkSpec, rows: Sequence[Row]) -> list[dict[str, Row]]:
    """Return problem and seed by solver, where every solver has finished."""
    groups: dict[tuple[str, int], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        groups[row.entry.hash, row.cell.seed][row.solver] = row
    return [each for each in groups.values() if len(each) == len(run.solvers)]


def _profile(whole: Sequence[dict[str, Row]], facts: Facts) -> dict[str, Steps]:
    """Return profiles of step times, without problems that have no plan."""
    runs = [
        each
        for each in whole
        if not any(facts[row.entry.hash].infeasible for row in each.values())
    ]
    if not runs:
        return {}

    def step(row: Row) -> float:
        return math.inf if row.step_quanta is None else row.step_quanta

    return statistics.profile(
        {solver: [step(x[solver]) for x in runs] for solver in runs[0]}
    )


def _proof_profile(whole: Sequence[dict[str, Row]]) -> dict[str, Steps]:
    """Return profiles of the time to a proof, of exact solvers."""
    exact = [
        solver
        for solver in (whole[0] if whole else ())
        if any(each[solver].exact for each in whole)
    ]
    if not exact:
        return {}

    def proof_s(row: Row) -> float:
        return row.wall_s if row.proven else math.inf

    return statistics.profile(
        {solver: [proof_s(x[solver]) for x in whole] for solver in exact}
    )
