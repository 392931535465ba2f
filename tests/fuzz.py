"""Break files of every reader: ``python -m tests.fuzz COUNT [SEED]``.

A whole command gets each broken file (tests/commands.py); what no command
takes is read. It ends with 0, 1 or 2 and at most one error line, within limits
of time and memory, and leaves nothing. Whatever else comes of one is printed
with its reader, seed and number; ``python -m tests.fuzz READER SEED NUMBER``
takes that one again, and shows the traceback.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from nest.errors import NestError
from nest.frameworks.faults import FaultsError
from tests.broken import broken
from tests.commands import READ, line_of, run
from tests.readers import READERS

#: Seconds of CPU that one file may take, and bytes of memory beyond what the
#: process has.
MOST_S = 5.0
MOST_BYTES = 2**30

#: Files of a process.
_CHUNK = 250

#: Seconds for all files of a process; they are for hangs in C.
_CHUNK_S = 900.0


class TooSlowError(BaseException):
    """A file took too long."""


def _too_slow(number: int, frame: object) -> NoReturn:
    raise TooSlowError(f"more than {MOST_S:g} s of CPU")


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise :class:`TooSlowError` or ``MemoryError`` beyond the limits."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size_bytes = pages * resource.getpagesize() + MOST_BYTES
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, _too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes, hard))
    signal.setitimer(signal.ITIMER_PROF, MOST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def made(reader: str, seed: int, number: int) -> bytes:
    """Return a broken file; always the same one."""
    kind = READERS[reader]
    return broken(Random(f"{reader} {seed} {number}"), kind.examples(), kind.suffix)


def complaint(reader: str, data: bytes, folder: Path, line: str = READ) -> str | None:
    """Return why a file is refused, or raise what should not come."""
    kind = READERS[reader]
    path = folder / f"file{kind.suffix}"
    path.write_bytes(data)
    if line != READ:
        with limited():
            ended = run(line, path)
        return ended.said if ended.code == 2 else None
    try:
        with limited():
            kind.read(path)
    except NestError as error:
        text = str(error)
        several = isinstance(error, FaultsError)
        if ("\n" in text) != several or not text or len(text) > 12_000:
            raise AssertionError(f"no line: {text!r}") from error
        return text
    return None


def _chunk(
    reader: str, seed: int, first: int, count: int, current: Any, told: Any
) -> None:
    """Read some files, and tell how they ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    ends: Counter[str] = Counter()
    wrong = []
    for number in range(first, first + count):
        current.value = number
        line = line_of(reader, seed, number)
        data = made(reader, seed, number)
        try:
            with tempfile.TemporaryDirectory() as name:
                said = complaint(reader, data, Path(name), line)
            ends["read" if said is None else "refused"] += 1
        except (Exception, TooSlowError) as error:
            ends["wrong"] += 1
            text = " ".join(str(error).split())[:500]
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            what = f"{type(error).__name__} at {where}: {text}"
            wrong.append((number, what))
    told.send((ends, wrong))


def _run_chunk(
    reader: str, seed: int, first: int, count: int
) -> tuple[Any, Any, Any, float]:
    context = multiprocessing.get_context("fork")
    current = context.Value("q", first)
    here, there = context.Pipe(duplex=False)
    process = context.Process(
        target=_chunk, args=(reader, seed, first, count, current, there)
    )
    process.start()
    there.close()
    return process, here, current, time.monotonic()


def fuzz(count: int, seed: int, jobs: int) -> int:
    """Break so many files; return how many ended as none should."""
    each = -(-count // len(READERS))
    todo = [
        (reader, seed, first, min(_CHUNK, each - first))
        for reader in READERS
        for first in range(0, each, _CHUNK)
    ]
    ends: dict[str, Counter[str]] = {name: Counter() for name in READERS}
    running: dict[Any, Any] = {}
    while todo or running:
        while todo and len(running) < jobs:
            task = todo.pop(0)
            running[task] = _run_chunk(*task)
        for task, (process, told, current, start) in list(running.items()):
            reader = task[0]
            if told.poll(0.05):
                try:
                    found, wrong = told.recv()
                except EOFError:
                    process.join()
                    found = Counter(wrong=1)
                    text = f"the process ended with {process.exitcode}"
                    wrong = [(current.value, text)]
            elif time.monotonic() - start > _CHUNK_S:
                process.kill()
                found, wrong = (Counter(wrong=1), [(current.value, "never ended")])
            else:
                continue
            process.join()
            del running[task]
            ends[reader] += found
            for number, text in wrong:
                print(f"{reader!r} {seed} {number}: {text}", flush=True)
    for reader, found in ends.items():
        row = "".join(f"{found[end]:8} {end}" for end in ("read", "refused", "wrong"))
        print(f"{reader:32}{row}")
    total = sum(ends.values(), Counter())
    print(
        f"{total.total()} files of {len(READERS)} readers, seed {seed}: "
        f"{total['read']} read, {total['refused']} refused, "
        f"{total['wrong']} wrong"
    )
    return total["wrong"]


def main() -> int:
    """Break files, or read one again."""
    if len(sys.argv) > 3:
        reader, seed, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        data = made(reader, seed, number)
        sys.stdout.buffer.write(data[:5000] + b"\n")
        os.environ["NEST_DEBUG"] = "1"
        line = line_of(reader, seed, number)
        print(line)
        with tempfile.TemporaryDirectory() as name:
            print(complaint(reader, data, Path(name), line))
        return 0
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    jobs = len(os.sched_getaffinity(0))
    return int(fuzz(count, seed, jobs) > 0)


if __name__ == "__main__":
    sys.exit(main())
