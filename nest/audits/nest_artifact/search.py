"""The exact search for NEST's objective, ``(M+S-1) max τ + Y_first``.

All stages share one strategy, so a stage's offset follows from the number of
stages left, and the state is (closed set, stages left). Its value, the least
``max τ``, does not depend on the number of replicas; only the last step, which
picks the first stage, the number of stages ``S`` and the replicas ``R``, needs
the gradient sync.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nest.audits.nest_artifact.rules import Edge, artifact_rules
from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import BatchSplit, batch_splits, strategies
from nest.ir.plan import Plan, Stage, Strategy
from nest.search.closed_sets import ClosedSets
from nest.search.options import INFINITE, Ints
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
    gpipe = model.problem.job.schedule == "gpipe"
    # Cases with the same memory share one program.
    alike: dict[tuple[int, int | None], list[BatchSplit]] = {}
    for case in batch_splits(model.problem):
        inflight = case.num_micro_batches if gpipe else None
        alike.setdefault((case.micro_batch, inflight), []).append(case)
    for (micro_batch, inflight), group in alike.items():
        for strategy in strategies(model.problem, micro_batch):
            program = Program(model, sets, strategy, micro_batch)
            devices = max(case.devices for case in group)
            if not program.fill(devices, inflight, deadline):
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


class _Tensors(NamedTuple):
    """What crosses the cuts of every stage, each of shape (sets, sets).

    Attributes
    ----------
    entering_max, leaving_max
        Largest tensor in bytes per sample; -1 if there is none.
    entering_bytes
        All that enter, per micro-batch.
    """

    entering_max: Ints
    leaving_max: Ints
    entering_bytes: Ints


class _Place(NamedTuple):
    """Sums over every ``b - a`` at one place, each of shape (sets, sets).

    ``memory`` holds one micro-batch.
    """

    forward: Ints
    backward: Ints
    recomputed: Ints
    memory: Ints
    kept: Ints


class Program:
    """The program for one strategy and micro-batch.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    strategy, micro_batch
        What all stages share.
    """

    def __init__(
        self,
        model: CostModel,
        sets: ClosedSets,
        strategy: Strategy,
        micro_batch: int,
    ) -> None:
        self.model, self.sets = model, sets
        self.rules = artifact_rules(model)
        self.strategy, self.micro_batch = strategy, micro_batch
        problem = model.problem
        self._num_devices = problem.cluster.num_devices
        self._capacity = problem.cluster.memory_bytes()
        self._layers = range(len(problem.graph.layers))
        self._samples = micro_batch // strategy.dp
        #: ``values[s][a]``: least max τ of s + 1 stages over the rest of a;
        #: ``loads[s][a, b]``: τ of the first of them.
        self.values: list[Ints] = []
        self.loads: list[Ints] = []

    # Stages: arrays over (a, b)

    def _sum(self, values: Sequence[int]) -> Ints:
        """Sum a value per layer over every ``b - a``."""
        total = self.sets.member.astype(np.int64) @ np.array(
            values, dtype=np.int64
        )
        return total[None, :] - total[:, None]

    def _bytes(self, values: Sequence[int]) -> Ints:
        """Sum sizes; what does not fit alone is cut, to stay in 64 bits."""
        return self._sum([min(size, self._capacity + 1) for size in values])

    def _largest(self, sizes: Sequence[int]) -> Ints:
        """Return the largest size in every ``b - a``."""
        largest = np.zeros((self.sets.count, self.sets.count), dtype=np.int64)
        for size in sorted(set(sizes)):
            inside = self._sum([int(other == size) for other in sizes])
            largest[inside > 0] = min(size, self._capacity + 1)
        return largest

    def _tensors(self) -> _Tensors:
        member = self.sets.member
        shape = (self.sets.count, self.sets.count)
        found = _Tensors(
            np.full(shape, -1), np.full(shape, -1), np.zeros(shape, np.int64)
        )
        for source, target, size in self.model.transfers.edge_bytes(
            self.strategy.tp
        ):
            # Rows are a, columns b: the edge enters b - a if its source is
            # in a and its target in b - a.
            has_source, has_target = member[:, source], member[:, target]
            enters = has_source[:, None] & ~has_target[:, None] & has_target
            leaves = ~has_source[:, None] & has_source & ~has_target
            for largest, where in (
                (found.entering_max, enters),
                (found.leaving_max, leaves),
            ):
                largest[where] = np.maximum(largest[where], size)
            found.entering_bytes[enters] += size * self._samples
        return found

    def _receive(self, largest: Ints, edge: Edge | None) -> Ints:
        """Time of the slowest edge: the largest, as time grows with size.

        Without an edge no other stage is there to send one.
        """
        if edge is None:
            return np.zeros_like(largest)
        sizes, inverse = np.unique(largest, return_inverse=True)
        times = [
            0
            if size < 0
            else self.rules.edge_quanta(
                self.model, edge, int(size) * self._samples
            )
            for size in sizes
        ]
        return np.array(times, dtype=np.int64)[inverse].reshape(largest.shape)

    def _terms(self, block: Block) -> list[LayerTerms]:
        found = (
            self.model.layer_terms(i, self.strategy, self.micro_batch, block)
            for i in self._layers
        )
        return [terms for terms in found if terms is not None]

    def _place(self, block: Block) -> _Place:
        terms = self._terms(block)
        kept = self._bytes([t.kept_bytes for t in terms])
        return _Place(
            forward=self._sum([t.forward for t in terms]),
            backward=self._sum([t.backward - t.recomputed for t in terms]),
            recomputed=self._sum([t.recomputed for t in terms]),
            memory=self._bytes([t.static_bytes for t in terms])
            + kept
            + self._largest([t.working_bytes for t in terms]),
            kept=kept,
        )

    def _edge(self, first: int, second: int) -> Edge | None:
        """Return how an edge between stages at two offsets travels."""
        if first < 0 or second >= self._num_devices:
            return None
        n = self.strategy.devices
        return self.rules.edge(
            self.model, Block(1, 0, first, n), Block(1, 0, second, n)
        )

    # Pipelines, from the last stage on

    def fill(
        self, devices: int, inflight: int | None, deadline: Deadline
    ) -> bool:
        """Compute the values for every possible number of stages.

        Parameters
        ----------
        devices
            At most so many for the stages.
        inflight
            Micro-batches that each stage keeps; by default as many as there
            are stages left.
        deadline
            When to give up.

        Returns
        -------
        bool
            False if the deadline passed first.
        """
        if any(
            self.model.available(i, self.strategy, self.micro_batch)
            for i in self._layers
        ):
            return not deadline.passed
        sets, n = self.sets, self.strategy.devices
        pair = np.zeros((sets.count, sets.count), dtype=np.bool_)
        pair[sets.pair_source, sets.pair_target] = True
        tensors = self._tensors()
        places: dict[Block, _Place] = {}
        for left in range(1, min(devices // n, len(self._layers)) + 1):
            if deadline.passed:
                return False
            offset = (left - 1) * n
            block = self.model.network.alike(Block(1, 0, offset, n))
            if block not in places:
                places[block] = self._place(block)
            place = places[block]
            further = (left if inflight is None else inflight) - 1
            # Recomputing from a stage's inputs, only they are kept.
            stash = place.kept
            if self.strategy.recompute == "full":
                stash = np.minimum(tensors.entering_bytes, self._capacity + 1)
            room = self._capacity - place.memory
            usable = pair & (room >= 0)
            usable &= stash <= (room // further if further else INFINITE)
            receive = self._receive(
                tensors.entering_max, self._edge(offset, offset + n)
            )
            gradient = self._receive(
                tensors.leaving_max, self._edge(offset - n, offset)
            )
            # Recomputation hides that receive; the last stage has none.
            if left > 1:
                gradient = np.maximum(gradient, place.recomputed)
            load = np.full(pair.shape, INFINITE)
            load[usable] = (
                place.forward + receive + place.backward + gradient
            )[usable]
            self.loads.append(load)
            self.values.append(
                load[:, -1].copy()
                if left == 1
                else np.maximum(load, self.values[-1][None, :]).min(axis=1)
            )
            if (self.values[-1] >= INFINITE).all():
                break
        return True

    def best(
        self, group: Sequence[BatchSplit], upper: int
    ) -> tuple[int, Plan] | None:
        """Return the best step time below ``upper`` and its plan."""
        n = self.strategy.devices
        allowed = self.model.problem.job.pipeline_parallel
        choices = []
        for stages, value in enumerate(self.values, 1):
            worst = int(value[0])
            if worst >= INFINITE:
                continue
            if allowed is not None and stages not in allowed:
                continue
            for case in group:
                if case.replicas * stages * n <= self._num_devices:
                    slots = case.num_micro_batches + stages - 1
                    choices.append((slots * worst, stages, case))
        answer: tuple[int, int, int, BatchSplit] | None = None
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
        return step, self._plan(stages, target, case)

    def _step_times(self, stages: int, case: BatchSplit) -> Ints:
        """Return the step time for every choice of the first stage."""
        n = self.strategy.devices
        worst = self.loads[stages - 1][0]
        if stages > 1:
            worst = np.maximum(worst, self.values[stages - 2])
        else:
            worst = np.where(
                np.arange(len(worst)) == len(worst) - 1, worst, INFINITE
            )
        block = Block(case.replicas, stages * n, (stages - 1) * n, n)
        sync = self._sum([terms.sync for terms in self._terms(block)])[0]
        slots = case.num_micro_batches + stages - 1
        times = np.full(len(worst), INFINITE)
        reached = worst < INFINITE
        times[reached] = (slots * worst + sync)[reached]
        times[reached] += self.rules.sync_constant(self.model, block)
        return times

    def _plan(self, stages: int, target: int, case: BatchSplit) -> Plan:
        """Build a plan whose first stage is closed set ``target``."""
        cuts = [0, target]
        for left in range(stages - 1, 1, -1):
            through = np.maximum(
                self.loads[left - 1][cuts[-1]], self.values[left - 2]
            )
            cuts.append(int(np.argmin(through)))
        if stages > 1:
            cuts.append(self.sets.count - 1)
        graph, member = self.model.problem.graph, self.sets.member
        return Plan(
            replicas=case.replicas,
            micro_batch=self.micro_batch,
            stages=tuple(
                Stage(
                    layers=tuple(
                        graph.layers[i].id
                        for i in graph.topological_order()
                        if member[end, i] and not member[start, i]
                    ),
                    devices=self.strategy.devices,
                    strategy=self.strategy,
                )
                for start, end in itertools.pairwise(cuts)
            ),
        )
