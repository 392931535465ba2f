"""What no script can repeat of a module is said when it is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

MODULE = """
import functools
import torch
from torch import nn

TABLE = torch.ones(8)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


@functools.lru_cache
def kept(size, device):
    return torch.ones(size, device=device)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        scale = x.exp()
        for block in self.blocks:
            x = x + block(scale * x)
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = SECOND

    def forward(self, x):
        return self.second(CODE).square().mean()


def make():
    return Model(), (torch.randn(4, 8),)
"""


def imported(folder: Path, code: str, second: str = "nn.Linear(8, 8)") -> Any:
    """Return what was assumed of a module whose second part reads the code."""
    from nest.capture.problem import source_of
    from nest.requests.modules import ModuleRequest

    path = folder / "model.py"
    path.write_text(MODULE.replace("CODE", code).replace("SECOND", second))
    request = ModuleRequest(factory=f"{path}:make", cluster="a100x2", batch=4)
    source = source_of(request.build_problem())
    assert source is not None
    return source.assumed


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("self.first(x) + TABLE", "a tensor that no module holds; register it as"),
        ("Reversed.apply(self.first(x))", "the function Reversed; move it into a"),
    ],
)
def test_scripts_that_will_be_refused(
    torch: Any, tmp_path: Path, code: str, said: str
) -> None:
    notes = [x for x in imported(tmp_path, code) if "export --to torch" in x]
    assert [said in x for x in notes] == [True]
    assert not any("--to torch" in x for x in imported(tmp_path, "self.first(x)"))


def test_modules_of_few_layers(torch: Any, tmp_path: Path) -> None:
    second = "Mixed()"
    assert any(
        x.startswith("layers that plans do not cut: ") and "granularity module: " in x
        for x in imported(tmp_path, "self.first(x)", second)
    )
    assert not any(
        x.startswith("layers that") for x in imported(tmp_path, "self.first(x)")
    )


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("code", "second", "said"),
    [
        (
            "self.first(x) + kept(8, x.device)",
            "nn.Linear(8, 8)",
            r"makes its tensors anew, got one of shape \(8,\) that an earlier pass",
        ),
        ("x", "torch.jit.script(nn.Linear(8, 8))", "got a scripted one, second"),
    ],
)
def test_passes_that_are_refused(
    torch: Any, tmp_path: Path, code: str, second: str, said: str
) -> None:
    from nest.capture.factory import InvalidModuleError

    with pytest.raises(InvalidModuleError, match=said):
        imported(tmp_path, code, second)
