"""Hypothesis profiles, chosen by ``HYPOTHESIS_PROFILE`` (default ``ci``).

``dev``
    A few examples, for the edit-run loop.
``ci``
    A few hundred examples over all tests, the same ones on every run.
``full``
    Thousands of new ones. ``make test-full`` draws a seed and prints it;
    ``make test-full SEED=n`` repeats that run.

Every test states its number of examples with ``profiles.examples``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.forms import mixed
from tests.properties.profiles import PROFILE, PROFILES

for _name, _profile in PROFILES.items():
    settings.register_profile(_name, _profile)
settings.load_profile(PROFILE)


def pytest_report_header() -> str:
    """Say which profile runs."""
    return f"hypothesis: profile {PROFILE} of tests/properties"


@pytest.fixture(autouse=True, scope="module")
def _in_some_form() -> Iterator[None]:
    """Solve each problem in one of the forms that a solver has."""
    with mixed():
        yield
