"""The best plan: bound every split of the batch, search what is left.

Splits ``(R, B)`` are discarded only when a proven lower bound of theirs is no
better than a plan in hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import cases
from nest.ir.plan import Plan, Stage
from nest.search.bounds import Places, Target
from nest.search.closed_sets import ClosedSets
from nest.search.labels import LabelSearch
from nest.search.options import (
    INFINITE,
    BatchTerms,
    PairOptions,
    StageOptions,
    StageShapes,
)
from nest.search.parallel import OutOfTimeError
from nest.search.paths import Path, Paths
from nest.solvers.base import (
    Deadline,
    Limit,
    Progress,
    Report,
    SolverOutput,
    Status,
)
from nest.units import ceil_div

#: Guesses at the best step time, as multiples of the least bound.
GUESSES = (1.1, 1.3, 1.7, 3.0, 10.0)


@dataclass(eq=False)
class OpenSplit:
    """A split that is not settled, and lower bounds on ``T`` and ``Σ τ``."""

    options: StageOptions
    bound: int
    least_total: int

    def limit(self, upper: int) -> int:
        """Return a load that no stage of a plan below ``upper`` reaches.

        ``T >= (M-1) τ + max(τ, least Σ τ)``.
        """
        extra = self.options.extra_slots
        limit = ceil_div(upper, extra + 1)
        if extra:
            limit = min(limit, ceil_div(upper - self.least_total, extra))
        return limit


def work_bound(options: StageOptions) -> tuple[int, int]:
    """Return lower bounds on ``T`` and on ``Σ τ`` from the layers alone.

    With ``w`` the least ``n τ`` and ``t`` the least ``τ`` of a layer:
    ``Σ_s n_s τ_s <= P max τ``, so ``max τ >= Σ w / P``; also ``max τ >= max
    t`` and ``Σ τ >= max(Σ t, max τ)``. A layer takes ``m`` device-bytes at
    least, so ``Σ m > P · capacity`` proves the split infeasible.
    """
    infeasible = int(INFINITE), int(INFINITE)
    free, devices = options.terms.free, options.split.devices
    if not options.stage_counts or free is None or not options.usable.any():
        return infeasible
    usable = options.usable[:, None] & ~free.missing
    if not usable.any(axis=0).all():
        return infeasible
    sizes = options.terms.devices[:, None]
    load = free.forward + free.backward
    space = free.static_bytes + free.kept_bytes
    counts = options.shapes.kind_counts[-1]

    def least(values: np.ndarray) -> list[int]:
        return np.where(usable, values, INFINITE).min(axis=0).tolist()

    def total(values: list[int]) -> int:
        return sum(
            count * value
            for count, value in zip(counts.tolist(), values, strict=True)
        )

    capacity = options.model.problem.cluster.memory_bytes()
    if total(least(sizes * space)) > devices * capacity:
        return infeasible
    times = least(load)
    worst = max(ceil_div(total(least(sizes * load)), devices), *times)
    least_total = max(total(times), worst)
    return least_total + options.extra_slots * worst, least_total


def open_splits(
    model: CostModel, sets: ClosedSets, deadline: Deadline
) -> list[OpenSplit]:
    """Return the splits that are not infeasible at first sight."""
    shapes = StageShapes(model, sets)
    terms: dict[int, BatchTerms] = {}
    found = []
    for split in cases(model.problem):
        if deadline.passed:
            raise OutOfTimeError
        if split.micro_batch not in terms:
            terms[split.micro_batch] = BatchTerms(shapes, split.micro_batch)
        options = StageOptions(terms[split.micro_batch], split)
        bound, least_total = work_bound(options)
        if bound < INFINITE:
            found.append(OpenSplit(options, bound, least_total))
    return found


def make_plan(
    options: StageOptions, stages: list[tuple[int, int, int, int]]
) -> Plan:
    """Turn closed sets and strategies into a plan."""
    problem, member = options.model.problem, options.shapes.sets.member
    order = problem.graph.topological_order()
    made = []
    for source, target, chosen, devices in stages:
        inside = member[target] & ~member[source]
        strategies = options.layer_strategies(chosen)
        alike = len(set(strategies)) == 1
        made.append(
            Stage(
                layers=tuple(
                    problem.graph.layers[i].id for i in order if inside[i]
                ),
                devices=devices,
                strategy=strategies[0] if alike else None,
                strategies=None if alike else strategies,
            )
        )
    return Plan(
        replicas=options.split.replicas,
        micro_batch=options.split.micro_batch,
        stages=tuple(made),
    )


class BestSearch:
    """The best plan of a problem with one strategy per stage.

    Parameters
    ----------
    model, sets
        Cost terms and closed sets.
    deadline, report
        The clock, and where progress goes.
    upper, plan
        Step time in quanta and plan of a warm start, or ``None``.
    """

    def __init__(
        self,
        model: CostModel,
        sets: ClosedSets,
        deadline: Deadline,
        report: Report,
        upper: int | None,
        plan: Plan | None,
    ) -> None:
        self.model, self.sets = model, sets
        self.deadline, self.report = deadline, report
        self.best = int(INFINITE) if upper is None else upper
        self.plan = plan
        self.capacity = model.problem.cluster.memory_bytes()
        self.open: list[OpenSplit] = []

    def run(self) -> SolverOutput:
        """Search every split."""
        try:
            self.open = open_splits(self.model, self.sets, self.deadline)
        except OutOfTimeError:
            return self._output(0, Limit.TIME, "while bounding splits")
        try:
            self._start()
            self._prove()
        except OutOfTimeError:
            detail = f"{len(self.open)} choices of (R, B) not settled"
            return self._output(self._proven(), Limit.TIME, detail)
        return self._output(self.best, None, "")

    def _proven(self) -> int:
        return min([self.best] + [item.bound for item in self.open])

    def _start(self) -> None:
        """Bound every split, and find plans to start from."""
        least = min((item.bound for item in self.open), default=0)
        for guess in (*GUESSES, None):
            upper = int(INFINITE) if guess is None else int(guess * least) + 1
            for item in sorted(self.open, key=lambda item: item.bound):
                if item.bound < min(upper, self.best):
                    self._bounded(item, min(upper, self.best))
            self._settle()
            if self.best < upper:
                break

    def _settle(self) -> None:
        self.open = [item for item in self.open if item.bound < self.best]
        self.report(Progress(lower_bound_quanta=self._proven()))

    def _prove(self) -> None:
        """Search what is left, the most promising splits first."""
        self.open.sort(key=lambda item: item.bound)
        while self.open:
            item = self.open[0]
            if item.bound < self.best:
                self._search(item)
            self.open.pop(0)
            self._settle()

    def _bounded(self, item: OpenSplit, upper: int) -> list[PairOptions]:
        """Bound a split; return the options of plans below ``upper``."""
        if self.deadline.passed:
            raise OutOfTimeError
        options = item.options

        def offer(path: Path) -> int:
            if path.total + options.extra_slots * path.worst < self.best:
                self._offer(options, path.stages)
            return min(upper, self.best)

        limit = item.limit(upper)
        found = options.loose(limit, self.capacity)
        paths = Paths(options, found, limit, self.capacity)
        intervals = paths.intervals(upper, offer)
        upper = min(upper, self.best)
        intervals = [i for i in intervals if i.bound < upper]
        bound = min((i.bound for i in intervals), default=upper)
        item.bound = max(item.bound, bound)
        return [paths.survivors(i, upper, 0) for i in intervals]

    def _offer(
        self, options: StageOptions, stages: list[tuple[int, int, int, int]]
    ) -> None:
        """Take a plan if it is better than the best known."""
        plan = make_plan(options, stages)
        step_quanta = score(self.model.problem, plan, self.model).step_quanta
        if step_quanta < self.best:
            self.best, self.plan = step_quanta, plan
            self.report(Progress(plan=plan, claimed_quanta=step_quanta))

    def _search(self, item: OpenSplit) -> None:
        """Find the best plan of a split, if it is better than the best."""
        options = item.options
        parts = self._bounded(item, self.best)
        if item.bound >= self.best:
            return
        limits = np.array([item.limit(self.best)])
        placed = options.placed(merged(parts), limits)
        places = Places(
            options, placed, Target.below(self.best), self.deadline
        )
        for max_labels in (1, None):
            bound = int(places.bounds()[0])
            item.bound = max(item.bound, min(bound, self.best))
            if bound >= self.best:
                return
            for found in LabelSearch(places).pipelines(max_labels):
                self._offer(options, found.stages)
            places.target = Target.below(self.best)

    def _output(
        self, bound: int, limit: Limit | None, detail: str
    ) -> SolverOutput:
        if limit is None:
            status = Status.INFEASIBLE if self.plan is None else Status.OPTIMAL
        else:
            status = (
                Status.NO_SOLUTION if self.plan is None else Status.FEASIBLE
            )
        return SolverOutput(
            status=status,
            plan=self.plan,
            claimed_quanta=None if self.plan is None else self.best,
            lower_bound_quanta=None if bound >= INFINITE else bound,
            limit=limit,
            detail=detail,
        )


def merged(parts: list[PairOptions]) -> PairOptions:
    """Return the options of several parts, each once, at all its offsets."""
    found = PairOptions.concatenate(parts)
    order = np.lexsort((found.strategy, found.pair, found.level))
    found = found.take(order)
    key = np.stack((found.level, found.pair, found.strategy))
    new = np.any(np.diff(key, axis=1, prepend=-1), axis=0)
    first = np.flatnonzero(new)
    if not len(first):
        return found
    low = np.minimum.reduceat(found.first, first)
    high = np.maximum.reduceat(found.last, first)
    return replace(found.take(first), first=low, last=high)


def search(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    report: Report,
    upper: int | None,
    plan: Plan | None,
) -> SolverOutput:
    """Search every ``(R, B)`` of a problem; see :class:`BestSearch`."""
    return BestSearch(model, sets, deadline, report, upper, plan).run()
