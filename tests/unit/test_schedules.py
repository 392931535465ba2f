"""Schedules: lists of passes, and the times and counts that follow."""

from operator import add

import pytest

from nest.cost.schedules import SCHEDULES, Pass, Times, schedule_of
from nest.cost.schedules.base import peak
from nest.cost.schedules.one_f_one_b import OneFOneB
from nest.cost.schedules.timeline import critical_path

SHAPES = [(blocks, micro) for blocks in range(1, 5) for micro in range(1, 7)]


def interleaved_shapes():
    return [
        (blocks, virtual, blocks * groups)
        for blocks in (2, 3, 4)
        for virtual in (2, 3)
        for groups in (1, 2, 3)
    ]


class Split(OneFOneB):
    """1F1B whose backward passes are split: inputs, then at once weights.

    ``T = Σ (τ - W) + (M-1) max τ + max W``, what equal stages take.
    """

    name = "split"
    once, steady, tail = (1, -1), (1, 0), (0, 1)

    def paces(self, load):
        return (load.forward + load.backward, load.weight_backward)

    def passes(self, block, num_blocks, num_micro_batches):
        for run in super().passes(block, num_blocks, num_micro_batches):
            if run.backward:
                yield run._replace(gradients="inputs")
                yield run._replace(gradients="weights")
            else:
                yield run


def passes_of(forward, backward):
    """Return chunks whose backward passes are half for the weights."""
    return [
        Times(f, g, g // 2) for f, g in zip(forward, backward, strict=True)
    ]


def in_short(schedule, block, num_blocks, num_micro_batches):
    """Return passes as text: chunk a, b, ... in capitals if backward."""
    passes = schedule.passes(block, num_blocks, num_micro_batches)
    return " ".join(
        f"{('AB' if p.backward else 'ab')[p.chunk // num_blocks]}"
        f"{p.micro_batch}"
        for p in passes
    )


def test_one_f_one_b_alternates_after_its_warm_up():
    schedule = SCHEDULES["1f1b"]
    assert in_short(schedule, 0, 3, 4) == "a0 a1 a2 A0 a3 A1 A2 A3"
    assert in_short(schedule, 2, 3, 4) == "a0 A0 a1 A1 a2 A2 a3 A3"
    # fewer micro-batches than the warm-up takes
    assert in_short(schedule, 0, 3, 1) == "a0 A0"


def test_gpipe_runs_all_forward_passes_first():
    assert in_short(SCHEDULES["gpipe"], 0, 2, 3) == "a0 a1 a2 A0 A1 A2"


def test_interleaved_passes_go_in_groups_of_the_blocks():
    """S = 2, v = 2, M = 4. Warm-up 2(2-r-1) + 2 is 4 and 2 passes."""
    schedule = schedule_of("1f1b", 2)
    assert in_short(schedule, 0, 2, 4) == (
        "a0 a1 b0 b1 a2 B0 a3 B1 b2 A0 b3 A1 B2 B3 A2 A3"
    )
    assert in_short(schedule, 1, 2, 4) == (
        "a0 a1 b0 B0 b1 B1 a2 A0 a3 A1 b2 B2 b3 B3 A2 A3"
    )
    # one group: fewer passes than the warm-up of the first block takes
    assert in_short(schedule, 0, 2, 2) == "a0 a1 b0 b1 B0 B1 A0 A1"


@pytest.mark.parametrize(("blocks", "virtual", "micro"), interleaved_shapes())
def test_every_pass_runs_once(blocks, virtual, micro):
    schedule = schedule_of("1f1b", virtual)
    for block in range(blocks):
        passes = list(schedule.passes(block, blocks, micro))
        assert len(passes) == len(set(passes))
        assert set(passes) == {
            Pass(chunk, m, backward)
            for chunk in range(block, blocks * virtual, blocks)
            for m in range(micro)
            for backward in (False, True)
        }


@pytest.mark.parametrize(("blocks", "virtual", "micro"), interleaved_shapes())
def test_equal_chunks_have_the_closed_form(blocks, virtual, micro):
    """``M τ_b + (S-1) τ_b / v``: the bubble is divided by ``v``."""
    schedule = schedule_of("1f1b", virtual)
    chunks = blocks * virtual
    time = schedule.pipeline_time([Times(3, 7)] * chunks, micro)
    assert time == micro * virtual * 10 + (blocks - 1) * 10


def test_unequal_chunks_take_their_critical_path():
    """S = 2, v = 2, M = 2; chunks take F = 3, 1, 1, 3 and G = 1.

    Block 0 runs a0 a1 b0 b1 B0 B1 A0 A1, block 1 runs a0 a1 b0 B0 b1 B1 A0
    A1. Chunk 0 runs 0-3 and 3-6, chunk 1 3-4 and 6-7, chunk 2 6-7 and 7-8.
    Block 1 then goes b0 7-10, B0 10-11, b1 11-14, B1 14-15; chunk 2 backward
    11-12 and 15-16, chunk 1 (after 15, where its block is free) 15-16 and
    16-17, chunk 0 16-17 and 17-18. With loads 6 and 6 the formula of equal
    chunks would say 2 * 6 + 6 / 2 = 15.
    """
    schedule = schedule_of("1f1b", 2)
    chunks = passes_of([3, 1, 1, 3], [1, 1, 1, 1])
    assert schedule.pipeline_time(chunks, 2) == 18


def test_passes_in_flight_peak_after_the_warm_up():
    """S = 2, v = 2, M = 4, chunks of 1 and 10 bytes on the first block.

    The list begins a0 a1 b0 b1 a2: 2 passes of a, 2 of b, then 3 of a, 23
    bytes. After B0 comes a3: 4 of a and 1 of b. After B1 b2: 4 and 1; after
    A0 b3: 3 and 2, 23 bytes; A1 then 2 and 2. The most is 4 passes of a, 2
    of b, 5 at once and 23 bytes, not 4 · 1 + 2 · 10 = 24.
    """
    found = schedule_of("1f1b", 2).kept([1, 10], 0, 2, 4)
    assert found == ((4, 2), (4, 20), 5, 23)


def test_later_mixes_may_keep_more_than_the_warm_up():
    """The same with 10 bytes for a and 1 for b.

    When the first backward pass begins 3 passes of a and 2 of b keep 32
    bytes; two passes later 4 of a and 1 of b keep 41.
    """
    assert schedule_of("1f1b", 2).kept([10, 1], 0, 2, 4).kept_bytes == 41


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("blocks", "micro"), SHAPES)
def test_in_flight_is_the_peak_of_the_passes(name, blocks, micro):
    schedule = SCHEDULES[name]
    for block in range(blocks):
        found = schedule.kept([5], block, blocks, micro)
        assert found == peak(schedule, [5], block, blocks, micro)


@pytest.mark.parametrize(("blocks", "micro"), SHAPES)
def test_gpipe_takes_its_critical_path(blocks, micro):
    """``Σ τ + (M-1)(max F + max G)``, maxima of different stages."""
    schedule = SCHEDULES["gpipe"]
    stages = passes_of([2, 9, 4, 1][:blocks], [5, 3, 3, 8][:blocks])
    exact = critical_path(schedule, stages, micro)
    assert schedule.pipeline_time(stages, micro) == exact


@pytest.mark.parametrize(("blocks", "micro"), SHAPES)
def test_one_f_one_b_takes_no_longer_than_its_formula(blocks, micro):
    """Equal stages take exactly that."""
    schedule = SCHEDULES["1f1b"]
    stages = passes_of([2, 9, 4, 1][:blocks], [5, 3, 3, 8][:blocks])
    exact = critical_path(schedule, stages, micro)
    assert schedule.pipeline_time(stages, micro) >= exact
    stages = [Times(2, 3)] * blocks
    exact = critical_path(schedule, stages, micro)
    assert schedule.pipeline_time(stages, micro) == exact


def test_interleaved_blocks_divide_the_micro_batches():
    schedule = schedule_of("1f1b", 2)
    assert schedule.why_not(4, 8) is None
    assert schedule.why_not(4, 6) == (
        "virtual_stages: expected a number of blocks that divides the "
        "micro-batches (6) of an interleaved plan, got 4"
    )


def test_gradients_of_weights_hold_up_no_other_stage():
    """S = 2, M = 2; F = 2, 1, G = 5, 6, of which 3, 2 for the weights.

    Stage 2 runs F 2-3, inputs 3-7 and weights 7-9, then F 9-10, inputs
    10-14, weights 14-16. Stage 1 runs F 0-2 and 2-4, inputs 7-9 and weights
    9-12, then inputs 14-16 and weights 16-19.
    """
    stages = [Times(2, 5, 3), Times(1, 6, 2)]
    assert critical_path(Split(), stages, 2) == 19
    # Passed back whole: 1F1B's 9 and 16 on stage 2, then 5 on stage 1.
    assert critical_path(SCHEDULES["1f1b"], stages, 2) == 21


@pytest.mark.parametrize(("blocks", "micro"), SHAPES)
def test_split_passes_of_equal_stages_take_the_closed_form(blocks, micro):
    schedule, stages = Split(), [Times(2, 7, 3)] * blocks
    exact = critical_path(schedule, stages, micro)
    assert schedule.pipeline_time(stages, micro) == exact


def test_a_pass_is_in_flight_until_its_weights_have_gradients():
    """S = 1: the next forward pass begins after them, or before."""
    schedule = Split()
    assert peak(schedule, [5], 0, 1, 3) == ((1,), (5,), 1, 5)

    class Late(Split):
        def passes(self, block, num_blocks, num_micro_batches):
            passes = list(super().passes(block, num_blocks, num_micro_batches))
            return sorted(passes, key=lambda p: p.gradients == "weights")

    assert peak(Late(), [5], 0, 1, 3) == ((3,), (15,), 3, 15)


@pytest.mark.parametrize("schedule", [*SCHEDULES.values(), Split()])
def test_paces_add_up_and_their_sums_follow(schedule):
    """``once`` and ``rounds`` say as much as the closed form."""
    one, other, both = Times(3, 8, 4), Times(2, 5, 1), Times(5, 13, 5)
    assert schedule.paces(both) == tuple(
        map(add, schedule.paces(one), schedule.paces(other))
    )
    amounts = schedule.amounts(one)
    assert amounts[: schedule.num_paces] == schedule.paces(one)
    step = schedule.pipeline_time([one], 7)
    assert step == schedule.added(amounts) + schedule.waited(amounts, 7)
