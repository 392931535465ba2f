"""``nest calibrate``: predictions for a user's own cluster."""

from __future__ import annotations

import time

import click

from nest.cli.declare import integer, option
from nest.cli.inputs import check_output, people, write_record, write_text
from nest.cli.options import Options, takes
from nest.cli.progress import StatusLine, hint
from nest.errors import InvalidOptionError


@click.command("calibrate")
@click.argument("path", metavar="[RUNS]", required=False)
@option(
    "--template",
    "Print a table to write runs into, with one published run; nothing else.",
)
@option("--hardware TEXT", "Only runs on devices with TEXT.")
@option("--interconnect TEXT", "Only runs on networks with TEXT.")
@option("--devices-per-node N", "Only runs on nodes of N devices.", integer())
@option(
    "--next FILE",
    "Also write the runs that would tell most as a table to fill in.",
    None,
    "next_path",
)
@takes(
    "output",
    "json_path",
    output="Where to write the calibration; '-' is standard output.",
)
def calibrate_command(
    options: Options,
    path: str | None,
    template: bool,
    hardware: str | None,
    interconnect: str | None,
    devices_per_node: int | None,
    next_path: str | None,
) -> int:
    """Fit the parameters of predictions to runs on your own cluster.

    RUNS is a CSV file with 5 to 20 runs of one cluster, '-' for standard
    input; see --template and docs/calibration.md. The calibration is for
    --calibration of the commands that take --cluster, and of 'nest validate'.
    """
    if template:
        _print_template(options, path, next_path)
        return 0
    if path is None or options.output is None:
        missing = "RUNS" if path is None else "-o"
        raise InvalidOptionError(
            f"nest calibrate: expected {missing}, got none; for example "
            f"'nest calibrate runs.csv -o my.calibration.json', see --template"
        )
    options.check_files(
        {"RUNS": None if path == "-" else path}, {"--next": next_path}
    )
    from nest.calibration.design import candidates, propose
    from nest.calibration.document import to_document
    from nest.calibration.runs import learn, read_runs, runs_of
    from nest.calibration.template import planned_csv
    from nest.ir.documents import read_stdin
    from nest.present.calibration import calibration_block
    from nest.present.table import show
    from nest.validation.reading import parse_rows
    from nest.validation.rows import (
        InvalidMeasurementsError,
    )

    start_s = time.monotonic()
    with StatusLine() as line:

        def tell(text: str) -> None:
            line.show(time.monotonic() - start_s, text)

        chosen = (hardware or "", interconnect or "", devices_per_node or 0)
        if path == "-":
            rows = parse_rows(
                read_stdin(InvalidMeasurementsError), "standard input"
            )
            runs = runs_of(rows, "standard input", *chosen)
        else:
            runs = read_runs(path, *chosen)
        tell(f"{len(runs.rows)} runs")
        learned = learn(runs, tell=tell)
        try:
            found = candidates(learned, tell=tell)
            proposals = propose(learned, found)
        except KeyboardInterrupt:
            # The calibration is known by then; what to run next is not.
            line.clear()
            write_record(options.output, learned.file)
            hint(f"nest: {options.output} written; runs to do next are not")
            raise
    document = to_document(learned, found, proposals)
    to_do = planned_csv([proposal.row for proposal in proposals])
    write_record(options.output, learned.file)
    if next_path is not None:
        write_text(next_path, to_do)
    show(
        people(options.json_path, options.output, next_path),
        *calibration_block(document),
    )
    options.write_json(document)
    return 0


def _print_template(
    options: Options, path: str | None, next_path: str | None
) -> None:
    from nest.calibration.template import template_csv

    given = {
        "RUNS": path,
        "--next": next_path,
        "--json": options.json_path,
    }
    for name, value in given.items():
        if value is not None:
            raise InvalidOptionError(
                f"--template: expected no {name}, got {value!r}; remove it"
            )
    check_output(options.output, "-o")
    write_text(options.output or "-", template_csv())
