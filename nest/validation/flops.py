"""Step times from FLOP/s, as the software that prints them counts FLOPs.

Software divides a count of its own by the time that it measured. Where that count is
known, the time follows. The table is ``data/flop_counts.json``: each count with its
source, found by the words of ``tflops_kind``. All are sums over the matrix products of
decoders: they differ in whether a product with a causal mask counts in full or half.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nest.errors import UnknownNameError
from nest.hardware.devices import device_spec
from nest.ir.base import Struct
from nest.util.stored import read_stored
from nest.validation.rows import Row

#: What a count takes of the products of attention with a causal mask.
IN_FULL = "attention in full"
HALVED = "causal attention halved"


class FlopCount(Struct, frozen=True, kw_only=True):
    """How a software counts the FLOPs of a step."""

    #: Software and releases.
    name: str
    #: Pattern of the beginning of ``tflops_kind``, upper or lower case.
    words: str
    #: Whether only the half of attention's products below the diagonal counts.
    causal: bool
    #: Where the count is from.
    reference: str
    #: Target of plans whose current release prints this count; empty for none.
    target: str = ""

    @property
    def meaning(self) -> str:
        """Whether the products of attention count in full."""
        return HALVED if self.causal else IN_FULL


FLOP_COUNTS = read_stored("nest.validation", "flop_counts", tuple[FlopCount, ...])


class CountedTime(NamedTuple):
    """A step time in seconds, and the count that it is from."""

    time_s: float
    flop_count: FlopCount


def logged_count(target: str) -> FlopCount | None:
    """Return the count in the log of a target's current release, if it is known."""
    return next((count for count in FLOP_COUNTS if count.target == target), None)


def flop_count_of(row: Row) -> FlopCount | None:
    """Return the count that the words of a row mean, if it is known."""
    text = row.tflops_kind or ""
    return next(
        (count for count in FLOP_COUNTS if re.match(count.words, text, re.IGNORECASE)),
        None,
    )


def counted_time(row: Row) -> CountedTime | None:
    """Return the step time that a row's FLOP/s or MFU mean.

    ``None`` if it has neither, does not say how FLOPs were counted, or lacks
    a cell that the count needs. MFU is of the peak that ``tflops_kind``
    names, as ``peak 989.5`` (10^12 FLOP/s), or else of the device's.
    """
    count = flop_count_of(row)
    flops = None if count is None else counted_flops(row, count.causal)
    rate = _flops_per_s(row)
    if count is None or not flops or not rate or not row.num_devices:
        return None
    return CountedTime(flops / (rate * row.num_devices), count)


def counted_flops(row: Row, causal: bool) -> float | None:
    """Return the FLOPs of a step that a count in use has.

    For each of ``layers`` and each token, 6 FLOPs per weight of queries, keys, values,
    output and MLP (of experts those that a token visits), 12 · ``seq_len`` per channel
    of queries for the products of attention, half if ``causal``; and 6 per weight of
    the head (Narayanan et al. 2021, arXiv 2104.04473, appendix, without recomputation).
    """
    layers, hidden = row.layers, row.hidden
    samples, tokens = row.global_batch, row.seq_len
    if not (layers and hidden and samples and tokens and row.vocab):
        return None
    weights = layer_weights(row, row.ffn_hidden or 4 * hidden)
    if weights is None:
        return None
    products = 12 * tokens * weights.queries * (0.5 if causal else 1.0)
    matrices = weights.attention + weights.mlp
    per_token = layers * (6.0 * matrices + products) + 6.0 * hidden * row.vocab
    return per_token * samples * tokens


class LayerWeights(NamedTuple):
    """Weights of a layer that a token visits, and channels of its queries."""

    attention: int
    mlp: int
    queries: int


def layer_weights(row: Row, width: int = 0) -> LayerWeights | None:
    """Return the matrix weights of a layer as columns state them.

    Of experts those that a token visits. ``None`` without a width or heads. An MLP, or
    an expert, whose inner width the row does not state has ``width``.
    """
    hidden, heads = row.hidden, row.heads
    if not (hidden and heads):
        return None
    size = row.head_dim or hidden // heads
    queries, keys = heads * size, (row.kv_heads or heads) * size
    inner, visited = row.ffn_hidden or width, 1
    if row.experts:
        inner = row.moe_ffn_hidden or width
        visited = (row.topk or 1) + (row.shared_experts or 0)
    matrices = 3 if row.gated_mlp else 2
    return LayerWeights(
        attention=2 * hidden * (queries + keys),
        mlp=visited * matrices * hidden * inner,
        queries=queries,
    )


def _flops_per_s(row: Row) -> float | None:
    """Return what a device reaches, as printed."""
    if row.tflops_per_gpu:
        return row.tflops_per_gpu * 1e12
    if not row.mfu:
        return None
    named = re.search(r"\bpeak (\d+(?:\.\d+)?)", row.tflops_kind or "")
    if named:
        return row.mfu * float(named.group(1)) * 1e12
    try:
        peaks = device_spec(row.hardware or "").peak_flops
    except UnknownNameError:
        return None
    peak = peaks.get(row.precision_class or "")
    return None if peak is None else row.mfu * peak
