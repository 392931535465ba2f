"""The search for the best plan: what it merges, when it stops, who wins."""

from __future__ import annotations

import numpy as np
import pytest

from nest.cost.groups import GroupTable
from nest.cost.model import CostModel
from nest.search import best, parallel
from nest.search.parallel import share
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import (
    BatchTerms,
    PairOptions,
    StageOptions,
    StageShapes,
    batch_terms,
)
from nest.search.stages.splits import PathBounds, merged, open_splits
from nest.solvers.base import Deadline, OutOfTimeError, SolveOptions, Status
from nest.solvers.registry import get_solver
from nest.topology.generators import generate
from nest.topology.graph import GraphNetwork, network
from nest.topology.graph.convert import topology_of
from tests import optima
from tests.builders import make_cost, make_problem, with_others
from tests.clock import Ticking
from tests.graphs import make_graph
from tests.planners import chain_of


def pair_options(*rows: tuple[int, ...]) -> PairOptions:
    """Build options from (level, pair, strategy, first, last, span)."""
    level, pair, strategy, first, last, span = np.array(
        [(*row, 0)[:6] for row in rows], dtype=np.int64
    ).T
    size = np.ones_like(level)
    return PairOptions(level, span, pair, strategy, size, size, size, size, first, last)


def test_options_of_several_parts_are_merged_at_all_their_offsets():
    """Only rows of one level, span, pair and strategy are the same option."""
    found = merged(
        [
            pair_options((1, 5, 1, 2, 6), (0, 5, 0, 3, 4)),
            pair_options((0, 5, 0, 1, 3), (0, 5, 1, 7, 7), (0, 4, 0, 0, 9)),
            pair_options((0, 5, 0, 8, 9, 1)),
        ]
    )
    rows = zip(
        found.level.tolist(),
        found.span.tolist(),
        found.pair.tolist(),
        found.strategy.tolist(),
        found.first.tolist(),
        found.last.tolist(),
        strict=True,
    )
    assert list(rows) == [
        (0, 0, 4, 0, 0, 9),
        (0, 0, 5, 0, 1, 4),
        (0, 0, 5, 1, 7, 7),
        (0, 1, 5, 0, 8, 9),
        (1, 0, 5, 1, 2, 6),
    ]


@pytest.mark.parametrize("granularity", ["stage", "layer"])
def test_the_plan_does_not_depend_on_which_task_is_done_first(monkeypatch, granularity):
    """Two micro-batches of 30 ns, or one of 60: the smaller ``B`` wins."""
    problem = make_problem(
        {"a": (make_cost(10, 20), make_cost(20, 40, samples=2))},
        devices=1,
        global_batch=2,
        micro_batches=(1, 2),
        granularity=granularity,
    )

    def last_first(num_tasks, workers, run, take, done, begin):
        share(
            num_tasks,
            workers,
            lambda number, link: run(num_tasks - 1 - number, link),
            take,
            lambda number, found: done(num_tasks - 1 - number, found),
        )

    for order in (share, last_first):
        monkeypatch.setattr(parallel, "share", order)
        output = get_solver("dp")().solve(problem, SolveOptions())
        assert output.claimed_quanta == 60
        assert output.plan.micro_batch == 1


def test_the_search_ends_within_the_gap():
    """The stages of least load, 40 and 60 ns, take 100 + 60 at least.

    Forward and backward paces of different stages add up: 172 is best.
    """

    def either(one: tuple[int, int], other: tuple[int, int]):
        return make_cost(*one, tp=2), make_cost(*other, cp=2)

    problem = make_problem(
        {"a": either((40, 0), (0, 60)), "b": either((10, 50), (30, 31))},
        edge=0,
        global_batch=2,
        replicas=(1,),
        schedule="gpipe",
    )
    dp = get_solver("dp")()
    assert dp.solve(problem, SolveOptions()).claimed_quanta == 172
    output = dp.solve(problem, SolveOptions(gap=0.5))
    assert output.status is Status.FEASIBLE
    assert output.lower_bound_quanta == 160
    assert output.claimed_quanta >= 172


def test_more_stages_than_the_cheapest_path_has_are_looked_at():
    """Four layers on four devices: 30 ns each on one, 14 each on all four.

    Sixteen micro-batches: four stages of one device take 120 + 15 · 30, one
    stage of four devices 16 · 56. Without a budget two stages of two layers
    would add less, so paths of more stages are no better.
    """
    costs = make_cost(10, 20), make_cost(4, 10, tp=4)
    problem = make_problem(
        dict.fromkeys("abcd", costs),
        edge=0,
        devices=4,
        global_batch=16,
        replicas=(1,),
        micro_batches=(1,),
    )
    for setting in optima.SETTINGS:
        assert optima.search(problem, setting).claimed_quanta == 570


def test_splits_are_bounded_once_whether_gradients_hide_or_not(monkeypatch):
    """Paths leave sync out; passes that hide weights are others."""
    groups = []
    alike = best.BestSearch._with_equal_paths

    def seen(self):
        found = alike(self)
        for items in found.values():
            options = [item.options for item in items]
            assert len({x.split for x in options}) == 1
            groups.append({x.model.runtime.overlap for x in options})
        return found

    monkeypatch.setattr(best.BestSearch, "_with_equal_paths", seen)
    problem = make_problem(
        {"a": make_cost(10, 20, weight_bytes=8)},
        overlap={"weights": 0.5, "gradients": 0.5},
        replicas=(1,),
    )
    assert optima.search(problem).status is Status.OPTIMAL
    weights, gradients = frozenset({"weights"}), frozenset({"gradients"})
    assert groups == [{weights | gradients, weights}, {gradients, frozenset()}]


@pytest.mark.parametrize("num_old", [0, 2])
def test_intervals_get_multipliers_of_their_own_before_stages_are_placed(
    monkeypatch, num_old
):
    """Where types of devices differ, those of the first plans do, too."""
    steps = []

    def note(owner, name):
        original = getattr(owner, name)

        def noted(self, *arguments):
            steps.append(name)
            return original(self, *arguments)

        monkeypatch.setattr(owner, name, noted)

    note(best.BestSearch, "_prove")
    note(PathBounds, "refined")
    problem = with_others(chain_of(4), 0, num_old) if num_old else chain_of(4)
    assert optima.search(problem).status is Status.OPTIMAL
    proof = steps.index("_prove")
    assert ("refined" in steps[:proof]) == (num_old > 0)
    assert "refined" in steps[proof:]


def test_what_is_too_slow_without_communication_prices_no_groups(monkeypatch):
    """Three layers on four devices of a graph: the best plan takes 360 ns.

    Layers alone do not exclude 254 ns, cuts do. Nor is the split searched for a plan
    that is only as good as the limit.
    """
    star = make_graph("wxyz", [(x, "switch", 1.0, 1e9) for x in "wxyz"])
    problem = chain_of(3, topology=star, global_batch=8, replicas=(1,))
    assert optima.search(problem).claimed_quanta == 360
    (split,) = open_splits(
        CostModel(problem), closed_sets(problem.graph), Deadline(None)
    )
    assert split.bound <= 254
    monkeypatch.setattr(GroupTable, "keys", None)
    monkeypatch.setattr(best.BestSearch, "_search_split", None)
    options = SolveOptions(extra={"within_quanta": "254"})
    output = get_solver("dp")().solve(problem, options)
    assert output.plan is None
    assert output.lower_bound_quanta == 255


def test_families_of_a_split_have_bounds_of_their_own():
    """All layers share ``tp``: 60 ns with one, 50 with two, 40 with three."""
    problem = make_problem(
        {"a": tuple(make_cost(70 - 10 * tp, 0, tp=tp) for tp in (1, 2, 3))},
        devices=3,
        uniform=("tp",),
        replicas=(1,),
    )
    output = optima.search(problem)
    assert output.claimed_quanta == 40
    assert output.lower_bound_quanta == 40


def test_terms_over_all_places_stop_at_the_deadline():
    """On large tori they take longer than any limit; what is known is kept."""
    problem = chain_of(2)
    model, sets = CostModel(problem), closed_sets(problem.graph)
    shapes = StageShapes(model, sets, Ticking(2))
    (_, terms), *_ = batch_terms(shapes, model.runtime)
    with pytest.raises(OutOfTimeError):
        _ = terms.least_load
    shapes.deadline = None
    (_, calm), *_ = batch_terms(StageShapes(model, sets), model.runtime)
    assert np.array_equal(terms.least_load, calm.least_load)


def on_a_torus(name: str, *layers: tuple[int, int], edge: int = 0):
    """Layers with a time in ns and bytes of weights on a torus, with ZeRO 0 and 1."""
    costs = {
        str(index): tuple(
            make_cost(
                time * samples // tp,
                2 * time * samples // tp,
                tp=tp,
                samples=samples,
                weight_bytes=weight_bytes // tp,
            )
            for tp in (1, 2)
            for samples in (1, 2, 4)
        )
        for index, (time, weight_bytes) in enumerate(layers)
    }
    topology = topology_of(generate(name))
    return make_problem(
        costs,
        edge=edge,
        topology=topology,
        devices=topology.max_devices,
        global_batch=4,
        micro_batches=(1, 2, 4),
        data_parallel=(1, 2, 4),
        tensor_parallel=(1, 2),
        zero=(0, 1),
    )


def test_bounds_on_stages_at_offsets_exclude_no_other_stage():
    """With bounds, ZeRO 1 is as fast and smaller; in fact its sync takes longer.

    The optimum is that of ``brute``.
    """
    problem = on_a_torus("torus:2x2x2", (10, 80000), (10, 8), (1000, 800))
    assert optima.search(problem, "proof-alone").claimed_quanta == 4064


def test_groups_are_priced_for_the_stages_that_bounds_leave(monkeypatch):
    """Bounds have one group alone; what they leave has all groups."""
    options, groups = {True: 0, False: 0}, {True: 0, False: 0}
    placed, prices = StageOptions.placed, GraphNetwork.prices

    def noted(self, pairs, *arguments):
        options[self.is_relaxed] += len(pairs)
        return placed(self, pairs, *arguments)

    def priced(self, ranks, components):
        groups[len(ranks) == 1] += 1
        return prices(self, ranks, components)

    monkeypatch.setattr(network, "SMALL", 0)
    monkeypatch.setattr(StageOptions, "placed", noted)
    monkeypatch.setattr(GraphNetwork, "prices", priced)
    layers = (1000, 800), (100, 8000), (1000, 8000), (1000, 800)
    problem = on_a_torus("torus:2x2", *layers, edge=10000)
    assert optima.search(problem).status is Status.OPTIMAL
    assert options == {True: 67, False: 13}
    assert groups == {True: 6, False: 3}


@pytest.mark.parametrize(("max_loose", "expected"), [(500, 1), (0, 2)])
def test_least_loads_become_exact_where_bounds_leave_much(
    monkeypatch, max_loose, expected
):
    """Then those of all groups are computed, too."""
    loads = set()
    amounts = BatchTerms._min_amounts

    def noted(self, what, *arguments):
        loads.add(what[0])
        return amounts(self, what, *arguments)

    monkeypatch.setattr(BatchTerms, "_min_amounts", noted)
    monkeypatch.setattr(network, "SMALL", 0)
    monkeypatch.setattr(best, "MAX_LOOSE", max_loose)
    layers = (1000, 800), (100, 8000), (1000, 8000), (1000, 800)
    problem = on_a_torus("torus:2x2", *layers, edge=10000)
    assert optima.search(problem).status is Status.OPTIMAL
    assert len(loads - {"free"}) == expected
