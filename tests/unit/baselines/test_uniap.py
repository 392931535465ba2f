"""``uniap``: its numbers by hand, its program against enumeration.

One link of 10 ns per message and 1 ns per byte; layers of 10 + 20 ns that
hold 16 bytes per 2 bytes of weights; edges of 100 bytes.
"""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from baselines.common import Search
from baselines.uniap import Builder, Pair, Program, UniapSolver, group_layers, optimize
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import BatchSplit
from nest.ir import Graph, Layer, Problem, Strategy
from nest.solvers.base import Deadline, Limit, SolveOptions, Status, ignore_progress
from tests import planners
from tests.builders import make_cost, make_plan, make_problem

ONE, TP2, DP2 = Strategy(), Strategy(tp=2), Strategy(dp=2)
FSDP = Strategy(dp=2, zero=3)

chain_of = partial(planners.chain_of, kept_bytes=12)


def solve(problem: Problem, seed: int = 0, **extra: str) -> Any:
    return UniapSolver().solve(problem, SolveOptions(seed=seed, extra=extra))


def pair_of(builder: Builder, replicas: int, micro_batch: int, stages: int) -> Pair:
    (found,) = (
        pair
        for pair in builder.pairs()
        if (pair.case.replicas, pair.case.micro_batch, pair.num_stages)
        == (replicas, micro_batch, stages)
    )
    return found


def random_program(draw: random.Random, *, alike: bool) -> Program:
    """Return a program of a few groups and strategies."""
    size, choices = draw.randint(1, 5), draw.randint(1, 3)
    stages = draw.randint(1, min(3, size))
    case = BatchSplit(1, 1, draw.randint(1, 6), 8)

    def row(most: int) -> list[int]:
        return [draw.randint(0, most) for _ in range(choices)]

    passes: list[list[int | None]] = [list(row(99)) for _ in range(size)]
    if choices > 1 and draw.random() < 0.3:
        passes[draw.randrange(size)][draw.randrange(choices)] = None
    return Program(
        pair=Pair(case, stages, 2),
        groups=[(i, i + 1) for i in range(size)],
        # any two strategies: the program looks at their numbers only
        choices=[Strategy(tp=tp + 1) for tp in range(choices)],
        passes=passes,
        static_bytes=[row(40) for _ in range(size)],
        kept_bytes=[row(20) for _ in range(size)],
        change=[
            [
                [0 if k == m else draw.randint(0, 60) for m in range(choices)]
                for k in range(choices)
            ]
            for _ in range(size - 1)
        ],
        receive=[row(80) for _ in range(size - 1)],
        send=[row(80) for _ in range(size - 1)],
        in_flight=[draw.randint(1, 3) for _ in range(stages)],
        capacity_bytes=draw.choice((60, 90, 150, 10**6)),
        alike=alike,
    )


def enumerate_values(program: Program) -> list[int]:
    """Return the values of all solutions."""
    size = len(program.groups)
    return [
        value
        for cuts in itertools.combinations(range(1, size), program.pair.num_stages - 1)
        for chosen in itertools.product(range(len(program.choices)), repeat=size)
        if (value := program.value((*cuts, size), chosen)) is not None
    ]


# The objective


def by_hand(**changes: Any) -> Program:
    """Return three groups on two stages, two strategies, 4 micro-batches."""
    fields: dict[str, Any] = {
        "pair": Pair(BatchSplit(1, 1, 4, 4), 2, 2),
        "groups": [(0, 1), (1, 2), (2, 3)],
        "choices": [DP2, TP2],
        "passes": [[30, 20], [30, 20], [50, 70]],
        "static_bytes": [[10, 5], [10, 5], [10, 5]],
        "kept_bytes": [[4, 2], [4, 2], [4, 2]],
        "change": [[[0, 7], [9, 0]], [[0, 7], [9, 0]]],
        "receive": [[3, 4], [5, 6]],
        "send": [[1, 2], [11, 12]],
        "in_flight": [2, 1],
        "capacity_bytes": 100,
        "alike": False,
    }
    return Program(**(fields | changes))


def test_objective_by_hand() -> None:
    """Stages {0, 1} and {2}, all dp 2: 60 and 50, a move of 5 + 11.

    ``60 + 50 + 16 + 3 * 60``.
    """
    assert by_hand().value([2, 3], [0, 0, 0]) == 306
    # tp 2 in front: 40 and 50, a move of 5 + 12.
    assert by_hand().value([2, 3], [1, 1, 0]) == 40 + 50 + 17 + 3 * 50
    # A change of 7 inside the first stage; none at the cut.
    assert by_hand().value([2, 3], [0, 1, 0]) == 57 + 50 + 17 + 3 * 57


def test_a_move_may_be_the_longest() -> None:
    program = by_hand(send=[[1, 2], [200, 200]])
    assert program.value([2, 3], [0, 0, 0]) == 60 + 50 + 205 + 3 * 205


def test_memory_by_hand() -> None:
    """Two micro-batches on the first stage: 2 * (10 + 2 * 4) = 36."""
    assert by_hand(capacity_bytes=36).value([2, 3], [0, 0, 0]) == 306
    assert by_hand(capacity_bytes=35).value([2, 3], [0, 0, 0]) is None
    assert by_hand(capacity_bytes=18).value([2, 3], [1, 1, 0]) == 257
    assert by_hand(capacity_bytes=17).value([2, 3], [1, 1, 0]) is None


def test_no_cost_and_no_mixture() -> None:
    table = [[30, 20], [30, None], [50, 70]]
    assert by_hand(passes=table).value([2, 3], [0, 1, 0]) is None
    assert by_hand(alike=True).value([2, 3], [0, 1, 0]) is None
    assert by_hand(alike=True).value([2, 3], [1, 1, 0]) == 257
    assert by_hand(passes=[[None, None], [1, 1], [1, 1]]).bound() is None


def test_bound() -> None:
    """20 + 20 + 50 and three times half of that, or the longest group."""
    assert by_hand().bound() == 90 + 3 * 50
    even = by_hand(passes=[[30, 20], [30, 20], [30, 20]])
    assert even.bound() == 60 + 3 * 30


# The program


def run(program: Program, cutoff: int | None = None, **options: Any) -> Any:
    search = Search("uniap", chain_of(), SolveOptions(**options), ignore_progress)
    return optimize(program, cutoff, search, 20)


@pytest.mark.parametrize("alike", [False, True])
def test_program_against_enumeration(alike: bool) -> None:
    draw = random.Random(2024 + alike)
    outcomes = {"solved": 0, "infeasible": 0}
    for _ in range(60):
        program = random_program(draw, alike=alike)
        values = enumerate_values(program)
        found, finished = run(program)
        assert finished
        if not values:
            assert found is None
            outcomes["infeasible"] += 1
            continue
        outcomes["solved"] += 1
        best = min(values)
        assert found is not None
        assert found.value == best
        assert program.value(found.stops, found.chosen) == best
        bound = program.bound()
        assert bound is not None
        assert bound <= best
        # Nothing is below the optimum, and the optimum is below itself + 1.
        assert run(program, best) == (None, True)
        assert run(program, best + 1)[0].value == best
    assert min(outcomes.values()) > 5


def test_program_stops_in_time() -> None:
    found, finished = run(by_hand(), time_limit_s=1e-9)
    assert found is None
    assert not finished


def test_no_program_is_begun_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """To build one takes time too."""
    monkeypatch.setattr(Deadline, "passed", True)
    monkeypatch.setattr("ortools.sat.python.cp_model.CpSolver", None)
    assert run(by_hand()) == (None, False)


# The numbers


def test_numbers_of_a_pair() -> None:
    """Two stages of two devices, 2 micro-batches of 2 samples.

    dp 2: 30 ns of one sample, and a share of the sync: 2 (10 + 8/2) = 28, half of it.
    tp 2: 2 samples on two devices. A cut of 200 bytes: dp 2 receives half.
    """
    problem = chain_of(
        3, global_batch=4, micro_batches=(2,), zero=(0, 3), replicas=(1,)
    )
    builder = Builder(CostModel(problem), 48)
    program = builder.program(pair_of(builder, 1, 2, 2))
    by_strategy = {s: i for i, s in enumerate(program.choices)}
    assert set(by_strategy) == {DP2, TP2, FSDP}
    dp, tp, fsdp = (by_strategy[s] for s in (DP2, TP2, FSDP))
    assert program.passes[1][dp] == 30 + 14
    assert program.passes[1][tp] == 30
    # Two gathers of 8 bytes, one scatter: 10 + 4 each; nothing to sync.
    assert program.passes[1][fsdp] == 30 + 3 * 14
    # 8 + 8 + 48 bytes; a half; 4 * 8, ceil of each half.
    assert program.static_bytes[1][dp] == 64
    assert program.static_bytes[1][tp] == 32
    assert program.static_bytes[1][fsdp] == 32
    assert program.kept_bytes[1][dp] == 12
    assert program.kept_bytes[1][tp] == 12
    assert program.receive[0] == program.receive[1]
    assert program.receive[0][dp] == 10 + 100
    assert program.receive[0][tp] == 10 + 200
    assert program.send[1][dp] == 10 + 100
    # dp 2 to tp 2: forward as tp 2 receives, backward as dp 2.
    assert program.change[0][dp][tp] == 10 + 200 + 10 + 100
    assert program.change[0][dp][fsdp] == 0
    assert program.in_flight == [2, 1]
    assert program.alike


def test_micro_batches_in_flight_under_gpipe() -> None:
    problem = chain_of(3, global_batch=4, schedule="gpipe", replicas=(1,))
    builder = Builder(CostModel(problem), 48)
    program = builder.program(builder.pairs()[0])
    assert program.in_flight == [4] * program.pair.num_stages


def test_outer_loop() -> None:
    """All pairs (c, S) that use four devices, with the fewest replicas."""
    problem = chain_of(4, global_batch=8, micro_batches=(1, 2))
    found = {
        (pair.case.num_micro_batches, pair.num_stages): (
            pair.case.replicas,
            pair.case.micro_batch,
            pair.devices,
        )
        for pair in Builder(CostModel(problem), 48).pairs()
    }
    assert found == {
        (8, 2): (1, 1, 2),  # tp 2
        (8, 4): (1, 1, 1),
        (4, 1): (1, 2, 4),  # dp 2 tp 2
        (4, 2): (1, 2, 2),
        (4, 4): (1, 2, 1),
        (2, 1): (2, 2, 2),
        (2, 2): (2, 2, 1),
        (1, 1): (4, 2, 1),
    }


def test_idle_devices_only_if_there_is_no_other_way() -> None:
    """Three devices, and stages of one or two: three stages of one."""
    problem = chain_of(4, devices=3, global_batch=2)
    pairs = Builder(CostModel(problem), 48).pairs()
    assert {p.num_stages for p in pairs} == {3}
    problem = chain_of(2, devices=3, global_batch=2)
    pairs = Builder(CostModel(problem), 48).pairs()
    assert {(p.num_stages, p.devices) for p in pairs} == {(1, 2), (2, 1), (1, 1)}


@pytest.mark.parametrize(
    ("kinds", "most", "lengths"),
    [
        ("ebbbbbbo", 48, [1] * 8),
        ("ebbbbbbo", 3, [1, 2, 2, 2, 1]),
        # 7 has no divisor near 4: lengths that differ by one.
        ("ebbbbbbbo", 4, [1, 2, 2, 2, 1, 1]),
        ("bbbb", 1, [4]),
        ("abc", 2, [2, 1]),
    ],
)
def test_groups(kinds: str, most: int, lengths: list[int]) -> None:
    base = make_problem({kind: make_cost(1, 1) for kind in sorted({*kinds})})
    problem = replace(
        base,
        graph=Graph(
            kinds=base.graph.kinds,
            layers=tuple(Layer(id=i, kind=kind) for i, kind in enumerate(kinds)),
        ),
    )
    found = group_layers(problem, most)
    assert [stop - start for start, stop in found] == lengths
    assert found[0][0] == 0
    assert found[-1][1] == len(kinds)
    for (_, stop), (start, _) in itertools.pairwise(found):
        assert stop == start


# The planner


def test_start() -> None:
    """Even stages {0, 1} and {2} with one strategy, the better one.

    tp 2 takes 40 and 70, and 6 + 12 for the move: 128 + 3 * 70.
    """
    assert by_hand().start() == ([2, 3], [0, 0, 0], 306)
    cheap = by_hand(passes=[[30, 20], [30, 20], [50, 40]])
    assert cheap.start() == ([2, 3], [1, 1, 1], 40 + 40 + 18 + 3 * 40)
    # dp 2 needs 36 bytes on the first stage, tp 2 half of it.
    tight = by_hand(capacity_bytes=35)
    assert tight.start() == ([2, 3], [1, 1, 1], 338)
    assert by_hand(capacity_bytes=17).start() is None


def test_plan_by_hand() -> None:
    """One device's memory holds one layer: two stages, 2 micro-batches.

    60 + 110 * 2 for the move, and once more the move.
    """
    problem = chain_of(
        devices=2, global_batch=2, memory_bytes=100, replicas=(1,), tensor_parallel=(1,)
    )
    output = solve(problem)
    assert output.plan == make_plan(("a", ONE), ("b", ONE))
    assert output.own_objective_ns == 60 + 220 + 220
    # In truth the receives are part of the stages: 140 + 140 + 140.
    assert score(problem, output.plan).step_quanta == 3 * 140
    assert output.detail == "1 of 1 programs"
    assert output.limit is None


@pytest.mark.parametrize("seed", range(8))
def test_planner_against_enumeration(seed: int) -> None:
    """The least value of all programs, each enumerated."""
    draw = random.Random(seed)
    table = tuple(
        make_cost(
            draw.randint(5, 60) * n,
            draw.randint(5, 90) * n,
            tp=tp,
            samples=n,
            weight_bytes=draw.randint(1, 12),
            kept_bytes=draw.randint(0, 30) * n,
        )
        for tp in (1, 2)
        for n in (1, 2)
    )
    problem = chain_of(
        4,
        table=table,
        global_batch=8,
        micro_batches=(1, 2),
        memory_bytes=draw.randint(80, 400),
        zero=(0, 3),
        granularity=("stage", "layer")[seed % 2],
    )
    builder = Builder(CostModel(problem), 48)
    values = [
        value
        for pair in builder.pairs()
        for value in enumerate_values(builder.program(pair))
    ]
    output = solve(problem)
    if not values:
        assert output.plan is None
        return
    assert output.own_objective_ns == min(values)
    score(problem, output.plan)  # raises if it is no plan


def test_grouped_layers_share_a_strategy() -> None:
    problem = chain_of(8, global_batch=8, granularity="layer", devices=2)
    output = solve(problem, groups="2")
    for stage in output.plan.stages:
        assert len(stage.layers) in (4, 8)


def test_no_costs() -> None:
    problem = make_problem({"a": make_cost(1, 1, tp=2)}, devices=1)
    output = solve(problem)
    assert output.status is Status.NO_SOLUTION
    assert output.detail == "no stages of equal size have costs"


def test_time_limit_keeps_the_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit passes while the first program is solved."""
    passed = False

    def last(*arguments: Any) -> Any:
        nonlocal passed
        found = optimize(*arguments)
        passed = True
        return found

    monkeypatch.setattr("baselines.uniap.optimize", last)
    monkeypatch.setattr(Deadline, "passed", property(lambda self: passed))
    output = solve(chain_of(4, global_batch=8, micro_batches=(1, 2)))
    assert (output.status, output.limit) == (Status.FEASIBLE, Limit.TIME)
    assert output.detail == "1 of 8 programs"
    assert output.plan is not None
