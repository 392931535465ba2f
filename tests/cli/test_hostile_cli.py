"""What files and arguments may hold that nobody means well with."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import nest.cli
from nest.ir import write
from nest.ir.io import encode
from nest.solvers.registry import unregister_solver
from tests.builders import with_job
from tests.children import python
from tests.cli.conftest import Cli
from tests.loopback import tiny_problem

pytestmark = pytest.mark.usefixtures("files")


def test_no_control_characters_reach_a_terminal(cli: Cli) -> None:
    """Neither what files name, nor what planners say, nor arguments."""
    name, shown = "a\x1b[2J\x9bb", r"a\x1b[2J\x9bb"
    Path("problem.json").write_bytes(
        encode(tiny_problem(name="a")).replace(b'"a"', json.dumps(name).encode(), 1)
    )
    assert shown in cli.refuses("check problem.json")
    assert shown in cli.refuses(f"check /{name}.json")
    Path("answer").write_text(
        json.dumps({"schema": "nest-answer/1", "status": "no-solution", "detail": name})
    )
    Path("planner.yaml").write_text(
        "schema: nest-planner/1\nname: talker\n"
        "command: sh -c 'cp answer {plan}' sh {problem}\n"
    )
    try:
        cli("solve problem.json --solver planner.yaml")
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
    found = [
        path.name
        for path in sorted(Path(nest.cli.__file__).parent.glob("*.py"))
        if pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert found == ["saying.py"]


# What helps


def test_check_says_why_no_plan_is_possible(cli: Cli) -> None:
    """A global batch of 2 has no micro-batch of 3; 2 devices no 4 replicas."""
    problem = tiny_problem()
    batch = problem.job.global_batch
    write("problem.json", with_job(problem, micro_batches=(batch + 1,)))
    cli.succeeds("check problem.json")
    assert "micro-batch B  none fits" in cli.out
    assert cli.err == (
        f"nest: warning: no plan is possible: job: expected replicas * "
        f"micro_batch to divide the global batch {batch}, got none that does "
        f"with micro-batches {batch + 1}; change either, for example to a "
        f"batch of "
        f"{batch + 1}\n"
    )
    write("problem.json", with_job(problem, replicas=(4,), global_batch=4))
    cli.succeeds("check problem.json")
    assert cli.err == (
        "nest: warning: no plan is possible: job: replicas: expected at most "
        "one per device (2), got 4; change the job or the cluster\n"
    )
    write("problem.json", problem)
    cli.succeeds("check problem.json")
    assert cli.err == ""


def test_matplotlib_says_nothing_of_its_own(tmp_path: Path) -> None:
    """Without a folder that it may write to it tells of another one."""
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.svg"
    nowhere = {"HOME": "/proc/none", "MPLCONFIGDIR": "/proc/none"}
    words = ("pareto", tmp_path / "problem.json", "--plot", plot)
    done = python("-m", "nest", *words, **nowhere)
    assert plot.is_file()
    assert done.stderr == ""


def test_a_named_pipe_is_no_file(cli: Cli) -> None:
    """Nobody writes to it; one of a shell is read."""
    os.mkfifo(Path("pipe"))
    assert cli.refuses("check pipe") == (
        "pipe: expected a file, got a named pipe; name a file, or '-' for "
        "standard input"
    )
    read, write_end = os.pipe()
    os.write(write_end, encode(tiny_problem()))
    os.close(write_end)
    cli.succeeds(f"check /dev/fd/{read}")
    os.close(read)
