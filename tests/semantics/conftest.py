"""Solvers with several forms are right in each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forms import checked


@pytest.fixture(autouse=True, scope="module")
def _in_both_forms() -> Iterator[None]:
    with checked():
        yield
