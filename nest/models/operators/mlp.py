"""Dense MLPs, and routed experts in their place."""

from __future__ import annotations

from nest.models.blocks import Block, Mlp
from nest.models.operators.base import (
    BF16,
    FP32,
    Execution,
    Node,
    Operation,
    Operator,
    Split,
    elementwise,
    linear,
    matmul,
    norm,
)
from nest.models.operators.collectives import both_passes, expert_exchange, sent_values
from nest.models.weights import (
    dense_mlp_weights,
    idle_weights,
    router_weights,
    shared_mlp,
)

#: Kernels of a router that is not fused, forward and backward, beside its
#: product. Softmax, top-k, masks, counts and auxiliary loss are about 24
#: operators of PyTorch forward (megatron/core/transformer/moe/moe_utils.py,
#: topk_softmax_with_capacity and switch_load_balancing_loss_func), half as
#: many backward, of which the host issues three in the time of a kernel.
ROUTER_KERNELS = 8
ROUTER_BACKWARD_KERNELS = 4


def dense_mlp(block: Block, shape: Mlp, split: Split, execution: Execution) -> Node:
    """Count the products and the activation function of a dense MLP."""
    tokens, hidden = split.tokens, block.hidden
    width = shape.hidden // split.tp
    matrices = 3 if shape.gated else 2
    inner = matrices - 1
    none = BF16 * matrices * tokens * width
    loose = 0
    if shape.gated and not execution.fused:
        # The activated gate, before it is multiplied.
        loose = BF16 * tokens * width
    middle = [activation(shape, tokens * width, execution)]
    if shape.inner_norm:
        middle.append(norm("inner norm", tokens * width, execution))
        none += BF16 * tokens * width
    return Node(
        operators=(
            linear("mlp up", tokens, hidden, inner * width),
            *middle,
            linear("mlp down", tokens, width, hidden),
        ),
        collectives=both_passes(split, tokens * hidden),
        weights=dense_mlp_weights(hidden, width, shape),
        kept_bytes={
            "none": none + loose,
            "selective": BF16 * inner * tokens * width
            if execution.flash_attention
            else none + loose,
        },
        repeated=("activation function",) if execution.flash_attention else (),
        working_bytes=BF16 * matrices * tokens * width,
    )


def expert_mlp(block: Block, shape: Mlp, split: Split, execution: Execution) -> Node:
    """Count router, dispatch, experts of this rank, shared experts, sum.

    With whole experts on tensor ranks (``split.etp``) each rank dispatches the tokens
    that it has outside tensor parallel regions, and no other collective is needed.

    Kept are the dispatched tokens, the expert intermediates, the expert
    outputs (for the gradient of the gates) and the fp32 gates.
    """
    # Either each expert is cut over tp, or ranks of tp have whole ones: of ep, which
    # then counts them, or in their group (see Execution.expert_tp).
    is_cut = execution.expert_tp and not split.etp
    cut, whole = (split.tp, 1) if is_cut else (1, split.tp)
    hidden, width = block.hidden, shape.hidden // cut
    visits = shape.experts_per_token
    experts = shape.experts // (split.ep * (1 if split.etp else whole))
    size = shape.latent or hidden
    matrices = 3 if shape.gated else 2
    inner = matrices - 1
    outer = split.outer_tokens
    rows = split.tokens // whole * visits
    routed = outer * visits * size
    fused = execution.flash_attention
    selective = (
        BF16 * (2 * routed + inner * rows * width) + FP32 * outer * shape.experts
    )
    none = selective + BF16 * rows * width
    casts = not execution.fused_experts
    operators = [
        *_dispatching(shape, split, hidden, execution),
        linear("mlp up", rows, size, inner * width, experts)._replace(casts=casts),
        *([activation(shape, rows * width, execution)] if casts else []),
        linear("mlp down", rows, width, size, experts)._replace(casts=casts),
        _moved("combine", ("multiply", "add"), routed, 4, 6, kernels=2),
    ]
    weights = router_weights(hidden, shape)
    if shape.latent:
        operators.append(linear("latent up", outer, size, hidden))
        none += 2 * BF16 * outer * size
        selective += 2 * BF16 * outer * size
    working = BF16 * matrices * rows * width
    if shape.shared_hidden:
        shared = dense_mlp(block, shared_mlp(shape), split, execution)
        operators += [
            shared.operators[0]._replace(name="shared up", same_inputs_as="router"),
            shared.operators[1],
            shared.operators[2]._replace(name="shared down"),
        ]
        if shape.shared_gate:
            values = outer * hidden
            gate = matmul("shared gate", outer, hidden, 1)
            gated = elementwise("shared gated", ("multiply",), values, 4, 6)
            operators += [
                gate._replace(same_inputs_as="router"),
                gated._replace(after=("shared down", "shared gate")),
            ]
            none += BF16 * values
            selective += BF16 * values
        weights += shared.weights
        none += shared.kept_bytes["none"]
        selective += shared.kept_bytes["selective"]
    if is_cut:
        region = (rows if split.sequence_parallel else split.tokens) * size
    else:
        region = split.tokens * hidden if shape.shared_hidden else 0
    return Node(
        operators=tuple(operators),
        collectives=(
            *(both_passes(split, region) if region else ()),
            *expert_exchange(
                split, sent_values(split, shape, routed, execution), execution.expert_tp
            ),
        ),
        weights=weights,
        expert_weights=experts * dense_mlp_weights(size, width, shape)
        + shape.zero_experts * idle_weights(size, shape) // (split.ep * split.tp),
        kept_bytes={"none": none, "selective": selective if fused else none},
        repeated=("activation function",) if fused else (),
        working_bytes=working,
    )


def _dispatching(
    shape: Mlp, split: Split, hidden: int, execution: Execution
) -> list[Operator]:
    """Count router, projection to a latent width, and dispatch of tokens."""
    outer, size = split.outer_tokens, shape.latent or hidden
    rows = shape.experts + shape.zero_experts
    operators = [matmul("router", outer, hidden, rows)]
    if not execution.fused_router:
        operators.append(_routing(outer * rows))
    # What is dispatched comes first, then to where.
    needed: tuple[str, ...] = (operators[-1].name,)
    if shape.latent:
        narrow = linear("latent down", outer, hidden, size)
        operators.append(narrow._replace(same_inputs_as="router"))
        needed = (narrow.name, *needed)
    values = outer * shape.experts_per_token * size
    moved = _moved("dispatch", ("copy",), values, 4, 4, kernels=4)
    return [*operators, moved._replace(after=needed)]


def _routing(scores: int) -> Operator:
    """Count the steps of a router that is not fused, on all its scores."""
    return elementwise(
        "routing", ("routing",), scores, 4, 4, kernels=ROUTER_KERNELS
    )._replace(backward_kernels=ROUTER_BACKWARD_KERNELS, after=("router",))


def _moved(
    name: str,
    operations: tuple[Operation, ...],
    values: int,
    forward: int,
    backward: int,
    kernels: int,
) -> Operator:
    """Count kernels that move routed tokens; the bytes are per value."""
    return elementwise(
        *(name, operations, values, forward, backward),
        kernels=kernels,
        min_kernels=kernels,
    )._replace(unit="routing")


def activation(shape: Mlp, values: int, execution: Execution) -> Operator:
    """Count the activation function on ``values`` outputs.

    With a gate it reads two inputs and writes one output; backward it reads
    the gradient and both inputs and writes two gradients. Shapes do not say
    which function it is: SiLU stands for all with a gate, GELU for others.
    """
    forward, backward = (6, 10) if shape.gated else (4, 6)
    return elementwise(
        "activation function",
        ("silu", "multiply") if shape.gated else ("gelu",),
        values,
        forward,
        backward,
        kernels=1 if execution.fused else 2,
    )
