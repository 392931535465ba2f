"""``alpa``: its objective, and the best plan of its own space."""

from __future__ import annotations

import itertools

from hypothesis import given

from baselines.alpa import AlpaSolver
from baselines.alpa_inter import straddles
from baselines.alpa_intra import max_n_succ, submesh_sizes
from baselines.common import front_terms, node_size
from nest.cost.model import Block, CostModel
from nest.cost.score import score
from nest.cost.space import batch_splits, strategies
from nest.ir import Plan, Problem
from nest.solvers.base import SolveOptions, SolverOutput
from tests.properties.profiles import examples
from tests.strategies import problems


def solve(problem: Problem) -> SolverOutput:
    return AlpaSolver().solve(problem, SolveOptions())


def own_objective(problem: Problem, plan: Plan) -> int:
    """Add up a plan's times as Alpa does, every stage on device 0 and up."""
    model = CostModel(problem)
    (case,) = [
        case
        for case in batch_splits(problem)
        if (case.replicas, case.micro_batch) == (plan.replicas, plan.micro_batch)
    ]
    index = problem.graph.index
    loads = []
    for stage in plan.stages:
        strategy_of = {
            index[str(layer)]: strategy
            for layer, strategy in zip(
                stage.layers, stage.layer_strategies, strict=True
            )
        }
        load = 0
        for position, strategy in strategy_of.items():
            terms = front_terms(model, case, position, strategy)
            assert terms is not None
            load += terms.forward + terms.backward
        route = model.network.inside(Block(1, 0, 0, stage.devices))
        for source, target, size_bytes in model.transfers.edges:
            if {source, target} <= strategy_of.keys():
                ends = (strategy_of[source], strategy_of[target])
                if len({s.layout for s in ends}) > 1 and size_bytes:
                    load += sum(
                        model.transfers.receive(
                            route, [size_bytes], case.micro_batch, model.shards(s)
                        )
                        for s in ends
                    )
        loads.append(load)
    return sum(loads) + (case.num_micro_batches - 1) * max(loads)


def check_own(problem: Problem, output: SolverOutput) -> None:
    """One pipeline on all devices, and the objective is what it says.

    Alpa keeps room for one micro-batch more than 1F1B has in flight.
    """
    plan = output.plan
    assert plan is not None
    assert plan.replicas == 1
    assert plan.devices_used == problem.cluster.num_devices
    assert output.own_objective_ns == own_objective(problem, plan)
    if problem.job.schedule == "1f1b":
        assert score(problem, plan).feasible


def least_objective(problem: Problem) -> int | None:  # noqa: C901
    """Enumerate Alpa's space with one strategy per stage."""
    model = CostModel(problem)
    order = problem.graph.topological_order()
    job, cluster = problem.job, problem.cluster
    node = node_size(problem)
    sizes = submesh_sizes(node, cluster.num_devices, every=False)
    zero = 1 if 1 in job.zero else min(job.zero)
    flags = {"none", "full"} & set(job.recompute) or set(job.recompute)
    best = None
    for case, flag in itertools.product(batch_splits(problem), sorted(flags)):
        if case.replicas > 1:
            continue
        usable = [
            s
            for s in strategies(problem, case.micro_batch)
            if s.devices in sizes
            and (s.tp <= node or s.dp == 1)
            and s.cp == 1
            and s.ep in (1, s.dp)
            and s.recompute == flag
            and (s.zero == zero or s.dp == 1)
        ]

        def stage(start, stop, strategy, behind, case=case):
            terms = [
                front_terms(model, case, position, strategy)
                for position in order[start:stop]
            ]
            if None in terms:
                return None
            room = max_n_succ(
                cluster.device.memory_bytes,
                sum(t.static_bytes for t in terms),
                sum(t.kept_bytes for t in terms),
                max(t.working_bytes for t in terms),
            )
            if behind > room:
                return None
            return sum(t.forward + t.backward for t in terms)

        def search(start, offset, loads, left, case=case, usable=usable):
            """Yield the loads of all ways to place ``left`` more stages."""
            if left == 0:
                if (start, offset) == (len(order), cluster.num_devices):
                    yield loads
                return
            for stop in range(start + 1, len(order) + 1):
                for strategy in usable:
                    size = strategy.devices
                    if offset + size > cluster.num_devices:
                        continue
                    if straddles(offset, size, node):
                        continue
                    load = stage(start, stop, strategy, left - 1)
                    if load is not None:
                        yield from search(stop, offset + size, [*loads, load], left - 1)

        for count in range(1, len(order) + 1):
            for loads in search(0, 0, [], count):
                total = sum(loads) + (case.num_micro_batches - 1) * max(loads)
                best = total if best is None else min(best, total)
    return best


@examples(60, full=600)
@given(problems(granularity="layer", magnified=False))
def test_a_strategy_per_layer_is_no_worse(problem):
    """By its own objective, than the best plan with one per stage."""
    if AlpaSolver().unsupported(problem) is None:
        output = solve(problem)
        if output.plan is not None:
            check_own(problem, output)
        best = least_objective(problem)
        if best is not None:
            assert output.own_objective_ns is not None
            assert output.own_objective_ns <= best


@examples(60, full=600)
@given(problems(preset="standard", magnified=False))
def test_the_best_plan_of_its_space(problem):
    if AlpaSolver().unsupported(problem) is None:
        output = solve(problem)
        assert output.own_objective_ns == least_objective(problem)
        if output.plan is not None:
            check_own(problem, output)
