"""``nest codesign``: the best accelerators of a space, proven."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nest.cli.declare import option
from nest.cli.inputs import (
    check_distinct_files,
    people,
    write_json,
    write_record,
    write_text,
)
from nest.cli.options import Files, takes
from nest.cli.pages import HTML, check_page, command_line, plot_option
from nest.cli.progress import StatusLine, hint
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.requests.accelerators import CodesignRequest, search
from nest.util.files import check_output
from nest.util.interrupts import Interrupted

if TYPE_CHECKING:
    from nest.accelerators.records import Answers, QuestionProgress
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
@HTML
@plot_option("Draw throughput against area")
@option(
    "--csv FILE",
    "Also write a CSV line per model and point; '-' is standard output.",
    None,
    "csv_path",
)
@takes(CodesignRequest, "json_path")
def codesign_command(
    request: CodesignRequest,
    files: Files,
    describe: bool,
    html_path: str | None,
    plot_path: str | None,
    csv_path: str | None,
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
    from nest.present.codesign import read_block
    from nest.present.table import show
    from nest.solvers.base import Deadline
    from nest.util.plots import check_plot

    clock = Deadline(request.time_limit)
    path, json_path = str(request.spec), files.json_path
    outputs = {
        **{"--json": json_path, "--html": html_path},
        **{"--plot": plot_path, "--csv": csv_path},
    }
    check_page(html_path)
    check_plot(plot_path)
    check_distinct_files({"SPEC": path, "-o": request.folder, **outputs})
    for name, output in outputs.items():
        check_output(output, name)
    request.check()
    if describe and (
        request.folder is not None or any((html_path, plot_path, csv_path))
    ):
        raise InvalidOptionError(
            "--describe: expected neither -o, --html, --plot nor --csv beside "
            "it, as nothing is searched, got one; remove it"
        )
    spec = request.find_spec()
    if describe:
        document = spec_document(spec)
        show(people(json_path), *read_block(document))
        files.write_json(document)
        return 0
    if not spec.models:
        raise InvalidOptionError(
            f"{path}: $.models: expected at least one model, got none; "
            f"add one, or --model"
        )
    if request.dask is None:
        from nest.benchmarks.engine import check_parallel

        check_parallel(request.jobs, 1, None)
    paths = json_path, html_path, plot_path, csv_path
    return _Searching(request, spec, clock, *paths).go()


class _Searching:
    """Runs a search, shows it, and writes what was asked for."""

    def __init__(
        self,
        request: CodesignRequest,
        spec: Spec,
        clock: Deadline,
        json_path: str | None,
        html_path: str | None,
        plot_path: str | None,
        csv_path: str | None,
    ) -> None:
        self._request = request
        self._spec, self._clock = spec, clock
        self._json, self._html = json_path, html_path
        self._plot, self._csv = plot_path, csv_path

    def go(self) -> int:
        """Search and return the exit code."""
        space, folder = self._spec.space, self._request.folder
        hint(
            f"nest: {len(space.points):,} of {space.raw:,} points are within "
            f"the limits"
        )
        stop: Interrupted | None = None
        with _PointLine(len(space.points)) as line:
            try:
                answers: Answers | None = search(
                    self._request,
                    self._spec,
                    time_limit_s=self._clock.remaining_s,
                    on_wave=line,
                    on_complaint=lambda text: say(f"nest: {text}", err=True),
                )
            except Interrupted as interrupt:
                answers, stop = interrupt.found, interrupt
        unfinished = _STOPPED if stop is not None else ""
        if unfinished and folder is not None:
            unfinished += " Go on with --resume."
        if answers is not None:
            self._write(answers, unfinished)
            if folder is not None and Path(folder).is_dir():
                _keep_best(answers, Path(folder))
        if stop is not None:
            raise stop
        assert answers is not None
        return self._judge(answers)

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

    def __call__(self, wave: QuestionProgress) -> None:
        """Show what is known after a wave of answers."""
        elapsed_s = time.monotonic() - self._start_s
        text = wave_text(wave, self._num_points)
        self.show(elapsed_s, f"{text}; {elapsed_s:.0f} s")


def wave_text(wave: QuestionProgress, num_points: int) -> str:
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
