"""Signs of life on standard error while a command works."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextvars import ContextVar
from fractions import Fraction
from typing import IO, TYPE_CHECKING, Any, Self

import click

from nest.cli.saying import say
from nest.present.verbosity import QUIET, VERBOSE
from nest.requests.values import both_given
from nest.util.terminal import columns_of, in_columns
from nest.util.text import printable

if TYPE_CHECKING:
    from nest.solvers.cell import Running


def add_talk(command: click.Command) -> None:
    """Add ``--quiet`` and ``--verbose`` to a command."""
    command.params += [
        _switch(
            ("-q", "--quiet"), "Print only errors on standard error.", QUIET, VERBOSE
        ),
        _switch(
            ("-v", "--verbose"),
            "Print every column and row of tables, and more notes.",
            VERBOSE,
            QUIET,
        ),
    ]


def _switch(
    flags: Sequence[str], text: str, switch: ContextVar[bool], other: ContextVar[bool]
) -> click.Option:
    """Return an option that turns a switch on while the command runs."""

    def turn_on(context: click.Context, _: click.Parameter, on: bool) -> None:
        if not on:
            return
        if other.get():
            raise both_given("--quiet", "--verbose")
        token = switch.set(True)
        # Of the root: others are not closed if their options are wrong.
        context.find_root().call_on_close(lambda: switch.reset(token))

    settings: dict[str, Any] = {"is_flag": True, "expose_value": False}
    return click.Option(flags, help=text, callback=turn_on, **settings)


def hint(text: str) -> None:
    """Say a line on standard error, unless it is for errors only."""
    if not QUIET.get():
        say(text, err=True)


def duration(seconds: float) -> str:
    """Return how long something takes, in two units at most."""
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def share_left(elapsed_s: float, done: int, total: int) -> str:
    """Return how long the rest takes if it goes on as before.

    Empty as long as nothing is done.
    """
    if not 0 < done < total:
        return ""
    return f", about {duration(elapsed_s / done * (total - done))} left"


class StatusLine:
    """A line that changes on a terminal, or a line now and then elsewhere.

    Nothing is shown in the first second. With ``--verbose`` a terminal gets
    lines too, and with ``--quiet`` there are none.
    """

    #: Seconds until the first sign of life, between two on a terminal, and
    #: between two elsewhere.
    FIRST_S = 1.0
    TERMINAL_S = 0.25
    PIPE_S = 5.0
    VERBOSE_S = 1.0

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = file or sys.stderr
        self._is_quiet, self._is_verbose = QUIET.get(), VERBOSE.get()
        self._is_terminal = (
            self._file.isatty()
            and os.environ.get("TERM") != "dumb"
            and not self._is_verbose
        )
        self._next_s = self.FIRST_S
        self._shown = False
        self._start_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the line was made."""
        return time.monotonic() - self._start_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def restart(self) -> None:
        """Begin anew: the line is about something else."""
        self.clear()
        self._next_s = self.FIRST_S

    def update(self, text: str) -> None:
        """Show a text about the time since the line was made."""
        self.show(self.elapsed_s, text)

    def show(self, elapsed_s: float, text: str) -> None:
        """Show a text, unless it is too early to."""
        if self._is_quiet or elapsed_s < self._next_s:
            return
        text = printable(text)
        period_s = self.TERMINAL_S if self._is_terminal else self.PIPE_S
        self._next_s = elapsed_s + (self.VERBOSE_S if self._is_verbose else period_s)
        if self._is_terminal:
            width = columns_of(self._file) - 1
            self._file.write(f"\r\x1b[2K{text[:width]}")
            self._shown = True
        else:
            self._file.write(f"{in_columns(text, self._file)}\n")
        self._file.flush()

    def clear(self) -> None:
        """Remove the line before anything else is printed."""
        if self._shown:
            self._file.write("\r\x1b[2K")
            self._file.flush()
            self._shown = False


class ProgressLine(StatusLine):
    """Shows a running cell: time, incumbent, bound, and its last words.

    Each of ``cells``, if their number is known, ends within ``limit_s`` seconds.
    """

    def __init__(
        self,
        time_unit: str,
        file: IO[str] | None = None,
        *,
        limit_s: float | None = None,
        cells: int | None = None,
    ) -> None:
        super().__init__(file)
        self._time_unit = time_unit
        self._limit_s, self._cells = limit_s, cells
        self._solver, self._number = "", 0

    def uncounted(self) -> None:
        """Know that what runs from now on is none of the cells."""
        self._cells = None

    def __call__(self, running: Running) -> None:
        """Show the state, unless it is too early to."""
        if running.solver != self._solver:
            self.restart()
            self._solver = running.solver
            self._number += 1
        # Bad input is refused in one line, however long its check takes.
        if running.begun:
            self.show(running.elapsed_s, self._describe(running))

    def _describe(self, running: Running) -> str:
        parts = [f"{running.solver}: {running.elapsed_s:.0f} s"]
        if self._limit_s is None:
            parts.append("no time limit")
        else:
            left_s = max(0.0, self._limit_s - running.elapsed_s)
            of_all = ""
            if self._cells is not None:
                left_s += self._limit_s * max(0, self._cells - self._number)
            else:
                of_all = " for this one"
            parts.append(f"at most {duration(left_s)} left{of_all}")
        best, bound = running.best_quanta, running.lower_bound_quanta
        if best is not None:
            parts.append(f"best {self._time(best, running)}")
        elif running.has_plan:
            parts.append("has a plan")
        if bound:
            parts.append(f"bound {self._time(bound, running)}")
        if best and bound:
            from nest.present.table import percent

            gap = max(Fraction(best - bound, best), Fraction(0))
            parts.append(f"gap {percent(gap)} %")
        if running.message:
            parts.append(" ".join(running.message.split()))
        if self._cells is not None and self._cells > 1:
            parts[0] = f"{self._number} of {self._cells}, {parts[0]}"
        return ", ".join(parts)

    def _time(self, quanta: int, running: Running) -> str:
        seconds = quanta * running.quantum_ps / 1e12
        return f"{seconds:.6g} {self._time_unit}"
