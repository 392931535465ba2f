"""Schedules: what the score says is what a simulation takes and holds."""

from __future__ import annotations

from random import Random

import pytest

from nest.cost.score import Score
from nest.cost.score import score as product_score
from nest.ir import Plan, Problem
from tests.independent.generate import draw_pair
from tests.independent.rules import broken_rules, num_blocks
from tests.independent.simulator import (
    Chunk,
    Timeline,
    gpipe,
    handed_on,
    interleaved,
    one_f_one_b,
    simulate,
)
from tests.independent.standard import LayerOfStage, parts_of, shards
from tests.properties.profiles import PROFILE

COUNT = {"quick": 100, "dev": 100, "full": 5000}.get(PROFILE, 300)


def draw_stages(random: Random, num_stages: int) -> list[Chunk]:
    return [
        Chunk(
            device=stage,
            forward=random.choice((0, 1, 5, 17)),
            backward=random.choice((0, 2, 9, 40)),
        )
        for stage in range(num_stages)
    ]


def formula_1f1b(stages: list[Chunk], count: int) -> int:
    loads = [stage.forward + stage.backward for stage in stages]
    return sum(loads) + (count - 1) * max(loads)


# The formulas, on stages of any times


def formula_gpipe(stages: list[Chunk], count: int) -> int:
    return sum(stage.forward + stage.backward for stage in stages) + (count - 1) * (
        max(stage.forward for stage in stages) + max(stage.backward for stage in stages)
    )


def test_1f1b_formula_is_an_upper_bound_of_like_stages() -> None:
    # One stage has the largest forward and the largest backward load.
    random = Random(1)
    below = 0
    for _ in range(COUNT):
        stages = draw_stages(random, random.randint(1, 6))
        slowest = random.randrange(len(stages))
        stages[slowest] = Chunk(device=slowest, forward=17, backward=40)
        count = random.randint(1, 10)
        timeline = simulate(stages, one_f_one_b(len(stages), count))
        bound = formula_1f1b(stages, count)
        assert timeline.end <= bound
        below += timeline.end < bound
        assert timeline.inflight == [
            min(count, len(stages) - i) for i in range(len(stages))
        ]
    assert 0 < below < COUNT  # neither trivial nor never reached


def test_1f1b_formula_may_be_too_low_for_unlike_stages() -> None:
    # Stage 2 has to pass on the forward pass of micro-batch 1 before it may
    # go back with micro-batch 0: 20 until stage 1 has run both, then twice
    # 10 backward. The formula counts 10 + 10 + 0 and 10 more.
    loads = [(10, 0), (0, 10), (0, 0)]
    stages = [
        Chunk(device=i, forward=forward, backward=backward)
        for i, (forward, backward) in enumerate(loads)
    ]
    assert simulate(stages, one_f_one_b(3, 2)).end == 40
    assert formula_1f1b(stages, 2) == 30
    # what holds for all stages
    random = Random(4)
    for _ in range(COUNT):
        stages = draw_stages(random, random.randint(1, 6))
        count = random.randint(1, 10)
        timeline = simulate(stages, one_f_one_b(len(stages), count))
        assert timeline.end <= formula_gpipe(stages, count)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_1f1b_formula_is_exact_for_equal_stages(num_stages: int, count: int) -> None:
    stages = [Chunk(device=i, forward=7, backward=11) for i in range(num_stages)]
    timeline = simulate(stages, one_f_one_b(num_stages, count))
    assert timeline.end == formula_1f1b(stages, count)


def test_gpipe_formula_is_exact() -> None:
    random = Random(2)
    for _ in range(COUNT):
        stages = draw_stages(random, random.randint(1, 6))
        count = random.randint(1, 10)
        timeline = simulate(stages, gpipe(len(stages), count))
        assert timeline.end == formula_gpipe(stages, count)
        assert timeline.inflight == [count] * len(stages)


@pytest.mark.parametrize("num_blocks", [2, 3, 4])
@pytest.mark.parametrize("virtual", [2, 3])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_interleaved_with_equal_chunks(
    num_blocks: int, virtual: int, rounds: int
) -> None:
    # M tau_b + (S - 1) tau_b / v, and L (1 + (S - 1) / (S v)) layers of L
    # on the first block, here one layer per chunk: L = S v.
    count = num_blocks * rounds
    chunks = [
        Chunk(device=i % num_blocks, forward=7, backward=11, kept_bytes=1)
        for i in range(num_blocks * virtual)
    ]
    timeline = simulate(chunks, interleaved(num_blocks, virtual, count))
    assert timeline.end == 18 * (count * virtual + num_blocks - 1)
    assert timeline.kept_bytes[0] == min(
        count * virtual, num_blocks * virtual + num_blocks - 1
    )


def test_lists_that_wait_for_each_other_are_refused() -> None:
    stages = [Chunk(device=i, forward=1, backward=1) for i in range(2)]
    lists = gpipe(2, 1)
    lists[0].reverse()
    with pytest.raises(ValueError, match="expected no deadlock"):
        simulate(stages, lists)


def test_a_tensor_is_held_where_it_passes() -> None:
    # a feeds b and d with 10 bytes, c with 30; each on a stage of its own.
    # On two shards, b hands on 30 (15 each), c only the 10 that d needs.
    stages = [
        Chunk(device=0, forward=1, backward=1, made={"a": {1: 10, 2: 30, 3: 10}}),
        *(Chunk(device=i, forward=1, backward=1, shards=2) for i in (1, 2, 3)),
    ]
    timeline = simulate(stages, gpipe(4, 3))
    assert timeline.kept_bytes == [0, 3 * 15, 3 * 5, 0]


# Plans of random problems


def chunks_of(problem: Problem, plan: Plan, score: Score) -> list[Chunk]:
    """Return the chunks of a plan, with the times that its score says."""
    parts = parts_of(problem, plan)
    where = {x.name: part.number for part in parts for x in part.layers}

    def made(layer: LayerOfStage) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for edge in problem.graph.edges:
            if str(edge.source) == layer.name:
                target = where[str(edge.target)]
                size = edge.bytes_per_sample * plan.micro_batch
                sizes[target] = max(sizes.get(target, 0), size)
        return sizes

    return [
        Chunk(
            device=part.number % num_blocks(plan),
            forward=stage.forward,
            backward=stage.backward,
            kept_bytes=sum(layer.kept_bytes for layer in part.layers),
            made={layer.name: made(layer) for layer in part.layers},
            shards=shards(problem, part.layers[0].strategy),
        )
        for part, stage in zip(parts, score.stages, strict=True)
    ]


def simulated(problem: Problem, plan: Plan, score: Score) -> Timeline:
    count = score.num_micro_batches
    if plan.virtual_stages > 1:
        lists = interleaved(num_blocks(plan), plan.virtual_stages, count)
    elif problem.job.schedule == "gpipe":
        lists = gpipe(len(plan.stages), count)
    else:
        lists = one_f_one_b(len(plan.stages), count)
    return simulate(chunks_of(problem, plan, score), lists)


def alike(score: Score) -> bool:
    """Return whether one stage has both of the largest loads."""
    forward = max(stage.forward for stage in score.stages)
    backward = max(stage.backward for stage in score.stages)
    return any(
        (stage.forward, stage.backward) == (forward, backward) for stage in score.stages
    )


def test_scores_say_what_a_simulation_takes_and_holds() -> None:
    seen = {"interleaved": 0, "gpipe": 0, "1f1b": 0, "passing": 0}
    random = Random(3)
    for _ in range(COUNT):
        problem, plan = draw_pair(random, "standard")
        if broken_rules(problem, plan):
            continue
        if problem.job.schedule not in ("1f1b", "gpipe"):
            continue  # their steps are simulations: test_scorer.py
        score = product_score(problem, plan)
        timeline = simulated(problem, plan, score)
        passes = score.step_quanta - max(block.sync for block in score.blocks)
        if plan.virtual_stages == 1 and problem.job.schedule == "1f1b":
            if alike(score):
                assert timeline.end <= passes
                seen["1f1b"] += len(plan.stages) > 1
        else:
            assert timeline.end == passes
            name = "gpipe" if plan.virtual_stages == 1 else "interleaved"
            seen[name] += len(plan.stages) > 1
        for block, inflight, kept_bytes in zip(
            score.blocks, timeline.inflight, timeline.kept_bytes, strict=True
        ):
            assert block.inflight == inflight
            assert block.kept_bytes == kept_bytes
        for stage, inflight in zip(
            score.stages, timeline.inflight_of_chunk, strict=True
        ):
            assert stage.inflight == inflight
        seen["passing"] += any(
            handed for handed in handed_on(chunks_of(problem, plan, score))
        )
    assert all(count > COUNT // 50 for count in seen.values()), seen
