"""The best plan where all stages share one strategy.

Then a strategy ``n`` devices wide and a number of stages ``S`` leave only the
cuts open, and bound a plan well before any cut is looked at. Of a kind with
``c`` layers some stage has ``⌈c/S⌉``, so with ``o``, ``w`` and ``y`` the least
that a layer adds once, lets the others wait, and adds to ``Y``, wherever it
is:

``T >= Σ o + max(⌈Σ w / S⌉, max ⌈c/S⌉ w) + max(⌈Σ y / S⌉, max ⌈c/S⌉ y)``.

A stage with ``i`` micro-batches in flight has room for so many layers of a
kind alone; all stages together must have room for all of them.

Cases are taken by their bounds, the best first, and searched as
:mod:`nest.search.best` searches a split: for plans close to the bound first,
as most cases have none there. Where no bound is below the best plan known, it
is proven.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nest.cost.model import CostModel
from nest.cost.space import (
    BatchSplit,
    Family,
    batch_splits,
    families,
)
from nest.search.best import BestSearch, OpenSplit, work_bound
from nest.search.options import (
    INFINITE,
    BatchTerms,
    Bools,
    Ints,
    StageOptions,
    StageShapes,
)
from nest.search.task import SearchTask
from nest.solvers.base import Limit, OutOfTimeError, Progress, SolverOutput

#: Plans are looked for first that are above their bound by such a part.
NEAR = 16


def stage_bounds(
    terms: BatchTerms, split: BatchSplit, counts: Sequence[int]
) -> Ints:
    """Return lower bounds on ``T`` of plans with one strategy.

    Of shape (strategies, numbers of stages), :data:`INFINITE` where no plan
    fits.
    """
    shapes, free, schedule = terms.shapes, terms.free, terms.schedule
    assert free is not None
    stages = np.array(counts, dtype=np.int64)
    several = len(shapes.model.problem.cluster.types) > 1
    load = terms.least_anywhere if several else terms.least_load[0]
    once = schedule.added(load)
    wait = schedule.waited(load, split.num_micro_batches)
    number = shapes.kind_counts[-1]
    bounds = (once @ number)[:, None] + np.zeros_like(stages)
    for cost in (wait, free.sync):
        most = -(-(cost @ number)[:, None] // stages)
        for kind, count in enumerate(number.tolist()):
            heaviest = cost[:, kind, None] * -(-count // stages)
            np.maximum(most, heaviest, out=most)
        bounds = bounds + most
    missing: Ints = free.missing.sum(axis=1)
    used: Ints = terms.devices[:, None] * stages
    fits: Bools = (used <= split.devices) & (missing == 0)[:, None]
    inflight = np.array(
        [
            schedule.inflight(left, split.num_micro_batches)
            for left in range(1, max(counts, default=0) + 1)
        ]
    )
    most_bytes = terms.most_bytes - 1
    for kind, count in enumerate(number.tolist()):
        room = most_bytes - free.working_bytes[:, kind, None]
        each = free.static_bytes[:, kind, None] + (
            inflight * free.kept_bytes[:, kind, None]
        )
        layers = np.where(room < 0, 0, room // np.maximum(each, 1))
        layers = np.where((each == 0) & (room >= 0), count, layers)
        together: Ints = np.minimum(layers, count).cumsum(axis=1)
        fits &= together[:, stages - 1] >= count
    return np.where(fits, bounds, INFINITE)


@dataclass(eq=False)
class Case:
    """One ``(R, B)`` with one strategy, and what bounds its plans.

    Attributes
    ----------
    number
        Its place among all.
    terms, split, family
        Which plans it has.
    bounds
        On ``T``, by the family's numbers of stages.
    tries
        How often it was searched.
    """

    number: int
    terms: BatchTerms
    split: BatchSplit
    family: Family
    bounds: Ints
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


def cases(model: CostModel, shapes: StageShapes) -> Iterator[Case]:
    """Yield every case that may have a plan.

    May be slow: the caller checks the time in between.
    """
    terms: dict[int, BatchTerms] = {}
    number = 0
    for split in batch_splits(model.problem):
        if split.micro_batch not in terms:
            terms[split.micro_batch] = BatchTerms(shapes, split.micro_batch)
        of_batch = terms[split.micro_batch]
        found = families(model.problem, split, of_batch.strategies)
        counts = sorted({n for family in found for n in family.stage_counts})
        if not counts:
            continue
        table = stage_bounds(of_batch, split, counts)
        row_of = {s: row for row, s in enumerate(of_batch.strategies)}
        for family in found:
            (strategy,) = family.strategies
            columns = np.searchsorted(counts, family.stage_counts)
            bounds = table[row_of[strategy], columns]
            if bounds.min() < INFINITE:
                yield Case(number, of_batch, split, family, bounds)
                number += 1


class UniformSearch(BestSearch):
    """The best plan of a problem whose stages share one strategy."""

    def run(self) -> SolverOutput:
        """Search every case whose bound is below the best plan."""
        self._heap: list[tuple[int, int, Case]] = []
        try:
            shapes = StageShapes(self.model, self.sets)
            for case in cases(self.model, shapes):
                self._check_time()
                heapq.heappush(self._heap, (case.bound, case.number, case))
        except OutOfTimeError:
            return self._known(0, Limit.TIME, "while bounding cases")
        try:
            while self._heap and self._heap[0][0] < self._enough():
                bound, _, case = self._heap[0]
                self._check_time()
                self.report(Progress(lower_bound_quanta=bound))
                self._settle_case(case)
        except OutOfTimeError:
            detail = f"{len(self._heap)} cases with one strategy not settled"
            return self._known(self._proven(), Limit.TIME, detail)
        if self._heap and self._heap[0][0] < self.best:
            return self._known(self._proven(), None, "within the gap")
        return self._known(self.best)

    def _proven(self) -> int:
        return min([self.best] + [bound for bound, _, _ in self._heap[:1]])

    def _settle_case(self, case: Case) -> None:
        """Search the plans of the first case that are close to its bound."""
        limit = min(case.limit(), self._enough())
        self._most = limit
        options = StageOptions(case.terms, case.split, case.below(limit))
        bound, least_total = work_bound(options)
        found = int(INFINITE)
        if bound < limit:
            item = OpenSplit(options, bound, least_total, case.number)
            found, _ = self._search(item)
        case.tries += 1
        case.bounds = np.maximum(case.bounds, min(limit, found))
        heapq.heapreplace(self._heap, (case.bound, case.number, case))


def search(task: SearchTask) -> SolverOutput:
    """Search every case of a problem; see :class:`UniformSearch`."""
    return UniformSearch(task).run()
