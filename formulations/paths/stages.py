"""The stages that plans of one split can have, and what they take at least.

A *row* is a stage between two cuts with one strategy, on any of the places
where its layers cost the same. What it receives depends on the place and on
the stages beside it, so a row has the least of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from formulations.common import undominated
from formulations.paths.cuts import Cuts, Integers
from nest.cost.model import CostModel, LayerTerms
from nest.cost.rules import hidden_sync
from nest.cost.schedules import Times, paced
from nest.cost.schedules.base import weighted
from nest.cost.space import BatchSplit, Family, max_stages, repeated_kinds
from nest.ir.plan import Strategy
from nest.solvers.base import Deadline
from nest.topology.protocol import Block
from nest.units import MAX_TOTAL, ceil_div

#: Longer than any step. Four of it are below 2**63.
NEVER = MAX_TOTAL + 1

#: More rows than that are too many.
MAX_ROWS = 6_000_000


class TooLargeError(Exception):
    """There are too many stages; never leaves the formulations."""


class StageFamilyCase(NamedTuple):
    """Plans of one split and runtime whose stages choose from a family."""

    split: BatchSplit
    family: Family

    def __str__(self) -> str:
        return f"R={self.split.replicas} B={self.split.micro_batch}"


@dataclass(frozen=True)
class Levels:
    """How many stages are left, as far as it matters."""

    #: Micro-batches in flight of a stage on every level, ``[level - 1]``; level 1 is
    #: the last stage.
    inflight: tuple[int, ...]
    #: Levels that a first stage can have.
    starts: tuple[int, ...]
    #: Whether stages of the highest level can be behind each other: it stands for all
    #: that have at least so many stages left.
    loop: bool

    @property
    def top(self) -> int:
        """The highest level."""
        return len(self.inflight)

    def steps(self) -> Iterator[tuple[int, int]]:
        """Yield every level of a stage with one that can be behind it."""
        for level in range(1, self.top + 1):
            yield level, level - 1
        if self.loop:
            yield self.top, self.top


class Terms(NamedTuple):
    """What layers of each kind add under a strategy; -1 if not available."""

    strategy: Strategy
    kinds: tuple[LayerTerms | None, ...]


class Place(NamedTuple):
    """Places where all layers cost the same, and what is worth a try there."""

    devices: int
    offsets: tuple[int, ...]
    capacity_bytes: int
    choices: tuple[Terms, ...]


class StageTable:
    """All rows of a case; the cost model is that of the runtime.

    - ``place``, ``choice``, ``pair``: which place every row is of, which of its
      choices, and which pair of cuts.
    - ``devices``: of its block.
    - ``loads``, ``backward``: its paces and its backward pass, without what it
      receives.
    - ``sync``, ``hideable``: its gradient sync before any hides, and what of it may.
    - ``most``: the most micro-batches in flight for which it fits.
    - ``paces``, ``sync_least``: what it takes at least with what it receives, and with
      what hides.
    """

    place: Integers
    choice: Integers
    pair: Integers
    devices: Integers
    backward: Integers
    sync: Integers
    hideable: Integers
    most: Integers
    loads: tuple[Integers, ...]
    paces: tuple[Integers, ...]
    sync_least: Integers

    def __init__(
        self, model: CostModel, cuts: Cuts, case: StageFamilyCase, deadline: Deadline
    ) -> None:
        self.model, self.cuts, self.case = model, cuts, case
        self.deadline = deadline
        self.problem = model.problem
        self.split = case.split
        self.schedule = paced(self.problem.job.schedule)
        self.rounds = self.schedule.rounds(self.split.num_micro_batches)
        hides = "gradients" in model.runtime.overlap
        #: The fraction of gradient sync that hides.
        self.fraction = self.problem.job.overlap.get("gradients", 0.0) if hides else 0.0
        self._routes: dict[tuple[Block, Block], Any] = {}
        self._received: dict[tuple[Any, int, int], int] = {}
        strategies = case.family.strategies
        self.sizes = sorted({s.devices for s in strategies})
        self.places = list(self._places())
        self._fill()
        self.levels = self._levels()

    # Places and what layers cost there

    def _places(self) -> Iterator[Place]:
        split, model = self.split, self.model
        by_size: dict[int, list[Strategy]] = {}
        for strategy in self.case.family.strategies:
            by_size.setdefault(strategy.devices, []).append(strategy)
        for devices, strategies in sorted(by_size.items()):
            alike: dict[Block, list[int]] = {}
            for offset in range(split.devices - devices + 1):
                block = Block(split.replicas, split.devices, offset, devices)
                alike.setdefault(model.alike(block), []).append(offset)
            for offsets in alike.values():
                self.deadline.check()
                block = Block(*(split.replicas, split.devices, offsets[0], devices))
                choices = [self._terms(s, block) for s in strategies]
                yield Place(
                    devices,
                    tuple(offsets),
                    model.capacity_bytes(block),
                    self._worth_a_try([c for c in choices if any(c.kinds)], block),
                )

    def _terms(self, strategy: Strategy, block: Block) -> Terms:
        found = []
        capacity = self.model.capacity_bytes(block)
        for members in self.cuts.facts.members:
            terms = self.model.layer_terms(
                members[0], strategy, self.split.micro_batch, block
            )
            if terms is not None:
                needs = terms.static_bytes + terms.kept_bytes
                if needs + terms.working_bytes > capacity:
                    terms = None
            found.append(terms)
        return Terms(strategy, tuple(found))

    def _worth_a_try(self, choices: list[Terms], block: Block) -> tuple[Terms, ...]:
        """Return the choices that no other one at the place dominates."""
        missing = (float("inf"),) * len(self._costs(None))
        kept = undominated(
            {
                i: (
                    -self.model.shards(choice.strategy),
                    *(
                        cost
                        for terms in choice.kinds
                        for cost in (self._costs(terms) if terms else missing)
                    ),
                )
                for i, choice in enumerate(choices)
            }
        )
        return tuple(choices[i] for i in kept)

    def _costs(self, terms: LayerTerms | None) -> tuple[int, ...]:
        """Return what no plan has more of if no layer has.

        Where sync hides, ``-H`` and ``Σ o τ + Y - G`` beside ``Y``: see
        README, *What is left out*.
        """
        if terms is None:
            return (0,) * (6 + self.schedule.num_paces)
        paces = self.schedule.paces(terms)
        late = weighted(self.schedule.once, paces) + terms.sync
        return (
            *paces,
            terms.sync,
            -terms.hideable_sync if self.fraction else 0,
            late - terms.backward if self.fraction else 0,
            terms.static_bytes,
            terms.kept_bytes,
            terms.working_bytes,
        )

    # Rows

    def _allowed(self) -> Integers:
        """Return the pairs that stages of the case can lie between."""
        counts = self.cuts.counts
        allowed = np.ones(counts.shape[1], dtype=bool)
        if self.problem.job.even_layers:
            (stages,) = self.case.family.stage_counts
            repeated = repeated_kinds(self.problem)
            for kind, members in enumerate(self.cuts.facts.members):
                name = self.problem.graph.layers[members[0]].kind
                if name in repeated:
                    allowed &= counts[kind] * stages == repeated[name]
        return np.flatnonzero(allowed)

    def _fill(self) -> None:
        pairs = self._allowed()
        columns: list[tuple[Any, ...]] = []
        size = 0
        for number, place in enumerate(self.places):
            for index, choice in enumerate(place.choices):
                self.deadline.check()
                found = self._rows(number, index, choice, pairs)
                size += len(found[0])
                if size > MAX_ROWS:
                    raise TooLargeError
                columns.append(found)
        num_paces = self.schedule.num_paces
        empty = (np.zeros(0, dtype=np.int64),) * (8 + num_paces)
        (
            self.place,
            self.choice,
            self.pair,
            self.devices,
            self.backward,
            self.sync,
            self.hideable,
            self.most,
            *loads,
        ) = (np.concatenate(c) for c in zip(empty, *columns, strict=True))
        self.loads = tuple(loads)
        self._price_least()

    def _rows(
        self, number: int, index: int, choice: Terms, pairs: Integers
    ) -> tuple[Any, ...]:
        """Return the columns of the rows of one choice at a place."""
        place, counts = self.places[number], self.cuts.counts[:, pairs]
        fits = np.ones(len(pairs), dtype=bool)
        sums = np.zeros((5, len(pairs)), dtype=np.int64)
        backward, sync, hideable, static, kept = sums
        loads = np.zeros((self.schedule.num_paces, len(pairs)), dtype=np.int64)
        working = np.zeros(len(pairs), dtype=np.int64)
        for kind, terms in enumerate(choice.kinds):
            some = counts[kind]
            if terms is None:
                fits &= some == 0
                continue
            for load, pace in zip(loads, self.schedule.paces(terms), strict=True):
                load += some * pace
            backward += some * terms.backward
            sync += some * terms.sync
            hideable += some * terms.hideable_sync
            static += some * terms.static_bytes
            kept += some * terms.kept_bytes
            working = np.maximum(working, np.where(some > 0, terms.working_bytes, 0))
        shards = self.model.shards(choice.strategy)
        for size, passing in self.cuts.passing.items():
            of_one = ceil_div(size * self.split.micro_batch, shards)
            kept += passing[pairs] * min(of_one, place.capacity_bytes + 1)
        left = place.capacity_bytes - static - working
        many = self.split.num_micro_batches
        most = np.where(kept > 0, left // np.maximum(kept, 1), many)
        most = np.where(left < 0, 0, np.minimum(most, many))
        here = np.flatnonzero(fits & (most >= 1))
        same = np.ones(len(here), dtype=np.int64)
        return (
            number * same,
            index * same,
            pairs[here],
            place.devices * same,
            backward[here],
            sync[here],
            hideable[here],
            most[here],
            *loads[:, here],
        )

    def _price_least(self) -> None:
        """Add the least that rows receive, and the most that hides."""
        ahead_of, behind_of = np.zeros((2, len(self.pair)), dtype=np.int64)
        for number, place in enumerate(self.places):
            here = np.flatnonzero(self.place == number)
            if not len(here):
                continue
            for index, choice in enumerate(place.choices):
                self.deadline.check()
                rows = here[self.choice[here] == index]
                ahead, behind = self._least_received(place, choice.strategy)
                pair = self.pair[rows]
                tails = self.cuts.size_of[self.cuts.tails[pair]]
                heads = self.cuts.size_of[self.cuts.heads[pair]]
                ahead_of[rows] = ahead[tails]
                behind_of[rows] = behind[heads]
        self._check_size()
        self.paces = self.received(self.loads, ahead_of, behind_of)
        self.sync_least = self.sync
        if self.fraction:
            # No backward pass is known yet behind which it would not hide.
            most, which = np.unique(self.hideable, return_inverse=True)
            hidden = [hidden_sync(h, h, self.fraction) for h in most.tolist()]
            least = np.array(hidden, dtype=np.int64)[which]
            self.sync_least = self.sync - least

    def received(
        self, loads: Sequence[Integers], ahead: Integers, behind: Integers
    ) -> tuple[Integers, ...]:
        """Return paces with what is received in front and behind."""
        more = self.schedule.paces(Times(ahead, behind))
        return tuple(load + pace for load, pace in zip(loads, more, strict=True))

    def _check_size(self) -> None:
        """Raise ``TooLargeError`` if a step might not fit 64 bits."""
        received = max(self._received.values(), default=0)
        paces = self.schedule.paces(Times(received, received))
        both = [o + r for o, r in zip(self.schedule.once, self.rounds, strict=True)]
        stages = max_stages(self.problem, self.split)
        total = stages * int(weighted(tuple(both), paces))
        for kind, members in enumerate(self.cuts.facts.members):
            total += len(members) * max(
                (
                    int(weighted(tuple(both), self.schedule.paces(terms))) + terms.sync
                    for place in self.places
                    for choice in place.choices
                    if (terms := choice.kinds[kind])
                ),
                default=0,
            )
        if total > MAX_TOTAL:
            raise TooLargeError

    def _least_received(
        self, place: Place, strategy: Strategy
    ) -> tuple[Integers, Integers]:
        """Return the least that a stage receives in front and behind.

        For every tuple of sizes; 0 where no place has room for a sender, as
        the stage is the first or last one then.
        """
        split = self.split
        ahead: list[int] = []
        behind: list[int] = []
        for number in range(len(self.cuts.sizes)):
            least = [NEVER, NEVER]
            for offset in place.offsets:
                block = Block(*(split.replicas, split.devices, offset, place.devices))
                for size in self.sizes:
                    for side, sender in enumerate(
                        (block.before(size), block.behind(size))
                    ):
                        if self.has_room(sender):
                            took = self.receive(block, sender, number, strategy)
                            least[side] = min(least[side], took)
            ahead.append(least[0] if least[0] < NEVER else 0)
            behind.append(least[1] if least[1] < NEVER else 0)
        return np.array(ahead), np.array(behind)

    def has_room(self, block: Block) -> bool:
        """Whether a block lies on the devices of its replica."""
        return block.offset >= 0 and block.offset + block.devices <= self.split.devices

    def receive(
        self, block: Block, sender: Block, number: int, strategy: Strategy
    ) -> int:
        """Return what receiving a tuple of sizes takes, in quanta."""
        if not self.cuts.sizes[number]:
            return 0
        known = (block, sender)
        if known not in self._routes:
            self._routes[known] = self.model.network.route(block, sender)
        route = self._routes[known]
        shards = self.model.shards(strategy)
        key = (route, number, shards)
        if key not in self._received:
            self._received[key] = self.model.transfers.receive(
                *(route, self.cuts.sizes[number]), *(self.split.micro_batch, shards)
            )
        return self._received[key]

    # Levels

    def _levels(self) -> Levels:
        """Return the levels that the memory and the numbers of stages need."""
        counts = self.case.family.stage_counts
        most = min(
            max_stages(self.problem, self.split), self.split.devices // self.sizes[0]
        )
        many = self.split.num_micro_batches
        inflight = tuple(
            self.schedule.inflight(left, many)
            for left in range(1, max(*counts, most) + 1)
        )
        if not {*range(1, most + 1)} <= {*counts}:
            return Levels(inflight[: max(counts)], counts, loop=False)
        inflight = inflight[:most]
        highest = max(inflight)
        # Rows that fit on some level and not on the highest one.
        between = np.unique(self.most[self.most < highest])
        top = 1
        for left, number in enumerate(inflight, 1):
            if number < highest and (between >= number).any():
                top = left + 1
        return Levels(inflight[:top], tuple(range(1, top + 1)), loop=True)

    # Sums that bounds are made of

    @cached_property
    def once(self) -> Integers:
        """What every row adds to the sum of all stages, at least."""
        found: Integers = np.asarray(weighted(self.schedule.once, self.paces))
        return found

    @cached_property
    def wait(self) -> Integers:
        """What the others wait for it, at least."""
        found: Integers = 0 * self.once + weighted(self.rounds, self.paces)
        return found

    @property
    def work(self) -> Integers:
        """``Σ o p + n/P Σ r p`` of every row, rounded down."""
        share: Integers = self.wait // self.split.devices
        found: Integers = self.once + self.devices * share
        return found

    @property
    def row_alone(self) -> Integers:
        """What a plan with the stage takes at least."""
        return self.once + self.wait + self.sync_least
