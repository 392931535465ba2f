"""Galvatron: formulas and DP on worked cases, its space, and its solver."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from baselines import galvatron_core as core
from baselines.galvatron import (
    OVERLAP_SLOWDOWN,
    GalvatronSolver,
    budget_units,
    cut_bytes,
    list_tasks,
    memory_unit_bytes,
)
from baselines.galvatron_core import Other, Tables
from baselines.transfers import Transfers
from bench import galvatron_profiles as profiles
from bench.galvatron_profiles import (
    HardwareProfile,
    Messages,
    ModelProfile,
    OtherMemory,
    ProfileStrategy,
    Search,
    Task,
)
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import InvalidProblemError
from nest.ir import Activations, Graph, Layer, Problem, Strategy
from nest.ir.graph import LayerKind
from nest.solvers.base import Deadline, Limit, Progress, SolveOptions, Status
from tests.builders import call, make_cost, make_problem
from tests.documents import change, drop

# Formulas


@pytest.mark.parametrize(
    ("budget_mib", "usable_mib"),
    [
        (16384, 16384),
        (21503, 21503),  # 20.999 GiB count as 20
        (21504, 21504 - 4300),
        (36864, 36864 - 7372),
    ],
)
def test_a_fifth_is_left_to_the_cache_above_20_gib(
    budget_mib: int, usable_mib: int
) -> None:
    assert core.usable_mib(budget_mib) == usable_mib


@pytest.mark.parametrize(
    ("sync_s", "backward_s", "expected_s"),
    [
        # 4 s of sync behind 10 s: 4.5 s + what is left of 10 - 4 s
        (4, 10, 0.5 + 10),
        # 10 s of sync, of which 8 s run behind 9 s of slowed-down backward
        (10, 8, 1 + 10),
        (0, 8, 8),
        (5, 5, 5.625),
    ],
)
def test_overlap_slows_both_down(
    sync_s: float, backward_s: float, expected_s: float
) -> None:
    assert core.overlapped_s(sync_s, backward_s, 1.125) == expected_s


def test_embedding_hides_communication() -> None:
    # 5 s at half speed do 2.5 s of the 10 s of computation
    assert core.hidden_s(5, 10, 2) == 5 + 7.5
    assert core.hidden_s(20, 10, 2) == 20
    assert core.hidden_s(21, 10, 2) == 21


@pytest.mark.parametrize(
    ("compute_s", "sync_s", "num_chunks", "expected_s"),
    [
        # one stage: m c
        ((5,), (0,), 3, 15),
        # last stage: 3 + 6 + 3 * 6
        ((3, 6), (0, 0), 4, 27),
        # first stage: max(2, 1) + max(4, 2) + 6 * (4 + 1 - 2)
        ((6, 3), (0, 0), 4, 24),
        # sync: max(7 - 6, 20 - 9) more
        ((6, 3), (7, 20), 4, 24 + 11),
        # the middle stage counts once: 12 + 2 * 1; 1F1B takes 12 + 2 * 10
        ((1, 10, 1), (0, 0, 0), 3, 14),
    ],
)
def test_pipeline_time(
    compute_s: tuple[float, ...],
    sync_s: tuple[float, ...],
    num_chunks: int,
    expected_s: float,
) -> None:
    assert core.pipeline_s(compute_s, sync_s, num_chunks) == pytest.approx(
        expected_s, rel=1e-12
    )


@pytest.mark.parametrize(
    ("num_chunks", "mixed", "delayed", "zero2", "zero3"),
    [
        # r = 1/8 + 0.003 = 0.128
        (1, True, True, 0.237, 0.128),
        (4, True, True, 0.346, 0.237),
        (4, True, False, 0.29625, 0.16),
        (1, False, True, 0.346, 0.128),
        (4, False, True, 0.564, 0.346),
        (4, False, False, 0.346, 0.16),
    ],
)
def test_zero_ratios(
    num_chunks: int, mixed: bool, delayed: bool, zero2: float, zero3: float
) -> None:
    assert profiles.zero_ratios(
        8, num_chunks, mixed_precision=mixed, async_grad_reduce=delayed
    ) == pytest.approx((zero2, zero3), rel=1e-12)


@pytest.mark.parametrize(
    ("sharded", "checkpoint", "expected_s"),
    [
        ("00", "00", 0),
        ("01", "00", 1e-9),
        ("10", "00", 0),
        ("00", "01", 2e-9),
        ("00", "10", 0),
        ("01", "01", 3e-9),
        ("11", "01", 3e-9),
        ("01", "11", 3e-9),
        ("11", "11", 0),
        ("10", "01", 1e-9),
        ("01", "10", 0),
        ("10", "10", 0),
    ],
)
def test_biases_order_layers(sharded: str, checkpoint: str, expected_s: float) -> None:
    before, after = ((sharded[i] == "1", checkpoint[i] == "1") for i in range(2))
    assert core.bias_s(before, after) == expected_s


# Divisions


def test_even_division_leaves_the_rest_to_the_last_stage() -> None:
    assert core.divide_even(10, 4) == [2, 2, 2, 4]
    assert core.divide_even(8, 1) == [8]
    with pytest.raises(ValueError, match="num_stages: expected 1 to 3, got 4"):
        core.divide_even(3, 4)


@pytest.mark.parametrize(
    ("layers", "others", "counts"),
    [
        ([1] * 8, [0, 0], [4, 4]),
        # average 6: two layers beside 4
        ([1] * 8, [4, 0], [2, 6]),
        # average 4: 1, then 6 as half of it is missing; 7 > 5.2 hands it on
        ([1, 6, 1], [0, 0], [1, 2]),
        # average 5: nothing fits beside 10, one layer must
        ([1, 1, 1], [10, 0], [1, 2]),
        # average 51: both fit the first stage, one is taken back
        ([1, 1], [0, 100], [1, 1]),
        # 8 > 1.3 * 4, but a stage keeps one layer
        ([8, 0], [0, 0], [1, 1]),
        # the middle stage is full from the start
        ([1, 1, 1, 1], [0, 20, 0], [2, 1, 1]),
    ],
)
def test_division_by_memory(
    layers: list[float], others: list[float], counts: list[int]
) -> None:
    assert core.divide_by_memory(layers, others) == counts


def test_division_by_memory_needs_layers() -> None:
    with pytest.raises(ValueError, match="num_stages: expected 1 to 1, got 2"):
        core.divide_by_memory([1], [0, 0])


def test_ranges() -> None:
    assert core.stages_of([2, 1, 3]) == ((0, 2), (2, 3), (3, 6))


# The DP


def random_stage(draw: random.Random) -> tuple[Any, Any, Any]:
    layers, strategies = draw.randint(1, 5), draw.randint(1, 4)
    times = np.array(
        [
            [
                float(draw.randint(1, 20)) if draw.random() < 0.9 else np.inf
                for _ in range(strategies)
            ]
            for _ in range(layers)
        ]
    )
    times[:, 0] = np.where(np.isfinite(times[:, 0]), times[:, 0], 7.0)
    memory = np.array(
        [[draw.randint(0, 9) for _ in range(strategies)] for _ in range(layers)]
    )
    transitions = np.array(
        [
            [
                [float(draw.randint(0, 6)) for _ in range(strategies)]
                for _ in range(strategies)
            ]
            for _ in range(layers)
        ]
    )
    return times, memory, transitions


def stage_time(times: Any, transitions: Any, chosen: tuple[int, ...]) -> float:
    """The sum that a stage minimizes; the first transition is free."""
    return float(
        sum(times[i, s] for i, s in enumerate(chosen))
        + sum(transitions[i, chosen[i - 1], chosen[i]] for i in range(1, len(chosen)))
    )


def best_by_enumeration(
    times: Any, memory: Any, transitions: Any, budget: int
) -> float:
    layers, strategies = times.shape
    return min(
        (
            stage_time(times, transitions, chosen)
            for chosen in itertools.product(range(strategies), repeat=layers)
            if sum(memory[i, s] for i, s in enumerate(chosen)) <= budget
        ),
        default=np.inf,
    )


@pytest.mark.parametrize("seed", range(150))
def test_stage_equals_enumeration(seed: int) -> None:
    draw = random.Random(seed)
    times, memory, transitions = random_stage(draw)
    budgets = [draw.randint(-2, 40) for _ in range(draw.randint(1, 4))]
    answers = core.solve_layers(times, memory, transitions, budgets)
    for budget, answer in zip(budgets, answers, strict=True):
        best = best_by_enumeration(times, memory, transitions, budget)
        if answer is None:
            assert best == np.inf
            continue
        chosen = answer.strategies
        assert answer.time_s == best
        assert stage_time(times, transitions, chosen) == best
        assert answer.used_units <= budget
        assert answer.used_units == sum(memory[i, s] for i, s in enumerate(chosen))


def test_ties_take_the_first_strategy() -> None:
    times = np.ones((2, 3))
    memory = np.full((2, 3), 2)
    answers = core.solve_layers(times, memory, np.zeros((2, 3, 3)), [4, 3])
    assert answers == [core.LayerChoice(2.0, (0, 0), 4), None]


def test_stage_stops_when_told() -> None:
    times = np.ones((2, 1))
    memory = np.zeros((2, 1), np.int64)
    between = np.zeros((2, 1, 1))
    assert core.solve_layers(times, memory, between, [5], lambda: True) == [None]


def make_tables(
    sync: list[list[float]],
    no_sync: list[list[float]],
    memory: list[list[int]],
    *others: Other,
    counts: tuple[int, ...] = (1, 1),
    num_chunks: int = 2,
) -> Tables:
    """Tables with the same memory on every stage, without transitions."""
    num_layers, num_strategies = np.shape(sync)
    return Tables(
        num_chunks=num_chunks,
        stages=core.stages_of(counts),
        layer_sync_s=np.array(sync, float),
        layer_no_sync_s=np.array(no_sync, float),
        memory_units=np.array([memory] * len(counts)),
        transition_s=np.zeros((num_layers, num_strategies, num_strategies)),
        others=others or (Other((0.0,) * len(counts), (0,) * len(counts)),),
    )


def test_stages_minimise_with_sync_and_pipelines_count_without() -> None:
    # with sync strategy 0 is faster in either stage (10 < 11), without it 1
    tables = make_tables([[10, 11]] * 2, [[9, 2]] * 2, [[1, 1]] * 2)
    found = core.solve_task(tables, 5)
    assert found is not None
    # 9 + 9 + 9, by the first: 3 + 6 + 9; sync: 10 - 9
    assert found == core.Choice(28, (0, 0), 0, (1, 1))
    # strategy 1 everywhere would be far better, but is never looked at:
    # 2 + 2 + 2 and sync 11 - 2
    assert core.price(tables, (1, 1), tables.others[0]) == 15


def test_the_best_embedding_that_fits() -> None:
    # strategy 1 fits beside the small embedding only
    slim, wide = Other((4.0, 4.0), (1, 1)), Other((1.0, 1.0), (3, 3))
    tables = make_tables([[9, 6]] * 2, [[9, 6]] * 2, [[1, 3]] * 2, slim, wide)
    # with slim 10 + 10 + 10, with wide 10 + 10 + 10: the first
    assert core.solve_task(tables, 4) == core.Choice(30, (1, 1), 0, (4, 4))
    # with wide and strategy 1: 7 + 7 + 7
    assert core.solve_task(tables, 6) == core.Choice(21, (1, 1), 1, (6, 6))
    assert core.solve_task(tables, 1) is None


def test_coarse_mode_has_one_strategy() -> None:
    others = (Other((0.0, 0.0), (0, 0)), Other((1.0, 1.0), (1, 0)))
    tables = make_tables([[9, 5], [1, 5]], [[9, 5], [1, 5]], [[1, 3], [1, 3]], *others)
    # 0: max(9 + 1 + 1, 3 + 6 + 9); 1: 6 + 6 + 6, where it fits
    assert core.solve_coarse(tables, 4) == core.Choice(18, (0, 0), 0, (1, 1))
    tables = make_tables([[9, 4], [1, 4]], [[9, 4], [1, 4]], [[1, 3], [1, 3]], *others)
    assert core.solve_coarse(tables, 4) == core.Choice(15, (1, 1), 1, (4, 3))
    assert core.solve_coarse(tables, 3) == core.Choice(18, (0, 0), 0, (1, 1))
    assert core.solve_coarse(tables, 0) is None


def random_tables(draw: random.Random) -> Tables:
    times, memory, transitions = random_stage(draw)
    layers = len(times)
    stages = draw.randint(1, layers)
    others = tuple(
        Other(
            tuple(float(draw.randint(0, 5)) for _ in range(stages)),
            tuple(draw.randint(0, 5) for _ in range(stages)),
        )
        for _ in range(draw.randint(1, 3))
    )
    return Tables(
        num_chunks=draw.randint(1, 4),
        stages=core.stages_of(core.divide_even(layers, stages)),
        layer_sync_s=times,
        layer_no_sync_s=times * draw.choice((1.0, 0.5)),
        memory_units=np.stack([memory * (stages - stage) for stage in range(stages)]),
        transition_s=transitions,
        others=others,
    )


@pytest.mark.parametrize("seed", range(60))
def test_skipped_tasks_cannot_win(seed: int) -> None:
    draw = random.Random(seed)
    tasks = [random_tables(draw) for _ in range(6)]
    budget = draw.randint(5, 60)
    best: tuple[int, core.Choice] | None = None
    for number, tables in enumerate(tasks):
        choice = core.solve_task(tables, budget)
        if choice is None:
            continue
        assert choice.time_s >= core.bound_s(tables) * (1 - 1e-12)
        if best is None or choice.time_s < best[1].time_s:
            best = number, choice
    reported: list[float] = []
    found = core.solve_tasks(
        tasks, budget, report=lambda task, choice: reported.append(task)
    )
    assert found == best
    if best is not None:
        assert reported[-1] == best[0]


def test_equal_tasks_go_to_the_first() -> None:
    tables = make_tables([[1.0]], [[1.0]], [[0]], counts=(1,))
    found = core.solve_tasks([tables, tables], 1, coarse=True)
    assert found is not None
    assert found[0] == 0


def test_no_task_no_answer() -> None:
    tables = make_tables([[1.0]], [[1.0]], [[5]], counts=(1,))
    assert core.solve_tasks([], 1) is None
    assert core.solve_tasks([tables], 1) is None
    assert core.solve_tasks([tables], 9, stop=lambda: True) is None


# Its own profiles

LINE = Messages({2**20: 8.0}, (2.0, 3.0))
TABLE = {1: 100.0, 2: 60.0, 4: 36.0}
OTHER = OtherMemory({1: 80.0, 2: 40.0, 4: 20.0}, {1: 10.0, 2: 5.0, 4: 2.5})
MODEL = ModelProfile(
    num_layers=4,
    hidden_size=512,
    sequence_length=1024,
    forward_ms=(6.0, 1.0),
    other_forward_ms=(4.0, 2.0),
    parameters_mb=32.0,
    activations_mb=TABLE,
    checkpoint_mb=8.0,
    other=OTHER,
    first=OTHER,
    last=OTHER,
)
HARDWARE = HardwareProfile(
    num_devices=4,
    all_reduce_ms_per_mb={
        (1, True): 0.0,
        (1, False): 0.0,
        (2, True): 0.25,
        (2, False): 0.5,
        (4, True): 0.125,
        (4, False): 0.125,
    },
    p2p_ms_per_mb={2: 0.5, 4: 0.5},
    overlap_slowdown=1.25,
    all_gathers={2: LINE, 4: LINE},
    all_to_alls={2: Messages({}, (1.0, 0.0)), 4: LINE},
)
CHOICES = Search(memory_gib=1, batch_sizes=(4,))


def test_strategies_of_four_devices() -> None:
    space = profiles.strategy_space(4, 2, replace_search(max_degree=2))
    names = [f"{s}" for s in space if not s.checkpoint]
    # two layers: at most two stages; degree 4 is not allowed
    assert names == [
        "1-1-4",
        "1-1-4f",
        "1-2*-2-sp",
        "1-2*-2f-sp",
        "1-2*-2",
        "1-2*-2f",
        "2-1-2",
        "2-1-2f",
        "2-2*-1-sp",
        "2-2*-1",
    ]
    assert len(space) == 2 * len(names)
    kinds = {s.data_parallel for s in space if s.dp > 1}
    assert kinds == {"zero2", "zero3"}
    plain = profiles.strategy_space(4, 2, replace_search(default_zero2=False))
    assert {s.data_parallel for s in plain if s.dp > 1} == {"ddp", "zero3"}


def replace_search(**fields: Any) -> Search:
    return Search(**{"memory_gib": 1, "batch_sizes": (4,), **fields})


def test_tasks_of_the_recorded_searches() -> None:
    # reference/galvatron-runs.md: 9 and 122 tasks
    one = replace_search(batch_sizes=(16,), chunks=(1,))
    assert len(profiles.list_tasks(8, 32, one)) == 9
    every = replace_search(batch_sizes=(64,))
    tasks = profiles.list_tasks(8, 32, every)
    assert len(tasks) == 122
    assert all(task.pp <= task.chunks for task in tasks)


def test_chunks_must_divide_the_batch() -> None:
    with pytest.raises(
        InvalidProblemError,
        match="chunks: expected divisors of the batch 4, got 3; correct",
    ):
        profiles.list_tasks(4, 4, replace_search(chunks=(3,)))


def test_what_a_task_offers() -> None:
    space = profiles.strategy_space(4, 4, CHOICES)
    task = Task(4, 2, 1, "sp_only", 4)
    names = {f"{s}" for s in profiles.on_offer(space, 4, task) if not s.checkpoint}
    # two samples a chunk: at most two data ranks
    assert names == {"1-2*-2-sp", "1-2*-2f-sp", "1-4*-1-sp"}
    task = task._replace(mode="tp_only", max_degree=2)
    names = {f"{s}" for s in profiles.on_offer(space, 4, task)}
    assert names == {"1-2*-2", "1-2*-2f", "1-2*-2-c", "1-2*-2f-c"}


def test_layer_times() -> None:
    """Four devices, four samples, one chunk; messages of 1 MiB a sample."""
    task = Task(4, 1, 1, "tp_with_sp", 4)

    def times(*strategy: Any) -> tuple[float, float]:
        with_sync, without = profiles.layer_times_s(
            MODEL, HARDWARE, CHOICES, ProfileStrategy(*strategy), task
        )
        return with_sync * 1000, without * 1000

    # forward 7, backward 14; sync 2 * 3/4 * 32 / 2 MB at 1/8 = 3 ms
    assert times(1, 1, 1, 4, "zero2") == pytest.approx((21.75, 21))
    # ... and half of it again for ZeRO-3
    assert times(1, 1, 1, 4, "zero3") == pytest.approx((23.25, 22.5))
    # recomputed: backward 21
    assert times(1, 1, 1, 4, "zero2", True) == pytest.approx((28.75, 28))
    # tp 2: still one sample per device; 2 MB by the line 7 ms, six times;
    # sync 16 MB / 2 among strangers at 1/2 = 4 ms
    assert times(1, 2, 1, 2, "zero2") == pytest.approx((64, 63))
    assert times(1, 2, 1, 2, "zero2", True) == pytest.approx((92, 91))
    # Ulysses 2: 2 ms, four times; weights shared by all four
    assert times(1, 1, 2, 2, "zero2") == pytest.approx((29.75, 29))
    # Ulysses 4 without data ranks: 4 MB by the line 11 ms, sync as before
    assert times(1, 1, 4, 1, "ddp") == pytest.approx((65.75, 65))


def test_pipeline_transfers_are_spread_over_the_layers() -> None:
    # two samples: forward 13, backward 26; 2 * 2 messages of 2 MB at 1/2 ms
    # over four layers
    task = Task(4, 1, 2, "tp_only", 2)
    with_sync, without = profiles.layer_times_s(
        MODEL, HARDWARE, CHOICES, ProfileStrategy(2, 1, 1, 2, "zero2"), task
    )
    assert without * 1000 == pytest.approx(39 + 1)
    # sync 2 * 1/2 * 32 / 2 MB at 1/4 ms
    assert with_sync * 1000 == pytest.approx(40 + 0.25 * 4)


def test_measured_messages_come_first() -> None:
    assert LINE.time_ms(2**20) == 8
    assert LINE.fitted_ms(2**20) == 5
    assert LINE.time_ms(2**21) == 7


def test_layer_memory() -> None:
    def memory(
        strategy: ProfileStrategy, task: Task, stage: int = 0, search: Search = CHOICES
    ) -> float:
        return profiles.layer_memory_mb(MODEL, search, strategy, task, stage)

    flat = Task(4, 1, 1, "tp_with_sp", 4)
    # 128 MB of states, 7/8 * 0.253 + 1/8 of them; one sample of 100 MB
    zero2 = ProfileStrategy(1, 1, 1, 4, "zero2")
    assert memory(zero2, flat) == pytest.approx(128 * 0.346375 + 100)
    kept = zero2._replace(checkpoint=True)
    assert memory(kept, flat) == pytest.approx(128 * 0.346375 + 8)
    zero3 = zero2._replace(data_parallel="zero3")
    assert memory(zero3, flat) == pytest.approx(128 * 0.253 + 100)
    # tp 4: a quarter of the states, four samples split by four
    tp4 = ProfileStrategy(1, 4, 1, 1, "ddp")
    assert memory(tp4, flat) == pytest.approx(32 + 4 * 36)
    kept = tp4._replace(checkpoint=True)
    assert memory(kept, flat) == pytest.approx(32 + 4 * 8 / 4)
    whole = replace_search(sequence_parallel=False)
    assert memory(kept, flat, search=whole) == pytest.approx(32 + 4 * 8)
    # two stages: one sample a chunk and rank, two chunks in flight first
    task = Task(8, 4, 2, "tp_only", 2)
    pipe = ProfileStrategy(2, 1, 1, 2, "zero2")
    states = 128 * (6 / 8 * 0.503 + 2 / 8)
    assert memory(pipe, task, 0) == pytest.approx(states + 200)
    assert memory(pipe, task, 1) == pytest.approx(states + 100)
    gpipe = replace_search(gpipe=True)
    assert memory(pipe, task, 1, gpipe) == pytest.approx(states + 400)


def test_embedding_times() -> None:
    task = Task(4, 1, 1, "tp_with_sp", 4)

    def times(task: Task, *strategy: Any) -> list[float]:
        found = profiles.other_times_s(
            MODEL, HARDWARE, CHOICES, ProfileStrategy(*strategy), task
        )
        return [time_s * 1000 for time_s in found]

    # 6 forward, 12 backward
    assert times(task, 1, 1, 1, 4, "zero2") == pytest.approx([18])
    # the gather, 20 MB * 3/4 / 8 / 2 ms, costs a fifth of itself
    gather = 20 * 3 / 4 / 8 / 2
    assert times(task, 1, 1, 1, 4, "zero3") == pytest.approx(
        [18 + gather * (1 - 1 / 1.25)]
    )
    # tp 2: two messages of 2 MB by the line
    assert times(task, 1, 2, 1, 2, "zero2") == pytest.approx([18 + 14])
    # two stages: half of 10 + 20 each, with two samples
    two = task._replace(pp=2)
    assert times(two, 2, 1, 1, 2, "zero2") == pytest.approx([15, 15])


def test_embedding_memory() -> None:
    search = CHOICES
    flat = Task(4, 1, 1, "tp_with_sp", 4)
    zero2 = ProfileStrategy(1, 1, 1, 4, "zero2")
    assert profiles.other_memory_mb(MODEL, search, zero2, flat) == pytest.approx(
        [1024 + 80 * 0.346375 + 10]
    )
    # three quarters of the pipeline hold no embedding
    task = Task(8, 4, 4, "tp_only", 1)
    alone = ProfileStrategy(4, 1, 1, 1, "ddp")
    assert profiles.other_memory_mb(MODEL, search, alone, task) == pytest.approx(
        [1024 + 80 + 2 * 4 * 10, 1024, 1024, 1024 + 80 + 20]
    )


def test_buffer_of_gathered_activations() -> None:
    task = Task(4, 1, 1, "tp_only", 2)
    # two samples per rank at degree 2, 2 bytes each
    assert profiles.buffer_mb(MODEL, CHOICES, 4, task) == 2
    fp32 = replace_search(mixed_precision=False)
    assert profiles.buffer_mb(MODEL, fp32, 4, task) == 4
    ulysses = task._replace(mode="sp_only")
    assert profiles.buffer_mb(MODEL, CHOICES, 4, ulysses) == 0
    whole = replace_search(sequence_parallel=False)
    assert profiles.buffer_mb(MODEL, whole, 4, task) == 0


def test_transitions() -> None:
    task = Task(4, 1, 1, "tp_with_sp", 4)
    one = ProfileStrategy(1, 1, 1, 4, "zero2")
    two = ProfileStrategy(1, 2, 1, 2, "zero2")

    def time_s(a: ProfileStrategy, b: ProfileStrategy, **fields: Any) -> float:
        return profiles.transition_s(
            MODEL, HARDWARE, replace_search(**fields), a, b, task
        )

    # half of two samples of 2**20 bytes at 1/4, as coded
    assert time_s(one, two) == pytest.approx(2**20 * 0.25 * 1e-7)
    assert time_s(two, one) == time_s(one, two)
    assert time_s(one, two, sequence_parallel=False) == 0
    assert time_s(one, one) == 0
    assert time_s(one, one._replace(checkpoint=True)) == 2e-9
    ulysses = ProfileStrategy(1, 1, 2, 2, "zero2")
    assert time_s(two, ulysses) == 1e-10
    assert time_s(ulysses, two) == 0
    assert time_s(two, ulysses._replace(data_parallel="zero3")) == 0


def test_search_takes_the_best_throughput() -> None:
    search = replace_search(memory_gib=64, batch_sizes=(4, 8))
    found = profiles.search_profiles(MODEL, HARDWARE, search)
    assert found is not None
    single = [
        profiles.search_profiles(
            MODEL, HARDWARE, replace_search(memory_gib=64, batch_sizes=(n,))
        )
        for n in (4, 8)
    ]
    rates = [one.task.batch / one.time_s for one in single if one]
    assert found.task.batch / found.time_s == max(rates)
    assert sum(found.division) == 4
    config = found.config(search)
    assert config["global_bsz"] == found.task.batch
    assert config["checkpoint"] == "0,0,0,0"
    assert found.summary().startswith("4x ")


def test_search_without_memory() -> None:
    # the context alone takes 1 GiB
    assert profiles.search_profiles(MODEL, HARDWARE, CHOICES) is None


def test_layers_need_no_more_time_than_one_strategy() -> None:
    for memory_gib in (2, 3):
        fine, coarse = (
            profiles.search_profiles(
                MODEL,
                HARDWARE,
                replace_search(
                    memory_gib=memory_gib, batch_sizes=(16,), fine_grained=fine_grained
                ),
            )
            for fine_grained in (True, False)
        )
        assert fine is not None
        assert coarse is not None
        assert fine.time_s <= coarse.time_s
        assert len(set(coarse.strategies)) == 1


FEWER = {1: 9.0, 2: 5.0}


@pytest.mark.parametrize(
    ("model", "hardware", "text"),
    [
        (
            {"activations_mb": FEWER},
            {},
            "activations: expected degrees 1, 2, 4, got 1, 2; profile degree "
            "4 or search smaller ones only",
        ),
        (
            {},
            {"all_to_alls": {2: LINE}},
            "all-to-all times: expected degrees 2, 4, got 2; profile",
        ),
    ],
)
def test_degrees_must_be_profiled(
    model: dict[str, Any], hardware: dict[str, Any], text: str
) -> None:
    profiled = (
        dataclasses.replace(MODEL, **model),
        dataclasses.replace(HARDWARE, **hardware),
    )
    with pytest.raises(InvalidProblemError, match=text):
        profiles.search_profiles(*profiled, CHOICES)
    fewer = replace_search(max_degree=2)
    assert profiles.search_profiles(*profiled, fewer) is None


# Files


def write_hardware(folder: Path, **changes: Any) -> None:
    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    files: dict[str, dict[str, Any]] = {
        "allreduce_bandwidth_1nodes_2gpus_per_node.json": {
            "allreduce_size_2_consec_1": 4.0
        },
        "p2p_bandwidth_1nodes_2gpus_per_node.json": {"pp_size_2": 2.0},
        "overlap_coefficient.json": {"overlap_coe": 1.25},
        "sp_time_1nodes_2gpus_per_node.json": {
            f"{kind}_size_2_{size}MB_time": 1 + 2.0 * size
            for kind in ("allreduce", "all2all")
            for size in sizes
        },
    }
    for name, content in files.items():
        content.update(changes.get(name.partition("_")[0], {}))
        (folder / name).write_text(json.dumps(content))


def test_reading_hardware(tmp_path: Path) -> None:
    write_hardware(tmp_path)
    found = profiles.read_hardware(tmp_path, 1, 2)
    assert found.num_devices == 2
    # the whole machine: neighbors either way
    assert found.all_reduce_ms_per_mb == {
        (1, True): 0,
        (1, False): 0,
        (2, True): 0.25,
        (2, False): 0.25,
    }
    assert found.p2p_ms_per_mb == {2: 0.5}
    # an all-gather is half an all-reduce
    assert found.all_gathers[2].measured_ms[2**22] == 4.5
    assert found.all_gathers[2].line_ms == pytest.approx((1, 0.5))
    assert found.all_to_alls[2].line_ms == pytest.approx((2, 1))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"allreduce": {"allreduce_size_2_consec_1": None}},
            "allreduce_size_2_consec_1: expected a number above 0, got none; "
            "profile it again",
        ),
        (
            {"overlap": {"overlap_coe": -1}},
            "overlap_coe: expected a number above 0, got -1; profile it",
        ),
        (
            {"p2p": {"pp_size_2": True}},
            "pp_size_2: expected a number above 0, got True; profile it",
        ),
        (
            None,
            "expected a readable profile, got No such file or directory; "
            "check the path",
        ),
        (
            "{",
            "expected a profile in JSON, got malformed text; check that the "
            "file is complete",
        ),
        ("[]", "expected a JSON object, got list; check that it is a profile"),
    ],
)
def test_bad_hardware(
    tmp_path: Path, changes: dict[str, Any] | str | None, text: str
) -> None:
    """Changes of entries, or the text of a file; ``None`` is no file."""
    if changes is not None:
        entries = changes if isinstance(changes, dict) else {}
        write_hardware(tmp_path, **entries)
    if isinstance(changes, str):
        (tmp_path / "overlap_coefficient.json").write_text(changes)
    with pytest.raises(InvalidProblemError, match=text):
        profiles.read_hardware(tmp_path, 1, 2)


def model_files(sizes: int = 8) -> tuple[dict[str, Any], dict[str, Any]]:
    times = {
        f"{part}_bsz{n}_seq512": constant / n + slope
        for part, slope, constant in (
            ("layertype_0", 3.0, 1.0),
            ("layertype_other", 2.0, 5.0),
        )
        for n in range(1, sizes + 1)
    }
    part = {"model_states": {"1": 8.0}, "activation": {"1": 2.0}}
    memory = {
        "layertype_0_sp": {
            "512": {
                "parameter_size": 10.0,
                "tp_activation_per_bsz_dict": {"1": 4.0, "checkpoint": 1.0},
            }
        },
        "other_memory_pp_off_sp": {"512": part},
        "other_memory_pp_on_first_sp": {"512": part},
        "other_memory_pp_on_last_sp": {"512": part},
    }
    return times, memory


def read_model(
    folder: Path, times: dict[str, Any], memory: dict[str, Any]
) -> ModelProfile:
    for name, content in (("computation", times), ("memory", memory)):
        path = folder / f"{name}_profiling_bf16_toy_all.json"
        path.write_text(json.dumps(content))
    return profiles.read_model(
        folder, "toy", num_layers=2, hidden_size=64, sequence_length=512
    )


def test_reading_a_model(tmp_path: Path) -> None:
    found = read_model(tmp_path, *model_files())
    # n (c / n + s) is a line: slope s, constant c
    assert found.forward_ms == pytest.approx((3, 1))
    assert found.other_forward_ms == pytest.approx((2, 5))
    assert found.activations_mb == {1: 4.0}
    assert found.checkpoint_mb == 1
    assert found.first == OtherMemory({1: 8.0}, {1: 2.0})


@pytest.mark.parametrize(
    ("sizes", "spoil", "text"),
    [
        (
            7,
            lambda memory: None,
            "layertype_0_bsz…_seq512: expected at least 8 sizes, got 7; "
            "profile more of them",
        ),
        (
            8,
            drop("other_memory_pp_off_sp"),
            "other_memory_pp_off_sp: expected an object, got none; profile",
        ),
        (
            8,
            change(*("layertype_0_sp", "512", "tp_activation_per_bsz_dict"), to=3),
            r"layertype_0_sp\.512\.tp_activation_per_bsz_dict: expected an "
            r"object, got int",
        ),
    ],
)
def test_bad_models(
    tmp_path: Path, sizes: int, spoil: Callable[[Any], Any], text: str
) -> None:
    times, memory = model_files(sizes)
    spoil(memory)
    with pytest.raises(InvalidProblemError, match=text):
        read_model(tmp_path, times, memory)


# The solver


def solve(problem: Problem, **options: Any) -> Any:
    return GalvatronSolver().solve(problem, SolveOptions(**options))


def test_memory_units() -> None:
    assert memory_unit_bytes(80 * 2**30) == 2**20
    assert memory_unit_bytes(2**30) == 2**20
    assert memory_unit_bytes(2**30 - 1) == 2**19
    assert memory_unit_bytes(4096) == 4
    assert memory_unit_bytes(1000) == 1
    assert memory_unit_bytes(0) == 1
    assert budget_units(4096) == 1024
    assert budget_units(36 * 2**30) == 29492


def chain_of(kinds: str, **fields: Any) -> Problem:
    """A chain with one layer per letter, a kind for each letter."""
    cost = fields.pop("cost", None) or make_cost(10, 20)
    costs = cost if isinstance(cost, tuple) else (cost,)
    problem = make_problem({"x": costs}, **fields)
    names = [f"{letter}{i}" for i, letter in enumerate(kinds)]
    return replace(
        problem,
        graph=Graph(
            kinds=tuple(LayerKind(name=k, costs=costs) for k in sorted(set(kinds))),
            layers=tuple(
                Layer(id=name, kind=letter)
                for name, letter in zip(names, kinds, strict=True)
            ),
        ),
    )


def test_bytes_across_cuts() -> None:
    # a is read by b (7 bytes) and c (5): the larger, then what is left
    problem = make_problem(
        dict.fromkeys("abc", make_cost()),
        edges=(("a", "b", 7), ("a", "c", 5), ("b", "c", 2)),
    )
    assert cut_bytes(Transfers(CostModel(problem))) == [0, 7, 7]


def plan_of(problem: Problem, **options: Any) -> Any:
    output = solve(problem, **options)
    assert output.plan is not None, output.detail
    return output


def test_own_objective_by_hand() -> None:
    """Two data ranks, sync of 100 bytes behind a backward pass of 20 ns.

    All-reduce of 100 bytes by halving and doubling: two steps of 10 ns and
    50 bytes, 120 ns; the pass of 2 · 20 ns for two layers hides behind each.
    Per layer 10 + 120 + (k - 1) 20 ns, k = 1.1256; without sync 30 ns. One
    stage, one micro-batch: 60 + (2 (130 + 2.51) - 60) = 265.02 ns.
    """
    problem = chain_of(
        "ll",
        cost=make_cost(10, 20, weight_bytes=100),
        devices=2,
        micro_batches=(2,),
        global_batch=2,
        pipeline_parallel=(1,),
        replicas=(1,),
    )
    output = plan_of(problem)
    assert output.plan.stages[0].strategy == Strategy(dp=2)
    expected_ns = 2 * (10 + 120 + (OVERLAP_SLOWDOWN - 1) * 20 + 0)
    assert output.own_objective_ns == pytest.approx(expected_ns, abs=1e-6)
    assert output.claimed_quanta is None
    assert output.lower_bound_quanta is None
    assert output.status is Status.FEASIBLE


def test_zero_3_counts_half_a_sync_more() -> None:
    def own_ns(zero: int) -> float:
        problem = chain_of(
            "ll",
            cost=make_cost(10, 20, weight_bytes=100),
            devices=2,
            micro_batches=(2,),
            global_batch=2,
            pipeline_parallel=(1,),
            replicas=(1,),
            zero=(zero,),
        )
        return float(plan_of(problem).own_objective_ns)

    assert own_ns(2) == own_ns(0)
    assert own_ns(3) == pytest.approx(own_ns(0) + 2 * 60, abs=1e-6)


def test_transfers_by_hand() -> None:
    """Two stages of one device, messages of 5 bytes: 15 ns each way.

    ``2 · 2 · 15`` ns over two layers: 30 + 30 ns per layer. Two micro-batches:
    ``60 + 60 + 60`` ns.
    """
    problem = make_problem(
        {"a": make_cost(10, 20), "b": make_cost(10, 20)},
        edges=(("a", "b", 5),),
        devices=2,
        global_batch=2,
        pipeline_parallel=(2,),
    )
    output = plan_of(problem)
    assert len(output.plan.stages) == 2
    assert output.own_objective_ns == pytest.approx(180, abs=1e-6)


def recomputable(kinds: str) -> Problem:
    """A device of 250 bytes; layers keep 100 of them, or 10 if recomputed."""
    return chain_of(
        kinds,
        cost=make_cost(
            10,
            20,
            activations=(
                Activations(kept_bytes=100),
                Activations(recompute="full", kept_bytes=10),
            ),
        ),
        devices=1,
        memory_bytes=250,
        recompute=("none", "full"),
        granularity="layer",
    )


def test_layers_are_recomputed_as_far_as_memory_asks() -> None:
    """Four layers that keep 100 bytes, or 10 if recomputed; 250 bytes.

    Two must be recomputed (220 bytes; three whole ones need 310): the first
    two, as the bias says. Own time 4 · 30 + 2 · 10 ns.
    """
    problem = recomputable("llll")
    output = plan_of(problem)
    used = [s.recompute for s in output.plan.stages[0].layer_strategies]
    assert used == ["full", "full", "none", "none"]
    assert output.own_objective_ns == pytest.approx(140, abs=1e-6)
    # one strategy for all layers
    coarse = replace(problem, job=replace(problem.job, granularity="stage"))
    output = plan_of(coarse)
    assert output.plan.stages[0].strategy.recompute == "full"
    assert output.own_objective_ns == pytest.approx(160, abs=1e-6)


def test_embedding_and_head_are_not_recomputed() -> None:
    problem = recomputable("ellh")
    used = [s.recompute for s in plan_of(problem).plan.stages[0].layer_strategies]
    assert used == ["none", "full", "full", "none"]


def test_working_sets_are_reserved() -> None:
    # 100 bytes kept, 151 to work with: one too many
    cost = make_cost(10, 20, kept_bytes=100, working_bytes=151)
    problem = chain_of("l", cost=cost, devices=1, memory_bytes=250)
    output = solve(problem)
    assert output.status is Status.NO_SOLUTION
    assert output.detail == "no plan fits by Galvatron's memory model"
    larger = replace(
        problem,
        cluster=replace(
            problem.cluster, device=replace(problem.cluster.device, memory_bytes=251)
        ),
    )
    assert score(larger, plan_of(larger).plan).feasible


def widths(*tps: int, samples: tuple[int, ...] = (1,), **fields: Any) -> Any:
    return tuple(
        make_cost(12 * n / tp, 24 * n / tp, tp=tp, samples=n, **fields)
        for tp in tps
        for n in samples
    )


def tasks_of(problem: Problem) -> list[Any]:
    return list_tasks(CostModel(problem))


def test_tasks_use_powers_of_two() -> None:
    problem = chain_of("llll", cost=widths(1, 3, 4), devices=4, global_batch=12)
    tasks = tasks_of(problem)
    assert {task.num_stages for task in tasks} == {1, 2, 4}
    assert {s.tp for task in tasks for s in task.offered} == {1, 4}
    assert all(
        task.case.replicas * task.num_stages * task.devices == 4 for task in tasks
    )


def test_tasks_have_a_micro_batch_per_stage() -> None:
    problem = chain_of("llll", devices=4, global_batch=2)
    assert {(task.num_stages, task.case.replicas) for task in tasks_of(problem)} == {
        (1, 2),
        (2, 1),
    }


def test_idle_devices_where_the_batch_wants_them() -> None:
    # three devices, a batch of four: two of them, one or two stages
    problem = chain_of("ll", devices=3, global_batch=4)
    assert {
        (task.num_stages, task.case.replicas, task.devices)
        for task in tasks_of(problem)
    } == {(1, 2, 1), (2, 1, 1)}


def test_data_ranks_inside_a_stage_first() -> None:
    # equal times: two ranks in a stage and two replicas are the same to it
    problem = chain_of(
        "ll",
        cost=widths(1, samples=(1, 2)),
        devices=2,
        micro_batches=(1, 2),
        global_batch=2,
        pipeline_parallel=(1,),
    )
    plan = plan_of(problem).plan
    assert plan.replicas == 1
    assert plan.stages[0].strategy == Strategy(dp=2)


def test_default_sharding_is_what_the_job_allows_below_zero_3() -> None:
    def offered(*zero: int) -> set[int]:
        problem = chain_of(
            "ll",
            devices=2,
            micro_batches=(2,),
            global_batch=2,
            zero=zero,
            pipeline_parallel=(1,),
            replicas=(1,),
        )
        return {s.zero for task in tasks_of(problem) for s in task.offered}

    assert offered(0, 1, 2, 3) == {2, 3}
    assert offered(0, 1) == {1}
    assert offered(0, 3) == {0, 3}
    assert offered(3) == {3}


def test_layers_that_lack_a_cost() -> None:
    """Kind ``b`` runs on two devices only with tp 2, ``a`` only with dp 2."""
    narrow = make_cost(10, 20, samples=1)
    wide = make_cost(20, 40, tp=2, samples=2)
    problem = make_problem(
        {"a": narrow, "b": wide},
        devices=2,
        micro_batches=(2,),
        global_batch=2,
        granularity="layer",
    )
    plan = plan_of(problem).plan
    assert plan.stages[0].strategies == (Strategy(dp=2), Strategy(tp=2))
    coarse = replace(problem, job=replace(problem.job, granularity="stage"))
    output = solve(coarse)
    assert output.plan is None
    assert output.detail == (
        "no plan is in Galvatron's search space: tp and the number of stages "
        "are powers of two"
    )


def test_changes_of_tp_cost_a_hundred_gathers() -> None:
    """``b`` runs faster with tp 2, but not by 100 all-gathers of 50 bytes.

    Two samples of 25 bytes at tp 2: one step of 10 ns and 25 ns.
    """

    def used(gain_ns: float) -> list[int]:
        problem = make_problem(
            {
                "a": make_cost(10, 20, samples=1),
                "b": (
                    make_cost(10000, 0, samples=1),
                    make_cost(10000 - gain_ns, 0, tp=2, samples=2),
                ),
            },
            edges=(("a", "b", 25),),
            devices=2,
            micro_batches=(2,),
            global_batch=2,
            pipeline_parallel=(1,),
            granularity="layer",
            sequence_parallel=True,
        )
        stage = plan_of(problem).plan.stages[0]
        return [s.tp for s in stage.layer_strategies]

    assert used(3499) == [1, 1]
    assert used(3501) == [1, 2]


def test_layers_of_several_kinds_are_divided_by_memory() -> None:
    heavy = make_cost(10, 20, kept_bytes=300)
    light = make_cost(10, 20, kept_bytes=100)
    problem = make_problem(
        {"a": heavy, "b": light, "c": light, "d": light},
        devices=2,
        global_batch=2,
        pipeline_parallel=(2,),
    )
    stages = plan_of(problem).plan.stages
    assert [len(stage.layers) for stage in stages] == [1, 3]


def test_gpipe_keeps_all_micro_batches() -> None:
    # four in flight: 400 bytes of 350; under 1F1B one
    problem = chain_of(
        "ll",
        cost=make_cost(10, 20, kept_bytes=100),
        devices=2,
        memory_bytes=350,
        global_batch=4,
        pipeline_parallel=(2,),
    )
    assert plan_of(problem)
    gpipe = replace(problem, job=replace(problem.job, schedule="gpipe"))
    assert solve(gpipe).plan is None


def test_experts_are_spread_as_little_as_fits() -> None:
    costs = tuple(
        make_cost(10, 20, ep=ep, expert_weight_bytes=200 // ep) for ep in (1, 2)
    )

    def used(memory_bytes: int) -> int:
        problem = chain_of(
            "ll",
            cost=costs,
            devices=2,
            memory_bytes=memory_bytes,
            micro_batches=(2,),
            global_batch=2,
            pipeline_parallel=(1,),
        )
        return int(plan_of(problem).plan.stages[0].strategy.ep)

    # 16 bytes per 2-byte weight: 3200 per device, or 1600
    assert used(3200) == 1
    assert used(3199) == 2


def test_tensor_parallel_messages_count() -> None:
    """tp 2 halves the work but adds an all-reduce of 8 bytes, 28 ns, twice."""
    wide = make_cost(
        6,
        12,
        tp=2,
        collectives=tuple(
            call("all-reduce", "tp", phase, 8) for phase in ("forward", "backward")
        ),
    )
    problem = chain_of("l", cost=(wide,), devices=2, pipeline_parallel=(1,))
    output = plan_of(problem)
    assert output.own_objective_ns == pytest.approx(18 + 2 * 28, abs=1e-6)


def test_time_limit_keeps_the_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock runs out as soon as there is a plan."""
    plans: list[Progress] = []
    stop_with_a_plan(monkeypatch, plans)
    problem = chain_of("llll", devices=4, global_batch=12)
    output = GalvatronSolver().solve(problem, SolveOptions(), plans.append)
    assert output.limit is Limit.TIME
    assert output.plan == plans[-1].plan
    assert output.own_objective_ns is not None
    assert output.detail == "not all tasks were solved"


def test_time_limit_falls_back_on_one_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock runs out when the coarse mode has its plan."""
    plans: list[Progress] = []
    limits = SolveOptions(time_limit_s=1e6)
    problem = chain_of("llll", devices=1, granularity="layer", recompute=("none",))
    assert GalvatronSolver().solve(problem, limits).limit is None
    stop_with_a_plan(monkeypatch, plans)
    output = GalvatronSolver().solve(problem, limits, plans.append)
    assert output.limit is Limit.TIME
    assert output.plan is not None
    assert [p.plan for p in plans if p.plan] == [output.plan]
    assert output.own_objective_ns == pytest.approx(120, abs=1e-6)
    assert output.detail == (
        "one strategy for all layers: no other task was solved in time"
    )


def stop_with_a_plan(monkeypatch: pytest.MonkeyPatch, reports: list[Progress]) -> None:
    """Let the time run out when a report has a plan."""
    passed = property(lambda self: any(report.plan for report in reports))
    monkeypatch.setattr(Deadline, "passed", passed)
