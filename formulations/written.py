"""Models of a problem as files, for other engines and for readers.

A search solves a model per sub-problem ``(R, B, S)``; a file has one of them, or one of
its parts, without the cutoffs that a search adds. Its optimum is that of the plans it
has; the least optimum of all files is that of the problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formulations.common import SubProblem, Task
from formulations.instances import instances_of
from formulations.timed import timed_only
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.cost.space import runtime_of
from nest.errors import UnsupportedProblemError
from nest.ir.io import problem_hash
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Deadline

if TYPE_CHECKING:
    from formulations.search import Formulation


def write_models(
    formulation: Formulation,
    problem: Problem,
    plan: Plan | None,
    folder: Path,
    suffix: str,
    every: bool,
) -> list[dict[str, Any]]:
    """Write models to a folder, see :class:`nest.solvers.base.ModelWriter`.

    Raises ``UnsupportedProblemError`` if plans are timed pass by pass, which no model
    has; ``InvalidProblemError`` if times are too long for the engine.
    """
    reason = formulation.unsupported(problem)
    if timed_only(problem) is not None:
        reason = (
            f"expected plans whose step time is a sum, got schedule "
            f"{problem.job.schedule!r} with virtual_stages "
            f"{list(problem.job.virtual_stages)}, timed pass by pass; allow "
            f"1f1b or gpipe and virtual_stages 1 only"
        )
    if reason is not None:
        raise UnsupportedProblemError(f"models of {formulation.name}: {reason}")
    step = None if plan is None else score(problem, plan).step_quanta
    tasks = _tasks(formulation, problem, step)
    if not every:
        tasks = _one_of(tasks, problem, plan, step)
    models = []
    for index, task in enumerate(tasks, 1):
        path = folder / f"{index:04d}{suffix}"
        about = _about(task)
        comments = [
            f"Problem {problem.name} ({problem_hash(problem)}), solver "
            f"{formulation.name}.",
            f"Sub-problem {task.sub_problem}; a quantum is {problem.quantum_ps} ps.",
            f"It has all plans that take {about['least_quanta']} to "
            f"{about['most_quanta'] or 'any number of'} quanta.",
        ]
        if step is not None:
            comments.append(f"The best plan known takes {step} quanta.")
        comments.append("Symbols and equations: formulations/README.md.")
        figures = formulation.write(task, path, comments)
        models.append({"file": path.name} | about | figures)
    return models


def _about(task: Task) -> dict[str, Any]:
    """Return what plans a model has."""
    sub_problem = task.sub_problem
    return {
        "sub_problem": str(sub_problem),
        "replicas": sub_problem.split.replicas,
        "micro_batch": sub_problem.split.micro_batch,
        "num_stages": sub_problem.num_stages,
        "least_quanta": sub_problem.bound,
        "most_quanta": task.cutoff,
    }


def _tasks(
    formulation: Formulation, problem: Problem, step: int | None
) -> Iterator[Task]:
    """Yield the tasks that have all plans of at most so many quanta."""
    model = CostModel(problem)
    instances = instances_of(problem, model, Deadline(None))
    listed = [instance.sub_problems() for instance in instances.values()]
    for sub_problem in sorted(chain(*listed), key=lambda found: found.bound):
        if step is not None and sub_problem.bound > step:
            return
        instance = instances[sub_problem.runtime]
        slots = instance.slots(sub_problem)
        if slots is None:
            continue
        whole = Task(instance, sub_problem, slots, None, None)
        for task in formulation.windows(whole):
            yield task
            if step is not None and _reaches(task, step):
                break


def _one_of(
    tasks: Iterator[Task], problem: Problem, plan: Plan | None, step: int | None
) -> Iterator[Task]:
    """Yield the task that a plan belongs to; without one, the first."""
    for task in tasks:
        if plan is None or step is None:
            yield task
            return
        if belongs(plan, task.sub_problem) and _reaches(task, step):
            yield task
            return


def _reaches(task: Task, step: int) -> bool:
    """Whether a task has plans that take so long, if there are any."""
    return task.cutoff is None or task.cutoff >= step


def belongs(plan: Plan, sub_problem: SubProblem) -> bool:
    """Whether a plan is one of a sub-problem's."""
    used = {x for stage in plan.stages for x in stage.layer_strategies}
    return (
        runtime_of(plan) == sub_problem.runtime
        and plan.replicas == sub_problem.split.replicas
        and plan.micro_batch == sub_problem.split.micro_batch
        and len(plan.stages) == sub_problem.num_stages
        and used <= {*sub_problem.group}
    )
