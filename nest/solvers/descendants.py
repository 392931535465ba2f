"""The processes that a process has started, and theirs: found and ended.

Most stay in its process group and end with that. A process that begins a session of its
own has left the group, and if its parent ends too (a daemon) nothing leads to it any
more. Linux gives children whose parent has ended to the nearest ancestor that asked for
them, so they stay descendants of that one as long as it lives, and ``/proc`` shows
them. Once it is gone they are known by a mark in their environment, unless they have
cleared that. Where there is no ``/proc`` only groups are ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nest.util.interrupts import set_process_option

#: Where the system shows processes.
PROC = Path("/proc")

#: The variable of the mark.
MARK = "NEST_CELL"

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)

#: How long processes may go on to appear while they are ended.
_PATIENCE_S = 1.0


def visible() -> bool:
    """Whether the system shows processes."""
    return (PROC / "self" / "stat").exists()


def adopt() -> None:
    """Take the place of parents that end, for all descendants.

    Linux only; elsewhere nothing happens.
    """
    set_process_option(_SUBREAPER, 1)


def end_detached(pid: int) -> int:
    """Kill the descendants that left the group of its leader, and count them."""
    return _end(lambda: _detached(pid))


def end_all(pid: int, mark: str) -> int:
    """Kill a group with all descendants of its leader, and the leader.

    Return how many had left the group. The leader ``pid`` has not been waited for:
    until then even a dead one reserves the id of its group, so no signal can hit
    anybody else. ``mark`` is the value of :data:`MARK` in its environment.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)  # so that it starts no more
    count = end_detached(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return count + end_marked(mark, pid)


def end_marked(mark: str, group: int | None = None) -> int:
    """Kill processes by their environment, and return how many there were.

    Those of a group are left out: they end anyway.
    """
    return _end(lambda: _marked(mark, group))


def _end(find: Callable[[], list[int]]) -> int:
    """Kill what is found until there is nothing any more."""
    ended: set[int] = set()
    end_s = time.monotonic() + _PATIENCE_S
    while found := find():
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended.update(found)
        if time.monotonic() > end_s:
            break
        time.sleep(0.001)
    return len(ended)


def _detached(leader: int) -> list[int]:
    processes = {pid: (parent, group) for pid, parent, group in _alive()}
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found, new = [], [leader]
    while new:
        new = [child for pid in new for child in children.pop(pid, ())]
        found += [pid for pid in new if processes[pid][1] != leader]
    return found


def _marked(mark: str, left_out: int | None) -> list[int]:
    wanted, found = f"{MARK}={mark}".encode(), []
    for pid, _, group in _alive():
        with contextlib.suppress(OSError):
            words = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
            if wanted in words and group != left_out:
                found.append(pid)
    return found


def _alive() -> Iterator[tuple[int, int, int]]:
    """Yield id, parent and group of all processes that have not ended."""
    for path in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            text = (path / "stat").read_text(errors="replace")
            # The name is in parentheses, and may hold some.
            state, parent, group, *_ = text.rpartition(")")[2].split()
            if state not in "ZX":
                yield int(path.name), int(parent), int(group)
