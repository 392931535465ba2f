"""The program for presets whose data ranks take turns (Piper's objective).

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

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.cost.model import CostModel
from nest.cost.space import cases, stage_counts, strategies
from nest.dp.closed_sets import ClosedSets
from nest.dp.errors import OutOfTimeError
from nest.dp.stages import INFINITE, Ints
from nest.errors import UnsupportedProblemError
from nest.ir.plan import Plan, Recompute, Stage, Strategy
from nest.solvers.base import (
    Deadline,
    Limit,
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
    if not cases(model.problem):
        return SolverOutput(status=Status.INFEASIBLE)
    best = int(INFINITE) if upper is None else upper
    bound = 0
    try:
        program = TurnsProgram(model, sets, deadline)
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
            found = program.within(int(loads[middle]))
            if found is None:
                low, bound = middle + 1, int(loads[middle]) + 1
                continue
            best, plan = found
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


class Option(NamedTuple):
    """One alternative of a layer: quanta, and ``kept * y + static`` bytes."""

    compute: int
    kept_bytes: int
    static_bytes: int
    recompute: Recompute


class Front(NamedTuple):
    """Non-dominated choices of several layers, by rising computation.

    Arrays of one length: quanta and bytes on top of everyone's first option.
    """

    compute: Ints
    kept_bytes: Ints
    static_bytes: Ints


#: What the further options of a layer add to its first: (quanta, kept,
#: static). Layers with equal differences are alike.
Differences = tuple[tuple[int, int, int], ...]

_EMPTY = Front(*(np.zeros(1, dtype=np.int64) for _ in range(3)))


class Fronts:
    """The fronts of bags of layers, each computed once.

    Parameters
    ----------
    kinds
        What the layers of each kind differ by.
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
        self.kinds = kinds
        self._most_inflight = most_inflight
        self._deadline = deadline
        self._known: dict[tuple[int, ...], Front] = {(): _EMPTY}

    def of(self, bag: tuple[int, ...]) -> Front:
        """Return the front of a bag: kinds of layers, ascending."""
        size = len(bag)
        while bag[:size] not in self._known:
            size -= 1
        front = self._known[bag[:size]]
        for end in range(size + 1, len(bag) + 1):
            if self._deadline.passed:
                raise OutOfTimeError
            front = self._merge(front, self.kinds[bag[end - 1]])
            self._known[bag[:end]] = front
        return front

    def _merge(self, front: Front, differences: Differences) -> Front:
        options = np.array(((0, 0, 0), *differences), dtype=np.int64)
        return self._prune(
            Front(
                *(
                    (column[None, :] + options[:, [i]]).ravel()
                    for i, column in enumerate(front)
                )
            )
        )

    def _prune(self, front: Front) -> Front:
        low = front.kept_bytes + front.static_bytes
        high = front.kept_bytes * self._most_inflight + front.static_bytes
        alike = bool((low == low[0]).all())
        if alike:
            order = np.argsort(front.compute, kind="stable")
        else:
            order = np.lexsort((high, low, front.compute))
        low, high = low[order], high[order]
        if alike:
            # One memory decides: keep what needs less than all before it.
            keep = np.ones(len(order), dtype=np.bool_)
            keep[1:] = high[1:] < np.minimum.accumulate(high)[:-1]
        else:
            keep = _staircase(low.tolist(), high.tolist())
        return Front(*(column[order][keep] for column in front))

    def choose(self, bag: tuple[int, ...], point: int) -> list[int]:
        """Return which option each layer of a bag uses at a front's point."""
        chosen = []
        target = [int(column[point]) for column in self.of(bag)]
        while bag:
            front = self.of(bag[:-1])
            for number, difference in enumerate(
                ((0, 0, 0), *self.kinds[bag[-1]])
            ):
                before = [
                    total - part
                    for total, part in zip(target, difference, strict=True)
                ]
                same = np.ones(len(front.compute), dtype=np.bool_)
                for column, value in zip(front, before, strict=True):
                    same &= column == value
                if same.any():
                    chosen.append(number)
                    target, bag = before, bag[:-1]
                    break
            else:
                raise AssertionError("a point that no option leads to")
        return chosen[::-1]


def _staircase(low: list[int], high: list[int]) -> NDArray[np.bool_]:
    """Return which points no earlier one is at most equal to in both."""
    keep = np.zeros(len(low), dtype=np.bool_)
    lows: list[int] = []
    highs: list[int] = []
    for i, (x, y) in enumerate(zip(low, high, strict=True)):
        at = bisect.bisect_right(lows, x)
        if at and highs[at - 1] <= y:
            continue
        keep[i] = True
        end = at
        while end < len(highs) and highs[end] >= y:
            end += 1
        # an equal x before it has a larger y
        start = at - 1 if at and lows[at - 1] == x else at
        lows[start:end] = [x]
        highs[start:end] = [y]
    return keep


class Degree:
    """All stages at one tensor parallel degree.

    Parameters
    ----------
    program
        Whose degree it is.
    tp
        The degree.
    alike
        Strategies with it, one per recompute choice.
    data_parallel
        Legal ``d``, ascending.

    Attributes
    ----------
    compute
        ``P``: (pairs, ``y`` from 1 on), quanta; INFINITE where nothing fits,
        as it does beyond the last ``y``.
    usable
        Per pair: can every layer run?
    """

    def __init__(
        self,
        program: TurnsProgram,
        tp: int,
        alike: Sequence[Strategy],
        data_parallel: Sequence[int],
    ) -> None:
        self.tp, self.data_parallel = tp, tuple(data_parallel)
        self.program = program
        model, micro_batch = program.model, program.micro_batch
        self.most_inflight = min(
            program.num_micro_batches, program.num_devices - tp + 1
        )
        self.options = [
            self._options(model, layer, alike, micro_batch)
            for layer in range(len(model.problem.graph.layers))
        ]
        self.usable = (
            program.pair_sums([not options for options in self.options]) == 0
        )
        weights = [
            model.weight_bytes(layer, alike[0], micro_batch) if options else 0
            for layer, options in enumerate(self.options)
        ]
        self.weight_bytes = program.pair_sums(weights).astype(np.float64)
        self.edge_bytes = self._edges(micro_batch).astype(np.float64)
        self._kinds()
        self._bounds()

    def _options(
        self,
        model: CostModel,
        layer: int,
        alike: Sequence[Strategy],
        micro_batch: int,
    ) -> list[Option]:
        """Return what a layer may choose, the least computation first."""
        beyond = self.program.capacity + 1
        found = []
        for strategy in alike:
            terms = model.layer_terms(layer, strategy, micro_batch, None)
            if terms is not None:
                found.append(
                    Option(
                        terms.forward + terms.backward,
                        min(terms.kept_bytes, beyond),
                        min(terms.static_bytes, beyond),
                        strategy.recompute,
                    )
                )
        found.sort(
            key=lambda x: (
                x.compute,
                x.kept_bytes + x.static_bytes,
                x.kept_bytes,
            )
        )
        kept: list[Option] = []
        for option in found:
            if not any(self._no_worse(other, option) for other in kept):
                kept.append(option)
        return kept

    def _no_worse(self, one: Option, other: Option) -> bool:
        return one.compute <= other.compute and all(
            one.kept_bytes * y + one.static_bytes
            <= other.kept_bytes * y + other.static_bytes
            for y in (1, self.most_inflight)
        )

    def _edges(self, micro_batch: int) -> Ints:
        """Return the bytes that enter and leave every stage."""
        program = self.program
        member = program.sets.member.astype(np.int64)
        num_layers = member.shape[1]
        at_source = np.zeros((num_layers, num_layers), dtype=np.int64)
        at_target = np.zeros_like(at_source)
        for source, target, sent, received in program.model.edge_ends(
            self.tp, micro_batch
        ):
            at_source[source, target] = sent
            at_target[source, target] = received
        # Rows a, columns b: edges from a to b, and from a to outside b.
        into = member @ at_target @ member.T
        out = member @ at_source @ (1 - member).T
        a, b = program.sets.pair_source, program.sets.pair_target
        crossing: Ints = into[a, b] - into[a, a] + out[b, b] - out[a, b]
        return crossing

    def _kinds(self) -> None:
        """Find layers whose options differ alike."""
        numbers: dict[Differences, int] = {}
        kinds = []
        for options in self.options:
            kind = -1
            if len(options) > 1:
                first = options[0]
                differences = tuple(
                    (
                        option.compute - first.compute,
                        option.kept_bytes - first.kept_bytes,
                        option.static_bytes - first.static_bytes,
                    )
                    for option in options[1:]
                )
                kind = numbers.setdefault(differences, len(numbers))
            kinds.append(kind)
        self._kind_array = np.array(kinds)
        self.fronts = Fronts(
            tuple(numbers), self.most_inflight, self.program.deadline
        )

    def _bounds(self) -> None:
        """Set ``P`` where all first options fit; else bound it from above."""
        program = self.program
        firsts = [
            options[0] if options else Option(0, 0, 0, "none")
            for options in self.options
        ]
        self._first_compute = program.pair_sums([x.compute for x in firsts])
        self._kept = program.pair_sums([x.kept_bytes for x in firsts])
        self._static = program.pair_sums([x.static_bytes for x in firsts])
        columns = []
        #: Pairs with a choice, for every ``y`` from 1.
        self._open: list[Ints] = []
        for y in range(1, self.most_inflight + 1):
            smallest = [
                min(
                    (x.kept_bytes * y + x.static_bytes, x.compute)
                    for x in options
                )
                if options
                else (0, 0)
                for options in self.options
            ]
            least_bytes = program.pair_sums([size for size, _ in smallest])
            possible = self.usable & (least_bytes <= program.capacity)
            if not possible.any():
                break
            most = program.pair_sums([compute for _, compute in smallest])
            fits = self._kept * y + self._static <= program.capacity
            most[fits] = self._first_compute[fits]
            columns.append(np.where(possible, most, INFINITE))
            self._open.append(np.flatnonzero(possible & ~fits))
        if not columns:
            columns.append(np.full(len(self.usable), INFINITE))
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
        bags: dict[int, tuple[int, ...]] = {}
        for y, pairs in enumerate(self._open, 1):
            below = self._first_compute[pairs] <= most_compute[y - 1, pairs]
            for pair in pairs[below].tolist():
                if pair not in bags:
                    bags[pair] = self._bag(pair)
                places.setdefault(bags[pair], []).append((pair, y))
        for bag, found in places.items():
            front = self.fronts.of(bag)
            pairs, ys = np.array(found, dtype=np.int64).T
            for part in _parts(len(pairs), len(front.compute)):
                chosen = self._cheapest(front, pairs[part], ys[part])
                self.compute[pairs[part], ys[part] - 1] = (
                    self._first_compute[pairs[part]] + front.compute[chosen]
                )

    def _bag(self, pair: int) -> tuple[int, ...]:
        """Return the kinds of a stage's layers that have a choice."""
        sets = self.program.sets
        inside = (
            sets.member[sets.pair_target[pair]]
            & ~sets.member[sets.pair_source[pair]]
        )
        kinds = self._kind_array[inside]
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
        chosen = self.fronts.choose(bag, point)
        for kind, number in zip(bag, chosen, strict=True):
            used.setdefault(kind, []).append(number)
        found = {}
        for layer in self.program.layers(pair):
            kind = int(self._kind_array[layer])
            number = used[kind].pop() if kind >= 0 else 0
            found[layer] = self.options[layer][number].recompute
        return found


def _parts(length: int, width: int, most: int = 2**22) -> list[slice]:
    """Split rows so that a part has about ``most`` elements."""
    step = max(1, most // width)
    return [slice(i, i + step) for i in range(0, length, step)]


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


class _Placed(NamedTuple):
    """A stage of a plan: its pair, its way, micro-batches in flight."""

    pair: int
    way: Way
    inflight: int


class TurnsProgram:
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
        problem = model.problem
        self.num_devices = problem.cluster.num_devices
        (self.micro_batch,) = problem.job.micro_batches
        self.num_micro_batches = problem.job.global_batch // self.micro_batch
        device = problem.cluster.device
        self.capacity = device.memory_bytes - device.reserve_bytes
        most = self.num_devices * len(problem.graph.layers)
        if 4 * most * (self.capacity + 1) > MAX_BYTES:
            raise UnsupportedProblemError(
                f"$.cluster.device.memory_bytes: expected at most "
                f"{MAX_BYTES // (4 * most) - 1} with so many devices and "
                f"layers, got {device.memory_bytes}; correct it"
            )
        #: Allowed numbers of stages, ascending; ``None`` for all.
        self._allowed = None
        if problem.job.pipeline_parallel is not None:
            (case,) = cases(problem)
            self._allowed = stage_counts(problem, case)
        alike: dict[int, list[Strategy]] = {}
        degrees: dict[int, set[int]] = {}
        for strategy in strategies(problem, self.micro_batch):
            degrees.setdefault(strategy.tp, set()).add(strategy.dp)
            if strategy.dp == min(degrees[strategy.tp]):
                alike.setdefault(strategy.tp, []).append(strategy)
        self.degrees = [
            Degree(self, tp, alike[tp], sorted(degrees[tp]))
            for tp in sorted(alike)
        ]
        self.ways = [
            self._way(degree, dp)
            for degree in self.degrees
            for dp in degree.data_parallel
        ]
        starts = np.arange(sets.count + 1)
        self._first_pair = np.searchsorted(sets.pair_source, starts)

    def pair_sums(self, values: Sequence[int]) -> Ints:
        """Sum a value per layer over every ``b - a``; shape (pairs,)."""
        total = self.sets.member.astype(np.int64) @ np.array(
            values, dtype=np.int64
        )
        return total[self.sets.pair_target] - total[self.sets.pair_source]

    def layers(self, pair: int) -> list[int]:
        """Return the layers of a stage, sources first."""
        member = self.sets.member
        inside = (
            member[self.sets.pair_target[pair]]
            & ~member[self.sets.pair_source[pair]]
        )
        order = self.model.problem.graph.topological_order()
        return [layer for layer in order if inside[layer]]

    def _way(self, degree: Degree, dp: int) -> Way:
        edges = self.model.exchange_ns(degree.edge_bytes, dp)
        sync = self.model.server_sync_ns(
            degree.weight_bytes, dp, self.num_micro_batches
        )
        # The later stages have at most the devices that are left.
        ranks = min(
            self.num_micro_batches,
            dp + self.num_devices - dp * degree.tp,
        )
        return Way(
            degree,
            dp,
            self.model.all_quanta(edges, "an edge")
            + self.model.all_quanta(sync, "gradient sync"),
            ceil_div(ranks, dp),
        )

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
        stages = self._within(int(INFINITE))
        if stages is None:
            return None
        best = self._worst(stages)
        while (best - bound) * 64 > best:
            middle = (bound + best) // 2
            stages = self._within(middle)
            if stages is None:
                bound = middle + 1
            else:
                best = self._worst(stages)
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
            most = np.maximum.accumulate(most[::-1], axis=0)[::-1]
            degree.refine(most)

    def loads(self, bound: int, end: int) -> Ints:
        """Return the loads of stages from ``bound`` to before ``end``."""
        found = [np.zeros(0, dtype=np.int64)]
        for way in self.ways:
            table = way.degree.compute[:, : way.most_inflight]
            rows, columns = np.nonzero(
                table <= self._compute(way, end)[:, None]
            )
            load = self.model.turn(table[rows, columns], way.dp)
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

    def _limits(self, limit: int) -> Ints:
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

    def within(self, limit: int) -> tuple[int, Plan] | None:
        """Return a plan whose loads are at most ``limit``, and its largest.

        ``None`` if there is none.
        """
        stages = self._within(limit)
        if stages is None:
            return None
        return self._worst(stages), Plan(
            replicas=1,
            micro_batch=self.micro_batch,
            stages=tuple(self._stage(*stage) for stage in stages),
        )

    def _worst(self, stages: Sequence[_Placed]) -> int:
        """Return the largest load of stages."""
        loads = []
        for pair, way, inflight in stages:
            compute = int(way.degree.compute[pair, inflight - 1])
            turn = int(self.model.turn(compute, way.dp))
            loads.append(turn + int(way.constant[pair]))
        return max(loads)

    def _within(self, limit: int) -> list[_Placed] | None:
        """Return stages with loads of at most ``limit``, or ``None``."""
        most = self._limits(limit)
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
            From :meth:`_limits`.
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
                np.minimum(
                    value[way.devices :],
                    row[:end] + way.dp,
                    out=value[way.devices :],
                )
            np.minimum.accumulate(value, out=value)
        return ranks

    def _follow(self, tables: Sequence[Ints], most: Ints) -> list[_Placed]:
        """Follow the values from the first stage to the last.

        ``tables`` are the ranks of any number of stages, or of every number
        from 0 on, the last of which is followed.
        """
        stages: list[_Placed] = []
        number, a, left = len(tables) - 1, 0, self.num_devices
        while a < self.sets.count - 1:
            ranks, fewer = tables[number], tables[max(0, number - 1)]
            pair, way = self._step(ranks, fewer, most, a, left)
            inflight = ceil_div(int(ranks[a, left]), way.dp)
            stages.append(_Placed(pair, way, inflight))
            a, left = int(self.sets.pair_target[pair]), left - way.devices
            number = max(0, number - 1)
        return stages

    def _step(
        self, ranks: Ints, fewer: Ints, most: Ints, a: int, left: int
    ) -> tuple[int, Way]:
        """Return a stage that leads from ``a`` to the value there."""
        first, end = self._first_pair[a], self._first_pair[a + 1]
        targets = self.sets.pair_target[first:end]
        for devices, (number, way) in itertools.product(
            range(left, 0, -1), enumerate(self.ways)
        ):
            if way.devices > devices:
                continue
            behind = fewer[targets, devices - way.devices]
            good = (behind <= most[number, first:end]) & (
                behind + way.dp == ranks[a, left]
            )
            if good.any():
                return int(first + np.argmax(good)), way
        raise AssertionError("a value without a stage that leads to it")

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
