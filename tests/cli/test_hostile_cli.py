"""What files and arguments may hold that nobody means well with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

import nest.cli
from nest.ir import problem_hash, write
from nest.ir.io import encode
from nest.solvers.registry import unregister_solver
from tests.cli.conftest import Cli
from tests.loopback import foreign_plan, tiny_problem

HUGE = "9" * 5000
SHORT = "999999999999… (5000 digits)"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("fit", "PROBLEM", "--within", "1e-999999999"),
            "--within: expected a number from 1e-30 to 1e+30 of at most 100 "
            "characters, got '1e-999999999'; correct the value",
        ),
        (
            ("fit", "PROBLEM", "--within", "1e999999999"),
            "--within: expected a number from 1e-30 to 1e+30 of at most 100 "
            "characters, got '1e999999999'; correct the value",
        ),
        (
            ("fit", "PROBLEM", "--within", f"1.{HUGE}"),
            f"--within: expected a number from 1e-30 to 1e+30 of at most 100 "
            f"characters, got '1.{SHORT}'; correct the value",
        ),
        (
            ("fit", "PROBLEM", "--days", "1e-300", "--tokens", "1e-300"),
            "--days: expected a number from 1e-30 to 1e+30 of at most 100 "
            "characters, got '1e-300'; correct the value",
        ),
        (
            ("fit", "PROBLEM", "--hourly-budget", "1e300"),
            "--hourly-budget: expected a number from 1e-30 to 1e+30 of at "
            "most 100 characters, got '1e300'; correct the value",
        ),
        (
            ("fit", "PROBLEM", "--within", "1", "--devices-list", HUGE),
            f"--devices-list: expected distinct integers >= 1 separated by "
            f"commas, got '{SHORT}'; for example 1,2",
        ),
        (
            ("solve", "PROBLEM", "--solver", "dp", "--pin", f"tp={HUGE}"),
            f"--pin tp: expected an integer >= 1, got '{SHORT}'; correct the "
            f"value",
        ),
        (
            ("solve", "PROBLEM", "--solver", "dp", "--headroom", f"{HUGE}GB"),
            f"--headroom: expected a size such as 8GB or 8GiB, or a part such "
            f"as 10%, got '{SHORT}GB'; correct the value",
        ),
        (
            (
                *("solve", "--solver", "dp", "--model", "llama2-7b"),
                *("--cluster", f"h100x{HUGE}"),
            ),
            f"--cluster: expected fewer devices, got 'h100x{SHORT}'; write "
            f"<machine>x<devices> such as h100x64",
        ),
    ],
)
def test_huge_numbers(
    cli: Cli,
    files: dict[str, str],
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    """Nothing computes with as many digits as they stand for."""
    given = (files["problem"] if x == "PROBLEM" else x for x in arguments)
    assert cli.refuses(*given) == reason


def test_no_control_characters_reach_a_terminal(
    cli: Cli, files: dict[str, str], tmp_path: Path
) -> None:
    """Neither what files name, nor what planners say, nor arguments."""
    name, shown = "a\x1b[2J\x9bb", r"a\x1b[2J\x9bb"
    path = tmp_path / "problem.json"
    path.write_bytes(
        encode(tiny_problem(name="a")).replace(
            b'"a"', json.dumps(name).encode(), 1
        )
    )
    assert shown in cli.refuses("check", str(path))
    assert shown in cli.refuses("check", f"/{name}.json")
    answer = tmp_path / "answer"
    answer.write_text(
        json.dumps(
            {
                "schema": "nest-answer/1",
                "status": "no-solution",
                "detail": name,
            }
        )
    )
    planner = tmp_path / "planner.yaml"
    planner.write_text(
        "schema: nest-planner/1\nname: talker\n"
        f"command: sh -c 'cp {answer} {{plan}}' sh {{problem}}\n"
    )
    try:
        cli("solve", files["problem"], "--solver", str(planner))
    finally:
        unregister_solver("talker")
    assert shown in cli.out + cli.err
    assert "\x1b" not in cli.out + cli.err
    assert "\x9b" not in cli.out + cli.err


def test_arguments_that_are_no_text(cli: Cli) -> None:
    """What is no UTF-8 on the command line comes as halves of characters."""
    assert cli.refuses("check", "\udcff.json").startswith(r"\udcff.json: ")


def test_commands_print_in_one_place() -> None:
    """All that is printed passes ``saying``, ``show`` or the status line."""
    pattern = re.compile(r"\bprint\(|click\.echo|std(out|err)\.write")
    folder = Path(nest.cli.__file__).parent
    found = [
        path.name
        for path in sorted(folder.glob("*.py"))
        if pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert found == ["saying.py"]


# What helps


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("score", "x", "y", "--model", "z"), "remove one"),
        (("solvers", "--moddel", "z"), "see 'nest solvers --help'"),
        (("solve", "--modle", "z"), "did you mean '--model'?"),
        (("solve", "--solvr", "z"), "did you mean '--solver'?"),
        (("solve", "--hepl"), "did you mean '--help'?"),
        (("frob",), "choose one of them"),
        (("slove",), "did you mean 'solve'?"),
        (
            ("problems", "--model", "mamba", "--cluster", "h100x8"),
            "choose one of them",
        ),
        (
            ("problems", "--model", "mixtral", "--cluster", "h100x8"),
            "did you mean 'mixtral-8x7b'?",
        ),
        (("check", "mamba"), "see 'nest problems' and 'nest instances'"),
        (("check", "llama2-7b-9"), "did you mean 'llama2-7b-8'?"),
        (("instances", "show", "mamba"), "choose another"),
    ],
)
def test_hints_are_of_what_was_meant(
    cli: Cli, arguments: tuple[str, ...], hint: str
) -> None:
    assert cli.refuses(*arguments).endswith(f"; {hint}")


def test_a_family_of_models_is_no_typing_error(
    cli: Cli, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "rwkv"}')
    said = cli.refuses("problems", "--model", str(path), "--cluster", "h100x8")
    assert said.endswith("; got 'rwkv'; choose one of them")


@pytest.mark.parametrize("command", ["explain", "score", "check"])
def test_a_plan_of_another_problem_is_one_line(
    cli: Cli, files: dict[str, str], tmp_path: Path, command: str
) -> None:
    problem = tiny_problem()
    path = tmp_path / "plan.json"
    write(path, replace(foreign_plan(), problem_hash="0" * 64))
    assert cli.refuses(command, files["problem"], str(path)) == (
        f"stage 2: expected layers of the problem, got 7; check that plan "
        f"and problem belong together: the plan was made for problem "
        f"000000000000, this is {problem_hash(problem)[:12]}"
    )


def test_check_says_why_no_plan_is_possible(cli: Cli, tmp_path: Path) -> None:
    """A global batch of 2 has no micro-batch of 3; 2 devices no 4 replicas."""
    path, problem = tmp_path / "problem.json", tiny_problem()
    batch = problem.job.global_batch
    job = replace(problem.job, micro_batches=(batch + 1,))
    write(path, replace(problem, job=job))
    assert cli("check", str(path)) == 0
    assert "micro-batch B  none fits" in cli.out
    assert cli.err == (
        f"nest: warning: no plan is possible: job: expected replicas * "
        f"micro_batch to divide the global batch {batch}, got none that does "
        f"with micro-batches {batch + 1}; change either, for example to a "
        f"batch of "
        f"{batch + 1}\n"
    )
    job = replace(problem.job, replicas=(4,), global_batch=4)
    write(path, replace(problem, job=job))
    assert cli("check", str(path)) == 0
    assert cli.err == (
        "nest: warning: no plan is possible: job: replicas: expected at most "
        "one per device (2), got 4; change the job or the cluster\n"
    )
    write(path, problem)
    assert cli("check", str(path)) == 0
    assert cli.err == ""


def test_matplotlib_says_nothing_of_its_own(
    files: dict[str, str], tmp_path: Path
) -> None:
    """Without a folder that it may write to it tells of another one."""
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.svg"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "nest", "pareto", files["problem"]),
            *("--plot", str(plot)),
        ],
        env={**os.environ, "HOME": "/proc/none", "MPLCONFIGDIR": "/proc/none"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert plot.is_file()
    assert done.stderr == ""


def test_a_named_pipe_is_no_file(cli: Cli, tmp_path: Path) -> None:
    """Nobody writes to it; one of a shell is read."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert cli.refuses("check", str(path)) == (
        f"{path}: expected a file, got a named pipe; name a file, or '-' for "
        f"standard input"
    )
    read, write_end = os.pipe()
    os.write(write_end, encode(tiny_problem()))
    os.close(write_end)
    assert cli("check", f"/dev/fd/{read}") == 0
    os.close(read)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--plan", ""), "got ''; for example --plan tp=8,zero=0|1"),
        (("--plan", "tp2,pp2"), "got 'tp2'; did you mean 'tp=2,pp=2'?"),
        (("pp2",), "got 'pp2'; did you mean 'pp=2'?"),
    ],
)
def test_settings_that_are_none(
    cli: Cli, tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    path = str(tmp_path / "problem.json")
    write(path, tiny_problem())
    said = cli.refuses("check", path, *words)
    assert said.endswith(
        f": expected SETTING=VALUE, several separated by commas, {text}"
    )


def test_of_many_names_the_closest_are_shown(cli: Cli) -> None:
    said = cli.refuses("solve", "--model", "lama3-8b", "--cluster", "h100x8")
    assert said.startswith("model: expected one of 48 names, such as llama3-8")
    assert said.endswith("got 'lama3-8b'; did you mean 'llama3-8b'?")
    assert len(said) < 200


def test_yaml_without_a_number_says_where(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "num_devices: 2\ndevice:\n  machine: h100\n  memory_bytes: .nan\n"
    )
    words = ("--model", "llama2-7b", "--cluster", str(path), "-o", "-")
    assert cli.refuses("new", "problem", *words) == (
        f"{path}: line 4: expected a finite number, got .nan; write another "
        f"one, or leave the key out"
    )
