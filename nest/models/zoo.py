"""The zoo: published architectures, each with its source.

They are stored in ``data/architectures.json``, as
:class:`~nest.models.architectures.Architecture` says; a new model is one
more record, and nothing else in the project names one.
"""

from __future__ import annotations

from operator import attrgetter

from nest.models.architectures import Architecture
from nest.models.blocks import Tower
from nest.util.stored import find, read_records

ARCHITECTURES = read_records("nest.models", "architectures", Architecture)

_DIMENSIONS = attrgetter(
    *("count", "block.hidden", "block.mlp.hidden", "block.attention.heads"),
    *("block.attention.kv_heads", "block.attention.causal"),
    "block.mlp.experts",
)


def architecture(name: str) -> Architecture:
    """Return the architecture of that name.

    Raises
    ------
    UnknownNameError
        If there is none; the text lists all names.
    """
    return find("model", name, ARCHITECTURES)


def names() -> tuple[str, ...]:
    """Return the names of all architectures."""
    return tuple(model.name for model in ARCHITECTURES)


def usual_vocabulary(tower: Tower) -> tuple[int, str]:
    """Return a vocabulary for a decoder, and the model that has it.

    That model has the same dimensions, and of several such models the largest
    vocabulary, which takes the most memory. Without one it is GPT-2, whose
    tokenizer Megatron-LM and DeepSpeed use in their examples.
    """
    shape = [*map(_DIMENSIONS, tower.runs)]
    sizes = [
        (model.towers[0].vocabulary, model.name)
        for model in ARCHITECTURES
        if [*map(_DIMENSIONS, model.towers[0].runs)] == shape
    ]
    gpt2 = architecture("gpt2")
    return max(sizes, default=(gpt2.towers[0].vocabulary, gpt2.name))


def kind_of(model: Architecture) -> str:
    """Say in a few words what a model is made of."""
    if len(model.towers) > 1:
        reads = any(tower.reads for tower in model.towers)
        return "encoder-decoder" if reads else "two towers"
    traits = []
    shapes = [run.block for run in model.towers[0].runs]
    if any(block.mlp.experts for block in shapes):
        traits.append("mixture of experts")
    if any(block.attention.key_value_rank for block in shapes):
        traits.append("latent attention")
    name = "decoder" if shapes[0].attention.causal else "encoder"
    return ", ".join([name, *traits])
