"""Planners that are commands: what they get, and what becomes of them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nest.analysis.compare import compare
from nest.errors import (
    InvalidOptionError,
    InvalidPlanError,
    SolverError,
    SolverNotInstalledError,
    UnsupportedProblemError,
)
from nest.ir import read_problem, write
from nest.solvers import registry
from nest.solvers.base import Limit, SolveOptions, SolverOutput, Status
from nest.solvers.cell import GRACE_S, Running
from nest.solvers.command import Planner, planner_of, read_planner, solver_of, target_of
from nest.solvers.result import Outcome
from nest.solvers.run import run_solver
from tests.children import HANG_S, is_alive, wait_until
from tests.clock import Spending
from tests.loopback import GOOD_NS, good_plan, tiny_problem

EXAMPLE = Path(__file__).parents[3] / "examples" / "shell-planner"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for name in ("mine", "replicate"):
        registry.unregister_solver(name)


def planner(command: str | tuple[str, ...], **fields: object) -> Planner:
    return Planner(name="mine", command=command, **fields)  # type: ignore


def ask(
    script: str, options: SolveOptions | None = None, **fields: object
) -> SolverOutput:
    """Let a shell script plan; $1 is the problem, $2 the plan."""
    words = ("sh", "-c", script, "sh", "{problem}", "{plan}")
    described = planner(words, **fields)
    solver = solver_of(target_of(described))
    return solver().solve(tiny_problem(), options or SolveOptions())


@pytest.fixture
def good(tmp_path: Path) -> str:
    write(tmp_path / "good.json", good_plan())
    return str(tmp_path / "good.json")


def answer(good: str, claims: str) -> str:
    """Return a script that writes an answer with the good plan."""
    return (
        f'{{ echo \'{{"schema": "nest-answer/1", {claims}, "plan": \'; '
        f'cat {good}; echo "}}"; }} > "$2"'
    )


def test_a_plan_claims_nothing(good: str) -> None:
    found = ask(f'cp {good} "$2"')
    assert found == SolverOutput(Status.FEASIBLE, plan=good_plan())


def test_an_answer_has_claims(good: str) -> None:
    claims = '"status": "optimal", "claimed_quanta": 90, "detail": "done"'
    assert ask(answer(good, claims)) == SolverOutput(
        Status.OPTIMAL, plan=good_plan(), claimed_quanta=90, detail="done"
    )
    with pytest.raises(UnsupportedProblemError, match=r"^too many layers$"):
        ask(
            'echo \'{"schema": "nest-answer/1", "status": "unsupported", '
            '"detail": "too many layers"}\' > "$2"'
        )


def test_a_command_gets_all_options(tmp_path: Path) -> None:
    """The problem is the same one, and the warm start is a plan file."""
    words = (
        *("sh", "-c", f'cp "$1" {tmp_path}; shift; echo "$@" >&2; exit 3'),
        *("sh", "{problem}", "{seed}", "{workers}", "{gap}"),
        *("{time_limit_s}", "x{warm_start}", "{plan}"),
    )
    described = planner(words)
    assert described.capabilities.warm_start
    assert described.capabilities.parallel
    solver = solver_of(target_of(described))()
    with pytest.raises(
        SolverError, match=r"ended with code 3: 7 1 0.0 inf x \S+/plan$"
    ):
        solver.solve(tiny_problem(), SolveOptions(seed=7))
    assert read_problem(tmp_path / "problem.json") == tiny_problem()
    options = SolveOptions(time_limit_s=60, warm_start=good_plan(), gap=0.5)
    with pytest.raises(
        SolverError, match=r"0 1 0.5 60.000 x\S+/warm-start.json \S+/plan$"
    ):
        solver.solve(tiny_problem(), options)


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        ("true", InvalidPlanError, "expected a plan file from the command, "),
        ("exit 4", SolverError, "the command ended with code 4$"),
        ("kill -9 $$", SolverError, "the command ended with signal 9$"),
        ("echo {} > $2", InvalidPlanError, r"\$: expected key 'replicas'"),
        ("echo '{' > $2", InvalidPlanError, "expected a plan in JSON, got"),
        (
            "head -c 90000 /dev/zero | tr '\\0' '[' > $2",
            InvalidPlanError,
            "expected `object`, got `array`",
        ),
        (
            'printf \'{"schema": "\\217"}\' > $2',
            InvalidPlanError,
            "plan file: line 1: expected a plan in JSON in UTF-8, got",
        ),
        ("mkdir $2", InvalidPlanError, "expected a plan, got a directory"),
        (
            'echo \'{"schema": "nest-answer/1"}\' > $2',
            InvalidPlanError,
            "expected key 'status', got none; add it",
        ),
        (
            'printf \'{"claimed_quanta": 1%05000d, "status": "feasible", '
            '"schema": "nest-answer/1"}\' 0 > $2',
            InvalidPlanError,
            "claimed_quanta: expected",
        ),
        (
            'echo \'{"schema": "nest-answer/2"}\' > $2',
            InvalidPlanError,
            "schema: expected 'nest-plan/1', got 'nest-answer/2'",
        ),
    ],
)
def test_broken_answers(script: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        ask(script)
    assert "\n" not in str(caught.value)


def test_no_such_program() -> None:
    solver = solver_of(target_of(planner("no-such-program {problem} {plan}")))
    with pytest.raises(
        SolverNotInstalledError,
        match=r"^expected a program 'no-such-program' that can be started, "
        r"got No such file or directory; correct the command$",
    ):
        solver().solve(tiny_problem(), SolveOptions())


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # What is in the plan file at the limit counts, if it is whole.
        ("cp {good} $2; sleep 60", (Status.FEASIBLE, Limit.TIME)),
        ("sleep 60", (Status.NO_SOLUTION, Limit.TIME)),
        ("head -c 40 {good} > $2; sleep 60", (Status.NO_SOLUTION, Limit.TIME)),
    ],
)
def test_a_command_is_stopped_at_its_limit(
    good: str,
    script: str,
    expected: tuple[Status, Limit],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit passes when the command sleeps."""
    asleep = tmp_path / "asleep"
    wait = subprocess.Popen.wait

    def wait_for(process: Any, timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        wait_until(asleep.exists)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_for)
    script = script.replace("sleep 60", f"touch {asleep}; exec sleep 60")
    options = SolveOptions(time_limit_s=1)
    found = ask(script.replace("{good}", good), options)
    assert (found.status, found.limit) == expected
    assert found.detail == "stopped at its limit of 1.0 s"
    assert found.extra["killed"] is True


def test_a_command_and_its_children_are_gone_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in the background are of its group, or its descendants."""
    pids = tmp_path / "pids"
    description = tmp_path / "slow.yaml"
    (tmp_path / "slow.sh").write_text(
        f"sleep 62 & first=$!\nsetsid sleep 62 &\n"
        f"echo $first $! $$ > {pids}\nsleep 62\n"
    )
    description.write_text(
        "schema: nest-planner/1\nname: mine\n"
        "command: sh {here}/slow.sh {problem} {plan}\n"
    )
    name = registry.register_planner(description)
    clock = Spending(HANG_S)
    monkeypatch.setattr("nest.solvers.run.Deadline", lambda _: clock)

    def show(_: Running) -> None:
        if pids.exists() and len(pids.read_text().split()) == 3:
            clock.spent_s = HANG_S + GRACE_S

    options = SolveOptions(time_limit_s=HANG_S)
    result = run_solver(tiny_problem(), name, options, show)
    assert (result.status, result.limit) == ("no-solution", "time")
    numbers = pids.read_text().split()
    assert len(numbers) == 3
    wait_until(lambda: not any(is_alive(int(pid)) for pid in numbers))


def test_the_judge_believes_no_command(good: str, tmp_path: Path) -> None:
    """A proof needs the promise, and a claim the shared cost model."""
    expected = {
        "honest": ('"status": "optimal"', True, "solved", ""),
        "boaster": ('"status": "optimal"', False, "mismatch", "expected no"),
        "liar": (
            '"status": "feasible", "claimed_quanta": 89',
            False,
            "mismatch",
            "claims 89 quanta for a plan that takes 90",
        ),
    }
    for name, (claims, exact, _, _) in expected.items():
        words = ("sh", "-c", answer(good, claims), "sh", "{problem}", "{plan}")
        described = Planner(name=name, command=words, exact=exact)
        registry.register_solver(name, target_of(described))
    try:
        results = compare(tiny_problem(), [*expected])
    finally:
        for name in expected:
            registry.unregister_solver(name)
    for result, (_, _, outcome, detail) in zip(results, expected.values(), strict=True):
        assert result.outcome == outcome
        assert result.detail.startswith(detail)
    assert results[0].step_time_ns == GOOD_NS


def test_the_example_in_shell(tmp_path: Path) -> None:
    name = registry.register_planner(EXAMPLE / "replicate.yaml")
    assert name == "replicate"
    assert registry.is_command(name)
    assert registry.solver_version(name) == "replicate 1.0"
    assert len((EXAMPLE / "replicate.sh").read_text().splitlines()) < 30
    # Weights of 80 bytes each do not fit 100 bytes, but 160 bytes.
    found = run_solver(tiny_problem(), name)
    assert (found.outcome, found.status) == (Outcome.SOLVED, "over-memory")
    found = run_solver(tiny_problem(memory_bytes=160), name)
    assert found.status is Status.FEASIBLE
    assert found.plan is not None
    assert found.plan.replicas == 2


def test_a_description_is_all_that_is_needed_elsewhere() -> None:
    read = read_planner(EXAMPLE / "replicate.yaml")
    assert read.words[:2] == ("sh", str(EXAMPLE / "replicate.sh"))
    assert planner_of(target_of(read)) == read


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("name: mine", r"\$: expected key 'command', got none; add it"),
        (
            "{name: mine, command: 'plan {problem}'}",
            r"command: expected {plan} in it, got none; add it",
        ),
        (
            "{name: mine, command: 'plan {problem} {plan} {sede}'}",
            r"command: expected placeholders out of problem, .* got {sede}; "
            r"correct it, or put the program into a file",
        ),
        (
            "{name: mine, command: 'plan \"{problem} {plan}'}",
            "command: expected words with closed quotes, got No closing",
        ),
        (
            "{name: mine, command: '{problem} {plan}', searches: [all]}",
            "searches: expected some of virtual_stages, .*, got 'all'",
        ),
        (
            "{schema: nest-planner/1, name: Mine, command: '{problem} {plan}'}",
            "name: solver 'Mine': expected a name of lower-case letters",
        ),
        (
            "{schema: nest-planner/1, name: dp, command: '{problem} {plan}'}",
            "name: solver 'dp': expected a new name, got that of an existing",
        ),
        (
            "{name: mine, command: '{problem} {plan}', exactly: true}",
            "expected a known key, got 'exactly'; remove or correct it",
        ),
        (
            "{schema: nest-plan/1, name: mine, command: '{problem} {plan}'}",
            "schema: expected 'nest-planner/1', got 'nest-plan/1'",
        ),
        ("[", "expected a description of a planner in YAML, got malformed"),
    ],
)
def test_broken_descriptions(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(
        InvalidOptionError, match=f"^{re.escape(str(path))}: .*{error}"
    ) as caught:
        registry.register_planner(path)
    assert "\n" not in str(caught.value)


def test_no_description(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidOptionError,
        match="expected a readable description of a planner, got No such",
    ):
        read_planner(tmp_path / "none.yaml")
