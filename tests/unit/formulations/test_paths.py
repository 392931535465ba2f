"""The path form: its networks, bounds and answers, on small examples."""

from __future__ import annotations

import re
from dataclasses import replace as replace_part
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from ortools.sat.python import cp_model

import formulations
from formulations.brute import BruteSolver
from formulations.common import EngineResult, Instance
from formulations.cpsat.solver import CpSatSolver
from formulations.milp import engines
from formulations.milp import paths as milp_paths
from formulations.milp.solver import MilpSolver
from formulations.paths import cuts, network, stages
from formulations.paths.bounds import Arcs, step_through
from formulations.paths.cuts import Cuts
from formulations.paths.network import Builder, Network
from formulations.paths.search import PathNode, least_work
from formulations.paths.stages import NEVER, StageFamilyCase, StageTable
from nest.cost.model import CostModel
from nest.cost.schedules.base import weighted
from nest.cost.space import leading_runtimes
from nest.errors import InvalidOptionError, SolverError
from nest.ir import Strategy
from nest.solvers.base import Deadline, OutOfTimeError, SolveOptions, Status
from tests.builders import make_cost, make_levels, make_problem

#: The example of formulations/README.md: layers of 30, 30 and 9 ns, three
#: micro-batches, two devices, a free network.
EXAMPLE = make_problem(
    {"a": make_cost(10, 20), "b": make_cost(10, 20), "c": make_cost(0, 9)},
    edge=1,
    devices=2,
    topology=make_levels((2, 0.0, 1e15)),
    global_batch=3,
    replicas=(1,),
)
#: The best of its plans takes 78. In its window, from 71 to 79, the bound (P8)
#: is 74: the least sum and the least largest are of two paths.
LOOSE = make_problem(
    {name: make_cost(0, t) for name, t in zip("abcd", (9, 7, 9, 9), strict=True)},
    edge=2,
    devices=3,
    topology=make_levels((3, 0.0, 1e9)),
    global_batch=3,
    replicas=(1,),
)
SOLVERS = {"cpsat": CpSatSolver, "milp": MilpSolver}


def instance_of(problem):
    return Instance(problem, CostModel(problem), Deadline(None))


def table_of(problem):
    """Return the table of the only case, and the case."""
    instance = instance_of(problem)
    (case,) = [StageFamilyCase(*case) for case in instance.cases()]
    found = Cuts(instance.model, instance.graph)
    return StageTable(instance.model, found, case, Deadline(None)), case


def spans(table, found):
    """Return the layers of every stage of a network."""
    names = [layer.id for layer in table.problem.graph.layers]
    sets = table.cuts.sets
    pairs = table.pair[found.row]
    return [
        "".join(
            names[i]
            for i in table.cuts.layers(
                sets[table.cuts.tails[p]], sets[table.cuts.heads[p]]
            )
        )
        for p in pairs
    ]


# The worked example


def test_the_example_has_five_stages_and_three_paths():
    """``abc`` takes 69 + 2 · 69, ``a | bc`` 69 + 2 · 39, ``ab | c`` 189."""
    table, case = table_of(EXAMPLE)
    assert least_work(instance_of(EXAMPLE), case) == 138
    builder = Builder(table)
    found = builder.network(207)
    loads = dict(zip(spans(table, found), found.once.tolist(), strict=True))
    assert loads == {"a": 30, "ab": 60, "abc": 69, "bc": 39, "c": 9}
    assert builder.complete
    assert found.bound == 147
    assert list(table.rounds) == [2]
    assert found.sync.tolist() == [0] * 5


def test_the_page_has_the_stages_of_the_example():
    """Loads, sums and maxima through them, and bounds."""
    table, _ = table_of(EXAMPLE)
    found = Builder(table).network(207)
    arcs = found.arcs
    columns = (
        found.once,
        arcs.sum_through(found.once),
        arcs.largest_through(found.paces[0]),
        step_through(arcs, found.once, found.paces, table.rounds, found.sync),
    )
    expected = dict(zip(spans(table, found), zip(*columns, strict=True), strict=True))
    text = Path(formulations.__file__).with_name("README.md").read_text()
    said = {}
    for row in re.findall(r"^\| `x\d` = .*$", text, re.MULTILINE):
        name, *numbers = [cell.strip() for cell in row.split("|")[1:-1]]
        said[name.split("= ")[1].strip("`")] = tuple(map(int, numbers[2:]))
    assert said == expected


def test_the_model_of_the_example_is_that_on_the_page():
    """Five shares, two steps of the maximum, of 2 · 21 and 2 · 9."""
    table, _ = table_of(EXAMPLE)
    found = Builder(table).network(207)
    model = milp_paths.PathModel(milp_paths.PathTask(table, found, 207, "milp"))
    rows = model.engine.constraints
    assert sorted(re.sub(r"(_\d+)+$", "", name) for name in rows) == [
        *("flow", "flow", "link_t_max", "link_t_max"),
        *("one_path", "order_t_max", "step_time"),
    ]
    names = spans(table, found)
    links = [row for name, row in rows.items() if name.startswith("link")]
    said = [{v.name: c for v, c in row.items()} for row in links]
    assert said == [
        {f"x_{names.index('ab')}": 1, "u_t_max_0_0": -1},
        {f"x_{names.index('abc')}": 1, "u_t_max_0_1": -1},
    ]
    assert [(row.sense, row.constant) for row in links] == [(-1, 0)] * 2
    step = {v.name: c for v, c in rows["step_time"].items()}
    loads = dict(zip(spans(table, found), found.once, strict=True))
    assert loads == {name: step[f"x_{a}"] for a, name in enumerate(spans(table, found))}
    assert step["least_t_max_0"] == 2 * 39
    assert step["u_t_max_0_0"] == 2 * 21
    assert step["u_t_max_0_1"] == 2 * 9
    assert step["T"] == -1


def test_a_stage_is_left_out_where_no_path_through_it_is_in_time():
    table, _ = table_of(EXAMPLE)
    builder = Builder(table)
    assert spans(table, builder.network(188)) == ["a", "bc"]
    assert not builder.complete
    assert sorted(spans(table, builder.network(189))) == ["a", "ab", "bc", "c"]
    assert builder.network(146) is None


def test_what_plans_through_a_stage_of_the_example_take():
    """Node 0 is no layer, 1 a, 2 ab, 3 abc; the bounds are the plans."""
    arcs = Arcs(
        np.array([0, 0, 0, 1, 2]),
        np.array([1, 2, 3, 3, 3]),
        4,
        np.array([0]),
        np.array([3]),
    )
    loads, nothing = np.array([30, 60, 69, 39, 9]), np.zeros(5, dtype=int)
    found = step_through(arcs, loads, [loads], [2], nothing)
    assert found.tolist() == [147, 189, 207, 147, 189]
    assert arcs.sum_through(loads).tolist() == [69] * 5
    assert arcs.largest_through(loads).tolist() == [39, 60, 69, 39, 60]
    # 9, 39, 69, 60 and 30: the largest may be in front or behind.
    assert arcs.largest_through(loads[::-1]).tolist() == [60, 39, 69, 60, 39]


def test_no_path_takes_for_ever():
    """A stage that nothing leads to, and one that leads to no end."""
    arcs = Arcs(
        np.array([0, 0, 1, 2]), np.array([3, 4, 4, 3]), 5, np.array([0]), np.array([4])
    )
    ones = np.ones(4, dtype=int)
    assert arcs.sum_through(ones).tolist() == [NEVER, 1, NEVER, NEVER]
    assert arcs.largest_through(ones).tolist() == [NEVER, 1, NEVER, NEVER]


@pytest.mark.parametrize("name", SOLVERS)
def test_the_example_is_solved_in_its_second_window(name, monkeypatch):
    """138 to 141 has no plan, 142 to 148 has the best one."""
    asked, build = [], Builder.network

    def recorded(self, most):
        asked.append(most)
        return build(self, most)

    monkeypatch.setattr(Builder, "network", recorded)
    output = SOLVERS[name]().solve(EXAMPLE, SolveOptions())
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == 147
    assert [stage.layers for stage in output.plan.stages] == [("a",), ("b", "c")]
    assert output.extra == {"num_sub_problems": 1, "num_solved": 1}
    assert asked == [141, 148]


# Levels, places, neighbors


def test_levels_are_as_many_as_the_memory_needs():
    """With 8 bytes and 4 per layer: two layers only at the very end.

    A layer is held twice second to last, and would be three times before. So
    the only plan is ``a | bc``, which takes 30 + 60 + 2 · 60.
    """
    table, _ = table_of(EXAMPLE)
    assert (table.levels.top, table.levels.loop) == (1, True)
    tight = make_problem(
        {name: make_cost(10, 20, kept_bytes=4, weight_bytes=0) for name in "abc"},
        edge=1,
        devices=3,
        memory_bytes=8,
        topology=make_levels((3, 0.0, 1e15)),
        global_batch=3,
        replicas=(1,),
    )
    table, _ = table_of(tight)
    assert sorted({*table.most.tolist()}) == [1, 2]
    assert table.levels.inflight == (1, 2, 3)
    assert table.levels.loop
    assert spans(table, Builder(table).network(10**6)) == ["a", "bc"]
    for solver in (*SOLVERS.values(), BruteSolver):
        assert solver().solve(tight, SolveOptions()).claimed_quanta == 210


def test_numbers_of_stages_that_the_job_allows_are_levels():
    problem = make_problem(
        {name: make_cost(10, 20) for name in "abc"},
        edge=1,
        devices=3,
        topology=make_levels((3, 0.0, 1e15)),
        global_batch=3,
        replicas=(1,),
        pipeline_parallel=(1, 3),
    )
    table, _ = table_of(problem)
    assert table.levels.starts == (1, 3)
    assert not table.levels.loop
    assert sorted(spans(table, Builder(table).network(10**6))) == ["a", "abc", "b", "c"]


def test_a_tensor_that_passes_a_stage_takes_memory_there():
    """``b`` holds the tensor from ``a`` to ``c``, 8 bytes, once in 15."""
    problem = make_problem(
        {name: make_cost(10, 20) for name in "abc"},
        edges=(("a", "b", 0), ("b", "c", 0), ("a", "c", 8)),
        devices=3,
        memory_bytes=15,
        topology=make_levels((3, 0.0, 1e15)),
        global_batch=3,
        replicas=(1,),
        pipeline_parallel=(3,),
    )
    table, _ = table_of(problem)
    (middle,) = np.flatnonzero(
        (table.cuts.tails[table.pair] == 1)
        & (table.cuts.heads[table.pair] == 2)
        & (table.place == 0)
    )
    assert table.most[middle] == 1
    assert Builder(table).network(10**6) is None
    wider = replace(problem, cluster=with_memory(problem.cluster, 16))
    assert Builder(table_of(wider)[0]).network(10**6) is not None


def with_memory(cluster, memory_bytes):
    return replace(cluster, device=replace(cluster.device, memory_bytes=memory_bytes))


def test_of_equal_strategies_one_with_more_shards_stays():
    """It receives less than the one that comes first."""
    problem = make_problem(
        {"a": (make_cost(10, 20, tp=2, samples=2), make_cost(10, 20))},
        devices=2,
        global_batch=2,
        micro_batches=(2,),
        replicas=(1,),
        data_parallel=(1, 2),
        zero=(0,),
    )
    table, case = table_of(problem)
    assert len(case.family.strategies) == 2
    kept = [choice.strategy for choice in table.places[-1].choices]
    assert [(s.dp, s.tp) for s in kept] == [(2, 1)]


def test_a_bound_takes_all_sync_to_hide_that_may():
    """Half of it, whatever the backward pass."""
    problem = make_problem(
        {"a": make_cost(10, 20, weight_bytes=2000)},
        devices=2,
        topology=make_levels((2, 0.0, 1e9)),
        global_batch=2,
        replicas=(2,),
        overlap={"gradients": 0.5},
    )
    runtime = leading_runtimes(problem)[0]
    assert runtime.overlap == {"gradients"}
    model = CostModel(problem).under(runtime)
    instance = Instance(problem, model, Deadline(None))
    (case,) = [StageFamilyCase(*case) for case in instance.cases()]
    table = StageTable(model, Cuts(model, instance.graph), case, Deadline(None))
    assert table.sync.tolist() == table.hideable.tolist() == [2000]
    assert table.sync_least.tolist() == [1000]
    # Of the 1000 only 20 hide behind the backward pass.
    assert Builder(table).network(10**6).sync.tolist() == [1980]


# Options, limits and what is too large


def test_an_unknown_form_is_refused():
    options = SolveOptions(extra={"form": "stages"})
    with pytest.raises(InvalidOptionError, match="one of paths, layers, got"):
        CpSatSolver().solve(EXAMPLE, options)


@pytest.mark.parametrize(
    ("room", "limit", "most"),
    [
        (cuts, "MAX_SETS", 3),
        (stages, "MAX_ROWS", 2),
        (network, "MAX_STAGES", 1),
        (stages, "MAX_TOTAL", 206),
    ],
)
@pytest.mark.parametrize("name", SOLVERS)
def test_what_is_too_large_is_solved_in_layers(name, room, limit, most, monkeypatch):
    """There are two sub-problems: of one and of two stages."""
    monkeypatch.setattr(room, limit, most)
    output = SOLVERS[name]().solve(EXAMPLE, SolveOptions())
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == 147
    assert output.extra["num_sub_problems"] == 2


LIMITED = SolveOptions(time_limit_s=600)


@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize(
    ("status", "bound", "expected"),
    [
        (cp_model.UNKNOWN, 145.5, (Status.NO_SOLUTION, None, 145)),
        (cp_model.FEASIBLE, 145.5, (Status.FEASIBLE, 147, 145)),
        (cp_model.FEASIBLE, 147.0, (Status.OPTIMAL, 147, 147)),
    ],
)
def test_cpsat_is_believed_no_more_than_it_says(monkeypatch, status, bound, expected):
    solve = cp_model.CpSolver.solve

    def run(self, model):
        solve(self, model)
        return status

    monkeypatch.setattr(cp_model.CpSolver, "solve", run)
    monkeypatch.setattr(cp_model.CpSolver, "best_objective_bound", bound)
    output = CpSatSolver().solve(EXAMPLE, LIMITED)
    assert (output.status, output.claimed_quanta, output.lower_bound_quanta) == expected


@pytest.mark.usefixtures("unstarted")
def test_a_bound_of_floats_is_none(monkeypatch):
    """The network's bound is proven, whatever an engine that stops says."""

    def run(problem, how):
        found = engines.run(problem, how)
        return engines.Outcome(
            engines.Verdict.STOPPED, found.objective, found.objective
        )

    monkeypatch.setattr(milp_paths, "run", run)
    output = MilpSolver().solve(LOOSE, LIMITED)
    found = (output.status, output.claimed_quanta, output.lower_bound_quanta)
    assert found == (Status.FEASIBLE, 78, 74)


# What an engine says is confirmed


def loose_part(engine, kind=Builder):
    """Return the only case of the problem, and its network to 79 quanta."""
    table, case = table_of(LOOSE)
    part = PathNode(
        *(instance_of(LOOSE), table.cuts, case, engine, "milp"),
        MilpSolver.capabilities.proves,
        *(71, 4, kind(table)),
    )
    return part, Builder(table).network(79)


def test_plans_up_to_a_step_time_are_looked_for_in_whole_numbers():
    part, found = loose_part(None)
    assert found.bound == 74
    assert BruteSolver().solve(LOOSE, SolveOptions()).claimed_quanta == 78
    for most in range(72, 86):
        assert part.builder.holds(found, most) == (most >= 78)
        assert part.builder.complete


def least_step(table, found):
    """Return the least step time of all paths of a network, one by one."""
    arcs, steps = found.arcs, []

    def walk(node, path):
        if node in arcs.ends.tolist():
            largest = [max(pace[path]) for pace in (*found.paces, found.sync)]
            steps.append(sum(found.once[path]) + weighted((*table.rounds, 1), largest))
        for a in np.flatnonzero(arcs.tail == node).tolist():
            walk(arcs.head[a], [*path, a])

    for start in arcs.starts.tolist():
        walk(start, [])
    return min(steps)


@pytest.mark.parametrize("seed", range(200))
def test_a_plan_is_where_one_of_all_paths_is_as_fast(seed):
    """Where sums, paces and sync have nothing to do with each other."""
    random = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    tails, heads = np.array([*pairs, *pairs]).T
    arcs, _ = Arcs.of(
        *(tails, heads), lambda nodes: nodes == 0, lambda nodes: nodes == 5
    )
    once, *paces, sync = random.integers(0, 60, (4, len(tails)))
    found = Network(arcs, once, tuple(paces), sync, once, 0)
    table = SimpleNamespace(rounds=(1, 2), deadline=Deadline(None))
    best = int(least_step(table, found))
    for most in (best - 1, best, best + 9):
        assert Builder(table).holds(found, most) == (most >= best)


def test_whole_numbers_contradict_an_engine_that_finds_nothing():
    part, _ = loose_part(lambda task: EngineResult(finished=True))
    with pytest.raises(SolverError, match="no plan of 79 quanta or less, as"):
        part.solve(None)
    assert part.solve(77).children == ()
    (later,) = replace_part(part, spread=3).solve(None).children
    assert later.bound == 78


def test_whole_numbers_contradict_an_engine_that_finds_a_slower_plan():
    """All layers in one stage take 34 in each of three micro-batches."""

    def slow(task):
        names = spans(task.table, task.network)
        return EngineResult(finished=True, plan=task.plan([names.index("abcd")]))

    part, _ = loose_part(slow)
    with pytest.raises(SolverError, match="no plan of 101 quanta or less, a"):
        replace_part(part, bound=100).solve(None)


@pytest.mark.usefixtures("unstarted")
def test_what_time_did_not_suffice_to_confirm_is_open(monkeypatch):
    def late(*_):
        raise OutOfTimeError

    monkeypatch.setattr(Builder, "holds", late)
    output = MilpSolver().solve(LOOSE, LIMITED)
    found = (output.status, output.claimed_quanta, output.lower_bound_quanta)
    assert found == (Status.FEASIBLE, 78, 74)


def test_a_window_with_all_stages_need_not_have_all_plans():
    """No stage is bounded above a window whose end is before every plan."""

    class Whole(Builder):
        def network(self, most):
            return super().network(1000)

    part, _ = loose_part(lambda task: EngineResult(finished=True), Whole)
    (later,) = replace_part(part, spread=1).solve(None).children
    assert part.builder.complete
    assert later.bound == 74


def test_a_path_that_is_not_what_the_engine_says_is_an_error(monkeypatch):
    def wrong(problem, how):
        found = engines.run(problem, how)
        return engines.Outcome(found.verdict, found.objective * 1.001, found.bound)

    monkeypatch.setattr(milp_paths, "run", wrong)
    with pytest.raises(SolverError, match=r"milp: R=1 B=1: expected the mod"):
        MilpSolver().solve(EXAMPLE, SolveOptions())


def test_a_path_is_read_along_the_largest_shares():
    """Of a share of 0.6 of ``a | bc`` and 0.4 of ``ab | c`` the former."""
    table, _ = table_of(EXAMPLE)
    found = Builder(table).network(207)
    shares = {"a": 0.6, "ab": 0.4, "abc": 0.0, "bc": 0.6, "c": 0.4}
    names = spans(table, found)
    task = milp_paths.PathTask(table, found, 207, "milp")
    path = task.walk(lambda a: shares[names[a]])
    assert [names[a] for a in path] == ["a", "bc"]
    assert [stage.strategy for stage in task.plan(path).stages] == [Strategy()] * 2
