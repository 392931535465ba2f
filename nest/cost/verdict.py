"""The verdict on a plan: every term, by stage and by block."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import attrgetter
from typing import Any

from nest.cost.schedules import Schedule
from nest.cost.schedules.timeline import MOST_PASSES, Timeline, run
from nest.ir.views import Row, Tabular, ns_text
from nest.units import format_bytes, quanta_to_ns


@dataclass(frozen=True, kw_only=True)
class MemoryScore:
    """Memory per device, in bytes by part.

    Attributes
    ----------
    weight_bytes, gradient_bytes, state_bytes, buffer_bytes
        Weights, gradients, optimizer state and further buffers.
    kept_bytes
        Activations of all that is in flight.
    working_bytes
        The largest working set of a layer.
    reserve_bytes
        What no plan can use.
    """

    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    buffer_bytes: int
    kept_bytes: int
    working_bytes: int
    reserve_bytes: int

    @property
    def memory(self) -> dict[str, int]:
        """Parts of the memory per device, by name."""
        return dict(zip(_PARTS, _parts(self), strict=True))

    @property
    def memory_bytes(self) -> int:
        """Memory per device."""
        return sum(_parts(self))


_PARTS = tuple(part.name for part in fields(MemoryScore))
_parts = attrgetter(*_PARTS)


@dataclass(frozen=True, kw_only=True)
class StageScore(MemoryScore):
    """The terms of one stage; times in quanta.

    A stage of an interleaved plan is a chunk: its memory is what it alone
    would need, and ``sync`` what it adds to its block's before any hides.

    Attributes
    ----------
    forward, backward
        ``F_s`` and ``G_s`` per micro-batch, receives included.
    weight_backward
        The part of ``G_s`` that computes gradients of weights.
    pairable_forward, pairable_backward
        The parts that may hide behind a pass of another micro-batch, where
        the schedule runs two at a time.
    receive_forward, receive_backward
        Those receives.
    redistribution
        Time in both passes spent on strategy changes inside the stage.
    sync
        ``Y_s``: gradient sync and optimizer update.
    inflight
        Micro-batches whose activations are kept at the same time.
    """

    forward: int
    backward: int
    weight_backward: int
    pairable_forward: int
    pairable_backward: int
    receive_forward: int
    receive_backward: int
    redistribution: int
    sync: int
    inflight: int

    @property
    def load(self) -> int:
        """``τ_s = F_s + G_s``."""
        return self.forward + self.backward


@dataclass(frozen=True, kw_only=True)
class BlockScore(MemoryScore):
    """What one block of devices does and holds: its stage, or its chunks.

    Its memory is the sum over the chunks, except for working sets, of which
    the largest counts, and the reserve, which counts once.

    Attributes
    ----------
    stages
        Numbers of its chunks, from 1.
    load
        ``τ_b``: the sum of their loads.
    sync
        ``Y_b``: gradient sync and optimizer update.
    inflight
        Chunk passes whose activations are kept at the same time.
    """

    stages: tuple[int, ...]
    load: int
    sync: int
    inflight: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Score(Tabular):
    """The verdict on one plan.

    Attributes
    ----------
    step_quanta
        Step time ``T`` in quanta.
    num_micro_batches
        ``M`` per replica.
    stages
        The terms, in pipeline order; of every chunk in an interleaved plan.
    blocks
        The same for every block of devices: one per stage, or fewer in an
        interleaved plan.
    violations
        Why the plan is infeasible; empty if it is feasible.
    throughput_samples_per_s
        ``A / T``, or ``B / T`` where ``T`` is the time per micro-batch;
        ``None`` if the step takes no time.
    throughput_tokens_per_s, throughput_tokens_per_s_per_device
        The same in tokens, ``sequence_length`` a sample, and over all devices
        of the cluster; ``None`` also if the job does not say how many.
    mfu
        Model FLOPs utilization, a fraction; ``None`` if the problem does not
        say what it needs.
    memory_left_bytes
        What the fullest device has beyond its memory, reserve and head-room;
        negative if the plan does not fit.
    quantum_ps
        Size of the quantum.
    schedule
        Runs the passes of the stages; ``None`` where the step time is that
        of a steady state, which no list of passes has.
    """

    step_quanta: int
    num_micro_batches: int
    stages: tuple[StageScore, ...]
    blocks: tuple[BlockScore, ...]
    violations: tuple[str, ...]
    throughput_samples_per_s: float | None
    throughput_tokens_per_s: float | None
    throughput_tokens_per_s_per_device: float | None
    mfu: float | None
    memory_left_bytes: int
    quantum_ps: int
    schedule: Schedule | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        """Return what it is in a line."""
        fits = "fits" if self.feasible else "does not fit"
        return (
            f"<Score {ns_text(self.step_time_ns)} a step, {fits}, "
            f"{format_bytes(self.memory_left_bytes)} left on the fullest device>"
        )

    def to_rows(self) -> list[Row]:
        """Return a row per stage, memory by part."""
        rows = []
        for index, terms in enumerate(self.to_json()["stages"], 1):
            memory = terms.pop("memory")
            rows.append({"stage": index, **terms, **memory})
        return rows

    @property
    def feasible(self) -> bool:
        """Whether every device fits its memory."""
        return not self.violations

    @property
    def step_time_quanta(self) -> int:
        """Step time in quanta, by the name that it has in documents."""
        return self.step_quanta

    @property
    def step_time_ns(self) -> int | float:
        """Step time in ns; whole unless the quantum is finer."""
        return quanta_to_ns(self.step_quanta, self.quantum_ps)

    @property
    def step_time_s(self) -> float:
        """The step time, in seconds."""
        return self.step_time_ns / 1e9

    @property
    def num_passes(self) -> int:
        """Forward and backward passes of a step, over all blocks."""
        return 2 * len(self.stages) * self.num_micro_batches

    @cached_property
    def timeline(self) -> Timeline | None:
        """When every pass runs, see :mod:`nest.cost.schedules.timeline`.

        ``None`` under a preset without a schedule, and beyond :data:`MOST_PASSES`.
        """
        if self.schedule is None or self.num_passes > MOST_PASSES:
            return None
        return run(self.schedule, self.stages, self.num_micro_batches)

    @property
    def simulated_quanta(self) -> int | None:
        """When the last block has run its passes and its sync, in quanta.

        A block begins its sync when its own last pass has ended.
        """
        if self.timeline is None:
            return None
        return max(
            end + block.sync
            for end, block in zip(self.timeline.block_ends, self.blocks, strict=True)
        )

    @property
    def simulated_step_time_ns(self) -> int | float | None:
        """The same in ns."""
        quanta = self.simulated_quanta
        if quanta is None:
            return None
        return quanta_to_ns(quanta, self.quantum_ps)

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``nest score --json``."""

        def ns(quanta: int) -> int | float:
            return quanta_to_ns(quanta, self.quantum_ps)

        document: dict[str, Any] = {
            "schema": "nest-score/1",
            "step_time_ns": self.step_time_ns,
            "step_time_quanta": self.step_quanta,
            "simulated_step_time_ns": self.simulated_step_time_ns,
            "quantum_ps": self.quantum_ps,
            "throughput_samples_per_s": self.throughput_samples_per_s,
            "throughput_tokens_per_s": self.throughput_tokens_per_s,
            "throughput_tokens_per_s_per_device": (
                self.throughput_tokens_per_s_per_device
            ),
            "mfu": self.mfu,
            "memory_left_bytes": self.memory_left_bytes,
            "feasible": self.feasible,
            "violations": list(self.violations),
            "num_micro_batches": self.num_micro_batches,
            "stages": [
                {
                    "forward_ns": ns(stage.forward),
                    "backward_ns": ns(stage.backward),
                    "weight_backward_ns": ns(stage.weight_backward),
                    "receive_forward_ns": ns(stage.receive_forward),
                    "receive_backward_ns": ns(stage.receive_backward),
                    "redistribution_ns": ns(stage.redistribution),
                    "sync_ns": ns(stage.sync),
                    "inflight": stage.inflight,
                    "memory_bytes": stage.memory_bytes,
                    "memory": stage.memory,
                }
                for stage in self.stages
            ],
        }
        if len(self.blocks) < len(self.stages):
            document["blocks"] = [
                {
                    "stages": list(block.stages),
                    "load_ns": ns(block.load),
                    "sync_ns": ns(block.sync),
                    "inflight": block.inflight,
                    "memory_bytes": block.memory_bytes,
                    "memory": block.memory,
                }
                for block in self.blocks
            ]
        return document
