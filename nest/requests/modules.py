"""Modules of PyTorch in the user's own files, as problems."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from nest.errors import InvalidOptionError, UnknownNameError
from nest.ir.job import SCHEDULES, SPLIT_BACKWARD, Schedules
from nest.ir.plan import Recompute
from nest.ir.problem import Problem
from nest.requests import values as read
from nest.requests.settings import Request, setting
from nest.requests.values import Integers, PathText, Words

if TYPE_CHECKING:
    from nest.capture.problem import Captures, ModuleJob
    from nest.profiles.format import Profile

#: What a node of the graph may stand for.
GRANULARITIES = ("block", "module", "operator")

#: With fewer layers of whole blocks, the import names those of modules, if more.
FEW_LAYERS = 4

#: Samples of the two captures that show what grows with the batch.
SAMPLES = (2, 4)

#: Largest micro-batch and tensor parallel degree by default.
MAX_MICRO_BATCH = 64
MAX_TP = 8


@dataclass(frozen=True, kw_only=True)
class ModuleRequest(Request, command="nest import torch"):
    """A module of PyTorch, the devices that train it, and its job."""

    factory: str = setting(
        "FILE.py:FACTORY",
        "A file and a function in it that returns a module and example inputs.",
        required=True,
    )
    hf: bool = setting(
        "--hf",
        "The argument is the config.json of a causal language model: transformers "
        "builds it, by a file that is written beside the problem.",
    )
    sequence_length: int | None = setting(
        "--sequence-length N",
        "With --hf: tokens per sample.  [default: the model's positions, at most 4096]",
        read.integer(),
        unit="tokens",
    )
    cluster: str = setting(
        "--cluster NAME|FILE",
        "Machine and devices, such as h100x64, or a file with them.",
        required=True,
    )
    batch: int | None = setting(
        "--batch N",
        "Samples per step.  [default: the example inputs' for each device]",
        read.integer(),
        unit="samples",
    )
    granularity: str = setting(
        f"--granularity {'|'.join(GRANULARITIES)}",
        "What plans do not cut: repeated blocks, innermost modules, or operators.",
        read.one_of(*GRANULARITIES),
        default="block",
    )
    micro_batches: Integers | None = setting(
        "--micro-batches N,…",
        "Samples of one pipeline step.  [default: powers of two that divide the batch]",
        read.integers(),
        unit="samples",
    )
    tp: Integers | None = setting(
        "--tp N,…",
        "Tensor parallel degrees.  [default: powers of two up to the node, at most 8]",
        read.integers(),
    )
    zero: Integers = setting(
        "--zero N,…", "ZeRO stages.", read.integers(0, 3), default=(0, 1, 2, 3)
    )
    recompute: Words = setting(
        "--recompute A,…",
        "Recompute choices.",
        read.several_of(("none", "full")),
        default=("none", "full"),
    )
    schedule: str = setting(
        "--schedule NAME", "Pipeline schedule.", read.one_of(*SCHEDULES), default="1f1b"
    )
    optimizer: str = setting(
        "--optimizer adamw|sgd",
        "Optimizer of PyTorch, which keeps its state in the weights' data type.",
        read.one_of("adamw", "sgd"),
        default="adamw",
    )
    profile: PathText | None = setting(
        "--profile FILE",
        "Measured layers to prefer over analytic costs; see 'nest profile torch'.",
    )
    split_loss: bool = setting(
        "--split-loss",
        "Every micro-batch computes the loss apart, even if it is no mean of samples.",
    )

    def with_file(self, folder: Path) -> ModuleRequest:
        """Return this request of a file with a factory.

        Of a ``config.json`` that file is written into a folder.

        Raises ``InvalidOptionError`` if there is a sequence length but no
        ``config.json``, or if the package transformers is missing;
        ``InvalidProblemError`` if the ``config.json`` is missing or names no family.
        """
        if not self.hf:
            if self.sequence_length is not None:
                raise InvalidOptionError(
                    f"--sequence-length: expected --hf with it, got "
                    f"{self.sequence_length} alone; let the factory choose its inputs"
                )
            return self
        from nest.capture.huggingface import (
            known_families,
            require_transformers,
            write_factory,
        )

        require_transformers()
        factory = write_factory(
            self.factory, folder, self.sequence_length, known_families()
        )
        return replace(self, factory=factory, hf=False, sequence_length=None)

    def build_problem(self) -> Problem:
        """Return the problem of training the module on the cluster."""
        from nest.capture.factory import load
        from nest.capture.imports import hashes_of_imports
        from nest.capture.layers import layers_of
        from nest.capture.problem import ModuleSource, problem_of_module
        from nest.cost.magnitude import with_quantum
        from nest.hardware import find_cluster, mixed_cluster
        from nest.profiles import apply_profile, load_profile

        if self.hf or self.sequence_length is not None:
            return self.with_file(Path()).build_problem()
        try:
            machines, network = find_cluster(self.cluster)
        except UnknownNameError as error:
            error.args = (f"--cluster: {error}",)
            raise
        if len(machines) > 1:
            raise InvalidOptionError(
                f"--cluster: expected devices of one kind for a captured module, got "
                f"{self.cluster}; choose one of them"
            )
        factory, name = load(self.factory)
        file, _, function = self.factory.rpartition(":")
        imported = hashes_of_imports(Path(file))
        captures = _captures(factory, name, self.granularity)
        machine, count = machines[0]
        assumed: tuple[str, ...] = ()
        if self.granularity == "block" and len(captures.layers) < FEW_LAYERS:
            more = len(layers_of(captures.small, "module"))
            if more > len(captures.layers):
                assumed = (
                    f"layers that plans do not cut: {len(captures.layers)}; with "
                    f"--granularity module: {more}",
                )
        source = ModuleSource(
            file=file,
            factory=function,
            sha256=hashlib.sha256(Path(file).read_bytes()).hexdigest(),
            imported=imported,
            granularity=self.granularity,
            assumed=assumed,
        )
        cluster = network or mixed_cluster(machines)
        job = self._job(captures.small.batch, machine.node.fan_out, count)
        problem = problem_of_module(captures, job, machine, cluster, source)
        if self.profile is None:
            return problem
        path = os.fspath(self.profile)
        profile = load_profile(path)
        return with_quantum(apply_profile(problem, profile, where=path))

    def _job(self, example: int, fan_out: int, devices: int) -> ModuleJob:
        """Return the job on so many devices, of nodes with ``fan_out`` of them."""
        from nest.capture.problem import ModuleJob
        from nest.models.choices import powers_of_two

        batch = self.batch or example * devices
        stated = cast("tuple[int, ...]", self.micro_batches or ())
        tps = cast("tuple[int, ...]", self.tp or ())
        sizes = stated or powers_of_two(min(MAX_MICRO_BATCH, batch))
        fitting = tuple(size for size in sizes if batch % size == 0)
        if not fitting:
            raise InvalidOptionError(
                f"--micro-batches: expected at least one divisor of --batch {batch}, "
                f"got {','.join(map(str, sizes))}; choose others"
            )
        largest = max(tps, default=1)
        if largest > devices:
            raise InvalidOptionError(
                f"--tp: expected at most the {devices} devices, got {largest}; choose "
                f"less"
            )
        split = self.schedule in SPLIT_BACKWARD
        return ModuleJob(
            global_batch=batch,
            micro_batches=fitting,
            tp=tps or powers_of_two(min(fan_out, devices, MAX_TP)),
            zero=cast("tuple[int, ...]", self.zero),
            recompute=("none",)
            if split
            else cast("tuple[Recompute, ...]", self.recompute),
            schedule=cast("Schedules", self.schedule),
            optimizer=self.optimizer,
            split_loss=self.split_loss,
        )


def _captures(factory: Callable[[], Any], name: str, granularity: str) -> Captures:
    """Return the module of a factory as two passes without values show it.

    Raises ``InvalidModuleError`` if it cannot be captured.
    """
    from nest.capture.factory import build
    from nest.capture.layers import layers_of
    from nest.capture.local import capture_rank
    from nest.capture.problem import Captures
    from nest.capture.trace import capture
    from nest.capture.values import check_values

    small, large = (capture(build(factory, name, n)) for n in SAMPLES)
    layers = layers_of(small, granularity)  # type: ignore[arg-type]
    return Captures(
        small,
        large,
        layers,
        lambda styles, tp: capture_rank(factory, name, small.batch, styles, tp),
        lambda split_loss: check_values(factory, name, small, split_loss),
    )


def profile_module(
    text: str,
    samples: Sequence[int],
    device: str,
    device_name: str,
    *,
    granularity: str = "block",
    passes: tuple[int, int] = (2, 5),
) -> Profile:
    """Time the layers of a module, ``FILE.py:FACTORY``, on the device at hand.

    ``samples`` are numbers of samples of a pass; ``device`` and ``device_name`` what
    PyTorch and what clusters call the device; ``passes`` those before the measured
    ones, and measured ones.

    Raises ``InvalidModuleError`` if the module cannot be captured, or does not run.
    """
    import torch

    from nest.capture.factory import load
    from nest.capture.problem import data_type, graph_of, node_kinds
    from nest.capture.timing import time_layers
    from nest.profiles.format import Entry, Profile

    factory, model = load(text)
    captures = _captures(factory, model, granularity)
    nodes = graph_of(captures).nodes
    kinds = node_kinds(captures, nodes)
    entries = []
    for count in samples:
        times = time_layers(
            *(factory, captures.small, captures.layers, count, device, passes)
        )
        for kind in dict.fromkeys(kinds):
            spent = [
                [times[layer.name] for layer in node]
                for node, name in zip(nodes, kinds, strict=True)
                if name == kind
            ]
            entries.append(
                Entry(
                    model=captures.small.name,
                    kind=kind,
                    samples=count,
                    sequence_length=1,
                    forward_ns=median(
                        sum(x.forward_ns for x in node) for node in spent
                    ),
                    backward_ns=median(
                        sum(x.backward_ns for x in node) for node in spent
                    ),
                )
            )
    return Profile(
        source=f"nest profile torch {text}",
        device=device_name,
        framework="PyTorch",
        framework_version=str(torch.__version__),
        dtype=data_type(captures.small),
        warm_up=passes[0],
        repeats=passes[1],
        entries=tuple(entries),
    )
