"""How long the layers of a module take on the device at hand."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from nest.capture.factory import InvalidModuleError, first_line, seeded, with_samples
from nest.capture.records import CapturedModule, ModuleLayer, Operation

#: A call of a module: its path, and 0 for the first call.
_CallKey = tuple[str, int]


class LayerTime(NamedTuple):
    """Median times of a layer."""

    forward_ns: float
    backward_ns: float


def time_layers(
    factory: Callable[[], Any],
    captured: CapturedModule,
    layers: Sequence[ModuleLayer],
    samples: int,
    device: str,
    passes: tuple[int, int] = (2, 5),
) -> dict[str, LayerTime]:
    """Time the forward and the backward pass of each layer, by name.

    The module runs with real weights. Hooks around its modules take the time; what
    runs between them is the rest of a pass, which layers with loose operations share
    by their memory traffic. ``passes`` are those before the measured ones, and those.

    Raises
    ------
    InvalidModuleError
        If the module does not run on the device.
    """
    try:
        with seeded():
            module, inputs = factory()
        module = module.to(device)
        inputs = with_samples(tuple(inputs), samples)
        inputs = tree_map_only(torch.Tensor, lambda x: x.to(device), inputs)
        stopwatch = _Stopwatch(module, device, _paths(captured, layers))
        runs = [stopwatch.run(inputs) for _ in range(sum(passes))][passes[0] :]
    except (RuntimeError, ValueError, TypeError) as error:
        raise InvalidModuleError(
            f"{captured.name}: expected a module that runs on {device}, got "
            f"{first_line(error)}; choose another device"
        ) from error
    forward = [_shared(captured, layers, run[0]) for run in runs]
    backward = [_shared(captured, layers, run[1]) for run in runs]
    return {
        layer.name: LayerTime(
            median(times[i] for times in forward),
            median(times[i] for times in backward),
        )
        for i, layer in enumerate(layers)
    }


def _paths(captured: CapturedModule, layers: Sequence[ModuleLayer]) -> set[str]:
    """Return the modules that layers call as one."""
    return {
        captured.modules[step.module].call.path
        for layer in layers
        for step in layer.steps
        if step.module >= 0
    } - {""}


class _Stopwatch:
    """Runs a module, and notes when calls of some modules begin and end."""

    def __init__(self, module: torch.nn.Module, device: str, paths: set[str]) -> None:
        self.module = module
        self.device = device
        self.begun: dict[str, float] = {}
        self.forward: dict[_CallKey, float] = {}
        self.backward: dict[str, list[float]] = {}
        self.calls: dict[str, int] = {}
        for path in paths:
            self._watch(path, module.get_submodule(path))

    def _watch(self, path: str, module: torch.nn.Module) -> None:
        def begin(*_: Any) -> None:
            self.begun[path] = self._now()

        def end_forward(*_: Any) -> None:
            call = self.calls.get(path, 0)
            self.calls[path] = call + 1
            self.forward[path, call] = self._now() - self.begun[path]

        def end_backward(*_: Any) -> None:
            spent = self._now() - self.begun[path]
            self.backward.setdefault(path, []).append(spent)

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end_forward)
        module.register_full_backward_pre_hook(begin)
        module.register_full_backward_hook(end_backward)

    def _now(self) -> float:
        if self.device != "cpu":
            torch.cuda.synchronize()
        return float(time.perf_counter_ns())

    def run(
        self, inputs: tuple[Any, ...]
    ) -> tuple[dict[_CallKey, float], dict[_CallKey, float]]:
        """Return the times of calls in both passes; ``("", 0)`` is the whole."""
        self.forward, self.backward, self.calls = {}, {}, {}
        self.module.zero_grad()
        begun = self._now()
        loss = self.module(*inputs)
        turned = self._now()
        with warnings.catch_warnings():
            # Of modules whose inputs have no gradient the hooks end early; the rest of
            # the pass has their time.
            warnings.simplefilter("ignore", UserWarning)
            loss.backward()
        ended = self._now()
        backward = {
            (path, len(times) - 1 - i): spent
            for path, times in self.backward.items()
            for i, spent in enumerate(times)
        }
        return (
            self.forward | {("", 0): turned - begun},
            backward | {("", 0): ended - turned},
        )


def _shared(
    captured: CapturedModule,
    layers: Sequence[ModuleLayer],
    times: Mapping[_CallKey, float],
) -> list[float]:
    """Return the times of layers in one pass; loose operations share the rest."""
    spent = [0.0] * len(layers)
    loose = [0] * len(layers)
    for i, layer in enumerate(layers):
        for step in layer.steps:
            if step.module < 0:
                loose[i] += _traffic(captured.operations[step.operation])
                continue
            module = captured.modules[step.module]
            key = (module.call.path, module.call.repetition)
            if key in times:
                spent[i] += times[key]
            else:
                loose[i] += sum(map(_traffic, captured.operations_of(step)))
    rest = max(times["", 0] - sum(spent), 0.0)
    total = sum(loose)
    return [
        max(time_ns + (rest * share / total if total else 0.0), 1.0)
        for time_ns, share in zip(spent, loose, strict=True)
    ]


def _traffic(operation: Operation) -> int:
    """Return what an operation weighs among those that share a time: bytes."""
    return 1 + operation.read_bytes + operation.written_bytes
