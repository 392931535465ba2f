"""What the planners share: chains of layers, plans, options, answers.

Planners see a problem as a chain: its layers in topological order, cut into
contiguous ranges. Any such range is the difference of two closed sets, so
every partition of the chain is a legal sequence of stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.rules import get_rules
from nest.cost.schedules import SCHEDULES
from nest.cost.space import BatchSplit, is_uniform, strategies
from nest.errors import InvalidOptionError
from nest.ir.plan import RECOMPUTE, Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import (
    Deadline,
    Limit,
    SolveOptions,
    SolverOutput,
    Status,
)

T = TypeVar("T")

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
        and not get_rules(problem.preset).recompute_per_layer
    )


def why_not_turns(problem: Problem) -> str | None:
    """Return why a planner that splits micro-batches cannot search, if so."""
    if get_rules(problem.preset).round_robin:
        return (
            f"$.preset: expected data parallel ranks that share a "
            f"micro-batch, got preset {problem.preset!r}, under which they "
            f"take turns; use preset 'standard' or another solver"
        )
    return None


def why_not_alike(problem: Problem) -> str | None:
    """Return why a planner whose stages differ cannot search, if so."""
    if is_uniform(problem):
        return (
            f"$.preset: expected stages that may differ in strategy, got "
            f"preset {problem.preset!r}, under which all are alike; use "
            f"preset 'standard' or another solver"
        )
    return None


def check_time(deadline: Deadline) -> None:
    """Raise ``TimeoutError``, which no planner lets out, if time is up."""
    if deadline.passed:
        raise TimeoutError


def read_count(
    options: SolveOptions, solver: str, key: str, default: int
) -> int:
    """Return an option that is a whole number above 0.

    Raises
    ------
    InvalidOptionError
        If it is something else.
    """
    text = options.extra.get(key, str(default))
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise InvalidOptionError(
            f"option {solver}.{key}: expected a whole number >= 1, got "
            f"{text!r}; correct the value"
        )
    return int(text)


def read_choice(
    options: SolveOptions,
    solver: str,
    key: str,
    choices: Mapping[str, T],
    default: str,
) -> T:
    """Return what an option chooses.

    Parameters
    ----------
    options, solver, key
        Which option.
    choices
        Its values by their texts.
    default
        The text where the option is not given.

    Raises
    ------
    InvalidOptionError
        If it is no text of ``choices``.
    """
    text = options.extra.get(key, default)
    if text not in choices:
        raise InvalidOptionError(
            f"option {solver}.{key}: expected {' or '.join(choices)}, got "
            f"{text!r}; correct the value"
        )
    return choices[text]


def case_strategies(problem: Problem, case: BatchSplit) -> list[Strategy]:
    """Return the strategies that a replica has the devices for."""
    return [
        strategy
        for strategy in strategies(problem, case.micro_batch)
        if strategy.devices <= case.devices
    ]


def in_flight(problem: Problem, case: BatchSplit, stages_left: int) -> int:
    """Return the micro-batches whose activations a stage keeps at most.

    Of the preset ``standard``; ``stages_left`` are counted from the stage
    itself to the end of the pipeline.
    """
    schedule = SCHEDULES[problem.job.schedule]
    return schedule.inflight(stages_left, case.num_micro_batches)


def node_size(problem: Problem) -> int:
    """Return the devices of a node: the lowest level that joins several."""
    cluster = problem.cluster
    return min([*cluster.topology.unit_sizes, cluster.num_devices])


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

    Single layers are those whose kind occurs only once: an embedding, an
    output layer. The whole chain if no kind occurs twice.
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
    model: CostModel, case: BatchSplit, position: int, strategy: Strategy
) -> LayerTerms | None:
    """Return the terms of a layer on the first devices of every replica.

    Planners without a notion of where a stage sits price every stage as if
    it sat there. ``None`` if the layer has no cost under the strategy.
    """
    block = Block(case.replicas, case.devices, 0, strategy.devices)
    return model.layer_terms(position, strategy, case.micro_batch, block)


def make_stage(
    problem: Problem, layers: Iterable[int], chosen: Sequence[Strategy]
) -> Stage:
    """Return a stage of layers, by position.

    ``chosen`` is the strategy of each, or one for all.
    """
    alike = len(set(chosen)) == 1
    return Stage(
        layers=tuple(problem.graph.layers[i].id for i in layers),
        devices=chosen[0].devices,
        strategy=chosen[0] if alike else None,
        strategies=None if alike else tuple(chosen),
    )


def make_plan(
    problem: Problem, case: BatchSplit, stages: Sequence[StageChoice]
) -> Plan:
    """Return the plan of a partition of the chain, in pipeline order."""
    order = chain(problem)
    made = []
    for start, stop, chosen in stages:
        strategies_of = (
            [chosen] if isinstance(chosen, Strategy) else list(chosen)
        )
        made.append(make_stage(problem, order[start:stop], strategies_of))
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
