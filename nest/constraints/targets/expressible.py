"""Finds the properties of a plan that a framework cannot express."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.constraints.targets.memory import GRADIENTS
from nest.constraints.targets.records import (
    Framework,
    Rule,
    Rules,
    Shape,
    degree_rule,
    has_experts_cut_so,
    has_schedule,
    overlap_rule,
    recompute_rule,
    rules_of_plans,
    sequence_rule,
    unknown_layers,
)
from nest.constraints.targets.records import target as find
from nest.cost.space import breaches, make_split
from nest.ir.plan import Plan, Stage
from nest.ir.problem import Problem


class Obstacle(NamedTuple):
    """Something in a plan that a target cannot say."""

    #: Where it is: ``stage 2``, or a field of plan or job.
    field: str
    #: What it is there.
    value: str
    #: What the target can say instead.
    rule: str
    #: How that is known.
    source: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.rule}, got {self.value} ({self.source})"


def inexpressible(
    target: Framework | str, problem: Problem, plan: Plan, shape: Shape | None = None
) -> list[Obstacle]:
    """Return everything in a plan that a target cannot express.

    The plan is one that :func:`~nest.cost.score.score` takes. The shape is that of the
    model, as :func:`nest.models.stated.shape_of` has it; by default not known.

    Raises ``UnknownNameError`` if there is no such target.
    """
    target = find(target) if isinstance(target, str) else target
    rules = target.rules
    if rules is None:
        return []
    checks = [
        *_of_job(rules, problem),
        *_of_plan(rules, problem, plan),
        *(
            check
            for index, stage in enumerate(plan.stages, 1)
            for check in chain(
                _of_stage(rules, problem, f"stage {index}", stage),
                _of_shape(rules, problem, f"stage {index}", stage, shape or Shape()),
            )
        ),
    ]
    return [
        *(
            Obstacle(check.field, str(check.value), check.expected, check.rule.source)
            for check in checks
            if not check.holds
        ),
        *_of_stages(rules, problem, plan),
    ]


class _Check(NamedTuple):
    """Whether a field has a value that a rule allows."""

    holds: bool
    field: str
    value: object
    expected: str
    rule: Rule[Any]


def _listed(values: tuple[object, ...]) -> str:
    return " or ".join(map(str, values)) or "none"


def _of_job(rules: Rules, problem: Problem) -> Iterator[_Check]:
    """Yield the checks of what every plan of a problem has."""
    schedule, gradients = rules.schedule, rules.gradients
    job = problem.job
    yield _Check(
        has_schedule(rules, job.schedule),
        "schedule",
        job.schedule_text,
        _listed(schedule.value),
        schedule,
    )
    for kind, count in unknown_layers(rules, problem).items():
        expected = f"no layers of kind {kind!r}"
        yield _Check(False, "graph", count, expected, rules.unknown_kinds)
    gradient_bytes = job.optimizer.gradient_bytes
    yield _Check(
        gradient_bytes in [GRADIENTS[name] for name in gradients.value],
        "optimizer.gradient_bytes",
        gradient_bytes,
        f"gradients in {_listed(gradients.value)}",
        gradients,
    )


def _of_plan(rules: Rules, problem: Problem, plan: Plan) -> Iterator[_Check]:
    """Yield the checks of the fields of a plan."""
    yield _Check(
        plan.virtual_stages == 1 or rules.interleaving.value,
        "virtual_stages",
        plan.virtual_stages,
        "1",
        rules.interleaving,
    )
    overlap = overlap_rule(rules, problem)
    for name in plan.overlap:
        holds = name in overlap.value
        yield _Check(holds, "overlap", name, _listed(overlap.value), overlap)
    yield _Check(
        not plan.distributed_optimizer or rules.distributed_optimizer.value,
        "distributed_optimizer",
        "true",
        "false",
        rules.distributed_optimizer,
    )
    yield _Check(
        plan.num_blocks == 1 or "pp" not in rules.single.value,
        "stages",
        plan.num_blocks,
        "1",
        rules.single,
    )
    batch, samples = problem.job.global_batch, plan.replicas * plan.micro_batch
    yield _Check(
        rules.uneven_batches.value or batch % samples == 0,
        "micro_batch",
        f"{plan.replicas} * {plan.micro_batch} samples",
        f"a divisor of the global batch {batch}",
        rules.uneven_batches,
    )


def _of_stage(
    rules: Rules, problem: Problem, location: str, stage: Stage
) -> Iterator[_Check]:
    """Yield the checks of the strategies of a stage, each value once."""
    fields: tuple[tuple[str, Rule[Any]], ...] = (
        ("zero", rules.zero),
        ("recompute", recompute_rule(rules, problem)),
        ("cp", rules.context_parallel),
    )
    for name, rule in fields:
        for value in {getattr(s, name): None for s in stage.layer_strategies}:
            yield _Check(
                rule.value is None or value in rule.value,
                location,
                f"{name}={value}",
                f"{name} {_listed(rule.value or ())}",
                rule,
            )
    for name in ("tp", "ep"):
        for value in {getattr(s, name): None for s in stage.layer_strategies}:
            holds = value == 1 or name not in rules.single.value
            yield _Check(holds, location, f"{name}={value}", f"{name} 1", rules.single)
    whole = rules.whole_experts_from
    for s in dict.fromkeys(stage.layer_strategies):
        if not has_experts_cut_so(rules, s):
            expected = "none" if whole.value is None else f"ep >= {whole.value} with it"
            yield _Check(False, location, f"etp={s.etp}", f"etp {expected}", whole)
            break
    split = sequence_rule(rules, problem)
    kind = "with" if split.value else "without"
    wrong = {
        strategy.tp: None
        for strategy in stage.layer_strategies
        if strategy.tp > 1
        and split.value not in (None, problem.job.splits_sequence(strategy))
    }
    for tp in wrong:
        expected = f"tp 1, or more {kind} sequence parallelism"
        yield _Check(False, location, f"tp={tp}", expected, split)


def _of_shape(
    rules: Rules, problem: Problem, location: str, stage: Stage, shape: Shape
) -> Iterator[_Check]:
    """Yield the checks of degrees that the model does not allow, each value once."""
    for tp in {strategy.tp: None for strategy in stage.layer_strategies}:
        forbidden = degree_rule(rules, problem.job.sequence_length, shape, tp)
        if forbidden is not None:
            rule, expected = forbidden
            yield _Check(False, location, f"tp={tp}", expected, rule)


def _hiding(plan: Plan) -> Plan:
    """Return a plan without overlap of what it has none of.

    No framework is told of that.
    """
    used = [s for stage in plan.stages for s in stage.layer_strategies]
    occurs = {
        "tp": any(strategy.tp > 1 for strategy in used),
        "ep": any(strategy.ep > 1 for strategy in used),
        "weights": any(s.zero > 1 and s.shares_weights for s in used),
    }
    return replace(plan, overlap=tuple(x for x in plan.overlap if occurs.get(x, True)))


def _naming(rules: Rules, dtype: str, plan: Plan) -> Plan:
    """Return a plan with the ZeRO stage that a rule names where it changes nothing."""
    named = rules.zero_rule(dtype).value.get("pp", ())
    if not named or plan.replicas > 1:
        return plan
    stages = []
    for stage in plan.stages:
        strategies = [
            s if s.shares_weights or s.zero in named else replace(s, zero=named[0])
            for s in stage.layer_strategies
        ]
        stages.append(Stage.of(stage.layers, strategies))
    return replace(plan, stages=tuple(stages))


def _of_stages(rules: Rules, problem: Problem, plan: Plan) -> Iterator[Obstacle]:
    """Yield what stages are together and cannot be."""
    dtype, fields = problem.job.dtype, rules_of_plans(rules, problem)
    zero_rule = rules.zero_rule(dtype)
    if plan.distributed_optimizer and plan.replicas > 1:
        # It is sharded over all data ranks, whatever the stage is called.
        zero_rule = rules.zero_with
        fields["zero_with"] = zero_rule.value
    job = replace(problem.job, **fields)
    split = make_split(problem, plan.replicas, plan.micro_batch)
    named = _naming(rules, dtype, _hiding(plan))
    for breach in breaches(replace(problem, job=job), named, split.num_micro_batches):
        rule = getattr(rules, breach.rule)
        yield Obstacle(
            breach.place,
            breach.value,
            breach.expected,
            (zero_rule if breach.rule == "zero_with" else rule).source,
        )
