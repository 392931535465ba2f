"""Counting rules: which (R, B) and strategies exist."""

import itertools
import re

import pytest

from nest.cost.model import CostModel
from nest.cost.space import (
    BatchSplit,
    batch_splits,
    is_uniform,
    make_split,
    max_stages,
    strategies,
    why_not_split,
    why_not_strategy,
)
from nest.ir import Activations, Strategy
from tests.builders import make_cost, make_levels, make_problem


def test_cases_are_all_legal_replicas_and_micro_batches():
    """A = 12 on 5 devices, B in {2, 3}.

    B = 2: R divides 6: 1, 2, 3. B = 3: R divides 4: 1, 2, 4. M = 12 / (RB)
    and floor(5 / R) devices each.
    """
    problem = make_problem(
        {"a": make_cost()}, devices=5, global_batch=12, micro_batches=(3, 2)
    )
    assert batch_splits(problem) == [
        BatchSplit(1, 2, 6, 5),
        BatchSplit(1, 3, 4, 5),
        BatchSplit(2, 2, 3, 2),
        BatchSplit(2, 3, 2, 2),
        BatchSplit(3, 2, 2, 1),
        BatchSplit(4, 3, 1, 1),
    ]


def test_uneven_batches_round_the_count_up():
    """A = 5, B = 2: R = 1..3 give ceil(5/2), ceil(5/4), ceil(5/6)."""
    problem = make_problem(
        {"a": make_cost()},
        devices=3,
        global_batch=5,
        micro_batches=(2,),
        uneven_batches=True,
    )
    assert batch_splits(problem) == [
        BatchSplit(1, 2, 3, 3),
        BatchSplit(2, 2, 2, 1),
        BatchSplit(3, 2, 1, 1),
    ]
    assert make_split(problem, 2, 2) == BatchSplit(2, 2, 2, 1)


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("replicas", [None, (8, 2, 3)])
def test_cases_are_those_that_no_rule_is_against(idle, uneven, replicas):
    """Six devices, B in {1, 2, 4} of a batch of 12: each rule as stated."""
    problem = make_problem(
        {"a": make_cost()},
        devices=6,
        global_batch=12,
        micro_batches=(4, 1, 2),
        replicas=replicas,
        idle_devices=idle,
        uniform=() if idle else ("devices",),
        uneven_batches=uneven,
    )
    legal = [
        (count, size)
        for count in range(1, 10)
        for size in range(1, 6)
        if size in (1, 2, 4)
        and count in (replicas or range(1, 7))
        and count <= 6
        and (uneven or 12 % (count * size) == 0)
        and (idle or 6 % count == 0)
    ]
    assert batch_splits(problem) == [make_split(problem, *pair) for pair in legal]
    for pair in itertools.product(range(1, 10), range(1, 6)):
        assert (why_not_split(problem, *pair) is None) == (pair in legal)


def test_cases_of_large_clusters_are_found_at_once():
    """2**20 devices and 50,000 sizes, of which 7 divide a batch of 64."""
    problem = make_problem(
        {"a": make_cost()},
        devices=2**20,
        topology=make_levels((2**20, 0.0, 1e9)),
        global_batch=64,
        micro_batches=tuple(range(1, 50_001)),
    )
    assert len(batch_splits(problem)) == 28


def test_no_case_may_be_left():
    """B = 4 does not divide A = 6."""
    problem = make_problem({"a": make_cost()}, global_batch=6, micro_batches=(4,))
    assert batch_splits(problem) == []


@pytest.mark.parametrize(
    ("replicas", "micro_batch", "reason"),
    [
        (1, 3, r"micro_batch: expected one of \[1, 2\], got 3"),
        (3, 1, r"replicas: expected one of \[1, 2, 8\], got 3"),
        (8, 1, r"replicas: expected at most one per device \(4\), got 8"),
        (
            2,
            2,
            r"replicas: expected replicas \* micro_batch to divide the "
            r"global batch 6, got 2 \* 2",
        ),
    ],
)
def test_reasons_against_a_case(replicas, micro_batch, reason):
    problem = make_problem(
        {"a": make_cost()}, global_batch=6, micro_batches=(1, 2), replicas=(1, 2, 8)
    )
    got = why_not_split(problem, replicas, micro_batch)
    assert got is not None

    assert re.fullmatch(reason, got)
    assert why_not_split(problem, 1, 2) is None


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (Strategy(dp=3), "dp: expected a divisor of micro_batch 4, got 3"),
        (Strategy(dp=4), "dp: expected one of [1, 2, 3], got 4"),
        (Strategy(zero=2), "zero: expected one of [0, 1], got 2"),
        (
            Strategy(recompute="selective"),
            "recompute: expected one of ['none', 'full'], got 'selective'",
        ),
        (Strategy(dp=2, zero=1, recompute="full"), None),
    ],
)
def test_reasons_against_a_strategy(strategy, reason):
    problem = make_problem(
        {"a": make_cost()},
        data_parallel=(1, 2, 3),
        zero=(0, 1),
        recompute=("none", "full"),
    )
    assert why_not_strategy(problem, strategy, 4) == reason


def test_strategies_follow_from_the_costs():
    """B = 4, five devices; keys are (tp, cp, ep, samples).

    (1,1,1,4): dp 1. (1,1,1,1): dp 4. (2,1,1,2): dp 2, four devices. (2,1,2,4): dp * cp
    = 1, no room for ep 2. (1,2,2,4): cp 2, ep 2. (1,1,1,3): 3 does not divide 4.
    (2,1,1,1): eight devices. (1,1,1,8): more samples than B.
    """
    keys = [
        (1, 1, 1, 4),
        (1, 1, 1, 1),
        (2, 1, 1, 2),
        (2, 1, 2, 4),
        (1, 2, 2, 4),
        (1, 1, 1, 3),
        (2, 1, 1, 1),
        (1, 1, 1, 8),
    ]
    problem = make_problem(
        {
            "a": tuple(
                make_cost(tp=tp, cp=cp, ep=ep, samples=samples)
                for tp, cp, ep, samples in keys
            )
        },
        devices=5,
        global_batch=4,
        micro_batches=(4,),
    )
    assert strategies(problem, 4) == [
        Strategy(),
        Strategy(cp=2, ep=2),
        Strategy(dp=2, tp=2),
        Strategy(dp=4),
    ]


def test_strategies_of_a_kind_that_another_lacks_are_listed():
    problem = make_problem({"a": make_cost(tp=2), "b": make_cost(cp=2)})
    assert strategies(problem, 1) == [Strategy(cp=2), Strategy(tp=2)]


def test_zero_is_listed_once_on_a_single_data_rank():
    """dp = 1: the lowest allowed stage; dp = 2: each of them."""
    problem = make_problem(
        {"a": (make_cost(samples=2), make_cost(samples=1))},
        global_batch=2,
        micro_batches=(2,),
        zero=(3, 1),
        recompute=("full", "none"),
    )
    listed = [
        (strategy.dp, strategy.zero, strategy.recompute)
        for strategy in strategies(problem, 2)
    ]
    assert sorted(listed) == [
        (1, 1, "full"),
        (1, 1, "none"),
        (2, 1, "full"),
        (2, 1, "none"),
        (2, 3, "full"),
        (2, 3, "none"),
    ]


def test_data_parallel_is_restricted():
    problem = make_problem(
        {"a": (make_cost(samples=2), make_cost(samples=1))},
        global_batch=2,
        micro_batches=(2,),
        data_parallel=(1,),
    )
    assert strategies(problem, 2) == [Strategy()]


def test_a_missing_cost_means_not_available():
    """Layer b has no tp = 2; neither has activations for full recompute."""
    model = CostModel(
        make_problem(
            {"a": (make_cost(), make_cost(tp=2)), "b": make_cost()},
            recompute=("none", "full"),
        )
    )
    assert model.available(0, Strategy(tp=2), 1) is None
    assert model.available(1, Strategy(tp=2), 1) == (
        "layer 'b': expected a cost for tp=2, cp=1, ep=1, samples=1, got none "
        "in kind 'b'; choose another strategy or add the cost"
    )
    assert model.available(0, Strategy(recompute="full"), 1) == (
        "layer 'a': expected activations for recompute 'full', got none in "
        "kind 'a'; choose another recompute"
    )


def test_activations_are_found_by_their_recompute():
    cost = make_cost(
        activations=(
            Activations(recompute="full", kept_bytes=1),
            Activations(recompute="none", kept_bytes=2),
        )
    )
    model = CostModel(make_problem({"a": cost}, recompute=("none", "full")))
    assert model.available(0, Strategy(recompute="full"), 1) is None


def test_max_stages_is_bounded_by_layers_and_devices():
    problem = make_problem({name: make_cost() for name in "abc"}, devices=8)
    assert max_stages(problem, BatchSplit(1, 1, 1, 8)) == 3
    assert max_stages(problem, BatchSplit(4, 1, 1, 2)) == 2


def test_uniform_presets():
    assert not is_uniform(make_problem({"a": make_cost()}))
    assert is_uniform(make_problem({"a": make_cost()}, preset="nest-artifact"))
