"""``megatron``: the hand rules by which Megatron-LM runs are set up.

Source: Narayanan et al., "Efficient large-scale language model training on
GPU clusters using Megatron-LM", SC'21 (arXiv 2104.04473), takeaways 1 to 3
and equation 1; memory per parameter from Rajbhandari et al., "ZeRO" (arXiv
1910.02054), §3.1; recomputation and the activations in flight from
Korthikanti et al., "Reducing activation recomputation in large transformer
models" (arXiv 2205.05198). There is no planner and no code: people do this.

Search space
    One strategy for all stages, stages of as many layers each. With ``g``
    devices per node (the lowest network level that holds more than one):

    1. Model parallelism, in this order: ``tp`` = 1, 2, … up to ``g`` with as
       few stages as the job allows (one), then ``tp`` at its largest and
       more and more stages. The first pair that fits is taken (takeaways 1
       and 2): no more model parallelism than the model needs. Full
       recomputation is tried only if none fits without (Korthikanti et al.).
    2. Data parallelism over the rest: as many ranks as the job's batches
       allow. Experts are spread over the data ranks of a node, as far as
       ``tp * ep <= g``. Context parallelism only if the job asks for it.
    3. Micro-batch per rank, and recomputation or none, by equation 1
       (takeaway 3), among those that fit.
    4. The optimizer is distributed: Megatron-Core's, where the job allows it,
       else ZeRO 1 where it allows that.

    Data parallel ranks may be replicas of the pipeline or share a stage; of
    two plans that are alike otherwise the one with more of them in a stage is
    taken, where ZeRO shards over them.

Objective
    Equation 1: ``(M + p - 1)(t_f + t_b)`` with ``t_f`` and ``t_b`` the passes
    of one micro-batch through ``1/p`` of the layers, tensor parallel
    communication and recomputation included, as a profile would have it.

Memory
    The textbook estimate: ``1/p`` of the bytes of all weights, gradients and
    optimizer state (16 per parameter with mixed-precision Adam, 18 with fp32
    gradients) after sharding, plus ``min(M, p)`` micro-batches of ``1/p`` of
    the activations. The bytes per layer come from the problem's cost table.

Ignored
    Communication between stages and data parallel ranks, the optimizer update, the
    uneven stages with embedding and output layer, and in the memory the working sets
    (gathered weights, logits, what is computed again) and the reserve.

Deviations
    The papers leave open how much recomputation and what micro-batch to try;
    here all that the job allows. Layers at either end whose kind occurs once
    (embedding, output layer) come on top of the even split, as in Megatron;
    stage counts that do not divide the rest are tried last, Megatron refuses
    them. Devices that the job's batches leave no use for idle; Megatron
    refuses that too. No interleaved schedule, although SC'21 proposes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from msgspec.structs import replace

from baselines.common import (
    Planner,
    Search,
    even_split,
    in_flight,
    make_plan,
    node_size,
    ranges,
    repeated_range,
    why_not_turns,
)
from nest.cost.model import Block, CostModel
from nest.cost.space import BatchSplit, Runtime, batch_splits, stage_counts
from nest.ir.plan import RECOMPUTE, Plan, Recompute, Strategy
from nest.solvers.base import Capabilities, SolverOutput
from nest.units import ceil_div, quanta_to_ns


class Setup(NamedTuple):
    """One way to run the model with given ``tp`` and number of stages.

    ``passes_quanta`` are both passes of a micro-batch, bytes are per device: what is
    always there, and the activations of a micro-batch; all are over all layers.
    """

    case: BatchSplit
    strategy: Strategy
    passes_quanta: int
    static_bytes: int
    kept_bytes: int


class MegatronSolver(Planner):
    """Follow the rules."""

    name = "megatron"
    shared_strategy = "together"
    capabilities = Capabilities(
        exact=False,
        method="Megatron-LM by hand: tp in a node, pp to fit, dp the rest",
        searches=frozenset({"distributed_optimizer"}),
        objective=(
            "(M + p - 1) times the passes of an even share of the layers, "
            "without communication between stages and replicas"
        ),
        overruns=True,
    )

    refusals = (why_not_turns,)

    def run(self, search: Search) -> SolverOutput:
        """Return the plan that the rules lead to."""
        rules = Rules(search.model)
        for allowed, tp, num_stages in rules.attempts():
            if search.out_of_time():
                return search.answer()
            fitting = [
                setup
                for setup in rules.data_parallel(tp, num_stages)
                if setup.strategy.recompute in allowed
                and rules.memory_bytes(setup, num_stages) <= rules.capacity
            ]
            if fitting:
                best = min(
                    fitting,
                    key=lambda setup: (
                        rules.slots(setup, num_stages) * setup.passes_quanta,
                        -setup.strategy.dp,
                    ),
                )
                search.plan = rules.plan(best, num_stages)
                slots = rules.slots(best, num_stages)
                search.own_ns = (
                    quanta_to_ns(slots * best.passes_quanta, search.problem.quantum_ps)
                    / num_stages
                )
                return search.answer()
        return search.answer(
            "no model parallel size fits by its estimate of the memory"
        )


class Rules:
    """The rules on one problem; remembers the sums over the layers."""

    def __init__(self, model: CostModel) -> None:
        self.problem = problem = model.problem
        self.model = model
        self.capacity = problem.cluster.memory_bytes()
        job, graph = problem.job, problem.graph
        # The distributed optimizer goes with ZeRO 0 and 1 only.
        distributed = job.distributed_optimizer and min(job.zero) <= 1
        self.runtime = Runtime(distributed_optimizer=distributed)
        self.zero = 1 if 1 in job.zero else min(job.zero)
        self.node = node_size(problem)
        self.cases = batch_splits(problem)
        self.keys = {
            (cost.tp, cost.cp, cost.ep, cost.samples)
            for kind in graph.kinds
            for cost in kind.costs
            if cost.sequence_parallel in job.sequence_choices(cost.tp)
        }
        cps = {cp for _, cp, _, _ in self.keys}
        self.cp = min(
            (
                cp
                for cp in cps
                if job.context_parallel is None or cp in job.context_parallel
            ),
            default=1,
        )
        self.layers_of = Counter(layer.kind for layer in graph.layers)
        self._first = {layer.kind: i for i, layer in enumerate(graph.layers)}
        #: Layers that are split evenly: all but single ones at the ends.
        self.start, self.stop = repeated_range(problem)
        self.setup = cache(self._setup)

    def attempts(self) -> Iterator[tuple[frozenset[Recompute], int, int]]:
        """Yield (recomputation to choose from, ``tp``, number of stages)."""
        every = frozenset(self.problem.job.recompute)
        for allowed in dict.fromkeys((every - {"full"}, every)):
            for tp, num_stages in self.model_parallel() if allowed else ():
                yield allowed, tp, num_stages

    def model_parallel(self) -> Iterator[tuple[int, int]]:
        """Yield ``(tp, number of stages)``, the least parallel first."""
        allowed = self.problem.job.tensor_parallel
        tps = sorted(
            {tp for tp, _, _, _ in self.keys if allowed is None or tp in allowed}
        )
        tps = [tp for tp in tps if tp <= self.node] or tps[:1]
        counts = sorted(
            {count for case in self.cases for count in stage_counts(self.problem, case)}
        )
        counts.sort(key=lambda n: (self.stop - self.start) % n != 0)
        if not tps or not counts:
            return
        for tp in tps:
            yield tp, counts[0]
        for count in counts[1:]:
            yield tps[-1], count

    def split(self, num_stages: int) -> list[tuple[int, int]]:
        """Return the ranges of the chain."""
        num_layers = len(self.problem.graph.layers)
        if num_stages > self.stop - self.start:
            return even_split(num_layers, num_stages)
        pieces = even_split(self.stop - self.start, num_stages)
        ends = [self.start + stop for _, stop in pieces[:-1]]
        return ranges([*ends, num_layers])

    def plan(self, setup: Setup, num_stages: int) -> Plan:
        """Return the plan of a setup."""
        plan = make_plan(
            self.problem,
            setup.case,
            [(*span, setup.strategy) for span in self.split(num_stages)],
        )
        distributed = self.runtime.distributed_optimizer
        return replace(plan, distributed_optimizer=distributed)

    def data_parallel(self, tp: int, num_stages: int) -> list[Setup]:
        """Return the setups with as many data parallel ranks as possible."""
        setups: list[Setup] = []
        max_ranks = 0
        for case in self.cases:
            if num_stages not in stage_counts(self.problem, case):
                continue
            for strategy in self._strategies(tp, case):
                ranks = case.replicas * strategy.dp
                if num_stages * strategy.devices > case.devices or (ranks < max_ranks):
                    continue
                setup = self.setup(case, strategy)
                if setup is None:
                    continue
                if ranks > max_ranks:
                    setups, max_ranks = [], ranks
                setups.append(setup)
        return setups

    def _strategies(self, tp: int, case: BatchSplit) -> Iterator[Strategy]:
        job = self.problem.job
        for samples in sorted({key[3] for key in self.keys}):
            dp, rest = divmod(case.micro_batch, samples)
            if rest or not dp:
                continue
            sharded = dp * self.cp > 1
            for recompute in RECOMPUTE:
                if recompute in job.recompute:
                    yield Strategy(
                        dp=dp,
                        tp=tp,
                        cp=self.cp,
                        ep=self._expert_parallel(tp, dp, samples),
                        sequence_parallel=job.sequence_choices(tp)[0],
                        zero=self.zero if sharded else min(job.zero),
                        recompute=recompute,
                    )

    def _expert_parallel(self, tp: int, dp: int, samples: int) -> int:
        """Return the largest ``ep`` that stays in a node, else the least."""
        allowed = self.problem.job.expert_parallel
        eps = sorted(
            ep
            for key_tp, cp, ep, count in self.keys
            if (key_tp, cp, count) == (tp, self.cp, samples)
            and (dp * self.cp) % ep == 0
            and (allowed is None or ep in allowed)
        )
        inside = [ep for ep in eps if tp * ep <= self.node]
        return max(inside, default=min(eps, default=1))

    def _setup(self, case: BatchSplit, strategy: Strategy) -> Setup | None:
        """Return a setup, ``None`` if some layer has no cost."""
        block = Block(case.replicas, case.devices, 0, strategy.devices)
        passes = static_bytes = kept_bytes = 0
        for kind, count in self.layers_of.items():
            terms = self.model.layer_terms(
                self._first[kind], strategy, case.micro_batch, block, self.runtime
            )
            if terms is None:
                return None
            passes += count * (terms.forward + terms.backward)
            static_bytes += count * terms.static_bytes
            kept_bytes += count * terms.kept_bytes
        return Setup(case, strategy, passes, static_bytes, kept_bytes)

    def memory_bytes(self, setup: Setup, num_stages: int) -> int:
        """Return the textbook estimate per device, rounded up."""
        num_kept = in_flight(self.problem, setup.case, num_stages)
        share = setup.static_bytes + num_kept * setup.kept_bytes
        return ceil_div(share, num_stages)

    def slots(self, setup: Setup, num_stages: int) -> int:
        """Return ``M + p - 1``, the time slots of equation 1."""
        return setup.case.num_micro_batches + num_stages - 1
