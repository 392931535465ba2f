"""``nest import``: problems from other people's files, one format each."""

from __future__ import annotations

from typing import Any

import click

from nest.cli.declare import option, output_option
from nest.cli.inputs import (
    Group,
    check_distinct_files,
    check_output,
    model_problem,
    write_record,
)
from nest.cli.options import JOB, Options, takes

_IN_FILE = "  [default: as the file says]"


@click.group("import", cls=Group)
def import_group() -> None:
    """Turn another tool's files into a problem."""


@import_group.command("nest-artifact")
@click.argument("path", metavar="FILE")
@output_option("problem")
def nest_artifact_command(path: str, output: str) -> int:
    """Import an instance of the NEST artifact."""
    from nest.audits.nest_artifact.importer import import_nest_artifact

    check_distinct_files({"FILE": path, "-o": output})
    check_output(output, "-o")
    write_record(output, import_nest_artifact(path))
    return 0


@import_group.command("piper")
@click.argument("path", metavar="FILE")
@option("--devices K", f"Number of devices.{_IN_FILE}", int)
@option("--micro-batches N", f"Micro-batches per step.{_IN_FILE}", int)
@option("--memory-bytes M", f"Memory of a device.{_IN_FILE}", int)
@option(
    "--bandwidth-bytes-per-s W",
    f"Bandwidth of the flat network.{_IN_FILE}",
    float,
)
@output_option("problem")
def piper_command(path: str, output: str, **changes: Any) -> int:
    """Import a workload of Piper, with its alternatives per layer."""
    from nest.audits.piper.importer import import_piper

    check_distinct_files({"FILE": path, "-o": output})
    check_output(output, "-o")
    write_record(output, import_piper(path, **changes))
    return 0


@import_group.command("hf")
@click.argument("path", metavar="FILE")
@option(
    "--cluster NAME|FILE",
    "Machine and devices, such as h100x64, or a file with them.",
    required=True,
)
@takes(*JOB)
@output_option("problem")
def hf_command(options: Options, path: str, cluster: str, output: str) -> int:
    """Import a model: the config.json of Hugging Face.

    What the options leave open is chosen as for 'nest compare --model'.
    """
    from nest.models.hf import read_hf

    options.check_files({"FILE": path}, {"-o": output})
    job = {**options.job, "cluster": cluster}
    write_record(output, model_problem(read_hf(path), job))
    return 0
