"""Read measured runs from a CSV file, one row per run.

What other cells imply is filled in by :mod:`nest.validation.complete`.
"""

from __future__ import annotations

import csv
import io
import math
from datetime import date
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from nest.ir.documents import refusing, text_of
from nest.ir.io import read_bytes
from nest.units import MAX_TERM
from nest.util.text import closest
from nest.validation.complete import complete
from nest.validation.rows import (
    COLUMNS,
    MEASURED_COLUMNS,
    MEMORY_CLASSES,
    InvalidMeasurementsError,
    Row,
)

#: Maximum length of a cell, in characters; the stored rows have up to 125.
_MAX_CELL = 1000

#: Without one of these columns no row can be used.
REQUIRED_COLUMNS = ("hardware", "seq_len", "global_batch", "tp", "pp")

#: Of each of these one column is needed: the others follow from it.
ALTERNATIVE_COLUMNS = (
    ("layers", "model"),
    ("num_devices", "dp"),
    ("micro_batch", "grad_accum"),
    ("precision_class", "precision"),
    MEASURED_COLUMNS,
)

#: Columns that published tables have and that no prediction asks for.
UNUSED_COLUMNS = frozenset(
    (
        *("licence", "locator", "device_mem_gb", "params_b", "hfu"),
        *("mem_kind", "steady_mem_gib", "verified"),
        *("measured_fields", "derived_fields", "assumed_fields"),
    )
)

#: Columns that may hold 0; other counts start at 1.
_FROM_ZERO = frozenset(
    {
        *("experts", "topk", "moe_ffn_hidden", "shared_experts", "zero_stage"),
        "optimizer_bytes",
    }
)

#: How spreadsheets and data-frame libraries write a missing number.
_MISSING = frozenset({"", "nan", "none", "null", "na", "n/a", "<na>"})

_BOOLEANS = {
    **dict.fromkeys(("0", "0.0", "false", "off", "no"), False),
    **dict.fromkeys(("1", "1.0", "true", "on", "yes"), True),
}

#: Columns whose text is one of a few.
_CHOICES = {"mem_class": MEMORY_CLASSES}

#: Columns that have a largest value.
_MOST = {"zero_stage": 3, "gradient_bytes": 8, "optimizer_bytes": 64}


def read_rows(path: str | Path) -> list[Row]:
    """Read every row of a file of measurements, unusable ones included.

    It is a CSV file in UTF-8 with a line of column names: attributes of
    :class:`Row` and :data:`UNUSED_COLUMNS`.

    Raises ``InvalidMeasurementsError`` if the file cannot be read, is not a CSV file,
    has no row, lacks a column that every row needs, or has one that is not known.
    """
    data = read_bytes(path, InvalidMeasurementsError, "CSV file")
    return parse_rows(data, str(path))


def published_rows() -> list[Row]:
    """Return the runs of the package, see :func:`read_rows`.

    ``bench/measured_facts.py`` writes ``measured.csv``; docs/validation.md says where
    each comes from. Runs of ``collected.csv`` have the date of their collection:
    nothing was fitted to them, and they were predicted once, when all else was fixed.
    """
    folder = files("nest.validation") / "data"
    return [
        row
        for name in ("measured.csv", "collected.csv")
        for row in parse_rows((folder / name).read_bytes(), name)
    ]


def parse_rows(data: bytes, where: str = "measurements") -> list[Row]:
    """Read the bytes of a file of measurements; see :func:`read_rows`."""
    with refusing(where, InvalidMeasurementsError):
        text = text_of(data)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    try:
        header = next(filter(None, reader), None)
        if header is None:
            raise InvalidMeasurementsError(
                f"{where}: expected a line of column names, got an empty "
                f"file; check the path"
            )
        names = [name.strip() for name in header]
        _check_header(names, where)
        line = reader.line_num + 1
        for cells in reader:
            if max(map(len, cells), default=0) > _MAX_CELL:
                raise InvalidMeasurementsError(
                    f"{where}:{line}: expected cells of at most {_MAX_CELL} "
                    f"characters, got a longer one; shorten it"
                )
            if cells:
                rows.append(complete(_row(names, cells, line)))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InvalidMeasurementsError(
            f"{where}:{reader.line_num}: expected a CSV file, got malformed "
            f"text ({error}); correct the line"
        ) from error
    if not rows:
        raise InvalidMeasurementsError(
            f"{where}: expected at least one row, got only the column "
            f"names; add measurements"
        )
    return rows


def _check_header(names: list[str], where: str) -> None:
    beginning = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing:
        raise InvalidMeasurementsError(
            f"{where}: expected the columns {', '.join(missing)}, got only "
            f"{beginning[:200]!r}; add them or name another file"
        )
    for choices in ALTERNATIVE_COLUMNS:
        if not any(name in names for name in choices):
            raise InvalidMeasurementsError(
                f"{where}: expected one of the columns {', '.join(choices)}, "
                f"got none; add one"
            )
    for name in names:
        if name not in COLUMNS and name not in UNUSED_COLUMNS:
            other = closest(name, COLUMNS)
            hint = f"did you mean {other!r}? " if other else ""
            raise InvalidMeasurementsError(
                f"{where}: expected the columns of docs/validation.md, got "
                f"{name[:40]!r}; {hint}rename or remove it"
            )
    for name in names:
        if name in COLUMNS and names.count(name) > 1:
            raise InvalidMeasurementsError(
                f"{where}: expected distinct columns, got {name!r} twice; remove one"
            )


def _row(names: list[str], cells: list[str], line: int) -> Row:
    values: dict[str, object] = {}
    unreadable = []
    if len(cells) != len(names):
        unreadable.append(f"number of cells: expected {len(names)}, got {len(cells)}")
    for name, cell in zip(names, cells, strict=False):
        if name not in COLUMNS:
            continue
        try:
            value = _value(name, cell.strip())
        except ValueError as error:
            unreadable.append(f"{name}: {error}, got {cell.strip()[:40]!r}")
            continue
        if value is not None:
            values[name] = value
    return Row(line=line, unreadable=tuple(unreadable), **values)  # type: ignore[arg-type]


def _value(name: str, cell: str) -> str | bool | int | float | None:
    """Return what a cell says; ``ValueError`` says what was expected."""
    kind = COLUMNS[name]
    if kind is str:
        _check_choice(name, cell)
        if cell and name == "collected":
            return _date(cell)
        return cell or None
    if cell.lower() in _MISSING:
        return None
    if kind is bool:
        if cell.lower() not in _BOOLEANS:
            raise ValueError("expected 0 or 1")
        return _BOOLEANS[cell.lower()]
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if kind is float:
        if not 0 < value < math.inf:
            raise ValueError("expected a finite number > 0")
        # Other units of it, and quotients, stay finite.
        if not 1e-21 <= value <= 1e21:
            raise ValueError("expected a number from 1e-21 to 1e21")
        return value
    lowest, largest = 0 if name in _FROM_ZERO else 1, _MOST.get(name, MAX_TERM)
    if not (lowest <= value <= largest and value.is_integer()):
        up_to = f" and <= {largest}" if name in _MOST else ""
        raise ValueError(f"expected an integer >= {lowest}{up_to}")
    return int(value)


def _date(cell: str) -> str:
    try:
        return date.fromisoformat(cell).isoformat()
    except ValueError:
        raise ValueError("expected a date such as 2026-11-23") from None


def _check_choice(name: str, cell: str) -> None:
    choices = _CHOICES.get(name, ())
    if not cell or not choices or cell in choices:
        return
    close = get_close_matches(cell.lower(), choices, n=1, cutoff=0)
    raise ValueError(f"expected {', '.join(choices)} (the nearest is {close[0]})")
