"""Text of files as plain values: JSON and YAML without traps.

A key that is given twice is refused, not overwritten; so are numbers that
are none (NaN), and aliases that stand for more than memory holds. A file is
read to a limit, as a device or a pipe never ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from nest.errors import NestError

#: Larger files are none that nest reads, in bytes.
MAX_FILE_BYTES = 2**26

#: Values inside values inside values, at most.
MAX_DEPTH = 100

#: Digits of an integer, at most: Python reads no more.
MAX_DIGITS = 4300

HALF = re.compile("[\ud800-\udfff]")

_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")

#: Strings with whether they are keys, and what opens and closes values.
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_JSON_KEY = re.compile(rf"({_STRING})(\s*:)?|([{{\[])|([}}\]])", re.DOTALL)
_JSON_NAN = re.compile(rf"{_STRING}|(NaN|-?Infinity)", re.DOTALL)
_JSON_DIGITS = re.compile(
    rf"{_STRING}|(?<![\d.])(\d{{{MAX_DIGITS + 1},}}+)(?![.eE])", re.DOTALL
)


class MalformedError(ValueError):
    """A text is no document; the message begins with its line, if known."""

    def __init__(
        self, expected: str, got: object, remedy: str, line: int | None = None
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

    Raises ``MalformedError`` if that is more than :data:`MAX_FILE_BYTES`.
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

    Raises ``MalformedError`` if it is too large, or a pipe with a name: nobody may ever
    write to it. Those of a shell, such as /dev/stdin, are read. Raises ``OSError`` if
    it cannot be read.
    """
    if stat.S_ISFIFO(os.stat(path).st_mode):
        real_path = os.path.realpath(path)
        if not real_path.startswith(("/dev/", "/proc/")):
            raise MalformedError(
                "a file", "a named pipe", "name a file, or '-' for standard input"
            )
    with open(path, "rb") as file:
        return read_limited(file)


def read_stdin(error_type: type[NestError]) -> bytes:
    """Return what standard input holds, as :func:`read_limited`."""
    with refusing("standard input", error_type):
        return read_limited(sys.stdin.buffer)


def text_of(data: bytes, language: str = "text") -> str:
    """Decode a text in UTF-8; a byte order mark before it is passed over.

    Raises ``MalformedError`` if it is none.
    """
    expected = f"{language} in UTF-8"
    if data.startswith(_BYTE_ORDER_MARKS):
        raise MalformedError(
            expected, "the byte order mark of UTF-16 or UTF-32", "save it as UTF-8", 1
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
            line_at(text, text.index("\0")),
        )
    return text


def line_at(text: str, position: int) -> int:
    """Return the line of a position in a text, from 1."""
    return text.count("\n", 0, position) + 1


# JSON


def parse_json(text: str, expected: str = "JSON", *, finite: bool = True) -> Any:
    """Return what a JSON text says; ``expected`` names it in messages.

    Raises ``MalformedError`` if it is no JSON, an object has a key twice, or a number
    is none; the message says in which line. Without ``finite`` the words ``Infinity``
    and ``NaN`` are the floats of that name, as Python's own module writes them.
    """

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            _refuse_twice(text)
        return fields

    def refuse_constant(_: str) -> NoReturn:
        match = _first(_JSON_NAN, text)
        raise MalformedError(
            "a finite number",
            match[1],
            "JSON has no such number: write another one, or leave the key out",
            line_at(text, match.start()),
        )

    try:
        return json.loads(
            text,
            object_pairs_hook=distinct,
            parse_constant=refuse_constant if finite else None,
        )
    except MalformedError:
        raise
    except json.JSONDecodeError as error:
        raise MalformedError(
            expected,
            f"malformed text ({error.msg}, column {error.colno})",
            "check that the file is complete",
            error.lineno,
        ) from None
    except RecursionError:
        raise too_deep(expected) from None
    except ValueError:  # Python reads no integer of thousands of digits
        match = _first(_JSON_DIGITS, text)
        raise MalformedError(
            f"at most {MAX_DIGITS} digits",
            match[1],
            "correct the number",
            line_at(text, match.start()),
        ) from None


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
                lines = [line_at(text, x) for x in (positions[key], match.start())]
                raise twice(key, *lines)
            positions[key] = match.start()
    raise AssertionError("no key is there twice")


def twice(key: str, first: int, line: int) -> MalformedError:
    """Return the error about a key that is given twice."""
    where = "in the same line" if first == line else f"in line {first} too"
    return MalformedError(f"key {key!r} once", f"it {where}", "remove one", line)


def too_deep(language: str, line: int | None = None) -> MalformedError:
    """Return the error about values that are nested too deeply."""
    return MalformedError(
        language,
        "malformed text (values inside values, hundreds deep)",
        "check that it is the right file",
        line,
    )
