"""Architectures from the ``config.json`` of Hugging Face models.

Field names and defaults are those of the configuration classes of the
transformers library (docs at huggingface.co/docs/transformers). Only fields
that shape weights or work are read. A family like others is one record in
:mod:`nest.models.hf.decoders`; any other is one function and one line in
:data:`FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from nest.errors import InvalidProblemError, UnknownNameError
from nest.models.architectures import Architecture
from nest.models.hf import decoders, encoders, hybrids
from nest.models.hf.config import Config, Parts, shown
from nest.models.hf.family import decoder

#: Families by ``model_type``.
FAMILIES: dict[str, Callable[[Config], Parts]] = {
    **{
        name: partial(decoder, family=family)
        for name, family in decoders.FAMILIES.items()
    },
    **decoders.READERS,
    **encoders.READERS,
    **hybrids.READERS,
}


def read_hf(path: str | Path) -> Architecture:
    """Return the architecture that a ``config.json`` describes.

    The name is that of the model in the file (``_name_or_path``), or else of
    the folder that the file is in.

    Raises
    ------
    InvalidProblemError
        If the file is missing or is no JSON object, or a field is missing,
        of another type, out of range or inconsistent.
    UnknownNameError
        If ``model_type`` is not a known family.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidProblemError(
            f"{path}: expected a config.json of Hugging Face, got "
            f"{error.strerror or error}; check the path"
        ) from None
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidProblemError(
            f"{path}: expected JSON, got a syntax error ({error}); correct "
            f"the file"
        ) from None
    except RecursionError:
        raise InvalidProblemError(
            f"{path}: expected JSON, got objects nested too deeply; correct "
            f"the file"
        ) from None
    if not isinstance(fields, dict):
        raise InvalidProblemError(
            f"{path}: expected a JSON object, got {shown(fields)}; pass the "
            f"model's config.json"
        )
    stated = fields.get("_name_or_path")
    name = stated if isinstance(stated, str) and stated else ""
    name = Path(name).name or file.resolve().parent.name or "model"
    return from_hf(fields, name=name, where=str(path))


def from_hf(
    fields: dict[str, Any], *, name: str = "model", where: str = "config"
) -> Architecture:
    """Return the architecture of a decoded configuration.

    Parameters
    ----------
    fields
        The JSON object; what is not needed is ignored.
    name
        Of the model.
    where
        Of the configuration, in messages.

    Raises
    ------
    InvalidProblemError
        If a field is missing, of another type, out of range or inconsistent.
    UnknownNameError
        If ``model_type`` is not a known family.
    """
    config = Config(fields, where)
    family = fields.get("model_type")
    if not isinstance(family, str):
        got = "no such field" if family is None else shown(family)
        raise config.refuse(
            "model_type",
            f"one of {', '.join(sorted(FAMILIES))}",
            got,
            "add the family of the model",
        )
    if family not in FAMILIES:
        raise UnknownNameError(f"{where}: model_type", family, FAMILIES)
    return Architecture(
        name=name,
        source=f"Hugging Face {family}, {name}",
        **FAMILIES[family](config)._asdict(),
    )
