"""A run from beginning to end: what is asked for, what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nest.benchmarks.cells import BenchmarkSpec, Entry
from nest.benchmarks.engine import OnFinished, run_missing
from nest.benchmarks.instances import Instance
from nest.benchmarks.rows import Row, read_rows
from nest.benchmarks.store import MANIFEST, RunFolder, open_run
from nest.benchmarks.summary import to_document
from nest.cost.model import CostModel
from nest.errors import InvalidProblemError, NestError
from nest.solvers.base import SolveOptions
from nest.solvers.registry import is_built_in, is_command, is_registered, solver_target
from nest.solvers.run import check_request
from nest.util.versions import versions


def plan_run(
    title: str,
    instances: Sequence[Instance],
    solvers: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    options: SolveOptions | None = None,
    workers: Mapping[str, int] | None = None,
    extra: Mapping[str, Mapping[str, str]] | None = None,
    notes: Sequence[str] = (),
) -> BenchmarkSpec:
    """Return what a run shall do, once it is known to make sense.

    ``options`` gives time limit, gap and repair of all cells; ``workers`` and ``extra``
    are by solver, 1 and none where nothing is said.

    Raises ``InvalidProblemError`` if a problem cannot be priced; the text names it.
    Raises ``NestError`` if an option of a solver is unknown, or it cannot run here.
    """
    options = options or SolveOptions()
    run = BenchmarkSpec(
        title=title,
        problems=tuple(
            Entry(
                name=instance.name,
                hash=instance.hash,
                source=instance.source,
                best_quanta=instance.best_quanta,
                axes=dict(instance.axes),
            )
            for instance in instances
        ),
        solvers=tuple(solvers),
        seeds=tuple(seeds),
        time_limit_s=options.time_limit_s,
        gap=options.gap,
        repair=options.repair,
        workers={s: (workers or {}).get(s, 1) for s in solvers},
        extra={s: dict(own) for s, own in (extra or {}).items() if own},
        planners={s: solver_target(s) for s in filter(is_command, solvers)},
        notes=tuple(notes),
        versions=versions(),
    )
    for instance in instances:
        try:
            CostModel(instance.problem)
        except NestError as error:
            text = f"{instance.source}: {error}"
            raise InvalidProblemError(text) from None
    # Others are not trusted to be imported here; see the engine.
    first = {cell.solver: cell for _, cell in reversed([*run.cells()])}
    for name in filter(is_built_in, solvers):
        check_request(instances[0].problem, name, first[name].options)
    return run


def _check_trusted(folder: RunFolder, named: bool) -> None:
    """Refuse commands and log files that the directory alone names.

    The directory may be another person's. ``named`` is whether this call has
    the options of the run, which are then those of the directory.
    """
    run = folder.run
    for name in dict.fromkeys(cell.solver for cell in folder.missing()):
        planner = run.planners.get(name)
        if planner is not None and not is_registered(name, planner):
            text = ",".join(x if x != name else "FILE" for x in run.solvers)
            raise NestError(
                f"-o {folder.path}: expected this call to name planner "
                f"{name!r} as the run began, because nest runs no command "
                f"that only {MANIFEST} names, got none; add --solvers {text}, "
                f"where FILE is the description of {name!r}"
            )
        if not named and (log := run.extra.get(name, {}).get("log")):
            raise NestError(
                f"-o {folder.path}: expected this call to name the log of {name!r}, "
                f"because nest writes no file that only {MANIFEST} names, got none; "
                f"add SET and the options of the run, also --option {name}.log={log}"
            )


class Ended:
    """What came of a run.

    It has the finished cells, and the ``nest-bench/1`` document.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.rows: list[Row] = read_rows(folder)
        self.document: dict[str, Any] = to_document(folder.run, self.rows)

    @property
    def failed(self) -> bool:
        """Whether a solver broke its promises."""
        return any(row.outcome.failed for row in self.rows)


@contextlib.contextmanager
def ready(
    path: str | Path,
    run: BenchmarkSpec | None,
    instances: Sequence[Instance] = (),
    *,
    resume: bool = False,
) -> Iterator[RunFolder]:
    """Open the directory of a run, and refuse what nobody may run.

    See :func:`~nest.benchmarks.store.open_run`; ``run`` is ``None`` if this
    call does not name the options of the run.

    Raises ``NestError`` if the directory cannot be used, or it alone names a command to
    run or a file to write.
    """
    with open_run(path, run, instances, resume) as folder:
        read_rows(folder)  # what is broken is known, and runs again
        _check_trusted(folder, named=run is not None)
        yield folder


def execute(
    folder: RunFolder,
    *,
    jobs: int = 1,
    dask: str | None = None,
    on_finished: OnFinished | None = None,
    on_end: Callable[[Ended], None] = lambda ended: None,
) -> Ended:
    """Run what is missing of a run, and return the outcome.

    For ``jobs``, ``dask`` and ``on_finished`` see
    :func:`~nest.benchmarks.engine.run_missing`. ``on_end`` is called with what is
    finished at the end, also of a run that was stopped.

    Raises ``NestError`` if an answer cannot be stored, or the scheduler cannot be
    reached. Raises ``KeyboardInterrupt`` on Ctrl-C; what was finished is stored.
    """
    try:
        run_missing(folder, jobs=jobs, dask=dask, on_finished=on_finished)
    except BaseException:
        # What stopped the run matters more than what the end runs into.
        if folder.finished:
            with contextlib.suppress(NestError):
                on_end(Ended(folder))
        raise
    ended = Ended(folder)
    on_end(ended)
    return ended
