"""Architectures from the ``config.json`` of Hugging Face models.

Field names and defaults are those of the configuration classes of the
transformers library (docs at huggingface.co/docs/transformers). Only fields
that shape weights or work are read. A model of a new family is one function
and one line in :data:`FAMILIES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, overload

import msgspec

from nest.errors import InvalidProblemError, UnknownNameError
from nest.models.architectures import Architecture
from nest.models.blocks import Block, Mlp, Run
from nest.models.families import (
    bert,
    clip,
    decoder_only,
    encoder_block,
    gemma2_runs,
    gpt,
    latent_runs,
    llama_block,
    t5,
    vit,
)

#: Tokens of the targets of an encoder-decoder, as a share of its input: T5
#: trains on 114 (padded: 128) of 512.
TARGET_SHARE = 4

#: Input of a T5 whose configuration does not state a length.
T5_SEQUENCE = 512

#: Larger figures, and numbers of layers, are typing errors.
LARGEST = 2**31 - 1
MOST_LAYERS = 10_000


class Config:
    """The fields of a configuration, read with checks.

    Parameters
    ----------
    fields
        The decoded JSON object.
    where
        Name of the file, and of the object in it, for messages.
    """

    def __init__(self, fields: dict[str, Any], where: str) -> None:
        self.fields = fields
        self.where = where

    def fail(self, name: str, expected: str, got: str, remedy: str) -> str:
        """Return the message about one field."""
        return (
            f"{self.where}: {name}: expected {expected}, got {got}; {remedy}"
        )

    def refuse(
        self, name: str, expected: str, got: str, remedy: str
    ) -> InvalidProblemError:
        """Return the error about one field."""
        return InvalidProblemError(self.fail(name, expected, got, remedy))

    def _find(self, names: tuple[str, ...]) -> tuple[str, Any]:
        for name in names:
            if self.fields.get(name) is not None:
                return name, self.fields[name]
        return names[0], None

    @overload
    def integer(self, *names: str, default: None = None) -> int: ...
    @overload
    def integer(self, *names: str, default: int) -> int: ...

    def integer(self, *names: str, default: int | None = None) -> int:
        """Read an integer from 1; several names are the same field.

        Raises
        ------
        InvalidProblemError
            If it is missing and has no default, is no integer, or is out of
            range.
        """
        name, value = self._find(names)
        if value is None:
            if default is None:
                raise self.refuse(
                    " or ".join(names),
                    "an integer",
                    "no such field",
                    "add it or check model_type",
                )
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(
                name, "an integer", _shown(value), "correct its type"
            )
        most = MOST_LAYERS if "layer" in name else LARGEST
        if not 1 <= value <= most:
            raise self.refuse(
                name,
                f"an integer from 1 to {most}",
                str(value),
                "correct the value",
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Read true or false.

        Raises
        ------
        InvalidProblemError
            If it is something else.
        """
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(
                name, "true or false", _shown(value), "correct its type"
            )
        return value

    def rate(self, *names: str, default: float) -> float:
        """Read a dropout rate.

        Raises
        ------
        InvalidProblemError
            If it is no number from 0 to 1.
        """
        name, value = self._find(names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(
                name, "a number", _shown(value), "correct its type"
            )
        if not (isfinite(value) and 0 <= value <= 1):
            raise self.refuse(
                name, "a rate from 0 to 1", str(value), "correct the value"
            )
        return float(value)

    def part(self, name: str) -> Config:
        """Read an object inside this one.

        Raises
        ------
        InvalidProblemError
            If it is missing or no object.
        """
        value = self.fields.get(name)
        if not isinstance(value, dict):
            got = "no such field" if value is None else _shown(value)
            raise self.refuse(name, "an object", got, "add it")
        return Config(value, f"{self.where}: {name}")

    def divided(self, whole: tuple[str, ...], count: tuple[str, ...]) -> int:
        """Return a width divided by a number of heads.

        Raises
        ------
        InvalidProblemError
            If it does not divide evenly.
        """
        width, heads = self.integer(*whole), self.integer(*count)
        if width % heads:
            raise self.refuse(
                self._find(count)[0],
                f"a divisor of {self._find(whole)[0]} = {width}",
                str(heads),
                "correct one of them",
            )
        return width // heads

    def kv_heads(self, heads: int, default: int) -> int:
        """Read the number of key and value heads.

        Raises
        ------
        InvalidProblemError
            If it does not divide the number of heads.
        """
        kv_heads = self.integer("num_key_value_heads", default=default)
        if heads % kv_heads:
            raise self.refuse(
                "num_key_value_heads",
                f"a divisor of the {heads} attention heads",
                str(kv_heads),
                "correct one of them",
            )
        return kv_heads


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# Families


def _gpt2(config: Config, name: str, source: str) -> Architecture:
    config.divided(("n_embd", "hidden_size"), ("n_head",))
    hidden = config.integer("n_embd", "hidden_size")
    positions = config.integer("n_positions", "n_ctx", default=1024)
    return gpt(
        name,
        source,
        layers=config.integer("n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=config.integer("n_head"),
        vocabulary=config.integer("vocab_size"),
        max_sequence=positions,
        mlp_hidden=config.integer("n_inner", default=4 * hidden),
        dropout=config.rate("resid_pdrop", default=0.1) > 0,
        tied=config.flag("tie_word_embeddings", True),
    )


def _gpt_neox(config: Config, name: str, source: str) -> Architecture:
    config.divided(("hidden_size",), ("num_attention_heads",))
    return gpt(
        name,
        source,
        layers=config.integer("num_hidden_layers"),
        hidden=config.integer("hidden_size"),
        heads=config.integer("num_attention_heads"),
        vocabulary=config.integer("vocab_size"),
        max_sequence=config.integer("max_position_embeddings", default=2048),
        mlp_hidden=config.integer("intermediate_size"),
        learned_positions=0,
        rotary=True,
        dropout=config.rate("hidden_dropout", default=0.0) > 0,
        tied=config.flag("tie_word_embeddings", False),
    )


def _bloom(config: Config, name: str, source: str) -> Architecture:
    width, heads = (
        ("hidden_size", "n_embed"),
        ("n_head", "num_attention_heads"),
    )
    config.divided(width, heads)
    return gpt(
        name,
        source,
        layers=config.integer("n_layer", "num_hidden_layers"),
        hidden=config.integer(*width),
        heads=config.integer(*heads),
        vocabulary=config.integer("vocab_size"),
        max_sequence=config.integer("seq_length", default=2048),
        learned_positions=0,
        embedding_norm=True,
        dropout=config.rate("hidden_dropout", default=0.0) > 0,
        tied=config.flag("tie_word_embeddings", True),
    )


def _opt(config: Config, name: str, source: str) -> Architecture:
    hidden = config.integer("hidden_size")
    config.divided(("hidden_size",), ("num_attention_heads",))
    inputs = config.integer("word_embed_proj_dim", default=hidden)
    if inputs != hidden:
        raise config.refuse(
            "word_embed_proj_dim",
            f"hidden_size = {hidden}",
            str(inputs),
            "models that project their embedding are not supported",
        )
    length = config.integer("max_position_embeddings", default=2048)
    return gpt(
        name,
        source,
        layers=config.integer("num_hidden_layers"),
        hidden=hidden,
        heads=config.integer("num_attention_heads"),
        vocabulary=config.integer("vocab_size"),
        max_sequence=length,
        mlp_hidden=config.integer("ffn_dim"),
        learned_positions=length + 2,
        biases=config.flag("enable_bias", True),
        dropout=config.rate("dropout", default=0.1) > 0,
        tied=config.flag("tie_word_embeddings", True),
    )


def _falcon(config: Config, name: str, source: str) -> Architecture:
    config.divided(("hidden_size", "n_embed"), ("num_attention_heads",))
    hidden = config.integer("hidden_size", "n_embed")
    heads = config.integer("num_attention_heads", "n_head")
    grouped = config.flag("new_decoder_architecture", False)
    if grouped:
        kv_heads = config.integer("num_kv_heads", default=heads)
    else:
        kv_heads = 1 if config.flag("multi_query", True) else heads
    if heads % kv_heads:
        raise config.refuse(
            "num_kv_heads",
            f"a divisor of the {heads} attention heads",
            str(kv_heads),
            "correct one of them",
        )
    parallel = config.flag("parallel_attn", True)
    default_norms = 2 if grouped or not parallel else 1
    return gpt(
        name,
        source,
        layers=config.integer("num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        vocabulary=config.integer("vocab_size"),
        max_sequence=config.integer("max_position_embeddings", default=2048),
        mlp_hidden=config.integer("ffn_hidden_size", default=4 * hidden),
        learned_positions=0,
        rotary=not config.flag("alibi", False),
        biases=config.flag("bias", False),
        dropout=config.rate("hidden_dropout", default=0.0) > 0,
        norms=config.integer("num_ln_in_parallel_attn", default=default_norms),
        tied=config.flag("tie_word_embeddings", True),
    )


def _decoder(
    config: Config,
    label: str,
    mlp: Mlp,
    *,
    head_size: int | None = None,
    biases: bool = False,
    output_bias: bool = False,
    query_key_norm: bool = False,
    window: int = 0,
    norms: int = 2,
    default_kv_heads: int | None = None,
) -> Block:
    """Return one block of the Llama family.

    ``head_size`` stands for a family's default where it is not
    ``hidden_size / num_attention_heads``.
    """
    heads = config.integer("num_attention_heads")
    if config.fields.get("head_dim") is not None or head_size is not None:
        size = config.integer("head_dim", default=head_size or 1)
    else:
        size = config.divided(("hidden_size",), ("num_attention_heads",))
    return llama_block(
        label,
        hidden=config.integer("hidden_size"),
        heads=heads,
        kv_heads=config.kv_heads(heads, default_kv_heads or heads),
        mlp=mlp,
        head_size=size,
        biases=biases,
        output_bias=output_bias,
        query_key_norm=query_key_norm,
        window=window,
        norms=norms,
    )


def _one_tower(
    config: Config,
    name: str,
    source: str,
    runs: list[Run],
    *,
    tied: bool,
    length: int,
    repeat: int = 1,
) -> Architecture:
    return decoder_only(
        name,
        source,
        runs,
        repeat=repeat,
        vocabulary=config.integer("vocab_size"),
        max_sequence=config.integer("max_position_embeddings", default=length),
        tied=config.flag("tie_word_embeddings", tied),
    )


def _equal_blocks(config: Config, block: Block) -> list[Run]:
    return [Run(block=block, count=config.integer("num_hidden_layers"))]


def _dense(config: Config) -> Mlp:
    return Mlp(
        hidden=config.integer("intermediate_size"),
        gated=True,
        biases=config.flag("mlp_bias", False),
    )


def _llama(config: Config, name: str, source: str) -> Architecture:
    bias = config.flag("attention_bias", False)
    block = _decoder(
        config, "decoder", _dense(config), biases=bias, output_bias=bias
    )
    runs = _equal_blocks(config, block)
    return _one_tower(config, name, source, runs, tied=False, length=2048)


def _window(config: Config, default: int) -> int:
    """Read a sliding window; ``null`` is none."""
    if "sliding_window" in config.fields:
        return config.integer("sliding_window", default=0)
    return default


def _mistral(config: Config, name: str, source: str) -> Architecture:
    block = _decoder(
        config,
        "decoder",
        _dense(config),
        window=_window(config, 4096),
        default_kv_heads=8,
    )
    runs = _equal_blocks(config, block)
    return _one_tower(config, name, source, runs, tied=False, length=131072)


def _experts(
    config: Config,
    count: tuple[str, ...],
    hidden: tuple[str, ...],
    shared: int = 0,
) -> Mlp:
    """Return routed experts; a token visits at most all of them."""
    experts = config.integer(*count)
    visits = config.integer("num_experts_per_tok")
    if visits > experts:
        raise config.refuse(
            "num_experts_per_tok",
            f"at most the {experts} experts",
            str(visits),
            "correct one of them",
        )
    width = config.integer(*hidden)
    return Mlp(
        hidden=width,
        gated=True,
        experts=experts,
        experts_per_token=visits,
        shared_hidden=shared * width,
    )


def _mixtral(config: Config, name: str, source: str) -> Architecture:
    block = _decoder(
        config,
        "decoder",
        _experts(config, ("num_local_experts",), ("intermediate_size",)),
        window=_window(config, 0),
        default_kv_heads=8,
    )
    runs = _equal_blocks(config, block)
    return _one_tower(config, name, source, runs, tied=False, length=131072)


def _qwen2(config: Config, name: str, source: str) -> Architecture:
    block = _decoder(config, "decoder", _dense(config), biases=True)
    runs = _equal_blocks(config, block)
    return _one_tower(config, name, source, runs, tied=False, length=32768)


def _qwen3(config: Config, name: str, source: str) -> Architecture:
    bias = config.flag("attention_bias", False)
    block = _decoder(
        config,
        "decoder",
        _dense(config),
        head_size=128,
        biases=bias,
        output_bias=bias,
        query_key_norm=True,
    )
    runs = _equal_blocks(config, block)
    return _one_tower(config, name, source, runs, tied=False, length=32768)


def _qwen3_moe(config: Config, name: str, source: str) -> Architecture:
    bias = config.flag("attention_bias", False)

    def block(label: str, mlp: Mlp) -> Block:
        return _decoder(
            config,
            label,
            mlp,
            biases=bias,
            output_bias=bias,
            query_key_norm=True,
            default_kv_heads=4,
        )

    sparse = _experts(config, ("num_experts",), ("moe_intermediate_size",))
    layers = config.integer("num_hidden_layers")
    step = config.integer("decoder_sparse_step", default=1)
    dense = config.fields.get("mlp_only_layers") or []
    if not isinstance(dense, list) or any(
        isinstance(i, bool) or not isinstance(i, int) for i in dense
    ):
        raise config.refuse(
            "mlp_only_layers",
            "a list of integers",
            _shown(dense),
            "correct its type",
        )
    kinds = [i not in dense and (i + 1) % step == 0 for i in range(layers)]
    runs: list[Run] = []
    for is_sparse in kinds:
        shape = (
            block("decoder" if all(kinds) else "sparse", sparse)
            if is_sparse
            else block("dense", _dense(config))
        )
        _extend(runs, shape)
    return _one_tower(config, name, source, runs, tied=False, length=32768)


def _extend(runs: list[Run], block: Block) -> None:
    """Append a block, as part of the last run where it is equal."""
    if runs and runs[-1].block == block:
        runs[-1] = Run(block=block, count=runs[-1].count + 1)
    else:
        runs.append(Run(block=block, count=1))


def _gemma(config: Config, name: str, source: str) -> Architecture:
    block = _decoder(config, "decoder", _dense(config), head_size=256)
    runs = _equal_blocks(config, block)
    return _one_tower(config, name, source, runs, tied=True, length=8192)


def _gemma2(config: Config, name: str, source: str) -> Architecture:
    heads = config.integer("num_attention_heads")
    layers = config.integer("num_hidden_layers")
    # An odd last layer is a local one.
    repeat = 1 if layers % 2 else layers // 2
    runs = gemma2_runs(
        layers=layers // repeat,
        hidden=config.integer("hidden_size"),
        heads=heads,
        kv_heads=config.kv_heads(heads, 4),
        head_size=config.integer("head_dim", default=256),
        mlp_hidden=config.integer("intermediate_size"),
        window=config.integer("sliding_window", default=4096),
    )
    return _one_tower(
        config, name, source, runs, tied=True, length=8192, repeat=repeat
    )


def _deepseek(config: Config, name: str, source: str) -> Architecture:
    if config.fields.get("n_routed_experts") is None:
        raise config.refuse(
            "n_routed_experts",
            "an integer",
            "no such field",
            "add it or check model_type",
        )
    frequency = config.integer("moe_layer_freq", default=1)
    if frequency != 1:
        raise config.refuse(
            "moe_layer_freq",
            "1",
            str(frequency),
            "other patterns are not supported",
        )
    layers = config.integer("num_hidden_layers")
    shared = 0
    if config.fields.get("n_shared_experts"):
        shared = config.integer("n_shared_experts")
    experts = _experts(
        config, ("n_routed_experts",), ("moe_intermediate_size",), shared
    )
    first = config.fields.get("first_k_dense_replace") or 0
    if isinstance(first, bool) or not isinstance(first, int):
        raise config.refuse(
            "first_k_dense_replace",
            "an integer",
            _shown(first),
            "correct its type",
        )
    if not 0 <= first <= layers:
        raise config.refuse(
            "first_k_dense_replace",
            f"an integer from 0 to the {layers} layers",
            str(first),
            "correct the value",
        )
    query_rank = 0
    if config.fields.get("q_lora_rank") is not None:
        query_rank = config.integer("q_lora_rank")
    runs = latent_runs(
        layers=layers,
        dense_layers=first,
        hidden=config.integer("hidden_size"),
        heads=config.integer("num_attention_heads"),
        query_rank=query_rank,
        key_value_rank=config.integer("kv_lora_rank"),
        plain_size=config.integer("qk_nope_head_dim"),
        rotary_size=config.integer("qk_rope_head_dim"),
        value_size=config.integer("v_head_dim"),
        dense_hidden=config.integer("intermediate_size"),
        experts=experts,
    )
    return _one_tower(config, name, source, runs, tied=False, length=4096)


def _bert(config: Config, name: str, source: str) -> Architecture:
    config.divided(("hidden_size",), ("num_attention_heads",))
    return bert(
        name,
        source,
        layers=config.integer("num_hidden_layers"),
        hidden=config.integer("hidden_size"),
        heads=config.integer("num_attention_heads"),
        mlp_hidden=config.integer("intermediate_size"),
        vocabulary=config.integer("vocab_size"),
        max_sequence=config.integer("max_position_embeddings", default=512),
        token_types=config.integer("type_vocab_size", default=2),
        dropout=config.rate("hidden_dropout_prob", default=0.1) > 0,
    )


def _t5(config: Config, name: str, source: str) -> Architecture:
    layers = config.integer("num_layers")
    form = config.fields.get("feed_forward_proj", "relu")
    if not isinstance(form, str):
        raise config.refuse(
            "feed_forward_proj", "a string", _shown(form), "correct its type"
        )
    length = config.integer("n_positions", default=T5_SEQUENCE)
    return t5(
        name,
        source,
        layers=layers,
        decoder_layers=config.integer("num_decoder_layers", default=layers),
        hidden=config.integer("d_model"),
        heads=config.integer("num_heads"),
        head_size=config.integer("d_kv"),
        mlp_hidden=config.integer("d_ff"),
        vocabulary=config.integer("vocab_size"),
        max_sequence=length,
        target_length=max(length // TARGET_SHARE, 1),
        gated=form.startswith("gated"),
        tied=config.flag("tie_word_embeddings", True),
        dropout=config.rate("dropout_rate", default=0.1) > 0,
        position_buckets=config.integer(
            "relative_attention_num_buckets", default=32
        ),
    )


def _patches(config: Config) -> tuple[int, int]:
    """Read the sizes of image and patch; patches tile the image."""
    image = config.integer("image_size", default=224)
    patch = config.integer("patch_size", default=16)
    if image % patch:
        raise config.refuse(
            "patch_size",
            f"a divisor of image_size = {image}",
            str(patch),
            "correct one of them",
        )
    return image, patch


def _vit(config: Config, name: str, source: str) -> Architecture:
    config.divided(("hidden_size",), ("num_attention_heads",))
    image, patch = _patches(config)
    labels = config.fields.get("id2label")
    classes = len(labels) if isinstance(labels, dict) and labels else 0
    return vit(
        name,
        source,
        layers=config.integer("num_hidden_layers"),
        hidden=config.integer("hidden_size"),
        heads=config.integer("num_attention_heads"),
        mlp_hidden=config.integer("intermediate_size"),
        image_size=image,
        patch_size=patch,
        channels=config.integer("num_channels", default=3),
        classes=classes or config.integer("num_labels", default=1000),
        dropout=config.rate("hidden_dropout_prob", default=0.0) > 0,
    )


def _clip(config: Config, name: str, source: str) -> Architecture:
    parts = {}
    for label in ("vision", "text"):
        part = config.part(f"{label}_config")
        part.divided(("hidden_size",), ("num_attention_heads",))
        parts[label] = part
    vision, text = parts["vision"], parts["text"]
    image, patch = _patches(vision)

    def block(label: str) -> Block:
        part = parts[label]
        return encoder_block(
            label,
            hidden=part.integer("hidden_size"),
            heads=part.integer("num_attention_heads"),
            mlp_hidden=part.integer("intermediate_size"),
            causal=label == "text",
        )

    return clip(
        name,
        source,
        vision=block("vision"),
        vision_layers=vision.integer("num_hidden_layers"),
        image_size=image,
        patch_size=patch,
        channels=vision.integer("num_channels", default=3),
        text=block("text"),
        text_layers=text.integer("num_hidden_layers"),
        vocabulary=text.integer("vocab_size", default=49408),
        text_length=text.integer("max_position_embeddings", default=77),
        joint=config.integer("projection_dim", default=512),
    )


#: Families by ``model_type``.
FAMILIES: dict[str, Callable[[Config, str, str], Architecture]] = {
    "bert": _bert,
    "bloom": _bloom,
    "clip": _clip,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "opt": _opt,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "t5": _t5,
    "vit": _vit,
}


def read_hf(path: str | Path) -> Architecture:
    """Return the architecture that a ``config.json`` describes.

    The name is that of the model in the file (``_name_or_path``), or else of
    the folder that the file is in.

    Raises
    ------
    InvalidProblemError
        If the file is missing or is no JSON object, or a field is missing,
        of another type, out of range or inconsistent.
    UnknownNameError
        If ``model_type`` is not a known family.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidProblemError(
            f"{path}: expected a config.json of Hugging Face, got "
            f"{error.strerror or error}; check the path"
        ) from None
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidProblemError(
            f"{path}: expected JSON, got a syntax error ({error}); correct "
            f"the file"
        ) from None
    except RecursionError:
        raise InvalidProblemError(
            f"{path}: expected JSON, got objects nested too deeply; correct "
            f"the file"
        ) from None
    if not isinstance(fields, dict):
        raise InvalidProblemError(
            f"{path}: expected a JSON object, got {_shown(fields)}; pass the "
            f"model's config.json"
        )
    stated = fields.get("_name_or_path")
    name = stated if isinstance(stated, str) and stated else ""
    name = Path(name).name or file.resolve().parent.name or "model"
    return from_hf(fields, name=name, where=str(path))


def from_hf(
    fields: dict[str, Any], *, name: str = "model", where: str = "config"
) -> Architecture:
    """Return the architecture of a decoded configuration.

    Parameters
    ----------
    fields
        The JSON object; what is not needed is ignored.
    name
        Of the model.
    where
        Of the configuration, in messages.

    Raises
    ------
    InvalidProblemError
        If a field is missing, of another type, out of range or inconsistent.
    UnknownNameError
        If ``model_type`` is not a known family.
    """
    config = Config(fields, where)
    family = fields.get("model_type")
    if not isinstance(family, str):
        got = "no such field" if family is None else _shown(family)
        raise config.refuse(
            "model_type",
            f"one of {', '.join(sorted(FAMILIES))}",
            got,
            "add the family of the model",
        )
    if family not in FAMILIES:
        raise UnknownNameError(f"{where}: model_type", family, FAMILIES)
    return FAMILIES[family](config, name, f"Hugging Face {family}, {name}")
