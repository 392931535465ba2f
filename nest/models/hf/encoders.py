"""Encoders, encoder-decoders and two towers of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from nest.models.blocks import (
    NO_ATTENTION,
    NO_MLP,
    Attention,
    Block,
    Convolution,
    Head,
    Linear,
    Mixer,
    Mlp,
    RepeatedBlock,
    Tower,
)
from nest.models.hf.config import Config, Parts, shown
from nest.models.hf.family import FAMILIES, compressed, decoder, named
from nest.models.hf.layouts import LAYER_TYPES

#: Tokens of the targets of an encoder-decoder, as a share of its input: T5
#: trains on 114 (padded: 128) of 512.
TARGET_SHARE = 4

#: Input of a T5 whose configuration does not state a length.
T5_SEQUENCE = 512

#: Side of the images that a ResNet is trained with.
RESNET_PIXELS = 224

#: Classes of a classifier whose configuration does not name them.
NUM_LABELS = 2


class Encoder(NamedTuple):
    """A family like BERT, with its masked language model.

    Attributes
    ----------
    layers, hidden, heads, mlp
        Names of fields.
    spare_bias
        Whether an output layer that is not tied leaves a bias without use.
    token_types
        Default of the rows of the table of token types, ``None`` without.
    positions
        Whether it has a table of positions; else it is rotary.
    embedding_norm, final_norm
        As in :class:`nest.models.blocks.Tower`.
    plain
        Whether MLPs have a gate and linear layers of blocks no biases.
    buckets
        Default of the rows of a table of relative positions, ``None``
        without.
    dropout
        Name and default of the dropout rate.
    """

    layers: tuple[str, ...] = ("num_hidden_layers",)
    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    mlp: tuple[str, ...] = ("intermediate_size",)
    token_types: int | None = 2
    positions: bool = True
    embedding_norm: bool = True
    final_norm: bool = False
    plain: bool = False
    buckets: int | None = None
    spare_bias: bool = True
    dropout: tuple[str, float] = ("hidden_dropout_prob", 0.1)


ENCODERS = {
    "bert": Encoder(),
    "camembert": Encoder(),
    "distilbert": Encoder(
        layers=("n_layers", "num_hidden_layers"),
        hidden=("dim", "hidden_size"),
        heads=("n_heads", "num_attention_heads"),
        mlp=("hidden_dim",),
        token_types=None,
        spare_bias=False,
        dropout=("dropout", 0.1),
    ),
    "megatron-bert": Encoder(embedding_norm=False, final_norm=True),
    "mpnet": Encoder(token_types=None, buckets=32),
    "nomic_bert": Encoder(positions=False, plain=True),
    "roberta": Encoder(),
    "xlm-roberta": Encoder(),
    "xlm-roberta-xl": Encoder(
        token_types=1, embedding_norm=False, final_norm=True
    ),
}


def encoder(config: Config, family: Encoder) -> Parts:
    """Read BERT and such with its masked language model, without pooler."""
    block = Block(
        name="encoder",
        hidden=config.integer(*family.hidden),
        attention=_equal_heads(
            config.integer(*family.heads),
            config.head_size(family.hidden, family.heads),
            biases=not family.plain,
            causal=False,
            rotary=not family.positions,
        ),
        mlp=Mlp(
            hidden=config.integer(*family.mlp),
            gated=family.plain,
            biases=not family.plain,
        ),
        layer_norm=True,
        dropout=config.drops(*family.dropout),
    )
    vocabulary = config.integer("vocab_size")
    length = config.integer("max_position_embeddings", default=512)
    types = 0
    if family.token_types is not None:
        types = config.integer(
            "type_vocab_size", default=family.token_types, least=0
        )
    buckets = 0
    if family.buckets is not None:
        buckets = config.integer(
            "relative_attention_num_buckets", default=family.buckets
        )
    tower = Tower(
        runs=(
            RepeatedBlock(block=block, count=config.integer(*family.layers)),
        ),
        vocabulary=vocabulary,
        learned_positions=length if family.positions else 0,
        token_types=types,
        relative_buckets=buckets,
        embedding_norm=family.embedding_norm,
        final_norm=family.final_norm,
    )
    tied = config.flag("tie_word_embeddings", True)
    head = Head(
        outputs=vocabulary,
        tied=tied,
        bias=True,
        spare_bias=family.spare_bias and not tied,
        transform=True,
    )
    return Parts((tower,), head, length)


def ernie(config: Config) -> Parts:
    """Read ERNIE, which may have a table of tasks: more rows of types."""
    parts = encoder(config, Encoder())
    if not config.flag("use_task_id", False):
        return parts
    rows = config.integer("task_type_vocab_size", default=3)
    return _more_types(parts, rows)


def electra(config: Config) -> Parts:
    """Read ELECTRA's generator, whose tables may be narrower than blocks."""
    parts = encoder(config, Encoder(spare_bias=False))
    size = config.integer("embedding_size", default=128)
    if size == parts.towers[0].hidden:
        return parts
    parts = parts.with_tower(embedding_size=size, narrow=True)
    return parts.with_head(transform_size=size)


def _more_types(parts: Parts, rows: int) -> Parts:
    """Return an encoder with more rows in its table of token types."""
    return parts.with_tower(token_types=parts.towers[0].token_types + rows)


def deberta(config: Config) -> Parts:
    """Read DeBERTa without relative positions; its keys have no bias.

    Raises
    ------
    InvalidProblemError
        If it has relative positions.
    """
    config.must_be(
        "relative_attention",
        False,
        default=False,
        why="projections of relative positions are not supported",
    )
    return _deberta(config).with_attention(unbiased_keys=True)


def deberta_v2(config: Config) -> Parts:
    """Read DeBERTa-v2 and v3, with a table of relative positions.

    Its rows, and the two vectors of the norm behind it, count as rows of the
    table of token types; what they add to the scores is left out.

    Raises
    ------
    InvalidProblemError
        If relative positions have projections of their own, or tokens are
        convolved.
    """
    parts = _deberta(config)
    if config.integer("conv_kernel_size", default=0, least=0):
        raise config.refuse(
            "conv_kernel_size",
            "0",
            config.integer("conv_kernel_size"),
            "convolutions of tokens are not supported",
        )
    norms = config.typed(
        "norm_rel_ebd",
        config.fields.get("norm_rel_ebd") or "none",
        str,
        "a string",
    )
    rows = 2 if "layer_norm" in norms else 0
    if config.flag("relative_attention", False):
        config.must_be(
            "share_att_key",
            True,
            default=False,
            why="projections of relative positions are not supported",
        )
        rows += 2 * _reach(config)
    return _more_types(parts, rows)


def _reach(config: Config) -> int:
    """Return how far DeBERTa tells positions apart, in buckets."""
    for name in ("position_buckets", "max_relative_positions"):
        reach = config.integer(name, default=-1, least=-1)
        if reach > 0:
            return reach
    return config.integer("max_position_embeddings", default=512)


def _deberta(config: Config) -> Parts:
    parts = encoder(config, Encoder(token_types=0))
    hidden = parts.towers[0].hidden
    size = config.integer("embedding_size", default=hidden)
    if size != hidden:
        raise config.refuse("embedding_size", f"hidden_size = {hidden}", size)
    if not config.flag("position_biased_input", True):
        parts = parts.with_tower(learned_positions=0)
    if not config.flag("legacy", True):
        # This head multiplies with the table whatever is tied.
        parts = parts.with_head(tied=True, spare_bias=False)
    return parts


def modernbert(config: Config, *, causal: bool = False) -> Parts:
    """Read ModernBERT; its first layer has no norm in front of attention."""
    layers = config.integer("num_hidden_layers")
    hidden = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    step = config.integer("global_attn_every_n_layers", default=3)
    kinds = config.per_layer("layer_types", layers, LAYER_TYPES) or [
        "local" if i % step else "global" for i in range(layers)
    ]
    # As many tokens on either side as half of it.
    reach = config.integer("local_attention", default=128)
    if causal:
        reach = config.integer("sliding_window", default=reach // 2)
    biased = config.flag("attention_bias", False)
    vectors: Literal[1, 2] = 2 if config.flag("norm_bias", False) else 1
    mlp = Mlp(
        hidden=config.integer("intermediate_size"),
        gated=True,
        biases=config.flag("mlp_bias", False),
    )
    blocks = [
        Block(
            name="encoder",
            hidden=hidden,
            attention=_equal_heads(
                heads,
                config.head_size(),
                biases=biased,
                causal=causal,
                window=reach if kind == "local" else 0,
                rotary=True,
            ),
            mlp=mlp,
            norms=2 if index else 1,
            layer_norm=True,
            norm_vectors=vectors,
        )
        for index, kind in enumerate(kinds)
    ]
    runs, repeat = compressed(named(blocks))
    vocabulary = config.integer("vocab_size")
    tower = Tower(
        runs=runs, repeat=repeat, vocabulary=vocabulary, embedding_norm=True
    )
    head = Head(
        outputs=vocabulary,
        tied=config.flag("tie_word_embeddings", True),
        bias=config.flag("decoder_bias", True),
        transform=True,
        transform_bias=config.flag("classifier_bias", False),
        transform_vectors=vectors,
    )
    length = config.integer("max_position_embeddings", default=8192)
    return Parts((tower,), head, length)


def eurobert(config: Config) -> Parts:
    """Read EuroBERT: Llama whose tokens see all others."""
    parts = decoder(
        config,
        replace(
            FAMILIES["llama"], longest=8192, head_bias=("mlp_bias", False)
        ),
    )
    parts = parts.with_attention(causal=False)
    (run,) = parts.towers[0].runs
    block = replace(run.block, name="encoder")
    return parts.with_tower(runs=(replace(run, block=block),))


def vit(config: Config) -> Parts:
    """Read a vision transformer with its classifier.

    The vector of the class token is one more row of a table.
    """
    return _vision(config, biases=config.flag("qkv_bias", True))


def deit(config: Config) -> Parts:
    """Read DeiT, which has a token for distillation too."""
    return _vision(config, biases=config.flag("qkv_bias", True), rows=2)


def dinov2(config: Config, registers: int = 0) -> Parts:
    """Read DINOv2: scales of outputs, a mask token, perhaps registers.

    Class token and mean of all others enter the classifier side by side.
    """
    hidden = config.integer("hidden_size", default=768)
    ratio = config.integer("mlp_ratio", default=4)
    mlp = Mlp(hidden=hidden * ratio, biases=True)
    if config.flag("use_swiglu_ffn", False):
        width = (hidden * ratio * 2 // 3 + 7) // 8 * 8
        mlp = Mlp(hidden=width, gated=True, biases=True)
    if registers:
        registers = config.integer(
            "num_register_tokens", default=registers, least=0
        )
    parts = _vision(
        config,
        biases=config.flag("qkv_bias", True),
        mlp=mlp,
        vectors=2,
        more=1 + registers,
        seen=registers,
    )
    return parts.with_head(vectors=2)


def beit(config: Config) -> Parts:
    """Read BEiT with its classifier: no table of positions by default.

    Raises
    ------
    InvalidProblemError
        If it has biases of relative positions.
    """
    for name in (
        "use_relative_position_bias",
        "use_shared_relative_position_bias",
    ):
        config.must_be(
            name,
            False,
            default=False,
            why="biases of relative positions are not supported",
        )
    parts = _vision(
        config,
        vectors=2 if config.drops("layer_scale_init_value", 0.1) else 0,
        more=1 if config.flag("use_mask_token", False) else 0,
    ).with_attention(unbiased_keys=True)
    if not config.flag("use_absolute_position_embeddings", False):
        parts = parts.with_tower(learned_positions=0)
    return parts


def _vision(
    config: Config,
    *,
    biases: bool = True,
    rows: int = 1,
    mlp: Mlp | None = None,
    vectors: int = 0,
    more: int = 0,
    seen: int = 0,
) -> Parts:
    """Read a vision transformer and its classifier.

    Parameters
    ----------
    config
        Its configuration.
    biases
        Whether queries, keys and values have biases.
    rows
        Tokens in addition to the patches that have a position: of the class,
        for distillation.
    mlp
        Of its blocks; ``None`` reads it.
    vectors
        Scales of outputs in a block.
    more, seen
        Further vectors as wide as the stream, and how many of them are
        tokens.
    """
    patch_values, tokens = _patches(config)
    tokens += rows - 1
    run = _encoder(config, dropout=0.0, mlp=mlp)
    tower = Tower(
        runs=(replace(run, block=replace(run.block, vectors=vectors)),),
        patch_values=patch_values,
        learned_positions=tokens,
        token_types=rows + more,
        sequence_length=tokens + seen,
    )
    parts = Parts((tower,), classifier(config), tokens + seen)
    return parts.with_attention(biases=biases)


def classifier(config: Config) -> Head:
    """Return a linear layer to the classes that a configuration names."""
    labels = config.fields.get("id2label")
    classes = len(labels) if isinstance(labels, dict) else 0
    classes = classes or config.integer("num_labels", default=NUM_LABELS)
    return Head(outputs=classes, bias=True, pooled=True)


def resnet(config: Config) -> Parts:
    """Read a ResNet with its classifier, for images of 224 × 224 pixels.

    A stage is a tower: the first block, which changes width and resolution,
    stands in front of it, its other blocks are layers; positions are tokens.
    Convolutions are products with all that they see; a batch norm is behind
    each, and no rank shares one.

    Raises
    ------
    InvalidProblemError
        If a stage has one block only, or the lists do not fit together.
    """
    depths = config.listed("depths", int, "integers") or [3, 4, 6, 3]
    widths = config.listed("hidden_sizes", int, "integers")
    widths = widths or [256, 512, 1024, 2048]
    if len(depths) != len(widths) or min([*depths, 2]) < 2:
        raise config.refuse(
            "depths",
            f"{len(widths)} numbers from 2 on, one per entry of hidden_sizes",
            shown(depths),
            "correct one of them",
        )
    form = config.fields.get("layer_type") or "bottleneck"
    if form not in ("bottleneck", "basic"):
        raise config.refuse("layer_type", "bottleneck or basic", shown(form))
    inside = config.flag("downsample_in_bottleneck", False)
    stem = config.integer("embedding_size", default=64)
    # The stem and the pooling behind it halve the resolution twice.
    side, before = RESNET_PIXELS // 4, stem
    towers: list[Tower] = []
    for index, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        halves = index > 0 or config.flag("downsample_in_first_stage", False)
        stride = 4 if halves else 1
        side = -(-side // 2) if halves else side
        middle = max(width // 4, 1)
        if form == "basic":
            chain = [(before, width, 9, 1), (width, width, 9, 1)]
        else:
            chain = [
                (before, middle, 1, 1 if inside else stride),
                (middle, middle, 9, 1),
                (middle, width, 1, 1),
            ]
        if before != width or stride > 1:
            chain.append((before, width, 1, 1))
        if not index:
            pixels = config.integer("num_channels", default=3)
            chain.insert(0, (pixels, stem, 49, 4 * stride))
        mixer = _residual(width, middle, form)
        block = Block(
            name=form,
            hidden=width,
            attention=NO_ATTENTION,
            mlp=NO_MLP,
            mixer=mixer,
            norms=0,
        )
        towers.append(
            Tower(
                name=f"stage{index + 1}",
                runs=_equal(block, depth - 1),
                convolutions=tuple(
                    Convolution(
                        inputs=inputs,
                        outputs=outputs,
                        kernel=kernel,
                        positions=positions,
                        bias=False,
                        normed=True,
                    )
                    for inputs, outputs, kernel, positions in chain
                ),
                final_norm=False,
                sequence_length=side**2,
                follows=towers[-1].name if towers else None,
            )
        )
        before = width
    longest = max(tower.sequence_length or 0 for tower in towers)
    return Parts(tuple(towers), classifier(config), longest)


def _residual(width: int, middle: int, form: str) -> Mixer:
    """Return the convolutions of a block that keeps width and resolution."""
    if form == "basic":
        shapes = [(width, 9, width)] * 2
    else:
        shapes = [(width, 1, middle), (middle, 9, middle), (middle, 1, width)]
    linears = tuple(
        Linear(
            name=f"convolution {index + 1}",
            inputs=inputs * taps,
            outputs=outputs,
            taps=taps,
            cut="nothing",
        )
        for index, (inputs, taps, outputs) in enumerate(shapes)
    )
    return Mixer(
        kind="convolutions",
        heads=1,
        linears=linears,
        inner=width,
        common=2 * sum(outputs for _, _, outputs in shapes),
        normed=True,
    )


def clip(config: Config) -> Parts:
    """Read two towers whose pooled outputs meet in a joint space.

    The patches have no bias; the vector of the class token, as long, stands
    in its place.
    """
    vision, text = config.part("vision_config"), config.part("text_config")
    patch_values, tokens = _patches(vision)
    length = text.integer("max_position_embeddings", default=77)
    towers = (
        Tower(
            name="vision",
            runs=(_encoder(vision, "vision"),),
            patch_values=patch_values,
            learned_positions=tokens,
            embedding_norm=True,
            sequence_length=tokens,
        ),
        Tower(
            name="text",
            runs=(_encoder(text, "text", causal=True),),
            vocabulary=text.integer("vocab_size", default=49408),
            learned_positions=length,
            sequence_length=length,
        ),
    )
    joint = config.integer("projection_dim", default=512)
    head = Head(outputs=joint, pooled=True, temperature=True)
    return Parts(towers, head, max(tokens, length))


def t5(config: Config, *, in_all: bool = False) -> Parts:
    """Read an encoder-decoder whose decoder layers all read the encoder.

    Relative positions have a bias per head, of a table in either tower, or
    ``in_all`` layers.
    """
    heads, head_size = config.integer("num_heads"), config.integer("d_kv")
    form = config.typed(
        "feed_forward_proj",
        config.fields.get("feed_forward_proj", "relu"),
        str,
        "a string",
    )
    dense = Mlp(hidden=config.integer("d_ff"), gated=form.startswith("gated"))
    drops = config.drops("dropout_rate", default=0.1)
    layers = config.integer("num_layers")
    decoder_layers = config.integer("num_decoder_layers", default=layers)
    buckets = config.integer("relative_attention_num_buckets", default=32)
    attention = _equal_heads(heads, head_size, biases=False, causal=False)

    def tower(name: str, count: int, step: int) -> Tower:
        block = _half_block(
            name,
            hidden=config.integer("d_model"),
            attention=attention,
            mlp=dense,
            dropout=drops,
        )
        blocks = [block] * count
        if step:
            sparse = replace(block, mlp=_switched(config, dense))
            blocks = [
                sparse if step == 1 or i % step == 1 else block
                for i in range(count)
            ]
        runs, repeat = compressed(named(blocks) if step else blocks)
        return Tower(
            name=name,
            runs=runs,
            repeat=repeat,
            vocabulary=vocabulary,
            relative_buckets=buckets * (count if in_all else 1),
        )

    vocabulary = config.integer("vocab_size")
    length = config.integer("n_positions", default=T5_SEQUENCE)
    steps = (0, 0)
    if config.has("encoder_sparse_step") or config.has("decoder_sparse_step"):
        steps = (
            config.integer("encoder_sparse_step", default=0, least=0),
            config.integer("decoder_sparse_step", default=0, least=0),
        )
    towers = (
        tower("encoder", layers, steps[0]),
        replace(
            tower("decoder", decoder_layers, steps[1]),
            sequence_length=max(length // TARGET_SHARE, 1),
            reads="encoder",
            shares_embedding="encoder",
        ),
    )
    tied = config.flag("tie_word_embeddings", True)
    return Parts(towers, Head(outputs=vocabulary, tied=tied), length)


def _switched(config: Config, dense: Mlp) -> Mlp:
    """Return the experts of a Switch Transformer, one per token."""
    return replace(
        dense,
        experts=config.integer("num_experts", default=8),
        experts_per_token=1,
        router_bias=config.flag("router_bias", False),
    )


class Pair(NamedTuple):
    """A family of encoder-decoders like BART.

    Attributes
    ----------
    more_positions
        Rows of the tables of positions beyond the longest sequence; ``None``
        without tables.
    embedding_norm, final_norm
        As in :class:`nest.models.blocks.Tower`.
    """

    more_positions: int | None = 0
    embedding_norm: bool = False
    final_norm: bool = False


PAIRS = {
    "bart": Pair(2, embedding_norm=True),
    "blenderbot": Pair(final_norm=True),
    "blenderbot-small": Pair(embedding_norm=True),
    "m2m_100": Pair(None, final_norm=True),
    "marian": Pair(),
    "mbart": Pair(2, embedding_norm=True, final_norm=True),
    "pegasus": Pair(final_norm=True),
    "plbart": Pair(2, embedding_norm=True),
}


def pair(config: Config, family: Pair) -> Parts:
    """Read an encoder-decoder with LayerNorm and biases."""
    length = config.integer("max_position_embeddings", default=1024)
    vocabulary = config.integer("vocab_size")
    more = family.more_positions
    config.must_be(
        "share_encoder_decoder_embeddings",
        True,
        default=True,
        why="tables of their own are not supported",
    )

    first = Tower(
        name="encoder",
        runs=_half(config, "encoder"),
        vocabulary=vocabulary,
        learned_positions=0 if more is None else length + more,
        embedding_norm=family.embedding_norm,
        final_norm=family.final_norm,
    )
    second = replace(
        first,
        name="decoder",
        runs=_half(config, "decoder"),
        reads="encoder",
        shares_embedding="encoder",
    )
    tied = config.flag("tie_word_embeddings", True)
    return Parts((first, second), Head(outputs=vocabulary, tied=tied), length)


def whisper(config: Config) -> Parts:
    """Read Whisper: two convolutions, the second of stride 2, in front."""
    hidden = config.integer("d_model")
    inputs = config.integer("max_source_positions", default=1500)
    outputs = config.integer("max_target_positions", default=448)
    vocabulary = config.integer("vocab_size")
    first = Tower(
        name="encoder",
        runs=_half(config, "encoder", unbiased_keys=True),
        convolutions=(
            Convolution(
                inputs=config.integer("num_mel_bins", default=80),
                outputs=hidden,
                kernel=3,
                positions=2,
            ),
            Convolution(inputs=hidden, outputs=hidden, kernel=3),
        ),
        learned_positions=inputs,
        sequence_length=inputs,
    )
    second = Tower(
        name="decoder",
        runs=_half(config, "decoder", unbiased_keys=True),
        vocabulary=vocabulary,
        learned_positions=outputs,
        sequence_length=outputs,
        reads="encoder",
    )
    tied = config.flag("tie_word_embeddings", True)
    head = Head(outputs=vocabulary, tied=tied)
    return Parts((first, second), head, max(inputs, outputs))


def _equal_heads(
    heads: int, head_size: int, *, biases: bool = True, **fields: Any
) -> Attention:
    """Return attention with as many heads of keys and values as of queries."""
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_size=head_size,
        biases=biases,
        output_bias=biases,
        **fields,
    )


def _equal(block: Block, count: int) -> tuple[RepeatedBlock, ...]:
    return (RepeatedBlock(block=block, count=count),)


def _half_block(name: str, *, attention: Attention, **fields: Any) -> Block:
    """Return a block of an encoder, or of a decoder that reads one."""
    if name == "encoder":
        return Block(name=name, attention=attention, **fields)
    return Block(
        name=name,
        attention=replace(attention, causal=True),
        cross_attention=replace(attention, cross=True),
        norms=3,
        **fields,
    )


def _half(
    config: Config, name: str, *, unbiased_keys: bool = False
) -> tuple[RepeatedBlock, ...]:
    """Read the equal blocks of an encoder or of a decoder."""
    hidden = config.integer("d_model")
    heads = config.integer(f"{name}_attention_heads")
    config.divisor(
        f"{name}_attention_heads", heads, f"d_model = {hidden}", hidden
    )
    block = _half_block(
        name,
        hidden=hidden,
        attention=_equal_heads(
            heads, hidden // heads, causal=False, unbiased_keys=unbiased_keys
        ),
        mlp=Mlp(hidden=config.integer(f"{name}_ffn_dim"), biases=True),
        layer_norm=True,
        dropout=config.drops("dropout", 0.1),
    )
    return _equal(block, config.integer(f"{name}_layers"))


def _encoder(
    config: Config,
    name: str = "encoder",
    *,
    causal: bool = False,
    dropout: float | None = None,
    mlp: Mlp | None = None,
) -> RepeatedBlock:
    """Read equal blocks with LayerNorm and biases.

    ``dropout`` is the default of the rate, ``None`` where there is none.
    """
    head_size = config.head_size()
    if mlp is None:
        mlp = Mlp(hidden=config.integer("intermediate_size"), biases=True)
    block = Block(
        name=name,
        hidden=config.integer("hidden_size"),
        attention=_equal_heads(
            config.integer("num_attention_heads"), head_size, causal=causal
        ),
        mlp=mlp,
        layer_norm=True,
        dropout=dropout is not None
        and config.drops("hidden_dropout_prob", dropout),
    )
    count = config.integer("num_hidden_layers")
    return RepeatedBlock(block=block, count=count)


def _patches(config: Config) -> tuple[int, int]:
    """Read values per patch and tokens per image, one of them the class."""
    image = config.integer("image_size", default=224)
    patch = config.integer("patch_size", default=16)
    config.divisor("patch_size", patch, f"image_size = {image}", image)
    channels = config.integer("num_channels", default=3)
    return channels * patch**2, (image // patch) ** 2 + 1


#: Families by ``model_type``.
READERS: dict[str, Callable[[Config], Parts]] = {
    **{
        name: partial(encoder, family=family)
        for name, family in ENCODERS.items()
    },
    **{name: partial(pair, family=family) for name, family in PAIRS.items()},
    "beit": beit,
    "clip": clip,
    "deberta": deberta,
    "deberta-v2": deberta_v2,
    "deit": deit,
    "dinov2": dinov2,
    "dinov2_with_registers": partial(dinov2, registers=4),
    "electra": electra,
    "ernie": ernie,
    "eurobert": eurobert,
    "modernbert": modernbert,
    "modernbert-decoder": partial(modernbert, causal=True),
    "mt5": t5,
    "resnet": resnet,
    "switch_transformers": t5,
    "t5": t5,
    "umt5": partial(t5, in_all=True),
    "vit": vit,
    "whisper": whisper,
}
