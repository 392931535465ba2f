"""The sections of a benchmark's report: the same in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nest.present.benchmark_charts import chart
from nest.present.table import count, number_form, percent
from nest.units import GIB
from nest.util.sections import Section
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale

Document = dict[str, Any]


def headline(document: dict[str, Any]) -> str:
    """Return what a report begins with: the run in a sentence."""
    run, answers = document["run"], document["answers"]
    limit_s = run["time_limit_s"]
    limit = "no time limit" if limit_s is None else f"{limit_s:g} s each"
    seeds = ", ".join(map(str, run["seeds"]))
    clauses = [
        f"{answers['finished']} of {answers['cells']} cells finished: "
        f"{count(len(run['problems']), 'problem')} × "
        f"{count(len(run['solvers']), 'solver')} × "
        f"{count(len(run['seeds']), 'seed')} ({seeds}), {limit}"
    ]
    if run["gap"]:
        clauses.append(f"exact solvers may stop at {100 * run['gap']:g} %")
    if run["repair"]:
        clauses.append("plans that exceed the memory are repaired")
    workers = sorted(set(run["workers"].values())) or [1]
    clauses.append(f"workers per solver: {', '.join(map(str, workers))}")
    clauses += run["notes"]
    clauses.append(f"nest {run['versions'].get('nest')}")
    return "; ".join(clauses) + "."


def answer_sections(document: Document) -> list[Section]:
    """Return the sections about answers, in which nothing is measured."""
    answers = document["answers"]
    return _with_content(
        [
            _solvers(document),
            _problems(answers),
            _pairs(answers),
            _outcomes(answers),
            *([_sweep(document)] if "sweep" in answers else []),
            _answer_rows(answers),
            _settings(document["run"]),
        ]
    )


def measured_sections(document: Document) -> list[Section]:
    """Return the sections about times: another run may have others."""
    times = document["times"]
    return _with_content(
        [
            _times(document),
            *([_gaps(document)] if times["gap_over_time"] else []),
            _cactus(document),
            _time_rows(times),
        ]
    )


def _with_content(sections: Iterable[Section]) -> list[Section]:
    """Return the sections without tables of no rows."""
    return [x for x in sections if all(table.rows for table in x.tables)]


def _section(
    title: str,
    text: str,
    columns: Sequence[Column] = (),
    rows: Iterable[Any] = (),
    *,
    charts: Sequence[str] = (),
    document: Document | None = None,
    folded: bool = False,
) -> Section:
    """Return a section with at most one table, and the charts by name."""
    drawn = (chart(name, document or {}) for name in charts)
    return Section(
        "-".join(title.lower().split()),
        title,
        (text,),
        charts=tuple(each for each in drawn if each is not None),
        tables=(Table.of(columns, rows, title),) if columns else (),
        folded=folded,
    )


def _solvers(document: Document) -> Section:
    def over_best(name: str, heading: str) -> Column:
        def ratio(solver: Document) -> Any:
            return (solver["over_best"] or {}).get(name)

        return Column(f"over_best_{name}", heading, _over, ratio, right=True)

    return _section(
        "Solvers",
        "Proven: optimal or infeasible, cells. Best, within 1 % and with a plan: cells "
        "of problems not proven infeasible. Over best: extra step time against the "
        "best known plan, over the cells with a plan. The profile counts the other "
        "cells as failures. The shared cost model scores all plans.",
        (
            Column("solver"),
            Column("cells", form="d"),
            Column(
                "proven", value=lambda x: x["proven"] if x["exact"] else None, form="d"
            ),
            _out_of("best", "best", "solvable"),
            _out_of("within 1 %", "close", "solvable"),
            _out_of("with a plan", "with_plan", "solvable"),
            over_best("geometric_mean", "over best: mean"),
            over_best("median", "median"),
            over_best("max", "most"),
            Column("failed", form="d"),
        ),
        document["answers"]["solvers"],
        charts=("step_time_profile",),
        document=document,
    )


def _out_of(heading: str, key: str, total: str) -> Column:
    """Return a column of counts, each with the count that it is part of."""

    def text(solver: Document) -> str:
        return f"{solver[key]} of {solver[total]}"

    return Column(key, heading, value=text, right=True)


def _time(key: str, heading: str) -> Column:
    """Return a column of times, in the unit of the best plan's step time."""

    def text(record: Document) -> str:
        reference = record["best_step_time_ns"] or record["lower_bound_ns"]
        return TimeScale.fitting(reference, record["time_unit"])(record[key])

    return Column(key, heading, value=text, right=True)


def _problems(answers: Document) -> Section:
    def best_by(problem: Document) -> str:
        before = problem["best_step_time_ns"] is not None
        return ", ".join(problem["best_by"]) or "known before" * before

    def gap(problem: Document) -> str:
        best, bound = problem["best_step_time_ns"], problem["lower_bound_ns"]
        if not best or bound is None:
            return ""
        return f"{100 * max(0.0, (best - bound) / best):.2f}"

    return _section(
        "Problems",
        "The best plan of the run, or known before, and the greatest lower "
        "bound that an exact solver proved.",
        (
            Column("problem"),
            Column("standing", value=_standing),
            Column("best by", value=best_by),
            Column("proven_by", "proven by", ", ".join),
            _time("best_step_time_ns", "best step time"),
            _time("lower_bound_ns", "lower bound"),
            Column("gap %", value=gap, right=True),
        ),
        answers["problems"],
    )


def _standing(each: dict[str, Any]) -> str:
    if each["infeasible"]:
        return "infeasible"
    if each["closed"]:
        return "closed"
    return "open" if each["best_step_time_ns"] is not None else "no plan"


def _pairs(answers: Document) -> Section:
    def wins(pair: Document) -> str:
        low, high = pair["win_share_95"]
        if pair["win_share"] is None:
            return ""
        share = 100 * pair["win_share"]
        return f"{share:.0f} ({100 * low:.0f} – {100 * high:.0f})"

    def ratio(pair: Document) -> str:
        if pair["step_time_ratio"] is None:
            return ""
        low, high = pair["step_time_ratio_95"]
        return f"{pair['step_time_ratio']:.3f} ({low:.3f} – {high:.3f})"

    return _section(
        "Pairs",
        "On how many problems the plan of the first is faster, as fast, or "
        "slower. Each problem counts once, with the median of its seeds; a "
        "solver without a plan loses to one with a plan. Share of wins among "
        "decisions with its 95 % interval (Wilson), p of a two-sided sign "
        "test. Ratio of step times: geometric mean where both have a plan, "
        "with a 95 % interval of 2,000 bootstrap draws of whole problems.",
        (
            Column("pair", value=lambda x: f"{x['solver']} : {x['against']}"),
            *(Column(x, form="d") for x in ("wins", "ties", "losses", "neither")),
            Column("wins %", value=wins, right=True),
            Column("sign_test_p", "p", ".2g"),
            Column("step time ratio", value=ratio, right=True),
            Column("problems_with_both", "problems", "d"),
        ),
        answers["pairs"],
        folded=True,
    )


def _outcomes(answers: Document) -> Section:
    solvers = answers["solvers"]
    outcomes = sorted({name for x in solvers for name in x["outcomes"]})
    records = [
        {**dict.fromkeys(outcomes, 0), **each["outcomes"], **each} for each in solvers
    ]
    return _section(
        "Outcomes",
        "Number of cells by outcome.",
        (Column("solver"), *(Column(name, form="d") for name in outcomes)),
        records,
    )


def _sweep(document: Document) -> Section:
    points = []
    for group in document["answers"]["sweep"]:
        times = (x["step_time_ns"] for x in group["bandwidths"])
        scale = TimeScale.fitting(next(filter(None, times), None))
        points += [
            {**group, **point, "step_time": scale(point["step_time_ns"])}
            for point in group["bandwidths"]
        ]
    return _section(
        "What bandwidth buys",
        "Step time at multiples of the network bandwidth, and the speed-up against × 1 "
        "(or the smallest multiple without it). Latencies do not change.",
        (
            Column("model"),
            Column("cluster"),
            Column("solver"),
            Column("status"),
            Column("batch", form="d"),
            Column("factor", "bandwidth", lambda x: f"× {x:g}", right=True),
            Column("step_time", "step time", right=True),
            Column("speed_up", "speed-up", number_form(".3f"), right=True),
        ),
        points,
        charts=("sweep",),
        document=document,
    )


def _answer_rows(answers: Document) -> Section:
    of_problem = {problem["problem"]: problem for problem in answers["problems"]}
    rows = [{**of_problem[row["problem"]], **row} for row in answers["rows"]]
    return _section(
        "Answers",
        "Every finished cell.",
        (
            Column("problem"),
            Column("solver"),
            Column("status", value=_status),
            Column("seed", form="d"),
            _time("step_time_ns", "step time"),
            Column("over_best", "over best", _over, right=True),
            _time("lower_bound_ns", "lower bound"),
            Column("detail", "note"),
        ),
        rows,
        folded=True,
    )


def _settings(run: Document) -> Section:
    options = [
        (f"option {solver}.{key}", value)
        for solver, chosen in run["extra"].items()
        for key, value in chosen.items()
    ]
    workers = [(f"workers of {s}", n) for s, n in run["workers"].items()]
    problems = [
        (f"problem {each['name']}", f"{each['source']}, {each['hash']}")
        for each in run["problems"]
    ]
    versions = [
        (f"version of {name}", version or "not installed")
        for name, version in run["versions"].items()
    ]
    return _section(
        "Settings",
        "What it takes to run this again.",
        (
            Column("what", value=lambda pair: pair[0]),
            Column("value", value=lambda pair: pair[1]),
        ),
        [*problems, *workers, *options, *versions],
        folded=True,
    )


def _times(document: Document) -> Section:
    limit_s, times = document["run"]["time_limit_s"], document["times"]
    penalties = times["penalties"]
    counted = " and ".join(f"{penalty} × the limit" for penalty in penalties)
    unanswered = "without a time limit there is no mean where one is missing"
    if limit_s is not None:
        unanswered = f"the others count as {counted} ({limit_s:g} s)"
    sharing, warning = times["sharing_cpus"], ""
    if sharing:
        warning = (
            f" {count(sharing, 'cell')} shared CPUs with others: their times are "
            f"too long, and limits cut them off earlier."
        )

    def mean(penalty: int) -> Column:
        def mean_s(solver: Document) -> Any:
            return solver["shifted_geometric_mean_s"][str(penalty)]

        return Column(f"mean s (× {penalty})", form=".3f", value=mean_s)

    return _section(
        "Times",
        f"Answered: ended by itself with a plan that fits or a proof. Means are "
        f"geometric, shifted by {times['shift_s']:g} s, over all cells: {unanswered}. "
        f"Primal integral: mean distance from the best plan known over the time limit, "
        f"0 is at once and 1 never; of all cells of problems with a plan. Hosts: "
        f"{', '.join(times['hosts']) or '–'}.{warning}",
        (
            Column("solver"),
            _out_of("answered", "answered", "cells"),
            *map(mean, penalties),
            Column("most s", form=".2f", value=lambda x: x["wall_s"]["max"]),
            Column("sum s", form=".1f", value=lambda x: x["wall_s"]["sum"]),
            Column("cpu_s", "CPU s", ".1f"),
            Column("peak_rss_bytes", "peak GiB", _gib, right=True),
            Column("primal_integral", "primal integral", ".4f"),
        ),
        times["solvers"],
        charts=("proof_time_profile",),
        document=document,
    )


def _gaps(document: Document) -> Section:
    return _section(
        "Search time against quality",
        "Mean primal gap to the best plan known over time: 1 without a plan.",
        charts=("gap_over_time",),
        document=document,
    )


def _cactus(document: Document) -> Section:
    return _section(
        "Cactus",
        f"Number of cells proven, and with a plan within "
        f"{100 * document['times']['close']:g} % of the best, over time.",
        charts=("proven", "close"),
        document=document,
    )


def _time_rows(times: Document) -> Section:
    return _section(
        "Times of cells",
        "Notes are of cells that a limit ended.",
        (
            Column("problem"),
            Column("solver"),
            Column("host"),
            Column("seed", form="d"),
            Column("wall_s", "wall s", ".2f"),
            Column("cpu_s", "CPU s", ".2f"),
            Column("peak_rss_bytes", "peak GiB", _gib, right=True),
            Column("trace", "plans", _num_plans, right=True),
            Column("detail", "note"),
        ),
        times["rows"],
        folded=True,
    )


def _num_plans(trace: Sequence[Mapping[str, Any]]) -> str:
    steps = {point["step_time_quanta"] for point in trace}
    return str(len(steps - {None}))


def _status(answer: Document) -> str:
    if answer["outcome"] != "solved":
        return str(answer["outcome"])
    if answer["limit"] is not None:
        return f"{answer['status']}, {answer['limit']} limit"
    return str(answer["status"])


def _over(ratio: float | None) -> str:
    """Return by how much more in per cent; only an exact 0 is shown so."""
    return "" if ratio is None else f"{percent(ratio - 1)} %"


def _gib(size_bytes: int | None) -> str:
    return f"{(size_bytes or 0) / GIB:.2f}"
