"""Whether a plan fits, and what would make it fit."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
from msgspec.structs import replace

import nest
from nest.analysis.fits import Fits, fits, settings_of_plan
from nest.analysis.neighbors import strategies_of
from nest.cli.main import main
from nest.cost.score import score
from nest.frameworks.export import lines_of
from nest.frameworks.nearest import even_stages
from nest.ir import Plan, Problem, Stage, Strategy
from nest.uncertainty.headroom import fits_word, with_headroom
from nest.uncertainty.intervals import intervals_of, stored_deviations
from tests.unit.analysis.test_neighbours import HALVES, chain


@pytest.fixture(scope="module")
def problem() -> Problem:
    return nest.problem(model="llama2-7b", cluster="h100x8", global_batch=64)


def even(problem: Problem, stages: int, size: int, **values: object) -> Plan:
    """Return a plan of equally many layers a stage and one strategy."""
    names = [layer.id for layer in problem.graph.layers]
    each = -(-len(names) // stages)
    strategy = Strategy(**values)  # type: ignore[arg-type]
    cuts = [names[i : i + each] for i in range(0, len(names), each)]
    return Plan(
        replicas=1,
        micro_batch=size,
        stages=tuple(Stage.of(cut, [strategy] * len(cut)) for cut in cuts),
    )


@pytest.fixture(scope="module")
def too_large(problem: Problem) -> Fits:
    """A plan of 8 data-parallel ranks that keep everything."""
    return fits(problem, even(problem, 1, 16, dp=8), cut=even_stages)


def test_stages_add_up_and_come_fullest_first(problem: Problem) -> None:
    plan = even(problem, 4, 4, dp=2)
    answer, verdict = fits(problem, plan), score(problem, plan)
    sizes = {index: block.memory_bytes for index, block in enumerate(verdict.blocks, 1)}
    assert {s.stage: s.memory_bytes for s in answer.stages} == sizes
    assert [s.memory_bytes for s in answer.stages] == sorted(
        sizes.values(), reverse=True
    )
    ranks = {stage.stage: stage.ranks for stage in answer.stages}
    assert ranks == {1: ((0, 2),), 2: ((2, 4),), 3: ((4, 6),), 4: ((6, 8),)}
    within = intervals_of(problem, plan, verdict)
    assert within is not None
    assert answer.stages[0].memory_90_bytes == within.memory_90_bytes
    assert answer.stages[0].memory_50_bytes == within.memory_50_bytes


def test_the_word_says_how_sure_it_is(problem: Problem) -> None:
    memory = stored_deviations().memory_of(problem.software)
    device_bytes = problem.cluster.memory_bytes()

    def word(upper: float, less: int) -> str:
        return fits_word(problem, math.floor(device_bytes * math.exp(-upper)) - less)

    assert word(memory.high_90, 1) == "yes"
    assert word(memory.high_90, -1) == "likely"
    assert word(memory.high_50, 1) == "likely"
    assert word(memory.high_50, -1) == "doubtful"
    assert word(0, 0) == "doubtful"
    assert word(0, -1) == "no"


def test_headroom_is_memory_that_runs_may_use(problem: Problem) -> None:
    narrow = with_headroom(problem, "50%")
    usable_bytes = narrow.cluster.memory_bytes()
    assert fits_word(narrow, usable_bytes) == "yes"
    assert fits_word(narrow, usable_bytes + 1) == "yes"
    device_bytes = problem.cluster.memory_bytes()
    assert fits_word(narrow, device_bytes) == "doubtful"
    assert fits_word(narrow, device_bytes + 1) == "no"


def test_every_change_fits_and_has_its_score(too_large: Fits) -> None:
    assert too_large.fits == "no"
    ranks = [change.rank for change in too_large.changes]
    assert ranks == sorted(ranks)
    assert too_large.changes
    for change in too_large.changes:
        verdict = score(change.problem, change.plan)
        assert verdict == change.score
        assert change.fits in ("yes", "likely")
        whole = verdict.step_time_ns * change.num_devices
        before = too_large.score.step_time_ns * 8
        assert change.cost == pytest.approx(whole / before - 1)
        shown = settings_of_plan(change.problem, change.plan)
        assert all(shown[x.name] == x.after for x in change.settings)


def test_ranks_that_a_degree_takes_are_data_parallel(too_large: Fits) -> None:
    """Every rank keeps its micro-batch size of 2 samples."""
    for change in too_large.changes:
        if "tp" not in change.names:
            continue
        for strategy in strategies_of(change.plan):
            assert change.plan.replicas * strategy.dp * strategy.tp == 8
            if "micro-batch size" not in change.names:
                assert change.plan.micro_batch == 2 * strategy.dp
        return
    pytest.fail("no change of tp")


def test_a_setting_shows_its_cheapest_value(too_large: Fits) -> None:
    names = [change.names for change in too_large.changes]
    assert len(names) == len(set(names))


def test_a_plan_that_fits_is_shown_what_is_cheaper(problem: Problem) -> None:
    answer = fits(problem, even(problem, 4, 2, dp=2, recompute="full"))
    assert answer.fits == "yes"
    assert ("recomputation",) in [change.names for change in answer.changes]
    assert all(change.cost < 0 for change in answer.changes)
    assert answer.remedies == ()


def test_a_framework_gets_only_changes_that_it_can_run(problem: Problem) -> None:
    plan = even(problem, 1, 16, dp=8)
    answer = fits(
        problem,
        plan,
        target="deepspeed",
        cut=even_stages,
        lines=partial(lines_of, "deepspeed", None),
    )
    after = {
        setting.after
        for change in answer.changes
        for setting in change.settings
        if setting.name == "recomputation"
    }
    assert "selective" not in after
    assert answer.changes[0].added


def test_without_known_errors_the_prediction_counts() -> None:
    """The first of two stages holds two microbatches of two layers."""
    answer = fits(chain(), HALVES)
    first, second = answer.stages
    assert (answer.fits, first.memory_bytes) == ("yes", 40)
    assert (second.memory_bytes, first.memory_90_bytes) == (20, None)


def with_device_bytes(problem: Problem, size_bytes: int) -> Problem:
    device = replace(problem.cluster.device, memory_bytes=size_bytes)
    return replace(problem, cluster=replace(problem.cluster, device=device))


def test_more_devices_leave_fewer_microbatches_in_flight() -> None:
    """Four replicas have one microbatch each: a stage holds 20 bytes.

    A step takes 120 ns on 16 devices instead of 300 ns on 4.
    """
    answer = fits(with_device_bytes(chain(), 30), HALVES)
    (change,) = answer.changes
    assert (answer.fits, change.names) == ("no", ("devices",))
    assert (change.num_devices, change.memory_bytes) == (16, 20)
    assert change.cost == pytest.approx(120 * 16 / (300 * 4) - 1)


def test_what_no_change_can_mend() -> None:
    """The leanest plan of four devices needs 30 bytes, and they have 9."""
    answer = fits(with_device_bytes(chain(), 9), HALVES)
    assert (answer.fits, answer.changes) == ("no", ())
    assert "would do: 30 bytes per device instead of 9 bytes" in (answer.remedies)


def test_pairs_come_where_no_single_change_does() -> None:
    big = nest.problem(model="llama3-70b", cluster="h100x16", tp=8, recompute="none")
    names = [layer.id for layer in big.graph.layers]
    strategy = Strategy(tp=8, sequence_parallel=False)
    half = len(names) // 2
    plan = Plan(
        replicas=1,
        micro_batch=1,
        stages=tuple(
            Stage.of(cut, [strategy] * len(cut)) for cut in (names[:half], names[half:])
        ),
    )
    answer = fits(big, plan)
    assert answer.fits == "no"
    assert answer.changes
    assert {len(change.names) for change in answer.changes} == {2}


def test_changes_that_need_more_devices_come_last() -> None:
    """Twice the devices cost 0.4 % more device time, ZeRO 2 5.4 %."""
    problem = nest.problem(model="llama3-8b", cluster="h100x16")
    # Whose memory is known: with any other, a few more devices are not enough.
    problem = replace(problem, software="Megatron-LM")
    answer = fits(problem, even(problem, 1, 16, dp=16, zero=1))
    names = [change.names for change in answer.changes]
    assert names[0] == ("ZeRO stage",)
    assert names[-1] == ("devices",)
    assert answer.changes[-1].cost < answer.changes[0].cost
    assert answer.smallest == answer.changes[0]


def test_the_smallest_change_is_the_cheapest_of_one_setting(too_large: Fits) -> None:
    """Also where changes of two settings are cheaper."""
    single, *others = too_large.changes
    pair = dataclasses.replace(single, names=("tp", "pp"), cost=single.cost - 1)
    answer = dataclasses.replace(too_large, changes=(pair, single, *others))
    assert answer.smallest == single
    assert answer.to_json()["smallest_change"] == single.to_json()
    fine = dataclasses.replace(single, cost=-0.5)
    stages = tuple(dataclasses.replace(stage, fits="yes") for stage in too_large.stages)
    answer = dataclasses.replace(answer, stages=stages, changes=(fine,))
    assert answer.smallest is None


def test_replicas_can_share_what_zero_shards(problem: Problem) -> None:
    """Two replicas of 4 ranks become one of 8: ZeRO shards over all."""
    names = [layer.id for layer in problem.graph.layers]
    strategy = Strategy(dp=4)
    plan = Plan(
        replicas=2, micro_batch=4, stages=(Stage.of(names, [strategy] * len(names)),)
    )
    answer = fits(problem, plan)
    assert answer.fits == "no"
    zero = [x for x in answer.changes if "ZeRO stage" in x.names]
    assert zero[0].plan.replicas == 1
    assert zero[0].plan.stages[0].layer_strategies[0].dp == 8


def test_what_notebooks_show(too_large: Fits) -> None:
    assert repr(too_large).startswith("<Fits no: ")
    (row,) = too_large.to_rows()
    assert row["stage"] == 1
    assert row["fits"] == "no"
    document = too_large.to_json()
    assert document["schema"] == "nest-fits/1"
    assert document["stages"][0]["ranks"] == [[0, 7]]


def test_a_change_may_end_the_own_degree_of_experts(tmp_path, capsys) -> None:
    """With tensor parallelism 1 experts have no degree of their own."""
    (tmp_path / "run.sh").write_text(
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B --max_length 4096 "
        "--tensor_model_parallel_size 2 --expert_model_parallel_size 4 "
        "--sequence_parallel true\n"
    )
    path = str(tmp_path / "run.sh")
    with pytest.raises(SystemExit) as ended:
        main(["fits", path, "--cluster", "h100x8", "-q"])
    assert ended.value.code == 1
    assert "no: 102.9 of 79.1 GiB" in " ".join(capsys.readouterr().out.split())
