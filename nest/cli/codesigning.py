"""``nest codesign``: the best accelerators of a space, proven."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import click

from nest.cli.declare import option
from nest.cli.inputs import people, write_record, write_text
from nest.cli.options import Files, takes
from nest.cli.pages import command_line
from nest.cli.progress import StatusLine, hint
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.requests.accelerators import CodesignRequest, search
from nest.util.interrupts import until_interrupted

if TYPE_CHECKING:
    from nest.accelerators.records import Answers, QuestionProgress
    from nest.accelerators.spec import Spec
    from nest.solvers.base import Deadline


def _show_published(context: click.Context, _: click.Parameter, is_on: bool) -> None:
    """Show what is published of chips, and end there."""
    if not is_on or context.resilient_parsing:
        return
    arguments = context.find_root().obj or ()
    more = {*arguments} - {"codesign", "--published", *_TALK}
    if more:
        raise InvalidOptionError(
            f"--published: expected nothing else, got "
            f"{', '.join(sorted(more))}; remove it"
        )
    from nest.present.published import blocks_block, peaks_block
    from nest.present.table import show

    show(people(), *peaks_block(), "", *blocks_block())
    context.exit()


#: Switches that every command has.
_TALK = ("-q", "--quiet", "-v", "--verbose")

_STOPPED = "The search was stopped: what is here is what was known by then."


@click.command("codesign")
@option(
    "--describe", "Only say what SPEC lists, what its limits cut and what is asked."
)
@option(
    "--published",
    "Only compare published chips with the formulas and constants used; needs no SPEC.",
    is_eager=True,
    expose_value=False,
    callback=_show_published,
)
@takes(
    CodesignRequest,
    *("json_path", "html_path", "plot_path", "csv_path"),
    plot_path="Draw throughput against area; FILE ends in .svg, .png or .pdf.",
    csv_path="Also write a CSV line per model and point; '-' is standard output.",
)
def codesign_command(request: CodesignRequest, files: Files, describe: bool) -> int:
    """Find the best accelerators of a space for models, with proofs.

    SPEC is a YAML file with the space, its limits and the job, see docs/codesign.md.
    Every point of the space is solved exactly, or proven not to be the best; with
    --time-limit the best one known is shown with a bound on all others. Figures are of
    an analytic model of accelerators, which is not calibrated.

    Exits with 2 if a model fits no point, with 1 if none is known in time.
    """
    from nest.accelerators.document import spec_document
    from nest.present.codesign import read_block
    from nest.solvers.base import Deadline

    clock = Deadline(request.time_limit)
    path = str(request.spec)
    files.check(reads={"SPEC": path, "-o": request.folder})
    request.check()
    if describe and any(
        (request.folder, files.html_path, files.plot_path, files.csv_path)
    ):
        raise InvalidOptionError(
            "--describe: expected neither -o, --html, --plot nor --csv beside "
            "it, as nothing is searched, got one; remove it"
        )
    spec = request.find_spec()
    if describe:
        document = spec_document(spec)
        files.show(*read_block(document))
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
    return _search(request, spec, clock, files)


def _search(request: CodesignRequest, spec: Spec, clock: Deadline, files: Files) -> int:
    space, folder = spec.space, request.folder
    hint(f"nest: {len(space.points):,} of {space.raw:,} points are within the limits")
    with PointLine(len(space.points)) as line:
        answers, stop = until_interrupted(
            lambda: search(
                request,
                spec,
                time_limit_s=clock.remaining_s,
                on_wave=line,
                on_complaint=lambda text: say(f"nest: {text}", err=True),
            )
        )
    unfinished = _STOPPED if stop is not None else ""
    if unfinished and folder is not None:
        unfinished += " Go on with --resume."
    if answers is not None:
        _write(answers, unfinished, files)
        if folder is not None and Path(folder).is_dir():
            _keep_best(answers, Path(folder))
    if stop is not None:
        raise stop
    assert answers is not None
    return _exit_code(answers)


def _write(answers: Answers, unfinished: str, files: Files) -> None:
    from nest.accelerators.document import answers_document, to_csv
    from nest.present.codesign import answers_block, read_block

    document: dict[str, Any] = answers_document(answers, unfinished)
    read = read_block(document["spec"])
    files.show(*read, "", *answers_block(document))
    files.write_csv(lambda: to_csv(document))
    if files.plot_path is not None:
        from nest.util.plots import accelerators, save_plot

        save_plot(files.plot_path, lambda axes: accelerators(document, axes))
    if files.html_path is not None:
        from nest.present.pages.codesign import to_html

        write_text(files.html_path, to_html(document, command_line()))
    files.write_json(document)


def _exit_code(answers: Answers) -> int:
    """Return 2 if some model fits no point, and say which models do not.

    Return 1 if no point is known in time for some model.
    """
    code = 0
    for best in answers.best:
        if best.found is not None:
            continue
        names = ", ".join(best.models)
        many = len(best.models) > 1
        if best.proven:
            code = 2
            text = (
                f"no point of the space fits {'all of them' if many else 'a plan'}; "
                f"raise the limits, or list more memory or devices"
            )
        else:
            code = code or 1
            text = "no point is known in time; raise --time-limit"
        say(f"nest: {names}: {text}", err=True)
    return code


def _keep_best(answers: Answers, folder: Path) -> None:
    """Write the best plan of every model, and the problem that it is one of.

    So everybody can score it, and let other solvers look for a better one.
    """
    from nest.accelerators.answers import problem_on

    for best in answers.best:
        if best.found is None or len(best.models) > 1:
            continue
        (on,) = best.found.on
        if on.plan is None:
            continue
        architecture = best.found.point.architecture
        problem = problem_on(answers.spec, on, architecture)
        name = on.model.replace("/", "_")
        write_record(str(folder / f"{name}-problem.json"), problem)
        write_record(str(folder / f"{name}-plan.json"), on.plan)


class PointLine(StatusLine):
    """Shows the question that is searched, and how far it is.

    A thread shows it again while a wave of answers takes long.
    """

    #: A second less than five: the thread looks once a second.
    PIPE_S = 4.0

    def __init__(self, num_points: int, file: IO[str] | None = None) -> None:
        super().__init__(file)
        self._num_points = num_points
        self._text = "reading what the first points take"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.clear()

    def _repeat(self) -> None:
        while not self._ended.wait(self.FIRST_S):
            self.update(f"{self._text}; {self.elapsed_s:.0f} s")

    def __call__(self, wave: QuestionProgress) -> None:
        """Take what is known after a wave of answers."""
        self._text = wave_text(wave, self._num_points)


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
