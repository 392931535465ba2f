"""What commands take and give: problems, plans, numbers, output files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from nest.errors import (
    InvalidOptionError,
    InvalidProblemError,
    NestError,
    UnknownNameError,
)

if TYPE_CHECKING:
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem

F = TypeVar("F", bound=Callable[..., object])


class Group(click.Group):
    """A group that says what its commands are when it is given another."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise UnknownNameError(
                f"{ctx.command_path} COMMAND", args[0], self.commands
            )
        return super().resolve_command(ctx, args)


def seconds(text: str) -> float:
    """Read a finite number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise click.BadParameter(
            f"expected a finite number of seconds > 0, got {text!r}; "
            f"leave it out for no limit"
        )
    return value


def integer(
    lowest: int, highest: Callable[[], int]
) -> Callable[[str | int], int]:
    """Return a reader of integers from a range."""

    def read(text: str | int) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if not lowest <= value <= highest():
            raise click.BadParameter(
                f"expected an integer from {lowest} to {highest()}, "
                f"got {text!r}; correct the value"
            )
        return value

    return read


def load_problem(text: str) -> Problem:
    """Return the problem in a file, on standard input (``-``), or built in.

    A file wins over a built-in problem of the same name.
    """
    from difflib import get_close_matches

    from nest.ir.io import decode_problem, read_problem

    if text == "-":
        return decode_problem(sys.stdin.buffer.read(), "standard input")
    if os.path.exists(text):
        return read_problem(text)

    from nest.workloads import builtin

    if text in builtin.names():
        return builtin.load(text)
    if os.sep in text or text.endswith((".json", ".yaml", ".yml")):
        return read_problem(text)  # says that there is no such file
    close = get_close_matches(text, builtin.names(), n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else "see 'nest problems'"
    raise InvalidProblemError(
        f"{text}: expected a file or a built-in problem "
        f"({', '.join(builtin.names())}), got no such file and no such "
        f"name; {hint}"
    )


def load_plan(path: str) -> Plan:
    """Return the plan in a file."""
    from nest.ir.io import read_plan

    return read_plan(path)


def check_output(path: str | None, option: str) -> None:
    """Refuse an output path before any work is done for it.

    Raises
    ------
    NestError
        If it is plain that the file cannot be written.
    """
    if path is None or path == "-":
        return
    file = Path(path)
    reason = None
    if file.is_dir():
        reason = "a directory"
    elif not file.parent.is_dir():
        reason = f"no directory {file.parent}"
    elif file.exists() and not os.access(file, os.W_OK):
        reason = "a file that may not be written"
    elif not file.exists() and not os.access(file.parent, os.W_OK):
        reason = f"a directory {file.parent} that may not be written"
    if reason is not None:
        raise NestError(
            f"{option} {path}: expected a writable file, got {reason}; "
            f"choose another path"
        )


def check_distinct_files(**paths: str | None) -> None:
    """Refuse to read and write, or to write twice, the same file."""
    seen: dict[str, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        place = path if path == "-" else os.path.realpath(path)
        if place in seen:
            raise InvalidOptionError(
                f"{name}: expected another file than for {seen[place]}, "
                f"got {path} for both; choose another path"
            )
        seen[place] = name


def write_json(path: str, document: Any) -> None:
    """Write a document to a file, whole or not at all, or to ``-``."""
    from nest.ir.io import write_atomically

    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_atomically(Path(path), text.encode())


def write_record(path: str, record: Problem | Plan) -> None:
    """Write a problem or a plan to a file or to ``-``."""
    from nest.ir.io import encode, write

    if path == "-":
        sys.stdout.write(encode(record).decode())
        sys.stdout.flush()
    else:
        write(path, record)


def people(*outputs: str | None) -> IO[str]:
    """Return where to talk to people: standard error if data takes ``-``."""
    return sys.stderr if "-" in outputs else sys.stdout


def solve_options(command: F) -> F:
    """Add the options that ``solve`` and ``compare`` share."""
    from nest.versions import num_cpus

    options = (
        click.option(
            "--time-limit",
            type=seconds,
            metavar="S",
            help="Wall-clock seconds per solver, everything included.",
        ),
        click.option(
            "--workers",
            type=integer(1, num_cpus),
            default=1,
            metavar="N",
            help="Threads per solver.  [default: 1]",
        ),
        click.option(
            "--seed",
            type=integer(0, lambda: 2**31 - 1),
            default=0,
            metavar="N",
            help="Seed of random choices.  [default: 0]",
        ),
        click.option(
            "--warm-start",
            metavar="PLAN",
            help="Plan file to start from, for solvers that can.",
        ),
        click.option(
            "--option",
            "extra",
            multiple=True,
            metavar="SOLVER.KEY=VALUE",
            help="Option of one solver, see 'nest solvers'; repeatable.",
        ),
        click.option(
            "--json",
            "json_path",
            metavar="FILE",
            help="Also write a JSON document; '-' is standard output.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def parse_extra(
    texts: tuple[str, ...], solvers: list[str]
) -> dict[str, dict[str, str]]:
    """Return ``SOLVER.KEY=VALUE`` texts as a dict per solver."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        solver, dot, key = name.partition(".")
        if not (equals and dot and solver and key):
            raise InvalidOptionError(
                f"--option: expected SOLVER.KEY=VALUE, got {text!r}; "
                f"for example --option {solvers[0]}.key=value"
            )
        if solver not in solvers:
            raise InvalidOptionError(
                f"--option {text}: expected one of the solvers that run "
                f"({', '.join(solvers)}), got {solver!r}; "
                f"correct it or add the solver"
            )
        if key in found.setdefault(solver, {}):
            raise InvalidOptionError(
                f"--option {text}: expected {solver}.{key} once, got it "
                f"twice; remove one"
            )
        found[solver][key] = value
    return found
