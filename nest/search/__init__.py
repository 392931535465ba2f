"""The exact searches: label setting over closed sets and offsets.

Read in this order: :mod:`~nest.search.best` (the algorithm that proves the optimum,
with its loop), :mod:`~nest.search.stages.closed_sets`,
:mod:`~nest.search.stages.options`, :mod:`~nest.search.stages.paths`,
:mod:`~nest.search.stages.bounds` and :mod:`~nest.search.stages.labels`. Then the
variants: one strategy for all stages (:mod:`~nest.search.stages.uniform`), a strategy
per layer (:mod:`~nest.search.layers.best`), plans that are timed pass by pass
(:mod:`~nest.search.passes.interleaved`) and the frontier of step time against memory
(:mod:`~nest.search.frontier.exact`). The solver ``dp`` is in
:mod:`~nest.search.solver`.
"""
