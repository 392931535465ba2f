"""Text of files as plain values: JSON and YAML without traps.

A key that is given twice is refused, not overwritten; so are numbers that
are none (NaN), and aliases that stand for more than memory holds. A file is
read to a limit, as a device or a pipe never ends.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import yaml

from nest.errors import NestError

#: Larger files are none that nest reads, in bytes.
MAX_FILE_BYTES = 2**26

#: Longer texts in YAML would take minutes.
MAX_YAML_CHARACTERS = 2**23

#: Values inside values inside values, at most.
MAX_DEPTH = 100

#: What all aliases of a YAML file may stand for, in values.
MAX_ALIASED = 10**6

#: Digits of an integer, at most: Python reads no more.
_MAX_DIGITS = 4300

#: The one tag that changes no more than quotes do.
_STRING_TAG = "tag:yaml.org,2002:str"

_HALF = re.compile("[\ud800-\udfff]")

_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")

#: Strings with whether they are keys, and what opens and closes values.
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_JSON_KEY = re.compile(rf"({_STRING})(\s*:)?|([{{\[])|([}}\]])", re.DOTALL)
_JSON_NAN = re.compile(rf"{_STRING}|(NaN|-?Infinity)", re.DOTALL)
_JSON_DIGITS = re.compile(
    rf"{_STRING}|(?<![\d.])(\d{{{_MAX_DIGITS + 1},}}+)(?![.eE])", re.DOTALL
)

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class MalformedError(ValueError):
    """A text is no document; the message begins with its line, if known."""

    def __init__(
        self,
        expected: str,
        got: object,
        remedy: str,
        line: int | None = None,
    ) -> None:
        position = "" if line is None else f"line {line}: "
        super().__init__(f"{position}expected {expected}, got {got}; {remedy}")


@contextlib.contextmanager
def refusing(where: str, error_type: type[NestError]) -> Iterator[None]:
    """Say of what file a :class:`MalformedError` is, as another error."""
    try:
        yield
    except MalformedError as error:
        raise error_type(f"{where}: {error}") from None


def read_limited(file: IO[bytes]) -> bytes:
    """Return what is left of a file, a device or a pipe.

    Raises
    ------
    MalformedError
        If that is more than :data:`MAX_FILE_BYTES`.
    """
    data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise MalformedError(
            f"at most {MAX_FILE_BYTES} bytes",
            "more",
            "name another file, or describe less in one",
        )
    return data


def read_file(path: str | Path) -> bytes:
    """Return what a file holds, as :func:`read_limited`.

    Raises
    ------
    MalformedError
        If it is too large, or a pipe with a name: nobody may ever write to
        it. Those of a shell, such as /dev/stdin, are read.
    OSError
        If it cannot be read.
    """
    if stat.S_ISFIFO(os.stat(path).st_mode):
        real_path = os.path.realpath(path)
        if not real_path.startswith(("/dev/", "/proc/")):
            raise MalformedError(
                "a file",
                "a named pipe",
                "name a file, or '-' for standard input",
            )
    with open(path, "rb") as file:
        return read_limited(file)


def read_stdin(error_type: type[NestError]) -> bytes:
    """Return what standard input holds, as :func:`read_limited`."""
    with refusing("standard input", error_type):
        return read_limited(sys.stdin.buffer)


def text_of(data: bytes, language: str = "text") -> str:
    """Decode a text in UTF-8; a byte order mark before it is passed over.

    Raises
    ------
    MalformedError
        If it is none.
    """
    expected = f"{language} in UTF-8"
    if data.startswith(_BYTE_ORDER_MARKS):
        raise MalformedError(
            expected,
            "the byte order mark of UTF-16 or UTF-32",
            "save it as UTF-8",
            1,
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedError(
            expected,
            f"byte 0x{data[error.start]:02x}",
            "save it as UTF-8",
            data.count(b"\n", 0, error.start) + 1,
        ) from None
    if "\0" in text:
        raise MalformedError(
            expected,
            "binary data",
            "check which file it is",
            _line(text, text.index("\0")),
        )
    return text


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


# JSON


def parse_json(text: str, expected: str = "JSON") -> Any:
    """Return what a JSON text says; ``expected`` names it in messages.

    Raises
    ------
    MalformedError
        If it is no JSON, an object has a key twice, or a number is none; the
        message says in which line.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_distinct, parse_constant=_constant
        )
    except _TwiceError:
        _refuse_twice(text)
    except _ConstantError:
        match = _first(_JSON_NAN, text)
        raise MalformedError(
            "a finite number",
            match[1],
            "JSON has no such number: write another one, or leave the key out",
            _line(text, match.start()),
        ) from None
    except json.JSONDecodeError as error:
        raise MalformedError(
            expected,
            f"malformed text ({error.msg}, column {error.colno})",
            "check that the file is complete",
            error.lineno,
        ) from None
    except RecursionError:
        raise _too_deep(expected) from None
    except ValueError:  # Python reads no integer of thousands of digits
        match = _first(_JSON_DIGITS, text)
        raise MalformedError(
            f"at most {_MAX_DIGITS} digits",
            match[1],
            "correct the number",
            _line(text, match.start()),
        ) from None


class _TwiceError(Exception):
    """A key is there twice."""


class _ConstantError(Exception):
    """A number is none."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    distinct = dict(pairs)
    if len(distinct) < len(pairs):
        raise _TwiceError
    return distinct


def _constant(name: str) -> NoReturn:
    raise _ConstantError(name)


def _first(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """Return the first match outside strings."""
    return next(match for match in pattern.finditer(text) if match[1])


def _refuse_twice(text: str) -> NoReturn:
    """Find the key that is there twice, and both lines."""
    open_objects: list[dict[str, int]] = []
    for match in _JSON_KEY.finditer(text):
        if match[3]:
            open_objects.append({})
        elif match[4]:
            open_objects.pop()
        elif match[2]:
            key, positions = json.loads(match[1]), open_objects[-1]
            if key in positions:
                lines = [
                    _line(text, x) for x in (positions[key], match.start())
                ]
                raise _twice(key, *lines)
            positions[key] = match.start()
    raise AssertionError("no key is there twice")


def _twice(key: str, first: int, line: int) -> MalformedError:
    where = "in the same line" if first == line else f"in line {first} too"
    return MalformedError(
        f"key {key!r} once", f"it {where}", "remove one", line
    )


def _too_deep(language: str, line: int | None = None) -> MalformedError:
    return MalformedError(
        language,
        "malformed text (values inside values, hundreds deep)",
        "check that it is the right file",
        line,
    )


# YAML


def parse_yaml(
    text: str, expected: str = "YAML", *, aliases: bool = True
) -> Any:
    """Return what a YAML text says.

    Only plain values are made: no tags; dates stay text, as do integers that
    are not written in decimals (``010``, ``1:30``).

    Parameters
    ----------
    text, expected
        One document, and what it is called in messages.
    aliases
        Whether it may have aliases.

    Raises
    ------
    MalformedError
        If it is no YAML, a mapping has a key twice, or it has what is not
        read; the message says in which line.
    """
    try:
        check_yaml(text, expected, aliases=aliases)
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise malformed_yaml(text, error, expected) from None


def malformed_yaml(
    text: str, error: yaml.YAMLError | RecursionError, expected: str = "YAML"
) -> MalformedError:
    """Return what a parser of YAML says about a text."""
    if isinstance(error, RecursionError):
        return _too_deep(expected)
    line, what = None, getattr(error, "problem", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        line = mark.line + 1
    if isinstance(error, yaml.reader.ReaderError):
        what = error.reason
        line = _line(text, error.position)
    return MalformedError(
        expected,
        f"malformed text ({' '.join(str(what).split())})",
        "check that the file is complete",
        line,
    )


def check_yaml(
    text: str, expected: str = "YAML", *, aliases: bool = True
) -> None:
    """Look at what a parser meets, before anything is made of it.

    Raises
    ------
    MalformedError
        If the text is long, values are inside values too deep, or aliases
        stand for too many.
    yaml.YAMLError
        If it is no YAML.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise MalformedError(
            f"{expected} of at most {MAX_YAML_CHARACTERS} characters",
            len(text),
            "write it as JSON, which is read faster",
        )
    if _HALF.search(text):
        raise MalformedError(expected, "halves of characters", "correct it")
    #: Of the collections around an event: anchors, and values so far.
    open_anchors: list[str | None] = []
    open_sizes: list[int] = []
    sizes: dict[str, int] = {}
    num_aliased = 0
    for event in yaml.parse(text, _Loader):
        size, anchor = 1, getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent):
            if len(open_sizes) >= MAX_DEPTH:
                raise _too_deep(expected, _line_of(event))
            _check_tag(event, None, "!")
            open_sizes.append(0)
            open_anchors.append(anchor)
            continue
        if isinstance(event, yaml.AliasEvent):
            _check_alias(event, aliases, open_anchors)
            size = sizes.get(str(anchor), 1)
            num_aliased += size
            if num_aliased > MAX_ALIASED:
                raise MalformedError(
                    f"aliases for at most {MAX_ALIASED} values",
                    "more",
                    "remove aliases",
                    _line_of(event),
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            size += open_sizes.pop()
            anchor = open_anchors.pop()
        elif isinstance(event, yaml.ScalarEvent):
            _check_tag(event, None, "!", _STRING_TAG)
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        if open_sizes:
            open_sizes[-1] += size


def _check_alias(
    event: yaml.AliasEvent, aliases: bool, open_anchors: list[str | None]
) -> None:
    """Refuse an alias, where none may be or inside what it stands for."""
    anchor, line = event.anchor, _line_of(event)
    if not aliases:
        raise MalformedError("no alias", f"*{anchor}", "write it out", line)
    if anchor in open_anchors:
        raise MalformedError(
            "values",
            f"*{anchor} inside what it stands for",
            "write it out",
            line,
        )


def _check_tag(event: Any, *tags: str | None) -> None:
    if event.tag not in tags:
        raise MalformedError("no tag", event.tag, "remove it", _line_of(event))


def _line_of(node: Any) -> int:
    """Return where an event or a node begins."""
    line: int = node.start_mark.line
    return line + 1


class _PlainLoader(_Loader):  # type: ignore[misc]
    """Makes plain values, and refuses keys given twice."""


def _keys(node: yaml.MappingNode) -> Iterator[tuple[str, str, int]]:
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            yield key.tag, str(key.value), _line_of(key)


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    lines: dict[tuple[str, str], int] = {}
    for tag, key, line in _keys(node):
        if (tag, key) in lines:
            raise _twice(key, lines[tag, key], line)
        lines[tag, key] = line
    mapping: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    return mapping


def _sequence(loader: Any, node: yaml.SequenceNode) -> list[Any]:
    sequence: list[Any] = loader.construct_sequence(node, deep=True)
    return sequence


def _integer(loader: Any, node: yaml.ScalarNode) -> int | str:
    text = str(loader.construct_scalar(node))
    if re.fullmatch(r"[+-]?(0|[1-9][0-9]*)", text) is None:
        return text
    if len(text) > _MAX_DIGITS:
        raise MalformedError(
            f"at most {_MAX_DIGITS} digits",
            text,
            "correct the number",
            _line_of(node),
        )
    return int(text)


def _float(loader: Any, node: yaml.ScalarNode) -> float | str:
    text = str(loader.construct_scalar(node))
    if ":" in text or "_" in text:
        return text
    value: float = loader.construct_yaml_float(node)
    if math.isnan(value):
        raise MalformedError(
            "a finite number",
            text,
            "write another one, or leave the key out",
            _line_of(node),
        )
    return value


def _text(loader: Any, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


for _name, _constructor in {
    "map": _mapping,
    "seq": _sequence,
    "int": _integer,
    "float": _float,
    "timestamp": _text,
    "value": _text,
}.items():
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_name}", _constructor)
