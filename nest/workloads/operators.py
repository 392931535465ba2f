"""First analytic operator count of a transformer: FLOPs, bytes, time, memory.

A model is three kinds of nodes: embedding, decoder layer, and final norm with
LM head and loss. Each is a list of operators on one device under one split;
the time of an operator is its roofline

    max(flops / (peak · e_flops), bytes / (hbm · e_memory))

with the efficiencies of :class:`nest.workloads.hardware.Efficiency`, and the
time of a node is the sum over its operators: no overlap, no launch overhead.

Symbols, per data-parallel rank: ``b`` samples of ``s`` tokens, ``T = b·s/cp``
tokens per rank, ``U = T/tp`` under sequence parallelism and ``U = T`` without
(tokens per rank outside the tensor parallel regions), ``h`` hidden width,
``a`` heads of ``d``, ``f`` MLP width, ``V`` vocabulary, ``E`` experts of which
a token visits ``k``. Values are bf16, 2 bytes, unless stated.

Splitting
    Tensor parallelism cuts heads and MLP columns (Shoeybi et al. 2019, arXiv
    1909.08053): per region one all-reduce of ``2Th`` bytes forward and one
    backward, or, with sequence parallelism, an all-gather and a
    reduce-scatter each way (Korthikanti et al. 2022, arXiv 2205.05198, §4.2).
    The all-gather that their backward pass repeats overlaps with computation
    and is not counted. Key and value heads are replicated where ``tp``
    exceeds them; the vocabulary is padded to a multiple of ``128·tp`` as in
    Megatron-LM.
    Context parallelism cuts the sequence. Ring attention is approximated by
    an all-gather of K and V over ``cp`` in both passes and a reduce-scatter
    of their gradients; the causal mask is taken as balanced over the ranks.
    Expert parallelism spreads experts over ``ep``: two all-to-all of
    ``2Ukh`` bytes in each pass, with perfectly balanced routing. As in
    Megatron-LM's all-to-all dispatcher tokens are dispatched before they are
    gathered over ``tp``, so with sequence parallelism the gather and scatter
    of an expert MLP move ``2Tkh`` bytes.

Attention
    A fused causal kernel (Dao 2023, arXiv 2307.08691): half of the ``4Tsad``
    FLOPs, 2.5 times that backward, no ``s²`` matrix in memory.

Activations kept per micro-batch
    ``none``: Korthikanti et al. §4.1 and §4.2 without their ``5as²b`` term,
    which the fused kernel removes, plus its ``4Ta/tp`` bytes of row sums: for
    GPT-3 with sequence parallelism ``34sbh/tp``.
    ``selective``: what takes much memory and few FLOPs is computed again:
    both norms, the attention core and the activation function. (Their own
    choice, the attention core alone, would free next to nothing here.)
    GPT-3: ``20sbh/tp``. Gathered K and V are taken from the backward pass.
    ``full``: the input of every layer, ``2Uh``.
    Embedding and head follow the same three rules.

Working memory
    What the recompute choice brings back of one layer, plus the gathered
    input, plus the gradients of the MLP intermediates (of the logits in the
    head).

As a check: GPT-3 175B on 64 A100, 8-way tensor and 8-way pipeline parallel,
batch 64, selective recomputation, scores 12.8 s; Korthikanti et al., table 5,
measured 13.75 s (with interleaved stages and unfused attention).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from nest.ir.base import Struct
from nest.ir.graph import (
    Activations,
    CollectiveCall,
    CollectiveKind,
    LayerCost,
    LayerKind,
)
from nest.ir.job import Optimizer
from nest.ir.plan import RECOMPUTE, Recompute
from nest.units import ceil_div
from nest.workloads.architectures import Architecture
from nest.workloads.hardware import Machine

#: Bytes of a value in bf16, in fp32, and of a token id.
BF16 = 2
FP32 = 4
TOKEN_ID = 8

#: Mixed-precision Adam with 16 bytes per weight: bf16 weight and gradient,
#: fp32 master weight and two moments (Rajbhandari et al. 2020, arXiv
#: 1910.02054, §3.1).
MIXED_PRECISION_ADAM = Optimizer(
    name="adam", weight_bytes=2, gradient_bytes=2, state_bytes=12
)

#: Megatron-LM pads the vocabulary to a multiple of this times ``tp``.
VOCABULARY_MULTIPLE = 128

#: Backward FLOPs of fused attention per forward FLOP: five products for two.
ATTENTION_BACKWARD = 2.5


class Split(Struct, frozen=True, kw_only=True):
    """How one node is split, and what one data-parallel rank feeds it.

    Attributes
    ----------
    tp, cp, ep
        Tensor, context and expert parallel degree.
    samples
        Samples ``b`` per data-parallel rank.
    sequence_length
        Tokens ``s`` of a sample.
    sequence_parallel
        Whether activations between layers are also split over ``tp``.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    samples: int = 1
    sequence_length: int
    sequence_parallel: bool = True

    @property
    def tokens(self) -> int:
        """Tokens ``T`` of a rank inside tensor parallel regions."""
        return self.samples * self.sequence_length // self.cp

    @property
    def outer_tokens(self) -> int:
        """Tokens ``U`` of a rank outside tensor parallel regions."""
        return self.tokens // (self.tp if self.sequence_parallel else 1)


class Operator(NamedTuple):
    """One operator on one device, forward and backward.

    ``unit`` tells which efficiency applies: ``matmul``, ``attention``, or
    ``memory`` (an elementwise operator without counted FLOPs).
    """

    name: str
    unit: Literal["matmul", "attention", "memory"]
    forward_flops: float
    forward_bytes: float
    backward_flops: float
    backward_bytes: float


class Node(Struct, frozen=True, kw_only=True):
    """What one graph node does and holds on one device.

    Attributes
    ----------
    operators
        In forward order.
    collectives
        Per micro-batch.
    weights, expert_weights
        Number of dense weights and of expert weights.
    kept_bytes
        Activation bytes kept per micro-batch, by recompute choice (parts of
        a layer have no ``full``).
    repeated
        Names of the operators that ``selective`` computes again.
    working_bytes
        See the module docstring.
    """

    operators: tuple[Operator, ...]
    collectives: tuple[CollectiveCall, ...]
    weights: int
    expert_weights: int = 0
    kept_bytes: dict[Recompute, int]
    repeated: tuple[str, ...] = ()
    working_bytes: int

    def flops(self) -> tuple[float, float]:
        """Return the forward and the backward FLOPs."""
        return (
            sum(operator.forward_flops for operator in self.operators),
            sum(operator.backward_flops for operator in self.operators),
        )


def embedding(model: Architecture, split: Split) -> Node:
    """Count the embedding: look-up, learned positions, dropout.

    The table is cut over ``tp`` by vocabulary, so the partial results are
    all-reduced, or reduce-scattered under sequence parallelism, in which case
    the backward pass gathers the gradient.
    """
    values = split.tokens * model.hidden
    outer = split.outer_tokens * model.hidden
    operators = [
        # Read and write a row; add its gradient to the row of the table.
        Operator("look-up", "memory", 0, 4 * values, 0, 6 * values)
    ]
    weights = _vocabulary_rows(model, split) * model.hidden
    kept = TOKEN_ID * split.tokens
    none = kept
    if model.learned_positions:
        weights += model.max_sequence * model.hidden
        operators.append(_elementwise("positions", outer, 6, 4))
    if model.dropout:
        operators.append(_elementwise("dropout", outer, 5, 5))
        none += outer
    gather = 1 if split.sequence_parallel else 0
    return Node(
        operators=tuple(operators),
        collectives=(
            *_regions(split, values, "forward", enters=0, leaves=1),
            *_regions(split, values, "backward", enters=gather, leaves=0),
        ),
        weights=weights,
        kept_bytes={"none": none, "selective": none, "full": kept},
        working_bytes=BF16 * values,
    )


def decoder_layer(model: Architecture, split: Split) -> Node:
    """Count one decoder layer: attention and a dense or an expert MLP."""
    hidden, tokens = model.hidden, split.tokens
    outer = split.outer_tokens * hidden
    attention = _attention(model, split)
    mlp = (_expert_mlp if model.experts else _dense_mlp)(model, split)
    mask = 1 if model.dropout else 0
    around = (
        _elementwise("attention norm", outer, 4, 6),
        _elementwise("attention residual", outer, 6 + mask, 6 + mask),
        _elementwise("mlp norm", outer, 4, 6),
        _elementwise("mlp residual", outer, 6 + mask, 6 + mask),
    )
    weights = attention.weights + mlp.weights + 2 * model.norm_weights
    # Inputs of both norms and the dropout masks stay, outputs of both norms
    # are cheap to compute again.
    none = 2 * (2 * BF16 + mask) * outer
    selective = 2 * (BF16 + mask) * outer
    none += attention.kept_bytes["none"] + mlp.kept_bytes["none"]
    selective += (
        attention.kept_bytes["selective"] + mlp.kept_bytes["selective"]
    )
    full = BF16 * outer
    region = tokens * hidden * max(model.experts_per_token, 1)
    return Node(
        operators=(
            around[0],
            *attention.operators,
            *around[1:3],
            *mlp.operators,
            around[3],
        ),
        collectives=_merge(attention.collectives + mlp.collectives),
        weights=weights,
        expert_weights=mlp.expert_weights,
        kept_bytes={"none": none, "selective": selective, "full": full},
        repeated=(
            "attention norm",
            "mlp norm",
            *attention.repeated,
            *mlp.repeated,
        ),
        working_bytes=_gathered(split, region) + mlp.working_bytes,
    )


def head(model: Architecture, split: Split) -> Node:
    """Count final norm, LM head and cross-entropy.

    The logits are cut over ``tp`` by vocabulary and kept in fp32
    (Korthikanti et al. 2022, §4.3); the loss all-reduces three fp32 numbers
    per token. A tied matrix is held here and in the embedding, as in any
    pipeline that separates them; summing its two gradients is not counted.
    """
    hidden, tokens = model.hidden, split.tokens
    outer = split.outer_tokens * hidden
    rows = _vocabulary_rows(model, split)
    logits = tokens * rows
    gather = 1 if split.sequence_parallel else 0
    region = tokens * hidden
    loss: tuple[CollectiveCall, ...] = ()
    if split.tp > 1:
        loss = (
            CollectiveCall(
                kind="all-reduce",
                axis="tp",
                phase="forward",
                size_bytes=FP32 * tokens,
                count=3,
            ),
        )
    selective = BF16 * outer + FP32 * logits
    none = selective + BF16 * outer
    full = BF16 * outer
    return Node(
        operators=(
            _elementwise("final norm", outer, 4, 6),
            _matmul("lm head", tokens, hidden, rows),
            # Read bf16, write fp32, read and rewrite it in the softmax.
            _elementwise("loss", logits, 14, 6),
        ),
        collectives=(
            *_regions(split, region, "forward", enters=gather, leaves=0),
            *loss,
            *_regions(split, region, "backward", enters=0, leaves=1),
        ),
        weights=rows * hidden + model.norm_weights,
        kept_bytes={"none": none, "selective": selective, "full": full},
        repeated=("final norm",),
        working_bytes=_gathered(split, region) + BF16 * logits,
    )


def operator_ns(operator: Operator, machine: Machine) -> tuple[float, float]:
    """Return the forward and the backward roofline time in ns."""
    device, efficiency = machine.device, machine.efficiency
    assert device.hbm_bytes_per_s is not None
    fraction = (
        efficiency.attention
        if operator.unit == "attention"
        else efficiency.matmul
    )
    flops_per_ns = device.peak_flops["bf16"] * fraction / 1e9
    bytes_per_ns = device.hbm_bytes_per_s * efficiency.memory / 1e9
    return (
        max(
            operator.forward_flops / flops_per_ns,
            operator.forward_bytes / bytes_per_ns,
        ),
        max(
            operator.backward_flops / flops_per_ns,
            operator.backward_bytes / bytes_per_ns,
        ),
    )


def layer_cost(
    node: Node, split: Split, machine: Machine, repeat: int = 1
) -> LayerCost:
    """Return the cost of ``repeat`` consecutive equal nodes.

    Times, weights, kept activations and collectives are ``repeat`` times
    those of one node; working memory is that of one.

    Parameters
    ----------
    node, split
        The counted node and the split it was counted for.
    machine
        Supplies rates and efficiencies.
    repeat
        How many nodes are taken as one.
    """
    forward_ns = backward_ns = repeated_ns = 0.0
    for operator in node.operators:
        forward, backward = operator_ns(operator, machine)
        forward_ns += forward
        backward_ns += backward
        if operator.name in node.repeated:
            repeated_ns += forward
    return LayerCost(
        tp=split.tp,
        cp=split.cp,
        ep=split.ep,
        samples=split.samples,
        forward_ns=repeat * forward_ns,
        backward_ns=repeat * backward_ns,
        weight_bytes=repeat * BF16 * node.weights,
        expert_weight_bytes=repeat * BF16 * node.expert_weights,
        working_bytes=node.working_bytes,
        activations=tuple(
            Activations(
                recompute=choice,
                kept_bytes=repeat * node.kept_bytes[choice],
                extra_ns=repeat * repeated_ns * (choice == "selective"),
                working_bytes=node.kept_bytes["none"]
                - node.kept_bytes[choice],
            )
            for choice in RECOMPUTE
        ),
        collectives=tuple(
            CollectiveCall(
                kind=call.kind,
                axis=call.axis,
                phase=call.phase,
                size_bytes=call.size_bytes,
                count=repeat * call.count,
            )
            for call in node.collectives
        ),
    )


def layer_kinds(
    model: Architecture,
    machine: Machine,
    splits: tuple[Split, ...],
    layers_per_node: int = 1,
) -> tuple[LayerKind, LayerKind, LayerKind]:
    """Return the kinds ``embedding``, ``decoder`` and ``head``.

    Parameters
    ----------
    model, machine
        What is trained, and on what.
    splits
        Keys of the cost tables.
    layers_per_node
        How many decoder layers one graph node stands for.
    """
    return (
        LayerKind(
            name="embedding",
            costs=tuple(
                layer_cost(embedding(model, split), split, machine)
                for split in splits
            ),
        ),
        LayerKind(
            name="decoder",
            costs=tuple(
                layer_cost(
                    decoder_layer(model, split),
                    split,
                    machine,
                    layers_per_node,
                )
                for split in splits
            ),
        ),
        LayerKind(
            name="head",
            costs=tuple(
                layer_cost(head(model, split), split, machine)
                for split in splits
            ),
        ),
    )


def _vocabulary_rows(model: Architecture, split: Split) -> int:
    rows = ceil_div(model.vocabulary, VOCABULARY_MULTIPLE * split.tp)
    return rows * VOCABULARY_MULTIPLE


def _matmul(name: str, m: int, k: int, n: int, groups: int = 1) -> Operator:
    """Count ``m × k`` times ``k × n``; ``groups`` matrices share the rows.

    Backward are two products of the same size, for both gradients.
    """
    flops = 2 * m * k * n
    size = BF16 * (m * k + groups * k * n + m * n)
    return Operator(name, "matmul", flops, size, 2 * flops, 2 * size)


def _elementwise(
    name: str, values: int, forward_bytes: int, backward_bytes: int
) -> Operator:
    """Count an operator bound by memory; the bytes are per value."""
    return Operator(
        name, "memory", 0, forward_bytes * values, 0, backward_bytes * values
    )


def _attention(model: Architecture, split: Split) -> Node:
    """Count projections, rotary embedding and core; no norm, no residual."""
    tokens, hidden = split.tokens, model.hidden
    query = model.heads // split.tp * model.head_size
    key = max(model.kv_heads // split.tp, 1) * model.head_size
    keys = split.samples * split.sequence_length * key
    core = 2 * tokens * split.sequence_length * query
    operators = [_matmul("qkv", tokens, hidden, query + 2 * key)]
    if not model.learned_positions:
        operators.append(_elementwise("rotary", tokens * (query + key), 4, 4))
    operators += [
        Operator(
            "attention core",
            "attention",
            core,
            # Read Q, K, V, write O; backward reads these and dO, and writes
            # dQ, dK, dV.
            BF16 * (2 * tokens * query + 2 * keys),
            ATTENTION_BACKWARD * core,
            BF16 * (4 * tokens * query + 4 * keys),
        ),
        _matmul("attention output", tokens, query, hidden),
    ]
    weights = 2 * hidden * (query + key)
    if model.biases:
        weights += query + 2 * key + hidden
    row_sums = FP32 * tokens * query // model.head_size
    selective = BF16 * tokens * (query + 2 * key)
    return Node(
        operators=tuple(operators),
        collectives=(
            *_both_regions(split, tokens * hidden),
            *_context_collectives(split, BF16 * 2 * keys),
        ),
        weights=weights,
        kept_bytes={
            "none": selective + BF16 * tokens * query + row_sums,
            "selective": selective,
        },
        repeated=("attention core",),
        working_bytes=0,
    )


def _dense_mlp(model: Architecture, split: Split) -> Node:
    """Count the products and the activation function of a dense MLP."""
    tokens, hidden = split.tokens, model.hidden
    width = model.mlp_hidden // split.tp
    inner = model.mlp_matrices - 1
    weights = model.mlp_matrices * hidden * width
    if model.biases:
        weights += inner * width + hidden
    return Node(
        operators=(
            _matmul("mlp up", tokens, hidden, inner * width),
            _activation(model, tokens * width),
            _matmul("mlp down", tokens, width, hidden),
        ),
        collectives=_both_regions(split, tokens * hidden),
        weights=weights,
        kept_bytes={
            "none": BF16 * model.mlp_matrices * tokens * width,
            "selective": BF16 * inner * tokens * width,
        },
        repeated=("activation function",),
        working_bytes=BF16 * model.mlp_matrices * tokens * width,
    )


def _expert_mlp(model: Architecture, split: Split) -> Node:
    """Count router, dispatch, the experts of this rank, and combination.

    Kept are the dispatched tokens, the expert intermediates, the expert
    outputs (for the gradient of the gates) and the fp32 gates.
    """
    hidden, width = model.hidden, model.mlp_hidden // split.tp
    visits, experts = model.experts_per_token, model.experts // split.ep
    inner = model.mlp_matrices - 1
    outer = split.outer_tokens
    rows = split.tokens * visits
    routed = outer * visits * hidden
    selective = (
        BF16 * (2 * routed + inner * rows * width)
        + FP32 * outer * model.experts
    )
    exchange: tuple[CollectiveCall, ...] = ()
    if split.ep > 1:
        exchange = tuple(
            CollectiveCall(
                kind="all-to-all",
                axis="ep",
                phase=phase,
                size_bytes=BF16 * routed,
                count=2,
            )
            for phase in ("forward", "backward")
        )
    region = rows if split.sequence_parallel else split.tokens
    expert_weights = experts * model.mlp_matrices * hidden * width
    if model.biases:
        expert_weights += experts * (inner * width + hidden)
    return Node(
        operators=(
            _matmul("router", outer, hidden, model.experts),
            _elementwise("dispatch", routed, 4, 4),
            _matmul("mlp up", rows, hidden, inner * width, experts),
            _activation(model, rows * width),
            _matmul("mlp down", rows, width, hidden, experts),
            _elementwise("combine", routed, 4, 6),
        ),
        collectives=(*_both_regions(split, region * hidden), *exchange),
        weights=hidden * model.experts,
        expert_weights=expert_weights,
        kept_bytes={
            "none": selective + BF16 * rows * width,
            "selective": selective,
        },
        repeated=("activation function",),
        working_bytes=BF16 * model.mlp_matrices * rows * width,
    )


def _activation(model: Architecture, values: int) -> Operator:
    """Count the activation function on ``values`` outputs.

    With a gate it reads two inputs and writes one output; backward it reads
    the gradient and both inputs and writes two gradients.
    """
    forward, backward = (6, 10) if model.gated_mlp else (4, 6)
    return _elementwise("activation function", values, forward, backward)


def _both_regions(split: Split, values: int) -> tuple[CollectiveCall, ...]:
    """Return the collectives of one tensor parallel region, both passes.

    Without sequence parallelism only leaving a region communicates: partial
    sums forward, partial gradients of its input backward.
    """
    enters = 1 if split.sequence_parallel else 0
    return _regions(
        split, values, "forward", enters=enters, leaves=1
    ) + _regions(split, values, "backward", enters=enters, leaves=1)


def _regions(
    split: Split,
    values: int,
    phase: Literal["forward", "backward"],
    *,
    enters: int,
    leaves: int,
) -> tuple[CollectiveCall, ...]:
    """Return what entering and leaving tensor parallel regions costs.

    Entering gathers, leaving sums: an all-reduce, or a reduce-scatter under
    sequence parallelism. ``values`` counts the whole tensor.
    """
    if split.tp == 1:
        return ()
    leave: CollectiveKind = (
        "reduce-scatter" if split.sequence_parallel else "all-reduce"
    )
    kinds: tuple[tuple[CollectiveKind, int], ...] = (
        ("all-gather", enters),
        (leave, leaves),
    )
    return tuple(
        CollectiveCall(
            kind=kind,
            axis="tp",
            phase=phase,
            size_bytes=BF16 * values,
            count=count,
        )
        for kind, count in kinds
        if count
    )


def _gathered(split: Split, values: int) -> int:
    """Return the bytes of a tensor that a region gathers and then drops."""
    return BF16 * values if split.outer_tokens < split.tokens else 0


def _context_collectives(
    split: Split, key_value_bytes: int
) -> tuple[CollectiveCall, ...]:
    if split.cp == 1:
        return ()
    calls: tuple[
        tuple[CollectiveKind, Literal["forward", "backward"]], ...
    ] = (
        ("all-gather", "forward"),
        ("all-gather", "backward"),
        ("reduce-scatter", "backward"),
    )
    return tuple(
        CollectiveCall(
            kind=kind, axis="cp", phase=phase, size_bytes=key_value_bytes
        )
        for kind, phase in calls
    )


def _merge(calls: tuple[CollectiveCall, ...]) -> tuple[CollectiveCall, ...]:
    """Sum the counts of calls that differ in nothing else."""
    counts: dict[CollectiveCall, int] = {}
    for call in calls:
        once = CollectiveCall(
            kind=call.kind,
            axis=call.axis,
            phase=call.phase,
            size_bytes=call.size_bytes,
        )
        counts[once] = counts.get(once, 0) + call.count
    return tuple(
        CollectiveCall(
            kind=call.kind,
            axis=call.axis,
            phase=call.phase,
            size_bytes=call.size_bytes,
            count=count,
        )
        for call, count in counts.items()
    )
