"""Fixtures for all tests."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from nest.util import terminal

# Lines are as wide as their texts, whoever runs the tests; the screens of 80
# columns are in tests/cli/test_width.py.
os.environ.pop("COLUMNS", None)
terminal.USUAL_COLUMNS = 100_000
# No test reads the configuration of the person who runs it.
os.environ["XDG_CONFIG_HOME"] = os.devnull


#: Tests that ``make test`` leaves out; a function stands for all of its
#: parameters. tests/slow.py writes the list.
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
        elif {item.nodeid, item.nodeid.partition("[")[0]} & SLOW:
            item.add_marker("slow")


def _cpu_s() -> float:
    """Return the CPU time of this process and of children that ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


#: Seconds of CPU that a test may take that is not in tests/slow.txt.
LIMIT_S = 1.0

#: How often a test has to take longer to fail: once may be noise.
_NUM_RUNS = 3

#: A test that loads more modules than this pays for those after it.
_FEW_MODULES = 20

#: Seconds that :func:`_reference_s` takes on the machine of the limit.
_REFERENCE_S = 0.03


@functools.cache
def _slowness() -> float:
    """Return how many times slower this machine is, at least 1."""
    before = time.process_time()
    sum(divmod(number, 7)[1] for number in range(300_000))
    return max(1.0, (time.process_time() - before) / _REFERENCE_S)


def _used_again_s(item: pytest.Item, used_s: float) -> float:
    """Run a test once more, which took some seconds before.

    A test that cannot run twice on the same fixtures takes half of these: noise
    does not double a time.
    """
    before = _cpu_s()
    try:
        item.runtest()
    except (Exception, pytest.fail.Exception, pytest.skip.Exception):
        return used_s / 2
    return _cpu_s() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """In ``make test``, fail a test that is slow and not marked so."""
    limit_s = LIMIT_S * _slowness()
    num_modules, before = len(sys.modules), _cpu_s()
    result = yield
    used_s = _cpu_s() - before
    is_first = len(sys.modules) - num_modules > _FEW_MODULES
    marks = {mark.name for mark in item.iter_markers()}
    is_quick_run = os.environ.get("HYPOTHESIS_PROFILE") == "quick"
    may_be_slow = is_first or marks & {"slow", "random"}
    if not is_quick_run or may_be_slow:
        return result
    for _ in range(1, _NUM_RUNS):
        if used_s > limit_s:
            used_s = min(used_s, _used_again_s(item, used_s))
    if used_s > limit_s:
        pytest.fail(
            f"took {used_s:.1f} s of CPU, expected at most {limit_s:.1f} s of "
            f"a test that is not slow; make it quicker, or add it to "
            f"tests/slow.txt"
        )
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note the CPU time of tests, in the file that CPU_TIMES names."""
    before = _cpu_s()
    result = yield
    path = os.environ.get("CPU_TIMES")
    if path and not item.get_closest_marker("random"):
        with open(path, "a") as file:
            file.write(f"{_cpu_s() - before:.3f} {item.nodeid}\n")
    return result
