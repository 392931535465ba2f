"""What one graph node does: an embedding, a block, a norm, a head."""

from __future__ import annotations

from nest.ir.graph import CollectiveCall
from nest.ir.plan import RECOMPUTE
from nest.models.blocks import Block, Head, Module, Tower
from nest.models.operators.attention import attention
from nest.models.operators.base import (
    BF16,
    FP32,
    FUSED,
    TOKEN_ID,
    Execution,
    Node,
    Operation,
    Operator,
    Split,
    convolution,
    elementwise,
    matmul,
    norm,
    results,
    vocabulary_rows,
)
from nest.models.operators.collectives import gathered_bytes, gathers, merged, regions
from nest.models.operators.mixers import mixer_part
from nest.models.operators.mlp import dense_mlp, expert_mlp
from nest.models.operators.selective import by_operators
from nest.models.weights import (
    embedding_weights,
    final_norm_weights,
    head_weights,
    head_width,
    join_weights,
    norm_weights,
    vector_weights,
)

#: Bytes per value that a norm of single operators keeps besides its input
#: and output: the input in fp32, and the normalized value in 16 bits.
LOOSE_NORM_BYTES = FP32 + BF16


def embedding_node(tower: Tower, split: Split, execution: Execution = FUSED) -> Node:
    """Count the embedding of a tower: look-up or patches, positions, norm.

    The table is cut over ``tp`` by vocabulary, so the partial results are all-reduced,
    or reduce-scattered under sequence parallelism, in which case the backward pass
    gathers the gradient. A linear layer embeds patches and is not cut.
    """
    hidden = tower.hidden
    values = split.tokens * hidden
    outer = split.outer_tokens * hidden
    block = tower.runs[0].block
    operators = []
    kept_bytes = 0
    if tower.vocabulary:
        # Read and write a row; add its gradient to the row of the table.
        operators.append(
            Operator(
                *("look-up", "memory", 0, 4 * values, 0, 6 * values),
                values=values,
                operations=("copy",),
            )
        )
        kept_bytes += TOKEN_ID * split.tokens
    if tower.embedding_size:
        narrow = tower.embedding_size
        operators.append(matmul("widening", split.tokens, narrow, hidden))
        kept_bytes += BF16 * split.tokens * narrow
    if tower.patch_values:
        operators.append(
            matmul("patches", split.outer_tokens, tower.patch_values, hidden)
        )
        kept_bytes += BF16 * split.outer_tokens * tower.patch_values
    none = kept_bytes
    if tower.layer_inputs:
        width = tower.layers * tower.layer_inputs
        operators += [
            matmul("layer inputs", split.tokens, hidden, width),
            elementwise("layer table", ("copy", "add"), split.tokens * width, 8, 8),
        ]
        none += BF16 * split.tokens * width
    for index, shape in enumerate(tower.convolutions):
        positions = shape.positions * split.outer_tokens
        made = positions * shape.outputs
        operators += [
            convolution(
                f"convolution {index + 1}",
                positions,
                shape.inputs,
                shape.kernel,
                shape.outputs,
            ),
            elementwise(f"convolution activation {index + 1}", ("gelu",), made, 4, 6),
        ]
        if shape.normed:
            operators.append(norm(f"convolution norm {index + 1}", made, execution))
            none += BF16 * made
        if not index:
            # The input, at least one position per kernel's stride.
            kept_bytes += BF16 * positions * shape.inputs
            none += BF16 * positions * shape.inputs
        none += 2 * BF16 * made
    if tower.learned_positions or tower.token_types:
        operators.append(elementwise("positions", ("add",), outer, 6, 4))
    if tower.embedding_norm:
        operators.append(norm("embedding norm", outer, execution))
        none += BF16 * outer
    if block.dropout:
        operators.append(elementwise("dropout", ("dropout",), outer, 5, 5))
        none += outer
    collectives: tuple[CollectiveCall, ...] = ()
    if tower.vocabulary:
        gather = 1 if split.sequence_parallel else 0
        collectives = (
            *regions(split, values, "forward", enters=0, leaves=1),
            *regions(split, values, "backward", enters=gather, leaves=0),
        )
    return Node(
        operators=tuple(operators),
        collectives=collectives,
        weights=embedding_weights(
            tower, vocabulary_rows(tower.vocabulary, split.tp, tower.row_multiple)
        ),
        kept_bytes={
            "none": none,
            "selective": none,
            "full": kept_bytes,
            "offload": none,
        },
        working_bytes=BF16 * values,
    )


def block_node(block: Block, split: Split, execution: Execution = FUSED) -> Node:
    """Count one block: attention, cross-attention, dense or expert MLP."""
    hidden, tokens = block.hidden, split.tokens
    outer = split.outer_tokens * hidden
    nodes = [
        attention(block, shape, split, execution)
        for shape in (block.attention, block.cross_attention)
        if shape is not None and shape.heads
    ]
    if block.mixer is not None:
        nodes.insert(0, mixer_part(block, block.mixer, split, execution))
    count_mlp = expert_mlp if block.mlp.experts else dense_mlp
    if block.mlp.hidden:
        nodes.append(count_mlp(block, block.mlp, split, execution))

    mask = 1 if block.dropout else 0
    added: tuple[Operation, ...] = ("add",)
    if block.dropout:
        added = ("dropout", "add")
    operators: list[Operator] = []
    for index, node in enumerate(nodes):
        if block.norms:
            operators.append(norm(f"norm {index + 1}", outer, execution))
        operators += node.operators
        operators.append(
            elementwise(
                f"residual {index + 1}",
                added,
                outer,
                (6 + mask) * block.streams,
                (6 + mask) * block.streams,
                kernels=1 if execution.fused else 2 + mask,
            )._replace(after=results(node.operators))
        )
    more_norms = block.norms - len(nodes) if block.norms else 0
    operators += [
        norm(f"output norm {index + 1}", outer, execution)
        for index in range(more_norms)
    ]
    # Inputs of all norms and the dropout masks stay; outputs of the norms
    # are cheap to compute again. A norm of an output keeps its input only.
    inputs = len(nodes) * (BF16 * block.streams + mask) * outer
    inputs += more_norms * BF16 * outer
    none = inputs + (len(nodes) if block.norms else 0) * BF16 * outer
    selective = inputs
    repeated = [f"norm {index + 1}" for index in range(len(nodes))]
    if not execution.flash_attention:
        selective, repeated = none, []
    for node in nodes:
        none += node.kept_bytes["none"]
        selective += node.kept_bytes["selective"]
        repeated += node.repeated
    if not execution.fused:
        none += block.norms * LOOSE_NORM_BYTES * outer
        selective += block.norms * LOOSE_NORM_BYTES * outer
    region = tokens * hidden * max(block.mlp.experts_per_token, 1)
    shares: dict[str, float] = {}
    if execution.selective_operators:
        shares, selective = by_operators(*(block, split, operators, execution.dtype))
        repeated = list(shares)
        selective += BF16 * outer
    return Node(
        operators=tuple(operators),
        collectives=merged(call for node in nodes for call in node.collectives),
        weights=sum(node.weights for node in nodes) + vector_weights(block),
        expert_weights=sum(node.expert_weights for node in nodes),
        kept_bytes={
            "none": none,
            "selective": selective,
            "full": BF16 * outer * block.streams,
            "offload": BF16 * outer * block.streams,
        },
        repeated=tuple(repeated),
        repeated_shares=shares,
        working_bytes=gathered_bytes(split, region)
        + max(node.working_bytes for node in nodes),
    )


def module_node(
    module: Module, tower: Tower, split: Split, execution: Execution = FUSED
) -> Node:
    """Count a module for multi-token prediction, as Megatron-Core runs it.

    It embeds the later tokens itself. The product that joins them with the
    stream is cut over ``tp`` by columns: its input is gathered under sequence
    parallelism, its output always; backward the gradient of the input is
    summed, and that of the output gathered under sequence parallelism. Full
    recomputation keeps both inputs of the product's norms.
    """
    block, hidden = module.block, tower.hidden
    outer = split.outer_tokens * hidden
    region = split.tokens * hidden
    table = embedding_node(tower, split, execution)
    inner = block_node(block, split, execution)
    joined = 5 * BF16 * outer
    if not execution.fused:
        joined += 3 * LOOSE_NORM_BYTES * outer
    enters = int(split.sequence_parallel)
    kept_bytes = {
        choice: inner.kept_bytes[choice] + table.kept_bytes[choice] + joined
        for choice in RECOMPUTE
    }
    kept_bytes["full"] = table.kept_bytes["none"] + 2 * BF16 * outer
    return Node(
        operators=(
            *table.operators,
            norm("next token norm", outer, execution),
            norm("stream norm", outer, execution)._replace(after=()),
            matmul("join", split.tokens, 2 * hidden, hidden // split.tp)._replace(
                after=("next token norm", "stream norm")
            ),
            *inner.operators,
            norm("module norm", outer, execution),
        ),
        collectives=merged(
            (
                *table.collectives,
                *regions(split, 2 * region, "forward", enters=enters, leaves=0),
                *regions(split, 2 * region, "backward", enters=0, leaves=1),
                *gathers(split, region, forward=1, backward=enters),
                *inner.collectives,
            )
        ),
        weights=inner.weights
        + join_weights(hidden, split.tp)
        + 3 * norm_weights(block)
        + (table.weights if module.table else 0),
        expert_weights=inner.expert_weights,
        kept_bytes=kept_bytes,
        repeated=inner.repeated,
        repeated_shares=inner.repeated_shares,
        working_bytes=max(
            inner.working_bytes,
            table.working_bytes,
            gathered_bytes(split, 2 * region) + BF16 * region,
        ),
    )


def head_node(
    head: Head,
    hidden: int,
    split: Split,
    execution: Execution = FUSED,
    *,
    norm_weights: int = 0,
) -> Node:
    """Count final norm, output layer and loss.

    The logits are cut over ``tp`` by vocabulary and kept in fp32 (Korthikanti et al.
    2022, §4.3), several times by software that does not fuse them; the loss all-reduces
    three fp32 numbers per token. A tied matrix is held here and in the embedding, as in
    any pipeline that separates them; summing its two gradients is not counted. A pooled
    head sees one vector per sample and is not cut. Without a final norm
    ``norm_weights`` is ``0``.
    """
    tp = 1 if head.pooled else split.tp
    tokens = split.samples if head.pooled else split.tokens
    outer = (split.samples if head.pooled else split.outer_tokens) * hidden
    stream = outer
    tokens, outer = tokens * head.predictions, outer * head.predictions
    rows = head.outputs
    if not head.pooled:
        rows = vocabulary_rows(head.outputs, tp, head.row_multiple)
    width = head_width(head, hidden)
    logits = tokens * rows
    region = tokens * hidden
    operators = []
    none = selective = execution.logit_bytes * logits
    if head.transform:
        rows_in = outer // hidden
        operators += [
            matmul("transform", rows_in, hidden, width),
            elementwise("transform activation", ("gelu",), rows_in * width, 4, 6),
            norm("transform norm", rows_in * width, execution),
        ]
        none += 3 * BF16 * rows_in * width
        selective += 2 * BF16 * rows_in * width
    if norm_weights:
        # Modules for multi-token prediction have norms of their own.
        operators.append(norm("final norm", stream, execution))
        none += BF16 * stream
    none += BF16 * outer
    selective += BF16 * outer
    operators += [matmul("output layer", tokens, width, rows), _loss(logits, execution)]
    collectives: tuple[CollectiveCall, ...] = ()
    if tp > 1:
        gather = 1 if split.sequence_parallel else 0
        collectives = (
            *regions(split, region, "forward", enters=gather, leaves=0),
            CollectiveCall(
                kind="all-reduce",
                axis="tp",
                phase="forward",
                size_bytes=FP32 * tokens,
                count=3,
            ),
            *regions(split, region, "backward", enters=0, leaves=1),
        )
    gathered = 0 if head.pooled else gathered_bytes(split, region)
    return Node(
        operators=tuple(operators),
        collectives=collectives,
        weights=head_weights(head, hidden, rows) + norm_weights,
        kept_bytes={
            "none": none,
            "selective": selective,
            "full": BF16 * outer,
            "offload": none,
        },
        repeated=("final norm",) if norm_weights else (),
        working_bytes=gathered + execution.loss_bytes * logits,
    )


def _loss(logits: int, execution: Execution) -> Operator:
    """Count softmax and cross-entropy; the bytes are per logit.

    Fused: a cast to fp32 (6) and the softmax (8), backward (8) and a cast
    back (6). Else maximum (4), subtraction, exponential and division (8
    each) and sum (4) after the cast, and two kernels more backward.
    """
    if execution.fused_loss:
        size, backward, kernels = 14, 14, 2
    else:
        size, backward, kernels = 38, 22, 6
    return elementwise(
        *("loss", ("loss",), logits, size, backward),
        kernels=kernels,
        min_kernels=kernels,
    )


def norm_node(tower: Tower, split: Split) -> Node:
    """Count the norm behind a tower that another reads; it keeps its input."""
    values = split.outer_tokens * tower.hidden
    return Node(
        operators=(norm("final norm", values, FUSED),),
        weights=final_norm_weights(tower),
        kept_bytes=dict.fromkeys(RECOMPUTE, BF16 * values),
    )
