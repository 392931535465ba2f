"""The exact search for the best plan, through one door.

As :mod:`tests.frontiers` for frontiers: what tests need to know of the search is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nest.cost.model import CostModel
from nest.cost.space import undivided
from nest.ir import Problem
from nest.search import best
from nest.search.layers import best as layers
from nest.search.stages import dominance, paths, zones
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.labels import LabelSearch
from nest.search.stages.paths import Paths
from nest.search.task import SearchTask
from nest.solvers.base import (
    Deadline,
    Progress,
    Report,
    SolverOutput,
    Status,
    ignore_progress,
)
from tests.clock import Ticking

#: Constants of the search that no answer may depend on.
SETTINGS: dict[str, dict[str, int]] = {
    "as-it-is": {},
    # Devices of any types may be anywhere.
    "without-zones": {"MAX_ZONES": 0},
    "proof-without-zones": {"MAX_ZONES": 0},
    # No plan is known before the proof begins: it has to find the best one.
    "proof-alone": {},
    # So too, with the in-flight counts of layers in groups, the largest load
    # in as many intervals as there are, and rows compared head by head.
    "proof-in-parts": {"EXACT_INFLIGHT": 1, "FINE": 10**9, "SQUARE": 0},
}

#: Where these constants are.
ROOMS = {
    "EXACT_INFLIGHT": layers,
    "FINE": paths,
    "MAX_ZONES": zones,
    "SQUARE": dominance,
}


@contextmanager
def settings(name: str) -> Iterator[None]:
    """Set the constants of a setting for a while."""
    pipelines, intervals = LabelSearch.pipelines, Paths.intervals
    refined = Paths.refined

    def only_exact(self: LabelSearch, max_labels: int | None) -> Any:
        return [] if max_labels is not None else pipelines(self, None)

    def without_plans(self: Paths, upper: int, offer: object) -> Any:
        return intervals(self, upper, lambda path: upper)

    def refined_without(self: Paths, some: Any, upper: int, offer: object) -> Any:
        return refined(self, some, upper, lambda path: upper)

    with pytest.MonkeyPatch.context() as patch:
        for constant, value in SETTINGS[name].items():
            patch.setattr(ROOMS[constant], constant, value)
        if name.startswith("proof"):
            patch.setattr(LabelSearch, "pipelines", only_exact)
            patch.setattr(Paths, "intervals", without_plans)
            patch.setattr(Paths, "refined", refined_without)
        yield


def search(
    problem: Problem,
    setting: str = "as-it-is",
    deadline: Deadline | None = None,
    report: Report = ignore_progress,
) -> SolverOutput:
    """Search all plans of a problem whose stages choose for themselves."""
    per_layer = problem.job.granularity == "layer"
    with settings(setting):
        return (layers if per_layer else best).search(
            SearchTask(
                CostModel(problem),
                closed_sets(problem.graph, together=undivided(problem)),
                deadline or Deadline(None),
                report,
            )
        )


def check_limited(
    problem: Problem, setting: str, ticks: int, truth: SolverOutput
) -> bool:
    """Hold an answer that time cut short against the optimum.

    No bound is above the optimum, those reported on the way included, and
    what is called optimal or infeasible is. Returns whether time was left.
    """
    optimum = truth.claimed_quanta
    bounds: list[int | None] = []

    def report(progress: Progress) -> None:
        bounds.append(progress.lower_bound_quanta)

    output = search(problem, setting, Ticking(ticks), report)
    bounds.append(output.lower_bound_quanta)
    if optimum is not None:
        assert all(bound is None or bound <= optimum for bound in bounds)
    if output.claimed_quanta is not None:
        assert optimum is not None
        assert optimum <= output.claimed_quanta
    if output.limit is None:
        assert output.status is truth.status
        assert output.claimed_quanta == optimum
    else:
        assert output.status in (Status.FEASIBLE, Status.NO_SOLUTION)
    return output.limit is None
