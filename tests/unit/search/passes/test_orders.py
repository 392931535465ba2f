"""The search of plans and orders: what it takes apart, and in which cases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from nest.cost.model import CostModel
from nest.cost.schedules import AnyOrder
from nest.cost.space import timed_by_passes
from nest.ir import Problem, Strategy
from nest.ir.job import Job, Optimizer
from nest.search.passes import orders
from nest.search.passes.interleaved_exact import schedules_of
from nest.search.passes.list_orders import ListOrder, OrderScope, OrderSearch
from nest.search.passes.order_bounds import order_bound
from nest.search.solver import DpSolver
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.options import INFINITE
from nest.search.task import SearchTask
from nest.solvers import registry
from nest.solvers.base import Deadline, SolveOptions, SolverOutput, Status
from tests.builders import make_cost, make_levels, make_plan, make_problem, with_job
from tests.orders import least_end

FREE = make_levels((4, 0.0, 1e18))


def chain(num_layers: int = 4, **job: Any) -> Problem:
    """Build a chain of layers of 10 + 20 ns, half of these for weights."""
    names = "abcdefgh"[:num_layers]
    return make_problem(
        dict.fromkeys(names, make_cost(10, 20, kept_bytes=1)),
        edge=1,
        topology=FREE,
        **{"global_batch": 2, "schedule": "any", **job},
    )


def test_the_first_schedule_is_searched_on_if_no_plan_was_found_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orders._OrdersSearch, "_search_named", lambda self: 0)
    monkeypatch.setattr(orders, "MAX_SETTINGS", 0)
    monkeypatch.setattr(orders, "MOST_LISTED", 0)
    monkeypatch.setattr(orders, "bound_all", lambda *_: (0, None))
    output = DpSolver().solve(chain(), SolveOptions())
    assert output.plan is not None


@pytest.mark.parametrize(
    ("schedule", "virtual", "recompute", "expected"),
    [
        (
            *("any", (1, 2), ("none",)),
            {"1f1b": (1, 2), "gpipe": (1,), "zb-h1": (1,), "zb-v": (1,)},
        ),
        ("any", (1,), ("none",), {"1f1b": (1,), "gpipe": (1,), "zb-h1": (1,)}),
        ("any", (2, 3), ("none",), {"1f1b": (2, 3), "zb-v": (1,)}),
        ("any", (1,), ("full",), {"1f1b": (1,), "gpipe": (1,)}),
        (*(("zb-v", "1f1b"), (1,), ("none", "full")), {"zb-v": (1,), "1f1b": (1,)}),
    ],
)
def test_each_name_has_a_problem_of_its_own(
    schedule: Any,
    virtual: tuple[int, ...],
    recompute: Any,
    expected: dict[str, tuple[int, ...]],
) -> None:
    problem = chain(schedule=schedule, virtual_stages=virtual, recompute=recompute)
    named = dict(orders.named_problems(problem))
    assert {name: one.job.virtual_stages for name, one in named.items()} == expected
    for name, one in named.items():
        assert one.job.schedule == name
        split = name in ("zb-h1", "zb-v")
        assert ("full" in one.job.recompute) == ("full" in recompute and not split)


def test_any_order_of_two_chunks_may_be_a_v() -> None:
    for schedule in ("any", ("1f1b", "zb-v")):
        job = Job(global_batch=1, schedule=schedule, virtual_stages=(1, 2, 3))
        shapes = {
            virtual: [
                (x.virtual_stages, x.placement)
                for x in schedules_of(job, virtual)
                if isinstance(x, AnyOrder)
            ]
            for virtual in (1, 2, 3)
        }
        assert shapes == {
            1: [(1, "loop")],
            2: [(2, "loop"), (2, "v")],
            3: [(3, "loop")],
        }
        assert timed_by_passes(job)
    assert not timed_by_passes(Job(global_batch=1))


def test_a_bound_of_a_formula_is_none_of_its_passes() -> None:
    """Stages of 10 + 0, 0 + 10 and 0 + 0 each fill a device.

    The formula of 1F1B says 30, its passes take 40: ``dp`` may prove no more
    than 30 of the best plan alone.
    """
    costs = {
        "a": make_cost(10, 0, weight_bytes=2),
        "b": make_cost(0, 10, weight_bytes=2),
        "c": make_cost(0, 0, weight_bytes=2),
    }
    problem = make_problem(
        costs,
        edge=1,
        topology=FREE,
        memory_bytes=16,
        global_batch=2,
        schedule=("1f1b",),
        replicas=(1,),
    )
    output = DpSolver().solve(problem, SolveOptions())
    assert output.claimed_quanta == 40
    assert output.plan is not None
    assert output.plan.order == "1f1b"
    assert output.lower_bound_quanta is not None
    assert output.lower_bound_quanta <= 40
    alone = with_job(problem, schedule="1f1b")
    formula = DpSolver().solve(alone, SolveOptions())
    assert (formula.status, formula.claimed_quanta) == (Status.OPTIMAL, 30)


def tight(memory_bytes: int, **job: Any) -> Problem:
    """Build four layers of 10 B and 4 B per micro-batch on two devices.

    Stages of two layers hold 28 B with one micro-batch in flight, and the first one
    36 B under 1F1B. Interleaved chunks of one layer hold 28 B as well.
    """
    names = dict.fromkeys("abcd", make_cost(10, 20, weight_bytes=10, kept_bytes=4))
    optimizer = Optimizer(weight_bytes=2, gradient_bytes=0, state_bytes=0)
    return make_problem(
        names,
        edge=1,
        topology=FREE,
        devices=2,
        memory_bytes=memory_bytes,
        **{"global_batch": 4, "schedule": "any", "optimizer": optimizer, **job},
    )


@pytest.mark.parametrize("virtual", [(1,), (2,), (1, 2)])
def test_it_is_proven_that_no_order_fits(virtual: tuple[int, ...]) -> None:
    output = DpSolver().solve(tight(27, virtual_stages=virtual), SolveOptions())
    assert output.status is Status.INFEASIBLE
    output = DpSolver().solve(tight(28, virtual_stages=virtual), SolveOptions())
    assert output.plan is not None


def test_a_plan_that_fits_with_one_micro_batch_in_flight_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orders, "MAX_SETTINGS", 0)
    assert DpSolver().solve(tight(28), SolveOptions()).plan is not None
    search = orders._OrdersSearch(task_of(tight(28)))
    assert search._search_leanest() == 0
    assert search.plan is not None


@pytest.mark.parametrize(
    ("schedule", "memory_bytes", "fits"),
    [
        (("1f1b",), 35, False),
        (("1f1b",), 36, True),
        (("1f1b", "zb-h1"), 35, False),
        (("zb-h1", "gpipe"), 27, False),
        (("1f1b", "zb-v"), 27, False),
        (("1f1b", "gpipe"), 36, True),
    ],
)
@pytest.mark.parametrize("limit_s", [None, 60.0])
def test_it_is_proven_that_no_schedule_of_a_list_fits(
    schedule: Any, memory_bytes: int, fits: bool, limit_s: float | None
) -> None:
    problem = tight(memory_bytes, schedule=schedule)
    output = DpSolver().solve(problem, SolveOptions(time_limit_s=limit_s))
    assert (output.plan is not None) == fits
    if output.claimed_quanta is None:
        assert output.status is Status.INFEASIBLE
    else:
        assert output.lower_bound_quanta is not None
        assert output.lower_bound_quanta <= output.claimed_quanta


def test_bounds_on_interleaved_plans_are_none_on_those_of_1f1b(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of which there was no time to find one."""
    none = SolverOutput(status=Status.NO_SOLUTION)
    monkeypatch.setattr(orders._OrdersSearch, "_search_one", lambda *_: none)
    problem = tight(36, schedule=("1f1b", "gpipe"))
    output = DpSolver().solve(problem, SolveOptions(time_limit_s=60.0))
    assert output.status is Status.NO_SOLUTION


@pytest.mark.parametrize(
    "changes", [{"granularity": "layer"}, {"virtual_stages": (2,)}]
)
def test_what_paths_do_not_cover_is_not_searched_by_them(changes: Any) -> None:
    search = orders._OrdersSearch(task_of(tight(27, **changes)))
    assert search._search_leanest() == 0


@pytest.mark.parametrize(("memory_bytes", "fits"), [(7, True), (6, False)])
def test_chunks_may_fit_where_no_stages_do(memory_bytes: int, fits: bool) -> None:
    """Stages of 6 | 6 1 1 bytes need 8, blocks of 6 1 and 6 1 need 7."""
    weights = {"a": 6, "b": 6, "c": 1, "d": 1}
    problem = make_problem(
        {name: make_cost(10, 20, weight_bytes=x) for name, x in weights.items()},
        edge=1,
        topology=FREE,
        devices=2,
        memory_bytes=memory_bytes,
        global_batch=2,
        optimizer=Optimizer(weight_bytes=2, gradient_bytes=0, state_bytes=0),
        schedule="any",
        virtual_stages=(1, 2),
    )
    bound = orders._OrdersSearch(task_of(problem))._search_leanest()
    assert (bound < INFINITE) == fits
    assert (DpSolver().solve(problem, SolveOptions()).plan is not None) == fits


def task_of(problem: Problem) -> SearchTask:
    sets = closed_sets(problem.graph)
    return SearchTask(CostModel(problem), sets, Deadline(None))


def test_any_order_is_bounded_by_the_work_of_blocks() -> None:
    """Two blocks of a layer: 10 until block 2 starts, then 2 · 30."""
    output = DpSolver().solve(
        chain(2, replicas=(1,), pipeline_parallel=(2,)), SolveOptions()
    )
    assert output.claimed_quanta == 70
    assert output.lower_bound_quanta is not None
    assert 60 <= output.lower_bound_quanta <= 70


def test_plans_of_one_chunk_per_block_get_zero_bubble_orders() -> None:
    """Eight stages with room for ten micro-batches; lists take longer."""
    names = "abcdefgh"
    problem = make_problem(
        dict.fromkeys(names, make_cost(10, 18, kept_bytes=1)),
        edge=1,
        topology=make_levels((8, 0.0, 1e18)),
        devices=8,
        memory_bytes=10,
        **{"global_batch": 24, "schedule": "any"},
        weight_backward_fraction=1 / 3,
    )
    plan = make_plan(*((name, Strategy()) for name in names))
    sets = closed_sets(problem.graph)
    search = orders._OrdersSearch(SearchTask(CostModel(problem), sets, Deadline(None)))
    candidate = search._candidate(plan)
    assert candidate is not None
    search._order(candidate)
    assert candidate.step_quanta == 772
    alone = OrderSearch(candidate.search.scope, candidate.floor)
    alone.run(lambda: False, orders.FIRST_ORDERS)
    assert alone.best is not None
    assert alone.best.end > 772


# Lists of schedules


@pytest.mark.parametrize("limit_s", [None, 1e6])
def test_plans_are_tried_under_every_schedule_before_bounds(
    limit_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where time is limited; a formula bounds no passes, so 1F1B is left out."""
    calls: list[tuple[str, bool]] = []

    def search(task: SearchTask, with_bounds: bool) -> SolverOutput:
        calls.append((str(task.model.problem.job.schedule), with_bounds))
        return SolverOutput(status=Status.NO_SOLUTION, lower_bound_quanta=30)

    def bound(task: SearchTask, *_: object) -> tuple[int, None]:
        name = str(task.model.problem.job.schedule)
        calls.append((f"bound of {name}", True))
        return {"zb-h1": 40, "zb-v": 50}.get(name, 20), None

    monkeypatch.setattr(orders, "search_schedule", search)
    monkeypatch.setattr(orders, "bound_all", bound)
    names = ("zb-h1", "zb-v")
    problem = chain(schedule=names, virtual_stages=(2,))
    output = DpSolver().solve(problem, SolveOptions(time_limit_s=limit_s))
    tried, bounded = calls[: len(calls) // 2], calls[len(calls) // 2 :]
    if limit_s is None:
        assert calls == [("zb-h1", True), ("zb-v", True), (f"bound of {names}", True)]
        assert output.lower_bound_quanta == 30
        return
    assert tried == [("zb-h1", False), ("zb-v", False)]
    assert bounded[:2] == [("bound of zb-h1", True), ("bound of zb-v", True)]
    assert output.lower_bound_quanta == 40


def test_the_plan_of_a_schedule_is_tried_under_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two blocks of two layers: 3 · 60 under 1F1B; with W in the gaps 20 + 2 · 60.

    The bound of 1F1B is that of its formula, and counts for nothing.
    """
    plan = make_plan(("a b", Strategy()), ("c d", Strategy()))
    seen = []

    def search(task: SearchTask, _: bool) -> SolverOutput:
        seen.append(task.model.problem.job.schedule)
        return SolverOutput(
            status=Status.FEASIBLE,
            plan=plan if seen[-1] == "1f1b" else None,
            claimed_quanta=180,
            lower_bound_quanta=130,
        )

    monkeypatch.setattr(orders, "search_schedule", search)
    problem = chain(schedule=("1f1b", "zb-h1"), replicas=(1,))
    output = DpSolver().solve(problem, SolveOptions())
    assert seen == ["1f1b", "zb-h1"]
    assert output.plan is not None
    assert (output.plan.order, output.claimed_quanta) == ("zb-h1", 140)
    assert output.lower_bound_quanta is not None
    assert output.lower_bound_quanta < 130


# Few passes


#: Three blocks of a layer, four micro-batches: 36 passes. 2 bytes hold two
#: micro-batches in flight.
FEW = chain(
    3,
    global_batch=4,
    replicas=(1,),
    micro_batches=(1,),
    pipeline_parallel=(3,),
    memory_bytes=2,
)


def test_the_best_order_of_few_passes_is_proven() -> None:
    output = DpSolver().solve(FEW, SolveOptions())
    assert output.plan is not None
    without = replace(output.plan, order=None)
    scope, sync = orders.order_scope(FEW, without, CostModel(FEW))
    end = least_end(scope)
    assert end is not None
    assert output.claimed_quanta == end + sync == 170
    assert order_bound(scope) + sync == 150
    assert output.status is Status.OPTIMAL


def test_that_no_plan_fits_is_proven_where_all_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stage of two layers keeps two bytes for a micro-batch."""
    monkeypatch.setattr(orders._OrdersSearch, "_search_leanest", lambda *_: 0)
    monkeypatch.setattr(orders, "bound_all", lambda *_: (0, None))
    tight = chain(2, replicas=(1,), pipeline_parallel=(1,), memory_bytes=1)
    output = DpSolver().solve(tight, SolveOptions())
    assert (output.status, output.plan) == (Status.INFEASIBLE, None)
    roomy = chain(2, replicas=(1,), pipeline_parallel=(1,), memory_bytes=2)
    output = DpSolver().solve(roomy, SolveOptions())
    assert (output.status, output.claimed_quanta) == (Status.OPTIMAL, 120)


def test_proven_orders_bound_all_plans_that_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If not at once, when the order of the best plan is proven."""

    def bound() -> int | None:
        return DpSolver().solve(FEW, SolveOptions()).lower_bound_quanta

    with monkeypatch.context() as no_second_look:
        no_second_look.setattr(orders._OrdersSearch, "_improve", lambda *_: None)
        assert bound() == 170
    monkeypatch.setattr(orders, "MOST_LISTED_PROOFS", 0)
    assert bound() == 170
    monkeypatch.setattr(orders, "MOST_LISTED", 0)
    assert bound() == 150


def test_the_least_bound_of_listed_plans_bounds_all() -> None:
    search = orders._OrdersSearch(task_of(FEW))
    search.best = 170
    assert search._bound_of_listed() == 0
    for floors, bound in (((), 170), ((150, 160), 150), ((180,), 170)):
        search._listed = [SimpleNamespace(floor=x) for x in floors]  # type: ignore
        assert search._bound_of_listed() == bound


@pytest.mark.parametrize("missing", ["passes", "engine"])
def test_more_passes_are_bounded_by_work_and_memory(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of 1 - 150 / 170, rounded up."""
    if missing == "passes":
        monkeypatch.setattr(orders, "MOST_PROVEN", 35)
    else:
        monkeypatch.setattr(registry, "_ORDER_ENGINE", "no_such_engine")
    output = DpSolver().solve(FEW, SolveOptions())
    assert output.claimed_quanta == 170
    assert output.detail.endswith("; no order of it is more than 11.77 % faster")


def test_what_an_engine_finds_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five micro-batches the first two lists take 230."""
    for name in ("FEW_ORDERS", "FIRST_ORDERS", "ROUND", "MAX_ORDERS"):
        monkeypatch.setattr(orders, name, 1)
    monkeypatch.setattr(orders, "MAX_TURNS", 0)
    problem = with_job(FEW, global_batch=5)
    output = DpSolver().solve(problem, SolveOptions())
    assert output.claimed_quanta == 210
    assert output.status is Status.OPTIMAL
    monkeypatch.setattr(orders, "MOST_PROVEN", 0)
    output = DpSolver().solve(problem, SolveOptions())
    assert output.claimed_quanta == 230


def test_an_engine_looks_for_what_is_as_good_as_the_best_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And at each plan once."""
    calls: list[tuple[OrderScope, ListOrder, int]] = []

    def prove(
        scope: OrderScope, known: ListOrder, floor: int, upper: int, deadline: Deadline
    ) -> tuple[ListOrder, int]:
        assert floor < upper
        calls.append((scope, known, upper))
        return known, floor

    monkeypatch.setattr(orders, "order_prover", lambda: prove)
    monkeypatch.setattr(orders, "MAX_ORDERS", 120)
    problem = with_job(FEW, pipeline_parallel=None)
    best = DpSolver().solve(problem, SolveOptions()).claimed_quanta
    assert calls
    assert len({id(scope) for scope, _, _ in calls}) == len(calls)
    assert best is not None
    assert all(upper >= best for _, _, upper in calls)
