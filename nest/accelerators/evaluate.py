"""Step times of points: quick bounds, and the search that proves them.

The step time of a point is that of the best plan of the problem whose layers take what
shortest schedules of their operators take. ``dp`` finds it, or proves that every plan
takes longer than a target. Each of its answers is judged: the plan is scored again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from nest.accelerators.architecture import Architecture
from nest.accelerators.objective import NO_PLAN
from nest.accelerators.workload import Workload
from nest.cost.space import batch_splits
from nest.errors import SolverError
from nest.ir.base import Struct
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Deadline, Limit, OutOfTimeError, SolveOptions, Status
from nest.units import MAX_TOTAL, ceil_div


class Solved(Struct, frozen=True, kw_only=True):
    """The result of a model on a point, or on several points together."""

    #: Of the task, see :class:`nest.accelerators.tasks.Task`.
    key: str
    #: No step is shorter; where no plan fits,
    #: :data:`~nest.accelerators.objective.NO_PLAN`.
    lower_quanta: int
    exact: bool
    #: That of the shortest step, where it is known.
    plan: Plan | None = None
    #: Of several points: the ``(R, B)`` with which some of them may have a plan within
    #: the target.
    splits: tuple[tuple[int, int], ...] = ()
    #: Whether time ran out: then nothing is known.
    out_of_time: bool = False


class WorkBound(NamedTuple):
    """The figures of a workload that :func:`work_bound` uses.

    ``counts`` are the layers of every kind. ``entries`` are of every kind the positions
    of its forward passes in :meth:`~nest.accelerators.workload.Workload.entries` (the
    backward ones follow them), with degrees times, and samples. ``splits`` are
    ``(P, M, B)``: devices of a replica, micro-batches, samples of one.
    """

    counts: tuple[int, ...]
    entries: tuple[tuple[tuple[int, int, int], ...], ...]
    splits: tuple[tuple[int, int, int], ...]


def bound_of(workload: Workload) -> WorkBound:
    """Return what bounds of a workload need."""
    graph = workload.base.graph
    by_kind: dict[str, list[tuple[int, int, int]]] = {}
    for index, (kind, key) in enumerate(workload.works):
        tp, cp, *_, samples = key
        by_kind.setdefault(kind, []).append((3 * index, tp * cp, samples))
    layers = [layer.kind for layer in graph.layers]
    kinds = sorted(set(layers))
    num_devices = workload.base.cluster.num_devices
    return WorkBound(
        tuple(layers.count(kind) for kind in kinds),
        tuple(tuple(by_kind[kind]) for kind in kinds),
        tuple(
            (num_devices // split.replicas, split.num_micro_batches, split.micro_batch)
            for split in batch_splits(workload.base)
        ),
    )


def work_bound(of: WorkBound, entries: Sequence[int]) -> int:
    """Return a lower bound on the step from the layers alone, in quanta.

    With ``P`` devices of a replica and ``M`` micro-batches, a stage ``s`` of
    ``n_s`` devices and ``τ_s`` has ``Σ n_s τ_s <= P max τ``, so that ``T >= Σ
    τ + (M - 1) max τ`` is at least the sum over layers of the least ``τ (P +
    (M - 1) n) / P`` of any strategy.
    """
    best = NO_PLAN
    for devices, micro_batches, samples in of.splits:
        total = 0
        for count, choices in zip(of.counts, of.entries, strict=True):
            min_work = min(
                (
                    (entries[at] + entries[at + 1])
                    * (devices + (micro_batches - 1) * size)
                    for at, degrees, each in choices
                    if samples % each == 0
                    and (size := degrees * (samples // each)) <= devices
                ),
                default=None,
            )
            if min_work is None:
                break
            total += count * min_work
        else:
            best = min(best, ceil_div(total, devices))
    return best


#: ``R`` and ``B`` of a plan.
Split = tuple[int, int]


def splits_of(problem: Problem) -> tuple[Split, ...]:
    """Return every ``(R, B)`` that plans of a problem may have."""
    return tuple((split.replicas, split.micro_batch) for split in batch_splits(problem))


def solve_point(
    workload: Workload,
    architecture: Architecture,
    splits: Sequence[Split],
    target_quanta: int,
    key: str = "",
    limit_s: float | None = None,
) -> Solved:
    """Return the least step of a model on a point, up to a target.

    ``splits`` are those with which a plan can be so fast, none for all there are.
    Longer steps than the target do not matter: a bound above it is an answer.

    Raises ``OutOfTimeError`` if it is not known in time, and ``SolverError`` if an
    answer of ``dp`` does not stand up to its judge.
    """
    step, plan, _ = prove_point(
        *(workload, architecture, splits, target_quanta), Deadline(limit_s)
    )
    return Solved(
        key=key, lower_quanta=step, exact=plan is not None or step >= NO_PLAN, plan=plan
    )


def prove_point(
    workload: Workload,
    architecture: Architecture,
    splits: Sequence[Split],
    target_quanta: int,
    deadline: Deadline,
) -> tuple[int, Plan | None, dict[int, int]]:
    """Return the least step in quanta, its plan, and times that prove it.

    Of passes in ps, see :meth:`~nest.accelerators.workload.Workload.quick`:
    those of shortest schedules, where these are quickly known or the proof
    needs them, and bounds on the others. See :func:`solve_point` for all else.
    """
    times, proven = workload.quick(architecture)
    while True:
        problem = workload.problem(architecture, workload.entries(times))
        step, plan = _best_of(problem, splits, target_quanta, deadline)
        if plan is None:
            break
        # Bounds make no plan slower. So the best one is the best with all
        # times once its own are proven; those of others do not matter.
        unproven = workload.passes_of(plan) - proven
        shortest = workload.shortest(architecture, deadline, unproven)
        proven |= unproven
        if shortest.items() <= times.items():
            break
        times |= shortest
    return step, plan, times


def _best_of(
    problem: Problem, splits: Sequence[Split], target_quanta: int, deadline: Deadline
) -> tuple[int, Plan | None]:
    """Return the best plan with some splits, all if there are none."""
    if not splits:
        return best_plan(problem, target_quanta, limit_s=deadline.remaining_s)
    step, plan = min(MAX_TOTAL, target_quanta) + 1, None
    for split in splits:
        other = best_plan(
            restricted(problem, split), step - 1, limit_s=deadline.remaining_s
        )
        if other[1] is not None:
            step, plan = other
    return step, plan


def solve_together(
    workload: Workload,
    architecture: Architecture,
    entries: Sequence[int],
    splits: Sequence[Split],
    target_quanta: int,
    key: str = "",
    limit_s: float | None = None,
) -> Solved:
    """Return with which splits some points can have plans up to a target.

    ``architecture`` has as much memory, and as fast links, as any of the points, and
    passes take at least ``entries`` on any of them, see
    :meth:`~nest.accelerators.workload.Workload.entries`. ``splits`` are looked at, and
    all others ruled out; none for all.

    Raises ``OutOfTimeError`` if it is not known in time, and ``SolverError`` if an
    answer of ``dp`` does not stand up to its judge.
    """
    problem = workload.problem(architecture, entries)
    deadline = Deadline(limit_s)
    possible = []
    for split in splits or splits_of(problem):
        one = restricted(problem, split)
        _, plan = best_plan(
            one, target_quanta, any_plan=True, limit_s=deadline.remaining_s
        )
        if plan is not None:
            possible.append(split)
    return Solved(
        key=key,
        lower_quanta=0 if possible else target_quanta + 1,
        exact=False,
        splits=tuple(possible),
    )


def restricted(problem: Problem, split: Split) -> Problem:
    """Return a problem whose plans all have some ``R`` and ``B``."""
    replicas, micro_batch = split
    return replace(
        problem,
        job=replace(problem.job, replicas=(replicas,), micro_batches=(micro_batch,)),
    )


def best_plan(
    problem: Problem,
    target_quanta: int = MAX_TOTAL,
    *,
    any_plan: bool = False,
    limit_s: float | None = None,
) -> tuple[int, Plan | None]:
    """Return the least step in quanta and its plan, as ``dp`` proves them.

    :data:`~nest.accelerators.objective.NO_PLAN` if no plan fits. Where every
    plan takes longer than the target it is a bound above that, and no plan. With
    ``any_plan`` any plan up to the target will do.

    Raises ``OutOfTimeError`` if it is not known in time, and ``SolverError`` if the
    answer is wrong, or no proof.
    """
    from nest.search.solver import DpSolver
    from nest.solvers.challenge import SHARE, reported
    from nest.solvers.judge import judge
    from nest.solvers.result import Outcome

    if limit_s is not None and limit_s <= 0:
        raise OutOfTimeError
    extra = {}
    if target_quanta < MAX_TOTAL:
        option = "at_most_quanta" if any_plan else "within_quanta"
        extra[option] = str(max(target_quanta, 0))
    clock = Deadline(None)
    claim = DpSolver().solve(
        problem, SolveOptions(num_workers=1, time_limit_s=limit_s, extra=extra)
    )
    verdict = judge(
        *(problem, claim),
        capabilities=DpSolver.capabilities,
        challenge=Deadline(SHARE * clock.elapsed_s),
    )
    if "contradiction" in verdict.extra:
        raise SolverError(reported(problem, verdict.detail))
    bound = verdict.lower_bound_quanta
    if verdict.outcome is Outcome.SOLVED and bound and bound > target_quanta:
        return bound, None
    if verdict.status is Status.INFEASIBLE:
        return NO_PLAN, None
    proven = Status.FEASIBLE if any_plan else Status.OPTIMAL
    if verdict.limit is Limit.TIME:
        raise OutOfTimeError
    if verdict.status not in (proven, Status.OPTIMAL) or not verdict.score:
        raise SolverError(
            f"{problem.name}: expected a proven optimum of dp, got "
            f"{verdict.outcome} ({verdict.status}): {verdict.detail}"
        )
    return verdict.score.step_quanta, verdict.plan
