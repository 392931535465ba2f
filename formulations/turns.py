"""Plans of presets whose data ranks take turns, for plain enumeration.

Stages as everywhere else; all layers of a stage share ``dp`` and ``tp``, and
each has a recompute choice of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from formulations.brute import PlanSpace, _Choice
from nest.ir.plan import Stage, Strategy

#: Devices and ranks that are left.
Left = tuple[int, int]


class TurnsSpace(PlanSpace):
    """All plans of such a problem: counted, and listed one by one."""

    def _count(
        self,
        choice: _Choice,
        closed: int,
        devices_left: int,
        number: int,
        known: dict[tuple[int, ...], int],
    ) -> int:
        left = (devices_left, choice.case.num_micro_batches)
        return self._count_turns(choice, closed, left, number, {})

    def _count_turns(
        self,
        choice: _Choice,
        closed: int,
        left: Left,
        number: int,
        known: dict[tuple[int, Left, int], int],
    ) -> int:
        if closed == self.full:
            return int(self.complete(number))
        key = (closed, left, number)
        if key not in known:
            total = 0
            for following in self.next_sets(closed):
                for options, rest in self._groups(
                    choice, following & ~closed, left
                ):
                    self._count_step()
                    total += prod(map(len, options)) * self._count_turns(
                        choice, following, rest, number + 1, known
                    )
            known[key] = total
        return known[key]

    def _plans(
        self, choice: _Choice, closed: int, devices_left: int, number: int
    ) -> Iterator[tuple[Stage, ...]]:
        left = (devices_left, choice.case.num_micro_batches)
        return self._turns(choice, closed, left, number)

    def _turns(
        self, choice: _Choice, closed: int, left: Left, number: int
    ) -> Iterator[tuple[Stage, ...]]:
        if closed == self.full:
            if self.complete(number):
                yield ()
            return
        for following in self.next_sets(closed):
            layers = following & ~closed
            for options, rest in self._groups(choice, layers, left):
                for chosen in product(*options):
                    self._tick()
                    stage = self._stage(layers, chosen)
                    for stages in self._turns(
                        choice, following, rest, number + 1
                    ):
                        yield (stage, *stages)

    def _groups(
        self, choice: _Choice, layers: int, left: Left
    ) -> Iterator[tuple[list[list[Strategy]], Left]]:
        """Yield the options of every layer for each legal (dp, tp)."""
        for dp, tp in sorted({(s.dp, s.tp) for s in choice.strategies}):
            rest = (left[0] - dp * tp, left[1] - dp)
            if min(rest) < 0:
                continue
            allowed = [
                s for s in choice.strategies if (s.dp, s.tp) == (dp, tp)
            ]
            options = self._options(choice, layers, allowed)
            if all(options):
                yield options, rest
