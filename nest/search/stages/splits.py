"""Open splits ``(R, B)`` and families: their bounds by layers and by paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nest.cost.model import CostModel
from nest.cost.schedules.base import weighted
from nest.cost.space import BatchSplit, Family, families, is_single, leading_runtimes
from nest.ir.plan import Plan, Stage
from nest.search.stages.closed_sets import ClosedSets
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
from nest.solvers.base import Deadline
from nest.units import ceil_div

#: Stages in pipeline order: closed sets ``a`` and ``b``, strategy, devices.
Stages = Sequence[tuple[int, int, int, int]]

#: The plan of a path is scored only if the path is faster than the incumbent
#: by this fraction: device ranges can only make the plan slower.
WORTH_PRICING = 256


@dataclass(eq=False)
class OpenSplit:
    """A split, or a family of its plans, whose optimum is not yet proven."""

    #: The stage options of its plans.
    options: StageOptions
    #: Lower bound on the step time of plans that are not yet found.
    bound: int
    #: Lower bound on what all stages together add once to the step.
    min_total: int
    #: Position among all open splits.
    index: int
    #: Position of its runtime. Of equally fast plans, the one with the least rank is
    #: the answer.
    rank: int = 0
    #: Step time of the plan that its last search found.
    best_quanta: int = int(INFINITE)
    #: The highest limit of :meth:`options_below` so far, and the options.
    _below: tuple[int, LooseOptions] | None = None

    def options_below(self, upper: int, cap_bytes: int) -> LooseOptions:
        """Return its options for plans below ``upper``, perhaps with more.

        Those of the highest limit are kept; all calls have one ``cap_bytes``.
        """
        if self._below is None or upper > self._below[0]:
            self._below = upper, self.options.loose(self.limit(upper), cap_bytes)
        return self._below[1]

    def forget_options(self) -> None:
        """Compute :meth:`options_below` anew, since their bounds are better now."""
        self._below = None

    @property
    def lower_bound(self) -> int:
        """Lower bound on the step time of all its plans."""
        return min(self.bound, self.best_quanta)

    def limit(self, upper: Ints | int) -> StageFilter:
        """Return the filter of stages that plans below ``upper`` may have."""
        return StageFilter(upper, self.min_total)

    @property
    def memory_key(self) -> object:
        """Key of splits with equal memory, because overlap needs no memory."""
        options = self.options
        sharded = options.model.runtime.distributed_optimizer
        return options.split, options.family, sharded

    @cached_property
    def loose_options(self) -> LooseOptions:
        """Its options within the capacity, without a device range."""
        capacity = self.options.model.problem.cluster.memory_bytes()
        return self.options.loose(self.limit(int(INFINITE)), capacity)

    @cached_property
    def least_bytes(self) -> int:
        """Lower bound on the memory of the fullest device of any of its plans.

        The layers need ``Σ min n (static + kept)`` device-bytes. Some device holds
        at least a ``P``-th of them, plus the working set of a layer.
        """
        options = self.options
        free, sizes = options.terms.free, options.terms.devices[:, None]
        assert free is not None
        usable = options.usable[:, None] & ~free.missing
        space = sizes * (free.static_bytes + free.kept_bytes)
        counts = options.shapes.kind_counts[-1].tolist()
        min_bytes = np.where(usable, space, INFINITE).min(axis=0).tolist()
        total = sum(c * s for c, s in zip(counts, min_bytes, strict=True))
        return ceil_div(total, options.split.devices) + int(
            np.where(usable, free.working_bytes, INFINITE).min()
        )


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
) -> list[OpenSplit]:
    """Return all splits under all runtimes that the work bound leaves open."""
    shapes = StageShapes(model, sets, deadline)
    splits: list[OpenSplit] = []
    for rank, runtime in enumerate(leading_runtimes(model.problem)):
        for split, of_batch in batch_terms(shapes, runtime):
            deadline.check()
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
    #: Called with each path that is a plan; returns the step time to be below.
    take: Callable[[Path], int]

    def refined(self, upper: Callable[[], int]) -> PathBounds:
        """Return the bounds with multipliers of their own for the intervals."""
        intervals = self.paths.refined(self.intervals, upper(), self.take)
        return PathBounds.of(self.paths, intervals, upper, self.take)

    @staticmethod
    def of(
        paths: Paths,
        intervals: Sequence[Interval],
        upper: Callable[[], int],
        take: Callable[[Path], int],
    ) -> PathBounds:
        """Return the bounds of the intervals that stay open."""
        open_ones = [x for x in intervals if x.bound < upper()]
        bound = min((x.bound for x in open_ones), default=upper())
        return PathBounds(paths, open_ones, bound, take)

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

    return PathBounds.of(paths, paths.intervals(goal, take), upper, take)


def promising(path: Path, incumbent: int) -> bool:
    """Whether the plan of a path is likely to be below the incumbent."""
    bound = path.total + path.wait
    return bound < incumbent - incumbent // WORTH_PRICING


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
