"""A small reader of shell scripts: what a launch line says, never executed.

Scripts are read as text. Assignments, arrays, ``${X:-default}``, arithmetic,
line continuations, quotes, comments, here-documents, functions, and conditions
that compare what is known are understood. What only running the script could
tell (``$(…)``, other conditions, loops, the environment) is *unknown*, and an
error where it is needed: the text names the line and asks for the variable.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import pairwise, takewhile
from typing import NamedTuple

from nest.errors import InvalidOptionError
from nest.frameworks.shell_arithmetic import Arithmetic, written_names
from nest.frameworks.shell_programs import Inner, inner_script, plain_path
from nest.frameworks.shell_words import (
    ASSIGNMENT,
    JOINT,
    NAME,
    UNKNOWN,
    Budget,
    Lexer,
    Piece,
    RawWord,
    Redirection,
    Word,
    clean,
    one_word,
    plain_text,
    unknown_word,
)
from nest.util.text import whole_number


class Command(NamedTuple):
    """A simple command, with its words as the shell would pass them on."""

    line: int
    words: tuple[Word, ...]


class Script(NamedTuple):
    """The commands and variables of a script."""

    #: All simple commands, in their order; assignments are none.
    commands: tuple[Command, ...]
    #: Values at the end of the script, or of one command alone, and where they were
    #: set.
    variables: Mapping[str, tuple[Word, ...]]
    #: ``#SBATCH`` options by name, with their line.
    directives: Mapping[str, Word]
    #: Variables that the script uses without setting them.
    unset: frozenset[str]
    #: Arguments of the script that count with its default: number, line and value.
    defaults: Mapping[str, Word]
    #: The overridden variables that the script uses.
    used: frozenset[str] = frozenset()
    #: Texts of the files that the script writes, by name.
    files: Mapping[str, Word] = {}
    #: What counts for variables that the script does not set: ``${NAME:-2}``.
    fallbacks: Mapping[str, Word] = {}


_EXPORTING = ("export", "declare", "local", "readonly", "typeset")
#: Functions that call each other deeper, or more often, do not end for us.
_DEPTH, _CALLS = 20, 1000
#: Maximum length of a script, in characters.
_MAX_SCRIPT = 2**18
#: Work of one command, expansion or condition besides its characters.
_STEP = 16
#: Maximum number of words of a ``test``.
_MAX_TEST = 100


def read_script(
    text: str, where: str, overrides: Mapping[str, str] | None = None
) -> Script:
    """Read a script.

    ``overrides`` are values of variables; they win over those of the script.

    Raises ``InvalidOptionError`` if quotes or brackets do not end, or the script is too
    long, too deep, or expands to more than :data:`nest.frameworks.shell_words.MAX_WORK`
    characters and words.
    """
    if len(text) > _MAX_SCRIPT:
        raise InvalidOptionError(
            f"{where}: expected a script of at most {_MAX_SCRIPT} characters, "
            f"got {len(text)}; pass only the part that starts the training"
        )
    try:
        return _Reader(text, where, overrides or {}).read()
    except RecursionError:
        raise InvalidOptionError(
            f"{where}: expected commands and expansions at most about a "
            f"hundred deep, got more; simplify the script"
        ) from None


def _both(one: bool | None, other: bool | None) -> bool | None:
    """Return whether both hold; ``None`` if unknown."""
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _either(one: bool | None, other: bool | None) -> bool | None:
    """Return whether one of both holds; ``None`` if unknown."""
    return _not(_both(_not(one), _not(other)))


def _not(held: bool | None) -> bool | None:
    """Return the opposite; ``None`` if unknown."""
    return None if held is None else not held


def _holds(words: Sequence[str]) -> bool | None:
    """Return what ``test`` gives, ``None`` for what is not known."""
    if len(words) > _MAX_TEST:
        return None
    match words:
        case []:
            return False
        case [text]:
            return bool(text)
        case ["!", one]:
            return not one
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [one, name, other] if name in _EQUAL or name in _COMPARED:
            return _compared(one, name, other)
        case ["!", *inner] if len(inner) <= 3:
            return _not(_holds(inner))
    for name, join in (("-o", _either), ("-a", _both)):
        if len(words) > 4 and name in words:
            at = words.index(name)
            return join(_holds(words[:at]), _holds(words[at + 1 :]))
    return None


def _compared(one: str, name: str, other: str) -> bool | None:
    """Return what a comparison gives, ``None`` if it is none."""
    if name in _EQUAL:
        return (one == other) == _EQUAL[name]
    numbers = [whole_number(text.removeprefix("-")) for text in (one, other)]
    if None in numbers:
        return None
    return _COMPARED[name](int(one), int(other))


_EQUAL = {"=": True, "==": True, "!=": False}
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


class _Text(NamedTuple):
    """A text that is read: words and separators, and redirections by their index."""

    tokens: list[RawWord | str]
    redirections: dict[int, list[Redirection]]


class _Function(NamedTuple):
    """Where the body of a function begins, and whether it is defined."""

    text: _Text
    start: int
    defined: bool | None

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from others."""
        return id(self.text), self.start


#: Variables that Slurm sets, with the directives that say to what.
_SLURM_VARIABLES = {
    **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), ("--nodes", "-N")),
    "SLURM_GPUS_PER_NODE": ("--gpus-per-node",),
    "SLURM_GPUS_ON_NODE": ("--gpus-per-node", "--gres"),
    "SLURM_NTASKS_PER_NODE": ("--ntasks-per-node",),
    "SLURM_CPUS_PER_TASK": ("--cpus-per-task", "-c"),
}


class _Reader:
    """State while a script is read."""

    def __init__(self, text: str, where: str, overrides: Mapping[str, str]):
        self.overrides = overrides
        self.budget = Budget(where)
        lexer = Lexer(text.replace("\r\n", "\n"), self.budget)
        self.text = _Text(list(lexer.tokens()), lexer.redirections)
        self.directives = lexer.directives
        #: The last line of the script.
        self.line = lexer.line
        self.at = 0
        #: Whether the branch that is read runs, and whether the script or
        #: function has not ended before; ``None`` if unknown.
        self.branch: bool | None = True
        self.goes_on: bool | None = True
        #: The variable that the last command tested, if its value is not known, and
        #: that on which the branch depends.
        self.tested = ""
        self.doubt = ""
        self.exited = False
        self.variables: dict[str, tuple[Word, ...]] = {}
        self.alone: dict[str, tuple[Word, ...]] = {}
        self.functions: dict[str, _Function] = {}
        #: Of the function that is read: its arguments, and what its local
        #: variables were before.
        self.arguments: tuple[Word, ...] | None = None
        self.hidden: list[dict[str, tuple[Word, ...] | None]] = []
        #: The functions and texts that are read, and how many were.
        self.calls: list[tuple[int, int]] = []
        self.count = 0
        #: What starts the commands of the text that is read.
        self.starting: tuple[Word, ...] = ()
        self.files: dict[str, Word] = {}
        self.unset: set[str] = set()
        self.defaults: dict[str, Word] = {}
        self.fallbacks: dict[str, Word] = {}
        self.used: set[str] = set()
        self.commands: list[Command] = []

    @property
    def tokens(self) -> list[RawWord | str]:
        """The words and separators of the text that is read."""
        return self.text.tokens

    def _to_the_end(self) -> bool | None:
        """Take in the text; return whether its last command succeeds."""
        status: bool | None = True
        while self.at < len(self.tokens):
            status = self._list(set())
            # What closes nothing, such as a bracket too many.
            self.at += 1
        return status

    def read(self) -> Script:
        self._to_the_end()
        return Script(
            tuple(self.commands),
            {**self.alone, **self.variables},
            self.directives,
            frozenset(self.unset),
            self.defaults,
            frozenset(self.used),
            self.files,
            self.fallbacks,
        )

    # Commands

    def _here(self) -> str | None:
        """Return the token that comes next, a word only if it is plain."""
        if self.at >= len(self.tokens):
            return None
        token = self.tokens[self.at]
        return token if isinstance(token, str) else plain_text(token)

    def _is_separator(self, *among: str) -> bool:
        """Whether a separator comes next, by default any."""
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        return isinstance(token, str) and (not among or token in among)

    def _ends(self, closing: set[str]) -> bool:
        return self.at >= len(self.tokens) or self._here() in closing

    def _words(self) -> list[RawWord]:
        words: list[RawWord] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, str):
                break
            words.append(token)
            self.at += 1
        self.budget.spend(len(words), self.line)
        return words

    def _skip_lines(self) -> None:
        while self._is_separator("\n", ";"):
            self.at += 1

    @property
    def runs(self) -> bool | None:
        """Whether the text that is read would run; ``None`` if unknown."""
        return _both(self.branch, self.goes_on)

    @contextmanager
    def _under(self, held: bool | None) -> Iterator[None]:
        """Read what runs if something holds."""
        before = self.branch, self.doubt
        self.branch = _both(self.branch, held)
        if held is None:
            self.doubt = self.tested
        yield
        self.branch, self.doubt = before

    def _test(self, values: Sequence[Word]) -> None:
        """Take in what a command tests."""
        unknown = next((word.unknown for word in values if word.unknown), "")
        variable = re.match(r"\$([A-Za-z_]\w*|[1-9]\d*),", unknown)
        self.tested = variable[1] if variable else ""

    def _list(self, closing: set[str]) -> bool | None:
        """Take in commands up to a word that closes them.

        Like what it calls, returns whether the last one succeeds.
        """
        status: bool | None = True
        while not self._ends(closing):
            at = self.at
            if self._is_separator("\n", ";", "&"):
                self.at += 1
                continue
            status = self._and_or()
            if self.at == at:
                self.at += 1
        return status

    def _and_or(self) -> bool | None:
        state = self._state()
        status = self._pipeline()
        while self._is_separator("&&", "||"):
            both = self._here() == "&&"
            self.at += 1
            self._skip_lines()
            with self._under(status if both else _not(status)):
                other = self._pipeline()
            status = (_both if both else _either)(status, other)
        if self._is_separator("&"):
            self._restore(state)
        return status

    def _pipeline(self) -> bool | None:
        opposite = False
        while self._here() in ("!", "time"):
            opposite ^= self._here() == "!"
            self.at += 1
        state = self._state()
        status = self._command()
        if self._is_separator("|", "|&"):
            # Every command of it has a shell of its own.
            self._restore(state)
            while self._is_separator("|", "|&"):
                self.at += 1
                self._skip_lines()
                status = self._command()
                self._restore(state)
        return _not(status) if opposite else status

    def _state(self) -> tuple[dict[str, tuple[Word, ...]], bool | None, bool]:
        """Return what a shell of its own does not change."""
        # A copy takes about as long as a step for eight variables.
        self.budget.spend(len(self.variables) // _STEP, self.line)
        return dict(self.variables), self.goes_on, self.exited

    def _restore(
        self, state: tuple[dict[str, tuple[Word, ...]], bool | None, bool]
    ) -> None:
        variables, self.goes_on, self.exited = state
        self.variables = dict(variables)

    def _command(self) -> bool | None:
        self.budget.spend(_STEP, self.line)
        if self._is_separator():
            if self._here() != "(":
                return None
            state = self._state()
            self.at += 1
            status = self._list({")"})
            self.at += 1
            self._restore(state)
            return status
        match self._here():
            case "if":
                return self._if()
            case "while" | "until" | "for" | "select":
                return self._loop()
            case "case":
                return self._case()
            case "{":
                self.at += 1
                status = self._list({"}"})
                self.at += 1
                return status
            case "function":
                self.at += 1
                return self._function()
        follows = self.tokens[self.at + 1 : self.at + 3]
        if follows == ["(", ")"] and self._here():
            return self._function()
        at = self.at
        words = self._words()
        redirections = [
            redirection
            for index in range(at, self.at + 1)
            for redirection in self.text.redirections.get(index, ())
        ]
        return self._simple(words, redirections)

    def _if(self) -> bool | None:
        self.at += 1
        rest: bool | None = True
        while True:
            with self._under(rest):
                held = self._list({"then", "fi"})
                tested = self.tested
                self.at += self._here() == "then"
                with self._under(held):
                    self._list({"elif", "else", "fi"})
            rest = _both(rest, _not(held))
            self.tested = tested
            keyword = self._here()
            self.at += 1
            if keyword == "elif":
                continue
            if keyword == "else":
                with self._under(rest):
                    self._list({"fi"})
                self.at += 1
            return None

    def _loop(self) -> bool | None:
        """Take in a loop, which may run any number of times."""
        kind = self._here()
        self.at += 1
        self.tested = ""
        with self._under(None):
            if kind in ("while", "until"):
                self._list({"do", "done"})
            elif words := self._words():
                name, line = plain_text(words[0]) or "", words[0][0].line
                names = [name]
                if name == "let":
                    names = [
                        one
                        for raw in words[1:]
                        for one in written_names(self._joined(raw, line).text)
                    ]
                for one in names if self.runs is not False else []:
                    why = f"${one}, which a loop sets"
                    self.variables[one] = (unknown_word(why, line),)
            self._skip_lines()
            if self._here() == "do":
                self.at += 1
                self._list({"done"})
        self.at += self._here() == "done"
        return None

    def _case(self) -> bool | None:
        self.at += 1
        words = self._words()
        rest: bool | None = True
        # Patterns may follow on the same line.
        plain = [plain_text(raw) for raw in words]
        if "in" in plain[1:]:
            at = plain.index("in", 1)
            self.at -= len(words) - at - 1
            words = words[:at]
        value = Word("", 0, "nothing")
        if self.runs is not False and words:
            value = self._joined(words[0], 0)
        while not self._ends({"esac"}):
            self._skip_lines()
            if self._ends({"esac"}):
                break
            at = self.at
            self.at += self._is_separator("(")
            held: bool | None = False
            while not self._ends(set()):
                for raw in self._words():
                    matches = None
                    if self.runs is not False:
                        matches = self._matches(value, raw)
                    held = _either(held, matches)
                if not self._is_separator("|"):
                    break
                self.at += 1
            self.at += self._is_separator(")")
            self._test([value])
            with self._under(_both(rest, held)):
                self._list({";;", ";&", ";;&", "esac"})
            rest = _both(rest, _not(held))
            if self._is_separator(";&", ";;&"):
                rest = None
            self.at += self._is_separator()
            if self.at == at:
                self.at += 1
        self.at += 1
        return None

    def _matches(self, value: Word, raw: RawWord) -> bool | None:
        """Return whether a value is like a pattern."""
        pattern_word = self._joined(raw, 0)
        if value.unknown or pattern_word.unknown:
            return None
        # Every star of a pattern may look through the whole value.
        stars = pattern_word.text.count("*")
        self.budget.spend(len(value.text) * (1 + stars), value.line)
        if all(piece.quoted for piece in raw):
            return value.text == pattern_word.text
        if any(piece.expands or piece.text in ("(", "\\") for piece in raw):
            special = set("*?[(\\") & set(pattern_word.text)
            return None if special else value.text == pattern_word.text
        pattern = "".join(
            re.sub(r"([*?[])", r"[\1]", piece.text) if piece.quoted else piece.text
            for piece in raw
        )
        return fnmatchcase(value.text, pattern)

    def _function(self) -> bool | None:
        """Take in a definition, whose body is read where it is called."""
        name = self._here() or ""
        self.at += 1
        if self._is_separator("("):
            self.at += 2
        self._skip_lines()
        if self.runs is not False:
            self.functions[name] = _Function(self.text, self.at, self.runs)
        with self._under(False):
            self._command()
        return True

    def _call(self, name: str, arguments: Sequence[Word], line: int) -> bool | None:
        function = self.functions[name]
        if self.runs is None and function.key in self.calls:
            return None  # What it may set is set on a condition already.
        self._enter(name, function.key, line)
        before = self.text, self.at, self.arguments, self.goes_on
        self.text, self.at = function.text, function.start
        self.arguments = tuple(arguments)
        self.hidden.append({})
        with self._under(function.defined):
            status = self._command()
        self.text, self.at, self.arguments, self.goes_on = before
        self.calls.pop()
        for one, value in self.hidden.pop().items():
            if value is None:
                self.variables.pop(one, None)
            else:
                self.variables[one] = value
        if self.exited:
            self.goes_on = False
        return status

    def _enter(self, name: str, key: tuple[int, int], line: int) -> None:
        """Begin a function or a text, which may begin others."""
        self.count += 1
        if len(self.calls) >= _DEPTH or self.count > _CALLS:
            raise self.budget.refuse(line, "functions that end", f"{name} again")
        self.calls.append(key)

    def _run(self, inner: Inner, tokens: Sequence[Word], line: int) -> bool | None:
        """Take in a text that a command reads as a script."""
        self._enter("a text", (0, 0), line)
        state = self._state()
        before = self.text, self.at, self.starting
        # No command begins so: variables with arguments hold ends of lines.
        text = re.sub(r"(?<!\\)\n(?=[ \t]*--)", JOINT, inner.text.text)
        lexer = self._inside(text, inner.text.line)
        self.text, self.at = _Text(list(lexer.tokens()), lexer.redirections), 0
        self.starting = (*self.starting, *tokens[: inner.start])
        self.directives |= lexer.directives | _directives(inner.options)
        status = self._to_the_end()
        self.text, self.at, self.starting = before
        self.calls.pop()
        if not inner.same_shell:
            self._restore(state)
            return None
        return status

    def _simple(
        self, words: list[RawWord], redirections: Sequence[Redirection]
    ) -> bool | None:
        """Take in a simple command."""
        if self.runs is False or not words:
            return None
        if plain_text(words[0]) in _EXPORTING:
            self._export(words)
            return True
        before = list(takewhile(self._assigns, words))
        words = words[len(before) :]
        if not words:
            for raw in before:
                self._assign(raw)
            # The status is that of the last command that it runs.
            pieces = [piece for raw in before for piece in raw]
            ran = any(p.text[:1] == "(" and p.text[1:2] != "(" for p in pieces)
            return None if ran else True
        return self._start(words, before, redirections)

    def _export(self, words: list[RawWord]) -> None:
        """Take in ``export``, ``declare``, ``local`` and their like."""
        texts = [plain_text(raw) or "" for raw in words]
        inside = texts[0] in ("local", "declare", "typeset") and self.hidden
        for raw in words[1:]:
            if not self._assigns(raw):
                name, equals, value = self._joined(raw, 0).text.partition("=")
                if inside and NAME.fullmatch(name):
                    self._hide(name)
                if equals and NAME.fullmatch(name):
                    word = Word(value, raw[0].line)
                    self._set(name, (word,), raw[0].line)
                continue
            assignment = ASSIGNMENT.match("".join(piece.text for piece in raw))
            assert assignment is not None
            if inside:
                self._hide(assignment[1])
            self._assign(raw)
            if any(re.fullmatch(r"-\w*A\w*", text) for text in texts):
                line = raw[0].line
                self._set(assignment[1], _by_element(assignment[1], line), line)

    def _hide(self, name: str) -> None:
        """Keep a variable until the function ends."""
        self.hidden[-1].setdefault(name, self.variables.get(name))

    def _start(
        self,
        words: list[RawWord],
        before: Sequence[RawWord],
        redirections: Sequence[Redirection],
    ) -> bool | None:
        """Take in a command, with assignments that count for it alone."""
        plain = plain_text(words[0])
        line = words[0][0].line
        if plain == "[[":
            self._test([self._joined(raw, line) for raw in words[1:-1]])
            return self._compare(words[1:-1])
        expanded = [w for raw in words for w in self._expand(raw)]
        self.budget.spend(len(self.variables) // _STEP, line)
        saved = dict(self.variables)
        for raw in before:
            self._assign(raw)
        status = None
        if expanded and expanded[0].text in self.functions:
            status = self._call(expanded[0].text, expanded[1:], line)
            for raw in before:
                name = "".join(piece.text for piece in raw).partition("=")[0]
                self.variables.pop(name, None)
                if name in saved:
                    self.variables[name] = saved[name]
            return status
        if before:
            self.alone |= self.variables
        document = self._document(redirections)
        inner = inner_script(expanded, self.files, document) if expanded else None
        if inner is not None:
            status = self._run(inner, expanded, line)
        if before:
            self.variables = saved
        if inner is not None:
            return status
        if expanded:
            self._write(expanded, document, redirections)
        return self._builtin(plain, expanded, line, document)

    def _document(self, redirections: Sequence[Redirection]) -> Word | None:
        """Return what a command gets as its input, ``None`` if no text."""
        raws = [x.raw for x in redirections if x.sign in ("<<", "<<<")]
        return self._joined(raws[-1], 0) if raws and raws[-1] else None

    def _write(
        self,
        tokens: Sequence[Word],
        document: Word | None,
        redirections: Sequence[Redirection],
    ) -> None:
        """Keep the text that a command writes into a file, if it is known."""
        program, line = tokens[0].text, tokens[0].line
        targets = [
            self._joined(x.raw, line)._replace(unknown=x.sign)
            for x in redirections
            if x.sign in (">", ">>", ">|")
        ]
        if program == "echo":
            texts = [x for x in tokens[1:] if not re.fullmatch(r"-[neE]+", x.text)]
            document = one_word(texts, line)
        elif program == "tee":
            targets += [
                x._replace(unknown=">") for x in tokens[1:] if x.text[:1] != "-"
            ]
        elif program != "cat":
            return
        for target in targets if document is not None else []:
            name = plain_path(clean(target._replace(unknown="")).text)
            if name.startswith("/dev/"):
                continue
            assert document is not None
            text = document
            if target.unknown == ">>" and name in self.files:
                text = one_word((self.files[name], document), line, "\n")
                self.budget.limit(len(text.text), line)
            self.files[name] = text

    def _builtin(
        self, name: str | None, words: list[Word], line: int, document: Word | None
    ) -> bool | None:
        """Take in a command whose words are known."""
        values = words[1:]
        texts = [clean(word).text for word in values]
        self._test(values if name in ("test", "[") else ())
        if name in ("true", ":", "false"):
            return name != "false"
        if name in ("test", "["):
            inner = texts[: -1 if name == "[" else None]
            globs = any(set("*?") & set(text) for text in inner)
            if globs or any(word.unknown for word in values):
                return None
            return _holds(inner)
        if name in ("exit", "return", "shift"):
            return self._leave(name, texts, line)
        if name == "let":
            return self._let(values, line)
        if name == "unset":
            for one in texts if "-f" not in texts else []:
                if NAME.fullmatch(one):
                    self._set(one, (), line)
            return True
        if name in ("read", "mapfile", "readarray"):
            names = [one for one in texts if NAME.fullmatch(one)]
            for one in names:
                unknown = unknown_word(f"${one}, which {name} sets", line)
                self._set(one, (unknown,), line)
            if name == "read" and "-d" in texts and document and len(names) == 1:
                self._set(names[0], (document,), line)
            return None
        if words:
            all_words = (*self.starting, *words)
            self.commands.append(Command(line, tuple(map(clean, all_words))))
        return True if name in ("echo", "export", "set") else None

    def _leave(self, name: str, texts: Sequence[str], line: int) -> bool | None:
        """Take in what ends a script or function, or shifts its arguments."""
        if name == "exit":
            if self.runs:
                self.goes_on, self.exited = False, True
            return None
        if name == "return":
            if self.arguments is not None:
                self.goes_on = _both(self.goes_on, _not(self.runs))
            return {"0": True, "1": False}.get("".join(texts))
        count = whole_number(texts[0]) if texts else None
        if self.arguments is not None and self.runs:
            self.budget.spend(len(self.arguments), line)
            self.arguments = self.arguments[1 if count is None else count :]
        elif self.arguments is not None:
            why = "$1, an argument that may be shifted"
            self.arguments = (unknown_word(why, line),) * 9
        return True

    def _let(self, values: Sequence[Word], line: int) -> bool | None:
        status: bool | None = None
        for value in values:
            number = self._arithmetic(value.text, line)
            status = None if number.unknown else number.text != "0"
        return status

    # Conditions

    def _compare(self, words: list[RawWord]) -> bool | None:
        """Return what ``[[ … ]]`` gives, ``None`` if unknown."""
        self.budget.spend(_STEP + len(words), self.line)
        names = [plain_text(raw) for raw in words]
        for name, join in (("||", _either), ("&&", _both)):
            depth = 0
            for number in range(len(words) - 1, -1, -1):
                depth += {")": 1, "(": -1}.get(names[number] or "", 0)
                if names[number] == name and not depth:
                    one = self._compare(words[:number])
                    return join(one, self._compare(words[number + 1 :]))
        match names:
            case ["!", *_]:
                return _not(self._compare(words[1:]))
            case ["(", *_, ")"]:
                return self._compare(words[1:-1])
            case [_]:
                text = self._joined(words[0], 0)
                return None if text.unknown else bool(text.text)
            case ["-z" | "-n", _]:
                text = self._joined(words[1], 0)
                empty = None if text.unknown else not text.text
                return empty if names[0] == "-z" else _not(empty)
            case [_, "=" | "==" | "!=", _]:
                matches = self._matches(self._joined(words[0], 0), words[2])
                return _not(matches) if names[1] == "!=" else matches
            case [_, str() as name, _] if name in _COMPARED:
                sides = [self._joined(words[at], 0).text for at in (0, 2)]
                # A leading zero makes numbers octal here.
                if any(re.match(r"-?0\d", text) for text in sides):
                    return None
                return _compared(sides[0], name, sides[1])
        return None

    def _assigns(self, raw: RawWord) -> bool:
        """Whether a word is ``NAME=…``, the name and ``=`` not quoted."""
        head = takewhile(lambda piece: not (piece.quoted or piece.expands), raw)
        return ASSIGNMENT.match("".join(piece.text for piece in head)) is not None

    def _assign(self, raw: RawWord) -> None:
        head, number = "", 0
        while not head.endswith("="):
            head += raw[number].text
            number += 1
        rest = raw[number:]
        assignment = ASSIGNMENT.fullmatch(head)
        assert assignment is not None
        name, line = assignment[1], raw[0].line
        before = self.variables.get(name, ())
        if assignment[2]:
            value = self._with_element(name, assignment[2], self._joined(rest, line))
            if assignment[3] or value is None:
                value = _by_element(name, line)
        elif rest and rest[0].array:
            value = self._array(rest[0])
            if any(re.match(r"\[[^]]*\]=", word.text) for word in value):
                value = _by_element(name, line)
            if assignment[3]:
                self.budget.spend(len(before), line)
                value = (*before, *value)
        else:
            value = (self._joined(rest, line),)
            if assignment[3]:
                one = before[0] if before else Word("", line)
                self.budget.limit(len(one.text) + len(value[0].text), line)
                text = one.text + value[0].text
                unknown = one.unknown or value[0].unknown
                value = (Word(text, one.line, unknown), *before[1:])
        self._set(name, value, line)

    def _set(self, name: str, value: tuple[Word, ...], line: int) -> None:
        """Set a variable; to an unknown value where the branch may not run."""
        self.budget.spend(_STEP + len(value), line)
        if name in self.overrides:
            self.used.add(name)
            value = (Word(self.overrides[name], line),)
        elif self.runs is None:
            before = self.variables.get(name, ())
            if [w.text for w in before] == [w.text for w in value] != []:
                return
            about = f" about ${self.doubt}" if self.doubt not in ("", name) else ""
            why = f"${name}, which is set on a condition{about} in line {line}"
            unknown = unknown_word(why, line)
            if len(value) == len(before) == 1:
                # What was there stays where it only grows.
                text = before[0].text
                self.budget.limit(len(text) + len(unknown.text), line)
                text *= value[0].text.startswith(text)
                value = (unknown._replace(text=text + unknown.text),)
            else:
                certain = before if value[: len(before)] == before else ()
                value = (*certain, unknown)
        self.variables[name] = value

    def _with_element(
        self, name: str, index: str, value: Word
    ) -> tuple[Word, ...] | None:
        """Return an array with one element set, ``None`` if it is open."""
        before = list(self.variables.get(name, ()))
        self.budget.spend(len(before), value.line)
        number = self._arithmetic(index[1:-1], value.line)
        if number.unknown or any(word.unknown for word in before):
            return None
        at = int(number.text)
        if not 0 <= at <= len(before):
            return None
        before[at : at + 1] = [value]
        return tuple(before)

    def _array(self, piece: Piece) -> tuple[Word, ...]:
        return tuple(
            word
            for raw in self._words_of(piece.text, piece.line)
            for word in self._expand(raw)
        )

    def _inside(self, text: str, line: int) -> Lexer:
        """Return the lexer of a text inside another one."""
        self.budget.spend(len(text), line)
        return Lexer(text, self.budget, line)

    def _words_of(self, text: str, line: int) -> Iterator[RawWord]:
        """Yield the words of a text inside another one."""
        for token in self._inside(text, line).tokens():
            if isinstance(token, list):
                yield token

    # Expansion

    def _joined(self, raw: RawWord, line: int) -> Word:
        """Return a word as an assignment takes it: never split."""
        self.budget.spend(len(raw), line)
        parts = [
            one_word(self._value(piece), piece.line)
            if piece.expands
            else Word(piece.text, piece.line)
            for piece in raw
        ]
        self.budget.limit(sum(len(part.text) for part in parts), line)
        return one_word(parts, line, "")

    def _expand(self, raw: RawWord) -> list[Word]:
        """Return the words that a word becomes."""
        words: list[Word] = []
        parts: list[Word] = []
        for part in (*self._parts(raw), None):
            if part is not None:
                parts.append(part)
            elif parts:
                line = next((x.line for x in parts if x.text), parts[-1].line)
                self.budget.spend(_STEP, line)
                self.budget.limit(sum(len(x.text) for x in parts), line)
                words.append(one_word(parts, line, "")._replace(line=line))
                parts = []
        if [word[0::2] for word in words] == [("", "")] and any(
            piece.expands and _is_several(piece) for piece in raw
        ):
            return []  # An array without elements is no word.
        return words

    def _parts(self, raw: RawWord) -> Iterator[Word | None]:
        """Yield the parts of words, ``None`` between two words."""
        for piece in raw:
            if not piece.expands:
                yield Word(piece.text, piece.line)
                continue
            values = self._value(piece)
            several = _is_several(piece)
            if piece.quoted and not several:
                yield one_word(values, piece.line)
                continue
            for number, value in enumerate(values):
                if number:
                    yield None
                if piece.quoted:
                    yield value
                else:
                    yield from _split(value)

    def _value(self, piece: Piece) -> tuple[Word, ...]:
        """Return what an expansion stands for."""
        values = self._values(piece)
        length = sum(len(value.text) for value in values)
        steps = _STEP * (1 + len(values))
        self.budget.spend(steps + len(piece.text) + length, piece.line)
        return values

    def _values(self, piece: Piece) -> tuple[Word, ...]:
        inside, line = piece.text, piece.line
        if inside.startswith("(("):
            return (self._arithmetic(inside[2:-1], line),)
        if inside.startswith(UNKNOWN):
            return (Word(inside, line, clean(Word(inside, line)).unknown),)
        if inside.startswith("("):
            return (self._output(inside[1:], line),)
        if counted := re.fullmatch(r"#([A-Za-z_]\w*)(\[[@*]\])?", inside):
            return (self._length(counted[1], bool(counted[2]), line),)
        head = NAME.match(inside)
        if head is None:
            return self._argument(inside, line)
        name, rest = head[0], inside[head.end() :]
        value = self._lookup(name, line)
        if not rest or rest in ("[@]", "[*]"):
            if value is not None:
                return value if rest else value[:1] or (Word("", line),)
            return () if rest else (self._missing(name, line),)
        if match := re.match(r"(:?)([-=+?])(.*)", rest, re.DOTALL):
            empty = not value or (match[1] != "" and value[0][0::2] == ("", ""))
            return self._with_default(name, value, empty, match, line)
        index = re.fullmatch(r"\[([^][]+)\]", rest)
        element = index and self._element(value, index[1], line)
        return (element or unknown_word(f"${{{inside}}}", line),)

    def _output(self, text: str, line: int) -> Word:
        """Return what a command prints, if it prints only what it is given."""
        program = (text.split() or ["a command"])[0]
        unknown = unknown_word(f"the output of {program}", line)
        if program not in ("echo", "cat", "expr"):
            return unknown
        lexer = self._inside(text, line)
        tokens = [token for token in lexer.tokens() if token != "\n"]
        raws = [token for token in tokens if not isinstance(token, str)]
        if len(raws) < len(tokens):
            return unknown
        values = [word for raw in raws for word in self._expand(raw)][1:]
        redirections = [x for several in lexer.redirections.values() for x in several]
        document = self._document(redirections)
        if program == "cat" and document is not None and not values:
            return document._replace(text=document.text.rstrip("\n"))
        if redirections or program == "cat":
            return unknown
        whole = one_word(values, line)
        if program == "expr":
            return self._arithmetic(whole.text, line)
        return unknown if whole.text[:1] == "-" else whole

    def _with_default(
        self,
        name: str,
        value: tuple[Word, ...] | None,
        empty: bool,
        match: re.Match[str],
        line: int,
    ) -> tuple[Word, ...]:
        """Return ``${NAME:-text}``, and those with ``=``, ``+`` or ``?``."""
        kind, text = match[2], match[3]
        if kind == "+":
            return () if empty else (self._text(text, line),)
        if value is not None and not empty:
            return value[:1]
        if kind == "?":
            return (self._missing(name, line),)
        default = self._text(text, line)
        if value is None:
            self.fallbacks[name] = default
        if kind == "=":
            self._set(name, (default,), line)
        return (default,)

    def _element(
        self, value: tuple[Word, ...] | None, text: str, line: int
    ) -> Word | None:
        """Return an element of an array, ``None`` if unknown."""
        at = self._arithmetic(text, line)
        if value is None or at.unknown or not re.fullmatch(r"\d+", at.text):
            return None
        index = int(at.text)
        before = value[: index + 1]
        if any(word.unknown for word in before):
            return None
        return before[index] if index < len(before) else Word("", line)

    def _length(self, name: str, several: bool, line: int) -> Word:
        """Return how many elements a variable has, or how long it is."""
        value = self._lookup(name, line)
        if value is None:
            return self._missing(name, line)
        why = next((word.unknown for word in value if word.unknown), "")
        if why:
            return unknown_word(why, line)
        length = len(value) if several else len(one_word(value[:1], line).text)
        return Word(str(length), line)

    def _argument(self, inside: str, line: int) -> tuple[Word, ...]:
        """Return ``$1`` where it is given, or the default in ``${1:-2}``."""
        if inside in ("@", "*"):
            if self.arguments is not None:
                return self.arguments
            why = f"${inside}, the arguments of the script"
            return (unknown_word(why, line),)
        if inside == "#" and self.arguments is not None:
            return (Word(str(len(self.arguments)), line),)
        match = re.fullmatch(r"([1-9]\d*)(?::?[-=](.*))?", inside, re.DOTALL)
        if match is not None and self.arguments is not None:
            number = whole_number(match[1])
            if number is not None and number <= len(self.arguments):
                return self.arguments[number - 1 : number]
            return (self._text(match[2] or "", line),)
        if match is not None and match[1] in self.overrides:
            self.used.add(match[1])
            return (Word(self.overrides[match[1]], line),)
        if match is None or match[2] is None:
            why = f"${inside}, an argument of the script"
            return (unknown_word(why, line),)
        value = self._text(match[2], line)
        self.defaults[match[1]] = value
        return (value,)

    def _missing(self, name: str, line: int) -> Word:
        self.unset.add(name)
        return unknown_word(f"${name}, which the script does not set", line)

    def _lookup(self, name: str, line: int) -> tuple[Word, ...] | None:
        if name in self.overrides:
            self.used.add(name)
            return (Word(self.overrides[name], line),)
        return self.variables.get(name) or self._of_slurm(name)

    def _of_slurm(self, name: str) -> tuple[Word, ...] | None:
        """Return what Slurm sets a variable to by the directives, if they say it."""
        for option in _SLURM_VARIABLES.get(name, ()):
            stated = self.directives.get(option, Word("", 0))
            count = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z]\w*:)?(\d+)", stated.text)
            if count is not None and not stated.unknown:
                return (stated._replace(text=count[1]),)
        return None

    def _text(self, text: str, line: int) -> Word:
        """Expand text inside ``${NAME:-text}``."""
        words = [self._joined(raw, line) for raw in self._words_of(text, line)]
        return one_word(words, line)

    def _arithmetic(self, text: str, line: int) -> Word:
        """Compute with whole numbers, and set what the text sets."""
        raw = self._inside(f'{text}"', line).double_quoted(line)
        plain = self._joined(raw, line)
        unknown = plain.unknown

        def look_up(name: str) -> int:
            nonlocal unknown
            value = self._lookup(name, line)
            word = self._missing(name, line)
            if value is not None:
                word = value[0] if value else Word("0", line)
            unknown = unknown or word.unknown
            if word.unknown or not re.fullmatch(r"-?(0|[1-9]\d*)?", word.text):
                raise ValueError(text)
            return int(word.text or "0")

        try:
            if unknown:
                raise ValueError(text)
            arithmetic = Arithmetic(plain.text, look_up)
            number = arithmetic.value()
        except (ValueError, ZeroDivisionError, RecursionError):
            for name in written_names(plain.text):
                why = f"${name}, which is computed in line {line}"
                self._set(name, (unknown_word(unknown or why, line),), line)
            return unknown_word(unknown or f"$(({text}))", line)
        for name, value in arithmetic.written.items():
            self._set(name, (Word(str(value), line),), line)
        return Word(str(number), line)


def _is_several(piece: Piece) -> bool:
    """Whether an expansion is one word for each of its values."""
    return piece.text in ("@", "*") or piece.text[-3:] in ("[@]", "[*]")


def _directives(options: Sequence[Word]) -> dict[str, Word]:
    """Return options of ``sbatch`` as the lines of a script have them."""
    directives = {}
    for option, following in pairwise((*map(clean, options), Word("-", 0))):
        match = re.fullmatch(r"(--[A-Za-z-]+|-[A-Za-z])=?(.*)", option.text)
        if match is not None:
            value = following if following.text[:1] != "-" else Word("", option.line)
            stated = option._replace(text=match[2])
            directives[match[1]] = stated if match[2] else value
    return directives


def _by_element(name: str, line: int) -> tuple[Word, ...]:
    """Return what stands for an array whose elements are not followed."""
    return (unknown_word(f"${name}, set element by element", line),)


def _split(value: Word) -> Iterator[Word | None]:
    """Yield the parts of a text at its blanks, ``None`` for the blanks."""
    line = value.line
    for part in re.split(r"(\s+)", value.text):
        line += part.count("\n") + part.count(JOINT)
        if part.isspace():
            yield None
        elif part.strip(JOINT):
            cleaned = clean(Word(part, line))
            yield Word(part, line, cleaned.unknown)


def words_in(value: Word) -> list[Word]:
    """Return the words that a variable's value becomes without quotes."""
    return [clean(word) for word in _split(value) if word is not None]
