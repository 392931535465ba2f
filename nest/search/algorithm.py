"""The algorithm: branch and bound over ``(R, B)``, around a dynamic program.

A *split* ``(R, B)`` fixes the number of replicas and the samples per pipeline step.
Its plans differ in stages. A stage is the difference of two *closed sets* of layers,
with a strategy and devices that begin at an *offset*. The best known plans of all
splits are the *incumbents*. :meth:`BranchAndBound.run` is the algorithm::

    open every split under every runtime, with a bound from its layers
    for growing guesses of the optimum, until a plan is below the guess:
        for each split whose bound is below the guess and the incumbents:
            bound it by shortest paths of closed sets; paths are first plans
    for each subproblem of the splits, the least bound first:
        if its bound is not above the incumbents:
            find its plans below the incumbents: a dynamic program with labels
            for (closed set, offset, stages left)
        raise its bound to the incumbents, and drop those above them

A subproblem is dropped only if a proven bound on its plans is above the incumbents, so
the proof is complete. Five searches differ in their subproblems and what they keep:

- :mod:`nest.search.best` keeps one plan. A subproblem is a split.
- :mod:`nest.search.layers.best` does so, too, and grows stages layer by layer.
- :mod:`nest.search.frontier.levels` keeps the plans that no plan beats in both time and
  memory. A subproblem is a split with a range of memory.
- :mod:`nest.search.frontier.layers` does so, too. Plans of one stage come first.
- :mod:`nest.search.uniform` keeps one plan, whose stages share a strategy. It returns
  to the subproblem of least bound, each time with a higher limit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Generic, TypeVar

from nest.cost.model import CostModel
from nest.ir.plan import Plan
from nest.search.parallel import Exchange
from nest.search.stages.closed_sets import ClosedSets
from nest.search.stages.options import INFINITE, StageOptions
from nest.search.stages.paths import Path
from nest.search.stages.splits import OpenSplit, make_plan, open_splits, promising
from nest.solvers.base import Deadline, EnoughError, OutOfTimeError

#: Guesses at the best step time, as multiples of the current least bound.
GUESSES = (1.15, 1.3, 1.5, 2.0, 10.0)

Subproblem = TypeVar("Subproblem")
Answer = TypeVar("Answer")


class BranchAndBound(Exchange, Generic[Subproblem, Answer]):
    """The loop of all searches; ``splits`` are those that it opened."""

    #: The class of stage options of a split.
    stage_options: ClassVar[type[StageOptions]] = StageOptions
    #: Whether a path is a plan; where stages are relaxed, it is a bound alone.
    paths_are_plans: ClassVar[bool] = True
    near: ClassVar[int] = 1  #: A plan below so many next guesses ends the guesses.

    def __init__(
        self, model: CostModel, sets: ClosedSets, deadline: Deadline, workers: int
    ) -> None:
        super().__init__(deadline, workers)
        self.model, self.sets = model, sets
        self.capacity = model.problem.cluster.memory_bytes()
        self.splits: list[OpenSplit] | None = None
        self._tried: set[object] = set()

    def run(self) -> Answer:
        """Search until all is proven, enough is proven, or the time is up."""
        try:
            self.splits = self._open()
            self._prove(self._find_plans(self.splits))
        except (OutOfTimeError, EnoughError) as stop:
            return self._answer(stop)
        return self._answer(None)

    def _open(self) -> list[OpenSplit]:
        """Return the splits that bounds from the layers leave open."""
        return open_splits(self.model, self.sets, self.deadline, self.stage_options)

    def _bound_by_guesses(
        self,
        splits: Sequence[OpenSplit],
        incumbent: Callable[[], int],
        bound_all: Callable[[int], None],
    ) -> None:
        """Bound all splits below growing guesses until one has a plan."""
        for factor in (*GUESSES, None):
            bound = min((split.bound for split in splits), default=0)
            guess = int(INFINITE) if factor is None else int(factor * bound) + 1
            if guess <= incumbent() < self.near * guess:
                guess = int(INFINITE)  # guesses in between would help little
            bound_all(guess)
            if incumbent() < guess:
                return

    def _bound_each(
        self,
        splits: Iterable[OpenSplit],
        upper: Callable[[], int],
        bound: Callable[[OpenSplit], object],
    ) -> None:
        """Bound the splits that may have a plan below the upper limit."""
        for split in splits:
            self._listen()
            if split.bound < upper():
                bound(split)

    def _offer_path(self, split: OpenSplit, path: Path) -> None:
        """Offer the plan of a path if it is likely to be an improvement."""
        options = split.options
        key = (options.split, options.model.runtime, path.stages)
        upper = self._incumbent(path.memory_bytes)
        if self.paths_are_plans and promising(path, upper) and key not in self._tried:
            self._tried.add(key)
            self._offer(split, make_plan(options, path.stages))

    def _prove(self, splits: list[OpenSplit]) -> None:
        """Search all subproblems of the splits that are still open."""
        self._share(self._subproblems(splits), self._search, self._settle)

    @abstractmethod
    def _find_plans(self, splits: list[OpenSplit]) -> list[OpenSplit]:
        """Find the first incumbents; return the splits that stay open."""

    @abstractmethod
    def _subproblems(self, splits: list[OpenSplit]) -> Sequence[Subproblem]:
        """Return the subproblems of splits, in the order of search."""

    @abstractmethod
    def _search(self, subproblem: Subproblem) -> object:
        """Find the plans of a subproblem that are better than the incumbents."""

    @abstractmethod
    def _settle(self, subproblem: Subproblem, result: object) -> None:
        """Raise the bound of a subproblem that was searched."""

    @abstractmethod
    def _incumbent(self, memory_bytes: int) -> int:
        """Return the step time to beat with so much memory."""

    @abstractmethod
    def _offer(self, split: OpenSplit, plan: Plan) -> object:
        """Keep a plan if it is better than the incumbents."""

    @abstractmethod
    def _answer(self, stop: Exception | None) -> Answer:
        """Return what is kept and proven; ``stop`` is why the loop ended early."""
