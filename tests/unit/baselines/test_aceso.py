"""``aceso``: its view, each primitive and the order of tries by hand.

One link of 10 ns per message and 1 ns per byte. Layers are written as their
forward pass in ns; backward passes take twice as long, so a layer of 10 takes
30 per micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from baselines import aceso
from baselines.aceso import AcesoSolver, Trials
from baselines.aceso_primitives import (
    PRIMITIVES,
    Ledger,
    Primitive,
    Shares,
    apply,
    groups,
    idle_time,
    is_legal,
    shares,
    tune_layers,
    tune_stages,
)
from baselines.aceso_view import Config, Degrees, View, even_stops, spread
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Activations, Graph, Layer, Problem, Strategy
from nest.solvers.base import SolveOptions, Status
from tests.builders import PAIRS, make_cost, make_problem
from tests.planners import chain_of

ONE: Degrees = (1, 1)
NEVER = 10**6


def view_of(problem: Problem) -> View:
    return View(CostModel(problem))


def ledger(effort: int = NEVER) -> Ledger:
    return Ledger(effort, lambda: False)


def config(
    view: View, *stages: tuple[int, Degrees], batches: tuple[int, int] = (1, 1)
) -> Config:
    """Return a configuration from (number of layers, degrees) per stage."""
    split = view.split(*batches)
    assert split is not None
    stops = tuple(itertools.accumulate(count for count, _ in stages))
    degrees = [key for count, key in stages for _ in range(count)]
    return Config(split, stops, tuple(degrees))


def row(forward_ns: Sequence[int], **fields: Any) -> Problem:
    """Return a chain of layers; ``tp`` of 2 and 4 halve their times.

    Micro-batches have 1 or 2 samples, which take twice as long; tensors
    between layers have no bytes.
    """
    kept_bytes = fields.pop("kept_bytes", 0)
    names = "abcdefghijklmn"[: len(forward_ns)]
    costs = {
        name: tuple(
            make_cost(
                size * n / tp,
                2 * size * n / tp,
                tp=tp,
                samples=n,
                kept_bytes=kept_bytes * n // tp,
            )
            for tp in (1, 2, 4)
            for n in (1, 2)
        )
        for name, size in zip(names, forward_ns, strict=True)
    }
    fields.setdefault("devices", 4)
    fields.setdefault("global_batch", 4)
    edges = tuple((a, b, 0) for a, b in itertools.pairwise(names))
    return make_problem(costs, edges=edges, **fields)


def solve(problem: Problem, **extra: str) -> Any:
    return AcesoSolver().solve(problem, SolveOptions(extra=extra))


# Its view of time


def test_steps_take_what_the_slowest_stage_lets_through() -> None:
    """Two stages of 30 ns that receive 100 bytes: 4 - 1 times 140, and both.

    Gradient sync, which the shared score adds, is none of its business.
    """
    problem = chain_of(global_batch=4, micro_batches=(1, 2))
    view = view_of(problem)
    two = view.judge(config(view, (1, ONE), (1, ONE)))
    assert two is not None
    assert two.own == (30 + 110, 30 + 110)
    assert two.times == (3 * 140 + 280, 3 * 140 + 280)
    shared = config(view, (2, (2, 1)), batches=(1, 2))
    judged = view.judge(shared)
    assert judged is not None
    assert judged.step == 2 * 60
    assert score(problem, view.plan(shared)).step_quanta > judged.step


def test_of_the_network_it_knows_whether_nodes_differ() -> None:
    """Between pairs 100 ns and 10 ns per byte; goals always count near."""
    view = view_of(chain_of(topology=PAIRS))
    near = view.judge(config(view, (1, ONE), (1, ONE)))
    far = view.judge(config(view, (1, (1, 2)), (1, (1, 2))))
    assert near is not None
    assert far is not None
    assert near.own == (30 + 110, 30 + 110)
    assert far.own == (15 + 1100, 15 + 1100)
    assert [load.near for load in far.loads] == [15 + 110, 15 + 110]


def test_memory_of_a_stage() -> None:
    """16 bytes per 2 of weights, 36 per micro-batch from the stage on.

    And at least the weights again as reserve.
    """
    table = (make_cost(10, 20, weight_bytes=8, kept_bytes=36),)
    view = view_of(chain_of(table=table, global_batch=4))
    judged = view.judge(config(view, (1, ONE), (1, ONE)))
    assert judged is not None
    front, back = judged.loads
    assert front.memory_bytes == 64 + 2 * 36 + 8
    assert back.memory_bytes == 64 + 36 + 8
    # What it needs while it runs, if that is more.
    busy = (replace(table[0], working_bytes=50),)
    view = view_of(chain_of(table=busy, global_batch=4))
    load = view.stage(config(view, (2, ONE)), 0)
    assert load is not None
    assert load.memory_bytes == 128 + 72 + 50


def test_memory_under_rules_of_their_own() -> None:
    """Preset ``nest-artifact``, full recomputation: 36 bytes are kept once.

    A further micro-batch keeps the 100 bytes that enter a stage, here none in front.
    """
    full = (Activations(recompute="full", kept_bytes=36),)
    table = (make_cost(10, 20, weight_bytes=8, activations=full),)
    problem = chain_of(3, table=table, preset="nest-artifact", recompute=("full",))
    view = view_of(problem)
    judged = view.judge(config(view, *((1, ONE),) * 3))
    assert judged is not None
    sizes = [load.memory_bytes for load in judged.loads]
    assert sizes == [64 + 36 + 8, 64 + 36 + 100 + 8, 64 + 36 + 8]


def recomputing(kept: dict[str, int], layers: str, **fields: Any) -> Problem:
    """Return layers of 10 + 20 ns that keep so much, or 1 recomputing."""
    costs = {
        kind: make_cost(
            10,
            20,
            activations=(
                Activations(recompute="none", kept_bytes=size_bytes),
                Activations(recompute="full", kept_bytes=1),
            ),
        )
        for kind, size_bytes in kept.items()
    }
    fields.setdefault("recompute", ("none", "full"))
    problem = make_problem(costs, devices=1, **fields)
    named = tuple(Layer(id=f"{k}{i}", kind=k) for i, k in enumerate(layers))
    graph = Graph(kinds=problem.graph.kinds, layers=named)
    return replace(problem, graph=graph)


@pytest.mark.parametrize(
    ("memory", "again"),
    [
        (150, ""),
        # Both a free 78 together, one of them 39; b alone frees 69.
        (149, "a0"),
        (112, "a0"),
        # To free exactly what lacks is not enough.
        (111, "a0 a2"),
        (72, "a0 a2"),
        (71, "a0 b1 a2"),
        (2, "a0 b1 a2"),
    ],
)
def test_kinds_that_free_most_are_computed_again(memory: int, again: str) -> None:
    """40 + 70 + 40 bytes; of the last kind only as many as it takes."""
    kept = {"a": 40, "b": 70}
    problem = recomputing(kept, "aba", memory_bytes=memory, granularity="layer")
    view = view_of(problem)
    load = view.stage(config(view, (3, ONE)), 0)
    assert load is not None
    names = [
        str(layer.id)
        for layer, strategy in zip(problem.graph.layers, load.strategies, strict=True)
        if strategy.recompute == "full"
    ]
    assert " ".join(names) == again
    assert load.recomputed == 10 * len(names)
    assert (load.memory_bytes <= memory) == (memory > 2)


def test_layers_of_a_stage_are_computed_again_together() -> None:
    for memory, recompute in ((150, "none"), (149, "full"), (2, "full")):
        problem = recomputing({"a": 40, "b": 70}, "aba", memory_bytes=memory)
        view = view_of(problem)
        load = view.stage(config(view, (3, ONE)), 0)
        assert load is not None
        assert {s.recompute for s in load.strategies} == {recompute}


# Where it starts


@pytest.mark.parametrize(
    ("devices", "stages", "node", "expected"),
    [
        (8, 1, 8, [8]),
        (8, 3, 8, [4, 2, 2]),
        (16, 2, 8, [8, 8]),
        (64, 10, 8, [8] * 6 + [4] * 4),
        (6, 2, 6, [4, 2]),
        (3, 3, 4, [1, 1, 1]),
        # Not all devices: 8 per stage at most, and no 3.
        (64, 7, 8, None),
        (3, 1, 4, None),
        (2, 3, 4, None),
    ],
)
def test_stages_double_in_turn(
    devices: int, stages: int, node: int, expected: list[int] | None
) -> None:
    assert spread(devices, stages, node) == expected


def test_starts_are_balanced_and_split_by_tp() -> None:
    """Seven layers in three parts; what is left goes to the last one."""
    assert even_stops(7, 3) == (2, 4, 7)
    view = view_of(row([10] * 7, micro_batches=(1, 2)))
    starts = view.starts(3)
    assert starts == [
        config(view, (7, (1, 4))),
        config(view, (3, (1, 2)), (4, (1, 2))),
        config(view, (2, (1, 2)), (2, ONE), (3, ONE)),
    ]
    # tp of 4 crosses nodes of 2; so does dp, but for that there is a cost.
    view = view_of(row([10] * 7, micro_batches=(1, 2), topology=PAIRS))
    assert [c.num_stages for c in view.starts(3)] == [2, 3]


def test_starts_take_dp_where_tp_has_no_cost() -> None:
    table = tuple(make_cost(10, 20, samples=n) for n in (1, 2))
    problem = chain_of(table=table, micro_batches=(1, 2), global_batch=4)
    view = view_of(problem)
    # On 4 devices dp of 2 is all that two samples allow.
    assert view.starts(2) == [config(view, (1, (2, 1)), (1, (2, 1)), batches=(1, 2))]


def test_replicas_only_where_stages_cannot_use_all_devices() -> None:
    """8 devices in pairs, two stages at most: two replicas of 4."""
    view = view_of(row([10] * 2, devices=8, topology=replace_levels(PAIRS, 4)))
    assert view.starts(16) == [config(view, (1, (1, 2)), (1, (1, 2)), batches=(2, 1))]


def replace_levels(topology: Any, fan_out: int) -> Any:
    """Return a tree with another fan-out at the top."""
    *below, top = topology.levels
    return replace(topology, levels=(*below, replace(top, fan_out=fan_out)))


# The bottleneck and its partner


def test_bottlenecks_one_after_another() -> None:
    """The slowest stage first; the fullest if something does not fit."""
    view = view_of(row([10, 30, 20]))
    three = config(view, (1, ONE), (1, ONE), (1, ONE))
    judged = view.judge(three)
    assert judged is not None
    book = ledger()
    assert [book.target(three, judged) for _ in range(4)] == [1, 2, 0, None]
    assert book.target(three, judged, again=True) == 1
    assert book.target(three, judged, "other") == 1
    # The first of 3, 2 and 1 micro-batches of 40 bytes.
    view = view_of(row([10, 30, 20], kept_bytes=40, memory_bytes=100))
    judged = view.judge(three)
    assert judged is not None
    assert not judged.fits
    book = ledger()
    assert book.target(three, judged) == 0
    assert book.target(three, judged, "other", by_time=True) == 1


def test_partners_are_those_with_most_to_gain() -> None:
    view = view_of(row([40, 10, 20]))
    three = config(view, (1, ONE), (1, ONE), (1, ONE))
    book = ledger()
    found = [book.partner(view, three, 0, by_memory=False) for _ in range(3)]
    assert found == [1, 2, None]
    book.forget_partners()
    assert book.partner(view, three, 0, by_memory=True) == 1


def test_idle_time_that_could_be_made_use_of() -> None:
    """Steps of 570, 300 and 390 ns by stage: 270 and 180 are idle.

    With 31 bytes stage 2 has 11 left beside its 20: room for 165, and half of
    the other 105. Where layers are computed again it is half of all, and two
    thirds of a stage are what it has to compute.
    """
    forward_ns = [40, 10, 20]
    view = view_of(row(forward_ns))
    three = config(view, (1, ONE), (1, ONE), (1, ONE))
    assert idle_time(view, three) == [0, 270, 180]
    view = view_of(row(forward_ns, kept_bytes=10, memory_bytes=31))
    assert idle_time(view, three) == [0, 165 + 105 / 2, 180]
    full = (Activations(recompute="full", kept_bytes=0),)
    again = {
        name: make_cost(size, size, activations=full)
        for name, size in zip("abc", forward_ns, strict=True)
    }
    view = view_of(make_problem(again, global_batch=4, recompute=("full",)))
    assert idle_time(view, three) == [0, 270 / 2 * 2 / 3, 180 / 2 * 2 / 3]


# Primitives


def moved(problem: Problem, *counts: int, target: int = 0) -> Any:
    view = view_of(problem)
    start = config(view, *((count, ONE) for count in counts))
    new = apply(view, ledger(), "dec_op", start, target)
    return None if new is None else new.stops


def test_dec_op_leaves_less_and_less_of_the_gap() -> None:
    """90 and 30 ns: below 90 - 24 one layer is enough, and then both are even.

    150 and 30: below 102 it takes two.
    """
    assert moved(row([10] * 4), 3, 1) == (2, 4)
    assert moved(row([10] * 6), 5, 1) == (3, 6)
    assert moved(row([10] * 4), 2, 2) is None
    # 390 and 30: below 390 - 144 five are, and then one more.
    assert moved(row([10] * 14), 13, 1) == (7, 14)
    # 120 and 30, of single layers: no goal leaves room for half of one.
    assert moved(row([40, 10]), 1, 1) is None


def test_dec_op_passes_layers_on() -> None:
    """150, 60 and 30 ns: the first stage reaches the last below 102.

    Two layers leave the first; the middle one would have 120, so one goes
    on. From there on no goal is reached.
    """
    assert moved(row([10] * 8), 5, 2, 1) == (3, 6, 8)
    assert moved(row([10] * 8), 1, 2, 5, target=2) == (2, 5, 8)


def test_dec_op_makes_stages_fit() -> None:
    """2 and 1 micro-batches of 10 bytes per layer: 3 and 1 layers are 60.

    50 bytes are room for two layers in front; 40 is not less than 40.
    """
    assert moved(row([10] * 4, kept_bytes=10, memory_bytes=50), 3, 1) == (2, 4)
    assert moved(row([10] * 4, kept_bytes=10, memory_bytes=40), 3, 1) == (1, 4)
    assert moved(row([10] * 4, kept_bytes=10, memory_bytes=20), 3, 1) is None


def test_layers_take_the_degrees_beside_them() -> None:
    view = view_of(row([10] * 4, micro_batches=(1, 2)))
    two = config(view, (3, (1, 2)), (1, (2, 1)), batches=(1, 2))
    assert two.moved(0, 1, 2).degrees == ((1, 2), *((2, 1),) * 3)
    assert two.moved(0, 1, 0) == two
    back = config(view, (1, (1, 2)), (3, (2, 1)), batches=(1, 2))
    assert back.moved(1, -1, 1) == config(
        view, (2, (1, 2)), (2, (2, 1)), batches=(1, 2)
    )


def traded(problem: Problem, name: str, target: int, *stages: Any) -> Any:
    """Return the devices per stage, and the degrees of the target."""
    view = view_of(problem)
    start = config(view, *stages, batches=(1, 2))
    new = apply(view, ledger(), name, start, target)
    if new is None:
        return None
    sizes = [view.stage_devices(new, i) for i in range(new.num_stages)]
    return sizes, new.of(target)[0]


def test_degrees_change_with_devices_of_others() -> None:
    """Of 4 devices; two samples, so dp of 2 at most."""
    problem = row([10, 10, 10], micro_batches=(2,))
    stages = [(1, (1, 2)), (1, ONE), (1, ONE)]
    assert traded(problem, "inc_tp", 1, *stages) == ([1, 2, 1], (1, 2))
    assert traded(problem, "inc_dp", 1, *stages) == ([1, 2, 1], (2, 1))
    assert traded(problem, "dec_tp", 0, *stages) == ([1, 2, 1], (1, 1))
    # There is no dp to halve, no other to take two devices, and none left.
    assert traded(problem, "dec_dp", 0, *stages) is None
    assert traded(problem, "inc_tp", 0, *stages) is None
    two = [(1, (1, 2)), (2, (2, 1))]
    assert traded(problem, "inc_tp", 0, *two) is None
    assert traded(problem, "inc_tp", 0, (3, (1, 4))) is None


def test_the_fastest_gives_and_the_slowest_is_left_alone() -> None:
    """Stage 3 would take 30 on one device, stage 1 60; so stage 3 gives."""
    problem = row([20, 30, 10], micro_batches=(2,), devices=5)
    stages = [(1, (1, 2)), (1, ONE), (1, (1, 2))]
    assert traded(problem, "inc_tp", 1, *stages) == ([2, 2, 1], (1, 2))


def test_several_give_what_one_takes() -> None:
    """Two more for the middle of [2, 2, 2, 2]: one from either of two."""
    problem = row([10, 40, 20, 15], micro_batches=(2,), devices=8)
    stages = [(1, (1, 2))] * 4
    assert traded(problem, "inc_tp", 1, *stages) == ([1, 4, 2, 1], (1, 4))


def test_the_next_partner_where_numbers_do_not_match() -> None:
    """Two for the middle of [4, 2, 2]: the last is faster but has one."""
    problem = row([80, 40, 10], micro_batches=(2,), devices=8)
    stages = [(1, (1, 4)), (1, (1, 2)), (1, (1, 2))]
    assert traded(problem, "inc_tp", 1, *stages) == ([2, 4, 2], (1, 4))


def test_stages_end_where_nodes_do() -> None:
    """Of pairs: [1, 2, 1] tears the one in the middle."""
    problem = row([10, 10, 10], micro_batches=(2,), topology=PAIRS)
    stages = [(1, (1, 2)), (1, ONE), (1, ONE)]
    assert traded(problem, "inc_tp", 1, *stages) is None
    view = view_of(problem)
    for sizes, legal in (
        ((2, 1, 1), True),
        ((1, 1, 2), True),
        ((1, 2, 1), False),
        # Not all devices, and a stage on two nodes.
        ((1, 1, 1), False),
        ((4,), False),
    ):
        length = 3 // len(sizes)
        stages = [(length, (min(n, 2), max(n // 2, 1))) for n in sizes]
        each = config(view, *stages, batches=(1, 2))
        assert is_legal(view, each) == legal


def test_micro_batches_choose_degrees_anew() -> None:
    """Two samples take 60 ns on one device, 30 split by dp or tp.

    ``tp`` first; with a slower tp it is dp.
    """
    problem = row([10, 10], micro_batches=(1, 2))
    view = view_of(problem)
    small = config(view, (1, (1, 2)), (1, (1, 2)))
    large = apply(view, ledger(), "inc_mbs", small, 0)
    assert large == config(view, (1, (2, 1)), (1, (2, 1)), batches=(1, 2))
    assert apply(view, ledger(), "inc_mbs", large, 0) is None
    assert apply(view, ledger(), "dec_mbs", large, 0) == small
    assert apply(view, ledger(), "dec_mbs", small, 0) is None


def test_memory_decides_what_degrees_fit() -> None:
    """dp of 2 holds whole weights, 16 bytes per 2; tp of 2 half of them.

    10 ns per byte that a stage on two devices holds are added to twice the time.
    """
    table = tuple(
        make_cost(10 * n, 20 * n, tp=tp, samples=n, weight_bytes=8 // tp)
        for tp in (1, 2)
        for n in (1, 2)
    )
    for memory, chosen in ((72, (2, 1)), (71, (1, 2))):
        problem = chain_of(
            1, table=table, micro_batches=(1, 2), memory_bytes=memory,
            devices=2, global_batch=2,
        )  # fmt: skip
        view = view_of(problem)
        one = config(view, (1, (1, 2)))
        new = apply(view, ledger(), "inc_mbs", one, 0)
        assert new is not None
        assert new.degrees == (chosen,)
        assert tune_stages(view, ledger(), new) == new


# The order of tries


def order(
    monkeypatch: pytest.MonkeyPatch, every: list[Shares], fits: bool = True
) -> list[str]:
    """Return the groups at stage 0, of stages with such shares."""

    class Judged(NamedTuple):
        fits: bool

    class Fake:
        def judged(self, config: object) -> Judged:
            return Judged(fits)

    monkeypatch.setattr("baselines.aceso_primitives.shares", lambda *_: every)
    view: Any = Fake()
    found = groups(view, Any, 0)  # type: ignore[arg-type]
    return [" ".join(p.name for p in group) for group in found]


def test_the_table() -> None:
    assert [Primitive(*row) for row in PRIMITIVES] == [
        Primitive("dec_op", time=-1, memory=-1, comm=0),
        Primitive("inc_dp", time=-1, memory=-1, comm=1),
        Primitive("dec_dp", time=1, memory=1, comm=-1),
        Primitive("inc_tp", time=-1, memory=-1, comm=1),
        Primitive("dec_tp", time=1, memory=1, comm=-1),
        Primitive("inc_mbs", time=-1, memory=1, comm=0),
        Primitive("dec_mbs", time=1, memory=-1, comm=0),
    ]


def test_what_does_not_fit_only_lowers_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert order(monkeypatch, [], fits=False) == ["dec_op inc_dp inc_tp dec_mbs"]


def test_the_largest_part_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing: 3/4 of all; losses 1/2, as the average; nothing again.

    All that lowers losses costs time, of which it has more than the average;
    so does what lowers memory and is left.
    """
    assert order(monkeypatch, [Shares(3, 1, 0), Shares(1, 1, 0)]) == [
        "dec_op inc_dp inc_tp inc_mbs",
        "",
        "",
        "dec_dp dec_tp",
        "",
        "dec_mbs",
        "",
    ]


def test_what_raises_another_part_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing 3/4, losses 2/3 and above average, recomputation 1/2."""
    assert order(monkeypatch, [Shares(3, 2, 1), Shares(1, 1, 1)]) == [
        "dec_op",
        "inc_dp inc_tp inc_mbs",
        "",
        "dec_dp dec_tp",
        "",
        "dec_mbs",
        "",
    ]
    # Losses first; then what computes less without more of them.
    assert order(monkeypatch, [Shares(1, 2, 0), Shares(2, 1, 0)])[:4] == [
        "dec_dp dec_tp",
        "",
        "dec_op inc_mbs",
        "inc_dp inc_tp",
    ]
    # Recomputation first: then what lowers memory.
    assert order(monkeypatch, [Shares(1, 2, 1), Shares(2, 1, 0)])[:2] == [
        "dec_op dec_mbs",
        "inc_dp inc_tp",
    ]


def test_of_equal_parts_only_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stage has all of everything: what is not computing comes last."""
    assert order(monkeypatch, [Shares(3, 2, 1)]) == [
        "dec_op inc_dp inc_tp",
        "inc_mbs",
        "dec_dp dec_tp dec_mbs",
    ]


def test_where_the_time_of_a_stage_goes() -> None:
    """60 ns on one device are 30 on two; they take 40, and 20 again."""
    table = (
        make_cost(20, 40),
        make_cost(
            20, 20, tp=2, activations=(Activations(recompute="full", kept_bytes=0),)
        ),
    )
    view = view_of(chain_of(1, table=table, recompute=("none", "full")))
    one = config(view, (1, (1, 2)))
    assert shares(view, one) == [Shares(30, 10, 20)]


# Trials


class Node(NamedTuple):
    """A configuration of a script; of several stages all are as slow."""

    name: str
    step: int
    fits: bool = True
    memory_bytes: int = 0
    num_stages: int = 1

    @property
    def times(self) -> list[int]:
        return [self.step] * self.num_stages

    @property
    def loads(self) -> list[Node]:
        return [self]


class Script:
    """A view of nodes, and what primitives make of each."""

    capacity = 100

    def judge(self, node: Node) -> Node:
        return node

    judged = judge


A, B, C, D = Node("A", 10), Node("B", 12), Node("C", 11), Node("D", 8)


def run(
    monkeypatch: pytest.MonkeyPatch,
    tree: dict[Node, list[list[Node]]],
    *,
    hops: int = 7,
    trials: int = 1,
) -> tuple[str, Any]:
    """Return what was searched from, in order, and the search."""
    visited: list[str] = []

    def grouped(view: Any, node: Any, bottleneck: int) -> Any:
        visited.append(node.name)
        for group in tree.get(node, []):
            yield [Primitive(new, 0, 0, 0) for new in group]  # type: ignore[arg-type]

    monkeypatch.setattr(aceso, "groups", grouped)
    monkeypatch.setattr(aceso, "apply", lambda view, book, name, node, bottleneck: name)
    view: Any = Script()
    start: Any = A
    search: Any = Trials(view, start, ledger(), hops)
    for _, _ in zip(range(trials), search.run(None), strict=False):
        pass
    return "".join(visited), search


def test_searches_on_depth_first_from_the_fastest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visited, search = run(monkeypatch, {A: [[B, C]], B: [[D]]})
    assert visited == "ACB"
    assert search.best == D
    visited, search = run(monkeypatch, {A: [[B, C]], B: [[D]]}, hops=1)
    assert (visited, search.best) == ("A", A)


def test_a_group_is_tried_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of the first group that improves; the next one is left."""
    nine, seven = Node("9", 9), Node("7", 7)
    tree = {A: [[B, C], [nine, D], [seven]]}
    visited, search = run(monkeypatch, tree)
    assert (visited, search.best) == ("ACB", D)


def test_what_was_searched_from_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the trial itself takes the second stage of A."""
    two = Node("A", 10, num_stages=2)
    monkeypatch.setattr("tests.unit.baselines.test_aceso.A", two)
    visited, search = run(monkeypatch, {two: [[B]], B: [[two, C]], C: [[B]]})
    assert (visited, search.best) == ("ABCA", two)


def test_goes_on_from_what_was_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one hop a trial sees A's results; up to 1.2 times 10 count.

    Then those searched from, five times each.
    """
    slow = Node("S", 13)
    tree = {A: [[B, C, slow]], C: [[D]], D: [[]], slow: [[Node("1", 1)]]}
    visited, search = run(monkeypatch, tree, hops=1, trials=2)
    # A's 12 are not below 12, so it is C, which leads to D.
    assert (visited, search.best) == ("AC", D)
    visited, search = run(monkeypatch, tree, hops=1, trials=99)
    # After D five times each, the fastest first, B and S never.
    assert visited == "ACD" + "D" * 5 + "A" * 5 + "C" * 5


def test_less_memory_is_an_improvement_until_it_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = Node("A", 10, fits=False, memory_bytes=300)
    less = Node("L", 40, fits=False, memory_bytes=200)
    slow = Node("F", 50, memory_bytes=90)
    monkeypatch.setattr("tests.unit.baselines.test_aceso.A", full)
    tree = {full: [[less]], less: [[slow]]}
    visited, search = run(monkeypatch, tree, hops=1, trials=1)
    assert (visited, search.best) == ("A", None)
    visited, search = run(monkeypatch, tree, hops=1, trials=2)
    assert (visited, search.best) == ("AL", slow)


# Fine-tuning


def mixed(**fields: Any) -> Problem:
    """Return layers on two devices: a is faster by tp, b and c by dp.

    60 ns or 45; they change layouts for nothing.
    """

    def layer(by_dp: int, by_tp: int) -> tuple[Any, ...]:
        return (make_cost(by_dp, 2 * by_dp),
                make_cost(by_tp, 2 * by_tp, tp=2, samples=2))  # fmt: skip

    settings = {
        "devices": 2,
        "global_batch": 2,
        "micro_batches": (2,),
        "granularity": "layer",
    }
    return make_problem(
        {"a": layer(20, 15), "b": layer(15, 20), "c": layer(15, 20)},
        **(settings | fields),
    )


def test_runs_of_layers_are_tuned() -> None:
    """By tp 45 + 60 + 60; the last two by dp take 45 each."""
    view = view_of(mixed())
    one = config(view, (3, (1, 2)), batches=(1, 2))
    tuned = tune_layers(view, ledger(), one)
    assert tuned.degrees == ((1, 2), (2, 1), (2, 1))
    assert tune_layers(view, ledger(), tuned) == tuned
    by_dp = config(view, (3, (2, 1)), batches=(1, 2))
    assert tune_layers(view, ledger(), by_dp) == tuned


def test_tuning_is_an_option() -> None:
    plans = {
        (granularity, tune): solve(
            mixed(granularity=granularity), tune=tune
        ).own_objective_ns
        for granularity in ("stage", "layer")
        for tune in ("layers", "stages", "none")
    }
    # All by tp 165, all by dp 150, mixed 135.
    assert plans == {
        ("stage", "layers"): 165,
        ("stage", "stages"): 150,
        ("stage", "none"): 165,
        ("layer", "layers"): 135,
        ("layer", "stages"): 150,
        ("layer", "none"): 165,
    }


# As a planner


def test_answers() -> None:
    problem = row([10, 30, 20, 20, 10, 10], micro_batches=(1, 2))
    output = solve(problem)
    assert "configurations of 4 numbers of stages" in output.detail
    # Nothing is lost: 300 ns of 4 samples, on 4 devices.
    assert output.own_objective_ns == 300
    assert solve(problem, stages="2").detail.endswith("of 2 numbers of stages")


def test_effort_counts_what_is_tried() -> None:
    problem = row([10, 30, 20, 20, 10, 10], micro_batches=(1, 2))
    output = solve(problem, effort="1")
    tried = int(output.detail.split()[0])
    # A primitive that has begun may try some more.
    assert 4 <= tried <= 16
    assert int(solve(problem).detail.split()[0]) > 16


def test_no_answer() -> None:
    problem = row([10, 10], kept_bytes=100, memory_bytes=10)
    output = solve(problem)
    assert output.status is Status.NO_SOLUTION
    assert output.detail.startswith("nothing fits by its own count of the memory; ")
    output = solve(row([10, 10], devices=3, replicas=(1,), pipeline_parallel=(1,)))
    assert output.status is Status.NO_SOLUTION
    assert output.detail.startswith("no balanced configuration: ")


def test_stages_that_have_to_be_alike() -> None:
    """Preset ``nest-artifact``: all stages change, replicas give devices.

    Of 4 devices with whole batches of 1 sample: from one stage of tp 4 over
    tp 2 on two replicas to tp 1 on four.
    """
    problem = row([10, 10], preset="nest-artifact", micro_batches=(1,), zero=(0,))
    view = view_of(problem)
    assert view.alike
    starts = view.starts(16)
    assert starts == [config(view, (2, (1, 4))), config(view, (1, (1, 2)), (1, (1, 2)))]
    halved = apply(view, ledger(), "dec_tp", starts[0], 0)
    assert halved == config(view, (2, (1, 2)), batches=(2, 1))
    assert halved is not None
    assert apply(view, ledger(), "inc_tp", halved, 0) == starts[0]
    assert apply(view, ledger(), "inc_tp", starts[0], 0) is None
    assert apply(view, ledger(), "inc_dp", halved, 0) is None
    output = solve(problem)
    assert output.plan is not None
    assert len({s.strategy for s in output.plan.stages}) == 1
    assert output.plan.stages[0].strategy != Strategy(tp=4)
