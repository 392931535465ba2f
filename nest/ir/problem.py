"""Problems: a graph, a cluster, a job, and the preset that prices plans."""

from __future__ import annotations

import math

from nest.ir.base import Count, FileStruct, Real, Struct
from nest.ir.cluster import Cluster
from nest.ir.graph import Graph
from nest.ir.job import Job
from nest.ir.views import Row as TableRow
from nest.ir.views import Tabular

#: A row of a matrix over the times of devices, of the network and of hosts.
Row = tuple[float, float, float]


class OwnRuns(Struct, frozen=True, kw_only=True):
    """What a user's own runs leave unknown of the times of a problem.

    For intervals of predictions only: no plan costs more or less by it.

    Attributes
    ----------
    runs
        How many.
    family
        The device family that they ran on.
    software
        What ran, where the runs say it.
    covariance
        Of what is still unknown of the logarithms of the times that devices,
        the network and hosts take, in this order.
    noise
        Standard deviation of the logarithm of a step time beside that.
    experts, low_precision
        Whether models with experts, and steps in fp8, are among them.
    """

    runs: Count
    family: str
    software: tuple[str, ...] = ()
    covariance: tuple[Row, Row, Row]
    noise: Real
    experts: bool = False
    low_precision: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, row in enumerate(self.covariance):
            for j, value in enumerate(row):
                if not math.isfinite(value) or value != self.covariance[j][i]:
                    raise ValueError(
                        f"covariance[{i}][{j}]: expected a finite number, "
                        f"the same as [{j}][{i}], got {value}"
                    )
            if row[i] < 0:
                raise ValueError(f"covariance[{i}][{i}]: expected >= 0, got {row[i]}")


#: The quantum of a problem that does not state one, in ps. Files leave out
#: this very number.
DEFAULT_QUANTUM_PS = 1000


class Problem(FileStruct, Tabular, frozen=True, kw_only=True, tag="nest-problem/1"):
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
    own_runs
        What is known of its times from a user's own runs; ``None`` where
        they are those of the stored calibration. For intervals only.
    software
        Entry of the table of software whose facts its costs have; empty where none
        was named. For intervals only.
    model
        JSON of the shape of its model, an ``Architecture`` of :mod:`nest.models`,
        where no published name stands for it; of a captured module, where its code is
        and what was found in it. For exports only.
    """

    name: str = "problem"
    source: str = ""
    graph: Graph
    cluster: Cluster
    job: Job
    preset: str = "standard"
    quantum_ps: Count = DEFAULT_QUANTUM_PS
    time_unit: str = "s"
    own_runs: OwnRuns | None = None
    software: str = ""
    model: str = ""

    def __repr__(self) -> str:
        """Return what it is in a line; files have all of it."""
        cluster, job = self.cluster, self.job
        return (
            f"<Problem {self.name}: {len(self.graph.layers)} layers, "
            f"{cluster.num_devices} × {cluster.device_name}, global batch "
            f"{job.global_batch}, {job.schedule_text}, preset {self.preset}>"
        )

    def to_rows(self) -> list[TableRow]:
        """Return a row per kind of layers."""
        return [
            {
                "kind": kind.name,
                "layers": sum(x.kind == kind.name for x in self.graph.layers),
                "costs": len(kind.costs),
            }
            for kind in self.graph.kinds
        ]

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = [kind.name for kind in self.graph.kinds]
        for name in self.job.one_stage:
            if name not in kinds:
                raise ValueError(
                    f"job.one_stage: expected kinds of the graph ({', '.join(kinds)}), "
                    f"got {name!r}; correct or remove it"
                )
        if self.job.plans_split_sequences:
            return
        for kind in self.graph.kinds:
            if any(cost.sequence_parallel for cost in kind.costs):
                split = str(self.job.sequence_parallel).lower()
                raise ValueError(
                    f"job.sequence_parallel: expected a list such as [false, true], as "
                    f"kind {kind.name!r} has costs with sequence_parallel, got "
                    f"{split}; correct it, or remove those costs"
                )
