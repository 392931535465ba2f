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

    The number of micro-batches, recomputation and ZeRO are no part of its
    search, they are what its users set: here every micro-batch of the job is
    tried with and without full recomputation, and the best plan by Alpa's
    objective is kept.

Objective
    ``T = Σ t + (M-1) max t`` (:mod:`baselines.alpa_inter`), ``t`` the forward
    and backward pass of one micro-batch with the collectives inside the stage,
    ``M`` the micro-batches. Memory is bounded by ``max_n_succ``.

Ignored
    Gradient synchronisation and optimiser update, what passes between stages,
    where in the cluster a stage sits (every stage is priced as if it sat on
    the first devices), context parallelism, idle devices as a way out.

Deviations
    - Layers are the operators. Times and memory come from the shared cost
      model, in place of compiling and profiling every stage, and so do the
      shardings of a layer: batch, tensor and expert splits that have a cost
      entry.
    - The integer program sees those layer times and the shared resharding
      costs (a message forward and one backward wherever the layout changes),
      in place of the code's α–β costs per operator; so what it minimises is
      ``t`` itself. Gradient synchronisation is left out of it as it is out of
      ``t``.
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
      they go: reduce-scatter and all-gather in place of the all-reduce of
      gradients, with sharded optimiser state (``prefer_reduce_scatter``), is
      ZeRO 1 here. They set 6 to 16 clusters by hand, here 16 is the default;
      and they recompute always, by layer, which here is tried beside no
      recomputation. A job that does not allow ZeRO 1 gets the lowest stage
      that it allows; one with neither ``none`` nor ``full`` recomputation what
      it has.
    - A node is the lowest level of the network that joins several devices.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from baselines.alpa_inter import (
    INFINITE,
    Pipeline,
    best_pipeline,
    straddles,
)
from baselines.alpa_intra import (
    StageChoices,
    mesh_configurations,
    stage_choices,
    submesh_sizes,
)
from baselines.alpa_layers import Span, cluster, read_graph
from baselines.common import (
    StageChoice,
    answer,
    chain,
    check_time,
    make_plan,
    node_size,
    one_strategy_per_stage,
    read_choice,
    read_count,
    why_not_alike,
    why_not_turns,
)
from nest.cost.model import CostModel
from nest.cost.space import BatchSplit, batch_splits, stage_counts, strategies
from nest.ir.plan import RECOMPUTE, Plan, Recompute, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Limit,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    ignore_progress,
)
from nest.units import quanta_to_ns

#: Clusters of layers, unless option ``layers`` says otherwise.
NUM_CLUSTERS = 16

#: Values of the options: whether all numbers of nodes are submeshes, and
#: whether no stage may be on more nodes than it must.
SUBMESHES = {"power_of_two": False, "all": True}
PLACEMENTS = {"aligned": True, "any": False}


class AlpaSolver:
    """Alpa's two programs, for every micro-batch that the job allows."""

    name: ClassVar[str] = "alpa"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=False,
        anytime=True,
        method="Alpa (re-impl.): integer program in stages, DP over them",
        requires=("numpy", "pulp"),
        searches=frozenset({"granularity"}),
        objective=(
            "Σ t + (M-1) max t without gradient sync and without what "
            "passes between stages"
        ),
        overruns=True,
        options={
            "clusters": (
                f"join the layers to this many clusters (default "
                f"{NUM_CLUSTERS})"
            ),
            "recompute": (
                "none, selective, full, or auto, the better of none and full "
                "(default auto)"
            ),
            "zero": (
                "ZeRO stage of all layers (default 1, or the job's lowest)"
            ),
            "submeshes": (
                "power_of_two or all numbers of nodes (default power_of_two)"
            ),
            "placement": (
                "aligned, no stage on more nodes than it must, or any "
                "(default aligned)"
            ),
        },
    )

    def unsupported(self, problem: Problem) -> str | None:
        """Return why Alpa's space does not meet the problem, or ``None``."""
        reason = why_not_turns(problem) or why_not_alike(problem)
        if reason is not None:
            return reason
        for field, what in (
            ("replicas", "a single pipeline"),
            ("context_parallel", "no context parallelism"),
        ):
            allowed = getattr(problem.job, field)
            if allowed is not None and 1 not in allowed:
                return (
                    f"$.job.{field}: expected 1 among the allowed values, as "
                    f"Alpa searches {what}, got {list(allowed)}; add 1 or "
                    f"use solver dp"
                )
        return None

    def solve(
        self,
        problem: Problem,
        options: SolveOptions,
        report: Report = ignore_progress,
    ) -> SolverOutput:
        """Search for Alpa's plan.

        Raises
        ------
        InvalidOptionError
            If an option is out of range, or not what the job allows.
        """
        deadline = Deadline(options.time_limit_s)
        search = _Search(problem, options, deadline)
        grid = [
            (case, recompute)
            for recompute in search.recompute
            for case in batch_splits(problem)
            if case.replicas == 1
        ]
        done = 0
        for case, recompute in grid:
            report(
                Progress(
                    message=f"micro-batch {case.micro_batch}, recompute "
                    f"{recompute} ({done + 1} of {len(grid)})"
                )
            )
            try:
                better = search.improve(case, recompute)
            except TimeoutError:
                break
            if better:
                report(Progress(plan=search.plan))
            done += 1
        return search.answer(done, len(grid))


class _Search:
    """The state of one search: what is fixed, and the best plan so far."""

    def __init__(
        self, problem: Problem, options: SolveOptions, deadline: Deadline
    ) -> None:
        self.problem, self.deadline = problem, deadline
        num_clusters = read_count(options, "alpa", "clusters", NUM_CLUSTERS)
        self.recompute = _read_recompute(problem, options)
        self.zero = _read_zero(problem, options)
        every = read_choice(
            options, "alpa", "submeshes", SUBMESHES, "power_of_two"
        )
        aligned = read_choice(
            options, "alpa", "placement", PLACEMENTS, "aligned"
        )
        self.model = CostModel(problem)
        self.order = chain(problem)
        self.clusters: list[Span] = cluster(
            *read_graph(self.model, self.order), num_clusters
        )
        self.node = node_size(problem)
        self.aligned = self.node if aligned else None
        self.sizes = submesh_sizes(
            self.node, problem.cluster.num_devices, every=every
        )
        self.known: dict[object, tuple[int, ...]] = {}
        self.plan: Plan | None = None
        self.objective = INFINITE

    def improve(self, case: BatchSplit, recompute: Recompute) -> bool:
        """Look for a plan of one case that is better than the best.

        Raises
        ------
        TimeoutError
            If time runs out.
        """
        choices = self._stages(case, recompute)
        counts = [
            count
            for count in stage_counts(self.problem, case)
            if count <= len(self.clusters)
        ]
        if not choices or not counts:
            return False
        times = self._times(choices, max(counts))
        found = best_pipeline(
            times,
            self.sizes,
            case.devices,
            case.num_micro_batches,
            counts,
            node=self.aligned,
            cutoff=self.objective,
            check_time=partial(check_time, self.deadline),
        )
        if found is None:
            return False
        self.objective = found.objective(case.num_micro_batches)
        self.plan = self._plan(case, choices, found)
        return True

    def _usable(
        self, case: BatchSplit, recompute: Recompute
    ) -> list[Strategy]:
        return [
            s
            for s in strategies(self.problem, case.micro_batch)
            if s.cp == 1
            and s.ep in (1, s.dp)
            and s.recompute == recompute
            # on one rank all ZeRO stages are the same, and one is listed
            and (s.zero == self.zero or s.dp == 1)
        ]

    def _stages(
        self, case: BatchSplit, recompute: Recompute
    ) -> list[StageChoices]:
        usable = self._usable(case, recompute)
        found = []
        for size in self.sizes:
            for strategies_of in mesh_configurations(
                usable,
                size,
                self.node,
                per_layer=not one_strategy_per_stage(self.problem),
            ):
                check_time(self.deadline)
                found.append(
                    stage_choices(
                        self.model,
                        case,
                        self.order,
                        self.clusters,
                        strategies_of,
                        self.deadline,
                        self.known,
                    )
                )
        return found

    def _times(
        self, choices: list[StageChoices], most_stages: int
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Return the least times by (behind, first, last, submesh)."""
        num_clusters = len(self.clusters)
        times = np.full(
            (most_stages, num_clusters, num_clusters, len(self.sizes)),
            INFINITE,
            dtype=np.int64,
        )
        behind = np.arange(most_stages)[:, None, None]
        for choice in choices:
            least = times[..., self.sizes.index(choice.size)]
            fits = behind <= choice.behind[None]
            np.minimum(
                least, np.where(fits, choice.times[None], INFINITE), out=least
            )
        return times

    def _plan(
        self, case: BatchSplit, choices: list[StageChoices], found: Pipeline
    ) -> Plan:
        stages: list[StageChoice] = []
        for number, (start, stop, position) in enumerate(found.stages, 1):
            behind = len(found.stages) - number
            place = (start, stop - 1)
            best = min(
                (
                    choice
                    for choice in choices
                    if choice.size == self.sizes[position]
                    and choice.behind[place] >= behind
                ),
                key=lambda choice: choice.times[place],
            )
            stages.append(
                (
                    self.clusters[start][0],
                    self.clusters[stop - 1][1],
                    best.chosen.get(place, best.strategies[0]),
                )
            )
        return make_plan(self.problem, case, stages)

    def answer(self, done: int, total: int) -> SolverOutput:
        """Return what was found after ``done`` of ``total`` searches."""
        limit = Limit.TIME if done < total else None
        notes = [f"{len(self.clusters)} clusters"]
        if limit:
            notes.append(f"{done} of {total} searches done")
        if self.plan is None:
            num_devices = self.problem.cluster.num_devices
            notes.append(
                f"no pipeline of submeshes uses exactly {num_devices} devices "
                f"and fits"
            )
            return answer(None, limit=limit, detail="; ".join(notes))
        straddling = self._straddling(self.plan)
        if straddling:
            notes.append(
                f"{straddling} of {len(self.plan.stages)} stages on more "
                f"nodes than they must"
            )
        return answer(
            self.plan,
            quanta_to_ns(self.objective, self.problem.quantum_ps),
            limit=limit,
            detail="; ".join(notes),
        )

    def _straddling(self, plan: Plan) -> int:
        """Count the stages on more nodes than Alpa would place them."""
        count = offset = 0
        for stage in plan.stages:
            count += straddles(offset, stage.devices, self.node)
            offset += stage.devices
        return count


# Options


def _read_recompute(
    problem: Problem, options: SolveOptions
) -> list[Recompute]:
    allowed: list[Recompute] = [
        name for name in RECOMPUTE if name in problem.job.recompute
    ]
    choices: dict[str, list[Recompute]] = {
        "auto": [name for name in allowed if name != "selective"] or allowed,
        **{name: [name] for name in allowed},
    }
    return read_choice(options, "alpa", "recompute", choices, "auto")


def _read_zero(problem: Problem, options: SolveOptions) -> int:
    choices = {str(zero): zero for zero in sorted(problem.job.zero)}
    default = "1" if "1" in choices else next(iter(choices))
    return read_choice(options, "alpa", "zero", choices, default)
