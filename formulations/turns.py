"""Plans of presets whose data ranks take turns, for plain enumeration.

Stages as everywhere else; all layers of a stage share ``dp`` and ``tp``, and
each has a recompute choice of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from formulations.brute import BruteSolver, PlanSpace, _Choice
from nest.ir.plan import Plan, Stage, Strategy

#: Devices and ranks that are left.
Left = tuple[int, int]


class TurnsSpace(PlanSpace):
    """All plans of such a problem: counted, and listed one by one."""

    def plans(self) -> Iterator[Plan]:
        """Yield every plan."""
        for choice in self.choices():
            case = choice.case
            left = (case.devices, case.num_micro_batches)
            for stages in self._turns(choice, 0, left):
                yield Plan(
                    replicas=case.replicas,
                    micro_batch=case.micro_batch,
                    stages=stages,
                    solver=BruteSolver.name,
                )

    def _count(
        self,
        choice: _Choice,
        closed: int,
        devices_left: int,
        known: dict[tuple[int, int], int],
    ) -> int:
        left = (devices_left, choice.case.num_micro_batches)
        return self._count_turns(choice, closed, left, {})

    def _count_turns(
        self,
        choice: _Choice,
        closed: int,
        left: Left,
        known: dict[tuple[int, Left], int],
    ) -> int:
        if closed == self.full:
            return 1
        key = (closed, left)
        if key not in known:
            total = 0
            for following in self.next_sets(closed):
                for options, rest in self._groups(
                    choice, following & ~closed, left
                ):
                    self._count_step()
                    total += prod(map(len, options)) * self._count_turns(
                        choice, following, rest, known
                    )
            known[key] = total
        return known[key]

    def _turns(
        self, choice: _Choice, closed: int, left: Left
    ) -> Iterator[tuple[Stage, ...]]:
        if closed == self.full:
            yield ()
            return
        for following in self.next_sets(closed):
            layers = following & ~closed
            for options, rest in self._groups(choice, layers, left):
                for chosen in product(*options):
                    self._tick()
                    stage = self._mixed(layers, chosen)
                    for stages in self._turns(choice, following, rest):
                        yield (stage, *stages)

    def _groups(
        self, choice: _Choice, layers: int, left: Left
    ) -> Iterator[tuple[list[list[Strategy]], Left]]:
        """Yield the options of every layer for each legal (dp, tp)."""
        for dp, tp in sorted({(s.dp, s.tp) for s in choice.strategies}):
            rest = (left[0] - dp * tp, left[1] - dp)
            if min(rest) < 0:
                continue
            options = [
                [
                    strategy
                    for strategy in choice.strategies
                    if (strategy.dp, strategy.tp) == (dp, tp)
                    and self.fits(1 << i, strategy, choice.case.micro_batch)
                ]
                for i in range(len(self.problem.graph.layers))
                if layers >> i & 1
            ]
            if all(options):
                yield options, rest

    def _mixed(self, layers: int, chosen: tuple[Strategy, ...]) -> Stage:
        alike = len(set(chosen)) == 1
        return Stage(
            layers=tuple(
                layer.id
                for position, layer in enumerate(self.problem.graph.layers)
                if layers >> position & 1
            ),
            devices=chosen[0].devices,
            strategy=chosen[0] if alike else None,
            strategies=None if alike else chosen,
        )
