"""``mcmc``: its objective by hand, its moves, and what it takes and keeps.

One link of 10 ns per message and 1 ns per byte; layers of 10 + 20 ns that
hold 16 bytes per 2 bytes of weights.
"""

from __future__ import annotations

import itertools
import random
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from baselines import mcmc, mcmc_walk
from baselines.common import alone
from baselines.mcmc import McmcSolver
from baselines.mcmc_pipelines import PipelinedWalk
from baselines.mcmc_walk import State, Walk
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Activations, Problem, Strategy
from nest.solvers.base import Progress, SolveOptions, Status
from tests.builders import make_cost, make_levels, make_problem
from tests.planners import chain_of

DP2, TP2 = Strategy(dp=2), Strategy(tp=2)
ONE = Strategy()


def walk_of(problem: Problem) -> Walk:
    return Walk(CostModel(problem))


def legal_states(problem: Problem, walk: Walk, steps: int) -> set[State]:
    """Return where a walk comes that takes all it proposes, all plans."""
    draw = random.Random(5)
    current = walk.start(draw)
    assert current is not None
    seen: set[State] = set()
    for _ in range(steps):
        proposal = walk.rewrite(draw, current)
        if proposal is not None:
            score(problem, walk.plan(proposal))  # raises if it is not
            seen.add(proposal)
            current = proposal
    return seen


def pipelined(problem: Problem) -> PipelinedWalk:
    return PipelinedWalk(CostModel(problem))


def state(walk: Walk, replicas: int, micro_batch: int, *stages) -> State:
    """Return a state from (number of layers, strategy) per stage."""
    (case,) = (
        case
        for case in walk.splits
        if (case.replicas, case.micro_batch) == (replicas, micro_batch)
    )
    stops = tuple(itertools.accumulate(count for count, _ in stages))
    layers = tuple(strategy for count, strategy in stages for _ in range(count))
    return State(case, stops, layers)


def solve(problem: Problem, seed: int = 0, **extra: str) -> Any:
    return McmcSolver().solve(problem, SolveOptions(seed=seed, extra=extra))


# The objective


def test_stages_run_one_after_another() -> None:
    """4 micro-batches of 60 ns; on two stages 2 * (10 + 100) ns more each.

    The shared score lets the stages overlap, the walk does not see that.
    """
    problem = chain_of(global_batch=4)
    walk = walk_of(problem)
    assert walk.value(state(walk, 1, 1, (2, ONE))) == 4 * 60
    two = state(walk, 1, 1, (1, ONE), (1, ONE))
    assert walk.value(two) == 4 * (60 + 220)
    assert score(problem, walk.plan(two)).step_quanta == 2 * 140 + 3 * 140


def test_sync_comes_last() -> None:
    """dp 2: half the work, and gradients of 2 * 8 bytes all-reduced.

    ``2 (10 + 8/2)`` ns for every layer.
    """
    problem = chain_of(global_batch=4, micro_batches=(2,))
    walk = walk_of(problem)
    assert walk.value(state(walk, 1, 2, (2, DP2))) == 2 * 60 + 2 * 28
    # Two stages: the longer sync counts.
    two = state(walk, 1, 2, (1, DP2), (1, DP2))
    assert walk.value(two) == 2 * (60 + 2 * (10 + 100)) + 28


def test_strategy_change_inside_a_stage() -> None:
    """From dp 2 to tp 2: 2 * 100 bytes, forward whole, backward halved."""
    problem = chain_of(global_batch=2, micro_batches=(2,), granularity="layer")
    walk = walk_of(problem)
    mixed = state(walk, 1, 2, (2, DP2))._replace(layers=(DP2, TP2))
    assert walk.value(mixed) == 30 + 30 + (10 + 200) + (10 + 100) + 28


@pytest.mark.parametrize(("memory", "lacking"), [(128, 0), (127, 1), (100, 28)])
def test_a_millisecond_per_megabyte(memory: int, lacking: int) -> None:
    """Two layers of 64 bytes: what lacks costs 1 ns per byte and device."""
    problem = chain_of(global_batch=4, memory_bytes=memory)
    walk = walk_of(problem)
    assert walk.value(state(walk, 1, 1, (2, ONE))) == 240 + lacking
    # Two replicas, half the micro-batches, twice the devices, and a sync.
    two = walk.value(state(walk, 2, 1, (2, ONE)))
    assert two == 120 + 56 + 2 * lacking


def test_penalty_in_other_quanta() -> None:
    problem = chain_of(global_batch=4, memory_bytes=100, quantum_ps=500)
    walk = walk_of(problem)
    assert walk.value(state(walk, 1, 1, (2, ONE))) == 2 * (240 + 28)


def test_activations_of_one_micro_batch() -> None:
    """Two stages keep 2 and 1 under 1F1B; the walk counts one each."""
    table = (make_cost(10, 20, weight_bytes=8, kept_bytes=36),)
    problem = chain_of(table=table, global_batch=4, memory_bytes=100)
    walk = walk_of(problem)
    two = state(walk, 1, 1, (1, ONE), (1, ONE))
    assert walk.value(two) == 4 * (60 + 220)
    assert not score(problem, walk.plan(two)).feasible


def test_a_percent_per_megabyte() -> None:
    """240 ns, and 2 layers of 64 MB where there is room for 103: 25 %.

    On two replicas, of half the micro-batches, twice the devices lack it.
    """
    table = (make_cost(10, 20, weight_bytes=8 * 10**6),)
    problem = chain_of(table=table, global_batch=4, memory_bytes=103 * 10**6)
    walk = walk_of(problem)
    walk.relative = True
    assert walk.value(state(walk, 1, 1, (2, ONE))) == 300
    time = 2 * 60 + 2 * 2 * (10 + 4 * 10**6)
    two = walk.value(state(walk, 2, 1, (2, ONE)))
    assert two == time + time // 2


# Pipelines


def test_stages_overlap_in_pipelines() -> None:
    """Both stages take 140 ns, the first micro-batch passes both.

    The same as the shared score says of it, which has no sync here.
    """
    problem = chain_of(global_batch=4)
    walk = pipelined(problem)
    two = state(walk, 1, 1, (1, ONE), (1, ONE))
    assert walk.value(two) == 2 * 140 + 3 * 140
    assert score(problem, walk.plan(two)).step_quanta == walk.value(two)
    # dp 2: 2 (10 + 8/2) ns of sync come last, once.
    halves = state(walk, 2, 1, (1, ONE), (1, ONE))
    assert walk.value(halves) == 2 * 140 + 140 + 28


@pytest.mark.parametrize(("schedule", "lacking"), [("1f1b", 36 * 1), ("gpipe", 36 * 6)])
def test_pipelines_keep_what_is_in_flight(schedule: Any, lacking: int) -> None:
    """64 + 36 bytes per stage; 1F1B keeps 2 and 1 of the 36, GPipe 4 and 4."""
    table = (make_cost(10, 20, weight_bytes=8, kept_bytes=36),)
    problem = chain_of(table=table, global_batch=4, memory_bytes=100, schedule=schedule)
    walk = pipelined(problem)
    two = state(walk, 1, 1, (1, ONE), (1, ONE))
    assert walk.value(two) == 5 * 140 + lacking


def test_replicas_make_room_for_stages() -> None:
    """On 4 devices: split, a stage of 4 becomes 2 pipelines; merged, 4."""
    walk = pipelined(chain_of(3, global_batch=8, devices=4))
    split, merge = walk.moves[1:3]
    one = state(walk, 4, 1, (3, ONE))
    seen = {split(random.Random(seed), one, 1) for seed in range(20)}
    assert seen == {
        state(walk, 2, 1, (1, ONE), (2, ONE)),
        # tp 2 in the second stage: 3 devices in all
        state(walk, 1, 1, (1, ONE), (2, TP2)),
    }
    two = state(walk, 2, 1, (1, ONE), (2, ONE))
    assert merge(random.Random(0), two, 0) == one


def test_pipelines_of_even_stages_are_drawn() -> None:
    """On 4 devices: stages of 5 layers, all of one strategy, replicas full."""
    walk = pipelined(chain_of(5, global_batch=4, devices=4))
    start = state(walk, 4, 1, (5, ONE))
    seen = {walk._pipeline(random.Random(seed), start, 0) for seed in range(100)}
    assert seen == {
        start,
        state(walk, 2, 1, (3, ONE), (2, ONE)),
        state(walk, 1, 1, (2, ONE), (2, ONE), (1, ONE)),
        state(walk, 1, 1, (2, ONE), (1, ONE), (1, ONE), (1, ONE)),
        state(walk, 2, 1, (5, TP2)),
        state(walk, 1, 1, (3, TP2), (2, TP2)),
    }


# Where it starts, and what it may use


def test_starts_with_data_parallelism() -> None:
    """All devices, the fewest micro-batches, and then few replicas."""
    walk = walk_of(chain_of(global_batch=8, micro_batches=(1, 2)))
    start = walk.start(random.Random(0))
    assert start == state(walk, 4, 2, (2, ONE))
    one = (make_cost(10, 20, samples=1),)
    walk = walk_of(chain_of(table=one, global_batch=8, micro_batches=(1, 2)))
    start = walk.start(random.Random(0))
    assert start == state(walk, 2, 2, (2, DP2))


def test_starts_with_the_fewest_stages_that_the_job_allows() -> None:
    walk = walk_of(chain_of(3, global_batch=8, pipeline_parallel=(2, 3)))
    start = walk.start(random.Random(0))
    assert start == state(walk, 2, 1, (2, ONE), (1, ONE))


def test_starts_anywhere_if_data_parallelism_has_no_cost() -> None:
    """Layer b needs two devices, a only one: two stages."""
    problem = make_problem(
        {"a": make_cost(10, 20), "b": make_cost(10, 20, tp=2)}, devices=3
    )
    walk = walk_of(problem)
    assert walk.start(random.Random(0)) == State(walk.splits[0], (1, 2), (ONE, TP2))
    stuck = replace(problem, cluster=replace(problem.cluster, num_devices=2))
    output = solve(stuck)
    assert output.status is Status.NO_SOLUTION
    assert output.detail == "no plan found to start from"


def test_no_zero_no_recomputation() -> None:
    """The least of what the job allows."""
    table = tuple(
        make_cost(
            10,
            20,
            samples=n,
            cp=cp,
            activations=tuple(
                Activations(recompute=name, kept_bytes=0) for name in ("none", "full")
            ),
        )
        for n in (1, 2)
        for cp in (1, 2)
    )
    fields: dict[str, Any] = {"table": table, "micro_batches": (2,), "global_batch": 2}
    walk = walk_of(chain_of(zero=(0, 1, 3), recompute=("none", "full"), **fields))
    assert set(walk.pool(walk.splits[0])) == {ONE, DP2}
    walk = walk_of(chain_of(zero=(1, 3), recompute=("full",), **fields))
    assert set(walk.pool(walk.splits[0])) == {
        Strategy(zero=1, recompute="full"),
        Strategy(dp=2, zero=1, recompute="full"),
    }


# The moves


def joined(*moves: tuple[int, int]) -> tuple[tuple[int, ...], str]:
    """Join layers of three stages (2, 1, 2 layers; A, B, C) one by one."""
    names = {"A": Strategy(), "B": TP2, "C": DP2}
    letters = {strategy: name for name, strategy in names.items()}
    case: Any = None
    current = State(case, (2, 3, 5), tuple(names[x] for x in "AABCC"))
    for layer, target in moves:
        current = mcmc_walk._join(current, layer, target)
    return current.stops, "".join(letters[s] for s in current.layers)


@pytest.mark.parametrize(
    ("moves", "stops", "layers"),
    [
        ([(0, 1)], (2, 3, 5), "AABCC"),
        # Layer 2 joins the stage in front: that of B is gone.
        ([(1, 2)], (3, 5), "AAACC"),
        ([(3, 2)], (2, 5), "AACCC"),
        # Layer 1 joins the stage behind, then layer 0 too.
        ([(2, 1)], (1, 3, 5), "ABBCC"),
        ([(2, 1), (1, 0)], (3, 5), "BBBCC"),
        # Layer 3 joins B, then layer 4.
        ([(2, 3)], (2, 4, 5), "AABBC"),
        ([(2, 3), (3, 4)], (2, 5), "AABBB"),
    ],
)
def test_propagation_moves_a_neighbour(
    moves: list[tuple[int, int]], stops: tuple[int, ...], layers: str
) -> None:
    assert joined(*moves) == (stops, layers)


def test_heavy_edges_are_propagated_along() -> None:
    """From b the tensor to c is 300 bytes, that from a nothing."""
    problem = make_problem(
        dict.fromkeys("abc", make_cost(10, 20)),
        edges=(("a", "b", 0), ("b", "c", 300)),
        devices=4,
    )
    walk = walk_of(problem)
    current = state(walk, 1, 1, (1, ONE), (1, ONE), (1, ONE))
    seen = {walk._propagate(random.Random(i), current) for i in range(300)}
    # Layer a may copy itself to b, as its only neighbor, never b to a.
    assert state(walk, 1, 1, (1, ONE), (2, ONE)) in seen
    sizes = {new.stops for new in seen}
    assert (2, 3) in sizes
    assert (3,) in sizes


@pytest.mark.parametrize("granularity", ["stage", "layer"])
def test_proposals_are_plans(granularity: Any) -> None:
    problem = chain_of(
        5, devices=8, global_batch=8, micro_batches=(1, 2), granularity=granularity
    )
    walk = walk_of(problem)
    seen = legal_states(problem, walk, 1500)
    assert {len(new.stops) for new in seen} == {1, 2, 3, 4, 5}
    assert {new.split.replicas for new in seen} >= {1, 2, 4}
    assert {new.split.micro_batch for new in seen} == {1, 2}
    assert {s for new in seen for s in new.layers} == {
        *(ONE, TP2, DP2),
        Strategy(dp=2, tp=2),
    }
    mixed = any(
        len(set(new.layers[start:stop])) > 1
        for new in seen
        for start, stop in new.stages
    )
    assert mixed == (granularity == "layer")


def test_new_batches_keep_the_data_ranks() -> None:
    """dp 2 on 2 replicas is dp 1 on 4; on one dp 2 is all there is."""
    walk = walk_of(chain_of(global_batch=8, micro_batches=(1, 2), devices=4))
    current = state(walk, 2, 2, (2, DP2))
    seen = {
        (new.split.replicas, new.split.micro_batch): new.layers[0]
        for seed in range(60)
        if (new := walk._batches(random.Random(seed), current, 0))
    }
    assert seen == {
        (4, 1): ONE,
        (4, 2): ONE,
        (2, 1): ONE,
        (2, 2): DP2,
        (1, 1): ONE,
        (1, 2): DP2,
    }


# The walk


class Script:
    """A walk whose proposals and values, in ms, are written down."""

    values_ms: ClassVar[list[float]] = []
    current: ClassVar[list[int]] = []

    def __init__(self, model: CostModel) -> None:
        self.number = 0

    def start(self, draw: object) -> int:
        return 0

    def rewrite(self, draw: object, current: int) -> int | None:
        self.current.append(current)
        self.number += 1
        return self.number if self.number < len(self.values_ms) else None

    def value(self, number: int) -> int:
        return int(self.values_ms[number] * 10**6)

    def plan(self, number: int) -> Any:
        return None


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(
        values_ms: list[float], draws: list[float], **extra: str
    ) -> tuple[list[int], Any]:
        class Draws:
            def __init__(self, seed: int) -> None:
                self.left = list(draws)

            def random(self) -> float:
                return self.left.pop(0)

        monkeypatch.setattr(Script, "values_ms", values_ms)
        monkeypatch.setattr(Script, "current", [])
        monkeypatch.setattr(mcmc, "Walk", Script)
        monkeypatch.setattr(mcmc.random, "Random", Draws)
        output = solve(chain_of(), **extra)
        return Script.current, output

    return run


def test_what_is_taken(script: Any) -> None:
    """Better always; 1 ms worse if the draw is below exp(-1) = 0.3679."""
    current, _ = script([10, 9, 10, 10, 9.5], [0.367, 0.368], budget="900")
    # 1 is better; 2 is worse, and taken by the draw; 3 loses nothing, and
    # exp(0) is above any draw; 4 is better than that.
    assert current[:6] == [0, 1, 2, 3, 4, 4]


def test_what_is_not_taken(script: Any) -> None:
    current, _ = script([10, 11, 11, 9], [0.368, 0.367], budget="400")
    assert current[:4] == [0, 0, 2, 3]


def test_losses_in_percent(script: Any) -> None:
    """2 of 100 ms: exp(-0.05 * 2) = 0.9048, or exp(-2) = 0.1353 by alpha.

    Of the step that the walk is at: 100 of 100 ms, exp(-5) = 0.0067; then 20
    of 200 ms, exp(-0.5) = 0.6065.
    """
    percent = {"budget": "400", "unit": "percent"}
    current, _ = script([100, 102, 102], [0.905, 0.904], **percent)
    assert current[:3] == [0, 0, 2]
    draws = [0.1354, 0.1353]
    current, _ = script([100, 102, 102], draws, **percent, alpha="1")
    assert current[:3] == [0, 0, 2]
    current, _ = script([100, 200, 220, 220], [0.006, 0.607, 0.606], **percent)
    assert current[:4] == [0, 1, 1, 3]


def test_where_all_stages_share_a_strategy() -> None:
    """Pipelines that move, on steps of minutes; not so without.

    The best of 4 devices: 4 replicas that pass 2 layers once each.
    """
    table = (make_cost(10e9, 20e9, weight_bytes=8, kept_bytes=8),)
    fields: dict[str, Any] = {"table": table, "global_batch": 16}
    problem = chain_of(3, preset="nest-artifact", **fields)
    moving = solve(problem, budget="500")
    assert int(moving.detail.split()[0]) > 20
    frozen = solve(problem, budget="500", pipelines="no", unit="ms")
    assert int(frozen.detail.split()[0]) == 0
    assert solve(chain_of(3, **fields), budget="500") == solve(
        chain_of(3, **fields), budget="500", pipelines="no", unit="ms"
    )


def test_alpha(script: Any) -> None:
    """exp(-2) = 0.1353 for 2 per ms."""
    current, _ = script([10, 11, 11], [0.136, 0.135], budget="400", alpha="2")
    assert current[:3] == [0, 0, 2]


def test_back_to_the_best(script: Any) -> None:
    """Every 400 / 100 proposals; the best one is number 1."""
    current, output = script([10, 5, 6, 7, 8, 9, 10], [0.0] * 9, budget="400")
    assert current[:7] == [0, 1, 2, 3, 1, 5, 6]
    assert len(current) == 401
    assert output.detail == "6 of 401 proposals taken"


@pytest.mark.parametrize(
    ("budget", "span"), [(1, 1), (99, 1), (250, 2), (200_000, 1000)]
)
def test_how_often(script: Any, budget: int, span: int) -> None:
    values = [10.0] * (2 * span + 2)
    current, _ = script([5.0, *values], [0.0] * 9999, budget=str(budget))
    assert len(current) == budget + 1
    assert [i for i, x in enumerate(current[: span + 1]) if x == 0] == [*(0, span)]


def test_finds_the_best_of_its_own_objective() -> None:
    """All states of four tiny tables, by enumeration."""
    for seed in range(4):
        draw = random.Random(seed)
        table = tuple(
            make_cost(
                draw.randint(5, 40) * n,
                draw.randint(5, 80) * n,
                tp=tp,
                samples=n,
                weight_bytes=draw.randint(1, 12),
            )
            for tp in (1, 2)
            for n in (1, 2)
        )
        problem = chain_of(
            3,
            table=table,
            memory_bytes=draw.randint(60, 300),
            global_batch=4,
            micro_batches=(1, 2),
            granularity=("stage", "layer")[seed % 2],
        )
        walk = walk_of(problem)
        values = [
            walk.value(new)
            for case in walk.splits
            for size in range(3)
            for cuts in itertools.combinations((1, 2), size)
            for layers in itertools.product(walk.pool(case), repeat=3)
            if walk.is_legal(new := State(case, (*cuts, 3), layers))
        ]
        output = solve(problem, seed=seed, budget="4000")
        assert output.own_objective_ns == min(values)


def test_walks_on_from_data_parallelism() -> None:
    reports: list[Progress] = []
    problem = chain_of(
        4, devices=8, global_batch=8, micro_batches=(1, 2), memory_bytes=70
    )
    output = McmcSolver().solve(
        problem, SolveOptions(extra={"budget": "500"}), reports.append
    )
    walk = walk_of(problem)
    start = walk.start(random.Random(0))
    assert start is not None
    assert reports[0].plan == walk.plan(start)
    assert output.own_objective_ns < walk.value(start)


@pytest.mark.parametrize("preset", ["standard", "nest-artifact"])
def test_proposals_of_pipelines_are_plans(preset: str) -> None:
    problem = chain_of(
        5, devices=8, global_batch=8, micro_batches=(1, 2), preset=preset
    )
    if preset != "standard":
        problem, *_ = alone(problem)
    walk = pipelined(problem)
    seen = legal_states(problem, walk, 500)
    assert {len(new.stops) for new in seen} == {1, 2, 3, 4, 5}
    assert {new.split.replicas for new in seen} >= {1, 2, 4}


def test_other_seeds_walk_elsewhere() -> None:
    problem = chain_of(5, devices=8, global_batch=8, memory_bytes=200)
    details = {solve(problem, seed=seed, budget="200").detail for seed in range(5)}
    assert len(details) > 1


def test_levels_of_the_moves() -> None:
    """Two stages on pairs: 100 ns and 10 ns per byte between the pairs."""
    pairs = make_levels((2, 10.0, 1e9), (2, 100.0, 1e8))
    problem = chain_of(global_batch=1, topology=pairs)
    walk = walk_of(problem)
    near = state(walk, 1, 1, (1, ONE), (1, ONE))
    assert walk.value(near) == 60 + 2 * 110
    far = state(walk, 1, 1, (1, TP2), (1, TP2))
    assert walk.value(far) == 30 + 2 * (100 + 1000)
