"""Lower bounds where all stages share one strategy, before any cut.

Then a strategy ``n`` devices wide and a number of stages ``S`` leave only the
cuts open. Of a kind with ``c`` layers some stage has ``⌈c/S⌉``, so with ``o``,
``w`` and ``y`` the least that a layer adds once, lets the others wait, and
adds to ``Y``, wherever it is:

``T >= Σ o + max(⌈Σ w / S⌉, max ⌈c/S⌉ w) + max(⌈Σ y / S⌉, max ⌈c/S⌉ y)``.

A stage with ``i`` micro-batches in flight has room for so many layers of a
kind alone; all stages together must have room for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nest.cost.space import BatchSplit, Family
from nest.search.stages.options import INFINITE, BatchTerms, Bools, Ints


def stage_bounds(terms: BatchTerms, split: BatchSplit, counts: Sequence[int]) -> Ints:
    """Return lower bounds on ``T`` of plans with one strategy.

    Of shape (strategies, numbers of stages), :data:`INFINITE` where no plan fits.
    """
    shapes, free, schedule = terms.shapes, terms.free, terms.schedule
    assert free is not None
    stages = np.array(counts, dtype=np.int64)
    several = len(shapes.model.problem.cluster.types) > 1
    load = terms.least_anywhere if several else terms.least_load[0]
    once = schedule.added(load)
    wait = schedule.waited(load, split.num_micro_batches)
    layers_of_kind = shapes.kind_counts[-1]
    bounds = (once @ layers_of_kind)[:, None] + np.zeros_like(stages)
    for cost in (wait, free.sync):
        max_sums = -(-(cost @ layers_of_kind)[:, None] // stages)
        for kind, count in enumerate(layers_of_kind.tolist()):
            heaviest = cost[:, kind, None] * -(-count // stages)
            np.maximum(max_sums, heaviest, out=max_sums)
        bounds = bounds + max_sums
    missing: Ints = free.missing.sum(axis=1)
    used: Ints = terms.devices[:, None] * stages
    fits: Bools = (used <= split.devices) & (missing == 0)[:, None]
    inflight = np.array(
        [
            schedule.inflight(remaining, split.num_micro_batches)
            for remaining in range(1, max(counts, default=0) + 1)
        ]
    )
    most_bytes = terms.max_bytes - 1
    for kind, count in enumerate(layers_of_kind.tolist()):
        room = most_bytes - free.working_bytes[:, kind, None]
        each = free.static_bytes[:, kind, None] + (
            inflight * free.kept_bytes[:, kind, None]
        )
        layers = np.where(room < 0, 0, room // np.maximum(each, 1))
        layers = np.where((each == 0) & (room >= 0), count, layers)
        together: Ints = np.minimum(layers, count).cumsum(axis=1)
        fits &= together[:, stages - 1] >= count
    return np.where(fits, bounds, INFINITE)


def bound_families(
    terms: BatchTerms, split: BatchSplit, every: Sequence[Family]
) -> Iterator[tuple[Family, Ints]]:
    """Yield families of one strategy that may have plans, and their bounds.

    These are by the family's numbers of stages.
    """
    counts = sorted({n for family in every for n in family.stage_counts})
    if not counts:
        return
    table = stage_bounds(terms, split, counts)
    for family in every:
        (strategy,) = family.strategies
        columns = np.searchsorted(counts, family.stage_counts)
        bounds = table[terms.row_of[strategy], columns]
        if bounds.min() < INFINITE:
            yield family, bounds
