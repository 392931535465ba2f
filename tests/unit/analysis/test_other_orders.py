"""What plans near an answer gain with their passes in another order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

import nest
from nest.analysis import others
from nest.analysis.others import OtherOrder, other_orders
from nest.constraints.targets import target
from nest.errors import InvalidProblemError, UnsupportedProblemError
from nest.ir import Problem
from nest.ir.plan import Plan, Stage, Strategy
from nest.present.screen import orders_text
from nest.search.passes.orders import look_at_orders
from nest.solvers.base import Deadline
from tests.builders import make_cost, make_levels, make_problem


@pytest.fixture(autouse=True)
def without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a look end where nothing is left to look at."""
    monkeypatch.setattr(others, "MAX_LOOK_S", 1e6)


def chain(**job: Any) -> Problem:
    """Four layers of 10 + 20 ns, half of these for weights, on two stages."""
    names = "abcd"
    return make_problem(
        dict.fromkeys(names, make_cost(10, 20, kept_bytes=1)),
        edges=tuple((x, y, 1) for x, y in itertools.pairwise(names)),
        topology=make_levels((2, 0.0, 1e18)),
        devices=2,
        **{
            **{"global_batch": 2, "replicas": (1,)},
            **{"pipeline_parallel": (2,), **job},
        },
    )


def looked(
    problem: Problem, name: str = "any", search_s: float = 1e6
) -> dict[str, float]:
    result = nest.solve(problem, "dp")
    assert result.plan is not None
    orders = other_orders(problem, result.plan, search_s, target(name))
    return {x.option: x.fraction for x in orders}


def test_better_orders_are_named_with_their_options() -> None:
    """1F1B takes 3 · 60 ns. Behind a fill of 10 ns, a block works 120.

    With gradients of weights last, two stages take 140: 20, then 120.
    """
    problem = chain()
    gains = looked(problem)
    assert gains.pop("--schedule any") <= 140 / 180
    ((option, fraction),) = gains.items()
    assert fraction <= 160 / 180
    name, value = option.split()
    asked: dict[str, Any] = {"schedule": value}
    if name == "--virtual-stages":
        asked = {"virtual_stages": int(value)}
    step = nest.solve(problem, **asked).step_quanta
    assert step is not None
    assert step <= fraction * 180


@pytest.mark.parametrize("name", ["megatron", "torchtitan"])
def test_orders_are_those_that_the_target_runs(name: str) -> None:
    gains = looked(chain(), name)
    named = {x.removeprefix("--schedule ") for x in gains}
    if name == "megatron":
        assert named in ({"--virtual-stages 2"}, {"--virtual-stages 4"})
    else:
        assert "any" in named
    assert looked(chain(), "deepspeed") == {}


def test_what_the_job_allows_is_no_other_order() -> None:
    """Not even beside a plan that is worse."""
    plan = nest.solve(chain(), "dp").plan
    assert plan is not None
    for chunks in ((1,), (1, 2, 4)):
        problem = chain(virtual_stages=chunks)
        orders = other_orders(problem, plan, 1e6, target("megatron"))
        assert bool(orders) == (chunks == (1,))


@pytest.mark.parametrize(
    ("search_s", "look_s"), [(0.1, 1.0), (15.0, 3.0), (1000.0, 5.0)]
)
def test_a_look_has_a_share_of_the_time_within_limits(
    monkeypatch: pytest.MonkeyPatch, search_s: float, look_s: float
) -> None:
    """Of CPU seconds: other processes shorten no look."""
    limits, cpu_s = [], [0.0]

    def look(_: Problem, __: Plan, deadline: Deadline, *___: Any) -> dict[Any, int]:
        limits.append(deadline.limit_s)
        part = deadline.shortened(1.0)
        assert not part.passed
        cpu_s.append(cpu_s.pop() + 1.0)
        assert part.passed
        return {}

    monkeypatch.undo()
    monkeypatch.setattr("time.process_time", lambda: cpu_s[0])
    monkeypatch.setattr("nest.search.passes.orders.look_at_orders", look)
    assert looked(chain(), search_s=search_s) == {}
    assert limits == [look_s]


def test_plans_near_one_with_a_single_stage_have_more() -> None:
    """On one device two samples take 2 · 4 · 30 ns; 140 on two stages, see above."""
    plan = Plan(
        replicas=1, micro_batch=1, stages=(Stage.of(tuple("abcd"), [Strategy()] * 4),)
    )
    problem = chain(pipeline_parallel=None)
    orders = other_orders(problem, plan, 1e6, target("any"))
    gains = {x.option: x.fraction for x in orders}
    assert gains["--schedule any"] <= 140 / 240

    job = replace(problem.job, schedule="any")
    free = replace(problem, job=job)
    steps = look_at_orders(free, plan, Deadline(None), ["1f1b"], 240)
    assert steps == {("1f1b", 1): 3 * 60}


@pytest.mark.parametrize(("memory_bytes", "fits"), [(4, False), (5, True)])
def test_orders_fit_in_the_memory(memory_bytes: int, fits: bool) -> None:
    """1F1B keeps two samples in two layers, interleaved plans five in one layer."""
    gains = looked(chain(global_batch=8, memory_bytes=memory_bytes), "megatron")
    assert set(gains) == ({"--virtual-stages 2"} if fits else set())


def test_small_gains_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "WORTH_SAYING", 0.5)
    assert looked(chain()) == {}


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedProblemError("too many closed sets"),
        # Chunks may send so much that no exact sum holds their step times.
        InvalidProblemError("$.quantum_ps: expected …"),
    ],
    ids=["wide", "slow"],
)
def test_what_cannot_be_searched_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("nest.search.passes.orders.closed_sets", refuse)
    assert looked(chain()) == {}


def test_the_row_of_other_orders() -> None:
    orders = [OtherOrder("--schedule any", 0.75), OtherOrder("--schedule zb-v", 0.8)]
    assert orders_text(orders) == (
        "other orders of passes: about -25.0 % (--schedule any), -20.0 % "
        "(--schedule zb-v)"
    )
    assert orders_text([]) == ""
