"""The exact search for NEST's objective, ``(M+S-1) max τ + Y_first``.

All stages share one strategy, so a stage's offset follows from the number of
stages left, and the state is (closed set, stages left). Its value, the least
``max τ``, does not depend on the number of replicas; only the last step, which
picks the first stage, the number of stages ``S`` and the replicas ``R``, needs
the gradient sync. Arrays are over the pairs ``a ⊂ b``, stages ``b - a``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nest.audits.nest_artifact.rules import Edge, artifact_rules
from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import BatchSplit, batch_splits, strategies
from nest.ir.plan import Plan, Stage, Strategy
from nest.search.stages.closed_sets import ClosedSets
from nest.search.stages.options import INFINITE, Ints
from nest.search.task import SearchTask
from nest.solvers.base import (
    Deadline,
    Limit,
    OutOfTimeError,
    Progress,
    SolverOutput,
    exact_output,
)


def search(task: SearchTask) -> SolverOutput:
    """Search every strategy, number of stages and ``(R, B)``."""
    model, plan = task.model, task.plan
    best = int(INFINITE) if task.upper is None else task.upper
    gpipe = model.problem.job.schedule == "gpipe"
    # Cases with the same memory share one program.
    groups: dict[tuple[int, int | None], list[BatchSplit]] = {}
    for case in batch_splits(model.problem):
        inflight = case.num_micro_batches if gpipe else None
        groups.setdefault((case.micro_batch, inflight), []).append(case)
    for (micro_batch, inflight), group in groups.items():
        for strategy in strategies(model.problem, micro_batch):
            program = Program(model, task.sets, strategy, micro_batch)
            try:
                program.fill(max(c.devices for c in group), inflight, task.deadline)
            except OutOfTimeError:
                detail = f"at strategy {strategy}"
                return exact_output(plan, best, 0, Limit.TIME, detail)
            better = program.best(group, best)
            if better is not None:
                best, plan = better
                task.report(Progress(plan=plan, claimed_quanta=best))
    return exact_output(plan, best, best)


class _Place(NamedTuple):
    """Sums over every stage at one place; ``memory`` holds one micro-batch."""

    forward: Ints
    backward: Ints
    recomputed: Ints
    memory: Ints
    kept: Ints


class Program:
    """The program for one strategy and micro-batch."""

    def __init__(
        self, model: CostModel, sets: ClosedSets, strategy: Strategy, micro_batch: int
    ) -> None:
        self.model, self.sets = model, sets
        self.rules = artifact_rules(model)
        self.strategy, self.micro_batch = strategy, micro_batch
        problem = model.problem
        self._num_devices = problem.cluster.num_devices
        self._capacity = problem.cluster.memory_bytes()
        self._layers = range(len(problem.graph.layers))
        #: Of s + 1 stages, the least max τ by the first of them.
        self.worst: list[Ints] = []

    def _cut(self, values: Sequence[int]) -> list[int]:
        """Cut sizes: what does not fit alone never fits, cut or not."""
        return [min(size, self._capacity + 1) for size in values]

    def _crossing(self) -> tuple[Ints, Ints, Ints]:
        """Return what crosses the cuts of every stage, per micro-batch.

        The largest tensor that enters, the largest that leaves, -1 where
        there is none, and all that enter; bytes.
        """
        size = len(self.sets.pair_source)
        entering, leaving = np.full((2, size), -1)
        total = np.zeros(size, dtype=np.int64)
        samples = self.micro_batch // self.strategy.dp
        for source, target, size_bytes in self.model.transfers.edge_bytes(
            self.strategy.tp
        ):
            crossing = size_bytes * samples
            enters, leaves = self.sets.crossed(source, target)
            np.maximum(entering, crossing, out=entering, where=enters)
            np.maximum(leaving, crossing, out=leaving, where=leaves)
            total += crossing * enters
        return entering, leaving, np.minimum(total, self._capacity + 1)

    def _receive(self, largest: Ints, edge: Edge | None) -> Ints:
        """Time of the slowest edge: the largest, as time grows with size.

        Without an edge no other stage is there to send one.
        """
        if edge is None:
            return np.zeros_like(largest)
        sizes, inverse = np.unique(largest, return_inverse=True)
        times = [
            0 if size < 0 else self.rules.edge_quanta(self.model, edge, size)
            for size in sizes.tolist()
        ]
        return np.array(times, dtype=np.int64)[inverse]

    def _terms(self, block: Block) -> list[LayerTerms]:
        terms_of_layers = (
            self.model.layer_terms(i, self.strategy, self.micro_batch, block)
            for i in self._layers
        )
        return [terms for terms in terms_of_layers if terms is not None]

    def _place(self, block: Block) -> _Place:
        terms, sums = self._terms(block), self.sets.sums
        kept_bytes = sums(self._cut([t.kept_bytes for t in terms]))
        working = np.zeros_like(kept_bytes)
        sizes = self._cut([t.working_bytes for t in terms])
        for size in sorted(set(sizes)):
            working[sums([size == other for other in sizes]) > 0] = size
        static = sums(self._cut([t.static_bytes for t in terms]))
        return _Place(
            forward=sums([t.forward for t in terms]),
            backward=sums([t.backward - t.recomputed for t in terms]),
            recomputed=sums([t.recomputed for t in terms]),
            memory=static + kept_bytes + working,
            kept=kept_bytes,
        )

    def _edge(self, first: int, second: int) -> Edge | None:
        """Return how an edge between stages at two offsets travels."""
        if first < 0 or second >= self._num_devices:
            return None
        n = self.strategy.devices
        return self.rules.edge(
            self.model, Block(1, 0, first, n), Block(1, 0, second, n)
        )

    def fill(self, devices: int, inflight: int | None, deadline: Deadline) -> None:
        """Compute the values for every possible number of stages.

        There are at most ``devices`` for the stages. Each keeps ``inflight``
        micro-batches, by default as many as there are stages left. Raises
        ``OutOfTimeError`` if the deadline passed first.
        """
        deadline.check()
        if any(
            self.model.available(i, self.strategy, self.micro_batch)
            for i in self._layers
        ):
            return
        sets, n = self.sets, self.strategy.devices
        entering, leaving, stash = self._crossing()
        by_block: dict[Block, _Place] = {}
        later = np.full(sets.count, INFINITE)
        later[-1] = 0
        for num_stages in range(1, min(devices // n, len(self._layers)) + 1):
            deadline.check()
            offset = (num_stages - 1) * n
            block = self.model.network.alike(Block(1, 0, offset, n))
            if block not in by_block:
                by_block[block] = self._place(block)
            sums = by_block[block]
            further = (num_stages if inflight is None else inflight) - 1
            # Recomputing from a stage's inputs, only they are kept.
            if self.strategy.recompute != "full":
                stash = sums.kept
            room = self._capacity - sums.memory
            usable = room >= 0
            usable &= stash <= (room // further if further else INFINITE)
            receive = self._receive(entering, self._edge(offset, offset + n))
            gradient = self._receive(leaving, self._edge(offset - n, offset))
            # Recomputation hides that receive; the last stage has none.
            if num_stages > 1:
                gradient = np.maximum(gradient, sums.recomputed)
            load = sums.forward + receive + sums.backward + gradient
            load[~usable] = INFINITE
            self.worst.append(np.maximum(load, later[sets.pair_target]))
            later[:-1] = np.minimum.reduceat(self.worst[-1], sets.first[:-2])
            later[-1] = INFINITE
            if (later >= INFINITE).all():
                break

    def best(self, group: Sequence[BatchSplit], upper: int) -> tuple[int, Plan] | None:
        """Return the best step time below ``upper`` and its plan."""
        n = self.strategy.devices
        allowed = self.model.problem.job.pipeline_parallel
        choices = []
        for stages, table in enumerate(self.worst, 1):
            worst = int(table[: self.sets.first[1]].min())
            if worst >= INFINITE:
                continue
            if allowed is not None and stages not in allowed:
                continue
            for case in group:
                if case.replicas * stages * n <= self._num_devices:
                    slots = case.num_micro_batches + stages - 1
                    choices.append((slots * worst, stages, case))
        answer: tuple[int, int, BatchSplit] | None = None
        for bound, stages, case in sorted(choices, key=lambda c: c[:2]):
            if bound >= upper:
                break
            times = self._step_times(stages, case)
            if times.min() < upper:
                upper = int(times.min())
                answer = (int(times.argmin()), stages, case)
        return None if answer is None else (upper, self._plan(*answer))

    def _step_times(self, stages: int, case: BatchSplit) -> Ints:
        """Return the step time for every choice of the first stage."""
        n = self.strategy.devices
        worst = self.worst[stages - 1][: self.sets.first[1]]
        block = Block(case.replicas, stages * n, (stages - 1) * n, n)
        sync = self.sets.sums([terms.sync for terms in self._terms(block)])
        slots = case.num_micro_batches + stages - 1
        times = np.full(len(worst), INFINITE)
        reached = np.flatnonzero(worst < INFINITE)
        times[reached] = slots * worst[reached] + sync[reached]
        times[reached] += self.rules.sync_constant(self.model, block)
        return times

    def _plan(self, pair: int, stages: int, case: BatchSplit) -> Plan:
        """Build a plan with that first stage."""
        pairs = [pair]
        for worst in self.worst[: stages - 1][::-1]:
            a = self.sets.pair_target[pairs[-1]]
            first, end = self.sets.first[a : a + 2]
            pairs.append(int(first + worst[first:end].argmin()))
        graph = self.model.problem.graph
        order = graph.topological_order()
        return Plan(
            replicas=case.replicas,
            micro_batch=self.micro_batch,
            stages=tuple(
                Stage(
                    layers=tuple(
                        graph.layers[i].id for i in self.sets.inside(pair, order)
                    ),
                    devices=self.strategy.devices,
                    strategy=self.strategy,
                )
                for pair in pairs
            ),
        )
