"""Intervals of predictions, worked out by hand."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from nest.cost.scaled import Factors, scaled
from nest.cost.score import score
from nest.hardware import device_specs
from nest.ir import Activations, DeviceTimes, GraphTopology, Problem
from nest.ir.cluster import DeviceRange, Topology
from nest.ir.graph_topology import NetworkLink, NetworkNode
from nest.ir.problem import OwnRuns
from nest.models import builtin
from nest.uncertainty.intervals import (
    Covariance,
    Deviations,
    Measured,
    Program,
    Quantiles,
    Shares,
    covariance_of,
    deviation,
    equal,
    fit_probability,
    intervals_of,
    is_stranger,
    median_of,
    noise_of,
    rests_on,
    shares_of,
    stored_deviations,
    why_none,
)
from tests.builders import SINGLE, make_cost, make_levels, make_plan, make_problem

#: Numbers to reckon with.
NUMBERS = Deviations(
    noise=0.03,
    device=0.08,
    network=0.4,
    host=0.2,
    unseen=0.06,
    experts=0.24,
    low_precision=0.7,
    plan_noise=0.02,
    apart=1.5,
    step=Quantiles(low_90=-2.0, low_50=-1.0, high_50=0.5, high_90=3.0),
    memory=Quantiles(low_90=-0.2, low_50=-0.1, high_50=0.05, high_90=0.1),
    memory_error=0.05,
    families={
        "H100": Measured(runs=200, sources=1),
        "H200": Measured(runs=3, sources=2),
        "GB200": Measured(runs=9, sources=3),
        "Gaudi2": Measured(runs=1, sources=1),
    },
)

TWO = make_plan(("a", SINGLE), ("b", SINGLE))


def pipeline(**fields: object) -> Problem:
    """Two stages of 1.1 and 2.2 ms; a cut takes 1.1 ms each way.

    A step of one micro-batch takes 6.6 ms of devices and 2.2 of the network.
    """
    cost = make_cost(1.1e6, 2.2e6, **fields)
    return make_problem(
        {"a": cost, "b": cost}, edges=(("a", "b", 1_099_990),), sequence_length=1
    )


def named(problem: Problem, *names: str) -> Problem:
    """Return the problem on devices of the first name."""
    cluster = problem.cluster
    return replace(
        problem, cluster=replace(cluster, device=replace(cluster.device, name=names[0]))
    )


# Longer times


def test_a_pass_waits_for_twice_what_its_host_takes() -> None:
    """Of 100 ns with 20 of the host 40 wait: 2 · (60 + 3 · 40) = 360.

    Of 200 with 150 all wait; selective recomputation of 10 with 1 waits for
    2 of them. Gradients of weights stay a quarter of the pass.
    """
    cost = make_cost(
        100,
        200,
        weight_backward_ns=50,
        forward_host_ns=20,
        backward_host_ns=150,
        activations=(
            Activations(
                recompute="selective", kept_bytes=0, extra_ns=10, extra_host_ns=1
            ),
        ),
    )
    other = scaled(make_problem({"a": cost}), Factors(device=2, host=5, waiting=3))
    found = other.graph.kinds[0].costs[0]
    assert found.forward_ns == pytest.approx(360)
    assert found.backward_ns == pytest.approx(2 * 3 * 200)
    assert found.weight_backward_ns == pytest.approx(300)
    assert found.forward_host_ns == 100
    assert found.backward_host_ns == 750
    (choice,) = found.activations
    assert choice.extra_ns == pytest.approx(2 * (8 + 3 * 2))
    assert choice.extra_host_ns == 5


def test_measured_layers_have_a_factor_of_their_own() -> None:
    cost = make_cost(100, 200, forward_host_ns=20, measured=True)
    problem = make_problem({"a": cost})
    other = scaled(problem, Factors(device=2, waiting=3))
    assert other.graph.kinds[0].costs[0] == cost
    other = scaled(problem, Factors(measured=2))
    assert other.graph.kinds[0].costs[0].forward_ns == 200


def test_other_types_of_devices_take_longer_too() -> None:
    times = DeviceTimes(device="slow", forward_ns=30, backward_ns=40)
    problem = make_problem({"a": make_cost(10, 20, by_device=(times,))})
    other = scaled(problem, Factors(device=2))
    (found,) = other.graph.kinds[0].costs[0].by_device
    assert (found.forward_ns, found.backward_ns) == (60, 80)


def test_updates_take_as_much_longer_as_devices() -> None:
    problem = make_problem({"a": make_cost(1, 1)}, hbm=8.0)
    other = scaled(problem, Factors(device=2))
    assert other.cluster.device.hbm_bytes_per_s == 4.0


#: Two devices behind a switch, 10 and 20 ns away from it.
GRAPH = GraphTopology(
    nodes=(
        NetworkNode(id="a"),
        NetworkNode(id="b"),
        NetworkNode(id="s", kind="switch"),
    ),
    links=tuple(
        NetworkLink(
            source=name, target="s", bandwidth_bytes_per_s=1e9, latency_ns=latency_ns
        )
        for name, latency_ns in (("a", 10.0), ("b", 20.0))
    ),
    launch_ns=5.0,
)


@pytest.mark.parametrize(
    "topology", [make_levels((2, 10.0, 1e9)), GRAPH], ids=["tree", "graph"]
)
def test_all_times_together_make_the_step_as_long(topology: Topology) -> None:
    """A step is a sum of maxima of times: it takes twice as long."""
    problem = make_problem(
        {"a": make_cost(200, 400), "b": make_cost(300, 300)},
        edges=(("a", "b", 100),),
        devices=2,
        topology=topology,
    )
    twice = scaled(problem, Factors(2, 2, 2, measured=2))
    step = score(problem, TWO).step_quanta
    assert score(twice, TWO).step_quanta == 2 * step
    # The passes alone take 1200.
    slow = scaled(problem, Factors(network=2))
    assert score(slow, TWO).step_quanta == 2 * step - 1200


def test_what_plans_hold_stays() -> None:
    problem = builtin.load("llama2-7b-8")
    other = scaled(problem, Factors(2, 3, 4, 5, 6))
    for before, after in zip(problem.graph.kinds, other.graph.kinds, strict=True):
        for cost, longer in zip(before.costs, after.costs, strict=True):
            assert cost.weight_bytes == longer.weight_bytes
            assert [a.kept_bytes for a in cost.activations] == [
                a.kept_bytes for a in longer.activations
            ]


# What a step depends on


def test_shares_of_a_pipeline() -> None:
    """Devices that are 1.1 times as fast leave 6 + 2.2 of 8.8 ms."""
    problem = pipeline()
    shares = shares_of(problem, TWO, score(problem, TWO))
    device = math.log(8.8 / 8.2) / math.log(1.1)
    assert shares.device == pytest.approx(device, rel=1e-5)
    assert shares.network == pytest.approx(1 - device, rel=1e-5)
    assert shares.host == 0


def test_what_waits_for_hosts_is_counted_as_both() -> None:
    """Half of either forward pass waits: 1.1 becomes 0.55 + 0.5 ms."""
    problem = pipeline(forward_host_ns=275_000)
    shares = shares_of(problem, TWO, score(problem, TWO))
    host = math.log(8.8 / 8.7) / math.log(1.1)
    assert shares.host == pytest.approx(host, rel=1e-4)
    assert shares.device == pytest.approx(math.log(8.8 / 8.2) / math.log(1.1), rel=1e-5)


def test_measured_layers_do_not_depend_on_the_device() -> None:
    """What is left is the network, as large as ever."""
    problem, other = pipeline(measured=True), pipeline()
    found = shares_of(problem, TWO, score(problem, TWO))
    before = shares_of(other, TWO, score(other, TWO))
    assert found == Shares(device=0, network=before.network, host=0)


# How far off


def test_deviations_add_up_as_squares() -> None:
    """0.5 · 0.08, 0.3 · 0.4 and 0.15 · 0.2 beside 0: 0.13 of 4, 12, 3."""
    found = deviation(Shares(0.5, 0.3, 0), diagonal(0.08, 0.4, 0.2), 0.03)
    assert found == pytest.approx(math.sqrt(0.04**2 + 0.12**2 + 0.03**2))
    assert found == pytest.approx(0.13)


def test_what_is_unknown_together_counts_twice() -> None:
    """0.5² · 0.01 + 2 · 0.5 · 0.5 · -0.008 + 0.5² · 0.01 = 0.001."""
    covariance = ((0.01, -0.008, 0.0), (-0.008, 0.01, 0.0), (0.0, 0.0, 1.0))
    found = deviation(Shares(0.5, 0.5, 0), covariance, 0.0)
    assert found == pytest.approx(math.sqrt(0.001))


def diagonal(*deviations: float) -> Covariance:
    """Return what is unknown of times that are off independently."""
    device, network, host = (x**2 for x in deviations)
    return (device, 0.0, 0.0), (0.0, network, 0.0), (0.0, 0.0, host)


@pytest.mark.parametrize(
    ("device", "fields", "expected"),
    [
        ("H100-80GB-SXM", {}, 0.08),
        # 0.06, 0.08 and 0.1: no run at all.
        ("A100-80GB-SXM", {}, 0.1),
        # Those that take another family's parameters need three sources.
        ("H200-141GB-SXM", {}, 0.1),
        ("GB200", {}, 0.08),
        ("ours", {}, 0.1),
        ("ours", {"expert_weight_bytes": 1}, math.hypot(0.1, 0.24)),
    ],
)
def test_devices_are_off_by_what_is_known_of_them(
    device: str, fields: dict[str, int], expected: float
) -> None:
    problem = named(pipeline(**fields), device)
    expected_rows = diagonal(expected, 0.4, 0.2)
    for row, other in zip(covariance_of(problem, NUMBERS), expected_rows, strict=True):
        assert row == pytest.approx(other)


def test_low_precision_is_known_less() -> None:
    """0.08, 0.7 and 0.705."""
    problem = named(pipeline(), "H100-80GB-SXM")
    problem = replace(problem, job=replace(problem.job, dtype="fp8"))
    found = covariance_of(problem, NUMBERS)[0][0]
    assert found == pytest.approx(0.08**2 + 0.7**2)


def test_intervals_of_a_pipeline() -> None:
    """All measured: 0.25 of a step with 0.4 beside noise of 0.03."""
    problem = pipeline(measured=True, kept_bytes=1000)
    found = score(problem, TWO)
    known = intervals_of(problem, TWO, found, NUMBERS)
    assert known is not None
    s = math.hypot(0.03, 0.4 * known.shares.network)
    assert known.step_90_ns == pytest.approx(
        (8.8e6 * math.exp(-2 * s), 8.8e6 * math.exp(3 * s))
    )
    assert known.step_50_ns == pytest.approx(
        (8.8e6 * math.exp(-s), 8.8e6 * math.exp(s / 2))
    )
    assert known.memory_90_bytes == pytest.approx(
        (1000 * math.exp(-0.2), 1000 * math.exp(0.1))
    )
    assert known.memory_50_bytes == pytest.approx(
        (1000 * math.exp(-0.1), 1000 * math.exp(0.05))
    )
    document = known.to_json()
    assert document["step_time_90_ns"] == list(known.step_90_ns)
    assert set(document) == {
        *("step_time_50_ns", "step_time_90_ns"),
        *("memory_50_bytes", "memory_90_bytes", "fit_probability"),
        *("shares", "rests_on"),
    }


def test_memory_is_that_of_the_fullest_device() -> None:
    """The first stage keeps 300 bytes, the second one 1,000."""
    problem = pipeline(kept_bytes=1000)
    less = replace(problem.graph.kinds[0], costs=(make_cost(1, 1, kept_bytes=300),))
    graph = replace(problem.graph, kinds=(less, problem.graph.kinds[1]))
    problem = replace(problem, graph=graph)
    found = intervals_of(problem, TWO, score(problem, TWO), NUMBERS)
    assert found is not None
    assert found.memory_90_bytes.high == pytest.approx(1000 * math.exp(0.1))


def test_one_type_that_is_not_measured_makes_all_uncertain() -> None:
    """The H100 is measured, "ours" is not: 0.06 and 0.08."""
    problem = named(pipeline(), "H100-80GB-SXM")
    ours = replace(problem.cluster.device, name="ours")
    others = (DeviceRange(first=1, count=1, device=ours),)
    cluster = replace(problem.cluster, others=others)
    found = covariance_of(replace(problem, cluster=cluster), NUMBERS)
    assert found[0][0] == pytest.approx(0.1**2)


def test_a_step_without_time_has_no_interval() -> None:
    problem = make_problem({"a": make_cost(0, 0)}, sequence_length=1)
    plan = make_plan(("a", SINGLE))
    assert intervals_of(problem, plan, score(problem, plan)) is None


def test_nothing_is_known_of_other_costs_and_rules() -> None:
    problem = pipeline()
    assert why_none(problem) == ""
    bare = replace(problem, job=replace(problem.job, sequence_length=None))
    assert why_none(bare) == "costs of its own"
    assert intervals_of(bare, TWO, score(bare, TWO)) is None
    other = replace(problem, preset="piper")
    assert why_none(other) == "the rules of piper"
    analytic = replace(problem, source="an analytic model, not calibrated")
    assert why_none(analytic) == "costs that are not calibrated"


# Two plans


def test_of_two_alike_plans_only_their_noise_counts() -> None:
    """√2 · 0.02 is 0.02828: e to that 1.0287."""
    problem, shares = pipeline(), Shares(0.7, 0.3, 0.1)
    for other, expected in ((1028, True), (1029, False)):
        both = (1000, other), (shares, shares)
        assert equal(problem, *both, NUMBERS) is expected
        assert equal(problem, both[0][::-1], both[1], NUMBERS) is expected


def test_what_plans_differ_in_counts() -> None:
    """1.5 · 0.1 · 0.4 = 0.06 with √2 · 0.02: 0.06633.

    1.5 · 0.1 · 0.1 of the devices, which are not known: 0.06801.
    """
    problem = pipeline()
    plans = Shares(0.7, 0.3, 0), Shares(0.8, 0.2, 0)
    s = math.sqrt(0.06**2 + 0.015**2 + 2 * 0.02**2)
    assert s == pytest.approx(0.06801, rel=1e-3)
    most = math.floor(1000 * math.exp(s))
    assert equal(problem, (1000, most), plans, NUMBERS)
    assert not equal(problem, (1000, most + 1), plans, NUMBERS)


# What it rests on


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("H100-80GB-SXM", "H100 (200 runs of 1 source)"),
        (
            "H200-141GB-SXM",
            "H200 with parameters of H100 (3 runs of 2 sources of its own)",
        ),
        ("Gaudi2", "Gaudi2 with parameters of A100 (1 run of 1 source of its own)"),
        ("L4", "L4 with parameters of A100 (no run of its own)"),
        ("ours", "ours not known"),
    ],
)
def test_what_a_prediction_rests_on(device: str, text: str) -> None:
    problem = named(pipeline(), device)
    expected = (text, "no layer profiled", "software not stated (wider)")
    assert rests_on(problem, NUMBERS) == expected


def test_what_a_prediction_of_profiled_experts_rests_on() -> None:
    problem = named(pipeline(measured=True, expert_weight_bytes=1), "ours")
    assert rests_on(problem, NUMBERS) == (
        *("ours not known", "2 of 2 layer costs profiled", "experts"),
        "software not stated (wider)",
    )


# Software that no measured run is of

#: As NUMBERS, with one software of which runs on Hopper were measured.
KNOWN = replace(
    NUMBERS,
    software=0.04,
    slower=0.1,
    uneven={"A100": 0.15},
    programs={
        "ours": Program(
            kind="eager",
            families={
                "H100": Measured(runs=45, sources=2),
                "A100": Measured(runs=99, sources=1),
            },
        ),
        "idle": Program(kind="eager"),
    },
    memory_kinds={
        "eager": Quantiles(low_90=-0.4, low_50=-0.1, high_50=0.2, high_90=0.3),
        "unknown": Quantiles(low_90=-0.6, low_50=-0.2, high_50=0.3, high_90=0.5),
    },
)


@pytest.mark.parametrize(
    ("software", "device", "text"),
    [
        ("ours", "H100-80GB-SXM", "ours (45 runs of 2 sources)"),
        # It takes the parameters of the H100.
        ("ours", "H200-141GB-SXM", "ours (45 runs of 2 sources)"),
        ("ours", "A100-80GB-SXM", "ours (99 runs of 1 source on such devices, wider)"),
        ("ours", "B200-180GB", "ours (no run on such devices, wider)"),
        ("idle", "H100-80GB-SXM", "idle (no run on such devices, wider)"),
        ("other", "H100-80GB-SXM", "software not known (wider)"),
        ("", "H100-80GB-SXM", "software not stated (wider)"),
    ],
)
def test_software_is_known_by_its_runs_on_such_devices(
    software: str, device: str, text: str
) -> None:
    problem = replace(named(pipeline(), device), software=software)
    assert rests_on(problem, KNOWN)[-1] == text
    assert is_stranger(problem, KNOWN) is text.endswith("wider)")


def test_one_type_without_runs_makes_the_software_a_stranger() -> None:
    problem = replace(named(pipeline(), "H100-80GB-SXM"), software="ours")
    assert not is_stranger(problem, KNOWN)
    second = replace(problem.cluster.device, name="B200-180GB")
    others = (DeviceRange(first=1, count=1, device=second),)
    cluster = replace(problem.cluster, others=others)
    assert is_stranger(replace(problem, cluster=cluster), KNOWN)


def test_unknown_software_is_slower_and_less_certain() -> None:
    """Noise of 0.03 and 0.04 are 0.05; the median is e^0.1 times as long.

    All is measured, so that only 0.25 of the step, the network, adds to that.
    """
    problem = named(pipeline(measured=True, kept_bytes=1000), "H100-80GB-SXM")
    found = score(problem, TWO)
    known = intervals_of(replace(problem, software="ours"), TWO, found, KNOWN)
    unknown = intervals_of(problem, TWO, found, KNOWN)
    assert known is not None
    assert unknown is not None
    network = 0.4 * known.shares.network
    for intervals, noise, median in ((known, 0.03, 0.0), (unknown, 0.05, 0.1)):
        s = math.hypot(noise, network)
        assert intervals.step_90_ns == pytest.approx(
            (8.8e6 * math.exp(median - 2 * s), 8.8e6 * math.exp(median + 3 * s))
        )
        assert intervals.step_50_ns == pytest.approx(
            (8.8e6 * math.exp(median - s), 8.8e6 * math.exp(median + s / 2))
        )
    assert known.memory_90_bytes == pytest.approx(
        (1000 * math.exp(-0.4), 1000 * math.exp(0.3))
    )
    assert unknown.memory_90_bytes == pytest.approx(
        (1000 * math.exp(-0.6), 1000 * math.exp(0.5))
    )


def test_own_runs_are_of_known_software() -> None:
    problem = replace(pipeline(), own_runs=OWN)
    assert noise_of(problem, KNOWN) == 0.02
    assert median_of(problem, KNOWN) == 0.0
    assert not is_stranger(replace(problem, software="NeMo"), KNOWN)
    other = replace(problem, software="Hugging Face")
    assert is_stranger(other, KNOWN)
    unnamed = replace(other, own_runs=replace(OWN, software=()))
    assert not is_stranger(unnamed, KNOWN)


def test_devices_of_few_sources_are_off_by_more() -> None:
    """0.06 of an unseen family, 0.08 and 0.15."""
    found = covariance_of(named(pipeline(), "A100-80GB-SXM"), KNOWN)[0][0]
    assert found == pytest.approx(0.06**2 + 0.08**2 + 0.15**2)
    found = covariance_of(named(pipeline(), "H100-80GB-SXM"), KNOWN)[0][0]
    assert found == pytest.approx(0.08**2)


def test_a_kind_without_figures_has_those_of_all() -> None:
    numbers = replace(KNOWN, memory_kinds={})
    assert numbers.memory_of("ours") == NUMBERS.memory
    assert numbers.memory_of("") == NUMBERS.memory


# A user's own runs

OWN = OwnRuns(
    runs=20,
    family="H100",
    software=("NeMo",),
    covariance=((0.01, -0.002, 0.0), (-0.002, 0.16, 0.0), (0.0, 0.0, 0.04)),
    noise=0.02,
)


def test_own_runs_take_the_place_of_what_is_known_of_others() -> None:
    problem = replace(pipeline(), own_runs=OWN)
    assert covariance_of(problem, NUMBERS) == OWN.covariance
    assert noise_of(problem, NUMBERS) == 0.02
    assert rests_on(problem, NUMBERS) == (
        "20 own runs on H100 with NeMo",
        "no layer profiled",
    )
    one = replace(problem, own_runs=replace(OWN, runs=1, software=()))
    assert rests_on(one, NUMBERS)[0] == "1 own run on H100"


def test_what_own_runs_did_not_do_is_unknown() -> None:
    """0.24 of experts, 0.7 of fp8."""
    problem = pipeline(expert_weight_bytes=1)
    job = replace(problem.job, dtype="fp8")
    problem = replace(problem, job=job, own_runs=OWN)
    found = covariance_of(problem, NUMBERS)[0][0]
    assert found == pytest.approx(0.01 + 0.24**2 + 0.7**2)
    both = replace(OWN, experts=True, low_precision=True)
    problem = replace(problem, own_runs=both)
    assert covariance_of(problem, NUMBERS) == OWN.covariance


def test_intervals_are_of_own_runs() -> None:
    problem = pipeline()
    own = replace(problem, own_runs=OWN)
    found = score(problem, TWO)
    known = intervals_of(own, TWO, found, NUMBERS)
    assert known is not None
    s = deviation(known.shares, OWN.covariance, 0.02)
    assert known.step_90_ns.high == pytest.approx(8.8e6 * math.exp(3 * s))


@pytest.mark.parametrize(
    ("covariance", "text"),
    [
        (
            ((0, 1, 0), (0, 0, 0), (0, 0, 0)),
            r"covariance\[0\]\[1\]: expected a finite number, the same as "
            r"\[1\]\[0\], got 1",
        ),
        (
            ((math.inf, 0, 0), (0, 0, 0), (0, 0, 0)),
            r"covariance\[0\]\[0\]: expected a finite number, the same as "
            r"\[0\]\[0\], got inf",
        ),
        (
            ((0, 0, 0), (0, -1, 0), (0, 0, 0)),
            r"covariance\[1\]\[1\]: expected >= 0, got -1",
        ),
    ],
)
def test_other_covariances_are_refused(covariance: Covariance, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(OWN, covariance=covariance)


def test_what_is_said_of_own_runs_changes_no_step() -> None:
    problem = pipeline()
    own = replace(problem, own_runs=OWN)
    assert score(own, TWO) == score(problem, TWO)


# What comes with the package


def test_stored_numbers_are_of_known_devices() -> None:
    numbers = stored_deviations()
    known = {spec.family for spec in device_specs()}
    assert set(numbers.families) <= known
    assert numbers.provenance


@pytest.mark.parametrize("figure", ["step", "memory"])
def test_stored_intervals_hold_each_other(figure: str) -> None:
    found = getattr(stored_deviations(), figure)
    assert found.low_90 < found.low_50 < found.high_50 < found.high_90
    assert found.low_90 < 0 < found.high_90


def test_the_probability_of_fitting_is_that_of_the_intervals() -> None:
    """A quarter lies above the 50 % interval, a twentieth above the other."""
    memory = Quantiles(low_90=-0.2, low_50=-0.1, high_50=0.05, high_90=0.1)
    for end, expected in (
        (-0.2, 0.05),
        (-0.1, 0.25),
        (-0.025, 0.5),
        (0.05, 0.75),
        (0.1, 0.95),
    ):
        assert memory.probability_below(end) == pytest.approx(expected)
    # Beyond the ends the slope goes on: 0.05 more is as much again.
    assert memory.probability_below(0.15) == pytest.approx(0.99554, abs=1e-5)
    assert memory.probability_below(math.inf) == 1


def test_every_device_must_have_the_memory() -> None:
    """Of 1500 bytes the second device keeps 300 free; the first has more."""
    costs = {"a": make_cost(1, 2, kept_bytes=1000)}
    costs["b"] = costs["a"]
    problem = make_problem(costs, edges=(("a", "b", 0),), devices=2)
    second = replace(
        problem.cluster.device, name="other", memory_bytes=1200, headroom_bytes=300
    )
    others = (DeviceRange(first=1, count=1, device=second),)
    problem = replace(problem, cluster=replace(problem.cluster, others=others))
    plan = make_plan(("a", SINGLE), ("b", SINGLE))
    verdict = score(problem, plan)
    assert [block.memory_bytes for block in verdict.blocks] == [1000, 1000]
    memory = replace(NUMBERS.memory, high_50=0.5, high_90=1.0)
    found = fit_probability(problem, plan, verdict, replace(NUMBERS, memory=memory))
    expected = memory.probability_below(math.log(1500 / 1000))
    assert found == pytest.approx(expected)
    assert 0.5 < found < 0.75
