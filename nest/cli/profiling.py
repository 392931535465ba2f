"""``nest profile`` and ``nest import profile-csv``: measured layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from nest.cli.declare import option, output_option
from nest.cli.importing import import_group
from nest.cli.inputs import check_distinct_files, people, write_text
from nest.cli.progress import hint
from nest.errors import InvalidOptionError, UnknownNameError
from nest.profiles.format import DTYPE_BYTES, encode_profile
from nest.requests.values import integer, integers, one_of
from nest.util.files import check_output
from nest.util.interrupts import Interrupted

if TYPE_CHECKING:
    from nest.profiles.format import Entry, Profile

#: Sequence length where neither the user nor a short model says otherwise.
DEFAULT_SEQUENCE_LENGTH = 4096

DEVICES = ("auto", "cpu", "cuda")


class _ProfileCommand(click.Command):
    """``nest profile``, and ``nest profile torch``, which has its own options."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of the command that the first argument names."""
        if args[:1] == ["torch"]:
            name = f"{info_name} torch"
            return profile_torch_command.make_context(name, args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("torch")
@click.argument("factory", metavar="FILE.py:FACTORY")
@option("--samples N,…", "Samples per data-parallel rank.", integers(), default="1")
@option(
    "--granularity block|module|operator",
    "As of 'nest import torch'.",
    one_of("block", "module", "operator"),
    default="block",
)
@option("--device auto|cpu|cuda", "Where to run.", one_of(*DEVICES), default="auto")
@option(
    "--device-name NAME", "What clusters call the device.  [default: as far as known]"
)
@option("--warm-up N", "Passes before the measured ones.", integer(0, 1000), default=2)
@option(
    "--repeats N",
    "Measured passes, of which the median counts.",
    integer(1, 1000),
    default=5,
)
@output_option("profile")
def profile_torch_command(
    factory: str,
    samples: tuple[int, ...],
    granularity: str,
    device: str,
    device_name: str | None,
    warm_up: int,
    repeats: int,
    output: str,
) -> int:
    """Time the layers of a module of PyTorch: your own, from your own file.

    FILE.py is executed, and the module runs with real weights. 'nest import torch
    --profile' prefers what is measured.
    """
    from nest.profiles.torch_profiler import find_device, require_torch
    from nest.requests.modules import profile_module

    check_output(output, "-o")
    require_torch("nest profile torch")
    target, name = find_device(device)
    profile = profile_module(
        *(factory, samples, target.type, device_name or name),
        granularity=granularity,
        passes=(warm_up, repeats),
    )
    _write(output, profile)
    return 0


@click.command("profile", cls=_ProfileCommand)
@option("--model NAME", "What to time.", required=True)
@option(
    "--layers A,B,…",
    "Kinds of layers, such as decoder,head.  [default: all]",
    None,
    "layers_text",
)
@option("--tp N,…", "Tensor parallel degrees.", integers(), "tps", default="1")
@option("--ep N,…", "Expert parallel degrees.", integers(), "eps", default="1")
@option("--samples N,…", "Samples per data-parallel rank.", integers(), default="1")
@option(
    "--sequence-length N",
    f"Tokens per sample.  [default: the model's longest, at most "
    f"{DEFAULT_SEQUENCE_LENGTH}]",
    integer(),
)
@option("--device auto|cpu|cuda", "Where to run.", one_of(*DEVICES), default="auto")
@option(
    "--device-name NAME", "What clusters call the device.  [default: as far as known]"
)
@option("--dtype bf16|fp16|fp32", "Data type.", one_of(*DTYPE_BYTES), default="bf16")
@option(
    "--sequence-parallel/--no-sequence-parallel",
    "Whether activations between layers are split over tp.  [default: they are]",
    default=True,
)
@option("--warm-up N", "Passes before the measured ones.", integer(0, 1000), default=2)
@option(
    "--repeats N",
    "Measured passes, of which the median counts.",
    integer(1, 1000),
    default=5,
)
@output_option("profile")
def profile_command(
    model: str,
    layers_text: str | None,
    tps: tuple[int, ...],
    eps: tuple[int, ...],
    samples: tuple[int, ...],
    sequence_length: int | None,
    output: str,
    **settings: Any,
) -> int:
    """Time one layer of each kind with PyTorch and write a profile.

    Forward and backward pass apart, the local shard of one rank, without
    communication. PyTorch is the extra 'profile'.
    """
    from nest.models import zoo
    from nest.models.choices import Degrees
    from nest.profiles.torch_profiler import (
        Timing,
        layer_shapes,
        profile_layers,
        require_torch,
    )

    check_output(output, "-o")
    shape = zoo.architecture(model)
    length = sequence_length or min(shape.max_sequence, DEFAULT_SEQUENCE_LENGTH)
    layers = layer_shapes(shape.towers, shape.head)
    if layers_text is not None:
        layers_by_kind = {layer.kind: layer for layer in layers}
        names = dict.fromkeys(name.strip() for name in layers_text.split(","))
        for name in names:
            if name not in layers_by_kind:
                raise UnknownNameError("--layers", name, layers_by_kind)
        layers = [layers_by_kind[name] for name in names]
    for tp in tps:
        for ep in eps:
            reason = shape.why_not_split(tp, 1, ep, length)
            if reason is not None:
                raise InvalidOptionError(f"--{reason}")
    require_torch()
    degrees = [
        Degrees(tp=tp, ep=ep, samples=count)
        for tp in tps
        for ep in eps
        for count in samples
    ]
    try:
        profile = profile_layers(
            model, layers, degrees, length, Timing(**settings), hint
        )
    except Interrupted as interrupt:
        _write(output, interrupt.found)
        raise
    _write(output, profile)
    return 0


@import_group.command("profile-csv")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True)
@option("--model NAME", "Which model was profiled.", required=True)
@option("--device NAME", "On which device.", required=True)
@option(
    "--dtype fp16|bf16", "In which data type.", one_of("fp16", "bf16"), default="fp16"
)
@option(
    "--algorithm N",
    "Which way of cutting matrices to take; 0 is Megatron-LM's.",
    integer(0, 1000),
    default=0,
)
@output_option("profile")
def profile_csv_command(
    paths: tuple[str, ...], model: str, device: str, output: str, **settings: Any
) -> int:
    """Import per-operator CSV files as Aceso's profiler writes them.

    PATH is a file or a folder of files; their names state micro-batch, tp
    and way of cutting.
    """
    from nest.hardware import device_spec
    from nest.models import zoo
    from nest.profiles.aceso import import_aceso

    check_distinct_files({path: path for path in paths} | {"-o": output})
    check_output(output, "-o")
    shape = zoo.architecture(model)
    if len(shape.towers) != 1:
        raise InvalidOptionError(
            f"--model: expected a decoder-only model, got {model}; choose "
            f"the model that was profiled"
        )
    spec = device_spec(device)
    profile = import_aceso(
        paths,
        model=model,
        tower=shape.towers[0],
        head=shape.head,
        device=spec.name,
        peak_flops=spec.peak_flops,
        **settings,
    )
    _write(output, profile)
    return 0


def _write(output: str, profile: Profile) -> None:
    """Write the profile and show what is in it."""
    from nest.present.table import number_form, show, terminal_table
    from nest.util.tables import Column, Table

    def milliseconds(time_ns: float) -> str:
        return f"{time_ns / 1e6:.3f}"

    columns = (
        Column("kind", "layer"),
        Column("tp"),
        Column("ep", rank=1),
        Column("samples"),
        Column("forward_ns", "forward_ms", milliseconds),
        Column("backward_ns", "backward_ms", milliseconds),
        Column("TFLOP/s", value=_rate, rank=3),
        Column("kept_bytes", "kept_MiB", number_form(".1f", 2**-20), rank=2),
    )
    table = Table.of(columns, profile.entries)
    show(people(output), terminal_table(table))
    write_text(output, encode_profile(profile).decode())


def _rate(entry: Entry) -> str:
    """Return the FLOP/s of both passes together, where it is known."""
    if not entry.forward_flops or not entry.backward_flops:
        return ""
    flops = entry.forward_flops + entry.backward_flops
    return f"{flops / (entry.forward_ns + entry.backward_ns) / 1e3:.2f}"
