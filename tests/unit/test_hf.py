"""Configurations of Hugging Face: published models, and bad files.

The values are those of the released configurations; fields that shape
nothing are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nest.errors import InvalidProblemError, UnknownNameError
from nest.models.architectures import Architecture
from nest.models.hf import FAMILIES, from_hf, read_hf
from nest.models.weights import block_weights
from nest.models.zoo import architecture
from tests.models.generate import stored

LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}

CLIP = {
    "model_type": "clip",
    "projection_dim": 768,
    "text_config": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 77,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "vocab_size": 49408,
    },
    "vision_config": {
        "hidden_size": 1024,
        "image_size": 224,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
    },
}

DEEPSEEK = {
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "topk_group": 4,
    "v_head_dim": 128,
    "vocab_size": 129280,
}

QWEN3_MOE = {
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}

OPT = {
    "dropout": 0.1,
    "ffn_dim": 3072,
    "hidden_size": 768,
    "max_position_embeddings": 2048,
    "model_type": "opt",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}

VIT = {
    "hidden_size": 1024,
    "image_size": 224,
    "intermediate_size": 4096,
    "model_type": "vit",
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 16,
}

FALCON = {
    "bias": False,
    "hidden_size": 8192,
    "model_type": "falcon",
    "new_decoder_architecture": True,
    "num_attention_heads": 128,
    "num_hidden_layers": 60,
    "num_kv_heads": 8,
    "parallel_attn": True,
    "vocab_size": 65024,
}

#: Name, configuration, parameters of the released checkpoint less what
#: shapes leave out.
PUBLISHED: list[tuple[str, dict[str, Any], int]] = [
    (
        "gpt2",
        {
            "model_type": "gpt2",
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "resid_pdrop": 0.1,
            "vocab_size": 50257,
        },
        124_439_808,
    ),
    (
        "gpt-neox-20b",
        {
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "max_position_embeddings": 2048,
            "model_type": "gpt_neox",
            "num_attention_heads": 64,
            "num_hidden_layers": 44,
            "tie_word_embeddings": False,
            "vocab_size": 50432,
        },
        20_554_567_680,
    ),
    ("llama3-8b", LLAMA3, 8_030_261_248),
    (
        "mistral-7b",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "model_type": "mistral",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
            "vocab_size": 32000,
        },
        7_241_732_096,
    ),
    (
        "mixtral-8x7b",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "model_type": "mixtral",
            "num_attention_heads": 32,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "sliding_window": None,
            "vocab_size": 32000,
        },
        46_702_792_704,
    ),
    (
        "qwen2.5-7b",
        {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "max_position_embeddings": 131072,
            "model_type": "qwen2",
            "num_attention_heads": 28,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "sliding_window": 131072,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "vocab_size": 152064,
        },
        7_615_616_512,
    ),
    (
        "qwen3-8b",
        {
            "attention_bias": False,
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "max_position_embeddings": 40960,
            "model_type": "qwen3",
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
            "vocab_size": 151936,
        },
        8_190_735_360,
    ),
    ("qwen3-30b-a3b", QWEN3_MOE, 30_532_122_624),
    (
        "gemma-7b",
        {
            "head_dim": 256,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "max_position_embeddings": 8192,
            "model_type": "gemma",
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 16,
            "vocab_size": 256000,
        },
        8_537_680_896,
    ),
    (
        "gemma2-27b",
        {
            "head_dim": 128,
            "hidden_size": 4608,
            "intermediate_size": 36864,
            "max_position_embeddings": 8192,
            "model_type": "gemma2",
            "num_attention_heads": 32,
            "num_hidden_layers": 46,
            "num_key_value_heads": 16,
            "sliding_window": 4096,
            "vocab_size": 256000,
        },
        27_227_128_320,
    ),
    ("deepseek-v3", DEEPSEEK, 671_026_404_352),
    (
        "deepseek-v2-lite",
        {
            "first_k_dense_replace": 1,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "kv_lora_rank": 512,
            "model_type": "deepseek_v2",
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_attention_heads": 16,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 27,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 102400,
        },
        15_706_484_224,
    ),
    (
        "bloom-176b",
        {
            "hidden_dropout": 0.0,
            "hidden_size": 14336,
            "model_type": "bloom",
            "n_head": 112,
            "n_layer": 70,
            "seq_length": 2048,
            "vocab_size": 250880,
        },
        176_247_271_424,
    ),
    ("opt-125m", OPT, 125_239_296),
    (
        "internlm2-7b",
        {
            "bias": False,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "model_type": "internlm2",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "vocab_size": 92544,
        },
        7_737_708_544,
    ),
    ("falcon-40b", FALCON, 41_303_293_952),
    (
        "falcon-7b",
        {
            "bias": False,
            "hidden_size": 4544,
            "model_type": "falcon",
            "multi_query": True,
            "new_decoder_architecture": False,
            "num_attention_heads": 71,
            "num_hidden_layers": 32,
            "parallel_attn": True,
            "vocab_size": 65024,
        },
        6_921_720_704,
    ),
    (
        "bert-large",
        {
            "hidden_dropout_prob": 0.1,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "max_position_embeddings": 512,
            "model_type": "bert",
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "type_vocab_size": 2,
            "vocab_size": 30522,
        },
        335_174_458,
    ),
    (
        "t5-large",
        {
            "d_ff": 4096,
            "d_kv": 64,
            "d_model": 1024,
            "dropout_rate": 0.1,
            "feed_forward_proj": "relu",
            "model_type": "t5",
            "n_positions": 512,
            "num_heads": 16,
            "num_layers": 24,
            "relative_attention_num_buckets": 32,
            "vocab_size": 32128,
        },
        737_668_096,
    ),
    (
        "flan-t5-xl",
        {
            "d_ff": 5120,
            "d_kv": 64,
            "d_model": 2048,
            "feed_forward_proj": "gated-gelu",
            "model_type": "t5",
            "num_decoder_layers": 24,
            "num_heads": 32,
            "num_layers": 24,
            "tie_word_embeddings": False,
            "vocab_size": 32128,
        },
        2_849_757_184,
    ),
    (
        "vit-large",
        {**VIT, "id2label": {str(i): f"LABEL_{i}" for i in range(1000)}},
        304_326_632,
    ),
    ("clip-vit-l-14", CLIP, 427_616_513),
]


def fields_of(name: str) -> dict[str, Any]:
    (found,) = (fields for known, fields, _ in PUBLISHED if known == name)
    return found


@pytest.mark.parametrize(
    ("name", "fields", "parameters"),
    PUBLISHED,
    ids=[name for name, _, _ in PUBLISHED],
)
def test_published_models(
    name: str, fields: dict[str, Any], parameters: int
) -> None:
    assert from_hf(fields, name=name).parameters == parameters


def test_every_family_is_tested() -> None:
    tested = {fields["model_type"] for _, fields, _ in PUBLISHED}
    tested |= set(stored()) | {"kimi_k2"}
    assert tested == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (name, fields)
        for name, fields, _ in PUBLISHED
        if name
        not in ("qwen3-8b", "deepseek-v2-lite", "opt-125m", "falcon-7b")
        and name not in ("flan-t5-xl", "internlm2-7b")
    ],
)
def test_the_zoo_has_the_same_shapes(
    name: str, fields: dict[str, Any]
) -> None:
    """Towers and head are those of the zoo, window and dropout included."""
    model, known = from_hf(fields, name=name), architecture(name)
    assert (model.towers, model.head) == (known.towers, known.head)


def test_what_configurations_say_beyond_weights() -> None:
    model = from_hf(LLAMA3, name="x")
    assert (model.name, model.max_sequence) == ("x", 8192)
    assert model.source == "Hugging Face llama, x"
    first, second = from_hf(fields_of("t5-large")).towers
    assert (first.sequence_length, second.sequence_length) == (None, 128)
    assert from_hf(fields_of("flan-t5-xl")).max_sequence == 512
    calm = from_hf({**OPT, "dropout": 0})
    assert not calm.towers[0].runs[0].block.dropout


@pytest.mark.parametrize(
    ("family", "stated", "window"),
    [
        ("mistral", {"sliding_window": 1024}, 1024),
        ("mistral", {"sliding_window": None}, 0),
        ("mistral", {}, 4096),
        ("mixtral", {"sliding_window": 1024}, 1024),
        ("mixtral", {}, 0),
    ],
)
def test_windows(family: str, stated: dict[str, Any], window: int) -> None:
    """Mistral has one of 4096 tokens unless it says null; Mixtral none."""
    name = {"mistral": "mistral-7b", "mixtral": "mixtral-8x7b"}[family]
    fields = without(fields_of(name), "sliding_window") | stated
    block = from_hf(fields).towers[0].runs[0].block
    assert block.attention.window == window


def test_layers_of_unequal_mixtures() -> None:
    """Step 2 makes layers 1, 3, … sparse; layer 1 is named as dense."""
    model = from_hf(
        {
            **QWEN3_MOE,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "num_hidden_layers": 6,
        }
    )
    found = [(r.block.name, r.count) for r in model.towers[0].runs]
    assert found == [("dense", 3), ("sparse", 1), ("dense", 1), ("sparse", 1)]


def test_falcon_names_its_heads_in_two_ways() -> None:
    fields = {**without(FALCON, "num_attention_heads"), "n_head": 128}
    assert from_hf(fields) == from_hf(FALCON)


def test_an_odd_last_layer_is_local() -> None:
    fields = {**fields_of("gemma2-27b"), "num_hidden_layers": 3}
    names = [block.name for block in from_hf(fields).towers[0].blocks()]
    assert names == ["local", "global", "local"]


@pytest.mark.parametrize(
    ("field", "value"), [("attention_bias", True), ("mlp_bias", True)]
)
def test_biases_of_llama(field: str, value: bool) -> None:
    """Queries and outputs of 4096, keys and values of 1024; 2 f + h."""
    more = from_hf({**LLAMA3, field: value}).parameters - 8_030_261_248
    per_layer = {
        "attention_bias": 4096 + 2 * 1024 + 4096,
        "mlp_bias": 2 * 14336 + 4096,
    }
    assert more == 32 * per_layer[field]


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k not in names}


KNOWN = ", ".join(sorted(FAMILIES))

#: Sizes that most families ask for.
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 100,
}

BAD: list[tuple[dict[str, Any], str]] = [
    (
        {},
        f"model_type: expected one of {KNOWN}, got no such field; add the "
        f"family of the model",
    ),
    (
        {"model_type": 7},
        f"model_type: expected one of {KNOWN}, got 7; add the family of the "
        f"model",
    ),
    (
        without(LLAMA3, "hidden_size"),
        "hidden_size: expected an integer, got no such field; add it or "
        "check model_type",
    ),
    (
        without(fields_of("gpt2"), "n_layer"),
        "n_layer or num_hidden_layers: expected an integer, got no such "
        "field; add it or check model_type",
    ),
    (
        {**LLAMA3, "hidden_size": "4096"},
        'hidden_size: expected an integer, got "4096"; correct its type',
    ),
    (
        {**LLAMA3, "vocab_size": True},
        "vocab_size: expected an integer, got true; correct its type",
    ),
    (
        {**LLAMA3, "num_hidden_layers": 0},
        "num_hidden_layers: expected an integer from 1 to 10000, got 0; "
        "correct the value",
    ),
    (
        {**LLAMA3, "num_hidden_layers": 10**9},
        "num_hidden_layers: expected an integer from 1 to 10000, got "
        "1000000000; correct the value",
    ),
    (
        {**LLAMA3, "vocab_size": 10**12},
        "vocab_size: expected an integer from 1 to 2147483647, got "
        "1000000000000; correct the value",
    ),
    (
        {**LLAMA3, "num_attention_heads": 33},
        "num_attention_heads: expected a divisor of hidden_size = 4096, got "
        "33; correct one of them",
    ),
    (
        {**LLAMA3, "num_key_value_heads": 5},
        "num_key_value_heads: expected a divisor of the 32 attention heads, "
        "got 5; correct one of them",
    ),
    (
        {**LLAMA3, "tie_word_embeddings": "no"},
        'tie_word_embeddings: expected true or false, got "no"; correct its '
        "type",
    ),
    (
        {**OPT, "dropout": "some"},
        'dropout: expected a number, got "some"; correct its type',
    ),
    (
        {**OPT, "dropout": 2},
        "dropout: expected a rate from 0 to 1, got 2; correct the value",
    ),
    (
        {**FALCON, "num_kv_heads": 7},
        "num_kv_heads: expected a divisor of the 128 attention heads, got 7; "
        "correct one of them",
    ),
    (
        {**fields_of("gemma2-27b"), "layer_types": ["full_attention"]},
        "layer_types: expected as many entries as there are layers, 46, got "
        "1; correct one of them",
    ),
    (
        {
            **fields_of("gemma2-27b"),
            "layer_types": ["full_attention"] * 45 + ["holographic"],
        },
        "layer_types: expected entries among full_attention, attention, "
        "sliding_attention, chunked_attention, indexed_attention, "
        'linear_attention, mamba, conv, hybrid, got "holographic"; other '
        "layers are not supported",
    ),
    (
        {**fields_of("gemma2-27b"), "layer_types": "full_attention"},
        'layer_types: expected a list of strings, got "full_attention"; '
        "correct its type",
    ),
    (
        {"model_type": "smollm3", **SMALL, "no_rope_layers": [1, 1, 0]},
        "no_rope_layers: expected as many entries as there are layers, 4, "
        "got 3; correct one of them",
    ),
    (
        {
            "model_type": "hunyuan_v1_moe",
            **SMALL,
            "num_experts": 4,
            "moe_topk": [1, 2, 1, 2],
        },
        "moe_topk: expected one number for all layers, got [1, 2, 1, 2]; "
        "other models are not supported",
    ),
    (
        {
            "model_type": "dbrx",
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "vocab_size": 100,
            "attn_config": {"kv_n_heads": 2},
            "ffn_config": {"hidden_size": 32},
        },
        "ffn_config: hidden_size: expected d_model = 64, got 32; correct the "
        "value",
    ),
    (
        {"model_type": "deberta", **SMALL, "relative_attention": True},
        "relative_attention: expected false, got true; projections of "
        "relative positions are not supported",
    ),
    (
        {"model_type": "deberta-v2", **SMALL, "conv_kernel_size": 3},
        "conv_kernel_size: expected 0, got 3; convolutions of tokens are not "
        "supported",
    ),
    (
        {"model_type": "deberta-v2", **SMALL, "relative_attention": True},
        "share_att_key: expected true, got false; projections of relative "
        "positions are not supported",
    ),
    (
        {"model_type": "deberta-v2", **SMALL, "embedding_size": 16},
        "embedding_size: expected hidden_size = 64, got 16; correct the value",
    ),
    (
        {**VIT, "model_type": "beit", "use_relative_position_bias": True},
        "use_relative_position_bias: expected false, got true; biases of "
        "relative positions are not supported",
    ),
    (
        {
            "model_type": "marian",
            "vocab_size": 100,
            "share_encoder_decoder_embeddings": False,
        },
        "share_encoder_decoder_embeddings: expected true, got false; tables "
        "of their own are not supported",
    ),
    (
        {"model_type": "nemotron_h", **SMALL, "hybrid_override_pattern": "MX"},
        "hybrid_override_pattern: expected entries among M, *, -, E, mamba, "
        "linear_attention, attention, full_attention, mlp, moe, got X; "
        "correct the value",
    ),
    (
        {"model_type": "nemotron_h", **SMALL},
        "layers_block_type: expected a list of layers, got no such field; "
        "add it",
    ),
    (
        {"model_type": "zamba2", **SMALL, "add_bias_linear": True},
        "add_bias_linear: expected false, got true; such models are not "
        "supported",
    ),
    (
        {"model_type": "zamba2", **SMALL, "tie_word_embeddings": False},
        "tie_word_embeddings: expected true, got false; transformers then "
        "shares no blocks either",
    ),
    (
        {"model_type": "zamba2", **SMALL},
        "layers_block_type: expected a list of layers, got no such field; "
        "correct the value",
    ),
    (
        {"model_type": "resnet", "depths": [3, 1, 6, 3]},
        "depths: expected 4 numbers from 2 on, one per entry of "
        "hidden_sizes, got [3, 1, 6, 3]; correct one of them",
    ),
    (
        {"model_type": "resnet", "layer_type": "wide"},
        'layer_type: expected bottleneck or basic, got "wide"; correct the '
        "value",
    ),
    (
        {"model_type": "recurrent_gemma", **SMALL, "block_types": ["other"]},
        "block_types: expected entries among recurrent, attention, got "
        "other; correct the value",
    ),
    (
        {"model_type": "bamba", **SMALL, "mamba_n_heads": 7},
        "mamba_n_heads: expected a divisor of 128 channels, got 7; correct "
        "one of them",
    ),
    (
        {**QWEN3_MOE, "num_experts_per_tok": 129},
        "num_experts_per_tok: expected at most the 128 experts, got 129; "
        "correct one of them",
    ),
    (
        {**QWEN3_MOE, "mlp_only_layers": "0"},
        'mlp_only_layers: expected a list of integers, got "0"; correct its '
        "type",
    ),
    (
        without(DEEPSEEK, "n_routed_experts"),
        "n_routed_experts or num_local_experts or num_experts: expected an "
        "integer, got no such field; add it or check model_type",
    ),
    (
        {**DEEPSEEK, "n_shared_experts": False},
        "n_shared_experts: expected an integer, got false; correct its type",
    ),
    (
        {**DEEPSEEK, "n_group": 7},
        "n_group: expected a divisor of the 256 experts, got 7; correct one "
        "of them",
    ),
    (
        {**DEEPSEEK, "topk_group": 9},
        "topk_group: expected at most the 8 groups, with 8 experts or more, "
        "got 9; correct one of them",
    ),
    (
        {**DEEPSEEK, "first_k_dense_replace": -1},
        "first_k_dense_replace: expected an integer from 0 to 2147483647, "
        "got -1; correct the value",
    ),
    (
        {**DEEPSEEK, "moe_layer_freq": 2},
        "moe_layer_freq: expected 1, got 2; other patterns are not supported",
    ),
    (
        {**DEEPSEEK, "first_k_dense_replace": "3"},
        'first_k_dense_replace: expected an integer, got "3"; correct its '
        "type",
    ),
    (
        {**DEEPSEEK, "first_k_dense_replace": 62},
        "first_k_dense_replace: expected an integer from 0 to the 61 layers, "
        "got 62; correct the value",
    ),
    (
        {**fields_of("t5-large"), "feed_forward_proj": 1},
        "feed_forward_proj: expected a string, got 1; correct its type",
    ),
    (
        {**VIT, "patch_size": 15},
        "patch_size: expected a divisor of image_size = 224, got 15; correct "
        "one of them",
    ),
    (
        without(CLIP, "text_config"),
        "text_config: expected an object, got no such field; add it",
    ),
    (
        {
            **CLIP,
            "vision_config": [{"hidden_size": 1024, "layers": [1, 2, 3]}],
        },
        'vision_config: expected an object, got [{"hidden_size": 1024, '
        '"layers": [1, ...; add it',
    ),
    (
        {**CLIP, "text_config": {"hidden_size": 768}},
        "text_config: num_attention_heads: expected an integer, got no such "
        "field; add it or check model_type",
    ),
]


@pytest.mark.parametrize(("fields", "text"), BAD)
def test_bad_configurations(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        from_hf(fields, where="c.json")
    assert str(caught.value) == f"c.json: {text}"


def test_unknown_families() -> None:
    with pytest.raises(UnknownNameError) as caught:
        from_hf({"model_type": "lama"}, where="c.json")
    text = str(caught.value)
    assert text.startswith("c.json: model_type: expected one of ")
    assert text.endswith("got 'lama'; did you mean 'llama'?")
    assert len(text) < 250


def test_text_models_inside_others() -> None:
    """What is left out of Gemma 3's has the values of its class."""
    model = from_hf(
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
            "vision_config": {},
        },
        name="gemma-3-4b",
    )
    assert model.note == "the text model of gemma3 alone"
    # Of the released checkpoint, whose table has as many rows.
    assert model.parameters == 3_880_263_168
    names = [block.name for block in model.towers[0].blocks()]
    assert names[:6] == ["local"] * 5 + ["global"]


def test_kimi_linear_by_its_own_names() -> None:
    """48 B weights, of which a token visits 3 B, says its model card."""
    fields = {
        "first_k_dense_replace": 1,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "kv_lora_rank": 512,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
        "model_type": "kimi_linear",
        "moe_intermediate_size": 1024,
        "num_attention_heads": 32,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_hidden_layers": 27,
        "num_shared_experts": 1,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 163840,
    }
    model = from_hf(fields)
    blocks = list(model.towers[0].blocks())
    full = [i + 1 for i, block in enumerate(blocks) if block.attention.heads]
    assert full == [4, 8, 12, 16, 20, 24, 27]
    assert model.parameters == pytest.approx(48e9, rel=0.03)
    assert model.active_parameters == pytest.approx(3e9, rel=0.2)


@pytest.mark.parametrize("tied", [False, True])
def test_ties_that_only_the_whole_states(tied: bool) -> None:
    """The text model of Qwen2.5-VL-7B is Qwen2.5-7B."""
    fields = without(fields_of("qwen2.5-7b"), "tie_word_embeddings")
    model = from_hf(
        {
            "model_type": "qwen2_5_vl",
            "text_config": {**fields, "model_type": "qwen2_5_vl_text"},
            "tie_word_embeddings": tied,
        }
    )
    table = 152064 * 3584
    assert model.parameters == 7_615_616_512 - (table if tied else 0)


def test_kimi_k2() -> None:
    """1 T weights, of which a token visits 32 B, says its model card."""
    fields = {
        **DEEPSEEK,
        "first_k_dense_replace": 1,
        "model_type": "kimi_k2",
        "n_routed_experts": 384,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 163840,
    }
    model = from_hf(fields)
    assert model.parameters == pytest.approx(1.03e12, rel=0.005)
    assert model.active_parameters == pytest.approx(32e9, rel=0.03)


def test_old_and_new_names_of_experts() -> None:
    renamed = {**without(QWEN3_MOE, "num_experts"), "num_local_experts": 128}
    assert from_hf(renamed) == from_hf(QWEN3_MOE)


def test_modules_for_multi_token_prediction() -> None:
    """DeepSeek-V3's has 11.5 B weights of its own (its model card).

    A sparse block, a layer from 2 h to h and three norms; its head runs
    twice.
    """
    stated = {**DEEPSEEK, "num_nextn_predict_layers": 1}
    plain, more = from_hf(stated), from_hf(stated, mtp=True)
    sparse = plain.towers[0].runs[1].block
    extra = block_weights(sparse) + 2 * 7168**2 + 3 * 7168
    assert more.parameters - plain.parameters == extra
    assert extra == pytest.approx(11.5e9, rel=0.01)
    tokens = 4096
    assert (more.layers, more.towers[0].modules) == (61, 1)
    assert more.head.predictions == 2
    visited = more.active_parameters - plain.active_parameters
    attention = 2 * tokens**2 * 128 * (192 + 128)
    flops = 2 * tokens * (visited - (1536 + 512) - 5 * 7168)
    flops += attention + 2 * tokens * 129280 * 7168
    assert more.forward_flops(tokens) - plain.forward_flops(tokens) == flops


def test_models_without_such_modules() -> None:
    with pytest.raises(
        InvalidProblemError,
        match=r"^c.json: num_nextn_predict_layers: expected modules for "
        r"multi-token prediction, got none; import the model without them$",
    ):
        from_hf(LLAMA3, where="c.json", mtp=True)


def test_patterns_of_nemotron_h_in_letters_and_words() -> None:
    """One thing per block: M, *, - and E."""
    shared = {
        "model_type": "nemotron_h",
        **SMALL,
        "num_key_value_heads": 2,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 8,
    }
    letters = from_hf({**shared, "hybrid_override_pattern": "M-M*"})
    words = ["mamba", "mlp", "mamba", "attention"]
    assert letters == from_hf({**shared, "layers_block_type": words})
    names = [block.name for block in letters.towers[0].blocks()]
    assert names == ["mamba2", "dense", "mamba2", "global"]


# Files


def read(path: Path, document: object) -> Architecture:
    path.write_text(json.dumps(document))
    return read_hf(path)


def test_names_come_from_the_file_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    path = folder / "config.json"
    assert read(path, LLAMA3).name == "my-model"
    named = {**LLAMA3, "_name_or_path": "meta-llama/Meta-Llama-3-8B"}
    assert read(path, named).name == "Meta-Llama-3-8B"
    assert read(path, {**LLAMA3, "_name_or_path": 3}).name == "my-model"


def test_a_name_of_two_lines_is_refused_by_its_field(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(
        InvalidProblemError,
        match=r"config.json: _name_or_path: expected one line without control "
        r"characters, got 'a\\nb'; remove them$",
    ):
        read(path, {**LLAMA3, "_name_or_path": "a\nb"})


def test_names_tell_models_of_a_family_apart(tmp_path: Path) -> None:
    """A file's own name counts; one that says only the family gets a size."""
    assert read(tmp_path / "big.json", LLAMA3).name == "big"
    folder = tmp_path / "llama"
    folder.mkdir()
    assert read(folder / "config.json", LLAMA3).name == "llama-8.03b"
    assert read(folder / "llama.json", LLAMA3).name == "llama-8.03b"
    small = {"model_type": "llama", **SMALL}
    assert read(folder / "config.json", small).name == "llama-0.153m"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r": line 1: expected JSON, got malformed text \(.+\); check"),
        (
            "[" * 100_000,
            r": expected JSON, got malformed text \(values inside values, "
            r"hundreds deep\); check that it is the right file",
        ),
        (
            "[1]",
            r": expected a JSON object, got \[1\]; pass the model's "
            r"config.json",
        ),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InvalidProblemError, match=message):
        read_hf(path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidProblemError,
        match=r"none.json: expected a readable config.json of Hugging Face, "
        r"got No such file or directory; check the path$",
    ):
        read_hf(tmp_path / "none.json")


def test_a_dropout_rate_larger_than_any_float(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, '
        '"n_positions": 32, "vocab_size": 100, "resid_pdrop": '
        f"{10**400}}}"
    )
    with pytest.raises(
        InvalidProblemError,
        match=r"resid_pdrop: expected a rate from 0 to 1, got 100000",
    ):
        read_hf(path)
