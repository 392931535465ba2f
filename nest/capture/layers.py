"""Layers of a captured module: repeated blocks, and what is between them.

A block is one call of a module that the model repeats. The calls are looked at from
the outside in. A call is a candidate if its class, written by the user, or its
signature occurs at least twice; a signature is the functions that run in it with
their shapes. A candidate that is a tower, a series of calls of one class, is gone
into. Candidates side by side that read the same activations, such as experts, are
part of what is around them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal

from nest.capture.records import (
    CapturedModule,
    ModuleCall,
    ModuleLayer,
    Operation,
    Step,
)

Granularity = Literal["block", "module", "operator"]

#: Numbers with a fraction do not change what a function costs.
_FRACTION = re.compile(r"\d+\.\d+(e[+-]?\d+)?|\d+e[+-]?\d+")

Signature = tuple[object, ...]
Range = tuple[int, int]


def layers_of(
    captured: CapturedModule, granularity: Granularity = "block"
) -> tuple[ModuleLayer, ...]:
    """Return the layers of a module, in the order in which they run.

    Parameters
    ----------
    granularity
        ``block``: repeated blocks, and the parts between them. ``module``: the
        innermost modules that the user wrote, and PyTorch's modules with weights; other
        operations belong to the one before. ``operator``: every operation. Where there
        are no blocks, the repetitions of a product with one weight are one layer if
        each depends on the one before.

    Returns
    -------
    tuple
        Layers that have every operation once.
    """
    calls = _Calls(captured)
    blocks: dict[Range, ModuleCall] = {}
    match granularity:
        case "operator":
            ranges = [(i, i + 1) for i in range(len(captured.operations))]
        case "module":
            ranges = list(calls.module_ranges())
        case "block":
            blocks = {(x.first, x.end): x for x in calls.blocks()}
            ranges = list(calls.block_ranges(sorted(blocks)))
    forbidden = calls.cuts_of_memory()
    if not blocks:
        forbidden |= calls.cuts_of_repetitions()
    joined: list[Range] = []
    for first, end in ranges:
        if first in forbidden and joined:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return tuple(calls.layers(joined, blocks))


class _Calls:
    """The calls of modules as a tree, and what reads what."""

    def __init__(self, captured: CapturedModule) -> None:
        self.captured = captured
        self.operations = captured.operations
        #: Calls in which something runs.
        self.modules = [x for x in captured.modules if x.end > x.first]
        self.positions = {id(x): i for i, x in enumerate(captured.modules)}
        self.children: dict[int, list[ModuleCall]] = defaultdict(list)
        self.starting: dict[int, list[ModuleCall]] = defaultdict(list)
        by_call = {(x.call.path, x.call.repetition): id(x) for x in self.modules}
        for module in self.modules:
            around = module.calls[-1:]
            parent = by_call[around[0].path, around[0].repetition] if around else 0
            self.children[parent].append(module)
            self.starting[module.first].append(module)
        self.maker = captured.maker
        self.last_use = {name: x[-1] for name, x in captured.readers.items()}
        self.last_use[captured.loss] = len(self.operations)
        work = (x.forward_flops for x in self.operations)
        self.flops = [*accumulate(work, initial=0)]
        self.keys = [self._key(x) for x in self.operations]
        self.signatures = {id(x): self.signature(x.first, x.end) for x in self.modules}
        # A call that only calls another one is no repetition of that.
        self.repeats = Counter(
            self.signatures[id(x)]
            for x in self.modules
            if (x.first, x.end) not in {(y.first, y.end) for y in self.children[id(x)]}
        )
        self.classes = Counter(x.call.class_name for x in self.modules)

    def _key(self, operation: Operation) -> Signature:
        return (
            operation.function,
            _FRACTION.sub("", operation.code),
            tuple((x.shape, x.dtype) for x in operation.outputs),
            tuple(self.captured.named_parameters[x].shape for x in operation.weights),
            operation.forward_flops,
            operation.backward_flops,
        )

    def _has_gradient(self, name: str) -> bool:
        tensor = self.captured.tensors.get(name)
        return tensor is not None and tensor.has_gradient

    def signature(self, first: int, end: int) -> Signature:
        """Return what is equal for operations that cost the same."""
        return tuple(self.keys[first:end])

    def flops_of(self, module: ModuleCall) -> int:
        """Return the FLOPs of the forward pass of a call."""
        return self.flops[module.end] - self.flops[module.first]

    # Which calls are blocks.

    def blocks(self) -> list[ModuleCall]:
        """Return the blocks, in the order in which they run."""
        blocks: list[ModuleCall] = []
        self._find(self.children[0], (0, len(self.operations)), blocks)
        return sorted(blocks, key=lambda x: x.first)

    def _find(
        self, calls: Sequence[ModuleCall], around: Range, blocks: list[ModuleCall]
    ) -> None:
        """Add the blocks among and inside the calls of one module."""
        before = len(blocks)
        groups: dict[object, list[ModuleCall]] = defaultdict(list)
        whole: set[object] = set()
        for call in calls:
            groups[self._class(call)].append(call)
            if self._is_candidate(call) and not self._is_tower(call):
                whole.add(self._functions(call))
        for call in calls:
            # A way around may have no gradient in the first block, as behind frozen
            # embeddings; the block is as those behind it.
            if self._is_candidate(call) and self._functions(call) in whole:
                if not self._is_expert(call, groups[self._class(call)]):
                    blocks.append(call)
            else:
                self._find(self.children[id(call)], (call.first, call.end), blocks)
        if len(blocks) == before:
            # Blocks that compute with their own parameters and call no module.
            total = self.flops[around[1]] - self.flops[around[0]]
            for group in groups.values():
                series = self._series(group)
                if (
                    not group[0].call.from_torch
                    and len(series) > 1
                    and 2 * sum(map(self.flops_of, series)) >= max(total, 1)
                ):
                    blocks += series

    def _class(self, module: ModuleCall) -> object:
        """Return what calls of one kind share: containers are as their contents."""
        if module.call.from_torch and module.call.class_name == "Sequential":
            return self.signatures[id(module)]
        return module.call.class_name

    def _functions(self, module: ModuleCall) -> tuple[str, ...]:
        """Return the class of a call and the functions that run in it."""
        operations = self.operations[module.first : module.end]
        return module.call.class_name, *(x.function for x in operations)

    def _is_candidate(self, module: ModuleCall) -> bool:
        is_repeated = self.repeats[self.signatures[id(module)]] > 1 or (
            not module.call.from_torch and self.classes[module.call.class_name] > 1
        )
        has_work = self.flops_of(module) > 0
        return is_repeated and has_work and bool(self.children[id(module)])

    def _is_tower(self, module: ModuleCall) -> bool:
        """Whether a call is a series of calls of one class, without a way around."""
        groups: dict[object, list[ModuleCall]] = defaultdict(list)
        for inner in self._inside(module):
            if self.children[id(inner)]:
                groups[self._class(inner)].append(inner)
        for group in groups.values():
            series = self._series(_outermost(group))
            if len(series) < 2:
                continue
            if 2 * sum(map(self.flops_of, series)) < self.flops_of(module):
                continue
            kinds = Counter(self.signatures[id(x)] for x in series)
            is_repeated = self.repeats[self.signatures[id(module)]] > 1
            if is_repeated and max(kinds.values()) == 1:
                continue
            if not self._has_way_around(module, series):
                return True
        return False

    def _inside(self, module: ModuleCall) -> Iterator[ModuleCall]:
        for child in self.children[id(module)]:
            yield child
            yield from self._inside(child)

    def _has_way_around(self, module: ModuleCall, series: Sequence[ModuleCall]) -> bool:
        """Whether an activation passes a call of a series that does not read it."""
        for call in series:
            inside = {
                name
                for operation in self.operations[call.first : call.end]
                for name in operation.inputs
            }
            for operation in self.operations[call.end : module.end]:
                for name in operation.inputs:
                    if (
                        self._has_gradient(name)
                        and self.maker[name] < call.first
                        and name not in inside
                    ):
                        return True
        return False

    def _series(self, calls: Sequence[ModuleCall]) -> list[ModuleCall]:
        """Return calls each of which depends on the one before."""
        series = list(calls[:1])
        for call in calls[1:]:
            if self._depends(_range(series[-1]), _range(call)):
                series.append(call)
        return series

    def _depends(self, before: Range, after: Range) -> bool:
        reached = {
            tensor.name
            for operation in self.operations[slice(*before)]
            for tensor in operation.outputs
        }
        for i in range(before[1], after[1]):
            operation = self.operations[i]
            if not reached.isdisjoint(operation.inputs):
                if i >= after[0]:
                    return True
                reached.update(x.name for x in operation.outputs)
        return False

    def _is_expert(self, call: ModuleCall, group: Sequence[ModuleCall]) -> bool:
        """Whether a call runs beside its like on the same activations."""
        position = [id(x) for x in group].index(id(call))
        before, after = (
            group[max(position - 1, 0) : position],
            group[position + 1 :][:1],
        )
        neighbors = [*before, *after]
        if not neighbors or any(
            self._depends(*sorted((_range(call), _range(x)))) for x in neighbors
        ):
            return False
        mine = self._activations_before(call)
        return any(
            not mine.isdisjoint(self._activations_before(other)) for other in neighbors
        )

    def _activations_before(self, call: ModuleCall) -> set[str]:
        """Return the activations that a call depends on."""
        activations: set[str] = set()
        pending = [
            name
            for operation in self.operations[call.first : call.end]
            for name in operation.inputs
            if self.maker.get(name, call.first) < call.first
        ]
        while pending:
            name = pending.pop()
            if name not in activations and self._has_gradient(name):
                activations.add(name)
                pending += self.operations[self.maker[name]].inputs
        return activations

    # What the layers are.

    def block_ranges(self, blocks: Sequence[Range]) -> Iterator[Range]:
        """Yield the operations of blocks and of the parts between them."""
        total = self.flops[-1]
        in_blocks = sum(self.flops[end] - self.flops[first] for first, end in blocks)
        position = 0
        for first, end in (*blocks, (len(self.operations), -1)):
            if first > position:
                if 2 * in_blocks >= total and blocks:
                    yield from self._independent(position, first)
                else:
                    yield from self._cut(position, first)
            if end >= 0:
                yield first, end
                position = end

    def _independent(self, first: int, end: int) -> Iterator[Range]:
        """Split a part where what follows reads nothing of it: two towers meet."""
        start = first
        for cut in self._unread(first, end):
            if self._has_activations(start, cut) and self._has_activations(cut, end):
                yield start, cut
                start = cut
        yield start, end

    def _unread(self, first: int, end: int) -> list[int]:
        """Return places behind which nothing reads what the part makes before them."""
        cuts = []
        earliest = end
        for position in range(end - 1, first, -1):
            made = [self.maker.get(x, -1) for x in self.operations[position].inputs]
            earliest = min([earliest, *(x for x in made if x >= first)])
            if earliest >= position:
                cuts.append(position)
        return cuts[::-1]

    def _has_activations(self, first: int, end: int) -> bool:
        return any(
            tensor.has_gradient
            for operation in self.operations[first:end]
            for tensor in operation.outputs
        )

    def _cut(self, first: int, end: int) -> Iterator[Range]:
        """Split a part before modules where one activation crosses."""
        crossing: Counter[int] = Counter()
        for name, maker in self.maker.items():
            if self._has_gradient(name):
                crossing[maker + 1] += 1
                crossing[self.last_use.get(name, maker) + 1] -= 1
        starts = {x for x, _ in self.module_ranges() if first < x < end}
        position = first
        crossed = 0
        for cut in range(end):
            crossed += crossing[cut]
            if cut in starts and crossed <= 1:
                yield position, cut
                position = cut
        yield position, end

    def module_ranges(self) -> Iterator[Range]:
        """Yield the innermost modules, each with the operations behind it."""
        starts = [
            module.first
            for module in self.modules
            if not self.children[id(module)]
            and (
                not module.call.from_torch
                or any(x.weights for x in self.operations[module.first : module.end])
            )
        ]
        return _between(starts, len(self.operations))

    def cuts_of_repetitions(self) -> set[int]:
        """Return places between products with one weight that depend on each other."""
        buffers = {x.names[0] for x in self.captured.parameters if x.buffer}
        forbidden: set[int] = set()
        last_use: dict[tuple[object, ...], int] = {}
        for i, operation in enumerate(self.operations):
            path = operation.calls[-1].path if operation.calls else ""
            weights = {*operation.weights} - buffers
            for name in weights if operation.forward_flops else ():
                use = (name, operation.function, path)
                before = last_use.get(use, i)
                if before < i and self._depends((before, before + 1), (i, i + 1)):
                    forbidden.update(range(before + 1, i + 1))
                last_use[use] = i
        return forbidden

    def cuts_of_memory(self) -> set[int]:
        """Return places that two names of memory pass, one of which then changes it."""
        tensors = self.captured.tensors
        changes: dict[int, int] = {}
        for i, operation in enumerate(self.operations):
            read = {tensors[x].storage for x in operation.inputs if x in tensors}
            for tensor in operation.outputs:
                if tensor.storage in read and operation.kernels:
                    changes[tensor.storage] = i
        uses: dict[int, list[Range]] = defaultdict(list)
        for name, tensor in tensors.items():
            if tensor.storage in changes:
                last = min(self.last_use.get(name, -1), changes[tensor.storage])
                uses[tensor.storage].append((self.maker.get(name, -1) + 1, last))
        forbidden: set[int] = set()
        for spans in uses.values():
            passing = Counter(x for first, end in spans for x in range(first, end + 1))
            forbidden.update(x for x, count in passing.items() if count > 1)
        return forbidden

    def steps(self, first: int, end: int) -> Iterator[Step]:
        """Yield the outermost calls in a range, and the operations outside of them."""
        position = first
        while position < end:
            for module in self.starting[position]:
                if module.end <= end and self.can_call(module):
                    yield Step(module=self.positions[id(module)])
                    position = module.end
                    break
            else:
                yield Step(operation=position)
                position += 1

    def can_call(self, module: ModuleCall) -> bool:
        """Whether a call reads its arguments only, and gives back what others read."""
        if module.obstacle:
            return False
        returned = {x.name for x in module.outputs}
        for operation in self.operations[module.first : module.end]:
            for name in operation.inputs:
                maker = self.maker.get(name, module.first)
                if maker < module.first and name not in module.inputs:
                    return False
                if name.startswith("input.") and name not in module.inputs:
                    return False
            for tensor in operation.outputs:
                is_read = self.last_use.get(tensor.name, -1) >= module.end
                if is_read and tensor.name not in returned:
                    return False
        return True

    def layers(
        self, ranges: Iterable[Range], blocks: dict[Range, ModuleCall]
    ) -> Iterator[ModuleLayer]:
        """Yield layers with their names and kinds."""
        names: Counter[str] = Counter()
        kinds: dict[Signature, str] = {}
        numbers: Counter[str] = Counter()
        for first, end in ranges:
            block = blocks.get((first, end))
            steps = tuple(self.steps(first, end))
            name, label = self._label(steps, block)
            signature = (block is None, label, self.signature(first, end))
            if signature not in kinds:
                numbers[label] += 1
                suffix = f"-{numbers[label]}" if numbers[label] > 1 else ""
                kinds[signature] = label + suffix
            names[name] += 1
            yield ModuleLayer(
                name=name if names[name] == 1 else f"{name}@{names[name] - 1}",
                kind=kinds[signature],
                steps=steps,
                first=first,
                end=end,
                is_block=block is not None,
            )

    def _label(
        self, steps: Sequence[Step], block: ModuleCall | None
    ) -> tuple[str, str]:
        """Return the name of a layer, and what kinds like it are called."""
        if block is not None:
            return block.call.path, block.call.class_name
        step = next((x for x in steps if x.module >= 0), steps[0])
        if step.module >= 0:
            call = self.captured.modules[step.module].call
            return call.path, call.class_name
        operation = self.operations[step.operation]
        function = operation.function.removesuffix(".__get__").rpartition(".")[2]
        path = operation.calls[-1].path + "." if operation.calls else ""
        return path + function.strip("_"), function.strip("_")


def _range(call: ModuleCall) -> Range:
    return call.first, call.end


def _outermost(calls: Sequence[ModuleCall]) -> list[ModuleCall]:
    """Leave out calls inside others of the same list."""
    joined: list[ModuleCall] = []
    for call in calls:
        if not joined or call.first >= joined[-1].end:
            joined.append(call)
    return joined


def _between(starts: Sequence[int], end: int) -> Iterator[Range]:
    """Yield ranges that begin at the given places; the first one begins at 0."""
    starts = sorted({0, *starts[1:]}) if starts else [0]
    yield from zip(starts, [*starts[1:], end], strict=True)
