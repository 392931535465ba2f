"""From a model to the operators that its layers run, pass by pass.

Operators, their sizes and what each needs are those that
:mod:`nest.models.operators` counts for graph nodes, so that a problem made of
them has its memory, weights and collectives. Of a DAG of one pass:

- Forward it is that of the operators: mostly a chain. What is counted as one
  product (queries, keys and values; both inputs of a gated MLP) is one.
- Backward it is the reverse. A product with weights is two: the gradient of
  its input, which those before it wait for, and that of its weights, which
  nothing waits for. A product of two activations is two as well, side by
  side; what made a factor waits for the gradient of that factor alone. Of an
  operator without a backward pass (the scores that pick tokens) nothing is
  left. A router waits for the gradient of the tokens that it dispatched.
- What ``selective`` repeats is that part of the forward DAG; what else its
  operators need was kept.

Elementwise operators move the bytes that are counted for them, products what
their tiling makes of their shapes. With fused attention products and softmax
of a core are one operator on both engines, which moves what is counted for it:
queries, keys, values and outputs.

FLOPs of the products are those that are counted, but for

- convolutions of single channels, which vector units compute;
- groups of tokens of experts, whose rows are rounded up;
- fused attention over half a position (an odd length under a causal mask),
  which is rounded up, and where keys and values of a head differ in width: its
  backward pass counts 2.5 times the forward one, but has three products over
  keys and two over values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from nest.accelerators.operators import Gemm, OperatorWork, Vector
from nest.errors import InvalidOptionError
from nest.models.architectures import Architecture
from nest.models.choices import Choices
from nest.models.graphs import count_kinds
from nest.models.operators.base import Execution, Node, Operator, Product, dependencies

#: Whether products and softmax of attention are operators of their own.
Attention = Literal["unfused", "fused"]

#: What the name of a vector operation is followed by in the backward pass.
BACKWARD = "-backward"


class Pass(NamedTuple):
    """A DAG of operators.

    ``works`` are the operators, each after all that it needs, with distinct names.
    ``after`` are the positions of those that each needs directly, ascending, none of
    which another one implies.
    """

    works: tuple[OperatorWork, ...]
    after: tuple[tuple[int, ...], ...]


#: What one graph node runs in a pass: DAGs one after the other, each with how
#: often it is repeated.
Runs = tuple[tuple[Pass, int], ...]


class LayerWork(NamedTuple):
    """The passes that a graph node of a kind runs on a device under one split.

    ``key`` is that of a cost of the kind (:attr:`nest.ir.graph.LayerCost.key`);
    ``repeated`` is what ``selective`` recomputation adds to the two passes.
    """

    kind: str
    key: tuple[int, ...]
    forward: Runs
    backward: Runs
    repeated: Runs


def execution_of(attention: Attention = "unfused") -> Execution:
    """Return how operators are run, with attention fused or not.

    A softmax is one operator, however many matrices there are.
    """
    return Execution(flash_attention=attention == "fused", softmax_batches=1)


def layer_works(
    model: Architecture, choices: Choices, execution: Execution
) -> list[LayerWork]:
    """Return what every kind of layers runs under every split.

    In the order of the kinds of the graph and of the costs of each.

    Raises ``InvalidOptionError`` if the model has an operator whose products are not
    known.
    """
    works = []
    for counted in count_kinds(model, choices, execution):
        for node, _ in counted.parts:
            _check(model, node)
        makers = forward_pass, backward_pass, repeated_pass
        passes = (_runs(counted.parts, make) for make in makers)
        works.append(LayerWork(counted.kind, counted.key, *passes))
    return works


def _check(model: Architecture, node: Node) -> None:
    """Refuse operators with FLOPs but without products."""
    for operator in node.operators:
        if not operator.products and not operator.operations:
            raise InvalidOptionError(
                f"model: expected operators whose matrix products are known, got the "
                f"{operator.name} of {model.name}; choose a model without one"
            )


def _runs(layers: Sequence[tuple[Node, int]], make: Callable[[Node], Pass]) -> Runs:
    """Return the passes of counted layers; those that do nothing are out."""
    runs = ((make(node), count) for node, count in layers)
    return tuple((one, count) for one, count in runs if one.works)


def forward_pass(node: Node) -> Pass:
    """Return the forward pass of a counted layer."""
    return _part_of(node, range(len(node.operators)))


def repeated_pass(node: Node) -> Pass:
    """Return what ``selective`` recomputation runs of a layer once more."""
    names = [operator.name for operator in node.operators]
    return _part_of(node, [i for i, name in enumerate(names) if name in node.repeated])


def _part_of(node: Node, chosen: Sequence[int]) -> Pass:
    """Return the part of the forward pass at some positions."""
    index_of = {position: index for index, position in enumerate(chosen)}
    after = dependencies(node.operators)
    return _made(
        [_forward(node.operators[position]) for position in chosen],
        [
            tuple(index_of[x] for x in after[position] if x in index_of)
            for position in chosen
        ],
    )


def backward_pass(node: Node) -> Pass:
    """Return the backward pass of a counted layer."""
    works: list[OperatorWork] = []
    after: list[tuple[int, ...]] = []
    needs = dependencies(node.operators)
    # What yields the gradient of the result of each operator.
    incoming: list[set[int]] = [set() for _ in needs]

    def add(work: OperatorWork, position: int) -> int:
        works.append(work)
        after.append(tuple(sorted(incoming[position])))
        return len(works) - 1

    for position in reversed(range(len(needs))):
        operator, needed = node.operators[position], needs[position]
        if not operator.backward_bytes:
            for before in needed:
                incoming[before] |= incoming[position]
            continue
        added = [add(work, position) for work in _backward(operator)]
        first, last = {added[0]}, {added[-1]}
        if operator.has_weights:
            last = first
        for index, before in enumerate(needed):
            incoming[before] |= last if index else first
        if len(needed) == 1:
            incoming[needed[0]] |= last
    return _made(works, after)


def _forward(operator: Operator) -> OperatorWork:
    """Return the forward pass of one operator."""
    vectors = tuple(Vector(operator.values, name) for name in operator.operations)
    return _work(operator.name, operator.products, vectors, operator.forward_bytes)


def _backward(operator: Operator) -> tuple[OperatorWork, ...]:
    """Return the works of a backward pass.

    Either one, or those that yield the gradients of both factors, the first
    one's first.
    """
    name, products = operator.name, operator.backward_products
    if not operator.operations:
        first, second = (
            ("input", "weight") if operator.has_weights else ("left", "right")
        )
        return tuple(
            _work(f"{name} {factor} gradient", (product,), (), 0)
            for factor, product in zip((first, second), products, strict=True)
        )
    vectors = tuple(
        Vector(operator.values, name + BACKWARD)
        for name in reversed(operator.operations)
    )
    if products:
        # A fused core computes its forward pass once more.
        vectors = (*_forward(operator).vectors, *vectors)
    return (_work(f"{name} gradient", products, vectors, operator.backward_bytes),)


def _work(
    name: str,
    products: tuple[Product, ...],
    vectors: tuple[Vector, ...],
    size_bytes: float,
) -> OperatorWork:
    """Return a work.

    Products alone have no bytes but those of their shapes; with vectors, the
    two together have what is counted.
    """
    counted_bytes = int(size_bytes) if vectors else 0
    assert not vectors or counted_bytes == size_bytes, name
    return OperatorWork(
        name=name,
        gemms=tuple(Gemm(*product) for product in products),
        vectors=vectors,
        vector_bytes=0 if products else counted_bytes,
        traffic_bytes=counted_bytes if products and vectors else None,
    )


def _made(works: Sequence[OperatorWork], after: Sequence[Sequence[int]]) -> Pass:
    """Return a pass, with distinct names and without implied needs."""
    seen: dict[str, int] = {}
    named = []
    for work in works:
        count = seen[work.name] = seen.get(work.name, 0) + 1
        if count > 1:
            work = msgspec.structs.replace(work, name=f"{work.name} {count}")
        named.append(work)
    before: list[set[int]] = []
    direct = []
    for needed in after:
        implied = set().union(*(before[x] for x in needed))
        direct.append(tuple(sorted(set(needed) - implied)))
        before.append(implied | set(needed))
    return Pass(tuple(named), tuple(direct))
