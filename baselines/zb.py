"""``zb``: zero-bubble orders of passes on the stages of the 1F1B optimum.

Source: Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR'24
(arXiv 2401.10241), section 3.1, the heuristic algorithm, which the authors
also start their integer program from.

Search space
    The plan that ``dp`` finds best under 1F1B: its stages, strategies and
    batches. Gradients of weights (W) are passes of their own, so that orders
    of forward passes (F), gradients of inputs (B) and W are left:

    1. Warm-up: as many F as fit in memory and end before the first B can
       start. One option allows a last F that delays it.
    2. Then one F and one B in turn. A W goes into a gap that is as long, or
       into a shorter one if the idle time of the stage would become the
       longest of all, or where an F needs the memory. A stage stays an F
       ahead of the next one; where it is further ahead, another option skips
       an F.
    3. What is left of W.

    The best of the four combinations of both options is the answer.

Objective
    The end of the last pass. Times are those of the stages, receives
    included; memory is what a stage has free for micro-batches in flight.

Ignored
    Gradient synchronization behind the last pass.

Deviations
    The authors choose no stages: their layers are cut evenly. What an F keeps
    is kept until its W, as everywhere in nest; in the paper B frees a part.
    The paper skips an F "if it doesn't cause more bubbles"; here the result
    decides. Stages that recompute all have no W of their own. Left out are
    the integer program, what runs on after the optimizer step without waiting
    for other stages, and two chunks per block, which are the schedule zb-v.
"""

from __future__ import annotations

import dataclasses
import itertools

from msgspec.structs import replace

from baselines.common import Planner, Search, why_not_turns
from nest.cost.orders import planner_job
from nest.cost.schedules import Pass
from nest.ir.job import ANY_ORDER
from nest.ir.problem import Problem
from nest.search.list_orders import ListOrder, OrderScope
from nest.search.orders import order_scope, with_order
from nest.search.solver import DpSolver
from nest.solvers.base import (
    Capabilities,
    Report,
    SolveOptions,
    SolverOutput,
    ignore_progress,
)
from nest.units import quanta_to_ns

#: The part of the time for the best plan under 1F1B.
STAGES_SHARE = 0.9


class ZbSolver(Planner):
    """Order the passes of the best plan under 1F1B."""

    name = "zb"
    capabilities = Capabilities(
        exact=False,
        method="zero bubble (re-impl.): F, B and W on the stages of 1F1B",
        requires=("numpy",),
        searches=frozenset(
            {
                *("overlap", "distributed_optimizer", "granularity"),
                *("sequence_parallel", "order"),
            }
        ),
        objective="end of the last pass, without gradient sync",
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return why passes cannot be ordered, or ``None``."""
        schedule = problem.job.schedule
        if schedule != ANY_ORDER:
            return (
                f"$.job.schedule: expected {ANY_ORDER!r}, as the planner "
                f"orders passes, got {problem.job.schedule_text!r}; use "
                f"--schedule {ANY_ORDER}"
            )
        return why_not_turns(problem)

    def solve(
        self,
        problem: Problem,
        options: SolveOptions,
        report: Report = ignore_progress,
    ) -> SolverOutput:
        """Return the best order that the rules lead to."""
        return self.run(Search(self.name, problem, options, report))

    def run(self, search: Search) -> SolverOutput:
        """Return the best plan under 1F1B in its best order."""
        problem, limit_s = search.problem, search.deadline.remaining_s
        options = dataclasses.replace(
            search.options,
            time_limit_s=None if limit_s is None else STAGES_SHARE * limit_s,
        )
        job = replace(planner_job(problem.job), virtual_stages=(1,))
        output = DpSolver().solve(replace(problem, job=job), options)
        search.stopped = output.limit is not None
        if output.plan is None:
            return search.answer("no plan under 1F1B fits")
        scope, _ = order_scope(problem, output.plan, search.model)
        orders = [
            zero_bubble_order(scope, *choices)
            for choices in itertools.product((False, True), repeat=2)
        ]
        best = min(orders, key=lambda x: x.end)
        search.improve(
            with_order(output.plan, best),
            quanta_to_ns(best.end, problem.quantum_ps),
        )
        return search.answer()


def zero_bubble_order(
    scope: OrderScope, delays_backward: bool, skips_forward: bool
) -> ListOrder:
    """Return the order that the rules lead to.

    Parameters
    ----------
    scope
        The passes of one chunk per block; 1F1B fits in the memory.
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

    def may_forward(
        self, stage: int, micro_batch: int, skips_forward: bool
    ) -> bool:
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
            if gap < weights and self.idle[stage] + gap <= max(
                others, default=0
            ):
                break
            self.run_weights(stage)
        if self.lists[stage]:
            self.idle[stage] += max(0, ready - self.free_at[stage])
        self.free_at[stage] = max(self.free_at[stage], ready) + time
        return self.free_at[stage]
