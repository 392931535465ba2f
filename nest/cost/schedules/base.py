"""What a pipeline schedule answers, and what follows from its passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple


class Pass(NamedTuple):
    """One pass of a micro-batch through a chunk.

    Attributes
    ----------
    chunk
        The chunk's place in the pipeline, from 0.
    micro_batch
        From 0.
    backward
        Whether it is the backward pass.
    """

    chunk: int
    micro_batch: int
    backward: bool


class InFlight(NamedTuple):
    """The most that a block keeps at once, over its whole list of passes.

    Attributes
    ----------
    chunks, chunk_bytes
        The most passes in flight of each of its chunks, and what they keep.
    passes
        The most passes of any of its chunks.
    kept_bytes
        The most that the passes in flight keep.
    """

    chunks: tuple[int, ...]
    chunk_bytes: tuple[int, ...]
    passes: int
    kept_bytes: int


class Schedule(ABC):
    """A pipeline schedule of ``S`` blocks and ``M`` micro-batches."""

    name: ClassVar[str]
    #: Chunks ``v`` that a block runs.
    virtual_stages: int = 1

    def why_not(self, num_blocks: int, num_micro_batches: int) -> str | None:
        """Return why so many blocks cannot run so many micro-batches."""
        return None

    @abstractmethod
    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Yield the passes of a block (from 0) in the order they run."""

    @abstractmethod
    def pipeline_time(
        self,
        forward: Sequence[int],
        backward: Sequence[int],
        num_micro_batches: int,
    ) -> int:
        """Return the step time before gradient sync, in quanta.

        Parameters
        ----------
        forward, backward
            ``F`` and ``G`` of every chunk in pipeline order, in quanta.
        num_micro_batches
            ``M``.
        """

    @abstractmethod
    def kept(
        self,
        kept_bytes: Sequence[int],
        block: int,
        num_blocks: int,
        num_micro_batches: int,
    ) -> InFlight:
        """Return the most that a block keeps.

        Parameters
        ----------
        kept_bytes
            What one pass of each of its chunks keeps.
        block
            The block, from 0.
        num_blocks, num_micro_batches
            ``S`` and ``M``.
        """


class StageSchedule(Schedule):
    """A schedule whose blocks run one chunk each, their stage.

    The step takes ``Σ_s o_s + Σ_j r_j max_s p_sj``: what every stage adds
    once, and the largest of each of its *paces* as often as micro-batches
    are held up by it. So a search keeps one sum and one maximum per pace.
    Both take numbers or arrays of integers.
    """

    def once(self, forward: Any, backward: Any) -> Any:
        """Return what a stage adds to the step once, ``τ_s``."""
        return forward + backward

    def rounds(self, num_micro_batches: int) -> tuple[int, ...]:
        """Return how often the largest of each pace counts, ``M-1``."""
        return (num_micro_batches - 1,) * len(self.paces(0, 0))

    @abstractmethod
    def paces(self, forward: Any, backward: Any) -> tuple[Any, ...]:
        """Return what of a stage's load may hold up every micro-batch.

        Parameters
        ----------
        forward, backward
            ``F_s`` and ``G_s`` in quanta.
        """

    @abstractmethod
    def inflight(self, stages_left: int, num_micro_batches: int) -> int:
        """Return the micro-batches in flight on a stage.

        Parameters
        ----------
        stages_left
            Stages from this one to the last, ``S - s + 1``.
        num_micro_batches
            ``M``.
        """

    def pipeline_time(
        self,
        forward: Sequence[int],
        backward: Sequence[int],
        num_micro_batches: int,
    ) -> int:
        """Return ``Σ_s o_s + Σ_j r_j max_s p_sj``."""
        paces = zip(*map(self.paces, forward, backward), strict=True)
        rounds = self.rounds(num_micro_batches)
        waiting: int = sum(
            count * max(pace)
            for count, pace in zip(rounds, paces, strict=True)
        )
        once: int = sum(map(self.once, forward, backward))
        return waiting + once

    def kept(
        self,
        kept_bytes: Sequence[int],
        block: int,
        num_blocks: int,
        num_micro_batches: int,
    ) -> InFlight:
        """Return what the micro-batches in flight keep."""
        (size_bytes,) = kept_bytes
        count = self.inflight(num_blocks - block, num_micro_batches)
        total = count * size_bytes
        return InFlight((count,), (total,), count, total)


def critical_path(
    schedule: Schedule,
    forward: Sequence[int],
    backward: Sequence[int],
    num_micro_batches: int,
) -> int:
    """Return when the last pass ends if every pass starts once it can.

    A pass waits for the one before it on its block and for the same
    micro-batch: forward for the chunk before, backward for the chunk
    behind, the last chunk's for its own forward pass.

    Parameters
    ----------
    schedule
        Says in which order every block runs its passes.
    forward, backward
        Time of the passes of every chunk, in quanta.
    num_micro_batches
        ``M``.
    """
    last = len(forward) - 1
    num_blocks = len(forward) // schedule.virtual_stages
    waiting = [
        schedule.passes(block, num_blocks, num_micro_batches)
        for block in range(num_blocks)
    ]
    following = [next(passes, None) for passes in waiting]
    free = [0] * num_blocks
    ended: dict[Pass, int] = {}
    block, idle = 0, 0
    while idle < num_blocks:
        idle += 1
        while (run := following[block]) is not None:
            chunk, micro_batch, is_backward = run
            start = free[block]
            if chunk != (last if is_backward else 0):
                step = 1 if is_backward else -1
                needed = Pass(chunk + step, micro_batch, is_backward)
            elif is_backward:
                needed = Pass(chunk, micro_batch, False)
            else:
                needed = None
            if needed is not None:
                if needed not in ended:
                    break
                start = max(start, ended[needed])
            time = backward[chunk] if is_backward else forward[chunk]
            ended[run] = free[block] = start + time
            following[block] = next(waiting[block], None)
            idle = 0
        block = (block + 1) % num_blocks
    return max(free)


def peak(
    schedule: Schedule,
    kept_bytes: Sequence[int],
    block: int,
    num_blocks: int,
    num_micro_batches: int,
) -> InFlight:
    """Return the most that a block keeps, pass by pass.

    A pass is in flight from the start of its forward pass to the end of its
    backward pass. Parameters as of :meth:`Schedule.kept`.
    """
    count = [0] * len(kept_bytes)
    most = [0] * len(kept_bytes)
    passes = size_bytes = 0
    for run in schedule.passes(block, num_blocks, num_micro_batches):
        chunk = run.chunk // num_blocks
        if run.backward:
            count[chunk] -= 1
            continue
        count[chunk] += 1
        most[chunk] = max(most[chunk], count[chunk])
        passes = max(passes, sum(count))
        held = sum(n * b for n, b in zip(count, kept_bytes, strict=True))
        size_bytes = max(size_bytes, held)
    chunk_bytes = tuple(n * b for n, b in zip(most, kept_bytes, strict=True))
    return InFlight(tuple(most), chunk_bytes, passes, size_bytes)


def alternate(
    forward: Iterator[Pass], backward: Iterator[Pass], warm_up: int
) -> Iterator[Pass]:
    """Yield ``warm_up`` forward passes, then one of each in turn.

    Once no forward pass is left the backward passes follow.
    """
    for number, run in enumerate(forward):
        yield run
        if number >= warm_up:
            yield next(backward)
    yield from backward
