"""Signs of life on standard error while a solver runs."""

from __future__ import annotations

import os
import shutil
import sys
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from nest.solvers.cell import Running


class StatusLine:
    """A line that changes on a terminal, or a line now and then elsewhere.

    Nothing is shown in the first second.
    """

    #: Seconds until the first sign of life, between two on a terminal, and
    #: between two elsewhere.
    FIRST_S = 1.0
    TERMINAL_S = 0.25
    PIPE_S = 5.0

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = file or sys.stderr
        self._is_terminal = (
            self._file.isatty() and os.environ.get("TERM") != "dumb"
        )
        self._next_s = self.FIRST_S
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def restart(self) -> None:
        """Begin anew: the line is about something else."""
        self.clear()
        self._next_s = self.FIRST_S

    def show(self, elapsed_s: float, text: str) -> None:
        """Show a text, unless it is too early to."""
        if elapsed_s < self._next_s:
            return
        period_s = self.TERMINAL_S if self._is_terminal else self.PIPE_S
        self._next_s = elapsed_s + period_s
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


class ProgressLine(StatusLine):
    """Shows a running cell."""

    def __init__(self, time_unit: str, file: IO[str] | None = None) -> None:
        super().__init__(file)
        self._time_unit = time_unit
        self._solver = ""

    def __call__(self, running: Running) -> None:
        """Show the state, unless it is too early to."""
        if running.solver != self._solver:
            self.restart()
            self._solver = running.solver
        self.show(running.elapsed_s, self._describe(running))

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
