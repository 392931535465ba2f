"""YAML configurations as frameworks have them: keys with their lines.

What ``${a.b}`` stands for is looked up in the same file, as OmegaConf does;
what only an environment, a resolver or another file knows stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from typing import Any, NamedTuple

import yaml

from nest.errors import InvalidPlanError
from nest.frameworks.faults import Correction, Fault
from nest.ir.documents import refusing
from nest.ir.yaml_documents import check_yaml, parse_yaml

#: OmegaConf's value of what must be given by others.
MISSING = "???"

#: Maximum number of interpolations between a key and its value.
_MAX_CHAIN = 50

_WHOLE = re.compile(r"\$\{([^${}]*)\}")


class Entry(NamedTuple):
    """A value of a configuration."""

    #: A number, a text, a truth value, ``None``, or a list of these.
    value: Any
    #: Where it is written, from 1.
    line: int
    #: Why it is not known (``$NAME, which the file does not set``), or empty.
    unknown: str = ""


class Config:
    """The keys of a configuration, such as ``model.hidden_size``.

    ``variables`` are values of environment variables, such as ``${SEQ_LEN}``, and
    ``overrides`` values of keys, instead of the file's.

    Raises ``InvalidPlanError`` if it is no YAML with keys, or a key is there twice; the
    text names file and line.
    """

    def __init__(
        self,
        text: str,
        where: str,
        variables: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.where = where
        self._variables = variables or {}
        self.entries: dict[str, Entry] = {}
        #: Keys that hold keys, with their lines.
        self.sections: dict[str, int] = {}
        try:
            with refusing(where, InvalidPlanError):
                check_yaml(text)
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            if not isinstance(root, yaml.MappingNode):
                raise InvalidPlanError(
                    f"{where}: expected YAML with keys, got none; pass the "
                    f"configuration"
                )
            self._walk(loader, root, "")
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            location = where if mark is None else f"{where}:{mark.line + 1}"
            what = getattr(error, "problem", None) or str(error)
            what = " ".join(what.split())
            raise InvalidPlanError(
                f"{location}: expected YAML, got a syntax error ({what}); correct it"
            ) from None
        for key, value in (overrides or {}).items():
            with refusing(f"--say {key}", InvalidPlanError):
                self.entries[key] = Entry(parse_yaml(value), 0)

    def _walk(
        self, loader: yaml.SafeLoader, node: yaml.MappingNode, prefix: str
    ) -> None:
        """Store the keys of a section."""
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in lines and key != "<<":
                raise InvalidPlanError(
                    f"{self.where}:{line}: {prefix}{key}: expected it once, "
                    f"got it in line {lines[key]} too; remove one"
                )
            lines[key] = line
        # Keys of a section that is merged in; its own ones are behind them.
        loader.flatten_mapping(node)
        for key_node, value in node.value:
            name = f"{prefix}{key_node.value}"
            line = key_node.start_mark.line + 1
            if isinstance(value, yaml.MappingNode):
                self.sections[name] = line
                self._walk(loader, value, f"{name}.")
            else:
                try:
                    made = loader.construct_object(value, deep=True)
                except ValueError as error:  # a date that is none
                    raise InvalidPlanError(
                        f"{self.where}:{line}: {name}: expected a value, got "
                        f"{error}; correct it"
                    ) from None
                self.entries[name] = Entry(made, line)

    @property
    def names(self) -> tuple[str, ...]:
        """All keys that hold values."""
        return tuple(self.entries)

    def get(self, key: str) -> Entry | None:
        """Return the resolved value of a key, ``None`` if the file has none.

        Raises ``InvalidPlanError`` if it stands for itself.
        """
        if key not in self.entries:
            return None
        entry = self._resolved(key, ())
        if entry.value is None and not entry.unknown:
            return None
        return None if entry.value == MISSING else entry

    def location(self, key: str) -> str:
        """Return where a key is written: ``file:line: key``."""
        if key in self.entries:
            line = self.entries[key].line
            return f"{self.where}:{line}: {key}" if line else f"--say {key}"
        if key in self.sections:
            return f"{self.where}:{self.sections[key]}: {key}"
        return f"{self.where}: {key}"

    def refuse(
        self,
        key: str,
        expected: str,
        got: object,
        remedy: str = "",
        meant: str = "",
        value: str = "",
    ) -> Fault:
        """Return the error about one key; ``meant`` and ``value`` as of ``Fault``."""
        return Fault(
            f"{self.location(key)}: expected {expected}, got {got}; "
            f"{remedy or 'correct it'}",
            subject=key,
            answers=() if meant else ("--say", f"{key}=<VALUE>"),
            meant=meant,
            value=value,
        )

    def corrected(self, correction: Correction) -> Config:
        """Return a copy in which one key is otherwise."""
        config = copy(self)
        key, value, meant = correction
        config.entries = {**self.entries}
        entry = config.entries.pop(key, Entry(None, 0))
        if meant:
            config.entries[meant] = entry
        elif value is not None:
            config.entries[key] = Entry(parse_yaml(value), entry.line)
        return config

    def _resolved(self, key: str, through: tuple[str, ...]) -> Entry:
        """Return a value; its line is that of the key."""
        entry = self.entries[key]
        if key in through:
            raise self.refuse(key, "a value", f"{entry.value}, which is itself")
        if len(through) > _MAX_CHAIN:
            expected = f"a value within {_MAX_CHAIN} interpolations"
            raise self.refuse(through[0], expected, "more", "write the value")
        if not isinstance(entry.value, str) or "${" not in entry.value:
            return entry
        whole = _WHOLE.fullmatch(entry.value.strip())
        if whole is None:
            return entry._replace(value=None, unknown=entry.value)
        name = whole[1].strip()
        target = _absolute(name, key)
        if target in self.entries:
            other = self._resolved(target, (*through, key))
            return other._replace(line=entry.line)
        name = name.removeprefix("oc.env:").partition(",")[0].strip()
        if name in self._variables:
            with refusing(f"--set {name}", InvalidPlanError):
                made = parse_yaml(self._variables[name])
            return entry._replace(value=made)
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            reason = f"${name}, which the file does not set"
            return entry._replace(value=None, unknown=reason)
        return entry._replace(value=None, unknown=entry.value)


def _absolute(name: str, key: str) -> str:
    """Return the key that an interpolation names; ``.x`` is beside it."""
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    parents = key.split(".")[:-dots]
    return ".".join((*parents, name[dots:]))
