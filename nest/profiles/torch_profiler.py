"""Time layers of a model with PyTorch, one at a time, on one device.

A layer is the shard of one rank (heads, MLP columns and vocabulary over
``tp``, experts over ``ep``) without communication. A pass is timed from the
moment its first kernel may start to the moment its last one is done: with
CUDA events on the device's own clock, otherwise with the host's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from importlib import util
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nest.errors import InvalidOptionError, NestError
from nest.hardware.devices import known_device
from nest.models import graphs
from nest.models.blocks import Block, Head, Tower, unusual
from nest.models.choices import Degrees
from nest.models.operators.base import Execution, Node, Split
from nest.profiles.format import DTYPE_BYTES, Entry, InvalidProfileError, Profile
from nest.util.interrupts import Interrupted
from nest.util.versions import DISTRIBUTION, machine

if TYPE_CHECKING:
    from nest.profiles.torch_layers import RunnableLayer

M = TypeVar("M")

#: What PyTorch calls the data types.
DTYPE_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class TorchNotInstalledError(NestError, ImportError):
    """PyTorch is missing."""


class LayerShape(NamedTuple):
    """One kind of layer: its name, the tower it is part of, its shape.

    A head is part of the last tower, an embedding has the tower's shape.
    ``source_length`` are the tokens per sample of the tower that it reads,
    ``0`` without; ``None`` is the job's.
    """

    kind: str
    tower: Tower
    shape: Tower | Block | Head
    source_length: int | None = 0


def require_torch(command: str = "nest profile") -> None:
    """Refuse to go on without PyTorch, for a command; imports nothing.

    Raises ``TorchNotInstalledError`` if it is missing; the text says what to install.
    """
    if util.find_spec("torch") is None:
        raise TorchNotInstalledError(
            f"{command}: expected package 'torch', got none; install it "
            f"with: pip install '{DISTRIBUTION}[profile]'"
        )


def layer_shapes(towers: Sequence[Tower], head: Head) -> list[LayerShape]:
    """Return every kind of layer once: embeddings, blocks, the head.

    Names are those of graph nodes: an embedding is ``embedding``, behind the
    name of its tower if that has one; a block has its own name, or that of
    its tower in front if another tower has the same; the head is ``head``.

    Raises ``InvalidOptionError`` if layers are of a kind that is not built here.
    """
    field = unusual(*towers, head)
    if field is not None:
        raise InvalidOptionError(
            f"--model: expected a plain transformer, got one with {field}; "
            f"choose another"
        )
    lengths = {tower.name: tower.sequence_length for tower in towers}
    shapes: dict[str, LayerShape] = {}
    for tower in towers:
        kind = f"{tower.name}-embedding" if tower.name else "embedding"
        shapes[kind] = LayerShape(kind, tower, tower)
        source = 0 if tower.reads is None else lengths[tower.reads]
        for run in tower.runs:
            name = run.block.name
            if name in shapes and shapes[name].shape != run.block:
                name = f"{tower.name}-{name}"
            shapes.setdefault(name, LayerShape(name, tower, run.block, source))
    shapes["head"] = LayerShape("head", towers[-1], head)
    return list(shapes.values())


class Timing(NamedTuple):
    """How layers are timed."""

    #: ``cpu``, ``cuda`` (ROCm too) or ``auto``: CUDA where there is one.
    device: str = "auto"
    #: Data type of weights and activations.
    dtype: str = "bf16"
    #: Whether activations between layers are split over ``tp``.
    sequence_parallel: bool = True
    #: Passes before the measured ones, and measured passes.
    warm_up: int = 2
    repeats: int = 5
    #: Name of the device in the profile; by default that of the hardware data.
    device_name: str | None = None


#: As layers are timed without other options.
DEFAULT_TIMING = Timing()


def profile_layers(
    model: str,
    layers: Iterable[LayerShape],
    degrees: Iterable[Degrees],
    sequence_length: int,
    timing: Timing = DEFAULT_TIMING,
    say: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Time every layer under every split.

    ``model`` is its name in the profile, ``sequence_length`` counts tokens per sample,
    and ``say`` takes one line about every layer.

    The profile has an entry for every layer that fits the device's memory. Raises
    ``TorchNotInstalledError`` if PyTorch is missing, ``InvalidOptionError`` if there is
    no such device or it does not take the data type, ``InvalidProfileError`` if no
    layer fits, and ``Interrupted`` on Ctrl-C, with the entries measured so far.
    """
    require_torch()
    target, name = find_device(timing.device)
    if target.type == "cpu" and timing.dtype == "fp16":
        # Without half-precision kernels one layer takes minutes.
        raise InvalidOptionError(
            "--dtype: expected bf16 or fp32 on a CPU, got 'fp16'; choose one of them"
        )
    entries: list[Entry] = []
    skipped: list[str] = []
    stop: KeyboardInterrupt | None = None
    for layer, choice in product(layers, degrees):
        split = split_layer(layer, choice, sequence_length, timing.sequence_parallel)
        label = f"{layer.kind} tp={choice.tp} samples={choice.samples}"
        say(label)
        try:
            measured = _measure_if_it_fits(layer, split, target, timing)
        except KeyboardInterrupt as interrupt:
            stop = interrupt
            break
        if measured is None:
            skipped.append(label)
            say(f"{label}: does not fit the device's memory; left out")
            continue
        forward_flops, backward_flops = count_layer(layer, split).flops()
        entries.append(
            Entry(
                model=model,
                kind=layer.kind,
                tp=choice.tp,
                ep=choice.ep,
                samples=choice.samples,
                sequence_length=sequence_length,
                forward_flops=float(forward_flops),
                backward_flops=float(backward_flops),
                **measured,
            )
        )
    if stop is not None and not entries:
        raise stop
    profile = _profile_of(entries, skipped, timing, name)
    if stop is not None:
        raise Interrupted(profile) from stop
    return profile


def _profile_of(
    entries: Sequence[Entry], skipped: Sequence[str], timing: Timing, name: str
) -> Profile:
    """Return the profile of a device of that name."""
    import torch

    if not entries:
        raise InvalidProfileError(
            f"nest profile: expected a layer that fits the device's memory, got none "
            f"({', '.join(skipped)}); choose fewer samples or a shorter sequence"
        )
    return Profile(
        source="nest profile",
        device=timing.device_name or name,
        framework="PyTorch",
        framework_version=str(torch.__version__),
        dtype=timing.dtype,
        sequence_parallel=timing.sequence_parallel,
        warm_up=timing.warm_up,
        repeats=timing.repeats,
        entries=tuple(entries),
    )


def _measure_if_it_fits(
    layer: LayerShape, split: Split, device: Any, timing: Timing
) -> dict[str, Any] | None:
    """Return what an entry says of a layer, ``None`` without the memory."""
    import torch

    try:
        return _measure(layer, split, device, timing)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
    # Only now nothing refers to the tensors any more.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def count_layer(layer: LayerShape, split: Split) -> Node:
    """Count a layer as the analytic model does, attention fused."""
    return graphs.count_layer(layer.shape, layer.tower, split, Execution())


def time_passes(
    forward: Callable[[], M],
    backward: Callable[[M], object],
    mark: Callable[[], Any],
    elapsed_ns: Callable[[Any, Any], float],
    *,
    warm_up: int,
    repeats: int,
) -> tuple[float, float]:
    """Return the median times of a forward and a backward pass in ns.

    ``backward`` gets what ``forward`` returned. ``mark`` takes a point in time, and
    ``elapsed_ns`` returns the time from one to a later one, in ns, once both have
    passed. Of the pairs of passes the first ``warm_up`` are not measured, the next
    ``repeats`` are.
    """
    times = []
    for index in range(warm_up + repeats):
        start = mark()
        result = forward()
        middle = mark()
        backward(result)
        end = mark()
        if index >= warm_up:
            times.append((elapsed_ns(start, middle), elapsed_ns(middle, end)))
    forwards, backwards = zip(*times, strict=True)
    return median(forwards), median(backwards)


def split_layer(
    layer: LayerShape,
    choice: Degrees,
    sequence_length: int,
    sequence_parallel: bool = True,
) -> Split:
    """Return the split of a layer in a job of ``sequence_length`` tokens."""
    source = layer.source_length
    return Split(
        tp=choice.tp,
        ep=choice.ep,
        samples=choice.samples,
        sequence_length=layer.tower.sequence_length or sequence_length,
        sequence_parallel=sequence_parallel,
        source_length=sequence_length if source is None else source,
    )


def _measure(
    layer: LayerShape, split: Split, device: Any, timing: Timing
) -> dict[str, Any]:
    """Build a layer and return what an entry says of it."""
    import torch

    from nest.profiles.torch_layers import Shard, build_part

    torch.manual_seed(0)
    shard = Shard(split, device, getattr(torch, DTYPE_NAMES[timing.dtype]))
    runnable = build_part(shard, layer.shape, layer.tower)
    result = runnable.forward(*runnable.inputs)
    # The gradient of the output is there before the pass, as if received.
    gradient = torch.ones_like(result)
    shard.buffers.append(gradient)
    result.backward(gradient)
    del result

    def forward() -> Any:
        for values in runnable.inputs:
            values.grad = None
        return runnable.forward(*runnable.inputs)

    def backward(result: Any) -> None:
        result.backward(gradient)

    forward_ns, backward_ns = time_passes(
        *(forward, backward, *_clock(device)),
        warm_up=timing.warm_up,
        repeats=timing.repeats,
    )
    kept_bytes, working_bytes = _memory(runnable, forward, backward)
    weights = sum(weight.numel() for weight in shard.weights)
    return {
        "forward_ns": forward_ns,
        "backward_ns": backward_ns,
        "kept_bytes": kept_bytes,
        "working_bytes": working_bytes,
        "weight_bytes": weights * DTYPE_BYTES[timing.dtype],
    }


def _memory(
    runnable: RunnableLayer, forward: Callable[[], Any], backward: Callable[[Any], None]
) -> tuple[int, int | None]:
    """Return the kept bytes, and the working bytes where they can be seen.

    Kept are the storages that autograd saves from forward to backward, each once
    however many tensors are views of it, and neither weights nor buffers. Working
    memory is the peak of both passes above what was there before and what is kept.
    """
    import torch

    resident = {
        tensor.untyped_storage().data_ptr()
        for tensor in (*runnable.shard.weights, *runnable.shard.buffers)
    }
    saved: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in resident:
            saved[storage.data_ptr()] = storage.nbytes()
        # Not the tensor itself: an output that is saved would hold itself.
        return tensor.detach()

    on_cuda = runnable.shard.device.type == "cuda"
    before = 0
    for values in runnable.inputs:
        values.grad = None
    if on_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = forward()
    backward(result)
    kept_bytes = sum(saved.values())
    if not on_cuda:
        return kept_bytes, None
    torch.cuda.synchronize()
    # The inputs are kept too, but were there before.
    inputs = {t.untyped_storage().data_ptr() for t in runnable.inputs}
    new = sum(size for key, size in saved.items() if key not in inputs)
    peak = torch.cuda.max_memory_allocated() - before
    return kept_bytes, max(peak - new, 0)


def _clock(device: Any) -> tuple[Callable[[], Any], Callable[[Any, Any], float]]:
    """Return ``mark`` and ``elapsed_ns`` of :func:`time_passes`."""
    import torch

    if device.type != "cuda":
        return time.perf_counter_ns, lambda start, end: float(end - start)

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ns(start: Any, end: Any) -> float:
        end.synchronize()
        return float(1e6 * start.elapsed_time(end))

    return mark, elapsed_ns


def find_device(requested: str) -> tuple[Any, str]:
    """Return the requested device and its name."""
    import torch

    has_cuda = torch.cuda.is_available()
    if requested == "cuda" and not has_cuda:
        raise InvalidOptionError(
            "--device: expected a CUDA device, got none; choose cpu"
        )
    if requested == "cpu" or not has_cuda:
        return torch.device("cpu"), str(machine()["cpu"])
    name = str(torch.cuda.get_device_name())
    spec = known_device(name)
    return torch.device("cuda"), spec.name if spec else name


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    # PyTorch's allocator of the host raises a plain RuntimeError.
    return isinstance(
        error, MemoryError | torch.cuda.OutOfMemoryError
    ) or "allocate memory" in str(error)
