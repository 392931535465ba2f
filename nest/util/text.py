"""Text that comes from elsewhere, made fit for a terminal and for a line."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: What terminals act on, or cannot be written: control characters but for tabs and ends
#: of lines, those that turn the direction of text, and halves of characters.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_BLANKS = re.compile(r"\s+")
_ENDS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")
_DIGITS = re.compile(r"\d{41,}")
_WORD = re.compile(r"\S{301,}")

#: A word of letters, or a number, of a name in small letters.
_PIECE = re.compile(r"[^\W\d_]+|\d+(?:\.\d+)*")

#: From which part of them in common names are alike.
_ALIKE = 0.7

#: The most characters of a message.
_MOST = 10_000

#: The most digits of an integer.
_MOST_DIGITS = 19


def whole_number(text: str) -> int | None:
    """Return what a text of digits says; ``None`` for all other texts.

    Those with more than 19 digits are others: they are typing errors, and
    Python takes long to read them, or refuses to.
    """
    if len(text) > _MOST_DIGITS or not (text.isascii() and text.isdecimal()):
        return None
    return int(text)


def count_text(count: int) -> str:
    """Return a count as text; Python refuses to write the largest ones."""
    return str(count) if count < 10**_MOST_DIGITS else "more than 10**19"


def closest(name: str, names: Iterable[str], min_ratio: float = _ALIKE) -> str | None:
    """Return the one of some names that a wrong one was meant to be, if any.

    One of which it differs in a letter or two, with at least ``min_ratio`` of both in
    common, or the first one that begins with it.
    Names that are alike only in how they end, such as in a size, are not meant.
    """
    candidates = list(names)
    for other in _similar(name, candidates, min_ratio):
        return other
    start = name.lower()
    return next(
        (x for x in candidates if len(name) > 2 and x.lower().startswith(start)), None
    )


def _similar(name: str, names: Iterable[str], min_ratio: float) -> list[str]:
    """Return names with at least such a part in common, the closest first."""
    from difflib import get_close_matches

    lower = name.lower()
    # Of names that differ in capital letters alone the first one counts.
    originals = {other.lower(): other for other in reversed(list(names))}
    close = get_close_matches(lower, originals, len(originals) or 1, cutoff=min_ratio)
    # Of equally close ones that with the same letters, in another order, or else
    # with the same end, such as a size.
    close.sort(
        key=lambda x: (
            -_ratio(x, lower),
            sorted(x) != sorted(lower),
            x.rpartition("-")[2] != lower.rpartition("-")[2],
        )
    )
    return [originals[other] for other in close if _begin_alike(lower, other)]


def _ratio(first: str, second: str) -> float:
    """Return which part of two texts they have in common."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, first, second).ratio()


def _begin_alike(name: str, other: str) -> bool:
    """Whether the letters are alike in front of the words that end both."""
    first, second = _PIECE.findall(name), _PIECE.findall(other)
    while first and second and first[-1] == second[-1]:
        first.pop()
        second.pop()
    letters, others = (
        "".join(piece for piece in pieces if piece.isalpha())
        for pieces in (first, second)
    )
    # Of two or three letters a part says little.
    return (
        not (letters and others)
        or set(letters) == set(others)
        or _ratio(letters, others) >= _ALIKE
    )


def nearby(name: str, names: Iterable[str], count: int = 6) -> str:
    """Return some of many names, the closest to a wrong one first."""
    candidates = list(names)
    close = _similar(name, candidates, 0.4)
    return ", ".join([*close, *(x for x in candidates if x not in close)][:count])


def did_you_mean(
    name: str, names: Iterable[str], otherwise: str, min_ratio: float = _ALIKE
) -> str:
    """Return the remedy for a wrong name: :func:`closest`, or another."""
    meant = closest(name, names, min_ratio)
    return otherwise if meant is None else f"did you mean {meant!r}?"


def printable(text: str) -> str:
    """Return a text with its control characters written out, as in Python.

    All that reaches a terminal passes here. Tabs and ends of lines stay.
    """
    return _CONTROL.sub(_written, text)


def _written(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def clipped(text: str) -> str:
    """Return a message in one line, of what somebody would read to its end.

    Numbers and words keep their beginning and say how long they are; of a
    very long text the middle is left out.
    """
    text = _BLANKS.sub(lambda x: " " if _ENDS.search(x[0]) else x[0], text)
    text = _DIGITS.sub(lambda x: f"{x[0][:12]}… ({len(x[0])} digits)", text)
    text = _WORD.sub(_short_word, text)
    if len(text) > _MOST:
        head, tail = text[: _MOST * 3 // 4], text[-_MOST // 4 :]
        text = f"{head} … {tail}"
    return text


def _short_word(match: re.Match[str]) -> str:
    long_word = match[0]
    return f"{long_word[:150]}… ({len(long_word)} characters) …{long_word[-20:]}"
