"""Bounds from layers, tasks and their store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nest.accelerators.answers import largest_of, listed, problem_on, setting_of
from nest.accelerators.architecture import Architecture
from nest.accelerators.evaluate import (
    Solved,
    WorkBound,
    best_plan,
    solve_point,
    splits_of,
    work_bound,
)
from nest.accelerators.objective import NO_PLAN
from nest.accelerators.oracle import PointOracle
from nest.accelerators.phaze import tpu_v4_like
from nest.accelerators.points import Point
from nest.accelerators.records import ModelResult
from nest.accelerators.search import Group
from nest.accelerators.tasks import (
    Store,
    Task,
    WorkloadSetting,
    died,
    open_store,
    run_task,
    workload_of,
)
from nest.accelerators.workload import QUANTUM_PS
from nest.cost.score import score
from nest.errors import NestError
from nest.ir.io import encode
from nest.models.choices import Request
from nest.models.zoo import architecture
from nest.solvers.base import Deadline
from nest.units import MAX_TOTAL
from nest.util.versions import nest_version
from tests import codesigns

CHIP = tpu_v4_like()
SETTING = WorkloadSetting(
    model=architecture("gpt2"), num_devices=4, devices_per_node=1, job=Request()
)
TASK = Task(setting=SETTING, architecture=CHIP, target_quanta=10, version="1")


def test_work_bound() -> None:
    """Two layers on 4 devices, 3 micro-batches of 2 samples.

    With one device a sample 2 devices take 10 + 20, so ``30 (4 + 2 * 2)`` =
    240; with two devices a sample 4 take 9 + 9, so ``18 (4 + 2 * 4)`` = 216.
    The bound is ``2 * 216 / 4`` = 108.
    """
    choices = ((0, 1, 1), (3, 2, 1))
    bound = WorkBound((2,), (choices,), ((4, 3, 2),))
    assert work_bound(bound, (10, 20, 5, 9, 9, 7)) == 108
    # 19 instead of 18: 228 is less than 240 still, so 114.
    assert work_bound(bound, (10, 20, 5, 9, 10, 7)) == 114
    # One device a sample alone: 120; on 3 devices 2 fit, 4 do not.
    one = WorkBound((2,), (choices[:1],), ((4, 3, 2),))
    assert work_bound(one, (10, 20, 5)) == 120
    small = WorkBound((2,), (choices,), ((3, 3, 2),))
    assert work_bound(small, (10, 20, 5, 1, 1, 7)) == 140
    # Rounded up: 2 * 30 * (3 + 4) / 3 = 140, 2 * 31 * 7 / 3 = 144.67.
    assert work_bound(small, (11, 20, 5, 1, 1, 7)) == 145


def test_no_strategy_for_the_samples() -> None:
    """Batches of 3 samples are not made of pairs."""
    bound = WorkBound((1,), (((0, 1, 2),),), ((4, 3, 3),))
    assert work_bound(bound, (1, 1, 1)) == NO_PLAN


@pytest.mark.parametrize("share", [0, 1, 2])
def test_schedules_of_the_plan_alone_are_proven(
    monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    """However weak bounds are, a step is that with all shortest schedules.

    Bounds are nothing, half of the shortest, or the shortest.
    """
    spec = codesigns.spec_of()
    chip = spec.space.points[-1].architecture
    workload = workload_of(setting_of(spec, "gpt2", chip.devices_per_node))
    shortest = workload.shortest(chip)
    whole = workload.problem(chip, workload.entries(shortest))
    expected, _ = best_plan(whole)
    asked: list[set[int]] = []
    prove = workload.shortest

    def noted(chip: Any, deadline: Any = None, numbers: Any = None) -> Any:
        asked.append(set(numbers))
        return prove(chip, deadline, numbers)

    monkeypatch.setattr(
        workload,
        "quick",
        lambda _: ({n: t * share // 2 for n, t in shortest.items()}, set()),
    )
    monkeypatch.setattr(workload, "shortest", noted)
    found = solve_point(workload, chip, (), MAX_TOTAL)
    assert (found.lower_quanta, found.exact) == (expected, True)
    assert found.plan is not None
    assert score(whole, found.plan).step_quanta == expected
    proven = set().union(*asked)
    assert workload.passes_of(found.plan) <= proven
    assert sum(map(len, asked)) == len(proven)
    if share == 2:
        assert len(proven) < len(shortest)
    # What is written of the point has the same optimum.
    on = ModelResult("gpt2", expected * QUANTUM_PS, found.plan)
    written = problem_on(spec, on, chip)
    assert best_plan(written)[0] == expected
    assert score(written, found.plan).step_quanta == expected
    assert set().union(*asked) == proven
    # One tick less is too little, whether splits are known or not.
    for splits in ((), splits_of(whole)):
        below = solve_point(workload, chip, splits, expected - 1)
        assert (below.lower_quanta, below.exact) == (expected, False)
        within = solve_point(workload, chip, splits, expected)
        assert (within.lower_quanta, within.exact) == (expected, True)


def test_a_point_with_as_much_as_any() -> None:
    """Of each size of nodes, and with the largest buffer that a rule gives."""
    points = [
        Point(0, replace(CHIP, rows=256, sram_bytes=2**20), 1, 1, 1),
        Point(1, replace(CHIP, rows=64, core_buffer_bytes=2**25), 1, 1, 1),
        Point(2, replace(CHIP, devices_per_node=4, rows=8), 1, 1, 1),
    ]
    assert largest_of(listed(points)) == {
        1: replace(CHIP, rows=256, core_buffer_bytes=2**25),
        4: replace(
            CHIP,
            devices_per_node=4,
            rows=8,
            core_buffer_bytes=points[2].architecture.core_sram_bytes,
        ),
    }


def oracle_of(*chips: Architecture) -> PointOracle:
    """Return what is known of chips: nothing yet."""
    points = [Point(i, chip, 1, 1, 1) for i, chip in enumerate(chips)]
    return PointOracle(list(chips), listed(points), [SETTING], Store(None))


def test_a_group_is_as_fast_as_any_of_its_points() -> None:
    """It has the most memory, the fastest rates and the least times."""
    one = replace(CHIP, hbm_bytes=2**33, link_bytes_per_s=9, rows=64)
    other = replace(CHIP, hbm_bytes_per_s=10**9, network_bytes_per_s=7)
    oracle = oracle_of(one, other)
    task = oracle._group_task(Group((0, 1), 0, 100))
    chip = task.architecture
    assert chip.hbm_bytes == max(one.hbm_bytes, other.hbm_bytes)
    assert chip.hbm_bytes_per_s == one.hbm_bytes_per_s
    assert chip.link_bytes_per_s == max(9, other.link_bytes_per_s)
    assert chip.network_bytes_per_s == max(one.network_bytes_per_s, 7)
    first, second = (oracle._entries(point, 0) for point in (0, 1))
    assert first != second
    assert task.entries == tuple(map(min, first, second))


def test_groups_that_ask_the_same_are_both_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Links are as fast together, once on two chips and once on one."""
    chips = [
        replace(CHIP, link_bytes_per_s=link, network_bytes_per_s=network)
        for link, network in ((9, 5), (5, 9), (9, 9), (5, 5))
    ]
    oracle = oracle_of(*chips)
    run: list[Task] = []

    def settled(tasks: Sequence[Task], _: Any) -> Iterator[Solved]:
        run.extend(tasks)
        for task in tasks:
            yield Solved(key=task.key, lower_quanta=101, exact=False)

    monkeypatch.setattr(oracle, "_run", settled)
    groups = [Group((0, 1), 0, 100), Group((2, 3), 0, 100)]
    found = dict(oracle.together(groups, Deadline(None)))
    assert found == dict.fromkeys(groups, 101)
    assert len(run) == 1


def test_splits_are_left_up_to_their_target() -> None:
    """Of a point, and of what it dominates; of several, those of any."""
    large = replace(CHIP, rows=256)
    oracle = oracle_of(CHIP, large, replace(CHIP, rows=8))
    oracle._splits[1, 0] = 10, ((1, 1), (2, 1))
    assert oracle._left((1,), 0, 10) == ((1, 1), (2, 1))
    assert oracle._left((0, 2), 0, 9) == ((1, 1), (2, 1))
    # Longer steps may have other splits: all are looked at.
    assert oracle._left((1,), 0, 11) == ()
    oracle._splits[0, 0] = 10, ((4, 1),)
    assert oracle._left((0, 1), 0, 10) == ((1, 1), (2, 1), (4, 1))
    # What is known of a smaller point says nothing of a larger one.
    del oracle._splits[1, 0]
    assert oracle._left((1,), 0, 10) == ()


def test_keys_tell_questions_apart() -> None:
    """All that an answer depends on is in the key.

    The target and the splits are for several points: which splits are left
    depends on the target, and on the points.
    """
    other = replace(TASK.architecture, hbm_bytes=2**30)
    tasks = [
        TASK,
        replace(TASK, architecture=other),
        replace(TASK, setting=replace(SETTING, num_devices=8)),
        replace(TASK, setting=replace(SETTING, model=architecture("t5-11b"))),
        replace(TASK, entries=(1, 2, 3)),
        replace(TASK, entries=(1, 2, 4)),
        replace(TASK, entries=(1, 2, 3), target_quanta=11),
        replace(TASK, entries=(1, 2, 3), splits=((1, 1),)),
        replace(TASK, version="2"),
    ]
    assert len({task.key for task in tasks}) == len(tasks)
    assert replace(TASK, target_quanta=11).key == TASK.key
    assert replace(TASK, splits=((1, 1),)).key == TASK.key
    assert replace(TASK, limit_s=1.0).key == TASK.key
    overlapping = replace(SETTING, job=Request(overlap={"gradients": 0.5}))
    assert hash(overlapping) != hash(SETTING)


def test_another_version_runs_nothing() -> None:
    with pytest.raises(NestError, match=r"^worker: expected nest 1, as where"):
        run_task(TASK)


def test_a_dead_process_ends_the_search() -> None:
    with pytest.raises(
        NestError,
        match=r"^gpt2 on point .*: expected an answer, got none as it died; "
        r"what is finished is kept, go on with --resume",
    ):
        died(TASK, "it died")


def solved(key: str, quanta: int) -> bytes:
    return encode(Solved(key=key, lower_quanta=quanta, exact=True))


def test_what_is_kept_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with open_store(folder, resume=False) as store:
        store.keep(solved("a" * 32, 5))
        assert (store.evaluated, store.found) == (1, 0)
    half = folder / "points" / f".{'b' * 32}.json.abcd1234"
    theirs = folder / "points" / ".half"
    for path in (half, theirs):
        path.write_bytes(b"{")
    (folder / "points" / "broken.json").write_bytes(b"{")
    (folder / "points" / f"{'b' * 32}.json").write_bytes(solved("c" * 32, 6))
    with open_store(folder, resume=True) as store:
        assert (store.evaluated, store.found) == (0, 1)
        assert store.solved["a" * 32].lower_quanta == 5
        unnamed, other, broken = store.complaints
        assert ".half" in unnamed
        assert "broken.json" in broken
        assert "it counts as not solved" in broken
        assert "expected the point of its name, got another" in other
    assert not half.exists()
    assert theirs.exists()


def test_what_ran_out_of_time_is_not_kept(tmp_path: Path) -> None:
    task = replace(TASK, version=nest_version(), limit_s=0.0)
    entries = (1,) * 3 * len(workload_of(SETTING).works)
    for asked in (task, replace(task, entries=entries)):
        data = run_task(asked)
        found = json.loads(data)
        assert (found["key"], found["lower_quanta"]) == (asked.key, 0)
        assert found["out_of_time"]
        with open_store(tmp_path / "run", resume=asked is not task) as store:
            store.keep(data)
            assert store.solved == {}


def test_without_a_directory_nothing_is_written() -> None:
    with open_store(None, resume=False) as store:
        assert isinstance(store, Store)
        store.keep(solved("a" * 32, 5))
        assert store.solved["a" * 32].exact


def refused(folder: Path, message: str, resume: bool = True) -> None:
    """Check why a directory cannot be opened."""
    with pytest.raises(NestError, match=message), open_store(folder, resume=resume):
        pass


def test_directories_of_others_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with open_store(folder, resume=False):
        refused(folder, "expected a directory that no run")
    refused(folder, "add --resume to go on with it", resume=False)
    manifest = folder / "codesign.json"
    other = {"schema": "nest-codesign-run/1", "version": "0"}
    manifest.write_text(json.dumps(other))
    refused(folder, "expected nest 0, with which the")
    manifest.unlink()
    (folder / "other").write_text("")
    refused(folder, "got one with other files in it")
    file = tmp_path / "file"
    file.write_text("")
    refused(file, "expected a directory, got a file", resume=False)
    nowhere = Path("/proc/nothing")
    refused(nowhere, "expected a directory that can be", resume=False)
