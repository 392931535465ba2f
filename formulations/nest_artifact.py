"""Constants of sub-problems under the rules of NEST's artifact.

All stages share one strategy, so a slot has one option, at offset ``(s-1)
n``: the last stage sits on device 0. Primed equations of
``formulations/README.md``; rules: :mod:`nest.audits.nest_artifact.rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from formulations.common import (
    BACKWARD,
    Choice,
    Instance,
    Minima,
    Place,
    Receive,
    SubProblem,
)
from nest.audits.nest_artifact.rules import artifact_rules
from nest.cost.model import CostModel
from nest.cost.schedules import PassTimes
from nest.cost.schedules.base import Weights
from nest.cost.space import BatchSplit
from nest.ir.plan import Strategy
from nest.ir.problem import Problem
from nest.solvers.base import Deadline
from nest.topology.protocol import Block
from nest.units import ceil_div


class ArtifactInstance(Instance):
    """A problem taken apart under these rules."""

    artifact: ClassVar[bool] = True

    def __init__(self, problem: Problem, model: CostModel, deadline: Deadline) -> None:
        super().__init__(problem, model, deadline)
        self.rules = artifact_rules(model)
        self.passing = ()

    def paces(self, load: PassTimes) -> tuple[int, ...]:
        """Return the load, whatever the schedule."""
        return (load.forward + load.backward,)

    @property
    def once(self) -> Weights:
        """Only the largest load counts (L1')."""
        return (0,)

    def rounds(self, split: BatchSplit, num_stages: int) -> Weights:
        """Return ``M + S - 1`` (L1')."""
        return (split.num_micro_batches + num_stages - 1,)

    def inflight(self, split: BatchSplit, number: int) -> int:
        """Return the micro-batches in flight in a slot."""
        return self.rules.inflight(self.model, number, split.num_micro_batches)

    def bound(
        self, split: BatchSplit, num_stages: int, group: Sequence[Strategy]
    ) -> int | None:
        """Return a lower bound, equation (L23'), or ``None``."""
        (strategy,) = group
        found = [
            self._place(split, num_stages, number, strategy)
            for number in range(1, num_stages + 1)
        ]
        profiles = [of_slot.profile for of_slot in found if of_slot]
        least = Minima(self.graph.members, profiles, (1,), (1,))
        if not least.complete:
            return None
        work = least.total(lambda load, _, devices: devices * load)
        slowest = max(
            least.wait, ceil_div(least.once, num_stages), ceil_div(work, split.devices)
        )
        (slots,) = self.rounds(split, num_stages)
        return slots * slowest + min(least.syncs)

    def _fitting(self, sub_problem: SubProblem, number: int) -> list[Place]:
        """Return the only place of a slot."""
        split, num_stages = sub_problem.split, sub_problem.num_stages
        assert sub_problem.strategy is not None
        found = self._place(split, num_stages, number, sub_problem.strategy)
        return [] if found is None else [found]

    def _place(
        self, split: BatchSplit, num_stages: int, number: int, strategy: Strategy
    ) -> Place | None:
        block = _block(split, num_stages, number, strategy)
        if num_stages * block.devices > split.devices:
            return None
        kept = sum(self._entering_bytes(split, number, strategy, block))
        profile = self._profile(split, number, (strategy,), block, kept)
        if profile is None:
            return None
        return Place(block.offset, (strategy,), profile)

    def _extras(
        self, sub_problem: SubProblem, number: int
    ) -> tuple[tuple[int, ...], int]:
        """Return ``entering_bytes`` and ``sync_constant`` of a slot."""
        split, strategy = sub_problem.split, sub_problem.strategy
        assert strategy is not None
        block = _block(split, sub_problem.num_stages, number, strategy)
        return (
            self._entering_bytes(split, number, strategy, block),
            self.rules.sync_constant(self.model, block),
        )

    def _entering_bytes(
        self, split: BatchSplit, number: int, strategy: Strategy, block: Block
    ) -> tuple[int, ...]:
        """Return what the edges that enter a slot keep (L22)."""
        if strategy.recompute != "full":
            return ()
        further = self.inflight(split, number) - 1
        samples = split.micro_batch // strategy.dp
        most = self.model.capacity_bytes(block) + 1
        kept = tuple(
            min(further * size_bytes * samples, most)
            for _, _, size_bytes in self.model.transfers.edge_bytes(strategy.tp)
        )
        return kept if any(kept) else ()

    def _choice(
        self,
        split: BatchSplit,
        number: int,
        layer: int,
        strategy: Strategy,
        block: Block,
    ) -> Choice | None:
        """Return what a layer adds; ``None`` if it is not available.

        Recomputation hides the receive of gradients, and the last stage does
        without; a further micro-batch in flight keeps what enters the slot.
        """
        choice = super()._choice(split, number, layer, strategy, block)
        terms = self.model.layer_terms(layer, strategy, split.micro_batch, block)
        if choice is None or terms is None:
            return None
        (load,) = choice.loads
        resident_bytes = choice.resident_bytes
        if strategy.recompute == "full":
            resident_bytes = terms.static_bytes + terms.kept_bytes
        return choice._replace(
            loads=(load - terms.recomputed,),
            recomputed=0 if number == 1 else terms.recomputed,
            resident_bytes=resident_bytes,
        )

    def _table(
        self,
        sub_problem: SubProblem,
        number: int,
        block: Block,
        strategy: Strategy,
        side: int,
        known: dict[Receive, int],
    ) -> tuple[int | None, ...]:
        """Return the one receive of a side: all slots have one size."""
        receive = self._receive(sub_problem, number, block, strategy, side, block)
        return (known.setdefault(receive, len(known)),)

    def _receive(
        self,
        sub_problem: SubProblem,
        number: int,
        block: Block,
        strategy: Strategy,
        side: int,
        sender: Block,
    ) -> Receive:
        """Return what every edge takes on a side of a slot (L10')."""
        split, num_stages = sub_problem.split, sub_problem.num_stages
        other = number - 1 if side == BACKWARD else number + 1
        edge = self.rules.edge(
            self.model,
            _block(split, num_stages, number, strategy),
            _block(split, num_stages, other, strategy),
        )
        samples = split.micro_batch // strategy.dp
        times = tuple(
            self.rules.edge_quanta(self.model, edge, size_bytes * samples)
            for _, _, size_bytes in self.model.transfers.edge_bytes(strategy.tp)
        )
        return ((0, times),)


def _block(
    split: BatchSplit, num_stages: int, number: int, strategy: Strategy
) -> Block:
    """Return a slot's block; replicas are as far apart as they are large."""
    devices = strategy.devices
    return Block(split.replicas, num_stages * devices, (number - 1) * devices, devices)
