"""Answers the questions of a search: bounds here, proofs by processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from nest.accelerators.architecture import Architecture
from nest.accelerators.evaluate import Solved, bound_of, work_bound
from nest.accelerators.search import Group, Listed, PlacementBound, Question
from nest.accelerators.tasks import (
    Store,
    Task,
    WorkloadSetting,
    died,
    run_task,
    workload_of,
)
from nest.accelerators.workload import Workload
from nest.solvers.base import Deadline
from nest.tasks.parallel import answers
from nest.units import MAX_TOTAL
from nest.util.versions import nest_version

#: What a step depends on beside the times of layers: more is no slower.
RATES = (
    *("hbm_bytes", "hbm_bytes_per_s"),
    *("link_bytes_per_s", "network_bytes_per_s"),
)


#: Of plans: the ``(R, B)`` that they may have.
Splits = tuple[tuple[int, int], ...]


class PointOracle:
    """Bounds and step times of points, from a store and from processes.

    ``architectures`` are the points; the caller may append others later. Of models
    ``settings`` say what each depends on, but for the size of nodes, which is that of
    the point. :func:`nest.tasks.parallel.answers` says how tasks are run.
    """

    def __init__(
        self,
        architectures: list[Architecture],
        points: Listed,
        settings: Sequence[WorkloadSetting],
        store: Store,
        *,
        jobs: int = 1,
        dask: str | None = None,
        client: Any = None,
    ) -> None:
        self.architectures, self.points = architectures, points
        self.settings = settings
        self.store = store
        self._how = {"jobs": jobs, "dask": dask, "client": client}
        self._entries = cache(self._bounded_entries)
        self._bound_of = cache(lambda setting: bound_of(workload_of(setting)))
        self._splits: dict[tuple[int, int], tuple[int, Splits]] = {}

    def setting(self, point: int, model: int) -> WorkloadSetting:
        """Return what a model on a point depends on."""
        node = self.architectures[point].devices_per_node
        return msgspec.structs.replace(self.settings[model], devices_per_node=node)

    def workload(self, point: int, model: int) -> Workload:
        """Return what a model runs on a point."""
        return workload_of(self.setting(point, model))

    def bound(self, point: int, model: int) -> int:
        """Return a bound from the operators of layers, in quanta."""
        of = self._bound_of(self.setting(point, model))
        return work_bound(of, self._entries(point, model))

    def solve(
        self, questions: Sequence[Question], deadline: Deadline
    ) -> Iterator[PlacementBound]:
        """Answer questions: from the store, or by processes."""
        question_of: dict[str, Question] = {}
        tasks = []
        for question in questions:
            task = self._task(question)
            solved_before = self.store.solved.get(task.key)
            question_of[task.key] = question
            if solved_before is not None and (
                solved_before.exact
                or solved_before.lower_quanta > question.target_quanta
            ):
                yield _answer(question, solved_before)
            else:
                tasks.append(task)
        for solved in self._run(tasks, deadline):
            yield _answer(question_of[solved.key], solved)

    def together(
        self, groups: Sequence[Group], deadline: Deadline
    ) -> Iterator[tuple[Group, int]]:
        """Bound the step times of all points of each group, in quanta.

        What is not ruled out with a group is ruled out with its splits: the
        points are looked at with the others alone from then on.
        """
        # Groups whose points differ in rates alone may ask the same.
        groups_of: dict[str, list[Group]] = {}
        tasks: dict[str, Task] = {}
        for group in groups:
            task = self._group_task(group)
            solved_before = self.store.solved.get(task.key)
            if solved_before is not None:
                yield group, self._take(group, solved_before)
            else:
                groups_of.setdefault(task.key, []).append(group)
                tasks.setdefault(task.key, task)
        for solved in self._run(tuple(tasks.values()), deadline):
            for group in groups_of[solved.key]:
                yield group, self._take(group, solved)

    def _take(self, group: Group, solved: Solved) -> int:
        if solved.out_of_time:
            return 0
        for point in group.points:
            key = point, group.model
            self._splits[key] = group.target_quanta, solved.splits
        return solved.lower_quanta

    def halves(self, group: Group) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Part points where one of their times differs most."""
        times = np.array(
            [self._entries(point, group.model) for point in group.points], dtype=float
        )
        shortest = np.maximum(times.min(axis=0), 1)
        entry = int((times.max(axis=0) / shortest).argmax())
        order = np.argsort(times[:, entry], kind="stable").tolist()
        points = [group.points[index] for index in order]
        middle = len(points) // 2
        return tuple(points[:middle]), tuple(points[middle:])

    def known(self, point: int, model: int) -> Solved | None:
        """Return what is known of a model on a point."""
        key = self._task(Question(point, model, 0)).key
        return self.store.solved.get(key)

    def _run(self, tasks: Sequence[Task], deadline: Deadline) -> Iterator[Solved]:
        def limited(task: Task) -> Task:
            """Return a task with the time that is left when it begins."""
            return msgspec.structs.replace(task, limit_s=deadline.remaining_s)

        if tasks:
            deadline.check()
        results = answers(tasks, run_task, died, prepared=limited, **self._how)
        with contextlib.closing(results):
            for data in results:
                yield self.store.keep(data)

    def _task(self, question: Question) -> Task:
        point, model, target = question
        return Task(
            setting=self.setting(point, model),
            architecture=self.architectures[point],
            splits=self._left((point,), model, target),
            target_quanta=target,
            version=nest_version(),
        )

    def _group_task(self, group: Group) -> Task:
        """Return the task of a point as fast as any of a group."""
        points, model, target = group
        members = [self.architectures[point] for point in points]
        times = [self._entries(point, model) for point in points]
        rates = {rate: max(getattr(x, rate) for x in members) for rate in RATES}
        return Task(
            setting=self.setting(points[0], model),
            architecture=msgspec.structs.replace(members[0], **rates),
            entries=tuple(map(min, zip(*times, strict=True))),
            splits=self._left(points, model, target),
            target_quanta=target,
            version=nest_version(),
        )

    def _left(self, points: Sequence[int], model: int, target_quanta: int) -> Splits:
        """Return the splits with which points may have plans so fast.

        None if all must be looked at.
        """
        splits_left: set[tuple[int, int]] = set()
        for point in points:
            target, splits = self._known_splits(point, model)
            if target < target_quanta:
                return ()
            splits_left.update(splits)
        return tuple(sorted(splits_left))

    def _known_splits(self, point: int, model: int) -> tuple[int, Splits]:
        """Return what is known of a point, or of one that dominates it.

        With every ``(R, B)`` a point is no faster than what dominates it.
        """
        if (point, model) in self._splits or point >= self.points.size:
            return self._splits.get((point, model), (-1, ()))
        bounded = np.array(
            [other for other, which in self._splits if which == model], dtype=np.int64
        )
        above = bounded[self.points.above(point, bounded)]
        if not len(above):
            return -1, ()
        return self._splits[int(above[0]), model]

    def _bounded_entries(self, point: int, model: int) -> tuple[int, ...]:
        """Return the table of bounds on schedules."""
        workload = self.workload(point, model)
        return workload.entries(workload.least(self.architectures[point]))


def _answer(question: Question, solved: Solved) -> PlacementBound:
    """Return an answer that does not depend on what else was asked.

    Of a step longer than the target only that is said, however much is known:
    so a search that finds answers in a directory goes the same way.
    """
    point, model, target_quanta = question
    if target_quanta < min(solved.lower_quanta, MAX_TOTAL):
        return PlacementBound(point, model, target_quanta + 1, False)
    return PlacementBound(point, model, solved.lower_quanta, solved.exact)
