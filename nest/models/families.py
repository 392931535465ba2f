"""Families of architectures, with what distinguishes their members."""

from __future__ import annotations

from collections.abc import Sequence

from nest.models.architectures import Architecture
from nest.models.blocks import Attention, Block, Head, Mlp, Run, Tower


def gpt(
    name: str,
    source: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    max_sequence: int,
    mlp_hidden: int = 0,
    learned_positions: int | None = None,
    rotary: bool = False,
    embedding_norm: bool = False,
    biases: bool = True,
    dropout: bool = True,
    kv_heads: int = 0,
    norms: int = 2,
    tied: bool = True,
    published: int = 0,
    unit: int = 1,
) -> Architecture:
    """Return a decoder of the GPT family: LayerNorm, two-matrix MLP.

    Parameters
    ----------
    name, source
        As in :class:`Architecture`.
    layers, hidden, heads, vocabulary, max_sequence
        The usual shape; heads are ``hidden / heads`` wide.
    mlp_hidden
        Width of the MLP; ``0`` is ``4 · hidden``.
    learned_positions
        Rows of the position table; ``None`` is ``max_sequence``.
    rotary, embedding_norm, biases, dropout
        Whether there are rotary embedding, a norm of the embedding, biases
        of all linear layers, dropout in training.
    kv_heads
        Key and value heads; ``0`` is ``heads``.
    norms
        Norms per block.
    tied
        Whether the output layer is the token table.
    published, unit
        As in :class:`Architecture`.
    """
    block = Block(
        name="decoder",
        hidden=hidden,
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads or heads,
            head_size=hidden // heads,
            rotary=rotary,
            biases=biases,
            output_bias=biases,
        ),
        mlp=Mlp(hidden=mlp_hidden or 4 * hidden, biases=biases),
        norms=norms,
        layer_norm=True,
        dropout=dropout,
    )
    if learned_positions is None:
        learned_positions = max_sequence
    return Architecture(
        name=name,
        source=source,
        towers=(
            Tower(
                runs=(Run(block=block, count=layers),),
                vocabulary=vocabulary,
                learned_positions=learned_positions,
                embedding_norm=embedding_norm,
            ),
        ),
        head=Head(outputs=vocabulary, tied=tied),
        max_sequence=max_sequence,
        published_parameters=published,
        published_unit=unit,
    )


def llama_block(
    name: str,
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    mlp: Mlp,
    head_size: int = 0,
    biases: bool = False,
    output_bias: bool = False,
    query_key_norm: bool = False,
    window: int = 0,
    norms: int = 2,
) -> Block:
    """Return a block of the Llama family: RMSNorm, rotary embedding, gate.

    ``head_size`` 0 is ``hidden / heads``; the rest is as in
    :class:`~nest.models.blocks.Block` and its parts.
    """
    return Block(
        name=name,
        hidden=hidden,
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size or hidden // heads,
            window=window,
            rotary=True,
            biases=biases,
            output_bias=output_bias,
            query_key_norm=query_key_norm,
        ),
        mlp=mlp,
        norms=norms,
    )


def decoder_only(
    name: str,
    source: str,
    runs: Sequence[Run],
    *,
    repeat: int = 1,
    vocabulary: int,
    max_sequence: int,
    tied: bool = False,
    published: int = 0,
    unit: int = 1,
    left_out: int = 0,
) -> Architecture:
    """Return a model of one tower without learned positions."""
    return Architecture(
        name=name,
        source=source,
        towers=(
            Tower(runs=tuple(runs), repeat=repeat, vocabulary=vocabulary),
        ),
        head=Head(outputs=vocabulary, tied=tied),
        max_sequence=max_sequence,
        published_parameters=published,
        published_unit=unit,
        left_out=left_out,
    )


def llama(
    name: str,
    source: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    mlp_hidden: int,
    vocabulary: int,
    max_sequence: int,
    head_size: int = 0,
    biases: bool = False,
    query_key_norm: bool = False,
    window: int = 0,
    experts: int = 0,
    experts_per_token: int = 0,
    tied: bool = False,
    published: int = 0,
    unit: int = 1,
) -> Architecture:
    """Return a decoder of equal blocks of the Llama family.

    ``mlp_hidden`` is the width of the MLP, or of one of ``experts``.
    """
    block = llama_block(
        "decoder",
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        mlp=Mlp(
            hidden=mlp_hidden,
            gated=True,
            experts=experts,
            experts_per_token=experts_per_token,
        ),
        head_size=head_size,
        biases=biases,
        query_key_norm=query_key_norm,
        window=window,
    )
    return decoder_only(
        name,
        source,
        [Run(block=block, count=layers)],
        vocabulary=vocabulary,
        max_sequence=max_sequence,
        tied=tied,
        published=published,
        unit=unit,
    )


def gemma2_runs(
    *,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    mlp_hidden: int,
    window: int,
) -> list[Run]:
    """Return alternating local and global blocks of four norms."""

    def block(name: str, reach: int) -> Block:
        return llama_block(
            name,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size,
            mlp=Mlp(hidden=mlp_hidden, gated=True),
            window=reach,
            norms=4,
        )

    pair = (block("local", window), block("global", 0))
    return [Run(block=pair[i % 2], count=1) for i in range(layers)]


def latent_runs(
    *,
    layers: int,
    dense_layers: int,
    hidden: int,
    heads: int,
    query_rank: int,
    key_value_rank: int,
    plain_size: int,
    rotary_size: int,
    value_size: int,
    dense_hidden: int,
    experts: Mlp,
) -> list[Run]:
    """Return DeepSeek blocks: latent attention, the first layers dense.

    ``plain_size`` and ``rotary_size`` add up to the width of a query head;
    ``dense_hidden`` is the MLP width of the dense layers.
    """
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_size=plain_size + rotary_size,
        value_size=value_size,
        rotary=True,
        query_rank=query_rank,
        key_value_rank=key_value_rank,
        rotary_size=rotary_size,
    )
    dense = Mlp(hidden=dense_hidden, gated=True)
    pairs = (
        ("dense", dense, dense_layers),
        ("sparse", experts, layers - dense_layers),
    )
    return [
        Run(
            block=Block(
                name=name, hidden=hidden, attention=attention, mlp=mlp
            ),
            count=count,
        )
        for name, mlp, count in pairs
        if count
    ]


def encoder_block(
    name: str,
    *,
    hidden: int,
    heads: int,
    mlp_hidden: int,
    causal: bool = False,
    dropout: bool = False,
) -> Block:
    """Return a block of BERT, ViT or CLIP: LayerNorm and biases."""
    return Block(
        name=name,
        hidden=hidden,
        attention=Attention(
            heads=heads,
            kv_heads=heads,
            head_size=hidden // heads,
            causal=causal,
            biases=True,
            output_bias=True,
        ),
        mlp=Mlp(hidden=mlp_hidden, biases=True),
        layer_norm=True,
        dropout=dropout,
    )


def bert(
    name: str,
    source: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    mlp_hidden: int,
    vocabulary: int,
    max_sequence: int,
    token_types: int = 2,
    dropout: bool = True,
    published: int = 0,
    unit: int = 1,
) -> Architecture:
    """Return BERT with its masked language model, without pooler."""
    block = encoder_block(
        "encoder",
        hidden=hidden,
        heads=heads,
        mlp_hidden=mlp_hidden,
        dropout=dropout,
    )
    return Architecture(
        name=name,
        source=source,
        towers=(
            Tower(
                runs=(Run(block=block, count=layers),),
                vocabulary=vocabulary,
                learned_positions=max_sequence,
                token_types=token_types,
                embedding_norm=True,
                final_norm=False,
            ),
        ),
        head=Head(outputs=vocabulary, tied=True, bias=True, transform=True),
        max_sequence=max_sequence,
        published_parameters=published,
        published_unit=unit,
    )


def t5(
    name: str,
    source: str,
    *,
    layers: int,
    decoder_layers: int,
    hidden: int,
    heads: int,
    head_size: int,
    mlp_hidden: int,
    vocabulary: int,
    max_sequence: int,
    target_length: int,
    gated: bool = False,
    tied: bool = True,
    dropout: bool = True,
    position_buckets: int = 32,
    published: int = 0,
    unit: int = 1,
) -> Architecture:
    """Return an encoder-decoder whose decoder layers all read the encoder.

    Parameters
    ----------
    name, source, published, unit
        As in :class:`Architecture`.
    layers, decoder_layers
        Blocks of the encoder and of the decoder.
    hidden, heads, head_size, mlp_hidden, vocabulary, gated, tied, dropout
        The shape of both; heads need not add up to ``hidden``.
    max_sequence
        Longest input of the encoder.
    target_length
        Tokens of the decoder.
    position_buckets
        Relative positions, each with a bias per head in both towers; they
        are left out of all counts but :attr:`Architecture.left_out`.
    """
    plain = Attention(
        heads=heads, kv_heads=heads, head_size=head_size, causal=False
    )
    causal = Attention(heads=heads, kv_heads=heads, head_size=head_size)
    cross = Attention(
        heads=heads,
        kv_heads=heads,
        head_size=head_size,
        causal=False,
        cross=True,
    )
    mlp = Mlp(hidden=mlp_hidden, gated=gated)
    encoder = Block(
        name="encoder",
        hidden=hidden,
        attention=plain,
        mlp=mlp,
        dropout=dropout,
    )
    decoder = Block(
        name="decoder",
        hidden=hidden,
        attention=causal,
        cross_attention=cross,
        mlp=mlp,
        norms=3,
        dropout=dropout,
    )
    return Architecture(
        name=name,
        source=source,
        towers=(
            Tower(
                name="encoder",
                runs=(Run(block=encoder, count=layers),),
                vocabulary=vocabulary,
            ),
            Tower(
                name="decoder",
                runs=(Run(block=decoder, count=decoder_layers),),
                vocabulary=vocabulary,
                sequence_length=target_length,
                reads="encoder",
                shares_embedding="encoder",
            ),
        ),
        head=Head(outputs=vocabulary, tied=tied),
        max_sequence=max_sequence,
        published_parameters=published,
        published_unit=unit,
        left_out=2 * position_buckets * heads,
    )


def vit(
    name: str,
    source: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    mlp_hidden: int,
    image_size: int,
    patch_size: int,
    classes: int,
    channels: int = 3,
    dropout: bool = False,
    published: int = 0,
    unit: int = 1,
) -> Architecture:
    """Return a vision transformer with a classifier.

    A sample is ``(image_size / patch_size)²`` patches and one class token,
    whose vector is counted as one more row of a table.
    """
    tokens = (image_size // patch_size) ** 2 + 1
    block = encoder_block(
        "encoder",
        hidden=hidden,
        heads=heads,
        mlp_hidden=mlp_hidden,
        dropout=dropout,
    )
    return Architecture(
        name=name,
        source=source,
        towers=(
            Tower(
                runs=(Run(block=block, count=layers),),
                patch_values=channels * patch_size**2,
                learned_positions=tokens,
                token_types=1,
                sequence_length=tokens,
            ),
        ),
        head=Head(outputs=classes, bias=True, pooled=True),
        max_sequence=tokens,
        published_parameters=published,
        published_unit=unit,
    )


def clip(
    name: str,
    source: str,
    *,
    vision: Block,
    vision_layers: int,
    image_size: int,
    patch_size: int,
    text: Block,
    text_layers: int,
    vocabulary: int,
    text_length: int,
    joint: int,
    channels: int = 3,
    published: int = 0,
    unit: int = 1,
) -> Architecture:
    """Return two towers whose pooled outputs meet in a joint space.

    The patches have no bias; the vector of the class token, as long, stands
    in its place. The temperature of the loss is left out.
    """
    tokens = (image_size // patch_size) ** 2 + 1
    return Architecture(
        name=name,
        source=source,
        towers=(
            Tower(
                name="vision",
                runs=(Run(block=vision, count=vision_layers),),
                patch_values=channels * patch_size**2,
                learned_positions=tokens,
                embedding_norm=True,
                sequence_length=tokens,
            ),
            Tower(
                name="text",
                runs=(Run(block=text, count=text_layers),),
                vocabulary=vocabulary,
                learned_positions=text_length,
                sequence_length=text_length,
            ),
        ),
        head=Head(outputs=joint, pooled=True),
        max_sequence=max(tokens, text_length),
        published_parameters=published,
        published_unit=unit,
        left_out=1,
    )
