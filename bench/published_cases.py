"""Published runs, and how they are written down as problems and plans.

``bench/published_plans.json`` has them; ``bench/published_plans.py`` compares
them with what is found for the same problems.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from nest.cost.schedules import schedule_of
from nest.hardware import parse_cluster
from nest.ir.base import LayerId, Struct
from nest.ir.graph import CollectiveCall
from nest.ir.job import FIXED_CHUNKS, Schedule
from nest.ir.plan import Plan, Recompute, Stage, Strategy
from nest.ir.problem import Problem
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from nest.models.operators.base import Dtype
from nest.models.zoo import architecture

ROOT = Path(__file__).resolve().parent.parent

#: Samples per data-parallel rank and pipeline step that are searched.
MAX_SAMPLES = 8


class Published(Struct, frozen=True, kw_only=True):
    """A published run.

    Attributes
    ----------
    name, source
        What it is called here, and where it is described.
    model, cluster
        As on the command line.
    micro_batch
        Samples per data rank and pipeline step.
    nodes_per_chunk
        Graph nodes of every chunk, where they are not spread evenly.
    expert_traffic
        Part of the modeled bytes of the all-to-all of experts that the run sends.
    whole_chunks
        Whether embedding and head count as layers when they are.
    measured_s, measured_how
        Its step time, and what is printed of it: ``step``, or FLOP/s per
        device, from which the source's own formula gives the step. ``None``
        where only the plan is published.
    printed_tflops
        FLOP/s per device as printed, in units of 1e12, where the source does
        not say what it counts: the step follows from what the job counts.
    row_id
        Its row in the shared measurements.
    assumed
        What of the plan is not published.
    """

    name: str
    source: str
    model: str
    cluster: str
    global_batch: int
    sequence_length: int
    micro_batch: int
    tp: int
    pp: int
    dp: int
    virtual_stages: int
    zero: int
    recompute: Recompute
    sequence_parallel: bool
    ep: int = 1
    dtype: Dtype = "bf16"
    schedule: Schedule = "1f1b"
    nodes_per_chunk: tuple[int, ...] | None = None
    whole_chunks: bool = False
    expert_traffic: float = 1.0
    measured_s: float | None = None
    measured_how: str = ""
    printed_tflops: float | None = None
    row_id: str | None = None
    assumed: str = ""


class PublishedFile(
    Struct, frozen=True, tag_field="schema", tag="nest-published-plans/1"
):
    """The published runs."""

    plans: tuple[Published, ...]


CASES = msgspec.json.decode(
    (ROOT / "bench" / "published_plans.json").read_bytes(), type=PublishedFile
).plans


def build(case: Published) -> Problem:
    """Return the problem with all choices that the techniques allow."""
    site, num_devices = parse_cluster(case.cluster)
    model = architecture(case.model)
    sizes = {odd << power for odd in (1, 3) for power in range(8)}
    sizes = {size for size in sizes if size <= 128 and case.global_batch % size == 0}
    choices = choose(
        model,
        site,
        num_devices,
        Request(
            global_batch=case.global_batch,
            sequence_length=case.sequence_length,
            micro_batches=tuple(sorted(sizes | {case.micro_batch * case.dp})),
            layers_per_node=1,
            cp=(1,),
            dtype=case.dtype,
            schedule=case.schedule,
            virtual_stages=(FIXED_CHUNKS[case.schedule],)
            if case.schedule in FIXED_CHUNKS
            else None,
        ),
    )
    choices = replace(
        choices,
        degrees=tuple(
            key
            for key in choices.degrees
            if key.samples <= max(MAX_SAMPLES, case.micro_batch)
        ),
        sequence_parallel=case.sequence_parallel,
    )
    problem = build_problem(model, site, num_devices, choices)
    problem = replace(problem, name=case.name)
    return with_traffic(problem, case.expert_traffic)


def with_traffic(problem: Problem, part: float) -> Problem:
    """Return a problem whose experts exchange a part of the bytes only."""

    def scaled(call: CollectiveCall) -> CollectiveCall:
        if call.axis != "ep":
            return call
        return replace(call, size_bytes=round(part * call.size_bytes))

    if part == 1:
        return problem
    kinds = tuple(
        replace(
            kind,
            costs=tuple(
                replace(cost, collectives=tuple(map(scaled, cost.collectives)))
                for cost in kind.costs
            ),
        )
        for kind in problem.graph.kinds
    )
    return replace(problem, graph=replace(problem.graph, kinds=kinds))


def plan_of(case: Published, problem: Problem, virtual: int) -> Plan:
    """Write the published plan down, with ``virtual`` stages per block.

    Layers are spread evenly, embedding and head go with the first and the last chunk;
    with ``whole_chunks`` they count as layers. The record may say otherwise.
    """
    names = [layer.id for layer in problem.graph.layers]
    chunks = case.pp * virtual
    if case.nodes_per_chunk is not None:
        sizes = list(case.nodes_per_chunk)
    elif case.whole_chunks:
        sizes = [len(names) // chunks] * chunks
    else:
        sizes = [(len(names) - 2) // chunks] * chunks
        sizes[0] += 1
        sizes[-1] += 1
    assert sum(sizes) == len(names), case.name
    strategy = Strategy(
        dp=case.dp, tp=case.tp, ep=case.ep, zero=case.zero, recompute=case.recompute
    )
    return cut(
        sizes, names, strategy, case.micro_batch * case.dp, case.schedule, virtual
    )


def cut(
    sizes: list[int],
    names: list[LayerId],
    strategy: Strategy,
    micro_batch: int,
    schedule: Schedule,
    virtual: int = 2,
) -> Plan:
    """Return the plan of one pipeline with chunks of so many nodes."""
    stages = []
    first = 0
    for size in sizes:
        stages.append(
            Stage(
                layers=tuple(names[first : first + size]),
                devices=strategy.devices,
                strategy=strategy,
            )
        )
        first += size
    return Plan(
        replicas=1,
        micro_batch=micro_batch,
        stages=tuple(stages),
        virtual_stages=virtual,
        placement=schedule_of(schedule, virtual).placement,
    )


def allowed(case: Published, problem: Problem) -> tuple[int, ...]:
    """Return the numbers of virtual stages up to 16 that divide the layers."""
    if case.schedule in FIXED_CHUNKS:
        return problem.job.virtual_stages
    layers = len(problem.graph.layers) - 2
    divisors = {v for v in range(1, 17) if layers % v == 0}
    return tuple(sorted(divisors | {case.virtual_stages}))
