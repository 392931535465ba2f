"""Defaults of options from the environment and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from nest.cli.defaults import COMMON
from nest.cli.main import commands
from nest.ir import write
from tests.cli.conftest import Cli
from tests.loopback import tiny_problem


@pytest.fixture(autouse=True)
def problem(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    write("problem.json", tiny_problem())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.cwd() / "config"))


def config(text: str) -> Path:
    path = Path("config", "nest", "config.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path.absolute()


def test_the_command_line_goes_first_then_the_environment_then_a_file(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config("time-limit = 50\nsolver = 'brute'\nheadroom = '1%'\n")
    cli.succeeds("solve problem.json --headroom 2%")
    assert cli.err.splitlines()[:2] == [
        f"nest: --solver brute ({path})",
        f"nest: --time-limit 50 ({path})",
    ]
    assert "--headroom" not in cli.err
    assert "brute" in cli.out
    monkeypatch.setenv("NEST_SOLVER", "dp")
    cli.succeeds("solve problem.json --time-limit 9 -q")
    assert cli.err == ""
    assert "brute" not in cli.out


def test_a_cluster_is_for_models_only(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEST_CLUSTER", "h100x8")
    cli.succeeds("solve problem.json")
    assert "NEST_CLUSTER" not in cli.err
    cli.succeeds("compare problem.json --solvers dp")
    monkeypatch.setenv("NEST_JOBS", "0")
    assert cli("compare problem.json --solvers dp") == 2
    assert "--jobs: expected an integer from 1 to" in cli.err
    cli.succeeds("problems --model llama3-8b -o made.json")
    assert "nest: --cluster h100x8 (NEST_CLUSTER)" in cli.err.splitlines()


def test_a_default_is_read_like_an_option(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEST_TIME_LIMIT", "soon")
    assert cli("solve problem.json") == 2
    stated, error = cli.err.splitlines()
    assert stated == "nest: --time-limit soon (NEST_TIME_LIMIT)"
    assert error.startswith("nest: error: --time-limit: expected a finite ")
    monkeypatch.setenv("NEST_CONFIG", "none.toml")
    assert cli.refuses("solve problem.json --time-limit 9").startswith(
        "none.toml: expected a TOML file with defaults of options, got "
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time-limt = 3", "time-limt: expected one of calibration, cluster"),
        ("solver = true", "solver: expected a text or a number, got bool"),
        ("[solve]", "solve: expected one of "),
        ("solver", "expected a TOML file with defaults of options, got "),
    ],
)
def test_a_bad_file_is_one_line(cli: Cli, text: str, message: str) -> None:
    path = config(text)
    assert cli.refuses("solve problem.json").startswith(f"{path}: {message}")


def test_every_common_option_is_one_of_a_command() -> None:
    flags = {
        flag.removeprefix("--")
        for _, command in commands()
        for parameter in command.params
        for flag in parameter.opts
    }
    assert set(COMMON) <= flags
