"""What of a captured module scales with the batch, and what that says of its loss.

A module is captured at two batch sizes. Every number of an operation, such as a size of
a tensor, grows by equal steps from sample to sample, since a tensor has at most one
axis that grows. Tensors with two such axes compare samples with one another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from nest.capture.records import CapturedModule, Operation, Tensor
from nest.capture.strategies import argument, function_name, is_random, path_of
from nest.errors import InvalidProblemError
from nest.units import ceil_div

#: Functions whose result, of some for each sample, is their mean. So is that of those
#: of PyTorch whose names end in ``_loss``.
_MEANS = {
    "mean", "cross_entropy", "kl_div", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
}  # fmt: skip
#: Functions of means that yield a mean again.
_LINEAR = {
    "add", "sub", "mul", "div", "true_divide", "truediv", "neg", "to", "float", "clone",
    "view", "reshape", "squeeze", "unsqueeze", "flatten", "stack", "cat", "getitem",
    "sum", "mean",
}  # fmt: skip
#: Functions in which what stands along one axis meets, with the place of the argument
#: ``dim`` behind the tensor and its default.
_ALONG = {
    "topk": (1, -1), "sort": (0, -1), "softmax": (0, None), "log_softmax": (0, None),
    "cumsum": (0, None), "cumprod": (0, None), "roll": (1, None), "flip": (0, None),
    "cummax": (0, None), "cummin": (0, None),
}  # fmt: skip
#: Those that may sort rows, and functions that read or write rows by such an order.
_SORTS = {"topk", "sort"}
_INDEXED = {
    "getitem", "setitem", "gather", "index_select", "take_along_dim", "scatter",
    "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_put",
}  # fmt: skip
_DIVISIONS = {"div", "true_divide", "truediv"}
_PRODUCTS = {*_DIVISIONS, "mul"}

#: The code of a dropout that drops nothing.
_NO_DROPOUT = re.compile(
    r"dropout\w*\([^,]*, (p=)?(0(\.0)?[,)]|[\d.e-]+, False)|training=False"
)

#: Arguments of a loss that make it a sum.
_SUM = re.compile(r"'sum'|size_average=False|reduction=2\b")

#: How a note begins that no values check a loss.
UNCHECKED = (
    "the loss was not checked by values, only by its operations, as a mean over samples"
)

#: What to do about a loss that is no mean over samples.
REMEDY = (
    "let the loss be a mean over samples, or state with --split-loss that every "
    "micro-batch computes it apart"
)


def at_batch(
    small: CapturedModule, large: CapturedModule, samples: int
) -> CapturedModule:
    """Return what a capture at a batch of ``samples`` counts.

    ``small`` and ``large`` are captures of one module at two batch sizes.

    Raises
    ------
    InvalidProblemError
        If their operations differ.
    """
    check_operations(small, large)
    share = (samples - small.batch, large.batch - small.batch)
    try:
        scaled: CapturedModule = _between(small, large, share)
    except ValueError:  # records of unlike lengths
        raise InvalidProblemError(
            f"{small.name}: expected operations that differ in nothing but sizes for "
            f"{small.batch} and {large.batch} samples, got others; let the first axis "
            f"of inputs and activations be the batch"
        ) from None
    return scaled


def check_operations(small: CapturedModule, large: CapturedModule) -> None:
    """Refuse a module that runs other operations at another batch size.

    Raises
    ------
    InvalidProblemError
        If the operations of the two captures differ, or the axes of what they read and
        make.
    """
    for one, other in zip(small.operations, large.operations, strict=False):
        if _form(one) != _form(other):
            break
        if _axes(one) != _axes(other):
            raise InvalidProblemError(
                f"{small.name}: {path_of(one)}: expected tensors with the same axes "
                f"for every batch size, got others from {function_name(one)}; let the "
                f"first axis of inputs and activations be the batch"
            )
    else:
        if len(small.operations) == len(large.operations):
            return
        one = small.operations[-1]
    raise InvalidProblemError(
        f"{small.name}: {path_of(one)}: expected the same operations for every batch "
        f"size, got others for {large.batch} samples than for {small.batch}, from "
        f"{one.function} on; let nothing but shapes depend on the batch, and nothing "
        f"on random numbers of Python"
    )


def _form(operation: Operation) -> tuple[object, ...]:
    """Return what of an operation is the same at every batch size."""
    return operation.function, len(operation.outputs), len(operation.inputs)


def _axes(operation: Operation) -> list[int]:
    return [len(tensor.shape) for tensor in operation.outputs]


def _between(one: Any, other: Any, share: tuple[int, int]) -> Any:
    """Return records of which each number has changed by a share of the difference."""
    if one == other or isinstance(one, (str, bool)):
        return one
    if isinstance(one, int):
        steps, width = share
        return one + ceil_div((other - one) * steps, width)
    if isinstance(one, tuple):
        return tuple(_between(x, y, share) for x, y in zip(one, other, strict=True))
    if isinstance(one, Mapping):
        return {
            _between(key, key_there, share): _between(value, there, share)
            for (key, value), (key_there, there) in zip(
                one.items(), other.items(), strict=True
            )
        }
    fields = {
        name: _between(getattr(one, name), getattr(other, name), share)
        for name in one.__struct_fields__
    }
    return msgspec.structs.replace(one, **fields)


def batch_axes(small: Tensor, large: Tensor) -> list[int]:
    """Return the axes of a tensor that grow with the batch."""
    return [
        axis
        for axis, (size, there) in enumerate(
            zip(small.shape, large.shape, strict=False)
        )
        if size != there
    ]


def normalizes_batch(operation: Operation) -> bool:
    """Whether an operation uses statistics of the batch, as batch norm in training."""
    return function_name(operation) == "batch_norm" and not re.search(
        r"training=False|, False, [\d.e-]+, [\d.e-]+\)$", operation.code
    )


def random_notes(captured: CapturedModule) -> Iterator[str]:
    """Yield that random numbers differ from those of one process, if there are any."""
    for operation in captured.operations:
        if is_random(operation) and not _NO_DROPOUT.search(operation.code):
            name = function_name(operation)
            yield f"{name}: ranks draw other numbers than one process"
            return


#: What a tensor is to the batch: one axis is of samples; a mean over all of them,
#: several such means, or a sum; or, without gradient, a figure that depends on all, or
#: one for each sample that depends on others.
_Role = Literal["samples", "mean", "means", "sum", "figure", "place"]


def check_loss(
    small: CapturedModule, large: CapturedModule, *, is_unchecked: bool = False
) -> None:
    """Refuse a loss that is not the mean of the losses of its samples.

    Two captures show it: which axes of tensors grow with the batch. Of a loss that no
    values check, more is refused that may be no mean.

    Raises
    ------
    InvalidProblemError
        If an operation compares samples, sums over them, or computes anything but a
        mean of all of them; the text names its module.
    """
    check_operations(small, large)
    roles: dict[str, _Role] = {tensor.name: "samples" for tensor in small.inputs}
    try:
        _check_roles(small, large, roles, is_unchecked)
    except InvalidProblemError as error:
        raise InvalidProblemError(f"{small.name}: {error}") from None


def _check_roles(
    small: CapturedModule,
    large: CapturedModule,
    roles: dict[str, _Role],
    is_unchecked: bool,
) -> None:
    """Refuse a loss that is no mean; ``roles`` are those of the example inputs."""
    last = small.operations[-1]
    for one, other in zip(small.operations, large.operations, strict=True):
        read = [roles[name] for name in one.inputs if name in roles]
        if not read:
            continue
        first = one.inputs[0]
        meets = _meets_batch(one, small.tensors.get(first), large.tensors.get(first))
        if meets and any(x.has_gradient for x in one.outputs):
            tensor = one.outputs[0]
            raise _refused(
                one, "compares the samples of a batch with one another", tensor
            )
        if is_unchecked and _is_weighted(one):
            raise _refused(one, "may divide by weights of the batch", one.outputs[0])
        is_place = "place" in read or (is_unchecked and "figure" in read)
        is_place = is_place or (meets and function_name(one) not in _SORTS)
        for tensor, there in zip(one.outputs, other.outputs, strict=True):
            role = _role(one, other, (tensor, there), read)
            if is_place and role == "samples" and not tensor.has_gradient:
                role = "place"
            roles[tensor.name] = role
            if tensor.name == small.loss:
                last = one
    if roles.get(small.loss) != "mean":
        raise _refused(last, "sums over the samples", last.outputs[0])


def _meets_batch(
    operation: Operation, small: Tensor | None, large: Tensor | None
) -> bool:
    """Whether an operation lets values of several samples meet along their axis.

    Without gradients it may be an order of rows, as experts by index have it.
    """
    along = _ALONG.get(function_name(operation))
    if along is None or small is None or large is None:
        return False
    axis = argument(operation, "dim", *along)
    if not isinstance(axis, int):
        return False
    return axis % len(small.shape) in batch_axes(small, large)


def _role(
    one: Operation, other: Operation, tensors: tuple[Tensor, Tensor], read: list[_Role]
) -> _Role:
    """Return what an output is, from what the operation reads."""
    name = function_name(one)
    tensor = tensors[0]
    axes = batch_axes(*tensors)
    if not tensor.has_gradient:
        return "samples" if axes else "figure"
    if len(axes) > 1:
        raise _refused(one, "compares the samples of a batch with one another", tensor)
    if "figure" in read:
        raise _refused(one, "uses a figure of the whole batch", tensor)
    if "place" in read and name not in _INDEXED:
        raise _refused(one, "uses places of samples in the batch", tensor)
    if "means" in read and (axes or "samples" in read):
        raise _refused(one, "uses means over the whole batch", tensor)
    if axes:
        return "samples"
    if "samples" in read:
        if tensor.shape in ((), (1,)):
            has_mean = name in _MEANS or name.endswith("_loss")
            return "mean" if has_mean and not _SUM.search(one.code) else "sum"
        if name == "mean":
            return "means"
        raise _refused(one, "takes a figure over the batch", tensor)
    if name in _PRODUCTS and one.code != other.code:  # a number grows with the batch
        if name in _DIVISIONS and len(one.inputs) == 1 and {*read} == {"sum"}:
            return "mean"
        raise _refused(one, "multiplies by a number of the batch", tensor)
    if name not in _LINEAR or (name in _PRODUCTS and len(read) > 1):
        raise _refused(one, "is no mean of its samples' values", tensor)
    if "sum" in read:
        return "sum"
    return "mean" if tensor.shape in ((), (1,)) else "means"


def _is_weighted(operation: Operation) -> bool:
    """Whether a mean over labels weighs or leaves out some of them."""
    return (
        function_name(operation) in ("cross_entropy", "nll_loss")
        and "reduction='mean'" in operation.code
        and bool(re.search(r"weight=\{|ignore_index=(?!-100\b)", operation.code))
    )


def _refused(operation: Operation, what: str, tensor: Tensor) -> InvalidProblemError:
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    return InvalidProblemError(
        f"{path_of(operation)}: expected a loss that is the mean of its samples' "
        f"losses, got {function_name(operation)}, which {what} ({shape}); {REMEDY}"
    )
