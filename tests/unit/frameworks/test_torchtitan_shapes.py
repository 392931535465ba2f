"""Shapes of models as torchtitan builds them, and back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.errors import InvalidPlanError
from nest.frameworks.megatron_model import comparable
from nest.frameworks.torchtitan import job_file, positions_comment, read_foreign
from nest.frameworks.torchtitan_shapes import (
    FILE,
    TransformerModelArgs,
    flavor_of,
    module_text,
    read_module,
)
from nest.models.architectures import Architecture
from nest.models.hf import from_hf
from nest.models.zoo import ARCHITECTURES, architecture
from tests.exports import small_model
from tests.unit.frameworks.test_megatron_details import LATENT, LLAMA, MIXTURE

LENGTH = 4096

#: Zoo models that torchtitan can build, by the package of its models.
BUILT = {
    **dict.fromkeys(("llama2-7b", "llama2-13b", "llama2-70b"), "llama3"),
    **dict.fromkeys(("llama3-8b", "llama3-70b", "llama3-405b"), "llama3"),
    **dict.fromkeys(("mistral-7b", "mistral-7b-v0.3"), "llama3"),
    **dict.fromkeys(("mixtral-8x7b", "mixtral-8x22b"), "qwen3"),
    **dict.fromkeys(("qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3-0.6b"), "qwen3"),
    **dict.fromkeys(("qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b"), "qwen3"),
    **dict.fromkeys(("qwen3-32b",), "qwen3"),
    **dict.fromkeys(("deepseek-v3", "deepseek-v2-lite", "kimi-k2"), "deepseek_v3"),
}


def read_back(model: Architecture) -> Architecture:
    return read_module(module_text(model, LENGTH, 1), FILE, flavor_of(model))


@pytest.mark.parametrize("name", BUILT)
def test_shapes_there_and_back(name: str) -> None:
    model = architecture(name)
    text = module_text(model, LENGTH, 1)
    assert f"from torchtitan.models.{BUILT[name]} import" in text
    assert ("pipelining_fn=pipeline_llm" in text) == (BUILT[name] == "qwen3")
    there = read_module(text, FILE, name)
    assert comparable(there, LENGTH) == comparable(model, LENGTH)
    assert there.parameters == model.parameters
    assert model.details is not None
    assert there.details is not None
    assert there.details.norm_epsilon == model.details.norm_epsilon
    assert there.details.router == model.details.router
    assert model.details.rotary is not None
    assert there.details.rotary is not None
    assert there.details.rotary.scaling == model.details.rotary.scaling
    assert module_text(replace(there, name=name), LENGTH, 1) == text


def test_the_order_of_pairs_is_no_other_model() -> None:
    config = {**LLAMA, "model_type": "ernie4_5", "tie_word_embeddings": False}
    model = from_hf(config)
    assert model.details is not None
    assert model.details.rotary is not None
    assert model.details.rotary.interleaved
    assert read_back(model).details.rotary == model.details.rotary.effective


def test_all_other_models_of_the_zoo_are_refused_by_name() -> None:
    for model in ARCHITECTURES:
        if model.name not in BUILT:
            with pytest.raises(InvalidPlanError, match=f" in {model.name}; choose"):
                module_text(model, LENGTH, 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**LLAMA, "attention_bias": True}, "attention.biases: expected False"),
        ({**LLAMA, "hidden_act": "gelu"}, "activation: expected silu or swish, as"),
        (
            {**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}},
            "rotary.scaling: expected none, as models of torchtitan's llama3",
        ),
        (
            {**LLAMA, "model_type": "granite", "residual_multiplier": 0.22},
            "residual_multiplier: expected a plain transformer",
        ),
        (
            {**LLAMA, "model_type": "glm", "partial_rotary_factor": 0.5},
            "rotary.fraction: expected 1.0",
        ),
        (
            {**MIXTURE, "mlp_only_layers": [0]},
            "layers: expected experts in all or in none",
        ),
        (
            {**LATENT, "rope_scaling": {"type": "linear", "factor": 4.0}},
            "rotary.scaling: expected ",
        ),
    ],
)
def test_what_torchtitan_has_not_is_refused_by_name(config, message) -> None:
    with pytest.raises(InvalidPlanError, match=f"^model: {message}"):
        module_text(from_hf(config), LENGTH, 1)


def test_tied_models_are_on_one_stage() -> None:
    """torchtitan's ``init_weights`` ties them, and needs both there."""
    model = architecture("qwen3-0.6b")
    with pytest.raises(InvalidPlanError, match="stages: expected 1, as torchtitan"):
        module_text(model, LENGTH, 2)


@pytest.mark.parametrize("columns", [*range(1, 40), 170, 171, 10_923, 10_922, 11_008])
def test_every_number_of_columns_is_reached(columns: int) -> None:
    """``FeedForward`` takes int(8 h / 3) times a factor, up to a multiple."""
    model = small_model()
    tower = model.towers[0]
    block = replace(tower.last, mlp=replace(tower.last.mlp, hidden=columns))
    runs = (replace(tower.runs[0], block=block),)
    model = replace(model, towers=(replace(tower, runs=runs),))
    assert read_back(model).parameters == model.parameters


def test_columns_are_those_of_torchtitan() -> None:
    """Its flavors of Llama 3 have these columns."""
    for args, columns in (
        ((4096, 1.3, 1024), 14_336),
        ((8192, 1.3, 4096), 28_672),
        ((16_384, 1.2, 4096), 53_248),
        ((256, None, 256), 768),
    ):
        dim, factor, multiple = args
        made = TransformerModelArgs(
            dim=dim, ffn_dim_multiplier=factor, multiple_of=multiple
        )
        assert made.columns == columns


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dim=256", "dim=", "expected Python, got a syntax error"),
        ("dim=256", "dim=\0", "expected Python, got a syntax error"),
        ("dim=256", "dim=2 * 128", "dim: expected a constant, got an expression"),
        ("dim=256", "dim='wide'", "TransformerModelArgs: Expected `int`"),
        ("dim=256", "width=256", "contains unknown field `width`; correct it"),
        ("dim=256", "dim=0", "dim: expected >= 1, got 0"),
        ("n_layers=8", "n_layers=10000000", "n_layers: expected at most"),
        ("args = Trans", "args = Perf", "expected a module as nest export writes it"),
        ('{"small": args}', "{}", "with a flavor 'small', got another one; name the"),
    ],
)
def test_broken_modules_are_refused(old: str, new: str, message: str) -> None:
    text = module_text(small_model(), LENGTH, 1)
    assert old in text
    with pytest.raises(InvalidPlanError, match=f"^{FILE}:.*{message}"):
        read_module(text.replace(old, new), FILE, "small")


def test_parts_of_many_layers_are_read() -> None:
    """A list of names has dots, and no key of many parts."""
    names = ", ".join(f'"layers.{index}"' for index in range(126))
    text = f"[parallelism]\nmodule_fqns_per_model_part = [\n    [{names}],\n]\n"
    (part,) = job_file(text, "job.toml").get("parallelism.module_fqns_per_model_part")
    assert len(part) == 126
    with pytest.raises(InvalidPlanError, match="at most 100 dots"):
        job_file(text.replace(", ", ","), "job.toml")


@pytest.mark.parametrize(
    ("flavor", "name"),
    [
        ("deepseek_v3/16B", "deepseek-v2-lite"),
        ("llama2/13B", "llama2-13b"),
        ("qwen3/0.6B", "qwen3-0.6b"),
    ],
)
def test_flavors_of_the_zoo_are_read(flavor: str, name: str) -> None:
    family, _, size = flavor.partition("/")
    text = (
        f'[model]\nname = "{family}"\nflavor = "{size}"\n'
        "[checkpoint]\ninitial_load_dequantize = true\n"
    )
    assert read_foreign(text, "job.toml", 8).model == architecture(name)


def test_files_that_keep_all_in_bf16_are_read() -> None:
    """2 bytes of a weight and of its gradient, and two moments of 2."""
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n'
        '[training]\ndtype = "bfloat16"\nmixed_precision_reduce = "bfloat16"\n'
    )
    launch = read_foreign(text, "job.toml", 8).launch
    assert (launch.state_bytes, launch.gradient_bytes) == (4, 2)
    message = "reduce: expected bfloat16 as training.dtype, got 'float32'; correct it"
    with pytest.raises(InvalidPlanError, match=message):
        read_foreign(text.rpartition("mixed")[0], "job.toml", 8)


@pytest.mark.parametrize(
    ("name", "length", "begins"),
    [("deepseek-v3", 4096, "# torchtitan does not scale positions by YaRN here"),
     ("deepseek-v3", 8192, ""), ("llama3-8b", 4096, "")],
)  # fmt: skip
def test_positions_that_torchtitan_does_not_scale(name, length, begins):
    """It scales samples of more than the original 4,096 tokens only."""
    comment = positions_comment(architecture(name), length)
    assert comment.startswith(begins)
    assert bool(comment) == bool(begins)
