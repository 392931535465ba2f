"""The axes along which a layer is spread, as data.

Groups, counting rules, pins and listings all read this table. A new axis is
a line here, a field of :class:`~nest.ir.plan.Strategy`, one of
:class:`~nest.ir.graph.LayerCost` and one of :class:`~nest.ir.job.Job`.
"""

from __future__ import annotations

from typing import NamedTuple

from nest.ir.plan import Strategy


class Axis(NamedTuple):
    """One parallel axis.

    ``name`` is the field of a strategy that holds its degree, and its pin; ``field`` is
    that of a job with the allowed degrees; ``meaning`` is for messages.
    """

    name: str
    field: str
    meaning: str


#: Axes with devices of their own, in the order in which ranks run through a
#: block: the first fastest. Those that split weights come before those whose
#: ranks share them (``Strategy.data_ranks``).
RANK_AXES = (
    Axis("tp", "tensor_parallel", "tensor parallel degrees"),
    Axis("cp", "context_parallel", "context parallel degrees"),
    Axis("dp", "data_parallel", "data parallel degrees"),
)

#: Experts are spread over ranks that share the dense weights.
EXPERT_AXIS = Axis("ep", "expert_parallel", "expert parallel degrees")

AXES = (*RANK_AXES, EXPERT_AXIS)

#: Tensor ranks that an expert is cut over: ``tp`` of them unless a strategy states it.
EXPERT_TENSOR_AXIS = Axis(
    "etp", "expert_tensor_parallel", "expert tensor parallel degrees"
)


def degree_of(strategy: Strategy, name: str) -> int | str:
    """Return the value that a setting of plans has in a strategy."""
    value: int | str = getattr(strategy, name)
    return strategy.expert_tp if name == EXPERT_TENSOR_AXIS.name else value


class Groups(NamedTuple):
    """The parallel groups of one purpose."""

    #: Ranks of a group inside a block, and how far they are apart.
    size: int
    stride: int
    #: Whether a group spans all replicas.
    joined: bool = False
    #: Whether all stages do so at once, at the end of the step.
    tiled: bool = False


def groups_of(strategy: Strategy) -> dict[str, Groups]:
    """Return the groups of a layer, by what they are for.

    Every axis by its name; ``data``, the ranks that share dense weights, and
    ``expert-data``, those that share experts; ``sync`` and ``expert-sync``, the same
    over all replicas; ``replicas``, one rank of every replica; ``step-data`` and
    ``step-expert-data``, those of ``data`` and ``expert-data`` at the end of the step.
    Experts sit on ``ep`` ranks, ``expert_tp`` apart: on consecutive ones of those that
    share dense weights, or, if experts are whole, on consecutive devices.
    """
    groups = {}
    stride = 1
    for axis in RANK_AXES:
        degree = getattr(strategy, axis.name)
        groups[axis.name] = Groups(degree, stride)
        stride *= degree
    ranks, experts, apart = strategy.data_ranks, strategy.ep, strategy.expert_tp
    groups[EXPERT_AXIS.name] = Groups(experts, apart)
    groups["data"] = Groups(ranks, strategy.devices // ranks)
    groups["expert-data"] = Groups(strategy.expert_ranks, apart * experts)
    groups["replicas"] = Groups(1, 1, joined=True, tiled=True)
    for name in ("data", "expert-data"):
        groups[f"step-{name}"] = groups[name]._replace(tiled=True)
    for name, source in (("sync", "data"), ("expert-sync", "expert-data")):
        groups[name] = groups[source]._replace(joined=True, tiled=True)
    return groups
