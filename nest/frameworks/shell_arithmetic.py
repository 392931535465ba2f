"""Arithmetic of shell scripts: ``$((…))``, ``((…))`` and ``let``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(?:(\d\w*)|([A-Za-z_]\w*)"
    r"|(\*\*|<<=|>>=|<<|>>|&&|\|\||\+\+|--|[-+*/%&|^<>=!]=|[-+*/%&|^<>=!~?:,()])"
    r")"
)
_WRITES = re.compile(
    # Possessive, and from the first letter of a name: linear in the text.
    r"(?<!\w)([A-Za-z_]\w*+)\s*+(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)"
    r"|(?:\+\+|--)\s*+([A-Za-z_]\w*+)"
)
#: Numbers of more bits are none of a launch.
_BITS = 62
#: Nor are longer expressions, in characters.
_MAX_LENGTH = 400


def _quotient(one: int, other: int) -> int:
    whole = abs(one) // abs(other)
    return whole if (one < 0) == (other < 0) else -whole


def _remainder(one: int, other: int) -> int:
    return one - other * _quotient(one, other)


def _shift(one: int, other: int) -> int:
    if not 0 <= other < _BITS:
        raise ValueError(other)
    return one << other


def _power(one: int, other: int) -> int:
    if not 0 <= other < _BITS:
        raise ValueError(other)
    value = int(one**other)
    if value.bit_length() > _BITS:
        raise ValueError(other)
    return value


_BINARY: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    {"<<": _shift, ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": _remainder},
)
_ALL = {name: do for level in _BINARY for name, do in level.items()}


def written_names(text: str) -> list[str]:
    """Return the variables that a text may set."""
    return [one or other for one, other in _WRITES.findall(text)]


class Arithmetic:
    """One expression, with the rules of C for whole numbers.

    ``look_up`` returns the value of a variable.
    """

    def __init__(self, text: str, look_up: Callable[[str], int]) -> None:
        #: Variables that it sets.
        self.written: dict[str, int] = {}
        self.look_up = look_up
        #: Whether what is read counts, behind ``&&``, ``||`` and ``?``.
        self.counts = True
        self.at = 0
        self.tokens: list[str] = []
        position = 0
        text = text.strip()
        if len(text) > _MAX_LENGTH:
            raise ValueError(text)
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(text)
            self.tokens.append(match[0].strip())
            position = match.end()

    def value(self) -> int:
        """Return the value.

        Raises ``ValueError`` if it is no such expression, and ``ZeroDivisionError`` if
        it divides by 0.
        """
        value = self._comma() if self.tokens else 0
        if self.at < len(self.tokens):
            raise ValueError(self._here())
        return value

    def _here(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else ""

    def _take(self, *among: str) -> str:
        """Take the next token if it is one of these."""
        token = self._here()
        if token not in among or not token:
            return ""
        self.at += 1
        return token

    def _needed(self, token: str) -> None:
        if not self._take(token):
            raise ValueError(self._here())

    def _comma(self) -> int:
        value = self._assignment()
        while self._take(","):
            value = self._assignment()
        return value

    def _assignment(self) -> int:
        name, sign = self._here(), self._here(1)
        compound = sign[-1:] == "=" and sign[:-1] in _ALL and sign not in _ALL
        if not re.match(r"[A-Za-z_]", name) or not (sign == "=" or compound):
            return self._choice()
        self.at += 2
        value = self._assignment()
        if compound:
            value = self._do(sign[:-1], self._read(name), value)
        return self._write(name, value)

    def _read(self, name: str) -> int:
        if not self.counts:
            return 0
        return self.written[name] if name in self.written else self.look_up(name)

    def _write(self, name: str, value: int) -> int:
        if self.counts:
            self.written[name] = value
        return value

    def _do(self, sign: str, one: int, other: int) -> int:
        if not self.counts:
            return 0
        value = int(_ALL[sign](one, other))
        if value.bit_length() > _BITS:
            raise ValueError(value)
        return value

    def _if(self, counts: bool, read: Callable[[], int]) -> int:
        before = self.counts
        self.counts = before and counts
        value = read()
        self.counts = before
        return value

    def _choice(self) -> int:
        held = self._or()
        if not self._take("?"):
            return held
        one = self._if(bool(held), self._comma)
        self._needed(":")
        other = self._if(not held, self._assignment)
        return one if held else other

    def _or(self) -> int:
        value = self._and()
        while self._take("||"):
            other = self._if(not value, self._and)
            value = int(bool(value or other))
        return value

    def _and(self) -> int:
        value = self._binary(0)
        while self._take("&&"):
            other = self._if(bool(value), lambda: self._binary(0))
            value = int(bool(value and other))
        return value

    def _binary(self, level: int) -> int:
        if level == len(_BINARY):
            return self._raised()
        value = self._binary(level + 1)
        while sign := self._take(*_BINARY[level]):
            value = self._do(sign, value, self._binary(level + 1))
        return value

    def _raised(self) -> int:
        value = self._unary()
        if not self._take("**"):
            return value
        other = self._raised()
        return _power(value, other) if self.counts else 0

    def _unary(self) -> int:
        if sign := self._take("++", "--"):
            name = self._here()
            if not re.match(r"[A-Za-z_]", name):
                raise ValueError(name)
            self.at += 1
            return self._write(name, self._do(sign[0], self._read(name), 1))
        if sign := self._take("!", "~", "+", "-"):
            value = self._unary()
            return {"!": int(not value), "~": ~value, "-": -value}.get(sign, value)
        if self._take("("):
            value = self._comma()
            self._needed(")")
            return value
        token = self._here()
        self.at += 1
        if re.fullmatch(r"0|[1-9]\d*|0[xX][0-9A-Fa-f]+", token):
            return int(token, 0)
        if not re.match(r"[A-Za-z_]", token):
            raise ValueError(token)
        value = self._read(token)
        if sign := self._take("++", "--"):
            self._write(token, self._do(sign[0], value, 1))
        return value
