"""Cycles of matrix products on systolic arrays, by four named conventions.

A product of ``m × k`` by ``k × n`` is laid over the array by one of three
dataflows, which say what stands along the rows (``Sr``), along the columns
(``Sc``), and what streams through (``T``):

================  ====  ====  ===
dataflow           Sr    Sc    T
================  ====  ====  ===
``os`` (output)     m     n    k
``ws`` (weight)     k     n    m
``is`` (input)      k     m    n
================  ====  ====  ===

It takes ``Fr · Fc`` folds on ``R × C`` elements, ``Fr = ceil(Sr / R)`` and
``Fc = ceil(Sc / C)``. A fold with ``r`` rows and ``c`` columns in use loads
or drains in ``r`` cycles and streams in ``r + c + T - 2``.

``paper``
    Every fold takes as long as a full one, ``Fr Fc (2R + C + T - 2)`` cycles
    (Samajdar et al., ISPASS 2020, arXiv 2504.15377).
``scale-sim``
    The same as coded in SCALE-Sim 3.0.0: ``os`` folds do not drain, ``Fr Fc
    (R + C + T - 2)``. (It prints a cycle less: the number of the last one.)
``in-use``
    Every fold takes what its own rows and columns need, the others are
    bypassed::

        Σ (2r + c + T - 2) = 2 Sr Fc + Sc Fr + Fr Fc (T - 2)

``overlapped``
    The next fold loads, or the last one drains, while a fold streams, as with
    the weights of TPU v1 (Jouppi et al., ISCA 2017)::

        2R + C - 2 + T + (Fr Fc - 1) max(T, R)

The first two and the last grow with ``R`` and ``C`` where these do not save
a fold. :func:`cycles` says what the formulas do; :func:`least_cycles` takes a
larger array as a smaller one where that is faster, and never grows. For
``in-use`` both are the same: the formula grows with ``Fr`` and ``Fc`` (by at
least ``Sc - Fc`` and ``2 Sr - Fr``, which are no less than 0).

What is not modeled: feeding the array takes no time of its own, buffers are
wide enough for its edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from nest.units import ceil_div

Dataflow = Literal["os", "ws", "is"]
Convention = Literal["in-use", "paper", "scale-sim", "overlapped"]

DATAFLOWS: tuple[Dataflow, ...] = get_args(Dataflow)
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)


class Mapping(NamedTuple):
    """Steps along the rows and columns of an array, and those that stream."""

    rows: int
    columns: int
    streamed: int


def mapped(m: int, k: int, n: int, dataflow: Dataflow) -> Mapping:
    """Return how a product of ``m × k`` by ``k × n`` lies on an array."""
    if dataflow == "os":
        return Mapping(m, n, k)
    if dataflow == "ws":
        return Mapping(k, n, m)
    return Mapping(k, m, n)


def cycles(
    mapping: Mapping,
    rows: int,
    columns: int,
    convention: Convention,
    dataflow: Dataflow,
) -> int:
    """Return the cycles on an array of ``rows × columns``, all of it used."""
    row_folds = -(-mapping.rows // rows)
    column_folds = -(-mapping.columns // columns)
    if convention == "overlapped":
        last = 2 * rows + columns - 2 + mapping.streamed
        fold = max(mapping.streamed, rows)
        return last + (row_folds * column_folds - 1) * fold
    drains = 1 if (convention, dataflow) == ("scale-sim", "os") else 2
    if convention == "in-use":
        along = drains * mapping.rows * column_folds
        across = mapping.columns * row_folds
    else:
        along = drains * rows * row_folds * column_folds
        across = columns * row_folds * column_folds
    return along + across + row_folds * column_folds * (mapping.streamed - 2)


def cycles_at_least(
    mapping: Mapping,
    row_folds: int,
    column_folds: int,
    convention: Convention,
    dataflow: Dataflow,
) -> int:
    """Return a bound on the cycles of so many folds or more, in either way.

    Folds that are cut evenly have ``mapping.rows / row_folds`` rows at least,
    and so many columns; with these fractions for the sizes of the array the
    formulas grow with both numbers of folds.
    """
    folds = row_folds * column_folds
    if convention == "overlapped":
        streams = folds * mapping.streamed + 1
        loads = mapping.rows * column_folds + mapping.streamed
        return max(streams, loads)
    drains = 1 if (convention, dataflow) == ("scale-sim", "os") else 2
    along = drains * mapping.rows * column_folds
    across = mapping.columns * row_folds
    return along + across + folds * (mapping.streamed - 2)


@lru_cache(maxsize=1 << 18)
def least_cycles(
    mapping: Mapping,
    rows: int,
    columns: int,
    convention: Convention,
    dataflow: Dataflow,
) -> int:
    """Return the least cycles on ``rows × columns`` or a part of them.

    For every number of folds the fewest rows and columns that give it are
    tried, until :func:`cycles_at_least` of them is no less than the least.
    """
    how = convention, dataflow
    fewest = ceil_div(mapping.columns, columns)
    fewest_cycles = cycles(
        mapping, min(rows, mapping.rows), min(columns, mapping.columns), *how
    )
    if convention == "in-use":
        return fewest_cycles
    for used in parts(mapping.rows, rows):
        folds = ceil_div(mapping.rows, used)
        if cycles_at_least(mapping, folds, fewest, *how) >= fewest_cycles:
            break
        for wide in parts(mapping.columns, columns):
            across = ceil_div(mapping.columns, wide)
            if cycles_at_least(mapping, folds, across, *how) >= fewest_cycles:
                break
            fewest_cycles = min(fewest_cycles, cycles(mapping, used, wide, *how))
    return fewest_cycles


def parts(steps: int, max_size: int) -> Iterator[int]:
    """Yield the sizes that cut ``steps`` evenly, of at most ``max_size``.

    ``ceil(steps / f)`` for the numbers of folds ``f``, each once, from the
    largest down.
    """
    size = min(steps, max_size)
    while size >= 1:
        size = ceil_div(steps, ceil_div(steps, size))
        yield size
        size -= 1
