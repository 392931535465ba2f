"""``nest bench`` and ``nest sweep``, and ``nest compare`` of several."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nest.cli.declare import integer, integers, option
from nest.cli.inputs import (
    check_distinct_files,
    check_output,
    parse_extra,
    people,
    solver_keyword,
    write_json,
    write_text,
)
from nest.cli.options import MODEL, Options, takes
from nest.cli.pages import HTML, check_page
from nest.cli.progress import StatusLine, hint, share_left
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.benchmarks.cells import Finished, Run
    from nest.benchmarks.instances import Instance
    from nest.benchmarks.session import Ended
    from nest.benchmarks.store import RunFolder

DEFAULT_SOLVERS = "dp,milp,cpsat"

#: Stands for every solver that can run here.
ALL = "all"

SOLVERS = option(
    "--solvers A,B,…",
    f"Solvers to compare, or {ALL!r}: names, or files that describe commands "
    f"(docs/your-planner.md).",
    None,
    "solvers_text",
    default=DEFAULT_SOLVERS,
)
JOBS = option(
    "--jobs N",
    "Cells that run at the same time, each in a process of its own.",
    integer(1, num_cpus()),
    default=1,
)
_DASK = option(
    "--dask ADDRESS|N",
    "Run cells on a Dask cluster: the address of its scheduler, or how many "
    "local workers to start.",
)
_FOLDER = option(
    "-o --output DIR",
    "Directory of the run: its cells and its report.  [required]",
    None,
    "folder",
)
#: Options that say what a run is.
_OF_RUNS = (*("seeds", "time_limit", "gap", "workers", "repair", "extra"),)
_RESUME = option(
    "--resume",
    "Go on with the run of DIR: what is finished is kept.",
)


@click.command("bench")
@click.argument("texts", metavar="[SET]…", nargs=-1)
@SOLVERS
@option(
    "--seeds N,…",
    "Seeds of random choices, a cell each.  [default: 0]",
    integers(0),
)
@_FOLDER
@JOBS
@_DASK
@_RESUME
@HTML
@takes(
    *("time_limit", "gap", "workers", "repair", "extra", "json_path"),
    *MODEL,
    time_limit="Wall-clock seconds per cell, everything included.  "
    "[default: 60]",
    workers="Threads or processes per solver.  [default: 1]",
)
def bench_command(  # noqa: PLR0913
    options: Options,
    texts: tuple[str, ...],
    solvers_text: str,
    seeds: tuple[int, ...] | None,
    folder: str | None,
    jobs: int,
    dask: str | None,
    resume: bool,
    html_path: str | None,
) -> int:
    """Run solvers on a set of problems and report what came of it.

    SET is built-in problems, problem files, directories, patterns of files,
    lists of these (text or YAML), or a named set; see docs/benchmarks.md.
    Instead of it, --model on --cluster is one problem.
    The report in DIR is report.md, report.html, report.json, answers.csv and
    times.csv. A run that was stopped goes on with --resume.

    Exits with 1 if a cell failed.
    """
    from nest.benchmarks.instances import find_set

    place = _wanted(options, folder)
    check_page(html_path)
    check_output(html_path, "--html")
    given = bool(texts or options.given_job)
    if not given and not resume:
        raise InvalidOptionError(
            f"{options.command}: expected SET, got none; name problems, "
            f"files or a set such as 'quick', pass --model and --cluster, or "
            f"--resume a run"
        )
    solvers = split_solvers(solvers_text)
    if not given:
        _check_resumed(place, solvers)
    if options.given_job:
        named = replace(options, problem_text=texts[0] if texts else None)
        named.check_problem_choice()
    run, instances = None, []
    check_distinct_files(
        {"-o": folder, "--json": options.json_path, "--html": html_path}
    )
    if given:
        instances = find_set(texts) if texts else [_of_model(options)]
        names = texts or [each.name for each in instances]
        title = f"Benchmark of {', '.join(names)}"
        options = options.limited(slow=True)
        run = _run(options, title, instances, solvers, seeds or (0,))
    return _Running(options.json_path, html_path=html_path).go(
        place, run, instances, resume=resume, jobs=jobs, dask=dask
    )


def _of_model(options: Options) -> Instance:
    """Return the problem of ``--model`` on ``--cluster``."""
    from nest.benchmarks.instances import Instance

    problem = options.find_problem()
    source = f"{options.model} on {options.job['cluster']}"
    return Instance(problem.name, problem, source)


@click.command("sweep")
@click.argument("grid_path", metavar="GRID")
@option(
    "--solvers A,B,…",
    "Solvers in place of those of GRID; a command must be named here.",
    None,
    "solvers_text",
)
@_FOLDER
@JOBS
@_DASK
@_RESUME
@takes(
    *("calibration", "workers", "json_path"),
    workers="Threads or processes per solver.  [default: 1]",
)
def sweep_command(
    options: Options,
    grid_path: str,
    solvers_text: str | None,
    folder: str | None,
    jobs: int,
    dask: str | None,
    resume: bool,
) -> int:
    """Solve a grid of problems: models × clusters × batches × bandwidths.

    GRID is a YAML file, see docs/benchmarks.md. The report says what more
    bandwidth buys.

    Exits with 1 if a cell failed.
    """
    from nest.benchmarks.sweep import expand, read_sweep
    from nest.solvers.command import is_description

    place = _wanted(options, folder)
    sweep = read_sweep(grid_path)
    options = replace(options, time_limit=sweep.time_limit_s)
    calibration = options.job["calibration"]
    if solvers_text is None and any(map(is_description, sweep.solvers)):
        raise InvalidOptionError(
            f"{grid_path}: solvers: expected names, because nest runs no "
            f"command that only a file names, got a description of a "
            f"command; add --solvers {','.join(sweep.solvers)}"
        )
    solvers = split_solvers(solvers_text or ",".join(sweep.solvers))
    instances = expand(sweep, grid_path, calibration)
    title = f"Sweep of {grid_path}"
    run = _run(options, title, instances, solvers, sweep.seeds)
    return _Running(options.json_path).go(
        place, run, instances, resume=resume, jobs=jobs, dask=dask
    )


def compare_several(
    options: Options,
    texts: Sequence[str],
    solvers: list[str],
    *,
    jobs: int,
    kept: str | None,
    csv_path: str | None,
    html_path: str | None,
) -> int:
    """Compare solvers on several problems; ``kept`` is the directory."""
    from nest.benchmarks.instances import find_set
    from nest.benchmarks.store import begun
    from nest.solvers.registry import default_workers

    if options.warm_start is not None:
        raise InvalidOptionError(
            "--warm-start: expected one PROBLEM, which the plan is for, got "
            "several; remove it"
        )
    if options.given_job:
        options = replace(options, problem_text=texts[0])
        options.check_problem_choice()  # refuses both
    options.check_files(writes={"--csv": csv_path, "--html": html_path})
    found = find_set(texts)
    narrow = [options.restricted(instance.problem) for instance in found]
    instances = [
        replace(instance, problem=restricted.problem)
        for instance, restricted in zip(found, narrow, strict=True)
    ]
    before = begun(kept)
    known = {} if before is None else before.workers
    workers = {
        name: options.workers
        or known.get(name)
        or (default_workers(name, options.time_limit) if jobs == 1 else 1)
        for name in solvers
    }
    run = _run(
        options,
        f"Comparison of {', '.join(texts)}",
        instances,
        solvers,
        (options.seed,),
        workers,
        [*dict.fromkeys(note for each in narrow for note in each.notes)],
    )
    running = _Running(
        *(options.json_path, csv_path, html_path),
        report=kept is not None,
        plans=True,
    )
    with ExitStack() as stack:
        place = kept
        if place is None:
            place = stack.enter_context(tempfile.TemporaryDirectory())
        return running.go(place, run, instances, resume=True, jobs=jobs)


def _check_resumed(folder: str, solvers: list[str]) -> None:
    """Refuse options of a run beside ``--resume`` without SET.

    Solvers may be named again, which allows to run those that are commands.
    """
    from nest.benchmarks.store import begun

    context = click.get_current_context()
    before = begun(folder)
    source = context.get_parameter_source("solvers_text")
    if (
        before is not None
        and source is not ParameterSource.DEFAULT
        and tuple(solvers) != before.solvers
    ):
        raise InvalidOptionError(
            f"--solvers: expected those of the run, "
            f"{','.join(before.solvers)}, got {','.join(solvers)}; correct "
            f"it, or leave it out if none of them is a command"
        )
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in _OF_RUNS and source is not ParameterSource.DEFAULT:
            raise InvalidOptionError(
                f"{parameter.opts[-1]}: expected SET too, got none; leave it "
                f"out to go on with the run as it began"
            )


def split_solvers(text: str) -> list[str]:
    """Return the keywords of ``--solvers``."""
    from nest.solvers.registry import availability, is_built_in, solver_names

    if text == ALL:
        # Those of other packages are imported where they run.
        return [
            name
            for name in solver_names()
            if not is_built_in(name) or not availability(name)
        ]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidOptionError(
            f"--solvers: expected keywords separated by commas, got "
            f"{text!r}; see 'nest solvers'"
        )
    names = [solver_keyword(name) for name in names]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOptionError(
                f"--solvers: expected every solver once, got {name!r} "
                f"again; remove one"
            )
    return names


def _wanted(options: Options, folder: str | None) -> str:
    """Return the directory that ``-o`` must name."""
    if folder is None:
        raise InvalidOptionError(
            f"{options.command}: expected -o DIR, got none; name a new "
            f"directory for the run"
        )
    check_output(options.json_path, "--json")
    return folder


def _run(
    options: Options,
    title: str,
    instances: Sequence[Instance],
    solvers: list[str],
    seeds: Sequence[int],
    workers: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> Run:
    """Return what shall be run, once the request is known to make sense."""
    from nest.benchmarks.session import plan_run
    from nest.solvers.base import SolveOptions
    from nest.solvers.registry import solver_target

    for name in solvers:
        solver_target(name)  # refuses unknown ones
    return plan_run(
        title,
        instances,
        solvers,
        seeds=seeds,
        options=SolveOptions(
            time_limit_s=options.time_limit,
            gap=options.gap,
            repair=options.repair,
        ),
        workers=workers or dict.fromkeys(solvers, options.workers or 1),
        extra=parse_extra(options.extra, solvers),
        notes=notes,
    )


@dataclass
class _Running:
    """Shows a run and writes what was asked for beside its directory.

    ``report`` is whether the directory stays, with a report in it; ``plans``
    whether the page shows the best plan of every problem.
    """

    json_path: str | None
    csv_path: str | None = None
    html_path: str | None = None
    report: bool = True
    plans: bool = False
    code: int = 0

    def go(
        self,
        place: str,
        run: Run | None,
        instances: list[Instance],
        *,
        resume: bool,
        jobs: int,
        dask: str | None = None,
    ) -> int:
        """Run it and return the exit code."""
        from nest.benchmarks.engine import check_parallel, shared_cpus
        from nest.benchmarks.session import execute

        # Before there is a directory, if it is known by then what runs.
        check_parallel(jobs, 1 if run is None else run.most_workers, dask)
        with _CellLine() as line:

            def opened(folder: RunFolder) -> None:
                workers = folder.run.most_workers
                check_parallel(jobs, workers, dask)
                slow = shared_cpus(workers, dask)
                for text in (*folder.complaints, *([slow] if slow else [])):
                    say(f"nest: {text}", err=True)
                line.begin(folder)

            def ended(outcome: Ended) -> None:
                line.clear()
                self._end(outcome)

            execute(
                place,
                run,
                instances,
                resume=resume,
                jobs=jobs,
                dask=dask,
                on_open=opened,
                on_finished=line.finished,
                on_end=ended,
            )
        return self.code

    def _end(self, outcome: Ended) -> None:
        from nest.present.benchmark import benchmark_block
        from nest.present.pages.benchmark import (
            joint_csv,
            to_html,
            write_reports,
        )
        from nest.present.table import show

        document: dict[str, Any] = outcome.document
        self.code = int(outcome.failed)
        if self.report:
            write_reports(outcome)
        out = people(self.json_path, self.csv_path, self.html_path)
        show(
            out,
            *benchmark_block(
                document, cells=self.csv_path is not None or not self.report
            ),
        )
        if self.report:
            show(out, f"report: {outcome.folder.path / 'report.html'}")
        if self.csv_path is not None:
            write_text(self.csv_path, joint_csv(document))
        if self.html_path is not None:
            plans = []
            if self.plans:
                from nest.present.pages.several import plan_parts

                plans = plan_parts(outcome)
            write_text(self.html_path, to_html(document, plans))
        if self.json_path is not None:
            write_json(self.json_path, document)


class _CellLine(StatusLine):
    """Shows how many cells are finished, and the last one."""

    def begin(self, folder: RunFolder) -> None:
        """Begin with what is finished already."""
        self._names = {x.hash: x.name for x in folder.run.problems}
        self._count, self._size = len(folder.finished), folder.run.size
        self._start_s = time.monotonic()
        if self._count:
            hint(f"nest: {self._count} of {self._size} cells are finished")
        self._begun_with = self._count

    def finished(self, finished: Finished) -> None:
        """Count a cell."""
        self._count += 1
        result: dict[str, Any] = finished.result
        name = self._names[finished.cell.problem_hash]
        elapsed_s = time.monotonic() - self._start_s
        self.show(
            elapsed_s,
            f"{self._count} of {self._size} cells, last {name} "
            f"{finished.cell.solver}: {result['status'] or result['outcome']} "
            f"in {result['wall_s']:.1f} s"
            + share_left(
                elapsed_s,
                self._count - self._begun_with,
                self._size - self._begun_with,
            ),
        )
