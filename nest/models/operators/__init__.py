"""Analytic operator model of transformers: FLOPs, bytes, time, memory.

Every graph node (embedding, block, head) is a list of operators on one
device under one split. An operator takes its roofline time

    max(flops / (peak · e), bytes / (hbm · e_memory))

with ``e`` from :class:`nest.hardware.calibration.Calibration`: for a matrix
product ``m × k`` by ``k × n``

    e = e_matmul · Π_{d in m, k, n} d / (d + d_half)

(small dimensions leave tensor cores idle; a dimension that is no multiple of 8 values
takes ``e_misaligned`` instead), for a fused attention kernel ``e_attention · x / (x +
x_half)`` with ``x`` blocks of 128 queries over all heads, for fp8 a fraction of its own
and casts besides; routed tokens may move more bytes than counted (docs/cost-model.md).
No operator takes less than the host needs to issue its kernels, ``kernels · host_ns``;
a pass takes the sum. A calibration with a ``host_ns`` states beside it what the host
takes to issue a pass,

    host_ns · (kernels + collective_kernels · calls of collectives),

which the pass with its collectives takes at least (docs/cost-model.md).

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
    like a dense MLP. Where ``tp`` does not cut experts, its ranks hold other
    ones, whole (Liu et al. 2025, arXiv 2504.14960, §3): ``E/(ep·tp)`` experts
    a rank, no gather or scatter, and of the ``2Ukh`` bytes ``1/ep`` stays with
    the rank's tensor group, in an all-to-all of its own.

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
    ``none``: Korthikanti et al. §4.1 and §4.2: ``34sbh + 5as²b`` for GPT-3 over ``tp``
    with sequence parallelism; a fused attention kernel replaces the second term by its
    ``4Ta/tp`` bytes of row sums. ``selective``: what takes much memory and few FLOPs is
    computed again. Unfused, the attention core, as in Korthikanti et al. §5:
    ``34sbh/tp``. Fused, that would free next to nothing; there both norms, the core and
    the activation function are computed again: ``20sbh/tp``. Software that lists
    modules may leave out the core: ``22sbh/tp`` and its row sums. ``full``: the input
    of every layer, ``2Uh``. Norms that are not fused keep 6 bytes per value more, a
    gated activation function that is not 2. Embedding and head follow the same three
    rules.

Working memory
    What the recompute choice brings back of one layer, plus the gathered
    input, plus the gradients of the MLP intermediates (of the logits in the
    head), plus the gradient of the score matrix where attention is unfused.

What operators compute
    Times here need FLOPs and bytes alone. Beside them operators state their matrix
    products, elementwise operations and the operators whose results they need, of which
    :mod:`nest.accelerators` makes schedules on the cores of an accelerator.

fp8 (Micikevicius et al. 2022, arXiv 2209.05433): the linear layers of blocks
multiply at the fp8 peak after casting their inputs; attention, router,
embedding and head stay in bf16, and so do weights and kept activations.
"""
