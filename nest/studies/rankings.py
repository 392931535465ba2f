"""Whether planners keep their ranks under other rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from operator import itemgetter

from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.ir.problem import Problem
from nest.solvers.base import SolveOptions
from nest.solvers.run import run_solver
from nest.studies.contention import Alone
from nest.studies.solving import (
    Usable,
    geometric_mean,
    prove,
    ratio,
    step_quanta,
    usable,
)
from nest.studies.study import Findings, Plot, Series, StudySetting, Value
from nest.studies.texts import read_texts
from nest.util.tables import Column, Table

TEXTS = read_texts("rankings")

TIME_LIMIT_S = 30.0

PLANNERS = (
    *("alpa", "galvatron", "phaze", "piper", "megatron", "uniap"),
    *("mcmc", "random"),
)
QUICK_PLANNERS = ("alpa", "galvatron", "phaze", "megatron")
INSTANCES = (
    *("bert-large-a10gx16", "llama2-7b-jean-zay-a100x16"),
    *("mixtral-8x7b-dgx-h100x16", "qwen3-30b-a3b-h800x16"),
    *("gpt3-13b-jean-zay-v100x32", "gpt3-6.7b-v100x32"),
    *("llama2-13b-dgx-a100x32-leaf4", "llama3-8b-dgx-h100x32-leaf8"),
)
#: On networks that are no trees, where traffic meets on links.
GRAPHS = (
    *("bert-large-v100x16-ring", "llama2-7b-dgx-h100x16-torus"),
    *("gpt3-6.7b-dgx-h100x32-leaf-spine", "gpt3-6.7b-v100x32-dgx1"),
    *("llama2-13b-dgx-h100x32-rails", "llama2-13b-dgx-a100x32-dragonfly"),
)
QUICK_GRAPHS = ("llama2-7b-dgx-h100x16-torus",)
QUICK_INSTANCES = (*("llama2-7b-jean-zay-a100x16", "gpt3-13b-jean-zay-v100x32"),)


def gpipe(problem: Problem) -> Problem:
    """Return a problem under GPipe: every micro-batch is in flight."""
    return replace(problem, job=replace(problem.job, schedule="gpipe"))


def hidden_sync(problem: Problem) -> Problem:
    """Return a problem whose gradient sync hides, all of it."""
    job = replace(problem.job, gradient_sync_overlap=1.0)
    return replace(problem, job=job)


def shared_links(problem: Problem) -> Problem:
    """Return a problem with a quarter of the bandwidth outside nodes."""
    topology = problem.cluster.topology
    assert topology.kind == "hierarchy"
    first, *others = topology.levels
    slower = (
        replace(x, bandwidth_bytes_per_s=x.bandwidth_bytes_per_s / 4) for x in others
    )
    cluster = replace(
        problem.cluster, topology=replace(topology, levels=(first, *slower))
    )
    return replace(problem, cluster=cluster)


BASE = "1F1B"
RULES: Mapping[str, Callable[[Problem], Problem]] = {
    BASE: lambda problem: problem,
    "GPipe": gpipe,
    "sync hidden": hidden_sync,
    "links shared": shared_links,
}

#: Rules under which plans hold what they hold under 1F1B.
KEEPING = tuple(name for name in RULES if name != "GPipe")

#: With the cost model's prices of shared links, and as if none were.
CONTENTION = ("as priced", "none")

#: Ratios to the optimum by rules, planner and instance; ``None`` where there
#: is no plan that fits.
Ratios = Mapping[str, Mapping[str, Sequence[float | None]]]


def run(setting: StudySetting) -> Findings:
    """Let planners plan under all rules, and score their old plans too."""
    planners = QUICK_PLANNERS if setting.quick else PLANNERS
    again = _no_ratios(RULES, planners)
    old_plans = _no_ratios(KEEPING, planners)
    options = SolveOptions(time_limit_s=TIME_LIMIT_S)
    for instance in setting.instances(INSTANCES, QUICK_INSTANCES):
        first: dict[str, Usable] = {}
        for rules, change in RULES.items():
            problem = change(instance.problem)
            setting.say(f"{instance.name}, {rules}: dp")
            best = step_quanta(problem, prove(problem, TIME_LIMIT_S))
            for planner in planners:
                setting.say(f"{instance.name}, {rules}: {planner}")
                result = run_solver(problem, planner, options)
                plan = usable(problem, result)
                if rules == BASE:
                    first[planner] = plan
                again[rules][planner].append(ratio(plan.step_quanta, best))
                if rules in KEEPING:
                    step = step_quanta(problem, first[planner].plan)
                    old_plans[rules][planner].append(ratio(step, best))
    shared = contention(planners, setting)
    findings = report(again, old_plans, shared)
    names = QUICK_INSTANCES if setting.quick else INSTANCES
    graphs = QUICK_GRAPHS if setting.quick else GRAPHS
    rows = (
        *each(names, "planned again", again),
        *each(names, "plans kept", old_plans),
        *each(graphs, "contention", shared),
    )
    plans = TEXTS.table("plans", rows)
    return findings._replace(tables=(*findings.tables, plans))


def _no_ratios(
    all_rules: Iterable[str], planners: Sequence[str]
) -> dict[str, dict[str, list[float | None]]]:
    return {rules: {planner: [] for planner in planners} for rules in all_rules}


def each(names: Sequence[str], what: str, ratios: Ratios) -> Iterator[Sequence[Value]]:
    """Yield a row per plan."""
    for rules, by_planner in ratios.items():
        for planner, row in by_planner.items():
            for name, value in zip(names, row, strict=True):
                yield what, rules, name, planner, value


def contention(planners: Sequence[str], setting: StudySetting) -> Ratios:
    """Score plans where traffic shares links, and as if it did not.

    Ratios are to the plan that is proven to be the best with contention.
    """
    ratios = _no_ratios(CONTENTION, planners)
    options = SolveOptions(time_limit_s=TIME_LIMIT_S)
    for instance in setting.instances(GRAPHS, QUICK_GRAPHS):
        problem = instance.problem
        topology = problem.cluster.topology
        assert topology.kind == "graph"
        setting.say(f"{instance.name}: dp")
        best = prove(problem, TIME_LIMIT_S)
        models = (None, CostModel(problem, Alone(topology)))
        for planner in planners:
            setting.say(f"{instance.name}: {planner}")
            plan = usable(problem, run_solver(problem, planner, options)).plan
            for rules, model in zip(CONTENTION, models, strict=True):
                step = step_quanta(problem, plan, model)
                best_step = step_quanta(problem, best, model)
                ratios[rules][planner].append(ratio(step, best_step))
    return ratios


def ranked(ratios: Ratios) -> list[str]:
    """Return the planners with a plan on most instances under all rules."""
    return [
        planner
        for planner in next(iter(ratios.values()))
        if all(
            2 * sum(x is not None for x in by[planner]) > len(by[planner])
            for by in ratios.values()
        )
    ]


def common(ratios: Ratios, planners: Sequence[str]) -> list[int]:
    """Return the instances on which all have a plan under all rules."""
    columns = [by[planner] for by in ratios.values() for planner in planners]
    rows = zip(*columns, strict=False)
    return [index for index, row in enumerate(rows) if None not in row]


def means(
    ratios: Ratios, planners: Sequence[str], instances: Sequence[int]
) -> dict[str, list[float]]:
    """Return the mean ratio by planner, one per rules.

    All of these planners have a plan on each of these instances, at least one.
    """
    by_planner: dict[str, list[float]] = {}
    for by in ratios.values():
        for planner in planners:
            mean = geometric_mean(
                x for i in instances if (x := by[planner][i]) is not None
            )
            assert mean is not None
            by_planner.setdefault(planner, []).append(mean)
    return by_planner


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """Return the rank of each, from 1; equals share the better one."""
    return {
        name: 1 + sum(other < value for other in values.values())
        for name, value in values.items()
    }


def swaps(
    before: Mapping[str, float], after: Mapping[str, float]
) -> list[tuple[str, str]]:
    """Return the pairs whose order is another one afterwards."""
    return [
        (first, second)
        for first, second in combinations(before, 2)
        if (before[first] - before[second]) * (after[first] - after[second]) < 0
    ]


def report(again: Ratios, old_plans: Ratios, shared: Ratios) -> Findings:
    """Return what the ratios say."""
    tables, answers = [], []
    series: list[Series] = []
    for key, ratios in (("again", again), ("kept", old_plans), ("contention", shared)):
        title = TEXTS.tables[key].title
        planners = ranked(ratios)
        instances = common(ratios, planners)
        if not instances:
            answers.append(
                f"{title}: no instance has a plan of every planner under all rules."
            )
            continue
        by_planner = means(ratios, planners, instances)
        tables.append(_ranks_table(key, ratios, by_planner, len(instances)))
        pairs = len(by_planner) * (len(by_planner) - 1) // 2
        base, *others = _by_rules(by_planner, len(ratios))
        for rules, values in zip(list(ratios)[1:], others, strict=True):
            swapped = swaps(base, values)
            named = ", ".join(" and ".join(pair) for pair in swapped)
            answers.append(
                f"{title}, {rules}: {len(swapped)} of {pairs} pairs change "
                f"their order{': ' * bool(named)}{named}."
            )
        if key == "again":
            series = [
                Series(planner, list(zip(ratios, row, strict=True)))
                for planner, row in by_planner.items()
            ]
    return Findings(
        answers=answers,
        tables=(*tables, _missing(again)),
        plot=Plot(
            "Planners under other rules",
            "",
            "times the optimal step time",
            series,
            kind="bars",
        ),
    )


def _by_rules(
    by_planner: Mapping[str, Sequence[float]], num_rules: int
) -> list[dict[str, float]]:
    """Return the mean ratios of planners, a mapping per rules."""
    return [
        {planner: row[index] for planner, row in by_planner.items()}
        for index in range(num_rules)
    ]


def _ranks_table(
    key: str, ratios: Ratios, by_planner: Mapping[str, Sequence[float]], num_common: int
) -> Table:
    """Return means and ranks of planners on the instances of all."""
    every = next(iter(ratios.values()))
    excluded = [planner for planner in every if planner not in by_planner]
    note = ""
    if excluded:
        note = (
            f" Not ranked, as they have no plan on half of the instances or "
            f"more under some rules: {', '.join(excluded)}."
        )
    columns = [Column("planner", "planner")]
    cells: dict[str, list[Value]] = {name: [name] for name in by_planner}
    by_rules = _by_rules(by_planner, len(ratios))
    for rules, values in zip(ratios, by_rules, strict=True):
        columns.append(Column(f"{rules}_mean", rules, ".3f"))
        columns.append(Column(f"{rules}_rank", "rank", "d"))
        for planner, rank in ranks(values).items():
            cells[planner] += [values[planner], rank]
    return TEXTS.table(
        key,
        sorted(cells.values(), key=itemgetter(2, 0)),
        columns,
        note=note,
        num_common=num_common,
        num_instances=len(next(iter(every.values()))),
    )


def _missing(ratios: Ratios) -> Table:
    columns = [
        Column("planner", "planner"),
        *(Column(f"{rules}_missing", rules, "d") for rules in ratios),
    ]
    rows: list[list[Value]] = [
        [planner, *(by[planner].count(None) for by in ratios.values())]
        for planner in next(iter(ratios.values()))
    ]
    return TEXTS.table("missing", rows, columns)


STUDY = TEXTS.study("rankings", run)
