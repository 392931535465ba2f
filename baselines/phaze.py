"""``phaze``: Phaze's device placement program.

Source: Wang, Tarnawski, Phanishayee, Mahajan, "Integrated Hardware
Architecture and Device Placement Search" (Phaze), ICML 2024; its published
solver ``device_placement.cpp``. How Phaze costs a layer on an accelerator of
tensor and vector cores is :mod:`nest.operator_schedule`.

Search space
    One tensor parallel degree ``t``, one number ``d`` of replicas and one
    recomputation flag for the whole model; sequences of stages, each a
    difference of two closed sets of the graph; micro-batch sizes.

Objective
    For a stage ``S`` with ``s`` stages from it to the end of the pipeline,
    ``in`` (``out``) the slowest edge ``c/β`` that enters (leaves) it on a flat
    network without latency, ``F`` and ``G`` the forward and backward passes of
    its layers::

        load     = (in + F) + (out + G)          if s = 1 or nothing recomputed
        load     = (in + F) + (max(F, out) + G)  else
        memory   = weights, gradients, state + A + (s-1) stash
        dp[D][s] = min over D' ⊂ D of max(dp[D'][s-1], load(D - D', s))
        step     = max load · (m + s - 1) + 4 (d-1)/d W_first / β

    ``A`` are all activations of the stage, ``stash`` the same, or with recomputation
    the bytes of the edges that enter; ``s`` counts all stages in the last line, ``m =
    ⌈N/d⌉`` of ``N`` micro-batches. Only the first stage's weights ``W_first`` are
    synchronized, so the choice of the first stage weighs them. Exactly ``s`` stages of
    ``a`` devices each use ``s a`` of the ``⌊K/d⌋`` devices of a replica.

Ignored
    Levels and latency of the network, placement, the gradient sync of all
    stages but the first, the optimizer update, working sets of layers, ZeRO,
    context and expert parallelism.

In the shared plan space
    ``d`` is ``R``, with the least ``dp`` that the job allows inside a stage (``d = R
    dp``; 1 unless the job says otherwise; every ``dp`` where a preset has no replicas,
    as ``piper``); ``cp``, ``ep`` and ``zero`` are the least allowed with it. Every
    legal ``(R, B)`` is a run. The flag stands for recompute ``full``, or ``selective``
    where the job has no ``full``; the last stage recomputes nothing where it may.
    Passes include the collectives inside a layer, on the first devices of a replica;
    ``β`` is the bandwidth between the first and the last device of the cluster, and an
    edge is split over the data ranks of a stage. Activations without recomputation are
    what a layer keeps then; where the job does not allow that, what it keeps and what
    it needs to compute it again.

Deviations
    - Costs come from the shared tables, in whole quanta; the search over
      accelerators around the program is not done.
    - ``d`` is limited to legal ``(R, B)``; the code tries every ``d`` up to
      ``N`` and rounds.
    - Optimizer state is the job's, where the code knows SGD, and Adam with one
      copy.
    - Stages may branch: their passes add up. The code refuses such stages.
    - A graph with more than ``max_closed_sets`` closed sets is cut in one
      topological order; the code stops at 40,000.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from baselines import downsets
from baselines.common import Planner, Search, case_strategies, front_terms
from baselines.downsets import Floats, Ints, Stages
from nest.cost.model import CostModel
from nest.cost.space import BatchSplit, batch_splits, is_uniform, stage_counts
from nest.ir.plan import Strategy
from nest.solvers.base import Capabilities, SolverOutput
from nest.topology.alphabeta import NS_PER_S
from nest.units import ceil_div

#: More stages than any pipeline has.
UNLIMITED = 2**31


class PhazeSolver(Planner):
    """Phaze's program over downsets, uniform degrees, its objective."""

    name = "phaze"
    shared_strategy = "as it is"
    capabilities = Capabilities(
        exact=False,
        anytime=True,
        method="Phaze (re-impl.): DP over closed sets, one strategy for all",
        requires=("numpy",),
        objective="step time, flat network, gradient sync of the first stage",
        overruns=True,
        options=downsets.CLOSED_SETS_OPTION,
    )

    def run(self, search: Search) -> SolverOutput:
        """Return the best plan by Phaze's objective."""
        stages = downsets.read_stages(search)
        model = search.model
        runs = batch_splits(search.problem)
        best_ns = np.inf
        for number, case in enumerate(runs, 1):
            search.say(f"case {number} of {len(runs)}")
            for setting in settings(model, case):
                if search.out_of_time():
                    return search.answer(f"{number - 1} of {len(runs)} cases searched")
                tables = make_tables(model, stages, case, setting)
                counts = [
                    count
                    for count in stage_counts(search.problem, case)
                    if count * setting.devices <= case.devices
                    and _may_take_turns(model, case, setting, count)
                ]
                partition = best_stages(stages, tables, counts, best_ns)
                if partition is not None:
                    best_ns = partition.step_ns
                    layers = [stages.layers(x) for x in partition.stages]
                    chosen = [[setting.main]] * (len(layers) - 1)
                    plan = downsets.plan_of(
                        search.problem,
                        case,
                        zip(layers, [*chosen, [setting.last]], strict=True),
                    )
                    search.improve(plan, best_ns)
        if search.plan is None:
            return search.answer("no plan fits by its own memory model")
        return search.answer()


class Setting(NamedTuple):
    """The strategies of a run.

    ``plain`` is without recomputation, ``None`` if the job does not allow that;
    ``recomputing`` is with it, ``None`` if the flag is off.
    """

    plain: Strategy | None
    recomputing: Strategy | None

    @property
    def devices(self) -> int:
        """Devices ``a`` of every stage."""
        return self.main.devices

    @property
    def main(self) -> Strategy:
        """The strategy of every stage but the last."""
        chosen = self.recomputing or self.plain
        assert chosen is not None
        return chosen

    @property
    def last(self) -> Strategy:
        """The strategy of the last stage, which needs no recomputation."""
        return self.plain or self.main


def settings(model: CostModel, case: BatchSplit) -> Iterator[Setting]:
    """Yield the tensor parallel degrees and flags of a case."""
    round_robin = model.rules.round_robin
    for group in downsets.least_degrees(
        case_strategies(model.problem, case),
        key=lambda s: (s.tp, s.dp if round_robin else 0),
        rest=lambda s: (s.dp, s.cp, s.ep, s.zero),
    ):
        by_recompute = {s.recompute: s for s in group}
        plain = by_recompute.get("none")
        recomputing = by_recompute.get("full") or by_recompute.get("selective")
        if plain is not None and not _runs(model, case, plain):
            plain = None
        if plain is not None:
            yield Setting(plain, None)
        if recomputing is not None and _runs(model, case, recomputing):
            # Uniform plans cannot spare the last stage.
            spared = None if is_uniform(model.problem) else plain
            yield Setting(spared, recomputing)


def _runs(model: CostModel, case: BatchSplit, strategy: Strategy) -> bool:
    """Whether every layer has a cost."""
    return all(
        model.available(layer, strategy, case.micro_batch) is None
        for layer in range(len(model.problem.graph.layers))
    )


def _may_take_turns(
    model: CostModel, case: BatchSplit, setting: Setting, count: int
) -> bool:
    """Whether there is a micro-batch per rank, where a preset asks for it."""
    if not model.rules.round_robin:
        return True
    return count * setting.main.dp <= case.num_micro_batches


class Tables(NamedTuple):
    """What the program adds up, for every stage.

    All are ``(stages,)``: ``last_ns`` and ``inner_ns`` the load as the last stage and
    in front of others, ``most`` the largest ``s`` that fits its memory, 0 if none does,
    ``first_ns`` the gradient sync as the first stage.
    """

    last_ns: Floats
    inner_ns: Floats
    most: Ints
    first_ns: Floats
    num_micro_batches: int


def make_tables(
    model: CostModel, stages: Stages, case: BatchSplit, setting: Setting
) -> Tables:
    """Return the tables of a run that every layer has costs for."""
    problem, main = model.problem, setting.main
    forward, backward, repeated = [], [], []
    static, stored, weights = [], [], []
    for layer in range(len(problem.graph.layers)):
        terms = front_terms(model, case, layer, main)
        last = front_terms(model, case, layer, setting.last)
        assert terms is not None
        assert last is not None
        forward.append(terms.forward)
        backward.append(terms.backward - terms.recomputed)
        # The code repeats the forward pass whatever a preset charges.
        repeated.append(terms.forward if main.recompute == "full" else terms.recomputed)
        static.append(terms.static_bytes)
        stored.append(last.kept_bytes)
        if setting.last.recompute != "none":
            # Also what it computes again.
            stored[-1] += last.working_bytes - problem.cluster.reserve_bytes()
        weights.append(downsets.weight_bytes(model, layer, main, case.micro_batch))

    quantum_ns = problem.quantum_ps / 1000
    bandwidth = downsets.flat_bandwidth_bytes_per_s(model)
    sizes = [size for *_, size in model.transfers.edge_bytes(main.tp)]
    samples = model.rules.samples_per_rank(main, case.micro_batch) / main.cp
    into_ns, out_ns = (
        size * (samples / bandwidth * NS_PER_S)
        for size in (stages.entering(sizes, "max"), stages.leaving(sizes, "max"))
    )
    f, g, again_ns = (
        stages.sums(values) * quantum_ns for values in (forward, backward, repeated)
    )
    last_ns = into_ns + f + out_ns + g
    inner_ns = last_ns
    activations = stages.sums(stored)
    stash = activations.astype(np.float64)
    if setting.recomputing is not None:
        inner_ns = into_ns + f + np.maximum(again_ns, out_ns) + g
        stash = stages.entering(sizes) * samples

    cluster = problem.cluster
    capacity = cluster.memory_bytes() - cluster.reserve_bytes()
    room = capacity - stages.sums(static) - activations
    further = np.full(len(room), float(UNLIMITED))
    np.divide(room, stash, out=further, where=stash > 0)
    max_stages = 1 + np.minimum(np.floor(further), UNLIMITED).astype(np.int64)
    max_stages[room < 0] = 0

    replicas = case.replicas * main.data_ranks
    shared = 4 * (replicas - 1) / replicas * stages.sums(weights)
    ranks = main.dp if model.rules.round_robin else 1
    return Tables(
        last_ns,
        inner_ns,
        max_stages,
        shared.astype(np.float64) / bandwidth * NS_PER_S,
        ceil_div(case.num_micro_batches, ranks),
    )


class PhazePlan(NamedTuple):
    """A plan: its step time and its stages in pipeline order."""

    step_ns: float
    stages: list[int]


def best_stages(
    stages: Stages, tables: Tables, counts: Sequence[int], upper_ns: float
) -> PhazePlan | None:
    """Return the best partition with a step time below a bound.

    ``counts`` are the numbers of stages to choose from, ascending.
    """
    first_end = stages.first[1]
    values = np.full(stages.sets.count, np.inf)
    values[-1] = 0
    by_count = [values]
    best: tuple[int, int] | None = None
    for count in range(1, max(counts, default=0) + 1):
        worst = _worst(stages, tables, by_count[-1], count)
        if count in counts:
            rounds = tables.num_micro_batches + count - 1
            steps = worst[:first_end] * rounds + tables.first_ns[:first_end]
            if steps.min() < upper_ns:
                upper_ns = float(steps.min())
                best = count, int(steps.argmin())
        # Nothing leads from the whole graph to a further stage.
        values = np.full(stages.sets.count, np.inf)
        values[:-1] = np.minimum.reduceat(worst, stages.first[:-2])
        by_count.append(values)
    if best is None:
        return None
    count, stage = best
    path = [stage]
    while count > 1:
        count -= 1
        a = stages.target[stage]
        worst = _worst(stages, tables, by_count[count - 1], count)
        first, end = stages.first[a], stages.first[a + 1]
        stage = int(first + worst[first:end].argmin())
        path.append(stage)
    return PhazePlan(upper_ns, path)


def _worst(stages: Stages, tables: Tables, following: Floats, count: int) -> Floats:
    """Return the largest load of every stage and the best ones behind it."""
    load = tables.last_ns if count == 1 else tables.inner_ns
    load = np.where(tables.most >= count, load, np.inf)
    return np.maximum(load, following[stages.target])
