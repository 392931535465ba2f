"""Run the cells of a run that are missing: here, or on a Dask cluster.

Every cell runs through :func:`nest.benchmarks.execute.run_cell`, and every
answer is stored by this process alone, as soon as it is there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import msgspec

from nest.benchmarks.cells import Finished
from nest.benchmarks.execute import CellTask, died, run_cell, without_answer
from nest.benchmarks.store import RunFolder
from nest.errors import InvalidOptionError, NestError
from nest.solvers.registry import import_trouble, is_built_in, is_command, solver_target
from nest.tasks.parallel import answers, dask_client
from nest.util.text import whole_number
from nest.util.versions import DISTRIBUTION, num_cpus

#: Called with every cell that is finished.
OnFinished = Callable[[Finished], None]

#: Local workers that may share a CPU: enough to try a cluster out.
MOST_SHARING = 8


def check_parallel(jobs: int, workers: int, dask: str | None) -> None:
    """Refuse ways to run that make no sense here.

    ``workers`` is the most that a solver of the run has.

    Raises ``InvalidOptionError`` if more is asked for than there is, and ``NestError``
    if Dask is not installed.
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
    num_workers = whole_number(dask)
    limit = MOST_SHARING * num_cpus() // workers
    if num_workers is not None and not 1 <= num_workers <= limit:
        raise InvalidOptionError(
            f"--dask {dask}: expected the address of a scheduler, or 1 to "
            f"{limit} local workers ({MOST_SHARING} threads per CPU at hand), "
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
        f"--dask {dask}: {threads} threads share {cpus} CPU{'s' if cpus > 1 else ''}, "
        f"so measured times are too long, and time limits cut off earlier"
    )


def run_missing(
    folder: RunFolder,
    *,
    jobs: int = 1,
    dask: str | None = None,
    on_finished: OnFinished | None = None,
) -> None:
    """Run what is not finished, and store it.

    Cells run in processes of their own, ``jobs`` at the same time, or on ``dask``, the
    address of a scheduler or a number of local workers to start.

    Raises ``NestError`` if an answer cannot be stored, or the scheduler cannot be
    reached. Raises ``KeyboardInterrupt`` on Ctrl-C; what was finished is stored.
    """
    problems = {
        key: msgspec.json.encode(problem) for key, problem in folder.problems.items()
    }
    at_once = int(dask) if dask and dask.isdigit() else jobs
    works = [
        CellTask(cell, problems[cell.problem_hash], solver_target(cell.solver), at_once)
        for cell in folder.missing()
    ]
    if not works:
        return
    limit_s = math.inf if folder.run.time_limit_s is None else folder.run.time_limit_s
    broken = {
        name: why
        for name in dict.fromkeys(work.cell.solver for work in works)
        if not (is_built_in(name) or is_command(name))
        and (why := import_trouble(solver_target(name), limit_s))
    }

    def keep(data: bytes) -> None:
        finished = folder.keep(data)
        if on_finished is not None:
            on_finished(finished)

    with contextlib.ExitStack() as stack:
        # Before the first cell is stored: a run that is refused leaves none.
        client = dask and stack.enter_context(dask_client(dask))
        for work in works:
            if work.cell.solver in broken:
                keep(without_answer(work, broken[work.cell.solver]))
        sound = [work for work in works if work.cell.solver not in broken]
        encoded = answers(sound, run_cell, died, jobs=jobs, dask=dask, client=client)
        stack.enter_context(contextlib.closing(encoded))
        for data in encoded:
            keep(data)
