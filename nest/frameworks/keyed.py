"""Files of keys and values, checked against a table of the keys that are read.

There is a table for each framework in ``data/``. Keys are named with their
section: ``training.seq_len``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from functools import cached_property
from importlib.resources import files
from itertools import accumulate, chain
from typing import Any, Literal, Self, TypeVar

import msgspec

from nest.errors import InvalidPlanError
from nest.frameworks.arguments import MAX_NUMBER, similar_name
from nest.frameworks.faults import Correction, Fault
from nest.util.text import count_text

T = TypeVar("T")

#: Types of values, and what messages call them.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "flag": ((bool,), "true or false"),
    "text": ((str,), "a text"),
    "list": ((list,), "a list"),
    "object": ((dict,), "an object"),
}


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that is read.

    ``default`` is the framework's, ``None`` where it has none; ``minimum`` the smallest
    number that it takes; ``values`` those that it takes, empty for all of its type.
    """

    type: Literal["integer", "number", "flag", "text", "list", "object"]
    default: Any = None
    required: bool = False
    minimum: int | None = None
    values: tuple[Any, ...] = ()


class Unsupported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key that changes memory or time in ways that plans do not know.

    ``unchanged`` values change nothing; ``why`` nest refuses others.
    """

    unchanged: tuple[Any, ...]
    why: str


class KeyTable(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """The keys of a framework's files."""

    #: Those that exports write, and that are read.
    keys: dict[str, Key]
    #: Those that plans cannot express.
    unsupported: dict[str, Unsupported] = {}
    #: Those that change no plan, by reason: lists of a section and its keys.
    harmless: dict[str, tuple[tuple[str, ...], ...]] = {}
    #: Keys and sections that other code of nest reads.
    elsewhere: tuple[str, ...] = ()
    #: Names that keys had in older versions, with their present names.
    moved: dict[str, str] = {}
    #: Names that sections had, with their present names.
    moved_sections: dict[str, str] = {}

    @cached_property
    def classed(self) -> frozenset[str]:
        """Every key that the framework may have, and sections as a whole."""
        harmless = (
            f"{section}.{name}".lstrip(".")
            for groups in self.harmless.values()
            for section, *names in groups
            for name in names
        )
        read = (self.keys, self.unsupported, self.elsewhere, self.moved)
        return frozenset(chain(harmless, *read))

    @cached_property
    def opened(self) -> frozenset[str]:
        """The sections whose keys are classed one by one."""
        parents = (path.split(".")[:-1] for path in self.classed)
        return frozenset(chain.from_iterable(accumulate(x, _inside) for x in parents))

    def siblings(self, path: str) -> list[str]:
        """Return the names of all keys in the section of a key."""
        section = split_path(path)[0]
        names = map(split_path, (*self.classed, *self.opened))
        return [name for above, name in names if above == section]


def _inside(section: str, name: str) -> str:
    return f"{section}.{name}"


def read_data(name: str, kind: type[T]) -> T:
    """Return ``data/<name>.yaml`` as ``kind``, checked."""
    path = files("nest.frameworks") / "data" / f"{name}.yaml"
    return msgspec.yaml.decode(path.read_bytes(), type=kind)


def split_path(path: str) -> tuple[str, str]:
    """Return the section of a key, which may be empty, and its name."""
    section, _, name = path.rpartition(".")
    return section, name


class KeyedFile:
    """The keys of one file.

    Every reader raises :class:`~nest.errors.InvalidPlanError`; the text
    names file and key, and the line where ``line_of`` returns it. Sections of
    ``document`` are mappings of their own; ``table`` has the keys that it may have, and
    ``ignore`` are others that the user passes over.
    """

    def __init__(
        self,
        document: dict[str, Any],
        where: str,
        table: KeyTable,
        line_of: Callable[[str], int | None] = lambda path: None,
        ignore: Collection[str] = (),
    ) -> None:
        self.document = document
        self.where = where
        self.table = table
        self.line_of = line_of
        self.ignore = ignore
        #: Keys that plans cannot express and that the user gives another value.
        self.replaced: frozenset[str] = frozenset()

    @cached_property
    def sections(self) -> frozenset[str]:
        """The sections that have keys in the table."""
        return frozenset(split_path(path)[0] for path in self.table.keys)

    def refuse(
        self,
        path: str,
        expected: str,
        got: object,
        remedy: str = "correct it",
        answers: Sequence[str] | None = None,
        meant: str = "",
    ) -> Fault:
        """Return the error about one key.

        ``answers`` and ``meant`` as of :class:`~nest.frameworks.faults.Fault`; by
        default ``--say`` gives another value.
        """
        line = self.line_of(path)
        location = f"{self.where}:{line}" if line else self.where
        return Fault(
            f"{location}: {path}: expected {expected}, got {got}; {remedy}",
            subject=path,
            answers=("--say", f"{path}=<VALUE>") if answers is None else answers,
            meant=meant,
        )

    def corrected(self, correction: Correction) -> Self:
        """Return a copy of the file in which one key is otherwise."""
        copied = copy(self)
        copied.document = deepcopy(self.document)
        section, name = split_path(correction.subject)
        inside = copied.document
        for name_above in filter(None, section.split(".")):
            below = inside.setdefault(name_above, {})
            if not isinstance(below, dict):
                # What is no section goes, as a whole.
                del inside[name_above]
                return copied
            inside = below
        value = inside.pop(name, None)
        key = self.table.keys.get(correction.subject)
        if correction.meant:
            inside[correction.meant] = value
        elif correction.value is not None and key and key.type == "integer":
            inside[name] = int(correction.value)
        return copied

    def with_values(self, values: Sequence[tuple[str, str]]) -> Self:
        """Return a copy of the file in which keys have other values, in JSON or texts.

        Raises ``InvalidPlanError`` if one is in a section that is no section.
        """
        copied = copy(self)
        copied.document = deepcopy(self.document)
        paths = {path for path, _ in values}
        copied.replaced = self.replaced | (paths & self.table.unsupported.keys())
        for path, text in values:
            section, name = split_path(path)
            inside = copied.section(section)
            try:
                inside[name] = json.loads(text)
            except ValueError:
                inside[name] = text
        return copied

    def section(self, path: str) -> dict[str, Any]:
        """Return a section, which is made if there is none."""
        section = self.document
        for name in filter(None, path.split(".")):
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise self.refuse(path, "a section of keys", _shown(section))
        return section

    def get(self, path: str) -> Any:
        """Return the value of a key of the table, or its default."""
        key = self.table.keys[path]
        section, name = split_path(path)
        inside = self.document.get(section) if section else self.document
        if inside is not None and not isinstance(inside, dict):
            raise self.refuse(section, "a section of keys", _shown(inside))
        value = (inside or {}).get(name)
        value = key.default if value is None else value
        if value is None:
            if key.required:
                raise self.refuse(path, "a value", "none")
            return None
        types, noun = _TYPES[key.type]
        if type(value) not in types:
            raise self.refuse(path, noun, _shown(value))
        # NaN is not in the range either.
        if key.type in ("integer", "number") and not abs(value) <= MAX_NUMBER:
            shown = count_text(value) if isinstance(value, int) else value
            raise self.refuse(path, f"at most {MAX_NUMBER}", shown)
        if key.minimum is not None and value < key.minimum:
            raise self.refuse(path, f"at least {key.minimum}", value)
        if key.values and value not in key.values:
            values = ", ".join(map(str, key.values))
            raise self.refuse(path, f"one of {values}", repr(value))
        return value

    def check_values(self) -> None:
        """Refuse values that their keys do not take."""
        for path in self.table.keys:
            self.get(path)

    def check_written(self) -> None:
        """Refuse keys that exports do not write."""
        for path, _ in self._entries(self.document):
            if path not in self.table.keys:
                raise self.refuse(path, "a known key", repr(path))

    def ignored(self) -> tuple[str, ...]:
        """Return the keys that nest does not read, other sections as a whole.

        Those with another value than the file's have what that leaves out beside them.

        Raises ``InvalidPlanError`` if one is in no class of the table and not to be
        ignored, or changes memory or time in a way that plans do not know; or if one
        that is to be ignored is in a class, or not there.
        """
        table, entries = self.table, dict(self._entries(self.document))
        for path in self.ignore:
            if path not in entries or path in table.classed:
                expected = f"keys of {self.where} that nest does not know"
                raise InvalidPlanError(
                    f"--ignore: expected {expected}, got {path!r}; remove it"
                )
        for path, value in entries.items():
            self._check_supported(path, value)
        ignored: dict[str, None] = {}
        for path in entries:
            if path in (*table.keys, *table.elsewhere, *table.moved):
                continue
            if path not in table.classed and path not in self.ignore:
                raise self._unknown(path)
            if path in self.replaced:
                ignored[f"{path} ({table.unsupported[path].why})"] = None
                continue
            section = path.partition(".")[0]
            ignored[path if section in self.sections else section] = None
        return tuple(ignored)

    def _unknown(self, path: str) -> Fault:
        """Return the error about a key in no class."""
        name = split_path(path)[1]
        meant = similar_name(name, self.table.siblings(path))
        if meant is None:
            remedy = f"remove it, or pass --ignore {path} if it changes no plan"
            answers = ("--ignore", path)
            return self.refuse(path, "a key that is known", name, remedy, answers)
        remedy = f"did you mean {meant!r}?"
        return self.refuse(path, "a key that is known", name, remedy, (), meant)

    def _entries(
        self, section: Mapping[str, Any], above: str = ""
    ) -> Iterator[tuple[str, Any]]:
        """Yield keys and values, and sections that are classed as a whole."""
        for name, value in section.items():
            path = f"{above}{name}"
            if path not in self.table.opened:
                yield path, value
            elif isinstance(value, Mapping):
                yield from self._entries(value, f"{path}.")
            else:
                raise self.refuse(path, "a section of keys", _shown(value))

    def _check_supported(self, path: str, value: Any) -> None:
        """Refuse a value that plans cannot express."""
        unsupported = self.table.unsupported.get(path)
        if unsupported is None:
            return
        if isinstance(value, dict):
            value = value.get("device", value.get("enabled", value))
        if value not in unsupported.unchanged:
            texts = [json.dumps(value) for value in unsupported.unchanged]
            stated = texts[0] if len(texts) == 1 else "<VALUE>"
            answers = ("--say", f"{path}={stated}")
            expected, why = " or ".join(texts), unsupported.why
            raise self.refuse(path, expected, _shown(value), why, answers)


def _shown(value: Any) -> str:
    """Return a value for messages."""
    return json.dumps(value, default=str)[:40]
