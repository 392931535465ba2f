"""``bench`` and ``sweep``: solvers on sets and grids of problems."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from nest.errors import InvalidOptionError
from nest.requests import values as read
from nest.requests.problems import ModelRequest
from nest.requests.restricted import RestrictedRequest
from nest.requests.settings import Request, option_name, redeclared, setting
from nest.requests.solving import (
    SolverOptionsRequest,
    TimeLimitRequest,
    WorkersRequest,
    parse_extra,
    solvers_option,
    split_solvers,
)
from nest.requests.sweeping import AXES, check_vary, document_of, read_axes, solved
from nest.requests.values import Integers, Pairs, PathText, Words
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.benchmarks.cells import BenchmarkSpec
    from nest.benchmarks.instances import Instance

#: Fields of :class:`BenchRequest` that belong to a run for good.
OF_RUNS = ("seeds", "time_limit", "gap", "workers", "repair", "option")


def jobs_setting() -> Any:
    """Declare how many runs work at the same time."""
    return setting(
        "--jobs N",
        "Runs of solvers that work at the same time, each in a process of its own.",
        read.integer(1, num_cpus()),
        default=1,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RunFolderRequest(Request, group="Run"):
    """Where a run is kept, and where it works."""

    output: PathText | None = setting(
        "-o --output DIR",
        "Directory of the run: its results and its report.  [required]",
    )
    jobs: int = jobs_setting()
    dask: str | None = setting(
        "--dask ADDRESS|N",
        "Run solvers on a Dask cluster: the address of its scheduler, or how "
        "many local workers to start.",
    )
    resume: bool = setting(
        "--resume", "Go on with the run of DIR: what is finished is kept."
    )

    @property
    def folder(self) -> str:
        """The directory, which must be given."""
        if self.output is None:
            raise InvalidOptionError(
                f"{self.COMMAND}: expected -o DIR, got none; name a new "
                f"directory for the run"
            )
        return os.fspath(self.output)


@dataclass(frozen=True)
class BenchRequest(
    ModelRequest, SolverOptionsRequest, RunFolderRequest, command="nest bench"
):
    """Solvers on a set of problems."""

    problems: Words = setting(
        "[SET]…",
        "Built-in problems, problem files, directories, patterns of files, "
        "lists of these, or a named set.",
        read.names,
        multiple=True,
    )
    _: KW_ONLY
    solvers: Words = solvers_option()
    seeds: Integers | None = setting(
        "--seeds N,…",
        "Seeds of random choices, a run each.  [default: 0]",
        read.integers(0),
    )
    time_limit: float | None = redeclared(
        TimeLimitRequest,
        "time_limit",
        "Wall-clock seconds per run of a solver, everything included.  [default: 60]",
    )
    workers: int | None = redeclared(
        WorkersRequest, "workers", "Threads or processes per solver.  [default: 1]"
    )

    @property
    def has_problems(self) -> bool:
        """Whether a set or a model is given."""
        return bool(self.problems or self.given_job)

    def check(self) -> None:
        """Refuse a request that names nothing to run."""
        if not self.has_problems and not self.resume:
            raise InvalidOptionError(
                f"{self.COMMAND}: expected SET, got none; name problems, files or a "
                f"set such as 'quick', pass --model and --cluster, or --resume a run"
            )
        given = self.given_job
        if given and self.problems:
            raise InvalidOptionError(
                f"{option_name(given[0])}: expected either SET or --model "
                f"with its options, got {self.problems[0]!r} too; remove one"
            )
        self.check_model()

    def planned(self) -> tuple[BenchmarkSpec | None, list[Instance]]:
        """Return the run and its problems; no run to go on with one."""
        from nest.benchmarks.instances import Instance, find_set

        solvers = split_solvers(str(self.solvers))
        if not self.has_problems:
            return None, []
        if self.problems:
            instances = find_set(tuple(self.problems))
        else:
            problem = self.model_problem()
            source = f"{self.model} on {self.cluster}"
            instances = [Instance(problem.name, problem, source)]
        titles = self.problems or [each.name for each in instances]
        run = planned_run(
            self.limited(slow=True),
            f"Benchmark of {', '.join(titles)}",
            instances,
            solvers,
            self.seeds or (0,),  # type: ignore[arg-type]
        )
        return run, instances


@dataclass(frozen=True)
class SweepRequest(
    ModelRequest, WorkersRequest, RunFolderRequest, command="nest sweep"
):
    """Solvers on a grid of problems, or values of settings one by one."""

    SAFE: ClassVar[bool] = True

    grid: PathText | None = setting(
        "[GRID]", "A YAML file with models, clusters, batches and bandwidths."
    )
    _: KW_ONLY
    vary: Pairs = setting(
        "--vary AXIS=VALUE,…",
        f"Without GRID: values of a setting, the first of which is the base; "
        f"repeatable.  Axes: {', '.join(AXES)}.",
        read_axes,
        multiple=True,
    )
    tokens: float | str | None = setting(
        "--tokens N", "Tokens of the training run, for its days.", read.token_count
    )
    price: float | None = setting(
        "--price USD",
        "Price of a device per hour, for the cost of --tokens.",
        read.dollars,
        unit="USD/h",
    )
    target: str | None = redeclared(RestrictedRequest, "target")
    pin: Pairs = redeclared(RestrictedRequest, "pin")
    forbid: Pairs = redeclared(RestrictedRequest, "forbid")
    headroom: str | None = redeclared(RestrictedRequest, "headroom")
    solvers: Words | None = solvers_option(default=None)
    time_limit: float | None = redeclared(
        TimeLimitRequest,
        "time_limit",
        "Wall-clock seconds for each value of --vary.  [default: 60]",
    )
    workers: int | None = redeclared(
        WorkersRequest,
        "workers",
        "Threads or processes per solver.  [default: 1; with --vary all "
        "available CPUs]",
    )

    def planned(self) -> tuple[BenchmarkSpec, list[Instance]]:
        """Return the run and its problems."""
        from nest.benchmarks.sweep import expand, read_sweep
        from nest.solvers.command import is_description

        check_vary(self)
        assert self.grid is not None
        path = os.fspath(self.grid)
        sweep = read_sweep(path)
        if self.solvers is None and any(map(is_description, sweep.solvers)):
            raise InvalidOptionError(
                f"{path}: solvers: expected names, because nest runs no "
                f"command that only a file names, got a description of a "
                f"command; add --solvers {','.join(sweep.solvers)}"
            )
        solvers = split_solvers(str(self.solvers or ",".join(sweep.solvers)))
        calibration = self.calibration and os.fspath(self.calibration)
        instances = expand(sweep, path, calibration or None)
        run = planned_run(
            self,
            f"Sweep of {path}",
            instances,
            solvers,
            sweep.seeds,
            time_limit_s=self.time_limit or sweep.time_limit_s,
        )
        return run, instances


def planned_run(
    request: Any,
    title: str,
    instances: Sequence[Instance],
    solvers: list[str],
    seeds: Sequence[int],
    *,
    workers: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
    time_limit_s: float | None = None,
) -> BenchmarkSpec:
    """Return what shall be run, once the request is known to make sense."""
    from nest.benchmarks.session import plan_run
    from nest.solvers.base import SolveOptions
    from nest.solvers.registry import solver_target

    for name in solvers:
        solver_target(name)  # refuses unknown ones
    each = request.workers or 1
    return plan_run(
        title,
        instances,
        solvers,
        seeds=seeds,
        options=SolveOptions(
            time_limit_s=time_limit_s or getattr(request, "time_limit", None),
            gap=getattr(request, "gap", 0.0),
            repair=getattr(request, "repair", False),
        ),
        workers=workers or dict.fromkeys(solvers, each),
        extra=parse_extra(getattr(request, "option", ()), solvers),
        notes=notes,
    )


def _execute(
    request: RunFolderRequest, run: BenchmarkSpec | None, instances: list[Instance]
) -> dict[str, Any]:
    """Run it in its directory and return the document of its report."""
    from nest.benchmarks.engine import check_parallel
    from nest.benchmarks.session import execute, ready

    workers = 1 if run is None else run.most_workers
    check_parallel(request.jobs, workers, request.dask)
    opened = ready(request.folder, run, instances, resume=request.resume)
    with opened as folder:
        ended = execute(folder, jobs=request.jobs, dask=request.dask)
    return ended.document


def bench(request: BenchRequest) -> dict[str, Any]:
    """Return the document of a benchmark's report."""
    request.check()
    return _execute(request, *request.planned())


def sweep(request: SweepRequest) -> dict[str, Any]:
    """Return the document of a sweep's report."""
    if request.vary:
        check_vary(request)
        return document_of(request, list(solved(request)))
    return _execute(request, *request.planned())
