"""What a target costs: its best plan beside the best of all."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from nest.solvers.result import SolveResult


class TargetLoss(NamedTuple):
    """How much longer a step takes in a framework."""

    #: Step times of the best plan for the target, and of the best one without it;
    #: ``None`` where there is no plan.
    step_quanta: int | None
    free_quanta: int | None
    #: Whether both are the least that there are.
    proven: bool

    @property
    def fraction(self) -> Fraction | None:
        """The loss as a part of the time without the target, if known."""
        if self.step_quanta is None or not self.free_quanta:
            return None
        more = self.step_quanta - self.free_quanta
        return Fraction(more, self.free_quanta)

    def __str__(self) -> str:
        if self.free_quanta is None:
            return "target loss unknown: no plan found without the target"
        if self.fraction is None:
            return "target loss unknown: no plan found for the target"
        known = "both proven optimal" if self.proven else "not proven"
        less = "slower" if self.fraction >= 0 else "faster"
        return (
            f"{abs(float(100 * self.fraction)):.2f} % {less} than the best "
            f"plan without the target ({known})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as part of a document."""
        fraction = self.fraction
        return {
            "step_quanta": self.step_quanta,
            "untargeted_quanta": self.free_quanta,
            "fraction": None if fraction is None else float(fraction),
            "proven": self.proven,
        }


def loss_of(results: Sequence[SolveResult], free: SolveResult) -> TargetLoss:
    """Return how much the best of a target's results loses to a free result."""
    best = min(
        (r for r in results if r.step_quanta is not None),
        key=lambda r: (r.step_quanta, r.status != "optimal"),
        default=None,
    )
    return TargetLoss(
        None if best is None else best.step_quanta,
        free.step_quanta,
        best is not None and best.status == free.status == "optimal",
    )
