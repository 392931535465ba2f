"""What a module computes on one tensor rank, found by running it with its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from nest.capture.factory import build
from nest.capture.records import CapturedModule
from nest.capture.strategies import Style
from nest.capture.trace import capture


def capture_rank(
    factory: Callable[[], Any],
    name: str,
    samples: int,
    styles: Mapping[str, Style],
    tp: int,
) -> CapturedModule:
    """Capture a module whose linear layers have the weights of one of ``tp`` ranks.

    Raises
    ------
    InvalidModuleError
        If the module does not run with them.
    """
    built = build(factory, name, samples)
    for path, style in styles.items():
        linear = built.module.get_submodule(path)
        weight = linear.get_parameter("weight")
        rows, columns = weight.shape
        if style == "colwise":
            linear.weight = _local_parameter(weight, (rows // tp, columns))
            if linear.bias is not None:
                linear.bias = _local_parameter(
                    linear.get_parameter("bias"), (rows // tp,)
                )
        else:
            linear.weight = _local_parameter(weight, (rows, columns // tp))
    return capture(built)


def _local_parameter(
    parameter: torch.nn.Parameter, shape: tuple[int, ...]
) -> torch.nn.Parameter:
    return torch.nn.Parameter(
        parameter.new_empty(shape), requires_grad=parameter.requires_grad
    )
