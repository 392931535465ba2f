"""Time, memory traffic and energy of an operator on an accelerator.

An accelerator has tensor cores, each a systolic array with a buffer of its
own, vector cores of so many lanes, and a buffer and a memory channel that all
share. An operator runs in one of two modes:

``single``
    On one core of its type (one of each, if it has products and vectors),
    tiled in the core's own buffer.
``whole``
    Alone on the chip, on up to all cores, tiled in the shared buffer.

On ``cores`` tensor cores, ``kb`` groups of cores share the batch of a product, ``kn``
in a group its columns and ``km = cores // (kb kn)`` its rows; ``kb`` and ``kn`` are
powers of two, and cores that are left stay idle. A core does ``ceil(batch / kb)``
products of ``ceil(m / km) × k`` by ``k × ceil(n / kn)``, each in the least cycles over
the dataflows and parts of its array (:mod:`nest.accelerators.systolic`). Of all ``kb``
and ``kn`` the fastest counts.

A vector operation takes ``ceil(values / (lanes · cores)) · c`` cycles, with
``c`` of ``data/vector_operations.json``. Products follow each other, and so
do vector operations; the two engines work side by side.

Traffic of a product is that of :mod:`nest.accelerators.traffic` in half the buffer, the
other half being filled meanwhile, so that computing and moving overlap: an operator
takes the longer of both. Every product of a batch is tiled as if it had the buffer to
itself. Vectors move the bytes that are given. Times are in ps, each rounded up once.

More cores, rows, columns, lanes, bytes of a buffer, bytes/s or Hz never make
an operator slower: a chip may be used as a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Literal, NamedTuple

from nest.accelerators.architecture import Architecture
from nest.accelerators.silicon import UnitEnergies
from nest.accelerators.systolic import (
    DATAFLOWS,
    Convention,
    Dataflow,
    least_cycles,
    mapped,
)
from nest.accelerators.traffic import WORD_BYTES, least_words, words_held
from nest.errors import UnknownNameError
from nest.ir.base import Count, Struct
from nest.units import ceil_div
from nest.util.stored import read_stored

PS_PER_S = 10**12


class Gemm(NamedTuple):
    """``batch`` products of ``m × k`` by ``k × n``."""

    m: int
    k: int
    n: int
    batch: int = 1


class Vector(NamedTuple):
    """An operation of ``data/vector_operations.json`` on so many values."""

    values: int
    operation: str


class OperatorWork(Struct, frozen=True, kw_only=True):
    """The computation and the traffic of one operator."""

    #: For people.
    name: str
    #: One after the other on an engine; the engines side by side.
    gemms: tuple[Gemm, ...] = ()
    vectors: tuple[Vector, ...] = ()
    #: What its vectors read from memory and write there.
    vector_bytes: int = 0
    #: All that it moves, instead of what shapes and ``vector_bytes`` say: of an
    #: operator that keeps in the buffer what others write, such as fused attention.
    #: ``None`` to count.
    traffic_bytes: int | None = None


class Timed(NamedTuple):
    """An operator's time on one core, on the whole chip, and its traffic.

    The times are at least the traffic's.
    """

    single_ps: int
    whole_ps: int
    single_traffic_ps: int
    whole_traffic_ps: int


class Spread(NamedTuple):
    """The distribution of a product over cores, and its cycles.

    ``batch``, ``m`` and ``n`` are those of one core.
    """

    cycles: int
    dataflow: Dataflow
    batch: int
    m: int
    n: int


class Operation(Struct, frozen=True, kw_only=True):
    """Cycles of a lane per value of a vector operation."""

    name: str
    cycles: Count
    source: str


class _Operations(Struct, frozen=True, kw_only=True):
    """The file of vector operations."""

    schema: Literal["nest-vector-operations/1"]
    operations: tuple[Operation, ...]


@cache
def operations() -> dict[str, Operation]:
    """Return the vector operations by name."""
    records = read_stored("nest.accelerators", "vector_operations", _Operations)
    return {operation.name: operation for operation in records.operations}


def vector_cycles(vector: Vector, lanes: int) -> int:
    """Return the cycles of a vector operation on so many lanes.

    Raises ``UnknownNameError`` if there is no such operation.
    """
    registered = operations()
    if vector.operation not in registered:
        raise UnknownNameError("vector operation", vector.operation, registered)
    return ceil_div(vector.values, lanes) * registered[vector.operation].cycles


def shares(gemm: Gemm, cores: int) -> Iterator[tuple[int, int, int]]:
    """Yield the batch, rows and columns of a product that one core gets."""
    for batch_groups in _powers(min(cores, 2 * gemm.batch - 1)):
        max_groups = min(cores // batch_groups, 2 * gemm.n - 1)
        for column_groups in _powers(max_groups):
            row_groups = cores // (batch_groups * column_groups)
            yield (
                ceil_div(gemm.batch, batch_groups),
                ceil_div(gemm.m, row_groups),
                ceil_div(gemm.n, column_groups),
            )


def _powers(limit: int) -> Iterator[int]:
    return (1 << exponent for exponent in range(limit.bit_length()))


@lru_cache(maxsize=1 << 18)
def core_cycles(
    m: int, k: int, n: int, rows: int, columns: int, convention: Convention
) -> tuple[int, Dataflow]:
    """Return the least cycles of a product on one array, and the dataflow."""
    best = None
    for flow in DATAFLOWS:
        mapping = mapped(m, k, n, flow)
        taken = least_cycles(mapping, rows, columns, convention, flow)
        if best is None or taken < best[0]:
            best = taken, flow
    assert best is not None
    return best


@lru_cache(maxsize=1 << 18)
def spread(
    gemm: Gemm, cores: int, rows: int, columns: int, convention: Convention
) -> Spread:
    """Return the fastest way to do a product on up to so many cores."""
    best = None
    for batch, m, n in shares(gemm, cores):
        cycles, flow = core_cycles(m, gemm.k, n, rows, columns, convention)
        if best is None or batch * cycles < best.cycles:
            best = Spread(batch * cycles, flow, batch, m, n)
    assert best is not None
    return best


def ps_of(amount: int, per_s: int) -> int:
    """Return the time of cycles or bytes at a rate, in ps, rounded up."""
    return ceil_div(amount * PS_PER_S, per_s)


def timed(
    work: OperatorWork, chip: Architecture, convention: Convention = "in-use"
) -> Timed:
    """Return what an operator takes on one core and on the whole chip.

    Raises ``UnknownNameError`` if a vector operation is unknown.
    """
    times = []
    for whole in (False, True):
        cores = chip.tensor_cores if whole else 1
        products = sum(
            spread(gemm, cores, chip.rows, chip.columns, convention).cycles
            for gemm in work.gemms
        )
        lanes = chip.lanes * (chip.vector_cores if whole else 1)
        vectors = sum(vector_cycles(vector, lanes) for vector in work.vectors)
        moved = traffic_bytes(work, tiled_in(chip, whole))
        traffic_ps = ps_of(moved, chip.hbm_bytes_per_s)
        compute_ps = ps_of(max(products, vectors), chip.frequency_hz)
        times.append((max(compute_ps, traffic_ps), traffic_ps))
    (single, single_traffic), (on_all, whole_traffic) = times
    return Timed(single, on_all, single_traffic, whole_traffic)


def tiled_in(chip: Architecture, whole: bool) -> int:
    """Return the bytes of the buffer that an operator is tiled in.

    The whole chip has that of its cores too, should one be larger.
    """
    if whole:
        return max(chip.sram_bytes, chip.core_sram_bytes)
    return chip.core_sram_bytes


def traffic_bytes(work: OperatorWork, buffer_bytes: int) -> int:
    """Return what an operator moves between memory and a buffer."""
    if work.traffic_bytes is not None:
        return work.traffic_bytes
    held = words_held(buffer_bytes)
    num_words = sum(
        gemm.batch * least_words(gemm.m, gemm.k, gemm.n, held) for gemm in work.gemms
    )
    return WORD_BYTES * num_words + work.vector_bytes


def energy_fj(
    work: OperatorWork,
    chip: Architecture,
    energies: UnitEnergies,
    *,
    whole: bool,
    convention: Convention = "in-use",
) -> int:
    """Return the energy of an operator, without leakage, in fJ.

    Of its multiply-accumulates, the lanes that work, the words between arrays
    and the buffer it is tiled in (:func:`array_words`), the bytes between
    lanes and theirs, and what moves between a buffer and memory, at both ends.
    """
    sram = energies.sram_fj_per_byte
    core_sram = sram if whole else energies.core_sram_fj_per_byte
    vector_sram = sram if whole else energies.vector_sram_fj_per_byte
    end = core_sram if work.gemms else vector_sram
    cores = chip.tensor_cores if whole else 1
    total = 0
    for gemm in work.gemms:
        num_words = array_words(gemm, cores, chip.rows, chip.columns, convention)
        macs = gemm.batch * gemm.m * gemm.k * gemm.n
        total += macs * energies.mac_fj + WORD_BYTES * num_words * core_sram
    for vector in work.vectors:
        total += vector_cycles(vector, 1) * energies.lane_fj
    total += work.vector_bytes * vector_sram
    moved = traffic_bytes(work, tiled_in(chip, whole))
    return total + moved * (energies.hbm_fj_per_byte + end)


def array_words(
    gemm: Gemm, cores: int, rows: int, columns: int, convention: Convention = "in-use"
) -> int:
    """Return the words between a buffer and the arrays for a product.

    On a full array an operand that streams is read once per fold of the other
    dimension, one that stands once, and results leave once per fold of ``k``
    and come back at all but the first, unless they stand (SCALE-Sim 3.0.0).
    Cores read what they share each for itself.
    """
    best = spread(gemm, cores, rows, columns, convention)
    m, k, n = gemm.m, gemm.k, gemm.n
    if best.dataflow == "os":
        left_reads = _pieces(n, best.n, columns)
        right = _pieces(m, best.m, rows)
        visits = 1
    else:
        stands = best.dataflow == "ws"
        left_reads = _pieces(n, best.n, columns if stands else best.n)
        right = _pieces(m, best.m, best.m if stands else columns)
        visits = 2 * ceil_div(k, rows) - 1
    num_words = left_reads * m * k + right * k * n + visits * m * n
    return gemm.batch * num_words


def _pieces(size: int, share: int, width: int) -> int:
    """Return the folds of ``width`` in all shares of a dimension."""
    shares, rest = divmod(size, share)
    return shares * ceil_div(share, width) + ceil_div(rest, width)
