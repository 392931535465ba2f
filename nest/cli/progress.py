"""Signs of life on standard error while a solver runs."""

from __future__ import annotations

import os
import shutil
import sys
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from nest.solvers.cell import Running


class ProgressLine:
    """Shows a running cell: one line that changes, or a line now and then.

    Cells shorter than a second show nothing.
    """

    #: Seconds between two signs of life on a terminal and elsewhere.
    TERMINAL_S = 0.25
    PIPE_S = 5.0

    def __init__(self, time_unit: str, file: IO[str] | None = None) -> None:
        self._file = file or sys.stderr
        self._time_unit = time_unit
        self._is_terminal = (
            self._file.isatty() and os.environ.get("TERM") != "dumb"
        )
        self._next_s = 1.0
        self._solver = ""
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, running: Running) -> None:
        """Show the state, unless it is too early to."""
        if running.solver != self._solver:
            self.clear()
            self._solver, self._next_s = running.solver, 1.0
        if running.elapsed_s < self._next_s:
            return
        period_s = self.TERMINAL_S if self._is_terminal else self.PIPE_S
        self._next_s = running.elapsed_s + period_s
        text = self._describe(running)
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._file.write(f"\r\x1b[2K{text[:width]}")
            self._shown = True
        else:
            self._file.write(f"{text}\n")
        self._file.flush()

    def clear(self) -> None:
        """Remove the line before anything else is printed."""
        if self._shown:
            self._file.write("\r\x1b[2K")
            self._file.flush()
            self._shown = False

    def _describe(self, running: Running) -> str:
        parts = [f"{running.solver}: {running.elapsed_s:.0f} s"]
        if running.best_quanta is not None:
            best = self._time(running.best_quanta, running)
            parts.append(f"best so far {best}")
        elif running.has_plan:
            parts.append("has a plan")
        if running.lower_bound_quanta is not None:
            bound = self._time(running.lower_bound_quanta, running)
            parts.append(f"bound {bound}")
        if running.message:
            parts.append(" ".join(running.message.split()))
        return ", ".join(parts)

    def _time(self, quanta: int, running: Running) -> str:
        seconds = quanta * running.quantum_ps / 1e12
        return f"{seconds:.6g} {self._time_unit}"
