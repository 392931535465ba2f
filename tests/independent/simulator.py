"""A small event simulator of pipeline schedules.

Every device runs a fixed list of passes, each once its input is there. A
forward pass hands tensors to the next chunk of its micro-batch, a backward
pass a gradient to the one before. What a pass keeps is held from its start
until its backward pass ends; so are tensors that are only handed on.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Pass(NamedTuple):
    """One pass of a chunk for a micro-batch, both counted from 0."""

    direction: str
    chunk: int
    micro_batch: int


@dataclass(frozen=True)
class Chunk:
    """A chunk of layers: the time of its passes, and what it holds.

    ``made`` are sizes, per consumer, of the tensors that it produces for
    chunks further on: ``{name: {consuming chunk: bytes}}``. A tensor that
    passes takes ``⌈bytes / shards⌉``.
    """

    device: int
    forward: int
    backward: int
    kept_bytes: int = 0
    made: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    shards: int = 1


@dataclass
class Timeline:
    """What came of a simulation: its end, and peaks per device."""

    end: int
    inflight: list[int]
    inflight_of_chunk: list[int]
    kept_bytes: list[int]


# Lists of passes


def one_f_one_b(num_stages: int, count: int) -> list[list[Pass]]:
    """Return the lists of 1F1B: warm up, alternate, drain."""
    lists = []
    for stage in range(num_stages):
        warm_up = min(count, num_stages - 1 - stage)
        passes = [Pass("forward", stage, i) for i in range(warm_up)]
        for i in range(count):
            if warm_up + i < count:
                passes.append(Pass("forward", stage, warm_up + i))
            passes.append(Pass("backward", stage, i))
        lists.append(passes)
    return lists


def gpipe(num_stages: int, count: int) -> list[list[Pass]]:
    """Return the lists of GPipe: all forward, then all backward passes."""
    return [
        [
            Pass(direction, stage, i)
            for direction in ("forward", "backward")
            for i in range(count)
        ]
        for stage in range(num_stages)
    ]


def interleaved(num_blocks: int, virtual: int, count: int) -> list[list[Pass]]:
    """Return the lists of interleaved 1F1B.

    The passes go in rounds of as many micro-batches as there are blocks:
    every round runs chunk by chunk, backward passes from the last chunk.
    """
    lists = []
    for block in range(num_blocks):
        own = [
            (i // num_blocks, number, i)
            for number in range(virtual)
            for i in range(count)
        ]
        forward = [
            Pass("forward", number * num_blocks + block, i)
            for _, number, i in sorted(own)
        ]
        backward = [
            Pass("backward", number * num_blocks + block, i)
            for _, number, i in sorted(own, key=lambda x: (x[0], -x[1], x[2]))
        ]
        ahead = (num_blocks - block - 1) * 2 + (virtual - 1) * num_blocks
        passes, forward = forward[:ahead], forward[ahead:]
        while backward:
            passes += forward[:1] + backward[:1]
            forward, backward = forward[1:], backward[1:]
        lists.append(passes)
    return lists


# Simulation


def handed_on(chunks: Sequence[Chunk]) -> list[int]:
    """Return the bytes per micro-batch that only pass through each chunk."""
    held: dict[str, Mapping[int, int]] = {}
    passing = []
    for number, chunk in enumerate(chunks):
        # what came in and goes on, with the size that goes on
        further = {
            name: max((size for to, size in sizes.items() if to > number), default=0)
            for name, sizes in held.items()
        }
        passing.append(sum(-(-size // chunk.shards) for size in further.values()))
        held = {
            name: sizes
            for name, sizes in {**held, **chunk.made}.items()
            if any(to > number for to in sizes)
        }
    return passing


def simulate(chunks: Sequence[Chunk], lists: Sequence[Sequence[Pass]]) -> Timeline:
    """Run the lists; every pass starts as soon as it can.

    Raises
    ------
    ValueError
        If the passes wait for each other for ever.
    """
    last = len(chunks) - 1
    hold = [
        chunk.kept_bytes + passing
        for chunk, passing in zip(chunks, handed_on(chunks), strict=True)
    ]
    num_devices = len(lists)
    todo = [list(passes) for passes in lists]
    arrived = {Pass("forward", 0, p.micro_batch) for x in lists for p in x}
    busy = [False] * num_devices
    events: list[tuple[int, int, Pass]] = []
    flying = [0] * len(chunks)
    timeline = Timeline(0, [0] * num_devices, [0] * len(chunks), [0] * num_devices)

    def start(device: int, now: int) -> None:
        if busy[device] or not todo[device] or todo[device][0] not in arrived:
            return
        step = todo[device].pop(0)
        busy[device] = True
        chunk = chunks[step.chunk]
        if step.direction == "forward":
            flying[step.chunk] += 1
            here = [i for i, x in enumerate(chunks) if x.device == device]
            timeline.inflight_of_chunk[step.chunk] = max(
                timeline.inflight_of_chunk[step.chunk], flying[step.chunk]
            )
            timeline.inflight[device] = max(
                timeline.inflight[device], sum(flying[i] for i in here)
            )
            timeline.kept_bytes[device] = max(
                timeline.kept_bytes[device], sum(flying[i] * hold[i] for i in here)
            )
            heapq.heappush(events, (now + chunk.forward, device, step))
        else:
            heapq.heappush(events, (now + chunk.backward, device, step))

    for device in range(num_devices):
        start(device, 0)
    while events:
        now, device, step = heapq.heappop(events)
        timeline.end = now
        busy[device] = False
        if step.direction == "backward":
            flying[step.chunk] -= 1
            follower = Pass("backward", step.chunk - 1, step.micro_batch)
        elif step.chunk == last:
            follower = Pass("backward", last, step.micro_batch)
        else:
            follower = Pass("forward", step.chunk + 1, step.micro_batch)
        arrived.add(follower)
        for other in range(num_devices):
            start(other, now)
    if any(todo):
        raise ValueError(f"schedule: expected no deadlock, got {todo}")
    return timeline
