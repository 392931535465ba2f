"""Proofs of solvers on floating-point numbers are as precise as they say."""

from __future__ import annotations

from nest.solvers.base import Capabilities


def test_exact_arithmetic_proves_the_optimum_itself():
    assert Capabilities(exact=True, method="").proves(10**12) == 10**12


def test_floats_prove_all_but_their_precision():
    """1e-6 of 2,500,000 is 2.5, of which whole quanta count."""
    floats = Capabilities(exact=True, method="", precision=1e-6)
    assert floats.proves(2_500_000) == 2_499_998
    assert floats.proves(999_999) == 999_999
