"""The table to write runs into."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib.resources import files

from nest.util.tables import fields_csv
from nest.validation.rows import COLUMNS, Row

#: The table with a run as it is written down: columns and cells of Korthikanti et al.
#: 2023, arXiv 2205.05198, Table 5, the model of 22 B parameters.
_TEXT = (files("nest.calibration") / "data" / "template.csv").read_text()

#: The cells of that run.
(TEMPLATE,) = csv.DictReader(io.StringIO(_TEXT))


def template_csv() -> str:
    """Return a CSV file with the columns of a run, and one published run."""
    return _TEXT


def is_example(row: Row) -> bool:
    """Whether a row is that of the template, left as it was."""
    step_s = float(TEMPLATE["iter_time_s"])
    return row.iter_time_s == step_s and cells_of(row) == {
        **TEMPLATE,
        "iter_time_s": "",
    }


def planned_csv(rows: Sequence[Row]) -> str:
    """Return runs to do as a CSV file without their step times."""
    cells = [cells_of(row) for row in rows]
    names = [name for name in COLUMNS if any(name in row for row in cells)]
    names.sort(key="iter_time_s".__eq__)  # what is measured comes last
    return fields_csv(names, (dict.fromkeys(names, "") | x for x in cells))


def cells_of(row: Row) -> dict[str, str]:
    """Return the cells of a run to do, those that are given."""
    cells = {}
    for name in COLUMNS:
        value = getattr(row, name)
        if name not in _NO_CELLS and value is not None:
            cells[name] = str(int(value)) if isinstance(value, bool) else str(value)
    return {**cells, "iter_time_s": ""}


_NO_CELLS = frozenset(
    {"iter_time_s", "status", "kind", "time_tier", "mem_tier", "source", "collected"}
)
