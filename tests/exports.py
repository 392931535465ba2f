"""A small decoder on a small cluster, and plans of it to export."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from msgspec.structs import replace

from nest.cost.score import score
from nest.cost.space import batch_splits, strategies
from nest.errors import InvalidPlanError
from nest.hardware import machine
from nest.ir import Plan, Problem, Stage, Strategy
from nest.models.architectures import Architecture
from nest.models.blocks import Attention, Block, Head, Mlp, RepeatedBlock, Tower
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from tests.builders import with_job

LAYERS = 8


def small_model(experts: int = 0, modules: int = 0) -> Architecture:
    mlp = Mlp(hidden=512, gated=True)
    if experts:
        mlp = replace(mlp, experts=experts, experts_per_token=2)
    block = Block(
        name="decoder",
        hidden=256,
        attention=Attention(heads=8, kv_heads=4, head_size=32, rotary=True),
        mlp=mlp,
    )
    return Architecture(
        name="small",
        towers=(
            Tower(
                runs=(RepeatedBlock(block=block, count=LAYERS),),
                vocabulary=1024,
                modules=modules,
            ),
        ),
        head=Head(outputs=1024, predictions=1 + modules),
        max_sequence=1024,
    )


@cache
def small_problem(
    experts: int = 0,
    devices: int = 16,
    sequences: tuple[bool, ...] | None = None,
    modules: int = 0,
    etp: tuple[int, ...] | None = None,
) -> Problem:
    """Return a problem that allows much, with every extension.

    ``sequences`` is what its plans may choose of sequence parallelism,
    ``modules`` are those for multi-token prediction, ``etp`` is how many tensor
    ranks an expert may be cut over.
    """
    model = small_model(experts, modules)
    site = machine("dgx-h100")
    request = Request(
        global_batch=64,
        sequence_length=1024,
        micro_batches=(1, 2, 4, 8),
        tp=(1, 2, 4),
        cp=(1, 2),
        ep=(1, 2, 4) if experts else (1,),
        etp=etp,
        virtual_stages=(1, 2),
        sequence_parallel=sequences,
    )
    problem = build_problem(model, site, devices, choose(model, site, devices, request))
    overlap = {"tp": 0.5, "weights": 0.8, "gradients": 0.9}
    return with_job(problem, overlap=overlap, distributed_optimizer=True)


def small_plan(
    problem: Problem,
    strategy: Strategy,
    counts: tuple[int, ...] = (LAYERS,),
    **fields: object,
) -> Plan:
    """Return a plan whose stages have so many blocks, ends around them.

    Modules for multi-token prediction are with the head.
    """
    names = [layer.id for layer in problem.graph.layers]
    behind = len(names) - LAYERS - 1
    stages, first = [], 0
    for number, count in enumerate(counts):
        last = first + count + (number == 0)
        last += behind * (number == len(counts) - 1)
        stages.append(Stage.of(names[first:last], [strategy] * (last - first)))
        first = last
    return Plan(**{"replicas": 1, "micro_batch": 8, **fields}, stages=tuple(stages))


def cut_plan(problem: Problem, strategy: Strategy, *bounds: int) -> Plan:
    """Return a plan with a stage between each two of some layers."""
    names = [layer.id for layer in problem.graph.layers]
    stages = tuple(
        Stage.of(names[first:last], [strategy] * (last - first))
        for first, last in pairwise(bounds)
    )
    return Plan(replicas=1, micro_batch=8, stages=stages)


def uniform_plans(problem: Problem, every: int = 1) -> Iterator[Plan]:
    """Yield plans of equal stages, with and without chunks.

    All of them that are legal, or those among every so many candidates.
    """
    for number, plan in enumerate(_equal_stages(problem)):
        if number % every == 0:
            try:
                score(problem, plan)
            except InvalidPlanError:
                continue
            yield plan


def _equal_stages(problem: Problem) -> Iterator[Plan]:
    for split in batch_splits(problem):
        for strategy in strategies(problem, split.micro_batch):
            for stages, virtual in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2)):
                chunks = stages * virtual
                if strategy.devices * stages <= split.devices:
                    yield small_plan(
                        problem,
                        strategy,
                        (LAYERS // chunks,) * chunks,
                        replicas=split.replicas,
                        micro_batch=split.micro_batch,
                        virtual_stages=virtual,
                    )
