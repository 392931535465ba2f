"""Plans with one strategy, cut in proportion to the load: quick to build."""

from __future__ import annotations

from collections.abc import Sequence

from nest.cost.model import LayerTerms
from nest.cost.schedules import schedule_of
from nest.cost.space import BatchSplit, Runtime
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem


def even_plan(
    problem: Problem,
    split: BatchSplit,
    runtime: Runtime,
    strategy: Strategy,
    num_blocks: int,
    terms: Sequence[LayerTerms | None],
) -> Plan:
    """Return a plan of one strategy whose stages have about equal loads.

    It may break a rule about whole plans, or not fit in memory. ``num_blocks`` is the
    number of stages ``S``, of an interleaved plan that of blocks; ``terms`` has those
    of every layer under the strategy, and ``None`` counts as no load.
    """
    graph = problem.graph
    order = graph.topological_order()
    loads = [
        0 if term is None else term.forward + term.backward
        for term in (terms[layer] for layer in order)
    ]
    ends = _ends(loads, num_blocks * runtime.virtual_stages)
    schedule = schedule_of(problem.job.schedule, runtime.virtual_stages)
    return Plan(
        replicas=split.replicas,
        micro_batch=split.micro_batch,
        stages=tuple(
            Stage.of(
                [graph.layers[i].id for i in order[start:end]],
                [strategy] * (end - start),
            )
            for start, end in zip([0, *ends], ends, strict=False)
        ),
        virtual_stages=runtime.virtual_stages,
        placement=schedule.placement,
        overlap=runtime.named_overlap,
        distributed_optimizer=runtime.distributed_optimizer,
    )


def _ends(loads: Sequence[int], num_stages: int) -> list[int]:
    """Return where stages of about equal loads end, none of them empty."""
    total, done = sum(loads), 0
    ends: list[int] = []
    for position, load in enumerate(loads):
        done += load
        remaining = num_stages - len(ends)
        enough = done * num_stages >= total * (len(ends) + 1)
        rest = len(loads) - position - 1
        if remaining > 1 and (enough or rest == remaining - 1):
            ends.append(position + 1)
    return [*ends, len(loads)]
