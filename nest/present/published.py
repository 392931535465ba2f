"""Published figures of chips, compared with formulas and constants."""

from __future__ import annotations

from rich.console import RenderableType

from nest.accelerators.published import (
    Block,
    Chip,
    chips,
    ga100_blocks,
    tpu_v4i_blocks,
)
from nest.present.table import terminal_table
from nest.util.tables import Column, Table


def peaks_block() -> list[RenderableType]:
    """Return the peaks of chips, and their dies and powers as published."""
    columns = (
        Column("chip", value=lambda chip: chip.name),
        Column("arrays x shape", value=_arrays_text, rank=4),
        Column("MHz", value=lambda x: x.frequency_mhz, right=True, rank=5),
        Column(
            "TFLOP/s by formula",
            form=".1f",
            value=lambda chip: chip.peak_flops / 1e12,
            rank=3,
        ),
        Column("published", value=_published_text, right=True, rank=4),
        Column(
            "off by",
            value=lambda chip: f"{100 * chip.peak_error:+.2f} %",
            right=True,
            rank=5,
        ),
        Column(
            "die, as published",
            value=lambda chip: chip.die,
            rank=6,
            min_width=16,
        ),
        Column(
            "power, as published",
            value=lambda chip: chip.power,
            rank=7,
            min_width=16,
        ),
    )
    return [terminal_table(Table.of(columns, chips()))]


def _arrays_text(chip: Chip) -> str:
    return f"{chip.arrays} x {' x '.join(map(str, chip.shape))}"


def _published_text(chip: Chip) -> str:
    low, high = chip.published_tflops
    return f"{low:g}" if low == high else f"{low:g} - {high:g}"


def blocks_block() -> list[RenderableType]:
    """Return areas of blocks of dies: modelled for 7 nm, and published."""
    return [
        "GA100, by the constants of 7nm:",
        _blocks(ga100_blocks(), ""),
        "TPU v4i, by the same constants; its figures are bounds from above:",
        _blocks(tpu_v4i_blocks(), "at most "),
    ]


def _blocks(blocks: list[Block], bound: str) -> RenderableType:
    columns = (
        Column("block", value=lambda block: block.name),
        Column(
            "mm2 by constants",
            form=".1f",
            value=lambda block: block.modelled_mm2,
            rank=1,
        ),
        Column(
            "published",
            value=lambda block: f"{bound}{block.published_mm2:.1f}",
            right=True,
            rank=2,
        ),
        Column(
            "off by",
            value=lambda block: f"{100 * block.error:+.1f} %",
            right=True,
            rank=3,
        ),
        Column(
            "fitted to it",
            value=lambda block: block.fitted,
            rank=4,
            min_width=20,
        ),
    )
    return terminal_table(Table.of(columns, blocks))
