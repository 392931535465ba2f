"""The MILP model as a file: LP or MPS, with what its numbers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from formulations.milp.variables import Model

#: What begins a comment.
_COMMENT = {".lp": "\\", ".mps": "*"}


def write_model(model: Model, path: Path, comments: list[str]) -> dict[str, Any]:
    """Write a model to a file that ends in ``.lp`` or ``.mps``.

    Numbers have twelve digits or more. Returns its units, and how large it is.
    """
    problem = model.engine
    comments = [
        *comments,
        f"Minimize T: one is {model.scale_quanta} quanta, the offset is 0.",
        f"In rows of memory one is {model.scale_bytes} bytes.",
    ]
    write = problem.writeLP if path.suffix == ".lp" else problem.writeMPS
    write(str(path))
    text = path.read_text(encoding="utf-8")
    mark = _COMMENT[path.suffix]
    lines = "".join(f"{mark} {line}\n" for line in comments)
    path.write_text(lines + text, encoding="utf-8")
    variables = problem.variables()
    return {
        "objective_quanta": model.scale_quanta,
        "size_bytes": model.scale_bytes,
        "num_rows": len(problem.constraints),
        "num_columns": len(variables),
        "num_integers": sum(x.cat == "Integer" for x in variables),
    }
