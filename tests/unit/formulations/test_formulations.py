"""The two formulations: options, limits, proofs, and random agreement."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from formulations import cpsat, milp
from formulations.brute import BruteSolver, PlanSpace
from formulations.common import Instance, Task
from formulations.cpsat.solver import CpSatSolver
from formulations.instances import INSTANCES
from formulations.milp import engines
from formulations.milp.engines import Verdict, read_cbc_log
from formulations.milp.solver import MilpSolver
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import (
    InvalidOptionError,
    InvalidPlanError,
    InvalidProblemError,
    SolverError,
)
from nest.ir import (
    Activations,
    Graph,
    Layer,
    LayerKind,
    Plan,
    Stage,
    Strategy,
    decode_problem,
)
from nest.models import builtin
from nest.search.solver import DpSolver
from nest.solvers.base import Deadline, Limit, OutOfTimeError, SolveOptions, Status
from nest.solvers.run import run_solver
from tests.builders import (
    SINGLE,
    kept_or_full,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
)
from tests.forms import checked
from tests.properties.profiles import examples
from tests.rows import named_rows
from tests.strategies import problems

FREE = make_levels((4, 0.0, 1e18))
#: name -> (solver, options)
SOLVERS = {
    "cpsat": (CpSatSolver, {}),
    "cbc": (MilpSolver, {"engine": "cbc"}),
    "highs": (MilpSolver, {"engine": "highs"}),
}
solvers = pytest.mark.parametrize("name", SOLVERS)


@pytest.fixture(autouse=True, scope="module")
def _in_both_forms():
    with checked():
        yield


def solve(name, problem, report=None, **options):
    solver, extra = SOLVERS[name]
    if name == "highs":
        pytest.importorskip("highspy")
    arguments = (problem, SolveOptions(extra=extra, **options))
    if report is not None:
        arguments = (*arguments, report)
    return solver().solve(*arguments)


def brute(problem):
    return BruteSolver().solve(problem, SolveOptions())


def chain(**fields):
    """Two layers of 30 ns; a boundary costs 11 ns each way."""
    fields = {"devices": 2, "global_batch": 4, "replicas": (1,), **fields}
    return make_problem(
        {"a": make_cost(10, 20), "b": make_cost(10, 20)}, edge=1, **fields
    )


#: ``T`` of ``a | b``: two slots of 30 + 11, and three more micro-batches.
CHAIN_OPTIMUM = 82 + 3 * 41


def assert_optimal(name, output, optimum):
    """Check a proof; the bound of floats is 1e-6 below, see Capabilities."""
    assert output.status is Status.OPTIMAL
    assert output.limit is None
    assert output.claimed_quanta == optimum
    solver, _ = SOLVERS[name]
    assert output.lower_bound_quanta == solver.capabilities.proves(optimum)


# What a result says


@solvers
def test_optimum(name):
    output = solve(name, chain())
    assert_optimal(name, output, CHAIN_OPTIMUM)
    assert output.plan.stages == make_plan(("a", SINGLE), ("b", SINGLE)).stages


@solvers
def test_infeasible(name):
    problem = make_problem({"a": make_cost(1, working_bytes=9)}, memory_bytes=8)
    output = solve(name, problem)
    assert output.status is Status.INFEASIBLE
    assert output.plan is None
    assert output.lower_bound_quanta is None


@solvers
def test_infeasible_only_together(name):
    """Each layer fits, but not both, and there is one device."""
    problem = make_problem(
        {"a": make_cost(1, kept_bytes=5), "b": make_cost(1, kept_bytes=5)},
        devices=1,
        memory_bytes=9,
    )
    assert solve(name, problem).status is Status.INFEASIBLE


@solvers
def test_nothing_takes_time(name):
    problem = make_problem({"a": make_cost(), "b": make_cost()}, devices=2)
    assert_optimal(name, solve(name, problem), 0)


@solvers
def test_memory_that_floats_cannot_tell_apart(name):
    """Both layers in one stage miss the capacity by one byte in 1e12.

    One stage would take 60, two take 60 and two receives of 11.
    """
    half = 500_000_000_001
    costs = {x: make_cost(10, 20, kept_bytes=half) for x in "ab"}
    fields = {"edges": (("a", "b", 1),), "devices": 2, "replicas": (1,)}
    tight = make_problem(costs, memory_bytes=2 * half - 1, **fields)
    assert_optimal(name, solve(name, tight), 82)
    enough = make_problem(costs, memory_bytes=2 * half, **fields)
    assert_optimal(name, solve(name, enough), 60)
    tight = make_problem(costs, memory_bytes=2 * half - 1, **{**fields, "devices": 1})
    assert solve(name, tight).status is Status.INFEASIBLE


@solvers
def test_choices_that_floats_cannot_tell_apart(name):
    """As above, but one layer can recompute for 10, which makes 70 of 60."""
    half = 500_000_000_001
    cost = make_cost(
        10,
        20,
        activations=(
            Activations(kept_bytes=half),
            Activations(recompute="full", kept_bytes=0),
        ),
    )
    fields = {
        "edges": (("a", "b", 1),),
        "devices": 1,
        "granularity": "layer",
        "recompute": ("none", "full"),
    }
    costs = {"a": cost, "b": cost}
    tight = make_problem(costs, memory_bytes=2 * half - 1, **fields)
    assert_optimal(name, solve(name, tight), 70)
    enough = make_problem(costs, memory_bytes=2 * half, **fields)
    assert_optimal(name, solve(name, enough), 60)


@solvers
@pytest.mark.parametrize(
    ("field", "allowed", "optimum"),
    [
        ("pipeline_parallel", None, 70),
        ("pipeline_parallel", (1,), 70),
        ("pipeline_parallel", (2,), 30 + 11 + 25 + 11 + 3 * 41),
        ("pipeline_parallel", (2, 5), 30 + 11 + 25 + 11 + 3 * 41),
        ("pipeline_parallel", (3,), None),
        ("tensor_parallel", (2,), 70),
        ("tensor_parallel", (1,), 200),
        ("context_parallel", (2,), None),
        ("expert_parallel", (1,), 70),
        ("expert_parallel", (2,), None),
    ],
)
@pytest.mark.parametrize("granularity", ["stage", "layer"])
def test_numbers_that_the_job_allows(name, field, allowed, optimum, granularity):
    """Layers of 30 and 25 ns; split over both devices, 8 and 9.5 ns.

    Four micro-batches: 4 * 17.5 in one wide stage; 77 + 3 * 41 = 200 in two,
    4 * 55 in one narrow one.
    """
    problem = make_problem(
        {
            "a": (make_cost(10, 20), make_cost(4, 4, tp=2)),
            "b": (make_cost(10, 15), make_cost(4, 5.5, tp=2)),
        },
        edge=1,
        devices=2,
        global_batch=4,
        replicas=(1,),
        quantum_ps=500,
        granularity=granularity,
        **{field: allowed},
    )
    output, expected = solve(name, problem), brute(problem)
    assert output.status is expected.status
    if optimum is None:
        assert output.status is Status.INFEASIBLE
    else:
        assert expected.claimed_quanta == 2 * optimum
        assert_optimal(name, output, 2 * optimum)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"granularity": "layer"},
        {"virtual_stages": (1, 2)},
        {"preset": "piper", "replicas": (1,), "topology": FREE},
    ],
    ids=["plain", "per-layer", "interleaved", "piper"],
)
@pytest.mark.parametrize("allowed", [(1,), (2,), (1, 3), (7,)])
def test_enumeration_keeps_to_the_numbers_of_stages(fields, allowed):
    """Of an interleaved plan the blocks count."""

    def listed(**job):
        problem = make_problem(
            {name: make_cost(1, 2) for name in "abcd"},
            edges=(("a", "b", 1), ("b", "c", 1), ("a", "d", 1)),
            global_batch=4,
            **{"devices": 3, **fields, **job},
        )
        space = PlanSpace(problem, CostModel(problem), Deadline(None))
        plans = list(space.plans())
        assert space.count(10**4) == len(plans)
        return set(plans)

    expected = {plan for plan in listed() if plan.num_blocks in allowed}
    assert listed(pipeline_parallel=allowed) == expected
    assert expected or allowed == (7,)


@solvers
def test_proves_the_built_in_problem_step_by_step(name):
    """Each report is a better plan or a better bound, and holds."""
    problem = builtin.load(builtin.DEFAULT)
    optimum = DpSolver().solve(problem, SolveOptions()).claimed_quanta
    seen = []
    output = solve(name, problem, seen.append)
    assert_optimal(name, output, optimum)
    claims = [p.claimed_quanta for p in seen if p.plan is not None]
    assert claims == sorted(set(claims), reverse=True)
    assert claims[-1] == output.claimed_quanta
    bounds = [progress.lower_bound_quanta for progress in seen]
    assert bounds == sorted(bounds)
    for progress in seen:
        assert progress.lower_bound_quanta <= output.claimed_quanta
        if progress.plan is None:
            assert progress.claimed_quanta is None
            continue
        verdict = score(problem, progress.plan)
        assert verdict.feasible
        assert verdict.step_quanta == progress.claimed_quanta


@pytest.fixture(scope="module")
def large():
    """A problem too large for the formulations, and its optimum by dp."""
    problem = builtin.load("llama2-70b-64")
    output = DpSolver().solve(problem, SolveOptions())
    assert output.status is Status.OPTIMAL
    return problem, output.claimed_quanta


@solvers
@pytest.mark.parametrize(
    ("limit_s", "granularity"),
    [
        (0.0, "stage"),
        (0.05, "stage"),
        (0.3, "stage"),
        (1.0, "stage"),
        (0.05, "layer"),
        (1.0, "layer"),
    ],
)
def test_bounds_are_valid_when_the_time_is_up(name, limit_s, granularity, large):
    """With a strategy per layer, the optimum is no larger."""
    problem, optimum = large
    problem = replace(problem, job=replace(problem.job, granularity=granularity))
    output = solve(name, problem, time_limit_s=limit_s)
    assert output.limit is Limit.TIME
    assert output.status in (Status.FEASIBLE, Status.NO_SOLUTION)
    assert 0 <= output.lower_bound_quanta <= optimum
    if output.plan is not None:
        verdict = score(problem, output.plan)
        assert verdict.feasible
        assert verdict.step_quanta == output.claimed_quanta


class Ticks(Deadline):
    """A clock that goes on by one second at every look at it."""

    ticks = 0

    @property
    def elapsed_s(self):
        self.ticks += 1
        return self.ticks


def branching(granularity):
    """Layers of several kinds, wide and narrow, for all devices of a pair."""
    costs = tuple(
        make_cost(
            10 * samples / tp,
            20,
            tp=tp,
            samples=samples,
            activations=kept_or_full(9, 2),
        )
        for tp in (1, 2)
        for samples in (1, 2)
    )
    return make_problem(
        dict.fromkeys("abcde", costs),
        edges=(("a", "b", 3), ("b", "c", 3), ("a", "d", 5), ("d", "e", 1)),
        devices=6,
        micro_batches=(2,),
        global_batch=4,
        recompute=("none", "full"),
        memory_bytes=60,
        granularity=granularity,
    )


def build(name, deadline, granularity):
    """Build every model of a problem; return the sizes of the largest."""
    problem = branching(granularity)
    instance = Instance(problem, CostModel(problem), deadline)
    sizes = []
    for sub_problem in instance.sub_problems():
        slots = instance.slots(sub_problem)
        if slots is None:
            continue
        room = milp if name == "milp" else cpsat
        model = room.variables.create(Task(instance, sub_problem, slots))
        room.constraints.add_constraints(model)
        sizes.append(len(model.x) * len(model.slots))
    return sizes


@pytest.mark.parametrize("name", ["cpsat", "milp"])
@pytest.mark.parametrize("granularity", ["stage", "layer"])
def test_building_looks_at_the_clock_and_stops(name, granularity):
    """More often than there are layers in slots; and it stops at once."""
    clock = Ticks(10.0**9)
    sizes = build(name, clock, granularity)
    looks = clock.ticks
    assert looks > sum(sizes) > 0
    for limit_s in range(0, looks, max(1, looks // 40)):
        clock = Ticks(float(limit_s))
        with pytest.raises(OutOfTimeError):
            build(name, clock, granularity)
        assert clock.ticks == max(limit_s, 1)


def cbc(monkeypatch, *, limit_s, building_s, writing_s):
    """Run CBC on a clock that only stands still while CBC runs.

    Return the seconds that CBC was told, and those after which it would be killed.
    """
    import pulp

    clock = SimpleNamespace(now_s=0.0)
    deadline = Deadline(limit_s)
    monkeypatch.setattr(Deadline, "elapsed_s", property(lambda self: clock.now_s))
    clock.now_s = building_s
    ran = []

    def write(*args, **kwargs):
        clock.now_s += writing_s
        return [], {}, {}, "objective"

    def overstay(words, log, left_s):
        told = words[words.index("-seconds") + 1] if left_s else None
        ran.append((told and float(told), left_s))
        raise subprocess.TimeoutExpired(words, left_s)

    problem = pulp.LpProblem("nothing")
    monkeypatch.setattr(problem, "writeMPS", write)
    monkeypatch.setattr(engines, "_run_program", overstay)
    outcome = engines.run(
        problem, engines.EngineSettings(engines.DEFAULT, deadline, building_s, 1, 0)
    )
    assert outcome == engines.Outcome(Verdict.STOPPED)
    return ran


def test_an_engine_gets_what_building_writing_and_reading_leave(monkeypatch):
    """Of 100 s building took 20 and writing 8; reading gets as many."""
    fields = {"building_s": 20.0, "writing_s": 8.0}
    ((told_s, left_s),) = cbc(monkeypatch, limit_s=100.0, **fields)
    assert left_s == 100 - 20 - 2 * 8
    assert told_s == left_s - 1
    ((told_s, left_s),) = cbc(monkeypatch, limit_s=41.0, **fields)
    assert (told_s, left_s) == (pytest.approx(4.5), 5.0)
    assert cbc(monkeypatch, limit_s=None, **fields) == [(None, None)]


@pytest.mark.parametrize("limit_s", [100.0, None])
def test_highs_gets_what_building_leaves(monkeypatch, limit_s):
    """The clock stands still while the model is handed over."""
    import highspy
    import pulp

    deadline = Deadline(limit_s)
    monkeypatch.setattr(Deadline, "elapsed_s", property(lambda self: 20.0))
    told = {}
    set_option = highspy.Highs.setOptionValue

    def note(self, name, value):
        told[name] = value
        return set_option(self, name, value)

    monkeypatch.setattr(highspy.Highs, "setOptionValue", note)
    problem = pulp.LpProblem("small", pulp.LpMinimize)
    problem += pulp.LpVariable("x", 2, 3, cat="Integer")
    engines.run(problem, engines.EngineSettings("HiGHS", deadline, 20.0, 1, 0))
    assert told.get("time_limit") == (limit_s and 80.0)


def test_an_engine_is_not_started_if_there_is_no_time_for_it(monkeypatch):
    """Not even written to a file, if building took all the time there is."""
    with pytest.raises(OutOfTimeError):
        cbc(monkeypatch, limit_s=39.0, building_s=20.0, writing_s=1e9)
    with pytest.raises(OutOfTimeError):
        cbc(monkeypatch, limit_s=100.0, building_s=20.0, writing_s=40.0)


def test_a_program_that_overstays_is_killed(tmp_path):
    words = ["sh", "-c", "echo $$; exec sleep 1000"]
    log = tmp_path / "log"
    with pytest.raises(subprocess.TimeoutExpired):
        engines._run_program(words, log, 0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)


@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize("name", ["cpsat", "milp"])
def test_what_was_found_survives_the_end_of_time(name, monkeypatch):
    """Time ends while the second model is built.

    Two stages take 94 + 3 * 57, though each of five slots might take the mean
    of 94 / 2 = 47; one stage, which takes 4 * 60, is left.
    """
    solver, _ = SOLVERS["cbc" if name == "milp" else name]
    room = milp if name == "milp" else cpsat
    create, built = room.solver.create, []

    def slow(*args):
        built.append(args)
        if len(built) > 1:
            raise OutOfTimeError
        return create(*args)

    monkeypatch.setattr(room.solver, "create", slow)
    problem = make_problem(
        {"a": make_cost(20, 20), "b": make_cost(10, 10)},
        edge=7,
        devices=2,
        global_batch=4,
        replicas=(1,),
    )
    options = SolveOptions(time_limit_s=1000.0, extra={"form": "layers"})
    output = solver().solve(problem, options)
    assert output.limit is Limit.TIME
    assert output.status is Status.FEASIBLE
    assert output.claimed_quanta == 94 + 3 * 57
    assert output.lower_bound_quanta == 240
    assert output.detail == "1 of 2 sub-problems (R, B, S) are open"


# Options and warm starts


@pytest.mark.parametrize("name", ["cpsat", "milp"])
def test_unknown_option(name):
    with pytest.raises(InvalidOptionError, match=r"got 'fast'; correct or"):
        run_solver(chain(), name, SolveOptions(extra={"fast": "1"}))


def test_unknown_engine_names_the_available_ones():
    with pytest.raises(InvalidOptionError, match=r"one of cbc.*, got 'cplexx'"):
        MilpSolver().solve(chain(), SolveOptions(extra={"engine": "cplexx"}))


@solvers
def test_optimal_warm_start_is_proven(name):
    start = make_plan(("a", SINGLE), ("b", SINGLE))
    output = solve(name, chain(), warm_start=start)
    assert_optimal(name, output, CHAIN_OPTIMUM)
    assert output.plan == start


@solvers
def test_worse_warm_start_is_improved(name):
    start = make_plan(("a b", SINGLE))
    seen = []
    output = solve(name, chain(), seen.append, warm_start=start)
    assert_optimal(name, output, CHAIN_OPTIMUM)
    assert seen[0].plan == start
    assert seen[0].claimed_quanta == 60 * 4


@solvers
def test_warm_start_with_a_strategy_per_layer(name):
    """Two layers that keep 10 bytes or recompute for 10 ns; 14 fit.

    T = 30 + 40; to recompute both is worse, and neither does not fit.
    """
    cost = make_cost(10, 20, activations=kept_or_full(10, 4))
    problem = make_problem(
        {"a": cost, "b": cost},
        edge=1,
        devices=1,
        memory_bytes=14,
        recompute=("none", "full"),
        granularity="layer",
    )
    full = Strategy(recompute="full")
    mixed = Plan(
        replicas=1,
        micro_batch=1,
        stages=(Stage(layers=("b", "a"), devices=1, strategies=(SINGLE, full)),),
    )
    for start in (mixed, make_plan(("a b", full))):
        seen = []
        output = solve(name, problem, seen.append, warm_start=start)
        assert_optimal(name, output, 70)
        assert seen[0].plan == start
        assert (output.plan == start) == (start is mixed)


@solvers
def test_warm_start_survives_a_time_out(name):
    start = make_plan(("a b", SINGLE))
    output = solve(name, chain(), warm_start=start, time_limit_s=0.0)
    assert output.status is Status.FEASIBLE
    assert output.limit is Limit.TIME
    assert output.plan == start
    assert output.lower_bound_quanta <= CHAIN_OPTIMUM


@solvers
def test_warm_start_must_belong_to_the_problem(name):
    with pytest.raises(InvalidPlanError, match="got none for 'b'"):
        solve(name, chain(), warm_start=make_plan(("a", SINGLE)))


@solvers
def test_warm_start_must_fit_memory(name):
    problem = make_problem({"a": make_cost(1, working_bytes=9)}, memory_bytes=8)
    with pytest.raises(InvalidPlanError, match="start from a plan that fits"):
        solve(name, problem, warm_start=make_plan(("a", SINGLE)))


def test_times_beyond_64_bits_are_refused():
    problem = make_problem({"a": make_cost(2.0**52, 2.0**52)}, global_batch=2**20)
    with pytest.raises(InvalidProblemError, match=r"\$\.quantum_ps"):
        CpSatSolver().solve(problem, SolveOptions())


# What engines say


@pytest.mark.parametrize(
    ("text", "verdict", "objective", "bound"), named_rows("engines", "logs")
)
def test_cbc_is_judged_by_its_log(text, verdict, objective, bound):
    outcome = read_cbc_log("Welcome to the CBC MILP Solver\n" + text)
    assert outcome.verdict is Verdict[verdict]
    assert outcome.objective == objective
    assert outcome.bound == pytest.approx(bound)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Result - Stopped on iterations\n",
        "Result - Optimal solution found (within gap tolerance)\n",
        "Result - Optimal solution found\n",
    ],
)
def test_unknown_results_of_cbc_are_errors(text):
    with pytest.raises(SolverError, match="engine CBC: expected"):
        read_cbc_log(text)


def test_broken_engine_is_a_solver_error(monkeypatch):
    import pulp

    def broken():
        return SimpleNamespace(path="false")

    monkeypatch.setattr(pulp, "PULP_CBC_CMD", broken)
    with pytest.raises(SolverError, match=r"PULP_CBC_CMD: .* exit status 1"):
        engines.run(
            pulp.LpProblem("nothing"),
            engines.EngineSettings(engines.DEFAULT, Deadline(None), 0.0, 1, 0),
        )


def test_plan_that_is_not_what_the_engine_says_is_an_error(monkeypatch):
    from formulations.milp import solver

    def wrong(*args, **kwargs):
        outcome = engines.run(*args, **kwargs)
        objective = outcome.objective
        return engines.Outcome(
            outcome.verdict, objective and objective * 1.001, outcome.bound
        )

    monkeypatch.setattr(solver, "run", wrong)
    options = SolveOptions(extra={"form": "layers"})
    with pytest.raises(SolverError, match=r"R=1 B=1 S=2: expected the model"):
        MilpSolver().solve(chain(), options)


def test_highs_presolve_loses_the_optimum_of_this_problem():
    """HiGHS 1.13.1 with presolve proves a worse plan; it must be off."""
    problem = decode_problem(
        b"""{"schema": "nest-problem/1", "quantum_ps": 100, "graph":
{"kinds": [{"name": "k1", "costs": [
{"tp": 2, "forward_ns": 60, "backward_ns": 60,
 "activations": [{"kept_bytes": 0}]},
{"forward_ns": 10, "backward_ns": 20, "activations": [{"kept_bytes": 3}]}]},
{"name": "k2", "costs": [{"forward_ns": 50, "backward_ns": 50,
 "activations": [{"kept_bytes": 10}]},
{"tp": 2, "forward_ns": 5, "backward_ns": 5,
 "activations": [{"kept_bytes": 10}], "collectives": [{"kind":
 "reduce-scatter", "axis": "tp", "phase": "forward", "size_bytes": 10,
 "count": 2}]}]}],
"layers": [{"id": "l0", "kind": "k1"}, {"id": "l1", "kind": "k2"},
{"id": "l2", "kind": "k2"}],
"edges": [{"source": "l0", "target": "l2", "bytes_per_sample": 5},
{"source": "l1", "target": "l0", "bytes_per_sample": 1}]},
"cluster": {"num_devices": 4, "device": {"memory_bytes": 1793},
"topology": {"kind": "hierarchy", "levels": [{"fan_out": 4,
"bandwidth_bytes_per_s": 2e9}]}},
"job": {"global_batch": 1, "sequence_parallel": true}}"""
    )
    expected = brute(problem).claimed_quanta
    assert solve("highs", problem).claimed_quanta == expected


def selective(name, load_ns, kept_bytes, extra_ns, working_bytes):
    """A kind that can keep half of its bytes, and recompute the rest."""
    return LayerKind(
        name=name,
        costs=(
            make_cost(
                load_ns,
                activations=(
                    Activations(kept_bytes=kept_bytes),
                    Activations(
                        recompute="selective",
                        kept_bytes=kept_bytes // 2,
                        extra_ns=extra_ns,
                        working_bytes=working_bytes,
                    ),
                ),
            ),
        ),
    )


@solvers
def test_cbc_preprocessing_lost_the_optimum_of_this_problem(name):
    """CBC 2.10.3 with preprocessing proved 1315 before rows had slack.

    Five layers of 233 ns and 298 bytes (263, 149 and 74 while they run) and
    one of 0 ns and 46 bytes (26, 23 and 11) on one device. If one of the
    five keeps all, the sixth must not: 298 + 4 * 149 + 23 + 74 = 991 bytes
    fit, 23 more do not. T = 233 + 4 * 263 + 26. If none does, the sixth may:
    5 * 263 = 1315. If two do, at least 2 * 298 + 3 * 149 + 23 + 74 = 1140.
    """
    problem = make_problem(
        {"a": make_cost()},
        devices=1,
        memory_bytes=1013,
        recompute=("none", "selective"),
        granularity="layer",
    )
    graph = Graph(
        kinds=(selective("k5", 233, 298, 30.0, 74), selective("k1", 0, 46, 26.0, 11)),
        layers=tuple(Layer(id=i, kind="k5" if i < 5 else "k1") for i in range(6)),
    )
    assert_optimal(name, solve(name, replace(problem, graph=graph)), 1311)


# Constants


def test_slots_of_a_layer_leave_enough_for_the_others():
    """a feeds b, c and d; S = 3.

    a is in the first stage: it has no other ancestors to fill one before it.
    Each of the others can be last or in the middle, or in the first stage
    with a, if the two other ones fill the rest.
    """
    problem = make_problem(
        {name: make_cost() for name in "abcd"},
        edges=(("a", "b", 1), ("a", "c", 1), ("a", "d", 1)),
    )
    graph = Instance(problem, CostModel(problem), Deadline(None)).graph
    assert list(graph.slots_of(0, 3)) == [3]
    assert list(graph.slots_of(1, 3)) == [1, 2, 3]
    assert list(graph.slots_of(0, 1)) == [1]


def test_increments_are_steps_of_distinct_sizes():
    """a goes to b and c at 4 bytes, to d at 7; sizes are 4, 7 and 9."""
    problem = make_problem(
        {name: make_cost() for name in "abcd"},
        edges=(("a", "b", 4), ("a", "d", 7), ("a", "c", 4), ("b", "d", 9)),
    )
    graph = Instance(problem, CostModel(problem), Deadline(None)).graph
    assert graph.sizes == (4, 7, 9)
    assert graph.increments == (
        (0, (1, 2, 3), -1, 0),
        (0, (3,), 0, 1),
        (1, (3,), -1, 2),
    )
    assert graph.connected


def test_dominated_choices_are_left_out():
    """Of as many devices, tp = 2 is slower but of another layout: it stays.

    With cp = 2 recomputation costs time and saves nothing.
    """
    kept = (Activations(kept_bytes=5), Activations(recompute="full", kept_bytes=5))
    costs = tuple(
        make_cost(*times, activations=kept, **width)
        for times, width in (((10, 20), {"tp": 2}), ((9, 20), {"cp": 2}))
    )
    problem = make_problem(
        {"a": costs, "b": costs},
        devices=2,
        topology=FREE,
        replicas=(1,),
        memory_bytes=9,
        recompute=("none", "full"),
        granularity="layer",
    )
    instance = Instance(problem, CostModel(problem), Deadline(None))
    (slot,) = (
        instance.slots(sub_problem)[1] for sub_problem in instance.sub_problems()
    )
    (profile,) = slot.profiles
    assert slot.mixed
    assert set(profile.layouts) == {Strategy(tp=2), Strategy(cp=2)}
    for choices in profile.choices:
        assert {(c.strategy, c.load) for c in choices} == {
            (Strategy(tp=2), 30),
            (Strategy(cp=2), 29),
        }


def test_a_slower_choice_of_a_smaller_working_set_stays():
    """Both layers as they are need 2 + 2 + 5 bytes."""
    activations = (
        Activations(kept_bytes=2, working_bytes=5),
        Activations(recompute="full", kept_bytes=2),
    )
    cost = make_cost(10, 20, activations=activations)
    problem = make_problem(
        {"a": cost, "b": cost},
        devices=1,
        topology=FREE,
        memory_bytes=8,
        recompute=("none", "full"),
        granularity="layer",
    )
    instance = Instance(problem, CostModel(problem), Deadline(None))
    (sub_problem,) = instance.sub_problems()
    (profile,) = instance.slots(sub_problem)[1].profiles
    for choices in profile.choices:
        assert {(c.load, c.working_bytes) for c in choices} == {(30, 5), (40, 0)}


def test_dominated_options_are_left_out():
    """tp=2 costs more than cp=2 in everything: only the latter stays."""
    costs = (
        make_cost(10, 20, tp=2, weight_bytes=8),
        make_cost(9, 20, cp=2, weight_bytes=8),
        make_cost(20, 40),
    )
    problem = make_problem({"a": costs}, devices=2, topology=FREE, replicas=(1,))
    instance = Instance(problem, CostModel(problem), Deadline(None))
    slots = instance.slots(instance.sub_problems()[0])
    used = {option.strategy for option in slots[1].options}
    assert Strategy(cp=2) in used
    assert Strategy(tp=2) not in used


# Random problems


@examples(80)
@given(st.one_of(problems(), problems(granularity="layer")))
def test_bounds_of_sub_problems_hold_for_their_plans(problem):
    """No plan is better than (L23), nor feasible where there is no model."""
    model = CostModel(problem)
    bounds = {
        (p.split.replicas, p.split.micro_batch, p.num_stages, p.strategy): p
        for p in INSTANCES[problem.preset](
            problem, model, Deadline(None)
        ).sub_problems()
    }
    for plan in PlanSpace(problem, model, Deadline(None)).plans():
        verdict = score(problem, plan, model)
        if not verdict.feasible:
            continue
        shared = plan.stages[0].strategy if model.rules.one_strategy else None
        key = (plan.replicas, plan.micro_batch, len(plan.stages), shared)
        assert bounds[key].bound <= verdict.step_quanta
