"""A plain decoder in PyTorch, and what training it keeps.

Written as its users would, with torchtitan's names of modules; of the project it reads
shapes of models, and no formula. Nothing here needs ``nest`` to be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from nest.models.architectures import Architecture
from nest.models.blocks import Block as Shape

#: Megatron-LM pads the vocabulary to a multiple of this times ``tp``.
ROWS = 128


class Attention(nn.Module):
    """Causal attention; as many heads as the weights have."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        own = shape.attention
        self.size = size = own.head_size
        self.wq = nn.Linear(shape.hidden, own.heads * size, bias=False)
        self.wk = nn.Linear(shape.hidden, own.kv_heads * size, bias=False)
        self.wv = nn.Linear(shape.hidden, own.kv_heads * size, bias=False)
        self.wo = nn.Linear(own.heads * size, shape.hidden, bias=False)

    def forward(self, x):
        query, key, value = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.wq, self.wk, self.wv)
        )
        result = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )
        return self.wo(result.transpose(1, 2).flatten(2))


def gate(x, y):
    return functional.silu(x) * y


class FeedForward(nn.Module):
    """A gated MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.mlp.hidden
        self.w1 = nn.Linear(shape.hidden, width, bias=False)
        self.w2 = nn.Linear(width, shape.hidden, bias=False)
        self.w3 = nn.Linear(shape.hidden, width, bias=False)
        self.gate: Callable = gate

    def forward(self, x):
        return self.w2(self.gate(self.w1(x), self.w3(x)))


class Experts(nn.Module):
    """Experts that all see every token, weighted by the router."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        count = shape.mlp.experts
        self.router = nn.Linear(shape.hidden, count, bias=False)
        self.experts = nn.ModuleList(FeedForward(shape) for _ in range(count))

    def forward(self, x):
        found = zip(self.experts, self.router(x).softmax(-1).unbind(-1), strict=False)
        return sum(expert(x) * share.unsqueeze(-1) for expert, share in found)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden)
        mlp = Experts if shape.mlp.experts else FeedForward
        self.feed_forward = mlp(shape)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    """A decoder, or the part of one that has not lost its other modules."""

    def __init__(self, model: Architecture) -> None:
        super().__init__()
        (tower,) = model.towers
        self.tok_embeddings = nn.Embedding(tower.vocabulary, tower.hidden)
        self.layers = nn.ModuleDict(
            {str(i): Block(shape) for i, shape in enumerate(tower.blocks())}
        )
        self.norm = nn.RMSNorm(tower.hidden)
        self.output = nn.Linear(tower.hidden, model.head.outputs, bias=False)

    def forward(self, x):
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.output is not None:
            x = self.output(self.norm(x))
        return x


def part_of(model: Transformer, names: Sequence[str]) -> Transformer:
    """Take all modules but the named ones out of a model."""
    for name in ("tok_embeddings", "norm", "output"):
        if name not in names:
            setattr(model, name, None)
    for number in list(model.layers):
        if f"layers.{number}" not in names:
            del model.layers[number]
    held = [name for name, _ in model.named_children() if name != "layers"]
    held += [f"layers.{number}" for number in model.layers]
    assert sorted(held) == sorted(names)
    return model


def cross_entropy(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


# What one rank holds of a part.

#: Dimension along which a matrix is cut; all else is whole on every rank.
CUTS = {"wq": 0, "wk": 0, "wv": 0, "wo": 1, "w1": 0, "w3": 0, "w2": 1}
TABLES = ("tok_embeddings", "output")


def cut(part: Transformer, tp: int, rank: int, ep: int = 1) -> Transformer:
    """Leave a rank its part of every matrix, as Megatron-LM cuts them.

    Tables are padded first; where there are fewer key and value heads than
    ranks, several ranks have the same one. Of ``ep`` ranks it is the first.
    """
    for name, module in part.named_modules():
        above, _, last = name.rpartition(".")
        if last in TABLES:
            missing = -module.weight.shape[0] % (ROWS * tp)
            whole = functional.pad(module.weight.detach(), (0, 0, 0, missing))
            module.weight = _owned(whole.chunk(tp)[rank])
        elif last in CUTS:
            whole, parts = module.weight.detach(), tp
            if last in ("wk", "wv"):
                heads = whole.shape[0] // part.get_submodule(above).size
                parts = min(tp, heads)
            module.weight = _owned(whole.chunk(parts, CUTS[last])[rank * parts // tp])
        elif last == "experts":
            del module[len(module) // ep :]
    return part


def _owned(tensor) -> nn.Parameter:
    return nn.Parameter(tensor.clone(memory_format=torch.contiguous_format))


def buckets(part: Transformer) -> list[dict[str, list]]:
    """Return weights by what shards them together: embedding, block, head.

    Experts, which have ranks of their own, are apart from what is dense.
    """
    found: dict[str, dict[str, list]] = {}
    for name, weight in part.named_parameters():
        first, *rest = name.split(".")
        if first == "layers":
            first += rest[0]
        elif first in ("norm", "output"):
            first = "head"
        kinds = found.setdefault(first, {"dense": [], "expert": []})
        kinds["expert" if "experts" in rest else "dense"].append(weight)
    return list(found.values())


# What training keeps of weights: every figure is a sum over real storages.


def size_bytes(tensors: Iterable) -> int:
    """Return the bytes of the storages behind tensors, each once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({one._cdata: one.nbytes() for one in storages}.values())


def flat_shard(tensors: Sequence, ranks: int):
    """Return what the first of some ranks keeps of a bucket of tensors.

    The bucket is padded to as many elements on every rank.
    """
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    flat = functional.pad(flat, (0, -flat.numel() % ranks))
    return flat.chunk(ranks)[0].clone()


def optimizer_tensors(weights: Sequence, make: Callable) -> list:
    """Return fp32 copies of weights and what an optimizer makes of them.

    What it keeps elsewhere does not count: counters of steps are on the host.
    """
    masters = [
        torch.nn.Parameter(weight.detach().to(torch.float32, copy=True))
        for weight in weights
    ]
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer = make(masters)
    optimizer.step()
    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.device == masters[0].device
    ]
    return masters + states


# What a layer keeps from its forward to its backward pass.


class Made(TorchDispatchMode):
    """Remembers the storages that operators make, and counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, tuple[StorageWeakRef, int]] = {}
        self.operators: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        self.operators[function.overloadpacket.__name__] += 1
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                reference = StorageWeakRef(storage)
                self.sizes[reference.cdata] = (reference, storage.nbytes())
        return found

    def alive_bytes(self, others: Iterable) -> int:
        """Return the bytes that still live, without those behind others."""
        known = {tensor.untyped_storage()._cdata for tensor in others}
        return sum(
            size
            for key, (reference, size) in self.sizes.items()
            if key not in known and not reference.expired()
        )


class Kept(NamedTuple):
    """What is kept in bytes: by living storages, and by autograd's hooks.

    ``again`` counts the operators of the backward pass.
    """

    alive_bytes: int
    hooked_bytes: int
    again: Counter[str]


def kept_by(run: Callable, leaf, known: Sequence) -> Kept:
    """Run a layer and measure what its graph keeps of its input and inside.

    Hooks see what is saved, checkpoints' inputs too, but not what a policy
    caches beside them.
    """
    hooked: dict[int, tuple[Any, int]] = {}
    own = {tensor.untyped_storage()._cdata for tensor in known}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            # Held, or a later storage could have the same address.
            hooked[storage._cdata] = (storage, storage.nbytes())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        # What comes from the stage before is no leaf: nothing else holds it.
        run(leaf * 1)
    hooked_bytes = sum(size for _, size in hooked.values())
    hooked.clear()
    with Made() as made:
        end = run(leaf * 1).sum()
        # The sum keeps the output's shape alone.
        alive_bytes = made.alive_bytes([*known, leaf, end])
        made.operators.clear()
        end.backward()
    return Kept(alive_bytes, hooked_bytes, made.operators)


def fused(block: Block) -> Block:
    """Let norms and the gate keep their inputs, as fused kernels do.

    On a CPU they are several operators that keep copies in between.
    """
    for norm in (block.attention_norm, block.ffn_norm):
        norm.forward = _again(norm.forward)
    block.feed_forward.gate = _again(gate)
    return block


def _again(function: Callable) -> Callable:
    return lambda *args: checkpoint(function, *args, use_reentrant=False)


def recomputed(run: Callable, choice: str, num_products: int) -> Callable:
    """Return a layer with recomputation.

    ``selective`` keeps the outputs of the first products with weights; all
    else, and what nothing needs, is computed again.
    """
    if choice == "none":
        return run
    if choice == "full":
        return _again(run)
    return lambda x: checkpoint(
        run, x, use_reentrant=False, context_fn=lambda: _products_kept(num_products)
    )


def _products_kept(num_products: int):
    seen = Counter[bool]()

    def policy(context, operator, *args, **kwargs):
        if operator.overloadpacket.__name__ in ("mm", "addmm"):
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] <= num_products:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.MUST_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
