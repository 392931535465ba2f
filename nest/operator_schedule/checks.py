"""Checks of operators and cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from nest.errors import InvalidProblemError
from nest.operator_schedule.records import Cores, Engine, Operator

#: Ticks that all operators of a pass may take together: times a thousand
#: cores they are still 64-bit integers.
MAX_TICKS = 2**52

#: Operators of a pass, at most.
MAX_OPERATORS = 2**10

ENGINES: tuple[str, ...] = get_args(Engine)

#: The fields of an operator that are ticks, by mode.
TICKS = ("single_ticks", "whole_ticks")
CHANNEL_TICKS = ("single_channel_ticks", "whole_channel_ticks")


def checked_cores(operators: Sequence[Operator], cores: Cores) -> Cores:
    """Return the cores, once operators and cores are fit for each other.

    Raises ``InvalidProblemError`` if the operators are no DAG with ticks, or one has
    nothing to run on.
    """
    cores = Cores(*cores)
    check_cores(cores)
    check_operators(operators)
    check_runs(operators, cores)
    return cores


def check_cores(cores: Cores) -> None:
    """Raise ``InvalidProblemError`` unless there are such cores."""
    for field, count in zip(Cores._fields, cores, strict=True):
        if type(count) is not int or count < 0:
            raise InvalidProblemError(
                f"cores.{field}: expected a whole number >= 0, got {count}; correct it"
            )


def check_operators(operators: Sequence[Operator]) -> None:
    """Raise ``InvalidProblemError`` unless operators are a DAG with ticks."""
    if len(operators) > MAX_OPERATORS:
        raise InvalidProblemError(
            f"operators: expected at most {MAX_OPERATORS}, got "
            f"{len(operators)}; schedule the parts of the layer one by one"
        )
    names = Counter(operator.name for operator in operators)
    for operator in operators:
        where = f"operator {operator.name!r}"
        if names[operator.name] > 1:
            raise InvalidProblemError(
                f"{where}: expected distinct names, got it "
                f"{names[operator.name]} times; rename one"
            )
        for before in operator.after:
            if before not in names:
                raise InvalidProblemError(
                    f"{where}: expected names of operators in after, got "
                    f"{before!r}; correct it"
                )
        _check_ticks(operator, where)
    total = sum(
        max(operator.single_ticks or 0, operator.whole_ticks or 0)
        for operator in operators
    )
    if total > MAX_TICKS:
        raise InvalidProblemError(
            f"operators: expected at most {MAX_TICKS} ticks together, got "
            f"{total}; count in larger units"
        )
    _check_order(operators)


def _check_ticks(operator: Operator, where: str) -> None:
    if operator.engine not in ENGINES:
        raise InvalidProblemError(
            f"{where}: engine: expected {' or '.join(map(repr, ENGINES))}, "
            f"got {operator.engine!r}; correct it"
        )
    free = operator.engine == "none"
    for ticks_field, channel_field in zip(TICKS, CHANNEL_TICKS, strict=True):
        ticks = getattr(operator, ticks_field)
        channel_ticks = getattr(operator, channel_field)
        if free and (ticks is not None or channel_ticks):
            raise InvalidProblemError(
                f"{where}: expected no ticks with engine 'none', got "
                f"{ticks_field} {ticks} and {channel_field} {channel_ticks}; "
                f"remove them or name its engine"
            )
        if ticks is not None and (type(ticks) is not int or ticks < 1):
            raise InvalidProblemError(
                f"{where}: {ticks_field}: expected a whole number >= 1, got "
                f"{ticks}; correct it or use engine 'none'"
            )
        if type(channel_ticks) is not int or not (0 <= channel_ticks <= (ticks or 0)):
            raise InvalidProblemError(
                f"{where}: {channel_field}: expected a whole number from 0 to its "
                f"{ticks_field}, {ticks or 0}, got {channel_ticks}; correct it"
            )
    if not free and operator.single_ticks is operator.whole_ticks is None:
        raise InvalidProblemError(
            f"{where}: expected single_ticks or whole_ticks, got neither; "
            f"the layer cannot run on this accelerator"
        )


def check_runs(operators: Sequence[Operator], cores: Cores) -> None:
    """Raise ``InvalidProblemError`` unless every operator has its cores."""
    for operator in operators:
        for engine, count in zip(Cores._fields, cores, strict=True):
            if operator.engine in (engine, "both") and not count:
                raise InvalidProblemError(
                    f"operator {operator.name!r}: expected at least one "
                    f"{engine} core, got none; add one or change its engine"
                )


def _check_order(operators: Sequence[Operator]) -> None:
    waiting = {operator.name: set(operator.after) for operator in operators}
    while waiting:
        ready = {name for name, after in waiting.items() if not after}
        if not ready:
            raise InvalidProblemError(
                f"operators: expected no cycle, got one among "
                f"{', '.join(waiting)}; remove an entry of after"
            )
        waiting = {
            name: after - ready for name, after in waiting.items() if name not in ready
        }
