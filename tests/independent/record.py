"""What a score says, in the terms of docs/cost-model.md, *The score*."""

from __future__ import annotations

from dataclasses import dataclass

#: The parts of the memory of a stage or block, in bytes.
MEMORY = (
    "weight_bytes",
    "gradient_bytes",
    "state_bytes",
    "buffer_bytes",
    "kept_bytes",
    "working_bytes",
    "reserve_bytes",
)


@dataclass
class StageRecord:
    """A stage (a chunk, if interleaved): times in quanta, sizes in bytes."""

    forward: int
    backward: int
    receive_forward: int
    receive_backward: int
    redistribution: int
    sync: int
    inflight: int
    memory: dict[str, int]
    weight_backward: int = 0
    paired_forward: int = 0
    paired_backward: int = 0


@dataclass
class BlockRecord:
    """A block of devices: what its stages or chunks do and hold together."""

    stages: tuple[int, ...]
    load: int
    sync: int
    inflight: int
    memory: dict[str, int]

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values())


@dataclass
class Record:
    """A score; ``simulated`` is what running the passes takes."""

    step: int
    simulated: int | None
    num_micro_batches: int
    stages: list[StageRecord]
    blocks: list[BlockRecord]
    feasible: bool
    throughput: float | None
    tokens: float | None
    tokens_per_device: float | None
    memory_left: int
    mfu: float | None
