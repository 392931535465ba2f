"""Command-line arguments as a launch line has them, with their lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from nest.frameworks.faults import Correction, Fault
from nest.frameworks.shell_words import Word
from nest.util.text import whole_number

#: Options that are read and have underscores.
_UNDERSCORED = frozenset({"--deepspeed_config"})

#: The largest number that a file may say: what frameworks keep in 32 bits.
MAX_NUMBER = 2**31 - 1


class Option(NamedTuple):
    """One option of a command: its values, and where it is written."""

    values: tuple[Word, ...]
    line: int


class Arguments:
    """The options of a command.

    Every reader raises :class:`~nest.errors.InvalidPlanError` if a value is
    missing, of another type or out of range, or depends on what the script
    does not say; the text names file, line and option.

    ``names`` are what the file ``where`` calls options, if otherwise; messages
    call it ``what``. An option that comes twice with other values is a fault, which
    ``doubled`` takes, or which is raised without it; but what the command line says, in
    line 0, takes the place of what the file says.
    """

    def __init__(
        self,
        tokens: Iterable[Word],
        where: str,
        names: Mapping[str, str] | None = None,
        what: str = "script",
        doubled: list[Fault] | None = None,
    ) -> None:
        self.where, self.what = where, what
        self._doubled = doubled
        self.names = names or {}
        self.options: dict[str, Option] = {}
        self.used: set[str] = set()
        #: Options that a reader takes for switches.
        self.switches: set[str] = set()
        #: How options with underscores are written, and in which line.
        self.underscored: dict[str, tuple[str, int]] = {}
        #: Whether what the user still has to say decides on options.
        self.open = False
        #: What a reader assumed of options that are not given, for people.
        self.assumed: list[str] = []
        #: Words of unknown text, which may contain options.
        self.unknown: list[Word] = []
        name, line = "", 0
        values: list[Word] = []
        for token in (*tokens, Word("--", 0)):
            if (
                token.unknown
                and not token.text.startswith("--")
                and (not name or values or token.unknown[:2] in ("$@", "$*"))
            ):
                self.unknown.append(token)
                continue
            if not token.text.startswith("--"):
                values.append(token)
                continue
            if name:
                self._add(name, tuple(values), line)
            name, equals, value = token.text.partition("=")
            line, values = token.line, []
            if equals:
                values = [token._replace(text=value)]

    def _add(self, name: str, values: tuple[Word, ...], line: int) -> None:
        spelt, name = name, name.replace("_", "-")
        if spelt != name and spelt not in _UNDERSCORED:
            self.underscored.setdefault(name, (spelt, line))
        before = self.options.get(name)
        texts = [token.text for token in values]
        if before and [token.text for token in before.values] != texts:
            got = " ".join(w.text for w in before.values) or "no value"
            if before.line and not line:
                self.assumed.append(
                    f"{self.where}:{before.line}: {name} {got}: --say gives another"
                )
            else:
                self._refuse_second(
                    name,
                    line,
                    f"{' '.join(texts) or 'no value'} here "
                    f"and {got} in {f'line {before.line}' if line else '--say'}",
                )
        self.options[name] = Option(values, line)

    def _refuse_second(self, name: str, line: int, got: str) -> None:
        """Refuse an option with two values of the file, or of ``--say``."""
        location = f"{self.where}:{line}: {name}"
        if not line:
            location = f"{self.where}: --say {name[2:]}"
        fault = Fault(
            f"{location}: expected it once, got {got}; remove one",
            subject=name,
            answers=("--say", f"{name[2:]}=<VALUE>"),
        )
        if self._doubled is None:
            raise fault
        self._doubled.append(fault)

    def with_tokens(self, tokens: Iterable[Word]) -> Arguments:
        """Return the options of other tokens of the same file."""
        arguments = Arguments(tokens, self.where, self.names, self.what)
        arguments.unknown = self.unknown
        arguments.underscored = self.underscored
        arguments.assumed, arguments.open = [*self.assumed], self.open
        return arguments

    def corrected(self, correction: Correction) -> Arguments:
        """Return a copy, as nothing has read it, in which one option is otherwise."""
        arguments = Arguments((), self.where, self.names, self.what)
        arguments.unknown = [*self.unknown]
        arguments.underscored = {**self.underscored}
        arguments.assumed, arguments.open = [*self.assumed], self.open
        arguments.options = {**self.options}
        name, value, meant = correction
        option = arguments.options.pop(name, Option((), 0))
        arguments.underscored.pop(name, None)
        if meant:
            arguments.options[meant] = option
        elif value is not None:
            arguments.options[name] = Option((Word(value, option.line),), option.line)
        return arguments

    def location(self, name: str, line: int | None = None) -> str:
        """Return where an option is written: ``file:line: --name``."""
        shown = self.names.get(name, name)
        if line is None and name in self.options:
            line = self.options[name].line
        return f"{self.where}:{line}: {shown}" if line else f"{self.where}: {shown}"

    def location_of_value(self, name: str) -> str:
        """Return the same with the line of the first value."""
        return self.location(name, self.options[name].values[0].line)

    def refuse(
        self,
        name: str,
        expected: str,
        got: object,
        remedy: str = "",
        answers: Sequence[str] | None = None,
        meant: str = "",
    ) -> Fault:
        """Return the error about one option.

        ``answers`` and ``meant`` as of :class:`~nest.frameworks.faults.Fault`; by
        default the option of the file is ignored, and another value given.
        """
        return Fault(
            f"{self.location(name)}: expected {expected}, got {got}; "
            f"{remedy or 'correct it'}",
            subject=name,
            answers=self._answers(name) if answers is None else answers,
            meant=meant,
            premature=self.open and name in self.switches - self.options.keys(),
        )

    def _answers(self, name: str) -> tuple[str, ...]:
        """Return the words of a command line that give an option another value."""
        key, option = self.names.get(name, name).lstrip("-"), self.options.get(name)
        say = ("--say", f"{key}={'' if name in self.switches else '<VALUE>'}")
        if option is None or option.values or not option.line:
            return say
        # What has no value in the file is a switch.
        return ("--ignore", key)

    def check(
        self, holds: bool, name: str, expected: str, got: object, remedy: str = ""
    ) -> None:
        """Refuse an option unless a condition holds."""
        if not holds:
            raise self.refuse(name, expected, got, remedy)

    def _use(self, name: str) -> None:
        """Refuse an option that is read, with underscores for its dashes."""
        self.used.add(name)
        if name in self.underscored:
            spelt, line = self.underscored[name]
            location = f"{self.where}:{line}" if line else self.where
            raise Fault(
                f"{location}: {spelt}: expected an argument with dashes, got "
                f"underscores; did you mean {name!r}?",
                subject=name,
                answers=self._renaming(name, name),
                meant=name,
            )

    def _renaming(self, name: str, meant: str) -> tuple[str, ...]:
        """Return the words of a command line that call an option otherwise."""
        values = " ".join(token.text for token in self.options[name].values)
        key = self.names.get(meant, meant).lstrip("-")
        return ("--ignore", name.lstrip("-"), "--say", f"{key}={values}")

    def has(self, name: str) -> bool:
        """Whether an option without a value is given."""
        self.switches.add(name)
        self._use(name)
        if name not in self.options:
            return False
        values = self.options[name].values
        if not all(token.unknown for token in values):
            raise self.refuse(name, "no value", repr(values[0].text))
        # What follows is no value, but may hold further options.
        self.unknown += values
        self.options[name] = self.options[name]._replace(values=())
        return True

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Return all values of an option, ``None`` if it is not given."""
        self._use(name)
        if name not in self.options:
            return None
        for token in self.options[name].values:
            if token.unknown:
                expected = f"a value that the {self.what} states"
                remedy, answers = _remedy(token, self.what)
                raise self.refuse(name, expected, token.unknown, remedy, answers)
        return tuple(token.text for token in self.options[name].values)

    def text(self, name: str, values_known: Sequence[str] | None = None) -> str | None:
        """Return the only value of an option."""
        values = self.texts(name)
        if values is None:
            return None
        if len(values) != 1:
            raise self.refuse(name, "one value", len(values))
        if values_known is not None and values[0] not in values_known:
            raise self.refuse(
                name, f"one of {', '.join(values_known)}", repr(values[0])
            )
        return values[0]

    def integer_or_none(self, name: str, minimum: int = 1) -> int | None:
        """Return a whole number, ``None`` if the option is not given."""
        text = self.text(name)
        if text is None:
            return None
        value = whole_number(text.removeprefix("-"))
        if value is not None and text.startswith("-"):
            value = -value
        if value is None or value < minimum:
            raise self.refuse(name, f"an integer >= {minimum}", repr(text))
        return value

    def integer(self, name: str, default: int, minimum: int = 1) -> int:
        """Return a whole number, or its default."""
        value = self.integer_or_none(name, minimum)
        return default if value is None else value

    def count(self, name: str) -> int:
        """Return a degree: 1 if it is not given."""
        return self.integer(name, default=1)

    def needed(self, name: str) -> int:
        """Return a whole number that must be given."""
        value = self.integer_or_none(name)
        if value is None:
            hidden = ", ".join(
                f"line {token.line}: {token.unknown}" for token in self.unknown
            )
            got = f"none, unless it is in {hidden}" if hidden else "none"
            remedy = f"add it, or pass --say {name[2:]}=N"
            answers = ("--say", f"{name[2:]}=<N>")
            raise self.refuse(name, "a value", got, remedy, answers)
        return value

    def number(self, name: str, default: float) -> float:
        """Return a number, by default another."""
        text = self.text(name)
        try:
            return default if text is None else float(text)
        except ValueError:
            raise self.refuse(name, "a number", repr(text)) from None

    def unread(self, others: Collection[str]) -> tuple[str, ...]:
        """Return the options that no reader has used, which must be ``others``.

        Raises ``InvalidPlanError`` if one is no other. The text names what it may be a
        misspelling of: an option that is nearly the same, or that one that was used
        begins like.
        """
        unread = [name for name in self.options if name not in self.used]
        unknown = next((name for name in unread if name not in others), None)
        if unknown is not None:
            raise self._unknown(unknown, others)
        return tuple(unread)

    def _unknown(self, name: str, others: Collection[str]) -> Fault:
        """Return the error about an option that does not exist."""
        spelt, _ = self.underscored.get(name, (name, 0))
        remedy = f"remove it, or pass --ignore {name[2:]} if it changes no plan"
        answers: tuple[str, ...] | None = ("--ignore", name[2:])
        used = near(name, self.used)
        meant = used or similar_name(name, others)
        if meant is not None:
            remedy = f"did you mean {self.names.get(meant, meant)!r}?"
        if used is not None:
            # Another name may be chance: then the command line only leaves it out.
            answers = None if self.names else self._renaming(name, used)
        elif self.names:
            answers = None
        expected = "an argument that is known"
        return self.refuse(name, expected, spelt, remedy, answers, used or "")

    def check_all_used(self) -> None:
        """Refuse options that no reader has used."""
        for name in self.options:
            if name not in self.used:
                raise self.refuse(
                    name, "an option that exports write", name, "remove it"
                )


def near(name: str, candidates: Iterable[str]) -> str | None:
    """Return the name that one may have meant, ``None`` if there is none.

    Of two names one begins with the other, or they are nearly alike.
    """
    names = sorted(candidates)
    begins = (
        one for one in names if one.startswith(name) or name.startswith(f"{one}-")
    )
    return similar_name(name, names) or next(begins, None)


def similar_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the name that is spelt nearly so, ``None`` if there is none."""
    return next(iter(get_close_matches(name, candidates, n=1, cutoff=0.85)), None)


def ignored_note(
    where: str, names: Sequence[str], noun: str = "key"
) -> tuple[str, ...]:
    """Return the note about what nest does not read of a file, if anything."""
    if not names:
        return ()
    nouns = noun if len(names) == 1 else f"{noun}s"
    return (
        f"{where}: ignored {len(names)} {nouns} that nest does not read: "
        f"{', '.join(names)}",
    )


def _remedy(token: Word, what: str) -> tuple[str, tuple[str, ...] | None]:
    """Return how the user can give a value that is not known, in a command too."""
    name = r"\$([A-Za-z_]\w*|[1-9]\d*)"
    variable = re.search(rf" on a condition about {name} ", token.unknown)
    variable = variable or re.match(rf"{name}(?:,|$)", token.unknown)
    if variable is not None:
        answers = ("--set", f"{variable[1]}=<VALUE>")
        return f"say it with --set {variable[1]}=VALUE", answers
    return f"write the value into the {what}", None
