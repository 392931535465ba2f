"""Layers in PyTorch: the shard of one rank, without communication.

Shapes come from :mod:`nest.models.blocks` and are split as
:mod:`nest.models.operators` counts them. What other ranks would send
stands in a buffer that is there before the layer runs, so that neither its
transfer nor its memory is measured with the layer.

Symbols: ``b`` samples of ``s`` tokens, ``u = s/tp`` under sequence
parallelism and ``u = s`` without, ``h`` hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from nest.models.blocks import Attention, Block, Head, Mlp, Tower
from nest.models.operators.base import Split, vocabulary_rows

Tensor = Any
Layer = Callable[[Tensor], Tensor]
Projection = Callable[[Tensor], tuple[Tensor, ...]]

#: Base of the rotary angles (Su et al. 2021, arXiv 2104.09864).
ROTARY_BASE = 10000.0

#: Of values that dropout zeroes; its time does not depend on it.
DROPOUT = 0.1


@dataclass
class Shard:
    """Where the tensors of one rank live, and those that outlive a pass.

    ``split`` says how the layer is split. ``weights`` has every weight made so far, and
    ``buffers`` what no pass makes: what other ranks send, rotary angles.
    """

    split: Split
    device: Any
    dtype: Any
    weights: list[Tensor] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)

    @property
    def gathers(self) -> bool:
        """Whether activations between layers are split over ``tp``."""
        return self.split.sequence_parallel and self.split.tp > 1

    @property
    def outer_length(self) -> int:
        """Tokens ``u`` per sample outside tensor parallel regions."""
        return self.split.sequence_length // (self.split.tp if self.gathers else 1)

    def weight(self, *shape: int) -> Tensor:
        """Make a weight whose products keep the size of their input."""
        values = torch.empty(shape, device=self.device, dtype=self.dtype)
        values.normal_(std=shape[-1] ** -0.5)
        self.weights.append(values.requires_grad_())
        return values

    def values(self, *shape: int) -> Tensor:
        """Make an activation of unit variance."""
        values = torch.empty(shape, device=self.device, dtype=self.dtype)
        return values.normal_()

    def buffer(self, *shape: int) -> Tensor:
        """Make a tensor that stands for what other ranks send."""
        values = self.values(*shape)
        self.buffers.append(values)
        return values


class RunnableLayer(NamedTuple):
    """A layer that is ready to run: its shard, what enters it, its pass."""

    shard: Shard
    inputs: tuple[Tensor, ...]
    forward: Callable[..., Tensor]


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """Hand out the whole of a tensor of which this rank has a shard.

    Forward returns ``whole``, of which the shard has ``length`` along
    dimension ``dim``; the shard is what backward would gather again, so it is
    kept. Backward passes on its part of the gradient, as reduce-scatter does.
    """

    @staticmethod
    def forward(
        ctx: Any, shard: Tensor, whole: Tensor, dim: int, length: int
    ) -> Tensor:
        ctx.save_for_backward(shard)
        ctx.dim, ctx.length = dim, length
        return whole.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient.narrow(ctx.dim, 0, ctx.length), None, None, None


class _Scatter(torch.autograd.Function):  # type: ignore[misc]
    """Keep this rank's part of a sum; the reverse of :class:`_Gather`."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, whole: Tensor, dim: int, length: int
    ) -> Tensor:
        ctx.whole = whole
        return values.detach().narrow(dim, 0, length)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.whole.detach(), None, None, None


def _exchange(shard: Shard, function: Any, width: int, rows: int = 0) -> Layer:
    """Return what gathers ``b × u × width`` to ``b × s × width``, or back.

    With ``rows``, ``rows/tp × width`` to ``rows × width``.
    """
    if not shard.gathers:
        return lambda x: x
    split = shard.split
    if rows:
        dim, whole = 0, shard.buffer(rows, width)
    else:
        length = split.sequence_length
        dim, whole = 1, shard.buffer(split.samples, length, width)
    share = whole.shape[dim] // split.tp
    return lambda x: function.apply(x, whole, dim, share)


def _region(shard: Shard, width: int, inner: Layer, rows: int = 0) -> Layer:
    """Return a layer that is split over ``tp``, as its neighbors see it."""
    return _chain(
        _exchange(shard, _Gather, width, rows),
        inner,
        _exchange(shard, _Scatter, width, rows),
    )


def _chain(*layers: Layer) -> Layer:
    def run(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return run


def _linear(shard: Shard, inputs: int, outputs: int, bias: bool) -> Layer:
    weight = shard.weight(outputs, inputs)
    offset = shard.weight(outputs) if bias else None
    return lambda x: functional.linear(x, weight, offset)


def _norm(shard: Shard, width: int, layer_norm: bool) -> Layer:
    weight = shard.weight(width)
    if layer_norm:
        offset = shard.weight(width)
        return lambda x: functional.layer_norm(x, (width,), weight, offset)
    return lambda x: functional.rms_norm(x, (width,), weight)


def _rotary(shard: Shard, size: int) -> Layer:
    """Return what rotates ``b × heads × s × size`` by position."""
    length = shard.split.sequence_length
    frequencies = ROTARY_BASE ** (-torch.arange(0, size, 2, device=shard.device) / size)
    angles = torch.outer(torch.arange(length, device=shard.device), frequencies).repeat(
        1, 2
    )
    cosine, sine = angles.cos().to(shard.dtype), angles.sin().to(shard.dtype)
    shard.buffers += [cosine, sine]

    def rotate(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-second, first), dim=-1) * sine

    return rotate


def _core(shard: Shard, shape: Attention) -> Callable[..., Tensor]:
    """Return attention on ``b × heads × s × size`` tensors.

    A window shorter than the sequence takes an explicit mask, which PyTorch
    computes all positions for.
    """
    length = shard.split.sequence_length
    causal = shape.causal and not shape.cross
    mask = None
    if shape.window and shape.window < length and not shape.cross:
        position = torch.arange(length, device=shard.device)
        distance = position[:, None] - position[None, :]
        mask = distance.abs() < shape.window
        if causal:
            mask &= distance >= 0
        shard.buffers.append(mask)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=causal and mask is None,
            enable_gqa=query.shape[1] != key.shape[1],
        )

    return attend


def _attention(shard: Shard, block: Block, shape: Attention) -> Layer:
    """Return attention from gathered input to partial sums of its output."""
    heads = shape.heads // shard.split.tp
    size = shape.head_size
    if shape.key_value_rank:
        project = _latent_projection(shard, block, shape, heads)
    else:
        project = _projection(shard, block, shape, heads)
    normalize: list[Layer] = []
    if shape.query_key_norm:
        normalize = [_norm(shard, size, False) for _ in range(2)]
    rotate = _rotary(shard, size) if shape.rotary and not shape.key_value_rank else None
    core = _core(shard, shape)
    width = heads * (shape.value_size or size)
    output = _linear(shard, width, block.hidden, shape.output_bias)

    def run(x: Tensor) -> Tensor:
        query, key, value = project(x)
        if normalize:
            query, key = normalize[0](query), normalize[1](key)
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        if rotate is not None:
            query, key = rotate(query), rotate(key)
        result = core(query, key, value).transpose(1, 2)
        return output(result.flatten(2))

    return run


def _projection(shard: Shard, block: Block, shape: Attention, heads: int) -> Projection:
    """Return what makes ``b × s × heads × size`` of Q, K and V.

    All of the input by one product, or K and V of the tower that cross-attention reads.
    """
    split, hidden, size = shard.split, block.hidden, shape.head_size
    kv_heads = max(shape.kv_heads // split.tp, 1)
    counts = (heads, kv_heads, kv_heads)
    sizes = (size, size, shape.value_size or size)
    widths = [count * width for count, width in zip(counts, sizes, strict=True)]
    if shape.cross:
        # Kept once by the tower that makes it, so no weight and no
        # activation of this layer; its gradient is computed.
        source = shard.buffer(split.samples, split.source_length, hidden)
        source.requires_grad_()
        of_input = _linear(shard, hidden, widths[0], shape.biases)
        of_source = _linear(shard, hidden, sum(widths[1:]), shape.biases)
    else:
        linear = _linear(shard, hidden, sum(widths), shape.biases)

    def project(x: Tensor) -> tuple[Tensor, ...]:
        if shape.cross:
            columns = (of_input(x), *of_source(source).split(widths[1:], -1))
        else:
            columns = linear(x).split(widths, -1)
        return tuple(
            values.unflatten(-1, (count, width))
            for values, count, width in zip(columns, counts, sizes, strict=True)
        )

    return project


def _latent_projection(
    shard: Shard, block: Block, shape: Attention, heads: int
) -> Projection:
    """Return Q, K, V of multi-head latent attention, expanded to heads.

    DeepSeek-AI 2024, arXiv 2405.04434, §2.1: queries (where compressed) and keys and
    values pass through a low rank; one rotated key is shared by all heads.
    """
    size, rotary = shape.head_size, shape.rotary_size
    plain = size - rotary
    value_size = shape.value_size or size
    rank = shape.key_value_rank
    if shape.query_rank:
        down = _linear(shard, block.hidden, shape.query_rank, shape.biases)
        norm = _norm(shard, shape.query_rank, False)
        up = _linear(shard, shape.query_rank, heads * size, False)
        make_query = _chain(down, norm, up)
    else:
        make_query = _linear(shard, block.hidden, heads * size, shape.biases)
    compress = _linear(shard, block.hidden, rank + rotary, shape.biases)
    normalize = _norm(shard, rank, False)
    expand = _linear(shard, rank, heads * (plain + value_size), False)
    rotate = _rotary(shard, rotary)

    def turn(x: Tensor) -> Tensor:
        return rotate(x.transpose(1, 2)).transpose(1, 2)

    def project(x: Tensor) -> tuple[Tensor, ...]:
        query = make_query(x).unflatten(-1, (heads, size))
        fixed, turned = query.split((plain, rotary), dim=-1)
        latent, shared = compress(x).split((rank, rotary), dim=-1)
        key, value = (
            expand(normalize(latent))
            .unflatten(-1, (heads, plain + value_size))
            .split((plain, value_size), dim=-1)
        )
        shared = turn(shared.unsqueeze(2)).expand(-1, -1, heads, -1)
        return (
            torch.cat((fixed, turn(turned)), dim=-1),
            torch.cat((key, shared), dim=-1),
            value,
        )

    return project


def _dense_mlp(shard: Shard, hidden: int, width: int, shape: Mlp) -> Layer:
    """Return an MLP of ``width`` inner columns on this rank."""
    up = _linear(shard, hidden, width * (2 if shape.gated else 1), shape.biases)
    down = _linear(shard, width, hidden, shape.biases)

    def run(x: Tensor) -> Tensor:
        inner = up(x)
        if shape.gated:
            gate, value = inner.chunk(2, dim=-1)
            return down(functional.silu(gate) * value)
        return down(functional.gelu(inner, approximate="tanh"))

    return run


def _expert_mlp(shard: Shard, block: Block) -> Layer:
    """Return router, dispatch, experts of this rank one by one, and sum.

    Input and output are ``b × u × h``. Every expert gets the same number of
    tokens, whatever the router says; with expert parallelism this rank's
    experts get as many rows as it sends.
    """
    shape, split = block.mlp, shard.split
    hidden, visits = block.hidden, shape.experts_per_token
    width = shape.hidden // split.tp
    outer = split.samples * shard.outer_length
    router = _linear(shard, hidden, shape.experts, False)
    experts = [
        _dense_mlp(shard, hidden, width, shape)
        for _ in range(shape.experts // split.ep)
    ]
    # Slot j of token i goes to row order⁻¹[i, j]; neighbors in the rows are
    # tokens far apart, as after a real dispatch.
    order = torch.arange(outer * visits, device=shard.device)
    order = order.view(outer, visits).t().flatten()
    token, inverse = order // visits, order.argsort()
    shard.buffers += [token, inverse]

    def run_experts(dispatched: Tensor) -> Tensor:
        pieces = dispatched.tensor_split(len(experts))
        pairs = zip(experts, pieces, strict=True)
        return torch.cat([expert(piece) for expert, piece in pairs])

    rows = split.samples * split.sequence_length * visits
    routed = _region(shard, hidden, run_experts, rows)
    shared: Layer | None = None
    if shape.shared_hidden:
        width = shape.shared_hidden // split.tp
        mlp = _dense_mlp(shard, hidden, width, shape)
        shared = _region(shard, hidden, mlp)

    def run(x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores = router(tokens).float().softmax(dim=-1)
        gates = scores.topk(visits, dim=-1).values.to(x.dtype)
        returned = routed(tokens.index_select(0, token))
        combined = returned.index_select(0, inverse).view(outer, visits, hidden)
        out = (combined * gates.unsqueeze(-1)).sum(dim=1).view_as(x)
        return out if shared is None else out + shared(x)

    return run


def build_part(
    shard: Shard, shape: Tower | Block | Head, tower: Tower
) -> RunnableLayer:
    """Build a layer of a tower; ``shape`` is the tower for its embedding.

    The shard has nothing in it yet.
    """
    match shape:
        case Tower():
            return _embedding(shard, tower)
        case Block():
            return _block(shard, shape)
        case Head():
            return _head(shard, shape, tower)


def _block(shard: Shard, block: Block) -> RunnableLayer:
    split, hidden = shard.split, block.hidden
    layers = [
        _region(shard, hidden, _attention(shard, block, attention))
        for attention in (block.attention, block.cross_attention)
        if attention is not None
    ]
    if block.mlp.experts:
        layers.append(_expert_mlp(shard, block))
    else:
        width = block.mlp.hidden // split.tp
        mlp = _dense_mlp(shard, hidden, width, block.mlp)
        layers.append(_region(shard, hidden, mlp))
    norms = [_norm(shard, hidden, block.layer_norm) for _ in range(block.norms)]
    output_norms = norms[len(layers) :]

    def forward(x: Tensor) -> Tensor:
        for index, layer in enumerate(layers):
            result = layer(norms[index](x))
            if index < len(output_norms):
                result = output_norms[index](result)
            if block.dropout:
                result = functional.dropout(result, DROPOUT)
            x = x + result
        return x

    inputs = shard.values(split.samples, shard.outer_length, hidden)
    return RunnableLayer(shard, (inputs.requires_grad_(),), forward)


def _embedding(shard: Shard, tower: Tower) -> RunnableLayer:
    """Build the embedding of a tower: tokens or patches, positions, norm."""
    split, hidden = shard.split, tower.hidden
    samples, outer = split.samples, shard.outer_length
    block = tower.runs[0].block
    layers: list[Layer] = []
    if tower.vocabulary:
        rows = vocabulary_rows(tower.vocabulary, split.tp, tower.row_multiple)
        table = shard.weight(rows, hidden)
        if tower.shares_embedding is not None:
            shard.weights.pop()
            shard.buffers.append(table)
        inputs = torch.randint(
            rows, (samples, split.sequence_length), device=shard.device
        )
        leave = _exchange(shard, _Scatter, hidden)
        layers.append(lambda x: leave(functional.embedding(x, table)))
    else:
        inputs = shard.values(samples, outer, tower.patch_values)
        layers.append(_linear(shard, tower.patch_values, hidden, True))
    for count in (tower.learned_positions, tower.token_types):
        if count:
            layers.append(_added_rows(shard, count, hidden))
    if tower.embedding_norm:
        layers.append(_norm(shard, hidden, block.layer_norm))
    if block.dropout:
        layers.append(lambda x: functional.dropout(x, DROPOUT))

    return RunnableLayer(shard, (inputs,), _chain(*layers))


def _added_rows(shard: Shard, count: int, hidden: int) -> Layer:
    """Return what adds row ``i mod count`` of a table to token ``i``."""
    table = shard.weight(count, hidden)
    index = torch.arange(shard.outer_length, device=shard.device) % count
    shard.buffers.append(index)
    return lambda x: x + functional.embedding(index, table)


def _head(shard: Shard, head: Head, tower: Tower) -> RunnableLayer:
    """Build final norm, output layer and mean cross-entropy in fp32.

    A rank has its rows of the vocabulary; the sums over the others are not
    communicated.
    """
    split = shard.split
    samples = split.samples
    outer = 1 if head.pooled else shard.outer_length
    rows = head.outputs
    if not head.pooled:
        rows = vocabulary_rows(head.outputs, split.tp, head.row_multiple)
    hidden = tower.hidden
    layers: list[Layer] = []
    if tower.final_norm:
        layers.append(_norm(shard, hidden, tower.runs[-1].block.layer_norm))
    if head.transform:
        layers += [
            _linear(shard, hidden, hidden, True),
            functional.gelu,
            _norm(shard, hidden, True),
        ]
    if not head.pooled:
        layers.append(_exchange(shard, _Gather, hidden))
    layers.append(_linear(shard, hidden, rows, head.bias))
    tokens = samples * (1 if head.pooled else split.sequence_length)
    targets = torch.randint(rows, (tokens,), device=shard.device)
    shard.buffers.append(targets)

    logits = _chain(*layers)

    def forward(x: Tensor) -> Tensor:
        return functional.cross_entropy(logits(x).flatten(0, 1).float(), targets)

    inputs = shard.values(samples, outer, hidden).requires_grad_()
    return RunnableLayer(shard, (inputs,), forward)
