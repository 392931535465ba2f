"""The path form as a MILP: only steps of maxima are integer.

The paths of a network are the corners of a polytope, so shares of stages need not be
integer: with the largest load and sync fixed, the fastest share of all paths is a path.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from formulations.common import EngineResult
from formulations.engine_log import write_title
from formulations.milp.engines import EngineSettings, Verdict, run
from formulations.milp.windows import limits
from formulations.paths.cuts import Integers
from formulations.paths.search import PathTask


class PathModel:
    """A network as a MILP; symbols as in ``formulations/README.md``.

    Times are divided by ``scale_quanta``, a power of two, which brings the
    cutoff near 2**10.

    ``engine`` is the problem of PuLP, and ``x[a]`` the share of stage ``a``.
    """

    def __init__(self, task: PathTask) -> None:
        import pulp

        self.task, self.network = task, task.network
        self.scale_quanta = 1 << max(0, task.cutoff.bit_length() - 10)
        self.engine = pulp.LpProblem("nest")
        self.x = [pulp.LpVariable(f"x_{a}", 0, 1) for a in range(len(self.network.row))]
        least, most = limits(self.network.bound, task.cutoff)
        self.step = pulp.LpVariable("T", self.scaled(least), self.scaled(most))
        self.engine.setObjective(1 * self.step)
        self.one_path()
        self.flow()
        self.step_time()

    def scaled(self, quanta: float) -> float:
        """Return a time in units of the model."""
        return quanta / self.scale_quanta

    def add(
        self, name: str, terms: list[tuple[Any, float]], sense: int, value: float
    ) -> None:
        """Add a row."""
        import pulp

        self.engine += pulp.LpConstraint(
            pulp.LpAffineExpression(terms), sense, name, value
        )

    def one_path(self) -> None:
        """``Σ x[a] = 1`` over the stages that begin where plans do (P2)."""
        arcs = self.network.arcs
        first = np.flatnonzero(np.isin(arcs.tail, arcs.starts))
        self.add("one_path", [(self.x[a], 1.0) for a in first], 0, 1.0)

    def flow(self) -> None:
        """As much ends at a place as begins there (P3)."""
        arcs = self.network.arcs
        inner = np.setdiff1d(
            np.union1d(arcs.tail, arcs.head), np.union1d(arcs.starts, arcs.ends)
        )
        terms: dict[int, list[tuple[Any, float]]] = {n: [] for n in inner}
        for nodes, sign in ((arcs.head, 1.0), (arcs.tail, -1.0)):
            for a in np.flatnonzero(np.isin(nodes, inner)):
                terms[nodes[a]].append((self.x[a], sign))
        for node, row in terms.items():
            self.add(f"flow_{node}", row, 0, 0.0)

    def largest(
        self, values: Integers, weight: int, name: str
    ) -> list[tuple[Any, float]]:
        """Return ``weight`` times the largest value of the stages taken.

        In steps from each value to the next one (P4'), each no less than the one above
        (P5) and than what of any stage begins at a place and needs it (P6).
        """
        import pulp

        network = self.network
        least = int(network.arcs.largest_through(values).min())
        levels = np.unique(values[values > least])
        one = pulp.LpVariable(f"least_{name}", 1, 1, cat="Integer")
        terms = [(one, self.scaled(weight * least))]
        below, step_below = least, None
        for number, level in enumerate(levels.tolist()):
            step = pulp.LpVariable(f"u_{name}_{number}", cat="Binary")
            terms.append((step, self.scaled(weight * (level - below))))
            if step_below is not None:
                self.add(
                    f"order_{name}_{number}", [(step, 1.0), (step_below, -1.0)], -1, 0.0
                )
            for node, stages in _by_tail(network, values == level):
                self.add(
                    f"link_{name}_{number}_{node}",
                    [*((self.x[a], 1.0) for a in stages), (step, -1.0)],
                    -1,
                    0.0,
                )
            below, step_below = level, step
        return terms

    def step_time(self) -> None:
        """``T = Σ once x + Σ r t_max + Y`` (P1)."""
        network, table = self.network, self.task.table
        terms: list[tuple[Any, float]] = [(self.step, -1.0)]
        terms += [
            (x, self.scaled(once))
            for x, once in zip(self.x, network.once.tolist(), strict=True)
        ]
        for p, (pace, weight) in enumerate(
            zip(network.paces, table.rounds, strict=True)
        ):
            if weight:
                terms += self.largest(pace, weight, f"t_max_{p}")
        terms += self.largest(network.sync, 1, "Y")
        self.add("step_time", terms, 0, 0.0)


def _by_tail(network: Any, chosen: Any) -> list[tuple[int, list[int]]]:
    """Return some stages by where they begin."""
    found: dict[int, list[int]] = {}
    for a in np.flatnonzero(chosen).tolist():
        found.setdefault(int(network.arcs.tail[a]), []).append(a)
    return list(found.items())


def solve_path(engine: EngineSettings, task: PathTask) -> EngineResult:
    """Find the fastest path of a network within its cutoff.

    A bound that floats arrive at is none: that of the network is exact.
    """
    deadline = task.table.deadline
    started_s = deadline.elapsed_s
    model = PathModel(task)
    deadline.check()
    building_s = deadline.elapsed_s - started_s
    how = dataclasses.replace(engine, deadline=deadline, building_s=building_s)
    write_title(how.log, f"milp paths {task.table.case}: {how.name}")
    outcome = run(model.engine, how)
    finished = outcome.verdict is not Verdict.STOPPED
    if outcome.objective is None:
        return EngineResult(finished=finished)
    path = task.walk(lambda a: model.x[a].varValue or 0.0)
    return EngineResult(
        finished=finished,
        plan=task.plan(path),
        claimed_quanta=outcome.objective * model.scale_quanta,
    )
