"""When passes run: every one as soon as its block and its input are there.

A block runs its list in order. A pass waits for the one before it on its block and for
the same micro-batch: forward for the chunk in front, backward for the chunk behind, the
last chunk's for its own forward pass. Gradients of weights come after those of inputs
on the same block. Two paired passes start when both can, and end together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from nest.cost.schedules.base import ChunkTimes, Pass, Schedule

#: More passes of a step are not run one by one: that would take minutes, and gigabytes.
MOST_PASSES = 2**21

#: Which time of its chunk a pass takes, see :func:`pass_times`.
_FORWARD, _BACKWARD, _INPUTS, _WEIGHTS = range(4)
_KINDS = {"all": _BACKWARD, "inputs": _INPUTS, "weights": _WEIGHTS}


class Timeline(NamedTuple):
    """What every block runs, and when.

    ``schedule`` says in which order every block runs its passes. ``ends`` has when each
    of them ends, in quanta from the start of the step; of the first of two paired
    passes, when its own input is there and its block free.
    """

    schedule: Schedule
    num_micro_batches: int
    ends: tuple[list[int], ...]

    def passes(self, block: int) -> Iterator[tuple[Pass, int]]:
        """Yield the passes of a block (from 0) with their ends, in order."""
        ends = self.ends[block]
        runs = self.schedule.passes(block, len(self.ends), self.num_micro_batches)
        for number, run in enumerate(runs):
            yield run, ends[number + run.paired]

    @property
    def block_ends(self) -> list[int]:
        """When the last pass of every block ends."""
        return [ends[-1] for ends in self.ends]


class PassLists(NamedTuple):
    """The passes of all blocks, with numbers in place of names."""

    #: Four times the chunk, and which of its times the pass takes; behind those of all
    #: chunks 0, and the times of the pairs.
    kinds: tuple[list[int], ...]
    #: Chunks of paired passes, forward and backward.
    pairs: tuple[tuple[int, int], ...]
    #: Slots of the output that a pass waits for, and of its own; the last slot but one
    #: is always full, the last one is never read.
    needed: tuple[list[int], ...]
    outputs: tuple[list[int], ...]
    #: How many there are.
    num_slots: int


def run(
    schedule: Schedule, chunks: Sequence[ChunkTimes], num_micro_batches: int
) -> Timeline:
    """Run the passes of every block, each as soon as it can.

    ``chunks`` are in pipeline order.

    Raises ``ValueError`` if passes of the schedule wait for each other.
    """
    num_blocks = len(chunks) // schedule.virtual_stages
    lists = pass_lists(schedule, num_blocks, num_micro_batches)
    ends = end_times(schedule, lists, _times(lists, chunks))
    return Timeline(schedule, num_micro_batches, ends)


def end_times(
    schedule: Schedule, lists: PassLists, times: Sequence[int]
) -> tuple[list[int], ...]:
    """Return when the passes of every block end, given the times of all kinds.

    Raises ``ValueError`` if passes of the schedule wait for each other.
    """
    num_blocks = len(lists.kinds)
    ended: list[int | None] = [None] * lists.num_slots
    ended[-2] = 0
    ends: tuple[list[int], ...] = tuple([] for _ in range(num_blocks))
    block, idle = 0, 0
    while idle < num_blocks:
        block_ends, kinds = ends[block], lists.kinds[block]
        needed, outputs = lists.needed[block], lists.outputs[block]
        done = len(block_ends)
        free = block_ends[-1] if done else 0
        idle += 1
        while done < len(kinds):
            ready = ended[needed[done]]
            if ready is None:
                break
            free = (ready if ready > free else free) + times[kinds[done]]
            ended[outputs[done]] = free
            block_ends.append(free)
            done += 1
            idle = 0
        block = (block + 1) % num_blocks
    if sum(map(len, ends)) < sum(map(len, lists.kinds)):
        raise ValueError(
            f"schedule {schedule.name!r}: expected passes that can all run, "
            f"got some that wait for each other"
        )
    return ends


def critical_path(
    schedule: Schedule, chunks: Sequence[ChunkTimes], num_micro_batches: int
) -> int:
    """Return when the last pass ends, see :func:`run`."""
    return max(run(schedule, chunks, num_micro_batches).block_ends)


def _times(lists: PassLists, chunks: Sequence[ChunkTimes]) -> list[int]:
    """Return how long every kind of pass takes."""
    times = [time for chunk in chunks for time in pass_times(chunk)]
    return [*times, 0, *(pair_time(chunks[i], chunks[j]) for i, j in lists.pairs)]


def pass_times(chunk: ChunkTimes) -> tuple[Any, Any, Any, Any]:
    """Return how long the passes of a chunk take: integers, or arrays of them.

    Forward, backward, and the backward pass in two parts: gradients of
    inputs, with what is received for them, and of weights.
    """
    weights = chunk.weight_backward
    backward = chunk.backward
    return chunk.forward, backward, backward - weights, weights


def pair_time(
    there: ChunkTimes, back: ChunkTimes, longer: Callable[[Any, Any], Any] = max
) -> Any:
    """Return how long a forward and a backward pass take together.

    What can hide of each runs behind what cannot of the other. ``longer`` returns the
    longer of two times, or of each two of two arrays.
    """
    hideable, other = there.pairable_forward, back.pairable_backward
    forward = longer(there.forward - hideable, other)
    return forward + longer(back.backward - other, hideable)


@lru_cache(maxsize=8)
def pass_lists(
    schedule: Schedule, num_blocks: int, num_micro_batches: int
) -> PassLists:
    """Return the lists of a schedule; plans that are compared share them."""
    last = num_blocks * schedule.virtual_stages - 1
    count = num_micro_batches
    # Forward outputs of every chunk and micro-batch, then backward ones.
    backward = (last + 1) * count
    full, unread = 2 * backward, 2 * backward + 1
    kinds: list[list[int]] = []
    pairs: dict[tuple[int, int], int] = {}
    # The output of a paired forward pass is there when the pair has ended.
    instead: dict[int, int] = {}
    needed: list[list[int]] = []
    outputs: list[list[int]] = []
    for block in range(num_blocks):
        runs = schedule.passes(block, num_blocks, count)
        kinds.append([])
        needed.append([])
        outputs.append([])
        first: tuple[int, int] | None = None
        for chunk, micro_batch, is_backward, gradients, paired in runs:
            here = chunk * count + micro_batch
            kind = _KINDS[gradients] if is_backward else _FORWARD
            if kind == _FORWARD:
                needs = here - count if chunk else full
                gives = here
            elif kind == _WEIGHTS:
                needs, gives = backward + here, unread
            else:
                needs = backward + here + count if chunk < last else here
                gives = backward + here
            number = 4 * chunk + kind
            if paired:
                first, number, gives = (chunk, here), 4 * (last + 1), unread
            elif first is not None:
                pair = pairs.setdefault((first[0], chunk), len(pairs))
                number = 4 * (last + 1) + 1 + pair
                instead[first[1]] = gives
                first = None
            kinds[-1].append(number)
            needed[-1].append(needs)
            outputs[-1].append(gives)
    if instead:
        needed = [[instead.get(x, x) for x in own] for own in needed]
    return PassLists(
        tuple(kinds), tuple(pairs), tuple(needed), tuple(outputs), unread + 1
    )
