"""Every default configuration of ``transformers`` that builds a language model.

``python -m tests.models.census`` writes ``tests/data/defaults.txt``: a line per
family with what nest counts of its default configuration: the parameters of the
package's own model, those of its text model, or a refusal by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nest.errors import NestError
from nest.models.hf import from_hf
from tests.models.generate import parameters

STORED = Path(__file__).parents[1] / "data" / "defaults.txt"


def _families() -> dict[str, str]:
    """Return the class that builds each family, a language model if there is one."""
    from transformers.models.auto import modeling_auto

    found = dict.fromkeys(
        (
            *modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
            *modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        ),
        "AutoModelForMultimodalLM",
    )
    for name in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        found[name] = "AutoModelForImageTextToText"
    for name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        found[name] = "AutoModelForCausalLM"
    return dict(sorted(found.items()))


def _built(family: str, auto: str) -> tuple[dict[str, Any], Any]:
    """Return the default configuration as it is saved, and its model."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[family]()
    with torch.device("meta"):
        model = getattr(transformers, auto).from_config(config)
    saved = json.loads(CONFIG_MAPPING[family]().to_json_string())
    return {**saved, "architectures": [type(model).__name__]}, model


def _text_parameters(model: Any) -> int:
    """Count the text model in a model, and the output layer."""
    whole = getattr(model, "model", model)
    text = getattr(whole, "language_model", getattr(whole, "text_model", None))
    if text is None:
        # Everything but what sees and hears.
        return parameters(model) - sum(
            parameters(tower)
            for name in ("vision_embed_tokens", "embed_tokens_extend")
            if (tower := getattr(whole, name, None)) is not None
        )
    held = {id(p): p.numel() for p in text.parameters()}
    head = model.get_output_embeddings()
    if head is not None:
        held |= {id(p): p.numel() for p in head.parameters()}
    return sum(held.values())


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield families, what nest makes of them, and a count or a reason."""
    for family, auto in _families().items():
        try:
            saved, model = _built(family, auto)
        except Exception as error:  # what the package itself cannot build
            yield family, "not built", type(error).__name__
            continue
        try:
            ours = from_hf(saved)
        except NestError as error:
            yield family, "refused", str(error).split(":")[1].strip()
            continue
        expected = _text_parameters(model) if ours.note else parameters(model)
        state = "text model equal" if ours.note else "equal"
        if ours.parameters != expected:
            state = f"WRONG by {ours.parameters - expected}"
        yield family, state, str(ours.parameters)


def main(path: Path = STORED) -> None:
    """Write the table."""
    path.write_text("".join(f"{' | '.join(row)}\n" for row in rows()))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
