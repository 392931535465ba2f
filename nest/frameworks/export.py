"""Write a plan for a framework, and read it back before anybody uses it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from msgspec.structs import replace

from nest.constraints.targets import has_schedule, inexpressible, optimizer_of
from nest.constraints.targets import target as find
from nest.cost.orders import with_named_order
from nest.errors import InvalidPlanError, NestError, UnknownNameError
from nest.frameworks.hosts import HOSTS, RANK_MAP, Hosts, node_size
from nest.frameworks.launch import (
    Groups,
    Launch,
    Mesh,
    Settings,
    differences,
    groups_of_plan,
    launch_of,
    rank_map_of,
)
from nest.frameworks.layers import placement_of
from nest.frameworks.models import model_of
from nest.ir.job import FIXED_CHUNKS, SPLIT_BACKWARD, Optimizer
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.models.architectures import Architecture
from nest.models.stated import shape_of

#: Targets, and the modules that write and read them.
TARGETS = {
    name: f"nest.frameworks.{name}"
    for name in ("megatron", "torchtitan", "deepspeed", "maxtext", "accelerate")
}

#: What else plans are written as: no framework's files, so any plan's.
TRACES = ("chakra", "csv", "torch")


class ExportModule(Protocol):
    """A module of a target."""

    #: How to start it on ``{world}`` ranks, in one line.
    START: str

    def mesh_of(self, launch: Launch) -> Mesh:
        """Return how ranks are numbered, the fastest axis first."""

    def write(
        self, launch: Launch, model: Architecture, settings: Settings, heading: str
    ) -> dict[str, str]:
        """Return the files of a launch, without hosts.

        Raises ``InvalidPlanError`` if they cannot say the model, what is kept per
        weight, the data type, or the plan.
        """

    def read(
        self, files: Mapping[str, str], model: Architecture
    ) -> tuple[Launch, Groups | None]:
        """Return what files say, and the devices of every group if known.

        Raises ``InvalidPlanError`` if they are broken, or no run could start with them;
        the text names the file, and the line or key.
        """

    def stated(self, launch: Launch) -> Launch:
        """Return a launch as the files state it."""


def target_of(name: str) -> ExportModule:
    """Return the module of a target.

    Raises ``UnknownNameError`` if there is none.
    """
    if name not in TARGETS:
        raise UnknownNameError("--to", name, (*TARGETS, *TRACES))
    return cast("ExportModule", import_module(TARGETS[name]))


def as_run_by(problem: Problem, target: str) -> tuple[Problem, tuple[str, ...]]:
    """Return a problem with the schedule and memory of a target.

    As :func:`nest.constraints.targets.for_target` has them: its own schedule
    where it has not the job's, and its own optimizer in place of the default
    one, unless it can keep that. The differences from the job come as texts for the
    user.

    Raises ``UnknownNameError`` if there is no such target.
    """
    framework, job = find(target), problem.job
    rules = framework.rules
    assert rules is not None
    schedule, optimizer = job.schedule, job.optimizer
    if not has_schedule(rules, schedule):
        schedule = rules.schedule.value[0]
    if optimizer == Optimizer():
        gradients = "bf16" if "bf16" in rules.gradients.value else None
        optimizer = optimizer_of(framework, gradients)
    virtual = job.virtual_stages
    if schedule != job.schedule and (
        schedule != "1f1b" or not FIXED_CHUNKS.keys().isdisjoint(job.schedules)
    ):
        virtual = (1,)
    there = replace(job, schedule=schedule, optimizer=optimizer, virtual_stages=virtual)
    ours, theirs = (
        {
            "schedule": x.schedule_text,
            "optimizer.gradient_bytes": x.optimizer.gradient_bytes,
            "optimizer.state_bytes": x.optimizer.state_bytes,
        }
        for x in (job, there)
    )
    changes = tuple(
        f"{name} is {value}, not {ours[name]}"
        for name, value in theirs.items()
        if value != ours[name]
    )
    return replace(problem, job=there), changes


def check_schedule(problem: Problem, plan: Plan, target: str) -> None:
    """Refuse a plan of a schedule that no other one stands for.

    Those that split backward passes are a choice, not a default: with 1F1B
    and GPipe the target's own takes their place.

    Raises ``InvalidPlanError`` if the target has not the schedule, and the plan needs
    it.
    """
    rules, schedule = find(target).rules, problem.job.schedule_text
    assert rules is not None
    schedules = rules.schedule.value
    if has_schedule(rules, problem.job.schedule):
        return
    if plan.order is not None:
        schedule = "an order of its own"
    elif schedule not in SPLIT_BACKWARD:
        return
    if plan.num_blocks > 1:
        raise InvalidPlanError(
            f"schedule: expected {' or '.join(schedules)}, got {schedule} "
            f"({rules.schedule.source}); solve with --target {target}, or --nearest"
        )


def export(
    problem: Problem, plan: Plan, target: str, settings: Settings | None = None
) -> dict[str, str]:
    """Return the files that run a plan, by name.

    They have been read back: layers of every chunk and devices of every
    group are the plan's, which is legal for the problem. The problem is taken as
    :func:`as_run_by` gives it.

    Raises ``UnknownNameError`` if there is no such target; ``InvalidPlanError``, which
    names the field, if the target cannot say the plan; ``InvalidOptionError`` if
    something must be known that the problem does not say.
    """
    settings = settings or Settings()
    module = target_of(target)
    problem, plan = with_named_order(problem, plan)
    check_schedule(problem, plan, target)
    problem, _ = as_run_by(problem, target)
    shape = shape_of(problem, settings.model)
    for obstacle in inexpressible(target, problem, plan, shape):
        # Every plan of the graph has that.
        other = "target" if obstacle.field == "graph" else "plan, or --nearest"
        raise InvalidPlanError(f"{obstacle}; choose another {other}")
    placement = placement_of(problem.graph)
    launch = launch_of(problem, plan, placement)
    model = model_of(problem, placement, settings.model)
    stride = problem.cluster.num_devices // plan.replicas
    hosts = Hosts(
        rank_map_of(launch, stride, module.mesh_of(launch)),
        node_size(problem.cluster, settings.gpus_per_node),
    )
    heading = f"{problem.name}, plan {plan.replicas} x {launch.strategy}"
    files = module.write(launch, model, settings, heading) | hosts.files()
    check(problem, plan, launch, model, module, files)
    files["README"] = (
        f"# {heading}: {launch.world} ranks, {launch.micro_batches} "
        f"micro-batches of {launch.samples} samples per data rank.\n"
        f"{module.START.format(world=launch.world)}\n{hosts.how()}\n"
    )
    return files


def lines_of(
    target: str, model: Architecture | None, problem: Problem, plan: Plan
) -> list[str]:
    """Return the lines of the files that run a plan, without hosts.

    Empty if the target has no files, or cannot say the plan.
    """
    if target not in TARGETS:
        return []
    try:
        files = export(problem, plan, target, Settings(model))
    except NestError:
        return []
    return [
        line.strip().rstrip(",")
        for name, text in files.items()
        if name not in ("README", HOSTS, RANK_MAP)
        for line in text.splitlines()
        if not line.startswith("#")
    ]


def check(
    problem: Problem,
    plan: Plan,
    launch: Launch,
    model: Architecture,
    module: ExportModule,
    files: Mapping[str, str],
) -> None:
    """Refuse files that say something else than the plan.

    Raises ``InvalidPlanError`` if they are broken, or differ from the plan in anything.
    """
    written, groups = module.read(files, model)
    reason = differences(
        module.stated(launch), written, groups_of_plan(problem, plan, launch), groups
    )
    if reason is not None:
        raise InvalidPlanError(
            f"export: {reason}; the files do not say the plan, report this"
        )


def write_folder(folder: str | Path, files: Mapping[str, str | bytes]) -> None:
    """Write files to a new or empty folder, all or none.

    Raises ``NestError`` if that does not work.
    """
    path = Path(folder)
    try:
        umask = os.umask(0)
        os.umask(umask)
        temporary = Path(
            tempfile.mkdtemp(dir=path.resolve().parent, prefix=f".{path.name}.")
        )
        try:
            for name, content in files.items():
                if isinstance(content, str):
                    (temporary / name).write_text(content)
                else:
                    (temporary / name).write_bytes(content)
            temporary.chmod(0o777 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise NestError(
            f"-o {folder}: expected a new or empty directory, got {error}; "
            f"choose another path"
        ) from error
