"""``nest new``: files to begin with, from a few questions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import click

from nest.cli.declare import option, output_option
from nest.cli.inputs import Group, write_record, write_text
from nest.cli.options import Files, takes
from nest.cli.progress import hint
from nest.cli.saying import say
from nest.constraints.targets import names
from nest.errors import InvalidOptionError, NestError, UnknownNameError
from nest.ir.cluster import MAX_DEVICES
from nest.models.named import load_model
from nest.requests.problems import ProblemRequest
from nest.requests.values import (
    RefusedValueError,
    integer,
    number_between,
    one_of,
)
from nest.util.files import check_output
from nest.util.quantities import SIZES, split
from nest.util.text import closest

_TFLOPS = number_between(1e-3, 1e9, "TFLOP/s", "for example 989")

#: Whose kernels those of an unknown device are like, unless it is said.
LIKE = "h100"

_RATE = number_between(
    *(1e-3, 1e9, "gigabytes per second", "data-sheet figures are fine")
)

_DEVICES = integer(1, MAX_DEVICES)


@click.group("new", cls=Group)
def new_group() -> None:
    """Write a cluster or a problem file, from five questions or options.

    For example: nest new cluster --machine h100 --devices 32 -o my.yaml, then
    nest solve --model llama3-8b --cluster my.yaml
    """


@new_group.command("cluster")
@option(
    "--machine NAME",
    "Machine that it is, or whose kernels those of --name are like; see "
    "'nest problems --clusters'.",
)
@option("--devices N", "Number of devices.", _DEVICES)
@option("--node-size N", "Devices of a node.", _DEVICES)
@option(
    "--network-gb-per-s X",
    "Bandwidth between nodes: GB/s per device, one direction, data sheet.",
    _RATE,
)
@option(
    "--price USD",
    "Price of a device per hour.",
    number_between(1e-9, 1e9, "dollars", "for example 2.5"),
)
@option(
    "--node-gb-per-s X",
    "Bandwidth inside a node: GB/s per device, one direction, data sheet.",
    _RATE,
)
@option("--name NAME", "Name of a device that is no known one.")
@option("--memory SIZE", "Memory of a device, such as 141GB.")
@option(
    "--tflops X",
    "Dense peak of a device in 16 bits, in TFLOP/s.",
    _TFLOPS,
)
@option("--hbm-gb-per-s X", "Memory bandwidth of a device, in GB/s.", _RATE)
@output_option("cluster file")
def cluster_command(  # noqa: PLR0913
    machine: str | None,
    devices: int | None,
    node_size: int | None,
    network_gb_per_s: float | None,
    price: float | None,
    node_gb_per_s: float | None,
    name: str | None,
    memory: str | None,
    tflops: float | None,
    hbm_gb_per_s: float | None,
    output: str,
) -> int:
    """Write a cluster file with comments, for --cluster.

    What is not said is the machine's own. On a terminal the machine, the
    number of devices, the size of a node, the bandwidth between nodes and the
    price are asked for; and the figures of a device that is no known one,
    whose kernels are then taken to be like those of h100.
    """
    from nest.hardware import machine as find
    from nest.hardware.template import ClusterTemplate, cluster_text

    check_output(output, "-o")
    asked = machine is None
    machine = _answer("--machine", machine, "Machine", "h100", _machine)
    try:
        site = find(machine)
    except UnknownNameError:
        if not asked or name is not None:
            raise
        # Somebody at a terminal has devices that are no known ones.
        name, site = machine, find(LIKE)
        text = "Memory, such as 80GB"
        memory = _answer("", memory, text, "80GB", _memory)
        text = "TFLOP/s in 16 bits, dense"
        tflops = _answer("", tflops, text, "1000", _TFLOPS)
        text = "GB/s of its memory"
        hbm_gb_per_s = _answer("", hbm_gb_per_s, text, "3350", _RATE)
    devices = _answer("--devices", devices, "Devices", "64", _DEVICES)
    node, port = site.node, site.network
    if _asking():
        own = str(node.fan_out)
        size = _answer("", node_size, "Devices of a node", own, _DEVICES)
        node_size = None if size == node.fan_out else size
        own = f"{port.bandwidth_bytes_per_s / 1e9:g}"
        rate = _answer(
            "",
            network_gb_per_s,
            "GB/s per device between nodes",
            own,
            _RATE,
        )
        network_gb_per_s = None if f"{rate:g}" == own else rate
        if price is None:
            text = "Dollars per device and hour (0: unknown)"
            price = _answer("", None, text, "0", _price) or None
    memory_bytes = None if memory is None else _size(memory)
    reserve_bytes = site.device.reserve_bytes
    if memory_bytes is not None and memory_bytes <= reserve_bytes:
        raise InvalidOptionError(
            f"--memory {memory}: expected more than the {reserve_bytes} bytes "
            f"of it that no plan can use, got {memory_bytes}; say more"
        )
    wanted = ClusterTemplate(
        num_devices=devices,
        node_size=node_size,
        node_bytes_per_s=_giga(node_gb_per_s),
        network_bytes_per_s=_giga(network_gb_per_s),
        price_usd_per_hour=price,
        name=name,
        memory_bytes=memory_bytes,
        hbm_bytes_per_s=_giga(hbm_gb_per_s),
        peak_flops=None if tflops is None else tflops * 1e12,
    )
    _write_cluster(output, cluster_text(site, wanted))
    return 0


def _write_cluster(output: str, text: str) -> None:
    """Write a cluster file that can be read again, and no other."""
    from nest.hardware.cluster_file import decode_cluster

    try:
        decode_cluster(text.encode(), "file.yaml")
    except NestError as error:
        reason = str(error).removeprefix("file.yaml: ")
        raise InvalidOptionError(
            f"nest new cluster: expected options of a cluster that can be "
            f"read, got one with {reason}"
        ) from None
    _say_if_there(output)
    write_text(output, text)


def _say_if_there(output: str) -> None:
    """Say that a file takes the place of another."""
    if output != "-" and os.path.exists(output):
        hint(f"nest: {output}: written over the file of that name")


@dataclass(frozen=True, kw_only=True)
class NewProblemRequest(ProblemRequest):
    """The problem of training a model on a cluster."""

    COMMAND: ClassVar[str] = "nest new problem"


@new_group.command("problem")
@takes(
    NewProblemRequest,
    "output",
    without=("problem",),
    model="A name, see 'nest problems --models', or a config.json of "
    "Hugging Face.",
    target="Framework whose gradients and optimizer the problem keeps.  "
    "[default: any]",
    output="Where to write the problem; '-' is standard output.  [required]",
)
def problem_command(request: NewProblemRequest, files: Files) -> int:
    """Write the problem of training a model on a cluster.

    It is that of 'nest problems' with the same options. On a terminal the
    model, the cluster, the tokens of a sample, the samples of a step and the
    framework are asked for.
    """
    if files.output is None:
        raise InvalidOptionError(
            "nest new problem: expected -o, got none; name a file, or '-' "
            "for standard output"
        )
    check_output(files.output, "-o")
    answers: dict[str, Any] = {}
    for name, text, default, read in (
        ("model", "Model ('nest problems --models')", "llama3-8b", _model),
        (
            *("cluster", "Cluster: <machine>x<devices>, or a file"),
            *("h100x64", _cluster),
        ),
    ):
        answers[name] = _answer(
            f"--{name}", getattr(request, name), text, default, read
        )
    if _asking():
        for name, text in (
            ("sequence_length", "Tokens of a sample (0: as usual)"),
            ("global_batch", "Samples of a step (0: about 4 Mi tokens)"),
        ):
            number = getattr(request, name)
            number = _answer("", number, text, "0", integer(0))
            answers[name] = number or None
        text = "Framework (any, megatron, torchtitan, deepspeed, maxtext)"
        answers["target"] = _answer(
            "", request.target, text, "any", one_of(*names())
        )
    problem = replace(request, **answers).find_problem()
    _say_if_there(files.output)
    write_record(files.output, problem)
    return 0


def _machine(text: str) -> str:
    """Read the name of a machine; ask whether one that is new is meant."""
    from nest.hardware import machine
    from nest.hardware.machines import machine_specs

    try:
        machine(text)
    except UnknownNameError:
        known = {
            name
            for spec in machine_specs()
            for name in (spec.name, *spec.aliases)
        }
        other = closest(text, known)
        say(f"{text!r} is no known machine", err=True)
        if other is None:
            question, default = "New device, with figures of its own", "yes"
        else:
            question, default = f"New device, not {other!r}", "no"
        if _answer("", None, question, default, one_of("yes", "no")) == "no":
            raise RefusedValueError("say another name") from None
    return text


def _memory(text: str) -> str:
    """Read the memory of a device, and leave it as it is."""
    _size(text)
    return text


def _model(text: str) -> str:
    """Read the name of a model that there is."""
    load_model(text)
    return text


def _cluster(text: str) -> str:
    """Read the name of a cluster that there is."""
    from nest.hardware import find_cluster

    find_cluster(text)
    return text


def _asking() -> bool:
    """Whether somebody sits at a terminal."""
    return sys.stdin.isatty()


def _answer(
    flag: str,
    given: Any,
    text: str,
    default: str,
    read: Callable[[Any], Any] = str,
) -> Any:
    """Return what is given, or the answer to a question on a terminal."""
    if given is not None:
        return given
    if not _asking():
        raise InvalidOptionError(
            f"{flag}: expected a value where nobody can be asked, got none; "
            f"for example {flag} {default}"
        )
    while True:
        try:
            return read(click.prompt(text, default=default, err=True))
        except RefusedValueError as error:
            say(f"{text}: {error}", err=True)
        except NestError as error:
            say(f"{text}: {error}", err=True)
        except click.Abort:
            raise KeyboardInterrupt from None


_price = number_between(0, 1e9, "dollars", "for example 2.5")


def _giga(value: float | None) -> float | None:
    return None if value is None else value * 1e9


def _size(text: str) -> int:
    """Return the bytes of a size such as ``141GB``."""
    found = split(text, SIZES)
    if found is not None:
        size_bytes = int(found[0] * SIZES[found[1]])
        if 0 < size_bytes < 2**53:
            return size_bytes
    raise NestError(
        f"--memory: expected a size such as 141GB or 80GiB, got {text!r}; "
        f"correct the value"
    )
