"""A solver's process, seen from the runner: start, listen, stop.

The process is a fresh interpreter, not a fork: engines that cannot live together never
meet, and a script that calls the runner needs no ``__main__`` guard. POSIX only.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from nest.solvers.descendants import MARK, end_all
from nest.util.interpreters import INHERITED, environment, python, search_path

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from nest.solvers.worker import main; main(sys.argv.pop())"
)
#: The file of the request in the directory of a process.
REQUEST = "request"

#: How much of what the engines printed is kept for an error report.
_LOG_BYTES = 4000


@dataclass(frozen=True)
class Usage:
    """How a process ended and what it used.

    The exit code is as :mod:`subprocess` has it: minus the signal that ended it.
    Processor time and peak are those of the process and of all the processes it waited
    for; on Linux the peak is at least the size of the parent when it started the
    process. The log is the end of what it printed. ``num_detached`` processes that it
    had started had left its group and went on; they were ended.
    """

    exit_code: int
    cpu_s: float
    peak_rss_bytes: int
    log: str
    num_detached: int = 0


class Worker:
    """One solver process in a process group of its own.

    Everything it leaves behind, processes and temporary files, is gone after
    :meth:`stop`, on Linux also what has left the group. If this process dies
    first, the worker notices and ends them. It starts in ``folder``, by
    default that of this process.
    """

    def __init__(
        self, request: bytes, num_threads: int, folder: str | None = None
    ) -> None:
        self._directory = tempfile.mkdtemp(prefix="nest-")
        self._usage: Usage | None = None
        self._unread = bytearray()
        self._ended = False
        self._log = open(  # noqa: SIM115
            os.path.join(self._directory, "log"), "w+b"
        )
        try:
            Path(self._directory, REQUEST).write_bytes(request)
            self._process = subprocess.Popen(
                [
                    *python("-c", _BOOTSTRAP),
                    *(self._directory, json.dumps(search_path())),
                ],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                bufsize=0,
                env=_environment(self._directory, num_threads),
                pass_fds=INHERITED,
                start_new_session=True,
            )
        except BaseException:
            self._log.close()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._messages = cast("IO[bytes]", self._process.stdout)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._messages, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its group."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it closed its end: no message will come any more."""
        return self._ended

    def send(self, request: bytes) -> bool:
        """Hand on another request after an answer; return whether it is still there."""
        with suppress(OSError):
            Path(self._directory, REQUEST).write_bytes(request)
            self.poll(0.0)
            if not self._ended:
                cast("IO[bytes]", self._process.stdin).write(b"\n")
                return True
        self.stop()
        return False

    def poll(self, timeout_s: float) -> list[bytes]:
        """Wait for messages, at most so long, and return them."""
        if self._ended:
            return []
        if self._selector.select(max(0.0, timeout_s)):
            chunk = os.read(self._messages.fileno(), 1 << 20)
            self._unread += chunk
            self._ended = not chunk
        *lines, rest = self._unread.split(b"\n")
        self._unread = rest
        return [bytes(line) for line in lines]

    def wait(self, timeout_s: float) -> None:
        """Wait until it ended, at most so long; drop its messages."""
        deadline = time.monotonic() + timeout_s
        while not self._ended:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return
            self.poll(remaining_s)

    def stop(self) -> Usage:
        """Kill what is left of its group and return what it used.

        May be called more than once.
        """
        if self._usage is not None:
            return self._usage
        num_detached = end_all(self.pid, self._directory)
        _, status, used = os.wait4(self.pid, 0)
        exit_code = os.waitstatus_to_exitcode(status)
        self._process.returncode = exit_code
        self._selector.close()
        cast("IO[bytes]", self._process.stdin).close()
        self._messages.close()
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_BYTES))
        log = self._log.read().decode(errors="replace").strip()
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._usage = Usage(
            exit_code=exit_code,
            cpu_s=used.ru_utime + used.ru_stime,
            peak_rss_bytes=used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            log=log,
            num_detached=num_detached,
        )
        return self._usage


def _environment(directory: str, num_threads: int) -> dict[str, str]:
    """Return an environment that makes runs comparable and repeatable."""
    libraries = ("MKL", "NUMEXPR", "OMP", "OPENBLAS")
    threads = {f"{name}_NUM_THREADS": str(num_threads) for name in libraries}
    # Engines that are killed leave files; they leave them in here.
    return {
        **environment(),
        **threads,
        "PYTHONHASHSEED": "0",
        "TMPDIR": directory,
        MARK: directory,
    }
