"""Hostlists: ``gpu[01-04,12]`` is gpu01 gpu02 gpu03 gpu04 gpu12.

The syntax is that of Slurm (``src/common/hostlist.c``, commit 284c3b9), which
NVIDIA topograph shares: commas outside of brackets separate; a number is as
wide as the low end of its range is written; text may follow a bracket;
several brackets multiply, the left one slowest.
"""

from __future__ import annotations

import itertools
import re
from math import prod

from nest.errors import InvalidProblemError
from nest.util.text import count_text

#: Slurm's own limits: hosts in one range, combinations in front of the last
#: bracket (``MAX_RANGE``, ``MAX_PREFIX_CNT``), ranges in a list.
MAX_RANGE = 65_536
MAX_PREFIXES = 65_536
MAX_RANGES = 262_144

#: More hosts than this in a file are a typing error.
MAX_HOSTS = 2**20

_BRACKETS = re.compile(r"\[[^]]*\]?")
_PIECE = re.compile(r"\[([^][]*)\]")


def expand(text: str, where: str, room: int = MAX_HOSTS) -> list[str]:
    """Return the hosts of a list, in its order.

    A host may be in it twice; there may be ``room`` hosts at most. ``where`` is file
    and location, for messages.

    Raises ``InvalidProblemError`` if a name or a range is empty, a range is not digits,
    a dash and digits, runs downwards, or has too many hosts, or brackets do not match.
    Boxes (``[000x133]``) are refused like anything else that is no range.
    """
    hosts: list[str] = []
    num_ranges = 0
    for name in _split(text, where):
        name_pieces = _PIECE.split(name)
        # Text and insides of brackets take turns.
        if any("[" in piece or "]" in piece for piece in name_pieces[::2]):
            raise _error(where, "brackets that match", name, "correct the brackets")
        for piece in name_pieces[::2]:
            if re.search(r"[\s*]", piece) or not piece.isprintable():
                raise _error(where, "a name", piece, "correct the name")
        ranges = [_numbers(piece, name, where) for piece in name_pieces[1::2]]
        num_ranges += sum(piece.count(",") + 1 for piece in name_pieces[1::2])
        sizes = [len(numbers) for numbers in ranges]
        _limit(prod(sizes[:-1]), MAX_PREFIXES, "prefixes", name, where)
        _limit(num_ranges, MAX_RANGES, "ranges", name, where)
        _limit(len(hosts) + prod(sizes), room, "hosts", name, where)
        for chosen in itertools.product(*ranges):
            pieces = itertools.zip_longest(name_pieces[::2], chosen, fillvalue="")
            hosts.append("".join(itertools.chain.from_iterable(pieces)))
    return hosts


def _split(text: str, where: str) -> list[str]:
    """Split at the commas outside of brackets."""
    joined = _BRACKETS.sub(lambda x: x[0].replace(",", "\0"), text.strip())
    names = [x.strip().replace("\0", ",") for x in joined.split(",")]
    if "" in names:
        raise _error(
            where, "names between commas", text, "remove the comma or the list"
        )
    return names


def _numbers(inside: str, name: str, where: str) -> list[str]:
    numbers: list[str] = []
    for piece in inside.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", piece.strip())
        if match is None:
            raise _error(
                where,
                "numbers and ranges low-high in brackets",
                name,
                f"correct {piece!r}",
            )
        low, high = match[1], match[2] or match[1]
        if max(len(low), len(high)) > 18:
            raise _error(where, "numbers of at most 18 digits", name, "correct them")
        if int(low) > int(high):
            raise _error(where, "low <= high in a range", name, f"correct {piece!r}")
        count = int(high) - int(low) + 1
        _limit(count, MAX_RANGE, "hosts in a range", name, where)
        _limit(len(numbers) + count, MAX_HOSTS, "hosts in brackets", name, where)
        numbers += [f"{value:0{len(low)}d}" for value in range(int(low), int(high) + 1)]
    return numbers


def _limit(count: int, limit: int, what: str, name: str, where: str) -> None:
    if count > limit:
        raise _error(
            where,
            f"at most {limit} {what}",
            f"{name} with {count_text(count)}",
            "correct the range",
            quote=False,
        )


def _error(
    where: str, expected: str, got: str, remedy: str, *, quote: bool = True
) -> InvalidProblemError:
    got = got if len(got) <= 60 else f"{got[:57]}..."
    return InvalidProblemError(
        f"{where}: hostlist: expected {expected}, got "
        f"{repr(got) if quote else got}; {remedy}"
    )
