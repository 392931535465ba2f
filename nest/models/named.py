"""Models by what users call them: a name of the zoo, or a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from nest.models.architectures import Architecture


def load_model(text: str, mtp: bool = False) -> Architecture:
    """Return the architecture of that name, or of a ``config.json``.

    With ``mtp`` a file's modules for multi-token prediction count. Raises ``NestError``
    if there is none, or the file cannot be read or is no such thing.
    """
    if text.endswith(".json") or os.path.isfile(text):
        from nest.models.hf import read_hf

        return read_hf(text, mtp=mtp)
    from nest.models.zoo import architecture

    return architecture(text)


def text_of_model(model: Architecture) -> str:
    """Return what a problem keeps of its model; empty if a name stands for it."""
    from nest.models.zoo import ARCHITECTURES

    return "" if model in ARCHITECTURES else msgspec.json.encode(model).decode()


def model_of_text(text: str) -> Architecture | None:
    """Return the model that a problem keeps; ``None`` if it keeps none to be read."""
    from nest.models.architectures import Architecture

    try:
        return msgspec.json.decode(text, type=Architecture)
    except (msgspec.MsgspecError, ValueError):
        return None
