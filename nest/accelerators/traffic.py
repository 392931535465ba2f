"""Least memory traffic of a matrix product through a buffer, in words.

A product of ``m × k`` by ``k × n`` is cut into tiles of ``tm × tk``,
``tk × tn`` and ``tm × tn`` that lie in the buffer together::

    tm tk + tk tn + tm tn <= S

and loops run over the tiles in some order, ``F = ceil(size / tile)`` trips
each. An operand is fetched again for each trip of a loop outside its
innermost indexing loop, so only the innermost loop matters; partial sums are
written at every visit and read back at all but the first:

==================  ============================================
innermost loop       words
==================  ============================================
over ``k``           ``mk Fn + kn Fm + mn``
over ``n``           ``mk + kn Fm + mn (2 Fk - 1)``
over ``m``           ``mk Fn + kn + mn (2 Fk - 1)``
==================  ============================================

The tile of the innermost loop is best at 1, which leaves two tile sizes ``t``
and ``u`` with ``(t + 1)(u + 1) <= S + 1``. :func:`least_words` is the least
over all tiles and orders: for every number of trips of one loop it takes the
smallest tile that gives it, and the largest other one that fits.

A tile model is a schedule with ``S`` words of fast memory, so two bounds hold
for it: every operand and result moves once, ``mk + kn + mn``, and ``2 mnk /
sqrt(S) - 2 S`` (Smith et al. 2019, arXiv 1702.02017).

A buffer of which one half is filled while the other half is worked on holds
half the words. Partial sums take as many bytes as results.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt

from nest.accelerators.systolic import parts
from nest.units import ceil_div

#: Bytes of a value: bf16 or fp16.
WORD_BYTES = 2

#: The smallest buffer: a value of each operand and of the result.
LEAST_WORDS = 3


def words_held(buffer_bytes: int) -> int:
    """Return the words of half a buffer, the other half being filled.

    At least the three without which nothing can be multiplied.
    """
    return max(LEAST_WORDS, buffer_bytes // (2 * WORD_BYTES))


@lru_cache(maxsize=1 << 16)
def least_words(m: int, k: int, n: int, held: int) -> int:
    """Return the least words that tiles in ``held`` words move."""
    left_words, right, result = m * k, k * n, m * n
    return min(
        result + _least(m, right, n, left_words, held),
        left_words - result + _least(m, right, k, 2 * result, held),
        right - result + _least(n, left_words, k, 2 * result, held),
    )


def _least(size: int, per_trip: int, other: int, other_per_trip: int, held: int) -> int:
    """Return the least of ``per_trip F + other_per_trip G``.

    ``F`` and ``G`` are the trips of two loops over ``size`` and ``other``
    whose tiles fit. Where tiles are of any size, the least is near ``t² =
    S · per_trip · size / (other_per_trip · other)``. Only tiles count whose
    trips in either loop do not take more alone than that one.
    """
    max_tile = (held + 1) // 2 - 1
    near = isqrt(held * per_trip * size // (other_per_trip * other))
    near = max(1, min(near, max_tile))

    def words(tile: int) -> int:
        room = (held + 1) // (tile + 1) - 1
        trips = ceil_div(size, tile), ceil_div(other, room)
        return trips[0] * per_trip + trips[1] * other_per_trip

    min_words = words(near)
    smallest = ceil_div(other, (min_words - 1) // other_per_trip)
    for tile in parts(size, (held + 1) // (smallest + 1) - 1):
        if ceil_div(size, tile) * per_trip >= min_words:
            break
        min_words = min(min_words, words(tile))
    return min_words
