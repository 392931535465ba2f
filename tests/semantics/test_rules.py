"""One small instance per rule, its optimum derived by hand, every solver.

Layers take 10 ns forward and 20 ns backward unless a case says otherwise.
Messages cost 10 ns + 1 ns/byte between the two devices of a pair, and nothing
on the network ``FREE``.
"""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from nest.cost.score import score
from nest.ir import Activations, Problem
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from tests import optima
from tests.builders import PAIRS, make_cost, make_levels, make_problem
from tests.semantics.proofs import SOLVERS

FREE = make_levels((4, 0.0, 1e18))


def layer(**fields):
    return make_cost(10, 20, **fields)


def two_layers(kept=(0, 0), edge=("a", "b", 0), **fields):
    """Two equal layers in a chain, one pipeline, four micro-batches."""
    fields = {
        "devices": 2,
        "topology": FREE,
        "global_batch": 4,
        "replicas": (1,),
        **fields,
    }
    costs = {
        name: layer(kept_bytes=size) for name, size in zip("ab", kept, strict=True)
    }
    return make_problem(costs, edges=(edge,), **fields)


def diamond():
    """Layer a feeds b (4 bytes) and c (6 bytes)."""
    return make_problem(
        {"a": layer(), "b": make_cost(5, 10), "c": make_cost(5, 10)},
        edges=(("a", "b", 4), ("a", "c", 6)),
        devices=2,
        topology=PAIRS,
        global_batch=4,
        replicas=(1,),
    )


def gpipe(forward_b, backward_b, size_bytes):
    """Layers a (10 and 20 ns) and b on a pair, M = 4."""
    return make_problem(
        {"a": layer(), "b": make_cost(forward_b, backward_b)},
        edge=size_bytes,
        devices=2,
        topology=PAIRS,
        global_batch=4,
        replicas=(1,),
        schedule="gpipe",
    )


def skipping(memory_bytes, *skips, kept=(), width=1, **fields):
    """A chain of empty tensors, and others that skip layers; M = 4."""
    names = "abcd"[: 1 + max("abcd".index(end) for _, end, _ in skips)]
    chain = tuple((a, b, 0) for a, b in itertools.pairwise(names))
    known = dict(kept)
    return make_problem(
        {x: layer(tp=width, kept_bytes=known.get(x, 0)) for x in names},
        edges=chain + skips,
        devices=len(names) * width,
        topology=make_levels((8, 0.0, 1e18)),
        memory_bytes=memory_bytes,
        global_batch=4,
        replicas=(1,),
        **fields,
    )


def two_layouts(memory_bytes, *, split_first):
    """Layers a, b, c, d on pairs of devices; a hands 10 bytes on to d.

    Two samples; one of b and c runs as dp = 2, the other one as tp = 2. They
    take 30 ns, a and d 60; M = 4.
    """
    parts = [make_cost(10, 20), make_cost(10, 20, tp=2, samples=2)]
    b, c = parts[::-1] if split_first else parts
    ends = make_cost(20, 40)
    return make_problem(
        {"a": ends, "b": b, "c": c, "d": ends},
        edges=(("a", "b", 0), ("b", "c", 0), ("c", "d", 0), ("a", "d", 5)),
        devices=6,
        topology=make_levels((6, 0.0, 1e18)),
        memory_bytes=memory_bytes,
        global_batch=8,
        micro_batches=(2,),
        data_parallel=(1, 2),
        replicas=(1,),
        granularity="layer",
    )


def widths(devices):
    """Layer a runs on one device only, layer b on two only."""
    return make_problem(
        {"a": layer(), "b": layer(tp=2)},
        edge=0,
        devices=devices,
        topology=FREE,
        global_batch=4,
        replicas=(1,),
    )


def weights(**fields):
    """One layer with weights on a pair of devices."""
    fields = {"devices": 2, "topology": PAIRS, **fields}
    costs = tuple(make_cost(10 * b, 20 * b, samples=b, weight_bytes=8) for b in (1, 2))
    return make_problem({"a": costs}, **fields)


RECOMPUTE = (
    Activations(recompute="none", kept_bytes=30),
    Activations(recompute="full", kept_bytes=5),
)

#: name -> (problem, optimum in ns or None if infeasible); the derivation is
#: beside each.
CASES: dict[str, tuple[Problem, int | None]] = {
    # One stage: 4 · 60 = 240. Two: Σ 60 + 3 · 30 = 150.
    "pipelining": (two_layers(), 150),
    # R = 2, M = 2, one stage each, nothing to sync: 2 · 60.
    "replicas": (two_layers(replicas=None), 120),
    # Receives of 10 + 6 ns: loads of 46, 92 + 3 · 46 = 230.
    "receive": (two_layers(edge=("a", "b", 6), topology=PAIRS), 230),
    # Receives of 10 + 9 ns: 98 + 3 · 49 = 245, one stage is better.
    "dear receive": (two_layers(edge=("a", "b", 9), topology=PAIRS), 240),
    # a alone in front: its tensor crosses once, with 6 bytes, in 16 ns.
    # Both loads are 30 + 16: 92 + 3 · 46. Counted twice it would be 250.
    "once per producer": (diamond(), 230),
    # The first of two stages keeps two micro-batches of 10 bytes.
    "in flight": (two_layers(kept=(10, 10), memory_bytes=20), 150),
    # 20 bytes fit neither one stage (10 + 10) nor the first of two.
    "too much in flight": (two_layers(kept=(10, 10), memory_bytes=19), None),
    # GPipe keeps all four micro-batches: 40 bytes in either stage.
    "gpipe": (two_layers(kept=(10, 10), memory_bytes=40, schedule="gpipe"), 150),
    "too much for gpipe": (
        two_layers(kept=(10, 10), memory_bytes=39, schedule="gpipe"),
        None,
    ),
    # F = 10 and 20, G = 20 and 10: Σ 60 + 3 · (20 + 20); under 1f1b 150.
    "gpipe pays the slowest of either pass": (gpipe(20, 10, 0), 180),
    # Of 11 ns each: F = 10 and 21, G = 31 and 20. Σ 82 + 3 · (21 + 31).
    "gpipe receives in a pass": (gpipe(10, 20, 1), 238),
    # 1 ns more each: Σ 84 + 3 · (22 + 32) = 246, one stage takes 240.
    "gpipe receives too much in a pass": (gpipe(10, 20, 2), 240),
    # An empty tensor sends no message of 10 ns: 60 + 3 · 30.
    "nothing to send": (two_layers(topology=PAIRS), 150),
    # Two micro-batches are in flight in the stage of b, which a's 5 bytes
    # for c pass: 10 bytes. Three stages: 90 + 3 · 30; two: 90 + 3 · 60.
    "passing": (skipping(10, ("a", "c", 5)), 180),
    "too much passes": (skipping(9, ("a", "c", 5)), 270),
    # All four micro-batches: 20 bytes.
    "passing gpipe": (skipping(20, ("a", "c", 5), schedule="gpipe"), 180),
    "too much passes gpipe": (skipping(19, ("a", "c", 5), schedule="gpipe"), 270),
    # Over two ranks ⌈5 / 2⌉ = 3 bytes each: 6.
    "passing in shards": (
        skipping(6, ("a", "c", 5), width=2, sequence_parallel=True),
        180,
    ),
    "too much passes in shards": (
        skipping(5, ("a", "c", 5), width=2, sequence_parallel=True),
        270,
    ),
    # Three in flight in b's stage: 3 · 8. In c's stage two, of which c keeps
    # 10 bytes each, and what d needs of the tensor that c reads too: 2 · 12.
    # Four stages: 120 + 3 · 30; three: 120 + 3 · 60.
    "passing and consumed": (
        skipping(24, ("a", "c", 8), ("a", "d", 2), kept=[("c", 10)]),
        210,
    ),
    "too much passes and is consumed": (
        skipping(23, ("a", "c", 8), ("a", "d", 2), kept=[("c", 10)]),
        300,
    ),
    # a | b c | d: 180 + 3 · 60. 10 bytes pass the stage in the layout of its
    # first layer: 5 bytes each if that is b on two ranks, twice in flight.
    # Two stages of two layers: 180 + 3 · 90.
    "passing the layout of the first layer": (two_layouts(10, split_first=False), 360),
    "too much passes the first layer": (two_layouts(9, split_first=False), 450),
    # In one piece if b is split over the two devices: 10 bytes each.
    "passing in one piece": (two_layouts(20, split_first=True), 360),
    "too much passes in one piece": (two_layouts(19, split_first=True), 450),
    # b first keeps 2 · 4, a last 10 bytes; one stage would keep 14.
    "order": (two_layers(kept=(10, 4), edge=("b", "a", 0), memory_bytes=10), 150),
    "wrong order": (two_layers(kept=(10, 4), memory_bytes=10), None),
    # No common width, so two stages on 1 + 2 devices.
    "stages of their own width": (widths(3), 150),
    "no room for both widths": (widths(2), None),
    # R = 2, M = 8: 8 · 30, and an all-reduce of 8 bytes on a pair:
    # 2 · 10 + 2 · 1/2 · 8 = 28. One replica: 16 · 30 = 480.
    "gradient sync": (weights(global_batch=16), 268),
    # Half of it hidden.
    "hidden sync": (weights(global_batch=16, gradient_sync_overlap=0.5), 254),
    # 8 + 8 + 48 bytes do not fit 50; ZeRO 1 on two ranks takes 8 + 8 + 24.
    # B = 2, M = 2: 2 · 30 + (10 + 4) reduce-scatter + (10 + 4) all-gather.
    "zero": (
        weights(
            global_batch=4,
            micro_batches=(2,),
            replicas=(1,),
            zero=(0, 1),
            memory_bytes=50,
        ),
        88,
    ),
    # Only full recomputation fits: τ = 10 + 20 + 10.
    "recomputation": (
        make_problem(
            {"a": layer(activations=RECOMPUTE)},
            devices=1,
            topology=FREE,
            memory_bytes=30 - 1,
            global_batch=4,
            recompute=("none", "full"),
        ),
        160,
    ),
    # The same, but no framework's checkpoint is around it: τ = 10 + 20.
    "no checkpoint": (
        make_problem(
            {
                "a": layer(
                    activations=(RECOMPUTE[0], replace(RECOMPUTE[1], reruns=False))
                )
            },
            devices=1,
            topology=FREE,
            memory_bytes=30 - 1,
            global_batch=4,
            recompute=("none", "full"),
        ),
        120,
    ),
    # ⌈5 / 2⌉ = 3 micro-batches of two samples: 3 · 60.
    "uneven batches": (
        weights(devices=1, global_batch=5, micro_batches=(2,), uneven_batches=True),
        180,
    ),
    # 2 does not divide 5.
    "even batches": (weights(devices=1, global_batch=5, micro_batches=(2,)), None),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("case", CASES)
def test_the_optimum_is_the_derived_one(case, name):
    problem, optimum = CASES[case]
    output = get_solver(name)().solve(problem, SolveOptions())
    if optimum is None:
        assert output.status is Status.INFEASIBLE
        return
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == optimum
    assert output.plan is not None
    verdict = score(problem, output.plan)
    assert (verdict.step_quanta, verdict.feasible) == (optimum, True)


@pytest.mark.parametrize("case", CASES)
def test_dp_needs_no_plan_for_the_derived_optimum(case):
    problem, optimum = CASES[case]
    output = optima.search(problem, "proof-alone")
    assert output.claimed_quanta == optimum
    assert (output.status is Status.INFEASIBLE) == (optimum is None)
