"""ms-swift: its launches ``megatron sft`` and ``megatron pt`` as Megatron-LM's.

Its arguments are those of Megatron-LM with underscores, switches have the values
``true`` and ``false``, and some defaults are others
(docs/source_en/Megatron-SWIFT/Command-line-parameters.md of modelscope/ms-swift).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import msgspec

from nest.frameworks.faults import Fault
from nest.frameworks.keyed import read_data
from nest.frameworks.megatron_options import MEGATRON
from nest.frameworks.shell_words import Word
from nest.models.architectures import Architecture
from nest.models.zoo import known_architecture

_TRAINING = ("sft", "pt")


class _Needed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value that an argument must have, and why."""

    value: str
    why: str


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of ms-swift, as ``data/swift.yaml`` lists them."""

    renamed: dict[str, str]
    defaults: dict[str, str]
    conditional: dict[str, str]
    harmless: str
    adapters: str
    needed: dict[str, _Needed]


_SWIFT = read_data("swift", _Table)


class SwiftLaunch(NamedTuple):
    """A launch of ms-swift in the words of Megatron-LM."""

    #: The words of a launch line.
    tokens: tuple[Word, ...]
    #: The model that it trains, or the error if nest does not know its name.
    model: Architecture | None
    unknown_model: Fault | None
    #: What plans cannot say, and what the user should know.
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]


def as_megatron(
    tokens: Sequence[Word],
    variables: Mapping[str, tuple[Word, ...]],
    where: str,
    stated: Collection[str],
) -> SwiftLaunch | None:
    """Return a launch of ms-swift as one of Megatron-LM, ``None`` if it is none.

    ``tokens`` are the words of the launch line. Of the variables of the script
    ``NPROC_PER_NODE`` and ``NNODES`` say the devices. Arguments that are ``stated``
    besides have no defaults that count.
    """
    start = start_of(tokens)
    if start is None:
        return None
    options = dict(_options(tokens[start:]))
    faults = tuple(_faults(options, where))
    named = options.get("model", ())[1:]
    model = known_architecture(named[0].text) if named else None
    unknown = None
    if model is None:
        got = repr(named[0].text) if named else "none"
        unknown = Fault(
            f"{where}:{tokens[start - 1].line}: --model: expected a model that nest "
            f"knows, got {got}; pass --model NAME, or its config.json",
            subject="--model",
            answers=("--model", "<NAME|config.json>"),
        )
    arguments: dict[str, tuple[Word, ...]] = {}
    for name, (first, *values) in options.items():
        others = (_SWIFT.harmless + _SWIFT.adapters).split()
        if name in others or name in _SWIFT.needed:
            continue
        option = f"--{_SWIFT.renamed.get(name, name)}"
        shown = _as_switch(option, values)
        if shown is not None:
            arguments[option] = (first._replace(text=option), *shown)
    assumed = []
    for name, value in _SWIFT.defaults.items():
        stated_names = {name.replace("_", "-") for name in (*options, *stated)}
        if name in stated_names or (name == "bf16" and "fp16" in stated_names):
            continue
        if _SWIFT.conditional.get(name, name) not in {name, *stated_names}:
            continue
        texts = [f"--{name}", value][: 1 if value == "true" else 2]
        arguments[f"--{name}"] = tuple(Word(text, 0) for text in texts)
        assumed.append(f"--{name}" if value == "true" else f"--{name} {value}")
    notes = (f"not in the script, so ms-swift's defaults: {', '.join(assumed)}",)
    launcher = (*tokens[:start], *_launcher(variables), Word("swift.py", 0))
    line = (*launcher, *chain.from_iterable(arguments.values()))
    return SwiftLaunch(line, model, unknown, faults, notes if assumed else ())


def is_other_step(tokens: Sequence[Word]) -> bool:
    """Whether a command of ms-swift trains nothing, such as ``megatron export``."""
    texts = [token.text.rpartition("/")[2] for token in tokens]
    return any(
        one in ("megatron", "swift") and other in ("export", "infer", "deploy", "eval")
        for one, other in pairwise(texts)
    )


def start_of(tokens: Sequence[Word]) -> int | None:
    """Return where the arguments of ms-swift begin, ``None`` if there is none."""
    texts = [token.text for token in tokens]
    for index, text in enumerate(texts, 1):
        following = texts[index : index + 1]
        if text.rpartition("/")[2] == "megatron" and following:
            return index + 1 if following[0] in _TRAINING else None
        if text.endswith(("_megatron/sft.py", "_megatron/pt.py")):
            return index
    return None


def _options(tokens: Sequence[Word]) -> Iterator[tuple[str, tuple[Word, ...]]]:
    """Yield options by name, with dashes, and their words."""
    option: list[Word] = []
    for token in (*tokens, Word("--", 0)):
        if token.text.startswith("--"):
            if option:
                yield option[0].text[2:].replace("_", "-"), tuple(option)
            name, equals, value = token.text.partition("=")
            option = [token._replace(text=name)]
            option += [token._replace(text=value)] * bool(equals)
        elif option:
            option.append(token)


def _as_switch(option: str, values: Sequence[Word]) -> Sequence[Word] | None:
    """Return the values of an argument as Megatron-LM has them, ``None`` if off."""
    text = values[0].text.lower() if len(values) == 1 else ""
    if text in ("false", "none"):
        return None
    return [] if text == "true" and not MEGATRON.classed.get(option) else values


def _faults(options: Mapping[str, tuple[Word, ...]], where: str) -> Iterator[Fault]:
    """Yield what plans cannot say."""
    for name, needed in _SWIFT.needed.items():
        first, *values = options.get(name, (Word("", 0),))
        if not values or values[0].text.lower() in (needed.value, f"{needed.value}.0"):
            continue
        yield Fault(
            f"{where}:{first.line}: {first.text}: expected {needed.value}, got "
            f"{values[0].text!r}; {needed.why}",
            subject=name,  # and no answer: without it another step is planned
        )


def _launcher(variables: Mapping[str, tuple[Word, ...]]) -> Iterator[Word]:
    """Yield the words of ``torchrun`` that ms-swift starts with its variables."""
    yield Word("torchrun", 0)
    for name, option in (
        ("NPROC_PER_NODE", "--nproc_per_node"),
        ("NNODES", "--nnodes"),
    ):
        value = variables.get(name)
        if value:
            yield Word(option, value[0].line)
            yield value[0]
