"""Granularity ``layer``: every layer of a stage has its own strategy.

Optima are derived by hand. Messages cost 10 ns + 1 ns/byte.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace

from formulations.brute import PlanSpace
from nest.cli.main import main
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Activations, Optimizer, Plan, Stage, Strategy
from nest.ir.io import problem_hash, read_plan, write
from nest.search.layers.options import StageBounds, hull_slopes, unbeaten
from nest.search.stages.options import INFINITE
from nest.solvers.base import Capabilities, Deadline, SolveOptions, Status
from nest.solvers.registry import get_solver
from nest.solvers.run import run_solver
from tests import optima
from tests.builders import (
    PAIRS,
    SINGLE,
    kept_or_full,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
)

layerwise = pytest.mark.parametrize("name", ["brute", "dp", "cpsat", "milp"])


def solve(name, problem, **options):
    return get_solver(name)().solve(problem, SolveOptions(**options))


def coarse(problem):
    return replace(problem, job=replace(problem.job, granularity="stage"))


def chain(costs, size_bytes=0, **fields):
    fields = {
        "devices": 1,
        "global_batch": 2,
        "replicas": (1,),
        "granularity": "layer",
        **fields,
    }
    return make_problem(costs, edge=size_bytes, **fields)


def recomputing(**fields):
    """Four layers of 10 + 20 ns that keep 10 bytes, or 4 with 10 ns more."""
    cost = make_cost(10, 20, activations=kept_or_full(10, 4))
    fields = {"memory_bytes": 34, "recompute": ("none", "full"), **fields}
    return chain(dict.fromkeys("abcd", cost), **fields)


def changing(size_bytes=5, **fields):
    """Layer a is fast on two data ranks, layer b if split over two devices.

    The other way round they take 300 ns; two samples pass between them.
    """
    fast, slow = (10, 20), (100, 200)
    return chain(
        {
            "a": (make_cost(*fast), make_cost(*slow, tp=2, samples=2)),
            "b": (make_cost(*slow), make_cost(*fast, tp=2, samples=2)),
        },
        size_bytes=size_bytes,
        **{"devices": 2, "micro_batches": (2,), "global_batch": 8, **fields},
    )


# What the optimum is


@layerwise
def test_only_one_of_four_layers_recomputes(name):
    """40 bytes do not fit into 34, 30 + 4 do: M = 2, τ = 4 * 30 + 10.

    With one strategy per stage all four recompute: 2 * 160.
    """
    output = solve(name, recomputing())
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == 2 * 130
    (stage,) = output.plan.stages
    chosen = [s.recompute for s in stage.layer_strategies]
    assert sorted(chosen) == ["full", "none", "none", "none"]
    assert solve(name, coarse(recomputing())).claimed_quanta == 2 * 160


@layerwise
@pytest.mark.parametrize(
    ("memory_bytes", "load"),
    [(40, 120), (39, 130), (33, 140), (28, 140), (27, 150), (16, 160)],
)
def test_as_few_layers_recompute_as_memory_allows(name, memory_bytes, load):
    """``r`` of four layers that recompute keep 40 - 6 r bytes."""
    output = solve(name, recomputing(memory_bytes=memory_bytes))
    assert output.claimed_quanta == 2 * load


@layerwise
def test_nothing_fits(name):
    assert solve(name, recomputing(memory_bytes=15)).status is Status.INFEASIBLE


@layerwise
def test_changing_the_layout_inside_a_stage_can_pay(name):
    """M = 4, and τ = 30 + 30 + 20 + 15.

    10 bytes go forward to b in one piece, 10 + 10 ns, and back to a in two,
    10 + 5 ns. One layout for both takes 30 + 300.
    """
    output = solve(name, changing())
    assert output.claimed_quanta == 4 * 95
    (stage,) = output.plan.stages
    assert stage.strategies == (Strategy(dp=2), Strategy(tp=2))
    (terms,) = score(changing(), output.plan).stages
    assert terms.redistribution == 35
    assert solve(name, coarse(changing())).claimed_quanta == 4 * 330


@layerwise
def test_nothing_to_move_costs_no_message(name):
    """As above with an empty tensor: M = 4, and τ = 30 + 30."""
    assert solve(name, changing(0)).claimed_quanta == 4 * 60


@layerwise
def test_a_little_speed_is_not_worth_two_changes(name):
    """M = 4. Layer b is 1 ns faster in a layout that neither a nor c has."""
    costs = {
        "a": make_cost(10, 20),
        "b": (make_cost(10, 20), make_cost(10, 19, tp=2, samples=2)),
        "c": make_cost(10, 20),
    }
    output = solve(name, chain(costs, 5, devices=2, micro_batches=(2,), global_batch=8))
    assert output.claimed_quanta == 4 * 90
    assert output.plan.stages[0].strategy == Strategy(dp=2)


@layerwise
def test_a_change_pays_the_level_that_holds_the_block(name):
    """Over both pairs, 100 ns + 10 ns/byte: 20 bytes to one shard, to four.

    τ = 60 + 300 + 150.
    """
    problem = chain(
        {"a": make_cost(10, 20), "b": make_cost(10, 20, tp=4, samples=4)},
        5,
        devices=4,
        topology=PAIRS,
        micro_batches=(4,),
        data_parallel=(1, 4),
        global_batch=4,
    )
    assert solve(name, problem).claimed_quanta == 510


@layerwise
def test_a_change_pays_the_worst_replica(name):
    """Devices 0 and 1 are a pair, 3 and 4 are not: 10 bytes, M = 1.

    τ = 60 + (100 + 100) + (100 + 50).
    """
    problem = chain(
        {"a": make_cost(10, 20), "b": make_cost(10, 20, tp=2, samples=2)},
        5,
        devices=6,
        topology=make_levels((2, 10.0, 1e9), (3, 100.0, 1e8)),
        micro_batches=(2,),
        data_parallel=(1, 2),
        replicas=(2,),
        global_batch=4,
    )
    assert solve(name, problem).claimed_quanta == 410


@layerwise
def test_the_layers_at_the_boundaries_receive(name):
    """Stages ab | cd on two pairs, M = 1, 4 samples of 5 bytes each.

    b and c run as tp = 2 (a, d as dp = 2): c receives 20 bytes whole in 30
    ns and b gets their gradient in 30. Each stage takes 60 ns and a change:
    10 + 20 and 10 + 10 ns; so T = 2 (60 + 50 + 30). As one stage, two
    changes: T = 120 + 2 * 50, if that may be.
    """
    on_ranks = (make_cost(10, 20, samples=2), make_cost(900, 900, tp=2, samples=4))
    split = (make_cost(900, 900, samples=2), make_cost(10, 20, tp=2, samples=4))
    costs = {"a": on_ranks, "b": split, "c": split, "d": on_ranks}
    fields = {"devices": 4, "micro_batches": (4,), "global_batch": 4}
    assert solve(name, chain(costs, size_bytes=5, **fields)).claimed_quanta == 120 + 100
    heavy = {
        key: tuple(replace(cost, working_bytes=0) for cost in value)
        for key, value in costs.items()
    }
    kept = (Activations(kept_bytes=10),)
    tight = chain(
        {
            key: tuple(replace(cost, activations=kept) for cost in value)
            for key, value in heavy.items()
        },
        size_bytes=5,
        memory_bytes=20,
        **fields,
    )
    output = solve(name, tight)
    assert output.claimed_quanta == 2 * (60 + 50 + 30)
    assert [len(stage.layers) for stage in output.plan.stages] == [2, 2]


def fork(order, *, reverse):
    """Layer a feeds b and c, or reads them; M = 1, 10 bytes per tensor.

    Memory keeps a in a stage of its own. All need a pair of devices; a and
    b run as dp = 2, c as tp = 2.
    """
    costs = {
        "a": make_cost(10, 20, kept_bytes=20),
        "b": make_cost(10, 20, kept_bytes=10),
        "c": make_cost(10, 20, kept_bytes=10, tp=2, samples=2),
    }
    edges = (("a", "b", 5), ("a", "c", 5))
    if reverse:
        edges = tuple((b, a, size) for a, b, size in edges)
    return make_problem(
        {layer: costs[layer] for layer in order},
        edges=edges,
        devices=4,
        replicas=(1,),
        micro_batches=(2,),
        data_parallel=(1, 2),
        global_batch=2,
        memory_bytes=20,
        granularity="layer",
    )


@layerwise
@pytest.mark.parametrize(
    ("order", "reverse", "optimum"),
    [
        ("abc", False, 90 + 15 + 15),
        ("acb", False, 90 + 20 + 15),
        ("bca", True, 90 + 20 + 30),
        ("cba", True, 90 + 20 + 20),
    ],
)
def test_the_order_of_the_graph_says_which_layer_receives(
    name, order, reverse, optimum
):
    """b and c share no edge; of them, the one at the boundary receives.

    One tensor for both: 10 + 5 ns in b's two shards, 10 + 10 in c's one,
    and its gradient back in two shards. Two tensors the other way round:
    a takes 10 + 10 ns, their gradients take 10 + 10 in b's shards, 10 + 20
    in c's.
    """
    output = solve(name, fork(order, reverse=reverse))
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == optimum
    assert [stage.devices for stage in output.plan.stages] == [2, 2]


@layerwise
def test_layers_without_a_common_strategy_share_a_stage(name):
    """Layer a has a cost for dp = 2 only, b for tp = 2 only: τ = 95."""
    costs = {"a": make_cost(10, 20), "b": make_cost(10, 20, tp=2, samples=2)}
    problem = chain(costs, 5, devices=2, micro_batches=(2,), global_batch=8)
    assert solve(name, problem).claimed_quanta == 4 * 95
    assert solve(name, coarse(problem)).status is Status.INFEASIBLE


@layerwise
def test_every_layer_has_its_own_zero_stage(name):
    """Layers b and c must shard their 8 bytes of weights, a need not.

    Weights, gradients and state are as large as each other. On two data
    ranks layers b and c hold 24 bytes each, or 12 sharded and 16 while they
    run; a holds 6, or 3. 6 + 12 + 12 + 16 fit, with one of b and c not
    sharded 6 + 24 + 12 + 16 do not. To shard a costs a message of 10 ns
    more at least: two gathers and a scatter instead of an all-reduce.
    """
    heavy = make_cost(10, 20, weight_bytes=8)
    problem = chain(
        {"a": make_cost(10, 20, weight_bytes=2), "b": heavy, "c": heavy},
        devices=2,
        micro_batches=(2,),
        zero=(0, 3),
        data_parallel=(2,),
        memory_bytes=46,
        optimizer=Optimizer(state_bytes=2),
    )
    output = solve(name, problem)
    assert output.status is Status.OPTIMAL
    (stage,) = output.plan.stages
    assert [s.zero for s in stage.layer_strategies] == [0, 3, 3]
    assert output.claimed_quanta + 10 <= solve(name, coarse(problem)).claimed_quanta


# Plans


def test_plain_enumeration_lists_every_assignment_once():
    """On one device 2 * 2 strategies for ab; a | b are 2 * 2 more."""
    problem = recomputing(devices=2)
    graph = replace(
        problem.graph, layers=problem.graph.layers[:2], edges=problem.graph.edges[:1]
    )
    space = PlanSpace(replace(problem, graph=graph), CostModel(problem), Deadline(None))
    plans = list(space.plans())
    assert len(plans) == len(set(plans)) == space.count(100) == 8
    for plan in plans:
        for stage in plan.stages:
            alike = len(set(stage.layer_strategies)) == 1
            assert (stage.strategy is not None) == alike


@layerwise
def test_the_plan_in_a_file_takes_what_was_claimed(name, tmp_path, capsys):
    path, plan_path = tmp_path / "problem.json", tmp_path / "plan.json"
    write(path, coarse(changing()))
    with pytest.raises(SystemExit) as done:
        main(
            [
                *("solve", str(path), "--solver", name),
                *("--granularity", "layer", "-o", str(plan_path)),
                *("--json", str(tmp_path / "result.json")),
            ]
        )
    assert done.value.code == 0
    (cell,) = json.loads((tmp_path / "result.json").read_text())["cells"]
    assert (cell["status"], cell["step_time_ns"]) == ("optimal", 380)
    plan = read_plan(plan_path)
    assert plan.stages[0].strategies is not None
    assert score(changing(), plan).step_quanta == 380
    assert "stages differ, see --verbose" in capsys.readouterr().out


def test_the_granularity_of_a_problem_can_be_narrowed(tmp_path, capsys):
    path = tmp_path / "problem.json"
    write(path, changing())
    with pytest.raises(SystemExit) as done:
        main(
            [
                *("compare", str(path), "--solvers", "brute,dp"),
                *("--granularity", "stage"),
                *("--json", str(tmp_path / "result.json")),
            ]
        )
    assert done.value.code == 0
    document = json.loads((tmp_path / "result.json").read_text())
    assert {cell["step_time_ns"] for cell in document["cells"]} == {4 * 330}


def test_an_unknown_granularity_is_refused(capsys):
    with pytest.raises(SystemExit) as done:
        main(["solve", "x", "--solver", "dp", "--granularity", "node"])
    assert done.value.code == 2
    assert "expected one of stage, layer; got 'node'" in capsys.readouterr().err


def test_the_default_is_left_out_of_files():
    """So hashes of problems without it are what they were."""
    problem = coarse(changing())
    assert problem_hash(problem) != problem_hash(changing())
    job = replace(problem.job)
    assert problem_hash(replace(problem, job=job)) == problem_hash(problem)


# Who searches it


def test_other_solvers_do_not_search_it():
    """They say so: see ``test_extensions``."""
    other = Capabilities(exact=True, method="one strategy per stage")
    assert other.unsearched(changing()) == ("granularity",)
    assert other.beyond(MIXED) == "granularity"
    for name in ("brute", "dp", "cpsat", "milp"):
        assert not get_solver(name).capabilities.unsearched(changing())


@layerwise
def test_a_proof_holds_for_all_plans(name):
    result = run_solver(changing(), name)
    assert result.status is Status.OPTIMAL
    assert result.lower_bound_quanta == get_solver(name).capabilities.proves(380)


MIXED = Plan(
    replicas=1,
    micro_batch=2,
    stages=(
        Stage(
            layers=("a", "b"), devices=2, strategies=(Strategy(dp=2), Strategy(tp=2))
        ),
    ),
)


@layerwise
def test_a_mixed_plan_can_be_the_start(name):
    output = solve(name, changing(), warm_start=MIXED)
    assert (output.status, output.claimed_quanta) == (Status.OPTIMAL, 380)


def test_out_of_time_keeps_the_plan_and_claims_nothing():
    start = make_plan(("a b c d", Strategy(recompute="full")))
    output = solve("dp", recomputing(), time_limit_s=1e-9, warm_start=start)
    assert output.status is Status.FEASIBLE
    assert output.claimed_quanta == 320
    assert output.lower_bound_quanta in (0, None)


# In-flight counts, paces, and tensors that pass


@pytest.mark.parametrize("setting", optima.SETTINGS)
def test_most_in_flight_of_a_group(setting):
    """Memory for one layer per device: three stages, three in flight.

    T = 90 + 3 * 30. Counts of 2 and 3 may share a relaxed option.
    """
    cost = make_cost(10, 20, weight_bytes=10, kept_bytes=1)
    problem = chain(
        dict.fromkeys("abc", cost), devices=3, global_batch=4, memory_bytes=80 + 3
    )
    assert optima.search(problem, setting).claimed_quanta == 180


@pytest.mark.parametrize("setting", optima.SETTINGS)
def test_least_in_flight_of_a_group(setting):
    """Layer a fits with two in flight, not with three: a | bc.

    M = 3: 30 + 60 + 2 * 60. In one stage they would take 3 * 90.
    """
    light = make_cost(10, 20, kept_bytes=10)
    problem = chain(
        {"a": make_cost(10, 20, kept_bytes=20), "b": light, "c": light},
        devices=3,
        global_batch=3,
        memory_bytes=40,
    )
    assert optima.search(problem, setting).claimed_quanta == 210


@layerwise
def test_a_slower_way_that_fits_more_micro_batches_counts(name):
    """Layer a fits plain with two in flight, but three stages are better.

    M = 4: with a recomputed 40 + 30 + 30 and 3 * 40 more; a | bc takes 30 +
    60 + 3 * 60.
    """
    choices = (Activations(kept_bytes=10), Activations(recompute="full", kept_bytes=4))
    problem = chain(
        dict.fromkeys("abc", make_cost(10, 20, activations=choices)),
        devices=3,
        global_batch=4,
        recompute=("none", "full"),
        memory_bytes=20,
    )
    for output in (solve(name, problem), optima.search(problem)):
        assert output.claimed_quanta == 220


@layerwise
def test_less_memory_may_come_with_a_larger_working_set(name):
    """Layer a keeps 10 bytes and works with 50, or keeps 20; b 45 or 30.

    Of 100 bytes the first leaves too little for b to keep 45, as it does
    without 10 ns of recomputation.
    """
    problem = chain(
        {
            "a": make_cost(
                10,
                20,
                activations=(
                    Activations(kept_bytes=10, working_bytes=50),
                    Activations(recompute="selective", kept_bytes=20),
                ),
            ),
            "b": make_cost(
                10,
                20,
                activations=(
                    Activations(kept_bytes=45),
                    Activations(recompute="selective", kept_bytes=30, extra_ns=10.0),
                ),
            ),
        },
        recompute=("none", "selective"),
        memory_bytes=100,
    )
    assert solve(name, problem).claimed_quanta == 2 * 60


@layerwise
def test_gpipe_waits_for_the_slowest_of_both_passes(name):
    """Layer b takes 40 + 10 on data ranks or 10 + 39 split; a takes 40 + 10.

    M = 4, and memory for a pair of devices each. The slower way of b is the
    better one: 100 + 3 * (40 + 10), not 99 + 3 * (40 + 39).
    """
    problem = chain(
        {
            "a": make_cost(40, 10, kept_bytes=4),
            "b": (
                make_cost(40, 10, kept_bytes=4),
                make_cost(10, 39, kept_bytes=4, tp=2, samples=2),
            ),
        },
        devices=4,
        micro_batches=(2,),
        global_batch=8,
        schedule="gpipe",
        memory_bytes=16,
    )
    for output in (solve(name, problem), optima.search(problem)):
        assert output.claimed_quanta == 250


@layerwise
@pytest.mark.parametrize(
    ("split", "memory_bytes"), [(1, 90), (1, 89), (2, 100), (2, 99)]
)
def test_what_passes_a_stage_takes_memory_in_its_first_layout(
    name, split, memory_bytes
):
    """10 bytes pass b: 5 on either data rank, or 10 on ranks that split it.

    Twice that with two in flight. Weights and state of a layer take 80, so
    that each has a pair of devices of its own; c could run either way.
    """
    ranks = make_cost(10, 20, weight_bytes=10)
    split_ranks = make_cost(10, 20, weight_bytes=10, tp=2, samples=2)
    problem = make_problem(
        {
            "a": ranks,
            "b": ranks if split == 1 else split_ranks,
            "c": (ranks, split_ranks),
        },
        edges=(("a", "b", 0), ("b", "c", 0), ("a", "c", 5)),
        devices=6,
        replicas=(1,),
        micro_batches=(2,),
        global_batch=8,
        memory_bytes=memory_bytes,
        granularity="layer",
    )
    for output in (solve(name, problem), optima.search(problem)):
        assert (output.plan is not None) == (memory_bytes % 10 == 0)


# The parts of the search


def test_slopes_of_the_lower_hull():
    """(0, 100), (10, 50), (40, 20) are its corners; (20, 45) is above it.

    50/10 ns per byte, then 30/30.
    """
    memory = np.array([0, 20, 10, 40, 50])
    load = np.array([100, 45, 50, 20, 20])
    assert hull_slopes([load], [memory]).tolist() == [1.0, 5.0]
    assert hull_slopes([load[:1]], [memory[:1]]).tolist() == []


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ([(0, 1, 2), (0, 1, 2)], [0]),
        ([(0, 2, 2), (0, 1, 2), (1, 3, 3)], [1, 2]),
        ([(0, 1, 3), (0, 2, 2), (0, 3, 1), (0, 3, 2)], [0, 1, 2]),
        ([], []),
    ],
)
def test_rows_that_no_other_one_beats(rows, kept):
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    assert unbeaten(table[:, 0], [table[:, 1], table[:, 2]]).tolist() == kept


def test_rows_that_no_other_one_beats_among_many():
    rng = np.random.default_rng(0)
    table = rng.integers(0, 6, size=(300, 4))
    group = rng.integers(0, 3, size=300)
    found = set(unbeaten(group, [table[:, i] for i in range(4)]).tolist())
    for row in range(300):
        beaten = any(
            group[other] == group[row]
            and (table[other] <= table[row]).all()
            and (other < row or (table[other] != table[row]).any())
            for other in range(300)
        )
        assert beaten == (row not in found)


def test_single_layers_are_as_before():
    """A stage of one layer has no change of strategy to make."""
    problem = chain({"a": make_cost(10, 20)})
    output = solve("dp", problem)
    assert output.claimed_quanta == 60
    assert output.plan.stages[0].strategy == SINGLE


def test_bounds_of_stages_that_do_not_fit_stay_in_64_bits():
    """A byte is worth 2**40 quanta, and 2**40 bytes are missing."""
    costs, memory = [np.array([0, 2**40])], [np.array([1, 0])]
    bounds = StageBounds(costs, memory)
    found = bounds.of(np.array([[1]]), np.array([-(2**40)]))
    assert found.tolist() == [int(INFINITE)]
