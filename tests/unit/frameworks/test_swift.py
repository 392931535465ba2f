"""Launches of ms-swift, whose arguments are Megatron-LM's with underscores."""

from __future__ import annotations

import pytest

from nest.errors import InvalidPlanError
from nest.frameworks.faults import Fault, FaultsError
from nest.models.zoo import architecture
from tests.unit.frameworks.test_launch_scripts import launched

SWIFT = """\
NPROC_PER_NODE=8 \\
megatron sft --model Qwen/Qwen3-8B --tensor_model_parallel_size 2 \\
    --pipeline_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 64 \\
    --max_length 4096 --sequence_parallel true --recompute_granularity selective \\
    --attention_backend flash --save out --packing true --no_save_optim true \\
    --train_type full --use_precision_aware_optimizer false
"""


def test_a_launch_of_swift_is_read():
    found = launched(SWIFT, world=8)
    launch, model, _ = found.reading
    assert (launch.tp, launch.stages, launch.dp, launch.zero) == (2, 2, 2, 1)
    assert (launch.micro_batch, launch.global_batch) == (2, 64)
    assert (launch.sequence_length, launch.recompute) == (4096, "selective")
    assert launch.sequence_parallel
    assert model.layers == architecture("qwen3-8b").layers
    assert (
        "not in the script, so ms-swift's defaults: --use-distributed-optimizer, --bf16"
        in found.notes
    )
    assert not any("--packing" in note for note in found.notes)


def test_defaults_of_swift_count_unless_others_are_given():
    text = "megatron pt --model qwen3-8b --max_length 4096"
    found = launched(text, world=8)
    assert found.reading.launch.recompute == "selective"
    assert found.reading.launch.global_batch == 16
    more = [("global_batch_size", "32"), ("recompute-granularity", "full"),
            ("recompute-method", "uniform")]  # fmt: skip
    launch = launched(text, world=8, overrides=more).reading.launch
    assert (launch.global_batch, launch.recompute) == (32, "full")
    text += " --fp16 true --use_distributed_optimizer false"
    launch = launched(text, world=8).reading.launch
    assert (launch.dtype, launch.zero) == ("fp16", 0)


def test_devices_are_those_of_its_variables():
    text = f"export NNODES=2\n{SWIFT}"
    assert launched(text, world=16).reading.launch.dp == 4
    with pytest.raises(InvalidPlanError, match="got 16; name a cluster of 16 devices"):
        launched(text, world=8)


def test_other_commands_of_swift_start_no_training():
    text = f"{SWIFT}\nmegatron export --load out --tensor_model_parallel_size 1\n"
    assert launched(text, world=8).reading == launched(SWIFT, world=8).reading


def test_what_swift_trains_otherwise_is_refused():
    text = SWIFT.replace("train_type full", "train_type lora")
    more = "--optimizer_cpu_offload true --lora_rank 8 --target_modules all-linear"
    text = text.replace("--packing true", more)
    with pytest.raises(FaultsError) as caught:
        launched(text, world=8)
    assert str(caught.value).splitlines() == [
        "run.sh:6: --train_type: expected full, got 'lora'; plans train all weights",
        "run.sh:5: --optimizer-cpu-offload: expected no such argument, got it; plans "
        "know no offloading",
    ]
    assert caught.value.faults[0].answers == ()  # a plan without it is of other steps
    ignored = ["train_type", "optimizer-cpu-offload"]
    assert launched(text, world=8, ignored=ignored).reading.launch.tp == 2


def test_a_model_that_is_not_known_is_asked_for():
    text = SWIFT.replace("Qwen/Qwen3-8B", "own/model")
    with pytest.raises(
        InvalidPlanError,
        match=r"^run.sh:2: --model: expected a model that nest knows, got 'own/model'; "
        r"pass --model NAME, or its config.json$",
    ):
        launched(text, world=8)
    with pytest.raises(FaultsError) as caught:
        launched(text.replace("--packing", "--made_up 3 --packing"), world=8)
    assert [fault.subject for fault in caught.value.faults] == ["--model", "--made-up"]
    model = architecture("llama3-8b")
    assert launched(text, world=8, model=model).reading.model.layers == 32


EXPERTS = """\
NPROC_PER_NODE=8 \
megatron sft --model Qwen/Qwen3-30B-A3B --tensor_model_parallel_size 2 \
    --expert_model_parallel_size 4 --max_length 4096 --sequence_parallel true
"""


def test_experts_are_whole_on_each_tensor_rank_by_default():
    """ms-swift sets ``expert_tensor_parallel_size`` to 1, Megatron-LM to ``tp``."""
    found = launched(EXPERTS, world=8)
    assert (found.reading.launch.ep, found.reading.launch.etp) == (4, 1)
    assert "--expert-tensor-parallel-size 1" in found.notes[-1]
    text = f"{EXPERTS[:-1]} --expert_tensor_parallel_size 2\n"
    assert launched(text, world=8).reading.launch.etp == 0


def test_shards_of_fsdp_are_those_of_swift():
    """Its default is ``optim_grads_params``, that of Megatron-LM ``no_shard``."""
    text = f"{SWIFT[:-1]} --use_megatron_fsdp true --ckpt_format fsdp_dtensor\n"
    text = text.replace("--pipeline_model_parallel_size 2", "")
    assert launched(text, world=8).reading.launch.zero == 3


def test_virtual_stages_have_the_name_of_swift():
    text = f"{SWIFT[:-1]} --virtual_pipeline_model_parallel_size 2\n"
    assert launched(text, world=8).reading.launch.virtual_stages == 2


def test_arguments_of_swift_that_change_no_plan():
    text = f"{SWIFT[:-1]} --output_dir out --eval_steps 10 --save_steps 20 "
    text += (
        "--dataloader_num_workers 8 --report_to wandb --perform_initialization true\n"
    )
    assert launched(text, world=8).reading == launched(SWIFT, world=8).reading


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--adapters out", "expected none, got 'out'; plans train all weights"),
        ("--quant_method fp8", "expected none, got 'fp8'; plans know no quantized"),
        ("--cp_partition_mode contiguous", "expected zigzag, got 'contiguous'"),
    ],
)
def test_arguments_of_swift_that_change_the_step(argument, expected):
    with pytest.raises(Fault, match=expected):
        launched(f"{SWIFT[:-1]} {argument}\n", world=8)
