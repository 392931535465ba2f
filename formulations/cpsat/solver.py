"""Exact search with CP-SAT: integers throughout, optimal to the quantum."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from formulations import engine_log, parameters
from formulations.common import EngineResult, Task
from formulations.cp_sat import check_parameters, floor_bound, new_solver, prove
from formulations.cpsat.constraints import add_constraints, hide_less
from formulations.cpsat.decode import add_hints, decode
from formulations.cpsat.objective import set_objective
from formulations.cpsat.paths import solve_path
from formulations.cpsat.variables import Model, create
from formulations.engine_log import check_log
from formulations.paths.search import PathEngine
from formulations.search import FORM_OPTION, Engine, Formulation
from formulations.timed import LayerChoiceProgram
from nest.cost.rules import hidden_sync
from nest.cost.score import score
from nest.solvers.base import EXTENSIONS, Capabilities, Deadline, SolveOptions

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpSolver

#: Sums of the work of all devices are at most that.
MAX_SUM = 2**50


class CpSatSolver(Formulation):
    """One CP-SAT model per replicas, micro-batch and number of stages."""

    name = "cpsat"
    capabilities = Capabilities(
        exact=True,
        anytime=True,
        warm_start=True,
        method="integer models of paths and of layers, OR-tools CP-SAT",
        requires=("ortools",),
        any_schedule=True,
        searches=frozenset(EXTENSIONS) - {"order"},
        model_files=(".pbtxt",),
        options={
            parameters.OPTION: parameters.MEANING,
            engine_log.OPTION: engine_log.MEANING,
            "form": FORM_OPTION,
        },
    )

    def engine(self, options: SolveOptions) -> Engine:
        """Return what solves sub-problems.

        Raises ``InvalidOptionError`` if CP-SAT does not take a parameter.
        """
        check_parameters(self.name, parameters.parameters_of(options.extra))
        check_log(self.name, options.extra)
        return partial(_solve, options)

    def path_engine(self, options: SolveOptions) -> PathEngine:
        """Return what solves networks."""
        return partial(solve_path, options)

    def write(self, task: Task, path: Path, comments: list[str]) -> dict[str, Any]:
        """Write the model as text of CP-SAT's own format."""
        model = _model(task)
        proto = model.engine.proto
        text = "".join(f"# {line}\n" for line in comments) + str(proto)
        path.write_text(text, encoding="utf-8")
        return {
            "objective_quanta": 1,
            "size_bytes": 1,
            "num_rows": len(proto.constraints),
            "num_columns": len(proto.variables),
            "num_integers": len(proto.variables),
        }

    def least_work(
        self, work: LayerChoiceProgram, deadline: Deadline, options: SolveOptions
    ) -> int | None:
        """Return the least work, in whole layers."""
        return _least_work(work, deadline, options)


def _least_work(
    work: LayerChoiceProgram, deadline: Deadline, options: SolveOptions
) -> int | None:
    """Solve the integer program of the work of all devices.

    Costs are rounded down, and sizes too, to what 64 bits hold in sums: what
    is least then is no more than it is.
    """
    from ortools.sat.python import cp_model

    numbers = range(len(work.counts))
    most = max(sum(work.counts), 1)
    unit = max(map(max, work.costs)) * most // MAX_SUM + 1
    unit_bytes = max(work.capacity, max(map(max, work.memory)) * most)
    unit_bytes = unit_bytes // MAX_SUM + 1
    model = cp_model.CpModel()
    taken = [
        [model.new_int_var(0, work.counts[k], "") for _ in work.costs[k]]
        for k in numbers
    ]
    for k in numbers:
        model.add(sum(taken[k]) == work.counts[k])
    flat = [x for own in taken for x in own]
    sizes = [x // unit_bytes for own in work.memory for x in own]
    costs = [x // unit for own in work.costs for x in own]
    model.add(
        cp_model.LinearExpr.weighted_sum(flat, sizes) <= work.capacity // unit_bytes
    )
    model.minimize(cp_model.LinearExpr.weighted_sum(flat, costs))
    solver = new_solver(deadline.remaining_s, 1, options.seed)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return 0
    return max(0, floor_bound(solver.best_objective_bound)) * unit


def _solve(options: SolveOptions, task: Task) -> EngineResult:
    """Find the best plan of a task with a step time within its cutoff.

    What hides of gradient sync is rounded by a line. Where its plan shows
    that a double rounds otherwise, the model learns it and is solved again.
    """
    model = _model(task)
    if task.start is not None:
        add_hints(model, task.start)
    number = 0
    while True:
        result, values = _run(options, model)
        rounded = _rounded(model, result, values)
        if not rounded:
            return result
        for s, hideable in rounded.items():
            hide_less(model, number, s, hideable)
            number += 1


def _model(task: Task) -> Model:
    model = create(task)
    add_constraints(model)
    set_objective(model)
    return model


def _rounded(model: Model, result: EngineResult, solver: CpSolver) -> dict[int, int]:
    """Return the slots that hide more than the score says, and of how much.

    None if that does not make the plan faster than it is.
    """
    instance = model.instance
    claimed = result.claimed_quanta
    if result.plan is None or claimed is None or not instance.hides:
        return {}
    verdict = score(instance.problem, result.plan, instance.model)
    if claimed >= verdict.step_quanta:
        return {}
    found = {}
    for s, behind in model.behind.items():
        hideable = solver.value(model.hideable[s])
        if solver.value(behind) > hidden_sync(hideable, hideable, instance.fraction):
            found[s] = hideable
    return found


def _run(options: SolveOptions, model: Model) -> tuple[EngineResult, CpSolver]:
    """Solve a model as it is."""
    task = model.task
    remaining_s = task.instance.deadline.remaining_s
    solver, finished, has_plan = prove(
        model.engine, options, remaining_s, task.sub_problem
    )
    if not has_plan:
        bound = floor_bound(solver.best_objective_bound)
        return EngineResult(finished=finished, bound=bound), solver
    result = EngineResult(
        finished=finished,
        plan=decode(CpSatSolver.name, model, solver),
        claimed_quanta=solver.value(model.step),
        bound=floor_bound(solver.best_objective_bound),
    )
    return result, solver
