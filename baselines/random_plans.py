"""``random``: the best of many random plans, the floor for every planner.

No publication; comparisons of placement planners have the same floor.

Search space
    All plans that are not interleaved, with one strategy per stage, each
    stage a run of the layers in one topological order.

Search
    A plan is drawn by choosing ``(R, B)``, then a number of stages, the cuts, and a
    strategy for each stage in pipeline order, uniformly among those that every layer of
    the stage has a cost for. The number of stages is log-uniform: a range ``2^i ..
    2^(i+1) - 1`` is drawn first, then a number inside it. A stage takes at most twice
    its even share of the devices that are left, so that the first ones do not use them
    up. Under a preset whose stages have to be alike, one strategy is drawn for all.
    What breaks a counting rule or exceeds the memory is drawn again, until ``plans``
    plans fit or ``draws`` were drawn.

Objective
    The shared step time, of plans that fit.

Ignored
    Nothing: it scores what it draws, and learns nothing from it.

Deviations
    None, as there is nothing to deviate from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

from baselines.common import (
    Planner,
    Search,
    case_strategies,
    chain,
    in_flight,
    make_plan,
    ranges,
)
from nest.cost.model import CostModel
from nest.cost.schedules import SCHEDULES
from nest.cost.score import score
from nest.cost.space import BatchSplit, batch_splits, is_uniform, stage_counts
from nest.errors import InvalidPlanError
from nest.ir.plan import Strategy
from nest.ir.problem import Problem
from nest.solvers.base import Capabilities, Progress, SolverOutput

NUM_PLANS = 100
NUM_DRAWS = 100_000

#: Returns the strategies that all layers ``[start, stop)`` of the chain have
#: a cost for, by ascending number of devices.
Usable = Callable[[int, int], list[Strategy]]


class RandomSolver(Planner):
    """Draw plans, keep the best one that fits."""

    name = "random"
    shared_strategy = "as it is"
    capabilities = Capabilities(
        exact=False,
        anytime=True,
        any_schedule=True,
        method="best of many random plans that fit",
        options={
            "plans": (f"stop after this many plans that fit (default {NUM_PLANS})"),
            "draws": f"stop after this many draws (default {NUM_DRAWS})",
        },
    )

    def run(self, search: Search) -> SolverOutput:
        """Return the best of the plans drawn."""
        problem, model = search.problem, search.model
        num_plans = search.count("plans", NUM_PLANS)
        num_draws = search.count("draws", NUM_DRAWS)
        draw = random.Random(search.options.seed)
        choices = drawable(problem, model)
        if not choices:
            return search.answer("no plan obeys the rules of the job")
        room = MemoryFilter(model)
        best_quanta = num_fit = num_drawn = 0
        while num_fit < num_plans and num_drawn < num_draws:
            if search.out_of_time():
                break
            num_drawn += 1
            split, usable, counts = draw.choice(choices)
            chosen = draw_stages(problem, draw, split, usable, counts)
            if chosen is None or room.lacks(split, chosen):
                continue
            plan = make_plan(problem, split, chosen)
            try:
                verdict = score(problem, plan, model)
            except InvalidPlanError:
                continue
            if not verdict.feasible:
                continue
            num_fit += 1
            if search.plan is None or verdict.step_quanta < best_quanta:
                search.plan, best_quanta = plan, verdict.step_quanta
                search.report(Progress(plan=plan, claimed_quanta=best_quanta))
        return search.answer(f"{num_fit} plans that fit in {num_drawn} draws")


class MemoryFilter:
    """Tells quickly that stages do not fit; most draws do not."""

    def __init__(self, model: CostModel) -> None:
        self.model, self.problem = model, model.problem
        self.order = chain(model.problem)
        self._sums = cache(self._prefix_sums)

    def lacks(
        self, split: BatchSplit, stages: Sequence[tuple[int, int, Strategy]]
    ) -> bool:
        """Whether a stage exceeds the memory even without working sets.

        Terms without a block have the same sizes. Presets other than
        ``standard``, and schedules that are timed pass by pass, count what
        is in flight in ways of their own, but at least once.
        """
        capacity = self.problem.cluster.memory_bytes()
        counted = self.problem.preset == "standard"
        counted &= self.problem.job.schedule in SCHEDULES
        for index, (start, stop, strategy) in enumerate(stages):
            num_kept = 1
            if counted:
                num_kept = in_flight(self.problem, split, len(stages) - index)
            sums = self._sums(split.micro_batch, strategy)
            static_bytes, kept_bytes = (
                after - before
                for before, after in zip(sums[start], sums[stop], strict=True)
            )
            if static_bytes + num_kept * kept_bytes > capacity:
                return True
        return False

    def _prefix_sums(
        self, micro_batch: int, strategy: Strategy
    ) -> list[tuple[int, int]]:
        """Return static and kept bytes of the first layers of the chain."""
        static_bytes = kept_bytes = 0
        sums = [(0, 0)]
        for position in self.order:
            terms = self.model.layer_terms(position, strategy, micro_batch, None)
            if terms is not None:
                static_bytes += terms.static_bytes
                kept_bytes += terms.kept_bytes
            sums.append((static_bytes, kept_bytes))
        return sums


def drawable(
    problem: Problem, model: CostModel
) -> list[tuple[BatchSplit, Usable, list[int]]]:
    """Return the cases to draw from.

    Each with the strategies of every range of layers, and the numbers of stages that a
    plan can have. Cases in which some layer has no strategy are left out.
    """
    cases = []
    for split in batch_splits(problem):
        usable = usable_strategies(problem, model, split)
        counts = stage_counts(problem, split)
        if counts and all(usable(i, i + 1) for i in range(len(problem.graph.layers))):
            cases.append((split, usable, counts))
    return cases


def usable_strategies(problem: Problem, model: CostModel, split: BatchSplit) -> Usable:
    """Return a function from a range of the chain to its strategies."""
    order = chain(problem)
    layers = problem.graph.layers
    first_of = {layer.kind: i for i, layer in enumerate(layers)}
    allowed = case_strategies(problem, split)
    by_kind = {
        kind: {
            strategy
            for strategy in allowed
            if model.available(position, strategy, split.micro_batch) is None
        }
        for kind, position in first_of.items()
    }

    @cache
    def shared(kinds: frozenset[str]) -> list[Strategy]:
        common = set.intersection(*(by_kind[kind] for kind in kinds))
        return [strategy for strategy in allowed if strategy in common]

    return lambda start, stop: shared(
        frozenset(layers[i].kind for i in order[start:stop])
    )


def draw_stages(
    problem: Problem,
    draw: random.Random,
    split: BatchSplit,
    usable: Usable,
    counts: list[int],
) -> list[tuple[int, int, Strategy]] | None:
    """Return the stages of a random plan, ``None`` if the draw fails.

    They obey all rules but those of the preset about all stages together;
    whether they fit is not asked.
    """
    num_layers = len(problem.graph.layers)
    num_stages = _draw_count(draw, counts)
    cuts = sorted(draw.sample(range(1, num_layers), num_stages - 1))
    shared: list[Strategy] | None = None
    if is_uniform(problem):
        fitting = _at_most(usable(0, num_layers), split.devices // num_stages)
        if not fitting:
            return None
        shared = [draw.choice(fitting)]
    chosen: list[tuple[int, int, Strategy]] = []
    free = split.devices
    for index, (start, stop) in enumerate(ranges([*cuts, num_layers])):
        remaining = num_stages - index
        limit = min(2 * free // remaining, free - (remaining - 1))
        fitting = shared or _at_most(usable(start, stop), limit)
        if not fitting:
            return None
        strategy = draw.choice(fitting)
        free -= strategy.devices
        chosen.append((start, stop, strategy))
    return chosen


def _draw_count(draw: random.Random, counts: list[int]) -> int:
    """Return a number of stages, every power of two as likely as another."""
    buckets = sorted({count.bit_length() for count in counts})
    bucket = draw.choice(buckets)
    return draw.choice([c for c in counts if c.bit_length() == bucket])


def _at_most(usable: list[Strategy], devices: int) -> list[Strategy]:
    return [strategy for strategy in usable if strategy.devices <= devices]
