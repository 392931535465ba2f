"""The exact search for Piper's objective, the least largest load.

A stage ``b - a`` with degrees ``t`` and ``d`` and ``y`` micro-batches in
flight takes a load that no other stage changes, and ``y = ⌈s/d⌉`` needs of
the later stages only their ``Σ d``. Two parts:

* ``P(b - a, t, y)``, the least computation of a stage that fits its memory:
  every layer chooses one of its alternatives, so this is a knapsack; it is
  solved exactly by merging the non-dominated (computation, memory) of the
  layers one by one.
* The least largest load, by bisection over the loads there are. For a bound
  ``τ`` on them every stage has a largest ``y`` for which it is short enough,
  and what remains to know of a suffix is the least ``Σ d`` for every number of
  devices: more of either never helps the stages in front of it.

The knapsacks come second. A search in which stages that do not fit as they
are choose the least memory finds an upper bound on ``τ``, and only what stays
below it is solved.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nest.audits.piper.rules import piper_rules
from nest.cost.model import CostModel
from nest.cost.space import batch_splits, stage_counts, strategies
from nest.errors import UnsupportedProblemError
from nest.ir.plan import Plan, Recompute, Stage, Strategy
from nest.search.closed_sets import ClosedSets
from nest.search.dominance import non_dominated
from nest.search.options import INFINITE, Ints
from nest.solvers.base import (
    Deadline,
    Limit,
    OutOfTimeError,
    Progress,
    Report,
    SolverOutput,
    Status,
)
from nest.units import MAX_TOTAL, ceil_div

#: Largest sum of memory that the tables hold.
MAX_BYTES = 2**62


def search(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    report: Report,
    upper: int | None,
    plan: Plan | None,
) -> SolverOutput:
    """Search every plan with ``R = 1`` and one micro-batch size.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline, report
        The clock, and where progress goes.
    upper, plan
        Step time in quanta and plan of a warm start, or ``None``.

    Raises
    ------
    UnsupportedProblemError
        If sums of memory could pass 2**62 bytes.
    """
    if not batch_splits(model.problem):
        return SolverOutput(status=Status.INFEASIBLE)
    best = int(INFINITE) if upper is None else upper
    bound = 0
    try:
        program = Program(model, sets, deadline)
        bound = program.least_load()
        reached = program.rough(bound)
        if reached is None:
            return SolverOutput(status=Status.INFEASIBLE)
        program.refine(min(reached, best))
        loads = program.loads(bound, min(reached + 1, best))
        low, high = 0, len(loads)
        while low < high:
            # What the rough search reached is a plan to start from.
            middle = high - 1 if plan is None else (low + high) // 2
            stages = program.within(int(loads[middle]))
            if stages is None:
                low, bound = middle + 1, int(loads[middle]) + 1
                continue
            best, plan = program.largest(stages), program.plan(stages)
            high = int(np.searchsorted(loads, best))
            report(
                Progress(
                    plan=plan,
                    claimed_quanta=best,
                    lower_bound_quanta=min(bound, best),
                )
            )
    except OutOfTimeError:
        return SolverOutput(
            status=Status.NO_SOLUTION if plan is None else Status.FEASIBLE,
            plan=plan,
            claimed_quanta=None if plan is None else best,
            lower_bound_quanta=min(bound, best),
            limit=Limit.TIME,
            detail="between bounds on the largest load",
        )
    return SolverOutput(
        status=Status.OPTIMAL,
        plan=plan,
        claimed_quanta=best,
        lower_bound_quanta=best,
    )


# The alternatives of layers, and of bags of them


class Option(NamedTuple):
    """One alternative of a layer: quanta, and ``kept * y + static`` bytes."""

    compute: int
    kept_bytes: int
    static_bytes: int
    recompute: Recompute

    def memory(self, inflight: int) -> int:
        """Return the bytes with so many micro-batches in flight."""
        return self.kept_bytes * inflight + self.static_bytes


class Front(NamedTuple):
    """Non-dominated choices of several layers, by rising computation.

    Arrays of one length: quanta and bytes on top of everyone's first option;
    the point of the bag without its last layer that a point stems from, and
    what the last layer chose.
    """

    compute: Ints
    kept_bytes: Ints
    static_bytes: Ints
    before: Ints
    chosen: Ints


#: What the options of a layer add to its first: rows of (quanta, kept,
#: static). Layers with equal differences are alike.
Differences = tuple[tuple[int, int, int], ...]

_EMPTY = Front(*(np.zeros(1, dtype=np.int64) for _ in Front._fields))


class Fronts:
    """The fronts of bags of layers, each computed once.

    Parameters
    ----------
    kinds
        What the options of each kind of layer differ by.
    most_inflight
        Largest ``y``. Memory is linear in it, so what is no better at 1 and
        at this end is no better in between.
    deadline
        Checked at every merge.
    """

    def __init__(
        self,
        kinds: Sequence[Differences],
        most_inflight: int,
        deadline: Deadline,
    ) -> None:
        self.kinds = [np.array(kind, dtype=np.int64) for kind in kinds]
        self._most_inflight = most_inflight
        self._deadline = deadline
        self._known: dict[tuple[int, ...], Front] = {(): _EMPTY}

    def of(self, bag: tuple[int, ...]) -> Front:
        """Return the front of a bag: kinds of layers, ascending."""
        if bag not in self._known:
            front = self.of(bag[:-1])
            if self._deadline.passed:
                raise OutOfTimeError
            self._known[bag] = self._merge(front, self.kinds[bag[-1]])
        return self._known[bag]

    def _merge(self, front: Front, options: Ints) -> Front:
        chosen, before = np.divmod(
            np.arange(len(options) * len(front.compute)), len(front.compute)
        )
        compute, kept, static = (
            column[before] + options[chosen, i]
            for i, column in enumerate(front[:3])
        )
        least, most = kept + static, kept * self._most_inflight + static
        rows = _cheaper_or_smaller(compute, least, most)
        columns = compute, kept, static, before, chosen
        return Front(*(column[rows] for column in columns))

    def choose(self, bag: tuple[int, ...], point: int) -> list[int]:
        """Return which option each layer of a bag uses at a front's point."""
        chosen = []
        for size in range(len(bag), 0, -1):
            front = self.of(bag[:size])
            chosen.append(int(front.chosen[point]))
            point = int(front.before[point])
        return chosen[::-1]


def _cheaper_or_smaller(compute: Ints, least: Ints, most: Ints) -> Ints:
    """Return non-dominated rows of one column of time and two of memory.

    They are in the order of the first.
    """
    order = np.lexsort((most, least, compute))
    least, most = least[order], most[order]
    if least[0] == least.min() == least.max():
        # One memory decides: keep what needs less than all before it.
        keep = np.ones(len(order), dtype=np.bool_)
        keep[1:] = most[1:] < np.minimum.accumulate(most)[:-1]
        rows = np.flatnonzero(keep)
    else:
        rows = non_dominated(np.zeros_like(order), [least, most])
    found: Ints = order[rows]
    return found


class Degree:
    """All stages at one tensor parallel degree.

    Parameters
    ----------
    program
        Whose degree it is.
    alike
        Strategies with it, one per recompute choice.

    Attributes
    ----------
    tp
        The degree.
    options
        Per layer what it may choose, the least computation first.
    compute
        ``P``: (pairs, ``y`` from 1 on), quanta; INFINITE where nothing fits,
        as it does beyond the last ``y``. Until :meth:`refine` it may be more
        where not all first options fit.
    edge_bytes, weight_bytes
        Of every pair, as floats.
    """

    def __init__(self, program: Program, alike: Sequence[Strategy]) -> None:
        self.program, self.tp = program, alike[0].tp
        model, micro_batch = program.model, program.micro_batch
        self.most_inflight = min(
            program.num_micro_batches, program.num_devices - self.tp + 1
        )
        layers = range(len(model.problem.graph.layers))
        self.options = [self._options(layer, alike) for layer in layers]
        self.weight_bytes = program.pair_sums(
            [
                model.layers.weight_bytes(layer, alike[0], micro_batch)
                if self.options[layer]
                else 0
                for layer in layers
            ]
        ).astype(np.float64)
        self.edge_bytes = self._edges().astype(np.float64)
        numbers: dict[Differences, int] = {}
        #: Kind of every layer with a choice; -1 of the others.
        self._kinds = np.array(
            [
                numbers.setdefault(_differences(options), len(numbers))
                if len(options) > 1
                else -1
                for options in self.options
            ]
        )
        self.fronts = Fronts(
            tuple(numbers), self.most_inflight, program.deadline
        )
        self._bounds()

    def _options(self, layer: int, alike: Sequence[Strategy]) -> list[Option]:
        """Return the non-dominated alternatives, the fastest first."""
        program = self.program
        beyond = program.capacity + 1
        found: list[Option] = []
        for strategy in alike:
            terms = program.model.layer_terms(
                layer, strategy, program.micro_batch, None
            )
            if terms is not None:
                found.append(
                    Option(
                        terms.forward + terms.backward,
                        min(terms.kept_bytes, beyond),
                        min(terms.static_bytes, beyond),
                        strategy.recompute,
                    )
                )
        if not found:
            return []
        rows = _cheaper_or_smaller(
            *(
                np.array(column, dtype=np.int64)
                for column in (
                    [x.compute for x in found],
                    [x.memory(1) for x in found],
                    [x.memory(self.most_inflight) for x in found],
                )
            )
        )
        return [found[row] for row in rows.tolist()]

    def _edges(self) -> Ints:
        """Return the bytes that enter and leave every stage."""
        program = self.program
        member = program.sets.member.astype(np.int64)
        num_layers = member.shape[1]
        at_source = np.zeros((num_layers, num_layers), dtype=np.int64)
        at_target = np.zeros_like(at_source)
        transfers = program.model.transfers
        for source, target, sent, received in transfers.edge_ends(
            self.tp, program.micro_batch
        ):
            at_source[source, target] = sent
            at_target[source, target] = received
        # Rows a, columns b: edges from a to b, and from a to outside b.
        into = member @ at_target @ member.T
        out = member @ at_source @ (1 - member).T
        a, b = program.sets.pair_source, program.sets.pair_target
        crossing: Ints = into[a, b] - into[a, a] + out[b, b] - out[a, b]
        return crossing

    def _bounds(self) -> None:
        """Set ``P`` where all first options fit; else bound it from above."""
        program = self.program
        usable = program.pair_sums([not x for x in self.options]) == 0
        # A layer without options makes its stages unusable.
        options = [x or [Option(0, 0, 0, "none")] for x in self.options]
        self._first_compute = program.pair_sums(
            [x[0].compute for x in options]
        )
        self._kept = program.pair_sums([x[0].kept_bytes for x in options])
        self._static = program.pair_sums([x[0].static_bytes for x in options])
        columns = []
        #: Pairs with a choice, for every ``y`` from 1.
        self._open: list[Ints] = []
        for y in range(1, self.most_inflight + 1):
            smallest = [
                min((o.memory(y), o.compute) for o in x) for x in options
            ]
            least_bytes = program.pair_sums([size for size, _ in smallest])
            possible = usable & (least_bytes <= program.capacity)
            if not possible.any():
                break
            compute = program.pair_sums([time for _, time in smallest])
            fits = self._kept * y + self._static <= program.capacity
            compute[fits] = self._first_compute[fits]
            columns.append(np.where(possible, compute, INFINITE))
            self._open.append(np.flatnonzero(possible & ~fits))
        if not columns:
            columns.append(np.full(len(usable), INFINITE))
        # What fits with more in flight fits with fewer.
        self.compute = np.minimum.accumulate(
            np.stack(columns, axis=1)[:, ::-1], axis=1
        )[:, ::-1].copy()

    def refine(self, most_compute: Ints) -> None:
        """Solve the knapsacks.

        Parameters
        ----------
        most_compute
            (largest ``y``, pairs): what of ``P`` matters; above it the
            table may keep more than ``P``.
        """
        places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for y, pairs in enumerate(self._open, 1):
            below = self._first_compute[pairs] <= most_compute[y - 1, pairs]
            for pair in pairs[below].tolist():
                places.setdefault(self._bag(pair), []).append((pair, y))
        for bag, found in places.items():
            front = self.fronts.of(bag)
            # in parts, so that comparing takes little memory
            step = max(1, 2**22 // len(front.compute))
            for start in range(0, len(found), step):
                pairs, ys = np.array(found[start : start + step]).T
                point = self._cheapest(front, pairs, ys)
                self.compute[pairs, ys - 1] = (
                    self._first_compute[pairs] + front.compute[point]
                )

    def _bag(self, pair: int) -> tuple[int, ...]:
        """Return the kinds of a stage's layers that have a choice."""
        kinds = self._kinds[self.program.inside(pair)]
        return tuple(np.sort(kinds[kinds >= 0]).tolist())

    def _cheapest(self, front: Front, pairs: Ints, ys: Ints) -> Ints:
        """Return for each stage the first point of its front that fits."""
        room = self.program.capacity - self._kept[pairs] * ys
        room -= self._static[pairs]
        needs = ys[:, None] * front.kept_bytes + front.static_bytes
        points: Ints = np.argmax(needs <= room[:, None], axis=1)
        return points

    def choices(self, pair: int, inflight: int) -> dict[int, Recompute]:
        """Return the recompute choice of every layer of a stage."""
        bag = self._bag(pair)
        one = np.array([pair]), np.array([inflight])
        point = int(self._cheapest(self.fronts.of(bag), *one)[0])
        used: dict[int, list[int]] = {}
        for kind, number in zip(
            bag, self.fronts.choose(bag, point), strict=True
        ):
            used.setdefault(kind, []).append(number)
        found = {}
        for layer in self.program.layers(pair):
            kind = int(self._kinds[layer])
            number = used[kind].pop() if kind >= 0 else 0
            found[layer] = self.options[layer][number].recompute
        return found


def _differences(options: Sequence[Option]) -> Differences:
    first = options[0]
    return tuple(
        (
            option.compute - first.compute,
            option.kept_bytes - first.kept_bytes,
            option.static_bytes - first.static_bytes,
        )
        for option in options
    )


# Stages and pipelines


@dataclass(frozen=True)
class Way:
    """How a stage may run: degrees, and what its load adds to ``P/d``."""

    degree: Degree
    dp: int
    constant: Ints
    most_inflight: int

    @property
    def devices(self) -> int:
        """Devices of the stage."""
        return self.dp * self.degree.tp


class Placed(NamedTuple):
    """A stage of a plan: its pair, its way, micro-batches in flight."""

    pair: int
    way: Way
    inflight: int


class Program:
    """The tables of a problem, and the search for a plan within a bound.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline
        The clock.
    """

    def __init__(
        self, model: CostModel, sets: ClosedSets, deadline: Deadline
    ) -> None:
        self.model, self.sets, self.deadline = model, sets, deadline
        self.rules = piper_rules(model)
        problem = model.problem
        self.num_devices = problem.cluster.num_devices
        (self.micro_batch,) = problem.job.micro_batches
        self.num_micro_batches = problem.job.global_batch // self.micro_batch
        by_tp: dict[int, dict[int, list[Strategy]]] = {}
        for strategy in strategies(problem, self.micro_batch):
            by_dp = by_tp.setdefault(strategy.tp, {})
            by_dp.setdefault(strategy.dp, []).append(strategy)
        self.capacity = self._capacity(
            [by_dp[min(by_dp)] for by_dp in by_tp.values()]
        )
        #: Allowed numbers of stages, ascending; ``None`` for all.
        self._allowed = None
        if problem.job.pipeline_parallel is not None:
            (case,) = batch_splits(problem)
            self._allowed = stage_counts(problem, case)
        starts = np.arange(sets.count + 1)
        self._first_pair = np.searchsorted(sets.pair_source, starts)
        self.degrees: list[Degree] = []
        self.ways: list[Way] = []
        for _, by_dp in sorted(by_tp.items()):
            degree = Degree(self, by_dp[min(by_dp)])
            self.degrees.append(degree)
            self.ways += [self._way(degree, dp) for dp in sorted(by_dp)]

    def _capacity(self, choices: list[list[Strategy]]) -> int:
        """Return the memory of a device, or more than any stage can need."""
        problem = self.model.problem
        cluster = problem.cluster
        layers = range(len(problem.graph.layers))
        need = [0] * len(layers)
        for strategy in itertools.chain(*choices):
            for layer in layers:
                terms = self.model.layer_terms(
                    layer, strategy, self.micro_batch, None
                )
                if terms is not None:
                    size = self.num_devices * terms.kept_bytes
                    need[layer] = max(need[layer], size + terms.static_bytes)
        capacity = min(
            cluster.memory_bytes() - cluster.reserve_bytes(), sum(need)
        )
        most = 4 * self.num_devices * len(layers)
        if most * (capacity + 1) > MAX_BYTES:
            raise UnsupportedProblemError(
                f"$.cluster.device.memory_bytes: expected at most "
                f"{MAX_BYTES // most - 1} with so many devices and "
                f"layers, got {cluster.memory_bytes()}; correct it"
            )
        return capacity

    def pair_sums(self, values: Sequence[int]) -> Ints:
        """Sum a value per layer over every ``b - a``; shape (pairs,)."""
        total = self.sets.member.astype(np.int64) @ np.array(
            values, dtype=np.int64
        )
        return total[self.sets.pair_target] - total[self.sets.pair_source]

    def inside(self, pair: int) -> Ints:
        """Return the layers of a stage."""
        sets = self.sets
        found: Ints = np.flatnonzero(
            sets.member[sets.pair_target[pair]]
            & ~sets.member[sets.pair_source[pair]]
        )
        return found

    def layers(self, pair: int) -> list[int]:
        """Return the layers of a stage, sources first."""
        inside = set(self.inside(pair).tolist())
        order = self.model.problem.graph.topological_order()
        return [layer for layer in order if layer in inside]

    def _way(self, degree: Degree, dp: int) -> Way:
        model, rules = self.model, self.rules
        edges = rules.exchange_ns(model, degree.edge_bytes, dp)
        sync = rules.sync_ns(
            model, degree.weight_bytes, dp, self.num_micro_batches
        )
        # The later stages have at most the devices that are left.
        ranks = min(
            self.num_micro_batches,
            dp + self.num_devices - dp * degree.tp,
        )
        return Way(
            degree,
            dp,
            model.quanta.round_all(edges, "an edge")
            + model.quanta.round_all(sync, "gradient sync"),
            ceil_div(ranks, dp),
        )

    # Bounds on the largest load

    def least_load(self) -> int:
        """Return a lower bound on the largest load of every plan.

        ``Σ_s n_s τ_s >= Σ t P`` with the cheapest ``t P`` of every layer, a
        half quantum less per rank for rounding.
        """
        total = 0
        for layer in range(len(self.model.problem.graph.layers)):
            work = [
                degree.tp * degree.options[layer][0].compute
                for degree in self.degrees
                if degree.options[layer]
            ]
            if not work:
                return 0
            total += min(work)
        ranks = self.num_devices
        return max(0, ceil_div(2 * total - ranks, 2 * ranks))

    def rough(self, bound: int) -> int | None:
        """Return a load that some plan stays within, or ``None``.

        Within about 2 % of what can be had without knapsacks; ``bound`` is
        a lower bound. To be called before :meth:`refine`.
        """
        stages = self.within(int(INFINITE))
        if stages is None:
            return None
        best = self.largest(stages)
        while (best - bound) * 64 > best:
            middle = (bound + best) // 2
            stages = self.within(middle)
            if stages is None:
                bound = middle + 1
            else:
                best = self.largest(stages)
        return best

    def refine(self, limit: int) -> None:
        """Solve the knapsacks that loads of at most ``limit`` depend on."""
        for degree in self.degrees:
            most = np.full(degree.compute.T.shape, -1)
            for way in self.ways:
                if way.degree is degree:
                    last = most[min(way.most_inflight, len(most)) - 1]
                    np.maximum(last, self._compute(way, limit), out=last)
            # A way that allows y in flight allows less.
            degree.refine(np.maximum.accumulate(most[::-1], axis=0)[::-1])

    def loads(self, bound: int, end: int) -> Ints:
        """Return the loads of stages from ``bound`` to before ``end``."""
        found = [np.zeros(0, dtype=np.int64)]
        for way in self.ways:
            table = way.degree.compute[:, : way.most_inflight]
            rows, columns = np.nonzero(
                table <= self._compute(way, end)[:, None]
            )
            load = self.rules.in_turn(table[rows, columns], way.dp)
            load += way.constant[rows]
            found.append(np.unique(load[(load >= bound) & (load < end)]))
        return np.unique(np.concatenate(found))

    def _compute(self, way: Way, limit: int) -> Ints:
        """Return the most ``P`` of every pair with a load within a limit.

        ``⌊(2P + d) / 2d⌋ <= r`` if and only if ``2P < (2r + 1) d``.
        """
        # No stage computes for more than MAX_TOTAL, see check_magnitude.
        room = np.minimum(limit - way.constant, MAX_TOTAL // way.dp)
        compute: Ints = ((2 * room + 1) * way.dp - 1) // 2
        compute[room < 0] = -1
        return compute

    # A plan within a limit

    def within(self, limit: int) -> list[Placed] | None:
        """Return stages with loads of at most ``limit``, or ``None``."""
        most = self._most_behind(limit)
        if self._allowed is None:
            ranks = self._ranks(most, None)
            if ranks[0, -1] >= INFINITE:
                return None
            return self._follow([ranks], most)
        # ranks with a number of stages each, from none on
        by_number = [self._no_stage()]
        for number in range(1, max(self._allowed, default=0) + 1):
            by_number.append(self._ranks(most, by_number[-1]))
            if by_number[-1][0, -1] < INFINITE and number in self._allowed:
                return self._follow(by_number, most)
        return None

    def _most_behind(self, limit: int) -> Ints:
        """Return, for every way and pair, the largest ``Σ d`` behind it.

        -1 where the load exceeds the limit whatever follows.
        """
        most = np.full((len(self.ways), len(self.sets.pair_source)), -1)
        for number, way in enumerate(self.ways):
            if self.deadline.passed:
                raise OutOfTimeError
            compute, table = self._compute(way, limit), way.degree.compute
            rows = np.flatnonzero(table[:, 0] <= compute)
            inflight = (
                table[rows, : way.most_inflight] <= compute[rows, None]
            ).sum(axis=1)
            # At most M - d, as M/d are in flight at most and d divides M.
            most[number, rows] = way.dp * (inflight - 1)
        return most

    def _no_stage(self) -> Ints:
        ranks = np.full((self.sets.count, self.num_devices + 1), INFINITE)
        ranks[-1] = 0
        return ranks

    def _ranks(self, most: Ints, fewer: Ints | None) -> Ints:
        """Return the least ``Σ d`` of stages behind every state ``(a, k)``.

        The stages hold all layers outside ``a`` on at most ``k`` devices.

        Parameters
        ----------
        most
            From :meth:`_most_behind`.
        fewer
            The same with one stage less, for an exact number of stages;
            ``None`` for any number.
        """
        sets, devices = self.sets, self.num_devices
        ranks = self._no_stage()
        if fewer is None:
            fewer = ranks
        else:
            ranks[-1] = INFINITE
        for a in range(sets.count - 2, -1, -1):
            if self.deadline.passed:
                raise OutOfTimeError
            pairs = slice(self._first_pair[a], self._first_pair[a + 1])
            here = most[:, pairs]
            usable = here >= 0
            ways = np.flatnonzero(usable.any(axis=1))
            if not len(ways):
                continue
            rows = np.flatnonzero(usable.any(axis=0))
            behind = fewer[sets.pair_target[pairs][rows]]
            allowed = behind <= here[np.ix_(ways, rows)][:, :, None]
            least = np.where(allowed, behind, INFINITE).min(axis=1)
            value = ranks[a]
            for number, row in zip(ways.tolist(), least, strict=True):
                way = self.ways[number]
                end = devices + 1 - way.devices
                after = value[way.devices :]
                np.minimum(after, row[:end] + way.dp, out=after)
            np.minimum.accumulate(value, out=value)
        return ranks

    def _follow(self, tables: Sequence[Ints], most: Ints) -> list[Placed]:
        """Follow the values from the first stage to the last.

        ``tables`` are the ranks of any number of stages, or of every number
        from 0 on, the last of which is followed.
        """
        stages: list[Placed] = []
        number, a, left = len(tables) - 1, 0, self.num_devices
        while a < self.sets.count - 1:
            ranks, fewer = tables[number], tables[max(0, number - 1)]
            # as few devices as reach the value
            left = int(np.searchsorted(-ranks[a], -ranks[a, left]))
            pair, way = self._step(ranks, fewer, most, a, left)
            inflight = ceil_div(int(ranks[a, left]), way.dp)
            stages.append(Placed(pair, way, inflight))
            a, left = int(self.sets.pair_target[pair]), left - way.devices
            number = max(0, number - 1)
        return stages

    def _step(
        self, ranks: Ints, fewer: Ints, most: Ints, a: int, left: int
    ) -> tuple[int, Way]:
        """Return a stage that leads from ``a`` to the value there."""
        first, end = self._first_pair[a], self._first_pair[a + 1]
        targets = self.sets.pair_target[first:end]
        for number, way in enumerate(self.ways):
            if way.devices > left:
                continue
            behind = fewer[targets, left - way.devices]
            good = (behind <= most[number, first:end]) & (
                behind + way.dp == ranks[a, left]
            )
            if good.any():
                return int(first + np.argmax(good)), way
        raise AssertionError("a value without a stage that leads to it")

    def largest(self, stages: Sequence[Placed]) -> int:
        """Return the largest load of stages."""
        loads = []
        for pair, way, inflight in stages:
            compute = int(way.degree.compute[pair, inflight - 1])
            turn = int(self.rules.in_turn(compute, way.dp))
            loads.append(turn + int(way.constant[pair]))
        return max(loads)

    def plan(self, stages: Sequence[Placed]) -> Plan:
        """Return the plan of stages."""
        return Plan(
            replicas=1,
            micro_batch=self.micro_batch,
            stages=tuple(self._stage(*stage) for stage in stages),
        )

    def _stage(self, pair: int, way: Way, inflight: int) -> Stage:
        choices = way.degree.choices(pair, inflight)
        chosen = tuple(
            Strategy(dp=way.dp, tp=way.degree.tp, recompute=recompute)
            for recompute in choices.values()
        )
        layers = self.model.problem.graph.layers
        alike = len(set(chosen)) == 1
        return Stage(
            layers=tuple(layers[layer].id for layer in choices),
            devices=way.devices,
            strategy=chosen[0] if alike else None,
            strategies=None if alike else chosen,
        )
