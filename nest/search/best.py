"""The best plan with one strategy per stage.

A subproblem of :mod:`nest.search.algorithm` is a split ``(R, B)``, and one
plan is kept. The search of a split (:meth:`BestSearch._search_split`) reduces the
stages that a plan better than the incumbent may have. No step drops such a plan:

1. Paths (:mod:`nest.search.stages.paths`) bound every stage without a device range,
   with the least gradient sync that it takes anywhere.
2. A placement graph (:mod:`nest.search.stages.bounds`) bounds every stage at every
   offset, from both ends of the pipeline.
3. Copies of a stage for each size of its neighbors
   (:mod:`nest.search.stages.neighbor_sizes`) have the exact receive times.
4. A label search (:mod:`nest.search.stages.labels`) lists the best pipelines of the
   stages that remain. If it keeps all labels and finds no pipeline below the
   incumbent, there is none.

Splits with a plan as good as the incumbent are searched, too. The first of them is
searched again from the optimum alone, so the answer does not depend on which process
found which plan first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar, cast

from nest.cost.score import score
from nest.cost.space import batch_splits, leading_runtimes, runtime_of
from nest.errors import SolverError
from nest.ir.plan import Plan
from nest.search.algorithm import BranchAndBound
from nest.search.stages.bounds import IncumbentCurve, PlacementGraph
from nest.search.stages.labels import Pipeline, improvements
from nest.search.stages.options import INFINITE, BatchTerms, PairOptions, StageOptions
from nest.search.stages.splits import OpenSplit, bound_paths, make_plan, merged
from nest.search.task import SearchTask
from nest.solvers.base import (
    EnoughError,
    Limit,
    OutOfTimeError,
    Progress,
    SolverOutput,
    exact_output,
    wrong_proof,
)
from nest.units import MAX_TOTAL

#: If bounds leave more options, the least loads that they have are made exact.
MAX_LOOSE = 500


def as_triples(
    bounds: Mapping[tuple[int, int], int],
) -> tuple[tuple[int, int, int], ...]:
    """Return the bounds of batch splits as triples ``(R, B, bound)``."""
    return tuple(
        (*key, min(int(bound), MAX_TOTAL + 1)) for key, bound in bounds.items()
    )


class BestSearch(BranchAndBound[OpenSplit, SolverOutput]):
    """The best plan of a problem with one strategy per stage.

    Parameters
    ----------
    task
        The problem, its closed sets and the options of the search.

    Attributes
    ----------
    best, plan
        The incumbent: its step time in quanta, and its plan. Without a plan,
        ``best`` is the limit that the task sets.
    open
        The splits whose optimum is not yet proven.
    """

    #: What the search opens, for the detail of an answer.
    unit: ClassVar[str] = "splits"
    near: ClassVar[int] = 2

    def __init__(self, task: SearchTask) -> None:
        # Processes do not share the terms that they compute of a network.
        dear = task.model.network.dear
        workers = 1 if dear else task.options.num_workers
        self._is_dear = dear and self.stage_options is StageOptions
        super().__init__(task.model, task.sets, task.deadline, workers)
        self.report, self.options, self.plan = task.report, task.options, task.plan
        self.best = self.upper = int(INFINITE) if task.upper is None else task.upper
        self.open: list[OpenSplit] = []
        self.runtimes = leading_runtimes(task.model.problem)
        self._equal_paths: dict[OpenSplit, list[OpenSplit]] = {}

    def _answer(self, stop: Exception | None) -> SolverOutput:
        """Return the incumbent; if all is proven, the canonical optimum."""
        if self.splits is None:
            return self._output(0, Limit.TIME, f"while bounding {self.unit}")
        if isinstance(stop, OutOfTimeError):
            return self._output(self._proven(), Limit.TIME, self._remaining())
        if stop is not None:
            return self._output(self._proven())
        optimal = (item for item in self.splits if item.best_quanta == self.best)
        winner = next(optimal, None)
        if winner is not None and self.best < self.upper:
            self._search_again(winner)
        return self._output(self.best)

    def _remaining(self) -> str:
        """Return what is not settled, for people."""
        return f"{len(self.open)} choices of (R, B) not settled"

    def _search_again(self, winner: OpenSplit) -> None:
        """Search the first split with an optimum from the optimum alone.

        The plan is then the same for any number and order of processes.
        """
        settled = self._enough()
        with suppress(OutOfTimeError):
            _, self.plan = self._search_split(winner)
        if self.best < settled:
            raise SolverError(
                f"no plan below {settled} quanta was proven, but one of"
                f" {self.best} is found; please report this problem"
            )

    def _output(
        self, bound: int, limit: Limit | None = None, detail: str = ""
    ) -> SolverOutput:
        """Return the incumbent with a lower bound on all plans."""
        output = exact_output(self.plan, self.best, bound, limit, detail)
        return replace(output, split_bounds=self._split_bounds())

    def _split_bounds(self) -> tuple[tuple[int, int, int], ...]:
        """Return a lower bound on the plans of each batch split."""
        if self.splits is None:
            return ()
        bounds = {
            split[:2]: int(INFINITE) for split in batch_splits(self.model.problem)
        }
        for item in self.splits:
            key = item.options.split[:2]
            bounds[key] = min(bounds[key], item.lower_bound)
        return as_triples(bounds)

    def _proven(self) -> int:
        """Return the lower bound on all plans that is proven so far."""
        return min([self.best] + [item.bound for item in self.open])

    def _enough(self) -> int:
        """Return the least bound with which a split is settled."""
        return self.best if self.plan is None else self.options.enough(self.best)

    def _goal(self, rank: int = 0, best_quanta: int = int(INFINITE)) -> int:
        """Return the step time that plans of a split must be below.

        Plans as good as the incumbent count, unless the runtime of the
        incumbent comes before that of the split; as good as a mere limit is none.
        ``best_quanta`` is the step time of the best plan that this search of the split
        found.
        """
        enough, plan = self._enough(), self.plan
        ties = plan is not None and runtime_of(plan) not in self.runtimes[:rank]
        goal = self.best + ties if enough == self.best else enough
        return min(best_quanta, goal)

    def _incumbent(self, memory_bytes: int) -> int:
        return self.best

    def _keep(self, finding: object) -> bool:
        """Make a plan the incumbent if it is faster; return whether it is."""
        step_quanta, plan = cast("tuple[int, Plan]", finding)
        better = step_quanta < self.best
        if better:
            self.best, self.plan = step_quanta, plan
        return better

    def _take(self, finding: object) -> None:
        """Receive a plan, and report it."""
        super()._take(finding)
        step_quanta, plan = cast("tuple[int, Plan]", finding)
        self.report(Progress(plan=plan, claimed_quanta=step_quanta))

    def _offer(self, item: OpenSplit, plan: Plan) -> int:
        """Score a plan, and make it the incumbent if it is faster.

        Returns the step time. If device types differ, the device ranges of a
        path may have too little memory; the step time is then infinite.

        Raises
        ------
        SolverError
            If the plan is faster than a bound on its split.
        """
        result = score(self.model.problem, plan, self.model)
        step_quanta = result.step_quanta
        if not result.feasible:
            return int(INFINITE)
        if step_quanta < item.lower_bound:
            split = item.options.split[:2]
            text = wrong_proof(split, item.lower_bound, step_quanta)
            raise SolverError(f"{text}; please report this problem")
        self._publish((step_quanta, plan))
        return step_quanta

    def _drop_settled(self) -> None:
        """Drop the splits without a plan as good as the incumbent."""
        self.open = [
            item
            for item in self.open
            if item.bound <= self.best and item.bound < INFINITE
        ]
        proven = self._proven()
        if proven < INFINITE:
            self.report(Progress(lower_bound_quanta=proven))
        if self.options.reached(None if self.plan is None else self.best, proven):
            raise EnoughError

    # Bounds by paths

    def _find_plans(self, splits: list[OpenSplit]) -> list[OpenSplit]:
        """Bound every split by paths below a guess, which grows."""
        self.open = splits
        by_batch: dict[BatchTerms, list[OpenSplit]] = {}
        self._equal_paths = self._with_equal_paths()
        for item in sorted(self._equal_paths, key=lambda item: item.bound):
            by_batch.setdefault(item.options.terms, []).append(item)
        groups = list(by_batch.values())

        def bound_all(guess: int) -> None:
            self._share_bounds(groups, guess)
            self._drop_settled()

        self._bound_by_guesses(splits, lambda: self.best, bound_all)
        return self.open

    def _with_equal_paths(self) -> dict[OpenSplit, list[OpenSplit]]:
        """Group the splits that have the same paths, hence the same bounds.

        Overlapped gradient synchronization changes only the sync time of a
        stage, which paths leave out. Its requirements may exclude strategies,
        so splits with other strategies are in another group.
        """
        first: dict[object, OpenSplit] = {}
        groups: dict[OpenSplit, list[OpenSplit]] = {}
        for item in self.open:
            options, key = item.options, cast("object", item)
            if self.stage_options is StageOptions:
                runtime = options.model.runtime
                shown = runtime.overlap - {"gradients"}
                passes = runtime._replace(overlap=shown)
                strategies = tuple(options.terms.strategies)
                key = options.split, options.family, passes, strategies
            groups.setdefault(first.setdefault(key, item), []).append(item)
        return groups

    def _share_bounds(self, groups: list[list[OpenSplit]], guess: int) -> None:
        """Bound the splits that may have plans below a guess.

        In this process: those of the proof begin with all that it computes.
        """

        def upper() -> int:
            return min(guess, self._goal())

        def goal() -> int:
            self.deadline.check()
            return upper()

        def bound(item: OpenSplit) -> None:
            if self._is_dear:
                # Most splits are above the guess without communication, too. Then no
                # groups are priced for them, which takes long on such networks.
                free = item.options.without_communication(
                    item.limit(goal()), self.capacity
                )
                bounds = bound_paths(item, self.capacity, goal, offer_none, free)
                if not bounds.intervals:
                    item.bound = max(item.bound, bounds.bound)
                    return
            loose = item.options_below(goal(), self.capacity)
            bounds = bound_paths(item, self.capacity, goal, self._offer_path, loose)
            if len(self.model.problem.cluster.types) > 1:
                # Few paths have device ranges there, so more of them are tried.
                bounds = bounds.refined(goal)
            item.bound = max(item.bound, bounds.bound)

        def offer_none(*_: object) -> None:
            """Offer no path without communication: its plan has some."""

        for group in groups:
            self._bound_each(group, upper, bound)
            for item in group:
                for other in self._equal_paths[item]:
                    other.bound = max(other.bound, item.bound)

    # Proofs by label search

    def _subproblems(self, splits: list[OpenSplit]) -> list[OpenSplit]:
        """Return the splits, the least bound first."""
        return sorted(splits, key=lambda item: item.bound)

    def _search(self, item: OpenSplit) -> int:
        """Return the step time of the best plan of a split, if it may be best."""
        self._listen()
        if item.bound >= self._goal(item.rank):
            return int(INFINITE)
        step_quanta, _ = self._search_split(item)
        return step_quanta

    def _settle(self, item: OpenSplit, result: object) -> None:
        """Raise the bound of a split that was searched to the incumbent."""
        item.best_quanta = cast("int", result)
        item.bound = max(item.bound, self._goal(item.rank))
        self._drop_settled()

    def _search_split(self, item: OpenSplit) -> tuple[int, Plan | None]:
        """Return the best plan of a split that is below the goal, if any."""
        plan, step_quanta = None, int(INFINITE)

        def goal() -> int:
            self.deadline.check()
            return self._goal(item.rank, step_quanta)

        graph = self._placement_graph(item, goal)
        if graph is None:
            return step_quanta, plan
        for pipeline in self._pipelines(graph, goal):
            candidate = make_plan(item.options, pipeline.stages)
            candidate_quanta = self._offer(item, candidate)
            if candidate_quanta < step_quanta:
                plan, step_quanta = candidate, candidate_quanta
        return step_quanta, plan

    def _pipelines(
        self, graph: PlacementGraph, goal: Callable[[], int]
    ) -> Iterator[Pipeline]:
        """Yield pipelines of a split; at the end, none below the goal is left."""
        return improvements(graph, lambda: IncumbentCurve.below(goal()))

    def _placement_graph(
        self, item: OpenSplit, goal: Callable[[], int]
    ) -> PlacementGraph | None:
        """Return the stages at their offsets that paths leave open.

        ``None`` if the paths prove that there is no plan below the goal.
        """
        upper = goal()
        loose = item.options_below(upper, self.capacity)
        if item.options.bounds_sync:
            useful = item.limit(upper).admits(loose.once, loose.wait)
            loose = item.options.joint(loose.take(useful))
        bounds = bound_paths(item, self.capacity, goal, self._offer_path, loose)
        bounds = bounds.refined(goal)
        if not bounds.intervals:
            return None
        upper = goal()
        target = IncumbentCurve.below(upper)

        def placed(options: StageOptions, pairs: PairOptions) -> PlacementGraph:
            stages = options.placed(pairs, item.limit(upper), self.deadline.check)
            return PlacementGraph(options, stages, target, self.deadline)

        pairs = merged(bounds.survivors(upper))
        network = self.model.network
        if self._is_dear and network.bounding is not network:
            # Groups are priced for the few stages that bounds on them leave.
            relaxed = copy.copy(item.options)
            relaxed.is_relaxed = True
            graph = placed(relaxed, pairs)
            if graph.bounds().min() >= INFINITE:
                return None
            pairs = item.options.surviving(pairs, graph.edges)
            if len(pairs) > MAX_LOOSE and item.options.terms.refine():
                item.forget_options()
                return self._placement_graph(item, goal)
        return placed(item.options, pairs)


def search(task: SearchTask) -> SolverOutput:
    """Search every ``(R, B)`` of a problem; see :class:`BestSearch`."""
    return BestSearch(task).run()
