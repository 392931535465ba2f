"""The search over sub-problems, the same for every engine.

An engine answers one ``(R, B, S)`` under one way to run the stages; what is
proven about all of them, and what has to be re-checked, is decided here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Protocol

from formulations.common import Answer, Instance, Start, SubProblem, Task
from formulations.nest_artifact import ArtifactInstance
from formulations.paths.cuts import Cuts
from formulations.paths.search import PathEngine, PathPart, path_parts
from formulations.paths.stages import TooLargeError
from formulations.timed import TimedSearch, Work, has_others, timed_only
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import (
    BatchSplit,
    Runtime,
    leading_runtimes,
    runtime_of,
)
from nest.errors import InvalidOptionError, InvalidPlanError, SolverError
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Limit,
    OutOfTimeError,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    Status,
    exact_output,
    ignore_progress,
    wrong_proof,
)
from nest.solvers.warm_start import check_warm_start
from nest.units import MAX_TOTAL

#: Share of the time limit for plans with a closed form where there are others.
PLAIN_SHARE = 0.6

#: What the detail of a result says where plans timed pass by pass are open.
OPEN = "plans timed pass by pass are bounded by the work of all devices"


#: Finds the best plan of a task with a step time of at most its cutoff.
#: Raises ``OutOfTimeError`` if the deadline passes before an engine runs.
Engine = Callable[[Task], Answer]

#: How problems are taken apart, by the rules that are formulated.
INSTANCES = {"standard": Instance, "nest-artifact": ArtifactInstance}


#: Values of the option ``form``, and what they are.
FORMS = ("paths", "layers")
FORM_OPTION = (
    "paths (default): a plan is a path, where a stage has one strategy and "
    "cuts are few; layers: a plan is a slot for every layer"
)


class Part(Protocol):
    """Plans that are settled together."""

    @property
    def instance(self) -> Instance:
        """The runtime's problem."""

    @property
    def bound(self) -> int:
        """No plan is faster."""

    @property
    def split(self) -> BatchSplit:
        """The ``(R, B)`` of all its plans."""

    def ask(self, cutoff: int | None) -> tuple[Answer, tuple[Part, ...], bool]:
        """Look for a plan within a cutoff.

        Return what is known of the plans that were looked at, parts with
        all others, and whether an engine ran.

        Raises
        ------
        OutOfTimeError
            If the deadline passes.
        """


@dataclass(frozen=True)
class LayerPart:
    """A sub-problem of the layer form.

    Attributes
    ----------
    instance, sub_problem
        The sub-problem.
    engine
        What solves it.
    warm_start
        A plan to start from, if it belongs to it.
    """

    instance: Instance
    sub_problem: SubProblem
    engine: Engine
    warm_start: Plan | None

    @property
    def bound(self) -> int:
        """No plan is faster."""
        return self.sub_problem.bound

    @property
    def split(self) -> BatchSplit:
        """The ``(R, B)`` of all its plans."""
        return self.sub_problem.split

    def __str__(self) -> str:
        return str(self.sub_problem)

    def ask(self, cutoff: int | None) -> tuple[Answer, tuple[Part, ...], bool]:
        """Find the best plan within a cutoff."""
        slots = self.instance.slots(self.sub_problem)
        if slots is None:
            return Answer(finished=True), (), False
        problem = self.instance.problem
        start = _start(problem, self.warm_start, self.sub_problem)
        task = Task(self.instance, self.sub_problem, slots, cutoff, start)
        return self.engine(task), (), True


def _bound(part: Part) -> int:
    return part.bound


def form_of(name: str, options: SolveOptions) -> str:
    """Return which form a solver is asked for.

    Raises
    ------
    InvalidOptionError
        If there is no such form.
    """
    form = options.extra.get("form", FORMS[0])
    if form not in FORMS:
        raise InvalidOptionError(
            f"{name}: expected option form to be one of {', '.join(FORMS)}, "
            f"got {form!r}; correct the value"
        )
    return form


def instances_of(
    problem: Problem, model: CostModel, deadline: Deadline
) -> dict[Runtime, Instance]:
    """Return a problem taken apart, for every way to run the stages."""
    return {
        runtime: INSTANCES[model.rules.name](
            problem, model.under(runtime), deadline
        )
        for runtime in leading_runtimes(problem)
    }


class Formulation(ABC):
    """A solver that asks an engine about one sub-problem after the other.

    The precision of its capabilities is what is put down to floats.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    @abstractmethod
    def engine(self, options: SolveOptions) -> Engine:
        """Return what solves sub-problems.

        Raises
        ------
        InvalidOptionError
            If an option is out of range.
        """

    def path_engine(self, options: SolveOptions) -> PathEngine | None:
        """Return what solves networks; ``None`` if it takes layers only."""
        return None

    def parts(self, task: Task) -> Iterator[Task]:
        """Yield tasks that have the plans of a task, the fastest first.

        Each has all plans up to its cutoff that those before it do not have.
        """
        yield task

    def write(
        self, task: Task, path: Path, comments: list[str]
    ) -> dict[str, Any]:
        """Write the model of a task to a file, and return its figures.

        The end of the name is one of
        :attr:`~nest.solvers.base.Capabilities.model_files`.
        """
        raise NotImplementedError

    def write_models(
        self,
        problem: Problem,
        plan: Plan | None,
        folder: Path,
        suffix: str,
        every: bool,
    ) -> list[dict[str, Any]]:
        """Write models of a problem, see :mod:`formulations.written`."""
        from formulations.written import write_models

        return write_models(self, problem, plan, folder, suffix, every)

    def least_work(
        self, work: Work, deadline: Deadline, options: SolveOptions
    ) -> int | None:
        """Return what layers take at least, see :mod:`formulations.timed`.

        Here without a word about memory.
        """
        return work.priced(0, 1)

    def unsupported(self, problem: Problem) -> str | None:
        """Return why this problem cannot be searched, or ``None``."""
        name = CostModel(problem).rules.name
        if name not in INSTANCES:
            return (
                f"preset {name!r}: its rules are not formulated here; use "
                f"solver dp, or brute for small problems"
            )
        return None

    def solve(
        self,
        problem: Problem,
        options: SolveOptions,
        report: Report = ignore_progress,
    ) -> SolverOutput:
        """Solve plans with a closed form, then those timed pass by pass.

        Raises
        ------
        InvalidOptionError
            If an option is out of range.
        InvalidPlanError
            If the warm start does not fit.
        InvalidProblemError
            If times are too long for the engine.
        SolverError
            If the engine fails, or its plan is not what it says.
        """
        timed = timed_only(problem)
        if timed is None:
            return self._solve(problem, options, report)
        deadline = Deadline(options.time_limit_s)
        self.engine(options)
        model = CostModel(timed)
        plain = SolverOutput(status=Status.INFEASIBLE)
        if has_others(problem):
            limit_s = options.time_limit_s
            if limit_s is not None:
                limit_s *= PLAIN_SHARE
            plain = self._solve(
                problem,
                replace(options, time_limit_s=limit_s),
                lambda progress: report(
                    replace(progress, lower_bound_quanta=None)
                ),
            )
        elif options.warm_start is not None:
            plain = SolverOutput(
                status=Status.FEASIBLE,
                plan=options.warm_start,
                claimed_quanta=check_warm_start(
                    problem, options.warm_start, model
                ),
                lower_bound_quanta=MAX_TOTAL,
            )
        found = TimedSearch(
            *(timed, model, self.name, deadline, report),
            lambda work, clock: self.least_work(work, clock, options),
            *(plain.plan, plain.claimed_quanta),
        ).run()
        bounds = [] if found.bound is None else [found.bound]
        if plain.status is Status.OPTIMAL and plain.claimed_quanta is not None:
            bounds.append(plain.claimed_quanta)
        elif plain.lower_bound_quanta is not None or plain.limit is not None:
            bounds.append(plain.lower_bound_quanta or 0)
        step = found.step_quanta
        output = exact_output(
            found.plan,
            MAX_TOTAL + 1 if step is None else step,
            min(bounds, default=MAX_TOTAL + 1),
            plain.limit or (Limit.TIME if found.timed_out else None),
            "; ".join(filter(None, (plain.detail, OPEN))),
        )
        if output.lower_bound_quanta is None or not has_others(problem):
            return output
        # What is proven of plans with a closed form is as precise as that.
        proven = self.capabilities.proves(output.lower_bound_quanta)
        return replace(output, lower_bound_quanta=proven)

    def _solve(  # noqa: C901, PLR0915
        self, problem: Problem, options: SolveOptions, report: Report
    ) -> SolverOutput:
        """Solve all sub-problems, most promising first; combine the proofs."""
        deadline = Deadline(options.time_limit_s)
        engine = self.engine(options)
        model = CostModel(problem)
        instances = instances_of(problem, model, deadline)
        kinds = "sub-problems (R, B, S)"
        if any(self._takes_paths(i, options) for i in instances.values()):
            kinds = "cases (R, B)"
        best: Plan | None = None
        best_quanta: int | None = None
        if options.warm_start is not None:
            best = options.warm_start
            best_quanta = check_warm_start(problem, best, model)
            report(Progress(plan=best, claimed_quanta=best_quanta))

        todo: list[Part] = []
        unfinished: list[int] = []
        settled: set[BatchSplit] = set()
        num_parts, num_solved, limit = 0, 0, None
        try:
            for instance in instances.values():
                todo += self._parts(instance, options, engine)
            todo.sort(key=_bound)
        except OutOfTimeError:
            todo = []
            unfinished.append(0)
            limit = Limit.TIME
        num_parts = len(todo)
        reported = None

        def proven() -> int | None:
            """Return the best bound so far."""
            bounds = [*unfinished, *(p.bound for p in todo[:1])]
            if best_quanta is not None:
                bounds.append(self.capabilities.proves(best_quanta))
            return min(bounds, default=None)

        while todo:
            part = todo[0]
            if best_quanta is not None and part.bound >= best_quanta:
                break
            if options.reached(best_quanta, min([part.bound, *unfinished])):
                break
            cutoff = None
            if best_quanta is not None:
                # What is better by less than the gap is of no interest.
                allowed = math.floor(Fraction(options.gap) * best_quanta)
                cutoff = best_quanta - 1 - allowed
            try:
                answer, rest, solved = self._ask(part, cutoff, options, engine)
            except OutOfTimeError:
                limit = Limit.TIME
                break
            del todo[0]
            for other in rest:
                insort(todo, other, key=_bound)
            if not rest or answer.plan is not None:
                settled.add(part.split)
            num_parts += max(0, len(rest) - 1)
            num_solved += solved
            if not answer.finished:
                limit = Limit.TIME
                unfinished.append(max(part.bound, answer.bound or 0))
            elif (
                options.gap
                and cutoff is not None
                and answer.plan is None
                and not rest
            ):
                refuted = self.capabilities.proves(cutoff) + 1
                unfinished.append(max(part.bound, refuted))
            plan = None
            if answer.plan is not None:
                quanta = self._check(part, answer)
                if best_quanta is None or quanta < best_quanta:
                    best = plan = answer.plan
                    best_quanta = quanta
            bound = proven()
            if plan is not None or bound != reported:
                claimed = best_quanta if plan is not None else None
                report(Progress(plan, claimed, bound))
                reported = bound

        discarded: dict[BatchSplit, int] = {}
        for part in todo:
            if part.split not in settled:
                least = discarded.get(part.split, part.bound)
                discarded[part.split] = min(least, part.bound)
        unfinished += [part.bound for part in todo]
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
            detail = f"the {kinds} could not be listed in time"
            if num_parts:
                detail = f"{len(unfinished)} of {num_parts} {kinds} are open"
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
            split_bounds=tuple(
                (split.replicas, split.micro_batch, least)
                for split, least in discarded.items()
            ),
            extra={
                "num_sub_problems": num_parts,
                "num_solved": num_solved,
            },
        )

    def _parts(
        self, instance: Instance, options: SolveOptions, engine: Engine
    ) -> list[Part]:
        """Return what has to be settled of a runtime.

        Paths through cases, where that form applies; else sub-problems.
        """
        solve_path = self._takes_paths(instance, options)
        if solve_path is not None:
            cuts = Cuts(instance.model, instance.graph)
            if cuts.listed:
                proves = self.capabilities.proves
                return [
                    *path_parts(instance, cuts, solve_path, self.name, proves)
                ]
        return [
            LayerPart(instance, sub_problem, engine, options.warm_start)
            for sub_problem in instance.sub_problems()
        ]

    def _takes_paths(
        self, instance: Instance, options: SolveOptions
    ) -> PathEngine | None:
        """Return what solves networks, if plans are paths."""
        if form_of(self.name, options) != "paths":
            return None
        # Layers of a stage differ, or rules of another room price it.
        if instance.artifact or instance.per_layer:
            return None
        return self.path_engine(options)

    def _ask(
        self,
        part: Part,
        cutoff: int | None,
        options: SolveOptions,
        engine: Engine,
    ) -> tuple[Answer, tuple[Part, ...], bool]:
        """Ask about a part; where paths are too many, take layers for it."""
        try:
            return part.ask(cutoff)
        except TooLargeError:
            assert isinstance(part, PathPart)
            split, family = part.case
            return (
                Answer(finished=True),
                tuple(
                    LayerPart(
                        part.instance,
                        replace(found, bound=max(part.bound, found.bound)),
                        *(engine, options.warm_start),
                    )
                    for found in part.instance.of_case(split, family)
                ),
                False,
            )

    def _check(self, part: Part, answer: Answer) -> int:
        """Return the shared score of an engine's plan, which it must match."""
        assert answer.plan is not None
        where = f"{self.name}: {part}"
        instance = part.instance
        try:
            verdict = score(instance.problem, answer.plan, instance.model)
        except InvalidPlanError as error:
            raise SolverError(f"{where}: {error}") from error
        if not verdict.feasible:
            raise SolverError(f"{where}: {verdict.violations[0]}")
        claimed, quanta = answer.claimed_quanta, verdict.step_quanta
        if quanta < part.bound:
            text = wrong_proof(part.split[:2], part.bound, quanta)
            raise SolverError(f"{where}: {text}; please report this problem")
        slack = self.capabilities.precision * max(quanta, 1)
        # Only at an optimum are the terms of the model as small as can be.
        if (
            claimed is None
            or claimed < quanta - slack
            or (answer.finished and claimed > quanta + slack)
        ):
            raise SolverError(
                f"{where}: expected the model's step time to be that of its "
                f"plan, {quanta} quanta, got {claimed}"
            )
        return quanta


def make_plan(
    name: str,
    task: Task,
    slot_of: Mapping[int, int],
    strategy_of: Mapping[int, Strategy],
) -> Plan:
    """Return the plan given by the slot and the strategy of each layer."""
    instance, sub_problem = task.instance, task.sub_problem
    runtime = sub_problem.runtime
    layers = instance.problem.graph.layers
    inside: dict[int, list[int]] = {}
    for i in instance.graph.order:
        inside.setdefault(slot_of[i], []).append(i)
    return Plan(
        replicas=sub_problem.split.replicas,
        micro_batch=sub_problem.split.micro_batch,
        stages=tuple(
            Stage.of(
                [layers[i].id for i in inside[number]],
                [strategy_of[i] for i in inside[number]],
            )
            for number in range(sub_problem.num_stages, 0, -1)
        ),
        overlap=runtime.named_overlap,
        distributed_optimizer=runtime.distributed_optimizer,
        solver=name,
    )


def _start(
    problem: Problem, plan: Plan | None, sub_problem: SubProblem
) -> Start | None:
    """Return the warm start, if it belongs to the sub-problem."""
    if (
        plan is None
        or runtime_of(plan) != sub_problem.runtime
        or plan.replicas != sub_problem.split.replicas
        or plan.micro_batch != sub_problem.split.micro_batch
        or len(plan.stages) != sub_problem.num_stages
    ):
        return None
    index = problem.graph.index
    start = Start({}, {}, {})
    offset = 0
    for position, stage in enumerate(plan.stages):
        number = sub_problem.num_stages - position
        for layer, strategy in zip(
            stage.layers, stage.layer_strategies, strict=True
        ):
            start.slot_of[index[str(layer)]] = number
            start.strategy_of[index[str(layer)]] = strategy
        start.places[number] = (offset, stage.devices)
        offset += stage.devices
    shared = sub_problem.strategy
    if shared is not None and {*start.strategy_of.values()} != {shared}:
        return None
    return start
