"""Factories that cannot be loaded or built are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def refusal(path: Path, text: str, name: str = "make") -> str:
    from nest.capture.factory import InvalidModuleError, build, load

    path.write_text(text)
    with pytest.raises(InvalidModuleError) as raised:
        build(*load(f"{path}:{name}"))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_names_of_factories(torch: Any, tmp_path: Path) -> None:
    from nest.capture.factory import InvalidModuleError, load

    with pytest.raises(InvalidModuleError, match=r"expected FILE\.py:FACTORY"):
        load("model.py")
    with pytest.raises(InvalidModuleError, match="expected a file with the function"):
        load(f"{tmp_path / 'absent.py'}:make")
    text = refusal(tmp_path / "model.py", "def maker(): pass\n")
    assert "expected a function make, found none" in text
    assert "maker" in text


def test_files_and_factories_that_fail(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    assert "got ZeroDivisionError: division by zero" in refusal(path, "1 / 0\n")
    text = refusal(path, "def make():\n    raise KeyError('width')\n")
    assert "model-make: expected a factory that runs without arguments, got Key" in text
    text = refusal(path, "def make():\n    return 3\n")
    assert "expected (module, example_inputs)" in text
    text = refusal(
        path, "import torch\ndef make():\n    return torch.nn.ReLU(), (3,)\n"
    )
    assert "expected inputs whose first axis is the batch" in text
    for returned, said in (
        ("(torch.ones(0, 3),)", "got none with a sample; return tensors"),
        ("torch.ones(4, 3)", "a tuple of example inputs, got Tensor; return (module, "),
    ):
        code = f"import torch\ndef make():\n    return torch.nn.ReLU(), {returned}\n"
        assert said in refusal(path, code)


def test_files_in_packages_are_its_modules(torch: Any, tmp_path: Path) -> None:
    from nest.capture.factory import load

    inner = tmp_path / "nest_outer" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").touch()
    (inner.parent / "sizes.py").write_text("WIDTH = 3\n")
    (inner / "beside.py").write_text("DEPTH = 2\n")
    (inner / "model.py").write_text(
        "import beside\n"
        "import nest_outer.sizes\n"
        "from ..sizes import WIDTH\n"
        "def make():\n"
        "    return nest_outer.sizes.WIDTH, WIDTH, beside.DEPTH\n"
    )
    factory, name = load(f"{inner / 'model.py'}:make")
    assert factory() == (3, 3, 2)
    assert (name, factory.__module__) == ("model-make", "nest_outer.inner.model")


def test_built_without_values(torch: Any, tmp_path: Path) -> None:
    from nest.capture.factory import build, load

    path = tmp_path / "model.py"
    path.write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Linear(4, 2), [torch.ones(3, 4)]\n"
    )
    factory, name = load(f"{path}:make")
    built = build(factory, name, samples=5)
    assert name == "model-make"
    assert built.module.weight.is_meta
    assert [tuple(x.shape) for x in built.inputs] == [(5, 4)]


READS_VALUES = """
import torch

def scaled():
    x = torch.rand(3, 4)
    module = torch.nn.Linear(int(x.max().item() < 2) + 3, 2)
    with torch.no_grad():
        module.weight.div_(module.weight.std().item())
    return module, (torch.from_numpy(x.numpy() + sum(module.bias.tolist())),)
"""


def test_factories_may_read_values(torch: Any, tmp_path: Path) -> None:
    from nest.capture import factory

    path = tmp_path / "model.py"
    path.write_text(READS_VALUES)
    built = factory.build(*factory.load(f"{path}:scaled"), samples=5)
    assert built.module.weight.std().item() == pytest.approx(1)
    assert built.inputs[0].shape == (5, 4)
