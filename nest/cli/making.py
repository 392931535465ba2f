"""``nest new``: files to begin with, from a few questions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from nest.cli.declare import output_option
from nest.cli.inputs import Group, write_record, write_text
from nest.cli.options import Files, takes
from nest.cli.progress import hint
from nest.cli.saying import say
from nest.constraints.targets import ANY, names
from nest.errors import InvalidOptionError, NestError, UnknownNameError
from nest.hardware import find_cluster
from nest.hardware.cluster_file import decode_cluster
from nest.hardware.machines import machine_specs
from nest.ir.cluster import MAX_DEVICES
from nest.models.named import load_model
from nest.requests.problems import ProblemRequest
from nest.requests.settings import Request, setting
from nest.requests.values import (
    RefusedValueError,
    integer,
    number_between,
    one_of,
    quantity,
)
from nest.util.files import check_output
from nest.util.quantities import RATE, SIZES, split
from nest.util.text import closest

if TYPE_CHECKING:
    from nest.hardware.machines import Machine

_TFLOPS = number_between(1e-3, 1e9, "TFLOP/s", "for example 989")

#: Whose kernels those of an unknown device are like, unless it is said.
LIKE = "h100"

_RATE = quantity(RATE, "GB/s", 1e-3, 1e9)

_DEVICES = integer(1, MAX_DEVICES)


@click.group("new", cls=Group)
def new_group() -> None:
    """Write a cluster or a problem file, from five questions or options.

    For example: nest new cluster --machine h100 --devices 32 -o my.yaml, then
    nest solve --model llama3-8b --cluster my.yaml
    """


@dataclass(frozen=True, kw_only=True)
class NewClusterRequest(Request, command="nest new cluster"):
    """What a cluster is, as far as its machine does not say it."""

    machine: str | None = setting(
        "--machine NAME",
        "Machine that it is, or whose kernels those of --name are like; see "
        "'nest problems --clusters'.",
    )
    devices: int | None = setting("--devices N", "Number of devices.", _DEVICES)
    node_size: int | None = setting("--node-size N", "Devices of a node.", _DEVICES)
    network_gb_per_s: float | None = setting(
        "--network-gb-per-s X",
        "Bandwidth between nodes: GB/s per device, one direction, data sheet; "
        "or with another unit, such as 400Gb/s.",
        _RATE,
    )
    price: float | None = setting(
        "--price USD",
        "Price of a device per hour.",
        number_between(1e-9, 1e9, "dollars", "for example 2.5"),
    )
    node_gb_per_s: float | None = setting(
        "--node-gb-per-s X", "Bandwidth inside a node, likewise.", _RATE
    )
    name: str | None = setting("--name NAME", "Name of a device that is no known one.")
    memory: str | None = setting("--memory SIZE", "Memory of a device, such as 141GB.")
    tflops: float | None = setting(
        "--tflops X", "Dense peak of a device in 16 bits, in TFLOP/s.", _TFLOPS
    )
    hbm_gb_per_s: float | None = setting(
        "--hbm-gb-per-s X", "Memory bandwidth of a device, likewise.", _RATE
    )


@new_group.command("cluster")
@takes(NewClusterRequest)
@output_option("cluster file")
def cluster_command(request: NewClusterRequest, output: str) -> int:
    """Write a cluster file with comments, for --cluster.

    What is not said is the machine's own. On a terminal the machine, the
    number of devices, the size of a node, the bandwidth between nodes and the
    price are asked for; and the figures of a device that is no known one,
    whose kernels are then taken to be like those of h100.
    """
    from nest.hardware.template import ClusterTemplate, cluster_text

    check_output(output, "-o")
    request, machine = _with_device(request)
    devices = _answer("Devices", "64", _DEVICES, request.devices, "--devices")
    if _is_terminal():
        request = _with_network(request, machine)
    memory_bytes = None if request.memory is None else _size(request.memory)
    reserve_bytes = machine.device.reserve_bytes
    if memory_bytes is not None and memory_bytes <= reserve_bytes:
        raise InvalidOptionError(
            f"--memory {request.memory}: expected more than the {reserve_bytes} bytes "
            f"of it that no plan can use, got {memory_bytes}; say more"
        )
    template = ClusterTemplate(
        num_devices=devices,
        node_size=request.node_size,
        node_bytes_per_s=_times(1e9, request.node_gb_per_s),
        network_bytes_per_s=_times(1e9, request.network_gb_per_s),
        price_usd_per_hour=request.price,
        name=request.name,
        memory_bytes=memory_bytes,
        hbm_bytes_per_s=_times(1e9, request.hbm_gb_per_s),
        peak_flops=_times(1e12, request.tflops),
    )
    _write_cluster(output, cluster_text(machine, template))
    return 0


def _with_device(request: NewClusterRequest) -> tuple[NewClusterRequest, Machine]:
    """Return the machine; ask for the figures of a device that is not known.

    Only a terminal is asked.
    """
    from nest.hardware import machine

    name = _answer("Machine", "h100", _known_or_new, request.machine, "--machine")
    try:
        return request, machine(name)
    except UnknownNameError:
        if request.machine is not None or request.name is not None:
            raise
    memory = _answer("Memory, such as 80GB", "80GB", _refusing(_size), request.memory)
    tflops = _answer("TFLOP/s in 16 bits, dense", "1000", _TFLOPS, request.tflops)
    rate = _answer("GB/s of its memory", "3350", _RATE, request.hbm_gb_per_s)
    request = replace(
        request, name=name, memory=memory, tflops=tflops, hbm_gb_per_s=rate
    )
    return request, machine(LIKE)


def _with_network(request: NewClusterRequest, machine: Machine) -> NewClusterRequest:
    """Ask for the size of a node, the network and the price."""
    default = str(machine.node.fan_out)
    size = _answer("Devices of a node", default, _DEVICES, request.node_size)
    default = f"{machine.network.bandwidth_bytes_per_s / 1e9:g}"
    text = "GB/s per device between nodes"
    rate = _answer(text, default, _RATE, request.network_gb_per_s)
    price = request.price
    if price is None:
        text = "Dollars per device and hour (0: unknown)"
        price = _answer(text, "0", _price) or None
    return replace(
        request,
        node_size=None if size == machine.node.fan_out else size,
        network_gb_per_s=None if f"{rate:g}" == default else rate,
        price=price,
    )


def _write_cluster(output: str, text: str) -> None:
    """Write a cluster file that can be read again, and no other."""
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
class NewProblemRequest(ProblemRequest, command="nest new problem"):
    """The problem of training a model on a cluster."""


@new_group.command("problem")
@takes(
    NewProblemRequest,
    "output",
    without=("problem",),
    model="A name, see 'nest problems --models', or a config.json of Hugging Face.",
    target="Framework whose gradients and optimizer the problem keeps.  [default: any]",
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
    text, read = "Model ('nest problems --models')", _refusing(load_model)
    answers["model"] = _answer(text, "llama3-8b", read, request.model, "--model")
    text, read = "Cluster: <machine>x<devices>, or a file", _refusing(find_cluster)
    answers["cluster"] = _answer(text, "h100x64", read, request.cluster, "--cluster")
    if _is_terminal():
        for name, text in (
            ("sequence_length", "Tokens of a sample (0: as usual)"),
            ("global_batch", "Samples of a step (0: about 4 Mi tokens)"),
        ):
            value = _answer(text, "0", integer(0), getattr(request, name))
            answers[name] = value or None
        text = f"Framework ({', '.join((ANY, *names()[:-1]))})"
        read = one_of(*names())
        answers["target"] = _answer(text, "any", read, request.target)
    problem = replace(request, **answers).find_problem()
    _say_if_there(files.output)
    write_record(files.output, problem)
    return 0


def _known_or_new(text: str) -> str:
    """Read the name of a machine; ask whether one that is new is meant."""
    from nest.hardware import machine

    try:
        machine(text)
    except UnknownNameError:
        registered_names = {
            name for spec in machine_specs() for name in (spec.name, *spec.aliases)
        }
        other = closest(text, registered_names)
        say(f"{text!r} is no known machine", err=True)
        if other is None:
            question, default = "New device, with figures of its own", "yes"
        else:
            question, default = f"New device, not {other!r}", "no"
        if _answer(question, default, one_of("yes", "no")) == "no":
            raise RefusedValueError("say another name") from None
    return text


def _refusing(check: Callable[[str], object]) -> Callable[[str], str]:
    """Return a reader of texts, which refuses those that a check refuses."""

    def read(text: str) -> str:
        check(text)
        return text

    return read


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _answer(
    text: str,
    default: str,
    read: Callable[[Any], Any],
    value: Any = None,
    flag: str = "",
) -> Any:
    """Return the value of an option, or the answer to a question.

    Only a terminal is asked; elsewhere an error names the option ``flag``.
    """
    if value is not None:
        return value
    if not _is_terminal():
        raise InvalidOptionError(
            f"{flag}: expected a value, because nest can ask for it only "
            f"on a terminal, got none; add it, for example {flag} {default}"
        )
    while True:
        try:
            return read(click.prompt(text, default=default, err=True))
        except (RefusedValueError, NestError) as error:
            say(f"{text}: {error}", err=True)
        except click.Abort:
            raise KeyboardInterrupt from None


_price = number_between(0, 1e9, "dollars", "for example 2.5")


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else value * factor


def _size(text: str) -> int:
    """Return the bytes of a size such as ``141GB``."""
    quantity = split(text, SIZES)
    if quantity is not None:
        size_bytes = int(quantity[0] * SIZES[quantity[1]])
        if 0 < size_bytes < 2**53:
            return size_bytes
    raise NestError(
        f"--memory: expected a size such as 141GB or 80GiB, got {text!r}; "
        f"correct the value"
    )
