"""Architectures: towers of blocks and a head, their weights and FLOPs.

The zoo of published ones is :mod:`nest.models.zoo`; this module counts.
Counts come from shapes alone and are exact, so that they can be compared
with what a model's authors print.
"""

from __future__ import annotations

from collections.abc import Iterator

from nest.ir.base import Struct
from nest.models.blocks import Attention, Block, Head, Mlp, Tower


class Architecture(Struct, frozen=True, kw_only=True):
    """Shape of a whole model.

    Attributes
    ----------
    name, source
        Keyword, and the publication that gives the shape.
    note
        Where the shape departs from the source, what ``left_out`` counts.
    towers, head
        Its parts; a tower that reads another comes after it.
    max_sequence
        Longest sequence in training, in tokens, of the towers that have no
        length of their own.
    published_parameters, published_unit
        Number of weights as the source prints it, ``0`` where unknown, and
        the value of its last printed digit (1 where it prints all).
    left_out
        Weights in the published number that shapes cannot express.
    """

    name: str
    source: str = ""
    note: str = ""
    towers: tuple[Tower, ...]
    head: Head
    max_sequence: int
    published_parameters: int = 0
    published_unit: int = 1
    left_out: int = 0

    @property
    def layers(self) -> int:
        """Number of blocks of all towers."""
        return sum(tower.layers for tower in self.towers)

    @property
    def parameters(self) -> int:
        """Weights of the whole model; a shared matrix counts once."""
        return sum(
            embedding_weights(tower)
            + final_norm_weights(tower)
            + sum(map(block_weights, tower.blocks()))
            for tower in self.towers
        ) + sum(
            head_weights(self.head, tower.hidden)
            for tower in head_towers(self)
        )

    @property
    def active_parameters(self) -> int:
        """Weights that one token visits: all but the other experts."""
        idle = 0
        for block in blocks(self):
            mlp = block.mlp
            if mlp.experts:
                visited = mlp.experts_per_token
                idle += (mlp.experts - visited) * expert_weights(block)
        return self.parameters - idle

    def lengths(self, sequence_length: int) -> dict[str, int]:
        """Return the tokens per sample of every tower, by its name.

        Parameters
        ----------
        sequence_length
            Tokens of the towers that have no length of their own.
        """
        return {
            tower.name: sequence_length
            if tower.sequence_length is None
            else tower.sequence_length
            for tower in self.towers
        }

    def model_flops(self, sequence_length: int) -> int:
        """Return forward and backward FLOPs of one sample, for MFU.

        A product with a matrix of ``n`` weights takes ``2 n`` FLOPs per
        token, the attention core ``2 s a (d + d_value)`` (two products with
        all ``s`` positions, or all in the window, as if there were no causal
        mask), the backward pass twice the forward pass. Of the experts, only
        the ones a token visits count. For GPT-3 this is ``72 L s h² (1 +
        s/6h + V/12hL)``, appendix A of Korthikanti et al. 2022 (arXiv
        2205.05198); Megatron-LM, PaLM and most reports quote MFU this way.

        Parameters
        ----------
        sequence_length
            Tokens of the sample, for towers without a length of their own.
        """
        lengths = self.lengths(sequence_length)
        forward = 0
        for tower in self.towers:
            tokens = lengths[tower.name]
            source = lengths.get(tower.reads or "", 0) if tower.reads else 0
            forward += 2 * tokens * tower.patch_values * tower.hidden
            for block in tower.blocks():
                forward += _block_flops(block, tokens, source)
        for tower in head_towers(self):
            tokens = 1 if self.head.pooled else lengths[tower.name]
            matrix = self.head.outputs * tower.hidden
            if self.head.transform:
                matrix += tower.hidden**2
            forward += 2 * tokens * matrix
        return 3 * forward

    def why_not_split(
        self,
        tp: int,
        cp: int,
        ep: int,
        sequence_length: int,
        sequence_parallel: bool = True,
    ) -> str | None:
        """Say which part does not divide evenly, naming the degree.

        Key and value heads are replicated where there are fewer than ``tp``;
        the vocabulary is padded. Causal attention is balanced over ``cp`` by
        giving every rank one early and one late piece of the sequence.

        Parameters
        ----------
        tp, cp, ep
            Tensor, context and expert parallel degree.
        sequence_length
            Tokens of the towers that have no length of their own.
        sequence_parallel
            Whether activations between layers are cut over ``tp`` too.

        Returns
        -------
        str or None
            ``tp: expected a divisor of the 40 attention heads of gpt3-13b,
            got 16; choose 8``, or ``None`` where all divide.
        """
        for block in blocks(self, once=True):
            reason = _why_not_tensor(block, tp)
            if reason is not None:
                fits = max(
                    n
                    for n in _powers_below(tp)
                    if all(
                        _why_not_tensor(other, n) is None
                        for other in blocks(self, once=True)
                    )
                )
                return (
                    f"tp: expected {reason} of {self.name}, got {tp}; "
                    f"choose {fits}"
                )
        lengths = self.lengths(sequence_length)
        if ep > 1:
            counts = sorted(
                {b.mlp.experts for b in blocks(self, once=True)} - {0}
            )
            if not counts:
                return (
                    f"ep: expected 1, as {self.name} has no experts, got "
                    f"{ep}; choose 1"
                )
            for experts in counts:
                if experts % ep:
                    fits = max(
                        n
                        for n in _powers_below(ep)
                        if all(count % n == 0 for count in counts)
                    )
                    return (
                        f"ep: expected a divisor of the {experts} experts of "
                        f"{self.name}, got {ep}; choose {fits}"
                    )
        for tokens in lengths.values():
            if tokens % (cp * min(cp, 2)):
                pieces = "half " if cp > 1 else ""
                return (
                    f"cp: expected a divisor of {pieces}the {tokens} tokens "
                    f"of a sample of {self.name}, got {cp}; choose 1"
                )
            if sequence_parallel and tokens % (tp * cp * min(cp, 2)):
                return (
                    f"tp: expected a divisor of the "
                    f"{tokens // (cp * min(cp, 2))} tokens that sequence "
                    f"parallelism cuts, got {tp}; choose another degree or "
                    f"sequence length"
                )
        return None


def blocks(model: Architecture, *, once: bool = False) -> Iterator[Block]:
    """Yield the blocks of all towers, or every run's block once."""
    for tower in model.towers:
        if once:
            yield from (run.block for run in tower.runs)
        else:
            yield from tower.blocks()


def head_towers(model: Architecture) -> tuple[Tower, ...]:
    """Return the towers that no other tower reads: the head does."""
    read = {tower.reads for tower in model.towers}
    return tuple(tower for tower in model.towers if tower.name not in read)


# Weights of the parts, of one of each on one device


def norm_weights(block: Block) -> int:
    """Return the weights of one norm: ``2h`` with LayerNorm, else ``h``."""
    return block.hidden * (2 if block.layer_norm else 1)


def attention_matrices(block: Block, attention: Attention) -> tuple[int, int]:
    """Return matrix weights that tokens, and that source tokens, visit.

    ``h·d(a + a_kv) + h·d_v(a_kv + a)`` in all; of cross-attention, keys and
    values are made from the source. Latent attention has ``h·r_q + r_q·a·d``
    for queries, ``h(r + d_r) + r·a_kv(d - d_r + d_v)`` for keys and values
    and ``h·a·d_v`` for the output (DeepSeek-AI 2024, arXiv 2405.04434, §2.1).
    """
    hidden = block.hidden
    value_size = attention.value_size or attention.head_size
    query = attention.heads * attention.head_size
    output = hidden * attention.heads * value_size
    if attention.key_value_rank:
        rank, rotary = attention.key_value_rank, attention.rotary_size
        own = attention.kv_heads * (attention.head_size - rotary + value_size)
        matrices = output + hidden * (rank + rotary) + rank * own
        if attention.query_rank:
            matrices += attention.query_rank * (hidden + query)
        else:
            matrices += hidden * query
        return matrices, 0
    key_value = (
        hidden * attention.kv_heads * (attention.head_size + value_size)
    )
    if attention.cross:
        return hidden * query + output, key_value
    return hidden * query + output + key_value, 0


def attention_weights(block: Block, attention: Attention) -> int:
    """Return all weights of an attention: matrices, biases, inner norms."""
    value_size = attention.value_size or attention.head_size
    weights = sum(attention_matrices(block, attention))
    if attention.key_value_rank:
        weights += attention.query_rank + attention.key_value_rank
    if attention.biases:
        weights += attention.heads * attention.head_size
        weights += attention.kv_heads * (attention.head_size + value_size)
    if attention.output_bias:
        weights += block.hidden
    if attention.query_key_norm:
        weights += 2 * attention.head_size
    return weights


def _dense_mlp_weights(hidden: int, width: int, mlp: Mlp) -> int:
    inner = 2 if mlp.gated else 1
    weights = (inner + 1) * hidden * width
    return weights + (inner * width + hidden if mlp.biases else 0)


def expert_weights(block: Block) -> int:
    """Return the weights of one routed expert, or of the dense MLP."""
    return _dense_mlp_weights(block.hidden, block.mlp.hidden, block.mlp)


def mlp_weights(block: Block) -> int:
    """Return the weights of the MLP: experts, shared experts, router."""
    mlp = block.mlp
    if not mlp.experts:
        return expert_weights(block)
    weights = mlp.experts * (expert_weights(block) + block.hidden)
    if mlp.shared_hidden:
        weights += _dense_mlp_weights(block.hidden, mlp.shared_hidden, mlp)
    return weights


def block_weights(block: Block) -> int:
    """Return the weights of one block with all its experts."""
    weights = attention_weights(block, block.attention)
    if block.cross_attention is not None:
        weights += attention_weights(block, block.cross_attention)
    return weights + mlp_weights(block) + block.norms * norm_weights(block)


def embedding_weights(tower: Tower) -> int:
    """Return the weights in front of a tower's blocks.

    ``h`` per row of the token, position and type tables; ``h`` per value of
    a patch and ``h`` of bias; a norm. A shared token table counts where it
    is.
    """
    rows = tower.learned_positions + tower.token_types
    if tower.shares_embedding is None:
        rows += tower.vocabulary
    if tower.patch_values:
        rows += tower.patch_values + 1
    weights = rows * tower.hidden
    if tower.embedding_norm:
        weights += norm_weights(tower.runs[0].block)
    return weights


def final_norm_weights(tower: Tower) -> int:
    """Return the weights of the norm behind a tower's blocks."""
    return norm_weights(tower.runs[-1].block) if tower.final_norm else 0


def head_weights(head: Head, hidden: int) -> int:
    """Return the weights of the head for one tower, without final norm."""
    weights = 0 if head.tied else head.outputs * hidden
    if head.bias:
        weights += head.outputs
    if head.transform:
        weights += hidden * hidden + 3 * hidden
    return weights


def _powers_below(degree: int) -> list[int]:
    """Return the powers of two below a degree above 1."""
    return [2**i for i in range((degree - 1).bit_length())]


def _block_flops(block: Block, tokens: int, source: int) -> int:
    """Return the forward FLOPs of a block on one sample."""
    flops = 0
    for attention in (block.attention, block.cross_attention):
        if attention is None:
            continue
        own, other = attention_matrices(block, attention)
        seen = source if attention.cross else tokens
        flops += 2 * (tokens * own + source * other)
        if attention.window:
            seen = min(seen, attention.window)
        value_size = attention.value_size or attention.head_size
        width = attention.heads * (attention.head_size + value_size)
        flops += 2 * tokens * seen * width
    mlp = block.mlp
    matrices = 3 if mlp.gated else 2
    width = mlp.hidden * max(mlp.experts_per_token, 1) + mlp.shared_hidden
    visited = block.hidden * (matrices * width + mlp.experts)
    return flops + 2 * tokens * visited


def _why_not_tensor(block: Block, tp: int) -> str | None:
    """Say what ``tp`` does not divide: ``a divisor of the 40 … heads``."""
    for attention in (block.attention, block.cross_attention):
        if attention is None:
            continue
        if attention.heads % tp:
            return f"a divisor of the {attention.heads} attention heads"
        kv_heads = attention.kv_heads
        if kv_heads % tp and tp % kv_heads:
            return (
                f"a divisor or a multiple of the {kv_heads} key and value "
                f"heads"
            )
    if block.mlp.hidden % tp:
        return f"a divisor of the {block.mlp.hidden} columns of the MLP"
    if block.mlp.shared_hidden % tp:
        return (
            f"a divisor of the {block.mlp.shared_hidden} columns of the "
            f"shared experts"
        )
    return None
