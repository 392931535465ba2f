"""Times of operators on many accelerators at once.

The same figures as :func:`nest.accelerators.operators.timed`, as arrays:
cycles of a product depend on tensor cores, rows and columns alone, its traffic
on a buffer, cycles of a vector operation on lanes and vector cores; each is
found once per distinct value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.accelerators.architecture import Architecture
from nest.accelerators.operators import (
    PS_PER_S,
    Gemm,
    Work,
    ps_of,
    shares,
    tiled_in,
    traffic_bytes,
    vector_cycles,
)
from nest.accelerators.systolic import (
    DATAFLOWS,
    Convention,
    Dataflow,
    Mapping,
    cycles,
    cycles_at_least,
    mapped,
)

Ints = NDArray[np.int64]

#: What divides amounts into picoseconds step by step, see :func:`all_ps_of`.
_STEP = 10**4


class TimedTable(NamedTuple):
    """What :class:`nest.accelerators.operators.Timed` has, per accelerator."""

    single_ps: Ints
    whole_ps: Ints
    single_traffic_ps: Ints
    whole_traffic_ps: Ints


def compute_cycles(
    gemm: Gemm,
    cores: Ints,
    rows: Ints,
    columns: Ints,
    convention: Convention = "in-use",
) -> Ints:
    """Return the cycles of a product, entry by entry of three arrays.

    The same as :func:`nest.accelerators.operators.spread`.
    """
    counts, count_of = np.unique(cores, return_inverse=True)
    arrays, array_of = np.unique(
        np.stack([rows, columns]), axis=1, return_inverse=True
    )
    parts = [list(shares(gemm, int(count))) for count in counts]
    pieces: dict[tuple[int, int], int] = {}
    piece_of, batches = [], []
    for batch, m, n in (share for part in parts for share in part):
        piece_of.append(pieces.setdefault((m, n), len(pieces)))
        batches.append(batch)
    table = _core_table(list(pieces), gemm.k, arrays, convention)
    taken = np.array(batches)[:, None] * table[np.array(piece_of)]
    starts = np.cumsum([0, *map(len, parts[:-1])])
    least = np.minimum.reduceat(taken, starts)
    found: Ints = least[count_of.reshape(-1), array_of.reshape(-1)]
    return found


def _core_table(
    pieces: Sequence[tuple[int, int]],
    k: int,
    arrays: Ints,
    convention: Convention,
) -> Ints:
    """Return the cycles of pieces ``(m, n)`` on one array, piece by array."""
    shape = len(pieces), arrays.shape[1]
    m, n = (np.repeat(size, shape[1]) for size in np.array(pieces).T)
    rows, columns = (np.tile(size, shape[0]) for size in arrays)
    found = []
    for flow in DATAFLOWS:
        mapping = mapped(m, np.full_like(m, k), n, flow)
        used = np.minimum(rows, mapping.rows)
        wide = np.minimum(columns, mapping.columns)
        taken = cycles(mapping, used, wide, convention, flow)
        found.append((flow, mapping, used, wide, taken))
    least: Ints = np.minimum.reduce([taken for *_, taken in found])
    if convention != "in-use":
        for flow, mapping, used, wide, _ in found:
            _use_less(least, mapping, used, wide, (convention, flow))
    return least.reshape(*shape)


def _use_less(
    least: Ints,
    mapping: Mapping,
    rows: Ints,
    columns: Ints,
    how: tuple[Convention, Dataflow],
) -> None:
    """Lower the least cycles to what parts of the arrays take.

    As :func:`nest.accelerators.systolic.least_cycles`, entry by entry.
    """
    entries = np.arange(len(least))
    while len(entries):
        folds = -(-mapping.rows // rows)
        fewest = -(-mapping.columns // columns)
        bound = cycles_at_least(mapping, folds, fewest, *how)
        mapping, rows, columns, folds, entries = _those(
            bound < least[entries], mapping, rows, columns, folds, entries
        )
        rows = -(-mapping.rows // folds)
        _use_fewer_columns(least, mapping, rows, columns, entries, how)
        mapping, rows, columns, entries = _those(
            rows > 1, mapping, rows, columns, entries
        )
        rows = rows - 1


def _use_fewer_columns(
    least: Ints,
    mapping: Mapping,
    rows: Ints,
    columns: Ints,
    entries: NDArray[np.intp],
    how: tuple[Convention, Dataflow],
) -> None:
    """Lower the least cycles of entries to what fewer columns take."""
    while len(entries):
        folds = -(-mapping.columns // columns)
        columns = -(-mapping.columns // folds)
        taken = cycles(mapping, rows, columns, *how)
        least[entries] = np.minimum(least[entries], taken)
        bound = cycles_at_least(
            mapping, -(-mapping.rows // rows), folds + 1, *how
        )
        mapping, rows, columns, entries = _those(
            (bound < least[entries]) & (columns > 1),
            mapping,
            rows,
            columns,
            entries,
        )
        columns = columns - 1


def _those(where: NDArray[np.bool_], *values: Any) -> list[Any]:
    """Return the entries of arrays, or of records of them, that count."""
    return [
        type(value)(*(part[where] for part in value))
        if isinstance(value, tuple)
        else value[where]
        for value in values
    ]


def all_ps_of(amounts: Ints, per_s: Ints) -> Ints:
    """Return times of cycles or bytes at rates, in ps, rounded up.

    Exact: by long division in three steps, where a product could take more
    than 64 bits. Amounts or rates from ``2**63 / 10**4`` on, about 9e14, are
    divided one by one.

    Raises
    ------
    OverflowError
        A time takes more than 64 bits: it is 106 days or more.
    """
    if max(amounts.max(), per_s.max()) >= 2**63 // _STEP:
        pairs = zip(amounts.tolist(), per_s.tolist(), strict=True)
        return np.array([ps_of(*pair) for pair in pairs], np.int64)
    time, rest = np.divmod(amounts, per_s)
    if time.max() >= 2**63 // PS_PER_S:
        raise OverflowError("a time of an operator takes more than 64 bits")
    for _ in range(3):
        more, rest = np.divmod(rest * _STEP, per_s)
        time = time * _STEP + more
    return time + (rest > 0)


class Chips:
    """Accelerators, and what they take for operators.

    Parameters
    ----------
    chips
        At least one.
    convention
        How systolic arrays are counted.
    """

    def __init__(
        self, chips: Sequence[Architecture], convention: Convention = "in-use"
    ) -> None:
        def column(name: str) -> Ints:
            return np.array([getattr(chip, name) for chip in chips])

        self.convention = convention
        self._arrays, self._array_of = _distinct(
            column("tensor_cores"), column("rows"), column("columns")
        )
        lanes, cores = column("lanes"), column("vector_cores")
        self._lanes = (_distinct(lanes), _distinct(lanes * cores))
        self._buffers = tuple(
            _distinct(np.array([tiled_in(chip, whole) for chip in chips]))
            for whole in (False, True)
        )
        self._hbm = column("hbm_bytes_per_s")
        self._frequency = column("frequency_hz")
        self._products: dict[Gemm, tuple[Ints, Ints]] = {}

    def timed(self, work: Work) -> TimedTable:
        """Return what an operator takes, an entry per accelerator."""
        times = []
        products = [self.cycles(gemm) for gemm in work.gemms]
        for whole in (False, True):
            busy = sum(both[whole] for both in products)
            busy = np.zeros(1, np.int64) + busy
            compute = np.maximum(
                busy[self._array_of] if work.gemms else 0,
                self._vector_cycles(work, whole),
            )
            traffic = all_ps_of(self._traffic(work, whole), self._hbm)
            time = np.maximum(all_ps_of(compute, self._frequency), traffic)
            times.append((time, traffic))
        (single, single_traffic), (on_all, whole_traffic) = times
        return TimedTable(single, on_all, single_traffic, whole_traffic)

    def cycles(self, gemm: Gemm) -> tuple[Ints, Ints]:
        """Return the cycles of a product on one core and on all.

        An entry per distinct triple of tensor cores, rows and columns.
        """
        found = self._products.get(gemm)
        if found is None:
            cores, rows, columns = self._arrays
            found = (
                compute_cycles(
                    gemm, np.ones_like(cores), rows, columns, self.convention
                ),
                compute_cycles(gemm, cores, rows, columns, self.convention),
            )
            self._products[gemm] = found
        return found

    def _vector_cycles(self, work: Work, whole: bool) -> Ints:
        (lanes,), lanes_of = self._lanes[whole]
        return np.array(
            [
                sum(vector_cycles(part, width) for part in work.vectors)
                for width in lanes.tolist()
            ]
        )[lanes_of]

    def _traffic(self, work: Work, whole: bool) -> Ints:
        (buffers,), buffer_of = self._buffers[whole]
        return np.array(
            [traffic_bytes(work, size) for size in buffers.tolist()]
        )[buffer_of]


def _distinct(*columns: Ints) -> tuple[Ints, NDArray[np.intp]]:
    """Return the distinct columns of a table, and which each of them is."""
    values, which = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return values, which.reshape(-1)
