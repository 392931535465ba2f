"""The schedule of a part as a CP-SAT model; symbols as in the README."""

from __future__ import annotations

from typing import Any

from formulations.cp_sat import new_solver, solve_interruptibly
from formulations.schedule import common
from nest.operator_schedule.parts import JobGroup
from nest.operator_schedule.search import How
from nest.operator_schedule.timetable import Timetable, length_ticks


def schedule_part(
    group: JobGroup, table: Timetable, bound_ticks: int, how: How
) -> tuple[Timetable | None, int]:
    """Return a shortest timetable, or the best in time, and a bound.

    The search begins with ``table``.
    """
    from ortools.sat.python import cp_model

    variables = Variables(group, table, bound_ticks)
    engine = new_solver(how.deadline.remaining_s, how.num_workers, how.seed % 2**31)
    # Schedules need presolve, ten times as long without; what makes it wrong
    # on theirs is its search for constraints inside others.
    engine.parameters.cp_model_presolve = True
    engine.parameters.presolve_inclusion_work_limit = 0
    status = solve_interruptibly(engine, variables.model)
    proven = max(bound_ticks, round(engine.best_objective_bound))
    if status == cp_model.UNKNOWN:
        return None, proven
    # The given timetable is a solution.
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE), status
    starts = [engine.value(start) for start in variables.starts]
    whole = [bool(engine.value(whole)) for whole in variables.whole]
    return common.from_short(group, starts, whole), proven


class Variables:
    """The model of a part, constraint by constraint."""

    def __init__(self, group: JobGroup, table: Timetable, bound_ticks: int) -> None:
        from ortools.sat.python import cp_model

        self.part = group
        self.model = cp_model.CpModel()
        most = length_ticks(group, table)
        self.makespan = self.model.new_int_var(bound_ticks, most, "T")
        singles, wholes = zip(*map(common.ticks_of, group.jobs), strict=True)
        self.horizon = min(most, sum(singles))
        self.whole: list[Any] = []
        self.starts: list[Any] = []
        self.ends: list[Any] = []
        self._add_jobs()
        self._add_order()
        self._add_cores()
        self._add_moments()
        self._add_makespan(wholes)
        self.model.minimize(self.makespan)
        self._add_hint(table)

    def _add_jobs(self) -> None:
        """Give every job a mode and a start, on the clock that stops (S1)."""
        for i, job in enumerate(self.part.jobs):
            whole: Any = int(job.single is None)
            if job.single is not None and job.whole is not None:
                whole = self.model.new_bool_var(f"y_{i}")
            start = self.model.new_int_var(0, self.horizon, f"s_{i}")
            self.whole.append(whole)
            self.starts.append(start)
            self.ends.append(start + common.ticks_of(job)[0] * (1 - whole))

    def _add_order(self) -> None:
        """Start jobs when those before them have ended (S2)."""
        for i, job in enumerate(self.part.jobs):
            for j in job.after:
                self.model.add(self.ends[j] <= self.starts[i])

    def _add_cores(self) -> None:
        """Count the cores of each type that are in use at any time (S3).

        Counting is enough: intervals that are never more than so many at a
        time can be given so many numbers.
        """
        for side, users in common.crowded(self.part):
            intervals = [
                self.model.new_optional_fixed_size_interval_var(
                    self.starts[i],
                    common.ticks_of(self.part.jobs[i])[0],
                    self._beside(i),
                    f"job_{i}_{side}",
                )
                for i in users
            ]
            count = self.part.cores[side]
            self.model.add_cumulative(intervals, [1] * len(users), count)

    def _beside(self, i: int) -> Any:
        """Return what is true if a job runs beside others."""
        whole = self.whole[i]
        return not whole if isinstance(whole, int) else ~whole

    def _add_moments(self) -> None:
        """Let no job run across the moment of one on the whole chip (S4)."""
        for i, j in common.pairs(self.part):
            stops, runs = self.part.jobs[i], self.part.jobs[j]
            if stops.whole is None or runs.single is None:
                continue
            if_so = [
                literal
                for literal in (self.whole[i], self._beside(j))
                if not isinstance(literal, int)
            ]
            before = self.model.new_bool_var(f"x_{j}_{i}")
            self.model.add(self.ends[j] <= self.starts[i]).only_enforce_if(
                *if_so, before
            )
            self.model.add(self.starts[i] <= self.starts[j]).only_enforce_if(
                *if_so, ~before
            )

    def _add_makespan(self, wholes: tuple[int, ...]) -> None:
        """Bound the makespan by ends, by work, and by the channel (S5–S7)."""
        stops = sum(
            ticks * whole for ticks, whole in zip(wholes, self.whole, strict=True)
        )
        for end in self.ends:
            self.model.add(end + stops <= self.makespan)
        for side, _ in common.crowded(self.part):
            count = self.part.cores[side]
            work = sum(
                common.ticks_of(job)[0] * (1 - whole)
                for job, whole in zip(self.part.jobs, self.whole, strict=True)
                if job[side]
            )
            self.model.add(work + count * stops <= count * self.makespan)
        channel = sum(
            single + (on_chip - single) * whole
            for (single, on_chip), whole in zip(
                map(common.channel_ticks_of, self.part.jobs), self.whole, strict=True
            )
        )
        self.model.add(channel <= self.makespan)

    def _add_hint(self, table: Timetable) -> None:
        starts = common.short_starts(self.part, table)
        for i, (start, whole) in enumerate(zip(starts, table.whole, strict=True)):
            self.model.add_hint(self.starts[i], start)
            if not isinstance(self.whole[i], int):
                self.model.add_hint(self.whole[i], whole)
