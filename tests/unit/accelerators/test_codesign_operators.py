"""What operators take on an accelerator, by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.accelerators.architecture import Architecture
from nest.accelerators.operators import (
    Gemm,
    OperatorWork,
    Vector,
    array_words,
    energy_fj,
    operations,
    shares,
    spread,
    timed,
    traffic_bytes,
    vector_cycles,
)
from nest.accelerators.silicon import UnitEnergies
from nest.errors import UnknownNameError

GHZ = 10**9

#: Four cores of 2 × 2 with 8 words each, beside as many as are needed.
SMALL = Architecture(
    tensor_cores=4,
    rows=2,
    columns=2,
    vector_cores=4,
    lanes=8,
    sram_bytes=256,
    hbm_bytes=2**30,
    hbm_bytes_per_s=16 * GHZ,
    frequency_hz=GHZ,
    link_bytes_per_s=GHZ,
    network_bytes_per_s=GHZ,
    core_buffer_bytes=32,
)
PRODUCT = OperatorWork(name="product", gemms=(Gemm(4, 3, 4),))
ENERGIES = UnitEnergies(
    mac_fj=1_000_000,
    lane_fj=1000,
    core_sram_fj_per_byte=100,
    vector_sram_fj_per_byte=10,
    sram_fj_per_byte=10_000,
    hbm_fj_per_byte=1,
)


def test_a_product_on_one_core_and_on_four():
    """4 × 3 by 3 × 4.

    One core: four folds of 2·2 + 2 + 3 - 2 = 7 cycles with the results in
    place. Four cores: one such fold each. Through 8 words both operands twice
    and the results, 64 words of 2 bytes; through 64 words all once, 40. At 1
    GHz a cycle is 1000 ps, at 16 GB/s a byte 62.5.
    """
    assert timed(PRODUCT, SMALL) == (28000, 7000, 8000, 5000)


def test_the_longer_of_computing_and_moving_counts():
    slow = replace(SMALL, hbm_bytes_per_s=2 * GHZ)
    assert timed(PRODUCT, slow) == (64000, 40000, 64000, 40000)


def test_times_are_rounded_up_once():
    """28 and 7 cycles at 3 Hz, 128 and 80 bytes at 7 bytes/s."""
    odd = replace(SMALL, frequency_hz=3, hbm_bytes_per_s=7)
    assert timed(PRODUCT, odd) == (
        18285714285715,
        11428571428572,
        18285714285715,
        11428571428572,
    )
    fast = replace(odd, hbm_bytes_per_s=7 * GHZ)
    assert timed(PRODUCT, fast)[:2] == (9333333333334, 2333333333334)


def test_the_engines_of_a_fused_operator_work_side_by_side():
    """100 values of GELU: 13 or 4 rounds of 8 or 32 lanes, 19 cycles each."""
    gelu = Vector(100, "gelu")
    alone = OperatorWork(name="gelu", vectors=(gelu,), vector_bytes=400)
    assert timed(alone, SMALL) == (247000, 76000, 25000, 25000)
    fused = replace(PRODUCT, vectors=(gelu,), vector_bytes=400)
    assert timed(fused, SMALL) == (247000, 76000, 33000, 30000)
    wide = replace(SMALL, lanes=256)
    assert timed(fused, wide) == (33000, 30000, 33000, 30000)


def test_an_operator_may_say_what_it_moves():
    kept = replace(PRODUCT, traffic_bytes=16)
    assert timed(kept, SMALL) == (28000, 7000, 1000, 1000)
    assert traffic_bytes(kept, 1) == 16


def test_the_whole_chip_has_the_buffer_of_its_cores():
    turned = replace(SMALL, sram_bytes=32, core_buffer_bytes=256)
    assert timed(PRODUCT, turned) == (28000, 7000, 5000, 5000)


def test_work_without_anything_takes_no_time():
    assert timed(OperatorWork(name="view"), SMALL) == (0, 0, 0, 0)


def test_cores_share_batch_rows_and_columns():
    """Six cores: groups of 1, 2 or 4 for the batch, then for the columns."""
    assert list(shares(Gemm(12, 1, 8, batch=3), 6)) == [
        (3, 2, 8),
        (3, 4, 4),
        (3, 12, 2),
        (2, 4, 8),
        (2, 12, 4),
        (1, 12, 8),
    ]


def test_groups_that_share_nothing_are_left_out():
    assert list(shares(Gemm(5, 1, 1), 8)) == [(1, 1, 1)]


def test_attention_heads_go_to_cores_of_their_own():
    """64 heads of 8 × 8 by 8 × 8 on 64 cores of 8 × 8: 2·8 + 8 + 8 - 2."""
    found = spread(Gemm(8, 8, 8, batch=64), 64, 8, 8, "in-use")
    assert found == (30, "os", 1, 8, 8)


def test_energy_by_hand():
    """4·3·4 products; operands twice from the buffer, results once: 64 words.

    Those move between memory and the buffer too, or 40 through the shared one.
    """
    single = energy_fj(PRODUCT, SMALL, ENERGIES, whole=False)
    assert single == 48_000_000 + 128 * 100 + 128 * 101
    whole = energy_fj(PRODUCT, SMALL, ENERGIES, whole=True)
    assert whole == 48_000_000 + 128 * 10_000 + 80 * 10_001


def test_energy_of_vectors_by_hand():
    """100 values of 19 cycles of a lane; 400 bytes into a buffer and out."""
    work = OperatorWork(name="gelu", vectors=(Vector(100, "gelu"),), vector_bytes=400)
    single = energy_fj(work, SMALL, ENERGIES, whole=False)
    assert single == 1_900_000 + 400 * 10 + 400 * 11
    whole = energy_fj(work, SMALL, ENERGIES, whole=True)
    assert whole == 1_900_000 + 400 * 10_000 + 400 * 10_001


@pytest.mark.parametrize(
    ("gemm", "flow", "words"),
    [
        # Taller than wide results: they stay. 10 × 2 by 2 × 3 on 4 × 4 has
        # three folds of m and one of n.
        (Gemm(10, 20, 3), "os", 1 * 200 + 3 * 60 + 30),
        # 2 by 2 weights stand and 100 rows stream past them, in one fold.
        (Gemm(100, 2, 2), "ws", 200 + 4 + 200),
        # Six rows of weights in two folds: results go out twice, back once.
        (Gemm(100, 6, 4), "ws", 600 + 24 + 3 * 400),
        # The mirror image: inputs stand.
        (Gemm(2, 2, 100), "is", 4 + 200 + 200),
        (Gemm(5, 6, 100), "is", 30 + 2 * 600 + 3 * 500),
    ],
)
def test_words_between_buffer_and_array(gemm, flow, words):
    """As SCALE-Sim's counts without stalls, and partial sums read back."""
    assert spread(gemm, 1, 4, 4, "in-use").dataflow == flow
    assert array_words(gemm, 1, 4, 4) == words


def test_cores_read_what_they_share_each_for_itself():
    """10 columns on 4 cores of 1 × 2: shares of 3, 3, 3 and 1.

    Two folds in each but the last, of 2 + 2 + 9 - 2 and 2 + 1 + 9 - 2 cycles:
    the left operand is read seven times, once more than by pairs of columns.
    """
    gemm = Gemm(1, 9, 10)
    assert spread(gemm, 4, 1, 2, "in-use") == (21, "os", 1, 1, 3)
    assert array_words(gemm, 4, 1, 2) == 7 * 9 + 90 + 10


def test_operations_are_counted_by_value():
    assert vector_cycles(Vector(9, "softmax"), 4) == 30
    assert vector_cycles(Vector(9, "norm"), 4) == 3
    with pytest.raises(
        UnknownNameError,
        match=r"vector operation: expected one of .*; got 'softmx'; "
        r"did you mean 'softmax'",
    ):
        vector_cycles(Vector(9, "softmx"), 4)


def test_every_operation_says_where_it_comes_from():
    known = operations()
    assert {"gelu", "silu", "softmax", "norm", "dropout"} <= known.keys()
    assert all(operation.source for operation in known.values())
    for name, operation in known.items():
        if name.endswith("-backward"):
            assert name.removesuffix("-backward") in known, operation
