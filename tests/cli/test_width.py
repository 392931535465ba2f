"""In a pipe no line of a default screen has more than 80 columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import SMALL, Cli

SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --bf16 "
    "--hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --lr 1 "
    "--micro-batch-size 4 --global-batch-size 64 --overlap-grad-reduce "
    "--tensor-model-parallel-size 4 --save here --load there --log-interval 9"
)

#: What makes a problem, and a plan for it.
MODEL = f"--model tiny/config.json --cluster h100x8 {SMALL}"
PLAN = "--plan tp=2,pp=2"


@pytest.fixture(autouse=True)
def _pipe(cli: Cli, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pipe have the width that it has outside of tests."""
    monkeypatch.setattr("nest.util.terminal.USUAL_COLUMNS", 80)
    Path("run.sh").write_text(SCRIPT)


@pytest.mark.parametrize(
    "command",
    [
        f"solve {MODEL} --tokens 15e12 --price 2",
        f"solve {MODEL} --target megatron --target-loss --launch",
        f"solve {MODEL} --robust --time-limit 1",
        f"compare {MODEL} --solvers dp,megatron,alpa",
        "fits run.sh --cluster h100x8",
        f"fits {MODEL} {PLAN}",
        f"export {MODEL} {PLAN} --to megatron -o out",
        f"sweep {MODEL} --vary memory=80GB,141GB --vary devices=8,16",
        f"pareto {MODEL} --top 3",
        f"fit {MODEL} --within 1",
        f"explain {MODEL} {PLAN}",
        f"score {MODEL} {PLAN}",
        f"simulate {MODEL} {PLAN}",
        f"certify {MODEL} {PLAN} -o proof.json",
        "topology show dgx-h100x64",
        "problems",
        "solvers",
    ],
    ids=lambda command: command.partition(" ")[0],
)
def test_default_screens_have_80_columns(cli: Cli, command: str) -> None:
    assert cli(command) in (0, 1), cli.err
    lines = [*cli.out.splitlines(), *cli.err.splitlines()]
    assert lines
    assert [line for line in lines if len(line) > 80] == []
