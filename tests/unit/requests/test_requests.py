"""Requests: one list of settings for Python and for the command line."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, get_type_hints

import click
import pytest
from click.testing import CliRunner

import nest
from nest import api
from nest.cli.help_texts import SUMMARIES
from nest.cli.main import COMMANDS, cli, commands
from nest.cost.axes import AXES
from nest.errors import InvalidOptionError, NestError
from nest.models.choices import Request as Choice
from nest.requests import problems, values
from nest.requests import settings as settings_module
from nest.requests.problems import JOB_FIELDS, MODEL_FIELDS, ProblemRequest
from nest.requests.settings import Request, in_python, option_name, settings_of
from nest.requests.solving import CompareRequest, SolveRequest
from tests.loopback import tiny_problem

#: Options that decide what a command shows or writes, not what it answers, and
#: what Python has instead.
SCREEN = {
    "nothing to show": "help quiet verbose describe published promises template",
    "the answer, which nest.write writes": "json_path output csv_path folder",
    "pictures and pages of the answer": "html_path plot_path details next_path",
    "the argument plan": "plan_option",
    "days and dollars: a product of the step time": "tokens prices steps",
    "a choice of the points in Frontier.points": "top within",
    "nest.export": "launch launch_dir",
    "files of an engine, for its developers": "model_path log_path",
}

#: Arguments of nest compare for several problems, which nest.bench compares.
MORE = {"nest compare": {"jobs", "texts"}}

#: The functions of Python, and the command of each.
FUNCTIONS = {
    name: f"nest {'problems' if name == 'problem' else name}"
    for name in (
        *("solve", "compare", "pareto", "fit", "fits", "codesign", "score"),
        *("explain", "simulate", "certify", "export", "bench", "sweep"),
        *("validate", "calibrate", "problem", "trace", "check"),
    )
}


#: Commands without a function of their own, and why.
NO_FUNCTION = {
    "nest": "the group of all commands",
    "nest audit": "a page; nest.studies has the parts",
    "nest cite": "text for people",
    "nest completion": "text for a shell",
    "nest conform": "nest.conform is the room with its function",
    "nest doctor": "text for people",
    "nest import": "files of others: nest.frameworks, nest.models.hf",
    "nest instances": "nest.load reads one; nest.instances lists them",
    "nest new": "writes a file to begin with",
    "nest profile": "needs a device; nest.profiles has the parts",
    "nest report": "a page; nest.present.pages has the parts",
    "nest schedule": "nest.operator_schedule.schedule",
    "nest solvers": "nest.solver_names",
    "nest topology": "nest.topology.graph has the parts",
    "nest versions": "nest.util.versions.versions",
}


def kinds(base: type[Request] = Request) -> Iterator[type[Request]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_every_question_of_the_command_line_has_a_function() -> None:
    paths = {path for path, _ in commands()}
    top = {" ".join(path.split()[:2]) for path in paths}
    assert top == {*FUNCTIONS.values(), *NO_FUNCTION}
    page = (Path(nest.__file__).parents[1] / "docs" / "python.md").read_text()
    for name in FUNCTIONS:
        assert getattr(nest, name) is getattr(api, name)
        assert f"`nest.{name}(" in page


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_option_is_an_argument_in_python(name: str) -> None:
    """An option that no request has is none of these."""
    path = FUNCTIONS[name]
    command = dict(commands())[path]
    arguments = set(inspect.signature(getattr(nest, name)).parameters)
    options = {parameter.name for parameter in command.params}
    if name == "problem":  # the command lists and writes problems, too
        options -= {"shown", "models", "clusters"}
    screen = set(" ".join(SCREEN.values()).split())
    assert options - arguments - screen <= MORE.get(path, set())
    assert MORE.get(path, set()) <= options


def test_settings_are_declared_once_and_in_full() -> None:
    for kind in kinds():
        for field, declared in settings_of(kind).items():
            assert declared.help.strip().endswith((".", "]")), (kind, field)


def test_every_setting_is_read_by_somebody() -> None:
    """One that nobody reads would be accepted and ignored."""
    folders = ("requests", "cli")
    texts = [
        path.read_text()
        for folder in folders
        for path in (Path(nest.__file__).parent / folder).glob("*.py")
    ]
    used = {x for text in texts for x in re.findall(r"\.(\w+)", text)}
    used |= {x for text in texts for x in re.findall(r'"(\w+)"', text)}
    used |= {*Choice.__struct_fields__}
    for kind in kinds():
        assert set(settings_of(kind)) <= used, kind


def test_an_axis_is_a_setting_and_a_choice() -> None:
    """So the option of a new axis cannot be accepted and ignored."""
    for axis in AXES:
        if axis.name != "dp":
            assert axis.name in JOB_FIELDS
            assert axis.name in Choice.__struct_fields__
    settings = {*JOB_FIELDS} - {"profile", "calibration", "software"}
    assert settings == {*Choice.__struct_fields__} - {"target"}


@pytest.mark.parametrize("name", [*FUNCTIONS, "load"])
def test_type_hints_say_what_a_function_returns(name: str) -> None:
    function = getattr(nest, name)
    returned = get_type_hints(function)["return"]
    text = inspect.signature(function).return_annotation
    assert returned.__name__ == text.partition("[")[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_and_help_show_every_argument(name: str) -> None:
    function = getattr(nest, name)
    doc = pydoc.render_doc(function, renderer=pydoc.plaintext)
    parameters = inspect.signature(function).parameters
    assert not any(
        x.kind in (x.VAR_KEYWORD, x.VAR_POSITIONAL) for x in parameters.values()
    )
    assert parameters
    for parameter in parameters:
        assert re.search(rf"\n    {parameter}( \[.*\])?\n", doc)


def test_the_list_of_commands_says_what_each_is() -> None:
    """The text is there before the command is loaded."""
    context = click.Context(dict(commands())["nest"])
    assert set(SUMMARIES) == set(COMMANDS)
    for name, text in SUMMARIES.items():
        command = context.command.get_command(context, name)  # type: ignore[attr-defined]
        assert command.help.split("\n")[0] == text
        assert command.name == name


def test_help_explains_arguments_before_options() -> None:
    text = CliRunner().invoke(cli, ["score", "--help"]).output
    arguments = text.partition("Arguments:\n")[2].partition("\n\nOptions:\n")[0]
    assert re.findall(r"^  (\[\w+\]) +\w", arguments, re.M) == ["[PROBLEM]", "[PLAN]"]


def test_errors_speak_the_language_of_the_caller() -> None:
    message = (
        "nest solve: expected PROBLEM, got none; see 'nest solve --help', or "
        "pass --model and --cluster, for example --cluster h100x64, not "
        "--nothing or --time-limits"
    )
    assert in_python(message, SolveRequest) == (
        "nest.solve: expected problem, got none; see help(nest.solve), or "
        "pass model and cluster, for example cluster='h100x64', not "
        "--nothing or --time-limits"
    )
    with pytest.raises(InvalidOptionError, match=r"^--time-limit: expected a"):
        SolveRequest(time_limit=0)
    with pytest.raises(InvalidOptionError, match=r"^time_limit: expected a f"):
        nest.solve("llama2-7b-8", time_limit=0)


def test_names_of_options_are_those_of_fields() -> None:
    for field, declared in settings_of(SolveRequest).items():
        if declared.flags:
            assert option_name(field) in declared.flags


READERS: list[tuple[Any, dict[Any, Any], list[Any]]] = [
    (
        values.integers(0, 8),
        {"1, 2": (1, 2), (3,): (3,), 4: (4,)},
        ["", "1,1", "9", 2.5, True, (), {"a": 1}, None],
    ),
    (values.integer(), {"7": 7, 7: 7}, ["0", "x", 1.0, True, 2**31]),
    (values.seconds, {"0.5": 0.5, 2: 2.0}, ["nan", "inf", 0, -1, True, "x"]),
    (values.fraction, {"0": 0.0, 0.25: 0.25}, ["1", -0.1, "x"]),
    (
        values.amount,
        {"15e12": Fraction(15 * 10**12), 0.1: Fraction(1, 10)},
        ["0", "1e99", "x", -2, "1e-400", "9" * 101],
    ),
    (
        values.switches,
        {"on": (True,), "on,off": (True, False), True: (True,)},
        ["", "yes", "on,on", 3],
    ),
    (values.names, {"a,b": ("a", "b"), ("a",): ("a",)}, ["a,,b", 3, (1,)]),
    (values.several_of(("x", "y")), {"x,y": ("x", "y")}, ["z", "x,x", ()]),
    (values.one_of("x", "y"), {"x": "x"}, ["z", 3]),
    (values.flag, {True: True}, ["on", 1]),
    (values.text, {"a": "a"}, [3, b"x"]),
    (values.pairs, {"a=1": ("a=1",), ("a=1",): ("a=1",)}, [3, (1,)]),
]


@pytest.mark.parametrize(("read", "accepted", "refused"), READERS)
def test_readers(read: Any, accepted: dict[Any, Any], refused: list[Any]) -> None:
    for value, result in accepted.items():
        assert read(value) == result
        assert read(result) == result
    for value in refused:
        with pytest.raises(values.RefusedValueError, match=r"expected .*got "):
            read(value)


def test_mappings_are_settings() -> None:
    assert values.pairs({"dp.x": 1}) == ("dp.x=1",)
    assert values.restrictions({"tp": [2, 4], "pp": 1}) == ("tp=2|4,pp=1",)
    request = ProblemRequest(overlap={"tp": 0.5}, micro_batches=[1, 2])
    assert request.overlap == {"tp": 0.5}
    assert request.micro_batches == (1, 2)
    assert request.given_job == ["micro_batches", "overlap"]


def test_a_problem_of_a_request_is_that_of_a_name_or_a_model() -> None:
    by_name = ProblemRequest(problem="llama2-7b-8").find_problem()
    assert by_name == problems.load_problem("llama2-7b-8")
    with pytest.raises(InvalidOptionError, match=r"^--cluster: expected <mac"):
        ProblemRequest(model="llama2-7b").find_problem()


def test_every_error_names_python_arguments() -> None:
    chain = "llama2-7b-8"
    calls: dict[str, Any] = {
        r"^pin pp: expected": lambda: nest.solve(chain, pin="pp=x"),
        r"^options: expected a nest.SolveOptions, got \{'seed': 3\}": (
            lambda: nest.solve(chain, "dp", {"seed": 3})  # type: ignore[arg-type]
        ),
        r"^flavor: expected to torchtitan": lambda: nest.export(
            chain, "tp=8,pp=1", to="megatron", flavor="x"
        ),
        r"example model='llama3-8b', cluster='h100x64', vary='mem.*'$": nest.sweep,
        r"^headroom: expected a size such as 8GB": (
            lambda: nest.solve(chain, headroom=8)  # type: ignore[arg-type]
        ),
        r"^objectives: expected one of": lambda: nest.pareto(chain, "x"),
        r"^solvers: expected one of": lambda: nest.bench("quick", solvers="x"),
        r"^points: expected prove too": lambda: nest.pareto(chain, points=(1,)),
        r"^target_loss: expected target": lambda: nest.solve(chain, target_loss=True),
        r"^solver: expected either it or search": lambda: nest.explain(
            chain, "tp=8,pp=1", search=False, solver="milp"
        ),
    }
    for text, call in calls.items():
        with pytest.raises(NestError, match=text):
            call()


def test_questions_beside_the_plan_are_answered_in_python() -> None:
    frontier = nest.pareto(tiny_problem(), prove="brute", points=(1,), workers=1)
    assert [proof.verdict for proof in frontier.proofs] == ["proven"]
    more: dict[str, Any] = {"target": "megatron", "pin": "pp=4,r=1", "workers": 1}
    loss = nest.compare("llama2-7b-8", "dp", target_loss=True, **more).target_loss
    result = nest.solve("llama2-7b-8", target_loss=True, **more)
    assert loss is not None
    assert result.extra["target_loss"] == loss.to_json()
    guaranteed = nest.solve("llama2-7b-8", robust=True, **more).extra["robust"]
    assert guaranteed["guaranteed_step_time_ns"] > result.step_time_ns


def settings_read(
    call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> set[str]:
    """Return the attributes of requests that a call reads to answer them.

    That a request is made and copied does not count.
    """
    ignored = {settings_module.__file__, dataclasses.__file__}
    names: set[str] = set()

    def noting(request: Request, name: str) -> Any:
        if sys._getframe(1).f_code.co_filename not in ignored:
            names.add(name)
        return object.__getattribute__(request, name)

    with monkeypatch.context() as patches:
        patches.setattr(Request, "__getattribute__", noting, raising=False)
        call()
    return names


@pytest.mark.parametrize(
    ("function", "line", "kind"),
    [
        (nest.solve, "solve {}", SolveRequest),
        (nest.compare, "compare {} --solvers dp", CompareRequest),
    ],
)
def test_a_command_and_its_function_read_the_same_settings(
    function: Callable[..., Any],
    line: str,
    kind: type[Request],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An option that only one of them reads would be accepted and ignored."""
    path = tmp_path / "problem.json"
    nest.write(path, tiny_problem())
    words = line.format(path).split()
    python = settings_read(lambda: function(str(path)), monkeypatch)
    command = settings_read(lambda: CliRunner().invoke(cli, words), monkeypatch)
    settings = {
        name
        for name, declared in settings_of(kind).items()
        if declared.usage and name not in MODEL_FIELDS
    }
    assert settings & python == settings & command == settings


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500B", 500 * 10**9),
        ("1.5T", 15 * 10**11),
        ("500 b", 500 * 10**9),
        ("$2.5", Fraction(5, 2)),
        ("15e12", 15 * 10**12),
        (2.5, Fraction(5, 2)),
    ],
)
def test_amounts_are_read_as_people_write_them(text: Any, number: Fraction) -> None:
    assert values.amount(text) == number


@pytest.mark.parametrize("text", ["B", "$", "1e9B", "5 GB", "2.5$"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(values.RefusedValueError, match="expected a number"):
        values.amount(text)


def test_a_network_without_the_nodes_of_a_machine_is_told() -> None:
    """A user who names a network may not know that it replaces NVLink."""

    def assumed(topology: str) -> str:
        request = SolveRequest(model="llama2-7b", cluster="2x8xh100", topology=topology)
        return request.default_notes(request.restricted())

    told = "no NVLink or other links in nodes of 8"
    assert told in assumed("leaf-spine:leaves=1,hosts=16")
    assert told not in assumed("dgx:nodes=2")


@pytest.mark.parametrize(
    ("software", "told"),
    [
        ("Megtron-LM", "software not known (--software 'Megtron-LM': did you mean"),
        ("Megatron-LM", ""),
        (None, ""),
    ],
)
def test_a_misspelt_software_is_told(software: str | None, told: str) -> None:
    """Beside what is assumed; the problem has the entry of unknown software."""
    request = SolveRequest(model="llama2-7b", cluster="h100x8", software=software)
    notes = request.default_notes(request.restricted())
    assert told in notes
    assert ("software" in notes) == bool(told)
