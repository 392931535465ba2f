"""The path form in CP-SAT: one binary per stage, integers throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from formulations.common import EngineResult
from formulations.cp_sat import floor_bound, prove
from formulations.paths.cuts import Integers
from formulations.paths.search import PathTask
from formulations.paths.stages import TooLargeError
from nest.solvers.base import SolveOptions
from nest.units import MAX_TOTAL

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar


class PathModel:
    """A network as a CP-SAT model; symbols as in ``formulations/README.md``.

    ``x[a]``: the plan has stage ``a``.
    """

    def __init__(self, task: PathTask) -> None:
        from ortools.sat.python.cp_model import CpModel

        self.task, self.network = task, task.network
        total = sum(map(int, self.network.once)) + int(self.network.sync.max())
        for pace, weight in zip(self.network.paces, task.table.rounds, strict=True):
            total += weight * int(pace.max())
        if total > MAX_TOTAL:
            raise TooLargeError
        self.engine = CpModel()
        self.x = [
            self.engine.new_bool_var(f"x_{a}") for a in range(len(self.network.row))
        ]
        self.one_path()
        self.flow()
        self.set_objective()

    def one_path(self) -> None:
        """``Σ x[a] = 1`` over the stages that begin where plans do (P2)."""
        arcs = self.network.arcs
        first = np.flatnonzero(np.isin(arcs.tail, arcs.starts))
        self.engine.add_exactly_one(self.x[a] for a in first)

    def flow(self) -> None:
        """As many stages end at a place as begin there (P3)."""
        arcs = self.network.arcs
        balance: dict[int, list[tuple[int, int]]] = {}
        for a, (tail, head) in enumerate(
            zip(arcs.tail.tolist(), arcs.head.tolist(), strict=True)
        ):
            balance.setdefault(tail, []).append((a, 1))
            balance.setdefault(head, []).append((a, -1))
        for node in {*arcs.starts.tolist(), *arcs.ends.tolist()}:
            balance.pop(node, None)
        for entries in balance.values():
            self.engine.add(sum(c * self.x[a] for a, c in entries) == 0)

    def largest(self, values: Integers, name: str) -> IntVar:
        """Return a variable that no value of a stage taken exceeds (P4)."""
        least = int(self.network.arcs.largest_through(values).min())
        slowest = self.engine.new_int_var(least, max(least, int(values.max())), name)
        for a in np.flatnonzero(values > least):
            self.engine.add(slowest >= int(values[a])).only_enforce_if(self.x[a])
        return slowest

    def set_objective(self) -> None:
        """Minimize the step time (P1), at most the cutoff (P7)."""
        network, table = self.network, self.task.table
        terms = [int(once) * x for once, x in zip(network.once, self.x, strict=True)]
        for p, (pace, weight) in enumerate(
            zip(network.paces, table.rounds, strict=True)
        ):
            if weight:
                terms.append(weight * self.largest(pace, f"t_max_{p}"))
        terms.append(self.largest(network.sync, "Y"))
        self.step = self.engine.new_int_var(network.bound, self.task.cutoff, "T")
        self.engine.add(self.step == sum(terms))
        self.engine.minimize(self.step)


def solve_path(options: SolveOptions, task: PathTask) -> EngineResult:
    """Find the fastest path of a network within its cutoff."""
    deadline = task.table.deadline
    model = PathModel(task)
    deadline.check()
    remaining_s = deadline.remaining_s
    solver, finished, has_plan = prove(
        model.engine, options, remaining_s, task.table.case, "paths "
    )
    bound = floor_bound(solver.best_objective_bound)
    if not has_plan:
        return EngineResult(finished=finished, bound=bound)
    path = task.walk(lambda a: solver.value(model.x[a]))
    return EngineResult(
        finished=finished,
        plan=task.plan(path),
        claimed_quanta=solver.value(model.step),
        bound=bound,
    )
