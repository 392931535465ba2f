"""What Megatron-LM's own code prints at start, read back."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from unittest import mock

import pytest

from nest.frameworks.megatron import array
from nest.frameworks.megatron_model import model_flags
from nest.frameworks.printed import read_printed
from nest.frameworks.scripts import read_launch
from nest.models.zoo import architecture
from tests.packages import parsers

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None, reason="make test-exports has it"
    ),
    # Of the packages, about each other and about GPUs.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("llama3-8b", "--num-virtual-stages-per-pipeline-rank 2 --fp8-format hybrid"),
        ("mixtral-8x7b", "--expert-model-parallel-size 2 --recompute-granularity full "
         "--recompute-method uniform --recompute-num-layers 1"),
        ("deepseek-v3", "--pipeline-model-parallel-layout Et*30|t*31L"),
        ("gpt3-175b", "--recompute-granularity selective"),
    ],
)  # fmt: skip
def test_printed_arguments_are_those_of_the_script(name, more, tmp_path):
    text = (
        f"--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        f"--sequence-parallel --micro-batch-size 1 --global-batch-size 64 --bf16 "
        f"--use-distributed-optimizer {more}"
    )
    plan = [(x.split()[0], tuple(x.split()[1:])) for x in f" {text}".split(" --")[1:]]
    flags = [(f"--{option}", values) for option, values in plan]
    setting = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    script = setting + array("x", model_flags(architecture(name), 2048) + flags)
    (tmp_path / "args.sh").write_text(script)
    arguments = parsers.megatron(tmp_path, 16)
    from megatron.training.arguments import _print_args

    out = io.StringIO()
    with (
        mock.patch("megatron.training.utils.is_rank0", return_value=True),
        contextlib.redirect_stdout(out),
    ):
        _print_args("arguments", arguments)
    found = read_printed(out.getvalue(), "run.sh", 16)
    assert found.notes == ()
    assert found.reading == read_launch(script, "run.sh", 16).reading
