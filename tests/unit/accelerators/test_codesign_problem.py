"""Problems of accelerators: the times that go in, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.accelerators.architecture import Architecture
from nest.accelerators.layers import execution_of
from nest.accelerators.problem import (
    SOURCE,
    Base,
    Key,
    PassTimes,
    base_problem,
    with_times,
)
from nest.errors import InvalidOptionError, InvalidProblemError
from nest.hardware import machine
from nest.ir.cluster import Hierarchy
from nest.ir.graph import LayerCost
from nest.ir.io import problem_hash
from nest.ir.problem import Problem
from nest.models.choices import Request
from nest.models.graphs import build_graph
from nest.models.zoo import architecture
from nest.solvers.base import SolveOptions
from nest.solvers.registry import get_solver
from nest.units import MAX_TERM, quantise

UNFUSED = execution_of("unfused")

CHIP = Architecture(
    tensor_cores=8,
    rows=128,
    columns=128,
    vector_cores=2,
    lanes=128,
    sram_bytes=2**27,
    hbm_bytes=2**35,
    hbm_bytes_per_s=1_200_000_000_000,
    frequency_hz=1_050_000_000,
    link_bytes_per_s=50_000_000_000,
    network_bytes_per_s=25_000_000_000,
    devices_per_node=4,
)

SMALL = Request(
    global_batch=16,
    micro_batches=(4, 8, 16),
    tp=(1, 2),
    zero=(0, 1),
    recompute=("none", "selective"),
)


def bert(num_devices: int = 8, request: Request = SMALL) -> Base:
    return base_problem(
        architecture("bert-large"),
        num_devices,
        4,
        request,
        execution=UNFUSED,
        link_latency_ns=1000.0,
        network_latency_ns=3000.0,
    )


def costs_of(problem: Problem) -> dict[Key, LayerCost]:
    return {
        (kind.name, cost.key): cost
        for kind in problem.graph.kinds
        for cost in kind.costs
    }


def made_up(problem: Problem, scale: int = 1) -> dict[Key, PassTimes]:
    """Return times that differ from entry to entry, in odd ps."""
    return {
        key: (
            scale * (1_000_003 * cost.samples // cost.tp + 7 * i),
            scale * (2_000_001 * cost.samples // cost.tp + 11 * i),
            scale * (300_007 * cost.samples // cost.tp + 13 * i),
        )
        for i, (key, cost) in enumerate(costs_of(problem).items())
    }


def claimed_ps(problem: Problem) -> int:
    output = get_solver("dp")().solve(problem, SolveOptions())
    assert output.claimed_quanta is not None
    return output.claimed_quanta * problem.quantum_ps


# Times


def test_costs_have_the_times_that_are_given() -> None:
    base = bert().problem
    times = made_up(base)
    problem = with_times(base, times, CHIP)
    assert problem.quantum_ps == 1
    for key, cost in costs_of(problem).items():
        forward_ps, backward_ps, extra_ps = times[key]
        assert quantise(cost.forward_ns, 1) == forward_ps
        assert quantise(cost.backward_ns, 1) == backward_ps
        assert [quantise(x.extra_ns, 1) for x in cost.activations] == [
            extra_ps if x.recompute == "selective" else 0 for x in cost.activations
        ]
        assert cost.weight_backward_ns is None


@given(st.integers(0, MAX_TERM // 2))
def test_whole_picoseconds_stay_whole(time_ps: int) -> None:
    assert quantise(time_ps / 1000, 1) == time_ps


def test_a_step_takes_the_times_of_its_layers() -> None:
    """On one device: as many micro-batches as it runs, of every layer.

    Doubling all times adds them once more; optimizer and memory stay.
    """
    request = Request(
        global_batch=16, micro_batches=(16,), tp=(1,), recompute=("none",)
    )
    chip = replace(CHIP, hbm_bytes=2**40)
    base = bert(1, request).problem
    once, twice = (made_up(base, scale) for scale in (1, 2))
    problem = with_times(base, once, chip)
    kinds = [layer.kind for layer in base.graph.layers]
    key = (1, 1, 1, 0, False, 16)
    layers_ps = sum(sum(once[kind, key][:2]) for kind in kinds)
    more = claimed_ps(with_times(base, twice, chip)) - claimed_ps(problem)
    assert len(kinds) == 26
    assert more == layers_ps


def test_dp_solves_bert_large_on_eight_devices() -> None:
    base = bert().problem
    times = made_up(base)
    fine = claimed_ps(with_times(base, times, CHIP))
    coarse = claimed_ps(with_times(base, times, CHIP, quantum_ps=1000))
    assert coarse % 1000 == 0
    # What a nanosecond loses of a step; a picosecond loses less.
    assert abs(fine - coarse) < 1e-4 * fine
    tens = claimed_ps(with_times(base, times, CHIP, quantum_ps=10))
    assert abs(fine - tens) < 1e-6 * fine


def test_slower_layers_never_make_a_faster_step() -> None:
    base = bert().problem
    times = made_up(base)
    slower = {key: (a + 1, b + 1, c + 1) for key, (a, b, c) in times.items()}
    before, after = (
        claimed_ps(with_times(base, x, CHIP, quantum_ps=1)) for x in (times, slower)
    )
    assert before < after


def test_a_missing_time_is_a_mistake() -> None:
    base = bert().problem
    times: Mapping[Key, PassTimes] = dict(list(made_up(base).items())[1:])
    with pytest.raises(KeyError):
        with_times(base, times, CHIP)


def test_times_out_of_range_are_refused() -> None:
    base = bert().problem
    times = dict.fromkeys(costs_of(base), (10**26, 0, 0))
    with pytest.raises(
        InvalidProblemError,
        match=r"bert-large-acceleratorx8: forward_ns: expected .* 1e21, got "
        r".*; choose a faster architecture",
    ):
        with_times(base, times, CHIP)


# All but times


def test_all_but_times_is_that_of_any_machine() -> None:
    """Memory, weights and collectives, as on a machine of the same shape."""
    made = bert()
    graph = build_graph(
        architecture("bert-large"), machine("h100"), made.choices, UNFUSED
    )
    for kind, other in zip(made.problem.graph.kinds, graph.kinds, strict=True):
        assert kind.name == other.name
        for cost, priced in zip(kind.costs, other.costs, strict=True):
            bare = replace(
                priced,
                forward_ns=0.0,
                backward_ns=0.0,
                forward_host_ns=0.0,
                backward_host_ns=0.0,
                activations=tuple(
                    replace(x, extra_ns=0.0, extra_host_ns=0.0)
                    for x in priced.activations
                ),
            )
            assert cost == bare
    assert made.problem.graph.edges == graph.edges
    assert made.problem.graph.layers == graph.layers


def test_the_cluster_is_as_the_architecture_says() -> None:
    """No calibration: links at their rates, latencies as given."""
    base = bert().problem
    cluster = with_times(base, made_up(base), CHIP).cluster
    assert cluster.num_devices == 8
    device, topology = cluster.device, cluster.topology
    assert device.memory_bytes == CHIP.hbm_bytes
    assert device.hbm_bytes_per_s == CHIP.hbm_bytes_per_s
    assert device.peak_flops["bf16"] == 2 * 8 * 128 * 128 * 1.05e9
    assert isinstance(topology, Hierarchy)
    node, network = topology.levels
    assert (node.fan_out, network.fan_out) == (4, 2)
    assert node.bandwidth_bytes_per_s == 5e10
    assert network.bandwidth_bytes_per_s == 2.5e10
    assert (node.latency_ns, network.latency_ns) == (1000, 3000)
    assert (node.launch_ns, network.launch_ns) == (0, 0)
    assert node.group_fractions == network.group_fractions == ()


def test_the_problem_is_the_same_everywhere() -> None:
    base = bert().problem
    assert base.source.startswith("model: Devlin")
    assert SOURCE in base.source
    problem = with_times(base, made_up(base), CHIP)
    assert problem_hash(problem) == (
        "cb34daf90a87b193a731c81f53aeb35a86d83c0a52b62c795436863e0fcdc2df"
    )


def test_degrees_are_those_of_nodes_of_that_size() -> None:
    request = Request(global_batch=64)
    base = base_problem(architecture("gpt3-350m"), 64, 8, request, execution=UNFUSED)
    assert {degrees.tp for degrees in base.choices.degrees} == {1, 2, 4, 8}
    lone = base_problem(architecture("gpt3-350m"), 64, 1, request, execution=UNFUSED)
    assert {degrees.tp for degrees in lone.choices.degrees} == {1}


# Bad input


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            Request(schedule="zb-h1"),
            "schedule: expected one that computes the backward pass of a "
            "layer at once, got 'zb-h1'; choose '1f1b'",
        ),
        (
            Request(dtype="fp8"),
            "dtype: expected one of bf16, fp16, which accelerator "
            "multiplies, got 'fp8'; choose another",
        ),
        (Request(tp=(3,)), "tp: expected a divisor"),
    ],
)
def test_requests_that_are_refused(request_: Request, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        bert(request=request_)


def test_models_out_of_range_are_refused() -> None:
    model = architecture("bert-large")
    tower = replace(model.towers[0], vocabulary=2**60)
    with pytest.raises(InvalidProblemError, match=r"bert-large: .*; check the shape"):
        base_problem(replace(model, towers=(tower,)), 8, 4, SMALL, execution=UNFUSED)
