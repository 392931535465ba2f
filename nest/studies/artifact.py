"""NEST's figures from its published inputs, and what they rest on."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from nest.audits.foreign import tree_of
from nest.audits.nest_artifact.evaluate import (
    NamedPlan,
    named_plans,
    nodes_in_order,
    printed_time,
)
from nest.audits.nest_artifact.importer import (
    ArtifactFile,
    import_nest_artifact,
    read_artifact_file,
)
from nest.cost.magnitude import choose_quantum_ps
from nest.errors import NestError
from nest.ir.graph import LayerCost
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.studies.solving import geometric_mean, optimum, step_units
from nest.studies.study import (
    Findings,
    Plot,
    Series,
    StudySetting,
    Value,
    number,
    read_rows,
)
from nest.studies.texts import read_texts
from nest.util.tables import Table

Id = TypeVar("Id")

TEXTS = read_texts("artifact")
FOLDER = "nest-artifact"

#: Relative loss of the integers to rounding at most.
ROUNDED = 1e-7
#: Samples of a step, of all inputs.
SAMPLES = 4096
#: The inputs that the published means are over.
SERIES = "tpuv4_fatTree__"
#: Readings of a baseline's plan: see the text of table ``baseline_means``.
WAYS = ("as_coded", "order_fixed", "intended")
#: How many times as slow the top level of the network is made.
SPINES = (1, 4, 16, 64, 256, 1024)
#: Computation as the inputs give it, and a thousandth of it.
UNITS = ("as printed", "in seconds")

_COLUMNS = (
    *("instance", "nest_T", "nest_d", "nest_t", "nest_stage_sizes"),
    *("exact_T", "baseline", *(f"baseline_T_{way}" for way in WAYS)),
)
_SMALL_COLUMNS = ("instance", "exact_T", "nest_T_own_placement", "nest_rc")


class _Input(NamedTuple):
    """An input of the artifact: its file, its problem and its rows."""

    name: str
    file: ArtifactFile
    problem: Problem
    rows: Sequence[dict[str, str]]


def run(setting: StudySetting) -> Findings:
    """Repeat the figures, and find out what they rest on."""
    folder = setting.data / FOLDER
    inputs = _read(folder, setting)
    nest_column, nest_answers = _nest_column(inputs, folder)
    baselines, means, baseline_answers = _baselines(inputs, folder)
    small, small_answers = _small(folder, setting)
    network, network_answers = _network(inputs, setting)
    return Findings(
        answers=(*nest_answers, *baseline_answers, *small_answers, *network_answers),
        tables=(nest_column, means, baselines, small, network),
        plot=Plot(
            "What the network does to NEST's optimum, at most",
            "spine so many times as slow",
            "times the step time",
            [
                Series(
                    f"{what}, {unit}",
                    [
                        (spine, 1 + maximum)
                        for row_unit, spine, *rest in network.rows
                        if row_unit == unit
                        and isinstance(spine, int)
                        and isinstance(maximum := rest[column], float)
                    ],
                )
                for what, column in (("network", 2), ("blind loss", 5))
                for unit in UNITS
            ],
            log="xy",
        ),
    )


def _read(folder: Path, setting: StudySetting) -> list[_Input]:
    by_name: dict[str, list[dict[str, str]]] = {}
    for row in read_rows(folder / "expected.csv", _COLUMNS):
        by_name.setdefault(row["instance"], []).append(row)
    inputs = []
    for name in list(by_name)[: 6 if setting.quick else None]:
        path = folder / "instances" / f"{name}.json"
        file, problem = read_artifact_file(path), import_nest_artifact(path)
        inputs.append(_Input(name, file, problem, by_name[name]))
    return inputs


# NEST's own column


def _nest_column(inputs: Iterable[_Input], folder: Path) -> tuple[Table, list[str]]:
    rows: list[tuple[Value, ...]] = []
    feasible = same = optimal = 0
    for item in inputs:
        row = item.rows[0]
        printed = _figure(row, "nest_T", folder)
        best = step_units(item.problem, optimum(item.problem))
        if printed is None:
            rows.append((item.name, *[None] * 5, best))
            continue
        (tp, *_), (replicas, *_), sizes = (
            _integers(row, column, folder)
            for column in ("nest_t", "nest_d", "nest_stage_sizes")
        )
        order = nodes_in_order(item.file, tp)
        again = printed_time(item.file, tp, replicas, _cut(order, sizes))
        shared = step_units(item.problem, _plan(item, sizes, replicas, tp))
        feasible += 1
        same += again == printed
        loss = _above(printed, best)
        optimal += loss is not None and abs(loss) <= ROUNDED
        rows.append(
            (
                item.name,
                repr(printed),
                SAMPLES / printed,
                "yes" if again == printed else f"no: {again!r}",
                _above(shared, printed),
                loss,
                best,
            )
        )
    none = sum(row[1] is None and row[-1] is None for row in rows)
    return TEXTS.table("own_column", rows), [
        f"Every digit of NEST's own figure is repeated on {same} of the {feasible} "
        f"inputs that have one; {optimal} of these figures are the optimum of its own "
        f"objective, to within {ROUNDED:g}. {none} more without a figure: no plan fits."
    ]


# The baselines


class _Baseline(NamedTuple):
    """A baseline's plan on an input.

    ``repeated`` is the number of its figures that are repeated to every digit,
    ``above`` its step time over NEST's, per reading of :data:`WAYS`, ``None`` where it
    does not fit. ``shared_above`` says how far the shared model's time lies above that
    of the intended split.
    """

    instance: str
    name: str
    repeated: int
    above: tuple[float | None, ...]
    shared_above: float | None

    @property
    def only_misordered(self) -> bool:
        """Whether it is as fast as NEST's plan once its stages are sorted."""
        coded, fixed, _ = self.above
        return (
            coded is not None
            and fixed is not None
            and abs(fixed - 1) < ROUNDED < coded - 1
        )


def _baselines(
    inputs: Sequence[_Input], folder: Path
) -> tuple[Table, Table, list[str]]:
    baselines = [x for item in inputs for x in _baselines_of(item, folder)]
    rows = [(x.instance, x.name, *x.above, x.shared_above) for x in baselines]
    ratios: dict[str, list[tuple[float, ...]]] = {}
    for baseline in baselines:
        above = tuple(x for x in baseline.above if x is not None)
        if SERIES in baseline.instance and len(above) == len(WAYS):
            ratios.setdefault(baseline.name, []).append(above)
    means = TEXTS.table(
        "baseline_means",
        [
            (name, len(of), *map(geometric_mean, zip(*of, strict=True)))
            for name, of in ratios.items()
        ],
        series=SERIES,
    )
    answers = [
        f"Of the baselines' {len(WAYS) * len(baselines)} figures (three "
        f"readings of each plan) {sum(x.repeated for x in baselines)} are "
        f"repeated to every digit, misfits included.",
        f"Printed as slower than NEST's own plan, but no slower once their stages are "
        f"in order: {sum(x.only_misordered for x in baselines)} baseline plans.",
    ]
    answers += [
        f"{name} is {of[0]:.2f} times as slow as NEST as coded, {of[1]:.2f} "
        f"with the order fixed, {of[2]:.2f} with the intended split."
        for name, _, *of in means.rows
    ]
    return TEXTS.table("baselines", rows), means, answers


def _baselines_of(item: _Input, folder: Path) -> Iterator[_Baseline]:
    """Yield the baselines' plans on an input."""
    named = named_plans(item.file, item.name)
    order = nodes_in_order(item.file, min(item.file.nodes))
    for row in item.rows:
        name = row["baseline"]
        if not name:
            continue
        if name not in named:
            raise NestError(
                f"{folder / 'instances' / item.name}.json: baselines: "
                f"expected {name!r}, got none; get it anew"
            )
        plan = named[name]
        nest = _figure(row, "nest_T", folder)
        assert nest is not None
        times = [_read_as(item, plan, order, way) for way in WAYS]
        recorded = [_figure(row, f"baseline_T_{way}", folder) for way in WAYS]
        sizes = plan.sizes(len(order), intended=True)
        shared = step_units(item.problem, _plan(item, sizes, plan.d, plan.t))
        yield _Baseline(
            item.name,
            name,
            sum(map(operator.eq, times, recorded)),
            tuple(None if time is None else time / nest for time in times),
            _above(shared, times[-1]),
        )


def _read_as(
    item: _Input, plan: NamedPlan, order: Sequence[int], way: str
) -> float | None:
    """Return the printed time of a plan under a reading of :data:`WAYS`."""
    stages = _cut(order, plan.sizes(len(order), intended=way == "intended"))
    if way == "as_coded":
        stages.reverse()
    return printed_time(item.file, plan.t, plan.d, stages)


# Inputs on which the network matters


def _small(folder: Path, setting: StudySetting) -> tuple[Table, list[str]]:
    losses: list[float] = []
    infeasible = failed = 0
    records = read_rows(folder / "small_expected.csv", _SMALL_COLUMNS)
    if setting.quick:
        records = records[:40]
    rows: list[tuple[Value, ...]] = []
    for row in setting.each(records):
        setting.say(row["instance"])
        path = folder / "small" / f"{row['instance']}.json"
        problem = import_nest_artifact(path)
        best = step_units(problem, optimum(problem))
        printed = _figure(row, "nest_T_own_placement", folder)
        loss = _above(printed, best)
        infeasible += best is None
        failed += best is not None and printed is None
        if loss is not None:
            losses.append(loss)
        rows.append((row["instance"], printed, best, loss))
    losses.sort()
    beaten = [loss for loss in losses if loss > ROUNDED]
    answer = (
        f"Where the network matters, NEST's search misses the optimum of its own "
        f"objective on {len(beaten)} of {len(losses)} inputs that it solves"
    )
    if beaten:
        answer += (
            f": by {median(beaten):.1%} in the median of these and by {beaten[-1]:.0%} "
            f"at most; {sum(x > 0.1 for x in beaten)} by more than 10 %"
        )
    return TEXTS.table("small", rows), [
        f"{answer}. {failed} feasible inputs end without an answer, "
        f"{infeasible} are infeasible."
    ]


# How much the network matters


def _network(
    inputs: Sequence[_Input], setting: StudySetting
) -> tuple[Table, list[str]]:
    """Compare with the optimum, and its plan, of a network without cost."""
    #: Shares and blind losses by unit and spine.
    cases: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for item in inputs:
        for unit in UNITS:
            problem = item.problem
            if unit != UNITS[0]:
                problem = in_seconds(problem)
            blind = optimum(exact(free(problem)))
            if blind is None:
                continue
            for spine in SPINES[: 2 if setting.quick else None]:
                setting.say(f"{item.name}, {unit}, spine / {spine}")
                slow = exact(slower_spine(problem, spine))
                best = step_units(slow, optimum(slow))
                alone = step_units(exact(free(slow)), blind)
                loss = _above(step_units(slow, blind), best)
                share = _above(best, alone)
                assert share is not None
                assert loss is not None
                cases.setdefault((unit, spine), []).append((share, loss))
    rows: list[tuple[Value, ...]] = []
    for (unit, spine), pairs in cases.items():
        shares, losses = zip(*pairs, strict=True)
        blind_inputs = sum(loss > ROUNDED for loss in losses)
        share_figures = len(shares), median(shares), max(shares)
        loss_figures = blind_inputs, median(losses), max(losses)
        rows.append((unit, spine, *share_figures, *loss_figures))
    answers = []
    for unit in UNITS:
        of_unit = [pairs for (name, _), pairs in cases.items() if name == unit]
        if not of_unit:
            continue
        (share, loss), (slow_share, slow_loss) = (
            map(max, zip(*pairs, strict=True)) for pairs in (of_unit[0], of_unit[-1])
        )
        slowest = max(spine for name, spine in cases if name == unit)
        answers.append(
            f"With computation {unit}, the optimum on the published fat tree lies at "
            f"most {share:.2%} above that without a network, and a planner that does "
            f"not know the network loses at most {loss:.2%}; with a spine {slowest} "
            f"times as slow these are at most {slow_share:.1%} and {slow_loss:.1%}."
        )
    return TEXTS.table("network", rows), answers


def free(problem: Problem) -> Problem:
    """Return a problem on a network that takes no time."""
    topology = problem.cluster.topology.without_cost()
    cluster = replace(problem.cluster, topology=topology)
    return replace(problem, cluster=cluster)


def slower_spine(problem: Problem, factor: float) -> Problem:
    """Return a problem whose top level has so many times less bandwidth."""
    tree = tree_of(problem)
    top = tree.levels[-1]
    slow = replace(top, bandwidth_bytes_per_s=top.bandwidth_bytes_per_s / factor)
    topology = replace(tree, levels=(*tree.levels[:-1], slow))
    cluster = replace(problem.cluster, topology=topology)
    return replace(problem, cluster=cluster)


def in_seconds(problem: Problem) -> Problem:
    """Return a problem whose computation takes a thousandth of the time."""

    def shorter(cost: LayerCost) -> LayerCost:
        return replace(
            cost, forward_ns=cost.forward_ns / 1000, backward_ns=cost.backward_ns / 1000
        )

    kinds = tuple(
        replace(kind, costs=tuple(map(shorter, kind.costs)))
        for kind in problem.graph.kinds
    )
    return replace(problem, graph=replace(problem.graph, kinds=kinds))


def exact(problem: Problem) -> Problem:
    """Return a problem with the finest quantum it can have."""
    return replace(problem, quantum_ps=choose_quantum_ps(problem, 1))


# Plans and cells


def _cut(order: Sequence[Id], sizes: Iterable[int]) -> list[list[Id]]:
    ids = iter(order)
    return [[next(ids) for _ in range(size)] for size in sizes]


def _plan(item: _Input, sizes: Sequence[int], replicas: int, tp: int) -> Plan:
    """Return a plan of the artifact; ranks that share experts are data."""
    graph, job = item.problem.graph, item.problem.job
    order = [graph.layers[i].id for i in graph.topological_order()]
    strategy = Strategy(
        tp=tp,
        dp=item.file.ep_degree,
        ep=item.file.ep_degree,
        cp=item.file.cp_degree,
        recompute=job.recompute[0],
    )
    return Plan(
        replicas=replicas,
        micro_batch=job.micro_batches[0],
        stages=tuple(
            Stage(layers=tuple(layers), devices=strategy.devices, strategy=strategy)
            for layers in _cut(order, sizes)
        ),
    )


def _figure(row: dict[str, str], column: str, folder: Path) -> float | None:
    return number(row[column], f"{folder}: {row['instance']}: {column}")


def _integers(row: dict[str, str], column: str, folder: Path) -> list[int]:
    texts = row[column].split()
    if not all(text.isdecimal() for text in texts):
        raise NestError(
            f"{folder}: {row['instance']}: {column}: expected whole numbers, "
            f"got {row[column]!r}; get the file anew"
        )
    return list(map(int, texts))


def _above(value: float | None, reference: float | None) -> float | None:
    """Return the relative distance; ``None`` if either is missing."""
    if value is None or not reference or math.isinf(reference):
        return None
    return value / reference - 1


STUDY = TEXTS.study("nest-artifact", run)
