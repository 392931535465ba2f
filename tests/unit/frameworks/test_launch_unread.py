"""What launch lines say that plans cannot: refused or listed, never lost."""

from __future__ import annotations

import json

import pytest

from nest.errors import InvalidPlanError
from nest.frameworks import deepspeed, torchtitan
from nest.models.zoo import architecture
from tests.unit.frameworks.test_launch_scripts import (
    CONFIG,
    OLD,
    SCRIPT,
    launched,
    speed,
    titan,
)


def with_more(more):
    return SCRIPT.replace("--bf16", f"--bf16 {more}", 1)


@pytest.mark.parametrize(
    ("old", "new", "meant"),
    [
        ("--tensor-model-parallel-size", "--tensor-model-parallel",
         "--tensor-model-parallel-size"),
        ("--tensor-model-parallel-size", "--tensor-model-parallel-sizes",
         "--tensor-model-parallel-size"),
        ("--bf16", "--bf16 --num-layers-per-stage 8", "--num-layers"),
        ("--bf16", "--bf16 --tp 2", "--tp-comm-overlap"),
        # What is missing has a name that is written wrongly.
        ("--micro-batch-size", "--micro-batch-sizes", "--micro-batch-size"),
        ("--hidden-size", "--hiden-size", "--hidden-size"),
    ],
)  # fmt: skip
def test_names_that_are_nearly_known_are_refused(old, new, meant):
    assert old in SCRIPT
    with pytest.raises(
        InvalidPlanError,
        match=rf"^run.sh:\d+: --[a-z-]+: expected an argument that is known, "
        rf"got --[a-z-]+; did you mean '{meant}'\?$",
    ):
        launched(SCRIPT.replace(old, new, 1))


def test_other_names_are_listed():
    notes = launched(with_more("--seed 7")).notes
    assert (
        "run.sh: ignored 4 arguments that nest does not read: "
        "--seed, --lr, --save, --train-iters" in notes
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--nonsense-flag 7",
         "--nonsense-flag: expected an argument that is known, got --nonsense-flag; "
         "remove it, or pass --ignore nonsense-flag if it changes no plan$"),
        ("--own_flag", "--own-flag: expected an argument that is known, "
         "got --own_flag"),
        ("--tokenizer-modle x", "--tokenizer-modle: expected an argument that is "
         "known, got --tokenizer-modle; did you mean '--tokenizer-model'"),
    ],
)  # fmt: skip
def test_names_in_no_class_are_refused(more, message):
    with pytest.raises(InvalidPlanError, match=rf"^run.sh:\d+: {message}"):
        launched(with_more(more))


def test_names_that_megatron_has_are_not_taken_for_others():
    more = "--eval-micro-batch-size 1 --moe-router-dtype fp32"
    (note,) = [x for x in launched(with_more(more)).notes if "ignored" in x]
    assert "--eval-micro-batch-size, --moe-router-dtype" in note


def test_names_that_are_read_later_are_not_taken_for_others():
    """``--ffn-hidden-size`` is nearly ``--hidden-size``."""
    assert "--ffn-hidden-size 512" in SCRIPT
    assert "--seq-length 1024" in SCRIPT
    with pytest.raises(
        InvalidPlanError,
        match=r"^run.sh: --seq-length: expected a value, got none; add it",
    ):
        launched(SCRIPT.replace("--seq-length 1024", ""))


def test_options_of_launchers_are_not_listed():
    text = SCRIPT.replace("srun python", "torchrun --master_port 1 --nnodes 2")
    assert "master" not in "".join(launched(text).notes)


def test_scripts_with_a_configuration_say_what_to_import():
    with pytest.raises(
        InvalidPlanError,
        match=r"^run.sh:1: --yaml-cfg: expected arguments, got a "
        r"configuration; import that file: nest import megatron-args FILE",
    ):
        launched("torchrun pretrain_gpt.py --yaml-cfg x.yaml --bf16\n")


@pytest.mark.parametrize(
    ("more", "state", "gradient"),
    [
        # A copy in fp32 beside two moments, or one.
        ("--optimizer adam", 12, 4),
        ("--optimizer sgd", 8, 4),
        ("--optimizer muon", 8, 4),
        ("--use-precision-aware-optimizer", 12, 4),
        # 2 + 1 + 2.
        ("--use-precision-aware-optimizer --main-params-dtype fp16 "
         "--exp-avg-dtype fp8 --exp-avg-sq-dtype bf16", 5, 4),
        ("--use-precision-aware-optimizer --main-grads-dtype bf16 "
         "--grad-reduce-in-bf16", 12, 2),
        # Gradients that are kept in bf16 are summed so.
        ("--use-precision-aware-optimizer --main-grads-dtype bf16", 12, 2),
    ],
)  # fmt: skip
def test_what_the_optimiser_keeps_is_counted(more, state, gradient):
    text = with_more(more)
    if "muon" in more:
        text = text.replace("--use-distributed-optimizer", "")
    launch = launched(text).reading.launch
    assert (launch.state_bytes, launch.gradient_bytes) == (state, gradient)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        *((name, rf"^run.sh:\d+: {name.split()[0]}: expected no such "
           rf"argument, got {[*name.split(), 'it'][1]}; {why}")
          for name, why in (
            ("--hybrid-override-pattern M-M", "it is another model than is"),
            ("--encoder-num-layers 4", "it is another model than is read"),
            ("--retro-add-retriever", "it is another model than is read"),
            ("--standalone-embedding-stage", "say it with an E alone"),
            ("--pipeline-model-parallel-split-rank 1", "plans know no encod"),
            ("--fp8-param-gather", "plans gather weights in two bytes"),
            ("--moe-layer-recompute", "plans recompute no part of a layer"),
            ("--moe-expert-capacity-factor 1.0", "plans drop and pad no tok"),
            ("--cpu-offloading", "plans know no offloading"),
            ("--fine-grained-activation-offloading", "plans know no offload"),
            ("--distribute-saved-activations", "plans keep the inputs of la"),
          )),
        ("--optimizer lion",
         "--optimizer: expected one of adam, sgd, muon, got 'lion'"),
        ("--optimizer sgd --sgd-momentum 0",
         "--sgd-momentum: expected a momentum > 0, got 0; plans keep one"),
        ("--exp-avg-dtype bf16", "--exp-avg-dtype: expected fp32 without "
         "--use-precision-aware-optimizer and Adam, got bf16"),
        ("--use-precision-aware-optimizer --exp-avg-dtype fp64",
         "--exp-avg-dtype: expected one of fp32, fp16, bf16, fp8, got 'fp64'"),
        ("--use-precision-aware-optimizer --main-grads-dtype bf16 "
         "--accumulate-allreduce-grads-in-fp32",
         "--main-grads-dtype: expected fp32 with gradients that are reduced"),
        ("--optimizer-cpu-offload", "run.sh:17: --optimizer-cpu-offload: "
         "expected no such argument, got it; plans know no offloading"),
        ("--attention-backend unfused", "--attention-backend: expected auto, "
         "flash or fused, got unfused; plans keep no scores of attention"),
        ("--recompute-activations --recompute-granularity full "
         "--recompute-method uniform",
         r"--recompute-activations: expected one choice of what is "
         r"recomputed, got run.sh:17: --recompute-granularity full too"),
        ("--pipeline-model-parallel-layout 'Et*4|t*4L' "
         "--decoder-first-pipeline-num-layers 4",
         r"--pipeline-model-parallel-layout: expected no other argument about "
         r"layers of stages, got run.sh:17: --decoder-first-pipeline-num-"
         r"layers too; remove one"),
        ("--pipeline-model-parallel-layout 'Et*4|t*4L' "
         "--num-layers-per-virtual-pipeline-stage 2",
         "got run.sh:17: --num-layers-per-virtual-pipeline-stage too"),
        ("--num-layers-per-virtual-pipeline-stage 2 "
         "--num-virtual-stages-per-pipeline-rank 2",
         "--num-layers-per-virtual-pipeline-stage: expected one number of "
         "chunks, got run.sh:17: --num-virtual-stages-per-pipeline-rank too"),
        ("--num-layers-per-virtual-pipeline-stage 3",
         "expected a divisor of the 4 layers of a stage, got 3"),
    ],
)  # fmt: skip
def test_what_plans_cannot_say_is_refused(more, message):
    with pytest.raises(InvalidPlanError, match=message):
        launched(with_more(more))


def test_first_stages_that_leave_no_even_rest_name_the_stages():
    text = with_more("--decoder-first-pipeline-num-layers 3")
    with pytest.raises(
        InvalidPlanError,
        match=r"--pipeline-model-parallel-size: expected stages that split 8 "
        r"layers evenly beside 3 on the first or the last one, got 4",
    ):
        launched(text.replace("PP=2", "PP=4"))


# How many nodes there are, and arguments of the script

NODES = SCRIPT.replace("#SBATCH --gpus-per-node=8\n", "").replace(
    "srun python", "torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES"
)


def test_nodes_that_the_script_does_not_say_are_those_of_slurm():
    """And so are devices, as the directives say."""
    assert launched(NODES).reading.launch.dp == 4
    devices = NODES.replace(
        "--nproc_per_node 8", "--nproc_per_node $SLURM_GPUS_ON_NODE"
    )
    devices = devices.replace("#SBATCH --nodes=2", "#SBATCH -N 2 --gres=gpu:h100:8")
    assert launched(devices).reading.launch.dp == 4
    split = NODES.replace("TP=${TP:-2}", "TP=$SLURM_GPUS_ON_NODE")
    split = split.replace("#SBATCH --nodes=2", "#SBATCH -N 2\n#SBATCH --gres=gpu:2")
    assert launched(split).reading.launch.tp == 2
    set_too = NODES.replace("TP=", "SLURM_NNODES=4\nTP=", 1)
    with pytest.raises(InvalidPlanError, match="expected the 16 devices of"):
        launched(set_too.replace("#SBATCH --nodes=2", ""))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("$NNODES", r"^run.sh:15: --nnodes: expected a number of nodes that "
         r"the script states, got \$NNODES, which the script does not set; "
         r"say it with --set NNODES=VALUE$"),
        ("$(scontrol x)", "got the output of scontrol; say it with --set "
         "NAME=VALUE, NAME being its variable"),
        ("1:4", "a number of nodes that the script states, got '1:4'"),
    ],
)  # fmt: skip
def test_nodes_that_nobody_says_are_asked_for(nodes, message):
    text = NODES.replace("#SBATCH --nodes=2", "#").replace("$SLURM_NNODES", nodes)
    with pytest.raises(InvalidPlanError, match=message):
        launched(text)
    if nodes == "$NNODES":
        assert launched(text, variables={"NNODES": "2"}).reading.launch.dp == 4


def test_arguments_of_the_script_count_with_their_default():
    text = SCRIPT.replace("${TP:-2}", "${1:-2}")
    found = launched(text)
    assert found.reading.launch.tp == 2
    assert (
        "run.sh:4: $1 is 2, the script's default; --set 1=VALUE gives another"
        in found.notes
    )
    found = launched(text, variables={"1": "4"})
    assert found.reading.launch.tp == 4
    assert "default;" not in "".join(found.notes)
    with pytest.raises(InvalidPlanError, match="say it with --set 1=VALUE"):
        launched(SCRIPT.replace("${TP:-2}", "$1"))


@pytest.mark.parametrize("place", ["--bf16", "--lr 1e-4", "--train-iters 10"])
def test_all_arguments_of_the_script_are_named_as_not_read(place):
    text = SCRIPT.replace(place, f'{place} "$@"')
    assert any(
        "not read: $@, the arguments of the script; what it holds" in note
        for note in launched(text).notes
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('eval "torchrun', '"'),
        ('srun -l bash -c "torchrun', '"'),
        ("srun bash -c 'torchrun", "'"),
    ],
)
def test_texts_that_a_shell_reads_again_are_read(before, after):
    text = SCRIPT.replace("srun python", before).replace(
        "--train-iters 10", f"--train-iters 10{after}"
    )
    inside = "$MODEL" if after == "'" else "${MODEL[*]}"
    text = text.replace('"${MODEL[@]}"', inside)
    text = text.replace("MODEL=(", 'MODEL="').replace(" 0\n)", ' 0"')
    found = launched(text).reading
    assert (found.launch.tp, found.launch.micro_batch) == (2, 8)
    assert found.model.layers == 8


# Configurations of DeepSpeed and torchtitan


def zero(**more):
    return {"zero_optimization": {"stage": 2, **more}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zero_optimisation": {"stage": 3}}, "^ds.json: zero_optimisation: "
         "expected a key that is known, got zero_optimisation; did you mean "
         r"'zero_optimization'\?$"),
        (zero(stages=3), "zero_optimization.stages: expected a key that is "
         "known, got stages; did you mean 'stage'"),
        (zero(offload_optimizer={"device": "cpu"}),
         'zero_optimization.offload_optimizer: expected "none" or '
         'false or null, got "cpu"; plans know no offloading'),
        (zero(offload_param={"device": "nvme"}),
         'offload_param: expected "none" or false or null, got "nvme"; '),
        (zero(cpu_offload=True), "cpu_offload: expected false"),
        (zero(zero_quantized_weights=True), "plans quantise no messages"),
        (zero(mics_shard_size=8), "plans shard over all data ranks of a"),
        ({"communication_data_type": "fp32"},
         'communication_data_type: expected null, got "fp32"; plans reduce'),
        (zero(zero_hpz_partition_size=8), "no second partition of weights"),
        ({"optimizer": {"type": "OneBitAdam"}},
         "optimizer.type: expected one of adam, .*, got OneBitAdam"),
    ],
)  # fmt: skip
def test_keys_that_plans_cannot_say_are_refused(changes, message):
    with pytest.raises(InvalidPlanError, match=message):
        speed(changes)


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        ({"type": "AdamW"}, 12),
        ({"type": "SGD", "params": {"momentum": 0.9}}, 8),
        ({"type": "SGD"}, 4),
        ({"type": "Muon"}, 8),
    ],
)
def test_what_the_optimiser_of_deepspeed_keeps_is_counted(optimizer, state):
    assert speed({"optimizer": optimizer}).state_bytes == state


def test_other_keys_of_deepspeed_are_listed():
    changes = zero(reduce_bucket_size=1, offload_param={"device": "none"})
    document = {**CONFIG, **changes, "scheduler": {}}
    model = architecture("llama2-7b")
    launch, notes = deepspeed.read_foreign(
        json.dumps(document), "ds.json", 8, model, 4096
    )
    assert notes == (
        "ds.json: ignored 3 keys that nest does not read: "
        "zero_optimization.reduce_bucket_size, "
        "zero_optimization.offload_param, scheduler",
    )
    assert launch.zero == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[parallelism]\nfsdp_reshard_after_forwad = 'never'",
         r"^job.toml:17: parallelism.fsdp_reshard_after_forwad: expected a "
         r"key that is known, got fsdp_reshard_after_forwad; did you mean "
         r"'fsdp_reshard_after_forward'\?$"),
        ("[parallelisms]\ntensor_parallel_degree = 2",
         "^job.toml: parallelisms: expected a key that is known, got "
         "parallelisms; did you mean 'parallelism'"),
        ("[optimizer]\nname = 'Lion'", r'job.toml:17: optimizer.name: expected'
         r' "Adam" or "AdamW", got "Lion"; plans keep two moments'),
        ("[optimizer]\nearly_step_in_backward = true",
         "early_step_in_backward: expected false, got true; plans keep all"),
        ("[parallelism]\ndisable_loss_parallel = true", "split the logits"),
        ("[parallelism]\nexpert_parallel_comm_backend = 'deepep'",
         'expected "standard", got "deepep"; plans price the all-to-all'),
        ("[metrics]\nfully_made_up = 1",
         r"^job.toml:17: metrics.fully_made_up: expected a key that is known, got "
         r"fully_made_up; remove it, or pass --ignore metrics.fully_made_up if it "
         r"changes no plan$"),
        ("[training.dataloader]\nnum_wokers = 1", "did you mean 'num_workers'"),
    ],
)  # fmt: skip
def test_keys_of_job_files_that_plans_cannot_say_are_refused(more, message):
    with pytest.raises(InvalidPlanError, match=message):
        titan(f"{OLD}{more}\n")


def test_keys_that_are_to_be_ignored_are():
    text = f"{OLD}[metrics]\nfully_made_up = 1\n"
    read = torchtitan.read_foreign
    job = read(text, "job.toml", 8, ignore=["metrics.fully_made_up"])
    assert job.notes == ("job.toml: ignored 1 key that nest does not read: metrics",)
    for name in ("metrics.log_freq", "made.up"):
        with pytest.raises(
            InvalidPlanError,
            match=f"^--ignore: expected keys of job.toml that nest does not know, got "
            f"'{name}'; remove it$",
        ):
            read(text, "job.toml", 8, ignore=[name])


def test_what_no_converter_reads_is_no_fault():
    float8 = "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n"
    assert titan(f"{OLD}{float8}")[0].dtype == "bf16"
    text = OLD.replace("flavor", "converters = ['quantize.linear.float8']\nflavor")
    with pytest.raises(InvalidPlanError, match="true; plans gather weights in bf16"):
        titan(f"{text}{float8}")


FP8 = ("float8", "quantize.dense.float8", "quantize.linear.float8")


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("written", ["'{}'", "['{}']"])
def test_older_names_of_converters_are_read(name, written):
    converters = f"converters = {written.format(name)}\nflavor"
    text = OLD.replace("flavor", converters)
    section = f"[{name}]\nfilter_fqns = 'output'\nrecipe_name = 'rowwise'\n"
    assert titan(f"{text}{section}")[0].dtype == "fp8"
    refused = f"{text}[{name}]\nenable_fsdp_float8_all_gather = true\n"
    with pytest.raises(InvalidPlanError, match="true; plans gather weights in bf16"):
        titan(refused)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[activation", "[float8]\nenable_float8_linear = true\n[activation"),
        ("seq_len", "enable_float8_linear = true\nseq_len"),
    ],
)
def test_a_switch_was_the_converter_of_fp8(old, new):
    assert titan(OLD.replace(old, new, 1))[0].dtype == "fp8"
    assert titan(OLD.replace(old, new.replace("true", "false"), 1))[0].dtype == "bf16"


def test_sections_of_converters_under_two_names_are_refused():
    text = OLD.replace("flavor", "converters = 'float8'\nflavor")
    sections = (f"[{name}]\nrecipe_name = 'rowwise'\n" for name in FP8[1:])
    with pytest.raises(
        InvalidPlanError,
        match=r"quantize.dense.float8: expected it or quantize.linear.float8, got both",
    ):
        titan(text + "".join(sections))


def test_older_names_that_change_no_plan_are_listed():
    """As in the configurations of torchtitan 0.1 and 0.2."""
    more = """
[job]
print_args = false
[checkpoint]
enable_checkpoint = true
model_weights_only = true
[memory_estimation]
enabled = false
[validation]
enabled = false
[float8]
filter_fqns = ["attention.wq"]
[mx]
filter_fqns = ["output"]
[quantize.moe.float8]
fqns = ["experts"]
"""
    text = OLD.replace("flavor", "tokenizer_path = 'x'\nflavor")
    notes = torchtitan.read_foreign(f"{text}{more}", "job.toml", 8).notes
    assert notes == (
        "job.toml: ignored 5 keys that nest does not read: model.tokenizer_path, job, "
        "checkpoint, memory_estimation, validation",
    )


def test_compilation_had_another_name():
    """Only what is compiled overlaps tensor parallelism."""
    text = OLD.replace("[experimental]", "[experimental]\n{}").replace(
        "seq_len", "compile = {}\nseq_len"
    )
    enabled = "enable_async_tensor_parallel = true"
    assert titan(text.format("true", enabled))[0].overlap[0] == "tp"
    with pytest.raises(InvalidPlanError, match=r"compile.enable: expected true with"):
        titan(text.format("false", enabled))


@pytest.mark.parametrize(
    ("lines", "recompute", "note"),
    [
        ("mode = 'selective'\nselective_ac_option = 'op'", "selective", ""),
        ("mode = 'selective'", "selective", "every second layer whole; the nearest"),
        ("mode = 'selective'\nselective_ac_option = '1'", "full", ""),
    ],
)  # fmt: skip
def test_of_every_second_layer_the_nearest_choice_is_read(lines, recompute, note):
    text = OLD.replace('mode = "full"', lines)
    launch, _, notes, _ = torchtitan.read_foreign(text, "job.toml", 8)
    assert launch.recompute == recompute
    assert [note in each for each in notes] == [True] * bool(note)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("mode = 'selective'\nselective_ac_option = '3'",
         "selective_ac_option: expected 'op', or every .*, got '3'; choose none or"),
        ("mode = 'memory_budget'", "expected one of none, selective, full, got"),
    ],
)  # fmt: skip
def test_other_checkpointing_is_refused(lines, message):
    with pytest.raises(InvalidPlanError, match=message):
        titan(OLD.replace('mode = "full"', lines))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tensor_parallel_degree = 2", "tensor_parallel_degree = 16",
         r"parallelism.tensor_parallel_degree: expected tp to divide the 8 "
         r"key and value heads, got 16 \(tested"),
        ("seq_len = 4096", "seq_len = 4098", r"expected 2 \* tp to divide the 4098"),
    ],
)  # fmt: skip
def test_degrees_that_do_not_divide_the_model_are_refused(old, new, message):
    # 2 data ranks and 2 stages of tp ranks.
    world = 64 if "16" in new else 8
    with pytest.raises(InvalidPlanError, match=message):
        titan(OLD.replace(old, new), world)


def test_one_stage_has_no_schedule():
    text = """
[model]
name = "llama3"
flavor = "8B"
[parallelism]
pipeline_parallel_schedule = "Interleaved1F1B"
"""
    launch, _ = titan(text)
    assert (launch.stages, launch.schedule, launch.zero) == (1, "1f1b", 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fully_made_up": 7}, "^ds.json: fully_made_up: expected a key that is known, "
         "got fully_made_up; remove it, or pass --ignore fully_made_up if"),
        ({"torch_autocast": {"enabled": True}}, "plans compute in the data type of"),
        ({"zero_optimization": 3}, "zero_optimization: expected a section of keys"),
    ],
)  # fmt: skip
def test_unknown_keys_of_deepspeed_are_refused(changes, message):
    with pytest.raises(InvalidPlanError, match=message):
        speed(changes)


def test_defaults_of_deepspeed_are_its_own():
    """ZeRO 3 overlaps, the others do not; sections that are off change nothing."""
    off = {"elasticity": {"enabled": False}}
    for stage, overlap in ((2, ()), (3, ("gradients",))):
        changes = {"zero_optimization": {"stage": stage}, **off}
        assert speed(changes).overlap == overlap
    old = {**CONFIG, "bfloat16": CONFIG["bf16"]}
    del old["bf16"]
    model = architecture("llama2-7b")
    launch, _ = deepspeed.read_foreign(json.dumps(old), "ds.json", 8, model, 4096)
    assert launch.dtype == "bf16"


def test_offloading_of_job_files_is_refused():
    text = OLD.replace("seq_len", "enable_cpu_offload = true\nseq_len")
    with pytest.raises(
        InvalidPlanError,
        match=r"training.enable_cpu_offload: expected false, got true; plans "
        "know no offloading",
    ):
        titan(text)


def test_other_keys_of_job_files_are_listed():
    text = f"{OLD}[optimizer]\nname = 'AdamW'\nlr = 1\n[compile]\nbackend = 'x'\n"
    launch, _, notes, _ = torchtitan.read_foreign(text, "job.toml", 8)
    assert notes == (
        "job.toml: ignored 2 keys that nest does not read: optimizer, compile.backend",
    )
    assert launch.tp == 2
    assert torchtitan.read_foreign(OLD, "job.toml", 8)[2] == ()
