"""Analytic operator model of transformers: FLOPs, bytes, time, memory.

Every graph node (embedding, block, head) is a list of operators on one
device under one split. An operator takes its roofline time

    max(flops / (peak · e), bytes / (hbm · e_memory))

with ``e`` from :class:`nest.hardware.calibration.Calibration`: for a matrix
product ``m × k`` by ``k × n``

    e = e_matmul · Π_{d in m, k, n} d / (d + d_half)

(small dimensions leave tensor cores idle; a dimension that is no multiple of
8 values takes ``e_misaligned`` instead), for a fused attention kernel
``e_attention``. A pass of a node takes its operators' times, but at least
what the host needs to launch their kernels, ``kernels · launch_ns``; as the
host runs ahead of the device only so far, part of the launches adds to the
times even where these are longer (:func:`_pass_ns`).

Symbols, per data-parallel rank: ``b`` samples of ``s`` tokens, ``T = b·s/cp``
tokens per rank, ``U = T/tp`` under sequence parallelism and ``U = T`` without
(tokens per rank outside the tensor parallel regions), ``h`` hidden width,
``a`` heads of ``d``, ``f`` MLP width, ``V`` vocabulary, ``E`` experts of which
a token visits ``k``. Values take 2 bytes (fp16 and bf16) unless stated.

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
    of an expert MLP move ``2Tkh`` bytes. Shared experts are split over ``tp``
    like a dense MLP.

Attention
    Fused (Dao 2023, arXiv 2307.08691): half of the ``4Tsad`` FLOPs under a
    causal mask (less under a window), 2.5 times that backward, no ``s²``
    matrix in memory. Unfused: two batched products over all positions, a
    softmax and, in training with dropout, a dropout on ``as²b/tp`` values;
    both keep ``5as²b/tp`` bytes (Korthikanti et al., §4.1).
    Latent attention (DeepSeek-AI 2024, arXiv 2405.04434, §2.1) is computed
    without absorption, as in training: compressed queries and keys are
    expanded to full heads.

Activations kept per micro-batch
    ``none``: Korthikanti et al. §4.1 and §4.2: ``34sbh + 5as²b`` for GPT-3
    over ``tp`` with sequence parallelism; a fused attention kernel replaces
    the second term by its ``4Ta/tp`` bytes of row sums.
    ``selective``: what takes much memory and few FLOPs is computed again.
    Unfused, the attention core, as in Korthikanti et al. §5: ``34sbh/tp``.
    Fused, that would free next to nothing; there both norms, the core and
    the activation function are computed again: ``20sbh/tp``.
    ``full``: the input of every layer, ``2Uh``.
    Norms that are not fused keep 6 bytes per value more, a gated activation
    function that is not 2.
    Embedding and head follow the same three rules.

Working memory
    What the recompute choice brings back of one layer, plus the gathered
    input, plus the gradients of the MLP intermediates (of the logits in the
    head), plus the gradient of the score matrix where attention is unfused.

fp8 (Micikevicius et al. 2022, arXiv 2209.05433): the linear layers of blocks
multiply at the fp8 peak after casting their inputs; attention, router,
embedding and head stay in bf16, and so do weights and kept activations.
"""

from __future__ import annotations

from math import fsum
from typing import Literal, NamedTuple

from nest.errors import InvalidProblemError
from nest.hardware import Machine
from nest.hardware.calibration import Calibration
from nest.ir.base import Struct
from nest.ir.graph import (
    Activations,
    CollectiveCall,
    CollectiveKind,
    LayerCost,
)
from nest.ir.job import Optimizer
from nest.ir.plan import RECOMPUTE, Recompute
from nest.models.blocks import Attention, Block, Head, Mlp, Tower
from nest.units import ceil_div

#: Bytes of a value in fp8, in fp16 or bf16, in fp32, and of a token id.
FP8 = 1
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

#: Values that a matrix dimension must be a multiple of for tensor cores to
#: run at full rate: 16 bytes of 2-byte values (NVIDIA, Matrix Multiplication
#: Background User's Guide, §2.1).
ALIGNMENT = 8

#: Matrices that one thread block of Megatron-LM's fused softmax takes: a
#: number of matrices that this does not divide runs unfused.
SOFTMAX_BATCHES = 4

#: Bytes per value that a norm of single operators keeps besides its input
#: and output: the input in fp32, and the normalised value in 16 bits.
LOOSE_NORM_BYTES = FP32 + BF16

Dtype = Literal["bf16", "fp16", "fp8"]
DTYPES: tuple[Dtype, ...] = ("bf16", "fp16", "fp8")


class Split(Struct, frozen=True, kw_only=True):
    """How one node is split, and what one data-parallel rank feeds it.

    Attributes
    ----------
    tp, cp, ep
        Tensor, context and expert parallel degree.
    samples
        Samples ``b`` per data-parallel rank.
    sequence_length
        Tokens ``s`` of a sample, in the node's own tower.
    sequence_parallel
        Whether activations between layers are also split over ``tp``.
    source_length
        Tokens per sample of the tower that cross-attention reads.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    samples: int = 1
    sequence_length: int
    sequence_parallel: bool = True
    source_length: int = 0

    @property
    def tokens(self) -> int:
        """Tokens ``T`` of a rank inside tensor parallel regions."""
        return self.samples * self.sequence_length // self.cp

    @property
    def outer_tokens(self) -> int:
        """Tokens ``U`` of a rank outside tensor parallel regions."""
        return self.tokens // (self.tp if self.sequence_parallel else 1)


class Execution(Struct, frozen=True, kw_only=True):
    """How operators are run.

    Attributes
    ----------
    dtype
        Of the matrix products.
    flash_attention
        Whether attention is one fused kernel.
    fused
        Whether neighbouring elementwise operators (bias with activation
        function, bias with dropout and residual, the steps of a norm, of
        rotary embedding) are one kernel each.
    fused_softmax
        Whether scale, mask and softmax of an attention that is not fused are
        one kernel.
    fused_loss
        Whether softmax and gradient of the loss are one kernel each instead
        of one for every step, as in Megatron-LM up to 2023.
    """

    dtype: Dtype = "bf16"
    flash_attention: bool = True
    fused: bool = True
    fused_softmax: bool = True
    fused_loss: bool = True


#: bf16 with flash attention and fused elementwise operators.
FUSED = Execution()


class Operator(NamedTuple):
    """One operator on one device, forward and backward.

    Attributes
    ----------
    name
        For people, and to say which operators are computed again.
    unit
        Which efficiency applies: ``matmul``, ``attention``, or ``memory``
        (elementwise, without counted FLOPs).
    forward_flops, forward_bytes, backward_flops, backward_bytes
        Work and memory traffic of the two passes.
    kernels, backward_kernels
        Kernels that the host launches.
    shape
        ``(m, k, n)`` of one product; products of the backward pass have the
        same three dimensions in another order.
    low_precision
        Whether it may run in fp8.
    """

    name: str
    unit: Literal["matmul", "attention", "memory"]
    forward_flops: float
    forward_bytes: float
    backward_flops: float
    backward_bytes: float
    kernels: int = 1
    backward_kernels: int = 2
    shape: tuple[int, int, int] = (0, 0, 0)
    low_precision: bool = False


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
            fsum(operator.forward_flops for operator in self.operators),
            fsum(operator.backward_flops for operator in self.operators),
        )


def embedding_node(
    tower: Tower, split: Split, execution: Execution = FUSED
) -> Node:
    """Count the embedding of a tower: look-up or patches, positions, norm.

    The table is cut over ``tp`` by vocabulary, so the partial results are
    all-reduced, or reduce-scattered under sequence parallelism, in which case
    the backward pass gathers the gradient. A linear layer embeds patches and
    is not cut.
    """
    hidden = tower.hidden
    values = split.tokens * hidden
    outer = split.outer_tokens * hidden
    block = tower.runs[0].block
    operators = []
    weights = 0
    kept = 0
    if tower.vocabulary:
        # Read and write a row; add its gradient to the row of the table.
        operators.append(
            Operator("look-up", "memory", 0, 4 * values, 0, 6 * values)
        )
        if tower.shares_embedding is None:
            rows = _vocabulary_rows(tower.vocabulary, split.tp)
            weights += rows * hidden
        kept += TOKEN_ID * split.tokens
    if tower.patch_values:
        operators.append(
            _matmul("patches", split.outer_tokens, tower.patch_values, hidden)
        )
        weights += (tower.patch_values + 1) * hidden
        kept += BF16 * split.outer_tokens * tower.patch_values
    none = kept
    tables = tower.learned_positions + tower.token_types
    if tables:
        weights += tables * hidden
        operators.append(_elementwise("positions", outer, 6, 4))
    if tower.embedding_norm:
        weights += _norm_weights(block)
        operators.append(_norm("embedding norm", outer, execution))
        none += BF16 * outer
    if block.dropout:
        operators.append(_elementwise("dropout", outer, 5, 5))
        none += outer
    collectives: tuple[CollectiveCall, ...] = ()
    if tower.vocabulary:
        gather = 1 if split.sequence_parallel else 0
        collectives = (
            *_regions(split, values, "forward", enters=0, leaves=1),
            *_regions(split, values, "backward", enters=gather, leaves=0),
        )
    return Node(
        operators=tuple(operators),
        collectives=collectives,
        weights=weights,
        kept_bytes={"none": none, "selective": none, "full": kept},
        working_bytes=BF16 * values,
    )


def block_node(
    block: Block, split: Split, execution: Execution = FUSED
) -> Node:
    """Count one block: attention, cross-attention, dense or expert MLP."""
    hidden, tokens = block.hidden, split.tokens
    outer = split.outer_tokens * hidden
    parts = [_attention(block, block.attention, split, execution)]
    if block.cross_attention is not None:
        parts.append(
            _attention(block, block.cross_attention, split, execution)
        )
    count_mlp = _expert_mlp if block.mlp.experts else _dense_mlp
    parts.append(count_mlp(block, block.mlp, split, execution))

    mask = 1 if block.dropout else 0
    operators: list[Operator] = []
    for number, part in enumerate(parts):
        operators.append(_norm(f"norm {number + 1}", outer, execution))
        operators += part.operators
        operators.append(
            _elementwise(
                f"residual {number + 1}",
                outer,
                6 + mask,
                6 + mask,
                kernels=1 if execution.fused else 2 + mask,
            )
        )
    more_norms = block.norms - len(parts)
    operators += [
        _norm(f"output norm {number + 1}", outer, execution)
        for number in range(more_norms)
    ]
    # Inputs of all norms and the dropout masks stay; outputs of the norms
    # are cheap to compute again. A norm of an output keeps its input only.
    inputs = len(parts) * (BF16 + mask) * outer + more_norms * BF16 * outer
    none = inputs + len(parts) * BF16 * outer
    selective = inputs
    repeated = [f"norm {number + 1}" for number in range(len(parts))]
    if not execution.flash_attention:
        selective, repeated = none, []
    for part in parts:
        none += part.kept_bytes["none"]
        selective += part.kept_bytes["selective"]
        repeated += part.repeated
    if not execution.fused:
        none += block.norms * LOOSE_NORM_BYTES * outer
        selective += block.norms * LOOSE_NORM_BYTES * outer
    region = tokens * hidden * max(block.mlp.experts_per_token, 1)
    return Node(
        operators=tuple(operators),
        collectives=_merge(
            tuple(call for part in parts for call in part.collectives)
        ),
        weights=sum(part.weights for part in parts)
        + block.norms * _norm_weights(block),
        expert_weights=sum(part.expert_weights for part in parts),
        kept_bytes={
            "none": none,
            "selective": selective,
            "full": BF16 * outer,
        },
        repeated=tuple(repeated),
        working_bytes=_gathered(split, region)
        + max(part.working_bytes for part in parts),
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

    The logits are cut over ``tp`` by vocabulary and kept in fp32
    (Korthikanti et al. 2022, §4.3); the loss all-reduces three fp32 numbers
    per token. A tied matrix is held here and in the embedding, as in any
    pipeline that separates them; summing its two gradients is not counted. A
    pooled head sees one vector per sample and is not cut.

    Parameters
    ----------
    head, hidden
        The head and the width of what enters it.
    split, execution
        How it is split and run.
    norm_weights
        Weights of the final norm, ``0`` without one.
    """
    tp = 1 if head.pooled else split.tp
    tokens = split.samples if head.pooled else split.tokens
    outer = (split.samples if head.pooled else split.outer_tokens) * hidden
    rows = head.outputs if head.pooled else _vocabulary_rows(head.outputs, tp)
    logits = tokens * rows
    region = tokens * hidden
    operators = []
    weights = rows * hidden + norm_weights + (rows if head.bias else 0)
    none = selective = FP32 * logits
    if head.transform:
        rows_in = outer // hidden
        operators += [
            _matmul("transform", rows_in, hidden, hidden),
            _elementwise("transform activation", outer, 4, 6),
            _norm("transform norm", outer, execution),
        ]
        weights += hidden * hidden + 3 * hidden
        none += 3 * BF16 * outer
        selective += 2 * BF16 * outer
    if norm_weights:
        operators.append(_norm("final norm", outer, execution))
        none += BF16 * outer
    none += BF16 * outer
    selective += BF16 * outer
    operators += [
        _matmul("output layer", tokens, hidden, rows),
        _loss(logits, execution),
    ]
    collectives: tuple[CollectiveCall, ...] = ()
    if tp > 1:
        gather = 1 if split.sequence_parallel else 0
        collectives = (
            *_regions(split, region, "forward", enters=gather, leaves=0),
            CollectiveCall(
                kind="all-reduce",
                axis="tp",
                phase="forward",
                size_bytes=FP32 * tokens,
                count=3,
            ),
            *_regions(split, region, "backward", enters=0, leaves=1),
        )
    gathered = 0 if head.pooled else _gathered(split, region)
    return Node(
        operators=tuple(operators),
        collectives=collectives,
        weights=weights,
        kept_bytes={
            "none": none,
            "selective": selective,
            "full": BF16 * outer,
        },
        repeated=("final norm",) if norm_weights else (),
        working_bytes=gathered + BF16 * logits,
    )


# Time


def operator_ns(
    operator: Operator, machine: Machine, dtype: Dtype = "bf16"
) -> tuple[float, float]:
    """Return the forward and the backward roofline time in ns.

    Raises
    ------
    InvalidProblemError
        If the machine's device has no peak rate for the data type.
    """
    device, calibration = machine.device, machine.calibration
    low = dtype == "fp8" and operator.low_precision
    name = "fp8" if low else ("bf16" if dtype == "fp8" else dtype)
    peak = device.peak_flops.get(name)
    if peak is None or device.hbm_bytes_per_s is None:
        raise InvalidProblemError(
            f"dtype: expected one of {', '.join(sorted(device.peak_flops))}, "
            f"which {device.name} multiplies, got {name!r}; choose another"
        )
    flops_per_ns = peak * _fraction(operator, calibration) / 1e9
    bytes_per_ns = device.hbm_bytes_per_s * calibration.memory_fraction / 1e9
    cast = 3 * operator.forward_bytes / 2 if low else 0
    return (
        max(
            operator.forward_flops / flops_per_ns,
            operator.forward_bytes / bytes_per_ns,
        )
        + cast / bytes_per_ns,
        max(
            operator.backward_flops / flops_per_ns,
            operator.backward_bytes / bytes_per_ns,
        )
        + cast / bytes_per_ns,
    )


def _fraction(operator: Operator, calibration: Calibration) -> float:
    if operator.unit == "attention":
        return calibration.attention_fraction
    fraction = calibration.matmul_fraction
    for size in operator.shape:
        if size:
            fraction *= size / (size + calibration.matmul_half_size)
    if any(size % ALIGNMENT for size in operator.shape):
        fraction = min(fraction, calibration.misaligned_fraction)
    return fraction


def layer_cost(
    node: Node,
    split: Split,
    machine: Machine,
    execution: Execution = FUSED,
    repeat: int = 1,
) -> LayerCost:
    """Return the cost of ``repeat`` consecutive equal nodes.

    Times, weights, kept activations and collectives are ``repeat`` times
    those of one node; working memory is that of one.

    Parameters
    ----------
    node, split
        The counted node and the split it was counted for.
    machine
        Supplies rates and calibration.
    execution
        How the node was counted.
    repeat
        How many nodes are taken as one.
    """
    forward = []
    backward = []
    repeated = []
    for operator in node.operators:
        times = operator_ns(operator, machine, execution.dtype)
        forward.append((times[0], operator.kernels))
        backward.append((times[1], operator.backward_kernels))
        if operator.name in node.repeated:
            repeated.append(forward[-1])
    calibration = machine.calibration
    forward_ns = _pass_ns(forward, calibration)
    backward_ns = _pass_ns(backward, calibration)
    repeated_ns = _pass_ns(repeated, calibration)
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


def _pass_ns(
    operators: list[tuple[float, int]], calibration: Calibration
) -> float:
    """Return the time of operators, each its ns on the device and kernels.

    A host that runs ahead without limit hides its launches behind what the
    device still has to do: the larger of both sums. One that never runs
    ahead waits for each operator: the sum of the larger ones.
    """
    launch_ns = calibration.launch_ns
    ahead = max(
        fsum(time_ns for time_ns, _ in operators),
        launch_ns * sum(kernels for _, kernels in operators),
    )
    waiting = fsum(
        max(time_ns, launch_ns * kernels) for time_ns, kernels in operators
    )
    return ahead + calibration.waiting_fraction * (waiting - ahead)


# Parts of a block


def _vocabulary_rows(vocabulary: int, tp: int) -> int:
    """Return the rows of one rank of a vocabulary cut over ``tp``."""
    return ceil_div(vocabulary, VOCABULARY_MULTIPLE * tp) * VOCABULARY_MULTIPLE


def _norm_weights(block: Block) -> int:
    return block.hidden * (2 if block.layer_norm else 1)


def _matmul(
    name: str,
    m: int,
    k: int,
    n: int,
    groups: int = 1,
    low_precision: bool = False,
) -> Operator:
    """Count ``m × k`` times ``k × n``; ``groups`` matrices share the rows.

    Backward are two products of the same size, for both gradients. The rows
    of a group are padded to the alignment.
    """
    flops = 2 * m * k * n
    size = BF16 * (m * k + groups * k * n + m * n)
    return Operator(
        name,
        "matmul",
        flops,
        size,
        2 * flops,
        2 * size,
        kernels=groups,
        backward_kernels=2 * groups,
        shape=(
            m if groups == 1 else ALIGNMENT * ceil_div(m, ALIGNMENT * groups),
            k,
            n,
        ),
        low_precision=low_precision,
    )


def _elementwise(
    name: str,
    values: int,
    forward_bytes: int,
    backward_bytes: int,
    kernels: int = 1,
    least: int = 1,
) -> Operator:
    """Count an operator bound by memory; the bytes are per value.

    The bytes are for the ``least`` number of kernels; every further one, of
    an operator that is not fused, reads and writes the values once more.
    """
    more = 2 * BF16 * (kernels - least)
    return Operator(
        name,
        "memory",
        0,
        (forward_bytes + more) * values,
        0,
        (backward_bytes + more) * values,
        kernels=kernels,
        backward_kernels=kernels,
    )


def _loss(logits: int, execution: Execution) -> Operator:
    """Count softmax and cross-entropy; the bytes are per logit.

    Fused: a cast to fp32 (6) and the softmax (8), backward (8) and a cast
    back (6). Else maximum (4), subtraction, exponential and division (8
    each) and sum (4) after the cast, and two kernels more backward.
    """
    if execution.fused_loss:
        return _elementwise("loss", logits, 14, 14, kernels=2, least=2)
    return _elementwise("loss", logits, 38, 22, kernels=6, least=6)


def _norm(name: str, values: int, execution: Execution) -> Operator:
    """Count a norm: one kernel, or five where it is not fused."""
    return _elementwise(
        name, values, 4, 6, kernels=1 if execution.fused else 5
    )


def _attention(
    block: Block, shape: Attention, split: Split, execution: Execution
) -> Node:
    """Count projections, rotary embedding and core; no norm, no residual."""
    tokens, hidden = split.tokens, block.hidden
    heads = shape.heads // split.tp
    kv_heads = max(shape.kv_heads // split.tp, 1)
    value_size = shape.value_size or shape.head_size
    query, key = heads * shape.head_size, kv_heads * shape.head_size
    value = kv_heads * value_size
    output = heads * value_size
    length = split.sequence_length
    if shape.cross:
        length = split.source_length
    # Every rank of a context parallel group sees all keys and values.
    key_tokens = split.samples * length
    own_key_tokens = key_tokens // split.cp
    fp8 = True
    operators: list[Operator] = []
    weights = 0
    latent = 0
    if shape.key_value_rank:
        rank, rotary = shape.key_value_rank, shape.rotary_size
        plain = shape.head_size - rotary
        if shape.query_rank:
            operators += [
                _matmul(
                    "query down",
                    tokens,
                    hidden,
                    shape.query_rank,
                    low_precision=fp8,
                ),
                _norm("query norm", tokens * shape.query_rank, execution),
                _matmul(
                    "query up",
                    tokens,
                    shape.query_rank,
                    query,
                    low_precision=fp8,
                ),
            ]
            weights += shape.query_rank * (hidden + 1 + query)
            latent += shape.query_rank
        else:
            operators.append(
                _matmul("query", tokens, hidden, query, low_precision=fp8)
            )
            weights += hidden * query
        operators += [
            _matmul(
                "key value down",
                tokens,
                hidden,
                rank + rotary,
                low_precision=fp8,
            ),
            _norm("key value norm", tokens * rank, execution),
            _matmul(
                "key value up",
                tokens,
                rank,
                kv_heads * (plain + value_size),
                low_precision=fp8,
            ),
        ]
        weights += hidden * (rank + rotary) + rank
        weights += rank * kv_heads * (plain + value_size)
        latent += rank + rotary
    elif shape.cross:
        operators += [
            _matmul("query", tokens, hidden, query, low_precision=fp8),
            _matmul(
                "key value",
                own_key_tokens,
                hidden,
                key + value,
                low_precision=fp8,
            ),
        ]
        weights += hidden * (query + key + value)
    else:
        operators.append(
            _matmul(
                "qkv", tokens, hidden, query + key + value, low_precision=fp8
            )
        )
        weights += hidden * (query + key + value)
    if shape.biases:
        weights += query + key + value
    if shape.query_key_norm:
        operators.append(
            _norm("query key norm", tokens * (query + key), execution)
        )
        weights += 2 * shape.head_size
    if shape.rotary:
        operators.append(
            _elementwise(
                "rotary",
                tokens * (query + key),
                4,
                4,
                kernels=1 if execution.fused else 6,
            )
        )
    core = _core(
        shape,
        heads,
        split,
        length,
        (query, key, value, output),
        execution,
        block.dropout,
    )
    operators += core.operators
    operators.append(
        _matmul("attention output", tokens, output, hidden, low_precision=fp8)
    )
    weights += output * hidden + (hidden if shape.output_bias else 0)
    inputs = BF16 * (
        tokens * (query + latent) + own_key_tokens * (key + value)
    )
    if shape.query_key_norm:
        inputs += BF16 * tokens * (query + key)
    return Node(
        operators=tuple(operators),
        collectives=(
            *_both_regions(split, tokens * hidden),
            *_context_collectives(split, BF16 * key_tokens * (key + value)),
        ),
        weights=weights,
        kept_bytes={
            "none": inputs + core.kept_bytes["none"],
            "selective": inputs + core.kept_bytes["selective"],
        },
        repeated=core.repeated,
        working_bytes=core.working_bytes,
    )


def _core(
    shape: Attention,
    heads: int,
    split: Split,
    length: int,
    widths: tuple[int, int, int, int],
    execution: Execution,
    dropout: bool,
) -> Node:
    """Count the attention core, fused or not.

    ``length`` are the tokens per sample that it attends to; ``widths`` those
    of query, key, value and output of one rank.
    """
    query, key, value, output = widths
    tokens = split.tokens
    key_tokens = split.samples * length
    value_size = shape.value_size or shape.head_size
    if execution.flash_attention:
        seen = float(length)
        if shape.window and shape.window < length:
            seen = float(shape.window)
        elif shape.causal and not shape.cross:
            seen = length / 2
        flops = 2 * tokens * seen * (query + output)
        # Read Q, K, V, write O; backward reads these and dO, and writes dQ,
        # dK, dV.
        moved = tokens * (query + output) + key_tokens * (key + value)
        return Node(
            operators=(
                Operator(
                    "attention core",
                    "attention",
                    flops,
                    BF16 * moved,
                    ATTENTION_BACKWARD * flops,
                    BF16 * (2 * moved),
                    backward_kernels=3,
                ),
            ),
            collectives=(),
            weights=0,
            kept_bytes={
                "none": BF16 * tokens * output + FP32 * tokens * heads,
                "selective": 0,
            },
            repeated=("attention core",),
            working_bytes=0,
        )
    batches = split.samples * heads
    rows = tokens // split.samples
    scores = batches * rows * length
    mask = 1 if dropout else 0
    one_kernel = execution.fused_softmax and batches % SOFTMAX_BATCHES == 0

    def product(name: str, k: int, n: int) -> Operator:
        flops = 2 * batches * rows * k * n
        size = BF16 * batches * (rows * k + k * n + rows * n)
        return Operator(
            name,
            "matmul",
            flops,
            size,
            2 * flops,
            2 * size,
            shape=(rows, k, n),
        )

    operators = [
        product("scores", shape.head_size, length),
        _elementwise("softmax", scores, 4, 6, kernels=1 if one_kernel else 5),
    ]
    if dropout:
        operators.append(_elementwise("attention dropout", scores, 5, 5))
    operators.append(product("context", length, value_size))
    return Node(
        operators=tuple(operators),
        collectives=(),
        weights=0,
        # Output of the softmax, of the dropout, and its mask; the input of
        # the output projection stays under selective recomputation too.
        kept_bytes={
            "none": BF16 * tokens * output
            + (BF16 + (BF16 + 1) * mask) * scores,
            "selective": BF16 * tokens * output,
        },
        repeated=tuple(operator.name for operator in operators),
        working_bytes=2 * BF16 * scores,
    )


def _dense_mlp(
    block: Block, shape: Mlp, split: Split, execution: Execution
) -> Node:
    """Count the products and the activation function of a dense MLP."""
    tokens, hidden = split.tokens, block.hidden
    width = shape.hidden // split.tp
    matrices = 3 if shape.gated else 2
    inner = matrices - 1
    weights = matrices * hidden * width
    if shape.biases:
        weights += inner * width + hidden
    none = BF16 * matrices * tokens * width
    loose = 0
    if shape.gated and not execution.fused:
        # The activated gate, before it is multiplied.
        loose = BF16 * tokens * width
    return Node(
        operators=(
            _matmul(
                "mlp up", tokens, hidden, inner * width, low_precision=True
            ),
            _activation(shape, tokens * width, execution),
            _matmul("mlp down", tokens, width, hidden, low_precision=True),
        ),
        collectives=_both_regions(split, tokens * hidden),
        weights=weights,
        kept_bytes={
            "none": none + loose,
            "selective": BF16 * inner * tokens * width
            if execution.flash_attention
            else none + loose,
        },
        repeated=("activation function",) if execution.flash_attention else (),
        working_bytes=BF16 * matrices * tokens * width,
    )


def _expert_mlp(
    block: Block, shape: Mlp, split: Split, execution: Execution
) -> Node:
    """Count router, dispatch, experts of this rank, shared experts, sum.

    Kept are the dispatched tokens, the expert intermediates, the expert
    outputs (for the gradient of the gates) and the fp32 gates.
    """
    hidden, width = block.hidden, shape.hidden // split.tp
    visits, experts = shape.experts_per_token, shape.experts // split.ep
    matrices = 3 if shape.gated else 2
    inner = matrices - 1
    outer = split.outer_tokens
    rows = split.tokens * visits
    routed = outer * visits * hidden
    fused = execution.flash_attention
    selective = (
        BF16 * (2 * routed + inner * rows * width)
        + FP32 * outer * shape.experts
    )
    none = selective + BF16 * rows * width
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
    expert_weights = experts * matrices * hidden * width
    if shape.biases:
        expert_weights += experts * (inner * width + hidden)
    weights = hidden * shape.experts
    operators = [
        _matmul("router", outer, hidden, shape.experts),
        _elementwise("dispatch", routed, 4, 4, kernels=4, least=4),
        _matmul(
            "mlp up", rows, hidden, inner * width, experts, low_precision=True
        ),
        _activation(shape, rows * width, execution),
        _matmul("mlp down", rows, width, hidden, experts, low_precision=True),
        _elementwise("combine", routed, 4, 6, kernels=2, least=2),
    ]
    working = BF16 * matrices * rows * width
    if shape.shared_hidden:
        shared = Mlp(
            hidden=shape.shared_hidden, gated=shape.gated, biases=shape.biases
        )
        part = _dense_mlp(block, shared, split, execution)
        operators += [
            part.operators[0]._replace(name="shared up"),
            part.operators[1],
            part.operators[2]._replace(name="shared down"),
        ]
        weights += part.weights
        none += part.kept_bytes["none"]
        selective += part.kept_bytes["selective"]
    return Node(
        operators=tuple(operators),
        collectives=(*_both_regions(split, region * hidden), *exchange),
        weights=weights,
        expert_weights=expert_weights,
        kept_bytes={"none": none, "selective": selective if fused else none},
        repeated=("activation function",) if fused else (),
        working_bytes=working,
    )


def _activation(shape: Mlp, values: int, execution: Execution) -> Operator:
    """Count the activation function on ``values`` outputs.

    With a gate it reads two inputs and writes one output; backward it reads
    the gradient and both inputs and writes two gradients.
    """
    forward, backward = (6, 10) if shape.gated else (4, 6)
    return _elementwise(
        "activation function",
        values,
        forward,
        backward,
        kernels=1 if execution.fused else 2,
    )


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
