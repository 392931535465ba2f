"""Plain enumeration: every plan is built and scored, the best one wins.

The reference of all exact solvers. It must not be clever: it knows the counting rules
of :mod:`nest.cost.space` and what a stage is, and leaves everything else to ``score``.
Whatever else a job allows (a strategy per layer, interleaved schedules, overlap, the
distributed optimizer) it enumerates too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod
from typing import ClassVar, NamedTuple

from nest.cost.model import CostModel
from nest.cost.schedules import schedule_of
from nest.cost.score import score
from nest.cost.space import (
    BatchSplit,
    Runtime,
    batch_splits,
    families,
    max_stages,
    repeated_kinds,
    runtimes,
    strategies,
    why_not_overlap,
)
from nest.errors import InvalidOptionError, UnsupportedProblemError
from nest.ir.plan import Placement, Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import (
    EXTENSIONS,
    Capabilities,
    Deadline,
    Limit,
    OutOfTimeError,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    Status,
    ignore_progress,
)
from nest.solvers.warm_start import check_warm_start
from nest.util.text import whole_number

#: Plans that are enumerated at most, unless the option says otherwise.
MAX_PLANS = 200_000

#: Stages that are looked at while counting, at most.
MAX_COUNT_STEPS = 300_000


class BruteSolver:
    """Enumerate all plans, a strategy per stage or layer, and score each."""

    name: ClassVar[str] = "brute"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=True,
        anytime=True,
        warm_start=True,
        searches=frozenset(EXTENSIONS) - {"order"},
        any_schedule=True,
        method="plain enumeration of every plan",
        options={
            "max_plans": (f"refuse problems with more plans (default {MAX_PLANS})")
        },
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return ``None``: only the number of plans can be too large."""
        return None

    def solve(
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        """Score every plan and return the first of the best.

        Raises ``UnsupportedProblemError`` if there are more plans than ``max_plans``;
        ``InvalidOptionError`` if ``max_plans`` is no positive integer;
        ``InvalidPlanError`` if the warm start does not fit.
        """
        deadline = Deadline(options.time_limit_s)
        max_plans = _max_plans(options)
        model = CostModel(problem)
        best: Plan | None = None
        best_quanta: int | None = None
        num_plans = num_scored = 0
        timed_out = False

        if options.warm_start is not None:
            best = options.warm_start
            best_quanta = check_warm_start(problem, best, model)
            report(Progress(plan=best, claimed_quanta=best_quanta))
        try:
            space = PlanSpace(problem, model, deadline)
            num_plans = space.count(max_plans)
            for plan in space.plans():
                deadline.check()
                num_scored += 1
                verdict = score(problem, plan, model)
                if verdict.feasible and (
                    best_quanta is None or verdict.step_quanta < best_quanta
                ):
                    best, best_quanta = plan, verdict.step_quanta
                    report(Progress(plan=best, claimed_quanta=best_quanta))
        except OutOfTimeError:
            timed_out = True

        extra = {"num_plans": num_plans, "num_scored": num_scored}
        if timed_out:
            return SolverOutput(
                status=Status.NO_SOLUTION if best is None else Status.FEASIBLE,
                plan=best,
                claimed_quanta=best_quanta,
                limit=Limit.TIME,
                detail=f"scored {num_scored} of {num_plans or 'all'} plans",
                extra=extra,
            )
        if best is None:
            return SolverOutput(
                status=Status.INFEASIBLE,
                detail=f"none of the {num_plans} plans is feasible",
                extra=extra,
            )
        return SolverOutput(
            status=Status.OPTIMAL,
            plan=best,
            claimed_quanta=best_quanta,
            lower_bound_quanta=best_quanta,
            extra=extra,
        )


def _max_plans(options: SolveOptions) -> int:
    text = options.extra.get("max_plans", str(MAX_PLANS))
    value = whole_number(text)
    if not value:
        raise InvalidOptionError(
            f"brute: expected max_plans to be an integer >= 1, got {text!r}"
        )
    return value


@dataclass(frozen=True)
class Choice:
    """``(R, B)``, strategies that stages may use, and how they run."""

    #: The case, what stages may mix, and how plans run.
    split: BatchSplit
    strategies: tuple[Strategy, ...]
    runtime: Runtime
    #: Numbers of stages of plans with one chunk per block.
    stage_counts: frozenset[int] = frozenset()
    #: ``S`` of plans with several chunks per block, else 0.
    num_blocks: int = 0
    #: Where chunks sit.
    placement: Placement = "loop"

    def block_of(self, chunk: int) -> int:
        """Return the block of a chunk, both from 0."""
        if self.placement == "v":
            return min(chunk, 2 * self.num_blocks - 1 - chunk)
        return chunk % self.num_blocks

    @property
    def num_stages(self) -> int | None:
        """How many stages, or chunks, if that is known."""
        if self.num_blocks:
            return self.num_blocks * self.runtime.virtual_stages
        return min(self.stage_counts) if len(self.stage_counts) == 1 else None


class _Ways(NamedTuple):
    """Ways to run a stage that use as much."""

    #: What they use; ranks only where these run micro-batches in turn.
    devices: int
    ranks: int
    #: Strategies to choose from: of every layer in file order, or once for all of them.
    options: tuple[tuple[Strategy, ...], ...]


class _State(NamedTuple):
    """The first stages of a plan, as far as the others depend on them."""

    #: Their layers.
    closed: int
    #: What they leave of a replica.
    devices: int
    ranks: int
    #: How many they are.
    number: int = 0
    #: Devices of the blocks met so far, if they run several chunks.
    widths: tuple[int, ...] = ()


class PlanSpace:
    """All plans of a problem: counted, and listed one by one.

    Sets of layers are bit masks over positions in the graph. A stage is the
    difference of two predecessor-closed sets.

    The deadline is checked all along: any method may raise ``OutOfTimeError``.
    """

    def __init__(self, problem: Problem, model: CostModel, deadline: Deadline) -> None:
        self.problem = problem
        self.model = model
        self.deadline = deadline
        layers = problem.graph.layers
        self.full = (1 << len(layers)) - 1
        self._predecessors = [0] * len(layers)
        for source, target, _ in problem.graph.index_edges():
            self._predecessors[target] |= 1 << source
        #: Layers that no two stages may part.
        self._together = sum(
            1 << i
            for i, layer in enumerate(layers)
            if layer.kind in problem.job.one_stage
        )
        self.next_sets = cache(self._next_sets)
        self._available = cache(self._runnable)
        self._known_ways: dict[object, list[_Ways]] = {}
        rules = model.rules
        self._in_turn = rules.round_robin
        self._per_layer = (
            problem.job.granularity == "layer" or rules.recompute_per_layer
        )
        kinds = repeated_kinds(problem) if problem.job.even_layers else {}
        #: Layers of every kind of which stages have equal shares.
        self._even = [
            sum(1 << i for i, layer in enumerate(layers) if layer.kind == kind)
            for kind in kinds
        ]
        self._steps = self._ticks = 0

    def choices(self) -> Iterator[Choice]:
        """Yield ``(R, B)`` with strategies that the stages of a plan may mix.

        One per number of blocks where plans are interleaved.
        """
        for split in batch_splits(self.problem):
            every = strategies(self.problem, split.micro_batch)
            for runtime in runtimes(self.problem):
                yield from self._runs(split, runtime, every)

    def _runs(
        self, split: BatchSplit, runtime: Runtime, found: list[Strategy]
    ) -> Iterator[Choice]:
        """Yield the choices of one runtime."""
        job, virtual = self.problem.job, runtime.virtual_stages
        if runtime.distributed_optimizer:
            # ZeRO 0 and 1 are the same plan then; the lowest stands for both
            # where no rule is about it.
            zero = {min(job.zero)}
            if job.zero_with or "zero" in job.uniform:
                zero = set(job.zero)
            found = [s for s in found if s.zero in zero and s.zero <= 1]
        found = [
            strategy
            for strategy in found
            if why_not_overlap(self.problem, strategy, runtime.overlap) is None
        ]
        schedule = schedule_of(job.schedule, virtual)
        for family in families(self.problem, split, found, runtime):
            choice = Choice(
                *(split, family.strategies, runtime), placement=schedule.placement
            )
            if virtual == 1:
                yield replace(choice, stage_counts=frozenset(family.stage_counts))
                continue
            for num_blocks in family.stage_counts:
                reason = schedule.why_not(num_blocks, split.num_micro_batches)
                if num_blocks > 1 and reason is None:
                    yield replace(choice, num_blocks=num_blocks)

    def _next_sets(self, closed: int) -> list[int]:
        """Return every closed set that strictly contains ``closed``."""
        reached = {closed}
        frontier = [closed]
        while frontier:
            current = frontier.pop()
            for layer, needed in enumerate(self._predecessors):
                larger = current | 1 << layer
                if needed & ~current or larger in reached:
                    continue
                self._count_step()
                reached.add(larger)
                frontier.append(larger)
        together = self._together
        return sorted(
            found for found in reached - {closed} if found & together in (0, together)
        )

    def _runnable(self, strategy: Strategy, micro_batch: int) -> int:
        """Return the layers that are available under a strategy."""
        return sum(
            1 << layer
            for layer in range(len(self.problem.graph.layers))
            if self.model.available(layer, strategy, micro_batch) is None
        )

    def fits(self, stage: int, strategy: Strategy, micro_batch: int) -> bool:
        """Whether every layer of a stage is available under a strategy."""
        return not stage & ~self._available(strategy, micro_batch)

    def _ways(self, choice: Choice, stage: int) -> list[_Ways]:
        micro_batch = choice.split.micro_batch
        key = (micro_batch, choice.strategies, stage)
        if key not in self._known_ways:
            parts = [stage]
            if self._per_layer:
                bits = (1 << i for i in range(stage.bit_length()))
                parts = [bit for bit in bits if stage & bit]
            alike: dict[tuple[int, int], list[Strategy]] = {}
            for strategy in choice.strategies:
                ranks = strategy.dp if self._in_turn else 0
                alike.setdefault((strategy.devices, ranks), []).append(strategy)
            found = (
                _Ways(
                    *used,
                    tuple(
                        tuple(s for s in equals if self.fits(part, s, micro_batch))
                        for part in parts
                    ),
                )
                for used, equals in alike.items()
            )
            self._known_ways[key] = [ways for ways in found if all(ways.options)]
        return self._known_ways[key]

    def _following(
        self, choice: Choice, state: _State
    ) -> Iterator[tuple[int, _Ways, _State]]:
        """Yield every next stage: its layers, ways to run it, what is left.

        All chunks on a block have as many devices.
        """
        size = choice.num_blocks
        for closed in self.next_sets(state.closed):
            layers = closed & ~state.closed
            if not self._is_share(choice, layers):
                continue
            for ways in self._ways(choice, layers):
                self._tick()
                after = _State(
                    closed,
                    state.devices - ways.devices,
                    state.ranks - ways.ranks,
                    state.number + 1,
                    (*state.widths, ways.devices) if size else (),
                )
                if size and state.number >= size:
                    block = choice.block_of(state.number)
                    if state.widths[block] != ways.devices:
                        continue
                    after = after._replace(devices=state.devices, widths=state.widths)
                if after.devices >= 0 and after.ranks >= 0:
                    yield layers, ways, after

    def _is_share(self, choice: Choice, layers: int) -> bool:
        """Whether a stage has the share of layers that all have to have."""
        number = choice.num_stages
        return not self._even or all(
            number is not None
            and number * (layers & kind).bit_count() == kind.bit_count()
            for kind in self._even
        )

    def _first(self, choice: Choice) -> _State:
        ranks = choice.split.num_micro_batches if self._in_turn else 0
        return _State(0, choice.split.devices, ranks)

    def _ended(self, choice: Choice, state: _State) -> bool | None:
        """Return whether a plan is legal, or ``None`` if it is no plan yet."""
        whole = state.closed == self.full
        if choice.num_blocks:
            max_chunks = choice.num_blocks * choice.runtime.virtual_stages
            return whole if state.number == max_chunks else None
        if not whole and state.number < max(choice.stage_counts):
            return None
        return whole and state.number in choice.stage_counts

    def count(self, max_plans: int) -> int:
        """Return the number of plans.

        Raises ``UnsupportedProblemError`` if there are more than ``max_plans``.
        """
        total = 0
        try:
            # Few devices per replica are quick to count.
            for choice in sorted(
                self.choices(), key=lambda choice: choice.split.devices
            ):
                total += self._count(choice, self._first(choice), {})
        except _TooMany:
            raise UnsupportedProblemError(
                f"brute: expected at most {max_plans} plans, got more than "
                f"{total} (counting was given up after {MAX_COUNT_STEPS} "
                f"steps); {_REMEDY}"
            ) from None
        if total > max_plans:
            raise UnsupportedProblemError(
                f"brute: expected at most {max_plans} plans, got {total}; "
                f"raise the option max_plans, or {_REMEDY}"
            )
        return total

    def _count(self, choice: Choice, state: _State, known: dict[_State, int]) -> int:
        """Count the ways to go on."""
        ended = self._ended(choice, state)
        if ended is not None:
            return int(ended)
        key = state
        split, num_counts = choice.split, len(choice.stage_counts)
        if not choice.num_blocks and num_counts >= max_stages(self.problem, split):
            key = state._replace(number=0)
        if key not in known:
            known[key] = 0
            for _, ways, after in self._following(choice, state):
                self._count_step()
                known[key] += prod(map(len, ways.options)) * self._count(
                    choice, after, known
                )
        return known[key]

    def _count_step(self) -> None:
        self._tick()
        self._steps += 1
        if self._steps > MAX_COUNT_STEPS:
            raise _TooMany

    def _tick(self) -> None:
        self._ticks += 1
        if self._ticks % 1024 == 0:
            self.deadline.check()

    def plans(self) -> Iterator[Plan]:
        """Yield every plan."""
        for choice in self.choices():
            runtime = choice.runtime
            for stages in self._plans(choice, self._first(choice)):
                yield Plan(
                    replicas=choice.split.replicas,
                    micro_batch=choice.split.micro_batch,
                    stages=stages,
                    virtual_stages=runtime.virtual_stages,
                    placement=choice.placement,
                    overlap=runtime.named_overlap,
                    distributed_optimizer=runtime.distributed_optimizer,
                    solver=BruteSolver.name,
                )

    def _plans(self, choice: Choice, state: _State) -> Iterator[tuple[Stage, ...]]:
        """Yield the remaining stages of every plan."""
        ended = self._ended(choice, state)
        if ended is not None:
            yield from [()] if ended else []
            return
        for layers, ways, after in self._following(choice, state):
            ids = [
                layer.id
                for position, layer in enumerate(self.problem.graph.layers)
                if layers >> position & 1
            ]
            for chosen in product(*ways.options):
                self._tick()
                stage = Stage.of(ids, chosen)
                for rest in self._plans(choice, after):
                    yield (stage, *rest)


class _TooMany(Exception):
    """The count took more steps than :data:`MAX_COUNT_STEPS`."""


_REMEDY = "use solver dp, cpsat or milp"
