"""Area, power and price of architectures."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace

from nest.accelerators.architecture import (
    CATEGORIES,
    PARAMETERS,
    Architecture,
    describe,
)
from nest.accelerators.phaze import tpu_v4_like
from nest.accelerators.silicon import (
    MM2,
    Areas,
    Energies,
    Prices,
    Technology,
    area_e6_um2,
    die_micro_usd,
    dies_per_wafer,
    leakage_mw,
    power_density_uw_per_mm2,
    price_micro_usd,
    sram_e6_um2,
    sram_fj_per_byte,
    tdp_mw,
    technologies,
    technology,
    unit_energies,
)
from nest.errors import UnknownNameError

OLD, NEW = technology("45nm"), technology("7nm")
LIKE = tpu_v4_like()


def test_peak_of_the_point_like_tpu_v4() -> None:
    """8 · 128² · 2 · 1.05 GHz = 275.25 TFLOP/s."""
    assert LIKE.peak_flops == 275_251_200_000_000
    assert LIKE.macs_per_cycle == 131_072
    assert describe(LIKE) == (
        "8 x 128x128 tensor, 2 x 2048 vector, 128 MiB SRAM, 32 GiB HBM"
    )


def test_sizes_are_described_in_the_largest_unit_that_is_whole() -> None:
    sram = {2**30 + 2**20: "1025 MiB", 3 * 10**9: "3 GB", 1536: "1536 B"}
    for size_bytes, text in sram.items():
        assert text in describe(replace(LIKE, sram_bytes=size_bytes))


def test_buffers_of_cores_by_phazes_rule() -> None:
    """16 bytes an element and at least 1 KiB."""
    assert LIKE.core_sram_bytes == 256 * 1024
    assert LIKE.vector_sram_bytes == 32 * 1024
    small = replace(LIKE, rows=2, columns=2, lanes=2)
    assert (small.core_sram_bytes, small.vector_sram_bytes) == (1024, 1024)
    assert replace(LIKE, core_buffer_bytes=5).core_sram_bytes == 5


def test_parameters_are_all_fields() -> None:
    assert sorted(PARAMETERS) == sorted(Architecture.__struct_fields__)
    assert set(CATEGORIES) < set(PARAMETERS)


# Areas


@pytest.mark.parametrize(
    ("counts", "sides", "sram_mib", "area_um2"),
    [
        ((8, 2), (128, 128), 128, "278826676.31216"),
        ((4096, 4096), (2, 16), 32, "246416424.736"),
        ((4096, 4096), (8, 8), 2, "277725981.266688"),
        ((4096, 2048), (32, 2), 4, "246118340.713472"),
        ((4096, 2048), (2, 4), 128, "244239686.260224"),
        ((4096, 4096), (2, 2), 64, "157532259.232"),
    ],
)
def test_areas_that_phaze_ships(
    counts: tuple[int, int], sides: tuple[int, int], sram_mib: int, area_um2: str
) -> None:
    """Lines of cores.json; the constants have six decimals, as these."""
    rows, columns = sides
    point = replace(
        LIKE,
        tensor_cores=counts[0],
        vector_cores=counts[1],
        rows=rows,
        columns=columns,
        lanes=columns,
        sram_bytes=sram_mib * 2**20,
    )
    off_um2 = Fraction(area_e6_um2(point, OLD), 10**6) - Fraction(area_um2)
    assert abs(off_um2) < Fraction(1, 10**6)


def test_area_by_hand() -> None:
    """One of each, 2 × 2 with two lanes and 2 MiB, in µm².

    760.041386·4 + 759.823853·2 + 2·6133.98 + 3338220.
    """
    least = replace(
        LIKE,
        tensor_cores=1,
        vector_cores=1,
        rows=2,
        columns=2,
        lanes=2,
        sram_bytes=2**21,
    )
    assert area_e6_um2(least, OLD) == 3_355_047_773_250


def test_sram_between_listed_sizes() -> None:
    """1.5 KiB is half-way between 6133.98 and 8248.43 µm²."""
    assert sram_e6_um2(OLD, 1024) == 6_133_980_000
    assert sram_e6_um2(OLD, 1536) == 7_191_205_000
    assert sram_e6_um2(OLD, 1) == sram_e6_um2(OLD, 1024)
    assert sram_e6_um2(OLD, 2**28) == 2 * sram_e6_um2(OLD, 2**27)


def test_energy_of_buffers() -> None:
    """45 nm: 10, 20, 100 pJ per 64 bits of 8 KB, 32 KB and 1 MB."""
    assert sram_fj_per_byte(OLD, 1) == sram_fj_per_byte(OLD, 8192) == 1250
    assert sram_fj_per_byte(OLD, 20 * 1024) == 1875
    assert sram_fj_per_byte(OLD, 2**20) == sram_fj_per_byte(OLD, 2**27)
    assert sram_fj_per_byte(OLD, 2**27) == 12_500
    units = unit_energies(LIKE, OLD)
    assert (units.mac_fj, units.lane_fj) == (2000, 4600)
    assert units.core_sram_fj_per_byte == sram_fj_per_byte(OLD, 2**18)
    assert units.vector_sram_fj_per_byte == 2500
    assert (units.sram_fj_per_byte, units.hbm_fj_per_byte) == (12_500, 31_200)


def test_interfaces_of_7nm() -> None:
    """Three interfaces for 1,200 GB/s, one link for 2 · 4 GiB/s; no others."""
    more = replace(LIKE, hbm_bytes_per_s=1_228_800_000_001)
    grown = area_e6_um2(more, NEW) - area_e6_um2(LIKE, NEW)
    assert grown == pytest.approx(1.05 * NEW.areas.hbm_link_e6_um2, abs=2)
    more = replace(LIKE, network_bytes_per_s=25 * 10**9)
    grown = area_e6_um2(more, NEW) - area_e6_um2(LIKE, NEW)
    assert grown == pytest.approx(1.05 * NEW.areas.link_e6_um2, abs=2)
    fast = replace(more, hbm_bytes_per_s=10**13)
    assert area_e6_um2(fast, OLD) == area_e6_um2(LIKE, OLD)


def test_constants_of_7nm_are_what_their_sources_say() -> None:
    """Transistors at 96.3 million per mm², in 1e-6 µm²."""

    def area(transistors: Fraction | int) -> int:
        return round(Fraction(transistors) / Fraction("96.3") * 10**6)

    areas = NEW.areas
    fpu = Fraction(685_300)
    assert areas.mac_e6_um2 == area(fpu * Fraction(10, 52) ** 2)
    assert areas.lane_e6_um2 == area(fpu * Fraction(23, 52) ** 2 + 725_650)
    assert areas.tensor_core_e6_um2 == area(55_000_000)
    assert areas.hbm_link_e6_um2 == 10_450_000_000_000 + area(552_743_000)
    assert areas.hbm_link_bytes_per_s == 1024 * 3_200_000_000 // 8
    parts = ("0.076", "0.142", "0.247", "0.393")
    parts += ("0.559", "0.704", "0.526", "0.602")
    for (size, value), part in zip(areas.sram_e6_um2, parts, strict=True):
        cells = 8 * size * Fraction("1.7e-7") * MM2
        assert value == round(cells / Fraction(part))


@pytest.mark.parametrize("process", technologies(), ids=lambda x: x.name)
def test_every_constant_has_a_source(process: Technology) -> None:
    said = " ".join(process.sources)
    for record in (process.areas, process.energies):
        for name in record.__struct_fields__:
            if getattr(record, name):
                assert name in said
    assert "leakage_uw_per_mm2" in said


def test_unknown_process() -> None:
    with pytest.raises(UnknownNameError, match="technology: expected one of"):
        technology("3nm")


def test_curves_must_grow() -> None:
    with pytest.raises(ValueError, match="sram_e6_um2: expected sizes and"):
        Areas(mac_e6_um2=1, lane_e6_um2=1, sram_e6_um2=((1, 2), (2, 1)))
    with pytest.raises(ValueError, match="sram_fj_per_byte: expected sizes"):
        Energies(mac_fj=1, lane_fj=1, sram_fj_per_byte=(), hbm_fj_per_byte=1)


# Power


def test_tdp_by_hand() -> None:
    """Of one core of each type, 2 × 2, two lanes, 1 Hz and 1 byte/s.

    In a cycle 4 · 2000 + 2·(2 + 3·2) · 12500 and 2 · (4600 + 6 · 12500) fJ: 367.2 pJ; a
    byte of memory takes 31.2 + 2 · 12.5 pJ. That is far less than 1 mW, which it is
    rounded up to; 84.6 mW/mm² on 3.355 mm² leak 284 mW, rounded up.
    """
    least = replace(
        LIKE,
        tensor_cores=1,
        vector_cores=1,
        rows=2,
        columns=2,
        lanes=2,
        sram_bytes=2**21,
        frequency_hz=1,
        hbm_bytes_per_s=1,
    )
    assert leakage_mw(area_e6_um2(least, OLD), OLD) == 284
    assert tdp_mw(least, OLD) == 285
    fast = replace(least, frequency_hz=10**9)
    assert tdp_mw(fast, OLD) == 284 + 368
    wide = replace(least, hbm_bytes_per_s=10**12)
    assert tdp_mw(wide, OLD) == 284 + 56_201


def test_power_density_by_hand() -> None:
    """A W on 3 mm² is a third of a W/mm², rounded up to whole µW/mm²."""
    assert power_density_uw_per_mm2(1000, 3 * MM2) == 333_334
    assert power_density_uw_per_mm2(3000, 3 * MM2) == 1_000_000


def test_a_known_area_is_taken() -> None:
    known = area_e6_um2(LIKE, OLD)
    assert tdp_mw(LIKE, OLD, known) == tdp_mw(LIKE, OLD)
    assert tdp_mw(LIKE, OLD, 0) < tdp_mw(LIKE, OLD)


# Prices


def test_dies_of_a_wafer_by_hand() -> None:
    """100 mm²: π·300²/400 - π·300/√200 = 706.86 - 66.64 = 640.2."""
    assert dies_per_wafer(100 * MM2, Prices()) == 640
    assert dies_per_wafer(10**6 * MM2, Prices()) == 0


def test_price_by_hand() -> None:
    """100 mm² at 0.1 defects/cm²: 10,000 / 640 · (1 + 0.1/10)¹⁰ USD.

    That is 15.625 · 1.104622125411 = 17.259721 USD, rounded up to its
    millionth; memory is 34.359738368 · 7 = 240.518169 USD.
    """
    assert die_micro_usd(100 * MM2, Prices()) == 17_259_721
    assert price_micro_usd(LIKE, 100 * MM2, Prices()) == (
        17_259_721 + 240_518_169 + 21_000_000
    )
    none = Prices(defects_per_m2=0, hbm_micro_usd_per_gb=0, package_micro_usd=0)
    assert price_micro_usd(LIKE, 100 * MM2, none) == 15_625_000


def test_a_die_that_fits_no_wafer_has_no_price() -> None:
    assert die_micro_usd(10**6 * MM2, Prices()) is None
    assert price_micro_usd(LIKE, 10**6 * MM2, Prices()) is None
