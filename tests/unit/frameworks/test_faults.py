"""All faults of a launch file at once, and the command line that answers them."""

from __future__ import annotations

import shlex

import pytest

from nest.cli.main import main
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks import accelerate, deepspeed, maxtext, torchtitan
from nest.frameworks.faults import FaultsError
from nest.frameworks.megatron_configs import read_config
from nest.frameworks.shell import read_script
from nest.models.zoo import architecture
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
    assert {line.split(": ")[1] for line in lines} == {
        "--cpu-offloading",
        "--seq-lengths",
    }


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
    begin = (
        "nest: then run: nest import megatron-args run.sh --cluster h100x16 -o p.json "
    )
    assert lines[-1].startswith(begin)
    answers = shlex.split(lines[-1].removeprefix(begin))
    assert {*zip(answers[::2], answers[1::2], strict=True)} == {
        ("--set", "TP=<VALUE>"),
        ("--ignore", "optimizer-cpu-offload"),
        ("--ignore", "hiden-size"),
        ("--say", "hidden-size=1024"),
        ("--say", "seq-length=<N>"),
    }
    words = "run.sh --cluster h100x16 -o p.json --set TP=2 --ignore "
    words += "optimizer-cpu-offload --ignore hiden-size --say hidden-size=1024 "
    code, lines = run(capsys, *words.split(), "--say", "seq-length=1024")
    assert code == 0, lines


DS = (
    "MB=1\ncfg=./ds_config.json\ncat <<EOT > $cfg\n"
    '{"train_micro_batch_size_per_gpu": $MB, "train_batch_size": 64,\n'
    '"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}\nEOT\n'
    f"{RUN} {SHAPE} --deepspeed --deepspeed_config $cfg --zero-stage 1"
)


def speed(text, **more):
    script = read_script(text, "run.sh", more.pop("variables", None))
    return deepspeed.read_launch(script, "run.sh", 8, {}.__getitem__, **more)


@pytest.mark.parametrize(
    ("more", "recompute"),
    [
        ("", "none"),
        ("--checkpoint-activations", "full"),
        ("--recompute-granularity full --recompute-method uniform "
         "--recompute-num-layers 1", "full"),
        ("--recompute-granularity full --recompute-method uniform "
         "--deepspeed-activation-checkpointing", "full"),
        ("--activations-checkpoint-method uniform", "full"),
        ("--recompute-granularity selective", "selective"),
    ],
)  # fmt: skip
def test_megatron_deepspeed_recomputes_as_megatron(more, recompute):
    launch, _, notes = speed(f"{DS} {more}")
    assert launch.recompute == recompute
    assert "ignored" not in "".join(notes)
    with pytest.raises(InvalidPlanError, match="--recompute-num-layers: expected 1"):
        speed(
            f"{DS} --recompute-granularity full --recompute-method uniform "
            "--recompute-num-layers 2"
        )


@pytest.mark.parametrize(
    ("dtype", "more", "zero"),
    [
        ("bf16", "--pipeline-model-parallel-size 2", 1),
        ("bf16", "", 1),
        ("bf16", "--no-pipeline-parallel", 0),
        ("fp16", "--pipeline-model-parallel-size 2", 0),
        ("bf16", "--pipeline-model-parallel-size 8", 0),
    ],
)
def test_a_pipeline_in_bf16_shards_its_optimizer_without_zero(dtype, more, zero):
    """A pipeline of one stage too, but not over a single data rank."""
    text = DS.replace('"stage": 1', '"stage": 0').replace("--zero-stage 1", "")
    text = text.replace("bf16", dtype)
    launch, _, notes = speed(f"{text} {more}")
    assert launch.zero == zero
    assert any("stage 0 counts as 1: DeepSpeed" in note for note in notes) == zero


def test_a_configuration_that_the_script_writes_is_read():
    launch, model, _ = speed(DS)
    assert (launch.zero, launch.micro_batch, launch.global_batch) == (1, 8, 64)
    assert model.layers == 8
    unknown = DS.replace("MB=1\n", "")
    with pytest.raises(
        InvalidPlanError,
        match=r"^run.sh:\d: expected a configuration "
        r"that the script states, got \$MB, which .* --set MB=VALUE$",
    ):
        speed(unknown)
    assert speed(unknown, variables={"MB": "1"})[0] == launch


def test_faults_of_a_script_and_its_configuration_come_together():
    text = DS.replace(
        '"stage": 1', '"stage": 1, "offload_optimizer": {"device": "cpu"}'
    )
    text = text.replace("--seq-length 1024", "").replace(
        '"enabled": true', '"enabled": "auto"'
    )
    with pytest.raises(FaultsError) as caught:
        speed(text)
    assert [x.subject for x in caught.value.faults] == [
        "zero_optimization.offload_optimizer",
        "bf16.enabled",
        "--seq-length",
    ]
    say = {"zero_optimization.offload_optimizer": "null", "bf16.enabled": "true",
           "seq-length": "1024"}  # fmt: skip
    assert speed(text, say=[*say.items()])[0] == speed(DS)[0]


def test_two_sizes_of_batches_say_the_third():
    text = DS.replace('"train_batch_size"', '"gradient_accumulation_steps": "auto", '
                      '"train_batch_size"')  # fmt: skip
    assert speed(text)[0] == speed(DS)[0]
    text = text.replace("64,", '"auto",').replace("--global-batch-size 64", "")
    with pytest.raises(
        InvalidPlanError,
        match=r"train_batch_size: expected a value, got "
        r"'auto', .* --say train_batch_size=VALUE$",
    ):
        speed(text)


def test_what_a_condition_leaves_open_is_asked_for_once():
    """The size of a model decides its shape, as in scripts of Pai-Megatron-Patch."""
    shape = SHAPE.replace("--num-layers 8", "--num-layers $L")
    shape = shape.replace("--hidden-size 1024", "--hidden-size $H")
    text = (
        f"M=$2\nif [ $M = 1B ]; then\n L=8\n H=1024\nelif [[ $M == 7B ]]; then\n "
        f"L=32\n H=4096\nfi\n{RUN} {shape} --lr $3 --seed $4"
    )
    with pytest.raises(FaultsError) as caught:
        launched(text, world=8)
    assert {fault.answers for fault in caught.value.faults} == {("--set", "2=<VALUE>")}
    assert str(caught.value).splitlines()[1] == (
        "run.sh:9: --hidden-size: expected a value that the script states, got $H, "
        "which is set on a condition about $2 in line 7; say it with --set 2=VALUE"
    )
    assert launched(text, world=8, variables={"2": "7B"}).reading.model.layers == 32


def test_options_that_an_argument_of_the_script_decides_on_are_asked_for():
    text = (
        "if [ $1 = true ]; then\n S=--sequence-parallel\n"
        f"elif [ $1 = false ]; then\n S=\nfi\n{RUN} {SHAPE} $S"
        " --tensor-model-parallel-size 2"
    )
    with pytest.raises(
        InvalidPlanError,
        match=r"^run\.sh:4: expected options that the "
        r"script states, got \$S, .* say it with --set 1=VALUE$",
    ):
        launched(text, world=8)
    for said, split in (("true", True), ("false", False)):
        launch = launched(text, world=8, variables={"1": said}).reading.launch
        assert launch.sequence_parallel == split


def test_what_a_condition_decides_on_is_not_asked_for_too():
    """The data type is one of the options that the argument decides on."""
    text = (
        "if [ $1 = bf16 ]; then\n P=--bf16\nelif [ $1 = fp16 ]; then\n P=--fp16\nfi\n"
    )
    text += f"{RUN} {SHAPE.replace('--bf16', '$P')} --lr $2"
    assert "say it with --set 1=VALUE" in str(faults_alone(text))
    assert launched(text, world=8, variables={"1": "fp16"}).reading.launch.dtype == (
        "fp16"
    )


def faults_alone(text, **given):
    with pytest.raises(InvalidPlanError) as caught:
        launched(text, world=8, **given)
    assert not isinstance(caught.value, FaultsError)
    return caught.value


def test_a_value_is_said_once_and_takes_the_place_of_the_script():
    text = f"{RUN} {SHAPE} --normalization Middle --swiglu --swiglu"
    fault = faults_alone(text)
    assert fault.answers == ("--say", "normalization=<VALUE>")
    launched(text, world=8, overrides=[("normalization", "RMSNorm")])
    twice = faults_alone(f"{RUN} {SHAPE} --num-layers 4")
    assert twice.answers == ("--say", "num-layers=<VALUE>")
    launch = launched(f"{RUN} {SHAPE}", world=8, overrides=[("num-layers", "4")])
    assert launch.reading.model.layers == 4


def test_other_models_are_never_left_out():
    """A plan without their experts is one of another model."""
    experts = "--moe-expert-parallel-size 8 --topk 1 --create-moe-param-group"
    with pytest.raises(FaultsError) as caught:
        speed(f"{DS} --num-experts 128 {experts}")
    assert [fault.answers for fault in caught.value.faults] == [()] * 4
    assert speed(f"{DS} --num-experts 1")[0] == speed(DS)[0]
    fault = faults_alone(f"{RUN} {SHAPE} --spec a b")
    assert fault.answers == ()
    one = f"{RUN} {SHAPE} --use-torch-fsdp2"
    answers = faults_alone(one).answers
    pairs = [*zip(answers[::2], answers[1::2], strict=True)]
    said = [tuple(x.split("=")) for name, x in pairs if name == "--say"]
    launch = launched(one, world=8, ignored=["use-torch-fsdp2"], overrides=said)
    assert launch.reading.launch.zero == 3


def test_a_gate_and_squares_are_refused_together():
    """Megatron-LM asserts the same."""
    fault = faults_alone(f"{RUN} {SHAPE} --squared-relu --swiglu")
    assert str(fault).endswith(
        "--squared-relu: expected none with --swiglu, got both; remove one of them"
    )


def test_a_name_that_only_looks_alike_is_no_answer():
    fault = faults_alone(f"{RUN} {SHAPE} --use-mpi")
    assert str(fault).endswith("got --use-mpi; did you mean '--use-mup'?")
    assert fault.answers == ("--ignore", "use-mpi")


def test_a_shape_of_the_checkpoint_is_left_out_where_the_script_says_it():
    text = f"{RUN} {SHAPE} --use-checkpoint-args"
    assert faults_alone(text).answers == ("--ignore", "use-checkpoint-args")
    ignored = launched(text, world=8, ignored=["use-checkpoint-args"])
    assert ignored.reading == launched(f"{RUN} {SHAPE}", world=8).reading


def test_what_is_wrong_under_a_guessed_name_is_no_further_fault():
    text = f"{RUN} {SHAPE}".replace("--hidden-size 1024", "--hiden-size a")
    with pytest.raises(InvalidPlanError) as caught:
        launched(text, world=8)
    assert str(caught.value).splitlines() == [
        "run.sh:1: --hiden-size: expected an argument that is known, got --hiden-size; "
        "did you mean '--hidden-size'?"
    ]


def subjects(read, *given, **named):
    with pytest.raises(FaultsError) as caught:
        read(*given, **named)
    return [fault.subject for fault in caught.value.faults]


JOB = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
enable_cpu_offload = true
[metrics]
made_up = 1
[activation_checkpoint]
mode = "half"
[parallelism]
tensor_parallel_degree = "4"
"""


def test_a_job_file_of_torchtitan_names_all_faults():
    assert subjects(torchtitan.read_foreign, JOB, "job.toml", 8) == [
        "training.enable_cpu_offload",
        "metrics.made_up",
        "parallelism.tensor_parallel_degree",
        "activation_checkpoint.mode",
    ]
    say = [
        ("training.enable_cpu_offload", "false"),
        ("parallelism.tensor_parallel_degree", "4"),
        ("activation_checkpoint.mode", "full"),
    ]
    ignore = ["metrics.made_up"]
    launch, *_ = torchtitan.read_foreign(JOB, "job.toml", 8, say, ignore=ignore)
    assert (launch.tp, launch.dp, launch.recompute) == (4, 2, "full")


def test_weights_that_are_gathered_in_fp8_are_priced_as_others():
    """Once the user says so, which a note tells."""
    key = "quantize.linear.float8.enable_fsdp_float8_all_gather"
    text = JOB.replace("enable_cpu_offload = true\n[metrics]\nmade_up = 1", "")
    text = text.replace('"half"', '"full"').replace('"4"', "4")
    converter = "quantize.linear.float8"
    text = text.replace("[training]", f'converters = ["{converter}"]\n[training]')
    more = "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n"
    with pytest.raises(
        InvalidPlanError, match="plans gather weights in bf16"
    ) as caught:
        torchtitan.read_foreign(text + more, "job.toml", 8)
    assert caught.value.answers == ("--say", f"{key}=false")
    said = [(key, "false")]
    _, _, notes, *_ = torchtitan.read_foreign(text + more, "job.toml", 8, said)
    assert f"{key} (plans gather weights in bf16" in str(notes)
    fault = faults_alone(f"{RUN} {SHAPE} --fp8-format hybrid --fp8-param-gather")
    assert fault.answers == ("--ignore", "fp8-param-gather")


def test_keys_of_torchtitan_under_two_names_are_one_of_the_faults():
    text = JOB.replace("seq_len", "batch_size = 4\nseq_len")
    assert subjects(torchtitan.read_foreign, text, "job.toml", 8)[:2] == [
        "training.batch_size",
        "training.enable_cpu_offload",
    ]


def test_the_command_line_that_answers_a_job_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    words = ["import", "torchtitan", "job.toml", "--cluster", "h100x8", "-o", "p.json"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    *errors, last = capsys.readouterr().err.splitlines()
    assert (ended.value.code, len(errors)) == (2, 4)
    begin = f"nest: then run: nest {' '.join(words)} "
    assert last.startswith(begin)
    answers = last.removeprefix(begin)
    for name, value in (("offload", "false"), ("degree", "4"), ("mode", "full")):
        answers = answers.replace(f"{name}=<VALUE>", f"{name}={value}")
    with pytest.raises(SystemExit) as ended:
        main([*words, *shlex.split(answers)])
    assert ended.value.code == 0, capsys.readouterr().err


def test_a_configuration_of_maxtext_names_all_faults():
    text = (
        "model_name: llama3-8b\nper_device_batch_size: 2\nmax_target_length: four\n"
        "made_up: 1\nremat_policy: half\n"
    )
    found = maxtext.configuration_of(text, "run.yml")
    assert subjects(maxtext.read_foreign, found, "run.yml", 16) == [
        "made_up",
        "max_target_length",
        "remat_policy",
    ]


def test_a_configuration_of_accelerate_names_all_faults():
    """What the trainer does not say, too."""
    text = "distributed_type: FSDP\nmixed_precision: fp4\nmade_up: 1\n"
    model = architecture("llama2-7b")
    assert subjects(accelerate.read_foreign, text, "a.yaml", 8, model) == [
        "made_up",
        "per_device_train_batch_size",
        "max_length",
        "mixed_precision",
    ]


@pytest.mark.parametrize("default", ["${SLURM_NNODES:-1}", '${SLURM_NNODES:-"1"}'])
def test_nodes_of_a_default_are_set(default):
    """The cluster has four nodes of eight; other faults are those of 32 devices."""
    run = RUN.replace("torchrun", "torchrun --nnodes $NNODES")
    text = f"NNODES={default}\n{run} {SHAPE} --tensor-model-parallel-size 16"
    with pytest.raises(
        InvalidPlanError,
        match=r"^run.sh:2: --nproc_per_node 8 and run.sh:1: --nnodes 1: expected the "
        r"32 devices of --cluster, got 8; name a cluster of 8 devices, or pass --set "
        r"SLURM_NNODES=4$",
    ) as caught:
        launched(text, world=32)
    assert caught.value.answers == ("--set", "SLURM_NNODES=4")
    said = launched(text, world=32, variables={"SLURM_NNODES": "4"})
    assert said.reading.launch.dp == 2
    with pytest.raises(InvalidPlanError, match=r"name a cluster of 8 devices$"):
        launched(text.replace("size 16", "size 8"), world=12)
    with pytest.raises(InvalidPlanError, match=r"name a cluster of 8 devices$"):
        launched(text.replace("size 16", "size 8").replace(default, "1"), world=32)


def test_nodes_beside_a_default_of_the_same_value_are_the_scripts_own():
    run = RUN.replace("torchrun", "torchrun --nnodes $NNODES")
    text = f"NODE=${{RANK:-1}}\nNNODES=1\n{run} {SHAPE} --seed $NODE"
    with pytest.raises(InvalidPlanError, match=r"name a cluster of 8 devices$"):
        launched(text, world=32)


PLAIN = """MODEL_ARGS:
  --num-layers: 8
  --hidden-size: 1024
  --num-attention-heads: 16
  --seq-length: 1024
  --micro-batch-size: 1
  --global-batch-size: 64
  --vocab-size: 1024
  --tensor-model-parallel-size: two
  --normalization: Middle
  --bf16: yes please
"""


def test_a_configuration_of_megatron_names_all_faults(tmp_path, monkeypatch, capsys):
    """Keys of the command line win over those of the file, so none is ignored."""
    assert subjects(read_config, PLAIN, "run.yaml", 8) == [
        "MODEL_ARGS.--bf16",
        "--normalization",
        "--tensor-model-parallel-size",
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(PLAIN)
    words = ["run.yaml", "--cluster", "h100x8", "-o", "p.json"]
    code, (*errors, last) = run(capsys, *words)
    assert (code, len(errors)) == (2, 3)
    begin = f"nest: then run: nest import megatron-args {' '.join(words)} "
    answers = last.removeprefix(begin)
    assert "--ignore" not in answers
    for name, value in (("bf16", "true"), ("size", "2"), ("ization", "RMSNorm")):
        answers = answers.replace(f"{name}=<VALUE>", f"{name}={value}")
    code, lines = run(capsys, *words, *shlex.split(answers))
    assert code == 0, lines


def test_questions_come_with_the_faults_of_any_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.json").write_text(
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto", "x": 3, '
        '"bf16": {"enabled": true}}'
    )
    words = "two.json --cluster h100x8 -o p.json"
    with pytest.raises(SystemExit) as ended:
        main(["import", "deepspeed", *words.split()])
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert len(lines) == 5
    assert lines[-1] == (
        f"nest: then run: nest import deepspeed {words} --model '<NAME|config.json>' "
        "--sequence-length '<N>' --ignore x --say "
        "'train_micro_batch_size_per_gpu=<VALUE>'"
    )


def test_a_single_question_has_its_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"{RUN} {SHAPE} --made-up 3\n")
    words = "run.sh --cluster h100x8 -o p.json"
    code, lines = run(capsys, *words.split())
    assert (code, len(lines)) == (2, 2)
    assert lines[1] == (
        f"nest: then run: nest import megatron-args {words} --ignore made-up"
    )


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (
            "torchrun megatron_gpt_pretraining.py model.num_layers=12",
            "model.num_layers",
        ),
        ("python3 -m verl.trainer.main_ppo data.batch=8", "data.batch"),
        ("python run_recipe.py --recipe a train.steps=8", "train.steps"),
    ],
)
def test_keys_of_a_configuration_are_no_arguments(command, key):
    with pytest.raises(
        InvalidPlanError,
        match="^run.sh:1: expected arguments of Megatron-LM such as --num-layers, got "
        rf"a key such as {key}=\d+, which changes a configuration; import that file",
    ):
        launched(command, world=8)
