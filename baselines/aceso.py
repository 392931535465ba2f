"""``aceso``: Aceso's iterative alleviation of bottlenecks.

Liu et al., *Aceso: Efficient Parallel DNN Training through Iterative
Bottleneck Alleviation*, EuroSys 2024; the code followed is the branch Aceso
of github.com/microsoft/SuperScaler at fa80ad0, ``search/``.

Search space
    Stages of contiguous layers with a power of two of devices each, at most
    a node, that use all devices and end where a node ends; ``(dp, tp)`` per
    stage, or per layer where the job allows it; micro-batches. Computed
    again is what the memory of a stage asks for, and no more. The least
    ZeRO, context and expert parallelism that job and costs allow.

Search
    One per number of stages, from a balanced configuration. A trial takes the slowest
    stage (the fullest, if something does not fit) and applies the primitives of a table
    to it, in an order that follows from where the stage's time goes: fewer layers, more
    or less ``dp`` or ``tp`` with devices of other stages, a larger or smaller
    micro-batch. What is faster and fits is taken; else it searches on from every
    result, depth first, up to ``hops`` primitives deep, then from the next slowest
    stage. What was tried is not tried again. A trial that fails is followed by one from
    the best configuration left aside.

Objective
    ``max_s ((M-1) t_s + Σ t)``, ``t`` the passes of a stage, recomputation
    and what it receives at either end.

Memory
    Weights, gradients, optimizer state, the activations of as many
    micro-batches as there are stages from the stage on, and a reserve: the
    largest working set, and at least as much as the weights.

Ignored
    Gradient sync and optimizer update; levels of the network but node or not, and that
    links are shared; where a stage sits; tensors that pass a stage; replicas.

Deviations
    - Costs come from the shared tables, on the first devices, in whole
      quanta; the two ways of cutting a matrix are not told apart, and
      operators are layers.
    - Effort is counted in configurations tried instead of 200 s, so that the
      answer does not depend on the machine; searches take turns by trials.
    - A stage has at most a node's devices, where the code knows 1, 2, 4, 8.
    - A start whose ``tp`` has no cost has the largest that has one, ``dp``
      for the rest, and the smallest micro-batch for which there is that.
    - Where no number of stages can use all devices there are replicas, the
      fewest for which one can.
    - Where all stages have to be alike, primitives change all of them, and
      devices come from replicas and go to them.
    - Where every layer of a stage has one strategy, so has recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from baselines.aceso_primitives import Ledger, apply, groups, tune_layers, tune_stages
from baselines.aceso_view import Config, View
from baselines.common import Planner, Search, why_not_turns
from nest.solvers.base import SolverOutput
from nest.units import quanta_to_ns

EFFORT = 500
HOPS = 7
MOST_STAGES = 16
MOST_TRIALS = 100

#: How often a configuration is started from again once none is left aside.
MOST_RETURNS = 5

#: How much slower than the best what is left aside is at most, in fifths.
ASIDE = (6, 5)

Tune = Callable[[View, Ledger, Config], Config]

#: How configurations are fine-tuned after every trial.
TUNES: dict[str, Tune | None] = {
    "layers": tune_layers,
    "stages": tune_stages,
    "none": None,
}


class Trials:
    """The search of one number of stages.

    ``best`` is the best configuration so far that fits; its step time ``step``, in
    quanta, is infinite without one.
    """

    def __init__(self, view: View, start: Config, ledger: Ledger, hops: int) -> None:
        self.view = view
        self.judged = view.judged
        self.start = start
        self.ledger = ledger
        self.hops = hops
        self.best: Config | None = None
        self.step: float = math.inf
        self._seen: set[Config] = set()
        self._explored: dict[Config, int] = {}
        self._aside: dict[Config, None] = {}

    def improves(self, config: Config) -> bool:
        """Whether a configuration fits and is better than the best."""
        judged = self.judged(config)
        return judged.fits and judged.step < self.step

    def run(self, tune: Tune | None) -> Iterator[None]:
        """Search; yield after every trial."""
        config: Config | None = self.start
        memory_bytes = self.judged(self.start).memory_bytes
        self._take(self.start)
        again = False
        for _ in range(MOST_TRIALS):
            if config is None or self.ledger.spent:
                return
            new = self.trial(config, again=again)
            if tune is not None:
                new = tune(self.view, self.ledger, new)
            judged = self.judged(new)
            again = False
            over = memory_bytes > self.view.capacity
            if self.improves(new) or (over and judged.memory_bytes < memory_bytes):
                memory_bytes = judged.memory_bytes
                self._take(new)
                config = new
            else:
                config = self._leftover()
                if config is None:
                    again = True
                    config = self._known()
            yield

    def _take(self, config: Config) -> None:
        if self.improves(config):
            self.best, self.step = config, self.judged(config).step

    def _leftover(self) -> Config | None:
        """Take the best of what was left aside."""
        best = self.best_of(self._aside)
        if best is not None:
            del self._aside[best]
        return best

    def _known(self) -> Config | None:
        """Return the best of what was searched from, not too often."""
        best = self.best_of(
            [c for c, count in self._explored.items() if count < MOST_RETURNS]
        )
        if best is not None:
            self._explored[best] += 1
        return best

    def best_of(self, configs: Iterable[Config]) -> Config | None:
        """Return the fastest that fits, or else that with least memory."""

        def rank(config: Config) -> tuple[bool, int]:
            judged = self.judged(config)
            value = judged.step if judged.fits else judged.memory_bytes
            return (not judged.fits, value)

        return min(configs, key=rank, default=None)

    def trial(self, config: Config, *, again: bool) -> Config:
        """Return the first improvement, from bottleneck to bottleneck.

        Without one the best of what they led to.

        ``again`` says whether stages that were bottlenecks before count again.
        """
        self.ledger.forget_partners()
        results = [config]
        for _ in range(config.num_stages):
            new = self.hop(config, 0, again=again)
            if new is not None:
                results.append(new)
                if self.improves(new):
                    return new
        best = self.best_of(results)
        assert best is not None
        return best

    def hop(self, config: Config, depth: int, *, again: bool) -> Config | None:
        """Return what the primitives lead to from a configuration.

        The best improvement that a group of them makes at once, or else what
        searching on from their results leads to, the fastest first. Without
        an improvement the best of all.
        """
        if self.ledger.spent or depth == self.hops:
            return None
        self._seen.add(config)
        if not again:
            self._explored.setdefault(config, 0)
            self._aside.pop(config, None)
        bottleneck = self.ledger.target(config, self.judged(config), again=again)
        if bottleneck is None:
            return None
        results = [config]
        for primitives in groups(self.view, config, bottleneck):
            new = []
            for primitive in primitives:
                if self.ledger.spent:
                    break
                result = apply(
                    *(self.view, self.ledger, primitive.name), *(config, bottleneck)
                )
                if result is None or result in self._seen:
                    continue
                if self.view.judge(result) is not None:
                    new.append(result)
            limit = self.step * ASIDE[0] / ASIDE[1]
            for result in new:
                if self.judged(result).step < limit:
                    self._aside[result] = None
            better = [result for result in new if self.improves(result)]
            if better:
                return min(better, key=lambda c: self.judged(c).step)
            for result in sorted(new, key=lambda c: self.judged(c).step):
                results.append(result)
                deeper = self.hop(result, depth + 1, again=False)
                if deeper is not None:
                    if self.improves(deeper):
                        return deeper
                    results.append(deeper)
        return self.best_of(results)


class AcesoSolver(Planner):
    """Aceso (re-impl.)."""

    name = "aceso"
    shared_strategy = "as it is"
    refusals = (why_not_turns,)
    capabilities = Planner.promises(
        method="Aceso (re-impl.): primitives on bottlenecks, per pp",
        objective=(
            "max ((M-1) t + Σ t) without gradient sync, node or not for all network"
        ),
        options={
            "effort": (
                f"stop the search of a number of stages after this many "
                f"configurations tried (default {EFFORT})"
            ),
            "hops": (f"apply this many primitives in a row at most (default {HOPS})"),
            "stages": f"most stages (default {MOST_STAGES})",
            "tune": (
                "after every trial choose dp and tp anew for runs of layers, where the "
                "job allows a strategy per layer, for stages, or none (default layers)"
            ),
        },
    )

    def run(self, search: Search) -> SolverOutput:
        """Return the fastest configuration of all numbers of stages."""
        effort = search.count("effort", EFFORT)
        hops = search.count("hops", HOPS)
        most_stages = search.count("stages", MOST_STAGES)
        tune = search.choice("tune", TUNES, "layers")
        view = View(search.model)
        if tune is tune_layers and not view.per_layer:
            tune = None
        starts = view.starts(most_stages)
        if not starts:
            return search.answer(
                "no balanced configuration: stages of a power of two of devices, at "
                "most a node, that use all devices and whose layers have costs there"
            )
        trials = [
            Trials(view, start, Ledger(effort, search.out_of_time), hops)
            for start in starts
        ]
        running = [(each, each.run(tune)) for each in trials]
        best = math.inf
        while running:
            unsearched = []
            for each, turns in running:
                more = next(turns, turns) is None
                if each.best is not None and each.step < best:
                    best = each.step
                    search.improve(
                        view.plan(each.best),
                        quanta_to_ns(int(best), search.problem.quantum_ps),
                        f"{each.start.num_stages} stages",
                    )
                if more:
                    unsearched.append((each, turns))
            running = unsearched
        tried = sum(each.ledger.tried for each in trials)
        notes = [f"{tried} configurations of {len(trials)} numbers of stages"]
        if search.plan is None and not search.stopped:
            notes.insert(0, "nothing fits by its own count of the memory")
        return search.answer(*notes)
