"""The preset ``piper``, written from docs/cost-model.md alone."""

from __future__ import annotations

from nest.ir import Plan, Problem
from tests.independent.record import BlockRecord, Record, StageRecord
from tests.independent.rules import activations_of, batches, strategies_of
from tests.independent.standard import (
    LayerOfStage,
    record,
    rounded,
    run_order,
    up,
    whole_memory,
)


def score(problem: Problem, plan: Plan) -> Record:
    count = batches(problem, plan)
    batch = plan.micro_batch
    bandwidth = problem.cluster.topology.levels[0].bandwidth_bytes_per_s
    shared = [next(iter(strategies_of(stage).values())) for stage in plan.stages]
    where = {
        str(layer): number
        for number, stage in enumerate(plan.stages)
        for layer in stage.layers
    }
    stages = []
    blocks = []
    for number, stage in enumerate(plan.stages):
        strategies = strategies_of(stage)
        dp, tp = shared[number].dp, shared[number].tp
        layers = [
            LayerOfStage(problem, plan, name, strategies[name], [0])
            for name in run_order(problem, strategies)
        ]

        def turn(quanta: int, dp: int = dp) -> int:
            return (2 * quanta + dp) // (2 * dp)

        entering = sum(
            2
            * batch
            * (edge.bytes_per_sample + edge.target_extra_bytes_by_tp.get(tp, 0))
            for edge in problem.graph.edges
            if where[str(edge.target)] == number != where[str(edge.source)]
        )
        leaving = sum(
            2
            * batch
            * (edge.bytes_per_sample + edge.source_extra_bytes_by_tp.get(tp, 0))
            for edge in problem.graph.edges
            if where[str(edge.source)] == number != where[str(edge.target)]
        )
        receive_forward = rounded(problem, entering / (dp * bandwidth) * 1e9)
        receive_backward = (
            rounded(problem, (entering + leaving) / (dp * bandwidth) * 1e9)
            - receive_forward
        )
        forward = sum(x.one_pass("forward", None)[0] for x in layers)
        backward = sum(x.one_pass("backward", None)[0] for x in layers)
        recomputed = sum(x.recomputation() for x in layers)
        weights = sum(x.cost.weight_bytes for x in layers)
        sync = rounded(problem, 4 * (dp - 1) * weights / (dp * count * bandwidth) * 1e9)
        inflight = up(sum(x.dp for x in shared[number:]), dp)
        memory = dict.fromkeys(whole_memory(problem, [], 0), 0)
        for layer in layers:
            entry = activations_of(layer.cost, layer.strategy.recompute)
            assert entry is not None
            memory["kept_bytes"] += inflight * entry.kept_bytes
            memory["buffer_bytes"] += entry.static_bytes
        memory["reserve_bytes"] = problem.cluster.device.reserve_bytes
        stages.append(
            StageRecord(
                forward=turn(forward) + receive_forward,
                backward=turn(forward + backward + recomputed)
                - turn(forward)
                + receive_backward,
                receive_forward=receive_forward,
                receive_backward=receive_backward,
                redistribution=0,
                sync=sync,
                inflight=inflight,
                memory=memory,
            )
        )
        blocks.append(
            BlockRecord(
                stages=(number + 1,),
                load=stages[-1].forward + stages[-1].backward,
                sync=sync,
                inflight=inflight,
                memory=memory,
            )
        )
    step = max(block.load + block.sync for block in blocks)
    return record(problem, plan, step, stages, blocks, samples=batch)
