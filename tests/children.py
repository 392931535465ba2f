"""Processes of tests: which there are, what they say, and waiting for them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

#: Seconds after which a test counts as hanging, however busy the machine is.
HANG_S = 200.0


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail if it never does."""
    end_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end_s, "the test hangs"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def python(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with some words; return how it ended, and what it said."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


def children() -> set[str]:
    """Return the processes that this one started and has not waited for.

    Those of pools outlive the tests that start them, so that a test compares
    what is there before and afterwards.
    """
    tasks = Path("/proc/self/task")
    if tasks.exists():
        lists = [path.read_text() for path in tasks.glob("*/children")]
        return set(" ".join(lists).split())
    asked = ["pgrep", "-P", str(os.getpid())]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return set(done.stdout.split())
