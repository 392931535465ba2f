"""The exact search for Piper's objective, the least largest load.

A stage ``b - a`` with degrees ``t`` and ``d`` and ``y`` micro-batches in
flight takes a load that no other stage changes, and ``y = ⌈s/d⌉`` needs of
the later stages only their ``Σ d``. Two parts:

* ``P(b - a, t, y)``, the least computation of a stage that fits its memory:
  every layer chooses one of its alternatives, so this is a knapsack; it is
  solved exactly by merging the non-dominated (computation, memory) of the
  layers one by one, stages with one first set ``a`` together.
* The least largest load, by bisection: for a bound on the loads every stage
  has a largest ``y`` for which it is short enough, and
  :mod:`nest.audits.piper.pipelines` finds out whether that suffices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from nest.audits.piper.pipelines import Degrees, Pipelines, Placed
from nest.audits.piper.rules import piper_rules
from nest.cost.model import CostModel
from nest.cost.space import batch_splits, stage_counts, strategies
from nest.errors import UnsupportedProblemError
from nest.ir.plan import Plan, Recompute, Stage, Strategy
from nest.search.stages.closed_sets import ClosedSets
from nest.search.stages.dominance import non_dominated
from nest.search.stages.options import INFINITE, Ints
from nest.search.task import SearchTask
from nest.solvers.base import (
    Deadline,
    Limit,
    OutOfTimeError,
    Progress,
    SolverOutput,
    Status,
    exact_output,
)
from nest.units import MAX_TOTAL, ceil_div

#: Largest sum of memory that the tables hold.
MAX_BYTES = 2**62


def search(task: SearchTask) -> SolverOutput:
    """Search every plan with ``R = 1`` and one micro-batch size.

    Raises ``UnsupportedProblemError`` if sums of memory could pass 2**62 bytes.
    """
    model, plan = task.model, task.plan
    if not batch_splits(model.problem):
        return SolverOutput(status=Status.INFEASIBLE)
    best = int(INFINITE) if task.upper is None else task.upper
    bound = 0
    try:
        program = Program(model, task.sets, task.deadline)
        bound = program.least_load()
        limit = best - 1
        while bound < best:
            stages, next_load = program.within(limit)
            if stages is None:
                bound = max(next_load, limit + 1)
            else:
                best, plan = program.largest(stages), program.plan(stages)
                assert best <= limit
                task.report(
                    Progress(
                        plan=plan,
                        claimed_quanta=best,
                        lower_bound_quanta=min(bound, best),
                    )
                )
            limit = (bound + best) // 2
    except OutOfTimeError:
        return exact_output(
            plan,
            best,
            min(bound, best),
            Limit.TIME,
            "between bounds on the largest load",
        )
    return exact_output(plan, best, best)


class Option(NamedTuple):
    """One alternative of a layer: quanta, and ``kept * y + static`` bytes."""

    compute: int
    kept_bytes: int
    static_bytes: int
    recompute: Recompute


class Front(NamedTuple):
    """Non-dominated choices of several layers, by rising computation.

    Arrays of one length: quanta and bytes; the point of the front without
    the last layer that a point stems from, and what the last layer chose.
    """

    compute: Ints
    kept_bytes: Ints
    static_bytes: Ints
    before: Ints
    chosen: Ints


#: The front of no layers.
EMPTY = Front(*(np.zeros(1, dtype=np.int64) for _ in Front._fields))


class Knapsack:
    """The knapsacks of all stages at one tensor parallel degree."""

    def __init__(
        self, options: Sequence[Sequence[Option]], capacity: int, most_inflight: int
    ) -> None:
        self.options = options
        self.capacity, self.most_inflight = capacity, most_inflight
        # What does not fit alone never fits; cut, it stays in 64 bits.
        limits = (MAX_TOTAL, capacity + 1, capacity + 1)
        #: (quanta, kept, static) of every layer's alternatives.
        self._tables = [
            np.minimum([x[:3] for x in of_layer] or np.zeros((0, 3)), limits)
            .astype(np.int64)
            .T
            for of_layer in options
        ]

    def extended(self, front: Front, layer: int) -> Front:
        """Return the front with one layer more.

        Memory is linear in ``y``, so what is no better at 1 and at most in
        flight is no better in between.
        """
        table, count = self._tables[layer], len(front.compute)
        if not count:
            return front
        chosen, before = np.divmod(np.arange(table.shape[1] * count), count)
        compute, kept_bytes, static_bytes = (
            (values[:, None] + column).ravel()
            for values, column in zip(table, front[:3], strict=True)
        )
        with_one = kept_bytes + static_bytes
        with_all = kept_bytes * self.most_inflight + static_bytes
        rows = cheaper_or_smaller(compute, with_one, with_all)
        rows = rows[with_one[rows] <= self.capacity]
        columns = compute, kept_bytes, static_bytes, before, chosen
        return Front(*(column[rows] for column in columns))

    def inflight(self, front: Front) -> Ints:
        """Return the most micro-batches in flight that choices fit with."""
        free = self.capacity - front.static_bytes
        fit = free // np.maximum(front.kept_bytes, 1)
        fit[front.kept_bytes == 0] = self.most_inflight
        return np.minimum(fit, self.most_inflight)


def cheaper_or_smaller(compute: Ints, with_one: Ints, with_all: Ints) -> Ints:
    """Return non-dominated rows of one column of time and two of memory.

    They are in the order of the first.
    """
    order = np.lexsort((with_all, with_one, compute))
    with_one, with_all = with_one[order], with_all[order]
    if len(order) and with_one[0] == with_one.min() == with_one.max():
        # One memory decides: keep what needs less than all before it.
        keep = np.ones(len(order), dtype=np.bool_)
        keep[1:] = with_all[1:] < np.minimum.accumulate(with_all)[:-1]
        rows = np.flatnonzero(keep)
    else:
        rows = non_dominated(np.zeros_like(order), [with_one, with_all])
    smallest: Ints = order[rows]
    return smallest


@dataclass(frozen=True)
class Way:
    """How a stage may run, and what that takes.

    ``strategy`` has its degrees, with any recompute. ``compute`` is ``P`` (pairs, ``y``
    from 1 on) in quanta, INFINITE where nothing fits, as it does beyond the last ``y``;
    ``constant`` is what the load of every pair adds to ``P/d``.
    """

    strategy: Strategy
    knapsack: Knapsack
    compute: Ints
    constant: Ints

    def most_compute(self, limit: int) -> Ints:
        """Return the most ``P`` of every pair with a load within a limit.

        ``⌊(2P + d) / 2d⌋ <= r`` if and only if ``2P < (2r + 1) d``.
        """
        # No stage computes for more than MAX_TOTAL, see check_magnitude.
        dp = self.strategy.dp
        room = np.minimum(limit - self.constant, MAX_TOTAL // dp)
        compute: Ints = ((2 * room + 1) * dp - 1) // 2
        compute[room < 0] = -1
        return compute


class Program:
    """The tables of a problem, and the search for a plan within a bound."""

    def __init__(self, model: CostModel, sets: ClosedSets, deadline: Deadline) -> None:
        self.model, self.sets, self.deadline = model, sets, deadline
        self.rules = piper_rules(model)
        problem = model.problem
        self.num_devices = problem.cluster.num_devices
        self._order = problem.graph.topological_order()
        (split,) = batch_splits(problem)
        self.split = split
        by_tp: dict[int, dict[int, list[Strategy]]] = {}
        for strategy in strategies(problem, split.micro_batch):
            by_dp = by_tp.setdefault(strategy.tp, {})
            by_dp.setdefault(strategy.dp, []).append(strategy)
        #: Per ``t`` and layer what it may choose.
        self.options = {
            tp: self._options(by_dp[min(by_dp)]) for tp, by_dp in sorted(by_tp.items())
        }
        capacity = self._capacity()
        self.ways = [
            way
            for tp, options in self.options.items()
            for way in self._ways(
                Knapsack(
                    options,
                    capacity,
                    min(split.num_micro_batches, self.num_devices - tp + 1),
                ),
                [by_tp[tp][dp][0] for dp in sorted(by_tp[tp])],
            )
        ]
        allowed = problem.job.pipeline_parallel
        self._pipelines = Pipelines(
            sets,
            [Degrees(w.strategy.dp, w.strategy.devices) for w in self.ways],
            self.num_devices,
            split.num_micro_batches,
            None if allowed is None else stage_counts(problem, split),
            deadline.check,
        )

    def _options(self, group: Sequence[Strategy]) -> list[list[Option]]:
        """Return what every layer may choose among strategies."""
        by_layer: list[list[Option]] = []
        for layer in range(len(self._order)):
            by_layer.append([])
            for strategy in group:
                terms = self.model.layer_terms(
                    layer, strategy, self.split.micro_batch, None
                )
                if terms is not None:
                    by_layer[-1].append(
                        Option(
                            terms.forward + terms.backward,
                            terms.kept_bytes,
                            terms.static_bytes,
                            strategy.recompute,
                        )
                    )
        return by_layer

    def _capacity(self) -> int:
        """Return the memory of a device, or more than any stage can need."""
        cluster = self.model.problem.cluster
        need = sum(
            max(
                self.num_devices * option.kept_bytes + option.static_bytes
                for options in alternatives
                for option in options
            )
            for alternatives in zip(*self.options.values(), strict=True)
            if any(alternatives)
        )
        free = cluster.memory_bytes() - cluster.reserve_bytes()
        capacity: int = min(free, need)
        # Two fronts are added before what does not fit is dropped.
        num_sizes = 2 * (self.num_devices + 1)
        if num_sizes * (capacity + 1) > MAX_BYTES:
            raise UnsupportedProblemError(
                f"$.cluster.device.memory_bytes: expected at most "
                f"{MAX_BYTES // num_sizes - 1} with so many devices and "
                f"layers, got {cluster.memory_bytes()}; correct it"
            )
        return capacity

    def _ways(self, knapsack: Knapsack, choices: Sequence[Strategy]) -> Iterable[Way]:
        """Yield the ways of one ``t``, one per ``d``."""
        model, sets = self.model, self.sets
        micro_batch = self.split.micro_batch
        compute = self._solve(knapsack)
        weight_bytes = sets.sums(
            [
                model.layers.weight_bytes(layer, choices[0], micro_batch)
                if options
                else 0
                for layer, options in enumerate(knapsack.options)
            ]
        ).astype(np.float64)
        edge_bytes = np.zeros(len(compute))
        for source, target, sent, received in model.transfers.edge_ends(
            choices[0].tp, micro_batch
        ):
            enters, leaves = sets.crossed(source, target)
            edge_bytes += received * enters + sent * leaves
        num_micro_batches = self.split.num_micro_batches
        for strategy in choices:
            dp = strategy.dp
            edges = self.rules.exchange_ns(model, edge_bytes, dp)
            sync = self.rules.sync_ns(model, weight_bytes, dp, num_micro_batches)
            # The later stages have at most the devices that are left.
            ranks = dp + self.num_devices - strategy.devices
            yield Way(
                strategy,
                knapsack,
                compute[:, : ceil_div(ranks, dp)],
                model.quanta.round_all(edges, "an edge")
                + model.quanta.round_all(sync, "gradient sync"),
            )

    def _solve(self, knapsack: Knapsack) -> Ints:
        """Solve the knapsacks of all pairs; return ``P``."""
        sets = self.sets
        index = {row.tobytes(): i for i, row in enumerate(sets.member)}
        compute = np.full((len(sets.pair_source), knapsack.most_inflight), INFINITE)
        #: (layer, set without it) of every set.
        smaller: list[list[tuple[int, int]]] = []
        for row in sets.member:
            smaller.append([])
            for layer in np.flatnonzero(row).tolist():
                without = row.copy()
                without[layer] = False
                if without.tobytes() in index:
                    smaller[-1].append((layer, index[without.tobytes()]))
        for a in range(sets.count - 1):
            self.deadline.check()
            fronts = {a: EMPTY}
            for pair in range(*sets.first[a : a + 2]):
                b = int(sets.pair_target[pair])
                layer, before = next(x for x in smaller[b] if x[1] in fronts)
                fronts[b] = knapsack.extended(fronts[before], layer)
                # The cheapest comes last, and stays.
                fit = knapsack.inflight(fronts[b])[::-1]
                compute[pair, fit - 1] = fronts[b].compute[::-1]
        # What fits with more in flight fits with fewer.
        return np.minimum.accumulate(compute[:, ::-1], axis=1)[:, ::-1].copy()

    def least_load(self) -> int:
        """Return a lower bound on the largest load of every plan.

        ``Σ_s n_s τ_s >= Σ t P`` with the cheapest ``t P`` of every layer, a
        half quantum less per rank for rounding.
        """
        total = 0
        for alternatives in zip(*self.options.values(), strict=True):
            work = (
                tp * option.compute
                for tp, options in zip(self.options, alternatives, strict=True)
                for option in options
            )
            total += min(work, default=0)
        ranks = self.num_devices
        return max(0, ceil_div(2 * total - ranks, 2 * ranks))

    def within(self, limit: int) -> tuple[list[Placed] | None, int]:
        """Return stages with loads of at most ``limit``, if there are any.

        And the least load of a stage that is more.
        """
        max_ranks = np.full((len(self.ways), len(self.sets.pair_source)), -1)
        next_load = int(INFINITE)
        for index, way in enumerate(self.ways):
            self.deadline.check()
            table, compute = way.compute, way.most_compute(limit)
            inflight = (table <= compute[:, None]).sum(axis=1)
            rows = np.flatnonzero(inflight)
            max_ranks[index, rows] = way.strategy.dp * (inflight[rows] - 1)
            rows = np.flatnonzero(inflight < table.shape[1])
            beyond = table[rows, inflight[rows]]
            load = self._load(way, beyond, way.constant[rows])
            next_load = min(
                next_load, int(load[beyond < INFINITE].min(initial=INFINITE))
            )
        return self._pipelines.find(max_ranks), next_load

    def _load(self, way: Way, compute: Ints, constant: Ints) -> Ints:
        load: Ints = self.rules.in_turn(compute, way.strategy.dp) + constant
        return load

    def largest(self, stages: Iterable[Placed]) -> int:
        """Return the largest load of stages."""
        return max(
            int(
                self._load(
                    self.ways[way],
                    self.ways[way].compute[pair, inflight - 1],
                    self.ways[way].constant[pair],
                )
            )
            for pair, way, inflight in stages
        )

    def plan(self, stages: Iterable[Placed]) -> Plan:
        """Return the plan of stages."""
        return Plan(
            replicas=1,
            micro_batch=self.split.micro_batch,
            stages=tuple(self._stage(*stage) for stage in stages),
        )

    def _stage(self, pair: int, number: int, inflight: int) -> Stage:
        """Return a stage whose layers choose what ``P`` stands for."""
        way = self.ways[number]
        inside = self.sets.inside(pair, self._order)
        fronts = [EMPTY]
        for layer in inside:
            fronts.append(way.knapsack.extended(fronts[-1], layer))
        fits = way.knapsack.inflight(fronts[-1]) >= inflight
        point = int(np.argmax(fits))
        chosen = []
        for layer, front in zip(inside[::-1], fronts[:0:-1], strict=True):
            option = way.knapsack.options[layer][front.chosen[point]]
            chosen.append(replace(way.strategy, recompute=option.recompute))
            point = int(front.before[point])
        layers = self.model.problem.graph.layers
        uniform = len(set(chosen)) == 1
        return Stage(
            layers=tuple(layers[layer].id for layer in inside),
            devices=way.strategy.devices,
            strategy=chosen[0] if uniform else None,
            strategies=None if uniform else tuple(chosen[::-1]),
        )
