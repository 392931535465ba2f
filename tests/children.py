"""The processes that a test leaves behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


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
