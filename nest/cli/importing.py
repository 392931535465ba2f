"""``nest import``: problems from other people's files, one format each."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from nest.cli.declare import option, output_option
from nest.cli.inputs import Group, write_record
from nest.cli.options import Files, takes
from nest.cli.progress import hint
from nest.cli.saying import say_error
from nest.errors import InvalidPlanError
from nest.frameworks.faults import Fault, FaultsError
from nest.ir.io import read_plan, read_text
from nest.requests import launch_files
from nest.requests.modules import ModuleRequest
from nest.requests.problems import JobRequest
from nest.requests.restricted import defaults_of
from nest.requests.values import quantity
from nest.util.quantities import RATE, SIZE

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

    Files(output=output).check(reads={"FILE": path})
    write_record(output, import_nest_artifact(path))
    return 0


@import_group.command("piper")
@click.argument("path", metavar="FILE")
@option("--devices K", f"Number of devices.{_IN_FILE}", int)
@option("--micro-batches N", f"Micro-batches per step.{_IN_FILE}", int)
@option(
    "--memory-bytes M",
    f"Memory of a device, in bytes or such as 16GB.{_IN_FILE}",
    quantity(SIZE, "B", reads=int),
)
@option(
    "--bandwidth-bytes-per-s W",
    f"Bandwidth of the flat network, in bytes/s or such as 100Gb/s.{_IN_FILE}",
    quantity(RATE, "B/s"),
)
@output_option("problem")
def piper_command(path: str, output: str, **changes: Any) -> int:
    """Import a workload of Piper, with its alternatives per layer."""
    from nest.audits.piper.importer import import_piper

    Files(output=output).check(reads={"FILE": path})
    write_record(output, import_piper(path, **changes))
    return 0


@import_group.command("hf")
@click.argument("path", metavar="FILE")
@option(
    "--cluster NAME|FILE",
    "Machine and devices, such as h100x64, or a file with them.",
    required=True,
)
@option("--mtp", "Count modules for multi-token prediction too.", is_flag=True)
@takes(JobRequest)
@output_option("problem")
def hf_command(
    request: JobRequest, path: str, cluster: str, mtp: bool, output: str
) -> int:
    """Import a model: the config.json of Hugging Face.

    What the options leave open is chosen as for 'nest compare --model'.
    """
    from nest.models.hf import read_hf

    Files().check(request, {"FILE": path}, {"-o": output})
    model = read_hf(path, mtp=mtp)
    problem = request.build_problem(model, cluster)
    write_record(output, problem)
    defaults = defaults_of(problem, model, request.given_job)
    for note in (defaults and f"assumed: {defaults}", model.note):
        if note:
            hint(f"nest: note: {path}: {note}")
    return 0


@import_group.command("torch")
@takes(ModuleRequest)
@output_option("problem")
def torch_command(request: ModuleRequest, output: str) -> int:
    """Import a module of PyTorch: your own, from your own file.

    FILE.py is executed, as Python imports it. FACTORY() returns (module,
    example_inputs); the module, called with these inputs, returns the loss. It runs
    on tensors without values: no weights and no GPU are needed. 'nest check --why'
    says why strategies are not available.
    """
    from nest.capture.problem import source_of
    from nest.profiles.torch_profiler import require_torch

    file = request.factory if request.hf else request.factory.rpartition(":")[0]
    Files(output=output).check(reads={"FILE.py:FACTORY": file or None})
    require_torch("nest import torch")
    request = request.with_file(Path() if output == "-" else Path(output).parent)
    with redirect_stdout(sys.stderr):  # what the user's file prints is no result
        problem = request.build_problem()
    write_record(output, problem)
    source = source_of(problem)
    for note in source.assumed if source else ():
        hint(f"nest: note: {request.factory}: {note}")
    return 0


def _with_answers(cluster: str, faults: Sequence[Fault]) -> str:
    """Return the command line that is running with what answers faults.

    Empty if only another file does.
    """
    tokens = [*(click.get_current_context().find_root().obj or ())]
    running = list(tokens)
    for fault in faults:
        for name, value in zip(fault.answers[::2], fault.answers[1::2], strict=True):
            if name == "--cluster":
                named = re.sub(r"x\d+$", f"x{value}", cluster)
                whole = named if cluster[-1:].isdigit() else f"<{value} devices>"
                stated = (cluster, f"--cluster={cluster}")
                tokens = [
                    token.replace(cluster, whole) if token in stated else token
                    for token in tokens
                ]
                continue
            if not name.startswith("--"):
                tokens = [value if token == name else token for token in tokens]
                continue
            # An answer takes the place of the one before.
            subject = value.partition("=")[0]
            before = [(name, x) for x in tokens if x.partition("=")[0] == subject]
            for pair in set(pairwise(tokens)) & set(before):
                index = tokens.index(pair[1])
                del tokens[index - 1 : index + 1]
            tokens += (name, value)
    return "" if tokens == running else shlex.join(["nest", *tokens])


def _import(request: launch_files.LaunchFileRequest, output: str) -> int:
    """Read a launch, and write its problem and plan."""
    request.check()
    plan_path = request.plan_path(output)
    files = Files(output=output)
    files.check(reads={"FILE": request.path}, writes={"--plan": plan_path})
    try:
        imported = request.imported()
    except (Fault, FaultsError) as error:
        faults = error.faults if isinstance(error, FaultsError) else (error,)
        for fault in faults:
            say_error(f"nest: error: {fault}")
        if command := _with_answers(request.cluster, faults):
            say_error(f"nest: then run: {command}")
        return 2
    write_record(output, imported.problem)
    write_record(plan_path, imported.plan)
    for note in imported.notes:
        hint(f"nest: note: {note}")
    return 0


@import_group.command("megatron-args")
@takes(launch_files.MegatronRequest)
@output_option("problem")
def megatron_command(request: launch_files.MegatronRequest, output: str) -> int:
    """Import a launch of Megatron-LM: a problem, and its plan.

    FILE is a script, which is read and never run, or a configuration
    (.yaml, .yml) of Megatron-LM, NeMo or Megatron-Bridge.
    """
    return _import(request, output)


@import_group.command("torchtitan")
@takes(launch_files.TorchtitanRequest)
@output_option("problem")
def torchtitan_command(request: launch_files.TorchtitanRequest, output: str) -> int:
    """Import a job file of torchtitan: a problem, and its plan."""
    return _import(request, output)


@import_group.command("maxtext")
@takes(launch_files.MaxTextRequest)
@output_option("problem")
def maxtext_command(request: launch_files.MaxTextRequest, output: str) -> int:
    """Import a configuration of MaxText, or a script: a problem, and its plan.

    FILE has the keys that differ from base.yml; '--say KEY=VALUE' is a key on MaxText's
    command line. Of a script counts the command that starts MaxText.
    """
    return _import(request, output)


@import_group.command("accelerate")
@takes(launch_files.AccelerateRequest)
@output_option("problem")
def accelerate_command(request: launch_files.AccelerateRequest, output: str) -> int:
    """Import a configuration of Hugging Face Accelerate: a problem, and its plan.

    Arguments of the trainer are read from NAME-trainer.json beside NAME.yaml, or given
    with '--say per_device_train_batch_size=4 --say max_length=4096'.
    """
    return _import(request, output)


@import_group.command("deepspeed")
@takes(launch_files.DeepSpeedRequest)
@output_option("problem")
def deepspeed_command(request: launch_files.DeepSpeedRequest, output: str) -> int:
    """Import a launch with DeepSpeed: a problem, and its plan.

    FILE is a configuration, which says neither the model nor degrees: they are options;
    or a script of Megatron-DeepSpeed with its configuration beside it.
    """
    return _import(request, output)


@import_group.command("schedule-csv")
@click.argument("path", metavar="FILE")
@option("--plan FILE", "The plan whose stages run the passes.", required=True)
@output_option("plan")
def schedule_csv_command(path: str, plan: str, output: str) -> int:
    """Import an order of passes, a CSV file of PyTorch: a plan that has it.

    The plan is one for jobs whose schedule is 'any'; 'nest simulate
    --schedule FILE' prices it under other jobs, too.
    """
    from nest.frameworks.schedule_csv import with_passes

    Files(output=output).check(reads={"FILE": path, "--plan": plan})
    text = read_text(path, InvalidPlanError)
    write_record(output, with_passes(read_plan(plan), text, path))
    return 0
