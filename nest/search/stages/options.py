"""Stage options: the stages that a plan may have, and their costs.

A stage option is a pair of closed sets ``a ⊂ b``, a number of devices and a
strategy. Its work and memory are sums over the layers of ``b - a``. Stages
with equally many layers of each kind and the same passing tensors therefore
have one *shape*. Costs are computed in two steps. :meth:`StageOptions.loose`
returns options without a device range, with the least load over all device
ranges of replica 0. :meth:`StageOptions.placed` computes the costs of the
options that the bounds leave, at each of their offsets.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.rules import most_hidden
from nest.cost.schedules import PassTimes, StageSchedule, Times, paced
from nest.cost.schedules.base import weighted
from nest.cost.space import (
    PLAIN,
    BatchSplit,
    Family,
    Runtime,
    batch_splits,
    families,
    max_stages,
    repeated_kinds,
)
from nest.ir.cluster import Cluster
from nest.ir.plan import Strategy
from nest.search.stages.closed_sets import ClosedSets
from nest.search.stages.dominance import drop_neighbours
from nest.search.stages.zones import Site, Zones
from nest.solvers.base import Deadline
from nest.topology import Route

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Larger than every time and count that occurs; the sum of two of them
#: still fits 64 bits with a time on top.
INFINITE = np.int64(2**61 + 2**58)

#: Number of (strategy, shape) pairs whose costs are computed at a time.
CHUNK = 2_000_000


#: Routes on which a block receives from the stage before and the stage after.
Routes = tuple[Route | None, Route | None]


def unique(values: Ints) -> Ints:
    """Return the different values, ascending.

    Without counts ``np.unique`` imports ``numpy.ma``, which takes longer than
    the search of a small problem.
    """
    return np.unique(values, return_counts=True)[0]


class StageShapes:
    """The shapes of all stages of a graph.

    Parameters
    ----------
    model, sets
        Cost terms, and the closed sets of the graph.
    deadline
        The clock of the search; ``None`` for no limit.

    Attributes
    ----------
    order
        Positions of the layers, sources first.
    representatives
        One layer of each kind; all layers of a kind have the same costs.
    kind_counts
        Layers of each kind in every closed set, ``(sets, kinds)``.
    cuts, cut_of
        Sizes per sample of the tensors that cross each distinct cut, and the
        cut of each closed set. Tensors of 0 bytes are left out.
    of_pair
        Shape of each pair ``a ⊂ b``.
    counts, passing
        Layers of each kind in each shape; and how many tensors of each of
        :attr:`passing_sizes`, in bytes per sample, are produced before the stage and
        needed after it.
    source, target
        Closed sets of one pair of each shape.
    """

    def __init__(
        self, model: CostModel, sets: ClosedSets, deadline: Deadline | None = None
    ) -> None:
        self.model, self.sets, self.deadline = model, sets, deadline
        #: Least amounts of strategies, as :class:`BatchTerms` knows them.
        self.least: dict[object, dict[Strategy, Any]] = {}
        layers = model.problem.graph.layers
        self.order = model.problem.graph.topological_order()
        first: dict[str, int] = {}
        for position, layer in enumerate(layers):
            first.setdefault(layer.kind, position)
        self.representatives = list(first.values())
        kind_index = {kind: i for i, kind in enumerate(first)}
        #: Position in :attr:`representatives` of every layer's kind.
        self.kind_of = [kind_index[layer.kind] for layer in layers]
        one_hot = np.eye(len(first), dtype=np.int64)[self.kind_of]
        self.kind_counts: Ints = sets.member.astype(np.int64) @ one_hot

        # For each tensor and set: whether the set produces it, and how much
        # of it the layers outside need.
        inside = [sets.member[:, t.producer] for t in model.transfers.tensors]
        beyond = [
            np.max([~sets.member[:, node] * size for node, size in t.consumers], axis=0)
            for t in model.transfers.tensors
        ]
        crossing = np.array(
            [a * size for a, size in zip(inside, beyond, strict=True)], dtype=np.int64
        ).reshape(len(model.transfers.tensors), sets.count)
        cuts: dict[tuple[int, ...], int] = {}
        self.cut_of: Ints = np.array(
            [
                cuts.setdefault(tuple(sorted(c[c > 0].tolist())), len(cuts))
                for c in crossing.T
            ],
            dtype=np.int64,
        )
        self.cuts = list(cuts)

        source, target = sets.pair_source, sets.pair_target
        # Only how many tensors of a size pass tells stages apart. Counts are whole
        # numbers, which floats hold.
        tensors = np.array(inside, dtype=np.float32).reshape(-1, sets.count).T
        needed = np.array(beyond, dtype=np.int64).reshape(-1, sets.count)
        self.passing_sizes: Ints = unique(needed[needed > 0])
        columns = [
            (tensors @ (needed == size))[source, target].astype(np.int64)
            for size in self.passing_sizes
        ]
        rows = np.column_stack(
            [self.kind_counts[target] - self.kind_counts[source], *columns]
        )
        shapes, pairs, inverse = np.unique(
            rows, axis=0, return_index=True, return_inverse=True
        )
        self.of_pair: Ints = inverse.reshape(-1)
        self.counts: Ints = np.asfortranarray(shapes[:, : len(first)])
        self.passing: Ints = shapes[:, len(first) :]
        self.source, self.target = source[pairs], target[pairs]
        #: Pairs ordered by shape; those of shape i start at first_pair[i].
        self.pairs: Ints = np.argsort(self.of_pair, kind="stable")
        self.first_pair: Ints = np.searchsorted(
            self.of_pair[self.pairs], np.arange(len(shapes) + 1)
        )

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def bounding(self) -> CostModel:
        """A model whose costs are lower bounds."""
        return self.model.bounding()

    def passing_bytes(self, micro_batch: int, shards: int) -> Ints:
        """Return the bytes of passing tensors per micro-batch, by shape."""
        sizes = -(-self.passing_sizes * micro_batch // shards)
        passing_bytes: Ints = self.passing @ sizes
        return passing_bytes


@dataclass(frozen=True)
class Table:
    """Cost terms in quanta and bytes, arrays of shape (strategies, kinds).

    ``periods`` has a third axis. ``missing`` marks the kinds that have no cost
    under a strategy.
    """

    periods: Ints
    backward: Ints
    sync: Ints
    hideable_sync: Ints
    static_bytes: Ints
    kept_bytes: Ints
    working_bytes: Ints
    missing: Bools

    @staticmethod
    def of(
        rows: list[list[LayerTerms | None]],
        periods: Callable[[PassTimes], tuple[int, ...]],
        most_bytes: int,
    ) -> Table:
        """Return the table of cost terms.

        Bytes are clipped so that the sums of a stage fit 64 bits. A layer
        whose bytes are clipped does not fit alone, so no plan contains it.
        """

        def table(field: Callable[[LayerTerms], int]) -> Ints:
            values = [
                [0 if term is None else field(term) for term in row] for row in rows
            ]
            return np.array(values, dtype=np.int64)

        no_times = Times(0, 0)
        return Table(
            periods=np.array(
                [[periods(term or no_times) for term in row] for row in rows],
                dtype=np.int64,
            ),
            backward=table(lambda t: t.backward),
            sync=table(lambda t: t.sync),
            hideable_sync=table(lambda t: t.hideable_sync),
            static_bytes=table(lambda t: min(t.static_bytes, most_bytes)),
            kept_bytes=table(lambda t: min(t.kept_bytes, most_bytes)),
            working_bytes=table(lambda t: min(t.working_bytes, most_bytes)),
            missing=np.array([[term is None for term in row] for row in rows]),
        )

    def take(self, rows: Ints | list[int]) -> Table:
        """Return some of the rows."""
        columns = {x.name: getattr(self, x.name)[rows] for x in fields(self)}
        return Table(**columns)


class PassComponent(enum.IntEnum):
    """The times that a pass consists of, and those of its components."""

    FORWARD = 0
    FORWARD_ALONE = 1
    FORWARD_HIDING = 2
    BACKWARD = 3
    BACKWARD_ALONE = 4
    BACKWARD_HIDING = 5
    INPUTS = 6
    WEIGHTS = 7


def pass_components(load: Any) -> tuple[Any, ...]:
    """Return the time of each :class:`PassComponent`, in quanta.

    ``HIDING`` is the communication that a paired pass can overlap, ``ALONE``
    is the rest.
    """
    forward, backward = load.forward, load.backward
    there, back = load.pairable_forward, load.pairable_backward
    weights = load.weight_backward
    return (
        *(forward, forward - there, there),
        *(backward, backward - back, back),
        *(backward - weights, weights),
    )


def paired_load(passes: Any, num_passes: int, num_paired: int) -> Any:
    """Return the time of all passes of layers, some of which run in pairs.

    ``passes`` has a last axis of :class:`PassComponent`. What may hide behind
    the other pass of a pair does not count.
    """
    columns = np.moveaxis(passes, -1, 0)
    whole = columns[PassComponent.FORWARD] + columns[PassComponent.BACKWARD]
    alone = columns[PassComponent.FORWARD_ALONE] + columns[PassComponent.BACKWARD_ALONE]
    unpaired = (num_passes - num_paired) * whole
    return unpaired + num_paired * np.minimum(whole, alone)


class BatchTerms:
    """The strategies at one ``B``, and their terms without a device range.

    Parameters
    ----------
    shapes
        The stages of the problem.
    micro_batch
        ``B``.
    runtime
        How plans run their stages.
    replicas
        Number of replicas over which the optimizer is sharded, else 1.

    Attributes
    ----------
    strategies, devices, shards
        The strategies, their devices, and the number of ranks over which each
        of them shards a tensor at a cut.
    """

    def __init__(
        self,
        shapes: StageShapes,
        micro_batch: int,
        runtime: Runtime = PLAIN,
        replicas: int = 1,
    ) -> None:
        self.shapes, self.micro_batch = shapes, micro_batch
        self.replicas = replicas
        model = shapes.model.under(runtime)
        self.model = model
        #: More than any device has, so that clipping changes no answer.
        self.max_bytes = model.problem.cluster.memory_bytes() + 1
        self.strategies: list[Strategy] = []
        rows = []
        for strategy in runtime.strategies(model.problem, micro_batch):
            row = self.terms(strategy, None)
            if any(term is not None for term in row):
                self.strategies.append(strategy)
                rows.append(row)
        self.devices: Ints = np.array(
            [s.devices for s in self.strategies], dtype=np.int64
        )
        self.shards = [model.shards(s) for s in self.strategies]
        self._free_rows = rows
        self._is_exact = shapes.bounding is shapes.model

    def refine(self) -> bool:
        """Make the least loads exact; return whether they were not."""
        was_exact, self._is_exact = self._is_exact, True
        for name in () if was_exact else ("least_load", "least_anywhere"):
            vars(self).pop(name, None)
        return not was_exact

    @cached_property
    def schedule(self) -> StageSchedule:
        """The schedule of the job; its step time is a sum of periods."""
        return paced(self.model.problem.job.schedule)

    @cached_property
    def free(self) -> Table | None:
        """Terms without communication; ``None`` without strategies."""
        return self.table(self._free_rows) if self._free_rows else None

    @cached_property
    def held(self) -> Table:
        """Terms without communication, with the time of each pass component."""
        return Table.of(self._free_rows, pass_components, self.max_bytes)

    @cached_property
    def row_of(self) -> dict[Strategy, int]:
        """The row of every strategy in tables."""
        return {strategy: row for row, strategy in enumerate(self.strategies)}

    def table(self, rows: list[list[LayerTerms | None]]) -> Table:
        """Return the table of some terms."""
        return Table.of(rows, self.schedule.paces, self.max_bytes)

    def terms(self, strategy: Strategy, block: Block | None) -> list[LayerTerms | None]:
        """Return the terms of every kind on a block."""
        return [
            self.model.layer_terms(
                *(layer, strategy, self.micro_batch, block), replicas=self.replicas
            )
            for layer in self.shapes.representatives
        ]

    @cached_property
    def least_load(self) -> Ints:
        """Least amounts over all device ranges of one replica, by type.

        The shape is (types, amounts, strategies, kinds). The amounts are the
        ``sums`` of the schedule, on ranges that have devices of this type
        only; 0 where there are none. The load of a stage is the largest of
        all replicas, so no device range has a smaller load.
        """
        count = len(self.model.problem.cluster.types)
        return np.array([self._min_load(device_type) for device_type in range(count)])

    @cached_property
    def least_anywhere(self) -> Ints:
        """Least amounts over all device ranges of all types."""
        return self._min_load(None)

    @cached_property
    def least_passes(self) -> Ints:
        """Least pass times over all places, by :class:`PassComponent`.

        Of shape (strategies, kinds, parts).
        """
        amounts = self._min_amounts(
            ("passes", None),
            self.model,
            lambda: self._distinct_blocks(None),
            pass_components,
        )
        least: Ints = np.ascontiguousarray(np.moveaxis(amounts, 0, -1))
        return least

    @cached_property
    def free_load(self) -> Ints:
        """Amounts without communication, by type as in :attr:`least_load`."""
        count = len(self.model.problem.cluster.types)
        return np.array(
            [
                self._min_amounts(
                    ("free", device_type),
                    self.model.on_type(device_type),
                    lambda: dict.fromkeys(self.devices.tolist(), (None,)),
                )
                for device_type in range(count)
            ]
        )

    def load_on(self, site: Site, is_free: bool = False) -> Ints:
        """Return the least amounts of stages on devices of these types.

        Without communication if ``is_free``. The shape is (amounts, strategies, kinds).
        """
        if site.types is None:
            return self.free_load.min(axis=0) if is_free else self.least_anywhere
        alone = () if is_free else site.alone
        worst: Ints = np.max(
            [
                *(self.least_load[device_type] for device_type in alone),
                *(
                    self.free_load[device_type]
                    for device_type in site.types
                    if device_type not in alone
                ),
            ],
            axis=0,
        )
        return worst

    def _min_load(self, device_type: int | None) -> Ints:
        """Return the least amounts over device ranges of one or all types.

        Bounds on them where groups are dear to price.
        """
        bounding = self.shapes.bounding.under(self.model.runtime)
        return self._min_amounts(
            ("placed" if self._is_exact else "bounds", device_type),
            self.model if self._is_exact else bounding,
            lambda: self._distinct_blocks(device_type),
        )

    def _distinct_blocks(
        self, device_type: int | None
    ) -> dict[int, Sequence[Block | None]]:
        """Return the blocks of one or all types that may differ in cost.

        They are grouped by their number of devices.
        """
        cluster, network = self.model.problem.cluster, self.model.network
        unit = math.gcd(*self.devices.tolist())
        # Offsets are multiples of the unit, which need not divide the period.
        period: float = math.lcm(network.period, unit)
        if len(cluster.types) > 1:
            # Replicas begin anywhere, and any of them may have the type.
            period = math.inf
            splits = batch_splits(self.model.problem)
            unit = math.gcd(unit, *(x.devices for x in splits if x.replicas > 1))
        blocks: dict[int, Sequence[Block | None]] = {}
        for size in unique(self.devices).tolist():
            end = min(cluster.num_devices - size + 1, period)
            distinct: dict[object, Block] = {}
            for offset in range(0, max(1, end), unit):
                if not offset % (256 * unit):
                    self._check_time()
                block = Block(1, 0, offset, size)
                types = cluster.types_in(block.ranges())
                if device_type is None or types == (device_type,):
                    distinct.setdefault((network.alike(block), types), block)
            blocks[size] = list(distinct.values())
        return blocks

    def _min_amounts(
        self,
        what: tuple[str, int | None],
        model: CostModel,
        make_places: Callable[[], Mapping[int, Sequence[Block | None]]],
        amounts: Callable[[PassTimes], tuple[Any, ...]] | None = None,
    ) -> Ints:
        """Return the least amounts over device ranges, for every strategy.

        ``amounts`` are by default the ``sums`` of the schedule. Pass times do
        not depend on communication once per step, so runtimes that differ
        only in it share the cache.

        Raises
        ------
        OutOfTimeError
            If the deadline passed. The cache keeps the finished strategies.
        """
        overlap = model.runtime.overlap - {"gradients"}
        sizes = tuple(unique(self.devices).tolist())
        cache = self.shapes.least.setdefault(
            (what, self.micro_batch, overlap, sizes), {}
        )
        blocks: Mapping[int, Sequence[Block | None]] = {}
        if any(strategy not in cache for strategy in self.strategies):
            blocks = make_places()
        amounts = amounts or self.schedule.amounts
        none: tuple[Any, ...] = (0,) * len(amounts(Times(0, 0)))
        nowhere = [none] * len(self.shapes.representatives)
        fastest: dict[object, list[Block | None]] = {}
        for strategy in self.strategies:
            if strategy in cache:
                continue
            self._check_time()
            spread = strategy.spread
            if spread not in fastest:
                of_size = blocks[strategy.devices]
                ranges = [block for block in of_size if block is not None]
                fastest[spread] = [
                    *(
                        fastest_blocks(model, strategy, ranges, passes=True)
                        if ranges
                        else of_size
                    )
                ]
            rows = [
                [
                    none if passes is None else amounts(passes)
                    for passes in (
                        model.layers.passes(
                            *(layer, strategy, self.micro_batch, block),
                            model.runtime.overlap,
                        )
                        for layer in self.shapes.representatives
                    )
                ]
                for block in fastest[spread]
            ]
            cache[strategy] = np.min(rows or [nowhere], axis=0)
        table = np.array([cache[x] for x in self.strategies], dtype=np.int64)
        return np.ascontiguousarray(np.moveaxis(table, -1, 0))

    def _check_time(self) -> None:
        if self.shapes.deadline is not None:
            self.shapes.deadline.check()


def fastest_blocks(
    model: CostModel, strategy: Strategy, blocks: Sequence[Block], *, passes: bool
) -> list[Block]:
    """Return blocks such that no layer, or no pass, is faster on any other block."""
    of_types: dict[object, list[Block]] = {}
    for block in blocks:
        types = model.problem.cluster.types_in(block.ranges())
        of_types.setdefault(types, []).append(block)
    fastest: list[Block] = []
    for same_types in of_types.values():
        fastest += model.groups.fastest(strategy, same_types, passes=passes)
    return fastest


def batch_terms(
    shapes: StageShapes, runtime: Runtime
) -> Iterator[tuple[BatchSplit, BatchTerms]]:
    """Yield every ``(R, B)`` with its terms under a runtime.

    Batch configurations of one ``B`` share their terms, unless the terms
    depend on ``R``.
    """
    terms: dict[tuple[int, int], BatchTerms] = {}
    for split in batch_splits(shapes.model.problem):
        replicas = split.replicas if runtime.distributed_optimizer else 1
        key = (split.micro_batch, replicas)
        if key not in terms:
            terms[key] = BatchTerms(shapes, split.micro_batch, runtime, replicas)
        yield split, terms[key]


@dataclass(frozen=True)
class Rows:
    """Parallel arrays of one length."""

    def __len__(self) -> int:
        first = next(iter(fields(self))).name
        return len(getattr(self, first))

    def take(self, chosen: Bools | Ints | slice) -> Self:
        """Return the chosen rows."""
        return type(self)(
            *(getattr(self, field.name)[..., chosen] for field in fields(self))
        )

    @classmethod
    def concatenate(cls, tables: list[Self]) -> Self:
        """Return the rows of several tables, one table after the other."""
        return cls(
            *(
                np.concatenate(
                    [getattr(table, field.name) for table in tables], axis=-1
                )
                for field in fields(cls)
            )
        )


class StageFilter(NamedTuple):
    """Filter of the stages that a plan below a step time may have."""

    #: The step time, or one for each level.
    upper: Ints | int
    #: Lower bound on the time that all stages together add once.
    min_total: int

    def admits(self, once: Ints, wait: Ints, level: Ints | int = 0) -> Bools:
        """Whether stages may be part of such a plan.

        It follows from ``T >= max(once, min_total) + wait``.
        """
        upper = np.asarray(self.upper).reshape(-1)[level]
        may: Bools = np.maximum(once, self.min_total) < upper - wait
        return may


@dataclass(frozen=True)
class LooseOptions(Rows):
    """Stages without a device range, with lower bounds, ordered by shape."""

    #: Positions of the span of zones, of the shape and of the strategy; and the number
    #: of devices.
    span: Ints
    shape: Ints
    strategy: Ints
    size: Ints
    #: Lower bounds in quanta: the time that the stage adds once to the step, the time
    #: that all other stages wait for it, and ``Y``.
    once: Ints
    wait: Ints
    sync: Ints
    #: With ``i`` microbatches in flight, each device of the stage holds ``fixed_bytes +
    #: i kept_bytes``.
    fixed_bytes: Ints
    kept_bytes: Ints


@dataclass(frozen=True)
class PairOptions(Rows):
    """Stages with their pair of closed sets and a range of offsets."""

    #: Position of the level of memory, see :mod:`nest.search.frontier.levels`.
    level: Ints
    #: Positions of the span of zones, of the pair of closed sets and of the strategy;
    #: and the number of devices.
    span: Ints
    pair: Ints
    strategy: Ints
    size: Ints
    fixed_bytes: Ints
    kept_bytes: Ints
    #: Largest number of microbatches in flight that fits the memory.
    max_inflight: Ints
    #: The least and the largest offset at which the stage may begin.
    first: Ints
    last: Ints


@dataclass(frozen=True)
class PlacedOptions(Rows):
    """Stages at their device ranges, ordered by offset and source.

    Attributes
    ----------
    offset, size
        The devices ``[offset, offset + size)`` of a replica.
    source, target
        Closed sets ``a`` and ``b``, plus the number of sets times the level.
    enter, leave
        The sizes of the stages that meet at the cuts before and after the
        stage, see :mod:`nest.search.stages.neighbor_sizes`. 0 means any size; the
        receive times are then the least over all sizes.
    strategy
        Position of the strategy, or of the strategies of all layers.
    once, sync, joint
        Times in quanta: added once to the step; ``Y``; and ``Y`` plus the time
        that all other stages wait for the stage.
    hidden, backward
        Gradient synchronization in quanta that a sufficiently long backward
        pass overlaps, and the length of this pass. ``sync`` does not include
        ``hidden``. With exact receive times it includes the part of
        ``hidden`` that the pass is too short for.
    periods
        The periods of the schedule, a row each: times per microbatch whose
        maximum over all stages counts.
    fixed_bytes, kept_bytes, max_inflight
        Memory as in :class:`LooseOptions`, and the largest number of
        microbatches in flight that fits, at least 1.
    """

    offset: Ints
    size: Ints
    source: Ints
    target: Ints
    enter: Ints
    leave: Ints
    strategy: Ints
    once: Ints
    periods: Ints
    sync: Ints
    joint: Ints
    hidden: Ints
    backward: Ints
    fixed_bytes: Ints
    kept_bytes: Ints
    max_inflight: Ints


def no_options(num_periods: int) -> PlacedOptions:
    """Return a table of placed options without rows."""
    none = np.zeros(0, dtype=np.int64)
    options = PlacedOptions(*(none for _ in fields(PlacedOptions)))
    return replace(options, periods=np.zeros((num_periods, 0), dtype=np.int64))


def min_memory_bytes(cluster: Cluster, types: tuple[int, ...] | None) -> int:
    """Return the least memory of these device types; ``None``: of any."""
    if types is None:
        return cluster.memory_bytes()
    return min(cluster.types[device_type].memory_bytes for device_type in types)


class StageOptions:
    """The stage options of one ``(R, B)``, or of a family of its plans.

    Parameters
    ----------
    terms
        The strategies of ``B``.
    split
        Replicas, micro-batch, micro-batches and devices per replica.
    family
        Strategies that stages may mix, and how many stages there may be;
        ``None`` where all plans are one family.
    """

    def __init__(
        self, terms: BatchTerms, split: BatchSplit, family: Family | None = None
    ) -> None:
        if family is None:
            (family,) = families(
                terms.model.problem, split, terms.strategies, terms.model.runtime
            )
        self.terms, self.split = terms, split
        self.shapes, self.model = terms.shapes, terms.model
        problem = self.model.problem
        self.schedule = terms.schedule
        #: Whether backward passes overlap gradient sync, and its fraction.
        self.overlaps_sync = "gradients" in self.model.runtime.overlap
        self.fraction = problem.job.overlap.get("gradients", 0.0)
        #: How often the maximum of each period counts in the step time.
        self.rounds: Ints = np.array(
            self.schedule.rounds(split.num_micro_batches), dtype=np.int64
        )
        self.family = family
        allowed = {*family.strategies}
        self.usable = (terms.devices <= split.devices) & np.array(
            [strategy in allowed for strategy in terms.strategies], dtype=np.bool_
        )
        self.zones = Zones(problem.cluster, split)
        #: Upper limit of the memory of the devices of every span.
        self.span_bytes: Ints = np.array(
            [min_memory_bytes(problem.cluster, x.types) for x in self.zones.sites]
        )
        #: The numbers of devices that stages may have, ascending.
        self.sizes: list[int] = unique(terms.devices[self.usable]).tolist()
        #: Devices of the smallest stage.
        self.smallest = self.sizes[0] if self.sizes else 1
        self.max_stages = min(
            max_stages(problem, split), split.devices // self.smallest
        )
        self.stage_counts = [
            count for count in family.stage_counts if count <= self.max_stages
        ]
        #: Whether the job excludes some numbers of stages.
        self.restricted = len(self.stage_counts) < self.max_stages
        #: Whether the job allows stages of each shape; ``None`` for all.
        self.shapes_allowed = self._allowed_shapes()
        #: In-flight counts by number of remaining stages; they never fall.
        self._inflight: Ints = np.array(
            [
                self.schedule.inflight(remaining, split.num_micro_batches)
                for remaining in range(1, self.max_stages + 1)
            ]
        )
        self._receives: dict[object, Ints] = {}
        self._least_routes: dict[tuple[int, int], Routes] = {}
        self._exact: dict[object, Table] = {}
        #: The least sync of every kind under a strategy, see :meth:`least_sync`.
        self._min_sync: dict[int, Ints] = {}
        self._passing: dict[int, Ints] = {}
        #: Whether stages at device ranges have lower bounds for costs: the least passes
        #: of all device ranges and no gradient sync, so that no groups are priced.
        self.is_relaxed = False

    def _allowed_shapes(self) -> Bools | None:
        """Return which shapes the rules about complete plans allow."""
        problem, shapes = self.model.problem, self.shapes
        if not problem.job.even_layers or not self.stage_counts:
            return None
        # With this rule a family has one number of stages.
        (count,) = self.stage_counts
        layers = problem.graph.layers
        repeated = repeated_kinds(problem)
        allowed = np.ones(len(shapes), dtype=np.bool_)
        for column, layer in enumerate(shapes.representatives):
            kind = layers[layer].kind
            if kind in repeated:
                allowed &= shapes.counts[:, column] * count == repeated[kind]
        return allowed

    def permitted(self, options: LooseOptions) -> LooseOptions:
        """Return the options of shapes that are allowed."""
        if self.shapes_allowed is None:
            return options
        return options.take(self.shapes_allowed[options.shape])

    def inflight(self, remaining: Ints) -> Ints:
        """Return the in-flight counts for numbers of remaining stages."""
        in_flight: Ints = self._inflight[np.minimum(remaining, self.max_stages) - 1]
        return in_flight

    def need(self, remaining: int) -> int:
        """Return the in-flight count for a number of remaining stages."""
        return int(self._inflight[remaining - 1])

    @property
    def max_inflight(self) -> int:
        """The largest in-flight count of any stage."""
        return int(self._inflight[-1])

    def max_stages_after(self, fit: Ints) -> Ints:
        """Return the largest number of stages after stages that fit these."""
        return np.searchsorted(self._inflight, fit, "right") - 1

    def layer_strategies(self, chosen: int) -> tuple[Strategy, ...]:
        """Return the strategy of all layers of a chosen option."""
        return (self.terms.strategies[chosen],)

    def costs(self, amounts: Sequence[Ints] | Ints) -> tuple[Ints, Ints]:
        """Return the times that stages add once, and that others wait.

        ``amounts`` are the ``sums`` of their periods.
        """
        count = self.split.num_micro_batches
        return (self.schedule.added(amounts), self.schedule.waited(amounts, count))

    # Without a device range

    def fit(self, options: LooseOptions | PairOptions, cap_bytes: Ints | int) -> Ints:
        """Return the largest in-flight counts that fit."""
        free = cap_bytes - options.fixed_bytes
        max_inflight = self.max_inflight
        fit = np.where(
            (options.kept_bytes > 0) | (free < 0),
            free // np.maximum(options.kept_bytes, 1),
            max_inflight,
        )
        return np.minimum(fit, max_inflight)

    def passing_bytes(self, shards: int) -> Ints:
        """Return the bytes of passing tensors per microbatch, by shape."""
        if shards not in self._passing:
            micro_batch = self.split.micro_batch
            self._passing[shards] = self.shapes.passing_bytes(micro_batch, shards)
        return self._passing[shards]

    def loose(self, limit: StageFilter, cap_bytes: int) -> LooseOptions:
        """Return the options that pass the filter and fit the memory."""
        return self._all_loose(limit, cap_bytes, is_free=False)

    def without_communication(self, limit: StageFilter, cap_bytes: int) -> LooseOptions:
        """Return the same with times without communication, which are no longer."""
        return self._all_loose(limit, cap_bytes, is_free=True)

    def _all_loose(
        self, limit: StageFilter, cap_bytes: int, is_free: bool
    ) -> LooseOptions:
        shapes, zones = self.shapes, self.zones
        width = max(1, CHUNK // max(1, len(shapes)))
        tables = []
        for index, span in enumerate(zones.spans):
            first, last = zones.window(span, self.terms.devices)
            chosen = np.flatnonzero(self.usable & (first <= last))
            if not len(chosen):
                continue
            load = self.terms.load_on(zones.sites[index], is_free)
            for start in range(0, len(chosen), width):
                columns = chosen[start : start + width]
                tables.append(
                    self._loose(columns, load[:, columns], index, limit, cap_bytes)
                )
        if not tables:
            none = np.zeros(0, dtype=np.int64)
            return LooseOptions(*(none for _ in fields(LooseOptions)))
        options = LooseOptions.concatenate(tables)
        options = options.take(np.argsort(options.shape, kind="stable"))
        return self.permitted(options)

    def _loose(
        self, chosen: Ints, load: Ints, span: int, limit: StageFilter, cap_bytes: int
    ) -> LooseOptions:
        """Return the options of chosen strategies with these loads on a span."""
        terms, shapes = self.terms, self.shapes
        cap_bytes = min(cap_bytes, int(self.span_bytes[span]))
        free = terms.free
        assert free is not None

        def summed(table: Ints) -> Ints:
            """Sum over the layers of every shape."""
            of_set = table @ shapes.kind_counts.T
            difference: Ints = of_set[:, shapes.target]
            difference -= of_set[:, shapes.source]
            return difference

        once, wait = self.costs([summed(x) for x in load])
        missing = summed(free.missing[chosen].astype(np.int64))
        row, shape = np.nonzero(limit.admits(once, wait) & (missing == 0))
        fixed = summed(free.static_bytes[chosen])[row, shape]
        kept_bytes = summed(free.kept_bytes[chosen])[row, shape]
        sync = summed(free.sync[chosen])[row, shape]
        working = np.zeros(len(row), dtype=np.int64)
        for kind, column in enumerate(free.working_bytes[chosen].T):
            has = shapes.counts[shape, kind] > 0
            np.maximum(working, np.where(has, column[row], 0), out=working)
        fixed += working
        strategy = chosen[row]
        if shapes.passing.shape[1]:
            kept_bytes += np.array(
                [self.passing_bytes(terms.shards[x]) for x in chosen]
            )[row, shape]
        fits = np.flatnonzero(fixed + self.need(1) * kept_bytes <= cap_bytes)
        return LooseOptions(
            span=np.full(len(fits), span),
            shape=shape[fits],
            strategy=strategy[fits],
            size=terms.devices[strategy[fits]],
            once=once[row, shape][fits],
            wait=wait[row, shape][fits],
            sync=sync[fits],
            fixed_bytes=fixed[fits],
            kept_bytes=kept_bytes[fits],
        )

    def joint(self, options: LooseOptions) -> LooseOptions:
        """Return options whose wait contains their gradient sync.

        ``T = Σ o + max w + max Y >= Σ o + max (w + Y)``, so the least ``Y`` of a
        stage may count as time that all other stages wait for it.

        Sync that overlaps hides behind the backward pass ``G`` of one micro-batch at
        most. Each of the ``M - 1`` micro-batches that the others wait for takes ``G``
        and more, so on every device range ``w + Y`` is at least the wait for one
        micro-batch less, plus all of the sync.
        """
        sync = self.least_sync(options)
        wait = options.wait + sync
        if self.overlaps_sync:
            a_pass = options.wait // (self.split.num_micro_batches - 1)
            wait = np.maximum(options.wait, wait - a_pass)
        return replace(options, wait=wait, sync=np.zeros_like(options.sync))

    @property
    def bounds_sync(self) -> bool:
        """Whether :meth:`joint` finds more than the update of the weights.

        It does not where a single backward pass may overlap sync, or where the groups
        of a stage do not tell what sync takes, or take long to find.
        """
        model = self.model
        if model.network.dear or (
            self.overlaps_sync and self.split.num_micro_batches == 1
        ):
            return False
        return model.layers.rules.by_groups

    def least_sync(self, options: LooseOptions) -> Ints:
        """Return a lower bound on ``Y`` of each option, wherever it is.

        A layer of each kind takes at least what it takes on its best device range, so
        a stage takes at least the sum.
        """
        used, row = np.unique(options.strategy, return_inverse=True)
        spreads: dict[object, list[int]] = {}
        for index in used.tolist():
            if index not in self._min_sync:
                spread = self.terms.strategies[index].spread
                spreads.setdefault(spread, []).append(index)
        blocks: dict[int, list[Block]] = {}
        for rows in spreads.values():
            first = self.terms.strategies[rows[0]]
            if first.devices not in blocks:
                blocks[first.devices] = self._different_blocks(first.devices)
            of_size = blocks[first.devices]
            fastest = fastest_blocks(self.model, first, of_size, passes=False)
            sync = np.min([self._sync(block, rows) for block in fastest], axis=0)
            self._min_sync.update(zip(rows, sync, strict=True))
        min_sync = np.array(
            [self._min_sync[index] for index in used.tolist()], dtype=np.int64
        ).reshape(len(used), len(self.shapes.representatives))
        of_shape: Ints = min_sync @ self.shapes.counts.T
        stage_sync: Ints = of_shape[row, options.shape]
        return stage_sync

    def _sync(self, block: Block, used: list[int]) -> Ints:
        """Return the gradient sync of every kind under some strategies on a block."""
        strategies, model = self.terms.strategies, self.model
        return np.array(
            [
                [
                    model.layers.layer_sync(
                        *(layer, strategies[index], self.split.micro_batch, block),
                        model.runtime,
                    )
                    for layer in self.shapes.representatives
                ]
                for index in used
            ],
            dtype=np.int64,
        )

    def _different_blocks(self, size: int) -> list[Block]:
        """Return blocks, one of which has the groups and types of any other."""
        unit, end = math.gcd(*self.sizes), self.split.devices - size + 1
        if len(self.model.problem.cluster.types) == 1:
            end = min(end, math.lcm(self.model.network.period, unit))
        return [self._block(offset, size) for offset in range(0, end, unit)]

    # At device ranges

    def surviving(self, pairs: PairOptions, edges: PlacedOptions) -> PairOptions:
        """Return the options of level 0 with stages among some at offsets."""
        sets, num_strategies = self.shapes.sets, len(self.terms.strategies)
        keys = [
            (source * sets.count + target) * num_strategies + strategy
            for source, target, strategy in (
                (edges.source, edges.target, edges.strategy),
                (
                    sets.pair_source[pairs.pair],
                    sets.pair_target[pairs.pair],
                    pairs.strategy,
                ),
            )
        ]
        return pairs.take(np.isin(keys[1], keys[0]))

    def placed(
        self, pairs: PairOptions, limit: StageFilter, check_time: Callable[[], object]
    ) -> PlacedOptions:
        """Compute the costs of options at every offset where they may be.

        All costs are exact, except the receive times, which are the least
        over all sizes of the neighbors.

        Parameters
        ----------
        pairs
            The options that the bounds leave.
        limit
            The filter of each level.
        check_time
            Called repeatedly; raises when the time is up.
        """
        tables, rows, places = [], [], []
        count = 0
        for size, offsets in self._offsets(pairs).items():
            chosen = pairs.take(pairs.size == size)
            for priced, row, offset in self._placed(chosen, size, offsets, limit):
                check_time()
                tables.append(priced)
                rows.append(row + count)
                places.append(offset)
                count += len(priced)
        if not tables:
            return no_options(len(self.rounds))
        table = PlacedOptions.concatenate(tables)
        where, offset_of_row = np.concatenate(rows), np.concatenate(places)
        order = np.lexsort((table.source[where], offset_of_row))
        return replace(table.take(where[order]), offset=offset_of_row[order])

    def _offsets(self, pairs: PairOptions) -> dict[int, list[int]]:
        """Return the offsets that pipelines can reach, by size."""
        devices = self.split.devices
        spans = {
            int(size): (
                int(pairs.first[pairs.size == size].min()),
                int(pairs.last[pairs.size == size].max()),
            )
            for size in unique(pairs.size)
        }
        reached = np.zeros(devices + 1, dtype=np.bool_)
        reached[0] = True
        offsets: dict[int, list[int]] = {size: [] for size in spans}
        for offset in range(devices):
            if reached[offset]:
                for size, (first, last) in spans.items():
                    if first <= offset <= last:
                        offsets[size].append(offset)
                        reached[offset + size] = True
        return offsets

    def _placed(
        self, pairs: PairOptions, size: int, offsets: list[int], limit: StageFilter
    ) -> Iterator[tuple[PlacedOptions, Ints, Ints]]:
        """Compute the costs of options of one size, offset by offset.

        Yields
        ------
        tuple
            Options with their costs at equivalent offsets; and the rows and
            offsets of all combinations that are possible.
        """
        by_cost: dict[object, list[int]] = {}
        for offset in offsets:
            cost_key = self._place(offset, size, self.least_routes(offset, size))
            by_cost.setdefault(cost_key, []).append(offset)
        for equivalent in by_cost.values():
            where = np.array(equivalent, dtype=np.int64)
            low = np.searchsorted(where, pairs.first)
            high = np.searchsorted(where, pairs.last, "right")
            here = np.flatnonzero(low < high)
            if not len(here):
                continue
            priced, fast = self._priced(
                pairs.take(here), self._block(equivalent[0], size), limit
            )
            low, width = low[here[fast]], (high - low)[here[fast]]
            repeat = np.repeat(np.arange(len(fast)), width)
            position = np.arange(len(repeat)) - np.repeat(
                np.cumsum(width) - width, width
            )
            yield priced, repeat, where[low[repeat] + position]

    def _block(self, offset: int, size: int) -> Block:
        split = self.split
        return Block(split.replicas, split.devices, offset, size)

    def routes(
        self, offset: int, size: int, size_before: int, size_after: int
    ) -> Routes:
        """Return the routes of a block from neighbors of these sizes.

        A size of 0 means that there is no neighbor.
        """
        network, block = self.model.network, self._block(offset, size)
        return (
            network.route(block, block.before(size_before)) if size_before else None,
            network.route(block, block.behind(size_after)) if size_after else None,
        )

    def least_routes(self, offset: int, size: int) -> Routes:
        """Return routes that are as fast as from neighbors of any size.

        A route is ``None`` if there is no room for a neighbor.
        """
        if (offset, size) not in self._least_routes:
            network, block = self.model.network, self._block(offset, size)
            free = self.split.devices - offset - size
            sizes_before, sizes_after = (
                self.sizes[: bisect_right(self.sizes, room)] for room in (offset, free)
            )
            self._least_routes[offset, size] = (
                network.fastest(block, sizes_before, forward=True)
                if sizes_before
                else None,
                network.fastest(block, sizes_after, forward=False)
                if sizes_after
                else None,
            )
        return self._least_routes[offset, size]

    def _place(self, offset: int, size: int, routes: Routes) -> object:
        """Return an equivalence key: equal keys, equal costs."""
        block = self._block(offset, size)
        types = self.model.problem.cluster.types_in(block.ranges())
        return (self.model.network.alike(block), types, *routes)

    def _priced(
        self, pairs: PairOptions, block: Block, limit: StageFilter
    ) -> tuple[PlacedOptions, Ints]:
        """Compute the costs at one device range.

        Returns
        -------
        tuple
            The options that remain, and their rows in ``pairs``.
        """
        # Options without a device range have the least reserve of all devices.
        cluster = self.model.problem.cluster
        reserve_bytes = cluster.reserve_bytes(block.ranges())
        reserve_bytes -= cluster.reserve_bytes()
        pairs = replace(pairs, fixed_bytes=pairs.fixed_bytes + reserve_bytes)
        before, after = self.least_routes(block.offset, block.devices)
        sets, shapes = self.shapes.sets, self.shapes
        shape = shapes.of_pair[pairs.pair]
        source = sets.pair_source[pairs.pair]
        target = sets.pair_target[pairs.pair]
        used, row = np.unique(pairs.strategy, return_inverse=True)
        table = self._table(block, used)
        shards = np.array(self.terms.shards, dtype=np.int64)[used][row]
        received_back = self._receive(after, shapes.cut_of[target], shards)
        received = self._received(
            self._receive(before, shapes.cut_of[source], shards), received_back
        )[: len(self.rounds)]
        work, (sync, overlappable, backward) = self._sums(table, row, shape)
        hidden = self.hidden(overlappable)
        sync -= hidden
        periods = work + received
        once = weighted(self.schedule.once, periods)
        wait = self.rounds @ periods
        fit = np.minimum(
            pairs.max_inflight, self.fit(pairs, self.model.capacity_bytes(block))
        )
        fast = np.flatnonzero(
            limit.admits(once, wait, pairs.level) & (fit >= self.need(1))
        )
        # Options of other zones may have other offsets. Stages with more
        # shards never receive slower, for any size of the sender.
        group = pairs.level * len(self.zones.spans) + pairs.span
        late = sync + hidden - backward
        if self.overlaps_sync:
            # With a faster receive, the pass overlaps less.
            group = group * (shards.max(initial=0) + 1) + shards
        order = drop_neighbours(
            ((group * sets.count + source) * sets.count + target)[fast],
            [
                column[fast]
                for column in (
                    weighted(self.schedule.once, work),
                    *work,
                    -shards,
                    sync,
                    *([late] if self.overlaps_sync else []),
                    pairs.fixed_bytes + self.need(1) * pairs.kept_bytes,
                    pairs.fixed_bytes + self.max_inflight * pairs.kept_bytes,
                )
            ],
            rounds=1,
        )
        # A bound may be above the cost of an option with a higher bound.
        kept = fast if self.is_relaxed else fast[order]
        base = pairs.level * sets.count
        none = np.zeros(len(pairs), dtype=np.int64)
        priced = PlacedOptions(
            offset=none,
            size=pairs.size,
            source=base + source,
            target=base + target,
            enter=none,
            leave=none,
            strategy=pairs.strategy,
            once=once,
            periods=periods,
            sync=sync,
            joint=wait + sync,
            hidden=hidden,
            backward=backward + received_back,
            fixed_bytes=pairs.fixed_bytes,
            kept_bytes=pairs.kept_bytes,
            max_inflight=fit,
        )
        return priced.take(kept), kept

    def _sums(self, table: Table, row: Ints, shape: Ints) -> tuple[Ints, Ints]:
        """Add up the terms of the layers of stages.

        Parameters
        ----------
        table
            The terms of layers at a device range.
        row, shape
            For each option its row in the table, and its shape.

        Returns
        -------
        tuple
            The work of every round; and gradient sync, what of it may
            overlap, and backward passes.
        """
        work = np.zeros((len(self.rounds), len(row)), dtype=np.int64)
        sums = np.zeros((3, len(row)), dtype=np.int64)
        sync, overlappable, backward = sums
        for kind in range(len(self.shapes.representatives)):
            count = self.shapes.counts[shape, kind]
            for period, column in zip(
                work, np.moveaxis(table.periods[:, kind], -1, 0), strict=True
            ):
                period += count * column[row]
            sync += count * table.sync[row, kind]
            overlappable += count * table.hideable_sync[row, kind]
            backward += count * table.backward[row, kind]
        return work, sums

    def _table(self, block: Block, used: Ints) -> Table:
        """Return the terms of some strategies on a block, or bounds on them."""
        terms, tables = self.terms, []
        if self.is_relaxed:
            assert terms.free is not None
            periods = terms.least_anywhere[: len(self.rounds), used]
            return replace(terms.free.take(used), periods=np.moveaxis(periods, 0, -1))
        for index in used.tolist():
            strategy = terms.strategies[index]
            key = index, self.model.layers.place(strategy, block)
            if key not in self._exact:
                row = terms.terms(strategy, block)
                self._exact[key] = terms.table([row])
            tables.append(self._exact[key])
        return Table(
            *(
                np.concatenate([getattr(t, field.name) for t in tables])
                for field in fields(Table)
            )
        )

    def shards(self, options: PlacedOptions) -> Ints:
        """Return the number of ranks over which options shard receives."""
        return np.array(self.terms.shards, dtype=np.int64)[options.strategy]

    def hidden(self, overlappable: Ints) -> Ints:
        """Return the most gradient sync that stages can overlap."""
        exact = overlappable.astype(object)  # products exceed 64 bits
        hidden: Ints = most_hidden(exact, self.fraction).astype(np.int64)
        return hidden

    def received(
        self, options: PlacedOptions, routes: Sequence[Routes], which: Ints
    ) -> tuple[Ints, Ints]:
        """Return the receive times of options.

        Parameters
        ----------
        options
            The options.
        routes, which
            Routes from both neighbors, and the position of the routes of each option.

        Returns
        -------
        tuple
            The amounts, a row each, and the times to receive gradients.
        """
        cut_of, count = self.shapes.cut_of, self.shapes.sets.count
        distinct, degree = np.unique(self.shards(options), return_inverse=True)
        degrees = distinct.tolist()
        times = []
        for side, state in enumerate((options.source, options.target)):
            numbers: dict[Route | None, int] = {}
            route_index = np.array(
                [numbers.setdefault(x[side], len(numbers)) for x in routes],
                dtype=np.int64,
            )
            key, row = np.unique(
                route_index[which] * len(degrees) + degree, return_inverse=True
            )
            every = list(numbers)
            table = [
                self._times(every[x // len(degrees)], degrees[x % len(degrees)])
                for x in key.tolist()
            ]
            cuts = np.array(table).reshape(-1, len(self.shapes.cuts))
            times.append(cuts[row, cut_of[state % count]])
        return self._received(*times), times[1]

    def _received(self, forward: Ints, backward: Ints) -> Ints:
        """Return the amounts of receives: first the periods, a row each."""
        load = Times(forward, backward, np.zeros_like(forward))
        amounts: Ints = np.array(self.schedule.amounts(load))
        return amounts

    def _receive(self, route: Route | None, cut: Ints, shards: Ints) -> Ints:
        """Return the receive times in quanta across cuts."""
        result = np.zeros(len(cut), dtype=np.int64)
        for degree in unique(shards).tolist():
            chosen = shards == degree
            result[chosen] = self._times(route, degree)[cut[chosen]]
        return result

    def _times(self, route: Route | None, shards: int) -> Ints:
        """Return the receive time in quanta across every cut."""
        key = (route, shards)
        if key not in self._receives:
            self._receives[key] = np.array(
                [
                    0
                    if route is None
                    else self.model.transfers.receive(
                        route, sizes, self.split.micro_batch, shards
                    )
                    for sizes in self.shapes.cuts
                ],
                dtype=np.int64,
            )
        return self._receives[key]
