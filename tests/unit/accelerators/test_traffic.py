"""Memory traffic of products, by hand."""

from __future__ import annotations

import pytest

from nest.accelerators.traffic import least_words, words_held


@pytest.mark.parametrize(
    ("held", "words"),
    [
        # The left operand stands, with a column of the right one and of
        # the results, 12 + 3 + 4 words: each moves once.
        (19, 40),
        # Results of 4 × 2 stay, 8 + 4 + 2: the left operand comes twice.
        (18, 52),
        # 2 × 2 results: both operands twice, 24 + 24 + 16.
        (8, 64),
        # 1 × 1: both four times.
        (3, 112),
    ],
)
def test_least_words_by_hand(held, words):
    assert least_words(4, 3, 4, held) == words


def test_an_operand_stays_where_that_moves_less():
    """A vector times a wide matrix, 4 words held.

    A tile of 1 × 1 of each: the result stays with ``1·1·9 + 9 + 9`` words, as
    does the left operand, of one word: 1 + 9 + 9 moves each once.
    """
    assert least_words(1, 1, 9, 4) == 19


def test_partial_sums_are_written_and_read_back():
    """64 × 2 by 2 × 64, 8 words held.

    Results in tiles of 2 × 2: both operands 32 times, 2·32·128 + 4096 =
    12288 words. With 2 × 2 of the left operand standing all of ``k`` is
    there, so that no sum is partial: 128 + 32·128 + 4096 = 8320. With 4 × 1
    (5·2 > 9) nothing fits; 3 × 1: 128 + 22·128 + 3·4096 is more.
    """
    assert least_words(64, 2, 64, 8) == 8320


def test_half_of_a_buffer_holds_words():
    assert words_held(1024) == 256
    assert words_held(1) == 3


def test_least_words_of_large_products():
    """8192³ through 20 MiB in halves: tiles of 2289 × 2289 fit, four a side.

    Tiles of 2048 × 2048 results make four trips each way: 2·4·8192² + 8192².
    """
    assert words_held(20 * 2**20) == 5242880
    assert least_words(8192, 8192, 8192, 5242880) == 9 * 8192**2
