"""``nest codesign``: the best accelerators of a space, proven."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from nest.cli.benching import JOBS
from nest.cli.declare import integer, option
from nest.cli.inputs import (
    check_distinct_files,
    check_output,
    people,
    write_json,
    write_record,
    write_text,
)
from nest.cli.options import Options, takes
from nest.cli.pages import HTML, check_page, command_line, plot_option
from nest.cli.progress import StatusLine, hint
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.util.interrupts import Interrupted

if TYPE_CHECKING:
    from nest.accelerators.records import Answers, Wave
    from nest.accelerators.spec import Spec
    from nest.solvers.base import Deadline


def _show_published(
    context: click.Context, _: click.Parameter, asked: bool
) -> None:
    """Show what is published of chips, and end there."""
    if not asked or context.resilient_parsing:
        return
    from nest.present.published import blocks_block, peaks_block
    from nest.present.table import show

    show(people(), *peaks_block(), "", *blocks_block())
    context.exit()


_STOPPED = "The search was stopped: what is here is what was known by then."


@click.command("codesign")
@click.argument("spec_path", metavar="SPEC")
@option(
    "--model NAME",
    "Model to choose an accelerator for, instead of those of SPEC: a name, "
    "see 'nest problems --models', or a config.json of Hugging Face; "
    "repeatable.",
    None,
    "models",
    multiple=True,
)
@option(
    "--describe",
    "Only say what SPEC lists, what its limits cut and what is asked.",
)
@option(
    "--published",
    "Only compare published chips with the formulas and constants used; "
    "needs no SPEC.",
    is_eager=True,
    expose_value=False,
    callback=_show_published,
)
@option(
    "--frontier",
    "Also find the points that none beats in throughput, area, power and "
    "price.",
)
@option(
    "--sensitivity",
    "Also solve the next listed value of every parameter.",
)
@option(
    "--contributions",
    "Also say what architecture, schedule and placement contribute.",
)
@option(
    "--phaze-order",
    "Also say what Phaze's order and stop rule would have found.",
)
@option(
    "--samples N",
    "Also draw N random samples of as many points as were solved.",
    integer(1, 10_000),
    default=None,
)
@JOBS
@option(
    "--dask ADDRESS|N",
    "Solve points on a Dask cluster: the address of its scheduler, or how "
    "many local workers to start.",
)
@option(
    "-o --output DIR",
    "Keep every solved point in a directory, which --resume goes on with.",
    None,
    "folder",
)
@option("--resume", "Go on with the search of DIR: what is solved is kept.")
@HTML
@plot_option("Draw throughput against area")
@option(
    "--csv FILE",
    "Also write a CSV line per model and point; '-' is standard output.",
    None,
    "csv_path",
)
@takes(
    *("time_limit", "json_path"),
    time_limit="Wall-clock seconds for the whole command, after which the "
    "best point known and a bound on all others are shown.  [default: none]",
)
def codesign_command(  # noqa: PLR0913
    options: Options,
    spec_path: str,
    models: tuple[str, ...],
    describe: bool,
    samples: int | None,
    jobs: int,
    dask: str | None,
    folder: str | None,
    resume: bool,
    html_path: str | None,
    plot_path: str | None,
    csv_path: str | None,
    **asked: bool,
) -> int:
    """Find the best accelerators of a space for models, with proofs.

    SPEC is a YAML file with the space, its limits and the job, see
    docs/codesign.md. Every point of the space is solved exactly, or proven
    not to be the best; with --time-limit the best one known is shown with a
    bound on all others. Figures are of an analytic model of accelerators,
    which is not calibrated.

    Exits with 2 if a model fits no point, with 1 if none is known in time.
    """
    from nest.accelerators.document import spec_document
    from nest.accelerators.spec import read_spec
    from nest.present.codesign import read_block
    from nest.present.table import show
    from nest.solvers.base import Deadline
    from nest.util.plots import check_plot

    clock = Deadline(options.time_limit)
    json_path = options.json_path
    outputs = {
        **{"--json": json_path, "--html": html_path},
        **{"--plot": plot_path, "--csv": csv_path},
    }
    check_page(html_path)
    check_plot(plot_path)
    check_distinct_files({"SPEC": spec_path, "-o": folder, **outputs})
    for name, path in outputs.items():
        check_output(path, name)
    _check_words(
        *(describe, folder, resume, dask, jobs),
        *(html_path, plot_path, csv_path),
    )
    spec = with_models(read_spec(spec_path), models, spec_path)
    if describe:
        document = spec_document(spec)
        show(people(json_path), *read_block(document))
        if json_path is not None:
            write_json(json_path, document)
        return 0
    if not spec.models:
        raise InvalidOptionError(
            f"{spec_path}: $.models: expected at least one model, got none; "
            f"add one, or --model"
        )
    if dask is None:
        from nest.benchmarks.engine import check_parallel

        check_parallel(jobs, 1, None)
    paths = options.json_path, html_path, plot_path, csv_path
    return _Searching(spec, clock, *paths).go(
        samples=samples,
        folder=folder,
        resume=resume,
        jobs=jobs,
        dask=dask,
        **asked,
    )


def _check_words(
    describe: bool,
    folder: str | None,
    resume: bool,
    dask: str | None,
    jobs: int,
    *files: str | None,
) -> None:
    """Refuse options that contradict each other."""
    if resume and folder is None:
        raise InvalidOptionError(
            "--resume: expected -o DIR too, got none; name the directory of "
            "the search"
        )
    if dask is not None and jobs > 1:
        raise InvalidOptionError(
            f"--jobs {jobs}: expected either it or --dask, whose workers are "
            f"as many as the cluster has, got both; remove one"
        )
    if describe and (folder is not None or any(files)):
        raise InvalidOptionError(
            "--describe: expected neither -o, --html, --plot nor --csv beside "
            "it, as nothing is searched, got one; remove it"
        )


def with_models(spec: Spec, models: tuple[str, ...], where: str) -> Spec:
    """Return a specification with the models of the command line.

    Raises
    ------
    NestError
        If there is no such model, or its job cannot be.
    """
    from nest.accelerators.answers import setting_of
    from nest.accelerators.tasks import workload_of

    for number, name in enumerate(models):
        if name in models[:number]:
            raise InvalidOptionError(
                f"--model: expected every model once, got {name!r} again; "
                f"remove one"
            )
    chosen = models or spec.models
    for name in chosen:
        setting = setting_of(spec, name)
        try:
            workload_of(setting)
        except InvalidOptionError as error:
            raise InvalidOptionError(f"{where}: $.job: {error}") from None
    for name in spec.objective.weights:
        if chosen and name not in chosen:
            raise InvalidOptionError(
                f"--model: expected {name!r} too, which has a weight in the "
                f"specification, got {', '.join(chosen)}; add it, or remove "
                f"its weight"
            )
    return replace(spec, models=chosen)


class _Searching:
    """Runs a search, shows it, and writes what was asked for."""

    def __init__(
        self,
        spec: Spec,
        clock: Deadline,
        json_path: str | None,
        html_path: str | None,
        plot_path: str | None,
        csv_path: str | None,
    ) -> None:
        self._spec, self._clock = spec, clock
        self._json, self._html = json_path, html_path
        self._plot, self._csv = plot_path, csv_path

    def go(
        self,
        *,
        samples: int | None,
        folder: str | None,
        resume: bool,
        jobs: int,
        dask: str | None,
        **asked: bool,
    ) -> int:
        """Search and return the exit code."""
        from nest.accelerators.answers import answer
        from nest.accelerators.records import Wanted

        space = self._spec.space
        hint(
            f"nest: {len(space.points):,} of {space.raw:,} points are within "
            f"the limits"
        )
        wanted = Wanted(**asked, samples=tuple(range(samples or 0)))
        stop: Interrupted | None = None
        with _PointLine(len(space.points)) as line:
            try:
                found = answer(
                    self._spec,
                    wanted,
                    folder=folder,
                    resume=resume,
                    jobs=jobs,
                    dask=dask,
                    time_limit_s=self._clock.remaining_s,
                    on_wave=line,
                    on_complaint=lambda text: say(f"nest: {text}", err=True),
                )
            except Interrupted as interrupt:
                found, stop = interrupt.found, interrupt
        unfinished = _STOPPED if stop is not None else ""
        if unfinished and folder is not None:
            unfinished += " Go on with --resume."
        if found is not None:
            self._write(found, unfinished)
            if folder is not None and Path(folder).is_dir():
                _keep_best(found, Path(folder))
        if stop is not None:
            raise stop
        return self._judge(found)

    def _write(self, found: Answers, unfinished: str) -> None:
        from nest.accelerators.document import answers_document, to_csv
        from nest.present.codesign import answers_block, read_block
        from nest.present.table import show

        document: dict[str, Any] = answers_document(found, unfinished)
        out = people(self._json, self._csv)
        read = read_block(document["spec"])
        show(out, *read, "", *answers_block(document))
        if self._csv is not None:
            write_text(self._csv, to_csv(document))
        if self._plot is not None:
            from nest.util.plots import accelerators, save_plot

            save_plot(self._plot, lambda axes: accelerators(document, axes))
        if self._html is not None:
            from nest.present.pages.codesign import to_html

            write_text(self._html, to_html(document, command_line()))
        if self._json is not None:
            write_json(self._json, document)

    def _judge(self, found: Answers) -> int:
        """Say which models fit no point, 2 if there are any.

        Or of which none is known in time, 1 if there are any.
        """
        code = 0
        for best in found.best:
            if best.found is not None:
                continue
            names = ", ".join(best.models)
            many = len(best.models) > 1
            if best.proven:
                code = 2
                text = (
                    f"no point of the space fits "
                    f"{'all of them' if many else 'a plan'}; raise the "
                    f"limits, or list more memory or devices"
                )
            else:
                code = code or 1
                text = "no point is known in time; raise --time-limit"
            say(f"nest: {names}: {text}", err=True)
        return code


def _keep_best(found: Answers, folder: Path) -> None:
    """Write the best plan of every model, and the problem that it is one of.

    So everybody can score it, and let other solvers look for a better one.
    """
    from nest.accelerators.answers import problem_on

    for best in found.best:
        if best.found is None or len(best.models) > 1:
            continue
        (on,) = best.found.on
        if on.plan is None:
            continue
        architecture = best.found.point.architecture
        problem = problem_on(found.spec, on, architecture)
        name = on.model.replace("/", "_")
        write_record(str(folder / f"{name}-problem.json"), problem)
        write_record(str(folder / f"{name}-plan.json"), on.plan)


class _PointLine(StatusLine):
    """Shows what is asked, and how far it is."""

    def __init__(self, num_points: int) -> None:
        super().__init__()
        self._num_points = num_points
        self._start_s = time.monotonic()

    def __call__(self, wave: Wave) -> None:
        """Show what is known after a wave of answers."""
        elapsed_s = time.monotonic() - self._start_s
        text = wave_text(wave, self._num_points)
        self.show(elapsed_s, f"{text}; {elapsed_s:.0f} s")


def wave_text(wave: Wave, num_points: int) -> str:
    """Return how far a question is, in one line."""
    counts = wave.counts
    text = (
        f"{wave.question}: {counts.open:,} of {num_points:,} points open, "
        f"{counts.exact:,} solved"
    )
    if wave.relative is not None:
        text += f"; best {wave.relative:.4g}x the base"
    if wave.most_relative is not None:
        text += f", none above {wave.most_relative:.4g}x"
    return text
