"""``nest fits``: launch files, settings and files of plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nest
from nest.errors import InvalidOptionError
from nest.ir import read_problem
from tests.cli.conftest import Cli

#: A model of 13 billion weights whose activations do not fit.
SCRIPT = (
    "GPUS=8\ntorchrun --nproc_per_node $GPUS --nnodes 2 pretrain_gpt.py "
    "--num-layers 40 --hidden-size 5120 --num-attention-heads 40 "
    "--seq-length 4096 --micro-batch-size $MBS --global-batch-size 512 "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
    "--vocab-size 32000 --bf16\n"
)

DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": True},
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))


def shows(cli: Cli, command: str) -> dict[str, object]:
    """Run it, check the width of the screen, and return the document."""
    cli(f"{command} --json fits.json")
    assert max(map(len, cli.out.splitlines())) <= 80
    return json.loads(Path("fits.json").read_text())


def test_a_script_that_runs_out_of_memory(cli: Cli) -> None:
    command = "fits run.sh --cluster h100x16 --set MBS=2"
    assert cli(command) == 1
    assert "fits             no: " in cli.out
    document = shows(cli, command)
    assert document["fits"] == "no"
    first = document["changes"][0]
    assert first == document["smallest_change"]
    assert first["fits"] in ("yes", "likely")
    assert first["added"]
    for line in first["added"]:
        assert line in cli.out
    assert [stage["stage"] for stage in document["stages"]] == [1, 2]
    assert document["stages"][1]["ranks"] == [[8, 15]]
    # The script says what runs it, so that its memory is known as well as any.
    cli.succeeds("import megatron-args run.sh --cluster h100x16 --set MBS=2 -o p.json")
    assert read_problem("p.json").software == "Megatron-LM"


def test_the_screen_says_that_more_devices_come_last(cli: Cli) -> None:
    document = shows(cli, "fits --model llama3-8b --cluster h100x8 --plan tp=1,pp=1")
    assert "the cheapest change first; more devices last\n" in cli.out
    devices = [change["num_devices"] for change in document["changes"]]
    assert devices == [*[8] * (len(devices) - 1), 16]
    assert document["smallest_change"]["num_devices"] == 8


def test_the_smallest_change_is_in_the_words_of_the_script(cli: Cli) -> None:
    switches = "--bf16 --use-distributed-optimizer --sequence-parallel"
    Path("run.sh").write_text(SCRIPT.replace("--bf16", switches))
    document = shows(cli, "fits run.sh --cluster h100x16 --set MBS=4")
    assert document["smallest_change"]["added"] == ["MBS=2"]
    assert (
        "smallest change  micro-batch size 4 → 2, in run.sh: MBS=2 instead of "
        "MBS=4; then" in cli.out
    )


def test_what_hardly_matters_is_assumed(cli: Cli) -> None:
    Path("run.sh").write_text(SCRIPT.replace("--vocab-size 32000", ""))
    document = shows(cli, "fits run.sh --cluster h100x16 --set MBS=1")
    assert "assumed  --vocab-size 50257, as gpt3-13b, which has this" in cli.out
    assert document["notes"][0].startswith("--vocab-size 50257, as gpt3-13b")
    shows(cli, "fits run.sh --cluster h100x16 --set MBS=1 --say vocab-size=32000")
    assert "--vocab-size" not in cli.out


def test_a_script_gets_sequence_parallelism(cli: Cli) -> None:
    text = SCRIPT.replace("model-parallel-size 2", "model-parallel-size 8", 1)
    Path("run.sh").write_text(text)
    document = shows(cli, "fits run.sh --cluster h100x16 --set MBS=4")
    found = [
        change
        for change in document["changes"]
        for setting in change["settings"]
        if setting["name"] == "sequence parallelism"
    ]
    assert "--sequence-parallel" in found[0]["added"]


def test_a_script_with_it_can_lose_it(cli: Cli) -> None:
    text = SCRIPT.replace("--bf16", "--bf16 --sequence-parallel")
    Path("run.sh").write_text(text)
    cli.succeeds("fits run.sh --cluster h100x16 --set MBS=1")
    assert "sequence parallelism on" in cli.out


def test_python_reads_the_same(cli: Cli) -> None:
    document = shows(cli, "fits run.sh --cluster h100x16 --set MBS=2")
    answer = nest.fits("run.sh", cluster="h100x16", variables={"MBS": 2})
    assert json.loads(json.dumps(answer.to_json())) == document


def test_a_configuration_of_deepspeed(cli: Cli) -> None:
    command = "fits ds.json --cluster h100x8 --model llama2-7b --sequence-length 4096"
    assert cli(command) in (0, 1)
    assert "ZeRO 1" in cli.out
    assert cli(f"{command} --tp 2 --say pp=2") in (0, 1)
    assert "TP 2 · PP 2 · DP 2" in cli.out


def test_a_job_file_of_torchtitan(cli: Cli) -> None:
    cli.succeeds(
        "export --model llama3-8b --cluster h100x8 --plan tp=4,r=1,pp=1 "
        "--to torchtitan -o job --global-batch 8 --sequence-length 4096"
    )
    path = next(Path("job").glob("*.toml"))
    cli.succeeds(f"fits {path} --cluster h100x8")
    assert "TP 4 · PP 1 · DP 2" in cli.out
    assert cli.refuses(f"fits {path} --cluster h100x8 --set A=1") == (
        f"--set A: expected no such option with {path}, which leaves nothing "
        f"open, got it; remove it"
    )


def test_files_of_a_problem_and_a_plan(cli: Cli) -> None:
    model = "--model llama2-7b --cluster h100x8 --global-batch 64"
    cli.succeeds(f"solve {model} -o plan.json")
    cli.succeeds(f"fits {model} plan.json")
    with_model = cli.out
    cli.succeeds(f"problems {model} -o problem.json")
    cli.succeeds("fits problem.json plan.json")
    assert cli.out == with_model


def test_settings_of_a_plan(cli: Cli) -> None:
    cli(
        "fits --model llama2-7b --cluster h100x8 --global-batch 64 "
        "--plan tp=8,pp=1,recompute=none"
    )
    assert "TP 8 · PP 1" in cli.out
    assert "--plan is the fastest with" in cli.err


def test_many_stages_stay_on_one_screen(cli: Cli) -> None:
    text = SCRIPT.replace("--nnodes 2", "--nnodes 5")
    for degree, old, new in (("pipeline", 2, 20), ("tensor", 2, 1)):
        flag = f"{degree}-model-parallel-size"
        text = text.replace(f"{flag} {old}", f"{flag} {new}")
    Path("run.sh").write_text(text)
    shows(cli, "fits run.sh --cluster h100x40 --set MBS=2")
    assert "others, at most" in cli.out
    assert cli.out.count("\n") <= 40


def test_python_names_its_arguments() -> None:
    with pytest.raises(InvalidOptionError, match=r"^cluster: expected <mach"):
        nest.fits("run.sh")
    with pytest.raises(InvalidOptionError, match=r"^target: expected no such"):
        nest.fits("run.sh", cluster="h100x16", target="megatron")
