"""Models as ``transformers`` builds them, of sizes drawn at random.

``python -m tests.models.generate`` writes ``tests/data/models.json``: for
every family configurations as that package saves them, and how many
parameters the model has that it builds of them on the meta device. Sizes are
small; which fields are drawn is :data:`DRAWN`, with what a family needs
besides in :data:`OTHERS`. ``models-flops.json`` has configurations that the
package takes by default, and what PyTorch counts in a forward pass of them.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nest.models.architectures import Architecture
from nest.models.hf import from_hf
from nest.models.hf.vision import RESNET_PIXELS

#: Configurations of each family that are stored.
STORED_PER_FAMILY = 2

STORED = Path(__file__).parents[1] / "data" / "models.json"
STORED_FLOPS = STORED.with_name("models-flops.json")

Draw = Callable[[random.Random], Any]


def _of(*values: Any) -> Draw:
    return lambda rng: rng.choice(values)


def _upto(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


_EITHER = _of(True, False)


def _each(names: str, draw: Draw) -> dict[str, Draw]:
    """Return several fields that are drawn alike, in this order."""
    return dict.fromkeys(names.split(), draw)


def _sizes(heads: str, hidden: str, kv: str | None) -> Callable[..., dict]:
    """Draw heads, key and value heads that divide them, and a width."""

    def draw(rng: random.Random) -> dict[str, Any]:
        count = rng.choice((4, 8, 12))
        found = {heads: count, hidden: count * rng.choice((8, 16, 24))}
        if kv is not None:
            found[kv] = rng.choice([n for n in (1, 2, 4) if count % n == 0])
        return found

    return draw


_USUAL = _sizes("num_attention_heads", "hidden_size", "num_key_value_heads")
_EQUAL = _sizes("num_attention_heads", "hidden_size", None)


def _whole(rng: random.Random) -> dict[str, Any]:
    """Draw heads that together are as wide as the residual stream."""
    found = _USUAL(rng)
    found["head_dim"] = found["hidden_size"] // found["num_attention_heads"]
    return found


def _one_bias(rng: random.Random) -> dict[str, Any]:
    """Draw biases of all linear layers or of none."""
    return {
        **_USUAL(rng),
        **dict.fromkeys(("bias", "qkv_bias"), rng.random() < 0.5),
    }


def _channels(rng: random.Random) -> dict[str, Any]:
    """Draw a width, and heads of Mamba-2 that divide twice of it."""
    return {**_USUAL(rng), "mamba_n_heads": rng.choice((4, 8))}


def _expanded(rng: random.Random) -> dict[str, Any]:
    """Draw a width, and the channels of Mamba as a multiple of it."""
    hidden, factor = 32 * rng.choice((1, 2, 3)), rng.choice((1, 2))
    return {
        "hidden_size": hidden,
        "expand": factor,
        "intermediate_size": factor * hidden,
    }


def _divided(rng: random.Random) -> dict[str, Any]:
    """Draw a width, and heads of Mamba-2 that are twice as wide together."""
    heads, size = rng.choice((4, 8)), rng.choice((8, 16))
    return {
        "hidden_size": heads * size // 2,
        "expand": 2,
        "num_heads": heads,
        "head_dim": size,
    }


def _griffin(rng: random.Random) -> dict[str, Any]:
    """Draw heads and a width, which is that of the recurrence too."""
    found = _EQUAL(rng)
    width = found["hidden_size"]
    return {**found, "lru_width": width}


def _halves(rng: random.Random) -> dict[str, Any]:
    """Draw an encoder and a decoder of one width."""
    heads = rng.choice((2, 4))
    return {
        "d_model": 8 * heads * rng.choice((1, 2)),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": rng.choice((2, 4)),
        "encoder_layers": rng.randint(1, 4),
        "decoder_layers": rng.randint(1, 4),
    }


def _two_towers(rng: random.Random) -> dict[str, Any]:
    """Draw a tower that sees and one that reads."""
    image = {"image_size": 32, "patch_size": rng.choice((4, 8))}
    text = {"vocab_size": rng.randint(99, 300), "max_position_embeddings": 20}
    usual = {"num_hidden_layers": 3, "intermediate_size": 50}
    return {
        "vision_config": {**_EQUAL(rng), **usual, **image},
        "text_config": {**_EQUAL(rng), **usual, **text},
    }


#: Classes of a classifier, two of which go without saying.
LABELS = {"num_labels": _of(2, 5)}

#: Fields that are drawn wherever a configuration has them.
DRAWN: dict[str, Draw] = {
    **_each("num_hidden_layers n_layer n_layers num_layers", _upto(2, 7)),
    **_each(
        "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff",
        _upto(20, 300),
    ),
    "head_dim": _of(8, 16, 32),
    "vocab_size": _upto(100, 999),
    "max_position_embeddings": _of(32, 64, 100),
    **_each(
        "tie_word_embeddings attention_bias attention_out_bias mlp_bias "
        "qkv_bias use_bias bias use_qkv_bias lm_head_bias use_qk_norm "
        "qk_layernorm",
        _EITHER,
    ),
    "moe_intermediate_size": _upto(8, 99),
    **_each("num_experts num_local_experts", _of(4, 6, 8)),
    **_each("n_routed_experts moe_num_experts", _of(4, 8)),
    **_each("num_experts_per_tok moe_k", _of(1, 2, 3)),
    **_each(
        "n_shared_experts num_shared_experts moe_num_shared_experts",
        _of(1, 2),
    ),
    **_each(
        "shared_expert_intermediate_size shared_intermediate_size",
        _upto(8, 99),
    ),
    **_each("n_group topk_group", _of(1)),
    "q_lora_rank": _of(12, 24),
    "kv_lora_rank": _of(8, 20),
    "qk_nope_head_dim": _of(8, 16),
    "qk_rope_head_dim": _of(4, 8),
    "v_head_dim": _of(8, 12),
    "index_n_heads": _of(2, 4),
    "index_head_dim": _of(8, 16),
    **_each("first_k_dense_replace num_dense_layers", _of(0, 1, 2)),
    "linear_num_key_heads": _of(2, 4),
    "linear_num_value_heads": _of(4, 8),
    **_each("linear_key_head_dim linear_value_head_dim", _of(8, 16)),
    "use_sliding_window": _EITHER,
    "max_window_layers": _of(1, 2),
    **_each("layer_types mlp_layer_types no_rope_layers", lambda _rng: None),
    "pad_token_id": _of(0),
    "bos_token_id": _of(1),
    "eos_token_id": _of(2),
}

_BAMBA = {
    "": _channels,
    "mamba_n_groups": _of(1, 2),
    "mamba_d_state": _of(8, 16),
    "mamba_expand": 2,
    "mamba_d_head": "auto",
    "mamba_conv_bias": _EITHER,
    "mamba_proj_bias": _EITHER,
}

#: What a family needs besides, or instead; a function draws some together.
OTHERS: dict[str, dict[str, Any]] = {
    "clip": {
        "": _two_towers,
        "projection_dim": _upto(8, 40),
    },
    "aria_text": {
        "moe_num_experts": 4,
        "moe_topk": 2,
        "moe_num_shared_experts": _of(1, 2),
    },
    "biogpt": {"": _EQUAL},
    "ctrl": {"": _sizes("n_head", "n_embd", None), "dff": _upto(20, 99)},
    "glm_moe_dsa": {
        "num_hidden_layers": 4,
        "indexer_types": _of(None, ["full", "shared", "full", "shared"]),
    },
    "hyperclovax": {"use_post_norm": _EITHER},
    "modernbert-decoder": {
        "": _EQUAL,
        "norm_bias": _EITHER,
        "classifier_bias": _EITHER,
        "decoder_bias": _EITHER,
    },
    "openai-gpt": {"": _sizes("n_head", "n_embd", None), "n_positions": 50},
    "deberta": {
        "": _EQUAL,
        "legacy": _EITHER,
        "type_vocab_size": _of(0, 2),
    },
    "deberta-v2": {
        "": _EQUAL,
        "legacy": _EITHER,
        "type_vocab_size": _of(0, 2),
        "relative_attention": _EITHER,
        "position_biased_input": _EITHER,
        "share_att_key": True,
        "position_buckets": _of(-1, 16),
        "norm_rel_ebd": _of("none", "layer_norm"),
        "pos_att_type": ["c2p", "p2c"],
    },
    "distilbert": {"": _sizes("n_heads", "dim", None), "hidden_dim": 99},
    "electra": {"": _EQUAL, "embedding_size": _of(16, 24)},
    "modernbert": {
        "": _EQUAL,
        "norm_bias": _EITHER,
        "classifier_bias": _EITHER,
        "decoder_bias": _EITHER,
    },
    "switch_transformers": {
        "": _sizes("num_heads", "d_model", None),
        "d_kv": _of(8, 16),
        "num_layers": 6,
        "tie_word_embeddings": True,
        "num_sparse_encoder_layers": _of(2, 3),
        "num_decoder_layers": 6,
        "num_sparse_decoder_layers": _of(0, 3),
        "router_bias": _EITHER,
    },
    "bloom": {"": _sizes("n_head", "hidden_size", None)},
    "codegen": {"": _sizes("n_head", "n_embd", None), "rotary_dim": 8},
    "dbrx": {
        "tie_word_embeddings": False,
        "": lambda _rng: {"d_model": 64, "n_heads": 8},
        "attn_config": _of(
            {"kv_n_heads": 2, "rope_theta": 1e4},
            {"kv_n_heads": 4, "rope_theta": 1e4},
        ),
        "ffn_config": {
            "hidden_size": 64,
            "ffn_hidden_size": 40,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    },
    "ernie4_5_moe": {"moe_layer_interval": _of(1, 2)},
    "falcon": {
        "": _sizes("num_attention_heads", "hidden_size", "num_kv_heads"),
        "ffn_hidden_size": _upto(20, 300),
        "new_decoder_architecture": _EITHER,
        "parallel_attn": _EITHER,
        "multi_query": _EITHER,
        "alibi": False,
    },
    "gpt2": {"": _sizes("n_head", "n_embd", None), "n_positions": 50},
    "gpt_bigcode": {
        "": _sizes("n_head", "n_embd", None),
        "multi_query": _EITHER,
    },
    "gpt_neo": {
        "": _sizes("num_heads", "hidden_size", None),
        "num_layers": 4,
        "attention_types": [[["global", "local"], 2]],
        "tie_word_embeddings": True,
    },
    "gptj": {"": _sizes("n_head", "n_embd", None), "rotary_dim": 8},
    "helium": {"": _whole},
    "hunyuan_v1_moe": {"moe_topk": 2, "num_experts": 4},
    "internlm3": {"": _one_bias},
    "llama4_text": {
        "intermediate_size_mlp": _upto(20, 99),
        "interleave_moe_layer_step": _of(1, 2),
    },
    "bamba": {**_BAMBA, "attn_layer_indices": _of([1], [0, 2], None)},
    "falcon_h1": {
        **_BAMBA,
        "mamba_d_ssm": 64,
        "mamba_rms_norm": _EITHER,
        "projectors_bias": _EITHER,
    },
    "granitemoehybrid": {
        **_BAMBA,
        "num_local_experts": _of(0, 4),
        "num_hidden_layers": 4,
        "layer_types": _of(
            None, ["linear_attention"] * 3 + ["full_attention"]
        ),
    },
    "jamba": {
        "mamba_d_state": _of(8, 16),
        "mamba_dt_rank": _of("auto", 5),
        "mamba_proj_bias": _EITHER,
        "mamba_conv_bias": _EITHER,
        "attn_layer_period": 3,
        "attn_layer_offset": _of(0, 1, 2),
        "num_experts": _of(1, 4),
        "num_experts_per_tok": 1,
    },
    "bailing_hybrid": {
        "num_hidden_layers": 5,
        "layer_group_size": _of(2, 3),
        "linear_num_heads": _of(2, 4),
        "linear_head_dim": _of(8, 16),
        "num_experts_per_token": 2,
    },
    "zamba2": {
        "num_hidden_layers": 6,
        "layers_block_type": _of(
            ["linear_attention", "hybrid"] * 3,
            ["linear_attention"] * 3 + ["hybrid"] * 2 + ["linear_attention"],
        ),
        "num_mem_blocks": _of(1, 2),
        "tie_word_embeddings": True,
        "n_mamba_heads": _of(2, 4),
        "mamba_ngroups": _of(1, 2),
        "mamba_d_state": _of(8, 16),
        "adapter_rank": _of(4, 8),
        "use_conv_bias": _EITHER,
    },
    "kimi_linear": {
        "num_hidden_layers": 5,
        "linear_num_heads": _of(2, 4),
        "linear_head_dim": _of(8, 16),
        "num_experts_per_token": 2,
    },
    "lfm2": {
        "full_attn_idxs": _of([1], [0, 1]),
        "conv_bias": _EITHER,
        "block_auto_adjust_ff_dim": _EITHER,
        "block_multiple_of": _of(8, 32),
    },
    "lfm2_moe": {
        "num_hidden_layers": 4,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "conv_bias": _EITHER,
    },
    "mamba2": {
        "": _divided,
        "n_groups": _of(1, 2),
        "state_size": _of(8, 16),
        "use_bias": _EITHER,
        "use_conv_bias": _EITHER,
    },
    "nemotron_h": {
        "layers_block_type": _of(
            ["linear_attention", "mlp", "full_attention", "moe"] * 2,
            ["linear_attention", "moe"] * 3 + ["full_attention"],
        ),
        "moe_shared_expert_intermediate_size": _upto(9, 60),
        "moe_latent_size": _of(None, 16),
        "mlp_bias": False,
        "mamba_num_heads": _of(4, 8),
        "mamba_head_dim": _of(8, 16),
        "n_groups": _of(1, 2),
        "ssm_state_size": _of(8, 16),
    },
    "recurrent_gemma": {
        "": _griffin,
        "num_key_value_heads": _of(1, 2),
        "intermediate_size": _of(40, 60),
    },
    "mpt": {
        "": _sizes("n_heads", "d_model", None),
        "expansion_ratio": _of(2, 4),
    },
    "opt": {
        "": _EQUAL,
        "enable_bias": _EITHER,
        "word_embed_proj_dim": _of(16, 24),
        "do_layer_norm_before": _EITHER,
    },
    "persimmon": {"": _EQUAL},
    "qwen2_moe": {"decoder_sparse_step": _of(1, 2)},
    "qwen3_vl_moe_text": {"decoder_sparse_step": 1, "mlp_only_layers": [1]},
    "qwen3_moe": {"decoder_sparse_step": _of(1, 2), "mlp_only_layers": [1]},
    "stablelm": {"use_parallel_residual": _EITHER},
    "xglm": {"": _sizes("attention_heads", "d_model", None)},
}

_HALVES = {"": _halves, "tie_word_embeddings": True}
_SEEING = {"": _EQUAL, "image_size": 32, "patch_size": _of(4, 8), **LABELS}
_BERT = {"": _EQUAL, "head_dim": None, "type_vocab_size": _of(1, 2)}
_DINO = {
    **_SEEING,
    "mlp_ratio": _of(2, 4),
    "use_swiglu_ffn": _EITHER,
}
_T5 = {
    "": _sizes("num_heads", "d_model", None),
    "d_kv": _of(8, 16),
    "num_decoder_layers": _upto(2, 5),
    "feed_forward_proj": _of("relu", "gated-gelu"),
    "relative_attention_num_buckets": _of(8, 32),
}
_MAMBA = {
    "": _expanded,
    "state_size": _of(8, 16),
    "use_bias": _EITHER,
    "use_conv_bias": _EITHER,
}
for _shared, _names in (
    (_MAMBA, "falcon_mamba mamba"),
    (
        _HALVES,
        "bart blenderbot blenderbot-small m2m_100 marian mbart pegasus "
        "plbart whisper",
    ),
    (_SEEING, "beit deit vit"),
    (_BERT, "bert camembert ernie nomic_bert roberta xlm-roberta"),
    (_DINO, "dinov2 dinov2_with_registers"),
    ({"": _EQUAL}, "megatron-bert mpnet xlm-roberta-xl"),
    (_T5, "mt5 t5 umt5"),
):
    OTHERS.update((name, _shared) for name in _names.split())
OTHERS["beit"] = {
    **_SEEING,
    "layer_scale_init_value": _of(0.1, 0.0),
    "use_mask_token": _EITHER,
    "use_mean_pooling": _EITHER,
    "use_absolute_position_embeddings": _EITHER,
}
OTHERS["resnet"] = {
    "": lambda _rng: {},
    "depths": _of([2, 2], [3, 2, 4]),
    "hidden_sizes": lambda rng: None,
    "embedding_size": _of(8, 16, 32),
    "layer_type": _of("basic", "bottleneck"),
    "downsample_in_first_stage": _EITHER,
    "downsample_in_bottleneck": _EITHER,
    **LABELS,
}
OTHERS["ernie"] = {**_BERT, "use_task_id": _EITHER}


def configuration(family: str, rng: random.Random) -> Any:
    """Return a configuration of a family, with sizes drawn at random."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[family]
    usual = kind().to_dict()
    more = OTHERS.get(family, {})
    given: dict[str, Any] = {}
    for name, draw in DRAWN.items():
        if name in usual:
            given[name] = draw(rng)
    sizes = more.get("", _USUAL)
    given.update(sizes(rng))
    for name, value in more.items():
        if name:
            given[name] = value(rng) if callable(value) else value
    if family == "resnet":
        widths = (16, 32, 64, 128)
        first = rng.choice((0, 1))
        given["hidden_sizes"] = widths[first:][: len(given["depths"])]
    return kind(**given)


def build(config: Any, family: str) -> Any:
    """Build the model of a configuration on the meta device."""
    import torch
    import transformers

    kind = getattr(transformers, AUTO.get(family, "AutoModelForCausalLM"))
    with torch.device("meta"):
        return getattr(kind, "from_config", kind)(config)


# fmt: off
MASKED = (
    "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra",
    "ernie", "eurobert", "megatron-bert", "modernbert", "mpnet", "nomic_bert",
    "roberta", "xlm-roberta", "xlm-roberta-xl",
)
PAIRED = (
    "bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart",
    "mt5", "pegasus", "plbart", "switch_transformers", "t5", "umt5",
)
INSIDE = (
    "glm4v_moe_text", "qwen2_5_vl_text", "qwen2_vl_text",
    "qwen3_vl_moe_text", "qwen3_vl_text",
)
MIXED = (
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba",
    "kimi_linear", "lfm2", "lfm2_moe", "mamba", "mamba2", "minimax",
    "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_next", "recurrent_gemma", "zamba2",
)
SEEING = (
    "beit", "deit", "dinov2", "dinov2_with_registers", "vit", "resnet",
)
# fmt: on

#: Classes that build the models of families that are no causal decoders.
AUTO: dict[str, str] = {
    **dict.fromkeys(MASKED, "AutoModelForMaskedLM"),
    **dict.fromkeys(PAIRED, "AutoModelForSeq2SeqLM"),
    **dict.fromkeys(SEEING, "AutoModelForImageClassification"),
    **dict.fromkeys(INSIDE, "AutoModel"),
    "clip": "AutoModel",
    "deit": "DeiTForImageClassification",
    "whisper": "AutoModelForSpeechSeq2Seq",
}


def parameters(model: Any) -> int:
    """Count the parameters of a model; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def examples(
    family: str, count: int, seed: int = 0
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield saved configurations of a family, and what they count."""
    rng = random.Random(f"{family}-{seed}")
    for _ in range(count):
        config = configuration(family, rng)
        total = parameters(build(config, family))
        tied = getattr(config, "tie_word_embeddings", False)
        if family in INSIDE and not tied:
            # The package builds it without the output layer of the whole.
            total += config.vocab_size * config.hidden_size
        yield json.loads(config.to_json_string()), total


# fmt: off
FAMILIES = (
    "afmoe", "apertus", "arcee", "aria_text", "axk1", "bailing_hybrid",
    "biogpt", "bitnet", "bloom", "codegen", "cohere", "cohere2",
    "cohere2_moe", "ctrl", "cwm", "dbrx", "deepseek_v2", "deepseek_v3",
    "deepseek_v32", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4",
    "exaone_moe", "falcon", "flex_olmo", "gemma", "gemma2", "gemma3_text",
    "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v_moe_text",
    "glm_moe_dsa", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss",
    "gptj", "granite", "granite_swa", "granitemoe", "granitemoe_swa",
    "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe",
    "hy_v3", "hyperclovax", "internlm3", "iquestcoder", "jais2", "llama",
    "llama4_text", "mellum", "mimo_v2_flash", "minicpm3", "minimax_m2",
    "ministral", "ministral3", "mistral", "mixtral", "modernbert-decoder",
    "mpt", "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "olmoe",
    "openai-gpt", "opt", "persimmon", "phi", "phi3", "phimoe", "qwen2",
    "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl_text", "qwen3", "qwen3_moe",
    "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss", "smollm3", "solar_open",
    "stablelm", "starcoder2", "vaultgemma", "xglm", "youtu",
)
# fmt: on
FAMILIES += (*MASKED, *PAIRED, *SEEING, *MIXED, "clip", "whisper")


def inputs(config: Any, model: Architecture, length: int) -> dict[str, Any]:
    """Return one sample for a model on the meta device.

    Masks are given, as the package would look into them otherwise.
    """
    import torch

    def tokens(count: int) -> Any:
        return torch.empty(1, count, dtype=torch.long, device="meta")

    def pixels(size: int) -> Any:
        return torch.empty(1, 3, size, size, device="meta")

    lengths = model.lengths(length)
    first, last = model.towers[0], model.towers[-1]
    if config.model_type == "resnet":
        return {"pixel_values": pixels(RESNET_PIXELS)}
    if first.convolutions:
        heard = first.convolutions[0].positions * lengths[first.name]
        bins = first.convolutions[0].inputs
        return {
            "input_features": torch.empty(1, bins, heard, device="meta"),
            "decoder_input_ids": tokens(lengths[last.name]),
        }
    if last.reads:
        return {
            "input_ids": tokens(lengths[first.name]),
            "decoder_input_ids": tokens(lengths[last.name]),
        }
    if last is not first:
        return {
            "pixel_values": pixels(config.vision_config.image_size),
            "input_ids": tokens(lengths[last.name]),
        }
    if first.patch_values:
        return {"pixel_values": pixels(config.image_size)}
    found = {"input_ids": tokens(length)}
    unmasked = ("falcon", "mamba")
    causal = first.runs[0].block.attention.causal
    if causal and config.model_type not in unmasked:
        found["attention_mask"] = torch.zeros(
            1, 1, length, length, device="meta"
        )
    return found


def flops(family: str, length: int) -> dict[str, Any]:
    """Return a family's default configuration, its parameters and FLOPs.

    FLOPs are those that PyTorch counts in a forward pass of one sample on
    the meta device. Of experts the ones that tokens visit are multiplied
    with.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[family](dtype=None)
    saved = json.loads(config.to_json_string())
    model = build(config, family)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")
    sample = inputs(config, from_hf(saved), length)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**sample)
    return {
        "config": saved,
        "parameters": parameters(model),
        "flops": counter.get_total_flops(),
    }


#: Families whose FLOPs are stored, tokens of a sample of them: no more than
#: any window has.
# fmt: off
COUNTED = (
    "bert", "clip", "cohere2", "deepseek_v3", "dinov2", "electra", "falcon",
    "gemma3_text", "glm4_moe", "gpt2", "gpt_oss", "granitemoe", "jamba",
    "lfm2", "llama", "mamba", "mixtral", "modernbert", "olmo2", "phi",
    "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "recurrent_gemma",
    "resnet", "starcoder2", "t5", "vit", "whisper",
)
# fmt: on
COUNTED_LENGTH = 128


def stored() -> dict[str, list[dict[str, Any]]]:
    """Return the stored examples, by family."""
    entries: dict[str, list[dict[str, Any]]] = json.loads(STORED.read_text())
    return entries


def stored_flops() -> list[dict[str, Any]]:
    """Return the stored configurations with their FLOPs."""
    entries: list[dict[str, Any]] = json.loads(STORED_FLOPS.read_text())
    return entries


def main(path: Path = STORED, flops_path: Path = STORED_FLOPS) -> None:
    """Write the stored examples of all families."""
    found = {
        family: [
            {"config": config, "parameters": total}
            for config, total in examples(family, STORED_PER_FAMILY)
        ]
        for family in FAMILIES
    }
    lines = [
        f"{json.dumps(family)}: [\n"
        + ",\n".join(json.dumps(entry) for entry in entries)
        + "\n]"
        for family, entries in found.items()
    ]
    path.write_text("{" + ",\n".join(lines) + "}\n")
    lines = [json.dumps(flops(name, COUNTED_LENGTH)) for name in COUNTED]
    flops_path.write_text("[" + ",\n".join(lines) + "]\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
