"""The arguments that Megatron-LM prints at start, as it takes them.

Between two lines of dashes a log has a line for every argument, such as
``  hidden_size ..................................... 4096`` (``_print_args`` of
megatron/training/arguments.py). They are those that count: no shell is left to run, and
defaults are written out. Prefixes of ranks and times are passed over.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from nest.errors import InvalidPlanError
from nest.frameworks import scripts
from nest.frameworks.arguments import Arguments, ignored_note
from nest.frameworks.faults import Fault, read_all
from nest.frameworks.megatron_options import MEGATRON, with_present_names
from nest.frameworks.shell_words import Word
from nest.models.architectures import Architecture

_BEGIN = re.compile(r"-{10,} arguments -{10,}")
_END = re.compile(r"-{10,} end of arguments -{10,}")
#: A name, dots up to 48 characters, and the value.
_LINE = re.compile(r"(?:^|[\s\]:|>])([A-Za-z]\w*) (?:\.+|(?<=\w{48} )) (.*)")
_COLOR = re.compile(r"\x1b\[[\d;]*m")
#: Names under which values are kept that are not those of their arguments.
_RENAMED = {
    "fp8": "fp8-format",
    "fp4": "fp4-format",
    "microbatch_group_size_per_vp_stage": (
        "microbatch-group-size-per-virtual-pipeline-stage"
    ),
}
#: Arguments that set another name to ``False``.
_SWITCHED_OFF = {
    "add_bias_linear": "disable-bias-linear",
    "add_position_embedding": "no-position-embedding",
}
#: Digits of the longest number that is a size of a vocabulary.
_MOST_DIGITS = 12
_TYPES = {
    "torch.float32": "fp32",
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.uint8": "fp8",
}
#: Names of what Megatron-LM works out itself, and of switches that are on by default.
_OWN = """
    add_bias_linear add_position_embedding barrier_with_l1_time bert_binary_head
    consumed_train_samples
    consumed_valid_samples data_parallel_size expert_gtp_weight_remat_size
    gtp_weight_remat_size iteration model_type muon_split_qkv num_layers_per_stage
    offset_sampling_seed_by_dp_rank overlap_p2p_comm params_dtype perform_initialization
    rank skipped_train_samples torch_fsdp2_reshard_after_forward
    transformer_pipeline_model_parallel_size use_gloo_process_groups
    use_mamba_mem_eff_path virtual_pipeline_model_parallel_size world_size
"""
#: Values of arguments that are off.
_NOTHING = ("None", "False", "0", "0.0", "[]", "")


def is_printed(text: str) -> bool:
    """Whether a text has the arguments that Megatron-LM prints."""
    return _END.search(text) is not None


def read_printed(
    text: str,
    where: str,
    world: int,
    variables: Mapping[str, str] | None = None,
    overrides: Sequence[tuple[str, str]] = (),
    model: Architecture | None = None,
    ignored: Sequence[str] = (),
) -> scripts.Launched:
    """Read what a log says that Megatron-LM starts; the last start counts.

    Parameters and errors are those of :func:`~nest.frameworks.scripts.read_launch`.
    """
    scripts.check_variables(variables or {}, (), where)
    printed = _printed(text, where)
    tokens = scripts.without(tuple(_tokens(printed)), ignored, where)
    doubled: list[Fault] = []
    arguments = Arguments(
        (*tokens, *scripts.override_words(overrides)),
        where,
        what="log",
        doubled=doubled,
    )
    arguments = with_present_names(arguments)
    stated = None
    if "world_size" in printed and printed["world_size"].text.isdecimal():
        value = printed["world_size"]
        location = f"{where}:{value.line}: world_size {value.text}"
        stated = scripts.Count(int(value.text), location)

    def read(start: scripts.Start) -> scripts.Launched:
        arguments, world, counted = start
        if model is not None:
            arguments = scripts.with_model(arguments, model)
        if counted:
            scripts.check_world(stated, arguments, world)
        reading = scripts.read_checked(arguments, world)
        scripts.unread_names(arguments)
        every = {f"--{name}" for name in MEGATRON.shaping.split()}
        notes = [
            *scripts.notes_of(arguments, stated=every),
            *scripts.left_out_note(where, ignored),
        ]
        notes += ignored_note(where, _unknown(printed), "printed name")
        return scripts.Launched(reading, tuple(notes))

    return read_all(read, scripts.Start(arguments, world), doubled)


def _printed(text: str, where: str) -> dict[str, Word]:
    """Return the last printed arguments, by the names that they are kept under."""
    printed: dict[str, Word] = {}
    current: dict[str, Word] | None = None
    for line, content in enumerate(_COLOR.sub("", text).splitlines(), 1):
        if _END.search(content):
            printed, current = current or printed, None
        elif _BEGIN.search(content):
            current = {}
        elif current is not None and (match := _LINE.search(content)):
            current[match[1]] = Word(match[2].strip(), line)
    if not printed:
        raise InvalidPlanError(
            f"{where}: expected the arguments that Megatron-LM prints, from the line "
            f"'---- arguments ----' on, got only their end; pass the whole log"
        )
    return printed


def _tokens(printed: Mapping[str, Word]) -> Iterator[Word]:
    """Yield the arguments that nest reads or refuses, as a launch line has them."""
    layers, *degrees = (
        printed.get(name, Word("", 0)).text
        for name in (
            "num_layers",
            "tensor_model_parallel_size",
            "expert_tensor_parallel_size",
        )
    )
    own_padding = _pads_otherwise(printed)
    for name, value in printed.items():
        if name == "vocab_size" and own_padding:
            continue
        option = f"--{_RENAMED.get(name, name.replace('_', '-'))}"
        texts = [_TYPES.get(text, text) for text in _values(name, value.text)]
        if name in _SWITCHED_OFF and value.text == "False":
            option, texts = f"--{_SWITCHED_OFF[name]}", []
        elif value.text in ("None", "False"):
            continue
        elif option in MEGATRON.refusals:
            unchanged = (*_NOTHING, *MEGATRON.refusals[option].unchanged)
            # An encoder of as many layers is the decoder, and shards of weights are
            # those of tensor parallelism.
            same = degrees if name.endswith("_num_weight_shards") else [layers]
            if " ".join(texts) in unchanged or value.text in same:
                continue
        elif option not in MEGATRON.read:
            continue
        if value.text == "True":
            texts = []
        yield value._replace(text=option)
        yield from (value._replace(text=text) for text in texts)


def _pads_otherwise(printed: Mapping[str, Word]) -> bool:
    """Whether the vocabulary is padded to other rows than its multiple says."""
    names = (
        *("padded_vocab_size", "vocab_size"),
        *("make_vocab_size_divisible_by", "tensor_model_parallel_size"),
    )
    texts = [printed.get(name, Word("", 0)).text for name in names]
    if not all(text.isdecimal() and len(text) <= _MOST_DIGITS for text in texts):
        return False
    padded, rows, multiple, tp = map(int, texts)
    return padded != rows + -rows % max(multiple * tp, 1)


def _unknown(printed: Mapping[str, Word]) -> tuple[str, ...]:
    """Return what is set under names that are no arguments that nest knows."""
    return tuple(
        f"{name} {value.text}"
        for name, value in printed.items()
        if value.text not in ("None", "False")
        and name.lower() not in _OWN.split()
        and _RENAMED.get(name, name) not in _RENAMED.values()
        and not {
            f"--{begin}{name.replace('_', '-')}" for begin in ("", "no-", "disable-")
        }
        & MEGATRON.classed.keys()
    )


def _values(name: str, text: str) -> list[str]:
    """Return the values of an argument, as a launch line has them."""
    text = re.sub(r"^[A-Z]\w*\.(?=\w+$)", "", text)
    if text[:1] not in ("[", "("):
        return [text]
    try:
        items = [str(item) for item in ast.literal_eval(text)]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return [text]
    if name == "moe_layer_freq":
        return [f"[{','.join(items)}]"]
    return [",".join(items)] if name == "window_size" else items
