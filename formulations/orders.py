"""The best order of a plan's passes as a CP-SAT model.

Symbols as in the README, *Orders of passes*. Times and sizes are divided by
what all of them share, which is exact. What is still too large is rounded
down, so that every order of the plan is a solution: the bound holds, and what
an order takes comes from running its passes.
"""

from __future__ import annotations

import math
from typing import Any

from formulations.cp_sat import floor_bound, new_solver, solve_interruptibly
from nest.cost.schedules import Pass, Times
from nest.cost.schedules.base import Gradients, peak
from nest.cost.schedules.ordered import OrderedSchedule
from nest.cost.schedules.timeline import critical_path, run
from nest.errors import SolverError
from nest.search.passes.list_orders import ListOrder, OrderScope
from nest.solvers.base import Deadline
from nest.units import ceil_div

#: Deterministic time of each search, about as many seconds.
MAX_TIME = 1.0

#: The latest moment of a model, and the most memory of a block that a sum of
#: sizes is for.
MAX_TICKS, MAX_SIZE = 2**40, 2**16

#: A chunk, a kind of pass (0 F, 1 I, 2 W), and a micro-batch.
Key = tuple[int, int, int]

#: The gradients of each kind of pass, where a chunk has all three.
_GRADIENTS: tuple[Gradients, ...] = ("all", "inputs", "weights")


def prove_order(
    scope: OrderScope, incumbent: ListOrder, floor: int, upper: int, deadline: Deadline
) -> tuple[ListOrder, int]:
    """Look for orders that end by some time, and bound all orders.

    A search for good orders comes first. If it proves nothing, another one raises the
    bound. No order ends before ``floor``, and the latest end of interest is ``upper``,
    both in quanta. Returns the best order in hand, and an end that no order is below.

    Raises ``SolverError`` if a bound is above an order.
    """
    for raises_bound in (False, True):
        upper = min(upper, incumbent.end)
        model = OrderModel(scope, floor, upper)
        model.add_hint(incumbent)
        starts, proven = _solve(model, raises_bound, deadline)
        floor = max(floor, proven)
        better = None if starts is None else model.order(starts)
        if better is not None and better.end < incumbent.end:
            incumbent = better
        if floor > incumbent.end:
            raise SolverError(
                f"orders of passes: expected a bound of at most "
                f"{incumbent.end} quanta, which an order takes, got "
                f"{floor}; report it"
            )
        if floor >= min(upper, incumbent.end) or deadline.passed:
            break
    return incumbent, floor


def _solve(
    model: OrderModel, raises_bound: bool, deadline: Deadline
) -> tuple[dict[Key, int] | None, int]:
    """Return when passes start, if they can, and the bound, in quanta."""
    from ortools.sat.python import cp_model

    engine = new_solver(deadline.remaining_s)
    engine.parameters.max_deterministic_time = MAX_TIME
    engine.parameters.linearization_level = 0
    engine.parameters.use_objective_lb_search = raises_bound
    status = solve_interruptibly(engine, model.model)
    if status == cp_model.INFEASIBLE:
        return None, model.unit * (model.horizon + 1)
    bound = model.unit * floor_bound(engine.best_objective_bound)
    if status == cp_model.UNKNOWN:
        return None, bound
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE), status
    starts = {key: engine.value(x) for key, x in model.starts.items()}
    return starts, bound


class OrderModel:
    """The model of a plan's orders, constraint by constraint.

    ``unit`` is a tick in quanta.
    """

    def __init__(self, scope: OrderScope, floor: int, upper: int) -> None:
        from ortools.sat.python import cp_model

        self.scope, self.model = scope, cp_model.CpModel()
        times = (scope.forward, scope.inputs, scope.weights)
        shared = math.gcd(*(time for row in times for time in row))
        self.unit = max(shared, ceil_div(upper, MAX_TICKS), 1)
        self.times = [[time // self.unit for time in row] for row in times]
        self.horizon = upper // self.unit
        self.leaves: dict[tuple[int, int, int, int], Any] = {}
        self.end = self.model.new_int_var(
            min(floor, upper) // self.unit, self.horizon, "T"
        )
        self.starts = {
            (chunk, kind, micro_batch): self.model.new_int_var(
                0, self.horizon, f"{'FIW'[kind]}_{chunk}_{micro_batch}"
            )
            for chunk in range(len(scope.times))
            for kind in range(3)
            if kind < 2 or scope.weights[chunk]
            for micro_batch in range(scope.num_micro_batches)
        }
        for key in self.starts:
            self._add_waits(*key)
        for block in range(len(scope.members)):
            self._add_turns(block)
            self._add_precedences(block)
            chunks, free_bytes = scope.members[block], scope.free_bytes[block]
            kept_bytes = sum(scope.kept_bytes[chunk] for chunk in chunks)
            if scope.num_micro_batches * kept_bytes > free_bytes:
                if len(chunks) == 2:
                    self._add_pair(chunks[0], chunks[1], free_bytes)
                elif len(chunks) > 2:
                    self._add_memory(chunks, free_bytes)
        self.model.minimize(self.end)

    def end_of(self, chunk: int, kind: int, micro_batch: int) -> Any:
        """Return when a pass ends; ``W`` may be part of ``I``."""
        if (chunk, kind, micro_batch) not in self.starts:
            kind = 1
        start = self.starts[chunk, kind, micro_batch]
        return start + self.times[kind][chunk]

    def _add_waits(self, chunk: int, kind: int, micro_batch: int) -> None:
        """Wait for the micro-batch before, and for the input (Q1, Q2)."""
        waits = []
        if micro_batch:
            waits.append((chunk, kind, micro_batch - 1))
        if kind == 0 and chunk:
            waits.append((chunk - 1, 0, micro_batch))
        if kind == 1 and chunk < len(self.scope.times) - 1:
            waits.append((chunk + 1, 1, micro_batch))
        elif kind:
            waits.append((chunk, kind - 1, micro_batch))
        start = self.starts[chunk, kind, micro_batch]
        for other in waits:
            self.model.add(start >= self.end_of(*other))
        self.model.add(self.end >= self.end_of(chunk, kind, micro_batch))

    def _add_turns(self, block: int) -> None:
        """Run one pass of a block at a time (Q3)."""
        self.model.add_no_overlap(
            self.model.new_fixed_size_interval_var(
                start, self.times[kind][chunk], f"pass_{chunk}_{kind}"
            )
            for (chunk, kind, _), start in self.starts.items()
            if self.scope.block_of[chunk] == block
        )

    def _add_precedences(self, block: int) -> None:
        """Wait for room beside the same micro-batch in front (Q4)."""
        scope, count = self.scope, self.scope.num_micro_batches
        room = scope.free_bytes[block]
        for chunk in scope.members[block]:
            size = scope.kept_bytes[chunk]
            fits = room // size if size else count
            for late in range(fits, count):
                self.model.add(
                    self.starts[chunk, 0, late] >= self.end_of(chunk, 2, late - fits)
                )
            room -= size

    def _add_pair(self, first: int, second: int, free_bytes: int) -> None:
        """Never have too many micro-batches in flight in two chunks (Q5).

        For every number in the second one, the fewest in the first one that
        do not fit beside them.
        """
        count = self.scope.num_micro_batches
        size, other_size = (self.scope.kept_bytes[x] for x in (first, second))
        fewest = {
            (free_bytes - num_first * size) // other_size + 1: num_first
            for num_first in range(count if other_size else 0, 0, -1)
        }
        for num_second, num_first in fewest.items():
            if not 1 <= num_second <= count:
                continue
            for oldest in range(count - num_first + 1):
                for other in range(count - num_second + 1):
                    self._keep_apart(
                        (first, oldest, oldest + num_first - 1),
                        (second, other, other + num_second - 1),
                    )

    def _keep_apart(self, *rows: Key) -> None:
        """Let one of some micro-batches leave before another one enters.

        Each row is a chunk, and the oldest and the latest one in it.
        """
        self.model.add_bool_or(
            self._leaves_before(chunk, oldest, entered, latest)
            for chunk, oldest, _ in rows
            for entered, _, latest in rows
            if oldest < latest
        )

    def _leaves_before(
        self, chunk: int, leaving: int, entered: int, entering: int
    ) -> Any:
        """Return whether a micro-batch is through before another one."""
        key = chunk, leaving, entered, entering
        if key not in self.leaves:
            self.leaves[key] = self.model.new_bool_var(f"x_{key}")
            end = self.end_of(chunk, 2, leaving)
            start = self.starts[entered, 0, entering]
            for literal, rule in (
                (self.leaves[key], end <= start),
                (~self.leaves[key], end > start),
            ):
                self.model.add(rule).only_enforce_if(literal)
        return self.leaves[key]

    def _add_memory(self, chunks: list[int], free_bytes: int) -> None:
        """Keep what fits in several chunks of a block together (Q6)."""
        count = self.scope.num_micro_batches
        sizes = [self.scope.kept_bytes[chunk] for chunk in chunks]
        unit = max(math.gcd(*sizes), ceil_div(free_bytes, MAX_SIZE))
        stays = [
            self.model.new_interval_var(
                self.starts[chunk, 0, micro_batch],
                self.model.new_int_var(0, self.horizon, ""),
                self.end_of(chunk, 2, micro_batch),
                f"stay_{chunk}_{micro_batch}",
            )
            for chunk in chunks
            for micro_batch in range(count)
        ]
        self.model.add_cumulative(
            stays,
            [size // unit for size in sizes for _ in range(count)],
            free_bytes // unit,
        )

    def add_hint(self, order: ListOrder) -> None:
        """Begin with an order."""
        ends = run(*_simulated(self.scope, order.lists)).ends
        end_of: dict[Key, int] = {}
        for passes, own_ends in zip(order.lists, ends, strict=True):
            for one, end in zip(passes, own_ends, strict=True):
                kind = 2 if one.gradients == "weights" else int(one.backward)
                key = one.chunk, kind, one.micro_batch
                end_of[key] = end // self.unit
        for key, start in self.starts.items():
            time = self.times[key[1]][key[0]]
            self.model.add_hint(start, end_of[key] - time)
        for (chunk, leaving, entered, entering), leaves in self.leaves.items():
            kind = 2 if self.scope.weights[chunk] else 1
            leaves_at = end_of[chunk, kind, leaving]
            enters_at = end_of[entered, 0, entering] - self.times[0][entered]
            self.model.add_hint(leaves, leaves_at <= enters_at)
        self.model.add_hint(self.end, order.end // self.unit)

    def order(self, starts: dict[Key, int]) -> ListOrder | None:
        """Return the order of passes that start so, if it fits.

        Those that take no time come first, one micro-batch after the other.
        """

        def turn(key: Key) -> tuple[int, ...]:
            chunk, kind, micro_batch = key
            depth = chunk if kind == 0 else -chunk
            takes_time = self.times[kind][chunk] > 0
            return starts[key], takes_time, micro_batch, kind, depth

        scope = self.scope
        lists: list[list[Pass]] = [[] for _ in scope.members]
        for key in sorted(starts, key=turn):
            chunk, kind, micro_batch = key
            gradients = _GRADIENTS[kind if scope.weights[chunk] else 0]
            one = Pass(chunk, micro_batch, kind > 0, gradients)
            lists[scope.block_of[chunk]].append(one)
        passes = tuple(map(tuple, lists))
        schedule, times, count = _simulated(scope, passes)
        for block, chunks in enumerate(scope.members):
            sizes = [scope.kept_bytes[chunk] for chunk in chunks]
            in_flight = peak(schedule, sizes, block, len(lists), count)
            if in_flight.kept_bytes > scope.free_bytes[block]:
                return None
        return ListOrder(critical_path(schedule, times, count), passes)


def _simulated(
    scope: OrderScope, lists: tuple[tuple[Pass, ...], ...]
) -> tuple[OrderedSchedule, list[Times], int]:
    """Return what runs the passes of lists."""
    virtual = len(scope.times) // len(lists)
    times = [
        Times(forward, inputs + weights, weights)
        for forward, inputs, weights in zip(
            *(scope.forward, scope.inputs, scope.weights), strict=True
        )
    ]
    schedule = OrderedSchedule(lists, virtual, "loop")
    return schedule, times, scope.num_micro_batches
