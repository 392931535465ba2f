"""Plain enumeration: every plan is built and scored, the best one wins.

The reference of all exact solvers. It must not be clever: it knows the
counting rules of :mod:`nest.cost.space` and what a stage is, and leaves
everything else to ``score``. Whatever else a job allows (a strategy per
layer, interleaved schedules, overlap, the distributed optimiser) it enumerates
too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import ClassVar

from nest.cost.model import CostModel
from nest.cost.schedules import schedule_of
from nest.cost.score import score
from nest.cost.space import Case, Runtime, cases, runtimes, strategies
from nest.errors import InvalidOptionError, UnsupportedProblemError
from nest.ir.plan import OVERLAP, Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import (
    EXTENSIONS,
    Capabilities,
    Deadline,
    Limit,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    Status,
    ignore_progress,
)
from nest.solvers.warm_start import check_warm_start

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
        searches=frozenset(EXTENSIONS),
        method="plain enumeration of every plan",
        options={
            "max_plans": (
                f"refuse problems with more plans (default {MAX_PLANS})"
            ),
        },
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return ``None``: only the number of plans can be too large."""
        return None

    def solve(
        self,
        problem: Problem,
        options: SolveOptions,
        report: Report = ignore_progress,
    ) -> SolverOutput:
        """Score every plan and return the first of the best.

        Raises
        ------
        UnsupportedProblemError
            If there are more plans than ``max_plans``.
        InvalidOptionError
            If an option is unknown or no positive integer.
        InvalidPlanError
            If the warm start does not fit.
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
            if model.rules.round_robin:
                from formulations.turns import TurnsSpace

                space = TurnsSpace(problem, model, deadline)
            num_plans = space.count(max_plans)
            for plan in space.plans():
                if deadline.passed:
                    timed_out = True
                    break
                num_scored += 1
                verdict = score(problem, plan, model)
                if verdict.feasible and (
                    best_quanta is None or verdict.step_quanta < best_quanta
                ):
                    best, best_quanta = plan, verdict.step_quanta
                    report(Progress(plan=best, claimed_quanta=best_quanta))
        except _OutOfTime:
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
    for key in options.extra:
        if key not in BruteSolver.capabilities.options:
            raise InvalidOptionError(
                f"brute: expected option max_plans, got {key!r}; remove it"
            )
    text = options.extra.get("max_plans", str(MAX_PLANS))
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise InvalidOptionError(
            f"brute: expected max_plans to be an integer >= 1, got {text!r}"
        )
    return value


class _OutOfTime(Exception):
    """The time limit passed between two plans."""


@dataclass(frozen=True)
class _Choice:
    """``(R, B)``, strategies that stages may use, and how they run.

    ``num_blocks`` is ``S`` of interleaved plans, and 0 for the others, which
    have any number of stages.
    """

    case: Case
    strategies: tuple[Strategy, ...]
    runtime: Runtime
    num_blocks: int = 0


class PlanSpace:
    """All plans of a problem: counted, and listed one by one.

    Sets of layers are bit masks over positions in the graph. A stage is the
    difference of two predecessor-closed sets.

    Parameters
    ----------
    problem, model
        The problem and its cost model, which knows what is available.
    deadline
        Checked while counting.
    """

    def __init__(
        self, problem: Problem, model: CostModel, deadline: Deadline
    ) -> None:
        self.problem = problem
        self.model = model
        self.deadline = deadline
        layers = problem.graph.layers
        self.full = (1 << len(layers)) - 1
        self._predecessors = [0] * len(layers)
        for source, target, _ in problem.graph.index_edges():
            self._predecessors[target] |= 1 << source
        self._next: dict[int, list[int]] = {}
        self._available: dict[tuple[int, Strategy], int] = {}
        self._alternatives: dict[object, dict[int, int]] = {}
        self._per_layer = problem.job.granularity == "layer"
        self._counts = problem.job.pipeline_parallel
        self._steps = self._ticks = 0

    def choices(self) -> Iterator[_Choice]:
        """Yield ``(R, B)`` with its strategies.

        Where all stages share one strategy, each strategy is a choice of its
        own.
        """
        for case in cases(self.problem):
            found = strategies(self.problem, case.micro_batch)
            for runtime in runtimes(self.problem):
                for choice in self._runs(case, runtime, found):
                    if self.model.rules.one_strategy:
                        for strategy in found:
                            yield replace(choice, strategies=(strategy,))
                    else:
                        yield choice

    def _runs(
        self, case: Case, runtime: Runtime, found: list[Strategy]
    ) -> Iterator[_Choice]:
        """Yield the choices of one runtime, one per number of blocks."""
        if runtime.distributed_optimizer:
            # ZeRO 0 and 1 are the same plan then; the lowest stands for both.
            zero = min(self.problem.job.zero)
            found = [s for s in found if s.zero == zero <= 1]
        if runtime.virtual_stages == 1:
            yield _Choice(case, tuple(found), runtime)
            return
        num_layers = len(self.problem.graph.layers)
        most = min(
            num_layers // runtime.virtual_stages,
            case.devices,
            case.num_micro_batches,
        )
        schedule = schedule_of(
            self.problem.job.schedule, runtime.virtual_stages
        )
        for num_blocks in range(2, most + 1):
            reason = schedule.why_not(num_blocks, case.num_micro_batches)
            if reason is None and self.complete(num_blocks):
                yield _Choice(case, tuple(found), runtime, num_blocks)

    def complete(self, num_stages: int) -> bool:
        """Whether the job allows so many stages, or blocks."""
        return self._counts is None or num_stages in self._counts

    def next_sets(self, closed: int) -> list[int]:
        """Return every closed set that strictly contains ``closed``."""
        if closed not in self._next:
            reached = {closed}
            frontier = [closed]
            while frontier:
                current = frontier.pop()
                for layer, needed in enumerate(self._predecessors):
                    bit = 1 << layer
                    larger = current | bit
                    if needed & ~current or larger in reached:
                        continue
                    self._count_step()
                    reached.add(larger)
                    frontier.append(larger)
            reached.remove(closed)
            self._next[closed] = sorted(reached)
        return self._next[closed]

    def fits(self, stage: int, strategy: Strategy, micro_batch: int) -> bool:
        """Whether every layer of a stage is available under a strategy."""
        return not stage & ~self._available_mask(strategy, micro_batch)

    def _available_mask(self, strategy: Strategy, micro_batch: int) -> int:
        key = (micro_batch, strategy)
        if key not in self._available:
            self._available[key] = sum(
                1 << layer
                for layer in range(len(self.problem.graph.layers))
                if self.model.available(layer, strategy, micro_batch) is None
            )
        return self._available[key]

    def count(self, max_plans: int) -> int:
        """Return the number of plans.

        Raises
        ------
        UnsupportedProblemError
            If there are more than ``max_plans``.
        """
        total = 0
        try:
            # Few devices per replica are quick to count.
            for choice in sorted(
                self.choices(), key=lambda choice: choice.case.devices
            ):
                if choice.num_blocks:
                    total += self._count_chunks(choice, 0, (), 0, {})
                else:
                    total += self._count(choice, 0, choice.case.devices, 0, {})
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

    def _count(
        self,
        choice: _Choice,
        closed: int,
        devices_left: int,
        number: int,
        known: dict[tuple[int, ...], int],
    ) -> int:
        """Count the ways to go on after ``number`` stages."""
        if closed == self.full:
            return int(self.complete(number))
        if devices_left == 0:
            return 0
        key: tuple[int, ...] = (closed, devices_left)
        if self._counts is not None:
            key += (number,)
        if key not in known:
            total = 0
            for following in self.next_sets(closed):
                found = self.alternatives(choice, following & ~closed)
                for devices, ways in found.items():
                    if devices <= devices_left:
                        self._count_step()
                        total += ways * self._count(
                            choice,
                            following,
                            devices_left - devices,
                            number + 1,
                            known,
                        )
            known[key] = total
        return known[key]

    def _count_chunks(
        self,
        choice: _Choice,
        closed: int,
        widths: tuple[int, ...],
        number: int,
        known: dict[tuple[int, tuple[int, ...], int], int],
    ) -> int:
        """Count interleaved plans with ``number`` chunks done.

        ``widths`` are the devices of the blocks met so far.
        """
        if number == choice.num_blocks * choice.runtime.virtual_stages:
            return int(closed == self.full)
        key = (closed, widths, number)
        if key not in known:
            total = 0
            for following in self.next_sets(closed):
                found = self.alternatives(choice, following & ~closed)
                for devices, alternatives in found.items():
                    blocks = _with_chunk(choice, widths, number, devices)
                    if blocks is not None:
                        self._count_step()
                        total += alternatives * self._count_chunks(
                            choice, following, blocks, number + 1, known
                        )
            known[key] = total
        return known[key]

    def alternatives(self, choice: _Choice, stage: int) -> dict[int, int]:
        """Count the ways to run a stage, by its devices."""
        key = (choice.case.micro_batch, choice.strategies, stage)
        if key not in self._alternatives:
            found = {}
            for devices in {s.devices for s in choice.strategies}:
                number = self._num_ways(choice, stage, devices)
                if number:
                    found[devices] = number
            self._alternatives[key] = found
        return self._alternatives[key]

    def _num_ways(self, choice: _Choice, stage: int, devices: int) -> int:
        allowed = [s for s in choice.strategies if s.devices == devices]
        if self._per_layer:
            return prod(map(len, self._options(choice, stage, allowed)))
        return sum(
            self.fits(stage, strategy, choice.case.micro_batch)
            for strategy in allowed
        )

    def _options(
        self, choice: _Choice, stage: int, allowed: Sequence[Strategy]
    ) -> list[list[Strategy]]:
        """Return what every layer of a stage may use, in file order."""
        return [
            [
                strategy
                for strategy in allowed
                if self.fits(1 << layer, strategy, choice.case.micro_batch)
            ]
            for layer in range(len(self.problem.graph.layers))
            if stage >> layer & 1
        ]

    def _stages(
        self, choice: _Choice, closed: int, devices_left: int
    ) -> Iterator[tuple[int, Stage]]:
        """Yield every next stage, and the set of layers after it."""
        for following in self.next_sets(closed):
            layers = following & ~closed
            if self._per_layer:
                for devices in sorted({s.devices for s in choice.strategies}):
                    self._tick()
                    if devices > devices_left:
                        continue
                    allowed = [
                        s for s in choice.strategies if s.devices == devices
                    ]
                    options = self._options(choice, layers, allowed)
                    for chosen in product(*options):
                        self._tick()
                        yield following, self._stage(layers, chosen)
                continue
            for strategy in choice.strategies:
                self._tick()
                if strategy.devices <= devices_left and self.fits(
                    layers, strategy, choice.case.micro_batch
                ):
                    yield following, self._stage(layers, (strategy,))

    def _count_step(self) -> None:
        self._tick()
        self._steps += 1
        if self._steps > MAX_COUNT_STEPS:
            raise _TooMany

    def _tick(self) -> None:
        self._ticks += 1
        if self._ticks % 1024 == 0 and self.deadline.passed:
            raise _OutOfTime

    def plans(self) -> Iterator[Plan]:
        """Yield every plan."""
        for choice in self.choices():
            case, runtime = choice.case, choice.runtime
            found = (
                self._chunks(choice, 0, (), 0)
                if choice.num_blocks
                else self._plans(choice, 0, case.devices, 0)
            )
            for stages in found:
                yield Plan(
                    replicas=case.replicas,
                    micro_batch=case.micro_batch,
                    stages=stages,
                    virtual_stages=runtime.virtual_stages,
                    overlap=tuple(x for x in OVERLAP if x in runtime.overlap),
                    distributed_optimizer=runtime.distributed_optimizer,
                    solver=BruteSolver.name,
                )

    def _plans(
        self, choice: _Choice, closed: int, devices_left: int, number: int
    ) -> Iterator[tuple[Stage, ...]]:
        if closed == self.full:
            if self.complete(number):
                yield ()
            return
        for following, stage in self._stages(choice, closed, devices_left):
            left = devices_left - stage.devices
            for rest in self._plans(choice, following, left, number + 1):
                yield (stage, *rest)

    def _chunks(
        self,
        choice: _Choice,
        closed: int,
        widths: tuple[int, ...],
        number: int,
    ) -> Iterator[tuple[Stage, ...]]:
        """Yield the remaining chunks of every interleaved plan."""
        if number == choice.num_blocks * choice.runtime.virtual_stages:
            if closed == self.full:
                yield ()
            return
        for following, stage in self._stages(
            choice, closed, choice.case.devices
        ):
            blocks = _with_chunk(choice, widths, number, stage.devices)
            if blocks is None:
                continue
            for rest in self._chunks(choice, following, blocks, number + 1):
                yield (stage, *rest)

    def _stage(self, layers: int, chosen: tuple[Strategy, ...]) -> Stage:
        """Return a stage; layers that all agree share one strategy."""
        alike = len(set(chosen)) == 1
        return Stage(
            layers=tuple(
                layer.id
                for position, layer in enumerate(self.problem.graph.layers)
                if layers >> position & 1
            ),
            devices=chosen[0].devices,
            strategy=chosen[0] if alike else None,
            strategies=None if alike else chosen,
        )


def _with_chunk(
    choice: _Choice, widths: tuple[int, ...], number: int, devices: int
) -> tuple[int, ...] | None:
    """Return the blocks' devices with one more chunk; ``None`` if illegal.

    All chunks on a block have as many devices, and the blocks fit into a
    replica.
    """
    if number >= choice.num_blocks:
        same = widths[number % choice.num_blocks] == devices
        return widths if same else None
    if sum(widths) + devices > choice.case.devices:
        return None
    return (*widths, devices)


class _TooMany(Exception):
    """The count took more steps than :data:`MAX_COUNT_STEPS`."""


_REMEDY = "use solver dp, cpsat or milp"
