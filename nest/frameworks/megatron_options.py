"""Every argument of Megatron-LM by its class: read, harmless or refused.

``data/megatron.yaml`` has those of megatron-core 0.19.2, as its parser lists them, and
those of older versions and of forks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from nest.errors import InvalidPlanError
from nest.frameworks.arguments import Arguments, Option
from nest.frameworks.keyed import read_data
from nest.frameworks.shell_words import Word


class _Older(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments that only older versions and forks have, as :class:`OptionTable`."""

    read: str
    harmless: dict[str, str]
    refused: dict[str, str]


class Refusal(NamedTuple):
    """Why an argument is refused, and its values that change nothing."""

    why: str
    unchanged: tuple[str, ...]


class OptionTable(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """The arguments of Megatron-LM, as ``data/megatron.yaml`` lists them.

    Names are without dashes; all texts are names between spaces.
    """

    #: Those that are read; of the last ones, ``=`` ends those with values.
    values: str
    switches: str
    others: str
    #: Those whose default counts.
    shaping: str
    #: What older arguments are today, ``{}`` being their value.
    present: dict[str, str]
    #: The others, by what they are about and by what they change. After ``=`` are the
    #: values that change nothing, between ``|``.
    harmless: dict[str, str]
    refused: dict[str, str]
    #: Parts of the names of programs that train no decoder.
    programs: str
    #: Those that megatron-core 0.19.2 has not.
    older: _Older

    @cached_property
    def read(self) -> dict[str, bool]:
        """The arguments that are read, with dashes, and whether they take values."""
        takes_values = {
            f"--{name}": "{}" in text for name, text in self.present.items()
        }
        takes_values |= dict.fromkeys(map(_option, self.values.split()), True)
        return takes_values | _arity(self.switches, self.others, self.older.read)

    @cached_property
    def older_names(self) -> dict[str, bool]:
        """Those that megatron-core 0.19.2 has not, as ``read``."""
        older = self.older
        return _arity(older.read, *older.harmless.values(), *older.refused.values())

    @cached_property
    def classed(self) -> dict[str, bool]:
        """Every argument that has a class, as ``read``."""
        present = _arity(*self.harmless.values(), *self.refused.values())
        return self.read | present | self.older_names

    @cached_property
    def refusals(self) -> dict[str, Refusal]:
        """The arguments that are refused, with dashes."""
        return {
            _option(text): Refusal(why, tuple(filter(None, _values(text))))
            for group in (self.refused, self.older.refused)
            for why, texts in group.items()
            for text in texts.split()
        }


def _arity(*texts: str) -> dict[str, bool]:
    """Return the names of texts, with dashes, and whether they take values."""
    return {_option(text): "=" in text for each in texts for text in each.split()}


def _option(text: str) -> str:
    return f"--{text.partition('=')[0]}"


def _values(text: str) -> list[str]:
    return text.partition("=")[2].split("|")


MEGATRON = read_data("megatron", OptionTable)


def with_present_names(arguments: Arguments) -> Arguments:
    """Return arguments with what older ones say today; messages keep their names.

    Words of unknown text after a switch are no values of it.

    Raises ``InvalidPlanError`` if the present argument is given too, and says something
    else.
    """
    for name, option in arguments.options.items():
        if not MEGATRON.classed.get(name, True):
            arguments.unknown += (token for token in option.values if token.unknown)
            values = tuple(token for token in option.values if not token.unknown)
            arguments.options[name] = option._replace(values=values)
    for old, text in MEGATRON.present.items():
        older = arguments.options.get(f"--{old}")
        if older is None:
            continue
        arguments.used.add(f"--{old}")
        for name, values in _meanings(text, older):
            before = arguments.options.get(name)
            if before and _texts(before.values) != _texts(values):
                expected = f"no {name} beside it"
                got = f"{arguments.location(name)} {' '.join(_texts(before.values))}"
                raise arguments.refuse(f"--{old}", expected, got, "remove one")
            arguments.options[name] = Option(values, older.line)
            arguments.names = {name: f"--{old}", **arguments.names}
    return arguments


def _meanings(text: str, option: Option) -> Iterator[tuple[str, tuple[Word, ...]]]:
    """Yield the options of a text, with their values."""
    for name, *values in map(str.split, re.findall(r"--[^-]\S*(?: (?!--)\S+)*", text)):
        tokens = tuple(Word(value, option.line) for value in values)
        yield name, option.values if values == ["{}"] else tokens


def _texts(tokens: Iterable[Word]) -> list[str]:
    return [token.text for token in tokens]


#: How reasons begin of what makes another model or step, which no plan may leave out.
_OTHER_MODELS = ("it is another", "nest reads no experts", "plans know no encoder")


def check_refused(arguments: Arguments) -> None:
    """Refuse arguments that no reader has used and that change what plans count.

    Raises ``InvalidPlanError`` if there is one.
    """
    for name, option in arguments.options.items():
        refusal = None if name in arguments.used else MEGATRON.refusals.get(name)
        if refusal is None:
            continue
        stated = " ".join(token.unknown or token.text for token in option.values)
        if stated in refusal.unchanged:
            continue
        expected = " or ".join(refusal.unchanged) or "no such argument"
        answers: tuple[str, ...] = ("--ignore", name[2:])
        if refusal.why.startswith(_OTHER_MODELS):
            answers = ()  # a plan without it is one of what is not run
        if "nest import" in refusal.why:
            answers = ("megatron-args", "deepspeed")
        raise arguments.refuse(name, expected, stated or "it", refusal.why, answers)


def check_program(launcher: Sequence[Word], where: str) -> None:
    """Refuse a program that trains another model than a decoder.

    Raises ``InvalidPlanError`` if the name of the last one says so, such as
    ``pretrain_bert.py``.
    """
    for token in launcher[-1:]:
        name = token.text.rpartition("/")[2].removesuffix(".py")
        if {*MEGATRON.programs.split()} & {*name.lower().split("_")}:
            raise InvalidPlanError(
                f"{where}:{token.line}: expected a program that trains a decoder, such "
                f"as pretrain_gpt.py, got {name}.py; describe the model with 'nest "
                f"import hf' instead"
            )
