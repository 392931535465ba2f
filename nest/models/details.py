"""What a model computes beyond shapes and weights: no plan costs more or less by it.

Exports say it, so that a launch trains the same model; what is not known of a model
is ``None``, and its launch has the defaults of the framework.
"""

from __future__ import annotations

from msgspec.structs import replace

from nest.ir.base import Struct


class Rotary(Struct, frozen=True, kw_only=True):
    """Rotary positions (Su et al. 2021, arXiv 2104.09864)."""

    #: Base of the angles.
    base: float = 10_000.0
    #: Share of a head that is rotated.
    fraction: float = 1.0
    #: Whether pairs are neighbors instead of halves.
    interleaved: bool = False
    #: How angles change for longer sequences: empty, ``linear``, ``llama3``, ``yarn``,
    #: or another word of transformers.
    scaling: str = ""
    #: Of how much longer sequences, and of the length before; ``0``: not stated.
    factor: float = 1.0
    original_length: int = 0
    #: Factors of ``llama3``.
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    #: Of ``yarn`` (Peng et al. 2023, arXiv 2309.00071).
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all: float = 0.0
    #: Whether the range that ``yarn`` blends ends at whole dimensions.
    rounded: bool = True

    @property
    def effective(self) -> Rotary:
        """The positions without what makes no other model.

        Whether pairs are neighbors orders weights otherwise; what is scaled by nothing
        has no length before, and that of linear scaling does not count.
        """
        rotary = replace(self, interleaved=False)
        if not self.scaling:
            return Rotary(base=self.base, fraction=self.fraction)
        if self.scaling == "linear":
            rotary = replace(rotary, original_length=0)
        return rotary


class Router(Struct, frozen=True, kw_only=True):
    """How experts are weighted."""

    #: ``softmax`` or ``sigmoid``.
    scores: str = "softmax"
    #: Whether the weights of the chosen experts sum to one.
    normalized: bool = True
    #: Factor of the weights.
    scale: float = 1.0
    #: Whether a bias per expert, which no gradient changes, is part of the choice.
    expert_bias: bool = False


class Details(Struct, frozen=True, kw_only=True):
    """What a configuration states beyond shapes."""

    #: Rotary positions and router; ``None`` without, or where not stated.
    rotary: Rotary | None = None
    router: Router | None = None
    #: What norms add to a variance; ``None``: not stated.
    norm_epsilon: float | None = None
    #: Activation function of the MLP by the name of transformers.
    activation: str | None = None
    #: Fields with a value that makes it another function than plain transformers
    #: compute, which nest reads no further.
    others: tuple[str, ...] = ()

    @property
    def effective(self) -> Details:
        """The details with the effective rotary positions."""
        return replace(self, rotary=self.rotary and self.rotary.effective)
