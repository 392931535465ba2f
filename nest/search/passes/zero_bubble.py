"""Orders of passes by the rules of the zero-bubble paper.

Source: Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism" (arXiv
2401.10241), section 3.1, the heuristic algorithm:

1. Warm-up: as many forward passes (F) as fit in memory and end before the
   first gradients of inputs (B) can start. One option allows a last F that delays them.
2. Then one F and one B in turn. Gradients of weights (W) go into a gap that is
   as long, or into a shorter one if the idle time of the stage would become
   the longest of all, or where an F needs the memory. A stage stays an F ahead
   of the next one; where it is further ahead, another option skips an F. The
   paper skips it "if it doesn't cause more bubbles"; here the result decides.
3. What is left of W.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from nest.cost.schedules import Pass
from nest.search.passes.list_orders import ListOrder, OrderScope


def best_zero_bubble_order(
    scope: OrderScope, stop: Callable[[], bool] = lambda: False
) -> ListOrder:
    """Return the best order of all options, or of the first ones, to stop.

    Of one chunk per block, each with memory for a micro-batch at least.
    """
    orders: list[ListOrder] = []
    for choices in itertools.product((False, True), repeat=2):
        orders.append(zero_bubble_order(scope, *choices))
        if stop():
            break
    return min(orders, key=lambda x: x.end)


def zero_bubble_order(
    scope: OrderScope, delays_backward: bool, skips_forward: bool
) -> ListOrder:
    """Return the order that the rules lead to.

    Parameters
    ----------
    scope
        The passes of one chunk per block, each with memory for one
        micro-batch at least.
    delays_backward
        Whether the warm-up may end with an F that delays the first B.
    skips_forward
        Whether a stage that is two F ahead of the next one skips one.
    """
    maker = _OrderMaker(scope)
    maker.warm_up(delays_backward)
    stages = range(len(scope.times))
    for micro_batch in range(scope.num_micro_batches):
        for stage in reversed(stages):
            maker.run_inputs(stage)
        for stage in stages:
            if maker.may_forward(stage, micro_batch, skips_forward):
                maker.run_forward(stage)
    for stage in stages:
        while maker.num_weights_open(stage):
            maker.run_weights(stage)
    lists = tuple(map(tuple, maker.lists))
    return ListOrder(max(maker.free_at), lists)


class _OrderMaker:
    """Runs passes one after the other, and keeps when they end."""

    def __init__(self, scope: OrderScope) -> None:
        self.scope, stages = scope, range(len(scope.times))
        self.last = stages[-1]
        self.forward_ends: list[list[int]] = [[] for _ in stages]
        self.inputs_ends: list[list[int]] = [[] for _ in stages]
        self.num_weights = [0 for _ in stages]
        self.free_at = [0 for _ in stages]
        self.idle = [0 for _ in stages]
        self.lists: list[list[Pass]] = [[] for _ in stages]
        count = scope.num_micro_batches
        #: Micro-batches in flight that fit.
        self.room = [
            min(count, free_bytes // kept_bytes) if kept_bytes else count
            for free_bytes, kept_bytes in zip(
                scope.free_bytes, scope.kept_bytes, strict=True
            )
        ]

    def warm_up(self, delays_backward: bool) -> None:
        """Run the forward passes in front of the first B."""
        scope = self.scope
        for stage in range(len(scope.times)):
            first_return = sum(scope.forward) + sum(scope.inputs[stage + 1 :])
            room, previous = self.room[stage], scope.num_micro_batches
            if stage:
                previous = len(self.forward_ends[stage - 1])
                if previous < scope.num_micro_batches:
                    room = min(room, max(previous - 1, 1))
            self.run_forward(stage)
            while len(self.forward_ends[stage]) < min(room, previous):
                start = max(self.free_at[stage], self._arrival(stage))
                end = start + (0 if delays_backward else scope.forward[stage])
                if end > first_return or start >= first_return:
                    break
                self.run_forward(stage)

    def may_forward(self, stage: int, micro_batch: int, skips_forward: bool) -> bool:
        """Whether a stage runs an F behind the B of a micro-batch."""
        num_forward = len(self.forward_ends[stage])
        if num_forward == self.scope.num_micro_batches:
            return False
        if stage and len(self.forward_ends[stage - 1]) == num_forward:
            return False
        if num_forward <= micro_batch + 1:  # the next B needs it
            return True
        if skips_forward and stage < self.last:
            following = len(self.forward_ends[stage + 1])
            if num_forward > following + 1:
                return False
        return self._has_room(stage) or self.num_weights_open(stage) > 0

    def num_weights_open(self, stage: int) -> int:
        """Return how many gradients of weights a stage can compute."""
        return len(self.inputs_ends[stage]) - self.num_weights[stage]

    def run_forward(self, stage: int) -> None:
        """Run the next F, with W in front of it that make room for it."""
        while not self._has_room(stage):
            self.run_weights(stage)
        arrival = self._arrival(stage)
        micro_batch = len(self.forward_ends[stage])
        end = self._run(stage, arrival, self.scope.forward[stage])
        self.forward_ends[stage].append(end)
        self.lists[stage].append(Pass(stage, micro_batch, False))

    def run_inputs(self, stage: int) -> None:
        """Run the next B; all gradients at once where W takes no time."""
        micro_batch = len(self.inputs_ends[stage])
        ends = self.forward_ends[stage]
        if stage < self.last:
            ends = self.inputs_ends[stage + 1]
        end = self._run(stage, ends[micro_batch], self.scope.inputs[stage])
        self.inputs_ends[stage].append(end)
        if self.scope.weights[stage]:
            backward = Pass(stage, micro_batch, True, "inputs")
        else:
            self.num_weights[stage] += 1
            backward = Pass(stage, micro_batch, True)
        self.lists[stage].append(backward)

    def run_weights(self, stage: int) -> None:
        """Run the next W."""
        micro_batch = self.num_weights[stage]
        self.num_weights[stage] += 1
        self.free_at[stage] += self.scope.weights[stage]
        self.lists[stage].append(Pass(stage, micro_batch, True, "weights"))

    def _has_room(self, stage: int) -> bool:
        num_forward = len(self.forward_ends[stage])
        return num_forward - self.num_weights[stage] < self.room[stage]

    def _arrival(self, stage: int) -> int:
        """Return when the next F has what it needs."""
        if stage == 0:
            return 0
        return self.forward_ends[stage - 1][len(self.forward_ends[stage])]

    def _run(self, stage: int, ready: int, time: int) -> int:
        """Run a pass that is ready then, with W in the gap; return its end."""
        weights = self.scope.weights[stage]
        while self.num_weights_open(stage) and self.free_at[stage] < ready:
            gap = ready - self.free_at[stage]
            others = self.idle[:stage] + self.idle[stage + 1 :]
            if gap < weights and self.idle[stage] + gap <= max(others, default=0):
                break
            self.run_weights(stage)
        if self.lists[stage]:
            self.idle[stage] += max(0, ready - self.free_at[stage])
        self.free_at[stage] = max(self.free_at[stage], ready) + time
        return self.free_at[stage]
