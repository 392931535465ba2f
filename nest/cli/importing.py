"""``nest import``: problems from other people's files, one format each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import click
from msgspec.structs import replace

from nest.cli.declare import option, output_option
from nest.cli.inputs import Group, check_distinct_files, write_record
from nest.cli.options import Files, takes
from nest.cli.saying import say
from nest.constraints.targets import ANY
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.models.named import load_model
from nest.requests.problems import JobRequest
from nest.requests.restricted import defaults_of
from nest.requests.settings import Request, setting
from nest.requests.values import RefusedValueError, anything, integer
from nest.util.files import check_output

if TYPE_CHECKING:
    from nest.frameworks.importing import Site
    from nest.frameworks.launch import Launch
    from nest.models.architectures import Architecture

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
@option(
    "--mtp",
    "Count modules for multi-token prediction too.",
    is_flag=True,
)
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
    if defaults:
        say(f"nest: note: {path}: assumed: {defaults}", err=True)
    if model.note:
        say(f"nest: note: {path}: {model.note}", err=True)
    return 0


def _assignments(texts: Any) -> tuple[tuple[str, str], ...]:
    """Read texts such as ``TP=4``."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise RefusedValueError(
                f"expected NAME=VALUE, got {text!r}; for example TP=4"
            )
        pairs.append((name, value))
    return tuple(pairs)


@dataclass(frozen=True, kw_only=True)
class LaunchFileRequest(Request):
    """A file that a framework starts with, and what the file leaves open."""

    COMMAND: ClassVar[str] = "nest import"

    path: str = setting("FILE", "The file.", required=True)
    cluster: str = setting(
        "--cluster NAME|FILE",
        "Machine and devices, such as h100x64, or a file with them.",
        required=True,
    )
    model: str | None = setting(
        "--model NAME", "The model, as far as the file does not say it."
    )
    overlap: tuple[str, ...] = setting(
        "--overlap NAME=F,…",
        "Fraction of communication that is hidden where the file lets it "
        "overlap, such as gradients=0.9; repeatable.  [default: as "
        "calibrated]",
        anything,
        multiple=True,
    )
    calibration: str | None = setting(
        "--calibration FILE",
        "What kernels reach on the user's own devices, and what of "
        "communication is hidden there; see 'nest calibrate'.",
    )
    layers_per_node: int = setting(
        "--layers-per-node N",
        "Consecutive layers that plans do not cut apart.",
        integer(),
        default=1,
    )
    rank_map: str | None = setting(
        "--rank-map FILE",
        "The plan's device of every rank.  [default: rank_map.json beside "
        "FILE, if there is one]",
    )
    plan: str | None = setting(
        "--plan FILE", "Where to write the plan.  [default: beside -o]"
    )

    @property
    def text(self) -> str:
        """The text of the file."""
        return _text(self.path)

    @property
    def architecture(self) -> Architecture | None:
        """The model of ``--model``, if it is given."""
        return None if self.model is None else load_model(self.model)

    def find_site(self) -> Site:
        """Return the cluster, with what its calibration says."""
        from nest.frameworks.importing import Site
        from nest.hardware import find_cluster
        from nest.hardware.calibration_file import (
            own_runs_for,
            with_calibration,
        )

        parts, network = find_cluster(self.cluster)
        parts, record = with_calibration(parts, self.calibration)
        software = None if record is None else record.software
        user_runs = own_runs_for(record, parts)
        return Site(parts, network, software, self.calibration, user_runs)

    def find_devices(self) -> tuple[int, ...] | None:
        """Return the device of every rank, ``None`` for all in order."""
        from nest.frameworks.hosts import RANK_MAP, read_map

        default = Path(self.path).with_name(RANK_MAP)
        if self.rank_map is None and not default.is_file():
            return None
        path = self.rank_map or str(default)
        return read_map(_text(path), path)

    def plan_path(self, output: str) -> str:
        """Return where the plan goes: ``problem-plan.json`` by default."""
        if self.plan is not None:
            return self.plan
        if output == "-":
            raise InvalidOptionError(
                "--plan: expected a file, got none, and -o is standard "
                "output; add it"
            )
        path = Path(output)
        return str(path.with_name(f"{path.stem}-plan.json"))


def _text(path: str) -> str:
    from nest.ir.io import read_text

    return read_text(path, InvalidPlanError)


class _Reading(NamedTuple):
    """What a file says: how :func:`nest.frameworks.importing.build` takes it.

    Attributes
    ----------
    notes
        What to tell about the file.
    """

    launch: Launch
    model: Architecture
    notes: tuple[str, ...] = ()
    mesh_inside: bool = False
    target: str = ANY


def _import(
    request: LaunchFileRequest,
    output: str,
    read: Callable[[int], _Reading],
) -> int:
    """Read a file for a number of ranks, and write its problem and plan."""
    from nest.cost.score import score
    from nest.frameworks.importing import build, overlap_of
    from nest.ir.io import problem_hash

    plan_path = request.plan_path(output)
    files = Files(output=output)
    files.check(reads={"FILE": request.path}, writes={"--plan": plan_path})
    overlap, site = overlap_of(request.overlap), request.find_site()
    devices = request.find_devices()
    reading = read(site.num_devices if devices is None else len(devices))
    imported = build(
        *(reading.launch, reading.model, site, overlap),
        *(request.layers_per_node, devices),
        *(reading.mesh_inside, reading.target),
    )
    problem = imported.problem
    score(problem, imported.plan)  # refuses what is no plan of the problem
    plan = replace(imported.plan, problem_hash=problem_hash(problem))
    write_record(output, problem)
    write_record(plan_path, plan)
    for note in (*reading.notes, *imported.notes):
        say(f"nest: note: {note}", err=True)
    return 0


_SAY: Any = setting(
    "--say NAME=VALUE",
    "What the file does not say, as the framework names it; repeatable.",
    _assignments,
    multiple=True,
)
_SET: Any = setting(
    "--set NAME=VALUE",
    "Value of a shell variable, instead of the script's; repeatable.",
    _assignments,
    multiple=True,
)


@dataclass(frozen=True, kw_only=True)
class MegatronRequest(LaunchFileRequest):
    """A launch of Megatron-LM."""

    variables: tuple[tuple[str, str], ...] = _SET
    say: tuple[tuple[str, str], ...] = _SAY


@import_group.command("megatron-args")
@takes(MegatronRequest)
@output_option("problem")
def megatron_command(request: MegatronRequest, output: str) -> int:
    """Import a launch of Megatron-LM: a problem, and its plan.

    FILE is a script, which is read and never run, or a configuration
    (.yaml, .yml) of Megatron-LM, NeMo or Megatron-Bridge.
    """
    from nest.frameworks.megatron_configs import read_config
    from nest.frameworks.scripts import read_launch

    is_yaml = request.path.endswith((".yaml", ".yml"))
    read_file = read_config if is_yaml else read_launch

    def read(num_ranks: int) -> _Reading:
        launched = read_file(
            *(request.text, request.path, num_ranks),
            dict(request.variables),
            [*request.say],
            request.architecture,
        )
        launch, model = launched.reading.launch, launched.reading.model
        mesh_inside = launched.reading.pipelines_inside
        return _Reading(launch, model, launched.notes, mesh_inside)

    return _import(request, output, read)


@dataclass(frozen=True, kw_only=True)
class TorchtitanRequest(LaunchFileRequest):
    """A job file of torchtitan."""

    say: tuple[tuple[str, str], ...] = _SAY


@import_group.command("torchtitan")
@takes(TorchtitanRequest)
@output_option("problem")
def torchtitan_command(request: TorchtitanRequest, output: str) -> int:
    """Import a job file of torchtitan: a problem, and its plan."""
    from nest.frameworks.torchtitan import read_foreign, unread

    def read(num_ranks: int) -> _Reading:
        launch, model = read_foreign(
            *(request.text, request.path, num_ranks),
            [*request.say],
            request.architecture,
        )
        return _Reading(launch, model, unread(request.text, request.path))

    return _import(request, output, read)


@dataclass(frozen=True, kw_only=True)
class DeepSpeedRequest(LaunchFileRequest):
    """A launch with DeepSpeed."""

    sequence_length: int | None = setting(
        "--sequence-length N", "Tokens per sample.", integer()
    )
    tp: int = setting(
        "--tp N", "Tensor parallel degree.", integer(), default=1
    )
    pp: int = setting(
        "--pp N", "Pipeline stages, of equal layers.", integer(), default=1
    )
    variables: tuple[tuple[str, str], ...] = _SET


@import_group.command("deepspeed")
@takes(DeepSpeedRequest)
@output_option("problem")
def deepspeed_command(request: DeepSpeedRequest, output: str) -> int:
    """Import a launch with DeepSpeed: a problem, and its plan.

    FILE is a configuration, which says neither the model nor degrees: they
    are options; or a script of Megatron-DeepSpeed with its configuration
    beside it.
    """
    from nest.frameworks.deepspeed import read_foreign, unread

    model, length = request.architecture, request.sequence_length
    if request.path.endswith(".json") and (model is None or length is None):
        missing = "--model" if model is None else "--sequence-length"
        raise InvalidOptionError(
            f"{missing}: expected a value, got none, and the configuration "
            f"does not say it; add it"
        )

    def read(num_ranks: int) -> _Reading:
        if model is None or length is None:
            return _deepspeed_script(request, num_ranks)
        launch = read_foreign(
            *(request.text, request.path, num_ranks, model, length),
            *(request.tp, request.pp),
        )
        notes = unread(request.text, request.path)
        return _Reading(launch, model, notes, target="deepspeed")

    return _import(request, output, read)


def _deepspeed_script(request: DeepSpeedRequest, num_ranks: int) -> _Reading:
    """Read a script of Megatron-DeepSpeed."""
    from nest.frameworks.arguments import Arguments
    from nest.frameworks.deepspeed import read_script
    from nest.frameworks.scripts import (
        check_devices,
        check_variables,
        find_words,
    )
    from nest.frameworks.shell import read_script as read_shell

    path, variables = request.path, dict(request.variables)
    script = read_shell(request.text, path, variables)
    check_variables(variables, script.used, path)
    tokens = find_words(script, path)
    ignored = check_devices(script, tokens, Arguments(tokens, path), num_ranks)
    launch, model, notes = read_script(
        *(tokens, path, num_ranks),
        lambda name: _text(str(Path(path).parent / name)),
    )
    return _Reading(launch, model, (*ignored, *notes), target="deepspeed")
