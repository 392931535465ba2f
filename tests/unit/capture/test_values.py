"""Losses that, by their values, are no mean over samples; and state that changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

FILE = """
import itertools
import random
import sys
import numpy
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

class UnitGradient(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x * 1.0)
    backward = staticmethod(lambda ctx, gradient: gradient / gradient.norm())

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Linear(12, 6))
        self.register_buffer("kept", torch.zeros(6))
        self.steps, self.seen = 0, []

    def forward(self, x, b, labels):
        a = self.net(x)
        {code}

def make():
    {first}
    Model.counts = itertools.count(1)
    labels = torch.tensor([1, 2, -100, -100, 3, -100, 5, 0])
    return Model(), (torch.randn(8, 6), torch.randn(8, 6), labels)
"""


def assumed(path: Path, code: str, *, first: str = "pass", **changes: Any) -> str:
    """Return what the import of a module assumes."""
    from nest.capture.problem import source_of
    from nest.requests.modules import ModuleRequest

    path = path / "model.py"
    path.write_text(FILE.replace("{code}", code).replace("{first}", first))
    request = ModuleRequest(factory=f"{path}:make", cluster="h100x2", **changes)
    source = source_of(request.build_problem())
    assert source is not None
    return "; ".join(source.assumed)


def refusal(path: Path, code: str, **changes: Any) -> str:
    from nest.errors import NestError

    with pytest.raises(NestError) as error:
        assumed(path, code, **changes)
    assert "\n" not in str(error.value)
    return str(error.value)


NO_MEANS = [
    "r = b.mean(-1); r = (r - r.mean()) / (r.std() + 1e-5); "
    "return -(a.mean(-1) * r).mean()",
    "return F.mse_loss(a, (b - b.mean(0)) / (b.std(0) + 1e-5))",
    "return F.mse_loss(self.net((x - x.mean(0)) / x.std(0)), b)",
    "return F.mse_loss(a / a.norm(), b)",
    "return F.mse_loss(a, b) / len(a)",
    "return F.mse_loss(a, b) * a.shape[0]",
    "return ((a - b) ** 2).sum() / len(a) ** 2",
    "return F.cross_entropy(a, labels.clamp(0), weight=torch.arange(1.0, 7.0))",
    "return F.cross_entropy(a, labels)",
    "return F.mse_loss(a.mean(1, keepdim=True), b[:, 0])",
    "return F.mse_loss(a, 0.7 * b + 0.3 * b.flip(0))",
    "return F.mse_loss(a, b[b[:, 0].argsort()])",
    "return F.mse_loss(a[1:], b[:-1])",
    "y = a[None]; y = F.scaled_dot_product_attention(y, y, y)[0]; "
    "return F.mse_loss(y, b)",
    "return F.mse_loss(a.cummax(0).values, b)",
]


@pytest.mark.parametrize("code", NO_MEANS)
def test_losses_that_are_no_means(torch: Any, tmp_path: Path, code: str) -> None:
    """Their operations keep the shapes of a mean."""
    text = refusal(tmp_path, code)
    assert "expected a loss that is the mean of its samples' losses" in text
    assert "--split-loss" in text
    note = assumed(tmp_path, code, split_loss=True)
    assert "the loss is no mean over samples: " in note


def test_gradients_that_are_no_means(torch: Any, tmp_path: Path) -> None:
    """The losses of halves have the mean of the whole."""
    code = "return F.mse_loss(UnitGradient.apply(a), b)"
    assert "a gradient that differs by 0." in refusal(tmp_path, code)
    assert "a gradient that differs" in assumed(tmp_path, code, split_loss=True)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("self.kept.mul_(0.9).add_(a.detach().mean(0))", "Tensor.mul_ on kept"),
        ("self.kept += 1", "Tensor.add_ on kept"),
        ("self.kept.copy_(b.mean(0))", "got torch.Tensor.copy_ on kept; remove"),
        ("self.steps += 1", "steps: expected a forward pass that changes nothing"),
        ("self.last = getattr(self, 'last', 0) * 0.9 + a.mean()", "last: expected a f"),
        ("self.seen.append(1); a = a * len(self.seen)", "seen: expected a forward"),
        ("a = a * next(self.counts)", "for the same inputs"),
    ],
)
@pytest.mark.parametrize("split_loss", [False, True])
def test_state_that_changes(
    torch: Any, tmp_path: Path, code: str, what: str, split_loss: bool
) -> None:
    code = f"{code}; return F.mse_loss(a, b)"
    assert what in refusal(tmp_path, code, split_loss=split_loss)


@pytest.mark.parametrize(
    "code",
    [
        "return F.mse_loss(a, b)",
        "return F.cross_entropy(a, labels.clamp(0))",
        "return F.cross_entropy(a.float(), labels.clamp(0))",
        "return F.mse_loss(a.bfloat16().float(), b)",
        "return F.binary_cross_entropy(a.sigmoid(), b.sigmoid())",
        "return F.mse_loss(F.dropout(a, 0.5, self.training), b)",
        "return F.mse_loss(a + torch.randn_like(a), b)",
        "return F.mse_loss(a.sort(1).values, b.flip(1))",
        "self.last = a.mean(); return F.mse_loss(a, b) + 0.1 * self.last",
    ],
)
def test_means(torch: Any, tmp_path: Path, code: str) -> None:
    note = assumed(tmp_path, code)
    assert "checked by values" not in note
    assert ("other numbers than one process" in note) == (
        "dropout" in code or "rand" in code
    )


def test_large_modules_are_not_checked(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nest.capture.values.MAX_CHECKED_VALUES", 100)
    note = assumed(tmp_path, "return F.mse_loss(a, b)")
    assert "the loss was not checked by values, only by its operations" in note
    assert "162 trained values, more than 100" in note


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("return F.cross_entropy(a, labels, ignore_index=0)", "may divide by weights"),
        ("return F.cross_entropy(a, labels, self.kept)", "may divide by weights"),
        (
            "mask = (a.detach() > a.detach().mean(0)).to(a.dtype); "
            "return F.mse_loss(a * mask, b)",
            "got mul, which uses places of samples in the batch",
        ),
    ],
)
def test_what_operations_show_of_large_modules(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, what: str
) -> None:
    monkeypatch.setattr("nest.capture.values.MAX_CHECKED_VALUES", 100)
    said = refusal(tmp_path, code)
    assert what in said
    assert said.endswith("162 trained values, more than 100")
    assert "--split-loss" in assumed(tmp_path, code, split_loss=True)


def test_places_in_the_batch(torch: Any, tmp_path: Path) -> None:
    """As experts with a capacity have them, here one that is never reached."""
    code = (
        "e = (a[:, 0] > 0).long(); "
        "place = F.one_hot(e, 2).cumsum(0).gather(1, e[:, None]); "
    )
    text = refusal(tmp_path, f"{code} return F.mse_loss(a * (place < 9), b)")
    assert "got mul, which uses places of samples in the batch" in text
    code += "place = place[:, 0] - place[:, 0]; return F.mse_loss(a[place], b[place])"
    assert "mean of its samples'" in refusal(tmp_path, code)


def test_modules_that_do_not_run_with_values(torch: Any, tmp_path: Path) -> None:
    code = "assert type(x).__name__ != 'Tensor', 'no values'; return F.mse_loss(a, b)"
    note = assumed(tmp_path, code)
    assert "it does not run with values on the CPU (AssertionError: no values)" in note


def test_user_code_that_cannot_be_captured(torch: Any, tmp_path: Path) -> None:
    for draw in ("random.random()", "numpy.random.rand()"):
        code = f"a = a.exp() if {draw} < 0.1 else a; return F.mse_loss(a, b)"
        text = refusal(tmp_path, code)
        assert "expected a forward pass that draws no random numbers of Python" in text
    code = "a = a.exp() if next(self.draws) else a; return F.mse_loss(a, b)"
    first = "Model.draws = iter([1] if not hasattr(Model, 'draws') else [0])"
    text = refusal(tmp_path, code, first=first)
    assert "expected the same operations for every batch size" in text
    text = refusal(tmp_path, "return F.mse_loss(a, b)", first="sys.exit(3)")
    assert "got SystemExit: 3" in text
    for reentrant in (False, True):
        code = (
            f"return F.mse_loss(checkpoint(torch.sin, a, use_reentrant={reentrant}), b)"
        )
        assert "remove it, nest plans recomputation" in refusal(tmp_path, code)


def test_half_precision_is_checked(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = "torch.nn.Linear(12, 6))"
    text = FILE.replace(last, f"{last}.bfloat16()")
    text = text.replace("self.net(x)", "self.net(x.to(torch.bfloat16)).float()")
    monkeypatch.setitem(globals(), "FILE", text)
    assert "checked by values" not in assumed(tmp_path, "return F.mse_loss(a, b)")
    assert "mean of its samples'" in refusal(
        tmp_path, "return F.cross_entropy(a, labels)"
    )
