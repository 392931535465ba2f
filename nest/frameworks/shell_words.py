"""Words and separators of shell scripts, with the lines that they are in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from nest.errors import InvalidOptionError

#: Words that begin what a script runs on a condition, or go on with it.
_OPENING = {"if", "while", "until", "for", "select", "case", "{", "function"}
_BRANCHES = {"then", "elif", "else", "do", "!", "time"}
_SEPARATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;|&\n]")
#: Maximum length of one word, in characters. Linux passes no longer word to a program.
MAX_WORD = 2**17
#: Maximum work for one script: characters and words that are read or made. A
#: script that grows its variables, arrays or calls exponentially exceeds it.
MAX_WORK = 2**20
#: Stands where a quoted text goes on in the next line, so that the lines of
#: its words are known; no script has it.
JOINT = "\0"
#: Stand around why a part of a text is not known, and for its blanks.
UNKNOWN, _BLANK = "\1", "\2"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^]]*\])?(\+?)=")


class Word(NamedTuple):
    """A word of a command."""

    #: What the shell would pass on.
    text: str
    #: Where it is written, from 1.
    line: int
    #: Why it is not known (``$NAME, which the script does not set``), or empty.
    unknown: str = ""


class Piece(NamedTuple):
    """Part of a raw word: text, or what is inside ``$…`` or ``NAME=(…)``."""

    text: str
    line: int
    quoted: bool
    expands: bool = False
    array: bool = False


RawWord = list[Piece]


class Redirection(NamedTuple):
    """A redirection: its sign, and the file, or of a here-document the text."""

    sign: str
    raw: RawWord


def plain_text(raw: RawWord) -> str | None:
    """Return a word without quotes and expansions, ``None`` if it has any."""
    if any(piece.quoted or piece.expands for piece in raw):
        return None
    return "".join(piece.text for piece in raw)


def one_word(values: Sequence[Word], line: int, between: str = " ") -> Word:
    """Return values as one word, by default with blanks between."""
    return Word(
        between.join(value.text for value in values),
        values[0].line if values else line,
        next((value.unknown for value in values if value.unknown), ""),
    )


def unknown_word(why: str, line: int) -> Word:
    """Return what stands for a value that is not known, inside a text too."""
    return Word(f"{UNKNOWN}{why.replace(' ', _BLANK)}{UNKNOWN}", line, why)


def clean(value: Word) -> Word:
    """Return a word as the shell would pass it on, without signs of ours."""
    text = value.text.replace(JOINT, "")
    certain, *rest = text.split(UNKNOWN)
    certain += "".join(rest[1::2])
    why = rest[0].replace(_BLANK, " ") if rest else value.unknown
    return Word(certain, value.line, why)


class Budget:
    """The work that remains for one script, and the errors about its lines."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.work = MAX_WORK

    def refuse(self, line: int, expected: str, got: object) -> InvalidOptionError:
        """Return the error about one line."""
        return InvalidOptionError(
            f"{self.where}:{line}: expected {expected}, got {got}; correct the script"
        )

    def spend(self, work: int, line: int) -> None:
        """Refuse a script that needs more than :data:`MAX_WORK`."""
        self.work -= work
        if self.work < 0:
            raise self.refuse(
                line, f"a script that expands to at most {MAX_WORK} characters", "more"
            )

    def limit(self, length: int, line: int) -> None:
        """Refuse a word that is too long, before it is made."""
        if length > MAX_WORD:
            raise self.refuse(
                line, f"words and variables of at most {MAX_WORD} characters", length
            )
        self.spend(length, line)


class _Document(NamedTuple):
    """A here-document: how it ends, and the pieces that it is read into."""

    ending: str
    strips: bool
    expands: bool
    line: int
    raw: RawWord


class Lexer:
    """Reads a text, which begins in a line of a script."""

    def __init__(self, text: str, budget: Budget, line: int = 1) -> None:
        self.text = text
        self.budget = budget
        self.line = line
        self.position = 0
        #: ``#SBATCH`` options by name.
        self.directives: dict[str, Word] = {}
        #: Redirections by the number of words and separators before them.
        self.redirections: dict[int, list[Redirection]] = {}
        self.count = 0
        #: Here-documents that follow the line that is read.
        self.documents: list[_Document] = []

    def _peek(self, count: int = 1) -> str:
        return self.text[self.position : self.position + count]

    def _take(self, count: int = 1) -> str:
        taken = self._peek(count)
        self.position += count
        self.line += taken.count("\n")
        return taken

    def tokens(self) -> Iterator[RawWord | str]:
        """Yield words and separators; ``((…))`` as a command ``let``."""
        for token in self._tokens():
            self.count += 1
            yield token

    def _tokens(self) -> Iterator[RawWord | str]:
        begins, compares = True, False
        while self.position < len(self.text):
            here, line = self._peek(), self.line
            if self._skips(compares):
                continue
            if compares and here in "&|()<>":
                name = self._peek(2)
                name = name if name in ("&&", "||") else here
                yield [Piece(name, line, False)]
                self._take(len(name))
            elif self._peek(2) in ("<(", ">("):
                self._take()
                inside = self._bracketed("(", ")")
                yield [Piece("(" + inside, line, False, True)]
            elif separator := _SEPARATOR.match(self.text, self.position):
                self._take(len(separator[0]))
                if separator[0] == "\n":
                    self._skip_documents()
                begins = True
                yield separator[0]
            elif self._peek(2) == "((" and (piece := self._double_bracket()):
                yield [Piece("let", piece.line, False)]
                yield [piece]
            elif here in "()":
                self._take()
                begins = True
                yield here
            else:
                word = self._word()
                plain = plain_text(word)
                if self._peek() in ("<", ">") and (plain or "").isdecimal():
                    continue  # Of what is redirected.
                compares = plain != "]]" and (compares or (begins and plain == "[["))
                begins = begins and plain in _OPENING | _BRANCHES
                begins = begins or plain in _BRANCHES
                yield word

    def _skips(self, compares: bool) -> bool:
        """Take what is no token, if it is next: blanks and redirections."""
        here, two = self._peek(), self._peek(2)
        if two == "\\\n":
            self._take(2)
        elif here == JOINT:
            self._take_joint()
        elif here in " \t" or (compares and here == "\n"):
            self._take()
        elif here == "#":
            self._comment()
        elif compares or two in ("<(", ">("):
            return False
        elif two == "<<" and self._peek(3) != "<<<":
            self._here_document()
        elif two == "&>" or here in "<>":
            # A redirection: its target is no word of the command.
            sign = ""
            while self._peek() in tuple("<>&|"):
                sign += self._take()
            while self._peek() in (" ", "\t"):
                self._take()
            if self._peek() not in ("\n", ""):
                self._redirect(sign, self._word())
        else:
            return False
        return True

    def _take_joint(self) -> None:
        """Take the sign of a line that goes on."""
        self._take()
        self.line += 1

    def _redirect(self, sign: str, raw: RawWord) -> None:
        self.redirections.setdefault(self.count, []).append(Redirection(sign, raw))

    def _double_bracket(self) -> Piece | None:
        """Take ``((…))``, or nothing where it is two subshells."""
        position, line = self.position, self.line
        inside = self._bracketed("(", ")")
        if inside.endswith(")"):
            return Piece(inside[1:-1], line, True)
        self.position, self.line = position, line
        return None

    def _comment(self) -> None:
        end = self.text.find("\n", self.position)
        end = len(self.text) if end < 0 else end
        comment, line = self.text[self.position : end], self.line
        self.position = end
        if re.match(r"#SBATCH\s", comment):
            options = comment.partition(" #")[0].split()[1:]
            for option, value in pairwise([*options, ""]):
                match = re.fullmatch(r"(--[A-Za-z-]+|-[A-Za-z])=?(.*)", option)
                if match:
                    value = match[2] or ("" if value[:1] == "-" else value)
                    self.directives[match[1]] = Word(value.removeprefix("="), line)

    def _here_document(self) -> None:
        self._take(2)
        strips = self._peek() == "-"
        if strips:
            self._take()
        while self._peek() in (" ", "\t"):
            self._take()
        word = self._word()
        ending = "".join(piece.text for piece in word)
        expands = not any(piece.quoted for piece in word)
        raw: RawWord = []
        self._redirect("<<", raw)
        self.documents.append(_Document(ending, strips, expands, self.line, raw))

    def _skip_documents(self) -> None:
        """Take the here-documents of the line before, into their redirections."""
        for document in self.documents:
            lines, start = [], self.line
            while True:
                if self.position >= len(self.text):
                    raise self.budget.refuse(
                        document.line,
                        f"a line {document.ending!r} that ends the document",
                        "the end of the file",
                    )
                end = self.text.find("\n", self.position)
                end = len(self.text) if end < 0 else end + 1
                line_text = self._take(end - self.position)
                if document.strips:
                    line_text = line_text.lstrip("\t")
                if line_text.rstrip("\n") == document.ending:
                    break
                lines.append(line_text)
            text = "".join(lines)
            self.budget.spend(len(text), start)
            if document.expands:
                inside = Lexer(text, self.budget, start)
                document.raw.extend(inside.double_quoted(start, ""))
            else:
                document.raw.append(Piece(text, start, True))
        self.documents = []

    def _word(self) -> RawWord:
        """Read a word up to a blank or a separator outside quotes."""
        pieces: RawWord = []
        while self.position < len(self.text):
            here, line = self._peek(), self.line
            if self._peek(2) == "\\\n":
                self._take(2)
            elif here == JOINT:
                self._take_joint()
            elif here == UNKNOWN:
                pieces.append(self._unknown(False))
            elif here in " \t\n;|&<>()":
                if here == "(" and self._opens_array(pieces):
                    inside = self._bracketed("(", ")")
                    pieces.append(Piece(inside, line, True, array=True))
                    continue
                break
            elif here == "\\":
                self._take()
                pieces.append(Piece(self._take(), line, True))
            elif here == "'":
                self._take()
                pieces.append(Piece(self._until("'", line), line, True))
            elif here == '"':
                self._take()
                pieces += self.double_quoted(line)
            elif here in "$`":
                pieces.append(self._expansion(False))
            else:
                pieces.append(Piece(self._take(), line, False))
        return pieces

    def _opens_array(self, pieces: RawWord) -> bool:
        text = "".join(piece.text for piece in pieces)
        return ASSIGNMENT.fullmatch(text) is not None

    def _until(self, ending: str, line: int) -> str:
        end = self.text.find(ending, self.position)
        if end < 0:
            raise self.budget.refuse(line, f"a closing {ending}", "none")
        taken = self._take(end - self.position)
        self._take(len(ending))
        return taken

    def _unknown(self, quoted: bool) -> Piece:
        """Take what stands for a value that is not known."""
        end = self.text.find(UNKNOWN, self.position + 1)
        end = len(self.text) if end < 0 else end + 1
        line = self.line
        return Piece(self._take(end - self.position), line, quoted, True)

    def double_quoted(self, line: int, closing: str = '"') -> RawWord:
        """Take a text up to a closing quote, after the opening one.

        Without one it is a here-document, in which quotes are no signs.
        """
        pieces = [Piece("", line, True)]
        special = f"$`{closing}\\"
        while self._peek() != closing:
            if self.position >= len(self.text):
                raise self.budget.refuse(line, 'a closing "', "none")
            here = self._peek()
            if self._peek(2) == "\\\n":
                pieces.append(Piece(JOINT, self.line, True))
                self._take(2)
            elif here == UNKNOWN:
                pieces.append(self._unknown(True))
            elif here == "\\" and self._peek(2)[1:] in special:
                self._take()
                pieces.append(Piece(self._take(), self.line, True))
            elif here in "$`":
                pieces.append(self._expansion(True))
            else:
                pieces.append(Piece(self._take(), self.line, True))
        self._take()
        return pieces

    def _expansion(self, quoted: bool) -> Piece:
        line = self.line
        if self._take() == "`":
            return Piece("(" + self._until("`", line), line, quoted, True)
        if self._peek() == "(":
            inside = self._bracketed("(", ")")
            return Piece("(" + inside, line, quoted, True)
        if self._peek() == "{":
            inside = self._bracketed("{", "}")
            return Piece(inside, line, quoted, True)
        name = NAME.match(self.text, self.position)
        if name:
            self._take(len(name[0]))
            return Piece(name[0], line, quoted, True)
        if self._peek() and self._peek() in "0123456789@*#?$!-":
            return Piece(self._take(), line, quoted, True)
        return Piece("$", line, True)

    def _bracketed(self, opening: str, closing: str) -> str:
        """Take a bracket and return what is inside, quotes and all."""
        line, start = self.line, self.position + 1
        self._take()
        depth = 1
        while depth:
            if self.position >= len(self.text):
                raise self.budget.refuse(line, f"a closing {closing}", "none")
            here = self._take()
            if here == "\\":
                self._take()
            elif here in "'\"":
                while self._peek() != here:
                    if self.position >= len(self.text):
                        raise self.budget.refuse(line, f"a closing {here}", "none")
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
        self.budget.spend(self.position - start, line)
        return self.text[start : self.position - 1]
