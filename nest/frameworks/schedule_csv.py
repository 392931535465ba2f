"""The order of passes in a CSV file, as PyTorch's pipeline runtime reads it.

Source: ``_PipelineScheduleRuntime._load_csv(…, format="compute_only")`` of
``torch.distributed.pipelining`` 2.13.0: a row per rank, a pass per cell, such
as ``3F5``; an empty cell is a bubble. Communication is passed over, as nest
prices its own. Rules: docs/exports.md, *Orders of passes*.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from nest.cost.orders import plan_schedule
from nest.cost.schedules import Pass, Schedule
from nest.cost.schedules.ordered import pass_text, read_order
from nest.errors import InvalidPlanError
from nest.ir.plan import PassLists, Placement, Plan
from nest.simulation.events import Simulation

NAME = "csv"
FILE = "schedule.csv"

_PASS = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})", re.ASCII)
_COMMUNICATION = re.compile(
    r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB]\d+)", re.ASCII
)


def export(simulation: Simulation) -> dict[str, str | bytes]:
    """Return the passes of a plan as a file, with a README."""
    problem, plan = simulation.problem, simulation.plan
    count = simulation.score.num_micro_batches
    schedule = plan_schedule(problem.job, plan, count)
    cells = cells_of(schedule, plan.num_blocks, count)
    readme = (
        f"# {problem.name}: {count} micro-batches, {len(plan.stages)} stages "
        f"on {plan.num_blocks} pipeline ranks ({plan.placement}).\n"
        f"_PipelineScheduleRuntime(stages, {count}, …)._load_csv({FILE!r})\n"
    )
    return {FILE: csv_text(cells), "README": readme}


def cells_of(schedule: Schedule, num_blocks: int, num_micro_batches: int) -> PassLists:
    """Return the cells of every row; two paired passes share one."""
    return tuple(
        tuple(_cells(schedule.passes(block, num_blocks, num_micro_batches)))
        for block in range(num_blocks)
    )


def _cells(passes: Iterable[Pass]) -> Iterator[str]:
    first = None
    for run in passes:
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
) -> Plan:
    """Return a plan whose stages run the passes of a file.

    Where the chunks of a block sit is the file's. Other parameters, and
    errors, are those of :func:`read`.
    """
    placement, order = read(
        text, where, plan.num_blocks, plan.virtual_stages, num_micro_batches
    )
    try:
        return replace(plan, placement=placement, order=order, problem_hash=None)
    except ValueError as error:
        raise InvalidPlanError(f"{where}: {error}") from None


def read(
    text: str,
    where: str,
    num_blocks: int,
    virtual_stages: int,
    num_micro_batches: int | None = None,
) -> tuple[Placement, PassLists]:
    """Return where chunks sit in a file, and the passes of every block.

    ``virtual_stages`` are chunks of each block; without ``num_micro_batches`` those of
    the file count.

    Raises ``InvalidPlanError`` if the file has other stages or micro-batches, an
    unknown cell, or passes that are missing, twice, or wait for each other; the text
    names row and pass.
    """
    rows = [*_read_rows(text, where)]
    num_chunks = num_blocks * virtual_stages
    if len(rows) != num_blocks:
        raise InvalidPlanError(
            f"{where}: expected {num_blocks} rows, one for each block of the "
            f"plan, got {len(rows)}; take the schedule of as many ranks"
        )
    count, order, turns = 0, [], False
    for row_number, row in enumerate(rows, 1):
        for stage, letter, micro_batch in row:
            count = max(count, micro_batch + 1)
            turns |= row_number == 1 and stage == num_chunks - 1
            if stage >= num_chunks:
                raise InvalidPlanError(
                    f"{where}, row {row_number}: expected stages 0 to "
                    f"{num_chunks - 1}, those of the plan, got "
                    f"{stage}{letter}{micro_batch}; take the schedule of as many stages"
                )
        order.append(tuple(f"{s}{x}{m}" for s, x, m in row))
    placement: Placement = "v" if turns and virtual_stages == 2 else "loop"
    read_order(
        *(tuple(order), num_blocks, virtual_stages, placement),
        *(num_micro_batches or count, f"{where}, row"),
    )
    return placement, tuple(order)


def _read_rows(text: str, where: str) -> Iterator[list[tuple[int, str, int]]]:
    """Yield the passes of every row: stage, kind and micro-batch."""
    try:
        for row_number, row in enumerate(csv.reader(text.splitlines()), 1):
            passes = []
            for cell in map(str.strip, row):
                match = _PASS.fullmatch(cell)
                if match is not None:
                    passes.append((int(match[1]), match[2], int(match[3])))
                elif cell and not _COMMUNICATION.fullmatch(cell):
                    raise InvalidPlanError(
                        f"{where}, row {row_number}: expected single passes "
                        f"such as 3F5 (stage 3, micro-batch 5; F, B, I or W), "
                        f"got {cell[:40]!r}; correct it"
                    )
            yield passes
    except csv.Error as error:
        raise InvalidPlanError(
            f"{where}: expected a CSV file, got {error}; correct it"
        ) from None
