"""Shell scripts that start MaxText: a configuration, and keys on its command line.

``python -m MaxText.train configs/base.yml model_name=llama2-7b remat_policy=full``
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from nest.errors import InvalidPlanError
from nest.frameworks.faults import Fault
from nest.frameworks.maxtext import TABLE, Configuration, document_of
from nest.frameworks.scripts import check_variables
from nest.frameworks.shell import Script, read_script, words_in
from nest.frameworks.shell_programs import PRINTING
from nest.frameworks.shell_words import Word
from nest.ir.documents import refusing
from nest.ir.yaml_documents import parse_yaml

#: What starts training: a file, or a module.
_TRAINER = re.compile(r"(?:.*[/.])?(?:train|train_compile)(?:\.py)?")
#: The configuration whose keys are defaults.
_BASE = "base.yml"
#: A variable that no value is known of.
_VARIABLE = re.compile(r"\$(\w+), which")


class _Start(NamedTuple):
    """A command: its configuration, and the keys behind that."""

    config: Word
    keys: tuple[Word, ...]


def is_script(text: str, path: str) -> bool:
    """Whether a file is a script: a configuration in YAML has another name."""
    return PurePath(path).suffix not in (".yml", ".yaml") and "train" in text


def read_configuration(
    text: str,
    where: str,
    variables: Mapping[str, str],
    read_file: Callable[[str], str | None],
) -> Configuration:
    """Return the keys that a script starts MaxText with.

    ``variables`` are values of shell variables, and ``read_file`` returns the text of a
    file that the script names, ``None`` if there is none.

    Raises ``InvalidPlanError`` if there is no command that starts MaxText, or several,
    or no configuration.
    """
    script = read_script(text, where, variables)
    check_variables(variables, script.used, where)
    start = _find_start(script, where)
    name, line = start.config.text, start.config.line
    document: dict[str, object] = {}
    if PurePath(name).name != _BASE and not start.config.unknown:
        config = read_file(name)
        if config is None:
            raise InvalidPlanError(
                f"{where}:{line}: {name}: expected the configuration that the script "
                f"names beside it, got no such file; copy it there from MaxText"
            )
        document = document_of(config, name)
    lines, faults = {}, list[Fault]()
    for token in start.keys:
        key, equals, value = token.text.partition("=")
        if not equals:
            continue
        lines[key] = token.line
        counts = (*TABLE.keys, *TABLE.unsupported, *TABLE.elsewhere)
        if token.unknown and (key in counts or key not in TABLE.classed):
            faults.append(_open_value(where, key, token))
            continue
        with refusing(f"{where}:{token.line}: {key}", InvalidPlanError):
            document[key] = parse_yaml("null" if token.unknown else value)
    return Configuration(document, lines, tuple(faults))


def _open_value(where: str, key: str, token: Word) -> Fault:
    """Return the question about a value that the script does not state."""
    variable = _VARIABLE.match(token.unknown)
    option, name = ("--set", variable[1]) if variable else ("--say", key)
    return Fault(
        f"{where}:{token.line}: {key}: expected a value that the script states, got "
        f"{token.unknown}; say it with {option} {name}=VALUE",
        subject=key,
        answers=(option, f"{name}=<VALUE>"),
    )


def _find_start(script: Script, where: str) -> _Start:
    """Return the command that starts MaxText.

    Raises ``InvalidPlanError`` if there is none, or several that differ.
    """
    starts: dict[tuple[str, ...], _Start] = {}
    for _, tokens in script.commands:
        if PurePath(tokens[0].text).name in PRINTING:
            continue
        start = _start_of(tokens)
        if start is not None:
            starts[tuple(token.text for token in (start.config, *start.keys))] = start
    if len(starts) == 1:
        return next(iter(starts.values()))
    lines = ", ".join(str(start.config.line) for start in starts.values())
    got = f"those of lines {lines}; leave one" if starts else "none; pass such a script"
    raise InvalidPlanError(
        f"{where}: expected one command such as python -m MaxText.train base.yml "
        f"KEY=VALUE, got {got}"
    )


def _start_of(tokens: Sequence[Word]) -> _Start | None:
    """Return what a command starts MaxText with, if it does.

    Also a command in a text, which another program runs (``xpk … --command "…"``).
    """
    several = [inner for token in tokens for inner in _tokens_in(token)]
    for index, token in enumerate(several[:-1]):
        config = several[index + 1]
        named = PurePath(config.text).suffix in (".yml", ".yaml")
        if _TRAINER.fullmatch(token.text) and (named or config.unknown):
            return _Start(config, tuple(several[index + 2 :]))
    return None


def _tokens_in(token: Word) -> Sequence[Word]:
    """Return the words of a text that holds a command, or the token."""
    is_command = " " in token.text and _TRAINER.search(token.text)
    return words_in(token) if is_command else (token,)
