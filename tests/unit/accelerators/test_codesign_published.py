"""Published chips against formulas and constants."""

from __future__ import annotations

import pytest

from nest.accelerators.published import Chip, chips, ga100_blocks, tpu_v4i_blocks
from nest.present.published import blocks_block, peaks_block


@pytest.mark.parametrize("chip", chips(), ids=lambda chip: chip.name)
def test_peaks_follow_from_arrays_and_clock(chip: Chip) -> None:
    least, most = chip.published_tflops
    assert 0.995 * least < chip.peak_flops / 1e12 < 1.005 * most
    assert abs(chip.peak_error) < 0.005
    assert chip.sources


def test_which_chips_there_are() -> None:
    names = [f"TPU {name}" for name in ("v1", "v2", "v3", "v4i", "v4")]
    names += ["TPU v5e", "TPU v5p", "A100 SXM", "H100 SXM"]
    assert [chip.name for chip in chips()] == names


def test_the_error_of_a_peak_is_to_the_nearest_of_what_is_printed() -> None:
    """TPU v2: 45.9 is between 45 and 46. Half of v1's is half of it."""
    by_name = {chip.name: chip for chip in chips()}
    assert by_name["TPU v2"].peak_error == 0
    assert by_name["TPU v1"].peak_error == pytest.approx(91.7504 / 92 - 1)


def test_blocks_of_ga100() -> None:
    *blocks, total = ga100_blocks()
    for block in blocks:
        assert abs(block.error) < 0.15, block
    assert total.name == "total"
    assert total.published_mm2 == pytest.approx(822.72)
    assert abs(total.error) < 0.05


def test_what_is_fitted_is_said() -> None:
    """The others are from constants that know nothing of these areas."""
    fitted = {block.name for block in ga100_blocks() if block.fitted}
    assert fitted == {"cores", "interconnect", "other"}


def test_a_block_by_hand() -> None:
    """96 banks of 512 KiB: each 2²² bits of 1.7e-7 mm² over 0.602."""
    blocks = {block.name: block for block in ga100_blocks()}
    area_mm2 = 96 * 2**22 * 1.7e-7 / 0.602
    assert blocks["L2"].modelled_mm2 == pytest.approx(area_mm2)
    assert blocks["memory PHY"].modelled_mm2 == pytest.approx(62.7)


def test_the_same_constants_miss_the_blocks_of_tpu_v4i() -> None:
    """Said, not hidden: an L2 is no scratchpad, an FPU no array."""
    errors = {block.name: block.error for block in tpu_v4i_blocks()}
    assert errors["arrays"] == pytest.approx(-0.608, abs=1e-3)
    assert errors["CMEM"] == pytest.approx(1.707, abs=1e-3)


def test_tables_show_all_of_it() -> None:
    assert len(peaks_block()[0].table.rows) == len(chips())
    _, ga100, _, v4i = blocks_block()
    assert len(ga100.table.rows) == len(ga100_blocks())
    assert len(v4i.table.rows) == len(tpu_v4i_blocks())
