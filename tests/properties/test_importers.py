"""Importers: whatever they import can be scored and solved."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from nest.audits.nest_artifact.importer import import_nest_artifact
from nest.audits.piper.importer import import_piper
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import strategies
from nest.errors import InvalidProblemError
from nest.ir import Plan, Problem, Stage, Strategy
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import get_solver
from nest.units import MAX_TERM, MAX_TOTAL
from tests.documents import Document, write_document
from tests.properties.profiles import examples

#: Sizes and rates over many orders of magnitude.
SIZES = st.sampled_from((0, 64, 10**6, 10**9, 3 * 10**11, MAX_TERM))
RATES = st.sampled_from((1, 1e3, 1e6, 1e9, 2.5e10, 4e12, 1e21))
TIMES = st.sampled_from((0, 1e-6, 3.7e-3, 0.25, 41.0, 1e6))
LATENCIES = st.sampled_from((0, 1e-6, 1e-3, 2.0, 1e6))
MEMORY = st.sampled_from((10**6, 8 * 10**10, MAX_TERM))
#: Not so large that sums over layers and micro-batches pass 2**62 bytes.
MEMORY_SIZES = st.sampled_from((0, 1000, 10**9, 3 * 10**11))


@st.composite
def nest_files(draw: Any) -> Document:
    """Draw a chain at one or two widths on up to 4,096 devices."""
    levels = draw(st.integers(1, 4))
    fan_outs = [draw(st.sampled_from((1, 4, 8))) for _ in range(levels)]
    layers = range(draw(st.integers(1, 5)))
    widths = draw(st.sampled_from(("1", "2", "12")))
    return {
        "nodes": {
            width: [
                {
                    "id": layer,
                    "parameterSize": draw(SIZES),
                    "activationSize": draw(SIZES),
                    "optimalLatencyFw": draw(TIMES),
                    "optimalLatencyBw": draw(TIMES),
                }
                for layer in layers
            ]
            for width in widths
        },
        "edges": {
            width: [
                {
                    "sourceId": layer,
                    "destId": layer + 1,
                    "communicationCost": draw(SIZES),
                }
                for layer in layers[:-1]
            ]
            for width in widths
        },
        "maxDevices": math.prod(fan_outs),
        "maxMemoryPerDevice": draw(MEMORY),
        "bws": [draw(RATES) for _ in range(levels)],
        "latency_per_level": [draw(LATENCIES) for _ in range(levels)],
        "devices_per_level": fan_outs,
        "mbsInBatch": draw(st.sampled_from((1, 7, 4096, 10**6))),
        "ep_degree": 1,
        "cp_degree": 1,
        "activationRecomputation": draw(st.booleans()),
        "optimizerAlgorithm": draw(st.sampled_from(("SGD", "Adam"))),
    }


@st.composite
def piper_files(draw: Any) -> Document:
    """Draw a chain with one or two alternatives on up to 40 devices."""
    layers = range(draw(st.integers(1, 4)))

    def alternatives(layer: int) -> list[Document]:
        plain = {
            "id": "vanilla",
            "timePerSample": draw(TIMES),
            "parameterSize": draw(SIZES),
            "memoryUsageA": draw(MEMORY_SIZES),
            "memoryUsageB": draw(MEMORY_SIZES),
            "syncTimeFw": {str(i): draw(SIZES) for i in layers[:layer][-1:]},
            "syncTimeBw": {str(i): draw(SIZES) for i in layers[layer + 1 :][:1]},
        }
        if draw(st.booleans()):
            return [plain]
        slower = {
            "id": "activation recomp",
            "timePerSample": plain["timePerSample"] + draw(TIMES),
            "memoryUsageA": draw(MEMORY_SIZES),
        }
        return [plain, plain | slower]

    return {
        "maxDevices": draw(st.sampled_from((1, 5, 40))),
        "maxMemoryPerDevice": draw(MEMORY),
        "bandwidth": draw(RATES),
        "mbsInBatch": draw(st.sampled_from((1, 12, 4096, 10**9))),
        "nodes": [
            {
                "id": layer,
                "TMPCs": {
                    degree: alternatives(layer)
                    for degree in draw(st.sampled_from(("1", "12")))
                },
            }
            for layer in layers
        ],
        "edges": [
            {"sourceId": layer, "destId": layer + 1, "communicationCost": draw(SIZES)}
            for layer in layers[:-1]
        ],
    }


def imported(read: Any, document: Document) -> Problem | None:
    """Import a file, or have it refused for its times."""
    with TemporaryDirectory() as folder:
        path = write_document(Path(folder), document)
        try:
            problem: Problem = read(path)
        except InvalidProblemError as error:
            if "expected step times below" not in str(error):
                raise
            return None
    return problem


def extremes(problem: Problem, strategy: Strategy) -> list[Plan]:
    """One stage or one per layer, on as few and as many replicas as go."""
    layers = [problem.graph.layers[i].id for i in problem.graph.topological_order()]
    whole = (Stage(layers=tuple(layers), devices=strategy.devices, strategy=strategy),)
    apart = tuple(
        Stage(layers=(layer,), devices=strategy.devices, strategy=strategy)
        for layer in layers
    )
    most = problem.cluster.num_devices
    if problem.job.replicas is not None:
        (most,) = problem.job.replicas
    return [
        Plan(replicas=replicas, micro_batch=1, stages=stages)
        for stages in (whole, apart)
        for used in [len(stages) * strategy.devices]
        for replicas in {1, min(most, problem.cluster.num_devices // used)}
        if used <= problem.cluster.num_devices
        and len(stages) * strategy.dp <= problem.job.global_batch
    ]


def check_solvable(problem: Problem | None) -> None:
    if problem is None:
        event("refused")
        return
    model = CostModel(problem)
    layers = range(len(problem.graph.layers))
    for strategy in strategies(problem, 1):
        if any(model.available(layer, strategy, 1) for layer in layers):
            continue
        for plan in extremes(problem, strategy):
            assert score(problem, plan, model).step_quanta <= MAX_TOTAL
    output = get_solver("dp")().solve(problem, SolveOptions())
    event(str(output.status))
    assert output.status in (Status.OPTIMAL, Status.INFEASIBLE)
    if output.plan is not None:
        verdict = score(problem, output.plan, model)
        assert verdict.feasible
        assert verdict.step_quanta == output.claimed_quanta


@examples(300)
@given(nest_files())
def test_what_nests_importer_takes_can_be_solved(document: Document) -> None:
    check_solvable(imported(import_nest_artifact, document))


@examples(100)
@given(piper_files())
def test_what_pipers_importer_takes_can_be_solved(document: Document) -> None:
    check_solvable(imported(import_piper, document))
