"""The code of captured operations and of calls gives the loss of the module.

Each test runs a model of tests/capture_models.py with values, then what a capture
recorded of it, one text after the other, and compares losses and gradients.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

MODELS = Path(__file__).parents[2] / "capture_models.py"

#: Models without random numbers.
NAMES = [
    "gpt", "llama", "sliding", "latent", "moe_einsum", "moe_index", "state_space",
    "short_conv", "encoder_decoder", "bert", "vit", "resnet", "unet", "mixer", "dit",
    "dlrm", "two_towers", "reused", "unlike_widths", "heads_beside", "parallel",
    "wavenet",
]  # fmt: skip


def attribute(module: Any, path: str) -> Any:
    """Return a parameter, a buffer or another tensor of a module by its path."""
    for part in re.findall(r"[^.\[\]]+", path):
        module = (
            module[eval(part)]
            if isinstance(module, (list, dict))
            else getattr(module, part)
        )
    return module


class Replay:
    """Runs recorded steps on tensors with values."""

    def __init__(self, captured: Any, module: Any, inputs: tuple[Any, ...]) -> None:
        import torch

        self.captured = captured
        self.module = module
        self.names: dict[str, Any] = {"torch": torch, "root": module}
        self.values: dict[str, Any] = {}
        leaves = torch.utils._pytree.tree_leaves(inputs)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        for tensor, value in zip(captured.inputs, tensors, strict=True):
            self.values[tensor.name] = value
        for parameter in captured.parameters:
            for name in parameter.names:
                self.values[name] = attribute(module, name)

    def _evaluate(self, text: str, names: tuple[str, ...], **others: Any) -> Any:
        places = [f"v{i}" for i in range(len(names))]
        code = text.format(*places, device="'cpu'")
        scope = dict(zip(places, (self.values[x] for x in names), strict=True))
        scope |= self.names | others
        if re.match(r"v\d+\[.*\] = ", code):
            exec(code, scope)
            return None
        return eval(code, scope)

    def _keep(self, result: Any, record: Any, called: Any = None) -> None:
        for tensor, accessor in zip(record.outputs, record.accessors, strict=True):
            if accessor.startswith("{"):
                number = int(accessor[1 : accessor.index("}")])
                value = self.values[record.inputs[number]]
            elif accessor.startswith("@"):
                value = attribute(called, accessor[1:])
            else:
                value = eval(f"result{accessor}", {"result": result})
            assert tuple(value.shape) == tensor.shape
            assert str(value.dtype) == f"torch.{tensor.dtype}"
            self.values[tensor.name] = value

    def operation(self, position: int) -> None:
        """Run one operation."""
        record = self.captured.operations[position]
        assert record.code, record.obstacle
        self._keep(self._evaluate(record.code, record.inputs), record)

    def call(self, position: int) -> None:
        """Call one module."""
        record = self.captured.modules[position]
        called = self.module.get_submodule(record.call.path)
        text = f"called({record.code})"
        self._keep(self._evaluate(text, record.inputs, called=called), record, called)

    def layers(self, layers: Any) -> Any:
        """Run all steps of layers and return the loss."""
        for layer in layers:
            for step in layer.steps:
                if step.module >= 0:
                    self.call(step.module)
                else:
                    self.operation(step.operation)
        return self.values[self.captured.loss]


def gradients(module: Any, loss: Any) -> dict[str, Any]:
    module.zero_grad()
    loss.backward()
    return {
        name: value.grad.clone()
        for name, value in module.named_parameters()
        if value.grad is not None
    }


def check(torch: Any, text: str, granularity: str) -> None:
    """Compare a model with what a capture of it recorded."""
    from nest.capture.factory import build, load
    from nest.capture.layers import layers_of
    from nest.capture.trace import capture

    factory, name = load(text)
    captured = capture(build(factory, name))
    torch.manual_seed(0)
    module, inputs = factory()
    expected = module(*inputs)
    before = gradients(module, expected)
    replay = Replay(captured, module, inputs)
    if granularity:
        loss = replay.layers(layers_of(captured, granularity))
    else:
        for position in range(len(captured.operations)):
            replay.operation(position)
        loss = replay.values[captured.loss]
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-7)
    after = gradients(module, loss)
    assert before.keys() == after.keys()
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("granularity", ["", "block", "module", "operator"])
@pytest.mark.parametrize("name", NAMES)
def test_recorded_code_gives_the_same_loss(
    torch: Any, name: str, granularity: str
) -> None:
    check(torch, f"{MODELS}:{name}", granularity)
