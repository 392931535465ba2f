"""Closed sets live in :mod:`nest.search.closed_sets`."""

from nest.search.closed_sets import (
    MAX_CLOSED_SETS,
    ClosedSets,
    Ints,
    closed_sets,
    enumerate_masks,
)

__all__ = ["MAX_CLOSED_SETS", "ClosedSets", "Ints", "closed_sets", "enumerate_masks"]
