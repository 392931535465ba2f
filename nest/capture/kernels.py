"""What the kernels below an operation compute, read and write.

FLOPs are those of PyTorch's own formulas, with three corrections. Fused attention on a
CPU, which PyTorch does not count, counts its two products, and four in the backward
pass. The backward pass of a grouped convolution counts its groups. Products by groups
of rows, as mixtures of experts have them, count each row once.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from typing import Any

import torch
from torch._C import _current_autograd_node
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten

#: Kernels that read the rows of a table that indices name.
_GATHERS = {aten.embedding, aten.index_select, aten.index, aten.gather}

#: Calls below PyTorch's functions that neither compute nor move anything.
_FREE = {
    getattr(aten, name)
    for name in ("empty", "empty_strided", "empty_like", "new_empty",
                 "new_empty_strided", "_unsafe_view", "lift_fresh")
}  # fmt: skip

_ATTENTION, _ATTENTION_BACKWARD, _GROUPED = (
    getattr(aten, name)
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_grouped_mm",
    )
)

_schema_of = attrgetter("_schema")

Product = tuple[int, int, int, int]


@dataclass(eq=False)
class Tally:
    """What the kernels of one operation do, as :class:`Operation` has it."""

    forward_flops: int = 0
    backward_flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    backward_bytes: int = 0
    kernels: int = 0
    backward_kernels: int = 0
    saved: dict[int, int] = field(default_factory=dict)
    #: Number of products, by their rows, depth and columns.
    products: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    #: Storages that it writes to.
    changed: set[int] = field(default_factory=set)

    def fields(self) -> dict[str, Any]:
        """Return the fields of an operation."""
        counted = {x: y for x, y in vars(self).items() if x != "changed"}
        products = tuple((*x, count) for x, count in self.products.items())
        return counted | {"products": products}


class Meter(TorchDispatchMode):  # type: ignore[misc]
    """Adds the work of each kernel to the tally of its operation."""

    def __init__(self, storage_of: Callable[[torch.Tensor], int]) -> None:
        super().__init__()
        self.storage_of = storage_of
        self.current = Tally()
        #: Which operation a step of the backward pass belongs to.
        self.owners: dict[Any, Tally] = {}
        self.is_backward = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.prim.device.default:
            return (
                args[0].fake_device
                if isinstance(args[0], FakeTensor)
                else (function(*args))
            )
        result = function(*args, **(kwargs or {}))
        if self.is_backward:
            step = _current_autograd_node()
            self.current = self.owners.get(step, self.current)
        self._count(function, args, kwargs or {}, result)
        return result

    def _count(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        tally = self.current
        for position, name in _changed_arguments(function):
            value = args[position] if position < len(args) else kwargs.get(name)
            tally.changed.update(self.storage_of(x) for x in _tensors(value))
        packet = function.overloadpacket
        if packet in _FREE or _is_view(function):
            return
        made = sum(map(_bytes, _tensors(result)))
        read = [_bytes(x) for x in _tensors((args, tuple(kwargs.values())))]
        if packet in _GATHERS:
            read[0] = made
        flops = _flops(packet, args, kwargs, result)
        if self.is_backward:
            tally.backward_flops += flops
            tally.backward_bytes += made + sum(read)
            tally.backward_kernels += 1
            return
        tally.forward_flops += flops
        tally.read_bytes += sum(read)
        tally.written_bytes += made
        tally.kernels += 1
        if flops:
            for rows, depth, columns, count in _products(packet, args, result):
                tally.products[rows, depth, columns] += count


@functools.cache
def _is_view(function: Any) -> bool:
    return bool(function.is_view)


@functools.cache
def _changed_arguments(function: Any) -> list[tuple[int, str]]:
    """Return positions and names of the arguments that a kernel writes to."""
    return [
        (position, argument.name)
        for position, argument in enumerate(_schema_of(function).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the values of a tensor; repeated ones count once."""
    sizes = tensor.shape
    strides = tensor.stride()
    if 0 in strides:
        sizes = torch.Size(
            size for size, stride in zip(sizes, strides, strict=True) if stride
        )
    return int(prod(sizes) * tensor.element_size())


def _flops(packet: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the FLOPs of a kernel: PyTorch's formulas, corrected."""
    if packet is _ATTENTION:
        return _attention_flops(args[0], args[1], args[2])
    if packet is _ATTENTION_BACKWARD:
        return 2 * _attention_flops(args[1], args[2], args[3])
    if packet is _GROUPED:
        return _grouped_flops(args[0], args[1])
    if packet not in flop_registry:
        return 0
    if packet is aten.convolution_backward and args[9] != 1:
        forward = flop_registry[aten.convolution](
            args[1], args[2], None, *args[4:10], out_val=args[0]
        )
        return int(forward) * int(sum(args[10][:2]))
    return int(flop_registry[packet](*args, **kwargs, out_val=result))


def _attention_flops(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> int:
    pairs = prod(queries.shape[:-1]) * int(keys.shape[-2])
    return int(2 * pairs * (keys.shape[-1] + values.shape[-1]))


def _grouped_flops(first: torch.Tensor, second: torch.Tensor) -> int:
    """Return the FLOPs of products by groups, of which PyTorch has no formula.

    An operand of two axes has the parts of all groups along one of them.
    """
    groups = first.shape[0] if first.dim() == 3 and second.dim() == 2 else 1
    return int(2 * first.numel() // groups * second.shape[-1])


def _products(packet: Any, args: Any, result: Any) -> list[Product]:
    """Return rows, depth, columns and number of the products of a kernel."""
    if packet in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
        first = args[1] if packet in (aten.addmm, aten.baddbmm) else args[0]
        *count, rows, depth = first.shape
        return [(rows, depth, result.shape[-1], prod(count))]
    if packet is _ATTENTION:
        queries, keys, values = args[:3]
        *count, rows, depth = queries.shape
        return [
            (rows, depth, keys.shape[-2], prod(count)),
            (rows, keys.shape[-2], values.shape[-1], prod(count)),
        ]
    if packet is _GROUPED:
        rows, depth = args[0].shape[-2:]
        groups = args[1].shape[0]
        return [(-(-rows // groups), depth, result.shape[-1], groups)]
    if packet is aten.convolution:
        images, weights, _, _, _, _, is_transposed, _, groups = args[:9]
        pixels = (images if is_transposed else result).shape
        depth = prod(weights.shape[1:])
        rows = pixels[0] * prod(pixels[2:])
        return [(rows, depth, weights.shape[0] // groups, groups)]
    return []
