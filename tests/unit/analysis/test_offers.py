"""The fastest and the cheapest devices, worked out by hand."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from msgspec.structs import replace

from nest.analysis.fit import Trial, smallest_memory, to_document, within
from nest.analysis.offers import (
    Limits,
    _better_quanta,
    _likely_rank,
    best_offer,
    candidates,
    hourly_usd,
    step_usd,
    type_counts,
    with_prices,
)
from nest.analysis.offers import to_document as with_usd
from nest.errors import InvalidOptionError
from nest.ir import DeviceRange, DeviceTimes, Problem
from nest.present.fit import fit_block
from nest.solvers.base import Limit, Status
from tests.builders import make_cost, make_levels, make_problem
from tests.graphs import make_graph
from tests.inside import run_inside

#: Dollars that a device of 1 $ per hour costs in a nanosecond.
USD_NS = Fraction(1, 3600 * 10**9)


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest.analysis.fit.run_solver", run_inside)


def problem(**fields: object) -> Problem:
    """One layer of 30 ns, or 60 on a slow device; four samples.

    Four fast devices at 3 $ per hour, then four slow ones at 1 $. Only replicas help:
    1, 2 and 4 fast ones take 120, 60 and 30 ns, slow ones, or some of both, twice that.
    Steps cost 360 $ ns per hour on fast devices, 240 on slow ones.
    """
    cost = replace(
        make_cost(10, 20),
        by_device=(DeviceTimes(device="slow", forward_ns=20, backward_ns=40),),
    )
    found = make_problem(
        {"a": cost},
        devices=8,
        global_batch=4,
        sequence_length=10,
        topology=make_levels((8, 0.0, 1e15)),
        **fields,
    )
    device = replace(found.cluster.device, price_usd_per_hour=3.0)
    slow = replace(device, name="slow", price_usd_per_hour=1.0)
    part = DeviceRange(first=4, count=4, device=slow)
    cluster = replace(found.cluster, device=device, others=(part,))
    return replace(found, cluster=cluster)


def answer(wish, limits, quotas=None):
    """Return the devices of each type and the step time of an answer."""
    fit = best_offer(problem(), wish, limits, quotas)
    assert fit.proven
    if fit.best is None:
        return None
    counts = fit.best.problem.cluster.counts
    step = fit.best.result.step_quanta
    return counts.get("device", 0), counts.get("slow", 0), step


@pytest.mark.parametrize(
    ("hourly", "expected"),
    [
        (12, (4, 0, 30)),
        # 60 ns on 2 fast ones take 6 $, on 4 slow ones 4 $.
        (11, (0, 4, 60)),
        (4, (0, 4, 60)),
        # 1 fast and no slow one: 120 ns for 3 $; 2 slow ones 2 $.
        (3, (0, 2, 120)),
        (1, (0, 1, 240)),
        (Fraction(1, 2), None),
    ],
)
def test_the_fastest_within_an_hourly_budget(hourly, expected):
    limits = Limits(hourly_usd=Fraction(hourly))
    assert answer("fastest", limits) == expected


@pytest.mark.parametrize(
    ("dollars", "expected"),
    [
        # Three steps of 40 tokens.
        (3 * 360 * USD_NS, (4, 0, 30)),
        (3 * 360 * USD_NS - USD_NS / 10, (0, 4, 60)),
        (3 * 240 * USD_NS, (0, 4, 60)),
        (3 * 240 * USD_NS - USD_NS / 10, None),
    ],
)
def test_the_fastest_within_the_budget_of_a_run(dollars, expected):
    limits = Limits(run_usd=dollars, tokens=Fraction(100))
    assert answer("fastest", limits) == expected


@pytest.mark.parametrize(
    ("step_ns", "quotas", "expected"),
    [
        # All slow ones cost as much: the fastest of them.
        (240, {}, (0, 4, 60)),
        (60, {}, (0, 4, 60)),
        (59, {}, (4, 0, 30)),
        (29, {}, None),
        (240, {"slow": 3}, (0, 2, 120)),
        (240, {"slow": 0}, (4, 0, 30)),
        (240, {"slow": 0, "device": 2}, (2, 0, 60)),
        (59, {"device": 3}, None),
    ],
)
def test_the_cheapest_that_keeps_a_target(step_ns, quotas, expected):
    target = within(problem(), Fraction(step_ns, 10**9))
    assert answer("cheapest", Limits(target), quotas) == expected


@pytest.mark.parametrize(
    ("wish", "counts", "is_before", "expected"),
    [
        # As dear as one fast one: the first of equal candidates.
        ("cheapest", (0, 3), True, 120),
        ("cheapest", (0, 3), False, 119),
        ("fastest", (0, 3), True, 120),
        ("fastest", (0, 3), False, 119),
        ("fastest", (0, 2), False, 120),
        # 180 ns on two slow ones cost as much, but take longer; 90 on four do not.
        ("cheapest", (0, 2), True, 179),
        ("cheapest", (0, 4), False, 90),
        ("cheapest", (2, 1), True, 51),
    ],
)
def test_a_candidate_must_be_better_than_the_best(wish, counts, is_before, expected):
    """One fast device takes 120 ns at 3 $ per hour."""
    one, other = (
        replace(problem(), cluster=problem().cluster.keeping(x))
        for x in ((1, 0), counts)
    )
    best = Trial(one, "yes", run_inside(one, "dp"))
    assert best.result.step_quanta == 120
    assert _better_quanta(other, wish, best, is_before) == expected


def test_what_is_likely_to_be_best_comes_first():
    """A slow device costs two thirds and takes twice as long: it comes last."""
    priced = with_prices(problem(), {"slow": 2.0})
    todo = [
        replace(priced, cluster=priced.cluster.keeping(x))
        for x in ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (1, 2))
    ]
    ranks = [_likely_rank(x, "cheapest") for x in todo]
    assert sorted(range(6), key=lambda i: ranks[i]) == [3, 0, 1, 5, 4, 2]
    ranks = [_likely_rank(x, "fastest") for x in todo]
    assert sorted(range(6), key=lambda i: ranks[i]) == [5, 0, 1, 2, 3, 4]


def test_the_best_plan_is_sought_once(monkeypatch):
    """Within a target dp looks for the best plan, not for any."""
    asked = []

    def run(problem, name, options=None, on_progress=None):
        asked.append(dict(options.extra))
        return run_inside(problem, name, options, on_progress)

    monkeypatch.setattr("nest.analysis.fit.run_solver", run)
    one = replace(problem(), cluster=problem().cluster.first_devices(1))
    fit = best_offer(one, "fastest", Limits(within(one, Fraction(1))))
    assert fit.proven
    assert asked == [{"within_quanta": str(10**9)}]


def test_all_limits_count_together():
    """Within 60 ns 2 fast devices cost 6 $ per hour, the slow ones 4 $."""
    target = within(problem(), Fraction(60, 10**9))
    limits = Limits(target, hourly_usd=Fraction(6))
    assert answer("cheapest", limits, {"slow": 2}) == (2, 0, 60)
    limits = Limits(target, hourly_usd=Fraction(5))
    assert answer("cheapest", limits, {"slow": 2}) is None


def test_one_type_has_offers_too():
    """1 to 4 devices cost as much per step: the fastest of them."""
    one = replace(problem(), cluster=problem().cluster.first_devices(4))
    fit = best_offer(one, "cheapest", Limits(within(one, Fraction(1))))
    assert fit.proven
    assert fit.best is not None
    assert fit.best.problem.cluster.counts == {"device": 4}


def test_candidates_are_some_devices_of_each_type():
    cluster = problem().cluster
    assert type_counts(cluster, 4) == [0, 1, 2, 4]
    assert type_counts(cluster, 6) == [0, 1, 2, 4, 6]
    nodes = replace(cluster, topology=make_levels((2, 0, 1e9), (4, 0, 1e9)))
    assert type_counts(nodes, 7) == [0, 1, 2, 4, 7]
    found = [x.cluster.counts for x in candidates(problem(), {"slow": 1})]
    assert {"device": 4, "slow": 1} in found
    assert {"slow": 1} in found
    assert len(found) == 4 * 2 - 1


def test_devices_left_out_are_not_there():
    """Of types x, y, x, y: the first x, and both y."""
    cluster = problem().cluster
    y = replace(cluster.device, name="y")
    parts = tuple(DeviceRange(first=first, count=2, device=y) for first in (2, 6))
    cluster = replace(cluster, others=parts)
    kept = cluster.keeping((1, 3))
    assert kept.counts == {"device": 1, "y": 3}
    assert [(a, b, d.name) for a, b, d in kept.runs] == [
        (0, 1, "device"),
        (1, 3, "y"),
        (3, 4, "y"),
    ]
    assert cluster.keeping((0, 1)).device.name == "y"


def test_devices_on_a_graph_keep_their_links():
    """Devices 0 and 1, then two of another type behind a slow switch."""
    graph = make_graph(
        "abcd",
        [
            ("a", "s", 1, 1e9),
            ("b", "s", 1, 1e9),
            ("c", "t", 1, 1e9),
            ("d", "t", 1, 1e9),
            ("s", "t", 1, 1e8),
        ],
    )
    cluster = problem().cluster
    other = replace(cluster.device, name="y")
    part = DeviceRange(first=2, count=2, device=other)
    cluster = replace(cluster, num_devices=4, others=(part,), topology=graph)
    assert cluster.keeping((1, 2)).topology.ranks == ("a", "c", "d", "b")
    assert cluster.keeping((2, 1)).topology == graph


def test_prices_per_hour_and_per_step():
    """8 devices, 4 · 3 + 4 · 1 $ per hour, for a quarter of an hour."""
    priced = with_prices(problem(), {"slow": 1.1})
    assert hourly_usd(priced.cluster) == Fraction("16.4")
    assert step_usd(priced, 900 * 10**9) == Fraction("4.1")


def test_a_price_must_be_known():
    device = replace(problem().cluster.device, price_usd_per_hour=None)
    unknown = replace(problem(), cluster=replace(problem().cluster, device=device))
    with pytest.raises(
        InvalidOptionError,
        match=r"--price: expected a price of every type, got none of device; "
        r"add --price device=USD or its price_usd_per_hour in the file",
    ):
        with_prices(unknown, {})
    assert hourly_usd(with_prices(unknown, {"device": 2.0}).cluster) == 12


def test_steps_must_take_seconds():
    with pytest.raises(
        InvalidOptionError,
        match=r"--price: expected the time of a step in seconds, got one in "
        r"'tick' under preset 'standard'; leave prices and budgets out",
    ):
        with_prices(replace(problem(), time_unit="tick"), {})


@pytest.mark.parametrize(
    ("quotas", "reason"),
    [
        (
            {"slow": 5},
            r"--quota slow=5: expected an integer from 0 to 4, the devices of "
            r"this type, got 5; lower it",
        ),
        (
            {"slow": 0, "device": 0},
            r"--quota: expected some devices, got 0 of every type; raise one",
        ),
    ],
)
def test_quotas_that_make_no_sense(quotas, reason):
    with pytest.raises(InvalidOptionError, match=reason):
        candidates(problem(), quotas)


def test_what_is_open_is_not_proven(monkeypatch):
    """A solver that says nothing."""

    def silent(problem, name, options=None, on_progress=None):
        return dataclasses.replace(
            run_inside(problem, name, options, on_progress),
            status=Status.NO_SOLUTION,
            limit=Limit.TIME,
            plan=None,
            score=None,
            claimed_quanta=None,
            lower_bound_quanta=None,
        )

    monkeypatch.setattr("nest.analysis.fit.run_solver", silent)
    fit = best_offer(problem(), "fastest", Limits())
    assert not fit.proven
    assert fit.best is None
    assert {trial.answer for trial in fit.trials} == {"open"}


def test_the_document_has_prices():
    fit = best_offer(problem(), "fastest", Limits(hourly_usd=Fraction(11)), {"slow": 4})
    document = with_usd(to_document(problem(), fit, "dp"), fit)
    assert document["question"] == "fastest"
    assert document["target"]["text"] == "at most 11 $ per hour"
    assert document["answer"]["devices_by_type"] == {"slow": 4}
    assert document["answer"]["usd_per_hour"] == 4
    assert document["answer"]["usd_per_step"] == float(240 * USD_NS)
    assert {x["usd_per_hour"] for x in document["candidates"]} <= set(range(1, 12))
    assert fit_block(problem(), fit, "")


def test_the_smallest_memory_is_that_of_one_type():
    with pytest.raises(
        InvalidOptionError,
        match=r"--memory: expected devices of one type, got device \+ slow; "
        r"ask for each type alone",
    ):
        smallest_memory(problem(), within(problem(), Fraction(1)))
