"""All faults of a file at once, with what a command line has to say about them.

A reader raises a :class:`Fault` for the first thing that it refuses.
:func:`read_all` then runs it again on a copy of the file without that thing, until
the reader has nothing left to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, Protocol, Self, TypeVar

from nest.errors import InvalidPlanError

T = TypeVar("T")

#: Maximum number of faults that one error lists.
_MAX_FAULTS = 50

#: Models that stand for one that is not known: without experts, and with them.
STAND_INS = ("llama3-8b", "mixtral-8x7b")

#: What stands for a value that is wrong or missing, in the order of trial;
#: ``None`` leaves it out. What a reader refuses under every order does not
#: depend on values that the user still has to say.
_FILLINGS: tuple[tuple[str | None, ...], ...] = ((None, "1", "64"), ("2", "1024", None))


class Fault(InvalidPlanError):
    """One thing that a reader refuses.

    ``text`` is the message: ``where: expected …, got …; remedy``. ``subject`` is what
    it is about: an argument, a key or an option of the command line; ``meant`` is the
    name that it misspells, if it is one. ``answers`` are the words of a command
    line that answer it; ``<N>`` stands for what only the user knows, and there are none
    where only the file can be changed. Reading goes on with ``value``, if others would
    be wrong. A ``premature`` fault is none if another one, which is known already, is
    answered.
    """

    def __init__(
        self,
        text: str,
        subject: str = "",
        answers: Sequence[str] = (),
        meant: str = "",
        value: str = "",
        premature: bool = False,
    ) -> None:
        super().__init__(text)
        self.subject, self.answers = subject, tuple(answers)
        self.meant, self.value, self.premature = meant, value, premature


class FaultsError(InvalidPlanError):
    """Several faults of a file; the text has a line for each."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(*map(str, faults))
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))


class Correction(NamedTuple):
    """A change of a copy of the file: what ``subject`` becomes.

    ``value`` is its value, ``None`` for none; ``meant`` its name, if another.
    """

    subject: str
    value: str | None
    meant: str = ""


class Correctable(Protocol):
    """A file as a reader takes it."""

    def corrected(self, correction: Correction) -> Self:
        """Return a copy in which one thing is said otherwise."""
        ...


F = TypeVar("F", bound=Correctable)


def read_all(read: Callable[[F], T], file: F, first: Sequence[Fault] = ()) -> T:
    """Return what a reader, which does not change the file, makes of it.

    Raises ``Fault`` if the reader refuses one thing, and ``FaultsError`` if it refuses
    several; the ``first`` faults are known already.
    """
    faults: list[Fault] = [*first]
    try:
        read_once = read(file.corrected(Correction("", None)))
    except InvalidPlanError:
        faults += _common([_faults(read, file, order) for order in _FILLINGS])
    else:
        if not faults:
            return read_once
    if len(faults) == 1:
        raise faults[0]
    raise FaultsError(faults[:_MAX_FAULTS])


def raise_questions(
    questions: Sequence[Fault], attempts: Sequence[Callable[[], object]]
) -> NoReturn:
    """Raise what a file leaves open, with its other faults.

    The user has to answer ``questions``. ``attempts`` are readings of the file, each
    with other answers: what all of them refuse does not depend on the answers.

    Raises ``Fault`` if there is only one question, else ``FaultsError``.
    """
    refused: list[Sequence[Fault]] = []
    for attempt in attempts:
        refused.append(())
        try:
            attempt()
        except FaultsError as error:
            refused[-1] = error.faults
        except Fault as error:
            refused[-1] = (error,)
        except InvalidPlanError:
            pass
    faults = [*questions, *_common(refused)]
    if len(faults) == 1:
        raise faults[0]
    raise FaultsError(faults[:_MAX_FAULTS])


def _common(several: Sequence[Sequence[Fault]]) -> list[Fault]:
    """Return the faults that all lists have, in the order of the first."""
    texts = [{str(fault) for fault in faults} for faults in several]
    return [x for x in several[0] if all(str(x) in each for each in texts)]


def _faults(
    read: Callable[[F], object], file: F, order: Sequence[str | None]
) -> list[Fault]:
    """Return what a reader refuses if wrong values are replaced in this order."""
    faults: dict[str, Fault] = {}
    tried: dict[str, int] = {}
    #: Names that others may be spellings of: what is wrong there is no further fault.
    guessed: set[str] = set()
    file = file.corrected(Correction("", None))
    while len(faults) < _MAX_FAULTS:
        try:
            read(file)
        except Fault as fault:
            subject = fault.subject
            if subject not in guessed and not fault.premature:
                faults.setdefault(subject, fault)
            if fault.meant != subject:
                guessed.add(fault.meant)
            count = tried.get(subject, 0)
            tried[subject] = count + 1
            value = _replacement(fault, order, count)
            if not subject or value == "":
                break
            file = file.corrected(Correction(subject, value, fault.meant))
        except FaultsError as error:
            # Of another file, which no correction of this one changes.
            faults |= {str(fault): Fault(str(fault)) for fault in error.faults}
            break
        except InvalidPlanError as error:
            faults.setdefault(str(error), Fault(str(error)))
            break
        else:
            break
    return [*faults.values()]


def _replacement(fault: Fault, order: Sequence[str | None], count: int) -> str | None:
    """Return a value to go on with, empty if there is no further one."""
    if fault.value:
        order = (fault.value,)
    elif fault.meant or {*fault.answers[::2]} == {"--ignore"}:
        # It has no place in the file, or only another name.
        order = (None,)
    return order[count] if count < len(order) else ""
