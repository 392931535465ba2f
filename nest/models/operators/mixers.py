"""Mixers: state-space models, linear attention, short convolutions."""

from __future__ import annotations

from nest.models.blocks import Block, Linear, Mixer
from nest.models.operators.base import (
    BF16,
    Execution,
    Node,
    Operator,
    Split,
    convolution,
    elementwise,
    linear,
    norm,
)
from nest.models.operators.collectives import both_passes, state_exchange
from nest.models.weights import mixer_weights, rank_outputs, rank_width

#: Backward FLOPs of a recurrence in chunks per forward FLOP: two products
#: for each, as of any product.
RECURRENCE_BACKWARD = 2


def mixer_part(block: Block, shape: Mixer, split: Split, execution: Execution) -> Node:
    """Count linear layers, convolution, recurrence; no norm, no residual.

    Kept are the outputs of the linear layers, of the convolution, of the recurrence and
    of the gate behind it; ``selective`` computes the last three again from the first,
    as kernels of Mamba do (Gu and Dao 2023, arXiv 2312.00752, §3.3.2). Under context
    parallelism the sequence is exchanged for heads before the recurrence, and back
    behind it; what a convolution alone needs from neighbors is not counted.
    """
    tokens, tp = split.tokens, split.tp
    if shape.normed:
        return _convolutions(shape, split, execution)
    *entering, last = shape.linears
    operators = [_product(layer, tokens, tp) for layer in entering]
    made = tokens * sum(rank_outputs(layer, tp) for layer in entering)
    convolved = tokens * (shape.channels // tp)
    inner = tokens * (shape.inner // tp)
    if shape.kernel:
        flops = 2 * shape.kernel * convolved
        operators.append(
            Operator(
                "convolution",
                "memory",
                flops,
                2 * BF16 * convolved,
                2 * flops,
                4 * BF16 * convolved,
                values=shape.kernel * convolved,
                operations=("multiply-add",),
            )
        )
    core = tokens * (shape.core_flops // tp)
    moved = BF16 * tokens * (shape.core_values // tp)
    if moved:
        operators.append(
            Operator(
                "recurrence",
                "attention",
                core,
                moved,
                RECURRENCE_BACKWARD * core,
                2 * moved,
            )
        )
    operators.append(elementwise("gated output", ("silu", "multiply"), inner, 6, 10))
    operators.append(_product(last, tokens, tp))
    values = made + convolved + (2 if moved else 1) * inner
    return Node(
        operators=tuple(operators),
        collectives=(
            *both_passes(split, tokens * block.hidden),
            *(state_exchange(split, made + inner) if moved else ()),
        ),
        weights=mixer_weights(shape, tp),
        kept_bytes={"none": BF16 * values, "selective": BF16 * made},
        repeated=("convolution", "recurrence", "gated output"),
    )


def _convolutions(shape: Mixer, split: Split, execution: Execution) -> Node:
    """Count convolutions of images, as products with all that they see.

    Kept are the input of each, what its batch norm normalizes and what its activation
    function takes; ``selective`` keeps inputs of convolutions and norms and computes
    the norms and activation functions again. No rank shares a convolution.
    """
    tokens = split.tokens
    operators: list[Operator] = []
    kept_bytes = 0
    for layer in shape.linears:
        made = tokens * layer.outputs
        operators += [
            convolution(
                layer.name,
                tokens,
                layer.inputs // layer.taps,
                layer.taps,
                layer.outputs,
            ),
            norm(f"norm of {layer.name}", made, execution),
            elementwise(f"activation of {layer.name}", ("relu",), made, 4, 6),
        ]
        kept_bytes += BF16 * made
    names = [layer.name for layer in shape.linears]
    return Node(
        operators=tuple(operators),
        weights=mixer_weights(shape),
        kept_bytes={"none": 3 * kept_bytes, "selective": 2 * kept_bytes},
        repeated=tuple(f"norm of {name}" for name in names)
        + tuple(f"activation of {name}" for name in names),
    )


def _product(layer: Linear, tokens: int, tp: int) -> Operator:
    """Count one linear layer on a rank."""
    width = rank_width(layer, tp)
    if layer.cut == "inputs":
        return linear(layer.name, tokens, width, layer.outputs)
    # Blocks on the diagonal are products of their own, all by one kernel.
    return linear(layer.name, tokens, layer.inputs // layer.blocks, width)
