"""What is published of chips, beside what formulas and constants say."""

from __future__ import annotations

from rich.console import RenderableType

from nest.accelerators.published import (
    Block,
    chips,
    ga100_blocks,
    tpu_v4i_blocks,
)
from nest.present.fitted import Column
from nest.present.table import simple_table


def peaks_block() -> list[RenderableType]:
    """Return the peaks of chips, and their dies and powers as published."""
    rows = []
    for chip in chips():
        least, most = chip.published_tflops
        printed = f"{least:g}" if least == most else f"{least:g} - {most:g}"
        rows.append(
            (
                chip.name,
                f"{chip.arrays} x {' x '.join(map(str, chip.shape))}",
                f"{chip.frequency_mhz}",
                f"{chip.peak_flops / 1e12:.1f}",
                printed,
                f"{100 * chip.peak_error:+.2f} %",
                chip.die,
                chip.power,
            )
        )
    return [
        simple_table(
            (
                "chip",
                Column("arrays x shape", 4),
                Column("MHz", 5),
                "TFLOP/s by formula",
                "published",
                "off by",
                Column("die, as published", 6, least=16),
                Column("power, as published", 7, least=16),
            ),
            rows,
            right=(2, 3, 4, 5),
        )
    ]


def blocks_block() -> list[RenderableType]:
    """Return areas of blocks of dies: modelled for 7 nm, and published."""
    return [
        "GA100, by the constants of 7nm:",
        _blocks(ga100_blocks(), ""),
        "TPU v4i, by the same constants; its figures are bounds from above:",
        _blocks(tpu_v4i_blocks(), "at most "),
    ]


def _blocks(blocks: list[Block], bound: str) -> RenderableType:
    return simple_table(
        ("block", "mm2 by constants", "published", "off by", "fitted to it"),
        [
            (
                block.name,
                f"{block.modelled_mm2:.1f}",
                f"{bound}{block.published_mm2:.1f}",
                f"{100 * block.error:+.1f} %",
                block.fitted,
            )
            for block in blocks
        ],
        right=(1, 2, 3),
    )
