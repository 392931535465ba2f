"""Plans timed pass by pass: few are enumerated, many are bounded by work.

The step time of interleaved plans, and of schedules that split backward
passes, is a critical path that no linear model here has. Where a job has few
such plans they are built as :mod:`formulations.brute` builds them, and scored:
that is a proof. Where it has many, an engine bounds them by an integer
program of its own. With ``x_ks`` layers of kind ``k`` under strategy ``s``,
``n_s`` its devices, ``M`` micro-batches and ``P`` devices of capacity ``C``,

=============================================  =========================
``P T >= min Σ n_s (M τ_ks + Y_ks) x_ks``      the work of all devices
``Σ_s x_ks = c_k``                             all layers run
``Σ n_s (static_ks + kept_ks) x_ks <= P C``    what they hold together
=============================================  =========================

``τ`` and ``Y`` have no communication, which no place and no pairing of passes makes
shorter: what hides in a pair is communication. A block runs its chunks ``M`` times and
then syncs, so ``T >= M τ_r + Y_r``; with its devices ``n_r``, of which there are ``P``
together, that is the first line. While a micro-batch is at the last chunk of a block
the block keeps what it kept for it on all others, which is the third one. The longest
layer alone, and one micro-batch there and back, are bounds too. Where gradients of
weights may wait, the way back is without them: the least over the types of devices, as
a block of several takes no less than one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from formulations.brute import Choice, PlanSpace
from nest.cost.even import even_plan
from nest.cost.model import CostModel, LayerTerms
from nest.cost.schedules import LISTED, schedule_of
from nest.cost.score import score
from nest.cost.space import BatchSplit, Runtime
from nest.errors import InvalidPlanError, UnsupportedProblemError
from nest.ir.job import SPLIT_BACKWARD
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import Deadline, OutOfTimeError, Progress, Report
from nest.units import ceil_div

#: Plans that are enumerated at most; more are bounded.
MAX_PLANS = 20_000

#: Plans with even chunks that are scored at most where they are not.
MAX_TRIED = 200


class LayerChoiceProgram(NamedTuple):
    """An integer program: which options the layers of every kind take."""

    #: Layers of every kind, ``c_k``.
    counts: tuple[int, ...]
    #: Device-quanta and device-bytes of the options of a layer of each kind.
    costs: tuple[tuple[int, ...], ...]
    memory: tuple[tuple[int, ...], ...]
    #: Device-bytes of all devices.
    capacity: int

    def priced(self, numerator: int, denominator: int) -> int:
        """Return the Lagrangian bound at a price of device-bytes, exactly.

        ``⌈Σ c_k min_s (cost + λ memory) - λ capacity⌉`` for the price ``λ``,
        a quotient of whole numbers.
        """
        total = -numerator * self.capacity
        for count, costs, memory in zip(
            self.counts, self.costs, self.memory, strict=True
        ):
            total += count * min(
                cost * denominator + numerator * size
                for cost, size in zip(costs, memory, strict=True)
            )
        return ceil_div(total, denominator)


#: Returns what the layers take at least, ``None`` if they do not fit; 0 where
#: time does not allow more.
LeastWork = Callable[[LayerChoiceProgram, Deadline], int | None]


@dataclass(frozen=True)
class TimedPlans:
    """What is known of plans timed pass by pass."""

    #: The best plan, here or before, and its step time.
    plan: Plan | None
    step_quanta: int | None
    #: What no such plan is faster than; ``None`` if there is none.
    bound: int | None
    #: Whether time ended the search.
    timed_out: bool = False


def timed_only(problem: Problem) -> Problem | None:
    """Return the problem with no other plans, ``None`` if it has none."""
    job = problem.job
    if job.schedule in LISTED:
        return problem
    virtual = tuple(v for v in job.virtual_stages if v > 1)
    if not virtual:
        return None
    return replace(problem, job=replace(job, virtual_stages=virtual))


def has_others(problem: Problem) -> bool:
    """Whether there are plans whose step time is a sum of paces."""
    job = problem.job
    return job.schedule not in LISTED and 1 in job.virtual_stages


@dataclass
class TimedSearch:
    """The search of all plans of a problem that are timed pass by pass.

    The problem has such plans only, and ``name`` is that of the solver. ``least_work``
    is the engine, and ``best`` a plan to beat, with its step time.
    """

    problem: Problem
    model: CostModel
    name: str
    deadline: Deadline
    report: Report
    least_work: LeastWork
    best: Plan | None = None
    best_quanta: int | None = None
    _works: dict[object, tuple[int, list[Strategy]] | None] = field(
        default_factory=dict
    )

    def run(self) -> TimedPlans:
        """Enumerate, or bound."""
        space = PlanSpace(self.problem, self.model, self.deadline)
        try:
            try:
                space.count(MAX_PLANS)
            except UnsupportedProblemError:
                return self._bound(space)
            for plan in space.plans():
                self.deadline.check()
                self._offer(replace(plan, solver=self.name))
        except OutOfTimeError:
            return TimedPlans(self.best, self.best_quanta, 0, timed_out=True)
        return TimedPlans(self.best, self.best_quanta, self.best_quanta)

    def _offer(self, plan: Plan) -> None:
        """Score a plan, and keep it if it is the best one."""
        verdict = score(self.problem, plan, self.model)
        if verdict.feasible and (
            self.best_quanta is None or verdict.step_quanta < self.best_quanta
        ):
            self.best, self.best_quanta = plan, verdict.step_quanta
            self.report(Progress(plan=plan, claimed_quanta=self.best_quanta))

    def _bound(self, space: PlanSpace) -> TimedPlans:
        """Bound all choices, then try even chunks, the best choices first."""
        cases: list[tuple[int, int, Choice, list[int], list[Strategy]]] = []
        for choice in space.choices():
            self.deadline.check()
            counts = sorted(choice.stage_counts) or [choice.num_blocks]
            schedule = schedule_of(
                self.problem.job.schedule, choice.runtime.virtual_stages
            )
            counts = [
                count
                for count in counts
                if schedule.why_not(count, choice.split.num_micro_batches) is None
            ]
            bound_and_strategies = self._work(
                choice.split, choice.runtime, choice.strategies
            )
            if bound_and_strategies is not None and counts:
                cases.append(
                    (
                        bound_and_strategies[0],
                        len(cases),
                        choice,
                        counts,
                        bound_and_strategies[1],
                    )
                )
        cases.sort(key=lambda case: case[:2])
        bound = min((case[0] for case in cases), default=None)
        if self.best_quanta is not None and bound is not None:
            bound = min(bound, self.best_quanta)
        tried = 0
        for case_bound, _, choice, counts, uniform in cases:
            if self.best_quanta is not None and case_bound >= self.best_quanta:
                break
            for plan in self._even(choice, counts, uniform):
                if self.deadline.passed or tried == MAX_TRIED:
                    return TimedPlans(
                        *(self.best, self.best_quanta, bound),
                        timed_out=tried < MAX_TRIED,
                    )
                tried += 1
                try:
                    self._offer(plan)
                except InvalidPlanError:
                    # Rules about whole plans that even chunks do not keep.
                    continue
        return TimedPlans(self.best, self.best_quanta, bound)

    def _even(
        self, choice: Choice, counts: list[int], uniform: list[Strategy]
    ) -> Iterator[Plan]:
        """Yield plans with one strategy, cut in proportion to the load."""
        split, runtime = choice.split, choice.runtime
        for blocks in counts:
            for strategy in uniform:
                if blocks * strategy.devices <= split.devices:
                    plan = even_plan(
                        *(self.problem, split, runtime, strategy, blocks),
                        self._terms(split, runtime, strategy),
                    )
                    yield replace(plan, solver=self.name)

    @cached_property
    def _on_types(self) -> list[CostModel]:
        """The model on devices of each type alone."""
        count = len(self.problem.cluster.types)
        if count == 1:
            return [self.model]
        return [self.model.on_type(device_type) for device_type in range(count)]

    def _terms(
        self,
        split: BatchSplit,
        runtime: Runtime,
        strategy: Strategy,
        model: CostModel | None = None,
    ) -> list[LayerTerms | None]:
        """Return the terms of all layers without communication."""
        model = model or self.model
        return [
            model.layer_terms(
                *(layer, strategy, split.micro_batch, None, runtime), split.replicas
            )
            for layer in range(len(self.problem.graph.layers))
        ]

    def _work(
        self, split: BatchSplit, runtime: Runtime, strategies: tuple[Strategy, ...]
    ) -> tuple[int, list[Strategy]] | None:
        """Return a bound on ``T`` and the strategies that suit all layers.

        ``None`` if the layers fit nowhere.
        """
        key = split, runtime, strategies
        if key not in self._works:
            self._works[key] = self._price(split, runtime, strategies)
        return self._works[key]

    def _price(
        self, split: BatchSplit, runtime: Runtime, strategies: tuple[Strategy, ...]
    ) -> tuple[int, list[Strategy]] | None:
        layers, count = self.problem.graph.layers, split.num_micro_batches
        capacity = self.problem.cluster.memory_bytes()
        first = {layer.kind: i for i, layer in enumerate(layers)}
        kinds = [layer.kind for layer in layers]
        options: dict[str, set[tuple[int, int]]] = {k: set() for k in first}
        alone: dict[str, list[int]] = {kind: [] for kind in first}
        there_and_back = {kind: [] for kind in first}  # type: dict[str, list[int]]
        apart = self.problem.job.schedule in SPLIT_BACKWARD
        uniform = []
        for strategy in strategies:
            terms = self._terms(split, runtime, strategy)
            if all(term is not None for term in terms):
                uniform.append(strategy)
            by_type = [
                self._terms(split, runtime, strategy, model)
                for model in (self._on_types if apart else [self.model])
            ]
            for kind, layer in first.items():
                term = terms[layer]
                if term is None:
                    continue
                held = term.static_bytes + term.kept_bytes
                if held + term.working_bytes > capacity:
                    continue
                busy = (
                    count * (term.forward + term.backward)
                    + term.sync
                    - term.hideable_sync
                )
                size = strategy.devices
                options[kind].add((size * held, size * busy))
                alone[kind].append(busy)
                there_and_back[kind].append(
                    min(
                        x.forward + x.backward - (x.weight_backward if apart else 0)
                        for x in (terms_of_type[layer] for terms_of_type in by_type)
                        if x is not None
                    )
                )
        if not all(options.values()):
            return None
        work = _undominated(
            tuple(kinds.count(kind) for kind in first),
            [options[kind] for kind in first],
            split.devices * capacity,
        )
        min_work = self.least_work(work, self.deadline)
        if min_work is None:
            return None
        through = sum(min(there_and_back[kind]) for kind in kinds)
        heaviest = max(min(terms_of_type) for terms_of_type in alone.values())
        bound = max(ceil_div(min_work, split.devices), through, heaviest)
        return bound, uniform


def _undominated(
    counts: tuple[int, ...], options: list[set[tuple[int, int]]], capacity: int
) -> LayerChoiceProgram:
    """Return the program with the options that no other one beats."""
    costs, memory = [], []
    for pairs in options:
        frontier: list[tuple[int, int]] = []
        for size, cost in sorted(pairs):
            if not frontier or cost < frontier[-1][1]:
                frontier.append((size, cost))
        memory.append(tuple(size for size, _ in frontier))
        costs.append(tuple(cost for _, cost in frontier))
    return LayerChoiceProgram(counts, tuple(costs), tuple(memory), capacity)
