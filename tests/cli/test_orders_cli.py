"""Schedules that plans choose from, on the command line."""

from __future__ import annotations

import pytest

from tests.cli.conftest import SMALL, Cli


@pytest.mark.parametrize("schedule", ["gpipe,zb-h1", "any"])
def test_the_command_below_an_answer_starts_the_nearest_plan(
    cli: Cli, config: str, schedule: str
) -> None:
    """Plans may recompute all, which zb-h1 forbids; Megatron has 1F1B only."""
    model = f"--model {config} --cluster h100x8 {SMALL}"
    cli.succeeds(f"solve {model} --schedule {schedule} --pin pp=2,r=1")
    command = cli.out[cli.out.rindex("\nnest ") :].replace("\\\n", " ")
    assert "--schedule" not in command
    cli.succeeds(command.split(maxsplit=1)[1])


def test_any_order_stands_alone(cli: Cli, config: str) -> None:
    said = cli.refuses(f"solve {config} --schedule any,zb-v")
    assert said == (
        "--schedule: expected names of schedules, or 'any' alone, got "
        "'any,zb-v'; remove 'any' or the others"
    )
