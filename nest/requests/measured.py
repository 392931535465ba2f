"""``validate`` and ``calibrate``: predictions and measured runs."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from nest.errors import InvalidOptionError, UnknownNameError
from nest.requests.settings import Request, setting
from nest.requests.values import PathText, Words, both_given, integer, names, read_date
from nest.tasks.parallel import follow
from nest.util.interpreters import safe_environment
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.calibration.design import Candidates, Proposal
    from nest.calibration.runs import Learned
    from nest.hardware.calibration import CalibrationFile
    from nest.validation.coverage import Covered
    from nest.validation.report import Assessment, Selection
    from nest.validation.rows import Row

#: Rows that a process predicts before it reports.
_CHUNK = 16

#: Processes are worth their start from this many rows on.
_MANY_ROWS = 500


@dataclass(frozen=True)
class ValidateRequest(Request, command="nest validate"):
    """Predictions of measured runs."""

    path: PathText | None = setting(
        "[FILE]",
        "A CSV file of measurements.  [default: the published runs that are "
        "bundled with nest]",
    )
    _: KW_ONLY
    tiers: Words | None = setting("--tier A,B,…", "Only rows of these tiers.", names)
    precisions: Words | None = setting(
        "--precision A,B,…", "Only these precisions, such as bf16,fp16.", names
    )
    source: str | None = setting("--source TEXT", "Only sources with TEXT.")
    hardware: str | None = setting("--hardware TEXT", "Only devices with TEXT.")
    min_devices: int | None = setting(
        "--min-devices N", "Only rows of N devices or more.", integer(), unit="devices"
    )
    after: str | None = setting(
        "--after DATE",
        "Only rows collected on or after DATE, such as 2026-11-23.",
        read_date,
    )
    limit: int | None = setting(
        "--limit N", "Only the first N of these rows.", integer(), unit="rows"
    )
    jobs: int | None = setting(
        "--jobs N",
        f"Processes; by default one, for {_MANY_ROWS} rows or more one per CPU.",
        integer(1, num_cpus()),
    )
    calibration: PathText | None = setting(
        "--calibration FILE",
        "Predict with a user's own parameters, and only rows of its devices; "
        "see 'nest calibrate'.",
    )
    intervals: bool = setting(
        "--intervals",
        "Also say how many measured step times lie within their intervals.",
    )

    def check(self) -> None:
        """Refuse settings that contradict each other."""
        if self.intervals and self.calibration is not None:
            other = "--calibration, whose errors for other runs nobody knows"
            raise both_given("--intervals", other)

    @property
    def selection(self) -> Selection:
        """Which rows count."""
        from nest.validation.report import Selection

        names = ("tiers", "precisions", "source", "hardware", "min_devices", "after")
        values = {name: getattr(self, name) for name in names}
        return Selection(**{k: v for k, v in values.items() if v is not None})

    def read_rows(self) -> list[Row]:
        """Return the rows of the file, or the published ones."""
        from nest.validation.reading import published_rows

        if self.path is None:
            return published_rows()
        return _rows_of(self.path)[1]

    def select(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows to predict: for their time or for their memory."""
        selection = self.selection
        selected = [
            row
            for row in rows
            if selection.takes(row, row.time_tier) or selection.takes(row, row.mem_tier)
        ]
        if not selected:
            raise InvalidOptionError(
                f"FILE: expected a row that matches '{selection}', got none of "
                f"{len(rows)}; tiers here: {_listed(row.time_tier for row in rows)}; "
                f"precisions: {_listed(row.precision_class for row in rows)}; widen "
                f"the selection"
            )
        return selected[: self.limit]

    def predict(
        self, rows: Sequence[Row], details: bool = False
    ) -> Iterator[tuple[Assessment, Covered | None]]:
        """Predict rows, in their order, and their intervals if wanted.

        ``details`` have intervals too, but under a calibration.
        """
        calibration = _calibration(self.calibration, rows)
        intervals = self.intervals or (details and calibration is None)
        predicted = functools.partial(
            _assess, calibration=calibration, intervals=intervals
        )
        jobs = self.jobs or (num_cpus() if len(rows) >= _MANY_ROWS else 1)
        if jobs == 1:
            yield from map(predicted, rows)
            return
        import multiprocessing

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

    def document(
        self, pairs: Sequence[tuple[Assessment, Covered | None]], num_rows: int
    ) -> dict[str, Any]:
        """Return the document of predictions.

        ``num_rows`` is how many rows the file has.
        """
        from nest.validation.report import SHOWN, validation_document

        outcomes = [outcome for outcome, _ in pairs]
        is_whole = len(outcomes) == num_rows
        document = validation_document(
            outcomes, self.selection, SHOWN if is_whole else ()
        )
        if self.intervals:
            from nest.validation.coverage import coverage_figures

            document["intervals"] = coverage_figures(within for _, within in pairs)
        return document


def _rows_of(path: PathText) -> tuple[str, list[Row]]:
    """Return the name of a file for messages, and its rows."""
    from nest.ir.documents import read_stdin
    from nest.validation.reading import parse_rows, read_rows
    from nest.validation.rows import InvalidMeasurementsError

    where = os.fspath(path)
    if where != "-":
        return where, read_rows(where)
    where = "standard input"
    return where, parse_rows(read_stdin(InvalidMeasurementsError), where)


def _listed(values: Iterable[str | None]) -> str:
    return ", ".join(sorted({value for value in values if value})) or "none"


def _calibration(path: PathText | None, rows: Sequence[Row]) -> CalibrationFile | None:
    """Return the calibration of a file, which must be of some row's device."""
    if path is None:
        return None
    from nest.hardware import device_spec
    from nest.hardware.calibration_file import calibration_for, read_calibration

    path = os.fspath(path)
    calibration = read_calibration(path)
    families = []
    for name in dict.fromkeys(row.hardware or "" for row in rows):
        with contextlib.suppress(UnknownNameError):
            families.append(device_spec(name).family)
    if families and not any(calibration.of(family) for family in families):
        calibration_for(calibration, families[0], path)  # says what it is of
    return calibration


def _assess(
    row: Row, calibration: CalibrationFile | None, intervals: bool
) -> tuple[Assessment, Covered | None]:
    from nest.validation.report import assess

    if intervals:
        from nest.validation.coverage import assess_covered

        return assess_covered(row)
    from nest.validation import predict

    if calibration is None:
        return assess(row, predict.predict), None
    return assess(row, lambda row: predict.predict_under(row, calibration)), None


@dataclass(frozen=True)
class CalibrateRequest(Request, command="nest calibrate"):
    """Parameters of predictions, fitted to a user's own runs."""

    runs: PathText | None = setting(
        "[RUNS]", "A CSV file with 5 to 20 runs of one cluster."
    )
    _: KW_ONLY
    hardware: str | None = setting("--hardware TEXT", "Only runs on devices with TEXT.")
    interconnect: str | None = setting(
        "--interconnect TEXT", "Only runs on networks with TEXT."
    )
    devices_per_node: int | None = setting(
        "--devices-per-node N",
        "Only runs on nodes of N devices.",
        integer(),
        unit="devices",
    )
    accept: bool = setting(
        "--accept",
        "Take a factor above 1.4 that all runs are off by as the cluster's own; "
        "otherwise the command names its likely cause and stops.",
    )

    def learn(self, tell: Callable[[str], None] | None = None) -> Learned:
        """Fit the parameters to the runs."""
        from nest.calibration.runs import learn, runs_of

        if self.runs is None:
            raise InvalidOptionError(
                f"{self.COMMAND}: expected RUNS, got none; name a CSV file, "
                f"see 'nest calibrate --template'"
            )
        where, rows = _rows_of(self.runs)
        runs = runs_of(
            rows,
            where,
            self.hardware or "",
            self.interconnect or "",
            self.devices_per_node or 0,
        )
        if tell is not None:
            tell(f"{len(runs.rows)} runs")
        return learn(runs, tell=tell, accept=self.accept)

    def propose(
        self, learned: Learned, tell: Callable[[str], None] | None = None
    ) -> tuple[Candidates, list[Proposal]]:
        """Return candidates for the next runs, and those that tell most."""
        from nest.calibration.design import candidates, propose

        choices = candidates(learned, tell=tell)
        return choices, propose(learned, choices)
