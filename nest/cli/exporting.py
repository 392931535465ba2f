"""``nest export``: a plan as the files of a training framework."""

from __future__ import annotations

import os

import click

from nest.cli.options import TALK, Files, takes
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.requests.launching import ExportRequest, export
from nest.util.files import check_output


@click.command("export")
@takes(ExportRequest, without=("target",))
def export_command(request: ExportRequest) -> int:
    """Write a plan as arguments or configuration of a framework.

    What was written is read again, and must give the plan's layers on every
    rank and its process groups. A plan that the framework cannot run is
    refused by the name of the field, or replaced with --nearest.

    With --to chakra any plan's step is written as execution traces, which
    must take what 'nest simulate' says; with --to csv its order of passes as
    a schedule for PyTorch, a row per pipeline rank.
    """
    from nest.frameworks.export import write_folder

    if request.output is None:
        raise InvalidOptionError(
            "nest export: expected --output, got none; see 'nest export --help'"
        )
    folder = os.fspath(request.output)
    Files().check(request)
    check_output(folder, "-o", folder=True)
    files = export(request, TALK, _tell)
    write_folder(folder, files)
    say(str(files["README"]), end="")
    return 0


def _tell(text: str, is_warning: bool) -> None:
    say(f"nest: {text}" if is_warning else text, err=is_warning)
