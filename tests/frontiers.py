"""Frontiers of small problems: by enumeration, and by the search.

All tests enter the search by :func:`search` here, so that what they need to
know of it is in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from formulations.brute import PlanSpace
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import undivided
from nest.ir import Problem
from nest.search.frontier import exact as frontier
from nest.search.frontier import layer_least, levels
from nest.search.frontier import layers as layer_frontier
from nest.search.frontier.layers import LayerFrontierSearch
from nest.search.frontier.levels import FrontierSearch
from nest.search.frontier.orders import ordered
from nest.search.frontier.staircase import Gap, Point
from nest.search.stages import dominance, paths
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.splits import OpenSplit, PathBounds, bound_paths
from nest.solvers.base import Deadline

#: (memory in bytes, step time in quanta), by ascending memory.
Pairs = list[tuple[int, int]]

#: Constants of the search that no answer may depend on. Small problems reach
#: all of it only with some of these.
SETTINGS: dict[str, dict[str, int]] = {
    "as-it-is": {},
    # Nothing is known before the labels, and no level is cut.
    "labels-alone": {"ENOUGH": 10**9},
    # Every level is cut again, and so is the range of the largest load;
    # labels are compared head by head.
    "levels-cut-again": {
        "ENOUGH": 0,
        "NUM_PARTS": 2,
        "BATCH": 300,
        "NEAR": 16,
        "SQUARE": 0,
        "FINE": 10**9,
    },
}

#: The same of frontiers that are merged along the graph.
MERGING: dict[str, dict[str, int]] = {
    "as-it-is": {},
    # One level, and all of it at once.
    "one-level": {"WIDE": 1, "ENOUGH": 10**9},
    # Levels are cut small, ways are run one by one, bounds are rough.
    "cut-again": {
        "ENOUGH": 100,
        "WIDE": 8,
        "NEAR": 10**9,
        "MOST_LABELS": 1,
        "BATCH": 1,
        "CHUNK": 1,
        "MOST": 2,
    },
}

#: Where these constants are, if not in the room of frontiers.
ROOMS = {"SQUARE": dominance, "FINE": paths, "MOST": layer_least}


def _without_plans(
    item: OpenSplit, cap_bytes: int, upper: Any, offer: Any, found: Any = None
) -> PathBounds:
    """Bound a split by paths, none of which is offered as a plan."""
    return bound_paths(item, cap_bytes, upper, lambda *_: None, found)


@contextmanager
def settings(name: str) -> Iterator[None]:
    """Set the constants of a setting for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in SETTINGS[name].items():
            patch.setattr(ROOMS.get(constant, levels), constant, value)
        if name != "as-it-is":
            patch.setattr(levels, "bound_paths", _without_plans)
            patch.setattr(FrontierSearch, "_first_sweep", lambda self, splits: None)
        yield


def search(
    problem: Problem,
    setting: str = "as-it-is",
    deadline: Deadline | None = None,
    workers: int = 1,
) -> tuple[list[Point], list[Gap]]:
    """Return the points and gaps that the search finds."""
    with settings(setting):
        trace = ordered if problem.job.plans_order_passes else frontier.search
        return trace(
            CostModel(problem),
            closed_sets(problem.graph, together=undivided(problem)),
            deadline or Deadline(None),
            workers=workers,
        )


def merged(
    problem: Problem,
    setting: str = "as-it-is",
    deadline: Deadline | None = None,
    workers: int = 1,
) -> tuple[list[Point], list[Gap]]:
    """Return what merging frontiers finds if no plan is known."""
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in MERGING[setting].items():
            patch.setattr(ROOMS.get(constant, layer_frontier), constant, value)
        found = LayerFrontierSearch(
            CostModel(problem),
            closed_sets(problem.graph, together=undivided(problem)),
            deadline or Deadline(None),
            workers=workers,
        )
        gaps = found.run()
    return found.staircase.points, gaps


def pairs(points: Iterable[Point]) -> Pairs:
    """Return what points reach."""
    return [(p.memory_bytes, p.step_quanta) for p in points]


def searched(problem: Problem, setting: str = "as-it-is", workers: int = 1) -> Pairs:
    """Return the frontier, which must be proven."""
    points, gaps = search(problem, setting, workers=workers)
    assert gaps == []
    return pairs(points)


def space(problem: Problem, model: CostModel) -> PlanSpace:
    """Return all plans of a problem."""
    return PlanSpace(problem, model, Deadline(None))


def enumerated(problem: Problem) -> Pairs:
    """Return the frontier of every plan there is."""
    model = CostModel(problem)
    found = set()
    for plan in space(problem, model).plans():
        priced = score(problem, plan, model)
        if priced.feasible:
            memory = max(block.memory_bytes for block in priced.blocks)
            found.add((memory, priced.step_quanta))
    kept: Pairs = []
    for memory, step in sorted(found):
        if not kept or step < kept[-1][1]:
            kept.append((memory, step))
    return kept


def check_limited(points: Iterable[Point], gaps: list[Gap], truth: Pairs) -> None:
    """Hold an answer that time cut short against the whole frontier.

    Whatever was not found lies in a gap; what is proven is right.
    """
    found = pairs(points)
    for memory, step in truth:
        known = any(m <= memory and t <= step for m, t in found)
        assert known or any(
            gap.above_bytes < memory <= gap.up_to_bytes
            and gap.lower_bound_quanta <= step
            for gap in gaps
        ), f"nothing says that {step} quanta in {memory} bytes may be there"
    for memory, step in found:
        open_ = any(
            gap.above_bytes < memory and gap.lower_bound_quanta <= step for gap in gaps
        )
        assert open_ or (memory, step) in truth
