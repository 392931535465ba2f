"""What a capture counts, against PyTorch's own counters of the same models.

The models are those of tests/capture_models.py. FLOPs are those of PyTorch's
``FlopCounterMode``, corrected in two places: attention runs as products, since its
fused kernel on CPU counts nothing, and the backward pass of a convolution counts its
groups. Saved bytes are those of ``saved_tensors_hooks`` on tensors with values.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.properties.profiles import PROFILE

MODELS = Path(__file__).parents[2] / "capture_models.py"

TINY = [
    "gpt", "gpt_dropout", "llama", "sliding", "latent", "moe_einsum", "moe_index",
    "state_space", "short_conv", "encoder_decoder", "bert", "vit", "resnet", "unet",
    "mixer", "dit", "dlrm", "two_towers", "reused", "unlike_widths", "heads_beside",
    "parallel", "wavenet",
]  # fmt: skip
#: ``HYPOTHESIS_PROFILE=full make test-torch`` takes every large model, CI every third.
EVERY = PROFILE == "full"
NAMES = [*TINY, *(f"{name}_big" for name in TINY[:: 1 if EVERY else 3])]


def models() -> Any:
    """Return the file of models, which needs PyTorch."""
    from tests import capture_models

    return capture_models


def blocks(name: str) -> tuple[list[str], int]:
    """Return the paths of the blocks of a model, and how often each runs."""
    kind = models().KINDS[name.removesuffix("_big")]
    if name.endswith("_big"):
        return kind.big_blocks, kind.big_calls
    return kind.tiny_blocks, kind.calls


@functools.cache
def captured(name: str) -> Any:
    from nest.capture.factory import build, load
    from nest.capture.trace import capture

    return capture(build(*load(f"{MODELS}:{name}")))


def flops(module: Any, inputs: tuple[Any, ...]) -> tuple[int, int]:
    """Count forward and backward FLOPs by PyTorch's counter."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

    def convolution_backward(
        gradient: Any, x: Any, weight: Any, _bias: Any, _stride: Any, _padding: Any,
        _dilation: Any, transposed: bool, _output_padding: Any, _groups: int,
        mask: list[bool], out_shape: Any,
    ) -> int:  # fmt: skip
        forward = conv_flop_count(x, weight, gradient, transposed=transposed)
        return forward * sum(mask[:2])

    mapping = {torch.ops.aten.convolution_backward: convolution_backward}
    with (
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False, custom_mapping=mapping) as counter,
    ):
        loss = module(*inputs)
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops() - forward


def saved_bytes(module: Any, inputs: tuple[Any, ...]) -> int:
    """Count the bytes of storages that autograd keeps, but for the module's state."""
    from torch.autograd.graph import saved_tensors_hooks

    state = {
        x.untyped_storage().data_ptr()
        for x in (*module.parameters(), *module.buffers())
    }
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in state:
            # Held, so that no other storage takes its address.
            kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs)
    return sum(storage.nbytes() for storage in kept.values())


def made(torch: Any, name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a tiny model with values, or a big one without."""
    torch.manual_seed(0)
    with torch.device("meta" if name.endswith("_big") else "cpu"):
        return getattr(models(), name)()


@pytest.mark.parametrize("name", NAMES)
def test_counts(torch: Any, name: str) -> None:
    """Parameters, FLOPs and repeated blocks: of one capture, as it takes seconds."""
    from nest.capture.layers import layers_of

    with torch.device("meta"):
        module, _ = getattr(models(), name)()
    assert captured(name).num_parameters == sum(x.numel() for x in module.parameters())
    stored = models().PARAMETERS[name.removesuffix("_big")]
    assert captured(name).num_parameters == stored[name.endswith("_big")]

    forward, backward = flops(*made(torch, name))
    assert captured(name).forward_flops == pytest.approx(forward, rel=0.01)
    assert captured(name).backward_flops == pytest.approx(backward, rel=0.01)

    paths, calls = blocks(name)
    expected = [
        path if not call else f"{path}@{call}"
        for path in paths
        for call in range(calls)
    ]
    layers = layers_of(captured(name), "block")
    assert [layer.name for layer in layers if layer.is_block] == expected


@pytest.mark.parametrize("name", TINY)
def test_saved_bytes(torch: Any, name: str) -> None:
    expected = saved_bytes(*made(torch, name))
    assert captured(name).saved_bytes == pytest.approx(expected, rel=0.02)


def test_products_by_groups_count_each_row_once(torch: Any) -> None:
    """24 rows of 32 values meet matrices of 32 by 16: 2·24·32·16 FLOPs, thrice."""
    from nest.capture.factory import Built
    from nest.capture.trace import capture

    class Grouped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            size = (4, 32, 16)
            self.weight = torch.nn.Parameter(torch.zeros(size, dtype=torch.bfloat16))
            self.widen = torch.nn.Parameter(torch.zeros(32, dtype=torch.bfloat16))

        def forward(self, x: Any, ends: Any) -> Any:
            made = torch._grouped_mm(x * self.widen, self.weight, offs=ends)
            return (made * made).sum()

    inputs = (
        torch.zeros(24, 32, dtype=torch.bfloat16),
        torch.tensor([6, 10, 20, 24], dtype=torch.int32),
    )
    found = capture(Built(Grouped(), inputs, "grouped"))
    assert found.forward_flops == 2 * 24 * 32 * 16
    assert found.backward_flops == 2 * found.forward_flops


def test_failures_are_not_logged(
    torch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from nest.capture.factory import Built, InvalidModuleError
    from nest.capture.trace import capture

    class Wrong(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return (x * torch.zeros(3, device=x.device)).sum()

    with pytest.raises(InvalidModuleError, match="without values"):
        capture(Built(Wrong(), (torch.zeros(2, 4),), "wrong"))
    assert capsys.readouterr().err == ""
