"""Tasks that do not depend on each other, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from nest.tasks import parallel
from nest.util import interrupts
from nest.util.files import write_atomically
from tests.children import is_alive, wait_until


class Asked(NamedTuple):
    """A task with nothing to do."""

    key: str
    num_before: int = 0


def blocks() -> bool:
    """Whether this thread holds SIGINT back."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def follow(parent: int, folder: str) -> None:
    """Note whether SIGINT is held back while a process starts."""
    os.environ["BLOCKED_AT_START"] = json.dumps(blocks())
    parallel.follow(parent, folder)


def hears(_: Asked) -> bytes:
    """Return whether SIGINT was held back at the start, and is now."""
    before = json.loads(os.environ["BLOCKED_AT_START"])
    return json.dumps([before, blocks()]).encode()


def waits(task: Asked) -> bytes:
    """Tell which process runs the task, and wait, if it is the first."""
    write_atomically(Path(task.key), str(os.getpid()).encode())
    while task.key == "0":
        time.sleep(0.01)
    return b""


def died(task: Asked, text: str) -> bytes:
    raise AssertionError(f"{task.key}: {text}")


def hear() -> None:
    """Print what four tasks in two processes say, and then this process."""
    tasks = [Asked(str(number)) for number in range(4)]
    with mock.patch.object(parallel, "follow", follow):
        for data in parallel.answers(tasks, hears, died, jobs=2):
            print(data.decode())
    print(json.dumps(blocks()))


def wait() -> None:
    """Run a task that never ends beside one that ends at once.

    Then one process works, and the other waits for a task.
    """
    for _ in parallel.answers([Asked("0"), Asked("1")], waits, died, jobs=2):
        print("one is idle", flush=True)


def start(name: str, folder: Path | None = None) -> subprocess.Popen[str]:
    """Run a function of this file in a process of its own."""
    root = Path(__file__).parents[3]
    code = f"from tests.unit.tasks.test_parallel_tasks import {name}; {name}()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(
    not hasattr(signal, "pthread_sigmask"), reason="no masks of signals here"
)
def test_processes_do_not_hear_ctrl_c_while_they_start() -> None:
    """Who asks hears it, and they hear it once they can end in order.

    In a process of its own, as those of the pool outlive the call.
    """
    output, _ = start("hear").communicate()
    *lines, last = map(json.loads, output.splitlines())
    assert last is False
    assert lines == [[True, False]] * 4


def test_processes_end_with_their_parent_idle_or_not(tmp_path: Path) -> None:
    files = [tmp_path / key for key in ("0", "1")]
    with start("wait", tmp_path) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "one is idle\n"
            wait_until(lambda: all(map(Path.exists, files)))
            pids = [int(file.read_text()) for file in files]
            assert all(map(is_alive, pids))
        finally:
            process.kill()
    wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("kernel", [True, False])
def test_a_process_ends_with_its_parent(
    kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system does not send a signal: then it watches."""
    if not kernel:
        monkeypatch.setattr(interrupts, "set_process_option", lambda *_: False)
    reader, writer = os.pipe()
    parent = os.fork()
    if not parent:
        middle = os.getpid()
        child = os.fork()
        if child:
            while True:
                time.sleep(1)
        interrupts.end_with_parent(middle)
        os.write(writer, f"{os.getpid()}\n".encode())
        while True:
            time.sleep(1)
    child = int(os.read(reader, 20))
    assert is_alive(child)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: not is_alive(child))


def test_a_process_whose_parent_is_gone_ends_at_once() -> None:
    child = os.fork()
    if not child:
        interrupts.end_with_parent(os.getppid() + 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_pools_of_threads_that_have_ended_are_no_obstacle() -> None:
    """A system may tie a process to the thread that started it."""
    for _ in range(2):
        output: list[bytes] = []

        def work(output: list[bytes] = output) -> None:
            tasks = [Asked("1"), Asked("2")]
            output += parallel.answers(tasks, returns, died, jobs=2)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert sorted(output) == [b"1", b"2"]


def returns(task: Asked) -> bytes:
    """Return its key."""
    return task.key.encode()


def test_tasks_are_prepared_when_they_are_handed_out() -> None:
    """So that each gets the time that is left then."""
    for jobs in (1, 2):
        handed_out: list[int] = []

        def prepared(task: Asked, before: list[int] = handed_out) -> Asked:
            before.append(len(before))
            return task._replace(num_before=len(before) - 1)

        output: list[bytes] = []
        tasks = [Asked(str(number)) for number in range(6)]
        for data in parallel.answers(tasks, tells, died, jobs=jobs, prepared=prepared):
            output.append(data)
            # A pool goes on while this process works.
            assert jobs == 2 or len(handed_out) == len(output)
        told = sorted([int(x) for x in data.split(b" after ")] for data in output)
        assert [number for number, _ in told] == [*range(6)]
        # A pool that is broken runs what it had once more.
        assert all(before >= number for number, before in told)
        assert jobs == 2 or all(before == number for number, before in told)


def tells(task: Asked) -> bytes:
    """Return how many tasks were handed out before."""
    return f"{task.key} after {task.num_before}".encode()
