"""Models of Hugging Face that see: classifiers, and CLIP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from nest.models.blocks import (
    NO_ATTENTION,
    NO_MLP,
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
from nest.models.hf.family import equal_heads, repeated
from nest.units import ceil_div

#: Side of the images that a ResNet is trained with.
RESNET_PIXELS = 224

#: Classes of a classifier whose configuration does not name them.
NUM_LABELS = 2


def vit(config: Config, rows: int = 1) -> Parts:
    """Read a vision transformer with its classifier.

    The vector of the class token is one more row of a table; DeiT, which has a token
    for distillation too, has two.
    """
    return _vision(config, biases=config.flag("qkv_bias", True), rows=rows)


def dinov2(config: Config, registers: int = 0) -> Parts:
    """Read DINOv2: scales of outputs, a mask token, perhaps registers.

    Class token and mean of all others enter the classifier side by side.
    """
    width = config.integer("hidden_size", default=768)
    width *= config.integer("mlp_ratio", default=4)
    gated = config.flag("use_swiglu_ffn", False)
    if gated:
        width = 8 * ceil_div(width * 2 // 3, 8)
    mlp = Mlp(hidden=width, gated=gated, biases=True)
    if registers:
        registers = config.integer("num_register_tokens", default=registers, minimum=0)
    model = _vision(
        config,
        biases=config.flag("qkv_bias", True),
        mlp=mlp,
        vectors=2,
        more=1 + registers,
        seen=registers,
    )
    return model.with_head(vectors=2)


def beit(config: Config) -> Parts:
    """Read BEiT with its classifier: no table of positions by default.

    Biases of relative positions are refused.
    """
    for name in ("use_relative_position_bias", "use_shared_relative_position_bias"):
        config.must_be(name, False, "biases of relative positions are not supported")
    model = _vision(
        config,
        vectors=2 if config.drops("layer_scale_init_value", 0.1) else 0,
        more=1 if config.flag("use_mask_token", False) else 0,
    ).with_attention(unbiased_keys=True)
    if not config.flag("use_absolute_position_embeddings", False):
        model = model.with_tower(learned_positions=0)
    return model


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

    ``rows`` tokens in addition to the patches have a position: of the class, for
    distillation. A block has ``vectors`` scales of outputs. There are ``more`` vectors
    as wide as the stream, of which ``seen`` are tokens.
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
    model = Parts((tower,), classifier(config), tokens + seen)
    return model.with_attention(biases=biases)


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
    each, and no rank shares one. Refused are stages of one block only.
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
                runs=repeated(block, depth - 1),
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
    vision, text = config.nested("vision_config"), config.nested("text_config")
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
        attention=equal_heads(
            config.integer("num_attention_heads"), head_size, causal=causal
        ),
        mlp=mlp,
        layer_norm=True,
        dropout=dropout is not None and config.drops("hidden_dropout_prob", dropout),
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
    "beit": beit,
    "clip": clip,
    "deit": partial(vit, rows=2),
    "dinov2": dinov2,
    "dinov2_with_registers": partial(dinov2, registers=4),
    "resnet": resnet,
    "vit": vit,
}
