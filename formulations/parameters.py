"""Parameters of engines by their own names: which are passed on, which not.

A proof rests on tolerances, gaps, limits of time and on presolve being off;
these the solvers set themselves, and nobody else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from nest.errors import InvalidOptionError
from nest.util.text import did_you_mean

#: Begins the option of a solver that is a parameter of its engine.
PREFIX = "engine."

#: How the options of a solver list them, and what that means.
OPTION = f"{PREFIX}PARAM"
MEANING = "parameter of the engine, by its own name"


def parameters_of(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters among the options of a solver."""
    return {
        key.removeprefix(PREFIX): value
        for key, value in extra.items()
        if key.startswith(PREFIX)
    }


def check_name(
    where: str,
    engine: str,
    name: str,
    names: Collection[str],
    reserved: re.Pattern[str],
) -> None:
    """Refuse a parameter that the engine does not have, or that is ours.

    ``where`` is the option, for messages, ``names`` are all that the engine has, and
    ``reserved`` is a pattern of the names that proofs depend on.

    Raises ``InvalidOptionError`` if it is refused.
    """
    if name not in names:
        hint = did_you_mean(name, names, "correct the name")
        raise InvalidOptionError(
            f"{where}: expected a parameter of {engine}, got {name!r}; {hint}"
        )
    if reserved.search(name):
        raise InvalidOptionError(
            f"{where}: expected a parameter on which no proof rests, got "
            f"{name!r}; leave it out"
        )


def refuse_value(where: str, engine: str, name: str, value: str) -> None:
    """Raise ``InvalidOptionError`` for a value that an engine refuses."""
    raise InvalidOptionError(
        f"{where}: expected a value that {engine} takes for {name}, got "
        f"{value!r}; correct it"
    )
