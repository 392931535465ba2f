"""Run tasks that do not depend on each other: here, or on a Dask cluster.

Every task has a ``key`` of its own and is run by one function, which returns
bytes. What they are about is no matter here.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import shutil
import signal
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol

from nest.errors import NestError
from nest.util.interpreters import INHERITED, leave_safe_environment, safe_environment
from nest.util.interrupts import deferred, end_with_parent, heard_again, unheard

#: Seconds to wait for a scheduler.
_CONNECT_S = 10.0

_DIED = "the process that ran it died"


class Task(Protocol):
    """Something to run that can be sent to another process."""

    @property
    def key(self) -> str:
        """What it is called: equal only for equal tasks."""


#: Runs a task.
Run = Callable[[Any], bytes]

#: Returns the answer of a task that ended its process, with the reason.
Died = Callable[[Any, str], bytes]


def answers(
    tasks: Sequence[Task],
    run: Run,
    died: Died,
    *,
    jobs: int = 1,
    dask: str | None = None,
    client: Any = None,
    prepared: Callable[[Any], Any] = lambda task: task,
) -> Generator[bytes]:
    """Yield the answers of tasks, in the order in which they are finished.

    ``run`` and ``died`` are functions of a module. On this machine ``jobs`` tasks run
    at the same time, each in a process of its own; what was asked for as ``dask`` runs
    them with a :func:`dask_client`. ``prepared`` is called with each task when it is
    handed out, and returns the task to run, with the same key.

    Raises ``NestError`` if the scheduler is lost.
    """
    if dask:
        return _on_dask(tasks, run, died, client, dask, prepared)
    return _here(tasks, run, died, jobs, prepared)


def _here(
    tasks: Sequence[Task],
    run: Run,
    died: Died,
    jobs: int,
    prepared: Callable[[Any], Any],
) -> Generator[bytes]:
    """Yield answers of tasks that run on this machine.

    A process that dies takes the pool along. Those that were in it then run
    one at a time, and the one that ends its process again is the culprit.
    """
    if jobs == 1:
        for task in tasks:
            yield run(prepared(task))
        return
    pending = deque(tasks)
    while pending:
        taken: dict[str, Task] = {}
        try:
            for key, data in _pool(map(prepared, _draw(pending, taken)), run, jobs):
                del taken[key]
                yield data
        except _broken_pool():
            for task in tuple(taken.values()):
                yield _alone(prepared(task), run, died)


def _alone(task: Task, run: Run, died: Died) -> bytes:
    try:
        ((_, data),) = _pool(iter([task]), run, 2)
    except _broken_pool():
        return died(task, _DIED)
    return data


def _draw(pending: deque[Task], taken: dict[str, Task]) -> Iterator[Task]:
    """Yield what is left, and note what was handed out."""
    while pending:
        task = pending.popleft()
        taken[task.key] = task
        yield task


def _pool(tasks: Iterator[Task], run: Run, jobs: int) -> Iterator[tuple[str, bytes]]:
    from multiprocessing.resource_tracker import ensure_running

    from joblib import Parallel, delayed

    # The pool may start processes as long as there are tasks, and the folder
    # one that tracks it.
    with safe_environment():
        # No task waits behind another one's process.
        pool = Parallel(
            n_jobs=jobs,
            backend="loky",
            batch_size=1,
            pre_dispatch="n_jobs",
            return_as="generator_unordered",
            # Those that wait for their first task follow, too.
            initializer=follow,
            initargs=(os.getpid(), _temporary_folder()),
        )
        # It lets SIGINT through when it starts (before Python 3.14), so it is
        # started before.
        ensure_running()
        # Else Ctrl-C, which reaches all processes of a terminal, would end
        # those that are not yet through their imports, with a traceback. A
        # pool that has started half of its threads cannot be closed.
        with unheard(), deferred():
            results: Generator[tuple[str, bytes]] = pool(
                delayed(_keyed)(run, task) for task in tasks
            )
        try:
            # Not "yield from", which would close it before the line below.
            for answer in results:  # noqa: UP028
                yield answer
        finally:
            with warnings.catch_warnings():
                # Of tasks that are cut off: whoever does so says why.
                warnings.simplefilter("ignore")
                results.close()


@functools.cache
def _temporary_folder() -> str:
    """Return a folder for the temporary files of the processes of pools.

    Loky kills these processes with all that they started, which then removes
    nothing. The folder is removed when this process ends. If this process is
    killed, the process that tracks the resources of loky removes it.
    """
    from joblib.externals.loky.backend import resource_tracker

    folder = tempfile.mkdtemp(prefix="nest-")
    resource_tracker.register(folder, "folder")

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        resource_tracker.unregister(folder, "folder")

    atexit.register(remove)
    return folder


def _keyed(run: Run, task: Task) -> tuple[str, bytes]:
    leave_safe_environment()
    return task.key, run(task)


def _broken_pool() -> type[BaseException]:
    from joblib.externals.loky import BrokenProcessPool

    broken: type[BaseException] = BrokenProcessPool
    return broken


@contextlib.contextmanager
def dask_client(where: str) -> Iterator[Any]:
    """Connect with a scheduler, or start a cluster on this machine."""
    from distributed import Client, LocalCluster

    for name in ("distributed", "tornado", "bokeh"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with safe_environment(), contextlib.ExitStack() as stack:
        address: Any = where
        if where.isdecimal():
            address = stack.enter_context(
                LocalCluster(
                    n_workers=int(where),
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=0,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                )
            )
        try:
            client = stack.enter_context(Client(address, timeout=_CONNECT_S))
        except (OSError, ValueError) as error:
            raise NestError(
                f"--dask {where}: expected the address of a Dask scheduler, "
                f"got no answer ({' '.join(str(error).split())}); start one "
                f"with 'dask scheduler', or correct the address"
            ) from None
        yield client


def _on_dask(
    tasks: Sequence[Task],
    run: Run,
    died: Died,
    client: Any,
    where: str,
    prepared: Callable[[Any], Any],
) -> Generator[bytes]:
    """Yield answers of tasks that run on a cluster.

    Tasks of workers that are lost run again on others; one that loses its
    worker again and again is an error of its own.
    """
    from distributed import KilledWorker, as_completed

    pending = deque(tasks)
    running: dict[str, Task] = {}
    done = as_completed(with_results=False)

    def submit() -> None:
        slots = sum(client.nthreads().values())
        while pending and len(running) < max(2, 2 * slots):
            task = pending.popleft()
            future = client.submit(run, prepared(task), key=task.key)
            running[future.key] = task
            done.add(future)

    submit()
    while running:
        future = next(done)
        task = running.pop(future.key)
        try:
            yield future.result()
        except KilledWorker:
            yield died(task, _DIED)
        except CancelledError:
            raise NestError(
                f"--dask {where}: expected a scheduler that stays, got none any more; "
                f"what is finished is kept, go on with --resume"
            ) from None
        future.release()
        submit()


def follow(parent: int, folder: str | None = None) -> None:
    """End this process when its parent has ended, however it did.

    The processes that it started then end by themselves. Ctrl-C is left to the
    parent. Temporary files are written into ``folder``, if there is one; the
    process that tracks it waits for the processes that inherit its pipe.
    """
    tempfile.tempdir = folder
    if folder is not None:
        from joblib.externals.loky.backend import resource_tracker

        INHERITED.append(resource_tracker.getfd())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    heard_again()
    end_with_parent(parent)
