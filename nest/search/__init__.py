"""The exact searches: label setting over closed sets and offsets.

Read in this order: :mod:`~nest.search.algorithm` (the loop), :mod:`~nest.search.best`,
:mod:`~nest.search.stages.closed_sets`, :mod:`~nest.search.stages.options`,
:mod:`~nest.search.stages.paths`, :mod:`~nest.search.stages.bounds` and
:mod:`~nest.search.stages.labels`. Plans that are timed pass by pass are in
:mod:`~nest.search.passes.interleaved`, the methods for the frontier of step time
against memory in :mod:`~nest.search.frontier.exact`. The solver ``dp`` is in
:mod:`~nest.search.solver`.
"""
