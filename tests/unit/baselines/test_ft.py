"""``ft``: each elimination by hand, and all of them against enumeration.

A layer is a list of (quanta, bytes) by configuration; an edge takes so many
quanta where the configurations of its ends differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines.ft import (
    HEURISTICS,
    FtPlanner,
    StuckError,
    Tracking,
    offers,
    point,
    product,
    union,
)
from nest.cost.score import score
from nest.ir import Problem
from nest.solvers.base import SolveOptions, SolverOutput, Status
from tests.builders import make_cost, make_problem
from tests.properties.profiles import examples

#: Quanta and bytes, by configuration.
Layer = Sequence[tuple[int, int]]
Edges = Mapping[tuple[int, int], int]

TIME, MEMORY = HEURISTICS["time"], HEURISTICS["memory"]

#: Two layers that each feed two others: nothing exact applies.
SQUARE = ((0, 2), (0, 3), (1, 2), (1, 3))


def track(layers: Sequence[Layer], edges: Edges) -> Tracking:
    """Return the graph of frontiers of some layers."""
    return Tracking(
        {
            number: [
                point(*values, (number, configuration))
                for configuration, values in enumerate(layer)
            ]
            for number, layer in enumerate(layers)
        },
        {
            (a, b): [
                [point(quanta * (i != j), 0) for j in range(len(layers[b]))]
                for i in range(len(layers[a]))
            ]
            for (a, b), quanta in edges.items()
        },
    )


def found(graph: Tracking, heuristic: int | None = None) -> list[tuple[int, int]]:
    """Return quanta and bytes of the frontier of a graph."""
    values = graph.frontier(heuristic).values
    return [(int(t), int(m)) for t, m in values.T]


def enumerated(layers: Sequence[Layer], edges: Edges) -> list[tuple[int, int]]:
    """Return the frontier of all choices of configurations."""
    every = []
    for chosen in itertools.product(*(range(len(x)) for x in layers)):
        own = [x[c] for x, c in zip(layers, chosen, strict=True)]
        moved = sum(q for (a, b), q in edges.items() if chosen[a] != chosen[b])
        every.append((sum(t for t, _ in own) + moved, sum(m for _, m in own)))
    kept: list[tuple[int, int]] = []
    for quanta, size_bytes in sorted(every):
        if not kept or size_bytes < kept[-1][1]:
            kept.append((quanta, size_bytes))
    return kept


def test_product_adds_up_and_drops_what_is_worse_in_both():
    """10 + 20 and 11 + 10; (1, 5) + (4, 1): four sums, one of them worse."""
    one = union([point(10, 20), point(11, 10)])
    other = union([point(1, 5), point(4, 1)])
    both = product(one, other)
    assert both.values.tolist() == [[11, 12, 15], [25, 15, 11]]


def test_of_equal_points_one_is_left():
    assert union([point(3, 4), point(3, 4)]).values.tolist() == [[3], [4]]


def test_a_path_needs_linear_programming_alone():
    """Both layers fast, 10 + 10; slow, 30 + 30; else a change for 5."""
    layers = [[(10, 9), (30, 1)], [(10, 9), (30, 1)]]
    assert found(track(layers, {(0, 1): 5})) == [(20, 18), (45, 10), (60, 2)]


def test_points_know_what_they_are_made_of():
    layers = [[(10, 9), (30, 1)]] * 2
    frontier = track(layers, {(0, 1): 5}).frontier(None)
    assert frontier.choices(0) == {0: 0, 1: 0}
    assert frontier.choices(2) == {0: 1, 1: 1}
    assert sorted(frontier.choices(1).values()) == [0, 1]


def test_a_layer_between_two_becomes_an_edge_beside_another():
    """The change from 0 to 2 is paid at 1 or on the edge past it.

    Layer 0 has the first configuration, layer 2 the second: 7 past layer 1,
    and the cheaper of 3 and 4 beside it.
    """
    layers = [[(0, 0), (99, 0)], [(0, 0), (0, 0)], [(99, 0), (0, 0)]]
    edges = {(0, 1): 3, (1, 2): 4, (0, 2): 7}
    assert found(track(layers, edges)) == [(10, 0)]


def test_a_layer_with_one_edge_becomes_a_part_of_its_neighbour():
    """Layer 0 feeds three; each agrees with it for nothing."""
    layers = [[(5, 1), (1, 5)], *[[(5, 1), (1, 5)]] * 3]
    edges = {(0, 1): 9, (0, 2): 9, (0, 3): 9}
    graph = track(layers, edges)
    assert found(graph) == enumerated(layers, edges)
    assert graph.fixed == []


def test_two_paths_that_do_not_meet_add_up():
    layers = [[(1, 2)], [(3, 4)], [(5, 6)], [(7, 8)]]
    assert found(track(layers, {(0, 1): 9, (2, 3): 9})) == [(16, 20)]


def test_the_heuristic_elimination_loses():
    """Layer 0 alone takes 10, or 11 in the configuration of all others.

    To choose the former costs two changes for 100 each.
    """
    layers = [[(10, 0), (11, 0)], *[[(50, 0), (0, 0)]] * 3]
    edges = dict.fromkeys(SQUARE, 100)
    assert enumerated(layers, edges) == [(11, 0)]
    graph = track(layers, edges)
    # All others change with it: 10 + 3 * 50.
    assert found(graph, TIME) == [(160, 0)]
    assert graph.fixed == [0]


def test_the_heuristic_elimination_by_memory():
    """Layer 0 alone holds 0 or 1 bytes; the latter has the only fast way."""
    layers = [[(10, 0), (0, 1)], *[[(0, 0), (0, 0)]] * 3]
    edges = dict.fromkeys(SQUARE, 100)
    assert found(track(layers, edges), MEMORY) == [(10, 0)]
    assert found(track(layers, edges), TIME) == [(0, 1)]


def test_without_it_there_is_no_answer():
    layers = [[(1, 1), (2, 2)]] * 4
    with pytest.raises(StuckError, match="0"):
        track(layers, dict.fromkeys(SQUARE, 1)).frontier(None)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Layer], dict[tuple[int, int], int]]:
    """Draw a graph of a few layers."""
    number = draw(st.integers(1, 6))
    quanta = st.integers(0, 20)
    layers = draw(
        st.lists(
            st.lists(st.tuples(quanta, quanta), min_size=1, max_size=3),
            min_size=number,
            max_size=number,
        )
    )
    every = list(itertools.combinations(range(number), 2))
    chosen = draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    return layers, {edge: draw(quanta) for edge in chosen}


@pytest.mark.parametrize("heuristic", [TIME, MEMORY])
@given(graph=graphs())
@examples(60, full=3000)
def test_only_the_heuristic_elimination_is_not_exact(
    heuristic: int, graph: tuple[list[Layer], dict[tuple[int, int], int]]
) -> None:
    truth = enumerated(*graph)
    tracking = track(*graph)
    points = found(tracking, heuristic)
    if not tracking.fixed:
        assert points == truth
    for quanta, size_bytes in points:
        assert any(t <= quanta and m <= size_bytes for t, m in truth)


@given(graph=graphs())
@examples(60, full=3000)
def test_points_take_what_their_choices_do(
    graph: tuple[list[Layer], dict[tuple[int, int], int]],
) -> None:
    layers, edges = graph
    frontier = track(*graph).frontier(TIME)
    for number, (quanta, size_bytes) in enumerate(frontier.values.T.tolist()):
        chosen = frontier.choices(number)
        assert sorted(chosen) == list(range(len(layers)))
        own = [layers[i][c] for i, c in sorted(chosen.items())]
        moved = sum(q for (a, b), q in edges.items() if chosen[a] != chosen[b])
        assert quanta == sum(t for t, _ in own) + moved
        assert size_bytes == sum(m for _, m in own)


# As a planner


def make(**fields: object) -> Problem:
    """Return two layers that are faster split by tp, and hold less by dp.

    On two devices: 40 + 80 ns with dp, 30 + 60 with tp for the first layer
    and the other way round for the second; weights of 80 bytes.
    """

    def layer(by_tp: int, by_dp: int) -> tuple[object, ...]:
        return tuple(
            make_cost(own, 2 * own, tp=tp, samples=tp, weight_bytes=80 // tp)
            for tp, own in ((1, by_dp), (2, by_tp))
        )

    settings = {
        "global_batch": 2,
        "micro_batches": (2,),
        "devices": 2,
        "replicas": (1,),
        "zero": (0,),
        "granularity": "layer",
        "edges": (("a", "b", 4),),
    }
    return make_problem({"a": layer(30, 40), "b": layer(40, 30)}, **(settings | fields))


def solve(problem: Problem, **extra: str) -> SolverOutput:
    return FtPlanner().solve(problem, SolveOptions(extra=extra))


def test_its_objective_is_the_shared_one_without_a_working_set():
    """A change takes (10 + 4) there and (10 + 4) back: not worth 30."""
    problem = make()
    output = solve(problem)
    assert output.status is Status.FEASIBLE
    assert output.plan is not None
    found = score(problem, output.plan)
    assert output.own_objective_ns == found.step_quanta
    assert len(output.plan.stages) == 1


def test_one_strategy_for_all_where_the_job_wants_one():
    output = solve(make(granularity="stage"))
    assert output.plan is not None
    (stage,) = output.plan.stages
    assert len(set(stage.layer_strategies)) == 1


def test_every_micro_batch_with_the_fewest_replicas():
    problem = make(micro_batches=(1, 2), replicas=None, global_batch=4, devices=2)
    found = [(x.case.micro_batch, x.case.replicas) for x in offers(problem)]
    assert found == [(1, 1), (2, 1)]


def test_pipelines_alone_are_refused():
    reason = FtPlanner().unsupported(make(pipeline_parallel=(2,)))
    assert reason is not None
    assert "expected 1 among the allowed values" in reason


def crossed(**fields: object) -> Problem:
    """Return four layers, two of which feed both others."""
    layer = tuple(
        make_cost(40, 80, tp=tp, samples=tp, weight_bytes=80 // tp) for tp in (1, 2)
    )
    return make_problem(
        dict.fromkeys("abcd", layer),
        edges=tuple((s, t, 4) for s, t in ("ac", "ad", "bc", "bd")),
        global_batch=2,
        micro_batches=(2,),
        devices=2,
        replicas=(1,),
        zero=(0,),
        granularity="layer",
        **fields,
    )


def test_what_was_chosen_by_heuristic_is_said():
    assert "chosen by heuristic: a" in solve(crossed()).detail
    output = solve(crossed(), heuristic="none")
    assert output.plan is None
    assert "no exact elimination is left with layer 'a'" in output.detail
