"""``nest schedule``: the operators of a layer on the cores of a chip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from nest.cli.declare import option
from nest.cli.inputs import read_input
from nest.cli.options import Files, takes
from nest.errors import InvalidProblemError
from nest.requests.settings import redeclared
from nest.requests.solving import SeedRequest, TimeLimitRequest, WorkersRequest
from nest.requests.values import RefusedValueError, one_of

if TYPE_CHECKING:
    from nest.operator_schedule.records import Cores

#: As :data:`nest.operator_schedule.SOLVERS` names them, the default first.
SOLVERS = ("dp", "cpsat", "milp")

#: Maximum number of cores of a type.
_MAX_CORES = 2**20


def _cores(text: str) -> Cores:
    """Read cores by type, such as ``tensor=8,vector=2``."""
    from nest.operator_schedule.records import Cores

    counts: dict[str, int] = {}
    for entry in text.split(","):
        key, _, value = (word.strip() for word in entry.partition("="))
        if (
            key not in Cores._fields
            or key in counts
            or not (value.isascii() and value.isdecimal())
            or len(value) > len(str(_MAX_CORES))
            or int(value) > _MAX_CORES
        ):
            raise RefusedValueError(
                f"expected tensor=N,vector=N with whole numbers from 0 to "
                f"{_MAX_CORES}, got {text!r}; for example tensor=8,vector=2"
            )
        counts[key] = int(value)
    return Cores(counts.get("tensor", 0), counts.get("vector", 0))


@dataclass(frozen=True, kw_only=True)
class ScheduleRequest(
    TimeLimitRequest, WorkersRequest, SeedRequest, command="nest schedule"
):
    """Limits of the search for a schedule."""

    time_limit: float | None = redeclared(
        TimeLimitRequest,
        "time_limit",
        "Wall-clock seconds for every pass.  [default: none]",
    )
    workers: int | None = redeclared(
        WorkersRequest,
        "workers",
        "Threads of an engine; with more than one schedules of equal length "
        "may differ.  [default: 1]",
    )


@click.command("schedule")
@click.argument("path", metavar="LAYER")
@option(
    "--cores tensor=N,vector=N",
    "Cores of each type; one that is not named has none.",
    _cores,
    required=True,
)
@option(
    "--solver NAME",
    f"Of {', '.join(SOLVERS)}, for what bounds do not settle.",
    one_of(*SOLVERS),
    default=SOLVERS[0],
)
@takes(ScheduleRequest, "json_path")
def schedule_command(
    request: ScheduleRequest, files: Files, path: str, cores: Cores, solver: str
) -> int:
    """Schedule the operators of a layer on the cores of a chip.

    LAYER is a JSON or YAML file with operators, what they take on one core and on the
    whole chip, and what they read; '-' is standard input. docs/files.md describes it.
    The shortest schedule is shown, or the best one in time.
    """
    from nest.operator_schedule import schedule
    from nest.operator_schedule.checks import check_runs
    from nest.operator_schedule.layer_file import decode_layer
    from nest.present.schedule import schedule_block, schedule_document

    files.check(reads={"LAYER": path})
    where, data = read_input(path)
    layer = decode_layer(data, where)
    for name, operators in layer.passes.items():
        try:
            check_runs(operators, cores)
        except InvalidProblemError as error:
            raise InvalidProblemError(f"{where}: $.passes.{name}: {error}") from None
    schedules = {
        name: schedule(
            operators,
            cores,
            solver=solver,
            time_limit_s=request.time_limit,
            num_workers=request.workers or 1,
            seed=request.seed,
        )
        for name, operators in layer.passes.items()
    }
    if files.json_path != "-":
        files.show(*schedule_block(layer, cores, schedules))
    files.write_json(schedule_document(layer, cores, schedules))
    return 0
