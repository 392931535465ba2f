"""What ``torch.distributed.pipelining`` says about our lists of passes.

Its own checks, which need no process group: that a list runs every pass once
and in a legal order, and that sends and receives can be put in without a
deadlock.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import product

import pytest

from nest.cost.schedules import SCHEDULES, Schedule, schedule_of

#: Blocks, and micro-batches: fewer than blocks, as many, and more.
SIZES = (*range(1, 9), 16)
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33)


def cases() -> Iterator[tuple[str, int, int, int]]:
    """Yield (schedule, v, S, M) that we allow."""
    ways = [(name, 1) for name in SCHEDULES]
    ways += [("1f1b", virtual) for virtual in (2, 3, 4)]
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
    return schedules, {
        block: [
            schedules._Action(
                run.chunk,
                schedules._ComputationType(
                    kinds[run.gradients] if run.backward else "F"
                ),
                run.micro_batch,
            )
            for run in schedule.passes(block, size, count)
        ]
        for block in range(size)
    }


def test_there_are_enough_cases():
    assert len(set(cases())) >= 200
    assert {name for name, *_ in cases()} == set(SCHEDULES)


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
        # Raises where passes wait for each other.
        steps = schedules._simulate_comms_compute(
            whole, lambda chunk, where=where: where[chunk], chunks
        )
        ran = {
            block: [a for a in own if a is not None and a.is_compute_op]
            for block, own in steps.items()
        }
        assert ran == actions


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
    schedules, actions = actions_of(
        torch, schedule_of("1f1b", virtual), size, 2 * size
    )
    theirs = _orders(torch, schedules.ScheduleInterleaved1F1B, virtual, size)
    assert actions == theirs


def _orders(torch, kind, virtual, size):
    """Return the lists that a schedule of PyTorch makes, gaps left out."""

    class Stage:
        """What a schedule asks of a stage before it runs."""

        def __init__(self, index):
            self.stage_index, self.is_first = index, index == 0
            self.num_stages, self.is_last = virtual * size, False
            self.group_size, self.group_rank = size, 0
            self.group, self.device = None, torch.device("cpu")
            self.has_backward = True
            self.stage_index_to_group_rank = {}

    stages = [Stage(block * size) for block in range(virtual)]
    order = kind(stages, 2 * size).pipeline_order
    return {
        block: [action for action in own if action is not None]
        for block, own in order.items()
    }
