"""Types of devices in one cluster, of other memory and other speed.

A block is as slow as its slowest type and as small as its smallest. Exact
solvers agree as on one type.
"""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.analysis.fit import StepTimeLimit
from nest.analysis.offers import Limits, best_offer, candidates, hourly_usd, with_prices
from nest.cost.model import CostModel
from nest.cost.space import batch_splits
from nest.ir import CollectiveCall, DeviceRange, DeviceTimes, Optimizer, Strategy
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import BatchTerms, StageShapes
from nest.search.stages.zones import Zones
from nest.topology.protocol import Block
from tests import optima
from tests.builders import make_cost, make_levels, make_problem, with_cluster
from tests.frontiers import enumerated, searched
from tests.independent.generate import with_costs
from tests.inside import run_inside
from tests.properties.profiles import examples
from tests.properties.test_solvers_agree import EXACT, check, solve
from tests.strategies import problems

#: Names of types that a cost may state times for.
NAMES = ("device", "second", "third")


@st.composite
def mixed(draw, **options):
    """Draw a problem on two or three types of devices, runs of them mixed."""
    problem = draw(problems(preset="standard", **options))
    cluster = problem.cluster
    count = cluster.num_devices
    memory = cluster.device.memory_bytes
    types = [
        replace(
            cluster.device,
            name=name,
            memory_bytes=draw(
                st.sampled_from((memory, memory // 2, max(0, memory - 1), 2 * memory))
            ),
            hbm_bytes_per_s=draw(
                st.sampled_from((cluster.device.hbm_bytes_per_s, 5e8))
            ),
        )
        for name in ("second", "third")
    ]
    ends = sorted(draw(st.sets(st.integers(0, count), max_size=4)))
    others = tuple(
        DeviceRange(first=first, count=end - first, device=draw(st.sampled_from(types)))
        for first, end in zip(ends[::2], ends[1::2], strict=False)
    )
    factors = {name: draw(st.sampled_from((0, 1, 3))) for name in NAMES}
    return replace(
        problem,
        graph=with_costs(problem.graph, lambda cost: slowed(cost, factors)),
        cluster=replace(cluster, others=others),
    )


def slowed(cost, factors):
    """Return a cost with times for some types; factor 0 states none."""
    plain = cost.times
    return replace(
        cost,
        by_device=tuple(
            DeviceTimes(
                device=name,
                forward_ns=factor * cost.forward_ns,
                backward_ns=cost.backward_ns + factor,
                extra_ns=factor * plain.extra_ns,
                forward_host_ns=cost.forward_host_ns / factor,
                backward_host_ns=factor * cost.backward_host_ns,
                extra_host_ns=plain.extra_host_ns,
            )
            for name, factor in factors.items()
            if factor
        ),
    )


def on_two_types(problem, device, num_first, second):
    """Return a problem whose later devices are of another type."""
    cluster = problem.cluster
    part = DeviceRange(
        first=num_first,
        count=cluster.num_devices - num_first,
        device=replace(second, name="second"),
    )
    return replace(problem, cluster=replace(cluster, device=device, others=(part,)))


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@pytest.mark.parametrize(("second_bytes", "feasible"), [(99, False), (100, True)])
def test_a_path_that_fits_the_larger_devices_is_no_plan(
    granularity, second_bytes, feasible
):
    """Two layers of 100 bytes: one on the first device, one on the second.

    Both on the first need 200 bytes and have 150.
    """
    layer = make_cost(10, 20, kept_bytes=100)
    problem = make_problem(
        {"a": layer, "b": layer}, edge=0, devices=2, granularity=granularity
    )
    device = replace(problem.cluster.device, memory_bytes=150)
    second = replace(device, memory_bytes=second_bytes)
    problem = on_two_types(problem, device, 1, second)
    assert (solve("brute", problem).plan is not None) == feasible
    check(EXACT, problem)


@pytest.mark.parametrize("granularity", ["stage", "layer"])
def test_a_slow_device_is_left_out_where_it_holds_up_the_others(granularity):
    """Three layers of 30 ns, or 90 on the second device; ten micro-batches.

    All on the first take 10 · 90 = 900 ns; the last layer on the second
    60 + 90 + 9 · 90 = 960. At the prices of the first it would be 630.
    """
    layer = replace(
        make_cost(10, 20),
        by_device=(DeviceTimes(device="second", forward_ns=30, backward_ns=60),),
    )
    problem = make_problem(
        {"a": layer, "b": layer, "c": layer},
        edge=0,
        devices=2,
        granularity=granularity,
        global_batch=10,
        replicas=(1,),
    )
    device = problem.cluster.device
    problem = on_two_types(problem, device, 1, device)
    assert solve("dp", problem).claimed_quanta == 900
    check(EXACT, problem)


def test_an_update_without_a_place_is_that_of_the_fastest_devices():
    """50 bytes of weights, no state, at 1 or 0.5 bytes per ns.

    Gradients are read, weights read and written: 150 bytes.
    """
    problem = make_problem(
        {"a": make_cost(weight_bytes=50)},
        devices=2,
        hbm=5e8,
        optimizer=Optimizer(name="sgd", state_bytes=0),
    )
    slow = problem.cluster.device
    fast = replace(slow, hbm_bytes_per_s=1e9)
    model = CostModel(on_two_types(problem, slow, 1, fast))

    def sync(block):
        return model.layer_terms(0, Strategy(), 1, block).sync

    first, last = (Block(1, 2, offset, 1) for offset in (0, 1))
    assert [sync(first), sync(last), sync(None)] == [300, 150, 150]


@examples(60, full=2000)
@given(mixed())
def test_exact_solvers_agree_with_brute_force(problem):
    check(EXACT, problem)


@examples(30, full=1000)
@given(mixed(granularity="layer"))
def test_they_agree_with_a_strategy_per_layer(problem):
    check(EXACT, problem)


@pytest.mark.parametrize("granularity", ["stage", "layer"])
@examples(15, full=300)
@given(st.data())
def test_the_frontier_is_that_of_all_plans(granularity, data):
    problem = data.draw(mixed(granularity=granularity))
    assert searched(problem) == enumerated(problem)


@st.composite
def rewritten(draw):
    """Draw a problem, and it with some devices of a type of their own.

    The type is the same but for its name, which no cost knows.
    """
    problem = draw(problems(preset="standard"))
    cluster = problem.cluster
    first = draw(st.integers(0, cluster.num_devices - 1))
    count = draw(st.integers(1, cluster.num_devices - first))
    name = draw(st.sampled_from((cluster.device.name, "alike")))
    part = DeviceRange(
        first=first, count=count, device=replace(cluster.device, name=name)
    )
    return problem, replace(problem, cluster=replace(cluster, others=(part,)))


@examples(40, full=1000)
@given(rewritten())
def test_devices_that_are_alike_may_be_of_two_types(pair):
    plain, two = (solve("dp", problem) for problem in pair)
    assert (plain.status, plain.claimed_quanta) == (two.status, two.claimed_quanta)


@examples(10, full=200)
@given(st.data(), mixed())
def test_offers_are_those_of_enumeration(data, problem):
    """The best of the optima of all numbers of devices of each type."""
    prices = st.sampled_from((0.5, 1.0, 2.0, 3.7))
    problem = with_prices(
        problem, {name: data.draw(prices) for name in problem.cluster.counts}
    )
    found = []
    for candidate in candidates(problem):
        quanta = solve("brute", candidate).claimed_quanta
        if quanta is not None:
            hourly = hourly_usd(candidate.cluster)
            found.append((quanta, hourly, hourly * quanta))
    target = data.draw(st.sampled_from([*(x[0] for x in found), 10**6]))
    hourly = data.draw(st.sampled_from([*(x[1] for x in found), None]))
    wish = data.draw(st.sampled_from(("fastest", "cheapest")))
    keeping = [
        (quanta, price) if wish == "fastest" else (usd, quanta)
        for quanta, price, usd in found
        if quanta <= target and (hourly is None or price <= hourly)
    ]
    with mock.patch("nest.analysis.fit.run_solver", run_inside):
        fit = best_offer(problem, wish, Limits(StepTimeLimit(target, ""), hourly))
    assert fit.proven
    assert (fit.best is None) == (not keeping)
    if fit.best is not None:
        quanta = fit.best.result.step_quanta
        price = hourly_usd(fit.best.problem.cluster)
        assert min(keeping) == (
            (quanta, price) if wish == "fastest" else (price * quanta, quanta)
        )


@examples(40, full=600)
@given(mixed())
def test_no_stage_takes_less_than_the_zones_it_spans_allow(problem):
    """Every strategy at every place, against the bound of its span."""
    shapes = StageShapes(CostModel(problem), closed_sets(problem.graph))
    for split in batch_splits(problem):
        terms = BatchTerms(shapes, split.micro_batch)
        zones = Zones(problem.cluster, split)
        unit = math.gcd(*terms.devices.tolist())
        for span, site in zip(zones.spans, zones.sites, strict=True):
            low, high = zones.window(span, terms.devices)
            load = terms.load_on(site) if len(terms.devices) else None
            for number, strategy in enumerate(terms.strategies):
                for offset in range(low[number], high[number] + 1):
                    if offset % unit:
                        continue  # no stages in front have so many
                    place = split.replicas, split.devices, offset
                    row = terms.terms(strategy, Block(*place, strategy.devices))
                    for kind, term in enumerate(row):
                        if term is not None:
                            amounts = terms.schedule.amounts(term)
                            assert (load[:, number, kind] <= amounts).all()


def test_replicas_begin_where_no_stage_of_the_first_can():
    """Six devices, units of five; the second replica begins at device 3.

    Two ranks at devices 3 and 4 take 20 ns of computation and 100 of an
    all-reduce, as those at 0 and 1: two replicas take that once, one twice.
    At devices 4 and 5 it would be ten times the communication.
    """
    cost = make_cost(
        10,
        10,
        tp=2,
        collectives=(
            CollectiveCall(
                kind="all-reduce", axis="tp", phase="forward", size_bytes=100
            ),
        ),
    )
    problem = make_problem(
        {"a": cost},
        devices=6,
        global_batch=2,
        topology=make_levels((5, 0.0, 1e9), (2, 0.0, 1e8)),
    )
    device = problem.cluster.device
    problem = on_two_types(problem, device, 3, device)
    assert solve("brute", problem).claimed_quanta == 120
    assert optima.search(problem, "proof-alone").claimed_quanta == 120


@pytest.mark.parametrize(
    ("text", "block", "least"),
    [
        # Devices 1 and 2 are in one unit: 100 ns of an all-reduce, and 20
        # of computation that the slow one takes.
        ("aabb", Block(1, 4, 1, 2), 20),
        # Devices 2 and 3 are not: 1000 ns.
        ("aabb", Block(1, 4, 2, 2), 1020),
        # Too many zones: the least of all places.
        ("ababab", Block(1, 6, 0, 2), 120),
        # Of devices on like links, the fast ones at 4 and 5.
        ("bbabaab", Block(1, 7, 0, 2), 110),
    ],
)
def test_only_stages_of_one_type_are_bounded_by_its_places(text, block, least):
    """Units of three devices; 10 ns of computation, or 20 on type b."""
    cost = replace(
        make_cost(
            5,
            5,
            tp=2,
            collectives=(
                CollectiveCall(
                    kind="all-reduce", axis="tp", phase="forward", size_bytes=100
                ),
            ),
        ),
        by_device=(DeviceTimes(device="b", forward_ns=10, backward_ns=10),),
    )
    problem = make_problem(
        {"a": (cost, make_cost(5, 5))},
        devices=len(text),
        topology=make_levels((3, 0.0, 1e9), (3, 0.0, 1e8)),
    )
    other = replace(problem.cluster.device, name="b")
    others = tuple(
        DeviceRange(first=place, count=1, device=other)
        for place, name in enumerate(text)
        if name == "b"
    )
    problem = with_cluster(problem, others=others)
    terms = BatchTerms(StageShapes(CostModel(problem), closed_sets(problem.graph)), 1)
    (split,) = (x for x in batch_splits(problem) if x.replicas == 1)
    zones = Zones(problem.cluster, split)
    (site,) = (
        site
        for span, site in zip(zones.spans, zones.sites, strict=True)
        for low, high in [zones.window(span, np.array([2]))]
        if low[0] <= block.offset <= high[0]
    )
    number = [strategy.tp for strategy in terms.strategies].index(2)
    assert terms.load_on(site)[-1, number, 0] == least
