"""Files broken at random: in their bytes, their words, or their values."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import yaml

#: What nobody means where a value is expected.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 0.5, -0.0, 1e-300, 1e300),
    *(float("nan"), float("inf"), 2**31, 2**53, 2**53 + 1, 2**63, 2**64),
    *(10**30, 10**400, 7, 64, 1000003),
    *("", " ", "x", "0", "1", "-1", "1e9", "nan", "\0", "\x1b[2J", "\n"),
    *("é", "\u202e", "\ud800", "a" * 5000, "9" * 5000, "../..", "*", "${x}"),
    *([], {}, [[]], [{}], [None], {"": None}, {"a": {"a": {}}}, [0, 0]),
)

#: Pieces of text that parsers stumble over.
PIECES = (
    *("{", "}", "[", "]", '"', "'", ":", ",", "\n", "\t", " ", "\\", "\0"),
    *("#", "-", "- ", "&a", "*a", "<<: *a", "!!python/name:os", "%", "---\n"),
    *("null", "true", "NaN", "-Infinity", "1e999", "-1", "0", "9" * 400),
    *("9" * 5000, "0x10", "010", "1:30", "2024-13-01", ".nan", ".inf"),
    *("\x1b[31m", "\u2028", "\ufeff", "é", "\\u0000", '\\"', "$(", "${", "`"),
    *("((", "))", "<", ">", "<!--", "<!DOCTYPE x>", "&lt;", "&x;", "]]>"),
    *("{" * 200, "[" * 200, "(" * 200, "a: " * 50, "|", ";", "&&", "||"),
    *("if", "fi", "for i in 1 2; do", "done", "case x in", "esac", "x() {"),
)


#: Numbers whose products, sums or inverses may be out of range.
NUMBERS = (
    *("0", "1", "-1", "2", "3", "7", "64", "1000003", "0.5", "1e-9"),
    *("1e9", "1e15", "1e18", "1e21", "1e-21", "1e22", "1e300", "1e308"),
    *("1.7e308", "1e-300", "5e-324", "1e999", "-0.0", "2147483648"),
    *("9007199254740991", "9007199254740993", "9223372036854775807"),
    *("18446744073709551616", "9" * 30, "9" * 400),
)
_NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def broken(rng: Random, examples: Sequence[bytes], suffix: str) -> bytes:
    """Return one of some files with a few things wrong in it."""
    data = rng.choice(examples)
    if rng.random() < 0.4:
        return _renumbered(rng, data)
    if suffix in (".json", ".yaml") and rng.random() < 0.6:
        with_odd = _odd_document(rng, data, suffix)
        if with_odd is not None:
            data = with_odd
            if rng.random() < 0.8:
                return data
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = _damaged(rng, data, examples)
    return data


def _renumbered(rng: Random, data: bytes) -> bytes:
    """Return data with other numbers in a few places: most are still read."""
    found = list(_NUMBER.finditer(data))
    for match in sorted(
        rng.sample(found, min(len(found), rng.choice((1, 1, 1, 2, 3)))),
        key=lambda x: -x.start(),
    ):
        number = rng.choice(NUMBERS).encode()
        data = data[: match.start()] + number + data[match.end() :]
    return data


def _damaged(rng: Random, data: bytes, examples: Sequence[bytes]) -> bytes:
    """Return data with one place changed."""
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    near = min(last, first + rng.choice((1, 1, 4, 30)))
    piece = rng.choice(PIECES).encode("utf-8", "surrogatepass")
    match rng.randrange(9):
        case 0:
            return data[:first]
        case 1:
            return data[:first] + bytes([rng.randrange(256)]) + data[near:]
        case 2:
            return data[:first] + piece + data[first:]
        case 3:
            return data[:first] + piece + data[near:]
        case 4:
            return data[:first] + data[near:]
        case 5:
            return data[:near] + data[first:]
        case 6:
            return data[:first] + rng.choice(examples)[first:]
    lines = data.splitlines(keepends=True)
    if not lines:
        return piece
    number = rng.randrange(len(lines))
    if rng.random() < 0.5:
        lines.insert(rng.randrange(len(lines)), lines[number])
    else:
        words = lines[number].split(b" ")
        words[rng.randrange(len(words))] = piece
        lines[number] = b" ".join(words)
    return b"".join(lines)


def _odd_document(rng: Random, data: bytes, suffix: str) -> bytes | None:
    """Return a document with odd values, or ``None`` if it is none."""
    try:
        text = data.decode()
        document = (
            json.loads(text) if suffix == ".json" else yaml.load(text, yaml.CSafeLoader)
        )
    except (ValueError, yaml.YAMLError, RecursionError):
        return None
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            return None
        _change(rng, *rng.choice(places), places)
    if suffix == ".json":
        return json.dumps(document, indent=1).encode("utf-8", "surrogatepass")
    try:
        return yaml.dump(document, Dumper=yaml.CSafeDumper).encode()
    except (UnicodeEncodeError, yaml.YAMLError):
        return None


Place = tuple[Any, Any]


def _places(value: Any) -> Iterator[Place]:
    """Yield containers, each with a key of it."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _change(rng: Random, inside: Any, key: Any, places: Sequence[Place]) -> None:
    """Change a value, or what is around it."""
    old = inside[key]
    kind = rng.randrange(8)
    if kind == 0:
        del inside[key]
    elif kind == 1 and isinstance(inside, list):
        inside.append(copy.deepcopy(old))
    elif kind == 2 and isinstance(inside, dict):
        inside[rng.choice(("", "x", "schema", "name", 0, key))] = old
    elif kind == 3:
        other, there = rng.choice(places)
        inside[key] = copy.deepcopy(other[there])
    elif kind == 4 and type(old) in (int, float) and abs(old) < 1e300:
        inside[key] = rng.choice(
            (old + 1, -old, old * 2, old * 10**6, old // 2, old * 0.3)
        )
    else:
        inside[key] = copy.deepcopy(rng.choice(ODD))
