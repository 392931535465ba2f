"""The algorithm that proves the optimum: branch and bound over ``(R, B)``.

A *split* ``(R, B)`` fixes the number of replicas and the samples per pipeline
step. Its plans differ in stages: cuts, strategies and devices. The best known
plan of all splits is the *incumbent*. :class:`BestSearch` works so::

    open = every split under every runtime, with a bound from the layers
    for each open split:                                  # _bound_all
        bound it by shortest paths below a guess of the optimum, which grows
        until a path is a plan: the first incumbents
    for each open split, the least bound first:           # _prove_all
        if its bound is not above the incumbent:
            search its plans that are no slower           # _search_split
            raise its bound to the incumbent
        drop the splits whose bound is above the incumbent
    the incumbent is optimal; the first split that has such a plan is
    searched once more, so that every run returns the same plan

Within a split, labels are the states of the dynamic program over (closed set,
offset, stages left) that ``nest solvers`` names.

The search of one split (:meth:`BestSearch._search_split`) reduces the stages
that a plan better than the incumbent may have. No step drops such a plan:

1. Paths (:mod:`nest.search.stages.paths`) bound every stage without a device range:
   first without gradient sync, then with the least that a stage takes anywhere.
2. A placement graph (:mod:`nest.search.stages.bounds`) bounds every stage at every
   offset, from both ends of the pipeline.
3. Copies of a stage for each size of its neighbors
   (:mod:`nest.search.stages.neighbor_sizes`) have the exact receive times.
4. A label search (:mod:`nest.search.stages.labels`) lists the best pipelines of the
   stages that remain. If it keeps all labels and finds no pipeline below the
   incumbent, there is none.

The proof is complete because a split is dropped only if a proven bound on its
plans is above the incumbent. Splits with a plan as good as the incumbent are
searched, too. The first of them is searched again from the optimum alone, so
the answer does not depend on which process found which plan first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import ClassVar, cast

import numpy as np

from nest.cost.model import CostModel
from nest.cost.schedules.base import weighted
from nest.cost.score import score
from nest.cost.space import (
    PLAIN,
    BatchSplit,
    Family,
    Runtime,
    batch_splits,
    families,
    is_single,
    leading_runtimes,
    runtime_of,
)
from nest.errors import SolverError
from nest.ir.plan import Plan, Stage
from nest.search.parallel import Link, share
from nest.search.stages.bounds import IncumbentCurve, PlacementGraph
from nest.search.stages.closed_sets import ClosedSets
from nest.search.stages.labels import LabelSearch
from nest.search.stages.neighbor_sizes import split_by_neighbor_size
from nest.search.stages.options import (
    INFINITE,
    BatchTerms,
    Ints,
    LooseOptions,
    PairOptions,
    StageFilter,
    StageOptions,
    StageShapes,
    batch_terms,
)
from nest.search.stages.paths import Interval, Path, Paths
from nest.search.stages.uniform_bounds import bound_families
from nest.search.task import SearchTask
from nest.solvers.base import (
    Deadline,
    Limit,
    OutOfTimeError,
    Progress,
    SolverOutput,
    exact_output,
    wrong_proof,
)
from nest.units import MAX_TOTAL, ceil_div

#: Guesses at the best step time, as multiples of the current least bound.
GUESSES = (1.15, 1.3, 1.5, 2.0, 10.0)

#: The plan of a path is scored only if the path is faster than the incumbent
#: by this fraction: device ranges can only make the plan slower.
WORTH_PRICING = 256

#: Stages in pipeline order: closed sets ``a`` and ``b``, strategy, devices.
Stages = Sequence[tuple[int, int, int, int]]


@dataclass(eq=False)
class OpenSplit:
    """A split, or a family of its plans, whose optimum is not yet proven.

    Attributes
    ----------
    options
        The stage options of its plans.
    bound
        Lower bound on the step time of plans that are not yet found.
    min_total
        Lower bound on what all stages together add once to the step.
    index
        Position among all open splits.
    rank
        Position of its runtime. Of equally fast plans, the one with the least
        rank is the answer.
    best_quanta
        Step time of the plan that its last search found.
    """

    options: StageOptions
    bound: int
    min_total: int
    index: int
    rank: int = 0
    best_quanta: int = int(INFINITE)

    @property
    def lower_bound(self) -> int:
        """Lower bound on the step time of all its plans."""
        return min(self.bound, self.best_quanta)

    def limit(self, upper: Ints | int) -> StageFilter:
        """Return the filter of stages that plans below ``upper`` may have."""
        return StageFilter(upper, self.min_total)


def work_bound(options: StageOptions) -> tuple[int, int]:
    """Return lower bounds from the layers alone, without cuts.

    With ``w`` the least ``n τ`` and ``t`` the least ``τ`` of a layer: ``Σ_s
    n_s τ_s <= P max τ``, so ``max τ >= Σ w / P``; also ``max τ >= max t``. The
    same holds for the time that all stages wait, and ``Σ τ >= max(Σ t, Σ w /
    P)`` for the time that is added once. A layer takes at least ``m``
    device-bytes, so ``Σ m > P · capacity`` proves the split infeasible.

    Returns
    -------
    tuple
        Lower bounds on ``T`` and on the time that all stages add once.
    """
    infeasible = int(INFINITE), int(INFINITE)
    free, devices = options.terms.free, options.split.devices
    if not options.stage_counts or free is None or not options.usable.any():
        return infeasible
    usable = options.usable[:, None] & ~free.missing
    if not usable.any(axis=0).all():
        return infeasible
    sizes = options.terms.devices[:, None]
    schedule = options.schedule
    periods = np.moveaxis(free.periods, -1, 0)
    once, wait = options.costs([weighted(x, periods) for x in schedule.sums])
    space = free.static_bytes + free.kept_bytes
    counts = options.shapes.kind_counts[-1]

    def min_per_kind(values: Ints) -> list[int]:
        usable_values = np.where(usable, values, INFINITE)
        return [int(value) for value in usable_values.min(axis=0)]

    def total(values: list[int]) -> int:
        return sum(
            count * value for count, value in zip(counts.tolist(), values, strict=True)
        )

    capacity = options.model.problem.cluster.memory_bytes()
    if total(min_per_kind(sizes * space)) > devices * capacity:
        return infeasible
    min_total, worst = total(min_per_kind(once)), max(min_per_kind(wait))
    min_total, worst = (
        max(value, ceil_div(total(min_per_kind(sizes * table)), devices))
        for value, table in ((min_total, once), (worst, wait))
    )
    return min_total + worst, min_total


def open_splits(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    stage_options: type[StageOptions] = StageOptions,
    runtimes: Sequence[Runtime] = (PLAIN,),
) -> list[OpenSplit]:
    """Return all splits under all runtimes that the work bound leaves open."""
    shapes = StageShapes(model, sets, deadline)
    splits: list[OpenSplit] = []
    for rank, runtime in enumerate(runtimes):
        for split, of_batch in batch_terms(shapes, runtime):
            if deadline.passed:
                raise OutOfTimeError
            for family, family_bound in _bounded_families(of_batch, split):
                options = stage_options(of_batch, split, family)
                bound, min_total = work_bound(options)
                bound = max(bound, family_bound)
                if bound < INFINITE:
                    splits.append(
                        OpenSplit(options, bound, min_total, len(splits), rank)
                    )
    return splits


def _bounded_families(
    terms: BatchTerms, split: BatchSplit
) -> Iterator[tuple[Family, int]]:
    """Yield the families of a split with a first bound on their plans."""
    problem = terms.model.problem
    every = families(problem, split, terms.strategies, terms.model.runtime)
    if is_single(problem):
        for family, bounds in bound_families(terms, split, every):
            yield family, int(bounds.min())
    else:
        for family in every:
            yield family, 0


def make_plan(options: StageOptions, stages: Stages) -> Plan:
    """Turn closed sets and strategies into a plan."""
    problem, member = options.model.problem, options.shapes.sets.member
    runtime = options.model.runtime
    made = []
    for source, target, chosen, _ in stages:
        inside = member[target] & ~member[source]
        made.append(
            Stage.of(
                [problem.graph.layers[i].id for i in options.shapes.order if inside[i]],
                options.layer_strategies(chosen),
            )
        )
    return Plan(
        replicas=options.split.replicas,
        micro_batch=options.split.micro_batch,
        stages=tuple(made),
        overlap=runtime.named_overlap,
        distributed_optimizer=runtime.distributed_optimizer,
    )


@dataclass(frozen=True)
class PathBounds:
    """The bounds of a split by paths, and the intervals that stay open."""

    paths: Paths
    intervals: list[Interval]
    bound: int

    def useful(self, upper: int) -> LooseOptions:
        """Return the options of strategies that plans below ``upper`` may have."""
        whole = replace(
            min(self.intervals, key=attrgetter("least")),
            up_to=max(interval.up_to for interval in self.intervals),
        )
        pairs, loose = self.paths.survivors(whole, upper, 0), self.paths.loose
        return loose.take(np.isin(loose.strategy, pairs.strategy))

    def survivors(self, upper: int, level: int = 0) -> list[PairOptions]:
        """Return the options of plans below ``upper``, by interval."""
        return [
            self.paths.survivors(interval, upper, level) for interval in self.intervals
        ]


def bound_paths(
    item: OpenSplit,
    cap_bytes: int,
    upper: Callable[[], int],
    offer: Callable[[OpenSplit, Path], object],
    loose: LooseOptions | None = None,
) -> PathBounds:
    """Bound a split by paths.

    Parameters
    ----------
    item, cap_bytes
        The split, and the memory per device.
    upper
        Returns the step time that plans must be below. It may fall when
        plans are offered.
    offer
        Called with each path that is a plan.
    loose
        The loose options of the split. Default: they are computed.
    """
    goal = upper()
    limit = item.limit(goal)
    if loose is None:
        loose = item.options.loose(limit, cap_bytes)
    paths = Paths(item.options, loose, limit, cap_bytes)

    def take(path: Path) -> int:
        offer(item, path)
        return upper()

    intervals = paths.intervals(goal, take)
    intervals = [i for i in intervals if i.bound < upper()]
    bound = min((i.bound for i in intervals), default=upper())
    return PathBounds(paths, intervals, bound)


def guesses(items: Sequence[OpenSplit]) -> Iterator[int]:
    """Yield growing guesses at the best step time, the last one infinite.

    The bounds of the splits may rise between two guesses.
    """
    for guess in GUESSES:
        bound = min((item.bound for item in items), default=0)
        yield int(guess * bound) + 1
    yield int(INFINITE)


def as_triples(
    bounds: Mapping[tuple[int, int], int],
) -> tuple[tuple[int, int, int], ...]:
    """Return the bounds of batch splits as triples ``(R, B, bound)``."""
    return tuple(
        (*key, min(int(bound), MAX_TOTAL + 1)) for key, bound in bounds.items()
    )


def contradicted(item: OpenSplit, step_quanta: int) -> SolverError:
    """Return the error that a plan is faster than a bound on its split."""
    split = item.options.split
    text = wrong_proof(split[:2], item.lower_bound, step_quanta)
    return SolverError(f"{text}; please report this problem")


def promising(path: Path, incumbent: int) -> bool:
    """Whether the plan of a path is likely to be below the incumbent."""
    bound = path.total + path.wait
    return bound < incumbent - incumbent // WORTH_PRICING


class EnoughError(Exception):
    """The incumbent and the bound are within the requested gap."""


class BestSearch:
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

    #: The class of stage options of a split.
    stage_options: ClassVar[type[StageOptions]] = StageOptions

    def __init__(self, task: SearchTask) -> None:
        self.model, self.sets = task.model, task.sets
        self.deadline, self.report = task.deadline, task.report
        self.best = int(INFINITE) if task.upper is None else task.upper
        self.plan, self.options = task.plan, task.options
        self.capacity = task.model.problem.cluster.memory_bytes()
        self.open: list[OpenSplit] = []
        self._listed: list[OpenSplit] | None = None
        self._equal_paths: dict[OpenSplit, list[OpenSplit]] = {}
        self._runtimes = leading_runtimes(task.model.problem)
        # Processes do not share the terms that they compute of a network.
        dear = task.model.network.dear
        self.workers = 1 if dear else task.options.num_workers
        self._tried: set[object] = set()
        self._tell: Callable[[object], object] = self._take

    def run(self) -> SolverOutput:
        """Search every split."""
        start = self.best
        try:
            self.open = open_splits(
                *(self.model, self.sets, self.deadline, self.stage_options),
                self._runtimes,
            )
        except OutOfTimeError:
            return self._output(0, Limit.TIME, "while bounding splits")
        self._listed = self.open
        try:
            self._bound_all()
            winner = self._prove_all()
        except OutOfTimeError:
            detail = f"{len(self.open)} choices of (R, B) not settled"
            return self._output(self._proven(), Limit.TIME, detail)
        except EnoughError:
            return self._output(self._proven())
        if winner is not None and self.best < start:
            self._search_again(winner)
        return self._output(self.best)

    def _search_again(self, winner: OpenSplit) -> None:
        """Search the first split with an optimum from the optimum alone.

        The plan is then the same for any number and order of processes.
        """
        settled = self._enough()
        with suppress(OutOfTimeError):
            _, self.plan = self._search_split(winner)
        if self.best < settled:
            message = (
                f"no plan below {settled} quanta was proven, but one of"
                f" {self.best} is found; please report this problem"
            )
            raise SolverError(message)

    def _output(
        self, bound: int, limit: Limit | None = None, detail: str = ""
    ) -> SolverOutput:
        """Return the incumbent with a lower bound on all plans."""
        output = exact_output(self.plan, self.best, bound, limit, detail)
        return replace(output, split_bounds=self._split_bounds())

    def _split_bounds(self) -> tuple[tuple[int, int, int], ...]:
        """Return a lower bound on the plans of each batch split."""
        if self._listed is None:
            return ()
        bounds = {
            split[:2]: int(INFINITE) for split in batch_splits(self.model.problem)
        }
        for item in self._listed:
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
        incumbent comes before that of the split. ``best_quanta`` is the step
        time of the best plan that this search of the split found.
        """
        enough = self._enough()
        ties = rank <= self._rank_of(self.plan)
        goal = self.best + ties if enough == self.best else enough
        return min(best_quanta, goal)

    def _rank_of(self, plan: Plan | None) -> int:
        """Return the position of a plan's runtime; without one, the last."""
        runtime = None if plan is None else runtime_of(plan)
        if runtime in self._runtimes:
            return self._runtimes.index(runtime)
        return len(self._runtimes)

    def _take(self, finding: object) -> None:
        """Receive a plan that another process found."""
        step_quanta, plan = cast("tuple[int, Plan]", finding)
        self._improve(step_quanta, plan)
        self.report(Progress(plan=plan, claimed_quanta=step_quanta))

    def _improve(self, step_quanta: int, plan: Plan) -> bool:
        """Make a plan the incumbent if it is faster; return whether it is."""
        better = step_quanta < self.best
        if better:
            self.best, self.plan = step_quanta, plan
        return better

    def _check_time(self) -> None:
        if self.deadline.passed:
            raise OutOfTimeError

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
            raise contradicted(item, step_quanta)
        if self._improve(step_quanta, plan):
            self._tell((step_quanta, plan))
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

    def _bound_all(self) -> None:
        """Bound every split by paths, and find the first incumbents."""
        by_batch: dict[BatchTerms, list[OpenSplit]] = {}
        self._equal_paths = self._with_equal_paths()
        for item in sorted(self._equal_paths, key=lambda item: item.bound):
            by_batch.setdefault(item.options.terms, []).append(item)
        groups = list(by_batch.values())
        for guess in guesses(self.open):
            self._share_bounds(groups, guess)
            self._drop_settled()
            if self.best < guess:
                return

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
        """Bound the splits that may have plans below a guess."""

        def run(index: int, link: Link) -> tuple[list[int], Ints | None]:
            self._tell = link.tell
            for item in groups[index]:
                self._listen(link)
                if item.bound < min(guess, self._enough()):
                    self._bound(item, guess)
            terms = vars(groups[index][0].options.terms)
            bounds = [item.bound for item in groups[index]]
            return bounds, terms.get("least_load")

        def done(index: int, result: object) -> None:
            bounds, least_load = cast("tuple[list[int], Ints | None]", result)
            for item, bound in zip(groups[index], bounds, strict=True):
                for other in self._equal_paths[item]:
                    other.bound = max(other.bound, bound)
                    if least_load is not None:
                        other.options.terms.least_load = least_load

        share(len(groups), self.workers, run, self._take, done)

    def _listen(self, link: Link) -> None:
        """Receive the plans that other processes found."""
        self._check_time()
        for finding in link.heard():
            self._improve(*cast("tuple[int, Plan]", finding))

    def _bound(self, item: OpenSplit, upper: int) -> None:
        """Bound the plans of a split below ``upper`` by paths."""

        def goal() -> int:
            self._check_time()
            return min(upper, self._enough())

        bounds = bound_paths(item, self.capacity, goal, self._offer_path)
        item.bound = max(item.bound, bounds.bound)

    def _offer_path(self, item: OpenSplit, path: Path) -> None:
        """Score the plan of a path if it is likely to be an improvement."""
        options = item.options
        key = (options.split, options.model.runtime, path.stages)
        if promising(path, self.best) and key not in self._tried:
            self._tried.add(key)
            self._offer(item, make_plan(options, path.stages))

    # Proofs by label search

    def _prove_all(self) -> OpenSplit | None:
        """Search all open splits; return the first one with an optimum."""
        order = sorted(self.open, key=lambda item: item.bound)
        searched: list[OpenSplit] = []

        def run(index: int, link: Link) -> int:
            self._tell = link.tell
            self._listen(link)
            if order[index].bound >= self._goal(order[index].rank):
                return int(INFINITE)
            step_quanta, _ = self._search_split(order[index])
            return step_quanta

        def done(index: int, result: object) -> None:
            order[index].best_quanta = cast("int", result)
            searched.append(order[index])
            goal = self._goal(order[index].rank)
            order[index].bound = max(order[index].bound, goal)
            self._drop_settled()

        share(len(order), self.workers, run, self._take, done)
        return min(
            (item for item in searched if item.best_quanta == self.best),
            key=lambda item: item.index,
            default=None,
        )

    def _search_split(self, item: OpenSplit) -> tuple[int, Plan | None]:
        """Return the best plan of a split that is below the goal, if any."""
        options, plan, step_quanta = item.options, None, int(INFINITE)

        def goal() -> int:
            self._check_time()
            return self._goal(item.rank, step_quanta)

        graph = self._placement_graph(item, goal)
        if graph is None:
            return step_quanta, plan
        # One label per node is fast and finds plans; the goal then is lower. The stages
        # that remain get exact receive times. All labels together are the proof.
        for exact, max_labels in ((False, 1), (True, 1), (True, None)):
            if int(graph.bounds()[0]) >= INFINITE:
                break
            if exact and max_labels is not None:
                graph = split_by_neighbor_size(graph)
                if int(graph.bounds()[0]) >= INFINITE:
                    break
            for pipeline in LabelSearch(graph).pipelines(max_labels):
                candidate = make_plan(options, pipeline.stages)
                candidate_quanta = self._offer(item, candidate)
                if candidate_quanta < step_quanta:
                    plan, step_quanta = candidate, candidate_quanta
            graph.target = IncumbentCurve.below(goal())
        return step_quanta, plan

    def _placement_graph(
        self, item: OpenSplit, goal: Callable[[], int]
    ) -> PlacementGraph | None:
        """Return the stages at their offsets that paths leave open.

        ``None`` if the paths prove that there is no plan below the goal.
        """
        bounds = bound_paths(item, self.capacity, goal, self._offer_path)
        if bounds.intervals and item.options.bounds_sync:
            joint = item.options.joint(bounds.useful(goal()))
            bounds = bound_paths(item, self.capacity, goal, self._offer_path, joint)
        if not bounds.intervals:
            return None
        upper = goal()
        placed = item.options.placed(
            merged(bounds.survivors(upper)), item.limit(upper), self._check_time
        )
        target = IncumbentCurve.below(upper)
        return PlacementGraph(item.options, placed, target, self.deadline)


def merged(tables: list[PairOptions]) -> PairOptions:
    """Merge tables of options: each option once, with all its offsets."""
    options = PairOptions.concatenate(tables)
    if not len(options):
        return options
    columns = options.level, options.span, options.pair, options.strategy
    from_zero = tuple(x - x.min() for x in columns)
    key = np.ravel_multi_index(from_zero, [int(x.max()) + 1 for x in from_zero])
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    low = np.minimum.reduceat(options.first[order], first)
    high = np.maximum.reduceat(options.last[order], first)
    return replace(options.take(order[first]), first=low, last=high)


def search(task: SearchTask) -> SolverOutput:
    """Search every ``(R, B)`` of a problem; see :class:`BestSearch`."""
    return BestSearch(task).run()
