"""The best plan where all stages share one strategy.

Cases, ``(R, B)`` with a strategy, are taken by their bounds
(:mod:`nest.search.stages.uniform_bounds`), the best first, and searched as
:mod:`nest.search.best` searches a split: for plans close to the bound first, as most
cases have none there. Where no bound is below the best plan known, it is proven.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nest.cost.space import BatchSplit, Family, families
from nest.search.best import BestSearch, as_triples
from nest.search.stages.options import (
    INFINITE,
    BatchTerms,
    Ints,
    StageOptions,
    StageShapes,
    batch_terms,
)
from nest.search.stages.splits import OpenSplit, work_bound
from nest.search.stages.uniform_bounds import bound_families
from nest.search.task import SearchTask
from nest.solvers.base import EnoughError, Progress, SolverOutput

#: Plans are looked for first that are above their bound by such a part.
NEAR = 16


@dataclass(eq=False)
class BatchCase:
    """One ``(R, B)`` with one strategy, and what bounds its plans."""

    #: Which plans it has.
    terms: BatchTerms
    split: BatchSplit
    family: Family
    #: On ``T``, by the family's numbers of stages.
    bounds: Ints
    #: How often it was searched.
    tries: int = 0

    @property
    def bound(self) -> int:
        """The least of the bounds."""
        return int(self.bounds.min())

    def limit(self) -> int:
        """Return what plans are looked for below; more with every try."""
        return self.bound + (self.bound // NEAR + 1 << 2 * self.tries)

    def below(self, upper: int) -> Family:
        """Return the family with the numbers of stages of such plans."""
        counts = np.array(self.family.stage_counts)[self.bounds < upper]
        return self.family._replace(stage_counts=tuple(counts.tolist()))


class UniformSearch(BestSearch):
    """The best plan of a problem whose stages share one strategy."""

    unit: ClassVar[str] = "cases"

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        self._heap: list[tuple[int, int, BatchCase]] = []

    def _open(self) -> list[OpenSplit]:
        """Bound all cases; each becomes a split when it is searched."""
        shapes = StageShapes(self.model, self.sets, self.deadline)
        problem = self.model.problem
        for runtime in self.runtimes:
            for split, terms in batch_terms(shapes, runtime):
                every = families(problem, split, terms.strategies, runtime)
                for family, bounds in bound_families(terms, split, every):
                    self.deadline.check()
                    case = BatchCase(terms, split, family, bounds)
                    heapq.heappush(self._heap, (case.bound, len(self._heap), case))
        return []

    def _find_plans(self, splits: list[OpenSplit]) -> list[OpenSplit]:
        """Leave it to the proof, which searches the best cases first."""
        return splits

    def _prove(self, splits: list[OpenSplit]) -> None:
        """Search the case of least bound until none is below the best plan."""
        while self._heap and self._heap[0][0] < self._enough():
            bound, index, case = self._heap[0]
            self.deadline.check()
            self.report(Progress(lower_bound_quanta=bound))
            self._settle_case(index, case)
        if self._proven() < self.best:
            raise EnoughError

    def _remaining(self) -> str:
        return f"{len(self._heap)} cases with one strategy not settled"

    def _split_bounds(self) -> tuple[tuple[int, int, int], ...]:
        """Return what no plan of each batch split takes less than."""
        bounds: dict[tuple[int, int], int] = {}
        for bound, _, case in self._heap:
            key = (case.split.replicas, case.split.micro_batch)
            bounds[key] = min(bounds.get(key, bound), bound)
        return as_triples(bounds)

    def _proven(self) -> int:
        return min([self.best] + [bound for bound, _, _ in self._heap[:1]])

    def _settle_case(self, index: int, case: BatchCase) -> None:
        """Search the plans of the first case that are close to its bound."""
        limit = min(case.limit(), self._enough())
        options = StageOptions(case.terms, case.split, case.below(limit))
        bound, min_total = work_bound(options)
        step_quanta = int(INFINITE)
        if bound < limit:
            item = OpenSplit(options, bound, min_total, index)
            step_quanta, _ = self._search_split(item)
        case.tries += 1
        case.bounds = np.maximum(case.bounds, min(limit, step_quanta))
        heapq.heapreplace(self._heap, (case.bound, index, case))


def search(task: SearchTask) -> SolverOutput:
    """Search every case of a problem; see :class:`UniformSearch`."""
    return UniformSearch(task).run()
