"""Configurations of Hugging Face Accelerate: what is written, read and refused."""

from __future__ import annotations

import json

import pytest
import yaml
from msgspec.structs import replace

from nest.constraints.targets import for_target
from nest.errors import InvalidPlanError
from nest.frameworks import accelerate
from nest.frameworks.export import export
from nest.frameworks.launch import Settings
from nest.ir import Strategy
from nest.models.zoo import architecture
from tests.exports import small_model, small_plan, small_problem

FSDP1 = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_processes: 8
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_activation_checkpointing: true
"""
ZERO = """
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 8
deepspeed_config:
  zero_stage: 3
  offload_optimizer_device: none
"""
SAID = (("per_device_train_batch_size", "2"), ("max_length", "4096"))


def exported(**strategy):
    problem = for_target(small_problem(), "accelerate")
    fields = {"replicas": strategy.pop("replicas", 1)}
    plan = small_plan(problem, Strategy(**strategy), **fields)
    return export(problem, plan, "accelerate", Settings(small_model()))


def read(text, said=SAID, files=None, **more):
    launch, notes = accelerate.read_foreign(
        *(text, "run.yaml", 8, architecture("llama3-8b"), said),
        *((files or {}).get,) if files else (),
        **more,
    )
    return launch, notes


def test_what_is_written():
    """8 samples on 4 ranks, 8 times; ZeRO 3 is for DeepSpeed, too."""
    files = exported(dp=4, zero=3, recompute="full")
    config = yaml.safe_load(files["accelerate.yaml"])
    assert config["fsdp_config"] == {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": True,
    }
    trainer = json.loads(files["accelerate-trainer.json"])
    assert trainer == {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 8,
        "max_length": 1024,
        "bf16": True,
    }
    assert json.loads(files["zero3-ds.json"])["zero_optimization"]["stage"] == 3
    assert json.loads(files["zero3-trainer.json"])["gradient_checkpointing"]


def test_replicas_and_ranks_without_shards():
    config = yaml.safe_load(exported(dp=4, zero=2, replicas=2)["accelerate.yaml"])
    assert config["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 2,
        "parallelism_config_dp_shard_size": 4,
    }
    assert not config["fsdp_config"]["fsdp_reshard_after_forward"]
    files = exported(dp=4)
    assert yaml.safe_load(files["accelerate.yaml"])["distributed_type"] == "MULTI_GPU"
    assert "zero3.yaml" not in files


def test_two_configurations_of_an_export_must_agree():
    files = exported(dp=4, zero=3)
    files["zero3-ds.json"] = files["zero3-ds.json"].replace(": 64", ": 128")
    files["zero3-ds.json"] = files["zero3-ds.json"].replace('steps": 8', 'steps": 16')
    with pytest.raises(InvalidPlanError, match=r"^zero3.yaml: expected the plan"):
        accelerate.read(files, small_model())


def test_files_of_users_are_read():
    launch, notes = read(FSDP1)
    assert (launch.zero, launch.dp, launch.recompute) == (2, 8, "full")
    assert (launch.global_batch, launch.sequence_length) == (16, 4096)
    assert launch.overlap == ("weights", "gradients")
    assert notes == (
        "run.yaml: ignored 1 key that nest does not read: compute_environment",
    )
    launch, _ = read(ZERO)
    assert (launch.zero, launch.gradient_bytes, launch.state_bytes) == (3, 2, 12)


def test_what_the_trainer_fills_in():
    document = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2},
    }
    text = f"{ZERO}  deepspeed_config_file: ds.json\n"
    trainer = {**{k: int(v) for k, v in SAID}, "gradient_accumulation_steps": 4}
    files = {
        "ds.json": json.dumps(document),
        "run-trainer.json": json.dumps({**trainer, "gradient_checkpointing": True}),
    }
    launch, _ = read(text, (), files)
    assert (launch.zero, launch.micro_batches, launch.recompute) == (2, 4, "full")
    assert launch.dtype == "bf16"


@pytest.mark.parametrize(
    ("strategy", "zero", "replicas"),
    [
        ("fsdp_sharding_strategy: FULL_SHARD", 3, 1),
        ("fsdp_sharding_strategy: 1", 3, 1),
        ("fsdp_sharding_strategy: '2'", 2, 1),
        ("fsdp_reshard_after_forward: FULL_SHARD", 3, 1),
        ("fsdp_sharding_strategy: HYBRID_SHARD", 3, 2),
        ("fsdp_reshard_after_forward: HYBRID_SHARD_ZERO2", 2, 2),
        ("fsdp_sharding_strategy: 5", 2, 2),
    ],
)
def test_names_and_numbers_of_strategies_are_read(strategy, zero, replicas):
    """Hybrid ones have a replica on each machine."""
    text = FSDP1.replace("fsdp_sharding_strategy: SHARD_GRAD_OP", strategy)
    launch, _ = read(f"{text.replace('bf16', 'BF16')}num_machines: 2\n")
    assert (launch.zero, launch.replicas, launch.dp) == (zero, replicas, 8 // replicas)
    if replicas == 2:
        assert read(text)[0].replicas == 1


def test_precisions_of_deepspeed():
    """It computes in fp16, too; "auto" is what the trainer says."""
    assert read(ZERO.replace("bf16", "fp16"))[0].dtype == "fp16"
    with pytest.raises(InvalidPlanError, match="precision: expected bf16 or fp16, got"):
        read(ZERO.replace("mixed_precision: bf16", "debug: false"))
    text = f"{ZERO}  deepspeed_config_file: ds.json\n".replace("bf16", "no")
    document = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    files = {"ds.json": json.dumps({**document, "made_up": {}})}
    message = "bf16: expected the precision that ds.json leaves to it, got none; pass"
    with pytest.raises(InvalidPlanError, match=message):
        read(text, files=files)
    said = (*SAID, ("bf16", "true"))
    with pytest.raises(InvalidPlanError, match="or pass --ignore made_up if it"):
        read(text, said, files)
    launch, _ = read(text, said, files, ignore=["made_up"])
    assert launch.dtype == "bf16"
    with pytest.raises(InvalidPlanError, match="--ignore: expected keys of run"):
        read(ZERO, ignore=["made_up"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FSDP1.replace("bf16", "fp16"), "mixed_precision: expected bf16, got 'fp16'"),
        (FSDP1.replace(": 8", ": 4"), "num_processes: expected the 8 devices, got 4"),
        (f"{FSDP1}  fsdp_offload_params: true", "plans know no offloading"),
        (f"{FSDP1}  fsdp_made_up: 1", "expected a key that is known, got fsdp_made_up"),
        (FSDP1.replace("  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n", ""),
         "fsdp_auto_wrap_policy: expected TRANSFORMER_BASED_WRAP, got none"),
        (f"{FSDP1}parallelism_config:\n  parallelism_config_tp_size: 2",
         "plans for Accelerate have data ranks alone"),
        (f"{FSDP1}parallelism_config:\n  parallelism_config_dp_shard_size: 3",
         r"expected sizes whose product is the 8 devices, got 1 \* 3"),
        ("[1]", "expected keys with values"),
    ],
)  # fmt: skip
def test_what_plans_cannot_say_is_refused(text, message):
    with pytest.raises(InvalidPlanError, match=message):
        read(text)


def test_batches_are_asked_for():
    message = (
        "^run-trainer.json: max_length: expected a value, got none; pass --say max_le"
    )
    with pytest.raises(InvalidPlanError, match=message):
        read(FSDP1, SAID[:1])
    launch, _ = read(FSDP1)
    assert read(f"{FSDP1}made_up: 1\n", ignore=["made_up"])[0] == replace(launch)
