"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

# Tables in a pipe are as wide as the text, whoever runs the tests.
os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of published instances and figures, beside the project.

    It is not part of the repository. Tests that need it are skipped without
    it, and fail in CI, where it must be there.
    """
    path = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    if not path.is_dir():
        reason = f"the shared data are not at {path}"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}; CI must provide them")
        pytest.skip(reason)
    return path.resolve()


@pytest.fixture
def torch() -> Any:
    """PyTorch, which ``make test-torch`` installs."""
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need PyTorch, for ``make test-torch``."""
    for item in items:
        if "torch" in getattr(item, "fixturenames", ()):
            item.add_marker("torch")
