"""The search over sub-problems, the same for every engine.

An engine answers one ``(R, B, S)``; what is proven about all of them, and
what has to be re-checked, is decided here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from formulations.common import Instance, Slot, SubProblem
from formulations.nest_artifact import ArtifactInstance
from nest.cost.model import CostModel
from nest.cost.schedules import SCHEDULES
from nest.cost.score import score
from nest.errors import InvalidPlanError, SolverError
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import (
    Deadline,
    Limit,
    OutOfTimeError,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    Status,
)
from nest.solvers.warm_start import check_warm_start


@dataclass(frozen=True)
class Start:
    """A known plan in the terms of a sub-problem: what an engine is hinted.

    Attributes
    ----------
    slot_of
        Slot of each layer.
    strategy_of
        Strategy of each layer.
    places
        Offset and devices of each slot.
    """

    slot_of: tuple[int, ...]
    strategy_of: tuple[Strategy, ...]
    places: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Answer:
    """What an engine found out about one sub-problem.

    Attributes
    ----------
    finished
        It is proven that no plan beats ``plan``, or the cutoff if there is
        no plan.
    plan
        The best plan found.
    claimed_quanta
        Its step time by the model; may be too long if not finished.
    bound
        A lower bound on plans that beat the cutoff; ``None`` if unknown.
    """

    finished: bool
    plan: Plan | None = None
    claimed_quanta: float | None = None
    bound: int | None = None


class Engine(Protocol):
    """Solves sub-problems."""

    tolerance: float

    def solve(
        self,
        instance: Instance,
        sub_problem: SubProblem,
        slots: dict[int, Slot],
        cutoff: int | None,
        start: Start | None,
    ) -> Answer:
        """Find the best plan with a step time of at most ``cutoff``.

        Raises
        ------
        OutOfTimeError
            If the instance's deadline passes before the engine runs.
        """


#: How problems are taken apart, by the rules that are formulated.
INSTANCES = {"standard": Instance, "nest-artifact": ArtifactInstance}


def why_unsupported(problem: Problem) -> str | None:
    """Return why no formulation covers the problem, or ``None``."""
    name = CostModel(problem).rules.name
    if name not in INSTANCES:
        return (
            f"preset {name!r}: its rules are not formulated here; use solver "
            f"dp, or brute for small problems"
        )
    schedule = SCHEDULES[problem.job.schedule]
    if {sum(schedule.paces(1, 0)), sum(schedule.paces(0, 1))} != {1}:
        return (
            f"schedule {schedule.name!r}: paces that add up to more or less "
            f"than the load are not formulated here; use solver dp, or brute "
            f"for small problems"
        )
    return None


def search(
    name: str,
    problem: Problem,
    engine: Engine,
    options: SolveOptions,
    report: Report,
    deadline: Deadline,
) -> SolverOutput:
    """Solve all sub-problems, most promising first, and combine the proofs.

    Raises
    ------
    InvalidPlanError
        If the warm start does not fit.
    SolverError
        If an engine's plan is not what the engine says it is.
    """
    model = CostModel(problem)
    instance = INSTANCES[model.rules.name](problem, model, deadline)
    best: Plan | None = None
    best_quanta: int | None = None
    if options.warm_start is not None:
        best = options.warm_start
        best_quanta = check_warm_start(problem, best, model)
        report(Progress(plan=best, claimed_quanta=best_quanta))

    todo: list[SubProblem] = []
    unfinished: list[int] = []
    num_solved, limit = 0, None
    try:
        todo = instance.sub_problems()
    except OutOfTimeError:
        unfinished.append(0)
        limit = Limit.TIME
    num_sub_problems = len(todo)
    reported = None

    def proven() -> int | None:
        """Return the best bound so far."""
        bounds = [*unfinished, *(p.bound for p in todo[:1])]
        if best_quanta is not None:
            bounds.append(
                best_quanta - math.floor(best_quanta * engine.tolerance)
            )
        return min(bounds, default=None)

    while todo:
        sub_problem = todo[0]
        if best_quanta is not None and sub_problem.bound >= best_quanta:
            break
        if options.reached(best_quanta, min([sub_problem.bound, *unfinished])):
            break
        cutoff = None
        if best_quanta is not None:
            # What is better by less than the gap is of no interest.
            allowed = math.floor(Fraction(options.gap) * best_quanta)
            cutoff = best_quanta - 1 - allowed
        try:
            slots = instance.slots(sub_problem)
            answer = Answer(finished=True)
            if slots is not None:
                answer = engine.solve(
                    instance,
                    sub_problem,
                    slots,
                    cutoff,
                    _start(problem, options.warm_start, sub_problem),
                )
                num_solved += 1
        except OutOfTimeError:
            limit = Limit.TIME
            break
        del todo[0]
        if not answer.finished:
            limit = Limit.TIME
            unfinished.append(max(sub_problem.bound, answer.bound or 0))
        elif options.gap and cutoff is not None and answer.plan is None:
            refuted = cutoff + 1 - math.floor(cutoff * engine.tolerance)
            unfinished.append(max(sub_problem.bound, refuted))
        plan = None
        if answer.plan is not None:
            quanta = _check_plan(
                name, sub_problem, answer, problem, model, engine
            )
            if best_quanta is None or quanta < best_quanta:
                best = plan = answer.plan
                best_quanta = quanta
        bound = proven()
        if plan is not None or bound != reported:
            claimed = best_quanta if plan is not None else None
            report(Progress(plan, claimed, bound))
            reported = bound

    unfinished += [sub_problem.bound for sub_problem in todo]
    # A bound that reaches the incumbent settles its sub-problem.
    if best_quanta is not None:
        unfinished = [bound for bound in unfinished if bound < best_quanta]
    status, detail = Status.OPTIMAL, ""
    if not unfinished:
        limit = None
    if unfinished:
        status = Status.FEASIBLE
        if best is None:
            status = Status.NO_SOLUTION
        detail = "the sub-problems (R, B, S) could not be listed in time"
        if num_sub_problems:
            detail = (
                f"{len(unfinished)} of {num_sub_problems} sub-problems "
                f"(R, B, S) are open"
            )
    elif best is None:
        status = Status.INFEASIBLE
        detail = "no plan fits the devices' memory and the counting rules"
    return SolverOutput(
        status=status,
        plan=best,
        claimed_quanta=best_quanta,
        lower_bound_quanta=proven(),
        limit=limit,
        detail=detail,
        extra={"num_sub_problems": num_sub_problems, "num_solved": num_solved},
    )


def make_plan(
    name: str,
    instance: Instance,
    sub_problem: SubProblem,
    slot_of: Mapping[int, int],
    strategy_of: Mapping[int, Strategy],
) -> Plan:
    """Return the plan given by the slot and the strategy of each layer."""
    return Plan(
        replicas=sub_problem.split.replicas,
        micro_batch=sub_problem.split.micro_batch,
        stages=tuple(
            _make_stage(
                instance,
                [i for i in instance.graph.order if slot_of[i] == number],
                strategy_of,
            )
            for number in range(sub_problem.num_stages, 0, -1)
        ),
        solver=name,
    )


def _make_stage(
    instance: Instance, layers: list[int], strategy_of: Mapping[int, Strategy]
) -> Stage:
    """Return a stage; layers that all agree share one strategy."""
    chosen = tuple(strategy_of[layer] for layer in layers)
    alike = len(set(chosen)) == 1
    return Stage(
        layers=tuple(instance.problem.graph.layers[i].id for i in layers),
        devices=chosen[0].devices,
        strategy=chosen[0] if alike else None,
        strategies=None if alike else chosen,
    )


def _check_plan(
    name: str,
    sub_problem: SubProblem,
    answer: Answer,
    problem: Problem,
    model: CostModel,
    engine: Engine,
) -> int:
    """Return the shared score of an engine's plan, which it must match."""
    assert answer.plan is not None
    try:
        verdict = score(problem, answer.plan, model)
    except InvalidPlanError as error:
        raise SolverError(f"{name}: {sub_problem}: {error}") from error
    if not verdict.feasible:
        raise SolverError(f"{name}: {sub_problem}: {verdict.violations[0]}")
    claimed, quanta = answer.claimed_quanta, verdict.step_quanta
    slack = engine.tolerance * max(quanta, 1)
    # Only at an optimum are the terms of the model as small as they can be.
    if (
        claimed is None
        or claimed < quanta - slack
        or (answer.finished and claimed > quanta + slack)
    ):
        raise SolverError(
            f"{name}: {sub_problem}: expected the model's step time to be "
            f"that of its plan, {quanta} quanta, got {claimed}"
        )
    return quanta


def _start(
    problem: Problem, plan: Plan | None, sub_problem: SubProblem
) -> Start | None:
    """Return the warm start, if it belongs to the sub-problem."""
    if (
        plan is None
        or plan.replicas != sub_problem.split.replicas
        or plan.micro_batch != sub_problem.split.micro_batch
        or len(plan.stages) != sub_problem.num_stages
    ):
        return None
    index = problem.graph.index
    slots: dict[int, int] = {}
    strategy_of: dict[int, Strategy] = {}
    places: dict[int, tuple[int, int]] = {}
    offset = 0
    for position, stage in enumerate(plan.stages):
        number = sub_problem.num_stages - position
        for layer, strategy in zip(
            stage.layers, stage.layer_strategies, strict=True
        ):
            slots[index[str(layer)]] = number
            strategy_of[index[str(layer)]] = strategy
        places[number] = (offset, stage.devices)
        offset += stage.devices
    if sub_problem.strategy is not None and any(
        strategy != sub_problem.strategy for strategy in strategy_of.values()
    ):
        return None
    return Start(
        tuple(slots[layer] for layer in range(len(index))),
        tuple(strategy_of[layer] for layer in range(len(index))),
        places,
    )
