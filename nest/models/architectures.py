"""Architectures: towers of blocks and a head, their weights and FLOPs.

The zoo of published ones is :mod:`nest.models.zoo`. Counts come from shapes alone and
are exact, so that they can be compared with what a model's authors print.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from nest.ir.base import Struct
from nest.models import weights
from nest.models.blocks import Block, Head, Mixer, Tower
from nest.models.details import Details


class Architecture(Struct, frozen=True, kw_only=True):
    """Shape of a whole model."""

    #: Keyword.
    name: str
    #: Names of other checkpoints of this very shape.
    aliases: tuple[str, ...] = ()
    #: The publication that gives the shape.
    source: str = ""
    #: Where the shape departs from the source, what ``left_out`` counts.
    note: str = ""
    #: Its parts; a tower that reads another comes after it.
    towers: tuple[Tower, ...]
    head: Head
    #: Longest training sequence, in tokens, of towers without a length of their own.
    max_sequence: int
    #: Number of weights as the source prints it, ``0`` where unknown, and the value of
    #: its last printed digit (1 where it prints all).
    published_parameters: int = 0
    published_unit: int = 1
    #: Weights in the published number that shapes cannot express.
    left_out: int = 0
    #: What it computes beyond shapes; ``None``: not known.
    details: Details | None = None

    @property
    def layers(self) -> int:
        """Number of blocks of all towers."""
        return sum(tower.layers for tower in self.towers)

    @property
    def parameters(self) -> int:
        """Weights of the whole model; a shared matrix counts once."""
        temperature = 1 if self.head.temperature else 0
        return (
            temperature
            + sum(
                weights.embedding_weights(tower)
                + weights.final_norm_weights(tower)
                + sum(map(weights.block_weights, _held(tower)))
                + tower.modules * weights.module_weights(tower.last)
                for tower in self.towers
            )
            + sum(
                weights.head_weights(self.head, tower.hidden)
                for tower in head_towers(self)
            )
        )

    @property
    def active_parameters(self) -> int:
        """Weights that one token visits: all but the other experts."""
        modules = [t.last for t in self.towers for _ in range(t.modules)]
        return self.parameters - sum(
            (block.mlp.experts - block.mlp.experts_per_token)
            * weights.expert_weights(block)
            for block in (*blocks(self), *modules)
            if block.mlp.experts
        )

    def lengths(self, sequence_length: int) -> dict[str, int]:
        """Return the tokens per sample of every tower, by its name.

        ``sequence_length`` is that of the towers that have no length of their own.
        """
        lengths = {tower.name: tower.sequence_length for tower in self.towers}
        return {
            name: sequence_length if fixed is None else fixed
            for name, fixed in lengths.items()
        }

    def model_flops(self, sequence_length: int, causal: bool = False) -> int:
        """Return forward and backward FLOPs of one sample, for MFU.

        Three times :meth:`forward_flops`: the backward pass takes twice the
        forward pass.
        """
        return 3 * self.forward_flops(sequence_length, causal)

    def forward_flops(self, sequence_length: int, causal: bool = False) -> int:
        """Return the FLOPs of the matrix products of one sample, forward.

        A product with a matrix of ``n`` weights takes ``2 n`` FLOPs per token, the
        attention core ``2 s a (d + d_value)`` (two products with all ``s`` positions,
        or all in the window, as if there were no causal mask). Of the experts, only the
        ones a token visits count. For GPT-3 this is a third of ``72 L s h² (1 + s/6h +
        V/12hL)``, appendix A of Korthikanti et al. 2022 (arXiv 2205.05198);
        Megatron-LM, PaLM and most reports quote MFU this way. A mixer counts its linear
        layers, its convolution and the products of its recurrence. ``sequence_length``
        are the tokens of towers without a length of their own. If ``causal``, of a
        product with a causal mask only the half below the diagonal counts.
        """
        lengths = self.lengths(sequence_length)
        forward = 0
        for tower in self.towers:
            tokens = lengths[tower.name]
            source = lengths.get(tower.reads or "", 0) if tower.reads else 0
            forward += tokens * weights.embedding_flops(tower)
            for block in tower.blocks():
                forward += _block_flops(block, tokens, source, causal)
            if tower.modules:
                module = _block_flops(tower.last, tokens, source, causal)
                module += 2 * tokens * weights.join_weights(tower.hidden)
                forward += tower.modules * module
        for tower in head_towers(self):
            tokens = 1 if self.head.pooled else lengths[tower.name]
            matrix = self.head.outputs * weights.head_width(self.head, tower.hidden)
            matrix += weights.transform_matrix(self.head, tower.hidden)
            forward += 2 * tokens * matrix * self.head.predictions
        return forward

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
        giving every rank one early and one late piece of the sequence. With
        ``sequence_parallel`` activations between layers are cut over ``tp`` too.

        Such as ``tp: expected a divisor of the 40 attention heads of gpt3-13b, got 16;
        choose 8``, or ``None`` where all divide.
        """
        shapes = list(blocks(self, once=True))

        def tensor_reasons(tp: int) -> list[str]:
            messages = [_why_not_tensor(block, tp) for block in shapes]
            messages += [
                f"a divisor of the {tower.hidden} columns that join tokens"
                for tower in self.towers
                if tower.modules and tower.hidden % tp
            ]
            return [reason for reason in messages if reason is not None]

        reasons = tensor_reasons(tp)
        if reasons:
            powers = (2**i for i in range(_MAX_CHOICES))
            *fitting, last = (str(n) for n in powers if not tensor_reasons(n))
            choices = " or ".join(filter(None, (", ".join(fitting), last)))
            return (
                f"tp: expected {reasons[0]} of {self.name}, got {tp}; choose {choices}"
            )
        for block in shapes:
            mixer = block.mixer
            if cp > 1 and mixer is not None and mixer.heads // tp % cp:
                return (
                    f"cp: expected a divisor of the {mixer.heads // tp} heads of "
                    f"{mixer.kind} that a rank of {self.name} has, got {cp}; choose 1"
                )
        counts = sorted({block.mlp.experts for block in shapes} - {0})
        if ep > 1 and not counts:
            return f"ep: expected 1, as {self.name} has no experts, got {ep}; choose 1"
        for experts in counts:
            if experts % ep:
                powers = (2**i for i in range((ep - 1).bit_length()))
                fits = max(n for n in powers if gcd(*counts) % n == 0)
                return (
                    f"ep: expected a divisor of the {experts} experts of "
                    f"{self.name}, got {ep}; choose {fits}"
                )
        lengths = self.lengths(sequence_length)
        for tokens in lengths.values():
            if tokens % (cp * min(cp, 2)):
                pieces = "half " if cp > 1 else ""
                return (
                    f"cp: expected a divisor of {pieces}the {tokens} tokens "
                    f"of a sample of {self.name}, got {cp}; choose 1"
                )
            if sequence_parallel and tokens % (tp * cp * min(cp, 2)):
                return (
                    f"tp: expected a divisor of the {tokens // (cp * min(cp, 2))} "
                    f"tokens that sequence parallelism cuts, got {tp}; choose another "
                    f"degree or sequence length"
                )
        return None


def blocks(model: Architecture, *, once: bool = False) -> Iterator[Block]:
    """Yield the blocks of all towers, or every run's block once."""
    for tower in model.towers:
        yield from (run.block for run in tower.runs) if once else tower.blocks()


def _held(tower: Tower) -> Iterator[Block]:
    """Yield the blocks of a tower; those with shared weights once."""
    seen = set()
    for block in tower.blocks():
        if block.shared not in seen:
            yield block
        if block.shared:
            seen.add(block.shared)


def head_towers(model: Architecture) -> tuple[Tower, ...]:
    """Return the towers that no other reads or follows: the head does."""
    read = {name for tower in model.towers for name in (tower.reads, tower.follows)}
    return tuple(tower for tower in model.towers if tower.name not in read)


#: Degrees that a message may list: powers of two up to 64.
_MAX_CHOICES = 7


def _block_flops(block: Block, tokens: int, source: int, causal: bool) -> int:
    """Return the forward FLOPs of a block on one sample."""
    flops = 0
    for attention in (block.attention, block.cross_attention):
        if attention is None or not attention.heads:
            continue
        of_tokens, of_source = weights.attention_matrices(block, attention)
        seen = source if attention.cross else tokens
        flops += 2 * (tokens * of_tokens + source * of_source)
        if attention.index_heads:
            index = attention.index_heads * attention.index_size
            flops += 2 * tokens * seen * index
        if attention.window:
            seen = min(seen, attention.window)
        value_size = attention.value_size or attention.head_size
        width = attention.heads * (attention.head_size + value_size)
        pairs = 2 * tokens * seen
        if causal and attention.causal and not attention.cross:
            pairs -= seen * seen  # twice the positions that come later
        flops += pairs * width
    if block.mixer is not None:
        flops += tokens * weights.mixer_flops(block.mixer)
    mlp, hidden = block.mlp, block.hidden
    matrices = 3 if mlp.gated else 2
    visited = matrices * mlp.hidden * max(mlp.experts_per_token, 1)
    visited *= mlp.latent or hidden
    rows = mlp.experts + mlp.zero_experts
    visited += hidden * (matrices * mlp.shared_hidden + rows)
    visited += hidden * (2 * mlp.latent + (1 if mlp.shared_gate else 0))
    return flops + 2 * tokens * visited


def _why_not_tensor(block: Block, tp: int) -> str | None:
    """Say what ``tp`` does not divide: ``a divisor of the 40 … heads``."""
    reason = block.mixer and _why_not_mixer(block.mixer, tp)
    if reason:
        return reason
    for attention in (block.attention, block.cross_attention):
        if attention is None or not attention.heads:
            continue
        if attention.heads % tp:
            return f"a divisor of the {attention.heads} attention heads"
        kv_heads = attention.kv_heads
        if kv_heads % tp and tp % kv_heads:
            return f"a divisor or a multiple of the {kv_heads} key and value heads"
    if block.mlp.hidden % tp:
        return f"a divisor of the {block.mlp.hidden} columns of the MLP"
    if block.mlp.shared_hidden % tp:
        return (
            f"a divisor of the {block.mlp.shared_hidden} columns of the shared experts"
        )
    return None


def _why_not_mixer(mixer: Mixer, tp: int) -> str | None:
    """Say what of a mixer ``tp`` does not divide."""
    if mixer.heads % tp:
        return f"a divisor of the {mixer.heads} heads of {mixer.kind}"
    for linear in mixer.linears:
        units = linear.units
        if units and units % tp and tp % units:
            return f"a divisor or a multiple of the {units} groups of {mixer.kind}"
    return None
