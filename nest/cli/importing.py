"""``nest import``: problems from other people's files, one format each."""

from __future__ import annotations

import click

from nest.cli.inputs import (
    Group,
    check_distinct_files,
    check_output,
    model_problem,
    output_option,
    write_record,
)
from nest.cli.options import JOB, Options, takes


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
@click.option(
    "--devices",
    type=int,
    metavar="K",
    help="Number of devices.  [default: as the file says]",
)
@click.option(
    "--micro-batches",
    type=int,
    metavar="N",
    help="Micro-batches per step.  [default: as the file says]",
)
@click.option(
    "--memory-bytes",
    type=int,
    metavar="M",
    help="Memory of a device.  [default: as the file says]",
)
@click.option(
    "--bandwidth-bytes-per-s",
    type=float,
    metavar="W",
    help="Bandwidth of the flat network.  [default: as the file says]",
)
@output_option("problem")
def piper_command(
    path: str,
    devices: int | None,
    micro_batches: int | None,
    memory_bytes: int | None,
    bandwidth_bytes_per_s: float | None,
    output: str,
) -> int:
    """Import a workload of Piper, with its alternatives per layer."""
    from nest.audits.piper.importer import import_piper

    check_distinct_files({"FILE": path, "-o": output})
    check_output(output, "-o")
    problem = import_piper(
        path,
        devices=devices,
        micro_batches=micro_batches,
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
    )
    write_record(output, problem)
    return 0


@import_group.command("hf")
@click.argument("path", metavar="FILE")
@click.option(
    "--cluster",
    required=True,
    metavar="NAME",
    help="Machine and devices, such as h100x64.",
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
