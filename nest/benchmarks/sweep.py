"""Grids of problems: models × clusters × batches × bandwidths."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from msgspec.structs import asdict, replace

from nest.benchmarks.instances import Instance, Recipe, build
from nest.errors import InvalidOptionError, InvalidProblemError, NestError
from nest.ir.base import FileStruct, PositiveReal, check_integer, check_real
from nest.ir.cluster import Cluster
from nest.ir.io import decode, read_bytes
from nest.models.choices import Request


class Sweep(FileStruct, frozen=True, kw_only=True, tag="nest-sweep/1"):
    """A grid, as its file has it."""

    #: As ``--model`` and ``--cluster`` say them.
    models: tuple[str, ...]
    clusters: tuple[str, ...]
    #: Global batches; by default that of each model.
    batches: tuple[int, ...] | None = None
    #: Factors of the bandwidth between nodes, or of all links with ``within_nodes``.
    bandwidths: tuple[float, ...] = (1.0,)
    within_nodes: bool = False
    job: Request = Request()
    solvers: tuple[str, ...] = ("dp",)
    seeds: tuple[int, ...] = (0,)
    time_limit_s: PositiveReal | None = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("models", "clusters", "batches", "bandwidths", "solvers", "seeds"):
            values = getattr(self, name)
            if values is None:
                continue
            if not values:
                raise ValueError(f"{name}: expected at least one, got none")
            if len(set(values)) < len(values):
                raise ValueError(f"{name}: expected each once, got some twice")
        for batch in self.batches or ():
            check_integer("batches", batch, 1)
        for factor in self.bandwidths:
            check_real("bandwidths", factor, positive=True)
        for seed in self.seeds:
            check_integer("seeds", seed, 0)
        if self.batches is not None and self.job.global_batch is not None:
            raise ValueError("job.global_batch: expected it or batches, got both")


def read_sweep(path: str | Path) -> Sweep:
    """Read a grid (.yaml, .yml or .json)."""
    data = read_bytes(path, InvalidOptionError, "grid")
    return decode(data, str(path), Sweep, "grid", InvalidOptionError)


def expand(sweep: Sweep, where: str, calibration: str | None = None) -> list[Instance]:
    """Return the problems of a grid.

    With the parameters of a calibration's file, if one is given.

    Raises ``InvalidProblemError`` if one of them cannot be built; ``where`` names the
    file.
    """
    instances = []
    for model, cluster, batch in product(
        sweep.models, sweep.clusters, sweep.batches or (None,)
    ):
        place = f"{where}: {model} on {cluster}"
        place += f" with a batch of {batch}" if batch is not None else ""
        fields = asdict(sweep.job) | {"model": model, "cluster": cluster}
        if batch is not None:
            fields["global_batch"] = batch
        try:
            problem = build(Recipe(**fields), calibration)
        except NestError as error:
            raise InvalidProblemError(f"{place}: {error}") from None
        for factor in sweep.bandwidths:
            name = f"{model} {cluster} b{problem.job.global_batch}"
            if len(sweep.bandwidths) > 1:
                name += f" ×{factor:g}"
            faster = widened(problem.cluster, factor, sweep.within_nodes)
            faster_problem = replace(problem, name=name, cluster=faster)
            axes: dict[str, str | int | float] = {
                "model": model,
                "cluster": cluster,
                "batch": problem.job.global_batch,
                "bandwidth": factor,
            }
            instances.append(Instance(name, faster_problem, place, axes=axes))
    return instances


def widened(cluster: Cluster, factor: float, within_nodes: bool) -> Cluster:
    """Return a cluster whose network has so many times the bandwidth.

    ``factor`` is above 0; latencies stay as they are. Without ``within_nodes`` the
    network begins above the lowest level that joins devices.

    Raises ``InvalidOptionError`` if the network is no hierarchy, where nodes cannot be
    told.
    """
    topology = cluster.topology
    if factor == 1:
        return cluster
    if topology.kind != "hierarchy":
        if not within_nodes:
            raise InvalidOptionError(
                f"bandwidths: expected a cluster with levels, got the graph of "
                f"{cluster.name}; add within_nodes: true, which scales all links"
            )
        links = tuple(
            replace(link, bandwidth_bytes_per_s=factor * link.bandwidth_bytes_per_s)
            for link in topology.links
        )
        return replace(cluster, topology=replace(topology, links=links))
    lowest = next(
        (i for i, level in enumerate(topology.levels) if level.fan_out > 1), 0
    )
    levels = tuple(
        replace(
            level,
            bandwidth_bytes_per_s=factor * level.bandwidth_bytes_per_s,
            peer_bandwidth_bytes_per_s=(
                level.peer_bandwidth_bytes_per_s
                and factor * level.peer_bandwidth_bytes_per_s
            ),
        )
        if within_nodes or number > lowest
        else level
        for number, level in enumerate(topology.levels)
    )
    return replace(cluster, topology=replace(topology, levels=levels))
