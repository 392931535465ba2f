"""Run the cells of a run that are missing: here, or on a Dask cluster.

Every cell runs through :func:`nest.benchmarks.execute.run_cell`, and every
answer is stored by this process alone, as soon as it is there.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

import msgspec

from nest.benchmarks.cells import Finished
from nest.benchmarks.execute import Work, died, run_cell
from nest.benchmarks.store import RunFolder
from nest.errors import InvalidOptionError, NestError
from nest.solvers.registry import (
    import_trouble,
    is_built_in,
    is_command,
    solver_target,
)
from nest.text import whole_number
from nest.versions import DISTRIBUTION, num_cpus

#: Called with every cell that is finished.
OnFinished = Callable[[Finished], None]

#: Seconds to wait for a scheduler.
_CONNECT_S = 10.0

#: Local workers that may share a CPU: enough to try a cluster out.
MOST_SHARING = 8

_DIED = "the process that ran it died"


def check_parallel(jobs: int, workers: int, dask: str | None) -> None:
    """Refuse ways to run that make no sense here.

    ``workers`` is the most that a solver of the run has.

    Raises
    ------
    InvalidOptionError
        If more is asked for than there is.
    NestError
        If Dask is not installed.
    """
    if dask is None:
        if jobs * workers > num_cpus():
            raise InvalidOptionError(
                f"--jobs {jobs}: expected jobs × workers <= {num_cpus()} (the "
                f"CPUs at hand), got {jobs} × {workers}; cells that share a "
                f"CPU measure each other"
            )
        return
    if jobs != 1:
        raise InvalidOptionError(
            f"--jobs {jobs}: expected it or --dask, got both; remove one"
        )
    number = whole_number(dask)
    most = MOST_SHARING * num_cpus() // workers
    if number is not None and not 1 <= number <= most:
        raise InvalidOptionError(
            f"--dask {dask}: expected the address of a scheduler, or 1 to "
            f"{most} local workers ({MOST_SHARING} threads per CPU at hand), "
            f"got {dask}; correct the value"
        )
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise NestError(
            f"--dask: expected distributed to be installed, got no such "
            f"package; install it with: pip install '{DISTRIBUTION}[dask]'"
        ) from None


def shared_cpus(workers: int, dask: str | None) -> str | None:
    """Return what is to be said of times if local workers share CPUs.

    ``workers`` is the most that a solver of the run has.
    """
    if dask is None or not dask.isdigit():
        return None
    threads, cpus = int(dask) * workers, num_cpus()
    if threads <= cpus:
        return None
    return (
        f"--dask {dask}: {threads} threads share {cpus} "
        f"CPU{'s' if cpus > 1 else ''}, so measured times are too long, and "
        f"time limits cut off earlier"
    )


def run_missing(
    folder: RunFolder,
    *,
    jobs: int = 1,
    dask: str | None = None,
    on_finished: OnFinished | None = None,
) -> None:
    """Run what is not finished, and store it.

    Parameters
    ----------
    folder
        The run.
    jobs
        Cells that run at the same time, each in processes of its own.
    dask
        Address of a scheduler, or how many local workers to start.
    on_finished
        Called after every cell.

    Raises
    ------
    NestError
        If an answer cannot be stored, or the scheduler cannot be reached.
    KeyboardInterrupt
        On Ctrl-C; what was finished is stored.
    """
    problems = {
        key: msgspec.json.encode(problem)
        for key, problem in folder.problems.items()
    }
    at_once = int(dask) if dask and dask.isdigit() else jobs
    works = [
        Work(
            cell,
            problems[cell.problem_hash],
            solver_target(cell.solver),
            at_once,
        )
        for cell in folder.missing()
    ]
    if not works:
        return
    least_s: dict[str, float] = {}
    for work in works:
        limit_s = work.cell.time_limit_s
        least_s[work.cell.solver] = min(
            math.inf if limit_s is None else limit_s,
            least_s.get(work.cell.solver, math.inf),
        )
    broken = {
        name: why
        for name, limit_s in least_s.items()
        if (why := _import_trouble(name, limit_s))
    }

    def keep(data: bytes) -> None:
        finished = folder.keep(data)
        if on_finished is not None:
            on_finished(finished)

    with contextlib.ExitStack() as stack:
        # Before the first cell is stored: a run that is refused leaves none.
        client = dask and stack.enter_context(_client(dask))
        for work in works:
            if work.cell.solver in broken:
                keep(died(work, broken[work.cell.solver]))
        sound = [work for work in works if work.cell.solver not in broken]
        answers = _on_dask(sound, client, dask) if dask else _here(sound, jobs)
        stack.enter_context(contextlib.closing(answers))
        for data in answers:
            keep(data)


def _import_trouble(name: str, limit_s: float) -> str | None:
    """Return why importing a solver would end the process that tries."""
    if is_built_in(name) or is_command(name):
        return None
    return import_trouble(solver_target(name), limit_s)


def _here(works: Sequence[Work], jobs: int) -> Generator[bytes]:
    """Yield answers of cells that run on this machine.

    A process that dies takes the pool along. Those that were in it then run
    one at a time, and the one that ends its process again is the culprit.
    """
    if jobs == 1:
        yield from map(run_cell, works)
        return
    pending = deque(works)
    while pending:
        taken: dict[str, Work] = {}
        try:
            for data in _pool(_draw(pending, taken), jobs):
                del taken[_key(data)]
                yield data
        except _broken_pool():
            for work in tuple(taken.values()):
                yield _alone(work)


def _alone(work: Work) -> bytes:
    try:
        (data,) = _pool(iter([work]), 2)
    except _broken_pool():
        return died(work, _DIED)
    return data


def _draw(pending: deque[Work], taken: dict[str, Work]) -> Iterator[Work]:
    """Yield what is left, and note what was handed out."""
    while pending:
        work = pending.popleft()
        taken[work.cell.key] = work
        yield work


def _pool(works: Iterator[Work], jobs: int) -> Iterator[bytes]:
    from joblib import Parallel, delayed

    # No cell waits behind another one's process.
    pool = Parallel(
        n_jobs=jobs,
        backend="loky",
        batch_size=1,
        pre_dispatch="n_jobs",
        return_as="generator_unordered",
    )
    parent = os.getpid()
    answers: Generator[bytes] = pool(
        delayed(run_cell)(work, parent) for work in works
    )
    try:
        # Not "yield from", which would close it before the line below.
        for data in answers:  # noqa: UP028
            yield data
    finally:
        with warnings.catch_warnings():
            # Of cells that are cut off: whoever does so says why.
            warnings.simplefilter("ignore")
            answers.close()


def _broken_pool() -> type[BaseException]:
    from joblib.externals.loky import BrokenProcessPool

    found: type[BaseException] = BrokenProcessPool
    return found


def _key(data: bytes) -> str:
    return msgspec.json.decode(data, type=Finished).key


@contextlib.contextmanager
def _client(where: str) -> Iterator[Any]:
    """Connect with a scheduler, or start a cluster on this machine."""
    from distributed import Client, LocalCluster

    for name in ("distributed", "tornado", "bokeh"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
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
    works: Sequence[Work], client: Any, where: str
) -> Generator[bytes]:
    """Yield answers of cells that run on a cluster.

    Cells of workers that are lost run again on others; one that loses its
    worker again and again is an error of its own.
    """
    from distributed import KilledWorker, as_completed

    pending = deque(works)
    running: dict[str, Work] = {}
    done = as_completed(with_results=False)

    def submit() -> None:
        slots = sum(client.nthreads().values())
        while pending and len(running) < max(2, 2 * slots):
            work = pending.popleft()
            future = client.submit(run_cell, work, key=work.cell.key)
            running[future.key] = work
            done.add(future)

    submit()
    while running:
        future = next(done)
        work = running.pop(future.key)
        try:
            yield future.result()
        except KilledWorker:
            yield died(work, _DIED)
        except CancelledError:
            raise NestError(
                f"--dask {where}: expected a scheduler that stays, got "
                f"none any more; what is finished is kept, go on with "
                f"--resume"
            ) from None
        future.release()
        submit()
