"""YAML as plain values, without tags, traps and endless aliases."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from nest.ir.documents import (
    HALF,
    MAX_DEPTH,
    MAX_DIGITS,
    MalformedError,
    line_at,
    too_deep,
    twice,
)

#: Longer texts would take minutes.
MAX_YAML_CHARACTERS = 2**23

#: What all aliases of a file may stand for, in values.
MAX_ALIASED = 10**6

#: The one tag that changes no more than quotes do.
_STRING_TAG = "tag:yaml.org,2002:str"

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str, expected: str = "YAML", *, aliases: bool = True) -> Any:
    """Return what a YAML text says.

    Only plain values are made: no tags; dates stay text, as do integers that are not
    written in decimals (``010``, ``1:30``). ``expected`` is what messages call it;
    without ``aliases`` it may have none.

    Raises ``MalformedError`` if it is no YAML, a mapping has a key twice, or it has
    what is not read; the message says in which line.
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
        return too_deep(expected)
    line, what = None, getattr(error, "problem", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        line = mark.line + 1
    if isinstance(error, yaml.reader.ReaderError):
        what = error.reason
        line = line_at(text, error.position)
    return MalformedError(
        expected,
        f"malformed text ({' '.join(str(what).split())})",
        "check that the file is complete",
        line,
    )


def check_yaml(text: str, expected: str = "YAML", *, aliases: bool = True) -> None:
    """Look at what a parser meets, before anything is made of it.

    Raises ``MalformedError`` if the text is long, values are inside values too deep, or
    aliases stand for too many, and ``yaml.YAMLError`` if it is no YAML.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise MalformedError(
            f"{expected} of at most {MAX_YAML_CHARACTERS} characters",
            len(text),
            "write it as JSON, which is read faster",
        )
    if HALF.search(text):
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
                raise too_deep(expected, _line_of(event))
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
            "values", f"*{anchor} inside what it stands for", "write it out", line
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


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            name = key.tag, str(key.value)
            if name in lines:
                raise twice(name[1], lines[name], _line_of(key))
            lines[name] = _line_of(key)
    mapping: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    return mapping


def _sequence(loader: Any, node: yaml.SequenceNode) -> list[Any]:
    sequence: list[Any] = loader.construct_sequence(node, deep=True)
    return sequence


def _integer(loader: Any, node: yaml.ScalarNode) -> int | str:
    text = str(loader.construct_scalar(node))
    if re.fullmatch(r"[+-]?(0|[1-9][0-9]*)", text) is None:
        return text
    if len(text) > MAX_DIGITS:
        raise MalformedError(
            f"at most {MAX_DIGITS} digits", text, "correct the number", _line_of(node)
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
