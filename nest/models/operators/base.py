"""Operators on one device, and the nodes that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Literal, NamedTuple

from msgspec.structs import replace

from nest.ir.base import Struct
from nest.ir.graph import CollectiveCall
from nest.ir.plan import Recompute
from nest.units import ceil_div

#: Bytes of a value in fp16 or bf16, in fp32, and of a token id.
BF16 = 2
FP32 = 4
TOKEN_ID = 8

#: Megatron-LM pads the vocabulary to a multiple of this times ``tp``.
VOCABULARY_MULTIPLE = 128

#: Values that a matrix dimension must be a multiple of for tensor cores to
#: run at full rate: 16 bytes of 2-byte values (NVIDIA, Matrix Multiplication
#: Background User's Guide, §2.1).
ALIGNMENT = 8

#: Matrices that one thread block of Megatron-LM's fused softmax takes.
SOFTMAX_BATCHES = 4

Dtype = Literal["bf16", "fp16", "fp8"]
DTYPES: tuple[Dtype, ...] = ("bf16", "fp16", "fp8")


#: What operators that are no products compute for each value.
Operation = Literal[
    "add",
    "copy",
    "loss",
    "dropout",
    "gelu",
    "multiply",
    "multiply-add",
    "norm",
    "relu",
    "rotary",
    "routing",
    "sigmoid",
    "silu",
    "softmax",
]


class Split(Struct, frozen=True, kw_only=True):
    """How one node is split, and what one data-parallel rank feeds it."""

    #: Tensor, context and expert parallel degree.
    tp: int = 1
    cp: int = 1
    ep: int = 1
    #: 1 where tensor ranks hold whole experts, which are spread over ``ep`` of the
    #: ``dp * cp * tp`` ranks; 0 where each is cut over ``tp`` ranks.
    etp: int = 0
    #: Samples ``b`` per data-parallel rank.
    samples: int = 1
    #: Tokens ``s`` of a sample, in the node's own tower.
    sequence_length: int
    #: Whether activations between layers are also split over ``tp``.
    sequence_parallel: bool = True
    #: Tokens per sample of the tower that cross-attention reads.
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
    """How operators are run."""

    #: Of the matrix products.
    dtype: Dtype = "bf16"
    #: Whether attention is one fused kernel.
    flash_attention: bool = True
    #: Whether neighboring elementwise operators (bias with activation function, bias
    #: with dropout and residual, the steps of a norm, of rotary embedding) are one
    #: kernel each.
    fused: bool = True
    #: Whether scale, mask and softmax of an attention that is not fused are one kernel.
    fused_softmax: bool = True
    #: Matrices that a part of that kernel takes: where it does not divide their number,
    #: they are not one kernel.
    softmax_batches: int = SOFTMAX_BATCHES
    #: Whether softmax and gradient of the loss are one kernel each instead of one for
    #: every step, as in Megatron-LM up to 2023.
    fused_loss: bool = True
    #: Per logit: what is kept for the backward pass, and what else its loss takes.
    logit_bytes: int = FP32
    loss_bytes: int = BF16
    #: Whether costs say what gradients of weights take.
    split_backward: bool = False
    #: Whether costs say what activations take to the memory of the host.
    offloads: bool = False
    #: Whether tensor parallelism cuts experts too. Where not, its ranks hold other
    #: experts, whole, so that experts are spread over ``ep·tp`` ranks; needs sequence
    #: parallelism.
    expert_tp: bool = True
    #: Whether ``selective`` computes a fused attention again.
    repeat_attention: bool = True
    #: Whether ``selective`` keeps what attention and every other matrix product of a
    #: block yield, and computes all other operators again, as torchtitan does.
    selective_operators: bool = False
    #: Devices of a node where tokens are dispatched to experts once for each device of
    #: a node, and between nodes once for each node; 0 where they are for each of their
    #: experts.
    dispatch_node: int = 0
    #: Whether choosing the experts of tokens is one kernel.
    fused_router: bool = True
    #: Whether grouped products of experts apply the activation function and cast to fp8
    #: as they write.
    fused_experts: bool = False
    #: Whether recomputation is of embedding and head too, as of any layer of a plan;
    #: frameworks put checkpoints around blocks only.
    checkpointed_ends: bool = True
    #: In fp8, per weight of its products: copies that stay beside the weights in 16
    #: bits from micro-batch to micro-batch.
    weight_copy_bytes: int = 0
    #: Memory traffic per weight that adds a micro-batch's gradients to those of earlier
    #: ones, in the backward pass; 0 where the product that yields them adds them too.
    accumulation_bytes: float = 0.0


#: bf16 with flash attention and fused elementwise operators.
FUSED = Execution()


class Product(NamedTuple):
    """``batch`` matrix products, ``m × k`` by ``k × n``."""

    m: int
    k: int
    n: int
    batch: int = 1

    @property
    def flops(self) -> int:
        """FLOPs of all of them."""
        return 2 * self.m * self.k * self.n * self.batch

    @property
    def gradients(self) -> tuple[Product, Product]:
        """The products that yield the gradients of both factors."""
        return (
            Product(self.m, self.n, self.k, self.batch),
            Product(self.k, self.m, self.n, self.batch),
        )


class Operator(NamedTuple):
    """One operator on one device, forward and backward."""

    #: For people, and to say which operators are computed again.
    name: str
    #: Which efficiency applies: ``matmul``, ``attention``, or ``memory`` (elementwise,
    #: without counted FLOPs), ``routing`` where that moves tokens to experts and back.
    unit: Literal["matmul", "attention", "memory", "routing"]
    #: Work and memory traffic of the two passes.
    forward_flops: float
    forward_bytes: float
    backward_flops: float
    backward_bytes: float
    #: Kernels that the host launches.
    kernels: int = 1
    backward_kernels: int = 2
    #: ``(m, k, n)`` of one product; products of the backward pass have the same three
    #: dimensions in another order.
    shape: tuple[int, int, int] = (0, 0, 0)
    #: Whether it may run in fp8.
    low_precision: bool = False
    #: Whether fp8 needs casts apart from it.
    casts: bool = True
    #: Whether it is a product with weights: half of its backward pass is for these.
    has_weights: bool = False
    #: Products that share the rows, of one expert each.
    groups: int = 1
    #: Blocks of queries, of all heads and samples, that a fused kernel computes apart.
    blocks: float = 0.0
    #: Values of a head in such a kernel, the mean of keys and values.
    head_size: float = 0.0
    #: The matrix products that it is made of; of two backward ones the first yields the
    #: gradient of the first factor. They have its FLOPs, but where a group has a
    #: fraction of a row, or a mask of a column.
    products: tuple[Product, ...] = ()
    backward_products: tuple[Product, ...] = ()
    #: What else it computes, forward, for so many values each.
    values: int = 0
    operations: tuple[Operation, ...] = ()
    #: Names of the operators listed before it whose results it needs, those of its
    #: first factor first; ``None`` for the one before it. Of several of a name the last
    #: one before it counts.
    after: tuple[str, ...] | None = None
    #: Name of an operator before it with the same inputs; it stands for ``after``.
    same_inputs_as: str = ""


class Node(Struct, frozen=True, kw_only=True):
    """What one graph node does and holds on one device."""

    #: In forward order.
    operators: tuple[Operator, ...]
    #: Per micro-batch.
    collectives: tuple[CollectiveCall, ...] = ()
    #: Number of dense weights and of expert weights.
    weights: int = 0
    expert_weights: int = 0
    #: Activation bytes kept per micro-batch, by recompute choice (parts: no ``full``).
    kept_bytes: dict[Recompute, int]
    #: Names of the operators that ``selective`` computes again.
    repeated: tuple[str, ...] = ()
    #: What of an operator it computes again, where that is not all of it.
    repeated_shares: dict[str, float] = {}
    #: See the module docstring.
    working_bytes: int = 0
    #: Whether recomputation is of it.
    is_checkpointed: bool = True

    def share_repeated(self, name: str) -> float:
        """Return what of an operator ``selective`` computes again."""
        return self.repeated_shares.get(name, 1.0) if name in self.repeated else 0.0

    def without_checkpoint(self) -> Node:
        """Return a node that no choice recomputes."""
        kept_bytes = dict.fromkeys(self.kept_bytes, self.kept_bytes["none"])
        return replace(self, kept_bytes=kept_bytes, repeated=(), is_checkpointed=False)

    def flops(self) -> tuple[float, float]:
        """Return the forward and the backward FLOPs."""
        return (
            fsum(operator.forward_flops for operator in self.operators),
            fsum(operator.backward_flops for operator in self.operators),
        )


def dependencies(operators: Sequence[Operator]) -> list[tuple[int, ...]]:
    """Return for every operator the positions of those that it needs.

    In the order in which it states them; what comes from elsewhere has none.
    """
    last: dict[str, int] = {}
    needed: list[tuple[int, ...]] = []
    for position, operator in enumerate(operators):
        if operator.same_inputs_as:
            needed.append(needed[last[operator.same_inputs_as]])
        elif operator.after is not None:
            needed.append(tuple(last[name] for name in operator.after))
        else:
            needed.append((position - 1,) if position else ())
        last[operator.name] = position
    return needed


def results(operators: Sequence[Operator]) -> tuple[str, ...]:
    """Return the names of the operators whose results no other one needs."""
    needed = {x for after in dependencies(operators) for x in after}
    return tuple(
        operator.name
        for position, operator in enumerate(operators)
        if position not in needed
    )


def vocabulary_rows(
    vocabulary: int, tp: int, multiple: int = VOCABULARY_MULTIPLE
) -> int:
    """Return the rows of one rank of a vocabulary cut over ``tp``.

    Each rank has a multiple of ``multiple`` rows.
    """
    return ceil_div(vocabulary, multiple * tp) * multiple


def matmul(name: str, m: int, k: int, n: int, groups: int = 1) -> Operator:
    """Count ``m × k`` times ``k × n``; ``groups`` matrices share the rows.

    Backward are two products of the same size, for both gradients. The rows
    of a group are padded to the alignment.
    """
    flops = 2 * m * k * n
    size = BF16 * (m * k + groups * k * n + m * n)
    product = Product(ceil_div(m, groups), k, n, groups)
    return Operator(
        name,
        "matmul",
        flops,
        size,
        2 * flops,
        2 * size,
        kernels=groups,
        backward_kernels=2 * groups,
        shape=(m if groups == 1 else ALIGNMENT * ceil_div(m, ALIGNMENT * groups), k, n),
        has_weights=True,
        groups=groups,
        products=(product,),
        backward_products=product.gradients,
    )


def convolution(name: str, m: int, channels: int, taps: int, n: int) -> Operator:
    """Count a convolution: a product of each output with all that it sees.

    Unlike a product it reads each of the ``channels`` of its input once,
    whatever ``taps`` outputs see it.
    """
    size = BF16 * (m * channels + channels * taps * n + m * n)
    return matmul(name, m, channels * taps, n)._replace(
        forward_bytes=size, backward_bytes=2 * size
    )


def elementwise(
    name: str,
    operations: tuple[Operation, ...],
    values: int,
    forward_bytes: int,
    backward_bytes: int,
    kernels: int = 1,
    min_kernels: int = 1,
) -> Operator:
    """Count an operator bound by memory; the bytes are per value.

    The bytes are for the ``least`` number of kernels; every further one, of
    an operator that is not fused, reads and writes the values once more.
    """
    more = 2 * BF16 * (kernels - min_kernels)
    return Operator(
        name,
        "memory",
        0,
        (forward_bytes + more) * values,
        0,
        (backward_bytes + more) * values,
        kernels=kernels,
        backward_kernels=kernels,
        values=values,
        operations=operations,
    )


def norm(name: str, values: int, execution: Execution) -> Operator:
    """Count a norm: one kernel, or five where it is not fused."""
    kernels = 1 if execution.fused else 5
    return elementwise(name, ("norm",), values, 4, 6, kernels=kernels)


def linear(name: str, m: int, k: int, n: int, groups: int = 1) -> Operator:
    """Count a product of a block: one that may run in fp8."""
    return matmul(name, m, k, n, groups)._replace(low_precision=True)
