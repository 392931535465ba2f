"""What running the passes takes, and what the formulas say about it."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from nest.cost.schedules import SCHEDULES, Times, schedule_of
from nest.cost.schedules.timeline import critical_path
from nest.cost.score import score
from nest.simulation.events import Simulation
from tests.independent.generate import draw_pair
from tests.independent.rules import broken_rules
from tests.properties.profiles import examples

TIMES = st.integers(0, 40)


@st.composite
def stages_of_any_times(draw):
    """Draw up to 8 stages, equal or not, and up to 12 micro-batches."""
    size = draw(st.integers(1, 8))
    few = st.sampled_from(draw(st.lists(TIMES, min_size=1, max_size=3)))
    times = draw(st.sampled_from((TIMES, few)))
    stages = [
        Times(draw(times), backward, draw(st.integers(0, backward)))
        for backward in draw(st.lists(times, min_size=size, max_size=size))
    ]
    return stages, draw(st.integers(1, 12))


@examples(300)
@given(stages_of_any_times())
def test_1f1b_stays_within_its_bounds(case):
    """docs/cost-model.md, *Simulation*: lower and upper bound.

    Write ``F(s,m)`` and ``B(s,m)`` for the passes of stage ``s`` and
    microbatch ``m``, and ``w_s = S-s``. The last pass ends with the longest
    chain of passes in which each waits for the one before, from ``F(1,1)`` to
    ``B(1,M)``. Stage ``s`` runs ``F(s,1) … F(s,w_s+1)``, ``B(s,1)``,
    ``F(s,w_s+2)``, ``B(s,2)``, … as far as there are such passes.

    Lower bound: the chain ``F(1,1) … F(S,1)``, ``B(S,1)``, ``F(S,2)``,
    ``B(S,2)`` … ``B(S,M)``, ``B(S-1,M) … B(1,M)``.

    Upper bound, forward passes: from one in a chain to the next ``s+m`` grows
    by one, directly or from ``F(s,m'+w_s)`` over ``B(s,m') … B(s',m')``,
    ``s' <= s``, to ``F(s',m'+w_s'+1)``. If ``F(p,q)`` is the last one there
    are ``p+q-1``. A chain gets to later stages only by steps from ``F(s,m)``
    to ``F(s+1,m)``, so one pass on each stage ``1 … p`` is in ``Σ F_s``. At
    most ``q-1 <= M-1`` others take ``max F_s`` each.

    Backward passes: from one to the next ``m-s`` grows by one, directly or
    from ``B(s,m)`` over ``F(s,m+w_s+1) … F(s',m+w_s+1)``, ``s' >= s``, to
    ``B(s',m+1+s'-s)``. If ``B(p,q)`` is the first one there are ``M+p-q``: one
    on each stage ``p … 1``, and at most ``M-q <= M-1`` others of ``max G_s``.
    """
    stages, micro = case
    schedule = SCHEDULES["1f1b"]
    loads = [stage.forward + stage.backward for stage in stages]
    forward = max(stage.forward for stage in stages)
    backward = max(stage.backward for stage in stages)
    exact = critical_path(schedule, stages, micro)
    formula = schedule.pipeline_time(stages, micro)
    above = (micro - 1) * (forward + backward - max(loads))
    assert sum(loads) + (micro - 1) * loads[-1] <= exact
    assert exact <= formula + above <= 2 * formula
    assert exact <= SCHEDULES["gpipe"].pipeline_time(stages, micro)


@examples(100)
@given(stages_of_any_times(), st.data())
def test_the_1f1b_formula_bounds_a_slowest_stage(case, data):
    """One stage has both of the largest passes."""
    stages, micro = case
    slowest = data.draw(st.integers(0, len(stages) - 1))
    stages[slowest] = Times(40, 40)
    schedule = SCHEDULES["1f1b"]
    exact = critical_path(schedule, stages, micro)
    assert exact <= schedule.pipeline_time(stages, micro)


@examples(100)
@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(1, 8),
    st.integers(1, 12),
    TIMES,
    TIMES,
)
def test_formulas_are_exact_for_equal_stages(name, size, micro, there, back):
    schedule, stages = SCHEDULES[name], [Times(there, back, back // 2)] * size
    exact = critical_path(schedule, stages, micro)
    assert schedule.pipeline_time(stages, micro) == exact


@examples(50)
@given(st.integers(2, 4), st.integers(2, 3), st.integers(1, 4), TIMES, TIMES)
def test_equal_chunks_take_the_closed_form(size, virtual, groups, there, back):
    """``M τ_b + (S-1) τ_b / v`` with ``τ_b = v τ``."""
    micro, load = groups * size, there + back
    chunks = [Times(there, back)] * (size * virtual)
    exact = critical_path(schedule_of("1f1b", virtual), chunks, micro)
    assert exact == micro * virtual * load + (size - 1) * load


@examples(150)
@given(stages_of_any_times())
def test_gpipe_takes_its_formula(case):
    stages, micro = case
    schedule = SCHEDULES["gpipe"]
    exact = critical_path(schedule, stages, micro)
    assert schedule.pipeline_time(stages, micro) == exact


@examples(200)
@given(st.integers(0, 10**6))
def test_events_of_plans_fill_their_blocks(seed):
    """None overlap, they add up, and the last one ends the step."""
    problem, plan = draw_pair(Random(seed), "standard")
    if broken_rules(problem, plan):
        return
    found = score(problem, plan)
    simulation = Simulation(problem, plan, found)
    ends = []
    for block, use in enumerate(simulation.uses()):
        busy, free = 0, 0
        for event in simulation.events(block):
            assert event.duration >= 0
            if event.paired and event.kind == "backward":
                # Both passes of a pair take as long as it does.
                assert event.start + event.duration == free
                continue
            assert event.start >= free
            free = event.start + event.duration
            busy += event.duration
        assert use.busy == busy
        assert use.end == free
        assert use.idle >= 0
        ends.append(free)
    assert simulation.step == max(ends)
    syncs = [block.sync for block in found.blocks]
    passes = max(found.timeline.block_ends)
    assert simulation.step <= passes + max(syncs)
    if plan.virtual_stages > 1 or problem.job.schedule != "1f1b":
        assert found.step_quanta == passes + max(syncs)
