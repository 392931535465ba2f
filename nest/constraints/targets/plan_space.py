"""From a problem to the one of the same plans that a target can express."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from nest.constraints.targets.memory import optimizer_of
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
from nest.errors import InvalidOptionError
from nest.ir.job import FIXED_CHUNKS, Job, Optimizer
from nest.ir.problem import Problem

T = TypeVar("T")


def for_target(
    problem: Problem,
    target: Target | str,
    optimizer: Optimizer | None = None,
) -> Problem:
    """Return the problem with the plan space of a target.

    Rules become fields of the job, so that every solver, ``score`` included,
    knows these plans alone. Where the job's schedule does not exist there,
    the target's usual one takes its place.

    Parameters
    ----------
    problem, target
        The problem, and a target or its name.
    optimizer
        What training keeps per weight. ``None`` takes the target's default
        where the job has the default one, and leaves any other as it is.

    Raises
    ------
    UnknownNameError
        If there is no such target.
    InvalidOptionError
        If nothing is left of what the job allows.
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
            f"target {target.name}: expected no layers of kind {kind!r}, "
            f"which plans for {target.title} cannot have "
            f"({rules.unknown_kinds.source}), got {count}; import the model "
            f"without them, or choose another target"
        )
    schedule = job.schedule
    if schedule not in rules.schedule.value:
        schedule = rules.schedule.value[0]
    virtual_stages = job.virtual_stages
    if schedule != job.schedule and job.schedule in FIXED_CHUNKS:
        virtual_stages = (1,)
    if not rules.interleaving.value or schedule != "1f1b":
        virtual_stages = _both(target, "virtual_stages", virtual_stages, (1,))
    degrees = {
        "context_parallel": _limited(
            target, job, "context_parallel", rules.context_parallel.value
        )
    }
    # What plans of the job may have of sequences, and the target can say.
    split = job.sequence_parallel
    known = sequence_rule(rules, problem).value
    left = tuple(
        value
        for value in ((split,) if isinstance(split, bool) else split)
        if known in (None, value)
    )
    if left and not isinstance(split, bool):
        split = left
    elif not left:
        degrees["tensor_parallel"] = _limited(
            target, job, "tensor_parallel", (1,)
        )
    overlap = {
        name: fraction
        for name, fraction in job.overlap.items()
        if name in overlap_rule(rules, problem).value
    }
    changed = replace(
        job,
        optimizer=optimizer,
        schedule=schedule,
        virtual_stages=virtual_stages,
        zero=_both(target, "zero", job.zero, rules.zero.value),
        recompute=_both(
            target, "recompute", job.recompute, rules.recompute.value
        ),
        uneven_batches=job.uneven_batches and rules.uneven_batches.value,
        overlap=overlap,
        overlap_needs={
            name: needs
            for name, needs in rules.overlap_needs.value.items()
            if name in overlap
        },
        distributed_optimizer=(
            job.distributed_optimizer and rules.distributed_optimizer.value
        ),
        granularity="stage",
        uniform=uniform_fields(rules, job),
        sequence_parallel=split,
        even_layers=rules.even_layers.value,
        one_stage=_one_stage(target, rules, problem),
        idle_devices=rules.idle_devices.value,
        zero_with=rules.zero_with.value,
        sharded_with=rules.sharded_with.value,
        micro_batch_count=rules.micro_batch_count.value,
        **degrees,
    )
    return replace(problem, job=changed)


def _one_stage(
    target: Target, rules: Rules, problem: Problem
) -> tuple[str, ...]:
    """Return the kinds that job and target want in one stage, together."""
    own, theirs = problem.job.one_stage, kinds_in_one_stage(rules, problem)
    if own and theirs and not {*own} & {*theirs}:
        raise InvalidOptionError(
            f"target {target.name}: expected one_stage with the kinds "
            f"{', '.join(theirs)}, which {target.title} has in one stage, got "
            f"{', '.join(own)}; remove it"
        )
    return tuple(dict.fromkeys((*own, *theirs)))


def _both(
    target: Target, field: str, allowed: tuple[T, ...], known: Sequence[T]
) -> tuple[T, ...]:
    """Return which allowed values a target knows."""
    found = tuple(value for value in allowed if value in known)
    if not found:
        raise InvalidOptionError(
            f"target {target.name}: expected {field} to have one of "
            f"{', '.join(map(str, known))}, which {target.title} can "
            f"express, got {', '.join(map(str, allowed))}; allow one"
        )
    return found


def _limited(
    target: Target, job: Job, field: str, known: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Return the allowed degrees that a target knows."""
    allowed: tuple[int, ...] | None = getattr(job, field)
    if known is None or allowed is None:
        return known if allowed is None else allowed
    return _both(target, field, allowed, known)
