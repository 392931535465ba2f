"""Benchmarks: many problems, solvers and seeds, in runs that can be resumed.

:mod:`~nest.benchmarks.instances` says which problems a set has,
:mod:`~nest.benchmarks.cells` what is run, :mod:`~nest.benchmarks.store` keeps what is
finished, :mod:`~nest.benchmarks.engine` runs the rest, :mod:`~nest.benchmarks.rows`
holds the answers against each other, :mod:`~nest.benchmarks.statistics` counts, and
:mod:`~nest.present.pages.benchmark` says what came of it.
"""
