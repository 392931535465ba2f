"""The shortest schedule of a pass: its parts one by one, equal ones once."""

from __future__ import annotations

from collections.abc import Sequence

from nest.operator_schedule.checks import checked_cores
from nest.operator_schedule.parts import JobGroup, in_series
from nest.operator_schedule.records import Cores, Operator, PartOf, Placed, Schedule
from nest.operator_schedule.search import DEFAULT, How, check_solver, solve_part
from nest.operator_schedule.timetable import Timetable, mode_of, with_cores
from nest.solvers.base import Deadline, OutOfTimeError


def schedule(
    operators: Sequence[Operator],
    cores: Cores,
    *,
    solver: str = DEFAULT,
    time_limit_s: float | None = None,
    num_workers: int = 1,
    seed: int = 0,
) -> Schedule:
    """Return the shortest schedule, or the best one when time runs out.

    The operators are a DAG, in any order. ``solver``, a keyword of
    :data:`nest.operator_schedule.SOLVERS`, is for what bounds do not settle; the time
    limit is for all parts together. With one worker of the engine the schedule is the
    same every time; the makespan, where it is proven, always is.

    Raises ``InvalidProblemError`` if the operators are no such DAG, one has nothing to
    run on, or all of them take more than :data:`~.checks.MAX_TICKS`;
    ``UnknownNameError`` if there is no such solver; ``SolverError`` if an engine fails.
    """
    check_solver(solver)
    cores = checked_cores(operators, cores)
    how = How(Deadline(time_limit_s), num_workers, seed)
    placed: dict[str, Placed] = {}
    scheduled = []
    start = bound = 0
    for members, group in in_series(operators, cores):
        answer = solve_part(group, solver, how)
        names = tuple(operators[i].name for i in members)
        placed.update(zip(names, _placed(group, answer.table, start), strict=True))
        end = start + answer.length_ticks
        bound += answer.lower_bound_ticks
        scheduled.append(
            PartOf(
                operators=names,
                start_tick=start,
                end_tick=end,
                lower_bound_ticks=answer.lower_bound_ticks,
                channel_ticks=sum(
                    mode_of(job, whole).channel_ticks
                    for job, whole in zip(group.jobs, answer.table.whole, strict=True)
                ),
                proof=answer.proof,
            )
        )
        start = end
    _place_free(operators, placed)
    in_order = {operator.name: placed[operator.name] for operator in operators}
    return Schedule(start, bound, in_order, tuple(scheduled))


def makespan_ticks(
    operators: Sequence[Operator],
    cores: Cores,
    *,
    solver: str = DEFAULT,
    deadline: Deadline | None = None,
) -> int:
    """Return the length of the shortest schedule.

    As :func:`schedule` does, of operators that are known to be fit for it:
    they are not checked.

    Raises ``OutOfTimeError`` if it is not proven in time.
    """
    check_solver(solver)
    how = How(deadline or Deadline(None))
    total = 0
    for _, group in in_series(operators, Cores(*cores)):
        answer = solve_part(group, solver, how)
        if answer.proof == "none":
            raise OutOfTimeError
        total += answer.length_ticks
    return total


def quick_ticks(operators: Sequence[Operator], cores: Cores) -> tuple[int, bool]:
    """Return what no schedule is shorter than, and whether one is as short.

    As far as bounds and the own search settle it; as :func:`makespan_ticks`.
    """
    how = How(Deadline(None), quick=True)
    answers = [
        solve_part(group, DEFAULT, how)
        for _, group in in_series(operators, Cores(*cores))
    ]
    return (
        sum(answer.lower_bound_ticks for answer in answers),
        all(answer.proof != "none" for answer in answers),
    )


def _placed(group: JobGroup, table: Timetable, start: int) -> list[Placed]:
    placed = []
    for job, begin, whole, cores in zip(
        group.jobs, *table, with_cores(group, table), strict=True
    ):
        begin += start
        end = begin + mode_of(job, whole).ticks
        placed.append(Placed(begin, end, whole, *cores))
    return placed


def _place_free(operators: Sequence[Operator], placed: dict[str, Placed]) -> None:
    """Place operators that are free when what they read is there."""
    unplaced = [operator for operator in operators if operator.name not in placed]
    while unplaced:
        waiting = []
        for operator in unplaced:
            if any(name not in placed for name in operator.after):
                waiting.append(operator)
                continue
            at = max((placed[x].end_tick for x in operator.after), default=0)
            placed[operator.name] = Placed(at, at)
        unplaced = waiting
