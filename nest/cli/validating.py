"""``nest validate``: predictions beside published measurements."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nest.cli.declare import integer, names, option
from nest.cli.inputs import people, write_text
from nest.cli.options import Options, takes
from nest.cli.pages import HTML, check_page, command_line
from nest.cli.progress import StatusLine, share_left
from nest.errors import InvalidOptionError, UnknownNameError
from nest.tasks.parallel import follow
from nest.util.interpreters import safe_environment
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.hardware.calibration import CalibrationFile
    from nest.validation.coverage import Covered
    from nest.validation.predict import Prediction, Skip
    from nest.validation.report import Assessment, Selection
    from nest.validation.rows import Row

#: Rows that a process predicts before it reports.
_CHUNK = 16

#: From so many rows on processes are worth their start.
_MANY = 500


@click.command("validate")
@click.argument("path", metavar="[FILE]", required=False)
@option("--tier A,B,…", "Only rows of these tiers.", names, "tiers")
@option(
    "--precision A,B,…",
    "Only these precisions, such as bf16,fp16.",
    names,
    "precisions",
)
@option("--source TEXT", "Only sources with TEXT.")
@option("--hardware TEXT", "Only devices with TEXT.")
@option("--min-devices N", "Only rows of N devices or more.", integer())
@option("--limit N", "Only the first N of these rows.", integer())
@option(
    "--jobs N",
    f"Processes; by default one, for {_MANY} rows or more one per CPU.",
    integer(1, num_cpus()),
)
@option(
    "--details FILE",
    "Also write a CSV line per row; '-' is standard output.",
    None,
    "details_path",
)
@option(
    "--calibration FILE",
    "Predict with a user's own parameters, and only rows of its devices; "
    "see 'nest calibrate'.",
    None,
    "calibration_path",
)
@option(
    "--intervals",
    "Also say how many measured step times lie within their intervals.",
)
@HTML
@takes("json_path")
def validate_command(
    options: Options,
    path: str | None,
    limit: int | None,
    jobs: int | None,
    details_path: str | None,
    calibration_path: str | None,
    intervals: bool,
    html_path: str | None,
    **chosen: Any,
) -> int:
    """Predict published runs and show how far off the cost model is.

    FILE is a CSV file of measurements, '-' for standard input; 'nest
    calibrate --template' prints one to fill in. By default it is the
    published runs that come along, with their sources. Rows that cannot be
    predicted are counted by reason.
    """
    from nest.ir.documents import read_stdin
    from nest.present.table import show
    from nest.present.validation import validation_block
    from nest.validation.reading import parse_rows, published_rows, read_rows
    from nest.validation.report import (
        SHOWN,
        Selection,
        details_csv,
        validation_document,
    )
    from nest.validation.rows import (
        InvalidMeasurementsError,
    )

    if intervals and calibration_path is not None:
        raise InvalidOptionError(
            "--intervals: expected either it or --calibration, whose errors "
            "for other runs nobody knows, got both; remove one"
        )
    options.check_files(
        {
            "FILE": None if path == "-" else path,
            "--calibration": calibration_path,
        },
        {"--details": details_path, "--html": html_path},
    )
    check_page(html_path)
    if path is None:
        rows = published_rows()
    elif path == "-":
        rows = parse_rows(
            read_stdin(InvalidMeasurementsError), "standard input"
        )
    else:
        rows = read_rows(path)
    selection = Selection(
        **{name: value for name, value in chosen.items() if value is not None}
    )
    selected = _select(rows, selection)[:limit]
    calibration = _calibration(calibration_path, selected)
    jobs = jobs or (num_cpus() if len(selected) >= _MANY else 1)
    assessed = _predict_all(selected, jobs, calibration, intervals)
    outcomes, within = [], []
    stop: KeyboardInterrupt | None = None
    try:
        for outcome, found in _progress(assessed, len(selected)):
            outcomes.append(outcome)
            within.append(found)
    except KeyboardInterrupt as interrupt:
        if not outcomes:
            raise
        stop = interrupt
    is_whole = len(outcomes) == len(rows)
    document = validation_document(
        outcomes, selection, SHOWN if is_whole else ()
    )
    if stop is not None:
        document["interrupted"] = {"of": len(selected)}
    if intervals:
        from nest.validation.coverage import coverage_figures

        document["intervals"] = coverage_figures(within)
    show(people(options.json_path, details_path), *validation_block(document))
    options.write_json(document)
    if details_path is not None:
        write_text(details_path, details_csv(outcomes))
    if html_path is not None:
        from nest.present.pages.validation import to_html

        runs = [_run(each) for each in outcomes if each.time_error is not None]
        write_text(html_path, to_html(document, runs, command_line()))
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


def _select(rows: Sequence[Row], selection: Selection) -> list[Row]:
    """Return the rows to predict: for their time or for their memory."""
    selected = [
        row
        for row in rows
        if selection.takes(row, row.time_tier)
        or selection.takes(row, row.mem_tier)
    ]
    if not selected:
        raise InvalidOptionError(
            f"FILE: expected a row that matches '{selection}', got none of "
            f"{len(rows)}; tiers here: "
            f"{_known(row.time_tier for row in rows)}; precisions: "
            f"{_known(row.precision_class for row in rows)}; "
            f"widen the selection"
        )
    return selected


def _known(values: Iterator[str | None]) -> str:
    return ", ".join(sorted({value for value in values if value})) or "none"


def load_predictor() -> Callable[[Row], Prediction | Skip]:
    """Return the function that predicts a row."""
    from nest.validation.predict import predict

    return predict


def _calibration(
    path: str | None, rows: Sequence[Row]
) -> CalibrationFile | None:
    """Return the calibration of a file, which must be of some row's device."""
    if path is None:
        return None
    from nest.hardware import device_spec
    from nest.hardware.calibration_file import (
        calibration_for,
        read_calibration,
    )

    found = read_calibration(path)
    families = []
    for name in dict.fromkeys(row.hardware or "" for row in rows):
        with contextlib.suppress(UnknownNameError):
            families.append(device_spec(name).family)
    if families and not any(found.of(family) for family in families):
        calibration_for(found, families[0], path)  # says what it is of
    return found


def _predict_all(
    rows: Sequence[Row],
    jobs: int,
    calibration: CalibrationFile | None,
    intervals: bool,
) -> Iterator[tuple[Assessment, Covered | None]]:
    """Predict rows, in their order, and their intervals if wanted."""
    predicted = functools.partial(
        _assess, calibration=calibration, intervals=intervals
    )
    if jobs == 1:
        yield from map(predicted, rows)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    executor = ProcessPoolExecutor(
        jobs,
        # A fork would inherit the handlers of signals.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=follow,
        initargs=(os.getpid(),),
    )
    with safe_environment():
        try:
            yield from executor.map(predicted, rows, chunksize=_CHUNK)
        finally:
            executor.shutdown(cancel_futures=True)


def _assess(
    row: Row, calibration: CalibrationFile | None, intervals: bool
) -> tuple[Assessment, Covered | None]:
    from nest.validation.report import assess

    if intervals:
        from nest.validation.coverage import assess_covered

        return assess_covered(row)
    if calibration is None:
        return assess(row, load_predictor()), None
    from nest.validation.predict import predict_under

    return assess(row, lambda row: predict_under(row, calibration)), None


T = TypeVar("T")

#: How long the rest takes is said when one in so many rows is done.
_SHARE_KNOWN = 10


def _progress(assessed: Iterator[T], total: int) -> Iterator[T]:
    """Pass them on with signs of life on standard error."""
    start_s = time.monotonic()
    with StatusLine() as line:
        for done, assessment in enumerate(assessed, 1):
            yield assessment
            elapsed_s = time.monotonic() - start_s
            # The first ones wait for processes to start.
            known = done * _SHARE_KNOWN >= total
            left = share_left(elapsed_s, done, total) if known else ""
            line.show(elapsed_s, f"{done} of {total} rows{left}")
