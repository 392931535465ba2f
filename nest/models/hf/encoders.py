"""Encoders, encoder-decoders and two towers of Hugging Face."""

from __future__ import annotations

from nest.models.blocks import Attention, Block, Head, Mlp, Run, Tower
from nest.models.hf.config import Config, Parts

#: Tokens of the targets of an encoder-decoder, as a share of its input: T5
#: trains on 114 (padded: 128) of 512.
TARGET_SHARE = 4

#: Input of a T5 whose configuration does not state a length.
T5_SEQUENCE = 512


def bert(config: Config) -> Parts:
    """Read BERT with its masked language model, without pooler."""
    vocabulary = config.integer("vocab_size")
    length = config.integer("max_position_embeddings", default=512)
    tower = Tower(
        runs=(_encoder(config, dropout=0.1),),
        vocabulary=vocabulary,
        learned_positions=length,
        token_types=config.integer("type_vocab_size", default=2),
        embedding_norm=True,
        final_norm=False,
    )
    head = Head(outputs=vocabulary, tied=True, bias=True, transform=True)
    return Parts((tower,), head, length)


def vit(config: Config) -> Parts:
    """Read a vision transformer with its classifier.

    The vector of the class token is one more row of a table.
    """
    patch_values, tokens = _patches(config)
    labels = config.fields.get("id2label")
    classes = len(labels) if isinstance(labels, dict) else 0
    tower = Tower(
        runs=(_encoder(config, dropout=0.0),),
        patch_values=patch_values,
        learned_positions=tokens,
        token_types=1,
        sequence_length=tokens,
    )
    classes = classes or config.integer("num_labels", default=1000)
    head = Head(outputs=classes, bias=True, pooled=True)
    return Parts((tower,), head, tokens)


def clip(config: Config) -> Parts:
    """Read two towers whose pooled outputs meet in a joint space.

    The patches have no bias; the vector of the class token, as long, stands
    in its place. The temperature of the loss is left out.
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
    head = Head(outputs=joint, pooled=True)
    return Parts(towers, head, max(tokens, length), left_out=1)


def t5(config: Config) -> Parts:
    """Read an encoder-decoder whose decoder layers all read the encoder.

    Relative positions have a bias per head in both towers, which is left
    out.
    """
    layers = config.integer("num_layers")
    heads, head_size = config.integer("num_heads"), config.integer("d_kv")
    form = config.typed(
        "feed_forward_proj",
        config.fields.get("feed_forward_proj", "relu"),
        str,
        "a string",
    )
    hidden = config.integer("d_model")
    mlp = Mlp(hidden=config.integer("d_ff"), gated=form.startswith("gated"))
    drops = config.drops("dropout_rate", default=0.1)

    def attention(*, causal: bool = False, cross: bool = False) -> Attention:
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_size=head_size,
            causal=causal,
            cross=cross,
        )

    encoder = Block(
        name="encoder",
        hidden=hidden,
        attention=attention(),
        mlp=mlp,
        dropout=drops,
    )
    decoder = Block(
        name="decoder",
        hidden=hidden,
        attention=attention(causal=True),
        cross_attention=attention(cross=True),
        mlp=mlp,
        norms=3,
        dropout=drops,
    )
    vocabulary = config.integer("vocab_size")
    length = config.integer("n_positions", default=T5_SEQUENCE)
    decoder_layers = config.integer("num_decoder_layers", default=layers)
    towers = (
        Tower(
            name="encoder",
            runs=(Run(block=encoder, count=layers),),
            vocabulary=vocabulary,
        ),
        Tower(
            name="decoder",
            runs=(Run(block=decoder, count=decoder_layers),),
            vocabulary=vocabulary,
            sequence_length=max(length // TARGET_SHARE, 1),
            reads="encoder",
            shares_embedding="encoder",
        ),
    )
    tied = config.flag("tie_word_embeddings", True)
    buckets = config.integer("relative_attention_num_buckets", default=32)
    return Parts(
        towers,
        Head(outputs=vocabulary, tied=tied),
        length,
        left_out=2 * buckets * heads,
    )


def _encoder(
    config: Config,
    name: str = "encoder",
    *,
    causal: bool = False,
    dropout: float | None = None,
) -> Run:
    """Read equal blocks with LayerNorm and biases.

    ``dropout`` is the default of the rate, ``None`` where there is none.
    """
    head_size = config.head_size()
    heads = config.integer("num_attention_heads")
    block = Block(
        name=name,
        hidden=config.integer("hidden_size"),
        attention=Attention(
            heads=heads,
            kv_heads=heads,
            head_size=head_size,
            causal=causal,
            biases=True,
            output_bias=True,
        ),
        mlp=Mlp(hidden=config.integer("intermediate_size"), biases=True),
        layer_norm=True,
        dropout=dropout is not None
        and config.drops("hidden_dropout_prob", dropout),
    )
    return Run(block=block, count=config.integer("num_hidden_layers"))


def _patches(config: Config) -> tuple[int, int]:
    """Read values per patch and tokens per image, one of them the class."""
    image = config.integer("image_size", default=224)
    patch = config.integer("patch_size", default=16)
    config.divisor("patch_size", patch, f"image_size = {image}", image)
    channels = config.integer("num_channels", default=3)
    return channels * patch**2, (image // patch) ** 2 + 1


READERS = {"bert": bert, "clip": clip, "t5": t5, "vit": vit}
