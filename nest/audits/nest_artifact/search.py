"""The program for presets whose stages all share one strategy.

With one strategy a stage's offset follows from the number of stages left, so
the state is (closed set, stages left). Its value, the least ``max τ``, does
not depend on the number of replicas; only the last step, which picks the
first stage, the number of stages ``S`` and the replicas ``R``, needs the
gradient sync. The objective is ``(M+S-1) max τ + Y_first``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import Case, cases, strategies
from nest.dp.closed_sets import ClosedSets
from nest.dp.stages import INFINITE, Ints
from nest.ir.plan import Plan, Stage, Strategy
from nest.solvers.base import (
    Deadline,
    Limit,
    Progress,
    Report,
    SolverOutput,
    Status,
)


def search(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    report: Report,
    upper: int | None,
    plan: Plan | None,
) -> SolverOutput:
    """Search every strategy, number of stages and ``(R, B)``.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline, report
        The clock, and where progress goes.
    upper, plan
        Step time in quanta and plan of a warm start, or ``None``.
    """
    best = int(INFINITE) if upper is None else upper
    # Cases with the same memory share one program.
    alike: dict[tuple[int, int | None], list[Case]] = {}
    for case in cases(model.problem):
        key = (case.micro_batch, _most_inflight(model, case))
        alike.setdefault(key, []).append(case)
    for (micro_batch, inflight), group in alike.items():
        for strategy in strategies(model.problem, micro_batch):
            program = UniformProgram(
                model, sets, strategy, micro_batch, inflight
            )
            if deadline.passed or not program.fill(
                max(case.devices for case in group), deadline
            ):
                return SolverOutput(
                    status=(
                        Status.NO_SOLUTION if plan is None else Status.FEASIBLE
                    ),
                    plan=plan,
                    claimed_quanta=None if plan is None else best,
                    lower_bound_quanta=0,
                    limit=Limit.TIME,
                    detail=f"at strategy {strategy}",
                )
            found = program.best(group, best)
            if found is not None:
                best, plan = found
                report(Progress(plan=plan, claimed_quanta=best))
    return SolverOutput(
        status=Status.INFEASIBLE if plan is None else Status.OPTIMAL,
        plan=plan,
        claimed_quanta=None if plan is None else best,
        lower_bound_quanta=None if plan is None else best,
    )


def _most_inflight(model: CostModel, case: Case) -> int | None:
    """Return ``M`` if the in-flight counts depend on it, else ``None``."""
    gpipe = model.problem.job.schedule == "gpipe"
    if gpipe or model.preset.inflight_capped:
        return case.num_micro_batches
    return None


@dataclass(frozen=True)
class _Place:
    """Sums over ``b - a`` at one place, each of shape (sets, sets).

    ``memory`` holds one micro-batch; each further one adds ``stash``.
    """

    forward: Ints
    backward: Ints
    recomputed: Ints
    memory: Ints
    stash: Ints


class UniformProgram:
    """The program for one strategy, micro-batch and in-flight limit.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    strategy, micro_batch
        What all stages share.
    most_inflight
        ``M`` where in-flight counts depend on it, else ``None``.
    """

    def __init__(
        self,
        model: CostModel,
        sets: ClosedSets,
        strategy: Strategy,
        micro_batch: int,
        most_inflight: int | None,
    ) -> None:
        self.model, self.sets = model, sets
        self._most_inflight = most_inflight
        self.strategy, self.micro_batch = strategy, micro_batch
        problem = model.problem
        self._num_devices = problem.cluster.num_devices
        self._layers = range(len(problem.graph.layers))
        self._full_recompute = strategy.recompute == "full"
        #: ``pair[a, b]``: is a ⊂ b and every layer of b - a available?
        self.pair = np.zeros((sets.count, sets.count), dtype=np.bool_)
        self.pair[sets.pair_source, sets.pair_target] = True
        #: Whether every layer can run; each is part of every plan.
        self.possible = all(
            model.available(i, strategy, micro_batch) is None
            for i in self._layers
        )
        self._edges()
        #: ``values[s][a]``: least max τ of s stages over the rest of a.
        self.values: list[Ints] = []
        self.loads: list[Ints] = []

    def _layer_terms(self, block: Block) -> list[LayerTerms]:
        return [
            terms
            for i in self._layers
            if (
                terms := self.model.layer_terms(
                    i, self.strategy, self.micro_batch, block
                )
            )
            is not None
        ]

    def _sum(self, values: Sequence[int]) -> Ints:
        """Sum a value per layer over ``b - a``; shape (sets, sets)."""
        total = self.sets.member.astype(np.int64) @ np.array(
            values, dtype=np.int64
        )
        return total[None, :] - total[:, None]

    def _edges(self) -> None:
        """Find the largest tensors entering and leaving every stage."""
        member = self.sets.member
        samples = self.micro_batch // self.strategy.dp
        shape = self.pair.shape
        self.entering_max = np.full(shape, -1, dtype=np.int64)
        self.leaving_max = np.full(shape, -1, dtype=np.int64)
        self.entering_sum = np.zeros(shape, dtype=np.int64)
        for source, target, size in self.model.edge_bytes(self.strategy.tp):
            has_source, has_target = member[:, source], member[:, target]
            # Rows are a, columns b: the edge enters b - a if its source is
            # in a and its target in b - a.
            enters = has_source[:, None] & ~has_target[:, None] & has_target
            leaves = ~has_source[:, None] & has_source & ~has_target
            self.entering_max[enters] = np.maximum(
                self.entering_max[enters], size
            )
            self.leaving_max[leaves] = np.maximum(
                self.leaving_max[leaves], size
            )
            self.entering_sum[enters] += size * samples

    def _transfer(self, largest: Ints, level: int) -> Ints:
        """Time of the slowest edge: the largest, as time grows with size."""
        samples = self.micro_batch // self.strategy.dp
        sizes, inverse = np.unique(largest, return_inverse=True)
        times = [
            0 if size < 0 else self.model.edge(level, int(size), samples)
            for size in sizes
        ]
        return np.array(times, dtype=np.int64)[inverse].reshape(largest.shape)

    def fill(self, share: int, deadline: Deadline) -> bool:
        """Compute the values for every possible number of stages.

        Returns
        -------
        bool
            False if the deadline passed first.
        """
        if not self.possible:
            return True
        n = self.strategy.devices
        places: dict[Block, _Place] = {}
        capacity = self.model.problem.cluster.device.memory_bytes
        transfers: dict[int, tuple[Ints, Ints]] = {}
        # Neither the level nor the receive matters for an end of the
        # pipeline: no edge crosses it.
        for stages_left in range(1, min(share // n, len(self._layers)) + 1):
            if deadline.passed:
                return False
            offset = (stages_left - 1) * n
            block = self.model.aligned(Block(1, 0, offset, n))
            if block not in places:
                places[block] = self._place(block)
            place = places[block]
            further = self._inflight(stages_left) - 1
            fits = place.memory + further * place.stash
            load = np.full(self.pair.shape, INFINITE)
            usable = self.pair & (fits <= capacity)
            level_in = self._level(offset, offset + n)
            level_out = self._level(offset - n, offset)
            for level in (level_in, level_out):
                if level not in transfers:
                    transfers[level] = (
                        self._transfer(self.entering_max, level),
                        self._transfer(self.leaving_max, level),
                    )
            receive_in = transfers[level_in][0]
            receive_out = transfers[level_out][1]
            again = place.recomputed
            if (
                stages_left == 1
                and not self.model.preset.last_stage_recomputes
            ):
                again = np.zeros_like(again)
            if self.model.preset.recompute_hides_receive:
                back = place.backward + np.maximum(again, receive_out)
            else:
                back = place.backward + again + receive_out
            load[usable] = (place.forward + receive_in + back)[usable]
            self.loads.append(load)
            if stages_left == 1:
                self.values.append(load[:, -1].copy())
            else:
                self.values.append(
                    np.maximum(load, self.values[-1][None, :]).min(axis=1)
                )
            if (self.values[-1] >= INFINITE).all():
                break
        return True

    def _inflight(self, stages_left: int) -> int:
        if self._most_inflight is None:
            return stages_left
        if self.model.problem.job.schedule == "gpipe":
            return self._most_inflight
        return min(self._most_inflight, stages_left)

    def _place(self, block: Block) -> _Place:
        """Sum the terms of every stage at one place."""
        terms = self._layer_terms(block)
        kept = self._sum([t.kept_bytes for t in terms])
        stash = kept
        if self.model.preset.stash_boundary_only and self._full_recompute:
            stash = self.entering_sum
        return _Place(
            forward=self._sum([t.forward for t in terms]),
            backward=self._sum([t.backward - t.recomputed for t in terms]),
            recomputed=self._sum([t.recomputed for t in terms]),
            memory=self._sum([t.static_bytes for t in terms])
            + kept
            + self._working([t.working_bytes for t in terms]),
            stash=stash,
        )

    def _level(self, first: int, second: int) -> int:
        """Level at which two neighbouring stages' first devices meet."""
        if first < 0 or second >= self._num_devices:
            return 0
        block = Block(1, 0, second, self.strategy.devices)
        (level,) = self.model.boundary_levels(
            block, forward=True, neighbour=first
        )
        return level

    def _working(self, sizes: Sequence[int]) -> Ints:
        """Return the largest working set in every ``b - a``."""
        member = self.sets.member
        largest = np.zeros(self.pair.shape, dtype=np.int64)
        for size in sorted(set(sizes)):
            layers = [i for i, s in enumerate(sizes) if s == size]
            count = member[:, layers].sum(axis=1)
            largest[count[None, :] > count[:, None]] = size
        return largest

    def best(
        self, group: Sequence[Case], upper: int
    ) -> tuple[int, Plan] | None:
        """Return the best step time below ``upper`` and its plan."""
        n = self.strategy.devices
        allowed = self.model.problem.job.pipeline_parallel
        choices = []
        for stages in range(1, len(self.values) + 1):
            worst = int(self.values[stages - 1][0])
            if worst >= INFINITE:
                continue
            if allowed is not None and stages not in allowed:
                continue
            for case in group:
                if case.replicas * stages * n <= self._num_devices:
                    slots = case.num_micro_batches + stages - 1
                    choices.append((slots * worst, stages, case))
        answer: tuple[int, int, int, Case] | None = None
        for bound, stages, case in sorted(choices, key=lambda c: c[:2]):
            if bound >= upper:
                break
            times = self._step_times(stages, case)
            target = int(np.argmin(times))
            if times[target] < upper:
                upper = int(times[target])
                answer = (upper, stages, target, case)
        if answer is None:
            return None
        step, stages, target, case = answer
        return step, self._plan(stages, target, case, step)

    def _step_times(self, stages: int, case: Case) -> Ints:
        """Return the step time for every choice of the first stage."""
        n = self.strategy.devices
        load = self.loads[stages - 1][0]
        if stages == 1:
            rest = np.full(len(load), INFINITE)
            rest[-1] = 0
        else:
            rest = self.values[stages - 2]
        worst = np.maximum(load, rest)
        block = Block(case.replicas, stages * n, (stages - 1) * n, n)
        kinds: dict[str, int] = {}
        sync = []
        for i, layer in enumerate(self.model.problem.graph.layers):
            if layer.kind not in kinds:
                terms = self.model.layer_terms(
                    i, self.strategy, self.micro_batch, block
                )
                kinds[layer.kind] = 0 if terms is None else terms.sync
            sync.append(kinds[layer.kind])
        total = self.sets.member.astype(np.int64) @ np.array(sync)
        slots = case.num_micro_batches + stages - 1
        reached: NDArray[np.bool_] = worst < INFINITE
        times = np.full(len(load), INFINITE)
        times[reached] = (
            slots * worst[reached]
            + total[reached]
            + self.model.sync_constant(block)
        )
        return times

    def _plan(self, stages: int, target: int, case: Case, step: int) -> Plan:
        """Build a plan whose first stage is closed set ``target``."""
        member = self.sets.member
        order = self.model.problem.graph.topological_order()
        cuts = [0, target]
        for left in range(stages - 1, 0, -1):
            if left == 1:
                cuts.append(self.sets.count - 1)
            else:
                through = np.maximum(
                    self.loads[left - 1][cuts[-1]], self.values[left - 2]
                )
                cuts.append(int(np.argmin(through)))
        result = []
        for source, end in itertools.pairwise(cuts):
            inside = member[end] & ~member[source]
            result.append(
                Stage(
                    layers=tuple(
                        self.model.problem.graph.layers[i].id
                        for i in order
                        if inside[i]
                    ),
                    devices=self.strategy.devices,
                    strategy=self.strategy,
                )
            )
        return Plan(
            replicas=case.replicas,
            micro_batch=self.micro_batch,
            stages=tuple(result),
        )
