"""What commands give: output files, and where to talk to people."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from nest.cli.saying import say_data
from nest.errors import InvalidOptionError, InvalidProblemError, UnknownNameError

if TYPE_CHECKING:
    from nest.hardware.calibration import CalibrationFile
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem


class Group(click.Group):
    """A group that says what its commands are when it is given another."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            raise UnknownNameError(f"{ctx.command_path} COMMAND", args[0], names)
        return super().resolve_command(ctx, args)


def check_distinct_files(paths: Mapping[str, str | None]) -> None:
    """Refuse to read and write, or to write twice, the same file."""
    seen: dict[str, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        file = path if path == "-" else os.path.realpath(path)
        if file in seen:
            raise InvalidOptionError(
                f"{name}: expected another file than for {seen[file]}, "
                f"got {path} for both; choose another path"
            )
        seen[file] = name


def check_page(path: str | None, option: str = "--html") -> None:
    """Refuse a page on standard output, which is for people and for data."""
    if path == "-":
        raise InvalidOptionError(
            f"{option}: expected a file, got '-'; name one, such as report.html"
        )


def read_input(path: str) -> tuple[str, bytes]:
    """Return what messages call a file, and its content.

    ``-`` is standard input.
    """
    from nest.ir.documents import read_stdin
    from nest.ir.io import read_bytes

    if path == "-":
        return "standard input", read_stdin(InvalidProblemError)
    return path, read_bytes(path, InvalidProblemError)


def write_text(path: str, text: str) -> None:
    """Write a text to a file, whole or not at all, or to ``-``."""
    from nest.util.files import write_atomically

    if path == "-":
        say_data(text)
    else:
        write_atomically(Path(path), text.encode())


def write_json(path: str, document: Any) -> None:
    """Write a document to a file, whole or not at all, or to ``-``."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_record(path: str, record: Problem | Plan | CalibrationFile) -> None:
    """Write a problem, a plan or a calibration to a file or to ``-``."""
    from nest.ir.io import encode

    write_text(path, encode(record).decode())


def people(*outputs: str | None) -> IO[str]:
    """Return where to talk to people: standard error if data takes ``-``.

    With ``--quiet`` nowhere then, as that is for errors.
    """
    from nest.present.verbosity import QUIET

    if "-" not in outputs:
        return sys.stdout
    return io.StringIO() if QUIET.get() else sys.stderr
