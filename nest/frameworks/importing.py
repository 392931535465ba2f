"""Turns the launch of a framework into a problem and a plan of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from nest.constraints.targets import ANY
from nest.constraints.targets import target as find_target
from nest.cost.magnitude import with_quantum
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks.launch import (
    BYTES,
    Launch,
    fields_of,
    plan_of,
    rank_map_of,
    usual_mesh,
)
from nest.frameworks.layers import placement_of
from nest.hardware.calibration import Software, stored_calibration
from nest.hardware.machines import Machine
from nest.ir.cluster import Cluster
from nest.ir.job import Optimizer
from nest.ir.plan import OVERLAP, USUAL_RECOMPUTE, Overlap, Plan, Stage
from nest.ir.problem import OwnRuns, Problem
from nest.models.architectures import Architecture
from nest.models.choices import Choices, Request, choose, read_overlap
from nest.models.graphs import build_on
from nest.models.operators.base import DTYPES, Dtype, Execution
from nest.units import divisors


class Site(NamedTuple):
    """Where it runs.

    On runs of machines, with their devices, or on the cluster of a file. ``software``
    is what the calibration of that name says that software hides there, by default the
    stored one; ``own_runs`` is what the runs behind it leave unknown, and ``execution``
    how operators run, by default as usual.
    """

    machines: Sequence[tuple[Machine, int]]
    cluster: Cluster | None = None
    software: Software | None = None
    calibration: str | None = None
    own_runs: OwnRuns | None = None
    execution: Execution | None = None

    @property
    def num_devices(self) -> int:
        """Devices of all machines."""
        return sum(count for _, count in self.machines)


class Freedom(NamedTuple):
    """What plans of the problem may choose.

    They do not cut ``layers_per_node`` consecutive blocks apart. With
    ``any_sequences`` they may be with or without sequence parallelism, where
    the framework has it; otherwise all are as the launch. ``selective_operators`` as of
    :class:`nest.models.operators.base.Execution` says what ``selective`` means.
    """

    layers_per_node: int = 1
    any_sequences: bool = False
    selective_operators: bool = False


_CLOSED = Freedom()


class Imported(NamedTuple):
    """A problem, a plan of it, notes for the user, and the model."""

    problem: Problem
    plan: Plan
    notes: tuple[str, ...]
    model: Architecture


def build(
    launch: Launch,
    model: Architecture,
    site: Site,
    overlap: Mapping[Overlap, float] | None = None,
    freedom: Freedom = _CLOSED,
    devices: Sequence[int] | None = None,
    mesh_inside: bool = False,
    target: str = ANY,
) -> Imported:
    """Return the problem that a launch is a plan of, and the plan.

    The job offers what :func:`nest.models.choices.choose` offers, and all that the
    launch uses, which is as :func:`nest.frameworks.launch.as_run` has it.

    ``overlap`` is the fraction of communication that is hidden where it overlaps, by
    default that of the site's calibration; ``devices`` are the plan's for every rank,
    ``None`` for all in order. With ``mesh_inside`` all stages of a data rank come
    before the next data rank. Where the ``target`` has no sequence parallelism, plans
    may be without, too.

    Raises ``InvalidPlanError`` if no plan puts ranks on these devices, and
    ``InvalidOptionError`` if a degree does not divide the model.
    """
    notes: tuple[str, ...] = ()
    overlap = {**(overlap or {})}
    missing = [name for name in launch.overlap if name not in overlap]
    if missing:
        calibrated = (site.software or stored_calibration().software).overlap
        overlap |= {name: calibrated[name] for name in missing}
        fractions = ",".join(f"{name}={calibrated[name]}" for name in missing)
        whose = site.calibration or "the stored calibration"
        notes = (
            f"overlap of {', '.join(missing)}: how much of it hides is not in the "
            f"file, so it is {whose}'s, {fractions}; --overlap gives others",
        )
    if devices is None:
        devices = range(launch.world)
    launch = placed(launch, site.num_devices, devices, mesh_inside)
    choices = _choices(launch, model, site, freedom.layers_per_node)
    rules = find_target(target).rules
    has_none = rules is not None and rules.sequence_parallel.value is False
    any_sequences = freedom.any_sequences and not has_none and launch.tp > 1
    if any_sequences or (launch.tp == 1 and choices.sequence_parallel and has_none):
        choices = replace(choices, sequence_parallel=(False, True))
    elif launch.tp > 1:
        choices = replace(choices, sequence_parallel=launch.sequence_parallel)
    execution = site.execution
    if freedom.selective_operators:
        execution = replace(execution or Execution(), selective_operators=True)
    if execution is not None:
        execution = replace(execution, dtype=choices.dtype)
        choices = replace(choices, execution=execution)
    problem = build_on(model, site.machines, choices, site.cluster)
    job = replace(
        problem.job,
        schedule=launch.schedule,
        optimizer=Optimizer(name=launch.optimizer, **fields_of(launch, *BYTES)),
        overlap={name: overlap[name] for name in OVERLAP if name in launch.overlap},
        distributed_optimizer=launch.distributed_optimizer,
    )
    problem = with_quantum(replace(problem, job=job, own_runs=site.own_runs))
    plan = plan_of(launch, placement_of(problem.graph))
    if any_sequences and launch.sequence_parallel:
        plan = _with_sequences(plan)
    return Imported(problem, plan, notes, model)


def placed(
    launch: Launch, num_devices: int, devices: Sequence[int], mesh_inside: bool = False
) -> Launch:
    """Return a launch with the replicas that put its ranks on devices.

    Frameworks do not know replicas beside data ranks; where stages and data
    ranks mix, the order of devices tells them.

    Raises ``InvalidPlanError`` if no number of replicas does.
    """
    data = launch.dp * launch.replicas
    for replicas in divisors(data):
        candidate = _with_replicas(launch, replicas)
        stride = num_devices // replicas
        if candidate is None or stride < candidate.stages * candidate.block_devices:
            continue
        if mesh_inside and candidate.dp > 1:
            continue
        *inside, outer, stages = usual_mesh(candidate)
        outside = (stages, outer) if mesh_inside else (outer, stages)
        if rank_map_of(candidate, stride, (*inside, *outside)) == tuple(devices):
            return candidate
    raise InvalidPlanError(
        f"rank_map: expected ranks on the devices that a plan gives them ({data} data "
        f"ranks, {launch.stages} stages on {num_devices} devices), got others; add the "
        f"rank map of the launch, or reorder the devices"
    )


def _with_replicas(launch: Launch, replicas: int) -> Launch | None:
    """Return the same run with other replicas, ``None`` if impossible."""
    data = launch.dp * launch.replicas
    changed = replace(
        launch,
        dp=data // replicas,
        replicas=replicas,
        micro_batch=launch.micro_batch * launch.replicas // replicas,
    )
    if changed.block_devices // (changed.etp or changed.tp) % changed.ep:
        return None
    if not launch.zero or replicas == launch.replicas:
        return changed
    if launch.zero == 1 and launch.replicas == 1:
        # Sharded over all data ranks: the distributed optimizer.
        return replace(changed, zero=0, distributed_optimizer=True)
    return None


def _choices(
    launch: Launch, model: Architecture, site: Site, layers_per_node: int
) -> Choices:
    """Return what plans may choose: the usual, and what the launch uses."""
    machine, _ = site.machines[0]
    request = Request(
        global_batch=launch.global_batch,
        sequence_length=launch.sequence_length,
        dtype=_dtype(launch),
        layers_per_node=layers_per_node,
        recompute=USUAL_RECOMPUTE,
        virtual_stages=_with({1}, launch.virtual_stages),
    )
    usual = choose(model, machine, site.num_devices, request)
    sizes = _with(usual.micro_batches, launch.micro_batch)
    degrees = {
        axis: _with(map(attrgetter(axis), usual.degrees), getattr(launch, axis))
        for axis in ("tp", "cp", "ep")
    }
    fitting = tuple(size for size in sizes if launch.global_batch % size == 0)
    if launch.etp:
        degrees["etp"] = _with({*degrees["tp"]}, launch.etp)
    request = replace(request, micro_batches=fitting, **degrees)
    return choose(model, machine, site.num_devices, request)


def _with_sequences(plan: Plan) -> Plan:
    """Return a plan of one strategy with sequence parallelism stated."""

    def split(stage: Stage) -> Stage:
        assert stage.strategy is not None
        strategy = replace(stage.strategy, sequence_parallel=True)
        return replace(stage, strategy=strategy)

    return replace(plan, stages=tuple(map(split, plan.stages)))


def _dtype(launch: Launch) -> Dtype:
    """Return the data type, which must be one that costs are known for."""
    for name in DTYPES:
        if name == launch.dtype:
            return name
    raise InvalidPlanError(
        f"dtype: expected one of {', '.join(DTYPES)}, got {launch.dtype}; "
        f"costs of others are not known"
    )


def _with(values: Iterable[int], value: int) -> tuple[int, ...]:
    return tuple(sorted({*values, value}))


def overlap_of(texts: Sequence[str]) -> dict[Overlap, float]:
    """Read texts such as ``gradients=0.9,tp=0.5``.

    Raises ``InvalidOptionError`` if a name is unknown or comes twice, or a fraction is
    none.
    """
    try:
        return read_overlap(texts)
    except ValueError as error:
        raise InvalidOptionError(
            f"--overlap: expected one of {', '.join(OVERLAP)} with a fraction from 0 "
            f"to 1, each once, got {str(error)!r}; for example --overlap gradients=0.9"
        ) from None
