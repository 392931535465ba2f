"""Plans of a target: exact solvers agree, and only lose time.

The rules that targets state are drawn by themselves, too: what frameworks ask
for now is a few combinations of them.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nest.constraints.targets import for_target, inexpressible, names
from nest.errors import InvalidOptionError
from nest.ir import Problem
from nest.ir.job import MICRO_BATCH_COUNTS, OVERLAP_NEEDS, SEVERAL, SHARDING, SHARED
from nest.solvers.base import Status
from tests.builders import with_job
from tests.frontiers import enumerated, searched
from tests.independent.enumerator import optimum
from tests.properties.fairness import check_fair
from tests.properties.profiles import examples
from tests.properties.test_baselines_fair import EXTRA, PLANNERS
from tests.properties.test_mixed_devices import mixed
from tests.properties.test_solvers_agree import EXACT, check, solve
from tests.strategies import Draw, count_plans, problems, with_predictions

FRAMEWORKS = tuple(name for name in names() if name != "any")

#: Of the independent list, which prices every plan by itself.
MOST_PLANS = 300


def any_problems() -> st.SearchStrategy[Problem]:
    """Draw problems on trees, graphs and several types of devices.

    Plans of some choose where sequences are split.
    """
    plain = problems(preset="standard")
    return st.one_of(plain, problems(choosing=True), problems(graphs=True), mixed())


def narrowed(problem: Problem, name: str) -> Problem:
    """Return a problem for a target; skip what it has no choice for."""
    try:
        return for_target(problem, name)
    except InvalidOptionError:
        assume(False)
        raise


@pytest.mark.parametrize("name", FRAMEWORKS)
@examples(50, full=1200)
@given(any_problems())
def test_exact_solvers_prove_the_optimum_for_a_target(name, problem):
    """Equal to the quantum, and the target can say what they find."""
    narrow = narrowed(problem, name)
    check(EXACT, narrow)
    found = solve("dp", narrow)
    if found.plan is None:
        return
    in_its_terms = [
        obstacle
        for obstacle in inexpressible(name, narrow, found.plan)
        if obstacle.field != "optimizer.gradient_bytes"
    ]
    assert in_its_terms == []
    same = with_job(
        problem, optimizer=narrow.job.optimizer, schedule=narrow.job.schedule
    )
    loose = solve("dp", same)
    assert loose.claimed_quanta is not None
    assert found.claimed_quanta is not None
    assert loose.claimed_quanta <= found.claimed_quanta


@st.composite
def predicting(draw: Draw) -> Problem:
    """Draw a problem with modules for multi-token prediction."""
    return with_predictions(draw, draw(any_problems()))


@examples(40, full=1200)
@given(predicting())
def test_modules_of_predictions_stay_together_for_megatron(problem):
    """All exact solvers and the independent list agree on the best plan."""
    narrow = narrowed(problem, "megatron")
    check(EXACT, narrow)
    found = solve("dp", narrow)
    if found.plan is not None:
        kinds = {str(x.id): x.kind for x in narrow.graph.layers}
        homes = [
            sum(kinds[str(x)].startswith("mtp") for x in stage.layers)
            for stage in found.plan.stages
        ]
        assert sum(count > 0 for count in homes) == 1
        assert not [
            obstacle
            for obstacle in inexpressible("megatron", narrow, found.plan)
            if obstacle.field != "optimizer.gradient_bytes"
        ]
    if count_plans(narrow) <= MOST_PLANS:
        assert found.claimed_quanta == optimum(narrow)[0]


@examples(10, full=300)
@given(predicting(), st.sampled_from(FRAMEWORKS))
def test_frameworks_without_such_modules_say_so(problem, name):
    if name == "megatron":
        modules = [x for x in problem.graph.layers if "mtp" in x.kind]
        assert bool(for_target(problem, name).job.one_stage) == (len(modules) > 1)
        return
    with pytest.raises(
        InvalidOptionError,
        match=rf"^target {name}: expected no layers of kind 'mtp', which ",
    ):
        for_target(problem, name)


@examples(20, full=600)
@given(predicting())
def test_frontiers_keep_modules_of_predictions_together(problem):
    narrow = narrowed(problem, "megatron")
    assert searched(narrow) == enumerated(narrow)


@st.composite
def ruled(draw: Draw, **kind: Any) -> Problem:
    """Draw a problem with rules about whole plans."""
    if draw(st.booleans()):
        problem = draw(problems(preset="standard", **kind))
    else:
        problem = draw(
            mixed(**kind) if draw(st.booleans()) else (problems(**kind, graphs=True))
        )
    return draw_rules(draw, problem)


def draw_kinds(draw: Draw, problem: Problem) -> tuple[str, ...]:
    """Draw some kinds of layers, often none."""
    kinds = sorted({layer.kind for layer in problem.graph.layers})
    if draw(st.booleans()):
        return ()
    return tuple(draw(st.lists(st.sampled_from(kinds), max_size=3, unique=True)))


def draw_rules(draw: Draw, problem: Problem) -> Problem:
    shared = draw(st.lists(st.sampled_from(SHARED), max_size=7, unique=True))
    idle = True
    if draw(st.integers(0, 3)) == 0:
        idle = False
        shared = [*shared, *(["devices"] if "devices" not in shared else [])]
    zero_with = {}
    for where in SEVERAL:
        if draw(st.integers(0, 2)) == 0:
            known = [*problem.job.zero, draw(st.integers(0, 3))]
            some = st.lists(st.sampled_from(sorted({*known})), min_size=1, unique=True)
            zero_with[where] = tuple(draw(some))
    return with_job(
        problem,
        uniform=tuple(shared),
        even_layers=draw(st.integers(0, 3)) == 0,
        one_stage=draw_kinds(draw, problem),
        idle_devices=idle,
        zero_with=zero_with,
        sharded_with=tuple(name for name in SHARDING if draw(st.integers(0, 3)) == 0),
        micro_batch_count=draw(st.sampled_from(("any", *MICRO_BATCH_COUNTS))),
        overlap_needs={
            name: tuple(needs)
            for name in problem.job.overlap
            if (needs := draw(st.lists(st.sampled_from(OVERLAP_NEEDS), unique=True)))
        },
    )


@examples(60, full=3000)
@given(ruled())
def test_rules_about_whole_plans_are_kept_exactly(problem):
    check(EXACT, problem)


@examples(60, full=3000)
@given(ruled(overlapping=True))
def test_overlap_has_what_it_needs(problem):
    check(EXACT, problem)


@examples(40, full=600)
@given(ruled(granularity="layer"))
def test_rules_hold_for_strategies_of_layers(problem):
    check(EXACT, problem)


@st.composite
def ruled_choices(draw: Draw, **kind: Any) -> Problem:
    """Draw the same where plans choose where sequences are split."""
    return draw_rules(draw, draw(problems(choosing=True, **kind)))


@examples(40, full=1000)
@given(st.one_of(ruled_choices(), ruled_choices(granularity="layer")))
def test_rules_hold_where_plans_split_sequences(problem):
    check(EXACT, problem)
    if count_plans(problem) <= MOST_PLANS:
        assert solve("brute", problem).claimed_quanta == optimum(problem)[0]


@examples(10, full=1000)
@given(ruled(), st.booleans(), st.booleans())
def test_the_independent_list_keeps_the_rules(problem, interleaved, sharded):
    """It prices every plan by itself, and knows the rules by their page."""
    if sharded:
        problem = with_job(problem, distributed_optimizer=True)
    if interleaved:
        problem = with_job(problem, schedule="1f1b", virtual_stages=(1, 2))
    assume(count_plans(problem) <= MOST_PLANS)
    best, _ = optimum(problem)
    truth = solve("brute", problem)
    assert truth.claimed_quanta == best
    assert truth.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)


@pytest.mark.parametrize("name", PLANNERS)
@examples(40, full=1000)
@given(any_problems(), st.sampled_from(FRAMEWORKS))
def test_planners_keep_to_a_target_or_say_why_not(name, problem, target):
    check_fair(name, narrowed(problem, target), **EXTRA.get(name, {}))


@examples(40, full=600)
@given(any_problems(), st.sampled_from(FRAMEWORKS))
def test_frontiers_for_a_target_are_those_of_all_plans(problem, name):
    narrow = narrowed(problem, name)
    assert searched(narrow) == enumerated(narrow)
