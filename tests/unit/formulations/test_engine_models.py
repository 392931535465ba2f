"""Models as files, engine logs, parameters, and SCIP."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pulp
import pytest
from msgspec.structs import replace

from formulations.cpsat.solver import CpSatSolver
from formulations.milp.engines import (
    DEFAULT,
    EngineSettings,
    Outcome,
    Verdict,
    read_cbc_log,
)
from formulations.milp.engines import run as run_engine
from formulations.milp.parameters import read_cbc_names
from formulations.milp.solver import MilpSolver
from nest.cli.main import main
from nest.errors import InvalidOptionError, UnsupportedProblemError
from nest.ir import Activations, Problem, Strategy, decode_problem, write
from nest.solvers.base import Deadline, SolveOptions, Status
from nest.solvers.registry import get_solver
from tests.builders import PAIRS, make_cost, make_plan, make_problem, two_stages
from tests.rows import rows

README = Path(__file__).parents[3] / "formulations" / "README.md"

SCIP = pytest.mark.skipif(
    find_spec("pyscipopt") is None, reason="needs pyscipopt, see make test-scip"
)


def example() -> Problem:
    """Return the problem that the page has as a file."""
    (text,) = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    return decode_problem(text.encode(), "example.yaml")


def shared(tp: int, ns: int, weight: int):
    return make_cost(ns // tp, ns // tp, weight_bytes=weight, tp=tp)


#: Two kinds with a choice of strategies, replicas, sync, tight memory.
CHOICES = make_problem(
    {
        "a": (shared(1, 80, 40), shared(2, 80, 20)),
        "b": (shared(1, 40, 90), shared(2, 40, 45)),
        "c": (shared(1, 60, 10), shared(2, 60, 5)),
    },
    edges=(("a", "b", 6), ("b", "c", 3)),
    topology=PAIRS,
    memory_bytes=900,
    hbm=1e9,
    global_batch=4,
    micro_batches=(1, 2),
)
#: A diamond: tensors of a and c cross cuts together.
DIAMOND = make_problem(
    {name: make_cost(10 * i, 20) for i, name in enumerate("abcd", 1)},
    edges=(("a", "b", 3), ("a", "c", 5), ("b", "d", 7), ("c", "d", 2)),
    devices=3,
    global_batch=4,
)
PROBLEMS = {
    "example": example,
    "choices": lambda: CHOICES,
    "layers": lambda: replace(CHOICES, job=replace(CHOICES.job, granularity="layer")),
    "diamond": lambda: DIAMOND,
}


def solved(solver, problem, **extra):
    return get_solver(solver)().solve(problem, SolveOptions(extra=extra))


def read(path: Path, relaxed: bool = False):
    """Return status, objective and size of a model that HiGHS reads."""
    highspy = pytest.importorskip("highspy")
    engine = highspy.Highs()
    for name, value in {
        "output_flag": False,
        "presolve": "off",
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 0.0,
        "mip_feasibility_tolerance": 1e-9,
        "primal_feasibility_tolerance": 1e-9,
        "solve_relaxation": relaxed,
    }.items():
        engine.setOptionValue(name, value)
    assert engine.readModel(str(path)) == highspy.HighsStatus.kOk
    engine.run()
    status = engine.modelStatusToString(engine.getModelStatus())
    return status, engine.getObjectiveValue(), engine


# Models as files


@pytest.mark.parametrize(
    ("name", "suffix"), [("choices", ".lp"), *((name, ".mps") for name in PROBLEMS)]
)
def test_an_engine_that_reads_the_files_alone_proves_the_optimum(
    name, suffix, tmp_path
):
    problem = PROBLEMS[name]()
    best = solved("dp", problem)
    models = MilpSolver().write_models(problem, best.plan, tmp_path, suffix, every=True)
    found = []
    for model in models:
        status, value, engine = read(tmp_path / model["file"])
        assert status in ("Optimal", "Infeasible")
        if status == "Optimal":
            found.append(value * model["objective_quanta"])
        if suffix == ".mps":  # PuLP adds a column for empty rows of an LP
            assert engine.getNumCol() == model["num_columns"]
            assert engine.getNumRow() == model["num_rows"]
    assert len(found) >= 1
    assert min(found) == pytest.approx(best.claimed_quanta, rel=1e-6)


@pytest.mark.parametrize("name", ["choices", "layers"])
def test_one_model_has_the_plan(name, tmp_path):
    problem = PROBLEMS[name]()
    best = solved("dp", problem)
    (model,) = MilpSolver().write_models(
        problem, best.plan, tmp_path, ".mps", every=False
    )
    assert model["num_stages"] == len(best.plan.stages)
    assert model["replicas"] == best.plan.replicas
    status, value, _ = read(tmp_path / model["file"])
    assert status == "Optimal"
    found = value * model["objective_quanta"]
    assert found == pytest.approx(best.claimed_quanta, rel=1e-6)


def test_a_plan_belongs_to_the_model_of_its_families_strategies(tmp_path):
    """Plans have one degree of tensor parallelism; the better one is 2."""
    job = replace(
        CHOICES.job,
        uniform=("tp",),
        replicas=(1,),
        micro_batches=(1,),
        pipeline_parallel=(2,),
    )
    single = solved("dp", replace(CHOICES, job=replace(job, tensor_parallel=(1,))))
    (model,) = MilpSolver().write_models(
        replace(CHOICES, job=job), single.plan, tmp_path, ".mps", every=False
    )
    value = read(tmp_path / model["file"])[1] * model["objective_quanta"]
    assert value == pytest.approx(single.claimed_quanta, rel=1e-6)


def test_models_as_good_as_the_plan_are_written(tmp_path):
    """A bound of 120 that the plan reaches, see test_formulation_search."""
    problem = make_problem(
        {"a": make_cost(10, 20), "b": make_cost(10, 20)}, devices=2, global_batch=3
    )
    plan = make_plan(("a", Strategy()), ("b", Strategy()))
    models = MilpSolver().write_models(problem, plan, tmp_path, ".lp", True)
    assert [m["least_quanta"] for m in models] == [120]
    # Without a plan all are there: one stage takes 3 · 60.
    models = MilpSolver().write_models(problem, None, tmp_path, ".lp", True)
    assert [m["least_quanta"] for m in models] == [120, 180]
    models = MilpSolver().write_models(problem, None, tmp_path, ".lp", False)
    assert [m["least_quanta"] for m in models] == [120]


def test_windows_go_on_until_one_has_the_plan(tmp_path):
    """Two layers of 1 ns keep 18 bytes, or recompute for 10^5 ns each.

    The bound is 2, as either fits alone; windows are 64 times as long.
    """
    either = make_cost(
        0,
        1,
        activations=(
            Activations(kept_bytes=9),
            Activations(recompute="selective", kept_bytes=1, extra_ns=1e5),
        ),
    )
    problem = make_problem(
        {"a": either, "b": either},
        edge=1,
        devices=1,
        memory_bytes=10,
        recompute=("none", "selective"),
    )
    best = solved("dp", problem)
    assert best.claimed_quanta == 200_002
    models = MilpSolver().write_models(problem, best.plan, tmp_path, ".mps", every=True)
    assert [(m["least_quanta"], m["most_quanta"]) for m in models] == [
        (2, 128),
        (127, 8128),
        (8127, 200_002),
    ]
    statuses = [read(tmp_path / m["file"])[0] for m in models]
    assert statuses == ["Infeasible", "Infeasible", "Optimal"]
    one = tmp_path / "one"
    one.mkdir()
    (model,) = MilpSolver().write_models(problem, best.plan, one, ".mps", every=False)
    assert model["most_quanta"] == 200_002
    value = read(one / model["file"])[1] * model["objective_quanta"]
    assert value == pytest.approx(200_002, rel=1e-6)


def test_cpsat_reads_its_model_in_quanta(tmp_path):
    from ortools.sat.python import cp_model

    best = solved("dp", CHOICES)
    (about,) = CpSatSolver().write_models(
        CHOICES, best.plan, tmp_path, ".pbtxt", every=False
    )
    text = (tmp_path / about["file"]).read_text()
    model = cp_model.CpModel()
    assert model.proto.parse_text_format(text)
    solver = cp_model.CpSolver()
    solver.parameters.cp_model_presolve = False
    assert solver.solve(model) == cp_model.OPTIMAL
    assert solver.objective_value == best.claimed_quanta
    assert about["objective_quanta"] == 1


def test_the_head_of_a_file_says_what_its_numbers_mean(tmp_path):
    problem = two_stages(quantum_ps=500)
    (about,) = MilpSolver().write_models(problem, None, tmp_path, ".lp", every=False)
    head = (tmp_path / about["file"]).read_text()
    for text in (
        f"\\ Sub-problem {about['sub_problem']}; a quantum is 500 ps.",
        f"\\ Minimize T: one is {about['objective_quanta']} quanta, the offset is 0.",
        f"plans that take {about['least_quanta']} to {about['most_quanta']} ",
    ):
        assert text in head


def test_plans_that_are_timed_pass_by_pass_have_no_model(tmp_path):
    problem = two_stages(virtual_stages=(1, 2))
    with pytest.raises(
        UnsupportedProblemError, match=r"expected plans whose step time is a"
    ):
        MilpSolver().write_models(problem, None, tmp_path, ".lp", True)
    assert not [*tmp_path.iterdir()]


# The worked example of the page


@pytest.mark.parametrize("solver", ["dp", "cpsat", "milp", "brute"])
def test_the_optimum_of_the_example_is_what_the_page_derives(solver):
    output = solved(solver, example())
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == 233
    assert [stage.layers for stage in output.plan.stages] == [("a", "b"), ("c",)]


def test_the_model_of_the_example_has_the_rows_on_the_page(tmp_path):
    plan = solved("dp", example()).plan
    MilpSolver().write_models(example(), plan, tmp_path, ".lp", every=False)
    path = tmp_path / "0001.lp"
    text = path.read_text()
    (quoted,) = re.findall(r"```text\n(load_1_0.*?)```", README.read_text(), re.DOTALL)
    joined = re.sub(r"\n +", " ", text)
    for row in quoted.splitlines():
        assert f"\n{row}\n" in joined
    assert "memory_2" not in text
    # 188 but for the slack of 1e-7 in the memory row.
    assert read(path, relaxed=True)[1] == pytest.approx(188, abs=1e-4)
    assert read(path)[1] == pytest.approx(233)
    path.write_text(text.replace("65.0000065", "1000"))
    assert read(path, relaxed=True)[1] == pytest.approx(182)
    assert read(path)[1] == pytest.approx(191)


def test_bounds_of_the_example(tmp_path):
    """Equation (L23), and a stage for all that does not fit."""
    models = MilpSolver().write_models(example(), None, tmp_path, ".mps", every=True)
    assert [(m["num_stages"], m["least_quanta"]) for m in models] == [
        (2, 182),
        (1, 207),
    ]
    assert read(tmp_path / "0002.mps")[0] == "Infeasible"


# Engines, their logs and parameters


@pytest.mark.scip
@SCIP
@pytest.mark.parametrize("name", PROBLEMS)
def test_scip_proves_the_optimum(name):
    problem = PROBLEMS[name]()
    output = solved("milp", problem, engine="scip")
    assert output.status is Status.OPTIMAL
    assert output.claimed_quanta == solved("dp", problem).claimed_quanta


@pytest.mark.scip
@SCIP
def test_scip_proves_that_no_plan_fits():
    problem = replace(example(), job=replace(example().job, pipeline_parallel=(1,)))
    assert solved("milp", problem, engine="scip").status is Status.INFEASIBLE


@pytest.mark.scip
@SCIP
def test_scip_that_is_stopped_proves_nothing():
    extra = {
        "engine": "scip",
        "engine.limits/nodes": "1",
        "engine.presolving/maxrounds": "0",
        "engine.separating/maxroundsroot": "0",
    }
    output = solved("milp", PROBLEMS["layers"](), **extra)
    assert output.status is not Status.OPTIMAL
    best = solved("dp", PROBLEMS["layers"]()).claimed_quanta
    assert 0 < output.lower_bound_quanta <= best


@pytest.mark.parametrize(
    ("solver", "engine", "words"),
    [
        ("milp", "cbc", "Welcome to the CBC MILP Solver"),
        ("milp", "highs", "Running HiGHS"),
        pytest.param(*("milp", "scip", "presolving:"), marks=[pytest.mark.scip, SCIP]),
        ("cpsat", None, "Starting CP-SAT solver"),
    ],
)
def test_the_log_of_an_engine_is_added_to_a_file(
    solver, engine, words, tmp_path, capfd
):
    log = tmp_path / "log"
    log.write_text("before\nResult - Problem proven infeasible\n")
    extra = {"log": str(log)} | ({"engine": engine} if engine else {})
    assert solved(solver, example(), **extra).claimed_quanta == 233
    text = log.read_text()
    assert text.startswith("before\n")
    assert re.search(rf"(?m)^== {solver} .*R=1 B=1", text)
    assert words in text
    assert capfd.readouterr() == ("", "")


def test_what_a_log_said_before_is_not_believed(tmp_path):
    """An optimum of another problem; this one has no solution."""
    log = tmp_path / "log"
    log.write_text("Result - Optimal solution found\n\nObjective value: 5.0\n")
    problem = pulp.LpProblem("none")
    x = pulp.LpVariable("x", 0, 1, "Integer")
    problem += x
    problem += 2 * x == 1
    how = EngineSettings(DEFAULT, Deadline(None), 0.0, 1, 0, log=str(log))
    assert run_engine(problem, how).verdict is Verdict.INFEASIBLE


def engine_rows(table: str) -> list[Any]:
    """Return a table whose second column is an engine, which may be missing."""
    marks = {"scip": [pytest.mark.scip, SCIP]}
    return [
        pytest.param(*row, marks=marks.get(row[1], []))
        for row in rows("engines", table)
    ]


@pytest.mark.parametrize(
    ("solver", "engine", "parameter", "value"), engine_rows("passed_on")
)
def test_parameters_are_passed_on(solver, engine, parameter, value, tmp_path):
    log = tmp_path / "log"
    extra = {f"engine.{parameter}": value, "log": str(log)}
    extra |= {"engine": engine} if engine else {}
    assert solved(solver, example(), **extra).claimed_quanta == 233
    if engine in ("cbc", ""):  # the others do not print what they are given
        said = {"gomory": "gomoryCuts changed from ifmove to off"}
        said["strongBranching"] = "strongBranching was changed from 5 to 7"
        said["linearization_level"] = "linearization_level: 1"
        assert said[parameter] in log.read_text()


@pytest.mark.parametrize(
    ("solver", "engine", "parameter", "value", "match"), engine_rows("refused")
)
def test_parameters_that_are_refused(solver, engine, parameter, value, match):
    extra = {f"engine.{parameter}": value}
    extra |= {"engine": engine} if engine else {}
    with pytest.raises(InvalidOptionError, match=match) as caught:
        solved(solver, example(), **extra)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"option {solver}.engine.{parameter}:")


def test_parameters_of_other_engines_are_refused(monkeypatch):
    from formulations.milp.parameters import check_parameters

    with pytest.raises(InvalidOptionError, match="cbc, highs or scip, whose"):
        check_parameters("GLPK_CMD", {"gap": "1"})


def test_a_log_that_cannot_be_written_is_refused(tmp_path):
    path = str(tmp_path / "none" / "log")
    with pytest.raises(InvalidOptionError, match=r"milp.log: expected a file"):
        solved("milp", example(), log=path)


def test_an_engine_that_is_not_there_says_what_installs_it(monkeypatch):
    import pulp

    monkeypatch.setattr(pulp, "listSolvers", lambda onlyAvailable: ["CBC"])
    with pytest.raises(InvalidOptionError, match=r"pip install .*\[scip\]"):
        solved("milp", example(), engine="scip")


def test_cbc_that_stops_at_some_limit_has_a_bound_and_no_proof():
    text = (
        "Result - Stopped on node limit\n\n"
        "Objective value:                207.00000000\n"
        "Lower bound:                    188.000\n"
    )
    assert read_cbc_log(text) == Outcome(Verdict.STOPPED, 207.0, 187.999)


def test_names_that_cbc_lists():
    text = (
        "Commands are:\nDouble parameters:\n ratio(Gap)\n"
        "Branch and Cut integer parameters:\n passC(uts)\n"
        "Keyword parameters:\n crash gomory(Cuts)\nActions or string "
        "parameters:\n solv(e)\n"
    )
    assert read_cbc_names(text, passed_on=True) == {
        "passCuts": 5,
        "crash": 5,
        "gomoryCuts": 6,
    }
    assert {"ratioGap", "solve"} <= {*read_cbc_names(text)}


# The command


def run(*words: str) -> object:
    """Return the exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    return caught.value.code


@pytest.fixture
def problem_file(tmp_path):
    path = tmp_path / "problem.json"
    write(path, example())
    return str(path)


def test_solve_writes_models_and_says_so(problem_file, tmp_path, capsys):
    model, folder = tmp_path / "model.lp", tmp_path / "models"
    answer = tmp_path / "answer.json"
    words = ["solve", problem_file, "--solver", "milp", "--json", str(answer)]
    assert run(*words, "--write-model", str(model)) == 0
    assert f"{model}: the model of R=1 B=1 S=2" in capsys.readouterr().out
    assert json.loads(answer.read_text())["models"][0]["objective_quanta"] == 1
    assert read(model)[1] == pytest.approx(233)
    assert run(*words, "--write-models", str(folder)) == 0
    assert "2 models in" in capsys.readouterr().out
    index = json.loads((folder / "index.json").read_text())
    assert index["schema"] == "nest-models/1"
    assert index["best_known_quanta"] == 233
    assert [m["file"] for m in index["models"]] == ["0001.mps", "0002.mps"]
    # Nothing else is left beside them.
    assert {path.name for path in tmp_path.iterdir()} == {
        *("problem.json", "model.lp", "models", "answer.json")
    }


def test_solve_shows_the_log(problem_file, tmp_path, capfd):
    log = tmp_path / "log"
    words = ["solve", problem_file, "--solver", "cpsat", "--engine-log"]
    assert run(*words, "-") == 0
    assert "Starting CP-SAT solver" in capfd.readouterr().err
    assert run(*words, str(log)) == 0
    assert "Starting CP-SAT solver" in log.read_text()
