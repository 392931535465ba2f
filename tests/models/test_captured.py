"""Captured models of transformers against what ``nest import hf`` counts.

``make test-models`` installs it; without it all is skipped.
"""

from __future__ import annotations

import importlib.util
import json
from math import prod
from pathlib import Path

import pytest

from nest.capture.huggingface import write_factory
from nest.models.hf import from_hf
from tests.models import generate

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="make test-models has it",
    ),
    # Of the package, about itself.
    pytest.mark.filterwarnings("ignore"),
]

FAMILIES = (
    "afmoe", "apertus", "arcee", "bamba", "bitnet", "bloom", "codegen", "cohere",
    "cohere2", "ernie4_5", "exaone4", "falcon_h1", "gemma", "gemma2", "gemma3_text",
    "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "gpt_oss", "gptj", "granite",
    "granitemoe", "helium", "jamba", "lfm2", "llama", "mamba", "mamba2", "mistral",
    "mixtral", "nemotron", "olmo2", "olmoe", "phi", "phi3", "qwen2", "qwen2_moe",
    "qwen3", "qwen3_moe", "qwen3_next", "smollm3", "stablelm", "starcoder2",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_import_hf(family: str, tmp_path: Path) -> None:
    """Weights that are never trained count in both."""
    from nest.capture.factory import build, load
    from nest.capture.layers import layers_of
    from nest.capture.trace import capture

    ((config, total),) = generate.examples(family, 1, seed=2)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    captured = capture(build(*load(write_factory(path, tmp_path, 16)), 2))
    counted = sum(prod(x.shape) for x in captured.parameters if not x.buffer)
    assert counted == total == from_hf(config).parameters
    blocks = [x for x in layers_of(captured, "block") if x.is_block]
    assert len(blocks) >= 2


#: Families of which the whole model is captured, with experts as grouped products.
WHOLE = ("bert", "deepseek_v3", "falcon", "glm4_moe", "gpt_oss", "lfm2")


@pytest.mark.parametrize("family", WHOLE)
def test_flops_are_those_of_the_stored_examples(family: str, tmp_path: Path) -> None:
    """Of default configurations, up to 671 B parameters."""
    from nest.capture.factory import build, load
    from nest.capture.trace import capture

    (stored,) = (
        entry
        for entry in generate.stored_flops()
        if entry["config"]["model_type"] == family
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**stored["config"], "dtype": "bfloat16"}))
    factory = write_factory(path, tmp_path, generate.COUNTED_LENGTH)
    captured = capture(build(*load(factory), 1))
    counted = sum(prod(x.shape) for x in captured.parameters if not x.buffer)
    assert counted == stored["parameters"]
    assert captured.forward_flops == stored["flops"]
