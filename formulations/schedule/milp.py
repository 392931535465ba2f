"""The schedule of a part as a mixed-integer model; symbols as in the README.

Engines count in floats: what they prove is a hundred-millionth less than what
they say, see :data:`TOLERANCE`. Up to so many ticks that is exact.
"""

from __future__ import annotations

import math
from typing import Any

from formulations.milp.engines import DEFAULT, EngineSettings, Outcome, engine_name, run
from formulations.schedule import common
from nest.operator_schedule.parts import JobGroup
from nest.operator_schedule.search import How
from nest.operator_schedule.timetable import Timetable, length_ticks

#: Relative precision of proofs.
TOLERANCE = 1e-6

#: What the makespan is near, in the engine's units.
UNIT = 2**10


def schedule_part(
    group: JobGroup, table: Timetable, bound_ticks: int, how: How
) -> tuple[Timetable | None, int]:
    """Return a shortest timetable, or the best in time, and a bound.

    Engines are not told of the timetable.

    Raises ``OutOfTimeError`` if there is no time for the engine, and ``SolverError`` if
    the engine fails.
    """
    started_s = how.deadline.elapsed_s
    model = Model(group, table, bound_ticks)
    if not model.chooses:
        # Programs without whole numbers are reported in another way.
        whole = [job.single is None for job in group.jobs]
        only = common.from_short(group, range(len(group.jobs)), whole)
        return only, length_ticks(group, only)
    outcome = run(
        model.problem,
        EngineSettings(
            name=engine_name(DEFAULT),
            deadline=how.deadline,
            building_s=how.deadline.elapsed_s - started_s,
            num_workers=how.num_workers,
            seed=how.seed,
        ),
    )
    return model.read(outcome, bound_ticks)


class Model:
    """The model of a part, constraint by constraint."""

    def __init__(self, group: JobGroup, table: Timetable, bound_ticks: int) -> None:
        from pulp import LpProblem

        self.part = group
        self.problem = LpProblem("schedule")
        self._most = length_ticks(group, table)
        self._unit = self._most / UNIT
        singles = sum(common.ticks_of(job)[0] for job in group.jobs)
        self._horizon = self._scaled(min(self._most, singles))
        # Half of the precision is slack: engines and files round.
        self._makespan = self._number("T", UNIT * (1 + TOLERANCE / 2))
        least = self._scaled(bound_ticks) * (1 - TOLERANCE / 2)
        self._makespan.lowBound = least
        self.problem.setObjective(1 * self._makespan)
        count = range(len(group.jobs))
        self._starts = [self._number(f"s_{i}", self._horizon) for i in count]
        self._whole = [self._mode(i) for i in count]
        self._first: dict[tuple[int, int], Any] = {}
        for i, j in common.pairs(group):
            self._first[i, j] = self._choice(f"x_{i}_{j}")
        self._add_order()
        self._add_moments()
        for side, users in common.crowded(group):
            self._add_cores(side, users)
        self._add_makespan()

    @property
    def chooses(self) -> bool:
        """Whether there is a mode to choose, or an order."""
        return bool(self._first) or not all(
            isinstance(whole, int) for whole in self._whole
        )

    def _scaled(self, ticks: int) -> float:
        return ticks / self._unit

    def _number(self, name: str, most: float) -> Any:
        from pulp import LpVariable

        return LpVariable(name, 0, most)

    def _choice(self, name: str) -> Any:
        from pulp import LpVariable

        return LpVariable(name, cat="Binary")

    def _mode(self, i: int) -> Any:
        job = self.part.jobs[i]
        if job.single is not None and job.whole is not None:
            return self._choice(f"y_{i}")
        return int(job.single is None)

    def _ticks(self, i: int) -> Any:
        """Return what a job takes on the clock that stops (S1)."""
        single, _ = common.ticks_of(self.part.jobs[i])
        return self._scaled(single) * (1 - self._whole[i])

    def _add_order(self) -> None:
        """Start jobs when those before them have ended (S2)."""
        for i, job in enumerate(self.part.jobs):
            for j in job.after:
                self.problem += self._starts[j] + self._ticks(j) <= self._starts[i]
        for (i, j), first in self._first.items():
            self.problem += self._starts[i] + self._ticks(i) <= self._starts[
                j
            ] + self._horizon * (1 - first)
            if i < j:
                self.problem += first + self._first[j, i] <= 1

    def _add_moments(self) -> None:
        """Let no job run across the moment of one on the whole chip (S4)."""
        for i, j in self._first:
            stops, runs = self.part.jobs[i], self.part.jobs[j]
            if stops.whole is None or runs.single is None:
                continue
            self.problem += (
                self._first[i, j] + self._first[j, i] >= self._whole[i] - self._whole[j]
            )

    def _add_cores(self, side: int, users: list[int]) -> None:
        """Give jobs beside others a core of a type, one after another (S3).

        The first job that needs one takes the first core, and so on: a job
        takes none beyond its own place among them.
        """
        on: dict[int, list[Any]] = {}
        for place, i in enumerate(users, 1):
            cores = min(place, self.part.cores[side])
            on[i] = [self._choice(f"z_{side}_{i}_{core}") for core in range(cores)]
            self.problem += sum(on[i]) == 1 - self._whole[i]
        for i, j in self._first:
            if i < j and i in on and j in on:
                for one, other in zip(on[i], on[j], strict=False):
                    self.problem += (
                        self._first[i, j] + self._first[j, i] >= one + other - 1
                    )

    def _add_makespan(self) -> None:
        """Bound the makespan by ends, by work, and by the channel (S5–S7)."""
        from pulp import lpSum

        jobs = self.part.jobs
        stops = lpSum(
            self._scaled(common.ticks_of(job)[1]) * whole
            for job, whole in zip(jobs, self._whole, strict=True)
        )
        for i in range(len(jobs)):
            self.problem += self._starts[i] + self._ticks(i) + stops <= self._makespan
        for side, _ in common.crowded(self.part):
            count = self.part.cores[side]
            work = lpSum(self._ticks(i) for i, job in enumerate(jobs) if job[side])
            self.problem += work + count * stops <= count * self._makespan
        channel = lpSum(
            self._scaled(single) + self._scaled(on_chip - single) * whole
            for (single, on_chip), whole in zip(
                map(common.channel_ticks_of, jobs), self._whole, strict=True
            )
        )
        self.problem += channel <= self._makespan

    def read(self, outcome: Outcome, bound_ticks: int) -> tuple[Timetable | None, int]:
        """Return the timetable of a solution, and the bound in ticks."""
        found = None
        most = self._most
        if outcome.objective is not None:
            whole = [_value(mode) > 0.5 for mode in self._whole]
            found = common.from_short(self.part, self._places(), whole)
            most = min(most, length_ticks(self.part, found))
        if outcome.bound is None:
            return found, bound_ticks
        least = outcome.bound * self._unit
        proven = math.ceil(least - max(least, 1) * TOLERANCE)
        return found, min(most, max(bound_ticks, proven))

    def _places(self) -> list[int]:
        """Return the places of jobs in an order that a solution has chosen.

        Starts alone do not tell: moments that should be one differ by less
        than engines see.
        """
        starts = [_value(start) for start in self._starts]
        before = [set(job.after) for job in self.part.jobs]
        for (i, j), first in self._first.items():
            if _value(first) > 0.5:
                before[j].add(i)
        places = [0] * len(starts)
        left = set(range(len(starts)))
        for place in range(len(starts)):
            ready = [i for i in left if not before[i] & left] or left
            first = min(ready, key=lambda i: (starts[i], i))
            places[first] = place
            left.remove(first)
        return places


def _value(variable: Any) -> float:
    if isinstance(variable, int):
        return variable
    return 0.0 if variable.varValue is None else float(variable.varValue)
