"""Which layers of a Hugging Face model have which attention and experts.

Records of families name these rules: :data:`LAYOUTS` by ``layout``,
:data:`SPARSE_LAYERS` by ``sparse_layers``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NoReturn

from nest.models.hf.config import Config

#: Words of ``layer_types``, and what they are here.
LAYER_TYPES = {
    "full_attention": "global",
    "attention": "global",
    "sliding_attention": "local",
    "chunked_attention": "local",
    "indexed_attention": "global",
    "compressed_sparse_attention": "global",
    "heavily_compressed_attention": "global",
    "minimax_m3_sparse": "local",
    "linear_attention": "mixer",
    "mamba": "mixer",
    "conv": "mixer",
    "hybrid": "hybrid",
}

#: Words of ``mlp_layer_types``: whether a layer has experts.
MLP_TYPES = {"dense": "dense", "sparse": "sparse"}


def every_nth(layers: int, step: int, last: str, others: str) -> list[str]:
    """Return one kind for every ``step``-th layer, another for others."""
    return [others if (i + 1) % step else last for i in range(layers)]


def rotary_layers(config: Config, layers: int) -> list[bool]:
    """Return which layers rotate queries and keys: those listed as 1."""
    listed = config.listed("no_rope_layers", int, "integers")
    if not listed:
        step = config.integer("no_rope_layer_interval", default=4)
        return [(i + 1) % step != 0 for i in range(layers)]
    config.check_length("no_rope_layers", listed, layers)
    return [bool(entry) for entry in listed]


def _windows_by_flag(config: Config, layers: int) -> list[str]:
    """Layers from ``max_window_layers`` on, if windows are switched on."""
    if not config.flag("use_sliding_window", False):
        return ["global"] * layers
    first = config.integer("max_window_layers", default=28, minimum=0)
    return ["local" if i >= first else "global" for i in range(layers)]


def _gpt_neo(config: Config, layers: int) -> list[str]:
    """Layers are listed, or every second one is local."""
    kinds = {"global": "global", "local": "local"}
    listed = config.per_layer("attention_layers", layers, kinds)
    return listed or every_nth(layers, 2, "local", "global")


def _llama4(config: Config, layers: int) -> list[str]:
    """Layers that rotate queries and keys see one chunk of the sequence."""
    rotary = rotary_layers(config, layers)
    return ["local" if rotates else "global" for rotates in rotary]


def _mimo(_config: Config, layers: int) -> list[str]:
    """Return ``global`` for the first layer and every sixth one."""
    return ["global", *every_nth(layers, 6, "global", "local")[1:]]


def _jamba(config: Config, layers: int) -> list[str]:
    """One layer of each period has attention."""
    attends = _one_of_period(config, layers, name="attn_layer", period=8, offset=4)
    return ["global" if here else "mixer" for here in attends]


def _listed_attention(
    config: Config, layers: int, *, name: str, absent: str
) -> list[str]:
    """Return ``global`` for listed layers; ``absent`` is without a list."""
    listed = config.listed(name, int, "integers")
    if listed is None:
        return [absent] * layers
    return ["global" if i in listed else "mixer" for i in range(layers)]


def _griffin(config: Config, layers: int) -> list[str]:
    """Layers repeat the list ``block_types``."""
    entries = config.listed("block_types", str, "strings") or [
        "recurrent",
        "recurrent",
        "attention",
    ]
    kinds = {"recurrent": "mixer", "attention": "local"}
    for entry in entries:
        if entry not in kinds:
            raise config.refuse(
                "block_types", f"entries among {', '.join(kinds)}", entry
            )
    return [kinds[entries[i % len(entries)]] for i in range(layers)]


def _gemma4(_config: Config, layers: int) -> list[str]:
    """Return ``global`` for every sixth layer and the last one."""
    return [*every_nth(layers, 6, "global", "local")[:-1], "global"]


def _stated(config: Config, _layers: int) -> NoReturn:
    """Refuse a configuration without ``layer_types``."""
    raise config.refuse("layer_types", "a list of layers", "no such field", "add it")


#: Kinds of layers where ``layer_types`` is not stated, by name.
LAYOUTS: dict[str, Callable[[Config, int], list[str]]] = {
    "all global": lambda _config, layers: ["global"] * layers,
    "bamba": partial(_listed_attention, name="attn_layer_indices", absent="mixer"),
    "gemma4": _gemma4,
    "gpt_neo": _gpt_neo,
    "griffin": _griffin,
    "jamba": _jamba,
    "lfm2": partial(_listed_attention, name="full_attn_idxs", absent="global"),
    "llama4": _llama4,
    "mimo": _mimo,
    "qwen": _windows_by_flag,
    "stated": _stated,
}


def _one_of_period(
    config: Config, layers: int, *, name: str, period: int, offset: int
) -> list[bool]:
    """Return which layers are the one of their period; the numbers are defaults."""
    every = config.integer(f"{name}_period", default=period)
    at = config.integer(f"{name}_offset", default=offset, minimum=0)
    return [i % every == at for i in range(layers)]


def _all_but_listed(config: Config, layers: int) -> list[bool]:
    """Every ``decoder_sparse_step``-th layer but ``mlp_only_layers``."""
    step = config.integer("decoder_sparse_step", default=1)
    listed = config.listed("mlp_only_layers", int, "integers") or []
    return [i not in listed and (i + 1) % step == 0 for i in range(layers)]


def _all_but_first(config: Config, layers: int, *, default: int = 0) -> list[bool]:
    """Layers after the first dense ones, or those that are listed.

    ``default`` is the number of dense layers where none is stated.
    """
    stated = config.per_layer("mlp_layer_types", layers, MLP_TYPES)
    if stated is not None:
        return [kind == "sparse" for kind in stated]
    names = ("first_k_dense_replace", "num_dense_layers")
    name = names[1] if config.has(names[1]) else names[0]
    dense = config.integer(name, default=default, minimum=0)
    if dense > layers:
        raise config.refuse(name, f"an integer from 0 to the {layers} layers", dense)
    return [i >= dense for i in range(layers)]


def _all_or_listed(config: Config, layers: int) -> list[bool]:
    """Return what ``mlp_layer_types`` says, else all layers."""
    stated = config.per_layer("mlp_layer_types", layers, MLP_TYPES)
    return [kind == "sparse" for kind in stated or ["sparse"] * layers]


def _ernie(config: Config, layers: int) -> list[bool]:
    """Every ``moe_layer_interval``-th layer from a first to a last one."""
    step = config.integer("moe_layer_interval", default=1)
    first = config.integer("moe_layer_start_index", default=1, minimum=0)
    last = config.integer("moe_layer_end_index", default=-1, minimum=-1)
    if last < 0:
        last = layers - 1
    return [(i + 1) % step == 0 and first <= i <= last for i in range(layers)]


def _llama4_experts(config: Config, layers: int) -> list[bool]:
    """Layers that are listed, or every ``interleave_moe_layer_step``-th."""
    listed = config.listed("moe_layers", int, "integers")
    if listed is None:
        step = config.integer("interleave_moe_layer_step", default=1)
        return [(i + 1) % step == 0 for i in range(layers)]
    return [i in listed for i in range(layers)]


#: Which layers have experts, by name.
SPARSE_LAYERS: dict[str, Callable[[Config, int], list[bool]]] = {
    "ernie": _ernie,
    "first dense": _all_but_first,
    "jamba": partial(_one_of_period, name="expert_layer", period=2, offset=1),
    "listed": _all_or_listed,
    "llama4": _llama4_experts,
    "one dense": partial(_all_but_first, default=1),
    "qwen": _all_but_listed,
}
