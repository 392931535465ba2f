"""Schedules of operators on cases worked out by hand."""

from __future__ import annotations

import pytest

from nest.codesign.schedule import Cores, schedule
from nest.errors import InvalidProblemError
from tests.schedules import free, fused, tensor, vector


@pytest.mark.parametrize(
    ("operators", "cores", "makespan"),
    [
        # side by side on two cores, or one after the other on both: 4 < 6
        ((tensor("a", 4, 3), tensor("b", 4, 3)), (2, 0), 4),
        ((tensor("a", 4, 2), tensor("b", 4, 2)), (2, 0), 4),
        ((tensor("a", 5, 2), tensor("b", 5, 2)), (2, 0), 4),
        # three on two cores: two and one
        ((tensor("a", 4), tensor("b", 4), tensor("c", 4)), (2, 0), 8),
        # alone on the whole chip: 3 + 4, or 8 beside 4
        ((tensor("a", 8, 3), vector("b", 4)), (2, 2), 7),
        # edges: 4 + 2 + 3, and the free view between them
        (
            (
                tensor("a", 4),
                free("view", ["a"]),
                vector("b", 2, after=["view"]),
                fused("c", 3, after=["b"]),
            ),
            (1, 1),
            9,
        ),
        # a fused operator keeps a core of either type busy: 3 + 3
        ((fused("a", 3), vector("b", 3), tensor("c", 3)), (1, 1), 6),
        # with a second core of each they run side by side
        ((fused("a", 3), vector("b", 3), tensor("c", 3)), (2, 2), 3),
        # six ticks on two tensor cores, of them four on the vector core: a
        # beside c and d, then b beside d
        (
            (tensor("a", 4), tensor("b", 2), fused("c", 1), fused("d", 3)),
            (2, 1),
            5,
        ),
        ((), (1, 1), 0),
        # presolve of OR-tools 9.15 took 12 for the optimum of a model with
        # two optional intervals per operator: 3 + 4 + 3
        (
            (
                fused("a", 5, 3),
                tensor("b", 6, 4),
                vector("c", 6, 3, after=["a", "b"]),
            ),
            (1, 3),
            10,
        ),
    ],
)
def test_makespans(operators, cores, makespan):
    found = schedule(operators, Cores(*cores))
    assert found.makespan_ticks == makespan
    assert found.lower_bound_ticks == makespan
    assert found.optimal


def test_a_schedule_says_when_and_where():
    found = schedule(
        [
            tensor("a", 4, 2),
            tensor("b", 3, after=["a"]),
            vector("c", 3, after=["a"]),
            fused("d", 1, after=["b", "c"]),
        ],
        Cores(2, 1),
    )
    assert found.makespan_ticks == 6
    places = found.operators
    assert places["a"] == (0, 2, True, None, None)
    assert places["b"] == (2, 5, False, 0, None)
    assert places["c"] == (2, 5, False, None, 0)
    assert places["d"] == (5, 6, False, 0, 0)


def test_a_layer_is_cut_where_everything_meets():
    """a, then b to e, then f; c and d do not meet in between."""
    operators = [
        tensor("a", 1),
        tensor("b", 2, after=["a"]),
        vector("c", 2, after=["a"]),
        tensor("d", 3, after=["b"]),
        vector("e", 3, after=["c"]),
        fused("f", 1, after=["d", "e", "a"]),
    ]
    found = schedule(operators[::-1], Cores(1, 1))
    assert [sorted(part.operators) for part in found.parts] == [
        ["a"],
        ["b", "c", "d", "e"],
        ["f"],
    ]
    assert found.makespan_ticks == 1 + (2 + 3) + 1
    assert found.operators["f"] == (6, 7, False, 0, 0)


def test_a_layer_of_two_heads_is_proven():
    """6 products of 64 and 4 of 32 on 2 cores: work for 256 ticks.

    The vector cores keep up, so no core ever waits.
    """
    operators = []
    for head in range(2):
        operators += [
            *(tensor(f"{x}{head}", 64) for x in "qkv"),
            tensor(f"s{head}", 32, None, [f"q{head}", f"k{head}"]),
            vector(f"m{head}", 10, 5, [f"s{head}"]),
            tensor(f"a{head}", 32, None, [f"m{head}", f"v{head}"]),
        ]
    found = schedule(operators, Cores(2, 2))
    assert found.optimal
    assert found.makespan_ticks == 256


def test_operators_on_one_type_get_the_first_free_core():
    found = schedule(
        [tensor("a", 4), tensor("b", 4), vector("c", 4), tensor("d", 4)],
        Cores(3, 1),
    )
    places = found.operators
    assert {places[name].tensor_core for name in "abd"} == {0, 1, 2}
    assert places["c"].vector_core == 0


@pytest.mark.parametrize(
    ("operators", "cores", "text"),
    [
        (
            [tensor("a", 1)],
            (-1, 1),
            "cores.tensor: expected a whole number >= 0, got -1; correct it",
        ),
        (
            [tensor("a", 1), vector("a", 1)],
            (1, 1),
            "operator 'a': expected distinct names, got it 2 times; rename "
            "one",
        ),
        (
            [tensor("a", 1, after=["z"])],
            (1, 1),
            "operator 'a': expected names of operators in after, got 'z'; "
            "correct it",
        ),
        (
            [tensor("a", 0)],
            (1, 1),
            "operator 'a': single_ticks: expected a whole number >= 1, got 0; "
            "correct it or use engine 'none'",
        ),
        (
            [tensor("a")],
            (1, 1),
            "operator 'a': expected single_ticks or whole_ticks, got "
            "neither; the layer cannot run on this accelerator",
        ),
        (
            [fused("a", 1)],
            (1, 0),
            "operator 'a': expected at least one vector core, got none; add "
            "one or change its engine",
        ),
        (
            [
                tensor("a", 1, after=["b"]),
                tensor("b", 1, after=["a"]),
                tensor("c", 1),
            ],
            (1, 1),
            "operators: expected no cycle, got one among a, b; remove an "
            "entry of after",
        ),
        (
            [tensor("a", 2**52), tensor("b", 2**52, 2**52 + 1)],
            (1, 1),
            "operators: expected at most 4503599627370496 ticks together, "
            "got 9007199254740993; count in larger units",
        ),
    ],
)
def test_operators_that_cannot_be_scheduled(operators, cores, text):
    with pytest.raises(InvalidProblemError) as caught:
        schedule(operators, Cores(*cores))
    assert str(caught.value) == text


def test_without_time_nothing_is_proven():
    """A good schedule all the same: work for 106 ticks on 3 cores, and 4."""
    operators = [tensor(f"o{i}", 5 + i % 7) for i in range(40)]
    operators.append(tensor("last", 9, 4, ["o0", "o1"]))
    found = schedule(operators, Cores(3, 1), time_limit_s=0.0)
    assert 108 <= found.makespan_ticks <= 112
    assert found.lower_bound_ticks <= found.makespan_ticks
    assert not found.optimal
