"""``zb``: orders by the rules of the zero-bubble paper, and their memory.

Figures are those of arXiv 2401.10241, table 2: of p stages with equal times the idle
time is (p - 1)(T_F + T_B - T_W) in the memory of 1F1B, which is that of ZB-H1, and (p -
1)(T_F + T_B - 2 T_W) with 2p - 1 micro-batches in flight, that of ZB-H2.
"""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from baselines import zb
from baselines.zb import ZbSolver
from nest.cost.schedules import Times
from nest.cost.schedules.ordered import pass_text, read_order
from nest.cost.score import score
from nest.ir import LayerCost, Problem
from nest.search.passes.list_orders import OrderScope
from nest.search.passes.order_bounds import order_bound
from nest.search.passes.zero_bubble import best_zero_bubble_order, zero_bubble_order
from nest.search.solver import DpSolver
from nest.solvers import registry
from nest.solvers.base import SolveOptions, Status
from tests.builders import kept_or_full, make_cost, make_levels, make_problem
from tests.orders import least_end

OPTIONS = [*itertools.product((False, True), repeat=2)]


def scope_of(
    times: list[tuple[int, int, int]], room: list[int], num_micro_batches: int
) -> OrderScope:
    """Return stages of ``(F, B, W)``, with room for so many in flight."""
    return OrderScope(
        times=[Times(f, b + w, w) for f, b, w in times],
        kept_bytes=(1,) * len(times),
        free_bytes=tuple(room),
        block_of=tuple(range(len(times))),
        whole=frozenset(),
        num_micro_batches=num_micro_batches,
    )


@pytest.mark.parametrize("times", [(10, 10, 10), (10, 12, 6), (9, 10, 8)])
@pytest.mark.parametrize(("num_stages", "count"), [(4, 8), (8, 24)])
def test_equal_stages_idle_as_in_the_paper(
    times: tuple[int, int, int], num_stages: int, count: int
) -> None:
    forward, inputs, weights = times
    further = num_stages - 1
    work = count * sum(times)
    memory = [num_stages] * num_stages
    order = best_zero_bubble_order(scope_of([times] * num_stages, memory, count))
    assert order.end == work + further * (forward + inputs - weights)
    memory = [2 * num_stages - 1] * num_stages
    order = best_zero_bubble_order(scope_of([times] * num_stages, memory, count))
    # The stages do not wait for each other behind the last pass.
    idle = max(further * (forward + inputs - 2 * weights), 0)
    assert order.end <= work + further * forward + idle


def test_the_warm_up_may_delay_the_first_gradients() -> None:
    """On two stages of (4, 4, 3) the first B starts at 4 + 4 + 4 = 12.

    Three F end at 12; of (5, 4, 3) the third one would end at 15, one after 14.
    """
    for forward, options, expected in (
        (4, (False, False), 3),
        (5, (False, False), 2),
        (5, (True, False), 3),
    ):
        scope = scope_of([(forward, 4, 3)] * 2, [9, 9], 6)
        first, _ = zero_bubble_order(scope, *options).lists
        kinds = [pass_text(x)[1] for x in first]
        assert kinds[: expected + 1] == ["F"] * expected + ["I"]


def test_a_stage_that_is_far_ahead_may_skip() -> None:
    """The second stage is slow, so the first one has no haste with its F."""
    scope = scope_of([(1, 1, 1), (4, 4, 4)], [5, 2], 6)

    def num_forward(skips_forward: bool) -> int:
        """Return how many F come in front of the second B."""
        first, _ = zero_bubble_order(scope, False, skips_forward).lists
        texts = [pass_text(x) for x in first]
        return sum("F" in x for x in texts[: texts.index("0I1")])

    assert (num_forward(False), num_forward(True)) == (6, 5)


def drawn(random: Random) -> OrderScope:
    """Draw stages; in some of them 1F1B does not fit."""
    num_stages, count = random.randint(1, 5), random.randint(1, 9)
    times = [
        (random.randint(0, 9), random.randint(0, 9), random.randint(0, 9))
        for _ in range(num_stages)
    ]
    room = [
        random.choice((1, 2, num_stages - stage, num_stages, count))
        for stage in range(num_stages)
    ]
    return scope_of(times, room, count)


@pytest.mark.parametrize("seed", range(60))
def test_orders_can_run_and_fit(seed: int) -> None:
    """Every combination: each pass once, in turn, and never above memory."""
    scope = drawn(Random(f"zb {seed}"))
    num_stages, count = len(scope.times), scope.num_micro_batches
    for options in OPTIONS:
        order = zero_bubble_order(scope, *options)
        texts = tuple(tuple(map(pass_text, x)) for x in order.lists)
        schedule = read_order(texts, num_stages, 1, "loop", count)
        assert schedule.pipeline_time(scope.times, count) == order.end
        assert order.end >= order_bound(scope)
        for stage in range(num_stages):
            kept = schedule.kept([1], stage, num_stages, count)
            assert kept.passes <= scope.free_bytes[stage]


PLAIN = make_cost(10, 20, kept_bytes=1)


def chain(cost: LayerCost = PLAIN, **job: Any) -> Problem:
    names = "abcd"
    return make_problem(
        dict.fromkeys(names, cost),
        edges=tuple((x, y, 1) for x, y in itertools.pairwise(names)),
        topology=make_levels((4, 0.0, 1e18)),
        **{
            **{"global_batch": 8, "replicas": (1,), "schedule": "any"},
            **{"pipeline_parallel": (4,), **job},
        },
    )


def test_a_plan_has_the_stages_of_the_optimum_under_1f1b() -> None:
    """8 · 30 + 3 · 10: the first stage idles for the trip of one F."""
    problem = chain()
    output = ZbSolver().solve(problem, SolveOptions())
    assert output.status is Status.FEASIBLE
    assert output.plan is not None
    verdict = score(problem, output.plan)
    assert verdict.feasible
    assert verdict.step_quanta == 270
    assert output.own_objective_ns == 270
    job = replace(problem.job, schedule="1f1b")
    best = DpSolver().solve(replace(problem, job=job), SolveOptions())
    assert best.claimed_quanta == 330
    assert best.plan == replace(output.plan, order=None)
    assert isinstance(output.plan.order, tuple)


@pytest.mark.parametrize(
    ("missing", "expected"), [("", 36), ("engine", 39), ("room", 39)]
)
def test_the_program_beats_the_heuristic(
    missing: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stages of (5, 2, 5) and (2, 3, 2) with room for two of three."""
    costs = {
        "a": make_cost(5, 7, weight_backward_ns=5, kept_bytes=1),
        "b": make_cost(2, 5, weight_backward_ns=2, kept_bytes=1),
    }
    job = {"global_batch": 3, "micro_batches": (1,), "replicas": (1,)}
    problem = make_problem(
        costs,
        edge=1,
        topology=make_levels((2, 0.0, 1e18)),
        devices=2,
        memory_bytes=2,
        **{"schedule": "any", "pipeline_parallel": (2,), **job},
    )
    scope = scope_of([(5, 2, 5), (2, 3, 2)], [2, 2], 3)
    assert best_zero_bubble_order(scope).end == 39
    assert least_end(scope) == 36
    if missing == "engine":
        monkeypatch.setattr(registry, "_ORDER_ENGINE", "no_such_engine")
    if missing == "room":
        monkeypatch.setattr(zb, "MOST_PROVEN", 17)
    output = ZbSolver().solve(problem, SolveOptions())
    assert output.own_objective_ns == expected
    assert output.plan is not None
    assert score(problem, output.plan).step_quanta == expected


def test_stages_that_recompute_all_run_whole_backward_passes() -> None:
    cost = make_cost(10, 20, activations=kept_or_full(1, 1))
    problem = chain(cost, recompute=("full",))
    output = ZbSolver().solve(problem, SolveOptions())
    assert output.plan is not None
    assert output.plan.order is not None
    assert not any("W" in x for row in output.plan.order for x in row)
    assert score(problem, output.plan).feasible


def test_passes_that_keep_nothing_need_no_memory() -> None:
    """Weights of 2 bytes, with 2 of gradients and 12 of states, fill it."""
    cost = make_cost(10, 20, weight_bytes=2)
    output = ZbSolver().solve(chain(cost, memory_bytes=16), SolveOptions())
    assert output.own_objective_ns == 270


def test_where_nothing_fits_there_is_no_plan() -> None:
    output = ZbSolver().solve(chain(memory_bytes=3), SolveOptions())
    assert output.status is Status.NO_SOLUTION
    assert output.detail == "no plan under 1F1B fits"


@pytest.mark.parametrize("schedule", ["1f1b", ("1f1b", "zb-h1")])
def test_jobs_that_fix_the_schedule_are_refused(schedule: Any) -> None:
    problem = chain(schedule=schedule)
    reason = ZbSolver().unsupported(problem)
    assert reason == (
        f"$.job.schedule: expected 'any', as the planner orders passes, got "
        f"{problem.job.schedule_text!r}; use --schedule any"
    )
    assert ZbSolver().unsupported(chain()) is None
