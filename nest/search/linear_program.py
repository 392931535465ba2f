"""Linear programs with bounds that hold whatever a solver rounds.

``min c x`` with ``A x >= b`` and ``0 <= x <= u``. For any prices ``y >= 0``
it is at least ``b y + Σ_j u_j min(0, c_j - (y A)_j)``, so the prices that a
solver returns give a bound, whatever its tolerances are. So that there are
always prices, one more amount satisfies all rows, at a high cost.
"""

from __future__ import annotations

import math

import numpy as np

from nest.search.layers.options import SLACK, Floats

#: Rows are added to solved programs. The effort is limited because the solver
#: may run in circles; it does not depend on the machine.
OPTIONS = {
    "output_flag": False,
    "solver": "simplex",
    "simplex_strategy": 1,
    "presolve": "off",
    "threads": 1,
    "parallel": "off",
    "simplex_iteration_limit": 20_000,
}


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
        import highspy

        self._costs = np.append(costs, penalty)
        self._upper = np.append(upper, 1 + upper.sum())
        self._solver = highspy.Highs()
        for name, value in OPTIONS.items():
            self._solver.setOptionValue(name, value)
        num = len(self._costs)
        self._solver.addVars(num, np.zeros(num), self._upper)
        self._solver.changeColsCost(num, np.arange(num, dtype=np.int32), self._costs)
        self._optimal = highspy.HighsModelStatus.kOptimal
        self.rows: list[Floats] = []
        self.lower: list[float] = []
        self._num_given = 0

    def add(self, row: Floats, lower: float) -> None:
        """Add the row ``row x >= lower``."""
        largest = max(float(np.abs(row).max()), abs(lower))
        # A power of two: nothing is rounded.
        scale = 2.0 ** -math.frexp(largest)[1]
        self.rows.append(np.append(row * scale, 1.0))
        self.lower.append(lower * scale)

    def _give_new_rows(self) -> None:
        """Give the solver the rows that it does not have yet."""
        first = self._num_given
        self._num_given = len(self.rows)
        rows = np.array(self.rows[first:]).reshape(-1, len(self._costs))
        row_numbers, columns = np.nonzero(rows)
        self._solver.addRows(
            len(rows),
            np.array(self.lower[first:]),
            np.full(len(rows), np.inf),
            len(columns),
            np.searchsorted(row_numbers, np.arange(len(rows))).astype(np.int32),
            columns.astype(np.int32),
            rows[row_numbers, columns],
        )

    def solve(self) -> tuple[Floats, float]:
        """Return the best ``x``, and a bound; 0 if the solver has none."""
        self._give_new_rows()
        self._solver.run()
        if self._solver.getModelStatus() != self._optimal:
            return self._upper[:-1], 0.0
        solution = self._solver.getSolution()
        prices = np.array(solution.row_dual)
        return np.array(solution.col_value)[:-1], self.bound(prices)

    def bound(self, prices: Floats) -> float:
        """Return the bound that some prices of the rows give."""
        prices = np.maximum(prices, 0.0)
        rows, lower = np.array(self.rows), np.array(self.lower)
        rounding = np.abs(self._costs) + prices @ np.abs(rows)
        reduced = self._costs - prices @ rows - SLACK * rounding
        value = prices @ lower - SLACK * (prices @ np.abs(lower))
        return float(value + (1 + SLACK) * (self._upper @ np.minimum(reduced, 0.0)))
