"""Mixers of Hugging Face models: state spaces, linear attention, convolutions.

Records of families name them, see :data:`MIXERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from nest.models.blocks import Linear, Mixer
from nest.models.hf.config import Config

#: Tokens of a chunk in which linear attention with a delta rule is trained
#: (Yang et al. 2024, arXiv 2406.06484, §3).
DELTA_CHUNK = 64


def selective_scan(config: Config) -> Mixer:
    """Return a mixer of Mamba (Gu and Dao 2023, arXiv 2312.00752, §3).

    Every channel has a state of its own, which elementwise operations
    advance; reading it is a product with the state.
    """
    hidden = config.integer("hidden_size")
    jamba = config.has("mamba_d_state")
    if jamba:
        inner = hidden * config.integer("mamba_expand", default=2)
        state = config.integer("mamba_d_state")
        kernel = config.integer("mamba_d_conv", default=4)
        biases = config.flag("mamba_proj_bias", False)
        convolved = config.flag("mamba_conv_bias", True)
        name = "mamba_dt_rank"
    else:
        usual = hidden * config.integer("expand", default=2)
        inner = config.integer("intermediate_size", default=usual)
        state = config.integer("state_size", default=16)
        kernel = config.integer("conv_kernel", default=4)
        biases = config.flag("use_bias", False)
        convolved = config.flag("use_conv_bias", True)
        name = "time_step_rank"
    rank = -(-hidden // 16)
    if config.fields.get(name) != "auto":
        rank = config.integer(name, default=rank)
    return Mixer(
        kind="mamba",
        heads=inner,
        linears=(
            Linear(name="in", inputs=hidden, outputs=2 * inner, bias=biases),
            Linear(
                name="scan inputs", inputs=inner, outputs=rank + 2 * state, cut="inputs"
            ),
            Linear(name="time steps", inputs=rank, outputs=inner, bias=True),
            _output(inner, hidden, bias=biases),
        ),
        channels=inner,
        kernel=kernel,
        convolution_bias=convolved,
        inner=inner,
        vectors=inner * (state + 1),
        # Jamba normalizes what the scan reads.
        common=rank + 2 * state if jamba else 0,
        core_flops=2 * inner * state,
        core_values=4 * inner + 2 * state,
    )


class StateSpace(NamedTuple):
    """Sizes of a mixer of Mamba-2."""

    #: Heads and channels of each.
    heads: int
    head_size: int
    #: Groups that share what reads and writes a state; width of a state.
    groups: int
    state: int
    #: Tokens of the convolution, and of a chunk of the scan.
    kernel: int
    chunk: int
    #: Whether layers before the scan, the convolution and the layer after have biases.
    biases: bool = False
    convolution_bias: bool = True
    output_bias: bool = False
    #: Whether the output is normalized.
    norm: bool = True


def state_space(hidden: int, scan: StateSpace) -> Mixer:
    """Return a mixer of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060, §6).

    In chunks of ``Q`` tokens, per token: ``2QGN`` FLOPs for the scores of
    the groups, ``2Qd`` to apply them, ``2Nd`` each to make a state and to
    read it, for ``d`` channels of all heads.
    """
    heads, groups, state = scan.heads, scan.groups, scan.state
    inner = heads * scan.head_size
    shared = 2 * groups * state
    return Mixer(
        kind="mamba2",
        heads=heads,
        linears=(
            _columns("in", hidden, 2 * inner + heads, heads, bias=scan.biases),
            _columns("scan inputs", hidden, shared, groups, bias=scan.biases),
            _output(inner, hidden, bias=scan.output_bias),
        ),
        channels=inner + shared,
        kernel=scan.kernel,
        convolution_bias=scan.convolution_bias,
        inner=inner,
        vectors=3 * heads + (inner if scan.norm else 0),
        core_flops=2 * scan.chunk * (groups * state + inner) + 4 * state * inner,
        core_values=3 * inner + shared + heads,
    )


def mamba2(config: Config) -> Mixer:
    """Read the mixer of Mamba-2 by the names of its own family."""
    biases = config.flag("use_bias", False)
    scan = StateSpace(
        heads=config.integer("num_heads", "mamba_num_heads"),
        head_size=config.integer("head_dim", "mamba_head_dim"),
        groups=config.integer("n_groups", default=8),
        state=config.integer("state_size", "ssm_state_size", default=128),
        kernel=config.integer("conv_kernel", default=4),
        chunk=config.integer("chunk_size", default=256),
        biases=biases,
        convolution_bias=config.flag("use_conv_bias", True),
        output_bias=biases,
    )
    return state_space(config.integer("hidden_size"), scan)


def nemotron(config: Config) -> Mixer:
    """Read the mixer of Nemotron-H, whose own ``head_dim`` is attention's."""
    return mamba2(config.updated(head_dim=None))


def bamba(config: Config, *, own_sizes: bool = False) -> Mixer:
    """Read the mixer of Mamba-2 by the names that Bamba gives it.

    With ``own_sizes`` (Falcon H1) further fields state its width, the biases of its
    output, and whether that is normalized.
    """
    hidden = config.integer("hidden_size")
    inner = hidden * config.integer("mamba_expand", default=2)
    biases = output_bias = config.flag("mamba_proj_bias", False)
    norm = True
    if own_sizes:
        inner = config.integer("mamba_d_ssm", default=inner)
        output_bias = config.flag("projectors_bias", False)
        norm = config.flag("mamba_rms_norm", False)
    heads = config.integer("mamba_n_heads", default=128)
    config.divisor("mamba_n_heads", heads, f"{inner} channels", inner)
    scan = StateSpace(
        heads=heads,
        head_size=inner // heads,
        groups=config.integer("mamba_n_groups", default=1),
        state=config.integer("mamba_d_state", default=256),
        kernel=config.integer("mamba_d_conv", default=4),
        chunk=config.integer("mamba_chunk_size", default=256),
        biases=biases,
        convolution_bias=config.flag("mamba_conv_bias", True),
        output_bias=output_bias,
        norm=norm,
    )
    return state_space(hidden, scan)


def zamba2(config: Config) -> Mixer:
    """Read the mixer of Mamba-2 by the names that Zamba2 gives it."""
    hidden = config.integer("hidden_size")
    inner = hidden * config.integer("mamba_expand", default=2)
    heads = config.integer("n_mamba_heads", default=8)
    config.divisor("n_mamba_heads", heads, f"{inner} channels", inner)
    scan = StateSpace(
        heads=heads,
        head_size=inner // heads,
        groups=config.integer("mamba_ngroups", default=1),
        state=config.integer("mamba_d_state", default=64),
        kernel=config.integer("mamba_d_conv", default=4),
        chunk=config.integer("chunk_size", default=256),
    )
    return state_space(hidden, scan)


def delta_rule(config: Config) -> Mixer:
    """Return a gated delta net (Yang et al. 2024, arXiv 2412.06464, §3).

    In chunks of ``Q`` tokens, per token and head: two products of keys and queries with
    keys, ``4Q d_k``, the solved system times keys and values, ``2Q(d_k + d_v)``, scores
    times values, ``2Q d_v``, and three products with the state, ``6 d_k d_v``.
    """
    hidden = config.integer("hidden_size")
    key_heads = config.integer("linear_num_key_heads")
    heads = config.integer("linear_num_value_heads")
    key_size = config.integer("linear_key_head_dim")
    value_size = config.integer("linear_value_head_dim")
    config.divisor("linear_num_key_heads", key_heads, f"the {heads} value heads", heads)
    keys, inner = key_heads * key_size, heads * value_size
    return Mixer(
        kind="delta",
        heads=heads,
        linears=(
            _columns("query key", hidden, 2 * keys, key_heads),
            _columns("value gate", hidden, 2 * inner + 2 * heads, heads),
            _output(inner, hidden),
        ),
        channels=2 * keys + inner,
        kernel=config.integer("linear_conv_kernel_dim", default=4),
        inner=inner,
        vectors=2 * heads,
        common=value_size,
        core_flops=heads * _delta_flops(key_size, value_size),
        core_values=2 * keys + 3 * inner + 2 * heads,
    )


def _delta_flops(key_size: int, value_size: int) -> int:
    """Return the FLOPs per token and head of a delta rule in chunks."""
    inside = DELTA_CHUNK * (6 * key_size + 4 * value_size)
    return inside + 6 * key_size * value_size


def lightning(config: Config) -> Mixer:
    """Return lightning attention (Qin et al. 2024, arXiv 2401.04658, §3).

    In blocks of ``Q`` tokens, per token and head: ``4Qd`` as attention
    inside the block, ``4d²`` with the state of all blocks before it.
    """
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    size = config.head_size()
    if config.has("head_dim"):
        size = config.integer("head_dim")
    inner = heads * size
    block = config.integer("block_size", default=256)
    return Mixer(
        kind="lightning",
        heads=heads,
        linears=(
            _columns("qkv", hidden, 3 * inner, heads),
            _columns("gate", hidden, inner, heads),
            _output(inner, hidden),
        ),
        inner=inner,
        vectors=inner,
        core_flops=4 * inner * (block + size),
        core_values=4 * inner,
    )


def short_convolution(config: Config) -> Mixer:
    """Return the gated short convolution of LFM2."""
    hidden = config.integer("hidden_size")
    biases = config.flag("conv_bias", False)
    return Mixer(
        kind="convolution",
        heads=hidden,
        linears=(
            Linear(name="in", inputs=hidden, outputs=3 * hidden, bias=biases),
            _output(hidden, hidden, bias=biases),
        ),
        channels=hidden,
        kernel=config.integer("conv_L_cache", default=3),
        convolution_bias=biases,
        inner=hidden,
    )


def gated_recurrence(config: Config) -> Mixer:
    """Return the RG-LRU of Griffin (De et al. 2024, arXiv 2402.19427, §2.4).

    Its gates are matrices of one block per head.
    """
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    width = config.integer("lru_width", default=hidden)
    config.divisor("num_attention_heads", heads, f"lru_width = {width}", width)
    return Mixer(
        kind="recurrence",
        heads=heads,
        linears=(
            _columns("in", hidden, 2 * width, heads, bias=True),
            Linear(
                name="gates",
                inputs=width,
                outputs=2 * width,
                bias=True,
                units=heads,
                blocks=heads,
            ),
            _output(width, hidden, bias=True),
        ),
        channels=width,
        kernel=config.integer("conv1d_width", default=4),
        convolution_bias=True,
        inner=width,
        vectors=width,
        core_values=4 * width,
    )


def kimi_delta(config: Config, *, whole: bool = False) -> Mixer:
    """Return Kimi's delta attention: a decay per channel.

    Decay and gate have low rank, or are ``whole`` matrices.
    """
    hidden = config.integer("hidden_size")
    heads = config.integer("linear_num_heads")
    size = config.integer("linear_head_dim")
    inner = heads * size
    gates = [_columns("gates", hidden, 2 * inner, heads)]
    if not whole:
        gates = [
            linear
            for name in ("decay", "gate")
            for linear in (
                uncut(f"{name} down", hidden, size),
                _columns(f"{name} up", size, inner, heads),
            )
        ]
    return Mixer(
        kind="delta",
        heads=heads,
        linears=(
            _columns("qkv", hidden, 3 * inner + heads, heads),
            *gates,
            _output(inner, hidden),
        ),
        channels=3 * inner,
        kernel=config.integer("linear_conv_kernel_dim", default=4),
        inner=inner,
        vectors=inner + heads,
        common=size,
        core_flops=heads * _delta_flops(size, size),
        core_values=6 * inner,
    )


def adapter(hidden: int, rank: int, width: int) -> Mixer:
    """Return what a layer of Zamba2 adds to a block that layers share.

    An adapter of its MLP, of low rank, and a linear layer after the block.
    """
    return Mixer(
        kind="adapter",
        heads=width,
        linears=(
            uncut("down", hidden, rank),
            Linear(name="up", inputs=rank, outputs=2 * width),
            _output(hidden, hidden),
        ),
        inner=hidden,
    )


def hyper_connections(config: Config, outputs: int, scales: int) -> Mixer:
    """Return what joins residual streams before, and parts them after, two parts.

    Each of both has a product of all streams and ``scales`` numbers (DeepSeek-V4).
    """
    hidden = config.integer("hidden_size")
    width = config.integer("hc_mult", default=4) * hidden
    return Mixer(
        kind="streams",
        heads=hidden,
        linears=tuple(
            uncut(f"{name} streams", width, outputs) for name in ("attention", "mlp")
        ),
        inner=hidden,
        common=2 * (outputs + scales),
    )


def compressed_attention(config: Config, kind: str) -> Mixer:
    """Return the attention of DeepSeek-V4 in a layer of that type.

    Queries have low rank, one head of keys is the values too, and outputs are
    projected in groups. A token sees a window, and of compressed tokens those that an
    indexer picks, or all; the core counts the window and what is picked.
    """
    hidden = config.integer("hidden_size")
    heads, size = config.integer("num_attention_heads"), config.integer("head_dim")
    rank = config.integer("q_lora_rank")
    groups, group_rank = config.integer("o_groups"), config.integer("o_lora_rank")
    config.divisor("o_groups", groups, f"the {heads} attention heads", heads)
    inner = heads * size
    linears = [
        uncut("query down", hidden, rank),
        _columns("query up", rank, inner, heads),
        uncut("key value", hidden, size),
    ]
    common = rank + size
    seen = config.integer("sliding_window", default=128)
    scored = 0
    if kind != "sliding_attention":
        rates = config.nested("compress_rates")
        indexed = kind == "compressed_sparse_attention"
        width = 2 * size if indexed else size
        linears.append(uncut("compressor", hidden, 2 * width))
        common += rates.integer(kind) * width + size
        if indexed:
            index_heads = config.integer("index_n_heads")
            index_size = config.integer("index_head_dim")
            seen += config.integer("index_topk")
            scored = index_heads * index_size
            linears += [
                uncut("index keys", hidden, 4 * index_size + index_heads),
                uncut("index query", rank, scored),
            ]
            common += (2 * rates.integer(kind) + 1) * index_size
    return Mixer(
        kind="compressed",
        heads=heads,
        linears=(
            *linears,
            Linear(
                name="group outputs",
                inputs=inner,
                outputs=groups * group_rank,
                units=groups,
                blocks=groups,
            ),
            _output(groups * group_rank, hidden),
        ),
        inner=inner,
        vectors=heads,
        common=common,
        core_flops=4 * inner * seen + 2 * scored * seen,
        core_values=3 * inner + 2 * size,
    )


def layer_input(hidden: int, width: int, more: tuple[Linear, ...] = ()) -> Mixer:
    """Return what adds a layer's input from a table (Gemma 3n), with other parts."""
    return Mixer(
        kind="input",
        heads=width,
        linears=(
            _columns("input gate", hidden, width, width),
            *more,
            _output(width, hidden),
        ),
        inner=width,
    )


def _output(inputs: int, outputs: int, *, bias: bool = False) -> Linear:
    """Return the last layer, whose inputs tensor parallelism cuts."""
    return Linear(name="out", inputs=inputs, outputs=outputs, bias=bias, cut="inputs")


def _columns(
    name: str, inputs: int, outputs: int, units: int, *, bias: bool = False
) -> Linear:
    """Return a layer whose outputs are cut into at most ``units``."""
    return Linear(name=name, inputs=inputs, outputs=outputs, bias=bias, units=units)


def uncut(name: str, inputs: int, outputs: int) -> Linear:
    """Return a layer of which every rank holds a copy."""
    return Linear(name=name, inputs=inputs, outputs=outputs, cut="nothing")


#: Mixers by the names that records of families use.
MIXERS: dict[str, Callable[[Config], Mixer]] = {
    "bamba": bamba,
    "delta rule": delta_rule,
    "falcon h1": partial(bamba, own_sizes=True),
    "gated recurrence": gated_recurrence,
    "kimi delta": kimi_delta,
    "kimi delta, whole gates": partial(kimi_delta, whole=True),
    "lightning": lightning,
    "mamba2": mamba2,
    "nemotron": nemotron,
    "selective scan": selective_scan,
    "short convolution": short_convolution,
    "zamba2": zamba2,
}
