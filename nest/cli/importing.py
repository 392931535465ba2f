"""``nest import``: problems from other people's files, one format each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from nest.cli.declare import Decorator, option, output_option
from nest.cli.inputs import Group, check_distinct_files, write_record
from nest.cli.options import Files, takes
from nest.cli.saying import say
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.models.named import load_model
from nest.requests.problems import JobRequest
from nest.requests.restricted import defaults_of
from nest.requests.values import integer
from nest.util.files import check_output

if TYPE_CHECKING:
    from nest.frameworks.importing import Imported, Site

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
        say(f"nest: note: {path}: defaults: {defaults}", err=True)
    if model.note:
        say(f"nest: note: {path}: {model.note}", err=True)
    return 0


#: Options of all that read what frameworks start with.
_LAUNCH: tuple[Decorator, ...] = (
    click.argument("path", metavar="FILE"),
    option(
        "--cluster NAME|FILE",
        "Machine and devices, such as h100x64, or a file with them.",
        required=True,
    ),
    option("--model NAME", "The model, as far as the file does not say it."),
    option(
        "--overlap NAME=F,…",
        "Fraction of communication that is hidden where the file lets it "
        "overlap, such as gradients=0.9; repeatable.  [default: as "
        "calibrated]",
        multiple=True,
    ),
    option(
        "--calibration FILE",
        "What kernels reach on the user's own devices, and what of "
        "communication is hidden there; see 'nest calibrate'.",
    ),
    option(
        "--layers-per-node N",
        "Consecutive layers that plans do not cut apart.",
        integer(),
        default=1,
    ),
    option(
        "--rank-map FILE",
        "The plan's device of every rank.  [default: rank_map.json beside "
        "FILE, if there is one]",
    ),
    option("--plan FILE", "Where to write the plan.  [default: beside -o]"),
    output_option("problem"),
)


def _launch_options(command: Any) -> Any:
    for add in reversed(_LAUNCH):
        command = add(command)
    return command


_SAY = option(
    "--say NAME=VALUE",
    "What the file does not say, as the framework names it; repeatable.",
    multiple=True,
)


def _pairs(texts: tuple[str, ...], name: str) -> list[tuple[str, str]]:
    """Read texts such as ``TP=4``."""
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidOptionError(
                f"{name}: expected NAME=VALUE, got {text!r}; for example "
                f"{name} TP=4"
            )
        found.append((key, value))
    return found


def _checked_plan_path(path: str, output: str, plan: str | None) -> str:
    """Return where the plan goes, if both files can be written."""
    plan = _plan_path(output, plan)
    check_distinct_files({"FILE": path, "-o": output, "--plan": plan})
    check_output(output, "-o")
    check_output(plan, "--plan")
    return plan


def _plan_path(output: str, plan: str | None) -> str:
    """Return where the plan goes: ``problem-plan.json`` by default."""
    if plan is not None:
        return plan
    if output == "-":
        raise InvalidOptionError(
            "--plan: expected a file, got none, and -o is standard output; "
            "add it"
        )
    path = Path(output)
    return str(path.with_name(f"{path.stem}-plan.json"))


def _site(cluster: str, calibration: str | None) -> Site:
    from nest.frameworks.importing import Site
    from nest.hardware import find_cluster
    from nest.hardware.calibration_file import (
        own_runs_for,
        with_calibration,
    )

    parts, network = find_cluster(cluster)
    parts, found = with_calibration(parts, calibration)
    software = None if found is None else found.software
    return Site(
        parts, network, software, calibration, own_runs_for(found, parts)
    )


def _text(path: str) -> str:
    from nest.ir.io import read_text

    return read_text(path, InvalidPlanError)


def _devices(path: str, rank_map: str | None) -> tuple[int, ...] | None:
    """Return the device of every rank, ``None`` for all in order."""
    from nest.frameworks.hosts import RANK_MAP, read_map

    beside = Path(path).with_name(RANK_MAP)
    if rank_map is None and not beside.is_file():
        return None
    place = rank_map or str(beside)
    return read_map(_text(place), place)


def _finish(
    imported: Imported, notes: tuple[str, ...], output: str, plan: str
) -> int:
    """Write problem and plan, and say what was left open."""
    from nest.cost.score import score
    from nest.ir.io import problem_hash

    problem = imported.problem
    score(problem, imported.plan)  # refuses what is no plan of the problem
    record = replace(imported.plan, problem_hash=problem_hash(problem))
    write_record(output, problem)
    write_record(plan, record)
    for note in (*notes, *imported.notes):
        say(f"nest: note: {note}", err=True)
    return 0


_SET = option(
    "--set NAME=VALUE",
    "Value of a shell variable, instead of the script's; repeatable.",
    None,
    "variables",
    multiple=True,
)


@import_group.command("megatron-args")
@_launch_options
@_SET
@_SAY
def megatron_command(  # noqa: PLR0913
    path: str,
    cluster: str,
    model: str | None,
    overlap: tuple[str, ...],
    calibration: str | None,
    layers_per_node: int,
    rank_map: str | None,
    plan: str | None,
    output: str,
    variables: tuple[str, ...],
    say: tuple[str, ...],
) -> int:
    """Import a launch of Megatron-LM: a problem, and its plan.

    FILE is a script, which is read and never run, or a configuration
    (.yaml, .yml) of Megatron-LM, NeMo or Megatron-Bridge.
    """
    from nest.frameworks.importing import build, overlap_of
    from nest.frameworks.megatron_configs import read_config
    from nest.frameworks.scripts import read_launch

    plan = _checked_plan_path(path, output, plan)
    fractions, site = overlap_of(overlap), _site(cluster, calibration)
    devices = _devices(path, rank_map)
    is_yaml = path.endswith((".yaml", ".yml"))
    launched = (read_config if is_yaml else read_launch)(
        _text(path),
        path,
        site.num_devices if devices is None else len(devices),
        dict(_pairs(variables, "--set")),
        _pairs(say, "--say"),
        None if model is None else load_model(model),
    )
    reading = launched.reading
    imported = build(
        reading.launch,
        reading.model,
        site,
        fractions,
        layers_per_node,
        devices,
        reading.pipelines_inside,
    )
    return _finish(imported, launched.notes, output, plan)


@import_group.command("torchtitan")
@_launch_options
@_SAY
def torchtitan_command(  # noqa: PLR0913
    path: str,
    cluster: str,
    model: str | None,
    overlap: tuple[str, ...],
    calibration: str | None,
    layers_per_node: int,
    rank_map: str | None,
    plan: str | None,
    output: str,
    say: tuple[str, ...],
) -> int:
    """Import a job file of torchtitan: a problem, and its plan."""
    from nest.frameworks.importing import build, overlap_of
    from nest.frameworks.torchtitan import read_foreign, unread

    plan = _checked_plan_path(path, output, plan)
    fractions, site = overlap_of(overlap), _site(cluster, calibration)
    devices = _devices(path, rank_map)
    launch, shape = read_foreign(
        _text(path),
        path,
        site.num_devices if devices is None else len(devices),
        _pairs(say, "--say"),
        None if model is None else load_model(model),
    )
    imported = build(launch, shape, site, fractions, layers_per_node, devices)
    return _finish(imported, unread(_text(path), path), output, plan)


@import_group.command("deepspeed")
@_launch_options
@option("--sequence-length N", "Tokens per sample.", integer())
@option("--tp N", "Tensor parallel degree.", integer(), default=1)
@option("--pp N", "Pipeline stages, of equal layers.", integer(), default=1)
@_SET
def deepspeed_command(  # noqa: PLR0913
    path: str,
    cluster: str,
    model: str | None,
    overlap: tuple[str, ...],
    calibration: str | None,
    layers_per_node: int,
    rank_map: str | None,
    plan: str | None,
    output: str,
    sequence_length: int | None,
    tp: int,
    pp: int,
    variables: tuple[str, ...],
) -> int:
    """Import a launch with DeepSpeed: a problem, and its plan.

    FILE is a configuration, which says neither the model nor degrees: they
    are options; or a script of Megatron-DeepSpeed with its configuration
    beside it.
    """
    from nest.frameworks.deepspeed import read_foreign, read_script, unread
    from nest.frameworks.importing import build, overlap_of

    plan = _checked_plan_path(path, output, plan)
    is_json = path.endswith(".json")
    if is_json and (model is None or sequence_length is None):
        missing = "--model" if model is None else "--sequence-length"
        raise InvalidOptionError(
            f"{missing}: expected a value, got none, and the configuration "
            f"does not say it; add it"
        )
    fractions, site = overlap_of(overlap), _site(cluster, calibration)
    devices = _devices(path, rank_map)
    world = site.num_devices if devices is None else len(devices)
    notes: tuple[str, ...] = ()
    if model is not None and sequence_length is not None:
        shape = load_model(model)
        launch = read_foreign(
            _text(path), path, world, shape, sequence_length, tp, pp
        )
        notes = unread(_text(path), path)
    else:
        from nest.frameworks.arguments import Arguments
        from nest.frameworks.scripts import (
            check_devices,
            check_variables,
            find_words,
        )
        from nest.frameworks.shell import read_script as read_shell

        given = dict(_pairs(variables, "--set"))
        script = read_shell(_text(path), path, given)
        check_variables(given, script.used, path)
        words = find_words(script, path)
        taken = check_devices(script, words, Arguments(words, path), world)
        launch, shape, notes = read_script(
            words,
            path,
            world,
            lambda name: _text(str(Path(path).parent / name)),
        )
        notes = (*taken, *notes)
    imported = build(
        *(launch, shape, site, fractions, layers_per_node, devices),
        target="deepspeed",
    )
    return _finish(imported, notes, output, plan)
