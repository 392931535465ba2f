"""Stage candidates: what a stage may be at a place, and what it costs.

For one ``(R, B)`` and one place (offset ``k``, ``n`` devices) a candidate is
a pair of closed sets ``a ⊂ b`` and a strategy. Its load, its sync and the
largest in-flight count at which it fits memory are sums over ``b - a``, hence
differences of sums over ``b`` and ``a``; only the working set is a maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import Case, strategies
from nest.dp.closed_sets import ClosedSets
from nest.ir.plan import Strategy

if TYPE_CHECKING:
    from nest.dp.pipeline import PipelineSearch

Ints = NDArray[np.int64]
Field = Callable[[LayerTerms, int], int]

#: Larger than every time and count that occurs.
INFINITE = np.int64(2**62)


@dataclass(frozen=True)
class Candidates:
    """Stages that may sit at one kind of place, as parallel arrays.

    Attributes
    ----------
    source, target
        Closed sets ``a`` and ``b``; the arrays are ordered by ``target``.
    strategy
        What :meth:`StageTables.layer_strategies` knows the strategies by.
    load, sync
        ``τ`` and ``Y`` in quanta.
    joint
        ``(M-1) τ + Y``.
    max_inflight
        Largest in-flight count that fits memory, at least 1.
    """

    source: Ints
    target: Ints
    strategy: Ints
    load: Ints
    sync: Ints
    joint: Ints
    max_inflight: Ints

    def __len__(self) -> int:
        return len(self.load)

    def take(self, chosen: NDArray[np.bool_] | Ints) -> Self:
        """Return the chosen candidates."""
        return type(self)(
            *(
                getattr(self, field)[chosen]
                for field in self.__dataclass_fields__
            )
        )


class StageTables:
    """Stage candidates of one ``(R, B)``; built on demand per place.

    Parameters
    ----------
    model, sets
        Cost terms, and the closed sets of the graph.
    case
        Replicas, micro-batch, micro-batches and devices per replica.
    """

    def __init__(self, model: CostModel, sets: ClosedSets, case: Case) -> None:
        self.model, self.sets, self.case = model, sets, case
        problem = model.problem
        self.strategies = [
            strategy
            for strategy in strategies(problem, case.micro_batch)
            if strategy.devices <= case.devices
        ]
        self.sizes = sorted({s.devices for s in self.strategies})
        self._by_size = {
            n: [i for i, s in enumerate(self.strategies) if s.devices == n]
            for n in self.sizes
        }
        #: One strategy of each size per way to split devices into groups.
        self._layouts_of = {
            n: list(
                {
                    (s.dp, s.tp, s.cp, s.ep): s
                    for s in self.strategies
                    if s.devices == n
                }.values()
            )
            for n in self.sizes
        }
        self._aliases: dict[Block, Block] = {}
        self._first_alike: dict[object, Block] = {}
        self.capacity = problem.cluster.device.memory_bytes
        self._gpipe = problem.job.schedule == "gpipe"
        # One representative per kind: layers of a kind cost the same.
        kinds: dict[str, int] = {}
        for position, layer in enumerate(problem.graph.layers):
            kinds.setdefault(layer.kind, position)
        self._representatives = list(kinds.values())
        order = {kind: i for i, kind in enumerate(kinds)}
        kind_of = [order[layer.kind] for layer in problem.graph.layers]
        one_hot = np.zeros((len(kind_of), len(kinds)), dtype=np.int64)
        one_hot[np.arange(len(kind_of)), kind_of] = 1
        #: Layers of each kind in every closed set, ``(sets, kinds)``.
        self.kind_counts: Ints = sets.member.astype(np.int64) @ one_hot
        self._crossing = [self._crossing_sizes(i) for i in range(sets.count)]
        self._receives: dict[object, Ints] = {}
        self._terms: dict[object, KindTerms] = {}
        self._candidates: dict[object, Candidates] = {}
        #: Loads at or above this are of no use; the search lowers it.
        self.max_load = int(INFINITE)

    def _crossing_sizes(self, position: int) -> tuple[int, ...]:
        """Sizes per sample of the tensors that cross a cut, sorted."""
        member = self.sets.member[position]
        sizes = []
        for tensor in self.model.tensors:
            if member[tensor.producer]:
                beyond = [
                    s for node, s in tensor.consumers if not member[node]
                ]
                if any(beyond):
                    sizes.append(max(beyond))
        return tuple(sorted(sizes))

    def need(self, stages_left: int) -> int:
        """Return the in-flight count of a stage with so many stages left."""
        if self._gpipe:
            return self.case.num_micro_batches
        return min(self.case.num_micro_batches, stages_left)

    def least(self, fields: Sequence[Field]) -> list[list[int]]:
        """Return per kind the least value of fields, communication free.

        Parameters
        ----------
        fields
            Each is called with the terms and the device count of a strategy.

        Returns
        -------
        list of one list per field with one value per kind
            :data:`INFINITE` where no strategy is available.
        """
        best = [[int(INFINITE)] * len(self._representatives) for _ in fields]
        for strategy in self.strategies:
            for kind, layer in enumerate(self._representatives):
                terms = self.model.layer_terms(
                    layer, strategy, self.case.micro_batch, None
                )
                if terms is None:
                    continue
                for row, field in zip(best, fields, strict=True):
                    value = field(terms, strategy.devices)
                    row[kind] = min(row[kind], value)
        return best

    def at(self, offset: int, size: int) -> Candidates:
        """Return the candidates on devices ``[offset, offset + size)``."""
        case = self.case
        block = Block(case.replicas, case.devices, offset, size)
        end = offset + size
        before = (
            self.model.boundary_levels(block, forward=True)
            if offset
            else frozenset()
        )
        after = (
            self.model.boundary_levels(block, forward=False)
            if end < case.devices
            else frozenset()
        )
        key = (
            self._alike(block),
            before,
            after,
            offset == 0,
            end == case.devices,
        )
        if key not in self._candidates:
            self._candidates[key] = self._build(
                size, offset, before, after, end == case.devices
            )
        return self._candidates[key]

    def refine(
        self,
        pipeline: PipelineSearch,
        upper: int,
        max_labels: int | None,
    ) -> Mapping[tuple[int, int], Candidates] | None:
        """Return exact candidates, or ``None`` if they are exact already.

        Parameters
        ----------
        pipeline
            A search that has bounded the candidates of :meth:`at`.
        upper
            Only plans below this step time count.
        max_labels
            If given, look only for some good candidates.
        """
        return None

    def forget_beyond(self, max_load: int) -> None:
        """Drop candidates whose load is at least ``max_load``."""
        if max_load >= self.max_load:
            return
        self.max_load = max_load
        for key, found in self._candidates.items():
            self._candidates[key] = found.take(found.load < max_load)

    def layer_strategies(self, candidate: int) -> tuple[Strategy, ...]:
        """Return the strategy of all layers of a chosen candidate."""
        return (self.strategies[candidate],)

    def _alike(self, block: Block) -> Block:
        """Return the first block on which all layers cost the same."""
        block = self.model.aligned(block)
        if block not in self._aliases:
            groups = tuple(
                self.model.groups_number(strategy, block)
                for strategy in self._layouts_of[block.devices]
            )
            self._aliases[block] = self._first_alike.setdefault(
                (block.devices, groups), block
            )
        return self._aliases[block]

    def _kind_terms(self, size: int, offset: int) -> KindTerms:
        case = self.case
        block = self._alike(Block(case.replicas, case.devices, offset, size))
        if block not in self._terms:
            self._terms[block] = KindTerms(
                self.model,
                case,
                block,
                self._by_size[size],
                self.strategies,
                self._representatives,
            )
        return self._terms[block]

    def _build(
        self,
        size: int,
        offset: int,
        before: frozenset[int],
        after: frozenset[int],
        ends: bool,
    ) -> Candidates:
        """Price every stage at a place and keep those worth keeping."""
        sets = self.sets
        source, target = sets.pair_source, sets.pair_target
        chosen = source == 0 if offset == 0 else source > 0
        last = sets.count - 1
        if ends:
            chosen &= target == last
        source, target = source[chosen], target[chosen]
        terms = self._kind_terms(size, offset)
        counts = self.kind_counts
        parts = []
        for row, index in enumerate(terms.strategies):
            shards = self.strategies[index].shards(
                self.model.problem.job.sequence_parallel
            )
            load_of = counts @ terms.load[row]
            load = load_of[target] - load_of[source]
            if offset:
                load += self._receive(before, shards)[source]
            if not ends:
                load += self._receive(after, shards)[target]
            missing_of = counts @ terms.missing[row]
            useful = (missing_of[target] == missing_of[source]) & (
                load < self.max_load
            )
            where = np.flatnonzero(useful)
            a, b, load = source[where], target[where], load[where]
            fit = self._max_inflight(terms, row, a, b)
            fits = fit > 0
            sync_of = counts @ terms.sync[row]
            a, b, load = a[fits], b[fits], load[fits]
            sync = sync_of[b] - sync_of[a]
            parts.append(
                Candidates(
                    a,
                    b,
                    np.full(len(a), index, dtype=np.int64),
                    load,
                    sync,
                    (self.case.num_micro_batches - 1) * load + sync,
                    fit[fits],
                )
            )
        return _without_dominated(
            concatenate(parts) if parts else no_candidates()
        )

    def _max_inflight(
        self, terms: KindTerms, row: int, source: Ints, target: Ints
    ) -> Ints:
        counts = self.kind_counts
        static_of = counts @ terms.static_bytes[row]
        kept_of = counts @ terms.kept_bytes[row]
        free = self.capacity - (static_of[target] - static_of[source])
        kept = kept_of[target] - kept_of[source]
        working = np.zeros(len(source), dtype=np.int64)
        for kind in np.argsort(terms.working_bytes[row], kind="stable"):
            has = counts[target, kind] > counts[source, kind]
            working[has] = terms.working_bytes[row, kind]
        free -= working
        most = self.need(self.sets.count)
        fit = np.where(kept > 0, free // np.maximum(kept, 1), most)
        fit[free < 0] = 0
        return np.minimum(fit, most)

    def _receive(self, levels: frozenset[int], shards: int) -> Ints:
        """Receive times in quanta across every closed set's cut."""
        key = (levels, shards)
        if key not in self._receives:
            times: dict[tuple[int, ...], int] = {(): 0}
            for sizes in set(self._crossing) - {()}:
                times[sizes] = max(
                    (
                        self.model.message(level)
                        + sum(
                            self.model.tensor(
                                level, size, self.case.micro_batch, shards
                            )
                            for size in sizes
                        )
                        for level in levels
                    ),
                    default=0,
                )
            receive = np.array(
                [times[sizes] for sizes in self._crossing], dtype=np.int64
            )
            self._receives[key] = receive
        return self._receives[key]


class KindTerms:
    """Layer terms at one alignment, per strategy and kind, as arrays."""

    def __init__(
        self,
        model: CostModel,
        case: Case,
        block: Block,
        indices: list[int],
        all_strategies: list[Strategy],
        representatives: list[int],
    ) -> None:
        rows = []
        kept: list[int] = []
        for index in indices:
            row = [
                model.layer_terms(
                    layer, all_strategies[index], case.micro_batch, block
                )
                for layer in representatives
            ]
            if any(term is not None for term in row):
                rows.append(row)
                kept.append(index)
        self.strategies = kept
        # A layer that does not fit alone never fits; clipping its size keeps
        # the sums of a stage within 64 bits.
        too_much = model.problem.cluster.device.memory_bytes + 1

        def table(field: Callable[[LayerTerms], int]) -> Ints:
            values = [
                [0 if term is None else field(term) for term in row]
                for row in rows
            ]
            shape = (len(rows), len(representatives))
            return np.array(values, dtype=np.int64).reshape(shape)

        self.load = table(lambda t: t.forward + t.backward)
        self.sync = table(lambda t: t.sync)
        self.static_bytes = table(lambda t: min(t.static_bytes, too_much))
        self.kept_bytes = table(lambda t: min(t.kept_bytes, too_much))
        self.working_bytes = table(lambda t: min(t.working_bytes, too_much))
        self.missing = np.array(
            [[int(term is None) for term in row] for row in rows],
            dtype=np.int64,
        ).reshape(len(rows), len(representatives))
        self._drop_dominated(
            [
                all_strategies[i].shards(model.problem.job.sequence_parallel)
                for i in kept
            ]
        )

    def _drop_dominated(self, shards: list[int]) -> None:
        """Drop strategies that another one equals or beats in every term.

        More shards make a boundary cheaper. Of equal strategies the first
        one stays.
        """
        split = np.array(shards, dtype=np.int64)
        tables: tuple[str, ...] = ("load", "sync", "static_bytes")
        tables += ("kept_bytes", "working_bytes", "missing")
        # beats[i, j]: i is nowhere worse than j
        beats = split[:, None] >= split[None, :]
        for name in tables:
            table = getattr(self, name)
            beats &= (table[:, None, :] <= table[None, :, :]).all(axis=2)
        earlier = np.tri(len(shards), dtype=np.bool_)
        beats &= ~beats.T | earlier.T
        np.fill_diagonal(beats, False)
        chosen = np.flatnonzero(~beats.any(axis=0))
        self.strategies = [self.strategies[i] for i in chosen]
        for name in tables:
            setattr(self, name, getattr(self, name)[chosen])


C = TypeVar("C", bound=Candidates)


def concatenate(parts: Sequence[C]) -> C:
    """Return the candidates of several parts, one part after the other."""
    return type(parts[0])(
        *(
            np.concatenate([getattr(part, field) for part in parts])
            for field in parts[0].__dataclass_fields__
        )
    )


def no_candidates() -> Candidates:
    """Return candidates of which there are none."""
    empty = np.zeros(0, dtype=np.int64)
    return Candidates(*(empty for _ in Candidates.__dataclass_fields__))


def _without_dominated(found: Candidates) -> Candidates:
    """Drop most candidates that another one of the same pair beats.

    A candidate is beaten if another is no slower, no longer to sync and fits
    at least as many micro-batches. Comparing neighbours in sorted order finds
    enough of them; what is left costs time, not exactness.
    """
    order = np.lexsort(
        (
            -found.max_inflight,
            found.sync,
            found.load,
            found.source,
            found.target,
        )
    )
    found = found.take(order)
    for _ in range(3):
        beaten = np.zeros(len(found), dtype=np.bool_)
        for shift in (1, 2, 3):
            if len(found) <= shift:
                break
            earlier, later = slice(None, -shift), slice(shift, None)
            beaten[later] |= (
                (found.source[earlier] == found.source[later])
                & (found.target[earlier] == found.target[later])
                & (found.sync[earlier] <= found.sync[later])
                & (found.max_inflight[earlier] >= found.max_inflight[later])
            )
        if not beaten.any():
            break
        found = found.take(~beaten)
    return found
