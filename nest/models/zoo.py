"""The zoo: published architectures, each with its source.

They are stored in ``data/architectures.json``, as
:class:`~nest.models.architectures.Architecture` says; a new model is one
more record, and nothing else in the project names one.
"""

from __future__ import annotations

import re
from functools import cache
from operator import attrgetter

from nest.errors import UnknownNameError
from nest.models.architectures import Architecture
from nest.models.blocks import Tower
from nest.util.stored import read_records

ARCHITECTURES = read_records("nest.models", "architectures", Architecture)

_DIMENSIONS = attrgetter(
    *("count", "block.hidden", "block.mlp.hidden", "block.attention.heads"),
    *("block.attention.kv_heads", "block.attention.causal"),
    *("block.mlp.experts", "block.mlp.gated"),
)


#: Words of a checkpoint's name that say how it was trained, not its shape; a date of
#: four digits at the end ("2507") is one, too.
_TRAINING = frozenset(
    {"base", "chat", "hf", "instruct", "it", "meta", "pt", "thinking"}
)


def architecture(name: str) -> Architecture:
    """Return the architecture that goes by a name.

    See :func:`known_architecture`. Raises ``UnknownNameError`` if there is none; the
    text lists all names.
    """
    model = known_architecture(name)
    if model is None:
        raise UnknownNameError("model", name, names())
    return model


def known_architecture(name: str) -> Architecture | None:
    """Return the architecture of a name or of an alias, ``None`` if there is none.

    An organization before a slash, letter case and punctuation do not count, and
    neither do words that say how a checkpoint was trained:
    ``meta-llama/Llama-3.1-8B-Instruct`` is ``llama3.1-8b``, an alias of ``llama3-8b``.
    All other words and numbers do, so another size, version or precision is another
    model.
    """
    return _by_name().get(_tokens(name))


@cache
def _by_name() -> dict[tuple[str, ...], Architecture]:
    return {
        _tokens(name): model
        for model in ARCHITECTURES
        for name in (model.name, *model.aliases)
    }


def _tokens(name: str) -> tuple[str, ...]:
    """Return the words and numbers of a name that say which shape it has."""
    without_owner = name.casefold().rpartition("/")[2]
    tokens = re.findall(r"\d+(?:\.\d+)*|[^\W\d_]+", without_owner)
    if len(tokens) > 1 and re.fullmatch(r"\d{4}", tokens[-1]):
        tokens.pop()
    return tuple(token for token in tokens if token not in _TRAINING)


def names() -> tuple[str, ...]:
    """Return the names of all architectures."""
    return tuple(model.name for model in ARCHITECTURES)


def vocabularies_of_shape(tower: Tower) -> dict[int, str]:
    """Return the vocabularies of models with a decoder's dimensions.

    Each has the name of a model.
    """
    shape = [*map(_DIMENSIONS, tower.runs)]
    return {
        model.towers[0].vocabulary: model.name
        for model in reversed(ARCHITECTURES)
        if [*map(_DIMENSIONS, model.towers[0].runs)] == shape
    }


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
