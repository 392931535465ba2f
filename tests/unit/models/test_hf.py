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

DATA = Path(__file__).parents[2] / "data"

#: Published models: name, configuration, and parameters of the released
#: checkpoint less what shapes leave out.
PUBLISHED: list[dict[str, Any]] = json.loads(
    (DATA / "published-configs.json").read_text()
)
CONFIGS = {entry["name"]: entry["config"] for entry in PUBLISHED}
LLAMA3 = CONFIGS["llama3-8b"]
DEEPSEEK = CONFIGS["deepseek-v3"]
QWEN3_MOE = CONFIGS["qwen3-30b-a3b"]
OPT = CONFIGS["opt-125m"]
FALCON = CONFIGS["falcon-40b"]

#: Models of which the zoo has no shape.
NOT_IN_THE_ZOO = {
    *("qwen3-8b", "deepseek-v2-lite", "opt-125m", "falcon-7b"),
    *("flan-t5-xl", "internlm2-7b"),
}

#: Sizes that most families need.
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 100,
}


@pytest.mark.parametrize("entry", PUBLISHED, ids=list(CONFIGS))
def test_published_models(entry: dict[str, Any]) -> None:
    """They have the published number of weights, and the zoo's shapes.

    Window and dropout included.
    """
    model = from_hf(entry["config"], name=entry["name"])
    assert model.parameters == entry["parameters"]
    if entry["name"] not in NOT_IN_THE_ZOO:
        zoo = architecture(entry["name"])
        assert (model.towers, model.head) == (zoo.towers, zoo.head)


def test_every_family_is_tested() -> None:
    tested = {fields["model_type"] for fields in CONFIGS.values()}
    tested |= set(stored()) | {"kimi_k2"}
    assert tested == set(FAMILIES)


def test_classes_are_counted_by_their_names() -> None:
    fields = without(CONFIGS["vit-large"], "num_labels")
    names = {str(i): f"LABEL_{i}" for i in range(1000)}
    named = from_hf({**fields, "id2label": names})
    assert named == from_hf(CONFIGS["vit-large"])


def test_what_configurations_say_beyond_weights() -> None:
    model = from_hf(LLAMA3, name="x")
    assert (model.name, model.max_sequence) == ("x", 8192)
    assert model.source == "Hugging Face llama, x"
    first, second = from_hf(CONFIGS["t5-large"]).towers
    assert (first.sequence_length, second.sequence_length) == (None, 128)
    assert from_hf(CONFIGS["flan-t5-xl"]).max_sequence == 512
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
    fields = without(CONFIGS[name], "sliding_window") | stated
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
    runs = [(r.block.name, r.count) for r in model.towers[0].runs]
    assert runs == [("dense", 3), ("sparse", 1), ("dense", 1), ("sparse", 1)]


def test_falcon_names_its_heads_in_two_ways() -> None:
    fields = {**without(FALCON, "num_attention_heads"), "n_head": 128}
    assert from_hf(fields) == from_hf(FALCON)


def test_an_odd_last_layer_is_local() -> None:
    fields = {**CONFIGS["gemma2-27b"], "num_hidden_layers": 3}
    names = [block.name for block in from_hf(fields).towers[0].blocks()]
    assert names == ["local", "global", "local"]


@pytest.mark.parametrize(
    ("field", "value"), [("attention_bias", True), ("mlp_bias", True)]
)
def test_biases_of_llama(field: str, value: bool) -> None:
    """Queries and outputs of 4096, keys and values of 1024; 2 f + h."""
    more = from_hf({**LLAMA3, field: value}).parameters - 8_030_261_248
    per_layer = {"attention_bias": 4096 + 2 * 1024 + 4096, "mlp_bias": 2 * 14336 + 4096}
    assert more == 32 * per_layer[field]


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k not in names}


@pytest.mark.parametrize(
    "row",
    json.loads((DATA / "refused-configs.json").read_text()),
    ids=lambda row: row["message"].split(":")[0],
)
def test_bad_configurations(row: dict[str, Any]) -> None:
    """A row changes a published configuration, or one of small sizes."""
    base = {**CONFIGS, "small": SMALL, None: {}}[row.get("base")]
    fields = without(base, *row.get("without", ())) | row.get("set", {})
    families = ", ".join(sorted(FAMILIES))
    with pytest.raises(InvalidProblemError) as caught:
        from_hf(fields, where="c.json")
    message = row["message"].replace("FAMILIES", families)
    assert str(caught.value) == f"c.json: {message}"


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


def test_the_whole_model_says_whether_embeddings_are_tied() -> None:
    """Its word counts more than that of the text model, and its default too."""
    text = {"model_type": "llama", **SMALL, "tie_word_embeddings": False}
    table = SMALL["vocab_size"] * SMALL["hidden_size"]

    def count(whole: str, **fields: Any) -> int:
        inside = {**text, **fields.pop("inside", {})}
        return from_hf(
            {"model_type": whole, "text_config": inside, **fields}
        ).parameters

    apart = from_hf(text).parameters
    tied = {"tie_word_embeddings": True}
    assert count("llava") == count("unheard-of") == apart
    assert count("llava", **tied) == count("unheard-of", **tied) == apart - table
    # The class of this one ties them by default.
    assert count("internvl") == apart - table
    assert count("internvl", tie_word_embeddings=False) == apart
    # This one builds a text model with an output layer of its own.
    assert count("instructblip", **tied) == apart
    assert count("instructblip", inside=tied) == apart - table
    assert count("voxtral", **tied, inside=tied) == apart


def test_old_configurations_without_a_text_config() -> None:
    """Qwen2.5-VL-7B was published so; its text model is Qwen2.5-7B."""
    fields = {**CONFIGS["qwen2.5-7b"], "model_type": "qwen2_5_vl", "vision_config": {}}
    model = from_hf(fields)
    assert model.parameters == 7_615_616_512
    assert model.note == "the text model of qwen2_5_vl alone"


@pytest.mark.parametrize("family", ["whisper", "bart"])
def test_decoders_alone(family: str) -> None:
    """They hold the weights of the cross-attention; nothing reads another tower."""
    config = stored()[family][0]["config"]
    alone = from_hf({**config, "architectures": ["AnyForCausalLM"]})
    _, decoder = from_hf(config).towers
    assert [tower.reads for tower in alone.towers] == [None]
    assert alone.layers == decoder.layers
    weights = sum(map(block_weights, alone.towers[0].blocks()))
    assert weights == sum(map(block_weights, decoder.blocks()))


def test_fields_of_single_layers() -> None:
    """An object per layer, or a list per field, has what is another in a layer."""
    small = {"model_type": "llama", **SMALL}
    model = from_hf({**small, "per_layer_config": {"01": {"num_key_value_heads": 2}}})
    heads = [block.attention.kv_heads for block in model.towers[0].blocks()]
    assert heads == [4, 2, 4, 4]
    laguna = next(entry["config"] for entry in stored()["laguna"])
    layers = laguna["num_hidden_layers"]
    listed = [laguna["num_attention_heads"]] * (layers - 1) + [16]
    model = from_hf({**laguna, "num_attention_heads_per_layer": listed})
    assert [b.attention.heads for b in model.towers[0].blocks()] == listed


@pytest.mark.parametrize("tied", [False, True])
def test_ties_that_only_the_whole_states(tied: bool) -> None:
    """The text model of Qwen2.5-VL-7B is Qwen2.5-7B."""
    fields = without(CONFIGS["qwen2.5-7b"], "tie_word_embeddings")
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

    A sparse block, a layer from 2 h to h and three norms; its head runs twice.
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


def test_names_come_from_the_file_and_not_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    path = folder / "config.json"
    assert read(path, LLAMA3).name == "llama-8.03b"
    named = {**LLAMA3, "_name_or_path": "meta-llama/Meta-Llama-3-8B"}
    assert read(path, named).name == "Meta-Llama-3-8B"
    assert read(path, {**LLAMA3, "_name_or_path": 3}).name == "llama-8.03b"


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
    assert read(tmp_path / "llama.json", LLAMA3).name == "llama-8.03b"
    small = {"model_type": "llama", **SMALL}
    assert read(tmp_path / "config.json", small).name == "llama-0.153m"


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


def test_a_bare_infinity_where_nothing_reads_it(tmp_path: Path) -> None:
    """Mamba-2 hybrids are published so, as Python writes the number."""
    fields = {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-",
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "time_step_limit": [0.0, float("inf")],
        **SMALL,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    assert "Infinity" in path.read_text()
    without_it = from_hf(without(fields, "time_step_limit"))
    assert read_hf(path).towers == without_it.towers


def test_numbers_that_are_none_where_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **SMALL, "vocab_size": 1e999}))
    expected = r"vocab_size: expected an integer, got Infinity; correct its type$"
    with pytest.raises(InvalidProblemError, match=expected):
        read_hf(path)
    scaled = {"model_type": "lfm2", **SMALL, "block_ffn_dim_multiplier": float("nan")}
    expected = "block_ffn_dim_multiplier: expected a number above 0, .* got NaN"
    with pytest.raises(InvalidProblemError, match=expected):
        from_hf(scaled)


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
