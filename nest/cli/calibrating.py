"""``nest calibrate``: predictions for a user's own cluster."""

from __future__ import annotations

import click

from nest.cli.declare import option
from nest.cli.inputs import people, write_record, write_text
from nest.cli.options import Files, takes
from nest.cli.progress import StatusLine, hint
from nest.errors import InvalidOptionError
from nest.requests.measured import CalibrateRequest
from nest.util.files import check_output


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
