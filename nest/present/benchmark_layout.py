"""What a report says, in which order: the same in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nest.present.table import count
from nest.units import GIB
from nest.util.time_scale import TimeScale


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes
    ----------
    headers, rows
        Its texts.
    words
        How many columns from the left hold words; the others hold numbers.
    notes
        Whether the last one holds words too.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1
    notes: bool = False

    def is_word(self, column: int) -> bool:
        """Whether a column holds words."""
        last = len(self.headers) - 1
        return column < self.words or (self.notes and column == last)


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes
    ----------
    title, text
        Its heading, and what must be known to read it.
    grid
        Its table, if it has rows.
    plots
        Names of its charts, see :mod:`nest.present.pages.benchmark_charts`.
    measured
        Whether it is about times, so that another run may say other things.
    folded
        Whether HTML shows it only when asked.
    """

    title: str
    text: str
    grid: Grid | None = None
    plots: tuple[str, ...] = ()
    measured: bool = False
    folded: bool = False


def headline(document: dict[str, Any]) -> str:
    """Return what a report begins with: the run in a sentence."""
    run, answers = document["run"], document["answers"]
    limit_s = run["time_limit_s"]
    limit = "no time limit" if limit_s is None else f"{limit_s:g} s each"
    seeds = ", ".join(map(str, run["seeds"]))
    parts = [
        f"{answers['finished']} of {answers['cells']} cells finished: "
        f"{count(len(run['problems']), 'problem')} × "
        f"{count(len(run['solvers']), 'solver')} × "
        f"{count(len(run['seeds']), 'seed')} ({seeds}), {limit}"
    ]
    if run["gap"]:
        parts.append(f"exact solvers may stop at {100 * run['gap']:g} %")
    if run["repair"]:
        parts.append("plans that exceed the memory are repaired")
    workers = sorted(set(run["workers"].values())) or [1]
    parts.append(f"workers per solver: {', '.join(map(str, workers))}")
    parts += run["notes"]
    parts.append(f"nest {run['versions'].get('nest')}")
    return "; ".join(parts) + "."


def sections(document: dict[str, Any]) -> list[Section]:
    """Return the parts of a report."""
    answers, times = document["answers"], document["times"]
    parts = [
        _solvers(answers),
        _problems(answers),
        _pairs(answers),
        _outcomes(answers),
        *([_sweep(answers)] if "sweep" in answers else []),
        _answer_rows(answers),
        _settings(document["run"]),
        _times(document["run"], times),
        *([_gaps(times)] if times["gap_over_time"] else []),
        _cactus(times),
        _time_rows(times),
    ]
    return [part for part in parts if part.grid is None or part.grid.rows]


def _solvers(answers: dict[str, Any]) -> Section:
    rows = []
    for each in answers["solvers"]:
        over = each["over_best"] or {}
        rows.append(
            (
                each["solver"],
                str(each["cells"]),
                str(each["proven"]) if each["exact"] else "–",
                _of(each["best"], each["solvable"]),
                _of(each["close"], each["solvable"]),
                _of(each["with_plan"], each["solvable"]),
                *(
                    _over(over.get(name))
                    for name in ("geometric_mean", "median", "max")
                ),
                str(each["failed"]),
            )
        )
    return Section(
        "Solvers",
        "Proven: optimal or infeasible, cells. Best, within 1 % and with a "
        "plan: cells of problems not proven infeasible. What plans take over "
        "the best plan known is of cells with a plan, beside how many these "
        "are; the profile counts the others as failures. Plans are scored by "
        "the shared cost model.",
        Grid(
            (
                *("solver", "cells", "proven", "best", "within 1 %"),
                *("with a plan", "over best: mean", "median", "most"),
                "failed",
            ),
            tuple(rows),
        ),
        ("step_time_profile",),
    )


def _problems(answers: dict[str, Any]) -> Section:
    rows = []
    for each in answers["problems"]:
        best, bound = each["best_step_time_ns"], each["lower_bound_ns"]
        scale = TimeScale.fitting(best or bound, each["time_unit"])
        gap = ""
        if best and bound is not None:
            gap = f"{100 * max(0.0, (best - bound) / best):.2f}"
        rows.append(
            (
                each["problem"],
                _standing(each),
                ", ".join(each["best_by"])
                or ("" if best is None else "known before"),
                ", ".join(each["proven_by"]),
                scale(best),
                scale(bound),
                gap,
            )
        )
    return Section(
        "Problems",
        "The best plan of the run, or known before, and the greatest lower "
        "bound that an exact solver proved.",
        Grid(
            (
                *("problem", "standing", "best by", "proven by"),
                *("best step time", "lower bound", "gap %"),
            ),
            tuple(rows),
            words=4,
        ),
    )


def _standing(each: dict[str, Any]) -> str:
    if each["infeasible"]:
        return "infeasible"
    if each["closed"]:
        return "closed"
    return "open" if each["best_step_time_ns"] is not None else "no plan"


def _pairs(answers: dict[str, Any]) -> Section:
    rows = []
    for each in answers["pairs"]:
        low, high = each["win_share_95"]
        share, ratio = each["win_share"], each["step_time_ratio"]
        rows.append(
            (
                f"{each['solver']} : {each['against']}",
                *(str(each[x]) for x in ("wins", "ties", "losses", "neither")),
                ""
                if share is None
                else f"{100 * share:.0f} ({100 * low:.0f} – {100 * high:.0f})",
                f"{each['sign_test_p']:.2g}",
                ""
                if ratio is None
                else "{:.3f} ({:.3f} – {:.3f})".format(
                    ratio, *each["step_time_ratio_95"]
                ),
                str(each["problems_with_both"]),
            )
        )
    return Section(
        "Pairs",
        "On how many problems the plan of the first is faster, as fast, or "
        "slower; a problem has one voice, the median of its seeds, and no "
        "plan loses to any. Share of wins among decisions with its 95 % "
        "interval (Wilson), p of a two-sided sign test. Ratio of step times: "
        "geometric mean where both have a plan, with a 95 % interval of 2,000 "
        "bootstrap draws of whole problems.",
        Grid(
            (
                *("pair", "wins", "ties", "losses", "neither"),
                *("wins %", "p", "step time ratio", "problems"),
            ),
            tuple(rows),
        ),
        folded=True,
    )


def _outcomes(answers: dict[str, Any]) -> Section:
    words = sorted({w for x in answers["solvers"] for w in x["outcomes"]})
    return Section(
        "Outcomes",
        "Cells by what became of them; a failure stays one.",
        Grid(
            ("solver", *words),
            tuple(
                (
                    each["solver"],
                    *(str(each["outcomes"].get(word, 0)) for word in words),
                )
                for each in answers["solvers"]
            ),
        ),
    )


def _sweep(answers: dict[str, Any]) -> Section:
    rows = []
    for each in answers["sweep"]:
        scale = TimeScale.fitting(
            next(
                (
                    x["step_time_ns"]
                    for x in each["bandwidths"]
                    if x["step_time_ns"]
                ),
                None,
            )
        )
        rows += [
            (
                each["model"],
                each["cluster"],
                each["solver"],
                point["status"],
                str(each["batch"]),
                f"× {point['factor']:g}",
                scale(point["step_time_ns"]),
                ""
                if point["speed_up"] is None
                else f"{point['speed_up']:.3f}",
            )
            for point in each["bandwidths"]
        ]
    return Section(
        "What bandwidth buys",
        "Step time under so many times the bandwidth of the network, and how "
        "many times as fast that is as under the bandwidth as it is (or the "
        "least, if that is not there). Latencies stay as they are.",
        Grid(
            (
                *("model", "cluster", "solver", "status", "batch"),
                *("bandwidth", "step time", "speed-up"),
            ),
            tuple(rows),
            words=4,
        ),
        ("sweep",),
    )


def _answer_rows(answers: dict[str, Any]) -> Section:
    units = {x["problem"]: x["time_unit"] for x in answers["problems"]}
    best = {x["problem"]: x["best_step_time_ns"] for x in answers["problems"]}
    rows = []
    for each in answers["rows"]:
        name = each["problem"]
        scale = TimeScale.fitting(
            best[name] or each["lower_bound_ns"], units[name]
        )
        rows.append(
            (
                *(name, each["solver"], _word(each)),
                str(each["seed"]),
                scale(each["step_time_ns"]),
                _over(each["over_best"]),
                scale(each["lower_bound_ns"]),
                each["detail"],
            )
        )
    return Section(
        "Answers",
        "Every finished cell.",
        Grid(
            (
                *("problem", "solver", "status", "seed", "step time"),
                *("over best", "lower bound", "note"),
            ),
            tuple(rows),
            words=3,
            notes=True,
        ),
        folded=True,
    )


def _settings(run: dict[str, Any]) -> Section:
    options = [
        (f"option {solver}.{key}", value)
        for solver, own in run["extra"].items()
        for key, value in own.items()
    ]
    workers = [(f"workers of {s}", str(n)) for s, n in run["workers"].items()]
    problems = [
        (f"problem {each['name']}", f"{each['source']}, {each['hash']}")
        for each in run["problems"]
    ]
    versions = [
        (f"version of {name}", version or "not installed")
        for name, version in run["versions"].items()
    ]
    return Section(
        "Settings",
        "What it takes to run this again.",
        Grid(
            ("what", "value"),
            (*problems, *workers, *options, *versions),
            words=2,
        ),
        folded=True,
    )


def _times(run: dict[str, Any], times: dict[str, Any]) -> Section:
    limit_s = run["time_limit_s"]
    penalties = times["penalties"]
    counted = " and ".join(f"{penalty} × the limit" for penalty in penalties)
    unanswered = (
        "without a time limit there is no mean where one is missing"
        if limit_s is None
        else f"the others count as {counted} ({limit_s:g} s)"
    )
    sharing = times["sharing_cpus"]
    warning = (
        f" {count(sharing, 'cell')} shared CPUs with others: their times are "
        f"too long, and limits cut them off earlier."
        if sharing
        else ""
    )
    return Section(
        "Times",
        f"Answered: ended by itself with a plan that fits or a proof. Means "
        f"are geometric, shifted by {times['shift_s']:g} s, over all cells: "
        f"{unanswered}. Primal integral: mean distance from the best plan "
        f"known over the time limit, 0 is at once and 1 never; of all cells "
        f"of problems with a plan. Hosts: {', '.join(times['hosts']) or '–'}."
        f"{warning}",
        Grid(
            (
                *("solver", "answered"),
                *(f"mean s (× {penalty})" for penalty in penalties),
                *("most s", "sum s", "CPU s", "peak GiB", "primal integral"),
            ),
            tuple(
                (
                    each["solver"],
                    _of(each["answered"], each["cells"]),
                    *(
                        _number(value, 3)
                        for value in each["shifted_geometric_mean_s"].values()
                    ),
                    _number(each["wall_s"]["max"], 2),
                    _number(each["wall_s"]["sum"], 1),
                    _number(each["cpu_s"], 1),
                    f"{each['peak_rss_bytes'] / GIB:.2f}",
                    _number(each["primal_integral"], 4),
                )
                for each in times["solvers"]
            ),
        ),
        ("proof_time_profile",),
        measured=True,
    )


def _gaps(times: dict[str, Any]) -> Section:
    return Section(
        "Search time against quality",
        "Mean primal gap to the best plan known over time: 1 without a plan.",
        plots=("gap_over_time",),
        measured=True,
    )


def _cactus(times: dict[str, Any]) -> Section:
    return Section(
        "Cactus",
        f"How many cells were proven, and had a plan within "
        f"{100 * times['close']:g} % of the best, after so many seconds.",
        plots=("proven", "close"),
        measured=True,
    )


def _time_rows(times: dict[str, Any]) -> Section:
    return Section(
        "Times of cells",
        "Notes are of cells that a limit ended.",
        Grid(
            (
                *("problem", "solver", "host", "seed", "wall s", "CPU s"),
                *("peak GiB", "plans", "note"),
            ),
            tuple(
                (
                    *(each["problem"], each["solver"], each["host"]),
                    str(each["seed"]),
                    f"{each['wall_s']:.2f}",
                    _number(each["cpu_s"], 2),
                    f"{(each['peak_rss_bytes'] or 0) / GIB:.2f}",
                    str(_plans(each["trace"])),
                    each["detail"],
                )
                for each in times["rows"]
            ),
            words=3,
            notes=True,
        ),
        measured=True,
        folded=True,
    )


def _plans(trace: Sequence[dict[str, Any]]) -> int:
    steps: Iterable[int | None] = (x["step_time_quanta"] for x in trace)
    return len({step for step in steps if step is not None})


def _word(each: dict[str, Any]) -> str:
    if each["outcome"] != "solved":
        return str(each["outcome"])
    if each["limit"] is not None:
        return f"{each['status']}, {each['limit']} limit"
    return str(each["status"])


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def _over(ratio: float | None) -> str:
    """Return by how much more in per cent; only an exact 0 is shown so."""
    if ratio is None:
        return ""
    if ratio == 1:
        return "0 %"
    value = 100 * (ratio - 1)
    return f"{value:.2f} %" if value >= 0.005 else "<0.01 %"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
