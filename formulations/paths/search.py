"""Nodes of the path form: cases, searched in windows of step time.

A case is a split with the strategies that its stages choose from. The bound of
a case rises in steps. The first bound has no communication, the second one is
that of its table of stages. Then the engine gets the network of all plans in a
window: up to a step time a little above the bound. If there is no such plan,
the end of the window is the next bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from formulations.common import EngineResult, Instance
from formulations.nodes import NodeResult
from formulations.paths.cuts import Cuts
from formulations.paths.network import Builder, Network
from formulations.paths.stages import StageFamilyCase, StageTable
from nest.cost.schedules.base import weighted
from nest.cost.score import score
from nest.cost.space import BatchSplit
from nest.errors import SolverError
from nest.ir.plan import Plan, Stage
from nest.solvers.base import OutOfTimeError
from nest.units import MAX_TOTAL, ceil_div

#: A window ends so many times 1/64 of its bound later, at first.
SPREAD = 1

#: At most: a window is no longer than its bound.
MAX_SPREAD = 64


@dataclass(frozen=True)
class PathTask:
    """The task of an engine: the fastest path of a network."""

    #: The table of stages, and the network of some of them.
    table: StageTable
    network: Network
    #: Longest step time of a useful plan.
    cutoff: int
    #: Name of the solver.
    name: str

    def plan(self, stages: Sequence[int]) -> Plan:
        """Return the plan of a path."""
        table, cuts = self.table, self.table.cuts
        layers = table.problem.graph.layers
        runtime = table.model.runtime
        plan_stages = []
        for arc in stages:
            row = self.network.row[arc]
            device_range = table.places[table.place[row]]
            pair = table.pair[row]
            inside = cuts.layers(
                cuts.sets[cuts.tails[pair]], cuts.sets[cuts.heads[pair]]
            )
            strategy = device_range.choices[table.choice[row]].strategy
            plan_stages.append(
                Stage.of([layers[i].id for i in inside], [strategy] * len(inside))
            )
        return Plan(
            replicas=table.split.replicas,
            micro_batch=table.split.micro_batch,
            stages=tuple(plan_stages),
            overlap=runtime.named_overlap,
            distributed_optimizer=runtime.distributed_optimizer,
            solver=self.name,
        )

    def walk(self, taken: Callable[[int], float]) -> list[int]:
        """Return the path along the stages that are taken the most."""
        arcs = self.network.arcs
        leaving: dict[int, list[int]] = {}
        for arc, tail in enumerate(arcs.tail.tolist()):
            leaving.setdefault(tail, []).append(arc)
        here = [a for node in arcs.starts.tolist() for a in leaving.get(node, [])]
        path = []
        while here:
            path.append(max(here, key=taken))
            here = leaving.get(int(arcs.head[path[-1]]), [])
        return path


#: Finds the fastest path of a task. Raises ``OutOfTimeError`` if the deadline
#: passes before it runs, ``TooLargeError`` if numbers are too large for it.
PathEngine = Callable[[PathTask], EngineResult]


@dataclass(frozen=True)
class PathNode:
    """A case with its current bound."""

    #: The problem under one runtime, its cuts, and the case.
    instance: Instance = field(repr=False)
    cuts: Cuts = field(repr=False)
    case: StageFamilyCase
    #: The engine that finds paths, and the name of the solver.
    engine: PathEngine = field(repr=False)
    name: str
    #: Returns the step time that the engine refutes, within its precision.
    proves: Callable[[int], int] = field(repr=False)
    #: Lower bound on the step time of its plans.
    bound: int
    #: Length of the next window, in 1/64 of the bound.
    spread: int = SPREAD
    #: Builds the networks; ``None`` before the first call of :meth:`solve`.
    builder: Builder | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return str(self.case)

    @property
    def split(self) -> BatchSplit:
        """The ``(R, B)`` of all its plans."""
        return self.case.split

    def solve(self, cutoff: int | None) -> NodeResult:
        """Search the plans of the next window, or compute the next bound.

        Raises ``OutOfTimeError`` if the deadline passes, and ``TooLargeError`` if there
        are too many stages.
        """
        none = EngineResult(finished=True)
        if self.builder is None:
            builder = Builder(
                StageTable(
                    *(self.instance.model, self.cuts, self.case), self.instance.deadline
                )
            )
            builder_bound = builder.least()
            if builder_bound is None:
                return NodeResult(none)
            bound = max(self.bound, builder_bound)
            return NodeResult(none, (replace(self, bound=bound, builder=builder),))
        high = self.bound + self.spread * ceil_div(max(self.bound, 1), 64)
        high = min(high, MAX_TOTAL if cutoff is None else cutoff)
        network = self.builder.network(high)
        last = high in {cutoff, MAX_TOTAL}
        later = replace(self, bound=high + 1, spread=min(2 * self.spread, MAX_SPREAD))
        if network is None:
            last |= self.builder.complete
            return NodeResult(none, () if last else (later,))
        task = PathTask(self.builder.table, network, high, self.name)
        result = self._confirmed(network, high, self.engine(task))
        if not result.finished or result.plan is not None or last:
            return NodeResult(result, solved=True)
        refuted = replace(later, bound=self.proves(high) + 1)
        return NodeResult(result, (refuted,), solved=True)

    def _confirmed(
        self, network: Network, high: int, result: EngineResult
    ) -> EngineResult:
        """Confirm the result of an engine with exact integer bounds.

        If the time does not suffice, the result is not finished.

        Raises ``SolverError`` if there is a plan that the engine says there is not.
        """
        if not result.finished:
            if result.bound is None:
                return replace(result, bound=network.bound)
            return result
        assert self.builder is not None
        refuted = self.proves(high)
        if result.plan is not None:
            model = self.instance.model
            step = score(model.problem, result.plan, model).step_quanta
            refuted = min(refuted, self.proves(step) - 1)
        try:
            wrong = self.builder.holds(network, refuted)
        except OutOfTimeError:
            return replace(result, finished=False, bound=network.bound)
        if wrong:
            raise SolverError(
                f"{self.name}: {self}: expected no plan of {refuted} quanta "
                f"or less, as its engine says, got one; choose another "
                f"engine, or {self.name}.form=layers"
            )
        return result


def path_nodes(
    instance: Instance,
    cuts: Cuts,
    engine: PathEngine,
    name: str,
    proves: Callable[[int], int],
) -> Iterator[PathNode]:
    """Yield the cases of a runtime that may hold a plan.

    Raises ``OutOfTimeError`` if the deadline passes.
    """
    for split, family in instance.cases():
        instance.deadline.check()
        fits = [s for s in family.strategies if s.devices <= split.devices]
        case = StageFamilyCase(split, family._replace(strategies=tuple(fits)))
        bound = least_work(instance, case)
        if bound is not None:
            yield PathNode(instance, cuts, case, engine, name, proves, bound)


def least_work(instance: Instance, case: StageFamilyCase) -> int | None:
    """Return the least work of the layers without communication (P9).

    ``None`` if one of them has no strategy.
    """
    split, schedule = case.split, instance.schedule
    rounds = schedule.rounds(split.num_micro_batches)
    total = 0
    for members in instance.graph.members:
        costs = []
        for strategy in case.family.strategies:
            terms = instance.model.layer_terms(
                *(members[0], strategy, split.micro_batch, None), None, split.replicas
            )
            if terms is not None:
                paces = schedule.paces(terms)
                once: int = weighted(schedule.once, paces)
                wait: int = weighted(rounds, paces)
                costs.append(split.devices * once + strategy.devices * wait)
        if not costs:
            return None
        total += len(members) * min(costs)
    return ceil_div(total, split.devices)
