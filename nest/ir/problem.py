"""Problems: a graph, a cluster, a job, and the preset that prices plans."""

from __future__ import annotations

from nest.ir.base import Count, Struct
from nest.ir.cluster import Cluster
from nest.ir.graph import Graph
from nest.ir.job import Job


class Problem(
    Struct, frozen=True, kw_only=True, tag_field="schema", tag="nest-problem/1"
):
    """Everything that determines which plans exist and what they cost.

    Attributes
    ----------
    name, source
        For people: what it is, where its figures come from.
    preset
        Name of the cost rules, see :mod:`nest.cost.rules`.
    quantum_ps
        Size in ps of the integer time unit; 1000 is 1 ns.
    time_unit
        What one second of this problem is called where it came from.
    """

    name: str = "problem"
    source: str = ""
    graph: Graph
    cluster: Cluster
    job: Job
    preset: str = "standard"
    quantum_ps: Count = 1000
    time_unit: str = "s"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = [kind.name for kind in self.graph.kinds]
        for name in self.job.one_stage:
            if name not in known:
                raise ValueError(
                    f"job.one_stage: expected kinds of the graph "
                    f"({', '.join(known)}), got {name!r}; correct or remove "
                    f"it"
                )
        if self.job.plans_split_sequences:
            return
        for kind in self.graph.kinds:
            if any(cost.sequence_parallel for cost in kind.costs):
                split = str(self.job.sequence_parallel).lower()
                raise ValueError(
                    f"job.sequence_parallel: expected a list such as "
                    f"[false, true], as kind {kind.name!r} has costs with "
                    f"sequence_parallel, got {split}; correct it, or remove "
                    f"those costs"
                )
