"""A model on the points of a space: operators, tables of times, problems.

The step time of a point is that of the best plan of the problem whose layers
take what shortest schedules of their operators take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nest.accelerators.architecture import Architecture
from nest.accelerators.layers import LayerWork, Pass, Runs
from nest.accelerators.operators import OperatorWork, Timed, timed
from nest.accelerators.problem import with_times
from nest.accelerators.systolic import Convention
from nest.errors import InvalidPlanError
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.operator_schedule import (
    Cores,
    Engine,
    Operator,
    bounds,
    makespan_ticks,
    quick_ticks,
)
from nest.solvers.base import Deadline
from nest.units import ceil_div

#: Of all problems, so that their step times can be compared: fine enough that
#: layers lose nothing that matters, coarse enough for steps of 200 days.
QUANTUM_PS = 10

#: Shortest times of passes in ps, by their numbers.
Times = Mapping[int, int]


class Workload:
    """The operators that the layers of a model run, under every split.

    For ``base`` see :func:`nest.accelerators.problem.base_problem`, for ``works``
    :func:`nest.accelerators.layers.layer_works`.
    """

    def __init__(
        self,
        name: str,
        base: Problem,
        works: Sequence[LayerWork],
        convention: Convention,
    ) -> None:
        self.name, self.base, self.convention = name, base, convention
        self.works = {(work.kind, work.key): work for work in works}
        numbers: dict[Pass, int] = {}
        for work in works:
            for runs in (work.forward, work.backward, work.repeated):
                for each, _ in runs:
                    numbers.setdefault(each, len(numbers))
        self.passes: tuple[Pass, ...] = tuple(numbers)
        self._numbers = numbers

    def operators(self, index: int, architecture: Architecture) -> list[Operator]:
        """Return the operators of a pass, in ps, as they are scheduled."""
        each = self.passes[index]
        return [
            _operator(str(i), work, timed(work, architecture, self.convention), after)
            for i, (work, after) in enumerate(zip(each.works, each.after, strict=True))
        ]

    def least(self, architecture: Architecture) -> dict[int, int]:
        """Return what no schedule of each pass is shorter than, in ps."""
        return {i: least for i, (least, _) in enumerate(self._bounds(architecture))}

    def quick(self, architecture: Architecture) -> tuple[dict[int, int], set[int]]:
        """Return bounds in ps, and which of them are the makespan.

        Those of most passes are: only what bounds and the own search of
        schedules leave open is not.
        """
        cores = cores_of(architecture)
        times, proven = {}, set()
        for index in range(len(self.passes)):
            operators = self.operators(index, architecture)
            times[index], is_shortest = quick_ticks(operators, cores)
            if is_shortest:
                proven.add(index)
        return times, proven

    def shortest(
        self,
        architecture: Architecture,
        deadline: Deadline | None = None,
        numbers: Iterable[int] | None = None,
    ) -> dict[int, int]:
        """Return the makespan of the shortest schedule of passes, in ps.

        ``numbers`` says which passes are meant, by default all.

        Raises ``OutOfTimeError`` if one of them is not proven in time.
        """
        cores = cores_of(architecture)
        chosen = range(len(self.passes)) if numbers is None else sorted(numbers)
        operators = ((i, self.operators(i, architecture)) for i in chosen)
        return {i: makespan_ticks(x, cores, deadline=deadline) for i, x in operators}

    def in_sequence(self, architecture: Architecture) -> dict[int, int]:
        """Return what passes take one operator after the other, in ps.

        Each operator the faster way.
        """
        return {i: most for i, (_, most) in enumerate(self._bounds(architecture))}

    def _bounds(self, architecture: Architecture) -> list[tuple[int, int]]:
        cores = cores_of(architecture)
        indices = range(len(self.passes))
        return [bounds(self.operators(i, architecture), cores) for i in indices]

    def works_of(self, plan: Plan) -> Iterator[tuple[Stage, Strategy, LayerWork]]:
        """Yield what every layer of a plan runs: stage, strategy and work.

        Raises ``InvalidPlanError`` if the plan has a layer or a split that the model
        has not.
        """
        kinds = {layer.id: layer.kind for layer in self.base.graph.layers}
        for stage in plan.stages:
            for layer, strategy in zip(
                stage.layers, stage.layer_strategies, strict=True
            ):
                samples = plan.micro_batch // strategy.dp
                key = kinds.get(layer, ""), (*strategy.degrees, samples)
                work = self.works.get(key)
                if work is None:
                    raise InvalidPlanError(
                        f"{layer}: expected a layer and a split of "
                        f"{self.name}, got {strategy} with {samples} samples; "
                        f"check that plan and model belong together"
                    )
                yield stage, strategy, work

    def passes_of(self, plan: Plan) -> frozenset[int]:
        """Return the numbers of the passes that a plan may run."""
        return frozenset(
            self._numbers[each]
            for _, _, work in self.works_of(plan)
            for runs in (work.forward, work.backward, work.repeated)
            for each, _ in runs
        )

    def problem(self, architecture: Architecture, entries: Sequence[int]) -> Problem:
        """Return the problem of a point whose passes take some times."""
        times_ps = iter([QUANTUM_PS * entry for entry in entries])
        triples = zip(times_ps, times_ps, times_ps, strict=True)
        times = dict(zip(self.works, triples, strict=True))
        return with_times(self.base, times, architecture, QUANTUM_PS)

    def entries(self, times: Times) -> tuple[int, ...]:
        """Return the times of a table in quanta, entry by entry.

        Forward and backward passes, and what is repeated, of every kind and key.
        """
        return tuple(
            self._quanta(runs, times)
            for work in self.works.values()
            for runs in (work.forward, work.backward, work.repeated)
        )

    def _quanta(self, runs: Runs, times: Times) -> int:
        """Return what passes take, rounded up once."""
        total_ps = sum(count * times[self._numbers[each]] for each, count in runs)
        return ceil_div(total_ps, QUANTUM_PS)


def cores_of(architecture: Architecture) -> Cores:
    """Return the cores that operators are scheduled on."""
    return Cores(architecture.tensor_cores, architecture.vector_cores)


def _operator(
    name: str, work: OperatorWork, times: Timed, after: tuple[int, ...]
) -> Operator:
    engine: Engine = "both" if work.gemms else "vector"
    if not work.vectors:
        engine = "tensor" if work.gemms else "none"
    return Operator(
        name=name,
        engine=engine,
        single_ticks=times.single_ps,
        whole_ticks=times.whole_ps,
        single_channel_ticks=times.single_traffic_ps,
        whole_channel_ticks=times.whole_traffic_ps,
        after=tuple(map(str, after)),
    )
