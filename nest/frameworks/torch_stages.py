"""Stages of a captured module as functions in Python.

A stage calls the modules of its layers, and repeats the operations between them as the
capture wrote them down. What later stages need, stages hand on; masks and other
tensors without parameters are made again where they are used.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nest.capture.records import (
    CapturedModule,
    ModuleCall,
    ModuleLayer,
    Operation,
    Parameter,
    Step,
    Tensor,
)
from nest.capture.strategies import remade, where, why_unwritten
from nest.errors import InvalidPlanError
from nest.ir.plan import Strategy

INDENT = " " * 4
WIDTH = 88

#: Names that variables of stages may not have.
_TAKEN = {
    *keyword.kwlist, "model", "torch", "block", "range", "len", "float", "slice",
    "getattr",
}  # fmt: skip
#: Nor may inputs have them, which are keyword arguments of PyTorch's schedules, too.
_RESERVED = {
    *_TAKEN, "self", "dist", "nn", "args", "kwargs", "target", "losses", "loss_kwargs",
    "return_outputs", "result",
}  # fmt: skip
#: What is no letter, digit or one of a few signs.
_UNUSUAL = re.compile(r"[^\w .,:;=+*/()|@<>-]", re.ASCII)


class Source(NamedTuple):
    """The module that a script trains, captured at the samples of a micro-batch."""

    file: str
    factory: str
    captured: CapturedModule
    layers: Sequence[ModuleLayer]
    #: Names of the tensors among the inputs; empty where the first axis is not the
    #: batch.
    inputs: Sequence[str]
    #: Samples of the example inputs.
    batch: int
    #: Paths of the modules whose parts have numbers for names, but no places.
    dictionaries: frozenset[str] = frozenset()


def refused(where: str, expected: str, got: object, remedy: str) -> InvalidPlanError:
    """Return the error of a plan that no script can run."""
    return InvalidPlanError(
        f"--to torch: {where}: expected {expected}, got {got}; {remedy}"
    )


class PlanStage(NamedTuple):
    """A stage of a plan, with what it calls, reads and hands on."""

    #: From 0.
    position: int
    layers: Sequence[ModuleLayer]
    strategies: Sequence[Strategy]
    #: In the order in which they run, with those that make masks and the like again.
    steps: Sequence[Step]
    received: Sequence[Tensor]
    handed: Sequence[Tensor]


class TensorGraph:
    """Which step makes and which steps read every tensor."""

    def __init__(self, source: Source) -> None:
        self.captured = source.captured
        self.record_of = source.captured.record_of
        self.layers = source.layers
        self.made: dict[str, Step] = {}
        self.tensors: dict[str, Tensor] = {}
        self.order: dict[Step, int] = {}
        self.parameters = source.captured.named_parameters
        for layer in source.layers:
            for step in layer.steps:
                self.order[step] = len(self.order)
                for tensor in self.record_of(step).outputs:
                    self.made.setdefault(tensor.name, step)
                    self.tensors.setdefault(tensor.name, tensor)
        self.remade = remade(source.captured, source.layers)

    def operations(self, steps: Iterable[Step]) -> Iterator[Operation]:
        """Yield the operations of steps, those inside their modules."""
        for step in steps:
            record = self.record_of(step)
            if isinstance(record, ModuleCall):
                yield from self.captured.operations[record.first : record.end]
            else:
                yield record

    def written(self, steps: Iterable[Step]) -> Iterator[tuple[Operation, int]]:
        """Yield operations with the numbers of the memory that they write.

        Views share the memory of others, but write nothing.
        """
        for operation in self.operations(steps):
            for tensor in operation.outputs if operation.written_bytes else ():
                yield operation, tensor.storage

    def reads(self, step: Step) -> list[str]:
        """Return the tensors that a step reads and others make."""
        record = self.record_of(step)
        got, remedy = why_unwritten(record)
        if got:
            raise refused(where(record), "a call that text repeats", got, remedy)
        names = []
        for name in record.inputs:
            if name in self.parameters or name.startswith("input."):
                continue
            if name not in self.made:
                raise refused(
                    where(record),
                    "a tensor that a module returns",
                    f"one from inside another module ({name})",
                    "return it from that module's forward, or use --granularity module",
                )
            names.append(name)
        return names

    def with_masks(self, steps: Iterable[Step]) -> list[Step]:
        """Return steps with those before them that make tensors again."""
        open_steps = list(steps)
        needed = set(open_steps)
        while open_steps:
            for name in self.reads(open_steps.pop()):
                maker = self.made[name]
                if name in self.remade and maker not in needed:
                    needed.add(maker)
                    open_steps.append(maker)
        return sorted(needed, key=self.order.__getitem__)

    def paths(self, steps: Iterable[Step]) -> list[str]:
        """Return the modules and parameters that steps need."""
        paths: dict[str, None] = {}
        for step in steps:
            record = self.record_of(step)
            if isinstance(record, ModuleCall):
                paths[record.call.path] = None
            paths |= dict.fromkeys(x for x in record.inputs if x in self.parameters)
        return list(paths)

    def trained(self, paths: Sequence[str]) -> dict[int, tuple[str, Parameter]]:
        """Return the trained parameters in modules, by storage, with their names."""
        trained: dict[int, tuple[str, Parameter]] = {}
        for parameter in self.captured.parameters:
            for name in parameter.names:
                if parameter.trained and any(
                    name == path or name.startswith(f"{path}.") for path in paths
                ):
                    trained.setdefault(parameter.storage, (name, parameter))
        return trained


class StageCode:
    """The function that runs a stage."""

    def __init__(self, stage: PlanStage, graph: TensorGraph, source: Source) -> None:
        self.stage, self.graph, self.source = stage, graph, source
        self.names: dict[str, str] = {}
        #: Inputs are arguments of every stage.
        self.inputs = [name for name in source.inputs if name]
        self.lines: list[str] = []
        self.last: dict[str, Step | None] = {}
        for step in stage.steps:
            self.last |= dict.fromkeys(graph.record_of(step).inputs, step)
        self.last |= {tensor.name: None for tensor in stage.handed}

    def text(self) -> str:
        """Return the function."""
        received = [self._name(tensor, None) for tensor in self.stage.received]
        arguments = ", ".join(["model", *received, *self.inputs])
        self._copy_changed()
        for step in self.stage.steps:
            self._add(step)
        results = [self.names[tensor.name] for tensor in self.stage.handed]
        if self.stage.handed[-1].name == self.source.captured.loss:
            results = [f"{results[-1]}.view(1)"]
        lines = [*_folded(self.lines), f"return {', '.join(results)}"]
        names = [layer.name for layer in self.stage.layers]
        title = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        head = f'"""Run {plain(title)}."""'
        body = "\n".join(f"{INDENT}{line}" for line in (head, *lines))
        return f"def stage_{self.stage.position}({arguments}):\n{body}\n"

    def _copy_changed(self) -> None:
        """Copy what the stage receives and then changes in place."""
        received = {x.storage: x.name for x in self.stage.received}
        for _, storage in self.graph.written(self.stage.steps):
            if storage in received:
                name = self.names[received.pop(storage)]
                self.lines.append(f"{name} = {name}.clone()")

    def _add(self, step: Step) -> None:
        """Add the lines of a step."""
        record = self.graph.record_of(step)
        call = self._call(record)
        made = [
            (tensor, accessor)
            for tensor, accessor in zip(record.outputs, record.accessors, strict=True)
            if tensor.name in self.last
        ]
        changed = [pair for pair in made if pair[1].startswith("{")]
        attributes = [pair for pair in made if pair[1].startswith("@")]
        made = [pair for pair in made if pair not in changed + attributes]
        if not made:
            is_statement = any(x.startswith("{") for x in record.accessors)
            if attributes or is_statement or not record.outputs:
                self.lines.append(call)
        elif len(made) == 1:
            tensor, accessor = made[0]
            if accessor and not isinstance(record, ModuleCall):
                call = f"({call})"
            self.lines.append(f"{self._name(tensor, step)} = {call}{accessor}")
        else:
            result = self._unique("result")
            self.lines.append(f"{result} = {call}")
            for tensor, accessor in made:
                self.lines.append(f"{self._name(tensor, None)} = {result}{accessor}")
        for tensor, accessor in attributes:  # Attributes of the module.
            path = f"{where(record)}.{accessor.removeprefix('@')}"
            attribute = path.rpartition(".")[2]
            name = self._unique(attribute if attribute.isidentifier() else "kept")
            self.names[tensor.name] = name
            self.lines.append(f"{name} = {self._attribute(path)}")
        for tensor, accessor in changed:  # Other names of what the call changes.
            index = int(accessor.strip("{}"))
            self.names[tensor.name] = self._read(record.inputs[index])

    def _call(self, record: ModuleCall | Operation) -> str:
        texts = [self._read(name) for name in record.inputs]
        device = f"{self.inputs[0]}.device" if self.inputs else '"cpu"'
        code = record.code.format(*texts, device=device)
        if isinstance(record, ModuleCall):
            return f"{self._attribute(record.call.path)}({code})"
        return _without_defaults(code)

    def _read(self, name: str) -> str:
        """Return how a stage calls a tensor."""
        if name in self.graph.parameters:
            return self._attribute(name)
        if name.startswith("input."):
            index = int(name.removeprefix("input."))
            return self.source.inputs[index] or f"model.input_{index}"
        return self.names[name]

    def _name(self, tensor: Tensor, step: Step | None) -> str:
        """Name a variable: as one that is not read again, if there is one."""
        maker = self.graph.record_of(self.graph.made[tensor.name])
        for read in maker.inputs if step is not None else ():
            other = self.graph.tensors.get(read)
            if (
                other is not None
                and self.last.get(read) == step
                and other.has_gradient == tensor.has_gradient
            ):
                self.names[tensor.name] = self.names[read]
                return self.names[read]
        name = "x" if tensor.has_gradient else "mask"
        taken = name in self.names.values() or name in self.inputs
        if taken or not (tensor.has_gradient or tensor.dtype == "bool"):
            name = self._unique(self._noun(maker))
        self.names[tensor.name] = name
        return name

    def _noun(self, record: ModuleCall | Operation) -> str:
        """Return a name for what a step makes: of the module, parameter or function."""
        text = record.call.path if isinstance(record, ModuleCall) else ""
        if isinstance(record, Operation):
            weights = [x for x in record.inputs if x in self.graph.parameters]
            text = weights[0] if weights else record.function.removesuffix(".__get__")
        nouns = [x for x in text.split(".") if not x.isdigit()]
        text = re.sub(r"\W", "_", nouns[-1]).strip("_") if nouns else ""
        return text if text.isidentifier() else "value"

    def _attribute(self, path: str) -> str:
        """Return how Python reaches a module or parameter of the model."""
        parameter = self.graph.parameters.get(path)
        item = parameter.item if parameter is not None else ""
        text, around = "model", ""
        for name in path.removesuffix(item).split("."):
            if name.isdecimal() and around not in self.source.dictionaries:
                text += f"[{name}]"
            elif name.isidentifier() and not keyword.iskeyword(name):
                text += f".{name}"
            else:
                text = f"getattr({text}, {quoted(name)})"
            around = f"{around}.{name}" if around else name
        return text + item

    def _unique(self, name: str) -> str:
        taken = {*self.names.values(), *self.inputs, *_TAKEN}
        suffix, unique = 2, name
        while unique in taken:
            unique, suffix = f"{name}_{suffix}", suffix + 1
        return unique


def _without_defaults(code: str) -> str:
    """Leave out the arguments that a function of ``torch.nn.functional`` has anyway."""
    owner, _, name = code.partition("(")[0].rpartition(".")
    if owner != "torch.nn.functional":
        return code
    from torch.nn import functional

    function = getattr(functional, name)
    call = ast.parse(code, mode="eval").body
    if not inspect.isfunction(function) or not isinstance(call, ast.Call):
        return code
    parameters = inspect.signature(function).parameters
    defaults = {name: repr(x.default) for name, x in parameters.items()}
    call.keywords = [
        x for x in call.keywords if ast.unparse(x.value) != defaults.get(str(x.arg))
    ]
    return ast.unparse(call)


_BLOCK = re.compile(r"(.+ = )(model[\w.\[\]]*)\[(\d+)\](\(.*\))")


def _runs(keys: Sequence[tuple[object, int] | None]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of neighbors with one name and numbers that count up."""
    start = 0
    for end in range(1, len(keys) + 1):
        before = keys[end - 1]
        following = None if before is None else (before[0], before[1] + 1)
        if end == len(keys) or following is None or keys[end] != following:
            yield start, end
            start = end


def _folded(lines: Sequence[str]) -> Iterator[str]:
    """Write calls of neighboring blocks that differ in their number as a loop."""
    calls = [_BLOCK.fullmatch(line) for line in lines]
    for start, end in _runs([x and (x.group(1, 2, 4), int(x[3])) for x in calls]):
        first = calls[start]
        if first and end - start > 1:
            index = int(first[3])
            yield f"for block in {first[2]}[{index}:{index + end - start}]:"
            yield f"{INDENT}{first[1]}block{first[4]}"
        else:
            yield from _wrapped(lines[start])


def _wrapped(line: str) -> Iterator[str]:
    """Break a long call between its arguments."""
    head, bracket, rest = line.partition("(")
    items = rest[:-1].split(", ")
    is_whole = rest.endswith(")") and not any(x.count("'") % 2 for x in items)
    if len(line) + len(INDENT) <= WIDTH or not is_whole:
        yield line
        return
    yield head + bracket
    row = INDENT + items[0]
    for item in items[1:]:
        if len(row) + len(item) + len(INDENT) + 3 > WIDTH:
            yield f"{row},"
            row = INDENT + item
        else:
            row += f", {item}"
    yield row
    yield ")"


def listed(paths: Sequence[str]) -> str:
    """Return a list of paths in Python, with runs of blocks written as one item."""
    keys: list[tuple[object, int] | None] = []
    for path in paths:
        owner, _, digits = path.rpartition(".")
        is_block = digits.isdecimal() and plain(owner) == owner
        keys.append((owner, int(digits)) if is_block else None)
    items: list[str] = []
    for start, end in _runs(keys):
        key = keys[start]
        if key and end - start > 2:
            stop = key[1] + end - start
            items.append(f'*(f"{key[0]}.{{i}}" for i in range({key[1]}, {stop}))')
        else:
            items += map(quoted, paths[start:end])
    text = f"[{', '.join(items)}]"
    if len(text) < WIDTH - 25:
        return text
    lines = "".join(f"{INDENT * 3}{item},\n" for item in items)
    return f"[\n{lines}{INDENT * 2}]"


def quoted(text: str) -> str:
    """Return a text as Python writes it, in double quotes if it has none."""
    written = repr(text)
    return written if '"' in written else f'"{written[1:-1]}"'


def plain(text: str) -> str:
    """Return a text for comments and docstrings, with lines for unusual signs."""
    return _UNUSUAL.sub("_", text)


def renamed(names: Sequence[str]) -> list[str]:
    """Return names of inputs, other ones where a script means something else by one.

    Empty names stay.
    """
    results: list[str] = []
    for name in names:
        unique = name
        while unique in _RESERVED or (unique and unique in results):
            unique += "_input"
        results.append(unique)
    return results
