"""One strategy for all stages: bounds by hand, and which cases are left."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.space import Family, batch_splits
from nest.ir import Activations, Problem
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import INFINITE, BatchTerms, StageShapes
from nest.search.stages.uniform_bounds import bound_families, stage_bounds
from nest.search.uniform import BatchCase
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.builders import make_cost, make_levels, make_problem, with_cluster

EVERY = ("dp", "tp", "cp", "ep", "zero", "recompute")


def three_blocks(memory_bytes: int = 10**9, kept: int = 0) -> Problem:
    """A layer of 12 ns, three of a kind of 30, on four devices; M = 4."""
    problem = make_problem(
        {
            "in": make_cost(4, 8),
            "block": make_cost(
                10, 20, activations=(Activations(kept_bytes=kept, static_bytes=5),)
            ),
        },
        devices=4,
        topology=make_levels((4, 0.0, 1e18)),
        memory_bytes=memory_bytes,
        global_batch=4,
        replicas=(1,),
        uniform=EVERY,
    )
    first, block = problem.graph.layers
    layers = (first, *(replace(block, id=f"b{i}") for i in range(3)))
    return replace(problem, graph=replace(problem.graph, layers=layers))


def bounds(problem: Problem, counts: tuple[int, ...]) -> list[int]:
    shapes = StageShapes(CostModel(problem), closed_sets(problem.graph, 1000))
    terms = BatchTerms(shapes, 1)
    (split,) = batch_splits(problem)
    found: list[int] = stage_bounds(terms, split, counts)[0].tolist()
    return found


def test_the_heaviest_stage_has_whole_layers():
    """Loads: 102 in all; of the kind of three a stage has ⌈3/S⌉.

    S = 1: 102 + 3·102. S = 2: the mean is 51, two of a kind 60: 102 + 3·60.
    S = 3: 34 and 30: 102 + 3·34. S = 4: 26 and 30: 102 + 3·30.
    """
    assert bounds(three_blocks(), (1, 2, 3, 4)) == [408, 282, 204, 192]
    assert bounds(three_blocks(), (2, 4)) == [282, 192]


def test_stages_have_room_for_all_layers_of_a_kind():
    """A block holds 5 + 4 i bytes, i micro-batches in flight.

    Of 18 bytes two fit at i = 1 (9 each), one at i = 2 (13) and i = 3 (17),
    none at i = 4. One stage has room for two, two for three.
    """
    problem = three_blocks(memory_bytes=18, kept=4)
    assert bounds(problem, (1, 2, 3)) == [int(INFINITE), 282, 204]
    # Of 17 only one fits at i = 1: three stages it takes.
    problem = three_blocks(memory_bytes=17, kept=4)
    assert bounds(problem, (1, 2, 3)) == [int(INFINITE)] * 2 + [204]


def test_no_more_stages_than_devices():
    problem = three_blocks()
    problem = with_cluster(problem, num_devices=3)
    assert bounds(problem, (3, 4)) == [204, int(INFINITE)]


def test_families_without_a_plan_are_left_out():
    problem = three_blocks(memory_bytes=4)
    shapes = StageShapes(CostModel(problem), closed_sets(problem.graph, 1000))
    terms = BatchTerms(shapes, 1)
    (split,) = batch_splits(problem)
    family = Family(tuple(terms.strategies), (1, 2))
    assert list(bound_families(terms, split, [family])) == []
    assert list(bound_families(terms, split, [])) == []


def case(*bounds: int) -> BatchCase:
    counts = tuple(range(1, len(bounds) + 1))
    family = Family((), counts)
    return BatchCase(None, None, family, np.array(bounds))  # type: ignore[arg-type]


def test_numbers_of_stages_below_a_limit():
    """Plans below 8 may be at a bound of 7, not at one of 8."""
    found = case(5, 7, 8)
    assert found.bound == 5
    assert found.below(8).stage_counts == (1, 2)
    assert found.below(7).stage_counts == (1,)


def test_limits_grow_with_every_try():
    """A sixteenth above 160 at first, then four times as far each time."""
    found = case(160)
    limits = []
    for tries in range(3):
        found.tries = tries
        limits.append(found.limit())
    assert limits == [160 + 11, 160 + 44, 160 + 176]


def test_plans_far_above_the_bounds_are_found():
    """Receives are in no bound, and there must be two stages.

    M = 2, a and b take 30 ns, c 31. Without receives a and b go together, 60
    and 31; but c receives 1,000 bytes, b 500: with a alone both stages wait
    for 510 ns each, 540 + 571 + 571.
    """
    problem = make_problem(
        {
            name: make_cost(10, time - 10)
            for name, time in (("a", 30), ("b", 30), ("c", 31))
        },
        edges=(("a", "b", 500), ("b", "c", 1000)),
        devices=2,
        global_batch=2,
        replicas=(1,),
        pipeline_parallel=(2,),
        uniform=EVERY,
    )
    output = get_solver("dp")().solve(problem, SolveOptions())
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == 540 + 571 + 571
    assert output.lower_bound_quanta == output.claimed_quanta


def test_a_gap_is_enough():
    """The first plan is within any gap that is wide enough."""
    output = get_solver("dp")().solve(three_blocks(), SolveOptions(gap=0.5))
    assert output.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert output.plan is not None
    assert output.claimed_quanta is not None
    assert output.lower_bound_quanta is not None
    assert output.lower_bound_quanta >= output.claimed_quanta / 2
