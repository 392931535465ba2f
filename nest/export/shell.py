"""A small reader of shell scripts: what a launch line says, never executed.

Scripts are read as text. Assignments, arrays, ``${X:-default}``, arithmetic,
line continuations, quotes, comments, here-documents and conditions that
compare what is known are understood. What only running the script could tell
(``$(…)``, other conditions, loops, the environment) is *unknown*, and an error
where it is needed: the text names the line and asks for the variable.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from nest.errors import InvalidOptionError


class Word(NamedTuple):
    """A word of a command.

    Attributes
    ----------
    text
        What the shell would pass on.
    line
        Where it is written, from 1.
    unknown
        Why it is not known (``$NAME, which the script does not set``), or
        empty.
    """

    text: str
    line: int
    unknown: str = ""


class Command(NamedTuple):
    """A simple command, with its words as the shell would pass them on."""

    line: int
    words: tuple[Word, ...]


class Script(NamedTuple):
    """What was read.

    Attributes
    ----------
    commands
        All simple commands, in their order; assignments are none.
    variables
        Values at the end of the script, and where they were set.
    directives
        ``#SBATCH`` options by name, with their line.
    unset
        Variables that the script uses without setting them.
    defaults
        Arguments of the script that count with its default: number, line
        and value.
    """

    commands: tuple[Command, ...]
    variables: Mapping[str, tuple[Word, ...]]
    directives: Mapping[str, Word]
    unset: frozenset[str]
    defaults: Mapping[str, Word]


class _Piece(NamedTuple):
    """Part of a raw word: text, or what is inside ``$…`` or ``NAME=(…)``."""

    text: str
    line: int
    quoted: bool
    expands: bool = False
    array: bool = False


_Raw = list[_Piece]

#: Words that begin or end what a script runs on a condition.
_OPENING = {"if", "for", "while", "until", "case", "select"}
_CLOSING = {"fi", "done", "esac"}
_BRANCHES = {"then", "elif", "else", "do"}
_PASSING = {*_BRANCHES, "!", "time"}
_SEPARATORS = (";;", "&&", "||", ";", "|", "&", "\n")
#: Stands where a quoted text goes on in the next line, so that the lines of
#: its words are known; no script has it.
_JOINT = "\0"
#: Stand around why a part of a text is not known, and for its blanks.
_UNKNOWN, _BLANK = "\1", "\2"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^]]*\])?(\+?)=")


def read_script(
    text: str, where: str, given: Mapping[str, str] | None = None
) -> Script:
    """Read a script.

    Parameters
    ----------
    text, where
        What it says, and its name for messages.
    given
        Values of variables; they win over those of the script.

    Raises
    ------
    InvalidOptionError
        If quotes or brackets do not end.
    """
    return _Reader(text, where, given or {}).read()


@dataclass
class _Condition:
    """What is known about the condition or loop around what is read.

    Attributes
    ----------
    loops
        Whether it is a loop, which may run any number of times.
    runs
        Whether the present branch runs; ``None`` if nobody knows.
    rest
        Whether no branch before did.
    testing, tests
        Whether its test is being read, and what its commands gave.
    """

    loops: bool
    runs: bool | None = None
    rest: bool | None = True
    testing: bool = False
    tests: list[bool | None] = field(default_factory=list)

    def branch(self, word: str) -> None:
        """Take in ``then``, ``elif``, ``else`` or ``do``."""
        if word == "elif":
            self.testing, self.tests = True, []
        elif word == "else":
            self.runs = self.rest
        else:
            held = self.tests[0] if len(self.tests) == 1 else None
            self.testing = False
            if self.loops:
                held = None
            self.runs = _both(self.rest, held)
            self.rest = _both(self.rest, None if held is None else not held)


def _both(one: bool | None, other: bool | None) -> bool | None:
    """Return whether both hold; ``None`` if nobody knows."""
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _holds(words: Sequence[str]) -> bool | None:
    """Return what a test gives, ``None`` for those that are not known."""
    match words:
        case ["true" | ":"]:
            return True
        case ["false"]:
            return False
        case ["[", *inner, "]"] | ["[[", *inner, "]]"] | ["test", *inner]:
            pass
        case _:
            return None
    match inner:
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [one, "=" | "==", other] if not set("*?[") & set(other):
            return one == other
        case [one, "!=", other] if not set("*?[") & set(other):
            return one != other
        case [one, name, other] if name in _COMPARED:
            try:
                return _COMPARED[name](int(one), int(other))
            except ValueError:
                return None
    return None


_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


class _Reader:
    """State while a script is read."""

    def __init__(self, text: str, where: str, given: Mapping[str, str]):
        self.text = text.replace("\r\n", "\n")
        self.where = where
        self.given = given
        self.position = 0
        self.line = 1
        self.conditions: list[_Condition] = []
        self.variables: dict[str, tuple[Word, ...]] = {}
        self.unset: set[str] = set()
        self.defaults: dict[str, Word] = {}
        self.commands: list[Command] = []
        self.directives: dict[str, Word] = {}
        self.documents: list[tuple[str, bool, int]] = []

    def refuse(self, line: int, expected: str, got: str) -> InvalidOptionError:
        return InvalidOptionError(
            f"{self.where}:{line}: expected {expected}, got {got}; correct "
            f"the script"
        )

    # Raw words

    def read(self) -> Script:
        words: list[_Raw] = []
        for token in self._tokens():
            if isinstance(token, list):
                words.append(token)
            else:
                self._run(words)
                words = []
        self._run(words)
        return Script(
            tuple(self.commands),
            self.variables,
            self.directives,
            frozenset(self.unset),
            self.defaults,
        )

    def _peek(self, count: int = 1) -> str:
        return self.text[self.position : self.position + count]

    def _take(self, count: int = 1) -> str:
        taken = self._peek(count)
        self.position += count
        self.line += taken.count("\n")
        return taken

    def _tokens(self) -> Iterator[_Raw | str]:
        while self.position < len(self.text):
            here = self._peek()
            if self._peek(2) == "\\\n":
                self._take(2)
            elif here in " \t":
                self._take()
            elif here == "#":
                self._comment()
            elif self._peek(2) == "<<" and self._peek(3) != "<<<":
                self._here_document()
            elif separator := next(
                (
                    s
                    for s in _SEPARATORS
                    if self.text.startswith(s, self.position)
                ),
                None,
            ):
                self._take(len(separator))
                if separator == "\n":
                    self._skip_documents()
                yield separator
            elif here in "()":
                self._take()
                yield here
            elif here in "<>":
                # A redirection: its target is no word of the command.
                while self._peek() in tuple("<>&"):
                    self._take()
                while self._peek() in (" ", "\t"):
                    self._take()
                if self._peek() not in ("\n", ""):
                    self._word()
            else:
                yield self._word()

    def _comment(self) -> None:
        end = self.text.find("\n", self.position)
        end = len(self.text) if end < 0 else end
        comment, line = self.text[self.position : end], self.line
        self.position = end
        found = re.match(
            r"#SBATCH\s+(-{1,2}[A-Za-z-]+)(?:\s*=\s*|\s+)?(\S*)", comment
        )
        if found:
            self.directives[found[1]] = Word(found[2], line)

    def _here_document(self) -> None:
        self._take(2)
        strips = self._peek() == "-"
        if strips:
            self._take()
        while self._peek() in (" ", "\t"):
            self._take()
        ending = "".join(piece.text for piece in self._word())
        self.documents.append((ending, strips, self.line))

    def _skip_documents(self) -> None:
        for ending, strips, line in self.documents:
            while True:
                if self.position >= len(self.text):
                    raise self.refuse(
                        line,
                        f"a line {ending!r} that ends the document",
                        "the end of the file",
                    )
                end = self.text.find("\n", self.position)
                end = len(self.text) if end < 0 else end + 1
                found = self._take(end - self.position).rstrip("\n")
                if (found.lstrip("\t") if strips else found) == ending:
                    break
        self.documents = []

    def _word(self) -> _Raw:
        """Read a word up to a blank or a separator outside quotes."""
        pieces: _Raw = []
        while self.position < len(self.text):
            here, line = self._peek(), self.line
            if self._peek(2) == "\\\n":
                self._take(2)
            elif here in " \t\n;|&<>()":
                if here == "(" and self._opens_array(pieces):
                    inside = self._bracketed("(", ")")
                    pieces.append(_Piece(inside, line, True, array=True))
                    continue
                break
            elif here == "\\":
                self._take()
                pieces.append(_Piece(self._take(), line, True))
            elif here == "'":
                self._take()
                pieces.append(_Piece(self._until("'", line), line, True))
            elif here == '"':
                self._take()
                pieces += self._double_quoted(line)
            elif here in "$`":
                pieces.append(self._expansion(False))
            else:
                pieces.append(_Piece(self._take(), line, False))
        return pieces

    def _opens_array(self, pieces: _Raw) -> bool:
        text = "".join(piece.text for piece in pieces)
        return _ASSIGNMENT.fullmatch(text) is not None

    def _until(self, ending: str, line: int) -> str:
        end = self.text.find(ending, self.position)
        if end < 0:
            raise self.refuse(line, f"a closing {ending}", "none")
        taken = self._take(end - self.position)
        self._take(len(ending))
        return taken

    def _double_quoted(self, line: int) -> _Raw:
        pieces = [_Piece("", line, True)]
        while self._peek() != '"':
            if self.position >= len(self.text):
                raise self.refuse(line, 'a closing "', "none")
            here = self._peek()
            if self._peek(2) == "\\\n":
                pieces.append(_Piece(_JOINT, self.line, True))
                self._take(2)
            elif here == "\\" and self._peek(2)[1:] in '$`"\\':
                self._take()
                pieces.append(_Piece(self._take(), self.line, True))
            elif here in "$`":
                pieces.append(self._expansion(True))
            else:
                pieces.append(_Piece(self._take(), self.line, True))
        self._take()
        return pieces

    def _expansion(self, quoted: bool) -> _Piece:
        line = self.line
        if self._take() == "`":
            return _Piece("(" + self._until("`", line), line, quoted, True)
        if self._peek(2) == "((":
            inside = self._bracketed("(", ")")
            return _Piece("(" + inside, line, quoted, True)
        if self._peek() == "(":
            inside = self._bracketed("(", ")")
            return _Piece("(" + inside, line, quoted, True)
        if self._peek() == "{":
            inside = self._bracketed("{", "}")
            return _Piece(inside, line, quoted, True)
        found = _NAME.match(self.text, self.position)
        if found:
            self._take(len(found[0]))
            return _Piece(found[0], line, quoted, True)
        if self._peek() and self._peek() in "0123456789@*#?$!-":
            return _Piece(self._take(), line, quoted, True)
        return _Piece("$", line, True)

    def _bracketed(self, opening: str, closing: str) -> str:
        """Take a bracket and return what is inside, quotes and all."""
        line, start = self.line, self.position + 1
        self._take()
        depth = 1
        while depth:
            if self.position >= len(self.text):
                raise self.refuse(line, f"a closing {closing}", "none")
            here = self._take()
            if here == "\\":
                self._take()
            elif here in "'\"":
                while self._peek() != here:
                    if self.position >= len(self.text):
                        raise self.refuse(line, f"a closing {here}", "none")
                    if self._take() == "\\" and here == '"':
                        self._take()
                self._take()
            elif here == "#" and self.text[self.position - 2] in " \t\n(":
                while self._peek() not in ("\n", ""):
                    self._take()
            elif here == opening:
                depth += 1
            elif here == closing:
                depth -= 1
        return self.text[start : self.position - 1]

    # Commands

    def _run(self, words: list[_Raw]) -> None:
        """Take in the words of one simple command."""
        while words:
            plain = _plain(words[0])
            if plain in _OPENING:
                self._open(str(plain), words)
                if plain in ("for", "select", "case"):
                    return
            elif plain in _CLOSING:
                self.conditions[-1:] = []
            elif plain in _BRANCHES and self.conditions:
                self.conditions[-1].branch(str(plain))
            elif plain == "!" and self.conditions:
                # The opposite of a test is left open.
                self.conditions[-1].tests.append(None)
            elif plain not in _PASSING:
                break
            words = words[1:]
        if words and self.conditions and self.conditions[-1].testing:
            self._test(words)
            return
        if self.runs is False:
            return
        exported = bool(words) and _plain(words[0]) in (
            "export",
            "declare",
            "local",
            "readonly",
        )
        while words and (exported or self._assigns(words[0])):
            if self._assigns(words[0]):
                self._assign(words[0])
            words = words[1:]
        if words:
            first = _text_from(words)
            found = [w for raw in words[:first] for w in self._expand(raw)]
            found += [w for raw in words[first:] for w in self._reread(raw)]
            if found:
                self.commands.append(Command(words[0][0].line, tuple(found)))

    def _reread(self, raw: _Raw) -> Iterator[Word]:
        """Yield the words of a text that a shell reads once more."""
        for word in words_in(self._joined(raw, raw[0].line if raw else 0)):
            text = re.sub(r"^(['\"])(.*)\1$", r"\2", word.text)
            found = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", text)
            if found is not None:
                value = self._lookup(found[1], word.line)
                one = value[0] if value else self._missing(found[1], word.line)
                yield from words_in(one._replace(line=word.line))
            elif text != "\\":
                yield word._replace(text=text)

    # Conditions

    def _open(self, kind: str, words: list[_Raw]) -> None:
        """Take in the beginning of a condition or a loop."""
        condition = _Condition(loops=kind != "if")
        self.conditions.append(condition)
        condition.testing = kind in ("if", "while", "until")
        if kind == "for" and len(words) > 1:
            name = _plain(words[1]) or ""
            line = words[1][0].line
            self.variables[name] = (
                _nobody_knows(f"${name}, which a loop sets", line),
            )

    def _test(self, words: list[_Raw]) -> None:
        """Take in one command of a condition."""
        found = [word for raw in words for word in self._expand(raw)]
        whole = [self._joined(raw, 0) for raw in words]
        # Where blanks split a text the test is another one.
        known = [w.text for w in found] == [w.text for w in whole]
        if not known or any(word.unknown for word in whole):
            self.conditions[-1].tests.append(None)
        else:
            self.conditions[-1].tests.append(_holds([w.text for w in whole]))

    @property
    def runs(self) -> bool | None:
        """Whether what is read now would run; ``None`` if nobody knows."""
        runs: bool | None = True
        for condition in self.conditions:
            runs = _both(runs, condition.runs)
        return runs

    def _assigns(self, raw: _Raw) -> bool:
        """Whether a word is ``NAME=…``, the name and ``=`` not quoted."""
        head = ""
        for piece in raw:
            if piece.quoted or piece.expands:
                break
            head += piece.text
        return _ASSIGNMENT.match(head) is not None

    def _assign(self, raw: _Raw) -> None:
        head, rest = "", list(raw)
        while not head.endswith("="):
            head += rest.pop(0).text
        found = _ASSIGNMENT.fullmatch(head)
        assert found is not None
        name, line = found[1], raw[0].line
        if name in self.given:
            value: tuple[Word, ...] = (Word(self.given[name], line),)
        elif found[2]:
            why = f"${name}, set element by element"
            value = (_nobody_knows(why, line),)
        elif rest and rest[0].array:
            value = self._array(rest[0])
        else:
            value = (self._joined(rest, line),)
        if self.runs is None and name not in self.given:
            why = f"${name}, which is set on a condition in line {line}"
            value = (_nobody_knows(why, line),)
        if found[3] and name not in self.given:
            before = self.variables.get(name, ())
            if rest and rest[0].array:
                value = (*before, *value)
            else:
                one = before[0] if before else Word("", line)
                value = (
                    Word(
                        one.text + value[0].text,
                        one.line,
                        one.unknown or value[0].unknown,
                    ),
                    *before[1:],
                )
        self.variables[name] = value

    def _array(self, piece: _Piece) -> tuple[Word, ...]:
        inner = _Reader(piece.text, self.where, self.given)
        inner.line = piece.line
        inner.variables = self.variables
        inner.unset = self.unset
        inner.defaults = self.defaults
        found: list[Word] = []
        for token in inner._tokens():
            if isinstance(token, list):
                found += inner._expand(token)
        return tuple(found)

    # Expansion

    def _joined(self, raw: _Raw, line: int) -> Word:
        """Return a word as an assignment takes it: never split."""
        parts = [
            _one(self._value(piece), piece.line)
            if piece.expands
            else Word(piece.text, piece.line)
            for piece in raw
        ]
        return Word(
            "".join(part.text for part in parts),
            parts[0].line if parts else line,
            next((part.unknown for part in parts if part.unknown), ""),
        )

    def _expand(self, raw: _Raw) -> list[Word]:
        """Return the words that a word becomes."""
        words: list[Word] = []
        open_word: Word | None = None
        for part in self._parts(raw):
            if part is None:
                words += [open_word] if open_word else []
                open_word = None
            elif open_word is None:
                open_word = part
            else:
                open_word = Word(
                    open_word.text + part.text,
                    open_word.line if open_word.text else part.line,
                    open_word.unknown or part.unknown,
                )
        return [*words, open_word] if open_word else words

    def _parts(self, raw: _Raw) -> Iterator[Word | None]:
        """Yield the parts of words, ``None`` between two words."""
        for piece in raw:
            if not piece.expands:
                yield Word(piece.text.replace(_JOINT, ""), piece.line)
                continue
            values = self._value(piece)
            several = piece.text in "@*" or piece.text[-3:] in ("[@]", "[*]")
            if piece.quoted and not several:
                yield _clean(_one(values, piece.line))
                continue
            for number, value in enumerate(values):
                if number:
                    yield None
                if piece.quoted:
                    yield _clean(value)
                else:
                    yield from _split(value)

    def _value(self, piece: _Piece) -> tuple[Word, ...]:
        """Return what an expansion stands for."""
        inside, line = piece.text, piece.line
        if inside.startswith("(("):
            return (self._arithmetic(inside[2:-1], line),)
        if inside.startswith("("):
            program = (inside[1:].split() or ["a command"])[0]
            return (_nobody_knows(f"the output of {program}", line),)
        found = _NAME.match(inside)
        if found is None:
            if inside in ("@", "*"):
                why = f"${inside}, the arguments of the script"
                return (_nobody_knows(why, line),)
            return self._argument(inside, line) or (
                _nobody_knows(f"${inside}, an argument of the script", line),
            )
        name, rest = found[0], inside[found.end() :]
        value = self._lookup(name, line)
        if not rest or rest in ("[@]", "[*]"):
            if value is not None:
                return value if rest else value[:1] or (Word("", line),)
            return () if rest else (self._missing(name, line),)
        match = re.match(r"(:?)([-=+?])(.*)", rest, re.DOTALL)
        if match:
            empty = value is None or (
                match[1] and not value[0].text and not value[0].unknown
            )
            if match[2] == "+":
                return () if empty else (self._text(match[3], line),)
            if not empty:
                assert value is not None
                return value[:1]
            if match[2] == "?":
                return (self._missing(name, line),)
            return (self._text(match[3], line),)
        return (_nobody_knows(f"${{{inside}}}", line),)

    def _argument(self, inside: str, line: int) -> tuple[Word, ...]:
        """Return ``$1`` where it is given, or the default in ``${1:-2}``."""
        found = re.fullmatch(r"([1-9]\d*)(?::?[-=](.*))?", inside, re.DOTALL)
        if found is None:
            return ()
        if found[1] in self.given:
            return (Word(self.given[found[1]], line),)
        if found[2] is None:
            return ()
        value = self._text(found[2], line)
        self.defaults[found[1]] = value
        return (value,)

    def _missing(self, name: str, line: int) -> Word:
        self.unset.add(name)
        return _nobody_knows(f"${name}, which the script does not set", line)

    def _lookup(self, name: str, line: int) -> tuple[Word, ...] | None:
        if name in self.given:
            return (Word(self.given[name], line),)
        return self.variables.get(name)

    def _text(self, text: str, line: int) -> Word:
        """Expand text inside ``${NAME:-text}``."""
        inner = _Reader(text, self.where, self.given)
        inner.line = line
        inner.variables = self.variables
        inner.unset = self.unset
        inner.defaults = self.defaults
        return _one(
            [
                inner._joined(token, line)
                for token in inner._tokens()
                if isinstance(token, list)
            ],
            line,
        )

    def _arithmetic(self, text: str, line: int) -> Word:
        unknown = ""

        def number(match: re.Match[str]) -> str:
            nonlocal unknown
            value = self._lookup(match[1] or match[2], line)
            word = (
                value[0]
                if value
                else self._missing(match[1] or match[2], line)
            )
            unknown = unknown or word.unknown
            return word.text or "0"

        plain = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?|\$\{?(\w+)\}?", number, text)
        if unknown:
            return _nobody_knows(unknown, line)
        try:
            return Word(str(_calculate(plain)), line)
        except (ValueError, ZeroDivisionError, SyntaxError):
            return _nobody_knows(f"$(({text}))", line)


def _plain(raw: _Raw) -> str | None:
    """Return a word without quotes and expansions, ``None`` if it has any."""
    if any(piece.quoted or piece.expands for piece in raw):
        return None
    return "".join(piece.text for piece in raw)


def _text_from(words: Sequence[_Raw]) -> int:
    """Return the first word that is a text for ``eval`` or ``bash -c``."""
    plain = [_plain(raw) for raw in words]
    if plain[0] == "eval":
        return 1
    for number, pair in enumerate(pairwise(plain)):
        if pair[0] in ("bash", "sh") and pair[1] in ("-c", "-lc"):
            return number + 2
    return len(words)


def _one(values: Sequence[Word], line: int) -> Word:
    """Return values as one word, with blanks between."""
    return Word(
        " ".join(value.text for value in values),
        values[0].line if values else line,
        next((value.unknown for value in values if value.unknown), ""),
    )


def _nobody_knows(why: str, line: int) -> Word:
    """Return what stands for a value that is not known, inside a text too."""
    return Word(f"{_UNKNOWN}{why.replace(' ', _BLANK)}{_UNKNOWN}", line, why)


def _clean(word: Word) -> Word:
    """Return a word as the shell would pass it on, without signs of ours."""
    text = word.text.replace(_JOINT, "")
    known, *rest = text.split(_UNKNOWN)
    known += "".join(rest[1::2])
    why = rest[0].replace(_BLANK, " ") if rest else word.unknown
    return Word(known, word.line, why)


def _split(value: Word) -> Iterator[Word | None]:
    """Yield the parts of a text at its blanks, ``None`` for the blanks."""
    line = value.line
    for part in re.split(r"(\s+)", value.text):
        line += part.count("\n") + part.count(_JOINT)
        if part.isspace():
            yield None
        elif part.strip(_JOINT):
            yield _clean(Word(part, line))


def words_in(value: Word) -> list[Word]:
    """Return the words that a variable's value becomes without quotes."""
    return [word for word in _split(value) if word is not None]


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _calculate(text: str) -> int:
    """Compute sums, differences, products, quotients of whole numbers.

    Raises ``ValueError`` for anything else.
    """

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
        raise ValueError(text)

    if len(text) > 200:
        raise ValueError(text)
    return value(ast.parse(text.strip(), mode="eval").body)
