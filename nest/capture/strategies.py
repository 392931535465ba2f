"""How the layers of a captured module may be cut, read off their operations.

Tensor parallelism follows Shoeybi et al. 2019 (arXiv 1909.08053, §3): the columns of
some linear layers are cut, what they yield stays cut through attention heads and
elementwise operations, and the rows of a later linear layer are cut, which sums over
the ranks. A cut is found by passing on, from operation to operation, which axis of a
tensor is cut; where an operation has no rule, the linear layers before it stay whole.
Tables are cut by rows, as the paper's are by words.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from nest.capture.records import CapturedModule, ModuleCall, ModuleLayer, Operation
from nest.ir.base import Struct

#: Columns or rows of a linear layer, or rows of a table.
Style = Literal["colwise", "rowwise", "table"]

#: Why no text repeats an operation on a tensor of the user's file.
UNHELD = "a tensor that no module holds"

#: Functions that draw random numbers.
_RANDOM = {
    "alpha_dropout", "bernoulli", "cauchy", "dropout", "dropout1d", "dropout2d",
    "dropout3d", "exponential", "feature_alpha_dropout", "geometric", "log_normal",
    "multinomial", "normal", "rand", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "random", "randperm", "rrelu", "uniform",
}  # fmt: skip

#: Functions that compute every value of their result from the values at its place.
_ELEMENTWISE = {
    "abs", "add", "addcmul", "clamp", "clone", "contiguous", "cos", "detach", "div",
    "dropout", "elu", "exp", "float", "gelu", "half", "bfloat16", "hardswish",
    "hardtanh", "leaky_relu", "log", "logical_not", "masked_fill", "mish", "mul", "neg",
    "pow", "relu", "relu6", "rsqrt", "rsub", "rtruediv", "sigmoid", "silu", "sin",
    "softplus", "sqrt", "square", "sub", "tanh", "to", "true_divide", "truediv",
    "type_as", "where",
}  # fmt: skip
_RESHAPES = {
    "flatten", "reshape", "unflatten", "unsqueeze", "squeeze", "view",
    "view_as_complex", "view_as_real",
}  # fmt: skip
#: Functions whose numbers show in the shape of their result, which is checked.
_SHAPING = _RESHAPES | {
    "broadcast_to", "chunk", "expand", "narrow", "new_empty", "new_ones", "new_zeros",
    "ones", "repeat", "repeat_interleave", "split", "tensor_split", "zeros",
}  # fmt: skip
_ALONG_AXIS = {
    "amax", "log_softmax", "logsumexp", "mean", "softmax", "sum", "var",
}  # fmt: skip


class TensorCut(Struct, frozen=True, kw_only=True):
    """How the tensor ranks share a layer."""

    #: By the path of the module.
    styles: dict[str, Style] = {}
    #: The axis along which a rank has a part, by the name of the tensor.
    axes: dict[str, int] = {}
    ranks: int = 1
    #: Why linear layers and tables stay whole, one line each.
    reasons: tuple[str, ...] = ()


class _NotCutError(Exception):
    """An operation cannot take what it would get; the text says why."""


class _CutTensor(NamedTuple):
    """A tensor of which a rank has a part."""

    axis: int
    #: Paths of the linear layers whose columns it comes from.
    sources: frozenset[str]


def function_name(operation: Operation) -> str:
    """Return the name of a function without its module: ``add`` for ``__iadd__``."""
    name = operation.function.removesuffix(".__get__").rpartition(".")[2]
    if name.startswith("__"):
        name = name.strip("_")
        if name[0] in "ir" and name[1:] in {"add", "mul", "sub", "truediv", "pow"}:
            name = name[1:]
    return name.rstrip("_")


def is_random(operation: Operation) -> bool:
    """Whether a function draws random numbers."""
    return function_name(operation) in _RANDOM


def path_of(operation: Operation) -> str:
    """Return the path of the module that an operation runs in, for messages."""
    return operation.calls[-1].path if operation.calls else "the module itself"


def where(record: ModuleCall | Operation) -> str:
    """Return the path of the module that a step is, or is in."""
    return record.call.path if isinstance(record, ModuleCall) else path_of(record)


def why_unwritten(record: ModuleCall | Operation) -> tuple[str, str]:
    """Return what no text repeats of a step, and what to do; empty if one does."""
    if record.code or not (record.obstacle or isinstance(record, Operation)):
        return "", ""
    remedy = "move it into a module that takes and returns tensors"
    if record.obstacle == UNHELD:
        remedy = "register it as a buffer"
    return record.obstacle or "a call without text", remedy


def remade(captured: CapturedModule, layers: Sequence[ModuleLayer]) -> frozenset[str]:
    """Return the tensors that every stage can make again instead of receiving them.

    Masks and tables of positions: they have no gradient, and steps make them from
    example inputs, buffers and each other alone, without parameters and without
    random numbers.
    """
    makeable = {tensor.name for tensor in captured.inputs}
    makeable |= {name for x in captured.parameters if x.buffer for name in x.names}
    tables: set[str] = set()
    for layer in layers:
        for step in layer.steps:
            operations = captured.operations_of(step)
            made = {x.name for each in operations for x in each.outputs}
            if all(
                all(name in makeable or name in made for name in each.inputs)
                and not any(x.has_gradient for x in each.outputs)
                and not is_random(each)
                for each in operations
            ):
                tables |= made
                makeable |= made
    return frozenset(tables)


def tensor_cut(captured: CapturedModule, layer: ModuleLayer, tp: int) -> TensorCut:
    """Return how ``tp`` tensor ranks share a layer.

    Without styles the layer cannot be shared, and every rank computes all of it. Linear
    layers are shared where all of the layer is modules.
    """
    tables = _table_cut(captured, layer, tp)
    if any(step.module < 0 for step in layer.steps):
        return tables
    whole: dict[str, str] = {}
    search = _Search(captured, layer, tp, whole)
    while (failed := search.run()) is not None:
        whole.update(failed)
        search = _Search(captured, layer, tp, whole)
    cut = search.cut()
    reasons = tables.reasons + (cut.reasons if layer.is_block else ())
    return replace(cut, styles=cut.styles | tables.styles, reasons=reasons)


def _table_cut(captured: CapturedModule, layer: ModuleLayer, tp: int) -> TensorCut:
    """Return the tables of ``torch.nn.Embedding`` of which each rank holds some rows.

    All ranks look up everything, zeros where they lack the row, and add up the outputs.
    It pays for tables with more rows than a sample looks up.
    """
    styles: dict[str, Style] = {}
    reasons: dict[str, str] = {}
    for operation in captured.operations[layer.first : layer.end]:
        if not _is_own(operation, "embedding", "Embedding"):
            continue
        path = operation.calls[-1].path
        table = captured.named_parameters[operation.weights[0]]
        num_rows = table.shape[0]
        lookups = math.prod(operation.outputs[0].shape[:-1])
        if num_rows * captured.batch <= lookups or not table.trained:
            continue
        if len(table.names) > 1:
            reasons[path] = "it shares its weight with another module"
        elif num_rows % tp:
            reasons[path] = f"{tp} ranks do not divide its {num_rows} rows"
        elif not re.search("padding_idx=None, max_norm=None(?!.*True)", operation.code):
            reasons[path] = "PyTorch cuts no table with padding_idx or other options"
        else:
            styles[path] = "table"
    lines = (f"{path}: {reason}" for path, reason in reasons.items())
    return TensorCut(styles=styles, ranks=tp, reasons=tuple(lines))


def read_apart(
    captured: CapturedModule, layers: Sequence[ModuleLayer]
) -> dict[str, str]:
    """Return where other operations read the weights of modules, by the modules' path.

    Such an operation would get the part of a rank, or mix it with whole tensors. Loose
    operations are others, too.
    """
    readers: dict[str, str] = {}
    loose = {step.operation for layer in layers for step in layer.steps}
    for position, operation in enumerate(captured.operations):
        is_own = position not in loose and (
            _is_linear(operation) or _is_own(operation, "embedding", "Embedding")
        )
        path = operation.calls[-1].path if is_own else ""
        for name in operation.weights:
            owner = name.rpartition(".")[0]
            if owner != path:
                readers.setdefault(owner, path_of(operation))
    return readers


def why_not_local(
    captured: CapturedModule, local: CapturedModule, layer: ModuleLayer, cut: TensorCut
) -> str:
    """Return why a layer does not run with the weights of one rank; empty if it does.

    ``local`` is the module captured with such weights. Every tensor must have the
    shape of the rank's part, and only functions that shape tensors may take other
    numbers, such as a number of heads.
    """
    for position in range(layer.first, layer.end):
        here = captured.operations[position]
        there = local.operations[position : position + 1]
        if not there or there[0].function != here.function:
            return f"{path_of(here)}: with the weights of one rank other functions run"
        for tensor, piece in zip(here.outputs, there[0].outputs, strict=False):
            expected = list(tensor.shape)
            if tensor.name in cut.axes:
                expected[cut.axes[tensor.name]] //= cut.ranks
            if tuple(expected) != piece.shape:
                return (
                    f"{path_of(here)}: {function_name(here)} yields "
                    f"{_shape(piece.shape)} on one rank instead of {_shape(expected)}: "
                    f"the module fixes its number of heads or columns; leave it open, "
                    f"as in view(b, t, -1, size)"
                )
        if there[0].code != here.code and function_name(here) not in _SHAPING:
            return (
                f"{path_of(here)}: {function_name(here)} takes another number on one "
                f"rank, from a size that is cut; take it from a setting of the module"
            )
    return ""


def _shape(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes))


class _Search:
    """One pass over a layer, with some linear layers left whole."""

    def __init__(
        self,
        captured: CapturedModule,
        layer: ModuleLayer,
        tp: int,
        whole: dict[str, str],
    ) -> None:
        self.captured = captured
        self.layer = layer
        self.tp = tp
        self.tensors = captured.tensors
        self.whole = whole
        self.cut_tensors: dict[str, _CutTensor] = {}
        self.styles: dict[str, Style] = {}
        self.parameters = captured.named_parameters

    def run(self) -> dict[str, str] | None:
        """Cut what can be cut; return linear layers that must stay whole, with why."""
        for position in range(self.layer.first, self.layer.end):
            operation = self.captured.operations[position]
            read = [
                self.cut_tensors[name]
                for name in operation.inputs
                if name in self.cut_tensors
            ]
            sources = frozenset(x for piece in read for x in piece.sources)
            try:
                axes = self._axes(operation, bool(read))
            except _NotCutError as error:
                reason = f"{path_of(operation)}: {error}"
                path = operation.calls[-1].path if _is_linear(operation) else ""
                return dict.fromkeys(sources or {path}, reason)
            if _is_linear(operation) and not read and axes:
                sources = frozenset((operation.calls[-1].path,))
            for output, axis in axes.items():
                self.cut_tensors[output] = _CutTensor(axis, sources)
        for name, piece in self.cut_tensors.items():
            if self.captured.readers.get(name, (-1,))[-1] >= self.layer.end:
                return dict.fromkeys(
                    piece.sources,
                    f"{self.layer.name}: no linear layer in it takes the columns "
                    f"of another one and sums over them",
                )
        columns = {x for piece in self.cut_tensors.values() for x in piece.sources}
        paired = "rowwise" in self.styles.values()
        if columns and not paired:
            return dict.fromkeys(columns, f"{self.layer.name}: no second linear layer")
        return None

    def cut(self) -> TensorCut:
        """Return what was found."""
        axes = {name: piece.axis for name, piece in self.cut_tensors.items()}
        reasons = tuple(dict.fromkeys(self.whole.values()))
        if not self.styles and not reasons:
            reasons = (f"{self.layer.name}: no torch.nn.Linear that can be cut",)
        return TensorCut(styles=self.styles, axes=axes, ranks=self.tp, reasons=reasons)

    def _axes(self, operation: Operation, cut: bool) -> dict[str, int]:
        """Return the axis along which each output is cut; whole ones are left out."""
        if _is_linear(operation):
            return self._linear(operation)
        if not cut:
            return {}
        name = function_name(operation)
        first = next(x for x in operation.inputs if x in self.cut_tensors)
        shape = self.tensors[first].shape
        axis = self.cut_tensors[first].axis
        if name in _ELEMENTWISE:
            axis = self._aligned(operation)
        elif name in _RESHAPES:
            axis = _reshaped(operation, shape, axis)
        elif name in {"transpose", "permute", "swapaxes", "t", "mT"}:
            axis = _permuted(operation, len(shape), axis)
        elif name == "getitem":
            axis = _indexed(operation, len(shape), axis)
        elif name in {"chunk", "split", "unbind", "tensor_split"}:
            axis = _divided(operation, name, len(shape), axis)
        elif name in {"cat", "concat", "stack"}:
            axis = self._joined(operation, name)
        elif name in _ALONG_AXIS:
            axis = _reduced(operation, len(shape), axis)
        elif name in {"expand", "expand_as", "repeat_interleave"}:
            axis += len(operation.outputs[0].shape) - len(shape)
            if name == "repeat_interleave" and "dim" not in operation.code:
                raise _NotCutError("repeat_interleave without dim=… mixes the parts")
        elif name in {"matmul", "bmm", "scaled_dot_product_attention"}:
            axis = self._product(operation)
        else:
            raise _NotCutError(f"{name} has no rule for a cut tensor")
        for output in operation.outputs:
            if output.shape[axis] % self.tp:
                raise _NotCutError(
                    f"{name}: {self.tp} ranks do not divide {output.shape[axis]} heads "
                    f"or columns"
                )
        return {output.name: axis for output in operation.outputs}

    def _linear(self, operation: Operation) -> dict[str, int]:
        """Cut a linear layer by rows where its input is cut, else by columns."""
        path = operation.calls[-1].path
        name = operation.inputs[0]
        output = operation.outputs[0]
        source = self.cut_tensors.get(name)
        why = ""
        if path in self.whole or any(
            len(self.parameters[x].names) > 1 for x in operation.weights
        ):
            why = "shares its weight with another layer, or must stay whole"
        elif source is not None and source.axis != len(self.tensors[name].shape) - 1:
            why = "its input is not cut along the last axis"
        if source is not None:
            if why or self.styles.get(path) == "colwise":
                raise _NotCutError(why or "it would be cut by rows and by columns")
            self.styles[path] = "rowwise"
            return {}
        if why or self.styles.get(path) == "rowwise":
            return {}
        if output.shape[-1] % self.tp:
            raise _NotCutError(
                f"{self.tp} ranks do not divide its {output.shape[-1]} columns"
            )
        self.styles[path] = "colwise"
        return {output.name: len(output.shape) - 1}

    def _aligned(self, operation: Operation) -> int:
        """Return the axis of an elementwise result, whose inputs are broadcast."""
        rank = len(operation.outputs[0].shape)
        cut_axes = set()
        for name in operation.inputs:
            if name in self.cut_tensors:
                missing = rank - len(self.tensors[name].shape)
                cut_axes.add(self.cut_tensors[name].axis + missing)
        if len(cut_axes) != 1:
            raise _NotCutError("its inputs are cut along unlike axes")
        (axis,) = cut_axes
        for name in operation.inputs:
            if name in self.cut_tensors:
                continue
            if self._is_trained(name) or (
                name in self.tensors and self.tensors[name].has_gradient
            ):
                raise _NotCutError(
                    f"{self._named(name)} is whole, but each rank would have a part of "
                    f"its gradient"
                )
            shape = (self.tensors.get(name) or self.parameters[name]).shape
            there = axis - (rank - len(shape))
            if there >= 0 and shape[there] != 1:
                raise _NotCutError(
                    f"{self._named(name)} is whole along the axis that is cut"
                )
        return axis

    def _named(self, name: str) -> str:
        """Return what a message calls a tensor; users know the names of weights."""
        return name if self._is_trained(name) else "an operand of a cut tensor"

    def _is_trained(self, name: str) -> bool:
        return name in self.parameters and self.parameters[name].trained

    def _joined(self, operation: Operation, name: str) -> int:
        """Return the axis of tensors that are joined, all cut alike."""
        axes = {
            self.cut_tensors[x].axis for x in operation.inputs if x in self.cut_tensors
        }
        if len(axes) != 1 or any(x not in self.cut_tensors for x in operation.inputs):
            raise _NotCutError(f"{name} joins cut and whole tensors")
        (axis,) = axes
        rank = len(operation.outputs[0].shape)
        along = int(argument(operation, "dim", 0, 0)) % rank
        if name == "stack":
            return axis + (along <= axis)
        if along == axis:
            raise _NotCutError(f"{name} joins along the axis that is cut")
        return axis

    def _product(self, operation: Operation) -> int:
        """Return the axis of products of many matrices, such as those of heads."""
        output = operation.outputs[0]
        from_end = set()
        factors = operation.inputs[:2]
        if function_name(operation) == "scaled_dot_product_attention":
            factors = operation.inputs[:3]
            if any(self.tensors[x].has_gradient for x in operation.inputs[3:]):
                raise _NotCutError("each rank would have a part of the mask's gradient")
        for name in factors:
            if name not in self.cut_tensors:
                raise _NotCutError("one factor is whole, and another is cut")
            shape = self.tensors[name].shape
            from_end.add(len(shape) - self.cut_tensors[name].axis)
        if len(from_end) != 1 or min(from_end) <= 2:
            raise _NotCutError("its factors are not cut by heads")
        return len(output.shape) - from_end.pop()


def _is_linear(operation: Operation) -> bool:
    """Whether an operation is the product of a ``torch.nn.Linear``."""
    return _is_own(operation, "linear", "Linear")


def _is_own(operation: Operation, function: str, class_name: str) -> bool:
    """Whether a module of PyTorch of a class runs a function."""
    return (
        function_name(operation) == function
        and bool(operation.calls)
        and operation.calls[-1].class_name == class_name
        and operation.calls[-1].from_torch
    )


def _reshaped(operation: Operation, before: Sequence[int], axis: int) -> int:
    """Return where an axis is in another shape: whose part it begins, or is."""
    after = operation.outputs[0].shape
    outer = math.prod(before[:axis])
    indices = [i for i in range(len(after)) if math.prod(after[:i]) == outer]
    positional, _ = _values(operation)
    sizes = next((x for x in positional if isinstance(x, (tuple, list))), positional)
    # An axis of one head is where the call leaves the number of heads open.
    open_places = [i for i in indices if len(sizes) > i and sizes[i] == -1]
    for index in (*open_places, *(i for i in reversed(indices) if after[i] != 1)):
        if before[axis] % after[index] and after[index] % before[axis]:
            break
        return index
    raise _NotCutError("a view mixes the axis that is cut with the one before it")


def _syntax(operation: Operation) -> ast.expr:
    """Return the expression of an operation; tensors are names in it."""
    text = re.sub(r"\{(\w+)\}", r"_\1", operation.code)
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise _NotCutError("its call has no text") from None


def _values(operation: Operation) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call that are no tensors."""
    call = _syntax(operation)
    if not isinstance(call, ast.Call):
        return [], {}

    def value(node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except ValueError:
            return None

    plain = [
        x for x in call.args if not any(isinstance(y, ast.Name) for y in ast.walk(x))
    ]
    return [*map(value, plain)], {x.arg or "": value(x.value) for x in call.keywords}


def argument(operation: Operation, name: str, index: int, default: Any) -> Any:
    """Return an argument, by its name or its place among those without tensors."""
    positional, named = _values(operation)
    return named.get(name, (*positional, *[default] * (index + 1))[index])


def _permuted(operation: Operation, rank: int, axis: int) -> int:
    """Return where an axis is after axes have changed places."""
    name = function_name(operation)
    if name in {"t", "mT"}:
        order = [*range(rank - 2), rank - 1, rank - 2]
        return order.index(axis)
    positional, named = _values(operation)
    numbers = [*positional, *named.values()]
    if len(numbers) == 1 and isinstance(numbers[0], (tuple, list)):
        numbers = [*numbers[0]]
    if not all(isinstance(x, int) for x in numbers):
        raise _NotCutError(f"the axes of {name} are no plain numbers")
    indices: list[int] = [x % rank for x in numbers]
    if name == "permute":
        return indices.index(axis)
    first, second = indices
    return {first: second, second: first}.get(axis, axis)


def _indexed(operation: Operation, rank: int, axis: int) -> int:
    """Return where an axis is after ``x[…]``, which must take all of it."""
    syntax = _syntax(operation)
    if not isinstance(syntax, ast.Subscript):
        raise _NotCutError("an index has no plain text")
    inside = syntax.slice
    items = [*inside.elts] if isinstance(inside, ast.Tuple) else [inside]
    texts = [*map(ast.unparse, items)]
    missing = rank - sum(text not in ("None", "...") for text in texts)
    ellipsis = texts.index("...") if "..." in texts else len(texts)
    texts[ellipsis : ellipsis + 1] = [":"] * missing
    index = result = 0
    for text in texts:
        is_number = text.lstrip("-").isdecimal()
        if text == "None":
            result += 1
        elif index == axis and text == ":":
            return result
        elif index == axis and ":" in text:
            raise _NotCutError("an index takes a part of the axis that is cut")
        elif index < axis and (is_number or ":" in text):
            index, result = index + 1, result + (not is_number)
        else:
            break
    raise _NotCutError("an index picks from the axis that is cut")


def _divided(operation: Operation, name: str, rank: int, axis: int) -> int:
    """Return where an axis is in the pieces of a tensor cut along another axis."""
    index = 0 if name == "unbind" else 1
    along = int(argument(operation, "dim", index, 0)) % rank
    if along == axis:
        raise _NotCutError(
            f"{name} takes several projections from one linear layer (a fused q, k, v "
            f"or gate and up), whose columns a rank would have in another order; use "
            f"one linear layer for each"
        )
    return axis - (name == "unbind" and along < axis)


def _reduced(operation: Operation, rank: int, axis: int) -> int:
    """Return where an axis is after a sum or softmax along others."""
    name = function_name(operation)
    along = argument(operation, "dim", 0, None)
    if along is None:
        raise _NotCutError(f"{name} needs all of the axis that is cut")
    indices: set[int] = {
        x % rank for x in ([along] if isinstance(along, int) else along)
    }
    if axis in indices:
        raise _NotCutError(f"{name} needs all of the axis that is cut")
    if len(operation.outputs[0].shape) == rank:
        return axis
    return axis - sum(x < axis for x in indices)
