"""A factory file for the model that a ``config.json`` of Hugging Face describes.

The file is plain Python for the package transformers. It is captured as any other
file of the user, and the script of an exported plan builds the module from it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nest.errors import InvalidOptionError, InvalidProblemError
from nest.ir.documents import parse_json, refusing
from nest.ir.io import read_text
from nest.models.hf.config import shown
from nest.util.text import did_you_mean

#: Samples of the example inputs. More samples repeat them in turn.
EXAMPLE_BATCH = 8

#: Tokens of a sample unless the user names another number; a model that is made for
#: fewer positions gets these.
DEFAULT_LENGTH = 4096

_TEMPLATE = '''"""A causal language model with random weights, built by transformers.

nest wrote this file from {source}. Change it as you like, and import it again with
nest import torch {name}:factory
"""

import json

import torch
from transformers import AutoConfig, AutoModelForCausalLM

BATCH = {batch}
SEQUENCE_LENGTH = {length}
CONFIG = json.loads(
    """
{config}
"""
)


class LanguageModel(torch.nn.Module):
    """Returns the mean loss over the tokens."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, labels):
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten()
        )


def factory():
    config = AutoConfig.for_model(**CONFIG)
    model = AutoModelForCausalLM.from_config(config)
    if model.dtype != torch.bfloat16:
        # Grouped products of experts need bfloat16.
        model.set_experts_implementation("batched_mm")
    shape = (BATCH, SEQUENCE_LENGTH)
    values = config.get_text_config().vocab_size
    inputs = (torch.randint(0, values, shape), torch.randint(0, values, shape))
    return LanguageModel(model), inputs
'''


def require_transformers() -> None:
    """Refuse to go on without transformers; imports nothing.

    Raises
    ------
    InvalidOptionError
        If it is missing; the text says what to install.
    """
    if find_spec("transformers") is None:
        raise InvalidOptionError(
            "--hf: expected package 'transformers', got none; install it with: "
            "pip install transformers"
        )


def known_families() -> frozenset[str]:
    """Return the families of which transformers has a causal language model."""
    auto = import_module("transformers.models.auto.modeling_auto")

    return frozenset(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def write_factory(
    path: str | Path,
    folder: Path,
    length: int | None = None,
    families: Collection[str] = (),
) -> str:
    """Write the factory file of a ``config.json``, and return ``FILE.py:FACTORY``.

    The name of the file has the family and a hash of its text, so that no other
    file of this kind is replaced.

    Parameters
    ----------
    path
        The ``config.json``.
    folder
        Where the file is written.
    length
        Tokens of a sample. Default: 4,096, or the positions that the model is made
        for if these are fewer.
    families
        Families that can be built. Default: any.

    Raises
    ------
    InvalidProblemError
        If the configuration is missing, is no JSON object, or names no family, or
        one that cannot be built.
    """
    text = read_text(path, InvalidProblemError, "config.json of Hugging Face")
    with refusing(str(path), InvalidProblemError):
        config = parse_json(text, finite=False)
    family = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(family, str) or not family:
        raise InvalidProblemError(
            f"{path}: expected a JSON object with a model_type, got {shown(config)}; "
            f"pass the model's config.json"
        )
    if families and family not in families:
        hint = did_you_mean(family, families, "write a factory for it")
        raise InvalidProblemError(
            f"{path}: expected a causal language model that transformers has, got "
            f"model_type {family!r}; {hint}"
        )
    digest = hashlib.sha256(f"{length} {json.dumps(config)}".encode()).hexdigest()
    stem = re.sub(r"\W", "_", family)
    name = f"{stem}_{digest[:8]}.py"
    written = _TEMPLATE.format(
        source=Path(path).name.replace("\\", "/").replace('"', "'"),
        name=name,
        batch=EXAMPLE_BATCH,
        length=length or _usual_length(config),
        config=json.dumps(_plain(config), indent=2).replace("\\", "\\\\"),
    )
    file = folder / name
    file.write_text(written)
    return f"{file}:factory"


def _plain(value: Any) -> Any:
    """Return a value with plain floats for those that transformers writes as objects.

    They are infinities, such as ``{"__float__": "Infinity"}``.
    """
    match value:
        case {"__float__": str(text)}:
            return float(text)
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
    return value


def _usual_length(config: dict[str, Any]) -> int:
    """Return the tokens of a sample that a configuration suggests."""
    text = config.get("text_config", config)
    stated = text.get("max_position_embeddings") if isinstance(text, dict) else None
    if isinstance(stated, int) and stated > 0:
        return min(stated, DEFAULT_LENGTH)
    return DEFAULT_LENGTH
