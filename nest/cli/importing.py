"""``nest import``: problems from other people's files, one format each."""

from __future__ import annotations

import click

from nest.cli.inputs import (
    Group,
    check_distinct_files,
    check_output,
    write_record,
)


@click.group("import", cls=Group)
def import_group() -> None:
    """Turn another tool's files into a problem."""


@import_group.command("nest-artifact")
@click.argument("path", metavar="FILE")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="Where to write the problem; '-' is standard output.",
)
def nest_artifact_command(path: str, output: str) -> int:
    """Import an instance of the NEST artifact."""
    from nest.workloads.nest_artifact import import_nest_artifact

    check_distinct_files(**{"FILE": path, "-o": output})
    check_output(output, "-o")
    write_record(output, import_nest_artifact(path))
    return 0
