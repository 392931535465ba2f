"""Architectures from the ``config.json`` of Hugging Face models.

Field names and defaults are those of the configuration classes of the
transformers library (docs at huggingface.co/docs/transformers). Only fields
that shape weights or work are read. A decoder like others is one record in
``nest/models/data/families.json``, see :mod:`nest.models.hf.family`; any
other is one function and one line in the ``READERS`` of its module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nest.errors import InvalidProblemError, InvalidTextError, UnknownNameError
from nest.ir.base import check_text
from nest.ir.documents import parse_json, refusing
from nest.ir.io import read_text
from nest.models.architectures import Architecture
from nest.models.hf import decoders, encoders, family, hybrids, pairs, streams, vision
from nest.models.hf.config import Config, Parts, shown
from nest.models.hf.details import details_of

#: Families by ``model_type``.
FAMILIES: dict[str, Callable[[Config], Parts]] = {
    **{
        name: partial(family.decoder, family=record)
        for name, record in family.FAMILIES.items()
    },
    **decoders.READERS,
    **encoders.READERS,
    **hybrids.READERS,
    **pairs.READERS,
    **streams.READERS,
    **vision.READERS,
}


def read_hf(path: str | Path, *, mtp: bool = False) -> Architecture:
    """Return the architecture that a ``config.json`` describes.

    The name is that of the model in the file (``_name_or_path``), or else of
    the file; of a ``config.json`` it is the family with the number of
    parameters, such as ``llama-8.03b``.

    Raises ``InvalidProblemError`` if the file is missing or is no JSON object, and else
    what :func:`from_hf` raises.
    """
    file = Path(path)
    what = "config.json of Hugging Face"
    text = read_text(path, InvalidProblemError, what)
    with refusing(str(path), InvalidProblemError):
        # Mamba-2 hybrids are published with a bare Infinity.
        fields = parse_json(text, finite=False)
    if not isinstance(fields, dict):
        raise InvalidProblemError(
            f"{path}: expected a JSON object, got {shown(fields)}; pass the "
            f"model's config.json"
        )
    stated = fields.get("_name_or_path")
    try:
        check_text("_name_or_path", stated)
    except InvalidTextError as error:
        raise InvalidProblemError(f"{path}: {error}") from error
    name = Path(stated).name if isinstance(stated, str) else ""
    if not name and file.stem != "config":
        name = file.stem
    family = fields.get("model_type")
    name = name or (family if isinstance(family, str) else "") or "model"
    model = from_hf(fields, name=name, where=str(path), mtp=mtp)
    if name not in ("model", fields["model_type"]):
        return model
    # A name that any other model of the family may have too.
    return replace(model, name=f"{name}-{_size(model.parameters)}")


def _text_model(config: Config, model_type: str) -> tuple[Config, str]:
    """Return the text model in a configuration, and its family.

    Old configurations have its fields beside those of the other parts. The whole model
    says whether embeddings are tied, by default what its class says, unless it builds
    the text model with an output layer of its own.
    """
    whole = family.WHOLES.get(model_type)
    fields = config.fields
    if isinstance(fields.get("text_config"), dict):
        inside = config.nested("text_config")
        text = inside.fields.get("model_type")
    else:
        inside, text = config, whole.text if whole else None
    tied = None
    if whole is None or whole.ties in ("tied", "apart"):
        tied = fields.get("tie_word_embeddings")
    if tied is None and whole is not None and whole.ties != "inside":
        tied = whole.ties == "tied"
    if tied is not None:
        inside = inside.updated(tie_word_embeddings=tied)
    return inside, text if isinstance(text, str) else ""


def _size(count: int) -> str:
    """Return a number of parameters in three digits, such as ``6.74b``."""
    unit, letter = (10**9, "b") if count >= 10**9 else (10**6, "m")
    return f"{count / unit:.3g}{letter}"


def from_hf(
    fields: dict[str, Any],
    *,
    name: str = "model",
    where: str = "config",
    mtp: bool = False,
) -> Architecture:
    """Return the architecture of a decoded configuration.

    Of a model that sees or hears too and is none of the families, the text
    model in it (``text_config``); its note says so. With ``mtp`` modules for
    multi-token prediction count, which ``transformers`` does not build. ``where`` is
    what messages call the configuration.

    Raises ``InvalidProblemError`` if a field is missing, of another type, out of range
    or inconsistent, and ``UnknownNameError`` if ``model_type`` is no known family.
    """
    config = Config(fields, where)
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        got = "no such field" if model_type is None else shown(model_type)
        raise config.refuse(
            "model_type",
            f"one of {', '.join(sorted(FAMILIES))}",
            got,
            "add the family of the model",
        )
    note = ""
    if model_type not in FAMILIES:
        inside, text = _text_model(config, model_type)
        if text in FAMILIES:
            note = f"the text model of {model_type} alone"
            model_type, config = text, inside
    if model_type not in FAMILIES:
        raise UnknownNameError(f"{where}: model_type", model_type, FAMILIES)
    model = FAMILIES[model_type](config)
    if mtp:
        model = family.with_predictions(config, model)
    return Architecture(
        name=name,
        source=f"Hugging Face {model_type}, {name}",
        note=note,
        details=details_of(config, model.towers[0], family.FAMILIES.get(model_type)),
        **model._asdict(),
    )
