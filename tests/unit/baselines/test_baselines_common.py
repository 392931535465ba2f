"""What the planners share: options, refusals, the chain and its stages."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from baselines.common import (
    Planner,
    Search,
    alone,
    case_strategies,
    decided,
    even_split,
    in_flight,
    make_plan,
    make_stage,
    node_size,
    repeated_range,
    why_not_alike,
    why_not_turns,
    why_not_whole,
)
from nest.cost.rules import get_rules
from nest.cost.space import BatchSplit, strategies
from nest.errors import InvalidOptionError
from nest.ir import Activations, Graph, Layer, Problem, Strategy
from nest.solvers.base import (
    Capabilities,
    Limit,
    Progress,
    SolveOptions,
    SolverOutput,
    Status,
    ignore_progress,
)
from nest.solvers.judge import judge
from nest.solvers.registry import get_solver, solver_names
from tests.builders import FLAT, make_cost, make_levels, make_problem
from tests.planners import chain_of, two_layers


def options(**extra: str) -> SolveOptions:
    return SolveOptions(extra=extra)


def search(**extra: str) -> Search:
    return Search("planner", two_layers(), options(**extra), ignore_progress)


# Sequences


def test_planners_split_sequences_everywhere_or_nowhere() -> None:
    whole = make_cost(tp=2)
    split = replace(whole, sequence_parallel=True)
    both = {"sequence_parallel": (False, True)}
    problem = make_problem({"a": (whole, split), "b": make_cost()}, **both)
    assert decided(problem).job.sequence_parallel == (True,)
    lacking = make_problem({"a": (whole, split), "b": whole}, **both)
    assert decided(lacking).job.sequence_parallel == (False,)
    for value in (True, False, (True,), (False,)):
        plain = make_problem({"a": whole}, sequence_parallel=value)
        assert decided(plain) is plain


@pytest.mark.parametrize("name", ["megatron", "random", "mcmc"])
def test_planners_say_how_they_split_sequences(name: str) -> None:
    whole = make_cost(10, 20, tp=2)
    split = make_cost(20, 30, tp=2, sequence_parallel=True)
    problem = make_problem(
        {"a": (whole, split)}, devices=2, sequence_parallel=(False, True)
    )
    output = get_solver(name)().solve(problem, SolveOptions())
    assert output.plan is not None
    (stage,) = output.plan.stages
    assert stage.strategy == Strategy(tp=2, sequence_parallel=True)
    assert (
        "with sequence parallelism wherever tp > 1, as it knows no choice of "
        "it" in output.detail
    )


# Options


def test_counts_are_read() -> None:
    assert search().count("number", 7) == 7
    assert search(number="12").count("number", 7) == 12


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "²", "٣", ""])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidOptionError,
        match=rf"^option planner\.number: expected a whole number >= 1, got "
        rf"'{text}'; correct the value$",
    ):
        search(number=text).count("number", 7)


def test_choices_are_read() -> None:
    choices = {"few": 1, "many": 100}
    assert search().choice("size", choices, "many") == 100
    assert search(size="few").choice("size", choices, "many") == 1
    with pytest.raises(
        InvalidOptionError,
        match=r"^option planner\.size: expected few or many, got 'all'; "
        r"correct the value$",
    ):
        search(size="all").choice("size", choices, "few")


COUNT = "a whole number >= 1"
REFUSED_OPTIONS = [
    *(("aceso", key, "0", COUNT) for key in ("effort", "hops", "stages")),
    ("aceso", "tune", "all", "layers or stages or none"),
    ("alpa", "clusters", "0", COUNT),
    ("alpa", "recompute", "full", "auto or none"),
    ("alpa", "zero", "3", "0"),
    ("alpa", "submeshes", "odd", "power_of_two or all"),
    ("alpa", "placement", "odd", "aligned or any"),
    ("ft", "heuristic", "luck", "time or memory or none"),
    ("mcmc", "budget", "0", COUNT),
    ("mcmc", "pipelines", "maybe", "no or yes"),
    ("mcmc", "unit", "maybe", "ms or percent"),
    *(
        ("mcmc", "alpha", text, "a number > 0")
        for text in ("0", "-1", "x", "nan", "inf")
    ),
    ("phaze", "max_closed_sets", "0", COUNT),
    ("piper", "max_closed_sets", "0", COUNT),
    *(("random", key, "0", COUNT) for key in ("draws", "plans")),
    *(("uniap", key, "0", COUNT) for key in ("effort", "groups")),
]


@pytest.mark.parametrize(("planner", "key", "text", "expected"), REFUSED_OPTIONS)
def test_planners_check_their_options(
    planner: str, key: str, text: str, expected: str
) -> None:
    solver = get_solver(planner)()
    with pytest.raises(
        InvalidOptionError,
        match=rf"^option {planner}\.{key}: expected {expected}, got "
        rf"'{text}'; correct the value$",
    ):
        solver.solve(two_layers(), options(**{key: text}))


# Presets

#: Preset ``nest-artifact`` wants whole batches.
UNIFORM: dict[str, Any] = {"preset": "nest-artifact", "replicas": (1,)}
TURNS = (
    "$.preset: expected data parallel ranks that share a micro-batch, got preset "
    "'piper', under which they take turns; use preset 'standard' or another solver"
)


def test_presets_that_rule_planners_out() -> None:
    turns, alike = two_layers(preset="piper"), two_layers(**UNIFORM)
    assert why_not_turns(turns) == TURNS
    assert why_not_alike(turns) is why_not_turns(alike) is None
    assert why_not_turns(two_layers()) is why_not_alike(two_layers()) is None


# One strategy for all stages


def both_widths(**fields: Any) -> Problem:
    """Return two layers with ``tp`` 1 and 2, the tensor between them wider.

    On one device they take 100 and 200 ns forward, on two 60 and 120.
    """
    problem = make_problem(
        {
            name: (
                make_cost(n * 100, n * 200, weight_bytes=8),
                make_cost(n * 60, n * 120, tp=2, weight_bytes=4),
            )
            for name, n in (("a", 1), ("b", 2))
        },
        edges=(("a", "b", 10),),
        preset="nest-artifact",
        uneven_batches=True,
        global_batch=4,
        **fields,
    )
    (edge,) = problem.graph.edges
    edge = replace(edge, bytes_per_sample_by_tp={2: 30})
    return replace(problem, graph=replace(problem.graph, edges=(edge,)))


def test_a_problem_for_every_strategy() -> None:
    first, second = alone(both_widths())
    for found, tp, size_bytes in ((first, 1, 10), (second, 2, 30)):
        assert found.preset == "standard"
        assert found.job.tensor_parallel == (tp,)
        (edge,) = found.graph.edges
        assert edge.bytes_per_sample == size_bytes
        assert not edge.bytes_per_sample_by_tp
        assert [str(strategy) for strategy in strategies(found, 1)] == [
            str(Strategy(tp=tp))
        ]


def test_strategies_that_a_layer_lacks_are_left_out() -> None:
    problem = make_problem(
        {"a": make_cost(), "b": (make_cost(), make_cost(tp=2))}, preset="nest-artifact"
    )
    (found,) = alone(problem)
    assert found.job.tensor_parallel == (1,)
    nowhere = make_problem(
        {"a": make_cost(), "b": make_cost(tp=2)}, preset="nest-artifact"
    )
    output = get_solver("piper")().solve(nowhere, options())
    assert output.status is Status.NO_SOLUTION
    assert output.detail == "no strategy has costs for all layers"


def test_what_recomputed_layers_keep() -> None:
    """A layer of 50 bytes keeps the 2 · 10 that enter it, and holds 30.

    One that 2 · 40 bytes enter keeps those, although it has only 50 itself;
    without recomputation nothing changes.
    """
    choices = (
        Activations(recompute="full", kept_bytes=50, static_bytes=1),
        Activations(recompute="none", kept_bytes=70),
    )
    cost = make_cost(samples=2, activations=choices)
    problem = make_problem(
        {"a": cost, "b": cost, "c": cost},
        edges=(("a", "b", 10), ("b", "c", 40)),
        micro_batches=(2,),
        global_batch=2,
        recompute=("none", "full"),
        preset="nest-artifact",
    )
    plain = get_rules("nest-artifact").plain(problem)
    found = [kind.costs[0].activations for kind in plain.graph.kinds]
    assert [(x.kept_bytes, x.static_bytes) for x, _ in found] == [
        *((0, 51), (20, 31), (80, 1))
    ]
    assert all(other == choices[1] for _, other in found)
    assert get_rules("standard").plain(problem) is problem


class Fixed(Planner):
    """Answers with the widest plan; its objective is what it is told."""

    name = "fixed"
    capabilities = Capabilities(exact=False, method="none")
    values_ns: ClassVar[list[float | None]] = []
    limits: ClassVar[list[float | None]] = []

    def run(self, search: Search) -> SolverOutput:
        value_ns = self.values_ns[search.problem.job.tensor_parallel[0] - 1]
        assert search.by_replicas
        self.limits.append(search.options.time_limit_s)
        search.stopped = value_ns == 7
        if value_ns is not None:
            (strategy,) = strategies(search.problem, 1)
            case = BatchSplit(1, 1, 4, 4)
            plan = make_plan(search.problem, case, [(0, 2, strategy)])
            search.improve(plan, value_ns)
        return search.answer(f"worth {value_ns}")


@pytest.mark.parametrize(
    ("values_ns", "tp", "reported", "detail"),
    [
        ([5, 4], 2, [1, 2], "worth 4; best of 2 strategies"),
        ([4, 5], 1, [1], "worth 4; best of 2 strategies"),
        # The first of two that are as good, and a search that found none.
        ([4, 4], 1, [1], "worth 4; best of 2 strategies"),
        ([None, 7], 2, [2], "worth 7; best of 2 strategies"),
        ([None, None], None, [], "worth None; none of 2 strategies"),
    ],
)
def test_the_best_strategy_by_the_planners_own_objective(
    values_ns: Any, tp: int | None, reported: list[int], detail: str
) -> None:
    reports: list[int] = []

    def report(progress: Progress) -> None:
        assert progress.plan is not None
        reports.append(progress.plan.stages[0].layer_strategies[0].tp)

    Fixed.values_ns, Fixed.limits = values_ns, []
    output = Fixed().solve(both_widths(), SolveOptions(), report)
    assert output.detail == f"{detail}, each searched alone"
    assert reports == reported
    assert Fixed.limits == [None, None]
    assert (output.limit is Limit.TIME) is (7 in values_ns)
    if tp is None:
        assert output.plan is None
    else:
        assert output.plan.stages[0].layer_strategies[0].tp == tp
        assert output.own_objective_ns == min(filter(None, values_ns))


def test_strategies_share_the_time() -> None:
    Fixed.values_ns, Fixed.limits = [5, 4], []
    Fixed().solve(both_widths(), SolveOptions(time_limit_s=8.0))
    first, second = Fixed.limits
    assert first == pytest.approx(4.0, rel=0.1)
    assert second == pytest.approx(8.0, rel=0.1)


# Context parallelism


@pytest.mark.parametrize("name", ["alpa", "galvatron"])
def test_planners_that_know_no_context_parallelism(name: str) -> None:
    """Where some kind of layers has nothing else."""
    both = (make_cost(), make_cost(cp=4))
    wide = (make_cost(cp=2), make_cost(cp=4))
    solver = get_solver(name)()
    assert solver.unsupported(make_problem({"a": both, "b": both})) is None
    assert solver.unsupported(make_problem({"a": both, "b": wide})) == (
        "$.graph.kinds: expected costs of kind 'b' at cp 1, as the planner knows no "
        "context parallelism, got cp 2, 4 alone; add them or use another solver"
    )


# Rules about whole plans


def test_rules_about_whole_plans_that_rule_planners_out() -> None:
    """What strategies there are on several context ranks all can keep."""
    together = two_layers(uniform=("dp", "tp", "cp"))
    assert why_not_alike(together) == (
        "$.job.uniform: expected an empty list, because this planner chooses "
        "a strategy for each stage, got ['dp', 'tp', 'cp']; use solver dp, or "
        "remove --target"
    )
    assert why_not_whole(together) is None
    assert why_not_whole(two_layers(zero_with={"cp": (0,)})) is None
    assert why_not_whole(two_layers(sharded_with=("tp", "ep"))) is None
    rest = "use another solver or target"
    known = (
        "expected none of the rules about whole plans, which the planner "
        "does not know, got"
    )
    for job, text in (
        ({"even_layers": True}, f"$.job.even_layers: {known} True; {rest}"),
        ({"one_stage": ("a",)}, f"$.job.one_stage: {known} ['a']; {rest}"),
        (
            {"idle_devices": False, "uniform": ("devices",)},
            f"$.job.idle_devices: {known} False; {rest}",
        ),
        (
            {"zero_with": {"pp": (0,), "cp": (0,)}},
            f"$.job.zero_with: {known} {{'pp': [0]}}; {rest}",
        ),
        ({"sharded_with": ("tp", "pp")}, f"$.job.sharded_with: {known} ['pp']; {rest}"),
    ):
        problem = two_layers(**job)
        assert why_not_whole(problem) == text
        assert get_solver("megatron")().unsupported(problem) == text


@pytest.mark.parametrize(
    ("planner", "turns"),
    [
        ("aceso", TURNS),
        ("alpa", TURNS),
        ("galvatron", TURNS),
        ("phaze", None),
        ("piper", None),
        ("megatron", TURNS),
        ("mcmc", TURNS),
        ("uniap", TURNS),
        ("ft", TURNS),
        ("random", None),
    ],
)
def test_presets_that_planners_search(planner: str, turns: str | None) -> None:
    solver = get_solver(planner)()
    assert solver.unsupported(two_layers()) is None
    assert solver.unsupported(two_layers(preset="piper")) == turns
    assert solver.unsupported(two_layers(**UNIFORM)) is None


def test_planners_stand_behind_the_exact_solvers() -> None:
    assert solver_names()[4:15] == [
        *("alpa", "galvatron", "phaze", "piper", "megatron"),
        *("mcmc", "uniap", "ft", "aceso", "zb", "random"),
    ]


# Chains


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("ellh", (1, 3)),
        ("ll", (0, 2)),
        ("abc", (0, 3)),
        # what occurs once between repeated layers is one of them
        ("eaanbbh", (1, 6)),
    ],
)
def test_kinds_that_occur_once_are_at_the_ends(
    kinds: str, expected: tuple[int, int]
) -> None:
    problem = chain_of(len(set(kinds)))
    names = dict(zip(sorted(set(kinds)), "abcdefgh", strict=False))
    graph = Graph(
        kinds=problem.graph.kinds,
        layers=tuple(
            Layer(id=f"{name}{i}", kind=names[name]) for i, name in enumerate(kinds)
        ),
    )
    assert repeated_range(replace(problem, graph=graph)) == expected


def test_longer_parts_of_an_even_split_come_first() -> None:
    assert even_split(7, 3) == [(0, 3), (3, 5), (5, 7)]
    assert even_split(2, 2) == [(0, 1), (1, 2)]
    for num_stages in (0, 3):
        with pytest.raises(
            ValueError, match=f"^num_stages: expected 1 to 2, got {num_stages}"
        ):
            even_split(2, num_stages)


@pytest.mark.parametrize(
    ("levels", "devices", "expected"),
    [((8, 4), 32, 8), ((1, 4, 2), 8, 4), ((8, 4), 6, 6), ((1,), 1, 1)],
)
def test_a_node_is_the_lowest_level_that_joins_devices(
    levels: tuple[int, ...], devices: int, expected: int
) -> None:
    topology = make_levels(*((fan_out, *FLAT) for fan_out in levels))
    problem = two_layers(devices=devices, topology=topology)
    assert node_size(problem) == expected


@pytest.mark.parametrize(
    ("schedule", "stages_left", "expected"),
    [("gpipe", 1, 4), ("1f1b", 1, 1), ("1f1b", 3, 3), ("1f1b", 5, 4)],
)
def test_micro_batches_in_flight(
    schedule: str, stages_left: int, expected: int
) -> None:
    problem = two_layers(schedule=schedule)
    assert in_flight(problem, BatchSplit(1, 1, 4, 8), stages_left) == expected


def test_strategies_of_a_case_have_their_devices() -> None:
    """Two samples: dp and tp up to 2, as far as there are devices."""
    problem = chain_of(global_batch=4, micro_batches=(2,))
    found = {
        devices: [str(s) for s in case_strategies(problem, case)]
        for devices in (1, 2, 4)
        for case in [BatchSplit(1, 2, 2, devices)]
    }
    assert sorted(found[1]) == ["single"]
    assert sorted(found[2]) == ["dp2", "single", "tp2"]
    assert sorted(found[4]) == ["dp2", "dp2·tp2", "single", "tp2"]


def test_stages_write_a_common_strategy_once() -> None:
    problem = chain_of(3)
    one, two = Strategy(dp=2), Strategy(tp=2)
    same = make_stage(problem, [2, 0], [one])
    assert same == make_stage(problem, [2, 0], [one, one])
    assert same.layers == ("c", "a")
    assert (same.devices, same.strategy, same.strategies) == (2, one, None)
    mixed = make_stage(problem, [0, 1], [one, two])
    assert (mixed.devices, mixed.strategy) == (2, None)
    assert mixed.strategies == (one, two)


# What their modules say


@pytest.mark.parametrize("planner", solver_names()[4:14])
def test_planners_say_what_they_are(planner: str) -> None:
    text = inspect.getdoc(inspect.getmodule(get_solver(planner)))
    assert text is not None
    assert text.startswith(f"``{planner}``: ")
    headings = ["Search space", "Objective", "Ignored", "Deviations"]
    lines = text.splitlines()
    assert [line for line in lines if line in headings] == headings


# What all of them keep

#: By planner: its first report of :func:`four_layers`, and what it says if it
#: has no time at all. Those that draw plans are asked for few.
WORDS = {
    "alpa": (
        "micro-batch 1, recompute none (1 of 2)",
        "4 clusters; 0 of 2 searches done; no pipeline of submeshes uses "
        "exactly 4 devices and fits",
    ),
    "galvatron": ("11 tasks with ep 1", "no task was solved in time"),
    "phaze": ("case 1 of 6", "0 of 6 cases searched"),
    "piper": ("case 1 of 6", "0 of 6 cases searched"),
    "megatron": (None, "the limit passed before it had a plan"),
    "mcmc": ("data parallel", "0 of 0 proposals taken"),
    "uniap": ("even split", "the limit passed before it had a plan"),
    "ft": ("tracking frontiers of B=1", "the limit passed before it had a plan"),
    "aceso": ("1 stages", "0 configurations of 4 numbers of stages"),
    "random": ("", "0 plans that fit in 0 draws"),
}
FEW = {"mcmc": {"budget": "200"}, "random": {"plans": "5"}}
#: These depend on their seed.
SEEDED = ("mcmc", "random")
#: These hand in what they begin with.
BEGIN_WITH_A_PLAN = ("mcmc", "aceso")


def four_layers(**fields: Any) -> Problem:
    return chain_of(4, global_batch=8, micro_batches=(1, 2), **fields)


@pytest.mark.parametrize("planner", WORDS)
def test_planners_report_and_repeat_themselves(planner: str) -> None:
    solver = get_solver(planner)()
    assert (solver.name, solver.capabilities.exact) == (planner, False)
    reports: list[Progress] = []
    problem, few = four_layers(), options(**FEW.get(planner, {}))
    output = solver.solve(problem, few, reports.append)
    assert (output.status, output.limit) == (Status.FEASIBLE, None)
    assert output.lower_bound_quanta is None
    message, _ = WORDS[planner]
    assert (reports[0].message if reports else None) == message
    plans = [report.plan for report in reports if report.plan is not None]
    assert plans[-1:] == [output.plan] * bool(reports)
    assert solver.solve(problem, few) == output
    if planner not in SEEDED:
        assert solver.solve(problem, dataclasses.replace(few, seed=7)) == output
        assert output.claimed_quanta is None


@pytest.mark.parametrize("planner", ["alpa", "galvatron", "piper", "uniap"])
def test_planners_repeat_strategies_of_layers(planner: str) -> None:
    solver = get_solver(planner)()
    problem = four_layers(granularity="layer", zero=(0, 3))
    output = solver.solve(problem, SolveOptions())
    assert output.plan is not None
    assert solver.solve(problem, SolveOptions()) == output


@pytest.mark.parametrize("planner", WORDS)
def test_planners_without_time_say_so(planner: str) -> None:
    """Also where the clock is looked at before anything is tried."""
    limits = SolveOptions(time_limit_s=1e-9)
    output = get_solver(planner)().solve(four_layers(), limits)
    _, detail = WORDS[planner]
    assert (output.limit, output.detail) == (Limit.TIME, detail)
    assert (output.plan is not None) is (planner in BEGIN_WITH_A_PLAN)


@pytest.mark.parametrize("planner", ["phaze", "piper", "uniap"])
def test_planners_blind_to_working_sets(planner: str) -> None:
    """A layer keeps 100 bytes, all there are, and works with 60 more."""
    cost = make_cost(10, 20, kept_bytes=100, working_bytes=60)
    problem = make_problem({"a": cost}, devices=1, memory_bytes=100)
    solver = get_solver(planner)()
    output = solver.solve(problem, SolveOptions())
    verdict = judge(problem, output, capabilities=solver.capabilities)
    assert verdict.status is Status.OVER_MEMORY
    assert verdict.over_memory_bytes == 60


@pytest.mark.parametrize(
    ("planner", "detail"),
    [
        ("alpa", "4 clusters; no pipeline of submeshes uses exactly 4 dev"),
        ("galvatron", "no plan fits by Galvatron's memory model"),
        ("phaze", "no plan fits by its own memory model"),
        ("piper", "no plan fits by its own memory model"),
        ("megatron", "no model parallel size fits by its estimate of the "),
        ("uniap", "no plan fits by its memory model ("),
        ("ft", "no point of the frontiers fits"),
        ("aceso", "nothing fits by its own count of the memory; "),
    ],
)
def test_planners_without_a_plan_that_fits(planner: str, detail: str) -> None:
    problem = four_layers(memory_bytes=5)
    output = get_solver(planner)().solve(problem, SolveOptions())
    assert (output.status, output.plan) == (Status.NO_SOLUTION, None)
    assert output.detail.startswith(detail)
