"""Certificates of rules about whole plans, of overlap, layers and graphs.

Most optima are derived by hand in tests/semantics, on the same problems. A
bound must reach the best plan that obeys the rule, no bound may exceed it,
and the plan that breaks the rule has no certificate.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from nest.certificates import check, documents, graphs, networks
from nest.certificates.certify import certify, certify_infeasible
from nest.cost.score import score
from nest.errors import UnsupportedProblemError
from nest.ir import Optimizer, Problem, Strategy
from nest.ir.graph import CollectiveKind, DeviceTimes
from nest.topology.graph import GraphNetwork
from tests.builders import SINGLE, make_cost, make_plan, make_problem, two_stages
from tests.certified import NCCL
from tests.graphs import make_graph
from tests.properties.test_solvers_agree import solve
from tests.semantics import test_whole_plans as whole
from tests.semantics.test_device_types import with_other
from tests.semantics.test_whole_plans import alike, chain, layer, of_widths
from tests.unit.certificates.test_certificates import read, refuted, second, verify
from tests.unit.topology.test_graph_network import (
    NETWORKS,
    rails_only,
    read_groups,
    rows,
)

NCCL_TREE = networks.Tree(to_builtins(NCCL)["levels"])
EVERY = ("dp", "tp", "cp", "ep", "zero", "recompute")


def ruled(problem: Problem, **rules: Any) -> Problem:
    """Return a problem with rules, on a network of the same speed."""
    level = replace(
        NCCL.levels[0], fan_out=8, latency_ns=0.0, bandwidth_bytes_per_s=1e18
    )
    return replace(
        problem,
        cluster=replace(problem.cluster, topology=replace(NCCL, levels=(level,))),
        job=replace(problem.job, **rules),
    )


def widths() -> Problem:
    return chain(
        {"a": of_widths(30, 21), "b": of_widths(60, 30)}, devices=3, global_batch=4
    )


def threes() -> Problem:
    costs = of_widths(30, 45, 50)
    return chain({"a": costs, "b": costs}, devices=3, global_batch=6)


def four() -> Problem:
    return chain(
        {"a": layer(30), "b": layer(15), "c": layer(15), "d": layer(30)},
        devices=3,
        global_batch=2,
    )


def evens() -> Problem:
    costs = {"in": layer(30), "b": layer(15), "c": layer(15)}
    return alike(chain(costs, global_batch=2), "b", "c")


def alone() -> Problem:
    costs = {name: layer(30) for name in "abc"}
    return chain(costs, devices=3, global_batch=2)


def experts(batch: int = 4) -> Problem:
    """As in test_overlap_of_experts_needs_interleaving."""
    cost = make_cost(50, 0, ep=2)
    exchanged = whole.call("all-to-all", "ep", "forward", 20)
    return make_problem(
        dict.fromkeys("ab", replace(cost, collectives=(exchanged,))),
        edge=0,
        global_batch=batch,
        micro_batches=(2,),
        replicas=(1,),
        overlap={"ep": 1.0},
        topology=NCCL,
    )


RULES = [
    (widths, {}, {"uniform": ("tp",)}, 204),
    (widths, {}, {"uniform": ("devices",)}, 204),
    (widths, {}, {"uniform": EVERY}, 204),
    (evens, {}, {"even_layers": True}, 105),
    (four, {}, {"one_stage": ("a", "b")}, 135),
    (four, {}, {"one_stage": ("a", "c")}, 150),
    (threes, {"uniform": ("devices",)}, {"idle_devices": False}, 600),
    (whole.sharded, {}, {"zero_with": {"pp": (0,)}}, 450),
    (
        lambda: whole.sharded(replicas=(2,), pipeline_parallel=(1,)),
        {},
        {"zero_with": {"r": (0,)}},
        720,
    ),
    (whole.sharded, {}, {"sharded_with": ("pp",)}, 540),
    (alone, {}, {"micro_batch_count": "at-least-stages"}, 150),
    (
        lambda: replace(alone(), job=replace(alone().job, global_batch=3)),
        {"pipeline_parallel": (1, 2)},
        {"micro_batch_count": "multiple-of-stages"},
        270,
    ),
]


def test_buckets_of_zero_count_as_memory() -> None:
    """Two ranks are faster, but need 44 + 30 of 70 bytes; one needs 64."""
    costs = tuple(
        make_cost(10 * count, 20 * count, samples=count, weight_bytes=8)
        for count in (1, 2)
    )
    problem = make_problem(
        {"a": costs},
        devices=2,
        global_batch=2,
        micro_batches=(2,),
        replicas=(1,),
        zero=(2,),
        memory_bytes=70,
        topology=NCCL,
        optimizer=Optimizer(zero_2_bytes=30),
    )
    plan = solve("brute", problem).plan
    assert plan is not None
    assert plan.stages[0].devices == 1
    certificate = certify(problem, plan)
    verify(problem, certificate)
    step = certificate["step_time_quanta"]
    assert certificate["lower_bound_quanta"] == step
    plain = ruled(problem, optimizer=Optimizer())
    faster = solve("brute", plain).plan
    assert faster is not None
    assert score(plain, faster).step_quanta < step


@pytest.mark.parametrize(("make", "before", "rules", "best"), RULES)
def test_rules_about_whole_plans(
    make: Any, before: dict[str, Any], rules: dict[str, Any], best: int
) -> None:
    free = ruled(make(), **before)
    problem = ruled(make(), **before, **rules)
    fastest, plan = (solve("brute", x).plan for x in (free, problem))
    assert fastest is not None
    assert plan is not None
    certificate = certify(problem, plan)
    verify(problem, certificate)
    assert certificate["step_time_quanta"] == best
    assert certificate["lower_bound_quanta"] == best
    assert refuted(problem, best + 1) == best
    assert score(free, fastest).step_quanta < best
    with pytest.raises(check.RejectedError, match="plan: "):
        check.score(read(problem), to_builtins(second(fastest)))


def test_replicas_that_leave_devices_idle_have_no_proof() -> None:
    """One or three replicas: two stages of one device take 2 · 60."""
    problem = ruled(threes(), uniform=("devices",), idle_devices=False, replicas=None)
    plan = solve("brute", problem).plan
    assert plan is not None
    certificate = certify(problem, plan)
    assert certificate["lower_bound_quanta"] == 120
    assert {x["replicas"] for x in certificate["proof"]} == {1, 3}


def test_a_rule_may_want_a_zero_stage_that_changes_nothing() -> None:
    """Two stages of one rank each have ZeRO 1, which is as fast as 0."""
    costs = {"a": layer(30), "b": layer(30)}
    problem = ruled(chain(costs, global_batch=2, zero=(0, 1)), zero_with={"pp": (1,)})
    plan = solve("brute", problem).plan
    assert plan is not None
    assert certify(problem, plan)["lower_bound_quanta"] == 90
    assert refuted(problem, 91) == 90


@pytest.mark.parametrize(("needs", "best"), [((), 150), (("ep",), 200)])
def test_overlap_and_what_it_needs(needs: tuple[str, ...], best: int) -> None:
    """Two data ranks exchange 20 bytes in 10 + 10 ns, all of it hidden.

    Two stages of 50 ns and receives of nothing take (M + 1) · 50 with M = 2;
    where one stage alone may hide, it takes 2 · 100.
    """
    job = {"overlap_needs": dict.fromkeys(needs, ("interleaving",))}
    problem = experts()
    problem = replace(problem, job=replace(problem.job, **job))
    plan = solve("brute", problem).plan
    assert plan is not None
    certificate = certify(problem, plan)
    verify(problem, certificate)
    assert certificate["status"] == "optimal"
    assert certificate["step_time_quanta"] == best
    assert len(certificate["proof"]) == 2  # with overlap and without
    assert refuted(problem, best + 1) == best


def test_a_proof_has_every_way_to_run() -> None:
    """Each batch, with each overlap that may be, distributed or not."""
    problem = replace(
        experts(),
        job=replace(
            experts().job,
            overlap={"ep": 1.0, "gradients": 0.5, "weights": 0.25},
            distributed_optimizer=True,
            overlap_needs={"weights": ("gradients",)},
        ),
    )
    assert [(x.overlap, x.spread) for x in read(problem).rules.cases()] == [
        (names, spread)
        for spread in (False, True)
        for names in (
            *((), ("ep",), ("gradients",), ("ep", "gradients")),
            *(("gradients", "weights"), ("ep", "gradients", "weights")),
        )
    ]


def layers(memory_bytes: int) -> Problem:
    """Three layers on a device; each takes 30 and 50 bytes, or 40 and 20."""
    made = replace(
        make_cost(10, 20, kept_bytes=50),
        activations=(
            whole.Activations(recompute="none", kept_bytes=50),
            whole.Activations(recompute="selective", kept_bytes=20, extra_ns=10.0),
        ),
    )
    return make_problem(
        dict.fromkeys("abc", made),
        devices=1,
        topology=NCCL,
        memory_bytes=memory_bytes,
        recompute=("none", "selective"),
        granularity="layer",
        global_batch=1,
    )


@pytest.mark.parametrize(
    ("memory_bytes", "best", "bound"),
    [(150, 90, 90), (120, 100, 100), (119, 110, 101), (60, 120, 120)],
)
def test_layers_pay_for_bytes(memory_bytes: int, best: int, bound: int) -> None:
    """A byte costs 10 / 30 ns: of 150 bytes 31 are short, 10 1/3 ns more."""
    problem = layers(memory_bytes)
    plan = solve("brute", problem).plan
    assert plan is not None
    certificate = certify(problem, plan)
    verify(problem, certificate)
    assert certificate["step_time_quanta"] == best
    assert certificate["lower_bound_quanta"] == bound


def test_layers_that_fit_in_no_way() -> None:
    problem = layers(59)
    verify(problem, certify_infeasible(problem))


def test_layers_hide_their_sync_together() -> None:
    """Ten syncs of 1 hide 4 of 10 together, though 0.4 of each is nothing."""
    split = check.Split(read(two_stages(topology=NCCL)), prices_case())
    split.share = Fraction(2, 5)
    split.sync = lambda *_: (0, 1)
    split.offsets = {1: {0}}
    assert split.hidden(10) == 4
    assert 10 * split.lowest_sync(0, (1,) * 7, 1) <= 10 - split.hidden(10)


def prices_case() -> Any:
    return read(two_stages(topology=NCCL)).rules.cases()[0]


def test_a_layer_changes_its_layout_in_a_stage() -> None:
    """a on two tensor ranks, b on two data ranks: 4 bytes of each way.

    Two samples: a takes 10 + 10, b 20 + 20. The edge has 2 · 2 bytes: 4 to
    each data rank's half, so 10 + 2 ns forward, 10 + 4 backward.
    """
    problem = make_problem(
        {"a": make_cost(10, 10, tp=2, samples=2), "b": make_cost(20, 20)},
        edge=2,
        topology=NCCL,
        devices=2,
        global_batch=2,
        micro_batches=(2,),
        granularity="layer",
    )
    plan = make_plan(("a b", Strategy(tp=2)), micro_batch=2)
    stage = replace(
        plan.stages[0], strategy=None, strategies=(Strategy(tp=2), Strategy(dp=2))
    )
    plan = replace(plan, stages=(stage,))
    assert score(problem, plan).step_quanta == 60 + 12 + 14
    certificate = certify(problem, plan)
    verify(problem, certificate)
    assert certificate["step_time_quanta"] == 86


def graph_of(name: str) -> graphs.Graph:
    return graphs.Graph(to_builtins(NETWORKS[name]), NETWORKS[name].max_devices)


@pytest.mark.parametrize("row", rows(7), ids=lambda row: " ".join(row[:5]))
def test_graphs_take_what_is_worked_by_hand(row: tuple[str, ...]) -> None:
    """Every row of docs/graphs.md: the best of all algorithms."""
    name, text, kind, size, *_ = row
    groups = read_groups(text)
    offered = GraphNetwork(NETWORKS[name]).offered_ns(kind, groups, int(size))
    listed = tuple((tuple(x), Fraction(1)) for x in groups if len(x) > 1)
    assert graph_of(name).time(kind, listed, int(size)) == min(offered.values())


@pytest.mark.parametrize("row", rows(7), ids=lambda row: " ".join(row[:5]))
def test_every_algorithm_takes_what_is_worked_by_hand(row: tuple[str, ...]) -> None:
    name, text, kind, size, algorithm, expected, _ = row
    graph, lists = graph_of(name), map(tuple, read_groups(text))
    groups = tuple((x, Fraction(1)) for x in lists if len(x) > 1)
    halves = graph.halves(groups)
    flat = [graph.sum(phases) for phases in graph.flat(kind, groups)]
    one = {
        "two-trees": lambda: flat[len(halves) + 2 * (True not in halves) + 1],
        "doubling": lambda: flat[len(halves) + 2 * (True not in halves)],
        "one-phase": lambda: flat[-1],
        "bruck": lambda: flat[-1],
        "torus": lambda: graph.torus(groups)[0],
        "rotated-rings": lambda: graph.line([graph.rotated(*x) for x in groups]),
    }
    twice = kind == "all-reduce" and algorithm in ("torus", "rotated-rings")
    if algorithm == "pipelined":
        lines = graph.pipelined(kind, groups)
    elif algorithm == "pxn" and kind != "all-to-all":
        lines = graph.mated(kind, groups, graph.units[0])
    elif algorithm == "pxn":
        lines = [graph.line([graph.relayed(*x, graph.units[0]) for x in groups])]
    elif algorithm in one and not (algorithm == "bruck" and kind != "all-to-all"):
        lines = [one[algorithm]()]
    elif algorithm.startswith("halving") and True not in halves:
        lines = [flat[len(halves) + algorithm.endswith("far")]]
    else:
        far = algorithm.endswith("-far")
        lines = [graph.sum(halves.get(algorithm) or halves[far])]
        twice = kind == "all-reduce"
    lines = [(2 * a, 2 * c) for a, c in lines] if twice else lines
    line = min(lines, key=lambda x: x[0] / 10**6 + int(size) * x[1])
    assert graph.launch + line[0] / 10**6 + int(size) * line[1] == int(expected)


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce", "all-to-all"])
@pytest.mark.parametrize("node_bytes_per_s", [1e10, 2e9])
def test_mates_on_a_graph_are_in_the_same_slot(
    kind: CollectiveKind, node_bytes_per_s: float
) -> None:
    topology = rails_only(node_bytes_per_s)
    network = GraphNetwork(topology)
    ranks = (1, 2, 3, 4, 5)
    graph = graphs.Graph(to_builtins(topology), topology.max_devices)
    expected = network.collective_ns(kind, network.prices([ranks]), 500)
    found = graph.time(kind, ((ranks, Fraction(1)),), 500)
    assert float(found) == pytest.approx(expected, rel=1e-11)


def test_what_ends_the_step_on_a_graph_runs_together() -> None:
    """Blocks of 2 at 1 are tiled from 1 on; on a tree each is alone."""
    assert [*graph_of("star").tiles(3, 2, 6)] == [1, 3]
    assert NCCL_TREE.tiles(3, 2, 6) == [3]


def test_the_nearest_link_of_a_graph_is_no_slower_than_any() -> None:
    """5 + 5 ns between two devices of a node, and what enters a device."""
    (link,) = graph_of("clos").nearest(1)
    assert (link.latency, link.times, link.over) == (10, 1, 1)
    assert link.port == 10**9
    topology = make_graph("ab", [("a", "s", 5, 1e9), ("b", "s", 5, 2e9)])
    (link,) = graphs.Graph(to_builtins(topology), 2).nearest(1)
    assert link.port == 2 * 10**9


def test_devices_pass_nothing_on() -> None:
    """From 0 to 2 over device 1 takes 10 ns, over the switch 100."""
    links = [("0", "1", 5, 1e9), ("1", "2", 5, 1e9)]
    links += [("0", "s", 50, 1e9), ("s", "2", 50, 1e9)]
    for forward, latency_ns in ((None, 100), (True, 10)):
        graph = graphs.Graph(to_builtins(make_graph("012", links, forward=forward)), 3)
        assert graph.latency(0, 2) == latency_ns * 10**6


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("forward_ns", 15.0, 15 + 20 + 10 + 20),
        ("backward_ns", 25.0, 10 + 25 + 10 + 20),
        ("forward_host_ns", 40.0, 40 + 20 + 10 + 20),
        ("backward_host_ns", 40.0, 10 + 40 + 10 + 20),
    ],
)
def test_types_of_devices_take_their_own_times(
    field: str, value: float, expected: int
) -> None:
    """The second device is of a type on which a takes longer, if it has a."""
    times = {"forward_ns": 10.0, "backward_ns": 20.0, field: value}
    slow = DeviceTimes(device="other", **times)
    costs = {"a": make_cost(10, 20, by_device=(slow,), tp=2), "b": make_cost(10, 20)}
    problem = make_problem(
        costs, devices=3, global_batch=1, replicas=(1,), topology=NCCL
    )
    problem = with_other(problem, 1)
    plan = make_plan(("a", Strategy(tp=2)), ("b", SINGLE))
    certificate = certify(problem, plan)
    verify(problem, certificate)
    assert certificate["step_time_quanta"] == expected


@pytest.mark.parametrize(
    ("other", "best"),
    [
        ({"memory_bytes": 30}, 150),
        ({"memory_bytes": 29}, 210),
        ({"memory_bytes": 130, "reserve_bytes": 100}, 150),
        ({"memory_bytes": 130, "reserve_bytes": 101}, 210),
    ],
)
def test_types_of_devices_have_their_own_memory(
    other: dict[str, int], best: int
) -> None:
    """The first of three stages of 30 ns keeps 3 · 10 bytes: 90 + 2 · 30.

    Where it has no room for them, there are two: 90 + 2 · 60.
    """
    problem = make_problem(
        dict.fromkeys("abc", make_cost(10, 20, kept_bytes=10)),
        edge=0,
        devices=3,
        memory_bytes=30,
        global_batch=3,
        replicas=(1,),
        topology=NCCL,
    )
    problem = with_other(problem, 1, **other)
    plan = solve("brute", problem).plan
    assert plan is not None
    certificate = certify(problem, plan)
    verify(problem, certificate)
    assert certificate["lower_bound_quanta"] == best


def test_the_slowest_memory_of_a_block_counts() -> None:
    """Updates of 10 + 2 · 10 + 2 · 60 bytes: 150 ns at 1 GB/s, 300 at half."""
    problem = make_problem(
        {"a": make_cost(10, 20, weight_bytes=10, tp=2)},
        devices=2,
        hbm=1e9,
        topology=NCCL,
        optimizer=Optimizer(gradient_bytes=2, state_bytes=12),
    )
    plan = make_plan(("a", Strategy(tp=2)))
    assert certify(problem, plan)["step_time_quanta"] == 180
    slower = with_other(problem, 1, hbm_bytes_per_s=5e8)
    assert certify(slower, plan)["step_time_quanta"] == 330


def test_groups_are_odd_in_the_second_tree() -> None:
    """Of 5: 1 and 3 below 2 below 4 below 0; then every rank is one more."""
    ((_, flows),) = graph_of("uneven").trees((0, 1, 2, 3, 4), Fraction(1))
    assert {ends: part for ends, part in flows.items() if ends[0] < ends[1]} == {
        **dict.fromkeys([(1, 2), (2, 4), (0, 4)], Fraction(1, 2)),
        **dict.fromkeys([(3, 4), (0, 3), (0, 1)], Fraction(1, 2)),
        (2, 3): 1,
    }


def test_the_units_are_names() -> None:
    document = {"kind": "graph", "units": [{"a": ["node"]}]}
    problem = {"schema": "nest-problem/1", "cluster": {"topology": document}}
    with pytest.raises(documents.BadInputError, match="units: expected a value"):
        documents.parse(json.dumps(problem), "problem")


def test_a_graph_that_is_too_large_is_refused() -> None:
    names = [str(i) for i in range(129)]
    topology = make_graph(names, [(x, "s", 5, 1e9) for x in names])
    problem = make_problem({"a": make_cost()}, devices=129, topology=topology)
    plan = make_plan(("a", SINGLE))
    with pytest.raises(
        UnsupportedProblemError, match="num_devices: expected at most 128"
    ):
        certify(problem, plan)
