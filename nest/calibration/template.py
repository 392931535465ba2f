"""The table to write runs into."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from nest.validation.rows import COLUMNS, Row

#: A run as it is written down: columns and cells of Korthikanti et al. 2023,
#: arXiv 2205.05198, Table 5, the model of 22 B parameters.
TEMPLATE = {
    "hardware": "A100-80GB-SXM",
    "interconnect": "8x200 Gb/s HDR InfiniBand per node",
    "devices_per_node": "8",
    "num_devices": "8",
    "model": "GPT 22B",
    "layers": "48",
    "hidden": "6144",
    "heads": "64",
    "kv_heads": "64",
    "ffn_hidden": "24576",
    "gated_mlp": "0",
    "vocab": "51200",
    "seq_len": "2048",
    "global_batch": "4",
    "micro_batch": "4",
    "tp": "8",
    "pp": "1",
    "vpp": "1",
    "dp": "1",
    "cp": "1",
    "ep": "1",
    "sp": "1",
    "zero_stage": "0",
    "recompute": "selective",
    "precision_class": "fp16",
    "framework": "Megatron-LM",
    "iter_time_s": "1.1",
}


def template_csv() -> str:
    """Return a CSV file with the columns of a run, and one published run."""
    return _csv([TEMPLATE])


def is_example(row: Row) -> bool:
    """Whether a row is that of the template, left as it was."""
    step_s = float(TEMPLATE["iter_time_s"])
    return row.iter_time_s == step_s and cells_of(row) == {
        **TEMPLATE,
        "iter_time_s": "",
    }


def planned_csv(rows: Sequence[Row]) -> str:
    """Return runs to do as a CSV file without their step times."""
    return _csv([cells_of(row) for row in rows])


def _csv(rows: list[dict[str, str]]) -> str:
    buffer = io.StringIO()
    names = [name for name in COLUMNS if any(name in row for row in rows)]
    names.sort(key="iter_time_s".__eq__)  # what is measured comes last
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def cells_of(row: Row) -> dict[str, str]:
    """Return the cells of a run to do, those that are given."""
    cells = {}
    for name in COLUMNS:
        value = getattr(row, name)
        if name not in _NO_CELLS and value is not None:
            cells[name] = (
                str(int(value)) if isinstance(value, bool) else str(value)
            )
    return {**cells, "iter_time_s": ""}


_NO_CELLS = frozenset(
    {"iter_time_s", "status", "kind", "time_tier", "mem_tier", "source"}
)
