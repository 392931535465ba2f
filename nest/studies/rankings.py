"""Whether planners keep their ranks under other rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

from msgspec.structs import replace

from nest.benchmarks.instances import find_set
from nest.cost.model import CostModel
from nest.ir import GraphTopology
from nest.ir.cluster import Hierarchy
from nest.ir.problem import Problem
from nest.solvers.base import SolveOptions
from nest.solvers.run import run_solver
from nest.studies.contention import Alone
from nest.studies.solving import (
    Usable,
    geometric_mean,
    prove,
    step_quanta,
    usable,
)
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
QUICK_INSTANCES = (
    *("llama2-7b-jean-zay-a100x16", "gpt3-13b-jean-zay-v100x32"),
)


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
    assert isinstance(topology, Hierarchy)
    first, *others = topology.levels
    slower = (
        replace(x, bandwidth_bytes_per_s=x.bandwidth_bytes_per_s / 4)
        for x in others
    )
    cluster = replace(
        problem.cluster, topology=replace(topology, levels=(first, *slower))
    )
    return replace(problem, cluster=cluster)


def as_it_is(problem: Problem) -> Problem:
    """Return the problem."""
    return problem


BASE = "1F1B"
RULES: Mapping[str, Callable[[Problem], Problem]] = {
    BASE: as_it_is,
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


def run(setting: Setting) -> Findings:
    """Let planners plan under all rules, and score their old plans too."""
    names = QUICK_INSTANCES if setting.quick else INSTANCES
    planners = QUICK_PLANNERS if setting.quick else PLANNERS
    again: dict[str, dict[str, list[float | None]]] = {
        rules: {planner: [] for planner in planners} for rules in RULES
    }
    kept: dict[str, dict[str, list[float | None]]] = {
        rules: {planner: [] for planner in planners} for rules in KEEPING
    }
    options = SolveOptions(time_limit_s=TIME_LIMIT_S)
    for instance in setting.each(find_set(list(names))):
        first: dict[str, Usable] = {}
        for rules, change in RULES.items():
            problem = change(instance.problem)
            setting.say(f"{instance.name}, {rules}: dp")
            best = step_quanta(problem, prove(problem, TIME_LIMIT_S))
            for planner in planners:
                setting.say(f"{instance.name}, {rules}: {planner}")
                found = run_solver(problem, planner, options)
                left = usable(problem, found)
                if rules == BASE:
                    first[planner] = left
                again[rules][planner].append(over(left.step_quanta, best))
                if rules in KEEPING:
                    old = step_quanta(problem, first[planner].plan)
                    kept[rules][planner].append(over(old, best))
    graphs = QUICK_GRAPHS if setting.quick else GRAPHS
    shared = contention(graphs, planners, setting)
    findings = report(again, kept, shared)
    every = (
        *each(names, "planned again", again),
        *each(names, "plans kept", kept),
        *each(graphs, "contention", shared),
    )
    return findings._replace(tables=(*findings.tables, _plans(every)))


def each(
    names: Sequence[str], what: str, ratios: Ratios
) -> Iterator[Sequence[Value]]:
    """Yield a row per plan."""
    for rules, by in ratios.items():
        for planner, row in by.items():
            for name, value in zip(names, row, strict=True):
                yield what, rules, name, planner, value


def _plans(rows: Sequence[Sequence[Value]]) -> Table:
    return Table(
        "plans",
        "Every plan",
        "Ratio to the optimum; nothing where no plan fits.",
        (
            Column("what", "what"),
            Column("rules", "rules"),
            Column("instance", "instance"),
            Column("planner", "planner"),
            Column("ratio", "over the optimum", ".3f"),
        ),
        rows,
    )


def contention(
    names: Sequence[str], planners: Sequence[str], setting: Setting
) -> Ratios:
    """Score plans where traffic shares links, and as if it did not.

    Ratios are to the plan that is proven to be the best with contention.
    """
    found: dict[str, dict[str, list[float | None]]] = {
        rules: {planner: [] for planner in planners} for rules in CONTENTION
    }
    options = SolveOptions(time_limit_s=TIME_LIMIT_S)
    for instance in setting.each(find_set(list(names))):
        problem = instance.problem
        topology = problem.cluster.topology
        assert isinstance(topology, GraphTopology)
        setting.say(f"{instance.name}: dp")
        best = prove(problem, TIME_LIMIT_S)
        models = dict(
            zip(
                CONTENTION,
                (None, CostModel(problem, Alone(topology))),
                strict=True,
            )
        )
        for planner in planners:
            setting.say(f"{instance.name}: {planner}")
            left = usable(problem, run_solver(problem, planner, options))
            for rules, model in models.items():
                found[rules][planner].append(
                    over(
                        step_quanta(problem, left.plan, model),
                        step_quanta(problem, best, model),
                    )
                )
    return found


def over(step: int | None, best: int | None) -> float | None:
    """Return the ratio of two steps, if both are known."""
    return None if step is None or not best else step / best


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
    return [
        number
        for number in range(min(map(len, columns), default=0))
        if all(column[number] is not None for column in columns)
    ]


def means(
    ratios: Ratios, planners: Sequence[str], instances: Sequence[int]
) -> dict[str, list[float]]:
    """Return the mean ratio by planner, one per rules.

    Parameters
    ----------
    ratios
        All ratios.
    planners, instances
        Those that count: at least one instance, on each of which all of
        them have a plan.
    """
    found: dict[str, list[float]] = {}
    for by in ratios.values():
        for planner in planners:
            mean = geometric_mean(
                x for i in instances if (x := by[planner][i]) is not None
            )
            assert mean is not None
            found.setdefault(planner, []).append(mean)
    return found


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
        if (before[first] - before[second]) * (after[first] - after[second])
        < 0
    ]


def report(again: Ratios, kept: Ratios, shared: Ratios) -> Findings:
    """Return what the ratios say."""
    tables, answers = [], []
    series: list[Series] = []
    for key, title, text, ratios in (
        (
            "again",
            "Planned again",
            "Planners know the rules, as far as they see them, and plan for "
            "them, as does the optimum.",
            again,
        ),
        (
            "kept",
            "Plans kept",
            "The plans made for the instances as they are, scored under "
            "other rules: what a ranking owes to the rules of the score.",
            kept,
        ),
        (
            "contention",
            "Contention",
            "Plans on networks that are no trees, scored as the model prices "
            "traffic that meets on links, and as if every group and every "
            "message had the links to itself. Ratios are to the plan that is "
            "the optimum as priced, so that they may be below 1 without.",
            shared,
        ),
    ):
        planners = ranked(ratios)
        instances = common(ratios, planners)
        every = next(iter(ratios.values()))
        left_out = [planner for planner in every if planner not in planners]
        if left_out:
            text += (
                f" Not ranked, as they have no plan on half of the instances "
                f"or more under some rules: {', '.join(left_out)}."
            )
        of = len(next(iter(every.values())))
        if not instances:
            answers.append(
                f"{title}: no instance has a plan of every planner under all "
                f"rules."
            )
            continue
        by_planner = means(ratios, planners, instances)
        columns = [Column("planner", "planner")]
        for rules in ratios:
            columns.append(Column(f"{rules}_mean", rules, ".3f"))
            columns.append(Column(f"{rules}_rank", "rank", "d"))
        by_rules = [
            {planner: row[number] for planner, row in by_planner.items()}
            for number in range(len(ratios))
        ]
        places = [ranks(values) for values in by_rules]
        rows: list[list[Value]] = []
        for planner in by_planner:
            row: list[Value] = [planner]
            for values, place in zip(by_rules, places, strict=True):
                row += [values[planner], place[planner]]
            rows.append(row)
        rows.sort(key=lambda row: (row[2], row[0]))
        tables.append(
            Table(
                key,
                title,
                f"{text} Geometric means of the ratio to the optimum, over "
                f"the {len(instances)} of {of} instances on which every "
                f"ranked planner has a plan that fits, repaired if need be, "
                f"under all rules.",
                columns,
                rows,
            )
        )
        pairs = len(by_planner) * (len(by_planner) - 1) // 2
        for rules, values in list(zip(ratios, by_rules, strict=True))[1:]:
            swapped = swaps(by_rules[0], values)
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


def _missing(ratios: Ratios) -> Table:
    """Return how many plans are missing."""
    return Table(
        "missing",
        "Instances without a usable plan",
        "By rules, when planned again.",
        [
            Column("planner", "planner"),
            *(Column(f"{rules}_missing", rules, "d") for rules in ratios),
        ],
        [
            [
                planner,
                *(
                    sum(ratio is None for ratio in by[planner])
                    for by in ratios.values()
                ),
            ]
            for planner in next(iter(ratios.values()))
        ],
    )


STUDY = Study(
    name="rankings",
    question=(
        "Do planners keep their ranks under another schedule, with gradient "
        "sync that overlaps, and with more or less contention?"
    ),
    method=(
        "Each planner plans for the same instances under four rules: 1F1B "
        "as they are; GPipe; all gradient sync hidden behind computation; and "
        "links outside nodes that other traffic takes three quarters of. "
        "Plans that do not fit are repaired, and held against the optimum "
        "that `dp` proves under the same rules. Then the plans of the first "
        "rules are kept and scored under the others (but GPipe). On six "
        "networks that are no trees, plans are scored with contention for "
        "links and without."
    ),
    quick="Three instances and four planners.",
    limits=(
        "A rank is of geometric means over eight instances (in full); two "
        "planners that swap may differ by little, see the means.",
        "Four rules out of many. Interleaved and zero-bubble schedules are "
        "missing, which most planners do not search.",
        "Contention is within groups and messages of one stage and its "
        "replicas; that between stages is not priced (docs/graphs.md).",
        "`mcmc` and `random` depend on their seed; this is seed 0.",
        "Plans made for 1F1B are not kept under GPipe, where most of them "
        "no longer fit.",
    ),
    run=run,
)
