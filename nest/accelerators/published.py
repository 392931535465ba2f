"""Published figures of chips, compared with the stored constants.

Peaks follow from arrays, their size and the clock. Areas of GA100's blocks
follow from constants of the process ``7nm`` and of units that only GPUs have
(``data/published.json``); the same constants miss TPU v4i's, and both are
shown. Areas and powers of other chips are as published: text.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import prod
from typing import NamedTuple

from nest.accelerators.silicon import MM2, sram_e6_um2, technology
from nest.ir.base import Count, FileStruct, Struct
from nest.util.stored import read_stored


class Chip(Struct, frozen=True, kw_only=True):
    """A chip as published.

    It has arrays of multiply-accumulates, what one computes in a cycle, and their
    clock. A shape is rows and columns; for a GPU, whose units are no systolic arrays,
    M, N and K of a product. The peak is of ``dtype``; the least and the most are given
    that are printed.
    """

    name: str
    arrays: Count
    shape: tuple[int, ...]
    frequency_mhz: Count
    dtype: str
    published_tflops: tuple[float, float]
    die: str
    power: str
    sram: str
    memory: str
    sources: tuple[str, ...]

    @property
    def peak_flops(self) -> int:
        """Operations/s by the formula: ``2 · arrays · R · C · f``."""
        macs = self.arrays * prod(self.shape)
        return 2 * macs * self.frequency_mhz * 10**6

    @property
    def peak_error(self) -> float:
        """The error of the formula, relative to the published peak."""
        low, high = self.published_tflops
        peak = self.peak_flops / 1e12
        return peak / min(max(peak, low), high) - 1


class Block(NamedTuple):
    """A block of a die.

    ``fitted`` says which of the constants are fitted to this block; it is empty if none
    is.
    """

    name: str
    published_mm2: float
    modelled_mm2: float
    fitted: str = ""

    @property
    def error(self) -> float:
        """The error of the model, relative to the published area."""
        return self.modelled_mm2 / self.published_mm2 - 1


class _Gpu(Struct, frozen=True, kw_only=True):
    counts: dict[str, int]
    transistors: dict[str, int]
    million_transistors_per_mm2: dict[str, str]
    register_file_um2: dict[str, str]
    hbm_phy_e6_um2: int
    published_mm2: dict[str, str]
    fitted: dict[str, str]
    sources: dict[str, str]


class _Tpu(Struct, frozen=True, kw_only=True):
    arrays: int
    rows: int
    columns: int
    cmem_bytes: int
    die_mm2: str
    shares: dict[str, str]
    source: str


class _File(FileStruct, frozen=True, kw_only=True, tag="nest-published/1"):
    chips: tuple[Chip, ...]
    ga100: _Gpu
    tpu_v4i: _Tpu


@cache
def _file() -> _File:
    return read_stored("nest.accelerators", "published", _File)


def chips() -> tuple[Chip, ...]:
    """Return the chips whose peaks are published."""
    return _file().chips


def ga100_blocks() -> list[Block]:
    """Return the blocks of GA100, the die of A100, and the whole of them."""
    gpu = _file().ga100
    areas = technology("7nm").areas
    counts = gpu.counts
    hbm_control = areas.hbm_link_e6_um2 - gpu.hbm_phy_e6_um2
    modeled: dict[str, Fraction | int] = {
        "cores": counts["cores"] * _core_e6_um2(gpu),
        "interconnect": counts["cores"] * areas.tensor_core_e6_um2,
        "L2": sram_e6_um2(technology("7nm"), counts["l2_bytes"]),
        "memory PHY": counts["hbm_links"] * gpu.hbm_phy_e6_um2,
        "memory control": counts["hbm_links"] * hbm_control,
        "links PHY": counts["links"] * areas.link_e6_um2,
    }
    rest = sum(modeled.values())
    modeled["other"] = Fraction(rest) * areas.other_ppm / 10**6
    blocks = [
        Block(
            name,
            float(gpu.published_mm2[name]),
            float(Fraction(area) / MM2),
            gpu.fitted.get(name, ""),
        )
        for name, area in modeled.items()
    ]
    published_mm2 = sum(block.published_mm2 for block in blocks)
    modelled_mm2 = sum(block.modelled_mm2 for block in blocks)
    return [*blocks, Block("total", published_mm2, modelled_mm2)]


def _core_e6_um2(gpu: _Gpu) -> Fraction:
    """Return the area of a multiprocessor with its registers and L1."""
    counts, transistors = gpu.counts, gpu.transistors
    process = technology("7nm")
    density = Fraction(gpu.million_transistors_per_mm2["7nm"])
    units = (
        counts["fp32_per_core"] * transistors["fp64"] * Fraction(23, 52) ** 2
        + counts["int32_per_core"] * transistors["int32"]
        + counts["fp64_per_core"] * transistors["fp64"]
        + counts["lanes_per_core"] * transistors["lane_control"]
    )
    macs = counts["units_per_core"] * counts["macs_per_unit"]
    return (
        units / density * 10**6
        + macs * process.areas.mac_e6_um2
        + counts["units_per_core"] * _registers_e6_um2(gpu)
        + sram_e6_um2(process, counts["l1_bytes"])
    )


def _registers_e6_um2(gpu: _Gpu) -> Fraction:
    """Return the area of a register file: a polynomial, scaled by density."""
    sizes = {
        "D": gpu.counts["registers_per_unit"],
        "W": gpu.counts["register_bits"],
        "P": gpu.counts["register_ports"],
        "1": 1,
    }
    area_um2 = Fraction(0)
    for factors, constant in gpu.register_file_um2.items():
        term = Fraction(constant)
        for factor in factors:
            term *= sizes[factor]
        area_um2 += term
    density = gpu.million_transistors_per_mm2
    return area_um2 * 10**6 * Fraction(density["90nm"]) / Fraction(density["7nm"])


def tpu_v4i_blocks() -> list[Block]:
    """Return the two blocks of TPU v4i whose shares are published.

    What is published bounds them from above. Nothing is fitted to them.
    """
    tpu, process = _file().tpu_v4i, technology("7nm")
    macs = tpu.arrays * tpu.rows * tpu.columns
    modeled = {
        "arrays": macs * process.areas.mac_e6_um2,
        "CMEM": sram_e6_um2(process, tpu.cmem_bytes),
    }
    die_mm2, shares = Fraction(tpu.die_mm2), tpu.shares
    return [
        Block(name, float(Fraction(shares[name]) * die_mm2), area / MM2)
        for name, area in modeled.items()
    ]
