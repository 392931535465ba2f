"""``piper``: Piper's dynamic program over downsets.

Source: Tarnawski, Narayanan and Phanishayee, "Piper: Multidimensional Planner for DNN
Parallelization", NeurIPS 2021; its published code at commit d7fc8cf (``algo.cpp``).

Search space
    Sequences of stages, each a difference of two closed sets of the graph, with its own
    data parallel degree ``d`` and tensor parallel degree ``t``; in a stage every layer
    chooses between its fastest and its smallest alternative (recomputation or not).

Objective
    The time per micro-batch in the steady state (its "TPS"), the largest load
    of a stage. For a stage with degrees ``t`` and ``d``::

        load = Σ p / d + Σ 2 c / (d β) + 4 (d-1)/d W / (N β)

    ``p`` forward and backward pass of a layer, ``c`` the bytes of every edge
    that enters or leaves, ``W`` its weights per device, ``N`` micro-batches
    per step, ``β`` the bandwidth of a flat network without latency. Memory is
    ``Σ (y kept + static)`` with ``y = ⌈s/d⌉`` micro-batches in flight, ``s``
    the sum of ``d`` from this stage on.

Search
    ``dp[D][k][s]``, the least largest load of the layers ``D`` at the end of
    the pipeline on ``k`` devices with ``Σ d <= s``::

        dp[D][k][s] = min over D' ⊂ D, t, d of
                      max(dp[D'][k - d t][s - d], T(D - D', t, d, ⌈s/d⌉))

    ``T`` chooses alternatives with a greedy knapsack: all fastest if that fits, else
    those with the least extra time per byte saved become the smallest, one layer after
    the other, until the stage fits. Of the best plans the one with the fewest devices,
    then with the least ``Σ d``, is returned.

Ignored
    Filling and draining the pipeline, the optimizer update, latency, levels of the
    network and placement, working sets of layers, ZeRO, context and expert parallelism.

In the shared plan space
    Under presets whose ranks share a micro-batch, a stage of degree ``d`` is one with
    ``dp`` in each of ``R`` replicas, ``d = R dp``. Every legal ``(R, B)`` is a run of
    the program on ``⌊N/R⌋`` devices; ``dp`` divides ``B``, in place of ``d`` dividing
    ``N``. ``p`` and the memory are those of ``B/dp`` samples on the first devices of a
    replica, so ``p`` is not divided by ``dp`` again; an edge is split over the ranks.
    Runs are compared by ``M`` times the largest load, which is also
    ``own_objective_ns``; with equal values the larger ``R`` stays, as without ZeRO
    sharding inside the stage gains nothing. ``β`` is the bandwidth between the first
    and the last device of the cluster. ``cp``, ``ep`` and ``zero`` are the least that
    the job allows for a ``(dp, tp)``. With granularity ``stage`` all layers of a stage
    choose alike, which is the flag ``ARallOrNone`` of the code; with ``layer`` each
    chooses.

Deviations
    - The code tabulates ``s``; here the least ``s`` of every ``(D, k)`` is
      found for a bound on the load, by bisection over the loads there are. The
      same optimum wherever ``T`` does not fall as ``y`` rises, as the code
      assumes too; where the greedy choice breaks that, a stage may take the
      choice made for a larger ``y``, which fits as well.
    - No tolerance: the code merges values within 1e-9 of each other.
    - Three recomputation choices are reduced to two per layer, as the code
      takes no more than two alternatives.
    - A graph with more than ``max_closed_sets`` closed sets is cut in one
      topological order; the code stops at 40,000 and its linearisation is not written.
    - A job that restricts the number of stages adds that number to the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from baselines import downsets
from baselines.common import (
    Planner,
    Search,
    case_strategies,
    front_terms,
    one_strategy_per_stage,
    why_not_alike,
)
from baselines.downsets import Floats, Ints, Stages
from nest.audits.piper.pipelines import NEVER, Degrees, Pipelines
from nest.cost.model import CostModel
from nest.cost.space import BatchSplit, batch_splits, stage_counts
from nest.ir.plan import Recompute, Strategy
from nest.solvers.base import Deadline, OutOfTimeError, SolverOutput
from nest.topology.alphabeta import NS_PER_S
from nest.units import ceil_div

#: What the memory of a plan adds up to at most; more counts as this.
MAX_BYTES = 2**62


class PiperSolver(Planner):
    """Piper's dynamic program, its greedy knapsack, its objective."""

    name = "piper"
    capabilities = Planner.promises(
        method="Piper (re-impl.): DP over closed sets, greedy recomputation",
        requires=("numpy",),
        objective="time per micro-batch in the steady state, flat network",
        options=downsets.CLOSED_SETS_OPTION,
    )

    refusals = (why_not_alike,)

    def run(self, search: Search) -> SolverOutput:
        """Return the best plan by Piper's objective."""
        stages = downsets.read_stages(search)
        problem, model = search.problem, search.model
        deadline = search.deadline
        best_ns = np.inf
        # Few devices first: a small program that rules out most of the rest.
        runs = sorted(
            batch_splits(problem), key=lambda case: (case.devices, -case.micro_batch)
        )
        for count, case in enumerate(runs, 1):
            # Cases are compared by what they take for as many samples.
            rounds = 1 if model.rules.steady_state else case.num_micro_batches
            search.say(f"case {count} of {len(runs)}")
            any_count = problem.job.pipeline_parallel is None
            counts = None if any_count else stage_counts(problem, case)
            try:
                program = Program(
                    stages,
                    make_ways(model, stages, case, deadline),
                    case.devices,
                    _most_ranks(model, case),
                    counts,
                    deadline,
                )
                better = program.best(best_ns / rounds)
            except OutOfTimeError:
                search.stopped = True
                return search.answer(f"{count - 1} of {len(runs)} cases searched")
            if better is not None and rounds * better.load_ns < best_ns:
                best_ns = rounds * better.load_ns
                layers = [stages.layers(x.stage) for x in better.stages]
                chosen = map(Placed.strategies, better.stages, layers)
                plan = downsets.plan_of(problem, case, zip(layers, chosen, strict=True))
                search.improve(plan, best_ns)
        if search.plan is None:
            return search.answer("no plan fits by its own memory model")
        return search.answer()


def _most_ranks(model: CostModel, case: BatchSplit) -> int:
    """Return the most ``Σ d`` of a plan."""
    if model.rules.round_robin:
        return min(case.num_micro_batches, case.devices)
    return case.devices


class Option(NamedTuple):
    """An alternative of a layer: quanta, and ``kept * y + static`` bytes."""

    quanta: int
    kept_bytes: int
    static_bytes: int
    recompute: Recompute

    def size_bytes(self, inflight: int) -> int:
        """Memory with so many micro-batches in flight."""
        return self.kept_bytes * inflight + self.static_bytes


#: The alternatives of a kind of layer; none where it cannot run.
Options = tuple[Option, ...]


class Chosen(NamedTuple):
    """What a knapsack chose for every stage.

    ``quanta`` ``(stages,)`` is computation, NEVER where nothing fits. ``smallest``
    ``(stages, kinds)`` are the layers of a kind that use their smallest alternative;
    the others use their fastest.
    """

    quanta: Ints
    smallest: Ints


def extremes(options: Options, inflight: int) -> tuple[Option, Option]:
    """Return the fastest and the smallest alternative."""
    return (
        min(options, key=lambda x: (x.quanta, x.size_bytes(inflight))),
        min(options, key=lambda x: (x.size_bytes(inflight), x.quanta)),
    )


def greedy(
    counts: Ints, kinds: Sequence[Options], inflight: int, capacity: int
) -> Chosen:
    """Choose alternatives layer by layer, as Piper does.

    ``counts`` ``(stages, kinds)`` are layers of every kind in every stage, ``inflight``
    the micro-batches ``y`` in flight, and ``capacity`` bytes per device.
    """
    pairs = [
        extremes(options or (Option(0, 0, 0, "none"),), inflight) for options in kinds
    ]
    slower = [small.quanta - fast.quanta for fast, small in pairs]
    saved = [
        fast.size_bytes(inflight) - small.size_bytes(inflight) for fast, small in pairs
    ]
    size = counts @ _column(fast.size_bytes(inflight) for fast, _ in pairs)
    quanta = counts @ _column(fast.quanta for fast, _ in pairs)
    smallest = np.zeros(counts.shape, dtype=np.int64)
    missing = counts @ _column(not options for options in kinds)
    excess = size - capacity
    impossible = (missing > 0) | (excess > counts @ _column(saved))
    rows = np.flatnonzero((excess > 0) & ~impossible)
    if len(rows):
        here, excess = counts[rows], excess[rows]
        more = np.zeros(len(rows), dtype=np.int64)
        order = sorted(
            (kind for kind in range(len(kinds)) if saved[kind]),
            key=lambda kind: slower[kind] / saved[kind],
        )
        for kind in order:
            # rounded up: the last layer may save more than is needed
            needed = -(-np.maximum(excess, 0) // saved[kind])
            switched = np.minimum(here[:, kind], needed)
            smallest[rows, kind] = switched
            excess -= switched * saved[kind]
            more += switched * slower[kind]
        quanta[rows] += more
    quanta[impossible] = NEVER
    return Chosen(quanta, smallest)


def alike(
    counts: Ints,
    kinds: Sequence[Options],
    recompute: Recompute,
    inflight: int,
    capacity: int,
) -> Ints:
    """Return the quanta if all layers of a stage recompute alike.

    NEVER where that does not fit, or a layer cannot.
    """
    chosen = [
        next((x for x in options if x.recompute == recompute), None)
        for options in kinds
    ]
    size = counts @ _column(x.size_bytes(inflight) if x else 0 for x in chosen)
    quanta: Ints = counts @ _column(x.quanta if x else 0 for x in chosen)
    missing = counts @ _column(x is None for x in chosen)
    quanta[(size > capacity) | (missing > 0)] = NEVER
    return quanta


def _column(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)


class Knapsacks:
    """``T`` of one tensor parallel degree, before it is turned into a load.

    Unless ``per_layer``, the layers of a stage choose alike.

    ``quanta`` ``(stages, y from 1)`` is the least computation with at least ``y``
    micro-batches in flight; NEVER where nothing fits.
    """

    def __init__(
        self,
        counts: Ints,
        kinds: Sequence[Options],
        most_inflight: int,
        capacity: int,
        per_layer: bool,
        deadline: Deadline,
    ) -> None:
        self.counts, self.kinds, self.capacity = counts, kinds, capacity
        self.shared: list[Recompute] = []
        if not per_layer:
            self.shared = sorted({x.recompute for of in kinds for x in of})
        columns: list[Ints] = []
        for inflight in range(1, most_inflight + 1):
            deadline.check()
            columns.append(self._least(inflight))
            if (columns[-1] == NEVER).all():
                break
        # What fits with more in flight fits with fewer.
        table = np.minimum.accumulate(np.stack(columns)[::-1])[::-1]
        self.quanta = table.T

    def _least(self, inflight: int) -> Ints:
        """Return the least computation of every stage."""
        counts, kinds, capacity = self.counts, self.kinds, self.capacity
        if not self.shared:
            return greedy(counts, kinds, inflight, capacity).quanta
        columns = [
            alike(counts, kinds, recompute, inflight, capacity)
            for recompute in self.shared
        ]
        fewest: Ints = np.minimum.reduce(columns)
        return fewest

    def choices(self, stage: int, inflight: int) -> list[list[Recompute]]:
        """Return the recomputation of the layers of a stage, kind by kind."""
        row, kinds, capacity = self.counts[[stage]], self.kinds, self.capacity
        target = self.quanta[stage, inflight - 1]
        while inflight < self.quanta.shape[1] and (
            self.quanta[stage, inflight] == target
        ):
            inflight += 1
        for recompute in self.shared:
            if alike(row, kinds, recompute, inflight, capacity)[0] == target:
                return [[recompute] * int(n) for n in row[0]]
        chosen = greedy(row, kinds, inflight, capacity)
        by_kind: list[list[Recompute]] = []
        for options, count, small in zip(
            kinds, row[0], chosen.smallest[0], strict=True
        ):
            by_kind.append([])
            if count:
                fastest, smallest = extremes(options, inflight)
                by_kind[-1] += [smallest.recompute] * int(small)
                by_kind[-1] += [fastest.recompute] * int(count - small)
        return by_kind


@dataclass(frozen=True)
class Way:
    """Degrees that a stage may have, and what it takes with them.

    ``strategy`` has its degrees, with any recompute. ``load_ns`` ``(stages, y from 1)``
    rises in ``y``; it is infinite where it does not fit, as it does beyond the last
    ``y``.
    """

    strategy: Strategy
    knapsacks: Knapsacks
    kind_of: tuple[int, ...]
    load_ns: Floats

    @property
    def devices(self) -> int:
        """Devices of a stage."""
        return self.strategy.devices

    @property
    def dp(self) -> int:
        """Ranks ``d`` of a stage in a replica."""
        return self.strategy.dp


def make_ways(
    model: CostModel, stages: Stages, case: BatchSplit, deadline: Deadline
) -> list[Way]:
    """Return every ``(t, d)`` with the loads of all stages.

    Raises ``OutOfTimeError`` if time runs out.
    """
    per_layer = not one_strategy_per_stage(model.problem)
    grouped: dict[tuple[tuple[Options, ...], tuple[int, ...]], int] = {}
    ways = []
    for choices in downsets.least_degrees(
        case_strategies(model.problem, case),
        key=lambda s: (s.tp, s.dp),
        rest=lambda s: (s.cp, s.ep, s.zero),
    ):
        kinds, kind_of, weights = _kinds(model, case, choices)
        strategy = choices[0]
        ranks = strategy.dp + case.devices - strategy.devices
        longest = ceil_div(min(ranks, _most_ranks(model, case)), strategy.dp)
        key = (kinds, kind_of)
        grouped[key] = max(longest, grouped.get(key, 0))
        ways.append((strategy, key, longest, weights))
    cluster = model.problem.cluster
    solved = {}
    for (kinds, kind_of), longest in grouped.items():
        counts = np.stack(
            [stages.sums([of == kind for of in kind_of]) for kind in range(len(kinds))],
            axis=1,
        )
        solved[kinds, kind_of] = Knapsacks(
            counts,
            kinds,
            longest,
            cluster.memory_bytes() - cluster.reserve_bytes(),
            per_layer,
            deadline,
        )
    return [
        Way(
            strategy,
            solved[key],
            key[1],
            _loads(
                *(model, stages, case, strategy, weights),
                solved[key].quanta[:, :longest],
            ),
        )
        for strategy, key, longest, weights in ways
    ]


def _kinds(
    model: CostModel, case: BatchSplit, choices: Sequence[Strategy]
) -> tuple[tuple[Options, ...], tuple[int, ...], list[int]]:
    """Return the kinds of layers, the kind of every layer, its weights."""
    numbers: dict[Options, int] = {}
    kind_of, weights = [], []
    num_layers = len(model.problem.graph.layers)
    max_bytes = MAX_BYTES // (2 * num_layers * (case.devices + 1))
    for layer in range(num_layers):
        options = []
        held = 0
        for strategy in choices:
            terms = front_terms(model, case, layer, strategy)
            if terms is not None:
                held = downsets.weight_bytes(model, layer, strategy, case.micro_batch)
                options.append(
                    Option(
                        terms.forward + terms.backward,
                        min(terms.kept_bytes, max_bytes),
                        min(terms.static_bytes, max_bytes),
                        strategy.recompute,
                    )
                )
        kind_of.append(numbers.setdefault(tuple(options), len(numbers)))
        weights.append(held)
    return tuple(numbers), tuple(kind_of), weights


def _loads(
    model: CostModel,
    stages: Stages,
    case: BatchSplit,
    strategy: Strategy,
    weights: Sequence[int],
    quanta: Ints,
) -> Floats:
    """Return the loads of all stages; ns, shape (stages, y)."""
    ranks = strategy.dp if model.rules.round_robin else 1
    quantum_ns = model.problem.quantum_ps / 1000
    load = quanta.astype(np.float64) * (quantum_ns / ranks)
    load[quanta == NEVER] = np.inf
    bandwidth = downsets.flat_bandwidth_bytes_per_s(model)
    # What crosses the boundaries of a stage, both ways.
    ends = model.transfers.edge_ends(strategy.tp, case.micro_batch)
    size = stages.entering([at_target for *_, at_target in ends])
    size = size + stages.leaving([at_source for *_, at_source, _ in ends])
    edges_ns = size / (strategy.data_ranks * bandwidth) * NS_PER_S
    sharers = case.replicas * strategy.data_ranks
    shared = 4 * (sharers - 1) / sharers * stages.sums(weights)
    sync_ns = shared / (case.num_micro_batches * bandwidth) * NS_PER_S
    load += (edges_ns + sync_ns)[:, None]
    return load


class Placed(NamedTuple):
    """A stage of a plan: which, how, and micro-batches in flight."""

    stage: int
    way: Way
    inflight: int

    @property
    def load_ns(self) -> float:
        """Its load."""
        return float(self.way.load_ns[self.stage, self.inflight - 1])

    def strategies(self, layers: Sequence[int]) -> list[Strategy]:
        """Return the strategies of its layers, by position."""
        way = self.way
        choices = way.knapsacks.choices(self.stage, self.inflight)
        return [
            replace(way.strategy, recompute=choices[way.kind_of[layer]].pop(0))
            for layer in layers
        ]


class PiperPlan(NamedTuple):
    """A plan: its largest load and its stages in pipeline order."""

    load_ns: float
    stages: list[Placed]


class Program:
    """The least largest load.

    ``most_ranks`` is the most ``Σ d``, ``counts`` are the allowed numbers of stages;
    ``None`` allows every number.
    """

    def __init__(
        self,
        stages: Stages,
        ways: Sequence[Way],
        num_devices: int,
        most_ranks: int,
        counts: Sequence[int] | None,
        deadline: Deadline,
    ) -> None:
        self.stages, self.ways = stages, ways
        self.pipelines = Pipelines(
            stages.sets,
            [Degrees(way.dp, way.devices) for way in ways],
            num_devices,
            most_ranks,
            counts,
            deadline.check,
        )

    def best(self, upper_ns: float) -> PiperPlan | None:
        """Return the best plan with a largest load below a bound."""
        best = self.within(float(np.nextafter(upper_ns, 0)))
        if best is None:
            return None
        # Bisect over values until few loads are left, then over those.
        low = 0.0
        while (best.load_ns - low) * 64 > best.load_ns:
            middle = (low + best.load_ns) / 2
            better = self.within(middle)
            if better is None:
                low = middle
            else:
                best = better
        loads = self._loads_between(low, best.load_ns)
        first, end = 0, len(loads)
        while first < end:
            middle_load = float(loads[(first + end) // 2])
            better = self.within(middle_load)
            if better is None:
                first = (first + end) // 2 + 1
            else:
                best = better
                end = int(np.searchsorted(loads, better.load_ns))
        return best

    def _loads_between(self, low_ns: float, high_ns: float) -> Floats:
        return np.unique(
            np.concatenate(
                [
                    way.load_ns[(way.load_ns > low_ns) & (way.load_ns < high_ns)]
                    for way in self.ways
                ]
            )
        )

    def within(self, limit_ns: float) -> PiperPlan | None:
        """Return a plan with loads of at most a limit, or ``None``.

        The one with the fewest devices, and the least ``Σ d`` on those.
        """
        # Largest Σ d behind every stage, -1 where it takes too long anyway.
        max_ranks = np.full((len(self.ways), self.stages.count), -1)
        for index, way in enumerate(self.ways):
            inflight = (way.load_ns <= limit_ns).sum(axis=1)
            some = inflight > 0
            max_ranks[index, some] = way.dp * (inflight[some] - 1)
        placed = [
            Placed(stage, self.ways[index], inflight)
            for stage, index, inflight in self.pipelines.find(max_ranks) or ()
        ]
        if not placed:
            return None
        return PiperPlan(max(stage.load_ns for stage in placed), placed)
