"""Every argument of Megatron-LM by its class, and what older ones say today."""

from __future__ import annotations

import pytest

from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks.faults import FaultsError
from nest.frameworks.megatron_configs import read_config
from nest.frameworks.megatron_model import model_flags
from nest.frameworks.megatron_options import MEGATRON
from nest.frameworks.scripts import read_launch
from nest.models.operators.base import vocabulary_rows
from nest.models.zoo import architecture

RUN = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 1024 --micro-batch-size 1 "
    "--vocab-size 32000 --bf16 --global-batch-size 64"
)


def read(more, text=RUN, world=8):
    return read_launch(f"{text} {more}", "run.sh", world)


def launch_of(more):
    return read(more).reading.launch


def attentions_of(more):
    blocks = read(more).reading.model.towers[0].blocks()
    return [block.attention for block in blocks]


def test_every_argument_has_one_class():
    texts = (*MEGATRON.harmless.values(), *MEGATRON.older.harmless.values())
    read = (MEGATRON.values, MEGATRON.switches, MEGATRON.others, MEGATRON.older.read)
    names = [
        *(f"--{name}" for name in MEGATRON.present),
        *(f"--{text.partition('=')[0]}" for x in (*texts, *read) for text in x.split()),
        *MEGATRON.refusals,
    ]
    assert len(names) == len({*names}) == len(MEGATRON.classed)


def test_what_follows_a_switch_may_hold_arguments():
    """A variable that the script does not set is no value of ``--no-load-optim``."""
    notes = read("--no-load-optim $EXTRA --seed $SEED").notes
    assert (
        "run.sh:1: not read: $EXTRA, which the script does not set; what it holds is "
        "left out" in notes
    )
    assert "SEED" not in "".join(notes)


# Recomputation as older versions have it (01-old-recompute-flags)


@pytest.mark.parametrize(
    "more",
    [
        "--checkpoint-activations",
        "--checkpoint-activations --checkpoint-num-layers 1",
        "--checkpoint-activations --deepspeed-activation-checkpointing",
        "--activations-checkpoint-method uniform",
        "--activations-checkpoint-method uniform --activations-checkpoint-num-layers 1",
        "--activations-checkpoint-method block --activations-checkpoint-num-layers 8",
        "--recompute-granularity full --recompute-method uniform",
    ],
)
def test_older_flags_recompute_whole_layers(more):
    assert launch_of(more).recompute == "full"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--checkpoint-activations --checkpoint-num-layers 2",
         "--checkpoint-num-layers: expected 1 with the method uniform, got 2"),
        ("--activations-checkpoint-method block --activations-checkpoint-num-layers 2",
         "--activations-checkpoint-num-layers: expected all 8 layers of a chunk"),
        ("--checkpoint-activations --partition-activations",
         "--partition-activations: expected no such argument, got it; plans keep the"),
        ("--model-parallel-size 2 --tensor-model-parallel-size 4",
         "--model-parallel-size: expected no --tensor-model-parallel-size beside it, "
         "got run.sh:1: --tensor-model-parallel-size 4; remove one"),
    ],
)  # fmt: skip
def test_older_flags_are_refused_by_their_names(more, message):
    with pytest.raises(InvalidPlanError, match=f"^run.sh:1: {message}"):
        read(more)


def test_degrees_and_batches_of_2019_are_read():
    """Without gradient accumulation: eight samples on each of four data ranks."""
    text = RUN.replace("--micro-batch-size 1", "--batch-size 8")
    text = text.replace("--global-batch-size 64", "--warmup .01 --DDP-impl local")
    reading, notes = read("--model-parallel-size 2", text)
    launch = reading.launch
    assert (launch.tp, launch.dp) == (2, 4)
    assert (launch.micro_batch, launch.global_batch) == (32, 32)
    assert (
        "the global batch is run.sh:1: --batch-size 8 on each of 4 data ranks; --say "
        "global-batch-size=N gives another" in notes
    )


# Batches (08-global-batch-invented)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("", "expected a value, got none; add it, or pass --say global-batch-size=N"),
        ("--rampup-batch-size 8 8 1000", "expected a value, got none; add it"),
        ("--step-batch-size-schedule 0:384 200B:768",
         "expected a value, got none, and a batch that grows to 768; pass --say "
         "global-batch-size=768 for the last steps"),
    ],
)  # fmt: skip
def test_a_batch_is_asked_for(more, message):
    with pytest.raises(InvalidPlanError, match=f"--global-batch-size: {message}"):
        read(more, RUN.replace("--global-batch-size 64", ""))


def test_the_last_batch_of_a_schedule_counts_with_a_note():
    notes = read("--step-batch-size-schedule 0:32,1B:64").notes
    assert any("--step-batch-size-schedule: the global batch grows" in x for x in notes)


# Other models and what plans do not know (02, 05)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--experimental-attention-variant gated_delta_net --linear-attention-freq 4",
         "expected no such argument, got gated_delta_net; it is another model"),
        ("--experimental-attention-variant dsa", "got dsa; it is another model"),
        ("--hybrid-layer-pattern M*M*", "it is another model than is read"),
        ("--moe-latent-size 128", "it is another model than is read"),
        ("--no-rope-freq 4", "expected 0, got 4; it is another model than is read"),
        ("--curriculum-learning-legacy", "plans have one length of samples"),
        ("--spec a.b c", "--spec: expected local, got a.b c; it is another model"),
        ("--cpu-optimizer", "plans know no offloading"),
        ("--cpu-offloading-num-layers 1", "expected 0, got 1; plans know no off"),
        ("--zero-stage=3", "--zero-stage: expected 0, got 3; its configuration says "
         "more; import both with nest import deepspeed FILE"),
        ("--deepspeed --deepspeed_config x.json", "nest import deepspeed FILE"),
        ("--ds-sequence-parallel-size 2", "by --context-parallel-size"),
        ("--enable-zbh1-pipeline", "such schedules are not read"),
        ("--fp4-format e2m1", "in one of bf16, fp16 and fp8"),
        ("--mlp-chunks-for-training 2", "plans run MLPs in one piece"),
        ("--context-parallel-size 2 --cp-comm-type a2a",
         "--cp-comm-type: expected p2p or allgather with --context-parallel-size"),
        ("--use-megatron-fsdp --ckpt-format fsdp_dtensor",
         "--data-parallel-sharding-strategy: expected a value, got none"),
        ("--position-embedding-type relative", "expected one of learned_absolute"),
    ],
)  # fmt: skip
def test_what_changes_the_plan_is_refused_by_name(more, message):
    with pytest.raises(InvalidPlanError, match=message.replace("*", r"\*")):
        read(more)


@pytest.mark.parametrize(
    "more",
    [
        "--zero-stage 0 --ds-sequence-parallel-size 1 --mlp-chunks-for-training 1",
        "--cpu-offloading-num-layers 0 --outer-dp-sharding-strategy no_shard",
        "--cp-comm-type a2a --linear-attention-freq 4 --dsa-indexer-topk 8",
        "--num-experts 1 --moe-expert-parallel-size 1 --moe-train-capacity-factor 1.0",
        "--no-rope-freq 0",
        "--num-experts 0 --mlp-type standard --encoder-tensor-model-parallel-size 0",
    ],
)
def test_values_that_change_nothing_are_read(more):
    assert launch_of(more) == launch_of("")


@pytest.mark.parametrize(
    "program", ["pretrain_bert", "a/pretrain_t5", "train_rl", "text_generate"]
)
def test_programs_of_other_models_are_refused(program):
    with pytest.raises(
        InvalidPlanError,
        match=r"^run.sh:1: expected a program that trains a decoder, such as "
        r"pretrain_gpt.py, got \w+.py; describe the model with 'nest import hf'",
    ):
        read("", RUN.replace("pretrain_gpt", program))


def test_what_is_ignored_is_named():
    text = f"{RUN} --made-up-flag 7 --cpu-optimizer"
    ignored = ("made-up-flag", "cpu-optimizer")
    launched = read_launch(text, "run.sh", 8, ignored=ignored)
    assert launched.reading == read("").reading
    assert launched.notes[-1] == (
        "run.sh: left out, as --ignore says: made-up-flag, cpu-optimizer "
        "(plans know no offloading)"
    )


def test_keys_of_configurations_are_refused_or_ignored():
    """Names and values as those of arguments; false and the default change nothing."""
    text = """MODEL_ARGS:
  --num-layers: 8
  --hidden-size: 1024
  --num-attention-heads: 16
  --seq-length: 1024
  --micro-batch-size: 1
  --global-batch-size: 64
  --vocab-size: 1024
  --bf16: true
  --cpu-optimizer: false
  --cpu-offloading-num-layers: 0
"""
    assert read_config(text, "run.yaml", 8).reading.launch.global_batch == 64
    for key in ("--moe-latent-size: 64", "--made-up-flag: 7"):
        name = key.partition(":")[0]
        more = f"{text}  {key}\n"
        with pytest.raises(InvalidPlanError, match=f"{name}: expected"):
            read_config(more, "run.yaml", 8)
        launched = read_config(more, "run.yaml", 8, ignored=(name[2:],))
        assert f"as --ignore says: {name[2:]}" in launched.notes[-1]
    with pytest.raises(InvalidOptionError, match="--ignore made-up: expected a key"):
        read_config(text, "run.yaml", 8, ignored=("made-up",))


def test_no_command_ignores_what_makes_another_model():
    text = f"{RUN} --experimental-attention-variant dsa --cpu-optimizer"
    with pytest.raises(FaultsError) as caught:
        read("", text)
    answers = {fault.subject: fault.answers for fault in caught.value.faults}
    assert answers == {
        "--experimental-attention-variant": (),
        "--cpu-optimizer": ("--ignore", "cpu-optimizer"),
    }


# Shapes


def test_values_of_forks_are_read():
    more = "--num-key-value-heads 4 --normalization rmsnorm --swiglu"
    (block,) = {*read(more).reading.model.towers[0].blocks()}
    assert block.attention.kv_heads == 4
    assert not block.layer_norm
    (attention,) = {*attentions_of("--attention-head-type multiquery")}
    assert attention.kv_heads == 1


def test_windows_leave_every_second_layer_out():
    """In Megatron layers count from 1: the second one attends to all tokens."""
    more = "--window-size 127,0 --window-attn-skip-freq 2"
    assert [x.window for x in attentions_of(more)] == [128, 0] * 4
    more = "--window-size 127,0 --window-attn-skip-freq [1]*6+[0]*2"
    assert [x.window for x in attentions_of(more)] == [128] * 6 + [0] * 2


def test_parts_of_attention_are_read():
    (attention,) = {*attentions_of("--softmax-type learnable --qk-l2-norm")}
    assert attention.sinks
    assert attention.query_key_norm
    assert attention.norm_over == "nothing"


@pytest.mark.parametrize(
    ("more", "learned", "rotary"),
    [
        ("", 1024, False),
        ("--position-embedding-type absolute", 1024, False),
        ("--position-embedding-type alibi", 0, False),
        ("--use-alibi-position-embeddings", 0, False),
        ("--no-position-embedding", 0, False),
        ("--position-embedding-type none", 0, False),
        ("--position-embedding-type yarn", 0, True),
        ("--use-rotary-position-embeddings --no-position-embedding", 0, True),
    ],
)
def test_positions_are_learned_rotated_or_neither(more, learned, rotary):
    tower = read(more).reading.model.towers[0]
    assert tower.learned_positions == learned
    assert tower.runs[0].block.attention.rotary == rotary


@pytest.mark.parametrize(
    ("more", "vocabulary"),
    [
        ("--merge-file gpt2-merges.txt", 50257),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model $X", 32000),
        ("--tokenizer-model meta-llama/Llama-3.1-8B", 128256),
        ("--pad-vocab-size-to 250880", 250880),
        ("--padded-vocab-size 128256", 128256),
    ],
)
def test_vocabularies_of_tokenizers_are_known(more, vocabulary):
    text = RUN.replace("--vocab-size 32000", "")
    assert read(more, text).reading.model.head.outputs == vocabulary


@pytest.mark.parametrize(
    ("divisor", "tp", "rows"),
    [(128, 1, 50304), (1, 1, 50257), (64, 8, 6336), (256, 1, 50432), (1024, 8, 7168)],
)
def test_vocabularies_are_padded_as_the_script_says(divisor, tp, rows):
    """To a multiple of the divisor times tp; of padded sizes nothing is."""
    more = f"--make-vocab-size-divisible-by {divisor} --tensor-model-parallel-size {tp}"
    model = read(more, RUN.replace("32000", "50257")).reading.model
    head, tower = model.head, model.towers[0]
    assert head.outputs == 50257
    assert vocabulary_rows(tower.vocabulary, tp, tower.row_multiple) == rows
    assert head.row_multiple == tower.row_multiple
    written = dict(model_flags(model, 1024, tp))
    stated = written.get("--make-vocab-size-divisible-by", (128,))
    assert stated == (divisor,) or divisor == 128
    padded = read("", RUN.replace("--vocab-size 32000", "--padded-vocab-size 50400"))
    assert padded.reading.model.head.row_multiple == 1


def test_bloom_is_read_to_the_weight():
    """As its script has it: 72 layers and embeddings on 12 stages.

    Its model card says 176,247,271,424 parameters.
    """
    more = (
        "--num-layers 70 --hidden-size 14336 --num-attention-heads 112 --seq-length "
        "2048 --micro-batch-size 2 --global-batch-size 2048 --rampup-batch-size 192 16 "
        "9_765_625 --embed-layernorm --bf16 --position-embedding-type alibi "
        "--checkpoint-activations --pad-vocab-size-to 250880 --pp-partition-method "
        "'type:transformer|embedding' --tensor-model-parallel-size 4 "
        "--pipeline-model-parallel-size 12 --sync-tp-duplicated-parameters"
    )
    reading = read(more, "python pretrain_gpt.py", world=384).reading
    assert reading.model.parameters == 176_247_271_424
    assert [chunk.layers for chunk in reading.launch.chunks] == [5, *[6] * 10, 5]
    assert (reading.launch.dp, reading.launch.recompute) == (8, "full")


def test_deepseek_is_read_to_the_weight():
    more = (
        "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 "
        "--num-attention-heads 128 --kv-channels 128 --seq-length 4096 "
        "--micro-batch-size 1 --global-batch-size 512 --bf16 --swiglu "
        "--position-embedding-type rope --normalization RMSNorm "
        "--untie-embeddings-and-output-weights --disable-bias-linear "
        "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim "
        "128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm "
        "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 "
        "--hidden-dropout 0 "
        "--moe-shared-expert-intermediate-size 2048 --moe-layer-freq "
        "'([0]*3+[1]*58)' --moe-router-num-groups 8 --moe-router-group-topk 4 "
        "--tokenizer-model deepseek-ai/DeepSeek-V3 --expert-model-parallel-size 32"
    )
    reading = read(more, "python pretrain_gpt.py", world=32).reading
    assert reading.model.parameters == architecture("deepseek-v3").parameters
