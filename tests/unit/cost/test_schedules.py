"""Schedules: lists of passes, and the times and counts that follow."""

from itertools import product
from operator import add

import pytest

from nest.cost.schedules import LISTED, SCHEDULES, Pass, Times, paced, schedule_of
from nest.cost.schedules.base import peak
from nest.cost.schedules.one_f_one_b import OneFOneB
from nest.cost.schedules.timeline import critical_path, pair_time
from nest.cost.schedules.timeline import run as run_passes
from nest.errors import UnsupportedProblemError
from nest.ir.job import FIXED_CHUNKS, SPLIT_BACKWARD
from nest.ir.job import SCHEDULES as NAMES
from nest.ir.plan import Plan, Stage, Strategy

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
    return [Times(f, g, g // 2) for f, g in zip(forward, backward, strict=True)]


def in_short(schedule, block, num_blocks, num_micro_batches):
    """Return passes as text: chunk a, b, ... in capitals if backward."""
    passes = schedule.passes(block, num_blocks, num_micro_batches)
    return " ".join(
        f"{('AB' if p.backward else 'ab')[p.chunk // num_blocks]}{p.micro_batch}"
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

    Block 0 runs a0 a1 b0 b1 B0 B1 A0 A1, block 1 runs a0 a1 b0 B0 b1 B1 A0 A1. Chunk 0
    runs 0-3 and 3-6, chunk 1 3-4 and 6-7, chunk 2 6-7 and 7-8. Block 1 then goes b0
    7-10, B0 10-11, b1 11-14, B1 14-15; chunk 2 backward 11-12 and 15-16, chunk 1 (after
    15, where its block is free) 15-16 and 16-17, chunk 0 16-17 and 17-18. With loads 6
    and 6 the formula of equal chunks would say 2 * 6 + 6 / 2 = 15.
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


# Backward passes in two parts, chunks down and up


def in_parts(name, block, num_blocks, num_micro_batches):
    """Return passes as text: kind, chunk of the block, micro-batch.

    ``F``, ``B``, ``I`` (gradients of inputs), ``W``; pairs in brackets.
    """
    kinds = {"all": "B", "inputs": "I", "weights": "W"}
    text = ""
    for p in LISTED[name].passes(block, num_blocks, num_micro_batches):
        kind = kinds[p.gradients] if p.backward else "F"
        text += "(" if p.paired else ""
        text += f"{kind}{'ab'[p.chunk // num_blocks]}{p.micro_batch}"
        closes = text.count("(") > text.count(")") and p.backward
        text += ") " if closes else " "
    return text.strip()


def listed_shapes():
    return [
        (name, blocks, micro)
        for name, schedule in LISTED.items()
        for blocks in range(1 if schedule.virtual_stages == 1 else 2, 6)
        for micro in range(1, 14)
        if schedule.why_not(blocks, micro) is None
    ]


def test_what_a_job_says_of_schedules_is_what_they_are():
    assert set(NAMES) == {*SCHEDULES, *LISTED}
    for name, schedule in LISTED.items():
        assert FIXED_CHUNKS.get(name, 1) == schedule.virtual_stages
        runs = list(schedule.passes(0, 2, 8))
        assert any(p.gradients == "weights" for p in runs) == (name in SPLIT_BACKWARD)


def test_zb_h1_keeps_weights_waiting_on_later_blocks():
    """S = 3, M = 4: block r has its weights r micro-batches late."""
    assert in_parts("zb-h1", 0, 3, 4) == (
        "Fa0 Fa1 Fa2 Ia0 Wa0 Fa3 Ia1 Wa1 Ia2 Wa2 Ia3 Wa3"
    )
    assert in_parts("zb-h1", 2, 3, 4) == (
        "Fa0 Ia0 Fa1 Ia1 Fa2 Ia2 Wa0 Fa3 Ia3 Wa1 Wa2 Wa3"
    )


def test_zb_v_runs_its_chunks_down_and_up():
    """S = 2, M = 3 = 2S - 1: block 0 runs chunks 0 and 3, block 1 1 and 2."""
    assert in_parts("zb-v", 0, 2, 3) == (
        "Fa0 Fa1 Fa2 Fb0 Ib0 Wb0 Fb1 Ib1 Wb1 Ia0 Wa0 Fb2 Ib2 Wb2 Ia1 Wa1 Ia2 Wa2"
    )
    assert in_parts("zb-v", 1, 2, 3) == (
        "Fa0 Fb0 Fa1 Fb1 Ib0 Wb0 Fa2 Ia0 Wa0 Fb2 Ib1 Wb1 Ia1 Ib2 Ia2 Wa1 Wb2 Wa2"
    )
    # of two micro-batches what is left of the third one
    assert in_parts("zb-v", 0, 2, 2) == (
        "Fa0 Fa1 Fb0 Ib0 Wb0 Fb1 Ib1 Wb1 Ia0 Wa0 Ia1 Wa1"
    )


def test_dualpipe_v_pairs_forward_with_backward_passes():
    """S = 2, M = 4. Steps of block 0 (l = 1, r = 0): 2 F, F F, I W F; one
    round of two pairs; B and a pair; B I; W I; W."""
    assert in_parts("dualpipe-v", 0, 2, 4) == (
        "Fa0 Fa1 Fa2 Fb0 Ib0 Wb0 Fb1 (Fa3 Bb1) (Fb2 Ba0) Bb2 (Fb3 Ba1) "
        "Bb3 Ia2 Wa2 Ia3 Wa3"
    )
    assert in_parts("dualpipe-v", 1, 2, 4) == (
        "Fa0 Fb0 Fa1 Fb1 Fa2 Bb0 (Fb2 Ba0) (Fa3 Bb1) (Fb3 Ba1) Bb2 Ba2 Ib3 Ia3 Wb3 Wa3"
    )


@pytest.mark.parametrize(("name", "blocks", "micro"), listed_shapes())
def test_every_part_of_every_pass_runs_once(name, blocks, micro):
    schedule = LISTED[name]
    plan = Plan(
        replicas=1,
        micro_batch=1,
        virtual_stages=schedule.virtual_stages,
        placement=schedule.placement,
        stages=tuple(
            Stage(layers=(i,), devices=1, strategy=Strategy())
            for i in range(blocks * schedule.virtual_stages)
        ),
    )
    for block in range(blocks):
        passes = list(schedule.passes(block, blocks, micro))
        assert len(set(passes)) == len(passes)
        parts = [
            (p.chunk, p.micro_batch, part)
            for p in passes
            for part in (
                ("inputs", "weights")
                if p.gradients == "all" and p.backward
                else (p.gradients if p.backward else "forward",)
            )
        ]
        assert sorted(parts) == sorted(
            (chunk, m, part)
            for chunk in plan.chunks_of(block)
            for m in range(micro)
            for part in ("forward", "inputs", "weights")
        )
    # They do not wait for each other.
    times = [Times(3, 5, 2, 1, 2)] * (blocks * schedule.virtual_stages)
    assert run_passes(schedule, times, micro).block_ends


@pytest.mark.parametrize("blocks", [2, 3, 4, 6])
@pytest.mark.parametrize("groups", [2, 3, 5])
def test_bubbles_of_equal_passes(blocks, groups):
    """F = I = W = 1: the bubbles of the papers, in multiples of F.

    1F1B has 3 (S-1), ZB-H1 and ZB-V a third, DualPipe-V two thirds. In
    flight are S micro-batches; S of two half chunks each, and one half.
    """
    micro, unit = groups * blocks, Times(1, 2, 1)
    chunks = [unit] * (2 * blocks)
    bubble = blocks - 1
    found = critical_path(LISTED["zb-h1"], chunks[:blocks], micro)
    assert found == 3 * micro + bubble
    assert critical_path(LISTED["zb-v"], chunks, micro) == 6 * micro + bubble
    found = critical_path(LISTED["dualpipe-v"], chunks, micro)
    assert found == 6 * micro + 2 * bubble
    for block in range(blocks):
        args = (block, blocks, micro)
        assert LISTED["zb-h1"].kept([1], *args).passes == blocks
        assert LISTED["zb-v"].kept([1, 1], *args).passes == 2 * blocks
        found = LISTED["dualpipe-v"].kept([1, 1], *args)
        assert found.passes == 2 * blocks + 1


def test_zb_h1_worked_by_hand():
    """S = 2, M = 2; F = 2, 1, I = 2, 4, W = 3, 2.

    Block 1 runs F0 0-2, F1 2-4; block 2 F0 2-3, I0 3-7, F1 7-8, I1 8-12, W0
    12-14, W1 14-16. Block 1 runs I0 7-9, W0 9-12, I1 12-14, W1 14-17.
    """
    stages = [Times(2, 5, 3), Times(1, 6, 2)]
    assert critical_path(LISTED["zb-h1"], stages, 2) == 17


def test_a_pair_hides_what_it_can():
    """F = 10 of which 4, G = 20 of which 7 may hide: 6 beside 7, 13 beside 4.

    With 30 of 33 in the backward pass: 6 beside 30, and 3 beside 4.
    """
    assert pair_time(Times(10, 0, 0, 4, 0), Times(0, 20, 0, 0, 7)) == 20
    assert pair_time(Times(10, 0, 0, 4, 0), Times(0, 33, 0, 0, 30)) == 34
    # nothing to hide: one after the other
    assert pair_time(Times(10, 20), Times(10, 20)) == 30


def test_passes_of_a_pair_end_together():
    """S = 2, M = 4; F = 4, G = 8 and W = 4, half of F and G to hide.

    The first pair of block 0 begins when F of chunk 3 has run for
    micro-batch 1, and takes 4 + 4 instead of 12.
    """
    times = [Times(4, 8, 4, 2, 4)] * 4
    timeline = run_passes(LISTED["dualpipe-v"], times, 4)
    runs = list(timeline.passes(0))
    number = next(i for i, (p, _) in enumerate(runs) if p.paired)
    (_, end), (_, other) = runs[number : number + 2]
    assert end == other
    assert end - runs[number - 1][1] == 8


@pytest.mark.parametrize("slow", [0, 1, 2])
@pytest.mark.parametrize("name", [*SCHEDULES, *LISTED])
def test_no_pass_starts_before_its_input_is_there(name, slow):
    """Chunks of all kinds of times; two of a pair start together."""
    schedule, blocks, micro = schedule_of(name), 3, 8
    last = blocks * schedule.virtual_stages - 1
    times = [
        Times(3 + 7 * i % 5, 9 + 5 * i % 7, 3 + i % 2, i % 3, 2 + i % 4)
        for i in range(last + 1)
    ]
    times[slow] = Times(100, 200, 50, 20, 30)
    timeline = run_passes(schedule, times, micro)
    ended, started = {}, {}
    for block in range(blocks):
        runs = list(timeline.passes(block))
        free = 0
        for number, (p, end) in enumerate(runs):
            chunk = times[p.chunk]
            time = chunk.backward if p.backward else chunk.forward
            if p.gradients == "weights":
                time = chunk.weight_backward
            elif p.gradients == "inputs":
                time -= chunk.weight_backward
            if p.paired:
                time = pair_time(chunk, times[runs[number + 1][0].chunk])
            elif number and runs[number - 1][0].paired:
                time = pair_time(times[runs[number - 1][0].chunk], chunk)
                free = 0
            started[p] = end - time
            assert started[p] >= free
            free = end
            if p.gradients != "weights":
                ended[p.chunk, p.micro_batch, p.backward] = end
    for p, start in started.items():
        step = 1 if p.backward else -1
        needed = (p.chunk + step, p.micro_batch, p.backward)
        if p.gradients == "weights":
            needed = (p.chunk, p.micro_batch, True)
        elif p.chunk == (last if p.backward else 0):
            needed = (p.chunk, p.micro_batch, False)
        if p.backward or p.chunk:
            assert start >= ended[needed]


def test_dualpipe_v_needs_a_micro_batch_per_chunk():
    schedule = LISTED["dualpipe-v"]
    assert schedule.why_not(3, 6) is None
    assert schedule.why_not(3, 5) == (
        "stages: expected at most half as many blocks as micro-batches (5) "
        "under schedule 'dualpipe-v', got 3"
    )


def test_schedules_without_paces_say_so():
    assert paced("gpipe") is SCHEDULES["gpipe"]
    with pytest.raises(
        UnsupportedProblemError,
        match=r"\$\.job\.schedule: expected one of 1f1b, gpipe, as others are "
        r"timed pass by pass, which this search cannot do, got 'zb-v'; use "
        r"solver brute, or solve with another schedule and score the plan "
        r"with this one",
    ):
        paced("zb-v")


def test_the_most_that_interleaved_blocks_keep_is_in_the_first_rounds():
    """As :func:`peak` over the whole list finds it, whatever chunks keep."""
    for blocks, virtual, groups in product((2, 3, 5), (2, 3, 4), (1, 2, 3, 9)):
        schedule = schedule_of("1f1b", virtual)
        sizes = [
            *([int(i == j) for j in range(virtual)] for i in range(virtual)),
            [7**j for j in range(virtual)],
            [7 ** (virtual - j) for j in range(virtual)],
        ]
        for kept_bytes, block in product(sizes, range(blocks)):
            case = (kept_bytes, block, blocks, blocks * groups)
            assert schedule.kept(*case) == peak(schedule, *case)
