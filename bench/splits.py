"""Cross-validation by source: fit without a source, predict that source.

Rows of one source share a cluster, a software release and a way of
measuring. A split by row would let a fit see all of these; a split by source
does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from nest.errors import InvalidOptionError
from nest.validation.report import source_of
from nest.validation.rows import Row

Parameters = TypeVar("Parameters")
Answer = TypeVar("Answer")


class HeldOut(NamedTuple, Generic[Parameters, Answer]):
    """One split: a source, and what was predicted for it without it.

    Attributes
    ----------
    source
        The source left out of the fit.
    num_fitted
        Rows of all other sources, which the fit was given.
    parameters
        What the fit returned.
    answers
        Each row of the source with its prediction, in their order.
    """

    source: str
    num_fitted: int
    parameters: Parameters
    answers: list[tuple[Row, Answer]]


def leave_one_source_out(
    rows: Sequence[Row],
    fit: Callable[[Sequence[Row]], Parameters],
    predict: Callable[[Row, Parameters], Answer],
    *,
    group_of: Callable[[Row], str] = source_of,
) -> list[HeldOut[Parameters, Answer]]:
    """Predict every source with parameters fitted to the other sources.

    Parameters
    ----------
    rows
        Rows of two sources or more.
    fit
        Called once per source with the rows of all others, in their order.
    predict
        Called once per row with the parameters fitted without its source.
    group_of
        What counts as one source. Publications that report the same runs
        should be one.

    Returns
    -------
    list[HeldOut]
        One split per source, by name.

    Raises
    ------
    InvalidOptionError
        If all rows are of one source.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    if len(groups) < 2:
        raise InvalidOptionError(
            f"rows: expected two sources or more to leave one out, got "
            f"{len(groups)}; add measurements of another source"
        )
    splits = []
    for source in sorted(groups):
        others = [row for row in rows if group_of(row) != source]
        parameters = fit(others)
        answers = [(row, predict(row, parameters)) for row in groups[source]]
        splits.append(HeldOut(source, len(others), parameters, answers))
    return splits
