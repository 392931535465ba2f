"""The shortest timetable of a part: what bounds settle, and what engines do.

First without the memory channel: then jobs that meet no other drop out, and
what is left falls into pieces. Where the channel takes longer than the jobs
do, the part is scheduled anew, as a whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, cast

from nest.errors import SolverError, UnknownNameError
from nest.operator_schedule.bounds import lower_bound_ticks
from nest.operator_schedule.parts import JobGroup
from nest.operator_schedule.quick import quick_timetable
from nest.operator_schedule.reduce import in_pieces, with_fewer_modes, without_channel
from nest.operator_schedule.timetable import Timetable, faults, is_whole, length_ticks
from nest.solvers.base import Deadline, OutOfTimeError

#: By keyword, where the function is that schedules a part.
SOLVERS = {
    "dp": "nest.operator_schedule.blocks:schedule_part",
    "cpsat": "formulations.schedule.cpsat:schedule_part",
    "milp": "formulations.schedule.milp:schedule_part",
}

DEFAULT = "dp"

#: What schedules a part that ``dp`` gives up.
BEHIND_DP = "cpsat"

#: What proves a part, from what is least work on.
PROOFS = ("single", "bound", *SOLVERS, "none")

#: Parts and pieces of which the shortest timetable is kept.
MAX_KEPT = 2**16


class How(NamedTuple):
    """Settings of an engine.

    ``quick`` says whether to leave open what ``dp`` gives up, or takes long for.
    """

    deadline: Deadline
    num_workers: int = 1
    seed: int = 0
    quick: bool = False


class ScheduleBounds(NamedTuple):
    """The best timetable of a part, and a lower bound.

    ``proof`` is as :attr:`~nest.operator_schedule.records.PartOf.proof`.
    """

    table: Timetable
    length_ticks: int
    lower_bound_ticks: int
    proof: str


#: Schedules a part, given a timetable and what none is shorter than; returns
#: a timetable, if it has one, and what none is shorter than as far as it is
#: known. With ``None`` and the same bound it has given up.
PartSolver = Callable[[JobGroup, Timetable, int, How], tuple[Timetable | None, int]]

_kept: OrderedDict[tuple[str, JobGroup], ScheduleBounds] = OrderedDict()


def check_solver(solver: str) -> None:
    """Raise ``UnknownNameError`` if there is no such solver."""
    if solver not in SOLVERS:
        raise UnknownNameError("solver", solver, SOLVERS)


def solve_part(group: JobGroup, solver: str, how: How) -> ScheduleBounds:
    """Return the shortest timetable of a part, or the best one in time."""
    return _once(_solve, group, solver, how)


def _once(
    solve: Callable[[JobGroup, str, How], ScheduleBounds],
    group: JobGroup,
    solver: str,
    how: How,
) -> ScheduleBounds:
    """Solve a part, unless an equal one has been proven before."""
    key = (solver, group)
    answer = _kept.get(key)
    if answer is not None:
        _kept.move_to_end(key)
        return answer
    answer = solve(group, solver, how)
    if answer.proof != "none":
        _kept[key] = answer
        if len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
    return answer


def _solve(group: JobGroup, solver: str, how: How) -> ScheduleBounds:
    if len(group.jobs) == 1:
        table = Timetable((0,), (is_whole(group.jobs[0]),))
        ticks = group.jobs[0].least_ticks
        return ScheduleBounds(table, ticks, ticks, "single")
    quick = _in_pieces(without_channel(group), solver, how)
    length = length_ticks(group, quick.table)
    if length == quick.lower_bound_ticks:
        return quick
    # The channel takes longer than the jobs do, or that is not proven.
    bound = max(quick.lower_bound_ticks, lower_bound_ticks(group))
    fewer = with_fewer_modes(group)
    answer = _schedule(fewer, bound, solver, how)
    if length < answer.length_ticks:
        return quick._replace(lower_bound_ticks=answer.lower_bound_ticks, proof="none")
    return answer


def _in_pieces(group: JobGroup, solver: str, how: How) -> ScheduleBounds:
    """Schedule a part without its memory channel, piece by piece."""
    starts = [0] * len(group.jobs)
    whole = [False] * len(group.jobs)
    proof = "bound"
    now = bound = 0
    pieces = in_pieces(group)

    def alone(numbers: list[int]) -> int:
        taken = 0
        for i in numbers:
            starts[i] = now + taken
            whole[i] = is_whole(group.jobs[i])
            taken += group.jobs[i].least_ticks
        return taken

    now += alone(pieces.first)
    for members, piece in pieces.between:
        answer = _once(_solve_piece, piece, solver, how)
        for i, start, mode in zip(members, *answer.table, strict=True):
            starts[i] = now + start
            whole[i] = mode
        now += answer.length_ticks
        bound += answer.lower_bound_ticks - answer.length_ticks
        proof = max(proof, answer.proof, key=PROOFS.index)
    now += alone(pieces.last)
    table = Timetable(tuple(starts), tuple(whole))
    return ScheduleBounds(table, now, now + bound, proof)


def _solve_piece(group: JobGroup, solver: str, how: How) -> ScheduleBounds:
    """Schedule a piece, in which no job needs the memory channel."""
    return _schedule(group, lower_bound_ticks(group), solver, how)


def _schedule(group: JobGroup, bound: int, solver: str, how: How) -> ScheduleBounds:
    """Schedule jobs as they are, by another engine where ``dp`` gives up."""
    table = quick_timetable(group, bound)
    answer = _run(group, table, bound, solver, how)
    if answer.proof == "none" and solver == "dp" and not how.quick:
        answer = _run(group, table, bound, BEHIND_DP, how)
    return answer


def _run(
    group: JobGroup, table: Timetable, bound: int, solver: str, how: How
) -> ScheduleBounds:
    """Let an engine schedule a part, and look at what it says."""
    length = length_ticks(group, table)
    if length == bound:
        return ScheduleBounds(table, length, bound, "bound")
    if how.deadline.passed:
        return ScheduleBounds(table, length, bound, "none")
    module, _, name = SOLVERS[solver].partition(":")
    engine = cast("PartSolver", getattr(import_module(module), name))
    try:
        better, proven = engine(group, table, bound, how)
    except OutOfTimeError:
        return ScheduleBounds(table, length, bound, "none")
    if better is not None:
        wrong = faults(group, better)
        if wrong is not None:
            raise SolverError(
                f"{solver}: expected a schedule that keeps the rules, got one "
                f"where {wrong}; report it"
            )
        table = min(table, better, key=lambda x: length_ticks(group, x))
        length = length_ticks(group, table)
    bound = max(bound, proven)
    if bound > length:
        raise SolverError(
            f"{solver}: expected a bound of at most {length} ticks, which a "
            f"schedule takes, got {bound}; report it"
        )
    return ScheduleBounds(table, length, bound, solver if bound == length else "none")
