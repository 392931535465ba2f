"""What a row says of the settings of its run.

What it leaves open is filled in as its software does by default, see
:mod:`nest.validation.software`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nest.hardware import Machine, machine_for
from nest.ir.job import FIXED_CHUNKS, Schedule
from nest.ir.plan import OVERLAP, USUAL_RECOMPUTE, Overlap, Recompute
from nest.validation.negation import says
from nest.validation.rows import Row
from nest.validation.software import (
    FIRST_FLASH,
    ONCE,
    SECOND_FLASH_ON_HOPPER,
    Software,
    free_text,
    overlap_of_split_sequences,
    software_of,
    splits_sequences,
    year_of,
)

#: Pattern of ``recompute`` that means torchtitan's checkpointing by operator.
PER_OPERATOR = r"\bper[-_ ]?op(erator)?\b"

#: Patterns of ``recompute`` that mean choices of a plan. Of MaxText's
#: policies ``qkv_proj_offloaded`` computes all again but queries, keys and
#: values, which come back from the host, and ``custom`` does not say what.
RECOMPUTATION: dict[str, tuple[Recompute, ...]] = {
    r"none": ("none",),
    rf"selective(.*{PER_OPERATOR}.*)?|{PER_OPERATOR}.*": ("selective",),
    r"(.*\bremat_policy=)?minimal(_with_context)?\)?": ("selective",),
    r"full\b.*": ("full",),
    r".*\bqkv_proj_offloaded\)?": ("full",),
    r"(activations? )?offload(ed|ing)?( to (the )?(cpu|host))?": ("offload",),
    r"custom": USUAL_RECOMPUTE,
}

#: Pattern of ``recompute`` that means every so many layers in full. PyTorch FSDP's
#: wrapper takes every k-th block, where "selective" does not say which k.
PERIOD = r".*\bevery (?:other|second|(\d{1,3})(?:st|[nr]d|th)?) layers?\)?"
FSDP_PERIODS = (8, 4, 3, 2)

#: Names of schedules and those of a job. A schedule that was found by a search within
#: the memory of 1F1B (ZB-1p) is the nearest to ZB-H1, which has that memory.
SCHEDULES: dict[str, Schedule] = {
    **dict.fromkeys(("1f1b", "1f1b-i", "interleaved"), "1f1b"),
    "gpipe": "gpipe",
    **dict.fromkeys(("zb-h1", "zb-1p"), "zb-h1"),
    **dict.fromkeys(("zb-v", "zbv"), "zb-v"),
    **dict.fromkeys(("dualpipe-v", "dualpipev"), "dualpipe-v"),
}


#: Recomputation in the words of a software's own options, and in those above.
OPTIONS: tuple[tuple[str, str], ...] = (
    (r"(selective_)?ac_option\W+[\"']?op\b.*|(selective )?\(op\)|sac", "per-op"),
    (r"selective_ac_option\W+1", "full"),
    (r"selective_ac_option\W+(?P<every>\d{1,3})", r"every \g<every> layers"),
    (r"(recompute_modules\W+)?\[?core_attn\]?", "selective"),
    (r"uniform\W*1|uniform", "full"),
)

#: What a text on overlap may deny: "overlap_comm false", "no tp overlap".
DENIED: dict[str, Overlap] = {
    r"\btp[-_ ]?(comm(unication)?[-_ ])?overlap": "tp",
    r"overlap[-_]comm\b|overlap[-_]grad[-_]reduce|gradient overlap": "gradients",
    r"overlap[-_]param[-_]gather|parameter overlap": "weights",
}


class Stated(NamedTuple):
    """What a row must say."""

    num_devices: int
    layers: int
    hidden: int
    heads: int
    vocab: int
    seq_len: int
    global_batch: int
    micro_batch: int
    tp: int
    pp: int
    dp: int


def machine_of(row: Row) -> Machine:
    """Return the machine that a row names.

    Raises ``UnknownNameError`` if there is no such device or link.
    """
    return machine_for(row.hardware or "", row.interconnect, row.devices_per_node)


def recomputations(row: Row) -> tuple[Recompute, ...]:
    """Return what a row may have recomputed, the least first.

    What its software does by default if it does not say it.
    """
    stated = _recompute_words(row)
    if not stated:
        return software_of(row).recompute
    if periods(row) != (1,):
        return ("full",)
    matching = (x for p, x in RECOMPUTATION.items() if re.fullmatch(p, stated))
    return next(matching, ())


def assumed_settings(row: Row) -> tuple[str, ...]:
    """Return what an empty cell of a row means by its software, for people."""
    software = software_of(row)
    texts = []
    if not row.recompute:
        choices = recomputations(row)
        first = f"the first of {', '.join(choices)} that fits"
        texts.append(f"recompute: {first if choices[1:] else choices[0]}")
    if row.sp is None and (row.tp or 1) > 1:
        texts.append(f"sp: {'on' if splits_sequences(row, software) else 'off'}")
    if software.name == "Megatron-DeepSpeed" and year_of(row) is None:
        texts.append("framework: a release up to 2022, as no year is stated")
    return tuple(f"{text} ({software.name})" for text in texts)


def is_per_operator(row: Row) -> bool:
    """Return whether a row says that checkpointing is torchtitan's, by operator."""
    return bool(re.search(PER_OPERATOR, _recompute_words(row)))


def _recompute_words(row: Row) -> str:
    """Return what a row says of recomputation, an option in the words of texts."""
    stated = (row.recompute or "").lower()
    for option, wording in OPTIONS:
        if match := re.fullmatch(rf"(?:selective )?\(?(?:{option})\)?", stated):
            return match.expand(wording)
    return stated


def periods(row: Row) -> tuple[int, ...]:
    """Return of how many layers one may recompute, most first."""
    stated = _recompute_words(row)
    if stated == "selective" and (row.framework or "").startswith("PyTorch FSDP"):
        return FSDP_PERIODS
    period = re.fullmatch(PERIOD, stated)
    return (max(1, int(period.group(1) or 2)),) if period else (1,)


def schedule_of(row: Row) -> Schedule | None:
    """Return the schedule of a row's pipeline, None for an unknown one.

    Stated, or "schedule NAME" in ``overlap``; 1F1B if neither says it.
    """
    stated = row.schedule
    if stated is None:
        match = re.search(r"\bschedule ([^;,]+)", row.overlap or "")
        stated = match.group(1) if match else "1f1b"
    return SCHEDULES.get(stated.strip().lower())


def task_of(row: Row) -> str:
    """Return what the notes name as the task, such as ``SFT Performance``."""
    match = re.search(r"\btask ([^;]+)|\bfine-tuning \(([^)]+)\)", row.notes or "")
    return match.group(1) or match.group(2) if match else ""


def virtual_stages(
    row: Row, stated: Stated, schedule: Schedule, software: Software
) -> int:
    """Return the chunks per block: stated, or by schedule and software."""
    if stated.pp == 1:
        return 1
    fixed = FIXED_CHUNKS.get(schedule)
    if fixed is not None:
        return fixed
    if row.vpp is not None or not software.chunk_layers:
        return row.vpp or 1
    blocks = stated.pp * software.chunk_layers
    layers = stated.layers
    return next((n // blocks for n in (layers, layers + 2) if n % blocks == 0), 1)


def expert_ranks(
    row: Row, stated: Stated, software: Software, sequence_parallel: bool
) -> tuple[int, bool]:
    """Return the plan's ``ep``, and whether ``tp`` cuts experts.

    Where experts are cut over fewer ranks than ``tp``, expert parallelism
    spans tensor parallel ranks: a strategy's ``ep`` is the rest.
    Whole experts are spread over ``tp`` too, which needs sequence
    parallelism. Else every expert is cut over all ``tp`` ranks: a device
    keeps the same weights and does the same work, but sends tokens to fewer
    groups and has narrower products. Experts of which there would be copies
    within ``tp`` are cut all the same.
    """
    ep, tp = row.ep or 1, stated.tp
    if not row.experts or ep == 1:
        return ep, True
    cut = row.etp or _stated_etp(row) or software.etp
    if not cut and (stated.dp * (row.cp or 1)) % ep:
        # All ranks of tp leave no room for it.
        cut = 1
    if not cut or cut >= tp:
        return ep, True
    spread = cut == 1 and ep % tp == 0 and sequence_parallel
    return max(1, ep * cut // tp), not spread


def _stated_etp(row: Row) -> int | None:
    """Return what the words of a row say of it."""
    match = re.search(
        r"expert[- ]tensor[- ]parallel(?:[- ]size)?\W{1,3}(\d+)|\bETP (\d+)"
        r"|[_\d]etp(\d+)",
        f"{row.notes} {row.model}",
    )
    return int(next(filter(None, match.groups()))) if match else None


def has_cuda_graphs(row: Row, software: Software) -> bool:
    """Return whether graphs replay the kernels: stated, or by software."""
    if row.cuda_graphs is not None:
        return row.cuda_graphs
    # Graphs with a scope are of parts of a layer.
    stated = says(r"(?<!scoped_)cuda ?graph", f"{row.notes}; {row.model}")
    return software.cuda_graphs if stated is None else stated


def dispatch_node(row: Row, site: Machine, num_devices: int, software: Software) -> int:
    """Return the devices of a node that a token is sent to once.

    0 where it is sent once for each of its experts: stated, or by software.
    """
    text = f"{free_text(row)}; {row.overlap}; {row.attention_impl}"
    once = says(ONCE, text)
    if once is None:
        once = software.dispatch_once and not says(r"\bAll-?to-?All dispatcher\b", text)
    return site.shape(num_devices)[1] if once else 0


def overlap_of(row: Row, software: Software) -> tuple[Overlap, ...]:
    """Return what is overlapped: what a row switches on or off, else by software."""
    columns = {name: getattr(row, f"{name}_overlap") for name in OVERLAP}
    names = _overlap_in_words(row, software)
    if not splits_sequences(row, software):
        names -= overlap_of_split_sequences(software)
    return tuple(
        name
        for name, is_on in columns.items()
        if (name in names if is_on is None else is_on)
    )


def _overlap_in_words(row: Row, software: Software) -> set[Overlap]:
    """Return what is overlapped by the words of a row."""
    stated = (row.overlap or "").lower()
    if stated.startswith("none"):
        return set()
    names = {*software.overlap}
    if "gradient and parameter overlap off" in stated:
        names -= {"weights", "gradients"}
    if re.search(r"all-to-all\b.*\boverlap", stated):
        names.add("ep")
    return names - denied_overlap(stated)


def denied_overlap(text: str) -> set[Overlap]:
    """Return what a text on overlap says is not overlapped."""
    return {name for term, name in DENIED.items() if says(term, text) is False}


def sharding_group(row: Row, dp: int) -> int:
    """Return over how many of the ``dp`` ranks states are sharded.

    "within groups of 8", "FSDP within node (8)", "copies of 8" and "shard=8"
    say it, and "HSDP", whose groups are nodes (HYBRID_SHARD of PyTorch's
    FSDP); otherwise all ranks.
    """
    text = row.shard_mode or ""
    stated = r"(?:(?:groups|copies) of |within (?:node|slice) \(|(?:shard|FSDP)=)(\d+)"
    group = dp
    if match := re.search(stated, text):
        group = int(match.group(1))
    elif "HSDP" in text:
        group = (row.devices_per_node or 0) // ((row.tp or 1) * (row.cp or 1))
    return group if 0 < group < dp and dp % group == 0 else dp


#: Texts of attention that is not one kernel, and of attention that is, in any case.
UNFUSED = (
    r"unfused|torch|megatron|softmax|eager|\bmath\b|^(off|none|no)$"
    r"|\b(no|non|not|without)[-_ ]+(flash|fused)|flash[-_ \w]*[=:_ -](off|no|none)\b"
)
FLASH = r"flash|\bsdpa\b|\bfa[23]\b|cudnn"


def is_flash(row: Row, software: Software) -> bool:
    """Return whether attention is one kernel: stated, or by software."""
    stated = row.attention_impl or ""
    if re.search(UNFUSED, stated, re.IGNORECASE):
        return False
    if software.deterministic:
        return (row.cp or 1) > 1
    if re.search(FLASH, stated, re.IGNORECASE):
        return True
    return software.flash_attention


def attention_share(row: Row, software: Software, is_hopper: bool) -> float:
    """Return the share of the rate of attention: stated, or by software."""
    version = re.search(
        r"flash[-_ ]?att\w*[-_ ]*v?([123])", (row.attention_impl or "").lower()
    )
    stated = version and version.group(1)
    if stated == "3" or (stated is None and software.hopper_attention):
        return 1.0
    share = {"1": FIRST_FLASH, "2": 1.0, None: software.attention_share}[stated]
    return share * SECOND_FLASH_ON_HOPPER if is_hopper else share


def is_fused(row: Row, software: Software) -> bool:
    """Return whether norms are one kernel: stated, or by software."""
    text = f"{row.attention_impl} {row.notes}"
    return software.fused or (row.fused_kernels is None and "RMS" in text)
