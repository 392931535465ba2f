"""The best plan: bound every split of the batch, search what is left.

Splits ``(R, B)`` are discarded only when a proven lower bound of theirs is
above a plan in hand. Those that may be as good are searched too, and the
answer is searched again from the optimum in the first split that has it: so it
does not depend on which process found what first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np

from nest.cost.model import CostModel
from nest.cost.schedules.base import weighted
from nest.cost.score import score
from nest.cost.space import (
    PLAIN,
    BatchSplit,
    Family,
    Runtime,
    batch_splits,
    families,
    is_single,
    leading_runtimes,
    runtime_of,
)
from nest.errors import SolverError
from nest.ir.plan import Plan, Stage
from nest.search.bounds import Places, Target
from nest.search.closed_sets import ClosedSets
from nest.search.labels import LabelSearch
from nest.search.meetings import tell_apart
from nest.search.options import (
    INFINITE,
    BatchTerms,
    Below,
    Ints,
    LooseOptions,
    PairOptions,
    StageOptions,
    StageShapes,
    of_batches,
)
from nest.search.parallel import Link, share
from nest.search.paths import Interval, Path, Paths
from nest.search.task import SearchTask
from nest.search.uniform_bounds import bound_families
from nest.solvers.base import (
    Deadline,
    Limit,
    OutOfTimeError,
    Progress,
    SolverOutput,
    exact_output,
    wrong_proof,
)
from nest.units import MAX_TOTAL, ceil_div

#: Guesses at the best step time, as multiples of the least bound by then.
GUESSES = (1.15, 1.3, 1.5, 2.0, 10.0)

#: A path that is not better by this fraction of the time known is not priced:
#: places only make it slower.
WORTH_PRICING = 256

#: Where the best plan known is above the bounds by more, proofs begin with
#: plans that are above them by at most such a part.
CLOSE = (16, 8, 4, 2)

#: Stages in pipeline order: closed sets ``a`` and ``b``, strategy, devices.
Stages = Sequence[tuple[int, int, int, int]]


@dataclass(eq=False)
class OpenSplit:
    """A split, or a family of it, that is not settled, and lower bounds.

    On ``T``, and on what its stages add once; its number among all; the
    place of its runtime, of plans that take as long the first counts; and
    the step time of the plan that its last search found.
    """

    options: StageOptions
    bound: int
    least_total: int
    number: int
    rank: int = 0
    found: int = int(INFINITE)

    @property
    def least(self) -> int:
        """No plan of it is faster: once it is searched, its best plan."""
        return min(self.bound, self.found)

    def limit(self, upper: Ints | int) -> Below:
        """Return which stages plans below ``upper`` may have."""
        return Below(upper, self.least_total)


def work_bound(options: StageOptions) -> tuple[int, int]:
    """Return lower bounds from the layers alone.

    On ``T``, and on what stages add once. With ``w`` the least ``n τ`` and
    ``t`` the least ``τ`` of a layer: ``Σ_s n_s τ_s <= P max τ``, so ``max τ
    >= Σ w / P``; also ``max τ >= max t``. The same of what all wait for, and
    ``Σ τ >= max(Σ t, Σ w / P)`` of what is added once. A layer takes ``m``
    device-bytes at least, so ``Σ m > P · capacity`` proves the split
    infeasible.
    """
    infeasible = int(INFINITE), int(INFINITE)
    free, devices = options.terms.free, options.split.devices
    if not options.stage_counts or free is None or not options.usable.any():
        return infeasible
    usable = options.usable[:, None] & ~free.missing
    if not usable.any(axis=0).all():
        return infeasible
    sizes = options.terms.devices[:, None]
    schedule = options.schedule
    paces = np.moveaxis(free.paces, -1, 0)
    once, wait = options.costs([weighted(x, paces) for x in schedule.sums])
    space = free.static_bytes + free.kept_bytes
    counts = options.shapes.kind_counts[-1]

    def least(values: Ints) -> list[int]:
        found: list[int] = (
            np.where(usable, values, INFINITE).min(axis=0).tolist()
        )
        return found

    def total(values: list[int]) -> int:
        return sum(
            count * value
            for count, value in zip(counts.tolist(), values, strict=True)
        )

    capacity = options.model.problem.cluster.memory_bytes()
    if total(least(sizes * space)) > devices * capacity:
        return infeasible
    least_total, worst = total(least(once)), max(least(wait))
    least_total, worst = (
        max(value, ceil_div(total(least(sizes * table)), devices))
        for value, table in ((least_total, once), (worst, wait))
    )
    return least_total + worst, least_total


def open_splits(
    model: CostModel,
    sets: ClosedSets,
    deadline: Deadline,
    stage_options: type[StageOptions] = StageOptions,
    runtimes: Sequence[Runtime] = (PLAIN,),
) -> list[OpenSplit]:
    """Return the splits that are not infeasible at first sight.

    Each under every runtime.
    """
    shapes = StageShapes(model, sets, deadline)
    found: list[OpenSplit] = []
    for rank, runtime in enumerate(runtimes):
        for split, of_batch in of_batches(shapes, runtime):
            if deadline.passed:
                raise OutOfTimeError
            for family, least in _bounded_families(of_batch, split):
                options = stage_options(of_batch, split, family)
                bound, least_total = work_bound(options)
                bound = max(bound, least)
                if bound < INFINITE:
                    found.append(
                        OpenSplit(
                            options, bound, least_total, len(found), rank
                        )
                    )
    return found


def _bounded_families(
    terms: BatchTerms, split: BatchSplit
) -> Iterator[tuple[Family, int]]:
    """Yield the families of a split with a first bound on their plans."""
    problem = terms.model.problem
    known = families(problem, split, terms.strategies, terms.model.runtime)
    if is_single(problem):
        for family, bounds in bound_families(terms, split, known):
            yield family, int(bounds.min())
    else:
        for family in known:
            yield family, 0


def make_plan(options: StageOptions, stages: Stages) -> Plan:
    """Turn closed sets and strategies into a plan."""
    problem, member = options.model.problem, options.shapes.sets.member
    runtime = options.model.runtime
    made = []
    for source, target, chosen, _ in stages:
        inside = member[target] & ~member[source]
        made.append(
            Stage.of(
                [
                    problem.graph.layers[i].id
                    for i in options.shapes.order
                    if inside[i]
                ],
                options.layer_strategies(chosen),
            )
        )
    return Plan(
        replicas=options.split.replicas,
        micro_batch=options.split.micro_batch,
        stages=tuple(made),
        overlap=runtime.named_overlap,
        distributed_optimizer=runtime.distributed_optimizer,
    )


@dataclass(frozen=True)
class Bounded:
    """A split as its paths see it: bounds on ``T`` and what is left."""

    paths: Paths
    intervals: list[Interval]
    bound: int

    def survivors(self, upper: int, level: int = 0) -> list[PairOptions]:
        """Return the options of plans below ``upper``, in parts."""
        return [
            self.paths.survivors(interval, upper, level)
            for interval in self.intervals
        ]


def bound_paths(
    item: OpenSplit,
    cap_bytes: int,
    upper: Callable[[], int],
    offer: Callable[[OpenSplit, Path], object],
    found: LooseOptions | None = None,
) -> Bounded:
    """Bound a split by paths.

    Parameters
    ----------
    item, cap_bytes
        The split, and the memory per device.
    upper
        Only step times below this count; may fall when plans are offered.
    offer
        Given paths that are plans.
    found
        Its loose options, if known already.
    """
    goal = upper()
    limit = item.limit(goal)
    if found is None:
        found = item.options.loose(limit, cap_bytes)
    paths = Paths(item.options, found, limit, cap_bytes)

    def take(path: Path) -> int:
        offer(item, path)
        return upper()

    intervals = paths.intervals(goal, take)
    intervals = [i for i in intervals if i.bound < upper()]
    bound = min((i.bound for i in intervals), default=upper())
    return Bounded(paths, intervals, bound)


def guesses(items: Sequence[OpenSplit]) -> Iterator[int]:
    """Yield guesses above the best step time, the last one infinite.

    Bounds of the splits may rise between them.
    """
    for guess in GUESSES:
        least = min((item.bound for item in items), default=0)
        yield int(guess * least) + 1
    yield int(INFINITE)


def triples(
    bounds: Mapping[tuple[int, int], int],
) -> tuple[tuple[int, int, int], ...]:
    """Return bounds of batch splits in the form of an output."""
    return tuple(
        (*key, min(int(bound), MAX_TOTAL + 1)) for key, bound in bounds.items()
    )


def contradicted(item: OpenSplit, step_quanta: int) -> SolverError:
    """Return the error that a plan is faster than a bound on its split."""
    split = item.options.split
    text = wrong_proof(split[:2], item.least, step_quanta)
    return SolverError(f"{text}; please report this problem")


def promising(path: Path, known: int) -> bool:
    """Whether the plan of a path may well be faster than what is known."""
    return path.total + path.wait < known - known // WORTH_PRICING


class EnoughError(Exception):
    """The plan and the bound are as close as asked for."""


class BestSearch:
    """The best plan of a problem with one strategy per stage.

    Parameters
    ----------
    task
        What to search.
    """

    #: What the stages of a split may be.
    stage_options: ClassVar[type[StageOptions]] = StageOptions

    def __init__(self, task: SearchTask) -> None:
        self.model, self.sets = task.model, task.sets
        self.deadline, self.report = task.deadline, task.report
        self.best = int(INFINITE) if task.upper is None else task.upper
        self.plan, self.options = task.plan, task.options
        self.capacity = task.model.problem.cluster.memory_bytes()
        self.open: list[OpenSplit] = []
        self._listed: list[OpenSplit] | None = None
        self._alike: dict[OpenSplit, list[OpenSplit]] = {}
        self._runtimes = leading_runtimes(task.model.problem)
        # What a process finds of a network the next ones would find again.
        dear = task.model.network.dear
        self.workers = 1 if dear else task.options.num_workers
        #: Plans that take as long do not matter for now.
        self._most = int(INFINITE)
        self._tried: set[object] = set()
        self._tell: Callable[[object], object] = self._take

    def run(self) -> SolverOutput:
        """Search every split."""
        given = self.best
        try:
            self.open = open_splits(
                *(self.model, self.sets, self.deadline, self.stage_options),
                self._runtimes,
            )
        except OutOfTimeError:
            return self._known(0, Limit.TIME, "while bounding splits")
        self._listed = self.open
        try:
            self._start()
            winner = self._deepen()
        except OutOfTimeError:
            detail = f"{len(self.open)} choices of (R, B) not settled"
            return self._known(self._proven(), Limit.TIME, detail)
        except EnoughError:
            return self._known(self._proven())
        if winner is not None and self.best < given:
            # Whichever process was first: the same plan.
            settled = self._enough()
            with suppress(OutOfTimeError):
                _, self.plan = self._search(winner)
            if self.best < settled:
                message = (
                    f"no plan below {settled} quanta was proven, but one of"
                    f" {self.best} is found; please report this problem"
                )
                raise SolverError(message)
        return self._known(self.best)

    def _known(
        self, bound: int, limit: Limit | None = None, detail: str = ""
    ) -> SolverOutput:
        output = exact_output(self.plan, self.best, bound, limit, detail)
        return replace(output, split_bounds=self._split_bounds())

    def _split_bounds(self) -> tuple[tuple[int, int, int], ...]:
        """Return what no plan of each batch split takes less than."""
        if self._listed is None:
            return ()
        bounds = {
            split[:2]: int(INFINITE)
            for split in batch_splits(self.model.problem)
        }
        for item in self._listed:
            key = item.options.split[:2]
            bounds[key] = min(bounds[key], item.least)
        return triples(bounds)

    def _proven(self) -> int:
        return min([self.best] + [item.bound for item in self.open])

    def _enough(self) -> int:
        """Return the least bound with which a split is settled."""
        return (
            self.best if self.plan is None else self.options.enough(self.best)
        )

    def _goal(self, rank: int = 0, found: int = int(INFINITE)) -> int:
        """Return what plans must be below, of a split with one found.

        As good as the best of other splits counts, unless that is of a
        runtime before this one.
        """
        enough = self._enough()
        ties = rank <= self._rank_of(self.plan)
        most = self.best + ties if enough == self.best else enough
        return min(found, most, self._most)

    def _rank_of(self, plan: Plan | None) -> int:
        """Return the place of a plan's runtime, the last of all for none."""
        runtime = None if plan is None else runtime_of(plan)
        if runtime in self._runtimes:
            return self._runtimes.index(runtime)
        return len(self._runtimes)

    def _take(self, finding: object) -> None:
        """Take a plan that some process found."""
        step_quanta, plan = cast("tuple[int, Plan]", finding)
        self._improve(step_quanta, plan)
        self.report(Progress(plan=plan, claimed_quanta=step_quanta))

    def _improve(self, step_quanta: int, plan: Plan) -> bool:
        better = step_quanta < self.best
        if better:
            self.best, self.plan = step_quanta, plan
        return better

    def _check_time(self) -> None:
        if self.deadline.passed:
            raise OutOfTimeError

    def _offer(self, item: OpenSplit, plan: Plan) -> int:
        """Take a plan if it is better than the best; return its time.

        Where devices differ a path may not fit the places it gets.

        Raises
        ------
        SolverError
            If it is faster than a bound on its split.
        """
        found = score(self.model.problem, plan, self.model)
        step_quanta = found.step_quanta
        if not found.feasible:
            return int(INFINITE)
        if step_quanta < item.least:
            raise contradicted(item, step_quanta)
        if self._improve(step_quanta, plan):
            self._tell((step_quanta, plan))
        return step_quanta

    def _settle(self) -> None:
        """Drop what cannot be as good as the best."""
        self.open = [
            item
            for item in self.open
            if item.bound <= self.best and item.bound < INFINITE
        ]
        proven = self._proven()
        if proven < INFINITE:
            self.report(Progress(lower_bound_quanta=proven))
        if self.options.reached(
            None if self.plan is None else self.best, proven
        ):
            raise EnoughError

    # Bounds first

    def _start(self) -> None:
        """Bound every split, and find plans to start from."""
        by_batch: dict[BatchTerms, list[OpenSplit]] = {}
        self._alike = self._with_equal_paths()
        for item in sorted(self._alike, key=lambda item: item.bound):
            by_batch.setdefault(item.options.terms, []).append(item)
        groups = list(by_batch.values())
        for guess in guesses(self.open):
            self._share_bounds(groups, guess)
            self._settle()
            if self.best < guess:
                return

    def _with_equal_paths(self) -> dict[OpenSplit, list[OpenSplit]]:
        """Return splits with those that their bounds hold for, too.

        Gradients that hide change what a stage syncs, which paths leave out.
        What they need may leave other strategies, which paths do not.
        """
        first: dict[object, OpenSplit] = {}
        found: dict[OpenSplit, list[OpenSplit]] = {}
        for item in self.open:
            options, key = item.options, cast("object", item)
            if self.stage_options is StageOptions:
                runtime = options.model.runtime
                shown = runtime.overlap - {"gradients"}
                passes = runtime._replace(overlap=shown)
                strategies = tuple(options.terms.strategies)
                key = options.split, options.family, passes, strategies
            found.setdefault(first.setdefault(key, item), []).append(item)
        return found

    def _share_bounds(self, groups: list[list[OpenSplit]], guess: int) -> None:
        """Bound the splits with plans below a guess."""

        def run(number: int, link: Link) -> tuple[list[int], Ints | None]:
            self._tell = link.tell
            for item in groups[number]:
                self._listen(link)
                if item.bound < min(guess, self._enough()):
                    self._bound(item, guess)
            terms = vars(groups[number][0].options.terms)
            bounds = [item.bound for item in groups[number]]
            return bounds, terms.get("least_load")

        def done(number: int, result: object) -> None:
            bounds, least_load = cast("tuple[list[int], Ints | None]", result)
            for item, bound in zip(groups[number], bounds, strict=True):
                for other in self._alike[item]:
                    other.bound = max(other.bound, bound)
                    if least_load is not None:
                        other.options.terms.least_load = least_load

        share(len(groups), self.workers, run, self._take, done)

    def _listen(self, link: Link) -> None:
        """Take what other processes found."""
        self._check_time()
        for finding in link.heard():
            self._improve(*cast("tuple[int, Plan]", finding))

    def _bound(self, item: OpenSplit, upper: int) -> Bounded:
        """Bound a split, and offer its paths."""

        def goal() -> int:
            self._check_time()
            return min(upper, self._enough())

        found = bound_paths(item, self.capacity, goal, self._offer_path)
        item.bound = max(item.bound, found.bound)
        return found

    def _offer_path(self, item: OpenSplit, path: Path) -> None:
        """Take the plan of a path if it may be better than the best."""
        options = item.options
        key = (options.split, options.model.runtime, path.stages)
        if promising(path, self.best) and key not in self._tried:
            self._tried.add(key)
            self._offer(item, make_plan(options, path.stages))

    # Then proofs

    def _deepen(self) -> OpenSplit | None:
        """Search what is left; return the first split with an optimum.

        A plan far above the bounds leaves too much to look at: plans that
        are closer to them are looked for first.
        """
        least = self._proven()
        # Of splits that are proven equally far the most promising are first.
        self.open.sort(key=lambda item: item.bound)
        winners: list[OpenSplit] = []
        for part in CLOSE:
            most, self._most = least + least // part, int(INFINITE)
            if most < self._goal():
                self._most = most
                winners += self._prove()
        self._most = int(INFINITE)
        winners += self._prove()
        return min(
            (item for item in winners if item.found == self.best),
            key=lambda item: item.number,
            default=None,
        )

    def _prove(self) -> list[OpenSplit]:
        """Search what is left; return the splits with some plan."""
        order = sorted(self.open, key=lambda item: item.bound)
        winners: list[OpenSplit] = []

        def run(number: int, link: Link) -> int:
            self._tell = link.tell
            self._listen(link)
            if order[number].bound >= self._goal(order[number].rank):
                return int(INFINITE)
            step_quanta, _ = self._search(order[number])
            return step_quanta

        def done(number: int, result: object) -> None:
            order[number].found = cast("int", result)
            winners.append(order[number])
            goal = self._goal(order[number].rank)
            order[number].bound = max(order[number].bound, goal)
            self._settle()

        share(len(order), self.workers, run, self._take, done)
        return winners

    def _search(self, item: OpenSplit) -> tuple[int, Plan | None]:
        """Return the best plan of a split if none better is known."""
        options, plan, step_quanta = item.options, None, int(INFINITE)

        def goal() -> int:
            self._check_time()
            return self._goal(item.rank, step_quanta)

        found = bound_paths(item, self.capacity, goal, self._offer_path)
        if not found.intervals:
            return step_quanta, plan
        upper = goal()
        placed = options.placed(
            merged(found.survivors(upper)),
            item.limit(upper),
            self._check_time,
        )
        places = Places(options, placed, Target.below(upper), self.deadline)
        # With one label per node first: it makes the bounds closer. What they
        # leave over then gets its exact receives.
        for told, max_labels in ((False, 1), (True, 1), (True, None)):
            if int(places.bounds()[0]) >= INFINITE:
                break
            if told and max_labels is not None:
                places = tell_apart(places)
                if int(places.bounds()[0]) >= INFINITE:
                    break
            for pipeline in LabelSearch(places).pipelines(max_labels):
                better = make_plan(options, pipeline.stages)
                found_quanta = self._offer(item, better)
                if found_quanta < step_quanta:
                    plan, step_quanta = better, found_quanta
            places.target = Target.below(goal())
        return step_quanta, plan


def merged(parts: list[PairOptions]) -> PairOptions:
    """Return the options of several parts, each once, at all its offsets."""
    found = PairOptions.concatenate(parts)
    key = np.stack((found.strategy, found.pair, found.span, found.level))
    order = np.lexsort(key)
    new = np.any(np.diff(key[:, order], axis=1, prepend=-1), axis=0)
    first = np.flatnonzero(new)
    if not len(first):
        return found
    low = np.minimum.reduceat(found.first[order], first)
    high = np.maximum.reduceat(found.last[order], first)
    return replace(found.take(order[first]), first=low, last=high)


def search(task: SearchTask) -> SolverOutput:
    """Search every ``(R, B)`` of a problem; see :class:`BestSearch`."""
    return BestSearch(task).run()
