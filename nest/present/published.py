"""Published figures of chips, compared with formulas and constants."""

from __future__ import annotations

from rich.console import RenderableType

from nest.accelerators.published import Block, Chip, chips, ga100_blocks, tpu_v4i_blocks
from nest.present.table import number_form, terminal_table
from nest.util.tables import Column, Table


def peaks_block() -> list[RenderableType]:
    """Return the peaks of chips, and their dies and powers as published."""
    columns = (
        Column("name", "chip"),
        Column("arrays x shape", value=_arrays_text, rank=4),
        Column("frequency_mhz", "MHz", right=True, rank=5),
        Column("peak_flops", "TFLOP/s by formula", _tera, right=True, rank=3),
        Column("published", value=_published_text, right=True, rank=4),
        Column(
            "peak_error", "off by", number_form("+z.2f", 100, " %"), right=True, rank=5
        ),
        Column("die", "die, as published", rank=6, min_width=16),
        Column("power", "power, as published", rank=7, min_width=16),
    )
    return [terminal_table(Table.of(columns, chips()))]


def _tera(flops: int) -> str:
    return f"{flops / 1e12:.1f}"


def _arrays_text(chip: Chip) -> str:
    return f"{chip.arrays} x {' x '.join(map(str, chip.shape))}"


def _published_text(chip: Chip) -> str:
    low, high = chip.published_tflops
    return f"{low:g}" if low == high else f"{low:g} - {high:g}"


def blocks_block() -> list[RenderableType]:
    """Return areas of blocks of dies: modeled for 7 nm, and published."""
    return [
        "GA100, by the constants of 7nm:",
        _blocks(ga100_blocks(), ""),
        "TPU v4i, by the same constants; its figures are bounds from above:",
        _blocks(tpu_v4i_blocks(), "at most "),
    ]


def _blocks(blocks: list[Block], bound: str) -> RenderableType:
    columns = (
        Column("name", "block"),
        Column("modelled_mm2", "mm2 by constants", ".1f", rank=1),
        Column(
            "published_mm2",
            "published",
            lambda size_mm2: f"{bound}{size_mm2:.1f}",
            right=True,
            rank=2,
        ),
        Column("error", "off by", number_form("+z.1f", 100, " %"), right=True, rank=3),
        Column("fitted", "fitted to it", rank=4, min_width=20),
    )
    return terminal_table(Table.of(columns, blocks))
