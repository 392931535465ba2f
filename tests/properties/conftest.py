"""Solvers with several forms are right in each; each problem has one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forms import mixed


@pytest.fixture(autouse=True, scope="module")
def _in_some_form() -> Iterator[None]:
    with mixed():
        yield
