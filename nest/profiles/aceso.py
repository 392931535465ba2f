"""Import per-operator CSV files as the profiler of Aceso writes them.

Source: Liu et al. 2024, "Aceso: Efficient Parallel DNN Training through
Iterative Bottleneck Alleviation" (EuroSys '24); the profiled times in its
public repository. A file has one line per operator of a GPT model in
Megatron-LM on one device, at one micro-batch ``mbs``, tensor parallel degree
``tp`` and way of cutting the matrices ``algo`` (0 cuts as Megatron-LM does),
all of which its name states: ``gpt_13B_mbs1_tp2_algo0.csv``.

Columns and layers are listed in docs/profiles.md.

Collectives
    From ``tp`` 2 on the times contain the tensor parallel collectives. With
    the same work per device (``mbs`` 2 on ``tp`` 2, ``mbs`` 1 on ``tp`` 1) the
    product before an all-reduce of 40 MB takes 1.23 ms longer; that
    all-reduce alone was measured at 1.14 ms.

Kept activations
    Every operator lists what it allocates, but three outputs are not needed
    backward: the scores (the softmax keeps its own output) and the sums that
    enter the two residual dropouts (these keep their mask). Without them the
    13B layer of one sample keeps 1140 MB, which is ``34sbh + 5as²b`` of
    Korthikanti et al. 2022 (arXiv 2205.05198, §4.1). The output of the
    embedding is the input that the first layer counts.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from nest.errors import InvalidOptionError, UnknownNameError
from nest.ir.base import check_integer
from nest.ir.io import read_text
from nest.models.blocks import Block, Head, Tower, unusual
from nest.models.graphs import count_layer
from nest.models.operators.base import Execution, Node, Split
from nest.profiles.format import (
    DTYPE_BYTES,
    PEAK_TOLERANCE,
    Entry,
    InvalidProfileError,
    Profile,
    peak_of,
)
from nest.units import MAX_TERM

#: Bytes of an MB, and ns of a µs, as the files use them.
MB = 2**20
NS_PER_US = 1000

#: Largest relative difference of the weights from those of the model: norms
#: round to 0.000 MB.
WEIGHT_TOLERANCE = 0.05

#: The files are of an attention of single operators.
UNFUSED = Execution(flash_attention=False)

_EMBEDDING = "encoder-embedding"

#: Operators of an embedding, of one layer and of a head, each with the name
#: of its matrix product in :mod:`nest.models.operators`, if it has one.
OPERATORS: dict[str, dict[str, str | None]] = {
    "embedding": {_EMBEDDING: None},
    "decoder": {
        "enc-1st-layernorm": None,
        "enc-attention-qkv": "qkv",
        "enc-attention-score": "scores",
        "enc-attention-softmax": None,
        "enc-attention-dropout": None,
        "enc-attention-context": "context",
        "enc-attention-dense": "attention output",
        "enc-post-attention-dropout": None,
        "enc-2nd-layernorm": None,
        "enc-MLP-GEMM-1": "mlp up",
        "enc-MLP-gelu": None,
        "enc-MLP-GEMM-2": "mlp down",
        "enc-post-MLP-dropout": None,
    },
    "head": {"final-layernorm": None, "gpt-post-process": "output layer"},
}

#: Operators whose output the backward pass does not need.
NOT_KEPT = ("enc-attention-score", "enc-attention-dense", "enc-MLP-GEMM-2")

_TIMES = {"forward": "forward-compute", "backward": "backward-compute"}
_NUMBERS = (*_TIMES.values(), "output_size", "weights", "activations")
_FILE_NAME = re.compile(
    r"(?P<model>.+)_mbs(?P<samples>\d+)_tp(?P<tp>\d+)"
    r"_algo(?P<algorithm>\d+)\.csv"
)


class Measured(NamedTuple):
    """One line of a file: its number, and its figures by column."""

    line: int
    figures: dict[str, float]


class File(NamedTuple):
    """A file and what its name says."""

    path: Path
    model: str
    samples: int
    tp: int
    algorithm: int


def import_aceso(
    paths: Sequence[str | Path],
    *,
    model: str,
    tower: Tower,
    head: Head,
    device: str,
    peak_flops: Mapping[str, float],
    dtype: str = "fp16",
    algorithm: int = 0,
) -> Profile:
    """Return the profile in per-operator files.

    ``paths`` are files, and folders of which all CSV files are read. They must agree
    with the model, which has one tower and ran in ``dtype`` (fp16 or bf16) on a device
    with such peak FLOP/s by data type. ``algorithm`` is the way of cutting matrices to
    take.

    Raises ``InvalidProfileError`` if a file cannot be read, lacks a column or an
    operator, or has a figure that cannot be right: negative, faster than the peak, of
    another model; the text names file, line and column. Raises ``InvalidOptionError``
    if the model is not of the kind that these files describe, or no file has the
    algorithm.
    """
    runs = tower.runs
    plain = (
        len(runs) == 1
        and tower.vocabulary > 0
        and not runs[0].block.mlp.experts
        and not runs[0].block.attention.key_value_rank
        and runs[0].block.cross_attention is None
        and unusual(tower, head) is None
    )
    if not plain:
        raise InvalidOptionError(
            f"--model: expected a model of equal dense layers with ordinary "
            f"attention, got {model}; choose the model that was profiled"
        )
    shapes: dict[str, Tower | Block | Head] = {
        "embedding": tower,
        "decoder": runs[0].block,
        "head": head,
    }
    peak = peak_of(dict(peak_flops), dtype)
    entries: list[Entry] = []
    files = _files(paths, algorithm)
    for file in files:
        rows = _read(file.path)
        where = str(file.path)
        split = Split(
            tp=file.tp,
            samples=file.samples,
            sequence_length=_sequence_length(
                where, rows[_EMBEDDING], file.samples, tower.hidden, dtype
            ),
            sequence_parallel=False,
        )
        for kind, shape in shapes.items():
            node = count_layer(shape, tower, split, UNFUSED)
            figures = {name: rows[name] for name in OPERATORS[kind]}
            _check_products(where, kind, figures, node, peak)
            weights_mb = DTYPE_BYTES[dtype] * node.weights / MB
            _check_weights(where, f"{kind} of {model}", figures, weights_mb)
            name = runs[0].block.name if kind == "decoder" else kind
            try:
                entries.append(_entry(model, name, figures, node, split))
            except ValueError as error:
                raise InvalidProfileError(
                    f"{where}: {kind}: {error}; measure it again"
                ) from None
    return Profile(
        source=f"per-operator files of {files[0].model}, algorithm {algorithm}",
        device=device,
        framework="Megatron-LM",
        dtype=dtype,
        sequence_parallel=False,
        entries=tuple(entries),
    )


def _files(paths: Sequence[str | Path], algorithm: int) -> tuple[File, ...]:
    """Return the files to read, in order of their names' figures."""
    named: list[File] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(path.glob("*.csv"))
            if not inside:
                raise InvalidProfileError(
                    f"{path}: expected CSV files in the folder, got none; "
                    f"name another one"
                )
        else:
            inside = [path]
        named += map(_named, inside)
    files = [file for file in named if file.algorithm == algorithm]
    if not files:
        there = sorted({file.algorithm for file in named})
        raise InvalidOptionError(
            f"--algorithm: expected one of {', '.join(map(str, there))}, "
            f"which the files have, got {algorithm}; choose one of them"
        )
    for file in files:
        if file.model != files[0].model:
            raise InvalidProfileError(
                f"{file.path}: expected a file of {files[0].model}, as {files[0].path} "
                f"is, got one of {file.model}; import them apart"
            )
    files.sort(key=lambda file: (file.tp, file.samples))
    for one, other in pairwise(files):
        if (one.tp, one.samples) == (other.tp, other.samples):
            raise InvalidProfileError(
                f"{other.path}: expected one file of tp {one.tp} and mbs "
                f"{one.samples}, got {one.path} too; leave one out"
            )
    return tuple(files)


def _named(path: Path) -> File:
    match = _FILE_NAME.fullmatch(path.name)
    if match is None:
        raise InvalidProfileError(
            f"{path}: expected a name such as gpt_13B_mbs1_tp2_algo0.csv, "
            f"got {path.name}; rename the file"
        )
    sizes = {key: int(match[key]) for key in ("samples", "tp", "algorithm")}
    for key in ("samples", "tp"):
        try:
            check_integer(key, sizes[key], 1)
        except ValueError as error:
            raise InvalidProfileError(f"{path}: {error}; rename the file") from None
    return File(path, match["model"], **sizes)


def _read(path: Path) -> dict[str, Measured]:
    """Return the lines of a file by the name of their operator."""
    text = read_text(path, InvalidProfileError, "CSV file")
    try:
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InvalidProfileError(
            f"{path}: expected a readable CSV file, got {error}; check the path"
        ) from error
    header = [name.strip() for name in lines[0]] if lines else []
    for column in ("op_name", *_NUMBERS):
        if column not in header:
            raise InvalidProfileError(
                f"{path}:1: expected column {column!r}, got "
                f"{', '.join(header) or 'an empty file'}; add it"
            )
    operators = [name for names in OPERATORS.values() for name in names]
    rows: dict[str, Measured] = {}
    for line, cells in enumerate(lines[1:], start=2):
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise InvalidProfileError(
                f"{path}:{line}: expected {len(header)} cells, got "
                f"{len(cells)}; complete the line"
            )
        row = dict(zip(header, cells, strict=True))
        name = row["op_name"].strip()
        if name not in operators:
            raise UnknownNameError(f"{path}:{line}: op_name", name, operators)
        if name in rows:
            raise InvalidProfileError(
                f"{path}:{line}: op_name: expected every operator once, "
                f"got {name} again; remove one line"
            )
        rows[name] = Measured(
            line,
            {column: _number(path, line, column, row[column]) for column in _NUMBERS},
        )
    for name in operators:
        if name not in rows:
            raise InvalidProfileError(
                f"{path}: expected a line for operator {name}, got none; add it"
            )
    return rows


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    is_time = column in _TIMES.values()
    in_range = 0 <= value <= MAX_TERM / MB
    if not in_range or (is_time and value == 0):
        expected = "µs > 0" if is_time else "MB >= 0"
        raise InvalidProfileError(
            f"{path}:{line}: {column}: expected a number of {expected}, "
            f"got {text.strip()!r}; correct the value"
        )
    return value


def _sequence_length(
    where: str, row: Measured, samples: int, hidden: int, dtype: str
) -> int:
    """Return ``s`` from the embedding's output of ``b·s·h`` values."""
    size_mb = row.figures["output_size"]
    per_token = samples * hidden * DTYPE_BYTES[dtype]
    length = size_mb * MB / per_token
    # The files round sizes to 0.001 MB.
    if length < 1 or abs(length - round(length)) > 0.0005 * MB / per_token:
        raise InvalidProfileError(
            f"{where}:{row.line}: output_size: expected a whole number of tokens of "
            f"{per_token} bytes ({samples} samples, hidden width {hidden}, {dtype}), "
            f"got {length:.3f} in {size_mb} MB; check --model and --dtype"
        )
    return round(length)


def _check_products(
    where: str, kind: str, rows: dict[str, Measured], node: Node, peak: float | None
) -> None:
    """Refuse a matrix product that ran faster than the device's peak."""
    if peak is None:
        return
    operators = {operator.name: operator for operator in node.operators}
    for name, row in rows.items():
        counted = OPERATORS[kind][name]
        if counted is None:
            continue
        for phase, column in _TIMES.items():
            flops = getattr(operators[counted], f"{phase}_flops")
            least_us = 1e6 * flops / (peak * PEAK_TOLERANCE)
            if row.figures[column] < least_us:
                raise InvalidProfileError(
                    f"{where}:{row.line}: {column}: expected >= {least_us:.3f} "
                    f"({flops:.4g} FLOP at {peak / 1e12:.4g} TFLOP/s), got "
                    f"{row.figures[column]:.6g}; check the units: {column} is in µs"
                )


def _check_weights(
    where: str, what: str, rows: dict[str, Measured], expected_mb: float
) -> None:
    """Refuse the weights of another model."""
    got_mb = math.fsum(row.figures["weights"] for row in rows.values())
    if abs(got_mb - expected_mb) > WEIGHT_TOLERANCE * expected_mb:
        first = next(iter(rows.values())).line
        raise InvalidProfileError(
            f"{where}:{first}: weights: expected about {expected_mb:.3f} MB "
            f"({what}), got {got_mb:.3f}; check --model"
        )


def _entry(
    model: str, kind: str, rows: dict[str, Measured], node: Node, split: Split
) -> Entry:
    """Sum the operators of one layer."""

    def total(column: str) -> float:
        return math.fsum(row.figures[column] for row in rows.values())

    kept_mb = total("activations") - math.fsum(
        rows[name].figures["activations"] for name in NOT_KEPT if name in rows
    )
    if _EMBEDDING in rows:
        kept_mb -= rows[_EMBEDDING].figures["output_size"]
    forward_flops, backward_flops = node.flops()
    return Entry(
        model=model,
        kind=kind,
        tp=split.tp,
        samples=split.samples,
        sequence_length=split.sequence_length,
        # Whole ns: the files give no more.
        forward_ns=round(NS_PER_US * total(_TIMES["forward"])),
        backward_ns=round(NS_PER_US * total(_TIMES["backward"])),
        includes_tp_collectives=split.tp > 1,
        kept_bytes=max(round(kept_mb * MB), 0),
        weight_bytes=round(total("weights") * MB),
        forward_flops=float(forward_flops),
        backward_flops=float(backward_flops),
    )
