"""Rounding of times, with the error that names what is too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nest.errors import InvalidProblemError
from nest.units import quantise, quantise_all

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Quanta(NamedTuple):
    """Rounds times to a problem's quanta.

    Raises ``InvalidProblemError`` for a time of more than 2**53 quanta.
    """

    quantum_ps: int

    def round(self, time_ns: float, where: str) -> int:
        """Round a time once; ``where`` it comes from is for the message."""
        try:
            return quantise(time_ns, self.quantum_ps)
        except OverflowError as error:
            raise self._too_long(error, where) from error

    def round_all(self, times_ns: NDArray[np.float64], where: str) -> NDArray[np.int64]:
        """Round an array of times, as :meth:`round` would each."""
        try:
            return quantise_all(times_ns, self.quantum_ps)
        except OverflowError as error:
            raise self._too_long(error, where) from error

    def _too_long(self, error: OverflowError, where: str) -> InvalidProblemError:
        return InvalidProblemError(
            f"$.quantum_ps: expected a quantum that keeps every time "
            f"below 2**53 quanta, got {self.quantum_ps} ps, and "
            f"{error} ({where}); correct the cost or raise quantum_ps"
        )
