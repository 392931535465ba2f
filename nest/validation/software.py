"""What training software does where a row does not say it, by release.

The table is ``data/software.json``: one entry per software, release and kind of
kernels, each fact with its source. The first entry that matches a row holds for it.
Predictions of rows and plans for a target or a named software read the same table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from nest.constraints.targets.records import target
from nest.ir.base import Count, PositiveReal, Struct
from nest.ir.job import Optimizer
from nest.ir.plan import USUAL_RECOMPUTE, Overlap, Recompute
from nest.util.stored import read_stored
from nest.util.text import did_you_mean
from nest.validation.negation import affirmed, says
from nest.validation.rows import Row

#: How blocks become pipeline chunks: what a split counts as a block beside
#: the blocks themselves. ``either`` counts embedding and head where only all
#: of them together divide evenly; ``times`` gives every chunk the same work.
Balance = Literal["blocks", "all", "either", "times"]

#: Who made the kernels.
Kind = Literal["recipe", "compiled", "eager", "unknown"]


class Software(Struct, frozen=True, kw_only=True):
    """One release of a training framework, or of several."""

    #: Of the entry.
    name: str
    #: Name of an entry whose facts hold unless stated here; not what it matches.
    based_on: str = ""
    #: Patterns of words, one of which is anywhere in the framework's name, or in the
    #: source's where no framework is named; upper or lower case. Without any all match.
    names: tuple[str, ...] = ()
    #: Patterns that are found in the columns of these names, upper or lower case; empty
    #: ones match all.
    framework: str = ""
    source: str = ""
    model: str = ""
    #: Pattern that the device's name begins with.
    hardware: str = ""
    #: Precision classes; empty for all.
    precisions: tuple[str, ...] = ()
    #: Pattern that is found in framework, model or notes, upper or lower case.
    notes: str = ""
    #: The last year of the release, see :func:`year_of`; a row without a year is later.
    #: 0: any year.
    until: int = 0
    #: Whether the software is known; not of the entry that matches all.
    is_known: bool = True
    #: Who made its kernels: a vendor's recipe with fused ones, a compiler, or PyTorch
    #: operator by operator (``eager``).
    kind: Kind = "recipe"
    #: Whether attention is one fused kernel, and whether norms and other chains of
    #: elementwise operators are.
    flash_attention: bool = True
    fused: bool = True
    #: Whether runs are deterministic, which fused attention is not, so that it is used
    #: only where context parallelism needs it, whatever a row says.
    deterministic: bool = False
    #: What its attention kernel reaches of the calibrated rate: half for the first
    #: FlashAttention (Dao 2023, arXiv 2307.08691, abstract).
    attention_share: PositiveReal = 1.0
    #: Whether on devices of Hopper its attention kernel is one made for them: cuDNN's,
    #: or the third FlashAttention.
    hopper_attention: bool = False
    #: Whether softmax and gradient of the loss are one kernel each.
    fused_loss: bool = True
    #: Memory per logit, see :class:`~nest.models.operators.base.Execution`.
    logit_bytes: Count = 4
    loss_bytes: Count = 2
    #: Whether ``selective`` computes a fused attention again.
    repeat_attention: bool = True
    #: Whether ``selective`` is torchtitan's per-operator checkpointing, see
    #: :class:`~nest.models.operators.base.Execution`.
    selective_operators: bool = False
    #: Whether GPT models have biases and dropout.
    classic: bool = False
    #: Communication that it overlaps with computation.
    overlap: tuple[Overlap, ...] = ()
    #: Per weight: the gradient that is kept and communicated, optimizer state with
    #: master weights, and below ZeRO 2 buffers that are not sharded.
    gradient_bytes: Count = 2
    state_bytes: Count = 12
    buffer_bytes: int = 0
    #: From ZeRO 2 on, gradients in each buffer that they are copied to for their
    #: reduction, of which there are two at ZeRO 2 where gradients overlap; at ZeRO 3,
    #: gathered weights that are kept for their next use. 0: none.
    reduce_bucket: int = 0
    live_weights: int = 0
    #: Per value, of the copy of one weight's gradient at a time that is made when a
    #: backward pass is over; 0: none is made.
    gradient_copy_bytes: int = 0
    #: In fp8, per weight of its products: the copies that stay beside the weights in 16
    #: bits.
    weight_copy_bytes: int = 0
    #: Memory traffic per weight that adds the gradients of a micro-batch to those of
    #: earlier ones; 0 where the product that yields them does.
    accumulation_bytes: int = 0
    #: Whether a pipeline stage keeps what it has sent on until the backward pass.
    keeps_outputs: bool = False
    #: Whether matrix products are those of Transformer Engine and PyTorch, which keep
    #: workspaces.
    transformer_engine: bool = False
    #: ZeRO stage.
    zero: int = 0
    #: Whether tensor parallelism splits all activations.
    sequence_parallel: bool = False
    #: Ranks that an expert's matrices are cut over; 0: as many as ``tp``.
    etp: int = 0
    #: Tensors of a block, where ZeRO 1 gives every rank some of them, whole, and each
    #: rank broadcasts its own after the update; 0 where all ranks gather their shards
    #: at once.
    broadcast_tensors: int = 0
    #: How blocks become pipeline chunks; what is left over goes to the first ones.
    balance: Balance = "either"
    #: Blocks of a chunk where interleaving is not stated; 0: no interleaving.
    chunk_layers: int = 0
    #: What may be recomputed where it is not stated: the first with which the plan
    #: fits.
    recompute: tuple[Recompute, ...] = USUAL_RECOMPUTE
    #: Devices of a job where neither they nor ``dp`` are stated; 0: unknown.
    num_devices: int = 0
    #: Whether tokens are dispatched to experts once for each device of a node, and
    #: between nodes once for each node (DeepEP, HybridEP), and not for each of their
    #: experts.
    dispatch_once: bool = False
    #: Whether choosing the experts of tokens is one kernel.
    fused_router: bool = True
    #: Whether grouped products of experts apply the activation function and cast to fp8
    #: as they write.
    fused_experts: bool = False
    #: Whether the kernels of a step are replayed from CUDA graphs, which takes the host
    #: no time.
    cuda_graphs: bool = False
    #: Factor on the host's time per kernel (``host_ns`` of the calibration), set by
    #: hand; a fit may replace it.
    host_share: PositiveReal = 1.0
    #: Where each of the stated facts comes from, by their names; ``""`` for all that
    #: are not named.
    sources: dict[str, str] = {}

    def with_buckets(self, optimizer: Optimizer, weights: int) -> Optimizer:
        """Return an optimizer with what ZeRO 2 and 3 hold beside their shards.

        Buffers of gradients for their reduction, whatever the size of the model; and
        of its ``weights`` those that are gathered and used again soon.
        """
        bucket_bytes = optimizer.gradient_bytes * self.reduce_bucket
        live = min(self.live_weights, weights)
        return replace(
            optimizer,
            zero_2_bytes=bucket_bytes * (1 + ("gradients" in self.overlap)),
            zero_3_bytes=bucket_bytes + optimizer.weight_bytes * live,
        )

    @property
    def lineage(self) -> tuple[str, ...]:
        """Its name, and those of the entries that it is based on, nearest first."""
        base = entry_named(self.based_on)
        return (self.name, *(base.lineage if base else ()))

    def matches(self, row: Row) -> bool:
        """Return whether the entry is about what a row ran with."""
        year = year_of(row)
        return (
            (not self.names or _has_word(self.names, row.framework or row.source or ""))
            and all(
                re.search(getattr(self, name), getattr(row, name) or "", re.IGNORECASE)
                for name in ("framework", "source", "model")
            )
            and re.search(self.notes, affirmed(free_text(row)), re.IGNORECASE)
            is not None
            and re.match(self.hardware, row.hardware or "") is not None
            and (not self.precisions or row.precision_class in self.precisions)
            and (not self.until or (year is not None and year <= self.until))
        )


def _has_word(patterns: Sequence[str], text: str) -> bool:
    """Return whether a text affirms one of the patterns, not inside a word."""
    return any(says(rf"(?<![^\W_]){pattern}(?![^\W_])", text) for pattern in patterns)


def free_text(row: Row) -> str:
    """Return the free text of a row that says what its software did."""
    return f"{row.framework or ''}; {row.model or ''}; {row.notes or ''}"


#: Patterns of years in texts, the last two or all four digits: a year, a release by
#: year and month, a conference, a paper of arXiv.
_YEARS = (
    r"\b20(1[5-9]|2\d)\b",
    r"(?<![\d.])(2\d)\.(?:0[1-9]|1[0-2])\b(?!\d)",
    r"\b(?:SC|NSDI|ICLR|ICML|OSDI|SOSP|ASPLOS|EuroSys|MLSys|NeurIPS) ?'?(\d\d)\b",
    r"\b(1[5-9]|2\d)(?:0[1-9]|1[0-2])\.\d{4,5}",
)


def year_of(row: Row) -> int | None:
    """Return the year of a row's software: of its release, else of its source.

    Of several the earliest. The text names it ("NeMo 23.05", "SC21", an arXiv number).
    """
    for text in (row.framework, row.source):
        years = [
            2000 + int(digits)
            for pattern in _YEARS
            for digits in re.findall(pattern, text or "")
        ]
        if years:
            return min(years)
    return None


#: Fields that say what an entry is about; all others are facts.
MATCHERS = (
    *("name", "based_on", "names", "framework", "source", "model"),
    *("hardware", "precisions", "notes", "until", "is_known", "sources"),
)


def _entries(stated: list[dict[str, Any]]) -> tuple[Software, ...]:
    """Complete entries with the facts of those they are based on."""
    by_name = {entry["name"]: entry for entry in stated}

    def facts(entry: dict[str, Any]) -> dict[str, Any]:
        base = entry.get("based_on")
        fields = {k: v for k, v in entry.items() if k not in MATCHERS}
        return (facts(by_name[base]) if base else {}) | fields

    return tuple(msgspec.convert(facts(entry) | entry, Software) for entry in stated)


#: First match wins; the last entry matches all.
SOFTWARE = _entries(read_stored("nest.validation", "software", list[dict[str, Any]]))


def entry_named(name: str | None) -> Software | None:
    """Return the entry of exactly that name, if there is one."""
    return next((x for x in SOFTWARE if x.name == name), None)


#: Names without a release, a year or a kind of runs.
_PLAIN_NAMES = [
    x.name
    for x in SOFTWARE
    if x.is_known and not re.search(r"[\d,.]| in | on ", x.name)
]


#: Words that say that a compiler made the kernels.
COMPILED = r"(torch[._ ]?)?\bcompiled?\b|torch_?compile"

#: What of its letters a misspelt name has in common with the right one: torchax is no
#: misspelt torchtitan.
_ALIKE = 0.8


def meant_software(name: str) -> str:
    """Return which software a name that is not known may mean, as a question, if any.

    By the whole name, or by its first word where a release follows.
    """
    if software_of(Row(framework=name)).is_known:
        return ""
    spellings = (name, *name.split(maxsplit=1)[:1])
    questions = (did_you_mean(x, _PLAIN_NAMES, "", _ALIKE) for x in spellings)
    return next(filter(None, questions), "")


#: What the first FlashAttention reaches of what the second does.
FIRST_FLASH = 0.5

#: What the second FlashAttention reaches on Hopper of what kernels made for it
#: do: it takes 11.8879 ms where cuDNN's takes 7.4875, both passes of 8192
#: causal tokens on an H100 (docs/examples/attention/attention.ipynb of
#: NVIDIA/TransformerEngine @0f60e599c0, section 1.3).
SECOND_FLASH_ON_HOPPER = 0.63


#: What the entries of the table begin with that run plans of a target, or are based on.
_RUNNING = {
    "megatron": r"Megatron|NeMo(?! AutoModel)|Vocabulary Parallelism|Zero Bubble",
    "torchtitan": r"torchtitan",
    "deepspeed": r"(Megatron-)?DeepSpeed|GPT-NeoX|Hugging Face",
    "maxtext": r"MaxText",
    "accelerate": r"Hugging Face",
}


def runs(facts: Software, framework: str) -> bool:
    """Return whether an entry, or one that it is based on, runs a target's plans."""
    return any(re.match(_RUNNING[framework], name) for name in facts.lineage)


def overlap_of_split_sequences(facts: Software) -> set[Overlap]:
    """Return what overlaps only with sequence parallelism, as the target's rules say.

    Those of each target whose plans an entry runs (``--tp-comm-overlap`` of
    Megatron-LM needs ``--sequence-parallel``).
    """
    return {
        name
        for framework in _RUNNING
        if runs(facts, framework) and (rules := target(framework).rules)
        for name, needs in rules.overlap_needs.value.items()
        if "sequence_parallel" in needs
    }


def splits_sequences(row: Row, facts: Software) -> bool:
    """Return whether tensor parallelism splits all activations."""
    return facts.sequence_parallel if row.sp is None else row.sp


def software_of(row: Row) -> Software:
    """Return what is known of the software of a row, with the facts that it states."""
    entry = _software_of(*(getattr(row, name) for name in _MATCHED))
    facts = {
        fact: getattr(row, column)
        for column, fact in FACT_COLUMNS.items()
        if getattr(row, column) is not None
    }
    once = dispatches_once(row.dispatcher or "")
    if once is not None:
        facts["dispatch_once"] = once
    return replace(entry, **facts) if facts else entry


#: Dispatchers of tokens that send one once to a node, and those that do not.
ONCE = r"(deep|hybrid)[-_ ]?ep\b"
_FOR_EACH_EXPERT = r"all[-_ ]?to[-_ ]?all|all[-_ ]?gather|a2a"


def dispatches_once(dispatcher: str) -> bool | None:
    """Return whether a dispatcher sends a token once to a node, None if not known."""
    once = says(ONCE, dispatcher)
    return False if once is None and says(_FOR_EACH_EXPERT, dispatcher) else once


#: Columns that state a fact of the table, and the fact. Attention, overlap and CUDA
#: graphs have rules of their own, see :mod:`nest.validation.settings`.
FACT_COLUMNS = {
    "fused_kernels": "fused",
    "fused_loss": "fused_loss",
    "gradient_bytes": "gradient_bytes",
    "optimizer_bytes": "state_bytes",
}


#: Columns that entries match.
_MATCHED = (*("framework", "source", "model", "hardware", "precision_class", "notes"),)


@cache
def _software_of(*cells: Any) -> Software:
    row = Row(**dict(zip(_MATCHED, cells, strict=True)))
    return next(entry for entry in SOFTWARE if entry.matches(row))
