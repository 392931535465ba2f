"""Published architectures, one record each, and the families they belong to.

A new model is one more record in :data:`ARCHITECTURES`; nothing else in the
project names a model. The functions build families with what distinguishes
their members as arguments; :mod:`nest.workloads.hf` uses them too.
"""

from __future__ import annotations

from collections.abc import Sequence

from nest.workloads.architectures import Architecture
from nest.workloads.blocks import Attention, Block, Head, Mlp, Run, Tower

MILLION = 10**6
BILLION = 10**9


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
    :class:`~nest.workloads.blocks.Block` and its parts.
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
        towers=(Tower(runs=tuple(runs), vocabulary=vocabulary),),
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


def _gpt2() -> list[Architecture]:
    """Return GPT-2; parameters of the released checkpoints."""
    shapes = (
        ("gpt2", 12, 768, 12, 124_439_808),
        ("gpt2-medium", 24, 1024, 16, 354_823_168),
        ("gpt2-large", 36, 1280, 20, 774_030_080),
        ("gpt2-xl", 48, 1600, 25, 1_557_611_200),
    )
    return [
        gpt(
            name,
            "Radford et al. 2019, Language Models are Unsupervised Multitask "
            "Learners, table 2; released checkpoints",
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocabulary=50257,
            max_sequence=1024,
            published=published,
        )
        for name, layers, hidden, heads, published in shapes
    ]


def _gpt3() -> list[Architecture]:
    """Return GPT-3: shapes of table 2.1, parameters of table D.1.

    Table 2.1 gives 24 heads of 128 to a width of 2048 (XL) and a width of
    5140 to 40 heads of 128 (13B); 16 heads, and 5120, are what reproduces
    table D.1.
    """
    shapes = (
        ("gpt3-125m", 12, 768, 12, 125, 1),
        ("gpt3-350m", 24, 1024, 16, 356, 1),
        ("gpt3-760m", 24, 1536, 16, 760, 1),
        ("gpt3-1.3b", 24, 2048, 16, 1_320, 10),
        ("gpt3-2.7b", 32, 2560, 32, 2_650, 10),
        ("gpt3-6.7b", 32, 4096, 32, 6_660, 10),
        ("gpt3-13b", 40, 5120, 40, 12_850, 10),
        ("gpt3-175b", 96, 12288, 96, 174_600, 100),
    )
    return [
        gpt(
            name,
            "Brown et al. 2020, arXiv 2005.14165, tables 2.1 and D.1; "
            "dropout as trained by Korthikanti et al. 2022, arXiv 2205.05198",
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocabulary=50257,
            max_sequence=2048,
            published=published * MILLION,
            unit=unit * MILLION,
        )
        for name, layers, hidden, heads, published, unit in shapes
    ]


def _megatron() -> list[Architecture]:
    """Return Megatron-LM's models of growing size, of 51,200 tokens."""
    shapes = (
        ("megatron-1.7b", 24, 2304, 24, 1_700),
        ("megatron-3.6b", 30, 3072, 32, 3_600),
        ("megatron-7.5b", 36, 4096, 32, 7_500),
        ("megatron-18b", 40, 6144, 48, 18_400),
        ("megatron-39b", 48, 8192, 64, 39_100),
        ("megatron-76b", 60, 10240, 80, 76_100),
        ("megatron-145b", 80, 12288, 96, 145_600),
        ("megatron-310b", 96, 16384, 128, 310_100),
        ("megatron-530b", 105, 20480, 128, 529_600),
        ("megatron-1t", 128, 25600, 160, 1_008_000),
    )
    return [
        gpt(
            name,
            "Narayanan et al. 2021, arXiv 2104.04473, table 1",
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocabulary=51200,
            max_sequence=2048,
            published=published * MILLION,
            unit=100 * MILLION,
        )
        for name, layers, hidden, heads, published in shapes
    ]


def _llama() -> list[Architecture]:
    """Return Llama 2 and 3; parameters of the released checkpoints."""
    two = "Touvron et al. 2023, arXiv 2307.09288; released checkpoint"
    three = "Grattafiori et al. 2024, arXiv 2407.21783, table 3"
    shapes = (
        ("llama2-7b", two, 32, 4096, 32, 32, 11008, 6_738_415_616),
        ("llama2-13b", two, 40, 5120, 40, 40, 13824, 13_015_864_320),
        ("llama2-70b", two, 80, 8192, 64, 8, 28672, 68_976_648_192),
        ("llama3-8b", three, 32, 4096, 32, 8, 14336, 8_030_261_248),
        ("llama3-70b", three, 80, 8192, 64, 8, 28672, 70_553_706_496),
        ("llama3-405b", three, 126, 16384, 128, 8, 53248, 405_853_388_800),
    )
    return [
        llama(
            name,
            source,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            mlp_hidden=mlp_hidden,
            vocabulary=32000 if source is two else 128256,
            max_sequence=4096 if source is two else 8192,
            published=published,
        )
        for (
            name,
            source,
            layers,
            hidden,
            heads,
            kv_heads,
            mlp_hidden,
            published,
        ) in shapes
    ]


def _mixture() -> list[Architecture]:
    """Return Mistral, Mixtral and the mixtures of Qwen3."""
    return [
        llama(
            "mistral-7b",
            "Jiang et al. 2023, arXiv 2310.06825, table 1; released "
            "checkpoint",
            layers=32,
            hidden=4096,
            heads=32,
            kv_heads=8,
            mlp_hidden=14336,
            vocabulary=32000,
            max_sequence=8192,
            window=4096,
            published=7_241_732_096,
        ),
        llama(
            "mixtral-8x7b",
            "Jiang et al. 2024, arXiv 2401.04088, table 1; released "
            "checkpoint",
            layers=32,
            hidden=4096,
            heads=32,
            kv_heads=8,
            mlp_hidden=14336,
            vocabulary=32000,
            max_sequence=32768,
            experts=8,
            experts_per_token=2,
            published=46_702_792_704,
        ),
        llama(
            "mixtral-8x22b",
            "released checkpoint Mixtral-8x22B-v0.1",
            layers=56,
            hidden=6144,
            heads=48,
            kv_heads=8,
            mlp_hidden=16384,
            vocabulary=32000,
            max_sequence=65536,
            experts=8,
            experts_per_token=2,
            published=140_620_634_112,
        ),
        llama(
            "qwen3-30b-a3b",
            "Yang et al. 2025, arXiv 2505.09388, table 2; released checkpoint",
            layers=48,
            hidden=2048,
            heads=32,
            kv_heads=4,
            head_size=128,
            mlp_hidden=768,
            vocabulary=151936,
            max_sequence=32768,
            query_key_norm=True,
            experts=128,
            experts_per_token=8,
            published=30_532_122_624,
        ),
        llama(
            "qwen3-235b-a22b",
            "Yang et al. 2025, arXiv 2505.09388, table 2; released checkpoint",
            layers=94,
            hidden=4096,
            heads=64,
            kv_heads=4,
            head_size=128,
            mlp_hidden=1536,
            vocabulary=151936,
            max_sequence=32768,
            query_key_norm=True,
            experts=128,
            experts_per_token=8,
            published=235_093_634_560,
        ),
    ]


def _dense() -> list[Architecture]:
    """Return Qwen2.5, Gemma, BLOOM, OPT, GPT-NeoX and Falcon."""
    qwen = "Qwen Team 2024, arXiv 2412.15115; released checkpoint"
    return [
        llama(
            "qwen2.5-7b",
            qwen,
            layers=28,
            hidden=3584,
            heads=28,
            kv_heads=4,
            mlp_hidden=18944,
            vocabulary=152064,
            max_sequence=32768,
            biases=True,
            published=7_615_616_512,
        ),
        llama(
            "qwen2.5-72b",
            qwen,
            layers=80,
            hidden=8192,
            heads=64,
            kv_heads=8,
            mlp_hidden=29568,
            vocabulary=152064,
            max_sequence=32768,
            biases=True,
            published=72_706_203_648,
        ),
        llama(
            "gemma-7b",
            "Gemma Team 2024, arXiv 2403.08295, tables 1 and 2",
            layers=28,
            hidden=3072,
            heads=16,
            kv_heads=16,
            head_size=256,
            mlp_hidden=24576,
            vocabulary=256000,
            max_sequence=8192,
            tied=True,
            published=8_537_680_896,
        ),
        decoder_only(
            "gemma2-27b",
            "Gemma Team 2024, arXiv 2408.00118, tables 1 and 2; released "
            "checkpoint",
            gemma2_runs(
                layers=46,
                hidden=4608,
                heads=32,
                kv_heads=16,
                head_size=128,
                mlp_hidden=36864,
                window=4096,
            ),
            vocabulary=256000,
            max_sequence=8192,
            tied=True,
            published=27_227_128_320,
        ),
        gpt(
            "bloom-176b",
            "BigScience 2022, arXiv 2211.05100, table 3; released checkpoint",
            layers=70,
            hidden=14336,
            heads=112,
            vocabulary=250880,
            max_sequence=2048,
            learned_positions=0,
            embedding_norm=True,
            dropout=False,
            published=176_247_271_424,
        ),
        gpt(
            "opt-175b",
            "Zhang et al. 2022, arXiv 2205.01068, table 1; position table of "
            "two rows more than tokens, as released",
            layers=96,
            hidden=12288,
            heads=96,
            vocabulary=50272,
            max_sequence=2048,
            learned_positions=2050,
            published=175 * BILLION,
            unit=BILLION,
        ),
        gpt(
            "gpt-neox-20b",
            "Black et al. 2022, arXiv 2204.06745, table 1; released "
            "checkpoint",
            layers=44,
            hidden=6144,
            heads=64,
            vocabulary=50432,
            max_sequence=2048,
            learned_positions=0,
            rotary=True,
            dropout=False,
            tied=False,
            published=20_554_567_680,
        ),
        gpt(
            "falcon-40b",
            "Almazrouei et al. 2023, arXiv 2311.16867; released checkpoint; "
            "attention and MLP counted one after the other",
            layers=60,
            hidden=8192,
            heads=128,
            kv_heads=8,
            vocabulary=65024,
            max_sequence=2048,
            learned_positions=0,
            rotary=True,
            biases=False,
            dropout=False,
            published=41_303_293_952,
        ),
    ]


def _others() -> list[Architecture]:
    """Return DeepSeek-V3, encoders, encoder-decoders and two towers."""
    raffel = (
        "Raffel et al. 2020, arXiv 1910.10683, §3.7; released checkpoint; "
        "512 tokens of input, 128 of targets (114, padded)"
    )
    dosovitskiy = "Dosovitskiy et al. 2021, arXiv 2010.11929, table 1"
    return [
        decoder_only(
            "deepseek-v3",
            "DeepSeek-AI 2024, arXiv 2412.19437, §4.2, without the module "
            "for multi-token prediction",
            latent_runs(
                layers=61,
                dense_layers=3,
                hidden=7168,
                heads=128,
                query_rank=1536,
                key_value_rank=512,
                plain_size=128,
                rotary_size=64,
                value_size=128,
                dense_hidden=18432,
                experts=Mlp(
                    hidden=2048,
                    gated=True,
                    experts=256,
                    experts_per_token=8,
                    shared_hidden=2048,
                ),
            ),
            vocabulary=129280,
            max_sequence=4096,
            published=671_026_419_200,
            # One bias per expert balances the router; no gradient trains it.
            left_out=58 * 256,
        ),
        bert(
            "bert-large",
            "Devlin et al. 2019, arXiv 1810.04805, §3; released uncased "
            "checkpoint with its masked language model",
            layers=24,
            hidden=1024,
            heads=16,
            mlp_hidden=4096,
            vocabulary=30522,
            max_sequence=512,
            published=335_174_458,
        ),
        t5(
            "t5-large",
            raffel,
            layers=24,
            decoder_layers=24,
            hidden=1024,
            heads=16,
            head_size=64,
            mlp_hidden=4096,
            vocabulary=32128,
            max_sequence=512,
            target_length=128,
            published=737_668_096,
        ),
        t5(
            "t5-11b",
            raffel,
            layers=24,
            decoder_layers=24,
            hidden=1024,
            heads=128,
            head_size=128,
            mlp_hidden=65536,
            vocabulary=32128,
            max_sequence=512,
            target_length=128,
            published=11_307_321_344,
        ),
        vit(
            "vit-large",
            f"{dosovitskiy}; 16 x 16 patches of 224 x 224 pixels, 1000 "
            f"classes",
            layers=24,
            hidden=1024,
            heads=16,
            mlp_hidden=4096,
            image_size=224,
            patch_size=16,
            classes=1000,
            published=304_326_632,
        ),
        vit(
            "vit-huge",
            f"{dosovitskiy}; 14 x 14 patches of 224 x 224 pixels, 1000 "
            f"classes",
            layers=32,
            hidden=1280,
            heads=16,
            mlp_hidden=5120,
            image_size=224,
            patch_size=14,
            classes=1000,
            published=632 * MILLION,
            unit=MILLION,
        ),
        clip(
            "clip-vit-l-14",
            "Radford et al. 2021, arXiv 2103.00020, table 20; released "
            "checkpoint",
            vision=encoder_block(
                "vision", hidden=1024, heads=16, mlp_hidden=4096
            ),
            vision_layers=24,
            image_size=224,
            patch_size=14,
            text=encoder_block(
                "text", hidden=768, heads=12, mlp_hidden=3072, causal=True
            ),
            text_layers=12,
            vocabulary=49408,
            text_length=77,
            joint=768,
            published=427_616_513,
        ),
    ]


ARCHITECTURES: tuple[Architecture, ...] = (
    *_gpt2(),
    *_gpt3(),
    *_megatron(),
    *_llama(),
    *_mixture(),
    *_dense(),
    *_others(),
)


def names() -> tuple[str, ...]:
    """Return the names of all architectures."""
    return tuple(model.name for model in ARCHITECTURES)


def kind_of(model: Architecture) -> str:
    """Say in a few words what a model is made of."""
    if len(model.towers) > 1:
        reads = any(tower.reads for tower in model.towers)
        return "encoder-decoder" if reads else "two towers"
    words = []
    shapes = [run.block for run in model.towers[0].runs]
    if any(block.mlp.experts for block in shapes):
        words.append("mixture of experts")
    if any(block.attention.key_value_rank for block in shapes):
        words.append("latent attention")
    name = "decoder" if shapes[0].attention.causal else "encoder"
    return ", ".join([name, *words])


def markdown_table() -> str:
    """Return the zoo as a table: computed against published parameters."""
    lines = [
        "| model | what | layers | parameters, computed | active | "
        "published | source |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for model in ARCHITECTURES:
        active = model.active_parameters
        same = active == model.parameters
        lines.append(
            f"| `{model.name}` | {kind_of(model)} | {model.layers} | "
            f"{model.parameters:,} | {'all' if same else f'{active:,}'} | "
            f"{_published(model)} | {model.source} |"
        )
    return "\n".join(lines) + "\n"


def _published(model: Architecture) -> str:
    """Return the published number with the digits that its source prints."""
    if not model.published_parameters:
        return "—"
    number, unit = model.published_parameters, model.published_unit
    for size, letter in ((BILLION, "B"), (MILLION, "M")):
        if unit > 1 and number >= size:
            digits = max(len(str(size)) - len(str(unit)), 0)
            return f"{number / size:.{digits}f} {letter}"
    return f"{number:,}"
