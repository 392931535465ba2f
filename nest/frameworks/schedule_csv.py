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

from msgspec.structs import replace

from nest.cost.orders import plan_schedule
from nest.cost.schedules import Schedule, schedule_of
from nest.cost.schedules.ordered import pass_text, read_order
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


def with_passes(
    plan: Plan, text: str, where: str, num_micro_batches: int | None = None
) -> tuple[str, Plan]:
    """Return a plan with the passes of a file, and the schedule of its job.

    Parameters
    ----------
    plan
        Its stages run them; where the chunks of a block sit is the file's.
    text, where
        The file, and its name for messages.
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
    size, num_chunks = plan.num_blocks, len(plan.stages)
    if len(cells) != size:
        raise InvalidPlanError(
            f"{where}: expected {size} rows, one for each block of the plan, "
            f"got {len(cells)}; take the schedule of as many ranks"
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
        return _paired(plan, cells, count, where)
    placement: Placement = "loop"
    if plan.virtual_stages == 2 and any(
        cell.startswith(f"{num_chunks - 1}{kind}")
        for cell in cells[0]
        for kind in "FBIW"
    ):
        placement = "v"
    schedule = read_order(
        *(cells, size, plan.virtual_stages, placement, count),
        f"{where}, row",
    )
    order = tuple(tuple(map(pass_text, passes)) for passes in schedule.lists)
    return ANY_ORDER, _placed(plan, placement, order, where)


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
    plan: Plan, cells: PassLists, count: int, where: str
) -> tuple[str, Plan]:
    """Return a plan whose job's schedule runs the pairs of a file."""
    for name in sorted(PAIRED):
        schedule = schedule_of(name)
        if (
            schedule.virtual_stages == plan.virtual_stages
            and schedule.why_not(plan.num_blocks, count) is None
            and count <= len(cells[0])
            and cells == cells_of(schedule, plan.num_blocks, count)
        ):
            return name, _placed(plan, schedule.placement, None, where)
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


def _placed(
    plan: Plan, placement: Placement, order: PassLists | None, where: str
) -> Plan:
    """Return a plan with its chunks and passes placed anew."""
    try:
        return replace(
            plan, placement=placement, order=order, problem_hash=None
        )
    except ValueError as error:
        raise InvalidPlanError(f"{where}: {error}") from None
