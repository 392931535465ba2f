"""Chains of passes that wait for each other: no step is shorter than one.

A pass waits for the one before it on its block and for its input, so a step
takes at least as long as any chain of such passes, whatever they take. How
often a chain has the passes of every chunk does not depend on their times:
``T >= Σ n · time`` holds for all plans of as many blocks and micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from nest.cost.schedules.any_order import AnyOrder
from nest.cost.schedules.base import ChunkTimes, Pass, Schedule
from nest.cost.schedules.timeline import critical_passes


class Chain(NamedTuple):
    """How often a chain has what.

    Attributes
    ----------
    passes
        Of every chunk: forward passes, whole backward passes, those for
        gradients of inputs, and of weights.
    pairs
        Pairs of a forward pass of one chunk and a backward pass of another.
    """

    passes: tuple[tuple[int, int, int, int], ...]
    pairs: tuple[tuple[int, int, int], ...]


#: Column of a pass in :attr:`Chain.passes`.
_COLUMN = {"all": 1, "inputs": 2, "weights": 3}


def _column(run: Pass) -> int:
    return _COLUMN[run.gradients] if run.backward else 0


@lru_cache(maxsize=1024)
def chain_through(
    schedule: Schedule, num_blocks: int, num_micro_batches: int, block: int
) -> Chain:
    """Return the chain that goes through all of a block's list.

    The first micro-batch comes to it through the first chunks of the blocks
    in front. The last micro-batch leaves it through the same chunks, and what
    the first block has left in its list comes behind that. Where a schedule
    splits backward passes, one on the way out counts as that for gradients
    of inputs alone: no other one takes less. In no list of a block are such
    passes of its first chunk out of order.
    """
    count: Counter[tuple[int, int]] = Counter()
    pairs: Counter[tuple[int, int]] = Counter()
    for chunk in range(block):
        count[chunk, 0] += 1
    runs = list(schedule.passes(block, num_blocks, num_micro_batches))
    if block == 0:
        _add(runs, count, pairs)
        return _chain(num_blocks * schedule.virtual_stages, count, pairs)
    last = _last(runs, block)
    _add(runs[: last + 1], count, pairs)
    column = 1 if all(x.gradients == "all" for x in runs) else 2
    for chunk in range(block):
        count[chunk, column] += 1
    first = list(schedule.passes(0, num_blocks, num_micro_batches))
    _add(first[_last(first, 0) + 1 :], count, pairs)
    return _chain(num_blocks * schedule.virtual_stages, count, pairs)


def any_chains(
    schedule: AnyOrder, num_blocks: int, num_micro_batches: int
) -> list[tuple[Chain, int]]:
    """Return chains that every order has, with their blocks.

    A block waits for a forward pass of each chunk in front of its first one.
    It runs all its passes; or all but those for gradients of weights, and
    then the chunks in front run theirs for gradients of inputs.
    """
    num_chunks, count = (
        num_blocks * schedule.virtual_stages,
        num_micro_batches,
    )
    chains = []
    for block in range(num_blocks):
        for column, is_last in ((1, 0), (2, 1)):
            passes: Counter[tuple[int, int]] = Counter()
            for chunk in schedule.chunks_of(block, num_blocks):
                passes[chunk, 0] = passes[chunk, column] = count
            for chunk in range(block):
                passes[chunk, 0] += 1
                passes[chunk, 2] += is_last
            chains.append((_chain(num_chunks, passes, Counter()), block))
    return chains


def _last(runs: Sequence[Pass], chunk: int) -> int:
    """Return where the last backward pass is that another chunk waits for."""
    return max(
        i
        for i, x in enumerate(runs)
        if x.chunk == chunk and _column(x) in (1, 2)
    )


def _add(
    runs: Sequence[Pass],
    count: Counter[tuple[int, int]],
    pairs: Counter[tuple[int, int]],
) -> None:
    """Count the passes of a run of a block's list."""
    paired = {i for i, x in enumerate(runs) if x.paired}
    for run, after in pairwise(runs):
        if run.paired:
            pairs[run.chunk, after.chunk] += 1
    for i, run in enumerate(runs):
        if i not in paired and i - 1 not in paired:
            count[run.chunk, _column(run)] += 1


def critical_chain(
    schedule: Schedule, chunks: Sequence[ChunkTimes], num_micro_batches: int
) -> tuple[int, Chain]:
    """Return when the last pass ends, and a chain that takes as long."""
    time, counted, paired = critical_passes(
        schedule, chunks, num_micro_batches
    )
    return time, _chain(len(chunks), counted, paired)


def _chain(
    num_chunks: int,
    count: Counter[tuple[int, int]],
    pairs: Counter[tuple[int, int]],
) -> Chain:
    return Chain(
        tuple(
            (count[i, 0], count[i, 1], count[i, 2], count[i, 3])
            for i in range(num_chunks)
        ),
        tuple((i, j, n) for (i, j), n in sorted(pairs.items())),
    )
