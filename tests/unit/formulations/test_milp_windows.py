"""The MILP model sees a window of step times, and no term far above it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formulations.brute import PlanSpace
from formulations.common import Task
from formulations.instances import INSTANCES
from formulations.milp import windows
from formulations.milp.constraints import add_constraints
from formulations.milp.objective import set_objective
from formulations.milp.solver import MilpSolver
from formulations.milp.variables import create
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import leading_runtimes, runtime_of
from nest.ir import Problem
from nest.solvers.base import Deadline, SolveOptions, Status
from tests.builders import make_cost, make_levels, make_problem
from tests.properties.profiles import examples
from tests.regression.store import load
from tests.strategies import problems

ENGINES = ("cbc", "highs")
engines = pytest.mark.parametrize("engine", ENGINES)


def solve(problem: Problem, engine: str = "cbc"):
    if engine == "highs":
        pytest.importorskip("highspy")
    return MilpSolver().solve(problem, SolveOptions(extra={"engine": engine}))


def tasks(problem: Problem) -> Iterator[Task]:
    """Yield every sub-problem of a problem that may have a plan."""
    model = CostModel(problem)
    for runtime in leading_runtimes(problem):
        instance = INSTANCES[model.rules.name](
            problem, model.under(runtime), Deadline(None)
        )
        for sub_problem in instance.sub_problems():
            slots = instance.slots(sub_problem)
            if slots is not None:
                yield Task(instance, sub_problem, slots)


def coefficients(task: Task) -> list[float]:
    """Return all coefficients of a model, in the engine's units."""
    model = create(task)
    add_constraints(model)
    set_objective(model)
    return [
        abs(coefficient)
        for row in model.engine.constraints.values()
        for coefficient in row.values()
    ]


def far_apart() -> Problem:
    """Return a problem whose bound (L23) is far below its only plan.

    A device has room for a and b, or for c: 1 byte of weights takes 8. So b
    sends 10^6 bytes to c, 1 ns each, there and back; the bound knows only of
    the 1 byte to b: 3 · 2 + 2 · 10^6 ns.
    """
    return make_problem(
        {
            name: make_cost(1, 1, weight_bytes=size)
            for name, size in (("a", 10), ("b", 10), ("c", 20))
        },
        edges=(("a", "b", 1), ("b", "c", 10**6)),
        devices=2,
        topology=make_levels((2, 0.0, 1e9)),
        memory_bytes=160,
        replicas=(1,),
    )


def two_layouts() -> Problem:
    """Return a problem whose only plan changes the layout of 10^6 bytes.

    Layer b takes two shards of what a makes, and a whole what b returns: 2 · 2
    + 10^6 / 2 + 10^6 ns.
    """
    return make_problem(
        {"a": make_cost(1, 1, tp=2), "b": make_cost(1, 1, cp=2)},
        edge=10**6,
        devices=2,
        topology=make_levels((2, 0.0, 1e9)),
        granularity="layer",
    )


@pytest.mark.parametrize("most", [0, 7, 10**6 - 2, 10**6, 2 * 10**6, 10**9, 2**61])
def test_rows_of_a_window_leave_room_for_rounding(most):
    """In what is proven of a window no plan is at the end of a row."""
    proven = MilpSolver.capabilities.proves(most + 1)
    least, high = windows.limits(most, most)
    last = min(most, proven)
    assert high - last >= 4e-7 * max(last, 1)
    assert most - least >= 4e-7 * most
    assert most + 1 - high >= 4e-7 * most


def test_the_last_window_has_the_longest_plan_inside():
    """One layer of 10^9 + 2 · 10^9 ns on one device has one plan."""
    problem = make_problem({"a": make_cost(1e9, 2e9)}, devices=1)
    (task,) = tasks(problem)
    most = windows.longest(task)
    assert most >= 3 * 10**9
    *_, last = windows.windows(task)
    _, high = windows.limits(last.sub_problem.bound, last.cutoff)
    assert high >= (1 + 4e-7) * most


#: Problems and their optima.
FAR = {"far-apart": (far_apart, 2_000_006), "layouts": (two_layouts, 1_500_004)}


@pytest.mark.parametrize("name", ["spread-behind-cutoff", *FAR])
def test_no_coefficient_is_far_above_the_step_time(name):
    """The end of a window is about 2**10, as is the memory of a device.

    A window begins at a 64th of its end, so a step is at least 2**3.
    """
    problem = FAR[name][0]() if name in FAR else load(name).problem
    num_windows = 0
    for task in tasks(problem):
        for window in windows.windows(task):
            num_windows += 1
            assert max(coefficients(window)) <= 2**10 + 1
            assert window.cutoff <= 64 * max(window.sub_problem.bound, 1)
    assert num_windows > 1


@engines
@pytest.mark.parametrize("name", FAR)
def test_a_plan_in_a_later_window_is_found(name, engine):
    """Where the first one has none."""
    make, optimum = FAR[name]
    output = solve(make(), engine)
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == optimum
    assert output.lower_bound_quanta == MilpSolver.capabilities.proves(optimum)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_sync_that_hides_does_not_count_against_a_window(fraction):
    """One layer of 100 + 300 ns on two devices, dp = 2, syncs 200 bytes.

    The all-reduce of 200 bytes takes 200 ns at 1 byte per ns, of which
    ``fraction`` hides behind the backward pass: 400 + 200 - 200 · fraction.
    """
    problem = make_problem(
        {"a": make_cost(100, 300, weight_bytes=200)},
        devices=2,
        topology=make_levels((2, 0.0, 1e9)),
        micro_batches=(2,),
        global_batch=2,
        data_parallel=(2,),
        replicas=(1,),
        overlap={"gradients": fraction},
    )
    (task,) = [t for t in tasks(problem) if t.instance.hides]
    expected = 600 - int(200 * fraction)
    (found,) = windows._within(task, expected)[1].profiles
    assert all(found.choices)
    (found,) = windows._within(task, expected - 1)[1].profiles
    assert not any(found.choices)
    assert solve(problem).claimed_quanta == expected


@examples(30)
@given(st.one_of(problems(), problems(overlapping=True), problems(granularity="layer")))
def test_the_best_plan_is_not_beyond_the_last_window(problem):
    """Of no sub-problem; worse plans may be left out for better ones."""
    Key = tuple[object, ...]
    ends: dict[Key, int] = {}
    for task in tasks(problem):
        split, runtime = task.sub_problem.split, task.sub_problem.runtime
        key = (runtime, *split[:2], len(task.slots))
        ends[key] = max(ends.get(key, 0), windows.longest(task))
    found: dict[Key, list[int]] = {}
    model = CostModel(problem)
    for plan in PlanSpace(problem, model, Deadline(None)).plans():
        split = plan.replicas, plan.micro_batch
        key = (runtime_of(plan), *split, len(plan.stages))
        verdict = score(problem, plan, model)
        if verdict.feasible and key in ends:
            found.setdefault(key, []).append(verdict.step_quanta)
    assert all(min(steps) <= ends[key] for key, steps in found.items())
