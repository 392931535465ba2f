"""The objective of a search for architectures, in whole numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Step time where no plan fits, in quanta; all others are below 2**61.
NO_PLAN = 2**62

Kind = Literal["geometric-mean", "worst-case"]

#: Python integers in an array, which never overflow.
Whole = NDArray[np.object_]


class Objective(NamedTuple):
    """The rule that makes one number of the step times of several models.

    ``geometric-mean``: the geometric mean of the throughputs relative to a
    base, weighted; it is largest where ``Π T_m ** w_m`` is least, whatever the
    base. ``worst-case``: the least of these throughputs, largest where
    ``max_m T_m / base_m`` is least.

    ``weights`` are whole numbers ``w_m``, one per model, which count for the mean
    alone; ``base_quanta`` are step times ``base_m`` of the base architecture, one per
    model.
    """

    kind: Kind
    weights: tuple[int, ...]
    base_quanta: tuple[int, ...]

    @property
    def worst(self) -> int:
        """The cost where some model fits no plan."""
        return int(NO_PLAN ** max(2, 1 + sum(self.weights)))

    def costs(self, step_quanta: NDArray[np.int64]) -> Whole:
        """Return what is to be least, for step times ``(models, points)``.

        It does not decrease where a step time grows, so that lower bounds
        give lower bounds.
        """
        times = step_quanta.astype(object)
        if self.kind == "geometric-mean":
            costs = np.multiply.reduce(
                [each**weight for each, weight in zip(times, self.weights, strict=True)]
            )
        else:
            product = math.prod(self.base_quanta)
            costs = np.maximum.reduce(
                [
                    each * (product // base)
                    for each, base in zip(times, self.base_quanta, strict=True)
                ]
            )
        whole_costs = np.array(costs, dtype=object)
        whole_costs[(step_quanta >= NO_PLAN).any(axis=0)] = self.worst
        return whole_costs

    def cost(self, step_quanta: Sequence[int]) -> int:
        """Return what is to be least, for one architecture."""
        column = np.array(step_quanta, dtype=np.int64)[:, None]
        return int(self.costs(column)[0])

    def target(self, step_quanta: Sequence[int], model: int, cost: int) -> int:
        """Return the longest step of a model that keeps a cost.

        ``step_quanta`` bounds the others from below; -1 if no step does.
        """

        def cost_of(step: int) -> int:
            return self.cost([*step_quanta[:model], step, *step_quanta[model + 1 :]])

        return bisect_right(range(NO_PLAN), cost, key=cost_of) - 1

    def relative(self, step_quanta: Sequence[int]) -> float:
        """Return the throughput relative to the base, for people."""
        return self.relative_of(self.cost(step_quanta)) or 0.0

    def relative_of(self, cost: int) -> float | None:
        """Return the throughput relative to the base that a cost is.

        0 where no plan fits; ``None`` for the cost 0, which says nothing.
        """
        if cost >= self.worst:
            return 0.0
        if cost <= 0:
            return None
        if self.kind == "worst-case":
            return math.prod(self.base_quanta) / cost
        # The ratio itself may be out of range.
        of_base = self.cost(self.base_quanta)
        ratio = math.log(of_base) - math.log(cost)
        return math.exp(ratio / sum(self.weights))
