"""All faults of a launch file at once, and the command line that answers them."""

from __future__ import annotations

import pytest

from nest.cli.main import main
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks.faults import FaultsError
from tests.unit.frameworks.test_launch_scripts import SCRIPT, launched

SHAPE = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 "
    "--vocab-size 32000 --bf16"
)
RUN = "torchrun --nproc_per_node 8 pretrain_gpt.py"


def faults_of(text, **given):
    with pytest.raises(FaultsError) as caught:
        launched(text, **given)
    return str(caught.value).splitlines()


def test_every_fault_has_a_line():
    old = "--tensor-model-parallel-size 8"
    text = SCRIPT.replace("--bf16", "--bf16 --cpu-offloading", 1)
    text = text.replace("--seq-length", "--seq-lengths", 1).replace(old, "", 1)
    lines = faults_of(text)
    assert [line.split(": ")[1] for line in lines] == [
        "--cpu-offloading",
        "--seq-lengths",
    ]


def test_what_depends_on_a_missing_value_is_no_fault():
    """How large a batch may be depends on a degree that is not known."""
    text = f"{RUN} {SHAPE} --tensor-model-parallel-size $TP"
    text += " --pipeline-model-parallel-size $PP"
    text = text.replace("--global-batch-size 64", "--global-batch-size 2")
    assert [line.split(": ")[1] for line in faults_of(text, world=8)] == [
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
    ]


def test_one_fault_has_the_message_that_it_always_had():
    with pytest.raises(InvalidPlanError) as caught:
        launched(SCRIPT.replace("--bf16", "--bf16 --cpu-offloading", 1))
    assert str(caught.value) == (
        "run.sh:17: --cpu-offloading: expected no such argument, got it; plans "
        "know no offloading"
    )


def test_an_argument_that_is_ignored_is_none():
    text = SCRIPT.replace("--bf16", "--bf16 --cpu-offloading", 1)
    assert (
        launched(text, ignored=["cpu-offloading"]).reading == launched(SCRIPT).reading
    )
    with pytest.raises(
        InvalidOptionError,
        match=r"^--ignore x-y: expected an argument that run\.sh has, got none; "
        "remove it$",
    ):
        launched(text, ignored=["x_y"])


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["import", "megatron-args", *words])
    return ended.value.code, capsys.readouterr().err.splitlines()


def test_the_command_line_that_answers_all(tmp_path, monkeypatch, capsys):
    """It is the one that was called, and works once the rest is filled in."""
    monkeypatch.chdir(tmp_path)
    shape = SHAPE.replace("--seq-length 1024 ", "").replace("--hidden", "--hiden")
    (tmp_path / "run.sh").write_text(
        f"#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\nsrun torchrun pretrain_gpt.py "
        f"{shape} --tensor-model-parallel-size $TP --optimizer-cpu-offload\n"
    )
    code, lines = run(capsys, "run.sh", "--cluster", "h100x8", "-o", "p.json")
    assert code == 2
    assert all(line.startswith("nest: error: run.sh:") for line in lines[:-1])
    assert lines[-1] == (
        "nest: then run: nest import megatron-args run.sh --cluster h100x16 -o p.json "
        "--set 'TP=<VALUE>' --ignore optimizer-cpu-offload --ignore hiden-size "
        "--say hidden-size=1024 --say 'seq-length=<N>'"
    )
    words = "run.sh --cluster h100x16 -o p.json --set TP=2 --ignore "
    words += "optimizer-cpu-offload --ignore hiden-size --say hidden-size=1024 "
    code, lines = run(capsys, *words.split(), "--say", "seq-length=1024")
    assert code == 0, lines
