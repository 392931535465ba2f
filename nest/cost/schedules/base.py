"""What a pipeline schedule answers, and what follows from its passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from nest.ir.plan import Placement

#: Which gradients a backward pass computes.
Gradients = Literal["all", "inputs", "weights"]

#: One integer per pace.
Weights = tuple[int, ...]


class Pass(NamedTuple):
    """One pass of a micro-batch through a chunk."""

    #: The chunk's place in the pipeline, from 0.
    chunk: int
    #: From 0.
    micro_batch: int
    #: Whether it is the backward pass.
    backward: bool
    #: Which gradients it computes, if it is: a schedule may compute those of the
    #: weights later, which no other chunk waits for.
    gradients: Gradients = "all"
    #: Whether it is a forward pass that runs together with the next pass of its block,
    #: a backward pass of another micro-batch: each may hide communication behind the
    #: computation of the other.
    paired: bool = False


class PassTimes(Protocol):
    """What has passes: a layer, a stage, or many of them as arrays."""

    @property
    def forward(self) -> Any:
        """``F`` in quanta."""

    @property
    def backward(self) -> Any:
        """``G`` in quanta."""

    @property
    def weight_backward(self) -> Any:
        """The part of ``G`` that no other stage waits for."""


class ChunkTimes(PassTimes, Protocol):
    """What passes of a chunk take, run alone or two at a time."""

    @property
    def pairable_forward(self) -> int:
        """The part of ``F`` that hides behind a backward pass."""

    @property
    def pairable_backward(self) -> int:
        """The part of ``G`` that hides behind a forward pass."""


class Times(NamedTuple):
    """Times of passes in quanta, see :class:`ChunkTimes`."""

    forward: Any
    backward: Any
    weight_backward: Any = 0
    pairable_forward: Any = 0
    pairable_backward: Any = 0


class InFlight(NamedTuple):
    """The most that a block keeps at once, over its whole list of passes.

    ``chunks`` has the most passes in flight of each of its chunks, and ``chunk_bytes``
    what they keep. ``passes`` is the most of all its chunks together, and
    ``kept_bytes`` the most that the passes in flight keep.
    """

    chunks: tuple[int, ...]
    chunk_bytes: tuple[int, ...]
    passes: int
    kept_bytes: int


class Schedule(ABC):
    """A pipeline schedule of ``S`` blocks and ``M`` micro-batches."""

    name: str
    #: The name that its paper gives it, for people.
    title: str
    #: Chunks ``v`` that a block runs, and where they sit.
    virtual_stages: int = 1
    placement: Placement = "loop"
    #: Axes whose collectives hide behind the other of two paired passes.
    paired_axes: ClassVar[frozenset[str]] = frozenset()

    def why_not(self, num_blocks: int, num_micro_batches: int) -> str | None:
        """Return why so many blocks cannot run so many micro-batches."""
        return None

    def block_of(self, chunk: int, num_blocks: int) -> int:
        """Return the block that runs a chunk, both from 0."""
        if self.placement == "v":
            return min(chunk, 2 * num_blocks - 1 - chunk)
        return chunk % num_blocks

    def chunks_of(self, block: int, num_blocks: int) -> list[int]:
        """Return the chunks that a block runs, all from 0."""
        return [
            chunk
            for chunk in range(num_blocks * self.virtual_stages)
            if self.block_of(chunk, num_blocks) == block
        ]

    def most_paired(self, num_blocks: int, num_micro_batches: int) -> int:
        """Return how many passes of one kind of a chunk are paired at most.

        Forward passes, or backward passes, of one chunk on any block.
        """
        return 0

    @abstractmethod
    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Yield the passes of a block (from 0) in the order they run."""

    @abstractmethod
    def pipeline_time(
        self, chunks: Sequence[ChunkTimes], num_micro_batches: int
    ) -> int:
        """Return the step time before gradient sync, in quanta.

        ``chunks`` are in pipeline order; ``num_micro_batches`` is ``M``.
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

        ``kept_bytes`` says what one pass of each of its chunks keeps. Blocks are
        counted from 0; there are ``S`` of them, and ``M`` micro-batches.
        """


class StageSchedule(Schedule):
    """A schedule whose blocks run one chunk each, their stage.

    With the *paces* ``p_s`` of a stage, loads that may hold up every
    micro-batch, the step takes

    ``Σ_s o · p_s + Σ_j ((M-1) a_j + b_j) max_s p_sj``

    with :attr:`once` ``o``, :attr:`steady` ``a`` and :attr:`tail` ``b``. So
    a search keeps one sum and one maximum per pace, and a formulation is
    linear. What a stage adds may not fall where a pass takes longer.
    """

    #: How often each pace of every stage counts.
    once: ClassVar[Weights]
    #: How often the largest of each pace counts per further micro-batch.
    steady: ClassVar[Weights]
    #: How often it counts besides.
    tail: ClassVar[Weights]

    @abstractmethod
    def paces(self, load: PassTimes) -> tuple[Any, ...]:
        """Return the paces of a load, sums of multiples of its passes.

        Numbers, arrays of integers, or whatever else adds up.
        """

    @abstractmethod
    def inflight(self, stages_left: int, num_micro_batches: int) -> int:
        """Return the micro-batches in flight on a stage.

        ``stages_left`` are those from this one to the last, ``S - s + 1``.
        """

    def rounds(self, num_micro_batches: int) -> Weights:
        """Return how often the largest of each pace counts."""
        return tuple(
            (num_micro_batches - 1) * steady + tail
            for steady, tail in zip(self.steady, self.tail, strict=True)
        )

    def pipeline_time(
        self, chunks: Sequence[ChunkTimes], num_micro_batches: int
    ) -> int:
        """Return ``Σ_s o · p_s + Σ_j ((M-1) a_j + b_j) max_s p_sj``."""
        paces = [self.paces(chunk) for chunk in chunks]
        once: int = sum(weighted(self.once, stage) for stage in paces)
        slowest = [max(pace) for pace in zip(*paces, strict=True)]
        waiting: int = weighted(self.rounds(num_micro_batches), slowest)
        return once + waiting

    # What bounds of a stage need of it

    @property
    def num_paces(self) -> int:
        """Number of paces."""
        return len(self.once)

    @cached_property
    def sums(self) -> tuple[Weights, ...]:
        """Weights of what is bounded apart: the paces, then sums of them."""
        paces = range(self.num_paces)
        units = (tuple(int(i == j) for i in paces) for j in paces)
        sums = dict.fromkeys((*units, self.once, self.steady, self.tail))
        return tuple(weights for weights in sums if any(weights))

    @cached_property
    def bounded(self) -> tuple[int, ...]:
        """Positions of the sums that :meth:`added` and :meth:`waited` use."""
        used = (self.once, self.steady, self.tail)
        return tuple(dict.fromkeys(map(self.sums.index, filter(any, used))))

    def amounts(self, load: PassTimes) -> tuple[Any, ...]:
        """Return the :attr:`sums` of the paces of a load."""
        paces = self.paces(load)
        return tuple(weighted(weights, paces) for weights in self.sums)

    def added(self, amounts: Any) -> Any:
        """Return what a stage adds once, given its amounts."""
        return amounts[self.sums.index(self.once)]

    def waited(self, amounts: Any, num_micro_batches: int) -> Any:
        """Return what the others wait for a stage, given its amounts.

        With amounts that a stage has at least it is a bound.
        """
        further = num_micro_batches - 1
        wait = further * amounts[self.sums.index(self.steady)]
        if any(self.tail):
            wait = wait + amounts[self.sums.index(self.tail)]
        return wait

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


def weighted(weights: Weights, values: Iterable[Any]) -> Any:
    """Return the sum of some values, each as often as its weight says."""
    total = None
    for weight, value in zip(weights, values, strict=True):
        if weight:
            term = value if weight == 1 else weight * value
            total = term if total is None else total + term
    return 0 if total is None else total


def peak(
    schedule: Schedule,
    kept_bytes: Sequence[int],
    block: int,
    num_blocks: int,
    num_micro_batches: int,
) -> InFlight:
    """Return the most that a block keeps, pass by pass.

    A pass is in flight from the start of its forward pass to the end of its backward
    pass, gradients of weights included. Parameters as of :meth:`Schedule.kept`.
    """
    count = [0] * len(kept_bytes)
    highest = [0] * len(kept_bytes)
    passes = size_bytes = flying = held = 0
    for run in schedule.passes(block, num_blocks, num_micro_batches):
        chunk = run.chunk // num_blocks
        if run.backward:
            if run.gradients != "inputs":
                count[chunk] -= 1
                flying -= 1
                held -= kept_bytes[chunk]
            continue
        count[chunk] += 1
        flying += 1
        held += kept_bytes[chunk]
        highest[chunk] = max(highest[chunk], count[chunk])
        passes = max(passes, flying)
        size_bytes = max(size_bytes, held)
    chunk_bytes = tuple(n * b for n, b in zip(highest, kept_bytes, strict=True))
    return InFlight(tuple(highest), chunk_bytes, passes, size_bytes)


def alternate(
    forward: Iterator[Pass], backward: Iterator[Pass], warm_up: int
) -> Iterator[Pass]:
    """Yield ``warm_up`` forward passes, then one of each in turn.

    Once no forward pass is left the backward passes follow.
    """
    yield from islice(forward, warm_up)
    for run in forward:
        yield run
        yield next(backward)
    yield from backward
