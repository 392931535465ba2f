"""What beats what: the one place where dominated rows are dropped.

Rows are entries of parallel arrays. A row is beaten by another of its group
that is no larger in any column; of equal rows one stays. Where larger is
better, give the negative column.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: So many neighbors in sorted order are compared at first.
NEIGHBORS = 3

#: So few rows are compared all with all.
SQUARE = 160

#: So many sorted rows at a time are held against those before.
BLOCK = 256


def drop_neighbours(group: Ints, columns: Sequence[Ints], rounds: int = 3) -> Ints:
    """Return rows, sorted, without most of those that another one beats.

    Rows are sorted by group and then by the columns, and compared with their
    neighbors only: linear time, and what is left costs time, not exactness.

    Parameters
    ----------
    group
        Only rows of the same group are compared.
    columns
        What must be no larger, the most telling one first.
    rounds
        How often, at most; a round that finds nothing is the last.

    Returns
    -------
    array
        Positions of the rows kept, in sorted order.
    """
    order: Ints = np.lexsort((*reversed(columns), group))
    for _ in range(rounds):
        groups = group[order]
        # The first column is no larger by the order, if the group is equal.
        table = [column[order] for column in columns[1:]]
        beaten = np.zeros(len(order), dtype=np.bool_)
        for shift in range(1, min(NEIGHBORS, len(order) - 1) + 1):
            earlier, later = slice(None, -shift), slice(shift, None)
            worse = groups[earlier] == groups[later]
            for column in table:
                worse &= column[earlier] <= column[later]
            beaten[later] |= worse
        if not beaten.any():
            break
        order = order[~beaten]
    return order


def non_dominated(
    group: Ints, columns: Sequence[Ints], max_rows: int | None = None
) -> Ints:
    """Return the rows of each group that no earlier one beats.

    Rows are ordered by group, and so that none is beaten by a later one of
    its group unless they are equal.

    Parameters
    ----------
    group, columns
        As in :func:`drop_neighbours`.
    max_rows
        Keep only so many rows of a group, the first ones; ``None`` keeps all.

    Returns
    -------
    array
        Positions of the rows kept, ascending.
    """
    alive = np.arange(len(group))
    survivors: list[Ints] = []
    num_rounds = 0
    # The first row of every group is kept, and drops what it beats.
    while len(alive) > SQUARE or (max_rows is not None and len(alive)):
        groups = group[alive]
        first = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
        heads = alive[first]
        survivors.append(heads)
        num_rounds += 1
        if num_rounds == max_rows:
            return np.sort(np.concatenate(survivors))
        head = np.repeat(heads, np.diff(np.r_[first, len(alive)]))
        beaten = columns[0][head] <= columns[0][alive]
        for column in columns[1:]:
            beaten &= column[head] <= column[alive]
        alive = alive[~beaten]
    if len(alive):
        groups = group[alive]
        beats = np.tri(len(alive), k=-1, dtype=np.bool_).T
        beats &= groups[:, None] == groups[None, :]
        for column in columns:
            values = column[alive]
            beats &= values[:, None] <= values[None, :]
        survivors.append(alive[~beats.any(axis=0)])
    if not survivors:
        return alive
    return np.sort(np.concatenate(survivors))


def non_dominated_sorted(group: Ints, columns: Sequence[Ints]) -> Ints:
    """Return the rows of each group that no earlier one beats.

    Rows are ordered by group and then by the columns: then a row is beaten
    if one of its group before it is no larger in all columns but the first.
    Of three columns only the lower left border of the last two counts, a
    staircase, which is found by bisection.

    Parameters
    ----------
    group, columns
        As in :func:`drop_neighbours`.

    Returns
    -------
    array
        Positions of the rows kept, ascending.
    """
    table = np.stack(columns[1:])
    first = np.flatnonzero(np.diff(group, prepend=-1))
    survivors = [np.zeros(0, dtype=np.int64)]
    for start, stop in pairwise([*first.tolist(), len(group)]):
        border = table[:, :0]
        for low in range(start, stop, BLOCK):
            rows = np.arange(low, min(low + BLOCK, stop))
            if len(table) == 2:
                rows = rows[~_under(border, table[:, rows])]
            else:
                beats = _no_larger(border, table[:, rows])
                rows = rows[~beats.any(axis=0)]
            values = table[:, rows]
            beats = np.tri(len(rows), k=-1, dtype=np.bool_).T
            beats &= _no_larger(values, values)
            fine = ~beats.any(axis=0)
            survivors.append(rows[fine])
            border = np.concatenate((border, values[:, fine]), axis=1)
            if len(table) == 2:
                border = _staircase(border)
    return np.concatenate(survivors)


def _no_larger(one: Ints, other: Ints) -> NDArray[np.bool_]:
    """Return which columns of one table are no larger than of another."""
    no_larger: NDArray[np.bool_] = one[0][:, None] <= other[0][None, :]
    for mine, theirs in zip(one[1:], other[1:], strict=True):
        no_larger &= mine[:, None] <= theirs[None, :]
    return no_larger


def _under(border: Ints, table: Ints) -> NDArray[np.bool_]:
    """Return which columns a staircase has no larger one for."""
    position = np.searchsorted(border[0], table[0], "right") - 1
    reached = np.append(border[1], 0)[position]
    under: NDArray[np.bool_] = (position >= 0) & (reached <= table[1])
    return under


def _staircase(table: Ints) -> Ints:
    """Return the columns that none is below in both rows, ascending."""
    table = table[:, np.lexsort(table[::-1])]
    running_min = np.minimum.accumulate(table[1])
    lower = np.ones(len(running_min), dtype=np.bool_)
    lower[1:] = running_min[1:] < running_min[:-1]
    staircase: Ints = table[:, lower]
    return staircase
