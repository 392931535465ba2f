"""Systolic arrays, register by register: what cycles are counted against.

Elements are advanced one by one, cycle by cycle, the lowest and rightmost
first, so that each finds in its neighbors what they had a cycle before. No
formula is known here: a machine stops when everything has left it, and says
what left and in how many cycles. ``None`` is a register that holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Matrix = Any  # of NumPy, whole numbers
Place = tuple[int, int]


def at(values: Sequence[int], step: int) -> int | None:
    """Return what enters an edge at a step; ``None`` before and after."""
    return int(values[step]) if 0 <= step < len(values) else None


def backwards(rows: int, columns: int) -> list[Place]:
    """Return the elements of an array from the last to the first."""
    return [(i, j) for i in range(rows) for j in range(columns)][::-1]


def output_stays(left: Matrix, right: Matrix) -> tuple[Matrix, int]:
    """Multiply with an element per result: operands pass, sums stay.

    Rows of the left operand enter from the left, columns of the right one
    from above, each a cycle after its neighbor. Once all sums are there they
    are shifted down and out.
    """
    places = backwards(rows := len(left), right.shape[1])
    across: dict[Place, int | None] = {}
    down: dict[Place, int | None] = {}
    sums = np.zeros((rows, right.shape[1]), int)
    missing = sums.size * len(right)
    cycle = 0
    while missing:
        for i, j in places:
            a = across.get((i, j - 1)) if j else at(left[i], cycle - i)
            b = down.get((i - 1, j)) if i else at(right[:, j], cycle - j)
            across[i, j], down[i, j] = a, b
            if a is not None and b is not None:
                sums[i, j] += a * b
                missing -= 1
        cycle += 1
    out: list[Matrix] = []
    while len(out) < rows:
        out.insert(0, sums[-1].copy())
        sums[1:] = sums[:-1].copy()
        cycle += 1
    return np.array(out), cycle


def operand_stays(standing: Matrix, streamed: Matrix) -> tuple[Matrix, int]:
    """Return ``streamed × standing`` with an element per standing value.

    Standing values are shifted in from above, a row a cycle. Then rows of the
    streamed operand enter from the left, element ``i`` into row ``i``, a
    cycle after the one above; sums move down and leave at the bottom.
    """
    rows, columns = standing.shape
    held = np.zeros_like(standing)
    for row in standing[::-1]:
        held[1:] = held[:-1].copy()
        held[0] = row
    across: dict[Place, int | None] = {}
    down: dict[Place, int] = {}
    out: list[list[int]] = [[] for _ in range(columns)]
    cycle = loaded = rows
    while min(map(len, out)) < len(streamed):
        for i, j in backwards(rows, columns):
            edge = at(streamed[:, i], cycle - loaded - i)
            a = across.get((i, j - 1)) if j else edge
            across[i, j] = a
            if a is not None:
                above = down[i - 1, j] if i else 0
                down[i, j] = above + a * int(held[i, j])
                if i == rows - 1:
                    out[j].append(down[i, j])
        cycle += 1
    return np.array(out).T, cycle


def in_folds(
    left: Matrix, right: Matrix, rows: int, columns: int, dataflow: str
) -> tuple[Matrix, int]:
    """Multiply on an array of ``rows × columns``, fold after fold.

    Each fold uses the rows and columns that it needs. Sums of folds over the
    inner dimension are added outside the array.
    """
    if dataflow == "is":
        flipped, cycles = in_folds(right.T, left.T, rows, columns, "ws")
        return flipped.T, cycles
    result = np.zeros((len(left), right.shape[1]), int)
    cycles = 0
    for top in range(0, len(left if dataflow == "os" else right), rows):
        for side in range(0, right.shape[1], columns):
            beside = np.s_[side : side + columns]
            along = np.s_[top : top + rows]
            if dataflow == "os":
                part, taken = output_stays(left[along], right[:, beside])
                result[along, beside] = part
            else:
                part, taken = operand_stays(right[along, beside], left[:, along])
                result[:, beside] += part
            cycles += taken
    return result, cycles


def weights_ahead(folds: Sequence[tuple[Matrix, Matrix]]) -> tuple[list[Matrix], int]:
    """Return ``streamed × standing`` of pairs, in folds that overlap.

    Elements have a second register for the next fold's standing value. It
    comes down its column while a fold streams, the lowest row's first, a
    column a cycle after its neighbor; an element turns to it when the first
    value of the next fold arrives. A fold begins as soon as the last one has
    entered and its own first values have arrived.
    """
    rows, columns = folds[0][0].shape
    steps = len(folds[0][1])
    period = max(steps, rows)
    held: dict[Place, tuple[int, int]] = {}
    ahead: dict[Place, tuple[int, int]] = {}
    coming: dict[Place, tuple[int, int, int] | None] = {}
    across: dict[Place, tuple[int, int] | None] = {}
    down: dict[Place, int] = {}
    out: list[list[int]] = [[] for _ in range(columns)]

    def loading(cycle: int, j: int) -> tuple[int, int, int] | None:
        fold, step = (0, cycle) if cycle < rows else divmod(cycle - rows, period)
        fold += cycle >= rows
        if not (0 <= fold < len(folds) and 0 <= step < rows):
            return None
        row = rows - 1 - step
        return fold, row, int(folds[fold][0][row, j])

    def streaming(cycle: int, i: int) -> tuple[int, int] | None:
        fold, step = divmod(cycle - rows, period)
        if not (0 <= fold < len(folds) and step < steps):
            return None
        return fold, int(folds[fold][1][step, i])

    cycle = 0
    while min(map(len, out)) < steps * len(folds):
        for i, j in backwards(rows, columns):
            a = across.get((i, j - 1)) if j else streaming(cycle - i, i)
            across[i, j] = a
            if a is not None:
                if (i, j) not in held or held[i, j][0] < a[0]:
                    held[i, j] = ahead.pop((i, j))
                assert held[i, j][0] == a[0]
                above = down[i - 1, j] if i else 0
                down[i, j] = above + a[1] * held[i, j][1]
                if i == rows - 1:
                    out[j].append(down[i, j])
            value = coming.get((i - 1, j)) if i else loading(cycle - j, j)
            coming[i, j] = value
            if value is not None and value[1] == i:
                assert (i, j) not in ahead
                ahead[i, j] = value[0], value[2]
        cycle += 1
    whole = np.array(out).T
    return [whole[x : x + steps] for x in range(0, len(whole), steps)], cycle


def sums_behind(folds: Sequence[tuple[Matrix, Matrix]]) -> tuple[list[Matrix], int]:
    """Return ``left × right`` of pairs, in folds whose sums drain meanwhile.

    An element hands a finished sum to a second register and goes on with the
    next fold. The second registers of a column are shifted down and out once
    its lowest sum is there; those that have given theirs away stay out.
    """
    rows, columns = len(folds[0][0]), folds[0][1].shape[1]
    steps = len(folds[0][1])
    period = max(steps, rows)
    across: dict[Place, int | None] = {}
    down: dict[Place, int | None] = {}
    sums = dict.fromkeys(backwards(rows, columns), (0, 0))
    done: dict[Place, int] = {}
    leaving = [0] * columns
    out: list[list[int]] = [[] for _ in range(columns)]

    def entering(cycle: int, side: int, place: int) -> int | None:
        fold, step = divmod(cycle, period)
        if not 0 <= fold < len(folds):
            return None
        operand = folds[fold][side]
        return at(operand[:, place] if side else operand[place], step)

    cycle = 0
    while min(map(len, out)) < rows * len(folds):
        for j in range(columns):
            if leaving[j]:
                leaving[j] -= 1
                out[j].append(done.pop((rows - 1, j)))
                for i in range(rows - 1, rows - leaving[j] - 1, -1):
                    done[i, j] = done.pop((i - 1, j))
        for i, j in backwards(rows, columns):
            a = across.get((i, j - 1)) if j else entering(cycle - i, 0, i)
            b = down.get((i - 1, j)) if i else entering(cycle - j, 1, j)
            across[i, j], down[i, j] = a, b
            if a is None or b is None:
                continue
            count, total = sums[i, j]
            sums[i, j] = count + 1, total + a * b
            if count + 1 == steps:
                assert (i, j) not in done
                done[i, j], sums[i, j] = total + a * b, (0, 0)
                if i == rows - 1:
                    leaving[j] = rows
        cycle += 1
    whole = np.array(out).T
    return [whole[x : x + rows][::-1] for x in range(0, len(whole), rows)], cycle
