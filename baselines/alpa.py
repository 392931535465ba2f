"""``alpa``: two nested programs, one inside stages and one over them.

Zheng, Li, Zhang, Zhuang, Chen, Huang, Wang, Xu, Zhuo, Xing, Gonzalez, Stoica,
*Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep
Learning*, OSDI 2022 (arXiv 2201.12023), re-implemented; rules as in its code
at b8078a9f (December 2023).

Search space
    One pipeline on all ``N`` devices, no fewer. Layers are clustered
    (:mod:`baselines.alpa_layers`), stages are runs of clusters. A stage gets a
    submesh, a power of two devices of a node or 2, 4, 8, … whole nodes, and a
    logical mesh ``dp × tp`` on it with ``tp`` at most a node
    (:mod:`baselines.alpa_intra`). With ``granularity: layer`` the layers of a
    stage may differ, by an integer program that counts resharding, not memory.

    The number of micro-batches, recomputation and ZeRO are no part of its search, they
    are what its users set: here every micro-batch of the job is tried with and without
    full recomputation, and the best plan by Alpa's objective is kept.

Objective
    ``T = Σ t + (M-1) max t`` (:mod:`baselines.alpa_inter`), ``t`` the forward
    and backward pass of one micro-batch with the collectives inside the stage,
    ``M`` the micro-batches. Memory is bounded by ``max_n_succ``.

Ignored
    Gradient synchronization and optimizer update, what passes between stages,
    where in the cluster a stage sits (every stage is priced as if it sat on
    the first devices), context parallelism, idle devices as a way out.

Deviations
    - Layers are the operators. Times and memory come from the shared cost
      model, in place of compiling and profiling every stage, and so do the shardings of
      a layer: batch, tensor and expert splits that have a cost entry.
    - The integer program sees those layer times and the shared resharding
      costs (a message forward and one backward wherever the layout changes), in place
      of the code's α–β costs per operator; so what it minimizes is ``t`` itself.
      Gradient synchronization is left out of it as it is out of ``t``. It is solved as
      the minimum cut that it then is, not by CBC within 600 s.
    - Experts are split over the whole batch axis of the mesh or not at all;
      Alpa could split them over the other axis as well.
    - Stages sit side by side in pipeline order, as everywhere here. Alpa
      places the largest submesh first, so that none sits on more nodes than it
      must; a plan whose stages do so in pipeline order would not be Alpa's. So
      only pipelines without such stages are searched, unless option
      ``placement`` is ``any``; the detail of an answer then counts them.
    - Times are integers: no gap of 1e-6 between the values of ``t_max``, no
      float32. The values of ``t_max`` are searched in another order.
    - Flags are those of the published suites (``suite_auto_gpt.py``) as far as
      they go: reduce-scatter and all-gather in place of the all-reduce of gradients,
      with sharded optimizer state (``prefer_reduce_scatter``), is ZeRO 1 here. They set
      6 to 16 clusters by hand, here 16 is the default; and they recompute always, by
      layer, which here is tried beside no recomputation. A job that does not allow ZeRO
      1 gets the lowest stage that it allows; one with neither ``none`` nor ``full``
      recomputation what it has.
    - A node is the lowest level of the network that joins several devices.
    - Under a preset whose stages share one strategy the ranks of the first
      axis of a mesh are replicas of the pipeline: a submesh of ``n`` devices
      is ``n/R`` devices of each of ``R`` replicas, and every ``R`` is tried.
"""

from __future__ import annotations

import numpy as np

from baselines.alpa_inter import INFINITE, best_pipeline, straddles
from baselines.alpa_intra import (
    Candidate,
    candidates,
    mesh_configurations,
    submesh_sizes,
)
from baselines.alpa_layers import cluster, read_graph
from baselines.common import (
    Planner,
    Search,
    StageChoice,
    make_plan,
    node_size,
    one_strategy_per_stage,
    why_not_alike,
    why_not_contexts,
    why_not_turns,
)
from baselines.transfers import Transfers
from nest.cost.rules import get_rules
from nest.cost.space import BatchSplit, batch_splits, stage_counts, strategies
from nest.ir.plan import RECOMPUTE, Plan, Recompute
from nest.ir.problem import Problem
from nest.solvers.base import OutOfTimeError, SolverOutput
from nest.units import quanta_to_ns

#: Clusters of layers, unless option ``clusters`` says otherwise.
NUM_CLUSTERS = 16

#: Values of the options: whether all numbers of nodes are submeshes, and
#: whether no stage may be on more nodes than it must.
SUBMESHES = {"power_of_two": False, "all": True}
PLACEMENTS = {"aligned": True, "any": False}


def why_not_one_pipeline(problem: Problem) -> str | None:
    """Return why the job leaves no plan in Alpa's space, if so."""
    demands = [("context_parallel", "no context parallelism")]
    if not get_rules(problem.preset).one_strategy:
        demands.insert(0, ("replicas", "a single pipeline"))
    for field, what in demands:
        allowed = getattr(problem.job, field)
        if allowed is not None and 1 not in allowed:
            return (
                f"$.job.{field}: expected 1 among the allowed values, as Alpa searches "
                f"{what}, got {list(allowed)}; add 1 or use solver dp"
            )
    return None


class AlpaSolver(Planner):
    """Alpa's two programs, for every micro-batch that the job allows."""

    name = "alpa"
    capabilities = Planner.promises(
        method="Alpa (re-impl.): integer program in stages, DP over them",
        requires=("numpy", "networkx"),
        objective=(
            "Σ t + (M-1) max t without gradient sync and without what "
            "passes between stages"
        ),
        options={
            "clusters": (
                f"join the layers to this many clusters (default {NUM_CLUSTERS})"
            ),
            "recompute": (
                "none, selective, full, or auto, the better of none and full "
                "(default auto)"
            ),
            "zero": ("ZeRO stage of all layers (default 1, or the job's lowest)"),
            "submeshes": (
                "power_of_two or all numbers of nodes (default power_of_two)"
            ),
            "placement": (
                "aligned, no stage on more nodes than it must, or any (default aligned)"
            ),
        },
    )

    refusals = (why_not_turns, why_not_alike, why_not_one_pipeline, why_not_contexts)

    def run(self, search: Search) -> SolverOutput:
        """Search for Alpa's plan."""
        space = Space(search)
        grid = [
            (case, recompute)
            for recompute in space.recompute
            for case in batch_splits(search.problem)
            if case.replicas == 1 or search.by_replicas
        ]
        for count, (case, recompute) in enumerate(grid, 1):
            search.say(
                f"micro-batch {case.micro_batch}, recompute {recompute} "
                f"({count} of {len(grid)})"
            )
            try:
                space.improve(case, recompute)
            except OutOfTimeError:
                search.stopped = True
                search.notes.append(f"{count - 1} of {len(grid)} searches done")
                break
        return search.answer(*space.remarks())


class Space:
    """What Alpa chooses from, and the best value in it so far, in quanta."""

    def __init__(self, search: Search) -> None:
        problem = search.problem
        self.search = search
        num_clusters = search.count("clusters", NUM_CLUSTERS)
        self.recompute = _read_recompute(search)
        self.zero = _read_zero(search)
        every = search.choice("submeshes", SUBMESHES, "power_of_two")
        aligned = search.choice("placement", PLACEMENTS, "aligned")
        self.transfers = Transfers(search.model)
        self.clusters = cluster(*read_graph(self.transfers), num_clusters)
        search.notes.append(f"{len(self.clusters)} clusters")
        self.node = node_size(problem)
        self.aligned = self.node if aligned else None
        self.sizes = submesh_sizes(self.node, problem.cluster.num_devices, every=every)
        self.objective = INFINITE

    def improve(self, case: BatchSplit, recompute: Recompute) -> None:
        """Look for a plan of one case that is better than the best.

        Raises ``OutOfTimeError`` if time runs out.
        """
        problem = self.search.problem
        ways = self._candidates(case, recompute)
        counts = [
            count
            for count in stage_counts(problem, case)
            if count <= len(self.clusters)
        ]
        if not ways or not counts:
            return
        pipeline = best_pipeline(
            self._times(ways, max(counts)),
            self.sizes,
            problem.cluster.num_devices,
            case.num_micro_batches,
            counts,
            node=self.aligned,
            cutoff=self.objective,
            check_time=self.search.deadline.check,
        )
        if pipeline is not None:
            self.objective = pipeline.objective(case.num_micro_batches)
            self.search.improve(
                self._plan(case, ways, pipeline.stages),
                quanta_to_ns(self.objective, problem.quantum_ps),
            )

    def _candidates(self, case: BatchSplit, recompute: Recompute) -> list[Candidate]:
        usable = [
            s
            for s in strategies(self.search.problem, case.micro_batch)
            if s.cp == 1
            and s.ep in (1, s.dp)
            and s.recompute == recompute
            # on one rank all ZeRO stages are the same, and one is listed
            and (s.zero == self.zero or s.dp == 1)
        ]
        per_layer = not one_strategy_per_stage(self.search.problem)
        deadline = self.search.deadline
        ways: list[Candidate] = []
        for size in self.sizes:
            devices, rest = divmod(size, case.replicas)
            if rest:
                continue
            for choices in mesh_configurations(
                usable, devices, self.node, per_layer=per_layer
            ):
                deadline.check()
                ways += (
                    candidate._replace(size=size)
                    for candidate in candidates(
                        self.transfers, case, self.clusters, choices, deadline
                    )
                )
        return ways

    def _times(
        self, ways: list[Candidate], most_stages: int
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Return the least times by (behind, first, last, submesh)."""
        num_clusters = len(self.clusters)
        times = np.full(
            (most_stages, num_clusters, num_clusters, len(self.sizes)),
            INFINITE,
            dtype=np.int64,
        )
        for (start, stop), size, time, num_after, _ in ways:
            fastest = times[: num_after + 1, start, stop - 1, self.sizes.index(size)]
            np.minimum(fastest, time, out=fastest)
        return times

    def _plan(
        self,
        case: BatchSplit,
        ways: list[Candidate],
        placed: tuple[tuple[int, int, int], ...],
    ) -> Plan:
        stages: list[StageChoice] = []
        for count, (start, stop, position) in enumerate(placed, 1):
            best = min(
                (
                    candidate
                    for candidate in ways
                    if candidate.clusters == (start, stop)
                    and candidate.size == self.sizes[position]
                    and candidate.behind >= len(placed) - count
                ),
                key=lambda candidate: candidate.time,
            )
            first, last = self.clusters[start], self.clusters[stop - 1]
            stages.append((first[0], last[1], best.strategies))
        return make_plan(self.search.problem, case, stages)

    def remarks(self) -> list[str]:
        """Return what there is to say about the answer."""
        plan = self.search.plan
        if plan is None:
            num_devices = self.search.problem.cluster.num_devices
            return [
                f"no pipeline of submeshes uses exactly {num_devices} devices and fits"
            ]
        straddling = offset = 0
        for stage in plan.stages:
            size = plan.replicas * stage.devices
            straddling += straddles(offset, size, self.node)
            offset += size
        if not straddling:
            return []
        return [
            f"{straddling} of {len(plan.stages)} stages on more nodes than they must"
        ]


def _read_recompute(search: Search) -> list[Recompute]:
    allowed: list[Recompute] = [
        name for name in RECOMPUTE if name in search.problem.job.recompute
    ]
    choices: dict[str, list[Recompute]] = {
        "auto": [name for name in allowed if name != "selective"] or allowed,
        **{name: [name] for name in allowed},
    }
    return search.choice("recompute", choices, "auto")


def _read_zero(search: Search) -> int:
    choices = {str(zero): zero for zero in sorted(search.problem.job.zero)}
    default = "1" if "1" in choices else next(iter(choices))
    return search.choice("zero", choices, default)
