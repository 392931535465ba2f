"""The arguments that Megatron-LM prints at start."""

from __future__ import annotations

import pytest

from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks.printed import is_printed, read_printed
from tests.unit.frameworks.test_launch_scripts import launched

SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --bf16 "
    "--disable-bias-linear --tensor-model-parallel-size 2 --sequence-parallel "
    "--num-experts 8 --moe-layer-freq [0,1,1,1,1,1,1,1] --window-size 128,0 "
    "--recompute-granularity selective --recompute-modules core_attn "
    "--fp8-format hybrid"
)
VALUES = {
    "add_bias_linear": "False",
    "attention_backend": "AttnBackend.auto",
    "bf16": "True",
    "ckpt_format": "torch_dist",
    "consumed_train_samples": "0",
    "encoder_num_layers": "8",
    "exp_avg_dtype": "torch.float32",
    "expert_tensor_parallel_num_weight_shards": "2",
    "expert_tensor_parallel_size": "2",
    "ffn_hidden_size": "4096",
    "fp16": "False",
    "fp8": "hybrid",
    "global_batch_size": "64",
    "hidden_size": "1024",
    "kv_channels": "64",
    "lr": "0.0001",
    "max_position_embeddings": "1024",
    "megatron_fsdp_main_params_dtype": "torch.float32",
    "micro_batch_size": "1",
    "microbatch_group_size_per_virtual_pipeline_stage": "None",
    "moe_expert_capacity_factor": "None",
    "moe_layer_freq": "[0, 1, 1, 1, 1, 1, 1, 1]",
    "num_attention_heads": "16",
    "num_experts": "8",
    "num_layers": "8",
    "optimizer_cpu_offload": "False",
    "params_dtype": "torch.bfloat16",
    "recompute_granularity": "selective",
    "recompute_modules": "['core_attn']",
    "seq_length": "1024",
    "sequence_parallel": "True",
    "tensor_model_parallel_size": "2",
    "vocab_extra_ids": "0",
    "vocab_size": "32000",
    "window_size": "(128, 0)",
    "world_size": "8",
}


def log(prefix="", **changes):
    values = {**VALUES, **changes}
    lines = [
        f"{prefix}  {name} {'.' * (48 - len(name))} {value}"
        for name, value in values.items()
    ]
    title = "arguments"
    return "\n".join(
        (
            "using world size: 8",
            f"{prefix}{'-' * 24} {title} {'-' * 24}",
            *lines,
            f"{prefix}{'-' * 20} end of {title} {'-' * 21}",
            "lr .......... 4",
        )
    )


def printed(text, world=8, **more):
    return read_printed(text, "log.txt", world, **more)


@pytest.mark.parametrize(
    "prefix", ["", "[default0]:", "0: ", "2026-11-28 12:00:01 node3 | ", "\x1b[32m"]
)
def test_what_is_printed_is_the_launch_of_the_script(prefix):
    text = log(prefix)
    assert is_printed(text)
    found, wanted = printed(text).reading, launched(SCRIPT, world=8).reading
    assert found.launch == wanted.launch
    assert found.model.towers == wanted.model.towers


def test_only_what_a_log_leaves_open_is_noted():
    assert printed(log()).notes == ()
    (note,) = printed(log(my_flag="True", my_other="7")).notes
    assert note == (
        "log.txt: ignored 2 printed names that nest does not read: my_flag True, "
        "my_other 7"
    )


def test_the_last_start_of_a_log_counts():
    text = f"{log(micro_batch_size=2)}\n{log()}\n{'-' * 24} arguments {'-' * 24}\n"
    assert printed(text).reading.launch.micro_batch == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer_cpu_offload": "True"}, r"^log.txt:\d+: --optimizer-cpu-offload: "
         "expected no such argument, got it; plans know no offloading$"),
        ({"encoder_num_layers": "4"}, "^log.txt:8: --encoder-num-layers: expected no "),
        ({"world_size": "16"}, r"^log.txt:\d+: world_size 16: expected the 8 devices "
         "of --cluster, got 16; name a cluster of 16 devices$"),
        ({"moe_layer_freq": "[0, 1"}, r"^log.txt:\d+: --moe-layer-freq: expected "),
    ],
)  # fmt: skip
def test_what_plans_cannot_say_is_refused_with_its_line(changes, message):
    with pytest.raises(InvalidPlanError, match=message):
        printed(log(**changes))


def test_a_log_without_arguments_is_refused():
    end = log().splitlines()[-2]
    with pytest.raises(InvalidPlanError, match="got only their end; pass"):
        printed(f"a\n{end}\n")
    with pytest.raises(InvalidOptionError, match="--set TP: expected a variable that"):
        printed(log(), variables={"TP": "2"})


def test_answers_count_as_for_scripts():
    text = log(optimizer_cpu_offload="True", seq_length="None")
    more = {"ignored": ["optimizer-cpu-offload"], "overrides": [("seq-length", "1024")]}
    assert printed(text, **more).reading == printed(log()).reading


def test_another_padding_of_the_vocabulary_is_what_was_printed():
    """Two ranks pad 32,000 rows by none, and 50,257 to 50,432."""
    multiple = {"make_vocab_size_divisible_by": "128"}
    model = printed(log(padded_vocab_size="32256", **multiple)).reading.model
    assert (model.head.outputs, model.head.row_multiple) == (32256, 1)
    rows = {"vocab_size": "50257", "padded_vocab_size": "50432"}
    usual = printed(log(**rows, **multiple)).reading.model
    assert usual.head.outputs == 50257
