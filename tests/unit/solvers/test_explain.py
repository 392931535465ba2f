"""Explanations, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nest.analysis.explain import explain, relaxations, to_document
from nest.constraints.pins import parse
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.ir import Plan, Problem
from nest.solvers.base import Limit, SolveOptions, Status
from tests.builders import SINGLE, make_cost, make_levels, make_plan, make_problem
from tests.clock import spending
from tests.inside import run_inside


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest.analysis.explain.run_solver", run_inside)


def chain(**fields: object) -> Problem:
    """Two layers of 30 ns on two devices; a cut of 10 bytes takes 10 + 10.

    One device takes 4 · 60 = 240. Two stages: 50 each, 100 + 3 · 50 = 250.
    Two replicas: 2 · 60 = 120.
    """
    cost = make_cost(10, 20, kept_bytes=10)
    fields.setdefault("global_batch", 4)
    return make_problem(
        {"a": cost, "b": cost}, edges=(("a", "b", 10),), devices=2, **fields
    )


ONE = make_plan(("a b", SINGLE))
TWO = make_plan(("a", SINGLE), ("b", SINGLE))
BOTH = make_plan(("a b", SINGLE), replicas=2)


def gains(problem: Problem, plan: Plan) -> dict[str, object]:
    found = explain(problem, plan)
    return {relaxed.name: relaxed.step_quanta for relaxed in found.relaxed}


def test_the_optimum_and_the_distance_to_it():
    found = explain(chain(), ONE)
    assert found.score.step_quanta == 240
    assert found.optimum is not None
    assert found.optimum.status is Status.OPTIMAL
    assert found.optimum.step_quanta == 120
    assert (found.fullest, found.slack_bytes) == (0, 10**9 - 20)
    assert not found.failed


def test_memory_binds_where_it_is_short():
    """A device holds 20 bytes, what both layers keep, but not 19.

    With 19 the two stages are left, on the first of which are two
    micro-batches of 10: nothing fits, until there is more memory.
    """
    found = explain(chain(memory_bytes=20), TWO)
    assert found.optimum is not None
    assert found.optimum.step_quanta == 120
    assert found.binding is None
    assert found.slack_bytes == 0
    tight = explain(chain(memory_bytes=19), TWO)
    assert tight.optimum is not None
    assert tight.optimum.status is Status.INFEASIBLE
    assert tight.slack_bytes == -1
    assert tight.binding is tight.relaxed[0]
    assert tight.relaxed[0].name == "memory without limit"
    assert tight.relaxed[0].step_quanta == 120


def test_the_largest_gain_names_the_constraint():
    """In one replica the pipeline takes 60 + 3 · 30 without the network.

    With it 250, so one device is better; micro-batches of two would need a
    cost for two samples, or dp.
    """
    problem = chain(replicas=(1,), data_parallel=(1,))
    assert gains(problem, ONE) == {
        "network level 0 infinitely fast": 150,
        "micro-batches twice as large allowed": 240,
        # 8 micro-batches: 60 + 40 + 7 · 50 = 450 in two stages
        "global batch doubled (time per old step)": 225,
    }
    found = explain(problem, ONE)
    assert found.binding is not None
    assert found.binding.name == "network level 0 infinitely fast"
    assert found.binding.proven


def test_larger_micro_batches_may_gain():
    """Two samples at a time on two data ranks: 2 · 60."""
    found = explain(chain(replicas=(1,)), ONE)
    assert found.binding is not None
    assert found.binding.name == "micro-batches twice as large allowed"
    assert found.binding.step_quanta == 120


def test_every_level_is_relaxed_apart_and_together():
    levels = make_levels((2, 10.0, 1e9), (1, 0.0, 1e9), (2, 100.0, 1e8))
    names = [r.name for r in relaxations(chain(topology=levels))]
    assert names == [
        "network level 0 infinitely fast",
        "network level 2 infinitely fast",
        "whole network infinitely fast",
        "micro-batches twice as large allowed",
        "global batch doubled (time per old step)",
    ]


def test_batches_are_doubled_where_there_is_room():
    """Of A = 4 micro-batches may be 4, not 8; 2 is allowed already."""
    (more,) = (
        r.problem
        for r in relaxations(chain(micro_batches=(1, 2)))
        if r.name.startswith("micro")
    )
    assert more.job.micro_batches == (1, 2, 4)
    names = [r.name for r in relaxations(chain(global_batch=1))]
    assert names == [
        "network level 0 infinitely fast",
        "global batch doubled (time per old step)",
    ]


def test_a_preferred_setting_and_which_terms_lose():
    """Two stages against two replicas of one: 250 to 120.

    Four micro-batches of 30 + 20 instead of two of 60; the other stage fills once, 50.
    """
    prefer = parse(["pp=2"], "--prefer")
    found = explain(chain(), BOTH, prefer=prefer)
    assert found.preferred is not None
    assert found.preferred.text == "pp=2"
    assert found.preferred.result.status is Status.OPTIMAL
    assert found.preferred.result.step_quanta == 250
    terms = found.preferred.terms
    assert terms is not None
    assert {name: value for name, value in terms.step.items() if value} == {
        "compute": 120,
        "receive": 80,
        "bubble": 50,
    }
    assert found.terms.step["compute"] == 120


def test_a_preferred_setting_may_not_fit():
    prefer = parse(["pp=2"], "--prefer")
    found = explain(chain(memory_bytes=19), TWO, prefer=prefer)
    assert found.preferred is not None
    assert found.preferred.result.status is Status.INFEASIBLE
    assert found.preferred.terms is None


def test_a_preferred_setting_may_be_impossible():
    with pytest.raises(
        InvalidOptionError,
        match=r"--prefer pp=3: expected at most 2 stages \(2 layers, 2 "
        r"devices\), got 3; pin fewer",
    ):
        explain(chain(), ONE, prefer={"pp": (3,)})
    with pytest.raises(
        InvalidOptionError,
        match=r"--prefer pp=2,r=2: expected a plan that fulfills all of it",
    ):
        explain(chain(), ONE, prefer={"pp": (2,), "r": (2,)})


def test_without_a_search_there_are_terms_and_neighbours():
    found = explain(chain(), ONE, search=False)
    assert found.optimum is None
    assert found.relaxed == ()
    assert found.binding is None
    assert sum(found.terms.step.values()) == 240
    assert "one stage more" in {near.name for near in found.neighbours}


def test_a_plan_of_another_problem_is_refused():
    with pytest.raises(InvalidPlanError, match="got none for 'b'"):
        explain(chain(), make_plan(("a", SINGLE)))


def test_the_document_has_every_part():
    prefer = parse(["pp=2"], "--prefer")
    document = to_document(explain(chain(), ONE, prefer=prefer), "dp")
    assert document["schema"] == "nest-explain/1"
    assert document["terms_ns"]["compute"] == 240
    assert document["optimum"]["step_time_ns"] == 120
    assert document["slowest_block"] == document["fullest_block"] == 1
    assert document["free_bytes"] == 10**9 - 20
    assert document["blocks"][0]["load_terms_ns"]["compute"] == 60
    assert document["binding"] is None
    near = {item["name"]: item for item in document["neighbours"]}
    assert near["one stage more"]["difference_ns"] == 10
    assert near["one stage more"]["free_bytes"] == 10**9 - 20
    assert near["replicas doubled"]["step_time_ns"] == 120
    assert near["micro-batch doubled"]["verdict"] == "illegal"
    assert near["micro-batch doubled"]["step_time_ns"] is None
    assert document["preferred"]["prefer"] == "pp=2"
    assert document["preferred"]["terms_ns"]["receive"] == 80
    steps = {item["name"]: item["step_ns"] for item in document["relaxed"]}
    assert steps["global batch doubled (time per old step)"] == 120.0


def test_signs_of_life_name_what_is_solved(monkeypatch):
    from nest.solvers.cell import Running

    def run(problem, name, options, on_progress):
        on_progress(Running(name, 1.0, None, None, False, "busy", 1000))
        return run_inside(problem, name, options)

    monkeypatch.setattr("nest.analysis.explain.run_solver", run)
    said = []
    explain(
        chain(),
        ONE,
        prefer=parse(["pp=2"], "--prefer"),
        on_progress=lambda running: said.append(running.message),
    )
    assert said == [
        "best plan: busy",
        "network level 0 infinitely fast: busy",
        "micro-batches twice as large allowed: busy",
        "global batch doubled (time per old step): busy",
        "pp=2: busy",
    ]


def test_the_problems_share_the_time_limit(monkeypatch):
    """Evenly; what is left when it is up is not searched."""
    limits = spending(monkeypatch, "nest.analysis.explain", 100)
    limited = SolveOptions(time_limit_s=60)
    num_runs = 1 + len(tuple(relaxations(chain())))
    explain(chain(), BOTH, options=limited)
    assert limits == pytest.approx([60 / num_runs] * num_runs)
    limits.clear()
    found = explain(chain(), BOTH, options=replace(limited, time_limit_s=0))
    assert limits == []
    assert found.optimum.limit is Limit.TIME
    assert not found.optimum.outcome.failed
