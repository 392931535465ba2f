"""``nest import``: problems from other people's files, one format each."""

from __future__ import annotations

from typing import Any

import click

from nest.cli.inputs import (
    Group,
    check_distinct_files,
    check_output,
    job_options,
    model_problem,
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


@import_group.command("hf")
@click.argument("path", metavar="FILE")
@click.option(
    "--cluster",
    required=True,
    metavar="NAME",
    help="Machine and devices, such as h100x64.",
)
@job_options
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="Where to write the problem; '-' is standard output.",
)
def hf_command(path: str, output: str, **job: Any) -> int:
    """Import a model: the config.json of Hugging Face.

    What the options leave open is chosen as for 'nest compare --model'.
    """
    from nest.workloads.hf import read_hf

    check_distinct_files(
        **{"FILE": path, "--profile": job["profile"], "-o": output}
    )
    check_output(output, "-o")
    write_record(output, model_problem(read_hf(path), job))
    return 0
