"""What would make an infeasible problem feasible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from nest.analysis import feasible
from nest.analysis.feasible import least_memory, remedies
from nest.analysis.fit import Trial
from nest.cost.model import CostModel
from nest.ir import Activations, Device, DeviceRange, GraphTopology, Problem
from nest.solvers.base import Status
from nest.units import GIB
from tests.builders import make_cost, make_levels, make_problem
from tests.graphs import make_graph
from tests.inside import PLACES, run_inside


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in PLACES:
        monkeypatch.setattr(place, run_inside)


def line(count: int, closed: bool = False) -> GraphTopology:
    """Devices each joined to the next; if closed, the last to the first."""
    links = [(f"d{i}", f"d{i + 1}", 0.0, 1e9) for i in range(count - 1)]
    if closed:
        links.append((f"d{count - 1}", "d0", 0.0, 1e9))
    return make_graph([f"d{i}" for i in range(count)], links, forward=True)


def chain(memory_bytes: int, devices: int = 1, **job: Any) -> Problem:
    """Four layers that keep 1 GiB per sample each.

    With one sample per step nothing but stages shares the memory: one, two or
    four devices hold 4, 2 or 1 GiB each.
    """
    cost = make_cost(10, 20, weight_bytes=0, kept_bytes=GIB)
    return make_problem(
        dict.fromkeys("abcd", cost),
        edges=(("a", "b", 0), ("b", "c", 0), ("c", "d", 0)),
        devices=devices,
        memory_bytes=memory_bytes,
        **{"topology": make_levels((2, 0.0, 1e15), (2, 0.0, 1e15))} | job,
    )


def test_memory_is_short_to_the_byte_and_devices_would_do() -> None:
    """Two stages hold 2 GiB each, four 1 GiB: that fits 1.5 GiB."""
    found = remedies(chain(3 * GIB // 2), time_limit_s=60)
    assert found.memory.memory_bytes == 4 * GIB
    assert found.memory.proven
    assert found.num_devices == 4
    assert found.refuted_devices == 2
    assert found.lines == [
        "why: memory is short by 2.50 GiB per device at best; the fullest "
        "device then holds activations 4.00 GiB",
        "would do: 4.00 GiB per device instead of 1.50 GiB",
        "would do: 4 such devices (2 would not)",
    ]
    assert repr(found).startswith("<Remedies of problem: why: memory is sh")
    assert found.to_json()["refuted_memory_bytes"] == 4 * GIB - 1


@pytest.mark.parametrize("times", [1, 2, 4])
def test_whether_a_plan_fits_is_not_up_to_the_network(times: int) -> None:
    """So many devices would do on a graph, too: one line and one ring."""
    expected = Status.OPTIMAL if times == 4 else Status.INFEASIBLE
    for closed in (False, True):
        graph = line(4, closed)
        problem = chain(3 * GIB // 2, times, topology=graph)
        assert run_inside(problem, "brute").status is expected


def test_on_a_graph_devices_would_do_however_they_are_joined() -> None:
    problem = chain(3 * GIB // 2, topology=line(2))
    found = remedies(problem, time_limit_s=60)
    assert (found.num_devices, found.refuted_devices) == (4, 2)
    assert found.lines[-1] == (
        "would do: 4 such devices, however they are joined (2 would not)"
    )


def test_without_time_nothing_is_claimed() -> None:
    found = least_memory(chain(GIB), GIB, time_limit_s=0)
    assert found.plan is None
    assert not found.impossible
    assert remedies(chain(GIB), time_limit_s=0).lines == []


def test_no_memory_makes_a_batch_divide() -> None:
    """Two samples a step on one replica, of micro-batches of four."""
    problem = chain(9 * GIB, micro_batches=(4,), global_batch=2)
    found = remedies(problem)
    assert found.memory.impossible
    assert found.lines[0] == (
        "why: job: expected replicas * micro_batch to divide the global "
        "batch 2, got none that does with micro-batches 4; change either, "
        "for example to a batch of 4"
    )
    assert found.num_devices is None
    assert found.refuted_devices == 64


def test_of_several_types_it_says_that_memory_is_short() -> None:
    whole = chain(GIB, 2)
    other = DeviceRange(first=1, count=1, device=Device(name="other", memory_bytes=GIB))
    cluster = structs.replace(whole.cluster, others=(other,))
    found = remedies(structs.replace(whole, cluster=cluster))
    assert found.lines == ["why: memory is short: with more on every device plans fit"]


def test_a_wrong_claim_is_named() -> None:
    found = remedies(chain(9 * GIB), time_limit_s=60)
    assert found.lines == ["a plan that fits was found: the claim is wrong"]


def test_the_least_memory_may_be_where_settings_are_not_lean() -> None:
    """Without recomputation 4 GiB are kept, with it 1 GiB four times.

    And what is computed again takes 9 GiB more.
    """
    both = (
        Activations(kept_bytes=GIB),
        Activations(recompute="full", kept_bytes=GIB, working_bytes=9 * GIB),
    )
    cost = make_cost(10, 20, weight_bytes=0, activations=both)
    problem = make_problem(
        dict.fromkeys("abcd", cost),
        edges=(("a", "b", 0), ("b", "c", 0), ("c", "d", 0)),
        devices=1,
        recompute=("none", "full"),
        micro_batches=(1, 2),
        global_batch=2,
    )
    found = least_memory(problem, GIB)
    assert found.memory_bytes == 4 * GIB
    assert found.proven


@pytest.mark.parametrize(
    ("virtual", "chunks", "size"), [((1,), 1, 3), ((2,), 2, 4), ((1, 2), 1, 3)]
)
def test_the_least_memory_is_of_plans_with_as_many_chunks(
    virtual: tuple[int, ...], chunks: int, size: int
) -> None:
    """Case 28: what needs least without interleaving is no answer with it.

    Stages of one and three layers hold 2 and 3 GiB: two micro-batches are in
    flight on the first. Of two chunks each the first device has all four
    passes of its layers in flight, a GiB each.
    """
    problem = chain(
        *(GIB, 2),
        pipeline_parallel=(2,),
        replicas=(1,),
        global_batch=2,
        virtual_stages=virtual,
    )
    found = least_memory(problem, GIB)
    assert found.plan is not None
    assert found.plan.virtual_stages == chunks
    assert found.memory_bytes == size * GIB
    lines = remedies(problem).lines
    assert not any("the claim is wrong" in line for line in lines)


def test_larger_clusters_get_a_quantum_that_suits_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where 64 times the devices take more quanta than 64 bits hold."""
    asked: list[int] = []

    def fits(_: object, problem: Problem) -> str:
        CostModel(problem)
        asked.append(problem.quantum_ps)
        return "no"

    monkeypatch.setattr(feasible._FitSearch, "fits", fits)
    slow = make_levels((2, 0.0, 1e15), (2, 4e14, 1e15))
    problem = chain(GIB, global_batch=16, topology=slow)
    remedies(problem)
    *smaller, largest = asked
    assert min(smaller) == problem.quantum_ps
    assert largest > problem.quantum_ps


@pytest.fixture
def _asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be searched for the least memory: all is asked of dp."""
    monkeypatch.setattr("nest.search.frontier.least.covers", lambda problem: False)


@pytest.mark.usefixtures("_asked")
def test_asked_of_a_solver_it_is_as_exact() -> None:
    found = remedies(chain(3 * GIB // 2), time_limit_s=60)
    assert found.memory.memory_bytes == 4 * GIB
    assert found.memory.proven
    assert (found.num_devices, found.refuted_devices) == (4, 2)


@pytest.mark.usefixtures("_asked")
def test_an_open_answer_refutes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first plan nothing is known any more, and bounds are said."""
    asked: list[int] = []
    real = feasible._FitSearch.any_plan

    def ask(search: Any, problem: Problem) -> Trial | None:
        asked.append(problem.cluster.memory_bytes())
        trial = real(search, problem)
        if len(asked) == 1 or trial is None:
            return trial
        return replace(trial, answer="open")

    monkeypatch.setattr(feasible._FitSearch, "any_plan", ask)
    problem = chain(GIB)
    found = least_memory(problem, GIB)
    assert found.memory_bytes == 4 * GIB
    assert found.refuted_bytes == GIB
    assert not found.proven
    assert len(asked) == 2
    assert feasible.Remedies(problem, found, None, 1).lines == [
        "why: memory is short by at most 3.00 GiB per device; the fullest "
        "device then holds activations 4.00 GiB",
        "would do: 4.00 GiB per device instead of 1.00 GiB",
    ]
    found = replace(found, refuted_bytes=2 * GIB)
    line, _ = feasible.Remedies(problem, found, None, 1).lines
    between = "at least 1.00 GiB and at most 3.00 GiB per device; the"
    assert line.startswith(f"why: memory is short by {between}")


def test_a_strategy_per_layer_may_need_less() -> None:
    """Kept 4 + 4 GiB, computed again 1 + 1 and 9 for a; per layer 4 + 1."""
    kept = Activations(kept_bytes=4 * GIB)
    costs = {
        name: make_cost(
            *(10, 20),
            weight_bytes=0,
            activations=(
                kept,
                Activations(recompute="full", kept_bytes=GIB, working_bytes=size),
            ),
        )
        for name, size in (("a", 9 * GIB), ("b", 0))
    }
    fields: dict[str, Any] = {
        "edges": (("a", "b", 0),),
        "devices": 1,
        "recompute": ("none", "full"),
    }
    for granularity, size in (("stage", 8), ("layer", 5)):
        problem = make_problem(costs, granularity=granularity, **fields)
        found = least_memory(problem, GIB)
        assert found.memory_bytes == size * GIB
        assert found.proven


def test_a_graph_with_too_many_sets_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    from nest.errors import UnsupportedProblemError

    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedProblemError("too many")

    monkeypatch.setattr("nest.search.frontier.least.closed_sets", refuse)
    assert remedies(chain(GIB)).lines == []
