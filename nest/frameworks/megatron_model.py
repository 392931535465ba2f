"""The shape of a decoder as Megatron-LM's arguments, and back.

Defaults are those of megatron-core 0.19: biases everywhere, LayerNorm,
learned positions, tied embeddings, an MLP of ``4 h`` columns (with SwiGLU
``8/3 h`` down to a multiple of 64), dropout 0.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from nest.errors import InvalidPlanError
from nest.frameworks.arguments import Arguments
from nest.frameworks.megatron_details import (
    Flag,
    Flags,
    details_flags,
    other_details,
    padding_flags,
    read_details,
)
from nest.models.architectures import Architecture
from nest.models.blocks import Attention, Block, Head, Mlp, Tower, runs_of, unusual
from nest.models.hf.config import MOST_LAYERS
from nest.models.operators.base import VOCABULARY_MULTIPLE
from nest.models.zoo import architecture, known_architecture, vocabularies_of_shape
from nest.util.text import whole_number

#: What values of ``--position-embedding-type`` mean, those of forks too.
_POSITIONS = {
    "learned_absolute": "learned_absolute",
    "absolute": "learned_absolute",
    **dict.fromkeys(("rope", "rotary", "yarn", "mrope"), "rope"),
    **dict.fromkeys(("none", "alibi"), "none"),
}

#: Models with the vocabularies of tokenizers.
_TOKENIZERS = {"GPT2BPETokenizer": "gpt2", "Llama2Tokenizer": "llama2-7b"}
#: Tokenizers that read a file of any vocabulary; the second reads none of GPT-2.
_ANY_VOCABULARY = ("HuggingFaceTokenizer", "GPTSentencePieceTokenizer")

_PADDED = "--padded-vocab-size"

_TP_BIASES = {
    (True, True, True): (),
    (False, False, False): ("--disable-bias-linear",),
    (True, False, False): ("--disable-bias-linear", "--add-qkv-bias"),
}


def comparable(model: Architecture, sequence_length: int) -> Architecture:
    """Return a model without what no argument says.

    Its name, where it comes from, padding of the vocabulary, windows that no sample
    fills, groups of experts that are all chosen, and runs of equal blocks beside each
    other.
    """
    towers = []
    for tower in model.towers:
        runs = runs_of(_narrow(block, sequence_length) for block in tower.blocks())
        towers.append(
            replace(tower, runs=runs, repeat=1, row_multiple=VOCABULARY_MULTIPLE)
        )
    return Architecture(
        name="",
        towers=tuple(towers),
        head=replace(model.head, row_multiple=VOCABULARY_MULTIPLE),
        max_sequence=max(
            model.towers[0].learned_positions or model.max_sequence, sequence_length
        ),
    )


def _narrow(block: Block, sequence_length: int) -> Block:
    attention, mlp = block.attention, block.mlp
    if attention.window >= sequence_length:
        attention = replace(attention, window=0)
    if attention.value_size == attention.head_size:
        attention = replace(attention, value_size=0)
    if mlp.token_groups == mlp.groups:
        mlp = replace(mlp, groups=1, token_groups=1)
    name = "experts" if mlp.experts else "decoder"
    return replace(block, name=name, attention=attention, mlp=mlp)


def check_shape(
    where: str, expected: Architecture, got: Architecture, length: int | None
) -> None:
    """Refuse a model that a file describes and that is not the expected one.

    Raises ``InvalidPlanError`` if they differ in anything that arguments say.
    """
    assert length is not None
    if comparable(expected, length) != comparable(got, length):
        raise InvalidPlanError(
            f"{where}: expected the shape of {expected.name}, got another "
            f"one; correct what it says about the model"
        )
    field = other_details(expected, got)
    if field is not None:
        raise InvalidPlanError(
            f"{where}: {field}: expected that of {expected.name}, got another one; "
            f"correct what it says about the model"
        )


def check_tensor_split(arguments: Arguments, model: Architecture, tp: int) -> None:
    """Refuse a model that a tensor parallel degree does not divide.

    Raises ``InvalidPlanError`` if the heads or the columns of the MLP are no multiple
    of it.
    """
    block = model.towers[0].runs[0].block
    for name, count in (
        ("--num-attention-heads", block.attention.heads),
        ("--ffn-hidden-size", block.mlp.hidden),
    ):
        if count % tp:
            raise arguments.refuse(
                name, f"a multiple of --tensor-model-parallel-size {tp}", count
            )


def why_not(model: Architecture) -> str | None:
    """Return what the arguments cannot express of a model, or ``None``."""
    if len(model.towers) > 1:
        return "towers: expected one, got several"
    tower, head = model.towers[0], model.head
    unusual_part = unusual(
        replace(tower, modules=0),
        replace(head, predictions=head.predictions - tower.modules),
    )
    if unusual_part is not None:
        return f"{unusual_part}: expected a plain transformer"
    blocks = [run.block for run in tower.runs]
    attentions = {block.attention for block in blocks}
    mlps = {block.mlp for block in blocks}
    bare = {
        replace(block, name="", mlp=blocks[0].mlp, dropout=False) for block in blocks
    }
    attention = blocks[0].attention
    checks = (
        ("causal attention", all(a.causal for a in attentions)),
        ("one attention for all blocks", len(attentions) == len(bare) == 1),
        ("at most one dense MLP", sum(not m.experts for m in mlps) <= 1),
        ("at most one kind of experts", sum(m.experts > 0 for m in mlps) <= 1),
        ("two norms in a block", blocks[0].norms == 2),
        ("no norm behind the embedding", not tower.embedding_norm),
        ("a norm behind the last block", tower.final_norm),
        ("tokens as input", tower.vocabulary and not tower.patch_values),
        ("no token types", not tower.token_types),
        (
            "a head of the vocabulary without bias",
            head.outputs == tower.vocabulary
            and not (head.bias or head.transform or head.pooled),
        ),
        (
            "either rotary or learned positions",
            attention.rotary != bool(tower.learned_positions),
        ),
        (
            "rotary positions with modules for multi-token prediction",
            attention.rotary or not tower.modules,
        ),
        ("gates in all MLPs or in none", len({m.gated for m in mlps}) == 1),
        (
            "biases in all linear layers, in none, or of queries, keys and values only",
            all(_biases(attention, mlp) in _TP_BIASES for mlp in mlps)
            and len({mlp.biases for mlp in mlps}) == 1,
        ),
        (
            "values as wide as keys",
            attention.key_value_rank
            or attention.value_size in (0, attention.head_size),
        ),
        ("dropout in all blocks or in none", len({b.dropout for b in blocks}) == 1),
    )
    for expected, holds in checks:
        if not holds:
            return f"expected {expected}"
    return None


def _biases(attention: Attention, mlp: Mlp) -> tuple[bool, bool, bool]:
    return (attention.biases, attention.output_bias, mlp.biases)


def model_flags(model: Architecture, sequence_length: int, tp: int = 1) -> list[Flag]:
    """Return the arguments of a model: its shape, and what it computes beyond.

    Under a tensor parallel degree ``tp`` they pad the vocabulary by no row if they can.

    Raises ``InvalidPlanError`` if they cannot say it; the text names the part.
    """
    reason = why_not(model)
    if reason is not None:
        raise InvalidPlanError(
            f"model: {reason}, got {model.name}; Megatron's arguments say no other"
        )
    rows, multiple = model.head.outputs, model.head.row_multiple
    more = [*padding_flags(rows, tp, multiple), *details_flags(model)]
    scaling = model.details and model.details.rotary and model.details.rotary.scaling
    model = comparable(model, sequence_length)
    tower = model.towers[0]
    blocks = list(tower.blocks())
    block = blocks[0]
    attention = block.attention
    dense = next((b.mlp for b in blocks if not b.mlp.experts), None)
    sparse = next((b.mlp for b in blocks if b.mlp.experts), None)
    mlp = dense or sparse
    assert mlp is not None
    flags = Flags()
    flag = flags.add
    flag("--num-layers", tower.layers)
    flag("--mtp-num-layers", tower.modules, when=tower.modules)
    flag("--hidden-size", tower.hidden)
    flag("--ffn-hidden-size", mlp.hidden)
    flag("--num-attention-heads", attention.heads)
    latent = attention.key_value_rank > 0
    grouped = attention.kv_heads != attention.heads
    flag("--group-query-attention", when=grouped)
    flag("--num-query-groups", attention.kv_heads, when=grouped)
    flag("--kv-channels", attention.head_size, when=not latent)
    flag("--multi-latent-attention", when=latent)
    if latent:
        rotary = attention.rotary_size
        rank = attention.query_rank
        flag("--q-lora-rank", rank, when=rank)
        flag("--kv-lora-rank", attention.key_value_rank)
        flag("--qk-head-dim", attention.head_size - rotary)
        flag("--qk-pos-emb-head-dim", rotary)
        flag("--v-head-dim", attention.value_size or attention.head_size)
    # With latent attention it is about the compressed queries and keys.
    flag("--qk-layernorm", when=attention.query_key_norm or latent)
    flag("--window-size", f"{attention.window - 1},0", when=attention.window)
    flag("--seq-length", sequence_length)
    flag("--max-position-embeddings", model.max_sequence)
    scaled = "yarn" if scaling == "yarn" and not latent else "rope"
    position = scaled if attention.rotary else "learned_absolute"
    flag("--position-embedding-type", position)
    flag("--vocab-size", tower.vocabulary)
    flag("--untie-embeddings-and-output-weights", when=not model.head.tied)
    flag("--normalization", "RMSNorm", when=not block.layer_norm)
    flag("--swiglu", when=mlp.gated)
    for name in _TP_BIASES[_biases(attention, mlp)]:
        flag(name)
    flag("--attention-dropout", "0.0", when=not block.dropout)
    flag("--hidden-dropout", "0.0", when=not block.dropout)
    if sparse is not None:
        flags += _expert_flags(sparse, blocks)
    return [*flags, *more]


def _expert_flags(mlp: Mlp, blocks: Sequence[Block]) -> Flags:
    """Return the arguments of experts, and of which blocks have them."""
    limited, shared = mlp.groups > 1, mlp.shared_hidden
    flags = Flags()
    flag = flags.add
    flag("--num-experts", mlp.experts)
    flag("--moe-router-topk", mlp.experts_per_token)
    flag("--moe-router-num-groups", mlp.groups, when=limited)
    flag("--moe-router-group-topk", mlp.token_groups, when=limited)
    flag("--moe-ffn-hidden-size", mlp.hidden)
    flag("--moe-shared-expert-intermediate-size", shared, when=shared)
    mixed = any(not block.mlp.experts for block in blocks)
    flag("--moe-layer-freq", _pattern(blocks), when=mixed)
    flag("--moe-grouped-gemm")
    flag("--moe-token-dispatcher-type", "alltoall")
    return flags


def _pattern(blocks: Sequence[Block]) -> str:
    """Return which blocks have experts, such as ``([0]*3+[1]*58)``."""
    runs = [
        f"[{int(experts)}]*{len(list(several))}"
        for experts, several in groupby(b.mlp.experts > 0 for b in blocks)
    ]
    return f"({'+'.join(runs)})"


def read_model(arguments: Arguments, name: str) -> tuple[Architecture, int]:
    """Return the model that arguments describe, and the sequence length.

    Raises ``InvalidPlanError`` if an argument is missing or out of range, or they do
    not fit together.
    """
    layers = arguments.needed("--num-layers")
    if layers > MOST_LAYERS:
        raise arguments.refuse("--num-layers", f"at most {MOST_LAYERS}", layers)
    hidden = arguments.needed("--hidden-size")
    heads = arguments.needed("--num-attention-heads")
    length = arguments.needed("--seq-length")
    positions = arguments.integer("--max-position-embeddings", default=length)
    if positions < length:
        raise arguments.refuse(
            "--max-position-embeddings", f"at least --seq-length {length}", positions
        )
    swiglu = arguments.has("--swiglu")
    usual = hidden * 8 // 3 // 64 * 64 if swiglu else 4 * hidden
    width = arguments.integer("--ffn-hidden-size", default=usual)
    # Other gates leave the default width as it is.
    gates = (arguments.has("--quick-geglu"), arguments.text("--glu-activation"))
    gated = swiglu or any(gates)
    position = _position(arguments)
    rotary = position == "rope"
    modules = _modules(arguments, rotary)
    tied = not arguments.has("--untie-embeddings-and-output-weights")
    dropout = arguments.number("--hidden-dropout", 0.1) > 0
    arguments.number("--attention-dropout", 0.1)
    norms = ("LayerNorm", "RMSNorm", "layernorm", "rmsnorm")
    norm = arguments.text("--normalization", norms) or norms[0]
    attention = _read_attention(arguments, hidden, heads, rotary)
    biased = not arguments.has("--disable-bias-linear")
    query_biases = arguments.has("--add-qkv-bias") or biased
    attention = replace(attention, biases=query_biases, output_bias=biased)
    dense = Mlp(hidden=width, gated=gated, biases=biased)
    block = Block(
        name="decoder",
        hidden=hidden,
        attention=attention,
        mlp=dense,
        layer_norm=norm.lower() == "layernorm",
        dropout=dropout,
    )
    mlps = _read_mlps(arguments, dense, layers)
    windows = _read_windows(arguments, attention, layers)
    runs = runs_of(
        replace(
            block,
            name="experts" if mlp.experts else "decoder",
            attention=windowed,
            mlp=mlp,
        )
        for windowed, mlp in zip(windows, mlps, strict=True)
    )
    tower = Tower(
        runs=runs,
        learned_positions=positions if position == "learned_absolute" else 0,
        embedding_norm=arguments.has("--embed-layernorm"),
        modules=modules,
    )
    vocabulary = _vocabulary(arguments, tower)
    multiple = _row_multiple(arguments)
    model = Architecture(
        name=name,
        source=f"arguments of Megatron-LM, {arguments.where}",
        towers=(replace(tower, vocabulary=vocabulary, row_multiple=multiple),),
        head=Head(
            outputs=vocabulary,
            tied=tied,
            predictions=1 + modules,
            row_multiple=multiple,
        ),
        max_sequence=positions,
        details=read_details(
            arguments, attention, any(run.block.mlp.experts for run in runs)
        ),
    )
    return model, length


def _vocabulary(arguments: Arguments, tower: Tower) -> int:
    """Return the size of the vocabulary: as stated, of the tokenizer or the shape."""
    names = ("--vocab-size", _PADDED, "--pad-vocab-size-to")
    stated = [*filter(None, map(arguments.integer_or_none, names))]
    if stated:
        return stated[0]
    certain = _of_tokenizer(arguments) or _of_shape(arguments, tower)
    if certain is None:
        kinds = _texts(arguments, "--tokenizer-type")
        got = f"none, which {kinds[0]} does not say" if kinds else "none"
        raise arguments.refuse(
            "--vocab-size",
            "the size of the vocabulary",
            got,
            "pass --say vocab-size=N",
            ("--say", "vocab-size=<VALUE>"),
        )
    vocabulary, source = certain
    arguments.assumed.append(
        f"--vocab-size {vocabulary}, as {source} has it; --say vocab-size=N "
        f"gives another"
    )
    return vocabulary


def _row_multiple(arguments: Arguments) -> int:
    """Return what the rows of a vocabulary on a rank are a multiple of.

    As ``vocab_size_with_padding`` of megatron-core pads them.
    """
    stated = arguments.integer(
        "--make-vocab-size-divisible-by", default=VOCABULARY_MULTIPLE
    )
    # Then the vocabulary is that of the model, which pads no more.
    has_sizes = map(arguments.options.__contains__, ("--vocab-size", _PADDED))
    return 1 if [*has_sizes] == [False, True] else stated


def _texts(arguments: Arguments, name: str) -> list[str]:
    """Return the values of an option that is not read otherwise."""
    option = arguments.options.get(name)
    return [token.text for token in option.values] if option else []


def _of_tokenizer(arguments: Arguments) -> tuple[int, str] | None:
    """Return the vocabulary of a tokenizer that is known by name, and its name."""
    kinds = _texts(arguments, "--tokenizer-type")
    files = ("--tokenizer-model", "--tokenizer-name-or-path")
    texts = [*kinds, *(text for name in files for text in _texts(arguments, name))]
    if not kinds and _is_gpt2(arguments):
        # ``pretrain_gpt.py`` has this type by default.
        texts.append("GPT2BPETokenizer")
    for text in texts:
        model = known_architecture(_TOKENIZERS.get(text, text))
        if model is not None:
            return model.towers[0].vocabulary, f"the tokenizer {text}"
    return None


def _is_gpt2(arguments: Arguments) -> bool:
    """Whether files of a vocabulary and its merges can only be those of GPT-2.

    What a script does not state counts as the files that Megatron-LM's examples name.
    """
    if "--merge-file" not in arguments.options:
        names = _texts(arguments, "--vocab-file")
        return any(name.rpartition("/")[2].startswith("gpt2") for name in names)
    tokens = arguments.options["--merge-file"].values
    return all(
        token.unknown or token.text.rpartition("/")[2].startswith(("gpt2", "merges"))
        for token in tokens
    )


def _of_shape(arguments: Arguments, tower: Tower) -> tuple[int, str] | None:
    """Return the vocabulary that all known models of a shape have, and one of them.

    None if they differ, or the tokenizer is of another kind.
    """
    vocabularies = vocabularies_of_shape(tower)
    kinds = _texts(arguments, "--tokenizer-type")
    if len(vocabularies) != 1 or not {*kinds} <= {*_ANY_VOCABULARY}:
        return None
    ((vocabulary, name),) = vocabularies.items()
    gpt2 = architecture("gpt2").towers[0].vocabulary
    if vocabulary == gpt2 and _ANY_VOCABULARY[1] in kinds:
        return None
    return vocabulary, f"{name}, which has this shape,"


def _position(arguments: Arguments) -> str:
    """Return how positions are told: ``learned_absolute``, ``rope`` or ``none``.

    Rotated in whatever way they are ``rope``; distances that are added to scores
    (ALiBi) have no weights and count as none.
    """
    kind = arguments.text("--position-embedding-type", tuple(_POSITIONS))
    alibi = ("--use-alibi-position-embeddings", "--use-alibi-mask")
    # Each one is asked for, so that it counts as read.
    without = [arguments.has(name) for name in (*alibi, "--no-position-embedding")]
    if arguments.has("--use-rotary-position-embeddings"):
        return "rope"
    if kind is None:
        return "none" if any(without) else "learned_absolute"
    return _POSITIONS[kind]


def _modules(arguments: Arguments, rotary: bool) -> int:
    """Return the number of modules for multi-token prediction."""
    modules = arguments.integer("--mtp-num-layers", 0, minimum=0)
    arguments.number("--mtp-loss-scaling-factor", 0.1)
    if modules and not rotary:
        raise arguments.refuse(
            "--position-embedding-type",
            "rope with --mtp-num-layers",
            arguments.text("--position-embedding-type") or "learned_absolute",
        )
    for name, why in (
        ("--mtp-use-repeated-layer", "plans give every module its weights"),
        ("--mtp-detach-heads", "plans send gradients on to the model"),
    ):
        if arguments.has(name) and modules:
            raise arguments.refuse(
                name, "no such argument with --mtp-num-layers", "it", why, ()
            )
    return modules


def _read_attention(
    arguments: Arguments, hidden: int, heads: int, rotary: bool
) -> Attention:
    softmax = arguments.text("--softmax-type", ("vanilla", "off-by-one", "learnable"))
    bare_norm = arguments.has("--qk-l2-norm")
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_size=0,
        rotary=rotary,
        query_key_norm=arguments.has("--qk-layernorm") or bare_norm,
        norm_over="nothing" if bare_norm else "head",
        sinks=softmax == "learnable",
    )
    text = arguments.text("--window-size")
    if text is not None:
        match = re.fullmatch(r"\(?\s*(\d{1,15})\s*,\s*0\s*\)?", text)
        if match is None:
            raise arguments.refuse("--window-size", "N,0", repr(text))
        attention = replace(attention, window=int(match[1]) + 1)
    if arguments.has("--multi-latent-attention"):
        rotary_size = arguments.integer("--qk-pos-emb-head-dim", default=64)
        return replace(
            attention,
            query_key_norm=False,
            head_size=arguments.integer("--qk-head-dim", default=128) + rotary_size,
            value_size=arguments.integer("--v-head-dim", default=128),
            query_rank=arguments.integer("--q-lora-rank", default=0),
            key_value_rank=arguments.integer("--kv-lora-rank", default=32),
            rotary_size=rotary_size,
        )
    size = arguments.integer_or_none("--kv-channels")
    if size is None:
        if hidden % heads:
            raise arguments.refuse(
                "--num-attention-heads", f"a divisor of --hidden-size {hidden}", heads
            )
        size = hidden // heads
    groups = arguments.integer_or_none("--num-query-groups")
    shared = arguments.text("--attention-head-type", ("multihead", "multiquery"))
    kv_heads = 1 if shared == "multiquery" else heads
    if arguments.has("--group-query-attention"):
        # Without a number Megatron takes one group.
        kv_heads = groups or 1
    if heads % kv_heads:
        raise arguments.refuse(
            "--num-query-groups", f"a divisor of the {heads} attention heads", kv_heads
        )
    return replace(attention, kv_heads=kv_heads, head_size=size)


def _read_mlps(arguments: Arguments, dense: Mlp, layers: int) -> list[Mlp]:
    """Return the MLP of every block, or the experts in its place."""
    experts = arguments.integer("--num-experts", default=0, minimum=0)
    if experts == 1 and "--moe-expert-parallel-size" in arguments.options:
        experts = 0  # in Megatron-DeepSpeed one expert is none
    topk = arguments.integer("--moe-router-topk", default=2)
    width = arguments.integer("--moe-ffn-hidden-size", default=dense.hidden)
    shared = arguments.integer("--moe-shared-expert-intermediate-size", default=0)
    pattern = arguments.text("--moe-layer-freq")
    gate = arguments.has("--moe-shared-expert-gate")
    arguments.has("--moe-grouped-gemm")
    arguments.text("--moe-token-dispatcher-type", ("allgather", "alltoall", "flex"))
    if not experts:
        return [dense] * layers
    if topk > experts:
        raise arguments.refuse(
            "--moe-router-topk", f"at most --num-experts {experts}", topk
        )
    groups, chosen = _expert_groups(arguments, experts, topk)
    sparse = replace(
        dense,
        hidden=width,
        experts=experts,
        experts_per_token=topk,
        groups=groups,
        token_groups=chosen,
        shared_hidden=shared,
        shared_gate=gate and shared > 0,
    )
    sparse_layers = _frequency(arguments, pattern, layers)
    return [sparse if has_experts else dense for has_experts in sparse_layers]


def _expert_groups(arguments: Arguments, experts: int, topk: int) -> tuple[int, int]:
    """Return the groups of experts, and of how many a token's experts are."""
    names = ("--moe-router-num-groups", "--moe-router-group-topk")
    groups, chosen = map(arguments.integer_or_none, names)
    if chosen is None:
        return 1, 1  # Megatron chooses from all then
    if groups is None or experts % groups:
        expected = f"a divisor of --num-experts {experts}"
        raise arguments.refuse(names[0], expected, groups or "none")
    if chosen > groups or chosen * (experts // groups) < topk:
        expected = f"at most the {groups} groups, with {topk} experts or more"
        raise arguments.refuse(names[1], expected, chosen)
    return groups, chosen


def _read_windows(
    arguments: Arguments, attention: Attention, layers: int
) -> list[Attention]:
    """Return the attention of every block: of every n-th one without a window."""
    name = "--window-attn-skip-freq"
    pattern = arguments.text(name)
    if pattern is None or not attention.window:
        return [attention] * layers
    every = whole_number(pattern)
    windowed = (
        [index % every != 0 for index in range(1, layers + 1)]
        if every
        else _listed(arguments, name, pattern, layers)
    )
    whole = replace(attention, window=0)
    return [attention if has_window else whole for has_window in windowed]


def _frequency(arguments: Arguments, pattern: str | None, layers: int) -> list[bool]:
    """Return which blocks have experts: every n-th, or a list expression."""
    if pattern is None:
        return [True] * layers
    if every := whole_number(pattern):
        return [index % every == 0 for index in range(layers)]
    return _listed(arguments, "--moe-layer-freq", pattern, layers)


def _listed(arguments: Arguments, name: str, pattern: str, layers: int) -> list[bool]:
    """Return what a list expression says of every block."""
    text = re.sub(r"[\s()]", "", pattern)
    listed: list[bool] = []
    for term in text.split("+"):
        match = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?", term)
        if match is None:
            expected = "a number or lists such as ([0]*3+[1]*58)"
            raise arguments.refuse(name, expected, repr(pattern))
        one = [digit == "1" for digit in match[1].split(",")]
        listed += one * min(int(match[2] or 1), MOST_LAYERS)
        if len(listed) > layers:
            break
    if len(listed) != layers:
        raise arguments.refuse(name, f"--num-layers {layers} entries", len(listed))
    return listed
