"""Statistics of benchmarks, derived by hand."""

from __future__ import annotations

import math

import pytest

from nest.benchmarks.statistics import (
    bootstrap_mean,
    cactus,
    primal_gap,
    primal_integral,
    profile,
    shifted_geometric_mean,
    sign_test,
    upper_median,
    wilson,
)

INF = math.inf


def test_shifted_geometric_mean() -> None:
    """√((0+1)·(8+1)) - 1 = 2; unshifted, ∛(1·2·4) = 2."""
    assert shifted_geometric_mean([0, 8], 1) == pytest.approx(2)
    assert shifted_geometric_mean([1, 2, 4], 0) == pytest.approx(2)


def test_profiles() -> None:
    """Three runs: a takes 1, 4, never; b takes 2, 1, never.

    Ratios to the least: a has 1, 4, ∞ and b has 2, 1, ∞. Of three runs each
    is best in one, a is within 4 times the best in two, b within 2 times.
    """
    found = profile({"a": [1, 4, INF], "b": [2, 1, INF]})
    assert found == {
        "a": ((1.0, 1 / 3), (4.0, 2 / 3)),
        "b": ((1.0, 1 / 3), (2.0, 2 / 3)),
    }


def test_a_profile_of_one_that_never_leads_begins_at_0() -> None:
    found = profile({"a": [1, 1], "b": [3, INF]})
    assert found["b"] == ((1.0, 0.0), (3.0, 0.5))


def test_a_profile_of_zeros() -> None:
    """A cost of 0 leads; nothing is a multiple of it."""
    found = profile({"a": [0, 5], "b": [1, 5]})
    assert found == {"a": ((1.0, 1.0),), "b": ((1.0, 0.5),)}


def test_cactus() -> None:
    """Two done after 1 s, a third after 3 s, one never."""
    assert cactus([3, 1, INF, 1]) == ((0.0, 0.0), (1, 2.0), (3, 3.0))


def test_primal_gap() -> None:
    assert primal_gap(None, 5) == 1
    assert primal_gap(5, 5) == 0
    assert primal_gap(0, 0) == 0
    assert primal_gap(8, 6) == 0.25


def test_primal_integral() -> None:
    """No plan for 2 s, 8 against 6 for 4 s, then the best for 4 s.

    (2·1 + 4·1/4 + 4·0) / 10 = 0.3.
    """
    trace = [(2.0, 8.0), (6.0, 6.0)]
    assert primal_integral(trace, 6, 10) == pytest.approx(0.3)
    assert primal_integral([], 6, 10) == 1
    # What comes after the end does not count: (2·1 + 2·1/4) / 4.
    assert primal_integral(trace, 6, 4) == pytest.approx(0.625)
    # A plan that is taken back: 1 s of nothing, 1 s of the best, 2 s none.
    assert primal_integral([(1, 6), (2, None)], 6, 4) == pytest.approx(0.75)


def test_wilson() -> None:
    """8 of 10: (0.8 + z²/20 ± z √(0.016 + z²/400)) / (1 + z²/10).

    With z = 1.96, z² = 3.8416: middle 0.99208, half 1.96·√0.025604 = 0.313623, divided
    by 1.38416: 0.490157 and 0.943316 (Newcombe 1998 has 0.490 and 0.943).
    """
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.490157, abs=1e-5)
    assert high == pytest.approx(0.943316, abs=1e-5)


def test_wilson_at_the_ends() -> None:
    """0 of n goes from 0 to z²/(n + z²); nothing at all says nothing."""
    low, high = wilson(0, 10)
    assert low == 0
    assert high == pytest.approx(3.841459 / 13.841459, abs=1e-6)
    assert wilson(10, 10)[1] == 1
    assert wilson(0, 0) == (0, 1)


def test_sign_test() -> None:
    """5 : 0 has p = 2/32, 4 : 1 has 2·(1 + 5)/32, a draw has 1."""
    assert sign_test(5, 0) == sign_test(0, 5) == 2 / 32
    assert sign_test(4, 1) == 12 / 32
    assert sign_test(3, 3) == 1
    assert sign_test(0, 0) == 1


def test_upper_median() -> None:
    assert upper_median([3, 1, 2]) == 2
    assert upper_median([1, INF]) == INF


def test_bootstrap() -> None:
    """The mean of all values; groups that are alike leave no doubt."""
    found = bootstrap_mean([[1, 3], [2, 2]])
    assert found == (2, 2, 2)
    spread = bootstrap_mean([[0], [0], [3]])
    assert spread.value == 1
    assert spread.low == 0  # with 8/27 no draw has the 3
    assert spread.high == 3  # and with 1/27, more than 2.5 %, all have
    assert spread == bootstrap_mean([[0], [0], [3]])


def test_the_bootstrap_draws_whole_groups() -> None:
    """Two groups: their means alone, or both, are all that can come."""
    found = bootstrap_mean([[1, 1, 1, 1], [2]])
    assert found.value == pytest.approx(1.2)
    assert (found.low, found.high) == (1, 2)
