"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Tables in a pipe are as wide as the text, whoever runs the tests.
os.environ.pop("COLUMNS", None)


#: Functions that ``make test`` leaves out, with all their parameters; see
#: tests/slow.py, which writes the list.
SLOW = frozenset((Path(__file__).parent / "slow.txt").read_text().splitlines())


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
    """Mark tests by what they need and how long they take.

    ``torch`` is for ``make test-torch``. ``make test`` leaves out what is
    ``slow``, and gives tests of ``random`` problems few examples.
    """
    for item in items:
        if "torch" in getattr(item, "fixturenames", ()):
            item.add_marker("torch")
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("random")
        elif item.nodeid.partition("[")[0] in SLOW:
            item.add_marker("slow")


def _cpu_s() -> float:
    """Return the CPU time of this process and of children that ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item,
) -> Generator[None, object, object]:
    """Note the CPU time of tests, in the file that CPU_TIMES names."""
    before = _cpu_s()
    result = yield
    path = os.environ.get("CPU_TIMES")
    if path and not item.get_closest_marker("random"):
        with open(path, "a") as file:
            file.write(f"{_cpu_s() - before:.3f} {item.nodeid}\n")
    return result
