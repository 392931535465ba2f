"""Linear programs with bounds that hold whatever a solver rounds.

``min c x`` with ``A x >= b`` and ``0 <= x <= u``. For any prices ``y >= 0``
it is at least ``b y + Σ_j u_j min(0, c_j - (y A)_j)``, so the prices that a
solver returns give a bound, whatever its tolerances are. So that there are
always prices, one more amount up to 1 satisfies all rows, at a high cost.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nest.search.layer_options import SLACK, Floats

#: Rows are added to solved programs. The effort is limited because the solver
#: may run in circles; it does not depend on the machine.
PARAMETERS = "use_dual_simplex: true max_deterministic_time: 0.02"


class LinearProgram:
    """A linear program whose rows are added one by one.

    Parameters
    ----------
    costs, upper
        ``c`` and ``u``, of one length.
    penalty
        What it costs to satisfy rows that nothing else satisfies.
    """

    def __init__(self, costs: Floats, upper: Floats, penalty: float) -> None:
        from ortools.linear_solver import pywraplp

        self._costs = np.append(costs, penalty)
        self._upper = np.append(upper, 1)
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._solver.SetSolverSpecificParametersAsString(PARAMETERS)
        self._optimal = pywraplp.Solver.OPTIMAL
        self._amounts = [self._solver.NumVar(0.0, x, "") for x in self._upper.tolist()]
        objective = self._solver.Objective()
        for amount, cost in zip(self._amounts, self._costs.tolist(), strict=True):
            objective.SetCoefficient(amount, cost)
        objective.SetMinimization()
        self.rows: list[Floats] = []
        self.lower: list[float] = []
        self._constraints: list[Any] = []

    def add(self, row: Floats, lower: float) -> None:
        """Add the row ``row x >= lower``."""
        lacking = abs(lower) - np.minimum(row, 0.0) @ self._upper[:-1]
        row = np.append(row, lacking)
        constraint = self._solver.Constraint(float(lower), self._solver.infinity())
        for column in np.flatnonzero(row).tolist():
            constraint.SetCoefficient(self._amounts[column], float(row[column]))
        self.rows.append(row)
        self.lower.append(float(lower))
        self._constraints.append(constraint)

    def solve(self) -> tuple[Floats, float]:
        """Return the best ``x``, and a bound; 0 if the solver has none."""
        if self._solver.Solve() != self._optimal:
            return self._upper[:-1], 0.0
        prices = [x.dual_value() for x in self._constraints]
        values = [x.solution_value() for x in self._amounts]
        return np.array(values[:-1]), self.bound(np.array(prices))

    def bound(self, prices: Floats) -> float:
        """Return the bound that some prices of the rows give."""
        prices = np.maximum(prices, 0.0)
        rows, lower = np.array(self.rows), np.array(self.lower)
        reduced = np.minimum(0.0, self._costs - prices @ rows)
        rounding = np.abs(self._costs) + prices @ np.abs(rows)
        value = prices @ lower + self._upper @ reduced
        error = prices @ np.abs(lower) + self._upper @ rounding
        return float(value - SLACK * error)
