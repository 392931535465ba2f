"""What of a plan a target cannot express."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from nest.constraints.targets.memory import GRADIENTS
from nest.constraints.targets.records import (
    Rules,
    Target,
    kinds_in_one_stage,
    overlap_rule,
    sequence_rule,
    uniform_fields,
    unknown_layers,
)
from nest.constraints.targets.records import target as find
from nest.cost.space import breaches, make_split
from nest.ir.plan import Plan, Stage
from nest.ir.problem import Problem


class Obstacle(NamedTuple):
    """Something in a plan that a target cannot say.

    Attributes
    ----------
    field
        Where it is: ``stage 2``, or a field of plan or job.
    value
        What it is there.
    rule
        What the target can say instead.
    source
        How that is known.
    """

    field: str
    value: str
    rule: str
    source: str

    def __str__(self) -> str:
        return (
            f"{self.field}: expected {self.rule}, got {self.value} "
            f"({self.source})"
        )


def inexpressible(
    target: Target | str, problem: Problem, plan: Plan
) -> list[Obstacle]:
    """Return everything in a plan that a target cannot express.

    Parameters
    ----------
    target
        A target or its name.
    problem, plan
        A problem and a plan of it, which :func:`~nest.cost.score.score`
        takes.

    Raises
    ------
    UnknownNameError
        If there is no such target.
    """
    target = find(target) if isinstance(target, str) else target
    if target.rules is None:
        return []
    return [
        *_of_job(target.rules, problem),
        *_of_plan(target.rules, problem, plan),
        *(
            obstacle
            for number, stage in enumerate(plan.stages, 1)
            for obstacle in _of_stage(target.rules, problem, number, stage)
        ),
        *_of_stages(target.rules, problem, plan),
    ]


def _listed(values: tuple[object, ...]) -> str:
    return " or ".join(map(str, values)) or "none"


def _of_job(rules: Rules, problem: Problem) -> Iterator[Obstacle]:
    """Yield what every plan of a problem has."""
    job = problem.job
    if job.schedule not in rules.schedule.value:
        yield Obstacle(
            "schedule",
            job.schedule,
            _listed(rules.schedule.value),
            rules.schedule.source,
        )
    for kind, count in unknown_layers(rules, problem).items():
        yield Obstacle(
            "graph",
            str(count),
            f"no layers of kind {kind!r}",
            rules.unknown_kinds.source,
        )
    optimizer = job.optimizer
    known = {GRADIENTS[name] for name in rules.gradients.value}
    if optimizer.gradient_bytes not in known:
        yield Obstacle(
            "optimizer.gradient_bytes",
            str(optimizer.gradient_bytes),
            f"gradients in {_listed(rules.gradients.value)}",
            rules.gradients.source,
        )


def _of_plan(rules: Rules, problem: Problem, plan: Plan) -> Iterator[Obstacle]:
    """Yield what the fields of a plan are and cannot be."""
    if plan.virtual_stages > 1 and not rules.interleaving.value:
        yield Obstacle(
            "virtual_stages",
            str(plan.virtual_stages),
            "1",
            rules.interleaving.source,
        )
    overlap = overlap_rule(rules, problem)
    for name in plan.overlap:
        if name not in overlap.value:
            yield Obstacle(
                "overlap", name, _listed(overlap.value), overlap.source
            )
    if plan.distributed_optimizer and not rules.distributed_optimizer.value:
        yield Obstacle(
            "distributed_optimizer",
            "true",
            "false",
            rules.distributed_optimizer.source,
        )
    samples = plan.replicas * plan.micro_batch
    if not rules.uneven_batches.value and problem.job.global_batch % samples:
        yield Obstacle(
            "micro_batch",
            f"{plan.replicas} * {plan.micro_batch} samples",
            f"a divisor of the global batch {problem.job.global_batch}",
            rules.uneven_batches.source,
        )


def _of_stage(
    rules: Rules, problem: Problem, number: int, stage: Stage
) -> Iterator[Obstacle]:
    """Yield what the strategies of a stage have, each once."""
    checks = (
        ("zero", rules.zero.value, rules.zero.source),
        ("recompute", rules.recompute.value, rules.recompute.source),
        ("cp", rules.context_parallel.value, rules.context_parallel.source),
    )
    for name, known, source in checks:
        found = {getattr(s, name): None for s in stage.layer_strategies}
        for value in found:
            if known is not None and value not in known:
                expected = f"{name} {_listed(known)}"
                yield Obstacle(
                    f"stage {number}", f"{name}={value}", expected, source
                )
    split = sequence_rule(rules, problem)
    kind = "with" if split.value else "without"
    wrong = {
        strategy.tp: None
        for strategy in stage.layer_strategies
        if strategy.tp > 1
        and split.value not in (None, problem.job.splits_sequence(strategy))
    }
    for tp in wrong:
        yield Obstacle(
            f"stage {number}",
            f"tp={tp}",
            f"tp 1, or more {kind} sequence parallelism",
            split.source,
        )


def _hiding(plan: Plan) -> Plan:
    """Return a plan without overlap of what it has none of.

    No framework is told of that.
    """
    used = [s for stage in plan.stages for s in stage.layer_strategies]
    occurs = {
        "tp": any(strategy.tp > 1 for strategy in used),
        "ep": any(strategy.ep > 1 for strategy in used),
        "weights": any(s.zero > 1 and s.data_ranks > 1 for s in used),
    }
    return replace(
        plan,
        overlap=tuple(x for x in plan.overlap if occurs.get(x, True)),
    )


def _of_stages(
    rules: Rules, problem: Problem, plan: Plan
) -> Iterator[Obstacle]:
    """Yield what stages are together and cannot be."""
    job = replace(
        problem.job,
        uniform=uniform_fields(rules, problem.job),
        even_layers=rules.even_layers.value,
        one_stage=kinds_in_one_stage(rules, problem),
        idle_devices=rules.idle_devices.value,
        zero_with=rules.zero_with.value,
        sharded_with=rules.sharded_with.value,
        micro_batch_count=rules.micro_batch_count.value,
        overlap_needs=rules.overlap_needs.value,
    )
    split = make_split(problem, plan.replicas, plan.micro_batch)
    for breach in breaches(
        replace(problem, job=job), _hiding(plan), split.num_micro_batches
    ):
        yield Obstacle(
            breach.place,
            breach.value,
            breach.expected,
            getattr(rules, breach.rule).source,
        )
