"""``mcmc`` over pipelines, as NEST compares FlexFlow with itself."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence

from baselines.common import even_split, in_flight
from baselines.mcmc_walk import Move, State, Walk, shape
from nest.cost.model import CostModel
from nest.cost.space import BatchSplit, stage_counts
from nest.ir.plan import Strategy


class PipelinedWalk(Walk):
    """Stages that work on several micro-batches at a time."""

    def __init__(self, model: CostModel) -> None:
        super().__init__(model)
        self.moves = [
            *map(self._refilled, (self._strategy, self._split, self._merge)),
            *(self._batches, self._pipeline),
        ]
        # By micro-batch, from the fewest replicas to the most.
        self._by_size: dict[int, list[BatchSplit]] = {}
        for split in self.splits:
            self._by_size.setdefault(split.micro_batch, []).append(split)

    def passes(self, loads: Sequence[int], num_micro_batches: int) -> int:
        """Return the time of all passes, given the loads of the stages."""
        return sum(loads) + (num_micro_batches - 1) * max(loads)

    def in_flight(self, split: BatchSplit, stages_left: int) -> int:
        """Return the micro-batches whose activations a stage keeps."""
        return in_flight(self.problem, split, stages_left)

    def _refilled(self, move: Move) -> Move:
        """Return a move that may take devices from replicas, or give them."""

        def refilled(draw: random.Random, state: State, layer: int) -> State | None:
            roomy = self._by_size[state.split.micro_batch][0]
            proposal = move(draw, state._replace(split=roomy), layer)
            return None if proposal is None else self._full(proposal)

        return refilled

    def _full(self, state: State) -> State:
        """Return the state with as many replicas as there are devices for."""
        used = sum(state.layers[start].devices for start, _ in state.stages)
        splits = self._by_size[state.split.micro_batch]
        index = bisect_right(splits, -used, key=lambda x: -x.devices)
        return state._replace(split=splits[max(index, 1) - 1])

    def _propagate(self, draw: random.Random, state: State) -> State:
        return self._full(super()._propagate(draw, state))

    def _batches(self, draw: random.Random, state: State, layer: int) -> State | None:
        """Draw ``(R, B)`` anew, and ``dp`` of every strategy in use."""
        split = draw.choice(self.splits)
        new: dict[Strategy, Strategy] = {}
        for old in dict.fromkeys(state.layers):
            like = [s for s in self.pool(split) if shape(s) == shape(old)]
            if not like:
                return None
            new[old] = draw.choice(like)
        return state._replace(
            split=split, layers=tuple(new[old] for old in state.layers)
        )

    def _pipeline(self, draw: random.Random, state: State, layer: int) -> State | None:
        """Draw a number of even stages and one strategy for all of them."""
        roomy = draw.choice(list(self._by_size.values()))[0]
        pool = self.pool(roomy)
        if not pool:
            return None
        strategy = draw.choice(pool)
        counts = [
            count
            for count in stage_counts(self.problem, roomy)
            if count * strategy.devices <= roomy.devices
        ]
        if not counts:
            return None
        stages = even_split(self.num_layers, draw.choice(counts))
        return self._full(
            State(
                roomy, tuple(stop for _, stop in stages), (strategy,) * self.num_layers
            )
        )
