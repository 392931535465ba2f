"""Launches: plans as all frameworks can express them, and rank groups.

A :class:`Launch` has one set of degrees for all stages. Writers turn it into
a framework's files; readers get it back from the files alone, together with
the devices of every process group, and both must equal the plan's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, product
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from nest.cost.orders import plan_schedule
from nest.errors import InvalidPlanError
from nest.frameworks.layers import Chunk, Placement, chunks_of, with_ends
from nest.frameworks.schedule_csv import cells_of
from nest.ir.base import Struct
from nest.ir.job import ANY_ORDER, Job, Schedule
from nest.ir.plan import OVERLAP, Overlap, PassLists, Plan, Recompute, Stage, Strategy
from nest.ir.problem import Problem
from nest.models.architectures import Architecture

#: Groups of devices, by what they are for.
Groups = Mapping[str, frozenset[tuple[int, ...]]]

#: Axes of a mesh, the fastest first, with their sizes.
Mesh = Sequence[tuple[str, int]]

#: What is kept per weight.
BYTES = ("weight_bytes", "gradient_bytes", "state_bytes")


class Settings(NamedTuple):
    """The model and the devices of a node, where the problem does not say them.

    ``flavor`` is what torchtitan calls the model, such as ``llama3/8B``.
    """

    model: Architecture | None = None
    gpus_per_node: int | None = None
    flavor: str | None = None


class Launch(Struct, frozen=True, kw_only=True, dict=True):
    """A plan with one strategy for all stages."""

    #: Degrees; ``dp`` per replica, ``etp`` as of a strategy.
    tp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 0
    #: ``R``, ``S`` (blocks of devices) and ``v``.
    replicas: int = 1
    stages: int = 1
    virtual_stages: int = 1
    #: What every stage holds, in pipeline order; of an interleaved plan the ``S v``
    #: chunks.
    chunks: tuple[Chunk, ...]
    #: Of the pipeline; without one ``1f1b``.
    schedule: Schedule | Literal["any"] = "1f1b"
    #: Where chunks sit, and the passes of every block, with the schedule ``any``; as of
    #: a plan.
    placement: Literal["loop", "v"] = "loop"
    order: PassLists | None = None
    #: ZeRO stage of the ``dp * cp`` ranks, or (with 0) an optimizer that is sharded
    #: over replicas too. 0 where it shards over one rank.
    zero: int = 0
    distributed_optimizer: bool = False
    #: Of every layer.
    recompute: Recompute = "none"
    #: ``B`` and ``A`` in samples.
    micro_batch: int
    global_batch: int
    #: Tokens per sample, ``None`` if not stated.
    sequence_length: int | None = None
    #: Names of the communication that runs behind computation.
    overlap: tuple[Overlap, ...] = ()
    #: Whether activations between layers are cut over ``tp`` too.
    sequence_parallel: bool = False
    #: Of the matrix products.
    dtype: str = "bf16"
    #: Of the optimizer, per weight.
    weight_bytes: int = 2
    gradient_bytes: int = 2
    state_bytes: int = 12
    #: Which one it is, of those with one moment; ``adam`` for all others.
    optimizer: str = "adam"

    @property
    def block_devices(self) -> int:
        """Devices of a stage."""
        return self.dp * self.cp * self.tp

    @property
    def world(self) -> int:
        """Devices that work: one rank each."""
        return self.replicas * self.stages * self.block_devices

    @property
    def samples(self) -> int:
        """Samples ``B / dp`` of a micro-batch on one data rank."""
        return self.micro_batch // self.dp

    @property
    def micro_batches(self) -> int:
        """Micro-batches ``M`` of a replica."""
        return self.global_batch // (self.replicas * self.micro_batch)

    @property
    def layers(self) -> int:
        """Blocks of the model."""
        return sum(chunk.layers for chunk in self.chunks)

    @property
    def mtp(self) -> int:
        """Modules for multi-token prediction."""
        return sum(chunk.mtp for chunk in self.chunks)

    @cached_property
    def even_layers(self) -> int | None:
        """Blocks of every chunk if they are alike, ``None`` if not.

        The embedding is on the first, modules and head on the last of them.
        """
        even = even_chunks(self.layers, len(self.chunks), self.mtp)
        return self.chunks[0].layers if self.chunks == even else None

    @property
    def strategy(self) -> Strategy:
        """The strategy of every stage."""
        names = ("dp", "tp", "cp", "ep", "etp", "zero", "recompute")
        return Strategy(**fields_of(self, *names))


def fields_of(record: Struct, *names: str) -> dict[str, Any]:
    """Return fields of a record, for another one that has them too."""
    return {name: getattr(record, name) for name in names}


def even_chunks(layers: int, count: int, mtp: int = 0) -> tuple[Chunk, ...] | None:
    """Return chunks of equally many blocks, ``None`` if they do not divide.

    The last one has the modules for multi-token prediction.
    """
    if layers % count:
        return None
    return with_ends([layers // count] * count, mtp)


def launch_of(problem: Problem, plan: Plan, placement: Placement) -> Launch:
    """Return what a plan that is legal says, if one set of degrees says it.

    Raises ``InvalidPlanError`` if stages or layers differ in a field, or batches are
    uneven; the text names the field.
    """
    job = problem.job
    first = plan.stages[0].layer_strategies[0]
    for stage_number, stage in enumerate(plan.stages, 1):
        for strategy in stage.layer_strategies:
            _check_alike(first, strategy, stage_number)
    if job.global_batch % (plan.replicas * plan.micro_batch):
        raise InvalidPlanError(
            f"global_batch: expected a multiple of replicas * micro_batch = "
            f"{plan.replicas} * {plan.micro_batch}, got {job.global_batch}; "
            f"choose another micro-batch"
        )
    schedule, order = _schedule_of(job, plan)
    distributed = plan.distributed_optimizer and plan.replicas > 1
    zero = _zero_stage(first, plan.distributed_optimizer, distributed)
    hidden = set(plan.overlap)
    if job.gradient_sync_overlap:
        hidden.add("gradients")
    # Names of what does not occur make no difference. Under ZeRO 1 weights are gathered
    # in the forward pass, which frameworks overlap only together with gradients.
    occurs = {
        "tp": first.tp > 1,
        "cp": first.cp > 1,
        "ep": first.ep > 1,
        "weights": zero > 1 or ((zero or distributed) and "gradients" in hidden),
        "gradients": first.shares_weights or plan.replicas > 1,
    }
    return Launch(
        **fields_of(first, "tp", "cp", "dp", "ep", "etp", "recompute"),
        **fields_of(plan, "replicas", "virtual_stages", "placement", "micro_batch"),
        **fields_of(job, "global_batch", "sequence_length", "dtype"),
        **fields_of(job.optimizer, *BYTES),
        stages=plan.num_blocks,
        chunks=chunks_of(plan, placement),
        schedule=schedule,
        order=order,
        zero=zero,
        distributed_optimizer=distributed,
        overlap=tuple(name for name in OVERLAP if name in hidden and occurs[name]),
        sequence_parallel=job.splits_sequence(first) and first.tp > 1,
        optimizer=_optimizer(job),
    )


def _schedule_of(job: Job, plan: Plan) -> tuple[Any, PassLists | None]:
    """Return the schedule of a plan, and its passes if files say those."""
    if plan.num_blocks == 1:
        return "1f1b", None
    if job.schedule in ("1f1b", "gpipe"):
        return job.schedule, None
    count = job.global_batch // (plan.replicas * plan.micro_batch)
    schedule = plan_schedule(job, plan, count)
    return ANY_ORDER, cells_of(schedule, plan.num_blocks, count)


def _optimizer(job: Job) -> str:
    """Return the optimizer, if it keeps a copy in fp32 and one moment."""
    optimizer = job.optimizer
    if optimizer.name in ("sgd", "muon") and optimizer.state_bytes == 8:
        return optimizer.name
    return "adam"


def _zero_stage(first: Strategy, sharded: bool, distributed: bool) -> int:
    """Return the ZeRO stage that makes a difference."""
    if distributed or not first.shares_weights:
        return 0
    # Without replicas the distributed optimizer is ZeRO 1.
    return max(first.zero, int(sharded))


def check_memory(
    launch: Launch, state_bytes: int = 12, gradient_bytes: tuple[int, ...] = (2, 4)
) -> None:
    """Refuse what a framework does not keep per weight.

    Raises ``InvalidPlanError`` if weights have other than 2 bytes, or gradients or
    optimizer state others than given; the text names the field.
    """
    for field, values in (
        ("weight_bytes", (2,)),
        ("gradient_bytes", gradient_bytes),
        ("state_bytes", (state_bytes,)),
    ):
        got = getattr(launch, field)
        if got not in values:
            raise InvalidPlanError(
                f"optimizer.{field}: expected "
                f"{' or '.join(map(str, values))}, got {got}; change the job"
            )


def check_dtype(launch: Launch, dtypes: Sequence[str], why: str) -> None:
    """Refuse data types that a framework does not compute in.

    Raises ``InvalidPlanError`` if the launch has another one than those.
    """
    if launch.dtype not in dtypes:
        raise InvalidPlanError(
            f"dtype: expected {' or '.join(dtypes)}, got {launch.dtype}; {why}"
        )


def length_of(launch: Launch) -> int:
    """Return the tokens of a sample.

    Raises ``InvalidPlanError`` if the launch does not say them.
    """
    if launch.sequence_length is None:
        raise InvalidPlanError(
            "sequence_length: expected the tokens of a sample, got none; add "
            "it to the job"
        )
    return launch.sequence_length


def as_run(launch: Launch) -> Launch:
    """Return a launch as frameworks run it.

    To them replicas are data ranks; what tells them apart is only what is
    sharded within a replica. Without that, ``replicas`` is 1.
    """
    over_replicas = launch.distributed_optimizer
    shares = launch.strategy.shares_weights
    if launch.zero and shares and not over_replicas:
        return launch
    return replace(
        launch,
        dp=launch.dp * launch.replicas,
        replicas=1,
        micro_batch=launch.micro_batch * launch.replicas,
        zero=int(over_replicas),
        distributed_optimizer=False,
    )


def _check_alike(first: Strategy, strategy: Strategy, stage_number: int) -> None:
    for field in Strategy.__struct_fields__:
        expected, got = getattr(first, field), getattr(strategy, field)
        if expected != got:
            raise InvalidPlanError(
                f"{field}: expected one value for all layers ({expected} as "
                f"in stage 1), got {got} in stage {stage_number}; choose one"
            )


def rank_map_of(launch: Launch, stride: int, mesh: Mesh) -> tuple[int, ...]:
    """Return the plan's device of every rank of a framework.

    In a plan replicas come first, then stages; in a stage ``tp`` is fastest,
    then ``cp`` and ``dp``. ``stride`` counts the devices of one replica, idle ones
    included; ``mesh`` is how the framework numbers its ranks.
    """
    strides = {
        "tp": 1,
        "cp": launch.tp,
        "dp": launch.tp * launch.cp,
        "stages": launch.block_devices,
        "replicas": stride,
    }
    offsets = [
        range(0, size * strides[name], strides[name]) for name, size in reversed(mesh)
    ]
    return tuple(map(sum, product(*offsets)))


def groups_of_plan(problem: Problem, plan: Plan, launch: Launch) -> Groups:
    """Return the devices of every group of a plan, as docs/cost-model.md says.

    Where a replica is, and the ranks of a block, are read off the plan; what
    shards and what is synchronized off the launch.
    """
    tp, cp, dp, ep = launch.tp, launch.cp, launch.dp, launch.ep
    expert_tp = launch.strategy.expert_tp
    stride = problem.cluster.num_devices // plan.replicas
    replicas = range(0, stride * plan.replicas, stride)
    sizes = [stage.devices for stage in plan.stages[: plan.num_blocks]]
    starts = list(accumulate(sizes, initial=0))[:-1]
    groups: dict[str, set[tuple[int, ...]]] = {name: set() for name in GROUP_NAMES}
    for start, t in product(starts, range(tp)):
        # For each replica, the devices with the weights of one tp rank.
        data = [
            [first + start + rank * tp + t for rank in range(dp * cp)]
            for first in replicas
        ]
        for ranks in data:
            groups["cp"].update(_slices(ranks, cp))
            groups["shard"].add(tuple(ranks))
        groups["sync"].add(tuple(chain(*data)))
    for start, t in product(starts, range(expert_tp)):
        # The same of the ranks that hold one part of experts.
        data = [
            [*range(first + start + t, first + start + launch.block_devices, expert_tp)]
            for first in replicas
        ]
        for ranks in data:
            groups["ep"].update(_slices(ranks, ep))
            groups["expert-shard"].update(_with_same_experts(ranks, ep))
        experts = [_with_same_experts(ranks, ep) for ranks in data]
        groups["expert-sync"].update(
            tuple(chain(*ranks)) for ranks in zip(*experts, strict=True)
        )
    for first, rank in product(replicas, range(launch.block_devices)):
        groups["pp"].add(tuple(first + start + rank for start in starts))
    for first, start in product(replicas, starts):
        block = range(first + start, first + start + launch.block_devices)
        groups["tp"].update(_slices(block, tp))
    if launch.distributed_optimizer:
        groups["shard"] = groups["sync"]
        groups["expert-shard"] = groups["expert-sync"]
    elif not launch.zero:
        del groups["shard"], groups["expert-shard"]
    # Stages of a pipeline are in their order.
    return {
        name: frozenset(
            group if name == "pp" else tuple(sorted(group)) for group in members
        )
        for name, members in groups.items()
    }


def _slices(ranks: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Return consecutive ranks in groups of one size."""
    starts = range(0, len(ranks), size)
    return [tuple(ranks[start : start + size]) for start in starts]


def _with_same_experts(ranks: Sequence[int], ep: int) -> list[tuple[int, ...]]:
    """Return the ranks with the same experts, which are spread over ``ep``."""
    return [tuple(ranks[first::ep]) for first in range(ep)]


#: Every kind of group: axes, ranks of one shard of optimizer or weights,
#: ranks that synchronize gradients, and stages of a pipeline in order.
GROUP_NAMES = (
    *("tp", "cp", "ep", "pp", "shard", "expert-shard"),
    *("sync", "expert-sync"),
)


def usual_mesh(launch: Launch) -> Mesh:
    """Return tp fastest, then cp, dp and replicas, stages slowest."""
    return tuple(
        (name, getattr(launch, name))
        for name in ("tp", "cp", "dp", "replicas", "stages")
    )


def usual_groups(launch: Launch, devices: Sequence[int]) -> Groups:
    """Return the groups of a framework with the usual mesh, as devices.

    Experts are spread over consecutive data ranks of a replica, or over consecutive
    ranks where tensor ranks hold whole ones.
    """
    mesh, split = usual_mesh(launch), launch.strategy
    cut, experts = ("tp", split.expert_tp), ("experts", split.expert_ranks)
    expert_mesh = (cut, ("ep", launch.ep), experts, *mesh[3:])
    return mesh_and_expert_groups(launch, mesh, expert_mesh, devices)


def mesh_and_expert_groups(
    launch: Launch, mesh: Mesh, experts: Mesh, devices: Sequence[int]
) -> Groups:
    """Return all groups of a mesh, and of the one that experts see."""
    groups = {
        "tp": mesh_groups(mesh, ("tp",), devices),
        "cp": mesh_groups(mesh, ("cp",), devices),
        "pp": mesh_groups(mesh, ("stages",), devices),
        "sync": mesh_groups(mesh, ("cp", "dp", "replicas"), devices),
        "ep": mesh_groups(experts, ("ep",), devices),
        "expert-sync": mesh_groups(experts, ("experts", "replicas"), devices),
    }
    if launch.zero:
        groups["shard"] = mesh_groups(mesh, ("cp", "dp"), devices)
        groups["expert-shard"] = mesh_groups(experts, ("experts",), devices)
    return groups


def mesh_groups(
    mesh: Mesh, names: Iterable[str], devices: Sequence[int]
) -> frozenset[tuple[int, ...]]:
    """Return the groups whose ranks differ in the axes named only.

    ``devices`` has the device of every rank. Groups are sorted by device, except along
    one axis ``stages``, which is in its order.
    """
    inside = set(names)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, device in enumerate(devices):
        outer, key = rank, []
        for name, size in mesh:
            outer, position = divmod(outer, size)
            if name not in inside:
                key.append(position)
        groups.setdefault(tuple(key), []).append(device)
    if inside == {"stages"}:
        return frozenset(map(tuple, groups.values()))
    return frozenset(tuple(sorted(group)) for group in groups.values())


def differences(
    expected: Launch, got: Launch, groups: Groups, written: Groups | None
) -> str | None:
    """Return the first difference of files from their plan, or ``None``.

    ``written`` is ``None`` where files do not say which rank is where.
    """
    for field in Launch.__struct_fields__:
        ours, theirs = getattr(expected, field), getattr(got, field)
        if ours != theirs:
            return f"{field}: expected {_shown(ours)}, got {_shown(theirs)}"
    if written is None:
        return None
    for name in sorted({*groups, *written}):
        different = groups.get(name, frozenset()) ^ written.get(name, frozenset())
        if different:
            return (
                f"{name} groups: expected the plan's devices, got others "
                f"(group {list(min(different))})"
            )
    return None


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:197]}..."


def plan_of(launch: Launch, placement: Placement) -> Plan:
    """Return the plan that runs a launch on the layers of a graph.

    Raises ``InvalidPlanError`` if a chunk begins or ends inside a layer of the graph.
    """
    stages = [
        Stage.of(layers, [launch.strategy] * len(layers))
        for layers in placement.cut(launch.chunks)
    ]
    return Plan(
        stages=tuple(stages),
        **fields_of(launch, "replicas", "virtual_stages", "placement", "micro_batch"),
        **fields_of(launch, "order", "overlap", "distributed_optimizer"),
    )
