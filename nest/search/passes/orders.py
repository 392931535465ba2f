"""The best plan where its order of passes is searched, too.

Plans of schedules with a name come first, each schedule in a part of the time. Where
any order may be, plans of one strategy for all blocks get their own order by list
scheduling (:mod:`nest.search.passes.list_orders`): those of the settings near the best
plans (:mod:`nest.search.passes.order_settings`), then the best of them for as long as
their bounds (:mod:`nest.search.passes.order_bounds`) leave something to gain. Near the
best ones are plans whose chunks differ (:mod:`nest.search.passes.plan_moves`). Of plans
with few passes an engine looks for the best order (:mod:`formulations.orders`), and
often proves it. The rest of the time bounds all plans in all orders
(:mod:`nest.search.passes.interleaved` with :class:`~nest.cost.schedules.AnyOrder`).
Where all plans are few, each of them gets its best order first.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import count

from msgspec.structs import replace as with_fields

from nest.cost.model import CostModel
from nest.cost.orders import named_job, why_not_order
from nest.cost.schedules import AnyOrder
from nest.cost.schedules.ordered import pass_text
from nest.cost.score import assemble, locate, score
from nest.cost.space import make_split, runtime_of, undivided
from nest.errors import InvalidPlanError
from nest.ir.job import ANY_ORDER
from nest.ir.plan import NOT_SPLIT, Plan
from nest.ir.problem import Problem
from nest.search.exact import search_schedule
from nest.search.frontier.least import covers, leanest_plan
from nest.search.passes.interleaved import bound_all
from nest.search.passes.interleaved_exact import Enumeration, TooManyError, cases
from nest.search.passes.list_orders import ListOrder, OrderScope, OrderSearch
from nest.search.passes.order_bounds import order_bound
from nest.search.passes.order_settings import Setting, Settings, settings_of
from nest.search.passes.plan_moves import OrderedPlan, PlanMoves, PlanSearch
from nest.search.passes.zero_bubble import best_zero_bubble_order
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import INFINITE
from nest.search.task import SearchTask
from nest.solvers.base import (
    Deadline,
    OutOfTimeError,
    Progress,
    SolverOutput,
    Status,
    exact_output,
)
from nest.solvers.registry import order_prover

#: Parts of the time for plans of schedules with a name, for first orders of
#: other plans, for better ones, and for plans whose chunks differ; what is left
#: bounds all plans.
NAMED_SHARE, FIRST_SHARE, BETTER_SHARE, VARIED_SHARE = 0.3, 0.1, 0.1, 0.3

#: The part of it for 1F1B at least, whose search is exact.
LEADING_SHARE = 0.7

#: The part of the time that is left for the first schedule if no plan was found.
LATE_SHARE = 0.8

#: Where plans choose from a list: the part of the time for plans of all schedules, that
#: of the rest for bounds on each, and the part of the first one for 1F1B at least. What
#: is left bounds plans in any order.
TRIED_SHARE, BOUNDED_SHARE, LISTED_LEADING_SHARE = 0.7, 0.7, 0.5

#: Schedules whose formula is no bound on what their passes take.
CLOSED_FORM = frozenset({"1f1b", "gpipe"})

#: Orders that every candidate gets, and plans that get better ones.
FEW_ORDERS, FIRST_ORDERS, MAX_IMPROVED = 4, 20, 4

#: The part of a quick look for plans with orders of their own.
EXPLORED_SHARE = 0.7

#: A candidate gets all of them if it is slower by less than this part.
WORTH_MORE = 8

#: Steps of more passes are not ordered: that would take seconds an order.
MOST_ORDERED = 2**18

#: Plans near which plans with differing chunks are looked for; how often, if there is
#: no limit of time, and steps at a time.
MAX_STARTS, MAX_TURNS, TURN = 8, 4, 20

#: Settings that are looked at, at most.
MAX_SETTINGS = 3000

#: The part of the time in which all plans are listed; how many there may be, steps of
#: listing those that no bound rules out, and how many have their best order proven.
LISTED_SHARE, MOST_LISTED, MOST_STEPS, MOST_LISTED_PROOFS = 0.5, 10**6, 60_000, 50

#: Orders of one plan at a time, and at most.
ROUND, MAX_ORDERS = 40, 1200

#: Plans of so many passes, three per chunk and micro-batch, have their best
#: order proven.
MOST_PROVEN = 400

#: What the detail of a result says where orders are not settled.
OPEN = "orders are bounded by the work of blocks"


def search_orders(task: SearchTask) -> SolverOutput:
    """Search the plans of a problem that leaves the order to them."""
    return _OrdersSearch(task).run()


class _OrdersSearch:
    """A search for plans and their orders."""

    def __init__(self, task: SearchTask) -> None:
        self.task, self.model = task, task.model
        self.problem = task.model.problem
        self.best = int(INFINITE) if task.upper is None else task.upper
        self.plan = task.plan
        self._candidates: dict[Plan, OrderedPlan] = {}
        #: All plans that may be the best one, if they were listed.
        self._listed: list[OrderedPlan] | None = None

    def run(self) -> SolverOutput:
        """Search named schedules, then orders, then bound all of them."""
        bound, limit = self._search_named(), None
        if self._is_any and bound < self.best:
            bound = self._search_all()
        if self._is_any and self.plan is None and bound < self.best:
            self._search_first()
            if self.plan is None:
                bound = max(bound, self._search_leanest())
        if self._is_any and bound < self.best:
            remaining = 1 - NAMED_SHARE
            for share, look in (
                (FIRST_SHARE, self._explore),
                (BETTER_SHARE, self._improve),
                (VARIED_SHARE, self._vary),
            ):
                look(self.task.deadline.share(share / remaining))
                remaining -= share
        if bound < self.best:
            everything, limit = bound_all(self.task, self.best, self._offer)
            bound = max(bound, everything)
            if self._is_any and bound < self.best:
                self._improve(self.task.deadline)
                if self.task.deadline.remaining_s is not None:
                    self._vary(self.task.deadline)
                bound = max(bound, self._bound_of_listed())
        detail = f"{OPEN}{self._of_this_plan()}"
        return exact_output(self.plan, self.best, bound, limit, detail)

    @property
    def _is_any(self) -> bool:
        """Whether plans may have any order, not only those with a name."""
        return self.problem.job.schedule == ANY_ORDER

    def _of_this_plan(self) -> str:
        """Return how much faster another order of the best plan can be."""
        candidate = self._of_best
        if candidate is None:
            return ""
        faster = 1 - candidate.floor / self.best
        if faster <= 0:
            return "; no order of it is faster"
        percent = math.ceil(10_000 * faster) / 100
        return f"; no order of it is more than {percent:.2f} % faster"

    @cached_property
    def _settings(self) -> Settings:
        """The settings of the problem, whose batches are priced once."""
        return Settings(self.model)

    @property
    def _of_best(self) -> OrderedPlan | None:
        """The candidate that the best plan is, whatever its order."""
        if self.plan is None:
            return None
        return self._candidates.get(without_order(self.plan))

    def _offer(self, step_quanta: int, plan: Plan) -> None:
        """Take a plan if it is better."""
        if step_quanta < self.best:
            self.best, self.plan = step_quanta, plan
            self.task.report(Progress(plan=plan, claimed_quanta=step_quanta))

    def _try_plan(self, plan: Plan) -> None:
        """Score a plan with its order, and take it if it is better."""
        verdict = score(self.problem, plan, self.model)
        if verdict.feasible:
            self._offer(verdict.step_quanta, plan)

    # Schedules with a name

    def _search_named(self) -> int:
        """Search every schedule; return what bounds the plans of all, or 0.

        As they are timed pass by pass: a bound on a step time with a closed
        form is none. Where time is limited, plans of a list are tried under each of
        its schedules before any of them is bounded.
        """
        problems = dict(named_problems(self.problem))
        infeasible: set[str] = set()
        is_limited = self.task.deadline.remaining_s is not None
        share, leading_share = TRIED_SHARE, LISTED_LEADING_SHARE
        if self._is_any:
            share, leading_share = NAMED_SHARE, LEADING_SHARE
        bounds = []
        for name, deadline in self._in_turn(problems, share, leading_share):
            output = self._search_one(name, problems[name], deadline, not is_limited)
            bounds.append(output.lower_bound_quanta or 0)
            if output.status is Status.INFEASIBLE:
                infeasible.add(name)
        if is_limited and not self._is_any:
            bounds = []
            for name, deadline in self._in_turn(problems, BOUNDED_SHARE, 0.0):
                task = _task_of(self.task, problems[name], deadline)

                def offer(_: int, plan: Plan, name: str = name) -> None:
                    self._offer_named(name, plan)

                bounds.append(bound_all(task, self.best, offer)[0])
                # Of 1F1B and GPipe these are the interleaved plans alone.
                if bounds[-1] >= INFINITE and name not in CLOSED_FORM:
                    infeasible.add(name)
        if infeasible.issuperset(problems) and not self._is_any:
            return int(INFINITE)
        if CLOSED_FORM.intersection(self.problem.job.schedules):
            return 0
        return min(bounds) if len(problems) == len(self.problem.job.schedules) else 0

    def _search_first(self) -> None:
        """Search the first schedule for longer, as no plan of any was found in time."""
        for name, problem in itertools.islice(named_problems(self.problem), 1):
            self._search_one(name, problem, self.task.deadline.share(LATE_SHARE), False)

    def _search_leanest(self) -> int:
        """Search a plan whose stages fit with one micro-batch in flight.

        Returns a bound on all plans: infinite if that shows that none fits.
        """
        job = self.problem.job
        plain = with_fields(job, schedule="1f1b", virtual_stages=(1,))
        problem = with_fields(self.problem, job=plain)
        if 1 not in job.chunk_counts or not covers(problem):
            return 0
        try:
            plan = leanest_plan(_task_of(self.task, problem, self.task.deadline))
        except OutOfTimeError:
            return 0
        if plan is None:
            several = tuple(x for x in job.chunk_counts if x > 1)
            if not several:
                return int(INFINITE)
            rest = with_fields(job, virtual_stages=several)
            rest_problem = with_fields(self.problem, job=rest)
            return bound_all(
                _task_of(self.task, rest_problem, self.task.deadline),
                self.best,
                self._offer,
            )[0]
        candidate = self._candidate(plan)
        if candidate is not None:
            self._order(candidate)
        return 0

    def _search_all(self) -> int:
        """Order every plan, if they are few; return a bound on all, or 0.

        The orders of those whose bound is least are proven first.
        """
        listed: list[OrderedPlan] = []
        deadline = self.task.deadline.share(LISTED_SHARE)

        def price(plan: Plan) -> int:
            if self._is_long(plan):
                raise TooManyError
            candidate = self._candidates.get(plan) or self._candidate(plan)
            if candidate is None or min(candidate.search.scope.free_bytes) < 0:
                return int(INFINITE)
            if candidate.search.best is None and candidate.floor < self.best:
                self._order(candidate)
            # List scheduling finds an order of every plan that fits in any order.
            if candidate.search.best is not None:
                listed.append(candidate)
            return candidate.step_quanta

        steps = 0
        try:
            for space in self._spaces(deadline, price):
                space.best, space.steps = self.best, steps
                space.run()
                steps = space.steps
        except TooManyError:
            return 0
        if deadline.passed:
            return 0
        self._listed = listed
        listed.sort(key=lambda x: x.floor)
        for candidate in listed[:MOST_LISTED_PROOFS]:
            self._prove(candidate, deadline)
        return self._bound_of_listed()

    def _spaces(
        self, deadline: Deadline, price: Callable[[Plan], int]
    ) -> list[Enumeration]:
        """Return the cases and numbers of blocks whose plans are all plans.

        Raises ``TooManyError`` if these are too many.
        """
        spaces: list[Enumeration] = []
        magnitudes: dict[int, float] = {}
        num_plans = 0.0
        for case in cases(self.model, self.task.sets, deadline):
            if case is None:
                raise TooManyError
            for blocks in case.family.stage_counts:
                space = Enumeration(
                    case=case,
                    blocks=blocks,
                    sets=self.task.sets,
                    best=self.best,
                    deadline=deadline,
                    price=price,
                    magnitudes=magnitudes,
                    max_steps=MOST_STEPS,
                )
                num_plans += 10**space.magnitude
                if num_plans > MOST_LISTED:
                    raise TooManyError
                spaces.append(space)
        return spaces

    def _bound_of_listed(self) -> int:
        """Return what bounds all plans if they were listed, or 0."""
        if self._listed is None:
            return 0
        return min([self.best, *(x.floor for x in self._listed)])

    def _in_turn(
        self, names: Iterable[str], share: float, leading_share: float
    ) -> Iterator[tuple[str, Deadline]]:
        """Yield names with deadlines, together a part of the time that is left."""
        deadline, names = self.task.deadline.share(share), list(names)
        for index, name in enumerate(names):
            remaining_s = deadline.remaining_s
            if remaining_s is None:
                yield name, deadline
                continue
            share_s = remaining_s / (len(names) - index)
            if name == "1f1b":
                share_s = max(share_s, leading_share * remaining_s)
            yield name, deadline.shortened(share_s)

    def _search_one(
        self, name: str, problem: Problem, deadline: Deadline, with_bounds: bool
    ) -> SolverOutput:
        """Search the plans of a schedule, and try the best one under the others."""

        def report(progress: Progress) -> None:
            plan = progress.plan
            if plan is not None and not self._is_long(plan):
                self._offer_named(name, plan)

        task = replace(_task_of(self.task, problem, deadline), report=report)
        output = search_schedule(task, with_bounds)
        if output.plan is not None:
            for other in self.problem.job.schedules:
                # Some run other numbers of chunks, or no full recomputation.
                with contextlib.suppress(InvalidPlanError):
                    self._offer_named(other, output.plan)
            candidate = self._candidate(output.plan)
            if candidate and self._is_any:
                self._order(candidate)
        return output

    def _offer_named(self, name: str, plan: Plan) -> None:
        """Take a plan if it is better, as its passes take under a schedule."""
        self._try_plan(with_fields(plan, order=name))

    # Orders of their own

    def look(self, plan: Plan, names: Collection[str]) -> dict[tuple[str, int], int]:
        """Return what :func:`look_at_orders` does.

        Named schedules cost a fraction of a search for an order, so they decide which
        settings are gone on from, and which plans get orders of their own.
        """
        steps: dict[tuple[str, int], int] = {}
        visited: list[tuple[int, int, OrderedPlan]] = []

        def visit(candidate: OrderedPlan) -> int:
            step_quanta = self._run_named(candidate.plan, names, steps)
            if ANY_ORDER in names and all(step_quanta < x for x, _, _ in visited):
                self._order(candidate)
            visited.append((step_quanta, len(visited), candidate))
            return min(step_quanta, candidate.step_quanta)

        start = self._candidate(plan)
        if start is not None:
            visit(start)
            self._explore(self.task.deadline.share(EXPLORED_SHARE), visit)
        for _, _, candidate in sorted(visited) if ANY_ORDER in names else ():
            if candidate.search.best is None and candidate.floor < self.best:
                self._order(candidate)
        if ANY_ORDER in names and self.plan is not None:
            steps[ANY_ORDER, self.plan.virtual_stages] = self.best
        return steps

    def ordered(self, plan: Plan) -> Plan | None:
        """Return what :func:`ordered_plan` does."""
        candidate = self._candidate(plan)
        if candidate is not None and candidate.floor < self.best:
            self._order(candidate)
        return self.plan

    def _run_named(
        self, plan: Plan, names: Collection[str], steps: dict[tuple[str, int], int]
    ) -> int:
        """Run the passes of a plan under named schedules; return the least step time.

        Infinite if the plan fits under none.
        """
        min_quanta = int(INFINITE)
        for name in self.problem.job.schedules:
            named = with_fields(plan, order=name)
            if name not in names or why_not_order(self.problem.job, named):
                continue
            try:
                verdict = score(self.problem, named, self.model)
            except InvalidPlanError:  # such as full recomputation
                continue
            if verdict.feasible:
                step_quanta, key = verdict.step_quanta, (name, plan.virtual_stages)
                min_quanta = min(min_quanta, step_quanta)
                steps[key] = min(step_quanta, steps.get(key, step_quanta))
                self._offer(step_quanta, named)
        return min_quanta

    def _explore(
        self, deadline: Deadline, visit: Callable[[OrderedPlan], int] | None = None
    ) -> None:
        """Visit plans of settings, from those of the best plans in hand on.

        The neighbors of the best setting come first; of them, plans whose
        floor is least. A visit returns a step time; by default it orders a plan.
        """
        visit = visit or self._order
        settings = self._settings
        seen: set[Setting] = set()
        queue: list[tuple[int, int, Setting]] = []
        tie = count()

        def push(step_quanta: int, setting: Setting) -> None:
            heapq.heappush(queue, (step_quanta, next(tie), setting))

        for candidate in self._candidates.values():
            for setting in settings_of(candidate.plan):
                push(candidate.step_quanta, setting)
        if not queue:
            for setting in settings.plainest():
                push(int(INFINITE), setting)
        while queue and len(seen) < MAX_SETTINGS and not deadline.passed:
            _, _, setting = heapq.heappop(queue)
            ordered: list[tuple[int, int, OrderedPlan, Setting]] = []
            for neighbor in settings.neighbors(setting):
                if neighbor in seen or deadline.passed:
                    continue
                seen.add(neighbor)
                plan = settings.plan(neighbor)
                new = None if plan is None else self._candidate(plan)
                if new is not None:
                    ordered.append((new.floor, next(tie), new, neighbor))
            for floor, _, ready, neighbor in sorted(ordered):
                step_quanta = int(INFINITE)
                if floor < self.best and not deadline.passed:
                    step_quanta = visit(ready)
                push(max(step_quanta, floor), neighbor)

    def _vary(self, deadline: Deadline) -> None:
        """Look for plans with differing chunks near the best plans of each shape.

        The better a search's plans, the more turns it has.
        """
        starts: dict[tuple[object, ...], OrderedPlan] = {}
        for candidate in sorted(self._candidates.values(), key=lambda x: x.promise):
            plan = candidate.plan
            shape = (
                *(plan.replicas * plan.micro_batch, plan.num_blocks),
                *(plan.placement, runtime_of(plan)),
            )
            is_mixed = any(stage.strategies for stage in plan.stages)
            if candidate.search.best is not None and not is_mixed:
                starts.setdefault(shape, candidate)
        moves = PlanMoves(self._settings)
        searches = [
            PlanSearch(moves, self._candidate, start)
            for start in itertools.islice(starts.values(), MAX_STARTS)
        ]
        turns = MAX_TURNS if deadline.remaining_s is None else None
        for turn in itertools.islice(count(), turns if searches else 0):
            searches.sort(key=lambda x: x.plans[0].promise)
            for varied in searches[: MAX_STARTS >> turn % 4]:
                varied.run(lambda: deadline.passed, TURN)
                self._take(varied.plans[0])
            if deadline.passed:
                return

    def _candidate(self, plan: Plan) -> OrderedPlan | None:
        """Return a new candidate; ``None`` if it is none, or not new."""
        plan = without_order(plan)
        if plan in self._candidates or self._is_long(plan):
            return None
        scope, sync = order_scope(self.problem, plan, self.model)
        candidate = OrderedPlan(plan, OrderSearch(scope, order_bound(scope)))
        candidate.extra = candidate.least_extra = sync
        self._candidates[plan] = candidate
        return candidate if min(scope.free_bytes) >= 0 else None

    def _is_long(self, plan: Plan) -> bool:
        """Whether a step has too many passes to look at them often."""
        split = make_split(self.problem, plan.replicas, plan.micro_batch)
        return 3 * len(plan.stages) * split.num_micro_batches > MOST_ORDERED

    def _order(self, candidate: OrderedPlan) -> int:
        """Give a candidate first orders; return its step time with the best one."""
        search, task = candidate.search, self.task
        search.run(lambda: task.deadline.passed, 1)
        if search.best is None:
            return candidate.step_quanta
        ordered = with_order(candidate.plan, search.best)
        verdict = score(self.problem, ordered, self.model)
        candidate.extra = verdict.step_quanta - search.best.end
        if candidate.plan.virtual_stages == 1:
            order = best_zero_bubble_order(search.scope, lambda: task.deadline.passed)
            search.best = min(search.best, order, key=lambda x: x.end)
        self._take(candidate)
        for num_orders in (FEW_ORDERS - 1, FIRST_ORDERS - FEW_ORDERS):
            limit = self.best + self.best // WORTH_MORE
            if candidate.floor < self.best and candidate.step_quanta < limit:
                search.run(lambda: task.deadline.passed, num_orders)
                self._take(candidate)
        return candidate.step_quanta

    def _take(self, candidate: OrderedPlan) -> None:
        """Take a plan with its best order if that is better."""
        best = candidate.search.best
        if best is not None and candidate.step_quanta < self.best:
            self._try_plan(with_order(candidate.plan, best))

    def _improve(self, deadline: Deadline) -> None:
        """Look for better orders of the plans that promise most.

        The best plan in hand comes first.
        """
        while not deadline.passed:
            incumbent = self._of_best
            open_candidates = sorted(
                (
                    x
                    for x in self._candidates.values()
                    if x.floor < self.best
                    and not x.search.done
                    and x.num_orders < MAX_ORDERS
                ),
                key=lambda x: (x is not incumbent, x.promise),
            )
            if not open_candidates:
                return
            for candidate in open_candidates[:MAX_IMPROVED]:
                candidate.search.run(lambda: deadline.passed, ROUND)
                candidate.num_orders += ROUND
                self._take(candidate)
                self._prove(candidate, deadline)

    def _prove(self, candidate: OrderedPlan, deadline: Deadline) -> None:
        """Let an engine look for the best order of few passes, once.

        Orders that are slower than the best plan do not matter.
        """
        search, scope = candidate.search, candidate.search.scope
        num_passes = 3 * len(scope.times) * scope.num_micro_batches
        if (
            candidate.is_modeled
            or search.best is None
            or num_passes > MOST_PROVEN
            or candidate.floor >= self.best
            or deadline.passed
        ):
            return
        prove = order_prover()
        if prove is None:
            return
        candidate.is_modeled = True
        search.best, search.floor = prove(
            scope,
            search.best,
            search.floor,
            self.best - candidate.least_extra,
            deadline,
        )
        self._take(candidate)


def look_at_orders(
    problem: Problem,
    plan: Plan,
    deadline: Deadline,
    names: Collection[str],
    limit_quanta: int,
) -> dict[tuple[str, int], int]:
    """Return the step times of plans near one whose passes run otherwise.

    Parameters
    ----------
    problem, plan
        A problem whose plans may have any order, and a plan without one.
    deadline
        When to stop.
    names
        The schedules to look at; with ``any``, plans get orders of their own, too.
    limit_quanta
        A step time, in quanta. Plans that cannot be faster are not looked at.

    Returns
    -------
    dict
        Upper bounds of the best step time, in quanta: of ``any`` order, and
        of schedules with a name, each with its chunks per block.
    """
    sets = closed_sets(problem.graph, together=undivided(problem))
    task = SearchTask(CostModel(problem), sets, deadline, upper=limit_quanta)
    return _OrdersSearch(task).look(plan, names)


def ordered_plan(task: SearchTask, plan: Plan) -> Plan | None:
    """Return a plan with an order of its own, by list scheduling.

    ``None`` if it is not faster than the task's ``upper``, or does not fit.
    """
    return _OrdersSearch(task).ordered(plan)


def without_order(plan: Plan) -> Plan:
    """Return a plan without its order and where it comes from."""
    return with_fields(plan, order=None, problem_hash=None, solver=None)


def with_order(plan: Plan, order: ListOrder) -> Plan:
    """Return a plan with the passes of an order."""
    lists = tuple(tuple(map(pass_text, passes)) for passes in order.lists)
    return with_fields(plan, order=lists)


def named_problems(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Yield a problem with each schedule that plans may name.

    Without the choices that the schedule cannot have.
    """
    for name in problem.job.schedules:
        job = named_job(problem.job, name)
        if job is not None:
            yield name, with_fields(problem, job=job)


def _task_of(task: SearchTask, problem: Problem, deadline: Deadline) -> SearchTask:
    """Return the task of one of :func:`named_problems`."""
    model = CostModel(problem, task.model.network)
    return SearchTask(model, task.sets, deadline, options=task.options)


def order_scope(
    problem: Problem, plan: Plan, model: CostModel
) -> tuple[OrderScope, int]:
    """Return what orders of a plan's passes depend on, and its least sync."""
    schedule = AnyOrder(plan.virtual_stages, plan.placement)
    members = locate(problem, plan, model)
    pipeline = assemble(model, plan, members, schedule)
    kept_bytes = [0] * len(plan.stages)
    free_bytes, syncs = [], []
    for block in range(plan.num_blocks):
        chunks = pipeline.chunks(block)
        by_chunk = model.rules.kept_by_chunk(pipeline, block)
        for chunk, size_bytes in zip(chunks, by_chunk, strict=True):
            kept_bytes[chunk] = size_bytes
        terms = [x for chunk in chunks for x in pipeline.terms[chunk]]
        used_bytes = sum(x.static_bytes for x in terms)
        used_bytes += max(x.working_bytes for x in terms)
        capacity = model.capacity_bytes(pipeline.blocks[chunks[0]])
        free_bytes.append(capacity - used_bytes)
        syncs.append(sum(x.sync - x.hideable_sync for x in terms))
    scope = OrderScope(
        times=[model.rules.loads(pipeline, chunk) for chunk in range(len(plan.stages))],
        kept_bytes=tuple(kept_bytes),
        free_bytes=tuple(free_bytes),
        block_of=tuple(plan.block_of(chunk) for chunk in range(len(plan.stages))),
        whole=frozenset(
            chunk
            for chunk, stage in enumerate(plan.stages)
            if any(x.recompute in NOT_SPLIT for x in stage.layer_strategies)
        ),
        num_micro_batches=pipeline.split.num_micro_batches,
    )
    return scope, max(syncs)
