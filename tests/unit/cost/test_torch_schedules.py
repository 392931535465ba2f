"""What ``torch.distributed.pipelining`` says about our lists of passes.

Its own checks, which need no process group: that a list runs every pass once and in a
legal order, and that sends and receives can be put in without a deadlock.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import product

import pytest

from nest.cost.schedules import LISTED, SCHEDULES, Schedule, schedule_of

#: Blocks, and micro-batches: fewer than blocks, as many, and more.
SIZES = (*range(1, 9), 16)
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33)


def cases() -> Iterator[tuple[str, int, int, int]]:
    """Yield (schedule, v, S, M) that we allow."""
    ways = [(name, 1) for name in SCHEDULES]
    ways += [("1f1b", virtual) for virtual in (2, 3, 4)]
    ways += [(name, one.virtual_stages) for name, one in LISTED.items()]
    for (name, virtual), size, count in product(ways, SIZES, COUNTS):
        schedule = schedule_of(name, virtual)
        if virtual > 1 and size < 2:
            continue
        if schedule.why_not(size, count) is None:
            yield name, virtual, size, count


def actions_of(torch, schedule: Schedule, size: int, count: int):
    """Return the lists of all blocks in the terms of PyTorch."""
    schedules = import_module("torch.distributed.pipelining.schedules")
    kinds = {"all": "B", "inputs": "I", "weights": "W"}
    actions: dict[int, list] = {}
    for block in range(size):
        actions[block] = own = []
        first = None
        for run in schedule.passes(block, size, count):
            kind = kinds[run.gradients] if run.backward else "F"
            action = schedules._Action(
                run.chunk, schedules._ComputationType(kind), run.micro_batch
            )
            if run.paired:
                first = action
            elif first is not None:
                own.append(_pair(schedules, first, action))
                first = None
            else:
                own.append(action)
    return schedules, actions


def _pair(schedules, first, second):
    kind = schedules._ComputationType("OVERLAP_F_B")
    return schedules._Action(-1, kind, None, (first, second))


def apart(actions):
    """Return lists with the passes of pairs one after the other."""
    return {
        block: [one for a in own for one in a.sub_actions or (a,)]
        for block, own in actions.items()
    }


def test_there_are_enough_cases():
    assert len(set(cases())) >= 200
    assert {name for name, *_ in cases()} == {*SCHEDULES, *LISTED}


@pytest.mark.parametrize("size", SIZES)
def test_torch_accepts_our_lists(torch, size):
    for name, virtual, blocks, count in cases():
        if blocks != size:
            continue
        schedule = schedule_of(name, virtual)
        schedules, actions = actions_of(torch, schedule, size, count)
        chunks = size * schedule.virtual_stages
        where = schedules._validate_schedule(actions, size, chunks, count)
        assert where == {
            run.chunk: block
            for block in range(size)
            for run in schedule.passes(block, size, count)
        }
        whole = schedules._add_send_recv(
            {block: list(own) for block, own in actions.items()},
            lambda chunk, where=where: where[chunk],
            chunks,
        )
        assert computed(whole) == actions
        if actions != apart(actions):
            continue  # This simulation knows no pairs.
        # Raises where passes wait for each other.
        steps = schedules._simulate_comms_compute(
            whole, lambda chunk, where=where: where[chunk], chunks
        )
        assert computed(steps) == actions


def computed(lists):
    """Return the passes of lists with sends and receives."""
    return {
        block: [a for a in own if a is not None and a.is_compute_op]
        for block, own in lists.items()
    }


def test_torch_refuses_lists_in_another_order(torch):
    """The check can fail: a backward pass before its forward pass."""
    schedules, actions = actions_of(torch, schedule_of("1f1b"), 2, 2)
    actions[1].reverse()
    with pytest.raises(AssertionError, match="without first running Forward"):
        schedules._validate_schedule(actions, 2, 2, 2)


def test_torch_finds_passes_that_wait_for_each_other(torch):
    """The first block's only backward pass before the other's forward."""
    schedules, actions = actions_of(torch, schedule_of("gpipe"), 2, 1)
    actions[0].reverse()
    with pytest.raises((AssertionError, RuntimeError)):
        schedules._add_send_recv(actions, lambda chunk: chunk, 2)


@pytest.mark.parametrize(("virtual", "size"), [(2, 2), (2, 4), (3, 4)])
def test_torch_interleaves_in_the_same_order(torch, virtual, size):
    """``ScheduleInterleaved1F1B`` makes the lists that ours are."""
    schedules, actions = actions_of(torch, schedule_of("1f1b", virtual), size, 2 * size)
    kind = schedules.ScheduleInterleaved1F1B
    starts = range(0, size * virtual, size)
    assert actions == _orders(torch, kind, starts, size, 2 * size)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize(
    ("name", "theirs", "counts"),
    [
        ("zb-v", "ScheduleZBVZeroBubble", (1, 2, 5, 14, 30)),
        ("dualpipe-v", "ScheduleDualPipeV", (14, 15, 30)),
    ],
)
def test_torch_goes_down_and_up_in_the_same_order(torch, name, theirs, counts, size):
    for count in counts:
        schedule = schedule_of(name)
        schedules, actions = actions_of(torch, schedule, size, count)
        kind = getattr(schedules, theirs)
        starts = (0, 2 * size - 1)
        assert actions == _orders(torch, kind, starts, size, count)


def _orders(torch, kind, chunks, size, count):
    """Return the lists that a schedule of PyTorch makes, gaps left out.

    ``chunks`` are those of the first block.
    """

    class Stage:
        """What a schedule asks of a stage before it runs."""

        def __init__(self, index):
            self.stage_index, self.is_first = index, index == 0
            self.num_stages, self.is_last = len(chunks) * size, False
            self.group_size, self.group_rank = size, 0
            self.group, self.device = None, torch.device("cpu")
            self.has_backward, self.submod = True, None
            self.stage_index_to_group_rank = {}

    order = kind([Stage(chunk) for chunk in chunks], count).pipeline_order
    return {
        block: [action for action in own if action is not None]
        for block, own in order.items()
    }
