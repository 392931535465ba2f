"""Area, energy, power and price of an architecture, from stored constants.

``data/technologies.json`` has the constants of each process with their sources. All are
integers, and so is what is made of them: areas in 1e-6 µm², energies in fJ, power in
mW, money in millionths of a dollar, each rounded up once.
"""

from __future__ import annotations

from bisect import bisect_left
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import cache
from typing import Annotated, NamedTuple

from nest.accelerators.architecture import Architecture
from nest.ir.base import Count, Size, Struct
from nest.units import GB, ceil_div
from nest.util.stored import find, read_records

#: Values with the sizes in bytes that have them, both ascending.
Curve = tuple[tuple[int, int], ...]

#: 1e-6 µm² in a mm².
MM2 = 10**12

#: Bytes of an operand in 16 bits.
WORD_BYTES = 2


def _check_curve(field: str, curve: Curve) -> None:
    """Raise ``ValueError`` unless sizes and values grow."""
    sizes = [size for size, _ in curve]
    values = [value for _, value in curve]
    if not curve or sizes != sorted(set(sizes)) or values != sorted(values):
        raise ValueError(f"{field}: expected sizes and values that grow")


Growing = Annotated[Curve, _check_curve]


class Areas(Struct, frozen=True, kw_only=True):
    """Areas of components on the die, in 1e-6 µm²."""

    #: An element of an array, and a lane.
    mac_e6_um2: Count
    lane_e6_um2: Count
    #: What joins a core to the others.
    tensor_core_e6_um2: Size = 0
    vector_core_e6_um2: Size = 0
    #: A buffer, by its size: what lies between two listed sizes is in proportion
    #: between them, a smaller one takes as much as the smallest, a larger one is made
    #: of the largest.
    sram_e6_um2: Growing
    #: One interface to memory; 0 where none is counted.
    hbm_link_bytes_per_s: Size = 0
    hbm_link_e6_um2: Size = 0
    #: One link to other devices; 0 where none is counted.
    link_bytes_per_s: Size = 0
    link_e6_um2: Size = 0
    #: All else, in millionths of the rest.
    other_ppm: Size = 0


class Energies(Struct, frozen=True, kw_only=True):
    """Energies of one operation of each component, in fJ.

    ``lane_fj`` is that of a lane for a cycle. Those of a buffer are by its size as for
    areas; a larger buffer is made of the largest, of which one is accessed.
    """

    mac_fj: Count
    lane_fj: Count
    sram_fj_per_byte: Growing
    hbm_fj_per_byte: Count


class Technology(Struct, frozen=True, kw_only=True):
    """Constants of a process.

    Leakage is power that is there without any work. ``sources`` say where the constants
    are from, by their names.
    """

    name: str
    areas: Areas
    energies: Energies
    leakage_uw_per_mm2: Size
    sources: dict[str, str]


class UnitEnergies(NamedTuple):
    """Energy of one of each thing that an architecture does, in fJ.

    Buffers are those of a tensor core, of a vector core, and the shared one.
    """

    mac_fj: int
    lane_fj: int
    core_sram_fj_per_byte: int
    vector_sram_fj_per_byte: int
    sram_fj_per_byte: int
    hbm_fj_per_byte: int


class Prices(Struct, frozen=True, kw_only=True):
    """Prices of silicon and memory."""

    #: Price and diameter of a wafer; 10,000 USD for one of 300 mm.
    wafer_micro_usd: Count = 10_000_000_000
    wafer_um: Count = 300_000
    #: Defects that kill a die; 0.1 per cm².
    defects_per_m2: Size = 1000
    #: α of the negative binomial yield ``(1 + A·D/α)^-α``; 10.
    clustering: Count = 10
    #: Memory, per 10⁹ bytes; 7 USD.
    hbm_micro_usd_per_gb: Size = 7_000_000
    #: Package and assembly; 21 USD.
    package_micro_usd: Size = 21_000_000


@cache
def technologies() -> tuple[Technology, ...]:
    """Return the stored processes."""
    return read_records("nest.accelerators", "technologies", Technology)


def technology(name: str) -> Technology:
    """Return a stored process.

    Raises ``UnknownNameError`` if there is none of that name.
    """
    return find("technology", name, technologies())


def _between(curve: Curve, index: int, size: int) -> int:
    """Return a value between the listed one at a place and the one before."""
    after, value = curve[index]
    if index == 0 or after == size:
        return value
    before, smaller = curve[index - 1]
    return smaller + ceil_div((value - smaller) * (size - before), after - before)


def sram_e6_um2(process: Technology, size_bytes: int) -> int:
    """Return the area of a buffer, in 1e-6 µm²."""
    curve = process.areas.sram_e6_um2
    index = bisect_left(curve, (size_bytes,))
    if index == len(curve):
        largest, area = curve[-1]
        return ceil_div(area * size_bytes, largest)
    return _between(curve, index, size_bytes)


def sram_fj_per_byte(process: Technology, size_bytes: int) -> int:
    """Return the energy of an access to a buffer, in fJ per byte."""
    curve = process.energies.sram_fj_per_byte
    size = min(size_bytes, curve[-1][0])
    return _between(curve, bisect_left(curve, (size,)), size)


def area_e6_um2(architecture: Architecture, process: Technology) -> int:
    """Return the area of the die, in 1e-6 µm².

    Cores with their buffers, the shared buffer, and what the process counts of
    interfaces and all else. For ``45nm`` that is the area of Phaze::

        mac · tensor_cores · rows · columns + lane · vector_cores · lanes
        + tensor_cores · sram(core) + vector_cores · sram(vector)
        + sram(shared)
    """
    a, areas = architecture, process.areas
    tensor = areas.mac_e6_um2 * a.rows * a.columns + areas.tensor_core_e6_um2
    vector = areas.lane_e6_um2 * a.lanes + areas.vector_core_e6_um2
    area = (
        a.tensor_cores * (tensor + sram_e6_um2(process, a.core_sram_bytes))
        + a.vector_cores * (vector + sram_e6_um2(process, a.vector_sram_bytes))
        + sram_e6_um2(process, a.sram_bytes)
    )
    if areas.hbm_link_bytes_per_s:
        area += areas.hbm_link_e6_um2 * ceil_div(
            a.hbm_bytes_per_s, areas.hbm_link_bytes_per_s
        )
    if areas.link_bytes_per_s:
        area += areas.link_e6_um2 * ceil_div(
            a.link_bytes_per_s + a.network_bytes_per_s, areas.link_bytes_per_s
        )
    return area + ceil_div(area * areas.other_ppm, 10**6)


def unit_energies(architecture: Architecture, process: Technology) -> UnitEnergies:
    """Return what each thing takes on an architecture."""
    a, energies = architecture, process.energies
    return UnitEnergies(
        mac_fj=energies.mac_fj,
        lane_fj=energies.lane_fj,
        core_sram_fj_per_byte=sram_fj_per_byte(process, a.core_sram_bytes),
        vector_sram_fj_per_byte=sram_fj_per_byte(process, a.vector_sram_bytes),
        sram_fj_per_byte=sram_fj_per_byte(process, a.sram_bytes),
        hbm_fj_per_byte=energies.hbm_fj_per_byte,
    )


def leakage_mw(die_e6_um2: int, process: Technology) -> int:
    """Return the power of a die without any work, in mW."""
    return ceil_div(die_e6_um2 * process.leakage_uw_per_mm2, 1000 * MM2)


def tdp_mw(
    architecture: Architecture, process: Technology, die_e6_um2: int | None = None
) -> int:
    """Return the power with all units at their full rate, in mW.

    No operator draws more on average, whatever the convention. In every cycle each
    array computes on all its elements; of words it takes one per row and two per column
    (an operand, the next weights or a partial sum), and gives one per column. Each lane
    reads two words and writes one. Memory moves all it can, and each byte is written to
    a buffer and read there. Buffers are the dearer of a core's own and the shared one.
    Leakage comes on top; what links to other devices take is not in it.
    """
    a, unit = architecture, unit_energies(architecture, process)
    core = max(unit.core_sram_fj_per_byte, unit.sram_fj_per_byte)
    vector = max(unit.vector_sram_fj_per_byte, unit.sram_fj_per_byte)
    edge_bytes = WORD_BYTES * (a.rows + 3 * a.columns)
    array_fj = a.rows * a.columns * unit.mac_fj + edge_bytes * core
    lane_fj = unit.lane_fj + 3 * WORD_BYTES * vector
    cycle_fj = a.tensor_cores * array_fj + a.vector_cores * a.lanes * lane_fj
    byte_fj = unit.hbm_fj_per_byte + 2 * max(core, vector)
    fj_per_s = cycle_fj * a.frequency_hz + a.hbm_bytes_per_s * byte_fj
    if die_e6_um2 is None:
        die_e6_um2 = area_e6_um2(a, process)
    return ceil_div(fj_per_s, 10**12) + leakage_mw(die_e6_um2, process)


def power_density_uw_per_mm2(tdp_mw: int, die_e6_um2: int) -> int:
    """Return the TDP per area of the die, in µW/mm²."""
    return ceil_div(1000 * tdp_mw * MM2, die_e6_um2)


#: Digits that prices are computed with, the same on every machine.
_DIGITS = Context(prec=50)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510")


def dies_per_wafer(die_e6_um2: int, prices: Prices) -> int:
    """Return how many dies of an area a wafer has, good and bad.

    ``π·d²/4A - π·d/√(2A)``, rounded down: what the edge of the wafer wastes is
    the second term.
    """
    area_um2 = _DIGITS.divide(Decimal(die_e6_um2), Decimal(10**6))
    diameter = Decimal(prices.wafer_um)
    wafer = _DIGITS.multiply(_PI, diameter * diameter / 4)
    edge = _DIGITS.multiply(_PI, diameter)
    dies = _DIGITS.subtract(
        _DIGITS.divide(wafer, area_um2),
        _DIGITS.divide(edge, _DIGITS.sqrt(2 * area_um2)),
    )
    return max(0, int(dies.to_integral_value(ROUND_FLOOR)))


def die_micro_usd(die_e6_um2: int, prices: Prices) -> int | None:
    """Return the price of a good die; ``None`` if none fits the wafer."""
    dies = dies_per_wafer(die_e6_um2, prices)
    if dies == 0:
        return None
    # 1 + A·D/α with A in 1e-18 m².
    per_alpha = 10**18 * prices.clustering
    with_defects = per_alpha + die_e6_um2 * prices.defects_per_m2
    base = _DIGITS.divide(Decimal(with_defects), Decimal(per_alpha))
    spoilt = _DIGITS.power(base, prices.clustering)
    price = _DIGITS.divide(
        _DIGITS.multiply(Decimal(prices.wafer_micro_usd), spoilt), Decimal(dies)
    )
    return int(price.to_integral_value(ROUND_CEILING))


def price_micro_usd(
    architecture: Architecture, die_e6_um2: int, prices: Prices
) -> int | None:
    """Return the price of a device, in millionths of a dollar.

    A good die of that area, its memory and its package. ``None`` if no die of
    that size fits the wafer.
    """
    die = die_micro_usd(die_e6_um2, prices)
    if die is None:
        return None
    memory = ceil_div(architecture.hbm_bytes * prices.hbm_micro_usd_per_gb, GB)
    return die + memory + prices.package_micro_usd
