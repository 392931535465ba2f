"""One case after the other, in windows of step time, best bound first.

A case is a split with the strategies that its stages choose from. What is
known of it grows: at first a bound without communication, then one of its
table; then the plans up to a step time a little above are a network for an
engine, and if it has none, that is the next bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from formulations.common import EngineResult, Instance
from formulations.nodes import NodeResult
from formulations.paths.cuts import Cuts
from formulations.paths.network import Builder, Network
from formulations.paths.stages import Case, StageTable
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
    """What an engine is asked: the fastest path of a network.

    Attributes
    ----------
    table, network
        The network, and the table that its stages are from.
    cutoff
        No plan with a step time above is of use.
    name
        Of the solver.
    """

    table: StageTable
    network: Network
    cutoff: int
    name: str

    def plan(self, stages: Sequence[int]) -> Plan:
        """Return the plan of a path."""
        table, cuts = self.table, self.table.cuts
        layers = table.problem.graph.layers
        runtime = table.model.runtime
        found = []
        for arc in stages:
            row = self.network.row[arc]
            place = table.places[table.place[row]]
            pair = table.pair[row]
            inside = cuts.layers(
                cuts.sets[cuts.tails[pair]], cuts.sets[cuts.heads[pair]]
            )
            strategy = place.choices[table.choice[row]].strategy
            found.append(
                Stage.of(
                    [layers[i].id for i in inside], [strategy] * len(inside)
                )
            )
        return Plan(
            replicas=table.split.replicas,
            micro_batch=table.split.micro_batch,
            stages=tuple(found),
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
        here = [
            a for node in arcs.starts.tolist() for a in leaving.get(node, [])
        ]
        found = []
        while here:
            found.append(max(here, key=taken))
            here = leaving.get(int(arcs.head[found[-1]]), [])
        return found


#: Finds the fastest path of a task. Raises ``OutOfTimeError`` if the deadline
#: passes before it runs, ``TooLargeError`` if numbers are too large for it.
PathEngine = Callable[[PathTask], EngineResult]


@dataclass(frozen=True)
class PathNode:
    """A case, and what is known of it.

    Attributes
    ----------
    instance, cuts, case
        The runtime's problem, where it can be cut, and the case.
    engine, name
        What finds paths, and the name of the solver.
    proves
        What it proves that nothing is as fast as a time: up to which time.
    bound
        No plan is faster.
    spread
        How long the next window is.
    builder
        Makes its networks; ``None`` until its turn comes.
    """

    instance: Instance = field(repr=False)
    cuts: Cuts = field(repr=False)
    case: Case
    engine: PathEngine = field(repr=False)
    name: str
    proves: Callable[[int], int] = field(repr=False)
    bound: int
    spread: int = SPREAD
    builder: Builder | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return str(self.case)

    @property
    def split(self) -> BatchSplit:
        """The ``(R, B)`` of all its plans."""
        return self.case.split

    def solve(self, cutoff: int | None) -> NodeResult:
        """Look at the plans of the next window, or at what bounds it.

        Raises
        ------
        OutOfTimeError
            If the deadline passes.
        TooLargeError
            If there are too many stages.
        """
        none = EngineResult(finished=True)
        if self.builder is None:
            builder = Builder(
                StageTable(
                    *(self.instance.model, self.cuts, self.case),
                    self.instance.deadline,
                )
            )
            least = builder.least()
            if least is None:
                return NodeResult(none)
            bound = max(self.bound, least)
            return NodeResult(
                none, (replace(self, bound=bound, builder=builder),)
            )
        high = self.bound + self.spread * ceil_div(max(self.bound, 1), 64)
        high = min(high, MAX_TOTAL if cutoff is None else cutoff)
        network = self.builder.network(high)
        last = high in {cutoff, MAX_TOTAL}
        later = replace(
            self,
            bound=high + 1,
            spread=min(2 * self.spread, MAX_SPREAD),
        )
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
        """Return an answer that whole numbers have shown to be right.

        One that time did not suffice to look at is not finished.

        Raises
        ------
        SolverError
            If there is a plan that the engine says there is not.
        """
        if not result.finished:
            if result.bound is None:
                return replace(result, bound=network.bound)
            return result
        assert self.builder is not None
        most = self.proves(high)
        if result.plan is not None:
            model = self.instance.model
            step = score(model.problem, result.plan, model).step_quanta
            most = min(most, self.proves(step) - 1)
        try:
            wrong = self.builder.holds(network, most)
        except OutOfTimeError:
            return replace(result, finished=False, bound=network.bound)
        if wrong:
            raise SolverError(
                f"{self.name}: {self}: expected no plan of {most} quanta or "
                f"less, as its engine says, got one; choose another engine, "
                f"or {self.name}.form=layers"
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

    Raises
    ------
    OutOfTimeError
        If the deadline passes.
    """
    for split, family in instance.cases():
        instance.deadline.check()
        fits = [s for s in family.strategies if s.devices <= split.devices]
        case = Case(split, family._replace(strategies=tuple(fits)))
        bound = least_work(instance, case)
        if bound is not None:
            yield PathNode(instance, cuts, case, engine, name, proves, bound)


def least_work(instance: Instance, case: Case) -> int | None:
    """Return what the layers take at least without any communication (P9).

    ``None`` if one of them has no strategy.
    """
    split, schedule = case.split, instance.schedule
    rounds = schedule.rounds(split.num_micro_batches)
    total = 0
    for members in instance.graph.members:
        costs = []
        for strategy in case.family.strategies:
            terms = instance.model.layer_terms(
                *(members[0], strategy, split.micro_batch, None),
                None,
                split.replicas,
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
