"""Train the parts of a model in a process each, as an exported job file says.

One process per stage on one machine, over gloo. Processes end with the test:
they are stopped when it is done or fails, and end by themselves when the
process that started them is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import tomllib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from nest.models.architectures import Architecture

STEPS = 10
LEARNING_RATE = 1e-2
#: Ample: a step takes milliseconds, an import on a busy machine seconds.
TIMEOUT_S = 120


class Job(NamedTuple):
    """What a job file of torchtitan says about a pipeline."""

    schedule: str
    stages: int
    parts: tuple[tuple[str, ...], ...]
    micro_batches: int
    samples: int
    sequence_length: int


class Trained(NamedTuple):
    """Losses of every step, and the most passes in flight of every block."""

    losses: list[float]
    inflight: list[int]


def read_job(text: str) -> Job:
    """Read what torchtitan would run."""
    file = tomllib.loads(text)
    split, training = file["parallelism"], file["training"]
    size = split["pipeline_parallel_microbatch_size"]
    return Job(
        schedule=split["pipeline_parallel_schedule"],
        stages=split["pipeline_parallel_degree"],
        parts=tuple(map(tuple, split["module_fqns_per_model_part"])),
        micro_batches=training["local_batch_size"] // size,
        samples=training["local_batch_size"],
        sequence_length=training["seq_len"],
    )


def batch_of(model: Architecture, job: Job):
    """Return tokens, and what follows each of them."""
    import torch

    torch.manual_seed(1)
    (tower,) = model.towers
    tokens = torch.randint(tower.vocabulary, (job.samples, job.sequence_length + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def whole(model: Architecture):
    """Return a model with the same weights in every process."""
    import torch

    from tests.transformer import Transformer

    torch.manual_seed(0)
    return Transformer(model)


def train_alone(
    model: Architecture, job: Job, order: Sequence[str] | None = None
) -> list[float]:
    """Return the losses of one process without parts.

    ``order`` is that of the layers, by default theirs.
    """
    import torch

    from tests.transformer import cross_entropy

    net = whole(model)
    if order is not None:
        layers = {name: net.layers[name] for name in order}
        net.layers = torch.nn.ModuleDict(layers)
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    tokens, targets = batch_of(model, job)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = cross_entropy(net(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_in_parts(
    model: Architecture, jobs: Sequence[Job], folder: Path
) -> list[Trained]:
    """Train jobs of as many stages, one after the other.

    Raises
    ------
    AssertionError
        If a process fails or takes too long; the text has its traceback.
    """
    (world,) = {job.stages for job in jobs}
    context = multiprocessing.get_context("spawn")
    ends: list[Connection] = []
    processes = []
    try:
        for rank in range(world):
            ours, theirs = context.Pipe()
            ends.append(ours)
            process = context.Process(
                target=_run,
                args=(rank, world, model, jobs, str(folder), theirs),
                daemon=True,
            )
            process.start()
            theirs.close()
            processes.append(process)
        found = _answers(ends)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for end in ends:
            end.close()
    return [
        Trained(
            next(losses for losses, _ in answers if losses),
            [inflight for _, inflight in answers],
        )
        for answers in zip(*found, strict=True)
    ]


def _answers(ends: list[Connection]) -> list[Any]:
    """Return what every process sends; the first failure ends all."""
    found: dict[Connection, Any] = {}
    while len(found) < len(ends):
        ready = wait([e for e in ends if e not in found], TIMEOUT_S)
        assert ready, f"no answer in {TIMEOUT_S} s"
        for end in ready:
            assert isinstance(end, Connection)
            try:
                failure, found[end] = end.recv()
            except EOFError:
                failure = "a process ended without an answer"
            assert not failure, failure
    return [found[end] for end in ends]


# In the process of a stage.


def _run(
    rank: int,
    world: int,
    model: Architecture,
    jobs: Sequence[Job],
    folder: str,
    end: Connection,
) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = None, _train(rank, world, model, jobs, folder)
    except BaseException:
        answer = traceback.format_exc(), None
    # Nobody listens any more once another process has failed.
    with contextlib.suppress(OSError):
        end.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _train(
    rank: int, world: int, model: Architecture, jobs: Sequence[Job], folder: str
) -> list[tuple[list[float], int]]:
    if sys.platform == "linux":
        # The host's name need not lead anywhere.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    try:
        return [_train_job(rank, model, job) for job in jobs]
    finally:
        dist.destroy_process_group()


def _train_job(rank: int, model: Architecture, job: Job) -> tuple[list[float], int]:
    """Return the losses, if this process has the last part, and passes."""
    import torch
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import (
        PipelineScheduleSingle,
        get_schedule_class,
    )

    from tests.transformer import cross_entropy, part_of

    passes = _Passes()
    stage_of = _counting(PipelineStage, passes)
    stages = [
        stage_of(
            part_of(whole(model), job.parts[number]),
            number,
            len(job.parts),
            torch.device("cpu"),
        )
        for number in range(rank, len(job.parts), job.stages)
    ]
    kind = get_schedule_class(job.schedule)
    own: Any = stages
    if issubclass(kind, PipelineScheduleSingle):
        (own,) = stages
    schedule = kind(own, job.micro_batches, loss_fn=cross_entropy)
    weights = [w for stage in stages for w in stage.submod.parameters()]
    optimizer = torch.optim.Adam(weights, lr=LEARNING_RATE)
    tokens, targets = batch_of(model, job)
    last = stages[-1].is_last
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        parts: list[Any] = []
        schedule.step(
            *([tokens] if stages[0].is_first else []),
            **({"target": targets, "losses": parts} if last else {}),
        )
        optimizer.step()
        if last:
            losses.append(torch.stack(parts).mean().item())
    assert not passes.now
    return losses, passes.most


def _counting(stage: type, passes: _Passes) -> type:
    """Return a kind of stage that counts the passes that it runs."""

    class Counting(stage):  # type: ignore[misc]
        def forward_one_chunk(self, *args, **kwargs):
            passes.now += 1
            passes.most = max(passes.most, passes.now)
            return super().forward_one_chunk(*args, **kwargs)

        def backward_one_chunk(self, *args, **kwargs):
            super().backward_one_chunk(*args, **kwargs)
            passes.now -= 1

    return Counting


@dataclass
class _Passes:
    """Forward passes whose backward pass has not ended: now, and at most."""

    now: int = 0
    most: int = 0
