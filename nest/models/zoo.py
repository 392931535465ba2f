"""The zoo: published architectures, each with its source.

They are stored in ``data/architectures.json``, as
:class:`~nest.models.architectures.Architecture` says; a new model is one
more record, and nothing else in the project names one.
"""

from __future__ import annotations

from nest.models.architectures import Architecture
from nest.util.stored import find, read_records

ARCHITECTURES = read_records("nest.models", "architectures", Architecture)


def architecture(name: str) -> Architecture:
    """Return the architecture of that name.

    Raises
    ------
    UnknownNameError
        If there is none; the text lists all names.
    """
    return find("model", name, ARCHITECTURES)


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
