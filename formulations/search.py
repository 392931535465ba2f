"""Branch and bound over sub-problems, the same for every engine.

:class:`NodeSearch` keeps a list of open nodes, ordered by their lower bounds.
A node is a set of plans: a sub-problem ``(R, B, S)`` of the layer form, or a
case ``(R, B)`` of the path form. The loop of :meth:`NodeSearch.run`:

1. Take the open node with the least bound. Stop if the bound is not below the
   best known step time (the incumbent), or if the gap is small enough.
2. Let the engine look for a plan of the node that is faster than the
   incumbent.
3. Score the plan of the engine with the shared cost model. A plan with
   another step time than the engine claims is an error.
4. Replace the node by its children, which contain the plans that the engine
   did not search.

When the loop ends, the least bound of the open nodes and the incumbent is a
lower bound on every plan.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from formulations.common import EngineResult, Instance, Start, SubProblem, Task
from formulations.instances import INSTANCES, instances_of
from formulations.nodes import NodeResult, SearchNode
from formulations.paths.cuts import Cuts
from formulations.paths.search import PathEngine, PathNode, path_nodes
from formulations.paths.stages import TooLargeError
from formulations.start import started
from formulations.timed import LayerChoiceProgram, TimedSearch, has_others, timed_only
from formulations.written import write_models
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import BatchSplit, runtime_of
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
Engine = Callable[[Task], EngineResult]


#: Values of the option ``form``, and what they are.
FORMS = ("paths", "layers")
FORM_OPTION = (
    "paths (default): a plan is a path, where a stage has one strategy and "
    "cuts are few; layers: a plan is a slot for every layer"
)


@dataclass(frozen=True)
class LayerNode:
    """A sub-problem of the layer form."""

    #: The sub-problem.
    instance: Instance
    sub_problem: SubProblem
    #: What solves it.
    engine: Engine
    #: A plan to start from, if it belongs to it.
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

    def solve(self, cutoff: int | None) -> NodeResult:
        """Find the best plan of at most ``cutoff`` quanta."""
        slots = self.instance.slots(self.sub_problem)
        if slots is None:
            return NodeResult(EngineResult(finished=True))
        problem = self.instance.problem
        start = _start(problem, self.warm_start, self.sub_problem)
        task = Task(self.instance, self.sub_problem, slots, cutoff, start)
        return NodeResult(self.engine(task), solved=True)


def form_of(name: str, options: SolveOptions) -> str:
    """Return which form a solver is asked for.

    Raises ``InvalidOptionError`` if there is no such form.
    """
    form = options.extra.get("form", FORMS[0])
    if form not in FORMS:
        raise InvalidOptionError(
            f"{name}: expected option form to be one of {', '.join(FORMS)}, "
            f"got {form!r}; correct the value"
        )
    return form


class Formulation(ABC):
    """A solver that asks an engine about one sub-problem after the other.

    The precision of its capabilities is what is put down to floats.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    @abstractmethod
    def engine(self, options: SolveOptions) -> Engine:
        """Return what solves sub-problems.

        Raises ``InvalidOptionError`` if an option is out of range.
        """

    def path_engine(self, options: SolveOptions) -> PathEngine | None:
        """Return what solves networks; ``None`` if it takes layers only."""
        return None

    def windows(self, task: Task) -> Iterator[Task]:
        """Divide the plans of a task by step time, the fastest first.

        A window contains the plans up to its cutoff that no earlier window contains.
        """
        yield task

    def write(self, task: Task, path: Path, comments: list[str]) -> dict[str, Any]:
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
        return write_models(self, problem, plan, folder, suffix, every)

    def least_work(
        self, work: LayerChoiceProgram, deadline: Deadline, options: SolveOptions
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
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        """Solve plans with a closed form, then those timed pass by pass.

        With a time limit the search begins from a plan of even stages.

        Raises ``InvalidOptionError`` if an option is out of range; ``InvalidPlanError``
        if the warm start does not fit; ``InvalidProblemError`` if times are too long
        for the engine; ``SolverError`` if the engine fails, or its plan is not what it
        says.
        """
        options = started(problem, options, self.capabilities)
        timed = timed_only(problem)
        if timed is None:
            return NodeSearch(self, problem, options, report).run()
        deadline = Deadline(options.time_limit_s)
        self.engine(options)
        model = CostModel(timed)
        plain = SolverOutput(status=Status.INFEASIBLE)
        if has_others(problem):
            limit_s = options.time_limit_s
            if limit_s is not None:
                limit_s *= PLAIN_SHARE
            plain = NodeSearch(
                self,
                problem,
                replace(options, time_limit_s=limit_s),
                lambda progress: report(replace(progress, lower_bound_quanta=None)),
            ).run()
        elif options.warm_start is not None:
            plain = SolverOutput(
                status=Status.FEASIBLE,
                plan=options.warm_start,
                claimed_quanta=check_warm_start(problem, options.warm_start, model),
                lower_bound_quanta=MAX_TOTAL,
            )
        timed_plans = TimedSearch(
            problem=timed,
            model=model,
            name=self.name,
            deadline=deadline,
            report=report,
            least_work=lambda work, clock: self.least_work(work, clock, options),
            best=plain.plan,
            best_quanta=plain.claimed_quanta,
        ).run()
        bounds = [] if timed_plans.bound is None else [timed_plans.bound]
        if plain.status is Status.OPTIMAL and plain.claimed_quanta is not None:
            bounds.append(plain.claimed_quanta)
        elif plain.lower_bound_quanta is not None or plain.limit is not None:
            bounds.append(plain.lower_bound_quanta or 0)
        step = timed_plans.step_quanta
        output = exact_output(
            timed_plans.plan,
            MAX_TOTAL + 1 if step is None else step,
            min(bounds, default=MAX_TOTAL + 1),
            plain.limit or (Limit.TIME if timed_plans.timed_out else None),
            "; ".join(filter(None, (plain.detail, OPEN))),
        )
        if output.lower_bound_quanta is None or not has_others(problem):
            return output
        # What is proven of plans with a closed form is as precise as that.
        proven = self.capabilities.proves(output.lower_bound_quanta)
        return replace(output, lower_bound_quanta=proven)

    def takes_paths(
        self, instance: Instance, options: SolveOptions
    ) -> PathEngine | None:
        """Return the engine of the path form, ``None`` for the layer form."""
        if form_of(self.name, options) != "paths":
            return None
        # Layers of a stage differ, or the rules of an audit cost it.
        if instance.artifact or instance.per_layer:
            return None
        return self.path_engine(options)


class NodeSearch:
    """Branch and bound over the nodes of one problem, which an engine solves.

    Options and report are those of :meth:`Formulation.solve`.
    """

    def __init__(
        self,
        formulation: Formulation,
        problem: Problem,
        options: SolveOptions,
        report: Report,
    ) -> None:
        self.formulation, self.options = formulation, options
        self.report = report
        self.proves = formulation.capabilities.proves
        self.engine = formulation.engine(options)
        model = CostModel(problem)
        self.instances = instances_of(problem, model, Deadline(options.time_limit_s))
        #: The best known plan and its step time.
        self.best: Plan | None = None
        self.best_quanta: int | None = None
        if options.warm_start is not None:
            self.best = options.warm_start
            self.best_quanta = check_warm_start(problem, self.best, model)
            report(Progress(plan=self.best, claimed_quanta=self.best_quanta))
        #: Nodes to be solved, by ascending bound.
        self.open: list[SearchNode] = []
        #: Lower bounds on plans that were not searched to the end.
        self.unfinished: list[int] = []
        self._settled: set[BatchSplit] = set()
        self._num_nodes = self._num_solved = 0
        self._limit: Limit | None = None
        self._reported: int | None = None

    def run(self) -> SolverOutput:
        """Solve nodes until the least bound is a proof."""
        self._list_nodes()
        while self.open and not self._is_settled(self.open[0]):
            node, cutoff = self.open[0], self._cutoff()
            try:
                result = self._solve(node, cutoff)
            except OutOfTimeError:
                self._limit = Limit.TIME
                break
            del self.open[0]
            for child in result.children:
                insort(self.open, child, key=_bound)
            self._note_bound(node, cutoff, result)
            self._note_plan(node, result.result)
        return self._output()

    def _list_nodes(self) -> None:
        try:
            for instance in self.instances.values():
                self.open += self._nodes(instance)
        except OutOfTimeError:
            self.open = []
            self.unfinished.append(0)
            self._limit = Limit.TIME
        self.open.sort(key=_bound)
        self._num_nodes = len(self.open)

    def _nodes(self, instance: Instance) -> list[SearchNode]:
        """Return the nodes of a runtime, in the path form if it applies."""
        solver = self.formulation
        solve_path = solver.takes_paths(instance, self.options)
        if solve_path is not None:
            cuts = Cuts(instance.model, instance.graph)
            if cuts.listed:
                return [
                    *path_nodes(instance, cuts, solve_path, solver.name, self.proves)
                ]
        return [
            self._layer_node(instance, sub_problem)
            for sub_problem in instance.sub_problems()
        ]

    def _layer_node(self, instance: Instance, sub_problem: SubProblem) -> LayerNode:
        return LayerNode(instance, sub_problem, self.engine, self.options.warm_start)

    def _is_settled(self, node: SearchNode) -> bool:
        """Whether no plan of the node, or of later ones, is of interest."""
        best = self.best_quanta
        if best is not None and node.bound >= best:
            return True
        return self.options.reached(best, min([node.bound, *self.unfinished]))

    def _cutoff(self) -> int | None:
        """Return the longest step time that improves the incumbent enough."""
        if self.best_quanta is None:
            return None
        # What is better by less than the gap is of no interest.
        allowed = math.floor(Fraction(self.options.gap) * self.best_quanta)
        return self.best_quanta - 1 - allowed

    def _solve(self, node: SearchNode, cutoff: int | None) -> NodeResult:
        """Solve a node; divide a case with too many paths into layer nodes."""
        try:
            return node.solve(cutoff)
        except TooLargeError:
            assert isinstance(node, PathNode)
            split, family = node.case
            children = tuple(
                self._layer_node(
                    node.instance,
                    replace(sub_problem, bound=max(node.bound, sub_problem.bound)),
                )
                for sub_problem in node.instance.of_case(split, family)
            )
            return NodeResult(EngineResult(finished=True), children)

    def _note_bound(
        self, node: SearchNode, cutoff: int | None, solved: NodeResult
    ) -> None:
        """Keep what is proven of the plans that were searched."""
        result, children = solved.result, solved.children
        if not children or result.plan is not None:
            self._settled.add(node.split)
        self._num_nodes += max(0, len(children) - 1)
        self._num_solved += solved.solved
        if not result.finished:
            self._limit = Limit.TIME
            self.unfinished.append(max(node.bound, result.bound or 0))
        elif (
            self.options.gap
            and cutoff is not None
            and result.plan is None
            and not children
        ):
            refuted = self.proves(cutoff) + 1
            self.unfinished.append(max(node.bound, refuted))

    def _note_plan(self, node: SearchNode, result: EngineResult) -> None:
        """Score the plan of an engine, and report what is new."""
        plan = None
        if result.plan is not None:
            quanta = self._check(node, result)
            if self.best_quanta is None or quanta < self.best_quanta:
                self.best = plan = result.plan
                self.best_quanta = quanta
        bound = self._proven()
        if plan is not None or bound != self._reported:
            claimed = self.best_quanta if plan is not None else None
            self.report(Progress(plan, claimed, bound))
            self._reported = bound

    def _proven(self) -> int | None:
        """Return the lower bound on all plans; ``None`` if there are none."""
        bounds = [*self.unfinished, *(node.bound for node in self.open[:1])]
        if self.best_quanta is not None:
            bounds.append(self.proves(self.best_quanta))
        return min(bounds, default=None)

    def _check(self, node: SearchNode, result: EngineResult) -> int:
        """Return the shared score of an engine's plan, which it must match."""
        assert result.plan is not None
        where = f"{self.formulation.name}: {node}"
        instance = node.instance
        try:
            verdict = score(instance.problem, result.plan, instance.model)
        except InvalidPlanError as error:
            raise SolverError(f"{where}: {error}") from error
        if not verdict.feasible:
            raise SolverError(f"{where}: {verdict.violations[0]}")
        claimed, quanta = result.claimed_quanta, verdict.step_quanta
        if quanta < node.bound:
            text = wrong_proof(node.split[:2], node.bound, quanta)
            raise SolverError(f"{where}: {text}; please report this problem")
        precision = self.formulation.capabilities.precision
        slack = precision * max(quanta, 1)
        # Only at an optimum are the terms of the model as small as can be.
        if (
            claimed is None
            or claimed < quanta - slack
            or (result.finished and claimed > quanta + slack)
        ):
            raise SolverError(
                f"{where}: expected the model's step time to be that of its "
                f"plan, {quanta} quanta, got {claimed}"
            )
        return quanta

    def _discarded(self) -> dict[BatchSplit, int]:
        """Return the bounds of the batch splits that were never solved."""
        bounds: dict[BatchSplit, int] = {}
        for node in self.open:
            if node.split not in self._settled:
                bound = bounds.get(node.split, node.bound)
                bounds[node.split] = min(bound, node.bound)
        return bounds

    def _output(self) -> SolverOutput:
        """Combine the incumbent and the bounds into a claim."""
        discarded = self._discarded()
        unfinished = self.unfinished + [node.bound for node in self.open]
        # A bound that reaches the incumbent settles its sub-problem.
        best_quanta = self.best_quanta
        if best_quanta is not None:
            unfinished = [bound for bound in unfinished if bound < best_quanta]
        self.unfinished = unfinished
        status, detail = self._status(len(unfinished))
        return SolverOutput(
            status=status,
            plan=self.best,
            claimed_quanta=best_quanta,
            lower_bound_quanta=self._proven(),
            limit=self._limit if unfinished else None,
            detail=detail,
            split_bounds=tuple(
                (split.replicas, split.micro_batch, bound)
                for split, bound in discarded.items()
            ),
            extra={"num_sub_problems": self._num_nodes, "num_solved": self._num_solved},
        )

    def _status(self, num_open: int) -> tuple[Status, str]:
        """Return the status and detail with so many bounds open."""
        if num_open:
            status = Status.FEASIBLE if self.best else Status.NO_SOLUTION
            kinds = "sub-problems (R, B, S)"
            if any(map(self._takes_paths, self.instances.values())):
                kinds = "cases (R, B)"
            if self._num_nodes:
                detail = f"{num_open} of {self._num_nodes} {kinds} are open"
            else:
                detail = f"the {kinds} could not be listed in time"
            if self.best is not None and self.best is self.options.warm_start:
                detail += "; the plan is the one that the search began from"
            return status, detail
        if self.best is None:
            return (
                Status.INFEASIBLE,
                "no plan fits the devices' memory and the counting rules",
            )
        return Status.OPTIMAL, ""

    def _takes_paths(self, instance: Instance) -> bool:
        return bool(self.formulation.takes_paths(instance, self.options))


def _bound(node: SearchNode) -> int:
    return node.bound


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
                [layers[i].id for i in inside[slot]],
                [strategy_of[i] for i in inside[slot]],
            )
            for slot in range(sub_problem.num_stages, 0, -1)
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
        slot = sub_problem.num_stages - position
        for layer, strategy in zip(stage.layers, stage.layer_strategies, strict=True):
            start.slot_of[index[str(layer)]] = slot
            start.strategy_of[index[str(layer)]] = strategy
        start.places[slot] = (offset, stage.devices)
        offset += stage.devices
    shared = sub_problem.strategy
    if shared is not None and {*start.strategy_of.values()} != {shared}:
        return None
    return start
