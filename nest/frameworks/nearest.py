"""The nearest plan that a framework can run, where it cannot run a plan.

All candidates have one strategy for all layers. They come in groups: the plan's
replicas, micro-batch and cuts; these with as many equal stages; with any number of
equal stages; any replicas and micro-batch. Of the first group in which a plan fits and
can be written, it is the fastest by the shared cost model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from nest.constraints.targets import for_target, inexpressible
from nest.constraints.targets import target as find
from nest.cost.model import CostModel
from nest.cost.schedules import schedule_of
from nest.cost.score import score
from nest.cost.space import batch_splits, strategies
from nest.cost.verdict import Score
from nest.errors import InvalidPlanError, NestError
from nest.frameworks.export import as_run_by, export
from nest.frameworks.launch import Settings, even_chunks
from nest.frameworks.layers import Placement, placement_of
from nest.ir.base import LayerId
from nest.ir.job import FIXED_CHUNKS
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.models.stated import shape_of

#: Loss of step time above which a search among all plans of the target is advised.
LARGE_LOSS = 0.05


class Nearest(NamedTuple):
    """The plan that a framework can run in place of another one, and its export.

    The problem is as the framework has it; ``changes`` are its differences from the
    job, as texts for the user. ``before`` is the score of the plan that was asked for,
    ``after`` that of this one.
    """

    problem: Problem
    plan: Plan
    changes: tuple[str, ...]
    files: dict[str, str]
    before: Score
    after: Score

    @property
    def text(self) -> str:
        """Return the change of the step time, as a text for the user."""
        before, after = self.before.step_time_ns, self.after.step_time_ns
        percent = (after / before - 1) * 100 if before else 0.0
        return (
            f"step time {before / 1e9:.6g} s as planned, {after / 1e9:.6g} s "
            f"as written ({percent:+z.2f} %)"
            + "".join(f"; {change}" for change in self.changes)
        )


def nearest(
    problem: Problem, plan: Plan, target: str, settings: Settings | None = None
) -> Nearest:
    """Return the nearest plan that a framework can run, and its export.

    The plan itself, if that is one. Arguments are those of
    :func:`nest.frameworks.export.export`.

    Raises ``InvalidPlanError`` if no plan that fits can be written; the text is the
    last reason.
    """
    before = score(problem, plan)
    as_run, changes = as_run_by(problem, target)
    # No framework's chunks turn back but under the schedule of the plan.
    suits = plan.order is not None or (
        plan.placement
        == schedule_of(as_run.job.schedule, plan.virtual_stages).placement
    )
    shape = shape_of(problem, settings and settings.model)
    if suits and not inexpressible(target, as_run, plan, shape):
        try:
            files = export(problem, plan, target, settings)
        except InvalidPlanError:
            pass
        else:
            after = score(as_run, plan)
            return Nearest(as_run, plan, changes, files, before, after)
    usual = _with_usual_schedule(as_run, target)
    targeted = for_target(usual, target, as_run.job.optimizer, shape)
    if targeted.job.schedule != as_run.job.schedule:
        theirs, ours = targeted.job.schedule_text, as_run.job.schedule_text
        changes = (f"schedule is {theirs}, not {ours}", *changes)
    costs = CostModel(targeted)
    refusal: InvalidPlanError | None = None
    for group in _candidates(targeted, plan):
        feasible: list[tuple[Plan, Score]] = []
        for candidate in group:
            try:
                verdict = score(targeted, candidate, costs)
            except InvalidPlanError:
                continue
            if verdict.feasible:
                feasible.append((candidate, verdict))
        for candidate, verdict in sorted(feasible, key=lambda x: x[1].step_quanta):
            try:
                files = export(targeted, candidate, target, settings)
            except InvalidPlanError as error:
                refusal = error
                continue
            return Nearest(targeted, candidate, changes, files, before, verdict)
    raise InvalidPlanError(
        f"--nearest: expected a plan that fits and that {target} can run, "
        f"got none ({refusal or 'too little memory, or no such split'}); "
        f"solve with --target {target}"
    )


def _with_usual_schedule(problem: Problem, target: str) -> Problem:
    """Return a problem with a schedule that the target has by name."""
    rules, job = find(target).rules, problem.job
    assert rules is not None
    if job.schedule in rules.schedule.value:
        return problem
    virtual = (1,) if job.schedule in FIXED_CHUNKS else job.virtual_stages
    usual = rules.schedule.value[0]
    job = replace(job, schedule=usual, virtual_stages=virtual)
    return replace(problem, job=job)


def _candidates(problem: Problem, plan: Plan) -> Iterator[list[Plan]]:
    """Yield groups of plans, the nearest group first."""
    job = problem.job
    virtual = plan.virtual_stages
    if virtual not in job.virtual_stages:
        virtual = 1
    sharded = plan.distributed_optimizer and job.distributed_optimizer
    base = replace(
        plan,
        virtual_stages=virtual,
        placement="loop",
        order=None,
        overlap=tuple(name for name in plan.overlap if name in job.overlap),
        distributed_optimizer=sharded,
        problem_hash=None,
        solver=None,
    )
    choices = strategies(problem, plan.micro_batch)
    if virtual == plan.virtual_stages:
        cut = [stage.layers for stage in plan.stages]
        yield list(_with_each(base, cut, choices))
    placement = placement_of(problem.graph)
    equal = even_cut(placement, plan.num_blocks * virtual)
    if equal is not None:
        yield list(_with_each(base, equal, choices))
    groups: tuple[list[Plan], list[Plan]] = ([], [])
    for split in batch_splits(problem):
        batches = {"replicas": split.replicas, "micro_batch": split.micro_batch}
        here = replace(base, virtual_stages=1, **batches)
        same = (here.replicas, here.micro_batch) == (plan.replicas, plan.micro_batch)
        choices_there = strategies(problem, split.micro_batch)
        for stages in range(1, min(split.devices, placement.layers) + 1):
            equal = even_cut(placement, stages)
            if equal is not None:
                fitting = [
                    x for x in choices_there if x.devices * stages <= split.devices
                ]
                groups[not same].extend(_with_each(here, equal, fitting))
    yield from groups


def _with_each(
    plan: Plan, cut: Sequence[Sequence[LayerId]], choices: Sequence[Strategy]
) -> Iterator[Plan]:
    """Yield a plan with these stages under every strategy."""
    for strategy in choices:
        stages = tuple(Stage.of(layers, [strategy] * len(layers)) for layers in cut)
        yield replace(plan, stages=stages)


def even_cut(placement: Placement, count: int) -> list[list[LayerId]] | None:
    """Return stages of equally many blocks, ``None`` if there are none."""
    chunks = even_chunks(placement.layers, count, placement.mtp)
    if chunks is None:
        return None
    try:
        return placement.cut(chunks)
    except InvalidPlanError:
        return None


def even_stages(problem: Problem, count: int) -> list[list[LayerId]] | None:
    """Return the layers of so many stages of equally many blocks.

    ``None`` if the blocks do not divide, or the graph is no chain of blocks.
    """
    try:
        return even_cut(placement_of(problem.graph), count)
    except NestError:
        return None
