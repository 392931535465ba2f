"""YAML configurations of Megatron-LM, NeMo and Megatron-Bridge."""

from __future__ import annotations

import pytest

from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks.configs import Config
from nest.frameworks.megatron_configs import read_config
from nest.frameworks.megatron_model import comparable
from nest.frameworks.scripts import read_launch
from nest.models.zoo import architecture

#: The run that all configurations below describe, as a launch line.
SCRIPT = """python pretrain_gpt.py --num-layers 8 --hidden-size 256 \\
    --ffn-hidden-size 512 --num-attention-heads 8 --group-query-attention \\
    --num-query-groups 4 --seq-length 1024 --max-position-embeddings 1024 \\
    --position-embedding-type rope --vocab-size 1024 --swiglu \\
    --untie-embeddings-and-output-weights --normalization RMSNorm \\
    --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
    --sequence-parallel --micro-batch-size 2 --global-batch-size 64 --bf16 \\
    --use-distributed-optimizer --overlap-grad-reduce \\
    --recompute-granularity full --recompute-method uniform \\
    --recompute-num-layers 1
"""

MEGATRON = """language_model:
  num_layers: 8
  hidden_size: 256
  ffn_hidden_size: 512
  num_attention_heads: 8
  num_query_groups: 4
  kv_channels: null
  hidden_dropout: 0.0
  attention_dropout: 0.0
  add_bias_linear: False
  activation_func: swiglu
  gated_linear_unit: False
  normalization: RMSNorm
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 1
  num_moe_experts: null
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: True
  bf16: True
  fp16: False
micro_batch_size: 2
global_batch_size: 64
group_query_attention: False
untie_embeddings_and_output_weights: True
position_embedding_type: rope
max_position_embeddings: 1024
seq_length: ${SEQ}
vocab_size: 1024
use_distributed_optimizer: True
overlap_grad_reduce: True
num_layers_per_virtual_pipeline_stage: null
"""

NEMO = """name: megatron_gpt
trainer:
  devices: 8
  num_nodes: 2
  precision: bf16
  accumulate_grad_batches: 1
exp_manager:
  size: ${multiply:${model.tensor_model_parallel_size}, 2}
model:
  micro_batch_size: 2
  global_batch_size: 64
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: ${.tensor_model_parallel_size}
  sequence_parallel: True
  encoder_seq_length: 1024
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 8
  hidden_size: 256
  ffn_hidden_size: ${multiply:2, ${.hidden_size}}
  num_attention_heads: 8
  num_query_groups: 4
  hidden_dropout: 0.0
  attention_dropout: 0.0
  bias: False
  activation: fast-swiglu
  normalization: rmsnorm
  position_embedding_type: rope
  share_embeddings_and_output_weights: False
  megatron_amp_O2: True
  fp8: False
  fp8_hybrid: True
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  activations_checkpoint_num_layers: 1
  data:
    data_prefix: ???
    seq_length: ${model.encoder_seq_length}
  optim:
    name: distributed_fused_adam
    overlap_grad_sync: True
"""

BRIDGE = """_target_: megatron.bridge.training.config.ConfigContainer
train:
  micro_batch_size: 2
  global_batch_size: 64
dataset:
  sequence_length: 1024
ddp:
  use_distributed_optimizer: true
  grad_reduce_in_fp32: true
  overlap_grad_reduce: true
  overlap_param_gather: false
  num_distributed_optimizer_instances: 1
  data_parallel_sharding_strategy: no_shard
comm_overlap:
  tp_comm_overlap: false
  overlap_grad_reduce: null
checkpoint:
  ckpt_format: torch_dist
mixed_precision: bf16_mixed
model:
  _target_: megatron.bridge.models.GPTModelProvider
  activation_func:
    _target_: torch.nn.functional.silu
  num_layers: 8
  hidden_size: 256
  ffn_hidden_size: 512
  num_attention_heads: 8
  num_query_groups: 4
  hidden_dropout: 0.0
  attention_dropout: 0.0
  add_bias_linear: false
  gated_linear_unit: true
  normalization: RMSNorm
  share_embeddings_and_output_weights: false
  position_embedding_type: rope
  max_position_embeddings: 1024
  seq_length: 1024
  vocab_size: 1024
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  recompute_granularity: full
  recompute_method: uniform
  recompute_num_layers: 1
  mtp_num_layers: null
"""

PLAIN = """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 8
  --hidden-size: 256
  --ffn-hidden-size: 512
  --num-attention-heads: 8
  --group-query-attention: true
  --num-query-groups: 4
  --seq-length: ${SEQ}
  --max-position-embeddings: 1024
  --position-embedding-type: rope
  --vocab-size: 1024
  --swiglu: true
  --squared-relu: false
  --untie-embeddings-and-output-weights: true
  --normalization: RMSNorm
  --disable-bias-linear: true
  --attention-dropout: 0.0
  --hidden-dropout: 0.0
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 2
  --sequence-parallel: true
  --micro-batch-size: 2
  --global-batch-size: 64
  --bf16: true
  --use-distributed-optimizer: true
  --overlap-grad-reduce: true
  --recompute-granularity: full
  --recompute-method: uniform
  --recompute-num-layers: 1
  --wandb-exp-name: run-TP${TP}-${COMMENT}
"""

TEXTS = {"megatron": MEGATRON, "nemo": NEMO, "bridge": BRIDGE, "plain": PLAIN}
VARIABLES = {"SEQ": "1024"}
OVERRIDES = {"nemo": [("vocab-size", "1024"), ("model.ffn_hidden_size", "512")]}


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("nemo", "fp8: False", "fp8: True\n  fp8_params: True"),
        ("bridge", "ddp:\n", "ddp:\n  fp8_param_gather: true\n"),
    ],
)
def test_weights_that_are_gathered_in_fp8_are_left_out_when_asked(name, old, new):
    text = TEXTS[name].replace(old, new)
    with pytest.raises(InvalidPlanError, match="plans gather weights in two bytes"):
        read(name, text)
    launched = read(name, text, ignored=["fp8-param-gather"])
    assert "(plans gather weights in two bytes" in str(launched.notes)


def test_weights_in_fp8_count_only_where_fp8_is_on():
    text = NEMO.replace("fp8: False", "fp8: False\n  fp8_params: True")
    assert read("nemo", text).reading == read("nemo", NEMO).reading


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("nemo", "  num_layers: 8", "  make_vocab_size_divisible_by: 32\n"
         "  tokenizer:\n    library: megatron\n    type: GPT2BPETokenizer\n"
         "  num_layers: 8"),
        ("bridge", "  vocab_size: 1024", "  make_vocab_size_divisible_by: 32\n"
         "tokenizer:\n  tokenizer_type: HuggingFaceTokenizer\n"
         "  tokenizer_model: gpt2"),
    ],
)  # fmt: skip
def test_tokenizers_of_configurations_say_the_vocabulary(name, old, new):
    """And by what its rows are padded."""
    overrides = [pair for pair in OVERRIDES.get(name, []) if pair[0] != "vocab-size"]
    model = read(name, TEXTS[name].replace(old, new), overrides).reading.model
    assert model.head.outputs == 50257
    assert model.head.row_multiple == 32


def test_the_shape_of_another_model_says_no_vocabulary():
    """GPT-2 has no gates, and no pieces of sentences."""
    old = "num_layers: 8\n  hidden_size: 256\n  ffn_hidden_size: ${multiply:2, "
    text = NEMO.replace(f"{old}${{.hidden_size}}}}\n  num_attention_heads: 8",
                        "num_layers: 12\n  hidden_size: 768\n  ffn_hidden_size: 3072\n"
                        "  num_attention_heads: 12")  # fmt: skip
    text = text.replace("num_query_groups: 4", "num_query_groups: null")
    assert "hidden_size: 768" in text
    with pytest.raises(InvalidPlanError, match="expected the size of the vocabulary"):
        read("nemo", text, [])
    plain = text.replace("fast-swiglu", "gelu")
    assert read("nemo", plain, []).reading.model.head.outputs == 50257
    library = "  tokenizer:\n    library: sentencepiece\n  num_layers: 12"
    with pytest.raises(InvalidPlanError, match="GPTSentencePieceTokenizer does not"):
        read("nemo", plain.replace("  num_layers: 12", library), [])


def test_dumps_of_bridge_say_chunks_twice():
    """Their layout and its number of chunks, and two sizes of vocabularies."""
    more = "pipeline_model_parallel_layout: Et*2|t*2|t*2|t*2L\n"
    more += "  virtual_pipeline_model_parallel_size: 2\n"
    more += "  original_max_position_embeddings: 4096"
    text = BRIDGE.replace(
        "recompute_granularity", f"{more}\n  recompute_granularity", 1
    )
    text += "tokenizer:\n  tokenizer_type: NullTokenizer\n  vocab_size: 32000\n"
    reading = read("bridge", text).reading
    assert reading.launch.virtual_stages == 2
    assert reading.model.head.outputs == 1024
    with pytest.raises(
        InvalidPlanError,
        match="virtual_pipeline_model_parallel_size: expected 2, as many as the layout",
    ):
        read(
            "bridge",
            text.replace("parallel_size: 2\n  orig", "parallel_size: 4\n  orig"),
        )


def test_latent_attention_has_no_groups_of_queries():
    latent = "multi_latent_attention: true\n  kv_lora_rank: 64\n  kv_channels: 32"
    text = BRIDGE.replace("num_query_groups: 4", latent)
    model = read("bridge", text).reading.model
    assert model.towers[0].last.attention.key_value_rank == 64


def test_configurations_say_what_exports_need():
    """Rotary positions, norms and router: no cost has them, but the model does."""
    names = {
        "nemo": "layernorm_epsilon: 1e-6\n  rotary_base: 500000\n"
        "  rotary_percentage: 0.5\n  num_moe_experts: 4\n  moe_ffn_hidden_size: 512",
        "bridge": "layernorm_epsilon: 1.0e-06\n  rotary_base: 500000.0\n"
        "  rotary_percent: 0.5\n  num_moe_experts: 4\n  moe_ffn_hidden_size: 512",
    }
    for name, stated in names.items():
        more = f"{stated}\n  moe_router_score_function: sigmoid\n"
        more += "  moe_router_pre_softmax: true\n  moe_router_topk: 2\n"
        text = TEXTS[name].replace("num_layers: 8", f"{more}  num_layers: 8")
        details = read(name, text).reading.model.details
        assert details.norm_epsilon == 1e-6
        assert (details.rotary.base, details.rotary.fraction) == (500000, 0.5)
        assert (details.router.scores, details.router.normalized) == ("sigmoid", False)
    long = "position_embedding_type: yarn\n  yarn_rotary_scaling_factor: 4.0\n"
    long += "  yarn_original_max_position_embeddings: 512\n  yarn_beta_slow: 2"
    text = BRIDGE.replace("position_embedding_type: rope", long)
    rotary = read("bridge", text).reading.model.details.rotary
    assert (rotary.scaling, rotary.factor, rotary.beta_slow) == ("yarn", 4, 2)
    assert rotary.original_length == 512


def read(name, text=None, overrides=None, world=16, **more):
    text = TEXTS[name] if text is None else text
    more.setdefault("variables", VARIABLES if "${SEQ}" in text else {})
    return read_config(
        text,
        "run.yaml",
        world,
        overrides=OVERRIDES.get(name, []) if overrides is None else overrides,
        **more,
    )


@pytest.mark.parametrize("name", TEXTS)
def test_every_age_is_the_launch_line(name):
    there = read_launch(SCRIPT, "run.sh", 16).reading
    here = read(name).reading
    assert here.launch == there.launch
    assert comparable(here.model, 1024) == comparable(there.model, 1024)


def test_defaults_are_named_as_the_file_names_them():
    note, _ = read("nemo").notes
    assert note.startswith("not in the file, so NeMo's defaults: ")
    assert "model.kv_channels" in note
    assert "model.context_parallel_size" in note
    assert "--" not in note
    note, _ = read("plain").notes
    assert "not in the file, so Megatron-LM's defaults: " in note
    assert "--kv-channels" in note


@pytest.mark.parametrize(
    ("name", "more", "listed"),
    [
        ("megatron", "lr: 2.5e-4\nsgd_momentum: 0.9\nsave: null\n",
         "group_query_attention, lr, sgd_momentum"),
        # Sections of which nothing is read, as a whole; ??? says nothing.
        ("nemo", "    sched:\n      name: Cosine\n      min_lr: 1e-5\n",
         "name, exp_manager, model.optim.sched"),
        ("bridge", "optimizer: {optimizer: adam, lr: 1e-4}\nrng: {seed: 1}\n",
         "_target_, model._target_, model.activation_func, optimizer.lr, rng"),
        ("plain", "MODE: pretraining\n",
         "ENV_VARS, MODE, MODEL_ARGS.--wandb-exp-name"),
        # Nearly known, and other keys of the framework.
        ("megatron", "decoder_seq_length: 8\nadd_position_embedding: false\n",
         "group_query_attention, decoder_seq_length, add_position_embedding"),
        ("bridge", "  tp_comm_overlap_rs: true\n  fp8_margin: 0\n",
         "_target_, model._target_, model.activation_func, "
         "model.tp_comm_overlap_rs, model.fp8_margin"),
    ],
)  # fmt: skip
def test_keys_that_nobody_reads_are_listed(name, more, listed):
    notes = read(name, TEXTS[name] + more).notes
    count = listed.count(",") + 1
    text = f"run.yaml: ignored {count} keys that nest does not read: {listed}"
    assert text in notes


def test_what_is_said_beside_the_file_is_listed_or_refused():
    notes = read("bridge", overrides=[("seed", "1"), ("model.x", "2")]).notes
    (note,) = [x for x in notes if "ignored" in x]
    assert note.endswith("model.activation_func, model.x, --seed")
    with pytest.raises(
        InvalidPlanError,
        match=r"^--say model.num_layer: expected a key that is known, got "
        r"num_layer; did you mean 'num_layers'\?$",
    ):
        read("bridge", overrides=[("model.num_layer", "2")])
    with pytest.raises(
        InvalidPlanError,
        match=r"--vocb-size: expected an argument that is known, got "
        r"--vocb-size; did you mean 'model.vocab_size'\?$",
    ):
        read("bridge", overrides=[("vocb-size", "2")])


def test_batches_that_grow_are_named():
    """The plan counts with the last size."""
    text = MEGATRON + "rampup_batch_size: [32, 32, 65324160]\n"
    reading, notes = read("megatron", text)
    assert reading.launch.global_batch == 64
    assert (
        "run.yaml:35: rampup_batch_size: the global batch grows to its last "
        "size, with which the plan counts; steps before are shorter" in notes
    )
    script = SCRIPT.replace("--bf16", "--bf16 --rampup-batch-size 32 32 9999")
    notes = read_launch(script, "run.sh", 16).notes
    assert any("run.sh:8: --rampup-batch-size: the global" in x for x in notes)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        # Twice and differently, with both places.
        ("nemo", "seq_length: ${model.encoder_seq_length}", "seq_length: 512",
         r"run.yaml:15: model.encoder_seq_length and run.yaml:37: "
         r"model.data.seq_length: expected them to say the same, got 1024 and "
         r"512; correct one of them"),
        ("bridge", "sequence_length: 1024", "sequence_length: 2048",
         r"run.yaml:37: model.seq_length and run.yaml:6: "
         r"dataset.sequence_length: expected them to say the same, got 1024 "
         r"and 2048"),
        ("bridge", "grad_reduce_in_fp32: true", "grad_reduce_in_fp32: false",
         r"run.yaml:9: ddp.grad_reduce_in_fp32 and run.yaml:19: "
         r"mixed_precision: expected them to say the same, got false and "
         r"bf16_mixed"),
        ("bridge", "overlap_grad_reduce: null", "overlap_grad_reduce: false",
         r"ddp.overlap_grad_reduce and run.yaml:16: "
         r"comm_overlap.overlap_grad_reduce: expected them to say the same"),
        ("nemo", "devices: 8", "devices: 4",
         r"run.yaml:3: trainer.devices 4 and run.yaml:4: trainer.num_nodes 2: "
         r"expected the 16 devices of --cluster, got 8; name a cluster of 8"),
        ("nemo", "tensor_model_parallel_size: 2",
         "tensor_model_parallel_size: 8",
         r"run.yaml:3: trainer.devices 8 and run.yaml:4: trainer.num_nodes 2: "
         r"expected devices for 64 ranks of a data rank \(run.yaml:12: "
         r"model.tensor_model_parallel_size 8, run.yaml:13: "
         r"model.pipeline_model_parallel_size 8\), got 16"),
        ("nemo", "  num_layers: 8", "  num_layers: 8\n  num_layers: 9",
         r"run.yaml:18: model.num_layers: expected it once, got it in line 17 "
         r"too; remove one"),
        # Not said, or not known.
        ("nemo", "  precision: bf16\n", "",
         r"run.yaml: trainer.precision: expected a value, got none; add it, "
         r"or pass --say trainer.precision=VALUE$"),
        ("bridge", "  normalization: RMSNorm\n", "",
         r"run.yaml: model.normalization: expected a value, got none; add it, "
         r"or pass --say model.normalization=VALUE or --model NAME"),
        ("bridge", "mixed_precision: bf16_mixed\n", "",
         r"mixed_precision.bf16: expected a value, got none"),
        ("megatron", "seq_length: ${SEQ}", "seq_length: null",
         r"run.yaml: --seq-length: expected a value, got none; add it, or "
         r"pass --say seq-length=N"),
        ("megatron", "${SEQ}", "${LENGTH}",
         r"run.yaml:30: seq_length: expected a value that the file states, "
         r"got \$LENGTH, which the file does not set; say it with --set "
         r"LENGTH=VALUE"),
        ("nemo", "sequence_parallel: True", "sequence_parallel: ${oc.env:SP}",
         r"run.yaml:14: model.sequence_parallel: expected a value that the "
         r"file states, got \$SP, which the file does not set; pass --say "
         r"model.sequence_parallel=VALUE"),
        ("nemo", "encoder_seq_length: 1024",
         "encoder_seq_length: ${model.data.seq_length}",
         r"model.encoder_seq_length: expected a value, got "
         r"\$\{model.data.seq_length\}, which is itself"),
        ("nemo", "  activations_checkpoint_granularity: full\n", "",
         r"run.yaml: model.activations_checkpoint_granularity: expected a "
         r"value with model.activations_checkpoint_method, got none; pass "
         r"--say model.activations_checkpoint_granularity=full for versions"),
        # Nearly known, before what is missing for that.
        ("megatron", "  num_layers:", "  num_layer:",
         r"^run.yaml:2: language_model.num_layer: expected a key that is "
         r"known, got num_layer; did you mean 'num_layers'\?$"),
        ("nemo", "overlap_grad_sync", "overlap_grads_sync",
         r"^run.yaml:40: model.optim.overlap_grads_sync: expected a key that "
         r"is known, got overlap_grads_sync; did you mean "
         r"'overlap_grad_sync'\?$"),
        ("nemo", "  megatron_amp_O2", "  megatron_amp_o2",
         r"did you mean 'megatron_amp_O2'\?$"),
        ("bridge", "checkpoint:", "checkpoints:",
         r"^run.yaml:17: checkpoints: expected a key that is known, got "
         r"checkpoints; did you mean 'checkpoint'\?$"),
        ("plain", "--bf16: true", "--bf16: true\n  --num-layer: 8",
         r"^run.yaml:27: MODEL_ARGS.--num-layer: expected an argument that is "
         r"known, got --num-layer; did you mean 'MODEL_ARGS.--num-layers'"),
        # Out of range, or beyond plans.
        ("megatron", "vocab_size:", "cpu_offloading: true\nvocab_size:",
         r"run.yaml:31: cpu_offloading: expected no such argument, got it; "
         r"plans know no offloading"),
        ("bridge", "checkpoint:",
         "optimizer: {optimizer_cpu_offload: true}\ncheckpoint:",
         r"run.yaml:17: optimizer.optimizer_cpu_offload: expected no such "
         r"argument, got it"),
        ("nemo", "fast-swiglu", "swish",
         r"run.yaml:25: model.activation: expected one of gelu, .*, got "
         r"swish"),
        ("nemo", "precision: bf16", "precision: 32",
         r"trainer.precision: expected one of bf16, bf16-mixed, 16, 16-mixed, "
         r"got 32"),
        ("nemo", "fp8: False\n  fp8_hybrid: True", "fp8: True",
         r"run.yaml:30: model.fp8: expected fp8_hybrid or fp8_e4m3 with it, "
         r"got neither"),
        ("nemo", "megatron_amp_O2: True", "megatron_amp_O2: False",
         r"run.yaml:29: model.megatron_amp_O2: expected true with a sharded "
         r"optimizer, got false"),
        ("nemo", "megatron_amp_O2: True", "megatron_amp_O2: often",
         r"model.megatron_amp_O2: expected true or false, got often"),
        ("nemo", "accumulate_grad_batches: 1", "accumulate_grad_batches: 4",
         r"run.yaml:6: trainer.accumulate_grad_batches: expected 1, got 4; "
         r"plans know no other"),
        ("nemo", "  fp8: False", "  fsdp: True",
         r"model.fsdp: expected false, got true"),
        ("nemo", "  data:", "  encoder:\n    num_layers: 4\n  data:",
         r"model.encoder.num_layers: expected no such key, got 4"),
        ("bridge", "recompute_method: uniform\n  recompute_num_layers: 1\n"
         "  mtp_num_layers: null", "recompute_method: block\n"
         "  recompute_num_layers: 4\n  mtp_num_layers: 1",
         r"run.yaml:43: model.recompute_method: expected uniform with "
         r"--mtp-num-layers, got block"),
        ("bridge", "  sequence_parallel: true", "  sequence_parallel: 1",
         r"model.sequence_parallel: expected true or false, got 1"),
        ("bridge", "num_layers: 8", "num_layers: [{a: 1}]",
         r"model.num_layers: expected a value, got sections"),
        ("bridge", "num_layers: 8",
         "num_layers: 8\n  pipeline_model_parallel_layout: [[E], [L]]",
         r"model.pipeline_model_parallel_layout: expected a text such as "
         r"Et\*8\|t\*8L, got a list"),
        ("megatron", "activation_func: swiglu\n  gated_linear_unit: False",
         "activation_func: gelu\n  gated_linear_unit: True\n"
         "  ffn_hidden_size: null",
         r"expected it once"),
        ("plain", "--bf16: true", "--bf16: yes please",
         r"run.yaml:26: MODEL_ARGS.--bf16: expected true or false, got yes "
         r"please"),
        ("plain", "MODEL_ARGS", "ARGS",
         r"run.yaml: expected sections language_model and model_parallel .*, "
         r"got ENV_VARS, ARGS; pass another file, or the launch script"),
        ("nemo", "trainer:\n", "trainer:\n  strategy:\n    a: 1\n",
         r"expected sections .*, got trainer, exp_manager, model"),
        ("plain", "ENV_VARS:", "ENV_VARS: [",
         r"run.yaml:\d+: expected YAML, got a syntax error"),
    ],
)  # fmt: skip
def test_broken_configurations_are_refused(name, old, new, message):
    assert old in TEXTS[name]
    with pytest.raises(InvalidPlanError, match=message):
        read(name, TEXTS[name].replace(old, new, 1))


def test_variables_that_the_file_has_not_are_refused():
    with pytest.raises(
        InvalidOptionError,
        match=r"^--set SEQ: expected a variable that run.yaml uses, got none",
    ):
        read("nemo", variables=VARIABLES)


def test_files_without_keys_are_refused():
    with pytest.raises(InvalidPlanError, match="expected YAML with keys, got"):
        read("plain", "- a\n- b\n")


def test_gates_without_swiglu_need_their_width():
    text = MEGATRON.replace("activation_func: swiglu", "activation_func: gelu")
    text = text.replace("gated_linear_unit: False", "gated_linear_unit: True")
    assert read("megatron", text).reading.model == read("megatron").reading.model
    text = text.replace("  ffn_hidden_size: 512\n", "")
    with pytest.raises(
        InvalidPlanError, match=r"language_model.ffn_hidden_size: expected a"
    ):
        read("megatron", text)


def test_weights_in_fp32_only_are_counted_so():
    """Without megatron_amp_O2: 4 + 4 + 8 bytes, of which layers count 2."""
    text = NEMO.replace("megatron_amp_O2: True", "x: 1").replace(
        "distributed_fused_adam\n    overlap_grad_sync: True", "fused_adam"
    )
    reading, notes = read("nemo", text)
    launch = reading.launch
    assert (launch.weight_bytes, launch.gradient_bytes) == (2, 4)
    assert (launch.state_bytes, launch.zero) == (10, 0)
    assert notes[-1] == (
        "without model.megatron_amp_O2 weights and gradients are in fp32"
    )


@pytest.mark.parametrize(
    ("name", "old", "new", "field", "expected"),
    [
        ("nemo", "fp8: False", "fp8: True", "dtype", "fp8"),
        ("nemo", "overlap_grad_sync: True", "grad_sync_dtype: bf16",
         "gradient_bytes", 2),
        ("nemo", "sequence_parallel: True",
         "sequence_parallel: True\n  virtual_pipeline_model_parallel_size: 2",
         "virtual_stages", 2),
        ("megatron", "num_layers_per_virtual_pipeline_stage: null",
         "num_layers_per_virtual_pipeline_stage: 2", "virtual_stages", 2),
        ("bridge", "num_layers: 8\n",
         "num_layers: 8\n  num_layers_in_first_pipeline_stage: 3\n",
         "even_layers", None),
        ("bridge", "bf16_mixed", "fp16_mixed", "dtype", "fp16"),
        ("bridge", "mtp_num_layers: null", "mtp_num_layers: 1", "mtp", 1),
        ("bridge", "mtp_num_layers: null", "mtp_num_layers: 2\n"
         "  pipeline_model_parallel_layout: Et*5|t*3m*2L", "mtp", 2),
        ("plain", "--bf16: true", "--bf16: true\n  --fp8-format: hybrid",
         "dtype", "fp8"),
    ],
)  # fmt: skip
def test_keys_of_their_own_are_read(name, old, new, field, expected):
    assert old in TEXTS[name]
    text = TEXTS[name].replace(old, new, 1)
    if new == "fp16_mixed":
        text = text.replace("grad_reduce_in_fp32: true", "bucket_size: null")
    assert getattr(read(name, text).reading.launch, field) == expected


def test_lists_are_values():
    """Experts in the last 4 of 8 blocks, windows of 512 tokens."""
    text = BRIDGE.replace(
        "  num_layers: 8\n",
        "  num_layers: 8\n  num_moe_experts: 4\n"
        "  moe_layer_freq: [0, 0, 0, 0, 1, 1, 1, 1]\n"
        "  window_size: [511, 0]\n",
    )
    model = read("bridge", text).reading.model
    blocks = list(model.towers[0].blocks())
    assert [block.mlp.experts for block in blocks] == [0] * 4 + [4] * 4
    assert {block.attention.window for block in blocks} == {512}


def test_a_model_gives_what_the_file_does_not_say():
    lines = BRIDGE.splitlines()
    start = lines.index("  num_layers: 8")
    end = lines.index("  tensor_model_parallel_size: 2")
    text = "\n".join((*lines[:start], *lines[end:], ""))
    model = architecture("llama2-7b")
    with pytest.raises(InvalidPlanError, match="or --model NAME"):
        read("bridge", text)
    reading = read("bridge", text, model=model).reading
    assert comparable(reading.model, 1024) == comparable(model, 1024)
    # What it says is not the model's: Llama has no biases.
    text = text.replace("  sequence", "  add_bias_linear: true\n  sequence")
    block = read("bridge", text, model=model).reading.model.towers[0].runs[0]
    assert block.block.mlp.biases


def test_interpolations_are_looked_up():
    config = Config(
        "a: {b: 3, c: '${.b}', d: {e: '${..c}', f: '${a.d.e}'}}\n"
        "x: ${a.b}-1\ny: ${oc.env:Y,4}\nz: ???\nn: null\nw: ${a}\n",
        "f",
        {"Y": "7"},
    )
    assert [config.get(f"a.{x}").value for x in ("b", "c", "d.e", "d.f")] == ([3] * 4)
    assert config.get("x").unknown == "${a.b}-1"
    assert config.get("y").value == 7
    assert config.get("z") is config.get("n") is config.get("q") is None
    assert config.get("w").unknown == "$a, which the file does not set"


def test_merged_sections_are_read():
    config = Config("b: &b {x: 1, y: 2}\na:\n  <<: *b\n  y: 3\n", "f")
    assert (config.get("a.x").value, config.get("a.y").value) == (1, 3)
