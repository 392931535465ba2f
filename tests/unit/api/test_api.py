"""Commands as functions: the same words, the same answers and messages."""

from __future__ import annotations

import doctest
import inspect
import json
import pydoc
from pathlib import Path
from typing import Any

import pytest

import nest
from nest import api
from nest.errors import InvalidOptionError, NestError
from nest.ir import Problem, problem_hash, write
from nest.solvers import registry
from tests.builders import SINGLE, make_cost, make_plan, make_problem
from tests.inside import PLACES, run_inside
from tests.rows import rows

PLAN = make_plan(("a", SINGLE), ("b", SINGLE))


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in PLACES:
        monkeypatch.setattr(place, run_inside)


def chain() -> Problem:
    """Two layers of 30 ns; 120 ns on one device, 90 on two."""
    cost = make_cost(10, 20)
    return make_problem({"a": cost, "b": cost}, edge=0, devices=2, global_batch=2)


@pytest.mark.parametrize("module", [nest, api, registry], ids=lambda x: x.__name__)
def test_examples(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_examples_of_the_page() -> None:
    found = doctest.testfile(
        str(Path(__file__).parents[3] / "docs/python.md"),
        module_relative=False,
        encoding="utf-8",
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS,
    )
    assert found.attempted > 0
    assert found.failed == 0


def test_names_are_functions_of_the_api() -> None:
    """Whatever modules were imported before."""
    for name in ("codesign", "compare", "explain", "export", "fit", "pareto"):
        function = getattr(nest, name)
        assert function is getattr(api, name)
        assert inspect.isfunction(function)
        assert "\n    Parameters" in pydoc.render_doc(function)
        assert ">>> " in (function.__doc__ or "")
    assert nest.compare(chain(), "brute")["brute"].step_time_ns == 60


# Problems


def test_problems_come_as_such_by_name_and_by_file(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    write(path, chain())
    assert nest.load(path) == nest.load(str(path)) == chain()
    assert nest.problem(path) == nest.problem(chain()) == chain()
    assert nest.load("llama2-7b-8") == nest.load_problem("llama2-7b-8")
    with pytest.raises(
        nest.NestError,
        match=r"got '.*/problem.json'; choose one of them; nest.load reads "
        r"files and instances, nest.read_problem files$",
    ):
        nest.load_problem(str(path))


def test_settings_of_a_model_are_those_of_the_command_line() -> None:
    found = nest.problem(
        model="llama2-7b",
        cluster="h100x8",
        global_batch=8,
        micro_batches=[1, 2],
        tp="1,2",
        zero=(0, 1),
        recompute=("none",),
        overlap={"tp": 0.5},
        distributed_optimizer=True,
        sequence_parallel=(True, False),
        schedule=None,
    )
    job = found.job
    assert (job.global_batch, job.micro_batches) == (8, (1, 2))
    assert (job.zero, job.recompute) == ((0, 1), ("none",))
    assert job.overlap == {"tp": 0.5}
    assert job.distributed_optimizer
    assert job.sequence_parallel == (False, True)
    assert {c.tp for kind in found.graph.kinds for c in kind.costs} == {1, 2}


# Answers


def test_plans_are_of_the_whole_problem() -> None:
    found = nest.solve(chain(), "brute", pin={"pp": [1], "r": 1})
    assert found.step_time_ns == 120
    assert found.problem == chain()
    assert found.plan is not None
    assert found.plan.problem_hash == problem_hash(chain())
    assert nest.solve(chain(), "brute", pin={"pp": [1, 2], "r": 1}).step_time_ns == 90


def test_plans_come_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write(path, PLAN)
    found = nest.solve(chain(), pin="pp=2,r=1")
    for plan in (PLAN, path, str(path), found):
        assert nest.score(chain(), plan).step_time_ns == 90
        assert nest.simulate(chain(), plan).step == 90
    assert nest.score(chain(), "pp=1,r=1").step_time_ns == 120
    assert nest.solve(chain(), warm_start=found).options.warm_start == found.plan


def test_a_check_names_the_rules_that_a_plan_violates() -> None:
    problem = chain()
    plan = nest.solve(problem).plan
    assert nest.check(problem) == nest.check(problem, plan) == ()
    assert nest.trace(problem, PLAN)["otherData"]["simulated_step_time_ns"] == 90
    cost = make_cost(10, 20, weight_bytes=1000)
    full = make_problem({"a": cost}, global_batch=1, memory_bytes=999)
    (text,) = nest.check(full, "pp=1")
    assert text == nest.score(full, "pp=1").violations[0]


def test_limits_are_words_or_a_record() -> None:
    found = nest.solve(chain(), time_limit=9, seed=3, option={"dp.at_most_quanta": 150})
    assert found.options.time_limit_s == 9
    assert found.options.seed == 3
    assert found.options.extra == {"at_most_quanta": "150"}
    record = nest.SolveOptions(seed=4)
    assert nest.solve(chain(), "brute", record).options == record


def test_answers_are_those_of_the_commands() -> None:
    assert nest.fit(chain(), within=1e-7, solver="brute").best is not None
    points = nest.pareto(chain(), ["devices", "time"], workers=1).to_rows()
    assert [(x["devices"], x["step_time_ns"]) for x in points] == [(1, 120), (2, 60)]
    terms = nest.explain(chain(), PLAN, search=False).to_rows()
    assert sum(row["time_ns"] for row in terms) == 90
    assert json.loads(json.dumps(terms)) == terms


# Bad input


def call(name: str, arguments: list[Any], keywords: dict[str, Any]) -> None:
    """Call a function of nest with what a row names."""
    named = {"CHAIN": chain(), "PLAN": PLAN, "OPTIONS": nest.SolveOptions()}

    def value(x: Any) -> Any:
        if isinstance(x, list):
            return [value(y) for y in x]
        return named.get(x, x) if isinstance(x, str) else x

    getattr(nest, name)(
        *map(value, arguments), **{key: value(x) for key, x in keywords.items()}
    )


@pytest.mark.parametrize(
    ("name", "arguments", "keywords", "text"), rows("calls", "words")
)
def test_bad_words(name: str, arguments: Any, keywords: Any, text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        call(name, arguments, keywords)


@pytest.mark.parametrize(
    ("name", "arguments", "keywords", "text"), rows("calls", "types")
)
def test_values_of_wrong_types(
    name: str, arguments: Any, keywords: Any, text: str
) -> None:
    with pytest.raises(NestError, match=text) as caught:
        call(name, arguments, keywords)
    assert "\n" not in str(caught.value)


def test_the_nearest_plan_is_exported() -> None:
    words = {"to": "megatron", "model": "llama2-7b"}
    files = nest.export("llama2-7b-8", "tp=2,pp=1", nearest=True, **words)
    assert sorted(files) == ["README", "args.sh", "hostfile", "plan.json"]


def test_a_plan_by_a_mapping() -> None:
    assert nest.score(chain(), {"pp": 2, "r": 1}).step_time_ns == 90


def test_bad_plans_and_names() -> None:
    with pytest.raises(InvalidOptionError, match="explain: expected plan, got"):
        nest.explain(chain())
    with pytest.raises(NestError, match="no such name; did you mean 'llama2"):
        nest.load("llama2-7b-9")
