"""``nest validate``: predictions beside published measurements."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nest.cli.declare import integer, names, option
from nest.cli.inputs import people, write_text
from nest.cli.options import Options, takes
from nest.cli.progress import StatusLine
from nest.errors import InvalidOptionError
from nest.versions import num_cpus

if TYPE_CHECKING:
    from nest.validation.predict import Prediction, Skip
    from nest.validation.report import Assessment, Selection
    from nest.validation.rows import Row

#: Where the measurements are if no file is named, from the project's root.
DEFAULT_FILE = Path("..", "shared", "data", "measured", "measurements.csv")

#: Rows that a process predicts before it reports.
_CHUNK = 16


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
@option("--jobs N", "Processes.", integer(1, num_cpus()), default=1)
@option(
    "--details FILE",
    "Also write a CSV line per row; '-' is standard output.",
    None,
    "details_path",
)
@takes("json_path")
def validate_command(
    options: Options,
    path: str | None,
    limit: int | None,
    jobs: int,
    details_path: str | None,
    **chosen: Any,
) -> int:
    """Predict published runs and show how far off the cost model is.

    FILE is a CSV file of measurements, '-' for standard input; its columns
    are described in docs/validation.md. Rows that cannot be predicted are
    counted by reason.
    """
    from nest.report.table import show
    from nest.report.validation import validation_block
    from nest.validation.report import (
        SHOWN,
        Selection,
        details_csv,
        validation_document,
    )
    from nest.validation.rows import parse_rows, read_rows

    if path is None:
        path = _default_file()
    options.check_files(
        {"FILE": None if path == "-" else path}, {"--details": details_path}
    )
    if path == "-":
        rows = parse_rows(sys.stdin.buffer.read(), "standard input")
    else:
        rows = read_rows(path)
    selection = Selection(
        **{name: value for name, value in chosen.items() if value is not None}
    )
    selected = _select(rows, selection)[:limit]
    outcomes = list(_progress(_predict_all(selected, jobs), len(selected)))
    is_whole = len(selected) == len(rows)
    document = validation_document(
        outcomes, selection, SHOWN if is_whole else ()
    )
    show(people(options.json_path, details_path), *validation_block(document))
    options.write_json(document)
    if details_path is not None:
        write_text(details_path, details_csv(outcomes))
    return 0


def _default_file() -> str:
    if not DEFAULT_FILE.is_file():
        raise InvalidOptionError(
            f"FILE: expected a CSV file of measurements, got none, and there "
            f"is no {DEFAULT_FILE}; name a file"
        )
    return str(DEFAULT_FILE)


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


def _predict_all(rows: Sequence[Row], jobs: int) -> Iterator[Assessment]:
    """Predict rows, in their order."""
    if jobs == 1:
        yield from map(_assess, rows)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    executor = ProcessPoolExecutor(
        jobs,
        # A fork would inherit the handlers of signals.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_process,
    )
    try:
        yield from executor.map(_assess, rows, chunksize=_CHUNK)
    finally:
        executor.shutdown(cancel_futures=True)


def _start_process() -> None:
    """Leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _assess(row: Row) -> Assessment:
    from nest.validation.report import assess

    return assess(row, load_predictor())


def _progress(
    assessed: Iterator[Assessment], total: int
) -> Iterator[Assessment]:
    """Pass them on with signs of life on standard error."""
    start_s = time.monotonic()
    with StatusLine() as line:
        for done, assessment in enumerate(assessed, 1):
            yield assessment
            line.show(time.monotonic() - start_s, f"{done} of {total} rows")
