"""The importer of NEST's ``dp_input`` files: mapping, quantum, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nest.audits.nest_artifact.importer import import_nest_artifact
from nest.cost.magnitude import choose_quantum_ps, longest
from nest.cost.score import score
from nest.errors import InvalidProblemError
from nest.ir import Activations, LayerCost, Optimizer, decode_problem, encode
from nest.search.solver import DpSolver
from nest.solvers.base import SolveOptions, Status
from nest.units import quantise
from tests.builders import make_cost, make_levels, make_problem
from tests.documents import Document, change, check_refused, drop, write_document


def node(layer: int, scale: int = 1, **changes: Any) -> Document:
    return {
        "id": layer,
        "parameterSize": 100 * scale,
        "activationSize": 1000 * scale,
        "optimalLatencyFw": 0.25 * scale,
        "optimalLatencyBw": 0.5 * scale,
        "energy": 1.0,
        "isTensorParallelized": False,
        **changes,
    }


def edge(source: int, target: int, size: int = 64) -> Document:
    return {"sourceId": source, "destId": target, "communicationCost": size}


@pytest.fixture
def document() -> Document:
    return chain_document()


def chain_document() -> Document:
    """Three layers in a chain, the first one not first in the file."""
    return {
        "nodes": {
            "1": [node(0, 2), node(-1), node(1, 2)],
            "2": [node(0), node(-1), node(1)],
        },
        "edges": {"1": [edge(-1, 0), edge(0, 1)], "2": [edge(-1, 0), edge(0, 1, 72)]},
        "maxDevices": 8,
        "maxMemoryPerDevice": 5000,
        "bandwidth": 1,
        "bws": [900, 100.0],
        "latency_per_level": [0.001, 0.002],
        "devices_per_level": [4, 2],
        "frequency": 1.0,
        "mbsInBatch": 16.0,
        "sp_enabled": False,
        "ep_degree": 2,
        "cp_degree": 4,
        "activationRecomputation": True,
        "optimizerAlgorithm": "Adam",
        "baselines": {"Manual": {"p": 1}},
    }


def test_layers(tmp_path: Path, document: Document) -> None:
    graph = import_nest_artifact(write_document(tmp_path, document)).graph
    assert [layer.id for layer in graph.layers] == [-1, 0, 1]
    assert [layer.kind for layer in graph.layers] == ["layer--1", "layer-0", "layer-0"]
    costs = {kind.name: kind.costs for kind in graph.kinds}
    kept = (Activations(recompute="full", kept_bytes=2000),)
    assert costs["layer-0"][0] == LayerCost(
        tp=1,
        cp=4,
        ep=2,
        samples=1,
        forward_ns=0.5e9,
        backward_ns=1e9,
        weight_bytes=200,
        activations=kept,
    )
    assert [cost.key for cost in costs["layer--1"]] == [
        (1, 4, 2, 0, False, 1),
        (2, 4, 2, 0, False, 1),
    ]


def test_edges(tmp_path: Path, document: Document) -> None:
    first, second = import_nest_artifact(write_document(tmp_path, document)).graph.edges
    assert (first.source, first.target) == (-1, 0)
    assert first.bytes_per_sample == 64
    assert first.bytes_per_sample_by_tp == {}
    assert second.bytes_per_sample == 64
    assert second.bytes_per_sample_by_tp == {2: 72}


def test_cluster(tmp_path: Path, document: Document) -> None:
    cluster = import_nest_artifact(write_document(tmp_path, document)).cluster
    assert cluster.num_devices == 8
    assert cluster.device.memory_bytes == 5000
    levels = cluster.topology.levels
    assert [level.fan_out for level in levels] == [4, 2]
    assert [level.bandwidth_bytes_per_s for level in levels] == [900, 100]
    assert [level.latency_ns for level in levels] == [1e6, 2e6]


def test_job(tmp_path: Path, document: Document) -> None:
    problem = import_nest_artifact(write_document(tmp_path, document))
    job = problem.job
    assert (problem.name, problem.preset) == ("chain", "nest-artifact")
    assert problem.time_unit == "instance unit"
    assert job.global_batch == 32
    assert job.micro_batches == job.data_parallel == (2,)
    assert job.uneven_batches
    assert (job.zero, job.recompute) == ((0,), ("full",))
    assert job.schedule == "1f1b"
    assert job.optimizer == Optimizer(
        name="adam", weight_bytes=2, gradient_bytes=2, state_bytes=12
    )


def test_sgd_without_recompute(tmp_path: Path, document: Document) -> None:
    document["optimizerAlgorithm"] = "SGD"
    document["activationRecomputation"] = False
    document["mbsInBatch"] = 10.9
    problem = import_nest_artifact(write_document(tmp_path, document))
    assert problem.job.optimizer.state_bytes == 0
    assert problem.job.recompute == ("none",)
    assert problem.job.global_batch == 2 * 10
    cost = problem.graph.kinds[0].costs[0]
    assert [kept.recompute for kept in cost.activations] == ["none"]


def test_unused_fields_may_be_missing(tmp_path: Path, document: Document) -> None:
    problem = import_nest_artifact(write_document(tmp_path, document))
    for field in ("bandwidth", "frequency", "sp_enabled", "baselines"):
        del document[field]
    for nodes in document["nodes"].values():
        for layer in nodes:
            del layer["energy"], layer["isTensorParallelized"]
    assert import_nest_artifact(write_document(tmp_path, document)) == problem


def test_layer_missing_at_one_width(tmp_path: Path, document: Document) -> None:
    document["nodes"]["2"] = document["nodes"]["2"][:2]
    document["edges"]["2"] = document["edges"]["2"][:1]
    graph = import_nest_artifact(write_document(tmp_path, document)).graph
    costs = {kind.name: kind.costs for kind in graph.kinds}
    assert [cost.tp for cost in costs["layer-0"]] == [1, 2]
    assert [cost.tp for cost in costs["layer-1"]] == [1]
    assert graph.edges[1].bytes_per_sample_by_tp == {}


def test_every_shared_instance(shared_data: Path) -> None:
    paths = sorted(shared_data.glob("nest-artifact/*/*.json"))
    assert len(paths) >= 121
    for path in paths:
        problem = import_nest_artifact(path)
        assert decode_problem(encode(problem)) == problem, path.name
        raw = json.loads(path.read_text())
        for width, nodes in raw["nodes"].items():
            kinds = {kind.name: kind for kind in problem.graph.kinds}
            found = {layer.id: layer.kind for layer in problem.graph.layers}
            for layer in nodes:
                cost = next(
                    cost
                    for cost in kinds[found[layer["id"]]].costs
                    if cost.tp == int(width)
                )
                assert cost.forward_ns == layer["optimalLatencyFw"] * 1e9
                assert cost.backward_ns == layer["optimalLatencyBw"] * 1e9
                assert cost.weight_bytes == layer["parameterSize"]
                assert cost.activations[0].kept_bytes == (layer["activationSize"])


def test_quantum_of_shared_instances(shared_data: Path) -> None:
    """One pass over all layers loses far less than 1e-7 to rounding."""
    for path in sorted(shared_data.glob("nest-artifact/*/*.json")):
        problem = import_nest_artifact(path)
        costs = {kind.name: kind.costs[0] for kind in problem.graph.kinds}
        times_ns = [
            time
            for layer in problem.graph.layers
            for time in (costs[layer.kind].forward_ns, costs[layer.kind].backward_ns)
        ]
        quantum_ps = problem.quantum_ps
        rounded = sum(quantise(time, quantum_ps) for time in times_ns)
        exact = sum(times_ns) * 1000 / quantum_ps
        assert abs(rounded / exact - 1) < 1e-9, path.name
        steps = problem.job.global_batch + len(times_ns)
        assert 3 * rounded * steps < 2**60, path.name


@pytest.mark.parametrize(
    ("micro_batches", "latency_s", "fine_ps", "expected_ps"),
    [
        # 2**53 ps are 9007 s, and a step of one micro-batch 22 latencies.
        (1, 409.0, math.inf, 1),
        (1, 410.0, math.inf, 10),
        (1, 4100.0, math.inf, 100),
        # finer if asked for, as far as the sync of six is below 2**53 quanta
        (1, 4100.0, 67.0, 10),
        (1, 4100.0, 6.7, 10),
        # and steps, of 4e6 latencies here, below 2**60 quanta
        (10**6, 1.0, math.inf, 1000),
        (10**6, 1.0, 6.7, 10),
    ],
)
def test_choose_quantum(
    micro_batches: int, latency_s: float, fine_ps: float, expected_ps: int
) -> None:
    """Two layers without weights, and a message of no bytes.

    ``M + V + 1`` slots of four latencies each: a round trip there and back;
    then the sync of both layers, with ``⌊lg 1⌋ + 1 + 2`` latencies each.
    """
    problem = make_problem(
        {"a": make_cost(), "b": make_cost()},
        edges=(("a", "b", 0),),
        preset="nest-artifact",
        devices=1,
        global_batch=micro_batches,
        topology=make_levels((1, latency_s * 1e9, 1e9)),
    )
    step_ns, term_ns = longest(problem)
    slots = micro_batches + 3
    assert step_ns == pytest.approx((4 * slots + 6) * latency_s * 1e9)
    assert term_ns == pytest.approx(6 * latency_s * 1e9)
    assert choose_quantum_ps(problem, fine_ps) == expected_ps


@pytest.mark.parametrize("global_batch", [4_600_000, 2**50])
def test_no_quantum_is_coarse_enough(global_batch) -> None:
    """Steps of about 2e12 s per sample, all of them one after the other."""
    problem = make_problem(
        {"a": make_cost(1e21)}, global_batch=global_batch, quantum_ps=1
    )
    with pytest.raises(
        ValueError, match=r"expected step times below 9e\+18 s, got up to .* s; correct"
    ):
        choose_quantum_ps(problem)


@pytest.mark.parametrize("devices", [16, 128, 1024])
def test_a_slow_top_level_can_be_solved(
    tmp_path: Path, document: Document, devices: int
) -> None:
    """Its quantum allows for the gradient sync across that level."""
    document |= {
        "maxDevices": devices,
        "devices_per_level": [4, devices // 4],
        "bws": [1e9, 1e3],
        "maxMemoryPerDevice": 1e11,
    }
    for nodes in document["nodes"].values():
        for layer in nodes:
            layer["parameterSize"] = 10**9
    problem = import_nest_artifact(write_document(tmp_path, document))
    output = DpSolver().solve(problem, SolveOptions())
    assert output.status is Status.OPTIMAL
    assert score(problem, output.plan).step_quanta == output.claimed_quanta


BAD_FILES = {
    "unknown key": (
        change("extra", to=1),
        r"\$: expected a known key, got 'extra'; remove",
    ),
    "unknown key of a node": (
        change("nodes", "1", 0, "extra", to=1),
        r"\$\.nodes\[\.\.\.\]\[0\]: expected a known key, got 'extra'",
    ),
    "missing key": (drop("bws"), r"\$: expected key 'bws', got none; add it"),
    "missing key of a node": (
        drop("nodes", "2", 1, "parameterSize"),
        r"\$\.nodes\[\.\.\.\]\[1\]: expected key 'parameterSize', got none",
    ),
    "text for a number": (
        change("maxDevices", to="8"),
        r"\$\.maxDevices: expected `int`, got `str`; correct",
    ),
    "text for a width": (
        change("nodes", "two", to=[]),
        r"expected `int`, got `str`; correct",
    ),
    "no devices": (
        change("maxDevices", to=0),
        r"\$: maxDevices: expected a number from 1 to .*, got 0; correct",
    ),
    "no micro-batch": (
        change("mbsInBatch", to=0.5),
        r"mbsInBatch: expected a number from 1 to .*, got 0\.5; correct",
    ),
    "negative size": (
        change("nodes", "1", 0, "parameterSize", to=-1),
        r"parameterSize of layer 0: expected .* 0 to .*, got -1; correct",
    ),
    "negative activation": (
        change("nodes", "1", 0, "activationSize", to=-1),
        r"activationSize of layer 0: expected .* 0 to .*, got -1; correct",
    ),
    "huge size": (
        change("nodes", "1", 0, "parameterSize", to=2**60),
        r"parameterSize of layer 0: expected .* to 9\.0072e\+15, got",
    ),
    "negative time": (
        change("nodes", "1", 2, "optimalLatencyBw", to=-0.5),
        r"optimalLatencyBw of layer 1: expected .* 0 to .*, got -0\.5",
    ),
    "negative edge": (
        change("edges", "1", 0, "communicationCost", to=-3),
        r"communicationCost of edge -1 to 0: expected .*, got -3; correct",
    ),
    "negative memory": (
        change("maxMemoryPerDevice", to=-1),
        r"maxMemoryPerDevice: expected .*, got -1\.0; correct",
    ),
    "dead link": (
        change("bws", 1, to=0),
        r"bws\[1\]: expected a number from 1 to .*, got 0\.0; correct",
    ),
    "negative latency": (
        change("latency_per_level", 0, to=-1),
        r"latency_per_level\[0\]: expected .*, got -1\.0; correct",
    ),
    "no fan-out": (
        change("devices_per_level", 0, to=0),
        r"devices_per_level\[0\]: expected .*, got 0; correct",
    ),
    "wrong product": (
        change("devices_per_level", to=[4, 4]),
        r"devices_per_level: expected factors of maxDevices = 8, got "
        r"\[4, 4\]; correct",
    ),
    "too few latencies": (
        change("latency_per_level", to=[0.1]),
        r"latency_per_level: expected one value for each of the 2 levels "
        r".*, got 1; give",
    ),
    "no level": (
        lambda document: document.update(
            bws=[], latency_per_level=[], devices_per_level=[], maxDevices=1
        ),
        r"devices_per_level: expected factors of maxDevices = 1, got \[\]",
    ),
    "unknown optimizer": (
        change("optimizerAlgorithm", to="Lion"),
        r"optimizerAlgorithm: expected one of SGD, Adam, got 'Lion'; correct",
    ),
    "no nodes": (
        change("nodes", to={}),
        r"nodes: expected at least one tensor width, got none; add",
    ),
    "no nodes at one width": (
        change("nodes", "2", to=[]),
        r"nodes\.2: expected at least one layer, got none; remove",
    ),
    "width zero": (
        lambda document: document.update(nodes={"0": [node(0)]}, edges={"0": []}),
        r"nodes: tensor width: expected a number from 1 to .*, got 0",
    ),
    "other widths": (
        drop("edges", "2"),
        r"edges: expected the tensor widths of nodes \(1, 2\), got 1; give",
    ),
    "duplicate id": (
        change("nodes", "1", 2, "id", to=0),
        r"nodes\.1: expected distinct ids, got 0 twice; remove one",
    ),
    "edge to nowhere": (
        change("edges", "1", 1, "destId", to=7),
        r"edges\.1: expected ids of nodes\.1, got 7; add the node or",
    ),
    "duplicate edge": (
        change("edges", "1", 1, to=edge(-1, 0)),
        r"edges\.1: expected one edge from -1 to 0, got two; merge them",
    ),
    "edge at some widths": (
        drop("edges", "2", 1),
        r"edges\.2: expected the edge from 0 to 1 as at other widths, got "
        r"none; add it",
    ),
    "cycle": (
        lambda document: document.update(
            edges={width: [edge(-1, 0), edge(0, 1), edge(1, 0)] for width in ("1", "2")}
        ),
        r"\$: edges: expected no cycle, got 0 -> 1 -> 0; remove one of",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file(tmp_path: Path, document: Document, name: str) -> None:
    spoil, text = BAD_FILES[name]
    check_refused(import_nest_artifact, tmp_path, document, spoil, text)


def test_truncated_file(tmp_path: Path, document: Document) -> None:
    path = write_document(tmp_path, document)
    path.write_text(path.read_text()[:-40])
    with pytest.raises(
        InvalidProblemError,
        match=r"chain\.json: line 1: expected .* in JSON, got malformed text "
        r".*; check that the file is complete",
    ):
        import_nest_artifact(path)
