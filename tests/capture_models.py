"""Models as users write them, to be captured: tiny ones, and of a billion parameters.

A factory returns a module and its example inputs; the module returns a scalar loss.
:data:`KINDS` has both factories of each kind, and the blocks that repeat in it. The
file needs nothing but PyTorch, since commands are given its path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


def text(vocabulary: int, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and labels."""
    return (
        torch.randint(0, vocabulary, (batch, length)),
        torch.randint(0, vocabulary, (batch, length)),
    )


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


# A GPT: fused projections, learned positions, dropout, tied embeddings.


class FusedAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (
            y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.out(y.transpose(1, 2).reshape(b, t, c)))


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = FusedAttention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, depth, heads, context, dropout=0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            GPTBlock(width, heads, dropout) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, labels):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        return token_loss(self.head(self.norm(x)), labels)


def gpt():
    return GPT(96, 32, 4, 4, 16), text(96, 4, 16)


def gpt_big():
    return GPT(50_304, 2_048, 24, 16, 1_024), text(50_304, 2, 1_024)


def gpt_dropout():
    return GPT(96, 32, 4, 4, 16, dropout=0.1), text(96, 4, 16)


def gpt_dropout_big():
    return GPT(50_304, 1_920, 24, 15, 512, dropout=0.1), text(50_304, 2, 512)


# A Llama: rotary positions, grouped queries, gated linear units.


class Rotary(nn.Module):
    def __init__(self, size: int, context: int) -> None:
        super().__init__()
        steps = torch.arange(0, size, 2).float() / size
        angles = torch.outer(torch.arange(context).float(), 10_000.0**-steps)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(turned, dim=-1)


class GroupedAttention(nn.Module):
    """Attention of grouped queries, over the whole past or a window of it."""

    def __init__(self, width, heads, groups, context, window=None) -> None:
        super().__init__()
        self.size = width // heads
        self.window = window
        self.q = nn.Linear(width, heads * self.size, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.o = nn.Linear(heads * self.size, width, bias=False)
        self.rotary = Rotary(self.size, context)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.rotary(self.q(x).view(b, t, -1, self.size).transpose(1, 2))
        k = self.rotary(self.k(x).view(b, t, -1, self.size).transpose(1, 2))
        v = self.v(x).view(b, t, -1, self.size).transpose(1, 2)
        repeats = q.shape[1] // k.shape[1]
        k, v = (y.repeat_interleave(repeats, dim=1) for y in (k, v))
        if self.window is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            distance = torch.arange(t, device=x.device)
            distance = distance[:, None] - distance[None, :]
            hidden = (distance < 0) | (distance >= self.window)
            scores = q @ k.transpose(-2, -1) / self.size**0.5
            y = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1) @ v
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class GatedMLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, groups, inner, context, window=None) -> None:
        super().__init__()
        self.input_norm = nn.RMSNorm(width, eps=1e-6)
        self.attention = GroupedAttention(width, heads, groups, context, window)
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.mlp = GatedMLP(width, inner)

    def forward(self, x):
        x = x + self.attention(self.input_norm(x))
        return x + self.mlp(self.norm(x))


class Llama(nn.Module):
    def __init__(
        self, vocabulary, width, depth, heads, groups, inner, context, windows=(None,)
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            LlamaBlock(width, heads, groups, inner, context, windows[i % len(windows)])
            for i in range(depth)
        )
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return token_loss(self.lm_head(self.norm(x)), labels)


def llama():
    return Llama(96, 32, 4, 4, 2, 64, 16), text(96, 4, 16)


def llama_big():
    model = Llama(32_000, 4_096, 32, 32, 32, 11_008, 2_048)
    return model, text(32_000, 1, 2_048)


def sliding():
    """Three layers with a window for each one without."""
    windows = (4, 4, 4, None)
    return Llama(96, 32, 8, 4, 1, 64, 16, windows), text(96, 4, 16)


def sliding_big():
    windows = (128, 128, 128, None)
    model = Llama(64_000, 2_048, 24, 16, 4, 5_632, 512, windows)
    return model, text(64_000, 2, 512)


# Latent attention: queries, keys and values from narrow vectors.


class LatentAttention(nn.Module):
    def __init__(self, width, heads, latent, plain, rotary, context) -> None:
        super().__init__()
        self.heads, self.plain, self.turned = heads, plain, rotary
        self.q_down = nn.Linear(width, latent, bias=False)
        self.q_norm = nn.RMSNorm(latent, eps=1e-6)
        self.q_up = nn.Linear(latent, heads * (plain + rotary), bias=False)
        self.kv_down = nn.Linear(width, latent + rotary, bias=False)
        self.kv_norm = nn.RMSNorm(latent, eps=1e-6)
        self.kv_up = nn.Linear(latent, heads * 2 * plain, bias=False)
        self.out = nn.Linear(heads * plain, width, bias=False)
        self.rotary = Rotary(rotary, context)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_up(self.q_norm(self.q_down(x)))
        q = q.view(b, t, self.heads, -1).transpose(1, 2)
        q_plain, q_turned = q.split([self.plain, self.turned], dim=-1)
        down = self.kv_down(x)
        latent, k_turned = down[..., : -self.turned], down[..., -self.turned :]
        kv = self.kv_up(self.kv_norm(latent)).view(b, t, self.heads, -1)
        k_plain, v = kv.transpose(1, 2).chunk(2, dim=-1)
        k_turned = self.rotary(k_turned[:, None]).expand(-1, self.heads, -1, -1)
        q = torch.cat([q_plain, self.rotary(q_turned)], dim=-1)
        k = torch.cat([k_plain, k_turned], dim=-1)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        y = torch.einsum("bhqk,bhkd->bqhd", weights, v)
        return self.out(y.flatten(2))


class LatentBlock(nn.Module):
    def __init__(self, width, heads, latent, plain, rotary, inner, context) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width, eps=1e-6)
        self.attention = LatentAttention(width, heads, latent, plain, rotary, context)
        self.norm2 = nn.RMSNorm(width, eps=1e-6)
        self.mlp = GatedMLP(width, inner)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Latent(nn.Module):
    def __init__(self, vocabulary, width, depth, *sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.decoder = nn.Sequential(
            *(LatentBlock(width, *sizes) for _ in range(depth))
        )
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.unembed = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, labels):
        x = self.decoder(self.embed(tokens))
        return token_loss(self.unembed(self.norm(x)), labels)


def latent():
    return Latent(96, 32, 4, 4, 12, 8, 4, 64, 16), text(96, 4, 16)


def latent_big():
    model = Latent(50_000, 2_048, 20, 16, 512, 128, 64, 8_192, 1_024)
    return model, text(50_000, 2, 1_024)


# Experts by einsum: every token is sent by a product with one-hot matrices.


class EinsumExperts(nn.Module):
    def __init__(self, width, inner, experts, top) -> None:
        super().__init__()
        self.experts, self.top = experts, top
        self.router = nn.Linear(width, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, width, inner) * 0.02)
        self.w2 = nn.Parameter(torch.randn(experts, inner, width) * 0.02)

    def forward(self, x):
        """Return the result and the loss that balances the experts."""
        shares = self.router(x).softmax(dim=-1)
        weights, chosen = shares.topk(self.top, dim=-1)
        sent = F.one_hot(chosen, self.experts).to(x.dtype)
        combined = torch.einsum("btk,btke->bte", weights, sent)
        capacity = x.shape[1] * self.top // self.experts
        mask = sent.sum(2)
        place = ((mask.cumsum(1) - 1) * mask).long().clamp(max=capacity - 1)
        slots = F.one_hot(place, capacity).to(x.dtype) * mask[..., None]
        inputs = torch.einsum("btec,btd->becd", slots, x)
        inner = F.gelu(torch.einsum("becd,edf->becf", inputs, self.w1))
        outputs = torch.einsum("becf,efd->becd", inner, self.w2)
        y = torch.einsum("bte,btec,becd->btd", combined, slots, outputs)
        balance = (shares.mean((0, 1)) * mask.mean((0, 1))).sum() * self.experts
        return y, balance


class EinsumBlock(nn.Module):
    def __init__(self, width, heads, inner, experts, top, context) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = GroupedAttention(width, heads, heads, context)
        self.norm2 = nn.LayerNorm(width)
        self.experts = EinsumExperts(width, inner, experts, top)

    def forward(self, x, balance):
        x = x + self.attention(self.norm1(x))
        y, own = self.experts(self.norm2(x))
        return x + y, balance + own


class EinsumMoE(nn.Module):
    def __init__(self, vocabulary, width, depth, heads, inner, experts, context):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            EinsumBlock(width, heads, inner, experts, 2, context) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        balance = torch.zeros((), device=x.device)
        for block in self.blocks:
            x, balance = block(x, balance)
        return token_loss(self.head(self.norm(x)), labels) + 0.01 * balance


def moe_einsum():
    return EinsumMoE(96, 32, 3, 4, 48, 4, 16), text(96, 4, 16)


def moe_einsum_big():
    model = EinsumMoE(32_000, 1_024, 12, 16, 4_096, 16, 512)
    return model, text(32_000, 2, 512)


# Experts by index: each expert takes the tokens that fit it best.


class IndexExperts(nn.Module):
    def __init__(self, width, inner, experts) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(GatedMLP(width, inner) for _ in range(experts))
        self.shared = GatedMLP(width, inner)

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        shares = self.router(flat).sigmoid()
        weights, rows = shares.topk(2 * len(flat) // len(self.experts), dim=0)
        y = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            made = expert(flat[rows[:, i]]) * weights[:, i, None]
            y = y.index_add(0, rows[:, i], made)
        return (y + self.shared(flat)).view_as(x)


class IndexBlock(nn.Module):
    def __init__(self, width, heads, groups, context, mlp) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width, eps=1e-6)
        self.attention = GroupedAttention(width, heads, groups, context)
        self.norm2 = nn.RMSNorm(width, eps=1e-6)
        self.mlp = mlp

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class IndexMoE(nn.Module):
    """The first layer is dense, as in DeepSeek's models."""

    def __init__(self, vocabulary, width, depth, heads, inner, experts, context):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleDict(
            {
                f"layer{i}": IndexBlock(
                    width,
                    heads,
                    heads // 2,
                    context,
                    IndexExperts(width, inner, experts)
                    if i
                    else GatedMLP(width, 4 * inner),
                )
                for i in range(depth)
            }
        )
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return token_loss(self.head(self.norm(x)), labels)


def moe_index():
    return IndexMoE(96, 32, 4, 4, 24, 4, 16), text(96, 4, 16)


def moe_index_big():
    model = IndexMoE(32_000, 1_024, 8, 16, 2_048, 24, 512)
    return model, text(32_000, 2, 512)


# State space: a short convolution, and a recurrence as one masked product.


class StateSpaceMixer(nn.Module):
    def __init__(self, width, heads, state) -> None:
        super().__init__()
        self.inner, self.heads, self.state = 2 * width, heads, state
        channels = self.inner + 2 * state
        self.input = nn.Linear(width, self.inner + channels + heads, bias=False)
        self.conv = nn.Conv1d(channels, channels, 4, padding=3, groups=channels)
        self.rate = nn.Parameter(torch.zeros(heads))
        self.step = nn.Parameter(torch.zeros(heads))
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = nn.RMSNorm(self.inner, eps=1e-6)
        self.output = nn.Linear(self.inner, width, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        gate, mixed, step = self.input(x).split(
            [self.inner, self.inner + 2 * self.state, self.heads], dim=-1
        )
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., :t]).transpose(1, 2)
        u, into, out = mixed.split([self.inner, self.state, self.state], dim=-1)
        u = u.view(b, t, self.heads, -1)
        step = F.softplus(step + self.step)
        decay = (-torch.exp(self.rate) * step).cumsum(dim=1).transpose(1, 2)
        # The decay between each two positions, and nothing from the future.
        between = decay[..., :, None] - decay[..., None, :]
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        mask = between.masked_fill(future, float("-inf")).exp()
        scores = (out @ into.transpose(1, 2))[:, None] * mask
        y = torch.einsum("bhts,bshd->bthd", scores, u * step[..., None])
        y = (y + self.skip[:, None] * u).flatten(2)
        return self.output(self.norm(y * F.silu(gate)))


class ConvMixer(nn.Module):
    """A gated short convolution, as in LFM2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 3 * width, bias=False)
        self.conv = nn.Conv1d(width, width, 3, padding=2, groups=width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x):
        gate, out_gate, y = self.input(x).chunk(3, dim=-1)
        y = self.conv((gate * y).transpose(1, 2))[..., : x.shape[1]]
        return self.output(out_gate * y.transpose(1, 2))


class MixerBlock(nn.Module):
    def __init__(self, width, mixer, mlp=None) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.mixer = mixer
        self.mlp = mlp
        if mlp is not None:
            self.mlp_norm = nn.RMSNorm(width, eps=1e-6)

    def forward(self, x):
        x = x + self.mixer(self.norm(x))
        return x if self.mlp is None else x + self.mlp(self.mlp_norm(x))


class MixerModel(nn.Module):
    def __init__(self, vocabulary, width, blocks) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.backbone = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(width, eps=1e-6)

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        for block in self.backbone:
            x = block(x)
        return token_loss(F.linear(self.norm(x), self.embed.weight), labels)


def state_space():
    blocks = (MixerBlock(32, StateSpaceMixer(32, 4, 8)) for _ in range(4))
    return MixerModel(96, 32, blocks), text(96, 4, 16)


def state_space_big():
    blocks = (MixerBlock(2_048, StateSpaceMixer(2_048, 64, 128)) for _ in range(40))
    return MixerModel(50_304, 2_048, blocks), text(50_304, 2, 256)


def short_conv():
    """Two convolutions for each attention."""
    blocks = (
        MixerBlock(
            32,
            GroupedAttention(32, 4, 2, 16) if i % 3 == 2 else ConvMixer(32),
            GatedMLP(32, 64),
        )
        for i in range(6)
    )
    return MixerModel(96, 32, blocks), text(96, 4, 16)


def short_conv_big():
    blocks = (
        MixerBlock(
            2_048,
            GroupedAttention(2_048, 32, 8, 1_024) if i % 3 == 2 else ConvMixer(2_048),
            GatedMLP(2_048, 8_192),
        )
        for i in range(18)
    )
    return MixerModel(65_536, 2_048, blocks), text(65_536, 2, 1_024)


# An encoder and a decoder, of PyTorch's own layers; inputs in a nested dictionary.


class Translator(nn.Module):
    def __init__(self, vocabulary, width, depth, heads, context) -> None:
        super().__init__()
        layer = {
            "d_model": width,
            "nhead": heads,
            "dim_feedforward": 4 * width,
            "dropout": 0.0,
            "batch_first": True,
            "norm_first": True,
        }
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(**layer) for _ in range(depth)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(**layer) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, batch):
        source, target = batch["source"]["tokens"], batch["target"]["tokens"]
        memory = self.embed(source) + self.positions[: source.shape[1]]
        for layer in self.encoder:
            memory = layer(memory)
        x = self.embed(target) + self.positions[: target.shape[1]]
        t = target.shape[1]
        future = torch.full((t, t), float("-inf"), device=x.device).triu(1)
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=future)
        logits = self.norm(x) @ self.embed.weight.T
        return token_loss(logits, batch["target"]["labels"])


def pairs(vocabulary: int, batch: int, source: int, target: int):
    tokens, labels = text(vocabulary, batch, target)
    return (
        {
            "source": {"tokens": torch.randint(0, vocabulary, (batch, source))},
            "target": {"tokens": tokens, "labels": labels},
        },
    )


def encoder_decoder():
    return Translator(96, 32, 3, 4, 24), pairs(96, 4, 24, 12)


def encoder_decoder_big():
    return Translator(32_000, 1_536, 16, 16, 512), pairs(32_000, 2, 512, 256)


# An encoder with a padding mask; inputs in a dictionary.


class BertBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.dense1 = nn.Linear(width, 4 * width)
        self.dense2 = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x, mask):
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.query(x), self.key(x), self.value(x))
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(x + self.output(y.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.dense2(F.gelu(self.dense1(x))))


class Bert(nn.Module):
    def __init__(self, vocabulary, width, depth, heads, context) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layer = nn.ModuleList(BertBlock(width, heads) for _ in range(depth))
        self.transform = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)
        )
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, batch):
        ids = batch["ids"]
        places = torch.arange(ids.size(1), device=ids.device)
        x = self.words(ids) + self.positions(places) + self.kinds(batch["kinds"])
        x = self.norm(x)
        for layer in self.layer:
            x = layer(x, batch["mask"])
        scores = F.linear(self.transform(x), self.words.weight, self.bias)
        return token_loss(scores, batch["labels"])


def masked_text(vocabulary: int, batch: int, length: int):
    ids, labels = text(vocabulary, batch, length)
    return (
        {
            "ids": ids,
            "kinds": torch.randint(0, 2, (batch, length)),
            "mask": torch.ones(batch, 1, 1, length, dtype=torch.bool),
            "labels": labels,
        },
    )


def bert():
    return Bert(96, 32, 4, 4, 16), masked_text(96, 4, 16)


def bert_big():
    return Bert(30_522, 1_536, 36, 24, 512), masked_text(30_522, 2, 512)


# Images: a vision transformer, a residual network, a U-Net, a mixer, a denoiser.


class ViTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, image, patch, width, depth, heads, classes) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        count = (image // patch) ** 2 + 1
        self.positions = nn.Parameter(torch.zeros(1, count, width))
        self.encoder = nn.Sequential(*(ViTBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images, classes):
        x = self.patches(images).flatten(2).transpose(1, 2)
        token = self.token.expand(len(images), -1, -1)
        x = self.encoder(torch.cat([token, x], dim=1) + self.positions)
        return F.cross_entropy(self.head(self.norm(x[:, 0])), classes)


def pictures(batch: int, image: int, classes: int):
    return torch.randn(batch, 3, image, image), torch.randint(0, classes, (batch,))


def vit():
    return ViT(16, 4, 32, 4, 4, 10), pictures(4, 16, 10)


def vit_big():
    return ViT(224, 14, 1_664, 32, 16, 1_000), pictures(2, 224, 1_000)


class Bottleneck(nn.Module):
    def __init__(self, channels, width, out, stride, groups=1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(
            width, width, 3, stride, padding=1, groups=groups, bias=False
        )
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.down = None
        if stride != 1 or channels != out:
            self.down = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, width, depths, classes, groups=1, expansion=4) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        channels = width
        for i, depth in enumerate(depths):
            inner = width * 2**i
            blocks = []
            for j in range(depth):
                stride = 2 if i and not j else 1
                blocks.append(
                    Bottleneck(channels, inner, inner * expansion, stride, groups)
                )
                channels = inner * expansion
            setattr(self, f"stage{i + 1}", nn.Sequential(*blocks))
        self.stages = len(depths)
        self.fc = nn.Linear(channels, classes)

    def forward(self, images, classes):
        x = self.stem(images)
        for i in range(self.stages):
            x = getattr(self, f"stage{i + 1}")(x)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return F.cross_entropy(self.fc(x), classes)


def resnet():
    return ResNet(16, (3, 3), 10, groups=2), pictures(4, 32, 10)


def resnet_big():
    return ResNet(384, (3, 8, 24, 3), 1_000, groups=2), pictures(2, 224, 1_000)


class UNetBlock(nn.Module):
    def __init__(self, channels, out, time) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, channels)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2 = nn.GroupNorm(8, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class UNet(nn.Module):
    def __init__(self, width, multipliers, blocks=2) -> None:
        super().__init__()
        self.width = width
        time = 4 * width
        self.time = nn.Sequential(
            nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time)
        )
        self.input = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        widths = [width * m for m in multipliers]
        channels, kept = width, []
        for wide in widths:
            level = nn.ModuleList()
            for _ in range(blocks):
                level.append(UNetBlock(channels, wide, time))
                channels = wide
                kept.append(channels)
            self.down.append(level)
            self.shrink.append(nn.Conv2d(channels, channels, 3, 2, padding=1))
        self.middle = UNetBlock(channels, channels, time)
        for wide in reversed(widths):
            self.grow.append(nn.ConvTranspose2d(channels, channels, 2, 2))
            level = nn.ModuleList()
            for _ in range(blocks):
                level.append(UNetBlock(channels + kept.pop(), wide, time))
                channels = wide
            self.up.append(level)
        self.output = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, images, steps, noise):
        rates = torch.arange(self.width // 2, device=images.device) / self.width
        angles = steps[:, None] * 10_000.0**-rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x = self.input(images + noise)
        kept = []
        for level, shrink in zip(self.down, self.shrink, strict=True):
            for block in level:
                x = block(x, time)
                kept.append(x)
            x = shrink(x)
        x = self.middle(x, time)
        for level, grow in zip(self.up, self.grow, strict=True):
            x = grow(x)
            for block in level:
                x = block(torch.cat([x, kept.pop()], dim=1), time)
        return F.mse_loss(self.output(x), noise)


def noisy(batch: int, image: int):
    shape = (batch, 3, image, image)
    return torch.randn(shape), torch.rand(batch), torch.randn(shape)


def unet():
    return UNet(16, (1, 2)), noisy(4, 16)


def unet_big():
    return UNet(576, (1, 2, 3, 4)), noisy(2, 64)


class Mixer(nn.Module):
    """A layer of an MLP mixer, with functions that write into their inputs."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.mix1 = nn.Linear(patches, 2 * patches)
        self.mix2 = nn.Linear(2 * patches, patches)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        y = F.relu(self.mix1(self.norm1(x).transpose(1, 2)), inplace=True)
        x = self.mix2(y).transpose(1, 2).add_(x)
        y = self.fc1(self.norm2(x)).relu_()
        return self.fc2(y).add_(x)


class MLPMixer(nn.Module):
    def __init__(self, image, patch, width, depth, classes) -> None:
        super().__init__()
        self.patch = patch
        self.stem = nn.Linear(3 * patch * patch, width)
        self.layers = nn.Sequential(
            *(Mixer((image // patch) ** 2, width) for _ in range(depth))
        )
        self.head = nn.Linear(width, classes)

    def forward(self, batch):
        images = batch["image"]
        b, c, h, w = images.shape
        p = self.patch
        x = images.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5)
        x = self.layers(self.stem(x.flatten(3).flatten(1, 2)))
        return F.cross_entropy(self.head(x.mean(1)), batch["class"])


def mixer():
    images, classes = pictures(4, 16, 10)
    return MLPMixer(16, 4, 32, 4, 10), ({"image": images, "class": classes},)


def mixer_big():
    images, classes = pictures(2, 224, 1_000)
    inputs = ({"image": images, "class": classes},)
    return MLPMixer(224, 16, 2_048, 32, 1_000), inputs


class DiTBlock(nn.Module):
    """A block whose norms are scaled and moved by what conditions it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = FusedHeads(width, heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        made = self.modulation(c)[:, None].chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = made
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class FusedHeads(nn.Module):
    """Fused projections that are cut by heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class DiT(nn.Module):
    def __init__(self, image, patch, width, depth, heads, classes) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros((image // patch) ** 2, width))
        self.label = nn.Embedding(classes, width)
        self.step = nn.Sequential(nn.Linear(1, width), nn.SiLU())
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, 4 * patch * patch)
        self.fold = nn.PixelShuffle(patch)

    def forward(self, images, steps, labels, noise):
        c = self.step(steps[:, None]) + self.label(labels)
        x = self.patches(images)
        side = x.shape[-1]
        x = x.flatten(2).mT + self.positions
        for block in self.blocks:
            x = block(x, c)
        x = self.output(self.norm(x)).mT.unflatten(2, (side, side))
        return F.mse_loss(self.fold(x), noise)


def conditioned(batch: int, image: int, classes: int):
    shape = (batch, 4, image, image)
    steps, labels = torch.rand(batch), torch.randint(0, classes, (batch,))
    return torch.randn(shape), steps, labels, torch.randn(shape)


def dit():
    return DiT(8, 2, 32, 4, 4, 10), conditioned(4, 8, 10)


def dit_big():
    return DiT(32, 2, 1_536, 28, 16, 1_000), conditioned(2, 32, 1_000)


# Recommendations: tables of unlike sizes, crosses of features.


class Cross(nn.Module):
    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width)

    def forward(self, x, first):
        return first * self.up(self.down(x)) + x


class DLRM(nn.Module):
    def __init__(self, rows, width, dense, inner, crosses) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, width) for n in rows)
        self.bottom = nn.Sequential(
            nn.Linear(dense, inner), nn.ReLU(), nn.Linear(inner, width), nn.ReLU()
        )
        features = len(rows) + 1
        pairs = features * (features - 1) // 2
        whole = width + pairs
        self.crosses = nn.ModuleList(Cross(whole, inner) for _ in range(crosses))
        self.top = nn.Sequential(nn.Linear(whole, inner), nn.ReLU())
        self.click = nn.Linear(inner, 1)

    def forward(self, dense, sparse, clicks):
        x = self.bottom(dense)
        looked_up = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([x, *looked_up], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        n = features.shape[1]
        i, j = torch.tril_indices(n, n, offset=-1, device=x.device)
        first = torch.cat([x, products[:, i, j]], dim=1)
        x = first
        for cross in self.crosses:
            x = cross(x, first)
        scores = self.click(self.top(x)).squeeze(1)
        return F.binary_cross_entropy_with_logits(scores, clicks)


def clicks(batch: int, dense: int, rows, bag: int):
    sparse = torch.randint(0, min(rows), (batch, len(rows), bag))
    return torch.randn(batch, dense), sparse, torch.rand(batch)


def dlrm():
    rows = (50, 20, 70, 30)
    return DLRM(rows, 16, 8, 32, 3), clicks(8, 8, rows, 3)


def dlrm_big():
    rows = tuple(200_000 * (i % 6 + 1) for i in range(26))
    return DLRM(rows, 128, 13, 512, 4), clicks(2_048, 13, rows, 4)


# Two towers and a loss over the pairs of a batch.


class Tower(nn.Module):
    def __init__(self, width, depth, heads, out) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(GPTBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, out, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return F.normalize(self.project(self.norm(x).mean(1)), dim=-1)


class CLIP(nn.Module):
    def __init__(self, image, patch, vocabulary, widths, depths, heads, out) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, widths[0], patch, stride=patch)
        self.vision = Tower(widths[0], depths[0], heads, out)
        self.words = nn.Embedding(vocabulary, widths[1])
        self.language = Tower(widths[1], depths[1], heads, out)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, tokens):
        seen = self.vision(self.patches(images).flatten(2).transpose(1, 2))
        said = self.language(self.words(tokens))
        scores = seen @ said.T * self.scale.exp()
        right = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2


def two_towers():
    model = CLIP(16, 4, 96, (32, 24), (3, 2), 4, 16)
    return model, (torch.randn(4, 3, 16, 16), torch.randint(0, 96, (4, 8)))


def two_towers_big():
    model = CLIP(224, 14, 49_408, (1_664, 1_024), (28, 20), 16, 1_024)
    images = torch.randn(8, 3, 224, 224)
    return model, (images, torch.randint(0, 49_408, (8, 77)))


# One block that runs again and again.


class Reused(nn.Module):
    def __init__(self, vocabulary, narrow, width, heads, times) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, narrow)
        self.widen = nn.Linear(narrow, width)
        self.block = GPTBlock(width, heads)
        self.times = times
        self.narrow = nn.Linear(width, narrow)

    def forward(self, tokens, labels):
        x = self.widen(self.words(tokens))
        for _ in range(self.times):
            x = self.block(x)
        return token_loss(self.narrow(x) @ self.words.weight.t(), labels)


def reused():
    return Reused(96, 16, 32, 4, 4), text(96, 4, 16)


def reused_big():
    return Reused(30_000, 128, 9_216, 72, 8), text(30_000, 2, 256)


# Layers of unlike widths.


class Tapered(nn.Module):
    """Heads and inner sizes grow from layer to layer, as in OpenELM."""

    def __init__(self, vocabulary, width, size, heads, inners, context) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.stack = nn.ModuleList(
            TaperedBlock(width, size, n, inner, context)
            for n, inner in zip(heads, inners, strict=True)
        )
        self.norm = nn.RMSNorm(width, eps=1e-6)

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        for layer in self.stack:
            x = layer(x)
        return token_loss(self.norm(x) @ self.embed.weight.T, labels)


class TaperedBlock(nn.Module):
    def __init__(self, width, size, heads, inner, context) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width, eps=1e-6)
        self.attention = GroupedAttention(size * heads, heads, heads, context)
        self.into = nn.Linear(width, size * heads, bias=False)
        self.back = nn.Linear(size * heads, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=1e-6)
        self.mlp = GatedMLP(width, inner)

    def forward(self, x):
        x = x + self.back(self.attention(self.into(self.norm1(x))))
        return x + self.mlp(self.norm2(x))


def unlike_widths():
    model = Tapered(96, 32, 8, (2, 2, 3, 4), (32, 48, 64, 80), 16)
    return model, text(96, 4, 16)


def unlike_widths_big():
    heads = [8 + i // 2 for i in range(24)]
    inners = [2_048 + 256 * i for i in range(24)]
    model = Tapered(32_000, 2_048, 128, heads, inners, 512)
    return model, text(32_000, 2, 512)


# Heads beside the last one.


class Branching(nn.Module):
    """A head in the middle, and one for the token after the next."""

    def __init__(self, vocabulary, width, depth, heads, context) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.trunk = nn.ModuleList(
            LlamaBlock(width, heads, heads // 2, 3 * width, context)
            for _ in range(depth)
        )
        self.middle = nn.Linear(width, vocabulary, bias=False)
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.next = nn.Linear(width, vocabulary, bias=False)
        self.after = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        losses = []
        for i, layer in enumerate(self.trunk, 1):
            x = layer(x)
            if 2 * i == len(self.trunk):
                losses.append(token_loss(self.middle(x), labels))
        x = self.norm(x)
        losses.append(token_loss(self.next(x), labels))
        losses.append(token_loss(self.after(x)[:, :-1], labels[:, 1:]))
        return losses[1] + 0.3 * losses[0] + 0.5 * losses[2]


def heads_beside():
    return Branching(96, 32, 4, 4, 16), text(96, 4, 16)


def heads_beside_big():
    return Branching(32_000, 2_048, 20, 16, 512), text(32_000, 2, 512)


# Attention and units side by side, with one key for all queries and linear biases.


class ParallelBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm = nn.LayerNorm(width, bias=False)
        # Queries, one key, one value and both halves of the gated unit at once.
        self.sizes = [width, self.size, self.size, 4 * width, 4 * width]
        self.wide = nn.Linear(width, sum(self.sizes), bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, bias):
        b, t, c = x.shape
        q, k, v, gate, up = self.wide(self.norm(x)).split(self.sizes, dim=-1)
        q = q.view(b, t, self.heads, self.size).transpose(1, 2)
        scores = torch.matmul(q, k.unsqueeze(1).transpose(-1, -2)).mul_(self.size**-0.5)
        weights = torch.softmax(scores + bias, dim=-1)
        y = torch.matmul(weights, v.unsqueeze(1)).transpose(1, 2).reshape(b, t, c)
        return x + self.attention_out(y) + self.mlp_out(F.gelu(gate) * up)


class Parallel(nn.Module):
    def __init__(self, vocabulary, width, depth, heads) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.transformer = nn.ModuleDict(
            {"h": nn.ModuleList(ParallelBlock(width, heads) for _ in range(depth))}
        )
        slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes)
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, tokens, labels):
        t = tokens.shape[1]
        places = torch.arange(t, device=tokens.device)
        distance = (places[None] - places[:, None]).float()
        bias = distance * self.slopes[:, None, None]
        bias = bias.masked_fill(distance > 0, float("-inf"))
        x = self.embed(tokens)
        for block in self.transformer["h"]:
            x = block(x, bias)
        return token_loss(self.norm(x) @ self.embed.weight.T, labels)


def parallel():
    return Parallel(96, 32, 4, 4), text(96, 4, 16)


def parallel_big():
    return Parallel(65_024, 2_048, 20, 16), text(65_024, 2, 512)


# Audio: convolutions with growing holes, and a recurrent network.


class Dilated(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.conv = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.skip = nn.Conv1d(width, width, 1)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x):
        y = self.conv(F.pad(x, (self.dilation, 0)))
        y = F.glu(y, dim=1)
        return x + self.out(y), self.skip(y)


class WaveNet(nn.Module):
    def __init__(self, values, width, dilations) -> None:
        super().__init__()
        self.embed = nn.Embedding(values, width)
        self.convs = nn.ModuleList(Dilated(width, d) for d in dilations)
        self.out = nn.Sequential(
            nn.ReLU(),
            nn.Conv1d(width, width, 1),
            nn.ReLU(inplace=True),
            nn.Conv1d(width, values, 1),
        )

    def forward(self, sound, labels):
        x = self.embed(sound).transpose(1, 2)
        total = torch.zeros_like(x)
        for conv in self.convs:
            x, skip = conv(x)
            total += skip
        return F.cross_entropy(self.out(total), labels)


def wavenet():
    return WaveNet(64, 32, (1, 2, 4, 8)), text(64, 4, 32)


def wavenet_big():
    return WaveNet(256, 2_816, [2**i for i in range(8)] * 3), text(256, 2, 1_024)


class Kind(NamedTuple):
    """A kind of model: its factories, and the paths of the blocks that repeat."""

    tiny: Callable[[], Any]
    big: Callable[[], Any]
    tiny_blocks: list[str]
    big_blocks: list[str]
    #: Number of calls of each block.
    calls: int = 1
    #: Of the big one.
    big_calls: int = 1


def numbered(path: str, *counts: int) -> list[str]:
    """Return the paths of so many modules of a list, or of each of several lists."""
    return [
        f"{path.format(i)}.{j}" for i, count in enumerate(counts) for j in range(count)
    ]


def _plain(
    tiny: Callable[[], Any], big: Callable[[], Any], path: str, few: int, many: int
) -> Kind:
    return Kind(tiny, big, numbered(path, few), numbered(path, many))


KINDS = {
    "gpt": _plain(gpt, gpt_big, "blocks", 4, 24),
    "gpt_dropout": _plain(gpt_dropout, gpt_dropout_big, "blocks", 4, 24),
    "llama": _plain(llama, llama_big, "layers", 4, 32),
    "sliding": _plain(sliding, sliding_big, "layers", 8, 24),
    "latent": _plain(latent, latent_big, "decoder", 4, 20),
    "moe_einsum": _plain(moe_einsum, moe_einsum_big, "blocks", 3, 12),
    "moe_index": Kind(
        moe_index,
        moe_index_big,
        [f"layers.layer{i}" for i in range(4)],
        [f"layers.layer{i}" for i in range(8)],
    ),
    "state_space": _plain(state_space, state_space_big, "backbone", 4, 40),
    "short_conv": _plain(short_conv, short_conv_big, "backbone", 6, 18),
    "encoder_decoder": Kind(
        encoder_decoder,
        encoder_decoder_big,
        numbered("encoder", 3) + numbered("decoder", 3),
        numbered("encoder", 16) + numbered("decoder", 16),
    ),
    "bert": _plain(bert, bert_big, "layer", 4, 36),
    "vit": _plain(vit, vit_big, "encoder", 4, 32),
    "resnet": Kind(
        resnet,
        resnet_big,
        numbered("stage1", 3) + numbered("stage2", 3),
        [
            *numbered("stage1", 3),
            *numbered("stage2", 8),
            *numbered("stage3", 24),
            *numbered("stage4", 3),
        ],
    ),
    "unet": Kind(
        unet,
        unet_big,
        [*numbered("down.{}", 2, 2), "middle", *numbered("up.{}", 2, 2)],
        [*numbered("down.{}", 2, 2, 2, 2), "middle", *numbered("up.{}", 2, 2, 2, 2)],
    ),
    "mixer": _plain(mixer, mixer_big, "layers", 4, 32),
    "dit": _plain(dit, dit_big, "blocks", 4, 28),
    "dlrm": _plain(dlrm, dlrm_big, "crosses", 3, 4),
    "two_towers": Kind(
        two_towers,
        two_towers_big,
        numbered("vision.blocks", 3) + numbered("language.blocks", 2),
        numbered("vision.blocks", 28) + numbered("language.blocks", 20),
    ),
    "reused": Kind(reused, reused_big, ["block"], ["block"], 4, 8),
    "unlike_widths": _plain(unlike_widths, unlike_widths_big, "stack", 4, 24),
    "heads_beside": _plain(heads_beside, heads_beside_big, "trunk", 4, 20),
    "parallel": _plain(parallel, parallel_big, "transformer.h", 4, 20),
    "wavenet": _plain(wavenet, wavenet_big, "convs", 4, 24),
}

#: Trained parameters of the tiny model and of the big one, tied ones once.
PARAMETERS = {
    "gpt": (54_464, 1_313_722_368),
    "gpt_dropout": (54_464, 1_159_852_800),
    "llama": (43_296, 6_738_415_616),
    "sliding": (76_320, 1_344_374_784),
    "latent": (44_160, 1_413_388_288),
    "moe_einsum": (56_128, 1_726_728_192),
    "moe_index": (62_880, 1_217_061_888),
    "state_space": (32_272, 1_136_995_840),
    "short_conv": (63_264, 1_304_578_048),
    "encoder_decoder": (92_992, 1_107_692_544),
    "bert": (55_744, 1_070_003_514),
    "vit": (53_354, 1_067_026_024),
    "resnet": (60_186, 1_213_693_288),
    "unet": (179_395, 1_245_422_019),
    "mixer": (40_106, 1_082_891_624),
    "dit": (77_680, 1_191_716_368),
    "dlrm": (9_503, 2_229_483_005),
    "two_towers": (57_441, 1_237_211_009),
    "reused": (15_312, 1_025_544_320),
    "unlike_widths": (38_944, 1_277_003_776),
    "heads_beside": (61_728, 1_268_860_928),
    "parallel": (62_624, 1_318_103_040),
    "wavenet": (30_304, 1_151_544_320),
}
