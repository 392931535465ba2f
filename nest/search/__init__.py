"""The exact searches: label setting over closed sets and offsets.

Read in this order: :mod:`~nest.search.best` (the algorithm that proves the optimum,
with its loop), :mod:`~nest.search.closed_sets`, :mod:`~nest.search.options`,
:mod:`~nest.search.paths`, :mod:`~nest.search.bounds` and :mod:`~nest.search.labels`.
Then the variants: one strategy for all stages (:mod:`~nest.search.uniform`), a strategy
per layer (:mod:`~nest.search.layers`), plans that are timed pass by pass
(:mod:`~nest.search.interleaved`) and the frontier of step time against memory
(:mod:`~nest.search.frontier`). The solver ``dp`` is in :mod:`~nest.search.solver`.
"""
