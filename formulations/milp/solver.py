"""Exact search with mixed-integer programming, through PuLP."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from formulations import engine_log, parameters
from formulations.common import EngineResult, Task
from formulations.engine_log import check_log, write_title
from formulations.milp.constraints import add_constraints, forbid, hide_less
from formulations.milp.decode import decode
from formulations.milp.engines import DEFAULT, EngineSettings, Verdict, engine_name, run
from formulations.milp.objective import set_objective
from formulations.milp.parameters import check_parameters
from formulations.milp.paths import solve_path
from formulations.milp.variables import Content, Model, create
from formulations.milp.windows import TOLERANCE, windows
from formulations.milp.written import write_model
from formulations.paths.search import PathEngine
from formulations.search import FORM_OPTION, Engine, Formulation
from formulations.timed import LayerChoiceProgram
from nest.cost.rules import hidden_sync
from nest.cost.score import score
from nest.solvers.base import EXTENSIONS, Capabilities, Deadline, SolveOptions


class MilpSolver(Formulation):
    """One MILP per replicas, micro-batch and number of stages."""

    name = "milp"
    capabilities = Capabilities(
        exact=True,
        precision=TOLERANCE,
        anytime=True,
        warm_start=True,
        method="MILPs of paths and of layers, CBC or another engine",
        requires=("pulp",),
        any_schedule=True,
        searches=frozenset(EXTENSIONS) - {"order"},
        model_files=(".mps", ".lp"),
        options={
            "engine": (
                "an engine that PuLP finds here, such as cbc (default), highs or scip"
            ),
            parameters.OPTION: parameters.MEANING,
            engine_log.OPTION: engine_log.MEANING,
            "form": FORM_OPTION,
        },
    )

    def engine(self, options: SolveOptions) -> Engine:
        """Return what solves sub-problems.

        Raises ``InvalidOptionError`` if the engine is not available, or does not take a
        parameter.
        """
        return partial(_solve, self._run(options))

    def path_engine(self, options: SolveOptions) -> PathEngine:
        """Return what solves networks."""
        return partial(solve_path, self._run(options))

    def _run(self, options: SolveOptions) -> EngineSettings:
        """Return what an engine has to know besides a model and its time."""
        name = engine_name(options.extra.get("engine", DEFAULT))
        given = parameters.parameters_of(options.extra)
        return EngineSettings(
            *(name, Deadline(None), 0.0, options.num_workers, options.seed),
            parameters=check_parameters(name, given),
            log=check_log(self.name, options.extra),
        )

    def windows(self, task: Task) -> Iterator[Task]:
        """Yield the task for one window after the other."""
        return windows(task)

    def write(self, task: Task, path: Path, comments: list[str]) -> dict[str, Any]:
        """Write the model of a window."""
        return write_model(_model(task), path, comments)

    def least_work(
        self, work: LayerChoiceProgram, deadline: Deadline, options: SolveOptions
    ) -> int | None:
        """Return the bound at the price that a linear program finds."""
        return _least_work(work, deadline)


def _least_work(work: LayerChoiceProgram, deadline: Deadline) -> int | None:
    """Return the bound at the dual price of the memory, in whole numbers.

    Whatever price floats come to, the bound at it is exact.
    """
    import pulp

    least = sum(
        count * min(memory)
        for count, memory in zip(work.counts, work.memory, strict=True)
    )
    if least > work.capacity:
        return None
    known = work.priced(0, 1)
    if deadline.passed:
        return known
    unit = max(1, max(map(max, work.costs)))
    room = max(1, work.capacity)
    program = pulp.LpProblem("work", pulp.LpMinimize)
    taken = [
        [pulp.LpVariable(f"x_{k}_{s}", 0) for s in range(len(costs))]
        for k, costs in enumerate(work.costs)
    ]
    program += pulp.lpSum(
        x * (cost / unit)
        for own, costs in zip(taken, work.costs, strict=True)
        for x, cost in zip(own, costs, strict=True)
    )
    for own, count in zip(taken, work.counts, strict=True):
        program += pulp.lpSum(own) == count
    program += (
        pulp.lpSum(
            x * (size / room)
            for own, sizes in zip(taken, work.memory, strict=True)
            for x, size in zip(own, sizes, strict=True)
        )
        <= 1.0,
        "memory",
    )
    program.solve(pulp.PULP_CBC_CMD(msg=False))
    price = -(program.constraints["memory"].pi or 0.0)
    if price <= 0:
        return known
    found = Fraction(price) * unit / room
    return max(known, work.priced(found.numerator, found.denominator))


def _solve(engine: EngineSettings, task: Task) -> EngineResult:
    """Find the best plan of a task, in one window after the other."""
    for window in windows(task):
        result = _search(engine, window)
        if not result.finished:
            least, most = window.sub_problem.bound, window.cutoff
            assert most is not None
            bound = min(max(result.bound or 0, least), most)
            return dataclasses.replace(result, bound=bound)
        if result.plan is not None:
            return result
    return EngineResult(finished=True)


def _search(engine: EngineSettings, task: Task) -> EngineResult:
    """Find the best plan of one window.

    Its start is of no use: it never beats the cutoff, and engines drop what
    is not feasible. Plans that use more memory than there is, or hide a
    quantum more of gradient sync than the score says, by less than floats can
    tell, are cut off one by one.
    """
    instance, sub_problem, slots, *_ = task
    deadline = instance.deadline
    started_s = deadline.elapsed_s
    model = _model(task)
    building_s = deadline.elapsed_s - started_s
    how = dataclasses.replace(engine, deadline=deadline, building_s=building_s)
    num_cuts = 0
    while True:
        write_title(how.log, f"milp {sub_problem}: {how.name}")
        outcome = run(model.engine, how)
        finished = outcome.verdict is not Verdict.STOPPED
        bound = None
        if outcome.bound is not None:
            bound = math.floor(outcome.bound * model.scale_quanta * (1 - TOLERANCE))
        if outcome.objective is None:
            return EngineResult(finished=finished, bound=bound)
        plan, contents = decode(MilpSolver.name, model)
        verdict = score(instance.problem, plan, instance.model)
        claimed = outcome.objective * model.scale_quanta
        if verdict.feasible:
            rounded = {}
            if claimed < verdict.step_quanta * (1 - TOLERANCE):
                rounded = _rounded(model, contents)
            if not rounded:
                return EngineResult(
                    finished=finished, plan=plan, claimed_quanta=claimed, bound=bound
                )
            for s, hideable in rounded.items():
                hide_less(model, num_cuts, s, hideable)
                num_cuts += 1
            continue
        for position, stage in enumerate(verdict.stages):
            s = sub_problem.num_stages - position
            content = contents[s]
            profile = slots[s].profiles[content.profile]
            if stage.memory_bytes > profile.capacity_bytes:
                forbid(model, num_cuts, s, content)
                num_cuts += 1


def _model(task: Task) -> Model:
    model = create(task)
    add_constraints(model)
    set_objective(model)
    return model


def _rounded(model: Model, contents: Mapping[int, Content]) -> dict[int, int]:
    """Return the slots that hide more than the score says, and of how much.

    Engines miss a whole number by less than half.
    """
    found = {}
    for s, behind in model.behind.items():
        hideable = sum(
            count * model.choices(kind, s, contents[s].profile)[h].hideable
            for (kind, h), count in contents[s].counts.items()
        )
        most = hidden_sync(hideable, hideable, model.instance.fraction)
        if model.whole and behind.varValue > most + 0.5:
            found[s] = hideable
    return found
