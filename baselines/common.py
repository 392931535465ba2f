"""What the planners share: chains of layers, plans, answers.

Planners see a problem as a chain: its layers in topological order, cut into
contiguous ranges. Any such range is the difference of two closed sets, so
every partition of the chain is a legal sequence of stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.presets import get_preset
from nest.cost.space import Case
from nest.ir.plan import RECOMPUTE, Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import Limit, SolverOutput, Status

#: What a planner chose for one stage: its layers ``[start, stop)`` of the
#: chain, and one strategy for all of them or one per layer.
StageChoice = tuple[int, int, Strategy | Sequence[Strategy]]


def chain(problem: Problem) -> list[int]:
    """Return the positions of all layers in topological order."""
    return list(problem.graph.topological_order())


def one_strategy_per_stage(problem: Problem) -> bool:
    """Whether the layers of a stage must all have the same strategy."""
    return (
        problem.job.granularity == "stage"
        and not get_preset(problem.preset).recompute_per_layer
    )


def why_not_turns(problem: Problem) -> str | None:
    """Return why a planner that splits micro-batches cannot search, if so."""
    if get_preset(problem.preset).ranks_take_turns:
        return (
            f"$.preset: expected data parallel ranks that share a "
            f"micro-batch, got preset {problem.preset!r}, under which they "
            f"take turns; use preset 'standard' or another solver"
        )
    return None


def why_not_alike(problem: Problem) -> str | None:
    """Return why a planner whose stages differ cannot search, if so."""
    if get_preset(problem.preset).uniform:
        return (
            f"$.preset: expected stages that may differ in strategy, got "
            f"preset {problem.preset!r}, under which all are alike; use "
            f"preset 'standard' or another solver"
        )
    return None


def even_split(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """Return ranges of a chain whose lengths differ by at most one.

    The longer ones come first.

    Raises
    ------
    ValueError
        If there are fewer layers than stages.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"num_stages: expected 1 to {num_layers}, got {num_stages}"
        )
    length, longer = divmod(num_layers, num_stages)
    ranges, start = [], 0
    for number in range(num_stages):
        stop = start + length + (number < longer)
        ranges.append((start, stop))
        start = stop
    return ranges


def repeated_range(problem: Problem) -> tuple[int, int]:
    """Return the range of the chain between single layers at its ends.

    Layers whose kind occurs only once: an embedding, an output layer. The
    whole chain if no kind occurs twice.
    """
    kinds = [problem.graph.layers[i].kind for i in chain(problem)]
    count = Counter(kinds)
    repeated = [i for i, kind in enumerate(kinds) if count[kind] > 1]
    if not repeated:
        return 0, len(kinds)
    return repeated[0], repeated[-1] + 1


def plainest(
    problem: Problem,
    found: Sequence[Strategy],
    more_zero: Sequence[int] = (),
) -> list[Strategy]:
    """Return the strategies of planners that know ``dp`` and ``tp`` only.

    They have the least recomputation, ``cp``, ``ep`` and ZeRO stage that
    job and costs allow, or one of the ZeRO stages ``more_zero``.
    """
    recompute = min(problem.job.recompute, key=RECOMPUTE.index)
    cp = min((strategy.cp for strategy in found), default=1)
    ep = min((strategy.ep for strategy in found), default=1)
    zero = {min(problem.job.zero), *more_zero}
    return [
        strategy
        for strategy in found
        if (strategy.recompute, strategy.cp, strategy.ep)
        == (recompute, cp, ep)
        and strategy.zero in zero
    ]


def front_terms(
    model: CostModel, case: Case, position: int, strategy: Strategy
) -> LayerTerms | None:
    """Return the terms of a layer on the first devices of every replica.

    Planners without a notion of where a stage sits price every stage as if
    it sat there. ``None`` if the layer has no cost under the strategy.
    """
    block = Block(case.replicas, case.devices, 0, strategy.devices)
    return model.layer_terms(position, strategy, case.micro_batch, block)


def make_plan(
    problem: Problem, case: Case, stages: Sequence[StageChoice]
) -> Plan:
    """Return the plan of a partition of the chain, in pipeline order."""
    order = chain(problem)
    layers = problem.graph.layers
    made = []
    for start, stop, chosen in stages:
        strategies = (
            (chosen,) if isinstance(chosen, Strategy) else tuple(chosen)
        )
        alike = len(set(strategies)) == 1
        made.append(
            Stage(
                layers=tuple(layers[i].id for i in order[start:stop]),
                devices=strategies[0].devices,
                strategy=strategies[0] if alike else None,
                strategies=None if alike else strategies,
            )
        )
    return Plan(
        replicas=case.replicas,
        micro_batch=case.micro_batch,
        stages=tuple(made),
    )


def answer(
    plan: Plan | None,
    own_objective_ns: float | None = None,
    *,
    limit: Limit | None = None,
    detail: str = "",
) -> SolverOutput:
    """Return the output of a planner: a plan without any proof, or none.

    ``detail`` says why there is no plan, if there is none and no limit was
    hit.
    """
    return SolverOutput(
        status=Status.NO_SOLUTION if plan is None else Status.FEASIBLE,
        plan=plan,
        limit=limit,
        detail=detail,
        own_objective_ns=None if plan is None else own_objective_ns,
    )
