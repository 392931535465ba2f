"""Published decoder-only transformers, one record each.

A new model is one more record in :data:`ARCHITECTURES`; nothing else in the
project names a model.
"""

from __future__ import annotations

from nest.errors import UnknownNameError
from nest.ir.base import Struct


class Architecture(Struct, frozen=True, kw_only=True):
    """Shape of a decoder-only transformer.

    Attributes
    ----------
    name, source
        Keyword, and the publication that gives the shape.
    layers, hidden
        Number of decoder layers; width of the residual stream.
    heads, kv_heads, head_size
        Query heads, key and value heads (fewer under grouped-query
        attention), and the width of one head.
    mlp_hidden, gated_mlp
        Inner width of the MLP (of one expert); whether it has a gate
        (SwiGLU: three matrices instead of two).
    vocabulary, tied_embeddings
        Tokens; whether the LM head shares the embedding matrix.
    max_sequence, learned_positions
        Longest sequence in training; whether positions are learned vectors
        (otherwise rotary, without weights).
    biases, layer_norm, dropout
        Whether linear layers (not routers) have biases; LayerNorm (two
        vectors) instead of RMSNorm (one); whether the outputs of attention
        and MLP are dropped out in training.
    experts, experts_per_token
        Experts of each MLP and how many a token visits; ``0`` is dense.
    """

    name: str
    source: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp_hidden: int
    gated_mlp: bool
    vocabulary: int
    tied_embeddings: bool
    max_sequence: int
    learned_positions: bool = False
    biases: bool = False
    layer_norm: bool = False
    dropout: bool = False
    experts: int = 0
    experts_per_token: int = 0

    @property
    def mlp_matrices(self) -> int:
        """Weight matrices of one MLP."""
        return 3 if self.gated_mlp else 2

    @property
    def norm_weights(self) -> int:
        """Weights of one normalisation."""
        return self.hidden * (2 if self.layer_norm else 1)

    @property
    def attention_matrix_weights(self) -> int:
        """Weights of the four attention projections, biases left out."""
        return 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)

    @property
    def mlp_matrix_weights(self) -> int:
        """Weights of one MLP (of one expert), biases left out."""
        return self.mlp_matrices * self.hidden * self.mlp_hidden

    @property
    def layer_weights(self) -> int:
        """Weights of one decoder layer with all its experts."""
        weights = self.attention_matrix_weights + 2 * self.norm_weights
        weights += self.mlp_matrix_weights * max(self.experts, 1)
        weights += self.hidden * self.experts
        if self.biases:
            weights += self.head_size * (self.heads + 2 * self.kv_heads)
            mlp = self.mlp_hidden * (self.mlp_matrices - 1) + self.hidden
            weights += mlp * max(self.experts, 1) + self.hidden
        return weights

    @property
    def parameters(self) -> int:
        """Weights of the whole model; a tied matrix counts once."""
        matrices = 1 if self.tied_embeddings else 2
        positions = self.max_sequence if self.learned_positions else 0
        return (
            self.layers * self.layer_weights
            + (matrices * self.vocabulary + positions) * self.hidden
            + self.norm_weights
        )

    def model_flops(self, sequence_length: int) -> int:
        """Return forward and backward FLOPs of one sample, for MFU.

        A product with a matrix of ``n`` weights takes ``2 n`` FLOPs per
        token, the attention core ``4 s a d`` (two products with all ``s``
        positions, as if there were no causal mask), the backward pass twice
        the forward pass. Of the experts, only the ones a token visits count.
        For GPT-3 this is ``72 L s h² (1 + s/6h + V/12hL)``, appendix A of
        Korthikanti et al. 2022 (arXiv 2205.05198); Megatron-LM, PaLM and
        most reports quote MFU this way.

        Parameters
        ----------
        sequence_length
            Tokens of the sample.
        """
        mlps = max(self.experts_per_token, 1)
        matrices = self.layers * (
            self.attention_matrix_weights
            + self.mlp_matrix_weights * mlps
            + self.hidden * self.experts
        )
        matrices += self.vocabulary * self.hidden
        core = 4 * self.layers * sequence_length * self.heads * self.head_size
        return 3 * sequence_length * (2 * matrices + core)

    def splits(self, tp: int, cp: int, ep: int, sequence_length: int) -> bool:
        """Whether heads, matrices, experts and sequence divide evenly.

        Key and value heads are replicated where there are fewer than ``tp``;
        the vocabulary is padded. Causal attention is balanced over ``cp`` by
        giving every rank one early and one late piece of the sequence.
        """
        kv_heads = self.kv_heads
        return (
            self.heads % tp == 0
            and (kv_heads % tp == 0 or tp % kv_heads == 0)
            and self.mlp_hidden % tp == 0
            and sequence_length % (tp * cp * min(cp, 2)) == 0
            and (ep == 1 or (self.experts > 0 and self.experts % ep == 0))
        )


ARCHITECTURES = (
    Architecture(
        name="llama2-7b",
        source="Touvron et al. 2023, arXiv 2307.09288",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=32,
        head_size=128,
        mlp_hidden=11008,
        gated_mlp=True,
        vocabulary=32000,
        tied_embeddings=False,
        max_sequence=4096,
    ),
    Architecture(
        name="llama2-70b",
        source="Touvron et al. 2023, arXiv 2307.09288",
        layers=80,
        hidden=8192,
        heads=64,
        kv_heads=8,
        head_size=128,
        mlp_hidden=28672,
        gated_mlp=True,
        vocabulary=32000,
        tied_embeddings=False,
        max_sequence=4096,
    ),
    Architecture(
        name="gpt3-175b",
        source="Brown et al. 2020, arXiv 2005.14165; dropout as trained by "
        "Korthikanti et al. 2022, arXiv 2205.05198",
        layers=96,
        hidden=12288,
        heads=96,
        kv_heads=96,
        head_size=128,
        mlp_hidden=49152,
        gated_mlp=False,
        vocabulary=50257,
        tied_embeddings=True,
        max_sequence=2048,
        learned_positions=True,
        biases=True,
        layer_norm=True,
        dropout=True,
    ),
    Architecture(
        name="mixtral-8x7b",
        source="Jiang et al. 2024, arXiv 2401.04088",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_size=128,
        mlp_hidden=14336,
        gated_mlp=True,
        vocabulary=32000,
        tied_embeddings=False,
        max_sequence=32768,
        experts=8,
        experts_per_token=2,
    ),
)


def architecture(name: str) -> Architecture:
    """Return the architecture of that name.

    Raises
    ------
    UnknownNameError
        If there is none; the text lists all names.
    """
    known = {record.name: record for record in ARCHITECTURES}
    if name not in known:
        raise UnknownNameError("architecture", name, known)
    return known[name]
