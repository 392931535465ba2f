"""Random passes to order, and the best of all their orders.

Nothing here is computed by :mod:`nest.search` or :mod:`formulations.orders`:
orders are replayed, all of them searched where they are few, and modeled for
CP-SAT elsewhere, in another way.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

from formulations.orders import prove_order
from nest.cost.schedules import Times
from nest.ir import Plan, Problem
from nest.search.passes.list_orders import ListOrder, OrderScope, OrderSearch
from nest.search.passes.order_bounds import order_bound
from nest.solvers.base import Deadline
from tests.independent.enumerator import plans
from tests.independent.rules import batches, block_of, strategies_of
from tests.independent.scorer import score
from tests.independent.standard import capacity_bytes

#: Orders that a search gets.
NUM_ORDERS = 400

#: Passes of a step, three per chunk and micro-batch, whose orders are all
#: searched; more are modeled.
FEW_PASSES = 18

#: Passes of a plan, two per chunk and micro-batch, whose orders are all searched.
MOST_PASSES = 16

#: Deterministic time of CP-SAT per problem, about as many seconds.
MAX_TIME = 8.0


def draw_scope(
    random: Random, max_blocks: int = 4, max_micro_batches: int = 8
) -> OrderScope:
    """Draw passes of up to so many blocks, of one or two chunks each.

    From memory for one micro-batch per chunk to memory for all of them.
    """
    blocks = random.randint(1, max_blocks)
    virtual = random.choice((1, 1, 2)) if blocks > 1 else 1
    in_v = virtual == 2 and random.random() < 0.5
    count = random.randint(1, max_micro_batches)
    num_chunks = blocks * virtual
    spread = random.choice((1, 3, 20))
    base = tuple(random.randint(1, 20) for _ in range(3))

    def draw_time(own: int) -> int:
        if random.random() < 0.08:
            return 0
        return max(0, own + random.randint(-spread, spread))

    times = []
    for chunk in range(num_chunks):
        forward, inputs, weights = map(draw_time, base)
        if chunk == num_chunks - 1 and forward + inputs == 0:
            forward = 1
        times.append(Times(forward, inputs + weights, weights))
    kept = [random.randint(1, 6) for _ in range(num_chunks)]
    if random.random() < 0.3:
        kept = [kept[0]] * num_chunks
    if random.random() < 0.1:
        kept[random.randrange(num_chunks)] = 0
    block_of = tuple(
        min(i, 2 * blocks - 1 - i) if in_v else i % blocks for i in range(num_chunks)
    )
    need = [
        sum(x for x, own in zip(kept, block_of, strict=True) if own == block)
        for block in range(blocks)
    ]
    fits = random.choice(("one", "all", "some", "some", "some"))
    if fits == "all":
        free = [count * x for x in need]
    elif fits == "one":
        free = need
    else:
        free = [random.randint(x, count * x) for x in need]
    whole = {i for i in range(num_chunks) if random.random() < 0.1}
    return OrderScope(
        times=times,
        kept_bytes=tuple(kept),
        free_bytes=tuple(free),
        block_of=block_of,
        whole=frozenset(whole if random.random() < 0.5 else ()),
        num_micro_batches=count,
    )


def scope_of(
    times: Sequence[tuple[int, int, int]],
    count: int,
    free: Sequence[int],
    kept: Sequence[int] = (),
    placement: str = "loop",
    whole: Sequence[int] = (),
) -> OrderScope:
    """Return what orders of passes (F, I, W) depend on.

    A micro-batch keeps 1 by default.
    """
    blocks = len(free)
    return OrderScope(
        times=[Times(f, i + w, w) for f, i, w in times],
        kept_bytes=tuple(kept) or (1,) * len(times),
        free_bytes=tuple(free),
        block_of=tuple(
            min(chunk, 2 * blocks - 1 - chunk) if placement == "v" else chunk % blocks
            for chunk in range(len(times))
        ),
        whole=frozenset(whole),
        num_micro_batches=count,
    )


class Durations(NamedTuple):
    """What the passes of every chunk take: F, then I and W or B and 0."""

    forward: tuple[int, ...]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]


def durations(scope: OrderScope) -> Durations:
    weights = [
        0 if i in scope.whole else x.weight_backward for i, x in enumerate(scope.times)
    ]
    return Durations(
        tuple(x.forward for x in scope.times),
        tuple(x.backward - w for x, w in zip(scope.times, weights, strict=True)),
        tuple(weights),
    )


def replayed(scope: OrderScope, order: ListOrder) -> int:
    """Return when the last pass of an order ends.

    Raises
    ------
    AssertionError
        If it is not one of the passes, or keeps too much.
    """
    times, last = durations(scope), len(scope.times) - 1
    count = scope.num_micro_batches
    ended: dict[tuple[bool, int, int], int] = {}
    free_at = [0] * len(scope.free_bytes)
    todo = [list(passes) for passes in order.lists]
    ran: Counter[tuple[int, int, str]] = Counter()
    held = [0] * len(todo)
    while any(todo):
        moved = False
        for block, passes in enumerate(todo):
            while passes:
                chunk, number, is_backward, gradients, paired = passes[0]
                assert scope.block_of[chunk] == block
                assert not paired
                where: tuple[bool, int, int] | None = None
                if not is_backward:
                    where = (False, chunk - 1, number) if chunk else None
                elif gradients == "weights":
                    where = (True, chunk, number)
                elif chunk < last:
                    where = (True, chunk + 1, number)
                else:
                    where = (False, chunk, number)
                if where is not None and where not in ended:
                    break
                start = max(free_at[block], ended[where] if where else 0)
                kind = gradients if is_backward else "forward"
                took = {
                    "forward": times.forward[chunk],
                    "inputs": times.inputs[chunk],
                    "weights": times.weights[chunk],
                    "all": times.inputs[chunk] + times.weights[chunk],
                }[kind]
                assert kind == "all" or not is_backward or (chunk not in scope.whole)
                free_at[block] = start + took
                if kind == "forward":
                    held[block] += scope.kept_bytes[chunk]
                    assert held[block] <= scope.free_bytes[block]
                elif kind != "inputs":
                    held[block] -= scope.kept_bytes[chunk]
                if kind in ("inputs", "all"):
                    assert (False, chunk, number) in ended
                if kind != "weights":
                    ended[is_backward, chunk, number] = free_at[block]
                ran[chunk, number, kind] += 1
                passes.pop(0)
                moved = True
        assert moved, "the passes wait for each other"
    assert set(ran.values()) <= {1}
    for chunk in range(last + 1):
        for number in range(count):
            kinds = {k for c, n, k in ran if (c, n) == (chunk, number)}
            assert kinds in ({"forward", "all"}, {"forward", "inputs", "weights"})
    assert len({(c, n) for c, n, _ in ran}) == (last + 1) * count
    return max(free_at)


# The best order, by searching all of them


def least_end(scope: OrderScope) -> int | None:
    """Return when the best of all orders ends; ``None`` if none fits.

    States are how many passes of each kind of every chunk ran; of two ways to
    one, the one goes that is later in everything.
    """
    count, num_chunks = scope.num_micro_batches, len(scope.times)
    start = ((0, 0, 0),) * num_chunks
    blocks = len(scope.free_bytes)
    # When blocks are free, ends of forward passes, ends of those for inputs.
    empty: Any = ((0,) * blocks, ((),) * num_chunks, ((),) * num_chunks)
    states: dict[Any, list[Any]] = {start: [empty]}
    for _ in range(3 * num_chunks * count):
        following: dict[Any, list[Any]] = {}
        for counts, labels in states.items():
            for chunk in range(num_chunks):
                for kind in range(3):
                    new = _counts_after(scope, counts, chunk, kind)
                    if new is None:
                        continue
                    own = following.setdefault(new, [])
                    for label in labels:
                        _keep(own, _label_after(scope, counts, label, chunk, kind))
        states = following
    ends = [max(label[0]) for labels in states.values() for label in labels]
    return min(ends, default=None)


def _counts_after(scope: OrderScope, counts: Any, chunk: int, kind: int) -> Any | None:
    """Return the state after another pass; ``None`` if that cannot run."""
    forward, inputs, weights = counts[chunk]
    last = len(counts) - 1
    if kind == 0:
        if forward == scope.num_micro_batches:
            return None
        if chunk and counts[chunk - 1][0] == forward:
            return None
        block = scope.block_of[chunk]
        held = scope.kept_bytes[chunk] + sum(
            (x[0] - x[2]) * scope.kept_bytes[i]
            for i, x in enumerate(counts)
            if scope.block_of[i] == block
        )
        if held > scope.free_bytes[block]:
            return None
    elif kind == 1:
        if inputs == forward:
            return None
        if chunk < last and counts[chunk + 1][1] == inputs:
            return None
    elif weights == inputs:
        return None
    own = list(counts[chunk])
    own[kind] += 1
    return (*counts[:chunk], tuple(own), *counts[chunk + 1 :])


def _label_after(
    scope: OrderScope, counts: Any, label: Any, chunk: int, kind: int
) -> Any:
    """Return the ends of what ran and what others still wait for."""
    times, last = durations(scope), len(counts) - 1
    free, forward_ends, inputs_ends = map(list, label)
    block, ready = scope.block_of[chunk], 0
    if kind == 0 and chunk:
        ready, *rest = forward_ends[chunk - 1]
        forward_ends[chunk - 1] = tuple(rest)
    if kind == 1:
        givers = forward_ends if chunk == last else inputs_ends
        giver = chunk if chunk == last else chunk + 1
        ready, *rest = givers[giver]
        givers[giver] = tuple(rest)
    end = max(free[block], ready) + times[kind][chunk]
    free[block] = end
    if kind == 0:
        forward_ends[chunk] = (*forward_ends[chunk], end)
    if kind == 1 and chunk:
        inputs_ends[chunk] = (*inputs_ends[chunk], end)
    return (tuple(free), tuple(forward_ends), tuple(inputs_ends))


def _keep(labels: list[Any], new: Any) -> None:
    """Add a label unless another one is as early in everything."""
    values = _flat(new)
    for label in labels:
        if all(x <= y for x, y in zip(_flat(label), values, strict=True)):
            return
    labels[:] = [
        label
        for label in labels
        if any(x < y for x, y in zip(_flat(label), values, strict=True))
    ]
    labels.append(new)


def _flat(label: Any) -> list[int]:
    free, forward_ends, inputs_ends = label
    return [
        *free,
        *(x for ends in forward_ends for x in ends),
        *(x for ends in inputs_ends for x in ends),
    ]


# The best of all plans


def scope_of_plan(problem: Problem, plan: Plan) -> tuple[OrderScope, int]:
    """Return what orders of a plan depend on, and its sync."""
    record = score(problem, plan)
    blocks = range(len(record.blocks))
    scope = OrderScope(
        times=[Times(x.forward, x.backward, x.weight_backward) for x in record.stages],
        kept_bytes=tuple(x.memory["kept_bytes"] // x.inflight for x in record.stages),
        free_bytes=tuple(
            capacity_bytes(problem, plan, block)
            - record.blocks[block].memory_bytes
            + record.blocks[block].memory["kept_bytes"]
            for block in blocks
        ),
        block_of=tuple(block_of(plan, chunk) for chunk in range(len(plan.stages))),
        whole=frozenset(
            chunk
            for chunk, stage in enumerate(plan.stages)
            if any(
                x.recompute in ("full", "offload")
                for x in strategies_of(stage).values()
            )
        ),
        num_micro_batches=batches(problem, plan),
    )
    return scope, max(block.sync for block in record.blocks)


def best_of_all(problem: Problem) -> tuple[int | None, bool]:
    """Return the best step of all plans in all orders, and if it is known.

    Plans with many passes count with the order that runs one micro-batch at
    a time; then it is one that can be had.
    """
    best: int | None = None
    known = True
    scopes: dict[str, tuple[OrderScope, int]] = {}
    for plan in plans(problem, listed=True):
        scope, sync = scope_of_plan(problem, plan)
        scopes.setdefault(f"{scope} {sync}", (scope, sync))
    for scope, sync in scopes.values():
        if min(scope.free_bytes) < 0:
            continue
        num_passes = 2 * len(scope.times) * scope.num_micro_batches
        if num_passes > MOST_PASSES:
            known = False
            continue
        end = least_end(scope)
        if end is not None and (best is None or end + sync < best):
            best = end + sync
    return best, known


# The best order, by CP-SAT


class _Model:
    """A model of all orders: when every pass starts, in whole quanta."""

    def __init__(self, scope: OrderScope) -> None:
        from ortools.sat.python import cp_model

        self.model = cp_model.CpModel()
        self.scope, self.times = scope, durations(scope)
        self.count, self.last = scope.num_micro_batches, len(scope.times) - 1
        self.horizon = self.count * sum(map(sum, self.times))
        self.starts = {
            (chunk, number, kind): self.time()
            for chunk in range(self.last + 1)
            for number in range(self.count)
            for kind in range(3)
        }
        self.makespan = self.time()
        for chunk, number, kind in self.starts:
            self._wait(chunk, number, kind)
        for block in range(len(scope.free_bytes)):
            self._take_turns(block)
            self._fit(block)
        self.model.minimize(self.makespan)

    def time(self) -> Any:
        return self.model.new_int_var(0, self.horizon, "")

    def end(self, chunk: int, number: int, kind: int) -> Any:
        return self.starts[chunk, number, kind] + self.times[kind][chunk]

    def _wait(self, chunk: int, number: int, kind: int) -> None:
        """Wait for the input, and for the micro-batch before."""
        start, waits = self.starts[chunk, number, kind], []
        if number:
            waits.append((chunk, number - 1, kind))
        if kind:
            waits.append((chunk, number, kind - 1))
        if kind == 0 and chunk:
            waits.append((chunk - 1, number, 0))
        if kind == 1 and chunk < self.last:
            waits.append((chunk + 1, number, 1))
        for other in waits:
            self.model.add(start >= self.end(*other))
        if kind == 2 and self.times[2][chunk] == 0:
            self.model.add(start == self.end(chunk, number, 1))
        self.model.add(self.makespan >= self.end(chunk, number, kind))

    def _take_turns(self, block: int) -> None:
        """Run one pass at a time; those for weights may be part of others."""
        self.model.add_no_overlap(
            [
                self.model.new_fixed_size_interval_var(
                    start, self.times[kind][chunk], ""
                )
                for (chunk, _, kind), start in self.starts.items()
                if self.scope.block_of[chunk] == block
                and (kind < 2 or self.times[kind][chunk])
            ]
        )

    def _fit(self, block: int) -> None:
        """Keep what fits: as precedences where there is one chunk."""
        scope, count = self.scope, self.count
        own = [i for i, x in enumerate(scope.block_of) if x == block]
        free, kept = scope.free_bytes[block], scope.kept_bytes
        if len(own) == 1:
            (chunk,) = own
            fits = free // kept[chunk] if kept[chunk] else count
            for number in range(fits, count):
                self.model.add(
                    self.starts[chunk, number, 0] >= self.end(chunk, number - fits, 2)
                )
            return
        stays = []
        for chunk in own:
            for number in range(count):
                stop = self.time()
                self.model.add(stop == self.end(chunk, number, 2))
                start = self.starts[chunk, number, 0]
                stays.append(self.model.new_interval_var(start, self.time(), stop, ""))
        sizes = [kept[chunk] for chunk in own for _ in range(count)]
        self.model.add_cumulative(stays, sizes, free)


def modeled_end(
    scope: OrderScope, hint: ListOrder | None, max_time: float = MAX_TIME
) -> tuple[int | None, int]:
    """Return the end of the best order that CP-SAT knows, and its bound.

    Presolve is off, see or-tools #5293. With one chunk per block the
    (k+n)-th forward pass waits for the k-th gradients of weights; else what
    passes in flight keep is a cumulative resource.
    """
    from ortools.sat.python import cp_model

    made = _Model(scope)
    if hint is not None:
        for key, value in _starts(scope, hint).items():
            made.model.add_hint(made.starts[key], value)
        made.model.add(made.makespan <= hint.end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.cp_model_presolve = False
    solver.parameters.max_deterministic_time = max_time
    status = solver.solve(made.model)
    if status == cp_model.INFEASIBLE:
        return None, made.horizon + 1
    bound = round(solver.best_objective_bound)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return round(solver.objective_value), bound
    return None, bound


def _starts(scope: OrderScope, order: ListOrder) -> dict[tuple[int, int, int], int]:
    """Return when passes of an order start; numbers are places in turn."""
    times, last = durations(scope), len(scope.times) - 1
    starts: dict[tuple[int, int, int], int] = {}
    free_at = [0] * len(order.lists)
    todo = [list(passes) for passes in order.lists]

    def end(chunk: int, number: int, kind: int) -> int | None:
        start = starts.get((chunk, number, kind))
        return None if start is None else start + times[kind][chunk]

    while any(todo):
        for block, passes in enumerate(todo):
            while passes:
                chunk, number, is_backward, gradients, _ = passes[0]
                kind = 0
                if is_backward:
                    kind = 2 if gradients == "weights" else 1
                ready: int | None = 0
                if kind == 0 and chunk:
                    ready = end(chunk - 1, number, 0)
                elif kind == 1 and chunk < last:
                    ready = end(chunk + 1, number, 1)
                elif kind == 1:
                    ready = end(chunk, number, 0)
                if ready is None:
                    break
                start = max(free_at[block], ready)
                starts[chunk, number, kind] = start
                free_at[block] = start + times[kind][chunk]
                if gradients == "all" and kind == 1:
                    starts[chunk, number, 2] = free_at[block]
                passes.pop(0)
    return starts


# Both compared


class Compared(NamedTuple):
    """What the search for orders says of a problem, and what is true.

    ``bound`` and ``listed`` come without an engine, ``proven`` and ``best``
    with it. ``upper`` is ``lower`` where the best order is known.
    """

    bound: int
    listed: int
    proven: int
    best: int
    lower: int
    upper: int
    seconds: float

    @property
    def wrong(self) -> bool:
        """Whether the bound is above an order, or a value below all."""
        lowest = min(self.listed, self.best)
        return max(self.bound, self.proven) > self.upper or lowest < self.lower

    @property
    def near(self) -> bool:
        """Whether the value is within 1 % of the best one for certain."""
        return self.is_near(self.best)

    def is_near(self, end: int) -> bool:
        """Whether an end is within 1 % of the best one for certain."""
        return Fraction(end, max(1, self.lower)) <= Fraction(101, 100)


def compare(
    scope: OrderScope, num_orders: int = NUM_ORDERS, max_time: float = MAX_TIME
) -> Compared:
    """Compare the search for orders with the best one."""
    began = time.process_time()
    bound = order_bound(scope)
    search = OrderSearch(scope, bound)
    search.run(lambda: False, num_orders)
    listed = search.best
    assert listed is not None
    assert replayed(scope, listed) == listed.end
    order, proven = prove_order(scope, listed, bound, listed.end, Deadline(None))
    seconds = time.process_time() - began
    best = order.end
    assert replayed(scope, order) == best
    said = bound, listed.end, proven, best
    if 3 * len(scope.times) * scope.num_micro_batches <= FEW_PASSES:
        end = least_end(scope)
        assert end is not None
        return Compared(*said, end, end, seconds)
    upper, lower = modeled_end(scope, order, max_time)
    upper = best if upper is None else min(best, upper)
    return Compared(*said, min(lower, best), upper, seconds)


def drawn(seed: int, max_blocks: int = 4, max_count: int = 8) -> OrderScope:
    """Return the problem of a seed."""
    return draw_scope(Random(f"orders {seed}"), max_blocks, max_count)


def compared(seed: int) -> Compared:
    """Compare the problem of a seed."""
    return compare(drawn(seed))
