"""Factory files for the config.json of a language model."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest

from nest.capture.huggingface import write_factory
from nest.errors import InvalidOptionError, InvalidProblemError
from nest.requests.modules import ModuleRequest

LLAMA = {"model_type": "llama", "vocab_size": 100, "max_position_embeddings": 64}


def constants(factory: str) -> dict[str, Any]:
    """Return the numbers and texts that a file names, without running it."""
    file, _, name = factory.rpartition(":")
    assert name == "factory"
    found = {}
    for statement in ast.parse(Path(file).read_text()).body:
        if isinstance(statement, ast.Assign):
            match statement.value:
                case ast.Constant(value) | ast.Call(args=[ast.Constant(value)]):
                    found[statement.targets[0].id] = value
    return found


def written(tmp_path: Path, config: Any, length: int | None = None) -> dict[str, Any]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return constants(write_factory(path, tmp_path, length))


def test_the_file_has_the_configuration(tmp_path: Path) -> None:
    """Whatever is in its texts."""
    config = {**LLAMA, "text": 'a "quote", a \\ and """three"""\n', "scale": 1e-5}
    assert json.loads(written(tmp_path, config)["CONFIG"]) == config


def test_infinities_are_written_as_python_reads_them(tmp_path: Path) -> None:
    config = {**LLAMA, "limits": [0.0, {"__float__": "Infinity"}]}
    assert json.loads(written(tmp_path, config)["CONFIG"])["limits"][1] == math.inf


@pytest.mark.parametrize(
    ("config", "stated", "expected"),
    [
        (LLAMA, None, 64),
        (LLAMA, 32, 32),
        ({**LLAMA, "max_position_embeddings": 131_072}, None, 4_096),
        ({"model_type": "mamba"}, None, 4_096),
        ({"model_type": "x", "text_config": LLAMA}, None, 64),
    ],
)
def test_tokens_of_a_sample(
    tmp_path: Path, config: Any, stated: int | None, expected: int
) -> None:
    assert written(tmp_path, config, stated)["SEQUENCE_LENGTH"] == expected


def test_unlike_texts_have_unlike_names(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    names = {write_factory(path, tmp_path, length) for length in (None, 32, 32, 48)}
    assert len(names) == 3


@pytest.mark.parametrize("config", [[1], {}, {"model_type": 3}, {"model_type": ""}])
def test_no_family(tmp_path: Path, config: Any) -> None:
    with pytest.raises(InvalidProblemError, match="JSON object with a model_type"):
        written(tmp_path, config)


def test_no_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest.capture.huggingface.find_spec", {}.get)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    request = ModuleRequest(factory=str(path), hf=True, cluster="h100x8")
    with pytest.raises(InvalidOptionError, match="--hf: expected package 'transfor"):
        request.with_file(tmp_path)


def test_a_length_without_a_configuration(tmp_path: Path) -> None:
    request = ModuleRequest(factory="a.py:f", cluster="h100x8", sequence_length=8)
    with pytest.raises(InvalidOptionError, match="--sequence-length: expected --hf"):
        request.with_file(tmp_path)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is not None, reason="it is installed"
)
def test_the_file_needs_transformers(torch: Any, tmp_path: Path) -> None:
    from nest.capture.factory import InvalidModuleError, load

    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    with pytest.raises(InvalidModuleError, match="No module named 'transformers'"):
        load(write_factory(path, tmp_path))


def test_families_that_cannot_be_built(tmp_path: Path) -> None:
    """One line, and no file."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "lama"}))
    with pytest.raises(InvalidProblemError, match=r"'lama'; did you mean 'llama'\?"):
        write_factory(path, tmp_path, families=("llama", "mamba"))
    assert [*tmp_path.iterdir()] == [path]
