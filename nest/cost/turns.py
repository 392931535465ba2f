"""What a problem must be for presets whose data ranks take turns.

They know one flat network without latency and two degrees of parallelism;
whatever else a problem asks for is refused rather than left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from nest.errors import InvalidProblemError
from nest.ir.problem import Problem


def check_turns(problem: Problem) -> None:
    """Refuse what such a preset cannot express.

    Raises
    ------
    InvalidProblemError
        With the place, what it must be, and what it is.
    """
    for place, expected, got in _demands(problem):
        if got != expected:
            raise InvalidProblemError(
                f"$.{place}: expected {_shown(expected)} under preset "
                f"{problem.preset!r}, got {_shown(got)}; change it or use "
                f"preset 'standard'"
            )


def _shown(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


def _demands(problem: Problem) -> Iterator[tuple[str, object, object]]:
    """Yield (place, what it must be, what it is)."""
    job = problem.job
    yield "job.replicas", (1,), job.replicas
    yield "job.micro_batches", job.micro_batches[:1], job.micro_batches
    yield "job.zero", (0,), job.zero
    yield "job.schedule", "1f1b", job.schedule
    yield "job.uneven_batches", False, job.uneven_batches
    yield "job.sequence_parallel", False, job.sequence_parallel
    yield "job.gradient_sync_overlap", 0.0, job.gradient_sync_overlap
    levels = problem.cluster.topology.levels
    yield "cluster.topology.levels: number", 1, len(levels)
    (level,) = levels
    where = "cluster.topology.levels[0]"
    yield f"{where}.latency_ns", 0.0, level.latency_ns
    yield f"{where}.launch_ns", 0.0, level.launch_ns
    yield (
        f"{where}.peer_bandwidth_bytes_per_s",
        None,
        level.peer_bandwidth_bytes_per_s,
    )
    for i, kind in enumerate(problem.graph.kinds):
        for j, cost in enumerate(kind.costs):
            where = f"graph.kinds[{i}].costs[{j}]"
            yield f"{where}.cp", 1, cost.cp
            yield f"{where}.ep", 1, cost.ep
            yield (
                f"{where}.expert_weight_bytes",
                0,
                cost.expert_weight_bytes,
            )
            yield f"{where}.working_bytes", 0, cost.working_bytes
            yield f"{where}.collectives: number", 0, len(cost.collectives)
            for k, choice in enumerate(cost.activations):
                yield (
                    f"{where}.activations[{k}].working_bytes",
                    0,
                    choice.working_bytes,
                )
