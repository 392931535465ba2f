"""How Python writes a call of a function of PyTorch."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._C import _nn, _VariableFunctions
from torch._ops import OpOverload

#: Places that functions of PyTorch are looked up in, the preferred one first.
_PLACES = (
    ("torch.nn.functional", torch.nn.functional),
    ("torch", torch),
    ("torch.Tensor", torch.Tensor),
    ("torch.linalg", torch.linalg),
    ("torch.fft", torch.fft),
    ("torch.special", torch.special),
    ("torch._C._nn", _nn),
    ("torch._VF", _VariableFunctions),
    ("torch.nn.init", torch.nn.init),
)

#: Methods that Python writes as operators.
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "true_divide": "/",
    "matmul": "@", "pow": "**", "remainder": "%", "floor_divide": "//",
    "__and__": "&", "__or__": "|", "__xor__": "^",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "__eq__": "==", "__ne__": "!=",
}  # fmt: skip
_REVERSED = {"__rsub__": "-", "__rdiv__": "/", "__rtruediv__": "/", "__radd__": "+"}

#: Modules whose values Python writes by their own names.
_NAMED = (torch.dtype, torch.layout, torch.memory_format)


class NoTextError(Exception):
    """A value that no text repeats; the message is a noun that describes it."""


@functools.cache
def _names() -> dict[Any, str]:
    names: dict[Any, str] = {}
    for write_tensor, namespace in _PLACES:
        for name in dir(namespace):
            value = getattr(namespace, name, None)
            if callable(value) and value.__hash__ is not None:
                names.setdefault(value, f"{write_tensor}.{name}")
    return names


def function_name(function: Callable[..., Any]) -> str:
    """Return the dotted name of a function of PyTorch, or its bare name."""
    name = getattr(function, "__name__", type(function).__name__)
    if name in ("__get__", "__set__"):
        attribute = getattr(getattr(function, "__self__", None), "__name__", "")
        return f"torch.Tensor.{attribute}.{name}"
    if isinstance(function, OpOverload):
        return f"torch.ops.{function}"
    return _names().get(function, name)


def leaves(value: Any, accessor: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a value, each with what Python puts behind it."""
    if isinstance(value, torch.Tensor):
        yield accessor, value
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(item, f"{accessor}[{i}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{accessor}[{key!r}]")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(
                getattr(value, field.name, None), f"{accessor}.{field.name}"
            )


def write_value(value: Any, write_tensor: Callable[[torch.Tensor], str]) -> str:
    """Return the text of an argument; `place` gives that of a tensor."""
    match value:
        case torch.Tensor():
            return write_tensor(value)
        case slice():
            bounds = (value.start, value.stop, value.step)
            return f"slice({', '.join(write_value(x, write_tensor) for x in bounds)})"
        case tuple() if type(value) in (tuple, torch.Size):
            items = [write_value(x, write_tensor) for x in value]
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        case list() if type(value) is list:
            return f"[{', '.join(write_value(x, write_tensor) for x in value)}]"
        case dict() if type(value) is dict:
            items = [
                f"{write_value(key, write_tensor)}: {write_value(item, write_tensor)}"
                for key, item in value.items()
            ]
            return f"{{{{{', '.join(items)}}}}}"
    return _write_plain(value)


def _write_plain(value: Any) -> str:
    """Return the text of a value that holds no tensor."""
    match value:
        case enum.Enum():
            raise NoTextError(f"an argument of class {type(value).__qualname__}")
        case None | bool() | bytes() | complex() | range():
            return repr(value)
        case str():
            return repr(str(value)).replace("{", "{{").replace("}", "}}")
        case int():
            return repr(int(value))
        case float():
            return repr(float(value)) if math.isfinite(value) else f'float("{value}")'
        case torch.device():
            return "{device}"
    if value is Ellipsis:
        return "..."
    if isinstance(value, _NAMED):
        return repr(value)
    raise NoTextError(f"an argument of class {type(value).__qualname__}")


def write_arguments(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    write_tensor: Callable[[torch.Tensor], str],
) -> str:
    """Return the text between the parentheses of a call."""
    texts = [write_value(x, write_tensor) for x in args]
    for key, value in kwargs.items():
        is_device = key == "device" and value is not None
        text = "{device}" if is_device else write_value(value, write_tensor)
        texts.append(f"{key}={text}")
    return ", ".join(texts)


def write_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    write_tensor: Callable[[torch.Tensor], str],
) -> str:
    """Return the text of a call of a function of PyTorch.

    Raises
    ------
    NoTextError
        If no text repeats it.
    """
    name = function_name(function)
    if not name.startswith("torch."):
        raise NoTextError(f"the function {name}")
    if not name.startswith("torch.Tensor."):
        return f"{name}({write_arguments(args, kwargs, write_tensor)})"
    method = name.removeprefix("torch.Tensor.")
    if method.endswith(".__set__"):
        raise NoTextError(f"an assignment to {name.removesuffix('.__set__')}")
    tensor = write_value(args[0], write_tensor)
    if method.endswith(".__get__"):
        return f"{tensor}.{method.removesuffix('.__get__')}"
    match method, args[1:]:
        case "__getitem__", (index,):
            return f"{tensor}[{_write_index(index, write_tensor)}]"
        case "__setitem__", (index, value):
            text = write_value(value, write_tensor)
            return f"{tensor}[{_write_index(index, write_tensor)}] = {text}"
        case "neg", ():
            return f"-{tensor}"
        case (("bitwise_not" | "__invert__"), ()):
            return f"~{tensor}"
        case "to", (str(), *rest):
            rest_text = write_arguments(tuple(rest), kwargs, write_tensor)
            return f"{tensor}.to({{device}}{', ' * bool(rest_text)}{rest_text})"
        case _, (other,) if not kwargs and method in _OPERATORS:
            return f"{tensor} {_OPERATORS[method]} {write_value(other, write_tensor)}"
        case _, (other,) if not kwargs and method in _REVERSED:
            return f"{write_value(other, write_tensor)} {_REVERSED[method]} {tensor}"
    return f"{tensor}.{method}({write_arguments(args[1:], kwargs, write_tensor)})"


def _write_index(index: Any, write_tensor: Callable[[torch.Tensor], str]) -> str:
    """Return the text between the brackets behind a tensor."""
    if type(index) is tuple and index:
        texts = [_write_item(x, write_tensor) for x in index]
        return ", ".join(texts) + ("," if len(texts) == 1 else "")
    return _write_item(index, write_tensor)


def _write_item(item: Any, write_tensor: Callable[[torch.Tensor], str]) -> str:
    if not isinstance(item, slice):
        return write_value(item, write_tensor)
    texts = [
        "" if x is None else write_value(x, write_tensor)
        for x in (item.start, item.stop, item.step)
    ]
    return ":".join(texts[: 3 if texts[2] else 2])
