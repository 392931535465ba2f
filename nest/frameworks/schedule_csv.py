"""The order of passes in a CSV file, as PyTorch's pipeline runtime reads it.

Source: ``_PipelineScheduleRuntime._load_csv(…, format="compute_only")`` of
``torch.distributed.pipelining`` 2.13.0: a row per rank, a pass per cell, such
as ``3F5``; an empty cell is a bubble. Communication that a file of
``_dump_csv`` has is passed over: PyTorch can derive it, and nest prices its
own. Rules: docs/exports.md, *Orders of passes*.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from nest.cost.orders import plan_schedule
from nest.cost.schedules import Schedule, schedule_of
from nest.cost.schedules.ordered import order_of, pass_text, read_order
from nest.errors import InvalidPlanError
from nest.ir.job import ANY_ORDER, PAIRED
from nest.ir.plan import PassLists, Placement, Plan
from nest.simulation.events import Simulation

NAME = "csv"
FILE = "schedule.csv"

_PASS = re.compile(r"(\d{1,9})[FBIW](\d{1,9})", re.ASCII)
_PAIR = re.compile(
    r"\(\d{1,9}F\d{1,9};\d{1,9}[BI]\d{1,9}\)OVERLAP_F_B", re.ASCII
)
_COMMUNICATION = re.compile(
    r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB]\d+)", re.ASCII
)


def export(simulation: Simulation) -> dict[str, str | bytes]:
    """Return the passes of a plan as a file, with a README."""
    problem, plan = simulation.problem, simulation.plan
    count = simulation.score.num_micro_batches
    cells = cells_of(
        plan_schedule(problem.job, plan, count), plan.num_blocks, count
    )
    readme = (
        f"# {problem.name}: {count} micro-batches, {len(plan.stages)} stages "
        f"on {plan.num_blocks} pipeline ranks ({plan.placement}).\n"
        f"_PipelineScheduleRuntime(stages, {count}, …)._load_csv({FILE!r})\n"
    )
    return {FILE: csv_text(cells), "README": readme}


def cells_of(
    schedule: Schedule, num_blocks: int, num_micro_batches: int
) -> PassLists:
    """Return the cells of every row; two paired passes share one."""
    return tuple(
        tuple(_cells(schedule, block, num_blocks, num_micro_batches))
        for block in range(num_blocks)
    )


def _cells(
    schedule: Schedule, block: int, num_blocks: int, num_micro_batches: int
) -> Iterator[str]:
    """Yield the cells of a row."""
    first = None
    for run in schedule.passes(block, num_blocks, num_micro_batches):
        text = pass_text(run)
        if run.paired:
            first = text
            continue
        yield text if first is None else f"({first};{text})OVERLAP_F_B"
        first = None


def csv_text(cells: PassLists) -> str:
    """Return the text of a file."""
    return "".join(f"{','.join(row)}\n" for row in cells)


class Passes(NamedTuple):
    """What a file says.

    Attributes
    ----------
    schedule
        ``any``, or the schedule of the pairs that it has.
    placement
        Where chunks sit.
    order
        As of a plan; ``None`` of pairs.
    """

    schedule: str
    placement: Placement
    order: PassLists | None


def with_passes(
    plan: Plan, text: str, where: str, num_micro_batches: int | None = None
) -> tuple[str, Plan]:
    """Return a plan with the passes of a file, and the schedule of its job.

    Its stages run them; where the chunks of a block sit is the file's. Other
    parameters, and errors, are those of :func:`read`.
    """
    read_passes = read(
        text, where, plan.num_blocks, plan.virtual_stages, num_micro_batches
    )
    try:
        ordered = replace(
            plan,
            placement=read_passes.placement,
            order=read_passes.order,
            problem_hash=None,
        )
    except ValueError as error:
        raise InvalidPlanError(f"{where}: {error}") from None
    return read_passes.schedule, ordered


def read(
    text: str,
    where: str,
    num_blocks: int,
    virtual_stages: int,
    num_micro_batches: int | None = None,
) -> Passes:
    """Return the passes of a file.

    Parameters
    ----------
    text, where
        The file, and its name for messages.
    num_blocks, virtual_stages
        Blocks of the plan, and chunks of each.
    num_micro_batches
        Those of the plan; ``None`` for those of the file.

    Raises
    ------
    InvalidPlanError
        If the file has other stages or micro-batches, an unknown cell, or
        passes that are missing, twice, or wait for each other; the text
        names row and pass.
    """
    cells = _read_cells(text, where)
    num_chunks = num_blocks * virtual_stages
    if len(cells) != num_blocks:
        raise InvalidPlanError(
            f"{where}: expected {num_blocks} rows, one for each block of the "
            f"plan, got {len(cells)}; take the schedule of as many ranks"
        )
    count = 0
    for row_number, row in enumerate(cells, 1):
        for cell in row:
            for stage, micro_batch in _PASS.findall(cell):
                count = max(count, int(micro_batch) + 1)
                if int(stage) >= num_chunks:
                    raise InvalidPlanError(
                        f"{where}, row {row_number}: expected stages 0 to "
                        f"{num_chunks - 1}, those of the plan, got {cell}; "
                        f"take the schedule of as many stages"
                    )
    count = num_micro_batches or count
    if any(map(_PAIR.fullmatch, chain(*cells))):
        return _paired(cells, virtual_stages, count, where)
    turns = virtual_stages == 2 and any(
        int(stage) == num_chunks - 1
        for cell in cells[0]
        for stage, _ in _PASS.findall(cell)
    )
    placement: Placement = "v" if turns else "loop"
    schedule = read_order(
        *(cells, num_blocks, virtual_stages, placement, count),
        f"{where}, row",
    )
    order = order_of(schedule, num_blocks, count)
    return Passes(ANY_ORDER, placement, order)


def _read_cells(text: str, where: str) -> PassLists:
    """Return the passes of every row as texts, without communication."""
    rows = []
    try:
        for row_number, row in enumerate(csv.reader(text.splitlines()), 1):
            cells = [cell.strip() for cell in row]
            for cell in cells:
                if not (
                    cell == ""
                    or _PASS.fullmatch(cell)
                    or _PAIR.fullmatch(cell)
                    or _COMMUNICATION.fullmatch(cell)
                ):
                    raise InvalidPlanError(
                        f"{where}, row {row_number}: expected passes such as "
                        f"3F5 (stage 3, micro-batch 5; F, B, I or W), got "
                        f"{cell[:40]!r}; correct it"
                    )
            rows.append(
                tuple(x for x in cells if x and not _COMMUNICATION.match(x))
            )
    except csv.Error as error:
        raise InvalidPlanError(
            f"{where}: expected a CSV file, got {error}; correct it"
        ) from None
    return tuple(rows)


def _paired(
    cells: PassLists, virtual_stages: int, count: int, where: str
) -> Passes:
    """Return the schedule that runs the pairs of a file."""
    size = len(cells)
    for name in sorted(PAIRED):
        schedule = schedule_of(name)
        if (
            schedule.virtual_stages == virtual_stages
            and schedule.why_not(size, count) is None
            and count <= len(cells[0])
            and cells == cells_of(schedule, size, count)
        ):
            return Passes(name, schedule.placement, None)
    row_number, pair = next(
        (row_number, cell)
        for row_number, row in enumerate(cells, 1)
        for cell in row
        if _PAIR.fullmatch(cell)
    )
    raise InvalidPlanError(
        f"{where}, row {row_number}: expected single passes, or the pairs of "
        f"{' or '.join(sorted(PAIRED))}, got {pair}; write the two passes in "
        f"cells of their own"
    )
