"""What files and arguments may hold that nobody means well with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nest.cli
from nest.ir import write
from tests.cli.conftest import Cli
from tests.loopback import tiny_problem

HUGE = "9" * 5000
SHORT = "999999999999… (5000 digits)"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
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
        (
            (
                *("solve", "PROBLEM", "--solver", "dp"),
                *("--option", f"dp.max_closed_sets={HUGE}"),
            ),
            f"solver 'dp': dp.max_closed_sets: expected a whole number >= 1, "
            f"got '{SHORT}'",
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
    cli: Cli, tmp_path: Path
) -> None:
    """Names are shown in tables, in lines, and in errors."""
    name = "a\x1b[2J\x9bb"
    path = tmp_path / "problem.json"
    write(path, tiny_problem(name=name))
    shown = r"a\x1b[2J\x9bb"
    assert cli("check", str(path)) == 0
    assert shown in cli.out
    assert cli("solve", str(path), "--solver", "dp") == 0
    assert shown in cli.out
    assert "\x1b" not in cli.out + cli.err
    assert "\x9b" not in cli.out + cli.err
    assert shown in cli.refuses("check", f"/{name}.json")


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
