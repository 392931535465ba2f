"""What a model computes beyond shapes, as Megatron-LM's arguments, and back."""

from __future__ import annotations

import shlex
from math import isclose, log
from typing import Any

import pytest
from msgspec.structs import replace

from nest.errors import InvalidPlanError
from nest.frameworks.megatron import array, read_array
from nest.frameworks.megatron_details import details_flags, other_details, padding_flags
from nest.frameworks.megatron_model import check_shape, model_flags, read_model, why_not
from nest.models.architectures import Architecture
from nest.models.hf import from_hf
from nest.models.zoo import ARCHITECTURES, architecture
from tests.models.generate import stored

#: Tokens of a sample, which all stored configurations have positions for.
LENGTH = 32

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
MIXTURE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
LATENT = {
    **MIXTURE,
    "model_type": "deepseek_v3",
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
SQUARED = "--squared-relu --no-bias-gelu-fusion"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


#: Of Qwen's models for long sequences.
LONG = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONG_WORDS = (
    "--position-embedding-type yarn --rotary-scaling-factor 4.0 --mscale 1.0 "
    "--mscale-all-dim 0.0 --yarn-original-max-position-embeddings 32768"
)


def words(config: dict[str, Any], tp: int = 1) -> str:
    """Return the arguments of a configuration that its shape does not need."""
    flags = model_flags(from_hf(config), 64, tp)
    plain = model_flags(replace(from_hf(config), details=None), 64, tp)
    more = [flag for flag in flags if flag not in plain]
    return " ".join(shlex.join((name, *map(str, values))) for name, values in more)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, ""),
        ({**LLAMA, "rms_norm_eps": 1e-6}, "--norm-epsilon 1e-06"),
        ({**LLAMA, "rope_theta": 1e6}, "--rotary-base 1000000"),
        (
            {**LLAMA, "rope_parameters": {"rope_theta": 5e5, **LLAMA3}},
            "--rotary-base 500000 --use-rope-scaling --rope-scaling-factor 16.0",
        ),
        (
            {**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}},
            "--rotary-seq-len-interpolation-factor 4",
        ),
        ({**LLAMA, "rope_scaling": LONG}, LONG_WORDS),
        (
            {
                **LLAMA,
                "rope_scaling": {
                    **LONG,
                    "beta_fast": 16,
                    "beta_slow": 2,
                    "truncate": False,
                },
            },
            f"{LONG_WORDS} --yarn-beta-fast 16.0 --yarn-beta-slow 2.0 "
            "--no-yarn-correction-range-round-to-int",
        ),
        (
            {**LLAMA, "model_type": "glm", "partial_rotary_factor": 0.5},
            "--rotary-percent 0.5 --rotary-interleaved",
        ),
        ({**LLAMA, "model_type": "arcee", "hidden_act": "relu2"}, SQUARED),
        (MIXTURE, "--moe-router-pre-softmax"),
        ({**MIXTURE, "norm_topk_prob": True}, ""),
        (
            {**LATENT, "routed_scaling_factor": 2.5, "rope_scaling": YARN},
            "--rope-type yarn --rotary-scaling-factor 40.0 --mscale 1.0 "
            "--mscale-all-dim 1.0 --moe-router-score-function sigmoid "
            "--moe-router-topk-scaling-factor 2.5 --moe-router-enable-expert-bias",
        ),
        (
            {**LATENT, "norm_topk_prob": True, "topk_group": 2},
            "--rope-type rope --moe-router-score-function sigmoid "
            "--moe-router-enable-expert-bias",
        ),
    ],
)
def test_arguments_of_what_shapes_do_not_say(
    config: dict[str, Any], expected: str
) -> None:
    """Defaults of Megatron are left out; latent attention is scaled by default."""
    assert words(config) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 4.0}},
            "rotary scaling: expected none or linear or llama3 or yarn, got dynamic",
        ),
        (
            {**LLAMA, "model_type": "glm", "rope_scaling": LONG},
            "rotary scaling: expected halves of heads with yarn, got interleaved",
        ),
        (
            {**LLAMA, "rope_scaling": {**LLAMA3, "low_freq_factor": 2.0}},
            "rotary scaling: low_frequency: expected 1, got 2",
        ),
        ({**LLAMA, "hidden_act": "gelu"}, "activation: expected silu or swish"),
        ({**LLAMA, "rope_theta": 10000.5}, "rotary base: expected a whole number"),
        (
            {**LLAMA, "model_type": "granite", "residual_multiplier": 0.22},
            "residual_multiplier: expected a plain transformer, got another value",
        ),
        (
            {**LLAMA, "model_type": "hunyuan_v1_dense"},
            "norms of queries and keys after the rotation: expected a plain",
        ),
        (
            {**MIXTURE, "norm_topk_prob": True, "num_experts_per_tok": 1},
            "router: expected weights that differ from one, got one expert a token",
        ),
        (
            {**LATENT, "rope_scaling": {**YARN, "beta_fast": 16}},
            "rotary scaling: beta_fast: expected 32, got 16",
        ),
    ],
)
def test_what_no_argument_says_is_refused_by_name(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidPlanError, match=rf"^model: {message}"):
        model_flags(from_hf(config), 64)


@pytest.mark.parametrize(
    ("rows", "tp", "divisor"),
    [(32000, 1, None), (32000, 8, 32), (50257, 1, 1), (50257, 2, None), (128, 2, 64)],
)
def test_vocabularies_are_padded_by_no_row(
    rows: int, tp: int, divisor: int | None
) -> None:
    """Megatron pads to a multiple of the divisor times tp, by default 128."""
    flags = padding_flags(rows, tp)
    stated = flags[0][1][0] if flags else None
    assert stated == divisor
    if divisor is not None:
        assert rows % (divisor * tp) == 0


def read_back(config: dict[str, Any]) -> tuple[Any, Any]:
    """Return the model of a configuration, and that of its arguments."""
    model = from_hf(config)
    text = array("none", model_flags(model, LENGTH))
    arguments = read_array(text, "args.sh")
    written, _ = read_model(arguments, "read")
    arguments.check_all_used()
    return model, written


def test_scaled_positions_are_read_back() -> None:
    """Of grouped-query attention by YaRN; lengths and factors as transformers do."""
    for stated in (LONG, {**LONG, "attention_factor": 1.25, "beta_slow": 2}):
        model, written = read_back({**LLAMA, "rope_scaling": stated})
        assert model.details is not None
        assert written.details is not None
        assert written.details.rotary == model.details.rotary
        # 1.25 is 1 + 0.1 mscale ln(4).
        mscale = 0.25 / (0.1 * log(4)) if "attention_factor" in stated else 1.0
        assert isclose(written.details.rotary.mscale, mscale)
    unstated = {"rope_type": "yarn", "factor": 2.0}
    config = {**LLAMA, "max_position_embeddings": 128, "rope_scaling": unstated}
    assert "--yarn-original-max-position-embeddings 128" in words(config)


def test_endless_numbers_count_as_none() -> None:
    model = from_hf({**LLAMA, "rope_scaling": LONG})
    text = array("none", model_flags(model, LENGTH)).replace("32768", "inf")
    written, _ = read_model(read_array(text, "args.sh"), "read")
    assert written.details is not None
    assert written.details.rotary is not None
    assert written.details.rotary.original_length == 4096


def shape_flags(model: Architecture) -> list[Any]:
    """Return the arguments of a model, without a width of heads that others say."""
    flags = model_flags(model, LENGTH)
    return [flag for flag in flags if flag[0] != "--kv-channels"]


def expressible() -> list[Any]:
    """Return stored configurations whose models Megatron's arguments say."""
    found = []
    for family, entries in stored().items():
        for number, entry in enumerate(entries):
            try:
                model_flags(from_hf(entry["config"]), LENGTH)
            except InvalidPlanError:
                continue
            found.append(pytest.param(entry["config"], id=f"{family}-{number}"))
    return found


@pytest.mark.parametrize("config", expressible())
def test_arguments_say_the_same_model(config: dict[str, Any]) -> None:
    """Every field that they have, and the number of weights."""
    model, written = read_back(config)
    assert other_details(model, written) is None
    assert written.parameters == model.parameters
    assert shape_flags(written) == shape_flags(model)


def zoo_models() -> list[str]:
    """Return the known models that Megatron's arguments say."""
    return [
        model.name
        for model in ARCHITECTURES
        if why_not(model) is None and not refused_details(model)
    ]


def refused_details(model: Architecture) -> bool:
    try:
        details_flags(model)
    except InvalidPlanError:
        return True
    return False


@pytest.mark.parametrize("name", zoo_models())
def test_known_models_are_read_back(name: str) -> None:
    """As the check of a folder compares them."""
    model = architecture(name)
    length = model.max_sequence
    arguments = read_array(array("none", model_flags(model, length)), "args.sh")
    written, stated = read_model(arguments, "read")
    arguments.check_all_used()
    check_shape("args.sh", model, written, stated)


def test_groups_of_experts_are_read() -> None:
    """They limit to how many devices a token is sent; all of them limit nothing."""
    for stated, groups in (((2, 1), (2, 1)), ((2, 2), (1, 1)), ((4, 2), (4, 2))):
        config = {**LATENT, "n_group": stated[0], "topk_group": stated[1]}
        _, written = read_back(config)
        experts = written.towers[0].last.mlp
        assert (experts.groups, experts.token_groups) == groups


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--moe-router-group-topk 1", "num-groups: expected a divisor of --num-experts "
         "4, got none"),
        ("--moe-router-group-topk 1 --moe-router-num-groups 3",
         "num-groups: expected a divisor of --num-experts 4, got 3"),
        ("--moe-router-group-topk 1 --moe-router-num-groups 4",
         "group-topk: expected at most the 4 groups, with 2 experts or more, got 1"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be_chosen_are_refused(more: str, message: str) -> None:
    model = from_hf({**LATENT, "topk_group": 2})
    text = array("none", model_flags(model, LENGTH)).replace("\n)", f"\n  {more}\n)")
    with pytest.raises(InvalidPlanError, match=message):
        read_model(read_array(text, "args.sh"), "read")


def test_latent_attention_has_its_norms() -> None:
    """Megatron has none of what is compressed without this argument."""
    model, written = read_back({**LATENT, "topk_group": 2})
    assert ("--qk-layernorm", ()) in model_flags(model, LENGTH)
    assert not written.towers[0].last.attention.query_key_norm


def test_another_base_is_another_model() -> None:
    ours = from_hf({**LLAMA, "rope_theta": 1e6})
    theirs = from_hf(LLAMA)
    assert other_details(ours, theirs) == "rotary"
    assert other_details(ours, replace(theirs, details=None)) is None
