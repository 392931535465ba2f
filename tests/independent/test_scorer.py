"""The independent scorer says of random plans what ``nest.score`` says."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest.ir import Plan, Stage, Strategy
from tests.builders import make_cost, make_problem
from tests.independent.compare import differences
from tests.independent.generate import draw_collective, draw_pair
from tests.independent.scorer import score
from tests.independent.standard import groups
from tests.properties.profiles import PROFILE, examples

#: Pairs in all; CI draws the same ones on every run.
COUNT = {"quick": 300, "dev": 300, "full": 12_000}.get(PROFILE, 3000)
PER_TEST = 300


@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_scores_agree(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        problem, plan = draw_pair(Random(seed))
        _, found = differences(problem, plan)
        assert not found, f"pair {seed}: {'; '.join(found)}"


@pytest.mark.parametrize("first", range(0, COUNT // 4, PER_TEST))
def test_scores_agree_where_plans_split_sequences(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        problem, plan = draw_pair(Random(seed), "standard", sequences=True)
        _, found = differences(problem, plan)
        assert not found, f"pair {seed}: {'; '.join(found)}"


@pytest.mark.parametrize("first", range(0, COUNT // 2, PER_TEST))
def test_scores_agree_where_tensor_ranks_hold_whole_experts(first: int) -> None:
    """1,500 pairs by default, 6,000 in full; of one plan in ten some layer does."""
    whole = 0
    for seed in range(first, first + PER_TEST):
        problem, plan = draw_pair(
            *(Random(seed), "standard"), sequences=seed % 3 == 0, folds=True
        )
        verdict, found = differences(problem, plan)
        assert not found, f"pair {seed}: {'; '.join(found)}"
        whole += verdict != "illegal" and "etp1" in plan.text
    assert whole > PER_TEST // 15


@pytest.mark.parametrize("first", range(0, COUNT // 2, PER_TEST // 2))
def test_scores_agree_where_plans_order_passes(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 2 * PER_TEST // 3):
        problem, plan = draw_pair(Random(seed), "standard", orders=True)
        verdict, found = differences(problem, plan)
        assert not found, f"pair {seed}: {'; '.join(found)}"
        kind = "listed" if isinstance(plan.order, tuple) else "named"
        seen[f"{kind} {verdict}"] += 1
        seen["v"] += plan.placement == "v" and verdict != "illegal"
        seen["chunks"] += plan.virtual_stages > 1 and verdict != "illegal"
    assert min(seen.values()) >= 5, seen
    assert len(seen) == 8, seen


@examples(100, full=3000)
@given(st.randoms(use_true_random=False))
def test_scores_agree_on_odd_pairs(random: Random) -> None:
    # Hypothesis looks for extremes, and shrinks what it finds.
    _, found = differences(*draw_pair(random))
    assert not found


@examples(60, full=3000)
@given(st.randoms(use_true_random=False))
def test_scores_agree_on_odd_experts(random: Random) -> None:
    _, found = differences(*draw_pair(random, "standard", folds=True))
    assert not found


@examples(60, full=3000)
@given(st.randoms(use_true_random=False))
def test_scores_agree_on_odd_orders(random: Random) -> None:
    _, found = differences(*draw_pair(random, "standard", orders=True))
    assert not found


@pytest.mark.parametrize("first", range(0, COUNT // 4, PER_TEST))
def test_last_bits_of_collectives_agree(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        _, found = differences(*draw_collective(Random(seed)))
        assert not found, f"collective {seed}: {'; '.join(found)}"


def test_a_stage_runs_its_layers_in_the_order_of_the_graph() -> None:
    # In the file a comes before b, in the graph after it, as it needs c. So b receives:
    # 100 bytes per sample, 2 samples on dp = 2, from one device, 10 + 2 * 100 ns.
    costs = (make_cost(), make_cost(samples=2), make_cost(samples=2, tp=2))
    problem = make_problem(
        {"a": costs, "b": costs, "c": costs},
        edges=(("c", "a", 100),),
        global_batch=2,
        micro_batches=(2,),
    )
    plan = Plan(
        replicas=1,
        micro_batch=2,
        stages=(
            Stage(layers=("c",), devices=1, strategy=Strategy()),
            Stage(
                layers=("a", "b"),
                devices=2,
                strategies=(Strategy(tp=2), Strategy(dp=2)),
            ),
        ),
    )
    assert score(problem, plan).stages[1].receive_forward == 210
    assert differences(problem, plan) == ("feasible", [])


def test_only_records_are_shared_with_the_product() -> None:
    folder = Path(__file__).parent
    methods = {
        "capacities",
        "data_ranks",
        "expert_ranks",
        "expert_tp",
        "shares_weights",
        "devices_used",
        "index",
        "index_edges",
        "layer_strategies",
        "num_blocks",
        "shards",
        "topological_order",
    }
    for path in folder.glob("*.py"):
        if path.stem == "compare" or path.stem.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules = []
            if isinstance(node, ast.Import):
                modules = [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [str(node.module)]
            elif isinstance(node, ast.Attribute) and path.stem != "simulator":
                # fields of records are read, their methods are not used
                assert node.attr not in methods, f"{path.name}: {node.attr}"
            for module in modules:
                if module.split(".")[0] in ("nest", "formulations"):
                    assert module.startswith("nest.ir"), path.name


@pytest.mark.parametrize(
    ("dp", "cp", "tp", "ep", "etp"),
    [
        (dp, cp, tp, ep, etp)
        for dp, cp, tp in itertools.product((1, 2, 3), repeat=3)
        for etp in ((0,) if tp == 1 else (0, 1))
        for ep in (1, 2, 3, 6)
        if dp * cp * (tp if etp else 1) % ep == 0
    ],
)
def test_groups_are_those_of_the_coordinates(
    dp: int, cp: int, tp: int, ep: int, etp: int
) -> None:
    # The page gives the groups by size and stride, and the ranks by
    # coordinates: both are the same. Experts that are whole have coordinates of
    # their own, of which that of the expert is the fastest.
    strategy = Strategy(dp=dp, cp=cp, tp=tp, ep=ep, etp=etp)
    place = {
        (i, j, t): (i * cp + j) * tp + t
        for i in range(dp)
        for j in range(cp)
        for t in range(tp)
    }
    alike: dict[str, Callable[[int, int, int], object]] = {
        "tp": lambda i, j, t: (i, j),
        "cp": lambda i, j, t: (i, t),
        "dp": lambda i, j, t: (j, t),
        "ep": lambda i, j, t: ((i * cp + j) // ep, t),
        "data": lambda i, j, t: t,
        "expert-data": lambda i, j, t: ((i * cp + j) % ep, t),
    }
    if etp:
        alike["ep"] = lambda i, j, t: ((i * cp + j) * tp + t) // ep
        alike["expert-data"] = lambda i, j, t: ((i * cp + j) * tp + t) % ep
    for axis, key in alike.items():
        expected: dict[object, list[int]] = {}
        for at, rank in place.items():
            expected.setdefault(key(*at), []).append(rank)
        assert sorted(expected.values()) == sorted(groups(strategy, axis, [0]))
    assert sorted(groups(strategy, "sync", [0, 100])) == sorted(
        [*group, *[100 + rank for rank in group]]
        for group in groups(strategy, "data", [0])
    )
    assert groups(strategy, "replicas", [0, 100]) == [
        [rank, 100 + rank] for rank in range(dp * cp * tp)
    ]
