"""From a problem to the one of the same plans that a target can express."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from nest.constraints.targets.memory import optimizer_of
from nest.constraints.targets.records import (
    FIELDS,
    Framework,
    Rules,
    Shape,
    degree_rule,
    has_experts_cut_so,
    kinds_in_one_stage,
    overlap_rule,
    recompute_rule,
    rules_of_plans,
    schedules_there,
    sequence_rule,
    unknown_layers,
)
from nest.constraints.targets.records import target as find
from nest.errors import InvalidOptionError
from nest.ir.graph import Graph
from nest.ir.job import FIXED_CHUNKS, Job, Optimizer, Schedules, named_schedules
from nest.ir.problem import Problem

T = TypeVar("T")
_UNKNOWN = Shape()


def for_target(
    problem: Problem,
    target: Framework | str,
    optimizer: Optimizer | None = None,
    shape: Shape = _UNKNOWN,
) -> Problem:
    """Return the problem with the plan space of a target.

    Rules become fields of the job, so that every solver, ``score`` included,
    knows these plans alone. Where the job's schedule does not exist there,
    the target's usual one takes its place.

    Without an ``optimizer`` the target's default takes the place of the job's default
    one, and any other stays. The shape is that of the model, as
    :func:`nest.models.stated.shape_of` has it; by default not known.

    Raises ``UnknownNameError`` if there is no such target, and ``InvalidOptionError``
    if nothing is left of what the job allows.
    """
    target = find(target) if isinstance(target, str) else target
    rules, job = target.rules, problem.job
    if optimizer is None:
        optimizer = job.optimizer
        if rules is not None and optimizer == Optimizer():
            optimizer = optimizer_of(target)
    if rules is None:
        return replace(problem, job=replace(job, optimizer=optimizer))
    for kind, count in unknown_layers(rules, problem).items():
        raise InvalidOptionError(
            f"target {target.name}: expected no layers of kind {kind!r}, which plans "
            f"for {target.title} cannot have ({rules.unknown_kinds.source}), got "
            f"{count}; import the model without them, or choose another target"
        )
    schedule, virtual_stages = _schedule(target, rules, job)
    overlap = {
        name: fraction
        for name, fraction in job.overlap.items()
        if name in overlap_rule(rules, problem).value
    }
    fields = rules_of_plans(rules, problem)
    fields["one_stage"] = _one_stage(target, rules, problem)
    fields["overlap_needs"] = {
        name: needs
        for name, needs in fields["overlap_needs"].items()
        if name in overlap
    }
    fields["context_parallel"] = _limited(
        target, job, "context_parallel", rules.context_parallel.value
    )
    fields |= _tensor_degrees(target, rules, problem, shape)
    for name in rules.single.value:
        fields[FIELDS[name]] = _limited(target, job, FIELDS[name], (1,))
    changed = replace(
        job,
        optimizer=optimizer,
        schedule=schedule,
        virtual_stages=virtual_stages,
        zero=_both(target, "zero", job.zero, rules.zero.value),
        recompute=_both(
            target, "recompute", job.recompute, recompute_rule(rules, problem).value
        ),
        uneven_batches=job.uneven_batches and rules.uneven_batches.value,
        overlap=overlap,
        distributed_optimizer=(
            job.distributed_optimizer and rules.distributed_optimizer.value
        ),
        granularity="stage",
        **fields,
        **_sequences(target, rules, problem),
    )
    return replace(problem, job=changed, graph=_with_experts_cut(target, problem.graph))


def _with_experts_cut(target: Framework, graph: Graph) -> Graph:
    """Return a graph with the costs whose experts the target can cut so."""
    rules = target.rules
    if rules is None or not any(x.etp for kind in graph.kinds for x in kind.costs):
        return graph
    kinds = []
    for kind in graph.kinds:
        costs = tuple(x for x in kind.costs if has_experts_cut_so(rules, x))
        if not costs:
            raise InvalidOptionError(
                f"target {target.name}: expected costs without etp, which "
                f"{target.title} cannot express, got none in kind {kind.name!r}; add "
                f"tp to the list of etp"
            )
        kinds.append(replace(kind, costs=costs))
    return replace(graph, kinds=tuple(kinds))


def _schedule(
    target: Framework, rules: Rules, job: Job
) -> tuple[Schedules, tuple[int, ...]]:
    """Return the schedule there, and the chunks that a stage may have."""
    schedule = schedules_there(rules, job.schedule)
    virtual_stages = job.virtual_stages
    if schedule == job.schedule and rules.interleaving.value:
        return schedule, virtual_stages
    if job.schedule in FIXED_CHUNKS:
        virtual_stages = (1,)
    if not rules.interleaving.value or "1f1b" not in named_schedules(schedule):
        virtual_stages = _both(target, "virtual_stages", virtual_stages, (1,))
    return schedule, virtual_stages


def _tensor_degrees(
    target: Framework, rules: Rules, problem: Problem, shape: Shape
) -> dict[str, Any]:
    """Return the field of tensor degrees, where the model does not allow all."""
    tokens = problem.job.sequence_length
    offered = sorted({x.tp for kind in problem.graph.kinds for x in kind.costs})
    legal = [tp for tp in offered if degree_rule(rules, tokens, shape, tp) is None]
    if legal == offered:
        return {}
    limited = _limited(target, problem.job, "tensor_parallel", tuple(legal))
    return {"tensor_parallel": limited}


def _sequences(target: Framework, rules: Rules, problem: Problem) -> dict[str, Any]:
    """Return the fields about sequence parallelism that the target can say.

    Where it has none of the job's choices, plans have no tensor parallelism.
    """
    job = problem.job
    split = job.sequence_parallel
    expressible = sequence_rule(rules, problem).value
    allowed = tuple(
        value
        for value in ((split,) if isinstance(split, bool) else split)
        if expressible in (None, value)
    )
    if not allowed:
        return {"tensor_parallel": _limited(target, job, "tensor_parallel", (1,))}
    return {"sequence_parallel": split if split in (True, False) else allowed}


def _one_stage(target: Framework, rules: Rules, problem: Problem) -> tuple[str, ...]:
    """Return the kinds that job and target want in one stage, together."""
    ours, theirs = problem.job.one_stage, kinds_in_one_stage(rules, problem)
    if ours and theirs and not {*ours} & {*theirs}:
        raise InvalidOptionError(
            f"target {target.name}: expected one_stage with the kinds "
            f"{', '.join(theirs)}, which {target.title} has in one stage, got "
            f"{', '.join(ours)}; remove it"
        )
    return tuple(dict.fromkeys((*ours, *theirs)))


def _both(
    target: Framework, field: str, allowed: tuple[T, ...], expressible: Sequence[T]
) -> tuple[T, ...]:
    """Return which allowed values a target knows."""
    shared = tuple(value for value in allowed if value in expressible)
    if not shared:
        raise InvalidOptionError(
            f"target {target.name}: expected {field} to have one of "
            f"{', '.join(map(str, expressible))}, which {target.title} can "
            f"express, got {', '.join(map(str, allowed))}; allow one"
        )
    return shared


def _limited(
    target: Framework, job: Job, field: str, expressible: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Return the allowed degrees that a target knows."""
    allowed: tuple[int, ...] | None = getattr(job, field)
    if expressible is None or allowed is None:
        return expressible if allowed is None else allowed
    return _both(target, field, allowed, expressible)
