"""Nodes of the search: sets of plans with a lower bound on their step time."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from formulations.common import EngineResult, Instance
from nest.cost.space import BatchSplit


class SearchNode(Protocol):
    """Plans of one batch configuration that an engine solves together."""

    @property
    def instance(self) -> Instance:
        """The problem under the runtime of these plans."""

    @property
    def bound(self) -> int:
        """Lower bound on the step time of these plans, in quanta."""

    @property
    def split(self) -> BatchSplit:
        """The ``(R, B)`` of these plans."""

    def solve(self, cutoff: int | None) -> NodeResult:
        """Look for a plan with a step time of at most ``cutoff`` quanta.

        Raises ``OutOfTimeError`` if the deadline passes, and ``TooLargeError`` if the
        node is too large for its engine.
        """


class NodeResult(NamedTuple):
    """What solving a node gave."""

    #: The result for the plans that the engine searched.
    result: EngineResult
    #: Nodes that contain all other plans of the node.
    children: tuple[SearchNode, ...] = ()
    #: Whether an engine ran.
    solved: bool = False
