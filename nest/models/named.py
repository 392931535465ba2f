"""Models by what users call them: a name of the zoo, or a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nest.models.architectures import Architecture


#: Models of files that this process has read, by name and source: problems keep both,
#: and nothing else of the model.
MODELS_OF_FILES: dict[tuple[str, str], Architecture] = {}


def load_model(text: str, mtp: bool = False) -> Architecture:
    """Return the architecture of that name, or of a ``config.json``.

    With ``mtp`` a file's modules for multi-token prediction count.

    Raises
    ------
    NestError
        If there is none, or the file cannot be read or is no such thing.
    """
    if text.endswith(".json") or os.path.isfile(text):
        from nest.models.hf import read_hf

        model = read_hf(text, mtp=mtp)
        MODELS_OF_FILES[model.name, model.source] = model
        return model
    from nest.models.zoo import architecture

    return architecture(text)
