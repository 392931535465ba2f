"""The exceptions of the project; every text says where, what, and what to do.

All of them mean *bad input* (exit code 2 on the command line), except
:class:`SolverError`, which wraps whatever a solver engine raised. Infeasible
problems and exhausted time limits are results, never exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable

from nest.util.text import clipped, did_you_mean, nearby

#: Names that a message lists at most; of more only some.
_MOST_NAMES = 30


class NestError(Exception):
    """Base class of everything the project raises on purpose.

    The text keeps the beginning of numbers and words that are very long.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(clipped(x) if isinstance(x, str) else x for x in arguments))


class InvalidProblemError(NestError, ValueError):
    """The problem cannot be read, is inconsistent, or is out of range."""


class InvalidTextError(NestError, ValueError):
    """A text is not one line of printable characters."""


class InvalidPlanError(NestError, ValueError):
    """The plan cannot be read or does not belong to the problem."""


class UnknownNameError(NestError, LookupError):
    """A name (solver, preset, built-in problem) is not registered.

    ``also`` says where else a name could be looked up.
    """

    def __init__(
        self, what: str, name: str, known: Iterable[str], also: str = ""
    ) -> None:
        names = sorted(known)
        hint = did_you_mean(name, names, "choose one of them")
        listed = ", ".join(names)
        if len(names) > _MOST_NAMES:
            listed = f"{len(names)} names, such as {nearby(name, names)}"
        super().__init__(
            f"{what}: expected one of {listed}; got {name!r}; {hint}"
            f"{also and '; '}{also}"
        )


class UnknownInstanceError(NestError, LookupError):
    """No instance of the library has that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        hint = did_you_mean(name, known, "choose another")
        super().__init__(
            f"instance: expected a name that 'nest instances' lists, got "
            f"{name!r}; {hint}"
        )


class UnknownSolverError(UnknownNameError):
    """The solver keyword is not registered."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__("solver", name, known)


class SolverNotInstalledError(NestError, ImportError):
    """The solver is known, but the package of its engine is missing."""


class UnsupportedProblemError(NestError, ValueError):
    """The solver cannot search this problem; the text names the reason."""


class InvalidOptionError(NestError, ValueError):
    """A solver option is unknown or out of range."""


class SolverError(NestError, RuntimeError):
    """An engine failed; the original exception is chained."""


class KilledError(SolverError):
    """A signal ended a process of a solver, so it may not fail again.

    The system sends signals where memory runs out, and users do.
    """
