"""``nest validate`` and ``nest calibrate``: predictions and measured runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nest.cli.declare import option
from nest.cli.inputs import people, write_record, write_text
from nest.cli.options import Files, takes
from nest.cli.pages import command_line
from nest.cli.progress import StatusLine, hint, share_left
from nest.errors import InvalidOptionError
from nest.requests.measured import CalibrateRequest, ValidateRequest
from nest.util.files import check_output

if TYPE_CHECKING:
    from nest.validation.report import Assessment


@click.command("validate")
@option("--details FILE", "Also write a CSV line per row; '-' is standard output.")
@takes(ValidateRequest, "json_path", "html_path")
def validate_command(
    request: ValidateRequest, files: Files, details: str | None
) -> int:
    """Predict published runs and show how far off the cost model is.

    FILE is a CSV file of measurements, '-' for standard input; 'nest
    calibrate --template' prints one to fill in. By default it is the
    published runs that are bundled with nest, with their sources. Rows that
    cannot be predicted are counted by reason.
    """
    from nest.present.table import show
    from nest.present.validation import validation_block
    from nest.validation.report import details_csv

    request.check()
    path = None if request.path == "-" else request.path
    files.check(
        request, {"FILE": None if path is None else str(path)}, {"--details": details}
    )
    rows = request.read_rows()
    selected = request.select(rows)
    answers = []
    stop: KeyboardInterrupt | None = None
    try:
        predicted = request.predict(selected, details is not None)
        for pair in _progress(predicted, len(selected)):
            answers.append(pair)
    except KeyboardInterrupt as interrupt:
        if not answers:
            raise
        stop = interrupt
    outcomes = [outcome for outcome, _ in answers]
    document = request.document(answers, len(rows))
    if stop is not None:
        document["interrupted"] = {"of": len(selected)}
    show(people(files.json_path, details), *validation_block(document))
    files.write_json(document)
    if details is not None:
        write_text(details, details_csv(outcomes))
    if files.html_path is not None:
        from nest.present.pages.validation import to_html

        runs = [_run(each) for each in outcomes if each.time_error is not None]
        write_text(files.html_path, to_html(document, runs, command_line()))
    if stop is not None:
        raise stop
    return 0


def _run(outcome: Assessment) -> dict[str, Any]:
    """Return what a page shows of a run."""
    from nest.validation.report import device_family, source_of

    row = outcome.row
    return {
        "line": row.line,
        "source": source_of(row),
        "device": row.hardware or "",
        "family": device_family(row),
        "model": row.model or "",
        "num_devices": row.num_devices,
        "measured_s": outcome.measured_s,
        "predicted_s": outcome.predicted_s,
        "error": outcome.time_error,
    }


T = TypeVar("T")

#: How long the rest takes is said when one in so many rows is done.
_SHARE_KNOWN = 10


def _progress(assessed: Iterator[T], total: int) -> Iterator[T]:
    """Pass them on with signs of life on standard error."""
    with StatusLine() as line:
        for done, assessment in enumerate(assessed, 1):
            yield assessment
            elapsed_s = line.elapsed_s
            # The first ones wait for processes to start.
            is_known = done * _SHARE_KNOWN >= total
            rest = share_left(elapsed_s, done, total) if is_known else ""
            line.show(elapsed_s, f"{done} of {total} rows{rest}")


@click.command("calibrate")
@option(
    "--template",
    "Print a table to write runs into, with one published run; nothing else.",
)
@option(
    "--next FILE",
    "Also write the runs that would tell most as a table to fill in.",
    None,
    "next_path",
)
@takes(
    CalibrateRequest,
    "output",
    "json_path",
    output="Where to write the calibration; '-' is standard output.",
)
def calibrate_command(
    request: CalibrateRequest, files: Files, template: bool, next_path: str | None
) -> int:
    """Fit the parameters of predictions to runs on your own cluster.

    RUNS is a CSV file with 5 to 20 runs of one cluster, '-' for standard
    input; see --template and docs/calibration.md. The calibration is for
    --calibration of the commands that take --cluster, and of 'nest validate'.
    """
    from nest.calibration.document import to_document
    from nest.calibration.template import planned_csv
    from nest.present.calibration import calibration_block
    from nest.present.table import show

    path = None if request.runs is None else str(request.runs)
    if template:
        _print_template(request, files, next_path)
        return 0
    if path is None or files.output is None:
        missing = "RUNS" if path is None else "-o"
        raise InvalidOptionError(
            f"nest calibrate: expected {missing}, got none; for example "
            f"'nest calibrate runs.csv -o my.calibration.json', see --template"
        )
    files.check(request, {"RUNS": None if path == "-" else path}, {"--next": next_path})
    with StatusLine() as line:
        learned = request.learn(line.update)
        try:
            candidates, proposals = request.propose(learned, line.update)
        except KeyboardInterrupt:
            # The calibration is known by then; what to run next is not.
            line.clear()
            write_record(files.output, learned.file)
            hint(f"nest: {files.output} written; runs to do next are not")
            raise
    document = to_document(learned, candidates, proposals)
    planned = planned_csv([proposal.row for proposal in proposals])
    write_record(files.output, learned.file)
    if next_path is not None:
        write_text(next_path, planned)
    show(people(files.json_path, files.output, next_path), *calibration_block(document))
    files.write_json(document)
    return 0


def _print_template(
    request: CalibrateRequest, files: Files, next_path: str | None
) -> None:
    from nest.calibration.template import template_csv

    options = {
        "RUNS": request.runs,
        "--hardware": request.hardware,
        "--interconnect": request.interconnect,
        "--devices-per-node": request.devices_per_node,
        "--accept": request.accept or None,
        "--next": next_path,
        "--json": files.json_path,
    }
    for name, value in options.items():
        if value is not None:
            raise InvalidOptionError(
                f"--template: expected no {name}, got {value!r}; remove it"
            )
    check_output(files.output, "-o")
    write_text(files.output or "-", template_csv())
