"""``nest bench`` and ``nest sweep``, and ``nest compare`` of several."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nest.cli.inputs import write_text
from nest.cli.options import Files, takes
from nest.cli.progress import ProgressLine, StatusLine, hint, share_left
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.requests.benchmarks import OF_RUNS, BenchRequest, SweepRequest, planned_run
from nest.requests.solving import CompareRequest, split_solvers
from nest.requests.sweeping import check_vary, document_of, solved
from nest.requests.values import also_needed

if TYPE_CHECKING:
    from nest.benchmarks.cells import BenchmarkSpec, Finished
    from nest.benchmarks.instances import Instance
    from nest.benchmarks.session import Ended
    from nest.benchmarks.store import RunFolder


#: Where values come from that nobody wrote on the command line.
_DEFAULTS = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


@click.command("bench")
@takes(BenchRequest, "json_path", "html_path")
def bench_command(request: BenchRequest, files: Files) -> int:
    """Run solvers on a set of problems and report what came of it.

    SET is built-in problems, problem files, directories, patterns of files,
    lists of these (text or YAML), or a named set; see docs/benchmarks.md.
    Instead of it, --model on --cluster is one problem.
    The report in DIR is report.md, report.html, report.json, answers.csv and
    times.csv. A run that was stopped goes on with --resume.

    Exits with 1 if a run of a solver failed.
    """
    files.check(reads={"-o": request.folder})
    request.check()
    if not request.has_problems:
        _check_resumed(request.folder, split_solvers(str(request.solvers)))
    return _run(request, files)


@click.command("sweep")
@takes(SweepRequest, "json_path", "html_path")
def sweep_command(request: SweepRequest, files: Files) -> int:
    """Show what each value of a setting buys, or solve a grid of problems.

    With --model, --cluster and --vary there is no GRID: the first value of
    every axis is the base, and each other value is solved for its best plan.
    memory and network take units (141GB, 400Gb/s) or a factor (2x), rails the
    ports of a device, oversubscription the ratio between nodes; 'default'
    leaves a setting as it is. Values of topology are separated by a bar (a|b).

    GRID is a YAML file with models, clusters, batches and bandwidths, see
    docs/benchmarks.md; its run goes to -o DIR.

    Exits with 1 if a run of a solver failed, or no plan fits for a value.
    """
    check_vary(request)
    if request.vary:
        return _vary(request, files)
    files.check(reads={"-o": request.folder})
    return _run(request, files)


def _vary(request: SweepRequest, files: Files) -> int:
    """Solve one value after the other; Ctrl-C shows what is known."""
    from nest.present.sweep import sweep_block, sweep_page

    files.check(request)
    rows: list[dict[str, Any]] = []
    stopped: KeyboardInterrupt | None = None
    limit_s = request.limited().time_limit
    with ProgressLine("s", limit_s=limit_s) as progress:
        try:
            for row in solved(request, progress):
                rows.append(row)
        except KeyboardInterrupt as interrupt:
            stopped = interrupt
    document = document_of(request, rows)
    if rows:
        files.show(*sweep_block(document))
        files.write_json(document)
        if files.html_path is not None:
            write_text(files.html_path, sweep_page(document))
    if stopped is not None:
        raise stopped
    return int(any(row["step_time_ns"] is None for row in rows))


def _run(request: BenchRequest | SweepRequest, files: Files) -> int:
    run, instances = request.planned()
    return _Running(files).go(
        request.folder,
        run,
        instances,
        resume=request.resume,
        jobs=request.jobs,
        dask=request.dask,
    )


def compare_several(
    request: CompareRequest,
    files: Files,
    texts: Sequence[str],
    solvers: list[str],
    *,
    jobs: int,
    folder: str | None,
    html_path: str | None,
) -> int:
    """Compare solvers on several problems; ``folder`` keeps the results."""
    from nest.benchmarks.instances import find_set
    from nest.benchmarks.store import begun
    from nest.solvers.registry import default_workers

    if request.warm_start is not None:
        raise InvalidOptionError(
            "--warm-start: expected one PROBLEM, which the plan is for, got "
            "several; remove it"
        )
    if request.given_job:  # refuses both
        replace(request, problem=texts[0]).check_problem_choice()
    files = replace(files, html_path=html_path)
    files.check(request)
    whole = find_set(texts)
    narrow = [request.restricted(instance.problem) for instance in whole]
    instances = [
        replace(instance, problem=restricted.problem)
        for instance, restricted in zip(whole, narrow, strict=True)
    ]
    earlier = begun(folder)
    earlier_workers = {} if earlier is None else earlier.workers
    workers = {
        name: request.workers
        or earlier_workers.get(name)
        or (default_workers(name, request.time_limit) if jobs == 1 else 1)
        for name in solvers
    }
    run = planned_run(
        request,
        f"Comparison of {', '.join(texts)}",
        instances,
        solvers,
        (request.seed,),
        workers=workers,
        notes=[*dict.fromkeys(x for each in narrow for x in each.notes)],
    )
    running = _Running(files, report=folder is not None, plans=True)
    with ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        return running.go(folder, run, instances, resume=True, jobs=jobs)


def _check_resumed(folder: str, solvers: list[str]) -> None:
    """Refuse options of a run beside ``--resume`` without SET.

    Solvers may be named again, which allows to run those that are commands.
    """
    from nest.benchmarks.store import begun

    context = click.get_current_context()
    before = begun(folder)
    source = context.get_parameter_source("solvers")
    if (
        before is not None
        and source not in _DEFAULTS
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
        if name in OF_RUNS and source not in _DEFAULTS:
            remedy = "leave it out to go on with the run as it began"
            raise also_needed(parameter.opts[-1], "SET", remedy)


@dataclass
class _Running:
    """Shows a run and writes what was asked for beside its directory.

    With ``report`` the directory stays, with a report in it; with ``plans``
    the page shows the best plan of every problem.
    """

    files: Files
    report: bool = True
    plans: bool = False
    code: int = 0

    def go(
        self,
        path: str,
        run: BenchmarkSpec | None,
        instances: list[Instance],
        *,
        resume: bool,
        jobs: int,
        dask: str | None = None,
    ) -> int:
        from nest.benchmarks.engine import check_parallel, shared_cpus
        from nest.benchmarks.session import execute, ready

        # Before there is a directory, if it is known by then what runs.
        check_parallel(jobs, 1 if run is None else run.most_workers, dask)
        opened = ready(path, run, instances, resume=resume)
        with _CellLine() as line, opened as folder:
            workers = folder.run.most_workers
            check_parallel(jobs, workers, dask)
            slow = shared_cpus(workers, dask)
            for text in (*folder.complaints, *([slow] if slow else [])):
                say(f"nest: {text}", err=True)
            line.begin(folder)
            execute(
                folder,
                jobs=jobs,
                dask=dask,
                on_finished=line.finished,
                on_end=lambda outcome: self._end(outcome, line),
            )
        return self.code

    def _end(self, outcome: Ended, line: _CellLine) -> None:
        from nest.present.benchmark import benchmark_block
        from nest.present.pages.benchmark import joint_csv, to_html, write_reports
        from nest.present.table import show

        line.clear()
        document: dict[str, Any] = outcome.document
        self.code = int(outcome.failed)
        if self.report:
            write_reports(outcome)
        has_cells = self.files.csv_path is not None or not self.report
        out = self.files.people
        show(out, *benchmark_block(document, cells=has_cells))
        if self.report:
            show(out, f"report: {outcome.folder.path / 'report.html'}")
        self.files.write_csv(lambda: joint_csv(document))
        if self.files.html_path is not None:
            plans = []
            if self.plans:
                from nest.present.pages.several import plan_sections

                plans = plan_sections(outcome)
            write_text(self.files.html_path, to_html(document, plans))
        self.files.write_json(document)


class _CellLine(StatusLine):
    """Shows how many cells are finished, and the last one."""

    def begin(self, folder: RunFolder) -> None:
        """Begin with what is finished already."""
        self._names = {x.hash: x.name for x in folder.run.problems}
        self._count, self._size = len(folder.finished), folder.run.size
        if self._count:
            hint(f"nest: {self._count} of {self._size} cells are finished")
        self._begun_with = self._count

    def finished(self, finished: Finished) -> None:
        self._count += 1
        result: dict[str, Any] = finished.result
        name = self._names[finished.cell.problem_hash]
        self.update(
            f"{self._count} of {self._size} cells, last {name} {finished.cell.solver}: "
            f"{result['status'] or result['outcome']} in {result['wall_s']:.1f} s"
            + share_left(
                self.elapsed_s,
                self._count - self._begun_with,
                self._size - self._begun_with,
            )
        )
