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
    """Capture a module whose parts have the weights of one of ``tp`` ranks.

    Raises
    ------
    InvalidModuleError
        If the module does not run with them.
    """
    built = build(factory, name, samples)
    for path, style in styles.items():
        shared_module = built.module.get_submodule(path)
        axis = 1 if style == "rowwise" else 0
        for name, parameter in [*shared_module.named_parameters()]:
            shape = list(parameter.shape)
            if axis < len(shape):
                shape[axis] //= tp
            values = parameter.new_empty(shape)
            cut = torch.nn.Parameter(values, requires_grad=parameter.requires_grad)
            setattr(shared_module, name, cut)
    return capture(built)
