"""When the passes of many plans end that differ in their times alone.

Every pass waits for the one before it on its block, and for one other. Passes that wait
for as many passes one after the other, at most, form a *step*. With the ends ``E`` of
the last passes of all blocks a step takes ``E' = max(E, ends waited for) + times``, for
all plans at once. A block without a pass in a step waits for nothing and takes no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from nest.cost.schedules import Schedule, Times
from nest.cost.schedules.timeline import end_times, pair_time, pass_lists, pass_times
from nest.search.stages.options import Ints


class _Steps(NamedTuple):
    """The passes of all blocks, by step, in arrays of ``(steps, S)``.

    ``needed`` has the position of the end that each waits for, among those of all steps
    and blocks, in front of which are ``S`` zeros. ``kinds`` has which time it takes, as
    the lists of passes have it. ``pairs`` has the chunks of paired passes.
    """

    needed: Ints
    kinds: Ints
    pairs: tuple[tuple[int, int], ...]


@lru_cache(maxsize=8)
def _steps(schedule: Schedule, num_blocks: int, num_micro_batches: int) -> _Steps:
    """Return the steps of a schedule; plans that are compared share them."""
    lists = pass_lists(schedule, num_blocks, num_micro_batches)
    nothing = 4 * num_blocks * schedule.virtual_stages
    # Where every pass takes one unit of time, it ends with its step.
    units = [1] * (nothing + 1 + len(lists.pairs))
    ends = [np.array(x) for x in end_times(schedule, lists, units)]
    shape = (max(int(x[-1]) for x in ends), num_blocks)
    kinds, needed = np.full(shape, nothing), np.zeros(shape, dtype=np.int64)
    # No pass fills the slot of what is there from the start: it stays at a zero.
    positions = np.zeros(lists.num_slots, dtype=np.int64)
    for block, steps in enumerate(ends):
        positions[lists.outputs[block]] = steps * num_blocks + block
        kinds[steps - 1, block] = lists.kinds[block]
    for block, steps in enumerate(ends):
        needed[steps - 1, block] = positions[lists.needed[block]]
    return _Steps(needed, kinds, lists.pairs)


def critical_paths(
    schedule: Schedule, chunks: Sequence[Times], num_micro_batches: int
) -> Ints:
    """Return when the last pass of each plan ends, in quanta.

    Parameters
    ----------
    schedule, num_micro_batches
        What all plans share.
    chunks
        In pipeline order, with an array of times, one per plan.
    """
    num_blocks = len(chunks) // schedule.virtual_stages
    steps = _steps(schedule, num_blocks, num_micro_batches)
    times = [time for chunk in chunks for time in pass_times(chunk)]
    times.append(np.zeros_like(times[0]))
    times += [pair_time(chunks[i], chunks[j], np.maximum) for i, j in steps.pairs]
    durations = np.stack(times)[steps.kinds]
    ends = np.zeros((len(durations) + 1, *durations.shape[1:]), dtype=np.int64)
    all_ends = ends.reshape(-1, ends.shape[-1])
    for before, after, needed, duration in zip(
        ends[:-1], ends[1:], steps.needed, durations, strict=True
    ):
        all_ends.take(needed, axis=0, out=after, mode="clip")
        np.maximum(after, before, out=after)
        after += duration
    last: Ints = ends[-1].max(axis=0)
    return last
