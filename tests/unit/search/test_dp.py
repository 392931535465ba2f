"""Closed sets, and what the dynamic program refuses."""

from __future__ import annotations

import pytest

from nest.errors import InvalidOptionError, UnsupportedProblemError
from nest.ir import Edge, Graph, Layer, LayerKind
from nest.search.solver import DpSolver
from nest.search.stages.closed_sets import closed_sets
from nest.solvers.base import SolveOptions
from tests.builders import make_cost, make_problem

KIND = LayerKind(name="k", costs=(make_cost(1, 1),))


def graph(names: str, *edges: str) -> Graph:
    return Graph(
        kinds=(KIND,),
        layers=tuple(Layer(id=name, kind="k") for name in names),
        edges=tuple(Edge(source=a, target=b, bytes_per_sample=0) for a, b in edges),
    )


@pytest.mark.parametrize(
    ("found", "count", "pairs"),
    [
        # Prefixes, and every two of them.
        (graph("abc", "ab", "bc"), 4, 6),
        # No edge: all subsets; 3^3 pairs a ⊆ b, less the equal ones.
        (graph("abc"), 8, 19),
        # Diamond: {}, a, ab, ac, abc, abcd; of the 15 two, ab and ac are not nested.
        (graph("abcd", "ab", "ac", "bd", "cd"), 6, 14),
    ],
    ids=["chain", "no edges", "diamond"],
)
def test_closed_sets(found, count, pairs):
    sets = closed_sets(found)
    assert sets.count == count
    assert len(sets.pair_source) == pairs
    assert sets.member[0].sum() == 0
    assert sets.member[-1].all()


def wide(num_layers: int):
    """Layers without edges have 2^n closed sets."""
    costs = {f"l{i}": make_cost(1, 1) for i in range(num_layers)}
    return make_problem(costs, devices=1)


@pytest.mark.parametrize(
    ("num_layers", "count"), [(11, "2048"), (18, r"more than \d{6}")]
)
def test_too_many_closed_sets_are_counted(num_layers, count):
    with pytest.raises(
        UnsupportedProblemError,
        match=rf"\$\.graph: expected at most 1000 predecessor-closed sets, "
        rf"got {count}; merge layers of parallel branches, use another "
        rf"solver, or raise dp\.max_closed_sets",
    ):
        DpSolver().solve(wide(num_layers), SolveOptions())


def test_the_limit_is_an_option():
    options = SolveOptions(extra={"max_closed_sets": "31"})
    with pytest.raises(UnsupportedProblemError, match=r"at most 31 .* got 32;"):
        DpSolver().solve(wide(5), options)
    options = SolveOptions(extra={"max_closed_sets": "32"})
    assert DpSolver().solve(wide(5), options).plan is not None


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
def test_the_limit_is_a_number(value):
    with pytest.raises(
        InvalidOptionError,
        match=rf"dp\.max_closed_sets: expected a whole number >= 1, got "
        rf"'{value}'",
    ):
        DpSolver().solve(wide(2), SolveOptions(extra={"max_closed_sets": value}))


def test_an_unknown_option_is_refused():
    with pytest.raises(
        InvalidOptionError,
        match=r"dp\.speed: expected option max_closed_sets or at_most_quanta "
        r"or within_quanta, got 'speed'; correct the name",
    ):
        DpSolver().solve(wide(2), SolveOptions(extra={"speed": "1"}))


def test_a_longer_load_may_hold_up_less_under_gpipe():
    """``b`` takes 10 + 30 ns under tensor, 31 + 10 under context parallelism.

    ``a`` takes 31 + 10 in front of it. Ten micro-batches: 81 + 9 (31 + 30) =
    630 ns with the shorter load of ``b``, 82 + 9 (31 + 10) = 451 with the
    longer one, 810 with both layers on one stage.
    """
    problem = make_problem(
        {
            "a": make_cost(31, 10, tp=2),
            "b": (make_cost(10, 30, tp=2), make_cost(31, 10, cp=2)),
        },
        edge=0,
        schedule="gpipe",
        global_batch=10,
        replicas=(1,),
    )
    assert DpSolver().solve(problem, SolveOptions()).claimed_quanta == 451
